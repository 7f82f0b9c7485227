//! An object of the model: the owners of its fields, and the effects of a write.

use std::collections::{BTreeMap, BTreeSet};

use crate::worlds::{
    render::{Content, OPAQUE},
    select::Labels,
    server::{Key, Res},
    spec::Strategy,
    tables::{Coverage, Has, Held, Rest},
};

/// A field, and who owns it.
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
    /// Whether the program that runs has seen it with a field of Mimeo's.
    pub known: bool,
    /// Whether the program that runs has seen it as a copy, label and all.
    pub seen: bool,
    /// The step in which the rule was created that last had it right.
    pub rules_birth: Option<usize>,
    /// The step in which somebody created it. Of copies it isn't known.
    pub born: usize,
    /// What fields seem to have that were changed without a trace.
    pub hidden: BTreeMap<String, String>,
    /// Whether the program that runs was told that somebody wrote that.
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

    /// Ours is what has a field that Mimeo owns, or had one when it was last seen.
    pub fn ours(&self) -> bool {
        self.known || self.owned()
    }

    pub fn owned(&self) -> bool {
        self.fields.values().any(|field| field.mine)
    }

    /// Whether nobody owns anything in it.
    pub fn ownerless(&self) -> bool {
        self.fields
            .values()
            .all(|field| !field.mine && !field.theirs)
    }

    /// Whether all says that it is a copy, but that nobody owns anything in it.
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

    /// Whether it seems to be the copy already, to who has but its metadata to go by.
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

    /// The rule whose mark it carries.
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

    /// Whether nobody can change what is in it.
    pub fn fixed(&self) -> bool {
        self.value("immutable") == Some("true")
    }

    /// Whether the copy can't be applied to it, being of another type, or of another content where
    /// that is fixed.
    pub fn refuses(&self, copy: &Content) -> bool {
        let other = |path: &&String| {
            is_content(path) && self.value(path) != copy.get(*path).map(String::as_str)
        };
        self.value("type")
            .is_some_and(|type_| Some(type_) != copy.get("type").map(String::as_str))
            || self.fixed() && copy.keys().any(|path| other(&path))
    }

    /// Whether it can't become the copy: nor can what is to go be taken out where the content is
    /// fixed, or has become so as the copy was applied. What is Mimeo's already goes with the same
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

    /// What has an owner and what has none: of the latter nobody sees what becomes.
    pub fn blurred(&self) -> bool {
        let owner = |field: &&Owned| field.mine || field.theirs;
        !self.ownerless() && self.fields.values().filter(owner).count() < self.fields.len()
    }

    /// Becomes the copy.
    pub fn apply(&mut self, copy: &Content, strategy: Strategy, coverage: &mut Coverage) {
        // Where nobody owns anything, nobody can tell whose a field was.
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
            // Finalizers are for those to remove who set them.
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

/// Whether a value is what the model has; what is Mimeo's own affair only has to be there.
pub fn agrees(path: &str, model: &str, server: &str) -> bool {
    model == OPAQUE || path == "ann/mimeo.dev/retention" || model == server
}
