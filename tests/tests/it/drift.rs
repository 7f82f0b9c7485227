//! `driftPolicy: Deny`: only Mimeo may change, extend or delete a copy. Everything else keeps
//! working.

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::Status;
use mimeo_tests::scenario::{
    RuleSpec, SOON, Scene, annotation, apply, delete, label, merge, of, put, relabel, uid, value,
    version, wait_for, wait_gone,
};
use mimeo_tests::tenant::Tenant;
use mimeo_tests::traffic::refusal;
use mimeo_tests::{AuditEvent, create_secret, eventually};
use serde_json::{Value, json};

use crate::stages::PLAIN as STAGE;

const REGISTRY: &str = "registry";

/// The annotation that names the rule of a copy.
const RULE: &str = "mimeo.dev/rule";

/// Writes a rule that denies drift and waits for its one copy.
async fn guarded(scene: &Scene<'_>) -> Result<(RuleSpec, String)> {
    scene
        .secret(REGISTRY, &[("password", "example"), ("user", "robot")])
        .await?;
    let namespace = scene.namespace().await?;
    let rule = scene.rule().secret(&scene.home, REGISTRY).denying();
    rule.create(&scene.client).await?;
    scene.wait_synced(&rule.name).await?;
    // By then the webhook knows the rule, and the API server uses the webhook's new configuration.
    scene
        .wait_condition(&rule.name, "PodGateActive", "True", "Active")
        .await?;
    Ok((rule, namespace))
}

fn patch(value: Value) -> Result<Patch<Value>> {
    Ok(if value.is_array() {
        Patch::Json(serde_json::from_value(value)?)
    } else {
        Patch::Merge(value)
    })
}

/// Returns the refusal, if there is one. It must come from Mimeo's webhook.
fn judged<T>(outcome: kube::Result<T>) -> Result<Option<Box<Status>>> {
    match outcome {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status))
            if status.code == 403 && status.message.contains("copies.mimeo.dev") =>
        {
            Ok(Some(status))
        }
        Err(error) => Err(error).context("refused for another reason"),
    }
}

/// Sends a request that Mimeo's webhook must refuse, and returns the refusal.
async fn refused<T, F>(attempt: impl FnMut() -> F) -> Result<Box<Status>>
where
    F: Future<Output = kube::Result<T>>,
{
    let refusal = refusal(attempt).await?;
    judged::<T>(Err(refusal))?.context("no refusal")
}

#[tokio::test]
async fn what_mimeo_keeps_in_a_copy_nobody_else_changes() -> Result<()> {
    let scene = STAGE.scene("kept").await?;
    let (rule, namespace) = guarded(&scene).await?;
    let mark = scene.setting.control_plane.audit_mark().await?;
    let before = scene.secrets(&namespace).get(REGISTRY).await?;
    // The policy holds for a user with the role `edit` and for the cluster admin.
    let owner = Tenant::editor_of(&scene, &namespace).await?;
    for secrets in [owner.secrets(), scene.secrets(&namespace)] {
        nothing_is_changed(&rule, &secrets).await?;
    }
    let after = scene.secrets(&namespace).get(REGISTRY).await?;
    // The API server may carry out a request if a busy webhook answers too late.
    let events = scene.setting.control_plane.audit_since(&mark).await?;
    let unasked =
        |event: &AuditEvent| event.namespace == namespace && !event.passed_over.is_empty();
    if !events.iter().any(unasked) {
        assert_eq!(
            version(&before),
            version(&after),
            "nothing of it was stored"
        );
    }
    Ok(())
}

