//! Test that the default recipe learns to adapt.

use serde_json::Value;

#[test]
#[cfg_attr(not(feature = "long"), ignore = "trains for minutes; run with --features long --release")]
fn the_default_recipe_learns_to_adapt_to_its_opponents() {
    let dir = tempfile::tempdir().unwrap();
    for seed in ["0", "1"] {
        let run = dir.path().join(seed);
        let mut command = crate::common::command();
        command.args(["train", "--quiet", "--seed", seed, "--out"]).arg(&run);
        assert!(command.status().unwrap().success());
        let result: Value = serde_json::from_slice(&std::fs::read(run.join("result.json")).unwrap()).unwrap();
        let at = |which: &str, episode: usize, field: &str| result[which]["score"][episode][field].as_f64().unwrap();
        // The memoryless optimum; the Bayes-adaptive optimum of the last episode is 0.238.
        let memoryless = 0.125;
        assert!(at("after", 2, "mean") >= 0.19, "{}", result["after"]);
        assert!(at("after", 2, "se") <= 0.005);
        for (which, episode) in [("after", 0), ("without_memory", 0), ("without_memory", 1), ("without_memory", 2)] {
            let limit = memoryless + 3.0 * at(which, episode, "se") + 1e-9;
            assert!(at(which, episode, "mean") <= limit, "{which}, episode {}: {}", episode + 1, result[which]);
        }
    }
}
