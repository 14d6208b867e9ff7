//! Harness for tests that need data, a GPU or running servers.
//!
//! Such tests are functions without `#[test]`, listed with their requirement in a test target with `harness = false`.
//! Where the requirement is not met, the target reports them as ignored, with the reason and the command that runs
//! them. An unlisted test is an unused function, which the lints reject.

use libtest_mimic::{Arguments, Completion, Trial};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Whether tests can run; otherwise what is missing, and how to run them.
pub type Requirement = Result<(), String>;

/// Test functions with their names.
pub type Tests = Vec<(&'static str, fn())>;

/// Lists test functions by path: `tests![module::function, …]`.
#[macro_export]
macro_rules! tests {
    ($($test:path),* $(,)?) => { vec![$((stringify!($test), $test as fn())),*] };
}

/// Runs groups of tests with the options of `cargo test`.
pub fn run(groups: impl IntoIterator<Item = (Requirement, Tests)>) -> ExitCode {
    let trials = groups.into_iter().flat_map(|(requirement, tests)| {
        tests.into_iter().map(move |(name, test)| {
            let missing = requirement.clone().err();
            // `stringify!` puts spaces around `::`.
            Trial::ignorable_test(name.replace(' ', ""), move || match missing {
                Some(reason) => Ok(Completion::ignored_with(reason)),
                None => {
                    test();
                    Ok(Completion::Completed)
                }
            })
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

/// The path of a file or directory of test data: below `$MAGE_DATA`, by default `data/` at the root of the workspace.
pub fn data_path(name: &str) -> PathBuf {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data");
    std::env::var_os("MAGE_DATA").map_or_else(default, PathBuf::from).join(name)
}

/// Requires test data that the repository does not contain. If `MAGE_DATA` is set, the tests run, and fail without it.
pub fn data(name: &str) -> Requirement {
    match data_path(name).exists() || std::env::var_os("MAGE_DATA").is_some() {
        true => Ok(()),
        false => Err(format!("no data/{name}; run with MAGE_DATA=DIR, the directory of test data")),
    }
}

/// Requires environment variables, such as the addresses of servers; `hint` says what sets them.
pub fn variables(names: &[&str], hint: &str) -> Requirement {
    let missing: Vec<&str> = names.iter().copied().filter(|name| variable(name).is_none()).collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(format!("{} not set; {hint}", missing.join(", "))),
    }
}

/// A non-empty environment variable.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Requires the feature of slow suites.
pub fn slow(enabled: bool, reason: &str) -> Requirement {
    match enabled {
        true => Ok(()),
        false => Err(format!("{reason}; run with --features long")),
    }
}
