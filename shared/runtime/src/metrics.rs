//! The metrics of a program. Some are counted as things happen, others are read when a scrape asks
//! for them.
//!
//! Labels are few and bounded: kinds, verbs, reasons. No label names an object.

// Only Linux has `/proc`.
#[cfg(target_os = "linux")]
mod process;

use std::{fmt, sync::Arc};

use mimeo_engine::{CopyNumbers, Numbers};
use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::{
        DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelValue, MetricEncoder,
        NoLabelSet, text::encode,
    },
    metrics::{MetricType, info::Info},
    registry::Registry,
};
use tokio::sync::watch;

use crate::{client::Clients, handle::Handle, tls::Certificate, watch::Health};

/// The content type of [`Metrics::text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics, named `mimeo_...`. Metrics may be added while these are served. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    /// Certificates by their use. One metric shows all of them.
    certificates: Arc<Mutex<Vec<(&'static str, Certificate)>>>,
}

impl Metrics {
    /// Adds metrics that are counted as things happen.
    pub fn add<R>(&self, register: impl FnOnce(&mut Registry) -> R) -> R {
        let mut registry = self.registry.lock();
        register(registry.sub_registry_with_prefix("mimeo"))
    }

    /// Adds metrics that are read for each scrape.
    fn read_off(&self, read: impl Fn(&mut Page<'_>) -> fmt::Result + Send + Sync + 'static) {
        self.add(|registry| registry.register_collector(Box::new(ReadOff(read))));
    }

    /// All metrics in the `OpenMetrics` format.
    ///
    /// # Errors
    /// Only if the collector of a metric fails.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry.lock())?;
        Ok(text)
    }

    /// Adds the health of the engine's watches.
    pub fn of_watches(&self, health: &Health) {
        let health = health.clone();
        self.read_off(move |page| {
            let silence = health.silence().into_iter();
            page.gauges(
                "watch_staleness_seconds",
                "Time since the last word of the API server, the longest of all watches of a \
                    resource",
                ["resource"],
                silence.map(|(resource, time)| ([resource], time.as_secs_f64())),
            )?;
            let failures = health.failures().into_iter();
            page.write(
                MetricType::Counter,
                "watch_failures",
                "Watches that failed and were tried again, by resource and reason",
                ["resource", "reason"],
                failures.map(|((resource, why), count)| ([resource, why.to_owned()], count)),
                counter,
            )
        });
    }

    /// Adds the expiry of this certificate.
    pub fn of_certificate(&self, of: &'static str, material: Certificate) {
        self.certificates.lock().push((of, material));
    }

    /// Adds the requests of these clients.
    pub fn of_clients(&self, clients: &Clients) {
        let help =
            "Requests to the API server, by method and status code; 0 if there was no answer";
        let counts = clients.counts.clone();
        self.add(|registry| registry.register("api_requests", help, counts));
    }

    /// Adds the engine's queues.
    pub fn of_engine(&self, handle: &Handle) {
        let handle = handle.clone();
        self.read_off(move |page| {
            let numbers = handle.look(|engine| engine.numbers());
            let queues = [
                (["Namespaces"], numbers.queued.urgent),
                (["Rules"], numbers.queued.normal),
                (["Tenants"], numbers.queued.tenants),
            ];
            let help = "Copies that wait for their turn, by queue";
            page.gauges("queue_depth", help, ["queue"], queues)
        });
    }

