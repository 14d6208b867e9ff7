//! Reports of evaluations and runs whose results are known.

mod common;
mod figures;
mod input;
mod metrics;
mod runs;
mod tables;
mod transcripts;
