//! `kubectl mimeo grant`: the printed grants are accepted, and they are enough.

use std::{io::Write as _, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use mimeo_tests::{
    create_namespace, create_secret, eventually,
    scenario::{SOON, Scene, any, delete, wait_for},
    tenant::{Tenant, consent, copying, has},
    unique,
};
use serde_json::json;

use super::{Output, run};
use crate::stages::SHIPPED_QUICK as STAGE;

fn grant(scene: &Scene<'_>, args: &[&str]) -> Result<Output> {
    let args: Vec<&str> = ["grant"].iter().chain(args).copied().collect();
    run(&scene.setting.control_plane, None, &args)
}

/// `kubectl apply -f -`, as the admin.
fn apply(scene: &Scene<'_>, text: &str) -> Result<()> {
    let mut kubectl = scene.setting.control_plane.kubectl()?;
    let mut child = kubectl
        .args(["apply", "-f", "-"])
        .stdin(Stdio::piped())
        .spawn()?;
    child
        .stdin
        .take()
        .context("no input")?
        .write_all(text.as_bytes())?;
    ensure!(child.wait()?.success(), "{text}");
    Ok(())
}

#[tokio::test]
async fn the_printed_grants_are_enough() -> Result<()> {
    let scene = STAGE.scene("grant").await?;
    let tenant = Tenant::editor(&scene).await?;
    let [shop, other] = [unique(&scene.tag), unique(&scene.tag)];
    for namespace in [&shop, &other] {
        create_namespace(&scene.client, namespace, &[]).await?;
    }
    create_secret(&scene.client, &shop, "db", &[("token", "one")]).await?;
    let spec = copying(Some(&shop), "db", &[&tenant.home, &other]);
    tenant.writes("replications", "pull", &spec).await?;

    let name = format!("{}/pull", tenant.home);
    let output = grant(&scene, &[&name])?;
    assert_eq!((output.code, output.stderr.as_str()), (0, ""));
    let text = &output.stdout;
    let expected = |namespace: &str, verb: &str, access: &str| {
        format!(
            "apiVersion: mimeo.dev/v1alpha1\nkind: ReplicationGrant\nmetadata:\n  name: {home}-pull-{verb}\n  namespace: {namespace}\nspec:\n  access: {access}\n  grantees:\n  - namespaces:\n    - {home}\n  objects:\n  - apiVersion: v1\n    kind: Secret\n    names:\n    - db\n",
            home = tenant.home,
        )
    };
    let mut grants = [
        (&shop, expected(&shop, "read", "Read")),
        (&other, expected(&other, "write", "Write")),
    ];
    grants.sort();
    assert_eq!(*text, format!("{}---\n{}", grants[0].1, grants[1].1));

    apply(&scene, text)?;
    for namespace in [&tenant.home, &other] {
        wait_for(scene.secrets(namespace), "db".into(), has("one")).await?;
    }
    let output = grant(&scene, &["pull", "-n", &tenant.home])?;
    assert_eq!((output.code, output.stdout.as_str()), (0, ""));
    let told = format!("No ReplicationGrant is missing for Replication {name}.\n");
    assert_eq!(output.stderr, told);
    let list = grant(&scene, &[&name, "-o", "json"])?.json()?;
    assert_eq!(list["items"], json!([]));
    Ok(())
}

#[tokio::test]
async fn a_selector_gets_a_grant_for_any_name() -> Result<()> {
    let scene = STAGE.scene("grant-any").await?;
    let tenant = Tenant::editor(&scene).await?;
    let shop = unique(&scene.tag);
    create_namespace(&scene.client, &shop, &[]).await?;
    let labels = json!({"matchLabels": {"copy": "yes"}});
    let source =
        json!({"apiVersion": "v1", "kind": "Secret", "namespace": shop, "selector": labels});
    let target = json!({"namespaces": [tenant.home], "copyName": "shop-$(source.name)"});
    let spec = json!({"sources": [source], "targets": [target]});
    tenant.writes("replications", "all", &spec).await?;
    let name = format!("{}/all", tenant.home);
    let list = grant(&scene, &[&name, "-o", "json"])?.json()?;
    assert_eq!(list["kind"], "List");
    let items = list["items"].as_array().context("no items")?;
    assert_eq!(items.len(), 1, "{list:#}");
    let objects = &items[0]["spec"]["objects"];
    assert_eq!(*objects, json!([{"apiVersion": "v1", "kind": "Secret"}]));
    apply(&scene, &list.to_string())?;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "stringData": {"token": "one"},
        "metadata": {"namespace": shop, "name": "db", "labels": {"copy": "yes"}},
    });
    apply(&scene, &secret.to_string())?;
    wait_for(scene.secrets(&tenant.home), "shop-db".into(), has("one")).await?;
    Ok(())
}

