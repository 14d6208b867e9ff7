//! `mage doctor`: hardware and libraries of this machine, or checks of a recipe's remote engines.

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

/// Properties of this machine, as printed with `--json`.
#[derive(Serialize)]
struct MachineStatus {
    version: &'static str,
    threads: usize,
    instructions: &'static str,
    gemm_gflops: f64,
    copy_gb_per_second: f64,
    memory_gib: Option<f64>,
    /// The device that `--device auto` selects.
    device: &'static str,
    cuda: CudaStatus,
}

pub(crate) fn run(app: &App, args: &DoctorArgs, out: &Output) -> anyhow::Result<()> {
    if !args.engine.is_empty() {
        return engine::run(app, args, out);
    }
    let machine = Machine::measure();
    let cuda = CudaStatus::detect();
    let found = MachineStatus {
        version: env!("CARGO_PKG_VERSION"),
        threads: machine.threads,
        instructions: machine.instructions,
        gemm_gflops: machine.gemm_gflops,
        copy_gb_per_second: machine.copy_gb_per_second,
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
    out.line(format!("matmul        {:.0} GFLOP/s on all threads, fp32", found.gemm_gflops))?;
    out.line(format!("copy          {:.1} GB/s on one thread", found.copy_gb_per_second))?;
    match found.memory_gib {
        Some(gib) => out.line(format!("free memory   {gib:.1} GiB"))?,
        None => out.line("free memory   unknown on this system")?,
    }
    found.cuda.print(out)?;
    let name = if found.device == "cpu" { "CPU" } else { "GPU" };
    out.line(format!("device        {}: --device auto trains and samples on the {name}", found.device))?;
    out.hint("\nThroughput was measured just now; other load on the machine lowers it.");
    Ok(())
}
