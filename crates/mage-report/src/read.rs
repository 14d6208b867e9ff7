//! What is in the files?

use super::{
    Limits, Report, Transcript,
    compared::{Side, comparisons},
    entry::{Curves, Entry, Lines, from_summary, measure},
    files, learning,
    moves::Counter,
    paper,
    transcript::Choice,
};
use mage_core::{MetaEpisodeResult, MetricSummary, Trajectory};
use mage_env::{Hash, Seed};
use mage_train::{Result, eval::agent_seed, eval::store::read_trajectories, run_dir::RunDir};
use serde::Deserialize;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs,
    path::{Path, PathBuf},
};

/// The part of a summary that is needed here.
#[derive(Deserialize)]
struct SummaryFile {
    env: String,
    preset: Option<String>,
    split: String,
    unit: String,
    episodes: u32,
    early_stop: bool,
    tasks: u64,
    panel: Hash,
    seed: u64,
    seeds: u64,
    ceilings: Option<learning::Ceilings>,
    entrants: Vec<Entrant>,
}

#[derive(Deserialize)]
struct Entrant {
    name: String,
    policy: String,
    approach: Option<String>,
    method: Hash,
    weights: String,
    /// Absent for agents that play by rule.
    drawn: Option<serde_json::Value>,
    /// Needed, and understood, only where there are no records.
    summary: serde_json::Value,
    errors: u64,
}

/// What makes meta-episodes one entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Key {
    env: String,
    panel: String,
    method: String,
    ablation: Option<String>,
    player: String,
    hash: Hash,
}

/// What a summary says about records of some panel, method and weights.
struct Known {
    key: Key,
    unit: String,
    episodes: u32,
    early_stop: bool,
    ceiling: Option<Lines>,
    errors: u64,
    summary: serde_json::Value,
    seeds: Seeds,
    /// Whether records were found.
    recorded: bool,
}

/// Which seed a record's own luck came from.
#[derive(Default)]
struct Seeds {
    /// The seed a policy was trained with.
    trained: Option<u64>,
    of: HashMap<Seed, u64>,
}

/// Of panels so large, seeds are not looked for.
const MOST_SEEDS: u64 = 1 << 18;

impl Seeds {
    fn new(trained: Option<u64>, first: u64, seeds: u64, tasks: u64) -> Self {
        let mut of = HashMap::new();
        if seeds.saturating_mul(tasks) <= MOST_SEEDS {
            for seed in (0..seeds).map(|i| first.wrapping_add(i)) {
                of.extend((0..tasks).map(|task| (agent_seed(Seed::new(seed), task as usize), seed)));
            }
        }
        Seeds { trained, of }
    }

    /// For people; a record that no summary speaks of has its luck's own number.
    fn label(&self, seed: Seed) -> String {
        let own = self
            .of
            .get(&seed)
            .map_or_else(|| format!("luck {}", &Hash::of(&seed).to_string()[..6]), |s| format!("seed {s}"));
        match self.trained {
            Some(trained) => format!("trained with seed {trained}, {own}"),
            None => own,
        }
    }
}

struct Group {
    unit: String,
    episodes: u32,
    early_stop: bool,
    ceiling: Option<Lines>,
    results: Vec<(usize, MetaEpisodeResult)>,
    failed: HashSet<Hash>,
    finished: HashSet<Hash>,
    moves: Counter,
    choice: Choice,
}

impl Group {
    fn new(limits: Limits) -> Self {
        Group {
            unit: "score".to_owned(),
            episodes: 0,
            early_stop: false,
            ceiling: None,
            results: Vec::new(),
            failed: HashSet::new(),
            finished: HashSet::new(),
            moves: Counter::default(),
            choice: Choice::new(limits.transcripts),
        }
    }

    fn add(&mut self, record: &Trajectory, task: usize, whose: (&str, &Seeds), limits: Limits) {
        let id = Hash::of(&record.key);
        let Some(result) = record.result() else {
            self.failed.insert(id);
            return;
        };
        if !self.finished.insert(id) {
            return;
        }
        self.episodes = self.episodes.max(result.episodes.len() as u32);
        self.early_stop |= result.stopped_after_win;
        self.moves.add(record);
        let won = result.episodes.iter().any(|e| e.ending == mage_core::EpisodeEnding::Won);
        let (of, seeds) = whose;
        self.choice.offer(id, won, || Transcript::new(record, of, seeds.label(record.key.seed), limits.text));
        self.results.push((task, result));
    }
}

