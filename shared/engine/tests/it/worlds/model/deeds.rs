//! Actions of users, chosen among the existing objects, and their direct effects on the cluster.

use std::collections::{BTreeMap, BTreeSet};

use super::{Claims, Model, Namespace, Object, Owned, ReportedCopy, Rule, is_content};
use crate::worlds::{
    render,
    select::Labels,
    server::{Key, Res},
    spec::{Event, Fields, GrantSpec, RuleSpec},
    tables::Coverage,
};

/// An action on the cluster, with all choices made.
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
    Forge(Key, String, String),
    Share(Key),
    Rule(Key, Box<RuleSpec>),
    DeleteRule(Key),
    Grant(Key, GrantSpec),
    Revoke(Key),
    Restart,
}

impl Deed {
    /// The object of the action.
    pub fn place(&self) -> Option<&Key> {
        match self {
            Self::Create(key, _)
            | Self::Change(key, _)
            | Self::Forge(key, ..)
            | Self::Remove(key)
            | Self::Release(key)
            | Self::Disown(key)
            | Self::Clear(key)
            | Self::Share(key) => Some(key),
            _ => None,
        }
    }
}

impl Model {
    /// Returns the places to choose from.
    fn places(&self) -> Vec<Key> {
        let claims = self.claims(&mut Coverage::default());
        let all: BTreeSet<&Key> = self.objects.keys().chain(claims.keys()).collect();
        all.into_iter().cloned().collect()
    }

    /// Returns the wishes of all rules at this moment, as far as the documents define them.
    pub(super) fn claims(&self, coverage: &mut Coverage) -> Claims {
        let mut claims = Claims::new();
        for (name, rule) in self
            .rules
            .iter()
            .filter(|(name, rule)| !render::refused(name, &rule.spec))
        {
            if let Ok(chosen) = self.chosen(name, &rule.spec, coverage) {
                let _ = self.claim(
                    name,
                    &rule.spec,
                    &chosen,
                    &mut claims,
                    &mut ReportedCopy::default(),
                    coverage,
                );
            }
        }
        claims
    }

