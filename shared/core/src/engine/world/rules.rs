//! Rules as they come, change and go, and the slots that they have.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::engine::{
    Engine, Listing, Role, SourceState, Tick, absent, allowance, authorized,
    conditions::barrier_active,
    record::CrdState,
    sources::{Press, first_reference},
    status::{self, Observed},
    view::Ended,
    wants, work,
};
use crate::{
    cell::Reference,
    kind::GroupVersionKind,
    meta::Uid,
    outcome::Unreadable,
    review::User,
    rule::{Refused, Rule, RuleId, RuleKind, SourceRef},
    slot::{NoRendering, Slot, SlotId},
};

/// What is known of all rules of a kind.
#[derive(Debug, Default)]
pub(in crate::engine) struct Collection {
    pub(in crate::engine) listing: Listing,
    /// Why they can't be read, or not any more.
    pub(in crate::engine) unread: Option<Unreadable>,
    pub(in crate::engine) crd: CrdState,
}

/// One rule, as last seen.
#[derive(Debug)]
pub(in crate::engine) struct RuleState {
    pub(in crate::engine) rule: Result<Rule, Refused>,
    /// Who wrote it, if that is known.
    pub(in crate::engine) author: Option<Arc<User>>,
    pub(in crate::engine) authority: authorized::Authority,
    /// Slots of each target, source by source.
    pub(in crate::engine) slots: Vec<Vec<SlotId>>,
    /// resourceVersion at which this generation was first seen.
    pub(in crate::engine) spec_version: u64,
    pub(in crate::engine) spec_seen: Tick,
    /// Uid of the CRD that it is known to live under.
    pub(in crate::engine) crd: Option<Box<str>>,
    /// Whether that is being read.
    pub(in crate::engine) crd_asked: bool,
    /// How often in a row that told nothing.
    pub(in crate::engine) crd_streak: u8,
    /// Its namespace, if that is known to have gone since.
    pub(in crate::engine) home: Option<Uid>,
    /// Whether its status already said, when this generation was first seen, that every webhook replica has taken it in: so it
    /// was before a restart, and what replicas say of versions since doesn't count again.
    pub(in crate::engine) barrier_proven: bool,
    /// Cells that another rule has, by namespace.
    pub(in crate::engine) unmet: BTreeMap<Arc<str>, Vec<wants::Unmet>>,
    pub(in crate::engine) status: status::Book,
    /// Number of its last change that people see.
    pub(in crate::engine) changed: u64,
}

/// One rule, as it is shown.
struct ShownRule {
    rule: Result<Rule, Refused>,
    author: Option<Arc<User>>,
    authority: authorized::Authority,
    observed: Observed,
}

impl ShownRule {
    /// Whether its spec is the one that is known, and counts as it did.
    fn says_the_same(&self, known: &RuleState) -> bool {
        let same = |new: &Rule, old: &Rule| old.generation == new.generation && old.uid == new.uid;
        self.authority.counts() == known.authority.counts()
            && matches!((&self.rule, &known.rule), (Ok(new), Ok(old)) if same(new, old))
    }
}

impl Engine {
    /// A rule exists, with this spec, by this author if its stamp is true; `observed` is the status that it carries.
    pub fn rule_applied(
        &mut self,
        id: RuleId,
        rule: Result<Rule, Refused>,
        author: Option<User>,
        observed: Observed,
        now: Tick,
    ) {
        self.at(now);
        let author = author.map(Arc::new);
        let id = self.rules.get_key_value(&id).map_or_else(|| Arc::new(id), |(known, _)| known.clone());
        let (rule, crowded_out) = self.make_room(&id, rule);
        self.crowd_out(&crowded_out);
        let authority = self.authority_of(&id, rule.as_ref().ok(), author.as_ref(), &observed);
        let rule = rule.map(|rule| rule.within(&self.settings.reach));
        self.gone.remove(&id);
        let shown = ShownRule { rule, author, authority, observed };
        match self.rules.get(&id) {
            Some(known) if shown.says_the_same(known) => self.note_rule(&id, shown),
            _ => self.replace_rule(&id, shown),
        }
    }

