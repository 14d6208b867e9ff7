//! GEMMs with cuBLASLt.
//!
//! Matrices are row-major here and column-major in cuBLASLt, so operands are swapped. Operands are bf16, accumulation
//! is fp32, results are bf16 or fp32. The algorithm for each shape is selected once and cached.

use crate::buffer::DeviceBuffer;
use crate::error::{CudaError, ErrorContext, Result};
use crate::library_search;
use crate::stream::Stream;
use cudarc::cublaslt::{result, sys};
use cudarc::driver::{result as driver, sys::CUevent_flags};
use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::MaybeUninit;

/// cuBLASLt workspace in bytes.
const WORKSPACE_BYTES: usize = 64 << 20;

/// Algorithms that are timed per shape.
const MAX_ALGORITHMS: usize = 16;

/// With batch invariance, the algorithm for this number of rows is used for every number of rows.
const HEURISTIC_ROWS: usize = 64;
/// With batch invariance, at most this many rows per call: that algorithm needs workspace for each row.
const MAX_INVARIANT_ROWS: usize = 256;

/// Maximum number of cached plans of shapes that may not recur: every number of tokens is a shape.
const MAX_PLANS: usize = 8192;

/// A row-major matrix in device memory: its address and its row stride in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix {
    pub(crate) at: u64,
    pub(crate) stride: usize,
}

impl Matrix {
    pub(crate) fn new(at: u64, stride: usize) -> Self {
        Matrix { at, stride }
    }

    /// The matrix without its first columns. Elements must be bf16.
    pub(crate) fn skip_columns(self, columns: usize) -> Self {
        Matrix { at: self.at + 2 * columns as u64, ..self }
    }
}

/// The three GEMMs of a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum GemmKind {
    /// `y = x · Wᵀ`.
    Forward,
    /// `dx = dy · W`.
    InputGrad,
    /// `dW = dyᵀ · x`, fp32.
    WeightGrad,
}

/// A GEMM of a linear layer. Operands are bf16.
#[derive(Clone, Copy)]
pub(crate) struct Gemm {
    kind: GemmKind,
    /// Rows, outputs and inputs of the linear layer.
    shape: (usize, usize, usize),
    a: Matrix,
    b: Matrix,
    /// Added to the product; may be the output.
    base: Option<Matrix>,
    out: Matrix,
    /// Whether `base` and the output are fp32.
    f32_out: bool,
    /// Factor of the product.
    scale: f32,
}

impl Gemm {
    /// `a` and `b` are x and W for [`Forward`](GemmKind::Forward), dy and W for [`InputGrad`](GemmKind::InputGrad), dy
    /// and x for [`WeightGrad`](GemmKind::WeightGrad). `shape` is (rows, outputs, inputs) of the linear layer.
    pub(crate) fn new(kind: GemmKind, shape: (usize, usize, usize), a: Matrix, b: Matrix, out: Matrix) -> Self {
        Gemm { kind, shape, a, b, base: None, out, f32_out: kind == GemmKind::WeightGrad, scale: 1.0 }
    }

    /// Adds a matrix to the product.
    pub(crate) fn plus(self, base: Option<Matrix>) -> Self {
        Gemm { base, ..self }
    }

    /// Adds the product to the output.
    pub(crate) fn accumulate(self) -> Self {
        self.plus(Some(self.out))
    }

    /// Writes fp32 output, as weight gradients always are.
    pub(crate) fn f32_out(self) -> Self {
        Gemm { f32_out: true, ..self }
    }

