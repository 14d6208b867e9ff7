//! A CUDA stream and kernel launches on it.

use crate::device::CudaDevice;
use crate::error::{ErrorContext, Result};
use cudarc::driver::{result, sys};
use std::ffi::c_void;
use std::sync::Arc;

/// A CUDA stream.
pub(crate) struct Stream {
    pub(crate) device: Arc<CudaDevice>,
    pub(crate) raw: sys::CUstream,
}

// SAFETY: as for the device; the driver accepts calls on a stream from any thread. Types that rely on their order own
// the stream and take `&mut self`.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub(crate) fn new(device: &Arc<CudaDevice>) -> Result<Self> {
        device.bind()?;
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking).context("creating a stream")?;
        Ok(Stream { device: Arc::clone(device), raw })
    }

    /// Waits for all work on the stream. Reports asynchronous errors.
    pub(crate) fn wait(&self) -> Result<()> {
        // SAFETY: the stream lives as long as self.
        unsafe { result::stream::synchronize(self.raw) }.context("synchronizing the stream")
    }

    /// Whether the stream is capturing a graph.
    pub(crate) fn is_capturing(&self) -> bool {
        use sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as NONE;
        // SAFETY: the stream lives as long as self.
        unsafe { result::stream::is_capturing(self.raw) }.is_ok_and(|status| status != NONE)
    }

    /// Launches a kernel.
    pub(crate) fn launch(
        &self,
        f: sys::CUfunction,
        (x, y, z): (usize, usize, usize),
        threads: usize,
        shared: usize,
        args: &[KernelArg],
    ) -> Result<()> {
        if x * y * z == 0 {
            return Ok(());
        }
        let mut pointers = pointers(args);
        let grid = (x as u32, y as u32, z as u32);
        // SAFETY: the arguments match the kernel's parameters in order; the driver copies them before it returns.
        let launched = unsafe {
            result::launch_kernel(f, grid, (threads as u32, 1, 1), shared as u32, self.raw, &mut pointers[..args.len()])
        };
        launched.context("launching a kernel")
    }

    /// Launches a kernel that may start before its predecessor ends (programmatic dependent launch). It must wait by
    /// itself before it reads the predecessor's results. Thread blocks that differ only in z form clusters of `cluster`
    /// blocks.
    pub(crate) fn launch_dependent(
        &self,
        f: sys::CUfunction,
        [x, y, z]: [usize; 3],
        cluster: usize,
        threads: usize,
        shared: usize,
        args: &[KernelArg],
    ) -> Result<()> {
        use sys::CUlaunchAttributeID::{
            CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION as CLUSTER,
            CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION as OVERLAP,
        };
        let attribute = |id, value| sys::CUlaunchAttribute { id, pad: [0; 4], value };
        let cluster = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: 1, y: 1, z: cluster as u32 };
        let mut attributes = [
            attribute(CLUSTER, sys::CUlaunchAttributeValue { clusterDim: cluster }),
            attribute(OVERLAP, sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 }),
        ];
        let config = sys::CUlaunchConfig {
            gridDimX: x as u32,
            gridDimY: y as u32,
            gridDimZ: z as u32,
            blockDimX: threads as u32,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared as u32,
            hStream: self.raw,
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        // SAFETY: as in `launch`.
        let launched =
            unsafe { sys::cuLaunchKernelEx(&config, f, pointers(args).as_mut_ptr(), std::ptr::null_mut()).result() };
        launched.context("launching a kernel")
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: created in `new` and no longer used.
            let _ = unsafe { result::stream::destroy(self.raw) };
        }
    }
}

/// Maximum number of kernel arguments.
const MAX_ARGS: usize = 18;

fn pointers(args: &[KernelArg]) -> [*mut c_void; MAX_ARGS] {
    let mut pointers = [std::ptr::null_mut::<c_void>(); MAX_ARGS];
    assert!(args.len() <= MAX_ARGS);
    for (p, a) in pointers.iter_mut().zip(args) {
        *p = std::ptr::from_ref(a).cast_mut().cast();
    }
    pointers
}

/// A kernel argument. The kernel reads as many bytes as its parameter has.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union KernelArg {
    bits: u64,
    map: sys::CUtensorMap,
}

impl From<u64> for KernelArg {
    fn from(bits: u64) -> Self {
        KernelArg { bits }
    }
}

impl From<sys::CUtensorMap> for KernelArg {
    fn from(map: sys::CUtensorMap) -> Self {
        KernelArg { map }
    }
}

impl From<usize> for KernelArg {
    /// For 32-bit counts: on little-endian machines the low half comes first.
    fn from(x: usize) -> Self {
        KernelArg { bits: x as u64 }
    }
}

impl From<f32> for KernelArg {
    fn from(x: f32) -> Self {
        KernelArg { bits: u64::from(x.to_bits()) }
    }
}

macro_rules! args {
    ($($x:expr),* $(,)?) => { &[$($crate::stream::KernelArg::from($x)),*] };
}
pub(crate) use args;
