//! The table of all recipe keys, and the check for unknown ones.

use super::sections as s;
use crate::{Error, Result};
use mage_env::{line_at, nearest_name};
use toml::de::{DeTable, DeValue};

type FieldDocs = &'static [(&'static str, &'static [&'static str])];

const TOP: FieldDocs = &[
    ("seed", &["Seed of all random streams. The same recipe and seed give byte-identical metrics."]),
    (
        "reward",
        &["Reward of an episode: `score` (the environment's own unit), `paper`, `code`, or an explicit rule, \
           { kind = \"outcome\", won = 1, lost = -1, draw = 0, truncated = 0 } or { kind = \"score\", scale = 1 }."],
    ),
];

const METHOD: FieldDocs = &[
    ("memory", &["Whether prompts contain a memory of earlier episodes."]),
    (
        "credit.assignment",
        &["Credit of a turn: `differential` (improvement over the previous episode), `cumulative`, `single` (its own \
           episode only) or `final_only`."],
    ),
    ("credit.recursion", &["Recursion of returns over turns and episodes: `paper` (equation 7) or `released`."]),
    ("credit.gamma_step", &["Discount between turns of an episode."]),
    ("credit.gamma_traj", &["Discount between episodes."]),
    ("credit.reflection", &["Score of a reflection: `corrected` or `faithful` (0, as released)."]),
    ("credit.penalty", &["Where penalties enter: `per_transition`, `episode_reward` or `episode_level_only`."]),
    (
        "credit.omit_previous_return",
        &[
            "With `differential`: omit the previous episode's score from an episode's own returns. Lower variance, same expectation.",
        ],
    ),
    (
        "estimator",
        &["Advantage estimator: { kind = \"return_to_go\" | \"gigpo\" | \"grpo\" | \"rloo\", scope = \"group\" | \
           \"opponent\" | \"all\", ... }; gigpo also takes step_weight, norm (`mean`, `mean_std`), baseline (`transition`, \
           `episode`, `meta_episode`, `episode_index`) and anchors (`global`, `local`)."],
    ),
];

const PENALTY: FieldDocs = &[
    ("invalid", &["Penalty for a response that cannot be parsed or executed."]),
    ("length", &["Penalty for long responses: { limit = tokens, weight = maximum }; none if absent."]),
];

const SECTIONS: &[(&str, FieldDocs)] = &[
    ("", TOP),
    ("env", s::EnvConfig::FIELDS),
    ("play", s::PlayConfig::FIELDS),
    ("model", s::ModelConfig::FIELDS),
    ("warmstart", s::WarmStartConfig::FIELDS),
    ("method", METHOD),
    ("penalty", PENALTY),
    ("rollout", s::RolloutConfig::FIELDS),
    ("loss", s::LossConfig::FIELDS),
    ("optim", s::OptimConfig::FIELDS),
    ("eval", s::EvalConfig::FIELDS),
    ("checkpoint", s::CheckpointConfig::FIELDS),
    ("trajectories", s::TrajectoryConfig::FIELDS),
    ("engine", s::EngineConfig::FIELDS),
    ("tinker", s::TinkerConfig::FIELDS),
    ("vllm", s::VllmConfig::FIELDS),
    ("health", s::HealthThresholds::FIELDS),
];

/// Most keys that an error suggests.
const MAX_SUGGESTIONS: usize = 3;

/// Names used by other frameworks, with the corresponding keys.
const FOREIGN_NAMES: &[(&str, &str)] = &[
    ("lr", "optim.learning_rate"),
    ("learning_rate", "optim.learning_rate"),
    ("gamma", "method.credit.gamma_step"),
    ("gamma_traj", "method.credit.gamma_traj"),
    ("traj_gamma", "method.credit.gamma_traj"),
    ("batch_size", "rollout.groups"),
    ("train_batch_size", "rollout.groups"),
    ("num_attempts", "play.episodes"),
    ("temperature", "rollout.temperature"),
    ("entropy_coeff", "loss.entropy"),
    ("kl_coef", "loss.kl_play"),
    ("total_epochs", "optim.updates"),
    ("ppo_epochs", "optim.epochs"),
    ("population", "env.population"),
    ("threads", "engine.threads"),
];

/// All keys with the lines of their explanations.
pub(super) fn fields() -> impl Iterator<Item = (String, &'static [&'static str])> {
    SECTIONS.iter().flat_map(|(section, fields)| {
        fields.iter().map(move |(name, description)| {
            (if section.is_empty() { (*name).to_owned() } else { format!("{section}.{name}") }, *description)
        })
    })
}

/// Whether a key is this key, or below it.
pub(super) fn is_within(key: &str, prefix: &str) -> bool {
    key == prefix || key.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.'))
}

/// Whether a name is a key, a section, or a part of one.
pub fn is_key(name: &str) -> bool {
    fields().any(|(key, _)| is_within(&key, name))
}

