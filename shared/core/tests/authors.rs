//! A rule acts in its author's place, as long as there is one who may: what both programs do where that isn't so.

#![allow(clippy::unwrap_used)] // It is how a test fails.

mod common;

use std::time::Duration;

use jiff::Timestamp;
use mimeo_api::ClusterReplicationStatus;
use mimeo_core::{
    authority::Right,
    drift::Marked,
    engine::{Action, CopyWatch, Engine, Inquiry, Role, Settings, Verb},
    kind::{GroupVersionKind, Resource},
    outcome::{Outcome, Unreadable},
    review::User,
    rule::{Rule, RuleId, RuleKind, SourceRef},
    selection::{Labels, NameHint},
};
use serde_json::{Value, from_value, json};

use common::{author, vouch};

const UID: &str = "0f3e4d5c-1a2b-3c4d-5e6f-708192a3b4c5";

fn secrets() -> Resource {
    let gvk = GroupVersionKind::parse("v1", "Secret").unwrap();
    Resource { gvk, plural: "secrets".into(), namespaced: true }
}

fn rule(name: &str, generation: i64, spec: &Value) -> Rule {
    let mut rule = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication",
        "metadata": {"name": name, "uid": UID, "generation": generation, "resourceVersion": "2"},
        "spec": {
            "barrier": "Required", "driftPolicy": "Deny",
            "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": "platform", "name": "registry"}],
            "targets": [{"namespaces": ["team"]}],
        },
    });
    for (field, value) in spec.as_object().unwrap() {
        rule["spec"][field] = value.clone();
    }
    Rule::parse(&from_value(rule).unwrap()).unwrap()
}

/// An engine that knows all but rules; there is a namespace, which waits for its copies.
struct World {
    engine: Engine,
    now: Duration,
}

impl World {
    fn new(role: Role) -> Self {
        let now = Duration::from_secs(1);
        let mut engine = Engine::new(Settings::new(role, "cluster"));
        engine.rules_listed(RuleKind::ClusterReplication, &[].into(), now);
        engine.rules_unserved(RuleKind::Replication, now);
        engine.kinds_recorded(&[secrets().gvk].into(), now);
        let meta = json!({"name": "team", "uid": UID, "resourceVersion": "3", "labels": {"mimeo.dev/copies": "token"}});
        engine.namespace_applied(&from_value(meta).unwrap(), now);
        engine.namespaces_listed(&["team".into()].into(), now);
        engine.take_charge("team", now);
        Self { engine, now }
    }

    fn apply(&mut self, rule: Rule, author: Option<User>, status: Option<ClusterReplicationStatus>) -> RuleId {
        let (id, source) = (rule.id.clone(), rule.sources[0].clone());
        self.engine.rule_applied(id.clone(), Ok(rule), author, status, self.now);
        self.engine.kind(&secrets().gvk, Some(secrets()), self.now);
        self.show(&source, "one");
        id
    }

    fn show(&mut self, source: &SourceRef, value: &str) {
        self.engine.demand();
        let watch = CopyWatch { kind: secrets().gvk.group_kind(), namespace: None };
        self.engine.copies_listing(&watch, self.now);
        self.engine.copies_listed(&watch, 5, self.now);
        let object = json!({"metadata": {"name": &*source.name, "resourceVersion": "7"}, "data": {"a": value}});
        self.engine.source(source, Some(object), self.now);
    }

