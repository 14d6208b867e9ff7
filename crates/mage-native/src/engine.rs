//! Loaded models, and the state shared by the trainers and samplers created from them.
//!
//! A [`NativeModel`] is in host memory: configuration, fp32 parameters, tokenizer, optional adapter. Opening an engine
//! consumes it and returns a sampler, with a trainer if requested. Both hold the same [`EngineContext`]: the
//! trainer publishes versions of weights to its registry, and the sampler looks up the version of each request there.
//! With an adapter the base weights are frozen and published as [`BASE`](WeightsName::BASE).

use crate::gpu::{Device, GpuModel};
use crate::inference::NativeSampler;
use crate::machine::Machine;
use crate::model::{Qwen3Model, WeightSet, Weights};
use crate::training::{CpuTrainer, CudaTrainer, TrainableParams};
use crate::weights::atomic_write::replace_text;
use crate::weights::checkpoint::{self, WeightDtype};
use crate::weights::description::ModelDescription;
use crate::weights::hf_config::Config;
use crate::weights::init;
use crate::weights::lora::NativeAdapter;
use crate::weights::registry::{DeviceWeights, GpuWeights, WeightRegistry};
use mage_engine::model::{LoraConfig, LoraLayout, ParamTensor};
use mage_engine::{Error, Renderer, Result, Trainer, WeightsName};
use mage_rng::Seed;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// The file new weights are written to.
const WEIGHTS: &str = "model.safetensors";

/// Options of the engine. On a GPU, sampled results are independent of them, as stated below, only with `batch_invariant`;
/// otherwise they depend on them up to rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineOptions {
    /// Threads, at most [`MAX_THREADS`](Self::MAX_THREADS); 0: one per core. Results do not depend on it.
    pub threads: usize,
    /// Tokens per training chunk, and prefill tokens per sampler step; 0: chosen by model shape. Training depends on it up to
    /// rounding, sampling does not.
    pub chunk_tokens: usize,
    /// Gradient checkpointing: recompute each layer in the backward pass instead of storing its activations. Needs less memory
    /// and a third more compute. Results do not depend on it.
    pub recompute: bool,
    /// Size of the KV cache in MiB. 0: on the CPU 256 MiB or four whole contexts, but at most a quarter of the free memory; on
    /// a GPU the remaining memory. A value above the free memory is an error. Results do not depend on it.
    pub cache_mib: usize,
    /// Maximum number of admitted requests; 0: 16,384. Further requests wait in their callers' futures, so that the sampler's
    /// memory is bounded. Results do not depend on it.
    pub queue: usize,
    /// Use batch-invariant kernels on a GPU: results do not depend on the batch or on how prefill is chunked, as is always the
    /// case on the CPU. Slower; without it results differ by rounding.
    pub batch_invariant: bool,
    /// Disable the prefix cache. Results do not depend on it.
    pub no_prefix_cache: bool,
}

impl EngineOptions {
    /// Maximum number of threads.
    pub const MAX_THREADS: usize = 1024;

    /// Checks the options against this machine.
    fn check(&self, gpu: Option<&GpuModel>) -> Result<()> {
        if self.threads > Self::MAX_THREADS {
            let problem = format!("{} exceeds the maximum of {}; 0 uses one per core", self.threads, Self::MAX_THREADS);
            return Err(Error::invalid("threads", problem));
        }
        let free = match gpu {
            Some(gpu) => Some(gpu.free_memory()?),
            None => Machine::free_memory().map(|bytes| bytes as usize),
        };
        match free.map(|bytes| bytes >> 20) {
            Some(free) if self.cache_mib > free => {
                let problem = format!("{} MiB exceed the {free} MiB of free memory; 0 chooses a size", self.cache_mib);
                Err(Error::invalid("cache_mib", problem))
            }
            _ => Ok(()),
        }
    }
}

/// A model: configuration, weights, and optionally a tokenizer and an adapter.
pub struct NativeModel {
    config: Config,
    flat: Vec<f32>,
    renderer: Option<Arc<Renderer>>,
    adapter: Option<NativeAdapter>,
    /// Path or name, which adapters record as their base model.
    source: Option<String>,
}

