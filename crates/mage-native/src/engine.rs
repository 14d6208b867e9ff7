//! What is a loaded model, and who works with it?

use crate::cpu::Cpu;
use crate::gpu::{Device, GpuModel};
use crate::inference::NativeSampler;
use crate::machine::Machine;
use crate::model::param_layout::{ParamLayout, Tensor};
use crate::model::{Model, WeightSet, Weights};
use crate::training::{CpuTrainer, CudaTrainer, TrainableParams};
use crate::weights::atomic_write::replace_text;
use crate::weights::checkpoint::{self, WeightDtype};
use crate::weights::description::ModelDescription;
use crate::weights::hf_config::Config;
use crate::weights::init;
use crate::weights::lora::{LoraConfig, LoraLayout, NativeAdapter};
use crate::weights::registry::{DeviceWeights, GpuWeights, WeightRegistry};
use mage_engine::{AdapterName, Error, Renderer, Result, Trainer};
use mage_rng::Seed;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// The file new weights are written to.
const WEIGHTS: &str = "model.safetensors";

/// How the engine works. On a card, what is sampled is independent of these as said below only where `batch_invariant` is
/// set; else it depends on them to rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Threads, at most [`MAX_THREADS`](Self::MAX_THREADS); 0 takes as many as the machine has. Results do not depend on it.
    pub threads: usize,
    /// Tokens trained on, or read by the sampler, at a time; 0 chooses by the model's shape. What is trained depends on it to
    /// rounding, what is sampled does not.
    pub chunk_tokens: usize,
    /// Compute each layer again in the backward pass instead of remembering it: less memory, a third more work. Results
    /// do not depend on it.
    pub recompute: bool,
    /// Memory for keys and values of requests being sampled, in MiB; 0 takes 256, or what four whole contexts need, but at
    /// most a quarter of what is free; on a card it takes what is left. More than is free is refused. Results do not depend
    /// on it.
    pub cache_mib: usize,
    /// Requests the sampler takes in at once; 0 takes 16,384. Those beyond wait with whoever asked until one is answered, so
    /// that the sampler's memory is bounded. Results do not depend on it.
    pub queue: usize,
    /// On a card: give a request the same bits whatever else is in its batch and however it is cut into steps, as the CPU
    /// always does. Slower; without it results differ by rounding.
    pub batch_invariant: bool,
    /// Compute every prompt anew instead of sharing what prompts have in common. Results do not depend on it.
    pub no_prefix_cache: bool,
}

impl Options {
    /// The most threads that can be asked for.
    pub const MAX_THREADS: usize = 1024;

    /// Refuses what this machine cannot do, naming the field.
    fn check(&self, gpu: Option<&GpuModel>) -> Result<()> {
        if self.threads > Self::MAX_THREADS {
            let problem =
                format!("{} are more than {}; 0 takes as many as there are cores", self.threads, Self::MAX_THREADS);
            return Err(Error::invalid("threads", problem));
        }
        let free = match gpu {
            Some(gpu) => Some(gpu.free_memory()?),
            None => Machine::free_memory().map(|bytes| bytes as usize),
        };
        match free.map(|bytes| bytes >> 20) {
            Some(free) if self.cache_mib > free => {
                let problem = format!("{} MiB are more than the {free} that are free; 0 chooses", self.cache_mib);
                Err(Error::invalid("cache_mib", problem))
            }
            _ => Ok(()),
        }
    }
}

/// A model: shape, numbers, and the words that go with it.
pub struct NativeModel {
    config: Config,
    flat: Vec<f32>,
    renderer: Option<Arc<Renderer>>,
    adapter: Option<NativeAdapter>,
    /// Where it was read from.
    source: Option<String>,
}

impl NativeModel {
    /// A new model that knows nothing. `spread` is that of its weights; see [`DEFAULT_INIT_STD`](crate::DEFAULT_INIT_STD).
    pub fn new(config: Config, spread: f32, seed: Seed, renderer: Option<Arc<Renderer>>) -> Result<Self> {
        check_new(&config, spread, renderer.as_deref())?;
        let flat = init::new_weights(&config, spread, seed);
        Ok(NativeModel { config, flat, renderer, adapter: None, source: None })
    }

