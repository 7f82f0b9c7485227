//! A namespace's own rule: what it means, and what it may not say.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use mimeo_api::{ClusterReplicationSpec, NamespaceSelection, Replication, ReplicationSpec};

use super::{ITEMS, Refusal, Refusals, Rule, RuleId, RuleKind, syntax, target::labels_of_the_namespace};
use crate::{cell::Cell, selection::Glob, slot::Slot};

/// Most copies of one rule: whatever becomes of one namespace's rules is to be quickly told.
const CELLS: usize = 256;
/// Most keys and values of one selector: it is compared with every object's labels, and with every other selector.
const LOAD: usize = 64;
/// Bytes of memory for a rule and what is known of it.
const RULE: usize = 1024;
/// Bytes for one of its slots, in which each text of the source is its own.
const SLOT: usize = size_of::<Slot>() + 160;
/// Bytes for one of its cells, with its share of what holds them.
const CELL: usize = size_of::<Cell>() + 64;
/// Bytes of the name of what a selector finds, usually.
const FOUND: usize = 64;
/// Group of Roles and `RoleBindings`.
const RBAC: &str = "rbac.authorization.k8s.io";

impl Rule {
    /// The same for a namespace's own rule: it means what a `ClusterReplication` would that says as much in more words, and may
    /// say less. What it needs the consent of other namespaces for is not decided here.
    ///
    /// # Errors
    /// As for [`Rule::parse`].
    pub fn parse_replication(object: &Replication) -> Result<Self, Vec<Refusal>> {
        let (metadata, spec) = (&object.metadata, &object.spec);
        let mut refusals = Refusals::default();
        let home = metadata.namespace.as_deref().unwrap_or_default();
        refusals.one("metadata.namespace", syntax::dns_label(home));
        refuse_to_tenants(spec, home, &mut refusals);
        let name = metadata.name.as_deref().unwrap_or_default();
        let id = RuleId { kind: RuleKind::Replication, namespace: Some(home.into()), name: name.into() };
        let mut rule = Self::parse_spec(id, metadata, &in_more_words(spec, home), refusals)?;
        rule.most_sources = CELLS / places(spec);
        rule.weight = rule.weigh(spec);
        Ok(rule)
    }

    /// Bytes of memory that it takes with all the slots and cells that it may have, near enough.
    fn weigh(&self, spec: &ReplicationSpec) -> usize {
        let text = serde_json::to_string(spec).map_or(0, |text| text.len());
        let found = if self.selectors.is_empty() { 0 } else { self.most_sources.saturating_sub(self.sources.len()) };
        let named = self.sources.iter().map(|source| SLOT + 2 * source.to_string().len()).sum::<usize>();
        let slots = (named + found * (SLOT + 2 * FOUND)) * self.targets.len();
        let cells = self.targets.iter().map(|target| {
            let places = target.selection.exact_names().unwrap_or_default().len();
            let named = |source| CELL + target.copy_name(source).text(|variable| variable.to_string().into()).len();
            places * (self.sources.iter().map(named).sum::<usize>() + found * (CELL + FOUND))
        });
        RULE + 2 * text + self.transform.memory(0, self.id.kind) + slots + cells.sum::<usize>()
    }
}

/// A namespace's own rule as a `ClusterReplication` would say it.
fn in_more_words(spec: &ReplicationSpec, home: &str) -> ClusterReplicationSpec {
    let ReplicationSpec {
        sources,
        targets,
        transform,
        strategy,
        conflict_policy,
        drift_policy,
        retention_policy,
        resync_seconds,
        suspend,
    } = spec;
    let source = |source: &mimeo_api::ReplicationSource| mimeo_api::Source {
        api_version: Some(source.api_version.clone()),
        kind: Some(source.kind.clone()),
        namespace: Some(source.namespace.clone().unwrap_or_else(|| home.to_owned())),
        name: source.name.clone(),
        selector: source.selector.clone(),
        inline: None,
    };
    let target = |namespaces: Vec<String>, name: Option<String>| mimeo_api::Target {
        selection: NamespaceSelection { namespaces, ..NamespaceSelection::default() },
        exclude: None,
        name,
    };
    let mut targets: Vec<_> = targets.iter().map(|one| target(one.namespaces.clone(), one.name.clone())).collect();
    if targets.is_empty() {
        targets.push(target(vec![home.to_owned()], None));
    }
    ClusterReplicationSpec {
        sources: sources.iter().map(source).collect(),
        targets,
        transform: transform.clone(),
        strategy: *strategy,
        conflict_policy: *conflict_policy,
        drift_policy: *drift_policy,
        retention_policy: retention_policy.clone(),
        // No namespace's pods wait for what another namespace's owner has thought up.
        barrier: mimeo_api::Barrier::None,
        resync_seconds: *resync_seconds,
        suspend: *suspend,
    }
}

