//! Fuzz target: parsing a completion never panics and returns only text that the completion contains.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mage_core::{
    parse::{last_tag, truncate},
    prompt::PromptForm,
    read_reflection,
};
use mage_env::{Registry, Seed};

fuzz_target!(|text: &str| {
    for tag in ["action", "remark"] {
        if let Ok(found) = last_tag(text, tag) {
            assert!(!found.is_empty() && text.contains(found));
            assert!(!found.contains(&format!("</{tag}>")));
        }
    }
    assert!(truncate(text, 20).chars().count() <= 20);
    let _ = read_reflection(text, PromptForm::Full);
    let _ = read_reflection(text, PromptForm::Compact);

    let registry = Registry::builtin();
    for env_spec in registry.iter() {
        let task = env_spec.default_population().sample_task("train", env_spec.info().seats, Seed::new(1)).unwrap();
        let mut env = env_spec.build(&task).unwrap();
        env.reset(0);
        let step = env.step(&env.parse(text));
        assert!(step.reward.is_finite());
    }
});
