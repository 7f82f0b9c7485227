//! The state machine that both programs drive: *event → index → plan → write → outcome → status*.
//!
//! It never waits and never reads a clock: events and answers come in with the time, requests go out as values. The reconciler
//! runs it as [`Role::Keeper`] over every namespace, the webhook as [`Role::Injector`] over the few that are waiting for their
//! first copies. What is decided about a cell is decided here, once, for both.
//!
//! - `mod.rs`: the world as far as it is known, and the events that tell of it
//! - `plan`: which cell wants which copy, and what to do about it
//! - `consent`: what namespaces grant each other's rules
//! - `budget`: how much of tenants' sources is held in memory
//! - `select`: which sources the selectors of rules find
//! - `collect`: which copies nobody wants, and whether they may go
//! - `survey`: which copies were seen
//! - `work`: the queue, the back-off, and what an answer means
//! - `ring`: copies that would be made of themselves
//! - `barrier`: namespaces that wait for their copies
//! - `preview`: what a rule would meet that isn't stored yet
//! - `status`: what a rule says about itself
//! - `authorized`: whether a rule may do what it says
//! - `announce`: what people are told by Events

mod announce;
mod authorized;
mod barrier;
pub(crate) mod budget;
mod collect;
mod consent;
mod plan;
mod preview;
mod ring;
mod select;
mod status;
mod survey;
mod work;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use self::survey::Surveys;
pub use self::{
    announce::Announcement,
    authorized::Inquiry,
    barrier::{Awaited, Progress},
    collect::{RuleRead, SourceRead},
    preview::{Contest, Preview},
    select::Member,
    status::{Observed, StatusUpdate, Webhooks},
    survey::CopyWatch,
    work::{Action, Errand, Notice, Request, Ticket, Verb},
};
use crate::{
    cell::{Belief, Cell, Content, Phase, Reference},
    kind::{GroupKind, GroupVersionKind, Resource},
    meta::{Seen, Uid, version},
    names,
    outcome::Unreadable,
    reach::Reach,
    render::{Copies, render},
    review::User,
    rule::{Refusal, Rule, RuleId, RuleKind, SourceRef, SourceSelector},
    seeds::Seeds,
    selection::Labels,
    slot::{CopyName, KindId, NoRendering, Slot, SlotId},
    template::Place,
};

/// Time since the process started. The engine's only clock, always an argument.
pub type Tick = Duration;

/// What an engine is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Keeps every copy of every namespace as it should be; the one reconciler that leads.
    Keeper,
    /// Writes the first copies of namespaces that wait for them; any number of webhook replicas, side by side.
    Injector,
}

/// What an operator, or the cluster, decides.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What the engine is for.
    pub role: Role,
    /// Uid of the namespace `kube-system`: tells this cluster from others.
    pub cluster: Box<str>,
    /// How long the webhook may take over a marked namespace before the reconciler does it.
    pub takeover: Duration,
    /// How long losses that nobody confirmed are collected before the first delete.
    pub sweep: Duration,
    /// Sweeps of at least this many copies that take half of a rule's copies are held.
    pub sweep_limit: usize,
    /// How long a namespace's pods may be held under `barrier: BestEffort`, from its mark on.
    pub budget: Duration,
    /// First back-off after a failure; doubles up to `backoff_limit`.
    pub backoff: Duration,
    /// Longest back-off.
    pub backoff_limit: Duration,
    /// Where it acts.
    pub reach: Reach,
}

impl Settings {
    /// The defaults, for a role and a cluster.
    pub fn new(role: Role, cluster: impl Into<Box<str>>) -> Self {
        Self {
            role,
            cluster: cluster.into(),
            takeover: Duration::from_secs(2),
            sweep: Duration::from_secs(10),
            sweep_limit: 20,
            budget: Duration::from_secs(10),
            backoff: Duration::from_millis(250),
            backoff_limit: Duration::from_mins(5),
            reach: Reach::default(),
        }
    }
}

/// The world as far as it is known, and what is under way.
#[derive(Debug)]
pub struct Engine {
    settings: Settings,
    rules: BTreeMap<Arc<RuleId>, RuleState>,
    listings: PerKind<Listing>,
    /// Rules that copies name but that don't exist.
    gone: BTreeMap<Arc<RuleId>, collect::Gone>,
    crds: PerKind<collect::CrdState>,
    consent: consent::Consent,
    sweeps: BTreeMap<Arc<RuleId>, collect::Sweep>,
    /// What a person confirmed on the kinds `ConfigMap`.
    confirmed: Option<Box<str>>,
    namespaces: BTreeMap<Arc<str>, Namespace>,
    namespaces_listed: bool,
    /// What rules name, and what their selectors find. Of the latter also what they have found and don't any more, for as long
    /// as copies of it are there.
    sources: BTreeMap<SourceRef, Source>,
    selectors: BTreeMap<SourceSelector, select::Findings>,
    /// What copies say that they were copied from, by its hash.
    origins: BTreeMap<u64, SourceRef>,
    /// Sources that can't be read now. What was last read of them holds meanwhile.
    unreadable: BTreeMap<SourceRef, Unreadable>,
    kinds: Vec<KindState>,
    kind_ids: BTreeMap<GroupKind, KindId>,
    /// Whether the kinds `ConfigMap` was read.
    kinds_known: bool,
    served: BTreeMap<GroupVersionKind, Served>,
    slots: BTreeMap<SlotId, Slot>,
    last_slot: u32,
    work: work::Work,
    dirty: BTreeSet<Arc<str>>,
    /// How often a namespace was planned.
    planned: u64,
    /// Tokens of marks that this replica set and has not seen yet.
    issued: BTreeMap<Box<str>, barrier::Issued>,
    inject_delay: Duration,
    webhooks: Webhooks,
    /// Since when there is one without a break.
    webhooks_since: Tick,
    notices: Vec<Notice>,
    news: announce::News,
    demand_version: u64,
    inquiry_version: u64,
    now: Tick,
}

