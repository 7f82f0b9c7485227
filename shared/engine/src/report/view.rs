//! The view for the page that shows every rule and its state in every namespace.
//!
//! Usually no page is open, so the engine keeps little for it. Every rule and every namespace has
//! the number of its last change, and the last few endings are remembered. A viewer has a
//! [`Cursor`] and asks for the changes since then. Each piece is small, but looks at the number
//! of every rule and namespace. A view has names, states and times, and never the content of a copy.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use jiff::Timestamp;
use mimeo_api::ClusterReplicationStatus;

use mimeo_model::{id::RuleId, outcome::FailureReason};

use crate::{Index, Namespace, clock::Tick, tally::Standing, verdict::Outlook};

/// The largest number of rules, namespaces and endings in a piece.
const PIECE: usize = 64;
/// The number of endings that are remembered. A viewer that has missed more gets the whole view
/// again.
const REMEMBERED: usize = 1024;

/// The state of a rule in a namespace. If the rule has several copies there, the greatest state
/// counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// The copy is correct.
    Synced,
    /// The rule is suspended.
    Suspended,
    /// A request is still needed.
    Pending,
    /// The deletion of the copy is held until a user confirms it.
    Held,
    /// The copy could not be written or deleted.
    Failed,
}

/// The position of a viewer in the series of changes.
#[derive(Debug, Default)]
pub struct Cursor {
    /// All changes up to this one were shown.
    seen: u64,
    /// The last change when the viewer began. Earlier endings do not concern the viewer.
    begun: u64,
}

/// A piece of the view.
#[derive(Debug, Default)]
pub struct View {
    /// True if the viewer must forget everything from before.
    pub anew: bool,
    /// The rules and namespaces that no longer exist. An entry of the same view may be a new object
    /// of the same name.
    pub ended: Vec<Ended>,
    /// Rules as they are now.
    pub rules: Vec<RuleView>,
    /// Namespaces as they are now.
    pub namespaces: Vec<NamespaceView>,
    /// True if the viewer has seen everything that existed when it began.
    pub whole: bool,
}

/// A rule or namespace that no longer exists.
#[derive(Clone, Debug, PartialEq)]
pub enum Ended {
    /// A rule.
    Rule(Arc<RuleId>),
    /// A namespace.
    Namespace(Arc<str>),
}

/// A rule.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleView {
    /// Its name.
    pub id: Arc<RuleId>,
    /// True if it is suspended.
    pub suspended: bool,
    /// Its status. `None` until everything that the status depends on was seen.
    pub status: Option<ClusterReplicationStatus>,
}

/// A namespace, and the states of the rules in it.
#[derive(Clone, Debug, PartialEq)]
pub struct NamespaceView {
    /// Its name.
    pub name: Arc<str>,
    /// True if it is terminating.
    pub terminating: bool,
    /// The states, in the order of the rules.
    pub places: Vec<PlaceView>,
}

/// The state of one rule in one namespace.
#[derive(Clone, Debug, PartialEq)]
pub struct PlaceView {
    /// The rule.
    pub rule: Arc<RuleId>,
    /// The worst of its copies' states. The next two fields are those of the first copy with this
    /// state.
    pub state: State,
    /// A word for the failure or for the planned action. `None` if the rule itself shows the
    /// reason.
    pub reason: Option<String>,
    /// The start of the failure; without a failure, the time of Mimeo's last change of the copy.
    pub since: Option<Timestamp>,
    /// The number of copies.
    pub copies: usize,
    /// The number of correct copies among them.
    pub synced: usize,
}

/// One copy in detail.
#[derive(Clone, Debug, PartialEq)]
pub struct CopyView {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// True if the rule wants it.
    pub wanted: bool,
    /// Its state.
    pub state: State,
    /// The failure, and a sentence about it.
    pub failure: Option<(FailureReason, String)>,
    /// The change that the rule wants.
    pub outlook: Outlook,
    /// As in [`PlaceView`].
    pub since: Option<Timestamp>,
}

/// The numbers of changes.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    last: u64,
    ended: VecDeque<(u64, Ended)>,
    /// Endings up to this number are no longer remembered.
    forgotten: u64,
}

impl Changes {
    /// Returns the number for a change that happens now.
    pub(crate) fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub(crate) fn end(&mut self, what: Ended) {
        let number = self.next();
        self.ended.push_back((number, what));
        if self.ended.len() > REMEMBERED
            && let Some((number, _)) = self.ended.pop_front()
        {
            self.forgotten = number;
        }
    }

    /// Forgets all endings. Each viewer then gets the whole view again.
    pub(crate) fn forget(&mut self) {
        self.ended.clear();
        self.forgotten = self.last;
    }
}

impl CopyView {
    /// Returns the stable word for the failure, or else for the planned change.
    pub fn reason(&self) -> Option<&'static str> {
        let failure = self.failure.as_ref();
        failure
            .map(|(reason, _)| reason.as_str())
            .or_else(|| self.outlook.planned())
    }
}

/// The facts that the page shows, and the time of the question.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    pub(crate) index: &'a Index,
    pub(crate) changes: &'a Changes,
    pub(crate) wall: Timestamp,
}

impl<'a> Page<'a> {
    fn time(self, tick: Tick) -> Option<Timestamp> {
        let ago = self.index.now.saturating_sub(tick);
        self.wall.checked_sub(ago).ok()
    }

