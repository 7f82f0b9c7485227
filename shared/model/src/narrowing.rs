//! Changes that only take something away from a rule or a grant. A user with the permission to
//! update the object may make such a change without the permissions that the object itself uses.
//! The user could also delete the object.
//!
//! The comparison goes item by item. Some narrowing changes do not count, such as a name in place
//! of a glob that matches it.

use mimeo_api::{
    ClusterReplicationSpec, GrantedObjects, NamespaceSelection, ReplicationGrantSpec, Target,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    choices::PodGate,
    grant::Grant,
    names::SYSTEM_NAMESPACES,
    refusal::Refusal,
    rule::{Rule, in_more_words},
};

/// True if the change from `old` to `new` only takes something away from a rule or grant that is
/// stored and valid. Such a change needs no permission besides the one to update the object. An
/// invalid object does nothing so far, so any change to it may add something.
pub fn takes_away(kind: &str, old: &Value, new: &Value) -> bool {
    fn both<T: DeserializeOwned, P>(
        old: &Value,
        new: &Value,
        parse: fn(&T) -> Result<P, Vec<Refusal>>,
    ) -> Option<(T, T)> {
        let old = T::deserialize(old).ok()?;
        parse(&old).ok()?;
        Some((old, T::deserialize(new).ok()?))
    }
    match kind {
        mimeo_api::names::CLUSTER_REPLICATION => both(old, new, Rule::parse)
            .is_some_and(|(old, new)| cluster_replication(&old.spec, &new.spec)),
        mimeo_api::names::REPLICATION => {
            both(old, new, Rule::parse_replication).is_some_and(|(old, new)| {
                let home = old.metadata.namespace.as_deref().unwrap_or_default();
                let [old, new] = [&old.spec, &new.spec].map(|spec| in_more_words(spec, home));
                cluster_replication(&old, &new)
            })
        }
        mimeo_api::names::REPLICATION_GRANT => {
            both(old, new, Grant::parse).is_some_and(|(old, new)| grant(&old.spec, &new.spec))
        }
        _ => false,
    }
}

/// True if a `ClusterReplication` does no more with the spec `new` than with the spec `old`. The
/// new spec may have fewer sources or targets, more exclusions or a weaker pod gate, or it may be
/// suspended. All other fields must be equal.
pub fn cluster_replication(old: &ClusterReplicationSpec, new: &ClusterReplicationSpec) -> bool {
    let target = |new: &Target| {
        let is_no_more = |old: &Target| {
            old.copy_name == new.copy_name && selects_no_more(&old.selection, &new.selection)
        };
        old.targets.iter().any(is_no_more)
    };
    let excluded =
        |old: &NamespaceSelection| new.exclude.iter().any(|new| selects_no_more(new, old));
    let others_of_new = ClusterReplicationSpec {
        sources: old.sources.clone(),
        targets: old.targets.clone(),
        exclude: old.exclude.clone(),
        pod_gate: old.pod_gate,
        suspend: old.suspend,
        ..new.clone()
    };
    new.sources
        .iter()
        .all(|source| old.sources.contains(source))
        && new.targets.iter().all(target)
        && old.exclude.iter().all(excluded)
        && PodGate::from(new.pod_gate) <= PodGate::from(old.pod_gate)
        && (new.suspend || !old.suspend)
        && others_of_new == *old
}

/// True if a `ReplicationGrant` with the spec `new` grants nothing beyond the spec `old`.
pub fn grant(old: &ReplicationGrantSpec, new: &ReplicationGrantSpec) -> bool {
    let ReplicationGrantSpec {
        access,
        grantees,
        objects,
    } = new;
    let grantee =
        |new: &NamespaceSelection| old.grantees.iter().any(|old| selects_no_more(old, new));
    let object = |new: &GrantedObjects| {
        let same =
            |old: &&GrantedObjects| (&old.api_version, &old.kind) == (&new.api_version, &new.kind);
        old.objects
            .iter()
            .filter(same)
            .any(|old| old.names.is_empty() || is_part(&old.names, &new.names))
    };
    *access == old.access && grantees.iter().all(grantee) && objects.iter().all(object)
}

/// True if `old` also selects each namespace that `new` selects.
fn selects_no_more(old: &NamespaceSelection, new: &NamespaceSelection) -> bool {
    let NamespaceSelection {
        namespaces,
        namespace_pattern,
        namespace_selector,
    } = old;
    // Only a list with its exact name selects a system namespace.
    let system = |name: &String| SYSTEM_NAMESPACES.contains(&name.as_str());
    let names = if namespaces.is_empty() {
        !new.namespaces.iter().any(system)
    } else {
        is_part(namespaces, &new.namespaces)
    };
    names
        && (namespace_pattern.is_none() || *namespace_pattern == new.namespace_pattern)
        && (namespace_selector.is_none() || *namespace_selector == new.namespace_selector)
}

