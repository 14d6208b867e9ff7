//! Adapter directories in PEFT format: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! `target_modules` is always written, because PEFT silently uses its own default if it is empty. Unsupported settings are
//! refused by name.

use super::NativeAdapter;
use crate::weights::atomic_write::replace_text;
use crate::weights::checkpoint::{self, WeightDtype};
use crate::weights::hf_config::Config;
use mage_engine::model::{LoraConfig, LoraLayout, Projection};
use mage_engine::{Error, Result};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

impl NativeAdapter {
    /// Whether a directory contains an adapter.
    pub fn is_in(dir: &Path) -> bool {
        dir.join(CONFIG).exists()
    }

    /// The base model recorded in an adapter directory: a directory, or a Hub name with an optional `@revision`.
    pub fn base_of(dir: &Path) -> Result<Option<String>> {
        let config = read_config(dir)?;
        let text = |field: &str| config[field].as_str().filter(|s| !s.is_empty()).map(str::to_owned);
        Ok(match (text("base_model_name_or_path"), text("revision")) {
            (Some(name), Some(revision)) if !Path::new(&name).is_absolute() => Some(format!("{name}@{revision}")),
            (name, _) => name,
        })
    }

    /// The configuration of the adapter in a directory, without reading its weights.
    pub fn shape_of(dir: &Path) -> Result<LoraConfig> {
        parse(&read_config(dir)?, || found_targets(dir))
            .map_err(|e| Error::invalid(dir.join(CONFIG).display().to_string(), e.to_string()))
    }

    /// Reads a PEFT directory for a model with this configuration. Fails if it is incomplete or does not fit the model.
    pub fn open(dir: &Path, config: &Config) -> Result<Self> {
        let base = Self::base_of(dir)?;
        let lora = Self::shape_of(dir)?;
        let layout = config.lora_layout(&lora);
        let source = "adapter_config.json with this model";
        check_safe(dir)?;
        let flat = checkpoint::read_tensors(&[dir.join(WEIGHTS)], &layout.tensors, &[], source)?;
        Ok(NativeAdapter::from_parts(config, Arc::new(layout), flat, base))
    }

    /// Writes a directory that PEFT and vLLM load unchanged.
    pub fn save(&self, dir: &Path, format: WeightDtype) -> Result<()> {
        write(dir, &self.layout, &self.flat, self.base.as_deref(), format)
    }
}

/// Writes an adapter directory from a flat parameter buffer.
pub(crate) fn write(
    dir: &Path,
    layout: &LoraLayout,
    flat: &[f32],
    base: Option<&str>,
    format: WeightDtype,
) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(Error::write(dir))?;
    checkpoint::write_tensors(&dir.join(WEIGHTS), &[("", flat)], &layout.tensors, format)?;
    let lora = &layout.lora;
    // PEFT stores the revision of a Hub name in a separate field.
    let (base, revision) = match base.and_then(|b| b.split_once('@')) {
        Some((name, revision)) if base.is_some_and(|b| !Path::new(b).is_absolute()) => (Some(name), Some(revision)),
        _ => (base, None),
    };
    let config = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "revision": revision,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "target_modules": lora.targets,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": false,
        "init_lora_weights": true,
        "inference_mode": true,
        "use_rslora": false,
        "use_dora": false,
    });
    replace_text(&dir.join(CONFIG), &format!("{config:#}\n"))
}

fn read_config(dir: &Path) -> Result<Value> {
    let path = dir.join(CONFIG);
    let text = std::fs::read_to_string(&path).map_err(Error::read(&path))?;
    serde_json::from_str(&text).map_err(|e| Error::invalid(path.display().to_string(), e.to_string()))
}

/// Refuses a directory whose weights are only in a pickle file, with a remedy.
fn check_safe(dir: &Path) -> Result<()> {
    let pickled = dir.join("adapter_model.bin");
    if !dir.join(WEIGHTS).exists() && pickled.exists() {
        let problem = format!(
            "a .bin file can run code and is not read; load the adapter with PEFT and save it again, which writes \
             {WEIGHTS}"
        );
        return Err(Error::invalid(pickled.display().to_string(), problem));
    }
    Ok(())
}

/// The projections with tensors in a directory, for writers that leave `target_modules` empty.
fn found_targets(dir: &Path) -> Result<Vec<Projection>> {
    check_safe(dir)?;
    let names = checkpoint::tensor_names(&dir.join(WEIGHTS))?;
    let has = |p: &Projection| names.iter().any(|n| n.contains(&format!(".{}.{p}.lora_", p.block())));
    Ok(Projection::ALL.into_iter().filter(has).collect())
}

