//! The metrics. Labels are few, and all but `policy` are bounded.
//!
//! The only object names in labels are those of `TransformPolicies` that were registered since the
//! start.

use std::{iter, time::Duration};

use mimeo_model::{condition::ConditionReason, review::Verdict, words};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Metric, Registry},
};

/// Metrics of the hooks and their registration. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Answers {
    admission: Family<Answer, Histogram>,
    /// Requests that wait for copies at this moment.
    pub(crate) held: Gauge,
    /// By the kind and the name of a webhook configuration.
    registered: Family<Labels<2>, Gauge>,
    /// By the condition Ready of policies.
    policies: Family<Labels<2>, Gauge>,
    /// By the policy that rewrote an object.
    rewritten: Family<Labels<1>, Counter>,
}

/// The names and the values of a series' labels.
type Labels<const N: usize> = [(&'static str, String); N];

/// The label of a policy that rewrites objects.
fn rewriter(policy: &str) -> Labels<1> {
    [("policy", policy.to_owned())]
}

words! {
    /// A hook of the webhook.
    Hook {
        Namespaces,
        Pods,
        Objects,
        Authors,
        Rules,
        Copies,
    }
}

words! {
    /// The verdict on a review, in the metrics.
    Word {
        Allowed,
        Patched,
        Denied,
        ComeAgain,
        Undecodable,
    }
}

/// The labels of an answer.
type Answer = [(&'static str, &'static str); 2];

fn answer(hook: Hook, verdict: Word) -> Answer {
    [("hook", hook.as_str()), ("verdict", verdict.as_str())]
}

impl Word {
    /// The word for the verdict of a review that was read.
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

/// Adds a metric to the registry.
fn added<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

impl Answers {
    /// Creates the metrics and adds them to the registry.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        // Seconds, from an answer out of memory to the longest wait.
        const BUCKETS: [f64; 11] = [
            0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0,
        ];
        let durations = (|| Histogram::new(BUCKETS)) as fn() -> Histogram;
        let answers = Self {
            admission: added(
                registry,
                "admission_duration_seconds",
                "Time from a review's arrival to its answer, by hook and verdict, in seconds",
                Family::new_with_constructor(durations),
            ),
            held: added(
                registry,
                "pod_gate_held_requests",
                "Requests that wait for a new namespace's copies",
                Gauge::default(),
            ),
            registered: added(
                registry,
                "hooks_registered",
                "Whether the API server has the hooks as they should be, by the kind and name of \
                 their configuration: 1 or 0",
                Family::default(),
            ),
            policies: added(
                registry,
                "policies",
                "TransformPolicies, by status and reason of their condition Ready",
                Family::default(),
            ),
            rewritten: added(
                registry,
                "policy_rewrites",
                "Objects that a TransformPolicy has changed as they were written, dry runs among \
                 them, by the policy's name",
                Family::default(),
            ),
        };
        // Every series exists from the start with the value zero. A rate cannot show the first
        // event of a series that appears with it.
        for hook in Hook::ALL {
            for verdict in Word::ALL {
                drop(answers.admission.get_or_create(&answer(*hook, *verdict)));
            }
        }
        answers.policies(iter::empty());
        answers
    }

    /// Records whether the API server has the configuration as Mimeo wants it.
    pub(crate) fn registered(&self, kind: &str, name: &str, yes: bool) {
        let labels = [("kind", kind.to_owned()), ("name", name.to_owned())];
        self.registered.get_or_create(&labels).set(yes.into());
    }

    /// Counts the policies by status and reason.
    pub(crate) fn policies(&self, reasons: impl Iterator<Item = ConditionReason>) {
        self.policies.clear();
        let counted = |reason: ConditionReason| {
            let ready = match reason {
                ConditionReason::Active => "True",
                _ => "False",
            };
            let labels = [("ready", ready.to_owned()), ("reason", reason.to_string())];
            self.policies.get_or_create_owned(&labels)
        };
        // A cluster without policies reports zero, so that the series always exists.
        counted(ConditionReason::Active).set(0);
        for reason in reasons {
            counted(reason).inc();
        }
    }

    /// Starts counting rewrites of a policy from zero, if it is a new one. Called for each policy
    /// that is registered.
    pub(crate) fn rewrites_by(&self, policy: &str) {
        drop(self.rewritten.get_or_create(&rewriter(policy)));
    }

    /// Counts one rewrite by a policy. A policy that was never registered does not count, because
    /// any caller may put any name into the path.
    pub(crate) fn rewrote(&self, policy: &str) {
        if let Some(count) = self.rewritten.get(&rewriter(policy)) {
            count.inc();
        }
    }

    /// Counts an answer.
    pub(crate) fn answered(&self, hook: Hook, verdict: Word, took: Duration) {
        self.admission
            .get_or_create(&answer(hook, verdict))
            .observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use mimeo_runtime::metrics::Metrics;

    use super::*;

    #[test]
    fn policies_that_are_no_more_are_not_counted() {
        let metrics = Metrics::default();
        let answers = metrics.add(Answers::new);
        answers.policies([ConditionReason::Active, ConditionReason::Rejected].into_iter());
        answers.policies([ConditionReason::Active, ConditionReason::Active].into_iter());
        answers.registered("MutatingWebhookConfiguration", "mimeo", false);
        let text = metrics.text().expect("it encodes");
        assert!(
            text.contains("mimeo_policies{ready=\"True\",reason=\"Active\"} 2"),
            "{text}"
        );
        assert!(!text.contains("Rejected"), "{text}");
        assert!(
            text.contains(
                "mimeo_hooks_registered{kind=\"MutatingWebhookConfiguration\",name=\"mimeo\"} 0"
            ),
            "{text}"
        );
    }

    #[test]
    fn what_policies_rewrite_counts_from_zero_on_once_they_are_registered() {
        let metrics = Metrics::default();
        let answers = metrics.add(Answers::new);
        let told = || {
            let text = metrics.text().expect("it encodes");
            let lines = text
                .lines()
                .filter(|line| line.starts_with("mimeo_policy_rewrites_total{"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        answers.rewrote("nobody-knows-it");
        assert!(told().is_empty());
        answers.rewrites_by("mirror");
        assert_eq!(told(), ["mimeo_policy_rewrites_total{policy=\"mirror\"} 0"]);
        answers.rewrote("mirror");
        answers.rewrites_by("mirror");
        assert_eq!(told(), ["mimeo_policy_rewrites_total{policy=\"mirror\"} 1"]);
    }

    #[test]
    fn every_answer_counts_from_zero_on() {
        let metrics = Metrics::default();
        let answers = metrics.add(Answers::new);
        answers.answered(Hook::Pods, Word::Denied, Duration::ZERO);
        let text = metrics.text().expect("it encodes");
        let counts = text
            .lines()
            .filter(|line| line.starts_with("mimeo_admission_duration_seconds_count{"));
        assert_eq!(counts.clone().count(), 30, "{text}");
        let counted: Vec<_> = counts.filter(|line| !line.ends_with(" 0")).collect();
        assert_eq!(
            counted,
            ["mimeo_admission_duration_seconds_count{hook=\"Pods\",verdict=\"Denied\"} 1"]
        );
    }
}
