//! Which card is it, and how is it reached?

use crate::error::{CudaError, Doing, Result};
use crate::library_search;
use cudarc::driver::{result, sys};
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
        if let Some(missing) = library_search::find_libraries().missing() {
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
        let driver = &library_search::find_libraries().libraries[0];
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::buffer::DeviceBuffer;
    use crate::nvrtc::Program;
    use crate::shape::ModelShape;
    use crate::stream::{Stream, args};
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
        child.args(["--ignored", "--exact", "device::tests::loses_the_card", "--nocapture"]);
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
