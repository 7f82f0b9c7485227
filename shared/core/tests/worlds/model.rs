//! The cluster as it must be, computed from what people did and from [`super::tables`], with nothing of the engine's.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    render::{self, Content, OPAQUE, Place, Withheld},
    select::{Labels, selects},
    server::{Key, Res},
    spec::{Event, Fields, KINDS, Keep, Policy, RuleSpec, Strategy, Text},
    tables::{Coverage, End, Found, Has, Held, Rest, Then, Why},
};

/// What the documents leave open: a story isn't followed past it.
pub type Silence = &'static str;

/// A field, and who owns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    pub value: String,
    pub mine: bool,
    pub theirs: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Object {
    pub fields: BTreeMap<String, Owned>,
    pub deleting: bool,
    /// Whether the program that runs has seen it with a field of Mimeo's.
    known: bool,
}

fn is_content(path: &str) -> bool {
    path == "type" || ["data/", "binaryData/", "spec/"].iter().any(|part| path.starts_with(part))
}

impl Object {
    fn theirs(fields: &[(String, String)]) -> Self {
        let owned = |value: &String| Owned { value: value.clone(), mine: false, theirs: true };
        let fields = fields.iter().map(|(path, value)| (path.clone(), owned(value))).collect();
        Self { fields, ..Self::default() }
    }

    /// Ours is what has a field that Mimeo owns, or had one when it was last seen.
    pub fn ours(&self) -> bool {
        self.known || self.owned()
    }

    fn owned(&self) -> bool {
        self.fields.values().any(|field| field.mine)
    }

    /// Whether nobody owns anything in it.
    fn ownerless(&self) -> bool {
        self.fields.values().all(|field| !field.mine && !field.theirs)
    }

    /// Whether all says that it is a copy, but that nobody owns anything in it.
    fn stripped(&self) -> bool {
        let marks = ["rule", "checksum", "cluster"];
        self.ownerless()
            && self.shown()
            && marks.iter().all(|mark| self.fields.contains_key(&format!("ann/mimeo.dev/{mark}")))
    }

    pub fn value(&self, path: &str) -> Option<&str> {
        self.fields.get(path).map(|field| field.value.as_str())
    }

    fn values(&self) -> Content {
        self.fields.iter().map(|(path, field)| (path.clone(), field.value.clone())).collect()
    }

    /// The rule whose mark it carries.
    fn rule(&self) -> Option<&str> {
        self.value("ann/mimeo.dev/rule")?.strip_prefix("ClusterReplication/")
    }

    fn shown(&self) -> bool {
        self.value("label/app.kubernetes.io/managed-by") == Some("mimeo")
    }

    fn held(&self) -> bool {
        self.fields.keys().any(|path| path.starts_with("fin/"))
    }

    /// What has an owner and what has none: of the latter nobody sees what becomes.
    fn blurred(&self) -> bool {
        let owner = |field: &&Owned| field.mine || field.theirs;
        !self.ownerless() && self.fields.values().filter(owner).count() < self.fields.len()
    }

    /// Becomes the copy.
    fn apply(&mut self, copy: &Content, strategy: Strategy, coverage: &mut Coverage) {
        // Where nobody owns anything, nobody can tell whose a field was.
        let goes = strategy == Strategy::Replace || self.ownerless();
        self.known = true;
        let paths: BTreeSet<String> = self.fields.keys().chain(copy.keys()).cloned().collect();
        for path in paths {
            let (was, wanted) = (self.fields.get(&path).cloned(), copy.get(&path));
            let has = match (&was, wanted) {
                (_, None) => Has::Unwanted,
                (None, Some(_)) => Has::Nothing,
                (Some(was), Some(wanted)) if was.value == *wanted => Has::Equal,
                (Some(_), Some(_)) => Has::Other,
            };
            let (mine, theirs) = was.as_ref().map_or((false, false), |was| (was.mine, was.theirs));
            // Finalizers are for those to remove who set them.
            let rest = if goes && !path.starts_with("fin/") { Rest::Goes } else { Rest::Stays };
            let held = coverage.field(has, mine, theirs, rest);
            let value = || wanted.cloned().expect("the copy has it");
            match held {
                Held::Mine => drop(self.fields.insert(path, Owned { value: value(), mine: true, theirs: false })),
                Held::Shared => drop(self.fields.insert(path, Owned { value: value(), mine: true, theirs: true })),
                Held::Theirs => drop(self.fields.get_mut(&path).map(|field| field.mine = false)),
                Held::Gone => drop(self.fields.remove(&path)),
            }
        }
    }
}

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

