//! One followed page: the data that it has received so far, and the next event for it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use mimeo_api::{ClusterReplicationStatus, CopyCounts, CopyFailure, SourceStatus};
use mimeo_engine::{
    CopyView, Cursor, Ended, HeldDeletion, NamespaceView, PlaceView, RuleView, State, View,
};
use mimeo_model::id::RuleId;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::Known;

/// Pause between two checks for changes. The page receives all changes within it as one event.
const PACE: Duration = Duration::from_millis(250);
/// Longest time without an event. The page treats a longer silence as a lost connection.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Most held deletions that are listed one by one. Anyone who may write labels and annotations can
/// name rules that never existed.
const HELD: usize = 20;

/// Longest duration of one stream. The page then reconnects and shows again that it has the
/// permission, which may have been removed in the meantime.
const LONGEST: Duration = Duration::from_mins(10);

/// One page that is being followed.
pub(super) struct Session {
    known: Known,
    cursor: Cursor,
    /// The numbers of rules in this stream. Their names would make up most of the data.
    numbers: HashMap<Arc<RuleId>, u32>,
    last_number: u32,
    /// Whether this replica led, and which replica did, in the last event about them.
    told: Option<(bool, Option<String>)>,
    /// Nonces of the held deletions in the last event about them.
    held: Option<Vec<Box<str>>>,
    began: Instant,
    spoke: Instant,
}

impl Session {
    pub(super) fn new(known: Known) -> Self {
        Self {
            known,
            cursor: Cursor::default(),
            numbers: HashMap::new(),
            last_number: 0,
            told: None,
            held: None,
            began: Instant::now(),
            spoke: Instant::now(),
        }
    }

    /// The next event, as text. Returns `None` when the stream has reached its longest duration.
    pub(super) async fn next(&mut self) -> Option<String> {
        while self.began.elapsed() < LONGEST {
            let event = self
                .standing()
                .or_else(|| self.held())
                .or_else(|| self.news());
            if event.is_some() || self.spoke.elapsed() >= HEARTBEAT {
                self.spoke = Instant::now();
                // A comment is enough as a heartbeat.
                return event.or_else(|| Some(":\n\n".to_owned()));
            }
            sleep(PACE).await;
        }
        None
    }

    /// An event that says whether this replica leads, if that has changed.
    fn standing(&mut self) -> Option<String> {
        let Known {
            leading,
            leader,
            replica,
            namespace,
            ..
        } = &self.known;
        let standing = (*leading.borrow(), leader.borrow().clone());
        if self.told.as_ref() == Some(&standing) {
            return None;
        }
        let (leads, leader) = &standing;
        let event = event(
            "replica",
            &Replica {
                name: replica,
                namespace,
                leads: *leads,
                leader: leader.as_deref(),
            },
        );
        self.told = Some(standing);
        Some(event)
    }

    /// An event with the held deletions of rules that no longer exist, if they have changed. The
    /// page has no column for such rules.
    fn held(&mut self) -> Option<String> {
        if !*self.known.leading.borrow() {
            return None;
        }
        self.known.handle.look(|engine, _| {
            let nonces = || engine.held().map(|held| held.nonce);
            if self
                .held
                .as_ref()
                .is_some_and(|told| nonces().eq(told.iter().map(|nonce| &**nonce)))
            {
                return None;
            }
            self.held = Some(nonces().map(Into::into).collect());
            let deletions = engine.held().take(HELD).map(HeldTold::from).collect();
            let more = nonces().count().saturating_sub(HELD);
            Some(event("held", &AllHeld { deletions, more }))
        })
    }

    /// An event with the next part of the changes.
    fn news(&mut self) -> Option<String> {
        if !*self.known.leading.borrow() {
            return None;
        }
        let view = self.known.handle.look(|engine, now| {
            let news = engine.has_news(&self.cursor);
            news.then(|| engine.view(&mut self.cursor, now, Timestamp::now()))
        })?;
        if view.anew {
            self.numbers.clear();
        }
        Some(event("view", &self.tell(&view)))
    }

    fn tell<'a>(&mut self, view: &'a View) -> ReportedCopy<'a> {
        let mut told = ReportedCopy {
            anew: view.anew,
            whole: view.whole,
            ..ReportedCopy::default()
        };
        for ended in &view.ended {
            match ended {
                Ended::Rule(id) => told.ended.rules.extend(self.numbers.remove(id)),
                Ended::Namespace(name) => told.ended.namespaces.push(name),
            }
        }
        told.rules = view
            .rules
            .iter()
            .map(|rule| RuleTold::new(self.number(&rule.id), rule))
            .collect();
        let namespace = |NamespaceView {
                             name,
                             terminating,
                             places,
                         }: &'a NamespaceView| {
            (
                &**name,
                *terminating,
                places.iter().map(|place| self.place(place)).collect(),
            )
        };
        told.namespaces = view.namespaces.iter().map(namespace).collect();
        told
    }

    fn place<'a>(&mut self, place: &'a PlaceView) -> PlaceTold<'a> {
        let PlaceView {
            rule,
            state,
            reason,
            since,
            copies,
            synced,
        } = place;
        let since = since.map_or(0, Timestamp::as_second);
        (
            self.number(rule),
            number(*state),
            since,
            *copies,
            *synced,
            reason.as_deref(),
        )
    }

    fn number(&mut self, rule: &Arc<RuleId>) -> u32 {
        *self.numbers.entry(rule.clone()).or_insert_with(|| {
            self.last_number += 1;
            self.last_number
        })
    }
}

