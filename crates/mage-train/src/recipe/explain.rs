//! Explanations of recipe keys, and checks for unknown keys.

use super::{Recipe, sections as s};
use crate::{Error, Result};
use mage_env::nearest_name;
use toml::{Table, Value};

/// One key of a recipe.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct RecipeField {
    /// Dotted key.
    pub key: String,
    /// Explanation.
    pub description: String,
    /// Default value.
    pub default: String,
}

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

/// The keys below `prefix` (all for an empty one). An unknown prefix is an error that suggests the nearest key.
pub fn explain(prefix: &str) -> Result<Vec<RecipeField>> {
    let defaults = values(&Recipe::default());
    let below =
        |key: &str| prefix.is_empty() || key == prefix || key.strip_prefix(prefix).is_some_and(|r| r.starts_with('.'));
    let found: Vec<RecipeField> = fields()
        .filter(|(key, _)| below(key))
        .map(|(key, description)| {
            let value = key.split('.').try_fold(&defaults, |v, part| v.get(part));
            let description = description.iter().map(|l| l.trim()).collect::<Vec<_>>().join(" ");
            RecipeField { default: value.map_or_else(|| "(none)".to_owned(), one_line), description, key }
        })
        .collect();
    if found.is_empty() { Err(unknown(prefix, "mage recipe explain")) } else { Ok(found) }
}

fn one_line(value: &Value) -> String {
    match value {
        Value::Table(t) => {
            let inner: Vec<String> = t.iter().map(|(k, v)| format!("{k} = {}", one_line(v))).collect();
            format!("{{ {} }}", inner.join(", "))
        }
        other => other.to_string(),
    }
}

/// The values of a recipe with floats in their shortest 32-bit form: 0.2, not 0.200000003.
pub(super) fn values(recipe: &Recipe) -> Value {
    let mut value = Value::try_from(recipe).expect("recipes are plain data");
    shorten(&mut value);
    value
}

fn shorten(value: &mut Value) {
    match value {
        Value::Float(x) if f64::from(*x as f32) == *x => *x = (*x as f32).to_string().parse().unwrap_or(*x),
        Value::Table(table) => table.iter_mut().for_each(|(_, v)| shorten(v)),
        Value::Array(list) => list.iter_mut().for_each(shorten),
        _ => {}
    }
}

fn fields() -> impl Iterator<Item = (String, &'static [&'static str])> {
    SECTIONS.iter().flat_map(|(section, fields)| {
        fields.iter().map(move |(name, description)| {
            (if section.is_empty() { (*name).to_owned() } else { format!("{section}.{name}") }, *description)
        })
    })
}

/// Refuses unknown keys. Tables that are values themselves (a reward rule, an estimator) are checked when they are
/// deserialised.
pub(super) fn check_keys(table: &Table, location: &str) -> Result<()> {
    let known: Vec<String> = fields().map(|(key, _)| key).collect();
    check_below("", table, location, &known)
}

fn check_below(prefix: &str, table: &Table, location: &str, known: &[String]) -> Result<()> {
    for (key, value) in table {
        let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        if known.contains(&key) {
            continue;
        }
        let section = known.iter().any(|k| k.strip_prefix(&key).is_some_and(|r| r.starts_with('.')));
        match value {
            Value::Table(inner) if section => check_below(&key, inner, location, known)?,
            _ if section => {
                let problem = format!("`{key}` is a section; set one of its keys (`mage recipe explain {key}`)");
                return Err(Error::Recipe { location: location.to_owned(), problem });
            }
            _ => return Err(unknown(&key, location)),
        }
    }
    Ok(())
}

fn unknown(key: &str, location: &str) -> Error {
    let last = key.rsplit('.').next().unwrap_or(key);
    let known: Vec<String> = fields().map(|(k, _)| k).collect();
    let foreign = FOREIGN_NAMES.iter().find(|(name, _)| *name == last).map(|(_, key)| *key);
    let other_section = || {
        let same: Vec<&String> = known.iter().filter(|k| k.rsplit('.').next() == Some(last)).collect();
        same.first().filter(|_| same.len() == 1).map(|k| k.as_str())
    };
    let sections = || SECTIONS.iter().map(|(name, _)| *name).filter(|name| !name.is_empty());
    let near = foreign
        .or_else(other_section)
        .or_else(|| nearest_name(key, known.iter().map(String::as_str)))
        .or_else(|| nearest_name(key, sections()));
    let hint =
        near.map_or_else(|| "; `mage recipe explain` lists all keys".to_owned(), |n| format!(": did you mean `{n}`?"));
    Error::Recipe { location: location.to_owned(), problem: format!("unknown key `{key}`{hint}") }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn keys_are_explained_singly_and_by_section() {
        assert_eq!(explain("optim.updates").unwrap().len(), 1);
        assert!(explain("optim").unwrap().len() > 5);
        assert!(explain("optmi").unwrap_err().to_string().contains("unknown key `optmi`: did you mean `optim`?"));
        assert!(explain("").unwrap().iter().all(|f| f.description.ends_with('.')), "every explanation is a sentence");
    }
}
