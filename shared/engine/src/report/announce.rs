//! Events, and limits for their number: a rule that fails in 5,000 namespaces is one piece of news,
//! not 5,000.
//!
//! Each topic collects its news for a moment. News of one topic is then reported together, and news
//! that is no longer true is not reported at all. Nothing here depends on whether an Event was
//! written: an Event that could not be written is lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::ObjectReference;

use mimeo_model::{
    choices::Retain,
    id::{RuleId, RuleKind},
    meta::{Checksum, source_hash},
    outcome::FailureReason,
    plural,
    role::Role,
    rule::Rule,
    source::SourceRef,
    words,
};

use crate::{
    Index, RuleState, SourceState,
    cell::{Cell, CellKey},
    clock::Tick,
    losses::PendingDeletions,
    slot::Slot,
};

/// An Event to write. All Events of one topic have the same name, so the next one continues the
/// series.
#[derive(Clone, Debug, PartialEq)]
pub struct Announcement {
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

words! {
    /// Why an Event is written. The reason determines the Event's type and action.
    EventReason {
        /// Copies could not be written or deleted.
        CopyFailed,
        /// A copy was deleted, to be created again.
        CopyRecreated,
        /// An object that Mimeo didn't own has become a copy.
        CopyAdopted,
        /// Another client changed a copy, and Mimeo restored it.
        EditReverted,
        /// Another client deleted a copy, and Mimeo created it again.
        CopyRestored,
        /// A source with copies is gone.
        SourceGone,
        /// So many copies were lost at once that Mimeo deletes none until a user confirms it.
        DeletionHeld,
    }
}

impl EventReason {
    /// `Normal` or `Warning`.
    pub fn type_(self) -> &'static str {
        match self {
            Self::CopyRecreated | Self::CopyAdopted => "Normal",
            Self::CopyFailed
            | Self::EditReverted
            | Self::CopyRestored
            | Self::SourceGone
            | Self::DeletionHeld => "Warning",
        }
    }

    /// The action that Mimeo was about to do, or did.
    pub fn action(self) -> &'static str {
        match self {
            Self::CopyFailed | Self::SourceGone => "Reconcile",
            Self::CopyRecreated => "Replace",
            Self::CopyAdopted => "Adopt",
            Self::EditReverted => "Revert",
            Self::CopyRestored => "Restore",
            Self::DeletionHeld => "Delete",
        }
    }
}

/// The occurrence behind an Event about a rule or its copies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Happening {
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
    /// A source with copies is gone.
    SourceGone(SourceRef),
    /// So many copies were lost at once that Mimeo deletes none until a user confirms it.
    DeletionHeld,
}

impl Happening {
    fn reason(&self) -> EventReason {
        match self {
            Self::CopyFailed(_) => EventReason::CopyFailed,
            Self::CopyRecreated => EventReason::CopyRecreated,
            Self::CopyAdopted => EventReason::CopyAdopted,
            Self::EditReverted => EventReason::EditReverted,
            Self::CopyRestored => EventReason::CopyRestored,
            Self::SourceGone(_) => EventReason::SourceGone,
            Self::DeletionHeld => EventReason::DeletionHeld,
        }
    }

    /// The detail that distinguishes Events with the same reason.
    fn detail(&self) -> String {
        match self {
            Self::CopyFailed(reason) => reason.to_string(),
            Self::SourceGone(source) => source.to_string(),
            Self::CopyRecreated
            | Self::CopyAdopted
            | Self::EditReverted
            | Self::CopyRestored
            | Self::DeletionHeld => String::new(),
        }
    }

    /// True if any user that may write copies can cause it at will.
    fn by_users(&self) -> bool {
        matches!(self, Self::EditReverted | Self::CopyRestored)
    }
}

type Topic = (Arc<RuleId>, Happening);

/// How long a topic collects its news, counted from the first one.
const COLLECTED: Duration = Duration::from_secs(5);
/// The shortest time between two reports of the same topic.
const INTERVAL: Duration = Duration::from_mins(1);
/// The largest number of namespaces that get an Event about a copy, for each report of a topic. The
/// next report of the topic begins with the namespaces after these.
const NAMESPACES: usize = 10;
/// The largest number of Events at once, for all rules together.
const BURST: u32 = 50;
/// The part of these that is reserved for Events about rules.
const RESERVED: u32 = 25;
/// The part that is reserved for `ClusterReplication`s, however many Replications fail.
const KEPT: u32 = 10;
/// One more Event may be written after each interval of this length.
const REFILL: Duration = Duration::from_secs(6);
/// The longest note of an Event, in bytes: the API server's limit.
const LONGEST: usize = 1024;

