//! Previews: the effects of a rule before it is stored.

#![allow(clippy::unwrap_used)] // It is how a test fails.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use mimeo_engine::{Contest, Engine, Preview, Settings};
use mimeo_model::{id::RuleKind, known::Known, role::Role, rule::Rule};
use serde_json::{Value, from_value, json};

const NOW: Duration = Duration::from_secs(1);

fn object(name: &str, created: Option<&str>, source: &str, targets: &Value) -> Value {
    json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication",
        "metadata": {"name": name, "creationTimestamp": created},
        "spec": {
            "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": "home", "name": source}],
            "targets": targets,
        },
    })
}

fn rule(name: &str, created: Option<&str>, source: &str, targets: &Value) -> Rule {
    let rule = object(name, created, source, targets);
    Rule::parse(&from_value(rule).unwrap()).unwrap()
}

fn globs(globs: &[&str]) -> Value {
    json!([{"namespaces": globs}])
}

/// The engine of a webhook replica, with these rules. It has `namespaces` namespaces named `a-0`,
/// `a-1` and so on, and as many named `b-0`, `b-1` and so on.
fn engine(rules: &[Rule], namespaces: usize) -> Engine {
    let mut engine = Engine::new(Settings::new(Role::Injector, "cluster"));
    for rule in rules {
        engine
            .at(NOW)
            .rule_applied(rule.id.clone(), Ok(rule.clone()), None);
    }
    let mut listed: BTreeSet<Box<str>> = BTreeSet::new();
    for number in 0..2 * namespaces {
        let name = format!("{}-{}", if number % 2 == 0 { "a" } else { "b" }, number / 2);
        let uid = crate::common::uid(number);
        let meta = json!({"name": name, "uid": uid, "resourceVersion": "5"});
        engine.at(NOW).namespace_applied(&from_value(meta).unwrap());
        listed.insert(name.into());
    }
    engine.at(NOW).namespaces_listed(&listed);
    engine
}

fn told(contest: &Contest) -> (String, String, bool, Vec<&str>) {
    let Contest {
        other,
        kind,
        name,
        lost,
        namespaces,
    } = contest;
    (
        other.to_string(),
        format!("{kind} {name}"),
        *lost,
        namespaces.iter().map(|name| &**name).collect(),
    )
}

/// Returns the preview of a rule with only named sources.
fn preview_of(engine: &Engine, rule: &Rule, before: Option<&Rule>) -> Preview {
    engine.index().preview(rule, before)
}

#[test]
fn namespaces_are_counted_and_those_that_are_lost() {
    let engine = engine(&[], 3);
    let before = rule("r", None, "s", &globs(&["a-*"]));
    let preview = preview_of(&engine, &before, None);
    assert_eq!((preview.matching, preview.all, preview.lost), (3, 6, 0));
    let preview = preview_of(
        &engine,
        &rule("r", None, "s", &globs(&["a-0", "b-*"])),
        Some(&before),
    );
    assert_eq!((preview.matching, preview.all, preview.lost), (4, 6, 2));
}

#[test]
fn another_rule_for_the_same_copies_is_found_where_both_want_them() {
    let other = rule("other", Some("2026-01-01T00:00:00Z"), "s", &globs(&["a-*"]));
    let unlike = rule("unlike", Some("2026-01-01T00:00:00Z"), "t", &globs(&["*"]));
    let engine = engine(&[other, unlike], 3);
    let new = rule("r", None, "s", &globs(&["a-1", "a-2", "b-*"]));
    let preview = preview_of(&engine, &new, None);
    let contests: Vec<_> = preview.contests.iter().map(told).collect();
    let older = (
        "ClusterReplication/other".to_owned(),
        "Secret s".to_owned(),
        true,
        vec!["a-1", "a-2"],
    );
    assert_eq!(contests, [older]);

    // A copy elsewhere, under another name, or already wanted before is not reported.
    assert_eq!(
        preview_of(&engine, &rule("r", None, "s", &globs(&["b-*"])), None).contests,
        []
    );
    let renamed = json!([{"namespaces": ["*"], "copyName": "u"}]);
    assert_eq!(
        preview_of(&engine, &rule("r", None, "s", &renamed), None).contests,
        []
    );
    assert_eq!(preview_of(&engine, &new, Some(&new)).contests, []);
    // A rule does not contest its own copies.
    assert_eq!(
        preview_of(&engine, &rule("other", None, "s", &globs(&["a-*"])), None).contests,
        []
    );
}

