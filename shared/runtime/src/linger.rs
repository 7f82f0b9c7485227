//! Closes a connection so that its client still receives the server's last message.
//!
//! A client may write its next request at the moment at which the server announces the end of the
//! connection. If the server closed then, its operating system would answer this request with a
//! reset (RFC 9293, section 3.10.7.1). The client's write fails, and the client does not read the
//! event_update. An API server treats this as a failed call, and refuses the request under review.
//!
//! A client that reads the event_update sends its request on another connection: HTTP/2's GOAWAY
//! names the last request that the server accepted. So the server goes on reading, and discards the
//! input until the client closes too.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    sync::oneshot,
    time::timeout,
};

/// How long the client may take to close.
const PATIENCE: Duration = Duration::from_secs(2);

/// A stream that returns to its owner when the borrower drops it.
pub(crate) struct Lent<T>(Option<(T, oneshot::Sender<T>)>);

impl<T> Lent<T> {
    /// The lent stream, and the receiver that gets it back.
    pub(crate) fn new(stream: T) -> (Self, oneshot::Receiver<T>) {
        let (back, returned) = oneshot::channel();
        (Self(Some((stream, back))), returned)
    }

    /// The stream, unless it was returned.
    pub(crate) fn get_ref(&self) -> Option<&T> {
        self.0.as_ref().map(|(stream, _)| stream)
    }

    fn stream(&mut self) -> io::Result<Pin<&mut T>>
    where
        T: Unpin,
    {
        // The stream is present until the drop.
        self.0
            .as_mut()
            .map(|(stream, _)| Pin::new(stream))
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        if let Some((stream, back)) = self.0.take() {
            // An error means that the owner no longer waits for the stream.
            let _ = back.send(stream);
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Lent<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream()?.poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Lent<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.0
            .as_ref()
            .is_some_and(|(stream, _)| stream.is_write_vectored())
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_shutdown(context)
    }
}

/// Announces the end of the output. Then reads until the client announces the same, or until
/// [`PATIENCE`] has passed.
pub(crate) async fn close(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let _ = timeout(PATIENCE, async {
        stream.shutdown().await?;
        let mut rest = [0; 1 << 10];
        while stream.read(&mut rest).await? > 0 {}
        io::Result::Ok(())
    })
    .await;
}
