//! Golden prompts of the default templates. After an intended change: `UPDATE_EXPECT=1 cargo test -p mage-core --test
//! integration default`, and review the diff.

use crate::common::{drive, kuhn_task, transcript};
use expect_test::expect_file;
use mage_core::{
    EpisodeConfig, MetaEpisode, RequestKind,
    prompt::{PromptLibrary, PromptSource},
};
use mage_env::{Registry, Seed};
use std::sync::Arc;

#[test]
fn default_prompts_contain_rules_memory_turns_and_legal_actions() {
    let mut library = PromptLibrary::builtin();
    library.add("kuhn", PromptSource::from_rules("Rules of a game, for seat {{ seat }}.\n"));
    library.add_default("kuhn", "These rules are not used.");
    let task = kuhn_task("aggressive", 1);
    let env = Registry::builtin().build(&task).unwrap();
    let config = Arc::new(EpisodeConfig { episodes: 2, ..EpisodeConfig::default() });
    let meta = MetaEpisode::new(task, env, library.get("kuhn").unwrap(), config, Seed::new(5)).unwrap();
    let mut plays = 0;
    let trajectory = drive(meta, |request| match request.body.kind {
        RequestKind::Play => {
            plays += 1;
            if plays == 1 { "I cannot say.".to_owned() } else { "<action>PASS</action>".to_owned() }
        }
        _ => format!("<remark>Note {} on the opponent.</remark>", request.episode),
    });
    let golden = format!("{}/tests/golden/default/full_reflection_only.txt", env!("CARGO_MANIFEST_DIR"));
    expect_file![golden].assert_eq(&transcript(&trajectory));
}
