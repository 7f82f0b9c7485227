//! What led to the last write of a copy. No field of the copy says it. So `why` shows two facts that
//! do: the last change, before the write, of the objects that the copy is made from; and Mimeo's last
//! Event about a write of the copy.

use jiff::Timestamp;
use k8s_openapi::{
    api::events::v1::Event,
    apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta},
};
use mimeo_engine::EventReason;
use mimeo_model::{
    id::RuleId,
    names::{MANAGER, REPORTER, STATUS_MANAGER},
    rule::Rule,
};
use mimeo_runtime::{call::encode, discovery::resource_path};
use serde::Serialize;

use super::{Key, marks::Copy};
use crate::{
    picture::{Picture, sources},
    read::{Part, Reader, metadata},
};

/// Most Events about objects of one name that are looked at.
const EVENTS: usize = 500;
/// The Events about writes.
const WRITES: [EventReason; 4] = [
    EventReason::EditReverted,
    EventReason::CopyRestored,
    EventReason::CopyRecreated,
    EventReason::CopyAdopted,
];

/// A change of an object that the copy is made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct EarlierChange {
    /// `source`, `rule` or `namespace`.
    pub(super) object: &'static str,
    /// The field manager of the client that made it.
    pub(super) manager: String,
    pub(super) time: Timestamp,
}

/// An Event of Mimeo about a write of the copy.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct WriteEvent {
    pub(super) time: Timestamp,
    pub(super) reason: String,
    pub(super) note: String,
}

/// The last change before the write at `written`. Objects that the user may not read are left out.
pub(super) async fn earlier_change(
    reader: &Reader,
    picture: &Picture,
    key: &Key<'_>,
    copy: &Copy,
    written: Timestamp,
) -> Option<EarlierChange> {
    let namespace = picture.namespaces.get(key.namespace);
    let mut all = changes("namespace", namespace);
    let id: Option<RuleId> = copy.rule.parse().ok();
    if let Some(stored) = id.and_then(|id| picture.rules.get(&id)) {
        let source = source(reader, picture, copy, stored.rule.as_ref().ok()).await;
        all.extend(changes("source", source.as_ref()));
        all.extend(changes("rule", metadata(&stored.object).as_ref()));
    }
    latest(all, written)
}

/// The last of these changes. Times have whole seconds: of equal ones, the last in the list counts.
fn latest(mut all: Vec<EarlierChange>, written: Timestamp) -> Option<EarlierChange> {
    all.retain(|change| change.time <= written);
    all.into_iter().max_by_key(|change| change.time)
}

/// The last change by each client, without those of a status and without Mimeo's own.
fn changes(object: &'static str, meta: Option<&ObjectMeta>) -> Vec<EarlierChange> {
    let entries = meta.and_then(|meta| meta.managed_fields.as_deref());
    let change = |entry: &ManagedFieldsEntry| {
        let manager = entry.manager.clone().unwrap_or_default();
        let counts =
            entry.subresource.is_none() && ![MANAGER, STATUS_MANAGER].contains(&manager.as_str());
        let time = entry.time.as_ref().filter(|_| counts)?.0;
        Some(EarlierChange {
            object,
            manager,
            time,
        })
    };
    entries
        .unwrap_or_default()
        .iter()
        .filter_map(change)
        .collect()
}

/// The source of the copy. An inline source is a part of its rule.
async fn source(
    reader: &Reader,
    picture: &Picture,
    copy: &Copy,
    rule: Option<&Rule>,
) -> Option<ObjectMeta> {
    let sources = sources(picture, rule?);
    let source = sources
        .iter()
        .find(|source| source.to_string() == copy.source)?;
    let resource = picture.kinds.get(&source.gvk)?.as_ref()?;
    let path = resource_path(resource, Some(source.home()?), Some(&source.name));
    // If the user may not read the source, the picture has noted it.
    metadata(&reader.get(&path, Part::Metadata).await.ok()??)
}

