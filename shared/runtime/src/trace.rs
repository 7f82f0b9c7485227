//! Traces for users with a collector: a span for each answered review and for each write of a copy,
//! sent by OTLP over HTTP in JSON.
//!
//! The SDK collects spans in a thread of its own, and reads most of the standard variables `OTEL_*`.
//! `Collector` sends them in the program's runtime, because the SDK's HTTP clients need OpenSSL, a
//! second TLS library or a second runtime.
//!
//! Spans are best effort. A span that the collector cannot take is dropped and delays nothing.
//! Spans name objects, because that is their purpose, and hold no content of objects.

use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, ensure};
use async_trait::async_trait;
use clap::Args;
use http::{HeaderMap, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use opentelemetry::{
    Context, KeyValue, global,
    propagation::TextMapPropagator,
    trace::{Span as _, SpanKind, Status, TraceContextExt, Tracer, TracerProvider},
};
use opentelemetry_http::{Bytes, HeaderExtractor, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    trace::{SdkTracer, SdkTracerProvider},
};
use tokio::{runtime::Handle, time::timeout};
use tracing::{info, warn};

/// How long the collector may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The largest answer that is read, in bytes.
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
    /// Starts to send spans under the program's name, if there is a collector. Needs a Tokio
    /// runtime.
    ///
    /// # Errors
    /// The SDK refuses the endpoint. It ignores variables `OTEL_*` with invalid values.
    pub fn start(&self, program: &'static str, replica: &str) -> anyhow::Result<Traces> {
        let Some(endpoint) = &self.otlp_endpoint else {
            return Ok(Traces(None));
        };
        info!(%endpoint, "sending traces");
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Collector::new())
            .with_endpoint(endpoint.to_string())
            .build()
            .context("cannot send traces")?;
        let resource = Resource::builder()
            .with_service_name(program)
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_attribute(KeyValue::new("service.instance.id", replica.to_owned()))
            .build();
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource)
            .build();
        let tracer = provider.tracer("mimeo");
        // To drop the last provider would wait for the collector. So the process keeps one.
        global::set_tracer_provider(provider);
        Ok(Traces(Some(tracer)))
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
pub struct Traces(Option<SdkTracer>);

/// The trace and the span that a new span belongs to. If empty, the new span begins a trace.
pub type Parent = Context;

/// Reads the parent from the header `traceparent` of a request (W3C Trace Context). A header that
/// cannot be read counts as no parent.
pub fn parent(headers: &HeaderMap) -> Parent {
    TraceContextPropagator::new().extract_with_context(&Context::new(), &HeaderExtractor(headers))
}

impl Traces {
    /// Takes no spans.
    #[cfg(test)]
    pub(crate) fn off() -> Self {
        Self(None)
    }

    /// Records a span that ends now and took this long, unless its parent is not recorded.
    /// `describe` adds its attributes.
    pub fn record(
        &self,
        name: &'static str,
        parent: &Parent,
        took: Duration,
        describe: impl FnOnce(&mut Span),
    ) {
        let Some(tracer) = &self.0 else { return };
        let ended = SystemTime::now();
        let kind = if parent.has_active_span() {
            SpanKind::Server
        } else {
            SpanKind::Internal
        };
        let span = tracer
            .span_builder(name)
            .with_kind(kind)
            .with_start_time(ended.checked_sub(took).unwrap_or(ended));
        let mut span = Span(span.start_with_context(tracer, parent));
        if span.0.is_recording() {
            describe(&mut span);
            span.0.end_with_timestamp(ended);
        }
    }
}

/// The description of a span, which is an operation with its duration.
pub struct Span(opentelemetry_sdk::trace::Span);

impl Span {
    /// Sets an attribute. The value must not be secret.
    pub fn set(&mut self, key: &'static str, value: impl fmt::Display) {
        self.0.set_attribute(KeyValue::new(key, value.to_string()));
    }

    /// Marks the operation as failed.
    pub fn fail(&mut self) {
        self.0.set_status(Status::error(""));
    }
}

