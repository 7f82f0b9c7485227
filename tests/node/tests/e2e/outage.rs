//! All of Mimeo's pods are down, and then the whole node. Nothing else is held up, and the pod gate
//! does as documented.

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod, Secret};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
};
use mimeo_api::TransformPolicy;
use mimeo_node_tests::{Mimeo, PROGRAMS};
use mimeo_tests::{
    NAMESPACE, create_namespace, eventually,
    scenario::{RuleSpec, SOON, create, merge, of, put, rule, value, wait_for},
    unique,
};
use serde_json::json;

use crate::people::{PULL_SECRET, People, gated, refused};

/// The copy that the rule guards against drift.
const GUARDED: &str = "guarded";

#[tokio::test]
async fn without_any_of_its_pods_only_what_waits_for_copies_waits() -> Result<()> {
    let mimeo = Mimeo::by_kustomize().await?;
    let people = People::settle(&mimeo.client, "down").await?;
    let old = people.move_in().await?;
    for program in PROGRAMS {
        mimeo.scale(program, 0).await?;
    }

    // Existing namespaces work as before, whether the rule selects them or not.
    let client = &mimeo.client;
    let other = unique("other");
    create_namespace(client, &other, &[]).await?;
    people.run_an_idle_pod(&other, "app").await?;
    people.run_an_idle_pod(&old, "second").await?;
    let map: ConfigMap =
        serde_json::from_value(json!({"metadata": {"name": "own"}, "data": {"a": "b"}}))?;
    of::<ConfigMap>(client, &old)
        .create(&PostParams::default(), &map)
        .await?;
    // By default, the webhook for namespaces fails open. The namespace is created without a pending
    // label and gets its copies later.
    let early = people.namespace().await?;
    ensure!(
        mark(&mimeo, &early).await?.is_none(),
        "{early} has the pending label"
    );
    // A namespace that waits for its copies admits no pods. The label stands for one that a webhook
    // set and no program removed.
    let closed = unique("closed");
    create_namespace(client, &closed, &[("mimeo.dev/copies", "waits")]).await?;
    let refusal = refused(client, &closed).await?;
    ensure!(refusal.contains("pods.mimeo.dev"), "{refusal}");
    // The node's own pods cannot wait for Mimeo, which runs on the node. The API server admits them
    // without a webhook call.
    let mut critical = gated()?;
    critical.metadata.name = Some("critical".to_owned());
    critical.spec.get_or_insert_default().priority_class_name =
        Some("system-node-critical".to_owned());
    of::<Pod>(client, &closed)
        .create(&PostParams::default(), &critical)
        .await?;
    // A rule is not stored without a check. A rule can be deleted.
    let unchecked = RuleSpec {
        name: unique("unchecked"),
        ..people.rule()
    }
    .create(client)
    .await;
    ensure!(
        unchecked.is_err_and(|error| format!("{error:#}").contains("rules.mimeo.dev")),
        "a rule was stored"
    );

    for program in PROGRAMS {
        mimeo.scale(program, 2).await?;
    }
    people.in_force().await?;
    people.have(&[early, old], "first").await?;
    // Mimeo removes the label, and the refused pod is admitted.
    let pods = of::<Pod>(client, &closed);
    eventually(SOON, "pods to be let in", || async {
        Ok(Some(pods.create(&PostParams::default(), &gated()?).await?))
    })
    .await?;
    mimeo
        .node
        .kubectl(["delete", "namespace", &closed, &other])
        .await?;
    people.leave().await
}

#[tokio::test]
async fn a_node_that_loses_its_power_comes_back_by_itself() -> Result<()> {
    let mimeo = Mimeo::by_kustomize().await?;
    let people = People::settle(&mimeo.client, "power").await?;
    let other = unique("other");
    create_namespace(&mimeo.client, &other, &[]).await?;
    people.run_an_idle_pod(&other, "app").await?;
    let mut names = vec![people.move_in().await?];
    mimeo.node.reboot().await?;

    // Everything starts at once, and Mimeo, too.
    names.push(people.namespace().await?);
    people.run_an_idle_pod(&other, "second").await?;
    mimeo.ready().await?;
    people.in_force().await?;
    names.push(people.move_in().await?);
    people.rotate("second").await?;
    people.have(&names, "second").await?;
    let runs = |pod: &Pod| {
        pod.status
            .as_ref()
            .and_then(|status| status.phase.as_deref())
            == Some("Running")
    };
    for pod in ["app", "second"] {
        wait_for(of(&mimeo.client, &other), pod.to_owned(), runs).await?;
    }
    mimeo.node.kubectl(["delete", "namespace", &other]).await?;
    people.leave().await
}

