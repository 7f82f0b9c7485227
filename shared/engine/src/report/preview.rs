//! A preview of the effects of a rule that is about to be stored. The author sees it before Mimeo
//! does anything.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mimeo_model::{
    id::{RuleId, RuleKind},
    kind::GroupKind,
    rule::Rule,
    selection::Labels,
    source::SourceRef,
    template::{Place, Template},
};

use crate::{Index, events::places, wants::rank};

/// The effects that a rule would have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Preview {
    /// Number of namespaces that the rule selects, without terminating ones.
    pub matching: usize,
    /// Number of all namespaces, without terminating ones.
    pub all: usize,
    /// Number of namespaces that the rule selected before and no longer selects.
    pub lost: usize,
    /// Set if a target with a pattern selects no namespace. The text is the beginning of that
    /// pattern. The number is that of the namespaces that the pattern would select if it ended with
    /// `.*` there. A user that writes `team-` means all of these, but a pattern matches whole
    /// names.
    pub beginning: Option<(String, usize)>,
    /// The same for an item of `spec.exclude` with a pattern that excludes no namespace.
    pub beginning_of_exclude: Option<(String, usize)>,
    /// Copies that this rule begins to want although another rule wants them, too. The copies in
    /// the most namespaces come first.
    pub contests: Vec<Contest>,
}

/// A copy that two rules want.
#[derive(Clone, Debug, PartialEq)]
pub struct Contest {
    /// The other rule.
    pub other: Arc<RuleId>,
    /// Kind of the copy.
    pub kind: GroupKind,
    /// Name of the copy.
    pub name: Arc<str>,
    /// True if the other rule has the higher rank. Then it gets the copy, unless this rule's copy
    /// already exists.
    pub lost: bool,
    /// Namespaces with this conflict. There may be more.
    pub namespaces: Vec<Arc<str>>,
}

impl Contest {
    /// Returns these namespaces as text for users.
    pub fn places(&self) -> String {
        places(&self.namespaces)
    }
}

/// The largest number of copy names that one preview compares to find competing rules. The engine
/// does no other work meanwhile.
const QUESTIONS: usize = 50_000;

impl Index {
    /// Returns the effects of `rule` with all the `sources` that it would have, among the known
    /// namespaces and rules. `before` is the rule as it is stored.
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
        preview.beginning = self.beginning(rule);
        preview.beginning_of_exclude = self.beginning_of_exclude(rule);
        let contest = |((index, name), namespaces): ((usize, String), Vec<Arc<str>>)| {
            let Rival {
                id,
                rule: other,
                kind,
                ..
            } = &rivals[index];
            // The owner of an existing copy is not known here.
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

    /// Returns the beginning of a pattern whose target selects no namespace, and the number of
    /// namespaces with names that begin with it. A user that writes `team-` for all such names is
    /// advised to write `team-.*`.
    fn beginning(&self, rule: &Rule) -> Option<(String, usize)> {
        rule.targets.iter().find_map(|target| {
            let one = &target.selection;
            self.short(
                one.beginning(),
                |name, labels| one.matches(name, labels),
                |name, labels| one.matches_by_beginning(name, labels),
            )
        })
    }

    /// Returns the same for a pattern of `spec.exclude` that excludes no namespace.
    fn beginning_of_exclude(&self, rule: &Rule) -> Option<(String, usize)> {
        // All targets have the same exclusions.
        let exclude = rule.targets.first()?.selection.exclude();
        exclude.iter().find_map(|one| {
            self.short(
                one.beginning(),
                |name, labels| one.matches(name, labels),
                |name, labels| one.matches_by_beginning(name, labels),
            )
        })
    }

    /// Returns the beginning and the number of namespaces that match by it, if none matches the
    /// whole pattern.
    fn short(
        &self,
        beginning: Option<&str>,
        matches: impl Fn(&str, &Labels) -> bool,
        matches_by_beginning: impl Fn(&str, &Labels) -> bool,
    ) -> Option<(String, usize)> {
        let beginning = beginning?;
        let namespaces = self.namespaces.iter();
        let alive = namespaces.filter(|(_, namespace)| namespace.alive());
        let mut count = 0;
        for (name, namespace) in alive {
            if matches(name, &namespace.labels) {
                return None;
            }
            count += usize::from(matches_by_beginning(name, &namespace.labels));
        }
        (count > 0).then(|| (beginning.to_owned(), count))
    }

    /// Returns the copies of a Replication in its own namespace that other rules want, too. These
    /// are `ClusterReplication`s and Replications of that namespace. A tenant must learn nothing
    /// about objects elsewhere and about the rules of other tenants. So only active rules count:
    /// their copies exist there, or soon will. An inactive rule would reveal which objects it would
    /// copy, and so their existence.
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
        let others = self.projections.values().filter(|projection| {
            projection.granted && *projection.rule != rule.id && known(&projection.rule)
        });
        let mut found: BTreeMap<(&Arc<RuleId>, GroupKind, String), bool> = BTreeMap::new();
        for projection in others {
            let copy = (
                projection.gvk().group_kind(),
                projection.name.at(place).to_string(),
            );
            let Some(state) = self
                .rules
                .get(&projection.rule)
                .filter(|_| own.contains(&copy))
            else {
                continue;
            };
            let Some(other) = state.acting() else {
                continue;
            };
            let target = other.targets.get(projection.target);
            let matches = target.is_some_and(|target| target.selection.matches(home, place.labels));
            if matches && !self.is_own_source(state, &copy.0, home, &copy.1) {
                let lost = rank(&projection.rule, Some(other.created), None)
                    < rank(&rule.id, Some(rule.created), None);
                found.insert((&projection.rule, copy.0, copy.1), lost);
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

    /// Returns the other rules that make a copy of the same kind and name as this rule, in any
    /// namespace.
    fn rivals(&self, rule: &Rule, sources: &[SourceRef]) -> Vec<Rival<'_>> {
        let own: Vec<(GroupKind, Template)> = rule.copies(sources).collect();
        let mut found = BTreeSet::new();
        // This preview is for `ClusterReplication`s, which lose no copy to a Replication.
        // `contests_at_home` is the one for Replications.
        let others = self
            .projections
            .values()
            .filter(|projection| projection.rule.kind == RuleKind::ClusterReplication);
        for projection in others.filter(|projection| *projection.rule != rule.id) {
            let same = own.iter().enumerate().filter(|(_, (kind, name))| {
                projection.gvk().is_of(kind) && projection.name.may_be(name)
            });
            found.extend(same.map(|(index, _)| (projection.rule.clone(), index)));
        }
        let known = |(id, index): (Arc<RuleId>, usize)| {
            let (id, state) = self.rules.get_key_value(&id)?;
            let (kind, name) = own[index].clone();
            let rule = state.valid()?;
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
