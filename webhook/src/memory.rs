//! The memory for all reviews at once, and whose review gives way when there is too little of it.
//!
//! A caller can't be told from the API server by what it says, but by its address. So whoever stalls, or asks more than there is
//! memory for, holds up others who come from his own address, and them only as long as his own reviews are the newer ones.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{
    sync::{Notify, Semaphore},
    time::{Instant, timeout_at},
};

/// Memory for all reviews at once, in bytes: two or three of the largest bodies, or some 2,000 of the usual size. The limit in
/// `manifests/chart/values.yaml` reckons with it.
const MEMORY: usize = 64 << 20;
/// What a request takes besides its body.
const REQUEST: usize = 16 << 10;
/// An address that holds no more than this gives way no sooner than others: more than the pods take that wait at the barrier.
const SHARE: usize = MEMORY / 16;

/// The memory for all reviews.
#[derive(Debug)]
pub(crate) struct Memory {
    free: Semaphore,
    rooms: Mutex<Rooms>,
}

/// Who holds how much, and how much is waited for.
#[derive(Debug, Default)]
struct Rooms {
    /// In the order in which they were taken.
    all: BTreeMap<u64, Taken>,
    last: u64,
    wanted: usize,
}

#[derive(Debug)]
struct Taken {
    peer: IpAddr,
    bytes: usize,
    over: Arc<Over>,
}

/// Whether a review has to give way.
#[derive(Debug, Default)]
struct Over {
    is: AtomicBool,
    news: Notify,
}

impl Default for Memory {
    fn default() -> Self {
        Self { free: Semaphore::new(MEMORY), rooms: Mutex::default() }
    }
}

impl Memory {
    /// Room for one more request from this address; none if there is none in time.
    pub(crate) async fn room(&self, peer: IpAddr, deadline: Instant) -> Option<Room<'_>> {
        if !self.take(REQUEST, None, deadline).await {
            return None;
        }
        let over = Arc::<Over>::default();
        let number = self.rooms().begin(Taken { peer, bytes: REQUEST, over: over.clone() });
        Some(Room { memory: self, number, over })
    }

    /// Takes that many bytes, for this room if it is there already. If they aren't free others are told to give way, or it is told so
    /// itself; false if that doesn't help in time.
    async fn take(&self, bytes: usize, room: Option<u64>, deadline: Instant) -> bool {
        let Ok(many) = u32::try_from(bytes) else { return false };
        if let Ok(taken) = self.free.try_acquire_many(many) {
            taken.forget();
            return true;
        }
        let _wanted = Wanted::new(self, bytes);
        self.rooms().make_way(room);
        match timeout_at(deadline, self.free.acquire_many(many)).await {
            Ok(Ok(taken)) => {
                taken.forget();
                true
            }
            Ok(Err(_)) | Err(_) => false,
        }
    }

    fn rooms(&self) -> MutexGuard<'_, Rooms> {
        // Each change is made whole.
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rooms {
    fn begin(&mut self, taken: Taken) -> u64 {
        self.last += 1;
        self.all.insert(self.last, taken);
        self.last
    }

    /// Changes what a room holds; returns what it held before.
    fn held_by(&mut self, number: u64, change: impl FnOnce(usize) -> usize) -> usize {
        let Some(taken) = self.all.get_mut(&number) else { return 0 };
        let now = change(taken.bytes);
        std::mem::replace(&mut taken.bytes, now)
    }

    /// Tells so many to give way that there will be all that is wanted; stops at the room that wants it.
    fn make_way(&mut self, room: Option<u64>) {
        let held: usize = self.all.values().map(|taken| taken.bytes).sum();
        let leaving: usize = self.all.values().filter(|taken| taken.over.is()).map(|taken| taken.bytes).sum();
        let mut coming = MEMORY.saturating_sub(held) + leaving;
        while coming < self.wanted
            && let Some((number, taken)) = self.gives_way()
        {
            taken.over.tell();
            coming += taken.bytes;
            if room == Some(number) {
                return;
            }
        }
    }

    /// The oldest review of the address that holds the most.
    fn gives_way(&self) -> Option<(u64, &Taken)> {
        let staying = || self.all.iter().filter(|(_, taken)| !taken.over.is());
        let mut held: HashMap<IpAddr, usize> = HashMap::new();
        for (_, taken) in staying() {
            *held.entry(taken.peer).or_default() += taken.bytes;
        }
        let counted = |taken: &Taken| held.get(&taken.peer).map_or(0, |bytes| (*bytes).max(SHARE));
        let most = staying().map(|(_, taken)| counted(taken)).max()?;
        staying().find(|(_, taken)| counted(taken) == most).map(|(number, taken)| (*number, taken))
    }
}

/// Bytes that are waited for, until dropped.
struct Wanted<'a>(&'a Memory, usize);

impl<'a> Wanted<'a> {
    fn new(memory: &'a Memory, bytes: usize) -> Self {
        memory.rooms().wanted += bytes;
        Self(memory, bytes)
    }
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.0.rooms().wanted -= self.1;
    }
}

impl Over {
    fn is(&self) -> bool {
        self.is.load(Ordering::Relaxed)
    }

    fn tell(&self) {
        self.is.store(true, Ordering::Relaxed);
        // Kept for whoever doesn't wait for it yet.
        self.news.notify_one();
    }
}

/// What one request holds of it, until dropped.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    memory: &'a Memory,
    number: u64,
    over: Arc<Over>,
}

