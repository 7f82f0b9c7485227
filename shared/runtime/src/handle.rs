//! The only access to an [`Engine`]. The engine is behind one mutex, which is held for microseconds
//! and never across an await.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mimeo_engine::{Engine, Request, Verb, copy::Why};
use mimeo_model::{id::RuleKind, known::Decoded, outcome::Outcome, source::SourceRef};
use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use serde_json::Value;
use tokio::{
    sync::{Notify, Semaphore, SemaphorePermit, futures::Notified, watch},
    time::sleep,
};

use crate::trace::{Parent, Traces};

/// At most this many sources are read at a time. Each source may have the maximum size of an
/// object, which is known only after the read. Hundreds of sources may enter or leave a selector at
/// once.
const READS: usize = 8;

/// A shared engine. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

struct Shared {
    engine: Mutex<Engine>,
    started: Instant,
    /// Notified when there may be work to do.
    work: Notify,
    /// Tells of changes. Tasks that wait for a namespace check it again after each change.
    changes: watch::Sender<()>,
    /// Permits for reading a source. Never closed.
    reads: Semaphore,
    counts: CopyMetrics,
    traces: Traces,
}

/// Counts requests that create, change or delete copies, and measures how long copies take.
pub struct CopyMetrics {
    all: Family<Written, Counter>,
    /// Those that undid a change by another client.
    reverts: Family<[(&'static str, String); 1], Counter>,
    copy_lag: Family<[(&'static str, String); 1], Histogram>,
    namespace_lag: Histogram,
}

/// The bounds of both histograms, in seconds. They reach from the duration of one write to that of a
/// wait until a person fixes a problem.
const BOUNDS: [f64; 15] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0,
];

/// The label of a copy's lag: the kind of its rule.
fn of_kind(kind: RuleKind) -> [(&'static str, String); 1] {
    [("rule_kind", kind.to_string())]
}

/// The label of a write that undid a change by another client: the kind of the change.
fn cause(why: Why) -> [(&'static str, String); 1] {
    [("cause", format!("{why:?}"))]
}

/// The labels of a write: its verb and its result.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Written {
    verb: &'static str,
    result: &'static str,
}

const VERBS: [&str; 4] = ["create", "apply", "claim", "delete"];
const RESULTS: [&str; 5] = ["done", "conflict", "refused", "gone", "unavailable"];

impl CopyMetrics {
    /// Counts in this registry.
    pub fn new(registry: &mut Registry) -> Self {
        let this = Self {
            all: Family::default(),
            reverts: Family::default(),
            copy_lag: Family::new_with_constructor(|| Histogram::new(BOUNDS)),
            namespace_lag: Histogram::new(BOUNDS),
        };
        let help = "Requests that create, change or delete copies, by verb and result";
        registry.register("copy_requests", help, this.all.clone());
        let help = "Copies that were written again because another client changed or deleted them, \
            by cause";
        registry.register("copies_reverted", help, this.reverts.clone());
        let help = "Time from the change of a source to the copy that has it, by the kind of its \
            rule, in seconds";
        registry.register("copy_lag_seconds", help, this.copy_lag.clone());
        let help = "Time that a namespace waited for its first copies, in seconds";
        registry.register("namespace_lag_seconds", help, this.namespace_lag.clone());
        // Each series starts at zero. A series that first appears with its first event would hide
        // this event from a rate.
        for verb in VERBS {
            for result in RESULTS {
                let _ = this.all.get_or_create(&Written { verb, result });
            }
        }
        for why in Why::REVERTS {
            let _ = this.reverts.get_or_create(&cause(why));
        }
        for kind in RuleKind::ALL {
            let _ = this.copy_lag.get_or_create(&of_kind(kind));
        }
        this
    }
}

impl Written {
    /// None if the request writes nothing.
    fn of(verb: Verb, outcome: &Outcome) -> Option<Self> {
        let verb = match verb {
            Verb::Create => "create",
            Verb::Apply(_) | Verb::Take(..) => "apply",
            Verb::Claim(..) => "claim",
            Verb::Delete(..) => "delete",
            Verb::Learn(_) | Verb::Compare(..) | Verb::Look => return None,
        };
        let result = match outcome {
            Outcome::Object(_) | Outcome::Absent => "done",
            Outcome::Conflict | Outcome::Differs => "conflict",
            Outcome::Refused(_) | Outcome::Immutable(_) => "refused",
            Outcome::NamespaceGone | Outcome::NotServed => "gone",
            Outcome::Unavailable { .. } => "unavailable",
        };
        Some(Self { verb, result })
    }
}

impl Handle {
    /// Shares this engine and starts its clock. Its requests are counted and traced.
    pub fn new(engine: Engine, counts: CopyMetrics, traces: Traces) -> Self {
        let shared = Shared {
            engine: Mutex::new(engine),
            started: Instant::now(),
            work: Notify::new(),
            changes: watch::Sender::new(()),
            reads: Semaphore::new(READS),
            counts,
            traces,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Sets the engine's clock and gives the engine to `f`, which may change it. Then wakes the tasks
    /// that wait for work or for a change. `f` must not block.
    pub fn with<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> R {
        let result = self.look(f);
        self.shared.work.notify_one();
        self.tell_of_change();
        result
    }

    /// As [`Handle::with`], for questions: it wakes no task.
    pub fn look<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> R {
        let mut engine = self.shared.engine.lock();
        f(engine.at(self.shared.started.elapsed()))
    }

    /// Wakes all tasks that wait for a change.
    pub(crate) fn tell_of_change(&self) {
        self.shared.changes.send_replace(());
    }

    /// Completes when there may be work to do.
    pub(crate) fn woken(&self) -> Notified<'_> {
        self.shared.work.notified()
    }

    /// Waits for a permit to read one more source.
    pub(crate) async fn turn_to_read(&self) -> Option<SemaphorePermit<'_>> {
        self.shared.reads.acquire().await.ok()
    }

    /// Counts and traces a request that writes a copy.
    pub(crate) fn measure(&self, request: &Request, outcome: &Outcome, took: Duration) {
        let Some(written) = Written::of(request.verb, outcome) else {
            return;
        };
        let counts = &self.shared.counts;
        counts.all.get_or_create(&written).inc();
        let reverted = request.why.filter(|why| Why::REVERTS.contains(why));
        if let (Some(why), Outcome::Object(_)) = (reverted, outcome) {
            counts.reverts.get_or_create(&cause(why)).inc();
        }
        let begins = Parent::new();
        self.shared.traces.record("write", &begins, took, |span| {
            span.set("verb", written.verb);
            span.set("result", written.result);
            if let Some(rule) = &request.rule {
                span.set("rule", rule);
            }
            span.set("kind", &request.resource.gvk.kind);
            span.set("namespace", &request.namespace);
            span.set("name", &request.name);
            if matches!(written.result, "refused" | "unavailable") {
                span.fail();
            }
        });
    }

    /// Measures how long a change of a source took to reach a copy.
    pub(crate) fn copy_lagged(&self, kind: RuleKind, lag: Duration) {
        let lags = self.shared.counts.copy_lag.get_or_create(&of_kind(kind));
        lags.observe(lag.as_secs_f64());
    }

    /// Measures how long a namespace waited for its first copies.
    pub(crate) fn namespace_lagged(&self, lag: Duration) {
        self.shared.counts.namespace_lag.observe(lag.as_secs_f64());
    }

    /// Tells the engine the state of a source that was just read. None means that the source does
    /// not exist.
    pub(crate) fn source(&self, source: &SourceRef, object: Option<Decoded<Value>>) {
        self.with(|engine| engine.source(source, object));
    }

    /// Tells of changes from now on, as long as a handle exists.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.shared.changes.subscribe()
    }

    /// Returns soon after `holds` returns true for the engine. Cancel safe.
    pub async fn until(&self, holds: impl Fn(&Engine) -> bool) {
        let mut changes = self.changes();
        while !self.look(|engine| holds(engine)) {
            let _ = changes.changed().await;
            // Changes come in bursts, and most of them concern other tasks.
            sleep(Duration::from_millis(5)).await;
        }
    }
}
