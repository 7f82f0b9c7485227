//! What the tests of the engine have in common.

#![allow(dead_code)] // Not all in each of them.

use std::fmt::Display;

use mimeo_core::{
    engine::{Engine, Home, Tick},
    meta::Uid,
    review::User,
};

/// The uid of an object, of one number for each.
pub(crate) fn uid(number: impl Display + Copy) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

/// A namespace of that number's uid, created then, in seconds since 1970.
pub(crate) fn home(number: impl Display + Copy, created: u32) -> Home {
    Home { uid: Uid::parse(&uid(number)).expect("a uid"), created }
}

/// Who writes all rules, as the engine is told.
#[allow(clippy::unnecessary_wraps)]
pub(crate) fn author() -> Option<User> {
    Some(User { name: "ann".into(), ..User::default() })
}

/// Says of every author who is asked about that they may.
pub(crate) fn vouch(engine: &mut Engine, now: Tick) {
    for inquiry in engine.inquiries() {
        engine.answered(&inquiry, Ok(&[]), now);
    }
}