impl Room<'_> {
    /// Takes that many bytes more; false if they can't be had in time, or the request itself has to give way.
    pub(crate) async fn grow(&mut self, bytes: usize, deadline: Instant) -> bool {
        tokio::select! {
            biased;
            taken = self.memory.take(bytes, Some(self.number), deadline) => {
                if taken {
                    self.memory.rooms().held_by(self.number, |held| held + bytes);
                }
                taken
            }
            () = self.over() => false,
        }
    }

    /// Holds that many bytes from now on instead of the body's; false if they can't be had.
    pub(crate) async fn hold_instead(&mut self, bytes: usize, deadline: Instant) -> bool {
        let wanted = REQUEST + bytes;
        let held = self.memory.rooms().held_by(self.number, |held| held.min(wanted));
        self.memory.free.add_permits(held.saturating_sub(wanted));
        wanted <= held || self.grow(wanted - held, deadline).await
    }

    /// Returns when the request has to give way. Cancel safe.
    pub(crate) async fn over(&self) {
        while !self.over.is() {
            self.over.news.notified().await;
        }
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        let room = self.memory.rooms().all.remove(&self.number);
        self.memory.free.add_permits(room.map_or(0, |room| room.bytes));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use std::time::Duration;

    use futures::FutureExt;

    use super::*;

    const LARGE: usize = MEMORY / 4 - REQUEST;

    fn peer(number: u8) -> IpAddr {
        [10, 0, 0, number].into()
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(1)
    }

    async fn room(memory: &Memory, number: u8, bytes: usize) -> Room<'_> {
        let mut room = memory.room(peer(number), soon()).await.unwrap();
        assert!(room.grow(bytes, soon()).await);
        room
    }

    fn is_over(room: &Room<'_>) -> bool {
        room.over().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn who_holds_the_most_gives_way_the_oldest_first() {
        let memory = Memory::default();
        let held = room(&memory, 1, SHARE / 2).await;
        let mut stalled =
            vec![room(&memory, 2, LARGE).await, room(&memory, 2, LARGE).await, room(&memory, 2, LARGE).await];
        let newcomer = async {
            let mut newcomer = memory.room(peer(3), soon()).await.unwrap();
            newcomer.grow(LARGE, soon()).await
        };
        let mut newcomer = std::pin::pin!(newcomer);
        assert!(futures::poll!(newcomer.as_mut()).is_pending(), "it waits for who gives way");
        assert_eq!([is_over(&stalled[0]), is_over(&stalled[1]), is_over(&held)], [true, false, false]);
        drop(stalled.remove(0));
        assert!(newcomer.await, "then there is room");
    }

    #[tokio::test(start_paused = true)]
    async fn from_one_address_too_what_stalls_gives_way() {
        let memory = Memory::default();
        let mut stalled: Vec<_> = Vec::new();
        for _ in 0..4 {
            stalled.push(room(&memory, 1, LARGE).await);
        }
        let mut newcomer = std::pin::pin!(memory.room(peer(1), soon()));
        assert!(futures::poll!(newcomer.as_mut()).is_pending());
        assert!(is_over(&stalled[0]) && !is_over(&stalled[1]), "no more than it takes");
        drop(stalled.remove(0));
        assert!(newcomer.await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn who_holds_the_most_gets_no_more() {
        let memory = Memory::default();
        let mut greedy = room(&memory, 1, LARGE).await;
        let others = [room(&memory, 2, SHARE / 2).await, room(&memory, 3, SHARE / 2).await];
        assert!(!greedy.grow(MEMORY, soon()).await && is_over(&greedy));
        assert!(others.iter().all(|room| !is_over(room)));
    }

    #[tokio::test(start_paused = true)]
    async fn of_many_addresses_with_little_each_the_oldest_gives_way() {
        let memory = Memory::default();
        let mut rooms = Vec::new();
        for number in 1..=16 {
            rooms.push(room(&memory, number, SHARE - REQUEST).await);
        }
        let waits = memory.room(peer(200), Instant::now()).await;
        assert!(waits.is_none() && is_over(&rooms[0]) && !is_over(&rooms[1]));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_kept_of_a_review_is_held_instead_of_its_body() {
        let memory = Memory::default();
        let mut one = room(&memory, 1, 1_000).await;
        assert!(one.hold_instead(200, soon()).await);
        assert_eq!(memory.free.available_permits(), MEMORY - REQUEST - 200);
        assert!(one.hold_instead(5_000, soon()).await);
        assert_eq!(memory.free.available_permits(), MEMORY - REQUEST - 5_000);
        drop(one);
        assert_eq!(memory.free.available_permits(), MEMORY);
        assert!(memory.rooms().all.is_empty());
        let mut rooms = Vec::new();
        for _ in 0..MEMORY / REQUEST {
            rooms.push(memory.room(peer(1), soon()).await.unwrap());
        }
        assert!(memory.room(peer(2), soon()).await.is_none());
        assert_eq!(memory.rooms().wanted, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_give_way_than_others_wait_for() {
        let memory = Memory::default();
        let mut stalled = Vec::new();
        for _ in 0..4 {
            stalled.push(room(&memory, 1, LARGE).await);
        }
        let mut waiting: Vec<_> = (2..9).map(|number| Box::pin(memory.room(peer(number), soon()))).collect();
        for one in &mut waiting {
            assert!(futures::poll!(one.as_mut()).is_pending());
        }
        assert_eq!(stalled.iter().filter(|room| is_over(room)).count(), 1, "there is room for all of them in one");
        drop(stalled.remove(0));
        for one in waiting {
            assert!(one.await.is_some());
        }
    }
}
