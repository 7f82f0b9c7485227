//! Replications: a namespace's own rules, and the fields that they may not use.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use mimeo_api::{
    ClusterReplicationSpec, ConflictPolicy, CopyTransform, DriftPolicy, PodGate, Replication,
    ReplicationSpec, ReplicationTarget,
};
use serde_json::{from_value, json};

use super::{Rule, source::samples};
use crate::{
    id::{RuleId, RuleKind},
    refusal::{ITEMS, Refusal, Refusals},
    selection::{Labels, Place},
    syntax,
    template::{label_in, texts},
};

/// Most copies of one rule. So Mimeo can quickly decide the fate of all copies of a namespace's
/// rules.
pub(super) const MOST_COPIES: usize = 256;
/// Most keys and values of one selector. Mimeo compares it with the labels of every object, and
/// with every other selector.
const LOAD: usize = 64;
/// Group of Roles and `RoleBindings`.
const RBAC: &str = "rbac.authorization.k8s.io";

impl Rule {
    /// Parses a Replication. It means the same as a longer `ClusterReplication`, but may use fewer
    /// fields. The consent of other namespaces is checked elsewhere.
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
        let id = RuleId {
            kind: RuleKind::Replication,
            namespace: Some(home.into()),
            name: name.into(),
        };
        let mut rule = Self::parse_spec(id, metadata, &in_more_words(spec, home), refusals)?;
        if rule.copies_nothing_but_itself() {
            let message =
                "the copy would be its own source: set copyName, or name another namespace";
            return Err(vec![Refusal {
                field: "spec.targets".into(),
                message: message.into(),
            }]);
        }
        rule.most_sources = MOST_COPIES / places(spec);
        Ok(rule)
    }

    /// True if each possible copy of the rule would be its own source. Mimeo never writes a source.
    fn copies_nothing_but_itself(&self) -> bool {
        let labels = &Labels::default();
        let sources = samples(&self.sources, &self.selectors);
        self.named_targets().all(|name| {
            sources.iter().all(|source| {
                let mut copies = self.copy_names(source, Place { name, labels });
                copies.all(|copy| source.is(&source.gvk.group_kind(), name, &copy))
            })
        })
    }
}

/// The `ClusterReplication` that means the same as this Replication. Each field of a Replication
/// has the same name and form there.
fn in_more_words(spec: &ReplicationSpec, home: &str) -> ClusterReplicationSpec {
    let mut written = json!(spec);
    if spec.targets.is_empty() {
        written["targets"] = json!([ReplicationTarget::default()]);
    }
    let mut spec: ClusterReplicationSpec =
        from_value(written).expect("a ClusterReplication has all fields of a Replication");
    for source in &mut spec.sources {
        source.namespace.get_or_insert_with(|| home.to_owned());
    }
    for target in &mut spec.targets {
        let namespaces = &mut target.selection.namespaces;
        if namespaces.is_empty() {
            namespaces.push(home.to_owned());
        }
    }
    // The owner of one namespace must not make the pods of other namespaces wait.
    spec.pod_gate = PodGate::None;
    spec
}

