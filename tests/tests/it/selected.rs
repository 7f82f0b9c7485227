//! Sources that a label selector finds: they appear, disappear, and are too many. A selector never
//! finds a copy.

use anyhow::{Context, Result, bail};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use kube::api::{ListParams, PostParams};
use mimeo_tests::scenario::{
    RuleSpec, SOON, Scene, Setting, apply, condition, delete, merge, of, value, wait_gone,
};
use mimeo_tests::{ControlPlane, Pair, create_secret, eventually};
use serde_json::{Value, json};

use crate::stages::PLAIN as STAGE;

fn labelled() -> Value {
    json!({"matchLabels": {"copy": "yes"}})
}

/// Sets or removes the label that the rule selects.
async fn label(scene: &Scene<'_>, name: &str, copied: bool) -> Result<()> {
    let label = copied.then_some("yes");
    merge(
        &scene.secrets(&scene.home),
        name,
        json!({"metadata": {"labels": {"copy": label}}}),
    )
    .await?;
    Ok(())
}

#[tokio::test]
async fn sources_come_and_go_with_their_labels() -> Result<()> {
    let scene = STAGE.scene("labels").await?;
    let namespaces = scene.namespaces(2).await?;
    for name in ["a", "b", "c"] {
        scene.secret(name, &[("k", name)]).await?;
    }
    label(&scene, "a", true).await?;
    let rule = scene
        .rule()
        .selected("v1", "Secret", &scene.home, &labelled());
    rule.set("retentionPolicy", json!({"sourceGracePeriodSeconds": 0}))
        .create(&scene.client)
        .await?;
    scene.wait_counts(&scene.tag, [2, 2, 0]).await?;
    label(&scene, "b", true).await?;
    for namespace in &namespaces {
        scene
            .wait_secret(namespace, "b", |copy| {
                value(copy, "k").as_deref() == Some("b")
            })
            .await?;
    }
    merge(
        &scene.secrets(&scene.home),
        "b",
        json!({"stringData": {"k": "new"}}),
    )
    .await?;
    for namespace in &namespaces {
        scene
            .wait_secret(namespace, "b", |copy| {
                value(copy, "k").as_deref() == Some("new")
            })
            .await?;
    }
    label(&scene, "a", false).await?;
    delete(&scene.secrets(&scene.home), "b").await?;
    label(&scene, "c", true).await?;
    for namespace in &namespaces {
        wait_gone(scene.secrets(namespace), "a").await?;
        wait_gone(scene.secrets(namespace), "b").await?;
        scene.wait_secret(namespace, "c", |_| true).await?;
    }
    scene.wait_synced(&scene.tag).await?;
    assert!(
        scene.secrets(&scene.home).get_opt("a").await?.is_some(),
        "a source that isn't selected is left alone"
    );
    Ok(())
}

#[tokio::test]
async fn what_was_lost_while_no_reconciler_ran_goes_and_nothing_else_is_written() -> Result<()> {
    let mut setting = Setting::start(ControlPlane::builder().audit(true), Pair::builder()).await?;
    let (namespaces, tag, home) = {
        let scene = setting.scene("restart").await?;
        let namespaces = scene.namespaces(3).await?;
        for name in ["a", "b", "c"] {
            scene.secret(name, &[("k", name)]).await?;
            label(&scene, name, true).await?;
        }
        let rule = scene
            .rule()
            .selected("v1", "Secret", &scene.home, &labelled());
        rule.set("retentionPolicy", json!({"sourceGracePeriodSeconds": 0}))
            .create(&scene.client)
            .await?;
        scene.wait_counts(&scene.tag, [9, 9, 0]).await?;
        (namespaces, scene.tag.clone(), scene.home.clone())
    };
    let client = setting.control_plane.client().await?;
    let mut old = setting.pair.reconciler.take().context("no reconciler")?;
    assert!(old.program.stop(SOON).await?.success());
    delete(&of::<Secret>(&client, &home), "a").await?;
    merge(
        &of::<Secret>(&client, &home),
        "b",
        json!({"metadata": {"labels": {"copy": null}}}),
    )
    .await?;
    let mark = setting.control_plane.audit_mark().await?;
    setting.pair.start_reconciler().await?;
    for namespace in &namespaces {
        wait_gone(of::<Secret>(&client, namespace), "a").await?;
        wait_gone(of::<Secret>(&client, namespace), "b").await?;
    }
    setting.wait_synced(&client, &tag).await?;
    let events = setting.control_plane.audit_since(&mark).await?;
    let writes = events
        .iter()
        .filter(|event| setting.is_ours(event) && event.is_write() && event.resource == "secrets");
    let verbs: Vec<&str> = writes.map(|event| event.verb.as_str()).collect();
    assert_eq!(verbs, ["delete"; 6]);
    Ok(())
}

