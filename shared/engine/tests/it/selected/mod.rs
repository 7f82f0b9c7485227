//! Sources that a rule does not name. Either a selector finds them: they appear, stop matching,
//! disappear and are too many. Or the rule contains them inline.

#![allow(clippy::unwrap_used)] // It is how a test fails.

mod inline;
mod planned;
mod world;

use std::collections::BTreeSet;

use mimeo_api::ClusterReplicationStatus;
use mimeo_engine::Presence;
use mimeo_model::{
    kind::{GroupVersionKind, Resource},
    known::{Decoded, Known},
    rule::Rule,
};
use serde_json::{Value, from_value, json};

use crate::common::{gone, uid};
use world::{WRITTEN_AT, World, labelled, rule, secrets};

fn secret(name: &str) -> Value {
    secret_in("home", name)
}

fn secret_in(namespace: &str, name: &str) -> Value {
    json!({
        "metadata": {
            "namespace": namespace, "name": name, "resourceVersion": "9", "labels": {"copy": "yes"},
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "type": "Opaque",
    })
}

fn condition(status: &ClusterReplicationStatus, type_: &str) -> (String, String) {
    let condition = status
        .conditions
        .iter()
        .find(|one| one.type_ == type_)
        .unwrap();
    (
        format!("{} {}", condition.status, condition.reason),
        condition.message.clone(),
    )
}

fn simple() -> Vec<Rule> {
    vec![rule("r", &[labelled()], &["one", "two"], &json!({}))]
}

#[test]
fn sources_come_and_change_one_by_one() {
    let mut world = World::new(simple());
    world.settle();
    assert_eq!(world.written, 0);
    world.listed(&[]);
    let status = world.status();
    assert_eq!(status.source.as_deref(), Some("Secret home/(selector)"));
    assert_eq!(condition(&status, "Ready").0, "False SourceNotFound");
    world.listed(&[secret("a")]);
    assert_eq!(world.copies(), ["one/a", "two/a"]);
    world.shown(&secret("b"), true);
    assert_eq!(
        (world.copies(), world.written),
        (vec!["one/a", "one/b", "two/a", "two/b"], 4)
    );
    let mut changed = secret("a");
    changed["type"] = "example.com/other".into();
    world.shown(&changed, true);
    assert_eq!(world.written, 6, "one write for each copy of what changed");
    world.listed(&[changed, secret("b")]);
    assert_eq!(world.written, 6, "a new listing is no news");
    let status = world.status();
    assert_eq!(
        status
            .sources
            .iter()
            .map(|source| &*source.name)
            .collect::<Vec<_>>(),
        ["a", "b"]
    );
    assert_eq!(
        (
            status.copies.unwrap().desired,
            condition(&status, "Ready").0.as_str()
        ),
        (4, "True Synced")
    );
}

#[test]
fn a_deleted_source_takes_its_copies_along_after_the_grace() {
    let mut world = World::new(simple());
    world.listed(&[secret("a"), secret("b")]);
    world.read = Some(gone(Some(0)));
    world.shown(&secret("a"), false);
    world.wait(50);
    assert_eq!(world.copies().len(), 4);
    assert_eq!(
        condition(&world.status(), "SourcesFound").0,
        "False InGracePeriod"
    );
    world.shown(&secret("a"), true);
    world.wait(100);
    assert_eq!(
        (world.copies().len(), world.written),
        (4, 4),
        "it came back in time, which costs nothing"
    );
    world.shown(&secret("a"), false);
    world.wait(61);
    assert_eq!(world.copies(), ["one/b", "two/b"]);
    assert_eq!(
        world
            .confirmed
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
        ["v1/Secret/home/a"]
    );
}

/// No copy of the source would be deleted, so none sets a timer for the end of a grace period.
#[test]
fn no_grace_period_is_told_of_a_lost_source_whose_copies_are_retained() {
    let retains = json!({"retentionPolicy": {"whenUnmatched": "Retain"}});
    let mut world = World::new(vec![rule("r", &[labelled()], &["one"], &retains)]);
    world.listed(&[secret("a")]);
    let mut elsewhere = rule("r", &[labelled()], &["nowhere"], &retains);
    elsewhere.generation = 2;
    world
        .engine
        .at(world.now)
        .rule_applied(elsewhere.id.clone(), Ok(elsewhere), None);
    world.settle();
    assert_eq!(world.copies(), ["one/a"]);
    world.shown(&secret("a"), false);
    let found = condition(&world.status(), "SourcesFound").0;
    assert_eq!(found, "False SourceNotFound");
}

/// Two selectors of a rule find the same object.
#[test]
fn the_grace_of_a_source_begins_when_the_last_selector_has_lost_it() {
    let also = json!({"namespace": "home", "selector": {"matchLabels": {"also": "yes"}}});
    for selectors in [[labelled(), also.clone()], [also, labelled()]] {
        for (first, last) in [(0, 1), (1, 0)] {
            let mut world = World::new(vec![rule("r", &selectors, &["one"], &json!({}))]);
            world.listed(&[secret("a")]);
            world.read = Some(gone(Some(0)));
            let found = world.selectors();
            let lose = |world: &mut World, number: usize| {
                let source = found[number].source("a");
                world.engine.at(world.now).source(&source, None);
                world.settle();
            };
            lose(&mut world, first);
            world.wait(600);
            lose(&mut world, last);
            world.wait(50);
            assert_eq!(world.copies(), ["one/a"], "{first}");
            world.wait(11);
            assert_eq!(world.copies(), [""; 0], "{first}");
        }
    }
}

#[test]
fn a_source_that_is_there_after_all_loses_nothing() {
    let mut world = World::new(simple());
    world.listed(&[secret("a")]);
    world.shown(&secret("a"), false);
    world.wait(600);
    assert!(!world.confirmed.is_empty());
    assert_eq!(world.copies(), ["one/a", "two/a"]);
}

#[test]
fn a_loss_while_nothing_ran_is_told_by_the_copies() {
    for (policy, left) in [
        ("Delete", vec!["one/b", "two/b"]),
        ("Retain", vec!["one/a", "one/b", "two/a", "two/b"]),
    ] {
        let rules = || {
            let retention = json!({"retentionPolicy": {"whenSourceDeleted": policy}});
            vec![rule("r", &[labelled()], &["one", "two"], &retention)]
        };
        let mut world = World::new(rules());
        world.listed(&[secret("a"), secret("b")]);
        world.restart(rules());
        world.read = Some(gone(Some(0)));
        world.wait(600);
        assert_eq!(
            world.copies().len(),
            4,
            "before the listing nothing is lost"
        );
        world.listed(&[secret("b")]);
        world.wait(59);
        assert_eq!(world.copies().len(), 4, "the grace begins anew");
        world.wait(2);
        assert_eq!(world.copies(), left, "{policy}");
        assert_eq!(world.written, 4);
    }
}

/// The namespace was deleted and created again, empty, after the copies were written. No user has
/// deleted any of the sources.
#[test]
fn sources_that_went_with_a_former_namespace_are_lost_after_a_restart_too() {
    let all: Vec<Value> = (0..20)
        .map(|number| secret(&format!("s{number:02}")))
        .collect();
    for (created, left) in [(WRITTEN_AT, 40), (WRITTEN_AT - 1, 0)] {
        let mut world = World::new(simple());
        world.listed(&all);
        world.restart(simple());
        world.read = Some(gone(Some(created)));
        world.listed(&[]);
        world.wait(61);
        world.wait(61);
        assert_eq!(world.copies().len(), left);
        let held = world
            .status()
            .conditions
            .iter()
            .any(|condition| condition.reason == "DeletionHeld");
        assert_eq!(held, left > 0);
    }
}

#[test]
fn relabelling_is_collected_and_held_if_it_is_much() {
    let all: Vec<Value> = (0..20)
        .map(|number| secret(&format!("s{number:02}")))
        .collect();
    let mut world = World::new(simple());
    world.listed(&all);
    assert_eq!(world.copies().len(), 40);
    world.read = Some(Presence::Relabelled);
    world.shown(&all[0], false);
    world.wait(61);
    assert_eq!(world.copies().len(), 40, "collected for a while");
    world.wait(11);
    assert_eq!(world.copies().len(), 38);
    for object in &all[1..] {
        world.shown(object, false);
    }
    world.wait(61);
    world.wait(61);
    assert_eq!(world.copies().len(), 38, "more than half of them at once");
    assert_eq!(condition(&world.status(), "Stalled").0, "True DeletionHeld");
    world.listed(&all);
    world.wait(61);
    assert_eq!(world.copies().len(), 40);
    assert!(
        world
            .status()
            .conditions
            .iter()
            .all(|condition| condition.type_ != "Stalled")
    );
}

#[test]
fn another_selector_is_another_choice_and_no_selector_is_none() {
    let mut world = World::new(simple());
    world.listed(&[secret("a"), secret("b")]);
    world.read = Some(Presence::Relabelled);
    let generation = |mut rule: Rule| {
        rule.generation += 1;
        rule
    };
    let other = json!({"namespace": "home", "selector": {"matchLabels": {"copy": "b"}}});
    let rule_now = generation(rule("r", &[other], &["one", "two"], &json!({})));
    world
        .engine
        .at(world.now)
        .rule_applied(rule_now.id.clone(), Ok(rule_now.clone()), None);
    world.listed(&[secret("b")]);
    assert_eq!(
        (world.copies().len(), world.written),
        (4, 4),
        "what it finds still is written no more than before"
    );
    world.wait(61);
    world.wait(11);
    assert_eq!(
        world.copies(),
        ["one/b", "two/b"],
        "what it doesn't find is a lost source's"
    );
    let named = json!({"namespace": "home", "name": "c"});
    let named = generation(generation(rule("r", &[named], &["one", "two"], &json!({}))));
    let source = named.sources[0].clone();
    world
        .engine
        .at(world.now)
        .rule_applied(named.id.clone(), Ok(named), None);
    let _ = world.engine.demand();
    world
        .engine
        .at(world.now)
        .source(&source, Some(Decoded::Whole(secret("c"))));
    world.settle();
    assert_eq!(
        world.copies(),
        ["one/c", "two/c"],
        "a selector that was taken away takes its copies along at once"
    );
}

/// A rule gets a selector in place of a named source. The selector may find what replaces the copies
/// of that source.
#[test]
fn a_copy_stays_until_the_new_selector_is_listed() {
    let named = json!({"namespace": "home", "name": "a"});
    let from = rule("r", &[named], &["one"], &json!({}));
    let source = from.sources[0].clone();
    let mut world = World::new(vec![from]);
    let engine = world.engine.at(world.now);
    engine.source(&source, Some(Decoded::Whole(secret("a"))));
    world.settle();
    assert_eq!(world.copies(), ["one/a"]);
    let selected = json!({"namespace": "away", "selector": {"matchLabels": {"copy": "yes"}}});
    let mut to = rule("r", &[selected], &["one"], &json!({}));
    to.generation = 2;
    let engine = world.engine.at(world.now);
    engine.rule_applied(to.id.clone(), Ok(to), None);
    world.settle();
    assert_eq!(world.copies(), ["one/a"], "the selector is not listed yet");
    world.listed(&[secret_in("away", "b")]);
    assert_eq!(world.copies(), ["one/b"]);
}

/// Another copy of the same rule was in the place of the new copy. That this copy was correct
/// proves nothing about the new one.
#[test]
fn a_copy_that_moves_into_the_place_of_another_is_waited_for() {
    let named = |name: &str| json!({"namespace": "home", "name": name});
    let from = rule("r", &[named("a"), named("b")], &["one"], &json!({}));
    let [a, b] = [from.sources[0].clone(), from.sources[1].clone()];
    let mut world = World::new(vec![from]);
    for source in [&a, &b] {
        let object = json!({"metadata": {"resourceVersion": "9"}, "data": {"k": "eA=="}});
        world
            .engine
            .at(world.now)
            .source(source, Some(Decoded::Whole(object)));
    }
    world.settle();
    assert_eq!(world.copies(), ["one/a", "one/b"]);
    let keep = json!({"whenSourceDeleted": "Retain"});
    let to =
        json!({"retentionPolicy": keep, "targets": [{"namespaces": ["one"], "copyName": "b"}]});
    let mut to = rule("r", &[named("a")], &["one"], &to);
    to.generation = 2;
    world.engine.at(world.now).source(&a, None);
    world
        .engine
        .at(world.now)
        .rule_applied(to.id.clone(), Ok(to), None);
    world.wait(61);
    assert_eq!(
        world.copies(),
        ["one/a", "one/b"],
        "what the new one would be made of isn't there"
    );
}

#[test]
fn too_many_are_taken_by_their_age() {
    let aged = |number: usize| {
        let mut object = secret(&format!("s{:03}", 999 - number));
        object["metadata"]["creationTimestamp"] =
            format!("2026-01-01T00:{:02}:{:02}Z", number / 60, number % 60).into();
        object
    };
    let all: Vec<Value> = (0..300).map(aged).collect();
    let mut world = World::new(vec![rule("r", &[labelled()], &["one"], &json!({}))]);
    world.listed(&all);
    let oldest: BTreeSet<String> = all[..256]
        .iter()
        .map(|object| format!("one/{}", object["metadata"]["name"].as_str().unwrap()))
        .collect();
    assert_eq!(
        world.copies.keys().cloned().collect::<BTreeSet<_>>(),
        oldest
    );
    let status = world.status();
    let (reason, message) = condition(&status, "SourcesFound");
    assert!(
        reason == "False SourceRefused"
            && message.starts_with("the rule has too many sources, and Mimeo copies at most 256: "),
        "{reason} {message}"
    );
    assert_eq!(status.sources.len(), 32);
    let shown = status.source.as_deref().unwrap_or_default();
    assert!(shown.ends_with(" +255"), "{shown}");
    // A source that disappears makes room for the next one, which must be read again.
    world.read = Some(gone(Some(0)));
    world.shown(&all[0], false);
    let next = all[256]["metadata"]["name"].as_str().unwrap();
    assert_eq!(
        world
            .reads
            .iter()
            .map(|source| &*source.name)
            .collect::<Vec<_>>(),
        [next]
    );
    let source = world.reads[0].clone();
    world
        .engine
        .at(world.now)
        .source(&source, Some(Decoded::Whole(all[256].clone())));
    world.wait(61);
    world.wait(1);
    assert_eq!(world.copies.len(), 256);
    assert!(
        world.copies.contains_key(&format!("one/{next}")) && !world.copies.contains_key("one/s999")
    );
    // A restart leads to the same sources.
    let written = world.written;
    world.restart(vec![rule("r", &[labelled()], &["one"], &json!({}))]);
    world.listed(&all[1..]);
    world.wait(600);
    assert_eq!((world.copies.len(), world.written), (256, written));
}

/// If there are very many objects, only as many are kept in order as matter. Once these are gone,
/// the watch lists again.
#[test]
fn of_very_many_the_next_are_asked_for_when_the_first_have_gone() {
    let aged = |number: usize| {
        let mut object = secret(&format!("s{number:04}"));
        object["metadata"]["creationTimestamp"] =
            format!("2026-01-01T00:{:02}:{:02}Z", number / 60, number % 60).into();
        object
    };
    let all: Vec<Value> = (0..1100).map(aged).collect();
    let mut world = World::new(vec![rule("r", &[labelled()], &["one"], &json!({}))]);
    world.listed(&all);
    assert_eq!(world.copies.len(), 256);
    assert!(
        condition(&world.status(), "SourcesFound")
            .1
            .starts_with("the rule has too many sources, ")
    );
    world.read = Some(Presence::Relabelled);
    for object in &all[256..1000] {
        world.shown(object, false);
    }
    assert_eq!(world.selectors().len(), 1, "there are enough still");
    world.shown(&all[0], false);
    for object in &all[1000..1024] {
        world.shown(object, false);
    }
    assert_eq!(
        (world.selectors().len(), world.selectors().len()),
        (0, 1),
        "closed, and opened again"
    );
    world.wait(600);
    assert_eq!(
        world.copies.len(),
        256,
        "nothing is lost before it is known what there is"
    );
    let rest: Vec<Value> = [&all[1..256], &all[1024..]].concat();
    world.listed(&rest);
    // A namespace with many copies isn't planned twice in a short time.
    (0..4).for_each(|_| world.wait(61));
    let names: Vec<String> = rest[..256]
        .iter()
        .map(|one| format!("one/{}", one["metadata"]["name"].as_str().unwrap()))
        .collect();
    assert_eq!(world.copies(), names);
}

#[test]
fn what_no_copy_is_made_of_is_not_held() {
    let mut token = secret("token");
    token["type"] = "kubernetes.io/service-account-token".into();
    let grown = json!({"targets": [{"namespaces": ["home"], "copyName": "$(source.name)-x"}]});
    let mut world = World::new(vec![rule("r", &[labelled()], &[], &grown)]);
    world.listed(&[token.clone(), secret("a")]);
    let all: Vec<Value> = [token, secret("a"), world.copies["home/a-x"].clone()].into();
    world.listed(&all);
    let counts = world.engine.inside().counts;
    assert_eq!((counts["sources"], counts["sourcesHeld"]), (3, 1));
    // Another rule may copy the object as another type, so the object is read for it.
    let typed = json!({"transform": {"type": "Opaque"}});
    let other = rule("other", &[labelled()], &["two"], &typed);
    world
        .engine
        .at(world.now)
        .rule_applied(other.id.clone(), Ok(other), None);
    world.settle();
    let reads: BTreeSet<String> = world
        .reads
        .drain(..)
        .map(|source| source.name.to_string())
        .collect();
    assert_eq!(reads, ["token"].map(Into::into).into());
    world.listed(&all);
    assert_eq!(world.copies(), ["home/a-x", "two/a", "two/token"]);
}

#[test]
fn what_is_never_copied_is_passed_over() {
    let mut token = secret("token");
    token["type"] = "kubernetes.io/service-account-token".into();
    let mut world = World::new(simple());
    world.listed(&[token, secret("a")]);
    assert_eq!(world.copies(), ["one/a", "two/a"]);
    let status = world.status();
    assert_eq!(condition(&status, "Ready").0, "True Synced");
    let (reason, message) = condition(&status, "SourcesFound");
    assert!(
        reason == "True Found" && message.contains("v1/Secret/home/token is selected, but"),
        "{message}"
    );
}

#[test]
fn what_came_of_a_rule_is_never_its_source() {
    let grown =
        json!({"targets": [{"namespaces": ["home", "one"], "copyName": "$(source.name)-x"}]});
    let mut world = World::new(vec![rule("r", &[labelled()], &[], &grown)]);
    world.listed(&[secret("a")]);
    for _ in 0..5 {
        let here: Vec<Value> = std::iter::once(secret("a"))
            .chain(world.copies.values().cloned())
            .collect();
        world.listed(&here);
    }
    assert_eq!(world.copies(), ["home/a-x", "one/a-x"]);
    // The same holds after another client has removed Mimeo's labels and annotations.
    let mut bare = world.copies["home/a-x"].clone();
    bare["metadata"]["annotations"] = json!({});
    world.shown(&bare, true);
    assert_eq!(world.copies(), ["home/a-x", "one/a-x"]);
}

/// Rules may name copies as sources. Their selectors find no copy, whichever rule wrote it.
#[test]
fn a_selector_finds_no_copy() {
    let there =
        |from: &str| json!({"namespace": from, "selector": {"matchLabels": {"copy": "yes"}}});
    let to = |to: &[&str]| json!({"targets": [{"namespaces": to, "copyName": "$(source.name)-x"}]});
    let rules = vec![
        rule("a", &[there("home")], &[], &to(&["away"])),
        rule("b", &[there("away")], &[], &to(&["home", "one"])),
    ];
    let mut world = World::new(rules);
    for _ in 0..4 {
        let all: Vec<Value> = std::iter::once(secret("s"))
            .chain(world.copies.values().cloned())
            .collect();
        world.listed(&all);
    }
    assert_eq!(world.copies(), ["away/s-x"]);
    // Mimeo's label alone identifies a copy, and so does Mimeo's entry in `managedFields`.
    let copy = world.copies["away/s-x"].clone();
    for field in ["annotations", "managedFields"] {
        let mut changed = copy.clone();
        changed["metadata"][field] = Value::Null;
        world.shown(&changed, true);
        assert_eq!(world.copies(), ["away/s-x"], "without {field}");
    }
    // An object with neither is an original.
    let mut original = copy;
    for field in ["annotations", "managedFields"] {
        original["metadata"][field] = Value::Null;
    }
    world.shown(&original, true);
    assert_eq!(world.copies(), ["away/s-x", "home/s-x-x", "one/s-x-x"]);
}

#[test]
fn a_source_that_becomes_a_copy_loses_its_copies() {
    let mut world = World::new(simple());
    world.listed(&[secret("a"), secret("b")]);
    assert_eq!(world.copies(), ["one/a", "one/b", "two/a", "two/b"]);
    let mut taken = secret("a");
    taken["metadata"]["annotations"] = json!({"mimeo.dev/rule": "ClusterReplication/other"});
    world.shown(&taken, true);
    assert_eq!(
        world.copies().len(),
        4,
        "for as long as losses are collected"
    );
    world.wait(61);
    world.wait(11);
    assert_eq!(world.copies(), ["one/b", "two/b"]);
}

#[test]
fn copies_take_no_place_among_the_sources() {
    let mut world = World::new(simple());
    let copies = (0..400).map(|number| {
        let mut copy = secret(&format!("copy-{number}"));
        copy["metadata"]["annotations"] = json!({"mimeo.dev/rule": "ClusterReplication/other"});
        copy
    });
    let all: Vec<Value> = copies.chain([secret("z")]).collect();
    world.listed(&all);
    assert_eq!(world.copies(), ["one/z", "two/z"]);
    assert_eq!(condition(&world.status(), "SourcesFound").0, "True Found");
}

/// The same as with a named source: a copy is deleted with its source, even if another rule names
/// the copy as its own source.
#[test]
fn a_copy_that_feeds_another_rule_goes_with_its_source() {
    let from_copy = json!({"namespace": "one", "name": "a"});
    let rules = vec![
        simple().remove(0),
        rule("younger", &[from_copy], &["away"], &json!({})),
    ];
    let mut world = World::new(rules);
    world.listed(&[secret("a")]);
    assert_eq!(world.copies(), ["one/a", "two/a"]);
    world.read = Some(gone(Some(0)));
    world.shown(&secret("a"), false);
    world.wait(61);
    world.wait(1);
    assert_eq!(world.copies(), [""; 0]);
}

#[test]
fn nothing_is_written_over_a_source() {
    // The copy of `a` would have the same name as the source `a-x`.
    let named = json!({"targets": [{"namespaces": ["home", "one"], "copyName": "$(source.name)-x"}], "conflictPolicy": "Overwrite"});
    let mut world = World::new(vec![rule("r", &[labelled()], &[], &named)]);
    world.listed(&[secret("a"), secret("a-x")]);
    assert_eq!(world.copies(), ["home/a-x-x", "one/a-x", "one/a-x-x"]);
}

#[test]
fn pods_wait_until_it_is_known_what_is_selected() {
    let required = json!({"podGate": "Required"});
    let mut world = World::new(vec![rule("r", &[labelled()], &["one"], &required)]);
    let marked = json!({"name": "one", "uid": uid(2), "resourceVersion": "6", "labels": {"mimeo.dev/copies": "token"}});
    world
        .engine
        .at(world.now)
        .namespace_applied(&from_value(marked).unwrap());
    world.settle();
    let progress = world.engine.at(world.now).progress("one");
    assert_eq!(
        progress.waiting[0].copy,
        "copies of the Secret objects that a selector finds in namespace home"
    );
    assert!(progress.required);
    world.listed(&[]);
    let progress = world.engine.at(world.now).progress("one");
    assert!(crate::common::ready(&progress));
    world.listed(&[secret("a")]);
    let progress = world.engine.at(world.now).progress("one");
    assert_eq!(
        (progress.waiting.len(), &*progress.waiting[0].copy),
        (1, "Secret a")
    );
}

#[test]
fn a_kind_that_comes_later_brings_its_sources() {
    let widgets = GroupVersionKind::parse("example.com/v1", "Widget").unwrap();
    let selector = json!({"apiVersion": "example.com/v1", "kind": "Widget", "namespace": "home", "selector": {}});
    let mut world = World::new(vec![rule("r", &[selector], &["one"], &json!({}))]);
    assert!(world.selectors().is_empty());
    world.engine.at(world.now).kind(&widgets, Known::Unserved);
    assert_eq!(
        condition(&world.status(), "SourcesFound").0,
        "False KindNotServed"
    );
    let resource = Resource {
        gvk: widgets.clone(),
        plural: "widgets".into(),
        namespaced: true,
    };
    world
        .engine
        .at(world.now)
        .kind(&widgets, Known::Listed(resource));
    world
        .engine
        .at(world.now)
        .kinds_recorded(&[secrets(), widgets.clone()].into());
    let _ = world.engine.demand();
    world
        .engine
        .at(world.now)
        .copies_listing(&widgets.group_kind().into());
    world
        .engine
        .at(world.now)
        .copies_known(&widgets.group_kind().into(), Known::Listed(1_000_000));
    world.listed(&[secret("a")]);
    assert_eq!(world.copies(), ["one/a"]);
    // If only its kind has disappeared, no read proves that the object is gone.
    world.engine.at(world.now).kind(&widgets, Known::Unserved);
    let _ = world.engine.demand();
    world.wait(600);
    assert_eq!(world.copies(), ["one/a"]);
}

/// The lost source has no projection any more, and its rule is updated before the Event is due.
#[test]
fn what_a_selector_lost_is_told_whatever_else_its_rule_comes_to_say() {
    let of = |spec: &Value| rule("r", &[labelled()], &["one"], spec);
    let mut world = World::new(vec![of(&json!({}))]);
    world.listed(&[secret("a")]);
    world.shown(&secret("a"), false);
    world.store(of(&json!({"resyncSeconds": 3600})), 2);
    let mut told = BTreeSet::new();
    for _ in 0..10 {
        world.wait(1);
        told.extend(
            world
                .engine
                .at(world.now)
                .event_updates()
                .into_iter()
                .map(|one| one.reason.as_str()),
        );
    }
    assert!(told.contains("SourceGone"), "{told:?}");
}
