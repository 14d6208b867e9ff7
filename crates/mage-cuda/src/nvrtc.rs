//! How do kernels become code for this card?
//!
//! They are compiled when a model is first used on a card, for its head size and how many heads share keys, and kept on disk
//! by everything that the result depends on: source, options, card, compiler and driver.

use crate::attention::TEAM_SHARED;
use crate::device::{CudaDevice, DeviceInfo};
use crate::error::{CudaError, Doing, Result};
use crate::fused_gemm;
use crate::shape::ModelShape;
use cudarc::driver::{result as driver, sys as driver_sys};
use cudarc::nvrtc::{result, sys};
use std::ffi::CString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// All kernels, in the order in which they build on each other.
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

/// The largest head that kernels are written for.
pub const MAX_HEAD_DIM: usize = 128;

/// The most query heads that may share keys.
pub const MAX_GROUP_SIZE: usize = 16;

macro_rules! functions {
    ($(#[$doc:meta])* $these:ident: $($name:ident),* $(,)?) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $these {
            $(pub(crate) $name: driver_sys::CUfunction,)*
        }

        impl $these {
            fn of(module: driver_sys::CUmodule) -> Result<Self> {
                let find = |name: &str| {
                    let name = CString::new(name).unwrap_or_default();
                    // SAFETY: the module was just loaded and stays.
                    unsafe { driver::module::get_function(module, name) }.doing("finding a kernel")
                };
                Ok($these { $($name: find(stringify!($name))?,)* })
            }
        }
    };
}

functions!(
    /// CublasLt of many single tokens.
    Dense: product, shared_product, gated_product,
);

functions!(
    /// Attention of whole sequences by two teams a block.
    Teams: team_attention, team_grad_keys, team_grad_queries,
);

functions!(
    /// The kernels by name.
    Functions:
    gather,
    scatter,
    embedding_grad,
    rms_norm,
    rms_norm_again,
    rms_norm_grad,
    add_partials,
    swiglu,
    swiglu_grad,
    narrow_all,
    squares,
    adamw,
    head_norm_rope,
    head_norm_rope_grad,
    attention,
    paged_attention,
    attention_delta,
    attention_grad_keys,
    attention_grad_queries,
    decode_attention,
    copy_pages,
    answer,
    distribution,
    distribution_grad,
);

/// How `decode_attention` uses a multiprocessor: by one block of a few warps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decode {
    /// The most warps of a block.
    pub(crate) most: usize,
    /// Bytes of shared memory that a warp has.
    pub(crate) warp: usize,
}

impl Decode {
    /// As few warps as ask for keys as fast as memory brings them, and the most that the kernel is compiled for.
    const LEAST: usize = 4;
    const MOST: usize = 8;
    /// Pages that a warp has room for.
    const STAGES: usize = 4;

    /// Where a block may have so many bytes of shared memory.
    fn new(shape: &ModelShape, most: usize) -> Self {
        let width = 2 * shape.head_dim.next_power_of_two().max(16);
        // For every page: its keys and values, and a token's queries, key, value, turns and place. Then some numbers. As the
        // kernel's source says, which checks it.
        let token = (shape.group_size() + 4) * width + 16;
        let warp =
            Self::STAGES * (2 * crate::BLOCK_SIZE * width + token) + (8 * (Self::STAGES + 2)).next_multiple_of(16);
        Decode { most: (most / warp).clamp(1, Self::MOST), warp }
    }

    /// For the keys of so many heads, on so many multiprocessors: how many warps a block has, and into how many parts keys are
    /// cut, so that every warp has some.
    pub(crate) fn plan(self, heads: usize, processors: usize) -> (usize, usize) {
        let least = Self::LEAST.min(self.most);
        let splits = (processors * least / heads.max(1)).clamp(1, 32);
        if splits > 1 {
            return (least, splits);
        }
        // Warps take one head's keys after the other: the fewer have none to take at the end, the better.
        let turns = |warps: usize| heads.div_ceil(processors * warps) * warps;
        ((least..=self.most).min_by_key(|&warps| turns(warps)).unwrap_or(least), 1)
    }
}

/// Kernels for one head size and sharing, loaded on a card.
pub(crate) struct Program {
    pub(crate) functions: Functions,
    /// Where the card and the heads are such that they can be had.
    pub(crate) dense: Option<Dense>,
    /// As above.
    pub(crate) teams: Option<Teams>,
    pub(crate) decode: Decode,
    module: driver_sys::CUmodule,
    card: Arc<CudaDevice>,
}

