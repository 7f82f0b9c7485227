//! Limits of other writers under each strategy: forged and co-owned fields under `Replace`, and an
//! owner that removes all of Mimeo's labels and annotations under `CreateOnce`.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{Api, Client, ResourceExt as _};
use mimeo_tests::managed::{clear, keys, managers, ours, write_as};
use mimeo_tests::scenario::{
    RuleSpec, SOON, Scene, Setting, annotation, any, delete, label, merge, of, put, rule, uid,
    value, version, wait_condition, wait_for,
};
use mimeo_tests::{
    AuditEvent, ControlPlane, Pair, create_namespace, create_secret, eventually, unique,
};
use serde_json::json;

use crate::stages::PLAIN as STAGE;

const REGISTRY: &str = "registry";

/// The source loses a key. Another tool claims to own that key of the copy, too.
#[tokio::test]
async fn what_another_tool_owns_as_well_goes_from_an_exclusive_copy_with_its_source() -> Result<()>
{
    let scene = STAGE.scene("co-owned").await?;
    let (copies, first) = exclusive(&scene).await?;
    let equal = json!({"metadata": {"name": REGISTRY}, "data": {"user": "cm9ib3Q=", "password": "ZXhhbXBsZQ=="}});
    for apply in [false, true] {
        let copy = write_as(&copies, REGISTRY, "kubectl", apply, equal.clone()).await?;
        assert_eq!(keys(&copy), ["password", "user"]);
    }
    scene.wait_synced(&scene.tag).await?;
    merge(
        &scene.secrets(&scene.home),
        REGISTRY,
        json!({"data": {"user": null}}),
    )
    .await?;
    let copy = wait_for(copies.clone(), REGISTRY.to_owned(), |copy| {
        keys(copy) == ["password"]
    })
    .await?;
    assert_eq!(uid(&copy), first);
    // If the tool applies the key again, Mimeo removes it again. Fields that equal the copy do no
    // harm.
    write_as(&copies, REGISTRY, "kubectl", true, equal).await?;
    wait_for(copies, REGISTRY.to_owned(), |copy| {
        keys(copy) == ["password"] && ours(copy)
    })
    .await?;
    scene.wait_synced(&scene.tag).await?;
    Ok(())
}

/// The forged entry of Mimeo's manager claims a foreign field, or no field at all.
#[tokio::test]
async fn forged_entries_hide_nothing_in_an_exclusive_copy() -> Result<()> {
    let scene = STAGE.scene("forged").await?;
    let (copies, first) = exclusive(&scene).await?;
    let good = copies.get(REGISTRY).await?;
    let right = |copy: &Secret| {
        let same = (
            &copy.data,
            &copy.metadata.labels,
            &copy.metadata.annotations,
        );
        same == (
            &good.data,
            &good.metadata.labels,
            &good.metadata.annotations,
        )
    };
    let entry = serde_json::to_value(good.managed_fields().first().context("no entry")?)?;
    let mut more = entry.clone();
    more["fieldsV1"]["f:data"]["f:extra"] = json!({});
    let mut less = entry.clone();
    less["fieldsV1"] = json!({"f:type": {}});
    let mut other = entry.clone();
    other["manager"] = json!("somebody");
    for (about, entries) in [
        ("it owns that, too", json!([more])),
        ("it owns hardly anything", json!([less])),
        ("somebody else is it", json!([other])),
        ("both", json!([less, other])),
    ] {
        let lie = json!({"metadata": {"managedFields": entries, "labels": {"team": "blue"}}, "data": {"extra": "eA=="}});
        merge(&copies, REGISTRY, lie).await?;
        let copy = wait_for(copies.clone(), REGISTRY.to_owned(), |copy| {
            right(copy) && ours(copy)
        })
        .await
        .context(about)?;
        assert_eq!(
            (uid(&copy), label(&copy, "team")),
            (first.clone(), None),
            "{about}"
        );
        scene.wait_synced(&scene.tag).await.context(about)?;
    }
    assert_eq!(managers(&copies.get(REGISTRY).await?), ["mimeo/Apply"]);
    Ok(())
}