    /// Adds whether this replica leads. While it does, adds the totals of all rules, and the copies
    /// of the first `most` `ClusterReplication`s by name. With 0 there are none of single rules.
    pub fn of_leader(&self, handle: &Handle, leading: watch::Receiver<bool>, most: usize) {
        let handle = handle.clone();
        self.read_off(move |page| {
            let leads = *leading.borrow();
            let help = "Whether this replica leads: 1 or 0";
            page.gauge("leader", help, i64::from(leads))?;
            if !leads {
                return Ok(());
            }
            page.rules(handle.look(|engine| engine.numbers()))?;
            if most == 0 {
                return Ok(());
            }
            let numbers = handle.look(|engine| engine.index().rule_numbers(most));
            let rows = numbers.iter().flat_map(|(id, copies)| {
                let failed = copies.failed.values().sum();
                let pending = copies.desired.saturating_sub(copies.synced + failed);
                let states = [
                    ("Synced", copies.synced),
                    ("Pending", pending),
                    ("Failed", failed),
                ];
                states.map(|(state, count)| ([&*id.name, state], count))
            });
            let help = "Copies of a ClusterReplication, by state";
            page.gauges("rule_copies", help, ["rule", "state"], rows)
        });
    }
}

impl Default for Metrics {
    /// Starts with `mimeo_build_info`, the expiry of certificates and, on Linux, the metrics of the
    /// process.
    fn default() -> Self {
        let this = Self {
            registry: Arc::default(),
            certificates: Arc::default(),
        };
        #[cfg(target_os = "linux")]
        this.registry
            .lock()
            .register_collector(Box::new(ReadOff(process::metrics)));
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        this.add(|registry| registry.register("build", "What is running", version));
        let certificates = this.certificates.clone();
        this.read_off(move |page| {
            let certificates = certificates.lock();
            let expiry = certificates.iter().filter_map(|(of, material)| {
                Some(([*of], material.borrow().as_ref()?.not_after.as_second()))
            });
            page.gauges(
                "certificate_expiry_timestamp_seconds",
                "When a certificate expires, in seconds of the Unix epoch: that of the hooks, or \
                    of the operations port",
                ["certificate"],
                expiry,
            )
        });
        this
    }
}

const NO_LABELS: [&str; 0] = [];

/// The output for metrics that are read for each scrape.
struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    /// Writes a metric with a value for each set of labels. Each row has the values of the labels.
    /// `_total` is added to the name of a counter.
    fn write<const N: usize, V: EncodeLabelValue, T>(
        &mut self,
        kind: MetricType,
        name: &str,
        help: &str,
        labels: [&'static str; N],
        rows: impl IntoIterator<Item = ([V; N], T)>,
        encode: impl Fn(&mut MetricEncoder<'_>, T) -> fmt::Result,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, kind)?;
        for (values, value) in rows {
            let labels: Vec<_> = labels.into_iter().zip(values).collect();
            if labels.is_empty() {
                encode(&mut metric, value)?;
            } else {
                encode(&mut metric.encode_family(&labels)?, value)?;
            }
        }
        Ok(())
    }

    /// Writes one gauge, with a value for each set of labels.
    fn gauges<const N: usize, V: EncodeLabelValue, T: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&'static str; N],
        rows: impl IntoIterator<Item = ([V; N], T)>,
    ) -> fmt::Result {
        let gauge = |metric: &mut MetricEncoder<'_>, value| metric.encode_gauge(&value);
        self.write(MetricType::Gauge, name, help, labels, rows, gauge)
    }

    /// Writes one gauge without labels.
    fn gauge(&mut self, name: &str, help: &str, value: impl EncodeGaugeValue) -> fmt::Result {
        self.gauges(name, help, [], [(NO_LABELS, value)])
    }

    /// Writes the totals of all rules.
    fn rules(&mut self, numbers: Numbers) -> fmt::Result {
        let Numbers {
            rules,
            stalled,
            copies,
            held,
            waiting,
            webhooks,
            ..
        } = numbers;
        let rules = rules.into_iter().map(|((kind, ready, reason), count)| {
            let ready = ready.map_or("Unknown", |ready| if ready { "True" } else { "False" });
            let values = [kind.to_string(), ready.to_owned(), reason.to_owned()];
            (values, count)
        });
        let help = "Rules, by kind and by status and reason of their condition Ready";
        self.gauges("rules", help, ["kind", "ready", "reason"], rules)?;
        let stalled = stalled.into_iter();
        self.gauges(
            "rules_stalled",
            "Rules that wait for a person, by kind and reason",
            ["kind", "reason"],
            stalled.map(|((kind, reason), count)| ([kind.to_string(), reason.to_owned()], count)),
        )?;
        let by_kind = ["rule_kind"];
        let mut of_copies = |name, help, number: fn(&CopyNumbers) -> usize| {
            let rows = copies
                .iter()
                .map(|(kind, copies)| ([kind.to_string()], number(copies)));
            self.gauges(name, help, by_kind, rows)
        };
        let help = "Copies that should exist, by the kind of their rule";
        of_copies("copies_desired", help, |copies| copies.desired)?;
        let help = "Copies that are as they should be, by the kind of their rule";
        of_copies("copies_synced", help, |copies| copies.synced)?;
        let failed = copies.into_iter().flat_map(|(kind, copies)| {
            let failed = copies.failed.into_iter();
            failed.map(move |(reason, count)| ([kind.to_string(), reason.to_string()], count))
        });
        let help = "Copies that cannot be written or deleted, by the kind of their rule and reason";
        self.gauges("copies_failed", help, ["rule_kind", "reason"], failed)?;
        let held = held.into_iter();
        self.gauges(
            "deletions_held",
            "Copies whose deletion is held until a person confirms it, by the kind of their rule",
            by_kind,
            held.map(|(kind, count)| ([kind.to_string()], count)),
        )?;
        let help = "Namespaces that wait for their first copies";
        self.gauge("namespaces_waiting", help, waiting)?;
        let help = "Live replicas of the webhook";
        self.gauge("webhook_replicas", help, webhooks)
    }
}

