//! Commands: parsing, admissibility and effects.
//!
//! A command is recognised only in the exact words of the original, and executed only where the original admits it.

use super::{
    state::{HouseholdState, ObjectFlag},
    text,
    world::{Appliance, Entity, HouseholdWorld},
};

/// A parsed command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlfworldCommand {
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
    ExamineReceptacle(u16),
    /// `examine O`
    ExamineObject(u16),
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
    UseObject(u16),
    /// `slice O with O`
    Slice(u16, u16),
}

impl HouseholdWorld {
    /// Parses a command in the original's words, ignoring surrounding white space. `None` if it is not a command or names an
    /// unknown entity.
    pub fn parse_command(&self, text: &str) -> Option<AlfworldCommand> {
        let text = text.trim();
        match text {
            "look" => return Some(AlfworldCommand::Look),
            "inventory" => return Some(AlfworldCommand::Inventory),
            "help" => return Some(AlfworldCommand::Help),
            _ => {}
        }
        let receptacle = |name: &str| match self.entity_named(name) {
            Some(Entity::Receptacle(r)) => Some(r),
            _ => None,
        };
        let object = |name: &str| match self.entity_named(name) {
            Some(Entity::Object(o)) => Some(o),
            _ => None,
        };
        let into = |rest: &str, between: &str| {
            let (o, r) = rest.split_once(between)?;
            Some((object(o)?, receptacle(r)?))
        };
        let (verb, rest) = text.split_once(' ')?;
        Some(match verb {
            "go" => AlfworldCommand::GoTo(receptacle(rest.strip_prefix("to ")?)?),
            "open" => AlfworldCommand::Open(receptacle(rest)?),
            "close" => AlfworldCommand::Close(receptacle(rest)?),
            "examine" => match self.entity_named(rest)? {
                Entity::Receptacle(r) => AlfworldCommand::ExamineReceptacle(r),
                Entity::Object(o) => AlfworldCommand::ExamineObject(o),
            },
            "take" => into(rest, " from ").map(|(o, r)| AlfworldCommand::Take(o, r))?,
            "move" => into(rest, " to ").map(|(o, r)| AlfworldCommand::Move(o, r))?,
            "clean" => into(rest, " with ").map(|(o, r)| AlfworldCommand::Clean(o, r))?,
            "heat" => into(rest, " with ").map(|(o, r)| AlfworldCommand::Heat(o, r))?,
            "cool" => into(rest, " with ").map(|(o, r)| AlfworldCommand::Cool(o, r))?,
            "use" => AlfworldCommand::UseObject(object(rest)?),
            "slice" => {
                let (o, knife) = rest.split_once(" with ")?;
                AlfworldCommand::Slice(object(o)?, object(knife)?)
            }
            _ => return None,
        })
    }

    /// Formats a command in the original's words.
    pub fn format_command(&self, command: AlfworldCommand) -> String {
        let r = |r| &*self.receptacle(r).name;
        let o = |o| &*self.object(o).name;
        match command {
            AlfworldCommand::Look => "look".to_owned(),
            AlfworldCommand::Inventory => "inventory".to_owned(),
            AlfworldCommand::Help => "help".to_owned(),
            AlfworldCommand::GoTo(receptacle) => ["go to ", r(receptacle)].concat(),
            AlfworldCommand::Open(receptacle) => ["open ", r(receptacle)].concat(),
            AlfworldCommand::Close(receptacle) => ["close ", r(receptacle)].concat(),
            AlfworldCommand::ExamineReceptacle(receptacle) => ["examine ", r(receptacle)].concat(),
            AlfworldCommand::ExamineObject(object) => ["examine ", o(object)].concat(),
            AlfworldCommand::Take(object, receptacle) => ["take ", o(object), " from ", r(receptacle)].concat(),
            AlfworldCommand::Move(object, receptacle) => ["move ", o(object), " to ", r(receptacle)].concat(),
            AlfworldCommand::Clean(object, receptacle) => ["clean ", o(object), " with ", r(receptacle)].concat(),
            AlfworldCommand::Heat(object, receptacle) => ["heat ", o(object), " with ", r(receptacle)].concat(),
            AlfworldCommand::Cool(object, receptacle) => ["cool ", o(object), " with ", r(receptacle)].concat(),
            AlfworldCommand::UseObject(object) => ["use ", o(object)].concat(),
            AlfworldCommand::Slice(object, knife) => ["slice ", o(object), " with ", o(knife)].concat(),
        }
    }

