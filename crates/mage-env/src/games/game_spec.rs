//! The environment spec of a game.
//!
//! [`GameSpec`] derives everything from the rules and the opponents: tasks, interactive play, ceilings and scripted
//! agents, and, unless they are given, the compact vocabulary, the turn limit and a population.

use super::game_agents;
use crate::{
    ActionId, CurrentPlayer, Deal, Env, EnvId, EnvInfo, EnvSpec, Error, GameEnv, HumanPlayer, Opponent, OpponentKinds,
    OptionDoc, Population, PopulationMember, Result, ScriptedAgentFactory, ScriptedAgentInfo, ScriptedAgentQuery, Seed,
    Task, TextGame, human_player,
    solvers::{BayesAdaptiveSolver, Candidate, CeilingQuery, HistoryTree, OracleReport, ceilings},
};
use serde::Deserialize;
use std::{borrow::Cow, collections::BTreeSet, hash::Hash, sync::Arc};

/// Largest number of histories from which the compact vocabulary is derived.
const MAX_DERIVED_HISTORIES: usize = 200_000;

/// A game as an environment.
///
/// ```
/// use mage_env::{
///     ActionId, ActionList, CurrentPlayer, EnvSpec, Game, GameSpec, MAX_PLAYERS, Rng, TextGame, action_probs,
/// };
///
/// /// Seat 1 hides a coin; seat 0 wins a point if it guesses the side.
/// struct Coin;
///
/// impl Game for Coin {
///     type State = Vec<ActionId>;
///
///     fn players(&self) -> u8 {
///         2
///     }
///
///     fn initial(&self, _rng: &mut Rng) -> Vec<ActionId> {
///         Vec::new()
///     }
///
///     fn current_player(&self, s: &Vec<ActionId>) -> CurrentPlayer {
///         [CurrentPlayer::Player(1), CurrentPlayer::Player(0), CurrentPlayer::Terminal][s.len()]
///     }
///
///     fn legal(&self, s: &Vec<ActionId>) -> ActionList {
///         (0..2).filter(|_| s.len() < 2).map(ActionId).collect()
///     }
///
///     fn apply(&self, s: &mut Vec<ActionId>, a: ActionId) {
///         s.push(a);
///     }
///
///     fn returns(&self, s: &Vec<ActionId>) -> [f32; MAX_PLAYERS] {
///         let point = if s.len() < 2 { 0.0 } else if s[0] == s[1] { 1.0 } else { -1.0 };
///         [point, -point, 0.0, 0.0]
///     }
///
///     fn observe(&self, s: &Vec<ActionId>, player: u8) -> String {
///         match s[..] {
///             [hidden, guess] => format!("{} {}", self.action_name(hidden), self.action_name(guess)),
///             [hidden] if player == 1 => self.action_name(hidden),
///             _ => "_".to_owned(),
///         }
///     }
/// }
///
/// impl TextGame for Coin {
///     fn action_name(&self, a: ActionId) -> String {
///         ["heads", "tails"][usize::from(a.0)].to_owned()
///     }
/// }
///
/// let coin = GameSpec::new("coin", Coin)
///     .seats(&[1.0, 0.0])
///     .opponent("header", "mostly heads", |_: &Coin, _: &_, _| action_probs([0.9, 0.1]))
///     .opponent("tailor", "mostly tails", |_: &Coin, _: &_, _| action_probs([0.1, 0.9]));
/// let ceilings = coin.oracles(&coin.default_population(), "train", 3)?.expect("opponents state their probabilities");
/// assert!((ceilings.mean.memoryless[2] - 0.0).abs() < 1e-9);
/// assert!(ceilings.mean.last.by_episode[2] > 0.6);
/// assert_eq!(coin.info().compact_words, ["heads", "tails"]);
/// # Ok::<(), mage_env::Error>(())
/// ```
pub struct GameSpec<G: TextGame> {
    /// The known opponent kinds.
    pub opponents: OpponentKinds<G>,
    game: Arc<G>,
    id: EnvId,
    info: EnvInfo,
    rules: Cow<'static, str>,
    populations: Vec<(&'static str, Population)>,
}

/// Options of every game.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct GameOptions {
    /// Whether the chance opening changes between episodes.
    deal: Deal,
}

