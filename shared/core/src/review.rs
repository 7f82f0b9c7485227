//! Both ends of an admission review: bytes to a [`Request`], a [`Verdict`] to bytes. `admission.k8s.io/v1` only.
//!
//! What lies between is the caller's, and so are limits of size and time.

use std::fmt;

use json_patch::Patch;
use k8s_openapi::ByteString;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor},
};
use serde_json::{Value, json};

use crate::kind::GroupVersionKind;

/// `apiVersion` of the reviews that are understood and answered.
const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// Where the API server cuts one warning off, and where it stops passing them on; in characters.
const WARNING_LENGTH: usize = 256;
const WARNINGS_LENGTH: usize = 4096;

/// What the API server asks about. `Debug` leaves the objects out: they may be Secrets.
#[derive(Clone, PartialEq)]
pub struct Request {
    /// Identifies the review; the answer repeats it.
    pub uid: String,
    /// Kind of the object, in the version that the webhook's rule asks for.
    pub kind: GroupVersionKind,
    /// Resource, in that version.
    pub resource: GroupVersionResource,
    /// As in `status`, `finalize`.
    pub sub_resource: Option<String>,
    /// Name of the object. `None` while the API server has yet to make it up from [`Self::generate_name`].
    pub name: Option<String>,
    /// Namespace of the object; of a namespace it is the namespace itself.
    pub namespace: Option<String>,
    /// What is done.
    pub operation: Operation,
    /// Who does it.
    pub username: String,
    /// The groups they are in.
    pub groups: Vec<String>,
    /// The object as it will be; `None` on DELETE.
    pub object: Option<Value>,
    /// The object as it is stored; `None` on CREATE.
    pub old_object: Option<Value>,
    /// Nothing will be stored, so nothing else may be.
    pub dry_run: bool,
}

impl Request {
    /// `metadata.generateName` of the object.
    pub fn generate_name(&self) -> Option<&str> {
        let name = self.object.as_ref()?.pointer("/metadata/generateName")?.as_str()?;
        (!name.is_empty()).then_some(name)
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("uid", &self.uid)
            .field("kind", &self.kind)
            .field("resource", &self.resource)
            .field("sub_resource", &self.sub_resource)
            .field("name", &self.name)
            .field("namespace", &self.namespace)
            .field("operation", &self.operation)
            .field("username", &self.username)
            .field("dry_run", &self.dry_run)
            .finish_non_exhaustive()
    }
}

/// A resource in one version, as URLs and admission rules name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
pub struct GroupVersionResource {
    /// API group, empty for the core group.
    #[serde(default)]
    pub group: Box<str>,
    /// Version, as in `v1`.
    pub version: Box<str>,
    /// Plural, as in `pods`.
    pub resource: Box<str>,
}

/// What a request does to its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// It is new.
    Create,
    /// It is changed.
    Update,
    /// It is deleted.
    Delete,
    /// It is connected to, as by `exec`.
    Connect,
}

/// Not a review. Says where reading stopped, never what stood there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an AdmissionReview of {API_VERSION}: {why}")]
pub struct Undecodable {
    /// The review's uid, if that much could be read.
    pub uid: Option<String>,
    why: String,
}

impl Undecodable {
    /// Of a request whose body nobody has.
    pub fn unread(why: impl Into<String>) -> Self {
        Self { uid: None, why: why.into() }
    }

    /// The review that refuses the request and says why. A bare HTTP error would leave it to the failure policy.
    pub fn answer(&self) -> Vec<u8> {
        let verdict =
            Verdict::Deny { code: 400, reason: "BadRequest", message: self.to_string(), retry_after_seconds: None };
        encode(self.uid.as_deref().unwrap_or_default(), &verdict)
    }
}

