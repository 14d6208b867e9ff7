//! Runtime compilation of the kernels, and their cache on disk.
//!
//! Kernels are compiled for a head dimension and a GQA group size when a model is first used on a GPU. The cache key
//! covers everything the binary depends on: source, options, GPU, compiler and driver.

use crate::attention::WS_SHARED_BYTES;
use crate::device::{CudaDevice, DeviceInfo};
use crate::error::{CudaError, ErrorContext, Result};
use crate::fused_gemm;
use crate::shape::ModelShape;
use cudarc::driver::{result as driver, sys as driver_sys};
use cudarc::nvrtc::{result, sys};
use std::ffi::CString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// All kernel sources, in order of dependency.
const SOURCES: [(&str, &str); 10] = [
    ("common.cuh", include_str!("kernels/common.cuh")),
    ("elementwise.cu", include_str!("kernels/elementwise.cu")),
    ("rope.cu", include_str!("kernels/rope.cu")),
    ("mma.cuh", include_str!("kernels/mma.cuh")),
    ("mbarrier.cuh", include_str!("kernels/mbarrier.cuh")),
    ("flash_attention.cu", include_str!("kernels/flash_attention.cu")),
    ("flash_attention_ws.cu", include_str!("kernels/flash_attention_ws.cu")),
    ("paged_decode.cu", include_str!("kernels/paged_decode.cu")),
    ("fused_gemm.cu", include_str!("kernels/fused_gemm.cu")),
    ("sampling.cu", include_str!("kernels/sampling.cu")),
];

/// Largest supported head dimension.
pub(crate) const MAX_HEAD_DIM: usize = 128;

/// Largest supported number of query heads per key/value head.
pub(crate) const MAX_GROUP_SIZE: usize = 16;

macro_rules! kernel_functions {
    ($(#[$doc:meta])* $kernel_set:ident: $($name:ident),* $(,)?) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $kernel_set {
            $(pub(crate) $name: driver_sys::CUfunction,)*
        }

        impl $kernel_set {
            fn of(module: driver_sys::CUmodule) -> Result<Self> {
                let find = |name: &str| {
                    let name = CString::new(name).unwrap_or_default();
                    // SAFETY: the module was just loaded and stays loaded.
                    unsafe { driver::module::get_function(module, name) }.context("looking up a kernel")
                };
                Ok($kernel_set { $($name: find(stringify!($name))?,)* })
            }
        }
    };
}

kernel_functions!(
    /// GEMMs for decode batches with fused norm and activation.
    FusedGemmKernels: fused_gemm, fused_gemm_split_k, fused_gemm_swiglu,
);

kernel_functions!(
    /// Warp-specialised flash attention.
    WarpSpecializedKernels: flash_attention_ws, flash_attention_ws_grad_kv, flash_attention_ws_grad_q,
);

kernel_functions!(
    /// Kernels that every supported GPU has.
    CommonKernels:
    gather_rows,
    scatter_add_rows,
    embedding_grad,
    rms_norm,
    rms_norm_recompute,
    rms_norm_grad,
    reduce_partials,
    swiglu,
    swiglu_grad,
    f32_to_bf16,
    sum_of_squares,
    adamw,
    head_norm_rope,
    head_norm_rope_grad,
    flash_attention,
    paged_flash_attention,
    flash_attention_delta,
    flash_attention_grad_kv,
    flash_attention_grad_q,
    paged_decode_attention,
    copy_blocks,
    sample_or_score,
    token_logprobs,
    token_logprobs_grad,
);

/// Launch configuration of `paged_decode_attention`: one thread block of a few warps per SM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DecodeConfig {
    /// Maximum number of warps per thread block.
    pub(crate) max_warps: usize,
    /// Bytes of shared memory per warp.
    pub(crate) warp_bytes: usize,
}

impl DecodeConfig {
    /// The fewest warps that saturate memory bandwidth, and the most that the kernel is compiled for.
    const MIN_WARPS: usize = 4;
    const MAX_WARPS: usize = 8;
    /// KV blocks in flight per warp.
    const STAGES: usize = 4;