    /// Takes in a rule of which only metadata or status moved: of these, the confirmation, the author and what was told are for us.
    fn note_rule(&mut self, id: &Arc<RuleId>, shown: ShownRule) {
        let Some(state) = self.rules.get_mut(id) else { return };
        let confirmation =
            |rule: &Result<Rule, Refused>| rule.as_ref().ok().and_then(|rule| rule.confirm_deletion.clone());
        let confirmed = confirmation(&state.rule) != confirmation(&shown.rule);
        let regarded = state.authority != shown.authority;
        state.rule = shown.rule;
        state.author = shown.author;
        state.authority = shown.authority;
        state.status.observe(shown.observed);
        if regarded {
            self.ask_about_authors();
            self.authority_changed(id);
        }
        // An injector knows from the status what a tenant's selectors find.
        if self.settings.role == Role::Injector && id.kind == RuleKind::Replication {
            self.refit_slots(id);
        }
        if confirmed {
            self.confirm_sweep(id);
        }
    }

    /// Takes in a rule that is new, says something else, or has come to count or to count no more.
    fn replace_rule(&mut self, id: &Arc<RuleId>, shown: ShownRule) {
        let ShownRule { rule, author, authority, observed } = shown;
        self.replan_rule(id);
        self.census.iter_mut().for_each(|census| census.forget(id));
        let old = self.rules.remove(id);
        let former = old.as_ref().and_then(RuleState::counted);
        let counted = rule.as_ref().ok().filter(|_| authority.counts());
        self.forget_places(id, former);
        let shift = self.replace_selectors(id, former, counted);
        let slots = counted.map_or_else(Vec::new, |rule| self.add_claims(id, rule, &observed));
        let version = rule.as_ref().map_or(0, |rule| rule.resource_version);
        let barrier_proven = rule.as_ref().is_ok_and(|rule| barrier_active(&observed, rule.generation));
        // What a re-installed CRD took with it may be shown for a while yet: the same rule lives where it always did.
        let same = old.as_ref().filter(|old| matches!((&old.rule, &rule), (Ok(old), Ok(new)) if old.uid == new.uid));
        let crd = same.map_or_else(|| self.collections[id.kind].crd.certain(), |old| old.crd.clone());
        let mut book = old.map_or_else(status::Book::default, |old| {
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
                crd_streak: 0,
                home: None,
                barrier_proven,
                unmet: BTreeMap::new(),
                status: book,
                changed: self.changes.next(),
            },
        );
        let counted = self.rules.get(id).and_then(RuleState::counted);
        self.news.forget_sources(id, |source| counted.is_some_and(|rule| rule.may_have(source)));
        self.apply_allowances();
        self.keep_all_copied(id);
        self.follow_anew(shift);
        self.mark_status_due(id);
        self.ask_about_authors();
        self.remind_of_grace(id);
        if id.kind == RuleKind::ClusterReplication {
            self.work.timer(self.now + status::HOOKS_KNOWN, work::Timer::Rule(id.clone()));
        }
        self.replan_rule(id);
        self.demand_changed();
    }

    /// What a rule that counts lays claim to: its places, its sources, and a slot for each source and target.
    fn add_claims(&mut self, id: &Arc<RuleId>, rule: &Rule, observed: &Observed) -> Vec<Vec<SlotId>> {
        self.learn_places(id, rule);
        for (source, object) in &rule.inline {
            self.sources.insert(source.clone(), SourceState::found(source, object.clone()));
        }
        for selector in &rule.selectors {
            self.kinds.ask(&selector.gvk);
        }
        let sources = self.sources_of_rule(rule, observed);
        self.add_slots(id, rule, &sources, &BTreeMap::new())
    }