/// Refuses fields and values that only `ClusterReplication`s may use.
fn refuse_to_tenants(spec: &ReplicationSpec, home: &str, refusals: &mut Refusals) {
    for (i, source) in spec.sources.iter().enumerate() {
        let group = source.api_version.split_once('/');
        if group.is_some_and(|(group, _)| group == RBAC) {
            refusals.add(
                format!("spec.sources[{i}].kind"),
                "must not be of rbac.authorization.k8s.io, because such objects give permissions",
            );
        }
        let load = source.selector.as_ref().map_or(0, load);
        if load > LOAD {
            let why =
                format!("must not have more than {LOAD} keys and values in all: it has {load}");
            refusals.add(format!("spec.sources[{i}].selector"), why);
        }
    }
    for (i, target) in spec.targets.iter().enumerate() {
        let field = format!("spec.targets[{i}].namespaces");
        refusals.each(&field, &target.namespaces, ITEMS, syntax::dns_label);
        // The grants for the copy would depend on such a label, and the rule's author would learn
        // its value.
        if target.copy_name.as_deref().and_then(label_in).is_some() {
            let why = "must not contain labels of the namespace, which a Replication cannot read";
            refusals.add(format!("spec.targets[{i}].copyName"), why);
        }
    }
    let copies = spec.sources.len().saturating_mul(places(spec));
    if copies > MOST_COPIES {
        let why = format!(
            "must not have more than {MOST_COPIES} copies (sources times namespaces): it has {copies}"
        );
        refusals.add("spec.targets", why);
    }
    let mut namespaces = spec.targets.iter().flat_map(|target| &target.namespaces);
    let Some(foreign) = namespaces.find(|name| **name != home) else {
        return;
    };
    refuse_foreign_labels(&spec.copies.transform, foreign, home, refusals);
    let finalizers = &spec.copies.transform.common.finalizers;
    for (field, is_so, must) in [
        // Adoption compares contents. So a rule could test a guess about the content of other
        // users' objects.
        (
            "conflictPolicy",
            spec.copies.conflict_policy == ConflictPolicy::Report,
            "be Report",
        ),
        // A grant for copies is no consent to refuse requests of the namespace's owners.
        (
            "driftPolicy",
            spec.copies.drift_policy == DriftPolicy::Repair,
            "be Repair",
        ),
        // Finalizers would block the deletion of a namespace if its owners do not run the
        // controller for them.
        ("transform.finalizers", finalizers.is_empty(), "be left out"),
    ] {
        if !is_so {
            let why = "because the rule has targets outside its own namespace";
            refusals.add(format!("spec.{field}"), format!("must {must}, {why}"));
        }
    }
}

/// Refuses variables of labels in the copies of a rule with targets in other namespaces. The rule's
/// author must not learn the labels of another namespace, and the reason `VariableUnset` would show
/// which labels are missing.
fn refuse_foreign_labels(
    transform: &CopyTransform,
    foreign: &str,
    home: &str,
    refusals: &mut Refusals,
) {
    let CopyTransform { common, json_patch } = transform;
    let sets = [
        ("labels", &common.labels.set),
        ("annotations", &common.annotations.set),
    ];
    let set = sets.into_iter().flat_map(|(part, set)| {
        set.iter()
            .filter_map(move |(key, text)| Some((format!("{part}.set[{key}]"), label_in(text)?)))
    });
    let patches = json_patch.iter().enumerate().filter_map(|(i, operation)| {
        let label = texts(operation.value.as_ref()?).find_map(label_in)?;
        Some((format!("jsonPatch[{i}].value"), label))
    });
    for (field, label) in set.chain(patches) {
        let why = format!(
            "must not contain {label}, because target {foreign:?} is not the rule's own \
             namespace; use $(namespace.name), or a rule whose only target is {home:?}"
        );
        refusals.add(format!("spec.transform.{field}"), why);
    }
}

/// The number of namespaces that get copies of each source.
fn places(spec: &ReplicationSpec) -> usize {
    let of_target = |target: &ReplicationTarget| target.namespaces.len().max(1);
    spec.targets.iter().map(of_target).sum::<usize>().max(1)
}

