//! What a rule says about itself: conditions, counts, and the first failures.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use mimeo_api::{ClusterReplicationStatus, CopyCounts, CopyFailure, Plan, PlannedCopy, SourceStatus};

use super::{
    Engine, Listing, RuleState, Served, Source, Tick,
    authorized::{Authority, Unauthorized, told_denied},
    consent::Lack,
    select::Choice,
    work::Timer,
};
use crate::{
    cell::{Cell, Leave, Step, Why},
    kind::{GroupVersionKind, Resource},
    meta::{Seen, source_hash},
    outcome::{Reason, Unreadable},
    rule::{Barrier, MOST_SOURCES, Refusal, Retain, Rule, RuleId, RuleKind, SourceRef, SourceSelector},
    slot::{NoRendering, Slot},
};

/// The status that a rule carries, as its author's API server shows it.
pub type Observed = Option<ClusterReplicationStatus>;

/// A status to write.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusUpdate {
    /// The rule.
    pub id: RuleId,
    /// All of its status.
    pub status: ClusterReplicationStatus,
}

/// What is known of the webhook's replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Webhooks {
    /// For each replica whose Lease is live: the highest resourceVersion of a rule that it has taken in.
    pub seen: Vec<u64>,
}

/// When a rule's status was written and whether it must be again.
#[derive(Debug, Default)]
pub(super) struct Book {
    due: bool,
    not_before: Tick,
    observed: Observed,
    /// When a copy was last written or deleted, until it is told by the clock on the wall.
    synced: Option<Tick>,
    /// The same by that clock, read once: read again it would differ by a moment, and a second's end may lie in it.
    last_sync: Option<Timestamp>,
}

impl Book {
    pub(super) fn touch(&mut self) {
        self.due = true;
    }

    pub(super) fn synced(&mut self, now: Tick) {
        self.synced = Some(now);
        self.due = true;
    }

    /// What the rule carries. The webhook goes by it, so whatever somebody else made of it is put right.
    pub(super) fn observe(&mut self, observed: Observed) {
        self.due |= self.observed.is_some() && self.observed != observed;
        self.observed = observed;
    }

    fn told_denied(&self, generation: i64) -> bool {
        told_denied(&self.observed, generation).is_some()
    }
}

/// Statuses are written at most this often per rule.
const PACE: Duration = Duration::from_secs(1);
/// A configuration change reaches every API server within this time.
pub(super) const HOOKS_KNOWN: Duration = Duration::from_secs(5);
const FAILURES: usize = 20;
const SOURCES: usize = 32;
const PLANNED: usize = 20;
/// Most statuses at once; they are written one by one.
const BATCH: usize = 128;

/// Words of a plan.
const CREATE: &str = "Create";
const UPDATE: &str = "Update";
const DELETE: &str = "Delete";
const CONFLICT: &str = "Conflict";

/// What the cells of one rule come to.
#[derive(Default)]
pub(super) struct Tally {
    copies: CopyCounts,
    plan: Plan,
    /// The first copies that the plan counts.
    planned: BTreeMap<CellName, &'static str>,
    pub(super) failures: BTreeMap<CellName, (Reason, Box<str>)>,
}

impl Tally {
    /// Counts what would be done about a cell, and keeps the first of these by name.
    fn plan(&mut self, action: &'static str, namespace: &Arc<str>, kind: &str, name: &Arc<str>) {
        let Plan { create, update, delete, conflict, .. } = &mut self.plan;
        *match action {
            CREATE => create,
            UPDATE => update,
            DELETE => delete,
            _ => conflict,
        } += 1;
        self.planned.insert((namespace.clone(), kind.into(), name.clone()), action);
        if self.planned.len() > PLANNED {
            self.planned.pop_last();
        }
    }

    /// Counts a cell as failed if it has failed, or if a wanted copy can't be put right because what is there is going and doesn't go.
    fn fail(&mut self, namespace: &Arc<str>, kind: &str, cell: &Cell, wanted: bool) {
        let going = wanted && cell.seen().is_some_and(|seen| seen.deleting);
        let (reason, message) = match &cell.failure {
            Some(failure) => (failure.reason, failure.message.clone()),
            None if going => (Reason::Conflict, "what has its name is being deleted, and a finalizer keeps it".into()),
            None => return,
        };
        self.copies.failed += 1;
        self.failures.insert((namespace.clone(), kind.into(), cell.name.clone()), (reason, message));
    }
}

