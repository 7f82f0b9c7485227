//! The one way to an [`Engine`]: it sits behind one mutex, held for microseconds and never across
//! an await.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use mimeo_engine::{Engine, Request, Verb, clock::Tick};
use mimeo_model::{outcome::Outcome, source::SourceRef};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use serde_json::Value;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, futures::Notified, watch};

use crate::{
    object::Decoded,
    trace::{Began, Parent, Traces},
};

/// Most sources that are read at once: each may be as large as an object can be, and is weighed
/// only when it is here; and of what a selector finds hundreds may come or go at a time.
const READS: usize = 8;

/// A shared engine. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

struct Shared {
    engine: Mutex<Engine>,
    started: Instant,
    /// There may be something to do.
    work: Notify,
    /// Counts changes: whoever waits for a namespace looks again.
    changes: watch::Sender<u64>,
    /// Turns of sources that are read. Never closed.
    reads: Semaphore,
    counts: CopyRequests,
    traces: Traces,
}

/// Counts requests that create, change or delete copies. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct CopyRequests(Family<Written, Counter>);

/// The labels of a write: its verb and its result.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Written {
    verb: &'static str,
    result: &'static str,
}

const VERBS: [&str; 4] = ["create", "apply", "claim", "delete"];
const RESULTS: [&str; 5] = ["done", "conflict", "refused", "gone", "unavailable"];

impl CopyRequests {
    /// Counts in this registry.
    pub fn new(registry: &mut Registry) -> Self {
        let this = Self::default();
        let help = "Requests that create, change or delete copies, by verb and result";
        registry.register("copy_requests", help, this.0.clone());
        // From zero on: of what appears with its first event no rate can tell that one.
        for (verb, result) in VERBS
            .into_iter()
            .flat_map(|verb| RESULTS.map(|result| (verb, result)))
        {
            let _ = this.0.get_or_create(&Written { verb, result });
        }
        this
    }
}

impl Written {
    /// None: nothing was to be written.
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
    /// Of this engine, whose requests are counted and traced; its clock starts now.
    pub fn new(engine: Engine, counts: CopyRequests, traces: Traces) -> Self {
        let shared = Shared {
            engine: Mutex::new(engine),
            started: Instant::now(),
            work: Notify::new(),
            changes: watch::Sender::new(0),
            reads: Semaphore::new(READS),
            counts,
            traces,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// The engine's time.
    pub fn now(&self) -> Tick {
        self.shared.started.elapsed()
    }

    /// Asks or tells the engine something, at the present time. Must not wait inside.
    pub fn with<R>(&self, f: impl FnOnce(&mut Engine, Tick) -> R) -> R {
        let result = self.look(f);
        self.shared.work.notify_one();
        self.tell_of_change();
        result
    }

    /// The same for questions: wakes nobody.
    pub fn look<R>(&self, f: impl FnOnce(&mut Engine, Tick) -> R) -> R {
        // A panic in the engine would be a bug that a restart mends; the state is whole between
        // calls.
        let mut engine = self
            .shared
            .engine
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        f(&mut engine, self.shared.started.elapsed())
    }

    /// Has those who wait for a change look again.
    pub(crate) fn tell_of_change(&self) {
        self.shared
            .changes
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Completes when there may be something to do.
    pub(crate) fn woken(&self) -> Notified<'_> {
        self.shared.work.notified()
    }

    /// Waits until there is room to read one more source.
    pub(crate) async fn turn_to_read(&self) -> Option<SemaphorePermit<'_>> {
        self.shared.reads.acquire().await.ok()
    }

    /// Counts and traces a request that writes a copy.
    pub(crate) fn measure(&self, request: &Request, outcome: &Outcome, began: Began) {
        let Some(written) = Written::of(request.ticket.verb, outcome) else {
            return;
        };
        self.shared.counts.0.get_or_create(&written).inc();
        self.shared
            .traces
            .record("write", Parent::None, began, |span| {
                span.set("verb", written.verb);
                span.set("result", written.result);
                if let Some(rule) = &request.rule {
                    span.set("rule", rule);
                }
                span.set("kind", &request.resource.gvk.kind);
                span.set("namespace", &request.ticket.namespace);
                span.set("name", &request.ticket.name);
                if matches!(
                    outcome,
                    Outcome::Refused(_) | Outcome::Immutable(_) | Outcome::Unavailable { .. }
                ) {
                    span.fail();
                }
            });
    }

    /// A source is as it was just read; none: it isn't there.
    pub(crate) fn source(&self, source: &SourceRef, object: Option<Decoded<Value>>) {
        self.with(|engine, now| show_source(engine, source, object, now));
    }

    /// A source was read from then on. If it isn't awaited any more, the watch has told of it
    /// meanwhile, and knows better.
    pub(crate) fn source_reread(
        &self,
        source: &SourceRef,
        began: Tick,
        object: Option<Decoded<Value>>,
    ) {
        self.with(|engine, now| {
            if engine.awaits(source, began) {
                show_source(engine, source, object, now);
            }
        });
    }

    /// Tells of every change from now on.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }
}

fn show_source(engine: &mut Engine, source: &SourceRef, object: Option<Decoded<Value>>, now: Tick) {
    match object {
        Some(Decoded::Whole(object)) => engine.source(source, Some(object), now),
        Some(Decoded::Part(part)) => engine.source_undecodable(source, part, now),
        None => engine.source(source, None, now),
    }
}

/// Whether this object, of the source's name, has the labels that make it this source.
pub(crate) fn admits(source: &SourceRef, object: &Value) -> bool {
    source.admits(|key| object["metadata"]["labels"][key].as_str())
}
