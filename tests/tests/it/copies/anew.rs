//! Copies that the API server lets no client change in place. Mimeo deletes and recreates each one
//! separately. `events.rs` has the reports.

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use kube::core::DynamicObject;
use mimeo_tests::AuditMark;
use mimeo_tests::scenario::{
    Scene, any, apply, delete, label, merge, of, put, rule, uid, value, version, wait_for,
};
use serde_json::{Value, json};

use super::{BELONGS_TO, STAGE};

/// The API server refuses these changes for every client.
#[tokio::test]
async fn a_copy_that_cannot_be_changed_in_place_is_made_anew() -> Result<()> {
    let scene = STAGE.scene("anew").await?;
    let namespace = scene.namespace().await?;
    let secrets = scene.secrets(&namespace);
    let rule = |type_: &str| {
        scene
            .rule()
            .secret(&scene.home, "registry")
            .set("transform", json!({"type": type_}))
    };
    scene.secret("registry", &[("token", "one")]).await?;
    rule("example.com/one").create(&scene.client).await?;
    scene.wait_synced(&scene.tag).await?;
    let first = uid(&secrets.get("registry").await?);

    // A change of the type.
    rule("example.com/two").replace(&scene.client).await?;
    let copy = scene
        .wait_secret(&namespace, "registry", |copy| {
            copy.type_.as_deref() == Some("example.com/two")
        })
        .await?;
    assert_ne!(uid(&copy), first);
    scene.wait_synced(&scene.tag).await?;

    // A tenant makes the copy immutable. It stays so until the rule wants another content.
    merge(&secrets, "registry", json!({"immutable": true})).await?;
    let before = uid(&secrets.get("registry").await?);
    put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    let copy = scene
        .wait_secret(&namespace, "registry", |copy| {
            value(copy, "token").as_deref() == Some("two")
        })
        .await?;
    assert_ne!(uid(&copy), before);
    Ok(())
}

fn map(scene: &Scene<'_>, color: &str, immutable: bool) -> Value {
    let metadata = json!({"name": "colors", "namespace": scene.home});
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"color": color}, "immutable": immutable,
    })
}

fn is(color: &str) -> impl Fn(&ConfigMap) -> bool {
    move |map| {
        map.data
            .as_ref()
            .and_then(|data| data.get("color"))
            .is_some_and(|found| found == color)
    }
}

/// Returns Mimeo's deletes and applies in a namespace since the mark, with their codes. Refused
/// requests are left out.
async fn writes(
    scene: &Scene<'_>,
    mark: &AuditMark,
    namespace: &str,
) -> Result<Vec<(String, u16)>> {
    let events = scene.setting.control_plane.audit_since(mark).await?;
    let ours = events
        .into_iter()
        .filter(|event| scene.setting.is_ours(event) && event.is_write() && event.code < 300);
    Ok(ours
        .filter(|event| event.namespace == namespace)
        .map(|event| (event.verb, event.code))
        .collect())
}

