//! The policies that limit Mimeo's own accounts to Mimeo's work. They refuse all other writes and
//! do not hinder that work.

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::{
    admissionregistration::v1::ValidatingAdmissionPolicy,
    core::v1::{Namespace, Secret},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use mimeo_api::TransformPolicy;
use mimeo_tests::{
    ControlPlane, NAMESPACE, Pair, create_namespace, create_secret, eventually,
    scenario::{SOON, create, helm, kubectl, rule, wait_for},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// The golden files of `mimeo-model` with the webhook's configurations.
const WRITTEN: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../shared/model/tests/golden/registration"
);
const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../manifests/chart");
const KUSTOMIZE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../manifests/kustomize");

/// Returns the message if a policy refuses the request.
fn refusal<T>(outcome: kube::Result<T>) -> Result<Option<String>> {
    match outcome {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status))
            if status
                .message
                .contains("ValidatingAdmissionPolicy 'mimeo-guarded-") =>
        {
            Ok(Some(status.message.clone()))
        }
        Err(error) => Err(error).context("refused for another reason"),
    }
}

/// Writes a webhook configuration as one of Mimeo's accounts, as a dry run.
async fn apply(client: &Client, configuration: &Value) -> Result<Option<String>> {
    let plural = format!(
        "{}s",
        configuration["kind"]
            .as_str()
            .unwrap_or_default()
            .to_lowercase()
    );
    let name = configuration["metadata"]["name"]
        .as_str()
        .unwrap_or_default();
    let path = format!(
        "/apis/admissionregistration.k8s.io/v1/{plural}/{name}?fieldManager=mimeo&force=true&dryRun=All"
    );
    let request = http::Request::patch(path).header("content-type", "application/apply-patch+yaml");
    refusal(
        client
            .request::<Value>(request.body(configuration.to_string().into_bytes())?)
            .await,
    )
}

/// Returns a configuration that the webhook writes beyond the shipped ones, from the golden files.
fn written(name: &str) -> Result<Value> {
    let mut written: Value =
        serde_json::from_str(&std::fs::read_to_string(format!("{WRITTEN}-{name}.json"))?)?;
    // The owner does not exist in this cluster.
    written["metadata"]["ownerReferences"].take();
    Ok(written)
}

/// Installs the kustomization and the component. The installed hooks stand for the hooks that the
/// webhook writes.
async fn installed() -> Result<(ControlPlane, Client)> {
    let control_plane = ControlPlane::start().await?;
    let client = control_plane.client().await?;
    kubectl(&control_plane, ["apply", "-k", KUSTOMIZE])?;
    kubectl(
        &control_plane,
        [
            "delete",
            "mutatingwebhookconfiguration,validatingwebhookconfiguration",
            "mimeo",
        ],
    )?;
    let policy = format!("{KUSTOMIZE}/guarded-writes/policy.yaml");
    kubectl(
        &control_plane,
        ["apply", "--validate=strict", "-f", &policy],
    )?;
    Ok((control_plane, client))
}

/// The same installation, for tests that write nothing. All their requests are dry runs.
async fn untouched() -> Result<&'static ControlPlane> {
    static INSTALLED: OnceCell<ControlPlane> = OnceCell::const_new();
    let install = async || Ok(installed().await?.0);
    INSTALLED.get_or_try_init(install).await
}

async fn account(control_plane: &ControlPlane, name: &str) -> Result<Client> {
    control_plane
        .user(&format!("system:serviceaccount:{NAMESPACE}:{name}"), &[])?
        .client()
        .await
}

/// Writes a namespace as one of Mimeo's accounts, as a dry run.
async fn patch(client: &Client, name: &str, patch: &Value) -> Result<Option<String>> {
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let namespaces: Api<Namespace> = Api::all(client.clone());
    refusal(namespaces.patch(name, &params, &Patch::Merge(patch)).await)
}

