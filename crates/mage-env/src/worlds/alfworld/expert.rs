//! Expert solver with full information.
//!
//! Every goal is reached by moving one or two objects, via at most one appliance, to a target. The solver simulates all such
//! plans and returns a shortest one; it does not search beyond them. It accepts any state, so that it can continue after
//! actions of another agent.

use super::{
    command::AlfworldCommand,
    goal::TaskType,
    state::{HouseholdState, ObjectFlag},
    world::{Appliance, HouseholdWorld},
};

/// A shortest plan that moves objects directly to the target; `None` if there is none.
pub fn solve(world: &HouseholdWorld, state: &HouseholdState) -> Option<Vec<AlfworldCommand>> {
    let mut best: Option<Vec<AlfworldCommand>> = None;
    let mut keep_shortest = |plan: Option<CandidatePlan<'_>>| {
        if let Some(commands) = plan.and_then(CandidatePlan::into_solution)
            && best.as_ref().is_none_or(|b| commands.len() < b.len())
        {
            best = Some(commands);
        }
    };
    let plan = || CandidatePlan { world, state: state.clone(), commands: Vec::new() };
    if world.won(state) {
        return Some(Vec::new());
    }
    let objects = || (0..world.objects.len() as u16).filter(|o| world.object(*o).is_goal_object);
    let targets = || (0..world.receptacles.len() as u16).filter(|r| world.receptacle(*r).is_target);
    match world.goal.kind {
        TaskType::Look => {
            let lamps = || (0..world.objects.len() as u16).filter(|o| world.object(*o).is_goal_lamp);
            for object in objects() {
                for held in plan().pick_up(object) {
                    lamps().for_each(|lamp| {
                        held.clone().use_lamp(lamp).into_iter().for_each(|candidate| keep_shortest(Some(candidate)));
                    });
                }
            }
        }
        TaskType::Two => {
            for target in targets() {
                // The first object may already be in the target.
                let in_target = |o: u16| state.inside(&world.layout, o, target);
                for first in objects() {
                    let delivered = if in_target(first) { vec![plan()] } else { plan().deliver(first, None, target) };
                    for one in delivered {
                        for second in objects().filter(|o| *o != first) {
                            one.clone()
                                .deliver(second, None, target)
                                .into_iter()
                                .for_each(|candidate| keep_shortest(Some(candidate)));
                        }
                    }
                }
            }
        }
        kind => {
            let treatment = match kind {
                TaskType::Clean => Some((ObjectFlag::Clean, Appliance::Sink)),
                TaskType::Heat => Some((ObjectFlag::Hot, Appliance::Microwave)),
                TaskType::Cool => Some((ObjectFlag::Cool, Appliance::Fridge)),
                _ => None,
            };
            for target in targets() {
                for object in objects() {
                    plan()
                        .deliver(object, treatment, target)
                        .into_iter()
                        .for_each(|candidate| keep_shortest(Some(candidate)));
                }
            }
        }
    }
    best
}

/// A partial plan and the state it leads to.
#[derive(Clone)]
struct CandidatePlan<'w> {
    world: &'w HouseholdWorld,
    state: HouseholdState,
    commands: Vec<AlfworldCommand>,
}

impl<'w> CandidatePlan<'w> {
    /// Appends a command, if it is admissible. A plan that has reached the goal is not extended: an object in several
    /// receptacles may satisfy the goal in its target before it is moved there.
    fn act(mut self, command: AlfworldCommand) -> Option<Self> {
        if self.world.won(&self.state) {
            return Some(self);
        }
        if !self.world.is_admissible(&self.state, command) {
            return None;
        }
        self.world.apply(&mut self.state, command);
        self.commands.push(command);
        Some(self)
    }

    /// Goes to a receptacle.
    fn go_to(self, receptacle: u16) -> Option<Self> {
        if self.world.receptacle(receptacle).location == self.state.location {
            Some(self)
        } else {
            self.act(AlfworldCommand::GoTo(receptacle))
        }
    }

    /// Goes to a receptacle and opens it if necessary.
    fn go_to_accessible(self, receptacle: u16) -> Option<Self> {
        let here = self.go_to(receptacle)?;
        if here.world.is_accessible(&here.state, receptacle) {
            Some(here)
        } else {
            here.act(AlfworldCommand::Open(receptacle))
        }
    }

    /// Picks up an object: one plan per receptacle that contains it.
    fn pick_up(self, object: u16) -> Vec<Self> {
        if self.state.held == Some(object) {
            return vec![self];
        }
        let Some(free) = self.put_down() else { return Vec::new() };
        let world = free.world;
        let contains = |r: &u16| free.state.inside(&world.layout, object, *r);
        let receptacles = (0..world.receptacles.len() as u16).filter(contains);
        receptacles.filter_map(|r| free.clone().go_to_accessible(r)?.act(AlfworldCommand::Take(object, r))).collect()
    }

    /// Puts down the held object with the fewest commands.
    fn put_down(self) -> Option<Self> {
        let Some(held) = self.state.held else { return Some(self) };
        let receptacles = (0..self.world.receptacles.len() as u16).filter(|r| self.world.can_contain(held, *r));
        let plans = receptacles.filter_map(|r| self.clone().go_to_accessible(r)?.act(AlfworldCommand::Move(held, r)));
        plans.min_by_key(|candidate| candidate.commands.len())
    }

    /// Cleans, heats or cools the held object: one plan per appliance.
    fn treat(self, object: u16, flag: ObjectFlag, appliance: Appliance) -> Vec<Self> {
        let world = self.world;
        if self.state.has_flag(&world.layout, flag, object) {
            return vec![self];
        }
        let receptacles = (0..world.receptacles.len() as u16).filter(|r| world.receptacle(*r).appliance == appliance);
        let command = |r| match appliance {
            Appliance::Sink => AlfworldCommand::Clean(object, r),
            Appliance::Microwave => AlfworldCommand::Heat(object, r),
            _ => AlfworldCommand::Cool(object, r),
        };
        receptacles.filter_map(|r| self.clone().go_to(r)?.act(command(r))).collect()
    }

    /// Moves an object to a target, after an optional treatment.
    fn deliver(self, object: u16, treatment: Option<(ObjectFlag, Appliance)>, target: u16) -> Vec<Self> {
        let treated = |candidate: Self| match treatment {
            Some((flag, appliance)) => candidate.treat(object, flag, appliance),
            None => vec![candidate],
        };
        let put = |candidate: Self| candidate.go_to_accessible(target)?.act(AlfworldCommand::Move(object, target));
        self.pick_up(object).into_iter().flat_map(treated).filter_map(put).collect()
    }

    /// Goes to a lamp and switches it on.
    fn use_lamp(self, lamp: u16) -> Vec<Self> {
        let world = self.world;
        let receptacles: Vec<u16> =
            (0..world.receptacles.len() as u16).filter(|r| self.state.inside(&world.layout, lamp, *r)).collect();
        let lit = |candidate: Self| {
            if candidate.state.has_flag(&world.layout, ObjectFlag::Toggled, lamp) {
                Some(candidate)
            } else {
                candidate.act(AlfworldCommand::UseObject(lamp))
            }
        };
        receptacles.into_iter().filter_map(|r| lit(self.clone().go_to(r)?)).collect()
    }

    /// The commands, if they reach the goal.
    fn into_solution(self) -> Option<Vec<AlfworldCommand>> {
        self.world.won(&self.state).then_some(self.commands)
    }
}
