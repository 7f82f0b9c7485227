//! `kubectl mimeo ui`: forwards a port to the leading reconciler, and opens its page.
//!
//! `kubectl port-forward` does the forwarding, with the connection flags of this command.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use mimeo_runtime::call::encode;
use serde_json::Value;

use crate::{
    connect::{Connected, Connection},
    installation::{Flags, Installation},
    output::tell,
    read::{Part, Reader},
};

/// The pause between two looks at whether kubectl has ended.
const PAUSE: Duration = Duration::from_millis(200);
/// The name of the operations port in the manifests.
const PORT: &str = "ops";

#[derive(Debug, Args)]
pub(crate) struct UiArgs {
    /// Only print the URL
    #[arg(long)]
    no_open: bool,
    /// Port on this machine. 0 takes a free one
    #[arg(long, default_value_t = 0)]
    port: u16,
}

/// How the leader serves the page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Page {
    on: bool,
    tls: bool,
    /// True if the page asks for a token.
    token: bool,
}

pub(crate) async fn run(
    args: &UiArgs,
    connection: &Connection,
    connected: &Connected,
) -> Result<u8> {
    let reader = connected.reader();
    let mimeo = &connected.mimeo;
    let leader = leader(connected, &reader).await?;
    let page = page(&reader, mimeo, &leader).await?;
    if !page.on {
        bail!(
            "the page is off. Fix: set reconciler.ui=true in the values of the Helm release, or \
             kubectl -n {mimeo} set env deployment/mimeo-reconciler MIMEO_UI=true"
        );
    }
    let program = std::env::var("KUBECTL").unwrap_or_else(|_| "kubectl".into());
    let port = match args.port {
        0 => format!(":{PORT}"),
        port => format!("{port}:{PORT}"),
    };
    let mut kubectl = Command::new(&program);
    kubectl
        .args(connection.kubectl_flags())
        .args(["--namespace", mimeo, "port-forward"])
        .args([format!("pod/{leader}"), port])
        .stdout(Stdio::piped());
    let mut interrupt = std::pin::pin!(interrupt()?);
    let mut child = kubectl.spawn().map(Kubectl).with_context(|| {
        format!("can't start {program}; put kubectl on the PATH, or name it in KUBECTL")
    })?;
    let output = child.0.stdout.take().context("kubectl has no output")?;
    let port = tokio::select! {
        port = tokio::task::spawn_blocking(|| listening(output)) => port?,
        () = &mut interrupt => return Ok(0),
    };
    let Some(port) = port else {
        let status = child.0.wait()?;
        bail!("{program} port-forward ended before it listened ({status})");
    };
    let scheme = if page.tls { "https" } else { "http" };
    let url = format!("{scheme}://localhost:{port}/ui/");
    // Also without a reader of this output the port stays open.
    _ = writeln!(std::io::stdout(), "{url}");
    if page.token {
        tell("The page asks for a token of a user who may get /ui/stream and /ui/copies.");
    }
    if !args.no_open {
        open(&url);
    }
    tokio::select! {
        status = ended(&mut child.0) => Ok(exit_code(status?)),
        () = &mut interrupt => Ok(0),
    }
}

/// A running kubectl, which ends with this value.
struct Kubectl(Child);

