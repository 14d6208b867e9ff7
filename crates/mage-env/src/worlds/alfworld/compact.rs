//! What does a small model read?
//!
//! Names become a word and a number. An observation has four parts: the task; where one stands, and what is there; what
//! is held; and where things that matter were first seen in this episode, and where they were left since.

use super::{
    goal::bare,
    object_tables::{FIXED, KINDS, RECEPTACLES},
    state::{Mark, State},
    world::World,
};
use std::collections::BTreeMap;

/// Numbers with a word of their own.
const NUMBERS: u32 = 64;
/// How many things a reflection names.
const REMEMBERED: usize = 2;
/// A thing and its number, a place and its number.
const FOUND_WORDS: usize = 4;
/// How many words a factual reflection has: where two things were.
pub(super) const REFLECTION_WORDS: usize = REMEMBERED * FOUND_WORDS;
/// The longest action: `take X 1 from Y 2`.
pub(super) const ACTION_WORDS: usize = 6;

const GRAMMAR_WORDS: [&str; 35] = [
    "task",
    "place",
    "at",
    "start",
    "hold",
    "nothing",
    "found",
    "left",
    "won",
    "opened",
    "closed",
    "hot",
    "cold",
    "washed",
    "sliced",
    "lit",
    "two",
    "look",
    "inventory",
    "help",
    "go",
    "to",
    "open",
    "close",
    "take",
    "from",
    "move",
    "clean",
    "heat",
    "cool",
    "with",
    "use",
    "slice",
    "examine",
    "other",
];

/// Every word of the compact form.
pub(super) fn words() -> Vec<String> {
    let things = KINDS.iter().map(|k| k.name).chain(FIXED).chain(RECEPTACLES);
    let mut stems: Vec<String> = things.map(str::to_lowercase).collect();
    stems.sort();
    stems.dedup();
    let numbers = (1..=NUMBERS).map(|n| n.to_string());
    GRAMMAR_WORDS.iter().map(|w| (*w).to_owned()).chain(stems).chain(numbers).collect()
}

/// What was seen of what matters: things the task is about, and where.
#[derive(Clone, Debug, Default)]
pub(super) struct Knowledge {
    /// Where each was seen first: what is worth knowing in the next episode.
    first: BTreeMap<u16, u16>,
    /// Where each was seen last, unless it was taken away since.
    last: BTreeMap<u16, u16>,
}

impl Knowledge {
    /// Takes in what can be seen from here.
    pub(super) fn look_around(&mut self, world: &World, s: &State) {
        for place in world.here(s).iter().filter(|p| world.accessible(s, **p)) {
            self.last.retain(|thing, at| at != place || s.inside(&world.plan, *thing, *place));
            let matters = |t: &u16| world.thing(*t).wanted || world.thing(*t).lamp;
            for thing in world.contents(s, *place).filter(matters) {
                self.first.entry(thing).or_insert(*place);
                self.last.insert(thing, *place);
            }
        }
        self.last.retain(|thing, _| s.held != Some(*thing));
    }

    /// The observation in compact words.
    pub(super) fn describe(&self, world: &World, s: &State) -> String {
        let mut out = Words::default();
        out.say(["task", world.goal.kind.word()]);
        out.stem(bare(&world.goal.thing));
        out.stem(bare(&world.goal.target));
        out.say(["at"]);
        for place in world.here(s) {
            out.name(&world.place(*place).name);
            if world.place(*place).openable {
                out.say([if s.open(*place) { "opened" } else { "closed" }]);
            }
            if world.accessible(s, *place) {
                world.contents(s, *place).for_each(|t| out.name(&world.thing(t).name));
            }
        }
        if world.here(s).is_empty() {
            out.say(["start"]);
        }
        out.say(["hold"]);
        match s.held {
            None => out.say(["nothing"]),
            Some(t) => {
                out.name(&world.thing(t).name);
                let marks = [
                    (Mark::Hot, "hot"),
                    (Mark::Cool, "cold"),
                    (Mark::Clean, "washed"),
                    (Mark::Sliced, "sliced"),
                    (Mark::Toggled, "lit"),
                ];
                marks.iter().filter(|(mark, _)| s.is(&world.plan, *mark, t)).for_each(|(_, word)| out.say([*word]));
            }
        }
        let mut list = |word, seen: &mut dyn Iterator<Item = (&u16, &u16)>| {
            out.say([word]);
            for (thing, place) in seen {
                out.name(&world.thing(*thing).name);
                out.name(&world.place(*place).name);
            }
        };
        list("found", &mut self.first.iter());
        list("left", &mut self.last.iter().filter(|(thing, place)| self.first[thing] != **place));
        if world.won(s) {
            out.say(["won"]);
        }
        out.0
    }
}

/// The factual reflection on an episode, from its last observation: where things that matter were found, one of each kind
/// before a second of any.
pub(super) fn facts(finished: &str) -> String {
    let words: Vec<&str> = finished.split(' ').skip_while(|w| *w != "found").skip(1).collect();
    let end = words.iter().position(|w| ["left", "won"].contains(w)).unwrap_or(words.len());
    let (mut named, mut more) = (Vec::<&[&str]>::new(), Vec::new());
    for found in words[..end].chunks_exact(FOUND_WORDS) {
        let known = named.iter().any(|n| n[0] == found[0]);
        if known { more.push(found) } else { named.push(found) }
    }
    let mut words: Vec<&str> = named.into_iter().chain(more).take(REMEMBERED).flatten().copied().collect();
    words.resize(REFLECTION_WORDS, "_");
    words.join(" ")
}

#[derive(Default)]
struct Words(String);

impl Words {
    fn say<const N: usize>(&mut self, words: [&str; N]) {
        for word in words {
            if !self.0.is_empty() {
                self.0.push(' ');
            }
            self.0.push_str(word);
        }
    }

    /// A kind; one that no table knows is `other`.
    fn stem(&mut self, stem: &str) {
        let known = |list: &[&str]| list.iter().any(|k| k.eq_ignore_ascii_case(stem));
        let known = known(&RECEPTACLES) || known(&FIXED) || KINDS.iter().any(|k| k.name.eq_ignore_ascii_case(stem));
        self.say([if known { stem } else { "other" }]);
    }

    /// A name: a kind and a number.
    fn name(&mut self, name: &str) {
        let (stem, number) = name.rsplit_once(' ').unwrap_or((name, ""));
        self.stem(stem);
        let small = number.parse().is_ok_and(|n: u32| (1..=NUMBERS).contains(&n));
        self.say([if small { number } else { "?" }]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_unique() {
        let mut all = words();
        let len = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), len);
        assert!(len < 256, "{len}");
    }

    #[test]
    fn facts_name_where_things_were() {
        assert_eq!(facts("task place mug desk at start hold nothing found"), "_ _ _ _ _ _ _ _");
        assert_eq!(facts("task … found mug 1 desk 2 left mug 1 shelf 1 won"), "mug 1 desk 2 _ _ _ _");
        assert_eq!(facts("… found pen 1 bed 1 pen 2 bed 1 left"), "pen 1 bed 1 pen 2 bed 1");
        assert_eq!(facts("… found pen 1 bed 1 pen 2 bed 1 desklamp 1 desk 1 left"), "pen 1 bed 1 desklamp 1 desk 1");
    }
}
