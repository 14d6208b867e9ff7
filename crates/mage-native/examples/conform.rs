//! One CPU training case with outputs for a comparison with PyTorch; see `conformance/torch`.
//!
//! `conform CASE_DIR` reads a model directory with `case.json` (sequences, loss, optimiser) and writes to `CASE_DIR/out`:
//! `result.json` (losses, log-probabilities, logits, greedy tokens, chat tokens), `gradients.safetensors`, and the trained
//! model under `trained`. If the directory contains `adapter`, only the adapter is trained: the gradients are the adapter's,
//! `trained` is an adapter, and the merged model is under `merged`.
//!
//! `conform new DIR TEXT` creates a small model with a tokenizer trained on a text file.

use mage_engine::{
    ChatMessage, KlForm, Loss, Objective, OptimStep, PerToken, SampleRequest, SamplingParams, Thinking, TokenClass,
    TokenForest, Trainer,
};
use mage_native::{Config, EngineOptions, NativeAdapter, NativeModel, WeightDtype, chat_tokenizer};
use mage_rng::Seed;
use serde::Deserialize;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

#[derive(Deserialize)]
struct Case {
    rows: Vec<Row>,
    objective: Objective,
    entropy: f32,
    kl: Vec<(u8, KlForm, f32)>,
    step: OptimStep,
    steps: u32,
    prompts: Vec<Vec<u32>>,
    greedy_tokens: u32,
    chats: Vec<Vec<ChatMessage>>,
}

#[derive(Deserialize)]
struct Row {
    tokens: Vec<u32>,
    weights: Vec<f32>,
    advantages: Vec<f32>,
    old_logprobs: Vec<f32>,
    ref_logprobs: Vec<f32>,
    classes: Vec<u8>,
    allowed: Vec<Option<Vec<u32>>>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [dir] => run(Path::new(dir)),
        [new, dir, text] if new == "new" => create(Path::new(dir), Path::new(text)),
        _ => Err("usage: conform CASE_DIR, or conform new DIR TEXT".into()),
    }
}

fn create(dir: &Path, text: &Path) -> Result<(), Box<dyn Error>> {
    let renderer = Arc::new(chat_tokenizer(&std::fs::read_to_string(text)?, 400)?);
    let config = Config {
        vocab_size: renderer.vocab_size(),
        hidden_size: 32,
        intermediate_size: 64,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 16,
        rms_norm_eps: 1e-6,
        rope_theta: 1e6,
        tie_word_embeddings: true,
        max_position_embeddings: 1024,
        bos_token_id: None,
        eos_token_ids: renderer.control().end_of_turn.into_iter().collect(),
    };
    NativeModel::new(config, 0.1, Seed::new(1), Some(renderer))?.save(dir, WeightDtype::F32)?;
    Ok(())
}

fn run(dir: &Path) -> Result<(), Box<dyn Error>> {
    let case: Case = serde_json::from_str(&std::fs::read_to_string(dir.join("case.json"))?)?;
    let out = dir.join("out");
    std::fs::create_dir_all(&out)?;
    let rows = case.rows.into_iter().map(|r| {
        let train = PerToken {
            weights: r.weights,
            advantages: r.advantages,
            old_logprobs: r.old_logprobs,
            ref_logprobs: r.ref_logprobs,
            classes: r.classes.into_iter().map(TokenClass).collect(),
            allowed: r.allowed.into_iter().map(|a| a.map(Into::into)).collect(),
        };
        (r.tokens, train)
    });
    let batch = TokenForest::from_sequences(rows);
    let mut loss = Loss::of(case.objective).with_entropy(case.entropy);
    for (class, form, coefficient) in case.kl {
        loss = loss.with_kl(Some(TokenClass(class)), form, coefficient);
    }
    let adapter = dir.join("adapter");
    let mut model = NativeModel::open(dir)?;
    if adapter.exists() {
        let adapter = NativeAdapter::open(&adapter, model.config())?;
        model = model.with_adapter(adapter)?;
    }
    let renderer = model.renderer().cloned();
    let (mut trainer, sampler) = model.train(EngineOptions::default())?;
    let (mut greedy, mut logits) = (Vec::new(), Vec::new());
    for prompt in case.prompts {
        let params = SamplingParams { temperature: 0.0, max_tokens: case.greedy_tokens, ..Default::default() };
        let request = SampleRequest { prompt, params, ..Default::default() };
        logits.push(sampler.logits(&request)?);
        greedy.push(sampler.generate(&request, |_| ())?.tokens);
    }
    let mut chats = Vec::new();
    if let Some(r) = &renderer {
        for chat in &case.chats {
            for (thinking, open) in [(Thinking::On, true), (Thinking::Off, true), (Thinking::On, false)] {
                chats.push(r.encode_chat(chat, thinking, open)?);
            }
        }
    }
    let first = trainer.forward_backward(&batch, &loss)?;
    let gradients: Vec<(String, Vec<usize>, Vec<u8>)> = trainer
        .gradients()
        .map(|(n, s, g)| (n.to_owned(), s.to_vec(), g.iter().flat_map(|x| x.to_le_bytes()).collect()))
        .collect();
    let views = gradients
        .iter()
        .map(|(n, s, b)| Ok((n, safetensors::tensor::TensorView::new(safetensors::Dtype::F32, s.clone(), b)?)))
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    safetensors::serialize_to_file(views, None, &out.join("gradients.safetensors"))?;
    let mut losses = vec![first.loss];
    let mut norms = Vec::new();
    for i in 0..case.steps {
        norms.push(trainer.optim_step(&case.step)?.grad_norm);
        if i + 1 < case.steps {
            losses.push(trainer.forward_backward(&batch, &loss)?.loss);
        }
    }
    let trained = out.join("trained");
    trainer.save_model(&trained, WeightDtype::F32)?;
    if adapter.exists() {
        let model = NativeModel::open(dir)?;
        let adapter = NativeAdapter::open(&trained, model.config())?;
        model.with_adapter(adapter)?.merged().save(&out.join("merged"), WeightDtype::F32)?;
    }
    let result = serde_json::json!({
        "losses": losses, "norms": norms, "logprobs": first.logprobs, "entropy": first.entropy, "greedy": greedy,
        "logits": logits, "chats": chats,
    });
    std::fs::write(out.join("result.json"), result.to_string())?;
    Ok(())
}
