//! An object of the model: the owners of its fields, and the effects of a write.

use std::collections::{BTreeMap, BTreeSet};

use crate::worlds::{
    render::{Content, OPAQUE},
    select::Labels,
    server::{Key, Res},
    spec::Strategy,
    tables::{Coverage, Has, Held, Rest},
};

/// A field, and its owners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    pub value: String,
    pub mine: bool,
    pub theirs: bool,
}

#[allow(clippy::struct_excessive_bools)] // Facts that are true or not, each on its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Object {
    pub fields: BTreeMap<String, Owned>,
    pub deleting: bool,
    /// True if the running program has seen the object with a field of Mimeo's.
    pub known: bool,
    /// True if the running program has seen the object as a copy, with its label.
    pub seen: bool,
    /// The step that created the rule which last had the object correct.
    pub rules_birth: Option<usize>,
    /// The step in which a user created the object. It is unknown for copies.
    pub born: usize,
    /// The apparent values of fields that were changed without a trace.
    pub hidden: BTreeMap<String, String>,
    /// True if the running program has observed the write of another client.
    pub watched: bool,
}

pub fn is_content(path: &str) -> bool {
    path == "type"
        || path == "immutable"
        || ["data/", "binaryData/", "spec/"]
            .iter()
            .any(|part| path.starts_with(part))
}

impl Object {
    pub fn theirs(fields: &[(String, String)], born: usize) -> Self {
        let owned = |value: &String| Owned {
            value: value.clone(),
            mine: false,
            theirs: true,
        };
        let fields = fields
            .iter()
            .map(|(path, value)| (path.clone(), owned(value)))
            .collect();
        Self {
            fields,
            born,
            ..Self::default()
        }
    }

    /// True if the object has a field that Mimeo owns, or had one when Mimeo last saw it. Then it
    /// is Mimeo's own.
    pub fn ours(&self) -> bool {
        self.known || self.owned()
    }

    pub fn owned(&self) -> bool {
        self.fields.values().any(|field| field.mine)
    }

    /// True if no field of the object has an owner.
    pub fn ownerless(&self) -> bool {
        self.fields
            .values()
            .all(|field| !field.mine && !field.theirs)
    }

    /// True if the object has all labels and annotations of a copy, but no field of it has an
    /// owner.
    pub fn stripped(&self) -> bool {
        let marks = ["rule", "checksum", "cluster"];
        self.ownerless()
            && self.shown()
            && marks
                .iter()
                .all(|mark| self.fields.contains_key(&format!("ann/mimeo.dev/{mark}")))
    }

    pub fn value(&self, path: &str) -> Option<&str> {
        self.fields.get(path).map(|field| field.value.as_str())
    }

    pub fn values(&self) -> Content {
        self.fields
            .iter()
            .map(|(path, field)| (path.clone(), field.value.clone()))
            .collect()
    }

    pub fn labels(&self) -> Labels {
        let label = |(path, field): (&String, &Owned)| {
            Some((path.strip_prefix("label/")?.to_owned(), field.value.clone()))
        };
        self.fields.iter().filter_map(label).collect()
    }

    /// True if the object seems to be the copy already, judged only by its metadata.
    pub fn seems(&self, copy: &Content, strategy: Strategy) -> bool {
        let mut seen = self.clone();
        for (path, value) in &self.hidden {
            seen.fields
                .get_mut(path)
                .expect("what is removed is seen")
                .value
                .clone_from(value);
        }
        let before = seen.fields.clone();
        seen.apply(copy, strategy, &mut Coverage::default());
        seen.fields == before
    }

    /// The rule that the object's annotation names.
    pub fn rule(&self) -> Option<Key> {
        let mark = self.value("ann/mimeo.dev/rule")?;
        let platforms = mark
            .strip_prefix("ClusterReplication/")
            .map(|name| Key::new(Res::Rule, "", name));
        let tenants = || {
            mark.strip_prefix("Replication/")
                .and_then(|rest| rest.split_once('/'))
        };
        platforms.or_else(|| tenants().map(|(home, name)| Key::new(Res::Replication, home, name)))
    }