/// Whether a copy whose source is missing is deleted with it once the grace is over.
fn goes_with_source(rule: &Rule, slot: &Slot, cell: &Cell) -> bool {
    let hash = source_hash(&slot.source.to_string());
    rule.retention.when_source_deleted == Retain::Delete
        && cell.ours().is_some_and(|seen| seen.source == hash && !seen.deleting)
}

/// Namespace, kind and name: the order in which failures are told.
type CellName = (Arc<str>, String, Arc<str>);

impl Engine {
    /// The webhook's replicas, as their Leases show them.
    pub fn webhooks(&mut self, webhooks: Webhooks, now: Tick) {
        self.at(now);
        if self.webhooks == webhooks {
            return;
        }
        match (self.webhooks.seen.is_empty(), webhooks.seen.is_empty()) {
            // The first since there were none has just registered the hooks.
            (true, false) => {
                self.webhooks_since = self.now;
                self.work.timer(self.now + HOOKS_KNOWN, Timer::Rules);
            }
            (false, true) => self.rules.values_mut().for_each(|state| state.barrier_proven = false),
            _ => {}
        }
        self.webhooks = webhooks;
        self.rules.values_mut().for_each(|state| state.status.touch());
    }

    /// Statuses that are due, as of the time `wall`.
    pub fn statuses(&mut self, now: Tick, wall: Timestamp) -> Vec<StatusUpdate> {
        self.at(now);
        self.plan();
        let due = self.rules.iter().filter(|(_, state)| state.status.due && state.status.not_before <= self.now);
        let mut due: Vec<(Tick, Arc<RuleId>)> = due.map(|(id, state)| (state.status.not_before, id.clone())).collect();
        // However many rules a tenant has: the platform's come first, and after them who has waited for longest.
        due.sort_by(|(since, id), (other, than)| (id.kind, since).cmp(&(than.kind, other)));
        due.iter().take(BATCH).filter_map(|(_, id)| self.status(id, wall)).collect()
    }

    /// When [`Engine::statuses`] has something to say again.
    pub fn status_due(&self) -> Option<Tick> {
        self.rules.values().filter(|state| state.status.due).map(|state| state.status.not_before).min()
    }

    /// A status could not be written.
    pub fn status_failed(&mut self, id: &RuleId, now: Tick) {
        self.at(now);
        if let Some(state) = self.rules.get_mut(id) {
            state.status.due = true;
            state.status.observed = None;
            state.status.not_before = self.now + PACE * 5;
        }
    }

    fn status(&mut self, id: &Arc<RuleId>, wall: Timestamp) -> Option<StatusUpdate> {
        let state = self.rules.get(id)?;
        // Half a picture is none: after a start the status stays what it was until everything it speaks of was seen.
        if !self.known(id, state) {
            self.rules.get_mut(id)?.status.not_before = self.now + PACE;
            return None;
        }
        let now = self.now;
        let book = &mut self.rules.get_mut(id)?.status;
        if let Some(tick) = book.synced.take() {
            book.last_sync = ago(wall, now.saturating_sub(tick)).or(book.last_sync);
        }
        let status = self.compose(id, self.rules.get(id)?, wall);
        let book = &mut self.rules.get_mut(id)?.status;
        book.due = false;
        if book.observed.as_ref() == Some(&status) {
            return None;
        }
        book.observed = Some(status.clone());
        book.not_before = now + PACE;
        Some(StatusUpdate { id: (**id).clone(), status })
    }

