//! `mage recipe`: lists, merges and explains recipes.

use crate::{
    cli::{RecipeArgs, RecipeCommand},
    output::{BOLD, DIM, Output, styled},
    usage,
};
use mage_core::Method;
use mage_train::{
    recipe::{Composer, builtin_names, explain},
    run_dir::ModelAddress,
};
use std::path::Path;

pub(crate) fn run(args: &RecipeArgs, out: &Output) -> anyhow::Result<()> {
    match &args.command {
        RecipeCommand::List => list(out),
        RecipeCommand::Show { recipes, set } => show(recipes, set, out),
        RecipeCommand::Explain { key } => explain_keys(key, out),
    }
}

/// Merges recipes and overrides.
pub(crate) fn compose(recipes: &[String], set: &[String]) -> anyhow::Result<mage_train::recipe::Recipe> {
    let mut composer = Composer::new();
    // A method does not define an environment: without a recipe it is merged into the default one.
    let is_method = |name: &String| Method::NAMES.contains(&name.replace('-', "_").as_str());
    if !recipes.is_empty() && recipes.iter().all(is_method) {
        composer.add("kuhn").map_err(usage)?;
    }
    for name in recipes {
        composer.add(name).map_err(usage)?;
    }
    for setting in set {
        composer.set(setting).map_err(usage)?;
    }
    let mut recipe = composer.finish().map_err(usage)?;
    // A run names its checkpoint: what `RUN@best` means may change before the run resumes.
    let address = ModelAddress::resolve(&recipe.model.path).map_err(usage)?;
    if let Some(model) = address.map(|a| a.model).filter(|model| *model != Path::new(&recipe.model.path)) {
        recipe.model.path = model.display().to_string();
    }
    Ok(recipe)
}

fn list(out: &Output) -> anyhow::Result<()> {
    let (methods, recipes): (Vec<String>, Vec<String>) =
        builtin_names().into_iter().partition(|n| Method::NAMES.contains(&n.replace('-', "_").as_str()));
    if out.json {
        return out.object(&serde_json::json!({ "recipes": recipes, "methods": methods }));
    }
    out.line(format!("{}\n  {}", styled(BOLD, "recipes"), recipes.join("\n  ")))?;
    out.line(format!("{}\n  {}", styled(BOLD, "methods (merge after a recipe)"), methods.join("\n  ")))?;
    out.hint("`mage recipe show kuhn lamer` prints a merged recipe; `mage train kuhn lamer` runs it");
    Ok(())
}

fn show(recipes: &[String], set: &[String], out: &Output) -> anyhow::Result<()> {
    let recipe = compose(recipes, set)?;
    if out.json { out.object(&recipe) } else { out.line(recipe.to_toml().trim_end()) }
}

fn explain_keys(key: &str, out: &Output) -> anyhow::Result<()> {
    let fields = explain(key).map_err(usage)?;
    if out.json {
        return out.object(&fields);
    }
    for field in fields {
        out.line(format!(
            "{} {}\n    {}",
            styled(BOLD, &field.key),
            styled(DIM, format!("= {}", field.default)),
            field.description
        ))?;
    }
    Ok(())
}
