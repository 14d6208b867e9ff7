//! `mage recipe`: lists, merges and explains recipes.

use crate::{
    cli::{RecipeArgs, RecipeCommand},
    output::{BOLD, DIM, Output, styled},
    table::columns,
    usage,
};
use mage_core::Method;
use mage_env::nearest_name;
use mage_train::{
    recipe::{
        BuiltinRecipe, Composer, Recipe, RecipeField, builtin_methods, builtin_names, builtin_recipes, explain, is_key,
        schema,
    },
    run_dir::ModelAddress,
};
use serde::Serialize;
use std::path::Path;

/// The recipe of commands that name none.
const DEFAULT: &str = "kuhn";

pub(crate) fn run(args: &RecipeArgs, out: &Output) -> anyhow::Result<()> {
    match &args.command {
        RecipeCommand::List => list(out),
        RecipeCommand::Show { recipes, set } => show(recipes, set, out),
        RecipeCommand::Explain { names, set } => explain_names(names, set, out),
        RecipeCommand::Schema if out.json => out.object(&schema()),
        RecipeCommand::Schema => out.line(format!("{:#}", schema())),
    }
}

/// Merges recipes and overrides.
pub(crate) fn compose(recipes: &[String], set: &[String]) -> anyhow::Result<Recipe> {
    finish(composer(recipes, set)?)
}

/// Checks merged recipes and overrides, whose checkpoint need not exist yet.
pub(crate) fn check(recipes: &[String], set: &[String]) -> anyhow::Result<()> {
    composer(recipes, set)?.finish().map(drop).map_err(usage)
}

/// Like [`compose`], for a recipe that is used as it is: warns about files that set no key.
pub(crate) fn compose_and_warn(recipes: &[String], set: &[String], out: &Output) -> anyhow::Result<Recipe> {
    let composer = composer(recipes, set)?;
    let empty = composer.empty_sources().to_vec();
    let recipe = finish(composer)?;
    for file in empty {
        let values = match recipes.len() {
            1 => format!(
                "the built-in defaults apply (env.name = {:?}, optim.updates = {}, …; `mage recipe show {file}` prints all)",
                recipe.env.name, recipe.optim.updates
            ),
            _ => "it changes nothing".to_owned(),
        };
        out.warn(format!("{file} sets no key: {values}"));
    }
    Ok(recipe)
}

/// Whether a name is that of a method. A method does not define an environment: without a recipe it is merged into the
/// default one.
fn is_method(name: &str) -> bool {
    Method::NAMES.contains(&name.replace('-', "_").as_str())
}

/// The recipes that are merged for these names.
fn with_default(recipes: &[String]) -> Vec<String> {
    let base = recipes.iter().all(|name| is_method(name)).then(|| DEFAULT.to_owned());
    base.into_iter().filter(|_| !recipes.is_empty()).chain(recipes.iter().cloned()).collect()
}

fn composer(recipes: &[String], set: &[String]) -> anyhow::Result<Composer> {
    let mut composer = Composer::new();
    for name in with_default(recipes) {
        composer.add(&name).map_err(usage)?;
    }
    for setting in set {
        composer.set(setting).map_err(usage)?;
    }
    Ok(composer)
}

fn finish(composer: Composer) -> anyhow::Result<Recipe> {
    let mut recipe = composer.finish().map_err(usage)?;
    // A run names its checkpoint: what `RUN@best` means may change before the run resumes.
    let address = ModelAddress::resolve(&recipe.model.path).map_err(usage)?;
    if let Some(model) = address.map(|a| a.model).filter(|model| *model != Path::new(&recipe.model.path)) {
        recipe.model.path = model.display().to_string();
    }
    Ok(recipe)
}

/// An embedded recipe, as printed with `--json`.
#[derive(Serialize)]
struct RecipeSummary {
    name: String,
    environment: String,
    method: String,
    /// Hardware and duration.
    needs: &'static str,
    /// Episodes of all updates.
    episodes: u64,
    description: &'static str,
}

impl RecipeSummary {
    fn new(builtin: BuiltinRecipe) -> anyhow::Result<Self> {
        let recipe = compose(std::slice::from_ref(&builtin.name), &[])?;
        let (rollout, updates) = (&recipe.rollout, recipe.optim.updates);
        Ok(RecipeSummary {
            method: method_name(&recipe),
            episodes: updates * (rollout.groups * rollout.group_size) as u64 * u64::from(recipe.play.episodes),
            environment: recipe.env.name,
            name: builtin.name,
            needs: builtin.needs,
            description: builtin.description,
        })
    }
}

/// The method of a recipe, whose discounts may differ.
fn method_name(recipe: &Recipe) -> String {
    let same = |name: &&str| {
        Method::named(name).is_ok_and(|mut method| {
            let credit = &recipe.method.credit;
            method.credit.gamma_step = credit.gamma_step;
            method.credit.gamma_traj = credit.gamma_traj;
            method.credit.omit_previous_return = credit.omit_previous_return;
            method == recipe.method
        })
    };
    Method::NAMES.into_iter().find(same).map_or_else(|| "custom".to_owned(), |name| name.replace('_', "-"))
}

