//! Actions of users.

use super::{GrantSpec, RuleSpec};
use crate::worlds::server::Key;

/// Fields of an object by their paths, as the server has them: `data/k`, `label/k`, `ann/k`,
/// `type`, `immutable`.
pub type Fields = Vec<(String, String)>;

/// One of the places that rules want or have wanted, or where somebody else put something: counted
/// through, as there are then.
pub type Nth = usize;

/// Something that somebody does. What is impossible comes to nothing.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Creates or relabels.
    Namespace(&'static str, Vec<(&'static str, &'static str)>),
    /// Begins to delete.
    EndNamespace(&'static str),
    /// Ends what terminates.
    Reap(&'static str),
    /// Creates or edits.
    Source(Key, Fields),
    DeleteSource(Key),
    /// Creates or edits.
    Rule(Key, Box<RuleSpec>),
    DeleteRule(Key),
    /// Lifts `suspend` or sets it.
    Suspend(Key),
    /// Creates or changes.
    Grant(Key, GrantSpec),
    /// Takes one of the grants away, counted through.
    Revoke(Nth),
    /// Creates an object of somebody else's, with what is here; or with a copy's own content.
    Foreign(Nth, Option<Fields>, Fields),
    /// Sets a field of what is there, or removes it.
    Edit(Nth, String, Option<String>),
    Delete(Nth),
    /// Removes the finalizers.
    Release(Nth),
    /// Makes it somebody else's: `managedFields` without Mimeo.
    Disown(Nth),
    /// Clears `managedFields`.
    Clear(Nth),
    /// Takes away one of the marks of a copy: by its annotation it is known whose it is, by its
    /// label watches find it.
    Strip(Key, &'static str),
    /// Changes what is in one of the copies, counted through, and `managedFields` to what they were
    /// before: nothing of its metadata shows it.
    Forge(Nth, String),
    /// Another tool comes to own, by the same values, all that is in it.
    Share(Nth),
    Restart,
}

/// A world and its history: what happens in one step happens before anybody looks.
#[derive(Clone, Debug, PartialEq)]
pub struct Story(pub Vec<Vec<Event>>);
