//! Game files.
//!
//! A `game.tw-pddl` is a JSON object with five fields. Domain and grammar contain the rules, which this crate implements:
//! files with other rules are rejected by their hash. The rest is the PDDL problem: objects, facts and a goal. No planner is
//! involved.

use super::{
    goal::{TaskGoal, TaskType},
    pddl::{PddlToken, PddlTokens},
    scene::{Household, HouseholdObject, Receptacle},
};
use crate::{Error, Result};
use md5::{Digest, Md5};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, collections::HashMap};

/// MD5 of the domain that this crate implements, which all 4,027 official games share.
const DOMAIN_MD5: &str = "574a98ddcfd0745755a35fbd9d73a583";
/// MD5 of the grammar that this crate implements, without its task sentence.
const GRAMMAR_MD5: &str = "0eae6486095176163e9f26caeb0ac79f";

/// Prefix of every task sentence.
const TASK: &str = "Your task is to: ";
/// Maximum number of entities per type. Official games have at most 73 objects and 54 receptacles.
const MAX_ENTITIES: usize = 512;

/// Unary predicates of objects.
const OBJECT_PREDICATES: [&str; 8] =
    ["pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable", "isreceptacleobject", "iscool"];

/// The fields of a game file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GameFile<'t> {
    /// PDDL domain: the rules.
    #[serde(borrow)]
    pub pddl_domain: Cow<'t, str>,
    /// Text grammar, including the task sentence.
    #[serde(borrow)]
    pub grammar: Cow<'t, str>,
    /// PDDL problem: objects, facts and the goal.
    #[serde(borrow)]
    pub pddl_problem: Cow<'t, str>,
    /// Whether a planner found a solution when the game was made.
    pub solvable: bool,
    /// A solution.
    pub walkthrough: Vec<String>,
}

/// A parsed game file.
#[derive(Clone, Debug, PartialEq)]
pub struct AlfworldGame {
    /// The household and the task.
    pub household: Household,
    /// The solution in the file.
    pub walkthrough: Vec<String>,
}

impl AlfworldGame {
    /// Parses a game file. Errors begin with `origin`, the file's name.
    pub fn read(bytes: &[u8], origin: &str) -> Result<Self> {
        let within = |e: Error| Error::invalid(origin, e.to_string());
        let file: GameFile<'_> =
            serde_json::from_slice(bytes).map_err(|e| Error::invalid(origin, format!("not a game.tw-pddl: {e}")))?;
        check_md5("pddl_domain", DOMAIN_MD5, &[&file.pddl_domain]).map_err(within)?;
        let (before, task, after) = split_task(&file.grammar).map_err(within)?;
        check_md5("grammar", GRAMMAR_MD5, &[before, after]).map_err(within)?;
        let household = read_problem(&file.pddl_problem, task).map_err(within)?;
        Ok(AlfworldGame { household, walkthrough: file.walkthrough })
    }
}

/// Parses a PDDL problem of ALFWorld's domain. `task` is the task sentence, which the grammar contains.
pub fn read_problem(pddl: &str, task: &str) -> Result<Household> {
    let lower = pddl.to_ascii_lowercase();
    ProblemParser::read(&lower)?.household(task)
}

fn check_md5(field: &str, expected: &str, parts: &[&str]) -> Result<()> {
    let mut md5 = Md5::new();
    parts.iter().for_each(|p| md5.update(p));
    let found: String = md5.finalize().iter().map(|b| format!("{b:02x}")).collect();
    if found == expected {
        return Ok(());
    }
    let problem = format!(
        "unknown rules: MD5 is {found}, expected {expected}; only games of ALFWorld's 0.4 data (\"move X to Y\") are supported"
    );
    Err(Error::invalid(field, problem))
}

