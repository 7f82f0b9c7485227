//! What a rule would meet if it were stored as it is: told to the one who writes it, before anything is done.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::engine::{Engine, Listing, RuleState, announce::places, wants::rank};
use crate::{
    kind::{GroupKind, Resource},
    rule::{Rule, RuleId, RuleKind, SourceRef},
    selection::Labels,
    slot::Slot,
    template::{Place, Template},
};

/// What a rule would meet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Preview {
    /// Namespaces that it selects, terminating ones left out.
    pub matching: usize,
    /// All namespaces, likewise.
    pub all: usize,
    /// Namespaces that it selected before and doesn't any more.
    pub lost: usize,
    /// Copies that another rule wants, too, and that this one didn't want before; those in most namespaces first.
    pub contests: Vec<Contest>,
}

/// A copy that two rules want.
#[derive(Clone, Debug, PartialEq)]
pub struct Contest {
    /// The other rule.
    pub other: Arc<RuleId>,
    /// The copy's kind.
    pub kind: GroupKind,
    /// Its name.
    pub name: Arc<str>,
    /// Whether the other rule comes first. Unless this one's copy is there already, it has the copy then.
    pub lost: bool,
    /// In which namespaces: at least these.
    pub namespaces: Vec<Arc<str>>,
}

impl Contest {
    /// In which namespaces, for people.
    pub fn places(&self) -> String {
        places(&self.namespaces)
    }
}

/// Most names of copies that are compared to find out which other rules want the same: the engine does nothing else meanwhile.
const QUESTIONS: usize = 50_000;

impl Engine {
    /// What `rule` would meet among the namespaces and rules that are known, with all the `sources` that it would have; `before` is
    /// the rule as it is stored.
    pub fn preview(&self, rule: &Rule, sources: &[SourceRef], before: Option<&Rule>) -> Preview {
        let mut preview = Preview::default();
        let rivals = self.rivals(rule, sources);
        let before = before.map(|before| (before, self.choose(before).sources));
        let mut contests: BTreeMap<(usize, String), Vec<Arc<str>>> = BTreeMap::new();
        let mut questions = 0;
        for (name, namespace) in self.namespaces.iter().filter(|(_, namespace)| namespace.alive()) {
            let labels = &namespace.labels;
            preview.all += 1;
            if !rule.matches(name, labels) {
                preview.lost += usize::from(before.as_ref().is_some_and(|(before, _)| before.matches(name, labels)));
                continue;
            }
            preview.matching += 1;
            for (index, rival) in rivals.iter().enumerate() {
                questions += rule.targets.len() * sources.len() + rival.rule.targets.len() * rival.sources.len();
                if questions > QUESTIONS {
                    break;
                }
                let place = Place { name, labels };
                let copy = rival.name.text_at(place);
                let wants = |rule: &Rule, sources: &[SourceRef]| rule.wants(sources, &rival.kind, &copy, place);
                let had = before.as_ref().is_some_and(|(before, sources)| wants(before, sources));
                if !had && wants(rival.rule, &rival.sources) && wants(rule, sources) {
                    contests.entry((index, copy)).or_default().push(name.clone());
                }
            }
        }
        let contest = |((index, name), namespaces): ((usize, String), Vec<Arc<str>>)| {
            let Rival { id, rule: other, kind, .. } = &rivals[index];
            // Whose copy is there is not known here.
            let lost = rank(id, Some(other.created), None) < rank(&rule.id, Some(rule.created), None);
            Contest { other: (*id).clone(), kind: kind.clone(), name: name.into(), lost, namespaces }
        };
        preview.contests = contests.into_iter().map(contest).collect();
        preview.contests.sort_by_key(|contest| std::cmp::Reverse(contest.namespaces.len()));
        preview
    }