    fn known(&self, id: &RuleId, state: &RuleState) -> bool {
        match &state.authority {
            Authority::Open(None) => return false,
            // Nobody answers, and the webhook takes the last word from this status: it stays said.
            Authority::Open(_) if state.rule.as_ref().is_ok_and(|rule| state.status.told_denied(rule.generation)) => {
                return false;
            }
            // Of a rule that doesn't act nothing is told.
            Authority::Held => {}
            _ => return self.primed(),
        }
        let slots = state.slots.iter().flatten().filter_map(|id| self.slots.get(id));
        self.primed()
            && state.rule.as_ref().map_or(true, |rule| self.knows_selected(rule))
            && (id.kind == RuleKind::ClusterReplication || self.consent.listing != Listing::Unknown)
            && slots.filter(|slot| slot.granted && self.settings.reach.refuses(&slot.source).is_none()).all(|slot| {
                match self.served.get(slot.gvk()) {
                    Some(Served::At(resource)) if resource.namespaced => {
                        let listed = state.rule.as_ref().is_ok_and(|rule| self.surveyed(rule, slot.kind));
                        listed && (slot.rendering.is_ok() || self.hindrance(slot).is_some())
                    }
                    Some(Served::Unknown) | None => false,
                    _ => true,
                }
            })
    }

    fn compose(&self, id: &Arc<RuleId>, state: &RuleState, wall: Timestamp) -> ClusterReplicationStatus {
        let old = state.status.observed.as_ref();
        let generation = state.rule.as_ref().ok().map(|rule| rule.generation);
        let last_sync_time =
            state.status.last_sync.map(Time).or_else(|| old.and_then(|old| old.last_sync_time.clone()));
        let mut status = ClusterReplicationStatus {
            observed_generation: generation.or_else(|| old.and_then(|old| old.observed_generation)),
            last_sync_time,
            ..ClusterReplicationStatus::default()
        };
        let mut conditions =
            Conditions { old: old.map_or(&[], |old| &old.conditions), wall, generation, new: Vec::new() };
        match &state.rule {
            Err(refusals) => {
                let message = refusals.iter().map(Refusal::to_string).collect::<Vec<_>>().join("; ");
                conditions.set("Ready", false, "InvalidSpec", &message);
                conditions.set("Stalled", true, "InvalidSpec", &message);
            }
            Ok(rule) if let Some(Unauthorized { reason, message }) = state.author_trouble(id) => {
                conditions.set("Ready", false, "NotAuthorized", &message);
                conditions.set("Authorized", false, reason, &message);
                self.describe_barrier(state, rule, &mut conditions);
            }
            Ok(rule) => {
                let tally = self.tally(id, state, rule);
                let choice = self.choose(rule);
                self.describe(id, state, rule, (&tally, &choice), &mut conditions);
                status.copies = Some(tally.copies);
                let planned = tally.planned.into_iter().map(planned).collect();
                status.plan = rule.suspend.then_some(Plan { copies: planned, ..tally.plan });
                status.sources =
                    choice.sources.iter().take(SOURCES).map(|source| self.source_status(id, source)).collect();
                status.failures = tally.failures.into_iter().take(FAILURES).map(failure).collect();
            }
        }
        status.conditions = conditions.new;
        status
    }

