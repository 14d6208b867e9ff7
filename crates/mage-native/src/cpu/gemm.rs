//! Batch-invariant GEMM.
//!
//! Every output element is one chain of fused multiply-adds in the order of the contracted index, starting from 0 or from the
//! present value. The result therefore does not depend on tiling, number of rows or threads: a tile that stops after part of
//! the contracted index stores exactly the partial sum it later continues from.

use super::shared_ptr::{SharedConst, SharedMut};
use crate::cpu::simd::{LANES, Lanes, SimdLevel, simd_dispatch};
use rayon::prelude::*;
use std::cell::RefCell;

/// Columns of a packed panel: two vectors.
pub(crate) const PANEL: usize = 2 * LANES;
/// Block size along the contracted index; a panel of this depth fits the L1 cache.
const DEPTH: usize = 256;
/// Rows of the largest tile.
const TILE: usize = 12;
/// Multiply-adds below which a GEMM runs on one thread.
const MIN_PARALLEL_WORK: usize = 1 << 18;

/// The left matrix: element (row, k) is at `row · row_stride + k · k_stride`.
#[derive(Clone, Copy)]
pub(crate) struct Lhs<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) row_stride: usize,
    pub(crate) k_stride: usize,
}

impl<'a> Lhs<'a> {
    /// Rows of `k` contiguous values.
    pub(crate) fn rows(data: &'a [f32], stride: usize) -> Self {
        Lhs { data, row_stride: stride, k_stride: 1 }
    }

    /// The transpose of a row-major matrix; the GEMM contracts over its rows.
    pub(crate) fn columns(data: &'a [f32], stride: usize) -> Self {
        Lhs { data, row_stride: 1, k_stride: stride }
    }

    fn skip_rows(self, row: usize) -> Self {
        Lhs { data: &self.data[(row * self.row_stride).min(self.data.len())..], ..self }
    }
}

