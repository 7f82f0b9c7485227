//! Bytes to a [`Request`].
//!
//! Parsed JSON takes up to a hundred times the memory of its text, and anybody may send some. So of the objects only that is
//! parsed which a hook looks at, and [`decode`] says beforehand what it comes to.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor},
};
use serde_json::{Map, Value, value::RawValue};

use super::{API_VERSION, GroupVersionResource, KIND, Operation, Request, User};
use crate::{kind::GroupVersionKind, memory, rule::syntax};

/// What is kept of an object. `managedFields`, which grow with it, are not.
const KEPT: &[&str] = &["apiVersion", "kind", "metadata", "type"];
/// Of these the keys are kept, each with null: more of a Secret than that is nobody's business here.
const KEYS_KEPT: &[&str] = &["data", "binaryData", "stringData"];
/// What is kept of one of Mimeo's own, besides.
const KEPT_OF_OWN: &[&str] = &["apiVersion", "kind", "metadata", "spec"];
const KEPT_OF_METADATA: &[&str] = &[
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "labels",
    "annotations",
    "finalizers",
];
/// What of it is as short as a name, and stands in logs.
const IDENTITY: &[&str] = &["name", "generateName", "namespace", "uid", "resourceVersion"];
/// Most memory for what is kept of one object, in bytes: a rule as large as its schema allows takes half of it.
const KEPT_MEMORY: usize = 4 << 20;
/// Most memory for one user's groups and extra, in bytes: some thousands of groups.
const USER_MEMORY: usize = 1 << 20;

/// Longest uid of a review, kind, resource and the like, in bytes; real ones are far shorter.
const WORD_LENGTH: usize = 253;
/// Longest name of an object. Those of most kinds have 253 bytes at most; to those of Roles the API server sets no limit.
const NAME_LENGTH: usize = 1 << 10;
/// Longest name and uid of a user.
const USER_NAME_LENGTH: usize = 1 << 10;

/// Not a review. Says where reading stopped, never what stood there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an AdmissionReview of {API_VERSION}: {why}")]
pub struct Undecodable {
    why: String,
}

/// A review that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// What it asks.
    pub request: Request,
    /// Bytes of memory that the request's objects take at most.
    pub memory: usize,
}

/// Whether anything can have that name: it is one segment of a path. (The API server takes no other, and takes `%2F` for a slash.)
pub fn is_name(text: &str) -> bool {
    text.len() <= NAME_LENGTH && syntax::path_segment(text).is_ok()
}

/// Reads the body of an admission request.
pub fn decode(body: &[u8]) -> Result<Decoded, Undecodable> {
    let undecodable = |why| Undecodable { why };
    let review: Review<'_> = serde_json::from_slice(body).map_err(|error| undecodable(place(&error)))?;
    if (&*review.api_version, &*review.kind) != (API_VERSION, KIND) {
        return Err(undecodable("another apiVersion or kind".into()));
    }
    let asked = review.request.ok_or_else(|| undecodable("no request in it".into()))?;
    asked.check().map_err(|why| undecodable(why.into()))?;
    let own = *asked.kind.group == *mimeo_api::names::GROUP;
    let kept = if own { KEPT_OF_OWN } else { KEPT };
    let mut memory = if own { asked.user_info.memory() } else { 0 };
    if memory > USER_MEMORY {
        return Err(undecodable("a user with too many groups".into()));
    }
    let user = asked.user_info.parse(own).map_err(|error| undecodable(place(&error)))?;
    let mut keep = |object: Option<&RawValue>| {
        let Some(object) = object else { return Ok(None) };
        let object = Object::pick(object, kept).map_err(|error| undecodable(place(&error)))?;
        if object.metadata.iter().any(|(key, text)| IDENTITY.contains(key) && text.get().len() > NAME_LENGTH) {
            return Err(undecodable("an object with a name that can't be one".into()));
        }
        memory += object.memory();
        if object.memory() > KEPT_MEMORY {
            return Err(undecodable("an object with too many values".into()));
        }
        object.parse().map(Some).map_err(|error| undecodable(place(&error)))
    };
    let (object, old_object) = (keep(asked.object)?, keep(asked.old_object)?);
    let request = Request {
        uid: asked.uid,
        kind: GroupVersionKind { group: asked.kind.group, version: asked.kind.version, kind: asked.kind.kind },
        resource: asked.resource,
        sub_resource: asked.sub_resource,
        name: asked.name,
        namespace: asked.namespace,
        operation: asked.operation,
        user,
        object,
        old_object,
        dry_run: asked.dry_run,
    };
    Ok(Decoded { request, memory })
}

