//! Decisions of the hooks for namespaces and pods: the pending label, the update that makes more
//! rules match, and the wait at the pod gate.
//!
//! This file only decides. The caller waits, writes, reads the clock, and decodes and encodes
//! reviews ([`review`](mimeo_model::review)).

use json_patch::Patch;
use serde_json::{Value, json};

use mimeo_model::{
    meta::Checksum,
    names::PENDING_LABEL,
    plural,
    review::{Operation, Request, Verdict},
    selection::Labels,
    transform::is_being_deleted,
};

use crate::{AwaitedCopy, Index, Progress};

/// The advice for clients that don't retry by themselves. [`encode`](mimeo_model::review::encode)
/// tells the others the same.
const RETRY: &str = "Retry in 1 s";

/// Returns the value of a new pending label: different for every admission, impossible to guess,
/// and a valid label value.
pub fn nonce(review_uid: &str) -> String {
    format!("{:016x}", Checksum::of(review_uid.as_bytes()).short())
}

/// The decision about a namespace that is created or changed. By default nothing is done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamespaceDecision {
    /// The changes of the namespace itself; empty if there are none.
    pub patch: Patch,
    /// True if the patch sets the pending label to a new nonce. This replica then writes the copies
    /// when it sees the label. Any other patch undoes the request's change of the label.
    pub sets_label: bool,
    /// True if the namespace needs the pending label before the answer, by a separate write.
    ///
    /// This is for labels that make more rules match. If the same update set the pending label, API
    /// servers would learn of it no sooner than of the pods that it must hold. And no copy is
    /// written because of a request alone. A user that may not set these labels is refused after
    /// this hook, and must gain nothing by the attempt.
    pub label_first: bool,
}

/// Decides about the creation or change of a namespace, for any subresource. The users in
/// `mimeo_users` may change the pending label freely. A new label has the value `nonce`.
///
/// A second decision changes nothing: a label with a nonce that was issued here stays as it is.
pub fn namespace(
    request: &Request,
    index: &Index,
    mimeo_users: &[String],
    nonce: &str,
) -> NamespaceDecision {
    match (request.operation, &request.object) {
        (Operation::Create, Some(object)) => created(request, object, index, nonce),
        (Operation::Update, Some(object)) => updated(request, object, index, mimeo_users),
        _ => NamespaceDecision::default(),
    }
}

fn created(request: &Request, object: &Value, index: &Index, nonce: &str) -> NamespaceDecision {
    let name = request
        .name
        .as_deref()
        .or_else(|| object["metadata"]["name"].as_str());
    // A rule that is not known yet may match.
    let waits = !index.primed() || !index.pod_gate_rules(name, &labels(object)).is_empty();
    let preset = pending_label(object);
    let issued = preset.is_some_and(|preset| index.issued.contains(preset));
    let sets_label = waits && !issued;
    let patch = match preset {
        _ if sets_label => set_label(object, Some(nonce)),
        Some(_) if !waits => set_label(object, None),
        _ => Patch::default(),
    };
    NamespaceDecision {
        patch,
        sets_label,
        label_first: false,
    }
}

fn updated(
    request: &Request,
    object: &Value,
    index: &Index,
    mimeo_users: &[String],
) -> NamespaceDecision {
    let old = request.old_object.as_ref().unwrap_or(&Value::Null);
    let mut decision = NamespaceDecision::default();
    if pending_label(old) != pending_label(object) && !mimeo_users.contains(&request.user.name) {
        decision.patch = set_label(object, pending_label(old));
    }
    let (before, after) = (labels(old), labels(object));
    let leaving = is_being_deleted(old) || is_being_deleted(object);
    // The pods of a namespace with the pending label wait anyway. They wait for the copies that its
    // labels need at that time.
    if leaving || request.dry_run || pending_label(old).is_some() || before == after {
        return decision;
    }
    let name = request.name.as_deref();
    let already = index.pod_gate_rules(name, &before);
    // A rule that is not known yet may match.
    decision.label_first = !index.primed()
        || index
            .pod_gate_rules(name, &after)
            .iter()
            .any(|rule| !already.contains(rule));
    decision
}

/// Returns the pending label of a namespace.
pub fn pending_label(namespace: &Value) -> Option<&str> {
    namespace["metadata"]["labels"][PENDING_LABEL].as_str()
}

/// Returns the labels of a namespace without the pending label.
fn labels(namespace: &Value) -> Labels {
    let labels = namespace["metadata"]["labels"].as_object();
    let label =
        |(key, value): (&String, &Value)| Some((key.as_str().into(), value.as_str()?.into()));
    labels
        .into_iter()
        .flatten()
        .filter(|(key, _)| *key != PENDING_LABEL)
        .filter_map(label)
        .collect()
}

