//! What does a game file say?
//!
//! A `game.tw-pddl` is a JSON object of five texts. Domain and grammar hold the rules, which are compiled into this crate:
//! files with other rules are refused by their hash. What is left is the problem: objects, facts and a goal. No planner
//! is involved.

use super::{
    goal::{Goal, TaskKind},
    pddl::{Token, Tokens},
    scene::{Household, Receptacle, Thing},
};
use crate::{Error, Result};
use md5::{Digest, Md5};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, collections::HashMap};

/// The MD5 sum of the domain whose rules this crate plays: the one in all 4,027 official games.
pub const DOMAIN_MD5: &str = "574a98ddcfd0745755a35fbd9d73a583";
/// The MD5 sum of the grammar whose sentences this crate writes, its task sentence left out.
pub const GRAMMAR_MD5: &str = "0eae6486095176163e9f26caeb0ac79f";

/// What every task sentence begins with.
const TASK: &str = "Your task is to: ";
/// Official games have at most 73 things and 54 receptacles; what is far bigger is no household.
const MOST: usize = 512;

/// Facts about one thing.
const TRAITS: [&str; 8] =
    ["pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable", "isreceptacleobject", "iscool"];

/// The five texts of a game file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GameFile<'t> {
    /// The rules of play.
    #[serde(borrow)]
    pub pddl_domain: Cow<'t, str>,
    /// The sentences, the task's among them.
    #[serde(borrow)]
    pub grammar: Cow<'t, str>,
    /// Objects, facts and the goal.
    #[serde(borrow)]
    pub pddl_problem: Cow<'t, str>,
    /// Whether a planner found a solution when the game was made.
    pub solvable: bool,
    /// A solution.
    pub walkthrough: Vec<String>,
}

/// A game file, understood.
#[derive(Clone, Debug, PartialEq)]
pub struct Game {
    /// The home and the task.
    pub household: Household,
    /// The solution that came with it.
    pub walkthrough: Vec<String>,
}

impl Game {
    /// Reads a game file; errors begin with `place`, the file's name.
    pub fn read(bytes: &[u8], place: &str) -> Result<Self> {
        let within = |e: Error| Error::invalid(place, e.to_string());
        let file: GameFile<'_> =
            serde_json::from_slice(bytes).map_err(|e| Error::invalid(place, format!("not a game.tw-pddl: {e}")))?;
        check_sum("pddl_domain", DOMAIN_MD5, &[&file.pddl_domain]).map_err(within)?;
        let (before, task, after) = split_task(&file.grammar).map_err(within)?;
        check_sum("grammar", GRAMMAR_MD5, &[before, after]).map_err(within)?;
        let household = read_problem(&file.pddl_problem, task).map_err(within)?;
        Ok(Game { household, walkthrough: file.walkthrough })
    }
}

/// Reads a PDDL problem of ALFWorld's domain; `task` is its sentence, which stands elsewhere.
pub fn read_problem(pddl: &str, task: &str) -> Result<Household> {
    let lower = pddl.to_ascii_lowercase();
    Problem::read(&lower)?.household(task)
}

fn check_sum(what: &str, expected: &str, parts: &[&str]) -> Result<()> {
    let mut md5 = Md5::new();
    parts.iter().for_each(|p| md5.update(p));
    let found: String = md5.finalize().iter().map(|b| format!("{b:02x}")).collect();
    if found == expected {
        return Ok(());
    }
    let problem = format!(
        "unknown rules: its MD5 sum is {found}, not {expected}; only games of ALFWorld's 0.4 data (\"move X to Y\") can be played"
    );
    Err(Error::invalid(what, problem))
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

/// What sort of thing an identifier was declared to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    Agent,
    Object,
    Receptacle,
    Location,
    ObjectKind,
    ReceptacleKind,
}

impl Sort {
    fn read(word: &str) -> Option<Self> {
        Some(match word {
            "agent" => Sort::Agent,
            "object" => Sort::Object,
            "receptacle" => Sort::Receptacle,
            "location" => Sort::Location,
            "otype" => Sort::ObjectKind,
            "rtype" => Sort::ReceptacleKind,
            _ => return None,
        })
    }
}

/// The facts of a problem, gathered while reading. Only what facts mention gets an index.
#[derive(Default)]
struct Problem<'t> {
    /// Every declared identifier, with its index among the mentioned ones of its sort.
    declared: HashMap<&'t str, (Sort, Option<usize>)>,
    agents: Vec<&'t str>,
    locations: Vec<&'t str>,
    receptacles: Vec<Furniture<'t>>,
    things: Vec<Item<'t>>,
    fits: Vec<(&'t str, &'t str)>,
    start: Option<usize>,
    goal: Option<Goal>,
}

