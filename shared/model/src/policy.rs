//! `TransformPolicy`: changes matching objects at admission, for every writer.

use std::collections::BTreeSet;

use json_patch::{Patch, PatchOperation};
use mimeo_api::{TransformPolicy, TransformPolicySpec, is_default};
use serde_json::Value;

use crate::{
    kind::GroupVersionKind,
    refusal::{Refusal, Refusals},
    review::{Request, Verdict},
    selection::Selector,
    syntax,
    transform::{self, Use, data_changes, is_being_deleted},
};

/// Most kinds of one policy.
const KINDS: usize = 8;
/// Most excluded namespaces of one policy.
const NAMESPACES: usize = 64;
/// Prefixes of the user names of programs. Programs write often and do not read warnings.
const PROGRAMS: [&str; 4] = [
    "system:serviceaccount:",
    "system:node:",
    "system:kube-",
    "system:apiserver",
];

/// The objects that a policy changes at admission, and the changes.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Name of the policy. The requests of the API server carry it in their path.
    pub name: Box<str>,
    /// Kinds of the objects, in the author's order.
    pub kinds: Vec<GroupVersionKind>,
    /// Selects the objects by their labels. Never empty.
    object_selector: Selector,
    /// The spec as its author wrote it. The API server evaluates its selectors, too.
    pub spec: TransformPolicySpec,
}

impl Policy {
    /// Parses a policy that the API server has stored or is about to store.
    ///
    /// # Errors
    /// All reasons why the policy is refused, in the order of the fields.
    pub fn parse(object: &TransformPolicy) -> Result<Self, Vec<Refusal>> {
        let (metadata, spec) = (&object.metadata, &object.spec);
        let mut refusals = Refusals::default();
        let name = metadata.name.as_deref().unwrap_or_default();
        refusals.one("metadata.name", syntax::dns_subdomain(name));
        let matched = &spec.match_;
        let kinds = parse_kinds(&matched.kinds, &mut refusals);
        let at_objects = "spec.match.objectSelector";
        let object_selector = Selector::parse(&matched.object_selector, at_objects, &mut refusals);
        if object_selector.is_empty() {
            refusals.add(at_objects, "must not be empty");
        }
        if let Some(selector) = &matched.namespace_selector {
            Selector::parse(selector, "spec.match.namespaceSelector", &mut refusals);
        }
        refusals.each(
            "spec.match.excludeNamespaces",
            &matched.exclude_namespaces,
            NAMESPACES,
            syntax::dns_label,
        );
        let at_transform = "spec.transform";
        transform::check(
            &spec.transform,
            at_transform,
            Use::Admission,
            kinds.iter(),
            &mut refusals,
        );
        if is_default(&spec.transform) {
            refusals.add(at_transform, "must change something");
        }
        refusals.finish_with(Self {
            name: name.into(),
            kinds,
            object_selector,
            spec: spec.clone(),
        })
    }

    /// The answer with the policy's changes to the object of `request`. It changes nothing unless
    /// the new object matches. The API server also asks if only the stored object matches.
    pub fn rewrite(&self, request: &Request) -> Verdict {
        let object = request.object.as_ref();
        let Some(object) = object.filter(|object| self.is_for(request, object)) else {
            return Verdict::ALLOW;
        };
        let stored = request.old_object.as_ref();
        let (transform, namespace) = (&self.spec.transform, request.namespace.as_deref());
        let mut after = object.clone();
        transform::rewrite(transform, &mut after, stored, namespace.unwrap_or_default());
        // The patch holds no data: the difference has none, and the second part only moves keys.
        let mut patch = json_patch::diff(object, &after);
        patch.0.extend(data_changes(&transform.data, object));
        let mut warnings = Vec::new();
        warnings.extend(stored.and_then(|stored| self.kept_type(stored)));
        if !PROGRAMS
            .iter()
            .any(|prefix| request.user.name.starts_with(prefix))
        {
            warnings.extend(self.changed(&request.kind.kind, &patch));
        }
        Verdict::Patch { patch, warnings }
    }

    /// The warning that tells a person which parts the policy has changed. The API server also
    /// shows it if it refuses the object later. That refusal does not name the policy.
    fn changed(&self, kind: &str, patch: &Patch) -> Option<String> {
        let part = |operation: &PatchOperation| {
            let tokens = operation.path().tokens();
            let mut words = tokens.map(|token| token.decoded().into_owned());
            // The operation adds the whole metadata if there was none before.
            let within = words.find(|word| word != "metadata");
            within.unwrap_or_else(|| "metadata".into())
        };
        let parts: BTreeSet<String> = patch.0.iter().map(part).collect();
        let parts = parts.into_iter().collect::<Vec<_>>().join(", ");
        (!parts.is_empty()).then(|| changed(&self.name, &parts, kind))
    }