    /// What a tenant's rule would meet in its own namespace, of the platform's rules and of others in that namespace. Of what there is
    /// elsewhere, and of other tenants' rules, nothing is to be told. So rules count that have copies there, or are about to: what one
    /// that doesn't act would copy, and by that what there is, the tenant can't see.
    pub fn contests_at_home(&self, rule: &Rule, sources: &[SourceRef], before: Option<&Rule>) -> Vec<Contest> {
        let home = rule.id.namespace.as_deref().and_then(|home| self.namespaces.get_key_value(home));
        let Some((home, namespace)) = home.filter(|(_, namespace)| namespace.alive()) else { return vec![] };
        let place = namespace.place(home);
        let makes = |rule: &Rule, sources: &[SourceRef]| -> BTreeSet<(GroupKind, String)> {
            let targets = rule.targets.iter().filter(|target| target.selection.matches(home, place.labels));
            let read: Vec<_> = sources.iter().filter(|source| self.may_read(&rule.id, source)).collect();
            let copies = targets.flat_map(|target| {
                read.iter().map(|source| (source.gvk.group_kind(), target.copy_name(source).text_at(place)))
            });
            // A source is never written.
            copies.filter(|(kind, copy)| !sources.iter().any(|source| source.is(kind, home, copy))).collect()
        };
        let had = before.map(|before| makes(before, &self.choose(before).sources)).unwrap_or_default();
        let mut own = makes(rule, sources);
        own.retain(|copy| !had.contains(copy));
        let known = |id: &RuleId| id.kind == RuleKind::ClusterReplication || id.namespace == rule.id.namespace;
        let others = self.slots.values().filter(|slot| slot.granted && *slot.rule != rule.id && known(&slot.rule));
        let mut found: BTreeMap<(&Arc<RuleId>, GroupKind, String), bool> = BTreeMap::new();
        for slot in others {
            let copy = (slot.gvk().group_kind(), slot.name.at(place).to_string());
            let Some(state) = self.rules.get(&slot.rule).filter(|_| own.contains(&copy)) else { continue };
            let Some(other) = state.acting() else { continue };
            let target = other.targets.get(slot.target);
            let matches = target.is_some_and(|target| target.selection.matches(home, place.labels));
            if matches && !self.is_own_source(state, &copy.0, home, &copy.1) {
                let lost = rank(&slot.rule, Some(other.created), None) < rank(&rule.id, Some(rule.created), None);
                found.insert((&slot.rule, copy.0, copy.1), lost);
            }
        }
        let contest = |((other, kind, name), lost): ((&Arc<RuleId>, GroupKind, String), bool)| Contest {
            other: other.clone(),
            kind,
            name: name.into(),
            lost,
            namespaces: vec![home.clone()],
        };
        found.into_iter().map(contest).collect()
    }

    /// The sources of rules, those that selectors find included, as far as their rules and this installation may read them and their
    /// kinds are served: at most so many. The platform's come first; then tenants' namespaces take turns, for each could have any number. None before
    /// all is known that decides about it.
    pub fn sources(&self, most: usize) -> Option<BTreeMap<SourceRef, Resource>> {
        if !self.informed() || self.consent.listing == Listing::Unknown {
            return None;
        }
        let mut homes: BTreeMap<Option<&str>, BTreeMap<&SourceRef, &Resource>> = BTreeMap::new();
        let read = |slot: &&Slot| slot.granted && self.settings.reach.refuses(&slot.source).is_none();
        for slot in self.slots.values().filter(|slot| !slot.source.is_inline()).filter(read) {
            if let Some(resource) = self.kinds.resource(slot.gvk()) {
                homes.entry(slot.rule.namespace.as_deref()).or_default().insert(&slot.source, resource);
            }
        }
        let mut turns: BTreeMap<&SourceRef, (usize, &Resource)> = BTreeMap::new();
        for (home, sources) in homes {
            for (index, (source, resource)) in sources.into_iter().enumerate() {
                let turn = home.map_or(0, |_| index + 1);
                let known = turns.entry(source).or_insert((turn, resource));
                known.0 = known.0.min(turn);
            }
        }
        let mut turns: Vec<_> = turns.into_iter().collect();
        turns.sort_by_key(|(_, (turn, _))| *turn);
        Some(turns.into_iter().take(most).map(|(source, (_, resource))| (source.clone(), resource.clone())).collect())
    }

