//! The environment spec of Kuhn poker.

use super::{opponents::opponent_kinds, rules::Kuhn, text};
use crate::{EnvId, GameSpec, OptionMap, Population, PopulationMember};

/// Builds Kuhn poker environments. Other crates can add opponents:
///
/// ```
/// use mage_env::{Registry, kuhn::{KuhnSpec, StrategyTable}};
/// let mut kuhn = KuhnSpec::default();
/// let maniac = StrategyTable::by_role([1.0; 3], [1.0; 3]);
/// kuhn.opponents.add_plain("maniac", "never passes", maniac);
/// let mut registry = Registry::builtin();
/// registry.register(kuhn);
/// ```
pub type KuhnSpec = GameSpec<Kuhn>;

impl Default for KuhnSpec {
    fn default() -> Self {
        let mut spec = GameSpec::new("kuhn", Kuhn)
            .describe("Kuhn poker", "three cards, one bet, a hidden opponent", "chips per hand")
            .compact_words(text::compact_words())
            .populations(populations());
        spec.opponents = opponent_kinds();
        spec
    }
}

/// The paper's pool with fresh deals is the default. Out of domain: the equilibrium, as the paper plays it (argmax) and
/// sampled.
fn populations() -> Vec<(&'static str, Population)> {
    let fresh = Population {
        options: OptionMap::default().with("deal", "fresh"),
        seats: vec![0.5, 0.5],
        opponents: vec![
            PopulationMember::in_domain("conservative", 0.3),
            PopulationMember::in_domain("aggressive", 0.3),
            PopulationMember::in_domain("intermediate", 0.4),
            PopulationMember::out_of_domain("cfr_argmax", 0.5),
            PopulationMember::out_of_domain("cfr_sampled", 0.5),
        ],
        ..Population::without_opponents(EnvId::new("kuhn"))
    };
    let switching = include_str!("../../../populations/kuhn/switching.toml");
    let switching = Population::from_toml(switching, "switching").expect("the embedded population is valid");
    let mut paper = fresh.clone();
    paper.options = paper.options.with("deal", "fixed");
    vec![("fresh", fresh), ("paper", paper), ("switching", switching)]
}
