//! `kubectl mimeo copy`: copies by hand have the source's content, and nothing of Mimeo's.

use anyhow::Result;
use kube::ResourceExt as _;
use mimeo_tests::{
    create_secret, eventually,
    managed::managers,
    scenario::{SOON, Scene, apply, kubectl, merge, put, value},
};
use serde_json::{Value, json};

use super::{Output, run};
use crate::stages::PLAIN as STAGE;

const REGISTRY: &str = "registry";

fn copy(scene: &Scene<'_>, args: &[&str]) -> Result<Output> {
    let args: Vec<&str> = ["copy"].iter().chain(args).copied().collect();
    run(&scene.setting.control_plane, None, &args)
}

#[tokio::test]
async fn an_object_is_copied_once_to_several_namespaces() -> Result<()> {
    let scene = STAGE.scene("copy").await?;
    let [one, two] = [scene.namespace().await?, scene.namespace().await?];
    scene.secret(REGISTRY, &[("token", "one")]).await?;
    let labels = json!({"metadata": {
        "labels": {"team": "blue", "app.kubernetes.io/managed-by": "Helm"},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "note": "n"},
    }});
    merge(&scene.secrets(&scene.home), REGISTRY, labels).await?;
    let source = format!("{}/secret/{REGISTRY}", scene.home);

    let dry = copy(&scene, &[&source, &one, "--dry-run"])?;
    assert_eq!(
        dry.stdout,
        format!("secret/{REGISTRY} copied to {one} (server dry run)\n")
    );
    assert!(scene.secrets(&one).get_opt(REGISTRY).await?.is_none());

    let pull = format!("{two}/pull");
    let output = copy(&scene, &[&source, &one, &pull])?;
    let told = format!("secret/{REGISTRY} copied to {one}\nsecret/{REGISTRY} copied to {pull}\n");
    assert_eq!((output.code, output.stdout), (0, told), "{}", output.stderr);
    let made = scene.secrets(&two).get("pull").await?;
    assert_eq!(value(&made, "token").as_deref(), Some("one"));
    assert_eq!(json!(made.labels()), json!({"team": "blue"}));
    assert_eq!(json!(made.annotations()), json!({"note": "n"}));
    assert_eq!(managers(&made), ["kubectl-mimeo/Apply"]);

    // The second copy fails, and the first and the third don't depend on it.
    put(&scene.secrets(&scene.home), REGISTRY, &[("token", "two")]).await?;
    let third = scene.namespace().await?;
    let absent = format!("{}-absent", scene.tag);
    let targets = [&source, &absent, &one, &third];
    let output = copy(
        &scene,
        &[&targets.map(String::as_str)[..], &["--context", "test"]].concat(),
    )?;
    assert_eq!(output.code, 1);
    assert_eq!(
        output.stdout,
        format!("secret/{REGISTRY} copied to {third}\n")
    );
    let errors = &output.stderr;
    assert!(
        errors.contains(&format!("kubectl --context test create namespace {absent}")),
        "{errors}"
    );
    assert!(errors.contains("exists in namespace"), "{errors}");
    assert!(errors.contains("--overwrite"), "{errors}");
    let kept = scene.secrets(&one).get(REGISTRY).await?;
    assert_eq!(value(&kept, "token").as_deref(), Some("one"));

    let output = copy(&scene, &[&source, &one, "--overwrite", "-o", "json"])?;
    assert_eq!(output.code, 0, "{}", output.stderr);
    assert_eq!(
        output.json()?,
        json!({
            "source": format!("v1/Secret/{}/{REGISTRY}", scene.home),
            "dryRun": false,
            "copies": [{"namespace": one, "name": REGISTRY, "copied": true}],
        })
    );
    let updated = scene.secrets(&one).get(REGISTRY).await?;
    assert_eq!(value(&updated, "token").as_deref(), Some("two"));
    Ok(())
}