/// The news that is still to be reported.
#[derive(Debug)]
pub(crate) struct News {
    pending: BTreeMap<Topic, Pending>,
    told: BTreeMap<Topic, Tick>,
    /// The namespace of the last Event about a copy. The next report begins after it.
    turns: BTreeMap<Topic, Arc<str>>,
    tokens: u32,
    refilled: Tick,
    /// True for the reconciler. A webhook replica reports nothing.
    reports: bool,
}

#[derive(Debug)]
struct Pending {
    due: Tick,
    /// The concerned cells, each with the field manager of the undone edit, if it is known.
    cells: BTreeMap<CellKey, Option<Box<str>>>,
    /// The number of concerned copies that are not reported one by one.
    copies: usize,
}

impl News {
    pub(crate) fn new(role: Role) -> Self {
        Self {
            pending: BTreeMap::new(),
            told: BTreeMap::new(),
            turns: BTreeMap::new(),
            tokens: BURST,
            refilled: Tick::ZERO,
            reports: role == Role::Keeper,
        }
    }

    /// Adds news about these cells, or about this number of copies.
    pub(crate) fn add(
        &mut self,
        rule: &Arc<RuleId>,
        happening: Happening,
        cells: impl IntoIterator<Item = (CellKey, Option<Box<str>>)>,
        copies: usize,
        now: Tick,
    ) {
        if !self.reports {
            return;
        }
        let topic = (rule.clone(), happening);
        let due = (now + COLLECTED).max(
            self.told
                .get(&topic)
                .map_or(Tick::ZERO, |told| *told + INTERVAL),
        );
        let pending = self.pending.entry(topic).or_insert_with(|| Pending {
            due,
            cells: BTreeMap::new(),
            copies: 0,
        });
        for (cell, editor) in cells {
            let known = pending.cells.entry(cell).or_default();
            *known = editor.or(known.take());
        }
        pending.copies = pending.copies.max(copies);
    }

    /// Drops the news about sources that the rule no longer has. The rule has changed or was
    /// deleted.
    pub(crate) fn forget_sources(
        &mut self,
        rule: &Arc<RuleId>,
        still: impl Fn(&SourceRef) -> bool,
    ) {
        let stays = |happening: &Happening| match happening {
            Happening::SourceGone(source) => still(source),
            _ => true,
        };
        self.pending
            .retain(|(id, happening), _| id != rule || stays(happening));
    }

    /// Drops all news. A standby reports none, because the leader does.
    pub(crate) fn forget(&mut self) {
        self.pending.clear();
    }

    fn refill(&mut self, now: Tick) {
        while self.tokens < BURST && self.refilled + REFILL <= now {
            self.tokens += 1;
            self.refilled += REFILL;
        }
        if self.tokens == BURST {
            self.refilled = now;
        }
    }

    /// Returns the topics to report now, in order. Undone edits and deletions come last. Within the rest,
    /// `ClusterReplication`s come first. Then come the Replications of the namespaces with the
    /// fewest recent reports.
    fn due(&self, now: Tick) -> Vec<Topic> {
        let mut told: BTreeMap<Option<&str>, usize> = BTreeMap::new();
        for (id, _) in self.told.keys() {
            *told.entry(id.namespace.as_deref()).or_default() += 1;
        }
        let due = self
            .pending
            .iter()
            .filter(|(topic, pending)| pending.due <= now && self.affords(topic));
        let turn = |(id, happening): &Topic| {
            (
                happening.by_users(),
                id.kind,
                told.get(&id.namespace.as_deref())
                    .copied()
                    .unwrap_or_default(),
            )
        };
        let mut due: Vec<_> = due
            .map(|(topic, pending)| ((turn(topic), pending.due), topic))
            .collect();
        due.sort();
        due.into_iter().map(|(_, topic)| topic.clone()).collect()
    }

    fn affords(&self, (id, happening): &Topic) -> bool {
        match id.kind {
            _ if happening.by_users() => self.tokens > RESERVED,
            RuleKind::ClusterReplication => self.tokens > 0,
            RuleKind::Replication => self.tokens > KEPT,
        }
    }
}

