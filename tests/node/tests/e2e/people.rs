//! The users of these tests: a rule, its source, and namespaces that the rule fills, each with a
//! pod at once.

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
/// The image on the node with a program that does nothing.
const IDLE: &str = "localhost/pause:1";

/// The time between the starts of two steps of a storm.
const PACE: Duration = Duration::from_millis(400);

/// A source in a namespace of its own, and a rule that copies it to the namespaces of a label.
pub(crate) struct People {
    /// The admin's client.
    pub(crate) client: Client,
    /// The rule's name, and the prefix of all other names.
    pub(crate) tag: String,
    home: String,
    moved_in: AtomicUsize,
}

impl People {
    /// Creates the source and the rule (`podGate: Required`), and waits until the rule is in force.
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

    /// Returns the rule, whether it is stored or not.
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

    /// Creates a namespace that the rule fills.
    pub(crate) async fn namespace(&self) -> Result<String> {
        let name = unique(&self.tag);
        create_namespace(&self.client, &name, &[("people", &self.tag)]).await?;
        Ok(name)
    }

    /// Creates a namespace and at once a pod in it. The client retries after 429 and after no other
    /// answer. Returns the namespace's name.
    ///
    /// # Errors
    ///
    /// If a request is refused, or if the pod was admitted before the copy existed.
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

    /// Returns the number of namespaces that have been created with a pod so far.
    pub(crate) fn moved_in(&self) -> usize {
        self.moved_in.load(Ordering::Relaxed)
    }

    /// Creates a namespace and a pod, whether the copy exists or not. Returns the namespace's name,
    /// and the pod.
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

    /// Calls [`Self::move_in`] this many times at once.
    pub(crate) async fn move_in_together(&self, count: usize) -> Result<Vec<String>> {
        join_all((0..count).map(|_| self.move_in()))
            .await
            .into_iter()
            .collect()
    }

    /// Calls [`Self::move_in`] during this work, and at least this often: so many at a time, with a
    /// pause in between. Returns the names of all namespaces, and the result of the work.
    ///
    /// # Errors
    ///
    /// Every refusal, and every pod that was admitted before its copy existed.
    pub(crate) async fn move_in_during<T>(
        &self,
        at_least: usize,
        at_once: usize,
        work: impl Future<Output = Result<T>>,
    ) -> Result<(Vec<String>, T)> {
        let mut names = Vec::with_capacity(at_least);
        let done = during(work, async |over| {
            // All of them may finish, so that the failure of one does not cut another short.
            names.extend(self.move_in_together(at_once).await?);
            Ok(over && names.len() >= at_least)
        })
        .await?;
        Ok((names, done))
    }

    /// Creates so many namespaces and pods at a time during this work, whether their copies exist
    /// or not.
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

    /// Writes this text into the source.
    pub(crate) async fn rotate(&self, text: &str) -> Result<()> {
        put(&of(&self.client, &self.home), PULL_SECRET, &[(KEY, text)])
            .await
            .map(drop)
    }

    /// Waits until the copies in these namespaces have this text.
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

    /// Deletes the rule and all of its namespaces. Returns when they no longer exist.
    pub(crate) async fn leave(&self) -> Result<()> {
        self.rule().delete(&self.client).await?;
        self.leave_namespaces().await
    }

    /// Deletes all of the rule's namespaces. Returns when they no longer exist: nothing blocks
    /// their deletion.
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
        // After a storm there are hundreds of namespaces. A busy machine deletes two or three of
        // them per second.
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

    /// Runs a pod that mounts the copy. The kubelet finds the Secret under the name in the rule.
    pub(crate) async fn run_a_pod(&self, namespace: &str) -> Result<()> {
        let mut pod = idle();
        pod["spec"]["volumes"] = json!([{"name": "copy", "secret": {"secretName": PULL_SECRET}}]);
        pod["spec"]["containers"][0]["volumeMounts"] =
            json!([{"name": "copy", "mountPath": "/copy"}]);
        self.run(namespace, pod).await
    }

    /// Runs a pod of this name that needs no other object.
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

/// Runs `work`, and `step` again and again meanwhile. A step's argument is true once the work is
/// over. A step returns true if it was the last.
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
        // A namespace costs the cluster more to delete than to create. So slow work may not create
        // thousands.
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

/// Returns the message that refuses a pod there, once the namespace has its service account.
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
            // This pod is admitted wherever any pod is.
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "app", "image": IDLE, "imagePullPolicy": "Never",
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    })
}

/// Returns a pod that is admitted but never run. The node has room only for some dozens, and the
/// tests only ask about admission.
pub(crate) fn gated() -> Result<Pod> {
    let mut pod = idle();
    pod["spec"]["schedulingGates"] = json!([{"name": "example.com/never"}]);
    Ok(serde_json::from_value(pod)?)
}
