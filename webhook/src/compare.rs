//! Compares a stored webhook configuration with the one that Mimeo wants.

use std::collections::BTreeSet;

use k8s_openapi::ByteString;
use mimeo_runtime::certificates::split;
use serde_json::{Value, json};

/// Which certificates a `caBundle` may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Exactly the wanted ones.
    Exactly,
    /// The wanted ones, and possibly others.
    AtLeast,
}

/// True if the stored webhook configuration is as wanted. Its metadata may have more fields; its
/// entries may not.
pub(crate) fn holds(live: &Value, wanted: &Value, trust: Trust) -> bool {
    contains(&live["metadata"], &wanted["metadata"])
        && same(&live["webhooks"], &wanted["webhooks"], trust)
}

/// True if `whole` has every field of `part` with the same value. `whole` may have more fields.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part
            .iter()
            .all(|(key, part)| whole.get(key).is_some_and(|whole| contains(whole, part))),
        _ => whole == part,
    }
}

/// True if both values are equal. An empty value equals a missing one.
fn same(live: &Value, wanted: &Value, trust: Trust) -> bool {
    match (live, wanted) {
        (Value::Object(fields), Value::Object(others)) => {
            let keys: BTreeSet<&String> = fields.keys().chain(others.keys()).collect();
            keys.into_iter()
                .all(|key| match (&live[key], &wanted[key]) {
                    // Mimeo may know no CA. Another client may then set one.
                    (_, Value::Null) if key == "caBundle" => true,
                    (live, wanted) if key == "caBundle" => trusts(live, wanted, trust),
                    (live, wanted) => same(live, wanted, trust),
                })
        }
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len()
                && live
                    .iter()
                    .zip(wanted)
                    .all(|(live, wanted)| same(live, wanted, trust))
        }
        _ => live == wanted || is_empty(live) && is_empty(wanted),
    }
}

fn is_empty(value: &Value) -> bool {
    [Value::Null, json!([]), json!({})].contains(value)
}

fn trusts(live: &Value, wanted: &Value, trust: Trust) -> bool {
    match trust {
        Trust::Exactly => live == wanted,
        Trust::AtLeast => certificates(live)
            .zip(certificates(wanted))
            .is_some_and(|(live, wanted)| wanted.is_subset(&live)),
    }
}

/// The certificates of a `caBundle`, one string each.
fn certificates(bundle: &Value) -> Option<BTreeSet<String>> {
    let ByteString(bytes) = serde_json::from_value(bundle.clone()).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    Some(split(&text).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn metadata_may_have_more() {
        let want = json!({"name": "x", "labels": {"a": "b"}});
        for (live, holds) in [
            (
                json!({"name": "x", "labels": {"a": "b", "c": "d"}, "uid": "u"}),
                true,
            ),
            (json!({"name": "x", "labels": {"a": "c"}}), false),
            (json!({"name": "x"}), false),
            (Value::Null, false),
        ] {
            assert_eq!(contains(&live, &want), holds, "{live}");
        }
    }

    #[test]
    fn entries_may_not() {
        let want =
            json!([{"name": "x", "rules": [{"scope": "*"}], "selector": {}, "conditions": []}]);
        for (live, holds) in [
            (
                json!([{"name": "x", "rules": [{"scope": "*"}], "selector": {}}]),
                true,
            ),
            (
                json!([{"name": "x", "rules": [{"scope": "*"}], "clientConfig": {"caBundle": "QQ=="}}]),
                false,
            ),
            (
                json!([{"name": "x", "rules": [{"scope": "*"}], "caBundle": "QQ=="}]),
                true,
            ),
            (
                json!([{"name": "x", "rules": [{"scope": "*"}], "selector": {"matchLabels": {"a": "b"}}}]),
                false,
            ),
            (
                json!([{"name": "x", "rules": [{"scope": "*"}], "conditions": [{"name": "never"}]}]),
                false,
            ),
            (json!([{"name": "x", "rules": []}]), false),
            (
                json!([{"name": "x", "rules": [{"scope": "*"}]}, {"name": "y"}]),
                false,
            ),
            (Value::Null, false),
        ] {
            assert_eq!(same(&live, &want, Trust::Exactly), holds, "{live}");
        }
    }

    #[test]
    fn certificates_of_others_stay_while_nothing_changes_here() {
        let pem = |name: &str| {
            format!("-----BEGIN CERTIFICATE-----\n{name}\n-----END CERTIFICATE-----\n")
        };
        let bundle = |names: &[&str]| {
            json!(ByteString(
                names
                    .iter()
                    .map(|name| pem(name))
                    .collect::<String>()
                    .into_bytes()
            ))
        };
        for (live, want, exactly, at_least) in [
            (&["a"][..], &["a"][..], true, true),
            (&["a", "b"], &["a"], false, true),
            (&["a", "b"], &["b", "a"], false, true),
            (&["a"], &["a", "b"], false, false),
            (&[], &["a"], false, false),
        ] {
            let (live, want) = (bundle(live), bundle(want));
            assert_eq!(
                trusts(&live, &want, Trust::Exactly),
                exactly,
                "{live} {want}"
            );
            assert_eq!(
                trusts(&live, &want, Trust::AtLeast),
                at_least,
                "{live} {want}"
            );
        }
    }
}
