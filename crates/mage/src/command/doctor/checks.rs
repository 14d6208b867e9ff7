//! Results of `mage doctor --engine`: printed one by one, or as one JSON list.

use crate::output::{BAD, BOLD, GOOD, Output, message, styled};
use serde::Serialize;

/// The result of one check.
#[derive(Serialize)]
struct Check {
    name: String,
    /// `None` if the check was skipped.
    passed: Option<bool>,
    detail: String,
}

/// All results so far; each is printed when it is recorded.
pub(super) struct Checks<'o> {
    out: &'o Output,
    all: Vec<Check>,
}

impl<'o> Checks<'o> {
    pub(super) fn new(out: &'o Output) -> Self {
        Checks { out, all: Vec::new() }
    }

    /// Records a result; returns whether the check passed.
    pub(super) fn record(&mut self, name: impl Into<String>, result: Result<String, String>) -> anyhow::Result<bool> {
        let (passed, detail) = result.map_or_else(|e| (false, e), |f| (true, f));
        self.push(name.into(), Some(passed), detail)?;
        Ok(passed)
    }

    /// Records that a check was skipped, and why, so that it is not mistaken for a pass.
    pub(super) fn skip(&mut self, name: impl Into<String>, why: impl Into<String>) -> anyhow::Result<()> {
        self.push(name.into(), None, why.into())
    }

    fn push(&mut self, name: String, passed: Option<bool>, detail: String) -> anyhow::Result<()> {
        if !self.out.json {
            let mark = match passed {
                Some(true) => styled(GOOD, "ok  "),
                Some(false) => styled(BAD, "FAIL"),
                None => styled(BOLD, "skip"),
            };
            self.out.line(format!("{mark}  {name}: {detail}"))?;
        }
        self.all.push(Check { name, passed, detail });
        Ok(())
    }

    /// Prints the JSON list with `--json`; returns the number of failed checks, and of failed and passed ones.
    pub(super) fn finish(self) -> anyhow::Result<(usize, usize)> {
        if self.out.json {
            self.out.object(&self.all)?;
        }
        let count = |wanted: bool| self.all.iter().filter(|f| f.passed == Some(wanted)).count();
        let failed = count(false);
        Ok((failed, failed + count(true)))
    }
}

/// A result with its error as text.
pub(super) fn text<T>(result: Result<T, impl Into<anyhow::Error>>) -> Result<T, String> {
    result.map_err(|e| message(e.into().as_ref()))
}
