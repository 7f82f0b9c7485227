//! The marks of an existing copy, and the changes of other clients.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mimeo_model::names::{self, MANAGER, SOURCE};
use serde::Serialize;

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
    /// The field managers of others, with the time of their last change.
    pub(super) changed_by: Vec<Change>,
}

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
    let managers = meta.managed_fields.iter().flatten();
    let own = |manager: &Option<String>| manager.as_deref() == Some(MANAGER);
    let mut written = None;
    let mut changed_by = Vec::new();
    let mut owned_by_mimeo = false;
    for entry in managers {
        let time = entry.time.as_ref().map(|time| time.0);
        if own(&entry.manager) {
            owned_by_mimeo = true;
            written = written.max(time);
            continue;
        }
        let fields = entry.fields_v1.as_ref().map(|fields| owned(&fields.0));
        changed_by.push(Change {
            manager: entry.manager.clone().unwrap_or_default(),
            time,
            fields: fields.into_iter().flatten().take(FIELDS).collect(),
        });
    }
    Some(Copy {
        rule,
        source: annotation(SOURCE)
            .map(|text| line(text))
            .unwrap_or_default(),
        owned_by_mimeo,
        written,
        changed_by,
    })
}

/// An annotation on one line. Each writer of the object can choose its text.
fn line(text: &str) -> String {
    text.chars().take_while(|char| !char.is_control()).collect()
}