    /// The configuration for this many bytes of shared memory per thread block.
    fn new(shape: &ModelShape, shared_bytes: usize) -> Self {
        let row_bytes = 2 * shape.head_dim.next_power_of_two().max(16);
        // Per KV block: its keys and values, and a token's queries, key, value, RoPE row and block id. Then the queue
        // entries. A static_assert in the kernel source checks the sum.
        let token_bytes = (shape.group_size() + 4) * row_bytes + 16;
        let warp_bytes = Self::STAGES * (2 * mage_engine::model::BLOCK_SIZE * row_bytes + token_bytes)
            + (8 * (Self::STAGES + 2)).next_multiple_of(16);
        DecodeConfig { max_warps: (shared_bytes / warp_bytes).clamp(1, Self::MAX_WARPS), warp_bytes }
    }

    /// For this many (sequence, KV head) pairs on this many SMs: warps per thread block, and splits per pair such that
    /// every warp has work.
    pub(crate) fn plan(self, heads: usize, num_sms: usize) -> (usize, usize) {
        let min_warps = Self::MIN_WARPS.min(self.max_warps);
        let splits = (num_sms * min_warps / heads.max(1)).clamp(1, 32);
        if splits > 1 {
            return (min_warps, splits);
        }
        // Each warp processes one pair at a time: fewer idle warps in the last round are better.
        let rounds = |warps: usize| heads.div_ceil(num_sms * warps) * warps;
        ((min_warps..=self.max_warps).min_by_key(|&warps| rounds(warps)).unwrap_or(min_warps), 1)
    }
}

/// The compiled kernels for one head dimension and group size, loaded on a GPU.
pub(crate) struct KernelModule {
    pub(crate) common: CommonKernels,
    /// Only on GPUs with wgmma and for head dimensions above 64.
    pub(crate) fused_gemm: Option<FusedGemmKernels>,
    /// Only on GPUs with wgmma and for head dimensions above 64.
    pub(crate) warp_specialized: Option<WarpSpecializedKernels>,
    pub(crate) decode: DecodeConfig,
    module: driver_sys::CUmodule,
    device: Arc<CudaDevice>,
}

// SAFETY: a loaded module may be used from any thread.
unsafe impl Send for KernelModule {}
// SAFETY: as above.
unsafe impl Sync for KernelModule {}

