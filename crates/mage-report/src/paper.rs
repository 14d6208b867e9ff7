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

/// The k of the paper's Pass@k.
pub(super) const K: u32 = 10;

/// A number of the paper's beside Table 1.
pub(super) struct Beside {
    pub(super) panel: &'static str,
    pub(super) method: &'static str,
    /// What was changed, in ablations.
    pub(super) ablation: Option<&'static str>,
    /// Whether draws count as well.
    pub(super) draws: bool,
    /// Within so many episodes.
    pub(super) k: u32,
    pub(super) percent: f64,
}

const fn beside(panel: &'static str, k: u32, percent: f64) -> Beside {
    Beside { panel, method: "MAGE", ablation: None, draws: false, k, percent }
}

/// All of them.
pub(super) const BESIDE: [Beside; 15] = [
    beside("webshop", 1, 66.4),
    beside("webshop", 5, 100.0),
    beside("sokoban", 1, 40.6),
    beside("webshop-held-out", K, 96.1),
    Beside { method: "GiGPO", ..beside("webshop-held-out", K, 68.8) },
    beside("alfworld-unseen", K, 78.9),
    beside("sokoban-1", K, 91.4),
    beside("sokoban-3", K, 46.1),
    Beside { draws: true, ..beside("tictactoe-mcts1000", 1, 81.2) },
    Beside { draws: true, ..beside("tictactoe-mcts1000", K, 100.0) },
    beside("kuhn-cfr", K, 50.8),
    beside("kuhn", 1, 59.4),
    Beside { ablation: Some("local anchors"), ..beside("kuhn", 1, 33.6) },
    Beside { ablation: Some("skewed pool"), ..beside("tictactoe", K, 57.8) },
    Beside { ablation: Some("mixed groups"), ..beside("tictactoe", K, 54.7) },
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
