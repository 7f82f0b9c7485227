//! What the owner of a namespace lets Replications of other namespaces do in it.

use std::collections::BTreeSet;

use jiff::Timestamp;
use mimeo_api::{
    Access, GrantedNamespaces, GrantedObjects, NamespaceSelection, ReplicationGrant, ReplicationGrantSpec,
};

use crate::{
    kind::{GroupKind, GroupVersionKind},
    meta::version,
    rule::{Refusal, Refusals},
    selection::{Glob, Labels, TargetSelection},
};

/// Most items of each list.
const ITEMS: usize = 16;
/// Most names of objects in one item.
const NAMES: usize = 64;
/// Most grants of one namespace that count.
pub const MOST: usize = 256;
/// Most names in all grants of one namespace; a glob, a pattern or a requirement of labels counts as 8. What is granted is asked for each copy
/// of each rule, and one namespace's owner is not to make that slow for all.
pub const LOAD: usize = 1024;

/// A consent, parsed.
#[derive(Clone, Debug)]
pub struct Grant {
    /// When it was created; the end of time before it is stored.
    pub created: Timestamp,
    /// Its resourceVersion; 0 before it is stored.
    pub version: u64,
    /// What it costs to ask what it grants, in names compared.
    pub load: usize,
    /// What may be done.
    pub access: Access,
    /// By Replications in which namespaces.
    from: Vec<TargetSelection>,
    /// With which objects.
    pub to: Vec<Granted>,
}

/// Objects of one kind, in whatever version.
#[derive(Clone, Debug)]
pub struct Granted {
    /// The version in which the grant names the kind.
    pub gvk: GroupVersionKind,
    /// Names of the objects.
    names: BTreeSet<Box<str>>,
    /// Globs over names. Any name if there is neither.
    globs: Vec<Glob>,
}

impl Granted {
    /// The names, if each is exact; `None` for more than can be listed.
    pub fn exact_names(&self) -> Option<Vec<&str>> {
        let exact = self.globs.is_empty() && !self.names.is_empty();
        exact.then(|| self.names.iter().map(|name| &**name).collect())
    }

    fn load(&self) -> usize {
        1 + self.names.len() + self.globs.iter().map(Glob::load).sum::<usize>()
    }

    /// Whether it limits no names: objects of any name, and whoever may have them may know which there are.
    pub fn is_any(&self) -> bool {
        self.globs.is_empty() && self.names.is_empty()
    }

    fn covers(&self, kind: &GroupKind, name: &str) -> bool {
        let named = || self.names.contains(name) || self.globs.iter().any(|glob| glob.matches(name));
        self.gvk.is_of(kind) && (self.is_any() || named())
    }
}

impl Grant {
    /// Parses what the API server stored or is about to store.
    ///
    /// # Errors
    /// Every reason why it is refused, in the order of the fields. A refused grant grants nothing.
    pub fn parse(object: &ReplicationGrant) -> Result<Self, Vec<Refusal>> {
        let spec = &object.spec;
        let mut refusals = Refusals::default();
        refusals.at_most("spec.from", spec.from.len(), ITEMS);
        let from = spec.from.iter().enumerate().filter_map(|(i, one)| {
            refusals.all(TargetSelection::parse(&one.selection, None, &format!("spec.from[{i}]")))
        });
        let from: Vec<TargetSelection> = from.collect();
        refusals.at_most("spec.to", spec.to.len(), ITEMS);
        let to = spec.to.iter().enumerate().filter_map(|(i, one)| parse_objects(one, i, &mut refusals));
        let to: Vec<Granted> = to.collect();
        let load = from.iter().map(TargetSelection::load).chain(to.iter().map(Granted::load)).sum();
        if load > LOAD {
            let most = format!(
                "must not have more than {LOAD} names in all, each with * or ?, each pattern and each label as 8"
            );
            refusals.add("spec", format!("{most}: it has {load}"));
        }
        let created = object.metadata.creation_timestamp.as_ref().map_or(Timestamp::MAX, |time| time.0);
        let version = version(object.metadata.resource_version.as_deref());
        refusals.finish_with(Some(Self { created, version, load, access: spec.access, from, to }))
    }

    /// Whether Replications in the namespace `home`, which has these labels, may do that with what it is about.
    pub fn admits(&self, access: Access, home: &str, labels: &Labels) -> bool {
        self.access == access && self.from.iter().any(|from| from.matches(home, labels))
    }

    /// Whether it depends on the labels of the Replications' namespaces which of them may do that.
    pub fn selects_by_labels(&self, access: Access) -> bool {
        self.access == access && self.from.iter().any(TargetSelection::is_by_labels)
    }

    /// Whether it is about objects of the kind, at least some.
    pub fn concerns(&self, kind: &GroupKind) -> bool {
        self.to.iter().any(|to| to.gvk.is_of(kind))
    }

    /// Whether it is about all objects of the kind.
    pub fn covers_any(&self, kind: &GroupKind) -> bool {
        self.to.iter().any(|to| to.is_any() && to.gvk.is_of(kind))
    }

