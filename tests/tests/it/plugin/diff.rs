//! `kubectl mimeo diff`: the changes that files would lead to are those that Mimeo then makes.

use std::io::Write as _;

use anyhow::{Context as _, Result, ensure};
use mimeo_tests::{
    User, create_secret, eventually, planted,
    scenario::{SOON, Scene, apply, kubectl, rule, value, wait_gone},
};
use serde_json::{Value, json};

use super::{Output, measured, run};
use crate::stages::{IN_THE_WAY, LOAD, MANY, Many, PLAIN as STAGE, many};

const REGISTRY: &str = "registry";

/// `kubectl mimeo diff` of these objects.
fn diff(
    scene: &Scene<'_>,
    user: Option<&User>,
    objects: &[Value],
    args: &[&str],
) -> Result<Output> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    let mut file = tempfile::NamedTempFile::with_suffix(".json")?;
    file.write_all(list.to_string().as_bytes())?;
    let path = file.path().to_str().context("a path in UTF-8")?;
    let args: Vec<&str> = ["diff", "-f", path].iter().chain(args).copied().collect();
    run(&scene.setting.control_plane, user, &args)
}

/// The changes of the scene's rules: action, namespace, and changed fields. Other tests may change
/// the cluster meanwhile.
fn changes(scene: &Scene<'_>, answer: &Value) -> Vec<(String, String, Vec<String>)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = answer["changes"].as_array().into_iter().flatten();
    let own = all.filter(|change| text(&change["rule"]).contains(&scene.tag));
    let change = |change: &Value| {
        let fields = change["fields"].as_array().into_iter().flatten();
        let fields = fields.map(|field| text(&field["path"])).collect();
        (text(&change["action"]), text(&change["namespace"]), fields)
    };
    own.map(change).collect()
}

fn source(scene: &Scene<'_>, value: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": REGISTRY, "namespace": scene.home},
        "stringData": {"token": format!("{}{value}", planted::MARK), "tls.crt": "new"},
    })
}

fn action(action: &str, namespace: &str, fields: &[&str]) -> (String, String, Vec<String>) {
    let fields = fields.iter().copied().map(str::to_owned).collect();
    (action.into(), namespace.into(), fields)
}

#[tokio::test]
async fn creates_updates_deletes_and_conflicts_are_foretold() -> Result<()> {
    let scene = STAGE.scene("diff").await?;
    let mut namespaces = scene.namespaces(3).await?;
    namespaces.sort();
    let [one, two, taken] = &namespaces[..] else {
        unreachable!("three were asked for")
    };
    create_secret(&scene.client, taken, REGISTRY, &[("a", "b")]).await?;
    scene.secret(REGISTRY, &[("token", "one")]).await?;
    let rule = scene.rule().secret(&scene.home, REGISTRY);

    let output = diff(&scene, None, &[rule.object()], &["-o", "json"])?;
    let answer = output.json()?;
    assert_eq!(output.code, 1, "{answer:#}");
    assert_eq!(
        changes(&scene, &answer),
        [
            action("create", one, &["data.token", "type"]),
            action("create", two, &["data.token", "type"])
        ]
    );
    let failures = answer["failures"].to_string();
    assert!(
        failures.contains("Conflict") && failures.contains(taken.as_str()),
        "{answer:#}"
    );
    let table = diff(&scene, None, &[rule.object()], &[])?.stdout;
    let tag = &scene.tag;
    let line = format!(
        "create Secret registry of ClusterReplication/{tag} in 2 namespaces: {one}, {two}\n  + data.token (16 bytes)\n"
    );
    assert!(table.contains(&line), "{line}\n{table}");
    assert!(
        table.contains(&format!(
            "fail Conflict: ClusterReplication/{tag}: Secret registry in {taken}: "
        )),
        "{table}"
    );

    rule.create(&scene.client).await?;
    scene.wait_counts(tag, [3, 2, 1]).await?;
    // The stored rule has defaults that the file has not.
    eventually(SOON, "no difference", || async {
        let output = diff(&scene, None, &[rule.object()], &[])?;
        ensure!(output.code == 0, "{}", output.stdout);
        ensure!(output.stdout.contains("The files change no copy."));
        Ok(Some(()))
    })
    .await?;

    // Only the first namespace stays a target, and its copy gets the content of the file.
    let narrowed = json!([{"namespaces": [one]}]);
    let narrowed = rule.set("targets", narrowed).object();
    let files = [narrowed, source(&scene, "longer")];
    let output = diff(&scene, None, &files, &["-o", "json"])?;
    let answer = output.json()?;
    assert_eq!(
        changes(&scene, &answer),
        [
            action("update", one, &["data.token", "data[tls.crt]"]),
            action("delete", two, &[])
        ]
    );
    let change = &answer["changes"][0]["fields"][0];
    assert_eq!(
        (&change["before"], &change["after"]),
        (&json!(16), &json!(19))
    );
    // So it is.
    let list = json!({"apiVersion": "v1", "kind": "List", "items": files});
    let mut file = tempfile::NamedTempFile::with_suffix(".json")?;
    file.write_all(list.to_string().as_bytes())?;
    let path = file.path().to_str().context("a path in UTF-8")?;
    kubectl(&scene.setting.control_plane, ["apply", "-f", path])?;
    scene.wait_synced(tag).await?;
    wait_gone(scene.secrets(two), REGISTRY).await?;
    let copy = scene.secrets(one).get(REGISTRY).await?;
    assert_eq!(value(&copy, "tls.crt").as_deref(), Some("new"));
    eventually(SOON, "no difference", || async {
        let output = diff(&scene, None, &files, &[])?;
        ensure!(output.code == 0, "{}", output.stdout);
        Ok(Some(()))
    })
    .await
}

