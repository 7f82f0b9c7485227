//! What JSON takes in memory: up to a hundred times its text. `{"":0}` is seven bytes, and a node with room for eleven entries.

use serde_json::Value;

/// Most bytes of sources and copies' bodies for the Replications of one namespace: a thousand objects of usual size, or one or two of
/// the largest.
pub(crate) const SOURCES_OF_A_NAMESPACE: usize = 4 << 20;
/// Most bytes of them for all Replications: an eighth of the memory that the reconciler's manifest allows it.
pub(crate) const SOURCES_OF_ALL: usize = 32 << 20;

/// Bytes of one node of a map.
const NODE: usize = 704;
/// At least so many entries are in a node, where there are several nodes.
const ENTRIES: usize = 5;
/// Whatever is allocated takes so much more than was asked for.
const ALLOCATED: usize = 16;

/// Bytes that JSON text takes at most once it is a [`Value`]: those of its strings, a node for each map, half empty ones as it
/// grows, and room for twice the items of a list.
pub(crate) fn of_text(json: &str) -> usize {
    const LIST: usize = 160;
    const MORE: usize = 192;
    let (mut memory, mut quoted, mut bytes) = (json.len(), false, json.bytes());
    while let Some(byte) = bytes.next() {
        match byte {
            // Outside strings there is none. What it escapes may be a quotation mark.
            b'\\' => _ = bytes.next(),
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'{' => memory += NODE,
            b'[' => memory += LIST,
            b',' => memory += MORE,
            _ => {}
        }
    }
    memory
}

/// Bytes that a value takes at most.
pub(crate) fn of(value: &Value) -> usize {
    let string = |text: &str| if text.is_empty() { 0 } else { text.len() + ALLOCATED };
    let held = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => string(text),
        // Of the items each says itself how large it is.
        Value::Array(items) => items.len() * size_of::<Value>() + items.iter().map(of).sum::<usize>(),
        Value::Object(fields) => {
            let nodes = if fields.len() > 11 { fields.len().div_ceil(ENTRIES) } else { fields.len().min(1) };
            // They lie in the nodes.
            let held = |(key, field): (&String, &Value)| string(key) + of(field) - size_of::<Value>();
            nodes * NODE + fields.iter().map(held).sum::<usize>()
        }
    };
    size_of::<Value>() + held
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_map_takes_its_nodes_and_a_list_its_items() {
        let node = 11 * (size_of::<String>() + size_of::<Value>());
        for count in [1_usize, 11, 12, 100, 1000] {
            let map: Value =
                (0..count).map(|i| (format!("{i:03}"), json!(0))).collect::<serde_json::Map<_, _>>().into();
            assert!(of(&map) >= node * count.div_ceil(11), "{count}: {}", of(&map));
            assert!(of(&map) <= of_text(&map.to_string()) + 2 * size_of::<Value>(), "{count}: {}", of(&map));
            let list = Value::Array(vec![json!(0); count]);
            assert!(of(&list) >= (count + 1) * size_of::<Value>(), "{count}: {}", of(&list));
        }
        assert!(of(&vec![json!({"": 0}); 100].into()) >= 100 * node);
        assert!(of(&json!("x".repeat(1000))) >= 1000);
    }
}