    /// Writes the folder of a new model, as [`new`](Self::new) and [`save`](Self::save) would, but tensor by tensor: the
    /// model may be larger than memory.
    pub fn create(
        dir: &Path,
        config: &Config,
        spread: f32,
        seed: Seed,
        renderer: Option<&Renderer>,
        format: WeightDtype,
    ) -> Result<()> {
        check_new(config, spread, renderer)?;
        write_words(dir, config, renderer, format)?;
        let make = |t: &Tensor| init::new_tensor(t, spread, seed);
        checkpoint::write_made(&dir.join(WEIGHTS), &ParamLayout::new(config).tensors, format, make)
    }

    /// Whether all files of numbers that a folder should have are there. What is in them is not looked at.
    pub fn has_all_weights(dir: &Path) -> bool {
        checkpoint::folder_paths(dir).is_ok_and(|files| files.iter().all(|f| f.exists()))
    }

    /// Reads a model folder as Hugging Face lays it out. The tokenizer may be absent. A model for which memory does not
    /// suffice is refused.
    pub fn open(dir: &Path) -> Result<Self> {
        if NativeAdapter::is_in(dir) && !dir.join("config.json").exists() {
            return Err(Error::invalid(
                dir.display().to_string(),
                "it holds an adapter, not a model; open the model it belongs to and put the adapter on that",
            ));
        }
        let ModelDescription { config, renderer, parameters, .. } = ModelDescription::read(dir)?;
        let needed = 4 * parameters as u64;
        if let Some(free) = Machine::free_memory().filter(|free| *free < needed) {
            let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
            return Err(Error::invalid(
                dir.display().to_string(),
                format!("its numbers take {:.1} GiB of memory, and {:.1} are free", gib(needed), gib(free)),
            ));
        }
        let flat = checkpoint::read_folder(dir, &ParamLayout::new(&config).tensors, optional_tensors(&config))?;
        // An adapter made for it must find it from anywhere.
        let source = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned()).display().to_string();
        Ok(NativeModel { config, flat, renderer, adapter: None, source: Some(source) })
    }

    /// The same, known to adapters' folders by this name (that of a public model, say) instead of its place.
    pub fn with_source(self, name: impl Into<String>) -> Self {
        NativeModel { source: Some(name.into()), ..self }
    }

    /// The same with an adapter beside its numbers, in place of any it had: it speaks with it, and in training the adapter
    /// alone learns.
    pub fn with_adapter(self, adapter: NativeAdapter) -> Result<Self> {
        if !adapter.fits(&self.config) {
            return Err(Error::invalid("adapter", "it was made for a model of another shape"));
        }
        Ok(NativeModel { adapter: Some(adapter), ..self })
    }

    /// The same with a new adapter, which changes nothing until it has learnt.
    pub fn with_new_adapter(self, lora: &LoraConfig, seed: Seed) -> Result<Self> {
        let adapter = NativeAdapter::new(&self.config, lora, seed)?;
        self.with_adapter(adapter)
    }

    /// The same with the adapter added to its own numbers: equal to rounding, and no adapter any more.
    pub fn merged(mut self) -> Self {
        if let Some(adapter) = self.adapter.take() {
            adapter.merge_into(&self.config, &mut self.flat);
            self.source = None;
        }
        self
    }

    /// The adapter beside its numbers, where there is one.
    pub fn adapter(&self) -> Option<&NativeAdapter> {
        self.adapter.as_ref()
    }

    /// Its shape.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Its tokenizer and template, where it has them.
    pub fn renderer(&self) -> Option<&Arc<Renderer>> {
        self.renderer.as_ref()
    }

    /// How many numbers it has.
    pub fn parameters(&self) -> usize {
        self.flat.len()
    }

    /// Its tensors: name, shape, numbers.
    pub fn tensors(&self) -> impl Iterator<Item = (String, Vec<usize>, &[f32])> {
        let tensors = ParamLayout::new(&self.config).tensors;
        tensors.into_iter().map(|t| (t.name, t.shape, &self.flat[t.range]))
    }

    /// Writes its own numbers as a folder that `transformers` loads unchanged. An adapter is not part of it: save that by
    /// itself, or [merge](Self::merged) it first.
    pub fn save(&self, dir: &Path, format: WeightDtype) -> Result<()> {
        write_folder(dir, &self.config, &self.flat, self.renderer.as_deref(), format)
    }

    /// A trainer that starts from this model, and a sampler that sees what the trainer publishes. The model itself is
    /// published as version 0 of the policy. With an adapter, that alone learns, and the model without it is published
    /// as [`BASE`](AdapterName::BASE).
    pub fn train(self, options: Options) -> Result<(CpuTrainer, NativeSampler)> {
        let shared = Shared::new(&self, options)?;
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

    /// The same on a card.
    pub fn train_on_gpu(self, index: usize, options: Options) -> Result<(CudaTrainer, NativeSampler)> {
        let shared = Shared::on_gpu(&self, options, index)?;
        let trainer = CudaTrainer::new(Arc::clone(&shared), self.flat, self.adapter)?;
        Ok((trainer, NativeSampler::new(shared)?))
    }

    /// The rank of its adapter, where there is one.
    fn rank(&self) -> Option<usize> {
        self.adapter.as_ref().map(|a| a.lora().rank)
    }

    /// Why a card, or a driver, that is there is not used for this model though one would be.
    pub fn gpu_unused_reason(&self, device: Device) -> Option<String> {
        device.gpu_unused_reason(&self.config, self.rank())
    }

    /// A trainer and its sampler on whichever device is asked for, and that device in words.
    pub fn engines(self, device: Device, options: Options) -> Result<(Box<dyn Trainer>, NativeSampler, String)> {
        match device.cuda_index_for(&self.config, self.rank()) {
            None => {
                let (trainer, sampler) = self.train(options)?;
                Ok((Box::new(trainer), sampler, Machine::device()))
            }
            Some(index) => {
                let (trainer, sampler) = self.train_on_gpu(index, options)?;
                let words = sampler.device();
                Ok((Box::new(trainer), sampler, words))
            }
        }
    }

    /// A sampler alone on whichever device is asked for.
    pub fn sampler_on(self, device: Device, options: Options) -> Result<NativeSampler> {
        match device.cuda_index_for(&self.config, self.rank()) {
            None => self.sampler(options),
            Some(index) => {
                let shared = Shared::on_gpu(&self, options, index)?;
                let alone = shared.publish_gpu_base(&self.flat)?;
                let policy = match &self.adapter {
                    Some(a) => shared.adapter_on_base(&a.layout, &a.flat)?.map_or(alone, Arc::new),
                    None => alone,
                };
                shared.registry.publish(&AdapterName::default(), policy);
                drop(self.flat);
                NativeSampler::new(shared)
            }
        }
    }

    /// A sampler alone. The model without its adapter is published as [`BASE`](AdapterName::BASE) too.
    pub fn sampler(self, options: Options) -> Result<NativeSampler> {
        let shared = Shared::new(&self, options)?;
        let base = shared.publish_base(self.flat);
        let adapter = self.adapter.map(|a| Arc::new(shared.model.adapter(a.layout, a.flat)));
        shared.registry.publish(&AdapterName::default(), Arc::new(DeviceWeights::Cpu(WeightSet { base, adapter })));
        NativeSampler::new(shared)
    }
}

