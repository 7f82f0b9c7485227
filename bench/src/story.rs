//! The run: one control plane and one pair of programs, which give one figure after another.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use futures::{StreamExt, stream};
use http::Method;
use kube::Client;
use mimeo_runtime::client::{ClientArgs, Clients};
use mimeo_tests::{AuditEvent, ControlPlane, Pair, eventually};
use serde_json::json;

use crate::{
    Flags, admission,
    floor::{self, Floor, call, namespace},
    seen::Watcher,
    table::Results,
};

pub(crate) const SOURCES: &str = "platform";
const SOURCE: &str = "registry";
pub(crate) const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";

#[derive(Parser)]
struct Connection {
    #[command(flatten)]
    client: ClientArgs,
}

/// The control plane, the programs, and the results so far.
pub(crate) struct Stage {
    control_plane: ControlPlane,
    clients: Clients,
    pub(crate) pair: Pair,
    seen: Watcher,
    namespaces: Vec<String>,
    pub(crate) payload: String,
    floor: Floor,
    pub(crate) results: Results,
}

/// Measures everything.
pub(crate) async fn run(flags: &Flags) -> Result<Results> {
    let mut stage = Stage::set(flags.namespaces, flags.bytes).await?;
    stage.tell_floor();
    let checksum = stage.fan_out().await?;
    let checksum = stage.rotation(&checksum).await?;
    stage.repairs().await?;
    stage.arrivals(flags.arrivals).await?;
    stage.arrivals_at_once(50).await?;
    stage.memory(true)?;
    let checksum = stage.restart(&checksum).await?;
    stage.unrelated(5000).await?;
    stage.catching_up(&checksum).await?;
    admission::measure(&mut stage.results, &stage.pair.url()).await?;
    if flags.many_namespaces > 0 {
        stage.many(flags.many_namespaces, flags.many_rules).await?;
    }
    Ok(stage.results)
}

impl Stage {
    async fn set(count: usize, bytes: usize) -> Result<Self> {
        let control_plane = ControlPlane::builder().audit(true).start().await?;
        let kubeconfig = control_plane.kubeconfig().display().to_string();
        let connection = Connection::try_parse_from(["bench", "--kubeconfig", &kubeconfig])?;
        let clients = connection.client.clients("mimeo-bench").await?;
        let namespaces: Vec<String> = (0..count).map(|n| format!("team-{n:05}")).collect();
        let client = clients.requests.clone();
        create_namespaces(&client, &namespaces).await?;
        create_namespaces(&client, &[SOURCES.to_owned()]).await?;
        // "xxx" in base64.
        let payload = "eHh4".repeat(bytes / 3);
        eprintln!("measuring the floor");
        // These Secrets are watched twice like the copies, once for Mimeo and once for the
        // measurement. So the floor includes the API server's cost of events.
        let watched = [0, 1].map(|_| Watcher::start(clients.watcher.client.clone(), "bench=floor"));
        let floor = floor::measure(&client, &namespaces, &payload).await?;
        drop(watched);
        let pair = Pair::builder().quiet().start(&control_plane).await?;
        warm_up(&client).await?;
        let seen = Watcher::start(
            clients.watcher.client.clone(),
            "app.kubernetes.io/managed-by=mimeo",
        );
        Ok(Self {
            control_plane,
            clients,
            pair,
            seen,
            namespaces,
            payload,
            floor,
            results: Results::default(),
        })
    }

