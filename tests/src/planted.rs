//! Plants a marker in Secrets, and finds the places where Secrets' data leaks.
//!
//! Every value that a test's client writes into a Secret begins with [`MARK`]. The client adds it
//! on writes and removes it on reads of Secrets, so no test has to know about it and none can
//! forget it. Every other answer to a client is searched for it, including refusals and warnings.
//! So is the output of the programs, while they run and when they end ([`crate::Pair`]). A finding
//! fails the test whose scene ends next.
//!
//! The same applies to the checksums on copies of Secrets that a client has read. With a checksum
//! one can guess the content and verify the guess.

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

/// The beginning of every planted value. The API server accepts it as part of an object's name, so
/// a test can also have it printed.
pub const MARK: &str = "planted7f3a9c";

/// Number of characters of a line that messages show.
const SHOWN: usize = 400;

static FOUND: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Checksums of copies of Secrets that a client has read.
static CHECKSUMS: Mutex<BTreeSet<Vec<u8>>> = Mutex::new(BTreeSet::new());

/// The length of a checksum, in hexadecimal digits.
const CHECKSUM: usize = 32;

/// The forms of the marker to search for: as text, as numbers, and in base64 at each of the three
/// offsets.
static FORMS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let decimal: Vec<String> = MARK.bytes().map(|byte| byte.to_string()).collect();
    let hex = MARK
        .bytes()
        .map(|byte| format!("{byte:02x}"))
        .collect::<Vec<_>>()
        .concat();
    let base64 = (0..3).map(|before: usize| {
        let bytes = [vec![0; before], MARK.as_bytes().to_vec()].concat();
        // Base64 letters carry six bits each. Letters that share bits with the bytes before or
        // after are left out.
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

/// A Secret's value as the test wrote it.
pub(crate) fn plain(value: &[u8]) -> String {
    String::from_utf8_lossy(&unplant(value)).into_owned()
}

/// True if the text has a planted value in any form. If the text is an answer to a review, its
/// patch is searched too.
pub fn is_in(told: &str) -> bool {
    has(told) || patch_of(told).is_some_and(|patch| has(&patch))
}

fn has(told: &str) -> bool {
    FORMS.iter().any(|form| told.contains(form)) || has_checksum(told)
}

/// Looks up each run of digits instead of searching for each checksum, because logs are long and
/// checksums are many. It continues after the last byte that is no digit, so it reads only few of
/// the bytes.
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

/// Remembers each line of the text that has a planted value. `place` says where the text comes
/// from.
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

/// Fails the test if a planted value has been found.
///
/// # Panics
/// A planted value has been found. If the test already fails, this only prints the finding.
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
        "the content of Secrets was found {} times: {found:#?}",
        found.len()
    );
    if std::thread::panicking() {
        eprintln!("{told}");
    } else {
        panic!("{told}");
    }
}

/// A client that plants a marker in its writes and searches all answers for it.
///
/// # Errors
/// The same as for any client.
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
        // The body is in memory, so collecting it never waits.
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
            // A watch does not end, so its body cannot be collected.
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
                // Patches of this hook go to the API server only. They contain the values that they
                // rewrite.
                look_at_answer(&path, &bytes);
            }
            Ok(Response::from_parts(
                parts,
                Full::new(bytes).map_err(Into::into).boxed_unsync(),
            ))
        })
    }
}

/// True if the path is of one Secret, of the Secrets of a namespace, or of all Secrets.
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

/// The checksums of copies in an answer of the API server.
fn checksums(answer: &[u8]) -> Vec<Vec<u8>> {
    let text = String::from_utf8_lossy(answer);
    let values = text
        .split("\"mimeo.dev/checksum\":\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next());
    // Any user may write another value there, and such a value may well appear elsewhere.
    let checksum = |value: &&str| {
        value.len() == CHECKSUM && value.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    values
        .filter(checksum)
        .map(|value| value.as_bytes().to_vec())
        .collect()
}

/// Searches an answer. If it is an answer to a review, searches its patch too.
fn look_at_answer(path: &str, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    look(format!("an answer of {path}"), &text);
    if let Some(patch) = patch_of(&text) {
        look(format!("a patch of {path}"), &patch);
    }
}

/// The patch in an answer to a review, if there is one.
pub fn patch_of(answer: &str) -> Option<String> {
    let answer = answer
        .contains("\"patch\"")
        .then(|| serde_json::from_str::<Value>(answer).ok())
        .flatten()?;
    let patch = answer.pointer("/response/patch").and_then(decoded)?;
    Some(String::from_utf8_lossy(&patch).into_owned())
}

fn decoded(text: &Value) -> Option<Vec<u8>> {
    // Null would decode to no bytes.
    text.as_str()?;
    serde_json::from_value::<ByteString>(text.clone())
        .ok()
        .map(|bytes| bytes.0)
}

/// Changes the values in a body. A body that is not JSON stays as it is.
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

/// A JSON patch may set one value, all values, or the whole Secret.
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

/// A value that is not base64 is sent as it is, so that the API server refuses it.
fn rewrite_data(value: &mut Value, change: fn(&[u8]) -> Vec<u8>) {
    if let Some(bytes) = decoded(value) {
        *value = encoded(&change(&bytes)).into();
    }
}

/// A JSON object gets the marker as its first key. The API server parses some values
/// (kubernetes.io/dockerconfigjson) and requires JSON.
fn plant(value: &[u8]) -> Vec<u8> {
    let value = unplant(value);
    match object(&value) {
        Some(b"}") => format!("{{\"{MARK}\":0}}").into_bytes(),
        Some(rest) => [format!("{{\"{MARK}\":0,").as_bytes(), rest].concat(),
        None => [MARK.as_bytes(), &value].concat(),
    }
}

/// The text after the first brace, if the value is a JSON object.
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
        // These are no JSON objects, so they are planted as text.
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
