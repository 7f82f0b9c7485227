//! Events, and limits for their number: a rule that fails in 5,000 namespaces gets one Event, not
//! 5,000.
//!
//! Each topic collects its copies for a moment. They are then reported together, and a copy for
//! which the cause is no longer true is not reported at all. Nothing here depends on whether an
//! Event was written: an Event that could not be written is lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::ObjectReference;

use mimeo_model::{
    choices::Retain,
    id::RuleId,
    meta::{Checksum, source_hash},
    outcome::FailureReason,
    plural,
    rule::Rule,
    source::SourceRef,
};

use crate::{
    Index,
    clock::Tick,
    copy::{CopyKey, CopyState},
    projection::Projection,
};

/// An Event to write. All Events of one topic have the same name, so the next one continues the
/// series.
#[derive(Clone, Debug, PartialEq)]
pub struct EventUpdate {
    /// Name of the Event.
    pub name: Box<str>,
    /// The rule, or a copy.
    pub regarding: ObjectReference,
    /// The rule, if the Event is about a copy.
    pub related: Option<ObjectReference>,
    /// The stable reason.
    pub reason: EventReason,
    /// The message for users. Like a status, it contains no text of the API server about a Secret.
    pub note: String,
    /// How often it happened since the last report.
    pub count: i32,
}

/// Why an Event is written. Its word is stable, and determines the Event's type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventReason {
    /// Copies could not be written or deleted, for this reason.
    CopyFailed(FailureReason),
    /// A copy was deleted, to be created again.
    CopyRecreated,
    /// An object that Mimeo didn't own has become a copy.
    CopyAdopted,
    /// Another client changed a copy, and Mimeo restored it.
    EditReverted,
    /// Another client deleted a copy, and Mimeo created it again.
    CopyRestored,
    /// This source with copies is gone.
    SourceGone(SourceRef),
    /// So many copies were lost at once that Mimeo deletes none until a user confirms it.
    DeletionHeld,
}

impl EventReason {
    /// The stable word.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::CopyFailed(_) => "CopyFailed",
            Self::CopyRecreated => "CopyRecreated",
            Self::CopyAdopted => "CopyAdopted",
            Self::EditReverted => "EditReverted",
            Self::CopyRestored => "CopyRestored",
            Self::SourceGone(_) => "SourceGone",
            Self::DeletionHeld => "DeletionHeld",
        }
    }

    /// `Normal` or `Warning`.
    pub fn type_(&self) -> &'static str {
        match self {
            Self::CopyRecreated | Self::CopyAdopted => "Normal",
            _ => "Warning",
        }
    }

    /// The detail that distinguishes Events with the same word.
    fn detail(&self) -> String {
        match self {
            Self::CopyFailed(reason) => reason.to_string(),
            Self::SourceGone(source) => source.to_string(),
            _ => String::new(),
        }
    }

    /// True if any user that may write copies can cause it at will.
    fn by_users(&self) -> bool {
        matches!(self, Self::EditReverted | Self::CopyRestored)
    }
}

type Topic = (Arc<RuleId>, EventReason);

/// How long a topic collects its copies, counted from the first one.
const COLLECTED: Duration = Duration::from_secs(5);
/// The shortest time between two reports of the same topic.
const INTERVAL: Duration = Duration::from_mins(1);
/// The largest number of namespaces that get an Event about a copy, for each report of a topic.
const NAMESPACES: usize = 10;
/// The largest number of Events at once, for all rules together.
const BURST: usize = 50;
/// One more Event may be written after each interval of this length.
const REFILL: Duration = Duration::from_secs(6);
/// The longest note of an Event, in bytes: the API server's limit.
const LONGEST: usize = 1024;

/// The topics that are still to be reported.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    pending: BTreeMap<Topic, Pending>,
    reported: BTreeMap<Topic, Tick>,
    /// How much of the burst is used up. Each [`REFILL`] gives one Event back.
    spent: usize,
    refilled: Tick,
}

#[derive(Debug)]
struct Pending {
    due: Tick,
    /// The concerned copies, each with the field manager of the undone edit, if it is known.
    copies: BTreeMap<CopyKey, Option<Box<str>>>,
}

