//! Device selection, and the model on a GPU.
//!
//! [`Device::Auto`] uses a GPU only if its kernels support the model; an explicit device never falls back. A
//! [`GpuModel`] holds kernels and frozen base weights, and divides the memory: the trainer allocates its state first and
//! reserves memory for passes and published snapshots; the KV cache gets the rest. Trainer and sampler are in
//! `training::cuda_trainer` and `inference::backend::cuda`, kernels and GEMMs in `mage-cuda`.

mod memory_plan;

pub use memory_plan::GpuMemoryPlan;

use crate::engine::EngineOptions;
use crate::model::rope_table;
use crate::weights::hf_config::Config;
use crate::weights::registry::{DeviceWeights, GpuWeights};
use mage_cuda::{CudaDevice, CudaModel, CudaWeights, ModelRunner, ModelShape, Remedy};
use mage_engine::model::LoraLayout;
use mage_engine::{Error, Hint, Result};
use memory_plan::{MIN_BLOCKS, NUM_SNAPSHOTS, TrainingMemory, snapshot_bytes, step_workspace_bytes};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// The device that runs a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Device {
    /// The first GPU if it works and supports the model's shape, otherwise the CPU. Insufficient GPU memory is an error, not a
    /// reason to fall back to the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU with this index.
    Cuda(usize),
}

impl Device {
    /// The index of the GPU; `None` for the CPU.
    pub fn cuda_index(self) -> Option<usize> {
        match self {
            Device::Cpu => None,
            Device::Auto => CudaDevice::is_available().then_some(0),
            Device::Cuda(n) => Some(n),
        }
    }

    /// Why [`Device::Auto`] does not use an existing GPU or driver for a model, with or without an adapter of the given rank.
    pub fn gpu_unused_reason(self, config: &Config, rank: Option<usize>) -> Option<String> {
        let why = match (self, CudaDevice::count()) {
            (Device::Auto, Err(e)) => e,
            (Device::Auto, Ok(1..)) => CudaDevice::open(0).err().or_else(|| check_supported(config, rank).err())?,
            _ => return None,
        };
        Some(format!("using the CPU, although there may be a GPU: {why}"))
    }

    /// The index of the GPU for a model, with or without an adapter of the given rank. Shapes that the GPU kernels do not
    /// support run on the CPU, unless a GPU is given explicitly.
    pub fn cuda_index_for(self, config: &Config, rank: Option<usize>) -> Option<usize> {
        if self == Device::Auto && check_supported(config, rank).is_err() { None } else { self.cuda_index() }
    }
}

/// Whether the GPU kernels support a model, with or without an adapter of the given rank.
fn check_supported(config: &Config, rank: Option<usize>) -> std::result::Result<(), mage_cuda::CudaError> {
    shape(config).check()?;
    rank.map_or(Ok(()), mage_cuda::check_lora_rank)
}

impl TryFrom<String> for Device {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Device> for String {
    fn from(device: Device) -> Self {
        device.to_string()
    }
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Device::Auto),
            "cpu" => Ok(Device::Cpu),
            "cuda" => Ok(Device::Cuda(0)),
            _ => text
                .strip_prefix("cuda:")
                .filter(|n| n.bytes().all(|b| b.is_ascii_digit()))
                .and_then(|n| n.parse().ok())
                .map(Device::Cuda)
                .ok_or_else(|| Error::invalid("device", format!("`{text}` is not auto, cpu, cuda or cuda:N"))),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Auto => f.write_str("auto"),
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(n) => write!(f, "cuda:{n}"),
        }
    }
}

/// The GPUs found on this machine.
#[derive(Clone, Debug)]
pub struct GpuReport {
    /// The libraries searched for and where.
    pub search: &'static mage_cuda::LibrarySearch,
    /// Why an existing driver does not work.
    pub driver_error: Option<String>,
    /// Each GPU, or why it cannot be used.
    pub gpus: Vec<std::result::Result<GpuStatus, String>>,
}

