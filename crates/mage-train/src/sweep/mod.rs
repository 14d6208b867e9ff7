//! Sweeps: the runs and evaluations of a table or figure.
//!
//! A [`Sweep`] is a grid of environments, methods, seeds and ablations, read from TOML. It expands to [`SweepCell`]s:
//! training runs and evaluations, each with its own folder. A cell is finished once its result exists, so a sweep can
//! be interrupted or edited and continues with the missing cells.

mod builtin;
mod cell;
mod settings;

pub use builtin::{SCALES, nearest_preset, preset_names, preset_text};
pub use cell::{CellInfo, CellScore, REPLACED, RUN, SweepCell, archive, count_archived, orphaned};

use crate::{
    Error, Result,
    limits::{MAX_CELLS, MAX_EPISODES, MAX_SEEDS, MAX_TASKS, too_many_episodes},
};
use mage_env::from_toml;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A grid of runs and evaluations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// Description.
    pub description: String,
    /// Name of the trained policies in tables.
    pub policy: String,
    /// Tasks per task set.
    pub tasks: u64,
    /// Episodes per task.
    pub episodes: u32,
    /// Whether a task ends at its first win.
    #[serde(default)]
    pub early_stop: bool,
    /// Seeds of training, and of evaluations without training.
    pub seeds: Vec<u64>,
    /// Overrides for every recipe.
    #[serde(default)]
    pub set: Vec<String>,
    /// Overrides of the command line for every recipe, applied after those of environments and before ablations.
    #[serde(skip)]
    pub overrides: Vec<String>,
    /// Environments.
    pub env: Vec<SweepEnv>,
    /// Methods.
    #[serde(default)]
    pub method: Vec<SweepMethod>,
    /// Ablations: each method is also trained with each of them.
    #[serde(default)]
    pub ablation: Vec<Ablation>,
}

/// An environment of a grid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SweepEnv {
    /// Name.
    pub name: String,
    /// Task sets: presets of `mage eval`.
    pub task_sets: Vec<String>,
    /// Base recipes; without any, nothing is trained in this environment.
    #[serde(default)]
    pub recipe: Vec<String>,
    /// Overrides for its recipes.
    #[serde(default)]
    pub set: Vec<String>,
    /// Scripted agents.
    #[serde(default)]
    pub agents: Vec<String>,
}

/// A method of a grid: trained, or a prompt method for a model behind an endpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SweepMethod {
    /// Name in tables.
    pub name: String,
    /// Partial recipes, applied after those of the environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train: Option<Vec<String>>,
    /// A prompt method of `mage eval`; its cells need an endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
}

/// An ablation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ablation {
    /// Name in tables.
    pub name: String,
    /// Overrides, applied last.
    pub set: Vec<String>,
}

/// Kind of work of a cell.
#[derive(Clone, Debug, PartialEq)]
pub enum CellWork {
    /// A training run.
    Train {
        /// Recipes and methods, left to right.
        recipes: Vec<String>,
        /// Overrides.
        set: Vec<String>,
    },
    /// Evaluation of the policy of a run.
    Policy {
        /// Training cell.
        trained_by: String,
    },
    /// Evaluation of a scripted agent.
    Scripted,
    /// Evaluation of the model behind the endpoint.
    Prompt,
}

impl Sweep {
    /// Loads an embedded preset or a file. An existing file with a name in `.toml` takes precedence.
    pub fn find(name: &str) -> Result<Self> {
        let path = Path::new(name);
        let prefer_preset = !(name.ends_with(".toml") && path.exists());
        if let Some(text) = preset_text(name).filter(|_| prefer_preset) {
            return Self::from_toml(text, name);
        }
        if !path.exists() {
            let hint = match nearest_preset(name) {
                Some(nearest) => format!(": did you mean `{nearest}`?"),
                None => "; `mage sweep list` lists the presets".to_owned(),
            };
            let problem = format!("neither a file nor a preset{hint}");
            return Err(Error::Recipe { location: name.to_owned(), problem });
        }
        let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
        Self::from_toml(&text, name)
    }

    /// Parses TOML; errors refer to it as `location`.
    pub fn from_toml(text: &str, location: &str) -> Result<Self> {
        let sweep: Sweep = from_toml(text)
            .map_err(|e| Error::Recipe { location: format!("{location}:{}", e.line), problem: e.problem })?;
        sweep.check(location)?;
        Ok(sweep)
    }

