//! The required state of the cluster, computed from the users' actions and [`super::tables`], with
//! no code of the engine.

mod cell;
mod claims;
mod consent;
mod deeds;
mod deletion;
mod drift;
mod object;
mod plan;
mod sources;

use std::collections::{BTreeMap, BTreeSet};

use self::object::is_content;
use self::sources::Chosen;
pub use self::{
    deeds::Deed,
    object::{Object, Owned, agrees},
    plan::Plan,
};
use super::{
    patch,
    render::{self, Content, Place, Withheld},
    select::Labels,
    server::{Key, Res},
    spec::{Access, GrantSpec, Operation, RuleSpec, Strategy},
    tables::Coverage,
};

/// A question that the documents leave open. A story isn't followed past it.
pub type Silence = &'static str;

#[derive(Clone, Debug)]
pub struct Namespace {
    /// Distinguishes it from others with the same name.
    id: usize,
    pub labels: Labels,
    pub ending: bool,
}

#[derive(Clone, Debug)]
pub struct Rule {
    pub spec: RuleSpec,
    /// The step in which it was created.
    born: usize,
}

/// The state of one wanted cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Synced,
    Failed(&'static str),
    Open,
}

/// The required content of a rule's status.
#[allow(clippy::struct_excessive_bools)] // Each on its own.
#[derive(Clone, Debug, Default)]
pub struct ReportedCopy {
    pub refused: bool,
    pub suspended: bool,
    /// True if a source is missing or refused.
    pub sourceless: bool,
    pub unread: bool,
    /// True if the rule has no grant of another namespace for a read or a write.
    pub ungranted: bool,
    /// The namespaces in which copies have no name, with the kinds of these copies.
    nameless: BTreeSet<(String, Res)>,
    pub desired: usize,
    pub synced: usize,
    pub failed: usize,
    /// The reasons of failures, by namespace and, if it is known, name.
    pub reasons: BTreeSet<(String, String, &'static str)>,
    /// The cells that the rule can't have.
    conflicts: BTreeSet<Key>,
    /// The actions of the rule without its suspension, as far as the documents define them.
    pub plan: Option<Plan>,
}

/// The cells that rules want, by rule, with the source of each.
type Claims = BTreeMap<Key, BTreeMap<Key, Key>>;

#[derive(Clone, Debug, Default)]
pub struct Model {
    pub namespaces: BTreeMap<String, Namespace>,
    pub objects: BTreeMap<Key, Object>,
    pub rules: BTreeMap<Key, Rule>,
    grants: BTreeMap<Key, GrantSpec>,
    /// The sources that rules copy.
    chosen: BTreeMap<Key, Chosen>,
    /// The last specs of deleted rules.
    last: BTreeMap<Key, RuleSpec>,
    /// The copies that were created once: namespace, rule, copy.
    seeded: BTreeSet<(usize, Key, Key)>,
    clock: usize,
    steps: usize,
    /// True if no process watched at some time of this step.
    restarted: bool,
    /// Rules that were created or changed in this step.
    changed: BTreeSet<Key>,
    /// Objects that other clients wrote in this step, so that their metadata shows it.
    touched: BTreeSet<Key>,
    /// Objects that were deleted in this step.
    emptied: BTreeSet<Key>,
    /// Copies that were deleted in this step because no rule wants them.
    ended: BTreeSet<Key>,
    /// The number of copies that each rule has lost so far.
    lost: BTreeMap<Key, usize>,
    /// The sources of copies with `strategy: CreateOnce` that were created in this step.
    sown: BTreeSet<Key>,
    /// Objects that existed in this step and were overwritten.
    rewritten: BTreeSet<Key>,
    /// Places where an object without Mimeo's label appeared, disappeared or changed since the
    /// running program began. No watch shows that.
    unnoticed: BTreeSet<Key>,
    /// Objects that a rule got in this step, and the wishes of the rules when the step began.
    taken: BTreeSet<Key>,
    wanted_first: BTreeSet<(Key, Key)>,
}

impl Rule {
    /// True if Mimeo writes and deletes nothing for the rule.
    fn rests(&self) -> bool {
        self.spec.suspend
    }
}

impl Model {
    /// The rules that are suspended.
    pub fn suspended(&self) -> BTreeMap<Key, RuleSpec> {
        let rules = self.rules.iter().filter(|(_, rule)| rule.spec.suspend);
        rules
            .map(|(name, rule)| (name.clone(), rule.spec.clone()))
            .collect()
    }

    fn open(&self, namespace: &str) -> bool {
        self.namespaces
            .get(namespace)
            .is_some_and(|namespace| !namespace.ending)
    }

    /// Deletes the object, or only marks it as being deleted if a finalizer holds it.
    fn remove(&mut self, key: &Key) {
        let Some(object) = self.objects.get_mut(key) else {
            return;
        };
        object.deleting = true;
        if !object.held() {
            self.objects.remove(key);
        }
    }

