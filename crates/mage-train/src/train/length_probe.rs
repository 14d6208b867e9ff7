//! Measurement of prompt and response lengths with random play, in training and in evaluations.

use crate::{
    Error, Result,
    policy::{ScriptedPolicy, codec::PromptCodec},
    recipe::Recipe,
    rollout::Played,
    train::TrainEnv,
};
use futures_executor::block_on;
use mage_core::{EpisodeConfig, Message};
use mage_env::Seed;
use std::sync::Arc;

/// Episodes played in one measurement. The work grows with the square of the episodes of a meta-episode, because a
/// prompt contains what was remembered of all earlier ones.
const MAX_EPISODES: usize = 1000;

/// Prompts of a meta-episode that are tokenised: half of them the longest ones, the others at equal distances.
const MAX_PROMPTS: usize = 256;

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
    /// Plays `count` meta-episodes of training and as many of evaluations; fewer if they are long, with proportional
    /// counts. `None` if the environment does not list
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
        let played = count.min((MAX_EPISODES / episode_config.episodes.max(1) as usize).max(1));
        for i in 0..played as u64 {
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
            let lengths: Vec<usize> = trajectory.requests.iter().map(|r| text_length(&r.messages)).collect();
            let (mut tokens, mut length) = (0, 0);
            for n in sampled(&lengths) {
                let record = &trajectory.requests[n];
                let prompt = codec.prompt(&record.messages)?.len();
                let max_response = episode_config.max_tokens(record.kind);
                probe.max_sequence = probe.max_sequence.max(prompt + max_response as usize);
                tokens += prompt as u64;
                length += lengths[n];
            }
            let all: usize = lengths.iter().sum();
            // Exact if all prompts were tokenised.
            probe.prompt_tokens += if length == all { tokens } else { tokens * all as u64 / length.max(1) as u64 };
            let responses = trajectory.requests.iter().map(|r| u64::from(episode_config.max_tokens(r.kind)));
            probe.response_tokens += responses.sum::<u64>();
        }
        let scaled = |tokens: u64| tokens * count as u64 / played as u64;
        (probe.prompt_tokens, probe.response_tokens) = (scaled(probe.prompt_tokens), scaled(probe.response_tokens));
        match first_error.filter(|_| failed == played) {
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

fn text_length(messages: &[Message]) -> usize {
    messages.iter().map(|m| m.content.len()).sum()
}

/// Indices of the prompts to tokenise, given the lengths of their texts.
fn sampled(lengths: &[usize]) -> Vec<usize> {
    if lengths.len() <= MAX_PROMPTS {
        return (0..lengths.len()).collect();
    }
    let half = MAX_PROMPTS / 2;
    let mut longest: Vec<usize> = (0..lengths.len()).collect();
    longest.sort_by_key(|n| std::cmp::Reverse(lengths[*n]));
    let spread = (0..half).map(|i| i * lengths.len() / half);
    let mut all: Vec<usize> = longest.into_iter().take(half).chain(spread).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_prompts_are_sampled_with_the_longest_among_them() {
        assert_eq!(sampled(&[3, 1, 2]), [0, 1, 2]);
        let mut lengths: Vec<usize> = (0..10_000).collect();
        lengths[17] = 20_000;
        let some = sampled(&lengths);
        assert!(some.len() <= MAX_PROMPTS && some.contains(&17) && some.contains(&9_999) && some.contains(&0));
        assert!(some.windows(2).all(|w| w[0] < w[1]));
    }
}
