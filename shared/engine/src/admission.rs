//! Answers of the hooks of namespaces and pods: the mark, the update by which more rules match, the
//! wait at the pod gate.
//!
//! Decisions only. Waiting, writing and the clock are the caller's, and so is a review's way in and
//! out ([`review`](mimeo_model::review)).

use std::collections::BTreeSet;

use json_patch::Patch;
use serde_json::{Value, json};

use mimeo_model::{
    id::RuleId,
    meta::Checksum,
    names::MARK,
    plural,
    review::{Operation, Request, Verdict},
    selection::{Labels, NameHint},
    transform::is_being_deleted,
};

use crate::{AwaitedCopy, Engine, Progress};

/// Where the mark is in a namespace, as a JSON pointer.
const MARK_POINTER: &str = "/metadata/labels/mimeo.dev~1copies";
/// How many copies a message names.
const NAMED: usize = 5;

/// What is known of the rules.
pub trait Rules {
    /// Whether every rule was seen once.
    fn known(&self) -> bool;
    /// Rules that hold the pods of a namespace with this name and these labels.
    fn holding(&self, hint: NameHint<'_>, labels: &Labels) -> BTreeSet<RuleId>;
    /// Whether this replica gave out that token.
    fn issued(&self, token: &str) -> bool;
}

impl Rules for Engine {
    fn known(&self) -> bool {
        self.primed()
    }

    fn holding(&self, hint: NameHint<'_>, labels: &Labels) -> BTreeSet<RuleId> {
        self.pod_gate_rules(hint, labels)
    }

    fn issued(&self, token: &str) -> bool {
        Self::issued(self, token)
    }
}

/// A mark's value: different for every admission, impossible to guess, and a valid label value.
pub fn token(review_uid: &str) -> String {
    format!("{:016x}", Checksum::of(review_uid.as_bytes()).short())
}

/// What is to be done about a namespace that is created or changed.
#[derive(Clone, Debug, PartialEq)]
pub struct NamespaceDecision {
    /// What changes in the namespace itself; empty if nothing does.
    pub patch: Patch,
    /// What it does to the mark, for the log.
    pub mark: Mark,
    /// Whether the namespace has to be marked before the answer, by a write of its own.
    ///
    /// Its labels come to match more rules. Set by the same update, the mark would reach API
    /// servers no sooner than the pods that it is to hold. And no copy is written on the word of a
    /// request: whoever may not set these labels is told so after this hook, and must not have
    /// gained anything by trying.
    pub mark_first: bool,
}

/// What a patch does to the mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Nothing.
    Untouched,
    /// Sets it to a new token, which from then on is this replica's to redeem.
    Set,
    /// Removes one that somebody set in advance.
    Stripped,
    /// Takes back what somebody did to it.
    Restored,
}

/// Decides about the creation or change of a namespace, whatever the subresource. `mimeo_users` may
/// do to the mark as they like; `token` is the one that a new mark gets.
///
/// Deciding twice changes nothing: what carries a token that was issued here is left as it is.
pub fn namespace(
    request: &Request,
    rules: &impl Rules,
    mimeo_users: &[String],
    token: &str,
) -> NamespaceDecision {
    match (request.operation, &request.object) {
        (Operation::Create, Some(object)) => created(request, object, rules, token),
        (Operation::Update, Some(object)) => updated(request, object, rules, mimeo_users),
        _ => unchanged(),
    }
}

fn unchanged() -> NamespaceDecision {
    NamespaceDecision {
        patch: Patch::default(),
        mark: Mark::Untouched,
        mark_first: false,
    }
}

fn created(
    request: &Request,
    object: &Value,
    rules: &impl Rules,
    token: &str,
) -> NamespaceDecision {
    let name = request
        .name
        .as_deref()
        .or_else(|| object["metadata"]["name"].as_str());
    let hint = name.map_or_else(
        || NameHint::Prefix(request.generate_name().unwrap_or_default()),
        NameHint::Exact,
    );
    let preset = mark(object);
    // Unknown rules may match.
    if !rules.known() || !rules.holding(hint, &labels(object)).is_empty() {
        if preset.is_some_and(|preset| rules.issued(preset)) {
            return unchanged();
        }
        return NamespaceDecision {
            patch: set_mark(object, token),
            mark: Mark::Set,
            ..unchanged()
        };
    }
    match preset {
        Some(_) => NamespaceDecision {
            patch: remove_mark(),
            mark: Mark::Stripped,
            ..unchanged()
        },
        None => unchanged(),
    }
}

