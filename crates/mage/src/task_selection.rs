//! Builds a population from `--population`, `--opponent`, `--seat`, `--split` and `--option`.

use crate::{App, cli::TaskSelection, output::Output, usage};
use mage_env::{EnvSpec, OpponentSpec, Population, PopulationMember};
use std::{path::Path, sync::Arc};

/// The environment and the population of a command line. `base` replaces the environment's default population.
pub(crate) fn select(
    app: &App,
    env: &str,
    selection: &TaskSelection,
    base: Option<Population>,
) -> anyhow::Result<(Arc<dyn EnvSpec>, Population)> {
    let env_spec = Arc::clone(app.registry.get(env).map_err(usage)?);
    let mut population = match &selection.population {
        None => base.unwrap_or_else(|| env_spec.default_population()),
        Some(name) => read_population(&*env_spec, name)?,
    };
    if population.env != env_spec.id() {
        return Err(usage(format!(
            "population {} is for {}, not for {env}",
            selection.population.as_deref().unwrap_or_default(),
            population.env
        )));
    }
    if !selection.opponent.is_empty() {
        let chosen = selection.opponent.iter().map(|name| member(&*env_spec, &population, name, selection.split()));
        population.opponents = chosen.collect();
    }
    if let Some(seat) = selection.seat {
        let seats = env_spec.info().seats;
        if seat >= seats {
            return Err(usage(format!("seat {seat} does not exist; {env} has seats 0 to {}", seats - 1)));
        }
        population.seats = (0..seats).map(|s| f64::from(u8::from(s == seat))).collect();
    }
    for option in &selection.options {
        let (key, value) =
            option.split_once('=').ok_or_else(|| usage(format!("--option {option}: expected KEY=VALUE")))?;
        // A value that is valid JSON (a number, true, a list) is parsed; anything else is a string.
        let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
        population.set(key, value);
    }
    if selection.skip_bad {
        if !env_spec.info().options.iter().any(|o| o.key == "skip_bad") {
            return Err(usage(format!("--skip-bad requires an environment with game files; {env} has none")));
        }
        population.set("skip_bad", true.into());
    }
    // Errors refer to the file, unless options override its content.
    let file =
        selection.population.as_deref().filter(|_| selection.opponent.is_empty() && selection.options.is_empty());
    let source = file.map_or_else(|| format!("population of {env}"), str::to_owned);
    let usage_in_file = |e| usage_in(file.unwrap_or_default(), &e);
    population.validate(&source).map_err(usage)?;
    if population.opponents.is_empty() && !env_spec.info().opponents.is_empty() {
        return Err(usage(format!("{source}: no opponents; add an [[opponent]]")));
    }
    env_spec.check(&population).map_err(usage_in_file)?;
    population.in_split(selection.split()).map_err(usage_in_file)?;
    Ok((env_spec, population))
}

/// A usage error, prefixed with the file, and the line to which the message refers, if it does not contain them.
pub(crate) fn usage_in(file: &str, e: &mage_env::Error) -> anyhow::Error {
    let message = e.to_string();
    if file.is_empty() || message.contains(file) {
        return usage(message);
    }
    let text = std::fs::read_to_string(file).unwrap_or_default();
    match Population::line_of(&text, &message) {
        Some(line) => usage(format!("{file}:{line}: {message}")),
        None => usage(format!("{file}: {message}")),
    }
}

/// Prints the environment's warnings about a split, for which it may read the split's data.
pub(crate) fn print_warnings(
    env_spec: &dyn EnvSpec,
    population: &Population,
    split: &str,
    out: &Output,
) -> anyhow::Result<()> {
    env_spec.warnings(population, split)?.into_iter().for_each(|warning| out.warn(warning));
    Ok(())
}

/// Reads a population file, or finds a built-in population.
pub(crate) fn read_population(env_spec: &dyn EnvSpec, name: &str) -> anyhow::Result<Population> {
    if let Some((_, population)) = env_spec.populations().into_iter().find(|(n, _)| *n == name) {
        return Ok(population);
    }
    let path = Path::new(name);
    if !path.exists() && !name.contains(['/', '.']) {
        let known: Vec<_> = env_spec.populations().into_iter().map(|(n, _)| n).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(usage(format!("{name} is neither a file nor a built-in population (available: {known})")));
    }
    Population::from_file(path).map_err(usage)
}

/// Finds an opponent by its name in the population, by its kind, or by its name in a built-in population, and assigns
/// it to the split. An unknown name becomes a kind, which the environment then rejects.
fn member(env_spec: &dyn EnvSpec, population: &Population, name: &str, split: &str) -> PopulationMember {
    let named = |p: &Population| p.opponents.iter().find(|m| m.spec.name == name).cloned();
    let is_kind = || env_spec.info().opponents.iter().any(|(kind, _)| kind == name);
    let elsewhere = || env_spec.populations().iter().find_map(|(_, p)| named(p));
    let known = named(population).or_else(|| if is_kind() { None } else { elsewhere() });
    let found = known.unwrap_or_else(|| PopulationMember {
        spec: OpponentSpec::of_kind(name),
        ..PopulationMember::in_domain(name, 1.0)
    });
    // A weight is relative to the opponents of its own population.
    PopulationMember {
        splits: vec![split.to_owned()],
        weight: if named(population).is_some() { found.weight } else { 1.0 },
        ..found
    }
}
