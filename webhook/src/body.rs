//! Reads the body of a review, within the request's deadline and the limits of all reviews
//! together.

use axum::body::Body;
use futures::StreamExt;
use mimeo_engine::admission::come_again;
use mimeo_model::review::{
    Kept, Request, Undecodable, Verdict, bad_request, decode, encode_unread,
};
use tokio::{
    sync::SemaphorePermit,
    time::{Instant, timeout_at},
};

use crate::{
    limits::{Limits, Room},
    metrics::{Hook, Word},
};

/// Largest body of a review, in bytes. A review holds the object and the old object. Each has up to
/// 1.5 MiB in etcd. Some characters take one byte in etcd (`<`, `>`, `&`, control characters), but
/// the API server writes them as six. So any user with the permission to edit an object can make it
/// that large. One MiB is for the rest of the review.
pub(crate) const BODY_LIMIT: usize = (2 * 6 * 3 / 2 + 1) << 20;

/// Reason why a review could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unread {
    #[error("its body is over {} MiB", BODY_LIMIT >> 20)]
    TooLarge,
    #[error("its body broke off, or did not come in time")]
    Incomplete,
    #[error("the webhook has too many requests at once. Retry in 1 s")]
    NoRoom,
    #[error(transparent)]
    Undecodable(Undecodable),
}

impl Unread {
    /// The verdict under which the metrics count this reason.
    pub(crate) fn word(&self) -> Word {
        if *self == Self::NoRoom {
            Word::ComeAgain
        } else {
            Word::Undecodable
        }
    }

    /// The response that refuses the request of which these bytes were read. Returns `None` where
    /// the call must fail instead, so that the API server applies the hook's failure policy: any
    /// response would be a refusal.
    pub(crate) fn answer(&self, hook: Hook, begun: &[u8]) -> Option<Vec<u8>> {
        Some(encode_unread(begun, &self.verdict(hook)?))
    }

    fn verdict(&self, hook: Hook) -> Option<Verdict> {
        let told = || bad_request(format!("the webhook cannot read the review: {self}"));
        match (hook, self) {
            (_, Self::NoRoom) => Some(come_again(self.to_string())),
            // Pods, Authors and Rules fail closed, and a response can say why.
            //
            // The writer of an object decides how large it is and how deeply it nests. So a review
            // that is too large or undecodable must not pass the guard of copies. (The API server
            // asks that hook only after its match conditions have found a change of a copy.) Nor
            // may such a review create a namespace without the pending label. A namespace small
            // enough to be stored never exceeds the size limit.
            (Hook::Pods | Hook::Authors | Hook::Rules, _)
            | (Hook::Copies, Self::TooLarge | Self::Undecodable(_))
            | (Hook::Namespaces, Self::Undecodable(_)) => Some(told()),
            (Hook::Namespaces | Hook::Objects | Hook::Copies, _) => None,
        }
    }
}

/// The parts of a review's objects that each hook needs.
fn kept(hook: Hook) -> Kept {
    match hook {
        Hook::Namespaces => Kept::Metadata,
        Hook::Objects => Kept::Content,
        Hook::Authors | Hook::Rules => Kept::Rule,
        Hook::Pods | Hook::Copies => Kept::Marks,
    }
}

/// Reads a review into `begun`. If the hook limits concurrent decisions, the caller keeps the
/// permit until it has answered.
pub(crate) async fn receive<'a>(
    body: Body,
    hook: Hook,
    limits: &'a Limits,
    room: &mut Room<'_>,
    deadline: Instant,
    begun: &mut Vec<u8>,
) -> Result<(Request, Option<SemaphorePermit<'a>>), Unread> {
    read(body, room, deadline, begun).await?;
    let mut permit = None;
    if let Some(permits) = limits.deciding(hook) {
        let acquired = timeout_at(deadline, permits.acquire()).await;
        permit = Some(acquired.ok().and_then(Result::ok).ok_or(Unread::NoRoom)?);
    }
    let request = decode(begun, kept(hook)).map_err(Unread::Undecodable)?;
    Ok((request, permit))
}