impl KernelModule {
    /// Loads the kernels from the cache, or compiles them, which takes some seconds.
    pub(crate) fn new(device: &Arc<CudaDevice>, shape: &ModelShape) -> Result<Self> {
        let (head_dim, group_size) = (shape.head_dim, shape.group_size());
        let info = device.info();
        let (major, minor) = info.compute_capability;
        // Architecture-specific instructions of Hopper require their own target (sm_90a).
        let hopper = major == 9;
        let decode = DecodeConfig::new(shape, device.shared_memory()?);
        let options = [
            format!("--gpu-architecture=sm_{major}{minor}{}", if hopper { "a" } else { "" }),
            format!("-DHOPPER={}", u8::from(hopper)),
            "--std=c++17".to_owned(),
            format!("-DHEAD_DIM={head_dim}"),
            format!("-DGROUP_SIZE={group_size}"),
            format!("-DDECODE_STAGES={}", DecodeConfig::STAGES),
            format!("-DDECODE_SHARED_BYTES={}", decode.warp_bytes),
            format!("-DFUSED_GEMM_SHARED_BYTES={}", fused_gemm::SHARED_BYTES),
            format!("-DMAX_NORM_PARTIALS={}", fused_gemm::MAX_NORM_PARTIALS),
            format!("-DWS_SHARED_BYTES={WS_SHARED_BYTES}"),
        ];
        let file = cache_file(info, &options)?;
        device.bind()?;
        // SAFETY: a complete binary from the compiler; unloaded on drop.
        let load = |binary: &[u8]| unsafe { driver::module::load_data(binary.as_ptr().cast()) };
        let cached_module = file.as_ref().and_then(|f| verified(&std::fs::read(f).ok()?).and_then(|b| load(b).ok()));
        let module = match cached_module {
            Some(module) => module,
            None => {
                let binary = compile(&options)?;
                if let Some(file) = &file {
                    store(file, &binary);
                }
                load(&binary).context("loading the kernels")?
            }
        };
        let common = CommonKernels::of(module)?;
        let has_wgmma = hopper && shape.head_dim > 64;
        let fused_gemm = if has_wgmma { Some(FusedGemmKernels::of(module)?) } else { None };
        let warp_specialized = if has_wgmma { Some(WarpSpecializedKernels::of(module)?) } else { None };
        let gemm_kernels = fused_gemm.iter().flat_map(|d| [d.fused_gemm, d.fused_gemm_split_k, d.fused_gemm_swiglu]);
        let ws_kernels = warp_specialized
            .iter()
            .flat_map(|t| [t.flash_attention_ws, t.flash_attention_ws_grad_kv, t.flash_attention_ws_grad_q]);
        let kernels = KernelModule { common, fused_gemm, warp_specialized, decode, module, device: Arc::clone(device) };
        let (tile_bytes, f) = (shape.tile_bytes(), common);
        for (f, shared) in [
            (f.flash_attention, 4 * tile_bytes),
            (f.paged_flash_attention, 4 * tile_bytes),
            (f.flash_attention_grad_q, 4 * tile_bytes),
            (f.flash_attention_grad_kv, 6 * tile_bytes + 1024),
            (f.paged_decode_attention, decode.max_warps * decode.warp_bytes),
        ]
        .into_iter()
        .chain(gemm_kernels.map(|f| (f, fused_gemm::SHARED_BYTES)))
        .chain(ws_kernels.map(|f| (f, WS_SHARED_BYTES)))
        {
            use driver_sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as MAX_SHARED;
            // SAFETY: a kernel of the module.
            unsafe { driver::function::set_function_attribute(f, MAX_SHARED, shared as i32) }
                .context("reserving shared memory for a kernel")?;
        }
        Ok(kernels)
    }
}

impl Drop for KernelModule {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: loaded in `new` and no longer used.
            let _ = unsafe { driver::module::unload(self.module) };
        }
    }
}

/// Cache file of a compiled binary; `None` without a cache directory.
fn cache_file(info: &DeviceInfo, options: &[String]) -> Result<Option<PathBuf>> {
    let Some(dir) = cache_dir() else { return Ok(None) };
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the compiler library writes two integers.
    unsafe { sys::nvrtcVersion(&mut major, &mut minor) }
        .result()
        .context("querying the version of the CUDA compiler")?;
    let mut hasher = blake3::Hasher::new();
    for (name, source) in SOURCES {
        hasher.update(name.as_bytes()).update(source.as_bytes());
    }
    hasher.update(format!("{options:?} {} {} {major}.{minor}", info.name, info.driver_version).as_bytes());
    Ok(Some(dir.join(format!("{}.cubin", &hasher.finalize().to_hex()[..32]))))
}

/// Directory of compiled kernels.
fn cache_dir() -> Option<PathBuf> {
    // Relative paths would depend on the current directory.
    let from_env = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let home = from_env("XDG_CACHE_HOME").or_else(|| from_env("HOME").map(|h| h.join(".cache")))?;
    Some(home.join("mage/kernels"))
}

/// The binary, preceded by its hash: a truncated or corrupt file must not be loaded, since the driver takes no length.
fn with_checksum(binary: &[u8]) -> Vec<u8> {
    [blake3::hash(binary).as_bytes(), binary].concat()
}

/// The binary, if its hash matches.
fn verified(file: &[u8]) -> Option<&[u8]> {
    let (hash, binary) = file.split_first_chunk::<32>()?;
    (blake3::hash(binary) == *hash && !binary.is_empty()).then_some(binary)
}