/// Parses an `adapter_config.json`. `found` returns the projections that have tensors.
fn parse(v: &Value, found: impl FnOnce() -> Result<Vec<Projection>>) -> Result<LoraConfig> {
    let wrong = |field: &str, problem: String| Error::invalid(field, problem);
    match v["peft_type"].as_str() {
        Some("LORA") => {}
        other => {
            let problem = format!("`{}` is not supported, only `LORA` is", other.unwrap_or("missing"));
            return Err(wrong("peft_type", problem));
        }
    }
    // Each of these changes the result.
    let plain = |x: &Value| match x {
        Value::Null | Value::Bool(false) => true,
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
        _ => false,
    };
    for field in [
        "use_dora",
        "use_qalora",
        "use_bdlora",
        "arrow_config",
        "kasa_config",
        "monteclora_config",
        "velora_config",
        "fan_in_fan_out",
        "rank_pattern",
        "alpha_pattern",
        "modules_to_save",
        "layers_to_transform",
        "layers_pattern",
        "exclude_modules",
        "layer_replication",
        "lora_bias",
        "trainable_token_indices",
        "target_parameters",
        "alora_invocation_tokens",
    ] {
        if !plain(&v[field]) {
            return Err(wrong(field, format!("{} is not supported; leave it out", v[field])));
        }
    }
    if v["bias"].as_str().is_some_and(|b| b != "none") {
        return Err(wrong("bias", format!("{} is not supported, only \"none\" is", v["bias"])));
    }
    // Other initialisations (PiSSA and the like) modify the base weights.
    if v["init_lora_weights"].as_str().is_some_and(|s| !["gaussian", "orthogonal", "eva"].contains(&s)) {
        let problem =
            format!("{} modifies the base weights; convert it to plain LoRA with PEFT", v["init_lora_weights"]);
        return Err(wrong("init_lora_weights", problem));
    }
    let rank = v["r"].as_u64().ok_or_else(|| wrong("r", format!("{} is not a rank", v["r"])))? as usize;
    let alpha =
        v["lora_alpha"].as_f64().ok_or_else(|| wrong("lora_alpha", format!("{} is not a number", v["lora_alpha"])))?;
    // With rsLoRA, PEFT divides by the square root of the rank.
    let alpha = if v["use_rslora"] == true { alpha * (rank as f64).sqrt() } else { alpha };
    let targets = match &v["target_modules"] {
        Value::Null => found()?,
        Value::String(s) if s == "all-linear" => Projection::ALL.to_vec(),
        Value::Array(names) => {
            let all = Projection::ALL.map(Projection::name).join(", ");
            let one = |name: &Value| {
                let unknown = || wrong("target_modules", format!("{name} is not one of {all}"));
                name.as_str().and_then(Projection::named).ok_or_else(unknown)
            };
            let mut targets = names.iter().map(one).collect::<Result<Vec<_>>>()?;
            targets.sort();
            targets.dedup();
            targets
        }
        other => return Err(wrong("target_modules", format!("{other} is not supported; use a list of names"))),
    };
    let lora = LoraConfig { rank, alpha: alpha as f32, targets };
    lora.check()?;
    Ok(lora)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::hf_config::tests::tiny;
    use mage_rng::Seed;

    fn written(lora: &LoraConfig) -> (tempfile::TempDir, NativeAdapter) {
        let dir = tempfile::tempdir().unwrap();
        let mut adapter = NativeAdapter::new(&tiny(), lora, Seed::new(1)).unwrap();
        adapter.base = Some("some/base".to_owned());
        adapter.save(dir.path(), WeightDtype::F32).unwrap();
        (dir, adapter)
    }

    fn change(dir: &Path, by: impl FnOnce(&mut Value)) {
        let mut v = read_config(dir).unwrap();
        by(&mut v);
        std::fs::write(dir.join(CONFIG), v.to_string()).unwrap();
    }

    fn refusal(dir: &Path) -> String {
        NativeAdapter::open(dir, &tiny()).unwrap_err().to_string()
    }

    #[test]
    fn reading_inverts_writing() {
        let lora = LoraConfig { rank: 3, alpha: 5.0, targets: vec![Projection::VProj, Projection::DownProj] };
        let (dir, adapter) = written(&lora);
        assert!(NativeAdapter::is_in(dir.path()));
        let back = NativeAdapter::open(dir.path(), &tiny()).unwrap();
        assert_eq!((back.lora(), back.base()), (&lora, Some("some/base")));
        assert!(back.tensors().eq(adapter.tensors()));
        let config = read_config(dir.path()).unwrap();
        assert_eq!(config["target_modules"], json!(["v_proj", "down_proj"]));
        let first = back.tensors().next().unwrap().0;
        assert_eq!(first, "base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight");
        // Equivalent configurations.
        change(dir.path(), |v| v["target_modules"] = json!(["mlp.down_proj", "self_attn.v_proj"]));
        assert!(NativeAdapter::open(dir.path(), &tiny()).unwrap().tensors().eq(adapter.tensors()));
        change(dir.path(), |v| v["target_modules"] = Value::Null);
        assert!(NativeAdapter::open(dir.path(), &tiny()).unwrap().tensors().eq(adapter.tensors()));
        change(dir.path(), |v| v["use_rslora"] = true.into());
        let alpha = NativeAdapter::open(dir.path(), &tiny()).unwrap().lora().alpha;
        assert!((alpha - 5.0 * 3.0_f32.sqrt()).abs() < 1e-6, "{alpha}");
    }

    #[test]
    fn mismatches_and_unsupported_settings_are_named_in_errors() {
        let lora = LoraConfig { rank: 2, alpha: 4.0, targets: vec![Projection::QProj, Projection::OProj] };
        let (dir, _) = written(&lora);
        let dir = dir.path();
        let with = |field: &str, value: Value| {
            let text = std::fs::read_to_string(dir.join(CONFIG)).unwrap();
            change(dir, |v| v[field] = value);
            let error = refusal(dir);
            std::fs::write(dir.join(CONFIG), text).unwrap();
            error
        };
        let e = with("target_modules", json!(["q_proj", "lm_head"]));
        assert!(e.contains("target_modules") && e.contains("\"lm_head\"") && e.contains("gate_proj"), "{e}");
        assert!(with("target_modules", json!(".*proj")).contains("list of names"));
        assert!(with("target_modules", json!([])).contains("the list is empty"));
        let e = with("r", json!(4));
        assert!(e.contains("q_proj.lora_A.weight` has shape [2, ") && e.contains("[4, "), "{e}");
        let e = with("target_modules", json!(["q_proj", "o_proj", "k_proj"]));
        assert!(e.contains("k_proj.lora_A.weight` is missing"), "{e}");
        let e = with("target_modules", json!(["q_proj"]));
        assert!(e.contains("o_proj.lora_A.weight` is unexpected"), "{e}");
        assert!(with("r", json!(0)).contains("rank"));
        assert!(with("lora_alpha", json!("x")).contains("lora_alpha"));
        assert!(with("peft_type", json!("IA3")).contains("`IA3`"));
        assert!(with("use_dora", json!(true)).contains("use_dora"));
        assert!(with("bias", json!("all")).contains("bias"));
        assert!(with("init_lora_weights", json!("pissa")).contains("modifies the base weights"));
        assert!(with("modules_to_save", json!(["lm_head"])).contains("modules_to_save"));
        let larger = Config { hidden_size: 2 * tiny().hidden_size, ..tiny() };
        let e = NativeAdapter::open(dir, &larger).unwrap_err().to_string();
        assert!(e.contains("has shape") && e.contains("adapter_config.json with this model requires"), "{e}");

        let mut adapter = NativeAdapter::open(dir, &tiny()).unwrap();
        adapter.flat[5] = f32::NAN;
        adapter.save(dir, WeightDtype::F32).unwrap();
        let e = refusal(dir);
        assert!(e.contains("layers.0.self_attn.q_proj.lora_A.weight` holds the non-finite value NaN"), "{e}");
        std::fs::write(dir.join(WEIGHTS), "short").unwrap();
        assert!(refusal(dir).contains(WEIGHTS));
        std::fs::remove_file(dir.join(WEIGHTS)).unwrap();
        assert!(refusal(dir).contains(WEIGHTS));
        std::fs::write(dir.join("adapter_model.bin"), "").unwrap();
        let e = refusal(dir);
        assert!(e.contains("adapter_model.bin") && e.contains("can run code") && e.contains("PEFT"), "{e}");
        std::fs::write(dir.join(CONFIG), "{").unwrap();
        assert!(refusal(dir).contains(CONFIG));
    }
}
