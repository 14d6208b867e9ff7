//! CUDA devices and libraries of this machine, and why no GPU is used if none is.

use crate::output::Output;
use mage_native::{GpuReport, GpuStatus};
use serde::Serialize;

/// CUDA libraries and devices, as printed with `--json`.
#[derive(Serialize)]
pub(super) struct CudaStatus {
    /// The required libraries, each with its file name if it was found.
    libraries: Vec<(&'static str, Option<String>)>,
    /// Libraries that were found but cannot be used, and why.
    unusable: Vec<(&'static str, String)>,
    /// Directories searched in addition to the loader's.
    searched: Vec<String>,
    devices: Vec<GpuEntry>,
    /// Why `--device auto` selects no GPU, if it selects none.
    unused_because: Option<String>,
}

/// One GPU: its properties, or why it cannot be used.
#[derive(Serialize)]
#[serde(untagged)]
enum GpuEntry {
    Usable {
        name: String,
        compute_capability: String,
        driver_cuda: String,
        memory_gib: f64,
        free_gib: f64,
        #[serde(flatten)]
        throughput: GpuThroughput,
    },
    Refused {
        reason: String,
    },
}

/// Measured throughput of a GPU, or why it could not be measured.
#[derive(Serialize)]
#[serde(untagged)]
enum GpuThroughput {
    Measured { gemm_gflops: f64, copy_gb_per_second: f64 },
    Unknown { not_measured: String },
}

impl CudaStatus {
    pub(super) fn detect() -> Self {
        let report = GpuReport::measure();
        let gib = |bytes: usize| bytes as f64 / f64::from(1 << 30);
        let entry = |gpu: Result<_, String>| match gpu {
            Err(reason) => GpuEntry::Refused { reason },
            Ok(GpuStatus { info, free_bytes, throughput }) => {
                let throughput = match throughput {
                    Ok(mage_native::Throughput { gemm_gflops, copy_gb_per_s }) => {
                        GpuThroughput::Measured { gemm_gflops, copy_gb_per_second: copy_gb_per_s }
                    }
                    Err(not_measured) => GpuThroughput::Unknown { not_measured },
                };
                GpuEntry::Usable {
                    compute_capability: format!("{}.{}", info.compute_capability.0, info.compute_capability.1),
                    driver_cuda: format!("{}.{}", info.driver_version / 1000, info.driver_version % 1000 / 10),
                    name: info.name,
                    memory_gib: gib(info.total_memory),
                    free_gib: gib(free_bytes),
                    throughput,
                }
            }
        };
        let mut status = CudaStatus {
            libraries: report.search.libraries.iter().map(|l| (l.name, l.loaded_from.clone())).collect(),
            unusable: report.search.libraries.iter().filter_map(|l| Some((l.name, l.problem.clone()?))).collect(),
            searched: report.search.search_paths.iter().map(|f| f.display().to_string()).collect(),
            devices: report.gpus.into_iter().map(entry).collect(),
            unused_because: None,
        };
        status.unused_because = status.reason(report.driver_error);
        status
    }

    /// Why no GPU is used: a library is missing, the driver fails, it reports no GPU, or the first GPU is unsupported.
    fn reason(&self, driver_error: Option<String>) -> Option<String> {
        if let Some((missing, _)) = self.libraries.iter().find(|(_, at)| at.is_none()) {
            let (there, absent): (Vec<&str>, Vec<&str>) =
                self.searched.iter().map(String::as_str).partition(|f| std::path::Path::new(f).is_dir());
            let list = |before: &str, f: Vec<&str>| {
                if f.is_empty() { String::new() } else { before.to_owned() + &f.join(", ") }
            };
            let folders = list(" or in ", there) + &list("; these directories do not exist: ", absent);
            let what = match *missing {
                "cuda" => "the NVIDIA driver (libcuda)",
                "nvrtc" => "the CUDA run-time compiler (libnvrtc)",
                _ => "the CUDA matrix library (libcublasLt)",
            };
            let remedy = match *missing {
                "cuda" => "install it with its kernel module",
                _ => "install it (CUDA 12 or newer), or set CUDA_HOME to its directory",
            };
            return Some(match self.unusable_as(missing) {
                Some(why) => format!("{what} cannot be used: {why}.\nTo use a GPU, repair or replace it"),
                None => {
                    format!("{what} was not found by the loader (LD_LIBRARY_PATH){folders}.\nTo use a GPU, {remedy}")
                }
            });
        }
        if driver_error.is_some() {
            return driver_error;
        }
        match self.devices.first() {
            None => Some("the driver reports no GPU (check CUDA_VISIBLE_DEVICES)".to_owned()),
            Some(GpuEntry::Refused { reason }) => Some(reason.clone()),
            Some(GpuEntry::Usable { .. }) => None,
        }
    }

    /// Why a library that was found cannot be used.
    fn unusable_as(&self, library: &str) -> Option<&str> {
        self.unusable.iter().find(|(name, _)| *name == library).map(|(_, why)| why.as_str())
    }

    /// The device that `--device auto` selects.
    pub(super) fn device(&self) -> &'static str {
        if matches!(self.devices.first(), Some(GpuEntry::Usable { .. })) { "cuda:0" } else { "cpu" }
    }

    pub(super) fn print(&self, out: &Output) -> anyhow::Result<()> {
        for (i, gpu) in self.devices.iter().enumerate() {
            match gpu {
                GpuEntry::Refused { reason } => out.line(format!("cuda:{i}        not used: {reason}"))?,
                GpuEntry::Usable { name, compute_capability, driver_cuda, memory_gib, free_gib, throughput } => {
                    out.line(format!(
                        "cuda:{i}        {name}, compute capability {compute_capability}, driver for CUDA {driver_cuda}"
                    ))?;
                    out.line(format!("  memory      {free_gib:.1} of {memory_gib:.1} GiB free"))?;
                    match throughput {
                        GpuThroughput::Measured { gemm_gflops, copy_gb_per_second } => {
                            out.line(format!("  matmul      {:.0} TFLOP/s, bf16", gemm_gflops / 1e3))?;
                            out.line(format!("  copy        {copy_gb_per_second:.0} GB/s, read plus write"))?;
                        }
                        GpuThroughput::Unknown { not_measured } => {
                            out.line(format!("  throughput  could not be measured: {not_measured}"))?;
                        }
                    }
                }
            }
        }
        for (name, at) in &self.libraries {
            let library = format!("lib{name}");
            match (at, self.unusable_as(name)) {
                (Some(at), _) => out.line(format!("{library:<13} {at}"))?,
                (None, Some(why)) => out.line(format!("{library:<13} cannot be used: {why}"))?,
                (None, None) => out.line(format!("{library:<13} not found"))?,
            }
        }
        if let Some(reason) = &self.unused_because {
            out.line(format!("no GPU        {}.", reason.replace('\n', "\n              ")))?;
        }
        Ok(())
    }
}
