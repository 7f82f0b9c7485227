//! The policy that guards namespaces' labels. A user needs the verb `target` on a rule to make the
//! rule match a namespace through its labels.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use mimeo_tests::author::grant;
use mimeo_tests::scenario::{RuleSpec, SOON, Scene, Setting, apply, kubectl, rule, wait_gone};
use mimeo_tests::tenant::has;
use mimeo_tests::{
    Component, ControlPlane, Pair, create_namespace, eventually, install_crd, unique,
};
use serde_json::{Value, json};

const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../manifests");

/// Returns a namespace with these labels.
fn namespace(name: &str, labels: &[(&str, &str)]) -> Namespace {
    let labels = labels
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    Namespace {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    }
}

/// Returns the rule in the policy's refusal, or `None` if the request is admitted.
fn refused<T>(outcome: kube::Result<T>) -> Result<Option<String>> {
    match outcome {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status))
            if status.code == 403 && status.message.contains("mimeo-guarded-labels") =>
        {
            let (_, rule) = status
                .message
                .split_once("ClusterReplication ")
                .context("it names no rule")?;
            Ok(rule.split(':').next().map(str::to_owned))
        }
        Err(error) => Err(error).context("refused for another reason"),
    }
}

fn selecting(name: &str, selector: &Value) -> RuleSpec {
    rule(name)
        .secret("platform", "registry")
        .target(json!({"namespaceSelector": selector}))
}

/// Returns a client with every permission on namespaces, and the permission to target the rule
/// `open`.
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
    eventually(SOON, "the binding to apply", || async {
        Ok(Some(namespaces.get("default").await?))
    })
    .await?;
    Ok(client)
}

/// Returns one rule for each kind of target, named after the labels that make it match.
fn rules() -> [RuleSpec; 14] {
    let label = |key: &str, value: &str| json!({"matchLabels": {key: value}});
    let expressions = |all: Value| json!({"matchExpressions": all});
    [
        selecting("closed", &label("team", "blue")),
        selecting("open", &label("team", "green")),
        selecting("all", &json!({})),
        selecting(
            "in",
            &expressions(json!([{"key": "tier", "operator": "In", "values": ["gold", "silver"]}])),
        ),
        selecting(
            "exists",
            &expressions(
                json!([{"key": "x", "operator": "Exists"}, {"key": "y", "operator": "DoesNotExist"}]),
            ),
        ),
        selecting(
            "not-in",
            &expressions(json!([{"key": "stage", "operator": "NotIn", "values": ["lab"]}])),
        ),
        selecting("by-name", &label("kubernetes.io/metadata.name", "chosen")),
        rule("but")
            .secret("platform", "registry")
            .target(json!({"namespaceSelector": {}}))
            .set(
                "exclude",
                json!([{"namespaceSelector": label("copies", "none")}]),
            ),
        rule("named")
            .secret("platform", "registry")
            .target(json!({"namespaces": ["team-*"]})),
        rule("names-but")
            .secret("platform", "registry")
            .target(json!({"namespaces": ["ol?", "x-*"]}))
            .set(
                "exclude",
                json!([{"namespaceSelector": label("quiet", "yes")}]),
            ),
        rule("pattern-but")
            .secret("platform", "registry")
            .target(json!({"namespacePattern": "o.d|y"}))
            .set(
                "exclude",
                json!([{"namespaceSelector": label("still", "yes")}]),
            ),
        rule("elsewhere-but")
            .secret("platform", "registry")
            .target(json!({"namespacePattern": "older"}))
            .set(
                "exclude",
                json!([{"namespaceSelector": label("mute", "yes")}]),
            ),
        rule("names-and-labels")
            .secret("platform", "registry")
            .target(json!({"namespaces": ["ol*"], "namespaceSelector": label("both", "yes")}))
            .target(
                json!({"namespaces": ["elsewhere"], "namespaceSelector": label("other", "yes")}),
            ),
        rule("two-exclusions")
            .secret("platform", "registry")
            .target(json!({"namespaces": ["old"]}))
            .set(
                "exclude",
                json!([
                    {"namespaces": ["ol?"], "namespaceSelector": label("out", "yes")},
                    {"namespaceSelector": label("off", "yes")},
                    {"namespaces": ["x-*"], "namespaceSelector": label("away", "yes")},
                ]),
            ),
    ]
}

