//! Reads from the API server with the rights of the user: paged lists, metadata, single objects.
//!
//! An answer may hold a Secret. This file prints none, and an error says the status and nothing of
//! the content.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    fmt,
    rc::Rc,
    time::Duration,
};

use http::{
    Request,
    header::{ACCEPT, DATE},
};
use jiff::{SignedDuration, Timestamp, fmt::rfc2822};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta, Status};
use kube::{Client, client::Body};
use mimeo_api::names::API_VERSION;
use mimeo_model::{known::Decoded, meta::version};
use mimeo_runtime::{
    call::{JSON, METADATA, METADATA_LIST, encode},
    object::decode,
};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use tokio::time::Instant;

use crate::call::{Refusal, call, header};

/// Accept header for the list of kinds.
const DISCOVERY: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
/// Most requests at once.
pub(crate) const AT_ONCE: usize = 16;
/// Most attempts of one request that the API server can't answer now.
const ATTEMPTS: u32 = 5;
/// The pause after the first of them, if the API server names none. It doubles each time.
const PAUSE: Duration = Duration::from_millis(100);

/// Which part of an object is read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The metadata alone.
    Metadata,
    /// The whole object.
    Whole,
    /// All kinds of `/api` or `/apis`.
    Discovery,
}

/// The reason for a failed read. The text completes "can't read X: ".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReadError {
    /// The user lacks the permission.
    #[error("you have no permission ({0})")]
    Forbidden(String),
    /// The kind is served, and the object does not exist.
    #[error("it does not exist")]
    Absent,
    /// The API server doesn't serve the kind.
    #[error("the API server doesn't serve it")]
    NotServed,
    /// The list took so long that its snapshot has expired.
    #[error("the list took too long")]
    Expired,
    /// Any other error.
    #[error("{0}")]
    Failed(String),
}

/// Reads from the API server, and repeats what it can't answer now.
#[derive(Clone)]
pub(crate) struct Reader {
    client: Client,
    /// The longest time for one request.
    timeout: Duration,
    /// How far the clock of the API server is ahead of this machine's.
    ahead: Rc<Cell<SignedDuration>>,
    /// The answers so far, by path and form, if a second reading must see the same.
    kept: Option<Rc<Kept>>,
}

type Kept = RefCell<HashMap<(String, String), Result<Rc<[u8]>, ReadError>>>;

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct Page {
    metadata: ListMeta,
    /// The API server sends null for an empty list of metadata.
    items: Option<Vec<Box<RawValue>>>,
}

impl Reader {
    pub(crate) fn new(client: Client, timeout: Duration) -> Self {
        Self {
            client,
            timeout,
            ahead: Rc::default(),
            kept: None,
        }
    }

    /// A reader that sends each request once, and then has the same answer for it. Its memory grows
    /// with the answers.
    pub(crate) fn keeping(self) -> Self {
        let kept = Some(Rc::default());
        Self { kept, ..self }
    }

    /// The present time by the clock of the API server, as its last answer showed it.
    pub(crate) fn now(&self) -> Timestamp {
        let now = Timestamp::now();
        now.checked_add(self.ahead.get()).unwrap_or(now)
    }