    /// True if the policy changes the new object of the request. An object that is being deleted is
    /// not changed, otherwise no client could remove its finalizers.
    fn is_for(&self, request: &Request, object: &Value) -> bool {
        let kind = request.kind.group_kind();
        let namespace = request.namespace.as_deref().unwrap_or_default();
        let labels = object["metadata"]["labels"].as_object();
        let is_being_deleted =
            is_being_deleted(object) || request.old_object.as_ref().is_some_and(is_being_deleted);
        !is_being_deleted
            && self.kinds.iter().any(|one| one.group_kind() == kind)
            && !self
                .spec
                .match_
                .exclude_namespaces
                .iter()
                .any(|excluded| excluded == namespace)
            && self
                .object_selector
                .matches_by(|key| labels?.get(key)?.as_str())
    }

    /// The warning about an object that was stored with another type before the policy existed.
    fn kept_type(&self, stored: &Value) -> Option<String> {
        let (wanted, kept) = (
            self.spec.transform.type_.as_deref()?,
            stored["type"].as_str()?,
        );
        (wanted != kept).then(|| kept_type(&self.name, kept, wanted))
    }
}

/// The warning that a stored Secret keeps its type.
pub fn kept_type(policy: &str, kept: &str, wanted: &str) -> String {
    format!(
        "TransformPolicy {policy} cannot change the type of this Secret from {kept:?} to \
         {wanted:?}: the type of a stored Secret is immutable. Delete the Secret and create it \
         again"
    )
}

/// The warning that a policy has changed these parts of an object.
pub fn changed(policy: &str, parts: &str, kind: &str) -> String {
    format!(
        "TransformPolicy {policy} changed {parts} of this {kind}. If the API server refuses it for \
         that, change the policy or exclude the object from it (spec.match)"
    )
}