/// Reads the body of an admission request.
pub fn decode(body: &[u8]) -> Result<Request, Undecodable> {
    let undecodable = |why| Undecodable { uid: find_uid(body), why };
    let review: Review = serde_json::from_slice(body).map_err(|error| undecodable(place(&error)))?;
    if (review.api_version.as_str(), review.kind.as_str()) != (API_VERSION, KIND) {
        return Err(undecodable("another apiVersion or kind".into()));
    }
    let asked = review.request.ok_or_else(|| undecodable("no request in it".into()))?;
    Ok(Request {
        uid: asked.uid,
        kind: GroupVersionKind { group: asked.kind.group, version: asked.kind.version, kind: asked.kind.kind },
        resource: asked.resource,
        sub_resource: asked.sub_resource,
        name: asked.name,
        namespace: asked.namespace,
        operation: asked.operation,
        username: asked.user_info.username,
        groups: asked.user_info.groups,
        object: asked.object,
        old_object: asked.old_object,
        dry_run: asked.dry_run,
    })
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
struct Review {
    api_version: String,
    kind: String,
    request: Option<Asked>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Asked {
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
    #[serde(default)]
    user_info: UserInfo,
    object: Option<Value>,
    old_object: Option<Value>,
    #[serde(default)]
    dry_run: bool,
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
struct UserInfo {
    username: String,
    groups: Vec<String>,
}

fn unless_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.filter(|text| !text.is_empty()))
}

/// `request.uid`, out of a body that goes wrong elsewhere, even if it goes wrong further on.
fn find_uid(body: &[u8]) -> Option<String> {
    let mut found = None;
    let search = Search { path: &["request", "uid"], found: &mut found };
    // An error only means that reading stopped; what had been found by then counts.
    let _stopped = search.deserialize(&mut serde_json::Deserializer::from_slice(body));
    found
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

/// The answer to a review.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// As it is.
    Allow {
        /// For the client, one sentence each.
        warnings: Vec<String>,
    },
    /// Changed. An empty patch allows.
    Patch {
        /// What to change.
        patch: Patch,
        /// For the client, one sentence each.
        warnings: Vec<String>,
    },
    /// Not at all, or not now.
    Deny {
        /// HTTP status of the answer to the client, 400 or above.
        code: u16,
        /// The word of the Kubernetes API for it, as in `Forbidden`, `TooManyRequests`.
        reason: &'static str,
        /// For people.
        message: String,
        /// When the client should come back, in seconds.
        retry_after_seconds: Option<u32>,
    },
}

impl Verdict {
    /// As it is, without a word.
    pub const ALLOW: Self = Self::Allow { warnings: Vec::new() };
}

/// The body that answers the review `uid`.
pub fn encode(uid: &str, verdict: &Verdict) -> Vec<u8> {
    let mut response = json!({"uid": uid, "allowed": !matches!(verdict, Verdict::Deny { .. })});
    match verdict {
        Verdict::Allow { warnings } => add_warnings(&mut response, warnings),
        Verdict::Patch { patch, warnings } => {
            add_patch(&mut response, patch);
            add_warnings(&mut response, warnings);
        }
        Verdict::Deny { code, reason, message, retry_after_seconds } => {
            response["status"] = json!({"status": "Failure", "code": code, "reason": reason, "message": message});
            if let Some(seconds) = retry_after_seconds {
                response["status"]["details"] = json!({"retryAfterSeconds": seconds});
            }
        }
    }
    json!({"apiVersion": API_VERSION, "kind": KIND, "response": response}).to_string().into_bytes()
}

fn add_patch(response: &mut Value, patch: &Patch) {
    if patch.0.is_empty() {
        return;
    }
    let bytes =
        serde_json::to_vec(patch).expect("a patch is made of JSON values and has no other map keys than strings");
    response["patchType"] = "JSONPatch".into();
    response["patch"] = json!(ByteString(bytes));
}

fn add_warnings(response: &mut Value, warnings: &[String]) {
    let warnings = fit_warnings(warnings);
    if !warnings.is_empty() {
        response["warnings"] = json!(warnings);
    }
}

/// The warnings in the shape and amount that the API server passes on. They become headers, so each is one line.
fn fit_warnings(warnings: &[String]) -> Vec<String> {
    let one_line =
        |text: &String| -> Vec<char> { text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect() };
    let mut left = WARNINGS_LENGTH;
    let fit = warnings.iter().map(one_line).map(|mut text| {
        if text.len() > WARNING_LENGTH {
            text.truncate(WARNING_LENGTH - 3);
            text.extend("...".chars());
        }
        text
    });
    let room = |text: &Vec<char>| {
        let rest = left.checked_sub(text.len());
        left = rest.unwrap_or_default();
        rest.is_some()
    };
    fit.filter(|text| !text.is_empty()).take_while(room).map(String::from_iter).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn review() -> Value {
        json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u-1", "kind": {"group": "", "version": "v1", "kind": "Secret"},
                "resource": {"group": "", "version": "v1", "resource": "secrets"}, "subResource": "status",
                "requestKind": {"group": "", "version": "v1", "kind": "Secret"}, "name": "n", "namespace": "ns",
                "operation": "UPDATE", "userInfo": {"username": "ann", "groups": ["g"], "extra": {"k": ["v"]}},
                "object": {"metadata": {"name": "n"}, "data": {"k": "c2VjcmV0"}},
                "oldObject": {"metadata": {"name": "n"}}, "dryRun": true, "options": {"kind": "UpdateOptions"},
            },
        })
    }

    #[track_caller]
    fn decoded(review: &Value) -> Request {
        decode(review.to_string().as_bytes()).unwrap()
    }

    fn answered(uid: &str, verdict: &Verdict) -> Value {
        serde_json::from_slice(&encode(uid, verdict)).unwrap()
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
        assert_eq!((request.username.as_str(), request.groups.as_slice()), ("ann", &["g".to_owned()][..]));
        assert!(request.object.is_some() && request.old_object.is_some());
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
        assert!(request.old_object.is_none() && !request.dry_run && request.username.is_empty());
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
                change("/request/object", serde_json::from_str(&deep(100)).unwrap()).replace(&deep(100), &deep(200)),
                Some("u-1"),
                "no JSON",
            ),
            (change("/request/uid", json!(7)), None, "a field is missing"),
            (change("/request", Value::Null), None, "no request in it"),
            (String::new(), None, "it ends too early"),
            ("null".into(), None, "a field is missing"),
            ("[]".into(), None, "a field is missing"),
            ("<html>".into(), None, "no JSON"),
        ] {
            let undecodable = decode(body.as_bytes()).expect_err(&body);
            assert_eq!(undecodable.uid.as_deref(), uid, "{body}");
            assert!(undecodable.why.starts_with(why), "{body}: {undecodable}");
            assert!(!undecodable.to_string().contains("c2VjcmV0"), "{undecodable}");
            let answer: Value = serde_json::from_slice(&undecodable.answer()).unwrap();
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

    #[test]
    fn encode_answers_in_the_servers_words() {
        let warnings = vec!["take care".to_owned()];
        let patch: Patch = serde_json::from_value(json!([{"op": "add", "path": "/a", "value": 1}])).unwrap();
        for (verdict, want) in [
            (Verdict::ALLOW, json!({"uid": "u", "allowed": true})),
            (
                Verdict::Allow { warnings: warnings.clone() },
                json!({"uid": "u", "allowed": true, "warnings": ["take care"]}),
            ),
            (
                Verdict::Patch { patch, warnings: vec![] },
                json!({
                    "uid": "u", "allowed": true, "patchType": "JSONPatch",
                    "patch": "W3sib3AiOiJhZGQiLCJwYXRoIjoiL2EiLCJ2YWx1ZSI6MX1d",
                }),
            ),
            (
                Verdict::Patch { patch: Patch::default(), warnings },
                json!({"uid": "u", "allowed": true, "warnings": ["take care"]}),
            ),
            (
                Verdict::Deny { code: 403, reason: "Forbidden", message: "no".into(), retry_after_seconds: None },
                json!({
                    "uid": "u", "allowed": false,
                    "status": {"status": "Failure", "code": 403, "reason": "Forbidden", "message": "no"},
                }),
            ),
            (
                Verdict::Deny {
                    code: 429,
                    reason: "TooManyRequests",
                    message: "later".into(),
                    retry_after_seconds: Some(1),
                },
                json!({
                    "uid": "u", "allowed": false,
                    "status": {
                        "status": "Failure", "code": 429, "reason": "TooManyRequests", "message": "later",
                        "details": {"retryAfterSeconds": 1},
                    },
                }),
            ),
        ] {
            let want = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": want});
            assert_eq!(answered("u", &verdict), want);
        }
    }

    #[test]
    fn warnings_fit_what_the_server_passes_on() {
        assert_eq!(fit_warnings(&["two\nlines".into(), String::new()]), ["two lines"]);
        let long = fit_warnings(&["ä".repeat(300)]);
        assert_eq!((long[0].chars().count(), long[0].ends_with("ä...")), (256, true));
        assert_eq!(fit_warnings(&vec!["x".repeat(256); 20]).len(), 16);
    }

    fn verdicts() -> impl Strategy<Value = Verdict> {
        let warnings = || prop::collection::vec(".{0,600}", 0..40);
        let patch = prop::collection::vec(("(/[a-z~]{0,3}){0,3}", ".{0,9}"), 0..3).prop_map(|operations| {
            let operation =
                |(path, value): (String, String)| json!({"op": "add", "path": path.replace('~', "~1"), "value": value});
            serde_json::from_value(operations.into_iter().map(operation).collect()).unwrap()
        });
        prop_oneof![
            warnings().prop_map(|warnings| Verdict::Allow { warnings }),
            (patch, warnings()).prop_map(|(patch, warnings)| Verdict::Patch { patch, warnings }),
            (400..600_u16, ".{0,99}", prop::option::of(0..9_u32)).prop_map(|(code, message, retry_after_seconds)| {
                Verdict::Deny { code, reason: "Forbidden", message, retry_after_seconds }
            }),
        ]
    }

    proptest! {
        #[test]
        fn every_verdict_becomes_a_valid_review(uid in ".{0,40}", verdict in verdicts()) {
            let review = answered(&uid, &verdict);
            let response = &review["response"];
            prop_assert_eq!(response["uid"].as_str(), Some(&*uid));
            prop_assert_eq!(response["allowed"].as_bool(), Some(!matches!(verdict, Verdict::Deny { .. })));
            let warnings: Vec<String> = serde_json::from_value(response.get("warnings").cloned().unwrap_or(json!([]))).unwrap();
            prop_assert!(warnings.iter().all(|text| text.chars().count() <= 256 && !text.contains(char::is_control)));
            prop_assert!(warnings.iter().map(|text| text.chars().count()).sum::<usize>() <= 4096);
            prop_assert_eq!(response.get("patch").is_some(), response.get("patchType").is_some());
            if let Verdict::Patch { patch, .. } = verdict && !patch.0.is_empty() {
                let ByteString(bytes) = serde_json::from_value(response["patch"].clone()).unwrap();
                prop_assert_eq!(serde_json::from_slice::<Patch>(&bytes).unwrap(), patch);
            }
        }
    }
}
