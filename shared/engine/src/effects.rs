//! Everything that an event or a decision leads to.
//!
//! A method that has effects takes `&mut Effects`. The other methods of [`Index`](crate::Index)
//! change facts alone, and decisions change nothing.

use crate::{Notice, events::EventQueue, jobs::Jobs, view::Changes, work::Work};

/// The effects of events and decisions.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// The queue of copies that need a request, and the timers.
    pub(crate) work: Work,
    /// Questions and small writes about anything but one copy.
    pub(crate) jobs: Jobs,
    /// Events about rules and copies.
    pub(crate) events: EventQueue,
    /// What the caller logs and measures.
    pub(crate) notices: Vec<Notice>,
    /// Changes for the page.
    pub(crate) changes: Changes,
    pub(crate) effort: Effort,
}

/// How much the engine has done. Tests bound it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Effort {
    /// The number of plans made for namespaces.
    pub planned: usize,
    /// The number of decisions made about single copies.
    pub decided: usize,
    /// The number of copies looked at for statuses.
    pub counted: usize,
    /// The number of copies looked at in decisions about losses.
    pub reviewed: usize,
}