impl<G: TextGame + 'static> GameSpec<G> {
    /// A game named `id`. Opponents are added with [`opponent`](GameSpec::opponent).
    pub fn new(id: &'static str, game: G) -> Self {
        let derived = Derived::of(&game);
        let has_opening = game.current_player(&game.initial(&mut Seed::new(0).rng())) == CurrentPlayer::Chance;
        let deal = OptionDoc::new(
            "deal",
            "fresh (default) | fixed",
            "a new deal each episode, or the same deal throughout a meta-episode as in the paper",
        );
        let info = EnvInfo {
            title: id.to_owned(),
            summary: "against a hidden opponent".to_owned(),
            unit: "points per game".to_owned(),
            seats: game.players(),
            max_turns: derived.max_turns,
            options: if has_opening { vec![deal] } else { Vec::new() },
            opponents: Vec::new(),
            compact_words: derived.words,
            max_compact_action_words: derived.action_words,
            compact_reflection_words: derived.reflection_words,
        };
        let population = Population::without_opponents(EnvId::new(id));
        GameSpec {
            opponents: OpponentKinds::default(),
            game: Arc::new(game),
            id: EnvId::new(id),
            info,
            rules: Cow::Borrowed(""),
            populations: vec![("default", population)],
        }
    }

    /// Sets title, one-line summary and unit of scores.
    #[must_use]
    pub fn describe(mut self, title: &str, summary: &str, unit: &str) -> Self {
        (self.info.title, self.info.summary) = (title.to_owned(), summary.to_owned());
        self.info.unit = unit.to_owned();
        self
    }

    /// Sets the rules, in sentences, for prompts and people.
    #[must_use]
    pub fn rules(self, rules: impl Into<Cow<'static, str>>) -> Self {
        GameSpec { rules: rules.into(), ..self }
    }

    /// Sets the relative frequencies of the agent's seats in the default population; uniform otherwise.
    #[must_use]
    pub fn seats(mut self, shares: &[f64]) -> Self {
        self.populations[0].1.seats = shares.to_vec();
        self
    }

    /// Adds an opponent: a kind without parameters, and a member of the default population.
    #[must_use]
    pub fn opponent(mut self, kind: &str, description: &str, strategy: impl Opponent<G> + 'static) -> Self {
        self.opponents.add_plain(kind, description, strategy);
        self.populations[0].1.opponents.push(PopulationMember::in_domain(kind, 1.0));
        self
    }

    /// Replaces the built-in populations; the first is the default.
    #[must_use]
    pub fn populations(self, populations: Vec<(&'static str, Population)>) -> Self {
        GameSpec { populations, ..self }
    }

    /// Replaces the derived compact vocabulary, whose order determines the token ids of models.
    #[must_use]
    pub fn compact_words(mut self, words: Vec<String>) -> Self {
        self.info.compact_words = words;
        self
    }

    fn options(&self, options: &crate::OptionMap) -> Result<GameOptions> {
        options.read(&format!("options of {}", self.id))
    }
}

impl<G: TextGame + 'static> GameSpec<G>
where
    G::State: Eq + Hash,
{
    /// The Bayes-adaptive optimum from one seat against a split of a population.
    pub fn bayes(&self, population: &Population, split: &str, seat: u8, episodes: u32) -> Result<BayesAdaptiveSolver> {
        let options = self.options(&population.options_in(split))?;
        let candidates = Candidate::of_split(population, split, &self.opponents)?;
        BayesAdaptiveSolver::new(&*self.game, seat, options.deal, &candidates, episodes)
    }

    /// The rules of the game.
    pub fn game(&self) -> &G {
        &self.game
    }
}

