//! Pinned host memory.

use crate::buffer::{DeviceBuffer, Pod, bytes_of};
use crate::device::CudaDevice;
use crate::error::{ErrorContext, Result};
use crate::stream::Stream;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUresult};
use std::sync::Arc;

/// Page-locked host memory for small per-step data: copied without staging, or written directly by kernels.
pub(crate) struct PinnedBuffer<T: Pod> {
    device: Arc<CudaDevice>,
    at: *mut T,
    len: usize,
    /// The stream of an upload that may not have completed.
    uploading: Option<sys::CUstream>,
}

// SAFETY: it owns its memory, which any thread may use.
unsafe impl<T: Pod> Send for PinnedBuffer<T> {}

impl<T: Pod> PinnedBuffer<T> {
    pub(crate) fn new(device: &Arc<CudaDevice>, len: usize) -> Result<Self> {
        device.bind()?;
        let bytes = bytes_of::<T>(len)?;
        // SAFETY: freed on drop.
        let at = unsafe { result::malloc_host(bytes, 0) };
        let out_of_memory = at == Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        let at = at.context(&format!("pinning {} KiB of host memory", bytes >> 10)).map_err(|e| match out_of_memory {
            true => e.hint("the machine or the container has too little free memory"),
            false => e,
        });
        let at = at?.cast::<T>();
        for i in 0..len {
            // SAFETY: within the allocation.
            unsafe { at.add(i).write(T::default()) };
        }
        Ok(PinnedBuffer { device: Arc::clone(device), at, len, uploading: None })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Copies `from` into the pinned buffer and from there to the device, in stream order. Waits for the previous upload,
    /// unless [`wait`](Self::wait) did. All uploads must use one stream.
    pub(crate) fn upload(&mut self, stream: &Stream, from: &[T], to: &DeviceBuffer<T>) -> Result<()> {
        assert!(from.len() <= self.len);
        if let Some(other) = self.uploading {
            assert!(other == stream.raw, "a pinned buffer is uploaded on two streams");
            self.wait(stream)?;
        }
        self.uploading = Some(stream.raw);
        // SAFETY: the range is within the allocation and initialised.
        let staging = unsafe { std::slice::from_raw_parts_mut(self.at, from.len()) };
        staging.copy_from_slice(from);
        to.upload(stream, staging)
    }

    /// Waits for all work on the stream, uploads of this buffer included.
    pub(crate) fn wait(&mut self, stream: &Stream) -> Result<()> {
        stream.wait()?;
        self.uploading = self.uploading.filter(|uploading| *uploading != stream.raw);
        Ok(())
    }

    /// Address for kernels.
    pub(crate) fn device_ptr(&self) -> u64 {
        // Pinned memory has the same address on the host and the device.
        self.at as u64
    }

    /// The contents.
    ///
    /// # Safety
    /// Kernels that write the buffer must have ended, and none may start while the contents are borrowed.
    pub(crate) unsafe fn as_slice(&self) -> &[T] {
        // SAFETY: the whole allocation is owned and initialised; the caller guarantees that no kernel writes it.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}

impl<T: Pod> Drop for PinnedBuffer<T> {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: allocated in `new`.
            let _ = unsafe { result::free_host(self.at.cast()) };
        }
    }
}
