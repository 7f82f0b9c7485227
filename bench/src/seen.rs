//! Notes when copies became visible, by a watch of their metadata that records the time of each
//! event.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use kube::Client;
use mimeo_model::known::Decoded;
use mimeo_runtime::watch::{Event, Meta, WatchSpec, watch};
use tokio::{sync::Notify, task::JoinHandle};

/// The last event of one copy.
#[derive(Debug, Clone)]
pub(crate) struct Sight {
    /// Time of that event.
    pub(crate) at: Instant,
    /// Checksum of the rendering, from Mimeo's annotation.
    pub(crate) checksum: String,
    /// True if the copy exists.
    pub(crate) there: bool,
    /// Number of events so far.
    pub(crate) events: u64,
}

/// Watches all copies until dropped.
pub(crate) struct Watcher {
    state: Arc<State>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    copies: Mutex<BTreeMap<(String, String), Sight>>,
    changed: Notify,
}

impl Watcher {
    /// Watches the Secrets with this label.
    pub(crate) fn start(client: Client, label: &str) -> Self {
        let state = Arc::new(State::default());
        let own = state.clone();
        let spec = WatchSpec {
            path: "/api/v1/secrets".into(),
            metadata_only: true,
            label_selector: Some(label.into()),
            name: None,
            what: "copies".into(),
        };
        let task = tokio::spawn(watch::<Meta>(client.into(), spec, move |event| {
            let mut copies = own.copies.lock().unwrap_or_else(PoisonError::into_inner);
            let (object, there) = match event {
                Event::Shown(Decoded::Whole(object)) => (object.metadata, true),
                Event::Deleted(object) => (object.metadata, false),
                _ => return,
            };
            let key = (
                object.namespace.unwrap_or_default(),
                object.name.unwrap_or_default(),
            );
            let checksum = object
                .annotations
                .and_then(|mut all| all.remove("mimeo.dev/checksum"))
                .unwrap_or_default();
            let events = copies.get(&key).map_or(0, |old| old.events) + 1;
            copies.insert(
                key,
                Sight {
                    at: Instant::now(),
                    checksum,
                    there,
                    events,
                },
            );
            drop(copies);
            own.changed.notify_waiters();
        }));
        Self { state, task }
    }

    /// Waits until `done` returns a value for the copies seen so far.
    pub(crate) async fn until<T>(
        &self,
        what: &str,
        mut done: impl FnMut(&BTreeMap<(String, String), Sight>) -> Option<T>,
    ) -> Result<T> {
        let deadline = tokio::time::Instant::now() + Duration::from_mins(2);
        loop {
            let changed = self.state.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let answer = done(
                &self
                    .state
                    .copies
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner),
            );
            if let Some(answer) = answer {
                return Ok(answer);
            }
            if tokio::time::timeout_at(deadline, changed).await.is_err() {
                let count = self
                    .state
                    .copies
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .len();
                bail!("{what}: not within two minutes; {count} copies are there");
            }
            // Each event carries its time already. Checking after each of a thousand events would
            // load the machine under measurement.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until exactly `count` copies with this name exist, all with one rendering other than
    /// `old`. Returns the time of the last one's event, and the rendering.
    pub(crate) async fn all(
        &self,
        name: &str,
        count: usize,
        old: &str,
    ) -> Result<(Instant, String)> {
        self.until(&format!("{count} copies named {name}"), |copies| {
            let mine = copies
                .iter()
                .filter(|((_, copy), sight)| copy == name && sight.there);
            let mut mine = mine.map(|(_, sight)| sight);
            let first = mine.next()?.clone();
            let (mut last, mut seen) = (first.at, 1);
            for sight in mine {
                if sight.checksum != first.checksum {
                    return None;
                }
                last = last.max(sight.at);
                seen += 1;
            }
            (seen == count && first.checksum != old).then_some((last, first.checksum))
        })
        .await
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}
