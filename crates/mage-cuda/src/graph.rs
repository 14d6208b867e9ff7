//! CUDA graph capture and replay.
//!
//! During a capture, no thread may synchronize the device: that invalidates every capture in progress. cuBLASLt does so
//! when a handle is destroyed ([`no_capture_guard`]). Allocation, kernel loading and waiting for other streams are
//! allowed in other threads: captures use the thread-local mode.

use crate::error::{ErrorContext, Result};
use crate::stream::Stream;
use cudarc::driver::{result, sys};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static CAPTURES: RwLock<()> = RwLock::new(());

/// Blocks graph captures while the guard is held. Required for calls that synchronize the device.
pub(crate) fn no_capture_guard() -> RwLockWriteGuard<'static, ()> {
    CAPTURES.write().unwrap_or_else(PoisonError::into_inner)
}

/// An instantiated CUDA graph.
pub(crate) struct CudaGraph(sys::CUgraphExec);

// SAFETY: used by one thread at a time: its `ModelRunner` takes `&mut self`.
unsafe impl Send for CudaGraph {}

impl CudaGraph {
    /// Launches the graph in stream order.
    ///
    /// # Safety
    ///
    /// All memory that the captured work refers to must still be at the same address.
    pub(crate) unsafe fn replay(&self, stream: &Stream) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe { result::graph::launch(self.0, stream.raw) }.context("replaying a step")
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        // SAFETY: instantiated in `finish`, destroyed once.
        let _ = unsafe { result::graph::exec_destroy(self.0) };
    }
}

/// A capture in progress.
pub(crate) struct GraphCapture {
    stream: sys::CUstream,
    ended: bool,
    /// Keeps other threads from synchronizing the device.
    _no_sync: RwLockReadGuard<'static, ()>,
}

const CAPTURING: &str = "capturing a step";

impl GraphCapture {
    /// Captures the stream until this is dropped, which must happen before the stream is dropped.
    pub(crate) fn new(stream: &Stream) -> Result<Self> {
        use sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as MODE;
        let capture = CAPTURES.read().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the stream is valid; the capture is ended on every path.
        unsafe { result::stream::begin_capture(stream.raw, MODE) }.context(CAPTURING)?;
        Ok(GraphCapture { stream: stream.raw, ended: false, _no_sync: capture })
    }

    /// Ends the capture and instantiates the graph.
    pub(crate) fn finish(mut self) -> Result<CudaGraph> {
        let graph = self.end()?;
        // SAFETY: just created, destroyed once.
        unsafe {
            let instantiated = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)).context(CAPTURING);
            let _ = result::graph::destroy(graph);
            Ok(CudaGraph(instantiated?))
        }
    }

    fn end(&mut self) -> Result<sys::CUgraph> {
        self.ended = true;
        // SAFETY: begun in `new`, and the stream is still valid.
        unsafe { result::stream::end_capture(self.stream) }.context(CAPTURING)
    }
}

impl Drop for GraphCapture {
    fn drop(&mut self) {
        if !self.ended
            && let Ok(graph) = self.end()
        {
            // SAFETY: just created, destroyed once.
            let _ = unsafe { result::graph::destroy(graph) };
        }
    }
}

#[cfg(test)]
#[warn(dead_code)]
pub(crate) mod tests {
    use super::*;
    use crate::buffer::DeviceBuffer;
    use crate::gemm::CublasLt;
    use std::time::Duration;

    pub(crate) fn dropping_cublas_does_not_disturb_a_capture() {
        let device = crate::device::tests::device();
        let stream = Stream::new(&device).unwrap();
        let cublas = CublasLt::new(&Stream::new(&device).unwrap()).unwrap();
        let buffer = DeviceBuffer::from_slice(&device, &[7_u32; 4]).unwrap();
        let capture = GraphCapture::new(&stream).unwrap();
        let dropper = std::thread::spawn(move || drop(cublas));
        // Long enough for the drop to finish if it did not wait.
        std::thread::sleep(Duration::from_millis(300));
        buffer.clear(&stream, 0, 2).unwrap();
        let graph = capture.finish().unwrap();
        dropper.join().unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [7, 7, 7, 7], "captured, not executed");
        // SAFETY: the buffer is still allocated.
        unsafe { graph.replay(&stream) }.unwrap();
        stream.wait().unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [0, 0, 7, 7]);
    }

    pub(crate) fn an_abandoned_capture_leaves_the_stream_usable() {
        let device = crate::device::tests::device();
        let stream = Stream::new(&device).unwrap();
        let buffer = DeviceBuffer::from_slice(&device, &[7_u32; 4]).unwrap();
        let capture = GraphCapture::new(&stream).unwrap();
        buffer.clear(&stream, 0, 2).unwrap();
        drop(capture);
        buffer.clear(&stream, 2, 2).unwrap();
        stream.wait().unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [7, 7, 0, 0]);
    }
}
