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

/// What the documents leave open: a story isn't followed past it.
pub type Silence = &'static str;

#[derive(Clone, Debug)]
pub struct Namespace {
    /// Tells it from others of its name.
    id: usize,
    pub labels: Labels,
    pub ending: bool,
}

#[derive(Clone, Debug)]
pub struct Rule {
    pub spec: RuleSpec,
    /// The step that it was created in.
    born: usize,
}

/// What came of one wanted cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Synced,
    Failed(&'static str),
    Open,
}

/// What the status of a rule has to say.
#[allow(clippy::struct_excessive_bools)] // Each on its own.
#[derive(Clone, Debug, Default)]
pub struct Told {
    pub refused: bool,
    pub suspended: bool,
    /// Whether a source is missing, or refused.
    pub sourceless: bool,
    pub unread: bool,
    /// Whether another namespace doesn't let it read or write something.
    pub ungranted: bool,
    /// Where copies have no name, and of which kind.
    nameless: BTreeSet<(String, Res)>,
    pub desired: usize,
    pub synced: usize,
    pub failed: usize,
    /// Why, by namespace and name where the name is known.
    pub reasons: BTreeSet<(String, String, &'static str)>,
    /// The cells that it can't have.
    conflicts: BTreeSet<Key>,
    /// What it would do if it weren't suspended, as far as the documents say.
    pub plan: Option<Plan>,
}

/// The cells that rules want: by whom, and copied from where.
type Claims = BTreeMap<Key, BTreeMap<Key, Key>>;

#[derive(Clone, Debug, Default)]
pub struct Model {
    pub namespaces: BTreeMap<String, Namespace>,
    pub objects: BTreeMap<Key, Object>,
    pub rules: BTreeMap<Key, Rule>,
    grants: BTreeMap<Key, GrantSpec>,
    /// What rules copy.
    chosen: BTreeMap<Key, Chosen>,
    /// Of deleted rules, as they were.
    last: BTreeMap<Key, RuleSpec>,
    /// What was created once: namespace, rule, copy.
    seeded: BTreeSet<(usize, Key, Key)>,
    clock: usize,
    steps: usize,
    /// Whether nobody watched at some time of this step.
    restarted: bool,
    /// Rules that became what they are in this step.
    changed: BTreeSet<Key>,
    /// What others wrote to in this step so that it shows.
    touched: BTreeSet<Key>,
    /// What was taken away in this step.
    emptied: BTreeSet<Key>,
    /// Copies that went in this step since nobody wants them.
    ended: BTreeSet<Key>,
    /// How many copies each rule lost so far.
    lost: BTreeMap<Key, usize>,
    /// What copies were created of in this step once and for all.
    sown: BTreeSet<Key>,
    /// What was there in this step and was written over.
    rewritten: BTreeSet<Key>,
    /// Where something without Mimeo's label came, went or changed since the program that runs
    /// began: no watch tells of it.
    unnoticed: BTreeSet<Key>,
    /// What became a rule's in this step, and which rules wanted what when it began.
    taken: BTreeSet<Key>,
    wanted_first: BTreeSet<(Key, Key)>,
}

impl Rule {
    /// Whether nothing is written or deleted for it.
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

    /// Deletes, or begins to where a finalizer holds it.
    fn remove(&mut self, key: &Key) {
        let Some(object) = self.objects.get_mut(key) else {
            return;
        };
        object.deleting = true;
        if !object.held() {
            self.objects.remove(key);
        }
    }

    /// The copy of this source here; none without a source.
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

    /// What a source of a rule's has in it, if it is there; of one that stands in the rule with its
    /// variables as they are.
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

    /// Rules that name it as their source, or whose selectors find it.
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

    /// Whether it is another rule's source, so that this one leaves it alone. The platform's rules
    /// know no sources but each other's, and nobody those that may not be read.
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

    /// Whether a rule of a higher rank names it as its source: then this one doesn't write it.
    fn is_named_above(&self, key: &Key, rule: &Key) -> bool {
        let rank = |name: &Key| (name.res, self.rules[name].born, name.clone());
        self.readers(key).any(|(reader, spec)| {
            rank(reader) < rank(rule)
                && counts(reader, spec)
                && spec.sources.contains(key)
                && self.may(reader, Access::Read, key, &mut Coverage::default())
        })
    }

    /// Whether another rule names it as its source. What a selector finds comes and goes.
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

    /// Whether only rules have it as their source that are refused, or that nobody answers for.
    fn may_be_source(&self, key: &Key, rule: &Key, coverage: &mut Coverage) -> bool {
        !self.is_source(key, rule, coverage)
            && self.readers(key).any(|(name, spec)| !counts(name, spec))
    }

    /// What all rules copy, as things are.
    fn choose_all(&self, coverage: &mut Coverage) -> Result<BTreeMap<Key, Chosen>, Silence> {
        let chosen = |(name, rule): (&Key, &Rule)| {
            Ok((name.clone(), self.chosen(name, &rule.spec, coverage)?))
        };
        self.rules.iter().map(chosen).collect()
    }

    /// Everything that follows has happened; and what each rule says of it.
    pub fn settle(&mut self, coverage: &mut Coverage) -> Result<BTreeMap<Key, Told>, Silence> {
        self.steps += 1;
        // Copies can be sources of other copies, so one round may lead to another.
        for _ in 0..12 {
            let before = self.objects.clone();
            let mut told = self.round(coverage)?;
            if self.objects == before {
                // Which of the two came first nobody says.
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

    fn round(&mut self, coverage: &mut Coverage) -> Result<BTreeMap<Key, Told>, Silence> {
        let mut told: BTreeMap<Key, Told> = BTreeMap::new();
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
            // Two rules with the same name for their copies may be said to be in conflict where
            // neither has a name.
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

/// Whether what the rule says is somebody's wish.
fn counts(name: &Key, spec: &RuleSpec) -> bool {
    !render::refused(name, spec)
}

fn count(told: &mut Told, key: &Key, state: State) {
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
