//! A trace collector that keeps all it receives. It implements only as much of OTLP over HTTP as a
//! sender needs.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{planted, scenario::SOON};

/// A collector. It listens until the process ends.
pub struct Collector {
    address: SocketAddr,
    bodies: Arc<Mutex<Vec<String>>>,
}

impl Collector {
    /// Starts to listen on loopback.
    pub fn start() -> Result<Self> {
        Self::start_at(Ipv4Addr::LOCALHOST)
    }

    /// Starts to listen on this address of the machine. It runs on threads, so that it outlives the
    /// runtime of a test.
    pub fn start_at(address: Ipv4Addr) -> Result<Self> {
        let listener = TcpListener::bind((address, 0))?;
        let address = listener.local_addr()?;
        let bodies: Arc<Mutex<Vec<String>>> = Arc::default();
        let kept = bodies.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let kept = kept.clone();
                thread::spawn(move || {
                    if let Ok(body) = take(stream) {
                        planted::look("a trace", &body);
                        kept.lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push(body);
                    }
                });
            }
        });
        Ok(Self { address, bodies })
    }

    /// The URL to give to programs.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The port, for callers that know the host by a name.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// All received bodies, unchanged.
    pub fn text(&self) -> String {
        self.bodies
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .join("\n")
    }

    /// All spans so far, each as its attributes by name, with the span's name under `span`.
    pub fn spans(&self) -> Result<Vec<Value>> {
        let mut spans = Vec::new();
        for body in self
            .bodies
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
        {
            let body: Value = serde_json::from_str(body).context("no JSON")?;
            let sent = body
                .pointer("/resourceSpans/0/scopeSpans/0/spans")
                .and_then(Value::as_array);
            for span in sent.context("no spans")? {
                let mut attributes = serde_json::Map::new();
                for attribute in span["attributes"].as_array().into_iter().flatten() {
                    let key = attribute["key"].as_str().context("no key")?;
                    attributes.insert(key.to_owned(), attribute["value"]["stringValue"].clone());
                }
                attributes.insert("span".to_owned(), span["name"].clone());
                spans.push(attributes.into());
            }
        }
        Ok(spans)
    }
}

/// Reads one request and answers it.
fn take(stream: TcpStream) -> Result<String> {
    stream.set_read_timeout(Some(SOON))?;
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim();
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let answer = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
    reader.into_inner().write_all(answer.as_bytes())?;
    Ok(String::from_utf8(body)?)
}
