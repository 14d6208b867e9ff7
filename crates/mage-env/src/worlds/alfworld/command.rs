//! What can be done?
//!
//! Commands are understood only in the exact words of the original, and only where the original offers them.

use super::{
    state::{Mark, State},
    text,
    world::{Named, Use, World},
};

/// A command, its words understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// `look`
    Look,
    /// `inventory`
    Inventory,
    /// `help`
    Help,
    /// `go to R`
    GoTo(u16),
    /// `open R`
    Open(u16),
    /// `close R`
    Close(u16),
    /// `examine R`
    ExaminePlace(u16),
    /// `examine O`
    ExamineThing(u16),
    /// `take O from R`
    Take(u16, u16),
    /// `move O to R`
    Move(u16, u16),
    /// `clean O with R`
    Clean(u16, u16),
    /// `heat O with R`
    Heat(u16, u16),
    /// `cool O with R`
    Cool(u16, u16),
    /// `use O`
    Use(u16),
    /// `slice O with O`
    Slice(u16, u16),
}

impl World {
    /// Reads a command in the original's words; white space around it does not matter. `None` if it names nothing here.
    pub fn read(&self, text: &str) -> Option<Command> {
        let text = text.trim();
        match text {
            "look" => return Some(Command::Look),
            "inventory" => return Some(Command::Inventory),
            "help" => return Some(Command::Help),
            _ => {}
        }
        let place = |name: &str| match self.find(name) {
            Some(Named::Place(p)) => Some(p),
            _ => None,
        };
        let thing = |name: &str| match self.find(name) {
            Some(Named::Thing(t)) => Some(t),
            _ => None,
        };
        let into = |rest: &str, between: &str| {
            let (t, p) = rest.split_once(between)?;
            Some((thing(t)?, place(p)?))
        };
        let (verb, rest) = text.split_once(' ')?;
        Some(match verb {
            "go" => Command::GoTo(place(rest.strip_prefix("to ")?)?),
            "open" => Command::Open(place(rest)?),
            "close" => Command::Close(place(rest)?),
            "examine" => match self.find(rest)? {
                Named::Place(p) => Command::ExaminePlace(p),
                Named::Thing(t) => Command::ExamineThing(t),
            },
            "take" => into(rest, " from ").map(|(t, p)| Command::Take(t, p))?,
            "move" => into(rest, " to ").map(|(t, p)| Command::Move(t, p))?,
            "clean" => into(rest, " with ").map(|(t, p)| Command::Clean(t, p))?,
            "heat" => into(rest, " with ").map(|(t, p)| Command::Heat(t, p))?,
            "cool" => into(rest, " with ").map(|(t, p)| Command::Cool(t, p))?,
            "use" => Command::Use(thing(rest)?),
            "slice" => {
                let (t, knife) = rest.split_once(" with ")?;
                Command::Slice(thing(t)?, thing(knife)?)
            }
            _ => return None,
        })
    }

    /// A command in the original's words.
    pub fn write(&self, command: Command) -> String {
        let p = |p| &*self.place(p).name;
        let t = |t| &*self.thing(t).name;
        match command {
            Command::Look => "look".to_owned(),
            Command::Inventory => "inventory".to_owned(),
            Command::Help => "help".to_owned(),
            Command::GoTo(place) => ["go to ", p(place)].concat(),
            Command::Open(place) => ["open ", p(place)].concat(),
            Command::Close(place) => ["close ", p(place)].concat(),
            Command::ExaminePlace(place) => ["examine ", p(place)].concat(),
            Command::ExamineThing(thing) => ["examine ", t(thing)].concat(),
            Command::Take(thing, place) => ["take ", t(thing), " from ", p(place)].concat(),
            Command::Move(thing, place) => ["move ", t(thing), " to ", p(place)].concat(),
            Command::Clean(thing, place) => ["clean ", t(thing), " with ", p(place)].concat(),
            Command::Heat(thing, place) => ["heat ", t(thing), " with ", p(place)].concat(),
            Command::Cool(thing, place) => ["cool ", t(thing), " with ", p(place)].concat(),
            Command::Use(thing) => ["use ", t(thing)].concat(),
            Command::Slice(thing, knife) => ["slice ", t(thing), " with ", t(knife)].concat(),
        }
    }

    /// Whether the original offers a command now.
    pub fn allows(&self, s: &State, command: Command) -> bool {
        let here = |p: u16| self.place(p).at == s.at;
        let appliance = |t: u16, p: u16, use_for| s.held == Some(t) && here(p) && self.place(p).use_for == use_for;
        match command {
            Command::Look | Command::Inventory | Command::Help => true,
            // Going where one stands changes nothing, and the original drops actions without effect.
            Command::GoTo(p) => !here(p),
            Command::Open(p) => here(p) && self.place(p).openable && !s.open(p),
            Command::Close(p) => here(p) && self.place(p).openable && s.open(p),
            Command::ExaminePlace(p) => here(p),
            // The domain also means to allow it for what is in reach, but a stray comma there makes it match nothing.
            Command::ExamineThing(t) => s.held == Some(t),
            Command::Take(t, p) => {
                s.held.is_none()
                    && here(p)
                    && self.thing(t).traits.pickupable
                    && s.inside(&self.plan, t, p)
                    && self.accessible(s, p)
            }
            Command::Move(t, p) => s.held == Some(t) && here(p) && self.accessible(s, p) && self.fits(t, p),
            Command::Clean(t, p) => self.thing(t).traits.cleanable && appliance(t, p, Use::Cleaning),
            Command::Heat(t, p) => self.thing(t).traits.heatable && appliance(t, p, Use::Heating),
            Command::Cool(t, p) => self.thing(t).traits.coolable && appliance(t, p, Use::Cooling),
            Command::Use(t) => {
                self.thing(t).traits.toggleable && self.here(s).iter().any(|p| s.inside(&self.plan, t, *p))
            }
            Command::Slice(t, knife) => {
                s.held == Some(knife)
                    && self.thing(knife).knife
                    && self.thing(t).traits.sliceable
                    && s.located(&self.plan, t, s.at)
            }
        }
    }