    pub fn shown(&self) -> bool {
        self.value("label/app.kubernetes.io/managed-by") == Some("mimeo")
    }

    /// True if no client can change the content of the object.
    pub fn fixed(&self) -> bool {
        self.value("immutable") == Some("true")
    }

    /// True if the copy can't be applied to the object. It has another type, or it is immutable and
    /// has another content.
    pub fn refuses(&self, copy: &Content) -> bool {
        let other = |path: &&String| {
            is_content(path) && self.value(path) != copy.get(*path).map(String::as_str)
        };
        self.value("type")
            .is_some_and(|type_| Some(type_) != copy.get("type").map(String::as_str))
            || self.fixed() && copy.keys().any(|path| other(&path))
    }

    /// True if the object can't become the copy. In an immutable object no field can be removed,
    /// even if the apply itself made it immutable. Fields of Mimeo's own are removed with the same
    /// write.
    pub fn must_go(&self, copy: &Content, strategy: Strategy) -> bool {
        let mut after = self.clone();
        after.apply(copy, strategy, &mut Coverage::default());
        let gone = |path: &&String| is_content(path) && !after.fields.contains_key(*path);
        let fixed = self.fixed()
            || !self.owned() && copy.get("immutable").is_some_and(|value| value == "true");
        self.refuses(copy) || fixed && self.fields.keys().any(|path| gone(&path))
    }

    pub fn held(&self) -> bool {
        self.fields.keys().any(|path| path.starts_with("fin/"))
    }

    /// True if some fields have an owner and others have none. Changes of the latter are invisible.
    pub fn blurred(&self) -> bool {
        let owner = |field: &&Owned| field.mine || field.theirs;
        !self.ownerless() && self.fields.values().filter(owner).count() < self.fields.len()
    }

    /// Turns the object into the copy.
    pub fn apply(&mut self, copy: &Content, strategy: Strategy, coverage: &mut Coverage) {
        // If no field has an owner, the former owner of a field is unknown.
        let goes = strategy == Strategy::Replace || self.ownerless();
        self.known = true;
        self.hidden.clear();
        let paths: BTreeSet<String> = self.fields.keys().chain(copy.keys()).cloned().collect();
        for path in paths {
            let (was, wanted) = (self.fields.get(&path).cloned(), copy.get(&path));
            let has = match (&was, wanted) {
                (_, None) => Has::Unwanted,
                (None, Some(_)) => Has::Nothing,
                (Some(was), Some(wanted)) if was.value == *wanted => Has::Equal,
                (Some(_), Some(_)) => Has::Other,
            };
            let (mine, theirs) = was
                .as_ref()
                .map_or((false, false), |was| (was.mine, was.theirs));
            // A finalizer is removed only by the client that set it.
            let rest = if goes && !path.starts_with("fin/") {
                Rest::Goes
            } else {
                Rest::Stays
            };
            let held = coverage.field(has, mine, theirs, rest);
            let value = || wanted.cloned().expect("the copy has it");
            match held {
                Held::Mine => drop(self.fields.insert(
                    path,
                    Owned {
                        value: value(),
                        mine: true,
                        theirs: false,
                    },
                )),
                Held::Shared => drop(self.fields.insert(
                    path,
                    Owned {
                        value: value(),
                        mine: true,
                        theirs: true,
                    },
                )),
                Held::Theirs => drop(self.fields.get_mut(&path).map(|field| field.mine = false)),
                Held::Gone => drop(self.fields.remove(&path)),
            }
        }
    }
}

/// True if a value is the one of the model. A value whose form only Mimeo defines must only exist.
pub fn agrees(path: &str, model: &str, server: &str) -> bool {
    model == OPAQUE || path == "ann/mimeo.dev/retention" || model == server
}
