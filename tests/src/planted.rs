//! What is planted in Secrets, and where it must not come up.
//!
//! Every value that a test's client writes into a Secret begins with [`MARK`]. The client puts it
//! there, and takes it away again where Secrets are read, so that no test has to know and none can
//! forget it. All else that a client is answered is searched for it, refusals and warnings among
//! it, and so is what the programs say while they run and when they end ([`crate::Pair`]). What was
//! found fails the test whose scene ends next.
//!
//! The same goes for the checksums that Secrets' copies carry, as far as a client has read them:
//! whoever has one can try what the content is.

use std::{
    collections::BTreeSet,
    fmt::Display,
    future::Future,
    pin::Pin,
    sync::{LazyLock, Mutex, PoisonError},
    task::{Context, Poll},
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use futures::FutureExt as _;
use http::{Request, Response, header::WARNING};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use k8s_openapi::ByteString;
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, DynBody},
};
use serde_json::{Value, json};
use tower::{BoxError, Layer, Service};

/// What values begin with. A part of an object's name that the API server takes, so that a test can
/// have it told.
pub const MARK: &str = "planted7f3a9c";

/// How much of a line is shown.
const SHOWN: usize = 400;

static FOUND: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Those of Secrets that were read.
static CHECKSUMS: Mutex<BTreeSet<Vec<u8>>> = Mutex::new(BTreeSet::new());

/// The length of a checksum, in hexadecimal digits.
const CHECKSUM: usize = 32;

/// The mark as it may come up: as text, in base64 wherever in what is encoded it begins, as
/// numbers.
static FORMS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let decimal: Vec<String> = MARK.bytes().map(|byte| byte.to_string()).collect();
    let hex = MARK
        .bytes()
        .map(|byte| format!("{byte:02x}"))
        .collect::<Vec<_>>()
        .concat();
    let base64 = (0..3).map(|before: usize| {
        let bytes = [vec![0; before], MARK.as_bytes().to_vec()].concat();
        // Letters of six bits each: without those that share some with what is before or behind.
        let (first, last) = ((before * 8).div_ceil(6), bytes.len() * 8 / 6);
        encoded(&bytes)[first..last].to_owned()
    });
    base64
        .chain([MARK.to_owned(), decimal.join(", "), hex])
        .collect()
});

fn encoded(bytes: &[u8]) -> String {
    json!(ByteString(bytes.to_vec()))
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// A Secret's value as a test wrote it.
pub(crate) fn plain(value: &[u8]) -> String {
    String::from_utf8_lossy(&unplant(value)).into_owned()
}

/// Whether a planted value is in what was told, in any form, or in the patch of it, if it is a
/// review's answer with one.
pub fn is_in(told: &str) -> bool {
    has(told) || patch_of(told).is_some_and(|patch| has(&patch))
}

fn has(told: &str) -> bool {
    FORMS.iter().any(|form| told.contains(form)) || has_checksum(told)
}

/// Looks up each run of digits, instead of searching for each checksum: logs are long, and
/// checksums are many. Goes on behind the last byte that is no digit, so that it reads few of the
/// bytes.
fn has_checksum(told: &str) -> bool {
    let known = CHECKSUMS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut rest = told.as_bytes();
    while let Some(window) = rest.get(..CHECKSUM) {
        let other = window.iter().rposition(|byte| !byte.is_ascii_hexdigit());
        if other.is_none() && known.contains(window) {
            return true;
        }
        rest = &rest[other.map_or(1, |at| at + 1)..];
    }
    false
}

/// Remembers each line of what was told somewhere that has a planted value in it.
pub fn look(place: impl Display, told: &str) {
    if !has(told) {
        return;
    }
    let lines = told.lines().filter(|line| has(line));
    let found =
        lines.map(|line| format!("{place}: {}", line.chars().take(SHOWN).collect::<String>()));
    FOUND
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .extend(found);
}

/// Fails the test if a planted value has come up.
///
/// # Panics
/// Then; unless the test fails already: then it only says so.
#[expect(
    clippy::panic,
    reason = "it is called by what ends, which can fail a test in no other way"
)]
pub(crate) fn raise() {
    let found = std::mem::take(&mut *FOUND.lock().unwrap_or_else(PoisonError::into_inner));
    if found.is_empty() {
        return;
    }
    let told = format!(
        "what is in Secrets has come up {} times: {found:#?}",
        found.len()
    );
    if std::thread::panicking() {
        eprintln!("{told}");
    } else {
        panic!("{told}");
    }
}

