//! Follows one named object, by the same [`watch`](crate::watch) as everything else.

use std::sync::Arc;

use mimeo_model::known::{Decoded, Known};
use serde::de::DeserializeOwned;
use tokio::{
    sync::watch::Sender,
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::watch::{Event, WatchSpec, Watcher, watch};

/// The state of the object: listed with the object, listed with `None` if there is no such object,
/// or not known for a reason.
pub(crate) type State<T> = Known<Option<Decoded<T>>>;

/// The successive states of one object. Only the newest state is kept, until it is taken.
///
/// Needs the permissions `get`, `list` and `watch` for that name. Failures are logged and retried
/// without end.
pub struct Follower<T> {
    untaken: Arc<Sender<Option<State<T>>>>,
    /// The task that watches. It ends with this value.
    _watching: JoinSet<()>,
}

/// The pause after a handover, as a multiple of the time that the handover took.
const REST: u32 = 10;

impl<T> Follower<T>
where
    T: DeserializeOwned + Send + Sync + 'static,
{
    /// Follows the object `name` of the collection at `path`. The watcher's client sends the
    /// requests, and the watch's name in logs is `what`.
    pub fn new(watcher: Watcher, path: &str, name: &str, what: String) -> Self {
        let untaken = Arc::new(Sender::new(None));
        let spec = WatchSpec {
            name: Some(name.to_owned()),
            ..WatchSpec::objects(path, what)
        };
        let (publish, mut seen) = (untaken.clone(), false);
        let put = move |state| _ = publish.send_replace(Some(state));
        let mut watching = JoinSet::new();
        watching.spawn(watch::<T>(watcher, spec, move |event| match event {
            Event::Listing => seen = false,
            Event::Shown(object) => {
                seen = true;
                put(Known::Listed(Some(object)));
            }
            Event::Deleted(_) => put(Known::Listed(None)),
            Event::Known(Known::Listed(_)) if seen => {}
            Event::Known(state) => put(state.map(|_| None)),
        }));
        Self {
            untaken,
            _watching: watching,
        }
    }

    /// The next object, or `None` if it does not exist. The first call returns the current state.
    /// Each later call waits for a change, and may return the same state again. A state that is not
    /// known, or an object that cannot be decoded, is no change. Cancel safe.
    pub async fn next(&mut self) -> Option<T> {
        loop {
            match self.state().await {
                Known::Listed(None) => return None,
                Known::Listed(Some(Decoded::Whole(object))) => return Some(object),
                // The last state stays valid.
                _ => {}
            }
        }
    }

    /// Hands each state over until dropped. The receiver may need a long time for it: thousands of
    /// copies may have to be rendered. If an object changed ten times a second, it could keep the
    /// engine busy for all users. So the first state is handed over at once. Later only the newest
    /// state is, and the pauses leave most of the time to other work.
    pub(crate) async fn hand_over(mut self, mut to: impl FnMut(State<T>)) {
        loop {
            let state = self.state().await;
            let began = Instant::now();
            to(state);
            sleep(began.elapsed() * REST).await;
        }
    }

    async fn state(&mut self) -> State<T> {
        let mut changes = self.untaken.subscribe();
        loop {
            let mut newest = None;
            self.untaken.send_if_modified(|untaken| {
                newest = untaken.take();
                false
            });
            if let Some(state) = newest {
                return state;
            }
            let _ = changes.changed().await;
        }
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
        let watcher = Watcher::from(server.client());
        let health = watcher.health.clone();
        let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
        let mut follower = Follower::<Lease>::new(watcher, path, "a", "leases/a".into());
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

    #[tokio::test]
    async fn what_takes_long_to_be_taken_up_is_taken_up_seldom_and_then_the_newest() {
        const COST: Duration = Duration::from_millis(20);
        let newest = Arc::new(Sender::new(None));
        let put = |state| _ = newest.send_replace(Some(state));
        let follower = Follower {
            untaken: newest.clone(),
            _watching: JoinSet::new(),
        };
        let listed = |value: u32| Known::Listed(Some(Decoded::Whole(value)));
        let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let taking = follower.hand_over(|state| {
            std::thread::sleep(COST);
            let _ = told.send((state, Instant::now()));
        });
        let changing = async {
            put(listed(0));
            let (first, began) = heard.recv().await.expect("the first");
            (1..=50).for_each(|value| put(listed(value)));
            let (second, then) = heard.recv().await.expect("the newest");
            assert_eq!((first, second), (listed(0), listed(50)));
            assert!(then - began >= COST * REST, "{:?}", then - began);
            put(listed(51));
            put(Known::Unserved);
            assert!(heard.try_recv().is_err());
            put(Known::Unknown);
            let (last, _) = heard.recv().await.expect("the newest");
            assert_eq!(last, Known::Unknown);
        };
        tokio::select! {
            () = taking => {}
            () = changing => {}
        }
    }
}