async fn nothing_is_changed(rule: &RuleSpec, secrets: &Api<Secret>) -> Result<()> {
    let params = PatchParams::default();
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    for (about, params, change) in [
        ("a value", &params, json!({"data": {"password": "eA=="}})),
        (
            "in a dry run, too",
            &dry_run,
            json!({"data": {"password": "eA=="}}),
        ),
        ("a key", &params, json!({"data": {"password": null}})),
        (
            "the label that the API server asks by",
            &params,
            json!({"metadata": {"labels": {"mimeo.dev/drift": null}}}),
        ),
        (
            "all labels",
            &params,
            json!([{"op": "remove", "path": "/metadata/labels"}]),
        ),
        (
            "whose copy it is",
            &params,
            json!({"metadata": {"annotations": {"mimeo.dev/rule": "x"}}}),
        ),
        (
            "who owns what",
            &params,
            json!({"metadata": {"managedFields": [{}]}}),
        ),
        (
            "an owner that isn't there: the garbage collector would delete it",
            &params,
            json!({"metadata": {"ownerReferences": [{
                "apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "00000000-0000-4000-8000-000000000001",
            }]}}),
        ),
        (
            "that and a value",
            &params,
            json!({"metadata": {"managedFields": []}, "data": {"password": "eA=="}}),
        ),
    ] {
        let change = patch(change)?;
        let status = refused(|| secrets.patch(REGISTRY, params, &change))
            .await
            .context(about)?;
        assert!(
            status
                .message
                .contains(&format!("ClusterReplication/{}", rule.name)),
            "{about}: {}",
            status.message
        );
    }
    for manager in ["somebody", "mimeo"] {
        let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": REGISTRY}, "data": {"password": "eA=="}});
        let (forced, object) = (PatchParams::apply(manager).force(), Patch::Apply(&object));
        refused(|| secrets.patch(REGISTRY, &forced, &object))
            .await
            .context(manager)?;
    }
    deletion_is_refused(secrets, REGISTRY).await?;
    let (params, all) = (DeleteParams::default(), ListParams::default());
    refused(|| secrets.delete_collection(&params, &all))
        .await
        .context("deleted with all others")?;
    Ok(())
}

async fn deletion_is_refused(secrets: &Api<Secret>, name: &str) -> Result<()> {
    let params = DeleteParams::default();
    refused(|| secrets.delete(name, &params))
        .await
        .context("deleted")?;
    Ok(())
}

#[tokio::test]
async fn what_others_add_is_refused_and_what_the_rule_wants_passes() -> Result<()> {
    let scene = STAGE.scene("passes").await?;
    let (rule, namespace) = guarded(&scene).await?;
    let owner = Tenant::editor_of(&scene, &namespace).await?;
    let secrets = owner.secrets();
    for added in [
        json!({"data": {"extra": "eA=="}}),
        json!({"metadata": {"labels": {"team": "blue"}}}),
        json!({"metadata": {"annotations": {"note": "x"}}}),
        json!({"metadata": {"finalizers": ["example.com/keep"]}}),
    ] {
        let (about, params, added) = (added.to_string(), PatchParams::default(), patch(added)?);
        refused(|| secrets.patch(REGISTRY, &params, &added))
            .await
            .context(about)?;
    }
    put(
        &scene.secrets(&scene.home),
        REGISTRY,
        &[("password", "rotated")],
    )
    .await?;
    let copy = scene
        .wait_secret(&namespace, REGISTRY, |copy| {
            value(copy, "password").as_deref() == Some("rotated")
        })
        .await?;
    assert_eq!((label(&copy, "team"), value(&copy, "extra")), (None, None));
    // An object of another client is not a copy, even with Mimeo's labels and annotations.
    let forged = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {
            "name": "forged", "namespace": namespace, "labels": {"mimeo.dev/drift": "deny"},
            "annotations": {"mimeo.dev/rule": format!("ClusterReplication/{}", rule.name)},
        },
    });
    apply(&owner.client, &forged).await?;
    put(&secrets, "forged", &[("a", "b")]).await?;
    delete(&secrets, "forged").await?;
    // A namespace is deleted with all its objects.
    delete(&Api::<Namespace>::all(scene.client.clone()), &namespace).await?;
    wait_gone(scene.secrets(&namespace), REGISTRY).await?;
    // A copy that its rule no longer wants is not protected. Anyone may delete it, and so may
    // Mimeo.
    let other = scene.namespace().await?;
    scene.wait_secret(&other, REGISTRY, |_| true).await?;
    relabel(&scene.client, &other, "scene", None).await?;
    wait_gone(scene.secrets(&other), REGISTRY).await
}

