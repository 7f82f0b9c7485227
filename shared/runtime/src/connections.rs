//! The connections of a server: at most a fixed number at a time, which hyper leaves to its caller.
//! Further clients wait in the listener's backlog until a connection ends.
//!
//! Each server limits how long a connection may last. All clients have the same limits.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::sleep,
};
use tracing::warn;

/// The pause after the operating system refused to accept a connection, for example because no file
/// descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts the next connection as soon as fewer than `most` are open. Each open connection is a task.
/// Cancel safe.
pub(crate) async fn accept(
    listener: &TcpListener,
    open: &mut JoinSet<()>,
    most: usize,
) -> (TcpStream, SocketAddr) {
    loop {
        let room = open.len() < most;
        tokio::select! {
            Some(_) = open.join_next() => {}
            accepted = listener.accept(), if room => match accepted {
                Ok(accepted) => return accepted,
                Err(error) => {
                    warn!(%error, "failed to accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::{sync::Notify, time::timeout};

    use super::*;

    #[tokio::test]
    async fn a_client_beyond_the_limit_waits_until_a_connection_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (mut open, end) = (JoinSet::new(), std::sync::Arc::new(Notify::new()));
        let mut clients = Vec::new();
        for _ in 0..2 {
            clients.push(TcpStream::connect(address).await.expect("it listens"));
            let (stream, end) = (accept(&listener, &mut open, 2).await, end.clone());
            open.spawn(async move {
                end.notified().await;
                drop(stream);
            });
        }
        clients.push(TcpStream::connect(address).await.expect("it listens"));
        timeout(Duration::from_millis(50), accept(&listener, &mut open, 2))
            .await
            .expect_err("both places are taken");
        end.notify_one();
        timeout(Duration::from_secs(5), accept(&listener, &mut open, 2))
            .await
            .expect("one connection has ended");
        assert_eq!(open.len(), 1);
        end.notify_one();
        timeout(Duration::from_secs(5), open.join_all())
            .await
            .expect("all have ended");
    }
}
