//! Embedded recipes, and methods as partial recipes.

use mage_core::Method;
use toml::{Table, Value};

/// An embedded recipe or a method, for lists.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct BuiltinRecipe {
    /// Name.
    pub name: String,
    /// Description.
    pub description: &'static str,
    /// Hardware and duration; empty for methods, which are merged into a recipe.
    pub needs: &'static str,
}

/// Name, description, hardware and duration, and text of each embedded recipe.
const RECIPES: &[(&str, &str, &str, &str)] = &[
    ("kuhn", "three hidden opponents", "2 cores, 2 min", include_str!("../../recipes/kuhn.toml")),
    ("kuhn-switching", "opponents may switch", "2 cores, 2 min", include_str!("../../recipes/kuhn-switching.toml")),
    ("tictactoe", "the paper's opponents", "2 cores, 5 min", include_str!("../../recipes/tictactoe.toml")),
    (
        "tictactoe-blind",
        "opponents blind to a line",
        "2 cores, 5 min",
        include_str!("../../recipes/tictactoe-blind.toml"),
    ),
    ("paper/alfworld", PAPER, PAPER_NEEDS, include_str!("../../recipes/paper/alfworld.toml")),
    ("paper/kuhn", PAPER, PAPER_NEEDS, include_str!("../../recipes/paper/kuhn.toml")),
    ("paper/sokoban", PAPER, PAPER_NEEDS, include_str!("../../recipes/paper/sokoban.toml")),
    ("paper/tictactoe", PAPER, PAPER_NEEDS, include_str!("../../recipes/paper/tictactoe.toml")),
    ("paper/webshop", PAPER, PAPER_NEEDS, include_str!("../../recipes/paper/webshop.toml")),
];

const PAPER: &str = "Qwen3-4B, paper's settings";
/// AdamW on Qwen3-4B takes 73 GiB without the KV cache (BENCHMARKS.md).
const PAPER_NEEDS: &str = "141 GB GPU, days";

/// Descriptions of the methods, which differ from `mage` as they say.
const METHODS: [(&str, &str); Method::NAMES.len()] = [
    ("mage", "the default: differential credit (equation 7), return to go"),
    ("mage_paper", "penalties in the reward, reflections score 0, GiGPO"),
    ("mage_released", "the released code: its recursion and penalties, GiGPO"),
    ("lamer", "LaMer: cumulative instead of differential credit"),
    ("lamer_released", "cumulative credit, the rest as mage-released"),
    ("own_episode", "memory, but credit within an episode only (a control)"),
    ("gigpo", "no memory: GiGPO as released, on single episodes"),
    ("grpo", "no memory: GRPO, on single episodes"),
    ("pg_clip", "no groups: the baseline is the mean of the whole batch"),
];

/// The embedded recipes.
pub fn builtin_recipes() -> Vec<BuiltinRecipe> {
    let recipe = |(name, description, needs, _): &(&str, &'static str, &'static str, &str)| BuiltinRecipe {
        name: (*name).to_owned(),
        description,
        needs,
    };
    RECIPES.iter().map(recipe).collect()
}

/// The methods, which are merged into a recipe.
pub fn builtin_methods() -> Vec<BuiltinRecipe> {
    let method = |(name, description): (&str, &'static str)| BuiltinRecipe {
        name: name.replace('_', "-"),
        description,
        needs: "",
    };
    METHODS.into_iter().map(method).collect()
}

/// Names of the embedded recipes and methods.
pub fn builtin_names() -> Vec<String> {
    builtin_recipes().into_iter().chain(builtin_methods()).map(|r| r.name).collect()
}

/// The TOML of an embedded recipe.
pub fn recipe_text(name: &str) -> Option<&'static str> {
    RECIPES.iter().find(|(n, ..)| *n == name).map(|(.., text)| *text)
}

/// A method as a partial recipe.
pub(super) fn method_table(name: &str) -> Option<Table> {
    let method = Method::named(&name.replace('-', "_")).ok()?;
    let mut method_table = Table::try_from(method).expect("methods are plain data");
    if let Some(Value::Table(credit)) = method_table.get_mut("credit") {
        // Methods do not set these keys; the recipe's values remain.
        credit.retain(|key, _| !["gamma_step", "gamma_traj", "omit_previous_return"].contains(&key));
    }
    let mut table = Table::from_iter([("method".to_owned(), Value::Table(method_table))]);
    if !method.memory {
        // Without memory, a meta-episode is one episode: triple the group size to keep the number of episodes per
        // update.
        table.insert("play".to_owned(), Value::Table(Table::from_iter([("episodes".to_owned(), Value::Integer(1))])));
        table.insert(
            "rollout".to_owned(),
            Value::Table(Table::from_iter([("group_size".to_owned(), Value::Integer(24))])),
        );
    }
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::super::Composer;

    #[test]
    fn every_embedded_recipe_is_valid_with_every_method_at_equal_episodes() {
        for (name, ..) in super::RECIPES {
            let mut episodes = Vec::new();
            for method in mage_core::Method::NAMES {
                let mut c = Composer::new();
                c.add(name).unwrap();
                c.add(&method.replace('_', "-")).unwrap();
                if name.starts_with("paper/") {
                    c.set("model.path=somewhere").unwrap();
                }
                let r = c.finish().unwrap_or_else(|e| panic!("{name} {method}: {e}"));
                episodes.push(r.rollout.groups * r.rollout.group_size * r.play.episodes as usize);
            }
            assert!(episodes.iter().all(|e| *e == episodes[0]), "{name}: {episodes:?}");
        }
    }

    #[test]
    fn every_method_is_described() {
        for ((name, _), known) in super::METHODS.iter().zip(mage_core::Method::NAMES) {
            assert_eq!(*name, known);
        }
    }

    #[test]
    fn a_method_keeps_the_discounts_of_the_recipe() {
        let composed = |pieces: &[&str]| {
            let mut c = Composer::new();
            pieces.iter().for_each(|p| c.add(p).unwrap());
            c.finish().unwrap()
        };
        assert_eq!(composed(&["tictactoe-blind"]), composed(&["tictactoe-blind", "mage"]));
        assert_eq!(composed(&["tictactoe-blind", "lamer"]).method.credit.gamma_traj, 0.3);
        assert_eq!(composed(&["kuhn", "lamer"]).method, mage_core::Method::named("lamer").unwrap());
    }
}
