//! A hundred thousand small worlds. In each the real engine must do as the documents say, by
//! [`tables`].
//!
//! From the users' actions the model computes the state after each step: the content of every place
//! (namespace, kind and name), the owner of each field, and each rule's status. The model is
//! written from the documents and shares no rule with `mimeo-engine`. It has its own selection,
//! rendering and server-side apply. A world in which the two differ is made as small as possible
//! and printed with its number.
//!
//! `MIMEO_WORLDS=100000` checks that many worlds, as `make test` does. `MIMEO_WORLD=17` checks only
//! this one.

// These are modules of one test, which fails by a panic. The simulation uses more of its modules
// than this test does.
#![allow(unreachable_pub, clippy::panic, clippy::print_stdout)]

mod drive;
mod feeding;
mod generate;
mod model;
mod patch;
mod render;
mod select;
mod spec;
mod tables;

// The simulation's modules are built a second time here, with the rules of the worlds instead of
// its own.
#[allow(dead_code, clippy::duplicate_mod, clippy::result_large_err)]
#[path = "../simulation/carry.rs"]
mod carry;
#[allow(dead_code, clippy::duplicate_mod)]
#[path = "../simulation/process.rs"]
mod process;
#[allow(dead_code, clippy::duplicate_mod, clippy::result_large_err)]
#[path = "../simulation/server.rs"]
mod server;

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use drive::{Cluster, Done};
use model::{Deed, Model, ReportedCopy};
use server::Key;
use spec::{RuleSpec, Story};
use tables::Coverage;

/// Few enough for a quick run. `make test` takes a hundred thousand.
const WORLDS: u64 = 6_000;
/// From this number of worlds on each row must have been reached. Some rows need a case that is
/// rare.
const DEMANDING: u64 = 30_000;

/// From this number of worlds on percentages mean something.
const TELLING: u64 = 3_000;
/// At least this percentage of the steps is compared. The others follow a step about which the
/// documents are silent.
const COMPARED: u64 = 90;
/// At most this percentage of the plans is left open.
const OPEN: u64 = 10;
/// At most this number of a thousand stories may end for any one silence.
const SILENT: u64 = 35;

/// Follows a story for as long as the documents define the result. Returns the first fault, and the
/// step before it.
fn follow(story: &Story, coverage: &mut Coverage) -> Result<(), String> {
    let (mut model, mut cluster) = (Model::default(), Cluster::new());
    let mut deeds = Vec::new();
    coverage.stories += 1;
    coverage.steps += u64::try_from(story.0.len()).expect("few");
    let mut told = BTreeMap::new();
    for (at, step) in story.0.iter().enumerate() {
        let (begun, before, former) = (deeds.len(), cluster.objects(), std::mem::take(&mut told));
        let suspended: BTreeMap<Key, RuleSpec> = model.suspended();
        for event in step {
            let Some(deed) = model.choose(event) else {
                continue;
            };
            // An action is not tried if the documents do not say whether it is refused.
            let Ok(refused) = model.refuses(&deed, coverage) else {
                continue;
            };
            match cluster.act(&deed) {
                Done::Yes if !refused => model.act(&deed, coverage),
                Done::Refused if refused => {}
                done => return Err(format!("{deed:?} comes to {done:?} after {deeds:?}")),
            }
            if !refused {
                deeds.push((at, deed));
            }
        }
        told = match model.settle(coverage) {
            Ok(told) => told,
            Err(silence) => {
                *coverage.silent.entry(silence).or_default() += 1;
                return Ok(());
            }
        };
        let mut faults = cluster.settle().err().into_iter().collect::<Vec<_>>();
        faults.extend(cluster.compare(&model, &told));
        // Once someone has cleared `managedFields`, only the memory of the reconciler tells that an
        // object was a copy.
        let last = at + 1 == story.0.len();
        if last && !deeds.iter().any(|(_, deed)| matches!(deed, Deed::Clear(_))) {
            faults.extend(cluster.compare_snapshot());
        }
        if let [(_, Deed::Rule(name, spec))] = &deeds[begun..]
            && let Some(plan) = former
                .get(name)
                .and_then(|told: &ReportedCopy| told.plan.as_ref())
            && suspended.get(name).is_some_and(|was| {
                RuleSpec {
                    suspend: false,
                    ..was.clone()
                } == **spec
            })
        {
            coverage.other("lifted as planned");
            faults.extend(cluster.unplanned(name, plan, &before));
        }
        if !faults.is_empty() {
            let deeds: Vec<String> = deeds.iter().map(|deed| format!("{deed:?}")).collect();
            return Err(format!(
                "{}\nafter\n  {}",
                faults.join("\n"),
                deeds.join("\n  ")
            ));
        }
        coverage.compared += 1;
        for reason in cluster.reasons() {
            *coverage.reasons.entry(reason).or_default() += 1;
        }
    }
    Ok(())
}

