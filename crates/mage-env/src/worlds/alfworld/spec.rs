//! Registration of the ALFWorld environment.

use super::{
    compact::{ACTION_WORDS, REFLECTION_WORDS, factual_reflection, words},
    dataset::{GameDataset, GameSplit, find_data},
    env::AlfworldEnv,
    expert,
    generator::{GeneratedGame, RoomSplit, generate},
    options::{AlfworldOptions, GameSource, docs},
    world::HouseholdWorld,
};
use crate::{
    Conformance, Env, EnvId, EnvInfo, EnvSpec, Error, OptionMap, Population, PromptView, Result, ScriptedAgent,
    ScriptedAgentFactory, ScriptedAgentInfo, ScriptedAgentQuery, Seed, Task, without_replacement::without_replacement,
};
use rand::RngExt;
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

const ID: EnvId = EnvId::new("alfworld");
const OPTIONS_CONTEXT: &str = "options of alfworld";

/// Creates ALFWorld environments. Official games are read once and shared.
#[derive(Clone, Default)]
pub struct AlfworldSpec {
    data: Arc<Mutex<HashMap<PathBuf, Arc<GameDataset>>>>,
}

impl AlfworldSpec {
    fn data(&self, options: &AlfworldOptions) -> Result<Arc<GameDataset>> {
        let root = find_data(options.data.as_deref())?;
        let mut datasets = self.data.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(data) = datasets.get(&root) {
            return Ok(Arc::clone(data));
        }
        let data = Arc::new(GameDataset::open(&root)?);
        datasets.insert(root, Arc::clone(&data));
        Ok(data)
    }

    /// The official games to sample from: their split and their indices in it.
    fn candidate_games(&self, options: &AlfworldOptions) -> Result<(Arc<GameSplit>, Vec<usize>)> {
        let split = self.data(options)?.split(options.split())?;
        let candidates = split.select(&options.tasks, options.skip_bad)?;
        if candidates.is_empty() {
            let problem = format!("no game of split `{}` has one of the task types in `tasks`", options.split());
            return Err(Error::invalid(OPTIONS_CONTEXT, problem));
        }
        Ok((split, candidates))
    }

    /// The game of a task.
    pub fn world(&self, task: &Task) -> Result<Arc<HouseholdWorld>> {
        let options: AlfworldOptions = task.options.read(OPTIONS_CONTEXT)?;
        options.check()?;
        if let Some(opponent) = &task.opponent {
            let problem = format!("opponent `{}`: ALFWorld is a single-player environment", opponent.name);
            return Err(Error::invalid("task of alfworld", problem));
        }
        match (options.source, &options.game) {
            (GameSource::Generated, _) => {
                Ok(Arc::new(HouseholdWorld::new(&generated_game(&options, task.seed).household)))
            }
            (GameSource::Official, Some(name)) => self.data(&options)?.split(options.split())?.get(name)?.world(),
            (GameSource::Official, None) => {
                let (split, candidates) = self.candidate_games(&options)?;
                let i = task.seed.child("game").rng().random_range(0..candidates.len());
                split.games()[candidates[i]].world()
            }
        }
    }
}

fn generated_game(options: &AlfworldOptions, seed: Seed) -> GeneratedGame {
    generate(options.rooms, &options.tasks, seed.child("household"))
}

impl EnvSpec for AlfworldSpec {
    fn id(&self) -> EnvId {
        ID
    }

    fn info(&self) -> EnvInfo {
        EnvInfo {
            title: "ALFWorld".to_owned(),
            summary: "household tasks in a text world".to_owned(),
            unit: "tasks done per episode".to_owned(),
            seats: 1,
            max_turns: 10,
            options: docs(),
            opponents: Vec::new(),
            compact_words: words(),
            max_compact_action_words: ACTION_WORDS,
            compact_reflection_words: REFLECTION_WORDS,
        }
    }

    fn build(&self, task: &Task) -> Result<Box<dyn Env>> {
        Ok(Box::new(AlfworldEnv::new(self.world(task)?)))
    }

    fn check(&self, population: &Population) -> Result<()> {
        if let Some(opponent) = population.opponents.first() {
            let problem = format!("opponent `{}`: ALFWorld is a single-player environment", opponent.spec.name);
            return Err(Error::invalid("population of alfworld", problem));
        }
        population.splits().try_for_each(|s| population.options_in(s).read::<AlfworldOptions>(OPTIONS_CONTEXT)?.check())
    }

    /// Generated households; out of domain, on held-out floor plans.
    fn default_population(&self) -> Population {
        let mut population = Population::without_opponents(ID);
        population.overrides = [("out-of-domain".to_owned(), OptionMap::default().with("rooms", "unseen"))].into();
        population
    }