#[tokio::test]
async fn copies_of_an_immutable_source_follow_the_one_that_takes_its_place() -> Result<()> {
    let scene = STAGE.scene("immutable").await?;
    let namespaces = scene.namespaces(3).await?;
    let sources: Api<ConfigMap> = of(&scene.client, &scene.home);
    apply(&scene.client, &map(&scene, "red", true)).await?;
    let rule = scene
        .rule()
        .source("v1", "ConfigMap", &scene.home, "colors");
    rule.create(&scene.client).await?;
    scene.wait_synced(&scene.tag).await?;
    let mut before = Vec::new();
    for namespace in &namespaces {
        let copy = of::<ConfigMap>(&scene.client, namespace)
            .get("colors")
            .await?;
        assert_eq!((copy.immutable, is("red")(&copy)), (Some(true), true));
        before.push(uid(&copy));
    }

    // In one namespace, another client creates an immutable object of the name first.
    let [taken, ..] = &namespaces[..] else {
        bail!("no namespaces")
    };
    scene
        .rule()
        .source("v1", "ConfigMap", &scene.home, "colors")
        .set("suspend", json!(true))
        .replace(&scene.client)
        .await?;
    scene
        .wait_condition(&scene.tag, "Ready", "False", "Suspended")
        .await?;
    let copies: Api<ConfigMap> = of(&scene.client, taken);
    delete(&copies, "colors").await?;
    let theirs =
        json!({"metadata": {"name": "colors"}, "data": {"color": "theirs"}, "immutable": true});
    let theirs = copies
        .create(&PostParams::default(), &serde_json::from_value(theirs)?)
        .await?;

    delete(&sources, "colors").await?;
    apply(&scene.client, &map(&scene, "green", true)).await?;
    let mark = scene.setting.control_plane.audit_mark().await?;
    rule.replace(&scene.client).await?;
    for (namespace, before) in namespaces.iter().zip(&before).skip(1) {
        let copies: Api<ConfigMap> = of(&scene.client, namespace);
        let copy = wait_for(copies, "colors".to_owned(), is("green")).await?;
        assert_ne!(uid(&copy), *before);
        assert_eq!(
            (copy.immutable, label(&copy, BELONGS_TO)),
            (Some(true), Some(scene.tag.as_str()))
        );
        let anew = [("delete".to_owned(), 200), ("patch".to_owned(), 201)];
        assert_eq!(
            writes(&scene, &mark, namespace).await?,
            anew,
            "once, and nothing else"
        );
    }
    let status = scene.wait_counts(&scene.tag, [3, 2, 1]).await?;
    assert_eq!(
        (&*status.failures[0].namespace, &*status.failures[0].reason),
        (&**taken, "Conflict")
    );
    assert_eq!(
        version(&copies.get("colors").await?),
        version(&theirs),
        "whoever made it keeps it"
    );

    // Mimeo recreates the copy to make an immutable one mutable. In the other direction it changes
    // the copy in place.
    delete(&sources, "colors").await?;
    apply(&scene.client, &map(&scene, "blue", false)).await?;
    let copies: Api<ConfigMap> = of(&scene.client, &namespaces[1]);
    let blue = wait_for(copies.clone(), "colors".to_owned(), is("blue")).await?;
    assert!(blue.immutable != Some(true));
    apply(&scene.client, &map(&scene, "blue", true)).await?;
    let copy = wait_for(copies, "colors".to_owned(), |copy| {
        copy.immutable == Some(true)
    })
    .await?;
    assert_eq!(uid(&copy), uid(&blue), "that changes in place");
    Ok(())
}

const RBAC: &str = "rbac.authorization.k8s.io";

#[tokio::test]
async fn another_role_or_another_type_of_the_source_makes_its_copies_anew() -> Result<()> {
    let scene = STAGE.scene("role").await?;
    let namespace = scene.namespace().await?;
    let api_version = format!("{RBAC}/v1");
    let binding = |role: &str| {
        json!({
            "apiVersion": api_version, "kind": "RoleBinding", "metadata": {"name": "readers", "namespace": scene.home},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": "readers"}],
        })
    };
    let bindings =
        |namespace: &str| any(&scene.client, &api_version, "RoleBinding", Some(namespace));
    let role =
        |binding: &DynamicObject| binding.data["roleRef"]["name"].as_str().map(str::to_owned);
    let typed = |type_: &str| {
        let metadata = json!({"name": "typed", "namespace": scene.home});
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": type_, "data": {"token": "eA=="}})
    };
    apply(&scene.client, &binding("view")).await?;
    apply(&scene.client, &typed("example.com/one")).await?;
    let name = format!("{}-roles", scene.tag);
    let rule = rule(&name).to_label("scene", &scene.tag).source(
        &api_version,
        "RoleBinding",
        &scene.home,
        "readers",
    );
    let rule = rule.secret(&scene.home, "typed");
    rule.create(&scene.client).await?;
    scene.wait_synced(&name).await?;
    let before = [
        uid(&bindings(&namespace)?.get("readers").await?),
        uid(&scene.secrets(&namespace).get("typed").await?),
    ];

    let mark = scene.setting.control_plane.audit_mark().await?;
    delete(&bindings(&scene.home)?, "readers").await?;
    apply(&scene.client, &binding("edit")).await?;
    delete(&scene.secrets(&scene.home), "typed").await?;
    apply(&scene.client, &typed("example.com/two")).await?;
    let bound = wait_for(bindings(&namespace)?, "readers".into(), move |copy| {
        role(copy).as_deref() == Some("edit")
    })
    .await?;
    let is_two = |copy: &k8s_openapi::api::core::v1::Secret| {
        copy.type_.as_deref() == Some("example.com/two")
    };
    let copy = scene.wait_secret(&namespace, "typed", is_two).await?;
    assert!(!before.contains(&uid(&bound)) && !before.contains(&uid(&copy)));
    let mut writes = writes(&scene, &mark, &namespace).await?;
    writes.sort();
    let want = [
        ("delete", 200),
        ("delete", 200),
        ("patch", 201),
        ("patch", 201),
    ];
    assert_eq!(writes, want.map(|(verb, code)| (verb.to_owned(), code)));
    scene.wait_synced(&name).await?;
    rule.delete(&scene.client)
        .await
        .context("bindings give rights")
}
