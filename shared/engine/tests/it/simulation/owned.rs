//! Field ownership of copies. Other managers become owners of a copy's fields, or the entries in
//! `managedFields` are removed. Mimeo still restores the copy, and the fields of other managers
//! stay theirs.

use std::time::Duration;

use mimeo_model::{names, role::Role};

use super::{
    server::{Key, Object, Res},
    spec::{Keep, RuleSpec, Select},
    world::{Act, Move, World},
};

const NOTE: &str = "ann/note";

fn put(spec: RuleSpec) -> Act {
    Act::PutRule(0, Box::new(spec))
}

fn rule() -> RuleSpec {
    RuleSpec::of(0, Select::Names(&["q"]))
}

#[track_caller]
fn calm(world: &mut World) {
    world.calm().unwrap_or_else(|why| panic!("{why}"));
}

#[track_caller]
fn run(world: &mut World, acts: &[Act]) {
    for act in acts {
        world.act(act);
        calm(world);
    }
}

/// Makes one copy in namespace q. Its source has the annotation `note`.
fn begun(spec: RuleSpec) -> World {
    let mut world = World::new(&[Role::Keeper], 64);
    run(
        &mut world,
        &[
            Act::PutSource(0, "v1"),
            Act::Annotate(0, true, "v1"),
            put(spec),
        ],
    );
    assert_eq!(copy(&world).field(NOTE), Some("v1"));
    world.programs[0].requests.clear();
    world
}

fn copy(world: &World) -> Object {
    (**world
        .server
        .get(&Key::new(Res::Secret, "q", "s1"))
        .expect("the copy"))
    .clone()
}

fn managers(object: &Object) -> Vec<&str> {
    object
        .entries
        .iter()
        .map(|entry| entry.manager.as_str())
        .collect()
}

