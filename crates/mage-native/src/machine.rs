//! Properties and measured throughput of this machine.

use crate::cpu::Cpu;
use std::time::Instant;

/// CPU properties as the engine uses them.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Default number of threads.
    pub threads: usize,
    /// SIMD instruction set of the kernels.
    pub instructions: &'static str,
    /// GEMM throughput on all threads in GFLOP/s.
    pub gemm_gflops: f64,
    /// Copy throughput of one thread in GB/s.
    pub copy_gb_per_second: f64,
}

impl Machine {
    /// Bytes of memory available without swapping, if the system reports it.
    pub fn free_memory() -> Option<u64> {
        let text = std::fs::read_to_string("/proc/meminfo").ok()?;
        let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
        let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
        Some(kib << 10)
    }

    /// Description of the CPU: name and SIMD instruction set.
    pub fn device() -> String {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'));
        let name = name.map_or(std::env::consts::ARCH, |(_, name)| name.trim());
        format!("cpu: {name}, {}", Cpu::new().instructions())
    }

    /// Measures for about half a second.
    pub fn measure() -> Self {
        let cpu = Cpu::new();
        let (n, k) = (512, 512);
        let w = cpu.pack(&vec![0.5; n * k], n, k);
        let (x, mut y) = (vec![0.25; n * k], vec![0.0; n * n]);
        let product = best(|| cpu.linear(&x, &w, &mut y));
        let from = vec![1.0_f32; 16 << 20];
        let mut to = vec![0.0_f32; from.len()];
        let copy = best(|| std::hint::black_box(&mut to).copy_from_slice(&from));
        Machine {
            threads: rayon::current_num_threads(),
            instructions: cpu.instructions(),
            gemm_gflops: 2.0 * (n * n * k) as f64 / product / 1e9,
            copy_gb_per_second: 4.0 * from.len() as f64 / copy / 1e9,
        }
    }
}

/// Shortest duration of several runs, in seconds.
fn best(mut work: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut best = f64::INFINITY;
    for _ in 0..50 {
        let begin = Instant::now();
        work();
        best = best.min(begin.elapsed().as_secs_f64());
        if start.elapsed().as_secs_f64() > 0.25 {
            break;
        }
    }
    best
}