    /// Carries out a command that is allowed.
    pub fn apply(&self, s: &mut State, command: Command) {
        let plan = &self.plan;
        match command {
            Command::GoTo(p) => s.at = self.place(p).at,
            Command::Open(p) => s.set_open(p, true),
            Command::Close(p) => s.set_open(p, false),
            Command::Take(t, p) => {
                s.set_inside(plan, t, p, false);
                s.set_located(plan, t, s.at, false);
                s.held = Some(t);
            }
            Command::Move(t, p) => {
                s.set_inside(plan, t, p, true);
                s.set_located(plan, t, s.at, true);
                s.held = None;
            }
            Command::Clean(t, _) => s.mark(plan, Mark::Clean, t, true),
            Command::Heat(t, _) => {
                s.mark(plan, Mark::Hot, t, true);
                s.mark(plan, Mark::Cool, t, false);
            }
            Command::Cool(t, _) => {
                s.mark(plan, Mark::Cool, t, true);
                s.mark(plan, Mark::Hot, t, false);
            }
            Command::Use(t) => s.mark(plan, Mark::Toggled, t, true),
            Command::Slice(t, _) => s.mark(plan, Mark::Sliced, t, true),
            Command::Look
            | Command::Inventory
            | Command::Help
            | Command::ExaminePlace(_)
            | Command::ExamineThing(_) => {}
        }
    }

    /// Does what a command says, if it is allowed now, and tells what is seen then. Anything else changes nothing.
    pub fn step(&self, s: &mut State, command: &str) -> (String, bool) {
        match self.read(command).filter(|c| self.allows(s, *c)) {
            Some(c) => {
                self.apply(s, c);
                (text::feedback(self, s, c), true)
            }
            None => (text::NOTHING.to_owned(), false),
        }
    }

    /// Every command the original offers now, in the order of their words.
    pub fn admissible(&self, s: &State) -> Vec<Command> {
        let mut here: Vec<u16> = self.here(s).to_vec();
        here.sort_by(|a, b| self.place(*a).name.cmp(&self.place(*b).name));
        let ranked = |mut things: Vec<u16>| {
            things.sort_by_key(|t| self.thing(*t).rank);
            things.dedup();
            things
        };
        let all = || 0..self.things.len() as u16;
        let mut out = Vec::with_capacity(self.places.len() + 24);
        let mut offer = |c: Command| {
            if self.allows(s, c) {
                out.push(c);
            }
        };
        // Verbs in alphabetical order, and within a verb by name, so that nothing need be sorted as text.
        if let Some(t) = s.held {
            here.iter().for_each(|p| offer(Command::Clean(t, *p)));
        }
        here.iter().for_each(|p| offer(Command::Close(*p)));
        if let Some(t) = s.held {
            here.iter().for_each(|p| offer(Command::Cool(t, *p)));
        }
        let mut held = s.held;
        for p in &here {
            if let Some(t) = held.take_if(|t| self.thing(*t).name < self.place(*p).name) {
                offer(Command::ExamineThing(t));
            }
            offer(Command::ExaminePlace(*p));
        }
        held.into_iter().for_each(|t| offer(Command::ExamineThing(t)));
        self.places_by_name.iter().for_each(|p| offer(Command::GoTo(*p)));
        if let Some(t) = s.held {
            here.iter().for_each(|p| offer(Command::Heat(t, *p)));
        }
        offer(Command::Help);
        offer(Command::Inventory);
        offer(Command::Look);
        if let Some(t) = s.held {
            here.iter().for_each(|p| offer(Command::Move(t, *p)));
        }
        here.iter().for_each(|p| offer(Command::Open(*p)));
        if let Some(knife) = s.held.filter(|t| self.thing(*t).knife) {
            let sliceable = all().filter(|t| self.thing(*t).traits.sliceable).collect();
            ranked(sliceable).into_iter().for_each(|t| offer(Command::Slice(t, knife)));
        }
        let near = || all().filter(|t| here.iter().any(|p| s.inside(&self.plan, *t, *p)));
        if s.held.is_none() {
            for t in ranked(near().collect()) {
                here.iter().for_each(|p| offer(Command::Take(t, *p)));
            }
        }
        let switches = near().filter(|t| self.thing(*t).traits.toggleable).collect();
        ranked(switches).into_iter().for_each(|t| offer(Command::Use(t)));
        out
    }
}
