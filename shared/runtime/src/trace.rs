//! Traces for users with a collector: a span for each answered review and for each write of a copy,
//! sent by OTLP over HTTP.
//!
//! This is not `opentelemetry-otlp`. That library sends batches from a thread of its own, which
//! takes a blocking HTTP client; its sender for a Tokio runtime is experimental. It also adds 16
//! crates to each program, Protobuf and another random number generator among them, even if only
//! JSON is sent. The protocol's JSON takes a few lines here.
//!
//! Spans are best effort. A span that the collector cannot take is dropped and delays nothing.
//! Spans name objects, because that is their purpose, and hold no content of objects.

use std::{
    fmt,
    hash::{BuildHasher, Hasher, RandomState},
    mem,
    time::Duration,
};

use anyhow::{Context, ensure};
use bytes::Bytes;
use clap::Args;
use http::{HeaderMap, Request, Uri, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::{
    sync::mpsc::{Receiver, Sender, channel},
    time::{sleep, timeout},
};
use tracing::{info, warn};

/// How many spans wait to be sent. Further spans are dropped.
const WAITING: usize = 4096;
/// The most spans in one request.
const BATCH: usize = 512;
/// The pause after a request that had room for further spans. In this time a rotation makes fewer
/// spans than the queue holds.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long the collector may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The largest answer that is read, in bytes. Its content does not matter.
const LARGEST_ANSWER: usize = 64 << 10;

/// Flags for traces.
#[derive(Args)]
#[command(next_help_heading = "Traces")]
pub struct TraceArgs {
    /// Collector that gets a span of each review and each write, by OTLP over HTTP (as in
    /// `http://collector.monitoring:4318`). Default: no traces
    #[arg(long, env = "MIMEO_OTLP_ENDPOINT", value_name = "http://HOST:PORT", value_parser = endpoint)]
    pub otlp_endpoint: Option<Uri>,
}

impl TraceArgs {
    /// Starts to send spans under the program's name, if there is a collector.
    pub fn start(&self, program: &'static str, replica: &str) -> Traces {
        let Some(endpoint) = &self.otlp_endpoint else {
            return Traces(None);
        };
        info!(%endpoint, "sending traces");
        let (send, spans) = channel(WAITING);
        let attributes = [
            attribute("service.name", program),
            attribute("service.version", env!("CARGO_PKG_VERSION")),
            attribute("service.instance.id", replica),
        ];
        let exporter = Exporter {
            uri: endpoint.clone(),
            resource: json!({"attributes": attributes}),
            client: Client::builder(TokioExecutor::new()).build(HttpConnector::new()),
        };
        tokio::spawn(exporter.run(spans));
        Traces(Some(send))
    }
}

/// The address for traces at the collector with this endpoint.
fn endpoint(text: &str) -> anyhow::Result<Uri> {
    let uri: Uri = text.parse()?;
    ensure!(
        uri.scheme_str() == Some("http"),
        "expected http://HOST:PORT (for TLS have a collector on the node or beside the program)"
    );
    if uri.path() != "/" {
        return Ok(uri);
    }
    Ok(format!("{}/v1/traces", text.trim_end_matches('/')).parse()?)
}

/// Takes spans. Without a collector it does nothing. Cheap to clone.
#[derive(Clone)]
pub struct Traces(Option<Sender<Value>>);

impl Traces {
    /// Takes no spans.
    #[cfg(test)]
    pub(crate) fn off() -> Self {
        Self(None)
    }

    /// Records a span that ends now and took this long. `describe` adds its attributes.
    pub fn record(
        &self,
        name: &'static str,
        parent: Option<Parent>,
        took: Duration,
        describe: impl FnOnce(&mut Span),
    ) {
        let Some(spans) = &self.0 else { return };
        // Without a parent the span begins a trace.
        let (trace, parent) = match parent {
            None => (random() + &random(), String::new()),
            Some(parent) if parent.sampled => (parent.trace, parent.span),
            Some(_) => return,
        };
        let ended = Timestamp::now();
        let mut span = Span::default();
        describe(&mut span);
        let span = json!({
            "traceId": trace, "spanId": random(), "parentSpanId": parent,
            "name": name, "kind": if parent.is_empty() { INTERNAL } else { SERVER },
            "startTimeUnixNano": (ended - took).as_nanosecond().to_string(),
            "endTimeUnixNano": ended.as_nanosecond().to_string(),
            "attributes": span.attributes, "status": {"code": if span.failed { ERROR } else { UNSET }},
        });
        // A full channel drops the span: a slow collector must not slow down the work that it
        // observes.
        let _ = spans.try_send(span);
    }
}

/// The trace and the span that a new span belongs to, from the header `traceparent` (W3C Trace
/// Context).
#[derive(Debug, PartialEq, Eq)]
pub struct Parent {
    /// The trace, in hexadecimal digits.
    trace: String,
    /// The parent span in this trace, in hexadecimal digits.
    span: String,
    /// Whether the trace is being recorded.
    sampled: bool,
}

impl Parent {
    /// Reads the parent from the headers of a request. A header that cannot be read counts as no
    /// parent.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        Self::parse(headers.get("traceparent")?.to_str().ok()?)
    }

    fn parse(header: &str) -> Option<Self> {
        let parts: Vec<&str> = header.trim().split('-').collect();
        // Later versions may have more parts.
        let [_, trace, span, flags, ..] = parts[..] else {
            return None;
        };
        let digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let hex = |text: &str, digits| text.len() == digits && text.bytes().all(digit);
        if !(hex(trace, 32) && hex(span, 16)) {
            return None;
        }
        let flags = u8::from_str_radix(flags, 16).ok()?;
        Some(Self {
            trace: trace.to_owned(),
            span: span.to_owned(),
            sampled: flags & 1 == 1,
        })
    }
}