    /// A copy by that rule is in the namespace.
    fn copy_of(&mut self, rule: &str) {
        let entry = json!({"manager": "mimeo", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}});
        let copy = json!({
            "name": "registry", "namespace": "team", "uid": UID, "resourceVersion": "9", "managedFields": [entry],
            "labels": {"app.kubernetes.io/managed-by": "mimeo"},
            "annotations": {
                "mimeo.dev/rule": format!("ClusterReplication/{rule}"), "mimeo.dev/source": "v1/Secret/platform/registry",
                "mimeo.dev/cluster": "cluster",
            },
        });
        self.engine.copy_applied(&secrets().gvk.group_kind(), &from_value(copy).unwrap(), self.now);
    }

    fn open(&self) -> bool {
        !self.engine.open_inquiries(false).is_empty()
    }

    fn inquiry(&self) -> Inquiry {
        let mut inquiries = self.engine.inquiries();
        assert_eq!(inquiries.len(), 1);
        inquiries.remove(0)
    }

    fn answer(&mut self, answer: Result<bool, Unreadable>) {
        let inquiry = self.inquiry();
        let missing: Vec<&Right> = inquiry.needs.iter().take(1).map(|need| &need.right).collect();
        let answer = answer.map(|held| if held { &[][..] } else { &missing[..] });
        self.engine.answered(&inquiry, answer, self.now);
    }

    /// What is sent, long after anything happened.
    fn requests(&mut self) -> Vec<Verb> {
        self.now += Duration::from_mins(1);
        let actions = std::iter::from_fn(|| self.engine.next(self.now));
        let verbs = actions.filter_map(|action| match action {
            Action::Request(request) => Some(request.ticket.verb),
            Action::Errand(_) => None,
        });
        verbs.collect()
    }

    /// What a status says of the author: reasons of Ready and Authorized.
    fn told(&mut self) -> Option<(String, String, ClusterReplicationStatus)> {
        self.now += Duration::from_secs(10);
        let status = self.engine.statuses(self.now, Timestamp::UNIX_EPOCH).pop()?.status;
        let reason = |type_: &str| status.conditions.iter().find(|one| one.type_ == type_).unwrap().reason.clone();
        Some((reason("Ready"), reason("Authorized"), status.clone()))
    }

    /// Whether pods are denied, and whether they wait.
    fn held(&mut self) -> (Vec<String>, Vec<String>) {
        let progress = self.engine.progress("team", self.now);
        (progress.denied, progress.waiting)
    }
}

fn registry_in_team() -> Marked<'static> {
    Marked { kind: secrets().gvk.group_kind(), namespace: "team", name: "registry", source: None }
}

#[test]
fn nothing_is_written_before_the_author_was_asked_about() {
    let mut world = World::new(Role::Keeper);
    world.apply(rule("registry", 1, &json!({})), author(), None);
    assert_eq!((world.requests(), world.told()), (vec![], None), "half a picture is none");
    let inquiry = world.inquiry();
    assert!(world.open() && inquiry.author.name == "ann" && inquiry.needs.len() == 4, "{inquiry:?}");
    assert_eq!(world.held(), (vec![], vec!["Secret registry".to_owned()]));

    for (why, reason) in
        [(Unreadable::Unavailable, "Pending"), (Unreadable::Forbidden { verb: "create" }, "ControllerForbidden")]
    {
        world.answer(Err(why));
        assert!(world.requests().is_empty() && world.open());
        assert_eq!(world.told().unwrap().1, reason);
    }
    world.answer(Ok(true));
    assert_eq!(world.requests(), [Verb::Create]);
    assert_eq!(world.told().unwrap().1, "Allowed");
}

#[test]
fn a_question_that_is_not_answered_takes_no_right_away() {
    let mut world = World::new(Role::Keeper);
    world.apply(rule("registry", 1, &json!({})), author(), None);
    world.answer(Ok(true));
    world.answer(Err(Unreadable::Unavailable));
    assert_eq!(world.requests(), [Verb::Create]);
    let mut world = World::new(Role::Keeper);
    world.apply(rule("registry", 1, &json!({})), author(), None);
    world.answer(Ok(false));
    world.answer(Err(Unreadable::Unavailable));
    assert!(world.requests().is_empty());
}

