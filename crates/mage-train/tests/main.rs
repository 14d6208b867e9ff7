//! Tests of evaluation, run directories and scripted agents.

mod failing_env;
mod faulty_kuhn;
mod run_dir;
mod scripted_agents;
mod scripted_evaluation;
mod shared_memory;
mod trajectory_store;