/// The grammar before the task sentence, the sentence, and the rest.
pub(super) fn split_task(grammar: &str) -> Result<(&str, &str, &str)> {
    let wrong = |problem: &str| Error::invalid("grammar", problem);
    let at = grammar.find(TASK).ok_or_else(|| wrong("no sentence begins with \"Your task is to: \""))?;
    let len = grammar[at..].find('"').ok_or_else(|| wrong("the task sentence does not end"))?;
    let task = &grammar[at..at + len];
    if task.contains(['\\', '#', '{', '[', '\n']) {
        return Err(wrong("the task is not a plain sentence"));
    }
    Ok((&grammar[..at], task, &grammar[at + len..]))
}

/// PDDL type of a declared identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PddlType {
    Agent,
    Object,
    Receptacle,
    Location,
    ObjectType,
    ReceptacleType,
}

impl PddlType {
    fn read(word: &str) -> Option<Self> {
        Some(match word {
            "agent" => PddlType::Agent,
            "object" => PddlType::Object,
            "receptacle" => PddlType::Receptacle,
            "location" => PddlType::Location,
            "otype" => PddlType::ObjectType,
            "rtype" => PddlType::ReceptacleType,
            _ => return None,
        })
    }
}

/// Parser of a problem. Only entities that facts mention get an index.
#[derive(Default)]
struct ProblemParser<'t> {
    /// Every declared identifier, with its index among the mentioned entities of its type.
    declared: HashMap<&'t str, (PddlType, Option<usize>)>,
    agents: Vec<&'t str>,
    locations: Vec<&'t str>,
    receptacles: Vec<ReceptacleDecl<'t>>,
    objects: Vec<ObjectDecl<'t>>,
    can_contain: Vec<(&'t str, &'t str)>,
    start: Option<usize>,
    goal: Option<TaskGoal>,
}

#[derive(Default)]
struct ReceptacleDecl<'t> {
    id: &'t str,
    kind: Option<&'t str>,
    location: Option<usize>,
    openable: bool,
}

#[derive(Default)]
struct ObjectDecl<'t> {
    id: &'t str,
    kind: Option<&'t str>,
    rest: HouseholdObject,
}

impl<'t> ProblemParser<'t> {
    fn read(text: &'t str) -> Result<Self> {
        let mut tokens = PddlTokens::new(text);
        let mut problem = ProblemParser::default();
        tokens.expect(PddlToken::Open)?;
        tokens.expect(PddlToken::Word("define"))?;
        tokens.expect(PddlToken::Open)?;
        tokens.expect(PddlToken::Word("problem"))?;
        tokens.expect_word("the problem name")?;
        tokens.expect(PddlToken::Close)?;
        let mut found = [false; 4];
        loop {
            match tokens.require("a section or `)`")? {
                PddlToken::Close => break,
                PddlToken::Open => {}
                other => return Err(tokens.error(format!("expected a section, found {other}"))),
            }
            let section = tokens.expect_word("a section name")?;
            let number = [":domain", ":objects", ":init", ":goal"].iter().position(|s| *s == section);
            let number = number.ok_or_else(|| tokens.error(format!("unknown section `{section}`")))?;
            if std::mem::replace(&mut found[number], true) || found[number + 1..].contains(&true) {
                return Err(tokens.error(format!("section `{section}` is repeated or out of order")));
            }
            match section {
                ":domain" => {
                    tokens.expect(PddlToken::Word("alfred"))?;
                    tokens.expect(PddlToken::Close)?;
                }
                ":objects" => problem.read_objects(&mut tokens)?,
                ":init" => problem.read_facts(&mut tokens)?,
                _ => problem.goal = Some(TaskGoal::read(&mut tokens)?),
            }
        }
        if found != [true; 4] {
            return Err(tokens.error("missing section: a problem needs :domain, :objects, :init and :goal"));
        }
        if let Some(more) = tokens.next() {
            return Err(tokens.error(format!("unexpected {more} after the end of the problem")));
        }
        Ok(problem)
    }

