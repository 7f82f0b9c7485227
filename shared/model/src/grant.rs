//! The consent of a namespace's owner: the access of Replications in other namespaces to it.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use mimeo_api::{
    Access, GrantedObjects, NamespaceSelection, ReplicationGrant, ReplicationGrantStatus,
};

use crate::{
    condition::{ConditionReason, ConditionType, condition},
    kind::{GroupKind, GroupVersionKind},
    meta::Uid,
    refusal::{Refusal, Refusals, in_one_line},
    selection::{Glob, Place, Selection, Selector},
    syntax,
};

/// Most items of each list in a grant.
const ITEMS: usize = 16;
/// Most names of objects in one item.
const NAMES: usize = 64;
/// Most grants of one namespace that count.
pub const MOST: usize = 256;
/// Most names in all grants of one namespace that count. A glob, a pattern or a label requirement
/// counts as 8 names.
///
/// Mimeo compares these names for each copy of each rule. Without the limit, the owner of one
/// namespace could slow down all others.
pub const LOAD: usize = 1024;

/// Longest text of grantees or of objects in a status, in bytes.
const TEXT: usize = 256;
/// Longest message of a condition in it, in bytes.
const MESSAGE: usize = 2000;

/// The part of a grant's status that does not follow from its spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The `metadata.generation` of the grant that the status describes.
    pub generation: i64,
    /// Whether it counts, and if it doesn't, why.
    pub effect: Effect,
    /// The number of Replications that use the grant.
    pub replications: i32,
}

/// Whether a grant counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It does.
    Counts,
    /// Older ones of its namespace take all that may count.
    TooMany,
    /// Its spec is invalid.
    Invalid,
}

impl Standing {
    /// Reads a grant's status. `None` if Mimeo has not written the status yet.
    pub fn read(status: &ReplicationGrantStatus) -> Option<Self> {
        let ready = status
            .conditions
            .iter()
            .find(|condition| condition.type_ == ConditionType::Ready.as_str())?;
        let (generation, replications) = (status.observed_generation?, status.replications?);
        let effect = match &*ready.status {
            "True" => Effect::Counts,
            _ if ready.reason == ConditionReason::InvalidSpec.to_string() => Effect::Invalid,
            _ => Effect::TooMany,
        };
        Some(Self {
            generation,
            effect,
            replications,
        })
    }

    /// The new status of `grant`, at the time `now`. `refusals` are the reasons why it is invalid,
    /// if it is.
    pub fn status(
        self,
        grant: &ReplicationGrant,
        refusals: &[Refusal],
        now: Timestamp,
    ) -> ReplicationGrantStatus {
        let (reason, message) = match self.effect {
            Effect::Counts => (
                ConditionReason::Active,
                "Replications may do what the grant says".to_owned(),
            ),
            Effect::TooMany => (ConditionReason::TooManyGrants, too_many()),
            Effect::Invalid => {
                let message = format!("the grant grants nothing: {}", in_one_line(refusals));
                (ConditionReason::InvalidSpec, shorten(message, MESSAGE))
            }
        };
        let old = grant.status.as_ref().map_or(&[][..], |old| &old.conditions);
        let ready = (ConditionType::Ready, self.effect == Effect::Counts);
        let ready = condition(ready, reason, message, Some(self.generation), old, now);
        let list = |items: Vec<String>| shorten(items.join("; "), TEXT);
        ReplicationGrantStatus {
            observed_generation: Some(self.generation),
            conditions: vec![ready],
            replications: Some(self.replications),
            grantees: Some(list(grant.spec.grantees.iter().map(grantee_text).collect())),
            objects: Some(list(grant.spec.objects.iter().map(objects_text).collect())),
        }
    }
}

/// The message for a grant that does not count because older grants use up the limit.
pub fn too_many() -> String {
    format!(
        "a namespace may have at most {MOST} ReplicationGrants, with {LOAD} names in all; older \
         grants use that up: delete or shorten some of them"
    )
}