#[tokio::test]
async fn objects_of_other_clients_are_not_overwritten_by_force() -> Result<()> {
    let scene = STAGE.scene("copy-other").await?;
    let namespace = scene.namespace().await?;
    scene.secret(REGISTRY, &[("token", "one")]).await?;
    create_secret(&scene.client, &namespace, REGISTRY, &[("token", "theirs")]).await?;
    let source = format!("secrets/{REGISTRY}");
    let args = [
        source.as_str(),
        &namespace,
        "-n",
        &scene.home,
        "--overwrite",
    ];
    let output = copy(&scene, &args)?;
    assert_eq!(output.code, 1);
    assert!(output.stderr.contains("other clients"), "{}", output.stderr);
    let fix = format!("kubectl -n {namespace} delete secret/{REGISTRY}");
    assert!(output.stderr.contains(&fix), "{}", output.stderr);
    Ok(())
}

#[tokio::test]
async fn any_namespaced_kind_is_copied() -> Result<()> {
    let scene = STAGE.scene("copy-kinds").await?;
    let namespace = scene.namespace().await?;
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": scene.home, "name": "deny"}, "spec": {"podSelector": {}},
    });
    apply(&scene.client, &policy).await?;
    for kind in [
        "netpol",
        "NetworkPolicy",
        "networkpolicies.networking.k8s.io",
    ] {
        let source = format!("{}/{kind}/deny", scene.home);
        let output = copy(&scene, &[&source, &namespace, "--overwrite"])?;
        let told = format!("networkpolicy.networking.k8s.io/deny copied to {namespace}\n");
        assert_eq!(output.stdout, told, "{}", output.stderr);
    }
    Ok(())
}

#[tokio::test]
async fn wrong_arguments_and_missing_permissions_are_told() -> Result<()> {
    let scene = STAGE.scene("copy-wrong").await?;
    let home = &scene.home;
    scene.secret(REGISTRY, &[("token", "one")]).await?;
    let token = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": {"namespace": home, "name": "token", "annotations": {"kubernetes.io/service-account.name": "default"}},
    });
    eventually(SOON, "the service account", || async {
        kubectl(
            &scene.setting.control_plane,
            ["-n", home.as_str(), "get", "serviceaccount", "default"],
        )?;
        Ok(Some(()))
    })
    .await?;
    apply(&scene.client, &token).await?;
    let own = format!("{home}/secret/{REGISTRY}");
    let of = |rest: &str| format!("{home}/{rest}");
    let cases = [
        ("a/b/c/d".to_owned(), "x", "team-blue/secret/registry"),
        (of("secret/absent"), "x", "does not exist"),
        (of("gizmo/a"), "x", "kubectl api-resources"),
        (of("namespace/a"), "x", "cluster-scoped"),
        (
            of("secret/token"),
            "x",
            "a service account token is never copied",
        ),
        (own.clone(), home, "is the source itself"),
        (own.clone(), "a/b/c", "NAMESPACE or NAMESPACE/NAME"),
    ];
    for (source, to, words) in cases {
        let output = copy(&scene, &[&source, to])?;
        assert_eq!(output.code, 2, "{source} {to}");
        assert!(output.stderr.contains(words), "{source}: {}", output.stderr);
        assert_eq!(output.stdout, "");
    }
    let output = copy(&scene, &[&own])?;
    assert!(
        output.stderr.contains("NAMESPACE[/NAME]"),
        "{}",
        output.stderr
    );

    let control_plane = &scene.setting.control_plane;
    let user = control_plane.user(&scene.tag, &[])?;
    let binding = [
        "-n",
        home,
        "create",
        "rolebinding",
        "edits",
        "--clusterrole=edit",
        "--user",
        &scene.tag,
    ];
    kubectl(control_plane, binding)?;
    let namespace = scene.namespace().await?;
    eventually(SOON, "the permission to read", || async {
        let output = run(
            control_plane,
            Some(&user),
            &["copy", &own, &namespace, "-o", "json"],
        )?;
        anyhow::ensure!(output.code == 1, "{}", output.stderr);
        let answer: Value = output.json()?;
        let error = answer["copies"][0]["error"].as_str().unwrap_or_default();
        anyhow::ensure!(error.contains("cannot patch resource"), "{error}");
        Ok(Some(()))
    })
    .await
}
