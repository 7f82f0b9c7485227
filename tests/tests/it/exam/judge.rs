//! The judge: compares the cluster after a round with the model, one place (namespace, kind and
//! name) at a time.
//!
//! A round passes through several states of the world. A result counts as certain only if every
//! state of the round leads to it. Two edits that race within a round leave a result open, and the
//! judge then accepts either one. [`Memory`] is the history that matters according to the
//! documents: the copies that existed, the objects that were created once, and other users'
//! additions to copies.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::memory::{CreatedCopy, Held, Memory};
use super::model::{
    Cell, Conflict, Content, Holder, Kind, Map, OPAQUE, Rule, RuleId, Strategy, Verdict, World,
};

/// An object as the cluster has it.
#[derive(Clone, Debug)]
pub struct Object {
    pub uid: String,
    pub version: String,
    /// True if the field manager `mimeo` has an entry.
    pub ours: bool,
    pub content: Content,
}

/// A namespace as the cluster has it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub uid: String,
    pub labels: Map,
    pub terminating: bool,
    /// The number of copies that the namespace records as created once.
    pub seeds: usize,
}

#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub objects: BTreeMap<Cell, Object>,
    pub namespaces: BTreeMap<String, Seen>,
}

/// The events of a round.
#[derive(Default)]
pub struct Round {
    /// The world at the start of the round, and after each edit.
    pub states: Vec<World>,
    /// Copies that users deleted.
    pub deleted: BTreeSet<Cell>,
    /// The API server's answer to the last edit of each copy, by the copy's uid.
    pub answered: BTreeMap<String, Content>,
    /// Uids of copies whose labels were removed or whose `managedFields` were cleared.
    pub tampered: BTreeSet<String>,
    pub killed_reconciler: bool,
    pub killed_webhook: bool,
}

/// The text that users write over a copy's data.
pub const EDITED: &str = "edited";
/// The value of the key that some rules leave out.
pub const ALWAYS: &str = "always";
/// Part of every key that users add.
pub const EXTRA: &str = "extra-";

impl Object {
    fn annotation(&self, key: &str) -> Option<&str> {
        self.content.annotations.get(key).map(String::as_str)
    }

    /// True if the object has the label that the watch of copies selects by.
    pub fn labelled(&self) -> bool {
        let label = "app.kubernetes.io/managed-by";
        self.content.labels.contains_key(label)
    }

    fn rule(&self) -> Option<RuleId> {
        let parts: Vec<&str> = self.annotation("mimeo.dev/rule")?.split('/').collect();
        match parts[..] {
            ["ClusterReplication", name] => Some(RuleId {
                home: None,
                name: name.to_owned(),
            }),
            ["Replication", home, name] => Some(RuleId {
                home: Some(home.to_owned()),
                name: name.to_owned(),
            }),
            _ => None,
        }
    }

    fn source(&self) -> Option<Cell> {
        let parts: Vec<&str> = self.annotation("mimeo.dev/source")?.split('/').collect();
        let ["v1", kind, namespace, name] = parts[..] else {
            return None;
        };
        let kind = if kind == "Secret" {
            Kind::Secret
        } else {
            Kind::ConfigMap
        };
        Some(Cell {
            namespace: namespace.to_owned(),
            kind,
            name: name.to_owned(),
        })
    }
}

impl Round {
    pub fn now(&self) -> &World {
        &self.states[self.states.len() - 1]
    }

    /// Returns the rule if its spec was the same during the whole round.
    fn steady_rule(&self, id: &RuleId) -> Option<&Rule> {
        let rule = self.now().rules.get(id)?;
        self.states
            .iter()
            .all(|state| state.rules.get(id) == Some(rule))
            .then_some(rule)
    }

    fn steady_namespace(&self, name: &str) -> bool {
        let uid = |state: &World| {
            state
                .namespaces
                .get(name)
                .map(|namespace| namespace.uid.clone())
        };
        self.states
            .iter()
            .all(|state| uid(state) == uid(self.now()))
    }

    /// True if the record of a copy that was created once stays. Mimeo removes the record once the
    /// rule keeps the copy up to date.
    pub fn lasts(&self, (_, rule, cell): &CreatedCopy) -> bool {
        let keeps = |state: &World| state.kept_by(rule, cell);
        !self.states.iter().any(keeps)
    }

