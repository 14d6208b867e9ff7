//! Search for NVIDIA's libraries.
//!
//! The bindings load libraries by name. If the loader does not find one, it is loaded here by path first: a library
//! that is already loaded is found by its name.

use cudarc::driver::sys;
use libloading::Library;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Search result for one required library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryStatus {
    /// Name without prefix and suffix.
    pub name: &'static str,
    /// Name or path it was loaded from; `None` if no usable library was found.
    pub loaded_from: Option<String>,
    /// A library that was found but cannot be used, and why.
    pub problem: Option<String>,
}

/// The libraries and the searched directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibrarySearch {
    /// Driver, runtime compiler and cuBLASLt.
    pub libraries: Vec<LibraryStatus>,
    /// Directories searched in addition to the loader's own.
    pub search_paths: Vec<PathBuf>,
}

/// The driver, the runtime compiler and cuBLASLt, with every function that is called. The bindings look a function up
/// when it is first called and panic if it is missing. [`event_elapsed`] looks up its own.
const REQUIRED: [(&str, &[&str]); 3] = [
    (
        "cuda",
        &[
            "cuCtxSetCurrent",
            "cuDeviceGet",
            "cuDeviceGetAttribute",
            "cuDeviceGetCount",
            "cuDeviceGetName",
            "cuDevicePrimaryCtxRelease_v2",
            "cuDevicePrimaryCtxRetain",
            "cuDeviceTotalMem_v2",
            "cuDriverGetVersion",
            "cuEventCreate",
            "cuEventDestroy_v2",
            "cuEventRecord",
            "cuFuncSetAttribute",
            "cuGetErrorName",
            "cuGetErrorString",
            "cuGraphDestroy",
            "cuGraphExecDestroy",
            "cuGraphInstantiateWithFlags",
            "cuGraphLaunch",
            "cuInit",
            "cuLaunchKernel",
            "cuLaunchKernelEx",
            "cuMemAlloc_v2",
            "cuMemFreeHost",
            "cuMemFree_v2",
            "cuMemGetInfo_v2",
            "cuMemHostAlloc",
            "cuMemcpyDtoDAsync_v2",
            "cuMemcpyDtoHAsync_v2",
            "cuMemcpyHtoDAsync_v2",
            "cuMemsetD8Async",
            "cuModuleGetFunction",
            "cuModuleLoadData",
            "cuModuleUnload",
            "cuStreamBeginCapture_v2",
            "cuStreamCreate",
            "cuStreamDestroy_v2",
            "cuStreamEndCapture",
            "cuStreamIsCapturing",
            "cuStreamSynchronize",
            "cuTensorMapEncodeTiled",
        ],
    ),
    (
        "nvrtc",
        &[
            "nvrtcCompileProgram",
            "nvrtcCreateProgram",
            "nvrtcDestroyProgram",
            "nvrtcGetCUBIN",
            "nvrtcGetCUBINSize",
            "nvrtcGetProgramLog",
            "nvrtcGetProgramLogSize",
            "nvrtcVersion",
        ],
    ),
    (
        "cublasLt",
        &[
            "cublasLtCreate",
            "cublasLtDestroy",
            "cublasLtMatmul",
            "cublasLtMatmulAlgoGetHeuristic",
            "cublasLtMatmulDescCreate",
            "cublasLtMatmulDescDestroy",
            "cublasLtMatmulDescSetAttribute",
            "cublasLtMatmulPreferenceCreate",
            "cublasLtMatmulPreferenceDestroy",
            "cublasLtMatmulPreferenceSetAttribute",
            "cublasLtMatrixLayoutCreate",
            "cublasLtMatrixLayoutDestroy",
        ],
    ),
];

/// Returns the milliseconds between two events.
pub(crate) type EventElapsed = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;

/// Tries both names of the function: the bindings know only that of CUDA 12.8.
pub(crate) fn event_elapsed() -> Option<EventElapsed> {
    static FOUND: OnceLock<Option<EventElapsed>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let driver = find_libraries()
            .libraries
            .iter()
            .find(|l| l.name == "cuda")
            .and_then(|l| load(l.loaded_from.as_ref()?).ok())?;
        // SAFETY: both functions have this signature.
        let lookup = |name: &[u8]| unsafe { driver.get::<EventElapsed>(name) }.ok().map(|f| *f);
        lookup(b"cuEventElapsedTime_v2").or_else(|| lookup(b"cuEventElapsedTime"))
    })
}

impl LibrarySearch {
    /// The first library without a usable file.
    pub(crate) fn missing(&self) -> Option<&LibraryStatus> {
        self.libraries.iter().find(|l| l.loaded_from.is_none())
    }
}

impl std::fmt::Display for LibraryStatus {
    /// Writes the result of the search.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.loaded_from, &self.problem) {
            (Some(path), _) => f.write_str(path),
            (None, Some(why)) => write!(f, "cannot be used: {why}"),
            (None, None) => f.write_str("not found"),
        }
    }
}

/// Searches once; the result is cached for the process.
pub fn find_libraries() -> &'static LibrarySearch {
    static FOUND: OnceLock<LibrarySearch> = OnceLock::new();
    FOUND.get_or_init(|| {
        let search_paths = search_paths();
        let libraries = REQUIRED.iter().map(|(name, functions)| find(name, functions, &search_paths)).collect();
        LibrarySearch { libraries, search_paths }
    })
}

