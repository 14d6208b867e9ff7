//! Engine for tests: completions come from a script, all legal tokens are equally likely, and training batches are
//! recorded.

use crate::{
    BoxFuture, Error, FinishReason, KlForm, LogprobsMode, Loss, LossReport, OptimStep, Reduction, Result, Sample,
    SampleRequest, Sampler, SamplerCaps, ScoreRequest, Scores, StepReport, TokenForest, Trainer, TrainerCaps,
    WeightVersion, WeightsId, WeightsName,
};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

type Script = dyn Fn(&SampleRequest) -> Vec<u32> + Send + Sync;

/// An engine that takes its completions from a script.
pub struct ScriptedEngine {
    vocab_size: usize,
    script: Box<Script>,
    sampler_caps: SamplerCaps,
    trainer_caps: TrainerCaps,
    version: AtomicU64,
    steps: u64,
    batches: Mutex<Vec<TokenForest>>,
}

impl ScriptedEngine {
    /// An engine with `vocab_size` tokens. `script` returns the completion of each request.
    pub fn new(vocab_size: usize, script: impl Fn(&SampleRequest) -> Vec<u32> + Send + Sync + 'static) -> Self {
        let max_seq_len = 1 << 20;
        ScriptedEngine {
            vocab_size,
            script: Box::new(script),
            sampler_caps: SamplerCaps {
                engine: "scripted".to_owned(),
                token_ids: true,
                logprobs: LogprobsMode::Both,
                masks: true,
                stop_texts: false,
                batch_invariant: true,
                max_seq_len,
            },
            trainer_caps: TrainerCaps {
                engine: "scripted".to_owned(),
                cross_entropy: true,
                importance_sampling: true,
                ppo: true,
                dual_clip: true,
                cispo: true,
                entropy: true,
                kl: vec![KlForm::K1, KlForm::K2, KlForm::K3],
                masks: true,
                grad_clipping: true,
                reduction: Reduction::TokenSum,
                reproducible: true,
                max_seq_len,
            },
            version: AtomicU64::new(0),
            steps: 0,
            batches: Mutex::new(Vec::new()),
        }
    }

    /// Removes and returns the batches trained on so far.
    pub fn take_batches(&self) -> Vec<TokenForest> {
        std::mem::take(&mut self.batches.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    fn weights(&self, name: &WeightsName) -> WeightsId {
        WeightsId { name: name.clone(), version: WeightVersion(self.version.load(Ordering::SeqCst)) }
    }

    fn uniform(&self, num_allowed: Option<usize>) -> f32 {
        -(num_allowed.unwrap_or(self.vocab_size) as f32).ln()
    }
}

impl Sampler for ScriptedEngine {
    fn caps(&self) -> &SamplerCaps {
        &self.sampler_caps
    }

    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sample>> {
        Box::pin(async move {
            request.check(self.vocab_size, self.sampler_caps.max_seq_len)?;
            let mut tokens = (self.script)(&request);
            let stop = tokens.iter().position(|t| request.params.stop_ids.contains(t));
            let full = stop.map_or(tokens.len(), |s| s + 1);
            tokens.truncate(full.min(request.params.max_tokens as usize));
            let finish = if tokens.len() < full { FinishReason::Length } else { FinishReason::Stop };
            let masks = match &request.allowed {
                Some(set) => set.masks(&tokens)?,
                None => vec![None; tokens.len()],
            };
            let logprobs: Vec<f32> = masks.iter().map(|m| self.uniform(m.as_ref().map(|m| m.len()))).collect();
            Ok(Sample {
                processed_logprobs: logprobs.clone(),
                logprobs,
                tokens,
                finish,
                weights: self.weights(&request.weights),
            })
        })
    }

    fn score(&self, request: ScoreRequest) -> BoxFuture<'_, Result<Scores>> {
        Box::pin(async move {
            request.check(self.vocab_size, self.sampler_caps.max_seq_len)?;
            let num_allowed = |i: usize| request.allowed.get(i).and_then(|m| m.as_ref().map(|m| m.len()));
            let logprobs: Vec<f32> =
                (0..request.tokens.len() - request.from).map(|i| self.uniform(num_allowed(i))).collect();
            let entropies = logprobs.iter().map(|l| -l).collect();
            Ok(Scores { logprobs, entropies, weights: self.weights(&request.weights) })
        })
    }
}

impl Trainer for ScriptedEngine {
    fn caps(&self) -> &TrainerCaps {
        &self.trainer_caps
    }

