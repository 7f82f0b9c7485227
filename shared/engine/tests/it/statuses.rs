//! Contents of a rule's status: its size limits, and the generation of the rule that it describes.

#![allow(clippy::unwrap_used)] // It is how a test fails.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use mimeo_api::{ClusterReplicationStatus, PlannedCopy};
use mimeo_engine::{Action, Engine, Settings};
use mimeo_model::{
    id::{RuleId, RuleKind},
    kind::Resource,
    known::{Decoded, Known},
    outcome::{Failure, FailureReason, Outcome},
    refusal::{Refusal, Refused},
    role::Role,
    rule::Rule,
};
use serde_json::{Value, from_value, json};

use crate::common::uid;

const NOW: Duration = Duration::from_secs(100);
/// The number of the rule's sources. Each has a copy in each namespace.
const SOURCES: usize = 32;
const NAMESPACES: usize = 2;
const COPIES: i32 = 64;

/// Names of a certain length. The long ones are the longest that the API server accepts.
struct Names {
    name: usize,
    label: usize,
    group: String,
}

impl Names {
    fn short() -> Self {
        Self {
            name: 8,
            label: 8,
            group: "example.com".into(),
        }
    }

    fn longest() -> Self {
        let label = "g".repeat(63);
        Self {
            name: 253,
            label: 63,
            group: [&*label, &*label, &*label, &label[..61]].join("."),
        }
    }

    fn name(&self, number: usize) -> String {
        format!("{number:02}{}", "s".repeat(self.name - 2))
    }

    fn label(&self, number: usize) -> String {
        format!("n{number}{}", "s".repeat(self.label - 2))
    }

    fn rule(&self, generation: i64, suspend: bool) -> Rule {
        let (api_version, kind) = (format!("{}/v1", self.group), "K".repeat(self.label));
        let source = |number| json!({"apiVersion": api_version, "kind": kind, "namespace": self.label(9), "name": self.name(number)});
        let sources: Vec<Value> = (0..SOURCES).map(source).collect();
        let namespaces: Vec<String> = (0..NAMESPACES).map(|number| self.label(number)).collect();
        let rule = json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication",
            "metadata": {"name": self.name(0), "uid": uid(0), "generation": generation},
            "spec": {"sources": sources, "targets": [{"namespaces": namespaces}], "suspend": suspend},
        });
        Rule::parse(&from_value(rule).unwrap()).unwrap()
    }
}

/// A rule with such names.
struct World {
    engine: Engine,
    names: Names,
    id: RuleId,
    now: Duration,
}

impl World {
    fn new(names: Names) -> Self {
        let mut engine = Engine::new(Settings::new(Role::Keeper, "cluster"));
        let rule = names.rule(1, false);
        let (id, sources) = (rule.id.clone(), rule.sources.clone());
        engine.at(NOW).rule_applied(id.clone(), Ok(rule), None);
        engine.at(NOW).rules_known(
            RuleKind::ClusterReplication,
            Known::Listed(&[id.clone()].into()),
        );
        engine
            .at(NOW)
            .rules_known(RuleKind::Replication, Known::Unserved);
        let mut listed: BTreeSet<Box<str>> = BTreeSet::new();
        for number in 0..NAMESPACES {
            let meta = json!({"name": names.label(number), "uid": uid(1000 + number), "resourceVersion": "5"});
            engine.at(NOW).namespace_applied(&from_value(meta).unwrap());
            listed.insert(names.label(number).into());
        }
        engine.at(NOW).namespaces_listed(&listed);
        let kind = sources[0].gvk.clone();
        engine.at(NOW).kinds_recorded(&[kind.clone()].into());
        engine.at(NOW).kind(
            &kind,
            Known::Listed(Resource {
                gvk: kind.clone(),
                plural: "things".into(),
                namespaced: true,
            }),
        );
        let _ = engine.demand();
        engine.at(NOW).copies_listing(&kind.group_kind().into());
        engine
            .at(NOW)
            .copies_known(&kind.group_kind().into(), Known::Listed(6));
        for source in &sources {
            engine.at(NOW).source(
                source,
                Some(Decoded::Whole(
                    json!({"metadata": {"resourceVersion": u64::MAX.to_string()}}),
                )),
            );
        }
        Self {
            engine,
            names,
            id,
            now: NOW,
        }
    }

    /// The world after every copy was tried and none was written.
    fn failed(names: Names) -> Self {
        let mut world = Self::new(names);
        assert_eq!(world.fail(), COPIES);
        world
    }

    /// Refuses all requests, with long messages.
    fn fail(&mut self) -> i32 {
        let mut requests = 0;
        while let Some(action) = self.engine.at(self.now).next_action() {
            if let Action::Request(request) = action {
                let failure = Failure {
                    reason: FailureReason::AdmissionDenied,
                    message: "nö, ".repeat(500).into(),
                };
                self.engine
                    .at(self.now)
                    .outcome(&request, Outcome::Refused(failure));
                requests += 1;
            }
        }
        requests
    }

    fn apply(&mut self, rule: Result<Rule, Refused>) {
        self.engine
            .at(self.now)
            .rule_applied(self.id.clone(), rule, None);
    }

    fn status(&mut self) -> ClusterReplicationStatus {
        self.now += Duration::from_secs(2);
        let mut told = self.engine.at(self.now).statuses(Timestamp::UNIX_EPOCH);
        assert_eq!(told.len(), 1);
        told.remove(0).status
    }
}

