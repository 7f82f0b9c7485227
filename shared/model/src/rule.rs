//! Rules: stored objects, parsed once into the form that matching and planning need.
//!
//! The parser repeats the checks of the CRD's schema and CEL, but for the labels and annotations of
//! embedded objects. So one place defines the meaning of a rule, and a rule stored before a check
//! existed is refused as well. Checks that need discovery are in
//! [`refuse_cluster_scoped`](crate::refusal::refuse_cluster_scoped).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mimeo_api::{
    ClusterReplication, ClusterReplicationSpec, CopyTransform, DriftPolicy, is_default,
};
use serde_json::Value;

use crate::{
    choices::{ConflictPolicy, PodGate, RetentionPolicy, Strategy, parse_retention},
    id::{RuleId, RuleKind},
    kind::{GroupKind, GroupVersionKind},
    meta::version,
    names,
    own_rights::{self, RoleRef},
    reach::Reach,
    refusal::{Refusal, Refusals},
    selection::{Labels, Place},
    source::{SourceQuery, SourceRef, SourceSelector},
    syntax,
    template::{Template, texts},
    transform::check_of_copies,
};

mod inline;
mod replication;
mod source;
mod target;

use self::target::{parse_targets, refuse_chosen_names};
pub use self::{source::MOST_SOURCES, target::Target};

/// Interval in seconds for the regular verification of copies: up to a week.
const RESYNC: std::ops::RangeInclusive<i32> = 10..=604_800;

/// The reason to refuse `driftPolicy: Deny` with another strategy. Under Apply, other clients own
/// the fields that they add. So a tenant could add `ingress: [{}]` to a guarded `NetworkPolicy`.
const DENY_NEEDS_REPLACE: &str = "Deny needs strategy Replace: with Apply others may add fields to \
    a copy, and with CreateOnce they own it";

/// A parsed rule: the copies that Mimeo makes, and the way it keeps them.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Kind, namespace and name.
    pub id: RuleId,
    /// The object's uid. Empty before the rule is stored.
    pub uid: Box<str>,
    /// The `metadata.generation`. 0 before the rule is stored.
    pub generation: i64,
    /// The resourceVersion. 0 before the rule is stored.
    pub resource_version: u64,
    /// Creation time. `Timestamp::MAX` before the rule is stored, so that it is younger than all
    /// stored rules.
    pub created: jiff::Timestamp,
    /// The named and inline sources, in the author's order, without duplicates.
    pub sources: Vec<SourceRef>,
    /// The objects of the inline sources.
    pub inline: BTreeMap<SourceRef, Arc<Value>>,
    /// Selectors that find more sources, in the author's order.
    pub selectors: Vec<SourceSelector>,
    /// Most sources of the rule. If the selectors find more, the oldest count.
    pub most_sources: usize,
    /// The kinds of all sources and selectors, in the author's order. A kind may occur several
    /// times.
    pub kinds: Vec<GroupVersionKind>,
    /// The targets. A namespace gets copies if any of them matches.
    pub targets: Vec<Target>,
    /// The differences between a copy and its source.
    pub transform: CopyTransform,
    /// How copies are written.
    pub strategy: Strategy,
    /// The policy for an object that has a copy's name and is not Mimeo's.
    pub conflict: ConflictPolicy,
    /// The policy for changes of a copy by other clients.
    pub drift: DriftPolicy,
    /// The fate of copies that the rule no longer wants.
    pub retention: RetentionPolicy,
    /// How pods of a new namespace wait for its copies.
    pub pod_gate: PodGate,
    /// Interval of the regular verification of each copy. `None`: only watches trigger it.
    pub resync: Option<Duration>,
    /// If true, Mimeo writes and deletes nothing for the rule, and no pod waits.
    pub suspend: bool,
    /// Value of the annotation [`names::CONFIRM_DELETION`].
    pub confirm_deletion: Option<Box<str>>,
}