/// A grantee as text: `team-a,team-b`, `pattern team-.*`, `labels tier=gold`. If the grantee sets
/// more than one field, the parts are joined by *and*.
fn grantee_text(grantee: &NamespaceSelection) -> String {
    let NamespaceSelection {
        namespaces,
        namespace_pattern,
        namespace_selector,
    } = grantee;
    let mut parts = Vec::new();
    parts.extend((!namespaces.is_empty()).then(|| namespaces.join(",")));
    let pattern = namespace_pattern.as_ref();
    parts.extend(pattern.map(|pattern| format!("pattern {pattern}")));
    parts.extend(namespace_selector.as_ref().map(labels_text));
    parts.join(" and ")
}

/// A selector as kubectl writes it: `labels tier=gold,env in (dev,test),!legacy`.
fn labels_text(selector: &LabelSelector) -> String {
    // The grant's parser reports the refusals.
    match &*Selector::parse(selector, "", &mut Refusals::default()).to_query() {
        "" => "all namespaces".to_owned(),
        labels => format!("labels {labels}"),
    }
}

/// Granted objects as text: `Secret db-*,ca`, or `Secret (any)` if no names are given.
fn objects_text(objects: &GrantedObjects) -> String {
    let GrantedObjects {
        api_version: _,
        kind,
        names,
    } = objects;
    if names.is_empty() {
        format!("{kind} (any)")
    } else {
        format!("{kind} {}", names.join(","))
    }
}

/// Cuts the text to so many bytes.
fn shorten(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most - 3));
        text.push_str("...");
    }
    text
}

/// Identifies one version of a grant's spec. It stays the same when only the metadata or the status
/// changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Edition {
    /// The object's uid. `None` before the grant is stored.
    pub uid: Option<Uid>,
    /// The `metadata.generation`, which grows with each change of the spec.
    pub generation: i64,
}

/// The status of a stored grant. Of a refused grant only this is known, and it grants nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantStatus {
    /// The `metadata.generation` of the grant.
    pub generation: i64,
    /// The part of the status that does not follow from the spec.
    pub status: Option<Standing>,
}

/// A consent, parsed.
#[derive(Clone, Debug)]
pub struct Grant {
    /// Creation time. `Timestamp::MAX` before the grant is stored.
    pub created: Timestamp,
    /// The version of the spec.
    pub edition: Edition,
    /// The status that was read with the grant.
    pub status: Option<Standing>,
    /// The cost of a check against this grant, in names compared.
    pub load: usize,
    /// The access that the grant gives.
    pub access: Access,
    /// The namespaces of the Replications that get the access.
    grantees: Vec<Selection>,
    /// The objects that the Replications get access to.
    pub objects: Vec<Granted>,
}

/// Objects of one kind, in any version of the kind.
#[derive(Clone, Debug)]
pub struct Granted {
    /// The version in which the grant names the kind.
    pub gvk: GroupVersionKind,
    /// Names of the objects, and globs over names. If there are none, any name is granted.
    names: Vec<String>,
}

impl Granted {
    /// The names, if all of them are exact. `None` if the grant covers names that it does not list.
    pub fn exact_names(&self) -> Option<Vec<&str>> {
        let names: Option<Vec<&str>> = self.names.iter().map(|name| Glob(name).literal()).collect();
        names.filter(|_| !self.is_any())
    }

    fn load(&self) -> usize {
        1 + self
            .names
            .iter()
            .map(|name| Glob(name).load())
            .sum::<usize>()
    }

    /// True if the grant covers objects of any name. The grantee may then also learn which objects
    /// exist.
    pub fn is_any(&self) -> bool {
        self.names.is_empty()
    }

    fn covers(&self, kind: &GroupKind, name: &str) -> bool {
        let named = || self.names.iter().any(|glob| Glob(glob).matches(name));
        self.gvk.is_of(kind) && (self.is_any() || named())
    }
}