impl EventQueue {
    /// Adds a topic, or a copy to a topic, with the field manager of the undone edit. A webhook
    /// replica reports nothing.
    pub(crate) fn add(
        &mut self,
        rule: &Arc<RuleId>,
        reason: EventReason,
        copy: Option<(CopyKey, Option<Box<str>>)>,
        index: &Index,
    ) {
        if !index.settings.keeps_copies() {
            return;
        }
        let topic = (rule.clone(), reason);
        let due = (index.now + COLLECTED).max(
            self.reported
                .get(&topic)
                .map_or(Tick::ZERO, |reported| *reported + INTERVAL),
        );
        let pending = self.pending.entry(topic).or_insert_with(|| Pending {
            due,
            copies: BTreeMap::new(),
        });
        if let Some((copy, editor)) = copy {
            let known = pending.copies.entry(copy).or_default();
            *known = editor.or(known.take());
        }
    }

    /// Drops all topics. A standby reports none, because the leader does.
    pub(crate) fn forget(&mut self) {
        self.pending.clear();
    }

    fn refill(&mut self, now: Tick) {
        while self.spent > 0 && self.refilled + REFILL <= now {
            self.spent -= 1;
            self.refilled += REFILL;
        }
        if self.spent == 0 {
            self.refilled = now;
        }
    }

    /// Returns the topics to report now, in order. Undone edits and deletions come last, because
    /// any user that may write copies can cause them at will. Within the rest,
    /// `ClusterReplication`s come first.
    fn due(&self, now: Tick) -> Vec<Topic> {
        let due = self.pending.iter();
        let mut due: Vec<_> = due.filter(|(_, pending)| pending.due <= now).collect();
        due.sort_by_key(|((id, cause), pending)| (cause.by_users(), id.kind, pending.due));
        due.into_iter().map(|(topic, _)| topic.clone()).collect()
    }
}

/// A reported copy, with its problem.
struct ReportedCopy<'a> {
    key: &'a CopyKey,
    /// The field manager of the undone edit.
    editor: Option<&'a str>,
    /// Kind of the copy.
    kind: &'a str,
    message: String,
}

impl Index {
    /// Returns the number of the rule's copies of a source that `counts` accepts.
    pub(crate) fn copies_of(
        &self,
        id: &RuleId,
        source: &SourceRef,
        counts: impl Fn(&CopyState) -> bool,
    ) -> usize {
        let hash = source_hash(&source.to_string());
        let is_of = |copy: &&CopyState| {
            copy.ours().is_some_and(|seen| {
                seen.source == hash && seen.rule.as_deref() == Some(id) && !seen.elsewhere
            })
        };
        let places = self.places(id);
        places
            .iter()
            .filter_map(|name| self.namespaces.get(name))
            .flat_map(|namespace| &namespace.copies)
            .filter(is_of)
            .filter(|copy| counts(copy))
            .count()
    }

    /// Returns the report about a copy, if the cause is still true. `editor` is the field manager
    /// that changed the copy last.
    fn still<'a>(
        &'a self,
        id: &Arc<RuleId>,
        cause: &EventReason,
        key: &'a CopyKey,
        editor: Option<&'a str>,
    ) -> Option<ReportedCopy<'a>> {
        let (namespace, kind, name) = key;
        let message = match cause {
            EventReason::CopyFailed(reason) => {
                let blocked = &self.namespaces.get(namespace)?.blocked;
                let lost = blocked.get(&(id.clone(), *kind, name.clone()));
                if let Some(lost) = lost.filter(|lost| lost.reason() == *reason) {
                    format!("{reason}: {}", lost.message(id, namespace))
                } else {
                    let copy = self.copy(key)?;
                    let failure = &copy.failure.as_ref()?.failure;
                    if failure.reason != *reason || self.projections.owner(copy) != Some(id) {
                        return None;
                    }
                    format!("{reason}: {}", failure.message)
                }
            }
            EventReason::CopyAdopted => {
                "an object that Mimeo did not write has become the copy, by the rule's \
                 conflictPolicy"
                    .into()
            }
            EventReason::DeletionHeld => {
                "is lost, with many others in a short time, and stays until a person confirms the \
                 deletion"
                    .into()
            }
            EventReason::EditReverted => {
                let projection = self.projections.wanted(self.copy(key)?);
                let source = &projection.filter(|wants| wants.rule == *id)?.source;
                format!("an edit was reverted; to change the copy, change its source {source}")
            }
            EventReason::CopyRestored => {
                "another client deleted it, and Mimeo created it again; to remove the copy for \
                 good, have the rule leave this namespace out"
                    .into()
            }
            EventReason::CopyRecreated => {
                "deleted and created again, because the API server does not allow the change in \
                 place"
                    .into()
            }
            EventReason::SourceGone(_) => return None, // Only the rule has an Event for this.
        };
        Some(ReportedCopy {
            key,
            editor,
            kind: &self.kinds[*kind].group_kind.kind,
            message,
        })
    }

    /// Returns the reference to a copy, which need not exist. `None`: the API server does not serve
    /// its kind.
    fn about_copy(&self, key: &CopyKey) -> Option<ObjectReference> {
        let (namespace, kind, name) = key;
        let copy = self.copy(key);
        let projection = copy.and_then(|copy| self.projections.wanted(copy));
        let resource = self.resource(*kind, projection.map(Projection::gvk))?;
        let uid = copy.and_then(|copy| {
            let seen = copy.seen().map(|seen| seen.uid);
            seen.or_else(|| copy.failure.as_ref()?.object)
        });
        Some(ObjectReference {
            api_version: Some(resource.gvk.api_version()),
            kind: Some(resource.gvk.kind.to_string()),
            namespace: Some(namespace.to_string()),
            name: Some(name.to_string()),
            uid: uid.map(|uid| uid.to_string()),
            ..ObjectReference::default()
        })
    }
}

