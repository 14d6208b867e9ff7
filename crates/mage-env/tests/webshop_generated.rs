//! Does the shop work without anybody's files? Everything here runs on the generated catalogue.

use mage_env::{
    End, Env, EnvId, EnvSpec, Error, OptionMap, Outcome, ParsedAction, Population, PromptView, Registry,
    ScriptedAgentQuery, Seed, Step, Task,
    webshop::{Split, WebshopSpec},
};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn task(options: OptionMap, seed: u64) -> Task {
    Task { env: EnvId::new("webshop"), options, opponent: None, seat: 0, seed: Seed::new(seed) }
}

fn shop(options: OptionMap, seed: u64) -> Box<dyn Env> {
    Registry::builtin().build(&task(options, seed)).unwrap()
}

fn refusal(options: OptionMap) -> Error {
    Registry::builtin().build(&task(options, 0)).err().expect("refused")
}

fn act(env: &mut dyn Env, text: &str) -> Step {
    env.step(&env.parse(text))
}

fn instruction(env: &mut dyn Env, episode: u32) -> String {
    let first = env.reset(episode).text;
    first.strip_prefix("WebShop [SEP] Instruction: [SEP] ").unwrap().strip_suffix(" [SEP] Search").unwrap().to_owned()
}

/// The clicks of a whole purchase of the first result.
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
    assert_eq!(chosen.observation.text, item.observation.text, "choosing shows nothing");
    assert_ne!(env.anchor(), before, "but it is another state");
    assert!(act(&mut *env, "DESC").observation.text.contains("Among its strengths"));
    assert!(act(&mut *env, "< prev").end.is_none(), "not an action");
    assert!(act(&mut *env, "click[< prev]").observation.compact.starts_with("item"));
    assert!(env.anchor() != before, "the choice is kept");
    act(&mut *env, "PREV");
    assert_eq!(act(&mut *env, "I1").observation.compact.matches("have").count(), 0, "leaving the product forgets it");
    assert!(act(&mut *env, "click[back to search]").observation.text.starts_with("WebShop"));
}