    /// Returns the action that the event leads to at this moment, if there is one.
    pub fn choose(&self, event: &Event) -> Option<Deed> {
        let place = |nth: &usize| {
            let places = self.places();
            (!places.is_empty()).then(|| places[nth % places.len()].clone())
        };
        let there = |nth: &usize| place(nth).filter(|key| self.objects.contains_key(key));
        let labels = |labels: &[(&str, &str)]| -> Labels {
            labels
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect()
        };
        match event {
            Event::Namespace(name, wanted) => {
                let ending = self
                    .namespaces
                    .get(*name)
                    .is_some_and(|namespace| namespace.ending);
                (!ending).then(|| Deed::Namespace((*name).to_owned(), labels(wanted)))
            }
            Event::EndNamespace(name) => self
                .open(name)
                .then(|| Deed::EndNamespace((*name).to_owned())),
            Event::Reap(name) => {
                let ending = self
                    .namespaces
                    .get(*name)
                    .is_some_and(|namespace| namespace.ending);
                ending.then(|| Deed::Reap((*name).to_owned()))
            }
            Event::Source(key, fields) => match self.objects.get(key) {
                None => self
                    .open(&key.namespace)
                    .then(|| Deed::Create(key.clone(), typed(key, fields.clone()))),
                Some(object) => {
                    let mut changes: BTreeMap<String, Option<String>> = BTreeMap::new();
                    if !object.ours() {
                        changes.extend(object.fields.keys().map(|path| (path.clone(), None)));
                    }
                    changes.extend(
                        fields
                            .iter()
                            .map(|(path, value)| (path.clone(), Some(value.clone()))),
                    );
                    // No client can change a Secret's type, nor the content of an immutable object.
                    changes.remove("type");
                    changes.retain(|path, _| !(object.fixed() && is_content(path)));
                    Some(Deed::Change(key.clone(), changes.into_iter().collect()))
                }
            },
            Event::DeleteSource(key) => self
                .objects
                .contains_key(key)
                .then(|| Deed::Remove(key.clone())),
            Event::Rule(name, spec) => {
                let may = self.rules.contains_key(name)
                    || name.res == Res::Rule
                    || self.open(&name.namespace);
                may.then(|| Deed::Rule(name.clone(), spec.clone()))
            }
            Event::DeleteRule(name) => self
                .rules
                .contains_key(name)
                .then(|| Deed::DeleteRule(name.clone())),
            Event::Grant(key, spec) => {
                let may = self.grants.contains_key(key) || self.open(&key.namespace);
                may.then(|| Deed::Grant(key.clone(), spec.clone()))
            }
            Event::Revoke(nth) => {
                let grants: Vec<&Key> = self.grants.keys().collect();
                (!grants.is_empty()).then(|| Deed::Revoke(grants[nth % grants.len()].clone()))
            }
            Event::Suspend(name) => {
                let spec = &self.rules.get(name)?.spec;
                let spec = RuleSpec {
                    suspend: !spec.suspend,
                    ..spec.clone()
                };
                Some(Deed::Rule(name.clone(), Box::new(spec)))
            }
            Event::Foreign(nth, content, more) => {
                let key = place(nth)
                    .filter(|key| !self.objects.contains_key(key) && self.open(&key.namespace))?;
                let mut fields = content.clone().unwrap_or_else(|| self.content_for(&key));
                fields.extend(more.iter().cloned());
                let fields = fields
                    .into_iter()
                    .map(|(path, value)| (fitting(&key, &path), value))
                    .collect();
                Some(Deed::Create(key.clone(), typed(&key, fields)))
            }
            Event::Edit(nth, path, value) => {
                let key = there(nth)?;
                let path = fitting(&key, path);
                let fixed = is_content(&path) && self.objects[&key].fixed();
                let nonsense = is_fixing(&path) && key.res == Res::Widget;
                (!fixed && !nonsense).then(|| Deed::Change(key, vec![(path, value.clone())]))
            }
            Event::Delete(nth) => there(nth).map(Deed::Remove),
            Event::Release(nth) => there(nth).map(Deed::Release),
            Event::Disown(nth) => there(nth)
                .filter(|key| self.objects[key].owned())
                .map(Deed::Disown),
            Event::Clear(nth) => there(nth)
                .filter(|key| self.objects[key].owned())
                .map(Deed::Clear),
            Event::Forge(nth, value) => {
                let content = |object: &Object| {
                    let mut fields = object.fields.iter();
                    let path = fields
                        .find(|(path, field)| field.mine && *path != "type" && is_content(path));
                    path.map(|(path, _)| path.clone())
                        .filter(|_| !object.deleting && !object.fixed())
                };
                let all = self
                    .objects
                    .iter()
                    .filter_map(|(key, object)| Some((key, content(object)?)));
                let all: Vec<(&Key, String)> = all.collect();
                let (key, path) = all.get(nth % all.len().max(1))?.clone();
                let changed = self.objects[key].value(&path) != Some(value);
                changed.then(|| Deed::Forge(key.clone(), path, value.clone()))
            }
            Event::Strip(key, mark) => {
                let marked = self
                    .objects
                    .get(key)
                    .is_some_and(|object| object.fields.contains_key(*mark));
                marked.then(|| Deed::Change(key.clone(), vec![((*mark).to_owned(), None)]))
            }
            Event::Share(nth) => there(nth).map(Deed::Share),
            Event::Restart => Some(Deed::Restart),
        }
    }

    /// Returns the content of the copy that a rule wants here.
    fn content_for(&self, key: &Key) -> Fields {
        let mut coverage = Coverage::default();
        let claims = self.claims(&mut coverage);
        let Some((rule, source)) = claims.get(key).and_then(|claims| claims.first_key_value())
        else {
            return Vec::new();
        };
        let copy = self.copy(rule, source, key, &mut coverage);
        let copy = copy.ok().flatten().unwrap_or_default();
        copy.into_iter()
            .filter(|(path, _)| is_content(path))
            .collect()
    }

    fn end_rule(&mut self, name: &Key) {
        let rule = self.rules.remove(name).expect("it is there");
        self.last.insert(name.clone(), rule.spec);
    }

    pub fn act(&mut self, deed: &Deed, coverage: &mut Coverage) {
        self.clock += 1;
        if let Deed::Change(key, _) | Deed::Share(key) = deed {
            self.touched.insert(key.clone());
        }
        let shown = |model: &Self, key: &Key| model.objects.get(key).is_some_and(Object::shown);
        let place = deed
            .place()
            .filter(|key| self.steps > 0 && !shown(self, key));
        self.carry_out(deed, coverage);
        // An object that existed from the beginning was found at the start.
        self.unnoticed
            .extend(place.filter(|key| !shown(self, key)).cloned());
    }