    /// Adds the floor to the results. The other figures refer to it.
    fn tell_floor(&mut self) {
        let Floor {
            create,
            update,
            apply_create,
            apply_update,
            one_create,
            one_create_p99,
            one_apply,
        } = self.floor;
        let count = self.namespaces.len();
        let rows = [
            (format!("floor: {count} creates"), create),
            (format!("floor: {count} updates"), update),
            (format!("floor: {count} applies that create"), apply_create),
            (format!("floor: {count} applies that update"), apply_update),
            ("floor: one create, median".to_owned(), one_create),
            ("floor: one create, p99".to_owned(), one_create_p99),
            ("floor: one apply, median".to_owned(), one_apply),
        ];
        for (figure, took) in rows {
            self.results.add(
                &figure,
                format!("{:.1} ms", millis(took)),
                String::new(),
                1.0,
                f64::INFINITY,
            );
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.clients.requests
    }

    async fn put_source(&self, version: &str) -> Result<()> {
        let path = format!("/api/v1/namespaces/{SOURCES}/secrets/{SOURCE}");
        let body = floor::source(SOURCE, &self.payload, version);
        if version == "1" {
            let path = format!("/api/v1/namespaces/{SOURCES}/secrets");
            return call(self.client(), Method::POST, &path, JSON, body).await;
        }
        call(self.client(), Method::PATCH, &path, MERGE, body).await
    }

    /// Mimeo's requests since `mark`, without those for Leases, statuses and watches.
    async fn requests(&self, mark: &mimeo_tests::AuditMark) -> Result<Vec<AuditEvent>> {
        let all = self.control_plane.audit_since(mark).await?;
        let own = |event: &AuditEvent| {
            event.user.starts_with("mimeo-")
                && event.resource != "leases"
                && event.subresource != "status"
                && event.verb != "watch"
        };
        Ok(all.into_iter().filter(own).collect())
    }

    async fn fan_out(&mut self) -> Result<String> {
        self.put_source("1").await?;
        let mark = self.control_plane.audit_mark().await?;
        let begun = Instant::now();
        let rule = json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": "registry"},
            "spec": {
                "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": SOURCES, "name": SOURCE}],
                "targets": [{"namespaces": ["team-*"]}],
            },
        });
        call(
            self.client(),
            Method::POST,
            "/apis/mimeo.dev/v1alpha1/clusterreplications",
            JSON,
            rule.to_string(),
        )
        .await?;
        let count = self.namespaces.len();
        let (last, checksum) = self.seen.all(SOURCE, count, "").await?;
        self.compare("fan-out", last - begun, self.floor.apply_create, 1.15);
        self.per_copy("requests per copy, fan-out", &mark, 1)
            .await?;
        Ok(checksum)
    }

    /// Changes the source three times. The median time counts.
    async fn rotation(&mut self, old: &str) -> Result<String> {
        let mark = self.control_plane.audit_mark().await?;
        let before = self.processor_time()?;
        let (mut took, mut checksum) = (Vec::new(), old.to_owned());
        for version in ["21", "22", "23"] {
            let begun = Instant::now();
            self.put_source(version).await?;
            let (last, new) = self
                .seen
                .all(SOURCE, self.namespaces.len(), &checksum)
                .await?;
            took.push(last - begun);
            checksum = new;
        }
        took.sort();
        self.compare("rotation", took[1], self.floor.apply_update, 1.15);
        let after = self.processor_time()?;
        for (index, name) in ["webhook", "reconciler"].into_iter().enumerate() {
            let spent = after[index].saturating_sub(before[index]) / 3;
            let figure = format!("rotation: processor time, {name}");
            let ratio = millis(spent) / millis(self.floor.apply_update);
            self.results.add(
                &figure,
                format!("{:.0} ms", millis(spent)),
                String::new(),
                ratio,
                f64::INFINITY,
            );
        }
        self.per_copy("requests per copy, rotation", &mark, 3)
            .await?;
        Ok(checksum)
    }

    async fn per_copy(
        &mut self,
        figure: &str,
        mark: &mimeo_tests::AuditMark,
        times: usize,
    ) -> Result<()> {
        // The webhook also reads the source, for its warnings. That read belongs to no copy.
        let copy = |event: &&AuditEvent| event.resource == "secrets" && event.namespace != SOURCES;
        let requests = self.requests(mark).await?.iter().filter(copy).count();
        let value = ratio(requests, times * self.namespaces.len());
        self.results.add(
            figure,
            format!("{requests} requests"),
            String::new(),
            value,
            1.0,
        );
        Ok(())
    }

    /// Edits or deletes one copy in each of 100 namespaces, one after another.
    async fn repairs(&mut self) -> Result<()> {
        let mark = self.control_plane.audit_mark().await?;
        let mut took = Vec::new();
        for (index, name) in self.namespaces.iter().take(100).enumerate() {
            let path = format!("/api/v1/namespaces/{name}/secrets/{SOURCE}");
            let key = (name.clone(), SOURCE.to_owned());
            let before = self
                .seen
                .until("a copy", |copies| {
                    copies.get(&key).map(|sight| sight.events)
                })
                .await?;
            if index % 2 == 0 {
                let edit = json!({"stringData": {"payload": "edited"}}).to_string();
                call(self.client(), Method::PATCH, &path, MERGE, edit).await?;
            } else {
                call(self.client(), Method::DELETE, &path, JSON, String::new()).await?;
            }
            let answered = Instant::now();
            // The first event is the edit or deletion itself, the second is the repair.
            let repaired = self
                .seen
                .until("a repair", |copies| {
                    copies
                        .get(&key)
                        .filter(|sight| sight.there && sight.events >= before + 2)
                        .map(|sight| sight.at)
                })
                .await?;
            took.push(repaired.saturating_duration_since(answered));
        }
        took.sort();
        self.compare(
            "hand edit or deletion repaired, p50",
            took[took.len() / 2],
            self.floor.one_apply,
            5.0,
        );
        let requests = self.requests(&mark).await?.len();
        self.results.add(
            "requests per repair",
            format!("{requests} for 100"),
            String::new(),
            ratio(requests, 100),
            1.0,
        );
        Ok(())
    }

    async fn arrivals(&mut self, count: usize) -> Result<()> {
        let mark = self.control_plane.audit_mark().await?;
        let mut took = Vec::with_capacity(count);
        for n in 0..count {
            let name = format!("team-new-{n}");
            create_namespaces(self.client(), std::slice::from_ref(&name)).await?;
            let answered = Instant::now();
            let key = (name, SOURCE.to_owned());
            let at = self
                .seen
                .until("a new copy", |copies| {
                    copies.get(&key).map(|sight| sight.at)
                })
                .await?;
            took.push(at.saturating_duration_since(answered));
        }
        took.sort();
        let at = |share: usize| took[(took.len() * share / 100).min(took.len() - 1)];
        // Only the slow cases have a bound. An ordinary case includes a server-side apply, which
        // costs more than a create, and two watch events.
        self.compare(
            "new namespace: copy visible, p50",
            at(50),
            self.floor.one_create,
            f64::INFINITY,
        );
        self.compare(
            "new namespace: copy visible, p99",
            at(99),
            self.floor.one_create_p99,
            3.0,
        );
        self.compare(
            "new namespace: copy visible, max",
            at(100),
            self.floor.one_create,
            f64::INFINITY,
        );
        self.settled(count).await?;
        let requests = self.requests(&mark).await?.len();
        let measured = format!("{requests} for {count}");
        self.results.add(
            "requests per new namespace",
            measured,
            String::new(),
            ratio(requests, count),
            2.0,
        );
        Ok(())
    }

    /// Waits until no namespace has the pending label.
    async fn settled(&self, expected: usize) -> Result<()> {
        let client = self.client().clone();
        eventually(Duration::from_secs(30), "marks removed", || async {
            let api: kube::Api<k8s_openapi::api::core::v1::Namespace> =
                kube::Api::all(client.clone());
            let marked = api
                .list_metadata(&kube::api::ListParams::default().labels("mimeo.dev/copies"))
                .await?;
            ensure!(
                marked.items.is_empty(),
                "{} of {expected} are marked",
                marked.items.len()
            );
            Ok(Some(()))
        })
        .await
    }

    async fn arrivals_at_once(&mut self, count: usize) -> Result<()> {
        let floor =
            floor::namespaces_with_secrets(self.client(), "plain", count, &self.payload).await?;
        let names: Vec<String> = (0..count).map(|n| format!("team-burst-{n}")).collect();
        let begun = Instant::now();
        create_namespaces(self.client(), &names).await?;
        let last = self
            .seen
            .until("copies in all new namespaces", |copies| {
                let at = names.iter().map(|name| {
                    copies
                        .get(&(name.clone(), SOURCE.to_owned()))
                        .map(|sight| sight.at)
                });
                at.collect::<Option<Vec<_>>>()
                    .and_then(|all| all.into_iter().max())
            })
            .await?;
        self.compare(
            "50 namespaces at once: last copy visible",
            last - begun,
            floor,
            3.0,
        );
        self.settled(count).await
    }

    /// User and system time of both programs so far.
    fn processor_time(&self) -> Result<[Duration; 2]> {
        let of = |replica: Option<&mimeo_tests::Replica>| -> Result<Duration> {
            let id = replica.context("a program")?.program.id();
            let stat = std::fs::read_to_string(format!("/proc/{id}/stat"))?;
            // Fields 14 and 15 of proc(5), in hundredths of a second. The program's name comes
            // before them and may contain anything but ')'.
            let fields: Vec<&str> = stat
                .rsplit(')')
                .next()
                .unwrap_or_default()
                .split_whitespace()
                .collect();
            let ticks: u64 = fields
                .get(11..13)
                .context("two times")?
                .iter()
                .filter_map(|field| field.parse::<u64>().ok())
                .sum();
            Ok(Duration::from_millis(ticks * 10))
        };
        Ok([
            of(self.pair.webhooks.first())?,
            of(self.pair.reconciler.as_ref())?,
        ])
    }

    pub(crate) fn memory(&mut self, bounded: bool) -> Result<[f64; 2]> {
        let webhook = mebibytes(
            self.pair
                .webhooks
                .first_mut()
                .context("a webhook")?
                .program
                .resident_bytes()?,
        );
        let reconciler = mebibytes(
            self.pair
                .reconciler
                .as_mut()
                .context("a reconciler")?
                .program
                .resident_bytes()?,
        );
        if bounded {
            for (name, value) in [("webhook", webhook), ("reconciler", reconciler)] {
                let figure = format!("resident memory, {name}, MiB");
                self.results.add(
                    &figure,
                    format!("{value:.1} MiB"),
                    String::new(),
                    value,
                    25.0,
                );
            }
        }
        Ok([webhook, reconciler])
    }

    async fn restart(&mut self, checksum: &str) -> Result<String> {
        self.stop_reconciler().await?;
        let mark = self.control_plane.audit_mark().await?;
        let begun = Instant::now();
        self.pair.start_reconciler().await?;
        // The reconciler answers this change after all its work at startup. So its answer shows
        // that the rest is done.
        self.put_source("3").await?;
        let copies = self.copies().await?;
        let (last, new) = self.seen.all(SOURCE, copies, checksum).await?;
        let all = self.control_plane.audit_since(&mark).await?;
        let own = all.iter().filter(|event| event.user == "mimeo-reconciler");
        let requests = own
            .filter(|event| event.resource != "secrets" || !event.is_write())
            .count();
        let took = format!(
            "{requests} requests, {:.0} ms to all rotated",
            millis(last - begun)
        );
        let count = f64::from(u32::try_from(requests)?);
        // About ten of these requests concern the author of the rule: the key, Roles and bindings,
        // and the author's permissions.
        self.results.add(
            "restart: requests besides one rotation",
            took,
            String::new(),
            count,
            37.0,
        );
        Ok(new)
    }

    async fn copies(&self) -> Result<usize> {
        self.seen
            .until("copies", |copies| {
                Some(
                    copies
                        .iter()
                        .filter(|((_, name), sight)| name == SOURCE && sight.there)
                        .count(),
                )
            })
            .await
    }

    pub(crate) async fn stop_reconciler(&mut self) -> Result<()> {
        if let Some(mut reconciler) = self.pair.reconciler.take() {
            reconciler.program.stop(Duration::from_secs(30)).await?;
        }
        Ok(())
    }

    async fn unrelated(&mut self, count: usize) -> Result<()> {
        let before = self.memory(false)?;
        let body = floor::secret("unrelated", &"eHh4".repeat(2048 / 3), "1");
        let client = self.client().clone();
        let calls = stream::iter(0..count).map(|n| {
            let (client, namespace) = (client.clone(), &self.namespaces[n % self.namespaces.len()]);
            let body = body.replace("\"unrelated\"", &format!("\"unrelated-{n}\""));
            let path = format!("/api/v1/namespaces/{namespace}/secrets");
            async move { call(&client, Method::POST, &path, JSON, body).await }
        });
        calls
            .buffer_unordered(16)
            .collect::<Vec<_>>()
            .await
            .into_iter()
            .collect::<Result<()>>()?;
        let after = self.memory(false)?;
        for (index, name) in ["webhook", "reconciler"].into_iter().enumerate() {
            let more = after[index] - before[index];
            let figure = format!("memory for {count} unrelated Secrets, {name}, MiB");
            self.results.add(
                &figure,
                format!("{more:.1} MiB"),
                String::new(),
                more.max(0.0),
                1.0,
            );
        }
        Ok(())
    }

    async fn catching_up(&mut self, checksum: &str) -> Result<()> {
        self.stop_reconciler().await?;
        self.put_source("4").await?;
        let copies = self.copies().await?;
        let begun = Instant::now();
        self.pair.start_reconciler().await?;
        let (last, _) = self.seen.all(SOURCE, copies, checksum).await?;
        let floor = self.floor.apply_update * u32::try_from(copies)?
            / u32::try_from(self.namespaces.len())?;
        self.compare(
            "change made while down: caught up after start",
            last - begun,
            floor,
            1.5,
        );
        Ok(())
    }

    fn compare(&mut self, figure: &str, took: Duration, floor: Duration, bound: f64) {
        let (measured, basis) = (
            format!("{:.1} ms", millis(took)),
            format!("{:.1} ms", millis(floor)),
        );
        self.results
            .add(figure, measured, basis, millis(took) / millis(floor), bound);
    }
}

