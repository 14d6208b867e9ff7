//! Conformance of Sokoban with recordings of the reference implementation.

use mage_env::Registry;
use mage_testing::data_path;

pub(crate) fn recorded_rooms_and_steps_are_equal() {
    let golden = data_path("sokoban/reference_rooms.jsonl.gz");
    let registry = Registry::builtin();
    let result = registry.get("sokoban").unwrap().conform(&golden, None).unwrap();
    assert!(result.passed(), "{result:#?}");
    // Counts of the recording, so that a reader that loses rooms or steps fails.
    assert_eq!(result.compared["rooms"], 242);
    assert_eq!(result.compared["first views"], 261);
    assert_eq!(result.compared["shortest solutions"], 261);
    assert!(result.compared["steps"] > 3000, "{result:?}");
    assert_eq!(result.skipped.values().sum::<u64>(), 19);
}
