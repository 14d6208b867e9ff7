//! Deserialization of the entries of the official files.
//!
//! The files are scraped, so any field may be missing or of another type. Errors name the field, and the id where the file
//! has one. Of repeated keys the last counts, as in Python.

use super::catalogue::{Price, Product, ProductOption};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, Visitor},
};
use std::{borrow::Cow, collections::HashMap, fmt, marker::PhantomData};

/// Value of a missing field.
trait Absent: Sized {
    /// The default value; `None` if the field is required.
    fn absent() -> Option<Self> {
        None
    }
}

impl Absent for Box<str> {}
impl Absent for Vec<Box<str>> {}
impl Absent for TextOrList {}
impl Absent for RawOptions {}

impl<T> Absent for Option<T> {
    fn absent() -> Option<Self> {
        Some(None)
    }
}

/// Deserializes the value of a field; errors name the field.
fn value<'de, T: Deserialize<'de>, A: MapAccess<'de>>(map: &mut A, field: &str) -> Result<T, A::Error> {
    map.next_value().map_err(|e| A::Error::custom(format_args!("field `{field}`: {e}")))
}

/// A struct deserialized from an object. Serde's derive does not name the field of the wrong type.
macro_rules! record {
    ($(#[$about:meta])* struct $name:ident { $($field:ident: $type:ty,)+ }) => {
        $(#[$about])*
        pub(super) struct $name {
            $(pub(super) $field: $type,)+
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                struct RecordVisitor;
                impl<'de> Visitor<'de> for RecordVisitor {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        write!(f, "an object with {}", [$(stringify!($field)),+].join(", "))
                    }

                    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<$name, A::Error> {
                        $(let mut $field: Option<$type> = None;)+
                        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
                            match &*key {
                                $(stringify!($field) => $field = Some(value(&mut map, &key)?),)+
                                _ => {
                                    map.next_value::<IgnoredAny>()?;
                                }
                            }
                        }
                        Ok($name {
                            $($field: match $field.or_else(Absent::absent) {
                                Some(value) => value,
                                None => return Err(A::Error::missing_field(stringify!($field))),
                            },)+
                        })
                    }
                }
                d.deserialize_map(RecordVisitor)
            }
        }
    };
}

record! {
    /// A product.
    struct RawProduct {
        asin: Box<str>,
        name: Box<str>,
        full_description: Box<str>,
        small_description: TextOrList,
        pricing: Option<Box<str>>,
        customization_options: RawOptions,
        category: Box<str>,
        query: Box<str>,
        product_category: Box<str>,
    }
}

record! {
    /// A product's entry in the attribute file.
    struct RawAttributes {
        attributes: Option<Vec<Box<str>>>,
        instruction: Option<Box<str>>,
        instruction_attributes: Option<Vec<Box<str>>>,
    }
}

record! {
    /// An instruction written by a person.
    struct RawHumanInstruction {
        instruction: Box<str>,
        instruction_attributes: Vec<Box<str>>,
        instruction_options: Vec<Box<str>>,
    }
}

/// Entries by product id.
pub(super) struct ById<T>(pub(super) HashMap<String, T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for ById<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = ById<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with product ids as keys")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ById<T>, A::Error> {
                let mut entries = HashMap::new();
                while let Some(asin) = map.next_key::<String>()? {
                    let entry = map.next_value().map_err(|e| A::Error::custom(format_args!("{asin}: {e}")))?;
                    entries.insert(asin, entry);
                }
                Ok(ById(entries))
            }
        }
        d.deserialize_map(Entries(PhantomData))
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of texts")]
pub(super) enum TextOrList {
    One(Box<str>),
    Many(Vec<Box<str>>),
}

impl RawProduct {
    /// Whether the entry has a price.
    pub(super) fn has_price(&self) -> bool {
        self.pricing.as_ref().is_some_and(|text| !text.is_empty())
    }

