//! Export of generated games as game files that the original can play.
//!
//! Domain and grammar are copied from a game in the user's ALFWorld data; this crate does not contain them.

use super::{
    game_file::{AlfworldGame, GameFile, split_task},
    generator::GeneratedGame,
    object_tables::{FIXTURES, OBJECT_TYPES, RECEPTACLES},
    scene::{Household, HouseholdObject, ObjectProperties},
};
use crate::{Error, Result};
use std::{collections::BTreeSet, fmt::Write};

/// The original's domain and grammar, from one of its game files.
pub struct OfficialRules {
    domain: String,
    grammar: [String; 2],
}

impl OfficialRules {
    /// Extracts the rules from an official game file.
    pub(crate) fn from_game(bytes: &[u8], origin: &str) -> Result<Self> {
        AlfworldGame::read(bytes, origin)?;
        let file: GameFile<'_> =
            serde_json::from_slice(bytes).map_err(|e| Error::invalid(origin, format!("not a game.tw-pddl: {e}")))?;
        let (before, _, after) = split_task(&file.grammar)?;
        Ok(OfficialRules { grammar: [before.to_owned(), after.to_owned()], domain: file.pddl_domain.into_owned() })
    }

    /// The game file of a generated game.
    pub fn game_file(&self, game: &GeneratedGame) -> String {
        let file = GameFile {
            pddl_domain: self.domain.as_str().into(),
            grammar: [&*self.grammar[0], &game.household.task, &*self.grammar[1]].concat().into(),
            pddl_problem: problem(&game.household).into(),
            solvable: true,
            walkthrough: game.walkthrough.clone(),
        };
        serde_json::to_string(&file).expect("plain data serialises")
    }
}

/// A household as a PDDL problem.
pub fn problem(h: &Household) -> String {
    let mut out = String::with_capacity(32_768);
    out.push_str("(define (problem household)\n(:domain alfred)\n(:objects\n");
    let mut declare = |name: &str, pddl_type: &str| {
        let _ = writeln!(out, "  {name} - {pddl_type}");
    };
    declare(&h.agent, "agent");
    h.locations.iter().for_each(|l| declare(l, "location"));
    h.receptacles.iter().for_each(|r| declare(&r.id, "receptacle"));
    h.objects.iter().for_each(|t| declare(&t.id, "object"));
    let lower = |name: &str| format!("{}type", name.to_lowercase());
    // The domain refers to types that a household may lack, so all types are declared.
    let receptacle_kinds: BTreeSet<String> =
        RECEPTACLES.iter().map(|r| lower(r)).chain(h.receptacles.iter().map(|r| r.kind.clone())).collect();
    let object_kinds: BTreeSet<String> = OBJECT_TYPES
        .iter()
        .map(|k| lower(k.name))
        .chain(FIXTURES.iter().map(|f| lower(f)))
        .chain(h.objects.iter().filter_map(|t| t.kind.clone()))
        .collect();
    receptacle_kinds.iter().for_each(|k| declare(k, "rtype"));
    object_kinds.iter().for_each(|k| declare(k, "otype"));
    out.push_str(")\n(:init\n");
    let mut fact = |words: &[&str]| {
        let _ = writeln!(out, "  ({})", words.join(" "));
    };
    fact(&["atlocation", &h.agent, &h.locations[h.start]]);
    for r in &h.receptacles {
        fact(&["receptacletype", &r.id, &r.kind]);
        fact(&["receptacleatlocation", &r.id, &h.locations[r.location]]);
        if r.openable {
            fact(&["openable", &r.id]);
        }
    }
    h.can_contain.iter().for_each(|(r, t)| fact(&["cancontain", r, t]));
    for t in &h.objects {
        t.kind.iter().for_each(|k| fact(&["objecttype", &t.id, k]));
        properties(t).iter().filter(|(_, has)| *has).for_each(|(name, _)| fact(&[name, &t.id]));
        t.locations.iter().for_each(|l| fact(&["objectatlocation", &t.id, &h.locations[*l]]));
        t.inside.iter().for_each(|r| fact(&["inreceptacle", &t.id, &h.receptacles[*r].id]));
        t.contents.iter().for_each(|inner| fact(&["inreceptacleobject", &h.objects[*inner].id, &t.id]));
    }
    let _ = write!(out, ")\n(:goal {})\n)\n", h.goal.to_pddl());
    out
}

fn properties(t: &HouseholdObject) -> [(&'static str, bool); 8] {
    let ObjectProperties { pickupable, cleanable, heatable, coolable, toggleable, sliceable, receptacle_object } =
        t.properties;
    [
        ("pickupable", pickupable),
        ("cleanable", cleanable),
        ("heatable", heatable),
        ("coolable", coolable),
        ("toggleable", toggleable),
        ("sliceable", sliceable),
        ("isreceptacleobject", receptacle_object),
        ("iscool", t.cool),
    ]
}
