//! Memory on the card.

use crate::device::CudaDevice;
use crate::error::{CudaError, Doing, Result};
use crate::stream::Stream;
use cudarc::driver::{result, sys};
use std::marker::PhantomData;
use std::sync::Arc;

/// Numbers that can lie on the card: plain bits, all of them meaningful.
pub trait Pod: Copy + Default + 'static {}
impl Pod for u16 {}
impl Pod for u32 {}
impl Pod for f32 {}
impl Pod for f64 {}
impl<T: Pod, const N: usize> Pod for [T; N] where [T; N]: Default {}

/// A piece of the card's memory.
pub struct DeviceBuffer<T: Pod> {
    card: Arc<CudaDevice>,
    at: sys::CUdeviceptr,
    len: usize,
    kind: PhantomData<T>,
}

/// Bytes as people read them, never none of a unit that is too large, and never more than there are.
fn size(bytes: usize) -> String {
    let (unit, name) = match bytes {
        0..1024 => return format!("{bytes} bytes"),
        1024..1_048_576 => (1024, "KiB"),
        _ => (1 << 20, "MiB"),
    };
    match bytes / unit {
        whole @ 100.. => format!("{whole} {name}"),
        whole => format!("{whole}.{} {name}", bytes % unit * 10 / unit),
    }
}

impl<T: Pod> DeviceBuffer<T> {
    /// Room for so many; what is in it is not defined.
    pub fn new(card: &Arc<CudaDevice>, len: usize) -> Result<Self> {
        let bytes = (len * size_of::<T>()).max(16);
        card.bind()?;
        // SAFETY: freed when dropped.
        let at = unsafe { result::malloc_sync(bytes) };
        let at = at.doing("taking memory on the card").map_err(|e| {
            let free = card.free_memory().map_or_else(|_| "an unknown number".to_owned(), size);
            CudaError { reason: format!("{} when {} were asked for, {free} being free", e.reason, size(bytes)), ..e }
        })?;
        Ok(DeviceBuffer { card: Arc::clone(card), at, len, kind: PhantomData })
    }

    /// The same, all bits 0.
    pub fn zeros(card: &Arc<CudaDevice>, len: usize) -> Result<Self> {
        let (buffer, stream) = (Self::new(card, len)?, Stream::new(card)?);
        buffer.clear(&stream, 0, len)?;
        stream.wait()?;
        Ok(buffer)
    }

    /// Copied from memory here.
    pub fn from_slice(card: &Arc<CudaDevice>, from: &[T]) -> Result<Self> {
        let mut buffer = Self::new(card, from.len())?;
        buffer.write(from)?;
        Ok(buffer)
    }

    /// The card that it is on.
    pub(crate) fn card(&self) -> &Arc<CudaDevice> {
        &self.card
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes its beginning and waits until that is done.
    pub fn write(&mut self, from: &[T]) -> Result<()> {
        // A stream of its own: to wait for the whole card is forbidden while another thread records a step.
        let stream = Stream::new(&self.card)?;
        self.put(&stream, from)?;
        stream.wait()
    }

    /// Reads its beginning. What writes it must have been waited for.
    pub fn read(&self, to: &mut [T]) -> Result<()> {
        self.take(&Stream::new(&self.card)?, to)
    }

    /// All of it.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut all = vec![T::default(); self.len];
        self.read(&mut all)?;
        Ok(all)
    }

    /// Where element `i` is.
    pub(crate) fn at(&self, i: usize) -> u64 {
        debug_assert!(i <= self.len);
        self.at + (i * size_of::<T>()) as u64
    }

    /// Makes it at least so long; what was in it is lost.
    pub(crate) fn reserve(&mut self, len: usize) -> Result<()> {
        if self.len < len {
            // Freed first, so that both need not fit.
            let card = Arc::clone(&self.card);
            *self = DeviceBuffer::new(&card, 0)?;
            *self = DeviceBuffer::new(&card, len)?;
        }
        Ok(())
    }

    /// Copies `from` over its beginning, in the order of the stream.
    pub(crate) fn put(&self, stream: &Stream, from: &[T]) -> Result<()> {
        self.put_at(stream, 0, from)
    }

    /// Copies `from` over what is there from element `first` on, in the order of the stream.
    pub(crate) fn put_at(&self, stream: &Stream, first: usize, from: &[T]) -> Result<()> {
        assert!(first + from.len() <= self.len, "{} do not fit into {} from {first} on", from.len(), self.len);
        // SAFETY: the range is inside the allocation; pageable memory is staged by the driver before it returns.
        unsafe { result::memcpy_htod_async(self.at(first), from, stream.raw) }.doing("copying to the card")
    }

    /// Copies its beginning to `to` and waits for all that is in the stream.
    pub(crate) fn take(&self, stream: &Stream, to: &mut [T]) -> Result<()> {
        assert!(to.len() <= self.len, "{} are more than {}", to.len(), self.len);
        // SAFETY: the range is inside the allocation, and `to` is there until the stream was waited for.
        unsafe { result::memcpy_dtoh_async(to, self.at, stream.raw) }.doing("copying from the card")?;
        stream.wait()
    }

    /// Clears `count` elements from `first` on, in the order of the stream.
    pub(crate) fn clear(&self, stream: &Stream, first: usize, count: usize) -> Result<()> {
        assert!(first + count <= self.len);
        // SAFETY: the range is inside the allocation.
        unsafe { result::memset_d8_async(self.at(first), 0, count * size_of::<T>(), stream.raw) }
            .doing("clearing memory on the card")
    }

    /// A copy of all of it, in the order of the stream.
    pub(crate) fn copied(&self, stream: &Stream) -> Result<Self> {
        let copy = DeviceBuffer::new(&self.card, self.len)?;
        self.copy_to(stream, &copy)?;
        Ok(copy)
    }

    /// Copies all of it to another of its length, in the order of the stream.
    pub(crate) fn copy_to(&self, stream: &Stream, to: &Self) -> Result<()> {
        assert_eq!(self.len, to.len);
        // SAFETY: both are that long.
        unsafe { result::memcpy_dtod_async(to.at, self.at, self.len * size_of::<T>(), stream.raw) }
            .doing("copying on the card")
    }
}

impl<T: Pod> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        if self.card.bind().is_ok() {
            // SAFETY: allocated in `new`; the driver waits for what is under way.
            let _ = unsafe { result::free_sync(self.at) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_told_in_a_unit_that_shows_them() {
        let told = [16, 1023, 1024, 5000, 1 << 20, 3 << 19, (64 << 20) + 1, 1 << 40].map(size);
        let expected =
            ["16 bytes", "1023 bytes", "1.0 KiB", "4.8 KiB", "1.0 MiB", "1.5 MiB", "64.0 MiB", "1048576 MiB"];
        assert_eq!(told, expected);
    }

    #[test]
    fn too_much_memory_is_refused_with_what_was_asked_and_what_is_free() {
        let Some(card) = crate::device::tests::card_or_skip("none could run out of memory") else { return };
        let error = DeviceBuffer::<f32>::new(&card, 1 << 42).err().unwrap().to_string();
        for part in ["16777216 MiB were asked for", "being free", "nvidia-smi"] {
            assert!(error.contains(part), "{error}");
        }
        // Nothing is lost by that.
        assert_eq!(DeviceBuffer::from_slice(&card, &[1_f32, 2.0]).unwrap().to_vec().unwrap(), [1.0, 2.0]);
    }
}