impl<G: TextGame + 'static> EnvSpec for GameSpec<G>
where
    G::State: Eq + Hash,
{
    fn id(&self) -> EnvId {
        self.id.clone()
    }

    fn info(&self) -> EnvInfo {
        EnvInfo { opponents: self.opponents.docs(), ..self.info.clone() }
    }

    fn rules(&self) -> &str {
        &self.rules
    }

    fn build(&self, task: &Task) -> Result<Box<dyn Env>> {
        let (options, location) = (self.options(&task.options)?, || format!("task of {}", self.id));
        let spec = task.opponent.as_ref().ok_or_else(|| Error::invalid(location(), "an opponent is needed"))?;
        if task.seat >= self.info.seats {
            let problem =
                format!("seat {} does not exist; the last of the game's seats is {}", task.seat, self.info.seats - 1);
            return Err(Error::invalid(location(), problem));
        }
        let opponent = self.opponents.build(spec)?;
        Ok(Box::new(GameEnv::new(Arc::clone(&self.game), opponent, task.seat, options.deal, task.seed)))
    }

    fn build_with_human(&self, task: &Task, human: Arc<dyn HumanPlayer>) -> Result<Option<Box<dyn Env>>> {
        let (options, seat) = (self.options(&task.options)?, task.seat.min(self.info.seats - 1));
        Ok(Some(Box::new(human_player::game_env(Arc::clone(&self.game), human, seat, options.deal, task.seed))))
    }

    fn check(&self, population: &Population) -> Result<()> {
        population.splits().try_for_each(|s| self.options(&population.options_in(s)).map(drop))?;
        population.seat_shares(self.info.seats)?;
        population.opponents.iter().try_for_each(|m| self.opponents.build(&m.spec).map(drop))
    }

    fn default_population(&self) -> Population {
        self.populations[0].1.clone()
    }

    fn populations(&self) -> Vec<(&'static str, Population)> {
        self.populations.clone()
    }

    fn oracles(&self, population: &Population, split: &str, episodes: u32) -> Result<Option<OracleReport>> {
        let options = self.options(&population.options_in(split))?;
        let candidates = Candidate::of_split(population, split, &self.opponents)?;
        let query = CeilingQuery {
            env: population.env.as_str(),
            split,
            unit: &self.info.unit,
            episodes,
            deal: options.deal,
            seat_shares: &population.seat_shares(self.info.seats)?,
        };
        ceilings(&*self.game, &candidates, &query)
    }

    fn scripted_agents(&self) -> Vec<ScriptedAgentInfo> {
        game_agents::infos()
    }

    fn scripted_agent(&self, query: &ScriptedAgentQuery<'_>) -> Result<Arc<dyn ScriptedAgentFactory>> {
        game_agents::factory(self, query)
    }
}

/// What follows from the histories of a small game; empty for a larger one.
#[derive(Default)]
struct Derived {
    words: Vec<String>,
    action_words: usize,
    reflection_words: usize,
    max_turns: u32,
}

impl Derived {
    fn of<G: TextGame>(game: &G) -> Self {
        let Ok(tree) = HistoryTree::with_limit(game, MAX_DERIVED_HISTORIES) else { return Derived::default() };
        let count = |text: &str| text.split_whitespace().count();
        let (mut words, mut derived) = (BTreeSet::new(), Derived { max_turns: 1, ..Derived::default() });
        // Own decisions of each seat before a history.
        let mut decisions = vec![vec![0; usize::from(game.players())]; tree.nodes().len()];
        for (id, node) in tree.nodes().iter().enumerate() {
            let mut add = |text: &str| words.extend(text.split_whitespace().map(str::to_owned));
            match node.current_player {
                CurrentPlayer::Terminal => {
                    for seat in 0..game.players() {
                        let facts = game.facts(&node.state, seat);
                        derived.reflection_words = derived.reflection_words.max(count(&facts));
                        add(&facts);
                        add(&game.describe(&node.state, seat).compact);
                    }
                    // Three times the longest game leaves room for invalid actions.
                    let longest = decisions[id].iter().max().copied().unwrap_or(1);
                    derived.max_turns = derived.max_turns.max(3 * longest);
                }
                CurrentPlayer::Player(seat) => {
                    add(&game.describe(&node.state, seat).compact);
                    let names = game.legal(&node.state).into_iter().map(|a: ActionId| game.action_name(a));
                    names.for_each(|name| {
                        derived.action_words = derived.action_words.max(count(&name));
                        add(&name);
                    });
                }
                CurrentPlayer::Chance => {}
            }
            for edge in &node.edges {
                decisions[edge.child] = decisions[id].clone();
                if let CurrentPlayer::Player(seat) = node.current_player {
                    decisions[edge.child][usize::from(seat)] += 1;
                }
            }
        }
        // Blanks and unknown words belong to every vocabulary.
        Derived { words: words.into_iter().filter(|w| w != "_" && w != "?").collect(), ..derived }
    }
}
