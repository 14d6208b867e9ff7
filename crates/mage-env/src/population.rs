//! Populations: weighted opponents and options from which tasks are sampled.
//!
//! A [`Population`] is a TOML file: weighted opponents in named splits, the agent's seats, and the options of the
//! environment. Training draws one opponent and seat per *group*; all members of the group share them.
//!
//! ```
//! let text = r#"
//!     env = "kuhn"
//!     options = { deal = "fresh" }
//!
//!     [[opponent]]
//!     name = "rock"
//!     kind = "conservative"
//!     weight = 0.5
//!
//!     [[opponent]]
//!     name = "stranger"
//!     kind = "table"
//!     bet = { J = 0.3, Qb = 0.5, Qpb = 0.5, K = 1.0, Kb = 1.0, Kpb = 1.0 }
//!     splits = ["out-of-domain"]
//! "#;
//! let population = mage_env::Population::from_toml(text, "example").unwrap();
//! assert_eq!(population.in_split("train").unwrap().len(), 1);
//! ```

use crate::{EnvId, Error, OpponentSpec, OptionMap, Result, Seed, Task, from_toml, line_at, nearest_name};
use mage_rng::weighted_index;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};
use toml::de::DeTable;

/// The splits of every population. An opponent is in the first two by default.
pub const SPLITS: [&str; 3] = ["train", "in-domain", "out-of-domain"];

/// Most opponents of a population.
const MAX_OPPONENTS: usize = 10_000;

/// Weighted opponents, seats and options.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Population {
    /// The environment.
    pub env: EnvId,
    /// Options of the environment.
    #[serde(default)]
    pub options: OptionMap,
    /// Options that differ by split; they define the splits of environments without opponents. A name beyond [`SPLITS`]
    /// adds a split.
    #[serde(default, rename = "split", skip_serializing_if = "BTreeMap::is_empty")]
    pub overrides: BTreeMap<String, OptionMap>,
    /// Relative frequencies of the agent's seats; uniform when empty.
    #[serde(default)]
    pub seats: Vec<f64>,
    /// The opponents; none in worlds.
    #[serde(default, rename = "opponent")]
    pub opponents: Vec<PopulationMember>,
}

/// One opponent of a population.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PopulationMember {
    /// Relative frequency.
    #[serde(default = "one")]
    pub weight: f64,
    /// The splits that contain it.
    #[serde(default = "in_domain_splits")]
    pub splits: Vec<String>,
    /// The opponent.
    #[serde(flatten)]
    pub spec: OpponentSpec,
}

fn one() -> f64 {
    1.0
}

fn in_domain_splits() -> Vec<String> {
    vec!["train".to_owned(), "in-domain".to_owned()]
}

impl PopulationMember {
    /// A member of the `train` and `in-domain` splits.
    pub fn in_domain(kind: &str, weight: f64) -> Self {
        PopulationMember { weight, splits: in_domain_splits(), spec: OpponentSpec::of_kind(kind) }
    }

    /// A member of the `out-of-domain` split only.
    pub fn out_of_domain(kind: &str, weight: f64) -> Self {
        PopulationMember { weight, splits: vec!["out-of-domain".to_owned()], spec: OpponentSpec::of_kind(kind) }
    }
}

/// Relation between the tasks of a training group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grouping {
    /// All members have the same opponent, seat and deals, so they differ in their actions only.
    #[default]
    Stationary,
    /// Each member draws its own opponent and seat (the paper's non-stationary ablation).
    Mixed,
}

impl Population {
    /// A population without opponents, as for a world.
    pub fn without_opponents(env: EnvId) -> Self {
        Population { env, options: OptionMap::default(), overrides: BTreeMap::new(), seats: vec![], opponents: vec![] }
    }

    /// The names of all splits.
    pub fn splits(&self) -> impl Iterator<Item = &str> {
        let further = self.overrides.keys().map(String::as_str).filter(|s| !SPLITS.contains(s));
        SPLITS.into_iter().chain(further)
    }

    /// The environment's options in a split.
    pub fn options_in(&self, split: &str) -> OptionMap {
        let mut options = self.options.clone();
        options.0.extend(self.overrides.get(split).into_iter().flat_map(|o| o.0.clone()));
        options
    }