    pub fn foreign_ever(&self, cell: &Cell) -> bool {
        self.states
            .iter()
            .any(|state| state.foreign.contains_key(cell))
    }
}

/// Judges one round.
pub struct Judge<'a> {
    pub memory: &'a Memory,
    pub round: &'a Round,
    pub observed: &'a Observed,
    /// The prefix of the exam's namespaces. System namespaces do not have it.
    pub tag: &'a str,
    /// The number of judged cells, by expectation.
    pub coverage: RefCell<BTreeMap<&'static str, usize>>,
}

impl<'a> Judge<'a> {
    pub fn new(memory: &'a Memory, round: &'a Round, observed: &'a Observed, tag: &'a str) -> Self {
        Self {
            memory,
            round,
            observed,
            tag,
            coverage: RefCell::default(),
        }
    }

    fn count(&self, what: &'static str) {
        *self.coverage.borrow_mut().entry(what).or_default() += 1;
    }

    pub fn differences(&self) -> Vec<String> {
        let now = self.round.now();
        let mut cells = now.claimed();
        let here =
            |cell: &&Cell| cell.namespace.starts_with(self.tag) && !now.sources.contains_key(*cell);
        cells.extend(self.observed.objects.keys().filter(here).cloned());
        cells.extend(self.memory.copies.keys().cloned());
        cells.extend(now.foreign.keys().cloned());
        let told = cells.iter().filter_map(|cell| {
            let what = self.judge(cell)?;
            Some(format!(
                "{} {}/{}: {what}",
                cell.kind.name(),
                cell.namespace,
                cell.name
            ))
        });
        told.chain(self.sources())
            .chain(self.namespaces())
            .collect()
    }

    /// Returns the sources that were changed. Mimeo never writes a source.
    fn sources(&self) -> impl Iterator<Item = String> {
        self.round
            .now()
            .sources
            .iter()
            .filter_map(|(cell, content)| match self.observed.objects.get(cell) {
                Some(object) if object.content == *content => None,
                _ => Some(format!("source {}: it was written or deleted", cell.name)),
            })
    }

    fn namespaces(&self) -> Vec<String> {
        let now = self.round.now();
        let mut told = Vec::new();
        for (name, seen) in self
            .observed
            .namespaces
            .iter()
            .filter(|(name, _)| name.starts_with(self.tag))
        {
            // The deletion of a namespace takes seconds. No round waits for it.
            if !now.namespaces.contains_key(name) && !seen.terminating {
                told.push(format!("namespace {name}: no user created it"));
            }
        }
        for (name, namespace) in &now.namespaces {
            let Some(seen) = self.observed.namespaces.get(name) else {
                told.push(format!("namespace {name}: it is gone"));
                continue;
            };
            let mut labels = seen.labels.clone();
            labels.remove("kubernetes.io/metadata.name");
            let pending = labels.remove("mimeo.dev/copies").is_some();
            if labels != namespace.labels {
                told.push(format!(
                    "namespace {name}: labels {labels:?}, expected {:?}",
                    namespace.labels
                ));
            }
            // While a copy cannot be written, its namespace may keep the pending label.
            let written = |cell: &Cell| {
                let ours = self
                    .observed
                    .objects
                    .get(cell)
                    .is_some_and(|object| object.ours);
                ours && now
                    .claims(cell)
                    .values()
                    .all(|source| now.sources.contains_key(source))
            };
            let mut claims = now
                .claimed()
                .into_iter()
                .filter(|cell| cell.namespace == *name);
            let hindered = claims.any(|cell| !written(&cell));
            if pending && !hindered {
                told.push(format!("namespace {name}: it still has the pending label"));
            }
            let former = self
                .memory
                .seeded
                .iter()
                .filter(|seed| seed.0 == seen.uid && self.round.lasts(seed))
                .cloned();
            let seeds = former
                .chain(self.sown(name))
                .collect::<BTreeSet<CreatedCopy>>()
                .len();
            if seen.seeds < seeds {
                told.push(format!(
                    "namespace {name}: it remembers {} seeds, expected {seeds}",
                    seen.seeds
                ));
            }
        }
        told
    }

