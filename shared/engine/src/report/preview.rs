//! What a rule would meet if it were stored as it is: told to the one who writes it, before
//! anything is done.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mimeo_model::{
    id::{RuleId, RuleKind},
    kind::GroupKind,
    rule::{Rule, Target},
    source::SourceRef,
    template::{Place, Template},
};

use crate::{Engine, announce::places, wants::rank};

/// What a rule would meet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Preview {
    /// Namespaces that it selects, terminating ones left out.
    pub matching: usize,
    /// All namespaces, likewise.
    pub all: usize,
    /// Namespaces that it selected before and doesn't any more.
    pub lost: usize,
    /// If it selects none: the beginning of one of its patterns, and how many more namespaces it
    /// would select if the pattern ended with `.*` there. Who writes `team-` means all of these,
    /// but a pattern matches whole names.
    pub beginning: Option<(String, usize)>,
    /// Copies that another rule wants, too, and that this one didn't want before; those in most
    /// namespaces first.
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
    /// Whether the other rule comes first. Unless this one's copy is there already, it has the copy
    /// then.
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

/// Most names of copies that are compared to find out which other rules want the same: the engine
/// does nothing else meanwhile.
const QUESTIONS: usize = 50_000;

impl Engine {
    /// What `rule` would meet among the namespaces and rules that are known, with all the `sources`
    /// that it would have; `before` is the rule as it is stored.
    pub fn preview(&self, rule: &Rule, sources: &[SourceRef], before: Option<&Rule>) -> Preview {
        let mut preview = Preview::default();
        let rivals = self.rivals(rule, sources);
        let before = before.map(|before| (before, self.choose(before).sources));
        let mut contests: BTreeMap<(usize, String), Vec<Arc<str>>> = BTreeMap::new();
        let mut questions = 0;
        for (name, namespace) in self
            .namespaces
            .iter()
            .filter(|(_, namespace)| namespace.alive())
        {
            let labels = &namespace.labels;
            preview.all += 1;
            if !rule.matches(name, labels) {
                preview.lost += usize::from(
                    before
                        .as_ref()
                        .is_some_and(|(before, _)| before.matches(name, labels)),
                );
                continue;
            }
            preview.matching += 1;
            for (index, rival) in rivals.iter().enumerate() {
                questions += rule.targets.len() * sources.len()
                    + rival.rule.targets.len() * rival.sources.len();
                if questions > QUESTIONS {
                    break;
                }
                let place = Place { name, labels };
                let copy = rival.name.text_at(place);
                let wants = |rule: &Rule, sources: &[SourceRef]| {
                    rule.wants(sources, &rival.kind, &copy, place)
                };
                let had = before
                    .as_ref()
                    .is_some_and(|(before, sources)| wants(before, sources));
                if !had && wants(rival.rule, &rival.sources) && wants(rule, sources) {
                    contests
                        .entry((index, copy))
                        .or_default()
                        .push(name.clone());
                }
            }
        }
        if preview.matching == 0 {
            preview.beginning = self.beginning(rule);
        }
        let contest = |((index, name), namespaces): ((usize, String), Vec<Arc<str>>)| {
            let Rival {
                id,
                rule: other,
                kind,
                ..
            } = &rivals[index];
            // Whose copy is there is not known here.
            let lost =
                rank(id, Some(other.created), None) < rank(&rule.id, Some(rule.created), None);
            Contest {
                other: (*id).clone(),
                kind: kind.clone(),
                name: name.into(),
                lost,
                namespaces,
            }
        };
        preview.contests = contests.into_iter().map(contest).collect();
        preview
            .contests
            .sort_by_key(|contest| std::cmp::Reverse(contest.namespaces.len()));
        preview
    }

    /// For a rule whose patterns match no namespace: the text that a pattern begins with, and how
    /// many namespaces have names that begin with it. A user who writes `team-` and means every
    /// name that begins so is told to write `team-.*`.
    fn beginning(&self, rule: &Rule) -> Option<(String, usize)> {
        let count = |target: &Target| {
            let alive = self
                .namespaces
                .iter()
                .filter(|(_, namespace)| namespace.alive());
            alive
                .filter(|(name, namespace)| {
                    target
                        .selection
                        .matches_by_beginning(name, &namespace.labels)
                })
                .count()
        };
        let mut beginnings = rule
            .targets
            .iter()
            .filter_map(|target| Some((target.selection.beginning()?.to_owned(), count(target))));
        beginnings.find(|(_, count)| *count > 0)
    }

