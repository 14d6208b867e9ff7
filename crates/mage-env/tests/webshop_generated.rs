//! WebShop on a generated catalogue. These tests need no data.

use mage_env::{
    End, Env, EnvId, EnvSpec, Error, OptionMap, Outcome, ParsedAction, Population, PromptView, Registry,
    ScriptedAgentQuery, Seed, Step, Task,
    webshop::{GoalSplit, WebshopSpec},
};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn task(options: OptionMap, seed: u64) -> Task {
    Task { env: EnvId::new("webshop"), options, opponent: None, seat: 0, seed: Seed::new(seed) }
}

fn shop(options: OptionMap, seed: u64) -> Box<dyn Env> {
    Registry::builtin().build(&task(options, seed)).unwrap()
}

fn build_error(options: OptionMap) -> Error {
    Registry::builtin().build(&task(options, 0)).err().expect("an error")
}

fn act(env: &mut dyn Env, text: &str) -> Step {
    env.step(&env.parse(text))
}

fn instruction(env: &mut dyn Env, episode: u32) -> String {
    let first = env.reset(episode).text;
    first.strip_prefix("WebShop [SEP] Instruction: [SEP] ").unwrap().strip_suffix(" [SEP] Search").unwrap().to_owned()
}

/// Searches and buys the first result.
fn buy_first(env: &mut dyn Env, words: &str) -> Step {
    act(env, &format!("search[{words}]"));
    act(env, "I1");
    act(env, "click[Buy Now]")
}

#[test]
fn pages_follow_clicks() {
    let mut env = shop(OptionMap::default(), 1);
    env.reset(0);
    assert_eq!(env.compact_legal(), Some(vec!["SEARCH".to_owned()]));
    let results = act(&mut *env, "search[black large machine washable]");
    assert!(
        results.valid && results.observation.text.contains("'Page 1 (Total results: 50)' [SEP] 'Next >' [SEP] 'G0")
    );
    let second = act(&mut *env, "click[next >]");
    assert!(second.observation.text.contains("'Page 2 (Total results: 50)' [SEP] '< Prev' [SEP] 'Next >'"));
    let beyond = (0..5).map(|_| act(&mut *env, "NEXT")).last().unwrap();
    assert!(
        beyond.observation.text.ends_with("'Page 7 (Total results: 50)' [SEP] '< Prev' [SEP] 'Next >'"),
        "an empty page"
    );
    act(&mut *env, "search[black large machine washable]");
    let item = act(&mut *env, "I1");
    assert!(
        item.observation
            .text
            .ends_with("'Rating: N.A.' [SEP] 'Description' [SEP] 'Features' [SEP] 'Reviews' [SEP] 'Buy Now'")
    );
    let before = env.anchor();
    let chosen = act(&mut *env, "V1");
    assert_eq!(chosen.observation.text, item.observation.text, "choosing an option does not change the page");
    assert_ne!(env.anchor(), before, "but it changes the anchor");
    assert!(act(&mut *env, "DESC").observation.text.contains("Among its strengths"));
    assert!(act(&mut *env, "< prev").end.is_none(), "not an action");
    assert!(act(&mut *env, "click[< prev]").observation.compact.starts_with("item"));
    assert!(env.anchor() != before, "the chosen option is kept");
    act(&mut *env, "PREV");
    assert_eq!(
        act(&mut *env, "I1").observation.compact.matches("have").count(),
        0,
        "leaving the product discards the choice"
    );
    assert!(act(&mut *env, "click[back to search]").observation.text.starts_with("WebShop"));
}

#[test]
fn invalid_actions_cost_only_the_turn() {
    let mut env = shop(OptionMap::default(), 2);
    let first = env.reset(0);
    for text in ["click[buy now]", "click[search]", "think[hmm]", "buy", "", "search[]", "I1"] {
        let step = act(&mut *env, text);
        assert!(!step.valid && step.end.is_none() && step.reward == 0.0, "{text}");
        assert_eq!(step.observation, first);
    }
    assert!(matches!(env.parse("hello"), ParsedAction::Invalid { reason } if reason.contains("search[words]")));
    assert!(env.allows("search[anything at all]") && !env.allows("click[next >]"));
}