    fn tally(&self, id: &Arc<RuleId>, state: &RuleState, rule: &Rule) -> Tally {
        let mut tally = Tally::default();
        for name in &self.places(id) {
            let Some(namespace) = self.namespaces.get(name) else { continue };
            for cell in &namespace.cells {
                let slot = cell.want.and_then(|want| self.slots.get(&want)).filter(|slot| slot.rule == *id);
                let Some(slot) = slot else {
                    let own = |seen: &&Seen| seen.rule.as_ref() == Some(id) && !seen.elsewhere;
                    let stray = cell.ours().filter(own).filter(|_| cell.want.is_none() && namespace.alive());
                    if stray.is_some() {
                        let unselected = !self.unselected(id, name, &namespace.labels, cell).is_empty();
                        let retention = &rule.retention;
                        let fate = if unselected { retention.when_source_deleted } else { retention.when_unmatched };
                        let goes = fate == Retain::Delete
                            && (id.kind == RuleKind::ClusterReplication || self.grants_known())
                            && !self.is_named(id.kind, cell.kind, name, &cell.name)
                            && !self.remembers(namespace, id, cell.kind, &cell.name);
                        let kind = &self.kinds[usize::from(cell.kind.0)].group_kind.kind;
                        if goes {
                            tally.plan(DELETE, name, kind, &cell.name);
                        }
                        tally.fail(name, kind, cell, false);
                    }
                    continue;
                };
                tally.copies.desired += 1;
                let seeded = self.seeded(slot, rule, namespace, cell);
                let step = match &slot.rendering {
                    _ if seeded => Step::Leave(Leave::Seeded),
                    Ok(copies) => match copies.checksum_at(namespace.place(name)) {
                        Ok(checksum) => self.compare(slot, checksum, rule, (name, namespace), cell),
                        Err(_) => Step::Leave(Leave::Unfillable),
                    },
                    Err(NoRendering::SourceMissing) if goes_with_source(rule, slot, cell) => {
                        tally.plan(DELETE, name, &slot.gvk().kind, &cell.name);
                        Step::Leave(Leave::NoSource)
                    }
                    Err(_) => Step::Leave(Leave::NoSource),
                };
                let action = match step {
                    Step::Leave(Leave::UpToDate | Leave::Seeded | Leave::Learning)
                    | Step::Learn(_)
                    | Step::Apply(_, Why::Resync) => {
                        tally.copies.synced += 1;
                        None
                    }
                    Step::Leave(Leave::Foreign(_)) => Some(CONFLICT),
                    Step::Create(_) => Some(CREATE),
                    Step::Apply(..) | Step::Take(..) | Step::Claim(..) => Some(UPDATE),
                    _ => None,
                };
                if let Some(action) = action {
                    tally.plan(action, name, &slot.gvk().kind, &cell.name);
                }
                tally.fail(name, &slot.gvk().kind, cell, slot.rendering.is_ok() && !seeded);
            }
        }
        for (name, lost) in &state.conflicts {
            for cell in lost {
                tally.copies.desired += 1;
                tally.copies.failed += 1;
                let kind = self.kinds[usize::from(cell.kind.0)].group_kind.kind.to_string();
                tally.plan(CONFLICT, name, &kind, &cell.name);
                let message = cell.message(id, name).into();
                tally.failures.insert((name.clone(), kind, cell.name.clone()), (Reason::RuleConflict, message));
            }
        }
        self.tally_not_granted(rule, &mut tally);
        tally
    }

    /// Counts the copies that a rule may not have. Whether their namespaces exist makes no difference.
    fn tally_not_granted(&self, rule: &Rule, tally: &mut Tally) {
        let Some(home) = rule.id.namespace.as_deref() else { return };
        let cells = self.ungranted_cells(rule);
        let count = i32::try_from(cells.len()).unwrap_or(i32::MAX);
        tally.copies.desired += count;
        if !self.grants_known() {
            return; // What is there may be as it should be.
        }
        tally.copies.failed += count;
        // More are never shown.
        for ((namespace, kind, name), lack) in cells.into_iter().take(FAILURES) {
            let cell = (namespace.into(), kind.to_owned(), name.into());
            tally.failures.insert(cell, (Reason::NotGranted, lack.message(home).into()));
        }
    }