/// Mimeo's last Event about a write of the copy. The API server keeps Events for an hour. A user who
/// may not list them sees none.
pub(super) async fn event(reader: &Reader, key: &Key<'_>) -> Option<WriteEvent> {
    let path = format!(
        "/apis/events.k8s.io/v1/namespaces/{}/events?limit={EVENTS}&fieldSelector=regarding.name%3D{}",
        encode(key.namespace),
        encode(key.name)
    );
    let mut found = reader.get(&path, Part::Whole).await.ok()??;
    let events: Vec<Event> = serde_json::from_value(found["items"].take()).ok()?;
    let about_writes = events
        .into_iter()
        .filter_map(|event| about_write(event, key));
    about_writes.max()
}

/// The Event, if it is one of Mimeo's about a write of this copy.
fn about_write(event: Event, key: &Key<'_>) -> Option<WriteEvent> {
    let regarding = event.regarding?;
    let about = (regarding.kind.as_deref(), regarding.name.as_deref());
    let own = event.reporting_controller.as_deref() == Some(REPORTER);
    let reason = event.reason?;
    let writes = WRITES.iter().any(|one| one.as_str() == reason);
    if !own || !writes || about != (Some(&*key.gvk.kind), Some(key.name)) {
        return None;
    }
    let last = event.series.map(|series| series.last_observed_time);
    Some(WriteEvent {
        time: last.or(event.event_time)?.0,
        reason,
        note: event.note?,
    })
}

#[cfg(test)]
mod tests {
    use mimeo_model::kind::GroupVersionKind;
    use serde_json::{Value, from_value, json};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn the_last_change_before_a_write_counts_and_mimeos_own_do_not() {
        let entry = |manager: &str, second, subresource: Option<&str>| {
            json!({
                "manager": manager, "operation": "Update", "time": at(second).to_string(),
                "subresource": subresource,
            })
        };
        let meta =
            |entries: Value| from_value(json!({"managedFields": entries})).expect("metadata");
        let source: ObjectMeta = meta(json!([
            entry("cert-manager", 100, None),
            entry("kubectl-edit", 130, None),
        ]));
        let rule: ObjectMeta = meta(json!([
            entry("argocd", 110, None),
            entry("argocd", 131, Some("status")),
            entry("mimeo-status", 132, None),
            entry("mimeo", 133, None),
        ]));
        let all = || {
            let mut all = changes("source", Some(&source));
            all.extend(changes("rule", Some(&rule)));
            all.extend(changes("namespace", None));
            all
        };
        for (written, change) in [
            (99, None),
            (100, Some(("source", "cert-manager"))),
            (129, Some(("rule", "argocd"))),
            (500, Some(("source", "kubectl-edit"))),
        ] {
            let found = latest(all(), at(written));
            let found = found
                .as_ref()
                .map(|change| (change.object, &*change.manager));
            assert_eq!(found, change, "{written}");
        }
    }

    #[test]
    fn only_mimeos_events_about_writes_of_the_copy_count() {
        let key = Key {
            namespace: "blue",
            name: "registry",
            gvk: GroupVersionKind::parse("v1", "Secret").expect("a kind"),
        };
        let event = json!({
            "reportingController": "mimeo.dev/reconciler", "reason": "EditReverted",
            "note": "an edit was reverted", "eventTime": "2026-01-02T03:04:05.000000Z",
            "regarding": {"kind": "Secret", "namespace": "blue", "name": "registry"},
        });
        let found = |change: &dyn Fn(&mut Value)| {
            let mut event = event.clone();
            change(&mut event);
            about_write(from_value(event).expect("an Event"), &key)
        };
        let told = found(&|_| {}).expect("it counts");
        assert_eq!(
            (&*told.reason, &*told.note),
            ("EditReverted", "an edit was reverted")
        );
        assert_eq!(told.time.to_string(), "2026-01-02T03:04:05Z");
        let last = "2026-01-02T03:10:00.000000Z";
        let series = json!({"count": 2, "lastObservedTime": last});
        let later = found(&|event| event["series"] = series.clone()).expect("it counts");
        assert!(later > told);
        for (field, value) in [
            ("reportingController", json!("another")),
            ("reason", json!("CopyFailed")),
            ("note", Value::Null),
            (
                "regarding",
                json!({"kind": "ConfigMap", "name": "registry"}),
            ),
            ("regarding", json!({"kind": "Secret", "name": "other"})),
        ] {
            let none = found(&|event| event[field] = value.clone());
            assert_eq!(none, None, "{field}");
        }
    }
}
