//! How does training go on after a stop, as if there had been none?

use super::NativeTrainer;
use crate::checkpoint::{self, NumberFormat};
use crate::config::Config;
use crate::layout::Tensor;
use crate::published::Release;
use mage_engine::{AdapterName, Error, Result, WeightVersion};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// What is saved besides weights and moments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    pub(super) steps: u64,
    pub(super) skipped: u64,
    pub(super) skipped_in_a_row: u32,
    published: Vec<PublishedState>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedState {
    name: AdapterName,
    version: WeightVersion,
    file: String,
}

impl NativeTrainer {
    /// Writes the model as a folder that `transformers` loads, and beside it `training_state/`: moments, counters and
    /// every published set of weights.
    pub(super) fn write_state(&self, dir: &Path) -> Result<()> {
        if self.pending {
            return Err(Error::invalid("save", "a gradient waits for its step; call optim_step first"));
        }
        self.save_model(dir, NumberFormat::F32)?;
        let folder = dir.join("training_state");
        std::fs::create_dir_all(&folder).map_err(Error::write(&folder))?;
        let moments = [("first.", &self.first[..]), ("second.", &self.second[..])];
        checkpoint::write_tensors(&folder.join("optimizer.safetensors"), &moments, self.tensors(), NumberFormat::F32)?;
        let mut state = self.state.clone();
        state.published.clear();
        for (i, (name, release)) in self.shared.published.all().into_iter().enumerate() {
            let file = format!("published-{i}.safetensors");
            let flat = [("", &release.weights.flat[..])];
            checkpoint::write_tensors(&folder.join(&file), &flat, self.tensors(), NumberFormat::F32)?;
            state.published.push(PublishedState { name, version: release.version, file });
        }
        let path = folder.join("state.json");
        let text = serde_json::to_string_pretty(&state).map_err(|e| Error::invalid("state", e.to_string()))?;
        std::fs::write(&path, text + "\n").map_err(Error::write(&path))
    }

    pub(super) fn read_state(&mut self, dir: &Path) -> Result<()> {
        let folder = dir.join("training_state");
        let path = folder.join("state.json");
        let text = std::fs::read_to_string(&path).map_err(Error::read(&path))?;
        let state: State =
            serde_json::from_str(&text).map_err(|e| Error::invalid(path.display().to_string(), e.to_string()))?;
        let saved = Config::read(&dir.join("config.json"))?;
        if saved != self.shared.model.config {
            return Err(Error::invalid(dir.display().to_string(), "its config.json is of another model than this one"));
        }
        // Everything is read before anything is changed.
        let tensors = self.tensors();
        let flat = checkpoint::read_folder(dir, tensors, &[])?;
        let len = flat.len();
        let shifted = |prefix: &str, by: usize| {
            tensors
                .iter()
                .map(move |t| Tensor {
                    name: format!("{prefix}{}", t.name),
                    shape: t.shape.clone(),
                    range: t.range.start + by..t.range.end + by,
                })
                .collect::<Vec<_>>()
        };
        let both = [shifted("first.", 0), shifted("second.", len)].concat();
        let mut moments = checkpoint::read_tensors(&[folder.join("optimizer.safetensors")], &both, &[])?;
        let mut published = BTreeMap::new();
        for p in &state.published {
            let plain = Path::new(&p.file).file_name().is_some_and(|n| n == p.file.as_str());
            if !plain {
                return Err(Error::invalid(
                    path.display().to_string(),
                    format!("`{}` is not a plain file name", p.file),
                ));
            }
            let flat = checkpoint::read_tensors(&[folder.join(&p.file)], tensors, &[])?;
            let weights = Arc::new(self.shared.pool.install(|| self.shared.model.weights(flat)));
            published.insert(p.name.clone(), Release { version: p.version, weights });
        }
        self.second = moments.split_off(len);
        self.first = moments;
        self.weights = self.shared.pool.install(|| self.shared.model.weights(flat));
        self.grads.fill(0.0);
        self.pending = false;
        self.state = State { published: Vec::new(), ..state };
        self.shared.published.replace(published);
        Ok(())
    }
}
