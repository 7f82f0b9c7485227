//! One watch of the API server that stays open. It lists by streaming, resumes after a break, and
//! lists again only when it must.
//!
//! The watch keeps no objects: each event goes to the sink as it arrives, and is dropped. This file
//! ensures that a broken watch is never reported as a deletion. `mimeo-engine` decides on the
//! effect of a break on copies.
//!
//! This is not kube-runtime's `watcher`, because callers need more than objects. Here an unserved
//! kind, an unreadable kind and an undecodable object each have an event of their own. Besides, the
//! silence of each watch is measured ([`Health`]).

mod health;
mod wire;

use std::{convert::Infallible, io, marker::PhantomData, sync::Arc, time::Duration};

use http::{Response, StatusCode};
use http_body_util::BodyExt;
use kube::{Client, api::ObjectMeta, client::Body};
use mimeo_model::{
    known::{Decoded, Known},
    meta,
    outcome::Unreadable,
};
use serde::{Deserialize, de::DeserializeOwned};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::io::StreamReader;
use tracing::{debug, info, warn};

pub use self::health::Health;
use self::{
    health::Pulse,
    wire::{Kind, Line, Refusal, next_line, object, whole},
};
use crate::{
    backoff::{Backoff, random},
    call::{self, CallError, encode},
    object::{Page, text},
};

/// The API server sends a bookmark about once a minute, so a watch that is silent for longer is
/// dead.
const SILENCE: Duration = Duration::from_secs(90);
/// How long the read of a named object may delay its listing.
const READ: Duration = Duration::from_secs(2);
/// Shortened by up to a half at random.
const FIRST_BACKOFF: Duration = Duration::from_millis(750);
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);
/// A kind is served again when its CRD or its server is installed. Other watches notice that, too.
const NOT_SERVED_BACKOFF: Duration = Duration::from_secs(5);
/// A watch that lasted this long was healthy, so it is reopened without a pause.
const SETTLED: Duration = Duration::from_secs(10);
/// After this time with nothing but errors a watch counts as unreadable, as if it were forbidden.
/// Nothing waits for its objects from then on, because a person may have to fix the failure first.
pub(crate) const LASTING: Duration = Duration::from_secs(20);
/// Objects per page if the server cannot stream its list.
const PAGE: u32 = 500;
/// Annotation of the bookmark that ends a streamed list.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

const NOT_EVEN_METADATA: &str = "an object is passed over: not even its metadata can be decoded";

/// Opens watches, and records their health. Cheap to clone.
#[derive(Clone)]
pub struct Watcher {
    /// Sends the requests.
    pub client: Client,
    /// The health of all its watches.
    pub health: Health,
    patience: Patience,
}

/// How long a watch treats a failure as temporary.
#[derive(Clone, Copy)]
struct Patience {
    /// The watch is reopened after this much silence.
    silence: Duration,
    /// After errors for this long the watch counts as unreadable.
    lasting: Duration,
}

impl From<Client> for Watcher {
    fn from(client: Client) -> Self {
        Self {
            client,
            health: Health::default(),
            patience: Patience {
                silence: SILENCE,
                lasting: LASTING,
            },
        }
    }
}

/// The collection or the object to watch.
pub struct WatchSpec {
    /// Path of the collection, as [`resource_path`](crate::discovery::resource_path) builds it:
    /// `/api/v1/namespaces/x/secrets`.
    pub path: String,
    /// Whether objects arrive as metadata alone, for the type [`Meta`].
    pub metadata_only: bool,
    /// The label selector as in a query (`key=value,…`), not yet encoded.
    pub label_selector: Option<String>,
    /// Watches only the object with this name, as a whole and not by its metadata alone. The object
    /// is read before the watch begins: the streamed list of a kind with few changes may take
    /// 100 ms. The API server's cache needs that time to learn that it is up to date.
    pub name: Option<String>,
    /// The watch's name in logs.
    pub what: String,
}

impl WatchSpec {
    /// Whole objects of the collection at this path.
    pub fn objects(path: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            metadata_only: false,
            label_selector: None,
            name: None,
            what: what.into(),
        }
    }

    /// The metadata of the objects of the collection at this path.
    pub fn metadata(path: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            metadata_only: true,
            ..Self::objects(path, what)
        }
    }
}

