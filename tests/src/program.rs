//! Mimeo's own binaries as processes. Tests give flags and environment, and read log, signals and
//! memory.
//!
//! This file does not know the purpose of the programs. The scenarios choose their flags.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::guard;
use crate::planted;
use crate::process::{Process, Spec};

/// A binary of this workspace, before its start.
///
/// ```no_run
/// # use std::time::Duration;
/// # use mimeo_tests::{ControlPlane, Program};
/// # async fn example(control_plane: &ControlPlane) -> anyhow::Result<()> {
/// let mut reconciler = Program::new("mimeo-reconciler")
///     .args(["--metrics-listen", "127.0.0.1:0"])
///     .env("KUBECONFIG", control_plane.kubeconfig().display().to_string())
///     .start()?;
/// let status = reconciler.stop(Duration::from_secs(10)).await?;
/// assert!(status.success());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Program {
    name: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
    quiet: bool,
}

impl Program {
    /// The binary with this name, without arguments.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            args: Vec::new(),
            env: Vec::new(),
            quiet: false,
        }
    }

    /// Adds one argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable. The program inherits the rest, except `KUBECONFIG` and
    /// `KUBERNETES_SERVICE_HOST`.
    #[must_use]
    pub fn env(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((key.into(), value.into()));
        self
    }

    /// Prints the log only on a panic. By default its end is printed whenever the program is
    /// dropped. A test harness captures that output and shows it only for failed tests. The demo
    /// and the measurements have no harness.
    #[must_use]
    pub fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }

    /// Starts the program and returns at once. The caller waits until it is ready.
    ///
    /// # Errors
    /// The binary has not been built.
    pub fn start(self) -> Result<Running> {
        let program = locate(&self.name)?;
        let directory = tempfile::Builder::new()
            .prefix("mimeo-run-")
            .tempdir()
            .context("failed to make a directory")?;
        guard::remove_at_end(directory.path())?;
        let log = directory.path().join(format!("{}.log", self.name));
        let spec = Spec {
            name: self.name,
            program,
            args: self.args,
            env: self.env,
            log,
        };
        Ok(Running {
            process: Process::start(spec)?,
            quiet: self.quiet,
            directory,
        })
    }
}

/// A started [`Program`]. It is killed when dropped, and when this process ends in any way.
#[derive(Debug)]
pub struct Running {
    process: Process,
    quiet: bool,
    directory: TempDir,
}

impl Running {
    /// The process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// True if the program runs. A paused program runs.
    pub fn is_alive(&mut self) -> Result<bool> {
        Ok(self.process.exit()?.is_none())
    }

    /// Sends SIGTERM and returns at once.
    ///
    /// # Errors
    /// The program has ended. The error has the end of its log.
    pub fn terminate(&mut self) -> Result<()> {
        self.process.signal(Signal::TERM)
    }

    /// Sends SIGTERM and waits for the end.
    ///
    /// # Errors
    /// The program had ended before, or has not ended after `deadline`. The error has the end of
    /// its log.
    pub async fn stop(&mut self, deadline: Duration) -> Result<ExitStatus> {
        self.terminate()?;
        self.wait(deadline).await
    }

    /// Sends SIGKILL and waits for the end. Does nothing if the program has already ended.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Freezes the program (SIGSTOP). Its connections stay open, and it answers nothing.
    pub fn pause(&self) -> Result<()> {
        self.process.send(Signal::STOP)
    }

    /// Ends [`Running::pause`].
    pub fn resume(&self) -> Result<()> {
        self.process.send(Signal::CONT)
    }

    /// Waits for the program to end by itself.
    ///
    /// # Errors
    /// The program still runs after `deadline`. The error has the end of its log.
    pub async fn wait(&mut self, deadline: Duration) -> Result<ExitStatus> {
        self.process.wait(deadline).await
    }

    /// Resident memory at this moment, in bytes (`VmRSS`).
    pub fn resident_bytes(&self) -> Result<u64> {
        self.process.memory("VmRSS")
    }

    /// Peak of the resident memory, in bytes (`VmHWM`).
    pub fn peak_bytes(&self) -> Result<u64> {
        self.process.memory("VmHWM")
    }

    /// The whole log so far, stdout and stderr in order.
    pub fn log(&self) -> Result<String> {
        let path = &self.process.spec().log;
        let bytes =
            std::fs::read(path).with_context(|| format!("failed to read {}", path.display()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A directory for the program's files, such as certificates. It is removed after the program
    /// ends.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        planted::look(
            format!("the log of {}", self.process.spec().name),
            &self.log().unwrap_or_default(),
        );
        if !self.quiet || std::thread::panicking() {
            eprintln!(
                "--- the log of {} ends with ---\n{}",
                self.process.spec().name,
                self.process.log_tail()
            );
        }
    }
}

/// Finds the binary near the running executable. `target/<profile>/` is one of its ancestors for
/// tests (`deps/`), examples and the programs themselves.
///
/// # Errors
/// The binary was not built in the same profile.
pub fn locate(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("failed to find the running executable")?;
    own.ancestors()
        .skip(1)
        .take(3)
        .map(|directory| directory.join(name))
        .find(|path| path.is_file())
        .with_context(|| {
            format!(
                "{name} is not beside {}: run `cargo build --bins` in the same profile first",
                own.display()
            )
        })
}