impl NativeModel {
    /// A randomly initialised model. `init_std` is the standard deviation of its weights; see
    /// [`DEFAULT_INIT_STD`](crate::DEFAULT_INIT_STD).
    pub fn new(config: Config, init_std: f32, seed: Seed, renderer: Option<Arc<Renderer>>) -> Result<Self> {
        check_init(&config, init_std, renderer.as_deref())?;
        let flat = init::new_weights(&config, init_std, seed);
        Ok(NativeModel { config, flat, renderer, adapter: None, source: None })
    }

    /// Writes a randomly initialised model to a directory, with the result of [`new`](Self::new) and [`save`](Self::save), but
    /// tensor by tensor, so that the model may be larger than memory.
    pub fn create(
        dir: &Path,
        config: &Config,
        init_std: f32,
        seed: Seed,
        renderer: Option<&Renderer>,
        format: WeightDtype,
    ) -> Result<()> {
        check_init(config, init_std, renderer)?;
        write_metadata(dir, config, renderer, format)?;
        let generate = |t: &ParamTensor| init::new_tensor(t, init_std, seed);
        checkpoint::write_generated(&dir.join(WEIGHTS), &config.param_layout().tensors, format, generate)
    }

    /// Whether all weight files of a model directory exist. Their content is not checked.
    pub fn has_all_weights(dir: &Path) -> bool {
        checkpoint::folder_paths(dir).is_ok_and(|files| files.iter().all(|f| f.exists()))
    }

