//! Conformance of WebShop with recordings of the original on the official 1,000 products.
//!
//! The data is not part of the repository: set `MAGE_DATA` to the directory that contains `webshop/`, or put it into `data/`.

use mage_env::{
    Conformance, EnvId, EnvSpec, OptionMap, Registry, Seed, Task,
    webshop::{OfficialFiles, ReadOptions, Shop, WebshopSpec},
};
use mage_testing::data_path;
use std::{collections::BTreeMap, path::Path};

fn replay(folder: &Path, file: &str) -> Conformance {
    let report = WebshopSpec.conform(&folder.join(file), Some(folder)).unwrap();
    assert!(report.passed(), "{report:#?}");
    report
}

pub(crate) fn every_search_returns_the_recorded_fifty_hits_in_order() {
    let folder = data_path("webshop");
    let report = replay(&folder, "search_goldens.jsonl.gz");
    assert_eq!(report.compared["searches, hits in order"], 189);
}

pub(crate) fn every_page_clickable_and_partial_score_equals_the_recording() {
    let folder = data_path("webshop");
    let report = replay(&folder, "episode_goldens.jsonl.gz");
    assert_eq!((report.compared["goals"], report.compared["prices"]), (78, 78));
    assert_eq!(report.compared["clickables"], 868);
    for part in ["attribute scores", "option scores", "price scores", "query matches", "category matches"] {
        assert_eq!(report.compared[part], 58, "{part}");
    }
}

pub(crate) fn the_index_has_the_terms_of_the_original() {
    let folder = data_path("webshop");
    let files = OfficialFiles::in_folder(&folder).unwrap();
    let shop = Shop::new(files.read(ReadOptions { limit: None, skip_duplicates: false }).unwrap()).unwrap();
    assert_eq!((shop.index().len(), shop.index().terms(), shop.index().tokens()), (1000, 12_074, 107_608));
    let few = files.read(ReadOptions { limit: Some(7), skip_duplicates: false }).unwrap();
    assert_eq!(few.products(), &shop.catalogue().products()[..7]);
}

pub(crate) fn goals_and_prices_equal_those_of_the_original_seed() {
    let folder = data_path("webshop");
    let recorded: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("goals_seed0.json")).unwrap()).unwrap();
    let env_spec = WebshopSpec;
    let begin = |goal: u64| {
        let options = OptionMap::default().with("catalogue", "official").with("data", folder.to_str().unwrap());
        let task = Task {
            env: EnvId::new("webshop"),
            options: options.with("goal_index", goal),
            opponent: None,
            seat: 0,
            seed: Seed::new(0),
        };
        env_spec.build(&task).map(|mut env| env.reset(0).text)
    };
    let count = recorded["n_goals"].as_u64().unwrap();
    let first = recorded["first20"].as_array().unwrap().iter().zip(0..);
    let last = recorded["last5"].as_array().unwrap().iter().zip(count - 5..);
    for (goal, index) in first.chain(last) {
        let expected = format!("WebShop [SEP] Instruction: [SEP] {} [SEP] Search", goal[1].as_str().unwrap());
        assert_eq!(begin(index).unwrap(), expected, "goal {index}");
    }
    assert!(begin(count).err().unwrap().to_string().contains("valid indices are 0 to 6909"));
}

pub(crate) fn thirteen_human_instructions_exist_for_these_products() {
    let folder = data_path("webshop");
    let env_spec = Registry::builtin().get("webshop").unwrap().clone();
    let mut texts = std::collections::BTreeSet::new();
    for goal in 0..13 {
        let options = OptionMap::default().with("catalogue", "official").with("data", folder.to_str().unwrap());
        let options = options.with("goals", "human").with("goal_index", goal);
        let task = Task { env: EnvId::new("webshop"), options, opponent: None, seat: 0, seed: Seed::new(0) };
        texts.insert(env_spec.build(&task).unwrap().reset(0).text);
    }
    assert_eq!(texts.len(), 13);
    assert!(texts.iter().any(|t| t.contains("i need a 120 ml hair mask treatment, and price lower than ")));
}

pub(crate) fn official_instructions_are_in_one_split_only() {
    let folder = data_path("webshop");
    for (goals, expected) in [("synthetic", 2000), ("human", 13)] {
        let mut split_of = BTreeMap::new();
        for split in ["train", "in-domain", "out-of-domain"] {
            for seed in 0..4000 {
                let options = OptionMap::default().with("catalogue", "official").with("data", folder.to_str().unwrap());
                let options = options.with("goals", goals).with("split", split);
                let task = Task { env: EnvId::new("webshop"), options, opponent: None, seat: 0, seed: Seed::new(seed) };
                // A split may be empty: there are only 13 human instructions.
                let Ok(mut env) = WebshopSpec.build(&task) else { break };
                let text = env.reset(0).text.to_lowercase();
                let instruction = text.split(", and price lower than").next().unwrap().to_owned();
                let first = *split_of.entry(instruction).or_insert(split);
                assert_eq!(first, split, "{text}");
            }
        }
        assert!(split_of.len() >= expected, "{goals}: {} instructions", split_of.len());
    }
}
