//! Throughput measurement.

use crate::buffer::DeviceBuffer;
use crate::device::CudaDevice;
use crate::error::Result;
use crate::gemm::{CublasLt, Gemm, GemmKind, Matrix};
use crate::stream::Stream;
use std::sync::Arc;
use std::time::Instant;

/// Measured throughput of a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throughput {
    /// bf16 matmul throughput in GFLOP/s; a multiply-add counts as two operations.
    pub gemm_gflops: f64,
    /// Device-to-device copy bandwidth in GB/s, counting reads and writes.
    pub copy_gb_per_s: f64,
}

/// Measures GEMM and copy throughput; takes about a tenth of a second.
pub fn measure_throughput(device: &Arc<CudaDevice>) -> Result<Throughput> {
    let stream = Stream::new(device)?;
    let mut cublas = CublasLt::new(&stream)?;
    const N: usize = 4096;
    // Not zeros, which multiply faster. These bit patterns are bf16 values of magnitude 1 to 4 and either sign.
    let mut seed = 1_u32;
    let values: Vec<u16> = (0..N * N)
        .map(|_| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            0x3f80 | (seed >> 16) as u16 & 0x80ff
        })
        .collect();
    let (a, b) = (DeviceBuffer::from_slice(device, &values)?, DeviceBuffer::from_slice(device, &values)?);
    let to = DeviceBuffer::<u16>::new(device, N * N)?;
    let matrix = |b: &DeviceBuffer<u16>| Matrix::new(b.at(0), N);
    let seconds = best(&stream, || {
        cublas.matmul(&stream, Gemm::new(GemmKind::Forward, (N, N, N), matrix(&a), matrix(&b), matrix(&to)))
    })?;
    let from = DeviceBuffer::<f32>::zeros(device, 256 << 20)?;
    let copy = DeviceBuffer::<f32>::new(device, from.len())?;
    let copy_seconds = best(&stream, || from.copy_to(&stream, &copy))?;
    Ok(Throughput {
        gemm_gflops: 2.0 * (N * N * N) as f64 / seconds / 1e9,
        copy_gb_per_s: 8.0 * from.len() as f64 / copy_seconds / 1e9,
    })
}

/// The shortest of several runs, in seconds.
fn best(stream: &Stream, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..6 {
        stream.wait()?;
        let start = Instant::now();
        work()?;
        stream.wait()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}
