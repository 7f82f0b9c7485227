//! How a copy differs from its source, and how a policy changes an object that is being admitted.

use std::collections::BTreeSet;

use json_patch::PatchOperation;
use serde_json::{Map, Value, map::Entry};

use crate::{
    kind::GroupVersionKind,
    patch::JsonPatch,
    render::{SourceRefused, never_copied},
    rule::{Refusal, Refusals, RuleKind, SourceRef, syntax},
    template::{Template, Variable},
};

mod keys;
mod marks;

pub(crate) use self::marks::is_mark;
pub use self::marks::{is_copy_mark, never_carried};
use self::{
    keys::{ANNOTATIONS, DataEdits, Edits, LABELS},
    marks::is_ours,
};

/// Most finalizers.
const FINALIZERS: usize = 8;

/// What is changed in an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transform {
    secret_type: Option<String>,
    labels: Edits,
    annotations: Edits,
    data: DataEdits,
    finalizers: Vec<String>,
    json_patch: JsonPatch,
}

/// What text with variables is checked against.
#[derive(Clone, Copy)]
enum Use<'a> {
    /// Copies of these sources.
    Copies(&'a [SourceRef]),
    /// An object that is being admitted: there is no source.
    Admission,
}

impl Transform {
    /// Compiles the transform of a rule, whose texts may name any of `sources`. Refusals name fields below `field`.
    pub fn of_copies(
        spec: &mimeo_api::CopyTransform,
        field: &str,
        sources: &[SourceRef],
    ) -> Result<Self, Vec<Refusal>> {
        let mimeo_api::CopyTransform { common, json_patch } = spec;
        let mut refusals = Refusals::default();
        let parsed = Self::parse(common, field, Use::Copies(sources), sources.iter().map(|source| &source.gvk));
        let parsed = refusals.all(parsed);
        let secrets = sources.iter().any(|source| source.gvk.is_secret());
        let json_patch = refusals.all(JsonPatch::parse(json_patch, &format!("{field}.jsonPatch"), secrets));
        refusals.finish_with(parsed.zip(json_patch).map(|(parsed, json_patch)| Self { json_patch, ..parsed }))
    }

    /// Compiles the transform of a policy for objects of these kinds.
    pub fn of_admission(
        spec: &mimeo_api::Transform,
        field: &str,
        kinds: &[GroupVersionKind],
    ) -> Result<Self, Vec<Refusal>> {
        Self::parse(spec, field, Use::Admission, kinds.iter())
    }

