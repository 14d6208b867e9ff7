//! ALFWorld for the registry.

use super::{
    compact::{ACTION_WORDS, REFLECTION_WORDS, facts, words},
    dataset::{Data, Split, dealt, find_data},
    env::AlfworldEnv,
    expert,
    generator::{Made, Rooms, generate},
    options::{AlfworldOptions, Games, docs},
    world::World,
};
use crate::{
    Conformance, Env, EnvId, EnvInfo, EnvSpec, Error, OptionMap, Population, PromptView, Result, ScriptedAgent,
    ScriptedAgentFactory, ScriptedAgentInfo, ScriptedAgentQuery, Seed, Task,
};
use rand::RngExt;
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

const ID: EnvId = EnvId::new("alfworld");
const PLACE: &str = "options of alfworld";

/// Makes households to act in. Official games are read once and shared.
#[derive(Clone, Default)]
pub struct AlfworldSpec {
    data: Arc<Mutex<HashMap<PathBuf, Arc<Data>>>>,
}

impl AlfworldSpec {
    fn data(&self, options: &AlfworldOptions) -> Result<Arc<Data>> {
        let root = find_data(options.data.as_deref())?;
        let mut known = self.data.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(data) = known.get(&root) {
            return Ok(Arc::clone(data));
        }
        let data = Arc::new(Data::open(&root)?);
        known.insert(root, Arc::clone(&data));
        Ok(data)
    }

    /// The official games that may be drawn: their split, and their places in it.
    fn stock(&self, options: &AlfworldOptions) -> Result<(Arc<Split>, Vec<usize>)> {
        let split = self.data(options)?.split(options.split())?;
        let chosen = split.choose(&options.tasks, options.skip_bad)?;
        if chosen.is_empty() {
            let problem = format!("no game of split `{}` has one of these tasks", options.split());
            return Err(Error::invalid(PLACE, problem));
        }
        Ok((split, chosen))
    }

    /// The game of a task.
    pub fn world(&self, task: &Task) -> Result<Arc<World>> {
        let options: AlfworldOptions = task.options.read(PLACE)?;
        options.check()?;
        if let Some(opponent) = &task.opponent {
            let problem = format!("opponent `{}`: nobody sits opposite", opponent.name);
            return Err(Error::invalid("task of alfworld", problem));
        }
        match (options.games, &options.game) {
            (Games::Generated, _) => Ok(Arc::new(World::new(&made(&options, task.seed).household))),
            (Games::Official, Some(name)) => self.data(&options)?.split(options.split())?.named(name)?.world(),
            (Games::Official, None) => {
                let (split, chosen) = self.stock(&options)?;
                let i = task.seed.child("game").rng().random_range(0..chosen.len());
                split.games()[chosen[i]].world()
            }
        }
    }
}

fn made(options: &AlfworldOptions, seed: Seed) -> Made {
    generate(options.rooms, &options.tasks, seed.child("household"))
}

impl EnvSpec for AlfworldSpec {
    fn id(&self) -> EnvId {
        ID
    }

    fn info(&self) -> EnvInfo {
        EnvInfo {
            title: "ALFWorld".to_owned(),
            summary: "household tasks in a home one can only read about".to_owned(),
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
            let problem = format!("opponent `{}`: nobody sits opposite in alfworld", opponent.spec.name);
            return Err(Error::invalid("population of alfworld", problem));
        }
        population.splits().try_for_each(|s| population.options_in(s).read::<AlfworldOptions>(PLACE)?.check())
    }

    /// Generated households; out of domain, in rooms never trained in.
    fn default_population(&self) -> Population {
        let mut population = Population::without_opponents(ID);
        population.overrides = [("out-of-domain".to_owned(), OptionMap::default().with("rooms", "unseen"))].into();
        population
    }

    /// `official`: the official games in their own splits. `held-out-tasks`: generated, with two sorts of task met only out
    /// of domain, as in LaMer.
    fn populations(&self) -> Vec<(&'static str, Population)> {
        let split = |name: &str, split: &str| (name.to_owned(), OptionMap::default().with("split", split));
        let mut official = Population::without_opponents(ID);
        official.options = OptionMap::default().with("games", "official");
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
        vec![ScriptedAgentInfo::with_full_info("expert", "knows where everything is and takes the shortest way")]
    }