/// True if `some` is not empty and `all` has each of its items. An empty list means any name.
fn is_part(all: &[String], some: &[String]) -> bool {
    !some.is_empty() && some.iter().all(|one| all.contains(one))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec() -> Value {
        let secret = |name: &str| json!({"apiVersion": "v1", "kind": "Secret", "namespace": "platform", "name": name});
        json!({
            "sources": [secret("registry"), secret("mirror")],
            "targets": [
                {"namespaces": ["team-a", "team-b"]},
                {"namespacePattern": "dev-.*"},
            ],
            "exclude": [{"namespaces": ["dev-x"]}],
            "podGate": "BestEffort",
        })
    }

    #[test]
    fn a_cluster_replication_does_less_only_by_what_is_taken_away() {
        let narrows = |pointer: &str, value: Value| {
            let (old, mut new) = (spec(), spec());
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            match new.pointer_mut(parent).unwrap() {
                Value::Array(items) => items[key.parse::<usize>().unwrap()] = value,
                other => other[key] = value,
            }
            let read = |value: Value| serde_json::from_value(value).unwrap();
            cluster_replication(&read(old), &read(new))
        };
        for (pointer, value, expected) in [
            ("/suspend", json!(true), true),
            ("/podGate", json!("None"), true),
            ("/podGate", json!("Required"), false),
            ("/sources", json!([spec()["sources"][1]]), true),
            ("/sources/0/name", json!("other"), false),
            ("/targets", json!([spec()["targets"][1]]), true),
            ("/targets", json!([{"namespaces": ["team-b"]}]), true),
            ("/targets", json!([{"namespaces": ["team-c"]}]), false),
            (
                "/targets",
                json!([{"namespaces": ["team-a"], "copyName": "other"}]),
                false,
            ),
            (
                "/targets",
                json!([{"namespaces": ["team-a"], "namespaceSelector": {}}]),
                true,
            ),
            ("/targets", json!([{"namespaceSelector": {}}]), false),
            ("/targets/1/namespaces", json!(["dev-a"]), true),
            (
                "/targets/1/namespaces",
                json!(["dev-a", "kube-system"]),
                false,
            ),
            (
                "/exclude",
                json!([{"namespaces": ["x"]}, {"namespaces": ["dev-x"]}]),
                true,
            ),
            ("/exclude/0/namespaces", json!(["dev-x", "dev-y"]), true),
            ("/exclude/0/namespacePattern", json!("dev-[0-9]"), false),
            ("/exclude/0/namespaces", json!(["dev-y"]), false),
            ("/exclude", json!([]), false),
            ("/strategy", json!("Replace"), false),
            ("/conflictPolicy", json!("Overwrite"), false),
            ("/driftPolicy", json!("Deny"), false),
            (
                "/retentionPolicy",
                json!({"whenRuleDeleted": "Retain"}),
                false,
            ),
            ("/resyncSeconds", json!(60), false),
            ("/transform", json!({"type": "Opaque"}), false),
        ] {
            assert_eq!(
                narrows(pointer, value.clone()),
                expected,
                "{pointer}: {value}"
            );
        }
    }

    #[test]
    fn a_suspended_rule_does_more_when_it_is_resumed() {
        let read = |suspend: bool| {
            let mut spec = spec();
            spec["suspend"] = suspend.into();
            serde_json::from_value::<ClusterReplicationSpec>(spec).unwrap()
        };
        assert!(cluster_replication(&read(true), &read(true)));
        assert!(!cluster_replication(&read(true), &read(false)));
    }

    #[test]
    fn a_replication_is_compared_as_the_cluster_replication_that_it_means() {
        let read = |suspend: bool, targets: Value| {
            let source = json!({"apiVersion": "v1", "kind": "Secret", "name": "db"});
            let spec = json!({"sources": [source], "targets": targets, "suspend": suspend});
            in_more_words(&serde_json::from_value(spec).unwrap(), "home")
        };
        let two = |suspend| read(suspend, json!([{"namespaces": ["a", "b"]}]));
        let (own, two, suspended) = (read(false, json!([])), two(false), two(true));
        assert!(cluster_replication(&own, &own));
        for (targets, of_two, of_own) in [
            (json!([{"namespaces": ["b"]}]), true, false),
            (
                json!([{"namespaces": ["b"], "copyName": "x"}]),
                false,
                false,
            ),
            (json!([{"namespaces": ["home"]}]), false, true),
            (json!([]), false, true),
        ] {
            let new = read(false, targets);
            let narrows = [&two, &own].map(|old| cluster_replication(old, &new));
            assert_eq!(narrows, [of_two, of_own], "{new:?}");
        }
        assert!(!cluster_replication(&own, &two));
        assert!(cluster_replication(&two, &suspended) && !cluster_replication(&suspended, &two));
    }
}
