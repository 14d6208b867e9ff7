//! AdamW steps.

use super::ModelTrainer;
use crate::buffer::DeviceBuffer;
use crate::error::{CudaError, Result};
use crate::stream::args;
use std::ops::Range;

/// Parameters of one step.
#[derive(Clone, Copy, Debug)]
pub struct AdamWParams {
    /// Learning rate.
    pub learning_rate: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the denominator.
    pub epsilon: f32,
    /// Decoupled weight decay.
    pub weight_decay: f32,
    /// Factor of the gradient.
    pub grad_scale: f32,
    /// Bias correction `1 − beta1ᵗ`.
    pub correction1: f32,
    /// Bias correction `1 − beta2ᵗ`.
    pub correction2: f32,
}

impl ModelTrainer {
    /// Rejects a range outside the trainable parameters.
    fn check_range(&self, range: &Range<usize>) -> Result<()> {
        let len = self.params.len();
        match range.start <= range.end && range.end <= len {
            true => Ok(()),
            false => Err(CudaError::new("an AdamW step", format!("{range:?} of {len} parameters"))),
        }
    }

    /// Sum of squares of a range of the gradient.
    pub fn grad_sum_of_squares(&mut self, range: Range<usize>) -> Result<f64> {
        self.check_range(&range)?;
        if range.is_empty() {
            return Ok(0.0);
        }
        self.model.device.bind()?;
        let (len, s) = (range.len(), &self.stream);
        let blocks = len.div_ceil(1 << 16);
        let sums = DeviceBuffer::<f64>::new(&self.model.device, blocks)?;
        let f = self.model.kernels.common.sum_of_squares;
        s.launch(f, (blocks, 1, 1), 256, 0, args![self.grads.at(range.start), len as u64, sums.at(0)])?;
        let mut block_sums = vec![0.0; blocks];
        sums.download(s, &mut block_sums)?;
        Ok(block_sums.iter().sum())
    }

    /// Updates a range of the parameters and zeroes its gradient.
    pub fn adamw(&mut self, range: Range<usize>, settings: &AdamWParams) -> Result<()> {
        self.check_range(&range)?;
        if range.is_empty() {
            return Ok(());
        }
        self.model.device.bind()?;
        let (i, len) = (range.start, range.len());
        let blocks = len.div_ceil(256).min(16 * self.model.device.info().multiprocessors);
        self.stream.launch(
            self.model.kernels.common.adamw,
            (blocks, 1, 1),
            256,
            0,
            args![
                self.params.at(i),
                self.grads.at(i),
                self.exp_avg.at(i),
                self.exp_avg_sq.at(i),
                self.trainable().at(i),
                len as u64,
                settings.learning_rate,
                settings.beta1,
                settings.beta2,
                settings.epsilon,
                settings.weight_decay,
                settings.grad_scale,
                settings.correction1,
                settings.correction2
            ],
        )
    }
}