    fn describe(
        &self,
        id: &Arc<RuleId>,
        state: &RuleState,
        rule: &Rule,
        (tally, choice): (&Tally, &Choice),
        conditions: &mut Conditions<'_>,
    ) {
        let trouble = self.source_trouble(rule, choice);
        let CopyCounts { desired, synced, failed } = tally.copies;
        let unauthorized = self.unauthorized(rule, tally);
        let unwatched = self.unwatched_copies(rule);
        let hindered = trouble.is_some() || unauthorized.is_some() || unwatched.is_some();
        let pending = !hindered && failed == 0 && synced < desired;
        match &trouble {
            _ if rule.suspend => {
                let Plan { create, update, delete, conflict, .. } = &tally.plan;
                let message = format!(
                    "nothing is written or deleted; lifting suspend would create {create}, update {update} and delete {delete} \
                     copies, {conflict} conflict"
                );
                conditions.set("Ready", false, "Suspended", &message);
            }
            _ if let Some(Unauthorized { message, .. }) = &unauthorized => {
                conditions.set("Ready", false, "NotAuthorized", message);
            }
            Some((_, message)) => conditions.set("Ready", false, "SourceNotFound", message),
            None if let Some(message) = unwatched => conditions.set("Ready", false, "Pending", &message),
            None if failed > 0 => {
                let mut names: Vec<&str> = tally.failures.keys().map(|(namespace, ..)| &**namespace).collect();
                names.dedup();
                let more =
                    if names.len() > 5 { format!(" and {} more namespaces", names.len() - 5) } else { String::new() };
                let reason = tally.failures.values().next().map_or("unknown".into(), |(reason, _)| reason.to_string());
                let names = names[..names.len().min(5)].join(", ");
                let message = format!("{failed} of {desired} copies failed, first with {reason}: in {names}{more}");
                conditions.set("Ready", false, "CopiesFailed", &message);
            }
            None if desired == 0 => conditions.set("Ready", true, "NoNamespaceMatches", "no namespace is selected"),
            None if pending => {
                conditions.set("Ready", false, "Pending", &format!("{synced} of {desired} copies are up to date"));
            }
            None => conditions.set("Ready", true, "Synced", &format!("all {desired} copies are up to date")),
        }
        match &trouble {
            None => conditions.set("SourcesFound", true, "Found", &found(choice)),
            Some((reason, message)) => conditions.set("SourcesFound", false, reason, message),
        }
        match &unauthorized {
            None if let Some(Unauthorized { reason, message }) = self.rules_unread() => {
                conditions.set("Authorized", false, reason, &message);
            }
            None => conditions.set("Authorized", true, "Allowed", "the rule's author and Mimeo may do what it takes"),
            Some(Unauthorized { reason, message }) => conditions.set("Authorized", false, reason, message),
        }
        self.describe_barrier(state, rule, conditions);
        if pending && !rule.suspend {
            conditions.set("Reconciling", true, "Pending", &format!("{} copies are being written", desired - synced));
        }
        if let Some((count, nonce)) = self.sweeps.get(id).and_then(|sweep| Some((sweep.len(), sweep.held.as_deref()?)))
        {
            let (most, rule) = match &id.namespace {
                None => ("this rule's copies", format!("clusterreplication {}", id.name)),
                Some(home) => (
                    "this rule's copies, of its namespace's Replications' or of all Replications',",
                    format!("replication --namespace {home} {}", id.name),
                ),
            };
            let message = format!(
                "{count} copies would be deleted at once, which is half of {most} or more; if that is meant: kubectl annotate \
                 --overwrite {rule} {}={nonce}",
                crate::names::CONFIRM_DELETION,
            );
            conditions.set("Stalled", true, "DeletionHeld", &message);
        }
    }

    fn describe_barrier(&self, state: &RuleState, rule: &Rule, conditions: &mut Conditions<'_>) {
        if rule.id.kind == RuleKind::Replication {
            return; // It can have none.
        }
        if state.barrier() == Barrier::None {
            conditions.set("BarrierActive", false, "Disabled", "pods do not wait for this rule's copies");
        } else if self.webhooks.seen.is_empty() {
            let message =
                "no webhook replica is alive: new namespaces get their copies from the reconciler, pods do not wait";
            conditions.set("BarrierActive", false, "WebhookUnavailable", message);
        } else if !self.taken_in(state) {
            conditions.set(
                "BarrierActive",
                false,
                "Pending",
                "not every webhook replica has taken in this version of the rule",
            );
        } else {
            let count = self.webhooks.seen.len();
            let message = format!("pods of new namespaces wait for their copies; webhook replicas: {count}");
            conditions.set("BarrierActive", true, "Active", &message);
        }
    }

    /// Whether every live webhook replica has taken in this version of the rule, and every API server the webhooks'.
    fn taken_in(&self, state: &RuleState) -> bool {
        // A replica of before the proof took part in it, one of after it has listed the rule: only one that has seen nothing
        // yet doesn't know it. Versions are no help here, those of statuses written since are among them.
        let least = if state.barrier_proven { 1 } else { state.spec_version };
        (state.barrier_proven || self.now >= state.spec_seen.max(self.webhooks_since) + HOOKS_KNOWN)
            && self.webhooks.seen.iter().all(|seen| *seen >= least)
    }

    /// The first thing that is wrong with the sources: reason and message.
    fn source_trouble(&self, rule: &Rule, choice: &Choice) -> Option<(&'static str, String)> {
        let selected = || choice.sources.iter().filter(|source| source.selector().is_some());
        let trouble = rule.selectors.iter().find_map(|selector| self.selector_trouble(rule, selector, selected()));
        trouble.or_else(|| choice.sources.iter().find_map(|source| self.trouble_of(rule, source))).or_else(|| {
            let found = choice.sources.len() + choice.beyond;
            (choice.beyond > 0).then(|| {
                let message = format!(
                    "{found} sources are named or selected, and a rule has at most {MOST_SOURCES}: those that selectors find \
                     are taken by their age, the oldest first"
                );
                ("SourceRefused", message)
            })
        })
    }

