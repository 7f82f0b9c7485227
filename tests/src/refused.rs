//! Tables of what is refused: each case is one change away from what is good, and has the words of its refusal.

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// What it is; the fields of the good spec that are different, by name or by JSON pointer (`null` takes one away); and words of the
/// refusal, its field first.
pub type Case = (&'static str, Value, &'static [&'static str]);

/// The good spec with these fields instead.
///
/// # Errors
/// Where the change names what the good spec hasn't.
pub fn changed(good: &Value, change: &Value) -> Result<Value> {
    let mut spec = good.clone();
    for (pointer, value) in change.as_object().into_iter().flatten() {
        let (parent, field) = pointer.rsplit_once('/').unwrap_or(("", pointer));
        let parent = spec.pointer_mut(parent).with_context(|| format!("{pointer}: no such field"))?;
        match (parent, value) {
            (Value::Array(items), value) => items[field.parse::<usize>()?] = value.clone(),
            (Value::Object(fields), Value::Null) => drop(fields.remove(field)),
            (Value::Object(fields), value) => drop(fields.insert(field.to_owned(), value.clone())),
            _ => bail!("{pointer}: neither a list nor an object"),
        }
    }
    Ok(spec)
}

/// What is wrong with an answer that should be a refusal with these words.
pub fn misjudged<T>(what: &str, answer: kube::Result<T>, words: &[&str]) -> Option<String> {
    // To the API server that is a bad request, or an invalid patch.
    let unknown = words.iter().any(|word| word.starts_with("unknown field"));
    match answer {
        Ok(_) => Some(format!("{what}: accepted")),
        Err(kube::Error::Api(status)) if status.code == 422 || unknown && status.code == 400 => {
            let missing: Vec<_> = words.iter().filter(|word| !status.message.contains(**word)).collect();
            (!missing.is_empty()).then(|| format!("{what}: no {missing:?} in: {}", status.message))
        }
        Err(error) => Some(format!("{what}: {error}")),
    }
}
