//! Environments derived from the rules of a game.

use mage_env::{
    EnvSpec, EpisodeFacts, GameSpec, OpponentSpec, Population, PromptView, ScriptedAgentQuery, Seed, TextGame,
    action_probs,
    kuhn::{Hand, Kuhn, KuhnSpec},
};

/// Kuhn poker with derived words, turn limit and population.
fn derived() -> GameSpec<Kuhn> {
    GameSpec::new("derived", Kuhn)
        .opponent("caller", "always bets", |_: &Kuhn, _: &Hand, _: u8| action_probs([0.0, 1.0]))
        .opponent("folder", "always passes", |_: &Kuhn, _: &Hand, _: u8| action_probs([1.0, 0.0]))
}

#[test]
fn derived_properties_equal_those_stated_for_kuhn() {
    let (ours, stated) = (derived().info(), KuhnSpec::default().info());
    let sorted = |words: &[String]| {
        let mut words = words.to_vec();
        words.sort();
        words
    };
    assert_eq!(sorted(&ours.compact_words), sorted(&stated.compact_words));
    assert_eq!(ours.max_turns, stated.max_turns);
    assert_eq!(ours.seats, stated.seats);
    assert_eq!(ours.max_compact_action_words, stated.max_compact_action_words);
    assert_eq!(ours.compact_reflection_words, stated.compact_reflection_words);
    assert_eq!(ours.options, stated.options);
}

#[test]
fn functions_are_opponents_with_ceilings() {
    let spec = derived();
    let population = spec.default_population();
    assert_eq!(population.in_split("train").unwrap().len(), 2);
    let report = spec.oracles(&population, "train", 3).unwrap().unwrap();
    // Against an opponent that folds every bet, a bet wins one chip.
    let folder = report.mean.best_response.iter().find(|value| value.name == "folder").unwrap();
    assert!((folder.value - 1.0).abs() < 0.5, "{}", folder.value);
    assert!(report.mean.sum.by_episode[2] > report.mean.memoryless[2] + 1e-3);
}

#[test]
fn invalid_tasks_and_agents_are_refused() {
    let spec = derived();
    let population = spec.default_population();
    let mut task = population.sample_task("train", 2, Seed::new(1)).unwrap();
    task.seat = 2;
    let error = |task: &mage_env::Task| spec.build(task).err().unwrap().to_string();
    assert!(error(&task).contains("task of derived: seat 2 does not exist"), "{}", error(&task));
    task.opponent = None;
    assert!(error(&task).contains("an opponent is needed"));
    let unknown = Population {
        opponents: vec![mage_env::PopulationMember {
            weight: 1.0,
            splits: vec!["train".to_owned()],
            spec: OpponentSpec::of_kind("calller"),
        }],
        ..population.clone()
    };
    assert!(spec.check(&unknown).unwrap_err().to_string().contains("did you mean `caller`"));
    let query = ScriptedAgentQuery { name: "bayess", population: &population, split: "train", episodes: 2 };
    assert!(spec.scripted_agent(&query).err().unwrap().to_string().contains("did you mean `bayes`"));
}

#[test]
fn agents_play_a_legal_action_if_they_cannot_read_the_prompt() {
    let spec = derived();
    let population = spec.default_population();
    let task = population.sample_task("train", 2, Seed::new(1)).unwrap();
    for name in ["nash", "bayes", "bayes-last", "best-response"] {
        let query = ScriptedAgentQuery { name, population: &population, split: "train", episodes: 2 };
        let mut agent = spec.scripted_agent(&query).unwrap().make(&task, Seed::new(2));
        let legal = ["PASS".to_owned(), "BET".to_owned()];
        let view = PromptView { episode: 0, memory: &[], observation: "third X _ _", legal: &legal, history: &[] };
        assert!(legal.contains(&agent.act(&view)), "{name}");
        assert_eq!(agent.reflect("third X _ _ _ ?"), "", "{name}");
    }
}

#[test]
fn facts_determine_the_observations_of_a_hand() {
    let facts = EpisodeFacts::new(&Kuhn).unwrap();
    assert_eq!(facts.observations(0, "K Q open BET _ _").unwrap(), ["K", "Kpb", "Kpbb/Q"]);
    assert_eq!(Kuhn.action_name(mage_env::kuhn::BET), "BET");
    assert!(facts.observations(1, "nonsense").is_err());
}
