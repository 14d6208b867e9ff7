//! What went wrong on the card?

use cudarc::cublaslt::sys::cublasStatus_t;
use cudarc::driver::{result::DriverError, sys::CUresult};

/// What was asked of the card, why it could not be, and what may help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{operation}: {reason}{}", hint.as_ref().map(|h| format!("; {h}")).unwrap_or_default())]
pub struct CudaError {
    /// What was being done.
    pub operation: String,
    /// Why it failed.
    pub reason: String,
    /// What may help.
    pub hint: Option<String>,
}

/// What may have failed on the card.
pub type Result<T> = std::result::Result<T, CudaError>;

impl CudaError {
    pub(crate) fn new(operation: impl Into<String>, reason: impl Into<String>) -> Self {
        CudaError { operation: operation.into(), reason: reason.into(), hint: None }
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        CudaError { hint: Some(hint.into()), ..self }
    }
}

/// Where memory may be.
const HELD: &str = "other programs may hold the card's memory: see nvidia-smi";

/// What holds for whoever trains, whatever became of the card.
const GOES_ON: &str = "A training run goes on from its last checkpoint";

/// Says what was being done when the driver refused.
pub(crate) trait Doing<T> {
    fn doing(self, what: &str) -> Result<T>;
}

impl<T> Doing<T> for std::result::Result<T, DriverError> {
    fn doing(self, what: &str) -> Result<T> {
        self.map_err(|e| {
            let name = e.error_name().map_or_else(|_| format!("{:?}", e.0), |n| n.to_string_lossy().into_owned());
            let text = e.error_string().map(|s| format!("{name} ({})", s.to_string_lossy())).unwrap_or(name);
            let error = CudaError::new(what, text);
            match e.0 {
                CUresult::CUDA_ERROR_OUT_OF_MEMORY => error.hint(HELD),
                CUresult::CUDA_ERROR_NO_DEVICE => error
                    .hint("is there a card (nvidia-smi), and does CUDA_VISIBLE_DEVICES hide it? Else use --device cpu"),
                CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
                | CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE
                | CUresult::CUDA_ERROR_STUB_LIBRARY => error.hint(
                    "libcuda.so is not of the driver that runs: start the machine again after an update, or take stubs \
                     and older copies off LD_LIBRARY_PATH",
                ),
                CUresult::CUDA_ERROR_MPS_CONNECTION_FAILED
                | CUresult::CUDA_ERROR_MPS_RPC_FAILURE
                | CUresult::CUDA_ERROR_MPS_SERVER_NOT_READY
                | CUresult::CUDA_ERROR_MPS_MAX_CLIENTS_REACHED
                | CUresult::CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED => error.hint(
                    "NVIDIA's multi-process service refuses or is gone: see whether it runs for this user and has \
                         room",
                ),
                CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => error
                    .hint("the CUDA libraries are newer than the driver: update it, or install those of its version"),
                CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU | CUresult::CUDA_ERROR_INVALID_PTX => {
                    error.hint("the CUDA compiler's library may not know this card: `mage doctor` names the one in use")
                }
                CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
                | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
                | CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE
                | CUresult::CUDA_ERROR_SYSTEM_NOT_READY
                | CUresult::CUDA_ERROR_EXTERNAL_DEVICE
                | CUresult::CUDA_ERROR_UNKNOWN => error.hint(format!(
                    "the card may be lost, which only whoever looks after the machine can mend: see nvidia-smi and the \
                     system's log. {GOES_ON}"
                )),
                CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
                | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
                | CUresult::CUDA_ERROR_ASSERT
                | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
                | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
                | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
                | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
                | CUresult::CUDA_ERROR_INVALID_PC
                | CUresult::CUDA_ERROR_LAUNCH_FAILED => error.hint(format!("what was on the card is lost. {GOES_ON}")),
                _ => error,
            }
        })
    }
}

impl<T> Doing<T> for std::result::Result<T, cudarc::cublaslt::result::CublasError> {
    fn doing(self, what: &str) -> Result<T> {
        self.map_err(|e| {
            let error = CudaError::new(what, format!("{:?}", e.0));
            match e.0 {
                cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED | cublasStatus_t::CUBLAS_STATUS_NOT_INITIALIZED => {
                    error.hint(HELD)
                }
                cublasStatus_t::CUBLAS_STATUS_EXECUTION_FAILED | cublasStatus_t::CUBLAS_STATUS_INTERNAL_ERROR => {
                    error.hint(format!("what was on the card may be lost. {GOES_ON}"))
                }
                _ => error,
            }
        })
    }
}

impl<T> Doing<T> for std::result::Result<T, cudarc::nvrtc::result::NvrtcError> {
    fn doing(self, what: &str) -> Result<T> {
        self.map_err(|e| CudaError::new(what, format!("{e:?}")))
    }
}
