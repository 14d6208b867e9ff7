//! Tests of remote engines against doubles on loopback.

mod common;
mod faults;
mod tinker_faults;
mod tinker_keys;
mod tinker_kills;
mod tinker_nonfinite;
mod tinker_pool;
mod tinker_timeouts;
mod vllm_faults;
mod vllm_pool;
mod vllm_retries;
mod wrong_server;