// SAFETY: a loaded module may be used from any thread.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

impl Program {
    /// From the cache, or compiled: some seconds.
    pub(crate) fn new(card: &Arc<CudaDevice>, shape: &ModelShape) -> Result<Self> {
        let (head_dim, sharing) = (shape.head_dim, shape.group_size());
        let info = card.info();
        let (major, minor) = info.compute_capability;
        // Hopper's own instructions are compiled for it alone.
        let hopper = major == 9;
        let decode = Decode::new(shape, card.shared_memory()?);
        let options = [
            format!("--gpu-architecture=sm_{major}{minor}{}", if hopper { "a" } else { "" }),
            format!("-DHOPPER={}", u8::from(hopper)),
            "--std=c++17".to_owned(),
            format!("-DHD={head_dim}"),
            format!("-DGROUP={sharing}"),
            format!("-DDECODE_STAGES={}", Decode::STAGES),
            format!("-DDECODE_SHARED={}", decode.warp),
            format!("-DPRODUCT_SHARED={}", fused_gemm::SHARED),
            format!("-DMOST_PARTS={}", fused_gemm::MOST_PARTS),
            format!("-DTEAM_SHARED={TEAM_SHARED}"),
        ];
        let file = cached(info, &options)?;
        card.bind()?;
        // SAFETY: a whole binary as the compiler gave it; unloaded when dropped.
        let load = |binary: &[u8]| unsafe { driver::module::load_data(binary.as_ptr().cast()) };
        let known = file.as_ref().and_then(|f| opened(&std::fs::read(f).ok()?).and_then(|b| load(b).ok()));
        let module = match known {
            Some(module) => module,
            None => {
                let binary = compile(&options)?;
                if let Some(file) = &file {
                    keep(file, &binary);
                }
                load(&binary).doing("loading the kernels")?
            }
        };
        let functions = Functions::of(module)?;
        let tensor_reads = hopper && shape.head_dim > 64;
        let dense = if tensor_reads { Some(Dense::of(module)?) } else { None };
        let teams = if tensor_reads { Some(Teams::of(module)?) } else { None };
        let products = dense.iter().flat_map(|d| [d.product, d.shared_product, d.gated_product]);
        let by_teams = teams.iter().flat_map(|t| [t.team_attention, t.team_grad_keys, t.team_grad_queries]);
        let program = Program { functions, dense, teams, decode, module, card: Arc::clone(card) };
        let (tile, f) = (shape.tile_bytes(), functions);
        for (f, shared) in [
            (f.attention, 4 * tile),
            (f.paged_attention, 4 * tile),
            (f.attention_grad_queries, 4 * tile),
            (f.attention_grad_keys, 6 * tile + 1024),
            (f.decode_attention, decode.most * decode.warp),
        ]
        .into_iter()
        .chain(products.map(|f| (f, fused_gemm::SHARED)))
        .chain(by_teams.map(|f| (f, TEAM_SHARED)))
        {
            use driver_sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as SHARED;
            // SAFETY: a kernel of the module.
            unsafe { driver::function::set_function_attribute(f, SHARED, shared as i32) }
                .doing("asking for shared memory")?;
        }
        Ok(program)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.card.bind().is_ok() {
            // SAFETY: loaded in `new`; nothing uses it any more.
            let _ = unsafe { driver::module::unload(self.module) };
        }
    }
}

/// Where the result of compiling would be kept; nowhere where there is no place for caches.
fn cached(info: &DeviceInfo, options: &[String]) -> Result<Option<PathBuf>> {
    let Some(folder) = cache_folder() else { return Ok(None) };
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the compiler writes two numbers.
    unsafe { sys::nvrtcVersion(&mut major, &mut minor) }.result().doing("asking the CUDA compiler for its version")?;
    let mut hasher = blake3::Hasher::new();
    for (name, text) in SOURCES {
        hasher.update(name.as_bytes()).update(text.as_bytes());
    }
    hasher.update(format!("{options:?} {} {} {major}.{minor}", info.name, info.driver_version).as_bytes());
    Ok(Some(folder.join(format!("{}.cubin", &hasher.finalize().to_hex()[..32]))))
}

/// Where compiled kernels are kept.
fn cache_folder() -> Option<PathBuf> {
    // Elsewhere than from the root it would be in whichever folder one happens to be.
    let named = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let home = named("XDG_CACHE_HOME").or_else(|| named("HOME").map(|h| h.join(".cache")))?;
    Some(home.join("mage/kernels"))
}