/// Takes room for bytes as they arrive. The announced length reserves nothing.
async fn read(
    body: Body,
    room: &mut Room<'_>,
    deadline: Instant,
    begun: &mut Vec<u8>,
) -> Result<(), Unread> {
    let mut stream = body.into_data_stream();
    loop {
        let next = timeout_at(deadline, stream.next()).await;
        let Some(piece) = next.map_err(|_| Unread::Incomplete)? else {
            return Ok(());
        };
        let piece = piece.map_err(|_| Unread::Incomplete)?;
        if begun.len() + piece.len() > BODY_LIMIT {
            return Err(Unread::TooLarge);
        }
        if !room.grow(piece.len()) {
            return Err(Unread::NoRoom);
        }
        begun.extend_from_slice(&piece);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use std::{convert::Infallible, time::Duration};

    use futures::stream;
    use serde_json::Value;

    use super::*;

    const UID: &str = r#"{"request":{"uid":"u-1","#;

    /// A body that sends these pieces and then stalls.
    fn stalling(pieces: Vec<Vec<u8>>) -> Body {
        Body::from_stream(
            stream::iter(pieces.into_iter().map(Ok::<_, Infallible>)).chain(stream::pending()),
        )
    }

    /// The bytes of a body, or the failure with the bytes that were read before.
    async fn read(
        body: Body,
        room: &mut Room<'_>,
        deadline: Instant,
    ) -> Result<Vec<u8>, (Unread, Vec<u8>)> {
        let mut begun = Vec::new();
        match super::read(body, room, deadline, &mut begun).await {
            Ok(()) => Ok(begun),
            Err(unread) => Err((unread, begun)),
        }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(1)
    }

    #[track_caller]
    fn answered((unread, begun): &(Unread, Vec<u8>), why: Unread, code: u16) {
        let answer = unread.answer(Hook::Rules, begun).unwrap();
        let review: Value = serde_json::from_slice(&answer).unwrap();
        let response = &review["response"];
        let told = (
            unread.clone(),
            &response["uid"],
            &response["status"]["code"],
        );
        assert_eq!(told, (why, &"u-1".into(), &code.into()));
        let word = if code == 429 {
            Word::ComeAgain
        } else {
            Word::Undecodable
        };
        assert_eq!(unread.word(), word, "it is counted as it is answered");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_of_the_largest_size_is_read_and_a_larger_one_refused() {
        let limits = Limits::default();
        let largest = vec![b' '; BODY_LIMIT];
        let mut room = limits.room().unwrap();
        assert!(
            read(largest.clone().into(), &mut room, soon())
                .await
                .unwrap()
                == largest
        );
        let pieces = vec![UID.into(), largest];
        answered(
            &read(stalling(pieces), &mut room, soon()).await.unwrap_err(),
            Unread::TooLarge,
            400,
        );
    }

    /// For each failure, the hooks that refuse the request. For the other hooks the failure policy
    /// decides.
    #[test]
    fn what_fails_open_refuses_only_what_would_be_a_way_past_it() {
        let undecodable = decode(b"", Kept::Marks).unwrap_err();
        for (why, hooks) in [
            (
                Unread::TooLarge,
                &[Hook::Pods, Hook::Authors, Hook::Rules, Hook::Copies][..],
            ),
            (
                Unread::Undecodable(undecodable),
                &[
                    Hook::Namespaces,
                    Hook::Pods,
                    Hook::Authors,
                    Hook::Rules,
                    Hook::Copies,
                ],
            ),
            (
                Unread::Incomplete,
                &[Hook::Pods, Hook::Authors, Hook::Rules],
            ),
            (
                Unread::NoRoom,
                &[
                    Hook::Namespaces,
                    Hook::Pods,
                    Hook::Objects,
                    Hook::Authors,
                    Hook::Rules,
                    Hook::Copies,
                ],
            ),
        ] {
            let refusing: Vec<Hook> = Hook::ALL
                .iter()
                .copied()
                .filter(|hook| why.verdict(*hook).is_some())
                .collect();
            assert_eq!(refusing, hooks, "{why:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stalls_is_given_up() {
        let limits = Limits::default();
        let mut room = limits.room().unwrap();
        let late = read(stalling(vec![UID.into()]), &mut room, soon())
            .await
            .unwrap_err();
        answered(&late, Unread::Incomplete, 400);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_beyond_the_room_for_all_is_told_to_come_again() {
        let limits = Limits::default();
        let stalled = async || {
            let mut room = limits.room().unwrap();
            let pieces = vec![UID.into(), vec![b' '; BODY_LIMIT - UID.len()]];
            read(stalling(pieces), &mut room, soon()).await
        };
        let four = futures::future::join_all([(); 4].map(|()| stalled()));
        let unread: Vec<_> = four.await.into_iter().map(Result::unwrap_err).collect();
        answered(&unread[0], Unread::Incomplete, 400);
        answered(&unread[3], Unread::NoRoom, 429);
        assert!(
            limits.room().is_some_and(|mut room| room.grow(BODY_LIMIT)),
            "the room is free again"
        );
        let taken: Vec<_> = std::iter::from_fn(|| limits.room()).collect();
        assert_eq!(taken.len(), 4096, "requests at once");
    }

    #[tokio::test(start_paused = true)]
    async fn reviews_of_one_hook_wait_for_each_other_and_not_for_those_of_another() {
        let limits = Limits::default();
        let receive = async |hook| {
            let (mut room, body) = (limits.room().unwrap(), Body::from(UID));
            receive(body, hook, &limits, &mut room, soon(), &mut Vec::new())
                .await
                .map(drop)
                .unwrap_err()
        };
        let rules = limits.deciding(Hook::Rules).unwrap();
        let all = rules.available_permits();
        let busy = rules.acquire_many(all.try_into().unwrap()).await.unwrap();
        assert_eq!(receive(Hook::Rules).await, Unread::NoRoom);
        assert_eq!(receive(Hook::Authors).await, Unread::NoRoom);
        for hook in [Hook::Namespaces, Hook::Pods, Hook::Objects, Hook::Copies] {
            assert!(
                matches!(receive(hook).await, Unread::Undecodable(_)),
                "{hook:?}"
            );
        }
        drop(busy);
        assert!(matches!(receive(Hook::Rules).await, Unread::Undecodable(_)));
        assert_eq!(rules.available_permits(), all);
    }
}
