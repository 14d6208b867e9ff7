//! Composition of files and overrides into a recipe.

use super::{
    Recipe, builtin, explain,
    keys::{check_keys, fields, is_within},
};
use crate::{Error, Result};
use mage_env::{TomlError, from_toml, nearest_name};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};
use toml::{Table, Value, de::DeTable};

/// Merges partial recipes; later values override earlier ones.
#[derive(Default)]
pub struct Composer {
    table: Table,
    /// Where each key was set last: file and line, or the text of an override.
    origins: BTreeMap<String, String>,
    /// Files and texts that set no key.
    empty: Vec<String>,
}

/// A source of keys, for errors.
#[derive(Clone, Copy)]
enum Source<'a> {
    /// A file, whose lines are counted.
    File(&'a str),
    /// An override.
    Setting(&'a str),
}

impl Source<'_> {
    fn at(self, line: usize) -> String {
        match self {
            Source::File(name) => format!("{name}:{line}"),
            Source::Setting(text) => match text.split_once('=') {
                Some((key, _)) if may_be_secret(key.trim()) => format!("{}=…", key.trim()),
                _ => text.to_owned(),
            },
        }
    }
}

impl Composer {
    /// An empty composition: all defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the embedded recipe, method or file called `name`.
    pub fn add(&mut self, name: &str) -> Result<()> {
        if let Some(text) = builtin::recipe_text(name) {
            return self.add_text(text, name);
        }
        if let Some(method) = builtin::method_table(name) {
            merge(&mut self.table, method);
            return Ok(());
        }
        let path = Path::new(name);
        if !path.exists() {
            let known = builtin::builtin_names();
            let hint = nearest_name(name, known.iter().map(String::as_str))
                .map_or_else(|| format!("; known: {}", known.join(", ")), |n| format!(": did you mean `{n}`?"));
            let problem = format!("neither a file nor an embedded recipe or method{hint}");
            return Err(Error::Recipe { location: name.to_owned(), problem });
        }
        let text = std::fs::read_to_string(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
        self.add_text(&text, name)
    }

    /// Adds TOML text; errors refer to it as `location`.
    pub fn add_text(&mut self, text: &str, location: &str) -> Result<()> {
        self.add_document(text, Source::File(location))
    }

    /// Adds an override `a.b=c`. A value that is not valid TOML is a string.
    pub fn set(&mut self, setting: &str) -> Result<()> {
        let (key, value) = split_setting(setting)?;
        // A document of one line, so that no other key can follow.
        let is_value = |text: &str| DeTable::parse(&format!("x = {text}")).is_ok_and(|t| t.get_ref().len() == 1);
        let value = if is_value(value) { value.to_owned() } else { Value::String(value.to_owned()).to_string() };
        let quoted: Vec<String> = key.split('.').map(|part| Value::String(part.to_owned()).to_string()).collect();
        self.add_document(&format!("{} = {value}", quoted.join(".")), Source::Setting(setting))
    }

    fn add_document(&mut self, text: &str, source: Source<'_>) -> Result<()> {
        let table: Table =
            from_toml(text).map_err(|e| Error::Recipe { location: source.at(e.line), problem: e.problem })?;
        let document = DeTable::parse(text).expect("it was parsed above");
        let origins = &mut self.origins;
        check_keys(document.get_ref(), text, &|line| source.at(line), &mut |key, line| {
            origins.insert(key, source.at(line));
        })?;
        self.check_types(&table)?;
        if table.is_empty() {
            let (Source::File(name) | Source::Setting(name)) = source;
            self.empty.push(name.to_owned());
        }
        merge(&mut self.table, table);
        Ok(())
    }

    /// Refuses values of the wrong type in one source, even if another source overrides them. Tables that are values may
    /// be partial; they are checked when they are merged.
    fn check_types(&self, table: &Table) -> Result<()> {
        let mut table = table.clone();
        for (key, _) in fields() {
            let (section, name) = key.rsplit_once('.').unwrap_or(("", &key));
            let parts = section.split('.').filter(|part| !part.is_empty());
            let parent = parts.into_iter().try_fold(&mut table, |t, part| t.get_mut(part)?.as_table_mut());
            if let Some(parent) = parent.filter(|t| t.get(name).is_some_and(Value::is_table)) {
                parent.remove(name);
            }
        }
        let text = toml::to_string(&table).expect("tables are plain data");
        from_toml::<Recipe>(&text).map(drop).map_err(|e| self.wrong_value(e))
    }

    /// An error about a value of the merged table, with the place where its key was set.
    fn wrong_value(&self, e: TomlError) -> Error {
        let origin = e.key.as_ref().and_then(|key| self.origin(key));
        let problem = match e.key.is_some_and(|key| may_be_secret(&key)) {
            true => e.problem.split(", not the text").next().unwrap_or_default().to_owned(),
            false => e.problem,
        };
        Error::Recipe { location: origin.unwrap_or_else(|| "recipe".to_owned()), problem }
    }

    /// Files and texts that set no key, and thus leave all values as they are.
    pub fn empty_sources(&self) -> &[String] {
        &self.empty
    }

    /// The keys that were set, in alphabetical order.
    pub fn keys_set(&self) -> Vec<String> {
        let value = |key: &str| {
            let mut parts = key.split('.');
            let first = self.table.get(parts.next()?)?;
            parts.try_fold(first, |value, part| value.get(part))
        };
        let mut keys: Vec<String> = fields().map(|(key, _)| key).filter(|key| value(key).is_some()).collect();
        keys.sort();
        keys
    }

    /// The validated recipe.
    pub fn finish(mut self) -> Result<Recipe> {
        // A partial estimator table without a kind refers to the default kind.
        if let Some(Value::Table(estimator)) = self.table.get_mut("method").and_then(|m| m.get_mut("estimator")) {
            let defaults = explain::values(&Recipe::default());
            let kind = defaults.get("method").and_then(|m| m.get("estimator")?.get("kind").cloned());
            kind.map(|kind| estimator.entry("kind").or_insert(kind));
        }
        let text = toml::to_string(&self.table)
            .map_err(|e| Error::Recipe { location: "recipe".into(), problem: e.to_string() })?;
        let recipe: Recipe = from_toml(&text).map_err(|e| self.wrong_value(e))?;
        recipe.check().map_err(|e| self.located(e))?;
        Ok(recipe)
    }

    /// Where a key was set, or else the table that contains it.
    fn origin(&self, key: &str) -> Option<String> {
        let mut prefix = key;
        loop {
            let within = || self.origins.iter().find(|(k, _)| is_within(k, prefix));
            if let Some(origin) = self.origins.get(prefix).or_else(|| within().map(|(_, origin)| origin)) {
                return Some(origin.clone());
            }
            prefix = prefix.rsplit_once('.')?.0;
        }
    }

    /// An error about a key's value, with the place where the key was set.
    fn located(&self, e: Error) -> Error {
        let (key, problem) = match e {
            Error::Recipe { location, problem } | Error::Env(mage_env::Error::Invalid { location, problem }) => {
                (location, problem)
            }
            other => return other,
        };
        match self.origins.get(&key) {
            Some(origin) => Error::Recipe { location: origin.clone(), problem: format!("`{key}`: {problem}") },
            None => Error::Recipe { location: key, problem },
        }
    }
}

/// Whether the value of a key may contain an API key or a password, which no message repeats.
fn may_be_secret(key: &str) -> bool {
    is_within(key, "tinker") || is_within(key, "vllm")
}

/// The key and the value of an override `a.b=c`.
fn split_setting(setting: &str) -> Result<(&str, &str)> {
    let wrong = |problem: &str| Error::Recipe { location: setting.to_owned(), problem: problem.to_owned() };
    let (key, value) = setting
        .split_once('=')
        .ok_or_else(|| wrong("an override has the form key=value, for example optim.updates=50"))?;
    let (key, value) = (key.trim(), value.trim());
    if key.is_empty() || key.split('.').any(str::is_empty) {
        return Err(wrong("the key is empty; `mage recipe explain` lists all keys"));
    }
    Ok((key, value))
}

/// Merges `overrides` into `base`. A table with a `kind` is one value: a new kind replaces all its fields.
fn merge(base: &mut Table, overrides: Table) {
    for (key, value) in overrides {
        match (base.get_mut(&key), value) {
            (Some(Value::Table(old)), Value::Table(new)) if !replaces(old, &new) => merge(old, new),
            (_, value) => drop(base.insert(key, value)),
        }
    }
}

fn replaces(old: &Table, new: &Table) -> bool {
    new.contains_key("kind") && old.get("kind") != new.get("kind")
}

/// Keys in which two recipes differ, with both values.
pub fn differences(one: &Recipe, other: &Recipe) -> Vec<(String, String, String)> {
    let (one, other) = (key_values(one), key_values(other));
    let absent = || "(absent)".to_owned();
    let keys: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    keys.into_iter()
        .filter(|k| one.get(*k) != other.get(*k))
        .map(|k| {
            let at = |m: &BTreeMap<String, String>| m.get(k).cloned().unwrap_or_else(absent);
            (k.clone(), at(&one), at(&other))
        })
        .collect()
}

/// All keys of a recipe with their values as text.
pub fn key_values(recipe: &Recipe) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    flatten("", &explain::values(recipe), &mut out);
    out
}

