//! Failures that the random histories have found. Each is the shortest history that shows the
//! failure. A few other histories are here because they are important in their own right.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use mimeo_engine::Task;
use mimeo_model::{names, role::Role};

use super::{
    process::{Flight, Topic, What},
    server::{Key, Res},
    spec::{Clash, Hold, Keep, RuleSpec, Select, TEAMS},
    world::{Act, Fate, Move, World, count_writes},
};

fn world(roles: &[Role]) -> World {
    World::new(roles, 64)
}

fn put(index: usize, spec: RuleSpec) -> Act {
    Act::PutRule(index, Box::new(spec))
}

#[track_caller]
fn run(world: &mut World, acts: &[Act]) {
    for act in acts {
        world.act(act);
        world.calm().unwrap_or_else(|why| panic!("{why}"));
    }
}

#[track_caller]
fn settle(world: &mut World) {
    world.settle().unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn one_write_per_change() {
    let mut world = world(&[Role::Keeper]);
    run(
        &mut world,
        &[
            Act::PutSource(0, "v1"),
            Act::Fleet(None),
            put(0, RuleSpec::of(0, Select::Names(&["f*"]))),
        ],
    );
    settle(&mut world);
    assert_eq!(
        count_writes(&world.server),
        [("create", 24)].into(),
        "to create"
    );
    assert_eq!(world.programs[0].requests, [("create", 24)].into());
    run(&mut world, &[Act::Annotate(0, false, "v1")]);
    settle(&mut world);
    assert_eq!(
        world.programs[0].requests,
        [("create", 24)].into(),
        "an edit that copies don't carry"
    );
    run(&mut world, &[Act::PutSource(0, "v2")]);
    settle(&mut world);
    assert_eq!(
        world.programs[0].requests,
        [("apply", 24), ("create", 24)].into(),
        "to rotate"
    );
    run(&mut world, &[Act::DeleteRule(0)]);
    settle(&mut world);
    assert_eq!(
        world.programs[0].requests,
        [("apply", 24), ("create", 24), ("delete", 24)].into(),
        "to clean up"
    );
}

/// The watch may show that the rules were deleted with the CRD only after the CRD was installed
/// again.
#[test]
fn a_reinstalled_crd_deletes_no_copy_whenever_the_watch_shows_the_loss() {
    for late in [false, true] {
        let mut world = world(&[Role::Keeper]);
        run(
            &mut world,
            &[
                Act::PutSource(0, "v1"),
                put(0, RuleSpec::of(0, Select::All)),
            ],
        );
        let copy = Key::new(Res::Secret, "q", "s1");
        assert!(world.server.get(&copy).is_some(), "nothing to lose");
        world.act(&Act::Unserve(Res::Rule));
        if !late {
            world.tell(0, &Topic::Rules);
        }
        world.act(&Act::Serve(Res::Rule));
        world.tell(0, &Topic::Rules);
        settle(&mut world);
        assert!(world.server.get(&copy).is_some(), "{late}");
        world.restart(0);
        settle(&mut world);
        assert!(world.server.get(&copy).is_some(), "{late}, after a restart");
    }
}

/// A new process starts after the CRD was reinstalled. No process saw the time between the two
/// lists of rules.
#[test]
fn a_crd_reinstalled_while_nothing_ran_deletes_no_copy() {
    let mut world = world(&[Role::Keeper]);
    run(
        &mut world,
        &[
            Act::PutSource(0, "v1"),
            Act::PutSource(1, "v1"),
            put(0, RuleSpec::of(0, Select::All)),
            put(1, RuleSpec::of(1, Select::All)),
        ],
    );
    run(&mut world, &[]);
    world.act(&Act::Unserve(Res::Rule));
    world.act(&Act::Serve(Res::Rule));
    world.restart(0);
    world.act(&put(0, RuleSpec::of(0, Select::All)));
    settle(&mut world);
    assert!(
        world
            .server
            .get(&Key::new(Res::ConfigMap, "q", "s1"))
            .is_some(),
        "the copy of a rule that did not come back"
    );
    assert!(
        world
            .server
            .get(&Key::new(Res::Secret, "q", "s1"))
            .is_some(),
        "the copy of one that did"
    );
}

/// A user deletes a rule, and the reconciler is killed after it has deleted some of the copies. It
/// knew the rule's age. The next one knows only the ages of the other copies. It deletes them if
/// they are younger than the CRD, and holds them if the rule was restored under another CRD.
#[test]
fn a_reconciler_killed_while_it_deletes_copies_leaves_the_rest_to_the_next() {
    for restored in [false, true] {
        let mut world = World::new(&[Role::Keeper], 1);
        let rule = put(0, RuleSpec::of(0, Select::Names(&["f*"])));
        run(
            &mut world,
            &[Act::PutSource(0, "v1"), Act::Fleet(None), rule.clone()],
        );
        if restored {
            run(
                &mut world,
                &[Act::Unserve(Res::Rule), Act::Serve(Res::Rule), rule],
            );
        }
        settle(&mut world);
        assert_eq!(count_writes(&world.server), [("create", 24)].into());
        world.act(&Act::DeleteRule(0));
        while copies(&world, "s1") > 20 {
            assert!(world.round(), "{}", world.report("nothing is deleted"));
        }
        world.restart(0);
        settle(&mut world);
        let held = world.programs[0].engine.held();
        let held: Vec<_> = held
            .map(|held| (held.copies.len(), held.nonce.to_owned()))
            .collect();
        assert_eq!(
            held.len(),
            usize::from(restored),
            "{}",
            world.report("held")
        );
        let left = held.first().map_or(0, |(copies, _)| *copies);
        assert_eq!(copies(&world, "s1"), left, "{}", world.report("left"));
        for (_, nonce) in held {
            assert!((19..=20).contains(&left), "{left}");
            world.server.note(|notes| notes.confirmed.push(nonce));
            settle(&mut world);
            assert_eq!(copies(&world, "s1"), 0, "{}", world.report("confirmed"));
        }
    }
}

#[track_caller]
fn requests(world: &World, want: &[(&str, usize)]) {
    let want: BTreeMap<&str, usize> = want.iter().copied().collect();
    assert_eq!(
        world.programs[0].requests,
        want,
        "{}",
        world.report("requests")
    );
}

/// A world with one source and one rule for all namespaces, whose only copy is in `q`.
#[track_caller]
fn one_copy() -> (World, Key) {
    let mut world = world(&[Role::Keeper]);
    run(
        &mut world,
        &[
            Act::PutSource(0, "v1"),
            put(0, RuleSpec::of(0, Select::All)),
        ],
    );
    settle(&mut world);
    world.programs[0].requests.clear();
    (world, Key::new(Res::Secret, "q", "s1"))
}

#[test]
fn a_hand_edit_costs_one_request() {
    let (mut world, _) = one_copy();
    run(&mut world, &[Act::EditCopy(0, "v3")]);
    requests(&world, &[("apply", 1)]);
    settle(&mut world);
}

#[test]
fn a_deletion_costs_one_request() {
    let (mut world, _) = one_copy();
    run(&mut world, &[Act::DeleteCopy(0)]);
    requests(&world, &[("create", 1)]);
    settle(&mut world);
}

/// The repair starts at once. The create that meets the object is the first half of this repair. It
/// does not count as an earlier repair, after which Mimeo would wait.
#[test]
fn a_removed_label_costs_two_requests_and_no_wait() {
    let (mut world, _) = one_copy();
    run(&mut world, &[Act::Unlabel(0)]);
    requests(&world, &[("apply", 1), ("create", 1)]);
    settle(&mut world);
}

/// The copy's checksum is unchanged. Only the field set of a dry run shows that another client took
/// a field from Mimeo.
#[test]
fn an_edit_made_while_nothing_ran_is_found_by_one_dry_run_per_projection() {
    let mut world = world(&[Role::Keeper]);
    run(
        &mut world,
        &[
            Act::PutSource(0, "v1"),
            Act::Fleet(None),
            put(0, RuleSpec::of(0, Select::Names(&["f*"]))),
        ],
    );
    settle(&mut world);
    world.act(&Act::EditCopy(7, "v3"));
    world.restart(0);
    settle(&mut world);
    requests(&world, &[("apply", 1), ("learn", 1)]);
}

/// The answer arrives after the watch has shown that another client undid the write.
#[test]
fn a_late_answer_does_not_bring_a_deleted_copy_back() {
    let mut world = world(&[Role::Keeper]);
    run(
        &mut world,
        &[
            Act::PutSource(0, "v1"),
            put(
                0,
                RuleSpec {
                    suspend: true,
                    ..RuleSpec::of(0, Select::All)
                },
            ),
        ],
    );
    run(&mut world, &[Act::PutNamespace(2, None)]);
    settle(&mut world);
    world.act(&Act::Suspend(0));
    world.tell(0, &Topic::Rules);
    // Mimeo must record the kind first.
    while world.programs[0]
        .flights
        .iter()
        .any(|flight| matches!(flight.what, What::Job(_)))
    {
        world
            .run(&[Move::Answer(0, 0, Fate::Good)])
            .unwrap_or_else(|why| panic!("{why}"));
        world.tell(0, &Topic::Notes);
    }
    let copies = Topic::Copies(Res::Secret);
    assert_eq!(
        world.programs[0].flights.len(),
        2,
        "{}",
        world.report("two creates")
    );
    world
        .run(&[Move::Carry(0, 0), Move::Carry(0, 1)])
        .unwrap_or_else(|why| panic!("{why}"));
    world.tell(0, &copies);
    world.act(&Act::DeleteCopy(0));
    world.tell(0, &copies);
    world
        .run(&[
            Move::Answer(0, 0, Fate::Good),
            Move::Answer(0, 0, Fate::Good),
        ])
        .unwrap_or_else(|why| panic!("{why}"));
    settle(&mut world);
}

/// A foreign object carries Mimeo's label for a while. When the label is removed, the object is
/// still foreign.
#[test]
fn a_forged_label_that_goes_gives_nothing_away() {
    let mut world = world(&[Role::Keeper]);
    run(
        &mut world,
        &[
            Act::PutSource(0, "v1"),
            Act::Foreign(0, 1, false, true, "theirs"),
            put(0, RuleSpec::of(0, Select::All)),
        ],
    );
    let foreign = Key::new(Res::Secret, "q", "s1");
    world.server.edit(&foreign, "stranger", |object| {
        object.fields.retain(|path, _| !path.starts_with("label/"));
    });
    settle(&mut world);
}

/// The copy of the dry run disappears with its namespace. The other copies must not wait for its
/// answer forever.
#[test]
fn a_dry_run_in_a_namespace_that_goes_holds_nobody_up() {
    let mut world = world(&[Role::Keeper]);
    run(
        &mut world,
        &[
            Act::PutSource(0, "v1"),
            Act::Fleet(None),
            put(0, RuleSpec::of(0, Select::Names(&["f*"]))),
        ],
    );
    settle(&mut world);
    world.act(&Act::EditCopy(7, "v3"));
    world.restart(0);
    while !world.programs[0].requests.contains_key("learn") {
        assert!(world.round(), "{}", world.report("no dry run"));
    }
    world.act(&Act::FleetGone);
    world.tell(0, &Topic::Namespaces);
    run(&mut world, &[Act::Fleet(None)]);
    settle(&mut world);
}

/// A rule that is deleted and created again at once asks for a watch that is still open.
#[test]
fn a_source_asked_for_again_at_once_is_still_known() {
    let (mut world, copy) = one_copy();
    world.act(&Act::DeleteRule(0));
    world.act(&put(
        0,
        RuleSpec {
            tier: Some("gold"),
            ..RuleSpec::of(0, Select::All)
        },
    ));
    world.tell(0, &Topic::Rules);
    settle(&mut world);
    assert_eq!(
        world
            .server
            .get(&copy)
            .and_then(|copy| copy.field("label/tier")),
        Some("gold")
    );
}

/// The same bytes get the same answer. Other bytes may get another one.
#[test]
fn a_refused_copy_is_tried_again_when_the_source_changes() {
    let (mut world, copy) = one_copy();
    run(&mut world, &[Act::PutSource(0, "bad")]);
    settle(&mut world);
    run(&mut world, &[Act::PutSource(0, "v2")]);
    settle(&mut world);
    assert_eq!(
        world
            .server
            .get(&copy)
            .and_then(|copy| copy.field("data/k")),
        Some("v2")
    );
}

/// Two watches show the second namespace of this name. The watch of the copies is first.
#[test]
fn a_copy_seen_before_its_namespace_was_seen_to_be_new_is_not_forgotten() {
    let mut world = world(&[Role::Keeper, Role::Injector]);
    let rule = RuleSpec {
        hold: Hold::Required,
        ..RuleSpec::of(0, Select::Team("a"))
    };
    run(
        &mut world,
        &[
            Act::PutSource(0, "v1"),
            put(0, rule),
            Act::PutNamespace(2, Some("a")),
        ],
    );
    settle(&mut world);
    // A new namespace of the same name gets its copy from the webhook, and loses its label.
    for act in [
        Act::DeleteNamespace(2),
        Act::Reap(2),
        Act::PutNamespace(2, Some("a")),
    ] {
        world.act(&act);
    }
    for _ in 0..4 {
        world.tell(1, &Topic::Namespaces);
        world
            .run(&[Move::Tick(5), Move::Answer(1, 0, Fate::Good)])
            .unwrap_or_else(|why| panic!("{why}"));
    }
    assert!(
        world
            .server
            .get(&Key::new(Res::Secret, "t0", "s1"))
            .is_some(),
        "{}",
        world.report("no copy")
    );
    world.act(&Act::PutNamespace(2, None));
    world.tell(0, &Topic::Copies(Res::Secret));
    settle(&mut world);
}

#[test]
fn a_new_namespace_costs_two_requests() {
    let mut world = world(&[Role::Keeper, Role::Injector]);
    let rule = RuleSpec {
        hold: Hold::Required,
        ..RuleSpec::of(0, Select::Names(&["t*"]))
    };
    run(&mut world, &[Act::PutSource(0, "v1"), put(0, rule)]);
    run(&mut world, &[Act::PutNamespace(2, None)]);
    settle(&mut world);
    world
        .programs
        .iter_mut()
        .for_each(|program| program.requests.clear());
    let before = world.server.writes.len();
    run(&mut world, &[Act::PutNamespace(3, None)]);
    world
        .run(&[Move::Tick(5), Move::Calm(3)])
        .unwrap_or_else(|why| panic!("{why}"));
    let verbs = |world: &World| {
        world.server.writes[before..]
            .iter()
            .map(|write| write.verb)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        verbs(&world),
        ["create", "unmark"],
        "{}",
        world.report("two writes")
    );
    assert!(
        world.programs[0].requests.is_empty(),
        "the reconciler has nothing to do"
    );
    settle(&mut world);
}

#[track_caller]
fn moves(world: &mut World, moves: &[Move]) {
    world.run(moves).unwrap_or_else(|why| panic!("{why}"));
}

/// The removal of the label was decided while the rule had `podGate: BestEffort`, and waited behind
/// a request. Meanwhile the rule changed to `Required`.
#[test]
fn a_mark_does_not_go_by_what_held_before() {
    let mut world = World::new(&[Role::Keeper], 1);
    let rule = RuleSpec {
        hold: Hold::BestEffort,
        ..RuleSpec::of(0, Select::All)
    };
    run(
        &mut world,
        &[
            put(0, rule.clone()),
            Act::PutNamespace(2, None),
            Act::PutNamespace(3, None),
            Act::Mark(2, true),
            Act::Mark(3, true),
        ],
    );
    // The budget is over, so both pending labels may be removed, with one request at a time.
    moves(&mut world, &[Move::Tick(11_000)]);
    assert_eq!(
        world.programs[0].flights.len(),
        1,
        "{}",
        world.report("one at a time")
    );
    world.act(&put(
        0,
        RuleSpec {
            hold: Hold::Required,
            ..rule
        },
    ));
    world.tell(0, &Topic::Rules);
    settle(&mut world);
    let marked = world
        .server
        .of(Res::Namespace)
        .filter(|namespace| namespace.labels().contains_key(names::PENDING_LABEL));
    assert_eq!(
        marked.count(),
        1,
        "{}",
        world.report("the one whose removal was under way is gone, the other stays")
    );
}

/// A pod that waited until the budget ended is retried after it. Then its user must learn which
/// copy is missing.
#[test]
fn a_mark_outlasts_the_budget_where_pods_waited() {
    let mut world = world(&[Role::Keeper]);
    run(
        &mut world,
        &[
            Act::PutSource(0, "v1"),
            put(
                0,
                RuleSpec {
                    hold: Hold::BestEffort,
                    ..RuleSpec::of(0, Select::All)
                },
            ),
        ],
    );
    world.act(&Act::PutNamespace(2, None));
    world.act(&Act::Mark(2, true));
    world.tell(0, &Topic::Namespaces);
    // The write of the copy stays unanswered.
    let under_way = |world: &World| {
        let removal = |flight: &Flight| matches!(&flight.what, What::Job(job) if matches!(job.task, Task::RemoveLabel { .. }));
        let flights = &world.programs[0].flights;
        (
            flights.len(),
            flights.iter().filter(|flight| removal(flight)).count(),
        )
    };
    for (seconds, want) in [(3, (1, 0)), (8, (1, 0)), (5, (2, 1))] {
        moves(&mut world, &[Move::Tick(seconds * 1000)]);
        assert_eq!(
            under_way(&world),
            want,
            "{}",
            world.report("the write, and then the mark's removal")
        );
    }
    settle(&mut world);
}

/// The rule is read again, to learn how it disappeared, at the moment when the collecting time
/// ends.
#[test]
fn what_went_with_a_crd_is_held_while_its_rule_is_read_again() {
    let (mut world, copy) = one_copy();
    run(&mut world, &[Act::Unserve(Res::Rule)]);
    moves(&mut world, &[Move::Tick(9_000)]);
    world.act(&Act::Serve(Res::Rule));
    moves(&mut world, &[Move::Tick(2_000)]);
    settle(&mut world);
    assert!(
        world.server.get(&copy).is_some(),
        "{}",
        world.report("its rule went with the CRD")
    );
}

/// A watch shows a rule of the former CRD after the new CRD was installed. The former CRD was
/// deleted together with the rule.
#[test]
fn a_rule_shown_late_does_not_live_under_the_new_crd() {
    let (mut world, copy) = one_copy();
    world.restart(0);
    world.tell(0, &Topic::Notes);
    world.act(&Act::Unserve(Res::Rule));
    world.act(&Act::Serve(Res::Rule));
    settle(&mut world);
    assert!(
        world.server.get(&copy).is_some(),
        "{}",
        world.report("its rule went with the CRD")
    );
}

/// A create is in flight while its rule is deleted together with the CRD. The copy appears
/// afterwards, and may be younger than the new CRD.
#[test]
fn a_create_under_way_when_the_crd_goes_is_not_taken_for_an_orphan_of_the_new_one() {
    for (fate, late) in [
        (Fate::Good, false),
        (Fate::Good, true),
        (Fate::Unanswered, false),
        (Fate::Unanswered, true),
    ] {
        let mut world = world(&[Role::Keeper]);
        run(
            &mut world,
            &[
                put(0, RuleSpec::of(0, Select::All)),
                Act::PutSource(1, "v1"),
                put(1, RuleSpec::of(1, Select::All)),
            ],
        );
        world.act(&Act::PutSource(0, "v1"));
        world.tell(0, &Topic::Source(Res::Secret, "p".into(), "s1".into()));
        while matches!(world.programs[0].flights[0].what, What::Job(_)) {
            moves(&mut world, &[Move::Answer(0, 0, Fate::Good)]);
            world.tell(0, &Topic::Notes);
        }
        if !late {
            moves(&mut world, &[Move::Carry(0, 0)]);
        }
        world.act(&Act::Unserve(Res::Rule));
        world.act(&Act::Serve(Res::Rule));
        world.tell(0, &Topic::Rules);
        moves(&mut world, &[Move::Answer(0, 0, fate)]);
        settle(&mut world);
        let copy = Key::new(Res::Secret, "q", "s1");
        assert!(
            world.server.get(&copy).is_some(),
            "{fate:?} {late}: {}",
            world.report("its rule went with the CRD")
        );
    }
}

/// Only the age of the copy shows the next process under which CRD the rule lived.
#[test]
fn a_rule_deleted_right_after_a_crash_in_the_first_minute_is_cleaned_up() {
    let mut world = world(&[Role::Keeper]);
    world.act(&Act::PutSource(0, "v1"));
    world.act(&put(0, RuleSpec::of(0, Select::All)));
    let copy = Key::new(Res::Secret, "q", "s1");
    while world.server.get(&copy).is_none() {
        assert!(world.round(), "{}", world.report("no copy"));
    }
    world.act(&Act::DeleteRule(0));
    world.restart(0);
    settle(&mut world);
}

/// The API server refused the old content. Now the copy must be deleted.
#[test]
fn a_refusal_of_what_is_not_wanted_any_more_hinders_nothing() {
    let (mut world, copy) = one_copy();
    world.act(&Act::PutSource(0, "bad"));
    world.tell(0, &Topic::Source(Res::Secret, "p".into(), "s1".into()));
    world.act(&Act::DeleteRule(0));
    world.tell(0, &Topic::Rules);
    settle(&mut world);
    assert!(
        world.server.get(&copy).is_none(),
        "{}",
        world.report("its rule was deleted")
    );
}

/// The object changed between the decision and the delete. The watch showed the change before the
/// answer arrived.
#[test]
fn a_delete_that_came_too_late_is_decided_again() {
    let (mut world, copy) = one_copy();
    world.act(&Act::DeleteRule(0));
    world.tell(0, &Topic::Rules);
    moves(&mut world, &[Move::Answer(0, 0, Fate::Good)]);
    assert!(
        matches!(world.programs[0].flights[0].what, What::Request(_)),
        "{}",
        world.report("a delete")
    );
    world.act(&Act::AddToCopy(0, "v1"));
    moves(&mut world, &[Move::Carry(0, 0)]);
    world.tell(0, &Topic::Copies(Res::Secret));
    settle(&mut world);
    assert!(
        world.server.get(&copy).is_none(),
        "{}",
        world.report("its rule was deleted")
    );
}

/// The new grace period counts from the loss that has already happened.
#[test]
fn a_grace_set_after_the_loss_ends_too() {
    let (mut world, copy) = one_copy();
    run(
        &mut world,
        &[
            put(
                0,
                RuleSpec {
                    grace: 3600,
                    ..RuleSpec::of(0, Select::All)
                },
            ),
            Act::DeleteSource(0),
        ],
    );
    run(
        &mut world,
        &[put(
            0,
            RuleSpec {
                grace: 60,
                ..RuleSpec::of(0, Select::All)
            },
        )],
    );
    settle(&mut world);
    assert!(
        world.server.get(&copy).is_none(),
        "{}",
        world.report("the grace is over")
    );
}

/// Two targets of one rule select the namespace. Both lose the same copy.
#[test]
fn a_cell_lost_by_two_targets_is_counted_once() {
    let mut world = world(&[Role::Keeper]);
    let to = RuleSpec::of(0, Select::All).targets;
    let twice = RuleSpec {
        targets: [to.clone(), to].concat(),
        ..RuleSpec::of(0, Select::All)
    };
    run(
        &mut world,
        &[
            Act::PutSource(0, "v1"),
            put(0, RuleSpec::of(0, Select::All)),
            put(1, twice),
        ],
    );
    settle(&mut world);
}

/// Mimeo writes neither the pod gate's condition nor the time of the last write again.
#[test]
fn a_restart_with_nothing_to_do_writes_nothing() {
    let mut world = world(&[Role::Keeper, Role::Injector]);
    let rule = RuleSpec {
        hold: Hold::Required,
        ..RuleSpec::of(0, Select::All)
    };
    run(
        &mut world,
        &[
            Act::PutSource(0, "v1"),
            put(0, rule),
            Act::PutNamespace(2, None),
        ],
    );
    settle(&mut world);
    world.check_rest().unwrap_or_else(|why| panic!("{why}"));
}

/// Half of a rule's copies, and at least 20, are lost. Mimeo deletes none of them before a user
/// confirms it.
#[test]
fn a_sweep_of_relabellings_is_held_until_it_is_confirmed() {
    let mut world = world(&[Role::Keeper]);
    run(
        &mut world,
        &[
            Act::PutSource(0, "v1"),
            put(0, RuleSpec::of(0, Select::Team("a"))),
            Act::Fleet(Some("a")),
        ],
    );
    settle(&mut world);
    let copies = |world: &World| {
        world
            .server
            .of(Res::Secret)
            .filter(|object| object.ours())
            .count()
    };
    assert_eq!(copies(&world), 24);
    run(&mut world, &[Act::Fleet(Some("b"))]);
    settle(&mut world);
    assert_eq!(copies(&world), 24, "held");
    run(&mut world, &[Act::Confirm(0)]);
    settle(&mut world);
    assert_eq!(copies(&world), 0, "{}", world.report("confirmed"));
}

fn copies(world: &World, suffix: &str) -> usize {
    world
        .server
        .of(Res::Secret)
        .filter(|object| object.ours() && object.key.name.ends_with(suffix))
        .count()
}

fn is_held(world: &World) -> bool {
    let rule = world
        .server
        .get(&Key::new(Res::Rule, "", "r0"))
        .and_then(|rule| rule.status.clone());
    rule.is_some_and(|status| {
        status
            .conditions
            .iter()
            .any(|condition| condition.reason == "DeletionHeld")
    })
}

/// Returns a world with 24 copies. All their namespaces have lost the label that the rule selects.
fn held_sweep() -> World {
    let mut world = world(&[Role::Keeper]);
    run(
        &mut world,
        &[
            Act::PutSource(0, "v1"),
            put(0, RuleSpec::of(0, Select::Team("a"))),
            Act::Fleet(Some("a")),
        ],
    );
    settle(&mut world);
    run(&mut world, &[Act::Fleet(Some("b"))]);
    settle(&mut world);
    assert!(
        is_held(&world) && copies(&world, "s1") == 24,
        "{}",
        world.report("held")
    );
    world
}

/// Either the label is set again, or the rule now retains copies that it no longer matches. In both
/// cases no copy is lost any more.
#[test]
fn a_sweep_that_is_undone_is_held_no_more() {
    let keep = Keep {
        unmatched: true,
        ..Keep::default()
    };
    for undo in [
        Act::Fleet(Some("a")),
        put(
            0,
            RuleSpec {
                keep,
                ..RuleSpec::of(0, Select::Team("a"))
            },
        ),
    ] {
        let mut world = held_sweep();
        run(&mut world, &[undo]);
        settle(&mut world);
        assert!(
            !is_held(&world) && copies(&world, "s1") == 24,
            "{}",
            world.report("undone")
        );
    }
}

/// A rule may have many copies in few namespaces.
#[test]
fn many_copies_in_few_namespaces_are_held_too() {
    let mut world = world(&[Role::Keeper]);
    let mut many = RuleSpec {
        sources: vec![0, 2, 3],
        ..RuleSpec::of(0, Select::All)
    };
    many.targets.extend(RuleSpec::of(0, Select::All).targets);
    many.targets[1].renamed = true;
    let sources = [0, 2, 3].map(|index| Act::PutSource(index, "v1"));
    run(&mut world, &sources);
    run(
        &mut world,
        &[2, 3, 4].map(|index| Act::PutNamespace(index, None)),
    );
    run(&mut world, &[put(0, many)]);
    settle(&mut world);
    run(
        &mut world,
        &[put(0, RuleSpec::of(0, Select::Names(&["none"])))],
    );
    settle(&mut world);
    assert!(copies(&world, "") > 0, "{}", world.report("not held"));
}

/// The next process doesn't find copies without the label. The others are fewer than the limit, but
/// the rule's status says that their deletion is held.
#[test]
fn a_sweep_stays_held_after_a_restart_although_some_of_it_is_out_of_sight() {
    let mut world = held_sweep();
    run(&mut world, &[0, 1, 2, 3, 4].map(Act::Unlabel));
    settle(&mut world);
    assert!(is_held(&world), "{}", world.report("5 are out of sight"));
    world.check_rest().unwrap_or_else(|why| panic!("{why}"));
    assert!(is_held(&world), "{}", world.report("those in sight"));
    let left = copies(&world, "s1");
    assert_eq!(left, 24, "{}", world.report("all stay"));
}

/// The first losses were few, and count together with the later ones. The next process doesn't know
/// of them, but the rule's status says that the deletion of the others is held.
#[test]
fn a_sweep_stays_held_after_a_restart_although_much_of_it_was_deleted_before() {
    let mut world = world(&[Role::Keeper]);
    let to = |names| put(0, RuleSpec::of(0, Select::Names(names)));
    run(
        &mut world,
        &[Act::PutSource(0, "v1"), Act::Fleet(None), to(&["f*"])],
    );
    run(&mut world, &[to(&["f1*"])]);
    settle(&mut world);
    assert_eq!(copies(&world, "s1"), 11, "{}", world.report("13 are few"));
    run(&mut world, &[to(&["none"])]);
    world
        .pass(Duration::from_mins(1))
        .unwrap_or_else(|why| panic!("{why}"));
    assert!(is_held(&world), "{}", world.report("24 are many"));
    world.check_rest().unwrap_or_else(|why| panic!("{why}"));
    assert!(is_held(&world), "{}", world.report("11 alone are few"));
    assert_eq!(copies(&world, "s1"), 11, "{}", world.report("all stay"));
}

/// A script continues to relabel namespaces while a user confirms the reported losses. The later
/// losses were not reported to the user.
#[test]
fn what_is_lost_after_the_nonce_was_told_is_not_confirmed_by_it() {
    let mut world = world(&[Role::Keeper]);
    let to = RuleSpec::of(0, Select::Team("a"));
    run(
        &mut world,
        &[
            Act::PutSource(0, "v1"),
            put(0, to),
            Act::Fleet(Some("a")),
            Act::PutNamespace(2, Some("a")),
        ],
    );
    settle(&mut world);
    run(&mut world, &[Act::Fleet(Some("b"))]);
    settle(&mut world);
    assert!(
        is_held(&world) && copies(&world, "s1") == 25,
        "{}",
        world.report("held")
    );
    run(
        &mut world,
        &[Act::PutNamespace(2, Some("b")), Act::Confirm(0)],
    );
    assert_eq!(copies(&world, "s1"), 1, "{}", world.report("confirmed"));
    settle(&mut world);
    assert_eq!(
        copies(&world, "s1"),
        0,
        "{}",
        world.report("so little goes by itself")
    );
}

/// The copy's annotation names a rule that no longer wants it. The fate of its source is read for
/// the rule that wants it now.
#[test]
fn a_copy_of_another_rule_goes_with_the_source_that_it_lost() {
    let mut world = world(&[Role::Keeper]);
    let keep = Keep {
        source: true,
        ..Keep::default()
    };
    run(
        &mut world,
        &[
            Act::PutSource(0, "v1"),
            put(
                0,
                RuleSpec {
                    keep,
                    ..RuleSpec::of(0, Select::All)
                },
            ),
        ],
    );
    run(
        &mut world,
        &[
            Act::DeleteSource(0),
            put(
                1,
                RuleSpec {
                    grace: 5,
                    ..RuleSpec::of(0, Select::All)
                },
            ),
        ],
    );
    settle(&mut world);
    assert!(copies(&world, "s1") > 0, "{}", world.report("retained"));
    run(
        &mut world,
        &[put(0, RuleSpec::of(1, Select::Names(&["none"])))],
    );
    settle(&mut world);
    assert_eq!(
        copies(&world, "s1"),
        0,
        "{}",
        world.report("its source was deleted")
    );
}

/// The wishes of a refused rule are unknown. It keeps its copies, even from a rule that has lost
/// the source.
#[test]
fn a_copy_of_a_refused_rule_stays_when_another_rule_loses_its_source() {
    let mut world = world(&[Role::Keeper]);
    run(
        &mut world,
        &[
            Act::PutSource(0, "v1"),
            put(0, RuleSpec::of(0, Select::All)),
        ],
    );
    let had = copies(&world, "s1");
    run(
        &mut world,
        &[put(
            0,
            RuleSpec {
                invalid: true,
                ..RuleSpec::of(0, Select::All)
            },
        )],
    );
    run(
        &mut world,
        &[put(1, RuleSpec::of(0, Select::All)), Act::DeleteSource(0)],
    );
    settle(&mut world);
    assert!(
        had > 0 && copies(&world, "s1") == had,
        "{}",
        world.report("kept")
    );
}

/// The annotation that confirmed one deletion stays on the rule. The same accident a month later
/// needs a confirmation of its own.
#[test]
fn what_was_confirmed_once_confirms_nothing_later() {
    let mut world = held_sweep();
    run(&mut world, &[Act::Confirm(0), Act::Fleet(Some("a"))]);
    settle(&mut world);
    assert_eq!(copies(&world, "s1"), 24);
    run(&mut world, &[Act::Fleet(Some("b"))]);
    settle(&mut world);
    assert!(
        is_held(&world) && copies(&world, "s1") == 24,
        "{}",
        world.report("held again")
    );
}

/// Another target still matches the namespaces, but it makes another copy.
#[test]
fn a_sweep_of_one_targets_copies_is_held_though_another_target_matches() {
    let mut world = world(&[Role::Keeper]);
    let mut rule = RuleSpec::of(0, Select::Team("a"));
    rule.targets[0].renamed = true;
    rule.targets
        .extend(RuleSpec::of(0, Select::Names(&["f*"])).targets);
    run(
        &mut world,
        &[Act::PutSource(0, "v1"), put(0, rule), Act::Fleet(Some("a"))],
    );
    settle(&mut world);
    assert_eq!(copies(&world, "s1-x"), 24);
    run(&mut world, &[Act::Fleet(Some("b"))]);
    settle(&mut world);
    assert!(
        is_held(&world) && copies(&world, "s1-x") == 24,
        "{}",
        world.report("held")
    );
}

/// Mimeo reads a foreign object now and then. Changes of the copy's source do not make these reads
/// more frequent.
#[test]
fn an_object_in_the_way_is_looked_at_no_more_often_for_all_that_happens() {
    let mut world = world(&[Role::Keeper]);
    run(
        &mut world,
        &[
            Act::PutNamespace(2, None),
            Act::Foreign(0, 2, false, false, "theirs"),
            Act::PutSource(0, "v1"),
        ],
    );
    run(
        &mut world,
        &[put(0, RuleSpec::of(0, Select::Names(&["t0"])))],
    );
    let sent = |world: &World| world.programs[0].requests.values().sum::<usize>();
    let an_hour = |world: &mut World| {
        let before = sent(world);
        for _ in 0..120 {
            world
                .run(&[Move::Tick(30_000), Move::Calm(4)])
                .unwrap_or_else(|why| panic!("{why}"));
        }
        sent(world) - before
    };
    let quiet = an_hour(&mut world);
    for value in ["v2", "v3"].into_iter().cycle().take(20) {
        run(&mut world, &[Act::PutSource(0, value)]);
    }
    let after = an_hour(&mut world);
    assert!(
        quiet > 0 && after <= quiet,
        "{quiet} requests, then {after}"
    );
}

/// The source's namespace is deleted together with the source. A tool that keeps namespaces creates
/// it again, and the source takes longer. The existing namespace does not prove that the source was
/// deleted on purpose.
#[test]
fn a_source_that_went_with_its_namespace_was_not_deleted_on_purpose_though_the_namespace_is_back() {
    let mut world = world(&[Role::Keeper]);
    let rule = RuleSpec {
        grace: 60,
        ..RuleSpec::of(0, Select::Names(&["f*"]))
    };
    run(
        &mut world,
        &[Act::PutSource(0, "v1"), put(0, rule), Act::Fleet(None)],
    );
    settle(&mut world);
    run(
        &mut world,
        &[
            Act::DeleteNamespace(0),
            Act::Reap(0),
            Act::PutNamespace(0, None),
        ],
    );
    settle(&mut world);
    assert!(
        is_held(&world) && copies(&world, "s1") == 24,
        "{}",
        world.report("held")
    );
    run(&mut world, &[Act::PutSource(0, "v2")]);
    settle(&mut world);
    assert!(
        !is_held(&world) && copies(&world, "s1") == 24,
        "{}",
        world.report("the source is back")
    );
}

/// A foreign object carries Mimeo's label. While its owner is unknown, its kind stays recorded.
#[test]
fn a_kind_is_noted_until_nothing_of_it_carries_our_label() {
    let mut world = world(&[Role::Keeper]);
    run(
        &mut world,
        &[
            Act::PutSource(0, "v1"),
            Act::Foreign(0, 1, true, true, "theirs"),
            put(0, RuleSpec::of(0, Select::All)),
        ],
    );
    run(&mut world, &[Act::DeleteRule(0)]);
    settle(&mut world);
    let noted = |world: &World| {
        world
            .server
            .notes
            .last()
            .is_some_and(|notes| !notes.kinds.is_empty())
    };
    assert!(
        noted(&world),
        "{}",
        world.report("an object with our label is there")
    );
    run(&mut world, &[Act::DeleteForeign(0)]);
    settle(&mut world);
    assert!(!noted(&world), "{}", world.report("nothing is there"));
}

/// The object was created and deleted between the decision and the list. No watch shows it any
/// more.
#[test]
fn a_note_that_could_not_be_removed_is_tried_again() {
    let (mut world, _) = one_copy();
    world.act(&Act::DeleteRule(0));
    while !world.programs[0].flights.iter().any(
        |flight| matches!(&flight.what, What::Job(job) if matches!(job.task, Task::ForgetKind(..))),
    ) {
        assert!(
            world.round(),
            "{}",
            world.report("the note is never removed")
        );
    }
    world.act(&Act::Foreign(0, 1, true, true, "theirs"));
    moves(&mut world, &[Move::Answer(0, 0, Fate::Good)]);
    world.act(&Act::DeleteForeign(0));
    settle(&mut world);
    assert!(
        world
            .server
            .notes
            .last()
            .is_some_and(|notes| notes.kinds.is_empty()),
        "{}",
        world.report("still noted")
    );
}

/// A copy was deleted by Mimeo itself, although no answer or watch has shown that yet. The owner of
/// the namespace did not delete it, so it is created once more.
#[test]
fn a_copy_that_we_deleted_ourselves_does_not_count_as_created_once() {
    let mut world = world(&[Role::Keeper]);
    run(
        &mut world,
        &[
            Act::PutSource(0, "v1"),
            put(0, RuleSpec::of(0, Select::Names(&["q"]))),
        ],
    );
    let never = RuleSpec::of(0, Select::Team("a"));
    let once = RuleSpec {
        once: true,
        keep: Keep::ALL,
        ..RuleSpec::of(0, Select::Names(&["q"]))
    };
    run(&mut world, &[put(0, never)]);
    let moves = [
        Move::Tick(11_000),
        Move::Answer(0, 0, Fate::Unanswered),
        Move::Act(put(0, once)),
    ];
    world.run(&moves).unwrap_or_else(|why| panic!("{why}"));
    settle(&mut world);
    assert!(
        world
            .server
            .get(&Key::new(Res::Secret, "q", "s1"))
            .is_some(),
        "{}",
        world.report("it isn't there")
    );
}

/// The deletion of a copy meets an edit and fails. Then its rule comes to create copies once, and the
/// object counts as created.
#[test]
fn a_copy_whose_deletion_failed_is_remembered_as_created_once() {
    let mut world = World::new(&[Role::Keeper], 1);
    let once = RuleSpec {
        once: true,
        keep: Keep::ALL,
        ..RuleSpec::of(0, Select::All)
    };
    moves(
        &mut world,
        &[
            Move::Act(Act::PutSource(0, "v1")),
            Move::Act(put(0, RuleSpec::of(0, Select::All))),
            Move::Calm(4),
            Move::Act(Act::DeleteSource(0)),
            Move::Calm(2),
            Move::Act(Act::EditCopy(0, "v2")),
            Move::Act(put(0, once)),
            Move::Act(Act::PutSource(0, "v1")),
            Move::Act(Act::PutSource(0, "v1")),
            Move::Deliver(0, 0, 1),
        ],
    );
    settle(&mut world);
    world.check_rest().unwrap_or_else(|why| panic!("{why}"));
}

/// A finalizer keeps a copy that Mimeo deleted. Its new rule creates its own once the object is
/// gone. The next process doesn't know who deleted the object, and does the same.
#[test]
fn a_copy_that_a_finalizer_keeps_does_not_count_as_created_once() {
    for restarts in [false, true] {
        let mut world = world(&[Role::Keeper]);
        let held = RuleSpec {
            finalizer: true,
            ..RuleSpec::of(0, Select::Names(&["q"]))
        };
        run(&mut world, &[Act::PutSource(0, "v1"), put(0, held)]);
        run(&mut world, &[put(0, RuleSpec::of(0, Select::Team("a")))]);
        world
            .pass(Duration::from_secs(11))
            .unwrap_or_else(|why| panic!("{why}"));
        let copy = Key::new(Res::Secret, "q", "s1");
        let deleting = |world: &World| world.server.get(&copy).map(|copy| copy.deleting);
        assert_eq!(deleting(&world), Some(true));
        if restarts {
            world.restart(0);
        }
        let once = RuleSpec {
            once: true,
            keep: Keep::ALL,
            ..RuleSpec::of(0, Select::Names(&["q"]))
        };
        run(&mut world, &[put(0, once)]);
        settle(&mut world);
        world.check_rest().unwrap_or_else(|why| panic!("{why}"));
        run(&mut world, &[Act::Finalize(0)]);
        settle(&mut world);
        assert_eq!(
            deleting(&world),
            Some(false),
            "{}",
            world.report("it isn't there")
        );
    }
}

/// Until the selector of the new rule is listed, no rule wants the copy. But the selector may find
/// its source.
#[test]
fn a_copy_stays_for_a_selector_that_may_find_its_source() {
    let mut world = World::new(&[Role::Keeper], 1);
    let picks = RuleSpec {
        picks: true,
        ..RuleSpec::of(0, Select::Names(&["t0"]))
    };
    run(
        &mut world,
        &[
            Act::PutSource(0, "v1"),
            Act::PutNamespace(2, None),
            put(0, RuleSpec::of(0, Select::All)),
        ],
    );
    let copy = Key::new(Res::Secret, "t0", "s1");
    let uid = |world: &World| world.server.get(&copy).map(|copy| copy.uid.clone());
    let first = uid(&world);
    world.act(&put(0, RuleSpec::of(1, Select::All)));
    moves(&mut world, &[Move::Calm(3), Move::Act(put(1, picks))]);
    settle(&mut world);
    assert_eq!(uid(&world), first, "{}", world.report("deleted"));
    let rule = world.server.get(&copy);
    let rule = rule.and_then(|copy| copy.annotation(names::RULE));
    let theirs = Some("ClusterReplication/r1");
    assert_eq!(rule, theirs, "{}", world.report("not taken in place"));
    world.check_rest().unwrap_or_else(|why| panic!("{why}"));
}

/// The rule that the copy named no longer wants it. Of the other two, the one that comes first
/// selects the source. It gets the copy only if its selector is listed before the other takes it.
#[test]
fn a_rule_may_take_a_copy_before_the_selector_of_a_rule_that_comes_first_is_listed() {
    let mut world = world(&[Role::Keeper]);
    let nowhere = RuleSpec::of(0, Select::Names(&["none"]));
    let picks = RuleSpec {
        picks: true,
        ..RuleSpec::of(0, Select::All)
    };
    run(
        &mut world,
        &[
            Act::PutSource(0, "v1"),
            put(0, nowhere.clone()),
            put(1, nowhere.clone()),
            put(2, RuleSpec::of(0, Select::All)),
        ],
    );
    for (index, spec) in [picks, RuleSpec::of(0, Select::All), nowhere]
        .into_iter()
        .enumerate()
    {
        world.act(&put(index, spec));
    }
    settle(&mut world);
    let copy = world.server.get(&Key::new(Res::Secret, "q", "s1"));
    let rule = copy.and_then(|copy| copy.annotation(names::RULE));
    assert_eq!(
        rule,
        Some("ClusterReplication/r1"),
        "{}",
        world.report("waits")
    );
    world.check_rest().unwrap_or_else(|why| panic!("{why}"));
}

/// A deletion got no answer. Then the rule wants other copies first, which cannot be written.
#[test]
fn the_failure_of_a_deletion_ends_when_the_copy_is_no_longer_to_be_deleted() {
    let mut renamed = RuleSpec::of(0, Select::Names(&["q"]));
    renamed.targets[0].renamed = true;
    let mut world = world(&[Role::Keeper]);
    let rule = put(0, RuleSpec::of(0, Select::Names(&["q"])));
    run(&mut world, &[Act::PutSource(0, "v1"), rule]);
    world.act(&Act::DeleteRule(0));
    world.tell(0, &Topic::Rules);
    // The read of the rule. The deletion follows.
    moves(&mut world, &[Move::Answer(0, 0, Fate::Good)]);
    moves(&mut world, &[Move::Answer(0, 0, Fate::Refused)]);
    world.act(&Act::PutSource(0, "bad"));
    world.act(&put(0, renamed));
    settle(&mut world);
}

/// A reconciler is killed after it has sent a deletion. The next one sees the copy, and then the
/// deletion, which it takes for one by the owner of the namespace.
#[test]
fn a_deletion_that_outlives_its_process_counts_as_one_by_the_owner() {
    let mut world = world(&[Role::Keeper]);
    let to = |names| RuleSpec::of(0, Select::Names(names));
    run(&mut world, &[Act::PutSource(0, "v1"), put(0, to(&["q"]))]);
    run(&mut world, &[put(0, to(&["none"]))]);
    let once = RuleSpec {
        once: true,
        keep: Keep::ALL,
        ..to(&["q"])
    };
    moves(
        &mut world,
        &[
            Move::Tick(11_000),
            Move::Restart(0),
            Move::Act(put(0, once)),
            Move::Calm(2),
        ],
    );
    settle(&mut world);
    let there = world.server.get(&Key::new(Res::Secret, "q", "s1"));
    assert!(there.is_none(), "{}", world.report("it is created again"));
    world.check_rest().unwrap_or_else(|why| panic!("{why}"));
}

/// The next process doesn't know whose object it is, and writes over it once.
#[test]
fn a_rule_that_creates_once_leaves_the_other_fields_of_what_it_overwrites() {
    let mut world = world(&[Role::Keeper]);
    let once = RuleSpec {
        once: true,
        clash: Clash::Overwrite,
        keep: Keep::ALL,
        ..RuleSpec::of(0, Select::All)
    };
    run(
        &mut world,
        &[
            Act::PutSource(0, "v1"),
            Act::Annotate(0, true, "v1"),
            put(0, RuleSpec::of(0, Select::All)),
        ],
    );
    world.act(&Act::Annotate(0, true, "bad"));
    world.act(&Act::Disown(0));
    world.act(&put(0, once));
    world.restart(0);
    settle(&mut world);
    let copy = world.server.get(&Key::new(Res::Secret, "q", "s1"));
    let note = copy.and_then(|copy| copy.annotation("note"));
    assert_eq!(note, Some("v1"), "{}", world.report("removed"));
    world.check_rest().unwrap_or_else(|why| panic!("{why}"));
}

/// The copy still names its former rule. How that went must be read again when the collecting time
/// ends.
#[test]
fn a_copy_of_a_former_rule_goes_when_its_source_went_with_its_namespace() {
    let mut world = world(&[Role::Keeper]);
    let rule = RuleSpec::of(0, Select::Names(&["q"]));
    run(&mut world, &[Act::PutSource(0, "v1"), put(0, rule.clone())]);
    for act in [
        put(1, rule),
        Act::DeleteNamespace(0),
        Act::DeleteRule(0),
        Act::DeleteSource(0),
    ] {
        world.act(&act);
    }
    settle(&mut world);
}

/// A copy of that kind was out of sight, and no read can find it now.
#[test]
fn a_kind_that_is_not_served_keeps_no_other_copy_from_being_recorded_as_created_once() {
    let mut world = world(&[Role::Keeper]);
    let both = RuleSpec {
        sources: vec![0, 3],
        once: true,
        keep: Keep::ALL,
        ..RuleSpec::of(0, Select::All)
    };
    run(
        &mut world,
        &[
            Act::PutSource(0, "v1"),
            Act::PutSource(3, "v1"),
            put(0, RuleSpec::of(3, Select::All)),
        ],
    );
    world.act(&Act::Unserve(Res::Widget));
    world.act(&put(0, both));
    settle(&mut world);
    world.check_rest().unwrap_or_else(|why| panic!("{why}"));
}

/// A user deletes a copy twice, so its second repair is put off. The rule's former copy does not
/// wait for that repair.
#[test]
fn a_repair_that_is_put_off_keeps_no_former_copy() {
    let mut world = world(&[Role::Keeper]);
    let both = RuleSpec {
        sources: vec![0, 3],
        ..RuleSpec::of(0, Select::Names(&["q"]))
    };
    run(
        &mut world,
        &[
            Act::PutSource(0, "v1"),
            Act::PutSource(3, "v1"),
            put(0, both),
            Act::DeleteCopy(1),
        ],
    );
    world.act(&Act::DeleteCopy(1));
    run(
        &mut world,
        &[put(0, RuleSpec::of(3, Select::Names(&["q"])))],
    );
    let there = |res, name| world.server.get(&Key::new(res, "q", name)).is_some();
    let left = [there(Res::Secret, "s1"), there(Res::Widget, "w1")];
    assert_eq!(left, [false, false], "{}", world.report("still there"));
    settle(&mut world);
}

/// A retained copy lost its label, so no watch shows its deletion. A rule that creates copies once
/// looks again, instead of taking the place for filled.
#[test]
fn a_hidden_copy_that_is_gone_does_not_count_as_created_once() {
    let mut world = world(&[Role::Keeper]);
    let keeps = |select| RuleSpec {
        keep: Keep::ALL,
        ..RuleSpec::of(0, select)
    };
    run(
        &mut world,
        &[
            Act::PutSource(0, "v1"),
            put(0, keeps(Select::Names(&["q"]))),
            put(0, keeps(Select::Team("a"))),
            Act::Unlabel(0),
        ],
    );
    let copy = Key::new(Res::Secret, "q", "s1");
    assert!(world.server.remove(&copy), "{}", world.report("no copy"));
    let once = RuleSpec {
        once: true,
        ..keeps(Select::Names(&["q"]))
    };
    run(&mut world, &[put(0, once)]);
    settle(&mut world);
    let there = world.server.get(&copy).is_some();
    assert!(there, "{}", world.report("it isn't there"));
}

/// The server carries out a create of the former process late. By then the next process has its own
/// create of the copy in its queue.
#[test]
fn what_came_while_it_was_queued_is_remembered_as_created_once() {
    let mut world = World::new(&[Role::Keeper], 1);
    let spec = RuleSpec::of(3, Select::All);
    let once = RuleSpec {
        once: true,
        keep: Keep::ALL,
        ..spec.clone()
    };
    for act in [
        Act::PutSource(3, "v1"),
        Act::PutNamespace(2, None),
        Act::PutNamespace(3, None),
        put(0, spec),
    ] {
        world.act(&act);
    }
    let moves = [
        Move::Calm(6),
        Move::Act(put(0, once)),
        Move::Restart(0),
        Move::Calm(3),
        Move::Tick(11_000),
    ];
    world.run(&moves).unwrap_or_else(|why| panic!("{why}"));
    settle(&mut world);
}

/// The copy stays the same. Mimeo only has to list the objects that the selector finds.
#[test]
fn a_copy_stays_its_rules_while_that_comes_to_select_what_it_named() {
    let mut world = world(&[Role::Keeper]);
    run(
        &mut world,
        &[
            Act::PutSource(0, "v1"),
            put(0, RuleSpec::of(0, Select::All)),
        ],
    );
    settle(&mut world);
    let picks = RuleSpec {
        picks: true,
        ..RuleSpec::of(0, Select::All)
    };
    world.act(&put(0, picks));
    world.act(&put(1, RuleSpec::of(0, Select::All)));
    settle(&mut world);
    let copies = world.server.of(Res::Secret).filter(|object| object.ours());
    let rules: BTreeSet<_> = copies
        .filter_map(|copy| copy.annotation(names::RULE))
        .collect();
    assert_eq!(
        rules,
        ["ClusterReplication/r0"].into(),
        "{}",
        world.report("taken")
    );
}

/// A copy that lost its label is read. The first read gets no answer. No write follows the second
/// one, because the rule waits for another copy first, so the read itself ends the failure.
#[test]
fn a_read_that_is_answered_ends_the_failure_of_one_that_was_not() {
    let mut world = World::new(&[Role::Keeper], 1);
    let mut renamed = RuleSpec {
        tier: Some(TEAMS),
        ..RuleSpec::of(0, Select::All)
    };
    renamed.targets[0].renamed = true;
    moves(
        &mut world,
        &[
            Move::Act(Act::PutSource(0, "v1")),
            Move::Act(put(0, RuleSpec::of(0, Select::All))),
            Move::Calm(4),
            Move::Answer(0, 0, Fate::Good),
            Move::Act(Act::Unlabel(0)),
            Move::Act(put(0, renamed)),
            Move::Deliver(0, 0, 1),
            Move::Deliver(0, 2, 2),
            Move::Answer(0, 0, Fate::Refused),
        ],
    );
    settle(&mut world);
    world.check_rest().unwrap_or_else(|why| panic!("{why}"));
}
