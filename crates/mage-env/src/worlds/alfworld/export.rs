//! How does a household become a game file that the original can play?
//!
//! Domain and grammar are taken from a game of the user's own ALFWorld data; this crate has no copy of them.

use super::{
    game_file::{Game, GameFile, split_task},
    generator::Made,
    object_tables::{FIXED, KINDS, RECEPTACLES},
    scene::{Household, Thing, Traits},
};
use crate::{Error, Result};
use std::{collections::BTreeSet, fmt::Write};

/// The rules of the original, borrowed from one of its games.
pub struct Rules {
    domain: String,
    grammar: [String; 2],
}

impl Rules {
    /// Takes the rules out of an official game file.
    pub fn from_game(bytes: &[u8], place: &str) -> Result<Self> {
        Game::read(bytes, place)?;
        let file: GameFile<'_> =
            serde_json::from_slice(bytes).map_err(|e| Error::invalid(place, format!("not a game.tw-pddl: {e}")))?;
        let (before, _, after) = split_task(&file.grammar)?;
        Ok(Rules { grammar: [before.to_owned(), after.to_owned()], domain: file.pddl_domain.into_owned() })
    }

    /// The game file of a generated game.
    pub fn game_file(&self, made: &Made) -> String {
        let file = GameFile {
            pddl_domain: self.domain.as_str().into(),
            grammar: [&*self.grammar[0], &made.household.task, &*self.grammar[1]].concat().into(),
            pddl_problem: problem(&made.household).into(),
            solvable: true,
            walkthrough: made.walkthrough.clone(),
        };
        serde_json::to_string(&file).expect("plain data serialises")
    }
}

/// A household as a PDDL problem.
pub fn problem(h: &Household) -> String {
    let mut out = String::with_capacity(32_768);
    out.push_str("(define (problem household)\n(:domain alfred)\n(:objects\n");
    let mut declare = |name: &str, sort: &str| {
        let _ = writeln!(out, "  {name} - {sort}");
    };
    declare(&h.agent, "agent");
    h.locations.iter().for_each(|l| declare(l, "location"));
    h.receptacles.iter().for_each(|r| declare(&r.id, "receptacle"));
    h.things.iter().for_each(|t| declare(&t.id, "object"));
    let lower = |name: &str| format!("{}type", name.to_lowercase());
    // The domain names kinds that a home may lack, so all are declared.
    let receptacle_kinds: BTreeSet<String> =
        RECEPTACLES.iter().map(|r| lower(r)).chain(h.receptacles.iter().map(|r| r.kind.clone())).collect();
    let thing_kinds: BTreeSet<String> = KINDS
        .iter()
        .map(|k| lower(k.name))
        .chain(FIXED.iter().map(|f| lower(f)))
        .chain(h.things.iter().filter_map(|t| t.kind.clone()))
        .collect();
    receptacle_kinds.iter().for_each(|k| declare(k, "rtype"));
    thing_kinds.iter().for_each(|k| declare(k, "otype"));
    out.push_str(")\n(:init\n");
    let mut fact = |words: &[&str]| {
        let _ = writeln!(out, "  ({})", words.join(" "));
    };
    fact(&["atlocation", &h.agent, &h.locations[h.start]]);
    for r in &h.receptacles {
        fact(&["receptacletype", &r.id, &r.kind]);
        fact(&["receptacleatlocation", &r.id, &h.locations[r.at]]);
        if r.openable {
            fact(&["openable", &r.id]);
        }
    }
    h.fits.iter().for_each(|(r, t)| fact(&["cancontain", r, t]));
    for t in &h.things {
        t.kind.iter().for_each(|k| fact(&["objecttype", &t.id, k]));
        traits(t).iter().filter(|(_, has)| *has).for_each(|(name, _)| fact(&[name, &t.id]));
        t.at.iter().for_each(|l| fact(&["objectatlocation", &t.id, &h.locations[*l]]));
        t.inside.iter().for_each(|r| fact(&["inreceptacle", &t.id, &h.receptacles[*r].id]));
        t.contents.iter().for_each(|inner| fact(&["inreceptacleobject", &h.things[*inner].id, &t.id]));
    }
    let _ = write!(out, ")\n(:goal {})\n)\n", h.goal.to_pddl());
    out
}

fn traits(t: &Thing) -> [(&'static str, bool); 8] {
    let Traits { pickupable, cleanable, heatable, coolable, toggleable, sliceable, vessel } = t.traits;
    [
        ("pickupable", pickupable),
        ("cleanable", cleanable),
        ("heatable", heatable),
        ("coolable", coolable),
        ("toggleable", toggleable),
        ("sliceable", sliceable),
        ("isreceptacleobject", vessel),
        ("iscool", t.cool),
    ]
}