    /// Returns the copies in a namespace that count as created once, because the copy exists.
    fn sown(&self, namespace: &str) -> impl Iterator<Item = CreatedCopy> {
        let copies = self
            .observed
            .objects
            .iter()
            .filter(move |(cell, object)| cell.namespace == namespace && object.ours);
        copies.filter_map(|(cell, _)| {
            match self.round.now().verdict(cell, self.holder(cell).as_ref()) {
                Verdict::CreatedCopy(rule, _) => Some(self.seed(&rule, cell)),
                _ => None,
            }
        })
    }

    /// Returns the copy that was in the cell at the start of the round.
    pub fn held(&self, cell: &Cell) -> Option<&Held> {
        self.memory
            .copies
            .get(cell)
            .filter(|_| self.round.steady_namespace(&cell.namespace))
    }

    /// Returns the former holder, with the retention up to this state.
    pub fn former(&self, cell: &Cell, state: usize) -> Option<Holder> {
        let mut holder = self.held(cell)?.holder.clone();
        let states = &self.round.states[..=state];
        holder.kept.extend(
            states
                .iter()
                .filter_map(|state| state.kept(&holder.rule, cell)),
        );
        holder.orphan |= states
            .iter()
            .any(|state| !state.rules.contains_key(&holder.rule));
        holder.once = self.once(&holder.rule, cell);
        Some(holder)
    }

    /// Returns the holder of the cell's copy now.
    pub fn holder(&self, cell: &Cell) -> Option<Holder> {
        let former = self.former(cell, self.round.states.len() - 1);
        let Some(seen) = self.observed.objects.get(cell).filter(|object| object.ours) else {
            return former;
        };
        let (Some(rule), Some(source)) = (seen.rule(), seen.source()) else {
            return former;
        };
        let mut kept: BTreeSet<bool> = self
            .round
            .states
            .iter()
            .filter_map(|state| state.kept(&rule, cell))
            .collect();
        let mut orphan = self
            .round
            .states
            .iter()
            .any(|state| !state.rules.contains_key(&rule));
        if let Some(former) = former.filter(|former| former.rule == rule) {
            kept.extend(former.kept);
            orphan |= former.orphan;
        }
        let once = self.once(&rule, cell);
        Some(Holder {
            rule,
            source,
            kept,
            orphan,
            once,
        })
    }

    /// True if a rule retained the copy when it was deleted, exists again now, and no rule has
    /// wanted the cell during the round.
    fn is_retained(&self, cell: &Cell) -> bool {
        let kept = |holder: &Holder| holder.orphan && holder.kept == [true].into();
        let unwanted = |state: &World| state.claims(cell).is_empty();
        let back = |held: &Held| self.round.now().rules.contains_key(&held.holder.rule);
        self.held(cell)
            .is_some_and(|held| kept(&held.holder) && back(held))
            && self.round.states.iter().all(unwanted)
    }

    /// True if the namespace may record that the rule created this copy once.
    fn once(&self, rule: &RuleId, cell: &Cell) -> bool {
        let seed = self.seed(rule, cell);
        let noted = self.memory.seeded.contains(&seed) || self.memory.maybe_seeded.contains(&seed);
        noted
            || self
                .round
                .states
                .iter()
                .any(|state| state.once_by(rule, cell))
    }

    /// True if the owner of the copy can no longer be known.
    fn clouded(&self, cell: &Cell) -> bool {
        let uids = [
            self.observed.objects.get(cell).map(|object| &object.uid),
            self.held(cell).map(|held| &held.object.uid),
        ];
        uids.into_iter().flatten().any(|uid| {
            if self.memory.tainted.contains(uid) {
                return true;
            }
            if !self.round.tampered.contains(uid) && !self.memory.tampered.contains(uid) {
                return false;
            }
            self.round.killed_reconciler || self.round.now().claims(cell).len() > 1
        })
    }

    /// True if another copy that the same rule wants in the namespace is clouded. It may be in
    /// conflict, and then the rule's former copy stays.
    fn waits_for_clouded(&self, cell: &Cell) -> bool {
        let Some(holder) = self.holder(cell) else {
            return false;
        };
        let claims = self.round.now().claims_in(&holder.rule, &cell.namespace);
        claims.iter().any(|(other, _)| self.clouded(other))
    }