    /// Returns the copy of this source here. `None`: there is no source.
    fn copy(
        &self,
        rule: &Key,
        source: &Key,
        key: &Key,
        coverage: &mut Coverage,
    ) -> Result<Option<Content>, Withheld> {
        let spec = &self.rules[rule].spec;
        let Some(content) = self.content(spec, source) else {
            return Ok(None);
        };
        let place = Place {
            source,
            namespace: &key.namespace,
            labels: &self.namespaces[&key.namespace].labels,
        };
        if spec.inline.contains_key(source) {
            coverage.other("what stands in the rule");
        }
        render::copy(
            rule,
            spec,
            &content,
            &place,
            super::process::CLUSTER,
            coverage,
        )
        .map(Some)
    }

    /// Returns the content of a rule's source, if it exists. The variables of an inline source are
    /// not filled in.
    fn content(&self, spec: &RuleSpec, source: &Key) -> Option<Content> {
        match spec.inline.get(source) {
            Some(fields) => Some(
                fields
                    .iter()
                    .map(|(path, text)| (path.clone(), text.text()))
                    .collect(),
            ),
            None => self.objects.get(source).map(Object::values),
        }
    }

    /// Returns the rules that name the object as their source, or whose selectors find it.
    fn readers(&self, key: &Key) -> impl Iterator<Item = (&Key, &RuleSpec)> {
        let reads = |name: &Key| {
            self.chosen
                .get(name)
                .is_some_and(|chosen| chosen.sources.contains(key))
        };
        self.rules
            .iter()
            .filter(move |(name, _)| reads(name))
            .map(|(name, rule)| (name, &rule.spec))
    }

    /// True if the object is another rule's source, so that this rule leaves it alone.
    /// `ClusterReplication`s respect only each other's sources. No rule respects the source of a
    /// rule that may not read it.
    fn is_source(&self, key: &Key, rule: &Key, coverage: &mut Coverage) -> bool {
        let mut readers = self.readers(key).filter(|(name, spec)| counts(name, spec));
        readers.any(|(reader, spec)| {
            let counts =
                !spec.sources.contains(key) || self.may(reader, Access::Read, key, coverage);
            coverage.source(
                rule.res == Res::Replication,
                reader.res == Res::Replication,
                counts,
            )
        })
    }

    /// True if a rule of a higher rank names the object as its source. Then this rule doesn't write
    /// it.
    fn is_named_above(&self, key: &Key, rule: &Key) -> bool {
        let rank = |name: &Key| (name.res, self.rules[name].born, name.clone());
        self.readers(key).any(|(reader, spec)| {
            rank(reader) < rank(rule)
                && counts(reader, spec)
                && spec.sources.contains(key)
                && self.may(reader, Access::Read, key, &mut Coverage::default())
        })
    }

    /// True if another rule names the object as its source. Objects that a selector finds do not
    /// count, because they come and go.
    fn is_named(&self, key: &Key, rule: &Key, coverage: &mut Coverage) -> bool {
        let mut readers = self.readers(key).filter(|(name, spec)| counts(name, spec));
        readers.any(|(reader, spec)| {
            spec.sources.contains(key)
                && coverage.source(
                    rule.res == Res::Replication,
                    reader.res == Res::Replication,
                    self.may(reader, Access::Read, key, &mut Coverage::default()),
                )
        })
    }

    /// True if a rule has the object as its source although that rule does not count, because it is
    /// refused.
    fn may_be_source(&self, key: &Key, rule: &Key, coverage: &mut Coverage) -> bool {
        !self.is_source(key, rule, coverage)
            && self.readers(key).any(|(name, spec)| !counts(name, spec))
    }

    /// Returns the sources that all rules copy at this moment.
    fn choose_all(&self, coverage: &mut Coverage) -> Result<BTreeMap<Key, Chosen>, Silence> {
        let chosen = |(name, rule): (&Key, &Rule)| {
            Ok((name.clone(), self.chosen(name, &rule.spec, coverage)?))
        };
        self.rules.iter().map(chosen).collect()
    }

    /// Carries out everything that follows from the actions. Returns the required status of each
    /// rule.
    pub fn settle(
        &mut self,
        coverage: &mut Coverage,
    ) -> Result<BTreeMap<Key, ReportedCopy>, Silence> {
        self.steps += 1;
        // Copies can be sources of other copies, so one round may lead to another.
        for _ in 0..12 {
            let before = self.objects.clone();
            let mut told = self.round(coverage)?;
            if self.objects == before {
                // The documents do not say which of the two came first.
                if !self.sown.is_disjoint(&self.rewritten) {
                    return Err("what is created once of what is being written over");
                }
                self.emptied.clear();
                self.ended.clear();
                self.sown.clear();
                self.rewritten.clear();
                self.taken.clear();
                self.wanted_first.clear();
                self.restarted = false;
                self.touched.clear();
                self.changed.clear();
                for object in self.objects.values_mut() {
                    object.known |= object.owned();
                    object.seen |= object.owned() && object.shown();
                }
                for (name, told) in told
                    .iter_mut()
                    .filter(|(_, told)| told.suspended && !told.refused)
                {
                    told.plan = self.plan(name, coverage);
                    coverage.other(if told.plan.is_some() {
                        "plan told"
                    } else {
                        "plan left open"
                    });
                }
                return Ok(told);
            }
        }
        Err("rules that feed each other")
    }

