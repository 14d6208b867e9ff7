//! Tests of prompts, credit, metrics and the meta-episode.

mod common;
mod credit_options;
mod credit_properties;
mod credit_support;
mod credit_vectors;
mod meta_episode;
mod metrics_curves;
mod metrics_intervals;
mod prompt_methods;
mod prompts_alfworld;
mod prompts_default;
mod prompts_kuhn;
mod prompts_sokoban;
mod prompts_tictactoe;
mod prompts_webshop;
mod transitions;