/// The objects that a cluster needs to start are exempt. That holds although the failure policy
/// refuses namespaces without the webhook's answer.
#[tokio::test]
async fn without_any_of_its_pods_a_strict_cluster_boots() -> Result<()> {
    let mimeo = Mimeo::kustomized(&json!({"components": ["strict"]})).await?;
    let people = People::settle(&mimeo.client, "boots").await?;
    let client = &mimeo.client;
    let (strict, old) = (Strict::set(&people).await?, people.move_in().await?);
    strict.guards(&old).await?;
    for program in PROGRAMS {
        mimeo.scale(program, 0).await?;
    }
    mimeo.node.reboot().await?;

    // The kubelet has reported the node as ready, with writes of its Node and its Lease.
    merge(
        &Api::<Node>::all(client.clone()),
        "node1",
        json!({"metadata": {"labels": {"example.com/rack": "a"}}}),
    )
    .await?;
    let system = unique("system");
    for namespace in ["kube-system", NAMESPACE] {
        people
            .run_an_idle_pod(namespace, &system)
            .await
            .context(namespace)?;
        of::<Pod>(client, namespace)
            .delete(&system, &DeleteParams::default())
            .await?;
    }
    let kube = unique("kube");
    create_namespace(client, &kube, &[])
        .await
        .context("exempt by its name")?;
    people
        .run_an_idle_pod(&old, "second")
        .await
        .context("a namespace that has its copies")?;
    let refused = create_namespace(client, &unique("new"), &[]).await;
    ensure!(
        refused.is_err_and(|error| format!("{error:#}").contains("namespaces.mimeo.dev")),
        "it has no pending label"
    );
    strict.holds_up_its_own_alone(&old).await?;

    for program in PROGRAMS {
        mimeo.scale(program, 2).await?;
    }
    people.in_force().await?;
    let new = people.move_in().await?;
    people.rotate("second").await?;
    strict.guards(&old).await?;
    people.have(&[old, new], "second").await?;
    strict.leave().await?;
    mimeo.node.kubectl(["delete", "namespace", &kube]).await?;
    people.leave().await
}

/// Two things that call the webhook for ordinary objects: a policy that fails closed, for Secrets
/// with a certain label, and a rule that denies drift.
struct Strict<'a> {
    people: &'a People,
    policies: Api<TransformPolicy>,
    guarding: RuleSpec,
}