    fn forward_backward(&mut self, batch: &TokenForest, loss: &Loss) -> Result<LossReport> {
        batch.check(loss, self.vocab_size, self.trainer_caps.max_seq_len)?;
        let mut report = LossReport::default();
        for train in batch.segments.iter().filter_map(|s| s.train.as_ref()) {
            for i in (0..train.weights.len()).filter(|&i| train.weights[i] != 0.0) {
                let logprob = self.uniform(train.allowed_at(i).map(|a| a.len()));
                report.loss += f64::from(train.weights[i]) * loss.token_loss(logprob, -logprob, &train.at(i)).value;
                report.tokens += 1;
                report.weight += f64::from(train.weights[i].abs());
                report.logprobs.push(logprob);
            }
        }
        self.batches.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(batch.clone());
        Ok(report)
    }

    fn optim_step(&mut self, step: &OptimStep) -> Result<StepReport> {
        step.check()?;
        self.steps += 1;
        Ok(StepReport { steps: self.steps, ..Default::default() })
    }

    fn publish(&mut self, _name: &WeightsName) -> Result<WeightVersion> {
        Ok(WeightVersion(self.version.fetch_add(1, Ordering::SeqCst) + 1))
    }

    fn save(&self, dir: &Path) -> Result<()> {
        let path = dir.join("scripted.json");
        std::fs::write(&path, self.steps.to_string()).map_err(Error::write(&path))
    }

    fn load(&mut self, dir: &Path) -> Result<()> {
        let path = dir.join("scripted.json");
        let text = std::fs::read_to_string(&path).map_err(Error::read(&path))?;
        self.steps = text.parse().map_err(|_| Error::invalid(path.display().to_string(), "not a number"))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ActionSet, Objective, PerToken};
    use std::task::{Context, Poll, Waker};

    /// Polls a future that is ready at once.
    fn poll_ready<T>(mut f: BoxFuture<'_, T>) -> T {
        match f.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(t) => t,
            Poll::Pending => panic!("a scripted engine never waits"),
        }
    }

    #[test]
    fn completions_come_from_the_script() {
        let mut engine = ScriptedEngine::new(10, |r| vec![r.prompt[0] + 1, 9, 5]);
        let mut request = SampleRequest { prompt: vec![3], ..Default::default() };
        request.params.stop_ids = vec![9];
        let s = poll_ready(engine.sample(request.clone())).unwrap();
        assert_eq!((s.tokens, s.finish, s.weights.version), (vec![4, 9], FinishReason::Stop, WeightVersion(0)));
        engine.publish(&WeightsName::default()).unwrap();
        request.params.max_tokens = 1;
        request.allowed = Some(ActionSet::new([[4, 9], [5, 9]], None, None).unwrap());
        let s = poll_ready(engine.sample(request.clone())).unwrap();
        assert_eq!((s.finish, s.weights.version), (FinishReason::Length, WeightVersion(1)));
        assert!((s.logprobs[0] + 2.0_f32.ln()).abs() < 1e-6);
        request.allowed = Some(ActionSet::new([[6]], None, None).unwrap());
        assert!(poll_ready(engine.sample(request)).is_err(), "the script returned a token outside the action set");
    }

    #[test]
    fn training_batches_are_recorded() {
        let mut engine = ScriptedEngine::new(4, |_| vec![0]);
        let train = PerToken { weights: vec![0.0, 0.5], ..Default::default() };
        let batch = TokenForest::from_sequences([(vec![1, 2], train)]);
        let report = engine.forward_backward(&batch, &Loss::of(Objective::CrossEntropy)).unwrap();
        assert!((report.loss - 0.5 * 4.0_f64.ln()).abs() < 1e-6);
        assert_eq!(engine.take_batches().len(), 1);
    }
}
