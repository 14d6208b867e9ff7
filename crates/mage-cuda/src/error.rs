//! Errors of CUDA operations.

use cudarc::cublaslt::sys::cublasStatus_t;
use cudarc::driver::{result::DriverError, sys::CUresult};

/// A failed operation, the reason, and a hint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{operation}: {reason}{}", hint.as_ref().map(|h| format!("; {h}")).unwrap_or_default())]
pub struct CudaError {
    /// The operation that failed.
    pub operation: String,
    /// Why it failed.
    pub reason: String,
    /// How to fix it.
    pub hint: Option<String>,
    /// How the application may help.
    pub remedy: Option<Remedy>,
}

/// What the application may offer after an error, in its own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Use the CPU.
    Cpu,
    /// Show the libraries and GPUs found.
    Diagnose,
    /// Both.
    DiagnoseOrCpu,
}

/// Result of a CUDA operation.
pub type Result<T> = std::result::Result<T, CudaError>;

impl CudaError {
    pub(crate) fn new(operation: impl Into<String>, reason: impl Into<String>) -> Self {
        CudaError { operation: operation.into(), reason: reason.into(), hint: None, remedy: None }
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        CudaError { hint: Some(hint.into()), ..self }
    }

    pub(crate) fn remedy(self, remedy: Remedy) -> Self {
        CudaError { remedy: Some(remedy), ..self }
    }
}

/// Hint for out-of-memory errors.
const MEMORY_HINT: &str = "other processes may use GPU memory: see nvidia-smi";

/// Hint for errors that lose the state on the device.
const RESUME_HINT: &str = "Resume the training run from its last checkpoint";

/// Adds the operation to an error of the driver or a library.
pub(crate) trait ErrorContext<T> {
    fn context(self, operation: &str) -> Result<T>;
}

impl<T> ErrorContext<T> for std::result::Result<T, DriverError> {
    fn context(self, operation: &str) -> Result<T> {
        self.map_err(|e| {
            let name = e.error_name().map_or_else(|_| format!("{:?}", e.0), |n| n.to_string_lossy().into_owned());
            let text = e.error_string().map(|s| format!("{name} ({})", s.to_string_lossy())).unwrap_or(name);
            let error = CudaError::new(operation, text);
            match e.0 {
                CUresult::CUDA_ERROR_OUT_OF_MEMORY => error.hint(MEMORY_HINT),
                CUresult::CUDA_ERROR_NO_DEVICE => error
                    .hint("check that the machine has a GPU (nvidia-smi) and that CUDA_VISIBLE_DEVICES does not hide it")
                    .remedy(Remedy::Cpu),
                CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
                | CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE
                | CUresult::CUDA_ERROR_STUB_LIBRARY => error.hint(
                    "libcuda.so does not match the running driver: reboot after a driver update, or remove stubs and older copies from \
                     LD_LIBRARY_PATH",
                ),
                CUresult::CUDA_ERROR_MPS_CONNECTION_FAILED
                | CUresult::CUDA_ERROR_MPS_RPC_FAILURE
                | CUresult::CUDA_ERROR_MPS_SERVER_NOT_READY
                | CUresult::CUDA_ERROR_MPS_MAX_CLIENTS_REACHED
                | CUresult::CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED => error.hint(
                    "NVIDIA's multi-process service (MPS) refused the connection or has ended: check that it runs for this user and \
                         accepts more clients",
                ),
                CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => error
                    .hint("the CUDA libraries are newer than the driver: update the driver, or install libraries of its version"),
                CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU | CUresult::CUDA_ERROR_INVALID_PTX => {
                    error.hint("the CUDA compiler library may be too old for this GPU").remedy(Remedy::Diagnose)
                }
                CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
                | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
                | CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE
                | CUresult::CUDA_ERROR_SYSTEM_NOT_READY
                | CUresult::CUDA_ERROR_EXTERNAL_DEVICE
                | CUresult::CUDA_ERROR_UNKNOWN => error.hint(format!(
                    "the GPU may have failed and may need a reset by an administrator: see nvidia-smi and the system log. \
                     {RESUME_HINT}"
                )),
                CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
                | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
                | CUresult::CUDA_ERROR_ASSERT
                | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
                | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
                | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
                | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
                | CUresult::CUDA_ERROR_INVALID_PC
                | CUresult::CUDA_ERROR_LAUNCH_FAILED => error.hint(format!("device memory is lost. {RESUME_HINT}")),
                _ => error,
            }
        })
    }
}

impl<T> ErrorContext<T> for std::result::Result<T, cudarc::cublaslt::result::CublasError> {
    fn context(self, operation: &str) -> Result<T> {
        self.map_err(|e| {
            let error = CudaError::new(operation, format!("{:?}", e.0));
            match e.0 {
                cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED | cublasStatus_t::CUBLAS_STATUS_NOT_INITIALIZED => {
                    error.hint(MEMORY_HINT)
                }
                cublasStatus_t::CUBLAS_STATUS_EXECUTION_FAILED | cublasStatus_t::CUBLAS_STATUS_INTERNAL_ERROR => {
                    error.hint(format!("device memory may be lost. {RESUME_HINT}"))
                }
                _ => error,
            }
        })
    }
}

impl<T> ErrorContext<T> for std::result::Result<T, cudarc::nvrtc::result::NvrtcError> {
    fn context(self, operation: &str) -> Result<T> {
        self.map_err(|e| CudaError::new(operation, format!("{e:?}")))
    }
}
