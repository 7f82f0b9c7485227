//! Limits that all reviews share. Axum limits the size of one body, and tower the number of
//! requests. Neither limits the bytes of all bodies together, which decide on the memory.
//!
//! They treat all callers alike, because the webhook cannot tell the API server from other callers.
//! Any client that reaches the port can use the limits up.

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::metrics::Hook;

/// Bytes that the bodies of all reviews under way may take: three of the largest, or about 2,000 of
/// the usual size. The memory limit in `manifests/chart/values.yaml` depends on this number.
const BODIES: usize = 64 << 20;
/// Bytes that each request takes besides its body. This also bounds the number of requests.
const REQUEST: u32 = 16 << 10;
/// Concurrent reviews per limit, for hooks that keep more of the objects than their labels and
/// annotations. A review that was made as large as possible on purpose takes up to 8 MiB.
const DECIDING: usize = 8;
/// The same for namespaces. It is larger, so that many new namespaces at once do not wait.
const NAMESPACES: usize = 32;

/// Limits that all reviews share.
pub(crate) struct Limits {
    bodies: Semaphore,
    namespaces: Semaphore,
    objects: Semaphore,
    rules: Semaphore,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bodies: Semaphore::new(BODIES),
            namespaces: Semaphore::new(NAMESPACES),
            objects: Semaphore::new(DECIDING),
            rules: Semaphore::new(DECIDING),
        }
    }
}

impl Limits {
    /// Room for one more request. Returns `None` if no room is left.
    pub(crate) fn room(&self) -> Option<Room<'_>> {
        let taken = self.bodies.try_acquire_many(REQUEST).ok()?;
        Some(Room {
            all: &self.bodies,
            taken,
        })
    }

    /// The permits to decide reviews of a hook, or `None` if the hook has no such limit. Hooks have
    /// separate limits, so that slow reviews of rules do not delay namespaces.
    pub(crate) fn deciding(&self, hook: Hook) -> Option<&Semaphore> {
        match hook {
            Hook::Namespaces => Some(&self.namespaces),
            Hook::Objects => Some(&self.objects),
            Hook::Authors | Hook::Rules => Some(&self.rules),
            Hook::Pods | Hook::Copies => None,
        }
    }
}

/// The room that one request takes. Dropping the value frees it.
pub(crate) struct Room<'a> {
    all: &'a Semaphore,
    taken: SemaphorePermit<'a>,
}

impl Room<'_> {
    /// Takes room for more bytes. Returns false if too few are left. It does not wait: several
    /// large bodies that wait for each other would all miss their deadlines.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let more = u32::try_from(bytes).ok();
        let Some(more) = more.and_then(|bytes| self.all.try_acquire_many(bytes).ok()) else {
            return false;
        };
        self.taken.merge(more);
        true
    }
}