/// Reads everything under some paths. What cannot be read is left out, and noted; a path that does not exist is an error.
pub fn read(paths: &[PathBuf], limits: Limits) -> Result<Report> {
    let found = files::find(paths)?;
    let mut report = Report::default();
    let mut notes = Vec::new();
    for path in &found.unknown {
        notes.push(format!("{}: neither a run, nor records, nor a summary of `mage eval`; left out", path.display()));
    }
    let mut known = summaries(&found.summaries, &mut notes);
    let mut groups: BTreeMap<Key, Group> = BTreeMap::new();
    let mut tasks = HashMap::new();
    for path in &found.records {
        read_store(path, &mut known, &mut groups, &mut tasks, limits, &mut notes)?;
    }
    if found.replaced > 0 {
        notes.push(format!("{} results that sweeps have replaced since are left out", found.replaced));
    }
    let mut transcripts = Vec::new();
    let mut left = Left::default();
    let mut sides = Vec::new();
    for (key, group) in groups {
        let errors = group.failed.difference(&group.finished).count() as u64;
        let (kept, seen) = group.choice.finish();
        left.transcripts += seen - kept.len() as u64;
        if group.results.is_empty() {
            notes.push(format!("{} on {}: no meta-episode was finished, {errors} failed", key.method, key.panel));
            continue;
        }
        let place = report.entries.len();
        transcripts.push(kept.into_iter().map(|t| Transcript { entry: Some(place), ..t }).collect::<Vec<_>>());
        let curves = measure(&group.results, group.episodes);
        let moves = group.moves.finish(limits.spheres);
        left.turns += moves.left_out;
        sides.push(Side { entry: place, panel: key.hash, results: group.results });
        let about = (group.unit, group.episodes, group.early_stop, group.ceiling);
        report.entries.push(Entry { moves, ..entry(key, about, curves, errors) });
    }
    report.comparisons = comparisons(&report.entries, &sides);
    let unrecorded: Vec<Known> = known.into_values().filter(|k| !k.recorded).collect();
    for k in unrecorded {
        let summary: MetricSummary = match serde_json::from_value(k.summary) {
            Ok(summary) => summary,
            Err(e) => {
                let (method, panel) = (k.key.method, k.key.panel);
                notes
                    .push(format!("{method} on {panel}: no records, and a summary of another version ({e}); left out"));
                continue;
            }
        };
        notes.push(format!("{} on {}: from its summary; its records are not here", k.key.method, k.key.panel));
        let curves = from_summary(&summary);
        let about = (k.unit, k.episodes, k.early_stop, k.ceiling);
        report.entries.push(entry(k.key, about, curves, k.errors));
    }
    for path in &found.runs {
        match learning::read_run(path, &mut |note| notes.push(note)) {
            Ok(run) => {
                let mut choice = Choice::new(limits.transcripts);
                let of = format!("{}, training, seed {}", run.name(), run.seed);
                for record in learning::newest_trajectories(path, &mut |note| notes.push(note)) {
                    let seed = Seeds::default().label(record.key.seed);
                    let transcript = || Transcript::new(&record, &of, seed, limits.text);
                    let won = record.episodes.iter().any(mage_core::episode::Episode::won);
                    choice.offer(Hash::of(&record.key), won, transcript);
                }
                let (kept, seen) = choice.finish();
                left.transcripts += seen - kept.len() as u64;
                transcripts.push(kept);
                report.runs.push(run);
            }
            Err(e) => notes.push(format!("{e}; left out")),
        }
    }
    report.runs.sort_by(|a, b| (&a.env, a.name(), a.seed, &a.path).cmp(&(&b.env, b.name(), b.seed, &b.path)));
    for run in report.runs.iter().filter(|r| !r.finished) {
        notes.push(format!("{}: in progress, {} of {} updates", run.path, run.updates, run.of));
    }
    notes.extend(unplayed(&report));
    report.transcripts = bounded(transcripts, limits.bytes, &mut left);
    notes.extend(left.notes());
    report.notes = notes;
    Ok(report)
}

