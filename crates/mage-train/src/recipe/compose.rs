//! How do files and settings become one recipe?

use super::{Recipe, builtin, explain};
use crate::{Error, Result};
use std::path::Path;
use toml::{Table, Value};

/// Puts a recipe together, piece by piece; later pieces win.
#[derive(Default)]
pub struct Composer {
    table: Table,
}

impl Composer {
    /// Nothing said yet: all defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an embedded recipe, a method or a file, whatever `name` is.
    pub fn add(&mut self, name: &str) -> Result<()> {
        if let Some(table) = builtin::find(name)? {
            return self.add_table(table, name);
        }
        let path = Path::new(name);
        if !path.exists() {
            let known = builtin::builtin_names();
            let near = nearest(name, known.iter().map(String::as_str));
            let hint = near.map_or_else(String::new, |n| format!("; did you mean `{n}`?"));
            let problem =
                format!("neither a file nor an embedded recipe or method{hint} (known: {})", known.join(", "));
            return Err(Error::Recipe { place: name.to_owned(), problem });
        }
        let text = std::fs::read_to_string(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
        self.add_text(&text, name)
    }

    /// Adds TOML text; `place` is its name, for errors.
    pub fn add_text(&mut self, text: &str, place: &str) -> Result<()> {
        let table: Table = text.parse().map_err(|e: toml::de::Error| Error::Recipe {
            place: place.to_owned(),
            problem: e.to_string().trim_end().to_owned(),
        })?;
        self.add_table(table, place)
    }

    fn add_table(&mut self, table: Table, place: &str) -> Result<()> {
        explain::check_keys(&table, place)?;
        merge(&mut self.table, table);
        Ok(())
    }

    /// Adds one setting, `a.b=c`; what is no TOML value is taken as text.
    pub fn set(&mut self, setting: &str) -> Result<()> {
        let wrong = |problem: &str| Error::Recipe { place: setting.to_owned(), problem: problem.to_owned() };
        let (key, text) =
            setting.split_once('=').ok_or_else(|| wrong("a setting reads key=value, as in optim.updates=50"))?;
        let (key, text) = (key.trim(), text.trim());
        if key.is_empty() || key.split('.').any(str::is_empty) {
            return Err(wrong("the key is empty; `mage recipe explain` lists them"));
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

    /// The whole, checked.
    pub fn finish(mut self) -> Result<Recipe> {
        // Who changes a field of the estimator means the one that is there.
        if let Some(Value::Table(estimator)) = self.table.get_mut("method").and_then(|m| m.get_mut("estimator")) {
            let usual = explain::values(&Recipe::default());
            let kind = usual.get("method").and_then(|m| m.get("estimator")?.get("kind").cloned());
            kind.map(|kind| estimator.entry("kind").or_insert(kind));
        }
        let text = toml::to_string(&self.table)
            .map_err(|e| Error::Recipe { place: "recipe".into(), problem: e.to_string() })?;
        let recipe: Recipe = toml::from_str(&text)
            .map_err(|e| Error::Recipe { place: "recipe".to_owned(), problem: e.to_string().trim_end().to_owned() })?;
        recipe.check()?;
        Ok(recipe)
    }
}

/// Lays `above` over `below`. A table with a `kind` is one value: a new kind brings its own fields.
fn merge(below: &mut Table, above: Table) {
    for (key, value) in above {
        match (below.get_mut(&key), value) {
            (Some(Value::Table(under)), Value::Table(over)) if !replaces(under, &over) => merge(under, over),
            (_, value) => drop(below.insert(key, value)),
        }
    }
}

fn replaces(under: &Table, over: &Table) -> bool {
    over.contains_key("kind") && under.get("kind") != over.get("kind")
}

/// Where two recipes differ: key, one value, the other.
pub fn differences(one: &Recipe, other: &Recipe) -> Vec<(String, String, String)> {
    let flat = |recipe: &Recipe| {
        let mut out = std::collections::BTreeMap::new();
        flatten("", &explain::values(recipe), &mut out);
        out
    };
    let (one, other) = (flat(one), flat(other));
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

/// The likeliest meant of `known`, if any is near.
pub(super) fn nearest<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    known
        .map(|k| (strsim::damerau_levenshtein(k, name), k))
        .filter(|(d, k)| *d <= (k.len().max(name.len()) / 2).max(2))
        .min_by_key(|(d, _)| *d)
        .map(|(_, k)| k)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn composed(pieces: &[&str], settings: &[&str]) -> Result<Recipe> {
        let mut c = Composer::new();
        for p in pieces {
            c.add(p)?;
        }
        for s in settings {
            c.set(s)?;
        }
        c.finish()
    }

    #[test]
    fn later_pieces_win_and_the_whole_reads_back() {
        let r = composed(&["kuhn", "lamer"], &["optim.updates=7", "env.population=switching"]).unwrap();
        assert_eq!(r.optim.updates, 7);
        assert_eq!(r.method, mage_core::Method::named("lamer").unwrap());
        assert_eq!(r.env.population, "switching");
        let mut again = Composer::new();
        again.add_text(&r.to_toml(), "again").unwrap();
        assert_eq!(again.finish().unwrap(), r);
    }

    #[test]
    fn a_new_kind_of_estimator_leaves_nothing_of_the_old() {
        let r = composed(&["kuhn", "gigpo"], &["method.estimator.kind=return_to_go"]).unwrap();
        assert_eq!(r.method.estimator, mage_core::Estimator::default());
    }

    #[test]
    fn unknown_keys_name_the_nearest() {
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
    fn what_cannot_work_is_refused_by_key() {
        let err = |s: &str| composed(&[], &[s]).unwrap_err().to_string();
        assert!(err("rollout.groups=0").contains("rollout.groups"));
        assert!(err("optim.minibatches=1000").contains("1000 parts"));
        assert!(err("play.form=full").contains("model.path"));
        assert!(err("warmstart.epsilon=1.5").contains("warmstart.epsilon"));
        let e = err("engine.threads=100000");
        assert!(e.contains("engine.threads") && e.contains("more than 1024"), "{e}");
        assert!(err("optim.learning_rate=nan").contains("learning_rate"));
        assert!(err("method.credit.gamma_traj=2").contains("gamma_traj"));
    }
}
