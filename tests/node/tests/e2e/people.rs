//! What people do in these tests: a rule, its source, and namespaces that it fills, each with a pod
//! in it at once.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use futures::future::{join_all, try_join_all};
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams},
};
use mimeo_tests::{
    create_namespace, create_secret, eventually,
    scenario::{RuleSpec, SOON, of, put, rule, value, wait_condition, wait_for},
    traffic::{create_account, create_patiently, precedes, wants_account},
    unique,
};
use serde_json::{Value, json};

/// The name of the source and of its copies.
pub(crate) const PULL_SECRET: &str = "pull-secret";
const KEY: &str = "password";
/// The image that is on the node, of a program that does nothing.
const IDLE: &str = "localhost/pause:1";

/// Between the beginnings of two steps of a storm.
const PACE: Duration = Duration::from_millis(400);

/// A source in a namespace of its own, and a rule that copies it to the namespaces of a label.
pub(crate) struct People {
    /// The admin's.
    pub(crate) client: Client,
    /// Of every name the beginning, and of the rule the whole.
    pub(crate) tag: String,
    home: String,
    moved_in: AtomicUsize,
}

impl People {
    /// With the source, and the rule (`podGate: Required`) in force.
    pub(crate) async fn settle(client: &Client, about: &str) -> Result<Self> {
        let tag = unique(about);
        let people = Self {
            client: client.clone(),
            home: format!("{tag}-home"),
            tag,
            moved_in: AtomicUsize::new(0),
        };
        create_namespace(client, &people.home, &[]).await?;
        create_secret(client, &people.home, PULL_SECRET, &[(KEY, "first")]).await?;
        people.rule().create(client).await?;
        people.in_force().await?;
        Ok(people)
    }

    /// The namespace of the source.
    pub(crate) fn home(&self) -> &str {
        &self.home
    }

    /// The rule, whether it is stored or not.
    pub(crate) fn rule(&self) -> RuleSpec {
        let rule = rule(&self.tag)
            .secret(&self.home, PULL_SECRET)
            .to_label("people", &self.tag);
        rule.set("podGate", json!("Required"))
    }

    /// Waits until every webhook knows the rule.
    pub(crate) async fn in_force(&self) -> Result<()> {
        wait_condition(&self.client, &self.tag, ["PodGateActive", "True", "Active"])
            .await
            .map(drop)
    }

    /// A new namespace that the rule fills.
    pub(crate) async fn namespace(&self) -> Result<String> {
        let name = unique(&self.tag);
        create_namespace(&self.client, &name, &[("people", &self.tag)]).await?;
        Ok(name)
    }

    /// Creates a namespace and a pod in it at once, as a client does that comes back when it is
    /// told to (429), and nothing else. Returns the namespace's name.
    ///
    /// # Errors
    /// If either is refused, or the pod was let in before the copy was there.
    pub(crate) async fn move_in(&self) -> Result<String> {
        let (name, pod) = self.come_in().await?;
        let copy = of::<Secret>(&self.client, &name)
            .get(PULL_SECRET)
            .await
            .context("a miss: no copy where a pod is")?;
        ensure!(
            precedes(&copy, &pod)?,
            "a miss: in {name} the pod was there before the copy"
        );
        self.moved_in.fetch_add(1, Ordering::Relaxed);
        Ok(name)
    }

    /// How often that has been done so far.
    pub(crate) fn moved_in(&self) -> usize {
        self.moved_in.load(Ordering::Relaxed)
    }

    /// The same, whether the copy is there or not. Returns the namespace's name, and the pod.
    async fn come_in(&self) -> Result<(String, Pod)> {
        let name = self.namespace().await.context("a namespace was refused")?;
        let pods: Api<Pod> = of(&self.client, &name);
        let pod = gated()?;
        let pod = match create_patiently(&pods, &pod).await {
            Err(refused) if wants_account(&refused) => {
                create_account(&self.client, &name).await?;
                create_patiently(&pods, &pod).await
            }
            outcome => outcome,
        };
        let (pod, _) = pod.with_context(|| format!("a pod in {name} was refused"))?;
        Ok((name, pod))
    }

    /// The same that often, all at once.
    pub(crate) async fn move_in_together(&self, count: usize) -> Result<Vec<String>> {
        join_all((0..count).map(|_| self.move_in()))
            .await
            .into_iter()
            .collect()
    }

    /// The same while that is done, and so often at least, so many at a time and with a pause
    /// between. Returns all their names, and what was done.
    ///
    /// # Errors
    /// Every refusal, and every pod before its copy.
    pub(crate) async fn move_in_during<T>(
        &self,
        at_least: usize,
        at_once: usize,
        work: impl Future<Output = Result<T>>,
    ) -> Result<(Vec<String>, T)> {
        let mut names = Vec::with_capacity(at_least);
        let done = during(work, async |over| {
            // All of them are let finish, so that none is cut short by another one's failure.
            names.extend(self.move_in_together(at_once).await?);
            Ok(over && names.len() >= at_least)
        })
        .await?;
        Ok((names, done))
    }

