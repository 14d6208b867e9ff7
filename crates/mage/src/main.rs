//! The `mage` command.

use std::process::ExitCode;

/// Rollouts make and drop many small things on many threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Oracles go as deep as there are episodes and turns: a thousand episodes need more than a main thread has. Only what is
/// used is ever taken.
const STACK: usize = 1 << 30;

fn main() -> ExitCode {
    let work = || mage::main(&mage::App::builtin());
    let thread = std::thread::Builder::new().name("main".to_owned()).stack_size(STACK).spawn(work);
    match thread {
        Ok(thread) => thread.join().unwrap_or(ExitCode::from(101)),
        Err(_) => work(),
    }
}