impl Index {
    /// Reports that a source is gone or does not exist.
    pub(crate) fn source_lost(&self, source: &SourceRef, was_there: bool, events: &mut EventQueue) {
        let granted = self
            .projections
            .of_source(source)
            .filter(|(_, projection)| projection.granted);
        let rules: BTreeSet<&Arc<RuleId>> =
            granted.map(|(_, projection)| &projection.rule).collect();
        for id in rules {
            // Copies that their rule retains without their source stay for good. After a restart
            // that is no event.
            if let Some(rule) = self.valid(id)
                && (was_there || rule.retention.when_source_deleted == Retain::Delete)
                && self.copies_of(id, source, |_| true) > 0
            {
                events.add(id, EventReason::SourceGone(source.clone()), None, self);
            }
        }
    }
}

impl EventQueue {
    /// Returns the Events to write now.
    pub(crate) fn event_updates(&mut self, index: &Index) -> Vec<EventUpdate> {
        self.refill(index.now);
        let (mut about_rules, mut about_copies) = (Vec::new(), Vec::new());
        for topic in self.due(index.now) {
            if about_rules.len() == BURST - self.spent {
                break;
            }
            let Some(pending) = self.pending.remove(&topic) else {
                continue;
            };
            // Most topics may have nothing left to report.
            if let Some((about_rule, others)) = updates_of(&topic, &pending, index) {
                about_rules.push(about_rule);
                about_copies.extend(others);
                self.reported.insert(topic, index.now);
            }
        }
        self.reported
            .retain(|_, reported| *reported + INTERVAL > index.now);
        // Events about copies get the rest of the burst.
        let mut all = about_rules;
        all.extend(about_copies);
        all.truncate(BURST - self.spent);
        self.spent += all.len();
        all
    }

    /// When [`EventQueue::event_updates`] has Events to write.
    pub(crate) fn next_due(&self) -> Option<Tick> {
        let due = self.pending.values().map(|pending| pending.due).min()?;
        Some(match self.spent {
            BURST => due.max(self.refilled + REFILL),
            _ => due,
        })
    }
}

/// Returns the Events of a topic: one about the rule, and one about a copy in each of some
/// namespaces.
fn updates_of(
    topic: &Topic,
    pending: &Pending,
    index: &Index,
) -> Option<(EventUpdate, Vec<EventUpdate>)> {
    let (id, cause) = topic;
    let rule = index.valid(id);
    let (note, count, reported) = match cause {
        EventReason::SourceGone(source) => {
            let rule = rule.filter(|rule| rule.may_have(source))?;
            let state = index.sources.get(source);
            state.filter(|state| state.is_missing())?;
            let gone = if source.selector().is_none() {
                "is gone"
            } else {
                "is gone, or not selected any more"
            };
            let fate = match index.copies_of(id, source, |_| true) {
                0 => "its copies are deleted".to_owned(),
                copies => format!(
                    "it is the source of {} of {id}; the rule's whenSourceDeleted is {:?}",
                    plural::copies(copies),
                    rule.retention.when_source_deleted
                ),
            };
            let note = format!("{source} {gone}; {fate}");
            (note, 1, vec![])
        }
        EventReason::DeletionHeld => {
            index.losses.held(id)?;
            let copies = plural::copies(index.held_copies(id).len());
            let note = if rule.is_some() {
                format!(
                    "Mimeo does not delete {copies}, because half of this rule's copies or more \
                     were lost in a short time; the rule's condition Stalled says how to confirm \
                     the deletion"
                )
            } else {
                format!(
                    "the rule does not exist any more and may have been lost with its CRD, so \
                     Mimeo keeps {copies}; to keep them for good, create the rule again; to delete \
                     them, confirm the deletion as the reconciler's log says"
                )
            };
            let collected = index.losses.collected(id);
            let reported = collected.filter_map(|key| index.still(id, cause, key, None));
            (note, 1, reported.collect())
        }
        _ => {
            rule?;
            let copies = pending.copies.iter();
            let reported =
                copies.filter_map(|(key, editor)| index.still(id, cause, key, editor.as_deref()));
            let reported: Vec<ReportedCopy<'_>> = reported.collect();
            (note(&reported)?, reported.len(), reported)
        }
    };
    let detail = cause.detail();
    let about_rule = event_update((cause, &detail), about(id, rule), None, id, note, count);
    Some((about_rule, about_copies(topic, rule, &reported, index)))
}

