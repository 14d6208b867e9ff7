//! What did the agent want to do in a turn?
//!
//! A turn is a list of moves. Its canonical form is the moves' words with single spaces, one compact word a move.

use super::board::Move;

/// The word for standing still.
pub(super) const STILL: &str = "still";

/// Every word of a turn.
pub(super) const TURN_WORDS: [&str; 5] = ["up", "down", "left", "right", STILL];

/// Lists of more than this many turns are not written out.
const MAX_LISTED: usize = 400;

/// A move, or standing still.
pub(super) type Wish = Option<Move>;

/// Reads a turn, as the reference does: the text is cut at commas, and each piece gives the first of up, down, left,
/// right and still that occurs in it, if any. Text that consists of nothing but these words needs no commas. At most `most`
/// moves count. `None` if there is no move at all.
pub(super) fn read_turn(text: &str, most: usize) -> Option<Vec<Wish>> {
    let text = text.to_lowercase();
    let words: Option<Vec<Wish>> = text.split_whitespace().map(word).collect();
    let mut wishes = match words {
        Some(wishes) => wishes,
        None => text.split(',').filter_map(piece).collect(),
    };
    wishes.truncate(most);
    (!wishes.is_empty()).then_some(wishes)
}

fn word(word: &str) -> Option<Wish> {
    match Move::ALL.into_iter().find(|m| m.word() == word) {
        None if word == STILL => Some(None),
        found => found.map(Some),
    }
}

fn piece(piece: &str) -> Option<Wish> {
    match Move::ALL.into_iter().find(|m| piece.contains(m.word())) {
        None if piece.contains(STILL) => Some(None),
        found => found.map(Some),
    }
}

/// The canonical form of a turn.
pub(super) fn write_turn(wishes: impl IntoIterator<Item = Wish>) -> String {
    let mut out = String::new();
    for wish in wishes {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(wish.map_or(STILL, Move::word));
    }
    out
}

/// All turns of one to `most` moves, the shortest first, unless they are too many.
pub(super) fn all_turns(most: usize) -> Option<Vec<String>> {
    let of = |moves: usize| 4_usize.checked_pow(moves as u32);
    (1..=most).try_fold(0_usize, |sum, moves| sum.checked_add(of(moves)?).filter(|n| *n <= MAX_LISTED))?;
    let digit = |n: usize, moves: usize, place: usize| Some(Move::ALL[n >> (2 * (moves - 1 - place)) & 3]);
    let turn = |n: usize, moves: usize| write_turn((0..moves).map(|place| digit(n, moves, place)));
    Some((1..=most).flat_map(|moves| (0..1 << (2 * moves)).map(move |n| turn(n, moves))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> String {
        read_turn(text, 3).map_or("nothing".to_owned(), write_turn)
    }

    #[test]
    fn turns_are_read_as_in_the_reference() {
        assert_eq!(read("up, left, DOWN"), "up left down");
        assert_eq!(read("Right"), "right");
        assert_eq!(read("[\"up\", \"right\"]"), "up right");
        assert_eq!(read("up,left,down,right"), "up left down", "three moves a turn");
        assert_eq!(read("go left then up"), "up", "one piece, and up is looked for first");
        assert_eq!(read("jump, still, left"), "still left", "pieces without a move are passed over");
        assert_eq!(read("north"), "nothing");
        assert_eq!(read(""), "nothing");
        assert_eq!(read("up left down"), "up left down", "words alone need no commas");
    }

    #[test]
    fn every_word_makes_a_turn() {
        assert!(TURN_WORDS.iter().all(|w| read(w) == *w));
        assert_eq!(TURN_WORDS[..4], Move::ALL.map(Move::word));
    }

    #[test]
    fn all_turns_are_listed_and_readable() {
        let turns = all_turns(3).unwrap();
        assert_eq!(turns.len(), 84);
        assert_eq!([&turns[0], &turns[4], &turns[83]], ["up", "up up", "right right right"]);
        assert!(turns.iter().all(|t| read(t) == *t));
        assert_eq!(turns.iter().collect::<std::collections::BTreeSet<_>>().len(), 84);
        assert!(all_turns(5).is_none() && all_turns(100).is_none());
    }

    proptest! {
        #[test]
        fn reading_never_panics_and_is_settled_after_once(text in any::<String>()) {
            let once = read(&text);
            if once != "nothing" {
                prop_assert_eq!(read(&once), once);
            }
        }
    }
}