impl Grant {
    /// Parses a grant that the API server has stored or is about to store.
    ///
    /// # Errors
    /// All reasons why the grant is refused, in the order of the fields. A refused grant grants
    /// nothing.
    pub fn parse(object: &ReplicationGrant) -> Result<Self, Vec<Refusal>> {
        let spec = &object.spec;
        let mut refusals = Refusals::default();
        refusals.count("spec.grantees", spec.grantees.len(), ITEMS);
        let grantees = spec.grantees.iter().enumerate();
        let grantees = grantees
            .map(|(i, one)| Selection::parse(one, &format!("spec.grantees[{i}]"), &mut refusals));
        let grantees: Vec<Selection> = grantees.collect();
        refusals.count("spec.objects", spec.objects.len(), ITEMS);
        let objects = spec.objects.iter().enumerate();
        let objects = objects.filter_map(|(i, one)| {
            parse_objects(one, &format!("spec.objects[{i}]"), &mut refusals)
        });
        let objects: Vec<Granted> = objects.collect();
        let load = grantees
            .iter()
            .map(Selection::load)
            .chain(objects.iter().map(Granted::load))
            .sum();
        if load > LOAD {
            let most = format!(
                "must not have more than {LOAD} names in all, where a name with * or ?, a pattern \
                 and each label count as 8"
            );
            refusals.add("spec", format!("{most}: it has {load}"));
        }
        let metadata = &object.metadata;
        let created = metadata.creation_timestamp.as_ref();
        refusals.finish_with(Self {
            created: created.map_or(Timestamp::MAX, |time| time.0),
            edition: Edition {
                uid: metadata.uid.as_deref().and_then(Uid::parse),
                generation: metadata.generation.unwrap_or_default(),
            },
            status: object.status.as_ref().and_then(Standing::read),
            load,
            access: spec.access,
            grantees,
            objects,
        })
    }

    /// True if Replications in the namespace `home` get the access to the granted objects.
    pub fn admits(&self, home: Place<'_>) -> bool {
        self.grantees.iter().any(|grantee| grantee.selects(home))
    }

    /// True if the grant gives this access and selects some of the grantees by their labels.
    pub fn selects_by_labels(&self, access: Access) -> bool {
        self.access == access && self.grantees.iter().any(Selection::is_by_labels)
    }

    /// True if the grant covers at least some objects of the kind.
    pub fn concerns(&self, kind: &GroupKind) -> bool {
        self.objects.iter().any(|objects| objects.gvk.is_of(kind))
    }

    /// True if the grant covers the object of this name, or for `None` all objects of the kind.
    pub fn covers(&self, kind: &GroupKind, name: Option<&str>) -> bool {
        self.objects.iter().any(|objects| match name {
            Some(name) => objects.covers(kind, name),
            None => objects.is_any() && objects.gvk.is_of(kind),
        })
    }
}