#[tokio::test]
async fn a_deletion_that_waits_for_a_person_and_each_new_failure_are_foretold() -> Result<()> {
    let scene = STAGE.scene("diff-held").await?;
    let namespaces = scene.namespaces(24).await?;
    scene.secret(REGISTRY, &[("token", "one")]).await?;
    let wide = scene.rule().secret(&scene.home, REGISTRY);
    wide.create(&scene.client).await?;
    scene.wait_synced(&scene.tag).await?;
    let first = json!([{"namespaces": [namespaces[0]]}]);
    let narrowed = wide.set("targets", first);
    let table = diff(&scene, None, &[narrowed.object()], &[])?.stdout;
    let (held, places) = ("held delete Secret registry of ", " in 23 namespaces: ");
    let why = ", and 18 more (so many at once that a person must confirm it)\n";
    for words in [held, places, why] {
        assert!(table.contains(words), "{words}: {table}");
    }

    // The limit is that of the reconciler.
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "mimeo-reconciler", "namespace": scene.home},
        "spec": {
            "replicas": 0, "selector": {"matchLabels": {"app": "mimeo"}},
            "template": {
                "metadata": {"labels": {"app": "mimeo"}},
                "spec": {"containers": [{"name": "reconciler", "image": "none", "args": ["--deletion-limit=24"]}]},
            },
        },
    });
    apply(&scene.client, &deployment).await?;
    let installed = ["--mimeo-namespace", &scene.home];
    let table = diff(&scene, None, &[narrowed.object()], &installed)?.stdout;
    assert!(
        table.contains("delete Secret") && !table.contains("held delete"),
        "{table}"
    );

    let lost = narrowed.secret(&scene.home, "lost").named("$(source.name)");
    let unset = json!({"labels": {"set": {"stage": "$(namespace.labels['stage'])"}}});
    let mut broken = lost.set("transform", unset).object();
    let output = diff(&scene, None, std::slice::from_ref(&broken), &[])?;
    assert_eq!(output.code, 1);
    for words in ["fail SourceNotFound: ", "fail VariableUnset: "] {
        assert!(output.stdout.contains(words), "{words}: {}", output.stdout);
    }
    broken["spec"]["driftPolicy"] = json!("Deny");
    let table = diff(&scene, None, &[broken], &[])?.stdout;
    assert!(
        table.contains("fail InvalidSpec: ") && table.contains("Deny needs strategy Replace"),
        "{table}"
    );

    // What another rule has is in the way of a suspended rule once it is resumed.
    let rival = rule(&format!("{}-rival", scene.tag))
        .target(json!({"namespaces": [namespaces[0]]}))
        .secret(&scene.home, REGISTRY);
    let suspended = rival.clone().set("suspend", json!(true));
    suspended.create(&scene.client).await?;
    scene
        .wait_condition(&rival.name, "Ready", "False", "Suspended")
        .await?;
    let resumed = diff(&scene, None, &[rival.object()], &[])?;
    assert!(
        resumed.code == 1 && resumed.stdout.contains("fail RuleConflict: "),
        "{}",
        resumed.stdout
    );

    // A rule that lacks its source already will lack another one. A condition names one of them.
    let lacks = |source: &str| {
        rule(&format!("{}-lacks", scene.tag))
            .target(json!({"namespaces": [namespaces[0]]}))
            .secret(&scene.home, source)
    };
    let (lost, gone) = (lacks("lost"), lacks("gone"));
    lost.create(&scene.client).await?;
    scene
        .wait_condition(&lost.name, "SourcesFound", "False", "SourceNotFound")
        .await?;
    let same = diff(&scene, None, &[lost.object()], &[])?;
    assert_eq!(same.code, 0, "{}", same.stdout);
    let other = diff(&scene, None, &[gone.object()], &[])?;
    let words = format!(
        "fail SourceNotFound: ClusterReplication/{}: v1/Secret/{}/gone does not exist",
        gone.name, scene.home
    );
    assert!(
        other.code == 1 && other.stdout.contains(&words),
        "{}",
        other.stdout
    );
    Ok(())
}