fn planned(status: &ClusterReplicationStatus) -> &[PlannedCopy] {
    status.plan.as_ref().map_or(&[], |plan| &plan.copies)
}

#[test]
fn twenty_failures_and_twenty_planned_copies_are_named_and_all_are_counted() {
    let mut world = World::failed(Names::short());
    let status = world.status();
    assert_eq!(
        status.copies.map(|copies| (copies.desired, copies.failed)),
        Some((COPIES, COPIES))
    );
    assert_eq!((status.failures.len(), status.sources.len()), (20, SOURCES));
    let first = (&*world.names.label(0), &*world.names.name(0));
    assert_eq!(
        (&*status.failures[0].namespace, &*status.failures[0].name),
        first
    );
    assert_eq!(status.failures[0].message.chars().count(), 300);

    world.apply(Ok(world.names.rule(2, true)));
    let status = world.status();
    assert_eq!(status.plan.as_ref().map(|plan| plan.create), Some(COPIES));
    let named: Vec<(&str, &str)> = planned(&status)
        .iter()
        .map(|copy| (&*copy.namespace, &*copy.name))
        .collect();
    let (namespace, names) = (
        world.names.label(0),
        (0..20)
            .map(|number| world.names.name(number))
            .collect::<Vec<_>>(),
    );
    assert_eq!(
        named,
        names
            .iter()
            .map(|name| (&*namespace, &**name))
            .collect::<Vec<_>>()
    );
}

/// Even the longest names make no status of 16 KiB. Failures are listed while there is room. Every
/// condition and number is complete.
#[test]
fn a_status_stays_below_16_kib_whatever_the_names() {
    let mut world = World::failed(Names::longest());
    let failing = world.status();
    world.apply(Ok(world.names.rule(2, true)));
    let suspended = world.status();
    for status in [&failing, &suspended] {
        let size = serde_json::to_string(status).unwrap().len();
        assert!((12 * 1024..16 * 1024).contains(&size), "{size}");
        let conditions: Vec<&str> = status
            .conditions
            .iter()
            .map(|condition| &*condition.type_)
            .collect();
        assert_eq!(
            conditions,
            ["Ready", "SourcesFound", "Authorized", "PodGateActive"]
        );
        assert_eq!(status.copies.map(|copies| copies.desired), Some(COPIES));
    }
    // Not all failures fit beside the conditions. The list of sources leaves room for the plan.
    assert!(
        (10..20).contains(&failing.failures.len()),
        "{}",
        failing.failures.len()
    );
    assert_eq!((failing.sources.len(), planned(&suspended).len()), (0, 20));
    assert_eq!(
        suspended.plan.as_ref().map(|plan| plan.create),
        Some(COPIES)
    );
}

#[test]
fn a_rule_is_reconciling_while_its_copies_are_being_written_and_nothing_has_failed() {
    let mut world = World::new(Names::short());
    let told = |status: &ClusterReplicationStatus| {
        let told = status
            .conditions
            .iter()
            .map(|one| format!("{} {} {}", one.type_, one.status, one.reason));
        told.filter(|one| one.starts_with("Re")).collect::<Vec<_>>()
    };
    let status = world.status();
    assert_eq!(
        told(&status),
        ["Ready False Pending", "Reconciling True Pending"]
    );
    world.fail();
    let status = world.status();
    assert_eq!(told(&status), ["Ready False CopiesFailed"]);
    let places = format!("{}, {}", world.names.label(0), world.names.label(1));
    let message = format!(
        "64 of 64 copies failed, first with AdmissionDenied: in namespaces {places}; exempt Mimeo's \
         copies from the admission plugin, policy or webhook that denies them"
    );
    assert_eq!(status.conditions[0].message, message);
}

#[test]
fn what_could_not_be_written_is_written_anew_and_has_not_changed_meanwhile() {
    let mut world = World::failed(Names::short());
    let first = world.status();
    world.engine.at(world.now).status_failed(&world.id);
    world.now += Duration::from_secs(5);
    let told = world
        .engine
        .at(world.now)
        .statuses(Timestamp::from_second(60).unwrap());
    assert_eq!(told.len(), 1);
    assert_eq!(
        told[0].status, first,
        "its conditions have the times of their last change"
    );
}

#[test]
fn a_rule_that_is_refused_says_so_of_its_present_generation_and_keeps_its_copies() {
    let mut world = World::failed(Names::short());
    // This holds for any quoted character.
    for quoted in ["a", "\u{1}", "\"", "\u{1f600}"] {
        let refusal = Refusal {
            field: "spec.targets[0].namespacePattern".into(),
            message: quoted.repeat(5000),
        };
        world.apply(Err(Refused {
            generation: 7,
            created: Timestamp::MAX,
            refusals: vec![refusal],
        }));
        let status = world.status();
        assert_eq!(status.observed_generation, Some(7));
        let told: Vec<_> = status
            .conditions
            .iter()
            .map(|one| (&*one.type_, &*one.status, &*one.reason))
            .collect();
        assert_eq!(
            told,
            [
                ("Ready", "False", "InvalidSpec"),
                ("Stalled", "True", "InvalidSpec")
            ]
        );
        for condition in &status.conditions {
            assert_eq!(condition.observed_generation, Some(7));
            assert!(condition.message.contains(quoted), "{}", condition.message);
        }
        assert!(serde_json::to_string(&status).unwrap().len() < 16 * 1024);
        assert_eq!(world.fail(), 0, "nothing is asked of the API server");
    }
}
