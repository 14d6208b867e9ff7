//! Buffers in device memory.
//!
//! A [`DeviceBuffer`] owns an allocation and knows its length, but kernels receive plain addresses
//! ([`at`](DeviceBuffer::at)) without bounds. [`reserve`](DeviceBuffer::reserve) discards the contents and moves the
//! address, so graphs captured with the old one must be dropped. Copies are in stream order; those to the host wait.

use crate::device::CudaDevice;
use crate::error::{CudaError, ErrorContext, Result};
use crate::stream::Stream;
use cudarc::driver::{result, sys};
use std::marker::PhantomData;
use std::sync::Arc;

/// Types that can be stored in device memory: any bit pattern is valid.
pub trait Pod: Copy + Default + 'static {}
impl Pod for u16 {}
impl Pod for u32 {}
impl Pod for f32 {}
impl Pod for f64 {}
impl<T: Pod, const N: usize> Pod for [T; N] where [T; N]: Default {}

/// An allocation in device memory.
pub struct DeviceBuffer<T: Pod> {
    device: Arc<CudaDevice>,
    at: sys::CUdeviceptr,
    len: usize,
    marker: PhantomData<T>,
}

/// Formats a size in a unit in which it is at least 1, rounded down.
fn format_bytes(bytes: usize) -> String {
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

/// Size of `len` elements.
pub(crate) fn bytes_of<T: Pod>(len: usize) -> Result<usize> {
    let too_large = || CudaError::new("allocating memory", format!("{len} elements exceed the address space"));
    len.checked_mul(size_of::<T>()).ok_or_else(too_large)
}

impl<T: Pod> DeviceBuffer<T> {
    /// Allocates `len` elements, uninitialised.
    pub(crate) fn new(device: &Arc<CudaDevice>, len: usize) -> Result<Self> {
        let bytes = bytes_of::<T>(len)?.max(16);
        device.bind()?;
        // SAFETY: freed on drop.
        let at = unsafe { result::malloc_sync(bytes) };
        let at = at.context("allocating GPU memory").map_err(|e| {
            let free = device.free_memory().map_or_else(|_| "unknown".to_owned(), format_bytes);
            CudaError { reason: format!("{} (requested {}, {free} free)", e.reason, format_bytes(bytes)), ..e }
        })?;
        Ok(DeviceBuffer { device: Arc::clone(device), at, len, marker: PhantomData })
    }

    /// Allocates `len` elements, all bits 0.
    pub(crate) fn zeros(device: &Arc<CudaDevice>, len: usize) -> Result<Self> {
        let (buffer, stream) = (Self::new(device, len)?, Stream::new(device)?);
        buffer.clear(&stream, 0, len)?;
        stream.wait()?;
        Ok(buffer)
    }

    /// Allocates a copy of host memory.
    pub(crate) fn from_slice(device: &Arc<CudaDevice>, from: &[T]) -> Result<Self> {
        let mut buffer = Self::new(device, from.len())?;
        buffer.write(from)?;
        Ok(buffer)
    }

    /// The device of the allocation.
    pub(crate) fn device(&self) -> &Arc<CudaDevice> {
        &self.device
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies `from` to the start of the buffer and waits.
    pub(crate) fn write(&mut self, from: &[T]) -> Result<()> {
        // Uses its own stream: synchronizing the device is not allowed while another thread captures a graph.
        let stream = Stream::new(&self.device)?;
        self.upload(&stream, from)?;
        stream.wait()
    }

    /// Copies the start of the buffer to `to`. The caller must have waited for kernels that write it.
    pub(crate) fn read(&self, to: &mut [T]) -> Result<()> {
        self.download(&Stream::new(&self.device)?, to)
    }

    /// Copies the whole buffer to the host.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut all = vec![T::default(); self.len];
        self.read(&mut all)?;
        Ok(all)
    }

    /// Device address of element `i`.
    pub(crate) fn at(&self, i: usize) -> u64 {
        assert!(i <= self.len, "element {i} of a buffer of {}", self.len);
        self.at + (i * size_of::<T>()) as u64
    }

    /// Grows the buffer to at least `len` elements. Discards the contents if it grows.
    pub(crate) fn reserve(&mut self, len: usize) -> Result<()> {
        if self.len < len {
            // Freed first, so that both need not fit.
            let device = Arc::clone(&self.device);
            *self = DeviceBuffer::new(&device, 0)?;
            *self = DeviceBuffer::new(&device, len)?;
        }
        Ok(())
    }

    /// Copies `from` to the start of the buffer, in stream order.
    pub(crate) fn upload(&self, stream: &Stream, from: &[T]) -> Result<()> {
        self.upload_at(stream, 0, from)
    }

    /// Copies `from` to the elements from `first` on, in stream order.
    pub(crate) fn upload_at(&self, stream: &Stream, first: usize, from: &[T]) -> Result<()> {
        assert!(
            first <= self.len && from.len() <= self.len - first,
            "{} elements exceed a buffer of {} from element {first}",
            from.len(),
            self.len
        );
        // SAFETY: the range is within the allocation; the driver stages pageable memory before it returns.
        unsafe { result::memcpy_htod_async(self.at(first), from, stream.raw) }.context("copying to the GPU")
    }

    /// Copies the start of the buffer to `to` and waits for the stream.
    pub(crate) fn download(&self, stream: &Stream, to: &mut [T]) -> Result<()> {
        assert!(to.len() <= self.len, "{} elements exceed a buffer of {}", to.len(), self.len);
        // SAFETY: the range is within the allocation, and `to` outlives the wait.
        unsafe { result::memcpy_dtoh_async(to, self.at, stream.raw) }.context("copying from the GPU")?;
        stream.wait()
    }

    /// Zeroes `count` elements from `first` on, in stream order.
    pub(crate) fn clear(&self, stream: &Stream, first: usize, count: usize) -> Result<()> {
        assert!(first <= self.len && count <= self.len - first);
        // SAFETY: the range is within the allocation.
        unsafe { result::memset_d8_async(self.at(first), 0, count * size_of::<T>(), stream.raw) }
            .context("zeroing GPU memory")
    }

    /// A copy of the buffer, in stream order.
    pub(crate) fn duplicate(&self, stream: &Stream) -> Result<Self> {
        let duplicate = DeviceBuffer::new(&self.device, self.len)?;
        self.copy_to(stream, &duplicate)?;
        Ok(duplicate)
    }

    /// Copies the whole buffer to another of the same length, in stream order.
    pub(crate) fn copy_to(&self, stream: &Stream, to: &Self) -> Result<()> {
        assert_eq!(self.len, to.len);
        // SAFETY: both buffers have that length.
        unsafe { result::memcpy_dtod_async(to.at, self.at, self.len * size_of::<T>(), stream.raw) }
            .context("copying on the GPU")
    }
}

impl<T: Pod> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: allocated in `new`; the driver waits for pending work.
            let _ = unsafe { result::free_sync(self.at) };
        }
    }
}