/// A usable GPU.
#[derive(Clone, Debug)]
pub struct GpuStatus {
    /// Device properties.
    pub info: mage_cuda::DeviceInfo,
    /// Bytes of free memory.
    pub free_bytes: usize,
    /// Measured throughput, or why the measurement failed.
    pub throughput: std::result::Result<mage_cuda::Throughput, String>,
}

impl GpuReport {
    /// Finds all GPUs and measures each for a moment.
    pub fn measure() -> Self {
        let measure_one = |i: usize| {
            let device = CudaDevice::open(i)?;
            let (info, free_bytes) = (device.info().clone(), device.free_memory()?);
            Ok(GpuStatus {
                info,
                free_bytes,
                throughput: mage_cuda::measure_throughput(&device).map_err(|e| e.to_string()),
            })
        };
        let (count, driver_error) = match CudaDevice::count() {
            Ok(n) => (n, None),
            Err(e) => (0, Some(e.to_string())),
        };
        let gpus = (0..count).map(|i| measure_one(i).map_err(|e: mage_cuda::CudaError| e.to_string())).collect();
        GpuReport { search: mage_cuda::find_libraries(), driver_error, gpus }
    }
}

/// A model on a GPU: shape, kernels and frozen base weights.
pub(crate) struct GpuModel {
    pub(crate) model: Arc<CudaModel>,
    /// Frozen base weights of adapters; unset if the base weights are trained.
    pub(crate) base: OnceLock<Arc<CudaWeights>>,
    shape: ModelShape,
    /// Bytes that the trainer will allocate later.
    reserved: AtomicUsize,
}

pub(crate) fn failed(e: mage_cuda::CudaError) -> Error {
    let hints: &'static [Hint] = match e.remedy {
        None => &[],
        Some(Remedy::Cpu) => &[Hint::UseCpu],
        Some(Remedy::Diagnose) => &[Hint::DiagnoseMachine],
        Some(Remedy::DiagnoseOrCpu) => &[Hint::DiagnoseMachine, Hint::UseCpu],
    };
    Error::engine("native on CUDA", e.to_string()).with_hints(hints)
}

impl GpuModel {
    pub(crate) fn open(config: &Config, index: usize) -> Result<Self> {
        let device = CudaDevice::open(index).map_err(failed)?;
        let shape = shape(config);
        let rope = rope_table(config.rope_theta, config.head_dim, config.max_position_embeddings);
        let model = CudaModel::new(&device, shape, config.param_layout(), &rope).map_err(failed)?;
        Ok(GpuModel { model, base: OnceLock::new(), shape, reserved: AtomicUsize::new(0) })
    }

    /// Uploads weights without an adapter.
    pub(crate) fn upload_base(&self, flat: &[f32]) -> Result<DeviceWeights> {
        let base = Arc::new(self.model.upload_weights(flat).map_err(failed)?);
        Ok(DeviceWeights::Cuda(GpuWeights { base, adapter: None }))
    }

    /// Uploads the frozen base weights of adapters.
    pub(crate) fn set_base(&self, flat: &[f32]) -> Result<Arc<CudaWeights>> {
        let base = Arc::new(self.model.upload_weights(flat).map_err(failed)?);
        Ok(Arc::clone(self.base.get_or_init(|| base)))
    }

    /// Uploads an adapter for base weights on the GPU.
    pub(crate) fn upload_with_lora(
        &self,
        base: &Arc<CudaWeights>,
        layout: &Arc<LoraLayout>,
        flat: &[f32],
    ) -> Result<DeviceWeights> {
        let adapter = self.model.upload_adapter(layout, flat).map_err(failed)?;
        Ok(DeviceWeights::Cuda(GpuWeights { base: Arc::clone(base), adapter: Some(adapter) }))
    }

    /// Description of the device.
    pub(crate) fn description(&self) -> String {
        let info = self.model.device().info();
        let (major, minor) = info.compute_capability;
        format!("cuda:{}: {}, compute capability {major}.{minor}, bf16", info.index, info.name)
    }