    fn read_objects(&mut self, tokens: &mut PddlTokens<'t>) -> Result<()> {
        let mut waiting = Vec::new();
        loop {
            match tokens.require("an object or `)`")? {
                PddlToken::Close if waiting.is_empty() => return Ok(()),
                PddlToken::Close => return Err(tokens.error("the last objects have no type")),
                PddlToken::Open => return Err(tokens.error("expected an object, found `(`")),
                PddlToken::Word("-") => {
                    let word = tokens.expect_word("an object type")?;
                    let pddl_type =
                        PddlType::read(word).ok_or_else(|| tokens.error(format!("unknown type `{word}`")))?;
                    for id in waiting.drain(..) {
                        if self.declared.insert(id, (pddl_type, None)).is_some() {
                            return Err(tokens.error(format!("`{id}` is declared twice")));
                        }
                    }
                }
                PddlToken::Word(id) => waiting.push(id),
            }
        }
    }

    fn read_facts(&mut self, tokens: &mut PddlTokens<'t>) -> Result<()> {
        loop {
            match tokens.require("a fact or `)`")? {
                PddlToken::Close => return Ok(()),
                PddlToken::Open => self.read_fact(tokens)?,
                other => return Err(tokens.error(format!("expected a fact, found {other}"))),
            }
        }
    }

    fn read_fact(&mut self, tokens: &mut PddlTokens<'t>) -> Result<()> {
        let name = tokens.expect_word("a predicate")?;
        match name {
            "cancontain" => {
                let receptacle = self.type_name(tokens, PddlType::ReceptacleType)?;
                let object = self.type_name(tokens, PddlType::ObjectType)?;
                self.can_contain.push((receptacle, object));
            }
            "objecttype" => {
                let object = self.object(tokens)?;
                let kind = self.type_name(tokens, PddlType::ObjectType)?;
                if self.objects[object].kind.replace(kind).is_some_and(|old| old != kind) {
                    return Err(tokens.error(format!("`{}` has two types", self.objects[object].id)));
                }
            }
            "receptacletype" => {
                let receptacle = self.receptacle(tokens)?;
                let kind = self.type_name(tokens, PddlType::ReceptacleType)?;
                if self.receptacles[receptacle].kind.replace(kind).is_some_and(|old| old != kind) {
                    return Err(tokens.error(format!("`{}` has two types", self.receptacles[receptacle].id)));
                }
            }
            "receptacleatlocation" => {
                let receptacle = self.receptacle(tokens)?;
                let location = self.location(tokens)?;
                if self.receptacles[receptacle].location.replace(location).is_some_and(|old| old != location) {
                    return Err(tokens.error(format!("`{}` is at two locations", self.receptacles[receptacle].id)));
                }
            }
            "objectatlocation" => {
                let object = self.object(tokens)?;
                let location = self.location(tokens)?;
                add(&mut self.objects[object].rest.locations, location);
            }
            "inreceptacle" => {
                let object = self.object(tokens)?;
                let receptacle = self.receptacle(tokens)?;
                add(&mut self.objects[object].rest.inside, receptacle);
            }
            "inreceptacleobject" => {
                let inner = self.object(tokens)?;
                let outer = self.object(tokens)?;
                add(&mut self.objects[outer].rest.contents, inner);
            }
            "atlocation" => {
                self.agent(tokens)?;
                let location = self.location(tokens)?;
                if self.start.replace(location).is_some_and(|old| old != location) {
                    return Err(tokens.error("the agent is at two locations"));
                }
            }
            "openable" => {
                let receptacle = self.receptacle(tokens)?;
                self.receptacles[receptacle].openable = true;
            }
            name if OBJECT_PREDICATES.contains(&name) => {
                let object = self.object(tokens)?;
                let rest = &mut self.objects[object].rest;
                let properties = &mut rest.properties;
                *match name {
                    "pickupable" => &mut properties.pickupable,
                    "cleanable" => &mut properties.cleanable,
                    "heatable" => &mut properties.heatable,
                    "coolable" => &mut properties.coolable,
                    "toggleable" => &mut properties.toggleable,
                    "sliceable" => &mut properties.sliceable,
                    "isreceptacleobject" => &mut properties.receptacle_object,
                    _ => &mut rest.cool,
                } = true;
            }
            _ => return Err(tokens.error(format!("`{name}` is not a predicate of an initial state in this domain"))),
        }
        tokens.expect(PddlToken::Close)
    }

