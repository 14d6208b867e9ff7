//! Conformance test against recordings of the original.
//!
//! A recording is a JSON lines file, plain or gzipped. A line with a `query` is a search with ids and scores of its hits; a
//! line with `steps` is an episode: goal, price, and for each action the page, clickables, reward and partial scores. Pages may
//! be in format `text` or `text_rich`. After a purchase the original starts another session, so the clickables recorded there
//! are not compared; nor are scores where the noun rule yields another product type than the recording. Skipped comparisons
//! are counted.

use super::{
    action,
    catalogue::Catalogue,
    goals::{GoalKind, GoalOptions, ShoppingGoal},
    official_files::{OfficialFiles, ReadOptions},
    options::data_folder,
    page::{self, page_fields},
    score::PurchaseScore,
    session::{Page, Session},
    shop::{MAX_RESULTS, SeededGoals, Shop},
};
use crate::{Conformance, Error, Result, deserialize, files::recorded_lines};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::{path::Path, sync::Arc};

#[derive(Deserialize)]
struct RecordedSearch {
    query: String,
    hits: Vec<(String, f64)>,
}

#[derive(Deserialize)]
struct RecordedEpisode {
    goal_index: u32,
    goal: RecordedGoal,
    price: f64,
    steps: Vec<RecordedAction>,
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
struct RecordedAction {
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

/// Known keys of a recording, by part. Unknown keys are errors, since a misspelt key would silently skip a comparison.
const SEARCH_KEYS: [&str; 2] = ["query", "hits"];
const EPISODE_KEYS: [&str; 5] = ["goal_index", "goal", "price", "steps", "seed"];
const GOAL_KEYS: [&str; 10] = [
    "asin",
    "category",
    "query",
    "name",
    "product_category",
    "instruction_text",
    "attributes",
    "price_upper",
    "goal_options",
    "weight",
];
const STEP_KEYS: [&str; 6] = ["action", "obs", "reward", "done", "actions", "verbose"];
const CLICKABLE_KEYS: [&str; 2] = ["has_search_bar", "clickables"];
const SCORE_KEYS: [&str; 10] = [
    "r_type",
    "r_att",
    "w_att",
    "query_match",
    "category_match",
    "title_score",
    "r_option",
    "w_option",
    "r_price",
    "w_price",
];

enum ShopRecording {
    Search(RecordedSearch),
    Episode(Box<RecordedEpisode>),
}

impl ShopRecording {
    fn read(line: &str, origin: &str) -> Result<Self> {
        let wrong = |problem: String| Error::invalid(origin, problem);
        let record = match serde_json::from_str(line).map_err(|e| wrong(e.to_string()))? {
            Value::Object(record) => record,
            _ => return Err(wrong("not an object".to_owned())),
        };
        if record.contains_key("query") {
            check_keys(&record, &SEARCH_KEYS, origin)?;
            return deserialize::from_map(record).map(ShopRecording::Search).map_err(wrong);
        }
        if !record.contains_key("steps") {
            let problem = "neither a search (`query`, `hits`) nor an episode (`goal_index`, `goal`, `price`, `steps`)";
            return Err(wrong(problem.to_owned()));
        }
        check_keys(&record, &EPISODE_KEYS, origin)?;
        check_part(record.get("goal"), &GOAL_KEYS, &format!("{origin}: goal"))?;
        for (number, step) in record["steps"].as_array().into_iter().flatten().enumerate() {
            let at = format!("{origin}, step {number}");
            check_part(Some(step), &STEP_KEYS, &at)?;
            check_part(step.get("actions"), &CLICKABLE_KEYS, &format!("{at}: actions"))?;
            check_part(step.get("verbose"), &SCORE_KEYS, &format!("{at}: verbose"))?;
        }
        deserialize::from_map(record).map(|e| ShopRecording::Episode(Box::new(e))).map_err(wrong)
    }
}

fn check_part(part: Option<&Value>, known: &[&str], origin: &str) -> Result<()> {
    part.and_then(Value::as_object).map_or(Ok(()), |part| check_keys(part, known, origin))
}

fn check_keys(part: &Map<String, Value>, known: &[&str], origin: &str) -> Result<()> {
    match part.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(Error::invalid(origin, Error::unknown("key", key, known.iter().copied()).to_string())),
        None => Ok(()),
    }
}

/// Replays a recording on the official files in `data`, else in the default data directory, else in the recording's
/// directory.
pub(super) fn conform(golden: &Path, data: Option<&Path>) -> Result<Conformance> {
    // Open the recording first: reading the catalogue takes longer.
    let lines = recorded_lines(golden)?;
    let golden_folder = golden.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = data_folder(data).unwrap_or_else(|| golden_folder.to_owned());
    let missing = |e: Error| Error::MissingData { data: "data of webshop", problem: e.to_string() };
    let files = OfficialFiles::in_folder(&folder).map_err(missing)?;
    let shop = Shop::new(files.read(ReadOptions { limit: None, skip_duplicates: true })?)?;
    let mut replay = Replay { shop, report: Conformance::default() };
    let catalogue_warnings = replay.shop.catalogue().warnings();
    replay.report.skip_many("entries of the product list with a duplicate id", catalogue_warnings.duplicates);
    replay
        .report
        .skip_many("entries of the product list whose id is \"nan\" or too long", catalogue_warnings.unusable_ids);
    for line in lines {
        let (number, line) = line?;
        let origin = format!("{}, line {number}", golden.display());
        match ShopRecording::read(&line, &origin)? {
            ShopRecording::Search(RecordedSearch { query, hits }) => replay.search(&origin, &query, &hits),
            ShopRecording::Episode(episode) => replay.episode(&origin, &episode)?,
        }
    }
    Ok(replay.report)
}

struct Replay {
    shop: Shop,
    report: Conformance,
}

/// Recorded scores are rounded to four decimals.
const SCORE_TOLERANCE: f64 = 5e-4;

/// The confirmation page with its score replaced: the first number after the label.
fn without_score(page: &str) -> String {
    const LABEL: &str = "max 1.0)";
    let at = page.find(LABEL).map_or(page.len(), |i| i + LABEL.len());
    let (head, tail) = page.split_at(at);
    let from = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
    let number = tail[from..].find(|c: char| !(c.is_ascii_digit() || "e.-+".contains(c))).unwrap_or(tail.len() - from);
    format!("{head}{}SCORE{}", &tail[..from], &tail[from + number..])
}

impl Replay {
    fn search(&mut self, origin: &str, query: &str, hits: &[(String, f64)]) {
        let found = self.shop.index().search(query, hits.len().max(MAX_RESULTS));
        let ids = |hit: &super::bm25::SearchHit| self.shop.catalogue().product(hit.document).asin.to_string();
        let (expected, actual): (Vec<&String>, Vec<String>) =
            (hits.iter().map(|h| &h.0).collect(), found.iter().map(ids).collect());
        let actual_ids: Vec<&String> = actual.iter().collect();
        if self.report.compare("searches, hits in order", || format!("{origin}: {query}"), &expected, &actual_ids) {
            for ((id, expected), hit) in hits.iter().zip(&found) {
                let off = (expected - f64::from(hit.score)).abs() > SCORE_TOLERANCE;
                let (expected, actual) = (*expected, if off { f64::from(hit.score) } else { *expected });
                self.report.compare("search scores", || format!("{origin}: {query}: {id}"), &expected, &actual);
            }
        }
    }