/// A user who may write an object can give it all that a copy has. If that were enough, no user could
/// change or delete the object.
#[tokio::test]
async fn an_object_that_names_a_source_which_no_selector_finds_is_not_guarded() -> Result<()> {
    let scene = STAGE.scene("planted").await?;
    let namespace = scene.namespace().await?;
    let source = json!({
        "apiVersion": "v1", "kind": "Secret", "stringData": {"a": "b"},
        "metadata": {"name": "found", "namespace": scene.home, "labels": {"copy": "yes"}},
    });
    apply(&scene.client, &source).await?;
    scene.secret("planted", &[("a", "b")]).await?;
    let labels = json!({"matchLabels": {"copy": "yes"}});
    let rule = scene
        .rule()
        .selected("v1", "Secret", &scene.home, &labels)
        .denying();
    rule.create(&scene.client).await?;
    scene.wait_synced(&rule.name).await?;
    scene
        .wait_condition(&rule.name, "PodGateActive", "True", "Active")
        .await?;
    let secrets = scene.secrets(&namespace);
    deletion_is_refused(&secrets, "found").await?;
    let planted = json!({
        "apiVersion": "v1", "kind": "Secret", "stringData": {"a": "b"},
        "metadata": {
            "name": "planted", "labels": {"mimeo.dev/drift": "deny"},
            "annotations": {
                "mimeo.dev/rule": format!("ClusterReplication/{}", rule.name),
                "mimeo.dev/source": format!("v1/Secret/{}/planted", scene.home),
            },
        },
    });
    let (by_mimeo, planted) = (PatchParams::apply("mimeo"), Patch::Apply(&planted));
    secrets.patch("planted", &by_mimeo, &planted).await?;
    put(&secrets, "planted", &[("a", "c")]).await?;
    delete(&secrets, "planted").await
}

