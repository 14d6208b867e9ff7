//! What is a field called, what does it mean, and what is it when left out? Said once, in one place.

/// Declares a section of a recipe: the struct, its defaults, and the words [`explain`](super::explain) prints.
macro_rules! section {
    ($(#[doc = $about:expr])+ $name:ident { $($(#[doc = $doc:expr])+ $field:ident : $ty:ty = $default:expr,)* }) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $($(#[doc = $doc])+ pub $field: $ty,)*
        }

        impl Default for $name {
            fn default() -> Self {
                $name { $($field: $default,)* }
            }
        }

        impl $name {
            /// Every field with what is said about it.
            pub(super) const FIELDS: &'static [(&'static str, &'static [&'static str])] =
                &[$((stringify!($field), &[$($doc),+]),)*];
        }
    };
}
pub(super) use section;
