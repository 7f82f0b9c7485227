//! The control planes that modules share.
//!
//! The first test on a stage starts it, and it ends with the process. A test on a stage keeps to
//! the namespaces, labels and names of its scene.
//!
//! A test needs its own control plane if it counts requests of all namespaces, floods the API
//! server, or ends a program. The same holds if it changes the webhook configurations or reads all
//! objects of the cluster.

use anyhow::{Context as _, Result, anyhow, ensure};
use futures::stream::{StreamExt as _, TryStreamExt as _, iter};
use kube::{Api, Client};
use mimeo_api::ClusterReplication;
use mimeo_tests::scenario::{SOON, Setting, Stage, apply, kubectl, rule};
use mimeo_tests::{ControlPlane, Pair, create_namespace, eventually};
use serde_json::json;
use tokio::sync::{Mutex, OnceCell};

/// A lock for tests that keep an API server or a webhook busy for long. Two of them at once would
/// leave too little of the machine to other tests. This lock is taken before the lock of a stage.
pub(crate) static LOAD: Mutex<()> = Mutex::const_new(());

/// Both programs with all permissions and default flags.
pub(crate) static PLAIN: Stage = Stage::new(|| ControlPlane::builder().audit(true), Pair::builder);

/// Both programs with the permissions of the manifests.
pub(crate) static SHIPPED: Stage = Stage::new(
    || ControlPlane::builder().audit(true),
    || Pair::builder().shipped_rights(),
);

/// As [`PLAIN`], but lost copies are collected for one second instead of ten.
pub(crate) static QUICK: Stage = Stage::new(
    || ControlPlane::builder().audit(true),
    || Pair::builder().reconciler_args(["--deletion-delay", "1s"]),
);

/// As [`SHIPPED`], but lost copies are collected for one second instead of ten.
pub(crate) static SHIPPED_QUICK: Stage = Stage::new(
    || ControlPlane::builder().audit(true),
    || {
        Pair::builder()
            .shipped_rights()
            .reconciler_args(["--deletion-delay", "1s"])
    },
);

/// The number of namespaces, `team-00000` and so on. In [`IN_THE_WAY`] of them, a foreign object
/// has the copy's name.
pub(crate) const MANY: usize = 10_000;
pub(crate) const IN_THE_WAY: usize = 30;

/// Very many namespaces, which take long to create, and one rule for all of them. Both programs
/// have all permissions, the reconciler has its page, and there is no controller manager. Tests may
/// only read it, and must hold [`LOAD`].
pub(crate) struct Many {
    pub(crate) setting: Setting,
    /// kubectl's output when it created the rule.
    pub(crate) told: String,
}

impl Many {
    /// The name of the rule, of its source and of the copies. They are ConfigMaps.
    pub(crate) const RULE: &str = "defaults";

    /// Returns the namespaces with a foreign object in the way, in order.
    pub(crate) fn in_the_way() -> impl Iterator<Item = String> {
        (0..IN_THE_WAY).map(|number| team(number * 300))
    }

    async fn start() -> Result<Self> {
        let control_plane = ControlPlane::builder()
            .controller_manager(false)
            .start()
            .await?;
        let client = control_plane.client().await?;
        create_namespace(&client, "platform", &[]).await?;
        let create = |number| {
            let (client, name) = (&client, team(number));
            async move { create_namespace(client, &name, &[]).await.map(drop) }
        };
        // The namespaces are created before Mimeo starts. Otherwise the API server would call the
        // webhook for each.
        iter(0..MANY)
            .map(create)
            .buffer_unordered(64)
            .try_collect::<()>()
            .await?;
        for namespace in Self::in_the_way().chain(["platform".to_owned()]) {
            let metadata = json!({"namespace": namespace, "name": Self::RULE});
            let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"of": namespace}});
            apply(&client, &map).await?;
        }
        let pair = Pair::builder().reconciler_args(["--ui"]);
        let setting = Setting {
            pair: pair.start(&control_plane).await?,
            control_plane,
        };
        let rule = rule(Self::RULE).source("v1", "ConfigMap", "platform", Self::RULE);
        let rule = rule.target(json!({"namespaces": ["team-*"]}));
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), rule.object().to_string())?;
        let path = file.path().display().to_string();
        let told = kubectl(&setting.control_plane, ["create", "-f", &path])?;
        Self::fill(&client).await?;
        Ok(Self { setting, told })
    }

    /// Waits until each namespace has its copy or the foreign object's failure. All of them may take
    /// longer than [`SOON`] on a busy machine, so this fails only if the reconciler makes no progress
    /// for so long.
    async fn fill(client: &Client) -> Result<()> {
        let rules: Api<ClusterReplication> = Api::all(client.clone());
        let mut done = 0;
        while done < MANY {
            done = eventually(SOON, format!("more than {done} copies"), || async {
                let status = rules.get(Self::RULE).await?.status.unwrap_or_default();
                let copies = status.copies.context("no status yet")?;
                let now = usize::try_from(copies.synced + copies.failed)?;
                ensure!(now > done, "{now}");
                Ok(Some(now))
            })
            .await?;
        }
        Ok(())
    }
}

fn team(number: usize) -> String {
    format!("team-{number:05}")
}

/// Starts the stage, or waits until it is started.
pub(crate) async fn many() -> Result<&'static Many> {
    static STARTED: OnceCell<Result<Many, String>> = OnceCell::const_new();
    let start = || async { Many::start().await.map_err(|error| format!("{error:#}")) };
    let started = STARTED.get_or_init(start).await.as_ref();
    started.map_err(|error| anyhow!("{error}"))
}

/// One webhook and no reconciler.
pub(crate) static WEBHOOK: Stage = Stage::new(
    || ControlPlane::builder().audit(true),
    || Pair::builder().reconciler(false),
);