    /// Converts to a product. The error names the field.
    pub(super) fn into_product(self) -> Result<Product, String> {
        Ok(Product {
            price: read_price(self.pricing.as_deref()).map_err(|e| format!("field `pricing`: {e}"))?,
            asin: self.asin,
            title: self.name,
            description: self.full_description,
            bullets: match self.small_description {
                TextOrList::One(line) => vec![line],
                TextOrList::Many(lines) => lines,
            },
            options: self.customization_options.0,
            // The original's default for products without an attribute entry.
            attributes: vec!["DUMMY_ATTR".into()],
            category: self.category,
            query: self.query.to_lowercase().trim().into(),
            product_category: self.product_category,
            instruction: None,
            human_instructions: Vec::new(),
        })
    }
}

/// Parses a price: "$12.99", "$9.99 to $24.00" or "$1,299.00$1,499.00". A missing price is 100, as in the original.
fn read_price(text: Option<&str>) -> Result<Price, String> {
    let Some(text) = text.filter(|t| !t.is_empty()) else { return Ok(Price { low: 100.0, high: None }) };
    let mut amounts = text.split('$').skip(1).map(|amount| {
        let digits: String = amount.chars().filter(|c| c.is_ascii_digit() || *c == '.').collect();
        let amount = digits.parse().ok().filter(|amount: &f64| amount.is_finite());
        amount.ok_or_else(|| format!("`{text}` has no amount after a `$`"))
    });
    let low = amounts.next().ok_or_else(|| format!("`{text}` has no `$`"))??;
    let high = amounts.next().transpose()?;
    amounts.try_for_each(|amount| amount.map(drop))?;
    Ok(Price { low, high })
}

/// Option names and values, in the file's order. An empty string means no options.
pub(super) struct RawOptions(Vec<ProductOption>);

record! {
    /// One value of an option.
    struct RawValue {
        value: Box<str>,
    }
}

impl<'de> Deserialize<'de> for RawOptions {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = RawOptions;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of lists, or an empty text")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<RawOptions, E> {
                if text.is_empty() {
                    Ok(RawOptions(Vec::new()))
                } else {
                    Err(E::invalid_value(serde::de::Unexpected::Str(text), &self))
                }
            }

            fn visit_unit<E>(self) -> Result<RawOptions, E> {
                Ok(RawOptions(Vec::new()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawOptions, A::Error> {
                let mut options: Vec<ProductOption> = Vec::new();
                while let Some((name, values)) = map.next_entry::<Box<str>, Option<Vec<RawValue>>>()? {
                    let Some(values) = values else { continue };
                    let name = name.to_lowercase().into_boxed_str();
                    let values =
                        values.iter().map(|v| v.value.trim().replace('/', " | ").to_lowercase().into()).collect();
                    // The last list under a name counts, at the position of the first.
                    match options.iter_mut().find(|o| o.name == name) {
                        Some(earlier) => earlier.values = values,
                        None => options.push(ProductOption { name, values }),
                    }
                }
                Ok(RawOptions(options))
            }
        }
        d.deserialize_any(Names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_parsed_or_rejected() {
        let tag = |t: &str| read_price(Some(t)).map(|p| p.tag());
        assert_eq!(tag("").unwrap(), "$100.0");
        assert_eq!(tag("$5").unwrap(), "$5.0");
        assert_eq!(tag("$1.99$2.50$3").unwrap(), "$1.99 to $2.5");
        assert_eq!(tag("$1,299.99").unwrap(), "$1299.99");
        assert_eq!(tag("$9.99 to $1,024.00").unwrap(), "$9.99 to $1024.0");
        assert_eq!(read_price(None).unwrap().tag(), "$100.0");
        assert!(tag(&format!("${}", "9".repeat(400))).unwrap_err().contains("no amount"));
        assert!(tag("5 dollars").unwrap_err().contains("no `$`"));
        assert!(tag("$abc").unwrap_err().contains("no amount"));
        assert!(tag("$1.2.3").unwrap_err().contains("no amount"));
    }
}