/// A reported cell, with its problem.
struct Told<'a> {
    key: &'a CellKey,
    /// The field manager of the undone edit.
    editor: Option<&'a str>,
    /// Kind of the copy.
    kind: &'a str,
    message: String,
}

impl Index {
    fn copies_of(&self, id: &Arc<RuleId>, source: &SourceRef) -> usize {
        let hash = source_hash(&source.to_string());
        let places = self.places(id);
        let cells = places
            .iter()
            .filter_map(|name| self.namespaces.get(name))
            .flat_map(|namespace| &namespace.cells);
        let copies = cells.filter_map(Cell::ours);
        copies
            .filter(|seen| seen.source == hash && seen.rule.as_ref() == Some(id) && !seen.elsewhere)
            .count()
    }

    /// Returns the report about a cell, if the news is still true. `editor` is the field manager
    /// that changed the copy last.
    fn still<'a>(
        &'a self,
        id: &Arc<RuleId>,
        happening: &Happening,
        key: &'a CellKey,
        editor: Option<&'a str>,
    ) -> Option<Told<'a>> {
        let (namespace, kind, name) = key;
        let message = match happening {
            Happening::CopyFailed(reason) => {
                let lost = self.rules.get(id)?.unmet.get(namespace).into_iter().flatten();
                let mut lost = lost.filter(|cell| cell.kind == *kind && cell.name == *name && cell.reason() == *reason);
                if let Some(lost) = lost.next() {
                    format!("{reason}: {}", lost.message(id, namespace))
                } else {
                    let cell = self.cell(key)?;
                    let failure = cell.failure.as_ref().map(|failing| &failing.failure);
                    let failure = failure.filter(|failure| failure.reason == *reason)?;
                    if self.rule_of(cell).as_ref() != Some(id) {
                        return None;
                    }
                    format!("{reason}: {}", failure.message_for(id, namespace))
                }
            }
            Happening::CopyAdopted => {
                "an object that Mimeo did not write has become the copy, by the rule's conflictPolicy".into()
            }
            Happening::DeletionHeld => {
                "is lost, with many others in a short time, and stays until a person confirms the deletion".into()
            }
            Happening::EditReverted => {
                let cell = self.cell(key)?;
                let slot = self.slots.wanted(cell).filter(|slot| slot.rule == *id)?;
                format!("an edit was reverted; to change the copy, change its source {}", slot.source)
            }
            Happening::CopyRestored => {
                "another client deleted it, and Mimeo created it again; to remove the copy for good, have the rule leave this namespace out".into()
            }
            Happening::CopyRecreated => {
                "deleted and created again, because the API server does not allow the change in place".into()
            }
            Happening::SourceGone(_) => return None, // Only the rule has an Event for this.
        };
        Some(Told {
            key,
            editor,
            kind: &self.kinds[*kind].group_kind.kind,
            message,
        })
    }

    /// Returns the reference to a copy, which need not exist. `None`: the API server does not serve
    /// its kind.
    fn about_copy(&self, key: &CellKey) -> Option<ObjectReference> {
        let (namespace, kind, name) = key;
        let cell = self.cell(key);
        let slot = cell.and_then(|cell| self.slots.wanted(cell));
        let resource = self.resource(*kind, slot.map(Slot::gvk))?;
        Some(ObjectReference {
            api_version: Some(resource.gvk.api_version()),
            kind: Some(resource.gvk.kind.to_string()),
            namespace: Some(namespace.to_string()),
            name: Some(name.to_string()),
            uid: cell.and_then(Cell::seen).map(|seen| seen.uid.to_string()),
            ..ObjectReference::default()
        })
    }
}

impl Index {
    /// Adds news about a cell, for the rule that its numbers count for. `editor` is the field
    /// manager of an undone edit.
    pub(crate) fn happened(
        &self,
        happening: Happening,
        (namespace, cell): (&Arc<str>, &Cell),
        editor: Option<Box<str>>,
        news: &mut News,
    ) {
        if let Some(rule) = self.slots.owner(cell) {
            let cell = cell.key(namespace);
            news.add(rule, happening, [(cell, editor)], 0, self.now);
        }
    }

