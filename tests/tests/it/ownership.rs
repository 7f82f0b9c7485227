//! Field ownership of copies, as recorded in `managedFields`. A user with permissions only in the
//! copy's namespace can change these records. The copy still becomes as its rule and strategy say.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams};
use mimeo_tests::managed::{clear, keys, managers, ours, write_as};
use mimeo_tests::scenario::{
    RuleSpec, SOON, Scene, Setting, annotation, label, merge, put, uid, value, version, wait_for,
};
use mimeo_tests::tenant::Tenant;
use mimeo_tests::{ControlPlane, Pair, eventually};
use serde_json::json;

use crate::stages::PLAIN as STAGE;

const REGISTRY: &str = "registry";

/// Writes a rule with one copy of a source with two keys. Returns the copies for a user with
/// permissions only in their namespace.
async fn begun(scene: &Scene<'_>, strategy: &str) -> Result<(RuleSpec, Api<Secret>)> {
    scene
        .secret(REGISTRY, &[("password", "example"), ("user", "robot")])
        .await?;
    let namespace = scene.namespace().await?;
    let rule = scene
        .rule()
        .secret(&scene.home, REGISTRY)
        .set("strategy", json!(strategy));
    rule.create(&scene.client).await?;
    scene.wait_synced(&rule.name).await?;
    let copies = Tenant::editor_of(scene, &namespace).await?.secrets();
    assert_eq!(managers(&copies.get(REGISTRY).await?), ["mimeo/Apply"]);
    Ok((rule, copies))
}

/// Removes the key `user` from the source. The copy must lose it, too.
async fn lose_user(scene: &Scene<'_>, copies: &Api<Secret>) -> Result<Secret> {
    merge(
        &scene.secrets(&scene.home),
        REGISTRY,
        json!({"data": {"user": null}}),
    )
    .await?;
    wait_for(copies.clone(), REGISTRY.to_owned(), |copy| {
        !keys(copy).contains(&"user")
    })
    .await
}

#[tokio::test]
async fn a_copy_that_nobody_owns_any_more_is_ours_again_and_loses_what_its_source_loses()
-> Result<()> {
    let scene = STAGE.scene("cleared").await?;
    let (rule, copies) = begun(&scene, "Apply").await?;
    let before = copies.get(REGISTRY).await?;
    clear(&copies, REGISTRY).await?;
    let copy = wait_for(copies.clone(), REGISTRY.to_owned(), ours).await?;
    assert_eq!(
        (uid(&copy), keys(&copy)),
        (uid(&before), vec!["password", "user"]),
        "the same object"
    );
    let copy = lose_user(&scene, &copies).await?;
    assert_eq!(managers(&copy), ["mimeo/Apply"]);
    // The edit clears `managedFields` and adds a key at once. Then the owner of a key that the
    // source lost is unknown.
    let hidden =
        json!({"metadata": {"managedFields": [{}]}, "data": {"stale": "eA==", "password": "eA=="}});
    merge(&copies, REGISTRY, hidden).await?;
    let right = |copy: &Secret| {
        keys(copy) == ["password"]
            && value(copy, "password").as_deref() == Some("example")
            && ours(copy)
    };
    wait_for(copies.clone(), REGISTRY.to_owned(), right).await?;
    scene.wait_synced(&rule.name).await?;
    Ok(())
}

#[tokio::test]
async fn a_key_that_another_tool_owns_as_well_goes_with_its_source_and_what_it_added_stays()
-> Result<()> {
    let scene = STAGE.scene("co-owned").await?;
    let (rule, copies) = begun(&scene, "Apply").await?;
    let equal = json!({
        "metadata": {"name": REGISTRY, "labels": {"team": "blue"}}, "data": {"user": "cm9ib3Q=", "extra": "eA=="},
    });
    let copy = write_as(&copies, REGISTRY, "kubectl", true, equal).await?;
    assert_eq!(managers(&copy), ["kubectl/Apply", "mimeo/Apply"]);
    let copy = lose_user(&scene, &copies).await?;
    assert_eq!(
        (keys(&copy), label(&copy, "team")),
        (vec!["extra", "password"], Some("blue"))
    );
    scene.wait_synced(&rule.name).await?;
    put(
        &scene.secrets(&scene.home),
        REGISTRY,
        &[("password", "rotated")],
    )
    .await?;
    let rotated = |copy: &Secret| value(copy, "password").as_deref() == Some("rotated");
    let copy = wait_for(copies.clone(), REGISTRY.to_owned(), rotated).await?;
    assert_eq!(
        (keys(&copy), label(&copy, "team")),
        (vec!["extra", "password"], Some("blue")),
        "theirs is theirs"
    );
    Ok(())
}

