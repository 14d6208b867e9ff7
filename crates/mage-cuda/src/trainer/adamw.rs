//! AdamW steps.

use super::ModelTrainer;
use crate::buffer::DeviceBuffer;
use crate::error::{CudaError, Result};
use crate::stream::args;
use mage_engine::model::AdamWParams;
use std::ops::Range;

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
    pub fn adamw(&mut self, range: Range<usize>, params: &AdamWParams) -> Result<()> {
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
                params.learning_rate,
                params.beta1,
                params.beta2,
                params.epsilon,
                params.weight_decay,
                params.grad_scale,
                params.correction1,
                params.correction2
            ],
        )
    }
}
