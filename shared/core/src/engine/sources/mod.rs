//! Sources as they come, change and go, and the copies that are rendered of them.
//!
//! - `select`: what the selectors of rules find
//! - `members`: in which order
//! - `follow`: which selectors are followed at all
//! - `allowance`: how much of tenants' sources is held in memory
//! - `crowd`: how much of their rules is

pub(in crate::engine) mod allowance;
pub(in crate::engine) mod crowd;
pub(in crate::engine) mod follow;
pub(in crate::engine) mod members;
pub(in crate::engine) mod select;

use std::{collections::BTreeSet, sync::Arc};

use serde_json::Value;

use crate::engine::{Engine, Role, Tick, absent};
use crate::{
    cell::{Cell, Reference},
    lineage::{Kin, Lineage},
    memory,
    meta::{Uid, version},
    outcome::Unreadable,
    render::{Copies, Draft, SourceRefused, never_copied},
    rule::{Rule, RuleId, RuleKind, SourceRef, Target},
    slot::{KindId, NoRendering, Slot, SlotId},
};

/// What is known of one source.
pub(in crate::engine) enum SourceState {
    NotRead {
        /// Since when it is to be read. What was read before may be old.
        since: Tick,
    },
    Found {
        /// None if it isn't held: no copy is made of what a selector finds there.
        object: Option<Arc<Value>>,
        facts: Facts,
        version: u64,
        /// Its namespace, if that is known to have gone since.
        home: Option<Uid>,
    },
    Missing {
        since: Tick,
        absence: absent::Absence,
    },
}

impl SourceState {
    /// It is there, and held.
    pub(in crate::engine) fn found(source: &SourceRef, object: Arc<Value>) -> Self {
        Self::Found {
            version: version_of(&object),
            facts: Facts::of(source, &object),
            object: Some(object),
            home: None,
        }
    }

    /// It is there, and no more than this can be decoded of it: there are no copies of half an object.
    fn undecodable(rest: &Value) -> Self {
        let kin = (&Lineage::of(rest.get("metadata"))).into();
        let facts = Facts { kin, never: Some(SourceRefused::Undecodable), memory: 0 };
        Self::Found { facts, object: None, version: version_of(rest), home: None }
    }

    pub(in crate::engine) fn is_missing(&self) -> bool {
        matches!(self, Self::Missing { .. })
    }

    pub(in crate::engine) fn is_held(&self) -> bool {
        matches!(self, Self::Found { object: Some(_), .. })
    }
}

fn version_of(object: &Value) -> u64 {
    version(object.pointer("/metadata/resourceVersion").and_then(Value::as_str))
}

/// An object that is shown to be there.
#[derive(Clone)]
pub(in crate::engine) enum Shown {
    Whole(Value),
    /// As much of it as can be decoded, its metadata at least.
    Part(Value),
}

impl Shown {
    pub(in crate::engine) fn value(&self) -> &Value {
        let (Self::Whole(object) | Self::Part(object)) = self;
        object
    }
}

/// What decides whether a rule takes an object that its selector finds. It is known also where the object isn't held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Facts {
    pub(in crate::engine) kin: Kin,
    /// Why it is never copied as what it is.
    pub(in crate::engine) never: Option<SourceRefused>,
    /// How much memory it takes.
    pub(in crate::engine) memory: usize,
}

impl Facts {
    fn of(source: &SourceRef, object: &Value) -> Self {
        let never = source.gvk.is_secret().then(|| never_copied(object["type"].as_str())).flatten();
        Self { kin: (&Lineage::of(object.get("metadata"))).into(), never, memory: memory::of(object) }
    }
}

/// Not derived: the object may be a Secret.
impl std::fmt::Debug for SourceState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotRead { .. } => f.write_str("NotRead"),
            Self::Found { version, .. } => write!(f, "Found({version})"),
            Self::Missing { since, absence } => write!(f, "Missing({since:?}, {absence:?})"),
        }
    }
}

impl Engine {
    /// Whether this object is a source that a rule of the kind `by` must leave alone. To the platform's rules a tenant's sources
    /// are none: by naming the place of a copy as a source he could keep it away, or keep it for good. Nor is anything a source
    /// that its rule may not read.
    pub(in crate::engine) fn is_source(&self, by: RuleKind, kind: KindId, namespace: &str, name: &str) -> bool {
        let kind = &self.kinds[kind].group_kind;
        self.slots.of_object(kind, namespace, name).any(|slot| slot.granted && slot.rule.kind <= by)
    }

