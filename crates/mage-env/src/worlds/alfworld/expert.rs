//! How is a game solved, if one knows where everything is?
//!
//! Every goal is met by carrying one or two things through at most one appliance to a target. All ways to do so are
//! played through and the shortest is kept; there is no search in between. Works from any state, so that it can also say
//! what to do after somebody else's mistake.

use super::{
    command::Command,
    goal::TaskKind,
    state::{Mark, State},
    world::{Use, World},
};

/// The shortest way to the goal that carries things straight there; `None` if there is none.
pub fn solve(world: &World, state: &State) -> Option<Vec<Command>> {
    let mut best: Option<Vec<Command>> = None;
    let mut keep = |way: Option<Way<'_>>| {
        if let Some(commands) = way.and_then(Way::finish)
            && best.as_ref().is_none_or(|b| commands.len() < b.len())
        {
            best = Some(commands);
        }
    };
    let way = || Way { world, state: state.clone(), commands: Vec::new() };
    if world.won(state) {
        return Some(Vec::new());
    }
    let things = || (0..world.things.len() as u16).filter(|t| world.thing(*t).wanted);
    let targets = || (0..world.places.len() as u16).filter(|p| world.place(*p).target);
    match world.goal.kind {
        TaskKind::Look => {
            let lamps = || (0..world.things.len() as u16).filter(|t| world.thing(*t).lamp);
            for thing in things() {
                for fetched in way().fetch(thing) {
                    lamps().for_each(|lamp| fetched.clone().light(lamp).into_iter().for_each(|w| keep(Some(w))));
                }
            }
        }
        TaskKind::Two => {
            for target in targets() {
                // The first may lie in the target already.
                let placed = |t: u16| state.inside(&world.plan, t, target);
                for first in things() {
                    let brought = if placed(first) { vec![way()] } else { way().bring(first, None, target) };
                    for one in brought {
                        for second in things().filter(|t| *t != first) {
                            one.clone().bring(second, None, target).into_iter().for_each(|w| keep(Some(w)));
                        }
                    }
                }
            }
        }
        kind => {
            let treatment = match kind {
                TaskKind::Clean => Some((Mark::Clean, Use::Cleaning)),
                TaskKind::Heat => Some((Mark::Hot, Use::Heating)),
                TaskKind::Cool => Some((Mark::Cool, Use::Cooling)),
                _ => None,
            };
            for target in targets() {
                for thing in things() {
                    way().bring(thing, treatment, target).into_iter().for_each(|w| keep(Some(w)));
                }
            }
        }
    }
    best
}

/// A way through a game, played as it is made.
#[derive(Clone)]
struct Way<'w> {
    world: &'w World,
    state: State,
    commands: Vec<Command>,
}

impl<'w> Way<'w> {
    /// Does something, if it is possible. A way that has reached the goal goes no further: a thing that lies in several
    /// places at once may be clean, hot or cool in its target before it is brought there.
    fn act(mut self, command: Command) -> Option<Self> {
        if self.world.won(&self.state) {
            return Some(self);
        }
        if !self.world.allows(&self.state, command) {
            return None;
        }
        self.world.apply(&mut self.state, command);
        self.commands.push(command);
        Some(self)
    }

    /// Stands at a place.
    fn at(self, place: u16) -> Option<Self> {
        if self.world.place(place).at == self.state.at { Some(self) } else { self.act(Command::GoTo(place)) }
    }

    /// Stands at a place that is open, if it can be.
    fn reach(self, place: u16) -> Option<Self> {
        let here = self.at(place)?;
        if here.world.accessible(&here.state, place) { Some(here) } else { here.act(Command::Open(place)) }
    }

    /// Holds a thing: one way for each place it lies in.
    fn fetch(self, thing: u16) -> Vec<Self> {
        if self.state.held == Some(thing) {
            return vec![self];
        }
        let Some(free) = self.put_down() else { return Vec::new() };
        let world = free.world;
        let lies_in = |p: &u16| free.state.inside(&world.plan, thing, *p);
        let places = (0..world.places.len() as u16).filter(lies_in);
        places.filter_map(|p| free.clone().reach(p)?.act(Command::Take(thing, p))).collect()
    }

    /// Has empty hands, with as little trouble as possible.
    fn put_down(self) -> Option<Self> {
        let Some(held) = self.state.held else { return Some(self) };
        let places = (0..self.world.places.len() as u16).filter(|p| self.world.fits(held, *p));
        let ways = places.filter_map(|p| self.clone().reach(p)?.act(Command::Move(held, p)));
        ways.min_by_key(|w| w.commands.len())
    }

    /// Holds a thing that is clean, hot or cool: one way for each appliance.
    fn treat(self, thing: u16, mark: Mark, appliance: Use) -> Vec<Self> {
        let world = self.world;
        if self.state.is(&world.plan, mark, thing) {
            return vec![self];
        }
        let places = (0..world.places.len() as u16).filter(|p| world.place(*p).use_for == appliance);
        let command = |p| match appliance {
            Use::Cleaning => Command::Clean(thing, p),
            Use::Heating => Command::Heat(thing, p),
            _ => Command::Cool(thing, p),
        };
        places.filter_map(|p| self.clone().at(p)?.act(command(p))).collect()
    }

    /// Puts a thing into a target, treated first where asked.
    fn bring(self, thing: u16, treatment: Option<(Mark, Use)>, target: u16) -> Vec<Self> {
        let treated = |w: Self| match treatment {
            Some((mark, appliance)) => w.treat(thing, mark, appliance),
            None => vec![w],
        };
        let put = |w: Self| w.reach(target)?.act(Command::Move(thing, target));
        self.fetch(thing).into_iter().flat_map(treated).filter_map(put).collect()
    }

    /// Stands where a lamp is on.
    fn light(self, lamp: u16) -> Vec<Self> {
        let world = self.world;
        let places: Vec<u16> =
            (0..world.places.len() as u16).filter(|p| self.state.inside(&world.plan, lamp, *p)).collect();
        let lit = |w: Self| {
            if w.state.is(&world.plan, Mark::Toggled, lamp) { Some(w) } else { w.act(Command::Use(lamp)) }
        };
        places.into_iter().filter_map(|p| lit(self.clone().at(p)?)).collect()
    }

    /// The commands, if they lead to the goal.
    fn finish(self) -> Option<Vec<Command>> {
        self.world.won(&self.state).then_some(self.commands)
    }
}