    /// Checks counts, methods and names; errors refer to the sweep as `location`.
    fn check(&self, location: &str) -> Result<()> {
        let invalid = |problem: String| Error::Recipe { location: location.to_owned(), problem };
        let counts = [
            ("tasks", self.tasks, MAX_TASKS as u64),
            ("episodes", u64::from(self.episodes), u64::from(MAX_EPISODES)),
            ("seeds", self.seeds.len() as u64, MAX_SEEDS as u64),
        ];
        for (key, count, max) in counts {
            if count == 0 {
                return Err(invalid(format!("`{key}` must not be empty or 0")));
            }
            if count > max {
                return Err(invalid(format!("`{key}`: {count} is too large; it must be at most {max}")));
            }
        }
        if let Some(problem) = too_many_episodes(self.tasks, self.seeds.len() as u64, u64::from(self.episodes)) {
            return Err(invalid(problem));
        }
        if let Some(method) = self.method.iter().find(|m| m.train.is_some() == m.prompt.is_some()) {
            return Err(invalid(format!("method {}: set either `train` or `prompt`", method.name)));
        }
        let count = self.cell_count();
        if count > MAX_CELLS {
            return Err(invalid(format!("{count} cells are more than {MAX_CELLS}")));
        }
        let mut ids: Vec<String> = self.cells().into_iter().map(|c| c.id).collect();
        ids.sort();
        if let Some(duplicate) = ids.windows(2).find(|w| w[0] == w[1]) {
            return Err(invalid(format!(
                "duplicate cell {}; environments and methods need unique names",
                duplicate[0]
            )));
        }
        Ok(())
    }

    /// Number of cells.
    fn cell_count(&self) -> usize {
        let of_env = |env: &SweepEnv| {
            let task_sets = env.task_sets.len();
            let trained = self.method.iter().filter(|m| m.train.is_some() && !env.recipe.is_empty()).count();
            let prompted = self.method.iter().filter(|m| m.prompt.is_some()).count();
            let runs = trained.saturating_mul(1 + self.ablation.len()).saturating_mul(self.seeds.len());
            runs.saturating_mul(1 + task_sets).saturating_add((prompted + env.agents.len()).saturating_mul(task_sets))
        };
        self.env.iter().map(of_env).fold(0, usize::saturating_add)
    }

    /// All cells, each after those it depends on.
    pub fn cells(&self) -> Vec<SweepCell> {
        let mut cells = Vec::new();
        for env in &self.env {
            for agent in &env.agents {
                self.scripted_cells(env, agent, &mut cells);
            }
            for method in &self.method {
                match (&method.train, &method.prompt) {
                    (Some(recipes), _) if !env.recipe.is_empty() => {
                        self.training_cells(env, method, recipes, &mut cells);
                    }
                    (_, Some(prompt)) => self.prompt_cells(env, method, prompt, &mut cells),
                    _ => {}
                }
            }
        }
        cells
    }

    fn training_cells(&self, env: &SweepEnv, method: &SweepMethod, recipes: &[String], cells: &mut Vec<SweepCell>) {
        let ablations = std::iter::once(None).chain(self.ablation.iter().map(Some));
        for ablation in ablations {
            for seed in &self.seeds {
                let overrides = ablation.map(|a| a.set.clone()).unwrap_or_default();
                let ablation = ablation.map(|a| a.name.clone());
                let mut set = [self.set.clone(), env.set.clone(), self.overrides.clone(), overrides].concat();
                set.push(format!("seed={seed}"));
                let recipes = [env.recipe.clone(), recipes.to_vec()].concat();
                let mut command = vec!["train".to_owned()];
                command.extend(recipes.iter().cloned());
                command.extend(set.iter().flat_map(|s| ["--set".to_owned(), s.clone()]));
                let info = |command: Vec<String>| CellInfo {
                    env: env.name.clone(),
                    method: method.name.clone(),
                    ablation: ablation.clone(),
                    policy: self.policy.clone(),
                    seed: *seed,
                    command,
                };
                let name = ablation.as_ref().map_or_else(|| method.name.clone(), |a| format!("{}-{a}", method.name));
                let run = format!("{}/{}-{seed}", folder_name(&env.name), folder_name(&name));
                cells.push(SweepCell { id: run.clone(), info: info(command), work: CellWork::Train { recipes, set } });
                for task_set in &env.task_sets {
                    let mut command = self.eval_command(task_set, 1, self.seeds[0]);
                    command.push(format!("{run}/{RUN}"));
                    let id = format!("{run}-on-{}", folder_name(task_set));
                    cells.push(SweepCell {
                        id,
                        info: info(command),
                        work: CellWork::Policy { trained_by: run.clone() },
                    });
                }
            }
        }
    }

