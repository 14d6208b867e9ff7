//! Reading and writing of safetensors checkpoints, single or sharded.
//!
//! Formats that can run code (pickle) are refused. All headers are compared with the expected tensors before any data is
//! read. Tensors are then read one at a time, so that peak memory is the size of the model.

use crate::weights::atomic_write::replace;
use mage_engine::model::ParamTensor;
use mage_engine::{Error, Result};
use safetensors::tensor::{Dtype, View};
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The source of the expected shapes of a model, for error messages.
pub(crate) const CONFIG_SOURCE: &str = "config.json";
/// Maximum header size in bytes.
const MAX_HEADER: u64 = 100 << 20;

/// A floating-point format in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightDtype {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
}

impl WeightDtype {
    /// The name in `config.json`.
    pub fn config_name(self) -> &'static str {
        match self {
            WeightDtype::F32 => "float32",
            WeightDtype::F16 => "float16",
            WeightDtype::Bf16 => "bfloat16",
        }
    }

    fn bytes(self) -> usize {
        if self == WeightDtype::F32 { 4 } else { 2 }
    }
}

/// A tensor's entry in the header of a safetensors file.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorEntry {
    /// Element type.
    pub dtype: WeightDtype,
    /// Shape.
    pub shape: Vec<usize>,
    /// Byte offset of the data after the header.
    pub start: u64,
    /// Byte offset of the end of the data.
    pub end: u64,
}

#[derive(Deserialize)]
struct RawTensorEntry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

/// Parses the JSON header of a safetensors file with `data_len` bytes of tensor data. Fails on unsupported dtypes and on
/// inconsistent shapes or offsets.
pub fn parse_header(header: &[u8], data_len: u64) -> Result<BTreeMap<String, TensorEntry>> {
    let wrong = |subject: &str, problem: String| Error::invalid(subject, problem);
    let text = std::str::from_utf8(header).map_err(|e| wrong("header", e.to_string()))?;
    let raw: BTreeMap<String, serde_json::Value> =
        serde_json::from_str(text).map_err(|e| wrong("header", e.to_string()))?;
    let mut entries = BTreeMap::new();
    for (name, value) in raw {
        if name == "__metadata__" {
            continue;
        }
        let e: RawTensorEntry = serde_json::from_value(value).map_err(|e| wrong(&name, e.to_string()))?;
        let dtype = match e.dtype.as_str() {
            "F32" => WeightDtype::F32,
            "F16" => WeightDtype::F16,
            "BF16" => WeightDtype::Bf16,
            other => return Err(wrong(&name, format!("dtype {other} is not supported; use F32, F16 or BF16"))),
        };
        let bytes = e.shape.iter().try_fold(dtype.bytes() as u64, |n, &d| n.checked_mul(d as u64));
        let (start, end) = e.data_offsets;
        if end > data_len || start > end {
            return Err(wrong(
                &name,
                format!("bytes {start} to {end} are outside the {data_len} bytes of the file; it may be truncated"),
            ));
        }
        if bytes != Some(end - start) {
            return Err(wrong(&name, format!("shape {:?} does not match its {} bytes", e.shape, end - start)));
        }
        entries.insert(name, TensorEntry { dtype, shape: e.shape, start, end });
    }
    Ok(entries)
}

/// An opened safetensors file.
struct Shard {
    path: PathBuf,
    file: File,
    data_at: u64,
    entries: BTreeMap<String, TensorEntry>,
}