#[track_caller]
fn sent<const N: usize>(world: &mut World, wanted: [(&'static str, usize); N]) {
    let requests = std::mem::take(&mut world.programs[0].requests);
    assert_eq!(requests, wanted.into(), "{}", world.report("sent"));
}

#[test]
fn a_copy_that_nobody_owns_is_ours_again_and_loses_what_its_source_loses() {
    let mut world = begun(rule());
    run(&mut world, &[Act::Disown(0)]);
    sent(&mut world, [("apply", 1)]);
    assert!(copy(&world).ours());
    run(&mut world, &[Act::Annotate(0, true, "bad")]);
    sent(&mut world, [("apply", 1), ("claim", 1)]);
    assert_eq!(
        copy(&world).field(NOTE),
        None,
        "though before-first-apply had it"
    );
    assert_eq!(managers(&copy(&world)), [names::MANAGER]);
    run(&mut world, &[Act::PutSource(0, "v2")]);
    sent(&mut world, [("apply", 1)]);
}

/// If the source has lost a key, the former owner of that field is unknown.
#[test]
fn a_copy_that_nobody_owns_while_its_source_changes_is_what_its_source_is() {
    let mut world = begun(rule());
    world.act(&Act::Disown(0));
    world.act(&Act::Annotate(0, true, "bad"));
    calm(&mut world);
    sent(&mut world, [("apply", 2), ("claim", 1)]);
    assert_eq!(copy(&world).field(NOTE), None);
    assert_eq!(managers(&copy(&world)), [names::MANAGER]);
}

#[test]
fn what_another_tool_owns_as_well_goes_with_the_source_and_what_it_added_stays() {
    let mut world = begun(rule());
    run(
        &mut world,
        &[
            Act::AddToCopy(0, "v1"),
            Act::CoOwn(0),
            Act::Annotate(0, true, "bad"),
        ],
    );
    sent(&mut world, [("apply", 1), ("claim", 1)]);
    assert_eq!(
        (copy(&world).field(NOTE), copy(&world).field("data/other")),
        (None, Some("v1"))
    );
    assert_eq!(managers(&copy(&world)), [names::MANAGER, "user", "tool"]);
}

#[test]
fn what_is_exclusive_has_nothing_that_others_add() {
    let mut world = begun(RuleSpec {
        exclusive: true,
        ..rule()
    });
    run(&mut world, &[Act::AddToCopy(0, "v1")]);
    sent(&mut world, [("apply", 1), ("claim", 1)]);
    assert_eq!(copy(&world).field("data/other"), None);
    run(&mut world, &[Act::PutSource(0, "v2")]);
    sent(&mut world, [("apply", 1)]);
    // Fields that existed when the copy became exclusive are not kept, nor are fields without an
    // owner.
    run(&mut world, &[put(rule()), Act::AddToCopy(0, "v1")]);
    assert_eq!(copy(&world).field("data/other"), Some("v1"));
    run(
        &mut world,
        &[put(RuleSpec {
            exclusive: true,
            ..rule()
        })],
    );
    assert_eq!(copy(&world).field("data/other"), None);
    world.act(&Act::AddToCopy(0, "v1"));
    world.act(&Act::Disown(0));
    // The next repair follows so soon after the last one that it waits.
    world
        .pass(Duration::from_secs(10))
        .unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(copy(&world).field("data/other"), None);
    assert_eq!(managers(&copy(&world)), [names::MANAGER]);
}

#[test]
fn a_change_of_strategy_leaves_nothing_behind() {
    let mut world = begun(rule());
    for (exclusive, other) in [
        (true, None),
        (false, Some("v1")),
        (true, None),
        (false, Some("v1")),
    ] {
        run(
            &mut world,
            &[
                Act::Annotate(0, true, "v1"),
                put(RuleSpec {
                    exclusive,
                    ..rule()
                }),
            ],
        );
        run(
            &mut world,
            &[Act::AddToCopy(0, "v1"), Act::Annotate(0, true, "bad")],
        );
        assert_eq!(
            (copy(&world).field(NOTE), copy(&world).field("data/other")),
            (None, other)
        );
    }
    let spec = RuleSpec {
        once: true,
        ..rule()
    };
    run(
        &mut world,
        &[
            put(spec),
            Act::Annotate(0, true, "v2"),
            Act::EditCopy(0, "v3"),
        ],
    );
    assert_eq!(
        (copy(&world).field(NOTE), copy(&world).field("data/k")),
        (None, Some("v3")),
        "its owner's"
    );
    run(
        &mut world,
        &[put(RuleSpec {
            exclusive: true,
            ..rule()
        })],
    );
    let copy = copy(&world);
    let found = [NOTE, "data/k", "data/other"].map(|field| copy.field(field));
    assert_eq!(found, [Some("v2"), Some("v1"), None]);
}

/// A process that has not seen Mimeo's own copy judges it by its content.
#[test]
fn after_a_restart_a_copy_that_nobody_owns_is_taken_back_if_it_has_the_content() {
    let mut world = begun(rule());
    world.act(&Act::Disown(0));
    world.restart(0);
    calm(&mut world);
    sent(&mut world, [("compare", 1), ("take", 1)]);
    assert!(copy(&world).ours());

    world.act(&Act::Disown(0));
    world.act(&Act::PutSource(0, "v2"));
    let before = copy(&world);
    world.restart(0);
    calm(&mut world);
    sent(&mut world, [("compare", 1)]);
    assert_eq!(copy(&world), before, "it may be anybody's");
}

/// A write would restore the label and the entry. If no write follows, Mimeo reads the copy, and
/// from then on knows it by its uid.
#[test]
fn a_copy_that_lost_its_marks_while_nothing_was_written_goes_when_it_is_to() {
    let gone = |world: &World| {
        world
            .server
            .get(&Key::new(Res::Secret, "q", "s1"))
            .is_none()
    };
    let settle = |world: &mut World| world.settle().unwrap_or_else(|why| panic!("{why}"));
    let keep = Keep {
        source: true,
        ..Keep::default()
    };
    let bereft = RuleSpec { keep, ..rule() };
    let elsewhere = RuleSpec {
        keep,
        ..RuleSpec::of(0, Select::Names(&["none"]))
    };
    let graced = RuleSpec {
        grace: 60,
        ..rule()
    };
    for losses in [
        &[Act::Unlabel(0)][..],
        &[Act::Disown(0)],
        &[Act::Disown(0), Act::Unlabel(0)],
    ] {
        for (case, spec, before, after) in [
            (
                "suspended",
                rule(),
                Act::Suspend(0),
                Some(Act::DeleteRule(0)),
            ),
            ("in its grace", graced.clone(), Act::DeleteSource(0), None),
            (
                "without a source",
                bereft.clone(),
                Act::DeleteSource(0),
                Some(put(elsewhere.clone())),
            ),
        ] {
            let mut world = begun(spec);
            run(&mut world, &[before]);
            run(&mut world, losses);
            assert!(
                !gone(&world),
                "{case} {losses:?}: {}",
                world.report("not yet")
            );
            run(&mut world, after.as_slice());
            settle(&mut world);
            assert!(
                gone(&world),
                "{case} {losses:?}: {}",
                world.report("it is to go")
            );
        }
    }
}

/// A watch that broke does not report the objects that it lost. The next listing does not show
/// them.
#[test]
fn a_copy_that_lost_its_label_while_no_watch_was_open_goes_when_it_is_to() {
    let mut world = begun(rule());
    run(&mut world, &[Act::Suspend(0)]);
    world.act(&Act::Unlabel(0));
    for watch in 0..16 {
        world
            .run(&[Move::Relist(0, watch)])
            .unwrap_or_else(|why| panic!("{why}"));
    }
    calm(&mut world);
    run(&mut world, &[Act::DeleteRule(0)]);
    world.settle().unwrap_or_else(|why| panic!("{why}"));
    assert!(
        world
            .server
            .get(&Key::new(Res::Secret, "q", "s1"))
            .is_none(),
        "{}",
        world.report("it is to go")
    );
}

/// Otherwise a user could create a rule with the former rule's name, and so delete copies without
/// the permission to delete them.
#[test]
fn a_retained_copy_stays_where_a_later_rule_of_the_name_does_not_want_it() {
    let keep = Keep {
        rule: true,
        ..Keep::default()
    };
    let here = RuleSpec { keep, ..rule() };
    let elsewhere = RuleSpec::of(0, Select::Names(&["none"]));
    let mut world = begun(here.clone());
    run(&mut world, &[Act::DeleteRule(0), put(elsewhere.clone())]);
    world.settle().unwrap_or_else(|why| panic!("{why}"));
    let uid = copy(&world).uid;
    // A later rule that wants the copy but has no source for it does not delete the copy either.
    run(
        &mut world,
        &[Act::DeleteRule(0), Act::DeleteSource(0), put(rule())],
    );
    world.settle().unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(
        copy(&world).uid,
        uid,
        "{}",
        world.report("without a source")
    );
    run(
        &mut world,
        &[
            Act::DeleteRule(0),
            Act::PutSource(0, "v1"),
            Act::Annotate(0, true, "v1"),
        ],
    );
    // If the later rule wants the copy, it takes the copy over in place. From then on the copy
    // belongs to it.
    run(&mut world, &[put(here.clone())]);
    assert_eq!(copy(&world).uid, uid);
    world.restart(0);
    calm(&mut world);
    run(&mut world, &[put(elsewhere)]);
    world.settle().unwrap_or_else(|why| panic!("{why}"));
    assert!(
        world
            .server
            .get(&Key::new(Res::Secret, "q", "s1"))
            .is_none(),
        "{}",
        world.report("no more wanted")
    );
}