    /// A rule doesn't exist any more, as far as its watch says.
    pub fn rule_gone(&mut self, id: &RuleId, now: Tick) {
        self.at(now);
        self.replan_rule(id);
        let Some((id, old)) = self.rules.remove_entry(id) else { return };
        self.census.iter_mut().for_each(|census| census.forget(&id));
        self.crowd.leave(&id);
        self.changes.end(Ended::Rule(id.clone()));
        let former = old.counted();
        self.forget_places(&id, former);
        let shift = self.replace_selectors(&id, former, None);
        self.retire(&old.slots.concat(), &[]);
        self.apply_allowances();
        self.follow_anew(shift);
        self.sweeps.remove(&id);
        self.news.forget_sources(&id, |_| false);
        self.ask_about_authors();
        self.work.tidy_later();
        let home = || self.namespaces.get(id.namespace.as_deref()?)?.uid;
        let gone = absent::Gone::seen_under(old.crd, old.home.or_else(home), self.now);
        if self.settings.role == Role::Keeper {
            self.gone.insert(id, gone);
        }
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
        self.collections[kind].listing = Listing::Listed;
        self.unread(kind, None);
        self.replan_all();
    }

    /// The server doesn't serve rules of the kind: their CRD isn't there (any more). Whoever only fills new namespaces has
    /// nothing to wait for then; what it means for copies that exist is not decided by a watch.
    pub fn rules_unserved(&mut self, kind: RuleKind, now: Tick) {
        self.at(now);
        self.unread(kind, None);
        if self.settings.role == Role::Injector {
            self.rules_listed(kind, &BTreeSet::new(), now);
        } else if self.collections[kind].listing != Listing::Listed {
            self.collections[kind].listing = Listing::Unserved;
            self.replan_all();
        }
    }

    /// Rules of the kind can't be read. Those that were shown hold; they tell if they may not be read any more. If none was shown so
    /// far, what that means for rules of other kinds is what it means that
    /// none are served: the platform's don't wait for tenants', whose sources are none to them, and a copy with a rule's mark isn't
    /// touched before all rules of that kind are known.
    pub fn rules_unreadable(&mut self, kind: RuleKind, why: Unreadable, now: Tick) {
        self.at(now);
        if self.collections[kind].listing != Listing::Listed {
            self.collections[kind].listing = Listing::Unreadable(why);
            self.replan_all();
        } else if why == Unreadable::Unavailable {
            // That passes by itself, and a status couldn't be written meanwhile.
            return;
        }
        self.unread(kind, Some(why));
    }

    fn unread(&mut self, kind: RuleKind, why: Option<Unreadable>) {
        if std::mem::replace(&mut self.collections[kind].unread, why) != why {
            self.rules.values_mut().for_each(|state| state.status.mark_due());
        }
    }

    /// Whether changes of the platform's rules are seen, as far as is known.
    pub fn follows_rules(&self) -> bool {
        self.collections[RuleKind::ClusterReplication].unread.is_none()
    }

    /// Whether every rule of the kind was shown once.
    pub(in crate::engine) fn all_rules_of(&self, kind: RuleKind) -> bool {
        self.collections[kind].listing == Listing::Listed
    }

    /// Whether every rule was shown once that counts. The platform's don't wait for tenants' that nobody shows.
    pub(in crate::engine) fn all_rules(&self) -> bool {
        self.all_rules_of(RuleKind::ClusterReplication)
            && self.collections[RuleKind::Replication].listing != Listing::Unknown
    }

    /// The platform's rules. In the order of identities they come first.
    pub(in crate::engine) fn cluster_rules(&self) -> impl Iterator<Item = (&Arc<RuleId>, &RuleState)> {
        self.rules.iter().take_while(|(id, _)| id.kind == RuleKind::ClusterReplication)
    }

    /// The highest resourceVersion at which one of the platform's rules was first seen as it is.
    pub fn rules_seen(&self) -> u64 {
        self.cluster_rules().map(|(_, state)| state.spec_version).max().unwrap_or_default()
    }