/// The cost of a match against the selector, in keys and values compared.
fn load(selector: &LabelSelector) -> usize {
    let labels = selector.match_labels.iter().flatten().count();
    let expressions = selector.match_expressions.iter().flatten();
    let expressions = expressions.map(|one| 1 + one.values.iter().flatten().count());
    labels * 2 + expressions.sum::<usize>()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;
    use crate::{
        choices::{ConflictPolicy, PodGate},
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
        source
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        source
    }

    fn matches(rule: &Rule, name: &str) -> bool {
        let labels = &Labels::new();
        rule.matches(Place { name, labels })
    }

    /// Of two schemas, the fields of the first that the second lacks or has in another form.
    fn strange(one: &Value, other: &Value, path: &str, found: &mut Vec<String>) {
        for (name, field) in one["properties"].as_object().into_iter().flatten() {
            let (path, same) = (format!("{path}.{name}"), &other["properties"][name]);
            if same["type"] != field["type"] {
                found.push(path.clone());
            }
            strange(field, same, &path, found);
            strange(&field["items"], &same["items"], &path, found);
        }
    }

    #[test]
    fn a_cluster_replication_has_each_field_of_a_replication_in_the_same_form() {
        let [tenants, admins] = ["Replication", "ClusterReplication"].map(|kind| {
            let crds = mimeo_api::crds();
            let crd = crds.iter().find(|crd| crd.spec.names.kind == kind).unwrap();
            let schema = json!(crd.spec.versions[0].schema);
            schema["openAPIV3Schema"]["properties"]["spec"].clone()
        });
        assert!(tenants["properties"].as_object().unwrap().len() > 5);
        let mut found = Vec::new();
        strange(&tenants, &admins, "spec", &mut found);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn labels_of_other_namespaces_are_refused_in_what_a_rule_writes() {
        let label = "$(namespace.labels['tier'])";
        for (transform, field) in [
            (json!({"labels": {"set": {"a": label}}}), "labels.set[a]"),
            (
                json!({"annotations": {"set": {"b": format!("x-{label}-y")}}}),
                "annotations.set[b]",
            ),
            (
                json!({"jsonPatch": [{"op": "add", "path": "/spec", "value": {"b": [label]}}]}),
                "jsonPatch[0].value",
            ),
        ] {
            let rule = |target: Value| {
                parse(
                    &json!({"sources": [secret(&json!({}))], "targets": [target], "transform": transform}),
                )
            };
            for namespaces in [json!(["away"]), json!(["home", "away"])] {
                let refused = rule(json!({"namespaces": namespaces, "copyName": "x"})).unwrap_err();
                let want = format!(
                    "spec.transform.{field}: must not contain {label}, because target \"away\" is \
                     not the rule's own namespace; use $(namespace.name), or a rule whose only \
                     target is \"home\""
                );
                assert_eq!(refused, [want]);
            }
            assert!(
                rule(json!({"namespaces": ["home"], "copyName": "x"})).is_ok(),
                "{field}: its own are its own"
            );
        }
        let name =
            json!({"annotations": {"set": {"a": "$(namespace.name)", "b": "$(labels['x'])"}}});
        let targets = json!([{"namespaces": ["away"]}]);
        assert!(
            parse(&json!({"sources": [secret(&json!({}))], "targets": targets, "transform": name}))
                .is_ok()
        );
    }

    #[test]
    fn a_rule_whose_only_copy_would_be_its_own_source_is_refused() {
        for (targets, refused) in [
            (json!([]), true),
            (json!([{"namespaces": ["home"]}]), true),
            (
                json!([{"copyName": "db"}, {"copyName": "$(source.name)"}]),
                true,
            ),
            (json!([{"copyName": "other"}]), false),
            (json!([{"namespaces": ["home", "away"]}]), false),
        ] {
            let parsed = parse(&json!({"sources": [secret(&json!({}))], "targets": targets}));
            let message = parsed.err().unwrap_or_default().concat();
            assert_eq!(
                message.starts_with("spec.targets: the copy would be its own source"),
                refused,
                "{targets}: {message}"
            );
        }
        assert!(parse(&json!({"sources": [secret(&json!({"namespace": "away"}))]})).is_ok());
    }

    #[test]
    fn a_rule_whose_selector_finds_only_what_its_copies_would_be_is_refused() {
        let selects = |namespace: &str| json!({"apiVersion": "v1", "kind": "Secret", "namespace": namespace, "selector": {}});
        for (sources, targets, refused) in [
            (json!([selects("home")]), json!([]), true),
            (
                json!([selects("home")]),
                json!([{"namespaces": ["home"], "copyName": "$(source.name)"}]),
                true,
            ),
            (
                json!([selects("home")]),
                json!([{"copyName": "$(source.name)-copy"}]),
                false,
            ),
            (
                json!([selects("home")]),
                json!([{"namespaces": ["away"]}]),
                false,
            ),
            (json!([selects("away")]), json!([]), false),
            (json!([selects("home"), selects("away")]), json!([]), false),
        ] {
            let parsed = parse(&json!({"sources": sources, "targets": targets}));
            let message = parsed.err().unwrap_or_default().concat();
            assert_eq!(
                message.starts_with("spec.targets: the copy would be its own source"),
                refused,
                "{sources} {targets}: {message}"
            );
        }
    }

    #[test]
    fn a_target_without_namespaces_is_its_own_namespace() {
        let rule = parse(&json!({"sources": [secret(&json!({}))], "targets": [{"copyName": "x"}]}))
            .unwrap();
        assert!(matches(&rule, "home") && !matches(&rule, "other"));
    }

    #[test]
    fn what_is_left_out_is_its_own_namespace() {
        let rule = parse(
            &json!({"sources": [secret(&json!({})), secret(&json!({"namespace": "other"}))]}),
        )
        .unwrap_err();
        assert!(rule[0].contains("would both be named"), "{rule:?}");
        let rule = parse(&json!({"sources": [secret(&json!({"namespace": "other"}))]})).unwrap();
        assert_eq!(rule.id.to_string(), "Replication/home/pull");
        assert_eq!(rule.sources[0].to_string(), "v1/Secret/other/db");
        assert!(matches(&rule, "home") && !matches(&rule, "other"));
        assert_eq!(rule.pod_gate, PodGate::None);
        let targets = json!([{"namespaces": ["a", "b"], "copyName": "x"}]);
        let rule = parse(&json!({"sources": [secret(&json!({}))], "targets": targets})).unwrap();
        assert_eq!(rule.sources[0].to_string(), "v1/Secret/home/db");
        assert!(matches(&rule, "b") && !matches(&rule, "home"));
        assert_eq!(
            rule.targets[0].copy_name(&rule.sources[0]).literal(),
            Some("x")
        );
    }

    #[test]
    fn what_would_be_slow_to_compare_with_every_key_is_refused() {
        let with = |transform: Value| json!({"sources": [secret(&json!({"namespace": "away"}))], "transform": transform});
        let quick = json!(["*", "a?*", "*.crt", "tls.*", "*a*", "?*a*?"]);
        for part in ["labels", "annotations", "data"] {
            assert!(
                parse(&with(json!({part: {"include": quick, "exclude": quick}}))).is_ok(),
                "{part}"
            );
            for (list, slow) in [("include", "*a*b*"), ("exclude", "*a?b*")] {
                let refused = parse(&with(json!({part: {list: ["a", slow]}}))).unwrap_err();
                let want = format!(
                    "spec.transform.{part}.{list}[1]: must not have more than two *, nor a ? \
                     between them"
                );
                assert_eq!(refused, [want]);
            }
        }
    }

    #[test]
    fn a_selector_finds_as_much_as_leaves_room_for_its_copies() {
        let selects = |more: &Value| {
            let mut source = json!({"apiVersion": "v1", "kind": "Secret", "selector": {"matchLabels": {"copy": "yes"}}});
            source
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            source
        };
        let namespaces =
            |count: usize| -> Vec<String> { (0..count).map(|i| format!("n{i}")).collect() };
        let renamed = json!([{"copyName": "$(source.name)-copy"}]);
        let rule = parse(&json!({"sources": [selects(&json!({}))], "targets": renamed})).unwrap();
        assert_eq!(
            (rule.selectors[0].to_string().as_str(), rule.most_sources),
            ("v1/Secret/home", 256)
        );
        let abroad = [selects(&json!({"namespace": "other"})), secret(&json!({}))];
        let targets = json!([{"namespaces": namespaces(20)}, {"namespaces": namespaces(4), "copyName": "x-$(source.name)"}]);
        let rule = parse(&json!({"sources": abroad, "targets": targets})).unwrap();
        assert_eq!(
            (rule.selectors[0].to_string().as_str(), rule.most_sources),
            ("v1/Secret/other", 10)
        );
        assert_eq!(rule.kinds.len(), 2);

        let many = |count: usize| {
            let values: Vec<String> = (0..count).map(|i| format!("v{i}")).collect();
            let expressions = json!([{"key": "a", "operator": "In", "values": values}]);
            json!({"selector": {"matchLabels": {"b": "c"}, "matchExpressions": expressions}})
        };
        assert!(parse(&json!({"sources": [selects(&many(61))], "targets": renamed})).is_ok());
        let named = json!([{"namespaces": ["home"], "copyName": "x"}]);
        for (source, targets, begins) in [
            (
                selects(&many(62)),
                json!([]),
                "spec.sources[0].selector: must not have more than 64 keys and values in all: it \
                 has 65",
            ),
            (
                selects(&json!({})),
                named,
                "spec.targets[0].copyName: must contain $(source.name)",
            ),
            (
                selects(&json!({"name": "x"})),
                json!([]),
                "spec.sources[0]: exactly one of name, selector",
            ),
            (
                json!({"apiVersion": "v1", "kind": "Secret"}),
                json!([]),
                "spec.sources[0]: exactly one of name, selector",
            ),
            (
                json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "selector": {}}),
                json!([]),
                "spec.sources[0].kind: must not be of rbac.authorization.k8s.io",
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
        let role =
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "name": "r"});
        let names: Vec<String> = (0..33).map(|i| format!("n{i}")).collect();
        let many: Vec<Value> = (0..9)
            .map(|i| secret(&json!({"name": format!("s{i}")})))
            .collect();
        for (spec, begins) in [
            (
                json!({"sources": [role]}),
                "spec.sources[0].kind: must not be of rbac.authorization.k8s.io",
            ),
            (
                target(json!({"namespaces": ["team-*"]})),
                r#"spec.targets[0].namespaces[0]: "team-*" is not a valid DNS label"#,
            ),
            (
                target(json!({"namespaces": names})),
                "spec.targets[0].namespaces: must not have more than 32",
            ),
            (
                json!({"sources": sources()}),
                "spec.targets: the copy would be its own source",
            ),
            (
                json!({"sources": many, "targets": [{"namespaces": names[..29]}]}),
                "spec.targets: must not have more than 256 copies (sources times namespaces): it \
                 has 261",
            ),
            (
                target(json!({"namespaces": ["a"], "copyName": "x-$(namespace.labels['k'])"})),
                "spec.targets[0].copyName: must not contain labels of the namespace",
            ),
            (
                json!({"sources": sources(), "targets": [{"namespaces": ["home", "a"]}], "conflictPolicy": "Overwrite"}),
                "spec.conflictPolicy: must be Report",
            ),
            (
                json!({"sources": sources(), "targets": [{"namespaces": ["a"]}], "conflictPolicy": "Adopt"}),
                "spec.conflictPolicy: must be Report",
            ),
            (
                json!({
                    "sources": sources(), "targets": [{"namespaces": ["home", "a"]}],
                    "strategy": "Replace", "driftPolicy": "Deny",
                }),
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
        for (policy, parsed) in [
            ("Overwrite", ConflictPolicy::Overwrite),
            ("Adopt", ConflictPolicy::Adopt),
        ] {
            let own = json!({"sources": sources(), "targets": [{"namespaces": ["home"], "copyName": "x"}], "conflictPolicy": policy});
            assert_eq!(parse(&own).unwrap().conflict, parsed);
        }
        let own = json!({
            "sources": sources(), "targets": [{"namespaces": ["home"], "copyName": "x"}],
            "strategy": "Replace", "driftPolicy": "Deny", "transform": {"finalizers": ["example.com/hold"]},
        });
        assert!(
            parse(&own).is_ok(),
            "at home they are their owner's business"
        );
    }
}
