//! Waiting on a condition with a deadline, instead of sleeping and hoping.

use std::fmt::Display;
use std::future::Future;
use std::panic::Location;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Asks again and again until the answer is `Ok(Some(value))`, and returns the value.
///
/// `Ok(None)` means not yet, and an error means not yet because of it: return one that describes
/// what was seen (`bail!("3 of 5 copies")`), for the last one is told when the deadline passes.
/// Pauses grow from 5 to 100 ms.
///
/// # Errors
/// After `deadline`: `what`, the caller's line and the last state. An answer that is still awaited
/// then counts as not yet.
///
/// ```no_run
/// # use std::time::Duration;
/// # use k8s_openapi::api::core::v1::Secret;
/// # async fn example(secrets: kube::Api<Secret>) -> anyhow::Result<()> {
/// let copy = mimeo_tests::eventually(Duration::from_secs(5), "the copy", || async {
///     Ok(secrets.get_opt("registry").await?)
/// })
/// .await?;
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn eventually<T, P, F>(
    deadline: Duration,
    what: impl Display,
    probe: P,
) -> impl Future<Output = Result<T>>
where
    P: FnMut() -> F,
    F: Future<Output = Result<Option<T>>>,
{
    // An `async fn` cannot track its caller.
    poll(deadline, what, probe, Location::caller())
}

async fn poll<T, P, F>(
    deadline: Duration,
    what: impl Display,
    mut probe: P,
    from: &Location<'_>,
) -> Result<T>
where
    P: FnMut() -> F,
    F: Future<Output = Result<Option<T>>>,
{
    let until = Instant::now() + deadline;
    let mut pause = FIRST_PAUSE;
    let mut last = anyhow!("the first answer is still awaited");
    loop {
        match tokio::time::timeout_at(until.into(), probe()).await {
            Ok(Ok(Some(value))) => return Ok(value),
            Ok(Ok(None)) => last = anyhow!("not yet"),
            Ok(Err(error)) => last = error,
            Err(_) => {}
        }
        if Instant::now() + pause >= until {
            let error = last.context(format!("{what}: not within {deadline:?} ({from})"));
            // Returned, a panic of what ends with the test would hide it.
            eprintln!("{error:#}");
            return Err(error);
        }
        tokio::time::sleep(pause).await;
        pause = LONGEST_PAUSE.min(pause * 3 / 2);
    }
}
