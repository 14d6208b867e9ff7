//! Tensor maps: descriptors of matrices for TMA loads.

use crate::error::{ErrorContext, Result};
use cudarc::driver::sys;
use std::ffi::c_void;

/// A tensor map.
pub(crate) type TensorMap = sys::CUtensorMap;

/// Columns of a bf16 box: one 128-byte row of a swizzled tile in shared memory.
pub(crate) const TILE_K: usize = 64;

/// Element type, and layout in shared memory.
#[derive(Clone, Copy)]
enum ElementType {
    /// bf16 with 128-byte swizzle, as wgmma reads it.
    Bf16,
    /// fp32, row-major without swizzle.
    F32,
}

/// Map of a bf16 matrix of `rows` × `width` at `at`, loaded in boxes of `box_rows` rows.
pub(crate) fn matrix_map(at: u64, rows: usize, width: usize, box_rows: usize) -> Result<TensorMap> {
    encode(ElementType::Bf16, at, [width, rows], [width], [TILE_K, box_rows])
}

/// Map of bf16 rows of `heads` heads of `width` elements at `at`, loaded in boxes of `box_rows` rows of one head.
pub(crate) fn head_map(at: u64, rows: usize, heads: usize, width: usize, box_rows: usize) -> Result<TensorMap> {
    encode(ElementType::Bf16, at, [width, heads, rows], [width, heads * width], [TILE_K, 1, box_rows])
}

/// Map of an fp32 matrix of `rows` × `width` at `at`, loaded in boxes of `box_rows` rows and four columns, the minimum
/// of 16 bytes.
pub(crate) fn f32_map(at: u64, rows: usize, width: usize, box_rows: usize) -> Result<TensorMap> {
    encode(ElementType::F32, at, [width, rows], [width], [4, box_rows])
}

/// `dims`, `stride` of all axes but the first, and box size, innermost axis first.
fn encode<const N: usize, const M: usize>(
    element: ElementType,
    at: u64,
    dims: [usize; N],
    stride: [usize; M],
    box_dims: [usize; N],
) -> Result<TensorMap> {
    const { assert!(M + 1 == N) };
    use sys::CUtensorMapDataType::{CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT32};
    use sys::CUtensorMapSwizzle::{CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_SWIZZLE_NONE};
    let (data_type, bytes, swizzle) = match element {
        ElementType::Bf16 => (CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, CU_TENSOR_MAP_SWIZZLE_128B),
        ElementType::F32 => (CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, CU_TENSOR_MAP_SWIZZLE_NONE),
    };
    let (dims, stride) = (dims.map(|n| n as u64), stride.map(|n| bytes * n as u64));
    let (box_dims, element_strides) = (box_dims.map(|n| n as u32), [1; N]);
    let mut tensor_map = TensorMap { opaque: [0; 16] };
    // SAFETY: all arrays are valid during the call, which only writes the map.
    let status = unsafe {
        sys::cuTensorMapEncodeTiled(
            &raw mut tensor_map,
            data_type,
            N as u32,
            at as *mut c_void,
            dims.as_ptr(),
            stride.as_ptr(),
            box_dims.as_ptr(),
            element_strides.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    status.result().context("encoding a tensor map")?;
    Ok(tensor_map)
}