    /// `official`: the official games in their splits. `held-out-tasks`: generated games with two task types that occur only
    /// out of domain, as in LaMer.
    fn populations(&self) -> Vec<(&'static str, Population)> {
        let split = |name: &str, split: &str| (name.to_owned(), OptionMap::default().with("split", split));
        let mut official = Population::without_opponents(ID);
        official.options = OptionMap::default().with("source", "official");
        official.overrides = [
            split("train", "train"),
            split("in-domain", "valid_seen"),
            split("out-of-domain", "valid_unseen"),
            split("valid-train", "valid_train"),
        ]
        .into();
        let mut held_out = Population::without_opponents(ID);
        held_out.options = OptionMap::default().with("tasks", vec!["place", "look", "clean", "heat"]);
        held_out.overrides =
            [("out-of-domain".to_owned(), OptionMap::default().with("tasks", vec!["cool", "two"]))].into();
        vec![("official", official), ("held-out-tasks", held_out)]
    }

    fn scripted_agents(&self) -> Vec<ScriptedAgentInfo> {
        vec![ScriptedAgentInfo::with_full_info("expert", "knows the full state and follows a shortest plan")]
    }

    fn scripted_agent(&self, query: &ScriptedAgentQuery<'_>) -> Result<Arc<dyn ScriptedAgentFactory>> {
        match query.name {
            "expert" => Ok(Arc::new(ExpertFactory(self.clone()))),
            other => Err(Error::unknown("policy", other, ["expert", "random"])),
        }
    }

    fn assign_without_replacement(&self, tasks: &mut [Task], first: u64, seed: Seed) -> Result<()> {
        let Some(task) = tasks.first() else { return Ok(()) };
        let options: AlfworldOptions = task.options.read(OPTIONS_CONTEXT)?;
        if options.source == GameSource::Generated || options.game.is_some() {
            return Ok(());
        }
        let (split, candidates) = self.candidate_games(&options)?;
        for (task, i) in tasks.iter_mut().zip(without_replacement(candidates.len(), first, seed.child("games"))) {
            task.options.0.insert("game".to_owned(), split.games()[candidates[i]].name().into());
        }
        Ok(())
    }

    fn warnings(&self, population: &Population, split: &str) -> Result<Vec<String>> {
        let options: AlfworldOptions = population.options_in(split).read(OPTIONS_CONTEXT)?;
        if !options.skip_bad {
            return Ok(Vec::new());
        }
        let split = self.data(&options)?.split(options.split())?;
        Ok(split.unreadable().values().map(|problem| format!("skipped: {problem}")).collect())
    }

    fn export(&self, tasks: &[Task], out: &Path, data: Option<&Path>) -> Result<Vec<PathBuf>> {
        let rules = GameDataset::open(&find_data(data)?)?.rules()?;
        let write = |task: &Task| {
            let options: AlfworldOptions = task.options.read(OPTIONS_CONTEXT)?;
            if options.source != GameSource::Generated {
                return Err(Error::invalid(
                    OPTIONS_CONTEXT,
                    "only generated games can be exported; official games already exist as files",
                ));
            }
            let game = generated_game(&options, task.seed);
            let path = out.join(game.path(options.rooms, task.seed));
            let failed = |source| Error::Write { path: path.clone(), source };
            std::fs::create_dir_all(path.parent().expect("the path has parent directories")).map_err(failed)?;
            std::fs::write(&path, rules.game_file(&game)).map_err(failed)?;
            Ok(path)
        };
        tasks.iter().map(write).collect()
    }

    fn conform(&self, golden: &Path, data: Option<&Path>) -> Result<Conformance> {
        super::conformance::conform(golden, data)
    }
}

impl GeneratedGame {
    /// Path of its file below a data directory, in the layout of the official games.
    pub fn path(&self, rooms: RoomSplit, seed: Seed) -> PathBuf {
        let goal = &self.household.goal;
        let split = if rooms == RoomSplit::Seen { "train" } else { "valid_unseen" };
        let [object, target] = [&goal.object, &goal.target].map(|k| super::goal::without_type_suffix(k));
        let folder = format!("{}-{object}-None-{target}-{}", goal.kind.folder(), self.floor_plan);
        ["json_2.1.1", split, &folder, &format!("trial_G{:016x}", seed.value()), "game.tw-pddl"].iter().collect()
    }
}

struct ExpertFactory(AlfworldSpec);

impl ScriptedAgentFactory for ExpertFactory {
    fn make(&self, task: &Task, _seed: Seed) -> Box<dyn ScriptedAgent> {
        // An unreadable game is reported when the environment is built; this method cannot fail.
        Box::new(Expert { world: self.0.world(task).ok() })
    }
}

/// Solves the game from the current state of the episode.
struct Expert {
    world: Option<Arc<HouseholdWorld>>,
}

impl ScriptedAgent for Expert {
    fn act(&mut self, seen: &PromptView<'_>) -> String {
        let Some(world) = &self.world else { return "look".to_owned() };
        let mut state = world.start().clone();
        seen.history.iter().for_each(|command| drop(world.step(&mut state, command)));
        let next = expert::solve(world, &state).and_then(|plan| plan.first().copied());
        next.map_or_else(|| "look".to_owned(), |command| world.format_command(command))
    }

    fn reflect(&mut self, finished: &str) -> String {
        factual_reflection(finished)
    }
}