    /// Loads a model directory in Hugging Face format. The tokenizer may be absent. Fails if free memory does not suffice.
    pub fn open(dir: &Path) -> Result<Self> {
        if NativeAdapter::is_in(dir) && !dir.join("config.json").exists() {
            return Err(Error::invalid(
                dir.display().to_string(),
                "it contains an adapter, not a model; open its base model and apply the adapter to it",
            ));
        }
        let ModelDescription { config, renderer, parameters, .. } = ModelDescription::read(dir)?;
        let needed = 4 * parameters as u64;
        if let Some(free) = Machine::free_memory().filter(|free| *free < needed) {
            let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
            return Err(Error::invalid(
                dir.display().to_string(),
                format!("its weights need {:.1} GiB of memory, but {:.1} GiB are free", gib(needed), gib(free)),
            ));
        }
        let flat = checkpoint::read_folder(dir, &config.param_layout().tensors, optional_tensors(&config))?;
        // Absolute, because adapters record it as their base model.
        let source = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned()).display().to_string();
        Ok(NativeModel { config, flat, renderer, adapter: None, source: Some(source) })
    }

    /// Sets the name that adapters record as their base model, such as a Hugging Face id, instead of the path.
    pub fn with_source(self, name: impl Into<String>) -> Self {
        NativeModel { source: Some(name.into()), ..self }
    }

    /// Applies an adapter, replacing any other. Sampling uses it, and training updates only the adapter.
    pub fn with_adapter(self, adapter: NativeAdapter) -> Result<Self> {
        if !adapter.fits(&self.config) {
            return Err(Error::invalid("adapter", "it was made for a model of another shape"));
        }
        Ok(NativeModel { adapter: Some(adapter), ..self })
    }

    /// Applies a new adapter. Its B matrices are zero, so it has no effect until it is trained.
    pub fn with_new_adapter(self, lora: &LoraConfig, seed: Seed) -> Result<Self> {
        let adapter = NativeAdapter::new(&self.config, lora, seed)?;
        self.with_adapter(adapter)
    }

    /// Merges the adapter into the base weights. Results are equal up to rounding.
    pub fn merged(mut self) -> Self {
        if let Some(adapter) = self.adapter.take() {
            adapter.merge_into(&self.config, &mut self.flat);
            self.source = None;
        }
        self
    }

    /// The adapter, if one is applied.
    pub fn adapter(&self) -> Option<&NativeAdapter> {
        self.adapter.as_ref()
    }

    /// The model configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The tokenizer and chat template, if the model has them.
    pub fn renderer(&self) -> Option<&Arc<Renderer>> {
        self.renderer.as_ref()
    }

    /// Number of parameters.
    pub fn parameters(&self) -> usize {
        self.flat.len()
    }

    /// The tensors: name, shape, values.
    pub fn tensors(&self) -> impl Iterator<Item = (String, Vec<usize>, &[f32])> {
        let tensors = self.config.param_layout().tensors;
        tensors.into_iter().map(|t| (t.name, t.shape, &self.flat[t.range]))
    }

    /// Writes the base weights as a directory that `transformers` loads. An adapter is not included: save it separately or
    /// [merge](Self::merged) it first.
    pub fn save(&self, dir: &Path, format: WeightDtype) -> Result<()> {
        write_model(dir, &self.config, &self.flat, self.renderer.as_deref(), format)
    }

    /// A CPU trainer that starts from this model, and a sampler of the weights it publishes. The model is published as version
    /// 0 of the policy. With an adapter, only the adapter is trained, and the model without it is published as
    /// [`BASE`](WeightsName::BASE).
    pub fn train(self, options: EngineOptions) -> Result<(CpuTrainer, NativeSampler)> {
        let shared = EngineContext::new(&self, options)?;
        let params = match self.adapter {
            None => TrainableParams::Full(shared.pool.install(|| shared.model.weights(self.flat))),
            Some(adapter) => {
                let base = shared.publish_base(self.flat);
                let adapter = shared.pool.install(|| shared.model.adapter(adapter.layout, adapter.flat));
                TrainableParams::Lora { base, adapter }
            }
        };
        let trainer = CpuTrainer::new(Arc::clone(&shared), params);
        Ok((trainer, NativeSampler::new(shared)?))
    }

    /// Like [`train`](Self::train), on a GPU.
    pub fn train_on_gpu(self, index: usize, options: EngineOptions) -> Result<(CudaTrainer, NativeSampler)> {
        let shared = EngineContext::on_gpu(&self, options, index)?;
        let trainer = CudaTrainer::new(Arc::clone(&shared), self.flat, self.adapter)?;
        Ok((trainer, NativeSampler::new(shared)?))
    }

    /// The rank of the adapter, if there is one.
    fn rank(&self) -> Option<usize> {
        self.adapter.as_ref().map(|a| a.lora().rank)
    }

    /// Why an existing GPU or driver is not used for this model with [`Device::Auto`].
    pub fn gpu_unused_reason(&self, device: Device) -> Option<String> {
        device.gpu_unused_reason(&self.config, self.rank())
    }

    /// A trainer and its sampler on the given device, and a description of the device.
    pub fn engines(self, device: Device, options: EngineOptions) -> Result<(Box<dyn Trainer>, NativeSampler, String)> {
        match device.cuda_index_for(&self.config, self.rank()) {
            None => {
                let (trainer, sampler) = self.train(options)?;
                Ok((Box::new(trainer), sampler, Machine::device()))
            }
            Some(index) => {
                let (trainer, sampler) = self.train_on_gpu(index, options)?;
                let description = sampler.device();
                Ok((Box::new(trainer), sampler, description))
            }
        }
    }

    /// A sampler without a trainer on the given device.
    pub fn sampler_on(self, device: Device, options: EngineOptions) -> Result<NativeSampler> {
        match device.cuda_index_for(&self.config, self.rank()) {
            None => self.sampler(options),
            Some(index) => {
                let shared = EngineContext::on_gpu(&self, options, index)?;
                let base = shared.publish_gpu_base(&self.flat)?;
                let policy = match &self.adapter {
                    Some(a) => shared.adapter_on_base(&a.layout, &a.flat)?.map_or(base, Arc::new),
                    None => base,
                };
                shared.registry.publish(&WeightsName::default(), policy);
                drop(self.flat);
                NativeSampler::new(shared)
            }
        }
    }

    /// A CPU sampler without a trainer. The model without its adapter is also published as [`BASE`](WeightsName::BASE).
    pub fn sampler(self, options: EngineOptions) -> Result<NativeSampler> {
        let shared = EngineContext::new(&self, options)?;
        let base = shared.publish_base(self.flat);
        let adapter = self.adapter.map(|a| Arc::new(shared.model.adapter(a.layout, a.flat)));
        shared.registry.publish(&WeightsName::default(), Arc::new(DeviceWeights::Cpu(WeightSet { base, adapter })));
        NativeSampler::new(shared)
    }
}

