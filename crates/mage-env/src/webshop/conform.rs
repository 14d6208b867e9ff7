//! Are pages, hits and scores those of the original?
//!
//! A recording is JSON lines, plain or gzipped. A line with a `query` is a search with the ids and scores it found; a line with
//! `steps` is an episode: goal, price, and for each action the page, what could be clicked, reward and partial scores. The pages
//! may be of the form `text` or `text_rich`. After a purchase the original has moved on to another visit, so what it could
//! click then is left out; and where the noun rule judges the kind of product otherwise than the recording did, so is the score
//! that follows from it. What a record does not say cannot be compared, and is counted.

use super::{
    action,
    catalogue::Catalogue,
    goals::{Goal, GoalKind, GoalOptions},
    options::data_folder,
    page::{self, fields},
    reader::{OfficialFiles, ReadOptions},
    score::Score,
    session::{Place, Session},
    shop::{MOST_RESULTS, Seeded, Shop},
};
use crate::{Conformance, Error, Result};
use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::{
    fs::File,
    io::{BufRead, BufReader, Read, Seek},
    path::Path,
    sync::Arc,
};

#[derive(Deserialize)]
#[serde(untagged, expecting = "a search (`query`, `hits`) or an episode (`goal_index`, `goal`, `price`, `steps`)")]
enum Recording {
    Search { query: String, hits: Vec<(String, f64)> },
    Episode(Box<Episode>),
}

#[derive(Deserialize)]
struct Episode {
    goal_index: u32,
    goal: RecordedGoal,
    price: f64,
    steps: Vec<Recorded>,
    #[serde(default)]
    seed: u32,
}

#[derive(Deserialize)]
struct RecordedGoal {
    asin: String,
    instruction_text: String,
    attributes: Vec<Box<str>>,
    price_upper: f64,
    goal_options: Value,
}