/// Returns the patch that sets a label or an annotation of an object, or without `value` removes it.
/// `field` is `labels` or `annotations`.
pub(crate) fn set(object: &Value, field: &str, key: &str, value: Option<&str>) -> Patch {
    let path = format!("/metadata/{field}");
    let entry = format!("{path}/{}", key.replace('/', "~1"));
    let operations = match value {
        None => json!([{"op": "remove", "path": entry}]),
        Some(value) if object["metadata"][field].is_object() => {
            json!([{"op": "add", "path": entry, "value": value}])
        }
        Some(value) => json!([{"op": "add", "path": path, "value": {key: value}}]),
    };
    serde_json::from_value(operations).expect("a literal of the patch's own form")
}

fn set_label(namespace: &Value, nonce: Option<&str>) -> Patch {
    set(namespace, "labels", PENDING_LABEL, nonce)
}

/// The answer to a request at the pod gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GateDecision {
    /// Admit the pod.
    Admit {
        /// Names the copies that are missing all the same.
        warning: Option<String>,
    },
    /// A required copy can't be written now.
    Deny(String),
    /// Copies are being written. Wait, and if that takes too long, tell the client to retry. The
    /// message names the copies.
    Wait(String),
    /// Copies are being written, but waiting here is of no use. Tell the client to retry at once.
    ComeAgain(String),
}

/// Decides about a pod (or another kind that waits) in `namespace`. The API server has seen the
/// pending label there.
pub fn pod_gate(namespace: &str, progress: &Progress) -> GateDecision {
    let Progress {
        uid,
        nonce,
        denied,
        excused,
        waiting,
        required,
        over_budget,
        early_kinds,
    } = progress;
    let tell = |consequence: &str, copies: &[AwaitedCopy], next: &str| {
        // Only `ClusterReplication`s hold pods.
        let see = copies.first().map_or("", |copy| &copy.rule.name);
        let copies = plural::first_items(copies, "; ");
        format!(
            "pods in {namespace} {consequence} {copies}{next}. See: kubectl describe crepl {see}"
        )
    };
    if uid.is_none() {
        return GateDecision::Wait(still_reading(namespace));
    }
    if nonce.is_none() {
        return GateDecision::Admit { warning: None };
    }
    if !denied.is_empty() {
        return GateDecision::Deny(tell("wait for", denied, ""));
    }
    if !waiting.is_empty() && (*required || !over_budget) {
        let message = tell("wait for", waiting, &format!(". {RETRY}"));
        return if *early_kinds {
            GateDecision::ComeAgain(message)
        } else {
            GateDecision::Wait(message)
        };
    }
    let absent = [waiting.as_slice(), excused].concat();
    let warning = (!absent.is_empty()).then(|| tell("start without", &absent, ""));
    GateDecision::Admit { warning }
}

/// The message for pods of a namespace that this replica hasn't read yet.
pub fn still_reading(namespace: &str) -> String {
    format!(
        "pods in {namespace} wait for its copies: Mimeo is still reading the namespace. {RETRY}"
    )
}

/// The message for pods of a namespace that can't be read now.
pub fn unread(namespace: &str) -> String {
    format!(
        "pods in {namespace} wait for its copies: the API server did not answer Mimeo's read of \
         the namespace. {RETRY}"
    )
}

