//! One child process, with its log in a file. The guard ends it with this process, and signals go
//! by name.
//!
//! [`crate::ControlPlane`] and [`crate::Program`] build on this file. They decide when a process is
//! ready.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::guard;

/// Waits for a line on stdin before it runs the program. So the guard knows the process before the
/// program can start anything. If this process dies in between, the pipe closes and the shell ends.
const GATE: &str = r#"read -r _ && exec "$0" "$@" </dev/null"#;

/// Number of bytes from the end of a log that messages show.
const TAIL: u64 = 8 * 1024;

/// A process to start, with everything that a restart needs.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    /// Name in messages.
    pub name: String,
    pub program: PathBuf,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    /// Log file. Every start appends to it.
    pub log: PathBuf,
}

/// A started process. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Process {
    spec: Spec,
    child: Child,
    ended: Option<ExitStatus>,
}

impl Process {
    pub(crate) fn start(spec: Spec) -> Result<Self> {
        let name = &spec.name;
        let log = || {
            File::options()
                .create(true)
                .append(true)
                .open(&spec.log)
                .with_context(|| format!("failed to open the log of {name}"))
        };
        let mut child = Command::new("sh")
            .args(["-c", GATE])
            .arg(&spec.program)
            .args(&spec.args)
            // A test must not reach the cluster of the user that runs it.
            .env_remove("KUBECONFIG")
            .env_remove("KUBERNETES_SERVICE_HOST")
            .envs(spec.env.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::piped())
            .stdout(log()?)
            .stderr(log()?)
            // Ctrl-C ends only the test. The guard then kills the child processes at once.
            .process_group(0)
            .spawn()
            .with_context(|| format!("failed to start {name}"))?;
        let gate = child.stdin.take();
        let mut process = Self {
            spec,
            child,
            ended: None,
        };
        guard::watch(process.id())?;
        std::io::Write::write_all(&mut gate.context("the process has no stdin")?, b"\n")
            .with_context(|| format!("{} ended before it began", process.spec.name))?;
        process.still_running()?;
        Ok(process)
    }

    pub(crate) fn spec(&self) -> &Spec {
        &self.spec
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The exit status, or `None` while the process runs or is paused.
    pub(crate) fn exit(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_none()
            && let Some(status) = self
                .child
                .try_wait()
                .with_context(|| format!("failed to wait for {}", self.spec.name))?
        {
            self.ended = Some(status);
            guard::forget(self.id())?;
        }
        Ok(self.ended)
    }

    /// Returns an error with the end of the log if the process has ended.
    pub(crate) fn still_running(&mut self) -> Result<()> {
        match self.exit()? {
            None => Ok(()),
            Some(status) => bail!(
                "{} has ended ({status}); its log ends with:\n{}",
                self.spec.name,
                self.log_tail()
            ),
        }
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// The process has ended. The error has the end of its log.
    pub(crate) fn signal(&mut self, signal: Signal) -> Result<()> {
        self.still_running()?;
        self.send(signal)
    }

    /// Sends a signal, and does not notice if the process has just ended.
    pub(crate) fn send(&self, signal: Signal) -> Result<()> {
        // Another process may have the number of a process that was waited for.
        ensure!(self.ended.is_none(), "{} has ended", self.spec.name);
        kill_process(Pid::from_child(&self.child), signal)
            .with_context(|| format!("failed to signal {}", self.spec.name))
    }

    /// Sends SIGKILL and waits for the end. Does nothing if the process has already ended.
    pub(crate) fn kill(&mut self) -> Result<()> {
        if self.exit()?.is_none() {
            self.child
                .kill()
                .with_context(|| format!("failed to kill {}", self.spec.name))?;
            self.ended = Some(
                self.child
                    .wait()
                    .with_context(|| format!("failed to wait for {}", self.spec.name))?,
            );
            guard::forget(self.id())?;
        }
        Ok(())
    }

    /// Waits until the process ends by itself. After `deadline` it returns an error with the end of
    /// the log.
    pub(crate) async fn wait(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let until = Instant::now() + deadline;
        loop {
            if let Some(status) = self.exit()? {
                return Ok(status);
            }
            if Instant::now() > until {
                bail!(
                    "{} still runs after {deadline:?}; its log ends with:\n{}",
                    self.spec.name,
                    self.log_tail()
                );
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The process's memory from `/proc`, in bytes. `what` is the name of the field there (`VmRSS`,
    /// `VmHWM`).
    ///
    /// # Errors
    /// The process has ended.
    pub(crate) fn memory(&self, what: &str) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id()))
            .context("failed to read /proc")?;
        let kib = status
            .lines()
            .find_map(|line| {
                line.strip_prefix(what)?
                    .strip_prefix(':')?
                    .trim()
                    .strip_suffix(" kB")?
                    .parse::<u64>()
                    .ok()
            })
            .with_context(|| format!("no {what} for {}", self.spec.name))?;
        Ok(kib * 1024)
    }

    /// The last 8 KiB of the log, beginning with a whole line.
    pub(crate) fn log_tail(&self) -> String {
        let read = || -> std::io::Result<String> {
            let mut file = File::open(&self.spec.log)?;
            let start = file.metadata()?.len().saturating_sub(TAIL);
            file.seek(SeekFrom::Start(start))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            let text = String::from_utf8_lossy(&bytes).into_owned();
            Ok(if start == 0 {
                text
            } else {
                text.split_once('\n')
                    .map_or(String::new(), |(_, rest)| rest.to_owned())
            })
        };
        read().unwrap_or_else(|error| format!("(no log: {error})"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A failure here is ignored. The guard tries again when this process ends.
        let _ = self.kill();
    }
}
