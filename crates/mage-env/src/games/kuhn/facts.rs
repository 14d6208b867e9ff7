//! What does a factual reflection tell about the opponent?
//!
//! A compact reflection ([`facts`]) keeps only the cards and the opponent's decisions. Together with the seat that is
//! enough to say what the player saw at each of its decisions, and hence to update a belief exactly as if the hand had
//! been watched.

use super::{rules::Kuhn, text::facts};
use crate::{
    CurrentPlayer, Error, Game, Result,
    solvers::{BayesAdaptiveSolver, HistoryTree},
};
use std::{collections::HashMap, sync::OnceLock};

/// What the player in `seat` saw in the hand that these facts are about: its observations at its own decisions and at the
/// end, as [`BayesAdaptiveSolver::update`] takes them.
pub fn observations_from_facts(text: &str, seat: u8) -> Result<&'static [String]> {
    static TABLE: OnceLock<HashMap<(u8, String), Vec<String>>> = OnceLock::new();
    let table = TABLE.get_or_init(all_hands);
    let words: Vec<&str> = text.split_whitespace().collect();
    table.get(&(seat, words.join(" "))).map(Vec::as_slice).ok_or_else(|| {
        Error::invalid(
            "facts about a hand of kuhn",
            format!("`{text}` describes no hand from seat {seat}; a hand reads like `K Q open BET _ _`"),
        )
    })
}

/// The belief for the next episode after a hand with these facts, as [`BayesAdaptiveSolver::update`]; `None` where nobody believed
/// possible plays like that.
pub fn update_from_facts(bayes: &BayesAdaptiveSolver, belief: &[f64], text: &str) -> Result<Option<Vec<f64>>> {
    bayes.update(belief, &borrowed(observations_from_facts(text, bayes.seat())?))
}

/// How likely a hand with these facts is under each type, given the player's own actions, as [`BayesAdaptiveSolver::likelihood`].
pub fn likelihood_from_facts(bayes: &BayesAdaptiveSolver, text: &str) -> Result<Vec<f64>> {
    bayes.likelihood(&borrowed(observations_from_facts(text, bayes.seat())?))
}

fn borrowed(seen: &[String]) -> Vec<&str> {
    seen.iter().map(String::as_str).collect()
}

fn all_hands() -> HashMap<(u8, String), Vec<String>> {
    let tree = HistoryTree::new(&Kuhn).expect("Kuhn poker is small");
    let mut table = HashMap::new();
    for seat in 0..2 {
        let mut open = vec![(0, Vec::new())];
        while let Some((id, mut seen)) = open.pop() {
            let node = &tree.nodes()[id];
            if node.turn == CurrentPlayer::Player(seat) || node.turn == CurrentPlayer::Terminal {
                seen.push(Kuhn.observe(&node.state, seat));
            }
            if node.turn == CurrentPlayer::Terminal {
                let told = facts(&node.state, seat);
                let known = table.entry((seat, told)).or_insert_with(|| seen.clone());
                debug_assert_eq!(*known, seen, "facts and seat decide what was seen");
            }
            open.extend(node.edges.iter().map(|e| (e.child, seen.clone())));
        }
    }
    table
}