fn install_policy(control_plane: &ControlPlane) -> Result<()> {
    let policy = Path::new(MANIFESTS).join("kustomize/guarded-labels/policy.yaml");
    kubectl(
        control_plane,
        [
            "apply",
            "--validate=strict",
            "-f",
            &policy.display().to_string(),
        ],
    )?;
    Ok(())
}

#[tokio::test]
async fn labels_bring_a_namespace_under_a_rule_only_by_whom_the_rule_lets() -> Result<()> {
    let control_plane = ControlPlane::builder().start().await?;
    let admin = control_plane.client().await?;
    for definition in mimeo_api::crds() {
        install_crd(&admin, &definition).await?;
    }
    install_policy(&control_plane)?;
    for rule in rules() {
        rule.create(&admin).await?;
    }
    long_and_older_rules(&admin).await?;
    let client = person(&control_plane, &admin).await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let try_out = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    eventually(SOON, "the policy to be in force", || async {
        match refused(
            namespaces
                .create(&try_out, &namespace("probe", &[("team", "blue")]))
                .await,
        )? {
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
        let outcome = namespaces
            .create(&try_out, &namespace("fresh", labels))
            .await;
        assert_eq!(refused(outcome)?.as_deref(), by, "created with {labels:?}");
    }
    // A namespace's name is not a label, so the policy does not guard it.
    for name in ["chosen", "team-new"] {
        assert_eq!(
            refused(namespaces.create(&try_out, &namespace(name, &[])).await)?,
            None,
            "{name}"
        );
    }

    let labels = [
        ("stage", "lab"),
        ("copies", "none"),
        ("tier", "gold"),
        ("quiet", "yes"),
        ("still", "yes"),
        ("mute", "yes"),
        ("frozen", "yes"),
        ("out", "yes"),
        ("off", "yes"),
        ("away", "yes"),
    ];
    create_namespace(&admin, "old", &labels).await?;
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    for (labels, by) in [
        (json!({"team": "blue"}), Some("closed")),
        (json!({"team": "green"}), None),
        // The namespace matched before the change.
        (json!({"tier": "silver"}), None),
        (json!({"tier": null}), None),
        // A label can also keep a namespace out.
        (json!({"stage": null}), Some("not-in")),
        (json!({"stage": "live"}), Some("not-in")),
        (json!({"copies": null}), Some("but")),
        (json!({"quiet": null}), Some("names-but")),
        (json!({"still": "no"}), Some("pattern-but")),
        (json!({"mute": null}), None),
        (json!({"x": "", "y": ""}), None),
        // The rule matches only if both the name and the label match.
        (json!({"both": "yes"}), Some("names-and-labels")),
        (json!({"other": "yes"}), None),
        // One exclusion is enough to keep the namespace out. The third exclusion does not cover
        // this name.
        (json!({"out": null}), None),
        (json!({"off": null}), None),
        (json!({"away": null}), None),
        (json!({"out": null, "off": null}), Some("two-exclusions")),
    ] {
        let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
        assert_eq!(
            refused(namespaces.patch("old", &params, &patch).await)?.as_deref(),
            by,
            "{labels}"
        );
        let outcome = namespaces.patch_status("old", &params, &patch).await;
        assert_eq!(refused(outcome)?.as_deref(), by, "by its status: {labels}");
    }
    // A rule that the API server cannot evaluate blocks only requests that would gain from a match.
    let thaw = Patch::Merge(json!({"metadata": {"labels": {"frozen": null}}}));
    let refused = namespaces
        .patch("old", &params, &thaw)
        .await
        .err()
        .context("let through")?
        .to_string();
    ensure!(
        refused.contains("mimeo-guarded-labels") && refused.contains("error parsing regexp"),
        "{refused}"
    );
    Api::<Namespace>::all(admin.clone())
        .patch("old", &params, &thaw)
        .await?;
    // The cluster admin may do this.
    Api::<Namespace>::all(admin.clone())
        .create(
            &PostParams::default(),
            &namespace("new", &[("team", "blue")]),
        )
        .await?;
    // Namespaces can be deleted as before.
    namespaces.delete("new", &DeleteParams::default()).await?;
    eventually(SOON, "the namespace to be gone", || async {
        Ok(namespaces.get_opt("new").await?.is_none().then_some(()))
    })
    .await?;
    without_definitions(&control_plane, &admin).await
}

/// Writes rules that take very long to match. Also writes a pattern from before the CRD knew which
/// patterns API servers can evaluate. The cases after this must give the same results as without
/// these rules.
async fn long_and_older_rules(admin: &Client) -> Result<()> {
    let label = |key: &str, value: &str| json!({"matchLabels": {key: value}});
    let globs: Vec<String> = (0..128)
        .map(|number| format!("*-{number}?*{}*", "a*".repeat(20)))
        .collect();
    let long = rule("long")
        .secret("platform", "registry")
        .set("targets", json!(vec![json!({"namespaces": globs}); 32]));
    long.set(
        "exclude",
        json!([{"namespaceSelector": label("copies", "none")}]),
    )
    .create(admin)
    .await?;
    let definition = mimeo_api::crds()
        .into_iter()
        .find(|crd| crd.spec.names.kind == "ClusterReplication");
    let definition = definition.context("no definition of rules")?;
    let mut older = serde_json::to_value(&definition)?;
    let target = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/targets/items/properties";
    let pattern = older
        .pointer_mut(&format!("{target}/namespacePattern"))
        .context("no pattern")?;
    pattern
        .as_object_mut()
        .and_then(|pattern| pattern.remove("x-kubernetes-validations"))
        .context("no rule of it")?;
    install_crd(admin, &serde_json::from_value(older)?).await?;
    for (name, pattern) in [("verbose", "(?x)team-a"), ("unclosed", "team-(")] {
        let older = rule(name)
            .secret("platform", "registry")
            .target(json!({"namespacePattern": pattern}));
        let older = older.set(
            "exclude",
            json!([{"namespaceSelector": label("frozen", "yes")}]),
        );
        eventually(SOON, "the older definition", || async {
            Ok(older.create(admin).await.ok())
        })
        .await?;
    }
    install_crd(admin, &definition).await
}

/// Without the CRDs, the API server cannot evaluate the policy, at the latest after its next start,
/// and refuses requests. The documents say so, and they say how to recover.
async fn without_definitions(control_plane: &ControlPlane, admin: &Client) -> Result<()> {
    kubectl(
        control_plane,
        ["delete", "crd", "clusterreplications.mimeo.dev"],
    )?;
    control_plane.restart(Component::ApiServer(0)).await?;
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    let try_out = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    eventually(SOON, "the policy to be known again", || async {
        match namespaces.create(&try_out, &namespace("later", &[])).await {
            Err(kube::Error::Api(status)) if status.message.contains("paramKind") => Ok(Some(())),
            outcome => bail!("{:?}", outcome.map(|_| "it was created")),
        }
    })
    .await?;
    kubectl(
        control_plane,
        [
            "delete",
            "validatingadmissionpolicybinding",
            "mimeo-guarded-labels",
        ],
    )?;
    eventually(SOON, "namespaces to be created again", || async {
        Ok(namespaces
            .create(&try_out, &namespace("later", &[]))
            .await
            .ok())
    })
    .await?;
    Ok(())
}

/// Returns a new user with every permission on namespaces, and a client of this user.
async fn namespaces_of(scene: &Scene<'_>) -> Result<(String, Api<Namespace>)> {
    let name = unique(&scene.tag);
    let all = json!({"apiGroups": [""], "resources": ["namespaces"], "verbs": ["*"]});
    grant(scene, "User", &name, None, &all).await?;
    let namespaces: Api<Namespace> = Api::all(
        scene
            .setting
            .control_plane
            .user(&name, &[])?
            .client()
            .await?,
    );
    eventually(SOON, "the right to namespaces", || async {
        Ok(Some(namespaces.get("default").await?))
    })
    .await?;
    Ok((name, namespaces))
}

/// Grants a user the permission to bring namespaces under a rule.
async fn let_target(scene: &Scene<'_>, name: &str, rule: &str) -> Result<()> {
    let target = json!({
        "apiGroups": ["mimeo.dev"], "resources": ["clusterreplications"], "resourceNames": [rule], "verbs": ["target"],
    });
    grant(scene, "User", name, None, &target).await?;
    Ok(())
}

/// Only the policy stands between users and the copies. Here Mimeo runs, too, and the policy judges
/// the labels that Mimeo sets.
#[tokio::test]
async fn by_labels_copies_come_to_whom_the_rule_lets_and_to_nobody_else() -> Result<()> {
    let setting = Setting::start(ControlPlane::builder(), Pair::builder().shipped_rights()).await?;
    install_policy(&setting.control_plane)?;
    let scene = setting.scene("guarded").await?;
    let ((_, outsider), (let_in, insider)) =
        (namespaces_of(&scene).await?, namespaces_of(&scene).await?);
    scene.secret("registry", &[("token", "one")]).await?;
    let selecting = scene.rule().secret(&scene.home, "registry");
    let quiet = json!({"namespaceSelector": {"matchLabels": {"quiet": "yes"}}});
    let target = json!({"namespaces": [format!("{}-*", scene.tag)], "copyName": "loud"});
    let excluding = rule(&format!("{}-but", scene.tag))
        .secret(&scene.home, "registry")
        .target(target);
    let excluding = excluding.set("exclude", json!([quiet]));
    for rule in [&selecting, &excluding] {
        rule.create(&scene.client).await?;
        scene
            .wait_condition(&rule.name, "PodGateActive", "True", "Active")
            .await?;
    }
    let_target(&scene, &let_in, &selecting.name).await?;
    let labelled = |name: &str| namespace(name, &[("scene", &scene.tag)]);
    let (dry_run, params) = (
        PostParams {
            dry_run: true,
            ..PostParams::default()
        },
        PostParams::default(),
    );
    eventually(
        SOON,
        "the policy to be in force, and the right to be known",
        || async {
            let by = refused(outsider.create(&dry_run, &labelled("probe")).await)?;
            ensure!(by.as_ref() == Some(&selecting.name), "refused by {by:?}");
            Ok(refused(insider.create(&dry_run, &labelled("probe")).await)?
                .is_none()
                .then_some(()))
        },
    )
    .await?;

    // A user without the permission creates a namespace and labels an existing one. Without the
    // label, both requests succeed.
    let (theirs, quiet) = (unique(&scene.tag), unique(&scene.tag));
    assert_eq!(
        refused(outsider.create(&params, &labelled(&theirs)).await)?.as_ref(),
        Some(&selecting.name)
    );
    assert!(
        outsider.get_opt(&theirs).await?.is_none(),
        "refused and stored"
    );
    outsider.create(&params, &namespace(&theirs, &[])).await?;
    outsider
        .create(&params, &namespace(&quiet, &[("quiet", "yes")]))
        .await?;
    let (label, unlabel) = (json!({"scene": scene.tag}), json!({"scene": null}));
    let set = async |who: &Api<Namespace>, name: &str, labels: &Value| {
        let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
        refused(who.patch(name, &PatchParams::default(), &patch).await)
    };
    assert_eq!(
        set(&outsider, &theirs, &label).await?.as_ref(),
        Some(&selecting.name)
    );
    // The permission for one rule does not cover another rule.
    let loud = json!({"quiet": null});
    assert_eq!(
        set(&insider, &quiet, &loud).await?.as_ref(),
        Some(&excluding.name)
    );

    let ours = unique(&scene.tag);
    insider.create(&params, &labelled(&ours)).await?;
    scene.wait_secret(&ours, "registry", has("one")).await?;
    // If a rule selects a namespace by its name, the policy does not apply.
    for name in [&theirs, &ours] {
        scene.wait_secret(name, "loud", has("one")).await?;
    }
    for (namespace, name) in [
        (&theirs, "registry"),
        (&quiet, "registry"),
        (&quiet, "loud"),
    ] {
        assert!(
            scene.secrets(namespace).get_opt(name).await?.is_none(),
            "{name} in {namespace}"
        );
    }
    assert_eq!(set(&insider, &theirs, &label).await?, None);
    scene.wait_secret(&theirs, "registry", has("one")).await?;

    // A user without the permission may remove the label, and so the copy. The user cannot set it
    // again.
    assert_eq!(set(&outsider, &theirs, &unlabel).await?, None);
    wait_gone(scene.secrets(&theirs), "registry").await?;
    assert_eq!(
        set(&outsider, &theirs, &label).await?.as_ref(),
        Some(&selecting.name)
    );
    // The removal of a label that keeps a namespace out needs the same permission as a label that
    // brings it in.
    let_target(&scene, &let_in, &excluding.name).await?;
    eventually(SOON, "the other right to be known", || async {
        Ok(set(&insider, &quiet, &loud).await?.is_none().then_some(()))
    })
    .await?;
    scene.wait_secret(&quiet, "loud", has("one")).await?;
    assert!(scene.secrets(&theirs).get_opt("registry").await?.is_none());
    Ok(())
}