/// Writes a cache file. Failures are ignored: the next start compiles again.
fn store(file: &std::path::Path, binary: &[u8]) {
    let temporary = file.with_extension(format!("{}.new", std::process::id()));
    let dir = file.parent().map(std::fs::create_dir_all).transpose();
    let written = dir.and_then(|_| std::fs::write(&temporary, with_checksum(binary)));
    if written.and_then(|()| std::fs::rename(&temporary, file)).is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
}

/// Number of compilations in progress.
static COMPILING: AtomicUsize = AtomicUsize::new(0);

/// Whether kernels are being compiled. This delays the first start of each model shape on a GPU.
pub fn is_compiling() -> bool {
    COMPILING.load(Ordering::Relaxed) > 0
}

/// Counts as a compilation in progress until dropped.
struct CompilationGuard;

impl CompilationGuard {
    fn new() -> Self {
        COMPILING.fetch_add(1, Ordering::Relaxed);
        CompilationGuard
    }
}

impl Drop for CompilationGuard {
    fn drop(&mut self) {
        COMPILING.fetch_sub(1, Ordering::Relaxed);
    }
}

fn compile(options: &[String]) -> Result<Vec<u8>> {
    let _guard = CompilationGuard::new();
    let operation = "compiling the kernels";
    let source: String = SOURCES.iter().map(|(name, source)| format!("#line 1 \"{name}\"\n{source}\n")).collect();
    let source = CString::new(source).map_err(|e| CudaError::new(operation, e.to_string()))?;
    let kernels = result::create_program(&source, None).context(operation)?;
    // SAFETY: the program was just created and is destroyed below; buffers have the queried sizes.
    unsafe {
        let compiled = result::compile_program(kernels, options);
        let log = result::get_program_log(kernels).unwrap_or_default();
        let binary = compiled.context(operation).and_then(|()| {
            let mut size = 0;
            sys::nvrtcGetCUBINSize(kernels, &mut size).result().context(operation)?;
            let mut binary = vec![0_u8; size];
            sys::nvrtcGetCUBIN(kernels, binary.as_mut_ptr().cast()).result().context(operation)?;
            Ok(binary)
        });
        let _ = result::destroy_program(kernels);
        binary.map_err(|e| {
            let log: Vec<u8> = log.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
            let log = String::from_utf8_lossy(&log);
            CudaError { reason: format!("{}: {}", e.reason, log.trim()), ..e }
                .hint("the CUDA compiler library may be too old for this GPU")
        })
    }
}

#[cfg(test)]
#[warn(dead_code)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn corrupt_cached_binaries_are_rejected() {
        let file = with_checksum(b"kernels");
        assert_eq!(verified(&file), Some(&b"kernels"[..]));
        for len in 0..file.len() {
            assert_eq!(verified(&file[..len]), None, "{len} bytes");
        }
        for i in 0..file.len() {
            let mut corrupt = file.clone();
            corrupt[i] ^= 1;
            assert_eq!(verified(&corrupt), None, "byte {i}");
        }
        assert_eq!(verified(&with_checksum(b"")), None);
    }
    pub(crate) fn every_warp_has_work_and_splits_do_not_exceed_warps() {
        let decode = DecodeConfig { max_warps: 5, warp_bytes: 40_000 };
        for heads in 1..5000 {
            let (warps, splits) = decode.plan(heads, 132);
            assert!((4..=5).contains(&warps) && (1..=32).contains(&splits), "{heads}");
            assert!(splits == 1 || heads * splits <= 132 * warps, "{heads} heads in {splits} splits");
            assert!(heads * splits * 2 > 132 * warps || splits == 32, "{heads} heads leave most warps idle");
        }
        // 132 × 5 warps take two rounds; 132 × 4 would take three and idle in the last.
        assert_eq!(decode.plan(1280, 132), (5, 1));
        assert_eq!(decode.plan(2048, 132), (4, 1));
        // A GPU with little shared memory.
        assert_eq!(DecodeConfig { max_warps: 2, warp_bytes: 40_000 }.plan(64, 132), (2, 4));
    }
}
