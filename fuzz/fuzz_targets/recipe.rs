//! Fuzz target: composing and checking a recipe yields a recipe that its own text restores, or an error.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mage_train::recipe::{Composer, Recipe, key_values};

fn compose(text: &str) -> Option<Recipe> {
    let mut composer = Composer::new();
    composer.add_text(text, "fuzz").ok()?;
    // The last line is also tried as an override on the command line.
    let _ = composer.set(text.lines().last().unwrap_or(""));
    composer.finish().ok()
}

fuzz_target!(|text: &str| {
    let Some(recipe) = compose(text) else { return };
    let mut composer = Composer::new();
    composer.add_text(&recipe.to_toml(), "again").unwrap();
    assert_eq!(key_values(&composer.finish().unwrap()), key_values(&recipe));
    if recipe.check().is_ok() {
        // Used without further checks.
        let _ = (recipe.sampling(), recipe.eval_sampling(), recipe.loss(0), recipe.optim_step(0));
    }
});