#[test]
fn a_purchase_is_scored_and_ends_the_episode() {
    let mut env = shop(OptionMap::default(), 3);
    env.reset(0);
    let step = buy_first(&mut *env, "plant pots");
    let Some(End::Terminated { outcome, score }) = step.end else { panic!("{step:?}") };
    assert_eq!((step.reward, outcome == Outcome::Won), (score, score == 1.0));
    assert!(step.observation.text.starts_with("Thank you for shopping with us! [SEP] Your code: [SEP] None"));
    assert_eq!(env.legal(), Some(vec![]));
    let after = act(&mut *env, "search[more]");
    assert!(!after.valid && after.reward == 0.0, "a purchase is rewarded once");
}

#[test]
fn every_legal_action_is_valid_in_full_and_compact_form() {
    for seed in 0..20 {
        let mut env = shop(OptionMap::default().with("show_attributes", true), seed);
        env.reset(0);
        act(&mut *env, "SEARCH");
        for path in [&[][..], &["I1"], &["I2", "V1"], &["I1", "ATTR"]] {
            let go = |env: &mut dyn Env| {
                env.reset(0);
                act(env, "SEARCH");
                path.iter().for_each(|p| drop(act(env, p)));
            };
            go(&mut *env);
            let names = env.legal().into_iter().chain(env.compact_legal()).flatten();
            for name in names.collect::<Vec<_>>() {
                go(&mut *env);
                let ParsedAction::Act(canonical) = env.parse(&name) else { panic!("{name}") };
                assert!(env.allows(&canonical) && env.step(&ParsedAction::Act(canonical)).valid, "{name}");
            }
        }
    }
}

#[test]
fn resetting_keeps_the_goal_unless_faithful() {
    let mut env = shop(OptionMap::default(), 4);
    let goal = instruction(&mut *env, 0);
    buy_first(&mut *env, &goal);
    assert_eq!(instruction(&mut *env, 1), goal);
    let results = act(&mut *env, "SEARCH").observation.text;
    assert!(results.starts_with("'Back to Search'"), "{results}");

    let mut env = shop(OptionMap::default().with("faithful", true), 4);
    let goal = instruction(&mut *env, 0);
    assert_eq!(instruction(&mut *env, 1), goal);
    assert!(act(&mut *env, "search[cups]").observation.text.starts_with("'Back"), "without a purchase the goal stays");
    buy_first(&mut *env, &goal);
    assert_eq!(instruction(&mut *env, 2), goal, "the first page still shows the first goal");
    let results = act(&mut *env, "search[cups]").observation.text;
    assert!(results.starts_with("Instruction: [SEP] Look for ") && !results.contains(&goal), "{results}");
    env.reset(0);
    assert!(
        act(&mut *env, "search[cups]").observation.text.starts_with("'Back"),
        "a reset at episode 0 restores the task's goal"
    );
}

#[test]
fn pages_are_available_in_both_formats_of_the_original() {
    let mut text = shop(OptionMap::default().with("observation", "text"), 5);
    let mut rich = shop(OptionMap::default().with("observation", "text_rich"), 5);
    let first = rich.reset(0).text;
    assert!(first.starts_with("WebShop\nInstruction: \nLook for ") && first.ends_with("\n[button] Search [button_]\n"));
    text.reset(0);
    assert!(act(&mut *text, "SEARCH").observation.text.starts_with("Instruction: [SEP] Look for "));
    let results = act(&mut *rich, "SEARCH").observation.text;
    assert!(results.contains("\n[button] Next > [button_]\n\n[button] G0"), "{results}");
    act(&mut *rich, "I1");
    let value = rich.legal().unwrap().last().unwrap().trim_start_matches("click[").trim_end_matches(']').to_owned();
    let chosen = act(&mut *rich, &format!("click[{value}]")).observation.text;
    assert!(chosen.starts_with(&format!("You have clicked {value}.\nInstruction:\n")), "{chosen}");
    assert!(chosen.contains(&format!("\n  [clicked button] {value} [clicked button_]\n")));
    let back = act(&mut *rich, "PREV").observation.text;
    assert!(back.contains("\n\n[clicked button] G0"), "visited: {back}");
}

#[test]
fn splits_are_disjoint_and_the_released_ones_overlap() {
    let env_spec = WebshopSpec;
    let population = env_spec.default_population();
    let goals = |split: &str| -> BTreeSet<String> {
        let drawn = (0..400).map(|i| population.sample_task(split, 1, Seed::new(i)).unwrap());
        drawn.map(|t| instruction(&mut *env_spec.build(&t).unwrap(), 0)).collect()
    };
    let [train, in_domain, out_of_domain] = ["train", "in-domain", "out-of-domain"].map(goals);
    assert!(
        train.is_disjoint(&in_domain) && train.is_disjoint(&out_of_domain) && in_domain.is_disjoint(&out_of_domain)
    );
    assert!(train.len() > 300, "goals vary");
    // Prices and limits depend on the worker's seed, so they are removed.
    let unpriced = |s: BTreeSet<String>| -> BTreeSet<String> {
        s.iter().map(|t| t.split(", and price").next().unwrap().to_owned()).collect()
    };
    let leaking = unpriced(goals("reference-train")).intersection(&unpriced(goals("reference-validation"))).count();
    assert!(leaking > 5, "{leaking}");
}