fn updated(
    request: &Request,
    object: &Value,
    rules: &impl Rules,
    mimeo_users: &[String],
) -> NamespaceDecision {
    let old = request.old_object.as_ref().unwrap_or(&Value::Null);
    let mut decision = unchanged();
    if mark(old) != mark(object) && !mimeo_users.contains(&request.user.name) {
        decision.mark = Mark::Restored;
        decision.patch = mark(old).map_or_else(remove_mark, |token| set_mark(object, token));
    }
    let (before, after) = (labels(old), labels(object));
    let leaving = is_being_deleted(old) || is_being_deleted(object);
    // Pods of a marked namespace wait anyway, for whatever its labels ask for by then.
    if leaving || request.dry_run || mark(old).is_some() || before == after {
        return decision;
    }
    let hint = NameHint::Exact(request.name.as_deref().unwrap_or_default());
    let already = rules.holding(hint, &before);
    // Unknown rules may match.
    decision.mark_first = !rules.known()
        || rules
            .holding(hint, &after)
            .iter()
            .any(|rule| !already.contains(rule));
    decision
}

/// The mark that a namespace carries.
pub fn mark(namespace: &Value) -> Option<&str> {
    namespace.pointer(MARK_POINTER)?.as_str()
}

/// A namespace's labels but for the mark.
fn labels(namespace: &Value) -> Labels {
    let labels = namespace["metadata"]["labels"].as_object();
    let label =
        |(key, value): (&String, &Value)| Some((key.as_str().into(), value.as_str()?.into()));
    labels
        .into_iter()
        .flatten()
        .filter(|(key, _)| *key != MARK)
        .filter_map(label)
        .collect()
}

fn set_mark(namespace: &Value, token: &str) -> Patch {
    if namespace["metadata"]["labels"].is_object() {
        patch(json!([{"op": "add", "path": MARK_POINTER, "value": token}]))
    } else {
        patch(json!([{"op": "add", "path": "/metadata/labels", "value": {MARK: token}}]))
    }
}

fn remove_mark() -> Patch {
    patch(json!([{"op": "remove", "path": MARK_POINTER}]))
}

/// These operations, which are of the patch's own form.
pub(crate) fn patch(operations: Value) -> Patch {
    serde_json::from_value(operations).expect("a literal of the patch's own form")
}

/// The answer to a request that waits at the pod gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GateDecision {
    /// Go on.
    Admit {
        /// What is missing all the same, one sentence.
        warnings: Vec<String>,
    },
    /// A copy that is required can't be written now.
    Deny(String),
    /// Copies are on their way: wait, and when that takes too long come again. The message names
    /// them.
    Wait(String),
    /// The same where waiting here is of no use: come again at once.
    ComeAgain(String),
}

/// Decides about a pod (or another kind that waits) in `namespace`, which the API server has seen
/// marked.
pub fn pod_gate(namespace: &str, progress: &Progress) -> GateDecision {
    let Progress {
        seen,
        token,
        denied,
        excused,
        waiting,
        required,
        over_budget,
        early_kinds,
        uid: _,
    } = progress;
    let wait_for =
        |copies: &[AwaitedCopy]| format!("pods in {namespace} wait for {}", list(copies));
    if !seen {
        return GateDecision::Wait(still_reading(namespace));
    }
    if token.is_none() {
        return GateDecision::Admit { warnings: vec![] };
    }
    if !denied.is_empty() {
        return GateDecision::Deny(wait_for(denied));
    }
    if !waiting.is_empty() && (*required || !over_budget) {
        let message = wait_for(waiting);
        return if *early_kinds {
            GateDecision::ComeAgain(message)
        } else {
            GateDecision::Wait(message)
        };
    }
    // Each copy has a warning of its own: API servers cut one off after 256 characters.
    let absent: Vec<&AwaitedCopy> = waiting.iter().chain(excused).collect();
    let warning =
        |copy: &&AwaitedCopy| format!("pods in {namespace} start without {copy}. {}", see(copy));
    let mut warnings: Vec<String> = absent.iter().take(NAMED).map(warning).collect();
    if absent.len() > NAMED {
        warnings.push(format!(
            "pods in {namespace} also start without {}",
            plural::copies(absent.len() - NAMED)
        ));
    }
    GateDecision::Admit { warnings }
}

