//! The health of watches: when each one last received data, and how often each one failed.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::End;

/// The health of all watches of a program, by resource. Cheap to clone.
#[derive(Clone, Default)]
pub struct Health(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    watches: Vec<Weak<Pulse>>,
    failures: BTreeMap<(String, &'static str), u64>,
}

/// The health of one watch.
pub(super) struct Pulse {
    /// The resource, such as `secrets` or `deployments.apps`.
    resource: String,
    heard: Mutex<Instant>,
    health: Health,
}

impl Health {
    /// For each resource, the longest time since one of its watches last received data. A bookmark
    /// counts as data.
    pub fn silence(&self) -> BTreeMap<String, Duration> {
        let mut silence = BTreeMap::new();
        for pulse in self.0.lock().watches.iter().filter_map(Weak::upgrade) {
            let longest: &mut Duration = silence.entry(pulse.resource.clone()).or_default();
            *longest = pulse.heard.lock().elapsed().max(*longest);
        }
        silence
    }

    /// How often watches failed, for each resource and reason.
    pub fn failures(&self) -> BTreeMap<(String, &'static str), u64> {
        self.0.lock().failures.clone()
    }

    /// Adds a watch of the collection at this path.
    pub(super) fn begin(&self, path: &str) -> Arc<Pulse> {
        let pulse = Arc::new(Pulse {
            resource: resource(path),
            heard: Mutex::new(Instant::now()),
            health: self.clone(),
        });
        let mut known = self.0.lock();
        known.watches.retain(|watch| watch.strong_count() > 0);
        known.watches.push(Arc::downgrade(&pulse));
        pulse
    }
}

impl Pulse {
    /// Records that the API server sent data.
    pub(super) fn beat(&self) {
        *self.heard.lock() = Instant::now();
    }

    /// Records the end of a watch. `settled`: the watch had lasted for a while.
    pub(super) fn end(&self, end: &End, settled: bool) {
        let why = match end {
            // These ends are no failures: the server ends each watch after some minutes, and may
            // not have this kind.
            End::Closed(_) if settled => return,
            End::NoStreams | End::Expired => return,
            End::NotServed => return self.beat(),
            End::Closed(_) => "Closed",
            End::Silent | End::Mute => "Silent",
            // A refusal is an answer, too, so the watch is not stale. A tenant may name a kind that
            // Mimeo has no permissions for, as long as the tenant likes.
            End::Denied(_) => {
                self.beat();
                "Denied"
            }
            End::Refused(..) => "Refused",
            End::Undecodable(_) => "Undecodable",
        };
        *self
            .health
            .0
            .lock()
            .failures
            .entry((self.resource.clone(), why))
            .or_default() += 1;
    }
}

/// The plural and the group in an API path.
fn resource(path: &str) -> String {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let plural = parts.last().copied().unwrap_or_default();
    match parts[..] {
        ["apis", group, ..] => format!("{plural}.{group}"),
        _ => plural.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    #[test]
    fn a_resource_is_known_by_plural_and_group() {
        for (path, want) in [
            ("/api/v1/namespaces", "namespaces"),
            ("/api/v1/namespaces/team/secrets", "secrets"),
            (
                "/apis/apps/v1/namespaces/team/deployments",
                "deployments.apps",
            ),
            (
                "/apis/mimeo.dev/v1alpha1/clusterreplications",
                "clusterreplications.mimeo.dev",
            ),
        ] {
            assert_eq!(resource(path), want);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_silence_counts_and_a_watch_that_is_over_doesnt() {
        let health = Health::default();
        let (one, two) = (
            health.begin("/api/v1/secrets"),
            health.begin("/api/v1/namespaces/x/secrets"),
        );
        tokio::time::advance(Duration::from_secs(7)).await;
        one.beat();
        assert_eq!(
            health.silence(),
            [("secrets".into(), Duration::from_secs(7))].into()
        );
        drop(two);
        assert_eq!(
            health.silence(),
            [("secrets".into(), Duration::ZERO)].into()
        );
        drop(one);
        assert!(health.silence().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn whom_the_server_denies_isnt_met_with_silence() {
        let health = Health::default();
        let watch = health.begin("/api/v1/secrets");
        tokio::time::advance(Duration::from_secs(7)).await;
        watch.end(&End::Denied(StatusCode::FORBIDDEN), false);
        assert_eq!(
            health.silence(),
            [("secrets".into(), Duration::ZERO)].into()
        );
        assert_eq!(
            health.failures(),
            [(("secrets".into(), "Denied"), 1)].into()
        );
        tokio::time::advance(Duration::from_secs(7)).await;
        watch.end(&End::Refused(StatusCode::BAD_GATEWAY, None), false);
        assert_eq!(
            health.silence(),
            [("secrets".into(), Duration::from_secs(7))].into()
        );
    }

    #[tokio::test]
    async fn what_is_no_failure_isnt_counted() {
        let health = Health::default();
        let watch = health.begin("/api/v1/secrets");
        let closed = || End::Closed("the server closed it".into());
        watch.end(&closed(), true);
        watch.end(&End::NotServed, true);
        assert!(health.failures().is_empty());
        watch.end(&closed(), false);
        watch.end(&End::Silent, true);
        watch.end(&End::Mute, false);
        let want = [
            (("secrets".into(), "Closed"), 1),
            (("secrets".into(), "Silent"), 2),
        ];
        assert_eq!(health.failures(), want.into());
    }
}