#[test]
fn goals_are_assigned_without_replacement() {
    let tasks = |options: &OptionMap, first: u64, count: u64| {
        let mut tasks: Vec<Task> = (first..first + count).map(|i| task(options.clone(), i)).collect();
        WebshopSpec.assign_without_replacement(&mut tasks, first, Seed::new(3)).unwrap();
        tasks
    };
    let goals = |tasks: &[Task]| -> Vec<String> {
        tasks.iter().map(|t| instruction(&mut *WebshopSpec.build(t).unwrap(), 0)).collect()
    };
    let small = OptionMap::default().with("products", 60).with("goal_seed", 5);
    for split in ["train", "in-domain", "out-of-domain"] {
        let options = small.clone().with("split", split);
        let sampled: BTreeSet<String> =
            goals(&(0..3000).map(|i| task(options.clone(), i)).collect::<Vec<_>>()).into_iter().collect();
        let all = tasks(&options, 0, 400);
        let indices: Vec<u64> = all.iter().map(|t| t.options.0["goal_index"].as_u64().unwrap()).collect();
        let size = indices.iter().collect::<BTreeSet<_>>().len();
        for pass in indices.chunks_exact(size) {
            assert_eq!(pass.iter().collect::<BTreeSet<_>>().len(), size, "every goal before any repeats");
        }
        assert!(size > 3 && indices.len() > size, "{split}: {size}");
        assert_eq!(goals(&all).into_iter().collect::<BTreeSet<_>>(), sampled, "the goals of the split, all of them");
        assert_eq!(tasks(&options, 17, 20), all[17..37], "the same sequence from another offset");
    }
    for options in [small.clone().with("split", "reference-validation"), small.with("goal_index", 3)] {
        assert!(tasks(&options, 0, 5).iter().all(|t| t.options == options), "{options:?}");
    }
}

#[test]
fn invalid_options_are_named() {
    let with = |key: &str, value: serde_json::Value| build_error(OptionMap::default().with(key, value)).to_string();
    assert!(with("colour", "red".into()).contains("unknown field `colour`"));
    assert!(with("products", 0.into()).contains("at least one product"));
    assert!(with("products", 100_000_000.into()).contains("at most"));
    assert!(
        with("goals", "human".into())
            .contains("generated products have no instructions written by people; set goals=synthetic")
    );
    assert!(with("goal_index", 99_999_999.into()).contains("no goal 99999999"));
    // Small catalogues may have no goals at all, or none in a split.
    let small = |n: u64| task(OptionMap::default().with("products", n).with("split", "in-domain"), 0);
    let errors: Vec<String> =
        (1..=10).filter_map(|n| Registry::builtin().build(&small(n)).err()).map(|e| e.to_string()).collect();
    let nothing = "none of the generated products has an instruction; increase `products`";
    assert!(errors.iter().any(|e| e.contains(nothing)), "{errors:?}");
    let elsewhere =
        |e: &String| e.contains("split in-domain: contains none of the catalogue's") && e.contains("(train ");
    assert!(errors.iter().any(elsewhere), "{errors:?}");
    let small = OptionMap::default().with("products", 20).with("split", "reference-train");
    assert!(build_error(small).to_string().contains("option split"));
    let missing = OptionMap::default().with("catalogue", "official").with("data", "/nowhere");
    assert!(build_error(missing).to_string().contains("/nowhere: neither items_shuffle.json nor "));
    let env_spec = WebshopSpec;
    let text = "env = \"webshop\"\n[[opponent]]\nname = \"x\"\nkind = \"x\"";
    let crowd = Population::from_toml(text, "p.toml").unwrap();
    assert!(env_spec.check(&crowd).unwrap_err().to_string().contains("has opponents"));
    assert!(env_spec.check(&env_spec.default_population()).is_ok());
    assert_eq!(GoalSplit::ALL.len(), env_spec.default_population().splits().count());
}