    /// Adds the news that a source is gone or does not exist.
    pub(crate) fn source_lost(&self, source: &SourceRef, was_there: bool, news: &mut News) {
        let granted = self
            .slots
            .of_source(source)
            .filter(|(_, slot)| slot.granted);
        let rules: BTreeSet<&Arc<RuleId>> = granted.map(|(_, slot)| &slot.rule).collect();
        for id in rules {
            let Some(rule) = self.rules.get(id).and_then(RuleState::valid) else {
                continue;
            };
            // Copies that their rule retains without their source stay for good. After a restart
            // that is no news.
            if was_there || rule.retention.when_source_deleted == Retain::Delete {
                let copies = self.copies_of(id, source);
                let happening = Happening::SourceGone(source.clone());
                news.add(id, happening, [], copies, self.now);
            }
        }
    }
}

impl News {
    /// Returns the Events to write now.
    pub(crate) fn announcements(
        &mut self,
        index: &Index,
        deletion: &PendingDeletions,
    ) -> Vec<Announcement> {
        self.refill(index.now);
        let mut announcements = Vec::new();
        // Each report changes the order of the remaining topics. Most topics may have nothing left
        // to report; they are dropped in one pass.
        while let Some((topic, news)) = self.next(index, deletion) {
            // The Event about the rule comes first.
            let beside =
                usize::try_from(self.tokens.saturating_sub(RESERVED + 1)).unwrap_or_default();
            let before = announcements.len();
            announcements.extend(news.into_iter().take(1 + beside));
            let written = &announcements[before..];
            self.tokens -= u32::try_from(written.len()).unwrap_or(self.tokens);
            let mut about_copies = written.iter().filter(|one| one.related.is_some());
            if let Some(last) = about_copies.next_back()
                && let Some(namespace) = last.regarding.namespace.as_deref()
            {
                self.turns
                    .insert(topic.clone(), index.namespace_name(namespace));
            }
            self.told.insert(topic, index.now);
        }
        self.told.retain(|_, told| *told + INTERVAL > index.now);
        self.turns.retain(|(id, _), _| index.rules.contains_key(id));
        announcements
    }

    fn next(
        &mut self,
        index: &Index,
        deletion: &PendingDeletions,
    ) -> Option<(Topic, Vec<Announcement>)> {
        self.due(index.now).into_iter().find_map(|topic| {
            let pending = self.pending.remove(&topic)?;
            let news = self.announce(&topic, &pending, index, deletion);
            (!news.is_empty()).then_some((topic, news))
        })
    }

    /// When [`News::announcements`] has Events to write.
    pub(crate) fn next_due(&self) -> Option<Tick> {
        let due = self.pending.iter().map(|(topic, pending)| {
            if self.affords(topic) {
                pending.due
            } else {
                pending.due.max(self.refilled + REFILL)
            }
        });
        due.min()
    }

    /// Returns the Events of a topic: one about the rule, then one about a copy in each of some
    /// namespaces.
    fn announce(
        &self,
        topic: &Topic,
        pending: &Pending,
        index: &Index,
        deletion: &PendingDeletions,
    ) -> Vec<Announcement> {
        let (id, happening) = topic;
        let rule = index.rules.get(id).and_then(RuleState::valid);
        let detail = happening.detail();
        let about_rule = |note, count| {
            announcement((happening, &detail), about(id, rule), None, id, note, count)
        };
        match happening {
            Happening::SourceGone(source) => {
                let copies = pending.copies.max(index.copies_of(id, source));
                let missing =
                    matches!(index.sources.get(source), Some(SourceState::Missing { .. }));
                let Some(rule) = rule.filter(|_| missing && copies > 0) else {
                    return vec![];
                };
                let what = if source.selector().is_none() {
                    "is gone"
                } else {
                    "is gone, or not selected any more"
                };
                vec![about_rule(
                    format!(
                        "{source} {what}; it is the source of {}",
                        rule.bereft(copies)
                    ),
                    1,
                )]
            }
            Happening::DeletionHeld => {
                let Some(pending) = deletion.get(id).filter(|pending| pending.held.is_some())
                else {
                    return vec![];
                };
                let copies = deletion.held_copies(id, index).len();
                let told: Vec<Told<'_>> = pending
                    .cells()
                    .filter_map(|key| index.still(id, happening, key, None))
                    .collect();
                let note = if rule.is_some() {
                    format!(
                        "Mimeo does not delete {}, because half of this rule's copies or more were lost in a short time; the rule's \
                         condition Stalled says how to confirm the deletion",
                        plural::copies(copies)
                    )
                } else {
                    format!(
                        "the rule does not exist any more, but Mimeo did not see its deletion and keeps {}; to keep them for good, create \
                         the rule again; to delete them, confirm the deletion as the reconciler's log says",
                        plural::copies(copies)
                    )
                };
                let mut all = vec![about_rule(note, 1)];
                all.extend(self.about_copies(topic, rule, &told, index));
                all
            }
            _ if rule.is_none() => vec![],
            Happening::CopyFailed(_)
            | Happening::CopyRecreated
            | Happening::CopyAdopted
            | Happening::EditReverted
            | Happening::CopyRestored => {
                let cells = pending.cells.iter();
                let told = cells
                    .filter_map(|(key, editor)| index.still(id, happening, key, editor.as_deref()));
                let told: Vec<Told<'_>> = told.collect();
                let Some(note) = note(&told) else {
                    return vec![];
                };
                let mut all = vec![about_rule(note, told.len())];
                all.extend(self.about_copies(topic, rule, &told, index));
                all
            }
        }
    }

