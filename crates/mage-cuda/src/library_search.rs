//! Where are NVIDIA's libraries?
//!
//! The binding looks them up by name alone. Where the loader does not know them, they are loaded here by path first: a
//! library that is loaded already is found by its name.

use cudarc::driver::sys;
use libloading::Library;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// One of the libraries that are needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryStatus {
    /// Its name without prefix and suffix.
    pub name: &'static str,
    /// Under what it was loaded; nothing where none was found that can be used.
    pub loaded_from: Option<String>,
    /// Which was found and cannot be used, and why.
    pub problem: Option<String>,
}

/// What was looked for and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibrarySearch {
    /// By library: the driver, the compiler, the products.
    pub libraries: Vec<LibraryStatus>,
    /// Folders that were searched besides the loader's own.
    pub search_paths: Vec<PathBuf>,
}

/// The driver, the run-time compiler and the matrix products, and all that is called there: the binding looks a function up
/// when it is first called, and ends the program where there is none. [`event_elapsed`] looks for its own.
const NEEDED: [(&str, &[&str]); 3] = [
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

/// Milliseconds from one event to another.
pub(crate) type EventElapsed = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;

/// Under whichever of its names the driver has it: the binding knows the one that came with CUDA 12.8 alone.
pub(crate) fn event_elapsed() -> Option<EventElapsed> {
    static FOUND: OnceLock<Option<EventElapsed>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let driver = find_libraries()
            .libraries
            .iter()
            .find(|l| l.name == "cuda")
            .and_then(|l| load(l.loaded_from.as_ref()?).ok())?;
        // SAFETY: both take the same.
        let named = |name: &[u8]| unsafe { driver.get::<EventElapsed>(name) }.ok().map(|f| *f);
        named(b"cuEventElapsedTime_v2").or_else(|| named(b"cuEventElapsedTime"))
    })
}

impl LibrarySearch {
    /// The first library that there is none of, or none that can be used.
    pub fn missing(&self) -> Option<&LibraryStatus> {
        self.libraries.iter().find(|l| l.loaded_from.is_none())
    }
}

impl std::fmt::Display for LibraryStatus {
    /// What became of the search.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.loaded_from, &self.problem) {
            (Some(at), _) => f.write_str(at),
            (None, Some(why)) => write!(f, "cannot be used: {why}"),
            (None, None) => f.write_str("not found"),
        }
    }
}

/// Looks once; the answer does not change while the program runs.
pub fn find_libraries() -> &'static LibrarySearch {
    static FOUND: OnceLock<LibrarySearch> = OnceLock::new();
    FOUND.get_or_init(|| {
        let search_paths = search_paths();
        let libraries = NEEDED.iter().map(|(name, functions)| find(name, functions, &search_paths)).collect();
        LibrarySearch { libraries, search_paths }
    })
}

fn find(name: &'static str, functions: &[&str], search_paths: &[PathBuf]) -> LibraryStatus {
    let names = cudarc::get_lib_name_candidates(name);
    // What the loader knows by name is what the binding takes, whatever it is.
    if let Some(known) = names.iter().find(|name| load(name).is_ok()) {
        return match usable(known, functions) {
            Ok(()) => LibraryStatus { name, loaded_from: Some(known.clone()), problem: None },
            Err(why) => LibraryStatus { name, loaded_from: None, problem: Some(why) },
        };
    }
    // One that is there and cannot be loaded is told of; that there is none under a name is not. Other loaders say that
    // otherwise.
    let spoilt = |name: &String| {
        let why = told(&load(name).err()?);
        (cfg!(target_env = "gnu") && !why.starts_with(&format!("{name}: cannot open shared object file: No such file")))
            .then(|| format!("{name} cannot be loaded ({why})"))
    };
    let mut problem = names.iter().find_map(spoilt);
    for path in search_paths.iter().flat_map(|f| files(f, name)).map(|p| p.display().to_string()) {
        let by_name = |()| match names.iter().any(|name| load(name).is_ok()) {
            true => Ok(()),
            false => Err(format!("{path} calls itself otherwise than those of CUDA 12 and 13 do")),
        };
        match usable(&path, functions).and_then(by_name) {
            Ok(()) => return LibraryStatus { name, loaded_from: Some(path), problem: None },
            Err(why) => _ = problem.get_or_insert(why),
        }
    }
    LibraryStatus { name, loaded_from: None, problem }
}

/// Loads a library, for good.
fn load(at: &str) -> Result<&'static Library, libloading::Error> {
    // SAFETY: NVIDIA's libraries may be loaded at any time; they are never unloaded.
    unsafe { Library::new(at) }.map(|library| &*Box::leak(Box::new(library)))
}

/// What the loader says, which the error itself does not.
fn told(e: &libloading::Error) -> String {
    e.source().map_or_else(|| e.to_string(), ToString::to_string)
}

/// Whether a library can be loaded and has these functions.
fn usable(at: &str, functions: &[&str]) -> Result<(), String> {
    let library = load(at).map_err(|e| format!("{at} cannot be loaded ({})", told(&e)))?;
    // SAFETY: only whether it is there is looked at.
    let lacks = functions.iter().find(|f| unsafe { library.get::<*const ()>(f.as_bytes()) }.is_err());
    lacks.map_or(Ok(()), |f| Err(format!("{at} has no `{f}`, as those of CUDA 12 and newer have")))
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
fn search_paths() -> Vec<PathBuf> {
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
    all.sort();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_library_or_an_old_one_is_told_and_not_used() {
        let folder = std::env::temp_dir().join(format!("mage-find-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("libnowhere.so.1");
        std::fs::write(&file, "garbage").unwrap();
        let found = find("nowhere", &["nowhereInit"], std::slice::from_ref(&folder));
        let nothing = find("nothing", &["nothingInit"], std::slice::from_ref(&folder));
        std::fs::remove_dir_all(&folder).unwrap();
        let said = found.to_string();
        assert!(
            found.loaded_from.is_none() && said.contains("cannot be used") && said.contains("libnowhere.so.1"),
            "{said}"
        );
        assert_eq!(nothing, LibraryStatus { name: "nothing", loaded_from: None, problem: None });
        assert_eq!(nothing.to_string(), "not found");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_library_without_what_is_called_there_is_not_used() {
        assert_eq!(usable("libc.so.6", &["malloc"]), Ok(()));
        let why = usable("libc.so.6", &["malloc", "cuTensorMapEncodeTiled"]).unwrap_err();
        assert_eq!(why, "libc.so.6 has no `cuTensorMapEncodeTiled`, as those of CUDA 12 and newer have");
    }
}
