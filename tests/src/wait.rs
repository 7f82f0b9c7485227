//! Waits on a condition with a deadline, instead of a fixed sleep.

use std::fmt::Display;
use std::future::Future;
use std::panic::Location;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Calls `probe` until it returns `Ok(Some(value))`, and returns the value.
///
/// `Ok(None)` means "not yet". So does an error, which also says why. Return an error that
/// describes the state (`bail!("3 of 5 copies")`): the last one is reported when the deadline
/// passes. Pauses grow from 5 to 100 ms.
///
/// # Errors
/// After `deadline`: `what`, the caller's line and the last state. A probe that is still waiting
/// for its answer by then counts as "not yet".
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
            // The error is also printed here. A panic in a destructor at the end of the test would
            // hide the returned one.
            eprintln!("{error:#}");
            return Err(error);
        }
        tokio::time::sleep(pause).await;
        pause = LONGEST_PAUSE.min(pause * 3 / 2);
    }
}