    /// What is wrong with a selector.
    fn selector_trouble<'a>(
        &self,
        rule: &Rule,
        selector: &SourceSelector,
        mut sources: impl Iterator<Item = &'a SourceRef>,
    ) -> Option<(&'static str, String)> {
        let resource = match self.resource_of(&selector.gvk, &selector.namespace) {
            Ok(resource) => resource,
            Err((reason, why)) => return Some((reason, format!("{selector}: {why}"))),
        };
        if let Some(why) = self.selectors.get(selector)?.unreadable {
            return Some(("SourceRefused", format!("{selector}: {}", why.explain(&resource.to_string()))));
        }
        let mut lost = self.sources.iter().filter(|(source, _)| selector.finds(source));
        let lost = lost.find_map(|(source, state)| match state {
            Source::Missing { since, .. }
                if self.now < *since + rule.retention.source_grace && self.copied(rule, source) =>
            {
                let grace = rule.retention.source_grace.as_secs();
                Some(("InGracePeriod", format!("{source} is not there any more; its copies stay for {grace} seconds")))
            }
            _ => None,
        });
        let none = || ("SourceNotFound", format!("{selector}: nothing matches the selector"));
        lost.or_else(|| (!sources.any(|source| selector.finds(source))).then(none))
    }

    /// How the kind of sources in a namespace is served, or why there can't be any: reason and message.
    fn resource_of(&self, gvk: &GroupVersionKind, namespace: &str) -> Result<&Resource, (&'static str, String)> {
        if let Some(why) = self.settings.reach.refuses_home(gvk, namespace) {
            return Err(("SourceRefused", why.to_string()));
        }
        match self.served.get(gvk) {
            Some(Served::At(resource)) if !resource.namespaced => {
                Err(("SourceRefused", "the kind is cluster-scoped".to_owned()))
            }
            Some(Served::At(resource)) => Ok(resource),
            Some(Served::Unanswered(why)) => {
                let (version, why) = (gvk.api_version(), why.reason());
                let message = format!("the API server does not say which kinds {version} has ({why})");
                Err(("SourceRefused", message))
            }
            _ => Err(("KindNotServed", "the cluster does not serve this kind".to_owned())),
        }
    }

    /// What is wrong with a source.
    fn trouble_of(&self, rule: &Rule, source: &SourceRef) -> Option<(&'static str, String)> {
        if let Some(home) = rule.id.namespace.as_deref().filter(|_| !self.may_read(&rule.id, source)) {
            let message = self.grants_untold().map(|untold| untold.message);
            return Some(("SourceRefused", message.unwrap_or_else(|| Lack::of_source(source).message(home))));
        }
        let resource = match self.resource_of(&source.gvk, &source.namespace) {
            Ok(resource) => resource,
            Err((reason, why)) => return Some((reason, format!("{source}: {why}"))),
        };
        if let Some(why) = self.unreadable.get(source) {
            return Some(("SourceRefused", format!("{source}: {}", why.explain(&resource.to_string()))));
        }
        match self.sources.get(source) {
            // One that is selected is being read; one that is beyond a tenant's budget isn't.
            Some(Source::Found { .. } | Source::NotRead) => {}
            Some(Source::Missing { since, .. })
                if self.now < *since + rule.retention.source_grace && self.copied(rule, source) =>
            {
                let grace = rule.retention.source_grace.as_secs();
                return Some(("InGracePeriod", format!("{source} is gone; its copies stay for {grace} seconds")));
            }
            _ => return Some(("SourceNotFound", format!("{source} does not exist"))),
        }
        let slots = self.rules.get(&rule.id).into_iter().flat_map(|state| state.slots.iter().flatten());
        let refused = slots.filter_map(|id| self.slots.get(id)).find_map(|slot| match &slot.rendering {
            Err(NoRendering::Refused(why)) if slot.source == *source => Some(why),
            _ => None,
        });
        refused.map(|why| ("SourceRefused", format!("{source}: {why}")))
    }

    /// Whether watching copies of a rule fails for now.
    fn unwatched_copies(&self, rule: &Rule) -> Option<String> {
        rule.kinds.iter().find_map(|gvk| {
            let resource = self.served.get(gvk).and_then(Served::namespaced)?;
            let (namespace, why) = self.unwatchable(rule, &gvk.group_kind())?;
            Some(unwatched(namespace, why, resource))
        })
    }

    /// Whether copies of a source are there that the rule deletes with it.
    fn copied(&self, rule: &Rule, source: &SourceRef) -> bool {
        let hash = source_hash(&source.to_string());
        let copy = |seen: &Seen| seen.source == hash && seen.rule.as_deref() == Some(&rule.id);
        let places = self.places(&rule.id);
        let mut cells =
            places.iter().filter_map(|name| self.namespaces.get(name)).flat_map(|namespace| &namespace.cells);
        rule.retention.when_source_deleted == Retain::Delete && cells.any(|cell| cell.ours().is_some_and(copy))
    }

    fn source_status(&self, id: &RuleId, source: &SourceRef) -> SourceStatus {
        let version = match self.sources.get(source) {
            // Read for another rule it is nothing to this one.
            Some(Source::Found { version, .. }) if self.may_read(id, source) => Some(version.to_string()),
            _ => None,
        };
        SourceStatus {
            api_version: source.gvk.api_version(),
            kind: source.gvk.kind.to_string(),
            namespace: source.namespace.to_string(),
            name: source.name.to_string(),
            resource_version: version,
        }
    }
}

