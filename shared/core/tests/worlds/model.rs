//! The cluster as it must be, computed from what people did and from [`super::tables`], with nothing of the engine's.

mod cell;
mod claims;
mod deeds;
mod deletion;
mod object;

use std::collections::{BTreeMap, BTreeSet};

use self::object::is_content;
pub use self::{
    deeds::Deed,
    object::{Object, Owned, agrees},
};
use super::{
    render::{self, Content, Place, Withheld},
    select::Labels,
    server::{Key, Res},
    spec::RuleSpec,
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
    /// Where copies have no name, and of which kind.
    nameless: BTreeSet<(String, Res)>,
    pub desired: usize,
    pub synced: usize,
    pub failed: usize,
    /// Why, by namespace and name where the name is known.
    pub reasons: BTreeSet<(String, String, &'static str)>,
}

type Claims = BTreeMap<Key, BTreeMap<String, Key>>;

#[derive(Clone, Debug, Default)]
pub struct Model {
    pub namespaces: BTreeMap<String, Namespace>,
    pub objects: BTreeMap<Key, Object>,
    pub rules: BTreeMap<String, Rule>,
    /// Of deleted rules, as they were.
    last: BTreeMap<String, RuleSpec>,
    /// What was created once: namespace, rule, copy.
    seeded: BTreeSet<(usize, String, Key)>,
    clock: usize,
    steps: usize,
    /// What was taken away in this step.
    emptied: BTreeSet<Key>,
}

impl Model {
    fn open(&self, namespace: &str) -> bool {
        self.namespaces.get(namespace).is_some_and(|namespace| !namespace.ending)
    }

    /// Deletes, or begins to where a finalizer holds it.
    fn remove(&mut self, key: &Key) {
        let Some(object) = self.objects.get_mut(key) else { return };
        object.deleting = true;
        if !object.held() {
            self.objects.remove(key);
        }
    }

    /// The copy of this source here; none without a source.
    fn copy(&self, rule: &str, source: &Key, key: &Key, coverage: &mut Coverage) -> Result<Option<Content>, Withheld> {
        let Some(object) = self.objects.get(source) else { return Ok(None) };
        let place = Place { source, namespace: &key.namespace, labels: &self.namespaces[&key.namespace].labels };
        let spec = &self.rules[rule].spec;
        render::copy(rule, spec, &object.values(), &place, super::process::CLUSTER, coverage).map(Some)
    }

    fn is_source(&self, key: &Key) -> bool {
        self.rules.values().any(|rule| !render::refused(&rule.spec) && rule.spec.sources.contains(key))
    }

    /// Whether only rules name it as their source that are refused.
    fn may_be_source(&self, key: &Key) -> bool {
        !self.is_source(key) && self.rules.values().any(|rule| rule.spec.sources.contains(key))
    }

    /// Everything that follows has happened; and what each rule says of it.
    pub fn settle(&mut self, coverage: &mut Coverage) -> Result<BTreeMap<String, Told>, Silence> {
        self.steps += 1;
        // Copies can be sources of other copies, so one round may lead to another.
        for _ in 0..8 {
            let before = self.objects.clone();
            let told = self.round(coverage)?;
            if self.objects == before {
                self.emptied.clear();
                self.objects.values_mut().for_each(|object| object.known |= object.owned());
                return Ok(told);
            }
        }
        Err("rules that feed each other")
    }

    fn round(&mut self, coverage: &mut Coverage) -> Result<BTreeMap<String, Told>, Silence> {
        let mut told: BTreeMap<String, Told> = BTreeMap::new();
        let mut claims = Claims::new();
        for (name, rule) in &self.rules {
            let of = told.entry(name.clone()).or_default();
            (of.refused, of.suspended) = (render::refused(&rule.spec), rule.spec.suspend);
            if of.refused {
                coverage.other("rule refused");
            } else {
                self.claim(name, &rule.spec, &mut claims, of, coverage);
                of.sourceless = rule.spec.sources.iter().any(|source| !self.objects.contains_key(source));
                let mut there = rule.spec.sources.iter().filter_map(|key| Some((key, self.objects.get(key)?)));
                of.unread = there.any(|(key, source)| render::uncopied(&rule.spec, key.res, &source.values()));
            }
        }
        let nameless: Vec<&(String, Res)> = told.values().flat_map(|told| &told.nameless).collect();
        if nameless.iter().any(|place| nameless.iter().filter(|other| *other == place).count() > 1) {
            // Two rules with the same name for their copies may be said to be in conflict where neither has a name.
            return Err("two rules whose copies have no name");
        }
        if self.circular(&claims) {
            return Err("rules that feed each other");
        }
        let mut states: BTreeMap<Key, (String, State)> = BTreeMap::new();
        for (key, rules) in &claims {
            let winner = self.winner(key, rules, coverage)?;
            for loser in rules.keys().filter(|name| **name != winner) {
                count(told.get_mut(loser).expect("every rule is told of"), key, State::Failed("RuleConflict"));
            }
            let state = self.wanted(key, &winner, &rules[&winner], rules.len() > 1, coverage)?;
            count(told.get_mut(&winner).expect("as above"), key, state);
            states.insert(key.clone(), (winner, state));
        }
        let unwanted: Vec<Key> = self.objects.keys().filter(|key| !claims.contains_key(key)).cloned().collect();
        for key in unwanted {
            self.unwanted(&key, &states, &claims, coverage)?;
        }
        Ok(told)
    }
}

fn count(told: &mut Told, key: &Key, state: State) {
    told.desired += 1;
    match state {
        State::Synced => told.synced += 1,
        State::Open => {}
        State::Failed(reason) => {
            told.failed += 1;
            told.reasons.insert((key.namespace.clone(), key.name.clone(), reason));
        }
    }
}