#[cfg(test)]
#[warn(dead_code)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sizes_are_formatted_in_a_suitable_unit() {
        let formatted = [16, 1023, 1024, 5000, 1 << 20, 3 << 19, (64 << 20) + 1, 1 << 40].map(format_bytes);
        let expected =
            ["16 bytes", "1023 bytes", "1.0 KiB", "4.8 KiB", "1.0 MiB", "1.5 MiB", "64.0 MiB", "1048576 MiB"];
        assert_eq!(formatted, expected);
    }

    pub(crate) fn sizes_beyond_the_address_space_are_refused() {
        assert_eq!(bytes_of::<f32>(1 << 61).unwrap(), 1 << 63);
        // 0 modulo 2^64.
        assert!(bytes_of::<f32>(1 << 62).unwrap_err().to_string().contains("address space"));
    }

    pub(crate) fn out_of_memory_reports_the_requested_and_the_free_size() {
        let device = crate::device::tests::device();
        let error = DeviceBuffer::<f32>::new(&device, 1 << 42).err().unwrap().to_string();
        for part in ["requested 16777216 MiB", " free)", "nvidia-smi"] {
            assert!(error.contains(part), "{error}");
        }
        // The device stays usable.
        assert_eq!(DeviceBuffer::from_slice(&device, &[1_f32, 2.0]).unwrap().to_vec().unwrap(), [1.0, 2.0]);
    }
}
