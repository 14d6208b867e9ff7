//! How do things stand?
//!
//! One block of bits for each game in progress: which doors are open, what is in what, what has been done to things. It
//! is copied whole when an episode begins.

/// Where each relation lies in the block, counted in words of 64 bits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Plan {
    receptacle_words: usize,
    location_words: usize,
    thing_words: usize,
    things: usize,
}

/// A property that a thing may have or lack.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mark {
    Clean,
    Hot,
    Cool,
    Toggled,
    Sliced,
}

const MARKS: usize = 5;

impl Plan {
    pub(super) fn new(receptacles: usize, things: usize, locations: usize) -> Self {
        Plan {
            receptacle_words: receptacles.div_ceil(64),
            location_words: locations.div_ceil(64),
            thing_words: things.div_ceil(64),
            things,
        }
    }

    fn mark(&self, mark: Mark) -> usize {
        self.receptacle_words + mark as usize * self.thing_words
    }

    fn inside(&self, thing: usize) -> usize {
        self.receptacle_words + MARKS * self.thing_words + thing * self.receptacle_words
    }

    fn removed(&self, thing: usize) -> usize {
        self.inside(self.things) + thing * self.receptacle_words
    }

    fn located(&self, thing: usize) -> usize {
        self.removed(self.things) + thing * self.location_words
    }

    fn words(&self) -> usize {
        self.located(self.things)
    }
}

/// A game in progress.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(super) at: u16,
    pub(super) held: Option<u16>,
    words: Box<[u64]>,
}

impl State {
    pub(super) fn new(plan: &Plan, at: u16) -> Self {
        State { at, held: None, words: vec![0; plan.words()].into() }
    }

    fn get(&self, row: usize, bit: usize) -> bool {
        self.words[row + bit / 64] >> (bit % 64) & 1 == 1
    }

    fn set(&mut self, row: usize, bit: usize, value: bool) {
        let word = &mut self.words[row + bit / 64];
        *word = *word & !(1 << (bit % 64)) | u64::from(value) << (bit % 64);
    }

    pub(super) fn open(&self, receptacle: u16) -> bool {
        self.get(0, receptacle.into())
    }

    pub(super) fn set_open(&mut self, receptacle: u16, open: bool) {
        self.set(0, receptacle.into(), open);
    }

    pub(super) fn is(&self, plan: &Plan, mark: Mark, thing: u16) -> bool {
        self.get(plan.mark(mark), thing.into())
    }

    pub(super) fn mark(&mut self, plan: &Plan, mark: Mark, thing: u16, value: bool) {
        self.set(plan.mark(mark), thing.into(), value);
    }

    pub(super) fn inside(&self, plan: &Plan, thing: u16, receptacle: u16) -> bool {
        self.get(plan.inside(thing.into()), receptacle.into())
    }

    /// Puts a thing in or takes it out. Only taking out leaves a trace of its own, which `look` shows.
    pub(super) fn set_inside(&mut self, plan: &Plan, thing: u16, receptacle: u16, value: bool) {
        self.set(plan.inside(thing.into()), receptacle.into(), value);
        self.set(plan.removed(thing.into()), receptacle.into(), !value);
    }

    /// Whether a thing was taken out of this and not put back.
    pub(super) fn removed(&self, plan: &Plan, thing: u16, receptacle: u16) -> bool {
        self.get(plan.removed(thing.into()), receptacle.into())
    }

    pub(super) fn located(&self, plan: &Plan, thing: u16, location: u16) -> bool {
        self.get(plan.located(thing.into()), location.into())
    }

    pub(super) fn set_located(&mut self, plan: &Plan, thing: u16, location: u16, value: bool) {
        self.set(plan.located(thing.into()), location.into(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relations_do_not_overlap() {
        let (receptacles, things, locations) = (70, 65, 130);
        let plan = Plan::new(receptacles, things, locations);
        let blank = State::new(&plan, 0);
        let mut seen = std::collections::HashSet::new();
        let mut differs = |s: State| {
            let changed: Vec<_> = s.words.iter().zip(&blank.words).enumerate().filter(|(_, (a, b))| a != b).collect();
            assert_eq!(changed.len(), 1);
            assert!(seen.insert((changed[0].0, *changed[0].1.0)));
        };
        for t in [0, 1, 63, 64] {
            for r in [0, 1, 63, 64, 69] {
                let mut s = blank.clone();
                s.set(plan.inside(t), r, true);
                differs(s);
                let mut s = blank.clone();
                s.set(plan.removed(t), r, true);
                differs(s);
            }
            for l in [0, 64, 129] {
                let mut s = blank.clone();
                s.set_located(&plan, t as u16, l, true);
                differs(s);
            }
            for m in [Mark::Clean, Mark::Hot, Mark::Cool, Mark::Toggled, Mark::Sliced] {
                let mut s = blank.clone();
                s.mark(&plan, m, t as u16, true);
                differs(s);
            }
        }
        for r in [0, 64, 69] {
            let mut s = blank.clone();
            s.set_open(r, true);
            differs(s);
        }
    }
}
