//! Log of connection status: what a client waits for and what it did about it.

use crate::ApiKey;
use mage_engine::Hint;
use std::{fmt, sync::Arc};

type Listener = dyn Fn(&str, &[Hint]) + Send + Sync;

/// Receives status lines for the user. The default discards them.
#[derive(Clone, Default)]
pub struct StatusLog(Option<Arc<Listener>>);

impl StatusLog {
    /// Sends lines to `listener`, each with what the user can do.
    pub fn new(listener: impl Fn(&str, &[Hint]) + Send + Sync + 'static) -> Self {
        StatusLog(Some(Arc::new(listener)))
    }

    /// Redacts a key from every line.
    pub(crate) fn redacting(self, key: Option<&ApiKey>) -> Self {
        match (self.0, key.cloned()) {
            (Some(listener), Some(key)) => StatusLog::new(move |line, hints| listener(&key.redact(line), hints)),
            (listener, _) => StatusLog(listener),
        }
    }

    /// Logs a line.
    pub fn log(&self, line: impl AsRef<str>) {
        self.log_with_hints(line, &[]);
    }

    /// Logs a line with what the user can do.
    pub(crate) fn log_with_hints(&self, line: impl AsRef<str>, hints: &[Hint]) {
        if let Some(listener) = &self.0 {
            listener(line.as_ref(), hints);
        }
    }
}

impl fmt::Debug for StatusLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "StatusLog(enabled)" } else { "StatusLog(disabled)" })
    }
}