#[derive(Default)]
struct Furniture<'t> {
    id: &'t str,
    kind: Option<&'t str>,
    at: Option<usize>,
    openable: bool,
}

#[derive(Default)]
struct Item<'t> {
    id: &'t str,
    kind: Option<&'t str>,
    rest: Thing,
}

impl<'t> Problem<'t> {
    fn read(text: &'t str) -> Result<Self> {
        let mut tokens = Tokens::new(text);
        let mut problem = Problem::default();
        tokens.expect(Token::Open)?;
        tokens.expect(Token::Word("define"))?;
        tokens.expect(Token::Open)?;
        tokens.expect(Token::Word("problem"))?;
        tokens.word("the problem's name")?;
        tokens.expect(Token::Close)?;
        let mut found = [false; 4];
        loop {
            match tokens.some("a section or `)`")? {
                Token::Close => break,
                Token::Open => {}
                other => return Err(tokens.wrong(format!("{other} stands where a section should be"))),
            }
            let section = tokens.word("the name of a section")?;
            let number = [":domain", ":objects", ":init", ":goal"].iter().position(|s| *s == section);
            let number = number.ok_or_else(|| tokens.wrong(format!("unknown section `{section}`")))?;
            if std::mem::replace(&mut found[number], true) || found[number + 1..].contains(&true) {
                return Err(tokens.wrong(format!("section `{section}` stands twice or out of order")));
            }
            match section {
                ":domain" => {
                    tokens.expect(Token::Word("alfred"))?;
                    tokens.expect(Token::Close)?;
                }
                ":objects" => problem.read_objects(&mut tokens)?,
                ":init" => problem.read_facts(&mut tokens)?,
                _ => problem.goal = Some(Goal::read(&mut tokens)?),
            }
        }
        if found != [true; 4] {
            return Err(tokens.wrong("a problem has the sections :domain, :objects, :init and :goal"));
        }
        if let Some(more) = tokens.next() {
            return Err(tokens.wrong(format!("{more} stands after the end of the problem")));
        }
        Ok(problem)
    }

    fn read_objects(&mut self, tokens: &mut Tokens<'t>) -> Result<()> {
        let mut waiting = Vec::new();
        loop {
            match tokens.some("an object or `)`")? {
                Token::Close if waiting.is_empty() => return Ok(()),
                Token::Close => return Err(tokens.wrong("the last objects have no sort")),
                Token::Open => return Err(tokens.wrong("`(` stands where an object should be")),
                Token::Word("-") => {
                    let word = tokens.word("a sort of object")?;
                    let sort = Sort::read(word).ok_or_else(|| tokens.wrong(format!("unknown sort `{word}`")))?;
                    for id in waiting.drain(..) {
                        if self.declared.insert(id, (sort, None)).is_some() {
                            return Err(tokens.wrong(format!("`{id}` is declared twice")));
                        }
                    }
                }
                Token::Word(id) => waiting.push(id),
            }
        }
    }

    fn read_facts(&mut self, tokens: &mut Tokens<'t>) -> Result<()> {
        loop {
            match tokens.some("a fact or `)`")? {
                Token::Close => return Ok(()),
                Token::Open => self.read_fact(tokens)?,
                other => return Err(tokens.wrong(format!("{other} stands where a fact should be"))),
            }
        }
    }

