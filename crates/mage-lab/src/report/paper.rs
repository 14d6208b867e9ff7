//! What did the paper report?
//!
//! arXiv 2603.03680, Table 1 and the numbers in its text: shares of 128 evaluation tasks of one run each, Qwen3-4B.

/// Environments of Table 1: what panels are called here, what tables call them.
pub(super) const ENVS: [(&str, &str); 5] = [
    ("kuhn", "Kuhn"),
    ("tictactoe", "Tic-Tac-Toe"),
    ("alfworld", "ALFWorld"),
    ("sokoban", "Sokoban"),
    ("webshop", "WebShop"),
];

/// Table 1: tasks won within ten episodes, of 128, in the order of [`ENVS`].
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

/// How many tasks the paper's shares are of.
pub(super) const TASKS: u32 = 128;

/// Numbers of MAGE beside Table 1: panel, what is counted, percent.
pub(super) const BESIDE: [(&str, &str, &str); 12] = [
    ("webshop", "Pass@1", "66.4"),
    ("webshop", "Pass@5", "100.0"),
    ("sokoban", "Pass@1", "40.6"),
    ("webshop-held-out", "Pass@10 (GiGPO 68.8)", "96.1"),
    ("alfworld-unseen", "Pass@10", "78.9"),
    ("sokoban-1", "Pass@10", "91.4"),
    ("sokoban-3", "Pass@10", "46.1"),
    ("tictactoe-mcts1000", "draw or win within 1", "81.2"),
    ("tictactoe-mcts1000", "draw or win within 10", "100.0"),
    ("kuhn-cfr", "Pass@10", "50.8"),
    ("kuhn, local anchors", "Pass@1 (global 59.4)", "33.6"),
    ("tictactoe, skewed pool / mixed groups", "Pass@10 (balanced 67.2)", "57.8 / 54.7"),
];

/// How tables write a method that the paper has.
pub(super) fn spelling(method: &str) -> Option<&'static str> {
    let plain = |name: &str| name.to_lowercase().replace(['-', '_', ' '], "");
    TABLE.iter().map(|(name, _)| *name).find(|name| plain(name) == plain(method))
}

/// The paper's share for a method in an environment.
pub(super) fn share(method: &str, env: &str) -> Option<f64> {
    let column = ENVS.iter().position(|(name, _)| *name == env)?;
    let (_, won) = TABLE.iter().find(|(name, _)| *name == method)?;
    Some(f64::from(won[column]) / f64::from(TASKS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_however_they_are_written() {
        assert_eq!(spelling("a_mem"), Some("A-MEM"));
        assert_eq!(spelling("gigpo"), Some("GiGPO"));
        assert_eq!(spelling("bayes"), None);
        assert_eq!(share("MAGE", "webshop"), Some(1.0));
        assert_eq!(share("MAGE", "kuhn"), Some(0.65625));
        assert_eq!(share("bayes", "kuhn"), None);
    }
}