/// Refuses what only the platform's rules may say.
fn refuse_to_tenants(spec: &ReplicationSpec, home: &str, refusals: &mut Refusals) {
    for (i, source) in spec.sources.iter().enumerate() {
        if source.api_version.split_once('/').is_some_and(|(group, _)| group == RBAC) {
            refusals.add(format!("spec.sources[{i}].kind"), "must not be one that gives rights");
        }
        let load = source.selector.as_ref().map_or(0, load);
        if load > LOAD {
            let why = format!("must not have more than {LOAD} keys and values in all: it has {load}");
            refusals.add(format!("spec.sources[{i}].selector"), why);
        }
    }
    for (i, target) in spec.targets.iter().enumerate() {
        let field = format!("spec.targets[{i}].namespaces");
        if target.namespaces.len() > ITEMS {
            refusals.add(&field, format!("must not have more than {ITEMS} items"));
        }
        for (j, name) in target.namespaces.iter().enumerate() {
            refusals.one(&format!("{field}[{j}]"), syntax::dns_label(name));
        }
        // Whether it is granted would depend on such a label, and tell of it.
        if labels_of_the_namespace(target.name.as_deref()) {
            let why = "must not have labels of the namespace in it: they are not this rule's to know";
            refusals.add(format!("spec.targets[{i}].name"), why);
        }
    }
    refuse_slow_globs(&spec.transform.common, refusals);
    let cells = spec.sources.len().saturating_mul(places(spec));
    if cells > CELLS {
        let why = format!("must not want more than {CELLS} copies, sources times namespaces: it wants {cells}");
        refusals.add("spec.targets", why);
    }
    let abroad = spec.targets.iter().flat_map(|target| &target.namespaces).any(|name| *name != home);
    if abroad && spec.conflict_policy != mimeo_api::ConflictPolicy::Fail {
        // By what is adopted a rule could find out what is in others' objects: whether it is what it guessed.
        let why = "must be Fail: the others are only for rules whose targets are all their own namespace";
        refusals.add("spec.conflictPolicy", why);
    }
    if abroad && spec.drift_policy != mimeo_api::DriftPolicy::Repair {
        // Consent to copies isn't leave to refuse their namespace's owners.
        let why = "must be Repair: Deny is only for rules whose targets are all their own namespace";
        refusals.add("spec.driftPolicy", why);
    }
    if abroad && !spec.transform.common.finalizers.is_empty() {
        // They would hold up the deletion of a namespace whose owners don't run what removes them.
        let why = "must be left out: they are only for rules whose targets are all their own namespace";
        refusals.add("spec.transform.finalizers", why);
    }
}

/// Refuses the globs that tenants may not have: each is compared with every key of a source, each time that changes.
fn refuse_slow_globs(transform: &mimeo_api::Transform, refusals: &mut Refusals) {
    let mimeo_api::Transform { type_: _, labels, annotations, data, finalizers: _ } = transform;
    for (field, globs) in [
        ("labels.include", &labels.include),
        ("labels.exclude", &labels.exclude),
        ("annotations.include", &annotations.include),
        ("annotations.exclude", &annotations.exclude),
        ("data.include", &data.include),
        ("data.exclude", &data.exclude),
    ] {
        for (i, _) in globs.iter().enumerate().filter(|(_, glob)| !Glob::new(glob).is_quick()) {
            let why = "must not have more than two *, nor a ? between them";
            refusals.add(format!("spec.transform.{field}[{i}]"), why);
        }
    }
}

