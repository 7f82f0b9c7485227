//! Ends a connection so that its client hears what it was told last.
//!
//! A client may write its next request just as it is told that none will be taken any more. Were
//! the connection closed then, the operating system would answer that request with a reset (RFC
//! 9293, section 3.10.7.1), and the client, whose write fails, would not look at what it was told
//! before: an API server takes it for a failed call, and refuses what it asked about. Told in time
//! to go elsewhere (HTTP/2's GOAWAY names the last request that was taken), it asks somebody else.
//! So what still comes is read and thrown away until the client closes, too.

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

/// A stream that comes back to its owner when whoever has it drops it.
pub(crate) struct Lent<T>(Option<(T, oneshot::Sender<T>)>);

impl<T> Lent<T> {
    /// The stream, and where it comes back.
    pub(crate) fn new(stream: T) -> (Self, oneshot::Receiver<T>) {
        let (back, returned) = oneshot::channel();
        (Self(Some((stream, back))), returned)
    }

    /// The stream, until it is returned.
    pub(crate) fn get_ref(&self) -> Option<&T> {
        self.0.as_ref().map(|(stream, _)| stream)
    }

    fn stream(&mut self) -> io::Result<Pin<&mut T>>
    where
        T: Unpin,
    {
        // It is there until the drop.
        self.0
            .as_mut()
            .map(|(stream, _)| Pin::new(stream))
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        if let Some((stream, back)) = self.0.take() {
            // An error says that nobody wants it.
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

/// Says that no more will come, and reads until the client says the same, or its time is up.
pub(crate) async fn close(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let _ = timeout(PATIENCE, async {
        stream.shutdown().await?;
        let mut rest = [0; 1 << 10];
        while stream.read(&mut rest).await? > 0 {}
        io::Result::Ok(())
    })
    .await;
}
