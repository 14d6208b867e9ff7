//! What is asked for?
//!
//! Official goals have one of six logical forms, one for each sort of task. They are recognised word by word; a goal of
//! another form is refused rather than guessed at.

use super::pddl::{Token, Tokens};
use crate::Result;
use serde::{Deserialize, Serialize};

/// The six sorts of task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskKind {
    /// Put a thing somewhere.
    Place,
    /// Hold a thing while standing where a lamp has been switched on.
    Look,
    /// Put a cleaned thing somewhere.
    Clean,
    /// Put a heated thing somewhere.
    Heat,
    /// Put a cooled thing somewhere.
    Cool,
    /// Put two things into the same place.
    Two,
}

impl TaskKind {
    /// All of them, in the original's order.
    pub const ALL: [TaskKind; 6] =
        [TaskKind::Place, TaskKind::Look, TaskKind::Clean, TaskKind::Heat, TaskKind::Cool, TaskKind::Two];

    /// The name in the folders of the official data.
    pub fn folder(self) -> &'static str {
        match self {
            TaskKind::Place => "pick_and_place_simple",
            TaskKind::Look => "look_at_obj_in_light",
            TaskKind::Clean => "pick_clean_then_place_in_recep",
            TaskKind::Heat => "pick_heat_then_place_in_recep",
            TaskKind::Cool => "pick_cool_then_place_in_recep",
            TaskKind::Two => "pick_two_obj_and_place",
        }
    }

    /// One word for it.
    pub fn word(self) -> &'static str {
        match self {
            TaskKind::Place => "place",
            TaskKind::Look => "look",
            TaskKind::Clean => "clean",
            TaskKind::Heat => "heat",
            TaskKind::Cool => "cool",
            TaskKind::Two => "two",
        }
    }
}

/// What must be the case in the end. It is about kinds: any thing of the kind in any place of the kind will do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Goal {
    /// The sort of task.
    pub kind: TaskKind,
    /// The kind of thing, such as `newspapertype`.
    pub thing: String,
    /// The kind of receptacle, or of lamp in a [`TaskKind::Look`] task.
    pub target: String,
}

const PLACE: &str = "(and (exists (?r - receptacle) (exists (?o - object) (and
    (inreceptacle ?o ?r) (objecttype ?o THING) (receptacletype ?r TARGET)))))";
const CLEAN: &str = "(and (exists (?r - receptacle) (exists (?o - object) (and (cleanable ?o)
    (objecttype ?o THING) (receptacletype ?r TARGET) (isclean ?o) (inreceptacle ?o ?r)))))";
const HEAT: &str = "(and (exists (?r - receptacle) (exists (?o - object) (and (heatable ?o)
    (objecttype ?o THING) (receptacletype ?r TARGET) (ishot ?o) (inreceptacle ?o ?r)))))";
const COOL: &str = "(and (exists (?r - receptacle) (exists (?o - object) (and (coolable ?o)
    (objecttype ?o THING) (receptacletype ?r TARGET) (iscool ?o) (inreceptacle ?o ?r)))))";
const TWO: &str = "(and (exists (?r - receptacle) (exists (?o1 - object) (and
    (objecttype ?o1 THING) (receptacletype ?r TARGET) (inreceptacle ?o1 ?r)
    (exists (?o2 - object) (and (not (= ?o1 ?o2))
        (objecttype ?o2 THING) (receptacletype ?r TARGET) (inreceptacle ?o2 ?r)))))))";
const LOOK: &str = "(and (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and
    (objecttype ?ot TARGET) (toggleable ?ot) (istoggled ?ot) (receptacleatlocation ?r ?l) (atlocation ?a ?l)
    (inreceptacle ?ot ?r))) (exists (?o - object ?a - agent) (and (objecttype ?o THING) (holds ?a ?o))))";

/// A sort of task and its form; `THING` and `TARGET` stand for kinds.
fn form(kind: TaskKind) -> &'static str {
    match kind {
        TaskKind::Place => PLACE,
        TaskKind::Look => LOOK,
        TaskKind::Clean => CLEAN,
        TaskKind::Heat => HEAT,
        TaskKind::Cool => COOL,
        TaskKind::Two => TWO,
    }
}

impl Goal {
    /// Reads what follows `(:goal`, up to and with its closing bracket.
    pub(super) fn read(tokens: &mut Tokens<'_>) -> Result<Self> {
        let mut furthest: Option<(usize, Tokens<'_>)> = None;
        for kind in TaskKind::ALL {
            let mut here = tokens.clone();
            match match_form(kind, &mut here) {
                Ok(goal) => {
                    here.expect(Token::Close)?;
                    *tokens = here;
                    return Ok(goal);
                }
                Err(matched) if furthest.as_ref().is_none_or(|(most, _)| matched > *most) => {
                    furthest = Some((matched, here));
                }
                Err(_) => {}
            }
        }
        let (_, at) = furthest.expect("there are six forms");
        Err(at
            .wrong("the goal has none of the six forms of ALFWorld's tasks; this is where it departs from the nearest"))
    }

    /// The goal as PDDL, in the official form.
    pub fn to_pddl(&self) -> String {
        form(self.kind).replace("THING", &self.thing).replace("TARGET", &self.target)
    }
}

/// Matches tokens with a form, or says how many tokens matched.
fn match_form(kind: TaskKind, tokens: &mut Tokens<'_>) -> std::result::Result<Goal, usize> {
    let (mut thing, mut target) = (None, None);
    let mut wanted = Tokens::new(form(kind));
    let mut matched = 0;
    while let Some(want) = wanted.next() {
        let found = tokens.next().ok_or(matched)?;
        let fits = match (want, found) {
            (Token::Word("THING"), Token::Word(w)) => *thing.get_or_insert(w) == w,
            (Token::Word("TARGET"), Token::Word(w)) => *target.get_or_insert(w) == w,
            (want, found) => want == found,
        };
        if !fits {
            return Err(matched);
        }
        matched += 1;
    }
    let (thing, target) = (thing.expect("in every form").to_owned(), target.expect("in every form").to_owned());
    Ok(Goal { kind, thing, target })
}

/// Turns `newspapertype` into `newspaper`.
pub(super) fn bare(kind: &str) -> &str {
    kind.strip_suffix("type").unwrap_or(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_back() {
        for kind in TaskKind::ALL {
            let goal = Goal { kind, thing: "mugtype".to_owned(), target: "desktype".to_owned() };
            let text = format!("{})", goal.to_pddl());
            assert_eq!(Goal::read(&mut Tokens::new(&text)).unwrap(), goal);
        }
    }

    #[test]
    fn other_forms_are_refused_where_they_depart() {
        let text = PLACE.replace("THING", "mugtype").replace("TARGET", "desktype");
        let bent = format!("{})", text.replace("(inreceptacle ?o ?r)", "\n(full ?r)"));
        let error = Goal::read(&mut Tokens::new(&bent)).unwrap_err().to_string();
        assert!(error.contains("line 3") && error.contains("none of the six forms"), "{error}");
        let two_kinds = TWO.replacen("THING", "mugtype", 1).replace("THING", "pentype").replace("TARGET", "desktype");
        assert!(Goal::read(&mut Tokens::new(&format!("{two_kinds})"))).is_err());
    }
}
