//! What tells our names on a server from everybody else's?

use std::hash::{BuildHasher, Hasher, RandomState};

/// A few letters that nobody else has drawn: names on servers that others use too are used once.
pub(crate) fn unique_tag() -> String {
    // The standard library's hashes start from the system's randomness.
    format!("{:016x}", RandomState::new().build_hasher().finish())
}
