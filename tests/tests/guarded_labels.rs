//! The policy that guards namespaces' labels: whoever makes a rule match by them needs its verb `target`.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use mimeo_tests::scenario::{RuleSpec, SOON, apply, kubectl, rule};
use mimeo_tests::{Component, ControlPlane, create_namespace, eventually, install_crd};
use serde_json::{Value, json};

const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../manifests");

/// The namespace with these labels, as somebody creates it.
fn namespace(name: &str, labels: &[(&str, &str)]) -> Namespace {
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Namespace {
        metadata: ObjectMeta { name: Some(name.to_owned()), labels: Some(labels), ..ObjectMeta::default() },
        ..Namespace::default()
    }
}

/// Which rule the policy refuses it for; none if it is let through.
fn refused<T>(outcome: kube::Result<T>) -> Result<Option<String>> {
    match outcome {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) if status.code == 403 && status.message.contains("mimeo-guarded-labels") => {
            let (_, rule) = status.message.split_once("ClusterReplication ").context("it names no rule")?;
            Ok(rule.split(':').next().map(str::to_owned))
        }
        Err(error) => Err(error).context("refused for another reason"),
    }
}

fn selecting(name: &str, selector: &Value) -> RuleSpec {
    rule(name).secret("platform", "registry").target(json!({"namespaceSelector": selector}))
}

/// A person who may do all with namespaces, and what they may target.
async fn person(control_plane: &ControlPlane, admin: &Client) -> Result<Client> {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "owner"},
        "rules": [
            {"apiGroups": [""], "resources": ["namespaces", "namespaces/status"], "verbs": ["*"]},
            {"apiGroups": ["mimeo.dev"], "resources": ["clusterreplications"], "resourceNames": ["open"], "verbs": ["target"]},
        ],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "owner"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "owner"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "owner"}],
    });
    apply(admin, &role).await?;
    apply(admin, &binding).await?;
    let client = control_plane.user("owner", &[])?.client().await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    eventually(SOON, "the binding to apply", || async { Ok(Some(namespaces.get("default").await?)) }).await?;
    Ok(client)
}

/// One of each kind of targets, with what it is that only its holders may bring a namespace under.
fn rules() -> [RuleSpec; 12] {
    let label = |key: &str, value: &str| json!({"matchLabels": {key: value}});
    let expressions = |all: Value| json!({"matchExpressions": all});
    [
        selecting("closed", &label("team", "blue")),
        selecting("open", &label("team", "green")),
        selecting("all", &json!({})),
        selecting("in", &expressions(json!([{"key": "tier", "operator": "In", "values": ["gold", "silver"]}]))),
        selecting(
            "exists",
            &expressions(json!([{"key": "x", "operator": "Exists"}, {"key": "y", "operator": "DoesNotExist"}])),
        ),
        selecting("not-in", &expressions(json!([{"key": "stage", "operator": "NotIn", "values": ["lab"]}]))),
        selecting("by-name", &label("kubernetes.io/metadata.name", "chosen")),
        rule("but").secret("platform", "registry").target(json!({
            "namespaceSelector": {}, "exclude": {"namespaceSelector": label("copies", "none")},
        })),
        rule("named").secret("platform", "registry").target(json!({"namespaces": ["team-*"]})),
        rule("names-but").secret("platform", "registry").target(json!({
            "namespaces": ["ol?", "x-*"], "exclude": {"namespaceSelector": label("quiet", "yes")},
        })),
        rule("pattern-but").secret("platform", "registry").target(json!({
            "namespacePattern": "o.d|y", "exclude": {"namespaceSelector": label("still", "yes")},
        })),
        rule("elsewhere-but").secret("platform", "registry").target(json!({
            "namespacePattern": "older", "exclude": {"namespaceSelector": label("mute", "yes")},
        })),
    ]
}

