//! Task types and goals.
//!
//! Official goals have one of six logical forms, one per task type. They are matched token by token; a goal of another form
//! is an error.

use super::pddl::{PddlToken, PddlTokens};
use crate::Result;
use serde::{Deserialize, Serialize};

/// The six task types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskType {
    /// Put an object in or on a receptacle.
    Place,
    /// Hold an object at the location of a lamp that is on.
    Look,
    /// Put a clean object in or on a receptacle.
    Clean,
    /// Put a hot object in or on a receptacle.
    Heat,
    /// Put a cool object in or on a receptacle.
    Cool,
    /// Put two objects in or on the same receptacle.
    Two,
}

impl TaskType {
    /// All task types, in the original's order.
    pub const ALL: [TaskType; 6] =
        [TaskType::Place, TaskType::Look, TaskType::Clean, TaskType::Heat, TaskType::Cool, TaskType::Two];

    /// The official name, with which directory names of the data begin.
    pub fn folder(self) -> &'static str {
        match self {
            TaskType::Place => "pick_and_place_simple",
            TaskType::Look => "look_at_obj_in_light",
            TaskType::Clean => "pick_clean_then_place_in_recep",
            TaskType::Heat => "pick_heat_then_place_in_recep",
            TaskType::Cool => "pick_cool_then_place_in_recep",
            TaskType::Two => "pick_two_obj_and_place",
        }
    }

    /// The name in options and in the compact form.
    pub fn word(self) -> &'static str {
        match self {
            TaskType::Place => "place",
            TaskType::Look => "look",
            TaskType::Clean => "clean",
            TaskType::Heat => "heat",
            TaskType::Cool => "cool",
            TaskType::Two => "two",
        }
    }
}

/// A goal. It names types: any object and any receptacle of these types satisfy it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TaskGoal {
    /// Task type.
    pub kind: TaskType,
    /// Object type, such as `newspapertype`.
    pub object: String,
    /// Receptacle type, or lamp type in a [`TaskType::Look`] task.
    pub target: String,
}

const PLACE_GOAL: &str = "(and (exists (?r - receptacle) (exists (?o - object) (and
    (inreceptacle ?o ?r) (objecttype ?o OBJECT) (receptacletype ?r TARGET)))))";
const CLEAN_GOAL: &str = "(and (exists (?r - receptacle) (exists (?o - object) (and (cleanable ?o)
    (objecttype ?o OBJECT) (receptacletype ?r TARGET) (isclean ?o) (inreceptacle ?o ?r)))))";
const HEAT_GOAL: &str = "(and (exists (?r - receptacle) (exists (?o - object) (and (heatable ?o)
    (objecttype ?o OBJECT) (receptacletype ?r TARGET) (ishot ?o) (inreceptacle ?o ?r)))))";
const COOL_GOAL: &str = "(and (exists (?r - receptacle) (exists (?o - object) (and (coolable ?o)
    (objecttype ?o OBJECT) (receptacletype ?r TARGET) (iscool ?o) (inreceptacle ?o ?r)))))";
const TWO_GOAL: &str = "(and (exists (?r - receptacle) (exists (?o1 - object) (and
    (objecttype ?o1 OBJECT) (receptacletype ?r TARGET) (inreceptacle ?o1 ?r)
    (exists (?o2 - object) (and (not (= ?o1 ?o2))
        (objecttype ?o2 OBJECT) (receptacletype ?r TARGET) (inreceptacle ?o2 ?r)))))))";
const LOOK_GOAL: &str = "(and (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and
    (objecttype ?ot TARGET) (toggleable ?ot) (istoggled ?ot) (receptacleatlocation ?r ?l) (atlocation ?a ?l)
    (inreceptacle ?ot ?r))) (exists (?o - object ?a - agent) (and (objecttype ?o OBJECT) (holds ?a ?o))))";

/// PDDL of a task type's goal; `OBJECT` and `TARGET` stand for types.
fn goal_template(kind: TaskType) -> &'static str {
    match kind {
        TaskType::Place => PLACE_GOAL,
        TaskType::Look => LOOK_GOAL,
        TaskType::Clean => CLEAN_GOAL,
        TaskType::Heat => HEAT_GOAL,
        TaskType::Cool => COOL_GOAL,
        TaskType::Two => TWO_GOAL,
    }
}

impl TaskGoal {
    /// Parses the text after `(:goal`, up to and including its closing bracket.
    pub(super) fn read(tokens: &mut PddlTokens<'_>) -> Result<Self> {
        let mut furthest: Option<(usize, PddlTokens<'_>)> = None;
        for kind in TaskType::ALL {
            let mut here = tokens.clone();
            match match_template(kind, &mut here) {
                Ok(goal) => {
                    here.expect(PddlToken::Close)?;
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
            .error("the goal has none of the six forms of ALFWorld's tasks; this token differs from the closest form"))
    }

    /// The goal in PDDL, in the official form.
    pub(crate) fn to_pddl(&self) -> String {
        goal_template(self.kind).replace("OBJECT", &self.object).replace("TARGET", &self.target)
    }
}

/// Matches tokens against a task type's form. The error is the number of matching tokens.
fn match_template(kind: TaskType, tokens: &mut PddlTokens<'_>) -> std::result::Result<TaskGoal, usize> {
    let (mut object, mut target) = (None, None);
    let mut expected = PddlTokens::new(goal_template(kind));
    let mut matched = 0;
    while let Some(token) = expected.next() {
        let found = tokens.next().ok_or(matched)?;
        let matches = match (token, found) {
            (PddlToken::Word("OBJECT"), PddlToken::Word(w)) => *object.get_or_insert(w) == w,
            (PddlToken::Word("TARGET"), PddlToken::Word(w)) => *target.get_or_insert(w) == w,
            (token, found) => token == found,
        };
        if !matches {
            return Err(matched);
        }
        matched += 1;
    }
    let (object, target) = (
        object.expect("every form names both types").to_owned(),
        target.expect("every form names both types").to_owned(),
    );
    Ok(TaskGoal { kind, object, target })
}

/// `newspapertype` without its suffix: `newspaper`.
pub(super) fn without_type_suffix(kind: &str) -> &str {
    kind.strip_suffix("type").unwrap_or(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_round_trips() {
        for kind in TaskType::ALL {
            let goal = TaskGoal { kind, object: "mugtype".to_owned(), target: "desktype".to_owned() };
            let text = format!("{})", goal.to_pddl());
            assert_eq!(TaskGoal::read(&mut PddlTokens::new(&text)).unwrap(), goal);
        }
    }

    #[test]
    fn other_forms_are_rejected_at_the_first_difference() {
        let text = PLACE_GOAL.replace("OBJECT", "mugtype").replace("TARGET", "desktype");
        let invalid = format!("{})", text.replace("(inreceptacle ?o ?r)", "\n(full ?r)"));
        let error = TaskGoal::read(&mut PddlTokens::new(&invalid)).unwrap_err().to_string();
        assert!(error.contains("line 3") && error.contains("none of the six forms"), "{error}");
        let two_kinds =
            TWO_GOAL.replacen("OBJECT", "mugtype", 1).replace("OBJECT", "pentype").replace("TARGET", "desktype");
        assert!(TaskGoal::read(&mut PddlTokens::new(&format!("{two_kinds})"))).is_err());
    }
}