/// 16 random hexadecimal digits, from the seeds that the standard library gives to hash maps.
fn random() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

/// The description of a span, which is an operation with its duration.
#[derive(Default)]
pub struct Span {
    attributes: Vec<Value>,
    failed: bool,
}

impl Span {
    /// Sets an attribute. The value must not be secret.
    pub fn set(&mut self, key: &'static str, value: impl fmt::Display) {
        self.attributes.push(attribute(key, &value.to_string()));
    }

    /// Marks the operation as failed.
    pub fn fail(&mut self) {
        self.failed = true;
    }
}

/// The protocol's numbers for kinds and statuses of spans.
const INTERNAL: u8 = 1;
const SERVER: u8 = 2;
const UNSET: u8 = 0;
const ERROR: u8 = 2;

fn attribute(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

struct Exporter {
    uri: Uri,
    resource: Value,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Exporter {
    async fn run(self, mut spans: Receiver<Value>) {
        // Whether the last batch was lost. The loss is logged once.
        let mut failing = false;
        let mut batch = Vec::new();
        while spans.recv_many(&mut batch, BATCH).await > 0 {
            let count = batch.len();
            let sent = timeout(TIMEOUT, self.send(mem::take(&mut batch))).await;
            let sent = sent.context("no answer in time").flatten();
            match &sent {
                Ok(()) if failing => info!("traces are taken again"),
                Err(error) if !failing => {
                    warn!(endpoint = %self.uri, %error, count, "traces are lost");
                }
                _ => {}
            }
            failing = sent.is_err();
            if count < BATCH {
                sleep(PATIENCE).await;
            }
        }
    }

    async fn send(&self, spans: Vec<Value>) -> anyhow::Result<()> {
        let scope = json!({"scope": {"name": "mimeo"}, "spans": spans});
        let body = json!({"resourceSpans": [{"resource": self.resource, "scopeSpans": [scope]}]})
            .to_string();
        let request = Request::post(&self.uri)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::from(body))?;
        let answer = self.client.request(request).await?;
        let code = answer.status();
        // The answer is read to its end, so that the connection can be reused.
        let _ = Limited::new(answer.into_body(), LARGEST_ANSWER)
            .collect()
            .await;
        ensure!(code.is_success(), "{code}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Script, Server};

    const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_parent_is_what_the_header_says() {
        let of = |header: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", header.parse().expect("a header"));
            Parent::of(&headers)
        };
        let parent = |sampled| {
            Some(Parent {
                trace: HEADER[3..35].to_owned(),
                span: HEADER[36..52].to_owned(),
                sampled,
            })
        };
        assert_eq!(of(HEADER), parent(true));
        assert_eq!(of(&HEADER.replace("-01", "-00")), parent(false));
        assert_eq!(
            of(&HEADER.replacen("00", "cc", 1)),
            of(HEADER),
            "of a version to come"
        );
        assert_eq!(
            of(&format!("{}-more", HEADER.replacen("00", "cc", 1))),
            of(HEADER)
        );
        for bad in [
            "",
            "00",
            &HEADER[..52],
            &HEADER.to_uppercase(),
            &HEADER.replace('4', "é"),
        ] {
            assert_eq!(Parent::parse(bad), None, "{bad}");
        }
        assert_eq!(Parent::of(&HeaderMap::new()), None);
    }

    #[test]
    fn an_endpoint_is_an_address_to_which_the_usual_path_is_added() {
        for (text, want) in [
            ("http://c:4318", "http://c:4318/v1/traces"),
            ("http://c:4318/", "http://c:4318/v1/traces"),
            ("http://c/tenant/v1/traces", "http://c/tenant/v1/traces"),
        ] {
            assert_eq!(endpoint(text).expect("an address"), want);
        }
        for bad in ["https://c:4318", "c:4318", "/x", ""] {
            assert!(endpoint(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn spans_are_sent_together_and_one_that_nobody_follows_is_not() {
        let server = Server::start([Script::text(200, "{}")]).await;
        let args = TraceArgs {
            otlp_endpoint: Some(endpoint(server.uri()).expect("an address")),
        };
        let traces = args.start("mimeo-test", "one");
        let took = Duration::from_secs(1);
        let unsampled = Parent::parse(&HEADER.replace("-01", "-00"));
        traces.record("unsampled", unsampled, took, |_| {
            panic!("nobody follows it")
        });
        traces.record("child", Parent::parse(HEADER), took, |span| {
            span.set("namespace", "team");
            span.fail();
        });
        traces.record("root", None, took, |_| {});
        let came = tokio::time::timeout(Duration::from_secs(20), async {
            loop {
                if let Some(came) = server.came().pop() {
                    return came;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        let came = came.await.expect("sent");
        assert_eq!(came.line, "POST /v1/traces");
        let body: Value = serde_json::from_slice(&came.body).expect("JSON");
        let spans = &body["resourceSpans"][0]["scopeSpans"][0]["spans"];
        assert_eq!(spans.as_array().map(Vec::len), Some(2), "{body}");
        let (child, root) = (&spans[0], &spans[1]);
        assert_eq!(
            (&child["traceId"], &child["parentSpanId"]),
            (&json!(HEADER[3..35]), &json!(HEADER[36..52]))
        );
        assert_eq!(
            child["attributes"],
            json!([{"key": "namespace", "value": {"stringValue": "team"}}])
        );
        assert_eq!(
            (&child["status"]["code"], &root["status"]["code"]),
            (&json!(2), &json!(0))
        );
        assert_eq!(
            (
                root["traceId"].as_str().map(str::len),
                &root["parentSpanId"]
            ),
            (Some(32), &json!(""))
        );
        let time = |at: &str| {
            child[at]
                .as_str()
                .and_then(|time| time.parse::<u128>().ok())
                .expect("nanoseconds")
        };
        let end = time("endTimeUnixNano");
        assert_eq!(time("startTimeUnixNano") + took.as_nanos(), end);
        let name = &body["resourceSpans"][0]["resource"]["attributes"][0];
        assert_eq!(
            *name,
            json!({"key": "service.name", "value": {"stringValue": "mimeo-test"}})
        );
    }

    #[test]
    fn without_a_collector_nothing_is_made() {
        Traces::off().record("x", None, Duration::ZERO, |_| panic!("made"));
    }
}