/// With the strategy Apply, the tenant could open the policy by a field of its own.
#[tokio::test]
async fn a_tenant_adds_no_field_of_its_own_to_a_guarded_network_policy() -> Result<()> {
    let scene = STAGE.scene("closed").await?;
    let namespace = scene.namespace().await?;
    let (api_version, kind) = ("networking.k8s.io/v1", "NetworkPolicy");
    let closed = json!({
        "apiVersion": api_version, "kind": kind, "metadata": {"namespace": scene.home, "name": "closed"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
    });
    apply(&scene.client, &closed).await?;
    let rule = scene
        .rule()
        .source(api_version, kind, &scene.home, "closed");
    let shared = rule
        .clone()
        .set("driftPolicy", json!("Deny"))
        .create(&scene.client)
        .await;
    let shared = format!(
        "{:#}",
        shared
            .err()
            .context("Deny with strategy Apply was stored")?
    );
    ensure!(
        shared.contains("driftPolicy Deny needs strategy Replace"),
        "{shared}"
    );
    let rule = rule.denying();
    rule.create(&scene.client).await?;
    scene.wait_synced(&rule.name).await?;
    scene
        .wait_condition(&rule.name, "PodGateActive", "True", "Active")
        .await?;

    let owner = Tenant::editor_of(&scene, &namespace).await?;
    let policies: Api<NetworkPolicy> = of(&owner.client, &namespace);
    let open = json!({"spec": {"ingress": [{}]}});
    let all = json!({"apiVersion": api_version, "kind": kind, "spec": {"ingress": [{}]}});
    for (about, params, change) in [
        ("a merge", PatchParams::default(), Patch::Merge(open)),
        (
            "an apply",
            PatchParams::apply("owner"),
            Patch::Apply(all.clone()),
        ),
        (
            "an apply by force",
            PatchParams::apply("owner").force(),
            Patch::Apply(all),
        ),
        (
            "a patch",
            PatchParams::default(),
            patch(json!([{"op": "add", "path": "/spec/ingress", "value": [{}]}]))?,
        ),
        (
            "another type",
            PatchParams::default(),
            patch(json!([{"op": "add", "path": "/spec/policyTypes/-", "value": "Egress"}]))?,
        ),
    ] {
        refused(|| policies.patch("closed", &params, &change))
            .await
            .context(about)?;
    }
    let copy = policies.get("closed").await?;
    let ingress = copy.spec.and_then(|spec| spec.ingress).unwrap_or_default();
    assert!(ingress.is_empty(), "{ingress:?}");
    Ok(())
}

/// Waits until the webhook lets a change of the copy through.
async fn let_through(secrets: &Api<Secret>) -> Result<()> {
    eventually(SOON, "the change to be let through", || async {
        let change = json!({"data": {"password": "eA=="}});
        match judged(
            secrets
                .patch(REGISTRY, &PatchParams::default(), &patch(change)?)
                .await,
        )? {
            None => Ok(Some(())),
            Some(status) => bail!("{}", status.message),
        }
    })
    .await
}

#[tokio::test]
async fn a_suspended_rule_and_one_that_repairs_deny_nothing() -> Result<()> {
    let scene = STAGE.scene("lifted").await?;
    let (rule, namespace) = guarded(&scene).await?;
    let owner = Tenant::editor_of(&scene, &namespace).await?;
    let secrets = owner.secrets();
    rule.clone()
        .set("suspend", json!(true))
        .replace(&scene.client)
        .await?;
    let_through(&secrets).await?;
    let kept = |copy: &Secret| value(copy, "password").as_deref() == Some("example");
    rule.replace(&scene.client).await?;
    wait_for(secrets.clone(), REGISTRY.to_owned(), kept).await?;

    rule.set("driftPolicy", json!("Repair"))
        .replace(&scene.client)
        .await?;
    wait_for(secrets.clone(), REGISTRY.to_owned(), |copy| {
        label(copy, "mimeo.dev/drift").is_none()
    })
    .await?;
    let_through(&secrets).await?;
    wait_for(secrets, REGISTRY.to_owned(), kept).await?;
    Ok(())
}

/// The webhook does not watch the objects that the selectors of tenants find.
#[tokio::test]
async fn of_all_that_a_tenant_selects_every_copy_is_kept() -> Result<()> {
    const COPIES: usize = 40;
    let scene = STAGE.scene("selected").await?;
    let tenant = Tenant::editor(&scene).await?;
    for number in 0..COPIES {
        tenant.labelled(&format!("s{number:02}"), "one").await?;
    }
    let spec = json!({
        "sources": [{"apiVersion": "v1", "kind": "Secret", "selector": {"matchLabels": {"copy": "yes"}}}],
        "targets": [{"namespaces": [tenant.home], "copyName": "copy-of-$(source.name)"}],
        "strategy": "Replace", "driftPolicy": "Deny",
    });
    tenant.writes("replications", "r", &spec).await?;
    eventually(SOON, "all copies", || async {
        let status = tenant.status("r", "Ready", "Synced").await?;
        let synced = status.copies.map(|copies| copies.synced);
        ensure!(synced == Some(i32::try_from(COPIES)?), "{synced:?}");
        Ok(Some(()))
    })
    .await?;
    let secrets = Tenant::editor_of(&scene, &tenant.home).await?.secrets();
    for number in 0..COPIES {
        let name = format!("copy-of-s{number:02}");
        // The webhook may not yet know the rule and whether its author has the permission.
        eventually(SOON, format!("{name} is kept"), || async {
            let dry_run = PatchParams {
                dry_run: true,
                ..PatchParams::default()
            };
            let change = patch(json!({"data": {"token": "eA=="}}))?;
            Ok(Some(
                judged(secrets.patch(&name, &dry_run, &change).await)?.context("let through")?,
            ))
        })
        .await?;
        deletion_is_refused(&secrets, &name).await.context(name)?;
    }
    Ok(())
}

/// In its own namespace, a tenant may have a copy of any name, also the name of an object that a
/// cluster controller keeps there.
#[tokio::test]
async fn no_tenants_rule_keeps_the_cluster_from_what_is_its_own() -> Result<()> {
    let scene = STAGE.scene("system").await?;
    let tenant = Tenant::editor(&scene).await?;
    let maps: Api<ConfigMap> = of(&tenant.client, &tenant.home);
    apply(&tenant.client, &config_map(&tenant.home, "mine", "mine")).await?;
    apply(
        &tenant.client,
        &config_map(&tenant.home, "theirs", "theirs"),
    )
    .await?;
    let spec = json!({
        "sources": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "mine"}],
        "targets": [{"namespaces": [tenant.home], "copyName": "theirs"}],
        "conflictPolicy": "Overwrite", "strategy": "Replace", "driftPolicy": "Deny",
    });
    tenant.writes("replications", "r", &spec).await?;
    tenant.status("r", "Ready", "Synced").await?;
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let changed = async |maps: &Api<ConfigMap>, own: &Api<ConfigMap>| -> Result<_> {
        let mut map = own.get("theirs").await?;
        map.data
            .get_or_insert_default()
            .insert("a".into(), "theirs".into());
        judged(maps.replace("theirs", &dry_run, &map).await)
    };
    eventually(
        SOON,
        "a user with the role edit may not change the copy",
        || async { Ok(Some(changed(&maps, &maps).await?.context("let through")?)) },
    )
    .await?;
    let control_plane = &scene.setting.control_plane;
    let groups = [
        "system:serviceaccounts:kube-system",
        "system:serviceaccounts",
    ];
    let publisher = control_plane.user(
        "system:serviceaccount:kube-system:root-ca-cert-publisher",
        &groups,
    )?;
    let theirs: Api<ConfigMap> = of(&publisher.client().await?, &tenant.home);
    assert_eq!(changed(&theirs, &maps).await?, None);
    Ok(())
}