/// That copies can't be watched, somewhere or at all.
pub(super) fn unwatched(namespace: Option<&str>, why: Unreadable, resource: &Resource) -> String {
    let place = namespace.map(|name| format!(" in namespace {name}")).unwrap_or_default();
    format!("copies cannot be watched{place}: {}", why.explain(&resource.to_string()))
}

fn planned(((namespace, kind, name), action): (CellName, &str)) -> PlannedCopy {
    PlannedCopy { action: action.into(), kind, namespace: namespace.to_string(), name: name.to_string() }
}

/// What was found, and what of it is passed over.
fn found(choice: &Choice) -> String {
    let more = match choice.passed.len() {
        0 | 1 => String::new(),
        count => format!(", and {} more are passed over like it", count - 1),
    };
    let passed = choice.passed.first().map(|(source, why)| format!("; {source} is selected, but {why}{more}"));
    format!("every source was found{}", passed.unwrap_or_default())
}

fn failure(((namespace, kind, name), (reason, message)): (CellName, (Reason, Box<str>))) -> CopyFailure {
    CopyFailure {
        kind,
        namespace: namespace.to_string(),
        name: name.to_string(),
        reason: reason.to_string(),
        message: message.chars().take(300).collect(),
    }
}

/// Whether a status says that the barrier of this generation is up.
pub(super) fn barrier_active(observed: &Observed, generation: i64) -> bool {
    observed.iter().flat_map(|status| &status.conditions).any(|condition| {
        condition.type_ == "BarrierActive"
            && condition.status == "True"
            && condition.observed_generation == Some(generation)
    })
}

fn ago(wall: Timestamp, age: Duration) -> Option<Timestamp> {
    // API times have whole seconds.
    let then = wall.checked_sub(age).ok()?;
    Timestamp::from_second(then.as_second()).ok()
}

/// Conditions in the making: each keeps its transition time while its status stays (Kubernetes API conventions).
struct Conditions<'a> {
    old: &'a [Condition],
    wall: Timestamp,
    generation: Option<i64>,
    new: Vec<Condition>,
}

impl Conditions<'_> {
    fn set(&mut self, type_: &str, status: bool, reason: &str, message: &str) {
        let status = if status { "True" } else { "False" };
        let same = self.old.iter().find(|old| old.type_ == type_ && old.status == status);
        let now = Timestamp::from_second(self.wall.as_second()).unwrap_or(self.wall);
        self.new.push(Condition {
            type_: type_.into(),
            status: status.into(),
            reason: reason.into(),
            message: message.chars().take(2000).collect(),
            last_transition_time: same.map_or(Time(now), |old| old.last_transition_time.clone()),
            observed_generation: self.generation,
        });
    }
}
