//! Observation texts.
//!
//! All sentences are the original's, byte for byte. Lists are in the order of identifiers, not of numbers; the article is
//! always "a".

use super::{
    command::AlfworldCommand,
    state::{HouseholdState, ObjectFlag},
    world::HouseholdWorld,
};

/// Feedback on a command that is not admissible.
pub const NOTHING_HAPPENS: &str = "Nothing happens.";

const HELP: &str = "Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
";

/// The first observation of an episode.
pub fn initial_observation(world: &HouseholdWorld) -> String {
    let mut out = String::with_capacity(640);
    out.push_str("-= Welcome to TextWorld, ALFRED! =-\n\n");
    if world.receptacles_here(&world.start).is_empty() {
        out.push_str("You are in the middle of a room. Looking quickly around you, you see ");
        push_list(&mut out, "a ", world.receptacles.iter().map(|r| &*r.name));
        out.push('.');
    } else {
        describe_location(world, &world.start, &mut out);
    }
    out.push_str("\n\n");
    out.push_str(&world.task);
    out
}

/// Feedback on an executed command.
pub(super) fn feedback(world: &HouseholdWorld, s: &HouseholdState, command: AlfworldCommand) -> String {
    let mut out = String::with_capacity(96);
    let mut push_parts = |parts: &[&str]| parts.iter().for_each(|r| out.push_str(r));
    let r = |r| &*world.receptacle(r).name;
    let o = |o| &*world.object(o).name;
    match command {
        AlfworldCommand::Help => push_parts(&[HELP]),
        AlfworldCommand::Look => describe_location(world, s, &mut out),
        AlfworldCommand::Inventory => match s.held {
            Some(held) => push_parts(&["You are carrying: a ", o(held), "."]),
            None => push_parts(&["You are not carrying anything."]),
        },
        AlfworldCommand::GoTo(receptacle) => {
            push_parts(&["You arrive at ", r(receptacle), ". "]);
            describe_receptacle(world, s, receptacle, &mut out);
        }
        AlfworldCommand::Open(receptacle) => {
            push_parts(&["You open the ", r(receptacle), ". "]);
            describe_receptacle(world, s, receptacle, &mut out);
        }
        AlfworldCommand::Close(receptacle) => push_parts(&["You close the ", r(receptacle), "."]),
        AlfworldCommand::ExamineReceptacle(receptacle) => describe_receptacle(world, s, receptacle, &mut out),
        AlfworldCommand::ExamineObject(object) => describe_object(world, s, object, &mut out),
        AlfworldCommand::Take(object, receptacle) => {
            push_parts(&["You pick up the ", o(object), " from the ", r(receptacle), "."]);
        }
        AlfworldCommand::Move(object, receptacle) => {
            push_parts(&["You move the ", o(object), " to the ", r(receptacle), "."]);
        }
        AlfworldCommand::Clean(object, receptacle) => {
            push_parts(&["You clean the ", o(object), " using the ", r(receptacle), "."]);
        }
        AlfworldCommand::Heat(object, receptacle) => {
            push_parts(&["You heat the ", o(object), " using the ", r(receptacle), "."]);
        }
        AlfworldCommand::Cool(object, receptacle) => {
            push_parts(&["You cool the ", o(object), " using the ", r(receptacle), "."]);
        }
        AlfworldCommand::UseObject(object) => push_parts(&["You turn on the ", o(object), "."]),
        AlfworldCommand::Slice(object, knife) => {
            push_parts(&["You sliced the ", o(object), " with the ", o(knife), "."]);
        }
    }
    out
}

/// Describes a receptacle and its visible contents.
pub(super) fn describe_receptacle(world: &HouseholdWorld, s: &HouseholdState, receptacle: u16, out: &mut String) {
    let name = &world.receptacle(receptacle).name;
    if !world.receptacle(receptacle).openable {
        out.push_str("On the ");
        out.push_str(name);
        out.push_str(", you see ");
    } else if s.open(receptacle) {
        out.push_str("The ");
        out.push_str(name);
        out.push_str(" is open. In it, you see ");
    } else {
        out.push_str("The ");
        out.push_str(name);
        out.push_str(" is closed.");
        return;
    }
    push_list(out, "a ", world.contents(s, receptacle).map(|o| &*world.object(o).name));
    out.push('.');
}

