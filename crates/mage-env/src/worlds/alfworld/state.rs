//! Dynamic state of a game.
//!
//! All relations are stored in one block of bits: open receptacles, contents, object flags. The block is copied when an
//! episode begins.

/// Offset of each relation in the block, in words of 64 bits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StateLayout {
    receptacle_words: usize,
    location_words: usize,
    object_words: usize,
    objects: usize,
}

/// A changeable property of an object.
#[derive(Clone, Copy, Debug)]
pub(super) enum ObjectFlag {
    Clean,
    Hot,
    Cool,
    Toggled,
    Sliced,
}

const NUM_FLAGS: usize = 5;

impl StateLayout {
    pub(super) fn new(receptacles: usize, objects: usize, locations: usize) -> Self {
        StateLayout {
            receptacle_words: receptacles.div_ceil(64),
            location_words: locations.div_ceil(64),
            object_words: objects.div_ceil(64),
            objects,
        }
    }

    fn flag(&self, flag: ObjectFlag) -> usize {
        self.receptacle_words + flag as usize * self.object_words
    }

    fn inside(&self, object: usize) -> usize {
        self.receptacle_words + NUM_FLAGS * self.object_words + object * self.receptacle_words
    }

    fn removed(&self, object: usize) -> usize {
        self.inside(self.objects) + object * self.receptacle_words
    }

    fn located(&self, object: usize) -> usize {
        self.removed(self.objects) + object * self.location_words
    }

    fn words(&self) -> usize {
        self.located(self.objects)
    }
}

/// State of a game in progress.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HouseholdState {
    pub(super) location: u16,
    pub(super) held: Option<u16>,
    words: Box<[u64]>,
}

impl HouseholdState {
    pub(super) fn new(layout: &StateLayout, location: u16) -> Self {
        HouseholdState { location, held: None, words: vec![0; layout.words()].into() }
    }

    fn get(&self, offset: usize, bit: usize) -> bool {
        self.words[offset + bit / 64] >> (bit % 64) & 1 == 1
    }

    fn set(&mut self, offset: usize, bit: usize, value: bool) {
        let word = &mut self.words[offset + bit / 64];
        *word = *word & !(1 << (bit % 64)) | u64::from(value) << (bit % 64);
    }

    pub(super) fn open(&self, receptacle: u16) -> bool {
        self.get(0, receptacle.into())
    }

    pub(super) fn set_open(&mut self, receptacle: u16, open: bool) {
        self.set(0, receptacle.into(), open);
    }

    pub(super) fn has_flag(&self, layout: &StateLayout, flag: ObjectFlag, object: u16) -> bool {
        self.get(layout.flag(flag), object.into())
    }

    pub(super) fn set_flag(&mut self, layout: &StateLayout, flag: ObjectFlag, object: u16, value: bool) {
        self.set(layout.flag(flag), object.into(), value);
    }

    pub(super) fn inside(&self, layout: &StateLayout, object: u16, receptacle: u16) -> bool {
        self.get(layout.inside(object.into()), receptacle.into())
    }

    /// Puts an object into a receptacle or removes it. Removal is recorded separately, because `look` reports it.
    pub(super) fn set_inside(&mut self, layout: &StateLayout, object: u16, receptacle: u16, value: bool) {
        self.set(layout.inside(object.into()), receptacle.into(), value);
        self.set(layout.removed(object.into()), receptacle.into(), !value);
    }

    /// Whether the object was taken from this receptacle and not put back.
    pub(super) fn removed(&self, layout: &StateLayout, object: u16, receptacle: u16) -> bool {
        self.get(layout.removed(object.into()), receptacle.into())
    }

    pub(super) fn located(&self, layout: &StateLayout, object: u16, location: u16) -> bool {
        self.get(layout.located(object.into()), location.into())
    }

    pub(super) fn set_located(&mut self, layout: &StateLayout, object: u16, location: u16, value: bool) {
        self.set(layout.located(object.into()), location.into(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relations_do_not_overlap() {
        let (receptacles, objects, locations) = (70, 65, 130);
        let layout = StateLayout::new(receptacles, objects, locations);
        let empty = HouseholdState::new(&layout, 0);
        let mut seen = std::collections::HashSet::new();
        let mut differs = |s: HouseholdState| {
            let changed: Vec<_> = s.words.iter().zip(&empty.words).enumerate().filter(|(_, (a, b))| a != b).collect();
            assert_eq!(changed.len(), 1);
            assert!(seen.insert((changed[0].0, *changed[0].1.0)));
        };
        for t in [0, 1, 63, 64] {
            for r in [0, 1, 63, 64, 69] {
                let mut s = empty.clone();
                s.set(layout.inside(t), r, true);
                differs(s);
                let mut s = empty.clone();
                s.set(layout.removed(t), r, true);
                differs(s);
            }
            for l in [0, 64, 129] {
                let mut s = empty.clone();
                s.set_located(&layout, t as u16, l, true);
                differs(s);
            }
            for m in [ObjectFlag::Clean, ObjectFlag::Hot, ObjectFlag::Cool, ObjectFlag::Toggled, ObjectFlag::Sliced] {
                let mut s = empty.clone();
                s.set_flag(&layout, m, t as u16, true);
                differs(s);
            }
        }
        for r in [0, 64, 69] {
            let mut s = empty.clone();
            s.set_open(r, true);
            differs(s);
        }
    }
}