/// Sends spans by the program's runtime.
#[derive(Debug)]
struct Collector {
    client: Client<HttpConnector, Full<Bytes>>,
    runtime: Handle,
    /// Whether the last spans were lost. The loss is logged once.
    failing: AtomicBool,
}

impl Collector {
    /// Needs a Tokio runtime.
    fn new() -> Self {
        Self {
            client: Client::builder(TokioExecutor::new()).build(HttpConnector::new()),
            runtime: Handle::current(),
            failing: AtomicBool::new(false),
        }
    }
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let endpoint = request.uri().clone();
        let answer = self.client.request(request.map(Full::from));
        let received = async {
            let (head, body) = answer.await?.into_parts();
            let body = Limited::new(body, LARGEST_ANSWER).collect().await?;
            Ok(Response::from_parts(head, body.to_bytes()))
        };
        let sending = async { timeout(TIMEOUT, received).await? };
        let sent: Result<_, HttpError> = self.runtime.spawn(sending).await?;
        let lost = match &sent {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(answer.status().to_string()),
            Err(error) => Some(error.to_string()),
        };
        let before = self.failing.swap(lost.is_some(), Ordering::Relaxed);
        match lost {
            Some(error) if !before => warn!(%endpoint, error, "traces are lost"),
            None if before => info!("traces are taken again"),
            _ => {}
        }
        sent
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{Log, Script, Server};

    const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn parent_of(header: &str) -> Parent {
        let mut headers = HeaderMap::new();
        headers.insert("traceparent", header.parse().expect("a header"));
        parent(&headers)
    }

    #[test]
    fn a_parent_is_what_the_header_says() {
        let context = parent_of(HEADER).span().span_context().clone();
        assert_eq!(context.trace_id().to_string(), HEADER[3..35]);
        assert_eq!(context.span_id().to_string(), HEADER[36..52]);
        assert!(context.is_sampled());
        let unsampled = parent_of(&HEADER.replace("-01", "-00"));
        assert!(unsampled.has_active_span() && !unsampled.span().span_context().is_sampled());
        for bad in ["", "00", &HEADER.to_uppercase()] {
            assert!(!parent_of(bad).has_active_span(), "{bad}");
        }
        assert!(!parent(&HeaderMap::new()).has_active_span());
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
        let traces = args.start("mimeo-test", "one").expect("they start");
        let took = Duration::from_secs(1);
        let unsampled = parent_of(&HEADER.replace("-01", "-00"));
        traces.record("unsampled", &unsampled, took, |_| {
            panic!("nobody follows it")
        });
        traces.record("child", &parent_of(HEADER), took, |span| {
            span.set("namespace", "team");
            span.fail();
        });
        traces.record("root", &Parent::new(), took, |_| {});
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
        let resource = &body["resourceSpans"][0]["resource"]["attributes"];
        let name = json!({"key": "service.name", "value": {"stringValue": "mimeo-test"}});
        assert!(
            resource.as_array().is_some_and(|all| all.contains(&name)),
            "{body}"
        );
    }

    #[tokio::test]
    async fn a_loss_of_spans_is_logged_once_and_so_is_its_end() {
        let answers = [503, 503, 200, 200].map(|code| Script::text(code, "{}"));
        let server = Server::start(answers).await;
        let (log, collector) = (Log::default(), Collector::new());
        let _recording = log.record();
        for _ in 0..4 {
            let request = Request::post(server.uri()).body(Bytes::new());
            let sent = collector.send_bytes(request.expect("a request")).await;
            assert!(sent.is_ok());
        }
        let told = |line: &str| log.text().matches(line).count();
        assert_eq!(
            (told("lost"), told("taken again")),
            (1, 1),
            "{}",
            log.text()
        );
    }

    #[test]
    fn without_a_collector_nothing_is_made() {
        Traces::off().record("x", &Parent::new(), Duration::ZERO, |_| panic!("made"));
    }
}