    fn read_fact(&mut self, tokens: &mut Tokens<'t>) -> Result<()> {
        let name = tokens.word("the name of a fact")?;
        match name {
            "cancontain" => {
                let receptacle = self.kind(tokens, Sort::ReceptacleKind)?;
                let thing = self.kind(tokens, Sort::ObjectKind)?;
                self.fits.push((receptacle, thing));
            }
            "objecttype" => {
                let thing = self.thing(tokens)?;
                let kind = self.kind(tokens, Sort::ObjectKind)?;
                if self.things[thing].kind.replace(kind).is_some_and(|old| old != kind) {
                    return Err(tokens.wrong(format!("`{}` has two types", self.things[thing].id)));
                }
            }
            "receptacletype" => {
                let receptacle = self.receptacle(tokens)?;
                let kind = self.kind(tokens, Sort::ReceptacleKind)?;
                if self.receptacles[receptacle].kind.replace(kind).is_some_and(|old| old != kind) {
                    return Err(tokens.wrong(format!("`{}` has two types", self.receptacles[receptacle].id)));
                }
            }
            "receptacleatlocation" => {
                let receptacle = self.receptacle(tokens)?;
                let at = self.location(tokens)?;
                if self.receptacles[receptacle].at.replace(at).is_some_and(|old| old != at) {
                    return Err(tokens.wrong(format!("`{}` is at two locations", self.receptacles[receptacle].id)));
                }
            }
            "objectatlocation" => {
                let thing = self.thing(tokens)?;
                let at = self.location(tokens)?;
                add(&mut self.things[thing].rest.at, at);
            }
            "inreceptacle" => {
                let thing = self.thing(tokens)?;
                let receptacle = self.receptacle(tokens)?;
                add(&mut self.things[thing].rest.inside, receptacle);
            }
            "inreceptacleobject" => {
                let inner = self.thing(tokens)?;
                let outer = self.thing(tokens)?;
                add(&mut self.things[outer].rest.contents, inner);
            }
            "atlocation" => {
                self.agent(tokens)?;
                let at = self.location(tokens)?;
                if self.start.replace(at).is_some_and(|old| old != at) {
                    return Err(tokens.wrong("the agent is at two locations"));
                }
            }
            "openable" => {
                let receptacle = self.receptacle(tokens)?;
                self.receptacles[receptacle].openable = true;
            }
            name if TRAITS.contains(&name) => {
                let thing = self.thing(tokens)?;
                let rest = &mut self.things[thing].rest;
                let traits = &mut rest.traits;
                *match name {
                    "pickupable" => &mut traits.pickupable,
                    "cleanable" => &mut traits.cleanable,
                    "heatable" => &mut traits.heatable,
                    "coolable" => &mut traits.coolable,
                    "toggleable" => &mut traits.toggleable,
                    "sliceable" => &mut traits.sliceable,
                    "isreceptacleobject" => &mut traits.vessel,
                    _ => &mut rest.cool,
                } = true;
            }
            _ => return Err(tokens.wrong(format!("`{name}` is no fact that games of this domain start with"))),
        }
        tokens.expect(Token::Close)
    }

    /// A declared identifier of a sort, and its index if it was mentioned before.
    fn named(&mut self, tokens: &mut Tokens<'t>, sort: Sort) -> Result<(&'t str, &mut Option<usize>)> {
        let id = tokens.word("the argument of a fact")?;
        match self.declared.get_mut(id) {
            Some((declared, index)) if *declared == sort => Ok((id, index)),
            Some((other, _)) => Err(tokens.wrong(format!("`{id}` is declared as {other:?}, but stands for {sort:?}"))),
            None => Err(tokens.wrong(format!("`{id}` is not declared in :objects"))),
        }
    }