/// What trainer and sampler have in common.
pub(crate) struct Shared {
    pub(crate) model: Model<Cpu>,
    pub(crate) renderer: Option<Arc<Renderer>>,
    pub(crate) registry: WeightRegistry,
    pub(crate) pool: rayon::ThreadPool,
    pub(crate) options: Options,
    /// What adapters stand beside; nothing where the model's own numbers learn.
    pub(crate) base: OnceLock<Arc<Weights<Cpu>>>,
    /// How adapters' folders name it.
    pub(crate) source: Option<String>,
    /// The card that computes, where one does.
    pub(crate) gpu: Option<GpuModel>,
}

impl Shared {
    fn new(model: &NativeModel, options: Options) -> Result<Arc<Self>> {
        Self::with(model, options, None)
    }

    fn on_gpu(model: &NativeModel, options: Options, index: usize) -> Result<Arc<Self>> {
        Self::with(model, options, Some(GpuModel::open(&model.config, index)?))
    }

    fn with(model: &NativeModel, options: Options, gpu: Option<GpuModel>) -> Result<Arc<Self>> {
        options.check(gpu.as_ref())?;
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(options.threads)
            .thread_name(|i| format!("native-{i}"))
            .build()
            .map_err(|e| Error::Engine { engine: "native".to_owned(), reason: format!("starting threads: {e}") })?;
        Ok(Arc::new(Shared {
            model: Model::new(model.config.clone(), Cpu::new()),
            renderer: model.renderer.clone(),
            registry: WeightRegistry::default(),
            pool,
            options,
            base: OnceLock::new(),
            source: model.source.clone(),
            gpu,
        }))
    }