/// Trained policies that Table 1 lacks: a run keeps no games on the paper's panels, so somebody has to play them.
fn unplayed(report: &Report) -> Option<String> {
    let played = |run: &&super::Run| {
        let same = |e: &&Entry| (&e.env, &e.method, &e.ablation) == (&run.env, &run.method, &run.ablation);
        report.entries.iter().filter(same).any(|e| e.panel == run.env)
    };
    let in_table = |run: &&super::Run| paper::ENVS.iter().any(|(env, _)| *env == run.env);
    let missing: Vec<_> = report.runs.iter().filter(|r| r.finished).filter(in_table).filter(|r| !played(r)).collect();
    let first = missing.first()?;
    let whose = if missing.len() == 1 { "run" } else { "runs" };
    Some(format!(
        "Table 1 lacks {} {whose} that nobody measured on the paper's panel. For {}: mage eval --preset {} --policy {} --tasks 128 \
         --episodes 10 --early-stop --records {2}.jsonl --summary {2}.json, then report these files too",
        missing.len(),
        first.name(),
        first.env,
        first.path,
    ))
}

fn entry(key: Key, about: (String, u32, bool, Option<Lines>), curves: Curves, errors: u64) -> Entry {
    let (unit, episodes, early_stop, ceiling) = about;
    Entry {
        env: key.env,
        panel: key.panel,
        panel_hash: key.hash.to_string()[..8].to_owned(),
        method: key.method,
        ablation: key.ablation,
        player: key.player,
        unit,
        episodes,
        early_stop,
        meta_episodes: curves.meta_episodes,
        tasks: curves.tasks,
        errors,
        curve: curves.curve,
        opponents: curves.opponents,
        seats: curves.seats,
        ceiling,
        moves: super::Moves::default(),
    }
}

/// What there was no room for.
#[derive(Default)]
struct Left {
    transcripts: u64,
    turns: u64,
}

impl Left {
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.transcripts > 0 {
            notes.push(format!(
                "{} more meta-episodes count in all numbers but are not among the transcripts",
                self.transcripts
            ));
        }
        if self.turns > 0 {
            notes.push(format!("{} turns in rare states are not in the pictures of states and actions", self.turns));
        }
        notes
    }
}

/// One of each list, then another of each, until the bytes are used up.
fn bounded(lists: Vec<Vec<Transcript>>, bytes: usize, left: &mut Left) -> Vec<Transcript> {
    let mut room = bytes;
    let mut kept: Vec<(usize, Transcript)> = Vec::new();
    let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
    let mut lists: Vec<_> = lists.into_iter().map(Vec::into_iter).collect();
    for _ in 0..longest {
        for (i, list) in lists.iter_mut().enumerate() {
            let Some(transcript) = list.next() else { continue };
            let size = serde_json::to_string(&transcript).map_or(0, |t| t.len());
            if size <= room {
                room -= size;
                kept.push((i, transcript));
            } else {
                left.transcripts += 1;
            }
        }
    }
    kept.sort_by_key(|(i, _)| *i);
    kept.into_iter().map(|(_, t)| t).collect()
}

type Identity = (Hash, Hash, String);

