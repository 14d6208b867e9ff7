//! Model weights: the registry of published versions, checkpoints in Hugging Face format, LoRA adapters, initialisation.

pub(crate) mod atomic_write;
pub(crate) mod checkpoint;
pub(crate) mod description;
pub(crate) mod hf_config;
pub(crate) mod init;
pub(crate) mod lora;
pub(crate) mod registry;
