//! What does one read?
//!
//! The sentences are the original's, to the letter. Lists are in the order of identifiers, not of numbers; the article is
//! always "a".

use super::{
    command::Command,
    state::{Mark, State},
    world::World,
};

/// What anything impossible is answered with.
pub const NOTHING: &str = "Nothing happens.";

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

/// What one reads first.
pub fn opening(world: &World) -> String {
    let mut out = String::with_capacity(640);
    out.push_str("-= Welcome to TextWorld, ALFRED! =-\n\n");
    if world.here(&world.start).is_empty() {
        out.push_str("You are in the middle of a room. Looking quickly around you, you see ");
        list(&mut out, "a ", world.places.iter().map(|p| &*p.name));
        out.push('.');
    } else {
        look(world, &world.start, &mut out);
    }
    out.push_str("\n\n");
    out.push_str(&world.task);
    out
}

/// What one reads after a command has been carried out.
pub(super) fn feedback(world: &World, s: &State, command: Command) -> String {
    let mut out = String::with_capacity(96);
    let mut say = |parts: &[&str]| parts.iter().for_each(|p| out.push_str(p));
    let p = |p| &*world.place(p).name;
    let t = |t| &*world.thing(t).name;
    match command {
        Command::Help => say(&[HELP]),
        Command::Look => look(world, s, &mut out),
        Command::Inventory => match s.held {
            Some(held) => say(&["You are carrying: a ", t(held), "."]),
            None => say(&["You are not carrying anything."]),
        },
        Command::GoTo(place) => {
            say(&["You arrive at ", p(place), ". "]);
            receptacle(world, s, place, &mut out);
        }
        Command::Open(place) => {
            say(&["You open the ", p(place), ". "]);
            receptacle(world, s, place, &mut out);
        }
        Command::Close(place) => say(&["You close the ", p(place), "."]),
        Command::ExaminePlace(place) => receptacle(world, s, place, &mut out),
        Command::ExamineThing(thing) => object(world, s, thing, &mut out),
        Command::Take(thing, place) => say(&["You pick up the ", t(thing), " from the ", p(place), "."]),
        Command::Move(thing, place) => say(&["You move the ", t(thing), " to the ", p(place), "."]),
        Command::Clean(thing, place) => say(&["You clean the ", t(thing), " using the ", p(place), "."]),
        Command::Heat(thing, place) => say(&["You heat the ", t(thing), " using the ", p(place), "."]),
        Command::Cool(thing, place) => say(&["You cool the ", t(thing), " using the ", p(place), "."]),
        Command::Use(thing) => say(&["You turn on the ", t(thing), "."]),
        Command::Slice(thing, knife) => say(&["You sliced the ", t(thing), " with the ", t(knife), "."]),
    }
    out
}

/// A receptacle, and what is in or on it as far as one can see.
pub(super) fn receptacle(world: &World, s: &State, place: u16, out: &mut String) {
    let name = &world.place(place).name;
    if !world.place(place).openable {
        out.push_str("On the ");
        out.push_str(name);
        out.push_str(", you see ");
    } else if s.open(place) {
        out.push_str("The ");
        out.push_str(name);
        out.push_str(" is open. In it, you see ");
    } else {
        out.push_str("The ");
        out.push_str(name);
        out.push_str(" is closed.");
        return;
    }
    list(out, "a ", world.contents(s, place).map(|t| &*world.thing(t).name));
    out.push('.');
}

fn object(world: &World, s: &State, thing: u16, out: &mut String) {
    let item = world.thing(thing);
    let is = |mark| s.is(&world.plan, mark, thing);
    if item.traits.vessel {
        out.push_str("This is a normal ");
        out.push_str(&item.name);
        out.push_str(". In it, you see ");
        list(out, "a ", item.contents.iter().map(|t| &*world.thing(*t).name));
        out.push('.');
        return;
    }
    let sliced = if is(Mark::Sliced) { "sliced " } else { "" };
    let state = match (is(Mark::Hot), is(Mark::Clean), is(Mark::Cool)) {
        (true, true, _) => "hot and clean ",
        (_, true, true) => "cool and clean ",
        (_, true, _) => "clean ",
        (true, ..) => "hot ",
        (_, _, true) if sliced.is_empty() => "cold ",
        (_, _, true) => "cool ",
        _ => "",
    };
    let parts = if state.is_empty() && item.traits.toggleable && is(Mark::Toggled) {
        ["This ", "", "", &item.name, " is on."]
    } else if state.is_empty() && sliced.is_empty() {
        ["There's nothing special about ", "", "", &item.name, "."]
    } else {
        ["This is a ", state, sliced, &item.name, "."]
    };
    parts.iter().for_each(|p| out.push_str(p));
}

fn look(world: &World, s: &State, out: &mut String) {
    let here = world.here(s);
    if here.is_empty() {
        // Unlike the opening, which lists everything: here the location is bound, and nothing stands at it.
        out.push_str("You are in the middle of a room. Looking quickly around you, you see nothing.");
        return;
    }
    out.push_str("You are facing the ");
    list(out, "", here.iter().map(|p| &*world.place(*p).name));
    out.push_str(". Next to it, you see ");
    // One entry for each place here that a thing was taken from, if it now lies elsewhere at the same location.
    let plan = &world.plan;
    let moved = (0..world.things.len() as u16)
        .filter(|t| s.located(plan, *t, s.at))
        .flat_map(|t| here.iter().filter(move |p| s.removed(plan, t, **p)).map(move |_| &*world.thing(t).name));
    list(out, "a ", moved);
    out.push('.');
}

/// "nothing", "a x", "a x, and a y", "a x, a y, and a z".
fn list<'n>(out: &mut String, article: &str, names: impl Iterator<Item = &'n str>) {
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

/// What can be seen from where one stands, and what one carries: the state as far as it is known here and now.
pub(super) fn surroundings(world: &World, s: &State) -> String {
    let mut out = String::with_capacity(128);
    for place in world.here(s) {
        receptacle(world, s, *place, &mut out);
        out.push(' ');
    }
    if world.here(s).is_empty() {
        out.push_str("You are in the middle of a room. ");
    }
    match s.held {
        None => out.push_str("You are not carrying anything."),
        Some(thing) => {
            out.push_str("You are carrying: a ");
            out.push_str(&world.thing(thing).name);
            out.push_str(". ");
            object(world, s, thing, &mut out);
            // A vessel's sentence hides what was done to it.
            let done = [(Mark::Clean, " clean"), (Mark::Hot, " hot"), (Mark::Cool, " cool")];
            let done = done.iter().filter(|(mark, _)| s.is(&world.plan, *mark, thing));
            done.for_each(|(_, word)| out.push_str(word));
        }
    }
    out
}