/// In how many namespaces it wants copies of each source.
fn places(spec: &ReplicationSpec) -> usize {
    spec.targets.iter().map(|target| target.namespaces.len()).sum::<usize>().max(1)
}

/// What it costs to ask whether a selector matches, in keys and values compared.
fn load(selector: &LabelSelector) -> usize {
    let expressions = selector.match_expressions.iter().flatten();
    let labels = selector.match_labels.as_ref().map_or(0, BTreeMap::len);
    labels * 2 + expressions.map(|one| 1 + one.values.as_ref().map_or(0, Vec::len)).sum::<usize>()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;
    use crate::{
        rule::{Barrier, ConflictPolicy},
        selection::Labels,
    };

    fn parse(spec: &Value) -> Result<Rule, Vec<String>> {
        let object = json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "Replication",
            "metadata": {"namespace": "home", "name": "pull"}, "spec": spec,
        });
        Rule::parse_replication(&from_value(object).unwrap())
            .map_err(|refusals| refusals.iter().map(ToString::to_string).collect())
    }

    fn secret(more: &Value) -> Value {
        let mut source = json!({"apiVersion": "v1", "kind": "Secret", "name": "db"});
        source.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        source
    }

    #[test]
    fn what_is_left_out_is_its_own_namespace() {
        let rule =
            parse(&json!({"sources": [secret(&json!({})), secret(&json!({"namespace": "other"}))]})).unwrap_err();
        assert!(rule[0].contains("both copies would be named"), "{rule:?}");
        let rule = parse(&json!({"sources": [secret(&json!({"namespace": "other"}))]})).unwrap();
        assert_eq!(rule.id.to_string(), "Replication/home/pull");
        assert_eq!(rule.sources[0].to_string(), "v1/Secret/other/db");
        let none = Labels::new();
        assert!(rule.matches("home", &none) && !rule.matches("other", &none));
        assert_eq!(rule.barrier, Barrier::None);
        let targets = json!([{"namespaces": ["a", "b"], "name": "x"}]);
        let rule = parse(&json!({"sources": [secret(&json!({}))], "targets": targets})).unwrap();
        assert_eq!(rule.sources[0].to_string(), "v1/Secret/home/db");
        assert!(rule.matches("b", &none) && !rule.matches("home", &none));
        assert_eq!(rule.targets[0].copy_name(&rule.sources[0]).literal(), Some("x"));
    }

    #[test]
    fn what_would_be_slow_to_compare_with_every_key_is_refused() {
        let with = |transform: Value| json!({"sources": [secret(&json!({}))], "transform": transform});
        let quick = json!(["*", "a?*", "*.crt", "tls.*", "*a*", "?*a*?"]);
        for part in ["labels", "annotations", "data"] {
            assert!(parse(&with(json!({part: {"include": quick, "exclude": quick}}))).is_ok(), "{part}");
            for (list, slow) in [("include", "*a*b*"), ("exclude", "*a?b*")] {
                let refused = parse(&with(json!({part: {list: ["a", slow]}}))).unwrap_err();
                let want =
                    format!("spec.transform.{part}.{list}[1]: must not have more than two *, nor a ? between them");
                assert_eq!(refused, [want]);
            }
        }
    }

    #[test]
    fn a_selector_finds_as_much_as_leaves_room_for_its_copies() {
        let selects = |more: &Value| {
            let mut source =
                json!({"apiVersion": "v1", "kind": "Secret", "selector": {"matchLabels": {"copy": "yes"}}});
            source.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            source
        };
        let namespaces = |count: usize| -> Vec<String> { (0..count).map(|i| format!("n{i}")).collect() };
        let rule = parse(&json!({"sources": [selects(&json!({}))]})).unwrap();
        assert_eq!((rule.selectors[0].to_string().as_str(), rule.most_sources), ("v1/Secret/home", 256));
        let abroad = [selects(&json!({"namespace": "other"})), secret(&json!({}))];
        let targets =
            json!([{"namespaces": namespaces(20)}, {"namespaces": namespaces(4), "name": "x-$(source.name)"}]);
        let rule = parse(&json!({"sources": abroad, "targets": targets})).unwrap();
        assert_eq!((rule.selectors[0].to_string().as_str(), rule.most_sources), ("v1/Secret/other", 10));
        assert_eq!(rule.kinds.len(), 2);

        let many = |count: usize| {
            let values: Vec<String> = (0..count).map(|i| format!("v{i}")).collect();
            let expressions = json!([{"key": "a", "operator": "In", "values": values}]);
            json!({"selector": {"matchLabels": {"b": "c"}, "matchExpressions": expressions}})
        };
        assert!(parse(&json!({"sources": [selects(&many(61))]})).is_ok());
        let named = json!([{"namespaces": ["home"], "name": "x"}]);
        for (source, targets, begins) in [
            (
                selects(&many(62)),
                json!([]),
                "spec.sources[0].selector: must not have more than 64 keys and values in all: it has 65",
            ),
            (selects(&json!({})), named, "spec.targets[0].name: must contain $(source.name)"),
            (selects(&json!({"name": "x"})), json!([]), "spec.sources[0]: exactly one of name, selector"),
            (
                json!({"apiVersion": "v1", "kind": "Secret"}),
                json!([]),
                "spec.sources[0]: exactly one of name, selector",
            ),
            (
                json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "selector": {}}),
                json!([]),
                "spec.sources[0].kind: must not be one that gives rights",
            ),
        ] {
            let refused = parse(&json!({"sources": [source], "targets": targets})).unwrap_err();
            assert!(refused[0].starts_with(begins), "{refused:?}");
        }
    }

    #[test]
    fn what_only_the_platform_may_say_is_refused() {
        let sources = || json!([secret(&json!({}))]);
        let target = |target: Value| json!({"sources": sources(), "targets": [target]});
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "name": "r"});
        let names: Vec<String> = (0..33).map(|i| format!("n{i}")).collect();
        let many: Vec<Value> = (0..9).map(|i| secret(&json!({"name": format!("s{i}")}))).collect();
        for (spec, begins) in [
            (json!({"sources": [role]}), "spec.sources[0].kind: must not be one that gives rights"),
            (target(json!({"namespaces": ["team-*"]})), "spec.targets[0].namespaces[0]: "),
            (target(json!({"namespaces": names})), "spec.targets[0].namespaces: must not have more than 32"),
            (target(json!({"namespaces": []})), "spec.targets[0]: exactly one of"),
            (
                json!({"sources": many, "targets": [{"namespaces": names[..29]}]}),
                "spec.targets: must not want more than 256 copies, sources times namespaces: it wants 261",
            ),
            (
                target(json!({"namespaces": ["a"], "name": "x-$(namespace.labels['k'])"})),
                "spec.targets[0].name: must not have labels of the namespace",
            ),
            (
                json!({"sources": sources(), "targets": [{"namespaces": ["home", "a"]}], "conflictPolicy": "Overwrite"}),
                "spec.conflictPolicy: must be Fail",
            ),
            (
                json!({"sources": sources(), "targets": [{"namespaces": ["a"]}], "conflictPolicy": "Adopt"}),
                "spec.conflictPolicy: must be Fail",
            ),
            (
                json!({"sources": sources(), "targets": [{"namespaces": ["home", "a"]}], "driftPolicy": "Deny"}),
                "spec.driftPolicy: must be Repair",
            ),
            (
                json!({
                    "sources": sources(), "targets": [{"namespaces": ["a"]}], "transform": {"finalizers": ["example.com/hold"]},
                }),
                "spec.transform.finalizers: must be left out",
            ),
        ] {
            let refused = parse(&spec).unwrap_err();
            assert!(refused[0].starts_with(begins), "{refused:?}");
        }
        for (policy, parsed) in [("Overwrite", ConflictPolicy::Overwrite), ("Adopt", ConflictPolicy::Adopt)] {
            let own = json!({"sources": sources(), "targets": [{"namespaces": ["home"], "name": "x"}], "conflictPolicy": policy});
            assert_eq!(parse(&own).unwrap().conflict, parsed);
        }
        let own = json!({
            "sources": sources(), "targets": [{"namespaces": ["home"], "name": "x"}],
            "driftPolicy": "Deny", "transform": {"finalizers": ["example.com/hold"]},
        });
        assert!(parse(&own).is_ok(), "at home they are their owner's business");
    }
}