    fn judge(&self, cell: &Cell) -> Option<String> {
        let now = self.round.now();
        if !now.namespaces.contains_key(&cell.namespace) {
            return None;
        }
        let seen = self.observed.objects.get(cell);
        if now.foreign.contains_key(cell) {
            return self.judge_foreign(cell, seen);
        }
        let mut verdict = now.verdict(cell, self.holder(cell).as_ref());
        let retained = self.is_retained(cell);
        if retained {
            self.count("a copy that a former rule of its rule's name retained");
            verdict = Verdict::Stays;
        }
        if verdict == Verdict::Open {
            self.count("left open by the documents");
            return None;
        }
        if self.clouded(cell) || verdict == Verdict::Goes && self.waits_for_clouded(cell) {
            self.count("tampered with, without a proof that it is Mimeo's");
            return None;
        }
        if let Some(seen) = seen.filter(|seen| !seen.ours && !self.knows(&seen.uid)) {
            return Some(format!("made by no user and no rule (uid {})", seen.uid));
        }
        let states = self.round.states.iter().enumerate();
        let by_states =
            states.map(|(index, state)| state.verdict(cell, self.former(cell, index).as_ref()));
        let history: Vec<Verdict> = if retained {
            vec![Verdict::Stays]
        } else {
            by_states.collect()
        };
        let rough = self.round.foreign_ever(cell) || self.memory.lagging.contains(cell);
        let quiet = !rough && !self.round.deleted.contains(cell);
        let lasts = |verdict: &Verdict| {
            matches!(
                verdict,
                Verdict::Wanted(..) | Verdict::CreatedCopy(..) | Verdict::Stays
            )
        };
        let lasting = self
            .held(cell)
            .filter(|_| quiet && history.iter().all(lasts));
        if let (Some(held), Some(seen)) = (lasting, seen)
            && held.object.uid != seen.uid
        {
            return Some("it was deleted and created again without a cause".to_owned());
        }
        let rest = |verdict: &Verdict| matches!(verdict, Verdict::CreatedCopy(..) | Verdict::Stays);
        let resting = history.iter().all(rest);
        self.count(match &verdict {
            Verdict::Wanted(..) if rough => "a copy with an obstacle before",
            Verdict::Wanted(..) if lasting.is_some() => "the copy as before, with its content",
            Verdict::Wanted(..) => "a new copy, with its content",
            Verdict::CreatedCopy(rule, _)
                if self.memory.seeded.contains(&self.seed(rule, cell))
                    && self.held(cell).is_some() =>
            {
                "a copy that was created once, as its owner left it"
            }
            Verdict::CreatedCopy(rule, _)
                if self.memory.seeded.contains(&self.seed(rule, cell)) =>
            {
                "no copy where it was created once and deleted"
            }
            Verdict::CreatedCopy(..) => "a copy that is created once",
            Verdict::Stays if lasting.is_some() && resting => "a retained copy, unchanged",
            Verdict::Stays if lasting.is_some() => "a copy that comes to be retained",
            Verdict::Stays => "a copy that may be retained",
            Verdict::Goes if self.held(cell).is_some() => "a former copy, gone",
            _ => "no copy",
        });
        match (verdict, seen) {
            (Verdict::Open, _) | (Verdict::Goes, None) => None,
            (Verdict::Goes, Some(seen)) => Some(format!("it must not exist: {}", tell(seen))),
            (Verdict::Wanted(..), None) if rough => None,
            (Verdict::Wanted(rules, _), None) => {
                Some(format!("missing; wanted by {}", names(&rules)))
            }
            (Verdict::Wanted(rules, source), Some(seen)) => {
                self.judge_copy(cell, seen, &rules, &source, &history)
            }
            (Verdict::CreatedCopy(rule, _), seen) => {
                let seed = self.seed(&rule, cell);
                let all = history
                    .iter()
                    .all(|one| matches!(one, Verdict::CreatedCopy(of, _) if *of == rule));
                if self.memory.maybe_seeded.contains(&seed) {
                    return None;
                }
                match (self.memory.seeded.contains(&seed), lasting, seen) {
                    (false, _, None) if quiet => {
                        Some(format!("missing; {} creates it once", rule.name))
                    }
                    (true, Some(_), None) => {
                        Some("missing; it was created once and no user deleted it".to_owned())
                    }
                    (true, Some(held), Some(seen)) if resting => self.frozen(held, seen),
                    (true, None, Some(_)) if all => {
                        Some("it was created once before and came back".to_owned())
                    }
                    _ => None,
                }
            }
            (Verdict::Stays, None) => lasting.map(|_| "missing; it must stay".to_owned()),
            (Verdict::Stays, Some(seen)) => match lasting {
                Some(held) if resting => self.frozen(held, seen),
                None if resting && quiet && self.held(cell).is_none() => {
                    Some(format!("its rule writes nothing now: {}", tell(seen)))
                }
                _ => None,
            },
        }
    }

