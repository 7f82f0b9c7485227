//! A simulation that packs years of failures into seconds. It drives the engines of both programs
//! against an API server in memory.
//!
//! After any events in any order, the cluster ends in the state that a small model computes from
//! the rules alone. On the way Mimeo makes no forbidden write. Events arrive late, watches are
//! lost, writes fail before or after they were carried out, and programs restart. Users edit all
//! objects meanwhile.
//!
//! `PROPTEST_CASES=2000` runs that many new random cases. Without it the cases are the same every
//! time. Seeds of failures are kept in `seeds.txt`. Each failure that they found has its own test
//! in [`found`].

// Modules of one test, which fails by panicking. A fake server's refusals are large, but rare. The
// arms of a choice of moves are alike where the moves are alike.
#![allow(
    unreachable_pub,
    clippy::panic,
    clippy::result_large_err,
    clippy::match_same_arms
)]

mod carry;
mod found;
mod history;
mod model;
mod onlooker;
mod owned;
mod process;
mod server;
mod spec;
mod world;

use proptest::{
    prelude::*,
    test_runner::{FileFailurePersistence, RngSeed, TestCaseError},
};
use world::World;

fn config(cases: u32) -> ProptestConfig {
    let wanted = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok());
    // Without a number of cases, the worlds are the same in every run. So the result shows only the
    // effects of a change. A run with a number looks for new failures.
    let rng_seed = if wanted.is_some() {
        RngSeed::Random
    } else {
        RngSeed::Fixed(0x006d_696d_656f)
    };
    ProptestConfig {
        cases: wanted.unwrap_or(cases),
        rng_seed,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(
            "tests/it/simulation/seeds.txt",
        ))),
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    }
}

fn settles(world: &mut World) -> Result<(), String> {
    world.settle()?;
    world.check_rest()
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn in_good_times_every_history_converges((roles, window) in history::cast(), moves in history::fair()) {
        let mut world = World::new(&roles, window);
        world.run(&moves).and_then(|()| settles(&mut world)).map_err(TestCaseError::fail)?;
    }
}

proptest! {
    #![proptest_config(config(500))]

    #[test]
    fn in_bad_times_a_crowded_namespace_converges((roles, window) in history::cast(), moves in history::crowded()) {
        let mut world = World::new(&roles, window);
        world.run(&moves).and_then(|()| settles(&mut world)).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn in_bad_times_every_history_converges((roles, window) in history::cast(), moves in history::foul()) {
        let mut world = World::new(&roles, window);
        world.run(&moves).and_then(|()| settles(&mut world)).map_err(TestCaseError::fail)?;
    }
}
