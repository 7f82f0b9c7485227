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

/// The connections of one server, each in a task of its own.
pub(crate) struct Connections {
    most: usize,
    tasks: JoinSet<()>,
}

impl Connections {
    /// Allows at most `most` connections at a time.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            tasks: JoinSet::new(),
        }
    }

    /// Accepts the next connection as soon as there is room for one. Cancel safe.
    pub(crate) async fn accept(&mut self, listener: &TcpListener) -> (TcpStream, SocketAddr) {
        loop {
            let room = self.tasks.len() < self.most;
            tokio::select! {
                Some(_) = self.tasks.join_next() => {}
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

    /// Serves a connection in a task of its own.
    pub(crate) fn serve(&mut self, connection: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(connection);
    }

    /// Returns when all connections have ended. Cancel safe.
    pub(crate) async fn end(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }

    /// How many connections are open.
    pub(crate) fn count(&self) -> usize {
        self.tasks.len()
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
        let (mut connections, end) = (Connections::new(2), std::sync::Arc::new(Notify::new()));
        let mut clients = Vec::new();
        for _ in 0..2 {
            clients.push(TcpStream::connect(address).await.expect("it listens"));
            let (stream, end) = (connections.accept(&listener).await, end.clone());
            connections.serve(async move {
                end.notified().await;
                drop(stream);
            });
        }
        clients.push(TcpStream::connect(address).await.expect("it listens"));
        timeout(Duration::from_millis(50), connections.accept(&listener))
            .await
            .expect_err("both places are taken");
        end.notify_one();
        timeout(Duration::from_secs(5), connections.accept(&listener))
            .await
            .expect("one connection has ended");
        assert_eq!(connections.count(), 1);
        end.notify_one();
        timeout(Duration::from_secs(5), connections.end())
            .await
            .expect("all have ended");
    }
}