/// The parts of an object that are kept, as text.
struct Object<'a> {
    fields: Fields<'a>,
    metadata: Fields<'a>,
    /// Maps of which the keys are kept, and what these take.
    data: Map<String, Value>,
    data_memory: usize,
}

impl<'a> Object<'a> {
    fn pick(object: &'a RawValue, kept: &'static [&'static str]) -> serde_json::Result<Self> {
        let pick =
            |object: &'a RawValue, kept| Pick(kept).deserialize(&mut serde_json::Deserializer::from_str(object.get()));
        let mut fields = pick(object, kept)?;
        let metadata = fields.remove("metadata").map(|metadata| pick(metadata, KEPT_OF_METADATA)).transpose()?;
        let (mut data, mut data_memory) = (Map::new(), 0);
        // Other kinds may have anything under these names.
        let maps = pick(object, KEYS_KEPT)?.into_iter().filter(|(_, text)| text.get().starts_with('{'));
        for (name, text) in maps {
            // All but the values' own text, which isn't kept.
            data_memory += memory::of_text(text.get()) - text.get().len();
            if data_memory > KEPT_MEMORY {
                break;
            }
            let keys = keys(text.get())?;
            data_memory += keys.keys().map(String::len).sum::<usize>();
            data.insert(name.to_owned(), keys.into());
        }
        Ok(Self { fields, metadata: metadata.unwrap_or_default(), data, data_memory })
    }

    fn memory(&self) -> usize {
        let parts = self.fields.values().chain(self.metadata.values());
        parts.map(|text| memory::of_text(text.get())).sum::<usize>() + self.data_memory
    }

    fn parse(&self) -> serde_json::Result<Value> {
        let parse = |fields: &Fields<'_>| -> serde_json::Result<Map<String, Value>> {
            fields.iter().map(|(name, text)| Ok(((*name).to_owned(), serde_json::from_str(text.get())?))).collect()
        };
        let mut object = parse(&self.fields)?;
        object.insert("metadata".into(), parse(&self.metadata)?.into());
        object.extend(self.data.clone());
        Ok(object.into())
    }
}

/// The keys of a map, as long as keys of data may be.
fn keys(json: &str) -> serde_json::Result<Map<String, Value>> {
    const LONGEST: usize = 253;
    #[allow(clippy::zero_sized_map_values)] // It is a map in the text.
    let keys: BTreeMap<String, IgnoredAny> = serde_json::from_str(json)?;
    Ok(keys.into_keys().filter(|key| key.len() <= LONGEST).map(|key| (key, Value::Null)).collect())
}

type Fields<'a> = BTreeMap<&'static str, &'a RawValue>;

/// Takes the fields of these names out of an object, as text.
struct Pick(&'static [&'static str]);

