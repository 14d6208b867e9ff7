//! LoRA adapters.
//!
//! For a frozen matrix `W`, the model computes `W·x + (alpha / rank)·B·(A·x)`; only A and B are trained. Adapters are small,
//! one batch can use many of them, and the reference policy is the base model without an adapter. Names, shapes and
//! initialisation are those of PEFT.

mod adapter;
mod layout;
pub(crate) mod peft;

pub use adapter::{AdapterSize, NativeAdapter};
