//! Composition of files and overrides into a recipe.

use super::{Recipe, builtin, explain};
use crate::{Error, Result};
use mage_env::nearest_name;
use std::path::Path;
use toml::{Table, Value};

/// Merges partial recipes; later values override earlier ones.
#[derive(Default)]
pub struct Composer {
    table: Table,
}

impl Composer {
    /// An empty composition: all defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the embedded recipe, method or file called `name`.
    pub fn add(&mut self, name: &str) -> Result<()> {
        if let Some(table) = builtin::find(name)? {
            return self.add_table(table, name);
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
        let table: Table = text.parse().map_err(|e: toml::de::Error| Error::Recipe {
            location: location.to_owned(),
            problem: e.to_string().trim_end().to_owned(),
        })?;
        self.add_table(table, location)
    }

    fn add_table(&mut self, table: Table, location: &str) -> Result<()> {
        explain::check_keys(&table, location)?;
        merge(&mut self.table, table);
        Ok(())
    }

    /// Adds an override `a.b=c`. A value that is not valid TOML is a string.
    pub fn set(&mut self, setting: &str) -> Result<()> {
        let wrong = |problem: &str| Error::Recipe { location: setting.to_owned(), problem: problem.to_owned() };
        let (key, text) = setting
            .split_once('=')
            .ok_or_else(|| wrong("an override has the form key=value, for example optim.updates=50"))?;
        let (key, text) = (key.trim(), text.trim());
        if key.is_empty() || key.split('.').any(str::is_empty) {
            return Err(wrong("the key is empty; `mage recipe explain` lists all keys"));
        }
        let value = format!("x = {text}").parse::<Table>().ok().and_then(|mut t| t.remove("x"));
        let mut value = value.unwrap_or_else(|| Value::String(text.to_owned()));
        for part in key.rsplit('.') {
            value = Value::Table(Table::from_iter([(part.to_owned(), value)]));
        }
        match value {
            Value::Table(table) => self.add_table(table, setting),
            _ => Err(wrong("the key is empty")),
        }
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
        let recipe: Recipe = toml::from_str(&text).map_err(|e| Error::Recipe {
            location: "recipe".to_owned(),
            problem: e.to_string().trim_end().to_owned(),
        })?;
        recipe.check()?;
        Ok(recipe)
    }
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
    let keys: std::collections::BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    keys.into_iter()
        .filter(|k| one.get(*k) != other.get(*k))
        .map(|k| {
            let at = |m: &std::collections::BTreeMap<String, String>| m.get(k).cloned().unwrap_or_else(absent);
            (k.clone(), at(&one), at(&other))
        })
        .collect()
}

/// All keys of a recipe with their values as text.
pub fn key_values(recipe: &Recipe) -> std::collections::BTreeMap<String, String> {
    let mut out = std::collections::BTreeMap::new();
    flatten("", &explain::values(recipe), &mut out);
    out
}

fn flatten(prefix: &str, value: &Value, out: &mut std::collections::BTreeMap<String, String>) {
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
        assert!(err("optim.updates=many").contains("invalid type"), "{}", err("optim.updates=many"));
        assert!(err("method.credit.gama_traj=0.5").contains("gamma_traj"));
        assert!(composed(&["kuhm"], &[]).unwrap_err().to_string().contains("did you mean `kuhn`"));
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
        assert!(e.contains("engine.threads") && e.contains("more than 1024"), "{e}");
        assert!(err("optim.learning_rate=nan").contains("learning_rate"));
        assert!(err("method.credit.gamma_traj=2").contains("gamma_traj"));
    }
}
