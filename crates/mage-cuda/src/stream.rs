//! A CUDA stream and kernel launches on it.

use crate::device::CudaDevice;
use crate::error::{Doing, Result};
use cudarc::driver::{result, sys};
use std::ffi::c_void;
use std::sync::Arc;

/// An order of work on a card.
pub(crate) struct Stream {
    pub(crate) card: Arc<CudaDevice>,
    pub(crate) raw: sys::CUstream,
}

// SAFETY: as for the card; the driver takes calls on a stream from any thread. Whoever cares for their order has its owner by `&mut`.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub(crate) fn new(card: &Arc<CudaDevice>) -> Result<Self> {
        card.bind()?;
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking).doing("making a stream")?;
        Ok(Stream { card: Arc::clone(card), raw })
    }

    /// Waits until all is done. What failed on the way is told here.
    pub(crate) fn wait(&self) -> Result<()> {
        // SAFETY: the stream lives as long as self.
        unsafe { result::stream::synchronize(self.raw) }.doing("waiting for the card")
    }

    /// Whether it records instead of working.
    pub(crate) fn records(&self) -> bool {
        use sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as NOT;
        // SAFETY: the stream lives as long as self.
        unsafe { result::stream::is_capturing(self.raw) }.is_ok_and(|status| status != NOT)
    }

    /// Starts a kernel.
    pub(crate) fn launch(
        &self,
        f: sys::CUfunction,
        (x, y, z): (usize, usize, usize),
        threads: usize,
        shared: usize,
        args: &[Arg],
    ) -> Result<()> {
        if x * y * z == 0 {
            return Ok(());
        }
        let mut pointers = pointers(args);
        let grid = (x as u32, y as u32, z as u32);
        // SAFETY: the arguments are what the kernel takes, in order; the driver copies them before it returns.
        let done = unsafe {
            result::launch_kernel(f, grid, (threads as u32, 1, 1), shared as u32, self.raw, &mut pointers[..args.len()])
        };
        done.doing("starting a kernel")
    }

    /// Starts a kernel while the one before it still runs: it waits by itself where it must. So many blocks, that differ in z
    /// alone, reach each other's shared memory.
    pub(crate) fn launch_early(
        &self,
        f: sys::CUfunction,
        [x, y, z]: [usize; 3],
        cluster: usize,
        threads: usize,
        shared: usize,
        args: &[Arg],
    ) -> Result<()> {
        use sys::CUlaunchAttributeID::{
            CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION as CLUSTER,
            CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION as EARLY,
        };
        let attribute = |id, value| sys::CUlaunchAttribute { id, pad: [0; 4], value };
        let cluster = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: 1, y: 1, z: cluster as u32 };
        let mut attributes = [
            attribute(CLUSTER, sys::CUlaunchAttributeValue { clusterDim: cluster }),
            attribute(EARLY, sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 }),
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
        let done =
            unsafe { sys::cuLaunchKernelEx(&config, f, pointers(args).as_mut_ptr(), std::ptr::null_mut()).result() };
        done.doing("starting a kernel")
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.card.bind().is_ok() {
            // SAFETY: made in `new`; nothing uses it any more.
            let _ = unsafe { result::stream::destroy(self.raw) };
        }
    }
}

/// The most arguments of a kernel.
const ARGS: usize = 18;

fn pointers(args: &[Arg]) -> [*mut c_void; ARGS] {
    let mut pointers = [std::ptr::null_mut::<c_void>(); ARGS];
    assert!(args.len() <= ARGS);
    for (p, a) in pointers.iter_mut().zip(args) {
        *p = std::ptr::from_ref(a).cast_mut().cast();
    }
    pointers
}

/// An argument of a kernel, which reads as many of its bytes as it takes.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union Arg {
    number: u64,
    map: sys::CUtensorMap,
}

impl From<u64> for Arg {
    fn from(number: u64) -> Self {
        Arg { number }
    }
}

impl From<sys::CUtensorMap> for Arg {
    fn from(map: sys::CUtensorMap) -> Self {
        Arg { map }
    }
}

impl From<usize> for Arg {
    /// For 32-bit counts: on little-endian machines the low half comes first.
    fn from(x: usize) -> Self {
        Arg { number: x as u64 }
    }
}

impl From<f32> for Arg {
    fn from(x: f32) -> Self {
        Arg { number: u64::from(x.to_bits()) }
    }
}

macro_rules! args {
    ($($x:expr),* $(,)?) => { &[$($crate::stream::Arg::from($x)),*] };
}
pub(crate) use args;