impl Rule {
    /// True if the rule names that object as a source, in any version of its kind.
    pub fn is_source(&self, kind: &GroupKind, namespace: &str, name: &str) -> bool {
        self.sources
            .iter()
            .any(|source| source.is(kind, namespace, name))
    }

    /// How long Mimeo waits for a deleted source to be created again.
    pub fn source_grace(&self) -> Duration {
        let seconds = self.retention.source_grace_period_seconds;
        Duration::from_secs(seconds.unsigned_abs().into())
    }

    /// Parses a rule that the API server has stored or is about to store.
    ///
    /// # Errors
    /// All reasons why the rule is refused, in the order of the fields.
    pub fn parse(object: &ClusterReplication) -> Result<Self, Vec<Refusal>> {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let id = RuleId {
            kind: RuleKind::ClusterReplication,
            namespace: None,
            name: name.into(),
        };
        Self::parse_spec(id, &object.metadata, &object.spec, Refusals::default())
    }

    fn parse_spec(
        id: RuleId,
        metadata: &ObjectMeta,
        spec: &ClusterReplicationSpec,
        mut refusals: Refusals,
    ) -> Result<Self, Vec<Refusal>> {
        refusals.one("metadata.name", syntax::dns_subdomain(&id.name));
        let sources = source::parse(&spec.sources, &id, &mut refusals);
        if !sources.inline.is_empty() {
            refuse_source_namespace(spec, &mut refusals);
        }
        let targets = parse_targets(spec, &sources, &mut refusals);
        check_of_copies(
            &spec.copies.transform,
            "spec.transform",
            &source::samples(&sources.known, &sources.selectors),
            &mut refusals,
        );
        let strategy = spec.copies.strategy;
        if strategy == Strategy::CreateOnce && !is_default(&spec.copies.retention_policy) {
            refusals.add(
                "spec.retentionPolicy",
                "must be left out: with strategy CreateOnce copies always stay",
            );
        }
        if spec.copies.conflict_policy == ConflictPolicy::Overwrite {
            refuse_chosen_names(&spec.targets, &mut refusals);
        }
        if spec.copies.drift_policy == DriftPolicy::Deny && strategy != Strategy::Replace {
            refusals.add("spec.driftPolicy", DENY_NEEDS_REPLACE);
        }
        let resync = spec.copies.resync_seconds;
        if resync != 0 && !RESYNC.contains(&resync) {
            let (least, most) = (RESYNC.start(), RESYNC.end());
            refusals.add(
                "spec.resyncSeconds",
                format!("must be 0, or from {least} to {most}, not {resync}"),
            );
        } else if resync != 0 && strategy == Strategy::CreateOnce {
            refusals.add(
                "spec.resyncSeconds",
                "must be 0: with strategy CreateOnce Mimeo never updates a copy",
            );
        }
        let retention = parse_retention(&spec.copies, &mut refusals);
        let confirm_deletion = metadata
            .annotations
            .as_ref()
            .and_then(|annotations| annotations.get(names::CONFIRM_DELETION));
        refusals.finish_with(Self {
            id,
            uid: metadata.uid.as_deref().unwrap_or_default().into(),
            generation: metadata.generation.unwrap_or_default(),
            resource_version: version(metadata.resource_version.as_deref()),
            created: metadata
                .creation_timestamp
                .as_ref()
                .map_or(jiff::Timestamp::MAX, |time| time.0),
            sources: sources.known,
            inline: sources.inline,
            selectors: sources.selectors,
            most_sources: MOST_SOURCES,
            kinds: sources.kinds,
            targets,
            transform: spec.copies.transform.clone(),
            strategy,
            conflict: spec.copies.conflict_policy,
            drift: spec.copies.drift_policy,
            retention,
            pod_gate: spec.pod_gate,
            resync: (resync != 0).then(|| Duration::from_secs(resync.unsigned_abs().into())),
            suspend: spec.copies.suspend,
            confirm_deletion: confirm_deletion.map(|value| value.as_str().into()),
        })
    }