#[tokio::test]
async fn of_a_namespace_mimeo_writes_its_mark_and_its_memory_alone() -> Result<()> {
    let control_plane = untouched().await?;
    let admin = control_plane.client().await?;
    create_namespace(
        &admin,
        "team-a",
        &[("pod-security.kubernetes.io/enforce", "restricted")],
    )
    .await?;
    for name in ["mimeo-webhook", "mimeo-reconciler"] {
        let client = account(control_plane, name).await?;
        eventually(SOON, "the policy to be in force", || async {
            match patch(
                &client,
                "team-a",
                &json!({"metadata": {"labels": {"x": "y"}}}),
            )
            .await?
            {
                Some(_) => Ok(Some(())),
                None => bail!("not yet"),
            }
        })
        .await?;
        for (change, told) in [
            (
                json!({"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}),
                Some("Mimeo: Mimeo's accounts may change no label of a namespace"),
            ),
            (
                json!({"labels": {"pod-security.kubernetes.io/enforce": null}}),
                Some("Mimeo: Mimeo's accounts may change no label of a namespace"),
            ),
            (
                json!({"labels": {"mimeo.dev/other": "y"}}),
                Some("Mimeo: Mimeo's accounts may change no label of a namespace"),
            ),
            (
                json!({"annotations": {"scheduler.alpha.kubernetes.io/node-selector": "a=b"}}),
                Some("Mimeo: Mimeo's accounts may change no annotation of a namespace"),
            ),
            (
                json!({"finalizers": ["example.com/held"]}),
                Some("Mimeo: Mimeo's accounts may change nothing of a namespace"),
            ),
            (
                json!({"labels": {"mimeo.dev/copies": "0"}, "annotations": {"mimeo.dev/seeded": "0"}}),
                None,
            ),
        ] {
            let refused = patch(&client, "team-a", &json!({"metadata": change})).await?;
            let as_told = match (&refused, told) {
                (Some(refused), Some(told)) => refused.contains(told),
                (refused, told) => refused.is_none() && told.is_none(),
            };
            ensure!(as_told, "{name}: {change}: {refused:?}");
        }
    }
    // The policy limits only Mimeo's accounts.
    assert_eq!(
        patch(
            &admin,
            "team-a",
            &json!({"metadata": {"labels": {"x": "y"}}})
        )
        .await?,
        None
    );
    Ok(())
}

#[tokio::test]
async fn mimeos_hooks_are_at_its_service_and_each_is_about_its_own_requests() -> Result<()> {
    let client = account(untouched().await?, "mimeo-webhook").await?;
    let text = std::fs::read_to_string(format!("{KUSTOMIZE}/webhooks.yaml"))?;
    let shipped: Vec<Value> = serde_yaml::Deserializer::from_str(&text)
        .map(Value::deserialize)
        .collect::<Result<_, _>>()?;
    let write = async |configuration: &Value| apply(&client, configuration).await;
    let mutating = shipped
        .iter()
        .find(|one| one["kind"] == "MutatingWebhookConfiguration")
        .context("no mutating")?;
    let validating = shipped
        .iter()
        .find(|one| one["kind"] == "ValidatingWebhookConfiguration")
        .context("no validating")?;
    let changed = |of: &Value, hook: &str, change: &dyn Fn(&mut Value)| -> Result<Value> {
        let mut of = of.clone();
        let hooks = of["webhooks"].as_array_mut().context("no hooks")?;
        change(
            hooks
                .iter_mut()
                .find(|one| one["name"] == hook)
                .context("no such hook")?,
        );
        Ok(of)
    };
    let to_secrets = |hook: &mut Value| {
        hook["rules"][0]["apiGroups"] = json!([""]);
        hook["rules"][0]["resources"] = json!(["secrets"]);
    };
    let bad = [
        changed(mutating, "pods.mimeo.dev", &|hook| {
            hook["clientConfig"] = json!({"url": "https://192.0.2.1/"});
        })?,
        changed(mutating, "pods.mimeo.dev", &|hook| {
            hook["clientConfig"]["service"]["name"] = "other".into();
        })?,
        changed(mutating, "pods.mimeo.dev", &|hook| {
            hook["clientConfig"]["service"]["namespace"] = "a".into();
        })?,
        changed(mutating, "pods.mimeo.dev", &|hook| {
            hook["rules"][0]["operations"] = json!(["*"]);
        })?,
        changed(mutating, "pods.mimeo.dev", &to_secrets)?,
        changed(mutating, "namespaces.mimeo.dev", &|hook| {
            hook["rules"][0]["resources"] = json!(["*"]);
        })?,
        changed(mutating, "namespaces.mimeo.dev", &|hook| {
            hook["name"] = "more.mimeo.dev".into();
        })?,
        changed(mutating, "rules.mimeo.dev", &to_secrets)?,
        changed(validating, "rules.mimeo.dev", &to_secrets)?,
        changed(validating, "copies.mimeo.dev", &|hook| {
            hook["objectSelector"] = json!({});
        })?,
    ];
    eventually(SOON, "the policy to be in force", || async {
        match write(&bad[0]).await? {
            Some(_) => Ok(Some(())),
            None => bail!("not yet"),
        }
    })
    .await?;
    for configuration in &bad {
        ensure!(write(configuration).await?.is_some(), "{configuration:#}");
    }
    for configuration in &shipped {
        assert_eq!(write(configuration).await?, None, "{configuration:#}");
    }
    let policies = written("policies")?;
    let policy = policies["webhooks"][0]["name"]
        .as_str()
        .context("no name")?
        .to_owned();
    for (configuration, lets) in [
        (policies.clone(), true),
        (
            changed(&policies, &policy, &|hook| {
                hook["name"] = "pods.mimeo.dev".into();
            })?,
            false,
        ),
        (
            changed(validating, "copies.mimeo.dev", &|hook| {
                hook["failurePolicy"] = "Fail".into();
            })?,
            false,
        ),
    ] {
        let refused = write(&configuration).await?;
        assert_eq!(refused.is_none(), lets, "{refused:?}: {configuration:#}");
    }
    Ok(())
}

/// The chart's values for limited permissions: sources only in named namespaces, and no
/// `TransformPolicies`.
const LIMITED: [&str; 4] = [
    "guardedWrites.enabled=true",
    "guardedWrites.transformPolicies=false",
    "rbac.sourceNamespaces={platform}",
    "rbac.targetNamespaces={team-a,team-b}",
];

/// Installs Mimeo with these limits. It has exactly the permissions of the release.
async fn limited() -> Result<(ControlPlane, Client)> {
    let control_plane = ControlPlane::start().await?;
    let client = control_plane.client().await?;
    for name in ["platform", "team-a", "team-b"] {
        create_namespace(&client, name, &[]).await?;
    }
    let mut helm = helm()?;
    helm.env("KUBECONFIG", control_plane.kubeconfig());
    helm.args([
        "install",
        "mimeo",
        CHART,
        "--namespace",
        NAMESPACE,
        "--create-namespace",
    ]);
    let output = LIMITED
        .iter()
        .fold(&mut helm, |helm, value| helm.args(["--set", value]))
        .output()?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok((control_plane, client))
}

#[tokio::test]
async fn limited_its_hooks_are_about_no_policies() -> Result<()> {
    let (control_plane, _) = limited().await?;
    let client = account(&control_plane, "mimeo-webhook").await?;
    let mut policies = written("policies")?;
    eventually(SOON, "the policy to be in force", || async {
        Ok(apply(&client, &policies).await?.map(drop))
    })
    .await?;
    policies["webhooks"] = json!([]);
    assert_eq!(apply(&client, &policies).await?, None);
    Ok(())
}

/// One rule has its source out of reach, and a policy exists although this installation permits
/// none. Neither stops Mimeo's other work.
#[tokio::test]
async fn limited_it_does_its_work_and_says_what_it_may_not() -> Result<()> {
    let (control_plane, client) = limited().await?;
    // Here the webhook has an address instead of its Service. So the check of the Service is
    // removed, and all other checks of the hooks stay.
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let there = json!([{"op": "remove", "path": "/spec/validations/0"}]);
    let there = Patch::<ValidatingAdmissionPolicy>::Json(serde_json::from_value(there)?);
    policies
        .patch("mimeo-guarded-hooks", &PatchParams::default(), &there)
        .await?;
    let limits = [
        "--source-namespaces",
        "platform",
        "--target-namespaces",
        "team-a,team-b",
        "--kinds",
        "Secret,ConfigMap",
    ];
    let _pair = Pair::builder()
        .installed_rights()
        .webhook_args(limits)
        .reconciler_args(limits)
        .start(&control_plane)
        .await?;
    create_namespace(&client, "elsewhere", &[]).await?;
    // One of the sources is out of reach. Mimeo sees its rule first.
    for home in ["elsewhere", "platform"] {
        create_secret(&client, home, "registry", &[("token", "one")]).await?;
        let rule = rule(home)
            .secret(home, "registry")
            .target(json!({"namespaces": ["team-*"], "copyName": home}));
        rule.create(&client).await?;
    }
    wait_for(
        Api::<Secret>::namespaced(client.clone(), "team-a"),
        "platform".into(),
        |_: &Secret| true,
    )
    .await?;

    let policy = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": "labels"},
        "spec": {
            "match": {"kinds": [{"apiVersion": "v1", "kind": "Secret"}], "objectSelector": {"matchLabels": {"a": "b"}}},
            "transform": {"labels": {"set": {"c": "d"}}},
        },
    });
    create(&client, "transformpolicies", &policy).await?;
    wait_for(
        Api::<TransformPolicy>::all(client.clone()),
        "labels".into(),
        |policy: &TransformPolicy| {
            let conditions = policy.status.iter().flat_map(|status| &status.conditions);
            conditions.into_iter().any(|one| {
                one.status == "False"
                    && one
                        .message
                        .contains("only for the requests that it is about")
            })
        },
    )
    .await?;
    Ok(())
}

