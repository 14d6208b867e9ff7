//! Compact observations.
//!
//! A name is a word and a number. An observation has four parts: the task; the receptacles at the agent's location and their
//! contents; the held object; and where goal objects and lamps were first seen in this episode and where they are now.

use super::{
    goal::without_type_suffix,
    object_tables::{FIXTURES, OBJECT_TYPES, RECEPTACLES},
    state::{HouseholdState, ObjectFlag},
    world::HouseholdWorld,
};
use std::collections::BTreeMap;

/// Largest number that has a word.
const MAX_NUMBER: u32 = 64;
/// Maximum number of objects in a reflection.
const MAX_REFLECTED_OBJECTS: usize = 2;
/// An object and its number, a receptacle and its number.
const WORDS_PER_LOCATION: usize = 4;
/// Words in a factual reflection: the receptacles of two objects.
pub(super) const REFLECTION_WORDS: usize = MAX_REFLECTED_OBJECTS * WORDS_PER_LOCATION;
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

/// The vocabulary of the compact form.
pub(super) fn words() -> Vec<String> {
    let objects = OBJECT_TYPES.iter().map(|k| k.name).chain(FIXTURES).chain(RECEPTACLES);
    let mut stems: Vec<String> = objects.map(str::to_lowercase).collect();
    stems.sort();
    stems.dedup();
    let numbers = (1..=MAX_NUMBER).map(|n| n.to_string());
    GRAMMAR_WORDS.iter().map(|w| (*w).to_owned()).chain(stems).chain(numbers).collect()
}

/// Where the objects of the goal, lamps included, were seen in this episode.
#[derive(Clone, Debug, Default)]
pub(super) struct SeenObjects {
    /// The receptacle where each was first seen, which is useful in the next episode.
    first: BTreeMap<u16, u16>,
    /// The receptacle where each was last seen, unless it was taken since.
    last: BTreeMap<u16, u16>,
}

impl SeenObjects {
    /// Records the objects that are visible at the agent's location.
    pub(super) fn observe(&mut self, world: &HouseholdWorld, s: &HouseholdState) {
        for receptacle in world.receptacles_here(s).iter().filter(|r| world.is_accessible(s, **r)) {
            self.last.retain(|object, at| at != receptacle || s.inside(&world.layout, *object, *receptacle));
            let relevant = |o: &u16| world.object(*o).is_goal_object || world.object(*o).is_goal_lamp;
            for object in world.contents(s, *receptacle).filter(relevant) {
                self.first.entry(object).or_insert(*receptacle);
                self.last.insert(object, *receptacle);
            }
        }
        self.last.retain(|object, _| s.held != Some(*object));
    }

    /// The observation in compact words.
    pub(super) fn describe(&self, world: &HouseholdWorld, s: &HouseholdState) -> String {
        let mut out = CompactWriter::default();
        out.push_words(["task", world.goal.kind.word()]);
        out.push_kind(without_type_suffix(&world.goal.object));
        out.push_kind(without_type_suffix(&world.goal.target));
        out.push_words(["at"]);
        for receptacle in world.receptacles_here(s) {
            out.push_name(&world.receptacle(*receptacle).name);
            if world.receptacle(*receptacle).openable {
                out.push_words([if s.open(*receptacle) { "opened" } else { "closed" }]);
            }
            if world.is_accessible(s, *receptacle) {
                world.contents(s, *receptacle).for_each(|o| out.push_name(&world.object(o).name));
            }
        }
        if world.receptacles_here(s).is_empty() {
            out.push_words(["start"]);
        }
        out.push_words(["hold"]);
        match s.held {
            None => out.push_words(["nothing"]),
            Some(o) => {
                out.push_name(&world.object(o).name);
                let flags = [
                    (ObjectFlag::Hot, "hot"),
                    (ObjectFlag::Cool, "cold"),
                    (ObjectFlag::Clean, "washed"),
                    (ObjectFlag::Sliced, "sliced"),
                    (ObjectFlag::Toggled, "lit"),
                ];
                flags
                    .iter()
                    .filter(|(flag, _)| s.has_flag(&world.layout, *flag, o))
                    .for_each(|(_, word)| out.push_words([*word]));
            }
        }
        let mut list = |word, seen: &mut dyn Iterator<Item = (&u16, &u16)>| {
            out.push_words([word]);
            for (object, receptacle) in seen {
                out.push_name(&world.object(*object).name);
                out.push_name(&world.receptacle(*receptacle).name);
            }
        };
        list("found", &mut self.first.iter());
        list("left", &mut self.last.iter().filter(|(object, receptacle)| self.first[object] != **receptacle));
        if world.won(s) {
            out.push_words(["won"]);
        }
        out.0
    }
}

/// The factual reflection on an episode, from its last observation: where goal objects were found, one of each type before a
/// second of any type.
pub(super) fn factual_reflection(finished: &str) -> String {
    let words: Vec<&str> = finished.split(' ').skip_while(|w| *w != "found").skip(1).collect();
    let end = words.iter().position(|w| ["left", "won"].contains(w)).unwrap_or(words.len());
    let (mut named, mut more) = (Vec::<&[&str]>::new(), Vec::new());
    for found in words[..end].chunks_exact(WORDS_PER_LOCATION) {
        let known = named.iter().any(|n| n[0] == found[0]);
        if known { more.push(found) } else { named.push(found) }
    }
    let mut words: Vec<&str> = named.into_iter().chain(more).take(MAX_REFLECTED_OBJECTS).flatten().copied().collect();
    words.resize(REFLECTION_WORDS, "_");
    words.join(" ")
}

#[derive(Default)]
struct CompactWriter(String);

impl CompactWriter {
    fn push_words<const N: usize>(&mut self, words: [&str; N]) {
        for word in words {
            if !self.0.is_empty() {
                self.0.push(' ');
            }
            self.0.push_str(word);
        }
    }

    /// Writes a type, or `other` if no table contains it.
    fn push_kind(&mut self, kind: &str) {
        let known = |list: &[&str]| list.iter().any(|k| k.eq_ignore_ascii_case(kind));
        let known =
            known(&RECEPTACLES) || known(&FIXTURES) || OBJECT_TYPES.iter().any(|k| k.name.eq_ignore_ascii_case(kind));
        self.push_words([if known { kind } else { "other" }]);
    }

    /// Writes a name: a type and a number.
    fn push_name(&mut self, name: &str) {
        let (kind, number) = name.rsplit_once(' ').unwrap_or((name, ""));
        self.push_kind(kind);
        let small = number.parse().is_ok_and(|n: u32| (1..=MAX_NUMBER).contains(&n));
        self.push_words([if small { number } else { "?" }]);
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
    fn factual_reflections_state_where_objects_were() {
        assert_eq!(factual_reflection("task place mug desk at start hold nothing found"), "_ _ _ _ _ _ _ _");
        assert_eq!(factual_reflection("task … found mug 1 desk 2 left mug 1 shelf 1 won"), "mug 1 desk 2 _ _ _ _");
        assert_eq!(factual_reflection("… found pen 1 bed 1 pen 2 bed 1 left"), "pen 1 bed 1 pen 2 bed 1");
        assert_eq!(
            factual_reflection("… found pen 1 bed 1 pen 2 bed 1 desklamp 1 desk 1 left"),
            "pen 1 bed 1 desklamp 1 desk 1"
        );
    }
}
