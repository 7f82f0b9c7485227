//! Deadlines of requests, and what may be said of one that failed.

use std::{fmt, io, time::Duration};

/// Runs one request with a total deadline.
///
/// # Errors
/// The error of the request; after `deadline`, a [`kube::Error::Service`] with
/// [`io::ErrorKind::TimedOut`] in it.
pub async fn within<T>(
    deadline: Duration,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, kube::Error> {
    match tokio::time::timeout(deadline, request).await {
        Ok(result) => result,
        Err(_) => Err(kube::Error::Service(Box::new(io::Error::from(
            io::ErrorKind::TimedOut,
        )))),
    }
}

/// The HTTP status of a refusal by the API server, if it is one.
pub fn status(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// An API error as it may be logged where Secrets are concerned: which kind of failure, none of the
/// server's text and no part of an answer.
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
