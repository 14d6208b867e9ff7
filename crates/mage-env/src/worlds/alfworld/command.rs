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
            Some(Entity::Receptacle(p)) => Some(p),
            _ => None,
        };
        let object = |name: &str| match self.entity_named(name) {
            Some(Entity::Object(t)) => Some(t),
            _ => None,
        };
        let into = |rest: &str, between: &str| {
            let (t, p) = rest.split_once(between)?;
            Some((object(t)?, receptacle(p)?))
        };
        let (verb, rest) = text.split_once(' ')?;
        Some(match verb {
            "go" => AlfworldCommand::GoTo(receptacle(rest.strip_prefix("to ")?)?),
            "open" => AlfworldCommand::Open(receptacle(rest)?),
            "close" => AlfworldCommand::Close(receptacle(rest)?),
            "examine" => match self.entity_named(rest)? {
                Entity::Receptacle(p) => AlfworldCommand::ExamineReceptacle(p),
                Entity::Object(t) => AlfworldCommand::ExamineObject(t),
            },
            "take" => into(rest, " from ").map(|(t, p)| AlfworldCommand::Take(t, p))?,
            "move" => into(rest, " to ").map(|(t, p)| AlfworldCommand::Move(t, p))?,
            "clean" => into(rest, " with ").map(|(t, p)| AlfworldCommand::Clean(t, p))?,
            "heat" => into(rest, " with ").map(|(t, p)| AlfworldCommand::Heat(t, p))?,
            "cool" => into(rest, " with ").map(|(t, p)| AlfworldCommand::Cool(t, p))?,
            "use" => AlfworldCommand::UseObject(object(rest)?),
            "slice" => {
                let (t, knife) = rest.split_once(" with ")?;
                AlfworldCommand::Slice(object(t)?, object(knife)?)
            }
            _ => return None,
        })
    }

    /// Formats a command in the original's words.
    pub fn format_command(&self, command: AlfworldCommand) -> String {
        let p = |p| &*self.receptacle(p).name;
        let t = |t| &*self.object(t).name;
        match command {
            AlfworldCommand::Look => "look".to_owned(),
            AlfworldCommand::Inventory => "inventory".to_owned(),
            AlfworldCommand::Help => "help".to_owned(),
            AlfworldCommand::GoTo(receptacle) => ["go to ", p(receptacle)].concat(),
            AlfworldCommand::Open(receptacle) => ["open ", p(receptacle)].concat(),
            AlfworldCommand::Close(receptacle) => ["close ", p(receptacle)].concat(),
            AlfworldCommand::ExamineReceptacle(receptacle) => ["examine ", p(receptacle)].concat(),
            AlfworldCommand::ExamineObject(object) => ["examine ", t(object)].concat(),
            AlfworldCommand::Take(object, receptacle) => ["take ", t(object), " from ", p(receptacle)].concat(),
            AlfworldCommand::Move(object, receptacle) => ["move ", t(object), " to ", p(receptacle)].concat(),
            AlfworldCommand::Clean(object, receptacle) => ["clean ", t(object), " with ", p(receptacle)].concat(),
            AlfworldCommand::Heat(object, receptacle) => ["heat ", t(object), " with ", p(receptacle)].concat(),
            AlfworldCommand::Cool(object, receptacle) => ["cool ", t(object), " with ", p(receptacle)].concat(),
            AlfworldCommand::UseObject(object) => ["use ", t(object)].concat(),
            AlfworldCommand::Slice(object, knife) => ["slice ", t(object), " with ", t(knife)].concat(),
        }
    }

    /// Whether the original admits a command in this state.
    pub fn is_admissible(&self, s: &HouseholdState, command: AlfworldCommand) -> bool {
        let here = |p: u16| self.receptacle(p).location == s.location;
        let can_treat =
            |t: u16, p: u16, appliance| s.held == Some(t) && here(p) && self.receptacle(p).appliance == appliance;
        match command {
            AlfworldCommand::Look | AlfworldCommand::Inventory | AlfworldCommand::Help => true,
            // The original removes actions without effect, such as going to the current location.
            AlfworldCommand::GoTo(p) => !here(p),
            AlfworldCommand::Open(p) => here(p) && self.receptacle(p).openable && !s.open(p),
            AlfworldCommand::Close(p) => here(p) && self.receptacle(p).openable && s.open(p),
            AlfworldCommand::ExamineReceptacle(p) => here(p),
            // The domain intends to admit reachable objects too, but a stray comma in it makes that rule match nothing.
            AlfworldCommand::ExamineObject(t) => s.held == Some(t),
            AlfworldCommand::Take(t, p) => {
                s.held.is_none()
                    && here(p)
                    && self.object(t).properties.pickupable
                    && s.inside(&self.layout, t, p)
                    && self.is_accessible(s, p)
            }
            AlfworldCommand::Move(t, p) => {
                s.held == Some(t) && here(p) && self.is_accessible(s, p) && self.can_contain(t, p)
            }
            AlfworldCommand::Clean(t, p) => self.object(t).properties.cleanable && can_treat(t, p, Appliance::Sink),
            AlfworldCommand::Heat(t, p) => self.object(t).properties.heatable && can_treat(t, p, Appliance::Microwave),
            AlfworldCommand::Cool(t, p) => self.object(t).properties.coolable && can_treat(t, p, Appliance::Fridge),
            AlfworldCommand::UseObject(t) => {
                self.object(t).properties.toggleable
                    && self.receptacles_here(s).iter().any(|p| s.inside(&self.layout, t, *p))
            }
            AlfworldCommand::Slice(t, knife) => {
                s.held == Some(knife)
                    && self.object(knife).knife
                    && self.object(t).properties.sliceable
                    && s.located(&self.layout, t, s.location)
            }
        }
    }

    /// Applies an admissible command.
    pub fn apply(&self, s: &mut HouseholdState, command: AlfworldCommand) {
        let layout = &self.layout;
        match command {
            AlfworldCommand::GoTo(p) => s.location = self.receptacle(p).location,
            AlfworldCommand::Open(p) => s.set_open(p, true),
            AlfworldCommand::Close(p) => s.set_open(p, false),
            AlfworldCommand::Take(t, p) => {
                s.set_inside(layout, t, p, false);
                s.set_located(layout, t, s.location, false);
                s.held = Some(t);
            }
            AlfworldCommand::Move(t, p) => {
                s.set_inside(layout, t, p, true);
                s.set_located(layout, t, s.location, true);
                s.held = None;
            }
            AlfworldCommand::Clean(t, _) => s.set_flag(layout, ObjectFlag::Clean, t, true),
            AlfworldCommand::Heat(t, _) => {
                s.set_flag(layout, ObjectFlag::Hot, t, true);
                s.set_flag(layout, ObjectFlag::Cool, t, false);
            }
            AlfworldCommand::Cool(t, _) => {
                s.set_flag(layout, ObjectFlag::Cool, t, true);
                s.set_flag(layout, ObjectFlag::Hot, t, false);
            }
            AlfworldCommand::UseObject(t) => s.set_flag(layout, ObjectFlag::Toggled, t, true),
            AlfworldCommand::Slice(t, _) => s.set_flag(layout, ObjectFlag::Sliced, t, true),
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
            objects.sort_by_key(|t| self.object(*t).rank);
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
        if let Some(t) = s.held {
            here.iter().for_each(|p| add(AlfworldCommand::Clean(t, *p)));
        }
        here.iter().for_each(|p| add(AlfworldCommand::Close(*p)));
        if let Some(t) = s.held {
            here.iter().for_each(|p| add(AlfworldCommand::Cool(t, *p)));
        }
        let mut held = s.held;
        for p in &here {
            if let Some(t) = held.take_if(|t| self.object(*t).name < self.receptacle(*p).name) {
                add(AlfworldCommand::ExamineObject(t));
            }
            add(AlfworldCommand::ExamineReceptacle(*p));
        }
        held.into_iter().for_each(|t| add(AlfworldCommand::ExamineObject(t)));
        self.receptacles_by_name.iter().for_each(|p| add(AlfworldCommand::GoTo(*p)));
        if let Some(t) = s.held {
            here.iter().for_each(|p| add(AlfworldCommand::Heat(t, *p)));
        }
        add(AlfworldCommand::Help);
        add(AlfworldCommand::Inventory);
        add(AlfworldCommand::Look);
        if let Some(t) = s.held {
            here.iter().for_each(|p| add(AlfworldCommand::Move(t, *p)));
        }
        here.iter().for_each(|p| add(AlfworldCommand::Open(*p)));
        if let Some(knife) = s.held.filter(|t| self.object(*t).knife) {
            let sliceable = all().filter(|t| self.object(*t).properties.sliceable).collect();
            ranked(sliceable).into_iter().for_each(|t| add(AlfworldCommand::Slice(t, knife)));
        }
        let reachable = || all().filter(|t| here.iter().any(|p| s.inside(&self.layout, *t, *p)));
        if s.held.is_none() {
            for t in ranked(reachable().collect()) {
                here.iter().for_each(|p| add(AlfworldCommand::Take(t, *p)));
            }
        }
        let toggleable = reachable().filter(|t| self.object(*t).properties.toggleable).collect();
        ranked(toggleable).into_iter().for_each(|t| add(AlfworldCommand::UseObject(t)));
        out
    }
}
