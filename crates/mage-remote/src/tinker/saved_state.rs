//! What does a checkpoint say of a state that a server keeps?

use crate::Fingerprint;
use mage_engine::{AdapterName, Error, Result, WeightVersion};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What a checkpoint says besides the adapter.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Saved {
    /// Where the server keeps the state.
    pub(super) state: String,
    pub(super) steps: u64,
    pub(super) skipped: u64,
    pub(super) published: Vec<SavedRelease>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedRelease {
    pub(super) name: AdapterName,
    pub(super) version: WeightVersion,
    /// Its adapter's folder beside this file; the adapter of the checkpoint itself where there is none.
    pub(super) folder: Option<String>,
    pub(super) fingerprint: Fingerprint,
}

impl Saved {
    /// Writes it into the checkpoint in a folder.
    pub(super) fn write(&self, dir: &Path) -> Result<()> {
        let file = dir.join("training_state").join("tinker.json");
        let text = serde_json::to_string_pretty(self).map_err(|e| Error::invalid("state", e.to_string()))?;
        std::fs::write(&file, text + "\n").map_err(Error::write(&file))
    }

    /// What the checkpoint in a folder says.
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