#[tokio::test]
async fn who_writes_under_mimeos_name_or_forges_its_entries_changes_nothing_for_long() -> Result<()>
{
    let scene = STAGE.scene("forged").await?;
    let (rule, copies) = begun(&scene, "Apply").await?;
    let right = |copy: &Secret| value(copy, "password").as_deref() == Some("example") && ours(copy);
    for apply in [false, true] {
        let forged = json!({"metadata": {"name": REGISTRY}, "data": {"password": "eA=="}});
        write_as(&copies, REGISTRY, "mimeo", apply, forged).await?;
        let copy = wait_for(copies.clone(), REGISTRY.to_owned(), right).await?;
        assert_eq!(keys(&copy), ["password", "user"]);
    }
    // One forged entry takes fields from Mimeo. Another entry, of an equal manager name, has the
    // rest.
    let copy = copies.get(REGISTRY).await?;
    let entry = copy
        .metadata
        .managed_fields
        .as_ref()
        .and_then(|all| all.first())
        .context("an entry")?;
    let mut less = serde_json::to_value(entry)?;
    let mut rest = less.clone();
    rest["operation"] = json!("Update");
    rest["fieldsV1"] = json!({"f:data": {"f:user": {}}});
    less["fieldsV1"]["f:data"]
        .as_object_mut()
        .context("data")?
        .remove("f:user");
    merge(
        &copies,
        REGISTRY,
        json!({"metadata": {"managedFields": [less, rest]}}),
    )
    .await?;
    let owns_all = |copy: &Secret| {
        let entries = copy.metadata.managed_fields.iter().flatten();
        let own = entries.filter(|entry| entry.operation.as_deref() == Some("Apply"));
        let mut fields = own.filter_map(|entry| entry.fields_v1.as_ref());
        fields.any(|fields| fields.0.pointer("/f:data/f:user").is_some())
    };
    wait_for(copies.clone(), REGISTRY.to_owned(), owns_all).await?;
    let copy = lose_user(&scene, &copies).await?;
    assert_eq!(managers(&copy), ["mimeo/Apply"]);
    scene.wait_synced(&rule.name).await?;
    Ok(())
}

#[tokio::test]
async fn with_strategy_replace_a_copy_has_nothing_that_others_add() -> Result<()> {
    let scene = STAGE.scene("replace").await?;
    let (rule, copies) = begun(&scene, "Replace").await?;
    let before = copies.get(REGISTRY).await?;
    let added = json!({
        "metadata": {
            "name": REGISTRY, "labels": {"team": "blue"}, "annotations": {"example.com/a": "b"}, "finalizers": ["example.com/f"],
        },
        "data": {"extra": "eA==", "user": "eA=="},
    });
    for apply in [false, true] {
        write_as(&copies, REGISTRY, "kubectl", apply, added.clone()).await?;
        let copy = wait_for(copies.clone(), REGISTRY.to_owned(), |copy| {
            keys(copy) == ["password", "user"] && value(copy, "user").as_deref() == Some("robot")
        })
        .await?;
        assert_eq!(
            (label(&copy, "team"), annotation(&copy, "example.com/a")),
            (None, None)
        );
        assert_eq!(copy.metadata.labels, before.metadata.labels);
        assert_eq!(copy.metadata.annotations, before.metadata.annotations);
        assert_eq!(
            copy.metadata.finalizers.iter().flatten().count(),
            1,
            "that is for its owner to remove"
        );
    }
    merge(&copies, REGISTRY, json!({"metadata": {"finalizers": null}})).await?;
    // Fields without an owner count as fields of other clients.
    merge(
        &copies,
        REGISTRY,
        json!({"metadata": {"managedFields": [{}]}, "data": {"extra": "eA=="}}),
    )
    .await?;
    wait_for(copies.clone(), REGISTRY.to_owned(), |copy| {
        ours(copy) && keys(copy) == ["password", "user"]
    })
    .await?;
    let copy = lose_user(&scene, &copies).await?;
    assert_eq!(
        (uid(&copy), managers(&copy)),
        (uid(&before), vec!["mimeo/Apply".to_owned()])
    );
    scene.wait_synced(&rule.name).await?;
    Ok(())
}