impl<'de> DeserializeSeed<'de> for Pick {
    type Value = Fields<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Pick {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Fields::new();
        while let Some(key) = map.next_key::<String>()? {
            if let Some(name) = self.0.iter().find(|name| **name == key) {
                fields.insert(name, map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(fields)
    }
}

/// What is wrong and where. The parser's own message may quote the text, which may be secret.
fn place(error: &serde_json::Error) -> String {
    let what = match error.classify() {
        serde_json::error::Category::Eof => "it ends too early",
        serde_json::error::Category::Syntax => "no JSON",
        serde_json::error::Category::Data => "a field is missing or of another type",
        serde_json::error::Category::Io => "unreadable",
    };
    format!("{what}, line {} column {}", error.line(), error.column())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    api_version: String,
    kind: String,
    #[serde(borrow)]
    request: Option<Asked<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Asked<'a> {
    uid: String,
    kind: AskedKind,
    resource: GroupVersionResource,
    #[serde(default, deserialize_with = "unless_empty")]
    sub_resource: Option<String>,
    #[serde(default, deserialize_with = "unless_empty")]
    name: Option<String>,
    #[serde(default, deserialize_with = "unless_empty")]
    namespace: Option<String>,
    operation: Operation,
    #[serde(borrow, default)]
    user_info: UserInfo<'a>,
    #[serde(borrow)]
    object: Option<&'a RawValue>,
    #[serde(borrow)]
    old_object: Option<&'a RawValue>,
    #[serde(default)]
    dry_run: bool,
}

impl Asked<'_> {
    /// Whether all that it names could be: names come to stand in URLs, logs and answers, and anybody may send some.
    fn check(&self) -> Result<(), &'static str> {
        let AskedKind { group, version, kind } = &self.kind;
        let resource = &self.resource;
        let words = [&*self.uid, group, version, kind, &resource.group, &resource.version, &resource.resource];
        if words.into_iter().chain(self.sub_resource.as_deref()).any(|word| word.len() > WORD_LENGTH) {
            return Err("a uid, kind or resource that is too long");
        }
        if [&self.user_info.username].into_iter().chain(&self.user_info.uid).any(|name| name.len() > USER_NAME_LENGTH) {
            return Err("a user whose name is too long");
        }
        let names_namespace = resource.group.is_empty() && &*resource.resource == "namespaces";
        let mut namespaces = self.namespace.iter().chain(self.name.iter().filter(|_| names_namespace));
        if namespaces.any(|name| syntax::dns_label(name).is_err()) {
            return Err("a namespace's name that can't be one");
        }
        if !self.name.iter().all(|name| is_name(name)) {
            return Err("a name that can't be one");
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct AskedKind {
    #[serde(default)]
    group: Box<str>,
    version: Box<str>,
    kind: Box<str>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct UserInfo<'a> {
    username: String,
    uid: Option<String>,
    #[serde(borrow)]
    groups: Option<&'a RawValue>,
    #[serde(borrow)]
    extra: Option<&'a RawValue>,
}

impl UserInfo<'_> {
    fn memory(&self) -> usize {
        [self.groups, self.extra].into_iter().flatten().map(|text| memory::of_text(text.get())).sum()
    }

    fn parse(self, whole: bool) -> serde_json::Result<User> {
        let name = self.username;
        if !whole {
            return Ok(User { name, ..User::default() });
        }
        let groups = self.groups.map(|text| serde_json::from_str(text.get())).transpose()?;
        let extra: Option<BTreeMap<_, Option<_>>> =
            self.extra.map(|text| serde_json::from_str(text.get())).transpose()?;
        let extra = extra.into_iter().flatten().map(|(key, values)| (key, values.unwrap_or_default())).collect();
        Ok(User { name, uid: self.uid.unwrap_or_default(), groups: groups.unwrap_or_default(), extra })
    }
}

fn unless_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.filter(|text| !text.is_empty()))
}

/// `request.uid`, out of a body that goes wrong elsewhere, even if it goes wrong further on.
pub(super) fn find_uid(body: &[u8]) -> Option<String> {
    let mut found = None;
    let search = Search { path: &["request", "uid"], found: &mut found };
    // An error only means that reading stopped; what had been found by then counts.
    let _stopped = search.deserialize(&mut serde_json::Deserializer::from_slice(body));
    found.filter(|uid| uid.len() <= WORD_LENGTH)
}

/// Notes the string at `path` as it passes by.
struct Search<'a> {
    path: &'a [&'static str],
    found: &'a mut Option<String>,
}