impl Drop for Kubectl {
    fn drop(&mut self) {
        // It may have ended already.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// The name of the leading replica.
async fn leader(connected: &Connected, reader: &Reader) -> Result<String> {
    let mimeo = &connected.mimeo;
    let (installation, unread) = Installation::read(reader, mimeo).await;
    let Some(leader) = installation.leader else {
        bail!("{}", unread.join(" "));
    };
    let Some(leader) = leader.into_iter().find(|replica| replica.alive) else {
        bail!(
            "no reconciler leads in namespace {mimeo}, and only the leader knows the state of the \
             copies. Fix: kubectl -n {mimeo} get pods   shows whether the reconciler runs"
        );
    };
    Ok(leader.name)
}

/// How the leader's pod serves the page. The page counts as on if the user may not read the pod.
async fn page(reader: &Reader, mimeo: &str, leader: &str) -> Result<Page> {
    let path = format!(
        "/api/v1/namespaces/{}/pods/{}",
        encode(mimeo),
        encode(leader)
    );
    match reader.get(&path, Part::Whole).await {
        Ok(Some(pod)) => Ok(page_of(&pod)),
        Ok(None) => bail!(
            "the leader {leader} is no pod of namespace {mimeo}: it runs outside of the cluster. \
             Its page is under /ui/ of its --ops-listen address"
        ),
        Err(error) => {
            tell(&format!(
                "Can't read Pod {mimeo}/{leader}: {error}. The page may be off."
            ));
            Ok(Page {
                on: true,
                ..Page::default()
            })
        }
    }
}

fn page_of(pod: &Value) -> Page {
    let flags = Flags::of(&pod["spec"], "reconciler");
    let token = flags.get("ops-auth") == Some("token");
    let certificate = flags.get("ops-cert-dir");
    Page {
        on: flags.get("ui") == Some("true"),
        tls: token || certificate.is_some_and(|folder| !folder.is_empty()),
        token,
    }
}

/// Waits until kubectl listens. Returns the port, or `None` if kubectl ended before.
fn listening(output: ChildStdout) -> Option<u16> {
    let mut lines = BufReader::new(output).lines();
    let mut printed = lines.by_ref().map_while(Result::ok);
    let port = printed.find_map(|line| port_of(&line));
    // Kubectl prints a line for each connection, and must not wait for a reader.
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
    port
}

/// The port in `Forwarding from 127.0.0.1:41234 -> 8081`.
fn port_of(line: &str) -> Option<u16> {
    let (address, _) = line.strip_prefix("Forwarding from ")?.split_once(" -> ")?;
    address.rsplit_once(':')?.1.parse().ok()
}

/// Opens the URL with the usual program, if there is a display.
fn open(url: &str) {
    let display = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| {
        let value = std::env::var_os(name);
        value.is_some_and(|value| !value.is_empty())
    });
    let (program, args): (&str, &[&str]) = match std::env::consts::OS {
        "macos" => ("open", &[]),
        "windows" => ("explorer", &[]),
        _ if display => ("xdg-open", &[]),
        _ => return,
    };
    let mut opener = Command::new(program);
    opener.args(args).arg(url);
    let opener = opener.stdin(Stdio::null()).stdout(Stdio::null());
    if let Err(error) = opener.stderr(Stdio::null()).spawn() {
        tell(&format!(
            "Can't start {program}: {error}. Open the URL in a browser."
        ));
    }
}

/// Waits for the end of kubectl.
async fn ended(child: &mut Child) -> Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    if status.success() {
        return 0;
    }
    tell(&format!(
        "error: kubectl port-forward ended ({status}). The leader may have changed; run this \
         command again"
    ));
    1
}

/// Waits for the request to end this program. The request alone no longer ends it.
#[cfg(unix)]
fn interrupt() -> Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

#[cfg(not(unix))]
fn interrupt() -> Result<impl Future<Output = ()>> {
    Ok(async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn page(args: &Value, env: &Value) -> Page {
        page_of(&json!({"spec": {"containers": [{"args": args, "env": env}]}}))
    }

    #[test]
    fn the_pod_shows_how_the_page_is_served() {
        let off = Page::default();
        let on = Page { on: true, ..off };
        let variable = |name: &str, value: &str| json!([{"name": name, "value": value}]);
        assert_eq!(page(&json!([]), &json!(null)), off);
        assert_eq!(page(&json!(["--ui"]), &json!([])), on);
        assert_eq!(page(&json!(["--ui-other"]), &json!([])), off);
        assert_eq!(page(&json!([]), &variable("MIMEO_UI", "true")), on);
        assert_eq!(page(&json!([]), &variable("MIMEO_UI", "false")), off);
        let tls = page(&json!(["--ui", "--ops-cert-dir=/tls"]), &json!([]));
        assert_eq!(tls, Page { tls: true, ..on });
        let token = Page {
            tls: true,
            token: true,
            ..on
        };
        let args = json!(["--ops-auth", "token", "--ui"]);
        assert_eq!(page(&args, &json!([])), token);
        assert_eq!(
            page(&json!(["--ui"]), &variable("MIMEO_OPS_AUTH", "token")),
            token
        );
    }

    #[test]
    fn the_port_is_in_kubectls_output() {
        assert_eq!(
            port_of("Forwarding from 127.0.0.1:41234 -> 8081"),
            Some(41234)
        );
        assert_eq!(port_of("Forwarding from [::1]:41234 -> 8081"), Some(41234));
        assert_eq!(port_of("Handling connection for 41234"), None);
    }
}