    fn round(&mut self, coverage: &mut Coverage) -> Result<BTreeMap<Key, ReportedCopy>, Silence> {
        let mut told: BTreeMap<Key, ReportedCopy> = BTreeMap::new();
        let mut claims = Claims::new();
        self.chosen = self.choose_all(coverage)?;
        for (name, rule) in &self.rules {
            let spec = &rule.spec;
            let of = told.entry(name.clone()).or_default();
            (of.refused, of.suspended) = (render::refused(name, spec), spec.suspend);
            let secrets = render::kinds(spec).any(|kind| kind == Res::Secret);
            for path in spec.transform.patch.iter().flat_map(Operation::paths) {
                coverage.patched(patch::part(path), secrets);
            }
            if of.refused {
                coverage.other("rule refused");
                continue;
            }
            let chosen = &self.chosen[name];
            if !self.claim(name, spec, chosen, &mut claims, of, coverage)? {
                return Err("two sources of a rule for one copy");
            }
            if chosen.nothing {
                coverage.other("a selector finds nothing");
            }
            let named = |source: &&Key| spec.sources.contains(source);
            let mut sources: Vec<&Key> = chosen.sources.iter().collect();
            sources
                .retain(|source| !named(source) || self.may(name, Access::Read, source, coverage));
            of.ungranted |= chosen.ungranted || sources.len() < chosen.sources.len();
            of.sourceless = chosen.nothing
                || sources
                    .iter()
                    .any(|source| self.content(spec, source).is_none());
            of.unread |= chosen.beyond;
            for (key, content) in sources
                .into_iter()
                .filter_map(|key| Some((key, self.content(spec, key)?)))
            {
                of.unread |= render::uncopied(spec, key, &content)? == Some(Withheld::Refused);
            }
        }
        let nameless: Vec<&(String, Res)> = told.values().flat_map(|told| &told.nameless).collect();
        if nameless
            .iter()
            .any(|place| nameless.iter().filter(|other| *other == place).count() > 1)
        {
            // The status may report a conflict between two rules whose copies would have the same
            // name, although neither copy has a name.
            return Err("two rules whose copies have no name");
        }
        let wanted = claims
            .iter()
            .flat_map(|(key, rules)| rules.keys().map(move |rule| (key.clone(), rule.clone())));
        if self.wanted_first.is_empty() {
            self.wanted_first = wanted.collect();
        }
        if self.circular(&claims) {
            return Err("rules that feed each other");
        }
        let mut states: BTreeMap<Key, (Key, State)> = BTreeMap::new();
        for (key, rules) in &claims {
            let winner = self.winner(key, rules, coverage)?;
            for loser in rules.keys().filter(|name| **name != winner) {
                count(
                    told.get_mut(loser).expect("every rule is told of"),
                    key,
                    State::Failed("RuleConflict"),
                );
            }
            let state = self.wanted(key, &winner, &rules[&winner], rules.len() > 1, coverage)?;
            count(told.get_mut(&winner).expect("as above"), key, state);
            let Rule { spec, born } = &self.rules[&winner];
            if state == State::Synced && spec.strategy != Strategy::CreateOnce {
                self.objects
                    .entry(key.clone())
                    .and_modify(|copy| copy.rules_birth = Some(*born));
            }
            states.insert(key.clone(), (winner, state));
        }
        let unwanted: Vec<Key> = self
            .objects
            .keys()
            .filter(|key| !claims.contains_key(key))
            .cloned()
            .collect();
        for key in unwanted {
            self.unwanted(&key, &states, &claims, coverage)?;
        }
        Ok(told)
    }
}

/// True if the rule counts, that is, if its spec is not refused.
fn counts(name: &Key, spec: &RuleSpec) -> bool {
    !render::refused(name, spec)
}

fn count(told: &mut ReportedCopy, key: &Key, state: State) {
    told.desired += 1;
    match state {
        State::Synced => told.synced += 1,
        State::Open => {}
        State::Failed(reason) => {
            told.failed += 1;
            if ["Conflict", "RuleConflict"].contains(&reason) {
                told.conflicts.insert(key.clone());
            }
            told.reasons
                .insert((key.namespace.clone(), key.name.clone(), reason));
        }
    }
}
