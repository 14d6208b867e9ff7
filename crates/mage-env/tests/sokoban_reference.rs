//! Conformance of Sokoban with recordings of the reference implementation.

mod data;

use mage_env::Registry;

#[test]
fn recorded_rooms_and_steps_are_equal() {
    let Some(golden) = data::file("sokoban/reference_rooms.jsonl.gz") else { return };
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