fn describe_object(world: &HouseholdWorld, s: &HouseholdState, object: u16, out: &mut String) {
    let item = world.object(object);
    let is = |flag| s.has_flag(&world.layout, flag, object);
    if item.properties.receptacle_object {
        out.push_str("This is a normal ");
        out.push_str(&item.name);
        out.push_str(". In it, you see ");
        push_list(out, "a ", item.contents.iter().map(|o| &*world.object(*o).name));
        out.push('.');
        return;
    }
    let sliced = if is(ObjectFlag::Sliced) { "sliced " } else { "" };
    let state = match (is(ObjectFlag::Hot), is(ObjectFlag::Clean), is(ObjectFlag::Cool)) {
        (true, true, _) => "hot and clean ",
        (_, true, true) => "cool and clean ",
        (_, true, _) => "clean ",
        (true, ..) => "hot ",
        (_, _, true) if sliced.is_empty() => "cold ",
        (_, _, true) => "cool ",
        _ => "",
    };
    let parts = if state.is_empty() && item.properties.toggleable && is(ObjectFlag::Toggled) {
        ["This ", "", "", &item.name, " is on."]
    } else if state.is_empty() && sliced.is_empty() {
        ["There's nothing special about ", "", "", &item.name, "."]
    } else {
        ["This is a ", state, sliced, &item.name, "."]
    };
    parts.iter().for_each(|r| out.push_str(r));
}

fn describe_location(world: &HouseholdWorld, s: &HouseholdState, out: &mut String) {
    let here = world.receptacles_here(s);
    if here.is_empty() {
        // The initial observation lists all receptacles; this rule is bound to the location, which has none.
        out.push_str("You are in the middle of a room. Looking quickly around you, you see nothing.");
        return;
    }
    out.push_str("You are facing the ");
    push_list(out, "", here.iter().map(|r| &*world.receptacle(*r).name));
    out.push_str(". Next to it, you see ");
    // One entry per receptacle here that an object was taken from, if the object is now elsewhere at this location.
    let layout = &world.layout;
    let moved = (0..world.objects.len() as u16)
        .filter(|o| s.located(layout, *o, s.location))
        .flat_map(|o| here.iter().filter(move |r| s.removed(layout, o, **r)).map(move |_| &*world.object(o).name));
    push_list(out, "a ", moved);
    out.push('.');
}

/// "nothing", "a x", "a x, and a y", "a x, a y, and a z".
fn push_list<'n>(out: &mut String, article: &str, names: impl Iterator<Item = &'n str>) {
    let mut names = names.peekable();
    if names.peek().is_none() {
        out.push_str("nothing");
        return;
    }
    let mut first = true;
    while let Some(name) = names.next() {
        if !first {
            out.push_str(if names.peek().is_some() { ", " } else { ", and " });
        }
        first = false;
        out.push_str(article);
        out.push_str(name);
    }
}

/// The locally observable state: receptacles at the agent's location and the held object.
pub(super) fn surroundings(world: &HouseholdWorld, s: &HouseholdState) -> String {
    let mut out = String::with_capacity(128);
    for receptacle in world.receptacles_here(s) {
        describe_receptacle(world, s, *receptacle, &mut out);
        out.push(' ');
    }
    if world.receptacles_here(s).is_empty() {
        out.push_str("You are in the middle of a room. ");
    }
    match s.held {
        None => out.push_str("You are not carrying anything."),
        Some(object) => {
            out.push_str("You are carrying: a ");
            out.push_str(&world.object(object).name);
            out.push_str(". ");
            describe_object(world, s, object, &mut out);
            // The description of a receptacle object does not state its flags.
            let done = [(ObjectFlag::Clean, " clean"), (ObjectFlag::Hot, " hot"), (ObjectFlag::Cool, " cool")];
            let done = done.iter().filter(|(flag, _)| s.has_flag(&world.layout, *flag, object));
            done.for_each(|(_, word)| out.push_str(word));
        }
    }
    out
}
