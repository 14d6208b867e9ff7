//! Matrix products, by cuBLASLt.
//!
//! Matrices are row-major here and column-major there, so each is its own transpose and factors change places. Operands
//! are bf16, sums fp32; results bf16 or fp32. What suits a shape is asked for once and kept.

use crate::buffer::DeviceBuffer;
use crate::error::{CudaError, Doing, Result};
use crate::library_search;
use crate::stream::Stream;
use cudarc::cublaslt::{result, sys};
use cudarc::driver::{result as driver, sys::CUevent_flags};
use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::MaybeUninit;

/// Scratch memory for products, in bytes.
const WORKSPACE: usize = 64 << 20;

/// How many ways to do a product are tried out.
const OFFERS: usize = 16;

/// For how many rows the way is chosen that all numbers of rows take where bits may not depend on it.
const USUAL_ROWS: usize = 64;
/// How many rows go at once there: that way needs scratch memory for each.
const MOST_ROWS: usize = 256;

/// The most plans that are kept of shapes that may never come again: each number of tokens is one.
const MOST_PLANS: usize = 8192;

/// A matrix: where its first number is, and how many numbers a row takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix {
    pub(crate) at: u64,
    pub(crate) stride: usize,
}

impl Matrix {
    pub(crate) fn new(at: u64, stride: usize) -> Self {
        Matrix { at, stride }
    }

    /// The same without the first columns, of a matrix of bf16 numbers.
    pub(crate) fn after(self, columns: usize) -> Self {
        Matrix { at: self.at + 2 * columns as u64, ..self }
    }
}

/// Which of the three products of a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// `y = x · Wᵀ`.
    Forward,
    /// `dx = dy · W`.
    Input,
    /// `dW = dyᵀ · x`, fp32.
    Weight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    kind: Kind,
    shape: (usize, usize, usize),
    strides: [usize; 4],
    wide: bool,
    add: bool,
    alignment: u32,
    tuned: bool,
}

struct Plan {
    description: Description,
    layouts: [Layout; 4],
    /// Ways to do it, the best first.
    offers: Vec<sys::cublasLtMatmulAlgo_t>,
}

/// CublasLt in the order of one stream.
pub(crate) struct CublasLt {
    handle: sys::cublasLtHandle_t,
    workspace: DeviceBuffer<u16>,
    plans: HashMap<Key, Plan>,
    /// Whether shapes that come again and again are being met: for these, what is offered is tried out.
    pub(crate) tuning: bool,
    /// Whether each row's product is the same bits whatever the number of rows.
    invariant: bool,
}

// SAFETY: used by one thread at a time, through `&mut`.
unsafe impl Send for CublasLt {}

impl CublasLt {
    pub(crate) fn new(stream: &Stream) -> Result<Self> {
        let workspace = DeviceBuffer::new(&stream.card, WORKSPACE / 2)?;
        Ok(CublasLt {
            handle: result::create_handle().doing("starting cuBLASLt")?,
            workspace,
            plans: HashMap::new(),
            tuning: false,
            invariant: false,
        })
    }

    /// CublasLt in which a row's result does not depend on how many rows there are: one way for all numbers of rows, a few
    /// of them at a time.
    pub(crate) fn invariant(stream: &Stream) -> Result<Self> {
        let mut products = Self::new(stream)?;
        products.invariant = true;
        Ok(products)
    }

