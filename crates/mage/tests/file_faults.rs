//! A sample of the faults of `conformance/faults`, which injects all of them.

use mage_testing::Requirement;
use std::process::Command;

/// Requires Linux, a C compiler and Python.
pub(crate) fn requirement() -> Requirement {
    if !cfg!(target_os = "linux") {
        return Err("faults are injected on Linux only".to_owned());
    }
    let missing = ["cc", "python3"].into_iter().find(|tool| Command::new(tool).arg("--version").output().is_err());
    missing.map_or(Ok(()), |tool| Err(format!("no {tool}; install it")))
}

pub(crate) fn nothing_is_lost_by_faults_of_file_operations() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../conformance/faults/run.py");
    let mut command = Command::new("python3");
    let output = command.args([script, env!("CARGO_BIN_EXE_mage"), "--stride", "150"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("0 with differences"), "{text}");
}