/// Whether all objects of one of Mimeo's own kinds are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Listing {
    #[default]
    Unknown,
    /// The server doesn't serve the kind.
    Unserved,
    /// It won't say, until somebody mends that.
    Unreadable(Unreadable),
    /// Each was shown once.
    Listed,
}

/// Something for each kind of rules.
#[derive(Debug, Default)]
struct PerKind<T> {
    cluster: T,
    local: T,
}

impl<T> std::ops::Index<RuleKind> for PerKind<T> {
    type Output = T;

    fn index(&self, kind: RuleKind) -> &T {
        match kind {
            RuleKind::ClusterReplication => &self.cluster,
            RuleKind::Replication => &self.local,
        }
    }
}

impl<T> std::ops::IndexMut<RuleKind> for PerKind<T> {
    fn index_mut(&mut self, kind: RuleKind) -> &mut T {
        match kind {
            RuleKind::ClusterReplication => &mut self.cluster,
            RuleKind::Replication => &mut self.local,
        }
    }
}

/// One rule, as last seen.
#[derive(Debug)]
struct RuleState {
    rule: Result<Rule, Vec<Refusal>>,
    /// Who wrote it, if that is known.
    author: Option<Arc<User>>,
    authority: authorized::Authority,
    /// Slots of each target, source by source.
    slots: Vec<Vec<SlotId>>,
    /// resourceVersion at which this generation was first seen.
    spec_version: u64,
    spec_seen: Tick,
    /// Uid of the CRD that it is known to live under.
    crd: Option<Box<str>>,
    /// Whether that is being read.
    crd_asked: bool,
    /// Whether its status already said, when this generation was first seen, that every webhook replica has taken it in: so it
    /// was before a restart, and what replicas say of versions since doesn't count again.
    barrier_proven: bool,
    /// Cells that another rule has, by namespace.
    conflicts: BTreeMap<Arc<str>, Vec<plan::Lost>>,
    status: status::Book,
}

#[derive(Debug)]
struct KindState {
    group_kind: GroupKind,
    note: Note,
    surveys: Surveys,
}

/// A kind's note in the kinds `ConfigMap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Note {
    Absent,
    /// Being written.
    Adding,
    Present {
        /// Whether it wasn't there until this process wrote it: then no copy of ours was there either, and none need be listed
        /// before the first is written.
        fresh: bool,
    },
    /// Being removed: copies that are there are told of till then, but none may be written any more.
    Removing,
    /// It could not be removed, and stays for now.
    Kept,
}

impl KindState {
    fn recorded(&self) -> bool {
        matches!(self.note, Note::Present { .. } | Note::Removing | Note::Kept)
    }

    /// Whether copies may be written: should this process end, its successor looks for them.
    fn noted(&self) -> bool {
        matches!(self.note, Note::Present { .. } | Note::Kept)
    }

    /// Whether every copy of ours that is in the namespace has been seen.
    fn surveyed(&self, namespace: &str) -> bool {
        self.surveys.of(namespace).listed || self.note == (Note::Present { fresh: true })
    }
}

/// What discovery says of a kind.
#[derive(Debug, PartialEq, Eq)]
enum Served {
    Unknown,
    /// Nor will it be before somebody mends that.
    Unanswered(Unreadable),
    No,
    At(Resource),
}

impl Served {
    /// How it is served, if copies of it can exist.
    fn namespaced(&self) -> Option<&Resource> {
        match self {
            Self::At(resource) if resource.namespaced => Some(resource),
            _ => None,
        }
    }
}

enum Source {
    NotRead,
    Found {
        object: Arc<Value>,
        version: u64,
        /// Its namespace, if that is known to have gone since.
        home: Option<Uid>,
    },
    Missing {
        since: Tick,
        verdict: collect::SourceVerdict,
        /// The namespace that it was in, if that is known.
        home: Option<Uid>,
    },
}

impl Source {
    fn is_missing(&self) -> bool {
        matches!(self, Self::Missing { .. })
    }
}

/// Not derived: the object may be a Secret.
impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotRead => f.write_str("NotRead"),
            Self::Found { version, .. } => write!(f, "Found({version})"),
            Self::Missing { since, verdict, home } => write!(f, "Missing({since:?}, {verdict:?}, {home:?})"),
        }
    }
}

/// One namespace. Known by its own watch, or only by copies in it so far.
#[derive(Debug, Default)]
struct Namespace {
    /// None until its own watch has shown it.
    uid: Option<Uid>,
    version: u64,
    /// Version at which it was first seen. What is older may have been in a former namespace of its name.
    born: u64,
    labels: Labels,
    terminating: bool,
    /// Until then the keeper writes no copies: the webhook has just done so, and the watch of copies may yet have to say it.
    settles: Tick,
    mark: Option<Mark>,
    /// From when on this injector fills it.
    claim: Option<Tick>,
    cells: Vec<Cell>,
    /// What was created in it once, as its annotation says.
    seeds: Seeds,
    /// Whether that is being written, or waits to be tried again.
    noting: bool,
    /// How often in a row it could not be.
    note_streak: u8,
    /// Whether one of this name has ended, so that what is in `cells` may have gone with it.
    ended: bool,
    /// Which listing of the namespaces showed it last.
    listing: u8,
    /// Being crowded it isn't planned again until then.
    rests: Tick,
}

#[derive(Debug)]
struct Mark {
    token: Box<str>,
    since: Tick,
    /// Whether its removal is under way.
    removing: bool,
}

/// What must be watched now. Compared by the rim with what is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Kinds that discovery must find, and find again when they come and go.
    pub kinds: BTreeSet<GroupVersionKind>,
    /// Copies that are watched.
    pub copies: BTreeMap<CopyWatch, Resource>,
    /// Sources that are watched by their names.
    pub sources: BTreeMap<SourceRef, Resource>,
    /// What finds the others.
    pub selectors: BTreeMap<SourceSelector, Resource>,
    /// Whether sources may be watched in their own namespaces alone.
    pub confined: bool,
}

