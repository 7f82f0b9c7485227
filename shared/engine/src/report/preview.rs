//! A preview of the effects of a rule that is about to be stored. The author sees it before Mimeo
//! does anything.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mimeo_model::{
    id::{RuleId, RuleKind},
    kind::GroupKind,
    rule::Rule,
    selection::Place,
    source::SourceQuery,
    template::Template,
};

use crate::{Index, Namespace, events::places, projection::Projection, wants::rank};

/// The effects that a rule would have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Preview {
    /// Number of namespaces that the rule selects, without terminating ones.
    pub matching: usize,
    /// Number of all namespaces, without terminating ones.
    pub all: usize,
    /// Number of namespaces that the rule selected before and no longer selects.
    pub lost: usize,
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
        places(self.namespaces.iter().map(|name| &**name))
    }
}

/// The largest number of other rules' copies that one preview looks at to find competing rules. The
/// engine does no other work meanwhile.
const QUESTIONS: usize = 25_000;

impl Index {
    /// Returns the effects of `rule` among the known namespaces and rules. The sources that its
    /// selectors would find are not known. `before` is the rule as it is stored.
    pub fn preview(&self, rule: &Rule, before: Option<&Rule>) -> Preview {
        let mut preview = Preview::default();
        for namespace in self.alive() {
            let matches = |rule: &Rule| rule.matches(namespace.place());
            preview.all += 1;
            if matches(rule) {
                preview.matching += 1;
            } else {
                preview.lost += usize::from(before.is_some_and(matches));
            }
        }
        preview.contests = self.contests(rule, before);
        preview
    }

    /// The known namespaces without terminating ones.
    fn alive(&self) -> impl Iterator<Item = &Namespace> {
        let namespaces = self.namespaces.values().map(|namespace| &**namespace);
        namespaces.filter(|namespace| namespace.alive())
    }

    /// Returns the copies that this rule begins to want although other rules want them, too. The
    /// copies in the most namespaces come first.
    ///
    /// For a `ClusterReplication` these are other `ClusterReplication`s, because it loses no copy
    /// to a Replication. For a Replication these are the copies in its own namespace, and
    /// `ClusterReplication`s and Replications of that namespace. A tenant must learn nothing about
    /// objects elsewhere and about the rules of other tenants. So only active rules count there:
    /// their copies exist, or soon will. An inactive rule would reveal which objects it would copy,
    /// and so their existence.
    pub fn contests(&self, rule: &Rule, before: Option<&Rule>) -> Vec<Contest> {
        let home = rule.id.namespace.as_deref();
        let others = self.rivals(rule);
        let mut found: BTreeMap<(&Arc<RuleId>, GroupKind, String), Contest> = BTreeMap::new();
        let mut questions = 0;
        for namespace in self.alive() {
            let name = &namespace.name;
            if home.is_some_and(|home| *home != **name) {
                continue;
            }
            questions += others.len() + rule.targets.len() * rule.sources.len();
            if others.is_empty() || questions > QUESTIONS {
                break;
            }
            let place = namespace.place();
            let mut own = self.makes(rule, place);
            if let Some(before) = before {
                let had = self.makes(before, place);
                own.retain(|copy| !had.contains(copy));
            }
            for (projection, other) in &others {
                let kind = projection.gvk().group_kind();
                let copy = (kind, projection.name.at(place).to_string());
                let matches = || {
                    let target = other.targets.get(projection.target);
                    target.is_some_and(|target| target.matches(place))
                };
                if !own.contains(&copy)
                    || !matches()
                    || self.is_own_source(other, &copy.0, name, &copy.1)
                {
                    continue;
                }
                let (kind, copy_name) = copy;
                // The owner of an existing copy is not known here.
                let lost = rank(&other.id, Some(other.created), None)
                    < rank(&rule.id, Some(rule.created), None);
                let contest = found
                    .entry((&projection.rule, kind.clone(), copy_name.clone()))
                    .or_insert_with(|| Contest {
                        other: projection.rule.clone(),
                        kind,
                        name: copy_name.into(),
                        lost,
                        namespaces: vec![],
                    });
                // Several targets of the other rule may make the copy.
                if contest.namespaces.last() != Some(name) {
                    contest.namespaces.push(name.clone());
                }
            }
        }
        let mut contests: Vec<Contest> = found.into_values().collect();
        contests.sort_by_key(|contest| Reverse(contest.namespaces.len()));
        contests
    }

    /// Returns the copies that a rule may make of its named and inline sources in a namespace, by
    /// kind and name.
    fn makes(&self, rule: &Rule, place: Place<'_>) -> BTreeSet<(GroupKind, String)> {
        let sources = rule.sources.iter();
        let read = sources.filter(|source| self.may_read(&rule.id, SourceQuery::One(source)));
        let copies = read.flat_map(|source| {
            let names = rule.copy_names(source, place);
            names.map(|name| (source.gvk.group_kind(), name))
        });
        // A source is never written.
        let own_source =
            |(kind, name): &(GroupKind, String)| rule.is_source(kind, place.name, name);
        copies.filter(|copy| !own_source(copy)).collect()
    }

    /// Returns the projections of other rules that may make a copy of the same kind and name as
    /// this rule, in any namespace.
    fn rivals(&self, rule: &Rule) -> Vec<(&Projection, &Rule)> {
        let own: Vec<(GroupKind, Template)> = rule.copies().collect();
        let known = |id: &RuleId| {
            id.kind == RuleKind::ClusterReplication || id.namespace == rule.id.namespace
        };
        let others = self.projections.values().filter(|projection| {
            projection.granted
                && *projection.rule != rule.id
                && known(&projection.rule)
                && own.iter().any(|(kind, name)| {
                    projection.gvk().is_of(kind) && projection.name.may_be(name)
                })
        });
        let counted = others.filter_map(|projection| {
            let other = match rule.id.kind {
                RuleKind::ClusterReplication => self.valid(&projection.rule),
                RuleKind::Replication => self.acting(&projection.rule),
            };
            Some((projection, other?))
        });
        counted.collect()
    }
}
