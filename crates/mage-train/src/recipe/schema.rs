//! JSON Schema of recipes, for editors.

use super::{
    Recipe,
    explain::{sentence, values},
    keys::fields,
    value_type::{ValueType, value_type},
};
use serde_json::{Map, Value, json};

/// The JSON Schema (draft 2020-12) of a recipe file.
pub fn schema() -> Value {
    let recipe = Recipe::default();
    let defaults = serde_json::to_value(values(&recipe)).expect("recipes are plain data");
    let mut root = table();
    for (key, description) in fields() {
        let mut property = value_type(&key).map_or_else(Map::new, |value_type| type_schema(&key, &value_type));
        property.insert("description".to_owned(), sentence(description).into());
        if let Some(default) = defaults.pointer(&format!("/{}", key.replace('.', "/"))) {
            property.insert("default".to_owned(), default.clone());
        }
        for count in recipe.counts().iter().filter(|c| c.key == key) {
            property.insert("minimum".to_owned(), count.min.into());
            property.insert("maximum".to_owned(), count.max.into());
        }
        for (_, _, range) in recipe.ranges().iter().filter(|(k, ..)| *k == key) {
            property.extend(range.schema().iter().map(|(keyword, bound)| ((*keyword).to_owned(), json!(bound))));
        }
        insert(&mut root, &key, property.into());
    }
    let Value::Object(root) = root else { unreachable!("it is a table") };
    let mut schema = Map::from_iter([
        ("$schema".to_owned(), "https://json-schema.org/draft/2020-12/schema".into()),
        ("title".to_owned(), "mage recipe".into()),
    ]);
    schema.extend(root);
    schema.into()
}

/// The schema of a table without keys.
fn table() -> Value {
    json!({ "type": "object", "additionalProperties": false, "properties": {} })
}

/// Adds the schema of a dotted key.
fn insert(root: &mut Value, key: &str, property: Value) {
    match key.split_once('.') {
        Some((section, rest)) => {
            let section = root["properties"].as_object_mut().expect("a table").entry(section).or_insert_with(table);
            insert(section, rest, property);
        }
        None => root["properties"][key] = property,
    }
}

fn type_schema(key: &str, value_type: &ValueType) -> Map<String, Value> {
    let schema = match value_type {
        ValueType::Bool => json!({ "type": "boolean" }),
        ValueType::Integer(max) => json!({ "type": "integer", "minimum": 0, "maximum": max }),
        ValueType::Number => json!({ "type": "number" }),
        ValueType::Text => json!({ "type": "string" }),
        ValueType::Choice(names) => json!({ "enum": names }),
        ValueType::List(element) => json!({ "type": "array", "items": type_schema(key, element) }),
        ValueType::Table(keys) => {
            let mut schema = table();
            for name in *keys {
                let value_type = super::value_type::value_type(&format!("{key}.{name}"));
                schema["properties"][*name] =
                    value_type.map_or_else(Map::new, |value_type| type_schema(key, &value_type)).into();
            }
            schema
        }
        ValueType::Tagged { names, kinds } => {
            let rule = json!({ "type": "object", "properties": { "kind": { "enum": kinds } } });
            if names.is_empty() { rule } else { json!({ "anyOf": [{ "enum": names }, rule] }) }
        }
    };
    let Value::Object(schema) = schema else { unreachable!("schemas are objects") };
    schema
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::{builtin_methods, builtin_recipes, recipe_text};

    /// Checks a value by the keywords that [`schema`] uses; other keywords are an error.
    fn validate(schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        for (keyword, limit) in schema.as_object().expect("a schema") {
            let number = || value.as_f64().zip(limit.as_f64());
            let ok = match keyword.as_str() {
                "$schema" | "title" | "description" | "default" => true,
                "type" => match limit.as_str().unwrap() {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "boolean" => value.is_boolean(),
                    "number" => value.is_number(),
                    "integer" => value.is_i64() || value.is_u64(),
                    other => return Err(format!("{at}: unknown type {other}")),
                },
                "enum" => limit.as_array().unwrap().contains(value),
                "minimum" => number().is_none_or(|(v, limit)| v >= limit),
                "maximum" => number().is_none_or(|(v, limit)| v <= limit),
                "exclusiveMinimum" => number().is_none_or(|(v, limit)| v > limit),
                "exclusiveMaximum" => number().is_none_or(|(v, limit)| v < limit),
                "anyOf" => limit.as_array().unwrap().iter().any(|s| validate(s, value, at).is_ok()),
                "items" => {
                    value.as_array().into_iter().flatten().try_for_each(|v| validate(limit, v, at))?;
                    true
                }
                "properties" => {
                    for (key, value) in value.as_object().into_iter().flatten() {
                        if let Some(schema) = limit.get(key) {
                            validate(schema, value, &format!("{at}.{key}"))?;
                        }
                    }
                    true
                }
                "additionalProperties" => {
                    let known = |key: &String| schema["properties"].get(key).is_some();
                    value.as_object().is_none_or(|table| table.keys().all(known))
                }
                other => return Err(format!("{at}: unknown keyword {other}")),
            };
            if !ok {
                return Err(format!("{at}: {value} violates {keyword} {limit}"));
            }
        }
        Ok(())
    }

    fn check(text: &str) -> Result<(), String> {
        let value: toml::Table = text.parse().unwrap();
        validate(&schema(), &serde_json::to_value(value).unwrap(), "recipe")
    }

    #[test]
    fn embedded_recipes_methods_and_resolved_recipes_are_valid() {
        for recipe in builtin_recipes() {
            check(recipe_text(&recipe.name).unwrap()).unwrap_or_else(|e| panic!("{}: {e}", recipe.name));
        }
        for method in builtin_methods() {
            let table = crate::recipe::builtin::method_table(&method.name).unwrap();
            check(&toml::to_string(&table).unwrap()).unwrap_or_else(|e| panic!("{}: {e}", method.name));
        }
        check(&Recipe::default().to_toml()).unwrap();
    }

    #[test]
    fn invalid_recipes_violate_the_schema() {
        for (text, place) in [
            ("optim.updates = \"five\"", "recipe.optim.updates"),
            ("optim.updates = 1.5", "recipe.optim.updates"),
            ("[optim]\nupdatse = 3", "recipe.optim: "),
            ("colour = 1", "recipe: "),
            ("rollout.groups = 0", "recipe.rollout.groups"),
            ("rollout.top_p = 1.5", "recipe.rollout.top_p"),
            ("loss.kl_form = \"k4\"", "recipe.loss.kl_form"),
            ("reward = \"papr\"", "recipe.reward"),
            ("reward = { kind = \"wins\" }", "recipe.reward"),
            ("method.estimator.kind = \"ppo\"", "recipe.method.estimator.kind"),
            ("penalty.length = { limit = \"x\" }", "recipe.penalty.length.limit"),
            ("vllm.servers = [1]", "recipe.vllm.servers"),
        ] {
            let error = check(text).unwrap_err();
            assert!(error.starts_with(place), "{text}: {error}");
        }
    }
}
