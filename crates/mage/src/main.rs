//! The `mage` command.

use std::process::ExitCode;

/// Rollouts allocate many small objects on many threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Stack size. Oracles recurse over episodes and turns, and a thousand episodes exceed the stack of the main thread.
/// The memory is reserved, not committed.
const STACK_SIZE: usize = 1 << 30;

fn main() -> ExitCode {
    let work = || mage::main(&mage::App::builtin());
    let thread = std::thread::Builder::new().name("main".to_owned()).stack_size(STACK_SIZE).spawn(work);
    match thread {
        Ok(thread) => thread.join().unwrap_or(ExitCode::from(101)),
        Err(_) => work(),
    }
}