impl Shard {
    fn open(path: &Path) -> Result<Self> {
        let mut file = File::open(path).map_err(Error::read(path))?;
        let name = path.display().to_string();
        let len = file.metadata().map_err(Error::read(path))?.len();
        let mut size = [0; 8];
        if len < 8 {
            return Err(Error::invalid(name, format!("{len} bytes are too few for a safetensors file")));
        }
        file.read_exact(&mut size).map_err(Error::read(path))?;
        let size = u64::from_le_bytes(size);
        if size > MAX_HEADER || size > len - 8 {
            return Err(Error::invalid(
                name,
                format!("a header of {size} bytes does not fit its {len}; it is truncated or not a safetensors file"),
            ));
        }
        let mut header = vec![0; size as usize];
        file.read_exact(&mut header).map_err(Error::read(path))?;
        let entries = parse_header(&header, len - 8 - size).map_err(|e| Error::invalid(name, e.to_string()))?;
        Ok(Shard { path: path.to_owned(), file, data_at: 8 + size, entries })
    }

    fn read(&mut self, name: &str, out: &mut [f32]) -> Result<()> {
        let entry = &self.entries[name];
        self.file.seek(SeekFrom::Start(self.data_at + entry.start)).map_err(Error::read(&self.path))?;
        let width = entry.dtype.bytes();
        let mut bytes = vec![0; width * out.len().min(1 << 20)];
        for out in out.chunks_mut(1 << 20) {
            let bytes = &mut bytes[..width * out.len()];
            self.file.read_exact(bytes).map_err(Error::read(&self.path))?;
            match entry.dtype {
                WeightDtype::F32 => {
                    for (x, b) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                        *x = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                    }
                }
                WeightDtype::F16 => {
                    for (x, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                        *x = half::f16::from_le_bytes([b[0], b[1]]).to_f32();
                    }
                }
                WeightDtype::Bf16 => {
                    for (x, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                        *x = half::bf16::from_le_bytes([b[0], b[1]]).to_f32();
                    }
                }
            }
        }
        Ok(())
    }
}

/// Reads the tensors of a model directory into one flat buffer. Tensors named in `optional` may exist and are not read.
pub(crate) fn read_folder(dir: &Path, tensors: &[ParamTensor], optional: &[&str]) -> Result<Vec<f32>> {
    read_tensors(&folder_paths(dir)?, tensors, optional, CONFIG_SOURCE)
}

/// The weight files of a model directory.
pub(crate) fn folder_paths(dir: &Path) -> Result<Vec<PathBuf>> {
    let index = dir.join("model.safetensors.index.json");
    let single = dir.join("model.safetensors");
    if single.exists() {
        Ok(vec![single])
    } else if index.exists() {
        shard_paths(dir, &index)
    } else {
        let other = std::fs::read_dir(dir).map_err(Error::read(dir))?.flatten().map(|e| e.file_name());
        let pickled = other.filter_map(|n| n.into_string().ok()).any(|n| n.ends_with(".bin") || n.ends_with(".pt"));
        let hint = if pickled { "; .bin and .pt files can run code and are not read: convert them" } else { "" };
        let problem = format!("no model.safetensors and no model.safetensors.index.json{hint}");
        Err(Error::invalid(dir.display().to_string(), problem))
    }
}

fn shard_paths(dir: &Path, index: &Path) -> Result<Vec<PathBuf>> {
    #[derive(Deserialize)]
    struct ShardIndex {
        weight_map: BTreeMap<String, String>,
    }
    let name = || index.display().to_string();
    let text = std::fs::read_to_string(index).map_err(Error::read(index))?;
    let ShardIndex { weight_map } = serde_json::from_str(&text).map_err(|e| Error::invalid(name(), e.to_string()))?;
    let mut files: Vec<String> = weight_map.into_values().collect();
    files.sort();
    files.dedup();
    if files.is_empty() {
        return Err(Error::invalid(name(), "its weight_map names no file"));
    }
    files
        .into_iter()
        .map(|f| {
            // A file in the same directory: an index must not cause reads elsewhere.
            let plain = Path::new(&f).file_name().is_some_and(|n| n == f.as_str());
            if plain {
                Ok(dir.join(f))
            } else {
                Err(Error::invalid(name(), format!("shard `{f}` is not a plain file name")))
            }
        })
        .collect()
}

/// Opened files whose headers match the expected tensors.
struct OpenCheckpoint {
    shards: Vec<Shard>,
    /// Index of the shard of each tensor.
    shard_of: HashMap<String, usize>,
}