fn parse_objects(
    objects: &GrantedObjects,
    field: &str,
    refusals: &mut Refusals,
) -> Option<Granted> {
    let GrantedObjects {
        api_version,
        kind,
        names,
    } = objects;
    let gvk = refusals.one(field, GroupVersionKind::parse(api_version, kind));
    refusals.each(&format!("{field}.names"), names, NAMES, syntax::object_glob);
    Some(Granted {
        gvk: gvk?,
        names: names.clone(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;
    use crate::selection::Labels;

    fn parse(spec: &Value) -> Result<Grant, Vec<String>> {
        let object = json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "ReplicationGrant",
            "metadata": {"namespace": "home", "name": "g"}, "spec": spec,
        });
        Grant::parse(&from_value(object).unwrap())
            .map_err(|all| all.iter().map(ToString::to_string).collect())
    }

    fn kind(api_version: &str, kind: &str) -> GroupKind {
        GroupVersionKind::parse(api_version, kind)
            .unwrap()
            .group_kind()
    }

    #[test]
    fn a_grant_covers_what_it_says_and_no_more() {
        let from = json!([{"namespaces": ["team-*"]}, {"namespaceSelector": {"matchLabels": {"tier": "gold"}}}]);
        let to = json!([{"apiVersion": "v1", "kind": "Secret", "names": ["db-*", "one"]}, {"apiVersion": "apps/v1", "kind": "Deployment"}]);
        let grant = parse(&json!({"grantees": from, "objects": to})).unwrap();
        let (none, gold) = (
            Labels::new(),
            std::iter::once(("tier".into(), "gold".into())).collect::<Labels>(),
        );
        let secret = kind("v1", "Secret");
        for (access, home, labels, kind, name, covered) in [
            (Access::Read, "team-a", &none, &secret, "db-1", true),
            (Access::Read, "team-a", &none, &secret, "one", true),
            (Access::Read, "other", &gold, &secret, "one", true),
            (
                Access::Read,
                "team-a",
                &none,
                &kind("apps/v1beta1", "Deployment"),
                "any",
                true,
            ),
            (Access::Write, "team-a", &none, &secret, "one", false),
            (Access::Read, "other", &none, &secret, "one", false),
            (Access::Read, "team-a", &none, &secret, "another", false),
            (
                Access::Read,
                "team-a",
                &none,
                &kind("v1", "ConfigMap"),
                "one",
                false,
            ),
            (
                Access::Read,
                "team-a",
                &none,
                &kind("example.com/v1", "Secret"),
                "one",
                false,
            ),
        ] {
            let granted = grant.access == access
                && grant.admits(Place { name: home, labels })
                && grant.covers(kind, Some(name));
            assert_eq!(granted, covered, "{access:?} {home} {kind} {name}");
        }
        let deployments = kind("apps/v1", "Deployment");
        assert!(
            !grant.covers(&secret, None) && grant.covers(&deployments, None),
            "any name alone is any object"
        );
        assert_eq!(grant.objects[0].exact_names(), None);
        let exact =
            parse(&json!({"grantees": from, "objects": [{"apiVersion": "v1", "kind": "Secret", "names": ["a"]}]}))
                .unwrap();
        assert_eq!(exact.objects[0].exact_names(), Some(vec!["a"]));
    }

    #[test]
    fn what_would_be_slow_to_ask_is_refused() {
        let names =
            |names: Vec<String>| json!([{"apiVersion": "v1", "kind": "Secret", "names": names}]);
        let from = json!([{"namespaces": ["a"]}]);
        for slow in ["*a*b*", "*a?b*"] {
            let refused =
                parse(&json!({"grantees": from, "objects": names(vec!["a".into(), slow.into()])}))
                    .unwrap_err();
            assert!(
                refused[0].starts_with("spec.objects[0].names[1]: must not have more than two *"),
                "{slow}: {refused:?}"
            );
        }
        let some = |form: &str| (0..64).map(|i| format!("{form}{i}")).collect::<Vec<_>>();
        let many = |form: &str, items| vec![names(some(form))[0].clone(); items];
        assert_eq!(
            parse(&json!({"grantees": from, "objects": many("a", 15)}))
                .unwrap()
                .load,
            1 + 15 * 65
        );
        for (from, to) in [
            (from.clone(), json!(many("a", 16))),
            (from, json!(many("*", 2))),
            (
                json!([{"namespaces": some("*")}, {"namespaces": some("*")}]),
                names(vec!["a".into()]),
            ),
        ] {
            let refused = parse(&json!({"grantees": from, "objects": to})).unwrap_err();
            assert!(
                refused[0].starts_with("spec: must not have more than 1024 names in all"),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let secrets = || json!([{"apiVersion": "v1", "kind": "Secret"}]);
        for (spec, begins) in [
            (
                json!({"grantees": [], "objects": secrets()}),
                "spec.grantees: must not be empty",
            ),
            (
                json!({"grantees": [{}], "objects": secrets()}),
                "spec.grantees[0]: at least one of",
            ),
            (
                json!({"grantees": vec![json!({"namespaces": ["a"]}); 17], "objects": secrets()}),
                "spec.grantees: must not have more than 16",
            ),
            (
                json!({"grantees": [{"namespacePattern": "("}], "objects": secrets()}),
                "spec.grantees[0].namespacePattern: ",
            ),
            (
                json!({"grantees": [{"namespaces": ["a"]}], "objects": []}),
                "spec.objects: must not be empty",
            ),
            (
                json!({"grantees": [{"namespaces": ["a"]}], "objects": [{"apiVersion": "V", "kind": "Secret"}]}),
                "spec.objects[0]: ",
            ),
            (
                json!({"grantees": [{"namespaces": ["a"]}], "objects": [{"apiVersion": "v1", "kind": "Secret", "names": ["a/b"]}]}),
                "spec.objects[0].names[0]: ",
            ),
        ] {
            let refused = parse(&spec).unwrap_err();
            assert!(refused[0].starts_with(begins), "{refused:?}");
        }
    }
}
