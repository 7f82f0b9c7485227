//! One at a time, by name: reads of one namespace take turns, since one answer serves many.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    sync::{Mutex as Turn, OwnedMutexGuard},
    time::{Instant, timeout_at},
};

/// Whose turn it is, name by name, and what the last one left for those who queue. Nothing is kept once nobody does.
#[derive(Debug)]
pub(crate) struct Turns<T>(Mutex<HashMap<String, Arc<Turn<T>>>>);

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Default> Turns<T> {
    /// Waits for the turn, which lasts as long as the guard; none if it doesn't come before `deadline`.
    pub(crate) async fn take(&self, name: &str, deadline: Instant) -> Option<OwnedMutexGuard<T>> {
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            turns.entry(name.to_owned()).or_default().clone()
        };
        timeout_at(deadline, turn.lock_owned()).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn one_at_a_time_by_name() {
        let turns = Turns::<()>::default();
        let soon = || Instant::now() + Duration::from_millis(20);
        let first = turns.take("a", soon()).await;
        assert!(first.is_some() && turns.take("b", soon()).await.is_some());
        assert!(turns.take("a", soon()).await.is_none());
        drop(first);
        assert!(turns.take("a", soon()).await.is_some());
    }
}