/// The webhook is not called for subresources. Mimeo fixes their changes to its own fields
/// afterwards, and leaves all other fields.
#[tokio::test]
async fn a_scale_and_a_status_pass_and_what_they_take_from_mimeo_is_put_right() -> Result<()> {
    let scene = STAGE.scene("subresources").await?;
    let namespace = scene.namespace().await?;
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "web:1"}]}});
    let source = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": scene.home, "name": "web"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template},
    });
    apply(&scene.client, &source).await?;
    let rule = scene
        .rule()
        .source("apps/v1", "Deployment", &scene.home, "web")
        .denying();
    rule.create(&scene.client).await?;
    scene.wait_synced(&rule.name).await?;
    scene
        .wait_condition(&rule.name, "PodGateActive", "True", "Active")
        .await?;

    let owner = Tenant::editor_of(&scene, &namespace).await?;
    let deployments: Api<Deployment> = of(&owner.client, &namespace);
    let (params, three) = (PatchParams::default(), json!({"spec": {"replicas": 3}}));
    let change = Patch::Merge(&three);
    refused(|| deployments.patch("web", &params, &change))
        .await
        .context("through the object itself")?;
    let scaled = deployments
        .patch_scale("web", &params, &Patch::Merge(&three))
        .await
        .context("a scale")?;
    assert_eq!(scaled.spec.and_then(|spec| spec.replicas), Some(3));
    let replicas = |copy: &Deployment| copy.spec.as_ref().and_then(|spec| spec.replicas);
    wait_for(deployments.clone(), "web".to_owned(), |copy| {
        replicas(copy) == Some(1)
    })
    .await?;

    // A request to the status subresource can also change annotations. Only operators of the
    // cluster have this permission.
    let (all, marked) = (
        of::<Deployment>(&scene.client, &namespace),
        annotation(&deployments.get("web").await?, RULE).map(str::to_owned),
    );
    assert!(marked.is_some());
    let theirs = json!([{"type": "example.com/Checked", "status": "True"}]);
    let status =
        json!({"metadata": {"annotations": {RULE: "x"}}, "status": {"conditions": theirs}});
    let written = all
        .patch_status("web", &params, &Patch::Merge(&status))
        .await
        .context("a status")?;
    assert_eq!(annotation(&written, RULE), Some("x"));
    let checked = |copy: &Deployment| {
        let conditions = copy
            .status
            .iter()
            .filter_map(|status| status.conditions.as_ref())
            .flatten();
        conditions
            .into_iter()
            .any(|one| one.type_ == "example.com/Checked")
    };
    let right = |copy: &Deployment| annotation(copy, RULE) == marked.as_deref();
    let copy = wait_for(deployments, "web".to_owned(), right).await?;
    assert!(checked(&copy), "a status is its writer's");
    scene.wait_synced(&rule.name).await?;
    Ok(())
}

