//! Closes a connection so that its client still receives the server's last message.
//!
//! A client may write its next request at the moment at which the server announces the end of the
//! connection. If the server closed then, its operating system would answer this request with a
//! reset (RFC 9293, section 3.10.7.1). The client's write fails, and the client does not read the
//! announcement. An API server treats this as a failed call, and refuses the request under review.
//!
//! A client that reads the announcement sends its request on another connection. So the server goes
//! on reading, and discards the input until the client closes too.

use std::time::Duration;

use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy, sink},
    time::timeout,
};

/// How long the client may take to close.
const PATIENCE: Duration = Duration::from_secs(2);

/// Announces the end of the output. Then reads until the client announces the same, or until
/// [`PATIENCE`] has passed.
pub(crate) async fn close(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let _ = timeout(PATIENCE, async {
        stream.shutdown().await?;
        copy(&mut stream, &mut sink()).await
    })
    .await;
}
