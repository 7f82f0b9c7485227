//! Namespaces that wait for their copies. This file handles the pending label, decides which
//! process may write the copies, and finds the copies that still hold the namespace's pods.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use mimeo_model::{
    choices::PodGate,
    id::{RuleId, RuleKind},
    meta::Uid,
    names::PENDING_LABEL,
    outcome::{FailureReason, Unreadable},
    rule::Rule,
    selection::Labels,
    source::SourceSelector,
};

use crate::{
    Index, Namespace, Settings,
    blocked::Blocked,
    copy::CopyState,
    jobs::Task,
    projection::Projection,
    verdict::Outlook,
    work::{Timer, Work},
};

/// How long a pending label stays after the budget has ended. A pod that was refused until the
/// budget ended is retried one or two seconds later.
const FAREWELL: Duration = Duration::from_secs(5);

/// The word for a conflict, with its meaning for users that look at a pod.
const CONFLICT: Blocked = "Conflict, an object of that name exists";

/// How far one watch may be ahead of another. A longer lead is rare, and only costs a needless
/// request.
const SETTLING: Duration = Duration::from_millis(250);

/// The largest number of issued nonces. Any client that can reach the webhook can cause any number
/// of them. The label of a genuine request appears within milliseconds.
const MOST_ISSUED: usize = 10_000;

/// A copy that the pods of a namespace wait for.
///
/// Prints as
/// `Secret registry (ClusterReplication/registry, podGate Required): Conflict, an object of that
/// name exists`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwaitedCopy {
    /// Kind and name of the copy: `Secret registry`. Before a selector's sources are listed, a
    /// description of the selector instead.
    pub copy: String,
    /// The rule that makes the copy.
    pub rule: Arc<RuleId>,
    /// The rule's `podGate`.
    pub pod_gate: PodGate,
    /// Why it isn't there: the reason why it can't be written now, or how far it is on its way.
    pub why: String,
}

impl fmt::Display for AwaitedCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            copy,
            rule,
            pod_gate,
            why,
        } = self;
        write!(f, "{copy} ({rule}, podGate {pod_gate:?}): {why}")
    }
}

/// The copies that still hold the pods of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The uid of the observed namespace. `None`: this process has not seen the namespace yet.
    pub uid: Option<Uid>,
    /// The nonce of the pending label that this process saw on the namespace.
    pub nonce: Option<Box<str>>,
    /// Copies of `podGate: Required` that cannot be written now. Pods are denied.
    pub denied: Vec<AwaitedCopy>,
    /// Copies of `podGate: BestEffort` that cannot be written now. Pods are admitted with a
    /// warning.
    pub excused: Vec<AwaitedCopy>,
    /// Copies that Mimeo is writing.
    pub waiting: Vec<AwaitedCopy>,
    /// True if a rule of one of the copies in `waiting` has `podGate: Required`. The budget does
    /// not end this wait.
    pub required: bool,
    /// True if the budget has ended.
    pub over_budget: bool,
    /// True if a LimitRange or a ServiceAccount is among the copies in `waiting`. The admission
    /// plugins for these kinds read them before the API server calls any webhook. So a pod request
    /// that is held here would be judged without them.
    pub early_kinds: bool,
}

impl Progress {
    /// Adds a copy that is not written yet. If it is `blocked`, it can't be written now. Otherwise
    /// `underway` says what Mimeo does about it.
    fn awaits(
        &mut self,
        copy: String,
        (rule, pod_gate): (Arc<RuleId>, PodGate),
        blocked: Option<Blocked>,
        underway: String,
    ) {
        let required = pod_gate == PodGate::Required;
        let list = match blocked {
            None => &mut self.waiting,
            Some(_) if required => &mut self.denied,
            Some(_) => &mut self.excused,
        };
        self.required |= required && blocked.is_none();
        let why = blocked.map_or(underway, ToOwned::to_owned);
        list.push(AwaitedCopy {
            copy,
            rule,
            pod_gate,
            why,
        });
    }
}

impl Index {
    /// Returns the observed rules that hold the pods of a namespace with this name and these
    /// labels. Without a name, which the API server has yet to generate: the rules that may hold
    /// them.
    pub fn pod_gate_rules(&self, name: Option<&str>, labels: &Labels) -> BTreeSet<RuleId> {
        self.cluster_rules()
            .filter_map(|(_, state)| state.acting())
            .filter(|rule| rule.pod_gate != PodGate::None && rule.could_match(name, labels))
            .map(|rule| rule.id.clone())
            .collect()
    }

    /// True once all rules and all namespaces were observed. They decide about a namespace.
    pub fn primed(&self) -> bool {
        self.all_rules() && self.namespaces_listed
    }

