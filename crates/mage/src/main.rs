//! The `mage` command.

/// Rollouts make and drop many small things on many threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    mage::main(&mage::App::builtin())
}