    /// Shows the model without any adapter to samplers, for good.
    fn publish_base(&self, flat: Vec<f32>) -> Arc<Weights<Cpu>> {
        let base = Arc::clone(self.base.get_or_init(|| Arc::new(self.pool.install(|| self.model.weights(flat)))));
        let alone = WeightSet { base: Arc::clone(&base), adapter: None };
        self.registry.publish(&AdapterName::new(AdapterName::BASE), Arc::new(DeviceWeights::Cpu(alone)));
        base
    }

    /// The same on a card. What was published, for other names.
    pub(crate) fn publish_gpu_base(&self, flat: &[f32]) -> Result<Arc<DeviceWeights>> {
        let base = self.gpu_model()?.set_base(flat)?;
        let alone = Arc::new(DeviceWeights::Cuda(GpuWeights { base, adapter: None }));
        self.registry.publish(&AdapterName::new(AdapterName::BASE), Arc::clone(&alone));
        Ok(alone)
    }

    /// An adapter beside the model that no adapter changes, where there is one.
    pub(crate) fn adapter_on_base(&self, layout: &Arc<LoraLayout>, flat: &[f32]) -> Result<Option<DeviceWeights>> {
        if let Some(gpu) = &self.gpu {
            return gpu.base.get().map(|base| gpu.upload_with_lora(base, layout, flat)).transpose();
        }
        let Some(base) = self.base.get() else { return Ok(None) };
        let adapter = self.pool.install(|| self.model.adapter(Arc::clone(layout), flat.to_vec()));
        Ok(Some(DeviceWeights::Cpu(WeightSet { base: Arc::clone(base), adapter: Some(Arc::new(adapter)) })))
    }

    /// The card, where one computes.
    pub(crate) fn gpu_model(&self) -> Result<&GpuModel> {
        self.gpu.as_ref().ok_or_else(|| Error::unsupported("use a card", "the engine was opened on the CPU"))
    }

    /// Tokens per chunk: a small model's whole chunk stays in a core's own cache, a larger one's chunk is still long
    /// enough to keep the products busy.
    pub(crate) fn chunk_tokens(&self) -> usize {
        const CACHE: usize = 1 << 20;
        match self.options.chunk_tokens {
            0 => (CACHE / self.model.bytes_per_token()).clamp(192, 1024),
            n => n,
        }
    }
}

fn check_new(config: &Config, spread: f32, renderer: Option<&Renderer>) -> Result<()> {
    config.check()?;
    if !(spread.is_finite() && spread > 0.0) {
        return Err(Error::invalid("spread", format!("{spread} is not a positive number")));
    }
    check_vocabulary(config, renderer)
}

/// Tensors that may be in a folder and say nothing new.
pub(crate) fn optional_tensors(config: &Config) -> &'static [&'static str] {
    if config.tie_word_embeddings { &["lm_head.weight"] } else { &[] }
}

pub(crate) fn check_vocabulary(config: &Config, renderer: Option<&Renderer>) -> Result<()> {
    match renderer.map(Renderer::vocabulary) {
        Some(words) if words > config.vocab_size => Err(Error::invalid(
            "tokenizer",
            format!("its {words} tokens are more than the {} rows of the embedding (vocab_size)", config.vocab_size),
        )),
        _ => Ok(()),
    }
}

/// Writes config, weights, tokenizer and generation defaults.
pub(crate) fn write_folder(
    dir: &Path,
    config: &Config,
    flat: &[f32],
    renderer: Option<&Renderer>,
    format: WeightDtype,
) -> Result<()> {
    write_words(dir, config, renderer, format)?;
    checkpoint::write_tensors(&dir.join(WEIGHTS), &[("", flat)], &ParamLayout::new(config).tensors, format)
}

/// The same without the weights.
fn write_words(dir: &Path, config: &Config, renderer: Option<&Renderer>, format: WeightDtype) -> Result<()> {
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