/// A client that plants what it writes and looks at what it is answered.
///
/// # Errors
/// As that of making any client.
pub fn client(config: Config) -> Result<Client> {
    Ok(ClientBuilder::try_from(config)
        .context("failed to make a client")?
        .with_layer(&Planting)
        .build())
}

struct Planting;

impl<S> Layer<S> for Planting {
    type Service = Planter<S>;

    fn layer(&self, inner: S) -> Planter<S> {
        Planter(inner)
    }
}

struct Planter<S>(S);

type Answered = UnsyncBoxBody<Bytes, BoxError>;

impl<S> Service<Request<Body>> for Planter<S>
where
    S: Service<Request<Body>, Response = Response<Box<DynBody>>, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<Answered>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Answered>, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let (path, query) = (
            parts.uri.path().to_owned(),
            parts.uri.query().unwrap_or_default().to_owned(),
        );
        let secrets = is_of_secrets(&path);
        // What is sent is in memory: nobody has to wait for it.
        let sent: Result<_, BoxError> = match body.collect_bytes().now_or_never() {
            Some(bytes) => bytes.map_err(Into::into),
            None => Err("a test's request has a body that isn't in memory".into()),
        };
        let sent = sent.map(|bytes| {
            if secrets {
                rewritten(&bytes, plant)
            } else {
                bytes.to_vec()
            }
        });
        let request = sent.map(|bytes| Request::from_parts(parts, Body::from(bytes)));
        let answer = request.map(|request| self.0.call(request));
        Box::pin(async move {
            let (parts, body) = answer?.await?.into_parts();
            for warning in parts.headers.get_all(WARNING) {
                look(
                    format!("a warning of {path}"),
                    &String::from_utf8_lossy(warning.as_bytes()),
                );
            }
            // A watch has no end that one could wait for.
            if query.contains("watch=") {
                return Ok(Response::from_parts(parts, body.boxed_unsync()));
            }
            let mut bytes = body.collect().await?.to_bytes();
            if secrets && parts.status.is_success() {
                CHECKSUMS
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .extend(checksums(&bytes));
                bytes = rewritten(&bytes, unplant).into();
            } else if !path.starts_with("/mutate/objects") {
                // Its patches are for the API server alone, and have what they rewrite.
                look_at_answer(&path, &bytes);
            }
            Ok(Response::from_parts(
                parts,
                Full::new(bytes).map_err(Into::into).boxed_unsync(),
            ))
        })
    }
}

/// Whether it is a path of Secrets: of one, of those of a namespace, of all.
fn is_of_secrets(path: &str) -> bool {
    let mut parts = path.split('/').skip(1);
    let core = parts.next() == Some("api") && parts.next() == Some("v1");
    let first = parts.next();
    let resource = if first == Some("namespaces") {
        parts.nth(1)
    } else {
        first
    };
    core && resource == Some("secrets")
}