fn config_map(namespace: &str, name: &str, value: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": namespace, "name": name}, "data": {"a": value},
    })
}

#[tokio::test]
async fn a_copy_that_is_being_deleted_can_go() -> Result<()> {
    let scene = STAGE.scene("leaves").await?;
    create_secret(
        &scene.client,
        &scene.home,
        REGISTRY,
        &[("password", "example")],
    )
    .await?;
    let namespace = scene.namespace().await?;
    let rule = scene
        .rule()
        .secret(&scene.home, REGISTRY)
        .denying()
        .set("transform", json!({"finalizers": ["example.com/keep"]}));
    rule.create(&scene.client).await?;
    scene.wait_synced(&rule.name).await?;
    rule.delete(&scene.client).await?;
    let secrets = Tenant::editor_of(&scene, &namespace).await?.secrets();
    let leaving = |copy: &Secret| copy.metadata.deletion_timestamp.is_some();
    wait_for(secrets.clone(), REGISTRY.to_owned(), leaving).await?;
    merge(
        &secrets,
        REGISTRY,
        json!({"metadata": {"finalizers": null}}),
    )
    .await?;
    wait_gone(secrets, REGISTRY).await
}

/// No user can add an owner reference to a guarded copy. An owner from before the guard still takes
/// the copy with it, through the garbage collector. No one else can delete the copy.
#[tokio::test]
async fn a_guarded_copy_goes_with_an_owner_that_it_had_before_and_comes_again_without() -> Result<()>
{
    let scene = STAGE.scene("owned").await?;
    scene.secret(REGISTRY, &[("password", "example")]).await?;
    let namespace = scene.namespace().await?;
    let rule = scene.rule().secret(&scene.home, REGISTRY);
    rule.create(&scene.client).await?;
    scene.wait_synced(&rule.name).await?;
    let tenant = Tenant::editor_of(&scene, &namespace).await?;
    let secrets = tenant.secrets();
    let owner = apply(&tenant.client, &config_map(&namespace, "owner", "x")).await?;
    let owned =
        json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid(&owner)}]);
    let before = merge(
        &secrets,
        REGISTRY,
        json!({"metadata": {"ownerReferences": owned}}),
    )
    .await?;

    rule.clone().denying().replace(&scene.client).await?;
    scene.wait_synced(&rule.name).await?;
    scene
        .wait_condition(&rule.name, "PodGateActive", "True", "Active")
        .await?;
    let copy = secrets.get(REGISTRY).await?;
    assert_eq!(
        (label(&copy, "mimeo.dev/drift"), uid(&copy)),
        (Some("deny"), uid(&before))
    );
    assert!(
        copy.metadata
            .owner_references
            .is_some_and(|owners| owners.len() == 1),
        "others' fields stay"
    );
    for secrets in [&secrets, &scene.secrets(&namespace)] {
        deletion_is_refused(secrets, REGISTRY).await?;
    }

    let mark = scene.setting.control_plane.audit_mark().await?;
    delete(&of::<ConfigMap>(&tenant.client, &namespace), "owner").await?;
    let anew = wait_for(secrets.clone(), REGISTRY.to_owned(), |copy| {
        uid(copy) != uid(&before)
    })
    .await?;
    assert_eq!(
        (
            value(&anew, "password").as_deref(),
            label(&anew, "mimeo.dev/drift")
        ),
        (Some("example"), Some("deny"))
    );
    assert_eq!(anew.metadata.owner_references, None);
    deletion_is_refused(&secrets, REGISTRY).await?;
    let events = scene.setting.control_plane.audit_since(&mark).await?;
    let deleted = events
        .iter()
        .filter(|event| event.verb == "delete" && event.name == REGISTRY && event.code == 200);
    let who: Vec<_> = deleted
        .filter(|event| event.namespace == namespace)
        .map(|event| &*event.user)
        .collect();
    assert_eq!(
        who,
        ["system:serviceaccount:kube-system:generic-garbage-collector"]
    );
    Ok(())
}