    /// True once everything that a namespace's copies are made from was observed: kinds and sources
    /// too.
    pub fn informed(&self) -> bool {
        self.primed()
            && self.kinds.known
            && self
                .projections
                .values()
                .filter(|projection| projection.rule.kind == RuleKind::ClusterReplication)
                .all(|projection| {
                    projection.rendering.is_ok() || self.blocked(projection).is_some()
                })
            && self
                .cluster_rules()
                .filter_map(|(_, state)| state.valid())
                .all(|rule| self.knows_selected(rule))
    }

    /// Returns the removal of a namespace's pending label for the present state of the namespace.
    /// `None`: something holds its pods.
    pub(crate) fn label_to_remove(&self, name: &Arc<str>) -> Option<Task> {
        let namespace = self.namespaces.get(name)?;
        let (label, nonce) = namespace.pending_label.as_ref().zip(namespace.nonce())?;
        self.held_by_nothing(namespace).then(|| Task::RemoveLabel {
            namespace: name.clone(),
            nonce: nonce.into(),
            version: namespace.version,
            since: label.since,
        })
    }

    /// True if the pending label may be removed, and this process may do it.
    pub(crate) fn held_by_nothing(&self, namespace: &Namespace) -> bool {
        if !namespace.alive() || !self.primed() || !self.in_charge(namespace) {
            return false;
        }
        let progress = self.progress_of(namespace);
        // The label stays until the budget ends if a BestEffort copy cannot be written. Meanwhile
        // pods get their warning.
        let excused = progress.excused.is_empty() || progress.over_budget;
        // The label stays even longer if a copy is still waited for. Some pods waited until the
        // budget ended, or were refused and will be retried.
        let late = self.is_late(namespace, self.settings.budget + FAREWELL);
        let waited = progress.waiting.is_empty() || late && !progress.required;
        progress.denied.is_empty() && excused && waited
    }

    /// True if the namespace has had its pending label for this time, or has none.
    fn is_late(&self, namespace: &Namespace, time: Duration) -> bool {
        let pending_label = namespace.pending_label.as_ref();
        pending_label.is_none_or(|label| self.now >= label.since + time)
    }

    pub(crate) fn progress_of(&self, namespace: &Namespace) -> Progress {
        let mut progress = Progress {
            uid: namespace.uid,
            nonce: namespace.nonce().map(Into::into),
            over_budget: self.is_late(namespace, self.settings.budget),
            ..Progress::default()
        };
        self.await_selectors(namespace, &mut progress);
        for copy in &namespace.copies {
            let rule = self.acting_for(copy);
            let rule = rule.filter(|rule| rule.pod_gate != PodGate::None);
            let (Some(projection), Some(rule)) = (self.projections.wanted(copy), rule) else {
                continue;
            };
            let kind = &self.kinds[copy.kind].group_kind;
            let early =
                kind.group.is_empty() && matches!(&*kind.kind, "LimitRange" | "ServiceAccount");
            let Err(why) = self.holds_nothing(projection, namespace, copy) else {
                continue;
            };
            progress.early_kinds |= early && why.is_none();
            let shown = format!("{kind} {}", copy.name);
            let underway = match (&projection.rendering, copy.failed()) {
                (Err(_), _) => "Mimeo is reading its source".to_owned(),
                (Ok(_), None) => "it is being written".to_owned(),
                (Ok(_), Some(reason)) => {
                    format!("it is being written; the last attempt failed with {reason}")
                }
            };
            let by = (projection.rule.clone(), rule.pod_gate);
            progress.awaits(shown, by, why, underway);
        }
        progress
    }

    /// Adds the selectors whose objects are not listed yet. Pods wait until the objects are known.
    fn await_selectors(&self, namespace: &Namespace, progress: &mut Progress) {
        for (id, state) in &self.rules {
            let held = |rule: &&Rule| {
                rule.pod_gate != PodGate::None
                    && !rule.selectors.is_empty()
                    && rule.matches(namespace.place())
            };
            let Some(rule) = state.acting().filter(held) else {
                continue;
            };
            let unlisted = |selector: &&SourceSelector| self.found(selector).is_none();
            for selector in rule.selectors.iter().filter(unlisted) {
                let copies = format!(
                    "copies of the {} objects that a selector finds in namespace {}",
                    selector.gvk.kind, selector.namespace
                );
                progress.awaits(
                    copies,
                    (id.clone(), rule.pod_gate),
                    self.selector_blocked(selector),
                    "Mimeo is listing the sources".to_owned(),
                );
            }
        }
    }