/// "Not now": the API server passes the answer on with its `Retry-After`, and clients retry by
/// themselves.
pub fn come_again(message: String) -> Verdict {
    Verdict::deny(429, "TooManyRequests", message)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use super::*;
    use crate::{Engine, Settings};
    use mimeo_model::{
        choices::PodGate,
        id::{RuleId, RuleKind},
        kind::GroupVersionKind,
        known::Known,
        meta::Uid,
        review::User,
        role::Role,
        rule::Rule,
    };
    use std::collections::BTreeSet;

    /// An engine with two rules: `gold` holds namespaces labelled tier=gold, and `team` holds names
    /// that begin with `team-`. It issued one nonce. `known` is true once all rules were seen.
    fn engine(known: bool) -> Engine {
        let mut engine = Engine::new(Settings::new(Role::Injector, "cluster"));
        let gold = json!({"namespaceSelector": {"matchLabels": {"tier": "gold"}}});
        let team = json!({"namespaces": ["team-*"]});
        for (name, target) in [("gold", gold), ("team", team)] {
            let source =
                json!({"apiVersion": "v1", "kind": "Secret", "namespace": "home", "name": "s"});
            let rule = json!({
                "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": name},
                "spec": {"sources": [source], "targets": [target], "podGate": "Required"},
            });
            let rule = Rule::parse(&serde_json::from_value(rule).unwrap()).unwrap();
            engine.rule_applied(id(name), Ok(rule), None);
        }
        if known {
            let ids = [id("gold"), id("team")].into();
            engine.rules_known(RuleKind::ClusterReplication, Known::Listed(&ids));
            engine.rules_known(RuleKind::Replication, Known::Unserved);
            engine.namespaces_listed(&BTreeSet::new());
        }
        engine.issue("issued-here");
        engine
    }

    fn id(name: &str) -> RuleId {
        RuleId {
            kind: RuleKind::ClusterReplication,
            namespace: None,
            name: name.into(),
        }
    }

    #[test]
    fn the_pending_label_is_no_label_of_the_users() {
        let namespace = namespace_with(&[(PENDING_LABEL, "t"), ("tier", "gold")]);
        let labels = labels(&namespace);
        assert!(labels.get(PENDING_LABEL).is_none() && labels.get("tier").is_some());
    }

    fn namespace_with(labels: &[(&str, &str)]) -> Value {
        let labels: serde_json::Map<String, Value> = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).into()))
            .collect();
        json!({"metadata": {"name": "shop", "labels": labels}})
    }

    fn request(operation: Operation, old: Option<Value>, object: Value) -> Request {
        Request {
            uid: "u".into(),
            kind: GroupVersionKind::parse("v1", "Namespace").unwrap(),
            name: object["metadata"]["name"].as_str().map(Into::into),
            namespace: None,
            operation,
            user: User {
                name: "ann".into(),
                ..User::default()
            },
            object: Some(object),
            old_object: old,
            dry_run: false,
        }
    }

    fn decide(request: &Request, known: bool) -> NamespaceDecision {
        namespace(request, engine(known).index(), &["mimeo".into()], "fresh")
    }

    /// Returns the pending label after the decision's patch.
    #[track_caller]
    fn patched(request: &Request, decision: &NamespaceDecision) -> Option<String> {
        let mut object = request.object.clone().unwrap();
        json_patch::patch(&mut object, &decision.patch).unwrap();
        pending_label(&object).map(Into::into)
    }

    #[test]
    fn created_is_marked_if_a_rule_could_match_and_else_bare() {
        let unnamed = json!({"metadata": {"generateName": "team-"}});
        for (object, known, preset, want) in [
            (
                namespace_with(&[("tier", "gold")]),
                true,
                None,
                Some("fresh"),
            ),
            (
                namespace_with(&[("tier", "gold")]),
                true,
                Some("guess"),
                Some("fresh"),
            ),
            (
                namespace_with(&[("tier", "gold")]),
                true,
                Some("issued-here"),
                Some("issued-here"),
            ),
            (namespace_with(&[]), true, None, None),
            (namespace_with(&[]), true, Some("guess"), None),
            (namespace_with(&[]), true, Some("issued-here"), None),
            (namespace_with(&[]), false, None, Some("fresh")),
            (unnamed.clone(), true, None, Some("fresh")),
            (
                json!({"metadata": {"generateName": "shop-", "labels": null}}),
                true,
                None,
                Some("fresh"),
            ),
        ] {
            let mut object = object;
            if let Some(preset) = preset {
                object["metadata"]["labels"][PENDING_LABEL] = preset.into();
            }
            let request = request(Operation::Create, None, object.clone());
            let decision = decide(&request, known);
            assert_eq!(patched(&request, &decision).as_deref(), want, "{object}");
            assert_eq!(decision.sets_label, want == Some("fresh"), "{object}");
            assert!(!decision.label_first);
        }
    }

    #[test]
    fn only_mimeo_changes_the_mark() {
        let (marked, other, bare) = (
            namespace_with(&[(PENDING_LABEL, "t")]),
            namespace_with(&[(PENDING_LABEL, "x")]),
            namespace_with(&[]),
        );
        for (old, new, user, want) in [
            (&marked, &bare, "ann", Some("t")),
            (&marked, &other, "ann", Some("t")),
            (&bare, &other, "ann", None),
            (&marked, &marked, "ann", Some("t")),
            (&marked, &bare, "mimeo", None),
        ] {
            let mut request = request(Operation::Update, Some(old.clone()), new.clone());
            request.user.name = user.into();
            let decision = decide(&request, true);
            assert_eq!(patched(&request, &decision).as_deref(), want, "{old} {new}");
            assert_eq!(
                decision.patch.is_empty(),
                pending_label(new) == want,
                "{old} {new}"
            );
            request.dry_run = true;
            assert_eq!(decide(&request, true).patch, decision.patch);
        }
    }

    #[test]
    fn a_namespace_is_marked_before_labels_bring_more_rules() {
        let (bare, gold) = (namespace_with(&[]), namespace_with(&[("tier", "gold")]));
        let other = namespace_with(&[("tier", "gold"), ("a", "b")]);
        let marked = namespace_with(&[(PENDING_LABEL, "t")]);
        let update =
            |old: &Value, new: &Value| request(Operation::Update, Some(old.clone()), new.clone());
        let mut dry = update(&bare, &gold);
        dry.dry_run = true;
        let mut going = update(&bare, &gold);
        going.object.as_mut().unwrap()["metadata"]["deletionTimestamp"] =
            "2026-01-01T00:00:00Z".into();
        for (what, request, known, want) in [
            ("comes to match", update(&bare, &gold), true, true),
            ("may come to match", update(&bare, &gold), false, true),
            ("no label changes", update(&gold, &gold), false, false),
            ("already matched", update(&gold, &other), true, false),
            ("matches no more", update(&gold, &bare), true, false),
            ("waits anyway", update(&marked, &gold), true, false),
            ("only asks", dry, true, false),
            ("is going", going, true, false),
        ] {
            let decision = decide(&request, known);
            assert_eq!(decision.label_first, want, "{what}");
        }
    }

    fn marked() -> Progress {
        Progress {
            uid: Uid::parse("00000000-0000-4000-8000-000000000001"),
            nonce: Some("t".into()),
            ..Progress::default()
        }
    }

    #[test]
    fn pods_wait_for_what_can_still_come() {
        let copy = |name: &str, why: &str| AwaitedCopy {
            copy: format!("Secret {name}"),
            rule: id("registry").into(),
            pod_gate: PodGate::Required,
            why: why.into(),
        };
        let waiting = Progress {
            waiting: vec![copy("a", "it is being written")],
            ..marked()
        };
        let excused = Progress {
            excused: vec![copy("b", "Conflict, an object of that name exists")],
            ..marked()
        };
        let word = |decision: GateDecision| match decision {
            GateDecision::Admit { warning } => format!("admit {}", warning.unwrap_or_default()),
            GateDecision::Deny(message) => format!("deny {message}"),
            GateDecision::Wait(message) => format!("wait {message}"),
            GateDecision::ComeAgain(message) => format!("come again {message}"),
        };
        for (what, progress, begins, names) in [
            ("not seen", Progress::default(), "wait ", ""),
            (
                "no label",
                Progress {
                    nonce: None,
                    ..waiting.clone()
                },
                "admit ",
                "",
            ),
            ("all there", marked(), "admit ", ""),
            (
                "on their way",
                waiting.clone(),
                "wait pods in shop wait for Secret a (ClusterReplication/registry, podGate \
                 Required): it is being written. Retry in 1 s. See: kubectl describe crepl \
                 registry",
                "",
            ),
            (
                "out of time",
                Progress {
                    over_budget: true,
                    ..waiting.clone()
                },
                "admit pods",
                "Secret a",
            ),
            (
                "required",
                Progress {
                    over_budget: true,
                    required: true,
                    ..waiting.clone()
                },
                "wait ",
                "Secret a",
            ),
            (
                "read early",
                Progress {
                    early_kinds: true,
                    ..waiting.clone()
                },
                "come again ",
                "Secret a",
            ),
            (
                "cannot",
                excused.clone(),
                "admit pods in shop start without Secret b",
                "podGate Required): Conflict, an object of that name exists. See: kubectl describe \
                 crepl registry",
            ),
            (
                "must not",
                Progress {
                    denied: vec![copy("c", "SourceNotFound")],
                    ..waiting
                },
                "deny pods in shop wait for Secret c (ClusterReplication/registry, podGate \
                 Required): SourceNotFound. See:",
                "",
            ),
        ] {
            let got = word(pod_gate("shop", &progress));
            assert!(
                got.starts_with(begins) && got.contains(names),
                "{what}: {got}"
            );
        }
        let many = ["a", "b", "c", "d", "e", "f", "g"]
            .map(|name| copy(name, "it is being written"))
            .to_vec();
        let told = word(pod_gate(
            "shop",
            &Progress {
                excused: many,
                ..marked()
            },
        ));
        let last = "Secret e (ClusterReplication/registry, podGate Required): it is being written; \
            and 2 more. See: kubectl describe crepl registry";
        assert!(told.ends_with(last), "{told}");
        let denied = ["a", "b", "c", "d", "e", "f", "g"]
            .map(|name| copy(name, "Invalid"))
            .to_vec();
        let told = word(pod_gate("shop", &Progress { denied, ..marked() }));
        assert!(
            told.ends_with(
                "podGate Required): Invalid; and 2 more. See: kubectl describe crepl registry"
            ),
            "{told}"
        );
    }

    #[test]
    fn a_token_is_a_label_value_of_its_own_review() {
        let nonce_of = nonce("0f3e4d5c-1a2b-3c4d-5e6f-708192a3b4c5");
        assert_eq!(nonce_of.len(), 16);
        assert!(nonce_of.bytes().all(|b| b.is_ascii_hexdigit()));
        assert_ne!(nonce_of, nonce(""));
    }
}
