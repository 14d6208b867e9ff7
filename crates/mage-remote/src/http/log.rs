//! Who hears that something is being waited for?

use crate::ApiKey;
use std::{fmt, sync::Arc};

type Listener = dyn Fn(&str) + Send + Sync;

/// Somebody to tell, in plain words, what a connection waits for and what it did about it. Nobody unless told otherwise.
#[derive(Clone, Default)]
pub struct StatusLog(Option<Arc<Listener>>);

impl StatusLog {
    /// Tells `who`.
    pub fn to(who: impl Fn(&str) + Send + Sync + 'static) -> Self {
        StatusLog(Some(Arc::new(who)))
    }

    /// The same without a key in any line.
    pub(crate) fn hiding(self, key: Option<&ApiKey>) -> Self {
        match (self.0, key.cloned()) {
            (Some(who), Some(key)) => StatusLog::to(move |line| who(&key.hide_in(line))),
            (who, _) => StatusLog(who),
        }
    }

    /// Says a line.
    pub fn say(&self, line: impl AsRef<str>) {
        if let Some(who) = &self.0 {
            who(line.as_ref());
        }
    }
}

impl fmt::Debug for StatusLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "StatusLog(to somebody)" } else { "StatusLog(to nobody)" })
    }
}