impl Engine {
    /// Knows nothing yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            rules: BTreeMap::new(),
            listings: PerKind::default(),
            gone: BTreeMap::new(),
            crds: PerKind::default(),
            consent: consent::Consent::default(),
            sweeps: BTreeMap::new(),
            confirmed: None,
            namespaces: BTreeMap::new(),
            namespaces_listed: false,
            sources: BTreeMap::new(),
            selectors: BTreeMap::new(),
            origins: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            kinds: Vec::new(),
            kind_ids: BTreeMap::new(),
            kinds_known: false,
            served: BTreeMap::new(),
            slots: BTreeMap::new(),
            last_slot: 0,
            work: work::Work::default(),
            dirty: BTreeSet::new(),
            planned: 0,
            issued: BTreeMap::new(),
            inject_delay: Duration::from_millis(1),
            webhooks: Webhooks::default(),
            webhooks_since: Tick::ZERO,
            notices: Vec::new(),
            news: announce::News::default(),
            demand_version: 0,
            inquiry_version: 0,
            now: Tick::ZERO,
        }
    }

    /// Where it acts.
    pub fn reach(&self) -> &Reach {
        &self.settings.reach
    }

    /// Moves the clock; it never goes back.
    fn at(&mut self, now: Tick) {
        self.now = self.now.max(now);
    }

    // ---- rules ----

    /// A rule exists, with this spec, by this author if its stamp is true; `observed` is the status that it carries.
    pub fn rule_applied(
        &mut self,
        id: RuleId,
        rule: Result<Rule, Vec<Refusal>>,
        author: Option<User>,
        observed: Observed,
        now: Tick,
    ) {
        self.at(now);
        let author = author.map(Arc::new);
        let authority = self.authority_of(&id, rule.as_ref().ok(), author.as_ref(), &observed);
        let rule = rule.map(|rule| rule.within(&self.settings.reach));
        let id = self.rules.get_key_value(&id).map_or_else(|| Arc::new(id), |(known, _)| known.clone());
        self.gone.remove(&id);
        let known = self.rules.get(&id);
        if let (Some(Ok(old)), Ok(new)) = (known.map(|state| &state.rule), &rule)
            && old.generation == new.generation
            && old.uid == new.uid
        {
            // Only metadata or status moved: of these, the confirmation and the author are for us.
            let confirmed = old.confirm_deletion != new.confirm_deletion;
            let mut regarded = false;
            if let Some(state) = self.rules.get_mut(&id) {
                regarded = state.authority != authority;
                state.rule = rule;
                state.author = author;
                state.authority = authority;
                state.status.observe(observed);
            }
            if regarded {
                self.inquire();
                self.regard(&id);
            }
            if confirmed {
                self.confirm_sweep(&id);
            }
            return;
        }
        self.concern(&id);
        let old = self.rules.remove(&id);
        let version = rule.as_ref().map_or(0, |rule| rule.resource_version);
        let barrier_proven = rule.as_ref().is_ok_and(|rule| status::barrier_active(&observed, rule.generation));
        for selector in rule.iter().flat_map(|rule| &rule.selectors) {
            self.selectors.entry(selector.clone()).or_default();
            self.served.entry(selector.gvk.clone()).or_insert(Served::Unknown);
        }
        let slots = rule.as_ref().map_or_else(
            |_| Vec::new(),
            |rule| {
                let sources = self.choose(rule).sources;
                self.add_slots(&id, rule, &sources, &BTreeMap::new())
            },
        );
        // What a re-installed CRD took with it may be shown for a while yet: the same rule lives where it always did.
        let same = old.as_ref().filter(|old| matches!((&old.rule, &rule), (Ok(old), Ok(new)) if old.uid == new.uid));
        let crd = same.map_or_else(|| self.crds[id.kind].certain(), |old| old.crd.clone());
        let mut book = old.map_or_else(status::Book::default, |old| {
            self.forget_targets(&id, old.rule.as_ref().ok());
            self.retire(&old.slots.concat(), &slots.concat());
            old.status
        });
        book.observe(observed);
        self.rules.insert(
            id.clone(),
            RuleState {
                rule,
                author,
                authority,
                slots,
                spec_version: version,
                spec_seen: self.now,
                crd,
                crd_asked: false,
                barrier_proven,
                conflicts: BTreeMap::new(),
                status: book,
            },
        );
        self.learn_targets(&id);
        self.weigh();
        self.touch(&id);
        self.inquire();
        self.remind_of_grace(&id);
        if id.kind == RuleKind::ClusterReplication {
            self.work.timer(self.now + status::HOOKS_KNOWN, work::Timer::Rule(id.clone()));
        }
        self.concern(&id);
        self.demand_changed();
    }

    /// A rule doesn't exist any more, as far as its watch says.
    pub fn rule_gone(&mut self, id: &RuleId, now: Tick) {
        self.at(now);
        self.concern(id);
        let Some((id, old)) = self.rules.remove_entry(id) else { return };
        self.forget_targets(&id, old.rule.as_ref().ok());
        self.retire(&old.slots.concat(), &[]);
        self.weigh();
        self.sweeps.remove(&id);
        self.inquire();
        self.work.disturb();
        self.gone.insert(id, collect::Gone::seen_under(old.crd, self.now));
        self.demand_changed();
    }

    /// Every rule of the kind that there is has been shown; those in `listed` are all.
    pub fn rules_listed(&mut self, kind: RuleKind, listed: &BTreeSet<RuleId>, now: Tick) {
        self.at(now);
        let of_kind = self.rules.keys().filter(|id| id.kind == kind);
        let lost: Vec<RuleId> = of_kind.filter(|id| !listed.contains(&***id)).map(|id| (**id).clone()).collect();
        for id in lost {
            self.rule_gone(&id, now);
        }
        if matches!(std::mem::replace(&mut self.listings[kind], Listing::Listed), Listing::Unreadable(_)) {
            self.rules.values_mut().for_each(|state| state.status.touch());
        }
        self.everything_dirty();
    }

    /// The server doesn't serve rules of the kind: their CRD isn't there (any more). Whoever only fills new namespaces has
    /// nothing to wait for then; what it means for copies that exist is not decided by a watch.
    pub fn rules_unserved(&mut self, kind: RuleKind, now: Tick) {
        self.at(now);
        if self.settings.role == Role::Injector {
            self.rules_listed(kind, &BTreeSet::new(), now);
        } else if self.listings[kind] != Listing::Listed {
            self.listings[kind] = Listing::Unserved;
            self.everything_dirty();
        }
    }

    /// Rules of the kind can't be read, and none has been so far. What that means for rules of other kinds is what it means that
    /// none are served: the platform's don't wait for tenants', whose sources are none to them, and a copy with a rule's mark isn't
    /// touched before all rules of that kind are known.
    pub fn rules_unreadable(&mut self, kind: RuleKind, why: Unreadable, now: Tick) {
        self.at(now);
        if self.listings[kind] != Listing::Listed {
            self.listings[kind] = Listing::Unreadable(why);
            self.rules.values_mut().for_each(|state| state.status.touch());
            self.everything_dirty();
        }
    }

    /// Whether every rule of the kind was shown once.
    fn all_rules_of(&self, kind: RuleKind) -> bool {
        self.listings[kind] == Listing::Listed
    }

    /// Whether every rule was shown once that counts. The platform's don't wait for tenants' that nobody shows.
    fn all_rules(&self) -> bool {
        self.all_rules_of(RuleKind::ClusterReplication) && self.listings[RuleKind::Replication] != Listing::Unknown
    }

    /// The platform's rules. In the order of identities they come first.
    fn cluster_rules(&self) -> impl Iterator<Item = (&Arc<RuleId>, &RuleState)> {
        self.rules.iter().take_while(|(id, _)| id.kind == RuleKind::ClusterReplication)
    }

    /// The highest resourceVersion at which one of the platform's rules was first seen as it is.
    pub fn rules_seen(&self) -> u64 {
        self.cluster_rules().map(|(_, state)| state.spec_version).max().unwrap_or_default()
    }

    /// A slot of each target for each of these sources: that of `former`, if it has one.
    fn add_slots(
        &mut self,
        id: &Arc<RuleId>,
        rule: &Rule,
        sources: &[SourceRef],
        former: &BTreeMap<(usize, SourceRef), SlotId>,
    ) -> Vec<Vec<SlotId>> {
        let mut slots = Vec::with_capacity(rule.targets.len());
        let (mut shared, mut scale) = (Vec::new(), budget::Scale::default());
        for (index, target) in rule.targets.iter().enumerate() {
            let mut added = Vec::with_capacity(sources.len());
            for source in sources {
                if let Some(slot) = former.get(&(index, source.clone())) {
                    added.push(*slot);
                    continue;
                }
                let kind = self.kind_id(&source.gvk.group_kind());
                self.served.entry(source.gvk.clone()).or_insert(Served::Unknown);
                let granted = self.may_read(id, source);
                let state = self.sources.entry(source.clone()).or_insert(Source::NotRead);
                let rendering = rendering(rule, source, target, state, granted, &self.settings.cluster, &mut shared);
                self.last_slot += 1;
                let Some(number) = std::num::NonZeroU32::new(self.last_slot) else { continue };
                let mut slot = Slot {
                    rule: id.clone(),
                    target: index,
                    source: source.clone(),
                    kind,
                    granted,
                    name: target.copy_name(source).into(),
                    reference: first_reference(self.settings.role, &rendering),
                    rendering,
                    weight: 0,
                    source_weight: 0,
                    shed: false,
                };
                let made = std::mem::replace(&mut slot.rendering, Err(NoRendering::NotRead));
                slot.rendering = scale.take(&mut slot, made, state);
                self.consent.add_reader(SlotId(number), &slot);
                self.slots.insert(SlotId(number), slot);
                added.push(SlotId(number));
            }
            slots.push(added);
        }
        slots
    }

    /// Forgets slots that a rule no longer has. What their writes taught is kept for a new slot with the same rendering.
    fn retire(&mut self, old: &[SlotId], new: &[SlotId]) {
        for id in old {
            let Some(gone) = self.slots.remove(id) else { continue };
            self.consent.remove_reader(*id, &gone);
            for id in new {
                if let Some(slot) = self.slots.get_mut(id)
                    && slot.rendering.is_ok()
                    && slot.rendering == gone.rendering
                    && gone.reference != Reference::Asked
                {
                    // What was asked is answered to the slot that asked.
                    slot.reference = gone.reference;
                }
            }
        }
    }

    // ---- sources ----

    /// A source is there, or isn't. The watch that says so reads a cache: a deletion is confirmed before it is acted on.
    pub fn source(&mut self, source: &SourceRef, object: Option<Value>, now: Tick) {
        self.at(now);
        let known = self.meet(source, object.as_ref());
        if known {
            self.take_source(source, object);
        }
        if let Some(selector) = source.selector() {
            self.refit(&selector);
            self.touch_selecting(&selector);
        }
        if known {
            self.render_source(source);
        }
    }

    fn take_source(&mut self, source: &SourceRef, object: Option<Value>) {
        let Some(state) = self.sources.get_mut(source) else { return };
        let readable_again = self.unreadable.remove(source).is_some();
        let was_there = matches!(state, Source::Found { .. });
        let lost = object.is_none() && !matches!(state, Source::Missing { .. });
        match (object, &state) {
            (None, Source::Missing { .. }) if !readable_again => return,
            (None, Source::Missing { .. }) => {}
            (None, known) => {
                let former = if let Source::Found { home, .. } = known { *home } else { None };
                let home = former.or_else(|| self.namespaces.get(&*source.namespace)?.uid);
                *state = Source::Missing { since: self.now, verdict: collect::SourceVerdict::Unconfirmed, home };
            }
            (Some(object), _) => {
                let version = version(object.pointer("/metadata/resourceVersion").and_then(Value::as_str));
                *state = Source::Found { object: Arc::new(object), version, home: None };
            }
        }
        if lost {
            self.source_lost(source, was_there);
        }
    }

    /// A source can't be read, until [`Engine::source`] says otherwise. Whoever waits for what it holds waits no longer.
    pub fn source_unreadable(&mut self, source: &SourceRef, why: Unreadable, now: Tick) {
        self.at(now);
        if !self.sources.contains_key(source) || self.unreadable.insert(source.clone(), why) == Some(why) {
            return;
        }
        self.touch_rules(|slot| slot.source == *source);
        self.concern_source(source);
    }

    fn render_source(&mut self, source: &SourceRef) {
        let slots = self.slots.iter().filter(|(_, slot)| slot.source == *source).map(|(id, _)| *id).collect();
        self.render_slots(slots);
    }

    /// Renders the copies of these slots anew, whose sources have changed, or the consent to read them.
    fn render_slots(&mut self, slots: Vec<SlotId>) {
        let mut touched = BTreeSet::new();
        let mut changed = BTreeSet::new();
        let (mut shared, mut scale) = (Vec::new(), budget::Scale::default());
        let mut last: Option<Arc<RuleId>> = None;
        for id in slots {
            let Some(slot) = self.slots.get_mut(&id) else { continue };
            let Some(Ok(rule)) = self.rules.get(&slot.rule).map(|state| &state.rule) else { continue };
            let Some(target) = rule.targets.get(slot.target) else { continue };
            let Some(state) = self.sources.get(&slot.source) else { continue };
            touched.insert(slot.rule.clone());
            let cluster = &self.settings.cluster;
            if last.replace(slot.rule.clone()).is_some_and(|last| last != slot.rule && last.namespace.is_some()) {
                // Tenants' rules may make of it what they like: none of it is kept for the others'.
                shared.clear();
            }
            let made = rendering(rule, &slot.source, target, state, slot.granted, cluster, &mut shared);
            let rendering = scale.take(slot, made, state);
            let same = rendering == slot.rendering;
            if !same {
                slot.reference = first_reference(self.settings.role, &rendering);
                slot.rendering = rendering;
            }
            // A source's edit that the copies don't carry ends here.
            if !same {
                changed.insert(id);
            }
        }
        for id in &touched {
            self.touch(id);
            self.remind_of_grace(id);
        }
        let concerned: BTreeSet<Arc<RuleId>> =
            changed.iter().filter_map(|id| self.slots.get(id)).map(|slot| slot.rule.clone()).collect();
        for id in &concerned {
            self.concern(id);
        }
        let places: BTreeSet<Arc<str>> = concerned.iter().flat_map(|id| self.places(id)).collect();
        for name in places {
            let Some(namespace) = self.namespaces.get_mut(&name) else { continue };
            let cells = namespace.cells.iter_mut();
            cells.filter(|cell| cell.want.is_some_and(|id| changed.contains(&id))).for_each(Cell::start_over);
        }
        if touched.iter().any(|id| id.kind == RuleKind::Replication) {
            self.weigh();
        }
    }

    /// A namespace is gone: sources that it held went with it, though their own watches may yet have to say so.
    fn leave_home(&mut self, name: &str, uid: Option<Uid>) {
        for (source, state) in &mut self.sources {
            if let Source::Found { home: home @ None, .. } = state
                && *source.namespace == *name
            {
                *home = uid;
            }
        }
    }

    // ---- kinds ----

    /// What discovery says of a kind: served, or not (any more).
    pub fn kind(&mut self, gvk: &GroupVersionKind, resource: Option<Resource>, now: Tick) {
        self.at(now);
        let served = resource.map_or(Served::No, Served::At);
        if self.served.get(gvk) == Some(&served) {
            return;
        }
        self.served.insert(gvk.clone(), served);
        self.reopen(gvk);
        let sources: Vec<SourceRef> = self.sources.keys().filter(|source| source.gvk == *gvk).cloned().collect();
        for source in &sources {
            self.render_source(source);
        }
        self.touch_rules_of(gvk);
        self.everything_dirty();
        self.demand_changed();
    }

    /// Discovery gives no answer about a kind, until [`Engine::kind`] tells one. An answer that was given holds.
    pub fn kind_unanswered(&mut self, gvk: &GroupVersionKind, why: Unreadable, now: Tick) {
        self.at(now);
        let served = self.served.entry(gvk.clone()).or_insert(Served::Unknown);
        if !matches!(served, Served::Unknown | Served::Unanswered(_)) || *served == Served::Unanswered(why) {
            return;
        }
        *served = Served::Unanswered(why);
        self.inquire();
        self.touch_rules_of(gvk);
        self.everything_dirty();
    }

    fn touch_rules_of(&mut self, gvk: &GroupVersionKind) {
        for state in self.rules.values_mut() {
            if state.rule.as_ref().is_ok_and(|rule| rule.kinds.iter().any(|kind| kind == gvk)) {
                state.status.touch();
            }
        }
    }

    /// Marks the statuses of all rules that have such a slot as due.
    fn touch_rules(&mut self, concerned: impl Fn(&Slot) -> bool) {
        for slot in self.slots.values().filter(|slot| concerned(slot)) {
            if let Some(state) = self.rules.get_mut(&slot.rule) {
                state.status.touch();
            }
        }
    }

    /// The kinds that the kinds `ConfigMap` names, in the version it names: copies of these may exist.
    pub fn kinds_recorded(&mut self, kinds: &BTreeSet<GroupVersionKind>, now: Tick) {
        self.at(now);
        for gvk in kinds {
            let id = self.kind_id(&gvk.group_kind());
            let kind = &mut self.kinds[usize::from(id.0)];
            let fresh = match kind.note {
                Note::Adding => self.kinds_known,
                Note::Present { fresh } => fresh,
                Note::Absent => false,
                // What removes it may be answered yet.
                Note::Removing | Note::Kept => continue,
            };
            kind.note = Note::Present { fresh };
            self.served.entry(gvk.clone()).or_insert(Served::Unknown);
        }
        self.kinds_known = true;
        let named: BTreeSet<GroupKind> = kinds.iter().map(GroupVersionKind::group_kind).collect();
        for kind in self.kinds.iter_mut().filter(|kind| !named.contains(&kind.group_kind)) {
            kind.note = Note::Absent;
        }
        self.everything_dirty();
        self.demand_changed();
    }

    fn kind_id(&mut self, group_kind: &GroupKind) -> KindId {
        if let Some(id) = self.kind_ids.get(group_kind) {
            return *id;
        }
        // Kinds are bounded by what a cluster serves; past 65,535 the last number is shared, which costs nothing but needless looks.
        let id = KindId(u16::try_from(self.kinds.len()).unwrap_or(u16::MAX));
        self.kinds.push(KindState {
            group_kind: group_kind.clone(),
            note: Note::Absent,
            surveys: Surveys::new(&self.settings.reach),
        });
        self.kind_ids.insert(group_kind.clone(), id);
        id
    }

    // ---- namespaces ----

    /// A namespace is there, with this metadata, as its watch or a read shows.
    pub fn namespace_applied(&mut self, meta: &ObjectMeta, now: Tick) {
        self.at(now);
        let Some(name) = meta.name.as_deref() else { return };
        let name = self.namespace_name(name);
        let uid = meta.uid.as_deref().and_then(Uid::parse);
        let entry = self.namespaces.entry(name.clone()).or_default();
        let version = version(meta.resource_version.as_deref());
        // A read may have been quicker than the watch: an earlier object of the same name is no news either.
        if entry.uid.is_some() && version <= entry.version {
            return;
        }
        let former = entry.uid.filter(|former| Some(*former) != uid);
        if former.is_some() {
            // Deleted and created again under its name: nothing that was in it is in it.
            let cells = watched(&mut self.work, &name, entry, self.settings.role);
            *entry = Namespace { listing: entry.listing, cells, ended: true, ..Namespace::default() };
        }
        if std::mem::take(&mut entry.ended) {
            // Older than what is known of the namespace: most likely a copy in the former one, whose end is yet to be told.
            for cell in entry.cells.iter_mut().filter(|cell| cell.seen().is_some_and(|seen| seen.version < version)) {
                cell.belief = Belief::Taken(None);
            }
        }
        let known = entry.uid.is_some();
        if !known {
            entry.born = version;
        }
        let watched = !known && self.settings.reach.targets.is_some() && self.settings.reach.is_target(&name);
        entry.uid = uid;
        entry.version = version;
        let labels = meta.labels.iter().flatten().map(|(k, v)| (k.as_str().into(), v.as_str().into())).collect();
        let old = std::mem::replace(&mut entry.labels, labels);
        let changed = known && old != entry.labels;
        if changed {
            fill_in_anew(entry, &name, &old, &self.slots);
        }
        entry.terminating = meta.deletion_timestamp.is_some();
        let seeds = meta.annotations.as_ref().and_then(|annotations| annotations.get(names::SEEDED));
        entry.seeds = seeds.map(|text| Seeds::parse(text)).unwrap_or_default();
        entry.noting = false;
        if former.is_some() {
            self.leave_home(&name, former);
        }
        if watched {
            self.demand_changed();
        }
        self.see_mark(&name, changed);
        if changed {
            self.let_settle(&name);
        }
        if changed || !known || former.is_some() {
            self.review_home(&name);
        }
        self.dirty.insert(name);
    }

    /// The watch of namespaces lost one. Nothing changes if another of its name has been read since.
    pub fn namespace_deleted(&mut self, meta: &ObjectMeta, now: Tick) {
        let (Some(name), uid) = (meta.name.as_deref(), meta.uid.as_deref().and_then(Uid::parse)) else { return };
        if self.namespaces.get(name).is_some_and(|entry| entry.uid.is_none() || entry.uid == uid) {
            self.namespace_gone(name, now);
        }
    }

    /// A namespace is gone.
    pub fn namespace_gone(&mut self, name: &str, now: Tick) {
        self.at(now);
        let Some((name, mut old)) = self.namespaces.remove_entry(name) else { return };
        self.dirty.remove(&name);
        self.work.disturb();
        if self.settings.reach.targets.is_some() {
            self.demand_changed();
        }
        self.leave_home(&name, old.uid);
        let touched: BTreeSet<Arc<RuleId>> =
            old.cells.iter().filter_map(|cell| self.slots.get(&cell.want?).map(|slot| slot.rule.clone())).collect();
        for id in &touched {
            self.touch(id);
        }
        for id in self.rules_for(&name) {
            if let Some(state) = self.rules.get_mut(&id) {
                state.conflicts.remove(&name);
            }
        }
        self.review_home(&name);
        let cells = watched(&mut self.work, &name, &mut old, self.settings.role);
        if !cells.is_empty() {
            self.namespaces.insert(name, Namespace { cells, ended: true, ..Namespace::default() });
        }
    }

    /// Every namespace there is has been shown; those in `listed` are all.
    pub fn namespaces_listed(&mut self, listed: &BTreeSet<Box<str>>, now: Tick) {
        self.at(now);
        let lost: Vec<Arc<str>> = self
            .namespaces
            .iter()
            .filter(|(name, state)| state.uid.is_some() && !listed.contains(&***name))
            .map(|(name, _)| name.clone())
            .collect();
        for name in lost {
            self.namespace_gone(&name, now);
        }
        self.namespaces_listed = true;
        self.everything_dirty();
    }

    fn namespace_name(&self, name: &str) -> Arc<str> {
        self.namespaces.get_key_value(name).map_or_else(|| name.into(), |(known, _)| known.clone())
    }

    // ---- copies ----

    /// The watch of copies shows an object: one that carries our label, ours or not.
    pub fn copy_applied(&mut self, kind: &GroupKind, meta: &ObjectMeta, now: Tick) {
        self.at(now);
        let (Some(namespace), Some(name)) = (meta.namespace.as_deref(), meta.name.as_deref()) else { return };
        let Some(mut seen) = Seen::read(meta, kind, &self.settings.cluster) else { return };
        let kind = self.kind_id(kind);
        let listing = self.kinds[usize::from(kind.0)].surveys.of(namespace).listing;
        let namespace = self.namespace_name(namespace);
        if let Some(rule) = &seen.rule {
            let rule = self.rule_name(rule);
            self.consent.strew(&rule, &namespace);
            seen.rule = Some(rule);
        }
        let name = self.copy_name(kind, name);
        self.remember_origin(&seen, meta.annotations.as_ref().and_then(|all| all.get(names::SOURCE)));
        let entry = self.namespaces.entry(namespace.clone()).or_default();
        let cell = entry.cell_or_insert(kind, &name);
        cell.listing = listing;
        if !cell.show(seen) {
            return;
        }
        cell.release();
        self.dirty.insert(namespace);
    }

    /// The watch of copies lost an object: it was deleted, or only its label was.
    pub fn copy_gone(&mut self, kind: &GroupKind, meta: &ObjectMeta, now: Tick) {
        self.at(now);
        let (Some(namespace), Some(name)) = (meta.namespace.as_deref(), meta.name.as_deref()) else { return };
        let Some(uid) = meta.uid.as_deref().and_then(Uid::parse) else { return };
        let kind = self.kind_id(kind);
        let namespace = self.namespace_name(namespace);
        let Some(entry) = self.namespaces.get_mut(&namespace) else { return };
        let born = entry.born;
        let Some(cell) = entry.cell_mut(kind, name) else { return };
        let version = version(meta.resource_version.as_deref());
        if cell.vanish(Some(uid), version) {
            if version < born {
                // It went with a former namespace of the name: in this one it never was.
                cell.belief = Belief::Unknown;
            }
            cell.release();
            self.dirty.insert(namespace);
            self.work.disturb();
        }
    }

    /// One name shared by all cells of a slot, and by a slot's cells and what its watch shows.
    fn copy_name(&self, kind: KindId, name: &str) -> Arc<str> {
        self.slots
            .values()
            .find_map(|slot| match &slot.name {
                CopyName::Alike(shared) if slot.kind == kind && **shared == *name => Some(shared.clone()),
                _ => None,
            })
            .unwrap_or_else(|| name.into())
    }

    /// One value shared by all copies of a rule.
    fn rule_name(&self, id: &Arc<RuleId>) -> Arc<RuleId> {
        let known = self.rules.get_key_value(id).map(|(known, _)| known);
        known.or_else(|| self.gone.get_key_value(id).map(|(known, _)| known)).unwrap_or(id).clone()
    }

    // ---- demand ----

    /// Grows whenever [`Engine::demand`] may have changed.
    pub fn demand_version(&self) -> u64 {
        self.demand_version
    }

    fn demand_changed(&mut self) {
        self.demand_version += 1;
    }

    /// What must be watched now. Of everything else nothing is told from here on, so nothing that was told of it holds any
    /// more; until here it does, however demand may have changed back and forth.
    pub fn demand(&mut self) -> Demand {
        // New namespaces wait for no tenant's copies.
        let kinds = match self.settings.role {
            Role::Keeper => &RuleKind::ALL[..],
            Role::Injector => &[RuleKind::ClusterReplication],
        };
        let demand = self.demanded(kinds);
        self.forget_unwatched(&demand);
        demand
    }

    fn forget_unwatched(&mut self, demand: &Demand) {
        self.forget_surveys(&demand.copies);
        let used: BTreeSet<&SourceRef> = self.slots.values().map(|slot| &slot.source).collect();
        let rules = self.rules.values().filter_map(|state| state.rule.as_ref().ok());
        let selectors: BTreeSet<&SourceSelector> = rules.flat_map(|rule| &rule.selectors).collect();
        self.selectors.retain(|selector, _| selectors.contains(selector));
        let silent = self.selectors.iter_mut().filter(|(selector, _)| !demand.selectors.contains_key(*selector));
        let listed = |(selector, findings): (&SourceSelector, &mut select::Findings)| {
            std::mem::take(findings).listed.then(|| selector.clone())
        };
        let unselected: Vec<SourceSelector> = silent.filter_map(listed).collect();
        let watched = |source: &SourceRef| match source.selector() {
            Some(selector) => demand.selectors.contains_key(&selector),
            None => demand.sources.contains_key(source),
        };
        let kept =
            |source: &SourceRef| if source.selector().is_some() { watched(source) } else { used.contains(source) };
        self.sources.retain(|source, _| kept(source));
        self.unreadable.retain(|source, _| watched(source));
        let mut silent = Vec::new();
        let known = self.sources.iter_mut().filter(|(_, state)| !matches!(state, Source::NotRead));
        for (source, state) in known.filter(|(source, _)| !watched(source)) {
            // Above all, a silence is no deletion.
            *state = Source::NotRead;
            silent.push(source.clone());
        }
        for source in &silent {
            self.render_source(source);
        }
        // What they found isn't known any more; their copies are.
        for selector in &unselected {
            self.refit(selector);
        }
    }

    /// What must be watched for rules of these kinds.
    fn demanded(&self, rules: &[RuleKind]) -> Demand {
        let mut demand = Demand { confined: self.settings.reach.sources.is_some(), ..Demand::default() };
        // What isn't granted isn't even looked up: else a tenant could have any number of kinds looked for.
        let read = |slot: &&Slot| slot.granted && !slot.shed && self.settings.reach.refuses(&slot.source).is_none();
        for slot in self.slots.values().filter(read) {
            if !demand.kinds.contains(slot.gvk()) {
                demand.kinds.insert(slot.gvk().clone());
            }
            if let Some(resource) = self.served.get(slot.gvk()).and_then(Served::namespaced) {
                let named = slot.source.selector().is_none();
                if named && rules.contains(&slot.rule.kind) && !demand.sources.contains_key(&slot.source) {
                    demand.sources.insert(slot.source.clone(), resource.clone());
                }
                self.demand_copies(&mut demand, resource);
            }
        }
        let selecting = self.rules.values().filter_map(|state| state.rule.as_ref().ok());
        let refused =
            |selector: &&SourceSelector| self.settings.reach.refuses_home(&selector.gvk, &selector.namespace).is_some();
        for selector in selecting.flat_map(|rule| &rule.selectors).filter(|selector| !refused(selector)) {
            demand.kinds.insert(selector.gvk.clone());
            if let Some(resource) = self.served.get(&selector.gvk).and_then(Served::namespaced) {
                demand.selectors.insert(selector.clone(), resource.clone());
                self.demand_copies(&mut demand, resource);
            }
        }
        for (gvk, served) in &self.served {
            let kind = gvk.group_kind();
            let recorded = self.kind_ids.get(&kind).is_some_and(|id| self.kinds[usize::from(id.0)].recorded());
            if !recorded || !self.settings.reach.copies(&kind) {
                continue;
            }
            demand.kinds.insert(gvk.clone());
            if let Some(resource) = served.namespaced() {
                self.demand_copies(&mut demand, resource);
            }
        }
        demand
    }

    fn everything_dirty(&mut self) {
        self.dirty.extend(self.namespaces.keys().cloned());
    }
}