/// A namespace, a grant and a rule of a tenant, none of which is stored.
#[tokio::test]
async fn objects_that_are_not_stored_yet_count_as_stored() -> Result<()> {
    let scene = STAGE.scene("diff-new").await?;
    scene.secret(REGISTRY, &[("token", "one")]).await?;
    let home = format!("{}-new", scene.tag);
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": home}});
    let replication = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "Replication", "metadata": {"name": scene.tag, "namespace": home},
        "spec": {"sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": scene.home, "name": REGISTRY}]},
    });
    let grant = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ReplicationGrant",
        "metadata": {"name": "to-new", "namespace": scene.home},
        "spec": {"grantees": [{"namespaces": [home]}], "objects": [{"apiVersion": "v1", "kind": "Secret"}]},
    });
    let files = [namespace.clone(), replication.clone()];
    let table = diff(&scene, None, &files, &[])?.stdout;
    assert!(table.contains("fail NotGranted: "), "{table}");
    let output = diff(
        &scene,
        None,
        &[namespace, replication, grant],
        &["-o", "json"],
    )?;
    let answer = output.json()?;
    assert_eq!(
        changes(&scene, &answer),
        [action("create", &home, &["data.token", "type"])],
        "{answer:#}"
    );
    Ok(())
}

/// A label on a namespace, and a label on a source, lead to copies.
#[tokio::test]
async fn labels_in_files_count_for_selectors() -> Result<()> {
    let scene = STAGE.scene("diff-labels").await?;
    let namespace = scene.namespace().await?;
    scene.secret(REGISTRY, &[("token", "one")]).await?;
    let (labels, selector) = (
        json!({"diff": "yes"}),
        json!({"matchLabels": {"diff": "yes"}}),
    );
    let rule = rule(&scene.tag)
        .selected("v1", "Secret", &scene.home, &selector)
        .to_label("diff", &scene.tag)
        .named("$(source.name)");
    rule.create(&scene.client).await?;
    scene.wait_counts(&scene.tag, [0, 0, 0]).await?;
    let mut secret = source(&scene, "");
    secret["metadata"]["labels"] = labels;
    let labelled = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": namespace, "labels": {"diff": scene.tag}},
    });
    let found = |files: &[Value]| -> Result<_> {
        let answer = diff(&scene, None, files, &["-o", "json"])?.json()?;
        Ok(changes(&scene, &answer))
    };
    assert_eq!(found(std::slice::from_ref(&secret))?, []);
    assert_eq!(found(std::slice::from_ref(&labelled))?, []);
    let fields = ["data.token", "data[tls.crt]", "type"];
    assert_eq!(
        found(&[secret, labelled])?,
        [action("create", &namespace, &fields)]
    );
    Ok(())
}

