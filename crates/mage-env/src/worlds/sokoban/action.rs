//! Parsing and formatting of actions.
//!
//! An action is a list of moves. Its canonical form is the moves' words separated by single spaces, one compact word per
//! move.

use super::board::Move;

/// The no-op word.
pub(super) const STILL: &str = "still";

/// Every word of an action.
pub(super) const ACTION_WORDS: [&str; 5] = ["up", "down", "left", "right", STILL];

/// Actions are not enumerated if there are more than this.
const MAX_LISTED: usize = 400;

/// A move, or `None` for a no-op.
pub(super) type MoveOrNoop = Option<Move>;

/// Parses an action as the reference does: the text is split at commas, and each piece yields the first of up, down, left,
/// right and still that occurs in it, if any. Text that consists only of these words needs no commas. At most `max_moves`
/// moves count. `None` if there is no move.
pub(super) fn parse_action(text: &str, max_moves: usize) -> Option<Vec<MoveOrNoop>> {
    let text = text.to_lowercase();
    let words: Option<Vec<MoveOrNoop>> = text.split_whitespace().map(word).collect();
    let mut moves = match words {
        Some(moves) => moves,
        None => text.split(',').filter_map(piece).collect(),
    };
    moves.truncate(max_moves);
    (!moves.is_empty()).then_some(moves)
}

fn word(word: &str) -> Option<MoveOrNoop> {
    match Move::ALL.into_iter().find(|m| m.word() == word) {
        None if word == STILL => Some(None),
        found => found.map(Some),
    }
}

fn piece(piece: &str) -> Option<MoveOrNoop> {
    match Move::ALL.into_iter().find(|m| piece.contains(m.word())) {
        None if piece.contains(STILL) => Some(None),
        found => found.map(Some),
    }
}

/// The canonical form of an action.
pub(super) fn format_action(moves: impl IntoIterator<Item = MoveOrNoop>) -> String {
    let mut out = String::new();
    for direction in moves {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(direction.map_or(STILL, Move::word));
    }
    out
}

/// All actions of one to `max_moves` moves, shortest first; `None` if there are too many.
pub(super) fn all_actions(max_moves: usize) -> Option<Vec<String>> {
    let count = |moves: usize| 4_usize.checked_pow(moves as u32);
    (1..=max_moves).try_fold(0_usize, |sum, moves| sum.checked_add(count(moves)?).filter(|n| *n <= MAX_LISTED))?;
    let digit = |n: usize, moves: usize, i: usize| Some(Move::ALL[n >> (2 * (moves - 1 - i)) & 3]);
    let action = |n: usize, moves: usize| format_action((0..moves).map(|i| digit(n, moves, i)));
    Some((1..=max_moves).flat_map(|moves| (0..1 << (2 * moves)).map(move |n| action(n, moves))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> String {
        parse_action(text, 3).map_or("nothing".to_owned(), format_action)
    }

    #[test]
    fn actions_are_parsed_as_in_the_reference() {
        assert_eq!(read("up, left, DOWN"), "up left down");
        assert_eq!(read("Right"), "right");
        assert_eq!(read("[\"up\", \"right\"]"), "up right");
        assert_eq!(read("up,left,down,right"), "up left down", "three moves per action");
        assert_eq!(read("go left then up"), "up", "one piece, and up is searched for first");
        assert_eq!(read("jump, still, left"), "still left", "pieces without a move are skipped");
        assert_eq!(read("north"), "nothing");
        assert_eq!(read(""), "nothing");
        assert_eq!(read("up left down"), "up left down", "bare words need no commas");
    }

    #[test]
    fn every_word_is_an_action() {
        assert!(ACTION_WORDS.iter().all(|w| read(w) == *w));
        assert_eq!(ACTION_WORDS[..4], Move::ALL.map(Move::word));
    }

    #[test]
    fn enumerated_actions_parse_back() {
        let actions = all_actions(3).unwrap();
        assert_eq!(actions.len(), 84);
        assert_eq!([&actions[0], &actions[4], &actions[83]], ["up", "up up", "right right right"]);
        assert!(actions.iter().all(|a| read(a) == *a));
        assert_eq!(actions.iter().collect::<std::collections::BTreeSet<_>>().len(), 84);
        assert!(all_actions(5).is_none() && all_actions(100).is_none());
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_is_idempotent(text in any::<String>()) {
            let once = read(&text);
            if once != "nothing" {
                prop_assert_eq!(read(&once), once);
            }
        }
    }
}