    fn scripted_cells(&self, env: &SweepEnv, agent: &str, cells: &mut Vec<SweepCell>) {
        for task_set in &env.task_sets {
            let mut command = self.eval_command(task_set, self.seeds.len(), self.seeds[0]);
            command.push(agent.to_owned());
            let id = format!("{}/{}-on-{}", folder_name(&env.name), folder_name(agent), folder_name(task_set));
            cells.push(SweepCell {
                id,
                info: self.eval_info(env, agent, "scripted", command),
                work: CellWork::Scripted,
            });
        }
    }

    fn prompt_cells(&self, env: &SweepEnv, method: &SweepMethod, prompt: &str, cells: &mut Vec<SweepCell>) {
        for task_set in &env.task_sets {
            let mut command = self.eval_command(task_set, self.seeds.len(), self.seeds[0]);
            command.extend(["--method".to_owned(), prompt.to_owned()]);
            let id = format!("{}/{}-on-{}", folder_name(&env.name), folder_name(&method.name), folder_name(task_set));
            // The endpoint determines the model.
            let info = self.eval_info(env, &method.name, cell::ANY_ENDPOINT, command);
            cells.push(SweepCell { id, info, work: CellWork::Prompt });
        }
    }

    fn eval_info(&self, env: &SweepEnv, method: &str, policy: &str, command: Vec<String>) -> CellInfo {
        CellInfo {
            env: env.name.clone(),
            method: method.to_owned(),
            ablation: None,
            policy: policy.to_owned(),
            seed: self.seeds[0],
            command,
        }
    }

    /// The common part of all evaluations on a task set; the tasks are equal for all policies.
    fn eval_command(&self, task_set: &str, seeds: usize, seed: u64) -> Vec<String> {
        let mut command: Vec<String> = ["eval", "--preset", task_set].map(str::to_owned).to_vec();
        let options = [
            ("--tasks", self.tasks),
            ("--episodes", u64::from(self.episodes)),
            ("--seed", seed),
            ("--seeds", seeds as u64),
        ];
        command.extend(options.into_iter().flat_map(|(option, n)| [option.to_owned(), n.to_string()]));
        if self.early_stop {
            command.push("--early-stop".to_owned());
        }
        command
    }

    /// Estimated cost of a cell, in episodes of a small policy; used for the remaining time.
    pub fn weight(&self, cell: &SweepCell, train_episodes: u64) -> f64 {
        let episodes = (self.tasks * u64::from(self.episodes)) as f64;
        match cell.work {
            CellWork::Train { .. } => 3.0 * train_episodes as f64,
            CellWork::Policy { .. } => episodes,
            CellWork::Scripted => 0.1 * episodes * self.seeds.len() as f64,
            CellWork::Prompt => 20.0 * episodes * self.seeds.len() as f64,
        }
    }
}

