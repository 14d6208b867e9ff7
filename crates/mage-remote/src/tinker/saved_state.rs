//! Reference to server-side training state in a checkpoint (`tinker.json`).

use crate::Fingerprint;
use mage_engine::{Error, Result, WeightVersion, WeightsName};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Training state that a checkpoint stores in addition to the adapter.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedState {
    /// Path of the state on the server.
    pub(super) state: String,
    pub(super) steps: u64,
    pub(super) skipped: u64,
    pub(super) published: Vec<SavedWeights>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedWeights {
    pub(super) name: WeightsName,
    pub(super) version: WeightVersion,
    /// Directory of its adapter next to this file; `None` if it is the checkpoint's own adapter.
    pub(super) folder: Option<String>,
    pub(super) fingerprint: Fingerprint,
}

impl SavedState {
    /// Writes the state into a checkpoint directory.
    pub(super) fn write(&self, dir: &Path) -> Result<()> {
        let file = dir.join("training_state").join("tinker.json");
        let text = serde_json::to_string_pretty(self).map_err(|e| Error::invalid("state", e.to_string()))?;
        std::fs::write(&file, text + "\n").map_err(Error::write(&file))
    }

    /// Reads the state from a checkpoint directory.
    pub(super) fn read(dir: &Path) -> Result<Self> {
        let file = dir.join("training_state").join("tinker.json");
        let text = std::fs::read_to_string(&file).map_err(Error::read(&file))?;
        serde_json::from_str(&text).map_err(|e| Error::invalid(file.display().to_string(), e.to_string()))
    }
}

/// Copies the two files of an adapter.
pub(super) fn copy_adapter(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to).map_err(Error::write(to))?;
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        std::fs::copy(from.join(name), to.join(name)).map_err(Error::write(&to.join(name)))?;
    }
    Ok(())
}