/// State shared by a trainer and its sampler.
pub(crate) struct EngineContext {
    pub(crate) model: Qwen3Model,
    pub(crate) renderer: Option<Arc<Renderer>>,
    pub(crate) registry: WeightRegistry,
    pub(crate) pool: rayon::ThreadPool,
    pub(crate) options: EngineOptions,
    /// Frozen base weights of adapters; unset if the base weights are trained.
    pub(crate) base: OnceLock<Arc<Weights>>,
    /// What adapters record as their base model.
    pub(crate) source: Option<String>,
    /// The GPU, if one is used.
    pub(crate) gpu: Option<GpuModel>,
}

impl EngineContext {
    fn new(model: &NativeModel, options: EngineOptions) -> Result<Arc<Self>> {
        Self::with(model, options, None)
    }

    fn on_gpu(model: &NativeModel, options: EngineOptions, index: usize) -> Result<Arc<Self>> {
        Self::with(model, options, Some(GpuModel::open(&model.config, index)?))
    }

    fn with(model: &NativeModel, options: EngineOptions, gpu: Option<GpuModel>) -> Result<Arc<Self>> {
        options.check(gpu.as_ref())?;
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(options.threads)
            .thread_name(|i| format!("native-{i}"))
            .build()
            .map_err(|e| Error::engine("native", format!("starting threads: {e}")))?;
        Ok(Arc::new(EngineContext {
            model: Qwen3Model::new(model.config.clone()),
            renderer: model.renderer.clone(),
            registry: WeightRegistry::default(),
            pool,
            options,
            base: OnceLock::new(),
            source: model.source.clone(),
            gpu,
        }))
    }

    /// Sets the frozen base weights and publishes them as [`BASE`](WeightsName::BASE).
    fn publish_base(&self, flat: Vec<f32>) -> Arc<Weights> {
        let base = Arc::clone(self.base.get_or_init(|| Arc::new(self.pool.install(|| self.model.weights(flat)))));
        let base_only = WeightSet { base: Arc::clone(&base), adapter: None };
        self.registry.publish(&WeightsName::new(WeightsName::BASE), Arc::new(DeviceWeights::Cpu(base_only)));
        base
    }

    /// Like [`publish_base`](Self::publish_base), on a GPU. Returns the published weights.
    pub(crate) fn publish_gpu_base(&self, flat: &[f32]) -> Result<Arc<DeviceWeights>> {
        let base = self.gpu_model()?.set_base(flat)?;
        let base_only = Arc::new(DeviceWeights::Cuda(GpuWeights { base, adapter: None }));
        self.registry.publish(&WeightsName::new(WeightsName::BASE), Arc::clone(&base_only));
        Ok(base_only)
    }

    /// Loads weights without an adapter.
    pub(crate) fn load(&self, flat: Vec<f32>) -> Result<DeviceWeights> {
        match &self.gpu {
            Some(gpu) => gpu.upload_base(&flat),
            None => {
                let base = Arc::new(self.pool.install(|| self.model.weights(flat)));
                Ok(DeviceWeights::Cpu(WeightSet { base, adapter: None }))
            }
        }
    }

