//! `mage doctor`: what can this machine, or an engine elsewhere, do?

mod checks;
mod engine;
mod gpu;
mod vllm;

use crate::{
    App,
    cli::DoctorArgs,
    output::{BOLD, Output, styled},
};
use gpu::CudaStatus;
use mage_native::Machine;
use serde::Serialize;

/// What was found, for programs.
#[derive(Serialize)]
struct Found {
    version: &'static str,
    threads: usize,
    instructions: &'static str,
    product_gflops: f64,
    copy_gbytes_per_second: f64,
    memory_gib: Option<f64>,
    /// What `--device auto` takes.
    device: &'static str,
    cuda: CudaStatus,
}

pub(crate) fn run(app: &App, args: &DoctorArgs, out: &Output) -> anyhow::Result<()> {
    if !args.engine.is_empty() {
        return engine::run(app, args, out);
    }
    let machine = Machine::measure();
    let cuda = CudaStatus::look();
    let found = Found {
        version: env!("CARGO_PKG_VERSION"),
        threads: machine.threads,
        instructions: machine.instructions,
        product_gflops: machine.gemm_gflops,
        copy_gbytes_per_second: machine.copy_gb_per_second,
        memory_gib: Machine::free_memory().map(|bytes| bytes as f64 / f64::from(1 << 30)),
        device: cuda.device(),
        cuda,
    };
    if out.json {
        return out.object(&found);
    }
    out.line(styled(BOLD, format!("mage {}", found.version)))?;
    out.line(format!("threads       {}", found.threads))?;
    out.line(format!("instructions  {}", found.instructions))?;
    out.line(format!("products      {:.0} GFLOP/s on all threads, 32-bit", found.product_gflops))?;
    out.line(format!("copying       {:.1} GB/s on one thread", found.copy_gbytes_per_second))?;
    match found.memory_gib {
        Some(gib) => out.line(format!("memory free   {gib:.1} GiB"))?,
        None => out.line("memory free   unknown on this system")?,
    }
    found.cuda.show(out)?;
    let words = if found.device == "cpu" { "the processor" } else { "the card" };
    out.line(format!("device        {}: models are trained and sampled on {words}", found.device))?;
    out.hint("\nRates were measured just now: other work on the machine lowers them.");
    Ok(())
}
