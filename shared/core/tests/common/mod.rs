//! What the tests of the engine have in common.

#![allow(dead_code)] // Not all in each of them.

use std::fmt::Display;

use mimeo_core::{
    engine::{Engine, Tick},
    review::User,
};

/// The uid of an object, of one number for each.
pub(crate) fn uid(number: impl Display + Copy) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
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
