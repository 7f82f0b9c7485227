//! What is measured. Labels are few and bounded: no names of objects.

use std::time::Duration;

use mimeo_core::review::Verdict;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// What the hooks answer. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Answers {
    admission: Family<Answer, Histogram>,
    /// Requests that wait for copies now.
    pub(crate) held: Gauge,
}

/// Which hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Hook {
    Namespaces,
    Barrier,
    Objects,
    Stamps,
    Rules,
    Copies,
    Sources,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answer {
    hook: Hook,
    verdict: Word,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Word {
    Allowed,
    Patched,
    Denied,
    ComeAgain,
    Undecodable,
}

impl Word {
    /// Of a review that was read.
    pub(crate) fn of(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Allow { .. } => Self::Allowed,
            Verdict::Patch { patch, .. } if patch.0.is_empty() => Self::Allowed,
            Verdict::Patch { .. } => Self::Patched,
            Verdict::Deny { code: 429, .. } => Self::ComeAgain,
            Verdict::Deny { .. } => Self::Denied,
        }
    }
}

impl Answers {
    /// Registers them.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        // From what memory answers to what a wait takes, in seconds.
        const BUCKETS: [f64; 11] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0];
        let admission = Family::new_with_constructor((|| Histogram::new(BUCKETS)) as fn() -> Histogram);
        let held = Gauge::default();
        let help = "Time from a review's arrival to its answer, by hook and verdict, in seconds";
        registry.register("admission_duration_seconds", help, admission.clone());
        registry.register("barrier_held_requests", "Requests that wait for a new namespace's copies", held.clone());
        Self { admission, held }
    }

    /// Counts an answer.
    pub(crate) fn answered(&self, hook: Hook, verdict: Word, took: Duration) {
        self.admission.get_or_create(&Answer { hook, verdict }).observe(took.as_secs_f64());
    }
}
