//! Tests of the command line.

mod cli;
mod cli_alfworld;
mod cli_sokoban;
mod cli_webshop;
mod coin;
mod common;
mod doctor;
mod eval_endpoint;
mod eval_faults;
mod eval_metrics;
mod examples;
#[path = "../../mage-train/tests/faulty_kuhn/mod.rs"]
mod faulty_kuhn;
mod files;
mod launch;
mod learning;
mod lora;
mod model;
mod output;
mod paper_tests;
mod recipes;
mod report;
mod run_provenance;
mod runs;
#[path = "../../mage-remote/tests/common/server.rs"]
#[allow(dead_code, reason = "a subset of the module is used")]
mod server;
mod sweep;
mod train;
mod train_plans;
mod warmstart_and_play;