impl OpenCheckpoint {
    fn new(paths: &[PathBuf], tensors: &[ParamTensor], optional: &[&str], source: &str) -> Result<Self> {
        let shards = paths.iter().map(|p| Shard::open(p)).collect::<Result<Vec<_>>>()?;
        let dir = paths[0].parent().unwrap_or(Path::new(".")).display().to_string();
        let mut shard_of: HashMap<String, usize> = HashMap::new();
        for (i, shard) in shards.iter().enumerate() {
            for name in shard.entries.keys() {
                if shard_of.insert(name.clone(), i).is_some() {
                    return Err(Error::invalid(dir, format!("tensor `{name}` is in two files")));
                }
            }
        }
        let expected: HashSet<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
        let unexpected = shard_of
            .keys()
            .map(String::as_str)
            .filter(|k| !expected.contains(k) && !optional.contains(k) && !k.ends_with(".rotary_emb.inv_freq"))
            .min();
        for t in tensors {
            let Some(&i) = shard_of.get(&t.name) else {
                let hint = unexpected.map(|k| format!("; there is an unexpected `{k}`")).unwrap_or_default();
                return Err(Error::invalid(dir, format!("tensor `{}` is missing{hint}", t.name)));
            };
            let found = &shards[i].entries[&t.name].shape;
            if *found != t.shape {
                return Err(Error::invalid(
                    dir,
                    format!("tensor `{}` has shape {found:?}, but {source} requires {:?}", t.name, t.shape),
                ));
            }
        }
        if let Some(name) = unexpected {
            return Err(Error::invalid(dir, format!("tensor `{name}` is unexpected according to {source}")));
        }
        Ok(OpenCheckpoint { shards, shard_of })
    }
}

/// Reads tensors from files into one flat buffer, after checking that all exist with the expected shapes. Fails on
/// non-finite values. `source` names the origin of the expected shapes in error messages.
pub(crate) fn read_tensors(
    paths: &[PathBuf],
    tensors: &[ParamTensor],
    optional: &[&str],
    source: &str,
) -> Result<Vec<f32>> {
    let OpenCheckpoint { mut shards, shard_of } = OpenCheckpoint::new(paths, tensors, optional, source)?;
    let mut flat = vec![0.0; tensors.iter().map(|t| t.range.end).max().unwrap_or(0)];
    for t in tensors {
        let (shard, values) = (&mut shards[shard_of[&t.name]], &mut flat[t.range.clone()]);
        shard.read(&t.name, values)?;
        if let Some(x) = values.iter().find(|x| !x.is_finite()) {
            let problem = format!("tensor `{}` holds the non-finite value {x}; use an earlier checkpoint", t.name);
            return Err(Error::invalid(shard.path.display().to_string(), problem));
        }
    }
    Ok(flat)
}

/// The names of a file's tensors.
pub(crate) fn tensor_names(path: &Path) -> Result<Vec<String>> {
    Ok(Shard::open(path)?.entries.into_keys().collect())
}

/// Storage of a model's weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredWeights {
    /// Number of files.
    pub files: usize,
    /// Total size in bytes.
    pub bytes: u64,
    /// The distinct element types.
    pub dtypes: Vec<WeightDtype>,
}

/// Checks a model directory like [`read_folder`], reading only headers.
pub(crate) fn inspect_folder(dir: &Path, tensors: &[ParamTensor], optional: &[&str]) -> Result<StoredWeights> {
    let OpenCheckpoint { shards, .. } = OpenCheckpoint::new(&folder_paths(dir)?, tensors, optional, CONFIG_SOURCE)?;
    let mut dtypes: Vec<WeightDtype> = Vec::new();
    let mut bytes = 0;
    for entry in shards.iter().flat_map(|s| s.entries.values()) {
        bytes += entry.end - entry.start;
        if !dtypes.contains(&entry.dtype) {
            dtypes.push(entry.dtype);
        }
    }
    Ok(StoredWeights { files: shards.len(), bytes, dtypes })
}