/// The message for pods of a namespace that this replica hasn't read yet.
pub fn still_reading(namespace: &str) -> String {
    format!("pods in {namespace} wait for its copies; Mimeo is still reading the namespace")
}

/// The first few of these copies, and where there is more about the first.
fn list(copies: &[AwaitedCopy]) -> String {
    let named: Vec<String> = copies
        .iter()
        .take(NAMED)
        .map(AwaitedCopy::to_string)
        .collect();
    let more = match copies.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    let see = copies
        .first()
        .map_or_else(String::new, |first| format!(". {}", see(first)));
    format!("{}{more}{see}", named.join("; "))
}

/// Where there is more about a copy. (Only `ClusterReplications` hold pods.)
fn see(copy: &AwaitedCopy) -> String {
    format!("See: kubectl describe crepl {}", copy.rule.name)
}

/// "Not now": the API server passes it on with its `Retry-After`, by which clients come again by
/// themselves.
pub fn come_again(message: String) -> Verdict {
    Verdict::Deny {
        code: 429,
        reason: "TooManyRequests",
        message,
        retry_after_seconds: Some(1),
    }
}

/// "No, unless something changes."
pub fn forbid(message: String) -> Verdict {
    Verdict::Deny {
        code: 403,
        reason: "Forbidden",
        message,
        retry_after_seconds: None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use super::*;
    use mimeo_model::{
        choices::PodGate,
        id::RuleKind,
        kind::GroupVersionKind,
        review::{GroupVersionResource, User},
    };

    /// A rule `gold` that holds namespaces labelled tier=gold, and a rule `team` for names that
    /// begin with `team-`.
    struct Fake {
        known: bool,
    }

    const FAKE: Fake = Fake { known: true };

    fn id(name: &str) -> RuleId {
        RuleId {
            kind: RuleKind::ClusterReplication,
            namespace: None,
            name: name.into(),
        }
    }

    impl Rules for Fake {
        fn known(&self) -> bool {
            self.known
        }

        fn holding(&self, hint: NameHint<'_>, labels: &Labels) -> BTreeSet<RuleId> {
            assert!(labels.get(MARK).is_none(), "the mark is nobody's label");
            let (NameHint::Exact(name) | NameHint::Prefix(name)) = hint;
            let gold = labels
                .get("tier")
                .is_some_and(|tier| tier == "gold")
                .then(|| id("gold"));
            gold.into_iter()
                .chain(name.starts_with("team-").then(|| id("team")))
                .collect()
        }

        fn issued(&self, token: &str) -> bool {
            token == "issued-here"
        }
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
            resource: GroupVersionResource {
                group: "".into(),
                version: "v1".into(),
                resource: "namespaces".into(),
            },
            sub_resource: None,
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

    fn decide(request: &Request, rules: &Fake) -> NamespaceDecision {
        namespace(request, rules, &["mimeo".into()], "fresh")
    }

    /// The mark after the decision's patch.
    #[track_caller]
    fn patched(request: &Request, decision: &NamespaceDecision) -> Option<String> {
        let mut object = request.object.clone().unwrap();
        json_patch::patch(&mut object, &decision.patch).unwrap();
        mark(&object).map(Into::into)
    }

    #[test]
    fn created_is_marked_if_a_rule_could_match_and_else_bare() {
        let unnamed = json!({"metadata": {"generateName": "team-"}});
        for (object, known, preset, want, does) in [
            (
                namespace_with(&[("tier", "gold")]),
                true,
                None,
                Some("fresh"),
                Mark::Set,
            ),
            (
                namespace_with(&[("tier", "gold")]),
                true,
                Some("guess"),
                Some("fresh"),
                Mark::Set,
            ),
            (
                namespace_with(&[("tier", "gold")]),
                true,
                Some("issued-here"),
                Some("issued-here"),
                Mark::Untouched,
            ),
            (namespace_with(&[]), true, None, None, Mark::Untouched),
            (
                namespace_with(&[]),
                true,
                Some("guess"),
                None,
                Mark::Stripped,
            ),
            (
                namespace_with(&[]),
                true,
                Some("issued-here"),
                None,
                Mark::Stripped,
            ),
            (namespace_with(&[]), false, None, Some("fresh"), Mark::Set),
            (unnamed.clone(), true, None, Some("fresh"), Mark::Set),
            (
                json!({"metadata": {"generateName": "shop-", "labels": null}}),
                true,
                None,
                None,
                Mark::Untouched,
            ),
        ] {
            let mut object = object;
            if let Some(preset) = preset {
                object["metadata"]["labels"][MARK] = preset.into();
            }
            let request = request(Operation::Create, None, object.clone());
            let decision = decide(&request, &Fake { known });
            assert_eq!(
                (patched(&request, &decision).as_deref(), decision.mark),
                (want, does),
                "{object}"
            );
            assert!(!decision.mark_first);
        }
    }

    #[test]
    fn only_mimeo_changes_the_mark() {
        let (marked, other, bare) = (
            namespace_with(&[(MARK, "t")]),
            namespace_with(&[(MARK, "x")]),
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
            let decision = decide(&request, &FAKE);
            assert_eq!(patched(&request, &decision).as_deref(), want, "{old} {new}");
            assert_eq!(
                decision.mark == Mark::Restored,
                mark(new) != want,
                "{old} {new}"
            );
            request.dry_run = true;
            assert_eq!(decide(&request, &FAKE).patch, decision.patch);
        }
    }

    #[test]
    fn a_namespace_is_marked_before_labels_bring_more_rules() {
        let (bare, gold) = (namespace_with(&[]), namespace_with(&[("tier", "gold")]));
        let other = namespace_with(&[("tier", "gold"), ("a", "b")]);
        let marked = namespace_with(&[(MARK, "t")]);
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
            let decision = decide(&request, &Fake { known });
            assert_eq!(decision.mark_first, want, "{what}");
        }
    }

    fn marked() -> Progress {
        Progress {
            seen: true,
            token: Some("t".into()),
            ..Progress::default()
        }
    }

    #[test]
    fn pods_wait_for_what_can_still_come() {
        let copy = |name: &str, why: Option<&str>| AwaitedCopy {
            copy: format!("Secret {name}"),
            rule: id("registry").into(),
            pod_gate: PodGate::Required,
            why: why.map(Into::into),
        };
        let waiting = Progress {
            waiting: vec![copy("a", None)],
            ..marked()
        };
        let excused = Progress {
            excused: vec![copy("b", Some("Conflict, an object of that name exists"))],
            ..marked()
        };
        let word = |decision: GateDecision| match decision {
            GateDecision::Admit { warnings } => format!("admit {}", warnings.join(" ")),
            GateDecision::Deny(message) => format!("deny {message}"),
            GateDecision::Wait(message) => format!("wait {message}"),
            GateDecision::ComeAgain(message) => format!("come again {message}"),
        };
        for (what, progress, begins, names) in [
            ("not seen", Progress::default(), "wait ", ""),
            (
                "no mark",
                Progress {
                    token: None,
                    ..waiting.clone()
                },
                "admit ",
                "",
            ),
            ("all there", marked(), "admit ", ""),
            ("on their way", waiting.clone(), "wait ", "Secret a"),
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
                "podGate Required): Conflict, an object of that name exists. See: kubectl describe crepl registry",
            ),
            (
                "must not",
                Progress {
                    denied: vec![copy("c", Some("SourceNotFound"))],
                    ..waiting
                },
                "deny pods in shop wait for Secret c (ClusterReplication/registry, podGate Required): SourceNotFound. See:",
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
            .map(|name| copy(name, None))
            .to_vec();
        let told = word(pod_gate(
            "shop",
            &Progress {
                excused: many,
                ..marked()
            },
        ));
        let last = "without Secret e (ClusterReplication/registry, podGate Required). See: kubectl describe crepl registry \
                    pods in shop also start without 2 copies";
        assert!(told.ends_with(last), "{told}");
        let denied = ["a", "b", "c", "d", "e", "f", "g"]
            .map(|name| copy(name, Some("Invalid")))
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
        let token_of = token("0f3e4d5c-1a2b-3c4d-5e6f-708192a3b4c5");
        assert_eq!(token_of.len(), 16);
        assert!(token_of.bytes().all(|b| b.is_ascii_hexdigit()));
        assert_ne!(token_of, token(""));
    }
}
