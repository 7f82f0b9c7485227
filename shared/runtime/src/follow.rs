//! Follows one named object: one LIST, then one watch that is reopened without end.
//!
//! For the few objects that Mimeo owns (its Secret, its Lease). Each replica needs only the newest
//! state of such an object.

use std::{fmt, ops::ControlFlow, pin::Pin, time::Duration};

use futures::{Stream, StreamExt};
use kube::{
    Api, Resource, ResourceExt,
    api::{ListParams, WatchEvent, WatchParams},
};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, warn};

use crate::{
    backoff::Backoff,
    fault::{Fault, status, within},
};

const REQUEST_DEADLINE: Duration = Duration::from_secs(15);

type Events<K> = Pin<Box<dyn Stream<Item = Result<WatchEvent<K>, kube::Error>> + Send>>;

enum State<K> {
    Unknown,
    Known {
        version: String,
    },
    /// `heard`: whether this watch has brought an event yet.
    Watching {
        version: String,
        events: Events<K>,
        heard: bool,
    },
}

/// The successive states of one object.
///
/// Needs the permissions `list` and `watch` for that name. Failures are logged and retried without
/// end.
pub struct Follower<K> {
    api: Api<K>,
    name: String,
    state: State<K>,
    /// The time before which no request is sent.
    not_before: Instant,
    backoff: Backoff,
}

impl<K> fmt::Debug for Follower<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follower")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl<K> Follower<K>
where
    K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + 'static,
{
    /// Follows the object `name` of `api`. The client of `api` should be the one for watches.
    pub fn new(api: Api<K>, name: impl Into<String>) -> Self {
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
        Self {
            api,
            name: name.into(),
            state: State::Unknown,
            not_before: Instant::now(),
            backoff,
        }
    }

    /// The next state: the object, or `None` if it does not exist. The first call returns the
    /// current state. Each later call waits for a change, and may return the same state again.
    /// Cancel safe.
    pub async fn next(&mut self) -> Option<K> {
        loop {
            sleep_until(self.not_before).await;
            match &mut self.state {
                State::Unknown => {
                    if let ControlFlow::Break(found) = self.list().await {
                        return found;
                    }
                }
                State::Known { version } => {
                    let version = version.clone();
                    self.watch(version).await;
                }
                State::Watching { events, .. } => {
                    let event = events.next().await;
                    if let ControlFlow::Break(change) = self.take(event) {
                        return change;
                    }
                }
            }
        }
    }

    fn selector(&self) -> String {
        format!("metadata.name={}", self.name)
    }

    async fn list(&mut self) -> ControlFlow<Option<K>> {
        match within(
            REQUEST_DEADLINE,
            self.api
                .list(&ListParams::default().fields(&self.selector())),
        )
        .await
        {
            Ok(list) => {
                self.state = State::Known {
                    version: list.metadata.resource_version.unwrap_or_default(),
                };
                ControlFlow::Break(list.items.into_iter().next())
            }
            Err(error) => {
                self.failed(&error);
                ControlFlow::Continue(())
            }
        }
    }

    async fn watch(&mut self, version: String) {
        let params = WatchParams::default().fields(&self.selector());
        match within(REQUEST_DEADLINE, self.api.watch(&params, &version)).await {
            Ok(events) => {
                self.state = State::Watching {
                    version,
                    events: events.boxed(),
                    heard: false,
                }
            }
            Err(error) if status(&error) == Some(410) => self.state = State::Unknown,
            Err(error) => self.failed(&error),
        }
    }

    /// The state of the object after an event; `Continue` if the event does not show one.
    fn take(
        &mut self,
        event: Option<Result<WatchEvent<K>, kube::Error>>,
    ) -> ControlFlow<Option<K>> {
        let State::Watching { version, heard, .. } = &mut self.state else {
            return ControlFlow::Continue(());
        };
        // An API server that was restored from a backup may not have reached this version yet. Its
        // watch brings nothing until then. If this watch has brought nothing, the next attempt
        // therefore lists instead of asking for the same version.
        let resume = if *heard {
            State::Known {
                version: version.clone(),
            }
        } else {
            State::Unknown
        };
        *heard = true;
        let change = match event {
            Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                *version = object.resource_version().unwrap_or_default();
                ControlFlow::Break(Some(object))
            }
            Some(Ok(WatchEvent::Deleted(object))) => {
                *version = object.resource_version().unwrap_or_default();
                ControlFlow::Break(None)
            }
            Some(Ok(WatchEvent::Bookmark(bookmark))) => {
                version.clone_from(&bookmark.metadata.resource_version);
                ControlFlow::Continue(())
            }
            Some(Ok(WatchEvent::Error(status))) => {
                debug!(name = self.name, code = status.code, "watch expired");
                self.state = State::Unknown;
                self.pause();
                return ControlFlow::Continue(());
            }
            Some(Err(error)) => {
                self.state = resume;
                self.failed(&error);
                return ControlFlow::Continue(());
            }
            None => {
                self.state = resume;
                // The server ends a healthy watch after minutes. Watches that end early are
                // reopened after longer and longer pauses.
                self.pause();
                return ControlFlow::Continue(());
            }
        };
        self.backoff.reset();
        change
    }

    fn failed(&mut self, error: &kube::Error) {
        warn!(name = self.name, error = %Fault(error), "failed to follow, retrying");
        self.pause();
    }

    fn pause(&mut self) {
        self.not_before = Instant::now() + self.backoff.pause();
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::Lease;
    use serde_json::json;

    use super::*;
    use crate::testing::{Script, Server};

    /// An API server that was restored from a backup brings nothing before it reaches the version.
    #[tokio::test]
    async fn a_watch_that_brought_nothing_lists_anew() {
        let list = |version: &str, holder: &str| {
            let lease = json!({"metadata": {"name": "a", "resourceVersion": "3"}, "spec": {"holderIdentity": holder}});
            Script::json(
                200,
                &json!({"metadata": {"resourceVersion": version}, "items": [lease]}),
            )
        };
        let server = Server::start([list("20", "old"), Script::lines([]), list("10", "new")]).await;
        let mut follower = Follower::<Lease>::new(Api::default_namespaced(server.client()), "a");
        for want in ["old", "new"] {
            let next = tokio::time::timeout(Duration::from_secs(20), follower.next())
                .await
                .expect("a state");
            assert_eq!(
                next.and_then(|lease| lease.spec?.holder_identity)
                    .as_deref(),
                Some(want)
            );
        }
        assert!(
            server.requests()[1].contains("resourceVersion=20"),
            "{:?}",
            server.requests()
        );
    }

    #[test]
    fn a_backoff_doubles_up_to_its_longest_and_begins_anew() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
        for full in [1, 2, 4, 5, 5] {
            let pause = backoff.pause();
            let full = Duration::from_secs(full);
            assert!(pause > full / 2 && pause <= full, "{pause:?} of {full:?}");
        }
        backoff.reset();
        assert!(backoff.pause() <= Duration::from_secs(1));
    }
}