/// The events of a watch, in order.
#[allow(clippy::large_enum_variant)] // One at a time, and `Shown` is mostly as large.
#[derive(Debug, Clone, PartialEq)]
pub enum Event<T> {
    /// A listing begins. Each existing object follows as [`Event::Shown`]. A listing that breaks
    /// off begins again. A named object may have been shown before its listing.
    Listing,
    /// The object exists: it is new, changed, or shown again.
    Shown(Decoded<T>),
    /// The object was deleted, or no longer matches the selectors. This is the metadata of its last
    /// state.
    Deleted(Meta),
    /// The state of the watch.
    ///
    /// - [`Known::Listed`]: the listing of this resourceVersion is complete. An object that was not
    ///   shown since [`Event::Listing`] did not exist.
    /// - [`Known::Unserved`]: 404. Sent once. A new listing follows when the kind is served again.
    /// - [`Known::Unreadable`]: 401 or 403, or nothing but errors for 20 s. The objects shown so far
    ///   are the last known state, and none of them counts as deleted. Sent once. A new listing
    ///   follows afterwards.
    Known(Known<u64>),
}

/// The metadata of an object of any kind.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Meta {
    /// The metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
}

/// Watches until dropped. `sink` gets each event as it arrives. While `sink` runs nothing more is
/// read.
///
/// The watch ends with a broken connection, a timeout, 90 s without even a bookmark, or an error of
/// the server. After a back-off (at most 0.75 s at first, 30 s later) it resumes from its last
/// version, without a listing. It lists again only in these cases:
///
/// - The server no longer knows the version (410).
/// - The server has sent nothing since the watch began. A server that was restored from a backup
///   may not have reached the version yet.
/// - [`Known::Unserved`] or [`Known::Unreadable`] was sent.
/// - The stream brought a line that is not an event.
///
/// An object that cannot be decoded causes no new listing. Otherwise any user with permission to
/// write one such object could disturb the watch for all other users.
///
/// Events after a break may repeat earlier ones, but never contradict them.
pub async fn watch<T: DeserializeOwned>(
    watcher: Watcher,
    spec: WatchSpec,
    sink: impl FnMut(Event<T>) + Send,
) {
    let mut watch = Watch {
        objects: PhantomData,
        client: watcher.client,
        pulse: watcher.health.begin(&spec.path),
        spec,
        patience: watcher.patience,
        sink,
        version: None,
        streams: true,
        backoff: Backoff::new(FIRST_BACKOFF, LONGEST_BACKOFF),
        failing: None,
        said: Known::Unknown,
    };
    watch.read().await;
    loop {
        let started = Instant::now();
        let Err(end) = watch.run().await;
        let delay = watch.end(&end, started);
        sleep(delay).await;
    }
}

struct Watch<T, S> {
    objects: PhantomData<fn() -> T>,
    client: Client,
    pulse: Arc<Pulse>,
    spec: WatchSpec,
    patience: Patience,
    sink: S,
    /// The version to resume from; none to begin with a listing.
    version: Option<String>,
    /// Whether the server streams lists, as far as known.
    streams: bool,
    backoff: Backoff,
    /// Since when the server has answered only with errors.
    failing: Option<Instant>,
    /// The last of the states that are sent only once.
    said: Known<u64>,
}