    /// Whether it is about the object.
    pub fn covers(&self, kind: &GroupKind, name: &str) -> bool {
        self.to.iter().any(|to| to.covers(kind, name))
    }
}

/// Whether all that `new` grants is granted by `old` already, as can be seen item by item: then whoever writes it in its place only
/// takes away. Not so of two of which that would take thought, as a name and a glob that matches it.
pub fn narrows(old: &ReplicationGrantSpec, new: &ReplicationGrantSpec) -> bool {
    let from = |one: &GrantedNamespaces| old.from.iter().any(|had| selects_no_more(&had.selection, &one.selection));
    let to = |one: &GrantedObjects| {
        let same = |had: &&GrantedObjects| (&had.api_version, &had.kind) == (&one.api_version, &one.kind);
        old.to.iter().filter(same).any(|had| had.names.is_empty() || is_part(&had.names, &one.names))
    };
    old.access == new.access && new.from.iter().all(from) && new.to.iter().all(to)
}

fn selects_no_more(old: &NamespaceSelection, new: &NamespaceSelection) -> bool {
    let NamespaceSelection { namespaces, namespace_pattern, namespace_selector } = new;
    let names_alone = namespace_pattern.is_none() && namespace_selector.is_none();
    old == new || (names_alone && is_part(&old.namespaces, namespaces))
}

/// Whether these are some of those. None is any.
fn is_part(all: &[String], some: &[String]) -> bool {
    !some.is_empty() && some.iter().all(|one| all.contains(one))
}