fn summaries(files: &[PathBuf], notes: &mut Vec<String>) -> BTreeMap<Identity, Known> {
    let mut known = BTreeMap::new();
    for path in files {
        let read = fs::read(path).map_err(|e| e.to_string());
        let read = read.and_then(|text| serde_json::from_slice::<SummaryFile>(&text).map_err(|e| e.to_string()));
        let file = match read {
            Ok(file) => file,
            Err(problem) => {
                notes.push(format!("{}: {problem}; left out", path.display()));
                continue;
            }
        };
        let about = learning::about(path);
        // A preset is a panel of the paper's, and goes by its name alone.
        let panel = file.preset.clone().unwrap_or_else(|| format!("{} {}", file.env, file.split));
        let ceiling = file.ceilings.map(learning::Ceilings::lines);
        for entrant in file.entrants {
            let (method, player) = match &about {
                Some(about) => (about.method.clone(), about.policy.clone()),
                None => named(&entrant),
            };
            let key = Key {
                env: file.env.clone(),
                panel: panel.clone(),
                method,
                ablation: about.as_ref().and_then(|a| a.ablation.clone()),
                player,
                hash: file.panel,
            };
            let identity = (file.panel, entrant.method, entrant.weights);
            let is_run = entrant.approach.is_none() && entrant.drawn.is_some();
            let trained = about.as_ref().map(|a| a.seed).filter(|_| is_run);
            let known_as = Known {
                key,
                unit: file.unit.clone(),
                episodes: file.episodes,
                early_stop: file.early_stop,
                ceiling: ceiling.clone(),
                errors: entrant.errors,
                summary: entrant.summary,
                seeds: Seeds::new(trained, file.seed, file.seeds, file.tasks),
                recorded: false,
            };
            known.insert(identity, known_as);
        }
    }
    known
}

/// What an entrant of an evaluation is called, and who answers. An agent that plays by rule is called by its own name, however
/// it was asked: it stands in for no method.
fn named(entrant: &Entrant) -> (String, String) {
    if entrant.drawn.is_none() {
        return (entrant.policy.clone(), "scripted".to_owned());
    }
    let spelled = |name: &str| paper::spelling(name).map_or_else(|| name.to_owned(), str::to_owned);
    let run = Path::new(&entrant.policy);
    match (&entrant.approach, RunDir::recipe(run)) {
        (Some(approach), _) => (spelled(approach), entrant.policy.clone()),
        (None, Ok(recipe)) => (learning::method_name(&recipe), "trained policy".to_owned()),
        (None, Err(_)) => (entrant.name.clone(), "trained policy".to_owned()),
    }
}

fn read_store(
    path: &Path,
    known: &mut BTreeMap<Identity, Known>,
    groups: &mut BTreeMap<Key, Group>,
    tasks: &mut HashMap<Hash, usize>,
    limits: Limits,
    notes: &mut Vec<String>,
) -> Result<()> {
    let mut damaged = 0;
    let no_seeds = Seeds::default();
    for record in read_trajectories(path)? {
        let record = match record {
            Ok(record) => record,
            Err(e @ mage_train::Error::Line { .. }) => {
                damaged += 1;
                if damaged == 1 {
                    notes.push(format!("{e} (left out here)"));
                }
                continue;
            }
            Err(e) => return Err(e),
        };
        let identity = (record.key.task_set, record.key.method, record.key.weights.clone());
        let mut known = known.get_mut(&identity);
        let key = known.as_ref().map_or_else(|| unnamed(&record), |k| k.key.clone());
        let of = key.ablation.as_ref().map_or_else(|| key.method.clone(), |a| format!("{}, {a}", key.method));
        let group = groups.entry(key).or_insert_with(|| Group::new(limits));
        if let Some(known) = known.as_mut().filter(|k| !k.recorded) {
            known.recorded = true;
            group.unit.clone_from(&known.unit);
            group.early_stop |= known.early_stop;
            group.episodes = group.episodes.max(known.episodes);
            group.ceiling.clone_from(&known.ceiling);
        }
        let next = tasks.len();
        let task = *tasks.entry(record.key.task).or_insert(next);
        group.add(&record, task, (&of, known.map_or(&no_seeds, |k| &k.seeds)), limits);
    }
    if damaged > 1 {
        notes.push(format!("{}: {} more damaged lines left out", path.display(), damaged - 1));
    }
    Ok(())
}

/// What records are called that no summary speaks of.
fn unnamed(record: &Trajectory) -> Key {
    Key {
        env: record.task.env.to_string(),
        panel: format!("{} {}", record.task.env, &record.key.task_set.to_string()[..8]),
        method: format!("{} #{}", record.key.weights, &record.key.method.to_string()[..6]),
        ablation: None,
        player: "unknown: no summary".to_owned(),
        hash: record.key.task_set,
    }
}
