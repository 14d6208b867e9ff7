//! Measurement of prompt and response lengths with random play, in training and in evaluations.

use crate::{
    Error, Result,
    policy::{ScriptedPolicy, codec::PromptCodec},
    recipe::Recipe,
    rollout::Played,
    train::TrainEnv,
};
use futures_executor::block_on;
use mage_core::EpisodeConfig;
use mage_env::Seed;
use std::sync::Arc;

/// Token counts of some meta-episodes of random play with the settings of training, and their maximum lengths, also
/// with the settings of evaluations, which may have more episodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LengthProbe {
    /// Total prompt tokens.
    pub(crate) prompt_tokens: u64,
    /// Maximum total response tokens.
    pub(crate) response_tokens: u64,
    /// Maximum length of a prompt with its response.
    pub(crate) max_sequence: usize,
}

impl LengthProbe {
    /// Plays `count` meta-episodes of training and as many of evaluations; `None` if the environment does not list
    /// legal actions. A failed meta-episode is skipped, as in a run; an error if all fail.
    pub(crate) fn run(recipe: &Recipe, env: &TrainEnv, codec: &PromptCodec, count: usize) -> Result<Option<Self>> {
        let training = Self::play(recipe, env, &recipe.env.split, env.episode_config(recipe)?, codec, count)?;
        let (split, episodes) = (&recipe.eval.split, recipe.eval.episodes);
        let config = env.eval_episode_config(recipe, split, episodes)?;
        let evaluation = Self::play(recipe, env, split, config, codec, count)?;
        Ok(training.zip(evaluation).map(|(training, evaluation)| LengthProbe {
            max_sequence: training.max_sequence.max(evaluation.max_sequence),
            ..training
        }))
    }

    fn play(
        recipe: &Recipe,
        env: &TrainEnv,
        split: &str,
        episode_config: EpisodeConfig,
        codec: &PromptCodec,
        count: usize,
    ) -> Result<Option<Self>> {
        let meta_episodes = env.meta_episodes(EpisodeConfig { mask_actions: true, ..episode_config });
        let episode_config = meta_episodes.config();
        let seats = env.env_spec.info().seats;
        let mut probe = LengthProbe::default();
        let (mut failed, mut first_error) = (0, None);
        for i in 0..count as u64 {
            let seed = Seed::new(recipe.seed).child("length_probe").at(i);
            let task = env.population.sample_task(split, seats, seed)?;
            let mut policy = ScriptedPolicy::random(Arc::clone(episode_config), seed);
            let Played { trajectory, policy_error } = block_on(meta_episodes.play(&task, seed, &mut policy, &()));
            if let Some(Error::ScriptedPolicy { .. }) = policy_error {
                return Ok(None);
            }
            if let Some(error) = trajectory.error {
                failed += 1;
                first_error.get_or_insert(error);
                continue;
            }
            for record in trajectory.requests {
                let prompt = codec.prompt(&record.messages)?.len();
                let max_response = episode_config.max_tokens(record.kind);
                probe.prompt_tokens += prompt as u64;
                probe.response_tokens += u64::from(max_response);
                probe.max_sequence = probe.max_sequence.max(prompt + max_response as usize);
            }
        }
        match first_error.filter(|_| failed == count) {
            Some(e) => Err(Error::Stopped(format!("all meta-episodes failed: {e}"))),
            None => Ok(Some(probe)),
        }
    }

    /// An error if a sequence may exceed the model's maximum length.
    pub(crate) fn check_fits(&self, recipe: &Recipe, max_seq_len: usize) -> Result<()> {
        if self.max_sequence <= max_seq_len {
            return Ok(());
        }
        let key = if recipe.model.path.is_empty() { "model.max_seq_len" } else { "model.path" };
        let problem = format!(
            "prompt and response take up to {} tokens, but the maximum sequence length is {max_seq_len}; raise it, or lower \
             play.episodes and eval.episodes",
            self.max_sequence
        );
        Err(Error::Recipe { location: key.to_owned(), problem })
    }
}