    /// One value shared by all copies of a rule.
    pub(in crate::engine) fn rule_name(&self, id: &Arc<RuleId>) -> Arc<RuleId> {
        let known = self.rules.get_key_value(id).map(|(known, _)| known);
        known.or_else(|| self.gone.get_key_value(id).map(|(known, _)| known)).unwrap_or(id).clone()
    }

    /// A slot of each target for each of these sources: that of `former`, if it has one.
    pub(in crate::engine) fn add_slots(
        &mut self,
        id: &Arc<RuleId>,
        rule: &Rule,
        sources: &[SourceRef],
        former: &BTreeMap<(usize, SourceRef), SlotId>,
    ) -> Vec<Vec<SlotId>> {
        let mut slots = vec![Vec::new(); rule.targets.len()];
        let (mut press, mut scale) = (Press::default(), allowance::Scale::default());
        // Source by source: what the copies for all targets have in common is made once.
        for source in sources {
            for (index, (target, added)) in rule.targets.iter().zip(&mut slots).enumerate() {
                if let Some(slot) = former.get(&(index, source.clone())) {
                    added.push(*slot);
                    continue;
                }
                let Some(kind) = self.kind_id(&source.gvk.group_kind()) else {
                    // The rule is told that it isn't served: hardly any of the others can be.
                    self.kinds.give_up(&source.gvk);
                    continue;
                };
                self.kinds.ask(&source.gvk);
                let granted = self.may_read(id, source);
                let state = self.sources.entry(source.clone()).or_insert(SourceState::NotRead { since: self.now });
                let Some(number) = self.slots.next_id() else { continue };
                let mut slot = Slot {
                    rule: id.clone(),
                    target: index,
                    source: source.clone(),
                    kind,
                    granted,
                    name: target.copy_name(source).into(),
                    reference: Reference::Unknown,
                    untold: 0,
                    rendering: Err(NoRendering::NotRead),
                    renewed: None,
                    weight: 0,
                    source_weight: 0,
                    shed: false,
                };
                let cluster = &self.settings.cluster;
                slot.rendering =
                    scale.make(&mut slot, rule, state, |slot| press.rendering(rule, target, slot, state, cluster));
                slot.reference = first_reference(self.settings.role, &slot.rendering);
                self.consent.add_reader(number, &slot);
                self.slots.insert(number, slot);
                added.push(number);
            }
        }
        slots
    }

    /// Forgets slots that a rule no longer has. What their writes taught is kept for a new slot with the same rendering.
    fn retire(&mut self, old: &[SlotId], new: &[SlotId]) {
        for id in old {
            let Some(gone) = self.remove_slot(*id) else { continue };
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

    pub(in crate::engine) fn remove_slot(&mut self, id: SlotId) -> Option<Slot> {
        let gone = self.slots.remove(&id)?;
        self.consent.remove_reader(id, &gone);
        Some(gone)
    }

    pub(in crate::engine) fn mark_statuses_due_of_kind(&mut self, gvk: &GroupVersionKind) {
        for state in self.rules.values_mut() {
            if state.rule.as_ref().is_ok_and(|rule| rule.kinds.iter().any(|kind| kind == gvk)) {
                state.status.mark_due();
            }
        }
    }

    /// Marks the statuses of all rules with this source as due.
    pub(in crate::engine) fn mark_statuses_due_of_source(&mut self, source: &SourceRef) {
        for (_, slot) in self.slots.of_source(source) {
            if let Some(state) = self.rules.get_mut(&slot.rule) {
                state.status.mark_due();
            }
        }
    }

    /// Marks the statuses of all rules that have such a slot as due.
    pub(in crate::engine) fn mark_statuses_due_of_slots(&mut self, concerned: impl Fn(&Slot) -> bool) {
        for slot in self.slots.values().filter(|slot| concerned(slot)) {
            if let Some(state) = self.rules.get_mut(&slot.rule) {
                state.status.mark_due();
            }
        }
    }
}
