//! Who hears that something is being waited for?

use crate::ApiKey;
use std::{fmt, sync::Arc};

type Listener = dyn Fn(&str) + Send + Sync;

/// Somebody to tell, in plain words, what a connection waits for and what it did about it. Nobody unless told otherwise.
#[derive(Clone, Default)]
pub struct Notices(Option<Arc<Listener>>);

impl Notices {
    /// Tells `who`.
    pub fn to(who: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Notices(Some(Arc::new(who)))
    }

    /// The same without a key in any line.
    pub(crate) fn hiding(self, key: Option<&ApiKey>) -> Self {
        match (self.0, key.cloned()) {
            (Some(who), Some(key)) => Notices::to(move |line| who(&key.hide_in(line))),
            (who, _) => Notices(who),
        }
    }

    /// Says a line.
    pub fn say(&self, line: impl AsRef<str>) {
        if let Some(who) = &self.0 {
            who(line.as_ref());
        }
    }
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Notices(to somebody)" } else { "Notices(to nobody)" })
    }
}
