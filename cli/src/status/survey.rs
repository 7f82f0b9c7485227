//! The state of all rules and copies, as the engine decides it from one reading of the cluster.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use mimeo_engine::{CopyView, PlaceView};
use mimeo_model::{id::RuleId, selection::Place, source::SourceRef};
use serde::Serialize;

use crate::{
    connect::Connected,
    installation::Installation,
    names::{ObjectName, refusals},
    picture::{Gap, Picture, Scope, Stored, copies, places, sources},
    state::{State, condition, is_failure, pods, state},
};

/// The state of Mimeo and of the rules in the scope.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mimeo: Option<Installation>,
    pub(super) rules: Vec<RuleLine>,
    /// The copies that are not as their rules say.
    pub(super) copies: Vec<CopyLine>,
    /// The namespaces that wait for copies.
    pub(super) waiting: Vec<WaitingNamespace>,
    /// Copies of deleted rules whose deletion waits for a person.
    pub(super) held_of_deleted_rules: usize,
    /// False if rules, grants or copies could not be listed, so that the answer may lack some.
    pub(super) complete: bool,
    /// Facts that could not be read.
    pub(super) notes: Vec<String>,
}

/// One rule, with the numbers of its copies in the scope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RuleLine {
    pub(super) rule: String,
    /// The status of the condition Ready. `Unknown` if it describes an older spec.
    pub(super) ready: String,
    /// The reason and the message of the condition, unless it is True.
    pub(super) message: String,
    pub(super) suspended: bool,
    /// The copies that should exist.
    pub(super) copies: usize,
    pub(super) synced: usize,
    /// Mimeo writes them, or they wait for a source, say.
    pub(super) pending: usize,
    /// The rule's status counts the same.
    pub(super) failed: usize,
    pub(super) held: usize,
}

impl RuleLine {
    pub(super) fn is_good(&self) -> bool {
        self.suspended || (self.ready == "True" && self.pending + self.failed + self.held == 0)
    }
}

/// One copy that is not as its rule says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CopyLine {
    pub(super) namespace: String,
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) rule: String,
    pub(super) state: State,
    pub(super) message: String,
}

/// A namespace that waits for copies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WaitingNamespace {
    pub(super) namespace: String,
    /// The state of its pods meanwhile.
    pub(super) pods: State,
    /// The copies, with their rules and how far they are.
    pub(super) waits_for: Vec<String>,
}

impl Status {
    /// The state of one rule, or of all of them.
    pub(super) async fn of(
        picture: &Picture,
        scope: &Scope,
        only: Option<&RuleId>,
        connected: &Connected,
    ) -> Result<Self> {
        if let Some(id) = only
            && !picture.rules.contains_key(id)
        {
            bail!("there is no {id}, or you may not read it");
        }
        if let Scope::One(namespace) = scope
            && !picture.namespaces.contains_key(namespace)
        {
            bail!("there is no namespace {namespace}");
        }
        let reader = connected.reader();
        let (mimeo, unread) = Installation::read(&reader, &connected.mimeo).await;
        let mut status = Self {
            mimeo: Some(mimeo),
            // A named rule was read, whatever other rules there are.
            complete: (only.is_some() || !picture.unread.has_rules())
                && !picture.unread.has(&Gap::Copies)
                && !picture.unread.has(&Gap::Grants),
            notes: picture.unread.sentences().cloned().chain(unread).collect(),
            ..Self::default()
        };
        let shown = |id: &RuleId| only.is_none_or(|only| only == id);
        let rules = picture.rules.iter().filter(|(id, _)| shown(id));
        let mut lines: BTreeMap<&RuleId, RuleLine> =
            rules.map(|(id, stored)| (id, line(id, stored))).collect();
        status.count(picture, scope, &mut lines);
        status.count_absent(picture, scope, &mut lines);
        status.rules = lines.into_values().collect();
        status.waiting(picture);
        if only.is_none() {
            let engine = picture.snapshot.decided();
            status.held_of_deleted_rules = engine.held().map(|held| held.copies.len()).sum();
        }
        if let Scope::One(namespace) = scope {
            // Rules without a copy here are no news about the namespace.
            let own = |rule: &RuleLine| rule.copies > 0 || rule.held > 0 || only.is_some();
            status.rules.retain(own);
            status
                .notes
                .push(format!("Only copies in namespace {namespace} are counted."));
        }
        Ok(status)
    }

    pub(super) fn mimeo_runs(&self) -> bool {
        self.mimeo.as_ref().is_none_or(Installation::runs)
    }

    /// True if Mimeo runs and all copies are known to be as their rules say.
    pub(super) fn is_good(&self) -> bool {
        self.mimeo_runs()
            && self.complete
            && self.rules.iter().all(RuleLine::is_good)
            && self.held_of_deleted_rules == 0
    }

    /// How far the copies and the rules are, for a person who waits.
    pub(super) fn progress(&self) -> String {
        let sum = |count: fn(&RuleLine) -> usize| self.rules.iter().map(count).sum::<usize>();
        let good = self.rules.iter().filter(|rule| rule.is_good()).count();
        format!(
            "waiting: {} of {} copies are synced, {good} of {} rules are synced",
            sum(|rule| rule.synced),
            sum(|rule| rule.copies),
            self.rules.len()
        )
    }