fn parse_objects(objects: &GrantedObjects, index: usize, refusals: &mut Refusals) -> Option<Granted> {
    let GrantedObjects { api_version, kind, names } = objects;
    let field = format!("spec.to[{index}]");
    let gvk = refusals.one(&field, GroupVersionKind::parse(api_version, kind));
    if names.len() > NAMES {
        refusals.add(format!("{field}.names"), format!("must not have more than {NAMES} items"));
    }
    if let Some(i) = names.iter().position(|name| name.is_empty() || name.len() > 253 || name.contains(['/', '%'])) {
        refusals.add(format!("{field}.names[{i}]"), "must be a name of an object, with * and ? for other characters");
    }
    let names = names.iter().map(|name| Glob::new(name));
    let (names, globs): (Vec<Glob>, Vec<Glob>) = names.partition(|name| name.literal().is_some());
    if let Some(slow) = globs.iter().find(|glob| !glob.is_quick()) {
        let why = format!("must not have {slow} in it: a name may have two * at most, and no ? between them");
        refusals.add(format!("{field}.names"), why);
    }
    Some(Granted { gvk: gvk?, names: names.iter().filter_map(Glob::literal).map(Into::into).collect(), globs })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn parse(spec: &Value) -> Result<Grant, Vec<String>> {
        let object = json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "ReplicationGrant",
            "metadata": {"namespace": "home", "name": "g"}, "spec": spec,
        });
        Grant::parse(&from_value(object).unwrap()).map_err(|all| all.iter().map(ToString::to_string).collect())
    }

    fn kind(api_version: &str, kind: &str) -> GroupKind {
        GroupVersionKind::parse(api_version, kind).unwrap().group_kind()
    }

    #[test]
    fn a_grant_covers_what_it_says_and_no_more() {
        let from = json!([{"namespaces": ["team-*"]}, {"namespaceSelector": {"matchLabels": {"tier": "gold"}}}]);
        let to = json!([{"apiVersion": "v1", "kind": "Secret", "names": ["db-*", "one"]}, {"apiVersion": "apps/v1", "kind": "Deployment"}]);
        let grant = parse(&json!({"from": from, "to": to})).unwrap();
        let (none, gold) = (Labels::new(), Labels::from([("tier".into(), "gold".into())]));
        let secret = kind("v1", "Secret");
        for (access, home, labels, kind, name, covered) in [
            (Access::Read, "team-a", &none, &secret, "db-1", true),
            (Access::Read, "team-a", &none, &secret, "one", true),
            (Access::Read, "other", &gold, &secret, "one", true),
            (Access::Read, "team-a", &none, &kind("apps/v1beta1", "Deployment"), "any", true),
            (Access::Write, "team-a", &none, &secret, "one", false),
            (Access::Read, "other", &none, &secret, "one", false),
            (Access::Read, "team-a", &none, &secret, "another", false),
            (Access::Read, "team-a", &none, &kind("v1", "ConfigMap"), "one", false),
            (Access::Read, "team-a", &none, &kind("example.com/v1", "Secret"), "one", false),
        ] {
            let granted = grant.admits(access, home, labels) && grant.covers(kind, name);
            assert_eq!(granted, covered, "{access:?} {home} {kind} {name}");
        }
        let deployments = kind("apps/v1", "Deployment");
        assert!(!grant.covers_any(&secret) && grant.covers_any(&deployments), "any name alone is any object");
        assert_eq!(grant.to[0].exact_names(), None);
        let exact =
            parse(&json!({"from": from, "to": [{"apiVersion": "v1", "kind": "Secret", "names": ["a"]}]})).unwrap();
        assert_eq!(exact.to[0].exact_names(), Some(vec!["a"]));
    }

    #[test]
    fn a_grant_narrows_another_if_it_has_less_of_each() {
        let secrets = |names: &[&str]| json!({"apiVersion": "v1", "kind": "Secret", "names": names});
        let names = |names: &[&str]| json!({"namespaces": names});
        let (any, maps) =
            (json!({"apiVersion": "v1", "kind": "Secret"}), json!({"apiVersion": "v1", "kind": "ConfigMap"}));
        let (gold, pattern) =
            (json!({"namespaceSelector": {"matchLabels": {"tier": "gold"}}}), json!({"namespacePattern": "a|b"}));
        let read = |from: &[&Value], to: &[&Value]| json!({"access": "Read", "from": from, "to": to});
        let mut write = read(&[&names(&["a"])], &[&any]);
        write["access"] = json!("Write");
        let old = read(&[&names(&["a", "b*"]), &gold, &pattern], &[&secrets(&["db", "w*"]), &maps]);
        for (about, old, new, narrower) in [
            ("the same", &old, &old, true),
            ("fewer places", &old, &read(&[&names(&["b*"])], &[&secrets(&["db", "w*"]), &maps]), true),
            ("one item of each", &old, &read(&[&gold], &[&maps]), true),
            ("fewer names", &old, &read(&[&pattern], &[&secrets(&["w*"])]), true),
            (
                "some names of any",
                &old,
                &read(&[&gold], &[&json!({"apiVersion": "v1", "kind": "ConfigMap", "names": ["c*"]})]),
                true,
            ),
            ("another place", &old, &read(&[&names(&["a", "c"])], &[&maps]), false),
            ("names from two items", &old, &read(&[&names(&["a"]), &names(&["c"])], &[&maps]), false),
            ("other labels", &old, &read(&[&json!({"namespaceSelector": {}})], &[&maps]), false),
            ("another pattern", &old, &read(&[&json!({"namespacePattern": "a|b|c"})], &[&maps]), false),
            ("any names of some", &old, &read(&[&gold], &[&any]), false),
            ("another name", &old, &read(&[&gold], &[&secrets(&["web"])]), false),
            ("another kind", &old, &read(&[&gold], &[&json!({"apiVersion": "apps/v1", "kind": "Deployment"})]), false),
            ("the other access", &read(&[&names(&["a"])], &[&any]), &write, false),
        ] {
            let spec = |spec: &Value| from_value::<ReplicationGrantSpec>(spec.clone()).unwrap();
            assert_eq!(narrows(&spec(old), &spec(new)), narrower, "{about}");
        }
    }

    #[test]
    fn what_would_be_slow_to_ask_is_refused() {
        let names = |names: Vec<String>| json!([{"apiVersion": "v1", "kind": "Secret", "names": names}]);
        let from = json!([{"namespaces": ["a"]}]);
        for slow in ["*a*b*", "*a?b*"] {
            let refused = parse(&json!({"from": from, "to": names(vec!["a".into(), slow.into()])})).unwrap_err();
            assert!(refused[0].starts_with(&format!("spec.to[0].names: must not have {slow} in it")), "{refused:?}");
        }
        let some = |form: &str| (0..64).map(|i| format!("{form}{i}")).collect::<Vec<_>>();
        let many = |form: &str, items| vec![names(some(form))[0].clone(); items];
        assert_eq!(parse(&json!({"from": from, "to": many("a", 15)})).unwrap().load, 1 + 15 * 65);
        for (from, to) in [
            (from.clone(), json!(many("a", 16))),
            (from, json!(many("*", 2))),
            (json!([{"namespaces": some("*")}, {"namespaces": some("*")}]), names(vec!["a".into()])),
        ] {
            let refused = parse(&json!({"from": from, "to": to})).unwrap_err();
            assert!(refused[0].starts_with("spec: must not have more than 1024 names in all"), "{refused:?}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let secrets = || json!([{"apiVersion": "v1", "kind": "Secret"}]);
        for (spec, begins) in [
            (json!({"from": [], "to": secrets()}), "spec.from: must not be empty"),
            (json!({"from": [{}], "to": secrets()}), "spec.from[0]: exactly one of"),
            (
                json!({"from": vec![json!({"namespaces": ["a"]}); 17], "to": secrets()}),
                "spec.from: must not have more than 16",
            ),
            (json!({"from": [{"namespacePattern": "("}], "to": secrets()}), "spec.from[0].namespacePattern: "),
            (json!({"from": [{"namespaces": ["a"]}], "to": []}), "spec.to: must not be empty"),
            (json!({"from": [{"namespaces": ["a"]}], "to": [{"apiVersion": "V", "kind": "Secret"}]}), "spec.to[0]: "),
            (
                json!({"from": [{"namespaces": ["a"]}], "to": [{"apiVersion": "v1", "kind": "Secret", "names": ["a/b"]}]}),
                "spec.to[0].names[0]: ",
            ),
        ] {
            let refused = parse(&spec).unwrap_err();
            assert!(refused[0].starts_with(begins), "{refused:?}");
        }
    }
}
