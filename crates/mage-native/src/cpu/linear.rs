//! Linear projections and their gradients. Shapes are (rows, outputs, inputs); weights have `outputs` rows and `inputs`
//! columns.

use super::gemm::{self, Lhs, Rhs};
use super::{Cpu, Strided};

/// A weight matrix packed into column panels for [`Cpu::linear`].
#[derive(Debug)]
pub(crate) struct PackedMatrix {
    data: Vec<f32>,
    outputs: usize,
    inputs: usize,
}

impl Cpu {
    pub(crate) fn pack(&self, weight: &[f32], outputs: usize, inputs: usize) -> PackedMatrix {
        let mut packed = PackedMatrix { data: vec![0.0; gemm::packed_len(outputs, inputs)], outputs, inputs };
        self.repack(weight, &mut packed);
        packed
    }

    /// Packs new weights of the same shape.
    pub(crate) fn repack(&self, weight: &[f32], packed: &mut PackedMatrix) {
        let PackedMatrix { data, outputs, inputs } = packed;
        if self.parallel && data.len() > 1 << 16 {
            gemm::pack_transposed_parallel(weight, *outputs, *inputs, *inputs, data);
        } else {
            gemm::pack_transposed(weight, *outputs, *inputs, *inputs, data);
        }
    }

    /// `y = x · Wᵀ`.
    pub(crate) fn linear(&self, x: &[f32], w: &PackedMatrix, y: &mut [f32]) {
        self.project(x, w, y, false);
    }

    /// `y += x · Wᵀ`.
    pub(crate) fn linear_add(&self, x: &[f32], w: &PackedMatrix, y: &mut [f32]) {
        self.project(x, w, y, true);
    }

    fn project(&self, x: &[f32], w: &PackedMatrix, y: &mut [f32], accumulate: bool) {
        let rows = x.len() / w.inputs;
        assert!(x.len() == rows * w.inputs && y.len() == rows * w.outputs);
        self.gemm((rows, w.outputs, w.inputs), Lhs::rows(x, w.inputs), w.rhs(), y, w.outputs, accumulate);
    }

    /// `dx = dy · W`.
    pub(crate) fn linear_input_grad(&self, dy: &[f32], w: &[f32], shape: (usize, usize, usize), dx: &mut [f32]) {
        let (rows, outputs, inputs) = shape;
        let right = Rhs::Rows { data: w, stride: inputs };
        self.gemm((rows, inputs, outputs), Lhs::rows(dy, outputs), right, dx, inputs, false);
    }

    /// `dx += dy · W`.
    pub(crate) fn linear_input_grad_add(&self, dy: &[f32], w: &[f32], shape: (usize, usize, usize), dx: &mut [f32]) {
        let (rows, outputs, inputs) = shape;
        let right = Rhs::Rows { data: w, stride: inputs };
        self.gemm((rows, inputs, outputs), Lhs::rows(dy, outputs), right, dx, inputs, true);
    }

    /// `dW += dyᵀ · x`.
    pub(crate) fn linear_weight_grad(&self, dy: &[f32], x: &[f32], shape: (usize, usize, usize), dw: &mut [f32]) {
        let (rows, outputs, inputs) = shape;
        let right = Rhs::Rows { data: x, stride: inputs };
        self.gemm((outputs, inputs, rows), Lhs::columns(dy, outputs), right, dw, inputs, true);
    }

    /// `y += x · Wᵀ` on column ranges of wider rows.
    pub(crate) fn linear_part_add(&self, x: Strided<&[f32]>, rows: usize, w: &PackedMatrix, y: Strided<&mut [f32]>) {
        let left = Lhs::rows(&x.data[x.first..], x.stride);
        self.gemm((rows, w.outputs, w.inputs), left, w.rhs(), &mut y.data[y.first..], y.stride, true);
    }

    /// `dx = dy · W` on column ranges of wider rows.
    pub(crate) fn linear_part_input_grad(
        &self,
        dy: Strided<&[f32]>,
        w: &[f32],
        (rows, outputs, inputs): (usize, usize, usize),
        dx: Strided<&mut [f32]>,
    ) {
        let left = Lhs::rows(&dy.data[dy.first..], dy.stride);
        let right = Rhs::Rows { data: w, stride: inputs };
        self.gemm((rows, inputs, outputs), left, right, &mut dx.data[dx.first..], dx.stride, false);
    }

    /// `dW += dyᵀ · x` on column ranges of wider rows.
    pub(crate) fn linear_part_weight_grad(
        &self,
        dy: Strided<&[f32]>,
        x: Strided<&[f32]>,
        (rows, outputs, inputs): (usize, usize, usize),
        dw: &mut [f32],
    ) {
        let left = Lhs::columns(&dy.data[dy.first..], dy.stride);
        let right = Rhs::Rows { data: &x.data[x.first..], stride: x.stride };
        self.gemm((outputs, inputs, rows), left, right, dw, inputs, true);
    }

    fn gemm(&self, shape: (usize, usize, usize), a: Lhs<'_>, b: Rhs<'_>, c: &mut [f32], ldc: usize, accumulate: bool) {
        gemm::gemm(self.level, self.parallel, shape, a, b, c, ldc, accumulate);
    }
}

impl PackedMatrix {
    fn rhs(&self) -> Rhs<'_> {
        Rhs::Packed { data: &self.data, k: self.inputs }
    }
}