    fn episode(&mut self, origin: &str, episode: &RecordedEpisode) -> Result<()> {
        let (goal, kind) = episode.goal.read(origin, self.shop.catalogue())?;
        let table = self.shop.goals(kind);
        let seeded = table.seeded(self.shop.catalogue(), episode.seed);
        let actual = seeded.order.get(episode.goal_index as usize);
        let actual = actual.map(|number| table.goal(self.shop.catalogue(), &seeded.prices, *number));
        self.report.compare(
            "goals",
            || format!("{origin}: goal {}", episode.goal_index),
            &Some(&goal),
            &actual.as_ref(),
        );
        let price = seeded.prices.price(goal.product);
        self.report.compare("prices", || format!("{origin}: {}", episode.goal.asin), &episode.price, &price);
        let mut session = Session::new(Arc::new(goal), false);
        for (number, step) in episode.steps.iter().enumerate() {
            if session.page() == Page::Done {
                self.report.skip("steps after a purchase, which belong to another session");
                continue;
            }
            self.step(&format!("{origin}, step {number}"), &seeded, &mut session, step);
        }
        Ok(())
    }

    fn step(&mut self, origin: &str, seeded: &SeededGoals, session: &mut Session, step: &RecordedAction) {
        let origin = || match &step.action {
            Some(action) => format!("{origin}: {action}"),
            None => origin.to_owned(),
        };
        if let Some(action) = step.action.as_deref().and_then(|a| action::parse(a).ok()) {
            session.act(&self.shop, &seeded.prices, &action);
        }
        let rich = step.obs.contains("[button]");
        let fields = page_fields(&self.shop, session);
        let page = if rich { page::text_rich(&fields) } else { page::text(&fields) };
        if let Some(done) = step.done {
            self.report.compare("done flags", origin, &done, &session.bought().is_some());
        } else if step.action.is_some() {
            self.report.skip("done flags of steps without `done`");
        }
        if step.reward.is_none() && step.action.is_some() {
            self.report.skip("rewards of steps without `reward`");
        }
        let Some(score) = session.bought() else {
            self.report.compare("pages", origin, step.obs.as_str(), page.as_str());
            let names = page::clickables(&self.shop, session);
            let offered = Clickables { has_search_bar: session.page() == Page::Index, clickables: names };
            self.report.compare("clickables", origin, &step.actions, &offered);
            if let Some(reward) = step.reward {
                self.report.compare("rewards", origin, &reward, &0.0);
            }
            return;
        };
        self.report.skip("clickables after a purchase, which belong to another session");
        let recorded_type = step.verbose.as_ref().and_then(|v| v.get("r_type")).and_then(Value::as_f64);
        match &step.verbose {
            Some(parts) => self.partial_scores(&origin, parts, &score),
            None => self.report.skip("partial scores of purchases without `verbose`"),
        }
        if recorded_type == Some(score.product_type) {
            self.report.compare("pages", origin, step.obs.as_str(), page.as_str());
            if let Some(reward) = step.reward {
                self.report.compare("rewards", origin, &reward, &score.total);
            }
        } else {
            self.report.skip(match recorded_type {
                Some(_) => "scores where the noun rule yields another product type",
                None => "scores of purchases without a recorded product type (`r_type`)",
            });
            let (expected, actual) = (without_score(&step.obs), without_score(&page));
            self.report.compare("pages except the score", origin, expected.as_str(), actual.as_str());
        }
    }

