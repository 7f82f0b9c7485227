//! Request bodies in pieces. Bytes that a thousand writes share are in memory once, regardless of
//! how many of these writes are in flight.
//!
//! kube's [`Body`] can hold only one slice of bytes. The writer therefore sends an empty body and
//! attaches the pieces to the request. The client's innermost layer, [`unpack`], replaces the empty
//! body with the pieces.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::Request;
use http_body::{Frame, SizeHint};
use http_body_util::Either;
use kube::client::Body;

/// The pieces of a body that are not sent yet: an extension of a request that has an empty body.
#[derive(Clone)]
pub(crate) struct Pieces(pub(crate) VecDeque<Bytes>);

/// The body as the connection sends it.
pub(crate) type Outgoing = Either<Body, Pieces>;

/// Gives a request the body that the connection sends: its pieces if it has any, else its own body.
pub(crate) fn unpack(request: Request<Body>) -> Request<Outgoing> {
    let (mut head, body) = request.into_parts();
    let body = match head.extensions.remove::<Pieces>() {
        Some(pieces) => Either::Right(pieces),
        None => Either::Left(body),
    };
    Request::from_parts(head, body)
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.0.pop_front();
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    /// Exact, so that the request has a Content-Length and is not sent in chunks.
    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|piece| piece.len() as u64).sum())
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use http_body::Body as _;
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn pieces_take_the_place_of_the_body() {
        let middle = Bytes::from(vec![b'x'; 1000]);
        let pieces = [
            Bytes::from_static(b"{"),
            middle.clone(),
            Bytes::from_static(b"}"),
        ];
        let pieces = Pieces(pieces.into());
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(pieces);
        let mut body = unpack(request).into_body();
        assert_eq!(body.size_hint().exact(), Some(1002));
        let _first = body.frame().await.expect("a piece").expect("no error");
        assert_eq!(body.size_hint().exact(), Some(1001));
        let second = body
            .frame()
            .await
            .expect("a piece")
            .expect("no error")
            .into_data()
            .expect("data");
        assert_eq!(second.as_ptr(), middle.as_ptr());
        assert!(!body.is_end_stream());
        assert_eq!(body.collect().await.expect("the rest").to_bytes(), "}");
    }

    #[tokio::test]
    async fn other_bodies_pass() {
        let body = unpack(Request::new(Body::from(Bytes::from_static(b"abc")))).into_body();
        assert_eq!(body.size_hint().exact(), Some(3));
        assert_eq!(body.collect().await.expect("a body").to_bytes(), "abc");
    }
}
