//! Model directories: round trip, tensor-by-tensor creation, inconsistent and missing files.

use mage_native::{Config, ModelDescription, NativeModel, WeightDtype, chat_tokenizer};
use mage_rng::Seed;
use std::path::Path;
use std::sync::Arc;

fn written(dir: &Path, tied: bool) -> NativeModel {
    let renderer = Arc::new(chat_tokenizer("PASS or BET? ", 280).unwrap());
    let config = Config {
        vocab_size: renderer.vocab_size() + 3,
        hidden_size: 16,
        intermediate_size: 24,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        num_key_value_heads: 1,
        head_dim: 8,
        rms_norm_eps: 1e-6,
        rope_theta: 1e6,
        tie_word_embeddings: tied,
        max_position_embeddings: 64,
        bos_token_id: None,
        eos_token_ids: vec![renderer.control().end_of_turn.unwrap()],
    };
    let model = NativeModel::new(config, 0.02, Seed::new(1), Some(renderer)).unwrap();
    model.save(dir, WeightDtype::F32).unwrap();
    model
}

#[test]
fn saved_model_directory_loads_unchanged() {
    for tied in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let model = written(dir.path(), tied);
        let back = NativeModel::open(dir.path()).unwrap();
        assert_eq!(back.config(), model.config());
        assert!(back.tensors().eq(model.tensors()));
        let (a, b) = (model.renderer().unwrap(), back.renderer().unwrap());
        assert_eq!(a.control(), b.control());
        assert_eq!(a.template(), b.template());
    }
}

#[test]
fn tensor_by_tensor_creation_writes_identical_files() {
    let (saved, created) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let model = written(saved.path(), false);
    for format in [WeightDtype::F32, WeightDtype::Bf16, WeightDtype::F16] {
        model.save(saved.path(), format).unwrap();
        let renderer = model.renderer().map(AsRef::as_ref);
        NativeModel::create(created.path(), model.config(), 0.02, Seed::new(1), renderer, format).unwrap();
        for file in std::fs::read_dir(saved.path()).unwrap().map(|f| f.unwrap().file_name()) {
            let read = |dir: &Path| std::fs::read(dir.join(&file)).unwrap();
            assert!(read(saved.path()) == read(created.path()), "{file:?}, {format:?}");
        }
        let d = ModelDescription::read(created.path()).unwrap();
        let stored = d.stored.unwrap();
        let width = if format == WeightDtype::F32 { 4 } else { 2 };
        assert_eq!((stored.bytes, stored.dtypes), (width * d.parameters as u64, vec![format]));
        assert_eq!(d.parameters, NativeModel::open(created.path()).unwrap().parameters());
    }
}

#[test]
fn tokenizer_larger_than_the_embedding_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path(), true);
    let path = dir.path().join("config.json");
    let mut config: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    config["vocab_size"] = 200.into();
    std::fs::write(&path, config.to_string()).unwrap();
    let e = NativeModel::open(dir.path()).err().unwrap().to_string();
    assert!(e.contains("more than the 200 rows"), "{e}");
    config["vocab_size"] = 300.into();
    std::fs::write(&path, config.to_string()).unwrap();
    let e = NativeModel::open(dir.path()).err().unwrap().to_string();
    assert!(e.contains("model.embed_tokens.weight` has shape"), "{e}");
}

#[test]
fn missing_files_are_named_in_errors() {
    let dir = tempfile::tempdir().unwrap();
    let e = NativeModel::open(dir.path()).err().unwrap().to_string();
    assert!(e.contains("config.json"), "{e}");
    written(dir.path(), true);
    std::fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    let e = NativeModel::open(dir.path()).err().unwrap().to_string();
    assert!(e.contains("no model.safetensors"), "{e}");
}
