//! A review's body: read within the request's time, and within the memory that there is for all of them together.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use axum::body::Body;
use futures::StreamExt;
use mimeo_core::{
    admission::come_again,
    review::{Decoded, Request, Undecodable, bad_request, decode, encode_unread},
};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, timeout_at},
};

use crate::metrics::Word;

/// Object and old object travel together, each up to etcd's 1.5 MiB and grown by JSON's escapes; API servers send no more than
/// this.
const BODY_LIMIT: usize = 7 << 20;
/// Memory for all reviews at once, in bytes: four of the largest bodies, or some 2,000 of the usual size. The limit in
/// `manifests/chart/values.yaml` reckons with it.
const MEMORY: usize = 64 << 20;
/// What a request takes besides its body.
const REQUEST: usize = 16 << 10;
/// How often the log tells that there is too little of it.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// The memory for all reviews.
#[derive(Debug)]
pub(crate) struct Memory {
    permits: Semaphore,
    /// When it was told last that there is too little.
    told: Mutex<Option<Instant>>,
}

impl Default for Memory {
    fn default() -> Self {
        Self { permits: Semaphore::new(MEMORY), told: Mutex::default() }
    }
}

impl Memory {
    /// Room for one more request; none if there is none. Nobody waits for it: those who have it may be waiting, too.
    pub(crate) fn room(&self) -> Option<Room<'_>> {
        let all = &self.permits;
        let mut room = Room { all, held: all.try_acquire_many(0).ok()? };
        room.grow(REQUEST).then_some(room)
    }

    /// Whether it is time to tell that there is too little: not for each of the many requests of which that is true.
    pub(crate) fn lack_is_news(&self) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let news = told.is_none_or(|told| told.elapsed() >= TELL_EVERY);
        if news {
            *told = Some(Instant::now());
        }
        news
    }
}

/// What one request holds of it, until dropped.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    all: &'a Semaphore,
    held: SemaphorePermit<'a>,
}

impl Room<'_> {
    /// Takes that many bytes more; false if they aren't there.
    fn grow(&mut self, bytes: usize) -> bool {
        let more = u32::try_from(bytes).ok().and_then(|bytes| self.all.try_acquire_many(bytes).ok());
        more.map(|more| self.held.merge(more)).is_some()
    }

    /// Holds that many bytes from now on instead of the body's; false if they aren't there.
    pub(crate) fn hold_instead(&mut self, bytes: usize) -> bool {
        let held = self.held.num_permits();
        let wanted = REQUEST + bytes;
        drop(self.held.split(held.saturating_sub(wanted)));
        self.grow(wanted.saturating_sub(held))
    }
}

