//! Actions of users.

use super::{GrantSpec, RuleSpec};
use crate::worlds::server::Key;

/// Fields of an object by their paths, in the form of the server: `data/k`, `label/k`, `ann/k`,
/// `type`, `immutable`.
pub type Fields = Vec<(String, String)>;

/// The number of a place, among the places that exist at that moment. They are places that rules
/// want or have wanted, and places of foreign objects.
pub type Nth = usize;

/// An action of a user. An impossible action has no effect.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Creates or relabels.
    Namespace(&'static str, Vec<(&'static str, &'static str)>),
    /// Begins to delete.
    EndNamespace(&'static str),
    /// Ends a terminating namespace.
    Reap(&'static str),
    /// Creates or edits a source.
    Source(Key, Fields),
    DeleteSource(Key),
    /// Creates or edits a rule.
    Rule(Key, Box<RuleSpec>),
    DeleteRule(Key),
    /// Sets or removes `suspend`.
    Suspend(Key),
    /// Creates or changes a grant.
    Grant(Key, GrantSpec),
    /// Deletes the grant with this number.
    Revoke(Nth),
    /// Creates a foreign object with these fields, or with a copy's own content.
    Foreign(Nth, Option<Fields>, Fields),
    /// Sets or removes a field of an existing object.
    Edit(Nth, String, Option<String>),
    Delete(Nth),
    /// Removes the finalizers.
    Release(Nth),
    /// Gives the object to another client: `managedFields` without Mimeo.
    Disown(Nth),
    /// Clears `managedFields`.
    Clear(Nth),
    /// Removes one of the marks of a copy. The annotation names its rule, and watches find it by
    /// the label.
    Strip(Key, &'static str),
    /// Changes the content of the copy with this number, and restores its former `managedFields`.
    /// Its metadata does not show the change.
    Forge(Nth, String),
    /// Another tool becomes an owner of all fields, with the same values.
    Share(Nth),
    Restart,
}

/// A world and its history. All events of one step happen before any process observes them.
#[derive(Clone, Debug, PartialEq)]
pub struct Story(pub Vec<Vec<Event>>);
