//! The rules of Kuhn poker.

use crate::{ActionId, ActionList, CurrentPlayer, Game, MAX_PLAYERS, Rng};
use smallvec::smallvec;

/// Pass: check, or fold when facing a bet.
pub const PASS: ActionId = ActionId(0);
/// Bet: bet one chip, or call when facing a bet.
pub const BET: ActionId = ActionId(1);

/// One of the three cards, by rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Card(pub u8);

impl Card {
    /// All of them, lowest first.
    pub const ALL: [Card; 3] = [Card(0), Card(1), Card(2)];

    /// `J`, `Q` or `K`.
    pub fn letter(self) -> char {
        ['J', 'Q', 'K'][usize::from(self.0)]
    }

    /// Jack, Queen or King.
    pub fn name(self) -> &'static str {
        ["Jack", "Queen", "King"][usize::from(self.0)]
    }
}

/// Kuhn poker for two.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kuhn;

/// A hand in progress: both cards and the betting so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Hand {
    cards: [Option<Card>; 2],
    /// Bit `i` is set when the `i`-th decision was a bet.
    bets: u8,
    decisions: u8,
}

impl Hand {
    /// A dealt hand before any action.
    pub fn dealt(first: Card, second: Card) -> Self {
        Hand { cards: [Some(first), Some(second)], ..Hand::default() }
    }

    /// The card in a seat, once dealt.
    pub fn card(&self, seat: u8) -> Option<Card> {
        self.cards[usize::from(seat)]
    }

    /// The betting so far.
    pub fn actions(&self) -> impl Iterator<Item = ActionId> + '_ {
        (0..self.decisions).map(|i| ActionId(u16::from(self.bets >> i & 1)))
    }

    /// Whether the player to move faces a bet.
    pub fn facing_bet(&self) -> bool {
        self.decisions > 0 && self.bets >> (self.decisions - 1) & 1 == 1
    }

    /// Whether the cards are shown: the hand is over without a fold.
    pub fn showdown(&self) -> bool {
        matches!((self.decisions, self.bets), (2, 0b00 | 0b11) | (3, 0b110))
    }

    /// Whether the hand is over.
    pub fn over(&self) -> bool {
        match self.decisions {
            0 | 1 => false,
            2 => self.bets != 0b10, // after pass-bet, seat 0 acts again
            _ => true,
        }
    }
}

impl Game for Kuhn {
    type State = Hand;

    fn players(&self) -> u8 {
        2
    }

    fn initial(&self, _rng: &mut Rng) -> Hand {
        Hand::default()
    }

    fn current_player(&self, s: &Hand) -> CurrentPlayer {
        if s.cards[1].is_none() {
            CurrentPlayer::Chance
        } else if s.over() {
            CurrentPlayer::Terminal
        } else {
            CurrentPlayer::Player(s.decisions % 2)
        }
    }

    fn legal(&self, s: &Hand) -> ActionList {
        match self.current_player(s) {
            CurrentPlayer::Terminal => smallvec![],
            CurrentPlayer::Player(_) => smallvec![PASS, BET],
            CurrentPlayer::Chance => {
                let undealt = Card::ALL.into_iter().filter(|c| s.cards[0] != Some(*c));
                undealt.map(|c| ActionId(u16::from(c.0))).collect()
            }
        }
    }

    fn apply(&self, s: &mut Hand, a: ActionId) {
        if s.cards[1].is_none() {
            let seat = usize::from(s.cards[0].is_some());
            s.cards[seat] = Some(Card(a.0 as u8));
        } else {
            s.bets |= (a.0 as u8) << s.decisions;
            s.decisions += 1;
        }
    }

    fn returns(&self, s: &Hand) -> [f32; MAX_PLAYERS] {
        let mut out = [0.0; MAX_PLAYERS];
        if !s.over() {
            return out;
        }
        let first_has_more = s.cards[0] > s.cards[1];
        let first = match (s.decisions, s.bets) {
            (2, 0b01) => 1.0,   // bet, fold
            (3, 0b010) => -1.0, // pass, bet, fold
            (_, bets) => {
                let stake = if bets == 0 { 1.0 } else { 2.0 };
                if first_has_more { stake } else { -stake }
            }
        };
        out[0] = first;
        out[1] = -first;
        out
    }

    /// Own card and betting history (`Qpb`); after a showdown also the opponent's card (`Qpbb/K`).
    fn observe(&self, s: &Hand, player: u8) -> String {
        let mut text = String::with_capacity(6);
        text.push(s.card(player).map_or('-', Card::letter));
        text.extend(s.actions().map(|a| if a == BET { 'b' } else { 'p' }));
        if let (true, Some(other)) = (s.showdown(), s.card(1 - player)) {
            text.push('/');
            text.push(other.letter());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Seed;

    fn play(first: u8, second: u8, line: &str) -> Hand {
        let mut hand = Hand::dealt(Card(first), Card(second));
        for c in line.chars() {
            assert!(!hand.over());
            Kuhn.apply(&mut hand, if c == 'b' { BET } else { PASS });
        }
        hand
    }

    #[test]
    fn returns_match_the_rules() {
        for (line, high_card_first) in [("pp", 1.0), ("bp", 1.0), ("pbp", -1.0), ("bb", 2.0), ("pbb", 2.0)] {
            let hand = play(2, 0, line);
            assert!(hand.over());
            assert_eq!(Kuhn.returns(&hand)[0], high_card_first, "{line}");
            assert_eq!(Kuhn.returns(&hand)[1], -high_card_first, "{line}");
        }
        assert_eq!(Kuhn.returns(&play(0, 1, "pbb"))[0], -2.0);
        assert_eq!(Kuhn.returns(&play(0, 1, "bp"))[0], 1.0);
    }

    #[test]
    fn folded_hand_never_shows_the_opponents_card() {
        for line in ["bp", "pbp", "", "p", "b", "pb"] {
            for other in [0, 2] {
                assert_eq!(Kuhn.observe(&play(1, other, line), 0), format!("Q{line}"));
            }
        }
        assert_eq!(Kuhn.observe(&play(1, 2, "pbb"), 0), "Qpbb/K");
        assert_eq!(Kuhn.observe(&play(1, 2, "pp"), 1), "Kpp/Q");
    }

    #[test]
    fn game_tree_has_58_nodes_of_which_30_are_terminal() {
        fn count(s: &Hand) -> (u32, u32) {
            let children = Kuhn.legal(s);
            let (mut all, mut over) = (1, u32::from(children.is_empty()));
            for a in children {
                let mut next = *s;
                Kuhn.apply(&mut next, a);
                let (n, o) = count(&next);
                all += n;
                over += o;
            }
            (all, over)
        }
        assert_eq!(count(&Kuhn.initial(&mut Seed::new(0).rng())), (58, 30));
    }
}
