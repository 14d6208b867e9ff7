//! Explanations of recipe keys with their values.

use super::{
    Recipe,
    keys::{fields, is_within, unknown},
};
use crate::Result;
use toml::Value;

/// One key of a recipe.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct RecipeField {
    /// Dotted key.
    pub key: String,
    /// Explanation.
    pub description: String,
    /// Value in the recipe.
    pub value: String,
    /// Value of a recipe that does not set the key.
    pub default: String,
}

/// The keys below `prefix` (all for an empty one) with their values in a recipe. An unknown prefix is an error that
/// suggests the nearest key.
pub fn explain(prefix: &str, recipe: &Recipe) -> Result<Vec<RecipeField>> {
    let (values, defaults) = (values(recipe), values(&Recipe::default()));
    let text = |value: &Value, key: &str| {
        let value = key.split('.').try_fold(value, |v, part| v.get(part));
        value.map_or_else(|| "(none)".to_owned(), one_line)
    };
    let found: Vec<RecipeField> = fields()
        .filter(|(key, _)| prefix.is_empty() || is_within(key, prefix))
        .map(|(key, lines)| RecipeField {
            value: text(&values, &key),
            default: text(&defaults, &key),
            description: sentence(lines),
            key,
        })
        .collect();
    if found.is_empty() { Err(unknown(prefix, "mage recipe explain")) } else { Ok(found) }
}

/// The explanation of a key as one line.
pub(super) fn sentence(lines: &[&str]) -> String {
    lines.iter().map(|l| l.trim()).collect::<Vec<_>>().join(" ")
}

fn one_line(value: &Value) -> String {
    match value {
        Value::Table(t) => {
            let inner: Vec<String> = t.iter().map(|(k, v)| format!("{k} = {}", one_line(v))).collect();
            format!("{{ {} }}", inner.join(", "))
        }
        other => other.to_string(),
    }
}

/// The values of a recipe with floats in their shortest 32-bit form: 0.2, not 0.200000003.
pub(super) fn values(recipe: &Recipe) -> Value {
    let mut value = Value::try_from(recipe).expect("recipes are plain data");
    shorten(&mut value);
    value
}

fn shorten(value: &mut Value) {
    match value {
        Value::Float(x) if f64::from(*x as f32) == *x => *x = (*x as f32).to_string().parse().unwrap_or(*x),
        Value::Table(table) => table.iter_mut().for_each(|(_, v)| shorten(v)),
        Value::Array(list) => list.iter_mut().for_each(shorten),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Composer;

    #[test]
    fn keys_are_explained_singly_and_by_section_with_values_in_effect() {
        let mut composer = Composer::new();
        composer.add("kuhn").unwrap();
        let kuhn = composer.finish().unwrap();
        let updates = explain("optim.updates", &kuhn).unwrap();
        assert_eq!((updates.len(), updates[0].value.as_str(), updates[0].default.as_str()), (1, "300", "200"));
        assert!(explain("optim", &kuhn).unwrap().len() > 5);
        let error = explain("optmi", &kuhn).unwrap_err().to_string();
        assert!(error.contains("unknown key `optmi`: did you mean `optim`?"), "{error}");
        let all = explain("", &kuhn).unwrap();
        assert!(all.iter().all(|f| f.description.ends_with('.')), "every explanation is a sentence");
    }
}