/// The API server lets the first create of a kind wait for 2 s if its CRD was established less than
/// 2 s ago.
async fn warm_up(client: &Client) -> Result<()> {
    let rules = "/apis/mimeo.dev/v1alpha1/clusterreplications";
    let rule = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": "warm-up"},
        "spec": {
            "sources": [{"apiVersion": "v1", "kind": "ConfigMap", "namespace": SOURCES, "name": "none"}],
            "targets": [{"namespaces": ["none"]}],
        },
    });
    call(client, Method::POST, rules, JSON, rule.to_string()).await?;
    call(
        client,
        Method::DELETE,
        &format!("{rules}/warm-up"),
        JSON,
        String::new(),
    )
    .await
}

pub(crate) async fn create_namespaces(client: &Client, names: &[String]) -> Result<()> {
    let calls = stream::iter(names).map(|name| async {
        call(
            client,
            Method::POST,
            "/api/v1/namespaces",
            JSON,
            namespace(name, &[]).to_string(),
        )
        .await
    });
    calls
        .buffer_unordered(32)
        .collect::<Vec<_>>()
        .await
        .into_iter()
        .collect()
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn ratio(a: usize, b: usize) -> f64 {
    f64::from(u32::try_from(a).unwrap_or(u32::MAX)) / f64::from(u32::try_from(b).unwrap_or(1))
}

fn mebibytes(bytes: u64) -> f64 {
    f64::from(u32::try_from(bytes / 1024).unwrap_or(u32::MAX)) / 1024.0
}
