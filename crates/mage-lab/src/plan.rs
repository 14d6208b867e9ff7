//! What would a run take?

use crate::{
    Result,
    recipe::Recipe,
    rollout::Job,
    train::{Parts, Setting},
};
use mage_engine::{AdapterName, Loss, Objective, SamplingParams};
use mage_env::Seed;
use serde::Serialize;
use std::{sync::Arc, time::Instant};

/// Models above this are described without a trial: it would take longer than anybody waits for an estimate.
const TRIAL_PARAMETERS: usize = 50_000_000;

/// What a run would take, from a trial on a part of one update.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Who would compute.
    pub engine: String,
    /// Numbers in the model.
    pub parameters: usize,
    /// Episodes per update.
    pub episodes: usize,
    /// Tokens read and written per update, shared prompts counted for every row.
    pub tokens: u64,
    /// Bytes of weights, gradients, optimiser and what samplers hold (the policy and the reference).
    pub state_bytes: u64,
    /// Bytes this process holds now, after the trial.
    pub resident_bytes: Option<u64>,
    /// Seconds one update takes; `None` where no trial was made.
    pub seconds_per_update: Option<f64>,
    /// Seconds the run takes, evaluation left out.
    pub seconds: Option<f64>,
}

impl Plan {
    /// Checks the recipe against the engine and tries a part of an update. Nothing is written.
    pub fn new(recipe: &Recipe, setting: &Setting) -> Result<Self> {
        recipe.check()?;
        let schema = setting.factory.schema();
        let mut parts = Parts::new(recipe, setting, &schema)?;
        let jobs = recipe.rollout.groups * recipe.rollout.members;
        let sample = jobs.min(32);
        let parameters = parts.engines.parameters;
        let mut plan = Plan {
            engine: parts.engines.trainer.caps().engine.clone(),
            parameters,
            episodes: jobs * recipe.play.episodes as usize,
            tokens: 0,
            // Weights, gradients and two moments, and two published sets of weights.
            state_bytes: 6 * 4 * parameters as u64,
            resident_bytes: None,
            seconds_per_update: None,
            seconds: None,
        };
        if recipe.play.form == mage_core::prompt::Size::Compact {
            let imitation = parts.school.batch(sample, Seed::new(recipe.seed).child("plan"), &parts.speech)?;
            let rows = (0..imitation.segments.len()).filter(|s| imitation.segments[*s].train.is_some());
            let per_row =
                |s: usize| imitation.path(s).iter().map(|p| imitation.segments[*p].tokens.len()).sum::<usize>();
            plan.tokens = (rows.map(per_row).sum::<usize>() * jobs / sample) as u64;
            if parameters <= TRIAL_PARAMETERS {
                let scale = jobs as f64 / sample as f64;
                let seconds = scale * trial(recipe, setting, &mut parts, &imitation, sample)?;
                plan.seconds_per_update = Some(seconds);
                plan.seconds = Some(seconds * recipe.optim.updates as f64);
            }
        }
        plan.resident_bytes = resident();
        Ok(plan)
    }
}

/// Seconds for the rollout of `sample` meta-episodes and one pass over as many.
fn trial(
    recipe: &Recipe,
    setting: &Setting,
    parts: &mut Parts,
    imitation: &mage_engine::TokenForest,
    sample: usize,
) -> Result<f64> {
    let runtime = crate::train::runtime(recipe.engine.threads)?;
    let seed = Seed::new(recipe.seed).child("plan");
    let seats = setting.factory.schema().seats;
    let jobs: Vec<Job> = (0..sample as u64)
        .map(|i| {
            let task = setting.population.draw(&recipe.env.split, seats, seed.at(i))?;
            Ok(Job { task, seed: seed.child("agent").at(i) })
        })
        .collect::<Result<_>>()?;
    parts.engines.trainer.publish(&AdapterName::default())?;
    let rollout = parts.rollout(setting, Arc::clone(&parts.settings), SamplingParams::default(), "plan".to_owned(), 0);
    let mut once = || -> Result<f64> {
        let started = Instant::now();
        rollout.run(&runtime, &jobs, std::time::Duration::MAX, |_| ())?;
        parts.engines.trainer.forward_backward(imitation, &Loss::of(Objective::CrossEntropy))?;
        Ok(started.elapsed().as_secs_f64() * f64::from(recipe.optim.epochs))
    };
    once()?; // the first one warms caches
    once()
}

/// The process's resident memory, where the system tells.
fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find(|l| l.starts_with("VmRSS:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}