    fn parse<'a>(
        spec: &mimeo_api::Transform,
        field: &str,
        used: Use<'_>,
        mut kinds: impl Iterator<Item = &'a GroupVersionKind> + Clone,
    ) -> Result<Self, Vec<Refusal>> {
        let mimeo_api::Transform { type_, labels, annotations, data, finalizers } = spec;
        let mut refusals = Refusals::default();
        let secrets = kinds.clone().all(GroupVersionKind::is_secret);
        if !data.is_noop() && !kinds.all(|kind| kind.is_secret() || kind.is_config_map()) {
            refusals.add(format!("{field}.data"), "is only for Secrets and ConfigMaps");
        }
        let at_type = format!("{field}.type");
        if let Some(text) = type_ {
            refusals.one(&at_type, syntax::secret_type(text));
            if matches!(used, Use::Copies(_)) && never_copied(Some(text)).is_some() {
                refusals.add(&at_type, "must not be that of service account tokens or Helm releases: who keeps these would take a copy for one");
            }
            if !secrets {
                refusals.add(at_type, "is only for Secrets");
            }
        }
        let labels = refusals.all(Edits::parse(labels, &format!("{field}.labels"), used, LABELS));
        let annotations = refusals.all(Edits::parse(annotations, &format!("{field}.annotations"), used, ANNOTATIONS));
        let data = DataEdits::parse(data, &format!("{field}.data"), &mut refusals);
        refuse_finalizers(finalizers, &format!("{field}.finalizers"), &mut refusals);
        refusals.finish_with(labels.zip(annotations).map(|(labels, annotations)| Self {
            secret_type: type_.clone(),
            labels,
            annotations,
            data,
            finalizers: finalizers.clone(),
            json_patch: JsonPatch::default(),
        }))
    }

    /// Type of a copy, of a new object; the source's or its own if `None`.
    pub fn secret_type(&self) -> Option<&str> {
        self.secret_type.as_deref()
    }

    /// Finalizers of a copy, or to be added to an object, in the author's order.
    pub fn finalizers(&self) -> &[String] {
        &self.finalizers
    }

    /// Labels of a copy of `source`, which has the labels `from`; without Mimeo's own.
    /// `show` says what stands for variables of the namespace.
    pub fn copy_labels(
        &self,
        from: Option<&Map<String, Value>>,
        source: &SourceRef,
        show: &dyn Fn(&Variable) -> String,
    ) -> Map<String, Value> {
        self.labels.copy(from, source, show)
    }

    /// Annotations of a copy of `source`, which has the annotations `from`; without Mimeo's own.
    /// `show` says what stands for variables of the namespace.
    pub fn copy_annotations(
        &self,
        from: Option<&Map<String, Value>>,
        source: &SourceRef,
        show: &dyn Fn(&Variable) -> String,
    ) -> Map<String, Value> {
        self.annotations.copy(from, source, show)
    }

    /// Patches a copy of `source`: `metadata` has labels and annotations alone, without Mimeo's own; `body` is without identity.
    /// `rules`: of which kind its rule is.
    ///
    /// # Errors
    /// Why the copy can't be patched.
    pub fn patch_copy(
        &self,
        metadata: &mut Map<String, Value>,
        body: &mut Map<String, Value>,
        source: &SourceRef,
        rules: RuleKind,
        show: &dyn Fn(&Variable) -> String,
    ) -> Result<(), SourceRefused> {
        self.json_patch.apply(metadata, body, source, rules, show)
    }

    /// Bytes of memory that making a copy may take, if the source takes so many.
    pub(crate) fn memory(&self, source: usize, rules: RuleKind) -> usize {
        self.json_patch.memory(source, rules)
    }

    /// Variables of the namespace that stand anywhere.
    pub fn variables(&self) -> BTreeSet<Variable> {
        let values = self.labels.set.values().chain(self.annotations.set.values());
        values.flat_map(Template::variables).cloned().chain(self.json_patch.variables()).collect()
    }

    /// Edits the data of a copy.
    ///
    /// # Errors
    /// The key that two keys of the source come to.
    pub fn copy_data(&self, body: &mut Map<String, Value>) -> Result<(), String> {
        self.data.copy(body)
    }

    /// What changes in the data of an object that is being admitted, without any of the data. Doing this twice is doing it once.
    pub fn data_changes(&self, object: &Value) -> Vec<PatchOperation> {
        self.data.changes(object)
    }

    /// Changes an object that is being admitted, all but its data; `stored` is the old one of an UPDATE.
    ///
    /// A new Secret gets the type, one that is stored keeps its own: it can't be changed, and whoever re-sends the one
    /// they once asked for must not fail. Doing this twice is doing it once. An object that is being deleted is left as
    /// it is, otherwise its finalizers could never be removed. Mimeo's marks aren't touched.
    /// `$(namespace.name)` is `namespace`.
    pub fn rewrite(&self, object: &mut Value, stored: Option<&Value>, namespace: &str) {
        if is_being_deleted(object) || stored.is_some_and(is_being_deleted) {
            return;
        }
        let Some(fields) = object.as_object_mut() else { return };
        if let Some(wanted) = &self.secret_type {
            let kept = match stored {
                None => Some(wanted.as_str()),
                Some(stored) => stored["type"].as_str(),
            };
            if let Some(kept) = kept {
                fields.insert("type".into(), kept.into());
            }
        }
        if let Some(metadata) = object_in(fields, "metadata") {
            self.labels.rewrite(metadata, "labels", namespace);
            self.annotations.rewrite(metadata, "annotations", namespace);
            add_finalizers(&self.finalizers, metadata);
        }
    }

    /// Whether nothing is changed.
    pub fn is_noop(&self) -> bool {
        let Self { secret_type, labels, annotations, data, finalizers, json_patch } = self;
        let metadata = labels.is_noop() && annotations.is_noop() && finalizers.is_empty();
        secret_type.is_none() && metadata && data.is_noop() && json_patch.is_noop()
    }
}

