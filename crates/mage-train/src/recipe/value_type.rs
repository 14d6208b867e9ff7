//! Types of recipe values, traced through the `Deserialize` implementation of [`Recipe`].
//!
//! A tracer follows the path of a key through the nested structs. At its end, the method that the value's type calls on
//! the deserialiser states what it expects, and ends the trace as an error.

use super::Recipe;
use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor, value::MapDeserializer, value::StrDeserializer},
};
use std::fmt;

/// What the value of a key may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ValueType {
    Bool,
    /// A whole number, at most this.
    Integer(u64),
    Number,
    Text,
    /// One of these texts.
    Choice(&'static [&'static str]),
    List(Box<ValueType>),
    /// A table with these keys.
    Table(&'static [&'static str]),
    /// One of the names, or a table with one of the kinds in `kind`.
    Tagged {
        names: &'static [&'static str],
        kinds: &'static [&'static str],
    },
}

/// The type of the value of a key; `None` if it cannot be traced.
pub(super) fn value_type(key: &str) -> Option<ValueType> {
    let path: Vec<&str> = key.split('.').collect();
    let trace = |offer| Recipe::deserialize(Tracer { path: &path, offer }).err()?.0;
    match (trace(Offer::Text), trace(Offer::Table)) {
        (Some(Found::Type(value_type)), _) => Some(value_type),
        (names, kinds) => {
            let variants = |found| if let Some(Found::Variants(all)) = found { all } else { &[] as &[&str] };
            let (names, kinds) = (variants(names), variants(kinds));
            Some(ValueType::Tagged { names, kinds }).filter(|_| !names.is_empty() || !kinds.is_empty())
        }
    }
}

/// The result of a trace.
#[derive(Debug)]
enum Found {
    Type(ValueType),
    /// The variants of an enum that refused what it was offered.
    Variants(&'static [&'static str]),
}

/// The end of a trace.
#[derive(Debug)]
struct Traced(Option<Found>);

impl fmt::Display for Traced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("end of a trace")
    }
}

impl std::error::Error for Traced {}

impl de::Error for Traced {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Traced(None)
    }

    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        Traced(Some(Found::Variants(expected)))
    }
}

/// What a value that accepts several types is offered.
#[derive(Clone, Copy)]
enum Offer {
    Text,
    Table,
}

#[derive(Clone, Copy)]
struct Tracer<'p> {
    /// The rest of the path.
    path: &'p [&'p str],
    offer: Offer,
}

/// A value that no type accepts.
const NOTHING: &str = "?";

fn found<T>(value_type: ValueType) -> Result<T, Traced> {
    Err(Traced(Some(Found::Type(value_type))))
}

/// Methods of the deserialiser that end the trace with a type.
macro_rules! ends {
    ($($method:ident => $value_type:expr;)*) => {
        $(fn $method<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Traced> {
            found($value_type)
        })*
    };
}

/// TOML integers have 64 bits with a sign.
const MAX_INTEGER: u64 = i64::MAX as u64;

impl<'de> Deserializer<'de> for Tracer<'_> {
    type Error = Traced;

    ends! {
        deserialize_bool => ValueType::Bool;
        deserialize_u8 => ValueType::Integer(u64::from(u8::MAX));
        deserialize_u16 => ValueType::Integer(u64::from(u16::MAX));
        deserialize_u32 => ValueType::Integer(u64::from(u32::MAX));
        deserialize_u64 => ValueType::Integer(MAX_INTEGER);
        deserialize_f32 => ValueType::Number;
        deserialize_f64 => ValueType::Number;
        deserialize_str => ValueType::Text;
        deserialize_string => ValueType::Text;
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Traced> {
        match self.offer {
            Offer::Text => visitor.visit_str(NOTHING),
            Offer::Table => visitor.visit_map(MapDeserializer::new(std::iter::once(("kind", NOTHING)))),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Traced> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Traced> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Traced> {
        visitor.visit_seq(self).map_err(|e| match e.0 {
            Some(Found::Type(element)) => Traced(Some(Found::Type(ValueType::List(Box::new(element))))),
            _ => e,
        })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Traced> {
        if self.path.is_empty() { found(ValueType::Table(fields)) } else { visitor.visit_map(self) }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Traced> {
        found(ValueType::Choice(variants))
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u128 char bytes byte_buf unit unit_struct tuple tuple_struct map identifier ignored_any
    }
}

/// A table with the next key of the path.
impl<'de> MapAccess<'de> for Tracer<'_> {
    type Error = Traced;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Traced> {
        let [key, rest @ ..] = self.path else { return Ok(None) };
        self.path = rest;
        seed.deserialize(StrDeserializer::new(key)).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Traced> {
        seed.deserialize(*self)
    }
}

/// A list whose first element is traced.
impl<'de> SeqAccess<'de> for Tracer<'_> {
    type Error = Traced;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Traced> {
        seed.deserialize(*self).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::keys::fields;

    #[test]
    fn types_are_those_of_the_fields() {
        for (key, expected) in [
            ("seed", ValueType::Integer(MAX_INTEGER)),
            ("play.episodes", ValueType::Integer(u64::from(u32::MAX))),
            ("play.mask_actions", ValueType::Bool),
            ("play.form", ValueType::Choice(&["full", "compact"])),
            ("loss.entropy", ValueType::Number),
            ("model.path", ValueType::Text),
            ("engine.device", ValueType::Text),
            ("vllm.servers", ValueType::List(Box::new(ValueType::Text))),
            ("penalty.length", ValueType::Table(&["limit", "weight"])),
            ("penalty.length.weight", ValueType::Number),
            ("method.credit.assignment", ValueType::Choice(&["differential", "cumulative", "single", "final_only"])),
            ("method.estimator", ValueType::Tagged { names: &[], kinds: &["return_to_go", "gigpo", "grpo", "rloo"] }),
        ] {
            assert_eq!(value_type(key), Some(expected), "{key}");
        }
        let Some(ValueType::Tagged { names, kinds }) = value_type("reward") else { panic!("a name or a rule") };
        assert!(names.contains(&"paper") && kinds == ["outcome", "score"], "{names:?} {kinds:?}");
        // A version is a text or a number, which serde does not state.
        let unknown: Vec<String> = fields().map(|(key, _)| key).filter(|key| value_type(key).is_none()).collect();
        assert_eq!(unknown, ["tinker.sdk_version"]);
        assert_eq!(value_type("optim.nothing"), None);
    }
}
