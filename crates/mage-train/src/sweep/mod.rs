//! Which runs and evaluations make a table or a figure?
//!
//! A [`Sweep`] is a grid of environments, methods, seeds and ablations, read from TOML. It comes to [`SweepCell`]s: one training
//! run, or one evaluation, each in a folder of its own. A cell is finished when the result of what is asked for is in place, so a
//! sweep can be stopped anywhere, or changed, and goes on with what is missing.

mod builtin;
mod cell;

pub use builtin::{preset_names, preset_text};
pub use cell::{CellInfo, REPLACED, RUN, SweepCell, forgotten, put_aside, replaced};

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A grid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// What it is for.
    pub about: String,
    /// What tables call the trained policies.
    pub player: String,
    /// Tasks on every panel.
    pub tasks: u64,
    /// Episodes per task.
    pub episodes: u32,
    /// Stop a task at its first win.
    #[serde(default)]
    pub early_stop: bool,
    /// Seeds of training, and of luck where nothing is trained.
    pub seeds: Vec<u64>,
    /// Settings of every recipe.
    #[serde(default)]
    pub set: Vec<String>,
    /// Environments.
    pub env: Vec<SweepEnv>,
    /// Methods.
    #[serde(default)]
    pub method: Vec<SweepMethod>,
    /// What else is trained: each method with each change, beside the method as it is.
    #[serde(default)]
    pub ablation: Vec<Ablation>,
}

/// An environment of a grid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SweepEnv {
    /// Its name.
    pub name: String,
    /// What is measured: presets of `mage eval`.
    pub panels: Vec<String>,
    /// Recipes that training starts from; without any, nothing is trained here.
    #[serde(default)]
    pub recipe: Vec<String>,
    /// Settings of its recipes.
    #[serde(default)]
    pub set: Vec<String>,
    /// Agents that play by rule.
    #[serde(default)]
    pub agents: Vec<String>,
}

/// A method of a grid: trained, or asked of a model behind an endpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SweepMethod {
    /// What tables call it.
    pub name: String,
    /// Pieces of a recipe, put after the environment's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train: Option<Vec<String>>,
    /// A method of `mage eval`; such cells wait for an endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
}

/// What is changed in an ablation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ablation {
    /// What tables call it.
    pub name: String,
    /// Settings, after all others.
    pub set: Vec<String>,
}

/// What is to be done in a cell.
#[derive(Clone, Debug, PartialEq)]
pub enum CellWork {
    /// Train.
    Train {
        /// Recipes and methods, left to right.
        recipes: Vec<String>,
        /// Settings.
        set: Vec<String>,
    },
    /// Play a panel with the policy of a run.
    Policy {
        /// The cell that trains it.
        of: String,
    },
    /// Play a panel by rule.
    Scripted,
    /// Play a panel with the model behind the endpoint.
    Prompt,
}

impl Sweep {
    /// An embedded preset, or a file, which comes first where its name ends in `.toml`.
    pub fn find(name: &str) -> Result<Self> {
        let path = Path::new(name);
        let meant = !(name.ends_with(".toml") && path.exists());
        if let Some(text) = preset_text(name).filter(|_| meant) {
            return Self::from_toml(text, name);
        }
        if !path.exists() {
            let problem = format!("neither a file nor a preset (presets: {})", preset_names().join(", "));
            return Err(Error::Recipe { place: name.to_owned(), problem });
        }
        let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
        Self::from_toml(&text, name)
    }

    /// Reads TOML; `place` is its name, for errors.
    pub fn from_toml(text: &str, place: &str) -> Result<Self> {
        let wrong = |problem: String| Error::Recipe { place: place.to_owned(), problem };
        let sweep: Sweep = toml::from_str(text).map_err(|e| wrong(e.to_string().trim_end().to_owned()))?;
        if sweep.seeds.is_empty() || sweep.tasks == 0 || sweep.episodes == 0 {
            return Err(wrong("seeds, tasks and episodes: give at least one of each".to_owned()));
        }
        if let Some(way) = sweep.method.iter().find(|w| w.train.is_some() == w.prompt.is_some()) {
            return Err(wrong(format!("method {}: give it either `train` or `prompt`", way.name)));
        }
        let mut ids: Vec<String> = sweep.cells().into_iter().map(|c| c.id).collect();
        ids.sort();
        if let Some(twice) = ids.windows(2).find(|w| w[0] == w[1]) {
            return Err(wrong(format!(
                "two cells are called {}: give environments and methods names of their own",
                twice[0]
            )));
        }
        Ok(sweep)
    }

