//! The limits of all reviews together. They treat all callers alike, since a caller can't be told
//! from the API server: whoever reaches the port can use them up.

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::metrics::Hook;

/// Bytes of the bodies of all reviews under way: three of the largest, or some 2,000 of the usual
/// size. The memory limit in `manifests/chart/values.yaml` reckons with it.
const BODIES: usize = 64 << 20;
/// Bytes that a request counts for besides its body. This bounds the number of requests, too.
const REQUEST: u32 = 16 << 10;
/// Reviews that are parsed and decided at once, where a hook keeps more of the objects than their
/// marks: up to 8 MiB for each review that somebody has made that large on purpose.
const DECIDING: usize = 8;
/// The same for namespaces, of which a storm must not wait.
const NAMESPACES: usize = 32;

/// The limits of all reviews together.
#[derive(Debug)]
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
    /// Room for one more request; `None` if all of it is taken.
    pub(crate) fn room(&self) -> Option<Room<'_>> {
        let taken = self.bodies.try_acquire_many(REQUEST).ok()?;
        Some(Room {
            all: &self.bodies,
            taken,
        })
    }

    /// The permits to decide reviews of a hook; `None` if the hook has no such limit. Hooks have
    /// separate ones, so that slow reviews of rules keep no namespace waiting.
    pub(crate) fn deciding(&self, hook: Hook) -> Option<&Semaphore> {
        match hook {
            Hook::Namespaces => Some(&self.namespaces),
            Hook::Objects => Some(&self.objects),
            Hook::Authors | Hook::Rules => Some(&self.rules),
            Hook::Pods | Hook::Copies => None,
        }
    }
}

/// The room that one request takes, until dropped.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    all: &'a Semaphore,
    taken: SemaphorePermit<'a>,
}

impl Room<'_> {
    /// Takes that many bytes more, without waiting: several large bodies that wait for each other
    /// would all be late. False if too few are left.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let more = u32::try_from(bytes).ok();
        let Some(more) = more.and_then(|bytes| self.all.try_acquire_many(bytes).ok()) else {
            return false;
        };
        self.taken.merge(more);
        true
    }
}