    /// Compares the partial scores that do not depend on the noun rule.
    fn partial_scores(&mut self, origin: &impl Fn() -> String, recorded: &Map<String, Value>, score: &PurchaseScore) {
        let scores: [(&str, &str, Value); 5] = [
            ("attribute scores", "r_att", score.attributes.into()),
            ("option scores", "r_option", score.options.into()),
            ("price scores", "r_price", score.price.into()),
            ("query matches", "query_match", score.query_match.into()),
            ("category matches", "category_match", score.category_match.into()),
        ];
        for (name, key, actual) in scores {
            let expected = recorded.get(key).unwrap_or(&Value::Null);
            // Integral values may be recorded without a decimal point.
            let expected = if actual.is_f64() { expected.as_f64().into() } else { expected.clone() };
            self.report.compare(name, || format!("{}: {key}", origin()), &expected, &actual);
        }
    }
}

impl RecordedGoal {
    fn read(&self, origin: &str, catalogue: &Catalogue) -> Result<(ShoppingGoal, GoalKind)> {
        let wrong = |problem: String| Error::invalid(origin, problem);
        let product = catalogue.find(&self.asin).ok_or_else(|| {
            wrong(format!(
                "the goal's product {} is not in the catalogue; these are other files than those of the recording",
                self.asin
            ))
        })?;
        let text = |v: &Value| -> Result<Box<str>> {
            v.as_str().map(Into::into).ok_or_else(|| wrong("`goal_options` must contain texts".to_owned()))
        };
        let (options, kind) = match &self.goal_options {
            Value::Object(map) => {
                let pairs = map.iter().map(|(n, v)| Ok((n.as_str().into(), text(v)?))).collect::<Result<_>>()?;
                (GoalOptions::Pairs(pairs), GoalKind::Synthetic)
            }
            Value::Array(values) => {
                (GoalOptions::Values(values.iter().map(text).collect::<Result<_>>()?), GoalKind::Human)
            }
            _ => return Err(wrong("`goal_options` is neither an object nor a list".to_owned())),
        };
        let goal = ShoppingGoal {
            product,
            text: self.instruction_text.clone(),
            attributes: self.attributes.clone(),
            options,
            price_limit: self.price_upper,
        };
        Ok((goal, kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Seed, webshop::generate};
    use serde_json::json;

    fn replay() -> Replay {
        Replay { shop: Shop::new(generate(Seed::new(0), 60)).unwrap(), report: Conformance::default() }
    }

    /// A recording of a purchase in this implementation.
    fn purchase(replay: &Replay) -> Value {
        let table = replay.shop.goals(GoalKind::Synthetic);
        let seeded = table.seeded(replay.shop.catalogue(), 0);
        let goal = table.goal(replay.shop.catalogue(), &seeded.prices, seeded.order[0]);
        let GoalOptions::Pairs(pairs) = &goal.options else { panic!("synthetic goals have pairs") };
        let options: Map<String, Value> = pairs.iter().map(|(n, v)| (n.to_string(), v.to_string().into())).collect();
        let goal_record = json!({
            "asin": replay.shop.catalogue().product(goal.product).asin, "instruction_text": goal.text,
            "attributes": goal.attributes, "price_upper": goal.price_limit, "goal_options": options,
        });
        let price = seeded.prices.price(goal.product);
        let mut session = Session::new(Arc::new(goal), false);
        let mut steps = Vec::new();
        let words = replay.shop.catalogue().product(0).title.to_lowercase();
        let first = replay.shop.catalogue().product(replay.shop.search(&words)[0]).asin.to_lowercase();
        for action in
            [None, Some(format!("search[{words}]")), Some(format!("click[{first}]")), Some("click[buy now]".into())]
        {
            if let Some(text) = &action {
                assert!(session.act(&replay.shop, &seeded.prices, &action::parse(text).unwrap()), "{text}");
            }
            let bar = session.page() == Page::Index;
            let offered = json!({"has_search_bar": bar, "clickables": page::clickables(&replay.shop, &session)});
            let mut step = json!({"obs": page::text(&page_fields(&replay.shop, &session)), "actions": offered});
            step["reward"] = session.bought().map_or(0.0, |s| s.total).into();
            step["done"] = session.bought().is_some().into();
            if let Some(text) = action {
                step["action"] = text.into();
            }
            if let Some(s) = session.bought() {
                step["verbose"] = json!({
                    "r_type": s.product_type, "r_att": s.attributes, "r_option": s.options, "r_price": s.price,
                    "query_match": s.query_match, "category_match": s.category_match,
                });
            }
            steps.push(step);
        }
        json!({"goal_index": 0, "goal": goal_record, "price": price, "steps": steps})
    }

    fn report(change: impl FnOnce(&mut Value)) -> Result<Conformance> {
        let mut replay = replay();
        let mut recording = purchase(&replay);
        change(&mut recording);
        let ShopRecording::Episode(episode) = ShopRecording::read(&recording.to_string(), "here, line 1")? else {
            panic!("an episode")
        };
        replay.episode("here, line 1", &episode)?;
        Ok(replay.report)
    }

    /// Changes the score on the last step's page.
    fn change_score(recording: &mut Value) {
        let last = &mut recording["steps"][3];
        let page = last["obs"].as_str().unwrap().to_owned();
        let score = python_float(last["reward"].as_f64().unwrap());
        let at = page.rfind(&score).unwrap();
        last["obs"] = format!("{}0.123{}", &page[..at], &page[at + score.len()..]).into();
    }

    fn python_float(x: f64) -> String {
        super::super::python_format::float(x)
    }

    #[test]
    fn the_score_on_the_last_page_is_compared_if_the_product_type_is_recorded() {
        let same = report(|_| ()).unwrap();
        assert!(same.passed() && same.compared["pages"] == 4 && same.compared["rewards"] == 4, "{same:#?}");
        let other = report(change_score).unwrap();
        assert_eq!(other.different, 1, "{other:#?}");
    }

    #[test]
    fn without_the_product_type_everything_except_the_score_is_compared() {
        let without = |recording: &mut Value| drop(recording["steps"][3].as_object_mut().unwrap().remove("verbose"));
        for change in [&|_: &mut Value| () as _, &change_score as &dyn Fn(&mut Value)] {
            let r = report(|recording| {
                without(recording);
                change(recording);
            });
            let r = r.unwrap();
            assert!(r.passed() && r.compared["pages except the score"] == 1 && r.compared["pages"] == 3, "{r:#?}");
            assert_eq!(r.skipped["partial scores of purchases without `verbose`"], 1);
            assert_eq!(r.skipped["scores of purchases without a recorded product type (`r_type`)"], 1);
        }
        let r = report(|recording| {
            without(recording);
            let page = recording["steps"][3]["obs"].as_str().unwrap().replace("Thank you", "Thanks");
            recording["steps"][3]["obs"] = page.into();
        });
        assert_eq!(r.unwrap().different, 1, "a changed word is a difference");
        let r = report(|recording| drop(recording["steps"][3].as_object_mut().unwrap().remove("reward"))).unwrap();
        assert!(r.passed() && r.skipped["rewards of steps without `reward`"] == 1, "{r:#?}");
    }

    #[test]
    fn only_the_score_is_replaced() {
        let page = "Your score (min 0.0, max 1.0) [SEP] 0.6666666666666666 [SEP] Reward Details [SEP] None";
        assert_eq!(without_score(page), page.replace("0.6666666666666666", "SCORE"));
    }

    #[test]
    fn unknown_keys_are_rejected() {
        let error = |change: &dyn Fn(&mut Value)| report(change).unwrap_err().to_string();
        for (e, expected) in [
            (error(&|r| r["sead"] = 3.into()), "here, line 1: unknown key `sead`: did you mean `seed`?"),
            (error(&|r| r["goal"]["asni"] = 3.into()), "here, line 1: goal: unknown key `asni`: did you mean `asin`?"),
            (error(&|r| r["steps"][1]["rewrad"] = 3.into()), "here, line 1, step 1: unknown key `rewrad`"),
            (error(&|r| r["steps"][1]["actions"]["clickable"] = 3.into()), "step 1: actions: unknown key `clickable`"),
            (error(&|r| r["steps"][3]["verbose"]["r_tpye"] = 3.into()), "step 3: verbose: unknown key `r_tpye`"),
            (error(&|r| r["price"] = "dear".into()), "here, line 1: `price` must be a number, not the text \"dear\""),
        ] {
            assert!(e.contains(expected), "{e}");
        }
        let e = ShopRecording::read("{\"hits\": []}", "here").err().unwrap().to_string();
        assert!(e.contains("neither a search (`query`, `hits`) nor an episode"), "{e}");
        assert!(ShopRecording::read("[1]", "here").is_err() && ShopRecording::read("{\"query\": 1}", "here").is_err());
    }
}