#[test]
fn the_older_rule_comes_first_and_the_copies_of_several_targets_count() {
    let other = rule(
        "other",
        Some("2026-01-02T00:00:00Z"),
        "t",
        &json!([{"namespaces": ["b-*"], "copyName": "s"}]),
    );
    let engine = engine(&[other], 2);
    let targets = json!([{"namespaces": ["a-*"]}, {"namespaces": ["b-1"], "copyName": "s"}]);
    let preview = preview_of(
        &engine,
        &rule("r", Some("2026-01-01T00:00:00Z"), "x", &targets),
        None,
    );
    let contests: Vec<_> = preview.contests.iter().map(told).collect();
    assert_eq!(
        contests,
        [(
            "ClusterReplication/other".to_owned(),
            "Secret s".to_owned(),
            false,
            vec!["b-1"]
        )]
    );
}

/// The preview tells the author the result that then happens.
#[test]
fn whoever_is_said_to_have_the_copy_gets_it() {
    for created in ["2026-01-01T00:00:00Z", "2026-01-03T00:00:00Z"] {
        let other = rule("other", Some("2026-01-02T00:00:00Z"), "s", &globs(&["a-*"]));
        let new = rule("r", Some(created), "s", &globs(&["*"]));
        let preview = preview_of(&engine(std::slice::from_ref(&other), 1), &new, None);
        assert_eq!(preview.contests[0].lost, created > "2026-01-02");

        let mut keeper = Engine::new(Settings::new(Role::Keeper, "cluster"));
        for rule in [&other, &new] {
            keeper
                .at(NOW)
                .rule_applied(rule.id.clone(), Ok(rule.clone()), None);
        }
        keeper.at(NOW).rules_known(
            RuleKind::ClusterReplication,
            Known::Listed(&[other.id.clone(), new.id.clone()].into()),
        );
        keeper
            .at(NOW)
            .rules_known(RuleKind::Replication, Known::Unserved);
        let meta = json!({"name": "a-0", "uid": "00000000-0000-4000-8000-000000000001", "resourceVersion": "5"});
        keeper.at(NOW).namespace_applied(&from_value(meta).unwrap());
        let _ = keeper.at(NOW).next_action();
        let later = NOW + Duration::from_secs(5);
        let told = keeper.at(later).event_updates();
        let loser = if preview.contests[0].lost {
            "r"
        } else {
            "other"
        };
        assert_eq!(told[0].regarding.name.as_deref(), Some(loser), "{told:#?}");
    }
}

/// The number of rules and namespaces does not delay the author's request.
#[test]
fn ten_thousand_namespaces_and_a_thousand_rivals_take_a_bounded_number_of_questions() {
    let rivals: Vec<Rule> = (0..1000)
        .map(|number| {
            rule(
                &format!("r{number}"),
                Some("2026-01-01T00:00:00Z"),
                "s",
                &globs(&["a-*"]),
            )
        })
        .collect();
    let engine = engine(&rivals, 5000);
    let begun = Instant::now();
    let preview = preview_of(&engine, &rule("new", None, "s", &globs(&["*"])), None);
    assert_eq!((preview.matching, preview.contests.len()), (10_000, 1000));
    let found: usize = preview
        .contests
        .iter()
        .map(|contest| contest.namespaces.len())
        .sum();
    // Each question compares two names.
    assert!(found <= 25_000, "{found} in {:?}", begun.elapsed());
}
