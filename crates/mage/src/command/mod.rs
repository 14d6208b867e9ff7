//! The commands, one module each.

pub(crate) mod bench;
pub(crate) mod doctor;
pub(crate) mod env;
pub(crate) mod eval;
pub(crate) mod launch;
pub(crate) mod man;
pub(crate) mod model;
pub(crate) mod play;
pub(crate) mod recipe;
pub(crate) mod report;
pub(crate) mod runs;
pub(crate) mod sweep;
pub(crate) mod train;
pub(crate) mod warmstart;
mod world_ceilings;
