//! Follows one named object, by the same [`watch`](crate::watch) as everything else.

use std::future::pending;

use kube::{Api, Resource};
use mimeo_model::known::{Decoded, Known};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::watch::{Event, WatchSpec, Watcher, watch as open};

/// Follows the object `name` of the collection at `path` until dropped. `sink` gets the object's
/// state whenever it may have changed. The state is listed with the object, listed with `None` if
/// there is no such object, or not known for a reason. The watch's name in logs is `what`.
pub async fn follow<T: DeserializeOwned>(
    watcher: Watcher,
    path: impl Into<String>,
    name: &str,
    what: impl Into<String>,
    mut sink: impl FnMut(Known<Option<Decoded<T>>>) + Send,
) {
    let spec = WatchSpec {
        name: Some(name.to_owned()),
        ..WatchSpec::objects(path, what)
    };
    let mut seen = false;
    open::<T>(watcher, spec, |event| match event {
        Event::Listing => seen = false,
        Event::Shown(object) => {
            seen = true;
            sink(Known::Listed(Some(object)));
        }
        Event::Deleted(_) => sink(Known::Listed(None)),
        Event::Known(Known::Listed(_)) if seen => {}
        Event::Known(state) => sink(state.map(|_| None)),
    })
    .await;
}

/// The successive states of one object that Mimeo owns, such as its Secret or its Lease. Only the
/// newest state is kept.
///
/// Needs the permissions `get`, `list` and `watch` for that name. Failures are logged and retried
/// without end.
pub struct Follower<K>(watch::Receiver<Option<K>>);

impl<K> Follower<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Send + Sync + 'static,
{
    /// Follows the object `name` of the collection of `api` in a task that ends with this value.
    /// The watcher's client sends the requests.
    pub fn new(watcher: Watcher, api: &Api<K>, name: &str) -> Self {
        let (path, name) = (api.resource_url().to_owned(), name.to_owned());
        let what = format!("{}/{name}", K::plural(&()));
        let (publish, states) = watch::channel(None);
        tokio::spawn(async move {
            let following = follow(watcher, path, &name, what, |state| {
                let state = match state {
                    Known::Listed(None) => None,
                    Known::Listed(Some(Decoded::Whole(object))) => Some(object),
                    // The last state stays valid.
                    _ => return,
                };
                publish.send_replace(state);
            });
            tokio::select! {
                () = following => {}
                () = publish.closed() => {}
            }
        });
        Self(states)
    }

    /// The next state: the object, or `None` if it does not exist. The first call returns the
    /// current state. Each later call waits for a change, and may return the same state again.
    /// Cancel safe.
    pub async fn next(&mut self) -> Option<K> {
        if self.0.changed().await.is_err() {
            // The task ends only with the runtime.
            pending::<()>().await;
        }
        self.0.borrow_and_update().clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::coordination::v1::Lease;
    use serde_json::json;

    use super::*;
    use crate::testing::{Script, Server};

    /// The object is read before it is listed. A listing that does not show it means that it is
    /// gone.
    #[tokio::test]
    async fn the_newest_state_of_one_object_is_told() {
        let lease = |holder: &str| json!({"metadata": {"name": "a", "resourceVersion": "3"}, "spec": {"holderIdentity": holder}});
        let annotations = json!({"k8s.io/initial-events-end": "true"});
        let listed = json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "20", "annotations": annotations}}});
        let pause = Duration::from_millis(200);
        let line = |line| format!("{line}\n");
        let watch = Script::text(200, "")
            .pause(pause)
            .send(line(listed))
            .pause(pause)
            .send(line(json!({"type": "ADDED", "object": lease("new")})))
            .hold();
        let server = Server::start([Script::json(200, &lease("old")), watch]).await;
        let (watcher, api) = (
            Watcher::from(server.client()),
            Api::default_namespaced(server.client()),
        );
        let health = watcher.health.clone();
        let mut follower = Follower::<Lease>::new(watcher, &api, "a");
        for want in [Some("old"), None, Some("new")] {
            let next = tokio::time::timeout(Duration::from_secs(20), follower.next())
                .await
                .expect("a state");
            assert_eq!(
                next.and_then(|lease| lease.spec?.holder_identity)
                    .as_deref(),
                want
            );
        }
        assert!(health.silence().contains_key("leases.coordination.k8s.io"));
        assert!(
            server.requests()[1].contains("fieldSelector=metadata.name%3Da"),
            "{:?}",
            server.requests()
        );
    }
}
