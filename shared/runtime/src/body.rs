//! Request bodies in pieces, so that what a thousand writes share is in memory once however many
//! are under way.
//!
//! kube's [`Body`] can hold one slice of bytes only. The writer therefore puts the pieces beside an
//! empty one, and the client's innermost layer, [`unpack`], puts them in its place.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::Request;
use http_body::{Frame, SizeHint};
use kube::client::Body;

/// A body in pieces, as an extension of a request whose own body is empty.
#[derive(Clone)]
pub(crate) struct Pieces(pub(crate) Vec<Bytes>);

/// What goes out on the connection.
pub struct Outgoing(Kind);

enum Kind {
    Whole(Body),
    /// The pieces and how many of them went out.
    Pieces(Vec<Bytes>, usize),
}

/// Not derived: the bytes may be a Secret's.
impl std::fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outgoing").finish_non_exhaustive()
    }
}

/// Gives a request the body that it shall have on the connection.
pub fn unpack(request: Request<Body>) -> Request<Outgoing> {
    let (mut head, body) = request.into_parts();
    let kind = match head.extensions.remove::<Pieces>() {
        Some(Pieces(pieces)) => Kind::Pieces(pieces, 0),
        None => Kind::Whole(body),
    };
    Request::from_parts(head, Outgoing(kind))
}

impl http_body::Body for Outgoing {
    type Data = Bytes;
    type Error = kube::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, kube::Error>>> {
        match &mut self.0 {
            Kind::Whole(body) => Pin::new(body).poll_frame(context),
            Kind::Pieces(pieces, sent) => {
                let piece = pieces.get_mut(*sent).map(std::mem::take);
                *sent += usize::from(piece.is_some());
                Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(body) => body.size_hint(),
            // Exact, so that the request has a Content-Length and isn't sent in chunks.
            Kind::Pieces(pieces, _) => {
                SizeHint::with_exact(pieces.iter().map(|piece| piece.len() as u64).sum())
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Whole(body) => body.is_end_stream(),
            Kind::Pieces(pieces, sent) => *sent >= pieces.len(),
        }
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
        let pieces = Pieces(vec![
            Bytes::from_static(b"{"),
            middle.clone(),
            Bytes::from_static(b"}"),
        ]);
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
