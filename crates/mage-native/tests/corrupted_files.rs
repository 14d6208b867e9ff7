//! Randomly corrupted model and adapter directories: each loads with the right size or fails with an error that names the file.

use mage_native::{Config, LoraConfig, NativeAdapter, NativeModel, Projection, WeightDtype};
use mage_rng::{Rng, Seed};
use rand::RngExt;
use std::fs;
use std::path::Path;

fn config() -> Config {
    Config {
        vocab_size: 11,
        hidden_size: 4,
        intermediate_size: 6,
        num_hidden_layers: 1,
        num_attention_heads: 2,
        num_key_value_heads: 1,
        head_dim: 2,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        tie_word_embeddings: true,
        max_position_embeddings: 16,
        bos_token_id: None,
        eos_token_ids: vec![],
    }
}

/// Changes, removes, duplicates or inserts bytes, mostly near the start, where headers are.
fn corrupt(bytes: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for _ in 0..rng.random_range(1..4) {
        let near = if rng.random_range(0..4) == 0 { out.len() } else { out.len().min(700) };
        if near == 0 {
            break;
        }
        let at = rng.random_range(0..near);
        match rng.random_range(0..6) {
            0 => out[at] ^= 1 << rng.random_range(0..8),
            1 => out[at] = rng.random(),
            // Digits and punctuation often keep a header parseable but wrong.
            2 => out[at] = b"0123456789-.,:[]{}\"eE"[rng.random_range(0..21_usize)],
            3 => out.truncate(at),
            4 => {
                let end = (at + rng.random_range(1..40_usize)).min(out.len());
                let piece = out[at..end].to_vec();
                out.splice(at..at, piece);
            }
            _ => {
                let end = (at + rng.random_range(1..40_usize)).min(out.len());
                out.drain(at..end);
            }
        }
    }
    out
}

/// Opens a directory with `file` corrupted in many ways. Returns how often it opened and how often it was refused.
fn open_corrupted(dir: &Path, file: &str, open: impl Fn() -> Result<usize, String>) -> (usize, usize) {
    let path = dir.join(file);
    let whole = fs::read(&path).unwrap();
    let size = open().unwrap();
    let (mut opened, mut refused) = (0, 0);
    for i in 0..if cfg!(feature = "long") { 50_000 } else { 500 } {
        let corrupted = corrupt(&whole, &mut Seed::new(8).child(file).at(i).rng());
        fs::write(&path, &corrupted).unwrap();
        match open() {
            // A changed value or space cannot be detected; a changed shape must be.
            Ok(n) => {
                assert!(n == size || file == "config.json", "{file}, {i}: {n} parameters instead of {size}");
                opened += 1;
            }
            Err(e) => {
                assert!(e.contains(&*dir.display().to_string()) || e.contains(file), "{file}, {i}: {e}");
                refused += 1;
            }
        }
    }
    fs::write(&path, &whole).unwrap();
    (opened, refused)
}

#[test]
fn corrupted_directories_are_refused_or_complete() {
    let dir = tempfile::tempdir().unwrap();
    let model = NativeModel::new(config(), 0.1, Seed::new(1), None).unwrap();
    model.save(dir.path(), WeightDtype::F32).unwrap();
    let open = || NativeModel::open(dir.path()).map(|m| m.parameters()).map_err(|e| e.to_string());
    for file in ["model.safetensors", "config.json"] {
        let (opened, refused) = open_corrupted(dir.path(), file, open);
        assert!(opened > 0 && refused > opened, "{file}: {opened} opened, {refused} refused");
    }
    let dir = tempfile::tempdir().unwrap();
    let lora = LoraConfig { rank: 2, alpha: 4.0, targets: vec![Projection::QProj, Projection::DownProj] };
    let adapter = NativeAdapter::new(&config(), &lora, Seed::new(1)).unwrap();
    adapter.save(dir.path(), WeightDtype::F32).unwrap();
    let open = || NativeAdapter::open(dir.path(), &config()).map(|a| a.parameters()).map_err(|e| e.to_string());
    for file in ["adapter_model.safetensors", "adapter_config.json"] {
        let (opened, refused) = open_corrupted(dir.path(), file, open);
        assert!(opened > 0 && refused > 0, "{file}: {opened} opened, {refused} refused");
    }
}
