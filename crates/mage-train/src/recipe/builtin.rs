//! Embedded recipes.

use crate::{Error, Result};
use mage_core::Method;
use toml::{Table, Value};

const RECIPES: &[(&str, &str)] = &[
    ("kuhn", include_str!("../../recipes/kuhn.toml")),
    ("kuhn-switching", include_str!("../../recipes/kuhn-switching.toml")),
    ("tictactoe", include_str!("../../recipes/tictactoe.toml")),
    ("tictactoe-blind", include_str!("../../recipes/tictactoe-blind.toml")),
    ("paper/alfworld", include_str!("../../recipes/paper/alfworld.toml")),
    ("paper/kuhn", include_str!("../../recipes/paper/kuhn.toml")),
    ("paper/sokoban", include_str!("../../recipes/paper/sokoban.toml")),
    ("paper/tictactoe", include_str!("../../recipes/paper/tictactoe.toml")),
    ("paper/webshop", include_str!("../../recipes/paper/webshop.toml")),
];

/// Names of the embedded recipes and methods.
pub fn builtin_names() -> Vec<String> {
    let methods = Method::NAMES.iter().map(|m| m.replace('_', "-"));
    RECIPES.iter().map(|(name, _)| (*name).to_owned()).chain(methods).collect()
}

/// An embedded recipe, or a method as a partial recipe.
pub(super) fn find(name: &str) -> Result<Option<Table>> {
    if let Some((_, text)) = RECIPES.iter().find(|(n, _)| *n == name) {
        let parsed = text.parse::<Table>();
        return parsed.map(Some).map_err(|e| Error::Recipe { location: name.to_owned(), problem: e.to_string() });
    }
    let Ok(method) = Method::named(&name.replace('-', "_")) else { return Ok(None) };
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
    Ok(Some(table))
}

#[cfg(test)]
mod tests {
    use super::super::Composer;

    #[test]
    fn every_embedded_recipe_is_valid_with_every_method_at_equal_episodes() {
        for (name, _) in super::RECIPES {
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