    fn kind(&mut self, tokens: &mut Tokens<'t>, sort: Sort) -> Result<&'t str> {
        self.named(tokens, sort).map(|(id, _)| id)
    }

    fn agent(&mut self, tokens: &mut Tokens<'t>) -> Result<()> {
        let (id, _) = self.named(tokens, Sort::Agent)?;
        add(&mut self.agents, id);
        if self.agents.len() > 1 {
            return Err(tokens.wrong("there are two agents"));
        }
        Ok(())
    }

    fn location(&mut self, tokens: &mut Tokens<'t>) -> Result<usize> {
        let count = self.locations.len();
        let (id, index) = self.named(tokens, Sort::Location)?;
        let at = *index.get_or_insert(count);
        if at == count {
            self.locations.push(id);
            limit(tokens, count)?;
        }
        Ok(at)
    }

    fn receptacle(&mut self, tokens: &mut Tokens<'t>) -> Result<usize> {
        let count = self.receptacles.len();
        let (id, index) = self.named(tokens, Sort::Receptacle)?;
        let at = *index.get_or_insert(count);
        if at == count {
            nameable(tokens, id)?;
            self.receptacles.push(Furniture { id, ..Furniture::default() });
            limit(tokens, count)?;
        }
        Ok(at)
    }

    fn thing(&mut self, tokens: &mut Tokens<'t>) -> Result<usize> {
        let count = self.things.len();
        let (id, index) = self.named(tokens, Sort::Object)?;
        let at = *index.get_or_insert(count);
        if at == count {
            nameable(tokens, id)?;
            self.things.push(Item { id, ..Item::default() });
            limit(tokens, count)?;
        }
        Ok(at)
    }

    fn household(self, task: &str) -> Result<Household> {
        let wrong = |problem: String| Error::invalid("pddl_problem", problem);
        let goal = self.goal.expect("read before");
        let target_sort = if goal.kind == TaskKind::Look { Sort::ObjectKind } else { Sort::ReceptacleKind };
        for (name, sort) in [(&goal.thing, Sort::ObjectKind), (&goal.target, target_sort)] {
            if self.declared.get(name.as_str()).is_none_or(|(declared, _)| *declared != sort) {
                return Err(wrong(format!("the goal names `{name}`, which is not declared as {sort:?}")));
            }
        }
        let receptacle = |r: Furniture<'_>| match (r.kind, r.at) {
            (Some(kind), Some(at)) => {
                Ok(Receptacle { id: r.id.to_owned(), kind: kind.to_owned(), at, openable: r.openable })
            }
            (None, _) => Err(wrong(format!("receptacle `{}` has no receptacleType", r.id))),
            (_, None) => Err(wrong(format!("receptacle `{}` has no receptacleAtLocation", r.id))),
        };
        let receptacles = self.receptacles.into_iter().map(receptacle).collect::<Result<Vec<_>>>()?;
        let thing = |i: Item<'_>| Thing { id: i.id.to_owned(), kind: i.kind.map(str::to_owned), ..i.rest };
        let mut fits = self.fits;
        fits.sort_unstable();
        fits.dedup();
        Ok(Household {
            agent: self.agents.first().map(|a| (*a).to_owned()).unwrap_or_default(),
            start: self.start.ok_or_else(|| wrong("no fact atLocation says where the agent is".to_owned()))?,
            locations: self.locations.into_iter().map(str::to_owned).collect(),
            receptacles,
            things: self.things.into_iter().map(thing).collect(),
            fits: fits.into_iter().map(|(r, o)| (r.to_owned(), o.to_owned())).collect(),
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

fn limit(tokens: &Tokens<'_>, count: usize) -> Result<()> {
    if count < MOST { Ok(()) } else { Err(tokens.wrong(format!("more than {MOST} of a sort; this is no household"))) }
}

/// Names are made of what stands before the first `_bar_`.
fn nameable(tokens: &Tokens<'_>, id: &str) -> Result<()> {
    match id.split_once("_bar_") {
        Some((name, _)) if !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric()) => Ok(()),
        _ => Err(tokens.wrong(format!("`{id}` has no name: it should begin with letters, then `_bar_`"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Seed,
        alfworld::{Rooms, World, generate, problem},
    };

    fn sample() -> (Household, String) {
        let made = generate(Rooms::Seen, &[TaskKind::Heat], Seed::new(3));
        let text = problem(&made.household);
        (made.household, text)
    }

    #[test]
    fn what_is_written_is_read_back() {
        for i in 0..40 {
            let household = generate(Rooms::Seen, &[], Seed::new(i)).household;
            let again = read_problem(&problem(&household), &household.task).unwrap();
            let (a, b) = (World::new(&household), World::new(&again));
            assert_eq!(format!("{a:?}"), format!("{b:?}"));
        }
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        let (_, good) = sample();
        let error = |text: &str| read_problem(text, "").unwrap_err().to_string();
        for cut in [1, good.len() / 3, good.len() / 2, good.len() - 3] {
            let message = error(&good[..cut]);
            assert!(message.starts_with("pddl_problem, line "), "{message}");
        }
        let line = good.lines().position(|l| l.contains("(openable")).unwrap() + 1;
        let opened = error(&good.replacen("(openable", "(opened", 1));
        assert!(opened.starts_with(&format!("pddl_problem, line {line}: `opened` is no fact")), "{opened}");
        assert!(
            error(&good.replacen("(:domain alfred)", "(:domain blocks)", 1)).contains("`blocks` stands where `alfred`")
        );
        assert!(error(&good.replacen("(ishot ?o)", "(issliced ?o)", 1)).contains("none of the six forms"));
        assert!(error(&good.replacen("  agent1 - agent\n", "", 1)).contains("`agent1` is not declared"));
        assert!(error(&good.replacen("(:goal", "(:metric", 1)).contains("unknown section `:metric`"));
        assert!(error(&format!("{good} x")).contains("after the end"));
        assert!(error("").contains("cut off"));
    }

    #[test]
    fn foreign_rules_are_refused() {
        let file = |domain: &str, grammar: &str| {
            let file = GameFile {
                pddl_domain: domain.into(),
                grammar: grammar.into(),
                pddl_problem: "".into(),
                solvable: true,
                walkthrough: vec![],
            };
            Game::read(serde_json::to_string(&file).unwrap().as_bytes(), "g").unwrap_err().to_string()
        };
        let message = file("(define (domain alfred))", "");
        assert!(message.starts_with("g: pddl_domain: unknown rules") && message.contains(DOMAIN_MD5), "{message}");
        assert!(Game::read(b"{\"pddl_domain\": \"", "g").unwrap_err().to_string().contains("line 1 column"));
        assert!(Game::read(b"{}", "g").unwrap_err().to_string().contains("missing field `pddl_domain`"));
        assert!(split_task("no task here").is_err());
        assert_eq!(split_task("a \"Your task is to: rest.\" b").unwrap(), ("a \"", "Your task is to: rest.", "\" b"));
    }
}
