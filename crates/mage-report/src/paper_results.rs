//! Results that the paper reports.
//!
//! arXiv 2603.03680, Table 1 and the text: rates over 128 evaluation tasks of one run each, with Qwen3-4B.

/// Environments of Table 1: name of the task set, column header.
pub(super) const ENVS: [(&str, &str); 5] = [
    ("kuhn", "Kuhn"),
    ("tictactoe", "Tic-Tac-Toe"),
    ("alfworld", "ALFWorld"),
    ("sokoban", "Sokoban"),
    ("webshop", "WebShop"),
];

/// Table 1: number of tasks won within ten episodes, out of 128, in the order of [`ENVS`].
pub(super) const TABLE: [(&str, [u32; 5]); 8] = [
    ("ReAct", [83, 5, 30, 49, 5]),
    ("Reflexion", [83, 31, 50, 56, 5]),
    ("A-MEM", [82, 2, 48, 47, 0]),
    ("Memento", [82, 4, 43, 43, 0]),
    ("GRPO", [83, 28, 107, 77, 91]),
    ("GiGPO", [84, 53, 113, 92, 102]),
    ("LaMer", [76, 77, 115, 88, 90]),
    ("MAGE", [84, 86, 117, 99, 128]),
];

/// Number of tasks of each cell of Table 1.
pub(super) const TASKS: u32 = 128;

/// k of Pass@k in Table 1.
pub(super) const K: u32 = 10;

/// A result that the paper reports outside Table 1.
pub(super) struct PaperResult {
    pub(super) task_set: &'static str,
    pub(super) method: &'static str,
    /// Deviation from the method, in ablations.
    pub(super) ablation: Option<&'static str>,
    /// Whether draws count as successes.
    pub(super) draws: bool,
    /// Number of episodes.
    pub(super) k: u32,
    pub(super) percent: f64,
}

const fn mage(task_set: &'static str, k: u32, percent: f64) -> PaperResult {
    PaperResult { task_set, method: "MAGE", ablation: None, draws: false, k, percent }
}

/// The paper's results outside Table 1.
pub(super) const OTHER_RESULTS: [PaperResult; 15] = [
    mage("webshop", 1, 66.4),
    mage("webshop", 5, 100.0),
    mage("sokoban", 1, 40.6),
    mage("webshop-held-out", K, 96.1),
    PaperResult { method: "GiGPO", ..mage("webshop-held-out", K, 68.8) },
    mage("alfworld-unseen", K, 78.9),
    mage("sokoban-1", K, 91.4),
    mage("sokoban-3", K, 46.1),
    PaperResult { draws: true, ..mage("tictactoe-mcts1000", 1, 81.2) },
    PaperResult { draws: true, ..mage("tictactoe-mcts1000", K, 100.0) },
    mage("kuhn-cfr", K, 50.8),
    mage("kuhn", 1, 59.4),
    PaperResult { ablation: Some("local anchors"), ..mage("kuhn", 1, 33.6) },
    PaperResult { ablation: Some("skewed pool"), ..mage("tictactoe", K, 57.8) },
    PaperResult { ablation: Some("mixed groups"), ..mage("tictactoe", K, 54.7) },
];

/// The paper's spelling of a method, ignoring case and separators.
pub(super) fn canonical_name(method: &str) -> Option<&'static str> {
    let plain = |name: &str| name.to_lowercase().replace(['-', '_', ' '], "");
    TABLE.iter().map(|(name, _)| *name).find(|name| plain(name) == plain(method))
}

/// Pass@10 of a method in Table 1.
pub(super) fn pass_rate(method: &str, env: &str) -> Option<f64> {
    let column = ENVS.iter().position(|(name, _)| *name == env)?;
    let (_, won) = TABLE.iter().find(|(name, _)| *name == method)?;
    Some(f64::from(won[column]) / f64::from(TASKS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn method_names_match_ignoring_case_and_separators() {
        assert_eq!(canonical_name("a_mem"), Some("A-MEM"));
        assert_eq!(canonical_name("gigpo"), Some("GiGPO"));
        assert_eq!(canonical_name("bayes"), None);
        assert_eq!(pass_rate("MAGE", "webshop"), Some(1.0));
        assert_eq!(pass_rate("MAGE", "kuhn"), Some(0.65625));
        assert_eq!(pass_rate("bayes", "kuhn"), None);
    }
}