fn counter(metric: &mut MetricEncoder<'_>, value: impl EncodeCounterValue + Copy) -> fmt::Result {
    metric.encode_counter::<NoLabelSet, _, u64>(&value, None)
}

/// A collector made from a function.
struct ReadOff<F>(F);

impl<F> fmt::Debug for ReadOff<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReadOff")
    }
}

impl<F: Fn(&mut Page<'_>) -> fmt::Result + Send + Sync + 'static> Collector for ReadOff<F> {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        (self.0)(&mut Page(encoder))
    }
}

#[cfg(test)]
mod tests {
    use mimeo_engine::{Engine, Settings};
    use mimeo_model::role::Role;

    use super::*;
    use crate::{handle::CopyMetrics, trace::Traces};

    #[test]
    fn metrics_carry_the_prefix_and_end_as_the_format_asks() {
        let text = Metrics::default().text().expect("plain metrics encode");
        assert!(text.contains("mimeo_build_info{version=\""), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn what_all_rules_come_to_is_told_by_the_leader_alone() {
        let engine = Engine::new(Settings::new(Role::Keeper, "cluster"));
        let (lead, leading) = watch::channel(false);
        let metrics = Metrics::default();
        let handle = Handle::new(engine, metrics.add(CopyMetrics::new), Traces::off());
        metrics.of_engine(&handle);
        metrics.of_leader(&handle, leading, 0);
        let text = metrics.text().expect("it encodes");
        assert!(text.contains("\nmimeo_leader 0\n"), "{text}");
        assert!(!text.contains("mimeo_deletions_held"), "{text}");
        assert!(
            text.contains("\nmimeo_namespace_lag_seconds_bucket{le=\"+Inf\"} 0\n"),
            "{text}"
        );
        lead.send_replace(true);
        let text = metrics.text().expect("it encodes");
        assert!(text.contains("\nmimeo_leader 1\n"), "{text}");
        for kind in ["ClusterReplication", "Replication"] {
            for metric in ["deletions_held", "copy_lag_seconds_count"] {
                assert!(
                    text.contains(&format!("\nmimeo_{metric}{{rule_kind=\"{kind}\"}} 0\n")),
                    "{metric}: {text}"
                );
            }
        }
        assert!(
            text.contains("\nmimeo_queue_depth{queue=\"Rules\"} 0\n"),
            "{text}"
        );
    }
}