    /// The frozen base weights of adapters, if the base weights are not trained.
    pub(crate) fn frozen_base(&self) -> Option<DeviceWeights> {
        match &self.gpu {
            Some(gpu) => {
                let base = Arc::clone(gpu.base.get()?);
                Some(DeviceWeights::Cuda(GpuWeights { base, adapter: None }))
            }
            None => Some(DeviceWeights::Cpu(WeightSet { base: Arc::clone(self.base.get()?), adapter: None })),
        }
    }
    /// Uploads an adapter for the frozen base weights; `None` if there are none.
    pub(crate) fn adapter_on_base(&self, layout: &Arc<LoraLayout>, flat: &[f32]) -> Result<Option<DeviceWeights>> {
        if let Some(gpu) = &self.gpu {
            return gpu.base.get().map(|base| gpu.upload_with_lora(base, layout, flat)).transpose();
        }
        let Some(base) = self.base.get() else { return Ok(None) };
        let adapter = self.pool.install(|| self.model.adapter(Arc::clone(layout), flat.to_vec()));
        Ok(Some(DeviceWeights::Cpu(WeightSet { base: Arc::clone(base), adapter: Some(Arc::new(adapter)) })))
    }

    /// The GPU, or an error if the engine runs on the CPU.
    pub(crate) fn gpu_model(&self) -> Result<&GpuModel> {
        self.gpu.as_ref().ok_or_else(|| Error::unsupported("use a GPU", "the engine was opened on the CPU"))
    }

    /// Tokens per training chunk. The activations of a small model's chunk fit into a core's own cache; a larger model's chunk
    /// is long enough for efficient GEMMs.
    pub(crate) fn chunk_tokens(&self) -> usize {
        const CORE_CACHE_BYTES: usize = 1 << 20;
        match self.options.chunk_tokens {
            0 => (CORE_CACHE_BYTES / self.model.bytes_per_token()).clamp(192, 1024),
            n => n,
        }
    }
}

fn check_init(config: &Config, init_std: f32, renderer: Option<&Renderer>) -> Result<()> {
    config.check()?;
    if !(init_std.is_finite() && init_std > 0.0) {
        return Err(Error::invalid("init_std", format!("{init_std} is not a positive number")));
    }
    check_vocabulary(config, renderer)
}

/// Tensors that a checkpoint may contain redundantly.
pub(crate) fn optional_tensors(config: &Config) -> &'static [&'static str] {
    if config.tie_word_embeddings { &["lm_head.weight"] } else { &[] }
}

pub(crate) fn check_vocabulary(config: &Config, renderer: Option<&Renderer>) -> Result<()> {
    match renderer.map(Renderer::vocab_size) {
        Some(tokens) if tokens > config.vocab_size => Err(Error::invalid(
            "tokenizer",
            format!("its {tokens} tokens are more than the {} rows of the embedding (vocab_size)", config.vocab_size),
        )),
        _ => Ok(()),
    }
}

/// Writes config, weights, tokenizer and generation defaults.
pub(crate) fn write_model(
    dir: &Path,
    config: &Config,
    flat: &[f32],
    renderer: Option<&Renderer>,
    format: WeightDtype,
) -> Result<()> {
    write_metadata(dir, config, renderer, format)?;
    checkpoint::write_tensors(&dir.join(WEIGHTS), &[("", flat)], &config.param_layout().tensors, format)
}

/// Writes everything except the weights.
fn write_metadata(dir: &Path, config: &Config, renderer: Option<&Renderer>, format: WeightDtype) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(Error::write(dir))?;
    let write = |name: &str, text: &str| replace_text(&dir.join(name), text);
    write("config.json", &config.to_json(format.config_name()))?;
    let generation = serde_json::json!({
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_ids,
        "do_sample": true,
        "temperature": 1.0,
    });
    write("generation_config.json", &format!("{generation:#}\n"))?;
    if let Some(r) = renderer {
        let control = r.control();
        let text = |id: Option<u32>| id.and_then(|id| r.token_text(id));
        let tokenizer = serde_json::json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": text(control.bos),
            "eos_token": text(control.end_of_turn),
            "clean_up_tokenization_spaces": false,
            "model_max_length": config.max_position_embeddings,
        });
        write("tokenizer.json", r.tokenizer_json())?;
        write("tokenizer_config.json", &format!("{tokenizer:#}\n"))?;
        if let Some(template) = r.template() {
            write("chat_template.jinja", template)?;
        }
    }
    Ok(())
}
