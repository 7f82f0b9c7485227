//! One followed page: the data that it has received so far, and the next event for it.

use std::time::Duration;

use axum::response::sse::Event;
use jiff::Timestamp;
use mimeo_engine::{CopyView, Cursor, Ended, HeldDeletion, PlaceView, RuleView, State, View};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::Known;

/// Pause between two checks for changes. The page receives all changes within it as one event.
const PACE: Duration = Duration::from_millis(250);
/// Most held deletions that are listed one by one. Anyone who may write labels and annotations can
/// name rules that never existed.
const HELD: usize = 20;

/// An event with JSON. Serializing plain data cannot fail.
type Told = Result<Event, axum::Error>;

/// One page that is being followed.
pub(super) struct Session {
    known: Known,
    cursor: Cursor,
    /// The last event about this replica and the leader.
    replica: Option<Value>,
    /// The last event about held deletions.
    held: Option<Value>,
}

impl Session {
    pub(super) fn new(known: Known) -> Self {
        Self {
            known,
            cursor: Cursor::default(),
            replica: None,
            held: None,
        }
    }

    /// The next event.
    pub(super) async fn next(&mut self) -> Told {
        loop {
            let mut event = self.standing();
            // The engine of a standby does not know the state of copies.
            if event.is_none() && *self.known.leading.borrow() {
                event = self.held().or_else(|| self.news());
            }
            if let Some(event) = event {
                return event;
            }
            sleep(PACE).await;
        }
    }

    /// An event that says whether this replica leads, if that has changed.
    fn standing(&mut self) -> Option<Told> {
        let Known {
            leading,
            leader,
            identity,
            ..
        } = &self.known;
        let replica = json!({
            "name": identity.replica, "namespace": identity.namespace,
            "leads": *leading.borrow(), "leader": *leader.borrow(),
        });
        changed(&mut self.replica, "replica", replica)
    }

    /// An event with the held deletions of rules that no longer exist, if they have changed. The
    /// page has no column for such rules.
    fn held(&mut self) -> Option<Told> {
        let held = self.known.handle.look(|engine| {
            let mut held = engine.held();
            let first = held.by_ref().take(HELD);
            let deletions: Vec<Value> = first.map(|held| tell_held(&held)).collect();
            json!({"deletions": deletions, "more": held.count()})
        });
        changed(&mut self.held, "held", held)
    }

    /// An event with the next part of the changes.
    fn news(&mut self) -> Option<Told> {
        let view = self
            .known
            .handle
            .look(|engine| engine.page(Timestamp::now()).view(&mut self.cursor))?;
        Some(Event::default().event("view").json_data(tell(&view)))
    }
}

/// An event with this data, unless it is what the last one of this name said.
fn changed(last: &mut Option<Value>, name: &str, data: Value) -> Option<Told> {
    let news = last.as_ref() != Some(&data);
    news.then(|| Event::default().event(name).json_data(last.insert(data)))
}

/// The JSON of a piece of the view. Data that the piece leaves out has not changed.
fn tell(view: &View) -> Value {
    let (mut ended_rules, mut ended_namespaces) = (Vec::new(), Vec::new());
    for ended in &view.ended {
        match ended {
            Ended::Rule(id) => ended_rules.push(id.to_string()),
            Ended::Namespace(name) => ended_namespaces.push(&**name),
        }
    }
    let rules: Value = view.rules.iter().map(tell_rule).collect();
    let namespaces = view.namespaces.iter();
    let namespaces: Value = namespaces
        .map(|namespace| {
            let places: Value = namespace.places.iter().map(tell_place).collect();
            json!([&*namespace.name, namespace.terminating, places])
        })
        .collect();
    json!({
        "anew": view.anew, "whole": view.whole,
        "ended": {"rules": ended_rules, "namespaces": ended_namespaces},
        "rules": rules, "namespaces": namespaces,
    })
}

/// The JSON of a place: rule, state, start of the state (seconds since 1970, 0 if unknown), number
/// of copies, number of synced copies, reason. There may be hundreds of thousands of these, so the
/// fields have no names.
fn tell_place(place: &PlaceView) -> Value {
    let PlaceView {
        rule,
        state,
        reason,
        since,
        copies,
        synced,
    } = place;
    let since = since.map_or(0, Timestamp::as_second);
    json!([
        rule.to_string(),
        number(*state),
        since,
        copies,
        synced,
        reason
    ])
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

/// A held deletion of a rule that no longer exists.
fn tell_held(held: &HeldDeletion<'_>) -> Value {
    json!({
        "rule": held.rule.to_string(), "copies": held.copies.len(), "places": held.places(),
        "why": held.why, "nonce": held.nonce,
    })
}

/// A rule with its status.
fn tell_rule(rule: &RuleView) -> Value {
    let RuleView {
        id,
        suspended,
        status,
    } = rule;
    json!({
        "id": id.to_string(), "kind": id.kind.to_string(), "namespace": id.namespace,
        "name": id.name, "suspended": suspended, "status": status,
    })
}

/// A copy, as the page requests it for one rule and namespace.
pub(super) fn tell_copy(copy: &CopyView) -> Value {
    json!({
        "kind": copy.kind, "name": copy.name, "state": number(copy.state), "reason": copy.reason(),
        "message": copy.failure.as_ref().map(|(_, message)| message), "since": copy.since,
    })
}