/// A large copy is guarded like a small one, although the webhook must read more.
#[tokio::test]
async fn however_much_is_added_to_a_copy_it_is_kept() -> Result<()> {
    let scene = STAGE.scene("much").await?;
    let (_, namespace) = guarded(&scene).await?;
    let owner = Tenant::editor_of(&scene, &namespace).await?;
    let secrets = owner.secrets();
    let keys: Value = (0..22_000)
        .map(|number| (number.to_string(), json!("")))
        .collect();
    let with = |key: &str, value: Value| {
        let mut keys = keys.clone();
        keys[key] = value;
        keys
    };
    for (about, change) in [
        (
            "many keys, and one of ours",
            json!({"data": with("password", json!("eA=="))}),
        ),
        (
            "many labels, and one of ours",
            json!({"metadata": {"labels": with("mimeo.dev/drift", Value::Null)}}),
        ),
        (
            "many annotations, and one of ours",
            json!({"metadata": {"annotations": with("mimeo.dev/rule", json!("x"))}}),
        ),
        (
            "the largest of values",
            json!({"data": {"password": "eA==", "more": ByteString(vec![0; 900 << 10])}}),
        ),
        ("many keys", json!({"data": keys})),
        ("many labels", json!({"metadata": {"labels": keys}})),
        (
            "a finalizer",
            json!({"metadata": {"finalizers": ["example.com/keep"]}}),
        ),
    ] {
        let params = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let change = patch(change)?;
        refused(|| secrets.patch(REGISTRY, &params, &change))
            .await
            .context(about)?;
    }
    Ok(())
}

/// Nearly as many entries as an API server accepts in one request.
const ENTRIES: usize = 20_000;

/// A user who may write the copy may also write its `managedFields`. The API server processes these
/// entries before it calls the webhook. Neither invalid entries nor a very large number of them is
/// a way past the guard.
#[tokio::test]
async fn whatever_is_forged_of_who_owns_what_a_copy_is_kept() -> Result<()> {
    let scene = STAGE.scene("entries").await?;
    let (rule, namespace) = guarded(&scene).await?;
    let secrets = Tenant::editor_of(&scene, &namespace).await?.secrets();
    let owned = async || -> Result<Vec<Value>> {
        let entries = secrets
            .get(REGISTRY)
            .await?
            .metadata
            .managed_fields
            .unwrap_or_default();
        Ok(entries.iter().map(|entry| json!(entry)).collect())
    };
    let forged = async |more: &[Value]| -> Result<Value> {
        let entries = [&owned().await?[..], more].concat();
        Ok(json!({"metadata": {"managedFields": entries}}))
    };
    let entry = |manager: &str, operation: &str| {
        json!({
            "manager": manager, "operation": operation, "apiVersion": "v1", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {"f:password": {}}},
        })
    };
    let nameless = ["Apply", "Update"].map(|operation| entry("", operation));
    let many: Vec<Value> = (0..ENTRIES)
        .map(|number| entry(&format!("{number:05}"), "Apply"))
        .collect();
    let params = PatchParams::default();

    // These entries are so many that the API server refuses them, alone or with another change.
    for (about, entries) in [("without a name", &nameless[..]), ("many", &many)] {
        let mut change = forged(entries).await?;
        let alone = patch(change.clone())?;
        refused(|| secrets.patch(REGISTRY, &params, &alone))
            .await
            .context(about)?;
        change["data"] = json!({"password": "eA=="});
        let change = patch(change)?;
        refused(|| secrets.patch(REGISTRY, &params, &change))
            .await
            .context(about)?;
    }
    assert_eq!(owned().await?.len(), 1);
    nothing_is_changed(&rule, &secrets).await
}