    /// Whether this object is a source that a rule of the kind `by` must leave alone because a rule names it. What a selector
    /// finds it takes as it comes and goes.
    pub(in crate::engine) fn is_named(&self, by: RuleKind, kind: KindId, namespace: &str, name: &str) -> bool {
        let kind = &self.kinds[kind].group_kind;
        let counts = |slot: &Slot| slot.granted && slot.rule.kind <= by && slot.source.selector().is_none();
        self.slots.of_object(kind, namespace, name).any(counts)
    }

    /// A source is there, or isn't. The watch that says so reads a cache: a deletion is confirmed before it is acted on.
    pub fn source(&mut self, source: &SourceRef, object: Option<Value>, now: Tick) {
        self.source_shown(source, object.map(Shown::Whole), now);
    }

    /// A source is there, and this is all of it that can be decoded: its metadata, at least. It is refused, and nobody waits for it.
    pub fn source_undecodable(&mut self, source: &SourceRef, rest: Value, now: Tick) {
        self.source_shown(source, Some(Shown::Part(rest)), now);
    }

    fn source_shown(&mut self, source: &SourceRef, object: Option<Shown>, now: Tick) {
        self.at(now);
        if let Some(selector) = source.selector() {
            self.selected_source(&selector, source, object);
        } else if self.sources.contains_key(source) {
            self.take_source(source, object);
            self.render_source(source);
        }
        // Of what it had found a keeper knows whose copies they were. Nobody else asks.
        let forgotten = self.settings.role == Role::Injector && source.selector().is_some();
        if forgotten && self.sources.get(source).is_some_and(SourceState::is_missing) {
            self.sources.remove(source);
        }
    }

