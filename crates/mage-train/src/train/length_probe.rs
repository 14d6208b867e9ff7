//! How much is said in a meta-episode?

use crate::{Error, Player, Result, policy::codec::PromptCodec, recipe::Recipe, rollout::guard, train::TrainEnv};
use mage_core::{EpisodeConfig, MetaEpisode, Next, RequestKind, RequestRecord};
use mage_env::{Seed, Task};
use std::sync::Arc;

/// What some meta-episodes came to in which anything legal was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LengthProbe {
    /// Tokens of all prompts.
    pub(crate) prompts: u64,
    /// Tokens of all answers, at most.
    pub(crate) answers: u64,
    /// Tokens of the longest prompt with its answer, at most.
    pub(crate) longest: usize,
}

impl LengthProbe {
    /// Plays `count` meta-episodes; `None` where an environment does not list what is legal. One that fails is left out, as it
    /// would be in a run; where all do, that is an error.
    pub(crate) fn survey(
        recipe: &Recipe,
        setting: &TrainEnv,
        settings: EpisodeConfig,
        speech: &PromptCodec,
        count: usize,
    ) -> Result<Option<Self>> {
        let settings = Arc::new(EpisodeConfig { mask_actions: true, ..settings });
        let seats = setting.env_spec.info().seats;
        let mut talk = LengthProbe::default();
        let (mut failed, mut problem) = (0, None);
        for i in 0..count as u64 {
            let seed = Seed::new(recipe.seed).child("talk").at(i);
            let task = setting.population.draw(&recipe.env.split, seats, seed)?;
            let calls = match guard(|| play(setting, &settings, task, seed)) {
                Ok(Some(calls)) => calls,
                Ok(None) => return Ok(None),
                Err(e) => {
                    failed += 1;
                    problem.get_or_insert(e);
                    continue;
                }
            };
            for call in calls {
                let prompt = speech.prompt(&call.messages)?.len();
                let most = if call.kind == RequestKind::Play { settings.play_tokens } else { settings.reflect_tokens };
                talk.prompts += prompt as u64;
                talk.answers += u64::from(most);
                talk.longest = talk.longest.max(prompt + most as usize);
            }
        }
        match problem.filter(|_| failed == count) {
            Some(e) => Err(Error::Stopped(format!("no meta-episode could be played: {e}"))),
            None => Ok(Some(talk)),
        }
    }

    /// Refuses a model that cannot take all of it in.
    pub(crate) fn fits(&self, recipe: &Recipe, context: usize) -> Result<()> {
        if self.longest <= context {
            return Ok(());
        }
        let place = if recipe.model.path.is_empty() { "model.max_seq_len" } else { "model.path" };
        let problem = format!(
            "a sequence may have {context} tokens, and a prompt with its answer takes up to {}; give more, or fewer \
             play.episodes and eval.episodes",
            self.longest
        );
        Err(Error::Recipe { place: place.to_owned(), problem })
    }
}

/// The calls of one meta-episode.
fn play(
    setting: &TrainEnv,
    settings: &Arc<EpisodeConfig>,
    task: Task,
    seed: Seed,
) -> Result<Option<Vec<RequestRecord>>> {
    let env = setting.env_spec.build(&task)?;
    let mut meta = MetaEpisode::new(task, env, Arc::clone(&setting.prompts), Arc::clone(settings), seed)?;
    let mut player = Player::random(Arc::clone(settings), seed);
    loop {
        match meta.advance()? {
            Next::Done(record) => return Ok(Some(record.requests)),
            Next::Request(call) => match player.answer(&call, &meta) {
                Ok(answer) => meta.submit(call.id, Ok(answer))?,
                Err(Error::Player { .. }) => return Ok(None),
                Err(e) => return Err(e),
            },
        }
    }
}