    /// The platform's rules that copy this object, and how many copies each has of it, or is about to have.
    pub fn feeds(&self, kind: &GroupKind, namespace: &str, name: &str) -> Vec<(&Rule, usize)> {
        let rules = self.cluster_rules().filter_map(|(_, state)| Some((state, state.rule.as_ref().ok()?)));
        let fed = |state: &RuleState, rule: &Rule| {
            let mut slots = self.slots.of_object(kind, namespace, name);
            let source = slots.find(|slot| *slot.rule == rule.id).map(|slot| &slot.source)?;
            let copies = |(place, labels): (&Arc<str>, &Labels)| {
                let targets = rule.targets.iter().filter(|target| target.selection.matches(place, labels));
                let names: BTreeSet<String> =
                    targets.map(|target| target.copy_name(source).text_at(Place { name: place, labels })).collect();
                names.iter().filter(|copy| !self.is_own_source(state, kind, place, copy)).count()
            };
            let alive = self.namespaces.iter().filter(|(_, namespace)| namespace.alive());
            Some(alive.map(|(place, namespace)| copies((place, &namespace.labels))).sum())
        };
        rules.filter_map(|(state, rule)| Some((rule, fed(state, rule)?))).collect()
    }

    /// How many copies tenants' rules have of this object, or are about to have.
    pub fn feeds_tenants(&self, kind: &GroupKind, namespace: &str, name: &str) -> usize {
        let slots = self.slots.of_object(kind, namespace, name);
        let mut copies = BTreeSet::new();
        for slot in slots.filter(|slot| slot.rule.kind == RuleKind::Replication && slot.granted) {
            let Some((state, Ok(rule))) = self.rules.get(&slot.rule).map(|state| (state, &state.rule)) else {
                continue;
            };
            let names = rule.targets.get(slot.target).and_then(|target| target.selection.exact_names());
            for (place, entry) in names.iter().flatten().filter_map(|name| self.namespaces.get_key_value(*name)) {
                let copy = slot.name.at(entry.place(place));
                let wanted = entry.alive() && self.may_write(&rule.id, place, kind, &copy);
                if wanted && !self.is_own_source(state, kind, place, &copy) {
                    copies.insert((&slot.rule, place, copy));
                }
            }
        }
        copies.len()
    }

    /// Other rules that make a copy of a kind and name that this one makes, too, wherever that is.
    fn rivals(&self, rule: &Rule, sources: &[SourceRef]) -> Vec<Rival<'_>> {
        let own: Vec<(GroupKind, Template)> = rule.copies(sources).collect();
        let mut found = BTreeSet::new();
        // To a tenant's rule the platform's loses nothing, and a tenant's is told nothing here.
        let others = self.slots.values().filter(|slot| slot.rule.kind == RuleKind::ClusterReplication);
        for slot in others.filter(|slot| *slot.rule != rule.id) {
            let same =
                own.iter().enumerate().filter(|(_, (kind, name))| slot.gvk().is_of(kind) && slot.name.may_be(name));
            found.extend(same.map(|(index, _)| (slot.rule.clone(), index)));
        }
        let known = |(id, index): (Arc<RuleId>, usize)| {
            let (id, state) = self.rules.get_key_value(&id)?;
            let (kind, name) = own[index].clone();
            let rule = state.rule.as_ref().ok()?;
            Some(Rival { id, rule, sources: self.choose(rule).sources, kind, name })
        };
        found.into_iter().filter_map(known).collect()
    }
}

/// A rule that may make a copy of this kind and name.
struct Rival<'a> {
    id: &'a Arc<RuleId>,
    rule: &'a Rule,
    sources: Vec<SourceRef>,
    kind: GroupKind,
    name: Template,
}