    pub(in crate::engine) fn take_source(&mut self, source: &SourceRef, object: Option<Shown>) {
        let Some(state) = self.sources.get_mut(source) else { return };
        let readable_again = self.unreadable.remove(source).is_some();
        let was_there = matches!(state, SourceState::Found { .. });
        let lost = object.is_none() && !matches!(state, SourceState::Missing { .. });
        match (object, &state) {
            (None, SourceState::Missing { .. }) if !readable_again => return,
            (None, SourceState::Missing { .. }) => {}
            (None, known) => {
                // Never seen, it may have been in a former namespace of that name.
                let home = match known {
                    SourceState::Found { home, .. } => home.or_else(|| self.namespaces.get(&*source.namespace)?.uid),
                    _ => None,
                };
                *state = SourceState::Missing { since: self.now, absence: absent::Absence::from(home) };
            }
            (Some(Shown::Whole(object)), _) => *state = SourceState::found(source, Arc::new(object)),
            (Some(Shown::Part(rest)), _) => *state = SourceState::undecodable(&rest),
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
        self.mark_statuses_due_of_source(source);
        self.replan_rules_of_source(source);
    }

    pub(in crate::engine) fn render_source(&mut self, source: &SourceRef) {
        let slots = self.slots.of_source(source).map(|(id, _)| id).collect();
        self.render_slots(slots);
    }

    /// Renders the copies of these slots anew, whose sources have changed, or the consent to read them.
    pub(in crate::engine) fn render_slots(&mut self, slots: Vec<SlotId>) {
        if self.render(slots) {
            self.apply_allowances();
        }
    }

    /// Renders without looking at allowances. Returns whether a slot of a Replication was among them.
    pub(in crate::engine) fn render(&mut self, slots: Vec<SlotId>) -> bool {
        let mut touched = BTreeSet::new();
        let mut changed = BTreeSet::new();
        let (mut press, mut scale) = (Press::default(), allowance::Scale::default());
        for id in slots {
            let Some(slot) = self.slots.get_mut(&id) else { continue };
            let Some(Ok(rule)) = self.rules.get(&slot.rule).map(|state| &state.rule) else { continue };
            let Some(target) = rule.targets.get(slot.target) else { continue };
            let Some(state) = self.sources.get(&slot.source) else { continue };
            touched.insert(slot.rule.clone());
            let cluster = &self.settings.cluster;
            let rendering = scale.make(slot, rule, state, |slot| press.rendering(rule, target, slot, state, cluster));
            let same = rendering == slot.rendering;
            if !same {
                slot.reference = first_reference(self.settings.role, &rendering);
                slot.untold = 0;
                slot.rendering = rendering;
                slot.renewed = Some(self.now);
            }
            // A source's edit that the copies don't carry ends here.
            if !same {
                changed.insert(id);
            }
        }
        for id in &touched {
            self.mark_status_due(id);
            self.remind_of_grace(id);
        }
        let concerned: BTreeSet<Arc<RuleId>> =
            changed.iter().filter_map(|id| self.slots.get(id)).map(|slot| slot.rule.clone()).collect();
        for id in &concerned {
            self.replan_rule(id);
        }
        let places: BTreeSet<Arc<str>> = concerned.iter().flat_map(|id| self.places(id)).collect();
        for name in places {
            let Some(namespace) = self.namespaces.get_mut(&name) else { continue };
            let cells = namespace.cells.iter_mut();
            cells.filter(|cell| cell.want.is_some_and(|id| changed.contains(&id))).for_each(Cell::start_over);
        }
        touched.iter().any(|id| id.kind == RuleKind::Replication)
    }

    /// A namespace is gone: sources and rules that it held went with it, though their own watches may yet have to say so.
    pub(in crate::engine) fn leave_home(&mut self, name: &str, uid: Option<Uid>) {
        for (_, state) in self.rules.iter_mut().filter(|(id, _)| id.namespace.as_deref() == Some(name)) {
            state.home = state.home.or(uid);
        }
        for (source, state) in &mut self.sources {
            if let SourceState::Found { home: home @ None, .. } = state
                && *source.namespace == *name
            {
                *home = uid;
            }
        }
    }
}

pub(in crate::engine) fn first_reference(role: Role, rendering: &Result<Copies, NoRendering>) -> Reference {
    match role {
        Role::Keeper if rendering.as_ref().is_ok_and(Copies::own_fields_apart) => Reference::Apart,
        Role::Keeper => Reference::Unknown,
        Role::Injector => Reference::Waived,
    }
}

/// Renders what slots copy, in one go. What was made last for a rule and a source is there for the rule's next target.
#[derive(Default)]
pub(in crate::engine) struct Press {
    last: Option<(Arc<RuleId>, SourceRef, Result<Draft, SourceRefused>)>,
    /// Bytes that copies have in common are shared.
    shared: Vec<Copies>,
}

impl Press {
    /// What a slot's copies are.
    pub(in crate::engine) fn rendering(
        &mut self,
        rule: &Rule,
        target: &Target,
        slot: &Slot,
        state: &SourceState,
        cluster: &str,
    ) -> Result<Copies, NoRendering> {
        match state {
            _ if !slot.granted => Err(NoRendering::NotGranted),
            SourceState::Found { facts: Facts { never: Some(SourceRefused::Undecodable), .. }, .. } => {
                Err(NoRendering::Refused(SourceRefused::Undecodable))
            }
            SourceState::NotRead { .. } | SourceState::Found { object: None, .. } => Err(NoRendering::NotRead),
            SourceState::Missing { .. } => Err(NoRendering::SourceMissing),
            SourceState::Found { object: Some(object), .. } => {
                let draft = self.draft(rule, slot, object, cluster).as_ref();
                let copies = draft.map_err(Clone::clone).and_then(|draft| draft.copies(target));
                let mut copies = copies.map_err(NoRendering::Refused)?;
                copies.share(&mut self.shared);
                Ok(copies)
            }
        }
    }

    fn draft(&mut self, rule: &Rule, slot: &Slot, object: &Value, cluster: &str) -> &Result<Draft, SourceRefused> {
        let last = self.last.take();
        if last.as_ref().is_some_and(|(last, ..)| *last != slot.rule && last.namespace.is_some()) {
            // Tenants' rules may make of it what they like: none of it is kept for the others'.
            self.shared.clear();
        }
        let (.., draft) = self.last.insert(match last {
            Some((of, source, draft)) if of == slot.rule && source == slot.source => (of, source, draft),
            _ => (slot.rule.clone(), slot.source.clone(), Draft::of(rule, &slot.source, object, cluster)),
        });
        draft
    }
}