#[tokio::test]
async fn labels_bring_a_namespace_under_a_rule_only_by_whom_the_rule_lets() -> Result<()> {
    let control_plane = ControlPlane::builder().start().await?;
    let admin = control_plane.client().await?;
    for definition in mimeo_api::crds() {
        install_crd(&admin, &definition).await?;
    }
    let policy = Path::new(MANIFESTS).join("kustomize/guarded-labels/policy.yaml");
    kubectl(&control_plane, ["apply", "--validate=strict", "-f", &policy.display().to_string()])?;
    for rule in rules() {
        rule.create(&admin).await?;
    }
    long_and_older_rules(&admin).await?;
    let client = person(&control_plane, &admin).await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let try_out = PostParams { dry_run: true, ..PostParams::default() };
    eventually(SOON, "the policy to be in force", || async {
        match refused(namespaces.create(&try_out, &namespace("probe", &[("team", "blue")])).await)? {
            Some(_) => Ok(Some(())),
            None => bail!("not yet"),
        }
    })
    .await?;

    for (labels, by) in [
        (&[("team", "blue")][..], Some("closed")),
        (&[("team", "green")], None),
        (&[("team", "red")], None),
        (&[("tier", "silver")], Some("in")),
        (&[("tier", "bronze")], None),
        (&[("x", "")], Some("exists")),
        (&[("x", ""), ("y", "")], None),
        (&[("stage", "lab")], None),
        (&[("copies", "none")], None),
        (&[], None),
    ] {
        let outcome = namespaces.create(&try_out, &namespace("fresh", labels)).await;
        assert_eq!(refused(outcome)?.as_deref(), by, "created with {labels:?}");
    }
    // Names are nobody's labels.
    for name in ["chosen", "team-new"] {
        assert_eq!(refused(namespaces.create(&try_out, &namespace(name, &[])).await)?, None, "{name}");
    }

    let labels = [
        ("stage", "lab"),
        ("copies", "none"),
        ("tier", "gold"),
        ("quiet", "yes"),
        ("still", "yes"),
        ("mute", "yes"),
        ("frozen", "yes"),
    ];
    create_namespace(&admin, "old", &labels).await?;
    let params = PatchParams { dry_run: true, ..PatchParams::default() };
    for (labels, by) in [
        (json!({"team": "blue"}), Some("closed")),
        (json!({"team": "green"}), None),
        // It matched before.
        (json!({"tier": "silver"}), None),
        (json!({"tier": null}), None),
        // A label can be in the way, too.
        (json!({"stage": null}), Some("not-in")),
        (json!({"stage": "live"}), Some("not-in")),
        (json!({"copies": null}), Some("but")),
        (json!({"quiet": null}), Some("names-but")),
        (json!({"still": "no"}), Some("pattern-but")),
        (json!({"mute": null}), None),
        (json!({"x": "", "y": ""}), None),
    ] {
        let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
        assert_eq!(refused(namespaces.patch("old", &params, &patch).await)?.as_deref(), by, "{labels}");
        let outcome = namespaces.patch_status("old", &params, &patch).await;
        assert_eq!(refused(outcome)?.as_deref(), by, "by its status: {labels}");
    }
    // What can't be evaluated is refused to who would gain by it if it matched, and to nobody else.
    let thaw = Patch::Merge(json!({"metadata": {"labels": {"frozen": null}}}));
    let refused = namespaces.patch("old", &params, &thaw).await.err().context("let through")?.to_string();
    ensure!(refused.contains("mimeo-guarded-labels") && refused.contains("error parsing regexp"), "{refused}");
    Api::<Namespace>::all(admin.clone()).patch("old", &params, &thaw).await?;
    // Whoever may do all may do this.
    Api::<Namespace>::all(admin.clone()).create(&PostParams::default(), &namespace("new", &[("team", "blue")])).await?;
    // And namespaces go as ever.
    namespaces.delete("new", &DeleteParams::default()).await?;
    eventually(SOON, "the namespace to be gone", || async {
        Ok(namespaces.get_opt("new").await?.is_none().then_some(()))
    })
    .await?;
    without_definitions(&control_plane, &admin).await
}

/// Rules that take the longest to match, and a pattern from before the definition knew which ones API servers can evaluate. The
/// cases that are tried hereafter are as if they weren't there.
async fn long_and_older_rules(admin: &Client) -> Result<()> {
    let label = |key: &str, value: &str| json!({"matchLabels": {key: value}});
    let globs: Vec<String> = (0..128).map(|number| format!("*-{number}?*{}*", "a*".repeat(20))).collect();
    let target = json!({"namespaces": globs, "exclude": {"namespaceSelector": label("copies", "none")}});
    rule("long").secret("platform", "registry").set("targets", json!(vec![target; 32])).create(admin).await?;
    let definition = mimeo_api::crds().into_iter().find(|crd| crd.spec.names.kind == "ClusterReplication");
    let definition = definition.context("no definition of rules")?;
    let mut older = serde_json::to_value(&definition)?;
    let target = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/targets/items/properties";
    let pattern = older.pointer_mut(&format!("{target}/namespacePattern")).context("no pattern")?;
    pattern.as_object_mut().and_then(|pattern| pattern.remove("x-kubernetes-validations")).context("no rule of it")?;
    install_crd(admin, &serde_json::from_value(older)?).await?;
    for (name, pattern) in [("verbose", "(?x)team-a"), ("unclosed", "team-(")] {
        let target = json!({"namespacePattern": pattern, "exclude": {"namespaceSelector": label("frozen", "yes")}});
        let older = rule(name).secret("platform", "registry").target(target);
        eventually(SOON, "the older definition", || async { Ok(older.create(admin).await.ok()) }).await?;
    }
    install_crd(admin, &definition).await
}

/// Without definitions the API server doesn't know what to ask, from its next start on at the latest, and refuses. It is as
/// documented, and so is the way out.
async fn without_definitions(control_plane: &ControlPlane, admin: &Client) -> Result<()> {
    kubectl(control_plane, ["delete", "crd", "clusterreplications.mimeo.dev"])?;
    control_plane.restart(Component::ApiServer(0)).await?;
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    let try_out = PostParams { dry_run: true, ..PostParams::default() };
    eventually(SOON, "the policy to be known again", || async {
        match namespaces.create(&try_out, &namespace("later", &[])).await {
            Err(kube::Error::Api(status)) if status.message.contains("paramKind") => Ok(Some(())),
            outcome => bail!("{:?}", outcome.map(|_| "it was created")),
        }
    })
    .await?;
    kubectl(control_plane, ["delete", "validatingadmissionpolicybinding", "mimeo-guarded-labels"])?;
    eventually(SOON, "namespaces to be created again", || async {
        Ok(namespaces.create(&try_out, &namespace("later", &[])).await.ok())
    })
    .await?;
    Ok(())
}
