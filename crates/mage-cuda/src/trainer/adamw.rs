//! One step of AdamW over all that learns.

use super::ModelTrainer;
use crate::buffer::DeviceBuffer;
use crate::error::{CudaError, Result};
use crate::stream::args;
use std::ops::Range;

/// Settings of one step.
#[derive(Clone, Copy, Debug)]
pub struct AdamWParams {
    /// The learning rate.
    pub learning_rate: f32,
    /// How long the first moment remembers.
    pub beta1: f32,
    /// How long the second moment remembers.
    pub beta2: f32,
    /// Keeps from dividing by 0.
    pub epsilon: f32,
    /// Pulls towards 0.
    pub weight_decay: f32,
    /// Multiplies the gradient.
    pub grad_scale: f32,
    /// `1 − beta1ᵗ`.
    pub correction1: f32,
    /// `1 − beta2ᵗ`.
    pub correction2: f32,
}

impl ModelTrainer {
    /// Refuses a part that is not one of what learns.
    fn check_part(&self, range: &Range<usize>) -> Result<()> {
        let all = self.master.len();
        match range.start <= range.end && range.end <= all {
            true => Ok(()),
            false => Err(CudaError::new("a step of the optimiser", format!("{range:?} of {all} numbers"))),
        }
    }

    /// The sum of squares of a part of the gradient.
    pub fn grad_sum_of_squares(&mut self, range: Range<usize>) -> Result<f64> {
        self.check_part(&range)?;
        if range.is_empty() {
            return Ok(0.0);
        }
        self.model.device.bind()?;
        let (len, s) = (range.len(), &self.stream);
        let blocks = len.div_ceil(1 << 16);
        let sums = DeviceBuffer::<f64>::new(&self.model.device, blocks)?;
        let f = self.model.program.functions.squares;
        s.launch(f, (blocks, 1, 1), 256, 0, args![self.grads.at(range.start), len as u64, sums.at(0)])?;
        let mut all = vec![0.0; blocks];
        sums.take(s, &mut all)?;
        Ok(all.iter().sum())
    }

    /// One step over a part of the numbers; its gradient is 0 afterwards.
    pub fn adamw(&mut self, range: Range<usize>, set: &AdamWParams) -> Result<()> {
        self.check_part(&range)?;
        if range.is_empty() {
            return Ok(());
        }
        self.model.device.bind()?;
        let (i, len) = (range.start, range.len());
        let blocks = len.div_ceil(256).min(16 * self.model.device.info().multiprocessors);
        self.stream.launch(
            self.model.program.functions.adamw,
            (blocks, 1, 1),
            256,
            0,
            args![
                self.master.at(i),
                self.grads.at(i),
                self.first.at(i),
                self.second.at(i),
                self.learning().at(i),
                len as u64,
                set.learning_rate,
                set.beta1,
                set.beta2,
                set.epsilon,
                set.weight_decay,
                set.grad_scale,
                set.correction1,
                set.correction2
            ],
        )
    }
}
