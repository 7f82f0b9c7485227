//! Ends the child processes of this process when it ends, even by SIGKILL.
//!
//! No destructor runs when a process is killed, and none runs for a `static`. So each process
//! starts one small shell that holds the read end of a pipe. This process is the only writer. When
//! it is gone, the shell kills the processes and removes the directories that it was told about.
//! The shell has its own process group and ignores signals, so Ctrl-C in a terminal ends it only
//! through the pipe.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::{Context, Result, anyhow};

/// Removing a directory may take a few attempts, because a killed process may still be writing its
/// last file.
const SCRIPT: &str = r#"
trap '' HUP INT TERM
pids=' '
while read -r verb what; do
    case $verb in
    watch) pids="$pids$what " ;;
    forget) case $pids in *" $what "*) pids="${pids%% $what *} ${pids#* $what }" ;; esac ;;
    remove) set -- "$@" "$what" ;;
    esac
done
for pid in $pids; do kill -9 "$pid"; done
for try in 1 2 3 4 5; do
    rm -rf -- "$@" && exit
    sleep 0.2
done
"#;

static GUARD: OnceLock<Result<Mutex<ChildStdin>, String>> = OnceLock::new();

/// Has `pid` killed when this process ends. Call it before that process can start another one.
pub(crate) fn watch(pid: u32) -> Result<()> {
    tell("watch", &pid.to_string())
}

/// Ends [`watch`] once the process has ended, because another process may soon get its number.
pub(crate) fn forget(pid: u32) -> Result<()> {
    tell("forget", &pid.to_string())
}

/// Has the directory removed when this process ends. The directory may be gone by then.
pub(crate) fn remove_at_end(directory: &Path) -> Result<()> {
    tell(
        "remove",
        directory
            .to_str()
            .context("the temporary directory's path is not UTF-8")?,
    )
}

fn tell(verb: &str, what: &str) -> Result<()> {
    let guard = GUARD.get_or_init(|| {
        start()
            .map(Mutex::new)
            .map_err(|error| format!("{error:#}"))
    });
    let mut pipe = guard
        .as_ref()
        .map_err(|error| anyhow!("{error}"))?
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    // A single write, so that the shell never reads half a line.
    pipe.write_all(format!("{verb} {what}\n").as_bytes())
        .context("failed to reach the guard process")
}

fn start() -> Result<ChildStdin> {
    let mut shell = Command::new("sh")
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .context("failed to start the guard process")?;
    shell.stdin.take().context("the guard process has no stdin")
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::path::PathBuf;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::process::{Process, Spec};
    use crate::scenario::SOON;

    const VICTIM: &str = "MIMEO_TESTS_GUARD_VICTIM";

    /// The test below runs this as a separate process. Without the variable it does nothing.
    #[test]
    fn victim() -> Result<()> {
        let Some(directory) = std::env::var_os(VICTIM).map(PathBuf::from) else {
            return Ok(());
        };
        remove_at_end(&directory)?;
        let spec = Spec {
            name: "sleep".to_owned(),
            program: PathBuf::from("sleep"),
            args: vec!["600".to_owned()],
            env: Vec::new(),
            log: directory.join("sleep.log"),
        };
        let ended = Process::start(Spec {
            args: vec!["0".to_owned()],
            ..spec.clone()
        })?;
        let guarded = Process::start(spec)?;
        drop(ended);
        eprintln!("\nguarded {}", guarded.id());
        std::thread::sleep(Duration::from_mins(1));
        Ok(())
    }

    #[test]
    fn a_killed_process_leaves_nothing_behind() -> Result<()> {
        let directory = tempfile::tempdir()?.keep();
        let mut victim = Command::new(std::env::current_exe()?)
            .args(["--exact", "guard::tests::victim", "--nocapture"])
            .env(VICTIM, &directory)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(victim.stderr.take().context("no stderr")?);
        let mut lines = output.lines().map_while(Result::ok);
        let guarded = lines
            .find_map(|line| line.strip_prefix("guarded ").map(str::to_owned))
            .context("no process")?;
        // `stat` exists from the fork to the end. `cmdline` is empty for a moment while the program
        // is loaded.
        let stat = PathBuf::from("/proc").join(guarded).join("stat");
        let runs = || {
            let stat = std::fs::read_to_string(&stat).unwrap_or_default();
            // The name before it is in parentheses and may contain parentheses itself. Z means that
            // the process has ended and its parent has not read its status.
            stat.rsplit_once(") ")
                .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
        };
        assert!(runs());
        assert!(directory.exists());

        victim.kill()?;
        victim.wait()?;
        let until = Instant::now() + SOON;
        while (runs() || directory.exists()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!runs() && !directory.exists());
        Ok(())
    }
}