pub(crate) fn is_being_deleted(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// The object at `key`, made if there is none.
fn object_in<'a>(parent: &'a mut Map<String, Value>, key: &str) -> Option<&'a mut Map<String, Value>> {
    let value = parent.entry(key).or_insert(Value::Null);
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut()
}

fn add_finalizers(finalizers: &[String], metadata: &mut Map<String, Value>) {
    if finalizers.is_empty() {
        return;
    }
    let value = match metadata.entry("finalizers") {
        Entry::Vacant(vacant) => vacant.insert(Value::Array(Vec::new())),
        Entry::Occupied(occupied) => occupied.into_mut(),
    };
    if value.is_null() {
        *value = Value::Array(Vec::new());
    }
    let Some(there) = value.as_array_mut() else { return };
    for finalizer in finalizers {
        if !there.iter().any(|one| one == finalizer) {
            there.push(finalizer.as_str().into());
        }
    }
}

fn refuse_finalizers(finalizers: &[String], field: &str, refusals: &mut Refusals) {
    if finalizers.len() > FINALIZERS {
        refusals.add(field, format!("must not have more than {FINALIZERS} items"));
    }
    for (i, finalizer) in finalizers.iter().enumerate() {
        let field = format!("{field}[{i}]");
        refusals.one(&field, syntax::finalizer(finalizer));
        if is_ours(finalizer) {
            refusals.add(&field, "must not be in Mimeo's own domain: nothing would remove it");
        }
        if finalizers[..i].contains(finalizer) {
            refusals.add(field, format!("{finalizer:?} is there already"));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{kind::GroupVersionKind, names};
    use proptest::prelude::*;
    use serde_json::json;

    fn source() -> SourceRef {
        let gvk = GroupVersionKind::parse("v1", "Secret").unwrap();
        SourceRef::named(gvk, "platform", "registry")
    }

    #[track_caller]
    fn of_copies(spec: Value) -> Transform {
        Transform::of_copies(&serde_json::from_value(spec).unwrap(), "t", &[source()]).unwrap()
    }

    #[track_caller]
    fn of_admission(spec: Value) -> Transform {
        Transform::of_admission(&serde_json::from_value(spec).unwrap(), "t", &[source().gvk]).unwrap()
    }

    fn rewritten(spec: Value, mut object: Value, stored: Option<&Value>) -> Value {
        of_admission(spec).rewrite(&mut object, stored, "team");
        object
    }

    #[test]
    fn marks_of_other_managers_are_never_carried() {
        for key in [
            "mimeo.dev/rule",
            "app.kubernetes.io/managed-by",
            "app.kubernetes.io/instance",
            "argocd.argoproj.io/tracking-id",
            "kustomize.toolkit.fluxcd.io/name",
            "helm.toolkit.fluxcd.io/namespace",
            "meta.helm.sh/release-name",
            "helm.sh/chart",
            "kubectl.kubernetes.io/last-applied-configuration",
            "applyset.kubernetes.io/part-of",
            "internal.config.kubernetes.io/path",
            "kustomize.config.k8s.io/id",
            "cert-manager.io/certificate-name",
            "controller.cert-manager.io/fao",
            "deployment.kubernetes.io/revision",
            "clustersecret.io",
            "clustersecret.io/version",
            "reflector.v1.k8s.emberstack.com/reflection-allowed",
            "replicator.v1.mittwald.de/replicate-to",
            "kubed.appscode.com/sync",
            "generate.kyverno.io/policy-name",
        ] {
            assert!(never_carried(key), "{key}");
        }
        for key in
            ["app", "app.kubernetes.io/name", "kubernetes.io/x", "notmimeo.dev/x", "helm.sh", "fluxcd.io.example/x"]
        {
            assert!(!never_carried(key), "{key}");
        }
    }

    #[test]
    fn a_copy_is_stripped_then_included_then_excluded_then_set() {
        let from = json!({"app": "x", "team": "a", "team-b": "b", "helm.sh/chart": "c", "kept": "k"});
        for (edits, want) in [
            (json!({}), json!({"app": "x", "team": "a", "team-b": "b", "kept": "k"})),
            (json!({"include": ["team*", "helm.sh/*"]}), json!({"team": "a", "team-b": "b"})),
            (json!({"include": ["team*"], "exclude": ["*-b"]}), json!({"team": "a"})),
            (json!({"include": []}), json!({})),
            (
                json!({"include": [], "set": {"app": "$(source.name)", "new": ""}}),
                json!({"app": "registry", "new": ""}),
            ),
            (
                json!({"exclude": ["*"], "set": {"app": "y", "helm.sh/chart": "d"}}),
                json!({"app": "y", "helm.sh/chart": "d"}),
            ),
        ] {
            let transform = of_copies(json!({"labels": edits, "annotations": edits}));
            assert_eq!(
                Value::Object(transform.copy_labels(from.as_object(), &source(), &Variable::to_string)),
                want,
                "{edits}"
            );
            assert_eq!(
                Value::Object(transform.copy_annotations(from.as_object(), &source(), &Variable::to_string)),
                want,
                "{edits}"
            );
        }
        let transform = of_copies(json!({"labels": {"set": {"a": "b"}}, "type": "Opaque", "finalizers": ["a.b/c"]}));
        assert_eq!(Value::Object(transform.copy_labels(None, &source(), &Variable::to_string)), json!({"a": "b"}));
        assert_eq!((transform.secret_type(), transform.finalizers()), (Some("Opaque"), &["a.b/c".to_owned()][..]));
    }

    #[test]
    fn a_new_object_is_rewritten() {
        let spec = json!({
            "type": "example.com/auth", "labels": {"exclude": ["old*"], "set": {"participant": "x"}},
            "annotations": {"set": {"a": "$(HOME)"}}, "finalizers": ["example.com/f"],
        });
        let object = json!({"metadata": {"name": "n", "labels": {"old-1": "", "k": "v"}}, "type": "Opaque", "data": {"d": "ZA=="}});
        let want = json!({
            "metadata": {
                "name": "n", "labels": {"k": "v", "participant": "x"},
                "annotations": {"a": "$(HOME)"}, "finalizers": ["example.com/f"],
            },
            "type": "example.com/auth", "data": {"d": "ZA=="},
        });
        assert_eq!(rewritten(spec, object, None), want);
    }

    #[test]
    fn a_stored_secret_keeps_its_type() {
        let object = || json!({"metadata": {"name": "n"}, "type": "old"});
        for stored in ["new", "other", "old"] {
            let stored_object = json!({"metadata": {"name": "n"}, "type": stored});
            assert_eq!(rewritten(json!({"type": "new"}), object(), Some(&stored_object))["type"], stored);
        }
        let stored = json!({"type": "x"});
        assert_eq!(rewritten(json!({"labels": {"set": {"a": "b"}}}), object(), Some(&stored))["type"], "old");
    }

    #[test]
    fn what_is_being_deleted_is_left_alone() {
        let spec = || json!({"type": "new", "finalizers": ["a.b/c"], "labels": {"set": {"a": "b"}}});
        let object = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "type": "old"});
        assert_eq!(rewritten(spec(), object.clone(), None), object);
        let going = json!({"metadata": {}, "type": "old"});
        assert_eq!(rewritten(spec(), going.clone(), Some(&object)), going);
    }

    #[test]
    fn mimeos_marks_survive_a_rewrite() {
        let marks = json!({"mimeo.dev/rule": "r", names::MANAGED_BY: names::MANAGED_BY_VALUE});
        let object = json!({"metadata": {"labels": marks}});
        let spec = || json!({"labels": {"include": []}});
        assert_eq!(rewritten(spec(), object.clone(), None), object);
        let others = json!({"metadata": {"labels": {names::MANAGED_BY: "Helm"}}});
        assert_eq!(rewritten(spec(), others, None), json!({"metadata": {"labels": {}}}));
    }

    #[test]
    fn odd_shapes_are_passed_over() {
        let spec = || json!({"finalizers": ["a.b/c"], "labels": {"set": {"a": "b"}}});
        assert_eq!(rewritten(spec(), json!("text"), None), json!("text"));
        assert_eq!(rewritten(spec(), json!({"metadata": 1}), None), json!({"metadata": 1}));
        let nulls = json!({"metadata": {"labels": null, "finalizers": null}});
        assert_eq!(
            rewritten(spec(), nulls, None),
            json!({"metadata": {"labels": {"a": "b"}, "finalizers": ["a.b/c"]}})
        );
    }

    #[test]
    fn parse_refuses_with_the_field_and_the_reason() {
        let many = |n: usize| (0..n).map(|i| (format!("k{i}"), "v".repeat(5000))).collect::<BTreeMap<_, _>>();
        for (spec, want) in [
            (json!({"type": ""}), "t.type: must not be empty"),
            (
                json!({"type": "kubernetes.io/service-account-token"}),
                "t.type: must not be that of service account tokens",
            ),
            (
                json!({"type": "helm.sh/release.v1"}),
                "t.type: must not be that of service account tokens or Helm releases",
            ),
            (json!({"labels": {"include": ["a b"]}}), "t.labels.include[0]: \"a b\" is neither"),
            (json!({"annotations": {"exclude": ["x", ""]}}), "t.annotations.exclude[1]: must not be empty"),
            (
                json!({"labels": {"set": {"a": "x/$(source.name)"}}}),
                "t.labels.set[a]: the value for v1/Secret/platform/r",
            ),
            (json!({"labels": {"set": {"a": "$(source.x)"}}}), "t.labels.set[a]: there is no variable"),
            (
                json!({"labels": {"set": {"a": "$(namespace.name)-"}}}),
                "t.labels.set[a]: the value for v1/Secret/platform/registry \"x-\" is no label value",
            ),
            (json!({"labels": {"set": {"mimeo.dev/rule": "x"}}}), "t.labels.set[mimeo.dev/rule]: is Mimeo's own mark"),
            (
                json!({"annotations": {"set": {"x.mimeo.dev/y": ""}}}),
                "t.annotations.set[x.mimeo.dev/y]: is Mimeo's own",
            ),
            (
                json!({"labels": {"set": {names::MANAGED_BY: "x"}}}),
                "t.labels.set[app.kubernetes.io/managed-by]: is Mim",
            ),
            (json!({"annotations": {"set": many(60)}}), "t.annotations.set: must not have more than 262144 bytes"),
            (
                json!({"annotations": {"set": many(65).into_keys().map(|k| (k, "")).collect::<BTreeMap<_, _>>()}}),
                "t.annotations.set: must not have more than 64 items",
            ),
            (json!({"data": {"include": ["a b"]}}), "t.data.include[0]: \"a b\" is neither a key nor a glob"),
            (json!({"data": {"rename": {"a": "b/c"}}}), "t.data.rename[a]: \"b/c\" is no key"),
            (json!({"data": {"rename": {"a": "c", "b": "c"}}}), "t.data.rename[b]: another key is renamed to \"c\""),
            (json!({"finalizers": ["a.b/c", "a.b/c"]}), "t.finalizers[1]: \"a.b/c\" is there already"),
            (json!({"finalizers": ["mimeo.dev/c"]}), "t.finalizers[0]: must not be in Mimeo's own domain"),
            (
                json!({"finalizers": ["foregroundDeletion"]}),
                "t.finalizers[0]: \"foregroundDeletion\" must have a domain",
            ),
        ] {
            let refusals = Transform::of_copies(&serde_json::from_value(spec).unwrap(), "t", &[source()]).unwrap_err();
            assert_eq!(refusals.len(), 1, "{want}: {refusals:?}");
            assert!(refusals[0].to_string().starts_with(want), "{want}: {refusals:?}");
        }
    }

    #[test]
    fn a_type_is_only_for_secrets_and_a_variable_only_for_copies() {
        let parse = |spec: Value, kind: &str| {
            let kinds = [source().gvk, GroupVersionKind::parse("v1", kind).unwrap()];
            let refused = Transform::of_admission(&serde_json::from_value(spec).unwrap(), "t", &kinds).unwrap_err();
            refused.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(parse(json!({"type": "Opaque"}), "ConfigMap"), "t.type: is only for Secrets");
        let message = parse(json!({"data": {"exclude": ["a"]}}), "Service");
        assert_eq!(message, "t.data: is only for Secrets and ConfigMaps");
        let message = parse(json!({"labels": {"set": {"a": "$(source.name)"}}}), "Secret");
        assert_eq!(message, "t.labels.set[a]: there is no source here that a variable could stand for");
        let message = parse(json!({"labels": {"set": {"a": "$(namespace.labels['b'])"}}}), "Secret");
        let want = "t.labels.set[a]: the namespace's labels aren't known here, which $(namespace.labels['b']) needs";
        assert_eq!(message, want);
        let object = json!({"metadata": {"name": "n"}});
        let spec = json!({"labels": {"set": {"at": "in-$(namespace.name)"}}});
        assert_eq!(rewritten(spec, object, None)["metadata"]["labels"]["at"], "in-team");
        let mut config_map = source();
        config_map.gvk.kind = "ConfigMap".into();
        let spec = serde_json::from_value(json!({"type": "Opaque"})).unwrap();
        assert!(Transform::of_copies(&spec, "t", &[source(), config_map]).is_err());
    }

    #[test]
    fn data_of_a_copy_is_included_then_excluded_then_renamed() {
        let body = json!({"data": {"a": "1", "b": "2", "tls.crt": "3"}, "binaryData": {"c": "4"}, "immutable": true});
        for (edits, want) in [
            (json!({}), Ok(body.clone())),
            (
                json!({"include": ["tls.*", "c"]}),
                Ok(json!({"data": {"tls.crt": "3"}, "binaryData": {"c": "4"}, "immutable": true})),
            ),
            (json!({"exclude": ["?", "*.crt"]}), Ok(json!({"data": {}, "binaryData": {}, "immutable": true}))),
            (
                json!({"include": ["a", "b"], "rename": {"a": "b", "b": "a", "gone": "x"}}),
                Ok(json!({"data": {"b": "1", "a": "2"}, "binaryData": {}, "immutable": true})),
            ),
            (json!({"rename": {"a": "c"}}), Err("c".to_owned())),
            (
                json!({"exclude": ["c"], "rename": {"a": "c"}}),
                Ok(json!({"data": {"c": "1", "b": "2", "tls.crt": "3"}, "binaryData": {}, "immutable": true})),
            ),
        ] {
            let mut copy = body.as_object().unwrap().clone();
            let done = of_copies(json!({"data": edits})).copy_data(&mut copy);
            assert_eq!(done.map(|()| Value::Object(copy)), want, "{edits}");
        }
    }

    #[test]
    fn data_of_an_admitted_object_is_edited_without_being_told() {
        let object =
            json!({"data": {"old": "c2VjcmV0", "both": "1", "new-both": "2"}, "stringData": {"extra/": "hunter2"}});
        let edits = json!({"include": ["old", "both"], "rename": {"old": "new", "both": "new-both"}});
        let transform = of_admission(json!({"data": edits}));
        let changes = json_patch::Patch(transform.data_changes(&object));
        let text = changes.to_string();
        assert!(!text.contains("c2VjcmV0") && !text.contains("hunter2"), "{text}");
        let mut once = object;
        json_patch::patch(&mut once, &changes).unwrap();
        assert_eq!(once, json!({"data": {"new": "c2VjcmV0", "both": "1", "new-both": "2"}, "stringData": {}}));
        assert!(transform.data_changes(&once).is_empty());
        assert!(of_admission(json!({"type": "x"})).data_changes(&once).is_empty());
    }

    proptest! {
        #[test]
        fn rewriting_twice_is_rewriting_once(
            include in "[ab*]{0,2}", exclude in "[ab?]{0,2}", set in prop::collection::btree_map("[abc]{1,2}", "[xy]", 0..3),
            labels in prop::option::of(prop::collection::btree_map("[abc]{1,2}", "[xyz]", 0..4)),
            finalizers in prop::option::of(prop::collection::vec("[ab]/[ab]", 0..3)), stored in prop::option::of("[xyz]"),
        ) {
            let list = |glob: String| if glob.is_empty() { vec![] } else { vec![glob] };
            let edits = json!({"include": list(include), "exclude": list(exclude), "set": set});
            let transform = of_admission(json!({"type": "x", "labels": edits, "finalizers": ["a/a", "b/b"]}));
            let stored = stored.map(|stored| json!({"type": stored}));
            let mut once = json!({"metadata": {"labels": labels, "finalizers": finalizers}, "type": "y"});
            transform.rewrite(&mut once, stored.as_ref(), "team");
            let mut twice = once.clone();
            transform.rewrite(&mut twice, stored.as_ref(), "team");
            prop_assert_eq!(once, twice);
        }
    }
}
