//! Where are NVIDIA's libraries?
//!
//! The binding looks them up by name alone. Where the loader does not know them, they are loaded here by path first: a
//! library that is loaded already is found by its name.

use libloading::Library;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// One of the libraries that are needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its name without prefix and suffix.
    pub name: &'static str,
    /// Under what it was loaded; nothing where it was not found.
    pub at: Option<String>,
}

/// What was looked for and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Search {
    /// By library: the driver, the compiler, the products.
    pub libraries: Vec<Found>,
    /// Folders that were searched besides the loader's own.
    pub folders: Vec<PathBuf>,
}

/// The driver, the run-time compiler and the matrix products.
const NEEDED: [&str; 3] = ["cuda", "nvrtc", "cublasLt"];

impl Search {
    /// The first library that is missing.
    pub fn missing(&self) -> Option<&'static str> {
        self.libraries.iter().find(|l| l.at.is_none()).map(|l| l.name)
    }
}

/// Looks once; the answer does not change while the program runs.
pub fn search() -> &'static Search {
    static FOUND: OnceLock<Search> = OnceLock::new();
    FOUND.get_or_init(|| {
        let folders = folders();
        let libraries = NEEDED.iter().map(|name| Found { name, at: load(name, &folders) }).collect();
        Search { libraries, folders }
    })
}

fn load(name: &str, folders: &[PathBuf]) -> Option<String> {
    let names = cudarc::get_lib_name_candidates(name);
    let by_path = folders.iter().flat_map(|f| files(f, name)).map(|p| p.display().to_string());
    names.into_iter().chain(by_path).find(|name| {
        // SAFETY: NVIDIA's libraries may be loaded at any time; they are never unloaded.
        match unsafe { Library::new(name) } {
            Ok(library) => {
                std::mem::forget(library);
                true
            }
            Err(_) => false,
        }
    })
}

/// The versions of a library in a folder.
fn files(folder: &Path, name: &str) -> Vec<PathBuf> {
    let start = format!("lib{name}.so");
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
    let mut all: Vec<PathBuf> =
        entries.filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&start))).collect();
    all.sort();
    all
}

/// Where toolkits, drivers and Python's packages put them.
fn folders() -> Vec<PathBuf> {
    let from = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let mut all: Vec<PathBuf> = [from("CUDA_HOME"), from("CUDA_PATH"), Some("/usr/local/cuda".into())]
        .into_iter()
        .flatten()
        .flat_map(|root| [root.join("lib64"), root.join("targets/x86_64-linux/lib")])
        .collect();
    all.extend(["/usr/local/nvidia/lib64", "/usr/lib/wsl/lib"].map(PathBuf::from));
    let pythons = from("VIRTUAL_ENV").map(|env| env.join("lib"));
    for python in pythons.iter().flat_map(|lib| std::fs::read_dir(lib).into_iter().flatten().flatten()) {
        let packages = python.path().join("site-packages/nvidia");
        all.extend(std::fs::read_dir(packages).into_iter().flatten().flatten().map(|p| p.path().join("lib")));
    }
    all.retain(|f| f.is_dir());
    all.sort();
    all.dedup();
    all
}