/// Why a watch ended.
#[derive(Debug, thiserror::Error)]
enum End {
    /// The stream ended or broke. The known state stays valid.
    #[error("{0}")]
    Closed(String),
    #[error("the server sent nothing for too long")]
    Silent,
    /// As [`End::Silent`], but nothing was received since the watch began. A server that was
    /// restored from a backup may not have reached the version yet, and sends no events until then.
    #[error("the server sent nothing at all")]
    Mute,
    #[error("the server no longer knows the version")]
    Expired,
    #[error("the server does not stream lists")]
    NoStreams,
    #[error("the kind is not served")]
    NotServed,
    #[error("not allowed ({0})")]
    Denied(StatusCode),
    /// Any other refusal. A busy server may say how long to wait.
    #[error("refused ({0})")]
    Refused(StatusCode, Option<Duration>),
    #[error("{0} can't be decoded")]
    Undecodable(&'static str),
}

impl<T, S> Watch<T, S>
where
    T: DeserializeOwned,
    S: FnMut(Event<T>) + Send,
{
    /// Shows the named object before its listing, if it exists. The listing tells the rest.
    async fn read(&mut self) {
        let Some(name) = &self.spec.name else { return };
        let path = format!("{}/{}", self.spec.path, encode(name));
        if let Ok(Some(object)) = call::get(&self.client, &path, call::JSON, READ).await {
            (self.sink)(Event::Shown(Decoded::Whole(object)));
        }
    }

    /// Lists if necessary, and watches until the watch ends. It resumes from the version. Without a
    /// version it lists first, by streaming if possible.
    async fn run(&mut self) -> Result<Infallible, End> {
        if self.version.is_none() && !self.streams {
            self.list().await?;
        }
        let response = self.open(&self.watch_query(), call::METADATA).await?;
        if self.version.is_none() {
            (self.sink)(Event::Listing);
        }
        let body = response
            .into_body()
            .map_err(|error| io::Error::other(End::from(error)));
        let mut body = StreamReader::new(body.into_data_stream());
        let (mut line, mut heard) = (Vec::new(), false);
        loop {
            match next_line(&mut body, &mut line, self.patience.silence).await {
                Err(End::Silent) if !heard => return Err(End::Mute),
                read => read?,
            }
            heard = true;
            self.pulse.beat();
            if line.trim_ascii().is_empty() {
                continue;
            }
            let read = serde_json::from_slice(&line);
            let read: Line = read.map_err(|_| End::Undecodable("an event"))?;
            match read.kind {
                Kind::Added => self.show(object(&line)),
                Kind::Deleted => {
                    if let Some(object) = object(&line).and_then(Decoded::whole) {
                        (self.sink)(Event::Deleted(object));
                    } else {
                        warn!(what = self.spec.what, "{NOT_EVEN_METADATA}");
                    }
                }
                Kind::Bookmark => self.mark(whole(&line)?)?,
                Kind::Error => {
                    let Refusal { code } = whole(&line)?;
                    return Err(refused(code, None));
                }
            }
            // The events of a streamed list are not ordered by version, so a watch cannot resume
            // from them.
            if let Some(version) = &mut self.version {
                // A watch can also resume from an older version. It then shows some events again.
                if let Some(newest) = read.object.metadata.resource_version {
                    *version = newest;
                }
                self.thrive();
            }
        }
    }

    /// Passes an object to the sink. That an object cannot be decoded may be logged. The decoder's
    /// message must not be: it quotes the object.
    fn show(&mut self, object: Option<Decoded<T>>) {
        let what = &*self.spec.what;
        let Some(object) = object else {
            warn!(what, "{NOT_EVEN_METADATA}");
            return;
        };
        if let Decoded::Part(part) = &object {
            warn!(
                what,
                namespace = text(part, "/metadata/namespace"),
                name = text(part, "/metadata/name"),
                "an object can't be decoded: it is nested too deeply, or holds what no decoder of \
                 JSON takes"
            );
        }
        (self.sink)(Event::Shown(object));
    }

    /// The watch works, so earlier failures no longer count.
    fn thrive(&mut self) {
        self.backoff.reset();
        self.failing = None;
        self.said = Known::Unknown;
    }

    /// Sends a state, unless it was the last one. Returns true if it was sent.
    fn say(&mut self, state: Known<u64>) -> bool {
        let news = std::mem::replace(&mut self.said, state) != state;
        if news {
            (self.sink)(Event::Known(state));
        }
        news
    }

    fn mark(&mut self, Meta { metadata }: Meta) -> Result<(), End> {
        let version = metadata
            .resource_version
            .ok_or(End::Undecodable("a bookmark"))?;
        if self.version.is_none() {
            let annotations = metadata.annotations.unwrap_or_default();
            if !annotations.contains_key(INITIAL_EVENTS_END) {
                // Servers that do not know streamed lists ignore the parameters for them.
                return Err(End::NoStreams);
            }
            (self.sink)(Event::Known(Known::Listed(meta::version(Some(&version)))));
        }
        self.version = Some(version);
        Ok(())
    }

    /// Lists in pages.
    async fn list(&mut self) -> Result<(), End> {
        let mut next = String::new();
        loop {
            let response = self
                .open(&self.list_query(&next), call::METADATA_LIST)
                .await?;
            let body = timeout(self.patience.silence, response.into_body().collect()).await;
            let body = body.map_err(|_| End::Silent)??.to_bytes();
            self.pulse.beat();
            let Page { metadata, items } = Page::read(&body).ok_or(End::Undecodable("a list"))?;
            if next.is_empty() {
                (self.sink)(Event::Listing);
            }
            items.into_iter().for_each(|item| self.show(item));
            next = metadata.continue_.unwrap_or_default();
            if next.is_empty() {
                let version = metadata
                    .resource_version
                    .ok_or(End::Undecodable("a list's version"))?;
                (self.sink)(Event::Known(Known::Listed(meta::version(Some(&version)))));
                self.version = Some(version);
                self.thrive();
                return Ok(());
            }
        }
    }

    /// Sends a request. A returned answer has status 200 and an unread body.
    async fn open(&self, query: &str, metadata: &str) -> Result<Response<Body>, End> {
        let accept = if self.spec.metadata_only {
            metadata
        } else {
            call::JSON
        };
        let request = call::read(&format!("{}?{query}", self.spec.path), accept)
            .map_err(|error| End::Closed(error.to_string()))?;
        let response = timeout(self.patience.silence, self.client.send(request)).await;
        let response = response.map_err(|_| End::Silent)??;
        let code = response.status();
        if code == StatusCode::OK {
            return Ok(response);
        }
        // Servers that do not know streamed lists forbid the parameters for them. A refusal with
        // another reason comes again when the watch lists in pages.
        if matches!(code.as_u16(), 400 | 422) && self.version.is_none() && self.streams {
            return Err(End::NoStreams);
        }
        let retry_after = call::retry_after(response.headers());
        Err(refused(code.as_u16(), retry_after))
    }

    fn watch_query(&self) -> String {
        // The server would choose a time itself. This random time keeps many watches from ending
        // together.
        let seconds = 290 + random(30);
        let from = match &self.version {
            Some(version) => format!("resourceVersion={}", encode(version)),
            None => "sendInitialEvents=true&resourceVersionMatch=NotOlderThan".into(),
        };
        format!(
            "watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&{from}{}",
            self.selectors()
        )
    }

    fn list_query(&self, next: &str) -> String {
        let next = if next.is_empty() {
            String::new()
        } else {
            format!("&continue={}", encode(next))
        };
        format!("limit={PAGE}{next}{}", self.selectors())
    }

    fn selectors(&self) -> String {
        let name = self.spec.name.as_ref();
        let name = name.map(|name| format!("metadata.name={name}"));
        let selectors = [
            ("labelSelector", self.spec.label_selector.clone()),
            ("fieldSelector", name),
        ];
        selectors
            .into_iter()
            .filter_map(|(key, value)| Some(format!("&{key}={}", encode(&value?))))
            .collect()
    }

    /// Handles the end of a watch that began at `started`. Returns how long to wait.
    fn end(&mut self, end: &End, started: Instant) -> Duration {
        self.despair(end, started);
        let what = &*self.spec.what;
        let settled = started.elapsed() >= SETTLED;
        self.pulse.end(end, settled);
        if !matches!(end, End::Closed(_) | End::Silent | End::Refused(..)) {
            self.version = None;
        }
        match end {
            End::NoStreams => {
                info!(what, "the server does not stream lists, listing in pages");
                self.streams = false;
                return Duration::ZERO;
            }
            End::NotServed => {
                if self.say(Known::Unserved) {
                    debug!(what = self.spec.what, "kind is not served");
                }
                return self.backoff.pause().max(NOT_SERVED_BACKOFF);
            }
            End::Undecodable(_) => warn!(what, %end, "watch ended, listing again"),
            _ if self.version.is_none() => debug!(what, %end, "watch ended, listing again"),
            _ => debug!(what, %end, "watch ended, resuming"),
        }
        match end {
            End::Closed(_) | End::Silent | End::Mute | End::Expired if settled => Duration::ZERO,
            End::Refused(_, Some(retry_after)) => self.backoff.pause().max(*retry_after),
            _ => self.backoff.pause(),
        }
    }

    /// Reports the watch as unreadable, once a failure is not temporary.
    fn despair(&mut self, end: &End, started: Instant) {
        let why = match end {
            End::Denied(_) => Unreadable::Forbidden,
            // While the server cannot be reached the known state stays valid. This failure concerns
            // all kinds alike.
            End::Closed(_) | End::Silent | End::Mute if self.version.is_some() => {
                self.failing = None;
                return;
            }
            End::Closed(_) | End::Silent | End::Mute | End::Refused(..) | End::Undecodable(_)
                if self.failing.get_or_insert(started).elapsed() >= self.patience.lasting =>
            {
                Unreadable::Unavailable
            }
            _ => return,
        };
        self.version = None;
        if self.say(Known::Unreadable(why)) {
            warn!(what = self.spec.what, ?why, cause = %end, "cannot be watched; nothing more is \
                known until that changes");
        }
    }
}

/// Why a watch ended with this code, as an HTTP status or in an event.
fn refused(code: u16, retry_after: Option<Duration>) -> End {
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    match code {
        StatusCode::GONE => End::Expired,
        StatusCode::NOT_FOUND => End::NotServed,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => End::Denied(code),
        StatusCode::TOO_MANY_REQUESTS => End::Refused(code, retry_after),
        // A starting server asks for a wait of seconds that is not necessary. For a watch the
        // back-off is long enough.
        code => End::Refused(code, None),
    }
}

impl From<kube::Error> for End {
    fn from(error: kube::Error) -> Self {
        Self::Closed(CallError::from(error).to_string())
    }
}

#[cfg(test)]
mod tests;
