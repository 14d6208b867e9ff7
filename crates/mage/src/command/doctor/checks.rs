//! What was found of engines elsewhere, and how is it told?

use crate::output::{BAD, BOLD, GOOD, Output, styled};
use serde::Serialize;

/// One thing that was looked at.
#[derive(Serialize)]
struct Check {
    what: String,
    /// `None` where it could not be looked at.
    good: Option<bool>,
    found: String,
}

/// All that was found, told as it is found.
pub(super) struct Checks<'o> {
    out: &'o Output,
    all: Vec<Check>,
}

impl<'o> Checks<'o> {
    pub(super) fn new(out: &'o Output) -> Self {
        Checks { out, all: Vec::new() }
    }

    /// Notes what was found; whether it is good.
    pub(super) fn record(&mut self, what: impl Into<String>, found: Result<String, String>) -> anyhow::Result<bool> {
        let (good, found) = found.map_or_else(|e| (false, e), |f| (true, f));
        self.tell(what.into(), Some(good), found)?;
        Ok(good)
    }

    /// Notes what was not looked at, and why: nobody should take it for good.
    pub(super) fn skip(&mut self, what: impl Into<String>, why: impl Into<String>) -> anyhow::Result<()> {
        self.tell(what.into(), None, why.into())
    }

    fn tell(&mut self, what: String, good: Option<bool>, found: String) -> anyhow::Result<()> {
        if !self.out.json {
            let mark = match good {
                Some(true) => styled(GOOD, "yes"),
                Some(false) => styled(BAD, "no "),
                None => styled(BOLD, "???"),
            };
            self.out.line(format!("{mark}  {what}: {found}"))?;
        }
        self.all.push(Check { what, good, found });
        Ok(())
    }

    /// All of it, for programs; how many answers are no, and of how many.
    pub(super) fn end(self) -> anyhow::Result<(usize, usize)> {
        if self.out.json {
            self.out.object(&self.all)?;
        }
        let answers = |wanted: bool| self.all.iter().filter(|f| f.good == Some(wanted)).count();
        let bad = answers(false);
        Ok((bad, bad + answers(true)))
    }
}

/// An error as it is told.
pub(super) fn text<T>(result: Result<T, impl ToString>) -> Result<T, String> {
    result.map_err(|e| e.to_string())
}