#[derive(Deserialize)]
struct Recorded {
    action: Option<String>,
    obs: String,
    reward: Option<f64>,
    done: Option<bool>,
    actions: Clickables,
    verbose: Option<Map<String, Value>>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Clickables {
    has_search_bar: bool,
    clickables: Vec<String>,
}

/// Replays a recording on the official files in `data`, else `$MAGE_DATA/webshop`, else the recording's own folder.
pub(super) fn conform(golden: &Path, data: Option<&Path>) -> Result<Conformance> {
    let beside = golden.parent().map(Path::to_owned);
    let folder = data_folder(data).or(beside).unwrap_or_default();
    let read = ReadOptions { limit: None, skip_duplicates: true };
    let shop = Shop::new(OfficialFiles::in_folder(&folder)?.read(read)?)?;
    let mut replay = Replay { shop, report: Conformance::default() };
    let findings = replay.shop.catalogue().findings();
    replay.report.skip_many("entries of the product list whose id had occurred", findings.duplicates);
    replay.report.skip_many("entries of the product list whose id is \"nan\" or too long", findings.unusable_ids);
    for (number, line) in lines(golden)?.enumerate() {
        let line = line.map_err(|source| Error::Read { path: golden.to_owned(), source })?;
        if line.trim().is_empty() {
            continue;
        }
        let place = format!("{}, line {}", golden.display(), number + 1);
        let recording = serde_json::from_str(&line).map_err(|e| Error::invalid(&place, e.to_string()))?;
        match recording {
            Recording::Search { query, hits } => replay.search(&place, &query, &hits),
            Recording::Episode(episode) => replay.episode(&place, &episode)?,
        }
    }
    Ok(replay.report)
}

fn lines(path: &Path) -> Result<Box<dyn Iterator<Item = std::io::Result<String>>>> {
    let read = |source| Error::Read { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(read)?;
    let mut magic = [0; 2];
    let zipped = file.read(&mut magic).map_err(read)? == 2 && magic == [0x1f, 0x8b];
    file.rewind().map_err(read)?;
    Ok(match zipped {
        true => Box::new(BufReader::new(MultiGzDecoder::new(file)).lines()),
        false => Box::new(BufReader::new(file).lines()),
    })
}

struct Replay {
    shop: Shop,
    report: Conformance,
}

/// Recorded scores are rounded to four places.
const SCORE_TOLERANCE: f64 = 5e-4;

/// The final page with its score blanked out: the first number after the words that announce it.
fn without_score(page: &str) -> String {
    const BEFORE: &str = "max 1.0)";
    let at = page.find(BEFORE).map_or(page.len(), |i| i + BEFORE.len());
    let (head, tail) = page.split_at(at);
    let from = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
    let number = tail[from..].find(|c: char| !(c.is_ascii_digit() || "e.-+".contains(c))).unwrap_or(tail.len() - from);
    format!("{head}{}SCORE{}", &tail[..from], &tail[from + number..])
}

impl Replay {
    fn search(&mut self, place: &str, query: &str, hits: &[(String, f64)]) {
        let found = self.shop.index().search(query, hits.len().max(MOST_RESULTS));
        let ids = |hit: &super::index::Hit| self.shop.catalogue().product(hit.document).asin.to_string();
        let (expected, actual): (Vec<&String>, Vec<String>) =
            (hits.iter().map(|h| &h.0).collect(), found.iter().map(ids).collect());
        let actual_ids: Vec<&String> = actual.iter().collect();
        if self.report.compare("searches, hits in order", || format!("{place}: {query}"), &expected, &actual_ids) {
            for ((id, expected), hit) in hits.iter().zip(&found) {
                let off = (expected - f64::from(hit.score)).abs() > SCORE_TOLERANCE;
                let (expected, actual) = (*expected, if off { f64::from(hit.score) } else { *expected });
                self.report.compare("search scores", || format!("{place}: {query}: {id}"), &expected, &actual);
            }
        }
    }

    fn episode(&mut self, place: &str, episode: &Episode) -> Result<()> {
        let (goal, kind) = episode.goal.read(place, self.shop.catalogue())?;
        let table = self.shop.goals(kind);
        let seeded = table.seeded(self.shop.catalogue(), episode.seed);
        let own = seeded.order.get(episode.goal_index as usize);
        let own = own.map(|number| table.goal(self.shop.catalogue(), &seeded.draws, *number));
        self.report.compare("goals", || format!("{place}: goal {}", episode.goal_index), &Some(&goal), &own.as_ref());
        let price = seeded.draws.price(goal.product);
        self.report.compare("prices", || format!("{place}: {}", episode.goal.asin), &episode.price, &price);
        let mut session = Session::new(Arc::new(goal), false);
        for (number, step) in episode.steps.iter().enumerate() {
            if session.place() == Place::Done {
                self.report.skip("steps after a purchase, which belong to another visit");
                continue;
            }
            self.step(&format!("{place}, step {number}"), &seeded, &mut session, step);
        }
        Ok(())
    }

    fn step(&mut self, place: &str, seeded: &Seeded, session: &mut Session, step: &Recorded) {
        let place = || match &step.action {
            Some(action) => format!("{place}: {action}"),
            None => place.to_owned(),
        };
        if let Some(action) = step.action.as_deref().and_then(|a| action::read(a).ok()) {
            session.act(&self.shop, &seeded.draws, &action);
        }
        let rich = step.obs.contains("[button]");
        let fields = fields(&self.shop, session);
        let page = if rich { page::text_rich(&fields) } else { page::text(&fields) };
        if let Some(done) = step.done {
            self.report.compare("ends", place, &done, &session.bought().is_some());
        } else if step.action.is_some() {
            self.report.skip("ends of steps without `done`");
        }
        if step.reward.is_none() && step.action.is_some() {
            self.report.skip("rewards of steps without `reward`");
        }
        let Some(score) = session.bought() else {
            self.report.compare("pages", place, step.obs.as_str(), page.as_str());
            let names = page::clickables(&self.shop, session);
            let offered = Clickables { has_search_bar: session.place() == Place::Index, clickables: names };
            self.report.compare("clickables", place, &step.actions, &offered);
            if let Some(reward) = step.reward {
                self.report.compare("rewards", place, &reward, &0.0);
            }
            return;
        };
        self.report.skip("clickables after a purchase, which belong to another visit");
        let recorded_kind = step.verbose.as_ref().and_then(|v| v.get("r_type")).and_then(Value::as_f64);
        match &step.verbose {
            Some(parts) => self.parts(&place, parts, &score),
            None => self.report.skip("partial scores of purchases without `verbose`"),
        }
        if recorded_kind == Some(score.kind) {
            self.report.compare("pages", place, step.obs.as_str(), page.as_str());
            if let Some(reward) = step.reward {
                self.report.compare("rewards", place, &reward, &score.total);
            }
        } else {
            self.report.skip(match recorded_kind {
                Some(_) => "scores where the noun rule judges the kind of product otherwise",
                None => "scores without the recorded kind of product (`r_type`)",
            });
            let (expected, actual) = (without_score(&step.obs), without_score(&page));
            self.report.compare("pages but for the score", place, expected.as_str(), actual.as_str());
        }
    }

    /// Compares the partial scores that depend on no noun rule.
    fn parts(&mut self, place: &impl Fn() -> String, recorded: &Map<String, Value>, score: &Score) {
        let own: [(&str, &str, Value); 5] = [
            ("attribute scores", "r_att", score.attributes.into()),
            ("option scores", "r_option", score.options.into()),
            ("price scores", "r_price", score.price.into()),
            ("query matches", "query_match", score.same_query.into()),
            ("category matches", "category_match", score.same_shelf.into()),
        ];
        for (what, key, actual) in own {
            let expected = recorded.get(key).unwrap_or(&Value::Null);
            // Whole numbers may be recorded without a point.
            let expected = if actual.is_f64() { expected.as_f64().into() } else { expected.clone() };
            self.report.compare(what, || format!("{}: {key}", place()), &expected, &actual);
        }
    }
}

impl RecordedGoal {
    fn read(&self, place: &str, catalogue: &Catalogue) -> Result<(Goal, GoalKind)> {
        let wrong = |problem: String| Error::invalid(place, problem);
        let product = catalogue.find(&self.asin).ok_or_else(|| {
            wrong(format!("the goal's product {} is not in the catalogue; is --data the right folder?", self.asin))
        })?;
        let text = |v: &Value| -> Result<Box<str>> {
            v.as_str().map(Into::into).ok_or_else(|| wrong("`goal_options` must hold texts".to_owned()))
        };
        let (options, kind) = match &self.goal_options {
            Value::Object(map) => {
                let pairs = map.iter().map(|(n, v)| Ok((n.as_str().into(), text(v)?))).collect::<Result<_>>()?;
                (GoalOptions::Pairs(pairs), GoalKind::Synthetic)
            }
            Value::Array(values) => {
                (GoalOptions::Values(values.iter().map(text).collect::<Result<_>>()?), GoalKind::Human)
            }
            _ => return Err(wrong("`goal_options` is neither a map nor a list".to_owned())),
        };
        let goal = Goal {
            product,
            text: self.instruction_text.clone(),
            attributes: self.attributes.clone(),
            options,
            price_limit: self.price_upper,
        };
        Ok((goal, kind))
    }
}