    /// Everything to be done, in an order in which it can be done.
    pub fn cells(&self) -> Vec<SweepCell> {
        let mut cells = Vec::new();
        for world in &self.env {
            for agent in &world.agents {
                self.rules(world, agent, &mut cells);
            }
            for way in &self.method {
                match (&way.train, &way.prompt) {
                    (Some(pieces), _) if !world.recipe.is_empty() => self.trained(world, way, pieces, &mut cells),
                    (_, Some(method)) => self.prompted(world, way, method, &mut cells),
                    _ => {}
                }
            }
        }
        cells
    }

    fn trained(&self, world: &SweepEnv, way: &SweepMethod, pieces: &[String], cells: &mut Vec<SweepCell>) {
        let changes = std::iter::once(None).chain(self.ablation.iter().map(Some));
        for change in changes {
            for seed in &self.seeds {
                let ablation = change.map(|c| c.name.clone());
                let own = change.map(|c| c.set.clone()).unwrap_or_default();
                let mut set = [self.set.clone(), world.set.clone(), own].concat();
                set.push(format!("seed={seed}"));
                let recipes = [world.recipe.clone(), pieces.to_vec()].concat();
                let mut command = vec!["train".to_owned()];
                command.extend(recipes.iter().cloned());
                command.extend(set.iter().flat_map(|s| ["--set".to_owned(), s.clone()]));
                let about = |command: Vec<String>| CellInfo {
                    env: world.name.clone(),
                    method: way.name.clone(),
                    ablation: ablation.clone(),
                    player: self.player.clone(),
                    seed: *seed,
                    command,
                };
                let name = ablation.as_ref().map_or_else(|| way.name.clone(), |a| format!("{}-{a}", way.name));
                let run = format!("{}/{}-{seed}", plain(&world.name), plain(&name));
                cells.push(SweepCell {
                    id: run.clone(),
                    about: about(command),
                    work: CellWork::Train { recipes, set },
                });
                for panel in &world.panels {
                    let mut command = self.evaluation(panel, 1, self.seeds[0]);
                    command.extend(["--policy".to_owned(), format!("{run}/{RUN}")]);
                    let id = format!("{run}-on-{}", plain(panel));
                    cells.push(SweepCell { id, about: about(command), work: CellWork::Policy { of: run.clone() } });
                }
            }
        }
    }

    fn rules(&self, world: &SweepEnv, agent: &str, cells: &mut Vec<SweepCell>) {
        for panel in &world.panels {
            let mut command = self.evaluation(panel, self.seeds.len(), self.seeds[0]);
            command.extend(["--policy".to_owned(), agent.to_owned()]);
            let id = format!("{}/{}-on-{}", plain(&world.name), plain(agent), plain(panel));
            cells.push(SweepCell { id, about: self.played(world, agent, "rule", command), work: CellWork::Scripted });
        }
    }

    fn prompted(&self, world: &SweepEnv, way: &SweepMethod, method: &str, cells: &mut Vec<SweepCell>) {
        for panel in &world.panels {
            let mut command = self.evaluation(panel, self.seeds.len(), self.seeds[0]);
            command.extend(["--method".to_owned(), method.to_owned()]);
            let id = format!("{}/{}-on-{}", plain(&world.name), plain(&way.name), plain(panel));
            // Who answers is known once there is an endpoint.
            let about = self.played(world, &way.name, cell::NOBODY, command);
            cells.push(SweepCell { id, about, work: CellWork::Prompt });
        }
    }

    fn played(&self, world: &SweepEnv, method: &str, player: &str, command: Vec<String>) -> CellInfo {
        CellInfo {
            env: world.name.clone(),
            method: method.to_owned(),
            ablation: None,
            player: player.to_owned(),
            seed: self.seeds[0],
            command,
        }
    }