/// Writes a rule with one exclusive copy. Returns the copy's API and uid.
async fn exclusive(scene: &Scene<'_>) -> Result<(Api<Secret>, String)> {
    scene
        .secret(REGISTRY, &[("password", "example"), ("user", "robot")])
        .await?;
    let namespace = scene.namespace().await?;
    let rule = scene
        .rule()
        .secret(&scene.home, REGISTRY)
        .set("strategy", json!("Replace"));
    rule.create(&scene.client).await?;
    scene.wait_synced(&rule.name).await?;
    let copies = scene.secrets(&namespace);
    let first = uid(&copies.get(REGISTRY).await?);
    Ok((copies, first))
}

/// The annotations and managers no longer show that Mimeo created the object. But the namespace
/// records it.
#[tokio::test]
async fn what_was_created_once_is_its_owners_though_no_mark_is_left_of_it() -> Result<()> {
    let mut setting = Setting::start(ControlPlane::builder().audit(true), Pair::builder()).await?;
    let client = setting.control_plane.client().await?;
    let (tag, home, namespaces) = {
        let scene = setting.scene("seeds").await?;
        scene.secret(REGISTRY, &[("token", "one")]).await?;
        let namespaces = scene.namespaces(4).await?;
        let once = scene
            .rule()
            .secret(&scene.home, REGISTRY)
            .set("strategy", json!("CreateOnce"));
        once.create(&client).await?;
        let pace = rule(&format!("{}-pace", scene.tag))
            .to_label("scene", &scene.tag)
            .named("pace");
        pace.secret(&scene.home, REGISTRY)
            .named("pace")
            .create(&client)
            .await?;
        scene.wait_synced(&scene.tag).await?;
        (scene.tag.clone(), scene.home.clone(), namespaces)
    };
    let remembers = |namespace: &Namespace| annotation(namespace, "mimeo.dev/seeded").is_some();
    for namespace in &namespaces {
        wait_for(Api::all(client.clone()), namespace.clone(), remembers).await?;
    }
    let at = |index: usize| of::<Secret>(&client, &namespaces[index]);
    let bare = json!({"metadata": {"labels": null, "annotations": null, "managedFields": [{}]}});
    let mark = setting.control_plane.audit_mark().await?;
    let cleared = clear(&at(0), REGISTRY).await?;
    merge(&at(1), REGISTRY, bare.clone()).await?;
    let theirs = put(&at(1), REGISTRY, &[("token", "theirs")]).await?;
    // One copy is cleared and deleted while the reconciler runs, another while it does not run.
    for index in [2, 3] {
        merge(&at(index), REGISTRY, bare.clone()).await?;
    }
    delete(&at(2), REGISTRY).await?;
    let follow = async |token: &str| -> Result<()> {
        put(&of(&client, &home), REGISTRY, &[("token", token)]).await?;
        for namespace in &namespaces {
            let followed = |copy: &Secret| value(copy, "token").as_deref() == Some(token);
            wait_for(
                of::<Secret>(&client, namespace),
                "pace".to_owned(),
                followed,
            )
            .await?;
        }
        Ok(())
    };
    follow("two").await?;
    let mut reconciler = setting.pair.reconciler.take().context("no reconciler")?;
    assert!(reconciler.program.stop(SOON).await?.success());
    delete(&at(3), REGISTRY).await?;
    setting.pair.start_reconciler().await?;
    follow("three").await?;

    setting.wait_synced(&client, &tag).await?;
    let found = [
        version(&at(0).get(REGISTRY).await?),
        version(&at(1).get(REGISTRY).await?),
    ];
    assert_eq!(found, [version(&cleared), version(&theirs)]);
    for index in [2, 3] {
        assert!(at(index).get_opt(REGISTRY).await?.is_none(), "{index}");
    }
    let events = setting.control_plane.audit_since(&mark).await?;
    let writes = |event: &&AuditEvent| {
        setting.is_ours(event)
            && event.is_write()
            && event.name == REGISTRY
            && event.resource == "secrets"
    };
    let writes: Vec<_> = events.iter().filter(writes).collect();
    assert!(writes.is_empty(), "{writes:#?}");
    // The rule is deleted, and the objects stay.
    delete(
        &any(&client, "mimeo.dev/v1alpha1", "ClusterReplication", None)?,
        &tag,
    )
    .await?;
    follow("four").await?;
    assert_eq!(version(&at(0).get(REGISTRY).await?), version(&cleared));
    Ok(())
}

