//! How does the card know where the parts of a matrix are that it brings to shared memory by itself?

use crate::error::{Doing, Result};
use cudarc::driver::sys;
use std::ffi::c_void;

/// A matrix as the card reads it.
pub(crate) type Map = sys::CUtensorMap;

/// Numbers of a row that are brought at a time for tensor cores: what they take of a row in shared memory.
pub(crate) const DEPTH: usize = 64;

/// What numbers are, and how they come to lie in shared memory.
#[derive(Clone, Copy)]
enum Kind {
    /// bf16, permuted as tensor cores read them.
    Operands,
    /// fp32, one row after the other.
    Numbers,
}

/// `rows` rows of `width` operands at `at`, from which so many rows are taken at a time.
pub(crate) fn matrix(at: u64, rows: usize, width: usize, taken: usize) -> Result<Map> {
    map(Kind::Operands, at, [width, rows], [width], [DEPTH, taken])
}

/// `rows` rows of `heads` heads of `width` operands at `at`, from which so many rows of one head are taken at a time.
pub(crate) fn heads(at: u64, rows: usize, heads: usize, width: usize, taken: usize) -> Result<Map> {
    map(Kind::Operands, at, [width, heads, rows], [width, heads * width], [DEPTH, 1, taken])
}

/// `rows` rows of `width` fp32 numbers at `at`, from which four neighbours, the least that can be, of so many rows are taken at a
/// time.
pub(crate) fn numbers(at: u64, rows: usize, width: usize, taken: usize) -> Result<Map> {
    map(Kind::Numbers, at, [width, rows], [width], [4, taken])
}

/// How many there are along each axis, how far apart along all but the first, and how many are taken.
fn map<const N: usize, const M: usize>(
    kind: Kind,
    at: u64,
    size: [usize; N],
    stride: [usize; M],
    part: [usize; N],
) -> Result<Map> {
    const { assert!(M + 1 == N) };
    use sys::CUtensorMapDataType::{CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT32};
    use sys::CUtensorMapSwizzle::{CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_SWIZZLE_NONE};
    let (numbers, bytes, order) = match kind {
        Kind::Operands => (CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, CU_TENSOR_MAP_SWIZZLE_128B),
        Kind::Numbers => (CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, CU_TENSOR_MAP_SWIZZLE_NONE),
    };
    let (size, stride) = (size.map(|n| n as u64), stride.map(|n| bytes * n as u64));
    let (part, every) = (part.map(|n| n as u32), [1; N]);
    let mut map = Map { opaque: [0; 16] };
    // SAFETY: all numbers are there while it reads them; it only writes the map.
    let made = unsafe {
        sys::cuTensorMapEncodeTiled(
            &raw mut map,
            numbers,
            N as u32,
            at as *mut c_void,
            size.as_ptr(),
            stride.as_ptr(),
            part.as_ptr(),
            every.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            order,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    made.result().doing("describing a matrix")?;
    Ok(map)
}