#[test]
fn who_may_not_writes_nothing_and_hears_nothing_but_means_the_barrier() {
    let mut world = World::new(Role::Keeper);
    let id = world.apply(rule("registry", 1, &json!({})), author(), None);
    world.answer(Ok(false));
    assert!(world.requests().is_empty());
    let (ready, authorized, status) = world.told().unwrap();
    assert_eq!((ready.as_str(), authorized.as_str()), ("NotAuthorized", "AuthorDenied"));
    let message = &status.conditions[0].message;
    assert!(message.starts_with(r#"user "ann" may not get secrets/registry in namespace platform, and"#), "{message}");
    assert!(message.ends_with("kubectl annotate --overwrite clusterreplication registry mimeo.dev/author=me"));
    assert!(status.sources.is_empty() && status.copies.is_none() && status.failures.is_empty());
    assert_eq!(world.held(), (vec!["Secret registry (AuthorDenied)".to_owned()], vec![]));
    assert!(!world.engine.guards(&id, &registry_in_team()));

    // The webhook's part hears of it from that status, and of the next one.
    let mut webhook = World::new(Role::Injector);
    webhook.apply(rule("registry", 1, &json!({})), author(), Some(status.clone()));
    assert!(webhook.requests().is_empty());
    assert_eq!(webhook.held().0, ["Secret registry (AuthorDenied)"]);
    world.answer(Ok(true));
    assert_eq!(world.requests(), [Verb::Create]);
    webhook.apply(rule("registry", 1, &json!({})), author(), Some(world.told().unwrap().2));
    assert_eq!(webhook.requests(), [Verb::Create]);

    // Of another spec it says nothing.
    let mut webhook = World::new(Role::Injector);
    webhook.apply(rule("registry", 2, &json!({})), author(), Some(status));
    assert_eq!(webhook.requests(), [Verb::Create]);
}

#[test]
fn what_nobody_answers_for_wants_nothing_and_holds_nobody() {
    for role in [Role::Keeper, Role::Injector] {
        let mut world = World::new(role);
        let id = world.apply(rule("registry", 1, &json!({})), None, None);
        assert!(world.requests().is_empty() && world.engine.inquiries().is_empty());
        assert_eq!(world.held(), (vec![], vec![]));
        assert!(!world.engine.guards(&id, &registry_in_team()));
        assert_eq!(world.engine.inside().counts["slots"], 0, "nothing is made for it");
        let demand = world.engine.demand();
        assert!(demand.sources.is_empty() && demand.selectors.is_empty());
        let hint = NameHint::Exact("team");
        assert!(world.engine.barrier_rules(hint, &Labels::new()).is_empty());
        if role == Role::Keeper {
            let (ready, authorized, status) = world.told().unwrap();
            assert_eq!((ready.as_str(), authorized.as_str()), ("NotAuthorized", "AuthorUnknown"));
            assert!(status.sources.is_empty() && status.copies.is_none() && status.conditions.len() == 3);
        }

        // Somebody comes to, with the same spec.
        world.apply(rule("registry", 1, &json!({})), author(), None);
        assert_eq!(world.engine.inside().counts["slots"], 1);
        vouch(&mut world.engine, world.now);
        assert_eq!(world.engine.barrier_rules(hint, &Labels::new()).len(), 1);
        assert_eq!(world.requests(), [Verb::Create]);
    }
}

#[test]
fn a_rule_whose_author_may_has_the_copy_before_one_whose_author_may_not() {
    for denied in [None, author()] {
        let mut world = World::new(Role::Keeper);
        // By its name it would be the first.
        world.apply(rule("a", 1, &json!({})), denied.clone(), None);
        if denied.is_some() {
            world.answer(Ok(false));
        }
        world.apply(rule("b", 1, &json!({})), author(), None);
        for inquiry in world.engine.inquiries().iter().filter(|inquiry| &*inquiry.rule.name == "b") {
            world.engine.answered(inquiry, Ok(&[]), world.now);
        }
        assert_eq!(world.requests(), [Verb::Create]);
    }
}

#[test]
fn another_spec_another_author_and_another_kind_are_asked_about_anew() {
    let mut world = World::new(Role::Keeper);
    world.apply(rule("registry", 1, &json!({})), author(), None);
    world.answer(Ok(true));
    assert!(!world.open());
    // Its status was written, or a label.
    world.apply(rule("registry", 1, &json!({})), author(), None);
    assert!(!world.open());
    let late = world.inquiry();

    let bob = User { name: "bob".into(), ..User::default() };
    for (generation, author) in [(2, author()), (2, Some(bob))] {
        let version = world.engine.inquiry_version();
        world.apply(rule("registry", generation, &json!({})), author, None);
        assert!(world.open() && world.engine.inquiry_version() > version);
        // What was asked about the former is no answer.
        world.engine.answered(&late, Ok(&[]), world.now);
        assert!(world.open());
        world.answer(Ok(true));
        assert!(!world.open());
    }
    world.engine.kind(&secrets().gvk, None, world.now);
    assert!(world.inquiry().needs.is_empty(), "nothing can be written of it");
    world.engine.kind(&secrets().gvk, Some(secrets()), world.now);
    assert!(world.open() && world.inquiry().needs.len() == 4);
    assert!(world.requests().is_empty());
}

/// What a selector would find of it could not be asked for before.
#[test]
fn a_selectors_kind_that_comes_is_asked_about_too() {
    let mut world = World::new(Role::Keeper);
    let sources = json!([
        {"apiVersion": "v1", "kind": "Secret", "namespace": "platform", "name": "registry"},
        {"apiVersion": "v1", "kind": "ConfigMap", "namespace": "platform", "selector": {"matchLabels": {"share": "yes"}}},
    ]);
    world.apply(rule("registry", 1, &json!({"sources": sources})), author(), None);
    world.answer(Ok(true));
    assert!(!world.open());
    let gvk = GroupVersionKind::parse("v1", "ConfigMap").unwrap();
    world.engine.kind(
        &gvk,
        Some(Resource { gvk: gvk.clone(), plural: "configmaps".into(), namespaced: true }),
        world.now,
    );
    assert!(world.open());
}

/// It is ours, and of a namespace that matches no more.
#[test]
fn a_copy_is_not_deleted_for_who_may_not() {
    for (authorized, want) in [(Some(false), 0), (None, 0), (Some(true), 1)] {
        let mut world = World::new(Role::Keeper);
        world.apply(
            rule("registry", 1, &json!({"targets": [{"namespaces": ["other"]}]})),
            authorized.and(author()),
            None,
        );
        if let Some(held) = authorized {
            world.answer(Ok(held));
        }
        world.copy_of("registry");
        let sent = world.requests().len() + world.requests().len();
        assert_eq!(sent, want, "{authorized:?}");
    }
}

/// The webhook goes by the status: whoever was denied stays so until somebody says otherwise.
#[test]
fn a_denial_stays_said_over_a_restart_until_there_is_an_answer() {
    let mut world = World::new(Role::Keeper);
    world.apply(rule("registry", 1, &json!({})), author(), None);
    world.answer(Ok(false));
    let status = world.told().unwrap().2;

    let mut world = World::new(Role::Keeper);
    world.apply(rule("registry", 1, &json!({})), author(), Some(status));
    for why in [Unreadable::Unavailable, Unreadable::Forbidden { verb: "create" }] {
        world.answer(Err(why));
        assert_eq!(world.told(), None);
        assert!(world.requests().is_empty());
    }
    world.answer(Ok(true));
    assert_eq!(world.told().unwrap().1, "Allowed");
}

#[test]
fn a_status_that_somebody_else_wrote_is_put_right() {
    let mut world = World::new(Role::Keeper);
    world.apply(rule("registry", 1, &json!({})), author(), None);
    world.answer(Ok(false));
    let status = world.told().unwrap().2;
    world.apply(rule("registry", 1, &json!({})), author(), Some(status.clone()));
    assert_eq!(world.told(), None, "it is as it was written");
    let mut forged = status;
    forged.conditions.retain(|one| one.type_ != "Authorized");
    world.apply(rule("registry", 1, &json!({})), author(), Some(forged));
    assert_eq!(world.told().unwrap().1, "AuthorDenied");
}

#[test]
fn those_who_were_denied_are_asked_about_again() {
    let mut world = World::new(Role::Keeper);
    world.apply(rule("registry", 1, &json!({})), author(), None);
    world.answer(Ok(false));
    assert!(world.engine.any_denied() && !world.open());
    assert_eq!(world.engine.open_inquiries(true).len(), 1);
    world.answer(Ok(true));
    assert!(!world.engine.any_denied() && world.engine.open_inquiries(true).is_empty());
}

/// Another rule would keep it for good, whatever becomes of the author.
#[test]
fn a_copy_is_left_to_its_rule_while_nobody_may_answer_for_that() {
    for denied in [None, author()] {
        let mut world = World::new(Role::Keeper);
        world.apply(rule("z", 1, &json!({})), denied.clone(), None);
        if denied.is_some() {
            world.answer(Ok(false));
        }
        world.copy_of("z");
        world.apply(rule("a", 1, &json!({})), author(), None);
        for inquiry in world.engine.inquiries().iter().filter(|inquiry| &*inquiry.rule.name == "a") {
            world.engine.answered(inquiry, Ok(&[]), world.now);
        }
        assert!(world.requests().is_empty(), "{denied:?}");
        world.now += Duration::from_secs(10);
        let told = world.engine.statuses(world.now, Timestamp::UNIX_EPOCH);
        let other = told.iter().find(|update| &*update.id.name == "a").unwrap();
        assert_eq!(other.status.failures[0].reason, "RuleConflict");
        assert!(other.status.failures[0].message.contains("ClusterReplication/z"));
    }
}

/// Else no webhook that starts would ever be ready, and nobody could answer for the rule, for which he needs one.
#[test]
fn nobody_waits_for_what_is_looked_for_by_a_rule_that_nobody_answers_for() {
    let mut world = World::new(Role::Injector);
    let sources = json!([{"apiVersion": "v1", "kind": "Secret", "namespace": "platform", "selector": {}}]);
    let rule = rule("registry", 1, &json!({"sources": sources}));
    for (someone, informed) in [(None, true), (author(), false)] {
        world.engine.rule_applied(rule.id.clone(), Ok(rule.clone()), someone, None, world.now);
        let _ = world.engine.demand();
        assert_eq!(world.engine.informed(), informed);
    }
}

/// Anybody could have a rule stored that names it, and it would be kept from whoever may have it, or for ever.
#[test]
fn what_nobody_answers_for_makes_no_object_a_source() {
    for someone in [None, author()] {
        let mut world = World::new(Role::Keeper);
        let named = json!([{"apiVersion": "v1", "kind": "Secret", "namespace": "team", "name": "registry"}]);
        let selected = json!([{"apiVersion": "v1", "kind": "Secret", "namespace": "team", "selector": {}}]);
        for (name, sources) in [("named", named), ("selected", selected)] {
            let elsewhere =
                json!({"sources": sources, "targets": [{"namespaces": ["else"], "name": "$(source.name)"}]});
            let rule = rule(name, 1, &elsewhere);
            world.engine.rule_applied(rule.id.clone(), Ok(rule), someone.clone(), None, world.now);
        }
        world.engine.kind(&secrets().gvk, Some(secrets()), world.now);
        assert_eq!(world.engine.demand().selectors.len(), usize::from(someone.is_some()));
        world.apply(rule("registry", 1, &json!({"conflictPolicy": "Overwrite"})), author(), None);
        let inquiries = world.engine.inquiries();
        for inquiry in inquiries.iter().filter(|inquiry| &*inquiry.rule.name == "registry") {
            world.engine.answered(inquiry, Ok(&[]), world.now);
        }
        world.now += Duration::from_mins(1);
        let stranger = json!({"name": "registry", "namespace": "team", "uid": UID, "resourceVersion": "9"});
        let mut took = false;
        while let Some(action) = world.engine.next(world.now) {
            let Action::Request(request) = action else { continue };
            let outcome = match request.ticket.verb {
                Verb::Create => Outcome::Conflict,
                Verb::Look => Outcome::Object(from_value(stranger.clone()).unwrap()),
                Verb::Take(..) => {
                    took = true;
                    break;
                }
                verb => unreachable!("{verb:?}"),
            };
            world.engine.outcome(&request.ticket, outcome, world.now);
        }
        assert_eq!(took, someone.is_none());
    }
}

/// It was right as long as the author might.
#[test]
fn pods_do_not_wait_for_a_copy_that_is_there() {
    let mut world = World::new(Role::Keeper);
    world.apply(rule("registry", 1, &json!({})), author(), None);
    world.answer(Ok(false));
    assert_eq!(world.held().0, ["Secret registry (AuthorDenied)"]);
    world.copy_of("registry");
    assert_eq!(world.held(), (vec![], vec![]));
}
