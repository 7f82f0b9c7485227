//! Skips tests of features that the control plane's Kubernetes version does not have.

use std::io::Write;

use anyhow::{Context, Result};
use kube::Client;

/// Whether the API server is older than Kubernetes 1.`minor`, which is the first version with
/// `feature`. Then the test returns at once, and a line on stderr says that it was skipped and why.
/// `.ci/test` counts these lines.
///
/// ```no_run
/// # async fn example(client: kube::Client) -> anyhow::Result<()> {
/// if mimeo_tests::skipped_before(&client, 32, "streaming lists").await? {
///     return Ok(());
/// }
/// # Ok(())
/// # }
/// ```
pub async fn skipped_before(client: &Client, minor: u32, feature: &str) -> Result<bool> {
    let version = client.apiserver_version().await?;
    let served: String = version
        .minor
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    let served: u32 = served
        .parse()
        .with_context(|| format!("the minor version is {:?}", version.minor))?;
    if served >= minor {
        return Ok(false);
    }
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // Not `eprintln`, because the test runner hides what a passing test prints with it. The line
    // break ends a line that the runner may have begun.
    writeln!(
        std::io::stderr(),
        "\n!!! SKIPPED on Kubernetes 1.{served}: {test}: {feature}: from 1.{minor} on",
    )?;
    Ok(true)
}