fn parse_kinds(kinds: &[mimeo_api::MatchedKind], refusals: &mut Refusals) -> Vec<GroupVersionKind> {
    let field = "spec.match.kinds";
    refusals.count(field, kinds.len(), KINDS);
    let parse = |(i, kind): (usize, &mimeo_api::MatchedKind)| {
        let field = format!("{field}[{i}]");
        let gvk = refusals.one(
            &field,
            GroupVersionKind::parse(&kind.api_version, &kind.kind),
        )?;
        if let Some(why) = gvk.left_alone() {
            refusals.add(field, why);
        }
        Some(gvk)
    };
    kinds.iter().enumerate().filter_map(parse).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use super::*;
    use crate::review::{Operation, User};
    use serde_json::json;

    const TYPE: &str = "credential.devops.kubesphere.io/basic-auth";
    const OLD_TYPE: &str = "will-be-modify-by-kyverno";

    /// A policy that replaces a known Kyverno mutation of the copies of another tool.
    fn good() -> Value {
        json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": "devops"},
            "spec": {
                "match": {
                    "kinds": [{"apiVersion": "v1", "kind": "Secret"}],
                    "objectSelector": {"matchLabels": {"kubed.appscode.com/origin.namespace": "kubesphere-devops-system"}},
                    "excludeNamespaces": ["kubesphere-devops-system"],
                },
                "transform": {
                    "type": TYPE, "labels": {"set": {"participant": "kyverno"}},
                    "finalizers": ["finalizers.kubesphere.io/credential"],
                },
            },
        })
    }

    #[track_caller]
    fn policy(object: Value) -> Policy {
        Policy::parse(&serde_json::from_value(object).unwrap()).unwrap()
    }

    /// A Secret as the copying tool writes it.
    fn secret() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": OLD_TYPE, "data": {"password": "c2VjcmV0"},
            "metadata": {
                "name": "git", "namespace": "team",
                "labels": {"kubed.appscode.com/origin.namespace": "kubesphere-devops-system"},
            },
        })
    }

    fn request(object: Value, stored: Option<Value>) -> Request {
        Request {
            uid: "u".into(),
            kind: GroupVersionKind::parse("v1", "Secret").unwrap(),
            name: Some("git".into()),
            namespace: Some("team".into()),
            operation: if stored.is_some() {
                Operation::Update
            } else {
                Operation::Create
            },
            user: User {
                name: "system:serviceaccount:tools:copier".into(),
                ..User::default()
            },
            object: Some(object),
            old_object: stored,
            dry_run: false,
        }
    }

    #[track_caller]
    fn patched(policy: &Policy, request: &Request) -> (Patch, Vec<String>) {
        match policy.rewrite(request) {
            Verdict::Patch { patch, warnings } => (patch, warnings),
            Verdict::Allow { warnings } => (Patch(vec![]), warnings),
            other @ Verdict::Deny { .. } => panic!("{other:?}"),
        }
    }

    /// The object after the policy, and the warnings.
    #[track_caller]
    fn admitted(policy: &Policy, object: Value, stored: Option<Value>) -> (Value, Vec<String>) {
        let (patch, warnings) = patched(policy, &request(object.clone(), stored.clone()));
        assert!(!format!("{patch:?}").contains("c2VjcmV0"));
        let mut out = object;
        json_patch::patch(&mut out, &patch).unwrap();
        let (again, _) = patched(policy, &request(out.clone(), stored));
        assert!(again.0.is_empty(), "the second time changed {again}");
        (out, warnings)
    }

    #[test]
    fn a_created_secret_gets_type_label_and_finalizer() {
        let (out, warnings) = admitted(&policy(good()), secret(), None);
        assert_eq!(
            (&out["type"], &out["metadata"]["labels"]["participant"]),
            (&json!(TYPE), &json!("kyverno"))
        );
        assert_eq!(
            out["metadata"]["finalizers"],
            json!(["finalizers.kubesphere.io/credential"])
        );
        assert_eq!((&out["data"], warnings), (&secret()["data"], vec![]));
    }

    #[test]
    fn a_tool_that_resends_its_old_type_passes() {
        let policy = policy(good());
        let (stored, _) = admitted(&policy, secret(), None);
        let (out, warnings) = admitted(&policy, secret(), Some(stored.clone()));
        assert_eq!((out, warnings), (stored, vec![]));
    }

    #[test]
    fn a_secret_stored_with_another_type_can_be_edited_and_is_reported() {
        let mut edited = secret();
        edited["data"]["password"] = json!("bmV3");
        let (out, warnings) = admitted(&policy(good()), edited, Some(secret()));
        assert_eq!(
            (&out["type"], &out["data"]["password"]),
            (&json!(OLD_TYPE), &json!("bmV3"))
        );
        assert_eq!(warnings.len(), 1);
        assert!(
            warnings[0].starts_with(
                "TransformPolicy devops cannot change the type of this Secret from \"will-be-"
            ),
            "{warnings:?}"
        );
    }

    #[test]
    fn a_person_is_told_what_the_policy_has_changed_and_a_program_is_not() {
        let policy = policy(good());
        let told = |name: &str, object: Value| {
            let mut request = request(object, None);
            request.user.name = name.into();
            patched(&policy, &request).1
        };
        let changed = "TransformPolicy devops changed finalizers, labels, type of this Secret. If \
            the API server refuses it for that, change the policy or exclude the object from it \
            (spec.match)";
        for (name, warned) in [
            ("ann", true),
            ("system:admin", true),
            ("system:node:a", false),
            ("system:kube-x", false),
        ] {
            assert_eq!(
                told(name, secret()),
                if warned { vec![changed] } else { vec![] },
                "{name}"
            );
        }
        assert_eq!(
            told("ann", admitted(&policy, secret(), None).0),
            [""; 0],
            "nothing is changed"
        );
    }

    #[test]
    fn an_owner_removes_the_finalizer_of_what_is_being_deleted() {
        let mut stored = admitted(&policy(good()), secret(), None).0;
        stored["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let mut freed = stored.clone();
        freed["metadata"]["finalizers"] = json!([]);
        assert_eq!(
            admitted(&policy(good()), freed.clone(), Some(stored)),
            (freed, vec![])
        );
    }

    #[test]
    fn what_does_not_match_is_left_alone() {
        type Change = fn(&mut Request);
        let changes: [(&str, Change); 5] = [
            ("other labels", |r| {
                r.object = Some(json!({"metadata": {"labels": {"a": "b"}}}));
            }),
            ("no labels, though the stored one matches", |r| {
                r.object = Some(json!({"metadata": {}}));
                r.old_object = Some(secret());
                r.operation = Operation::Update;
            }),
            ("excluded namespace", |r| {
                r.namespace = Some("kubesphere-devops-system".into());
            }),
            ("another kind", |r| {
                r.kind = GroupVersionKind::parse("v1", "ConfigMap").unwrap();
            }),
            ("deletion", |r| {
                (r.operation, r.object) = (Operation::Delete, None);
            }),
        ];
        for (what, change) in changes {
            let mut request = request(secret(), None);
            change(&mut request);
            assert_eq!(policy(good()).rewrite(&request), Verdict::ALLOW, "{what}");
        }
    }

    #[test]
    fn the_patch_says_only_what_changes() {
        let (patch, _) = patched(&policy(good()), &request(secret(), None));
        let want = json!([
            {"op": "add", "path": "/metadata/finalizers", "value": ["finalizers.kubesphere.io/credential"]},
            {"op": "add", "path": "/metadata/labels/participant", "value": "kyverno"},
            {"op": "replace", "path": "/type", "value": TYPE},
        ]);
        assert_eq!(serde_json::to_value(patch).unwrap(), want);
    }

    #[test]
    fn parse_refuses_one_change_away_from_good() {
        let kind =
            |api_version: &str, kind: &str| json!([{"apiVersion": api_version, "kind": kind}]);
        let empty: Value = json!([]);
        for (pointer, value, want) in [
            (
                "/metadata/name",
                json!(""),
                "metadata.name: must not be empty",
            ),
            (
                "/spec/match/kinds",
                empty,
                "spec.match.kinds: must not be empty",
            ),
            (
                "/spec/match/kinds",
                json!(vec![json!({"apiVersion": "v1", "kind": "Secret"}); 9]),
                "spec.match.kinds: must not have",
            ),
            (
                "/spec/match/kinds/0/apiVersion",
                json!("a/b/c"),
                "spec.match.kinds[0]: the version of apiVersion",
            ),
            (
                "/spec/match/kinds",
                kind("v1", "ConfigMap"),
                "spec.transform.type: is only for Secrets",
            ),
            (
                "/spec/match/objectSelector",
                json!({}),
                "spec.match.objectSelector: must not be empty",
            ),
            (
                "/spec/match/objectSelector",
                json!({"matchLabels": {"a": "b c"}}),
                "spec.match.objectSelector.matchLabels[a]",
            ),
            (
                "/spec/match/namespaceSelector",
                json!({"matchLabels": {"a b": ""}}),
                "spec.match.namespaceSelector.matchL",
            ),
            (
                "/spec/match/excludeNamespaces",
                json!(["a", "b*"]),
                "spec.match.excludeNamespaces[1]: \"b*\" is not a valid DNS label",
            ),
            (
                "/spec/match/excludeNamespaces",
                json!(vec!["a"; 65]),
                "spec.match.excludeNamespaces: must not have more",
            ),
            (
                "/spec/transform",
                json!({}),
                "spec.transform: must change something",
            ),
            (
                "/spec/transform",
                json!({"type": "a b"}),
                "spec.transform.type: \"a b\" is not a valid type",
            ),
            (
                "/spec/transform",
                json!({"labels": {"set": {"mimeo.dev/rule": ""}}}),
                "spec.transform.labels.set[mimeo.dev/rule]",
            ),
        ] {
            let mut object = good();
            let (parent, last) = pointer.rsplit_once('/').unwrap();
            object.pointer_mut(parent).unwrap()[last] = value;
            let refusals = Policy::parse(&serde_json::from_value(object).unwrap()).expect_err(want);
            assert_eq!(refusals.len(), 1, "{want}: {refusals:?}");
            assert!(
                refusals[0].to_string().starts_with(want),
                "{want}: {refusals:?}"
            );
        }
    }

    #[test]
    fn parse_refuses_kinds_that_must_stay_as_they_are() {
        for (api_version, kind) in [
            ("v1", "Namespace"),
            ("mimeo.dev/v1alpha1", "ClusterReplication"),
        ] {
            let mut object = good();
            object["spec"]["match"]["kinds"] = json!([{"apiVersion": api_version, "kind": kind}]);
            object["spec"]["transform"] = json!({"labels": {"set": {"a": "b"}}});
            let refusals = Policy::parse(&serde_json::from_value(object).unwrap()).expect_err(kind);
            assert!(
                refusals[0].to_string().starts_with("spec.match.kinds[0]: "),
                "{refusals:?}"
            );
        }
    }
}
