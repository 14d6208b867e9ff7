//! Text of Kuhn poker: sentences for language models and people, compact words for small models.

use super::rules::{BET, Card, Hand, Kuhn, PASS};
use crate::{ActionId, Game, Observation, TextGame};

/// Words of a factual compact reflection: own card, shown card, and two (situation, action) pairs of the opponent.
const REFLECTION_WORDS: usize = 6;

/// Every word of the compact form.
pub(super) fn compact_words() -> Vec<String> {
    ["first", "second", "J", "Q", "K", "PASS", "BET", "open", "facing"].map(str::to_owned).to_vec()
}

impl TextGame for Kuhn {
    fn describe(&self, s: &Hand, player: u8) -> Observation {
        Observation { text: sentences(s, player), compact: compact(s, player) }
    }

    fn action_name(&self, a: ActionId) -> String {
        (if a == BET { "BET" } else { "PASS" }).to_owned()
    }

    /// Own card, the shown card or `?`, and for each of the opponent's decisions whether it faced a bet and its action.
    fn facts(&self, s: &Hand, player: u8) -> String {
        let mut words = vec![letter(s.card(player)), shown(s, player)];
        let mut facing = false;
        for (i, a) in s.actions().enumerate() {
            if i as u8 % 2 != player {
                words.push(if facing { "facing" } else { "open" }.to_owned());
                words.push(self.action_name(a));
            }
            facing = a == BET;
        }
        words.resize(REFLECTION_WORDS, "_".to_owned());
        words.join(" ")
    }

    fn render(&self, s: &Hand, player: u8) -> Option<String> {
        let other = if s.showdown() { s.card(1 - player) } else { None };
        let (own, other) = (letter(s.card(player)), letter(other));
        let pot = 2 + s.actions().filter(|a| *a == BET).count();
        Some(format!(
            "  ┌───┐  ┌───┐\n  │ {own} │  │ {other} │   pot {}\n  └───┘  └───┘\n   you   opponent\n\n{}",
            "●".repeat(pot),
            sentences(s, player)
        ))
    }

    fn read_action(&self, _s: &Hand, text: &str) -> Result<ActionId, String> {
        match text.trim() {
            t if t.eq_ignore_ascii_case("BET") => Ok(BET),
            t if t.eq_ignore_ascii_case("PASS") => Ok(PASS),
            "" => Err("the answer names no action; write PASS or BET".to_owned()),
            _ => Err("only PASS and BET are actions".to_owned()),
        }
    }
}

fn card_name(card: Option<Card>) -> &'static str {
    card.map_or("not dealt yet", Card::name)
}

fn sentences(s: &Hand, player: u8) -> String {
    let mut text = format!("Your card: {}.", card_name(s.card(player)));
    let mut acted = false;
    for (i, a) in s.actions().enumerate() {
        text.push_str(if acted { ", " } else { " So far: " });
        text.push_str(if i as u8 % 2 == player { "you " } else { "the opponent " });
        text.push_str(if a == BET { "BET" } else { "PASS" });
        acted = true;
    }
    text.push_str(if acted { "." } else { " Nobody has acted yet." });
    if s.over() {
        if s.showdown() {
            text.push_str(&format!(" Showdown: the opponent holds the {}.", card_name(s.card(1 - player))));
        } else {
            let folder = (s.actions().count() as u8 - 1) % 2;
            let who = if folder == player { "You fold" } else { "The opponent folds" };
            text.push_str(&format!(" {who}; the opponent's card stays hidden."));
        }
        let chips = Kuhn.returns(s)[usize::from(player)];
        let (verb, n) = if chips > 0.0 { ("win", chips) } else { ("lose", -chips) };
        text.push_str(&format!(" You {verb} {n} {}.", if n == 1.0 { "chip" } else { "chips" }));
    }
    text
}

/// While playing: seat, card, two action slots. At the end: seat, card, three action slots, the shown card or `?`.
fn compact(s: &Hand, player: u8) -> String {
    let mut words = vec![if player == 0 { "first" } else { "second" }.to_owned()];
    words.push(letter(s.card(player)));
    let slots = if s.over() { 3 } else { 2 };
    let mut actions = s.actions().map(|a| Kuhn.action_name(a));
    words.extend((0..slots).map(|_| actions.next().unwrap_or_else(|| "_".to_owned())));
    if s.over() {
        words.push(shown(s, player));
    }
    words.join(" ")
}

fn letter(card: Option<Card>) -> String {
    card.map_or_else(|| "?".to_owned(), |c| c.letter().to_string())
}

fn shown(s: &Hand, player: u8) -> String {
    if s.showdown() { letter(s.card(1 - player)) } else { "?".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn play(first: u8, second: u8, line: &str) -> Hand {
        let mut hand = Hand::dealt(Card(first), Card(second));
        line.chars().for_each(|c| Kuhn.apply(&mut hand, if c == 'b' { BET } else { PASS }));
        hand
    }

    #[test]
    fn sentences_contain_what_the_player_observed() {
        let text = |first, second, line, player| Kuhn.describe(&play(first, second, line), player).text;
        assert_eq!(text(2, 0, "", 0), "Your card: King. Nobody has acted yet.");
        assert_eq!(text(2, 1, "p", 1), "Your card: Queen. So far: the opponent PASS.");
        assert_eq!(
            text(1, 2, "pbb", 0),
            "Your card: Queen. So far: you PASS, the opponent BET, you BET. \
             Showdown: the opponent holds the King. You lose 2 chips."
        );
        assert_eq!(
            text(1, 2, "bp", 0),
            "Your card: Queen. So far: you BET, the opponent PASS. \
             The opponent folds; the opponent's card stays hidden. You win 1 chip."
        );
    }

    #[test]
    fn compact_words_have_fixed_positions() {
        let compact = |line, player| Kuhn.describe(&play(2, 1, line), player).compact;
        assert_eq!(compact("", 0), "first K _ _");
        assert_eq!(compact("pb", 0), "first K PASS BET");
        assert_eq!(compact("pbb", 1), "second Q PASS BET BET K");
        assert_eq!(compact("bp", 1), "second Q BET PASS _ ?");
    }

    #[test]
    fn facts_contain_what_the_player_observed_of_the_opponent() {
        assert_eq!(Kuhn.facts(&play(2, 1, "pbb"), 0), "K Q open BET _ _");
        assert_eq!(Kuhn.facts(&play(2, 1, "bp"), 0), "K ? facing PASS _ _");
        assert_eq!(Kuhn.facts(&play(2, 1, "pbb"), 1), "Q K open PASS facing BET");
        assert_eq!(Kuhn.facts(&play(2, 1, "pp"), 1), "Q K open PASS _ _");
    }

    #[test]
    fn read_action_errors_explain_the_problem() {
        let hand = play(0, 1, "");
        assert_eq!(Kuhn.read_action(&hand, " bet\n"), Ok(BET));
        assert_eq!(Kuhn.read_action(&hand, "PASS"), Ok(PASS));
        assert!(Kuhn.read_action(&hand, "fold").unwrap_err().contains("only PASS and BET"));
        assert!(Kuhn.read_action(&hand, "").unwrap_err().contains("names no action"));
    }
}
