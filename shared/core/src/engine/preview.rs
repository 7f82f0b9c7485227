//! What a rule would meet if it were stored as it is: told to the one who writes it, before anything is done.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{Engine, RuleState, Served, announce::places, plan::rank};
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
                let copy = rival.name.text_at(Place { name, labels });
                let wants = |rule: &Rule, sources: &[SourceRef]| rule.wants(sources, &rival.kind, &copy, name, labels);
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

    /// The sources of the platform's rules, those that selectors find included, as far as their kinds are served. Tenants' could be
    /// any number.
    pub fn sources(&self) -> BTreeMap<SourceRef, Resource> {
        let resource = |slot: &Slot| self.served.get(slot.gvk()).and_then(Served::namespaced).cloned();
        let slots = self.slots.values().filter(|slot| slot.rule.kind == RuleKind::ClusterReplication);
        slots.filter_map(|slot| Some((slot.source.clone(), resource(slot)?))).collect()
    }

    /// The platform's rules that copy this object, and how many copies each has of it, or is about to have.
    pub fn feeds(&self, kind: &GroupKind, namespace: &str, name: &str) -> Vec<(&Rule, usize)> {
        let rules = self.cluster_rules().filter_map(|(_, state)| Some((state, state.rule.as_ref().ok()?)));
        let fed = |state: &RuleState, rule: &Rule| {
            let mut slots = state.slots.iter().flatten().filter_map(|slot| self.slots.get(slot));
            let source = slots.find(|slot| slot.source.is(kind, namespace, name)).map(|slot| &slot.source)?;
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
