//! CFR on Kuhn poker: the value of the game, and low exploitability of the average policy.

use mage_env::{
    kuhn::Kuhn,
    solvers::{Cfr, HistoryTree, TabularPolicy, expected_returns, exploitability},
};

#[test]
fn cfr_approaches_the_value_of_the_game() {
    let tree = HistoryTree::new(&Kuhn).unwrap();
    let mut cfr = Cfr::new(&tree);
    let mut last = f64::INFINITY;
    for _ in 0..3 {
        cfr.run(2000);
        let policy: TabularPolicy = cfr.average_policy();
        let gap = exploitability(&Kuhn, &tree, &policy).unwrap();
        assert!(gap > 0.0 && gap < last);
        last = gap;
        assert!((expected_returns(&Kuhn, &tree, &policy).unwrap()[0] + 1.0 / 18.0).abs() < gap);
    }
    assert!(last < 5e-4);
}