    /// Whether the original admits a command in this state.
    pub fn is_admissible(&self, s: &HouseholdState, command: AlfworldCommand) -> bool {
        let here = |r: u16| self.receptacle(r).location == s.location;
        let can_treat =
            |o: u16, r: u16, appliance| s.held == Some(o) && here(r) && self.receptacle(r).appliance == appliance;
        match command {
            AlfworldCommand::Look | AlfworldCommand::Inventory | AlfworldCommand::Help => true,
            // The original removes actions without effect, such as going to the current location.
            AlfworldCommand::GoTo(r) => !here(r),
            AlfworldCommand::Open(r) => here(r) && self.receptacle(r).openable && !s.open(r),
            AlfworldCommand::Close(r) => here(r) && self.receptacle(r).openable && s.open(r),
            AlfworldCommand::ExamineReceptacle(r) => here(r),
            // The domain intends to admit reachable objects too, but a stray comma in it makes that rule match nothing.
            AlfworldCommand::ExamineObject(o) => s.held == Some(o),
            AlfworldCommand::Take(o, r) => {
                s.held.is_none()
                    && here(r)
                    && self.object(o).properties.pickupable
                    && s.inside(&self.layout, o, r)
                    && self.is_accessible(s, r)
            }
            AlfworldCommand::Move(o, r) => {
                s.held == Some(o) && here(r) && self.is_accessible(s, r) && self.can_contain(o, r)
            }
            AlfworldCommand::Clean(o, r) => self.object(o).properties.cleanable && can_treat(o, r, Appliance::Sink),
            AlfworldCommand::Heat(o, r) => self.object(o).properties.heatable && can_treat(o, r, Appliance::Microwave),
            AlfworldCommand::Cool(o, r) => self.object(o).properties.coolable && can_treat(o, r, Appliance::Fridge),
            AlfworldCommand::UseObject(o) => {
                self.object(o).properties.toggleable
                    && self.receptacles_here(s).iter().any(|r| s.inside(&self.layout, o, *r))
            }
            AlfworldCommand::Slice(o, knife) => {
                s.held == Some(knife)
                    && self.object(knife).knife
                    && self.object(o).properties.sliceable
                    && s.located(&self.layout, o, s.location)
            }
        }
    }

    /// Applies an admissible command.
    pub fn apply(&self, s: &mut HouseholdState, command: AlfworldCommand) {
        let layout = &self.layout;
        match command {
            AlfworldCommand::GoTo(r) => s.location = self.receptacle(r).location,
            AlfworldCommand::Open(r) => s.set_open(r, true),
            AlfworldCommand::Close(r) => s.set_open(r, false),
            AlfworldCommand::Take(o, r) => {
                s.set_inside(layout, o, r, false);
                s.set_located(layout, o, s.location, false);
                s.held = Some(o);
            }
            AlfworldCommand::Move(o, r) => {
                s.set_inside(layout, o, r, true);
                s.set_located(layout, o, s.location, true);
                s.held = None;
            }
            AlfworldCommand::Clean(o, _) => s.set_flag(layout, ObjectFlag::Clean, o, true),
            AlfworldCommand::Heat(o, _) => {
                s.set_flag(layout, ObjectFlag::Hot, o, true);
                s.set_flag(layout, ObjectFlag::Cool, o, false);
            }
            AlfworldCommand::Cool(o, _) => {
                s.set_flag(layout, ObjectFlag::Cool, o, true);
                s.set_flag(layout, ObjectFlag::Hot, o, false);
            }
            AlfworldCommand::UseObject(o) => s.set_flag(layout, ObjectFlag::Toggled, o, true),
            AlfworldCommand::Slice(o, _) => s.set_flag(layout, ObjectFlag::Sliced, o, true),
            AlfworldCommand::Look
            | AlfworldCommand::Inventory
            | AlfworldCommand::Help
            | AlfworldCommand::ExamineReceptacle(_)
            | AlfworldCommand::ExamineObject(_) => {}
        }
    }