fn event(name: &str, data: &impl Serialize) -> String {
    // Serializing plain data to memory cannot fail. JSON has no line breaks, so it fits one line of
    // an event.
    format!(
        "event: {name}\ndata: {}\n\n",
        serde_json::to_string(data).unwrap_or_default()
    )
}

/// The number of a state in the page. States with higher numbers take precedence.
fn number(state: State) -> u8 {
    match state {
        State::Synced => 0,
        State::Suspended => 1,
        State::Pending => 2,
        State::Held => 3,
        State::Failed => 4,
    }
}

#[derive(Serialize)]
struct Replica<'a> {
    name: &'a str,
    namespace: &'a str,
    leads: bool,
    leader: Option<&'a str>,
}

/// All held deletions of rules that no longer exist.
#[derive(Serialize)]
struct AllHeld<'a> {
    deletions: Vec<HeldTold<'a>>,
    /// Number of held deletions that are not listed.
    more: usize,
}

#[derive(Serialize)]
struct HeldTold<'a> {
    rule: String,
    copies: usize,
    places: String,
    why: &'a str,
    nonce: &'a str,
}

impl<'a> From<HeldDeletion<'a>> for HeldTold<'a> {
    fn from(held: HeldDeletion<'a>) -> Self {
        Self {
            rule: held.rule.to_string(),
            copies: held.copies.len(),
            places: held.places(),
            why: held.why,
            nonce: held.nonce,
        }
    }
}

/// A part of the view. Data that it leaves out has not changed.
#[derive(Default, Serialize)]
struct ReportedCopy<'a> {
    anew: bool,
    ended: EndedTold<'a>,
    rules: Vec<RuleTold<'a>>,
    namespaces: Vec<(&'a str, bool, Vec<PlaceTold<'a>>)>,
    whole: bool,
}

#[derive(Default, Serialize)]
struct EndedTold<'a> {
    rules: Vec<u32>,
    namespaces: Vec<&'a str>,
}

/// Number of the rule, state, start of the state (seconds since 1970, 0 if unknown), number of
/// copies, number of synced copies, reason. There may be hundreds of thousands of these, so the
/// fields have no names.
type PlaceTold<'a> = (u32, u8, i64, usize, usize, Option<&'a str>);

/// A rule with its status. The resourceVersions in the status are left out, because they do not
/// help people.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RuleTold<'a> {
    number: u32,
    id: String,
    kind: String,
    namespace: Option<&'a str>,
    name: &'a str,
    suspended: bool,
    copies: Option<CopyCounts>,
    conditions: Vec<ConditionTold<'a>>,
    sources: Vec<String>,
    failures: &'a [CopyFailure],
    last_sync: Option<i64>,
}

impl<'a> RuleTold<'a> {
    fn new(
        number: u32,
        RuleView {
            id,
            suspended,
            status,
        }: &'a RuleView,
    ) -> Self {
        let status = status.as_ref();
        let conditions =
            status.map(|status| status.conditions.iter().map(ConditionTold::new).collect());
        let sources = status.into_iter().flat_map(|status| &status.sources);
        Self {
            number,
            id: id.to_string(),
            kind: id.kind.to_string(),
            namespace: id.namespace.as_deref(),
            name: &id.name,
            suspended: *suspended,
            copies: status.and_then(|status| status.copies),
            conditions: conditions.unwrap_or_default(),
            sources: sources.map(known_as).collect(),
            failures: status.map_or(&[], |status: &ClusterReplicationStatus| &status.failures),
            last_sync: status
                .and_then(|status| status.last_sync_time.as_ref())
                .map(|time| time.0.as_second()),
        }
    }
}

/// The source as people write it.
fn known_as(source: &SourceStatus) -> String {
    let SourceStatus { kind, name, .. } = source;
    match &source.namespace {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}, inline"),
    }
}

#[derive(Serialize)]
struct ConditionTold<'a> {
    #[serde(rename = "type")]
    type_: &'a str,
    status: &'a str,
    reason: &'a str,
    message: &'a str,
    since: i64,
}

impl<'a> ConditionTold<'a> {
    fn new(condition: &'a Condition) -> Self {
        Self {
            type_: &condition.type_,
            status: &condition.status,
            reason: &condition.reason,
            message: &condition.message,
            since: condition.last_transition_time.0.as_second(),
        }
    }
}

/// A copy, as the page requests it for one rule and namespace.
#[derive(Serialize)]
pub(super) struct CopyTold {
    kind: String,
    name: String,
    state: u8,
    reason: Option<String>,
    message: Option<String>,
    since: Option<i64>,
}

impl From<CopyView> for CopyTold {
    fn from(
        CopyView {
            kind,
            name,
            state,
            reason,
            message,
            since,
        }: CopyView,
    ) -> Self {
        Self {
            kind,
            name,
            state: number(state),
            reason: reason.map(|reason| reason.to_string()),
            message,
            since: since.map(Timestamp::as_second),
        }
    }
}
