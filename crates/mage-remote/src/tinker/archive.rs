//! Extraction of an adapter from a server's archive.
//!
//! Only the two files of an adapter are extracted, by file name, whatever paths the archive contains. SkyRL leaves
//! `target_modules` empty; it is filled in from the tensors, since PEFT would silently use its own default.

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
/// Magic bytes of gzip.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Maximum size of a decompressed archive, as a multiple of its compressed size, in addition to [`MAX_SMALL_BYTES`].
/// Weights hardly shrink, unless they are zeros.
const MAX_EXPANSION: u64 = 16;
/// Size up to which a decompressed archive is accepted, whatever its compressed size.
const MAX_SMALL_BYTES: u64 = 64 << 20;
/// Maximum size of a safetensors header.
const MAX_HEADER_BYTES: u64 = 64 << 20;

/// Extracts an adapter into `dir`, which may exist. `base` is the base model named in its config.
pub(super) fn unpack_adapter(packed: &[u8], dir: &Path, base: &str) -> Result<()> {
    let wrong = |problem: String| Error::invalid("adapter archive", problem);
    std::fs::create_dir_all(dir).map_err(Error::write(dir))?;
    // The JAX backend compresses with gzip, the GPU backends do not.
    let max_bytes = MAX_SMALL_BYTES + MAX_EXPANSION * packed.len() as u64;
    let reader: Box<dyn Read> = match packed.starts_with(&GZIP) {
        true => Box::new(LimitedReader { inner: GzDecoder::new(packed), remaining: max_bytes }),
        false => Box::new(packed),
    };
    let mut archive = tar::Archive::new(reader);
    let mut found = [false; 2];
    for entry in archive.entries().map_err(|e| wrong(e.to_string()))? {
        let mut entry = entry.map_err(|e| wrong(e.to_string()))?;
        let name = entry.path().ok().and_then(|p| p.file_name().map(|n| n.to_string_lossy().into_owned()));
        let Some(at) = [CONFIG, WEIGHTS].iter().position(|n| name.as_deref() == Some(*n)) else { continue };
        if !entry.header().entry_type().is_file() {
            return Err(wrong(format!("{} is not a regular file", [CONFIG, WEIGHTS][at])));
        }
        let path = dir.join([CONFIG, WEIGHTS][at]);
        let mut file = File::create(&path).map_err(Error::write(&path))?;
        io::copy(&mut entry, &mut file).map_err(|e| wrong(format!("truncated or too large ({e})")))?;
        found[at] = true;
    }
    if let Some(at) = found.iter().position(|f| !f) {
        return Err(wrong(format!("no {}", [CONFIG, WEIGHTS][at])));
    }
    complete_config(dir, base)
}

/// A reader that fails beyond a number of bytes.
struct LimitedReader<R> {
    inner: R,
    remaining: u64,
}

impl<R: Read> Read for LimitedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        let exceeded = || io::Error::other("the decompressed archive is too large for its compressed size");
        self.remaining = self.remaining.checked_sub(read as u64).ok_or_else(exceeded)?;
        Ok(read)
    }
}

/// Fills in the base model and `target_modules`.
fn complete_config(dir: &Path, base: &str) -> Result<()> {
    let path = dir.join(CONFIG);
    let text = std::fs::read_to_string(&path).map_err(Error::read(&path))?;
    let mut config: Value =
        serde_json::from_str(&text).map_err(|e| Error::invalid(path.display().to_string(), e.to_string()))?;
    config["base_model_name_or_path"] = json!(base);
    if config["target_modules"].as_array().is_none_or(Vec::is_empty) {
        config["target_modules"] = json!(adapted_modules(&dir.join(WEIGHTS))?);
    }
    std::fs::write(&path, format!("{config:#}\n")).map_err(Error::write(&path))
}

/// Names of the modules that have an adapter.
fn adapted_modules(path: &Path) -> Result<Vec<String>> {
    let subject = || path.display().to_string();
    let mut file = File::open(path).map_err(Error::read(path))?;
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(Error::read(path))?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        return Err(Error::invalid(subject(), format!("invalid header of {length} bytes")));
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header).map_err(Error::read(path))?;
    let header: serde_json::Map<String, Value> =
        serde_json::from_slice(&header).map_err(|e| Error::invalid(subject(), e.to_string()))?;
    let module = |name: &String| name.strip_suffix(".lora_A.weight")?.rsplit('.').next().map(str::to_owned);
    let mut modules: Vec<String> = header.keys().filter_map(module).collect();
    modules.sort();
    modules.dedup();
    match modules.is_empty() {
        true => Err(Error::invalid(subject(), "no `….lora_A.weight` tensor")),
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
            // Written as bytes, since `tar` rejects the names tested here.
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            header.set_cksum();
            tar.append(&header, *bytes).unwrap();
        }
        tar.into_inner().unwrap().finish().unwrap()
    }

    #[test]
    fn only_the_adapter_files_are_extracted() {
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
        unpack_adapter(&pack(&files), &inside, "some/base").unwrap();
        let config: Value = serde_json::from_slice(&std::fs::read(inside.join(CONFIG)).unwrap()).unwrap();
        assert_eq!(config["target_modules"], json!(["q_proj", "up_proj"]));
        assert_eq!(config["base_model_name_or_path"], "some/base");
        assert_eq!(std::fs::read(inside.join(WEIGHTS)).unwrap(), weights);
        let all: Vec<_> = std::fs::read_dir(dir.path().join("a")).unwrap().collect();
        assert_eq!(all.len(), 1, "only the directory");
        assert_eq!(std::fs::read_dir(&inside).unwrap().count(), 2);
        // Not compressed, as by the GPU backends.
        let mut uncompressed = Vec::new();
        GzDecoder::new(&pack(&files)[..]).read_to_end(&mut uncompressed).unwrap();
        let other = dir.path().join("other");
        unpack_adapter(&uncompressed, &other, "some/base").unwrap();
        assert_eq!(std::fs::read(other.join(WEIGHTS)).unwrap(), weights);
    }

    #[test]
    fn archives_that_expand_too_far_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let zeros = vec![0; (MAX_SMALL_BYTES + (1 << 24)) as usize];
        let packed = pack(&[("adapter_config.json", b"{}"), ("adapter_model.safetensors", &zeros)]);
        assert!(MAX_EXPANSION * packed.len() as u64 <= 1 << 24);
        let error = unpack_adapter(&packed, dir.path(), "b").unwrap_err().to_string();
        assert!(error.contains("too large"), "{error}");
    }

    #[test]
    fn incomplete_archives_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let error = |bytes: &[u8]| unpack_adapter(bytes, dir.path(), "b").unwrap_err().to_string();
        assert!(error(b"no archive").contains("adapter archive"));
        let whole = pack(&[("adapter_config.json", b"{}")]);
        assert!(error(&whole).contains("no adapter_model.safetensors"));
        assert!(error(&whole[..whole.len() / 2]).contains("adapter archive"));
        let bad =
            pack(&[("adapter_config.json", b"{}"), ("adapter_model.safetensors", b"\xff\xff\xff\xff\xff\xff\xff\xff")]);
        assert!(error(&bad).contains("header"));
    }
}