    fn scripted_agent(&self, query: &ScriptedAgentQuery<'_>) -> Result<Arc<dyn ScriptedAgentFactory>> {
        match query.name {
            "expert" => Ok(Arc::new(ExpertMaker(self.clone()))),
            other => Err(Error::unknown("policy", other, ["expert", "random"])),
        }
    }

    fn assign_without_replacement(&self, tasks: &mut [Task], first: u64, seed: Seed) -> Result<()> {
        let Some(task) = tasks.first() else { return Ok(()) };
        let options: AlfworldOptions = task.options.read(PLACE)?;
        if options.games == Games::Generated || options.game.is_some() {
            return Ok(());
        }
        let (split, chosen) = self.stock(&options)?;
        for (task, i) in tasks.iter_mut().zip(dealt(chosen.len(), first, seed.child("games"))) {
            task.options.0.insert("game".to_owned(), split.games()[chosen[i]].name().into());
        }
        Ok(())
    }

    fn warnings(&self, population: &Population, split: &str) -> Result<Vec<String>> {
        let options: AlfworldOptions = population.options_in(split).read(PLACE)?;
        if !options.skip_bad {
            return Ok(Vec::new());
        }
        let split = self.data(&options)?.split(options.split())?;
        Ok(split.bad().values().map(|problem| format!("left out: {problem}")).collect())
    }

    fn export(&self, tasks: &[Task], out: &Path, data: Option<&Path>) -> Result<Vec<PathBuf>> {
        let rules = Data::open(&find_data(data)?)?.rules()?;
        let write = |task: &Task| {
            let options: AlfworldOptions = task.options.read(PLACE)?;
            if options.games != Games::Generated {
                return Err(Error::invalid(
                    PLACE,
                    "official games exist as files already; only generated ones are written",
                ));
            }
            let made = made(&options, task.seed);
            let path = out.join(made.path(options.rooms, task.seed));
            let failed = |source| Error::Write { path: path.clone(), source };
            std::fs::create_dir_all(path.parent().expect("in folders of its own")).map_err(failed)?;
            std::fs::write(&path, rules.game_file(&made)).map_err(failed)?;
            Ok(path)
        };
        tasks.iter().map(write).collect()
    }

    fn conform(&self, golden: &Path, data: Option<&Path>) -> Result<Conformance> {
        super::conformance::conform(golden, data)
    }
}

impl Made {
    /// Where its file belongs below a data folder: as the official ones, so that the folder can be used like theirs.
    pub fn path(&self, rooms: Rooms, seed: Seed) -> PathBuf {
        let goal = &self.household.goal;
        let split = if rooms == Rooms::Seen { "train" } else { "valid_unseen" };
        let [thing, target] = [&goal.thing, &goal.target].map(|k| super::goal::bare(k));
        let folder = format!("{}-{thing}-None-{target}-{}", goal.kind.folder(), self.plan);
        ["json_2.1.1", split, &folder, &format!("trial_G{:016x}", seed.value()), "game.tw-pddl"].iter().collect()
    }
}

struct ExpertMaker(AlfworldSpec);

impl ScriptedAgentFactory for ExpertMaker {
    fn make(&self, task: &Task, _seed: Seed) -> Box<dyn ScriptedAgent> {
        // A task whose game cannot be had fails when its environment is built; here there is nobody to tell.
        Box::new(Expert { world: self.0.world(task).ok() })
    }
}

/// Follows the solution from wherever the episode has got to.
struct Expert {
    world: Option<Arc<World>>,
}

impl ScriptedAgent for Expert {
    fn act(&mut self, seen: &PromptView<'_>) -> String {
        let Some(world) = &self.world else { return "look".to_owned() };
        let mut state = world.start().clone();
        seen.history.iter().for_each(|command| drop(world.step(&mut state, command)));
        let next = expert::solve(world, &state).and_then(|way| way.first().copied());
        next.map_or_else(|| "look".to_owned(), |command| world.write(command))
    }

    fn reflect(&mut self, finished: &str) -> String {
        facts(finished)
    }
}
