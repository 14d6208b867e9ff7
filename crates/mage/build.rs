//! Which commit is this? Runs keep the answer; without git there is none.

use std::process::Command;

fn main() {
    // Whatever is built is built from these.
    println!("cargo::rerun-if-changed=..");
    println!("cargo::rerun-if-changed=../../Cargo.lock");
    if let Some(head) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={head}");
    }
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return };
    let changed = git(&["status", "--porcelain", "--", ".."]).is_some_and(|files| !files.is_empty());
    println!("cargo::rustc-env=MAGE_COMMIT={commit}{}", if changed { "+changes" } else { "" });
}

/// What git says here, if anything.
fn git(args: &[&str]) -> Option<String> {
    let said = Command::new("git").args(args).output().ok().filter(|o| o.status.success())?;
    Some(String::from_utf8(said.stdout).ok()?.trim().to_owned())
}