/// A tensor to write. Its values are produced when it is written, so that only one tensor is in memory at a time.
struct TensorWriter<'a> {
    tensor: &'a ParamTensor,
    values: &'a dyn Fn(&ParamTensor) -> Cow<'a, [f32]>,
    format: WeightDtype,
}

impl View for &TensorWriter<'_> {
    fn dtype(&self) -> Dtype {
        match self.format {
            WeightDtype::F32 => Dtype::F32,
            WeightDtype::F16 => Dtype::F16,
            WeightDtype::Bf16 => Dtype::BF16,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.tensor.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let values = (self.values)(self.tensor);
        let bytes: Vec<u8> = match self.format {
            WeightDtype::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            WeightDtype::F16 => values.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect(),
            WeightDtype::Bf16 => values.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect(),
        };
        bytes.into()
    }

    fn data_len(&self) -> usize {
        self.tensor.range.len() * self.format.bytes()
    }
}

/// Writes the tensors of several flat buffers to one file. Each buffer's prefix is prepended to its tensor names.
pub(crate) fn write_tensors(
    path: &Path,
    sets: &[(&str, &[f32])],
    tensors: &[ParamTensor],
    format: WeightDtype,
) -> Result<()> {
    let parts: Vec<_> =
        sets.iter().map(|(_, flat)| move |t: &ParamTensor| Cow::Borrowed(&flat[t.range.clone()])).collect();
    let writers = sets.iter().zip(&parts).flat_map(|((prefix, _), values)| {
        tensors.iter().map(move |tensor| (format!("{prefix}{}", tensor.name), TensorWriter { tensor, values, format }))
    });
    write_all(path, &writers.collect::<Vec<_>>())
}

/// Writes tensors whose values `generate` returns, one tensor at a time.
pub(crate) fn write_generated(
    path: &Path,
    tensors: &[ParamTensor],
    format: WeightDtype,
    generate: impl Fn(&ParamTensor) -> Vec<f32>,
) -> Result<()> {
    let values = |t: &ParamTensor| Cow::Owned(generate(t));
    let writers = tensors.iter().map(|tensor| (tensor.name.clone(), TensorWriter { tensor, values: &values, format }));
    write_all(path, &writers.collect::<Vec<_>>())
}