    /// Limits the rule's targets to the namespaces of this installation. Sources out of reach stay,
    /// so that the author gets a report about them.
    #[must_use]
    pub fn within(mut self, reach: &Reach) -> Self {
        for target in &mut self.targets {
            target.reach.clone_from(&reach.targets);
        }
        self
    }

    /// The message about the Replication's namespaces that get no copies in this installation.
    /// `None` for a `ClusterReplication`, because its author may have written it for several
    /// installations.
    pub fn leaves_out(&self, reach: &Reach) -> Option<String> {
        self.id.namespace.as_ref()?;
        let names = self.named_targets();
        let out: BTreeSet<&str> = names.filter(|name| !reach.is_target(name)).collect();
        let out = out.into_iter().collect::<Vec<_>>().join(", ");
        let message =
            "this installation of Mimeo writes no copies into the namespace (--target-namespaces)";
        (!out.is_empty()).then(|| format!("{out}: {message}"))
    }

    /// The namespaces in the lists of its targets. A target with a glob in its list, or without a
    /// list, is left out.
    pub fn named_targets(&self) -> impl Iterator<Item = &str> {
        self.targets
            .iter()
            .flat_map(|target| target.selection.exact_names().unwrap_or_default())
    }

    /// True if the namespace is a target.
    pub fn matches(&self, place: Place<'_>) -> bool {
        self.targets.iter().any(|target| target.matches(place))
    }

    /// The names of the copies that the rule makes of a source in a namespace: one for each target
    /// that selects the namespace.
    pub fn copy_names<'a>(
        &'a self,
        source: &'a SourceRef,
        place: Place<'a>,
    ) -> impl Iterator<Item = String> + 'a {
        let targets = self.targets.iter();
        let targets = targets.filter(move |target| target.matches(place));
        targets.map(move |target| target.copy_name(source).text_at(place))
    }

    /// True if the rule makes a copy of this name of the source in the namespace.
    pub fn makes(&self, source: &SourceRef, place: Place<'_>, copy: &str) -> bool {
        self.copy_names(source, place).any(|name| name == copy)
    }

    /// The copies that a Replication counts for: its sources times its target namespaces. Each
    /// selector counts for as many copies as a rule may have.
    pub fn most_copies(&self) -> usize {
        let targets = self.named_targets().count();
        self.sources.len() * targets + self.selectors.len() * replication::MOST_COPIES
    }

    /// The items of `spec.sources`: first the named and inline sources, then the selectors.
    pub fn queries(&self) -> impl Iterator<Item = SourceQuery<'_>> {
        let selected = self.selectors.iter().map(SourceQuery::Selected);
        self.sources.iter().map(SourceQuery::One).chain(selected)
    }

    /// True if the rule names this source, or one of its selectors finds it.
    pub fn may_have(&self, source: &SourceRef) -> bool {
        self.sources.contains(source)
            || self.selectors.iter().any(|selector| selector.finds(source))
    }

    /// Kind and name of each copy that the rule makes of its named and inline sources.
    pub fn copies(&self) -> impl Iterator<Item = (GroupKind, Template)> {
        self.sources.iter().flat_map(move |source| {
            let copy = move |target: &Target| (source.gvk.group_kind(), target.copy_name(source));
            self.targets.iter().map(copy)
        })
    }

    /// True if a namespace that is about to be created may be a target. Before the API server has
    /// generated its name, it counts as a target of every rule.
    pub fn could_match(&self, name: Option<&str>, labels: &Labels) -> bool {
        name.is_none_or(|name| self.matches(Place { name, labels }))
    }

    /// True if the rule lists the exact name of the namespace. A glob, a pattern or a selector does
    /// not count.
    pub fn names(&self, namespace: &str) -> bool {
        self.targets
            .iter()
            .any(|target| target.selection.names(namespace))
    }

    /// The sources and selectors, each with the role that its copies bind, as far as all bind the
    /// same one. `role` returns the role that a source RoleBinding binds, as far as it has been
    /// read.
    pub fn with_roles(
        &self,
        role: impl Fn(&SourceRef) -> Option<RoleRef>,
    ) -> impl Iterator<Item = (SourceQuery<'_>, Option<RoleRef>)> {
        self.queries().map(move |query| {
            // The result of a patch is not known yet.
            let known = own_rights::binds(query.gvk()) && self.transform.json_patch.is_empty();
            let role = match query {
                SourceQuery::One(source) if known => {
                    let inline = self.inline.get(source);
                    inline.map_or_else(|| role(source), |object| RoleRef::of(object))
                }
                SourceQuery::One(_) | SourceQuery::Selected(_) => None,
            };
            (query, role)
        })
    }
}