/// Refuses unknown keys, and calls `on_key` with each key of the document and its line. Tables that are values
/// themselves (a reward rule, an estimator) are checked when they are deserialised.
pub(super) fn check_keys(
    document: &DeTable<'_>,
    text: &str,
    location: &dyn Fn(usize) -> String,
    on_key: &mut dyn FnMut(String, usize),
) -> Result<()> {
    let known: Vec<String> = fields().map(|(key, _)| key).collect();
    check_below("", document, text, location, &known, on_key)
}

fn check_below(
    prefix: &str,
    table: &DeTable<'_>,
    text: &str,
    location: &dyn Fn(usize) -> String,
    known: &[String],
    on_key: &mut dyn FnMut(String, usize),
) -> Result<()> {
    for (name, value) in table {
        let key = if prefix.is_empty() { name.get_ref().to_string() } else { format!("{prefix}.{}", name.get_ref()) };
        let line = line_at(text, name.span().start);
        // A value may be a table.
        let in_value = known.iter().any(|k| is_within(&key, k));
        let section = !in_value && known.iter().any(|k| is_within(k, &key));
        match value.get_ref() {
            DeValue::Table(inner) if section || in_value => {
                if in_value {
                    on_key(key.clone(), line);
                }
                check_below(&key, inner, text, location, known, on_key)?;
            }
            _ if in_value => on_key(key, line),
            _ if section => {
                let problem = format!("`{key}` is a section; set one of its keys (`mage recipe explain {key}`)");
                return Err(Error::Recipe { location: location(line), problem });
            }
            _ => return Err(unknown(&key, &location(line))),
        }
    }
    Ok(())
}

/// The error of an unknown key, with the known keys that are meant most likely.
pub(super) fn unknown(key: &str, location: &str) -> Error {
    let last = key.rsplit('.').next().unwrap_or(key);
    let known: Vec<String> = fields().map(|(k, _)| k).collect();
    let foreign = FOREIGN_NAMES.iter().find(|(name, _)| *name == last).map(|(_, key)| (*key).to_owned());
    let name_of = |key: &str| key.rsplit('.').next().unwrap_or(key).to_owned();
    let same: Vec<&String> = known.iter().filter(|k| name_of(k) == last).collect();
    let sections = || SECTIONS.iter().map(|(name, _)| *name).filter(|name| !name.is_empty());
    let nearest = || {
        let near = nearest_name(key, known.iter().map(String::as_str));
        near.or_else(|| nearest_name(key, sections())).map(str::to_owned)
    };
    // Keys one of whose words is the name: `lora` in `engine.lora_rank`.
    let with_word = || -> Vec<String> {
        let has_word = |k: &&String| name_of(k).split('_').any(|word| word == last);
        known.iter().filter(has_word).take(MAX_SUGGESTIONS).cloned().collect()
    };
    let near = match (foreign, &same[..]) {
        (Some(key), _) => vec![key],
        (None, [key]) => vec![(*key).clone()],
        _ => Some(with_word()).filter(|keys| !keys.is_empty()).unwrap_or_else(|| nearest().into_iter().collect()),
    };
    let quoted: Vec<String> = near.iter().map(|key| format!("`{key}`")).collect();
    let hint = match &quoted[..] {
        [] => "; `mage recipe explain` lists all keys".to_owned(),
        keys => format!(": did you mean {}?", keys.join(" or ")),
    };
    Error::Recipe { location: location.to_owned(), problem: format!("unknown key `{key}`{hint}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Recipe;
    use toml::Value;

    #[test]
    fn explained_keys_are_exactly_the_keys_of_a_recipe() {
        let mut keys = Vec::new();
        fn leaves(prefix: &str, value: &Value, known: &[String], out: &mut Vec<String>) {
            match value {
                Value::Table(t) if !known.contains(&prefix.to_owned()) => {
                    for (k, v) in t {
                        let key = if prefix.is_empty() { k.clone() } else { format!("{prefix}.{k}") };
                        leaves(&key, v, known, out);
                    }
                }
                _ => out.push(prefix.to_owned()),
            }
        }
        let mut known: Vec<String> = fields().map(|(k, _)| k).collect();
        leaves("", &Value::try_from(Recipe::default()).unwrap(), &known, &mut keys);
        keys.push("penalty.length".to_owned()); // absent by default
        keys.sort();
        known.sort();
        assert_eq!(keys, known);
        for (_, target) in FOREIGN_NAMES {
            assert!(known.iter().any(|k| k == target), "{target}");
        }
    }

    #[test]
    fn suggestions_find_foreign_names_words_and_misspellings() {
        let hint = |key: &str| unknown(key, "x").to_string();
        assert!(hint("lr").ends_with("did you mean `optim.learning_rate`?"));
        assert!(
            hint("lora").ends_with("did you mean `engine.lora_rank` or `engine.lora_alpha` or `engine.lora_targets`?")
        );
        assert!(hint("optim.kl_play").ends_with("did you mean `loss.kl_play`?"));
        assert!(hint("optmi").ends_with("did you mean `optim`?"));
        assert!(hint("colour").ends_with("lists all keys"));
    }
}
