//! Which cards are there, and if none is used, why not?

use crate::output::Output;
use mage_native::{GpuReport, GpuStatus};
use serde::Serialize;

/// What was found, for programs.
#[derive(Serialize)]
pub(super) struct CudaStatus {
    /// Each library that is needed, and under what it was found.
    libraries: Vec<(&'static str, Option<String>)>,
    /// What was found of them and cannot be used, and why.
    unusable: Vec<(&'static str, String)>,
    /// Folders searched besides the loader's own.
    searched: Vec<String>,
    cards: Vec<One>,
    /// Why `--device auto` takes none, where it takes none.
    unused_because: Option<String>,
}

/// One card: what it is, or why it cannot be used.
#[derive(Serialize)]
#[serde(untagged)]
enum One {
    Usable {
        name: String,
        generation: String,
        driver_cuda: String,
        memory_gib: f64,
        free_gib: f64,
        #[serde(flatten)]
        rates: Measured,
    },
    Refused {
        reason: String,
    },
}

/// How fast a card is, or why that could not be measured.
#[derive(Serialize)]
#[serde(untagged)]
enum Measured {
    Rates { product_gflops: f64, copy_gbytes_per_second: f64 },
    Not { not_measured: String },
}

impl CudaStatus {
    pub(super) fn look() -> Self {
        let report = GpuReport::measure();
        let gib = |bytes: usize| bytes as f64 / f64::from(1 << 30);
        let one = |card: Result<_, String>| match card {
            Err(reason) => One::Refused { reason },
            Ok(GpuStatus { info, free_bytes, throughput }) => {
                let rates = match throughput {
                    Ok(mage_native::Throughput { gemm_gflops, copy_gb_per_s }) => {
                        Measured::Rates { product_gflops: gemm_gflops, copy_gbytes_per_second: copy_gb_per_s }
                    }
                    Err(not_measured) => Measured::Not { not_measured },
                };
                One::Usable {
                    generation: format!("{}.{}", info.compute_capability.0, info.compute_capability.1),
                    driver_cuda: format!("{}.{}", info.driver_version / 1000, info.driver_version % 1000 / 10),
                    name: info.name,
                    memory_gib: gib(info.total_memory),
                    free_gib: gib(free_bytes),
                    rates,
                }
            }
        };
        let mut cards = CudaStatus {
            libraries: report.search.libraries.iter().map(|l| (l.name, l.loaded_from.clone())).collect(),
            unusable: report.search.libraries.iter().filter_map(|l| Some((l.name, l.problem.clone()?))).collect(),
            searched: report.search.search_paths.iter().map(|f| f.display().to_string()).collect(),
            cards: report.gpus.into_iter().map(one).collect(),
            unused_because: None,
        };
        cards.unused_because = cards.reason(report.driver_error);
        cards
    }

    /// Why no card is used: a library is missing, the driver does not work, it knows of no card, or the first cannot do it.
    fn reason(&self, trouble: Option<String>) -> Option<String> {
        if let Some((missing, _)) = self.libraries.iter().find(|(_, at)| at.is_none()) {
            let (there, absent): (Vec<&str>, Vec<&str>) =
                self.searched.iter().map(String::as_str).partition(|f| std::path::Path::new(f).is_dir());
            let told = |before: &str, f: Vec<&str>| {
                if f.is_empty() { String::new() } else { before.to_owned() + &f.join(", ") }
            };
            let folders = told(", nor in ", there) + &told("; there is no ", absent);
            let what = match *missing {
                "cuda" => "the NVIDIA driver (libcuda)",
                "nvrtc" => "the CUDA run-time compiler (libnvrtc)",
                _ => "the CUDA matrix products (libcublasLt)",
            };
            let remedy = match *missing {
                "cuda" => "install it, with the card's kernel module",
                _ => "install it (CUDA 12 or newer), or set CUDA_HOME to where it is",
            };
            return Some(match self.unusable_as(missing) {
                Some(why) => format!("{what} cannot be used: {why}.\nFor a card, mend or replace it"),
                None => {
                    format!("{what} was not found by the loader (LD_LIBRARY_PATH){folders}.\nFor a card, {remedy}")
                }
            });
        }
        if trouble.is_some() {
            return trouble;
        }
        match self.cards.first() {
            None => Some("the driver is there, but knows of no card (does CUDA_VISIBLE_DEVICES hide it?)".to_owned()),
            Some(One::Refused { reason }) => Some(reason.clone()),
            Some(One::Usable { .. }) => None,
        }
    }

    /// Why a library that was found cannot be used.
    fn unusable_as(&self, library: &str) -> Option<&str> {
        self.unusable.iter().find(|(name, _)| *name == library).map(|(_, why)| why.as_str())
    }

    /// What `--device auto` takes.
    pub(super) fn device(&self) -> &'static str {
        if matches!(self.cards.first(), Some(One::Usable { .. })) { "cuda:0" } else { "cpu" }
    }

    pub(super) fn show(&self, out: &Output) -> anyhow::Result<()> {
        for (i, card) in self.cards.iter().enumerate() {
            match card {
                One::Refused { reason } => out.line(format!("cuda:{i}        not used: {reason}"))?,
                One::Usable { name, generation, driver_cuda, memory_gib, free_gib, rates } => {
                    out.line(format!(
                        "cuda:{i}        {name}, generation {generation}, driver for CUDA {driver_cuda}"
                    ))?;
                    out.line(format!("  memory      {free_gib:.1} of {memory_gib:.1} GiB free"))?;
                    match rates {
                        Measured::Rates { product_gflops, copy_gbytes_per_second } => {
                            out.line(format!("  products    {:.0} TFLOP/s, bf16", product_gflops / 1e3))?;
                            out.line(format!("  copying     {copy_gbytes_per_second:.0} GB/s, read and written"))?;
                        }
                        Measured::Not { not_measured } => {
                            out.line(format!("  rates       could not be measured: {not_measured}"))?;
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
            out.line(format!("no card       {}.", reason.replace('\n', "\n              ")))?;
        }
        Ok(())
    }
}