fn find(name: &'static str, functions: &[&str], search_paths: &[PathBuf]) -> LibraryStatus {
    let names = cudarc::get_lib_name_candidates(name);
    // The bindings use the library that the loader finds by name.
    if let Some(loadable) = names.iter().find(|name| load(name).is_ok()) {
        return match usable(loadable, functions) {
            Ok(()) => LibraryStatus { name, loaded_from: Some(loadable.clone()), problem: None },
            Err(why) => LibraryStatus { name, loaded_from: None, problem: Some(why) },
        };
    }
    // Reports a library that exists and cannot be loaded, but not one that does not exist. The message is that of
    // glibc's loader.
    let broken = |name: &String| {
        let why = loader_error(&load(name).err()?);
        (cfg!(target_env = "gnu") && !why.starts_with(&format!("{name}: cannot open shared object file: No such file")))
            .then(|| format!("{name} cannot be loaded ({why})"))
    };
    let mut problem = names.iter().find_map(broken);
    for path in search_paths.iter().flat_map(|f| files(f, name)).map(|p| p.display().to_string()) {
        let loads_by_name = |()| match names.iter().any(|name| load(name).is_ok()) {
            true => Ok(()),
            false => Err(format!("{path} has a soname other than those of CUDA 12 and 13")),
        };
        match usable(&path, functions).and_then(loads_by_name) {
            Ok(()) => return LibraryStatus { name, loaded_from: Some(path), problem: None },
            Err(why) => _ = problem.get_or_insert(why),
        }
    }
    LibraryStatus { name, loaded_from: None, problem }
}

/// Loads a library permanently.
fn load(path: &str) -> Result<&'static Library, libloading::Error> {
    // SAFETY: NVIDIA's libraries have no load-time requirements, and they are never unloaded.
    unsafe { Library::new(path) }.map(|library| &*Box::leak(Box::new(library)))
}

/// The loader's message, which the error itself omits.
fn loader_error(e: &libloading::Error) -> String {
    e.source().map_or_else(|| e.to_string(), ToString::to_string)
}

/// Whether a library loads and has these functions.
fn usable(path: &str, functions: &[&str]) -> Result<(), String> {
    let library = load(path).map_err(|e| format!("{path} cannot be loaded ({})", loader_error(&e)))?;
    // SAFETY: the symbol is only tested for existence.
    let missing_function = functions.iter().find(|f| unsafe { library.get::<*const ()>(f.as_bytes()) }.is_err());
    missing_function.map_or(Ok(()), |f| Err(format!("{path} has no `{f}`, which CUDA 12 and newer provide")))
}

/// The versions of a library in a directory.
fn files(dir: &Path, name: &str) -> Vec<PathBuf> {
    let start = format!("lib{name}.so");
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
    let mut paths: Vec<PathBuf> =
        entries.filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&start))).collect();
    paths.sort();
    paths
}

/// Install locations of toolkits, drivers and Python packages.
fn search_paths() -> Vec<PathBuf> {
    let from = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let mut paths: Vec<PathBuf> = [from("CUDA_HOME"), from("CUDA_PATH"), Some("/usr/local/cuda".into())]
        .into_iter()
        .flatten()
        .flat_map(|root| [root.join("lib64"), root.join("targets/x86_64-linux/lib")])
        .collect();
    paths.extend(["/usr/local/nvidia/lib64", "/usr/lib/wsl/lib"].map(PathBuf::from));
    let pythons = from("VIRTUAL_ENV").map(|env| env.join("lib"));
    for python in pythons.iter().flat_map(|lib| std::fs::read_dir(lib).into_iter().flatten().flatten()) {
        let packages = python.path().join("site-packages/nvidia");
        paths.extend(std::fs::read_dir(packages).into_iter().flatten().flatten().map(|p| p.path().join("lib")));
    }
    paths.sort();
    paths.dedup();
    paths
}

#[cfg(test)]
#[warn(dead_code)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn broken_libraries_are_reported_and_not_used() {
        let dir = std::env::temp_dir().join(format!("mage-find-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = dir.join("libnowhere.so.1");
        std::fs::write(&file, "garbage").unwrap();
        let status = find("nowhere", &["nowhereInit"], std::slice::from_ref(&dir));
        let missing = find("nothing", &["nothingInit"], std::slice::from_ref(&dir));
        std::fs::remove_dir_all(&dir).unwrap();
        let text = status.to_string();
        assert!(
            status.loaded_from.is_none() && text.contains("cannot be used") && text.contains("libnowhere.so.1"),
            "{text}"
        );
        assert_eq!(missing, LibraryStatus { name: "nothing", loaded_from: None, problem: None });
        assert_eq!(missing.to_string(), "not found");
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn libraries_that_lack_a_function_are_not_used() {
        assert_eq!(usable("libc.so.6", &["malloc"]), Ok(()));
        let why = usable("libc.so.6", &["malloc", "cuTensorMapEncodeTiled"]).unwrap_err();
        assert_eq!(why, "libc.so.6 has no `cuTensorMapEncodeTiled`, which CUDA 12 and newer provide");
    }
}
