//! Tests of the native engine on the CPU.

mod adapters;
mod corrupted_files;
mod model_directory;
mod requests;
mod sampling;
mod scheduling;