fn list(out: &Output) -> anyhow::Result<()> {
    let recipes: Vec<RecipeSummary> =
        builtin_recipes().into_iter().map(RecipeSummary::new).collect::<anyhow::Result<_>>()?;
    let methods = builtin_methods();
    if out.json {
        let methods: Vec<_> =
            methods.iter().map(|m| serde_json::json!({ "name": m.name, "description": m.description })).collect();
        return out.object(&serde_json::json!({ "recipes": recipes, "methods": methods }));
    }
    let rows = recipes
        .into_iter()
        .map(|r| vec![r.name, r.environment, r.method, r.needs.to_owned(), r.description.to_owned()]);
    out.line(columns(&["recipe", "env", "method", "needs", "opponents or model"], rows))?;
    let rows = methods.into_iter().map(|m| vec![m.name, m.description.to_owned()]);
    out.line(format!("\n{}", columns(&["method", "merged after a recipe"], rows)))?;
    out.hint("`mage recipe explain NAME` explains one; `mage train kuhn lamer` runs a recipe with a method");
    Ok(())
}

fn show(recipes: &[String], set: &[String], out: &Output) -> anyhow::Result<()> {
    let recipe = compose_and_warn(recipes, set, out)?;
    if out.json {
        let mut value = serde_json::to_value(&recipe)?;
        if let Some(model) = value["model"].as_object_mut().filter(|_| !recipe.model.path.is_empty()) {
            model.retain(|key, _| key == "path");
        }
        return out.object(&value);
    }
    out.line(without_unused_shape(&recipe).trim_end())
}

/// The recipe as TOML, without the shape of a new model if it names a checkpoint.
fn without_unused_shape(recipe: &Recipe) -> String {
    let mut section = String::new();
    let is_used = |line: &&str| {
        if line.starts_with('[') {
            (*line).clone_into(&mut section);
        }
        recipe.model.path.is_empty()
            || section != "[model]"
            || line.starts_with(['[', '\n'])
            || line.starts_with("path")
    };
    let text = recipe.to_toml();
    text.lines().filter(is_used).map(|line| format!("{line}\n")).collect()
}

/// What `mage recipe explain` prints.
#[derive(Serialize)]
struct Explanation {
    /// The recipes whose values are stated.
    recipes: Vec<String>,
    /// The named recipes and methods.
    builtin: Vec<BuiltinRecipe>,
    /// The named keys, or those that the named recipes set.
    keys: Vec<RecipeField>,
}

impl Explanation {
    fn new(names: &[String], set: &[String]) -> anyhow::Result<Self> {
        let (keys, recipes): (Vec<String>, Vec<String>) = names.iter().cloned().partition(|name| is_key(name));
        let known = builtin_names();
        for name in recipes.iter().filter(|name| !known.contains(name) && !Path::new(name).exists()) {
            // A misspelt recipe gets the hint of recipes, any other name that of keys.
            if nearest_name(name, known.iter().map(String::as_str)).is_none() {
                explain(name, &Recipe::default()).map_err(usage)?;
            }
        }
        let shown = if recipes.is_empty() { vec![DEFAULT.to_owned()] } else { with_default(&recipes) };
        let recipe = compose(&shown, set)?;
        let prefixes = match (&keys[..], &recipes[..]) {
            ([], []) => vec![String::new()],
            ([], _) => {
                let mut own = Composer::new();
                recipes.iter().try_for_each(|name| own.add(name)).map_err(usage)?;
                own.keys_set()
            }
            _ => keys,
        };
        let fields = prefixes.iter().map(|prefix| explain(prefix, &recipe)).collect::<Result<Vec<_>, _>>();
        let builtin = builtin_recipes().into_iter().chain(builtin_methods());
        Ok(Explanation {
            builtin: builtin.filter(|b| recipes.contains(&b.name)).collect(),
            recipes: shown,
            keys: fields.map_err(usage)?.concat(),
        })
    }
}

fn explain_names(names: &[String], set: &[String], out: &Output) -> anyhow::Result<()> {
    let explanation = Explanation::new(names, set)?;
    if out.json {
        return out.object(&explanation);
    }
    for BuiltinRecipe { name, description, needs } in &explanation.builtin {
        let needs = if needs.is_empty() { String::new() } else { format!(" ({needs})") };
        out.line(format!("{}: {description}{needs}", styled(BOLD, name)))?;
    }
    let default = if explanation.recipes == [DEFAULT] { ", the default recipe" } else { "" };
    let set = if set.is_empty() { "" } else { " with --set" };
    let of = explanation.recipes.join(" ");
    out.line(styled(DIM, format!("values in `mage train {of}`{set}{default}:")))?;
    for RecipeField { key, description, value, default } in explanation.keys {
        let default = if value == default { String::new() } else { format!(" (default {default})") };
        out.line(format!("{} {}\n    {description}", styled(BOLD, &key), styled(DIM, format!("= {value}{default}"))))?;
    }
    Ok(())
}