    /// So many at a time come in while that is done, whether their copies are there or not.
    pub(crate) async fn come_in_during<T>(
        &self,
        at_once: usize,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        during(work, async |over| {
            join_all((0..at_once).map(|_| self.come_in()))
                .await
                .into_iter()
                .collect::<Result<Vec<_>>>()?;
            Ok(over)
        })
        .await
    }

    /// Writes this into the source.
    pub(crate) async fn rotate(&self, text: &str) -> Result<()> {
        put(&of(&self.client, &self.home), PULL_SECRET, &[(KEY, text)])
            .await
            .map(drop)
    }

    /// Waits until the copies of these namespaces hold this.
    pub(crate) async fn have(&self, names: &[String], text: &str) -> Result<()> {
        try_join_all(names.iter().map(async |name| {
            let is = |copy: &Secret| value(copy, KEY).as_deref() == Some(text);
            wait_for(of(&self.client, name), PULL_SECRET.to_owned(), is)
                .await
                .map(drop)
        }))
        .await
        .map(drop)
    }

    /// Deletes the rule and all their namespaces, and waits until these are gone.
    pub(crate) async fn leave(&self) -> Result<()> {
        self.rule().delete(&self.client).await?;
        self.leave_namespaces().await
    }

    /// Deletes all their namespaces, and waits until they are gone: nothing holds any of them up.
    pub(crate) async fn leave_namespaces(&self) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let ours = || async {
            let all = namespaces.list_metadata(&ListParams::default()).await?;
            let names = all
                .items
                .into_iter()
                .filter_map(|namespace| namespace.metadata.name);
            anyhow::Ok(
                names
                    .filter(|name| name.starts_with(&self.tag))
                    .collect::<Vec<_>>(),
            )
        };
        for name in ours().await? {
            namespaces.delete(&name, &DeleteParams::default()).await?;
        }
        // After a storm there are hundreds, of which a busy machine ends two or three a second.
        eventually(3 * SOON, "the namespaces' end", || async {
            let left = ours().await?;
            if left.is_empty() {
                Ok(Some(()))
            } else {
                bail!("still there: {}", left.join(", "))
            }
        })
        .await
    }

    /// A pod that mounts the copy and runs: the kubelet found the Secret where the rule put it.
    pub(crate) async fn run_a_pod(&self, namespace: &str) -> Result<()> {
        let mut pod = idle();
        pod["spec"]["volumes"] = json!([{"name": "copy", "secret": {"secretName": PULL_SECRET}}]);
        pod["spec"]["containers"][0]["volumeMounts"] =
            json!([{"name": "copy", "mountPath": "/copy"}]);
        self.run(namespace, pod).await
    }

    /// A pod of this name that needs nothing of anybody's, and runs.
    pub(crate) async fn run_an_idle_pod(&self, namespace: &str, name: &str) -> Result<()> {
        let mut pod = idle();
        pod["metadata"]["name"] = json!(name);
        self.run(namespace, pod).await
    }

    async fn run(&self, namespace: &str, pod: Value) -> Result<()> {
        let pods: Api<Pod> = of(&self.client, namespace);
        let pod: Pod = serde_json::from_value(pod)?;
        let name = pod.metadata.name.clone().context("no name")?;
        create_account(&self.client, namespace).await?;
        pods.create(&PostParams::default(), &pod)
            .await
            .context("the pod was refused")?;
        let runs = |pod: &Pod| {
            pod.status
                .as_ref()
                .and_then(|status| status.phase.as_deref())
                == Some("Running")
        };
        wait_for(pods, name, runs).await.map(drop)
    }
}

/// Does `work`, and meanwhile `step` by step, which is told whether the work is over and says
/// whether that was the last step.
async fn during<T>(
    work: impl Future<Output = Result<T>>,
    mut step: impl AsyncFnMut(bool) -> Result<bool>,
) -> Result<T> {
    let over = AtomicBool::new(false);
    let work = async {
        let done = work.await;
        over.store(true, Ordering::Relaxed);
        done
    };
    let steps = async {
        // A namespace costs the cluster more to delete than to create: whatever takes long should
        // not make thousands.
        let mut pace = tokio::time::interval(PACE);
        loop {
            pace.tick().await;
            if step(over.load(Ordering::Relaxed)).await? {
                return Ok(());
            }
        }
    };
    let (done, ()) = tokio::try_join!(work, steps)?;
    Ok(done)
}

/// What creating a pod there is refused with, once it has its service account.
pub(crate) async fn refused(client: &Client, namespace: &str) -> Result<String> {
    create_account(client, namespace).await?;
    match of::<Pod>(client, namespace)
        .create(&PostParams::default(), &gated()?)
        .await
    {
        Err(kube::Error::Api(status)) => Ok(status.message),
        Err(error) => Err(error.into()),
        Ok(_) => bail!("a pod was let into {namespace}"),
    }
}

fn idle() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "app"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            // May be wherever any pod may.
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "app", "image": IDLE, "imagePullPolicy": "Never",
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    })
}

/// A pod that is admitted and not run: the node has room for some dozens, and who comes in is all
/// that is asked.
pub(crate) fn gated() -> Result<Pod> {
    let mut pod = idle();
    pod["spec"]["schedulingGates"] = json!([{"name": "example.com/never"}]);
    Ok(serde_json::from_value(pod)?)
}