/// Replaces the characters of a name that are not portable in folder names.
fn folder_name(text: &str) -> String {
    text.chars().map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Composer;

    #[test]
    fn every_preset_parses_and_its_recipes_are_valid() {
        for name in preset_names() {
            let sweep = Sweep::find(&name).unwrap_or_else(|e| panic!("{name}: {e}"));
            let cells = sweep.cells();
            assert!(!cells.is_empty(), "{name}");
            assert!(sweep.seeds.len() >= 3, "{name}: intervals need several seeds");
            for cell in &cells {
                let CellWork::Train { recipes, set } = &cell.work else { continue };
                let mut composer = Composer::new();
                recipes.iter().for_each(|r| composer.add(r).unwrap_or_else(|e| panic!("{name}: {e}")));
                set.iter().for_each(|s| composer.set(s).unwrap_or_else(|e| panic!("{name}: {e}")));
                let recipe = composer.finish().unwrap_or_else(|e| panic!("{name}, {}: {e}", cell.id));
                assert_eq!(recipe.seed, cell.info.seed);
            }
        }
    }

    const GRID: &str = r#"
        description = "test"
        policy = "tiny policy"
        tasks = 8
        episodes = 3
        seeds = [4, 5]
        set = ["optim.updates=1"]
        [[env]]
        name = "kuhn"
        task_sets = ["kuhn", "kuhn-cfr"]
        recipe = ["kuhn"]
        agents = ["bayes"]
        [[env]]
        name = "webshop"
        task_sets = ["webshop"]
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
    fn a_grid_expands_to_all_valid_combinations() {
        let sweep = Sweep::from_toml(GRID, "test").unwrap();
        let cells = sweep.cells();
        assert_eq!(cells.len(), sweep.cell_count());
        let count = |f: fn(&CellWork) -> bool| cells.iter().filter(|c| f(&c.work)).count();
        assert_eq!(
            count(|w| matches!(w, CellWork::Train { .. })),
            4,
            "two seeds, with and without the ablation; no recipe for webshop"
        );
        assert_eq!(count(|w| matches!(w, CellWork::Policy { .. })), 8, "each on two task sets");
        assert_eq!((count(|w| *w == CellWork::Scripted), count(|w| *w == CellWork::Prompt)), (2, 3));
        let changed = cells.iter().find(|c| c.id == "kuhn/MAGE-mixed-groups-5").unwrap();
        let CellWork::Train { set, .. } = &changed.work else { panic!("it trains") };
        assert_eq!(set, &["optim.updates=1", "rollout.grouping=mixed", "seed=5"]);
    }

    #[test]
    fn invalid_grids_are_refused() {
        let err =
            |from: &str, to: &str| Sweep::from_toml(&GRID.replacen(from, to, 1), "grid.toml").unwrap_err().to_string();
        assert!(err("seeds = [4, 5]", "seeds = []").contains("`seeds` must not be empty"));
        assert!(err("seeds = [4, 5]", "seeds = [4, 4]").contains("duplicate cell"));
        assert!(err("train = [\"mage\"]", "").contains("either `train` or `prompt`"));
        assert_eq!(
            err("tasks = 8", "tasks = 8\ncolour = 1").split("; known").next(),
            Some("grid.toml:5: unknown key `colour`")
        );
        assert_eq!(
            err("tasks = 8", "tasks = \"x\""),
            "grid.toml:4: `tasks` must be a whole number of at least 0, not the text \"x\""
        );
        assert!(err("agents = [\"bayes\"]", "agents = [1]").contains(":12: `env.1.agents.1` must be a text"));
        assert!(Sweep::find("tabel1").unwrap_err().to_string().ends_with("did you mean `table1`?"));
        assert!(Sweep::find("paper/fig33").unwrap_err().to_string().ends_with("did you mean `paper/fig3`?"));
    }

    #[test]
    fn sizes_are_limited_before_anything_is_expanded() {
        let err =
            |from: &str, to: &str| Sweep::from_toml(&GRID.replacen(from, to, 1), "grid.toml").unwrap_err().to_string();
        assert!(err("episodes = 3", "episodes = 1000000000").contains("`episodes`: 1000000000 is too large"));
        assert!(err("tasks = 8", "tasks = 100000000000").contains("`tasks`: 100000000000 is too large"));
        let seeds = |n: usize| format!("seeds = {:?}", (0..n).collect::<Vec<_>>());
        assert!(err("seeds = [4, 5]", &seeds(1001)).contains("`seeds`: 1001 is too large"));
        let product = err("tasks = 8\n        episodes = 3", "tasks = 1000000\n        episodes = 10");
        assert!(product.contains("1000000 tasks x 2 seeds x 10 episodes"), "{product}");
        let agents: Vec<String> = (0..MAX_CELLS).map(|i| format!("a{i}")).collect();
        let cells = err("agents = [\"bayes\"]", &format!("agents = {agents:?}"));
        assert!(cells.contains("cells are more than 100000"), "{cells}");
    }

    #[test]
    fn lines_of_a_dry_run_fit_80_columns() {
        // The longest state is `needs --endpoint (changed)`.
        for name in preset_names() {
            for cell in Sweep::find(&name).unwrap().cells() {
                assert!(cell.id.len() + 2 + 26 <= 80, "{name}: {}", cell.id);
            }
        }
    }
}
