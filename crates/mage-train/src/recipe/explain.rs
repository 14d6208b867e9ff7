//! What does this key mean?

use super::{Recipe, compose::nearest, sections as s};
use crate::{Error, Result};
use toml::{Table, Value};

/// One key of a recipe.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct RecipeField {
    /// The key, dots included.
    pub key: String,
    /// What it means.
    pub about: String,
    /// Its value when nobody mentions it.
    pub default: String,
}

type FieldDocs = &'static [(&'static str, &'static [&'static str])];

const TOP: FieldDocs = &[
    ("seed", &["Where all random numbers start. The same recipe and seed give the same metrics, byte for byte."]),
    (
        "reward",
        &["What episodes are worth: `score` (the environment's own unit), `paper`, `code`, or a rule written out as \
           { kind = \"outcome\", won = 1, lost = -1, draw = 0, truncated = 0 } or { kind = \"score\", scale = 1 }."],
    ),
];

const METHOD: FieldDocs = &[
    ("memory", &["Whether an episode knows of those before it."]),
    (
        "credit.assignment",
        &[
            "What a turn is said to have earned: `differential` (the improvement over the episode before), `cumulative`, \
           `single` (later episodes do not count) or `final_only`.",
        ],
    ),
    ("credit.recursion", &["How later turns and episodes are added up: `paper` (equation 7) or `released`."]),
    ("credit.gamma_step", &["Discount from one turn of an episode to the next."]),
    ("credit.gamma_traj", &["Discount from one episode to the next."]),
    ("credit.reflection", &["What a reflection's score is: `corrected` or `faithful` (0, as released)."]),
    ("credit.penalty", &["Where penalties enter: `per_transition`, `episode_reward` or `episode_level_only`."]),
    (
        "credit.omit_previous_return",
        &[
            "With `differential`: leave the episode before out of an episode's own returns. Less noise, the same expectation.",
        ],
    ),
    (
        "estimator",
        &[
            "How credit becomes advantages: { kind = \"return_to_go\" | \"gigpo\" | \"grpo\" | \"rloo\", scope = \"group\" | \
           \"opponent\" | \"all\", ... }; gigpo also takes step_weight, norm (`mean`, `mean_std`), baseline (`row`, \
           `episode`, `meta_episode`, `episode_index`) and anchors (`global`, `local`).",
        ],
    ),
];

const PENALTY: FieldDocs = &[
    ("invalid", &["Deducted for an answer that could not be read or carried out."]),
    ("length", &["Deducted for long answers: { limit = tokens, weight = most }; none when absent."]),
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

/// What other frameworks call things, and what they are called here.
const ELSEWHERE: &[(&str, &str)] = &[
    ("lr", "optim.learning_rate"),
    ("learning_rate", "optim.learning_rate"),
    ("gamma", "method.credit.gamma_step"),
    ("gamma_traj", "method.credit.gamma_traj"),
    ("traj_gamma", "method.credit.gamma_traj"),
    ("group_size", "rollout.group_size"),
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

/// Every key that begins with `prefix` (all with an empty one), or what is near if there is none.
pub fn explain(prefix: &str) -> Result<Vec<RecipeField>> {
    let defaults = values(&Recipe::default());
    let inside =
        |key: &str| prefix.is_empty() || key == prefix || key.strip_prefix(prefix).is_some_and(|r| r.starts_with('.'));
    let found: Vec<RecipeField> = fields()
        .filter(|(key, _)| inside(key))
        .map(|(key, about)| {
            let value = key.split('.').try_fold(&defaults, |v, part| v.get(part));
            let about = about.iter().map(|l| l.trim()).collect::<Vec<_>>().join(" ");
            RecipeField { default: value.map_or_else(|| "(none)".to_owned(), one_line), about, key }
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

/// A recipe's values as people write them: 0.2, and not the nearest 32-bit number's nearest 64-bit one.
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
        fields.iter().map(move |(name, about)| {
            (if section.is_empty() { (*name).to_owned() } else { format!("{section}.{name}") }, *about)
        })
    })
}

/// Refuses keys that do not exist. What stands below a key that holds a value of its own (a reward rule, an estimator) is
/// left to whoever reads the value.
pub(super) fn check_keys(table: &Table, place: &str) -> Result<()> {
    let known: Vec<String> = fields().map(|(key, _)| key).collect();
    check_below("", table, place, &known)
}

fn check_below(prefix: &str, table: &Table, place: &str, known: &[String]) -> Result<()> {
    for (key, value) in table {
        let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        if known.contains(&key) {
            continue;
        }
        let section = known.iter().any(|k| k.strip_prefix(&key).is_some_and(|r| r.starts_with('.')));
        match value {
            Value::Table(inner) if section => check_below(&key, inner, place, known)?,
            _ if section => {
                let problem = format!("`{key}` is a section; set one of its keys (`mage recipe explain {key}`)");
                return Err(Error::Recipe { place: place.to_owned(), problem });
            }
            _ => return Err(unknown(&key, place)),
        }
    }
    Ok(())
}

fn unknown(key: &str, place: &str) -> Error {
    let last = key.rsplit('.').next().unwrap_or(key);
    let known: Vec<String> = fields().map(|(k, _)| k).collect();
    let elsewhere = ELSEWHERE.iter().find(|(name, _)| *name == last).map(|(_, ours)| *ours);
    let moved = || {
        let same: Vec<&String> = known.iter().filter(|k| k.rsplit('.').next() == Some(last)).collect();
        same.first().filter(|_| same.len() == 1).map(|k| k.as_str())
    };
    let sections = || SECTIONS.iter().map(|(name, _)| *name).filter(|name| !name.is_empty());
    let near = elsewhere
        .or_else(moved)
        .or_else(|| nearest(key, known.iter().map(String::as_str)))
        .or_else(|| nearest(key, sections()));
    let hint =
        near.map_or_else(|| "`mage recipe explain` lists all keys".to_owned(), |n| format!("did you mean `{n}`?"));
    Error::Recipe { place: place.to_owned(), problem: format!("there is no key `{key}`; {hint}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_of_a_recipe_is_explained_and_nothing_else() {
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
        for (_, ours) in ELSEWHERE {
            assert!(known.iter().any(|k| k == ours), "{ours}");
        }
    }

    #[test]
    fn keys_can_be_asked_for_singly_and_by_section() {
        assert_eq!(explain("optim.updates").unwrap().len(), 1);
        assert!(explain("optim").unwrap().len() > 5);
        assert!(explain("optmi").unwrap_err().to_string().contains("no key `optmi`"));
        assert!(explain("").unwrap().iter().all(|f| f.about.ends_with('.')), "every key has a sentence");
    }
}