#[tokio::test]
async fn guarded_it_does_its_work() -> Result<()> {
    let (control_plane, client) = installed().await?;
    // Here the webhook has an address instead of its Service.
    kubectl(
        &control_plane,
        [
            "delete",
            "validatingadmissionpolicybinding",
            "mimeo-guarded-hooks",
        ],
    )?;
    let _pair = Pair::builder()
        .installed_rights()
        .start(&control_plane)
        .await?;
    create_namespace(&client, "platform", &[]).await?;
    create_secret(&client, "platform", "registry", &[("token", "one")]).await?;
    create_secret(&client, "platform", "seed", &[("token", "one")]).await?;
    let selected = json!({"namespaceSelector": {"matchLabels": {"team": "yes"}}});
    rule("registry")
        .secret("platform", "registry")
        .target(selected.clone())
        .create(&client)
        .await?;
    let once = rule("seed")
        .secret("platform", "seed")
        .target(selected)
        .set("strategy", json!("CreateOnce"));
    once.create(&client).await?;
    create_namespace(&client, "team-new", &[("team", "yes")]).await?;
    create_namespace(&client, "team-old", &[]).await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let label = Patch::Merge(json!({"metadata": {"labels": {"team": "yes"}}}));
    namespaces
        .patch("team-old", &PatchParams::default(), &label)
        .await?;
    for name in ["team-new", "team-old"] {
        for copy in ["registry", "seed"] {
            wait_for(
                Api::<Secret>::namespaced(client.clone(), name),
                copy.into(),
                |_: &Secret| true,
            )
            .await?;
        }
        // Mimeo has removed the pending label and recorded the copies that are created once.
        wait_for(namespaces.clone(), name.into(), |namespace: &Namespace| {
            let has = |map: &Option<std::collections::BTreeMap<String, String>>, key: &str| {
                map.as_ref().is_some_and(|map| map.contains_key(key))
            };
            !has(&namespace.metadata.labels, "mimeo.dev/copies")
                && has(&namespace.metadata.annotations, "mimeo.dev/seeded")
        })
        .await?;
    }
    Ok(())
}
