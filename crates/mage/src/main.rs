//! The `mage` command.

fn main() -> std::process::ExitCode {
    mage::main(&mage::App::builtin())
}
