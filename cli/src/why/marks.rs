//! The marks of an existing copy, and the clients that have written an object.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use mimeo_model::names::{self, MANAGER, SOURCE};
use serde::Serialize;

use super::written::{EarlierChange, WriteEvent};
use crate::manifest::owned;

/// Most fields that are named of one client.
const FIELDS: usize = 10;

/// An existing copy.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Copy {
    pub(super) rule: String,
    pub(super) source: String,
    /// True if `managedFields` has Mimeo's entry. Without it, the labels and annotations prove
    /// nothing.
    pub(super) owned_by_mimeo: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) written: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) created: Option<Timestamp>,
    /// The last change before Mimeo wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) earlier_change: Option<EarlierChange>,
    /// Mimeo's last Event about a write of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) event: Option<WriteEvent>,
}

/// A client other than Mimeo's, with the time of its last change and the fields that it owns.
#[derive(Debug, Serialize)]
pub(super) struct Change {
    pub(super) manager: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) time: Option<Timestamp>,
    pub(super) fields: Vec<String>,
}

/// The marks of a copy. `None`: the object has none.
pub(super) fn copy_of(meta: &ObjectMeta) -> Option<Copy> {
    let annotation = |key| meta.annotations.as_ref().and_then(|all| all.get(key));
    let rule = line(annotation(names::RULE)?);
    let entries = meta.managed_fields.iter().flatten();
    let own: Vec<_> = entries.filter(|entry| is_own(entry)).collect();
    let times = own.iter().filter_map(|entry| entry.time.as_ref());
    Some(Copy {
        rule,
        source: annotation(SOURCE)
            .map(|text| line(text))
            .unwrap_or_default(),
        owned_by_mimeo: !own.is_empty(),
        written: times.map(|time| time.0).max(),
        created: meta.creation_timestamp.as_ref().map(|time| time.0),
        earlier_change: None,
        event: None,
    })
}

/// The other clients that have written the object.
pub(super) fn changes(meta: &ObjectMeta) -> Vec<Change> {
    let entries = meta.managed_fields.iter().flatten();
    let change = |entry: &ManagedFieldsEntry| {
        let fields = entry.fields_v1.as_ref().map(|fields| owned(&fields.0));
        Change {
            manager: entry.manager.clone().unwrap_or_default(),
            time: entry.time.as_ref().map(|time| time.0),
            fields: fields.into_iter().flatten().take(FIELDS).collect(),
        }
    };
    entries.filter(|entry| !is_own(entry)).map(change).collect()
}

fn is_own(entry: &ManagedFieldsEntry) -> bool {
    entry.manager.as_deref() == Some(MANAGER)
}

/// An annotation on one line. Each writer of the object can choose its text.
fn line(text: &str) -> String {
    text.chars().take_while(|char| !char.is_control()).collect()
}
