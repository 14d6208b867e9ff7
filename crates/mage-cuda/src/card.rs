//! Which card is it, and how is it reached?

use crate::error::{CudaError, Doing, Result};
use crate::find;
use cudarc::driver::{result, sys};
use std::ffi::c_void;
use std::sync::Arc;

/// What a card says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// Its generation: 9.0 is Hopper.
    pub compute_capability: (i32, i32),
    /// Its multiprocessors.
    pub multiprocessors: usize,
    /// All its memory in bytes.
    pub total_memory: usize,
    /// The newest CUDA that the driver knows: 13000 is 13.0.
    pub driver_version: i32,
}

/// An open card. It is closed when nothing uses it any more.
pub struct CudaDevice {
    info: DeviceInfo,
    device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: a context may be made current on any thread, which every operation does first.
unsafe impl Send for CudaDevice {}
// SAFETY: as above; the driver's calls are thread safe.
unsafe impl Sync for CudaDevice {}

impl CudaDevice {
    /// Opens a card by its number. Says what is missing where that cannot be.
    pub fn open(index: usize) -> Result<Arc<Self>> {
        let doing = format!("opening CUDA device {index}");
        if let Some(missing) = find::find_libraries().missing() {
            return Err(CudaError::new(doing, format!("the library `{}`: {missing}", missing.name)).hint(
                "`mage doctor` lists where it was looked for; install the NVIDIA driver and the CUDA libraries (12 or newer), or use --device cpu",
            ));
        }
        result::init().doing(&doing)?;
        let count = result::device::get_count().doing(&doing)? as usize;
        if index >= count {
            return Err(CudaError::new(doing, format!("this machine has {count}, numbered from 0"))
                .hint("`mage doctor` lists them; does CUDA_VISIBLE_DEVICES hide some? --device cpu needs none"));
        }
        let device = result::device::get(index as i32).doing(&doing)?;
        // SAFETY: the device was just given by the driver.
        let (attribute, total_memory) = unsafe {
            (
                |a| result::device::get_attribute(device, a).doing(&doing),
                result::device::total_mem(device).doing(&doing)?,
            )
        };
        use sys::CUdevice_attribute as A;
        let compute_capability = (
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let mut driver_version = 0;
        // SAFETY: the driver writes one number.
        unsafe { sys::cuDriverGetVersion(&mut driver_version) }.result().doing(&doing)?;
        let info = DeviceInfo {
            index,
            name: result::device::get_name(device).doing(&doing)?,
            compute_capability,
            multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize,
            total_memory,
            driver_version,
        };
        if compute_capability.0 < 8 {
            let (major, minor) = compute_capability;
            return Err(CudaError::new(doing, format!("{} is of generation {major}.{minor}", info.name))
                .hint("bf16 on tensor cores needs 8.0 (Ampere) or newer; use --device cpu"));
        }
        // SAFETY: retained here, released when dropped.
        let context = unsafe { result::primary_ctx::retain(device) }.doing(&doing)?;
        let card = CudaDevice { info, device, context };
        card.bind()?;
        Ok(Arc::new(card))
    }

    /// How many cards there are; 0 where there is no driver. A driver that does not work says why.
    pub fn count() -> Result<usize> {
        let driver = &find::find_libraries().libraries[0];
        if driver.loaded_from.is_none() {
            return match driver.problem {
                None => Ok(0),
                Some(_) => Err(CudaError::new("asking the driver for cards", format!("the driver {driver}"))),
            };
        }
        match result::init().and_then(|()| result::device::get_count()) {
            Ok(n) => Ok(n as usize),
            Err(e) if e.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE => Ok(0),
            Err(e) => Err(e).doing("asking the driver for cards"),
        }
    }

    /// Whether there is one that can be used.
    pub fn is_available() -> bool {
        Self::count().is_ok_and(|n| n > 0) && Self::open(0).is_ok()
    }

    /// What the card says of itself.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Makes it this thread's card.
    pub(crate) fn bind(&self) -> Result<()> {
        // SAFETY: the context lives as long as self.
        unsafe { result::ctx::set_current(self.context) }.doing("reaching the card")
    }

    /// Bytes of shared memory that a block may have.
    pub(crate) fn shared_memory(&self) -> Result<usize> {
        use sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN as SHARED;
        // SAFETY: the device is open.
        let bytes = unsafe { result::device::get_attribute(self.device, SHARED) };
        Ok(bytes.doing("asking the card for its shared memory")? as usize)
    }

    /// Bytes of memory that are free.
    pub fn free_memory(&self) -> Result<usize> {
        self.bind()?;
        Ok(result::mem_get_info().doing("asking for free memory")?.0)
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // SAFETY: retained in `open`. Nothing can be done about a failure here.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

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
    ($($x:expr),* $(,)?) => { &[$($crate::card::Arg::from($x)),*] };
}
pub(crate) use args;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::buffer::DeviceBuffer;
    use crate::compile::Program;
    use crate::shape::ModelShape;
    use std::io::Write;

    /// The first card; where there is none, says so past the test runner, which would keep it to itself. One that is there and
    /// does not work is no reason to skip.
    pub(crate) fn card_or_skip(so: &str) -> Option<Arc<CudaDevice>> {
        if CudaDevice::count().unwrap() == 0 {
            let _ = writeln!(std::io::stderr(), "\n*** SKIPPED: no CUDA card here, so {so} ***");
            return None;
        }
        Some(CudaDevice::open(0).unwrap())
    }

    #[test]
    fn a_lost_card_is_told_with_what_to_do() {
        if card_or_skip("none could be lost").is_none() {
            return;
        }
        // In a process of its own: after this nothing works on the card any more.
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--ignored", "--exact", "card::tests::loses_the_card", "--nocapture"]);
        let done = child.output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&done.stderr));
    }

    #[test]
    #[ignore = "loses the card; another test runs it in a process of its own"]
    fn loses_the_card() {
        let Some(card) = card_or_skip("none could be lost") else { return };
        let shape = ModelShape {
            vocab_size: 8,
            hidden_size: 16,
            intermediate_size: 16,
            num_layers: 1,
            num_heads: 1,
            num_kv_heads: 1,
            head_dim: 16,
            rms_norm_eps: 1e-6,
        };
        let (program, stream) = (Program::new(&card, &shape).unwrap(), Stream::new(&card).unwrap());
        // A row far outside all memory: what a fault of the card would look like.
        let (rows, table) =
            (DeviceBuffer::from_slice(&card, &[u32::MAX]).unwrap(), DeviceBuffer::<u16>::zeros(&card, 32).unwrap());
        let started = stream.launch(
            program.functions.gather,
            (1, 1, 1),
            32,
            0,
            args![table.at(0), rows.at(0), 2_usize, table.at(16)],
        );
        let error = started.and_then(|()| stream.wait()).unwrap_err().to_string();
        assert!(error.contains("ILLEGAL_ADDRESS") && error.contains("goes on from its last checkpoint"), "{error}");
        // Everything after it says so too, and nothing hangs or panics.
        let again = table.to_vec().unwrap_err().to_string();
        assert!(again.contains("its last checkpoint"), "{again}");
    }
}
