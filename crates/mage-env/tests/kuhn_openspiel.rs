//! Comparison of Kuhn poker's rules and CFR with OpenSpiel: all 58 histories, and average policies after up to 1000
//! iterations.

use mage_env::{
    CurrentPlayer, Game,
    kuhn::Kuhn,
    solvers::{Cfr, HistoryTree, expected_returns, exploitability},
};
use mage_testing::data_path;
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Golden {
    nodes: Vec<GoldenNode>,
    cfr: BTreeMap<String, GoldenCfr>,
}

#[derive(Deserialize)]
struct GoldenNode {
    history: Vec<u16>,
    terminal: bool,
    chance: Option<bool>,
    player: Option<i32>,
    legal: Option<Vec<u16>>,
    info: Option<String>,
    returns: Option<Vec<f64>>,
    info0: Option<String>,
    info1: Option<String>,
}

#[derive(Deserialize)]
struct GoldenCfr {
    avg_policy_pass_bet: BTreeMap<String, [f64; 2]>,
    exploitability: f64,
    value_p0: f64,
}

fn golden() -> Golden {
    let text = std::fs::read_to_string(data_path("games/kuhn_openspiel.json")).expect("the golden file is readable");
    serde_json::from_str(&text).expect("the golden file reads")
}

/// Converts our `Qpb` to OpenSpiel's `1pb`, which omits the cards of a showdown.
fn openspiel_info_state(ours: &str) -> String {
    let line = ours.split('/').next().unwrap_or_default();
    line.replace('J', "0").replace('Q', "1").replace('K', "2")
}

pub(crate) fn all_58_histories_match_openspiel() {
    let golden = golden();
    let tree = HistoryTree::new(&Kuhn).unwrap();
    assert_eq!(golden.nodes.len(), 58);
    assert_eq!(tree.nodes().len(), 58);
    for node in &golden.nodes {
        let id = node.history.iter().fold(0, |id, action| {
            let edge = tree.nodes()[id].edges.iter().find(|e| e.action.0 == *action);
            edge.unwrap_or_else(|| panic!("{:?} is a history", node.history)).child
        });
        let ours = &tree.nodes()[id];
        let legal: Vec<u16> = Kuhn.legal(&ours.state).iter().map(|a| a.0).collect();
        assert_eq!(node.terminal, ours.current_player == CurrentPlayer::Terminal, "{:?}", node.history);
        if node.terminal {
            let returns = node.returns.as_ref().unwrap();
            assert_eq!(returns[..], ours.returns[..2], "{:?}", node.history);
            for (seat, theirs) in [(0, &node.info0), (1, &node.info1)] {
                assert_eq!(openspiel_info_state(&Kuhn.observe(&ours.state, seat)), *theirs.as_ref().unwrap());
            }
            assert!(legal.is_empty());
            continue;
        }
        assert_eq!(legal, *node.legal.as_ref().unwrap(), "{:?}", node.history);
        match ours.current_player {
            CurrentPlayer::Chance => {
                assert_eq!(node.chance, Some(true));
                let uniform = 1.0 / legal.len() as f64;
                assert!(ours.edges.iter().all(|e| e.probability == Some(uniform)));
            }
            CurrentPlayer::Player(p) => {
                assert_eq!(node.player, Some(i32::from(p)));
                assert_eq!(openspiel_info_state(&Kuhn.observe(&ours.state, p)), *node.info.as_ref().unwrap());
            }
            CurrentPlayer::Terminal => unreachable!(),
        }
    }
}

pub(crate) fn cfr_matches_openspiel() {
    let golden = golden();
    let tree = HistoryTree::new(&Kuhn).unwrap();
    let mut checkpoints: Vec<(u32, &GoldenCfr)> = golden.cfr.iter().map(|(n, g)| (n.parse().unwrap(), g)).collect();
    checkpoints.sort_by_key(|(n, _)| *n);
    assert_eq!(checkpoints.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [1, 2, 5, 10, 100, 1000]);
    let mut cfr = Cfr::new(&tree);
    let mut done = 0;
    for (iterations, theirs) in checkpoints {
        cfr.run(iterations - done);
        done = iterations;
        let policy = cfr.average_policy();
        assert_eq!(policy.iter().count(), theirs.avg_policy_pass_bet.len());
        for (_, text, probs) in policy.iter() {
            let expected = theirs.avg_policy_pass_bet[&openspiel_info_state(text)];
            for (i, (_, p)) in probs.iter().enumerate() {
                assert!((p - expected[i]).abs() < 1e-6, "{iterations} iterations, {text}: {p} is not {}", expected[i]);
            }
        }
        let ours = exploitability(&Kuhn, &tree, &policy).unwrap();
        assert!((ours - theirs.exploitability).abs() < 1e-6, "{iterations}: {ours}");
        let value = expected_returns(&Kuhn, &tree, &policy).unwrap();
        assert!((value[0] - theirs.value_p0).abs() < 1e-6, "{iterations}: {}", value[0]);
        assert!((value[0] + value[1]).abs() < 1e-12);
    }
}