#[test]
fn what_cannot_be_done_costs_the_turn_and_nothing_else() {
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
fn a_purchase_is_scored_and_ends_the_visit() {
    let mut env = shop(OptionMap::default(), 3);
    env.reset(0);
    let step = buy_first(&mut *env, "plant pots");
    let Some(End::Terminated { outcome, score }) = step.end else { panic!("{step:?}") };
    assert_eq!((step.reward, outcome == Outcome::Won), (score, score == 1.0));
    assert!(step.observation.text.starts_with("Thank you for shopping with us! [SEP] Your code: [SEP] None"));
    assert_eq!(env.legal(), Some(vec![]));
    let after = act(&mut *env, "search[more]");
    assert!(!after.valid && after.reward == 0.0, "nothing is earned twice");
}

#[test]
fn every_listed_action_can_be_done_and_both_names_mean_the_same() {
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
fn restarting_keeps_the_goal_unless_the_fault_is_wanted() {
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
    assert_eq!(instruction(&mut *env, 2), goal, "the prompt goes on naming the first goal");
    let results = act(&mut *env, "search[cups]").observation.text;
    assert!(results.starts_with("Instruction: [SEP] Look for ") && !results.contains(&goal), "{results}");
    env.reset(0);
    assert!(act(&mut *env, "search[cups]").observation.text.starts_with("'Back"), "a fresh start has the task's goal");
}

#[test]
fn pages_come_in_the_originals_two_forms_too() {
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
    assert!(back.contains("\n\n[clicked button] G0"), "looked at: {back}");
}

#[test]
fn splits_share_no_goal_and_the_released_ones_do() {
    let env_spec = WebshopSpec;
    let population = env_spec.default_population();
    let goals = |split: &str| -> BTreeSet<String> {
        let drawn = (0..400).map(|i| population.draw(split, 1, Seed::new(i)).unwrap());
        drawn.map(|t| instruction(&mut *env_spec.build(&t).unwrap(), 0)).collect()
    };
    let [train, near, far] = ["train", "in-domain", "out-of-domain"].map(goals);
    assert!(train.is_disjoint(&near) && train.is_disjoint(&far) && near.is_disjoint(&far));
    assert!(train.len() > 300, "draws differ");
    // Prices and limits differ by worker, so compare what is asked for.
    let asked = |s: BTreeSet<String>| -> BTreeSet<String> {
        s.iter().map(|t| t.split(", and price").next().unwrap().to_owned()).collect()
    };
    let leaking = asked(goals("reference-train")).intersection(&asked(goals("reference-validation"))).count();
    assert!(leaking > 5, "{leaking}");
}

#[test]
fn settings_that_make_no_sense_are_named() {
    let with = |key: &str, value: serde_json::Value| refusal(OptionMap::default().with(key, value)).to_string();
    assert!(with("colour", "red".into()).contains("unknown field `colour`"));
    assert!(with("products", 0.into()).contains("at least one product"));
    assert!(with("products", 100_000_000.into()).contains("at most"));
    assert!(with("goals", "human".into()).contains("nobody wrote wishes for generated products; set goals=synthetic"));
    assert!(with("goal", 99_999_999.into()).contains("there is no goal 99999999"));
    // Small shops may ask for nothing at all, or for nothing in a split.
    let small = |n: u64| task(OptionMap::default().with("products", n).with("split", "in-domain"), 0);
    let said: Vec<String> =
        (1..=10).filter_map(|n| Registry::builtin().build(&small(n)).err()).map(|e| e.to_string()).collect();
    let nothing = "of the products made up happens to come with a wish; set products to a larger number";
    assert!(said.iter().any(|e| e.contains(nothing)), "{said:?}");
    let elsewhere = |e: &String| e.contains("split in-domain: none of the catalogue's") && e.contains("(train ");
    assert!(said.iter().any(elsewhere), "{said:?}");
    let small = OptionMap::default().with("products", 20).with("split", "reference-train");
    assert!(refusal(small).to_string().contains("option split"));
    let missing = OptionMap::default().with("catalogue", "official").with("data", "/nowhere");
    assert!(refusal(missing).to_string().contains("/nowhere: there is no items_shuffle.json"));
    let env_spec = WebshopSpec;
    let text = "env = \"webshop\"\n[[opponent]]\nname = \"x\"\nkind = \"x\"";
    let crowd = Population::from_toml(text, "p.toml").unwrap();
    assert!(env_spec.check(&crowd).unwrap_err().to_string().contains("no opponents"));
    assert!(env_spec.check(&env_spec.default_population()).is_ok());
    assert_eq!(Split::ALL.len(), env_spec.default_population().splits().count());
}

/// Plays a reference through the environment alone; the compact memory is what it wrote itself.
fn played(name: &str, tasks: u64, episodes: u32, meddled_in: &[u32]) -> Vec<u32> {
    let env_spec = WebshopSpec;
    let population = env_spec.default_population();
    let query = ScriptedAgentQuery { name, population: &population, split: "in-domain", episodes };
    let maker = env_spec.scripted_agent(&query).unwrap();
    let mut won = vec![0; episodes as usize];
    for i in 0..tasks {
        let task = population.draw("in-domain", 1, Seed::new(i)).unwrap();
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
                // Now and then somebody else has a hand in it.
                if meddled_in.contains(&turn) {
                    action = legal[(i as usize + turn as usize) % legal.len()].clone();
                    if action == "BUY" {
                        action = "HOME".to_owned();
                    }
                }
                let action = env.parse(&action);
                let step = env.step(&action);
                assert!(step.valid, "{name} does what is possible");
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
fn the_told_buyer_always_succeeds_and_the_reader_learns_from_failing() {
    assert_eq!(played("told", 150, 1, &[]), [150]);
    // It goes back to what was perfect and tries something else where nothing was.
    let reader = played("reader", 150, 4, &[]);
    assert!(reader[0] > 30 && reader[3] < 150 && reader.is_sorted() && reader[3] > reader[0], "{reader:?}");
}

#[test]
fn the_told_buyer_finds_its_way_back() {
    let bought = played("told", 150, 1, &[1, 3])[0];
    assert!(bought >= 140, "{bought}: what is chosen for it cannot always be mended in twelve turns");
}

#[test]
fn compact_words_are_all_in_the_vocabulary_and_always_as_many() {
    let env_info = WebshopSpec.info();
    let known: BTreeSet<&str> = env_info.compact_words.iter().map(String::as_str).chain(["_"]).collect();
    assert_eq!(known.len(), env_info.compact_words.len() + 1, "no word twice");
    let mut env = shop(OptionMap::default(), 6);
    let mut lengths = BTreeSet::new();
    let mut look = |text: &str| {
        assert!(text.split(' ').all(|w| known.contains(w)), "{text}");
        lengths.insert(text.split(' ').count());
    };
    look(&env.reset(0).compact);
    for action in ["SEARCH", "NEXT", "I3", "FEAT", "PREV", "V2", "BUY"] {
        assert!(env.compact_legal().unwrap().iter().all(|w| known.contains(w.as_str())));
        look(&act(&mut *env, action).observation.compact);
    }
    assert_eq!(lengths.len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn nothing_written_can_break_the_shop(words in prop::collection::vec(prop_oneof![
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
