//! The environment spec of Tic-Tac-Toe.

use super::{ceilings::MoveTableCache, opponents::opponent_kinds, rules::TicTacToe, scripted_agents, text};
use crate::{
    Deal, Env, EnvId, EnvInfo, EnvSpec, Error, GameEnv, HumanPlayer, OpponentKinds, OptionDoc, Population, Result,
    ScriptedAgentFactory, ScriptedAgentInfo, ScriptedAgentQuery, Task, human_player, solvers::OracleReport,
};
use serde::Deserialize;
use std::sync::Arc;

/// Builds Tic-Tac-Toe environments. Public so that other crates can add opponents:
///
/// ```
/// use mage_env::{Registry, tictactoe::{PreferenceList, TicTacToeSpec}};
/// let mut tictactoe = TicTacToeSpec::default();
/// let left_to_right = PreferenceList::from_pairs(&[(1, 1), (2, 1), (3, 1)], "left to right")?;
/// tictactoe.opponents.add_plain("left_to_right", "the first column, then any cell", left_to_right);
/// let mut registry = Registry::builtin();
/// registry.register(tictactoe);
/// # Ok::<(), mage_env::Error>(())
/// ```
pub struct TicTacToeSpec {
    /// The known opponent kinds.
    pub opponents: OpponentKinds<TicTacToe>,
    /// Move tables of opponents without action probabilities.
    pub(super) tables: MoveTableCache,
}

impl Default for TicTacToeSpec {
    fn default() -> Self {
        TicTacToeSpec { opponents: opponent_kinds(), tables: MoveTableCache::default() }
    }
}

/// Options of Tic-Tac-Toe.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TicTacToeOptions {
    /// Whether an opponent that moves first draws a new first move in each episode. With `Fixed` its first move is the
    /// same throughout a meta-episode, as in the paper; it is then part of the task and can be remembered.
    pub opening: Deal,
}

const ID: EnvId = EnvId::new("tictactoe");
const OPTIONS_CONTEXT: &str = "options of tictactoe";

/// The populations that come with the game; the first is the default.
const POPULATIONS: [(&str, &str); 5] = [
    ("blind-line", include_str!("../../../populations/tictactoe/blind-line.toml")),
    ("paper", include_str!("../../../populations/tictactoe/paper.toml")),
    ("paper-first", include_str!("../../../populations/tictactoe/paper-first.toml")),
    ("skewed", include_str!("../../../populations/tictactoe/skewed.toml")),
    ("mcts-100", include_str!("../../../populations/tictactoe/mcts-100.toml")),
];

impl EnvSpec for TicTacToeSpec {
    fn id(&self) -> EnvId {
        ID
    }

    fn info(&self) -> EnvInfo {
        EnvInfo {
            title: "Tic-Tac-Toe".to_owned(),
            summary: "three in a row, against an opponent with a hidden habit".to_owned(),
            unit: "wins per game".to_owned(),
            seats: 2,
            max_turns: 8,
            options: vec![OptionDoc::new(
                "opening",
                "fresh (default) | fixed",
                "when the opponent moves first: a new first move each episode, or the same first move throughout a \
                 meta-episode as in the paper",
            )],
            opponents: self.opponents.docs(),
            compact_words: text::compact_words(),
            max_compact_action_words: 1,
            compact_reflection_words: text::REFLECTION_WORDS,
        }
    }

    fn build(&self, task: &Task) -> Result<Box<dyn Env>> {
        let options: TicTacToeOptions = task.options.read(OPTIONS_CONTEXT)?;
        let spec =
            task.opponent.as_ref().ok_or_else(|| Error::invalid("task of tictactoe", "an opponent is needed"))?;
        if task.seat > 1 {
            return Err(Error::invalid(
                "task of tictactoe",
                format!("seat {} does not exist; seats are 0 (moves first) and 1", task.seat),
            ));
        }
        let opponent = self.opponents.build(spec)?;
        let game = Arc::new(TicTacToe);
        Ok(Box::new(GameEnv::new(game, opponent, task.seat, Deal::Fresh, task.seed).with_opening(options.opening)))
    }

    fn build_with_human(&self, task: &Task, human: Arc<dyn HumanPlayer>) -> Result<Option<Box<dyn Env>>> {
        Ok(Some(Box::new(human_player::game_env(Arc::new(TicTacToe), human, task.seat.min(1), Deal::Fresh, task.seed))))
    }

    fn check(&self, population: &Population) -> Result<()> {
        population
            .splits()
            .try_for_each(|s| population.options_in(s).read::<TicTacToeOptions>(OPTIONS_CONTEXT).map(drop))?;
        population.seat_shares(2)?;
        population.opponents.iter().try_for_each(|m| self.opponents.build(&m.spec).map(drop))
    }

    /// Opponents blind to one line, with the agent first: the pool that rewards identifying the opponent.
    fn default_population(&self) -> Population {
        let (_, first) = self.populations().swap_remove(0);
        first
    }

    fn populations(&self) -> Vec<(&'static str, Population)> {
        let read = |(name, text)| (name, Population::from_toml(text, name).expect("embedded populations are valid"));
        POPULATIONS.map(read).to_vec()
    }

    /// Exact for opponents with action probabilities; MCTS opponents are sampled, which takes seconds.
    fn oracles(&self, population: &Population, split: &str, episodes: u32) -> Result<Option<OracleReport>> {
        self.ceilings(population, split, episodes)
    }

    fn scripted_agents(&self) -> Vec<ScriptedAgentInfo> {
        scripted_agents::infos()
    }

    fn scripted_agent(&self, query: &ScriptedAgentQuery<'_>) -> Result<Arc<dyn ScriptedAgentFactory>> {
        scripted_agents::factory(self, query)
    }
}