    fn carry_out(&mut self, deed: &Deed, coverage: &mut Coverage) {
        match deed {
            Deed::Namespace(name, labels) => {
                let id = self
                    .namespaces
                    .get(name)
                    .map_or(self.clock, |namespace| namespace.id);
                let mut labels = labels.clone();
                labels.insert("kubernetes.io/metadata.name".to_owned(), name.clone());
                self.namespaces.insert(
                    name.clone(),
                    Namespace {
                        id,
                        labels,
                        ending: false,
                    },
                );
            }
            Deed::EndNamespace(name) => {
                self.namespaces
                    .get_mut(name)
                    .expect("chosen because it is there")
                    .ending = true;
            }
            Deed::Reap(name) => {
                self.namespaces.remove(name);
                self.objects.retain(|key, _| key.namespace != *name);
                self.grants.retain(|key, _| key.namespace != *name);
                let homeless: Vec<Key> = self
                    .rules
                    .keys()
                    .filter(|key| key.namespace == *name)
                    .cloned()
                    .collect();
                homeless.iter().for_each(|rule| self.end_rule(rule));
            }
            Deed::Create(key, fields) => drop(
                self.objects
                    .insert(key.clone(), Object::theirs(fields, self.steps)),
            ),
            Deed::Change(key, changes) => {
                let object = self
                    .objects
                    .get_mut(key)
                    .expect("chosen because it is there");
                // In an object without any owner a changed field gets no owner until it is applied.
                let theirs = object.fields.is_empty() || !object.ownerless();
                for (path, value) in changes {
                    match value {
                        Some(value) if object.value(path) == Some(value) => continue,
                        Some(value) => drop(object.fields.insert(
                            path.clone(),
                            Owned {
                                value: value.clone(),
                                mine: false,
                                theirs,
                            },
                        )),
                        None => drop(object.fields.remove(path)),
                    }
                    object.hidden.remove(path);
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
                let object = self
                    .objects
                    .get_mut(key)
                    .expect("chosen because it is there");
                object.fields.retain(|path, _| !path.starts_with("fin/"));
                if object.deleting {
                    self.objects.remove(key);
                }
            }
            Deed::Disown(key) => {
                let object = self
                    .objects
                    .get_mut(key)
                    .expect("chosen because it is there");
                object
                    .fields
                    .values_mut()
                    .for_each(|field| (field.mine, field.theirs) = (false, true));
            }
            Deed::Clear(key) => {
                let object = self
                    .objects
                    .get_mut(key)
                    .expect("chosen because it is there");
                object
                    .fields
                    .values_mut()
                    .for_each(|field| (field.mine, field.theirs) = (false, false));
            }
            Deed::Forge(key, path, value) => {
                let object = self
                    .objects
                    .get_mut(key)
                    .expect("chosen because it is there");
                let field = object
                    .fields
                    .get_mut(path)
                    .expect("chosen because it is there");
                let before = std::mem::replace(&mut field.value, value.clone());
                object.hidden.entry(path.clone()).or_insert(before);
                object.watched = !self.restarted;
            }
            Deed::Share(key) => {
                let object = self
                    .objects
                    .get_mut(key)
                    .expect("chosen because it is there");
                object
                    .fields
                    .values_mut()
                    .for_each(|field| field.theirs = true);
                // From now on the entries explain the change, so no process looks at the content
                // behind them.
                object.watched &= object.hidden.is_empty();
            }
            Deed::Rule(name, spec) => {
                self.changed.insert(name.clone());
                let born = self.rules.get(name).map_or(self.steps, |rule| rule.born);
                self.rules.insert(
                    name.clone(),
                    Rule {
                        spec: (**spec).clone(),
                        born,
                    },
                );
            }
            Deed::DeleteRule(name) => {
                self.end_rule(name);
            }
            Deed::Grant(key, spec) => drop(self.grants.insert(key.clone(), spec.clone())),
            Deed::Revoke(key) => drop(self.grants.remove(key)),
            Deed::Restart => {
                coverage.other("restart");
                self.restarted = true;
                self.unnoticed.clear();
                for object in self.objects.values_mut() {
                    (object.known, object.seen, object.watched) = (false, false, false);
                }
            }
        }
    }
}

/// Returns the path in the form that this kind has.
fn fitting(key: &Key, path: &str) -> String {
    match key.res {
        Res::Widget => path.replace("data/", "spec/"),
        _ => path.replace("spec/", "data/"),
    }
}

/// True if the field makes the object immutable. Some kinds have no such field.
fn is_fixing(path: &str) -> bool {
    path == "immutable"
}

/// Adds the type that the server gives a Secret.
fn typed(key: &Key, mut fields: Fields) -> Fields {
    fields.retain(|(path, _)| !(is_fixing(path) && key.res == Res::Widget));
    if key.res == Res::Secret && !fields.iter().any(|(path, _)| path == "type") {
        fields.push(("type".to_owned(), "Opaque".to_owned()));
    }
    fields
}