/// Refuses the variable `$(source.namespace)`, because an inline source has no namespace.
fn refuse_source_namespace(spec: &ClusterReplicationSpec, refusals: &mut Refusals) {
    for (i, target) in spec.targets.iter().enumerate() {
        let name = target.copy_name.as_deref();
        if name.is_some_and(inline::needs_namespace) {
            refusals.add(format!("spec.targets[{i}].copyName"), inline::NO_NAMESPACE);
        }
    }
    let transform = serde_json::to_value(&spec.copies.transform).unwrap_or_default();
    if texts(&transform).any(inline::needs_namespace) {
        refusals.add("spec.transform", inline::NO_NAMESPACE);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use super::*;
    use crate::choices::{Retain, retention_annotation};
    use serde_json::{Value, json};

    fn good() -> Value {
        json!({
            "apiVersion": "mimeo.dev/v1alpha1",
            "kind": "ClusterReplication",
            "metadata": {"name": "registry"},
            "spec": {
                "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": "platform", "name": "registry"}],
                "targets": [{"namespaces": ["team-*"]}],
            },
        })
    }

    #[track_caller]
    fn parse(object: Value) -> Result<Rule, Vec<String>> {
        let object = serde_json::from_value(object).expect("the shape of a rule");
        Rule::parse(&object).map_err(|refusals| refusals.iter().map(ToString::to_string).collect())
    }

    /// `good()` with `value` at `pointer`. The last segment is added if it does not exist.
    #[track_caller]
    fn with(pointer: &str, value: Value) -> Value {
        let mut object = good();
        let (parent, last) = pointer.rsplit_once('/').unwrap();
        match object.pointer_mut(parent).unwrap() {
            Value::Array(items) => items.push(value),
            parent => parent[last] = value,
        }
        object
    }

    fn source(api_version: &str, kind: &str, namespace: &str, name: &str) -> Value {
        json!({"apiVersion": api_version, "kind": kind, "namespace": namespace, "name": name})
    }

    #[test]
    fn parse_reads_every_field() {
        let mut object = with("/spec/targets/0/copyName", json!("pull-$(source.name)"));
        object["metadata"] = json!({
            "name": "registry", "uid": "u-1", "generation": 3, "resourceVersion": "42",
            "creationTimestamp": "2026-01-02T03:04:05Z", "annotations": {names::CONFIRM_DELETION: "n-1"},
        });
        object["spec"]["retentionPolicy"] =
            json!({"whenUnmatched": "Retain", "sourceGracePeriodSeconds": 5});
        object["spec"]["conflictPolicy"] = json!("Adopt");
        object["spec"]["podGate"] = json!("Required");
        object["spec"]["suspend"] = json!(true);
        let rule = parse(object).unwrap();
        assert_eq!(rule.id.to_string(), "ClusterReplication/registry");
        assert_eq!(
            (&*rule.uid, rule.generation, rule.resource_version),
            ("u-1", 3, 42)
        );
        assert_eq!(rule.created.to_string(), "2026-01-02T03:04:05Z");
        assert_eq!(rule.confirm_deletion.as_deref(), Some("n-1"));
        assert_eq!(rule.sources[0].to_string(), "v1/Secret/platform/registry");
        assert_eq!(
            rule.targets[0].copy_name(&rule.sources[0]).literal(),
            Some("pull-registry")
        );
        assert_eq!(
            (rule.retention.when_unmatched, rule.source_grace()),
            (Retain::Retain, Duration::from_secs(5))
        );
        assert_eq!(
            (rule.strategy, rule.conflict),
            (Strategy::Apply, ConflictPolicy::Adopt)
        );
        assert_eq!((rule.pod_gate, rule.suspend), (PodGate::Required, true));
        let labels = &Labels::new();
        let matches = |name| rule.matches(Place { name, labels });
        assert!(matches("team-a") && !matches("other"));
        let named = |name| rule.could_match(name, labels);
        assert!(named(Some("team-a")) && !named(Some("other")) && named(None));
        let reach = Reach {
            targets: Some(Arc::new(["team-b".into()].into())),
            ..Reach::default()
        };
        let limited = rule.clone().within(&reach);
        // The API server may generate the name of a namespace in reach.
        assert!(!limited.could_match(Some("team-a"), labels) && limited.could_match(None, labels));
    }

    #[test]
    fn defaults_are_those_of_the_api() {
        let rule = parse(good()).unwrap();
        assert_eq!(
            (
                rule.pod_gate,
                rule.suspend,
                retention_annotation(&rule.retention, "")
            ),
            (PodGate::BestEffort, false, None)
        );
        assert_eq!(rule.source_grace(), Duration::from_mins(1));
        assert_eq!(
            (rule.strategy, rule.conflict),
            (Strategy::Apply, ConflictPolicy::Report)
        );
        assert_eq!(rule.created, jiff::Timestamp::MAX);
        assert_eq!(
            rule.targets[0].copy_name(&rule.sources[0]).literal(),
            Some("registry")
        );
    }

    #[test]
    fn what_is_created_once_always_stays() {
        let mut object = with("/spec/strategy", json!("CreateOnce"));
        let rule = parse(object.clone()).unwrap();
        assert_eq!(rule.strategy, Strategy::CreateOnce);
        assert_eq!(
            retention_annotation(&rule.retention, "").as_deref(),
            Some("rule=Retain,unmatched=Retain,source=Retain")
        );
        object["spec"]["retentionPolicy"] = json!({"whenUnmatched": "Retain"});
        assert!(
            parse(object).unwrap_err()[0].starts_with("spec.retentionPolicy: must be left out")
        );
        let mut object = with("/spec/conflictPolicy", json!("Overwrite"));
        object["spec"]["targets"][0]["copyName"] = json!("a-$(namespace.name)");
        parse(object.clone()).unwrap();
        object["spec"]["targets"][0]["copyName"] = json!("a-$(namespace.labels['b'])");
        assert!(
            parse(object).unwrap_err()[0]
                .starts_with("spec.targets[0].copyName: must not contain labels")
        );
        let mut object = with("/spec/strategy", json!("CreateOnce"));
        object["spec"]["resyncSeconds"] = json!(60);
        assert!(parse(object).unwrap_err()[0].starts_with("spec.resyncSeconds: must be 0:"));
        for (seconds, good) in [
            (0, true),
            (-1, false),
            (9, false),
            (10, true),
            (604_800, true),
            (604_801, false),
        ] {
            assert_eq!(
                parse(with("/spec/resyncSeconds", json!(seconds))).is_ok(),
                good,
                "{seconds}"
            );
        }
    }

    #[test]
    fn copies_are_guarded_only_where_nobody_else_may_own_a_field() {
        for (strategy, good) in [("Apply", false), ("CreateOnce", false), ("Replace", true)] {
            let mut object = with("/spec/driftPolicy", json!("Deny"));
            object["spec"]["strategy"] = json!(strategy);
            let refused = parse(object).err().unwrap_or_default();
            let want = if good {
                vec![]
            } else {
                vec![format!("spec.driftPolicy: {DENY_NEEDS_REPLACE}")]
            };
            assert_eq!(refused, want, "{strategy}");
        }
    }

    #[test]
    fn parse_refuses_one_change_away_from_good() {
        let sources = "/spec/sources";
        let first =
            |field: &str, value: &str| with(&format!("/spec/sources/0/{field}"), json!(value));
        let set = |what: &str, key: &str, value: &str| {
            with("/spec/transform", json!({what: {"set": {key: value}}}))
        };
        let encoded = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"},
            "binaryData": {"k": "text!", "other": "MQ=="},
        });
        let cases = [
            (
                with("/metadata", json!({})),
                "metadata.name: must not be empty",
            ),
            (with(sources, json!([])), "spec.sources: must not be empty"),
            (
                with(sources, json!([{"inline": encoded}])),
                "spec.sources[0].inline.binaryData[k]: must be base64",
            ),
            (
                first("apiVersion", "a/b/c"),
                "spec.sources[0]: the version of apiVersion",
            ),
            (first("kind", ""), "spec.sources[0]: kind must not be empty"),
            (
                first("kind", "Namespace"),
                "spec.sources[0].kind: kind Namespace is never copied",
            ),
            (
                first("apiVersion", "mimeo.dev/v1alpha1"),
                "spec.sources[0].kind: Mimeo's own kinds",
            ),
            (
                first("namespace", "Plat"),
                "spec.sources[0].namespace: \"Plat\" is not a valid DNS label",
            ),
            (
                first("name", "a/b"),
                "spec.sources[0].name: \"a/b\" is not a valid DNS name",
            ),
            (
                with(
                    "/spec/sources/-",
                    source("v1", "Secret", "platform", "registry"),
                ),
                "spec.sources[1]: the rule already has the source v1/Secret/platform",
            ),
            (
                with(
                    "/spec/sources/-",
                    source("v1", "Secret", "other", "registry"),
                ),
                "spec.targets[0].copyName: the copies of v1/Secret/platform/registry and \
                 v1/Secret/other/registry",
            ),
            (
                with("/spec/targets", json!([])),
                "spec.targets: must not be empty",
            ),
            (
                with("/spec/targets/-", json!({})),
                "spec.targets[1]: at least one of",
            ),
            (
                with("/spec/exclude", json!([{}])),
                "spec.exclude[0]: at least one of",
            ),
            (
                with("/spec/exclude", json!([{"namespacePattern": "("}])),
                "spec.exclude[0].namespacePattern: not a regular",
            ),
            (
                with(
                    "/spec/exclude",
                    json!(vec![json!({"namespaces": ["a"]}); 33]),
                ),
                "spec.exclude: must not have more than 32",
            ),
            (
                with("/spec/targets/-", json!({"namespacePattern": "("})),
                "spec.targets[1].namespacePattern: not a regular",
            ),
            (
                with("/spec/targets/0/copyName", json!("A")),
                "spec.targets[0].copyName: the name of the copy of v1/Secret/platform",
            ),
            (
                with("/spec/targets/0/copyName", json!("")),
                "spec.targets[0].copyName: the name of the copy of v1/Secret/platform",
            ),
            (
                with("/spec/targets/0/copyName", json!("$(source.x)")),
                "spec.targets[0].copyName: there is no variable",
            ),
            (
                with("/spec/targets/0/copyName", json!("A-$(namespace.name)")),
                "spec.targets[0].copyName: the name of the copy",
            ),
            (
                with(
                    "/spec/transform",
                    json!({"jsonPatch": [{"op": "remove", "path": "/kind"}]}),
                ),
                "spec.transform.jsonPatch[0].path: must not be kind",
            ),
            (
                with("/spec/transform", json!({"type": "a b"})),
                "spec.transform.type: \"a b\" is not a valid type",
            ),
            (
                with("/spec/transform", json!({"finalizers": ["a"]})),
                "spec.transform.finalizers[0]: \"a\" must have a dom",
            ),
            (
                set("labels", "a b", ""),
                "spec.transform.labels.set[a b]: \"a b\" must",
            ),
            (
                set("labels", "a", "b c"),
                "spec.transform.labels.set[a]: \"b c\" is not a valid label value",
            ),
            (
                set("annotations", "a b", ""),
                "spec.transform.annotations.set[a b]: \"a b\" must",
            ),
            (
                with(
                    "/spec/retentionPolicy",
                    json!({"sourceGracePeriodSeconds": -1}),
                ),
                "spec.retentionPolicy.sourceGracePeriodSeconds: must be from 0",
            ),
            (
                with(
                    "/spec/retentionPolicy",
                    json!({"sourceGracePeriodSeconds": 86_401}),
                ),
                "spec.retentionPolicy.sourceGracePeriodSeconds: must be from 0",
            ),
        ];
        for (object, want) in cases {
            let refusals = parse(object.clone()).expect_err(want);
            assert_eq!(refusals.len(), 1, "{want}: {refusals:?}");
            assert!(refusals[0].starts_with(want), "{want}: {refusals:?}");
        }
    }

    #[test]
    fn several_sources_are_told_apart_by_name() {
        let two = |second: Value, name: Value| {
            let mut object = with("/spec/sources/-", second);
            object["spec"]["targets"][0]["copyName"] = name;
            parse(object)
                .map(|_| ())
                .map_err(|refusals| refusals.join("\n"))
        };
        let other = || source("v1", "Secret", "platform", "other");
        assert_eq!(two(other(), json!(null)), Ok(()));
        assert_eq!(two(other(), json!("x-$(source.name)")), Ok(()));
        assert_eq!(
            two(
                source("v1", "ConfigMap", "platform", "registry"),
                json!(null)
            ),
            Ok(())
        );
        assert_eq!(
            two(
                source("v1", "Secret", "b", "registry"),
                json!("$(source.namespace)-$(source.name)")
            ),
            Ok(())
        );
        for (second, name, want) in [
            (other(), json!("x"), "must contain $(source.name)"),
            (
                source("v1", "Secret", "b", "registry"),
                json!("x-$(source.name)"),
                "would both be named",
            ),
            (
                source("v2", "Secret", "platform", "registry"),
                json!(null),
                "the rule already has the source",
            ),
        ] {
            let refusals = two(second, name).expect_err(want);
            assert!(refusals.contains(want), "{refusals}");
        }
    }

    #[test]
    fn all_reasons_are_told_at_once() {
        let mut object = good();
        object["spec"] = json!({"sources": [], "targets": [{}, {"namespaces": ["A"]}], "transform": {"type": "a b"}});
        assert_eq!(parse(object).unwrap_err().len(), 4);
    }

    #[test]
    fn names_of_rbac_kinds_need_not_be_dns_names() {
        let mut object = good();
        object["spec"]["sources"] = json!([source(
            "rbac.authorization.k8s.io/v1",
            "Role",
            "platform",
            "system:x"
        )]);
        assert_eq!(parse(object.clone()).map(|rule| rule.sources.len()), Ok(1));
        object["spec"]["targets"][0]["copyName"] = json!("a/$(source.name)");
        assert!(parse(object).is_err());
    }

    #[test]
    fn too_many_items_are_refused() {
        let targets = vec![json!({"namespaces": ["a"]}); 33];
        assert_eq!(
            parse(with("/spec/targets", json!(targets))).unwrap_err(),
            ["spec.targets: must not have more than 32 items"]
        );
    }
}