    /// Multiplies the product by a factor.
    pub(crate) fn scaled(self, scale: f32) -> Self {
        Gemm { scale, ..self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct GemmKey {
    kind: GemmKind,
    shape: (usize, usize, usize),
    strides: [usize; 4],
    f32_out: bool,
    add: bool,
    alignment: u32,
    tuned: bool,
}

struct GemmPlan {
    desc: MatmulDesc,
    layouts: [MatrixLayout; 4],
    /// Algorithms, best first.
    algorithms: Vec<sys::cublasLtMatmulAlgo_t>,
}

/// cuBLASLt on one stream.
pub(crate) struct CublasLt {
    handle: sys::cublasLtHandle_t,
    workspace: DeviceBuffer<u16>,
    plans: HashMap<GemmKey, GemmPlan>,
    /// Whether recurring shapes are being planned. For these, the offered algorithms are timed.
    pub(crate) tuning: bool,
    /// Whether the bits of a row are independent of the number of rows.
    batch_invariant: bool,
}

// SAFETY: used by one thread at a time, through `&mut`.
unsafe impl Send for CublasLt {}

impl CublasLt {
    pub(crate) fn new(stream: &Stream) -> Result<Self> {
        let workspace = DeviceBuffer::new(&stream.device, WORKSPACE_BYTES / 2)?;
        Ok(CublasLt {
            handle: result::create_handle().context("creating a cuBLASLt handle")?,
            workspace,
            plans: HashMap::new(),
            tuning: false,
            batch_invariant: false,
        })
    }

    /// cuBLASLt with results independent of the number of rows: one algorithm for every number of rows, a limited
    /// number of rows per call.
    pub(crate) fn batch_invariant(stream: &Stream) -> Result<Self> {
        let mut cublas = Self::new(stream)?;
        cublas.batch_invariant = true;
        Ok(cublas)
    }

    /// Runs a GEMM.
    pub(crate) fn matmul(&mut self, stream: &Stream, gemm: Gemm) -> Result<()> {
        let Gemm { kind, shape, a, b, base, out, f32_out, scale } = gemm;
        if shape.0 == 0 {
            return Ok(());
        }
        if self.batch_invariant && shape.0 > MAX_INVARIANT_ROWS {
            let size = if f32_out { 4 } else { 2 };
            for first in (0..shape.0).step_by(MAX_INVARIANT_ROWS) {
                let after = |m: Matrix, size: usize| Matrix::new(m.at + (first * m.stride * size) as u64, m.stride);
                let shape = (MAX_INVARIANT_ROWS.min(shape.0 - first), shape.1, shape.2);
                let base = base.map(|m| after(m, size));
                self.matmul(stream, Gemm { shape, a: after(a, 2), base, out: after(out, size), ..gemm })?;
            }
            return Ok(());
        }
        let c = base.unwrap_or(out);
        // cuBLASLt is column-major: swap the operands.
        let (first, second) = (b, a);
        let address_bits = [first.at, second.at, c.at, out.at].iter().fold(256, |all, at| all | at);
        let key = GemmKey {
            kind,
            shape,
            strides: [first.stride, second.stride, c.stride, out.stride],
            f32_out,
            add: base.is_some(),
            alignment: if self.batch_invariant { 16 } else { 1 << address_bits.trailing_zeros() },
            tuned: self.tuning,
        };
        if !self.plans.contains_key(&key) {
            let mut plan = self.plan(&key)?;
            if self.batch_invariant {
                let (_, outputs, inputs) = shape;
                plan.algorithms = std::mem::take(
                    &mut self.plan(&GemmKey { shape: (HEURISTIC_ROWS, outputs, inputs), ..key })?.algorithms,
                );
            }
            if key.tuned {
                self.tune(stream, &mut plan, &key, first, second)?;
            }
            if !key.tuned && self.plans.len() >= MAX_PLANS {
                self.plans.retain(|key, _| key.tuned);
            }
            self.plans.insert(key, plan);
        }
        let plan = &self.plans[&key];
        self.execute(stream, plan, &plan.algorithms[0], [first, second, c, out], (scale, base.is_some()))
    }

    fn execute(
        &self,
        stream: &Stream,
        plan: &GemmPlan,
        algorithm: &sys::cublasLtMatmulAlgo_t,
        [first, second, c, out]: [Matrix; 4],
        (scale, add): (f32, bool),
    ) -> Result<()> {
        let beta = if add { 1.0_f32 } else { 0.0 };
        let pointer = |at: u64| at as *const c_void;
        // SAFETY: the caller guarantees operands of the given shape; the plan was made for that shape.
        let status = unsafe {
            result::matmul(
                self.handle,
                plan.desc.0,
                std::ptr::from_ref(&scale).cast(),
                std::ptr::from_ref(&beta).cast(),
                pointer(first.at),
                plan.layouts[0].0,
                pointer(second.at),
                plan.layouts[1].0,
                pointer(c.at),
                plan.layouts[2].0,
                out.at as *mut c_void,
                plan.layouts[3].0,
                algorithm,
                self.workspace.at(0) as *mut c_void,
                WORKSPACE_BYTES,
                stream.raw.cast(),
            )
        };
        // An earlier asynchronous error may be the cause, and the driver reports it in more detail. It cannot be
        // queried during a capture.
        status.context("a GEMM").map_err(|e| match stream.is_capturing() {
            true => e,
            false => stream.wait().err().unwrap_or(e),
        })
    }

    fn plan(&self, key: &GemmKey) -> Result<GemmPlan> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        use sys::cublasLtMatmulPreferenceAttributes_t as Preference;
        use sys::cudaDataType_t::{CUDA_R_16BF as BF16, CUDA_R_32F as F32};
        let operation = "planning a GEMM";
        let (rows, outputs, inputs) = key.shape;
        // (rows, columns) of the column-major operands and the result, and which operands are transposed.
        let ((m1, n1, transpose1), (m2, n2, transpose2), (m, n)) = match key.kind {
            GemmKind::Forward => ((inputs, outputs, true), (inputs, rows, false), (outputs, rows)),
            GemmKind::InputGrad => ((inputs, outputs, false), (outputs, rows, false), (inputs, rows)),
            GemmKind::WeightGrad => ((inputs, rows, false), (outputs, rows, true), (inputs, outputs)),
        };
        let out = if key.f32_out { F32 } else { BF16 };
        let layout = |kind, m: usize, n: usize, stride: usize| {
            result::create_matrix_layout(kind, m as u64, n as u64, stride as i64).map(MatrixLayout).context(operation)
        };
        let layouts = [
            layout(BF16, m1, n1, key.strides[0])?,
            layout(BF16, m2, n2, key.strides[1])?,
            layout(out, m, n, key.strides[2])?,
            layout(out, m, n, key.strides[3])?,
        ];
        let desc = result::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, F32);
        let desc = desc.map(MatmulDesc).context(operation)?;
        let preference = result::create_matmul_pref().map(MatmulPreference).context(operation)?;
        for (attribute, transpose) in
            [(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, transpose1), (Attribute::CUBLASLT_MATMUL_DESC_TRANSB, transpose2)]
        {
            let value = i32::from(transpose);
            // SAFETY: the attribute is a 32-bit integer.
            unsafe { result::set_matmul_desc_attribute(desc.0, attribute, std::ptr::from_ref(&value).cast(), 4) }
                .context(operation)?;
        }
        let bytes = WORKSPACE_BYTES as u64;
        // SAFETY: the workspace size is a 64-bit integer, alignments are 32-bit; the library returns the number of
        // results.
        let algorithms = unsafe {
            let set = |attribute, value: *const c_void, size| {
                result::set_matmul_pref_attribute(preference.0, attribute, value, size).context(operation)
            };
            set(Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::ptr::from_ref(&bytes).cast(), 8)?;
            if self.batch_invariant {
                // Split-K sums are deterministic only if each thread block stores its part in fp32 and the parts are
                // summed afterwards.
                let partial_sums = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
                set(
                    Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                    std::ptr::from_ref(&partial_sums).cast(),
                    4,
                )?;
            }
            for attribute in [
                Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
            ] {
                set(attribute, std::ptr::from_ref(&key.alignment).cast(), 4)?;
            }
            let mut heuristics = [MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed(); MAX_ALGORITHMS];
            let mut count = 0;
            let status = sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                desc.0,
                layouts[0].0,
                layouts[1].0,
                layouts[2].0,
                layouts[3].0,
                preference.0,
                if key.tuned { MAX_ALGORITHMS as i32 } else { 1 },
                heuristics[0].as_mut_ptr(),
                &mut count,
            );
            status.result().map_err(|e| CudaError::new(operation, format!("{:?} for {key:?}", e.0)))?;
            heuristics[..count as usize].iter().map(|f| f.assume_init_ref().algo).collect::<Vec<_>>()
        };
        if algorithms.is_empty() {
            return Err(CudaError::new(operation, format!("cuBLASLt has no algorithm for {key:?}")));
        }
        Ok(GemmPlan { desc, layouts, algorithms })
    }