/// The same, but a panic counts as a fault.
fn judge(story: &Story, coverage: &mut Coverage) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| follow(story, coverage)))
        .unwrap_or_else(|_| Err("it panics".into()))
}

/// Returns the smallest story found that still fails.
fn smallest(mut story: Story) -> (Story, String) {
    let fails = |story: &Story| judge(story, &mut Coverage::default()).err();
    while let Some(smaller) = generate::smaller(&story)
        .into_iter()
        .find(|story| fails(story).is_some())
    {
        story = smaller;
    }
    let why = fails(&story).expect("it was only made smaller while it failed");
    (story, why)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn the_engine_agrees_with_the_tables_on_every_world() {
    if let Some(seed) = number("MIMEO_WORLD") {
        let story = generate::story(seed);
        if let Err(why) = judge(&story, &mut Coverage::default()) {
            println!("world {seed}, before anything is left out: {why}");
            let (story, why) = smallest(story);
            panic!("world {seed}: {why}\n{story:#?}");
        }
        return;
    }
    let worlds = number("MIMEO_WORLDS").unwrap_or(WORLDS);
    let next = AtomicU64::new(0);
    let (wrong, coverage) = thread::scope(|scope| {
        let look = || {
            let (mut coverage, mut wrong) = (Coverage::default(), Vec::new());
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= worlds || wrong.len() > 5 {
                    return (wrong, coverage);
                }
                if let Err(why) = judge(&generate::story(seed), &mut coverage) {
                    // This may take minutes for a large story.
                    eprintln!(
                        "world {seed} goes wrong: {}",
                        why.lines().next().unwrap_or_default()
                    );
                    wrong.push(seed);
                }
            }
        };
        let threads = [scope.spawn(look), scope.spawn(look)];
        let mut all = (Vec::new(), Coverage::default());
        for thread in threads {
            let (wrong, coverage) = thread.join().expect("what goes wrong is caught");
            all.0.extend(wrong);
            all.1.add(&coverage);
        }
        all
    });
    let mut wrong: Vec<String> = wrong
        .into_iter()
        .map(|seed| (seed, smallest(generate::story(seed))))
        .map(|(seed, (story, why))| {
            format!("world {seed} (alone: MIMEO_WORLD={seed} cargo test -p mimeo-engine --test it worlds): {why}\n{story:?}")
        })
        .collect();
    wrong.sort_by_key(String::len);
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    let rows = coverage.rows();
    for (row, hits) in &rows {
        println!("{hits:>9} {row}");
    }
    let Coverage {
        stories,
        steps,
        compared,
        silent,
        reasons,
        ..
    } = &coverage;
    println!(
        "of {stories} stories with {steps} steps {compared} steps compared; silent: {silent:#?}\n{reasons:?}"
    );
    if worlds >= TELLING {
        assert!(
            compared * 100 >= steps * COMPARED,
            "{compared} of {steps} steps compared"
        );
        let [open, told] = ["plan left open", "plan told"].map(|what| coverage.others[what]);
        assert!(
            open * 100 <= (open + told) * OPEN,
            "{open} plans left open, {told} told"
        );
        let loud: Vec<_> = silent
            .iter()
            .filter(|(_, ended)| **ended * 1000 > stories * SILENT)
            .collect();
        assert!(
            loud.is_empty(),
            "the documents leave too much open: {loud:?} of {stories} stories"
        );
    }
    if worlds >= DEMANDING {
        let enough = (worlds / 10_000).max(1);
        let rare: Vec<_> = rows
            .iter()
            .filter(|(row, hits)| *hits < enough && !row.ends_with("Silent)"))
            .collect();
        assert!(rare.is_empty(), "hardly ever reached: {rare:#?}");
    }
}