    /// A declared identifier of this type, and its index if it was mentioned before.
    fn named(&mut self, tokens: &mut PddlTokens<'t>, pddl_type: PddlType) -> Result<(&'t str, &mut Option<usize>)> {
        let id = tokens.expect_word("a predicate argument")?;
        match self.declared.get_mut(id) {
            Some((declared, index)) if *declared == pddl_type => Ok((id, index)),
            Some((other, _)) => {
                Err(tokens.error(format!("`{id}` is declared as {other:?}, but used as {pddl_type:?}")))
            }
            None => Err(tokens.error(format!("`{id}` is not declared in :objects"))),
        }
    }

    fn type_name(&mut self, tokens: &mut PddlTokens<'t>, pddl_type: PddlType) -> Result<&'t str> {
        self.named(tokens, pddl_type).map(|(id, _)| id)
    }

    fn agent(&mut self, tokens: &mut PddlTokens<'t>) -> Result<()> {
        let (id, _) = self.named(tokens, PddlType::Agent)?;
        add(&mut self.agents, id);
        if self.agents.len() > 1 {
            return Err(tokens.error("there are two agents"));
        }
        Ok(())
    }

    fn location(&mut self, tokens: &mut PddlTokens<'t>) -> Result<usize> {
        let count = self.locations.len();
        let (id, index) = self.named(tokens, PddlType::Location)?;
        let at = *index.get_or_insert(count);
        if at == count {
            self.locations.push(id);
            limit(tokens, count)?;
        }
        Ok(at)
    }

    fn receptacle(&mut self, tokens: &mut PddlTokens<'t>) -> Result<usize> {
        let count = self.receptacles.len();
        let (id, index) = self.named(tokens, PddlType::Receptacle)?;
        let at = *index.get_or_insert(count);
        if at == count {
            nameable(tokens, id)?;
            self.receptacles.push(ReceptacleDecl { id, ..ReceptacleDecl::default() });
            limit(tokens, count)?;
        }
        Ok(at)
    }

    fn object(&mut self, tokens: &mut PddlTokens<'t>) -> Result<usize> {
        let count = self.objects.len();
        let (id, index) = self.named(tokens, PddlType::Object)?;
        let at = *index.get_or_insert(count);
        if at == count {
            nameable(tokens, id)?;
            self.objects.push(ObjectDecl { id, ..ObjectDecl::default() });
            limit(tokens, count)?;
        }
        Ok(at)
    }

    fn household(self, task: &str) -> Result<Household> {
        let wrong = |problem: String| Error::invalid("pddl_problem", problem);
        let goal = self.goal.expect("read before");
        let target_type = if goal.kind == TaskType::Look { PddlType::ObjectType } else { PddlType::ReceptacleType };
        for (name, pddl_type) in [(&goal.object, PddlType::ObjectType), (&goal.target, target_type)] {
            if self.declared.get(name.as_str()).is_none_or(|(declared, _)| *declared != pddl_type) {
                return Err(wrong(format!("the goal names `{name}`, which is not declared as {pddl_type:?}")));
            }
        }
        let receptacle = |r: ReceptacleDecl<'_>| match (r.kind, r.location) {
            (Some(kind), Some(location)) => {
                Ok(Receptacle { id: r.id.to_owned(), kind: kind.to_owned(), location, openable: r.openable })
            }
            (None, _) => Err(wrong(format!("receptacle `{}` has no receptacleType", r.id))),
            (_, None) => Err(wrong(format!("receptacle `{}` has no receptacleAtLocation", r.id))),
        };
        let receptacles = self.receptacles.into_iter().map(receptacle).collect::<Result<Vec<_>>>()?;
        let object =
            |i: ObjectDecl<'_>| HouseholdObject { id: i.id.to_owned(), kind: i.kind.map(str::to_owned), ..i.rest };
        let mut can_contain = self.can_contain;
        can_contain.sort_unstable();
        can_contain.dedup();
        Ok(Household {
            agent: self.agents.first().map(|a| (*a).to_owned()).unwrap_or_default(),
            start: self.start.ok_or_else(|| wrong("no atLocation fact states the agent's location".to_owned()))?,
            locations: self.locations.into_iter().map(str::to_owned).collect(),
            receptacles,
            objects: self.objects.into_iter().map(object).collect(),
            can_contain: can_contain.into_iter().map(|(r, o)| (r.to_owned(), o.to_owned())).collect(),
            goal,
            task: task.to_owned(),
        })
    }
}

