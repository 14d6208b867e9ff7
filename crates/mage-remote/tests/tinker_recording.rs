//! Recorder of the responses that `tests/common/tinker_double.rs` replays: runs the script against a real SkyRL at
//! `MAGE_TINKER_URL`, whose model is called `tiny` and has a vocabulary of 16 (`conformance/engines/run.py` starts
//! one).
//!
//! `MAGE_RECORD=1 cargo test -p mage-remote --test external the_script`. It writes into the repository.

use crate::common::{recorder::record, tinker_script as script};
use mage_remote::StatusLog;

pub(crate) fn the_script_is_recorded() {
    let at = |name| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
    let url = at("MAGE_TINKER_URL");
    let server = url.strip_prefix("http://").unwrap().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (address, exchanges) = runtime.block_on(record(server));
    let dir = tempfile::tempdir().unwrap();
    let mut settings = script::settings(&format!("http://{address}"), dir.path(), StatusLog::default());
    settings.server.timeouts.attempt = std::time::Duration::from_secs(60);
    settings.server.timeouts.operation = std::time::Duration::from_secs(300);
    let result = script::run_script(&settings, dir.path()).unwrap();
    eprintln!("{result:?}");
    let lines: Vec<String> = exchanges
        .lock()
        .unwrap()
        .iter()
        .filter(|l| l["path"] != "/api/v1/session_heartbeat")
        .map(ToString::to_string)
        .collect();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/recorded/tinker.jsonl");
    std::fs::write(file, lines.join("\n") + "\n").unwrap();
}