    /// What all evaluations of a panel have in common: the same tasks, whoever plays them.
    fn evaluation(&self, panel: &str, seeds: usize, seed: u64) -> Vec<String> {
        let mut command: Vec<String> = ["eval", "--preset", panel].map(str::to_owned).to_vec();
        let numbers = [
            ("--tasks", self.tasks),
            ("--episodes", u64::from(self.episodes)),
            ("--seed", seed),
            ("--seeds", seeds as u64),
        ];
        command.extend(numbers.into_iter().flat_map(|(option, n)| [option.to_owned(), n.to_string()]));
        if self.early_stop {
            command.push("--early-stop".to_owned());
        }
        command
    }

    /// How much a cell is, in episodes of a small policy: a guess that is good enough for the time left.
    pub fn weight(&self, cell: &SweepCell, train_episodes: u64) -> f64 {
        let panel = (self.tasks * u64::from(self.episodes)) as f64;
        match cell.work {
            CellWork::Train { .. } => 3.0 * train_episodes as f64,
            CellWork::Policy { .. } => panel,
            CellWork::Scripted => 0.1 * panel * self.seeds.len() as f64,
            CellWork::Prompt => 20.0 * panel * self.seeds.len() as f64,
        }
    }
}

/// A name that folders can have.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Composer;

    #[test]
    fn every_preset_reads_and_its_recipes_work() {
        for name in preset_names() {
            let sweep = Sweep::find(&name).unwrap_or_else(|e| panic!("{name}: {e}"));
            let cells = sweep.cells();
            assert!(!cells.is_empty(), "{name}");
            assert!(sweep.seeds.len() >= 3, "{name}: luck shows only over several seeds");
            for cell in &cells {
                let CellWork::Train { recipes, set } = &cell.work else { continue };
                let mut composer = Composer::new();
                recipes.iter().for_each(|r| composer.add(r).unwrap_or_else(|e| panic!("{name}: {e}")));
                set.iter().for_each(|s| composer.set(s).unwrap_or_else(|e| panic!("{name}: {e}")));
                let recipe = composer.finish().unwrap_or_else(|e| panic!("{name}, {}: {e}", cell.id));
                assert_eq!(recipe.seed, cell.about.seed);
            }
        }
    }

    const GRID: &str = r#"
        about = "test"
        player = "tiny policy"
        tasks = 8
        episodes = 3
        seeds = [4, 5]
        set = ["optim.updates=1"]
        [[env]]
        name = "kuhn"
        panels = ["kuhn", "kuhn-cfr"]
        recipe = ["kuhn"]
        agents = ["bayes"]
        [[env]]
        name = "webshop"
        panels = ["webshop"]
        [[method]]
        name = "MAGE"
        train = ["mage"]
        [[method]]
        name = "ReAct"
        prompt = "react"
        [[ablation]]
        name = "mixed groups"
        set = ["rollout.grouping=mixed"]
    "#;

    #[test]
    fn a_grid_is_every_combination_that_makes_sense() {
        let cells = Sweep::from_toml(GRID, "test").unwrap().cells();
        let count = |f: fn(&CellWork) -> bool| cells.iter().filter(|c| f(&c.work)).count();
        assert_eq!(
            count(|w| matches!(w, CellWork::Train { .. })),
            4,
            "two seeds, with and without the change; no recipe for webshop"
        );
        assert_eq!(count(|w| matches!(w, CellWork::Policy { .. })), 8, "each on two panels");
        assert_eq!((count(|w| *w == CellWork::Scripted), count(|w| *w == CellWork::Prompt)), (2, 3));
        let changed = cells.iter().find(|c| c.id == "kuhn/MAGE-mixed-groups-5").unwrap();
        let CellWork::Train { set, .. } = &changed.work else { panic!("it trains") };
        assert_eq!(set, &["optim.updates=1", "rollout.grouping=mixed", "seed=5"]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let err =
            |from: &str, to: &str| Sweep::from_toml(&GRID.replacen(from, to, 1), "grid.toml").unwrap_err().to_string();
        assert!(err("seeds = [4, 5]", "seeds = []").contains("at least one"));
        assert!(err("seeds = [4, 5]", "seeds = [4, 4]").contains("two cells are called"));
        assert!(err("train = [\"mage\"]", "").contains("either `train` or `prompt`"));
        assert!(err("tasks = 8", "tasks = 8\ncolour = 1").contains("colour"));
        assert!(Sweep::find("tabel1").unwrap_err().to_string().contains("tiny/table1"));
    }
}