/// An exclusive copy becomes its owner's, who changes and deletes it. Then it becomes a shared copy
/// again. The rule changes while the reconciler runs, or while it does not.
#[tokio::test]
async fn exclusive_copies_become_their_owners_and_shared_ones_again_also_while_nothing_runs()
-> Result<()> {
    let mut setting = Setting::start(ControlPlane::builder(), Pair::builder()).await?;
    let client = setting.control_plane.client().await?;
    let (tag, home, shared, namespaces) = {
        let scene = setting.scene("live").await?;
        scene
            .secret(REGISTRY, &[("password", "zero"), ("user", "robot")])
            .await?;
        (
            scene.tag.clone(),
            scene.home.clone(),
            scene.rule().secret(&scene.home, REGISTRY),
            scene.namespaces(4).await?,
        )
    };
    let at = |index: usize| of::<Secret>(&client, &namespaces[index]);
    let [changed, deleted, left, foreign] = [at(0), at(1), at(2), at(3)];
    let in_the_way = create_secret(
        &client,
        &namespaces[3],
        REGISTRY,
        &[("password", "foreign")],
    )
    .await?;
    let exclusive = shared.clone().denying();
    let once = shared.clone().set("strategy", json!("CreateOnce"));
    exclusive.create(&client).await?;
    for (down, token) in [(false, "one"), (true, "two")] {
        change(&mut setting, &client, &exclusive, down).await?;
        for copies in [&changed, &deleted, &left] {
            let exclusive = |copy: &Secret| {
                keys(copy) == ["password", "user"]
                    && annotation(copy, "mimeo.dev/strategy") == Some("Replace")
            };
            wait_for(copies.clone(), REGISTRY.to_owned(), exclusive).await?;
        }
        change(&mut setting, &client, &once, down).await?;
        // Mimeo also leaves the foreign object, so the rule has nothing more to do.
        setting.wait_synced(&client, &tag).await?;
        for namespace in &namespaces[..3] {
            let remembers =
                |namespace: &Namespace| annotation(namespace, "mimeo.dev/seeded").is_some();
            wait_for(Api::all(client.clone()), namespace.clone(), remembers).await?;
        }
        // Nothing is denied any more once the webhook knows the change.
        eventually(SOON, "the owner's change", || async {
            Ok(Some(
                put(
                    &changed,
                    REGISTRY,
                    &[("password", "owners"), ("extra", "owners")],
                )
                .await?,
            ))
        })
        .await?;
        delete(&deleted, REGISTRY).await?;
        // After another start, only the namespace records it.
        change(&mut setting, &client, &once, down).await?;
        let before = [
            version(&changed.get(REGISTRY).await?),
            version(&left.get(REGISTRY).await?),
        ];
        put(&of(&client, &home), REGISTRY, &[("password", token)]).await?;
        // A newer source and a newer namespace have a copy. So Mimeo has seen the other namespaces
        // by then.
        let follower = unique(&tag);
        create_namespace(&client, &follower, &[("scene", &tag)]).await?;
        let has = |copy: &Secret| value(copy, "password").as_deref() == Some(token);
        wait_for(of::<Secret>(&client, &follower), REGISTRY.to_owned(), has).await?;
        setting.wait_synced(&client, &tag).await?;
        assert_eq!(
            [
                version(&changed.get(REGISTRY).await?),
                version(&left.get(REGISTRY).await?)
            ],
            before,
            "{token}"
        );
        assert!(
            deleted.get_opt(REGISTRY).await?.is_none(),
            "{token}: it came back"
        );

        change(&mut setting, &client, &shared, down).await?;
        for copies in [&changed, &deleted, &left] {
            wait_for(copies.clone(), REGISTRY.to_owned(), |copy| {
                has(copy) && ours(copy)
            })
            .await
            .context(token)?;
        }
        assert_eq!(
            keys(&changed.get(REGISTRY).await?),
            ["extra", "password", "user"],
            "the owner's additions stay"
        );
        wait_condition(&client, &tag, ["Ready", "False", "CopiesFailed"]).await?;
        assert_eq!(
            version(&foreign.get(REGISTRY).await?),
            version(&in_the_way),
            "it was never ours"
        );
    }
    Ok(())
}

/// Gives the rule another spec, while the reconciler runs or while it is `down`.
async fn change(setting: &mut Setting, client: &Client, rule: &RuleSpec, down: bool) -> Result<()> {
    if !down {
        return rule.replace(client).await;
    }
    let mut reconciler = setting.pair.reconciler.take().context("no reconciler")?;
    assert!(reconciler.program.stop(SOON).await?.success());
    rule.replace(client).await?;
    setting.pair.start_reconciler().await
}