impl Namespace {
    fn position(&self, kind: KindId, name: &str) -> Result<usize, usize> {
        self.cells.binary_search_by(|cell| (cell.kind, &*cell.name).cmp(&(kind, name)))
    }

    fn cell(&self, kind: KindId, name: &str) -> Option<&Cell> {
        self.position(kind, name).ok().map(|at| &self.cells[at])
    }

    fn cell_mut(&mut self, kind: KindId, name: &str) -> Option<&mut Cell> {
        self.position(kind, name).ok().map(|at| &mut self.cells[at])
    }

    fn cell_or_insert(&mut self, kind: KindId, name: &Arc<str>) -> &mut Cell {
        let at = self.position(kind, name).unwrap_or_else(|at| {
            self.cells.insert(at, Cell::new(kind, name.clone()));
            at
        });
        &mut self.cells[at]
    }

    /// Whether its own watch has shown it, and it isn't going.
    fn alive(&self) -> bool {
        self.uid.is_some() && !self.terminating
    }

    /// What it is to the variables in its copies.
    fn place<'a>(&'a self, name: &'a str) -> Place<'a> {
        Place { name, labels: &self.labels }
    }

    /// The token of its mark.
    fn token(&self) -> Option<&str> {
        self.labels.get(names::MARK).map(|token| &**token)
    }
}

