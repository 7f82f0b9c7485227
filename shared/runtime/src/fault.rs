//! Deadlines of requests, and the part of a request's error that may be logged.

use std::{fmt, io, time::Duration};

use tokio::time::{Instant, timeout_at};

/// The usual deadline of one request.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// Runs one request with a total deadline.
///
/// # Errors
/// Returns the request's own error. After `deadline` it returns a [`kube::Error::Service`] with
/// [`io::ErrorKind::TimedOut`] inside.
pub async fn within<T>(
    deadline: Duration,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, kube::Error> {
    until(Instant::now() + deadline, request).await
}

/// As [`within`], with the time at which the request fails.
///
/// # Errors
/// As for [`within`].
pub async fn until<T>(
    deadline: Instant,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, kube::Error> {
    let result = timeout_at(deadline, request).await;
    result.unwrap_or_else(|_| Err(late()))
}

/// The error of a request that has no answer before its deadline.
pub fn late() -> kube::Error {
    kube::Error::Service(io::Error::from(io::ErrorKind::TimedOut).into())
}

/// The HTTP status if the API server refused the request.
pub fn status(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// Formats an API error so that it may be logged where Secrets are involved. It shows the kind of
/// failure, without the server's text and without any part of an answer.
#[derive(Debug, Clone, Copy)]
pub struct Fault<'a>(pub &'a kube::Error);

impl fmt::Display for Fault<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            kube::Error::Api(status) => write!(f, "{} {}", status.code, status.reason),
            kube::Error::HyperError(error) => write!(f, "{error}"),
            kube::Error::Service(error) => {
                write!(f, "{error}")?;
                std::iter::successors(error.source(), |error| error.source())
                    .try_for_each(|error| write!(f, ": {error}"))
            }
            kube::Error::ReadEvents(error) => write!(f, "watch broke: {error}"),
            kube::Error::SerdeError(_) | kube::Error::FromUtf8(_) => {
                f.write_str("undecodable answer")
            }
            kube::Error::Auth(error) => write!(f, "authentication failed: {error}"),
            _ => f.write_str("request failed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_late_answer_is_a_timeout() {
        let late = within(
            Duration::from_millis(1),
            std::future::pending::<Result<(), kube::Error>>(),
        )
        .await;
        let error = late.expect_err("it never answers");
        assert_eq!(Fault(&error).to_string(), "timed out");
        assert_eq!(status(&error), None);
    }

    #[test]
    fn a_fault_shows_nothing_of_an_undecodable_answer() {
        let parsed = serde_json::from_str::<u8>("\"hunter2\"").map_err(kube::Error::SerdeError);
        assert_eq!(
            Fault(&parsed.expect_err("a string is no number")).to_string(),
            "undecodable answer"
        );
    }
}
