//! The cost of very many copies: the reconciler's memory, and its restart.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use http::Method;
use kube::{
    Api,
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use mimeo_tests::eventually;
use serde_json::json;

use crate::{
    floor::{self, call},
    story::{JSON, SOURCES, Stage, create_namespaces},
};

const MEBIBYTE: f64 = 1024.0 * 1024.0;
/// Bytes that the reconciler may use without any copies.
const BASE: f64 = 25.0 * MEBIBYTE;
/// Bytes that it may use for each copy in addition.
const COPY: f64 = 300.0;
/// Time limit. A hundred thousand copies take some minutes.
const PATIENCE: Duration = Duration::from_mins(20);

impl Stage {
    /// Fills `namespaces` namespaces through `rules` rules. Measures the memory once all copies are
    /// written, and again after a restart.
    pub(crate) async fn many(&mut self, namespaces: usize, rules: usize) -> Result<()> {
        let copies = namespaces * rules;
        let names: Vec<String> = (0..namespaces).map(|n| format!("many-{n:05}")).collect();
        create_namespaces(self.client(), &names).await?;
        for n in 0..rules {
            self.rule(n).await?;
        }
        self.synced(namespaces, rules).await?;
        self.tell(
            &format!("memory, reconciler, {copies} copies written"),
            copies,
        )?;
        let synced = self.synced_by_metrics()?;
        self.stop_reconciler().await?;
        let begun = Instant::now();
        self.pair.start_reconciler().await?;
        // The statuses still come from the former process. Only the metrics show that the new one
        // knows the copies.
        eventually(PATIENCE, "all copies known", || async {
            Ok((self.synced_by_metrics()? == synced).then_some(()))
        })
        .await?;
        let took = begun.elapsed().as_secs_f64();
        self.results.add(
            &format!("restart with {copies} copies: all known"),
            format!("{took:.1} s"),
            String::new(),
            took,
            f64::INFINITY,
        );
        self.tell(
            &format!("memory, reconciler, {copies} copies found at its start"),
            copies,
        )
    }

    async fn rule(&self, n: usize) -> Result<()> {
        let source = format!("many-{n}");
        let path = format!("/api/v1/namespaces/{SOURCES}/secrets");
        call(
            self.client(),
            Method::POST,
            &path,
            JSON,
            floor::source(&source, &self.payload, "1"),
        )
        .await?;
        let rule = json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": source},
            "spec": {
                "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": SOURCES, "name": source}],
                "targets": [{"namespaces": ["many-*"]}],
            },
        });
        call(
            self.client(),
            Method::POST,
            "/apis/mimeo.dev/v1alpha1/clusterreplications",
            JSON,
            rule.to_string(),
        )
        .await
    }

    /// Waits until each rule's status counts all its copies as synced.
    async fn synced(&self, namespaces: usize, rules: usize) -> Result<()> {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(
            "mimeo.dev",
            "v1alpha1",
            "ClusterReplication",
        ));
        let api: Api<DynamicObject> = Api::all_with(self.client().clone(), &kind);
        eventually(PATIENCE, "all copies written", || async {
            for n in 0..rules {
                let rule = api.get(&format!("many-{n}")).await?;
                if rule.data["status"]["copies"]["synced"] != json!(namespaces) {
                    return Ok(None);
                }
            }
            Ok(Some(()))
        })
        .await
    }

    fn synced_by_metrics(&self) -> Result<u64> {
        let metrics = self
            .pair
            .reconciler
            .as_ref()
            .context("a reconciler")?
            .metrics()?;
        let synced = metrics
            .lines()
            .filter(|line| line.starts_with("mimeo_copies_synced{"));
        let values = synced.map(|line| {
            line.rsplit(' ')
                .next()
                .unwrap_or_default()
                .parse::<u64>()
                .context("a count")
        });
        values.sum()
    }

    fn tell(&mut self, figure: &str, copies: usize) -> Result<()> {
        let [_, mebibytes] = self.memory(false)?;
        let each = (mebibytes * MEBIBYTE - BASE).max(0.0) / f64::from(u32::try_from(copies)?);
        self.results.add(
            figure,
            format!("{mebibytes:.1} MiB"),
            "25 MiB".to_owned(),
            each,
            COPY,
        );
        Ok(())
    }
}