/// A binary with its hash before it: what is cut short or spoilt on disk must not be loaded, as the driver asks for no length.
fn sealed(binary: &[u8]) -> Vec<u8> {
    [blake3::hash(binary).as_bytes(), binary].concat()
}

/// The binary, if it is whole.
fn opened(file: &[u8]) -> Option<&[u8]> {
    let (hash, binary) = file.split_first_chunk::<32>()?;
    (blake3::hash(binary) == *hash && !binary.is_empty()).then_some(binary)
}

/// Nobody depends on the cache: where it cannot be written or read, the next start compiles again.
fn keep(file: &std::path::Path, binary: &[u8]) {
    let beside = file.with_extension(format!("{}.new", std::process::id()));
    let folder = file.parent().map(std::fs::create_dir_all).transpose();
    let written = folder.and_then(|_| std::fs::write(&beside, sealed(binary)));
    if written.and_then(|()| std::fs::rename(&beside, file)).is_err() {
        let _ = std::fs::remove_file(&beside);
    }
}

/// Compilers at work.
static COMPILING: AtomicUsize = AtomicUsize::new(0);

/// Whether kernels are being compiled now, which the first start of a shape of model on a card waits for.
pub fn is_compiling() -> bool {
    COMPILING.load(Ordering::Relaxed) > 0
}

/// Counts as a compiler at work while it is there.
struct AtWork;

impl AtWork {
    fn new() -> Self {
        COMPILING.fetch_add(1, Ordering::Relaxed);
        AtWork
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        COMPILING.fetch_sub(1, Ordering::Relaxed);
    }
}

fn compile(options: &[String]) -> Result<Vec<u8>> {
    let _at_work = AtWork::new();
    let doing = "compiling the kernels";
    let text: String = SOURCES.iter().map(|(name, text)| format!("#line 1 \"{name}\"\n{text}\n")).collect();
    let text = CString::new(text).map_err(|e| CudaError::new(doing, e.to_string()))?;
    let program = result::create_program(&text, None).doing(doing)?;
    // SAFETY: the program was just made, and is destroyed below; sizes are asked for first.
    unsafe {
        let compiled = result::compile_program(program, options);
        let log = result::get_program_log(program).unwrap_or_default();
        let binary = compiled.doing(doing).and_then(|()| {
            let mut size = 0;
            sys::nvrtcGetCUBINSize(program, &mut size).result().doing(doing)?;
            let mut binary = vec![0_u8; size];
            sys::nvrtcGetCUBIN(program, binary.as_mut_ptr().cast()).result().doing(doing)?;
            Ok(binary)
        });
        let _ = result::destroy_program(program);
        binary.map_err(|e| {
            let log: Vec<u8> = log.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
            let log = String::from_utf8_lossy(&log);
            CudaError { reason: format!("{}: {}", e.reason, log.trim()), ..e }
                .hint("the CUDA compiler library may be too old for this card")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binary_that_is_not_whole_is_compiled_again() {
        let file = sealed(b"kernels");
        assert_eq!(opened(&file), Some(&b"kernels"[..]));
        for len in 0..file.len() {
            assert_eq!(opened(&file[..len]), None, "{len} bytes");
        }
        for i in 0..file.len() {
            let mut spoilt = file.clone();
            spoilt[i] ^= 1;
            assert_eq!(opened(&spoilt), None, "byte {i}");
        }
        assert_eq!(opened(&sealed(b"")), None);
    }
    #[test]
    fn every_warp_has_keys_and_parts_are_no_more_than_the_warps() {
        let decode = Decode { most: 5, warp: 40_000 };
        for heads in 1..5000 {
            let (warps, splits) = decode.plan(heads, 132);
            assert!((4..=5).contains(&warps) && (1..=32).contains(&splits), "{heads}");
            assert!(splits == 1 || heads * splits <= 132 * warps, "{heads} heads in {splits} parts");
            assert!(heads * splits * 2 > 132 * warps || splits == 32, "{heads} heads leave most warps idle");
        }
        // 132 × 5 take these in two turns; 132 × 4 would need three, and have little to do in the last.
        assert_eq!(decode.plan(1280, 132), (5, 1));
        assert_eq!(decode.plan(2048, 132), (4, 1));
        // A card with little shared memory.
        assert_eq!(Decode { most: 2, warp: 40_000 }.plan(64, 132), (2, 4));
    }
}
