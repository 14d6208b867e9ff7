//! How is work recorded once and replayed?
//!
//! While a stream records, nobody may ask to wait for the whole card: that spoils every recording under way, in any thread.
//! cuBLASLt does so when it is put away ([`unrecorded`]). Taking and freeing memory, loading and unloading kernels, and waiting
//! for other streams do no harm from other threads: recordings are of a kind that minds its own thread alone.

use crate::error::{Doing, Result};
use crate::stream::Stream;
use cudarc::driver::{result, sys};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static RECORDINGS: RwLock<()> = RwLock::new(());

/// WeightsRef by whoever may wait for the whole card: nothing is recorded meanwhile.
pub(crate) fn unrecorded() -> RwLockWriteGuard<'static, ()> {
    RECORDINGS.write().unwrap_or_else(PoisonError::into_inner)
}

/// What was recorded.
pub(crate) struct Graph(sys::CUgraphExec);

// SAFETY: used by one thread at a time: it belongs to a stepper, which works through `&mut`.
unsafe impl Send for Graph {}

impl Graph {
    /// Does all of it again, in the order of the stream.
    ///
    /// # Safety
    ///
    /// Everything that it refers to is where it was when it was recorded.
    pub(crate) unsafe fn replay(&self, stream: &Stream) -> Result<()> {
        // SAFETY: by whoever calls.
        unsafe { result::graph::launch(self.0, stream.raw) }.doing("replaying a step")
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: instantiated in `graph`, destroyed once.
        let _ = unsafe { result::graph::exec_destroy(self.0) };
    }
}

/// A stream that records instead of working.
pub(crate) struct GraphCapture {
    stream: sys::CUstream,
    ended: bool,
    /// Nobody waits for the whole card meanwhile.
    _alone: RwLockReadGuard<'static, ()>,
}

const DOING: &str = "recording a step";

impl GraphCapture {
    /// Lets a stream record until this is dropped, which must be before the stream is.
    pub(crate) fn new(stream: &Stream) -> Result<Self> {
        use sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as MODE;
        let recording = RECORDINGS.read().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the stream is there; recording ends whatever happens in between.
        unsafe { result::stream::begin_capture(stream.raw, MODE) }.doing(DOING)?;
        Ok(GraphCapture { stream: stream.raw, ended: false, _alone: recording })
    }

    /// What was recorded since, ready to be replayed.
    pub(crate) fn graph(mut self) -> Result<Graph> {
        let graph = self.end()?;
        // SAFETY: just made, destroyed once.
        unsafe {
            let made = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)).doing(DOING);
            let _ = result::graph::destroy(graph);
            Ok(Graph(made?))
        }
    }

    fn end(&mut self) -> Result<sys::CUgraph> {
        self.ended = true;
        // SAFETY: begun in `new`, and the stream is still there.
        unsafe { result::stream::end_capture(self.stream) }.doing(DOING)
    }
}

impl Drop for GraphCapture {
    fn drop(&mut self) {
        if !self.ended
            && let Ok(graph) = self.end()
        {
            // SAFETY: just made, destroyed once.
            let _ = unsafe { result::graph::destroy(graph) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::DeviceBuffer;
    use crate::device::tests::card_or_skip;
    use crate::gemm::CublasLt;
    use std::time::Duration;

    #[test]
    fn products_that_are_put_away_leave_recordings_alone() {
        let Some(card) = card_or_skip("nothing was recorded") else { return };
        let stream = Stream::new(&card).unwrap();
        let products = CublasLt::new(&Stream::new(&card).unwrap()).unwrap();
        let buffer = DeviceBuffer::from_slice(&card, &[7_u32; 4]).unwrap();
        let recording = GraphCapture::new(&stream).unwrap();
        let going = std::thread::spawn(move || drop(products));
        // Time enough, were they not to wait.
        std::thread::sleep(Duration::from_millis(300));
        buffer.clear(&stream, 0, 2).unwrap();
        let graph = recording.graph().unwrap();
        going.join().unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [7, 7, 7, 7], "recorded, not done");
        // SAFETY: the buffer is still there.
        unsafe { graph.replay(&stream) }.unwrap();
        stream.wait().unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [0, 0, 7, 7]);
    }

    #[test]
    fn a_recording_that_is_given_up_leaves_the_stream_as_it_was() {
        let Some(card) = card_or_skip("nothing was recorded") else { return };
        let stream = Stream::new(&card).unwrap();
        let buffer = DeviceBuffer::from_slice(&card, &[7_u32; 4]).unwrap();
        let recording = GraphCapture::new(&stream).unwrap();
        buffer.clear(&stream, 0, 2).unwrap();
        drop(recording);
        buffer.clear(&stream, 2, 2).unwrap();
        stream.wait().unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [7, 7, 0, 0]);
    }
}
