//! Memory here that the card reaches by itself.

use crate::buffer::{DeviceBuffer, Pod};
use crate::device::CudaDevice;
use crate::error::{Doing, Result};
use crate::stream::Stream;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::CUresult;
use std::sync::Arc;

/// Small numbers that go to and fro every step: copied without being staged, or written here by kernels.
pub(crate) struct PinnedBuffer<T: Pod> {
    card: Arc<CudaDevice>,
    at: *mut T,
    len: usize,
}

// SAFETY: it owns its memory, which any thread may use.
unsafe impl<T: Pod> Send for PinnedBuffer<T> {}

impl<T: Pod> PinnedBuffer<T> {
    pub(crate) fn new(card: &Arc<CudaDevice>, len: usize) -> Result<Self> {
        card.bind()?;
        let bytes = len * size_of::<T>();
        // SAFETY: freed when dropped.
        let at = unsafe { result::malloc_host(bytes, 0) };
        let short = at == Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        let at =
            at.doing(&format!("pinning {} KiB of this machine's own memory", bytes >> 10)).map_err(|e| match short {
                true => e.hint("the machine, or the container's share of it, has too little left"),
                false => e,
            });
        let at = at?.cast::<T>();
        for i in 0..len {
            // SAFETY: inside the allocation.
            unsafe { at.add(i).write(T::default()) };
        }
        Ok(PinnedBuffer { card: Arc::clone(card), at, len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Copies `from` here and from here to the card, in the order of the stream; what was sent before must have arrived.
    pub(crate) fn send(&mut self, stream: &Stream, from: &[T], to: &DeviceBuffer<T>) -> Result<()> {
        assert!(from.len() <= self.len);
        // SAFETY: that much is ours and initialised.
        let here = unsafe { std::slice::from_raw_parts_mut(self.at, from.len()) };
        here.copy_from_slice(from);
        to.put(stream, here)
    }

    /// Where kernels find it.
    pub(crate) fn on_card(&self) -> u64 {
        // PinnedBuffer memory has one address for both.
        self.at as u64
    }

    /// What is in it; what kernels wrote, once they were waited for.
    pub(crate) fn here(&self) -> &[T] {
        // SAFETY: all of it is ours and initialised.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}

impl<T: Pod> Drop for PinnedBuffer<T> {
    fn drop(&mut self) {
        if self.card.bind().is_ok() {
            // SAFETY: allocated in `new`.
            let _ = unsafe { result::free_host(self.at.cast()) };
        }
    }
}