fn flatten(prefix: &str, value: &Value, out: &mut BTreeMap<String, String>) {
    match value {
        Value::Table(table) => {
            for (key, value) in table {
                let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                flatten(&key, value, out);
            }
        }
        other => drop(out.insert(prefix.to_owned(), other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn composed(names: &[&str], overrides: &[&str]) -> Result<Recipe> {
        let mut c = Composer::new();
        for p in names {
            c.add(p)?;
        }
        for s in overrides {
            c.set(s)?;
        }
        c.finish()
    }

    #[test]
    fn later_values_override_and_the_resolved_recipe_reads_back() {
        let r = composed(&["kuhn", "lamer"], &["optim.updates=7", "env.population=switching"]).unwrap();
        assert_eq!(r.optim.updates, 7);
        assert_eq!(r.method, mage_core::Method::named("lamer").unwrap());
        assert_eq!(r.env.population, "switching");
        let mut again = Composer::new();
        again.add_text(&r.to_toml(), "again").unwrap();
        assert_eq!(again.finish().unwrap(), r);
    }

    #[test]
    fn a_new_estimator_kind_replaces_all_fields() {
        let r = composed(&["kuhn", "gigpo"], &["method.estimator.kind=return_to_go"]).unwrap();
        assert_eq!(r.method.estimator, mage_core::Estimator::default());
    }

    #[test]
    fn unknown_keys_suggest_the_nearest() {
        let err = |s: &str| composed(&[], &[s]).unwrap_err().to_string();
        assert!(err("optim.updatse=3").contains("did you mean `optim.updates`"), "{}", err("optim.updatse=3"));
        assert!(err("lr=3").contains("optim.learning_rate"), "{}", err("lr=3"));
        assert!(err("optim.updates").contains("key=value"));
        assert!(err("method.credit.gama_traj=0.5").contains("gamma_traj"));
        assert!(composed(&["kuhm"], &[]).unwrap_err().to_string().contains("did you mean `kuhn`"));
    }

    #[test]
    fn values_of_wrong_types_are_refused_with_their_place() {
        let err = |texts: &[(&str, &str)], overrides: &[&str]| {
            let mut c = Composer::new();
            let added = texts.iter().try_for_each(|(name, text)| c.add_text(text, name));
            let set = added.and_then(|()| overrides.iter().try_for_each(|s| c.set(s)));
            set.and_then(|()| c.finish().map(drop)).unwrap_err().to_string()
        };
        let good = ("good.toml", "[optim]\nepochs = 1\n");
        for (text, expected) in [
            (
                "optim.updates = \"five\"",
                "1: `optim.updates` must be a whole number of at least 0, not the text \"five\"",
            ),
            ("\n[optim]\nupdates = 1.5", "3: `optim.updates` must be a whole number of at least 0, not the number 1.5"),
            ("[optim]\nupdates = 99999999999999999999", "2: `optim.updates` is too large: 99999999999999999999"),
            ("[loss]\nentropy = [1]", "2: `loss.entropy` must be a number, not a list"),
            ("play = { mask_actions = 1 }", "1: `play.mask_actions` must be true or false, not the number 1"),
            (
                "[loss]\nkl_form = \"k4\"",
                "2: `loss.kl_form` must be one of `k1`, `k2`, `k3`, not `k4`; did you mean `k1`?",
            ),
            ("[vllm]\nservers = [\"a\",\n2]", "2: `vllm.servers.2` must be a text, not the number 2"),
            (
                "[method]\nestimator = { kind = \"gigpo\",\n  step_weight = \"x\" }",
                "3: `method.estimator.step_weight` must be a number, not the text \"x\"",
            ),
            ("reward = \"papr\"", "1: `reward` must be one of"),
            ("[penalty]\n\nlength = { limit = 3 }", "3: `penalty.length`: missing field `weight`"),
            ("optim = 3", "1: `optim` is a section"),
            ("[optim]\nupdatse = 3", "2: unknown key `optim.updatse`: did you mean `optim.updates`?"),
            ("[optim]\nupdates = ", "2: string values must be quoted"),
            ("[rollout]\ngroups = 0", "2: `rollout.groups`: it must be at least 1"),
            ("[method.credit]\ngamma_traj = 2", "2: `method.credit.gamma_traj`: 2 is not a discount"),
            ("[model]\n\nnum_heads = 3", "3: `model.num_heads`: 3 is no multiple of model.num_kv_heads = 2"),
            ("[model]\nhead_dim = 5", "2: `model.head_dim`: 5 is odd"),
            ("[model]\nnum_layers = 100000", "2: `model.num_layers`: 100000 is not between 1 and 1024"),
        ] {
            for sources in [[("bad.toml", text), good], [good, ("bad.toml", text)]] {
                let message = err(&sources, &[]);
                assert!(message.starts_with(&format!("bad.toml:{expected}")), "{text}: {message}");
                assert!(!["u64", "usize", "f32", "i128"].iter().any(|t| message.contains(t)), "{message}");
            }
        }
        let overridden = err(&[("bad.toml", "optim.updates = \"five\"")], &["optim.updates=3"]);
        assert!(overridden.starts_with("bad.toml:1: `optim.updates` must be"), "{overridden}");
        for (setting, expected) in [
            ("optim.updates=abc", "`optim.updates` must be a whole number of at least 0, not the text \"abc\""),
            ("optim.updates=99999999999999999999", "`optim.updates` is too large: 99999999999999999999"),
            ("seed=1\noptim.updates=3", "`seed` must be a whole number of at least 0, not the text"),
            ("optim.minibatches=1000", "`optim.minibatches`: 1000 exceeds"),
        ] {
            let message = err(&[good], &["optim.epochs=2", setting]);
            assert!(message.starts_with(&format!("{setting}: {expected}")), "{message}");
        }
    }

    #[test]
    fn values_that_may_be_secret_are_not_repeated() {
        for setting in ["vllm.servers=http://me:hush@h:1", "tinker.calibrate=hush", "vllm.key_env=sk-hush"] {
            let error = composed(&["kuhn"], &[setting]).unwrap_err().to_string();
            assert!(error.contains(setting.split('=').next().unwrap()) && !error.contains("hush"), "{error}");
        }
    }

    #[test]
    fn sources_without_keys_are_known() {
        let mut c = Composer::new();
        c.add("kuhn").unwrap();
        assert!(c.empty_sources().is_empty());
        c.add_text("# nothing\n", "empty.toml").unwrap();
        assert_eq!(c.empty_sources(), ["empty.toml"]);
        assert!(
            c.keys_set().contains(&"optim.updates".to_owned()) && !c.keys_set().contains(&"optim.epochs".to_owned())
        );
    }

    #[test]
    fn differences_are_listed_by_key() {
        let a = composed(&["kuhn"], &[]).unwrap();
        let b = composed(&["kuhn"], &["seed=3"]).unwrap();
        assert_eq!(differences(&a, &b), [("seed".to_owned(), "0".to_owned(), "3".to_owned())]);
    }

    #[test]
    fn invalid_values_are_refused_by_key() {
        let err = |s: &str| composed(&[], &[s]).unwrap_err().to_string();
        assert!(err("rollout.groups=0").contains("rollout.groups"));
        assert!(err("optim.minibatches=1000").contains("1000 exceeds"));
        assert!(err("play.form=full").contains("model.path"));
        assert!(err("warmstart.epsilon=1.5").contains("warmstart.epsilon"));
        let e = err("engine.threads=100000");
        assert!(e.contains("engine.threads") && e.contains("at most 1024"), "{e}");
        assert!(err("optim.learning_rate=nan").contains("learning_rate"));
        assert!(err("method.credit.gamma_traj=2").contains("gamma_traj"));
    }
}