    /// `shape` is (rows, outputs, inputs) of the linear layer. For [`Forward`](Kind::Forward) `a` is x and `b` is W; for
    /// [`Input`](Kind::Input) dy and W; for [`Weight`](Kind::Weight) dy and x. `base`, where there is one, is added; it may
    /// be the result itself. `wide` results are fp32.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn run(
        &mut self,
        stream: &Stream,
        kind: Kind,
        shape: (usize, usize, usize),
        a: Matrix,
        b: Matrix,
        base: Option<Matrix>,
        to: Matrix,
        wide: bool,
    ) -> Result<()> {
        self.scaled(stream, kind, shape, a, b, base, to, wide, 1.0)
    }

    /// The same, the product being multiplied by a number.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn scaled(
        &mut self,
        stream: &Stream,
        kind: Kind,
        shape: (usize, usize, usize),
        a: Matrix,
        b: Matrix,
        base: Option<Matrix>,
        to: Matrix,
        wide: bool,
        scale: f32,
    ) -> Result<()> {
        if shape.0 == 0 {
            return Ok(());
        }
        if self.invariant && shape.0 > MOST_ROWS {
            let size = if wide { 4 } else { 2 };
            for first in (0..shape.0).step_by(MOST_ROWS) {
                let after = |m: Matrix, size: usize| Matrix::new(m.at + (first * m.stride * size) as u64, m.stride);
                let part = (MOST_ROWS.min(shape.0 - first), shape.1, shape.2);
                let base = base.map(|m| after(m, size));
                self.scaled(stream, kind, part, after(a, 2), b, base, after(to, size), wide, scale)?;
            }
            return Ok(());
        }
        let c = base.unwrap_or(to);
        // Column-major there: the right factor comes first.
        let (first, second) = (b, a);
        let bits = [first.at, second.at, c.at, to.at].iter().fold(256, |all, at| all | at);
        let key = Key {
            kind,
            shape,
            strides: [first.stride, second.stride, c.stride, to.stride],
            wide,
            add: base.is_some(),
            alignment: if self.invariant { 16 } else { 1 << bits.trailing_zeros() },
            tuned: self.tuning,
        };
        if !self.plans.contains_key(&key) {
            let mut plan = self.plan(&key)?;
            if self.invariant {
                let (_, outputs, inputs) = shape;
                plan.offers =
                    std::mem::take(&mut self.plan(&Key { shape: (USUAL_ROWS, outputs, inputs), ..key })?.offers);
            }
            if key.tuned {
                self.tune(stream, &mut plan, &key, first, second)?;
            }
            if !key.tuned && self.plans.len() >= MOST_PLANS {
                self.plans.retain(|key, _| key.tuned);
            }
            self.plans.insert(key, plan);
        }
        let plan = &self.plans[&key];
        self.multiply(stream, plan, &plan.offers[0], [first, second, c, to], (scale, base.is_some()))
    }

    fn multiply(
        &self,
        stream: &Stream,
        plan: &Plan,
        algorithm: &sys::cublasLtMatmulAlgo_t,
        [first, second, c, to]: [Matrix; 4],
        (scale, add): (f32, bool),
    ) -> Result<()> {
        let beta = if add { 1.0_f32 } else { 0.0 };
        let pointer = |at: u64| at as *const c_void;
        // SAFETY: the operands are as large as the shape says, by whoever calls; the plan was made for the shape.
        let done = unsafe {
            result::matmul(
                self.handle,
                plan.description.0,
                std::ptr::from_ref(&scale).cast(),
                std::ptr::from_ref(&beta).cast(),
                pointer(first.at),
                plan.layouts[0].0,
                pointer(second.at),
                plan.layouts[1].0,
                pointer(c.at),
                plan.layouts[2].0,
                to.at as *mut c_void,
                plan.layouts[3].0,
                algorithm,
                self.workspace.at(0) as *mut c_void,
                WORKSPACE,
                stream.raw.cast(),
            )
        };
        // What failed may have failed earlier; then the driver knows more than cuBLAS says. While a stream records it cannot be
        // asked.
        done.doing("a matrix product").map_err(|e| match stream.records() {
            true => e,
            false => stream.wait().err().unwrap_or(e),
        })
    }

    fn plan(&self, key: &Key) -> Result<Plan> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        use sys::cublasLtMatmulPreferenceAttributes_t as Preference;
        use sys::cudaDataType_t::{CUDA_R_16BF as HALF, CUDA_R_32F as WIDE};
        let doing = "planning a matrix product";
        let (rows, outputs, inputs) = key.shape;
        // As (rows, columns) of the column-major first and second factors and the result, and which are turned.
        let ((m1, n1, turn1), (m2, n2, turn2), (m, n)) = match key.kind {
            Kind::Forward => ((inputs, outputs, true), (inputs, rows, false), (outputs, rows)),
            Kind::Input => ((inputs, outputs, false), (outputs, rows, false), (inputs, rows)),
            Kind::Weight => ((inputs, rows, false), (outputs, rows, true), (inputs, outputs)),
        };
        let out = if key.wide { WIDE } else { HALF };
        let layout = |kind, m: usize, n: usize, stride: usize| {
            result::create_matrix_layout(kind, m as u64, n as u64, stride as i64).map(Layout).doing(doing)
        };
        let layouts = [
            layout(HALF, m1, n1, key.strides[0])?,
            layout(HALF, m2, n2, key.strides[1])?,
            layout(out, m, n, key.strides[2])?,
            layout(out, m, n, key.strides[3])?,
        ];
        let description = result::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, WIDE);
        let description = description.map(Description).doing(doing)?;
        let preference = result::create_matmul_pref().map(Preferences).doing(doing)?;
        for (attribute, turn) in
            [(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, turn1), (Attribute::CUBLASLT_MATMUL_DESC_TRANSB, turn2)]
        {
            let value = i32::from(turn);
            // SAFETY: the attribute is a 32-bit number.
            unsafe {
                result::set_matmul_desc_attribute(description.0, attribute, std::ptr::from_ref(&value).cast(), 4)
            }
            .doing(doing)?;
        }
        let bytes = WORKSPACE as u64;
        // SAFETY: workspace is a 64-bit number, alignments are 32-bit ones; the results are counted by the library.
        let offers = unsafe {
            let set = |attribute, value: *const c_void, size| {
                result::set_matmul_pref_attribute(preference.0, attribute, value, size).doing(doing)
            };
            set(Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::ptr::from_ref(&bytes).cast(), 8)?;
            if self.invariant {
                // Sums that several blocks share are added in one order only where each leaves its part, in fp32, to be
                // added afterwards.
                let parts = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
                set(Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::ptr::from_ref(&parts).cast(), 4)?;
            }
            for attribute in [
                Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
            ] {
                set(attribute, std::ptr::from_ref(&key.alignment).cast(), 4)?;
            }
            let mut found = [MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed(); OFFERS];
            let mut count = 0;
            let asked = sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                description.0,
                layouts[0].0,
                layouts[1].0,
                layouts[2].0,
                layouts[3].0,
                preference.0,
                if key.tuned { OFFERS as i32 } else { 1 },
                found[0].as_mut_ptr(),
                &mut count,
            );
            asked.result().map_err(|e| CudaError::new(doing, format!("{:?} for {key:?}", e.0)))?;
            found[..count as usize].iter().map(|f| f.assume_init_ref().algo).collect::<Vec<_>>()
        };
        if offers.is_empty() {
            return Err(CudaError::new(doing, format!("cuBLASLt has nothing for {key:?}")));
        }
        Ok(Plan { description, layouts, offers })
    }

    /// Puts the fastest of what was offered first. CudaWeights are read afresh each time, as between steps they are.
    fn tune(&mut self, stream: &Stream, plan: &mut Plan, key: &Key, first: Matrix, second: Matrix) -> Result<()> {
        const REPEATS: usize = 5;
        let Some(elapsed) = library_search::event_elapsed() else { return Ok(()) };
        let (rows, outputs, _) = key.shape;
        let doing = "timing a matrix product";
        let scratch = DeviceBuffer::<f32>::zeros(&stream.card, rows * outputs.max(key.strides[3]))?;
        let sweep = DeviceBuffer::<u32>::new(&stream.card, 24 << 20)?;
        let to = Matrix::new(scratch.at(0), key.strides[3]);
        let events = [0; 2].map(|_| driver::event::create(CUevent_flags::CU_EVENT_DEFAULT).map(Event));
        let [Ok(before), Ok(after)] = events else { return Ok(()) };
        let mut times = Vec::with_capacity(plan.offers.len());
        for offer in &plan.offers {
            let mut best = f32::INFINITY;
            for _ in 0..REPEATS {
                sweep.clear(stream, 0, sweep.len())?;
                // SAFETY: events and stream are ours.
                unsafe { driver::event::record(before.0, stream.raw) }.doing(doing)?;
                let ran = self.multiply(stream, plan, offer, [first, second, to, to], (1.0, key.add));
                // SAFETY: as above.
                unsafe { driver::event::record(after.0, stream.raw) }.doing(doing)?;
                stream.wait()?;
                if ran.is_err() {
                    break;
                }
                let mut took = 0.0;
                // SAFETY: both were recorded and waited for.
                unsafe { elapsed(&mut took, before.0, after.0) }.result().doing(doing)?;
                best = best.min(took);
            }
            times.push(best);
        }
        let fastest = (0..times.len()).min_by(|a, b| times[*a].total_cmp(&times[*b])).unwrap_or(0);
        plan.offers.swap(0, fastest);
        plan.offers.truncate(1);
        Ok(())
    }
}

/// What a library made and takes back when it is dropped, whatever happened in between.
macro_rules! given_back {
    ($($name:ident($kind:ty) by $destroy:path;)*) => {$(
        struct $name($kind);

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: made by whoever wrapped it, destroyed once, and not used any more.
                let _ = unsafe { $destroy(self.0) };
            }
        }
    )*};
}

given_back! {
    Layout(sys::cublasLtMatrixLayout_t) by result::destroy_matrix_layout;
    Description(sys::cublasLtMatmulDesc_t) by result::destroy_matmul_desc;
    Preferences(sys::cublasLtMatmulPreference_t) by result::destroy_matmul_pref;
    Event(cudarc::driver::sys::CUevent) by driver::event::destroy;
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        self.plans.clear();
        if self.workspace.card().bind().is_err() {
            return;
        }
        let _nothing_is_recorded = crate::graph::unrecorded();
        // SAFETY: made in `new`.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}