#[tokio::test]
async fn an_object_that_is_overwritten_under_replace_keeps_nothing() -> Result<()> {
    let scene = STAGE.scene("overwrite").await?;
    scene.secret(REGISTRY, &[("password", "example")]).await?;
    let namespace = scene.namespace().await?;
    let owner = Tenant::editor_of(&scene, &namespace).await?;
    mimeo_tests::create_secret(
        &owner.client,
        &namespace,
        REGISTRY,
        &[("password", "theirs"), ("extra", "x")],
    )
    .await?;
    let copies = owner.secrets();
    let rule = scene.rule().secret(&scene.home, REGISTRY);
    let rule = rule
        .set("strategy", json!("Replace"))
        .set("conflictPolicy", json!("Overwrite"));
    rule.create(&scene.client).await?;
    let right = |copy: &Secret| {
        keys(copy) == ["password"] && value(copy, "password").as_deref() == Some("example")
    };
    wait_for(copies.clone(), REGISTRY.to_owned(), right).await?;
    scene.wait_synced(&rule.name).await?;
    Ok(())
}

#[tokio::test]
async fn a_live_copy_changes_from_one_strategy_to_another_and_back() -> Result<()> {
    let scene = STAGE.scene("strategies").await?;
    let (rule, copies) = begun(&scene, "Apply").await?;
    let added = || merge(&copies, REGISTRY, json!({"data": {"extra": "eA=="}}));
    let source = scene.secrets(&scene.home);
    let first = uid(&copies.get(REGISTRY).await?);
    added().await?;
    // With `Replace`, earlier additions of other clients are removed. With `Apply` again, later
    // additions stay.
    rule.clone()
        .set("strategy", json!("Replace"))
        .replace(&scene.client)
        .await?;
    let copy = wait_for(copies.clone(), REGISTRY.to_owned(), |copy| {
        keys(copy) == ["password", "user"]
    })
    .await?;
    assert_eq!(annotation(&copy, "mimeo.dev/strategy"), Some("Replace"));
    rule.replace(&scene.client).await?;
    let shared = |copy: &Secret| annotation(copy, "mimeo.dev/strategy").is_none();
    wait_for(copies.clone(), REGISTRY.to_owned(), shared).await?;
    added().await?;
    let copy = lose_user(&scene, &copies).await?;
    assert_eq!(
        keys(&copy),
        ["extra", "password"],
        "no entry is left that would keep it"
    );
    scene.wait_synced(&rule.name).await?;
    // With `CreateOnce`, the copy belongs to its owner. Mimeo repairs nothing any more.
    rule.clone()
        .set("strategy", json!("CreateOnce"))
        .replace(&scene.client)
        .await?;
    scene.wait_synced(&rule.name).await?;
    let changed = put(&copies, REGISTRY, &[("password", "owners")]).await?;
    put(&source, REGISTRY, &[("password", "rotated")]).await?;
    let follower = scene.namespace().await?;
    scene
        .wait_secret(&follower, REGISTRY, |copy| {
            value(copy, "password").as_deref() == Some("rotated")
        })
        .await?;
    assert_eq!(
        version(&copies.get(REGISTRY).await?),
        version(&changed),
        "the source was seen, and the copy left"
    );
    rule.clone()
        .set("strategy", json!("Replace"))
        .replace(&scene.client)
        .await?;
    let right = |copy: &Secret| {
        keys(copy) == ["password"] && value(copy, "password").as_deref() == Some("rotated")
    };
    let copy = wait_for(copies.clone(), REGISTRY.to_owned(), right).await?;
    assert_eq!(uid(&copy), first, "the same object throughout");
    scene.wait_synced(&rule.name).await?;
    Ok(())
}

