//! CUDA devices.

use crate::error::{CudaError, ErrorContext, Remedy, Result};
use crate::library_search;
use cudarc::driver::{result, sys};
use std::sync::Arc;

/// Properties of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Device index.
    pub index: usize,
    /// Device name.
    pub name: String,
    /// Compute capability, for example 9.0 for Hopper.
    pub compute_capability: (i32, i32),
    /// Number of streaming multiprocessors (SMs).
    pub multiprocessors: usize,
    /// Total memory in bytes.
    pub total_memory: usize,
    /// Newest CUDA version that the driver supports: 13000 is 13.0.
    pub driver_version: i32,
}

/// An open GPU. The primary context is released when the last reference is dropped.
pub struct CudaDevice {
    info: DeviceInfo,
    device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: a context may be made current on any thread, and every operation does so first.
unsafe impl Send for CudaDevice {}
// SAFETY: as above; driver calls are thread safe.
unsafe impl Sync for CudaDevice {}

impl CudaDevice {
    /// Opens a GPU by index. The error states what is missing.
    pub fn open(index: usize) -> Result<Arc<Self>> {
        let operation = format!("opening CUDA device {index}");
        if let Some(missing) = library_search::find_libraries().missing() {
            return Err(CudaError::new(operation, format!("missing library `{}`: {missing}", missing.name))
                .hint("install the NVIDIA driver and the CUDA libraries (12 or newer)")
                .remedy(Remedy::DiagnoseOrCpu));
        }
        result::init().context(&operation)?;
        let count = result::device::get_count().context(&operation)? as usize;
        if index >= count {
            return Err(CudaError::new(operation, format!("this machine has {count} GPUs, numbered from 0"))
                .hint("check whether CUDA_VISIBLE_DEVICES hides some")
                .remedy(Remedy::DiagnoseOrCpu));
        }
        let device = result::device::get(index as i32).context(&operation)?;
        // SAFETY: the driver just returned this device.
        let (attribute, total_memory) = unsafe {
            (
                |a| result::device::get_attribute(device, a).context(&operation),
                result::device::total_mem(device).context(&operation)?,
            )
        };
        use sys::CUdevice_attribute as A;
        let compute_capability = (
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let mut driver_version = 0;
        // SAFETY: the driver writes one integer.
        unsafe { sys::cuDriverGetVersion(&mut driver_version) }.result().context(&operation)?;
        let info = DeviceInfo {
            index,
            name: result::device::get_name(device).context(&operation)?,
            compute_capability,
            multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize,
            total_memory,
            driver_version,
        };
        if compute_capability.0 < 8 {
            let (major, minor) = compute_capability;
            return Err(CudaError::new(operation, format!("{} has compute capability {major}.{minor}", info.name))
                .hint("bf16 on tensor cores requires compute capability 8.0 (Ampere) or newer")
                .remedy(Remedy::Cpu));
        }
        // SAFETY: retained here, released on drop.
        let context = unsafe { result::primary_ctx::retain(device) }.context(&operation)?;
        let device = CudaDevice { info, device, context };
        device.bind()?;
        Ok(Arc::new(device))
    }

    /// Number of GPUs; 0 without a driver. Fails if the driver does not work.
    pub fn count() -> Result<usize> {
        let driver = &library_search::find_libraries().libraries[0];
        if driver.loaded_from.is_none() {
            return match driver.problem {
                None => Ok(0),
                Some(_) => Err(CudaError::new("counting GPUs", format!("the driver {driver}"))),
            };
        }
        match result::init().and_then(|()| result::device::get_count()) {
            Ok(n) => Ok(n as usize),
            Err(e) if e.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE => Ok(0),
            Err(e) => Err(e).context("counting GPUs"),
        }
    }

    /// Whether there is a usable GPU.
    pub fn is_available() -> bool {
        Self::count().is_ok_and(|n| n > 0) && Self::open(0).is_ok()
    }

    /// Properties of the device.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Makes the device's context current on this thread.
    pub(crate) fn bind(&self) -> Result<()> {
        // SAFETY: the context lives as long as self.
        unsafe { result::ctx::set_current(self.context) }.context("activating the CUDA context")
    }

    /// Maximum bytes of shared memory per thread block.
    pub(crate) fn shared_memory(&self) -> Result<usize> {
        use sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN as MAX_SHARED;
        // SAFETY: the device is open.
        let bytes = unsafe { result::device::get_attribute(self.device, MAX_SHARED) };
        Ok(bytes.context("querying the shared memory size")? as usize)
    }

    /// Bytes of free memory.
    pub fn free_memory(&self) -> Result<usize> {
        self.bind()?;
        Ok(result::mem_get_info().context("querying free memory")?.0)
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // SAFETY: retained in `open`. A failure cannot be handled here.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

#[cfg(test)]
#[warn(dead_code)]
pub(crate) mod tests {
    use super::*;
    use crate::buffer::DeviceBuffer;
    use crate::nvrtc::KernelModule;
    use crate::shape::ModelShape;
    use crate::stream::{Stream, args};

    /// The first GPU.
    pub(crate) fn device() -> Arc<CudaDevice> {
        CudaDevice::open(0).unwrap()
    }

    pub(crate) fn device_loss_is_reported_with_a_hint() {
        // In a separate process: afterwards the device is unusable.
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "device::tests::subprocess_that_loses_the_device"]);
        let output = child.output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && stdout.contains("1 passed"),
            "{stdout}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    pub(crate) fn subprocess_that_loses_the_device() {
        let device = device();
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
        let (kernels, stream) = (KernelModule::new(&device, &shape).unwrap(), Stream::new(&device).unwrap());
        // A row index far out of bounds makes the kernel fault.
        let (row_ids, table) =
            (DeviceBuffer::from_slice(&device, &[u32::MAX]).unwrap(), DeviceBuffer::<u16>::zeros(&device, 32).unwrap());
        let started = stream.launch(
            kernels.common.gather_rows,
            (1, 1, 1),
            32,
            0,
            args![table.at(0), row_ids.at(0), 2_usize, table.at(16)],
        );
        let error = started.and_then(|()| stream.wait()).unwrap_err().to_string();
        assert!(error.contains("ILLEGAL_ADDRESS") && error.contains("from its last checkpoint"), "{error}");
        // Later calls report the same error, without hanging or panicking.
        let second = table.to_vec().unwrap_err().to_string();
        assert!(second.contains("its last checkpoint"), "{second}");
    }
}
