//! Content hashes of serialisable values.

use serde::{Deserialize, Serialize};
use std::{borrow::Cow, fmt};

/// A 128-bit BLAKE3 hash of a serialisable value, printed as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hash([u8; 16]);

impl Hash {
    /// Hashes the canonical JSON form: fields in declaration order, maps sorted by key.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Self {
        let json = serde_json::to_vec(value).expect("plain data serialises");
        let mut short = [0; 16];
        short.copy_from_slice(&blake3::hash(&json).as_bytes()[..16]);
        Hash(short)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hash({self})")
    }
}

impl Serialize for Hash {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(d)?;
        let digits = text.as_bytes();
        let mut out = [0; 16];
        let valid = digits.len() == 32
            && digits.chunks_exact(2).zip(&mut out).all(|(pair, byte)| {
                let nibble = |c: u8| (c as char).to_digit(16);
                match (nibble(pair[0]), nibble(pair[1])) {
                    (Some(hi), Some(lo)) => {
                        *byte = (hi * 16 + lo) as u8;
                        true
                    }
                    _ => false,
                }
            });
        if valid { Ok(Hash(out)) } else { Err(serde::de::Error::custom("expected 32 hexadecimal digits")) }
    }
}