    /// True if it was a copy at the start of the round, or when a user tampered with it in the
    /// round. The latter is the only trace of a copy that was written in the round, retained by its
    /// deleted rule, and then robbed of its entry.
    pub fn knows(&self, uid: &str) -> bool {
        let mut held = self.memory.copies.values();
        held.any(|held| held.object.uid == uid) || self.round.tampered.contains(uid)
    }

    pub fn seed(&self, rule: &RuleId, cell: &Cell) -> CreatedCopy {
        let uid = self
            .round
            .now()
            .namespaces
            .get(&cell.namespace)
            .map(|namespace| namespace.uid.clone());
        (uid.unwrap_or_default(), rule.clone(), cell.clone())
    }

    /// Compares a copy that no rule writes with its former content and the edits of users. Returns
    /// the difference.
    fn frozen(&self, held: &Held, seen: &Object) -> Option<String> {
        let want = self
            .round
            .answered
            .get(&seen.uid)
            .unwrap_or(&held.object.content);
        let differs = *want != seen.content;
        differs.then(|| {
            format!(
                "it was changed though nothing writes it: {}",
                compare(&seen.content, want, |_, _| true)
            )
        })
    }

    fn judge_copy(
        &self,
        cell: &Cell,
        seen: &Object,
        rules: &BTreeSet<RuleId>,
        source: &Cell,
        history: &[Verdict],
    ) -> Option<String> {
        let now = self.round.now();
        let mut rules = rules.clone();
        // The winner is certain in two cases: nothing changed, or only the namespace is new.
        let claims = now.claims(cell);
        let steady = claims.keys().all(|id| self.round.steady_rule(id).is_some());
        let new = !self.round.states[0]
            .namespaces
            .contains_key(&cell.namespace);
        let untouched = !self.round.deleted.contains(cell) && !self.round.foreign_ever(cell);
        let labelled = |state: &World| {
            state
                .namespaces
                .get(&cell.namespace)
                .map(|namespace| namespace.labels.clone())
        };
        let mut labels: Vec<_> = self.round.states.iter().filter_map(labelled).collect();
        labels.dedup();
        if steady
            && untouched
            && new
            && labels.len() == 1
            && claims.keys().all(|id| id.home.is_none())
        {
            let eldest = claims.keys().min_by_key(|id| now.rules[*id].born);
            rules = eldest.into_iter().cloned().collect();
        } else if let Some(Verdict::Wanted(first, _)) = history.first()
            && untouched
            && self.held(cell).is_some()
            && history
                .iter()
                .all(|one| matches!(one, Verdict::Wanted(of, _) if of == first))
        {
            rules.clone_from(first);
        }
        let Some(rule) = seen.rule().filter(|rule| rules.contains(rule)) else {
            return Some(format!(
                "it is {}, expected the copy of {}",
                tell(seen),
                names(&rules)
            ));
        };
        if !seen.ours {
            return Some("it has no entry of manager mimeo".to_owned());
        }
        let spec = &now.rules[&rule].spec;
        let want = spec.render(&rule, source, &now.sources[source], &cell.namespace);
        let added =
            |key: &str| key.contains(EXTRA) && self.memory.extras.get(key) == Some(&seen.uid);
        let edited = |value: &str| {
            [EDITED, ALWAYS].contains(&value) && self.memory.edited.contains(&seen.uid)
        };
        let may_add = |key: &str, value: &str| {
            spec.strategy != Strategy::Replace && (added(key) || edited(value))
        };
        let differs = compare(&seen.content, &want, may_add);
        if !differs.is_empty() {
            return Some(format!("{} of {}: {differs}", rule.name, source.name));
        }
        let applied = |state: &World| {
            state
                .rules
                .get(&rule)
                .is_some_and(|rule| rule.spec.strategy == Strategy::Apply)
        };
        let owned = history
            .iter()
            .all(|one| matches!(one, Verdict::Wanted(of, _) if of.contains(&rule)));
        let cleared =
            self.round.tampered.contains(&seen.uid) || self.memory.tampered.contains(&seen.uid);
        if cleared || !owned || !self.round.states.iter().all(applied) {
            return None;
        }
        let mut mine = self
            .memory
            .extras
            .iter()
            .filter(|(_, uid)| **uid == seen.uid)
            .map(|(key, _)| key);
        let lost = mine.find(|key| {
            !seen.content.labels.contains_key(*key) && !seen.content.data.contains_key(*key)
        });
        lost.map(|key| format!("a user's addition is gone: {key}"))
    }