#[tokio::test]
async fn what_is_exclusive_and_denied_takes_nothing_from_others() -> Result<()> {
    let scene = STAGE.scene("denied").await?;
    let (rule, copies) = begun(&scene, "Replace").await?;
    rule.clone().denying().replace(&scene.client).await?;
    scene
        .wait_condition(&rule.name, "PodGateActive", "True", "Active")
        .await?;
    let denied = |copy: &Secret| label(copy, "mimeo.dev/drift") == Some("deny");
    wait_for(copies.clone(), REGISTRY.to_owned(), denied).await?;
    for change in [
        json!({"data": {"extra": "eA=="}}),
        json!({"metadata": {"labels": {"team": "blue"}}}),
    ] {
        let refused = copies
            .patch(REGISTRY, &PatchParams::default(), &Patch::Merge(change))
            .await;
        let refused = refused.err().context("it was let through")?.to_string();
        assert!(refused.contains("copies.mimeo.dev"), "{refused}");
    }
    // A request without a change is admitted, and so are Mimeo's own writes.
    eventually(SOON, "a change of nothing", || async {
        let nothing = Patch::Merge(json!({"data": {"user": "cm9ib3Q="}}));
        Ok(Some(
            copies
                .patch(REGISTRY, &PatchParams::default(), &nothing)
                .await?,
        ))
    })
    .await?;
    lose_user(&scene, &copies).await?;
    Ok(())
}

/// No process has seen that the copies were Mimeo's. Their `managedFields` are empty or forged.
#[tokio::test]
async fn what_was_hidden_while_nothing_ran_is_found_by_the_content_or_on_the_rules_period()
-> Result<()> {
    let mut setting = Setting::start(ControlPlane::builder().audit(true), Pair::builder()).await?;
    let (tag, namespaces, copies) = {
        let scene = setting.scene("hidden").await?;
        scene.secret(REGISTRY, &[("password", "example")]).await?;
        let namespaces = scene.namespaces(3).await?;
        let rule = scene
            .rule()
            .secret(&scene.home, REGISTRY)
            .set("resyncSeconds", json!(10));
        rule.create(&scene.client).await?;
        scene.wait_synced(&rule.name).await?;
        let mut copies = Vec::new();
        for namespace in &namespaces {
            copies.push(Tenant::editor_of(&scene, namespace).await?.secrets());
        }
        (scene.tag.clone(), namespaces, copies)
    };
    let [cleared, changed, lied] = [0, 1, 2].map(|index: usize| copies[index].clone());
    setting.pair.webhooks.clear();
    let mut reconciler = setting.pair.reconciler.take().context("no reconciler")?;
    assert!(reconciler.program.stop(SOON).await?.success());
    clear(&cleared, REGISTRY).await?;
    let theirs = json!({"metadata": {"managedFields": [{}]}, "data": {"password": "eA=="}});
    let theirs = merge(&changed, REGISTRY, theirs).await?;
    let entries = lied.get(REGISTRY).await?.metadata.managed_fields;
    put(&lied, REGISTRY, &[("password", "x")]).await?;
    let lie = merge(
        &lied,
        REGISTRY,
        json!({"metadata": {"managedFields": entries}}),
    )
    .await?;
    assert_eq!(
        (managers(&lie), value(&lie, "password").as_deref()),
        (vec!["mimeo/Apply".to_owned()], Some("x"))
    );

    setting.pair.start_reconciler().await?;
    wait_for(cleared.clone(), REGISTRY.to_owned(), ours).await?;
    let right = |copy: &Secret| value(copy, "password").as_deref() == Some("example");
    wait_for(lied, REGISTRY.to_owned(), right).await?;
    let scene = setting.scene("hidden").await?;
    let status = scene.wait_counts(&tag, [3, 2, 1]).await?;
    let failure = &status.failures[0];
    assert_eq!(
        (failure.namespace.as_str(), failure.reason.as_str()),
        (&*namespaces[1], "Conflict")
    );
    assert_eq!(
        version(&changed.get(REGISTRY).await?),
        version(&theirs),
        "its owner is unknown"
    );

    // Mimeo verifies the copy and does not write it.
    let (before, mark) = (
        cleared.get(REGISTRY).await?,
        setting.control_plane.audit_mark().await?,
    );
    eventually(SOON, "the copy to be verified", || async {
        let events = setting.control_plane.audit_since(&mark).await?;
        let mut verified = events
            .iter()
            .filter(|event| setting.is_ours(event) && event.verb == "patch");
        Ok(verified
            .find(|event| event.namespace == namespaces[0] && event.code == 200)
            .map(|_| ()))
    })
    .await?;
    assert_eq!(version(&cleared.get(REGISTRY).await?), version(&before));
    Ok(())
}