    /// Plans the number of tokens per training pass, and reserves memory for passes and for the snapshots published after the
    /// first policy, which is uploaded before the KV cache is allocated. Passes get at most half of the free memory.
    pub(crate) fn plan_training(
        &self,
        trainable: usize,
        lora_rank: usize,
        max_len: usize,
        options: &EngineOptions,
    ) -> Result<usize> {
        let memory = TrainingMemory { shape: &self.shape, trainable, lora_rank, max_len, recompute: options.recompute };
        let (tokens, passes) = memory.plan(self.free_memory()?, options.chunk_tokens);
        self.reserved.store(passes + (NUM_SNAPSHOTS - 1) * snapshot_bytes(trainable), Ordering::Relaxed);
        Ok(tokens)
    }

    /// Bytes of free memory.
    pub(crate) fn free_memory(&self) -> Result<usize> {
        self.model.device().free_memory().map_err(failed)
    }

    /// Bytes available for the KV cache, next to the workspace of steps with this many prefill tokens.
    pub(crate) fn kv_cache_budget(&self, max_prefill_tokens: usize) -> Result<usize> {
        let free = self.free_memory()?;
        let reserved = self.reserved.load(Ordering::Relaxed);
        let steps = step_workspace_bytes(&self.shape, max_prefill_tokens);
        let left = free.saturating_sub(reserved + steps);
        // A sampler without a trainer leaves half of the memory for a second model.
        let shares = if reserved == 0 { 2 } else { 1 };
        let least = ModelRunner::block_bytes(&self.shape) * MIN_BLOCKS;
        if left / shares < least {
            let mib = |bytes: usize| bytes.div_ceil(1 << 20);
            let parts = [mib(reserved), mib(steps), mib(shares * least)];
            let [passes, steps, kv_cache] = parts;
            let passes = match reserved {
                0 => String::new(),
                _ => format!("{passes} for training passes and published snapshots, "),
            };
            let trains_all_parameters = reserved > 0 && self.base.get().is_none();
            let hints: &'static [Hint] =
                if trains_all_parameters { &[Hint::TrainAdapter, Hint::UseCpu] } else { &[Hint::UseCpu] };
            let reason = format!(
                "out of memory: {} MiB of GPU memory are free, but {} MiB are needed: {passes}{steps} for the workspace of steps and \
                 {kv_cache} for the KV cache; end other processes on the GPU (nvidia-smi lists them)",
                free >> 20,
                parts.iter().sum::<usize>(),
            );
            return Err(Error::engine("native on CUDA", reason).with_hints(hints));
        }
        Ok(left / shares)
    }
}

fn shape(c: &Config) -> ModelShape {
    ModelShape {
        vocab_size: c.vocab_size,
        hidden_size: c.hidden_size,
        intermediate_size: c.intermediate_size,
        num_layers: c.num_hidden_layers,
        num_heads: c.num_attention_heads,
        num_kv_heads: c.num_key_value_heads,
        head_dim: c.head_dim,
        rms_norm_eps: c.rms_norm_eps,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_that_gpus_do_not_support_run_on_the_cpu() {
        let unsupported = crate::weights::hf_config::tests::tiny();
        assert_eq!(Device::Auto.cuda_index_for(&unsupported, Some(12)), None);
        assert_eq!(Device::Cpu.cuda_index_for(&unsupported, None), None);
        assert_eq!(
            Device::Cuda(2).cuda_index_for(&unsupported, Some(12)),
            Some(2),
            "an explicit device is not replaced"
        );
    }

    #[test]
    fn devices_parse_as_they_are_displayed() {
        for (text, device) in
            [("auto", Device::Auto), ("cpu", Device::Cpu), ("cuda:0", Device::Cuda(0)), ("cuda:3", Device::Cuda(3))]
        {
            assert_eq!((text.parse::<Device>().unwrap(), device.to_string().as_str()), (device, text));
        }
        assert_eq!("cuda".parse::<Device>().unwrap(), Device::Cuda(0));
        for wrong in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:+1"] {
            assert!(wrong.parse::<Device>().unwrap_err().to_string().contains("cuda:N"), "{wrong}");
        }
    }
}