/// Why there is no review, and what there is of it.
#[derive(Debug)]
pub(crate) struct Unread {
    pub(crate) why: Why,
    begun: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Why {
    #[error("its body is over {} MiB", BODY_LIMIT >> 20)]
    TooLarge,
    #[error("its body broke off")]
    BrokenOff,
    #[error("its body did not come in time")]
    Late,
    #[error("Mimeo is asked more at once than it has memory for")]
    NoRoom,
    #[error(transparent)]
    Undecodable(Undecodable),
}

impl Why {
    /// How it is counted.
    pub(crate) fn word(&self) -> Word {
        match self {
            Self::NoRoom => Word::ComeAgain,
            Self::TooLarge | Self::BrokenOff | Self::Late | Self::Undecodable(_) => Word::Undecodable,
        }
    }
}

impl Unread {
    /// The answer that says so.
    pub(crate) fn answer(&self) -> Vec<u8> {
        let verdict = match &self.why {
            Why::NoRoom => come_again(self.why.to_string()),
            why => bad_request(why.to_string()),
        };
        encode_unread(&self.begun, &verdict)
    }
}

/// Reads a review.
pub(crate) async fn receive(body: Body, room: &mut Room<'_>, deadline: Instant) -> Result<Request, Unread> {
    let body = read(body, room, deadline).await?;
    match decode(&body) {
        Ok(Decoded { request, memory }) if room.hold_instead(memory) => Ok(request),
        Ok(_) => Err(Unread { why: Why::NoRoom, begun: body }),
        Err(undecodable) => Err(Unread { why: Why::Undecodable(undecodable), begun: body }),
    }
}

/// Takes room for what has come, not for what is announced: who stalls keeps little from others.
async fn read(body: Body, room: &mut Room<'_>, deadline: Instant) -> Result<Vec<u8>, Unread> {
    let (mut stream, mut begun) = (body.into_data_stream(), Vec::new());
    let why = loop {
        let piece = match timeout_at(deadline, stream.next()).await {
            Ok(None) => return Ok(begun),
            Ok(Some(Ok(piece))) => piece,
            Ok(Some(Err(_))) => break Why::BrokenOff,
            Err(_) => break Why::Late,
        };
        begun.extend_from_slice(&piece);
        if begun.len() > BODY_LIMIT {
            break Why::TooLarge;
        }
        // A vector that grows has up to twice the room that it needs.
        if !room.grow(2 * piece.len()) {
            break Why::NoRoom;
        }
    };
    Err(Unread { why, begun })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use std::convert::Infallible;

    use futures::stream;
    use serde_json::Value;

    use super::*;

    const UID: &str = r#"{"request":{"uid":"u-1","#;

    /// A body of these pieces that then stalls.
    fn stalling(pieces: Vec<Vec<u8>>) -> Body {
        Body::from_stream(stream::iter(pieces.into_iter().map(Ok::<_, Infallible>)).chain(stream::pending()))
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(1)
    }

    #[track_caller]
    fn answered(unread: &Unread, why: Why, code: u16) {
        let review: Value = serde_json::from_slice(&unread.answer()).unwrap();
        let response = &review["response"];
        let told = (unread.why.clone(), &response["uid"], &response["status"]["code"]);
        assert_eq!(told, (why, &"u-1".into(), &code.into()));
        let word = if code == 429 { Word::ComeAgain } else { Word::Undecodable };
        assert_eq!(unread.why.word(), word, "it is counted as it is answered");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_of_the_largest_size_is_read_and_a_larger_one_refused() {
        let memory = Memory::default();
        let largest = vec![b' '; BODY_LIMIT];
        let mut room = memory.room().unwrap();
        assert!(read(largest.clone().into(), &mut room, soon()).await.unwrap() == largest);
        let pieces = vec![UID.into(), largest];
        answered(&read(stalling(pieces), &mut room, soon()).await.unwrap_err(), Why::TooLarge, 400);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stalls_is_given_up_and_holds_nothing_any_more() {
        let memory = Memory::default();
        let mut room = memory.room().unwrap();
        let late = read(stalling(vec![UID.into()]), &mut room, soon()).await.unwrap_err();
        answered(&late, Why::Late, 400);
        drop(room);
        assert_eq!(memory.permits.available_permits(), MEMORY);
    }

    #[tokio::test(start_paused = true)]
    async fn four_of_the_largest_are_held_and_the_fifth_comes_again() {
        let memory = Memory::default();
        let mut rooms: Vec<_> = (0..5).map(|_| memory.room().unwrap()).collect();
        let (fifth, others) = rooms.split_last_mut().unwrap();
        for room in others {
            read(vec![b' '; BODY_LIMIT].into(), room, soon()).await.unwrap();
        }
        let body = || stalling(vec![UID.into(), vec![b' '; BODY_LIMIT - UID.len()]]);
        answered(&read(body(), fifth, soon()).await.unwrap_err(), Why::NoRoom, 429);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lack_of_room_is_told_now_and_then() {
        let memory = Memory::default();
        assert_eq!([memory.lack_is_news(), memory.lack_is_news()], [true, false]);
        tokio::time::advance(TELL_EVERY).await;
        assert_eq!([memory.lack_is_news(), memory.lack_is_news()], [true, false]);
    }

    #[test]
    fn what_is_kept_of_a_review_is_held_instead_of_its_body() {
        let memory = Memory::default();
        let mut room = memory.room().unwrap();
        assert!(room.grow(1_000) && room.hold_instead(200));
        assert_eq!(memory.permits.available_permits(), MEMORY - REQUEST - 200);
        assert!(room.hold_instead(5_000) && !room.hold_instead(MEMORY));
        assert_eq!(memory.permits.available_permits(), MEMORY - REQUEST - 5_000);
        drop(room);
        let rooms: Vec<_> = std::iter::from_fn(|| memory.room()).collect();
        assert_eq!(rooms.len(), MEMORY / REQUEST);
    }
}