fn write_all(path: &Path, writers: &[(String, TensorWriter<'_>)]) -> Result<()> {
    // `transformers` requires the `format` entry.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let views = writers.iter().map(|(name, view)| (name.as_str(), view));
    replace(path, |part| {
        safetensors::serialize_to_file(views, Some(metadata), part)
            .map_err(|e| Error::engine("native", format!("writing {}: {e}", path.display())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::hf_config::tests::tiny;
    use crate::weights::init::new_weights;
    use mage_rng::Seed;

    fn written(format: WeightDtype) -> (tempfile::TempDir, mage_engine::model::ParamLayout, Vec<f32>) {
        let layout = tiny().param_layout();
        let flat = new_weights(&tiny(), 0.02, Seed::new(1));
        let dir = tempfile::tempdir().unwrap();
        write_tensors(&dir.path().join("model.safetensors"), &[("", &flat)], &layout.tensors, format).unwrap();
        (dir, layout, flat)
    }

    #[test]
    fn reading_inverts_writing() {
        let (dir, layout, flat) = written(WeightDtype::F32);
        assert!(read_folder(dir.path(), &layout.tensors, &[]).unwrap() == flat);
        for (format, error) in [(WeightDtype::Bf16, 4e-3), (WeightDtype::F16, 5e-4)] {
            let (dir, layout, flat) = written(format);
            let back = read_folder(dir.path(), &layout.tensors, &[]).unwrap();
            assert!(back.iter().zip(&flat).all(|(a, b)| (a - b).abs() <= error * b.abs() + 1e-7), "{format:?}");
        }
    }

    #[test]
    fn shards_are_joined() {
        let layout = tiny().param_layout();
        let flat = new_weights(&tiny(), 0.02, Seed::new(1));
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = layout.tensors.split_at(7);
        write_tensors(&dir.path().join("a.safetensors"), &[("", &flat)], a, WeightDtype::F32).unwrap();
        write_tensors(&dir.path().join("b.safetensors"), &[("", &flat)], b, WeightDtype::F32).unwrap();
        let map: BTreeMap<_, _> = (a.iter().map(|t| (&t.name, "a.safetensors")))
            .chain(b.iter().map(|t| (&t.name, "b.safetensors")))
            .collect();
        let index = dir.path().join("model.safetensors.index.json");
        std::fs::write(&index, serde_json::json!({"weight_map": map}).to_string()).unwrap();
        assert!(read_folder(dir.path(), &layout.tensors, &[]).unwrap() == flat);
        std::fs::write(&index, r#"{"weight_map": {"x": "../b.safetensors"}}"#).unwrap();
        let e = read_folder(dir.path(), &layout.tensors, &[]).unwrap_err().to_string();
        assert!(e.contains("plain file name"), "{e}");
    }

    #[test]
    fn mismatched_tensors_are_named_in_errors() {
        let (dir, layout, _) = written(WeightDtype::F32);
        let refusal =
            |tensors: &[ParamTensor]| read_folder(dir.path(), tensors, &[]).map(|_| ()).unwrap_err().to_string();
        let mut misshapen = layout.tensors.clone();
        misshapen[2].shape.reverse();
        assert!(refusal(&misshapen).contains("q_proj.weight` has shape"), "{}", refusal(&misshapen));
        let mut misnamed = layout.tensors.clone();
        misnamed[3].name = "model.layers.0.self_attn.key.weight".to_owned();
        let e = refusal(&misnamed);
        assert!(
            e.contains("key.weight` is missing") && e.contains("unexpected `model.layers.0.self_attn.k_proj"),
            "{e}"
        );
        assert!(refusal(&layout.tensors[..5]).contains("is unexpected"));

        for (bad, format) in
            [(f32::NAN, WeightDtype::F32), (f32::NEG_INFINITY, WeightDtype::F32), (1e9, WeightDtype::F16)]
        {
            let (dir, layout, mut flat) = written(format);
            let at = &layout.tensors[4];
            flat[at.range.start + 1] = bad;
            write_tensors(&dir.path().join("model.safetensors"), &[("", &flat)], &layout.tensors, format).unwrap();
            let e = read_folder(dir.path(), &layout.tensors, &[]).unwrap_err().to_string();
            assert!(e.contains("model.safetensors") && e.contains(&format!("`{}` holds", at.name)), "{e}");
        }

        let path = dir.path().join("model.safetensors");
        let whole = std::fs::read(&path).unwrap();
        for len in [0, 4, 8, 100, whole.len() / 2, whole.len() - 1] {
            std::fs::write(&path, &whole[..len]).unwrap();
            let e = refusal(&layout.tensors);
            assert!(e.contains("model.safetensors"), "{len} bytes: {e}");
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::write(dir.path().join("pytorch_model.bin"), "x").unwrap();
        assert!(refusal(&layout.tensors).contains("can run code"));
    }

    #[test]
    fn inconsistent_headers_are_refused() {
        let header = |text: &str| parse_header(text.as_bytes(), 16);
        assert_eq!(
            header(r#"{"__metadata__":{},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}"#).unwrap().len(),
            1
        );
        for bad in [
            r#"{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,15]}}"#,
            r#"{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[1,17]}}"#,
            r#"{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[16,0]}}"#,
            r#"{"a":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}}"#,
            r#"{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}"#,
            r#"{"a":1}"#,
            "[",
        ] {
            let e = header(bad).unwrap_err().to_string();
            assert!(e.starts_with('a') || e.starts_with("header"), "{e}");
        }
    }
}