    /// True if nothing that is printed has changed. Renewals of Leases are no change.
    pub(super) fn same(&self, other: &Self) -> bool {
        self.rules == other.rules
            && self.copies == other.copies
            && self.waiting == other.waiting
            && self.held_of_deleted_rules == other.held_of_deleted_rules
            && self.mimeo_runs() == other.mimeo_runs()
    }

    /// Counts the copies in the scope, and collects those that are not synced.
    fn count(&mut self, picture: &Picture, scope: &Scope, lines: &mut BTreeMap<&RuleId, RuleLine>) {
        places(&picture.snapshot, |namespace, place| {
            let PlaceView {
                rule,
                copies: all,
                synced,
                ..
            } = place;
            let Some(line) = lines.get_mut(&**rule).filter(|_| scope.has(namespace)) else {
                return;
            };
            line.synced += synced;
            if synced == all {
                line.copies += all;
                return;
            }
            for copy in copies(&picture.snapshot, rule, namespace) {
                self.copies
                    .extend(count(picture, namespace, rule, copy, line));
            }
        });
    }

    /// Counts the copies that Replications want in namespaces that don't exist, as the statuses of
    /// the rules do.
    fn count_absent(
        &mut self,
        picture: &Picture,
        scope: &Scope,
        lines: &mut BTreeMap<&RuleId, RuleLine>,
    ) {
        for (id, line) in lines {
            let rule = picture
                .rules
                .get(*id)
                .and_then(|rule| rule.rule.as_ref().ok());
            let targets = rule.into_iter().flat_map(|rule| &rule.targets);
            let named = targets.filter_map(|target| target.selection.exact_names());
            let absent: BTreeSet<&str> = named
                .flatten()
                .filter(|name| scope.has(name) && !picture.namespaces.contains_key(*name))
                .collect();
            for namespace in absent {
                for copy in copies(&picture.snapshot, id, namespace) {
                    self.copies
                        .extend(count(picture, namespace, id, copy, line));
                }
            }
        }
    }

    fn waiting(&mut self, picture: &Picture) {
        for (name, waits) in &picture.waiting {
            let some = pods(waits)
                .into_iter()
                .filter(|(_, copies)| !copies.is_empty());
            let some = some.map(|(pods, copies)| WaitingNamespace {
                namespace: name.clone(),
                pods,
                waits_for: copies.iter().map(ToString::to_string).collect(),
            });
            self.waiting.extend(some);
        }
    }
}

/// Counts a copy, unless it is synced. Returns its line if it is not as its rule says.
fn count(
    picture: &Picture,
    namespace: &str,
    rule: &RuleId,
    copy: CopyView,
    line: &mut RuleLine,
) -> Option<CopyLine> {
    let key = ObjectName {
        namespace,
        kind: &copy.kind,
        name: &copy.name,
    };
    let source = source_of(picture, rule, &key);
    line.copies += usize::from(copy.wanted);
    let (state, message) = state(picture, &key, rule, source.as_ref(), Some(&copy));
    match state {
        State::Synced | State::Suspended => return None,
        State::DeletionHeld => line.held += 1,
        _ if is_failure(picture, &key, rule, (&state, &copy)) => line.failed += 1,
        _ => line.pending += 1,
    }
    Some(CopyLine {
        namespace: namespace.to_owned(),
        kind: copy.kind,
        name: copy.name,
        rule: line.rule.clone(),
        state,
        message,
    })
}

/// The line of a rule before its copies are counted.
fn line(id: &RuleId, stored: &Stored) -> RuleLine {
    let status = stored.status.as_ref();
    let ready = status.and_then(|status| condition(status, "Ready"));
    let (ready, message) = match (&stored.rule, ready) {
        (_, Some(ready)) if ready.status == "True" => ("True".into(), String::new()),
        (_, Some(ready)) => (
            ready.status.clone(),
            format!("{}: {}", ready.reason, ready.message),
        ),
        (Err(refused), None) => (
            "False".into(),
            format!("InvalidSpec: {}", refusals(&refused.refusals)),
        ),
        (Ok(_), None) => (
            "Unknown".into(),
            "the reconciler has not written a status for this spec yet".into(),
        ),
    };
    RuleLine {
        rule: id.to_string(),
        ready,
        message,
        suspended: stored.rule.as_ref().is_ok_and(|rule| rule.suspend),
        copies: 0,
        synced: 0,
        pending: 0,
        failed: 0,
        held: 0,
    }
}

/// The source of a rule's copy. `None`: the rule doesn't want the copy.
fn source_of(picture: &Picture, rule: &RuleId, key: &ObjectName<'_>) -> Option<SourceRef> {
    let rule = picture.rules.get(rule)?.rule.as_ref().ok()?;
    let labels = picture.labels(key.namespace).unwrap_or_default();
    let place = Place {
        name: key.namespace,
        labels: &labels,
    };
    sources(picture, rule).into_iter().find(|source| {
        let mut names = rule.copy_names(source, place);
        *source.gvk.kind == *key.kind && names.any(|name| name == key.name)
    })
}