fn add<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}

fn limit(tokens: &PddlTokens<'_>, count: usize) -> Result<()> {
    if count < MAX_ENTITIES {
        Ok(())
    } else {
        Err(tokens.error(format!("more than {MAX_ENTITIES} entities of a type")))
    }
}

/// Checks that a display name can be derived: it is the part before the first `_bar_`.
fn nameable(tokens: &PddlTokens<'_>, id: &str) -> Result<()> {
    match id.split_once("_bar_") {
        Some((name, _)) if !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric()) => Ok(()),
        _ => {
            Err(tokens
                .error(format!("`{id}` has no display name: identifiers begin with letters or digits, then `_bar_`")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Seed,
        alfworld::{HouseholdWorld, RoomSplit, generate, problem},
    };

    fn sample() -> (Household, String) {
        let made = generate(RoomSplit::Seen, &[TaskType::Heat], Seed::new(3));
        let text = problem(&made.household);
        (made.household, text)
    }

    #[test]
    fn exported_problems_parse_back() {
        for i in 0..40 {
            let household = generate(RoomSplit::Seen, &[], Seed::new(i)).household;
            let again = read_problem(&problem(&household), &household.task).unwrap();
            let (a, b) = (HouseholdWorld::new(&household), HouseholdWorld::new(&again));
            assert_eq!(format!("{a:?}"), format!("{b:?}"));
        }
    }

    #[test]
    fn errors_name_the_line() {
        let (_, good) = sample();
        let error = |text: &str| read_problem(text, "").unwrap_err().to_string();
        for cut in [1, good.len() / 3, good.len() / 2, good.len() - 3] {
            let message = error(&good[..cut]);
            assert!(message.starts_with("pddl_problem, line "), "{message}");
        }
        let line = good.lines().position(|l| l.contains("(openable")).unwrap() + 1;
        let opened = error(&good.replacen("(openable", "(opened", 1));
        assert!(opened.starts_with(&format!("pddl_problem, line {line}: `opened` is not a predicate")), "{opened}");
        assert!(
            error(&good.replacen("(:domain alfred)", "(:domain blocks)", 1))
                .contains("expected `alfred`, found `blocks`")
        );
        assert!(error(&good.replacen("(ishot ?o)", "(issliced ?o)", 1)).contains("none of the six forms"));
        assert!(error(&good.replacen("  agent1 - agent\n", "", 1)).contains("`agent1` is not declared"));
        assert!(error(&good.replacen("(:goal", "(:metric", 1)).contains("unknown section `:metric`"));
        assert!(error(&format!("{good} x")).contains("after the end"));
        assert!(error("").contains("truncated"));
    }

    #[test]
    fn unknown_rules_are_rejected() {
        let file = |domain: &str, grammar: &str| {
            let file = GameFile {
                pddl_domain: domain.into(),
                grammar: grammar.into(),
                pddl_problem: "".into(),
                solvable: true,
                walkthrough: vec![],
            };
            AlfworldGame::read(serde_json::to_string(&file).unwrap().as_bytes(), "g").unwrap_err().to_string()
        };
        let message = file("(define (domain alfred))", "");
        assert!(message.starts_with("g: pddl_domain: unknown rules") && message.contains(DOMAIN_MD5), "{message}");
        assert!(AlfworldGame::read(b"{\"pddl_domain\": \"", "g").unwrap_err().to_string().contains("line 1 column"));
        assert!(AlfworldGame::read(b"{}", "g").unwrap_err().to_string().contains("missing field `pddl_domain`"));
        assert!(split_task("no task here").is_err());
        assert_eq!(split_task("a \"Your task is to: rest.\" b").unwrap(), ("a \"", "Your task is to: rest.", "\" b"));
    }
}
