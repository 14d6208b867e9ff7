//! The environment spec of Kuhn poker.

use super::{opponents::opponent_kinds, rules::Kuhn, scripted_agents, text};
use crate::{
    Deal, Env, EnvId, EnvInfo, EnvSpec, Error, GameEnv, HumanPlayer, OpponentKinds, OptionDoc, OptionMap, Population,
    PopulationMember, Result, ScriptedAgentFactory, ScriptedAgentInfo, ScriptedAgentQuery, Task, human_player,
    registry::unknown_scripted_agent,
    solvers::{BayesAdaptiveSolver, Candidate, CeilingQuery, OracleReport, ceilings},
};
use serde::Deserialize;
use std::sync::Arc;

/// Builds Kuhn poker environments. Public so that other crates can add opponents:
///
/// ```
/// use mage_env::{Registry, kuhn::{KuhnSpec, StrategyTable}};
/// let mut kuhn = KuhnSpec::default();
/// let maniac = StrategyTable::by_role([1.0; 3], [1.0; 3]);
/// kuhn.opponents.add_plain("maniac", "never passes", maniac);
/// let mut registry = Registry::builtin();
/// registry.register(kuhn);
/// ```
pub struct KuhnSpec {
    /// The known opponent kinds.
    pub opponents: OpponentKinds<Kuhn>,
}

impl Default for KuhnSpec {
    fn default() -> Self {
        KuhnSpec { opponents: opponent_kinds() }
    }
}

/// Options of Kuhn poker.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KuhnOptions {
    /// Whether each episode gets new cards.
    pub deal: Deal,
}

const ID: EnvId = EnvId::new("kuhn");
const OPTIONS_CONTEXT: &str = "options of kuhn";

impl EnvSpec for KuhnSpec {
    fn id(&self) -> EnvId {
        ID
    }

    fn info(&self) -> EnvInfo {
        EnvInfo {
            title: "Kuhn poker".to_owned(),
            summary: "three cards, one bet, a hidden opponent".to_owned(),
            unit: "chips per hand".to_owned(),
            seats: 2,
            max_turns: 6,
            options: vec![OptionDoc::new(
                "deal",
                "fresh (default) | fixed",
                "new cards each episode, or the same cards throughout a meta-episode as in the paper",
            )],
            opponents: self.opponents.docs(),
            compact_words: text::compact_words(),
            max_compact_action_words: 1,
            compact_reflection_words: text::REFLECTION_WORDS,
        }
    }

    fn build(&self, task: &Task) -> Result<Box<dyn Env>> {
        let options: KuhnOptions = task.options.read(OPTIONS_CONTEXT)?;
        let spec = task.opponent.as_ref().ok_or_else(|| Error::invalid("task of kuhn", "an opponent is needed"))?;
        if task.seat > 1 {
            return Err(Error::invalid(
                "task of kuhn",
                format!("seat {} does not exist; seats are 0 and 1", task.seat),
            ));
        }
        let opponent = self.opponents.build(spec)?;
        Ok(Box::new(GameEnv::new(Arc::new(Kuhn), opponent, task.seat, options.deal, task.seed)))
    }

    fn build_with_human(&self, task: &Task, human: Arc<dyn HumanPlayer>) -> Result<Option<Box<dyn Env>>> {
        let options: KuhnOptions = task.options.read(OPTIONS_CONTEXT)?;
        Ok(Some(Box::new(human_player::game_env(Kuhn, human, task.seat.min(1), options.deal, task.seed))))
    }

    fn check(&self, population: &Population) -> Result<()> {
        population
            .splits()
            .try_for_each(|s| population.options_in(s).read::<KuhnOptions>(OPTIONS_CONTEXT).map(drop))?;
        population.seat_shares(2)?;
        population.opponents.iter().try_for_each(|m| self.opponents.build(&m.spec).map(drop))
    }

    /// The paper's pool with fresh deals. Out of domain: the equilibrium, as the paper plays it (argmax) and sampled.
    fn default_population(&self) -> Population {
        Population {
            options: OptionMap::default().with("deal", "fresh"),
            seats: vec![0.5, 0.5],
            opponents: vec![
                PopulationMember::in_domain("conservative", 0.3),
                PopulationMember::in_domain("aggressive", 0.3),
                PopulationMember::in_domain("intermediate", 0.4),
                PopulationMember::out_of_domain("cfr_argmax", 0.5),
                PopulationMember::out_of_domain("cfr_sampled", 0.5),
            ],
            ..Population::without_opponents(ID)
        }
    }

    fn populations(&self) -> Vec<(&'static str, Population)> {
        let switching = include_str!("../../../populations/kuhn/switching.toml");
        let switching = Population::from_toml(switching, "switching").expect("the embedded population is valid");
        let fresh = self.default_population();
        let mut paper = fresh.clone();
        paper.options = paper.options.with("deal", "fixed");
        vec![("fresh", fresh), ("paper", paper), ("switching", switching)]
    }

    fn oracles(&self, population: &Population, split: &str, episodes: u32) -> Result<Option<OracleReport>> {
        let options: KuhnOptions = population.options_in(split).read(OPTIONS_CONTEXT)?;
        let candidates = Candidate::of_split(population, split, &self.opponents)?;
        let query = CeilingQuery {
            env: population.env.as_str(),
            split,
            unit: &self.info().unit,
            episodes,
            deal: options.deal,
            seat_shares: &population.seat_shares(2)?,
        };
        ceilings(&Kuhn, &candidates, &query)
    }

    fn scripted_agents(&self) -> Vec<ScriptedAgentInfo> {
        scripted_agents::infos()
    }

    fn scripted_agent(&self, query: &ScriptedAgentQuery<'_>) -> Result<Arc<dyn ScriptedAgentFactory>> {
        scripted_agents::factory(self, query)?
            .ok_or_else(|| unknown_scripted_agent(&self.scripted_agents(), query.name))
    }
}

impl KuhnSpec {
    /// The Bayes-adaptive optimum from one seat against a split of a population.
    pub fn bayes(&self, population: &Population, split: &str, seat: u8, episodes: u32) -> Result<BayesAdaptiveSolver> {
        let options: KuhnOptions = population.options_in(split).read(OPTIONS_CONTEXT)?;
        let candidates = Candidate::of_split(population, split, &self.opponents)?;
        BayesAdaptiveSolver::new(&Kuhn, seat, options.deal, &candidates, episodes)
    }
}