/// The checksums that copies in an answer of the API server's carry.
fn checksums(answer: &[u8]) -> Vec<Vec<u8>> {
    let text = String::from_utf8_lossy(answer);
    let values = text
        .split("\"mimeo.dev/checksum\":\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next());
    // Anybody may write something else there, which comes up elsewhere, too.
    let checksum = |value: &&str| {
        value.len() == CHECKSUM && value.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    values
        .filter(checksum)
        .map(|value| value.as_bytes().to_vec())
        .collect()
}

/// Looks at a body, and if it is a review's, at the patch in it, too.
fn look_at_answer(path: &str, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    look(format!("an answer of {path}"), &text);
    if let Some(patch) = patch_of(&text) {
        look(format!("a patch of {path}"), &patch);
    }
}

/// The patch of a review's answer, if it is one and has one.
pub fn patch_of(answer: &str) -> Option<String> {
    let answer = answer
        .contains("\"patch\"")
        .then(|| serde_json::from_str::<Value>(answer).ok())
        .flatten()?;
    let patch = answer.pointer("/response/patch").and_then(decoded)?;
    Some(String::from_utf8_lossy(&patch).into_owned())
}

fn decoded(text: &Value) -> Option<Vec<u8>> {
    // Null would be no bytes.
    text.as_str()?;
    serde_json::from_value::<ByteString>(text.clone())
        .ok()
        .map(|bytes| bytes.0)
}

/// A body with its values changed; as it is, if it is no JSON.
fn rewritten(body: &[u8], change: fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let Ok(mut value) = serde_json::from_slice::<Value>(body) else {
        return body.to_vec();
    };
    match &mut value {
        Value::Array(operations) => operations
            .iter_mut()
            .for_each(|operation| rewrite_operation(operation, change)),
        object => {
            let items = object.get_mut("items").and_then(Value::as_array_mut);
            items
                .into_iter()
                .flatten()
                .for_each(|item| rewrite_secret(item, change));
            rewrite_secret(object, change);
        }
    }
    value.to_string().into_bytes()
}

/// A JSON patch may set one value, all, or the whole Secret.
fn rewrite_operation(operation: &mut Value, change: fn(&[u8]) -> Vec<u8>) {
    let path = operation["path"].as_str().unwrap_or_default().to_owned();
    let Some(value) = operation.get_mut("value") else {
        return;
    };
    match path.split('/').collect::<Vec<_>>()[..] {
        [""] => rewrite_secret(value, change),
        ["", "data"] => value
            .as_object_mut()
            .into_iter()
            .flatten()
            .for_each(|(_, one)| rewrite_data(one, change)),
        ["", "data", _] => rewrite_data(value, change),
        _ => {}
    }
}

fn rewrite_secret(secret: &mut Value, change: fn(&[u8]) -> Vec<u8>) {
    for (_, value) in secret
        .get_mut("data")
        .and_then(Value::as_object_mut)
        .into_iter()
        .flatten()
    {
        rewrite_data(value, change);
    }
    for (_, value) in secret
        .get_mut("stringData")
        .and_then(Value::as_object_mut)
        .into_iter()
        .flatten()
    {
        if let Some(text) = value.as_str() {
            *value = String::from_utf8_lossy(&change(text.as_bytes())).into();
        }
    }
}

/// What is no base64 is sent as it is: that is for the API server to refuse.
fn rewrite_data(value: &mut Value, change: fn(&[u8]) -> Vec<u8>) {
    if let Some(bytes) = decoded(value) {
        *value = encoded(&change(&bytes)).into();
    }
}

/// An object of JSON has the mark as its first key: the API server reads some values
/// (kubernetes.io/dockerconfigjson), and wants JSON.
fn plant(value: &[u8]) -> Vec<u8> {
    let value = unplant(value);
    match object(&value) {
        Some(b"}") => format!("{{\"{MARK}\":0}}").into_bytes(),
        Some(rest) => [format!("{{\"{MARK}\":0,").as_bytes(), rest].concat(),
        None => [MARK.as_bytes(), &value].concat(),
    }
}

/// What is behind the first brace, if it is an object of JSON.
fn object(value: &[u8]) -> Option<&[u8]> {
    serde_json::from_slice::<serde_json::Map<String, Value>>(value).ok()?;
    value.strip_prefix(b"{")
}

fn unplant(value: &[u8]) -> Vec<u8> {
    let first = format!("{{\"{MARK}\":0");
    match value.strip_prefix(first.as_bytes()) {
        Some(rest) => [b"{", rest.strip_prefix(b",").unwrap_or(rest)].concat(),
        None => value
            .strip_prefix(MARK.as_bytes())
            .unwrap_or(value)
            .to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_known_in_every_form_and_nothing_else_is() {
        let known = is_in;
        let value = plant(b"one");
        for before in 0..7 {
            let all = [vec![b'{'; before], value.clone(), vec![b'}'; before]].concat();
            assert!(known(&encoded(&all)), "in base64 behind {before} bytes");
            assert!(known(&format!("{all:?}")) && known(&String::from_utf8_lossy(&all)));
        }
        assert!(!known("one") && !known(&encoded(b"one")) && !known("planted") && !known(""));
        let answer =
            |patch: &[u8]| json!({"response": {"uid": "1", "patch": encoded(patch)}}).to_string();
        let patch = |value: &[u8]| {
            format!(
                r#"[{{"op":"add","path":"/data/a","value":"{}"}}]"#,
                encoded(value)
            )
        };
        assert!(
            known(&answer(patch(&value).as_bytes())) && !known(&answer(patch(b"one").as_bytes()))
        );
    }

    #[test]
    fn what_is_written_is_planted_once_and_read_as_it_was_written() {
        let written =
            |text: &str| String::from_utf8(rewritten(text.as_bytes(), plant)).unwrap_or_default();
        let read =
            |text: &str| String::from_utf8(rewritten(text.as_bytes(), unplant)).unwrap_or_default();
        let one = encoded(&plant(b"one"));
        for (sent, stored) in [
            (
                r#"{"data":{"a":"b25l","b":null}}"#,
                format!(r#"{{"data":{{"a":"{one}","b":null}}}}"#),
            ),
            (
                r#"{"stringData":{"a":"one"}}"#,
                format!(r#"{{"stringData":{{"a":"{MARK}one"}}}}"#),
            ),
            (
                r#"[{"op":"add","path":"/data/a","value":"b25l"},{"op":"remove","path":"/data"}]"#,
                format!(
                    r#"[{{"op":"add","path":"/data/a","value":"{one}"}},{{"op":"remove","path":"/data"}}]"#
                ),
            ),
            (
                r#"{"items":[{"data":{"a":"b25l"}}]}"#,
                format!(r#"{{"items":[{{"data":{{"a":"{one}"}}}}]}}"#),
            ),
            ("no JSON", "no JSON".to_owned()),
        ] {
            assert_eq!(written(sent), stored);
            assert_eq!(written(&stored), stored);
            assert_eq!(read(&stored), sent);
        }
    }

    #[test]
    fn an_object_of_json_stays_one() -> Result<(), serde_json::Error> {
        for text in [
            "{}",
            r#"{"auths":{"registry.example.com":{"auth":"b25l"}}}"#,
            r#"{ "auths": {} }"#,
        ] {
            let planted = plant(text.as_bytes());
            assert!(has(&String::from_utf8_lossy(&planted)), "{text}");
            let mut read: Value = serde_json::from_slice(&planted)?;
            read.as_object_mut().and_then(|object| object.remove(MARK));
            assert_eq!(read, serde_json::from_str::<Value>(text)?);
            assert_eq!(plant(&planted), planted);
            assert_eq!(unplant(&planted), text.as_bytes());
        }
        // Whatever else it is, it is text.
        for text in ["[]", "{", " {}", "1"] {
            assert_eq!(
                plant(text.as_bytes()),
                [MARK.as_bytes(), text.as_bytes()].concat()
            );
        }
        Ok(())
    }

    #[test]
    fn checksums_of_copies_are_known() {
        let checksum = "0123456789abcdef0123456789abcdef";
        let copy = |value: &str| {
            let entry = json!({"fieldsV1": {"f:metadata": {"f:annotations": {"f:mimeo.dev/checksum": {}}}}});
            json!({"metadata": {"annotations": {"mimeo.dev/checksum": value}, "managedFields": [entry]}})
        };
        let list = json!({"items": [copy("forged"), copy(checksum), {"metadata": {}}]});
        for (answer, want) in [
            (list, &[checksum][..]),
            (copy(checksum), &[checksum]),
            (copy("x"), &[]),
            (json!({}), &[]),
        ] {
            let want: Vec<&[u8]> = want.iter().map(|checksum| checksum.as_bytes()).collect();
            assert_eq!(checksums(answer.to_string().as_bytes()), want);
        }
    }

    #[test]
    fn secrets_are_known_by_their_path() {
        for path in [
            "/api/v1/secrets",
            "/api/v1/namespaces/a/secrets",
            "/api/v1/namespaces/a/secrets/b",
        ] {
            assert!(is_of_secrets(path), "{path}");
        }
        for path in [
            "/api/v1/namespaces/secrets",
            "/api/v1/namespaces/secrets/configmaps/secrets",
            "/apis/v1/secrets",
        ] {
            assert!(!is_of_secrets(path), "{path}");
        }
    }
}