/// Every namespace gets these objects from a controller. A copy would only be in the way.
#[tokio::test]
async fn root_certificates_are_selected_by_nobody() -> Result<()> {
    let scene = STAGE.scene("roots").await?;
    let (one, two) = (scene.namespace().await?, scene.namespace().await?);
    for namespace in [&scene.home, &one, &two] {
        for name in ["kube-root-ca.crt", "openshift-service-ca.crt"] {
            let map = json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": namespace, "name": name},
                "data": {"ca.crt": namespace},
            });
            apply(&scene.client, &map).await?;
        }
    }
    let maps: Api<ConfigMap> = of(&scene.client, &scene.home);
    let map = json!({"metadata": {"name": "settings"}, "data": {"k": "v"}});
    maps.create(&PostParams::default(), &serde_json::from_value(map)?)
        .await?;
    let rule = scene
        .rule()
        .selected("v1", "ConfigMap", &scene.home, &json!({}))
        .set("podGate", json!("Required"));
    rule.create(&scene.client).await?;
    scene.wait_counts(&scene.tag, [2, 2, 0]).await?;
    let root: ConfigMap = of(&scene.client, &one).get("kube-root-ca.crt").await?;
    assert_eq!(root.data.context("no data")?["ca.crt"], one, "as it was");
    // A rule that names the object can copy it.
    let named = scene
        .rule()
        .source("v1", "ConfigMap", &scene.home, "kube-root-ca.crt")
        .named("root-of-home");
    RuleSpec {
        name: format!("{}-named", scene.tag),
        ..named
    }
    .create(&scene.client)
    .await?;
    eventually(SOON, "a copy of the named source", || async {
        of::<ConfigMap>(&scene.client, &two)
            .get_opt("root-of-home")
            .await
            .map_err(Into::into)
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn of_too_many_the_oldest_are_copied() -> Result<()> {
    let scene = STAGE.scene("many").await?;
    let namespace = scene.namespace().await?;
    let maps: Api<ConfigMap> = of(&scene.client, &scene.home);
    let create = async |number: usize| {
        let map = json!({"metadata": {"name": format!("m{number:03}"), "labels": {"copy": "yes"}}, "data": {"k": "v"}});
        maps.create(&PostParams::default(), &serde_json::from_value(map)?)
            .await
            .map_err(anyhow::Error::from)
    };
    stream::iter((0..256).map(create))
        .buffer_unordered(16)
        .try_collect::<Vec<_>>()
        .await?;
    scene
        .rule()
        .selected("v1", "ConfigMap", &scene.home, &labelled())
        .create(&scene.client)
        .await?;
    scene.wait_counts(&scene.tag, [256, 256, 0]).await?;
    // Creation times have whole seconds. The next object must be younger than all of these.
    let last = maps.get("m255").await?.metadata.creation_timestamp;
    eventually(SOON, "the next second", || async {
        let probe: ConfigMap =
            serde_json::from_value(json!({"metadata": {"generateName": "probe-"}}))?;
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let now = maps
            .create(&dry_run, &probe)
            .await?
            .metadata
            .creation_timestamp;
        Ok((now > last).then_some(()))
    })
    .await?;
    stream::iter((256..300).map(create))
        .buffer_unordered(16)
        .try_collect::<Vec<_>>()
        .await?;
    let message = scene
        .wait_condition(&scene.tag, "SourcesFound", "False", "SourceRefused")
        .await
        .map(|status| {
            condition(&status, "SourcesFound").map(|condition| condition.message.clone())
        })?
        .context("no condition")?;
    assert!(message.contains("Mimeo copies at most 256"), "{message}");
    let copies: Api<ConfigMap> = of(&scene.client, &namespace);
    let count = async || {
        let copies = copies
            .list(&ListParams::default().labels("app.kubernetes.io/managed-by=mimeo"))
            .await?;
        anyhow::Ok(copies.items)
    };
    let names: Vec<String> = count()
        .await?
        .into_iter()
        .filter_map(|map| map.metadata.name)
        .collect();
    assert!(
        names.len() == 256 && names.iter().all(|name| **name < *"m256"),
        "{names:?}"
    );
    // When one source is deleted, a further one counts.
    delete(&maps, "m000").await?;
    eventually(SOON, "one that there was no room for", || async {
        let names: Vec<String> = count()
            .await?
            .into_iter()
            .filter_map(|map| map.metadata.name)
            .collect();
        if names.iter().any(|name| **name >= *"m256") {
            Ok(Some(()))
        } else {
            bail!("{names:?}")
        }
    })
    .await
}

#[tokio::test]
async fn a_selector_finds_no_copy() -> Result<()> {
    let scene = STAGE.scene("loop").await?;
    let (first, second) = (scene.namespace().await?, scene.namespace().await?);
    let grow = |name: &str, from: &str, to: &str| {
        mimeo_tests::scenario::rule(&format!("{}-{name}", scene.tag))
            .selected("v1", "Secret", from, &labelled())
            .target(json!({"namespaces": [to]}))
            .named(&format!("$(source.name)-{name}"))
    };
    let there = grow("there", &first, &second);
    let back = grow("back", &second, &first);
    there.create(&scene.client).await?;
    back.create(&scene.client).await?;
    create_secret(&scene.client, &first, "s", &[("k", "one")]).await?;
    merge(
        &scene.secrets(&first),
        "s",
        json!({"metadata": {"labels": {"copy": "yes"}}}),
    )
    .await?;
    for content in ["one", "two"] {
        merge(
            &scene.secrets(&first),
            "s",
            json!({"stringData": {"k": content}}),
        )
        .await?;
        scene
            .wait_secret(&second, "s-there", |copy| {
                value(copy, "k").as_deref() == Some(content)
            })
            .await?;
    }
    scene.wait_synced(&there.name).await?;
    // The copy has the label that this rule selects.
    scene
        .wait_condition(&back.name, "SourcesFound", "False", "SourceNotFound")
        .await?;
    for (namespace, want) in [(&first, vec!["s"]), (&second, vec!["s-there"])] {
        let secrets = scene
            .secrets(namespace)
            .list(&ListParams::default())
            .await?;
        let names: Vec<String> = secrets
            .items
            .into_iter()
            .filter_map(|secret| secret.metadata.name)
            .collect();
        assert_eq!(names, want);
    }
    Ok(())
}