    fn judge_foreign(&self, cell: &Cell, seen: Option<&Object>) -> Option<String> {
        let now = self.round.now();
        let foreign = &now.foreign[cell];
        let claims = self
            .round
            .states
            .iter()
            .flat_map(|state| state.claims(cell).into_keys().map(move |id| (state, id)));
        let given = claims
            .into_iter()
            .any(|(state, id)| state.rules[&id].spec.conflict != Conflict::Report);
        let untouched = |seen: &&Object| {
            !seen.ours && seen.uid == foreign.uid && seen.version == foreign.version
        };
        if given || self.memory.lagging.contains(cell) {
            // A rule may take this foreign object over. It is open when the object becomes the
            // copy, and whether Mimeo recreates it. The content of the copy is judged from the next
            // round on.
            if self.must_be_taken(cell) && !self.memory.lagging.contains(cell) {
                self.count("another's object that has become the copy");
                return seen
                    .is_none_or(|seen| !seen.ours)
                    .then(|| "it is to be overwritten".to_owned());
            }
            self.count("another's object that may become the copy");
            return None;
        }
        self.count("another's object, untouched");
        match seen.filter(untouched) {
            Some(_) => None,
            None => Some(format!(
                "another's object was touched: {}",
                seen.map_or("gone".to_owned(), tell)
            )),
        }
    }
}

impl Judge<'_> {
    /// True if the rules permitted Mimeo to take over the foreign object during the whole round,
    /// with any content.
    fn must_be_taken(&self, cell: &Cell) -> bool {
        let overwrites = |state: &World| {
            let claims = state.claims(cell);
            let Some((id, source)) = claims.first_key_value().filter(|_| claims.len() == 1) else {
                return false;
            };
            let spec = &state.rules[id].spec;
            let acts = !spec.suspend
                && spec.strategy != Strategy::CreateOnce
                && state.sources.contains_key(source);
            acts && spec.conflict == Conflict::Overwrite && state.foreign.contains_key(cell)
        };
        self.round.states.iter().all(overwrites)
    }
}

fn names(rules: &BTreeSet<RuleId>) -> String {
    rules
        .iter()
        .map(|rule| rule.name.as_str())
        .collect::<Vec<_>>()
        .join(" or ")
}

fn tell(object: &Object) -> String {
    let rule = object.annotation("mimeo.dev/rule").unwrap_or("no rule");
    format!(
        "of {rule}, ours {}, label {}, uid {}, version {}",
        object.ours,
        object.labelled(),
        object.uid,
        object.version
    )
}

/// Returns the differences, key by key. Keys that users added are left out if `may_add` permits
/// them. The exam made all values. Only Mimeo's own annotations are not, and their values are not
/// shown.
fn compare(seen: &Content, want: &Content, may_add: impl Fn(&str, &str) -> bool) -> String {
    let mut told = Vec::new();
    for (part, seen, want) in [
        ("data", &seen.data, &want.data),
        ("label", &seen.labels, &want.labels),
        ("annotation", &seen.annotations, &want.annotations),
    ] {
        let keys: BTreeSet<&String> = seen.keys().chain(want.keys()).collect();
        for key in keys {
            let show = |value: Option<&String>| match value {
                Some(value) if key.starts_with("mimeo.dev/") => format!("({} bytes)", value.len()),
                Some(value) => value.clone(),
                None => "nothing".to_owned(),
            };
            match (seen.get(key), want.get(key)) {
                (Some(_), Some(want)) if want == OPAQUE => {}
                (seen, want) if seen == want => {}
                (Some(value), None) if may_add(key, value) => {}
                (seen, want) => told.push(format!(
                    "{part} {key} is {}, expected {}",
                    show(seen),
                    show(want)
                )),
            }
        }
    }
    told.join(", ")
}