    /// Checks that the pods of a namespace need not wait for this copy. The error says why they
    /// wait: the reason why the copy cannot be written now, or `None` if Mimeo is writing it.
    fn holds_nothing(
        &self,
        projection: &Projection,
        namespace: &Namespace,
        copy: &CopyState,
    ) -> Result<(), Option<Blocked>> {
        if copy.verdict.outlook == Outlook::Right {
            return Ok(());
        }
        // An installation may use Roles instead of a `ClusterRole`. The Role for a new namespace may
        // arrive later than the namespace, and a pod in that namespace may be the one to create it.
        // So a missing permission holds no pods here.
        let watched = self.kinds[copy.kind].watched_in(Some(&namespace.name));
        let denied = copy.failed() == Some(FailureReason::Forbidden)
            || watched.watch.unreadable() == Some(Unreadable::Forbidden);
        if denied && self.settings.reach.targets.is_some() {
            return Ok(());
        }
        if projection.rendering.is_err() || self.kinds.resource(projection.gvk()).is_none() {
            return Err(self.blocked(projection));
        }
        match copy.failed() {
            Some(FailureReason::Conflict) => Err(Some(CONFLICT)),
            Some(reason) if !reason.is_silence() => Err(Some(reason.as_str())),
            _ if copy.verdict.outlook == Outlook::Conflict => Err(Some(CONFLICT)),
            _ => Err(None),
        }
    }
}

impl Index {
    /// Adds the nonce of a new pending label. If there are too many, all others are dropped. The
    /// reconciler then writes the copies of their namespaces, a little later.
    pub(crate) fn issue(&mut self, nonce: &str) {
        if self.issued.len() >= MOST_ISSUED {
            self.issued.clear();
        }
        self.issued.insert(nonce.into());
    }

    /// Takes in the pending label of a namespace, which may be `new`. `old` are its former labels.
    pub(crate) fn see_label(
        &mut self,
        entry: &mut Namespace,
        new: bool,
        old: &Labels,
        work: &mut Work,
    ) {
        let Some(nonce) = entry.labels.get(PENDING_LABEL) else {
            entry.pending_label = None;
            return;
        };
        let label = entry.pending_label.get_or_insert_default();
        let Settings {
            takeover, budget, ..
        } = self.settings;
        if old.get(PENDING_LABEL) != Some(nonce) {
            label.since = self.now;
            if self.issued.remove(nonce) {
                // An API server whose cache lacks a new namespace sleeps for 50 ms before it creates
                // an object there. Among single namespaces that is too rare for a delay before all
                // first writes. Among many at once a delay of 5 ms did not help.
                //
                // In a namespace that existed before, the label comes ahead of an update of the
                // other labels. Another webhook may still refuse that update.
                label.charge = Some(self.now + if new { Duration::ZERO } else { takeover });
            }
            for wait in [takeover, budget, budget + FAREWELL] {
                work.timer(self.now + wait, Timer::Namespace(entry.name.clone()));
            }
        } else if *old != entry.labels {
            label.charge = label.charge.map(|from| from.min(self.now));
        }
    }

    /// A pod waits in this namespace. This replica helps to write the copies, even if another
    /// replica set the pending label.
    pub(crate) fn take_charge(&mut self, namespace: &str) {
        if let Some(entry) = self.namespaces.get_mut(namespace)
            && let Some(label) = &mut entry.pending_label
            && label.charge.is_none_or(|from| from > self.now)
        {
            label.charge = Some(self.now);
            self.dirty.insert(entry.name.clone());
        }
    }

    /// A namespace has lost its pending label or has other labels now. If a webhook runs, it has
    /// written the copies for these labels already. The namespace watch may be ahead of the watches
    /// of copies. So this process waits a moment: a second write would cost a request and gain
    /// nothing. A webhook replica never learns of webhooks, so it doesn't wait.
    pub(crate) fn let_settle(&self, entry: &mut Namespace, work: &mut Work) {
        // A wait that has begun is not extended. Otherwise a user that may label a namespace could
        // block all updates of its copies.
        if !self.webhooks.seen.is_empty() && entry.settles <= self.now {
            entry.settles = self.now + SETTLING;
            work.timer(entry.settles, Timer::Namespace(entry.name.clone()));
        }
    }

    /// Returns the copies that still hold the pods of a namespace.
    pub(crate) fn progress(&self, namespace: &str) -> Progress {
        let entry = self.namespaces.get(namespace);
        match entry.filter(|entry| entry.uid.is_some() && self.primed()) {
            Some(entry) => self.progress_of(entry),
            None => Progress::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_displaces_the_others_and_not_what_comes_after_it() {
        let mut index = Index::default();
        index.issue("old");
        for number in 0..2 * MOST_ISSUED {
            index.issue(&number.to_string());
            assert!(index.issued.len() <= MOST_ISSUED);
        }
        index.issue("genuine");
        assert!(!index.issued.contains("old") && index.issued.contains("genuine"));
        assert!(index.issued.remove("genuine") && !index.issued.remove("genuine"));
    }

    #[test]
    fn the_same_one_again_and_again_takes_no_room() {
        let mut index = Index::default();
        index.issue("first");
        for _ in 0..2 * MOST_ISSUED {
            index.issue("same");
        }
        assert!(index.issued.contains("first") && index.issued.contains("same"));
        assert_eq!(index.issued.len(), 2);
    }
}
