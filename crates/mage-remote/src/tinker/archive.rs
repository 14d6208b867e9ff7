//! How does an adapter come out of what a server packed?
//!
//! Only the two files of an adapter are taken, by name, whatever the archive says of places. `target_modules`, which SkyRL
//! leaves empty, is filled in from the tensors that are there: PEFT would take its own default and say nothing.

use flate2::read::GzDecoder;
use mage_engine::{Error, Result};
use serde_json::{Value, json};
use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
/// How a tight archive begins.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// No header of names is longer.
const LONGEST_HEADER: u64 = 64 << 20;

/// Unpacks an adapter into `dir`, which may exist. `base` is the model it belongs to, as its folder should name it.
pub(super) fn unpack(packed: &[u8], dir: &Path, base: &str) -> Result<()> {
    let wrong = |problem: String| Error::invalid("adapter archive", problem);
    std::fs::create_dir_all(dir).map_err(Error::write(dir))?;
    // The JAX backend packs tightly, the GPU backends do not.
    let reader: Box<dyn Read> = match packed.starts_with(&GZIP) {
        true => Box::new(GzDecoder::new(packed)),
        false => Box::new(packed),
    };
    let mut archive = tar::Archive::new(reader);
    let mut found = [false; 2];
    for entry in archive.entries().map_err(|e| wrong(e.to_string()))? {
        let mut entry = entry.map_err(|e| wrong(e.to_string()))?;
        let name = entry.path().ok().and_then(|p| p.file_name().map(|n| n.to_string_lossy().into_owned()));
        let Some(at) = [CONFIG, WEIGHTS].iter().position(|n| name.as_deref() == Some(*n)) else { continue };
        if !entry.header().entry_type().is_file() {
            return Err(wrong(format!("its {} is no plain file", [CONFIG, WEIGHTS][at])));
        }
        let path = dir.join([CONFIG, WEIGHTS][at]);
        let mut file = File::create(&path).map_err(Error::write(&path))?;
        io::copy(&mut entry, &mut file).map_err(|e| wrong(format!("it ends in the middle ({e})")))?;
        found[at] = true;
    }
    if let Some(at) = found.iter().position(|f| !f) {
        return Err(wrong(format!("it holds no {}", [CONFIG, WEIGHTS][at])));
    }
    complete(dir, base)
}

/// Fills in what the packer left open.
fn complete(dir: &Path, base: &str) -> Result<()> {
    let path = dir.join(CONFIG);
    let text = std::fs::read_to_string(&path).map_err(Error::read(&path))?;
    let mut config: Value =
        serde_json::from_str(&text).map_err(|e| Error::invalid(path.display().to_string(), e.to_string()))?;
    config["base_model_name_or_path"] = json!(base);
    if config["target_modules"].as_array().is_none_or(Vec::is_empty) {
        config["target_modules"] = json!(modules(&dir.join(WEIGHTS))?);
    }
    std::fs::write(&path, format!("{config:#}\n")).map_err(Error::write(&path))
}

/// The names of the matrices that a file has an adapter for.
fn modules(path: &Path) -> Result<Vec<String>> {
    let place = || path.display().to_string();
    let mut file = File::open(path).map_err(Error::read(path))?;
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(Error::read(path))?;
    let length = u64::from_le_bytes(length);
    if length > LONGEST_HEADER {
        return Err(Error::invalid(place(), format!("a header of {length} bytes is none")));
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header).map_err(Error::read(path))?;
    let header: serde_json::Map<String, Value> =
        serde_json::from_slice(&header).map_err(|e| Error::invalid(place(), e.to_string()))?;
    let module = |name: &String| name.strip_suffix(".lora_A.weight")?.rsplit('.').next().map(str::to_owned);
    let mut modules: Vec<String> = header.keys().filter_map(module).collect();
    modules.sort();
    modules.dedup();
    match modules.is_empty() {
        true => Err(Error::invalid(place(), "it has no `….lora_A.weight`")),
        false => Ok(modules),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};

    fn safetensors(names: &[&str]) -> Vec<u8> {
        let tensors: serde_json::Map<String, Value> = (names.iter())
            .map(|n| ((*n).to_owned(), json!({"dtype": "F32", "shape": [0], "data_offsets": [0, 0]})))
            .collect();
        let header = Value::Object(tensors).to_string();
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()
    }

    fn pack(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        for (name, bytes) in files {
            let mut header = tar::Header::new_gnu();
            // Written as bytes: an honest packer would refuse the names this is about.
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            header.set_cksum();
            tar.append(&header, *bytes).unwrap();
        }
        tar.into_inner().unwrap().finish().unwrap()
    }

    #[test]
    fn an_adapter_comes_out_complete_and_nothing_else_does() {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("a/b");
        let weights = safetensors(&[
            "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
            "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight",
            "base_model.model.model.layers.1.mlp.up_proj.lora_A.weight",
        ]);
        let config: &[u8] = br#"{"peft_type": "LORA", "r": 8, "lora_alpha": 32, "target_modules": null}"#;
        let files: [(&str, &[u8]); 4] = [
            ("/adapter_config.json", config),
            ("../../adapter_model.safetensors", &weights),
            ("../x", b"no"),
            ("y", b""),
        ];
        unpack(&pack(&files), &inside, "some/base").unwrap();
        let config: Value = serde_json::from_slice(&std::fs::read(inside.join(CONFIG)).unwrap()).unwrap();
        assert_eq!(config["target_modules"], json!(["q_proj", "up_proj"]));
        assert_eq!(config["base_model_name_or_path"], "some/base");
        assert_eq!(std::fs::read(inside.join(WEIGHTS)).unwrap(), weights);
        let all: Vec<_> = std::fs::read_dir(dir.path().join("a")).unwrap().collect();
        assert_eq!(all.len(), 1, "nothing beside the folder");
        assert_eq!(std::fs::read_dir(&inside).unwrap().count(), 2);
        // Packed loosely, as the GPU backends do.
        let mut loose = Vec::new();
        GzDecoder::new(&pack(&files)[..]).read_to_end(&mut loose).unwrap();
        let other = dir.path().join("other");
        unpack(&loose, &other, "some/base").unwrap();
        assert_eq!(std::fs::read(other.join(WEIGHTS)).unwrap(), weights);
    }

    #[test]
    fn archives_that_are_not_whole_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let error = |bytes: &[u8]| unpack(bytes, dir.path(), "b").unwrap_err().to_string();
        assert!(error(b"no archive").contains("adapter archive"));
        let whole = pack(&[("adapter_config.json", b"{}")]);
        assert!(error(&whole).contains("no adapter_model.safetensors"));
        assert!(error(&whole[..whole.len() / 2]).contains("adapter archive"));
        let bad =
            pack(&[("adapter_config.json", b"{}"), ("adapter_model.safetensors", b"\xff\xff\xff\xff\xff\xff\xff\xff")]);
        assert!(error(&bad).contains("header"));
    }
}
