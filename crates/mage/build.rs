//! Sets `MAGE_COMMIT`, which training runs record. Unset without git.

use std::process::Command;

fn main() {
    // All sources of the build.
    println!("cargo::rerun-if-changed=..");
    println!("cargo::rerun-if-changed=../../Cargo.lock");
    if let Some(head) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={head}");
    }
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return };
    let changed = git(&["status", "--porcelain", "--", ".."]).is_some_and(|files| !files.is_empty());
    println!("cargo::rustc-env=MAGE_COMMIT={commit}{}", if changed { "+changes" } else { "" });
}

/// Output of a git command, if it succeeds.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|o| o.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