impl<'a> Strict<'a> {
    /// Writes both, and waits until they are in force.
    async fn set(people: &'a People) -> Result<Self> {
        let (client, tag) = (&people.client, &people.tag);
        let selected = json!({"matchLabels": {"strict": tag}});
        let policy = json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": tag},
            "spec": {
                "match": {"kinds": [{"apiVersion": "v1", "kind": "Secret"}], "objectSelector": selected},
                "transform": {"labels": {"set": {"seen": "yes"}}}, "failurePolicy": "Fail",
            },
        });
        create(client, "transformpolicies", &policy).await?;
        let guarding = rule(&format!("{tag}-guarding"))
            .secret(people.home(), PULL_SECRET)
            .to_label("people", tag);
        let guarding = guarding.named(GUARDED).denying();
        guarding.create(client).await?;
        let strict = Self {
            people,
            policies: Api::all(client.clone()),
            guarding,
        };
        let secret = strict.secret(true)?;
        // The API server needs a moment to use a new hook.
        eventually(SOON, "the policy in force", || async {
            let dry_run = PostParams {
                dry_run: true,
                ..PostParams::default()
            };
            let written = of::<Secret>(client, people.home())
                .create(&dry_run, &secret)
                .await?;
            Ok(written.labels().contains_key("seen").then_some(()))
        })
        .await?;
        Ok(strict)
    }

    /// Returns a new Secret that matches the policy, or does not.
    fn secret(&self, selected: bool) -> Result<Secret> {
        let mut secret = json!({"metadata": {"name": unique("own")}, "stringData": {"a": "b"}});
        if selected {
            secret["metadata"]["labels"] = json!({"strict": self.people.tag});
        }
        Ok(serde_json::from_value(secret)?)
    }

    /// Waits until the copy has the right content and cannot be changed.
    async fn guards(&self, namespace: &str) -> Result<()> {
        let copies = of::<Secret>(&self.people.client, namespace);
        wait_for(copies.clone(), GUARDED.to_owned(), |copy| {
            value(copy, "password").as_deref() != Some("other")
        })
        .await?;
        eventually(SOON, "changes to be refused", || async {
            match put(&copies, GUARDED, &[("password", "other")]).await {
                Err(error) if format!("{error:#}").contains("driftPolicy is Deny") => Ok(Some(())),
                other => bail!("{:?}", other.err()),
            }
        })
        .await
    }

    /// Checks that without a webhook only Secrets of the policy are refused.
    async fn holds_up_its_own_alone(&self, namespace: &str) -> Result<()> {
        let client = &self.people.client;
        for namespace in ["kube-system", NAMESPACE] {
            let secrets = of::<Secret>(client, namespace);
            for selected in [false, true] {
                let (secret, what) = (self.secret(selected)?, || {
                    format!("a Secret of {namespace}, labelled: {selected}")
                });
                let name = secrets
                    .create(&PostParams::default(), &secret)
                    .await
                    .with_context(what)?
                    .name_any();
                put(&secrets, &name, &[("a", "c")])
                    .await
                    .with_context(what)?;
                secrets
                    .delete(&name, &DeleteParams::default())
                    .await
                    .with_context(what)?;
            }
        }
        let annotation = json!({"metadata": {"annotations": {"example.com/seen": "yes"}}});
        merge(
            &Api::<Namespace>::all(client.clone()),
            "kube-system",
            annotation,
        )
        .await
        .context("exempt by its name")?;
        let secrets = of::<Secret>(client, namespace);
        let name = secrets
            .create(&PostParams::default(), &self.secret(false)?)
            .await
            .context("unlabelled")?
            .name_any();
        put(&secrets, &name, &[("a", "c")])
            .await
            .context("unlabelled")?;
        secrets
            .delete(&name, &DeleteParams::default())
            .await
            .context("unlabelled")?;
        let refused = secrets
            .create(&PostParams::default(), &self.secret(true)?)
            .await;
        ensure!(
            matches!(refused, Err(kube::Error::Api(status)) if status.code == 500),
            "its own Secret was let in"
        );
        // The hook for drift fails open. Mimeo fixes the change later.
        put(&secrets, GUARDED, &[("password", "other")])
            .await
            .context("the hook for drift should fail open")?;
        Ok(())
    }

    async fn leave(&self) -> Result<()> {
        self.policies
            .delete(&self.people.tag, &DeleteParams::default())
            .await?;
        self.guarding.delete(&self.people.client).await
    }
}

#[tokio::test]
async fn the_node_s_programs_crash_one_by_one_and_copies_go_on() -> Result<()> {
    let mimeo = Mimeo::by_kustomize().await?;
    let people = People::settle(&mimeo.client, "crash").await?;
    let mut names = vec![people.move_in().await?];
    for program in ["kubelet", "containerd", "kube-apiserver", "etcd"] {
        mimeo.node.kill(program).await?;
        mimeo.node.start(program).await?;
        // The API server may still be starting when the first request comes.
        eventually(SOON, "the API server to write", || async {
            people.rotate(program).await.map(Some)
        })
        .await?;
        people.have(&names, program).await?;
        people.in_force().await?;
        names.push(
            eventually(SOON, "a namespace with a pod", || async {
                people.move_in().await.map(Some)
            })
            .await?,
        );
    }
    mimeo.ready().await?;
    people.leave().await
}

async fn mark(mimeo: &Mimeo, namespace: &str) -> Result<Option<String>> {
    let namespace = Api::<Namespace>::all(mimeo.client.clone())
        .get(namespace)
        .await?;
    Ok(namespace
        .metadata
        .labels
        .and_then(|labels| labels.get("mimeo.dev/copies").cloned()))
}
