//! Registration of the Sokoban environment.

use super::{
    action::STILL,
    ceilings::ceilings,
    env::SokobanEnv,
    generator::Generator,
    level_files::LevelCache,
    options::{SokobanOptions, TRAIN_SEEDS, VALIDATION_SEEDS, docs},
    planner::{MAX_COUNTED_BOXES, Optimal, REFLECTION_WORDS, ROOM_STATUS},
    render::{ROW_SEPARATOR, TILE_WORDS},
};
use crate::{
    Conformance, Env, EnvId, EnvInfo, EnvSpec, Error, OptionMap, Population, Result, ScriptedAgentFactory,
    ScriptedAgentInfo, ScriptedAgentQuery, Seed, SolvedSplit, Task, WorldSolver, sokoban::Move,
    without_replacement::without_replacement,
};
use rand::{RngExt, seq::IndexedRandom};
use std::{path::Path, sync::Arc};

const ID: EnvId = EnvId::new("sokoban");
const OPTIONS_CONTEXT: &str = "options of sokoban";

/// Creates Sokoban environments.
#[derive(Default)]
pub struct SokobanSpec {
    level_cache: LevelCache,
}

impl SokobanSpec {
    fn level(&self, task: &Task, options: &SokobanOptions) -> Result<super::SokobanLevel> {
        let Some(path) = &options.levels else {
            let boxes = options.boxes.choices().choose(&mut task.seed.child("boxes").rng());
            let [first, end] = options.seeds;
            let seed = task.seed.child("room").rng().random_range(first..end) as u32;
            return Ok(Generator::new(options.room(*boxes.expect("checked")))?.room(seed)?.level);
        };
        let levels = self.level_cache.get(path)?;
        let index = match options.level {
            Some(i) if i < levels.len() => i,
            Some(i) => {
                let problem = format!("no level {i}; valid indices are 0 to {}", levels.len() - 1);
                return Err(Error::invalid(path.display().to_string(), problem));
            }
            None => task.seed.child("level").rng().random_range(0..levels.len()),
        };
        Ok(levels[index].clone())
    }
}

impl SokobanSpec {
    /// The environment of a task.
    pub(super) fn env(&self, task: &Task, options: &SokobanOptions) -> Result<SokobanEnv> {
        SokobanEnv::new(&self.level(task, options)?, options.env_config())
    }
}

impl EnvSpec for SokobanSpec {
    fn id(&self) -> EnvId {
        ID
    }

    fn info(&self) -> EnvInfo {
        let moves = Move::ALL.map(Move::word);
        let counts = (0..=MAX_COUNTED_BOXES).map(|n| n.to_string());
        let words = TILE_WORDS
            .into_iter()
            .chain([ROW_SEPARATOR])
            .chain(moves)
            .chain([STILL])
            .chain(ROOM_STATUS)
            .map(str::to_owned);
        EnvInfo {
            title: "Sokoban".to_owned(),
            summary: "push every box onto a target; boxes cannot be pulled".to_owned(),
            unit: "points per room".to_owned(),
            seats: 1,
            max_turns: SokobanOptions::default().max_turns(),
            options: docs(),
            opponents: Vec::new(),
            compact_words: words.chain(counts).collect(),
            max_compact_action_words: SokobanOptions::default().moves_per_action,
            compact_reflection_words: REFLECTION_WORDS,
        }
    }

    fn build(&self, task: &Task) -> Result<Box<dyn Env>> {
        let options: SokobanOptions = task.options.read(OPTIONS_CONTEXT)?;
        options.check()?;
        if let Some(opponent) = &task.opponent {
            return Err(Error::invalid(
                "task of sokoban",
                format!("opponent `{}`: Sokoban is a single-player environment", opponent.name),
            ));
        }
        Ok(Box::new(self.env(task, &options)?))
    }

    fn check(&self, population: &Population) -> Result<()> {
        if let Some(opponent) = population.opponents.first() {
            let problem = format!("opponent `{}`: Sokoban is a single-player environment", opponent.spec.name);
            return Err(Error::invalid("population of sokoban", problem));
        }
        for split in population.splits() {
            let options: SokobanOptions = population.options_in(split).read(OPTIONS_CONTEXT)?;
            options.check()?;
            if options.levels.is_none() {
                options.boxes.choices().iter().try_for_each(|b| Generator::new(options.room(*b)).map(drop))?;
            }
        }
        Ok(())
    }

    /// The paper's rooms: two boxes for training and validation, one and three boxes out of domain. The reference's seed
    /// ranges separate training from validation. Further splits play Boxoban's levels, if available, with a budget that
    /// covers the shortest solutions of nearly all of them.
    fn default_population(&self) -> Population {
        let boxoban = |folder: &str, moves: u32| {
            OptionMap::default().with("levels", format!("boxoban/{folder}")).with("budget", moves)
        };
        let validation = || OptionMap::default().with("seeds", VALIDATION_SEEDS.to_vec());
        let mut population = Population::without_opponents(ID);
        population.options = OptionMap::default().with("boxes", 2).with("seeds", TRAIN_SEEDS.to_vec());
        population.overrides = [
            ("in-domain", validation()),
            ("out-of-domain", validation().with("boxes", vec![1, 3])),
            ("boxoban", boxoban("unfiltered/test", 90)),
            ("boxoban-medium", boxoban("medium/valid", 150)),
            ("boxoban-hard", boxoban("hard", 150)),
        ]
        .map(|(split, options)| (split.to_owned(), options))
        .into();
        population
    }

    fn scripted_agents(&self) -> Vec<ScriptedAgentInfo> {
        vec![ScriptedAgentInfo::new(
            "optimal",
            "follows a solution with the fewest moves, planned from the observation",
        )]
    }

    fn scripted_agent(&self, query: &ScriptedAgentQuery<'_>) -> Result<Arc<dyn ScriptedAgentFactory>> {
        match query.name {
            "optimal" => Ok(Arc::new(Optimal)),
            other => Err(Error::unknown("policy", other, ["optimal", "random"])),
        }
    }

    /// Assigns levels of a file or folder; generated rooms are not a finite stock.
    fn assign_without_replacement(&self, tasks: &mut [Task], first: u64, seed: Seed) -> Result<()> {
        let Some(task) = tasks.first() else { return Ok(()) };
        let options: SokobanOptions = task.options.read(OPTIONS_CONTEXT)?;
        let (Some(path), None) = (&options.levels, options.level) else { return Ok(()) };
        let count = self.level_cache.get(path)?.len();
        for (task, level) in tasks.iter_mut().zip(without_replacement(count, first, seed.child("levels"))) {
            task.options.0.insert("level".to_owned(), level.into());
        }
        Ok(())
    }

    fn max_turns(&self, population: &Population, split: &str) -> Result<u32> {
        let options: SokobanOptions = population.options_in(split).read(OPTIONS_CONTEXT)?;
        options.check()?;
        Ok(options.max_turns())
    }

    fn solver(&self) -> Option<&dyn WorldSolver> {
        Some(self)
    }

    fn conform(&self, golden: &Path, _data: Option<&Path>) -> Result<Conformance> {
        super::conformance::conform(golden)
    }
}

impl WorldSolver for SokobanSpec {
    fn solve(&self, population: &Population, split: &str, each: &mut dyn FnMut(usize, usize)) -> Result<SolvedSplit> {
        let options: SokobanOptions = population.options_in(split).read(OPTIONS_CONTEXT)?;
        options.check()?;
        let level_count =
            options.levels.as_deref().map(|path| self.level_cache.get(path)).transpose()?.map(|l| l.len());
        ceilings(self, population, split, &options, level_count, each)
    }
}