    /// Returns the next piece of the changes, the earliest first. `None`: the viewer has seen
    /// everything.
    pub fn view(self, cursor: &mut Cursor) -> Option<View> {
        let changes = self.changes;
        if cursor.seen == changes.last {
            return None;
        }
        let anew = cursor.seen == 0 || cursor.seen.max(cursor.begun) < changes.forgotten;
        if anew {
            (cursor.seen, cursor.begun) = (0, changes.last);
        }
        let Cursor { seen, begun } = *cursor;
        let rules = self.index.rules.iter();
        let namespaces = self.index.namespaces.values();
        let namespaces = namespaces.filter(|namespace| namespace.uid.is_some());
        let ended = changes.ended.iter().filter(|(number, _)| *number > begun);
        let numbers = rules.clone().map(|(_, state)| state.changed);
        let numbers = numbers
            .chain(namespaces.clone().map(|namespace| namespace.changed))
            .chain(ended.clone().map(|(number, _)| *number));
        let mut news: Vec<u64> = numbers.filter(|number| *number > seen).collect();
        cursor.seen = if news.len() <= PIECE {
            changes.last
        } else {
            // Each change has a number of its own, so a piece is not larger than this.
            *news.select_nth_unstable(PIECE - 1).1
        };
        let piece = seen + 1..=cursor.seen;
        Some(View {
            anew,
            ended: ended
                .filter(|(number, _)| piece.contains(number))
                .map(|(_, what)| what.clone())
                .collect(),
            rules: rules
                .filter(|(_, state)| piece.contains(&state.changed))
                .map(|(id, state)| RuleView {
                    id: id.clone(),
                    suspended: state.valid().is_some_and(|rule| rule.suspend),
                    status: state.status.observed.clone(),
                })
                .collect(),
            namespaces: namespaces
                .filter(|namespace| piece.contains(&namespace.changed))
                .map(|namespace| self.view_namespace(namespace))
                .collect(),
            whole: cursor.seen >= begun,
        })
    }

    fn view_namespace(self, namespace: &Namespace) -> NamespaceView {
        let mut places: BTreeMap<&Arc<RuleId>, Vec<CopyView>> = BTreeMap::new();
        for (rule, copy) in self.shown(&namespace.name, |_| true) {
            places.entry(rule).or_default().push(copy);
        }
        let place = |(rule, copies): (&Arc<RuleId>, Vec<CopyView>)| {
            let synced = |copy: &&CopyView| copy.state == State::Synced;
            // Of several copies in this state, `max_by_key` finds the last one.
            let worst = copies.iter().rev().max_by_key(|copy| copy.state)?;
            Some(PlaceView {
                rule: rule.clone(),
                state: worst.state,
                reason: worst.reason().map(str::to_owned),
                since: worst.since,
                copies: copies.len(),
                synced: copies.iter().filter(synced).count(),
            })
        };
        let places = places.into_iter().filter_map(place).collect();
        NamespaceView {
            name: namespace.name.clone(),
            terminating: !namespace.alive(),
            places,
        }
    }

    /// Returns the copies of a rule in a namespace, by kind and name. In a namespace that doesn't
    /// exist, these are the copies that lack a grant.
    pub fn copies(self, id: &RuleId, namespace: &str) -> Vec<CopyView> {
        let shown = self.shown(namespace, |rule| rule == id);
        let mut copies: Vec<CopyView> = shown.into_iter().map(|(_, copy)| copy).collect();
        copies.sort_by(|a, b| (&a.kind, &a.name).cmp(&(&b.kind, &b.name)));
        copies
    }

    /// Returns the copies of the asked rules in a namespace, and the copies that these rules lack a
    /// grant for there. The latter are the same whether the namespace exists or not.
    fn shown(
        self,
        namespace: &str,
        asked: impl Fn(&RuleId) -> bool + Copy,
    ) -> Vec<(&'a Arc<RuleId>, CopyView)> {
        let index = self.index;
        let known = index.namespaces.get(namespace).into_iter();
        let standings = known.flat_map(|namespace| index.standings(namespace, asked));
        let mut all: Vec<_> = standings
            .filter_map(|standing| self.show(standing))
            .collect();
        let rules = index.rules_for(namespace);
        for (id, state) in rules.filter(|(id, _)| index.grants_known() && asked(id)) {
            let Some(rule) = state.valid() else { continue };
            let standings = index.ungranted_standings(id, rule, Some(namespace));
            all.extend(standings.filter_map(|(_, standing)| self.show(standing)));
        }
        all
    }

    fn show(self, standing: Standing<'a>) -> Option<(&'a Arc<RuleId>, CopyView)> {
        let Standing {
            rule,
            kind,
            name,
            wanted,
            outlook,
            failure,
            copy,
        } = standing;
        let parsed = self.index.valid(rule)?;
        let written = copy
            .and_then(|(_, copy)| copy.ours())
            .map(|seen| i64::from(seen.written))
            .filter(|seconds| *seconds > 0);
        let mut shown = CopyView {
            kind: kind.to_owned(),
            name: name.into_owned(),
            wanted,
            state: State::Pending,
            failure,
            outlook,
            since: written.and_then(|seconds| Timestamp::from_second(seconds).ok()),
        };
        let held = |(namespace, copy)| self.index.holds(rule, namespace, copy);
        match &shown.failure {
            Some(_) => {
                shown.state = State::Failed;
                let failing = copy.and_then(|(_, copy)| copy.failure.as_ref());
                shown.since = failing.and_then(|failing| self.time(failing.since));
            }
            // The rule leaves this copy behind.
            None if !wanted && outlook.planned().is_none() => return None,
            None if parsed.suspend => shown.state = State::Suspended,
            None if outlook == Outlook::Right => shown.state = State::Synced,
            None if copy.is_some_and(held) => shown.state = State::Held,
            None => {}
        }
        Some((rule, shown))
    }
}