    /// Sets an option in every split and removes the splits' overrides of it.
    pub fn set(&mut self, key: &str, value: serde_json::Value) {
        for options in self.overrides.values_mut() {
            options.0.remove(key);
        }
        self.options.0.insert(key.to_owned(), value);
    }

    /// Parses a population; `source` is the file name, for errors.
    pub fn from_toml(text: &str, source: &str) -> Result<Self> {
        let population: Population =
            from_toml(text).map_err(|e| Error::invalid(format!("{source}:{}", e.line), e.problem))?;
        population.validate(source)?;
        let options = population.overrides.values().chain([&population.options]).map(|o| (source.to_owned(), o));
        let members = population.opponents.iter();
        let params = members.map(|m| (format!("{source}: opponent `{}`", m.spec.name), &m.spec.params));
        for (at, options) in options.chain(params) {
            if let Some(key) = options.not_finite() {
                return Err(Error::invalid(at, format!("`{key}` is nan or inf; write a finite number")));
            }
        }
        Ok(population)
    }

    /// Reads a population file.
    pub fn from_file(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Self::from_toml(&text, &path.display().to_string())
    }

    /// The line of a population file to which an environment's message refers: it names an opponent, a key or both in
    /// backticks.
    pub fn line_of(text: &str, message: &str) -> Option<usize> {
        let document = DeTable::parse(text).ok()?.into_inner();
        let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
        let named = |table: &&DeTable<'_>| {
            let name = table.get("name").and_then(|name| name.get_ref().as_str());
            name.is_some_and(|name| message.contains(&format!("opponent `{name}`")))
        };
        let tables =
            |key: &str| document.get(key).into_iter().flat_map(|v| v.get_ref().as_array().into_iter().flatten());
        let opponent = tables("opponent").filter_map(|v| v.get_ref().as_table()).find(named);
        let options = || document.get("options").and_then(|v| v.get_ref().as_table());
        let table = opponent.or_else(options)?;
        let key = table.keys().find(|k| quoted.iter().any(|q| q.split('.').next() == Some(k.get_ref().as_ref())));
        let name = || table.keys().find(|k| opponent.is_some() && k.get_ref() == "name");
        Some(line_at(text, key.or_else(name)?.span().start))
    }

    /// Checks weights, splits, names and keys; `source` is the file name, for errors.
    pub fn validate(&self, source: &str) -> Result<()> {
        if self.opponents.len() > MAX_OPPONENTS {
            let problem = format!("{} opponents are more than {MAX_OPPONENTS}", self.opponents.len());
            return Err(Error::invalid(source, problem));
        }
        let non_negative = |w: f64| w.is_finite() && w >= 0.0;
        let mut names = BTreeSet::new();
        for m in &self.opponents {
            let at = format!("{source}: opponent `{}`", m.spec.name);
            if !non_negative(m.weight) {
                return Err(Error::invalid(at, format!("weight {} is not a number of at least 0", m.weight)));
            }
            if let Some(s) = m.splits.iter().find(|s| !self.splits().any(|known| known == *s)) {
                return Err(Error::invalid(at, Error::unknown("split", s, self.splits()).to_string()));
            }
            // Other keys are parameters of the kind, which cannot detect a misspelt `weight` or `splits`.
            let near = |key: &String| nearest_name(key, ["weight", "splits"]);
            if let Some((key, nearest)) = m.spec.params.0.keys().find_map(|key| Some((key, near(key)?))) {
                return Err(Error::invalid(at, format!("unknown key `{key}`: did you mean `{nearest}`?")));
            }
            if !names.insert(&m.spec.name) {
                return Err(Error::invalid(at, "the name is taken; give each opponent its own"));
            }
        }
        if !self.seats.iter().all(|w| non_negative(*w))
            || (!self.seats.is_empty() && self.seats.iter().sum::<f64>() <= 0.0)
        {
            return Err(Error::invalid(source, "`seats` are weights of at least 0, not all 0"));
        }
        Ok(())
    }

    /// The opponents of a split with their probabilities.
    pub fn in_split(&self, split: &str) -> Result<Vec<(f64, &OpponentSpec)>> {
        if !self.splits().any(|known| known == split) {
            return Err(Error::unknown("split", split, self.splits()));
        }
        let chosen: Vec<_> =
            self.opponents.iter().filter(|m| m.weight > 0.0 && m.splits.iter().any(|s| s == split)).collect();
        let total: f64 = chosen.iter().map(|m| m.weight).sum();
        if chosen.is_empty() && !self.opponents.is_empty() {
            return Err(Error::invalid(
                format!("population of {}", self.env),
                format!("no opponent in split `{split}`"),
            ));
        }
        Ok(chosen.into_iter().map(|m| (m.weight / total, &m.spec)).collect())
    }

    /// The probabilities of the agent's seats.
    pub fn seat_shares(&self, seats: u8) -> Result<Vec<f64>> {
        let n = usize::from(seats);
        match self.seats.len() {
            0 => Ok(vec![1.0 / n as f64; n]),
            len if len == n => {
                let total: f64 = self.seats.iter().sum();
                Ok(self.seats.iter().map(|w| w / total).collect())
            }
            len => Err(Error::invalid(
                format!("population of {}", self.env),
                format!("`seats` lists {len} weights, but the game has {n} seats"),
            )),
        }
    }

    /// Samples a task of a split: opponent and seat by weight, and its own seed.
    pub fn sample_task(&self, split: &str, seats: u8, seed: Seed) -> Result<Task> {
        let opponents = self.in_split(split)?;
        let shares = self.seat_shares(seats)?;
        let pick = weighted_index(opponents.iter().map(|(w, _)| *w), &mut seed.child("opponent").rng());
        let seat = weighted_index(shares.iter().copied(), &mut seed.child("seat").rng());
        Ok(Task {
            env: self.env.clone(),
            options: self.options_in(split),
            opponent: opponents.get(pick).map(|(_, spec)| (*spec).clone()),
            seat: seat as u8,
            seed: seed.child("task"),
        })
    }

    /// The tasks of a group of `size` members.
    pub fn sample_group(
        &self,
        split: &str,
        seats: u8,
        seed: Seed,
        size: usize,
        grouping: Grouping,
    ) -> Result<Vec<Task>> {
        let first = self.sample_task(split, seats, seed)?;
        match grouping {
            Grouping::Stationary => Ok(vec![first; size]),
            Grouping::Mixed => (0..size)
                .map(|i| {
                    let own = self.sample_task(split, seats, seed.child("member").at(i as u64))?;
                    Ok(Task { seed: first.seed, ..own })
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Population {
        Population {
            env: EnvId::new("kuhn"),
            options: OptionMap::default(),
            overrides: BTreeMap::new(),
            seats: vec![],
            opponents: vec![
                PopulationMember::in_domain("conservative", 0.3),
                PopulationMember::in_domain("aggressive", 0.3),
                PopulationMember::in_domain("intermediate", 0.4),
                PopulationMember::out_of_domain("cfr_argmax", 1.0),
            ],
        }
    }

    #[test]
    fn sample_frequencies_match_weights_splits_and_seats() {
        let p = sample();
        let mut counts = BTreeMap::new();
        for i in 0..20_000 {
            let t = p.sample_task("train", 2, Seed::new(i)).unwrap();
            *counts.entry((t.opponent.unwrap().name, t.seat)).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 6);
        let share = |n: &str, s| f64::from(counts[&(n.to_owned(), s)]) / 20_000.0;
        assert!((share("intermediate", 0) - 0.2).abs() < 0.015);
        assert!((share("aggressive", 1) - 0.15).abs() < 0.015);
        assert_eq!(p.in_split("out-of-domain").unwrap().len(), 1);
    }

    #[test]
    fn stationary_groups_share_one_task_and_mixed_groups_only_the_seed() {
        let p = sample();
        let group = p.sample_group("train", 2, Seed::new(3), 8, Grouping::Stationary).unwrap();
        assert!(group.iter().all(|t| *t == group[0]));
        let mixed: Vec<_> =
            (0..10).flat_map(|g| p.sample_group("train", 2, Seed::new(g), 8, Grouping::Mixed).unwrap()).collect();
        assert!(mixed.chunks(8).any(|g| g.iter().any(|t| t.opponent != g[0].opponent)));
        assert!(mixed.chunks(8).any(|g| g.iter().any(|t| t.seat != g[0].seat)));
        assert!(mixed.chunks(8).all(|g| g.iter().all(|t| t.seed == g[0].seed)));
    }

    #[test]
    fn toml_round_trips() {
        let p = sample();
        let text = toml::to_string(&p).unwrap();
        assert_eq!(Population::from_toml(&text, "test").unwrap(), p);
    }

    #[test]
    fn splits_may_override_options() {
        let text =
            "env = \"sokoban\"\noptions = { boxes = 2, rows = 7 }\n[split.out-of-domain]\nboxes = 3\n[split.far]\n";
        let mut p = Population::from_toml(text, "p.toml").unwrap();
        assert_eq!(p.splits().collect::<Vec<_>>(), ["train", "in-domain", "out-of-domain", "far"]);
        let boxes = |p: &Population, split| p.sample_task(split, 1, Seed::new(1)).unwrap().options.0["boxes"].clone();
        assert_eq!([boxes(&p, "train"), boxes(&p, "out-of-domain"), boxes(&p, "far")], [2, 3, 2]);
        assert!(p.sample_task("fra", 1, Seed::new(1)).unwrap_err().to_string().contains("did you mean `far`"));
        assert_eq!(Population::from_toml(&toml::to_string(&p).unwrap(), "again").unwrap(), p);
        p.set("boxes", 1.into());
        assert_eq!([boxes(&p, "train"), boxes(&p, "out-of-domain")], [1, 1]);
    }

    #[test]
    fn messages_of_environments_are_located() {
        let text = "env = \"kuhn\"\n[options]\ndeal = \"x\"\n[[opponent]]\nname = \"a\"\nkind = \"mcts\"\n[[opponent]]\n\
                    name = \"fox\"\nkind = \"mcts\"\nsimulations = 3\n";
        let line = |message: &str| Population::line_of(text, message);
        assert_eq!(line("opponent `fox`: `simulations` must be a whole number"), Some(10));
        assert_eq!(line("opponent `fox`: unknown kind of opponent `mtcs`"), Some(8));
        assert_eq!(line("`deal` must be a text"), Some(3));
        assert_eq!(line("something else"), None);
    }

    #[test]
    fn invalid_populations_are_rejected_with_the_location() {
        let err = |text: &str| Population::from_toml(text, "p.toml").unwrap_err().to_string();
        assert_eq!(err("env = \"kuhn\"\nseat = [1]"), "p.toml:2: unknown key `seat`: did you mean `seats`?");
        let base = "env = \"kuhn\"\n[[opponent]]\nname = \"a\"\nkind = \"x\"\n";
        assert!(err(&format!("{base}weight = -1")).contains("weight -1"));
        assert_eq!(
            err(&format!("{base}weight = \"big\"")),
            "p.toml:5: `opponent.1.weight` must be a number, not the text \"big\""
        );
        assert_eq!(
            err("env = \"kuhn\"\n[[opponent]]\nname = \"a\"\nkind = 5"),
            "p.toml:4: `opponent.1.kind` must be a text, not the number 5"
        );
        let opponent = |i: usize| format!("[[opponent]]\nname = \"{i}\"\nkind = \"x\"\n");
        let crowd: String = (0..=MAX_OPPONENTS).map(opponent).collect();
        assert_eq!(err(&format!("env = \"kuhn\"\n{crowd}")), "p.toml: 10001 opponents are more than 10000");
        assert!(err(&format!("{base}splits = [\"trian\"]")).contains("did you mean `train`"));
        assert!(err(&format!("{base}{}", &base[13..])).contains("the name is taken"));
        assert!(err("env = \"kuhn\"\nseats = [0, 0]").contains("not all 0"));
        assert_eq!(
            err(&format!("{base}bet = {{ J = nan, Q = 0.5 }}")),
            "p.toml: opponent `a`: `bet.J` is nan or inf; write a finite number"
        );
        assert!(err(&format!("{base}alpha = [1.0, -inf]")).contains("opponent `a`: `alpha.2` is nan or inf"));
        assert!(err("env = \"kuhn\"\n[options]\nfee = inf").contains("p.toml: `fee` is nan or inf"));
        assert!(err("env = \"kuhn\"\n[split.train]\nfee = inf").contains("p.toml: `fee` is nan or inf"));
    }
}
