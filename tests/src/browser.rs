//! A real browser: headless Chromium, driven through `WebDriver` and Debian's `chromedriver`.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    eventually, guard, ports,
    process::{Process, Spec},
    scenario::SOON,
};

/// A browser with one page. It ends with the process that started it.
pub struct Browser {
    port: u16,
    session: String,
    _driver: Process,
    _home: TempDir,
}

fn which(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

impl Browser {
    /// Starts a browser.
    ///
    /// # Errors
    /// Among others, Chromium is missing. The tests then fail instead of being skipped, because a
    /// page that no browser has shown is untested.
    pub async fn start() -> Result<Self> {
        let (Some(chromium), Some(driver)) = (which("chromium"), which("chromedriver")) else {
            bail!(
                "there is no browser: tests/browser.sh installs Debian's, as root; else leave \
                 these tests out (--skip a_browser)"
            );
        };
        let home = tempfile::Builder::new()
            .prefix("mimeo-browser-")
            .tempdir()
            .context("failed to make a directory")?;
        guard::remove_at_end(home.path())?;
        let port = ports::free(1)?[0];
        let spec = Spec {
            name: "chromedriver".to_owned(),
            program: driver,
            args: vec![format!("--port={port}")],
            env: Vec::new(),
            log: home.path().join("chromedriver.log"),
        };
        let process = Process::start(spec)?;
        let capabilities = capabilities(&chromium, home.path());
        let answer = eventually(SOON, "chromedriver", || async {
            command(port, "POST", "/session", &capabilities).map(Some)
        })
        .await?;
        let session = answer["sessionId"]
            .as_str()
            .context("no session")?
            .to_owned();
        Ok(Self {
            port,
            session,
            _driver: process,
            _home: home,
        })
    }

    /// Opens a page.
    pub fn open(&self, url: &str) -> Result<()> {
        self.command("POST", "/url", &json!({"url": url}))?;
        Ok(())
    }

    /// Runs a script in the page and returns its result. The script finds `argument` in
    /// `arguments[0]`.
    pub fn run(&self, script: &str, argument: &Value) -> Result<Value> {
        self.command(
            "POST",
            "/execute/sync",
            &json!({"script": script, "args": [argument]}),
        )
    }

    /// Waits until a JavaScript expression is true.
    #[track_caller]
    pub fn wait(&self, expression: &str) -> impl Future<Output = Result<()>> {
        let script = format!("return Boolean({expression})");
        eventually(SOON, expression.to_owned(), move || {
            let answer = self.run(&script, &Value::Null);
            async move {
                match answer? {
                    Value::Bool(true) => Ok(Some(())),
                    other => bail!("it is {other}"),
                }
            }
        })
    }

    /// Presses keys one after another. Named keys are `WebDriver`'s code points.
    pub fn press(&self, keys: &str) -> Result<()> {
        let keys: Vec<Value> = keys.chars().flat_map(|key| [down(key), up(key)]).collect();
        self.keys(&keys)
    }

    /// Presses a key while another one is held.
    pub fn press_with(&self, held: char, key: char) -> Result<()> {
        self.keys(&[down(held), down(key), up(key), up(held)])
    }

    fn keys(&self, actions: &[Value]) -> Result<()> {
        self.command(
            "POST",
            "/actions",
            &json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]}),
        )?;
        Ok(())
    }

    /// A screenshot of the visible part, as a PNG in Base64.
    pub fn screenshot(&self) -> Result<String> {
        Ok(self
            .command("GET", "/screenshot", &Value::Null)?
            .as_str()
            .context("no picture")?
            .to_owned())
    }

    /// Entries of the browser's log since the last call: failed scripts, and requests that the
    /// page's policy refused.
    pub fn complaints(&self) -> Result<Vec<String>> {
        let log = self.command("POST", "/se/log", &json!({"type": "browser"}))?;
        let lines = log.as_array().context("no log")?;
        Ok(lines
            .iter()
            .filter_map(|line| line["message"].as_str())
            .map(str::to_owned)
            .collect())
    }

    fn command(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        command(
            self.port,
            method,
            &format!("/session/{}{path}", self.session),
            body,
        )
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Chromium ends with its session. If this fails, the end of the driver ends Chromium too.
        let _ = self.command("DELETE", "", &Value::Null);
    }
}

fn down(key: char) -> Value {
    json!({"type": "keyDown", "value": key})
}

fn up(key: char) -> Value {
    json!({"type": "keyUp", "value": key})
}

fn capabilities(chromium: &Path, home: &Path) -> Value {
    let flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
        "--window-size=1360,860",
    ];
    let mut args: Vec<String> = flags.map(str::to_owned).into();
    args.push(format!(
        "--user-data-dir={}",
        home.join("profile").display()
    ));
    let chrome = json!({"binary": chromium, "args": args});
    json!({"capabilities": {"alwaysMatch": {
        "acceptInsecureCerts": true, "goog:chromeOptions": chrome, "goog:loggingPrefs": {"browser": "ALL"},
    }}})
}

/// Sends one `WebDriver` command over HTTP.
fn command(port: u16, method: &str, path: &str, body: &Value) -> Result<Value> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(SOON))?;
    let body = if method == "POST" {
        body.to_string()
    } else {
        String::new()
    };
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    while line != "\r\n" {
        line.clear();
        ensure!(answer.read_line(&mut line)? > 0, "no answer");
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().context("a length")?;
        }
    }
    let mut body = vec![0; length];
    answer.read_exact(&mut body)?;
    let mut answer: Value = serde_json::from_slice(&body).context("no JSON")?;
    let value = answer["value"].take();
    match value["error"].as_str() {
        Some(error) => bail!("{method} {path}: {error}: {}", value["message"]),
        None => Ok(value),
    }
}
