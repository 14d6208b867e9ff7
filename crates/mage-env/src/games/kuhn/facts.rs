//! Belief updates from factual reflections.
//!
//! A compact reflection ([`facts`]) keeps only the cards and the opponent's decisions. With the seat, it determines the
//! player's observations at each of its decisions, so the belief update equals that from the full hand.

use super::{rules::Kuhn, text::facts};
use crate::{
    CurrentPlayer, Error, Game, Result,
    solvers::{BayesAdaptiveSolver, HistoryTree},
};
use std::{collections::HashMap, sync::OnceLock};

/// The observations of the player in `seat` in the hand described by `text`: at its own decisions and at the end, as
/// [`BayesAdaptiveSolver::update`] takes them.
pub fn observations_from_facts(text: &str, seat: u8) -> Result<&'static [String]> {
    static TABLE: OnceLock<HashMap<(u8, String), Vec<String>>> = OnceLock::new();
    let table = TABLE.get_or_init(all_hands);
    let words: Vec<&str> = text.split_whitespace().collect();
    table.get(&(seat, words.join(" "))).map(Vec::as_slice).ok_or_else(|| {
        Error::invalid(
            "facts about a hand of kuhn",
            format!("`{text}` is not a hand from seat {seat}; expected a form like `K Q open BET _ _`"),
        )
    })
}

/// The belief for the next episode after a hand with these facts, as [`BayesAdaptiveSolver::update`]. `None` if no
/// possible opponent plays like that.
pub fn update_from_facts(bayes: &BayesAdaptiveSolver, belief: &[f64], text: &str) -> Result<Option<Vec<f64>>> {
    let observations = observations_from_facts(text, bayes.seat())?;
    bayes.update(belief, &observations.iter().map(String::as_str).collect::<Vec<_>>())
}

fn all_hands() -> HashMap<(u8, String), Vec<String>> {
    let tree = HistoryTree::new(&Kuhn).expect("Kuhn poker is small");
    let mut table = HashMap::new();
    for seat in 0..2 {
        let mut open = vec![(0, Vec::new())];
        while let Some((id, mut seen)) = open.pop() {
            let node = &tree.nodes()[id];
            if node.current_player == CurrentPlayer::Player(seat) || node.current_player == CurrentPlayer::Terminal {
                seen.push(Kuhn.observe(&node.state, seat));
            }
            if node.current_player == CurrentPlayer::Terminal {
                let facts = facts(&node.state, seat);
                let known = table.entry((seat, facts)).or_insert_with(|| seen.clone());
                debug_assert_eq!(*known, seen, "facts and seat determine the observations");
            }
            open.extend(node.edges.iter().map(|e| (e.child, seen.clone())));
        }
    }
    table
}