/// The right matrix, with `k` rows.
#[derive(Clone, Copy)]
pub(crate) enum Rhs<'a> {
    /// Element (k, column) at `k · stride + column`.
    Rows { data: &'a [f32], stride: usize },
    /// Packed by [`pack_transposed`] or [`pack_rows`].
    Packed { data: &'a [f32], k: usize },
}

/// Floats needed to pack a matrix of `n` columns.
pub(crate) fn packed_len(n: usize, k: usize) -> usize {
    n.div_ceil(PANEL) * PANEL * k
}

/// Packs the transpose of a matrix with `n` rows of `k` values, `stride` apart, as a right-hand side.
pub(crate) fn pack_transposed(w: &[f32], n: usize, k: usize, stride: usize, out: &mut [f32]) {
    for (p, panel) in out[..packed_len(n, k)].chunks_exact_mut(PANEL * k.max(1)).enumerate() {
        pack_panel(&w[p * PANEL * stride..], PANEL.min(n - p * PANEL), k, stride, panel);
    }
}

/// [`pack_transposed`] with parallel panels.
pub(crate) fn pack_transposed_parallel(w: &[f32], n: usize, k: usize, stride: usize, out: &mut [f32]) {
    out[..packed_len(n, k)].par_chunks_exact_mut(PANEL * k.max(1)).enumerate().for_each(|(p, panel)| {
        pack_panel(&w[p * PANEL * stride..], PANEL.min(n - p * PANEL), k, stride, panel);
    });
}

fn pack_panel(w: &[f32], columns: usize, k: usize, stride: usize, panel: &mut [f32]) {
    if columns < PANEL {
        panel.fill(0.0);
    }
    // A short segment of every row at a time, so that written lines stay in cache until they are full.
    const SEGMENT: usize = 64;
    for from in (0..k).step_by(SEGMENT) {
        let len = SEGMENT.min(k - from);
        let lines = &mut panel[from * PANEL..][..len * PANEL];
        for c in 0..columns {
            let row = &w[c * stride + from..][..len];
            for (line, x) in lines.chunks_exact_mut(PANEL).zip(row) {
                line[c] = *x;
            }
        }
    }
}

thread_local! {
    static SCRATCH: RefCell<(Vec<f32>, Vec<f32>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// `c = a · b`, or `c += a · b` with `accumulate`: `m` rows of `n` values, `ldc` apart.
#[allow(clippy::too_many_arguments)]
pub(crate) fn gemm(
    level: SimdLevel,
    parallel: bool,
    (m, n, k): (usize, usize, usize),
    a: Lhs<'_>,
    b: Rhs<'_>,
    c: &mut [f32],
    ldc: usize,
    accumulate: bool,
) {
    if m == 0 || n == 0 {
        return;
    }
    check(m, n, k, a, b, c.len(), ldc);
    let c = SharedMut::new(c);
    if !parallel || m * n * k < MIN_PARALLEL_WORK || rayon::current_num_threads() == 1 {
        return gemm_single_thread(level, (m, n, k), a, b, c, ldc, accumulate);
    }
    // Split by rows if there are many, else by columns; the results are equal.
    let threads = rayon::current_num_threads();
    if m >= 2 * TILE * threads {
        let rows = m.div_ceil(2 * threads).next_multiple_of(TILE);
        (0..m.div_ceil(rows)).into_par_iter().for_each(|i| {
            let first = i * rows;
            let part = (rows.min(m - first), n, k);
            gemm_single_thread(level, part, a.skip_rows(first), b, c.offset(first * ldc), ldc, accumulate);
        });
    } else {
        let columns = n.div_ceil(2 * threads).next_multiple_of(PANEL);
        (0..n.div_ceil(columns)).into_par_iter().for_each(|j| {
            let first = j * columns;
            let part = (m, columns.min(n - first), k);
            let right = match b {
                Rhs::Rows { data, stride } => Rhs::Rows { data: &data[first..], stride },
                Rhs::Packed { data, k } => Rhs::Packed { data: &data[first * k..], k },
            };
            gemm_single_thread(level, part, a, right, c.offset(first), ldc, accumulate);
        });
    }
}

/// Single-threaded [`gemm`] into part of a buffer whose other parts other threads may write.
///
/// # Safety
/// The `m` rows of `n` values, `ldc` apart, must lie within one buffer, and no other thread may access them during the call.
pub(crate) unsafe fn gemm_into(
    level: SimdLevel,
    (m, n, k): (usize, usize, usize),
    a: Lhs<'_>,
    b: Rhs<'_>,
    c: SharedMut,
    ldc: usize,
    accumulate: bool,
) {
    if m > 0 && n > 0 {
        check(m, n, k, a, b, (m - 1) * ldc + n, ldc);
        gemm_single_thread(level, (m, n, k), a, b, c, ldc, accumulate);
    }
}

/// Checks all lengths that the pointer arithmetic below relies on.
fn check(m: usize, n: usize, k: usize, a: Lhs<'_>, b: Rhs<'_>, c_len: usize, ldc: usize) {
    assert!(ldc >= n && (m - 1) * ldc + n <= c_len, "gemm: output too short");
    if k == 0 {
        return;
    }
    assert!((m - 1) * a.row_stride + (k - 1) * a.k_stride < a.data.len(), "gemm: lhs too short");
    match b {
        Rhs::Rows { data, stride } => assert!((k - 1) * stride + n <= data.len(), "gemm: rhs too short"),
        Rhs::Packed { data, k: packed } => {
            assert!(packed == k && packed_len(n, k) <= data.len(), "gemm: rhs packed for another shape");
        }
    }
}

fn gemm_single_thread(
    level: SimdLevel,
    (m, n, k): (usize, usize, usize),
    a: Lhs<'_>,
    b: Rhs<'_>,
    c: SharedMut,
    ldc: usize,
    accumulate: bool,
) {
    SCRATCH.with_borrow_mut(|(left, right)| {
        for from in (0..k.max(1)).step_by(DEPTH) {
            let depth = DEPTH.min(k - from);
            let block = GemmBlock { m, n, depth, ldc, accumulate: accumulate || from > 0 };
            // A strided left matrix is packed into tiles first.
            let a_block = if a.k_stride == 1 || m < TILE {
                Tiles {
                    data: SharedConst::new(&a.data[(from * a.k_stride).min(a.data.len())..]),
                    strides: (a.row_stride, a.k_stride),
                    packed: false,
                }
            } else {
                pack_lhs(a, m, from, depth, left);
                Tiles { data: SharedConst::new(left), strides: (1, TILE), packed: true }
            };
            match b {
                Rhs::Packed { data, k } => {
                    let panels = Panels {
                        data: SharedConst::new(&data[(from * PANEL).min(data.len())..]),
                        panel: PANEL * k,
                        k: PANEL,
                    };
                    block_at(level, block, a_block, panels, c);
                }
                // Rows as wide as a panel need no packing, and with few rows it does not pay.
                Rhs::Rows { data, stride } if m < 2 * TILE || (n == PANEL && stride == PANEL) => {
                    let panels = Panels {
                        data: SharedConst::new(&data[(from * stride).min(data.len())..]),
                        panel: PANEL,
                        k: stride,
                    };
                    block_at(level, block, a_block, panels, c);
                }
                Rhs::Rows { data, stride } => {
                    pack_rows(&data[(from * stride).min(data.len())..], n, depth, stride, right);
                    let panels = Panels { data: SharedConst::new(right), panel: PANEL * depth, k: PANEL };
                    block_at(level, block, a_block, panels, c);
                }
            }
        }
    });
}

/// Copies rows into panels.
fn pack_rows(b: &[f32], n: usize, k: usize, stride: usize, out: &mut Vec<f32>) {
    let len = packed_len(n, k);
    if out.len() < len {
        out.resize(len, 0.0);
    }
    for p in 0..n.div_ceil(PANEL) {
        let first = p * PANEL;
        let columns = PANEL.min(n - first);
        let panel = &mut out[p * PANEL * k..][..PANEL * k];
        for (kk, row) in panel.chunks_exact_mut(PANEL).enumerate() {
            let from = &b[kk * stride + first..];
            // A copy of constant length compiles to a few instructions, any other to a call.
            if columns == PANEL {
                row.copy_from_slice(&from[..PANEL]);
            } else if columns == LANES {
                row[..LANES].copy_from_slice(&from[..LANES]);
            } else {
                row[..columns].copy_from_slice(&from[..columns]);
            }
        }
    }
}

/// Packs a left matrix into tiles of [`TILE`] rows, with the contracted index outermost in each.
fn pack_lhs(a: Lhs<'_>, m: usize, from: usize, depth: usize, out: &mut Vec<f32>) {
    let len = m.div_ceil(TILE) * TILE * depth;
    if out.len() < len {
        out.resize(len, 0.0);
    }
    for (t, tile) in out[..len].chunks_exact_mut(TILE * depth).enumerate() {
        let first = t * TILE;
        let rows = TILE.min(m - first);
        for (kk, line) in tile.chunks_exact_mut(TILE).enumerate() {
            let source = (from + kk) * a.k_stride + first * a.row_stride;
            if a.row_stride == 1 && rows == TILE {
                line.copy_from_slice(&a.data[source..][..TILE]);
            } else {
                for (r, x) in line[..rows].iter_mut().enumerate() {
                    *x = a.data[source + r * a.row_stride];
                }
            }
        }
    }
}

/// Shape of one block: `depth` steps of the contracted index.
#[derive(Clone, Copy)]
pub(crate) struct GemmBlock {
    m: usize,
    n: usize,
    depth: usize,
    ldc: usize,
    accumulate: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct Tiles {
    data: SharedConst,
    strides: (usize, usize),
    packed: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct Panels {
    data: SharedConst,
    /// Stride between panels.
    panel: usize,
    /// Stride along the contracted index.
    k: usize,
}

simd_dispatch!(fn block_at = block(shape: GemmBlock, a: Tiles, b: Panels, c: SharedMut));

#[inline(always)]
fn block<L: Lanes>(l: L, shape: GemmBlock, a: Tiles, b: Panels, c: SharedMut) {
    let GemmBlock { m, n, depth, ldc, accumulate } = shape;
    // A single row cannot hide latency behind other rows, so several panels are processed at once.
    let mut column = 0;
    while m == 1 && n - column >= 4 * PANEL {
        let part = TileInputs {
            depth,
            a: a.data,
            strides: a.strides,
            b: b.data.offset(column / PANEL * b.panel),
            panel: b.panel,
            k: b.k,
        };
        // SAFETY: `check` compared every length with the shape before the first block.
        unsafe { tile::<L, 1, 8, true>(l, part, c.offset(column), ldc, 4 * PANEL, accumulate) };
        column += 4 * PANEL;
    }
    while column < n {
        let columns = PANEL.min(n - column);
        let b_panel = b.data.offset(column / PANEL * b.panel);
        let mut row = 0;
        while row < m {
            let left = m - row;
            let tile_start = if a.packed { row / TILE * TILE * depth + row % TILE } else { row * a.strides.0 };
            let part = TileInputs {
                depth,
                a: a.data.offset(tile_start),
                strides: a.strides,
                b: b_panel,
                panel: b.panel,
                k: b.k,
            };
            let target = c.offset(row * ldc + column);
            // SAFETY: as above; tiles never extend beyond the rows and columns of the shape.
            row +=
                unsafe { rows::<L>(l, part, target, ldc, left, columns, accumulate, a.packed.then_some(row % TILE)) };
        }
        column += columns;
    }
}

#[derive(Clone, Copy)]
struct TileInputs {
    depth: usize,
    a: SharedConst,
    strides: (usize, usize),
    b: SharedConst,
    panel: usize,
    k: usize,
}

/// Processes as many of the `left` rows as fit one tile and returns their number. `within` is the row's index in its packed
/// tile, which must not be crossed.
#[allow(clippy::too_many_arguments)]
#[inline(always)]
unsafe fn rows<L: Lanes>(
    l: L,
    part: TileInputs,
    c: SharedMut,
    ldc: usize,
    left: usize,
    columns: usize,
    accumulate: bool,
    within: Option<usize>,
) -> usize {
    let left = within.map_or(left, |w| left.min(TILE - w));
    macro_rules! run {
        ($rows:literal) => {{
            // SAFETY: guaranteed by the caller.
            unsafe {
                if columns == PANEL {
                    tile::<L, $rows, 2, true>(l, part, c, ldc, columns, accumulate);
                } else if columns == LANES {
                    tile::<L, $rows, 1, true>(l, part, c, ldc, columns, accumulate);
                } else if columns < LANES {
                    tile::<L, $rows, 1, false>(l, part, c, ldc, columns, accumulate);
                } else {
                    tile::<L, $rows, 2, false>(l, part, c, ldc, columns, accumulate);
                }
            }
            $rows
        }};
    }
    if L::MANY_REGISTERS && left >= 12 {
        run!(12)
    } else if L::MANY_REGISTERS && left >= 6 {
        run!(6)
    } else if left >= 3 {
        run!(3)
    } else if left == 2 {
        run!(2)
    } else {
        run!(1)
    }
}

/// Computes `R` rows by `N` vectors of the output: all lanes with `FULL`, else the first `columns`.
#[inline(always)]
unsafe fn tile<L: Lanes, const R: usize, const N: usize, const FULL: bool>(
    l: L,
    p: TileInputs,
    c: SharedMut,
    ldc: usize,
    columns: usize,
    accumulate: bool,
) {
    // SAFETY: the caller guarantees that rows, columns and depth lie within the buffers.
    unsafe {
        let lanes = |v: usize| columns.saturating_sub(v * LANES).min(LANES);
        let mut sums = [[l.splat(0.0); N]; R];
        if accumulate {
            for (r, row) in sums.iter_mut().enumerate() {
                for (v, sum) in row.iter_mut().enumerate() {
                    let at = c.ptr().add(r * ldc + v * LANES);
                    *sum = if FULL { l.load_ptr(at) } else { l.load_partial_ptr(at, lanes(v)) };
                }
            }
        }
        let (mut a, mut b) = (p.a.ptr(), p.b.ptr());
        for _ in 0..p.depth {
            let mut right = [l.splat(0.0); N];
            for (v, x) in right.iter_mut().enumerate() {
                let at = b.add(v / 2 * p.panel + v % 2 * LANES);
                *x = if FULL { l.load_ptr(at) } else { l.load_partial_ptr(at, lanes(v)) };
            }
            for (r, row) in sums.iter_mut().enumerate() {
                let x = l.splat(*a.add(r * p.strides.0));
                for (v, sum) in row.iter_mut().enumerate() {
                    *sum = l.fma(x, right[v], *sum);
                }
            }
            a = a.add(p.strides.1);
            b = b.add(p.k);
        }
        for (r, row) in sums.iter().enumerate() {
            for (v, sum) in row.iter().enumerate() {
                let at = c.ptr().add(r * ldc + v * LANES);
                if FULL {
                    l.store_ptr(at, *sum);
                } else {
                    l.store_partial_ptr(at, lanes(v), *sum);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::random_values;

    fn chain(m: usize, n: usize, k: usize, a: &[f32], b: &[f32], start: Option<&[f32]>) -> Vec<f32> {
        let mut c = vec![0.0_f32; m * n];
        for i in 0..m {
            for j in 0..n {
                let first = start.map_or(0.0, |s| s[i * n + j]);
                c[i * n + j] = (0..k).fold(first, |sum, kk| a[i * k + kk].mul_add(b[kk * n + j], sum));
            }
        }
        c
    }

    fn transpose(x: &[f32], rows: usize, columns: usize) -> Vec<f32> {
        (0..columns * rows).map(|i| x[i % rows * columns + i / rows]).collect()
    }

    #[test]
    fn all_layouts_and_simd_levels_compute_the_same_fma_chain() {
        let shapes =
            [(1, 1, 1), (1, 300, 40), (2, 33, 5), (5, 16, 64), (13, 31, 300), (40, 70, 17), (97, 32, 513), (3, 8, 0)];
        for (m, n, k) in shapes {
            let (a, b, start) = (random_values(m * k, 1), random_values(k * n, 2), random_values(m * n, 3));
            let (at, bt) = (transpose(&a, m, k), transpose(&b, k, n));
            let mut packed = vec![0.0; packed_len(n, k)];
            pack_transposed(&bt, n, k, k, &mut packed);
            for level in SimdLevel::available() {
                for accumulate in [false, true] {
                    let want = chain(m, n, k, &a, &b, accumulate.then_some(&start));
                    let lefts = [Lhs::rows(&a, k), Lhs::columns(&at, m)];
                    let rights = [Rhs::Rows { data: &b, stride: n }, Rhs::Packed { data: &packed, k }];
                    for left in lefts {
                        for right in rights {
                            let mut c = start.clone();
                            gemm(level, false, (m, n, k), left, right, &mut c, n, accumulate);
                            assert!(c == want, "{m}×{n}×{k} {level:?} accumulate {accumulate}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn results_do_not_depend_on_thread_count() {
        for (m, n, k) in [(200, 90, 130), (4, 2000, 64)] {
            let (a, b) = (random_values(m * k, 1), random_values(k * n, 2));
            let want = chain(m, n, k, &a, &b, None);
            for threads in [1, 2, 3, 8] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let mut c = vec![0.0; m * n];
                pool.install(|| {
                    let right = Rhs::Rows { data: &b, stride: n };
                    gemm(SimdLevel::best(), true, (m, n, k), Lhs::rows(&a, k), right, &mut c, n, false);
                });
                assert!(c == want, "{threads} threads");
            }
        }
    }

    #[test]
    #[should_panic(expected = "lhs too short")]
    fn short_inputs_are_refused() {
        let b = [0.0; 4];
        gemm(
            SimdLevel::best(),
            false,
            (2, 2, 2),
            Lhs::rows(&[0.0; 3], 2),
            Rhs::Rows { data: &b, stride: 2 },
            &mut [0.0; 4],
            2,
            false,
        );
    }
}