    /// Executes a command if it is admissible. Returns the feedback and whether it was admissible; otherwise nothing changes.
    pub fn step(&self, s: &mut HouseholdState, command: &str) -> (String, bool) {
        match self.parse_command(command).filter(|c| self.is_admissible(s, *c)) {
            Some(c) => {
                self.apply(s, c);
                (text::feedback(self, s, c), true)
            }
            None => (text::NOTHING_HAPPENS.to_owned(), false),
        }
    }

    /// All commands the original admits in this state, in lexicographic order.
    pub fn admissible_commands(&self, s: &HouseholdState) -> Vec<AlfworldCommand> {
        let mut here: Vec<u16> = self.receptacles_here(s).to_vec();
        here.sort_by(|a, b| self.receptacle(*a).name.cmp(&self.receptacle(*b).name));
        let ranked = |mut objects: Vec<u16>| {
            objects.sort_by_key(|o| self.object(*o).rank);
            objects.dedup();
            objects
        };
        let all = || 0..self.objects.len() as u16;
        let mut out = Vec::with_capacity(self.receptacles.len() + 24);
        let mut add = |c: AlfworldCommand| {
            if self.is_admissible(s, c) {
                out.push(c);
            }
        };
        // Verbs in alphabetical order, and by name within a verb, so that no texts need sorting.
        if let Some(o) = s.held {
            here.iter().for_each(|r| add(AlfworldCommand::Clean(o, *r)));
        }
        here.iter().for_each(|r| add(AlfworldCommand::Close(*r)));
        if let Some(o) = s.held {
            here.iter().for_each(|r| add(AlfworldCommand::Cool(o, *r)));
        }
        let mut held = s.held;
        for r in &here {
            if let Some(o) = held.take_if(|o| self.object(*o).name < self.receptacle(*r).name) {
                add(AlfworldCommand::ExamineObject(o));
            }
            add(AlfworldCommand::ExamineReceptacle(*r));
        }
        held.into_iter().for_each(|o| add(AlfworldCommand::ExamineObject(o)));
        self.receptacles_by_name.iter().for_each(|r| add(AlfworldCommand::GoTo(*r)));
        if let Some(o) = s.held {
            here.iter().for_each(|r| add(AlfworldCommand::Heat(o, *r)));
        }
        add(AlfworldCommand::Help);
        add(AlfworldCommand::Inventory);
        add(AlfworldCommand::Look);
        if let Some(o) = s.held {
            here.iter().for_each(|r| add(AlfworldCommand::Move(o, *r)));
        }
        here.iter().for_each(|r| add(AlfworldCommand::Open(*r)));
        if let Some(knife) = s.held.filter(|o| self.object(*o).knife) {
            let sliceable = all().filter(|o| self.object(*o).properties.sliceable).collect();
            ranked(sliceable).into_iter().for_each(|o| add(AlfworldCommand::Slice(o, knife)));
        }
        let reachable = || all().filter(|o| here.iter().any(|r| s.inside(&self.layout, *o, *r)));
        if s.held.is_none() {
            for o in ranked(reachable().collect()) {
                here.iter().for_each(|r| add(AlfworldCommand::Take(o, *r)));
            }
        }
        let toggleable = reachable().filter(|o| self.object(*o).properties.toggleable).collect();
        ranked(toggleable).into_iter().for_each(|o| add(AlfworldCommand::UseObject(o)));
        out
    }
}