/// Returns one Event in each of some namespaces, about the first copy there. Users of the namespace
/// can read it.
fn about_copies(
    (id, cause): &Topic,
    rule: Option<&Rule>,
    reported: &[ReportedCopy<'_>],
    index: &Index,
) -> Vec<EventUpdate> {
    let namespaces = reported.chunk_by(|one, next| one.key.0 == next.key.0);
    let update = |reported: &[ReportedCopy<'_>]| {
        let ReportedCopy {
            key: key @ (_, _, name),
            editor,
            kind,
            message,
        } = reported.first()?;
        let editor = editor.map_or_else(String::new, |manager| {
            format!("; last written by field manager {manager:?}")
        });
        let more = if reported.len() > 1 {
            format!(" and {} more", reported.len() - 1)
        } else {
            String::new()
        };
        let note = format!("{id}: {kind} {name}{more}: {message}{editor}");
        let detail = format!("{}{editor}", cause.detail());
        Some(event_update(
            (cause, &detail),
            index.about_copy(key)?,
            Some(about(id, rule)),
            id,
            note,
            reported.len(),
        ))
    };
    namespaces.take(NAMESPACES).filter_map(update).collect()
}

/// Returns the problem of these copies in one sentence, or `None` without copies.
fn note(reported: &[ReportedCopy<'_>]) -> Option<String> {
    let ReportedCopy {
        key: (namespace, _, name),
        kind,
        message,
        ..
    } = reported.first()?;
    if reported.len() == 1 {
        return Some(format!("{kind} {name} in namespace {namespace}: {message}"));
    }
    Some(format!(
        "{} copies in {}: {message}",
        reported.len(),
        places(reported.iter().map(|one| &*one.key.0))
    ))
}

/// Returns the number of namespaces and the names of the first three. Equal names that follow one
/// another count once.
pub(crate) fn places<'a>(namespaces: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = namespaces.collect();
    names.dedup();
    let first = names[..names.len().min(3)].join(", ");
    match names.len() {
        1 => format!("namespace {first}"),
        2 | 3 => format!("namespaces {first}"),
        many => format!("{many} namespaces, first {first}"),
    }
}

fn about(id: &RuleId, rule: Option<&Rule>) -> ObjectReference {
    ObjectReference {
        api_version: Some(mimeo_api::names::API_VERSION.into()),
        kind: Some(id.kind.to_string()),
        namespace: id.namespace.as_deref().map(Into::into),
        name: Some(id.name.to_string()),
        uid: rule.map(|rule| rule.uid.to_string()),
        ..ObjectReference::default()
    }
}

/// Builds an Event. `detail` distinguishes it from other Events with the same reason.
fn event_update(
    (cause, detail): (&EventReason, &str),
    regarding: ObjectReference,
    related: Option<ObjectReference>,
    rule: &RuleId,
    mut note: String,
    count: usize,
) -> EventUpdate {
    // The name depends only on fields that every process knows. They also cannot change in an
    // Event. So the next process continues the series.
    let ObjectReference {
        kind,
        namespace,
        name,
        uid,
        ..
    } = &regarding;
    let [kind, place, object, uid] =
        [kind, namespace, name, uid].map(|field| field.as_deref().unwrap_or_default());
    let reason = cause.as_str();
    let name = format!("{reason} {detail} {rule} {kind} {place} {object} {uid}");
    note.truncate(note.floor_char_boundary(LONGEST));
    EventUpdate {
        name: format!("mimeo.{}", Checksum::of(name.as_bytes())).into(),
        regarding,
        related,
        reason: cause.clone(),
        note,
        count: i32::try_from(count).unwrap_or(i32::MAX),
    }
}