/// Plays a scripted agent; its memory contains its own reflections. Turns in `overridden` take another action.
fn played(name: &str, tasks: u64, episodes: u32, overridden: &[u32]) -> Vec<u32> {
    let env_spec = WebshopSpec;
    let population = env_spec.default_population();
    let query = ScriptedAgentQuery { name, population: &population, split: "in-domain", episodes };
    let maker = env_spec.scripted_agent(&query).unwrap();
    let mut won = vec![0; episodes as usize];
    for i in 0..tasks {
        let task = population.sample_task("in-domain", 1, Seed::new(i)).unwrap();
        let (mut env, mut agent) = (env_spec.build(&task).unwrap(), maker.make(&task, Seed::new(i)));
        let mut memory: Vec<String> = Vec::new();
        for episode in 0..episodes {
            let mut now = env.reset(episode);
            let mut end = None;
            let mut done: Vec<String> = Vec::new();
            for turn in 0..env_spec.info().max_turns {
                let legal = env.compact_legal().unwrap();
                let seen =
                    PromptView { episode, memory: &memory, observation: &now.compact, legal: &legal, history: &done };
                let mut action = agent.act(&seen);
                if overridden.contains(&turn) {
                    action = legal[(i as usize + turn as usize) % legal.len()].clone();
                    if action == "BUY" {
                        action = "HOME".to_owned();
                    }
                }
                let action = env.parse(&action);
                let step = env.step(&action);
                assert!(step.valid, "{name} chooses legal actions");
                if let ParsedAction::Act(action) = action {
                    done.push(action);
                }
                now = step.observation;
                end = step.end;
                if end.is_some() {
                    break;
                }
            }
            memory.push(agent.reflect(&now.compact));
            won[episode as usize] += u32::from(matches!(end, Some(End::Terminated { outcome: Outcome::Won, .. })));
        }
    }
    won
}

#[test]
fn the_oracle_always_succeeds_and_the_heuristic_improves_over_episodes() {
    assert_eq!(played("oracle", 150, 1, &[]), [150]);
    // It repeats a perfect purchase and tries another product otherwise.
    let heuristic = played("heuristic", 150, 4, &[]);
    assert!(
        heuristic[0] > 30 && heuristic[3] < 150 && heuristic.is_sorted() && heuristic[3] > heuristic[0],
        "{heuristic:?}"
    );
}

#[test]
fn the_oracle_recovers_from_overridden_actions() {
    let bought = played("oracle", 150, 1, &[1, 3])[0];
    assert!(bought >= 140, "{bought}: overridden actions cannot always be undone within twelve turns");
}

#[test]
fn compact_observations_use_the_vocabulary_and_have_a_fixed_length() {
    let env_info = WebshopSpec.info();
    let known: BTreeSet<&str> = env_info.compact_words.iter().map(String::as_str).chain(["_"]).collect();
    assert_eq!(known.len(), env_info.compact_words.len() + 1, "no word twice");
    let mut env = shop(OptionMap::default(), 6);
    let mut lengths = BTreeSet::new();
    let mut check = |text: &str| {
        assert!(text.split(' ').all(|w| known.contains(w)), "{text}");
        lengths.insert(text.split(' ').count());
    };
    check(&env.reset(0).compact);
    for action in ["SEARCH", "NEXT", "I3", "FEAT", "PREV", "V2", "BUY"] {
        assert!(env.compact_legal().unwrap().iter().all(|w| known.contains(w.as_str())));
        check(&act(&mut *env, action).observation.compact);
    }
    assert_eq!(lengths.len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn arbitrary_actions_never_break_the_shop(words in prop::collection::vec(prop_oneof![
        any::<String>(),
        "search\\[[a-z<> ]{0,12}\\]",
        "click\\[[a-z <>]{0,8}\\]",
        "(I|V|P)[0-9]{1,2}",
        Just("click[next >]".to_owned()), Just("click[< prev]".to_owned()), Just("PREV".to_owned()), Just("I1".to_owned()),
        Just("search[search_results]".to_owned()), Just("search[item_page x]".to_owned()), Just("DESC".to_owned()),
        Just("search[<r>]".to_owned()), Just("search[<c> garden]".to_owned()), Just("search[<a> non slip]".to_owned()),
    ], 0..30), seed in 0_u64..50) {
        let mut env = shop(OptionMap::default().with("products", 200), seed);
        env.reset(0);
        for word in &words {
            let action = env.parse(word);
            let allowed = matches!(&action, ParsedAction::Act(a) if env.allows(a));
            let step = env.step(&action);
            prop_assert_eq!(allowed, step.valid);
            let _ = (env.anchor(), env.legal(), env.compact_legal());
            if step.end.is_some() {
                break;
            }
        }
    }
}
