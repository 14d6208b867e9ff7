//! The `mage` command.

fn main() {}