    /// Returns one Event in each of some namespaces, about the first copy there. Users of the
    /// namespace can read it. The first namespace is the one after the last that got an Event in
    /// the topic's previous report.
    fn about_copies(
        &self,
        topic: &Topic,
        rule: Option<&Rule>,
        told: &[Told<'_>],
        index: &Index,
    ) -> Vec<Announcement> {
        let (id, happening) = topic;
        let namespaces: Vec<_> = told.chunk_by(|one, next| one.key.0 == next.key.0).collect();
        let next = self.turns.get(topic).map_or(0, |last| {
            namespaces.partition_point(|told| told[0].key.0 <= *last)
        });
        let (before, after) = namespaces.split_at(next);
        let namespaces = after.iter().chain(before).copied().take(NAMESPACES);
        let announce = |told: &[Told<'_>]| {
            let Told {
                key: key @ (_, _, name),
                editor,
                kind,
                message,
            } = told.first()?;
            let editor = editor.map_or_else(String::new, |manager| {
                format!("; last written by field manager {manager:?}")
            });
            let more = if told.len() > 1 {
                format!(" and {} more", told.len() - 1)
            } else {
                String::new()
            };
            let note = format!("{id}: {kind} {name}{more}: {message}{editor}");
            let detail = format!("{}{editor}", happening.detail());
            Some(announcement(
                (happening, &detail),
                index.about_copy(key)?,
                Some(about(id, rule)),
                id,
                note,
                told.len(),
            ))
        };
        namespaces.filter_map(announce).collect()
    }
}

/// Returns the problem of these cells in one sentence, or `None` without cells.
fn note(told: &[Told<'_>]) -> Option<String> {
    let Told {
        key: (namespace, _, name),
        kind,
        message,
        ..
    } = told.first()?;
    if told.len() == 1 {
        return Some(format!("{kind} {name} in namespace {namespace}: {message}"));
    }
    let mut namespaces: Vec<&Arc<str>> = told.iter().map(|one| &one.key.0).collect();
    namespaces.dedup();
    Some(format!(
        "{} copies in {}: {message}",
        told.len(),
        places(&namespaces)
    ))
}

/// Returns the number of namespaces and the names of the first three.
pub(crate) fn places<T: AsRef<str>>(namespaces: &[T]) -> String {
    let first = namespaces
        .iter()
        .take(3)
        .map(AsRef::as_ref)
        .collect::<Vec<_>>()
        .join(", ");
    match namespaces.len() {
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
fn announcement(
    (happening, detail): (&Happening, &str),
    regarding: ObjectReference,
    related: Option<ObjectReference>,
    rule: &RuleId,
    mut note: String,
    count: usize,
) -> Announcement {
    let reason = happening.reason();
    let uid = regarding.uid.as_deref().unwrap_or_default();
    // The name depends only on fields that every process knows. They also cannot change in an
    // Event. So the next process continues the series.
    let about = |field: &Option<String>| field.clone().unwrap_or_default();
    let (kind, place, object) = (
        about(&regarding.kind),
        about(&regarding.namespace),
        about(&regarding.name),
    );
    let name = format!("{reason} {detail} {rule} {kind} {place} {object} {uid}");
    note.truncate(note.floor_char_boundary(LONGEST));
    Announcement {
        name: format!("mimeo.{}", Checksum::of(name.as_bytes())).into(),
        regarding,
        related,
        reason,
        note,
        count: i32::try_from(count).unwrap_or(i32::MAX),
    }
}