#[tokio::test]
async fn a_tenant_is_told_which_grants_could_not_be_read() -> Result<()> {
    let scene = STAGE.scene("grant-tenant").await?;
    let control_plane = &scene.setting.control_plane;
    let tenant = Tenant::editor(&scene).await?;
    let shop = unique(&scene.tag);
    create_namespace(&scene.client, &shop, &[]).await?;
    let spec = copying(Some(&shop), "db", &[]);
    tenant.writes("replications", "pull", &spec).await?;
    let given = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ReplicationGrant",
        "metadata": {"namespace": shop, "name": "given"},
        "spec": consent("Read", &tenant.home, &["db"]),
    });
    apply(&scene, &given.to_string())?;
    let name = format!("{}/pull", tenant.home);
    let output = run(control_plane, Some(&tenant.user), &["grant", &name])?;
    assert_eq!(output.code, 0, "{}", output.stderr);
    assert!(output.stdout.contains("access: Read"), "{}", output.stdout);
    let told =
        format!("Can't read the ReplicationGrants of namespace {shop}: you have no permission");
    assert!(output.stderr.contains(&told), "{}", output.stderr);
    assert!(
        output.stderr.contains("some may exist already"),
        "{}",
        output.stderr
    );
    // The admin may read it.
    let output = grant(&scene, &[&name])?;
    assert_eq!(output.stdout, "", "{}", output.stdout);
    Ok(())
}

/// All grants of a namespace may have 1024 names. The grantee and each item count as names, too.
#[tokio::test]
async fn a_namespace_in_which_no_more_grants_count_is_told() -> Result<()> {
    let scene = STAGE.scene("grant-full").await?;
    let tenant = Tenant::editor(&scene).await?;
    let shop = unique(&scene.tag);
    create_namespace(&scene.client, &shop, &[]).await?;
    let spec = copying(Some(&shop), "db", &[]);
    tenant.writes("replications", "pull", &spec).await?;
    let item = |names: usize| {
        let names: Vec<String> = (0..names).map(|number| format!("other-{number}")).collect();
        json!({"apiVersion": "v1", "kind": "Secret", "names": names})
    };
    let mut objects = vec![item(64); 15];
    objects.push(item(47));
    let mut full = consent("Read", &tenant.home, &[]);
    full["objects"] = json!(objects);
    let given = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ReplicationGrant",
        "metadata": {"namespace": shop, "name": "full"}, "spec": full,
    });
    apply(&scene, &given.to_string())?;
    let name = format!("{}/pull", tenant.home);
    let output = grant(&scene, &[&name])?;
    assert_eq!(output.code, 1, "{}", output.stderr);
    let told = "A namespace has so many ReplicationGrants that no more of them count.";
    assert!(output.stderr.contains(told), "{}", output.stderr);
    assert!(output.stdout.contains("access: Read"), "{}", output.stdout);

    let grants = any(
        &scene.client,
        "mimeo.dev/v1alpha1",
        "ReplicationGrant",
        Some(&shop),
    )?;
    delete(&grants, "full").await?;
    let enough = grant(&scene, &[&name])?;
    assert_eq!((enough.code, enough.stderr.as_str()), (0, ""));
    assert_eq!(enough.stdout, output.stdout);
    Ok(())
}

#[tokio::test]
async fn wrong_arguments_are_told() -> Result<()> {
    let scene = STAGE.scene("grant-wrong").await?;
    let home = &scene.home;
    let kubeconfig = scene.setting.control_plane.kubeconfig();
    let kubeconfig = kubeconfig.display().to_string();
    let cases = [
        // The advice has the flags that choose the cluster.
        (
            vec!["absent", "-n", home, "--kubeconfig", &kubeconfig],
            format!("kubectl --kubeconfig {kubeconfig} -n {home} get replications"),
        ),
        (
            vec!["clusterreplication/a"],
            "needs no ReplicationGrant".to_owned(),
        ),
        (vec!["a/b/c"], "NAMESPACE/NAME".to_owned()),
        (
            vec!["absent", "-n", home],
            format!("there is no Replication {home}/absent"),
        ),
        (vec![], "NAMESPACE/NAME".to_owned()),
    ];
    for (args, words) in cases {
        let output = grant(&scene, &args)?;
        assert_eq!(output.code, 2, "{args:?}");
        assert!(
            output.stderr.contains(&words),
            "{args:?}: {}",
            output.stderr
        );
    }
    // A user who may not read the Replication.
    let user = scene.setting.control_plane.user(&scene.tag, &[])?;
    let name = format!("{home}/a");
    eventually(SOON, "the refusal", || async {
        let output = run(&scene.setting.control_plane, Some(&user), &["grant", &name])?;
        ensure!(
            output.stderr.contains("you have no permission"),
            "{}",
            output.stderr
        );
        Ok(Some(()))
    })
    .await
}
