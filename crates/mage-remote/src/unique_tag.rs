//! Unique tags for names on shared servers.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A random tag. Names on servers are used only once, since others may use the same server.
pub(crate) fn unique_tag() -> String {
    // `RandomState` is seeded from the system's randomness.
    format!("{:016x}", RandomState::new().build_hasher().finish())
}
