//! The size of a value as JSON.

use serde_json::Value;

/// The approximate size of a value as JSON, in bytes.
pub fn bytes_of(value: &Value) -> usize {
    size(value, usize::MAX).unwrap_or(usize::MAX)
}

/// The approximate size of a value as JSON, in bytes. `None` if it is nested deeper than `depth`.
pub(crate) fn size(value: &Value, depth: usize) -> Option<usize> {
    let depth = depth.checked_sub(1)?;
    match value {
        Value::String(text) => Some(text.len() + 2),
        Value::Array(items) => items
            .iter()
            .try_fold(2, |sum, item| Some(sum + 1 + size(item, depth)?)),
        Value::Object(fields) => fields.iter().try_fold(2, |sum, (key, field)| {
            Some(sum + key.len() + 4 + size(field, depth)?)
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => Some(5),
    }
}