/// The user may read everything, and may write no Secret.
#[tokio::test]
async fn missing_permissions_of_the_author_are_named() -> Result<()> {
    let scene = STAGE.scene("diff-author").await?;
    scene.namespace().await?;
    scene.secret(REGISTRY, &[("token", "one")]).await?;
    let control_plane = &scene.setting.control_plane;
    let user = control_plane.user(&scene.tag, &[])?;
    let (tag, reads) = (&scene.tag, "--verb=get,list,watch");
    kubectl(
        control_plane,
        [
            "create",
            "clusterrole",
            tag,
            reads,
            "--resource=*.*,secrets,namespaces,configmaps",
        ],
    )?;
    let (role, name) = (format!("--clusterrole={tag}"), format!("--user={tag}"));
    kubectl(
        control_plane,
        ["create", "clusterrolebinding", tag, &role, &name],
    )?;
    let rule = scene.rule().secret(&scene.home, REGISTRY);
    let output = diff(&scene, Some(&user), &[rule.object()], &[])?;
    assert_eq!(output.code, 1, "{}{}", output.stdout, output.stderr);
    let refused = format!(
        "refused: ClusterReplication/{tag}: user {tag:?} may not create secrets in all namespaces"
    );
    for words in [
        &*refused,
        "no permission to check the permissions of Mimeo's accounts",
    ] {
        assert!(output.stdout.contains(words), "{words}: {}", output.stdout);
    }
    // A change that takes something away needs no permissions.
    rule.create(&scene.client).await?;
    scene.wait_synced(tag).await?;
    let suspended = rule.set("suspend", json!(true)).object();
    let output = diff(&scene, Some(&user), &[suspended], &[])?;
    assert!(!output.stdout.contains("refused: "), "{}", output.stdout);
    Ok(())
}

/// The tenant may read one namespace, and write Replications there.
#[tokio::test]
async fn a_tenant_is_answered_about_the_own_namespace() -> Result<()> {
    let scene = STAGE.scene("diff-tenant").await?;
    let namespace = scene.namespace().await?;
    create_secret(&scene.client, &namespace, REGISTRY, &[("token", "one")]).await?;
    let control_plane = &scene.setting.control_plane;
    let user = control_plane.user(&scene.tag, &[])?;
    let create = ["-n", &namespace, "create"];
    let run = |args: &[&str]| kubectl(control_plane, create.iter().chain(args).copied());
    let resource = "--resource=secrets,configmaps,replications.mimeo.dev";
    run(&["role", "all", "--verb=*", resource])?;
    let name = format!("--user={}", scene.tag);
    run(&["rolebinding", "all", "--role=all", &name])?;
    let replication = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "Replication", "metadata": {"name": scene.tag},
        "spec": {
            "sources": [{"apiVersion": "v1", "kind": "Secret", "name": REGISTRY}],
            "targets": [{"copyName": "second"}],
        },
    });
    let args = ["-n", &namespace, "-o", "json"];
    let answer = diff(&scene, Some(&user), &[replication], &args)?.json()?;
    assert_eq!(
        changes(&scene, &answer),
        [action("create", &namespace, &["data.token", "type"])],
        "{answer:#}"
    );
    assert_eq!(answer["permissions"]["author"], json!([]));
    assert!(
        answer["notes"]
            .to_string()
            .contains("You can't list namespaces"),
        "{answer:#}"
    );
    Ok(())
}

/// Every copy of the rule gets another label, and the copies of a second rule are new.
#[tokio::test]
async fn changes_of_ten_thousand_namespaces_take_little_memory() -> Result<()> {
    let _load = LOAD.lock().await;
    let many = many().await?;
    let scene = many.setting.scene("diff-many").await?;
    scene
        .wait_counts(Many::RULE, [MANY, MANY - IN_THE_WAY, IN_THE_WAY])
        .await?;
    let rule = |name: &str| {
        rule(name)
            .source("v1", "ConfigMap", "platform", Many::RULE)
            .target(json!({"namespaces": ["team-*"]}))
    };
    let label = json!({"labels": {"set": {"a": "b"}}});
    let changed = rule(Many::RULE).set("transform", label).object();
    let new = rule("second").named("second").object();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [changed, new]});
    let mut file = tempfile::NamedTempFile::with_suffix(".json")?;
    file.write_all(list.to_string().as_bytes())?;
    let path = file.path().display().to_string();
    let (code, log, peak) = measured(&many.setting.control_plane, &["diff", "-f", &path]).await?;
    assert_eq!(code, Some(1), "{log}");
    let rest = " namespaces: team-00000";
    let created = format!("create ConfigMap second of ClusterReplication/second in {MANY}{rest}");
    assert!(log.contains(&created), "{log}");
    let updated = format!("in {} namespaces: team-00001", MANY - IN_THE_WAY);
    assert!(log.contains(&updated), "{log}");
    assert!(log.contains("  + metadata.labels.a (1 byte)\n"), "{log}");
    assert!(peak < 150, "{peak} MiB");
    Ok(())
}