impl<'de> DeserializeSeed<'de> for Search<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.path.is_empty() {
            *self.found = Some(String::deserialize(deserializer)?);
            return Ok(());
        }
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Search<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((next, path)) = self.path.split_first() else { return Ok(()) };
        while let Some(key) = map.next_key::<String>()? {
            if key == *next {
                map.next_value_seed(Search { path, found: self.found })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use serde_json::json;

    use super::*;
    use crate::review::{bad_request, encode_unread};

    fn review() -> Value {
        json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u-1", "kind": {"group": "", "version": "v1", "kind": "Secret"},
                "resource": {"group": "", "version": "v1", "resource": "secrets"}, "subResource": "status",
                "requestKind": {"group": "", "version": "v1", "kind": "Secret"}, "name": "n", "namespace": "ns",
                "operation": "UPDATE", "userInfo": {"username": "ann", "groups": ["g"], "extra": {"k": ["v"]}},
                "object": {
                    "metadata": {"name": "n", "managedFields": [{"manager": "m"}]}, "type": "t",
                    "data": {"k": "c2VjcmV0"}, "spec": {},
                },
                "oldObject": {"metadata": {"name": "n"}}, "dryRun": true, "options": {"kind": "UpdateOptions"},
            },
        })
    }

    #[track_caller]
    fn decoded(review: &Value) -> Request {
        decode(review.to_string().as_bytes()).unwrap().request
    }

    #[test]
    fn decode_reads_every_field() {
        let request = decoded(&review());
        assert_eq!(request.uid, "u-1");
        assert_eq!(request.kind, GroupVersionKind::parse("v1", "Secret").unwrap());
        assert_eq!(&*request.resource.resource, "secrets");
        assert_eq!(request.sub_resource.as_deref(), Some("status"));
        assert_eq!((request.name.as_deref(), request.namespace.as_deref()), (Some("n"), Some("ns")));
        assert_eq!((request.operation, request.dry_run), (Operation::Update, true));
        assert_eq!(request.user, User { name: "ann".into(), ..User::default() });
        assert_eq!(request.object, Some(json!({"metadata": {"name": "n"}, "type": "t", "data": {"k": null}})));
        assert_eq!(request.old_object, Some(json!({"metadata": {"name": "n"}})));
    }

    #[test]
    fn a_name_that_is_yet_to_be_made_up_is_none() {
        let mut review = review();
        let request = review["request"].as_object_mut().unwrap();
        for key in ["name", "namespace", "subResource", "dryRun", "oldObject", "userInfo"] {
            request.remove(key);
        }
        request.insert("object".into(), json!({"metadata": {"generateName": "n-"}}));
        request.insert("namespace".into(), "".into());
        request.insert("oldObject".into(), Value::Null);
        let request = decoded(&review);
        assert_eq!((&request.name, &request.namespace, request.generate_name()), (&None, &None, Some("n-")));
        assert!(request.old_object.is_none() && !request.dry_run && request.user.name.is_empty());
    }

    #[test]
    fn all_is_kept_of_who_writes_one_of_mimeos_own() {
        let mut review = review();
        review["request"]["kind"]["group"] = "mimeo.dev".into();
        review["request"]["userInfo"]["uid"] = "u-7".into();
        let user = User {
            name: "ann".into(),
            uid: "u-7".into(),
            groups: vec!["g".into()],
            extra: [("k".into(), vec!["v".into()])].into(),
        };
        assert_eq!(decoded(&review).user, user);
        for (field, value) in [("groups", json!(null)), ("extra", json!(null)), ("extra", json!({"k": null}))] {
            let mut review = review.clone();
            review["request"]["userInfo"][field] = value;
            assert_eq!(decoded(&review).user.name, "ann");
        }
        let many: Vec<_> = (0..10_000).map(|n| format!("group-{n}")).collect();
        review["request"]["userInfo"]["groups"] = json!(many);
        let refused = decode(review.to_string().as_bytes()).unwrap_err();
        assert!(refused.to_string().ends_with("a user with too many groups"), "{refused}");
        review["request"]["kind"]["group"] = "".into();
        assert!(decoded(&review).user.groups.is_empty(), "nobody else's groups are looked at");
    }

    #[test]
    fn what_cannot_be_a_name_is_no_review() {
        let resource = json!({"group": "", "version": "v1", "resource": "namespaces"});
        let too_long = json!("n".repeat(5_000));
        for (field, bad) in [
            ("namespace", json!("mallory/configmaps/mallory")),
            ("namespace", json!("..")),
            ("namespace", json!("a.b")),
            ("namespace", json!("a?b")),
            ("namespace", json!("a%2fb")),
            ("namespace", json!("n".repeat(64))),
            ("name", json!("kube-system/secrets/x")),
            ("name", json!(".")),
            ("name", json!("..")),
            ("name", json!("a%2fb")),
            ("name", json!("a\nb")),
            ("name", too_long.clone()),
            ("uid", too_long.clone()),
            ("subResource", too_long.clone()),
            ("kind", json!({"group": too_long, "version": "v1", "kind": "Secret"})),
            ("resource", json!({"group": "", "version": "v1", "resource": too_long})),
            ("userInfo", json!({"username": too_long})),
            ("userInfo", json!({"username": "ann", "uid": too_long})),
        ] {
            let mut review = review();
            review["request"][field] = bad.clone();
            let refused = decode(review.to_string().as_bytes()).expect_err(field);
            assert!(refused.why.contains("can't be one") || refused.why.contains("too long"), "{field}: {refused}");
            let answer = encode_unread(review.to_string().as_bytes(), &bad_request(refused.to_string()));
            assert!(answer.len() < 1_000, "{field}");
        }
        for field in IDENTITY {
            let mut review = review();
            review["request"]["object"]["metadata"][field] = too_long.clone();
            assert!(decode(review.to_string().as_bytes()).is_err(), "{field}");
        }
        for (name, resource, good) in [
            (
                "system:node ä",
                json!({"group": "rbac.authorization.k8s.io", "version": "v1", "resource": "roles"}),
                true,
            ),
            (
                &*"n".repeat(300),
                json!({"group": "rbac.authorization.k8s.io", "version": "v1", "resource": "roles"}),
                true,
            ),
            ("a.b", json!({"group": "example.com", "version": "v1", "resource": "namespaces"}), true),
            ("a.b", resource.clone(), false),
            ("team-a", resource, true),
        ] {
            let mut review = review();
            review["request"]["name"] = name.into();
            review["request"]["resource"] = resource;
            assert_eq!(decode(review.to_string().as_bytes()).is_ok(), good, "{name}");
        }
    }

    #[test]
    fn debug_shows_no_object() {
        let shown = format!("{:?}", decoded(&review()));
        assert!(shown.contains("u-1") && !shown.contains("c2VjcmV0"), "{shown}");
    }

    #[test]
    fn the_uid_is_found_in_what_cannot_be_decoded() {
        let whole = review().to_string();
        let change = |pointer: &str, value: Value| {
            let mut review = review();
            *review.pointer_mut(pointer).unwrap() = value;
            review.to_string()
        };
        let uid_first = r#"{"request":{"uid":"u-1","object":{"data":"c2VjcmV0"#;
        for (body, uid, why) in [
            (whole[..whole.len() - 1].to_owned(), Some("u-1"), "it ends too early, line 1"),
            (uid_first.to_owned(), Some("u-1"), "it ends too early"),
            (format!("{uid_first}\u{1}"), Some("u-1"), "no JSON"),
            (change("/apiVersion", json!("admission.k8s.io/v1beta1")), Some("u-1"), "another apiVersion"),
            (change("/kind", json!("Secret")), Some("u-1"), "another apiVersion"),
            (change("/request/operation", json!("c2VjcmV0")), Some("u-1"), "a field is missing"),
            (change("/request/dryRun", json!("c2VjcmV0")), Some("u-1"), "a field is missing"),
            (
                change("/request/object/metadata/name", json!("DEEP")).replace("\"DEEP\"", &deep(200)),
                Some("u-1"),
                "no JSON",
            ),
            (change("/request/object", json!([])), Some("u-1"), "a field is missing"),
            (change("/request/object/metadata", json!(7)), Some("u-1"), "a field is missing"),
            (change("/request/uid", json!(7)), None, "a field is missing"),
            (change("/request", Value::Null), None, "no request in it"),
            (String::new(), None, "it ends too early"),
            ("null".into(), None, "a field is missing"),
            ("[]".into(), None, "a field is missing"),
            ("<html>".into(), None, "no JSON"),
        ] {
            let undecodable = decode(body.as_bytes()).expect_err(&body);
            assert!(undecodable.why.starts_with(why), "{body}: {undecodable}");
            assert!(!undecodable.to_string().contains("c2VjcmV0"), "{undecodable}");
            let answer: Value =
                serde_json::from_slice(&encode_unread(body.as_bytes(), &bad_request(undecodable.to_string()))).unwrap();
            assert_eq!(answer["response"]["uid"], uid.unwrap_or_default());
            assert_eq!(
                (&answer["response"]["allowed"], &answer["response"]["status"]["code"]),
                (&json!(false), &json!(400))
            );
        }
    }

    fn deep(levels: usize) -> String {
        "[".repeat(levels) + &"]".repeat(levels)
    }

    /// A review of some 7 MiB with this many values somewhere in its object.
    fn flood(at: &str) -> String {
        let mut review = review();
        let (parent, last) = at.rsplit_once('/').unwrap();
        review.pointer_mut(&format!("/request/object{parent}")).unwrap()[last] = json!("FLOOD");
        review.to_string().replace("\"FLOOD\"", &format!("[{}0]", "0,".repeat(3_500_000)))
    }

    #[test]
    fn what_no_hook_looks_at_takes_no_memory() {
        for at in ["/data", "/spec", "/metadata/managedFields"] {
            let body = flood(at);
            let Decoded { request, memory } = decode(body.as_bytes()).unwrap();
            assert!(memory < 10_000 && request.object.unwrap().to_string().len() < 1_000, "{at}: {memory}");
        }
    }

    #[test]
    fn too_many_values_are_refused_before_they_take_memory() {
        for at in ["/type", "/metadata/labels", "/metadata/finalizers"] {
            let undecodable = decode(flood(at).as_bytes()).expect_err(at);
            assert_eq!(undecodable.why, "an object with too many values", "{at}");
        }
    }

    #[test]
    fn the_largest_rule_is_read_whole() {
        let namespaces: Vec<String> = (0..128).map(|number| format!("{number:0>63}")).collect();
        let target = json!({"namespaces": namespaces, "exclude": {"namespaces": namespaces}});
        let spec = json!({"sources": [], "targets": vec![target; 32]});
        let mut review = review();
        review["request"]["kind"] = json!({"group": "mimeo.dev", "version": "v1alpha1", "kind": "ClusterReplication"});
        review["request"]["object"]["spec"] = spec.clone();
        let Decoded { request, memory } = decode(review.to_string().as_bytes()).unwrap();
        assert!(request.object.unwrap()["spec"] == spec && memory < KEPT_MEMORY * 2 / 3, "{memory}");
    }

    #[test]
    fn memory_counts_what_is_outside_strings() {
        let quoted = r#""{[,\"{[,\\""#;
        assert_eq!(memory::of_text(quoted), quoted.len());
        let memory = memory::of_text;
        assert!(memory(r#"{"a":{"":0}}"#) > 2 * memory("{}") - 8 && memory("[0,0,0]") > memory("[0]") + 300);
    }
}
