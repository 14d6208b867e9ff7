//! The `section!` macro: keys, defaults and explanations of a recipe section in one declaration.

/// Declares a section of a recipe: the struct, its defaults, and the texts that [`explain`](super::explain) prints.
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
            /// Every key with the lines of its explanation.
            pub(super) const FIELDS: &'static [(&'static str, &'static [&'static str])] =
                &[$((stringify!($field), &[$($doc),+]),)*];
        }
    };
}
pub(super) use section;