/// What is done to the cluster, with everything chosen.
#[derive(Clone, Debug)]
pub enum Deed {
    Namespace(String, Labels),
    EndNamespace(String),
    Reap(String),
    Create(Key, Fields),
    Change(Key, Vec<(String, Option<String>)>),
    Remove(Key),
    Release(Key),
    Disown(Key),
    Clear(Key),
    Share(Key),
    Rule(String, Box<RuleSpec>),
    DeleteRule(String),
    Restart,
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
    // ---- what people do ----

    /// The places that there are to choose from.
    fn places(&self) -> Vec<Key> {
        let mut claims = Claims::new();
        for (name, rule) in self.rules.iter().filter(|(_, rule)| !render::refused(&rule.spec)) {
            self.claim(name, &rule.spec, &mut claims, &mut Told::default(), &mut Coverage::default());
        }
        let all: BTreeSet<&Key> = self.objects.keys().chain(claims.keys()).collect();
        all.into_iter().cloned().collect()
    }

    fn open(&self, namespace: &str) -> bool {
        self.namespaces.get(namespace).is_some_and(|namespace| !namespace.ending)
    }

    /// What the event comes to here and now, if to anything.
    pub fn choose(&self, event: &Event) -> Option<Deed> {
        let place = |nth: &usize| {
            let places = self.places();
            (!places.is_empty()).then(|| places[nth % places.len()].clone())
        };
        let there = |nth: &usize| place(nth).filter(|key| self.objects.contains_key(key));
        let labels = |labels: &[(&str, &str)]| -> Labels {
            labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        match event {
            Event::Namespace(name, wanted) => {
                let ending = self.namespaces.get(*name).is_some_and(|namespace| namespace.ending);
                (!ending).then(|| Deed::Namespace((*name).to_owned(), labels(wanted)))
            }
            Event::EndNamespace(name) => self.open(name).then(|| Deed::EndNamespace((*name).to_owned())),
            Event::Reap(name) => {
                let ending = self.namespaces.get(*name).is_some_and(|namespace| namespace.ending);
                ending.then(|| Deed::Reap((*name).to_owned()))
            }
            Event::Source(key, fields) => match self.objects.get(key) {
                None => self.open(&key.namespace).then(|| Deed::Create(key.clone(), typed(key, fields.clone()))),
                Some(object) => {
                    let mut changes: BTreeMap<String, Option<String>> = BTreeMap::new();
                    if !object.ours() {
                        changes.extend(object.fields.keys().map(|path| (path.clone(), None)));
                    }
                    changes.extend(fields.iter().map(|(path, value)| (path.clone(), Some(value.clone()))));
                    // Nobody can change a Secret's type.
                    changes.remove("type");
                    Some(Deed::Change(key.clone(), changes.into_iter().collect()))
                }
            },
            Event::DeleteSource(key) => self.objects.contains_key(key).then(|| Deed::Remove(key.clone())),
            Event::Rule(name, spec) => Some(Deed::Rule((*name).to_owned(), spec.clone())),
            Event::DeleteRule(name) => self.rules.contains_key(*name).then(|| Deed::DeleteRule((*name).to_owned())),
            Event::Suspend(name) => {
                let spec = &self.rules.get(*name)?.spec;
                let spec = RuleSpec { suspend: !spec.suspend, ..spec.clone() };
                Some(Deed::Rule((*name).to_owned(), Box::new(spec)))
            }
            Event::Foreign(nth, content, more) => {
                let key = place(nth).filter(|key| !self.objects.contains_key(key) && self.open(&key.namespace))?;
                let mut fields = content.clone().unwrap_or_else(|| self.content_for(&key));
                fields.extend(more.iter().cloned());
                let fields = fields.into_iter().map(|(path, value)| (fitting(&key, &path), value)).collect();
                Some(Deed::Create(key.clone(), typed(&key, fields)))
            }
            Event::Edit(nth, path, value) => {
                let key = there(nth)?;
                let change = (fitting(&key, path), value.clone());
                Some(Deed::Change(key, vec![change]))
            }
            Event::Delete(nth) => there(nth).map(Deed::Remove),
            Event::Release(nth) => there(nth).map(Deed::Release),
            Event::Disown(nth) => there(nth).filter(|key| self.objects[key].owned()).map(Deed::Disown),
            Event::Clear(nth) => there(nth).filter(|key| self.objects[key].owned()).map(Deed::Clear),
            Event::Share(nth) => there(nth).map(Deed::Share),
            Event::Restart => Some(Deed::Restart),
        }
    }

    /// The content of the copy that a rule wants here.
    fn content_for(&self, key: &Key) -> Fields {
        let mut coverage = Coverage::default();
        let mut claims = Claims::new();
        for (name, rule) in self.rules.iter().filter(|(_, rule)| !render::refused(&rule.spec)) {
            self.claim(name, &rule.spec, &mut claims, &mut Told::default(), &mut coverage);
        }
        let Some((rule, source)) = claims.get(key).and_then(|claims| claims.first_key_value()) else {
            return Vec::new();
        };
        let copy = self.copy(rule, source, key, &mut coverage);
        let copy = copy.ok().flatten().unwrap_or_default();
        copy.into_iter().filter(|(path, _)| is_content(path)).collect()
    }

    pub fn act(&mut self, deed: &Deed, coverage: &mut Coverage) {
        self.clock += 1;
        match deed {
            Deed::Namespace(name, labels) => {
                let id = self.namespaces.get(name).map_or(self.clock, |namespace| namespace.id);
                let mut labels = labels.clone();
                labels.insert("kubernetes.io/metadata.name".to_owned(), name.clone());
                self.namespaces.insert(name.clone(), Namespace { id, labels, ending: false });
            }
            Deed::EndNamespace(name) => {
                self.namespaces.get_mut(name).expect("chosen because it is there").ending = true;
            }
            Deed::Reap(name) => {
                self.namespaces.remove(name);
                self.objects.retain(|key, _| key.namespace != *name);
            }
            Deed::Create(key, fields) => drop(self.objects.insert(key.clone(), Object::theirs(fields))),
            Deed::Change(key, changes) => {
                let object = self.objects.get_mut(key).expect("chosen because it is there");
                for (path, value) in changes {
                    match value {
                        Some(value) if object.value(path) == Some(value) => {}
                        Some(value) => drop(
                            object
                                .fields
                                .insert(path.clone(), Owned { value: value.clone(), mine: false, theirs: true }),
                        ),
                        None => drop(object.fields.remove(path)),
                    }
                }
                if object.deleting && !object.held() {
                    self.objects.remove(key);
                }
            }
            Deed::Remove(key) => {
                self.emptied.insert(key.clone());
                self.remove(key);
            }
            Deed::Release(key) => {
                self.emptied.insert(key.clone());
                let object = self.objects.get_mut(key).expect("chosen because it is there");
                object.fields.retain(|path, _| !path.starts_with("fin/"));
                if object.deleting {
                    self.objects.remove(key);
                }
            }
            Deed::Disown(key) => {
                let object = self.objects.get_mut(key).expect("chosen because it is there");
                object.fields.values_mut().for_each(|field| (field.mine, field.theirs) = (false, true));
            }
            Deed::Clear(key) => {
                let object = self.objects.get_mut(key).expect("chosen because it is there");
                object.fields.values_mut().for_each(|field| (field.mine, field.theirs) = (false, false));
            }
            Deed::Share(key) => {
                let object = self.objects.get_mut(key).expect("chosen because it is there");
                object.fields.values_mut().for_each(|field| field.theirs = true);
            }
            Deed::Rule(name, spec) => {
                let born = self.rules.get(name).map_or(self.steps, |rule| rule.born);
                self.rules.insert(name.clone(), Rule { spec: (**spec).clone(), born });
            }
            Deed::DeleteRule(name) => {
                let rule = self.rules.remove(name).expect("chosen because it is there");
                self.last.insert(name.clone(), rule.spec);
            }
            Deed::Restart => {
                coverage.other("restart");
                self.objects.values_mut().for_each(|object| object.known = false);
            }
        }
    }

    /// Deletes, or begins to where a finalizer holds it.
    fn remove(&mut self, key: &Key) {
        let Some(object) = self.objects.get_mut(key) else { return };
        object.deleting = true;
        if !object.held() {
            self.objects.remove(key);
        }
    }

    // ---- what follows ----

    /// The cells that a rule wants, each with its source.
    fn claim(&self, name: &str, spec: &RuleSpec, claims: &mut Claims, told: &mut Told, coverage: &mut Coverage) {
        for (namespace, Namespace { labels, ending, .. }) in &self.namespaces {
            if *ending {
                coverage.other("a terminating namespace");
                continue;
            }
            let mut unnamed: Vec<(&Key, &Text)> = Vec::new();
            for target in &spec.targets {
                if !selects(target, namespace, labels, coverage) {
                    continue;
                }
                for source in &spec.sources {
                    let place = Place { source, namespace, labels };
                    let copy =
                        target.name.as_ref().map_or_else(|| Ok(source.name.clone()), |text| render::fill(text, &place));
                    let Ok(copy) = copy else {
                        let which = (source, target.name.as_ref().expect("a source's own name has no variable"));
                        if unnamed.contains(&which) {
                            continue;
                        }
                        unnamed.push(which);
                        coverage.other("variable unset in name");
                        // A source that gives no copy comes first.
                        let object = self.objects.get(source).map(Object::values);
                        let gives = object.is_some_and(|object| !render::uncopied(spec, source.res, &object));
                        told.nameless.insert((namespace.clone(), source.res));
                        let state = if gives { State::Failed("VariableUnset") } else { State::Open };
                        count(told, &Key::new(source.res, namespace, ""), state);
                        continue;
                    };
                    let key = Key::new(source.res, namespace, &copy);
                    if spec.sources.contains(&key) {
                        coverage.other("a source's own cell");
                        continue;
                    }
                    claims.entry(key).or_default().entry(name.to_owned()).or_insert_with(|| source.clone());
                }
            }
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

    /// Whether something is, by way of its copies, a source of itself.
    fn circular(&self, claims: &Claims) -> bool {
        let mut feeds: Vec<(&Key, &Key)> = Vec::new();
        for (key, rules) in claims.iter().filter(|(key, _)| self.is_source(key)) {
            feeds.extend(rules.values().map(|source| (source, key)));
        }
        // What nothing feeds, feeds nothing in a circle.
        loop {
            let before = feeds.len();
            let fed: BTreeSet<&Key> = feeds.iter().map(|(_, key)| *key).collect();
            feeds.retain(|(source, _)| fed.contains(source));
            if feeds.len() == before {
                return before > 0;
            }
        }
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

    fn winner(&self, key: &Key, rules: &BTreeMap<String, Key>, coverage: &mut Coverage) -> Result<String, Silence> {
        let copy = self.objects.get(key).filter(|object| object.ours());
        if rules.len() > 1 && copy.is_some_and(|copy| !copy.shown()) {
            return Err("whose a copy is that no watch shows");
        }
        if rules.len() > 1
            && self.objects.get(key).is_some_and(|object| object.stripped() || object.ours() && !object.owned())
        {
            return Err("whose a copy is whose entry is gone");
        }
        let marked = copy.and_then(Object::rule).filter(|rule| rules.contains_key(*rule));
        let oldest = rules.keys().map(|name| self.rules[name].born).min().expect("no claim without a rule");
        let mut eldest = rules.keys().filter(|name| self.rules[*name].born == oldest);
        let first = eldest.next().expect("one is the oldest");
        if rules.len() > 1 {
            coverage.other(match marked {
                Some(_) => "won by mark",
                None if eldest.next().is_some() => "won by name",
                None => "won by age",
            });
        }
        Ok(marked.unwrap_or(first).to_owned())
    }

    fn found(&self, key: &Key, rule: &str, copy: &Content, coverage: &mut Coverage) -> Found {
        let Some(object) = self.objects.get(key) else { return Found::Nothing };
        let content = |fields: &Content| -> Content {
            fields.iter().filter(|(path, _)| is_content(path)).map(|(a, b)| (a.clone(), b.clone())).collect()
        };
        let keys = object.fields.keys().filter_map(|path| path.strip_prefix("ann/").or(path.strip_prefix("label/")));
        let marks = keys.filter(|key| coverage.marks(key)).count() > 0;
        match object {
            _ if object.deleting => Found::Deleting,
            _ if object.ours() && object.rule() == Some(rule) => Found::Own,
            _ if object.ours() => Found::Others,
            _ if self.is_source(key) => Found::Source,
            _ if content(&object.values()) == content(copy) => Found::Same,
            _ if marks => Found::Marked,
            _ => Found::Foreign,
        }
    }

    /// One cell that the rule has.
    fn wanted(
        &mut self,
        key: &Key,
        rule: &str,
        source: &Key,
        contested: bool,
        coverage: &mut Coverage,
    ) -> Result<State, Silence> {
        let spec = self.rules[rule].spec.clone();
        let seed = (self.namespaces[&key.namespace].id, rule.to_owned(), key.clone());
        let seeded = spec.strategy == Strategy::CreateOnce && self.seeded.contains(&seed);
        if spec.suspend {
            coverage.other("suspended");
            return Ok(if seeded { State::Synced } else { State::Open });
        }
        let there = self.objects.contains_key(key);
        let once = spec.strategy == Strategy::CreateOnce && !seeded && there;
        if spec.strategy == Strategy::CreateOnce && !seeded && !there && self.emptied.contains(key) {
            return Err("whether a seed was there before it was taken away");
        }
        if seeded && self.objects.get(key).is_some_and(Object::ours) && !self.objects.contains_key(source) {
            self.end(key, Why::SourceDeleted, rule, spec.retention.source_deleted, coverage)?;
        }
        let copy = match self.copy(rule, source, key, coverage) {
            _ if seeded => Content::new(),
            Ok(None) | Err(_) if once => return Err("what counts as created where nothing could be"),
            Ok(None) => return self.sourceless(key, rule, source, coverage),
            Err(Withheld::Unset) => {
                coverage.other("variable unset in content");
                return Ok(State::Failed("VariableUnset"));
            }
            Err(Withheld::Refused) => {
                coverage.other("source refused");
                return Ok(State::Open);
            }
            Ok(Some(copy)) => copy,
        };
        if self.objects.get(source).is_some_and(|source| source.deleting) {
            return Err("a source that is being deleted");
        }
        if self.objects.get(source).is_some_and(Object::ours) {
            coverage.other("a chain of rules");
        }
        let found = self.found(key, rule, &copy, coverage);
        let object = self.objects.get(key);
        if self.may_be_source(key) && object.is_some_and(|object| !object.ours()) {
            return Err("the source of a rule that is refused");
        }
        if object.is_some_and(Object::blurred) {
            return Err("whose a field is that nobody owns");
        }
        // Without an entry it is taken back if it has the content, as under Adopt.
        let stripped = object.is_some_and(|object| object.stripped() && !object.ours());
        let mut conflict = spec.conflict;
        if stripped && conflict == Policy::Fail && spec.strategy != Strategy::CreateOnce {
            coverage.other(if found == Found::Same { "taken back by its content" } else { "not taken back" });
            conflict = if found == Found::Same { Policy::Adopt } else { Policy::Fail };
        } else if object.is_some_and(|object| object.ours() && !object.owned()) {
            coverage.other("taken back by its uid");
        }
        let then = coverage.cell(spec.strategy, seeded, found, conflict);
        let state = match then {
            Then::Write if self.changes_type(key, &copy) && contested => {
                // Between its end and its beginning it carries no mark.
                return Err("whose a copy is that is made anew");
            }
            Then::Write
                if self.changes_type(key, &copy) && object.is_some_and(|object| object.ours() && !object.shown()) =>
            {
                return Err("a copy that no watch shows and that can't be changed in place");
            }
            Then::Write => self.write(key, &copy, &spec, coverage),
            Then::Created => State::Synced,
            Then::Conflict => State::Failed("Conflict"),
            Then::Silent => return Err("how a seed is counted"),
        };
        match spec.strategy {
            Strategy::CreateOnce if state == State::Synced => drop(self.seeded.insert(seed)),
            Strategy::Apply | Strategy::Replace if then == Then::Write => drop(self.seeded.remove(&seed)),
            _ => {}
        }
        Ok(state)
    }

    /// Whether what is there would have to become another type of Secret.
    fn changes_type(&self, key: &Key, copy: &Content) -> bool {
        let type_ = self.objects.get(key).and_then(|object| object.value("type"));
        type_.is_some_and(|type_| Some(type_) != copy.get("type").map(String::as_str))
    }

    fn write(&mut self, key: &Key, copy: &Content, spec: &RuleSpec, coverage: &mut Coverage) -> State {
        let typed = self.changes_type(key, copy);
        let object = self.objects.entry(key.clone()).or_default();
        if typed && !object.ours() && spec.conflict == Policy::Adopt {
            coverage.other("not adopted for its type");
            return State::Failed("Invalid");
        }
        if typed {
            // What can't be changed in place is deleted and created anew.
            coverage.other("replaced for its type");
            self.remove(key);
            if self.objects.contains_key(key) {
                coverage.other("waits for a finalizer");
                return State::Failed("Conflict");
            }
        }
        self.objects.entry(key.clone()).or_default().apply(copy, spec.strategy, coverage);
        State::Synced
    }

    /// A cell whose source isn't there.
    fn sourceless(&mut self, key: &Key, rule: &str, source: &Key, coverage: &mut Coverage) -> Result<State, Silence> {
        coverage.other("source missing");
        let Some(copy) = self.objects.get(key).filter(|object| object.ours() && !object.deleting) else {
            return Ok(State::Open);
        };
        let Key { res, namespace, name } = source;
        let of_this = copy.value("ann/mimeo.dev/source") == Some(&format!("{}/{namespace}/{name}", res.gvk()));
        if copy.rule() != Some(rule) || !of_this {
            return Err("another copy where the source is missing");
        }
        let keep = self.rules[rule].spec.retention.source_deleted;
        self.end(key, Why::SourceDeleted, rule, keep, coverage)?;
        Ok(State::Open)
    }

    /// A copy that is no longer wanted.
    fn end(&mut self, key: &Key, why: Why, rule: &str, keep: Keep, coverage: &mut Coverage) -> Result<(), Silence> {
        let idle = |rule: &Rule| rule.spec.suspend || render::refused(&rule.spec);
        let suspended = self.rules.get(rule).is_some_and(idle);
        let spec = self.rules.get(rule).map(|rule| &rule.spec).or_else(|| self.last.get(rule));
        let seed = (self.namespaces[&key.namespace].id, rule.to_owned(), key.clone());
        if self.seeded.contains(&seed) && spec.is_some_and(|spec| spec.strategy != Strategy::CreateOnce) {
            return Err("what was created once by a rule that applies now");
        }
        let once = self.seeded.contains(&seed) || spec.is_some_and(|spec| spec.strategy == Strategy::CreateOnce);
        let object = &self.objects[key];
        match coverage.unwanted(why, suspended, once, self.is_source(key), keep) {
            End::Stays => Ok(()),
            End::Silent => Err("what is superseded and retained"),
            End::Goes if self.may_be_source(key) => Err("the source of a rule that is refused"),
            End::Goes if !object.shown() => Err("the end of a copy that no watch shows"),
            End::Goes => {
                if object.held() {
                    coverage.other("waits for a finalizer");
                }
                self.remove(key);
                Ok(())
            }
        }
    }

    fn unwanted(
        &mut self,
        key: &Key,
        states: &BTreeMap<Key, (String, State)>,
        claims: &Claims,
        coverage: &mut Coverage,
    ) -> Result<(), Silence> {
        let object = &self.objects[key];
        if !KINDS.contains(&key.res) || !object.ours() || object.deleting || !self.open(&key.namespace) {
            return Ok(());
        }
        let Some(name) = object.rule().map(str::to_owned) else { return Err("a copy without its rule's mark") };
        let Some(Rule { spec, .. }) = self.rules.get(&name) else {
            let last = self.last.get(&name).ok_or("a copy of a rule that never was")?;
            if object.value("ann/mimeo.dev/retention").map(str::to_owned) != render::retention_mark(last) {
                return Err("a policy that its copies were never told of");
            }
            let keep = last.retention.rule_deleted;
            return self.end(key, Why::RuleDeleted, &name, keep, coverage);
        };
        let keep = spec.retention.unmatched;
        let Namespace { labels, .. } = &self.namespaces[&key.namespace];
        let selected = spec.targets.iter().any(|target| selects(target, &key.namespace, labels, coverage));
        if !selected || spec.suspend || render::refused(spec) {
            return self.end(key, Why::Unmatched, &name, keep, coverage);
        }
        // What supersedes it must have a name, and be there.
        let place = |source| Place { source, namespace: &key.namespace, labels };
        let mut names = spec.targets.iter().filter_map(|target| target.name.as_ref());
        if names.any(|name| spec.sources.iter().any(|source| render::fill(name, &place(source)).is_err())) {
            return Err("what is superseded by nothing yet");
        }
        let here = |other: &&Key| other.namespace == key.namespace;
        let others = claims.iter().filter(|(other, rules)| here(other) && rules.contains_key(&name));
        if others.map(|(other, _)| &states[other]).any(|(winner, state)| *winner != name || *state != State::Synced) {
            return Err("what is superseded by nothing yet");
        }
        self.end(key, Why::Superseded, &name, keep, coverage)
    }
}

/// The path as this kind has it.
fn fitting(key: &Key, path: &str) -> String {
    match key.res {
        Res::Widget => path.replace("data/", "spec/"),
        _ => path.replace("spec/", "data/"),
    }
}

/// With the type that the server gives a Secret.
fn typed(key: &Key, mut fields: Fields) -> Fields {
    if key.res == Res::Secret && !fields.iter().any(|(path, _)| path == "type") {
        fields.push(("type".to_owned(), "Opaque".to_owned()));
    }
    fields
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

/// Whether a value is what the model has; what is Mimeo's own affair only has to be there.
pub fn agrees(path: &str, model: &str, server: &str) -> bool {
    model == OPAQUE || path == "ann/mimeo.dev/retention" || model == server
}