    /// Times the algorithms and keeps the fastest. Flushes the L2 cache before each run, since weights are not cached
    /// between steps.
    fn tune(
        &mut self,
        stream: &Stream,
        plan: &mut GemmPlan,
        key: &GemmKey,
        first: Matrix,
        second: Matrix,
    ) -> Result<()> {
        const REPEATS: usize = 5;
        let Some(elapsed) = library_search::event_elapsed() else { return Ok(()) };
        let (rows, outputs, _) = key.shape;
        let operation = "timing a GEMM";
        let scratch = DeviceBuffer::<f32>::zeros(&stream.device, rows * outputs.max(key.strides[3]))?;
        let l2_flush = DeviceBuffer::<u32>::new(&stream.device, 24 << 20)?;
        let out = Matrix::new(scratch.at(0), key.strides[3]);
        let events = [0; 2].map(|_| driver::event::create(CUevent_flags::CU_EVENT_DEFAULT).map(CudaEvent));
        let [Ok(before), Ok(after)] = events else { return Ok(()) };
        let mut times = Vec::with_capacity(plan.algorithms.len());
        for algorithm in &plan.algorithms {
            let mut best = f32::INFINITY;
            for _ in 0..REPEATS {
                l2_flush.clear(stream, 0, l2_flush.len())?;
                // SAFETY: the event and the stream are valid.
                unsafe { driver::event::record(before.0, stream.raw) }.context(operation)?;
                let ran = self.execute(stream, plan, algorithm, [first, second, out, out], (1.0, key.add));
                // SAFETY: as above.
                unsafe { driver::event::record(after.0, stream.raw) }.context(operation)?;
                stream.wait()?;
                if ran.is_err() {
                    break;
                }
                let mut milliseconds = 0.0;
                // SAFETY: both events were recorded and have completed.
                unsafe { elapsed(&mut milliseconds, before.0, after.0) }.result().context(operation)?;
                best = best.min(milliseconds);
            }
            times.push(best);
        }
        let fastest = (0..times.len()).min_by(|a, b| times[*a].total_cmp(&times[*b])).unwrap_or(0);
        plan.algorithms.swap(0, fastest);
        plan.algorithms.truncate(1);
        Ok(())
    }
}

/// A library object that is destroyed on drop.
macro_rules! destroy_on_drop {
    ($($name:ident($kind:ty) by $destroy:path;)*) => {$(
        struct $name($kind);

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: created by the code that wrapped it, destroyed once and not used afterwards.
                let _ = unsafe { $destroy(self.0) };
            }
        }
    )*};
}

destroy_on_drop! {
    MatrixLayout(sys::cublasLtMatrixLayout_t) by result::destroy_matrix_layout;
    MatmulDesc(sys::cublasLtMatmulDesc_t) by result::destroy_matmul_desc;
    MatmulPreference(sys::cublasLtMatmulPreference_t) by result::destroy_matmul_pref;
    CudaEvent(cudarc::driver::sys::CUevent) by driver::event::destroy;
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        self.plans.clear();
        if self.workspace.device().bind().is_err() {
            return;
        }
        let _guard = crate::graph::no_capture_guard();
        // SAFETY: created in `new`.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}