impl Cell {
    /// The world changed: what was put off may be tried at once.
    fn release(&mut self) {
        if self.phase == Phase::Waiting {
            self.phase = Phase::Idle;
        }
    }

    /// Other bytes are wanted here: what the server said of the former ones doesn't hold of them.
    fn start_over(&mut self) {
        self.failure = None;
        self.condemned = None;
        self.stuck = false;
        self.content = Content::Unknown;
        self.verify = false;
        self.release();
    }
}

/// The namespace had the labels `old`: copies in which it fills in other values now are other copies.
fn fill_in_anew(namespace: &mut Namespace, name: &str, old: &Labels, slots: &BTreeMap<SlotId, Slot>) {
    let (before, now) = (Place { name, labels: old }, Place { name, labels: &namespace.labels });
    for cell in &mut namespace.cells {
        let copies = cell.want.and_then(|id| slots.get(&id)).and_then(|slot| slot.rendering.as_ref().ok());
        if copies.is_some_and(|copies| copies.checksum_at(before) != copies.checksum_at(now)) {
            cell.start_over();
        }
    }
}

/// The cells of a namespace that went of which the watch of copies will tell the end; it may have told of the next namespace's
/// copies already. What else was known of went with the namespace.
fn watched(work: &mut work::Work, name: &Arc<str>, namespace: &mut Namespace, role: Role) -> Vec<Cell> {
    let mut cells = std::mem::take(&mut namespace.cells);
    cells.iter_mut().for_each(|cell| work.remind(name, cell, None));
    cells.retain(|cell| role == Role::Keeper && cell.seen().is_some_and(|seen| seen.labelled));
    for cell in &mut cells {
        cell.want = None;
        cell.good = None;
        cell.failure = None;
        cell.condemned = None;
        cell.stuck = false;
        cell.proven = false;
    }
    cells
}

fn first_reference(role: Role, rendering: &Result<Copies, NoRendering>) -> Reference {
    match role {
        Role::Keeper if rendering.as_ref().is_ok_and(Copies::own_fields_apart) => Reference::Apart,
        Role::Keeper => Reference::Unknown,
        Role::Injector => Reference::Waived,
    }
}

/// What a slot's copies are; bytes that they have in common with `shared` are shared.
fn rendering(
    rule: &Rule,
    source: &SourceRef,
    target: &crate::rule::Target,
    state: &Source,
    granted: bool,
    cluster: &str,
    shared: &mut Vec<Copies>,
) -> Result<Copies, NoRendering> {
    match state {
        _ if !granted => Err(NoRendering::NotGranted),
        Source::NotRead => Err(NoRendering::NotRead),
        Source::Missing { .. } => Err(NoRendering::SourceMissing),
        Source::Found { object, .. } => {
            let mut copies = render(rule, source, target, object, cluster).map_err(NoRendering::Refused)?;
            copies.share(shared);
            Ok(copies)
        }
    }
}
