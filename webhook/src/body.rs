//! A review's body: read within the request's time, and within the memory that there is for all of them together.

use axum::body::Body;
use futures::StreamExt;
use mimeo_core::{
    admission::come_again,
    review::{Decoded, Kept, Request, Undecodable, Verdict, bad_request, decode, encode_unread},
};
use tokio::time::{Instant, timeout_at};

use crate::{
    memory::Room,
    metrics::{Hook, Word},
};

/// Object and old object travel together. Each has up to 1.5 MiB in etcd, and API servers write six bytes for some that take one
/// there (`<`, `>`, `&`, control characters): whoever may edit an object can make it that large. A MiB is for the rest.
pub(crate) const BODY_LIMIT: usize = (2 * 6 * 3 / 2 + 1) << 20;

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
    /// The answer that says so; `None` if it is to be an error, so that the failure policy decides: any verdict is a refusal.
    pub(crate) fn answer(&self, hook: Hook) -> Option<Vec<u8>> {
        Some(encode_unread(&self.begun, &self.verdict(hook)?))
    }

    fn verdict(&self, hook: Hook) -> Option<Verdict> {
        let told = || bad_request(format!("Mimeo cannot read the review: {}", self.why));
        match (hook, &self.why) {
            // It refuses nothing.
            (Hook::Sources, _) => None,
            (_, Why::NoRoom) => Some(come_again(self.why.to_string())),
            // They fail closed, and a verdict says why.
            (Hook::Barrier | Hook::Stamps | Hook::Rules, _) => Some(told()),
            // How much is in an object is up to whoever writes it: no way past the guard of a copy, which API servers have seen to be
            // taken from before they ask, nor to a namespace without its mark. (None that can be stored is too large.)
            (Hook::Copies, Why::TooLarge | Why::Undecodable(_)) | (Hook::Namespaces, Why::Undecodable(_)) => {
                Some(told())
            }
            (Hook::Namespaces | Hook::Objects | Hook::Copies, _) => None,
        }
    }
}

/// Reads a review.
pub(crate) async fn receive(body: Body, kept: Kept, room: &mut Room<'_>, deadline: Instant) -> Result<Request, Unread> {
    let body = read(body, room, deadline).await?;
    match decode(&body, kept) {
        Ok(Decoded { request, memory }) if room.hold_instead(memory, deadline).await => Ok(request),
        Ok(_) => Err(Unread { why: Why::NoRoom, begun: body }),
        Err(undecodable) => Err(Unread { why: Why::Undecodable(undecodable), begun: body }),
    }
}

/// Takes room for what has come, not for what is announced: who stalls keeps little from others.
async fn read(body: Body, room: &mut Room<'_>, deadline: Instant) -> Result<Vec<u8>, Unread> {
    let (mut stream, mut begun) = (body.into_data_stream(), Vec::<u8>::new());
    let why = loop {
        let piece = tokio::select! {
            piece = timeout_at(deadline, stream.next()) => piece,
            () = room.over() => break Why::NoRoom,
        };
        let piece = match piece {
            Ok(None) => return Ok(begun),
            Ok(Some(Ok(piece))) => piece,
            Ok(Some(Err(_))) => break Why::BrokenOff,
            Err(_) => break Why::Late,
        };
        if begun.len() + piece.len() > BODY_LIMIT {
            break Why::TooLarge;
        }
        if begun.capacity() - begun.len() < piece.len() {
            // By a quarter, not to twice its size as vectors do: of the largest there should be room for more than one.
            let more = piece.len().max(begun.len() / 4);
            if !room.grow(more, deadline).await {
                break Why::NoRoom;
            }
            begun.reserve_exact(more);
        }
        begun.extend_from_slice(&piece);
    };
    Err(Unread { why, begun })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use std::{convert::Infallible, net::IpAddr, time::Duration};

    use futures::stream;
    use serde_json::Value;

    use super::*;
    use crate::memory::Memory;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
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
        let review: Value = serde_json::from_slice(&unread.answer(Hook::Rules).unwrap()).unwrap();
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
        let mut room = memory.room(HERE, soon()).await.unwrap();
        assert!(read(largest.clone().into(), &mut room, soon()).await.unwrap() == largest);
        let pieces = vec![UID.into(), largest];
        answered(&read(stalling(pieces), &mut room, soon()).await.unwrap_err(), Why::TooLarge, 400);
    }

    /// What each hook refuses that can't read its review; of the rest the failure policy decides.
    #[test]
    fn what_fails_open_refuses_only_what_would_be_a_way_past_it() {
        let undecodable = decode(b"", Kept::Marks).unwrap_err();
        for (why, hooks) in [
            (Why::TooLarge, &[Hook::Barrier, Hook::Stamps, Hook::Rules, Hook::Copies][..]),
            (
                Why::Undecodable(undecodable),
                &[Hook::Namespaces, Hook::Barrier, Hook::Stamps, Hook::Rules, Hook::Copies],
            ),
            (Why::BrokenOff, &[Hook::Barrier, Hook::Stamps, Hook::Rules]),
            (Why::Late, &[Hook::Barrier, Hook::Stamps, Hook::Rules]),
            (Why::NoRoom, &[Hook::Namespaces, Hook::Barrier, Hook::Objects, Hook::Stamps, Hook::Rules, Hook::Copies]),
        ] {
            let unread = Unread { why, begun: UID.into() };
            let refusing: Vec<Hook> = Hook::ALL.into_iter().filter(|hook| unread.verdict(*hook).is_some()).collect();
            assert_eq!(refusing, hooks, "{:?}", unread.why);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn of_the_largest_bodies_there_is_room_for_two_at_once() {
        let memory = Memory::default();
        let come = async || {
            let mut room = memory.room(HERE, soon()).await.unwrap();
            let mut pieces = vec![vec![b' '; 16 << 10]; BODY_LIMIT >> 14];
            pieces.insert(0, UID.into());
            pieces.pop();
            read(stalling(pieces), &mut room, soon()).await.unwrap_err().why
        };
        assert_eq!(tokio::join!(come(), come()), (Why::Late, Why::Late));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stalls_is_given_up() {
        let memory = Memory::default();
        let mut room = memory.room(HERE, soon()).await.unwrap();
        let late = read(stalling(vec![UID.into()]), &mut room, soon()).await.unwrap_err();
        answered(&late, Why::Late, 400);
    }

    #[tokio::test(start_paused = true)]
    async fn what_stalls_comes_again_when_others_have_no_room() {
        let memory = Memory::default();
        let stalled = async || {
            let mut room = memory.room(HERE, soon()).await.unwrap();
            read(stalling(vec![UID.into(), vec![b' '; BODY_LIMIT - UID.len()]]), &mut room, soon()).await
        };
        let five = futures::future::join_all([(); 5].map(|()| stalled()));
        let unread: Vec<Unread> = five.await.into_iter().map(Result::unwrap_err).collect();
        answered(&unread[0], Why::NoRoom, 429);
        answered(&unread[4], Why::Late, 400);
    }
}