    /// Reads the object at a path. `None`: it does not exist.
    pub(crate) async fn get(&self, path: &str, part: Part) -> Result<Option<Value>, ReadError> {
        let accept = match part {
            Part::Metadata => METADATA,
            Part::Whole => JSON,
            Part::Discovery => DISCOVERY,
        };
        match self.answer(path, accept).await {
            Ok(answer) => match decode::<Value>(&answer) {
                Some(Decoded::Whole(object) | Decoded::Part(object)) => Ok(Some(object)),
                None => Err(undecodable()),
            },
            Err(ReadError::Absent) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists objects page by page. If the list must begin again, `each` gets objects a second time.
    /// Returns the resourceVersion of the list.
    pub(crate) async fn list(
        &self,
        path: &str,
        selector: Option<&str>,
        part: Part,
        mut each: impl FnMut(Decoded<Value>),
    ) -> Result<u64, ReadError> {
        // A list of any length needs no more memory than one page. A single object may have 1 MiB.
        let (accept, limit) = match part {
            Part::Metadata => (METADATA_LIST, 500),
            Part::Whole | Part::Discovery => (JSON, 50),
        };
        let selector = selector.map_or_else(String::new, |selector| {
            format!("&labelSelector={}", encode(selector))
        });
        let (mut next, mut again) = (String::new(), true);
        loop {
            let resume = if next.is_empty() {
                String::new()
            } else {
                format!("&continue={}", encode(&next))
            };
            let page = format!("{path}?limit={limit}{selector}{resume}");
            let answer = match self.answer(&page, accept).await {
                Ok(answer) => answer,
                // The position is too old. One more attempt from the beginning.
                Err(ReadError::Expired) if again => {
                    (next, again) = (String::new(), false);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let page: Page = serde_json::from_slice(&answer).map_err(|_| undecodable())?;
            for item in page.items.iter().flatten() {
                if let Some(object) = decode(item.get().as_bytes()) {
                    each(object);
                }
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => next = token,
                None => return Ok(version(page.metadata.resource_version.as_deref())),
            }
        }
    }

    async fn answer(&self, path: &str, accept: &str) -> Result<Rc<[u8]>, ReadError> {
        let Some(kept) = &self.kept else {
            return self.attempts(path, accept).await.map(Into::into);
        };
        let key = (path.to_owned(), accept.to_owned());
        if let Some(answer) = kept.borrow().get(&key) {
            return answer.clone();
        }
        let answer: Result<Rc<[u8]>, ReadError> = self.attempts(path, accept).await.map(Into::into);
        kept.borrow_mut().insert(key, answer.clone());
        answer
    }

    /// Sends the request until the API server can answer it, for no longer than one request may
    /// take.
    async fn attempts(&self, path: &str, accept: &str) -> Result<Vec<u8>, ReadError> {
        let deadline = Instant::now() + self.timeout;
        let mut attempt = 0;
        loop {
            let request = Request::get(path)
                .header(ACCEPT, accept)
                .body(Body::empty());
            let refusal = match call(&self.client, self.timeout, request).await {
                Ok((headers, answer)) => {
                    let date = header(&headers, &DATE).and_then(|date| rfc2822::parse(date).ok());
                    if let Some(date) = date {
                        let ahead = date.timestamp().duration_since(Timestamp::now());
                        self.ahead.set(ahead);
                    }
                    return Ok(answer);
                }
                Err(refusal) => refusal,
            };
            let pause = refusal.retry_after.unwrap_or(PAUSE * 2_u32.pow(attempt));
            attempt += 1;
            let again = matches!(refusal.code, 429 | 500..) && attempt < ATTEMPTS;
            if !again || Instant::now() + pause >= deadline {
                return Err(refusal.into());
            }
            tokio::time::sleep(pause).await;
        }
    }
}

impl From<Refusal> for ReadError {
    fn from(refusal: Refusal) -> Self {
        let Status {
            details, reason, ..
        } = &*refusal.status;
        let name = details.as_ref().and_then(|details| details.name.as_deref());
        match refusal.code {
            0 => Self::Failed(refusal.message().into()),
            401 => Self::Failed("the API server doesn't accept your credentials (401)".into()),
            403 => Self::Forbidden(refusal.message().into()),
            404 if name.is_some_and(|name| !name.is_empty()) => Self::Absent,
            404 => Self::NotServed,
            410 => Self::Expired,
            code => {
                let reason = reason.as_deref().unwrap_or_default();
                Self::Failed(format!("the API server answered {code} {reason}"))
            }
        }
    }
}

/// The path of objects of one of Mimeo's kinds.
pub(crate) fn own_path(namespace: Option<&str>, plural: &str, name: Option<&str>) -> String {
    let part = |before: &str, part: Option<&str>| {
        part.map_or_else(String::new, |part| format!("{before}{}", encode(part)))
    };
    let (namespace, name) = (part("/namespaces/", namespace), part("/", name));
    format!("/apis/{API_VERSION}{namespace}/{plural}{name}")
}

/// The metadata of an object.
pub(crate) fn metadata(object: &Value) -> Option<ObjectMeta> {
    serde_json::from_value(object["metadata"].clone()).ok()
}

/// The text at a JSON pointer, or nothing.
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

pub(crate) fn undecodable() -> ReadError {
    ReadError::Failed("the answer can't be decoded".into())
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
    };

    use kube::Config;
    use mimeo_runtime::client::Clients;

    use super::*;

    /// A server that gives these answers, one for each connection.
    fn reader(answers: &'static [&'static str]) -> Reader {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().expect("a connection");
                let _read = stream.read(&mut [0; 4096]);
                _ = write!(stream, "HTTP/1.1 {answer}");
            }
        });
        let config = Config::new(format!("http://{address}").parse().expect("a URL"));
        let client = Clients::new(&config).expect("a client").requests;
        Reader::new(client, Duration::from_secs(20))
    }

    const BUSY: &str =
        "429 Busy\r\nRetry-After: 0\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    const FOUND: &str = "200 OK\r\nDate: Tue, 01 Jan 2030 00:00:00 GMT\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";

    #[tokio::test]
    async fn a_busy_api_server_is_asked_again_and_no_more_than_five_times() {
        let reader = reader(&[BUSY, BUSY, FOUND]).keeping();
        let found = reader.get("/a", Part::Whole).await;
        assert_eq!(found, Ok(Some(serde_json::json!({}))));
        // The server is gone by now.
        assert_eq!(reader.get("/a", Part::Whole).await, found);
        assert_eq!(reader.now().strftime("%Y").to_string(), "2030");
        let busy = self::reader(&[BUSY, BUSY, BUSY, BUSY, BUSY, FOUND]);
        let error = busy.get("/a", Part::Whole).await.expect_err("it is busy");
        assert!(error.to_string().contains("429"), "{error}");
    }
}