    /// What a tenant's rule would meet in its own namespace, of the platform's rules and of others
    /// in that namespace. Of what there is elsewhere, and of other tenants' rules, nothing is to be
    /// told. So rules count that have copies there, or are about to: what one that doesn't act
    /// would copy, and by that what there is, the tenant can't see.
    pub fn contests_at_home(
        &self,
        rule: &Rule,
        sources: &[SourceRef],
        before: Option<&Rule>,
    ) -> Vec<Contest> {
        let home = rule
            .id
            .namespace
            .as_deref()
            .and_then(|home| self.namespaces.get_key_value(home));
        let Some((home, namespace)) = home.filter(|(_, namespace)| namespace.alive()) else {
            return vec![];
        };
        let place = namespace.place(home);
        let makes = |rule: &Rule, sources: &[SourceRef]| -> BTreeSet<(GroupKind, String)> {
            let targets = rule
                .targets
                .iter()
                .filter(|target| target.selection.matches(home, place.labels));
            let read: Vec<_> = sources
                .iter()
                .filter(|source| self.may_read(&rule.id, source))
                .collect();
            let copies = targets.flat_map(|target| {
                read.iter().map(|source| {
                    (
                        source.gvk.group_kind(),
                        target.copy_name(source).text_at(place),
                    )
                })
            });
            // A source is never written.
            copies
                .filter(|(kind, copy)| !sources.iter().any(|source| source.is(kind, home, copy)))
                .collect()
        };
        let had = before
            .map(|before| makes(before, &self.choose(before).sources))
            .unwrap_or_default();
        let mut own = makes(rule, sources);
        own.retain(|copy| !had.contains(copy));
        let known = |id: &RuleId| {
            id.kind == RuleKind::ClusterReplication || id.namespace == rule.id.namespace
        };
        let others = self
            .slots
            .values()
            .filter(|slot| slot.granted && *slot.rule != rule.id && known(&slot.rule));
        let mut found: BTreeMap<(&Arc<RuleId>, GroupKind, String), bool> = BTreeMap::new();
        for slot in others {
            let copy = (slot.gvk().group_kind(), slot.name.at(place).to_string());
            let Some(state) = self.rules.get(&slot.rule).filter(|_| own.contains(&copy)) else {
                continue;
            };
            let Some(other) = state.acting() else {
                continue;
            };
            let target = other.targets.get(slot.target);
            let matches = target.is_some_and(|target| target.selection.matches(home, place.labels));
            if matches && !self.is_own_source(state, &copy.0, home, &copy.1) {
                let lost = rank(&slot.rule, Some(other.created), None)
                    < rank(&rule.id, Some(rule.created), None);
                found.insert((&slot.rule, copy.0, copy.1), lost);
            }
        }
        let contest =
            |((other, kind, name), lost): ((&Arc<RuleId>, GroupKind, String), bool)| Contest {
                other: other.clone(),
                kind,
                name: name.into(),
                lost,
                namespaces: vec![home.clone()],
            };
        found.into_iter().map(contest).collect()
    }

    /// Other rules that make a copy of a kind and name that this one makes, too, wherever that is.
    fn rivals(&self, rule: &Rule, sources: &[SourceRef]) -> Vec<Rival<'_>> {
        let own: Vec<(GroupKind, Template)> = rule.copies(sources).collect();
        let mut found = BTreeSet::new();
        // To a tenant's rule the platform's loses nothing, and a tenant's is told nothing here.
        let others = self
            .slots
            .values()
            .filter(|slot| slot.rule.kind == RuleKind::ClusterReplication);
        for slot in others.filter(|slot| *slot.rule != rule.id) {
            let same = own
                .iter()
                .enumerate()
                .filter(|(_, (kind, name))| slot.gvk().is_of(kind) && slot.name.may_be(name));
            found.extend(same.map(|(index, _)| (slot.rule.clone(), index)));
        }
        let known = |(id, index): (Arc<RuleId>, usize)| {
            let (id, state) = self.rules.get_key_value(&id)?;
            let (kind, name) = own[index].clone();
            let rule = state.rule.as_ref().ok()?;
            Some(Rival {
                id,
                rule,
                sources: self.choose(rule).sources,
                kind,
                name,
            })
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
