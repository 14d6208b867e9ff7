//! How fast is the card?

use crate::buffer::DeviceBuffer;
use crate::device::CudaDevice;
use crate::error::Result;
use crate::gemm::{CublasLt, Kind, Matrix};
use crate::stream::Stream;
use std::sync::Arc;
use std::time::Instant;

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throughput {
    /// Billions of multiplications and additions per second in a bf16 product.
    pub gemm_gflops: f64,
    /// Gigabytes per second copied on the card, counting what is read and what is written.
    pub copy_gb_per_s: f64,
}

/// Measures for about a tenth of a second.
pub fn measure_throughput(card: &Arc<CudaDevice>) -> Result<Throughput> {
    let stream = Stream::new(card)?;
    let mut products = CublasLt::new(&stream)?;
    const N: usize = 4096;
    // Not zeros: those are multiplied faster than numbers are. These bits are bf16 numbers between ±1 and ±4.
    let mut seed = 1_u32;
    let numbers: Vec<u16> = (0..N * N)
        .map(|_| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            0x3f80 | (seed >> 16) as u16 & 0x80ff
        })
        .collect();
    let (a, b) = (DeviceBuffer::from_slice(card, &numbers)?, DeviceBuffer::from_slice(card, &numbers)?);
    let to = DeviceBuffer::<u16>::new(card, N * N)?;
    let m = |b: &DeviceBuffer<u16>| Matrix::new(b.at(0), N);
    let seconds = best(&stream, || products.run(&stream, Kind::Forward, (N, N, N), m(&a), m(&b), None, m(&to), false))?;
    let from = DeviceBuffer::<f32>::zeros(card, 256 << 20)?;
    let copy = DeviceBuffer::<f32>::new(card, from.len())?;
    let copying = best(&stream, || from.copy_to(&stream, &copy))?;
    Ok(Throughput {
        gemm_gflops: 2.0 * (N * N * N) as f64 / seconds / 1e9,
        copy_gb_per_s: 8.0 * from.len() as f64 / copying / 1e9,
    })
}

/// The shortest of a few runs, in seconds.
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
