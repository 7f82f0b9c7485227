//! Limits of Mimeo: it never writes a source, changes a foreign object, or deletes an object
//! without being asked to.

use anyhow::{Context, Result, bail, ensure};
use http::Request;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use mimeo_api::{Replication, TransformPolicy};
use mimeo_tests::planted::MARK;
use mimeo_tests::scenario::{
    SOON, Scene, Setting, Stage, apply, condition, create, delete, merge, of, put, relabel, rule,
    stranger, uid, value, version, wait_for, wait_gone,
};
use mimeo_tests::tenant::{Tenant, consent, copying, has};
use mimeo_tests::{
    ControlPlane, NAMESPACE, Pair, Replica, create_namespace, create_secret, eventually,
    install_crd, unique,
};
use serde_json::{Value, json};

use crate::pod_gate::{LONG_BUDGET, kubectl_run, labelled};

/// Mimeo collects losses for one second instead of ten, because these tests wait for it.
const QUICK: [&str; 2] = ["--deletion-delay", "1s"];

static STAGE: Stage = Stage::new(
    || ControlPlane::builder().audit(true),
    || {
        Pair::builder()
            .reconciler_args(QUICK)
            .reconciler_args(TRACE)
            .reconciler_args(LONG_BUDGET)
            .webhook_args(TRACE)
            .webhook_args(LONG_BUDGET)
    },
);

/// The programs log and show as much as possible. No content of a Secret may be in it.
const TRACE: [&str; 3] = ["--log-level", "trace", "--debug-endpoints"];

#[tokio::test]
async fn an_object_in_the_way_is_untouched_and_reported_whatever_is_in_it() -> Result<()> {
    let scene = STAGE.scene("way").await?;
    let namespaces = scene.namespaces(4).await?;
    scene
        .secret("registry", &[("token", "one"), ("user", "robin")])
        .await?;
    let contents: [&[(&str, &str)]; 3] = [
        &[("token", "one"), ("user", "robin")],
        &[("token", "theirs"), ("user", "kim")],
        &[("token", "one"), ("user", "robin"), ("more", "yes")],
    ];
    let mut theirs = Vec::new();
    for (namespace, content) in namespaces.iter().zip(contents) {
        let owner = Tenant::editor_of(&scene, namespace).await?;
        theirs.push(create_secret(&owner.client, namespace, "registry", content).await?);
    }
    let mark = scene.setting.control_plane.audit_mark().await?;
    scene
        .rule()
        .secret(&scene.home, "registry")
        .create(&scene.client)
        .await?;

    scene
        .wait_condition(&scene.tag, "Ready", "False", "CopiesFailed")
        .await?;
    let status = scene.wait_counts(&scene.tag, [4, 1, 3]).await?;
    let told: Vec<_> = status
        .failures
        .iter()
        .map(|one| (one.namespace.clone(), one.reason.as_str()))
        .collect();
    let mut want: Vec<_> = namespaces[..3]
        .iter()
        .map(|name| (name.clone(), "Conflict"))
        .collect();
    want.sort();
    assert_eq!(told, want);

    put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    scene
        .wait_secret(&namespaces[3], "registry", |copy| {
            value(copy, "token").as_deref() == Some("two")
        })
        .await?;
    for (namespace, theirs) in namespaces.iter().zip(&theirs) {
        assert_eq!(
            version(&scene.secrets(namespace).get("registry").await?),
            version(theirs)
        );
    }
    // Once the object is deleted, Mimeo writes the copy.
    delete(&scene.secrets(&namespaces[1]), "registry").await?;
    scene
        .wait_secret(&namespaces[1], "registry", |copy| {
            value(copy, "token").as_deref() == Some("two")
        })
        .await?;
    scene.assert_unwritten(&scene.home, &mark).await
}

/// With the strategy Apply, fields that exist only in the overwritten object stay.
#[tokio::test]
async fn an_object_in_the_way_is_overwritten_if_the_rule_says_so_unless_it_is_a_source()
-> Result<()> {
    let scene = STAGE.scene("over").await?;
    let namespaces = scene.namespaces(4).await?;
    let at = |index: usize| scene.secrets(&namespaces[index]);
    scene.secret("registry", &[("token", "one")]).await?;
    let theirs = create_secret(
        &scene.client,
        &namespaces[0],
        "registry",
        &[("token", "theirs"), ("more", "yes")],
    )
    .await?;
    let typed = json!({"metadata": {"name": "registry"}, "type": "example.com/other", "stringData": {"more": "yes"}});
    let typed = at(1)
        .create(&PostParams::default(), &serde_json::from_value(typed)?)
        .await?;
    let source = create_secret(
        &scene.client,
        &namespaces[2],
        "registry",
        &[("token", "theirs")],
    )
    .await?;
    let failing = scene.rule().secret(&scene.home, "registry");
    failing.create(&scene.client).await?;
    // This rule is younger, so it has the lower rank.
    let other = rule(&format!("{}-other", scene.tag)).secret(&namespaces[2], "registry");
    other
        .target(json!({"namespaces": [scene.home]}))
        .named("other")
        .create(&scene.client)
        .await?;
    scene.wait_counts(&scene.tag, [4, 1, 3]).await?;
    failing
        .clone()
        .set("conflictPolicy", json!("Overwrite"))
        .replace(&scene.client)
        .await?;
    let status = scene.wait_counts(&scene.tag, [4, 3, 1]).await?;
    let failures: Vec<_> = status
        .failures
        .iter()
        .map(|one| (&*one.namespace, &*one.reason))
        .collect();
    assert_eq!(failures, [(&*namespaces[2], "Conflict")]);
    assert!(
        status.failures[0].message.contains("the source of a rule"),
        "{status:#?}"
    );
    assert_eq!(version(&at(2).get("registry").await?), version(&source));

    let over = at(0).get("registry").await?;
    assert_eq!(
        (uid(&over), value(&over, "token")),
        (uid(&theirs), Some("one".to_owned()))
    );
    assert_eq!(value(&over, "more").as_deref(), Some("yes"));
    let anew = at(1).get("registry").await?;
    assert_ne!(uid(&anew), uid(&typed));
    assert_eq!(
        (value(&anew, "token").as_deref(), value(&anew, "more")),
        (Some("one"), None)
    );

    // From now on these objects are copies.
    put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    scene
        .wait_secret(&namespaces[0], "registry", |copy| {
            value(copy, "token").as_deref() == Some("two")
        })
        .await?;
    failing.delete(&scene.client).await?;
    wait_gone(at(0), "registry").await?;
    wait_gone(at(1), "registry").await?;
    assert_eq!(version(&at(2).get("registry").await?), version(&source));
    Ok(())
}

#[tokio::test]
async fn an_object_in_the_way_is_adopted_if_it_is_a_copy_already() -> Result<()> {
    let scene = STAGE.scene("adopt").await?;
    let namespaces = scene.namespaces(6).await?;
    let [same, disowned, marked, more, other, different_type] =
        [0, 1, 2, 3, 4, 5].map(|index| scene.secrets(&namespaces[index]));
    let content = [("token", "one"), ("user", "robin")];
    scene.secret("registry", &content).await?;
    let make = |index: usize, content: &'static [(&str, &str)]| {
        create_secret(&scene.client, &namespaces[index], "registry", content)
    };
    let mut before = vec![make(0, &[("token", "one"), ("user", "robin")]).await?];
    merge(
        &same,
        "registry",
        json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": "theirs", "kept": "yes"}}}),
    )
    .await?;
    before.push(make(1, &[("token", "one"), ("user", "robin")]).await?);
    merge(
        &disowned,
        "registry",
        json!({"metadata": {"managedFields": [{}]}}),
    )
    .await?;
    before.push(make(2, &[("token", "old")]).await?);
    let mark = json!({"metadata": {"annotations": {"kubed.appscode.com/origin": "{}"}}});
    merge(&marked, "registry", mark).await?;
    before.push(make(3, &[("token", "one"), ("user", "robin"), ("more", "yes")]).await?);
    before.push(make(4, &[("token", "one"), ("user", "kim")]).await?);
    let typed = json!({"metadata": {"name": "registry"}, "type": "example.com/other", "stringData": {"token": "one", "user": "robin"}});
    before.push(
        different_type
            .create(&PostParams::default(), &serde_json::from_value(typed)?)
            .await?,
    );

    scene
        .rule()
        .secret(&scene.home, "registry")
        .set("conflictPolicy", json!("Adopt"))
        .create(&scene.client)
        .await?;
    let status = scene.wait_counts(&scene.tag, [6, 3, 3]).await?;
    assert!(
        status
            .failures
            .iter()
            .all(|one| one.reason == "Conflict" && one.message.contains("not adopted")),
        "{status:#?}"
    );
    for (secrets, before) in [&same, &disowned, &marked].into_iter().zip(&before) {
        let copy = secrets.get("registry").await?;
        assert_eq!(uid(&copy), uid(before), "adopted in place");
        assert_eq!(
            (
                value(&copy, "token").as_deref(),
                value(&copy, "user").as_deref()
            ),
            (Some("one"), Some("robin"))
        );
        assert_eq!(
            copy.labels()
                .get("app.kubernetes.io/managed-by")
                .map(String::as_str),
            Some("mimeo")
        );
    }
    assert_eq!(
        same.get("registry")
            .await?
            .labels()
            .get("kept")
            .map(String::as_str),
        Some("yes")
    );
    for (secrets, before) in [&more, &other, &different_type]
        .into_iter()
        .zip(&before[3..])
    {
        assert_eq!(version(&secrets.get("registry").await?), version(before));
    }
    Ok(())
}

#[tokio::test]
async fn forged_marks_protect_from_nothing_and_cost_nothing() -> Result<()> {
    let scene = STAGE.scene("forge").await?;
    let real = scene.namespace().await?;
    let [outside, matched, orphaned] =
        ["outside", "matched", "orphaned"].map(|end| format!("{}-{end}", scene.tag));
    scene.secret("registry", &[("token", "one")]).await?;
    let rule = scene.rule().secret(&scene.home, "registry");
    rule.create(&scene.client).await?;
    scene.wait_synced(&scene.tag).await?;
    let copy = scene.secrets(&real).get("registry").await?;
    let mut forged = Secret {
        metadata: ObjectMeta {
            name: Some("registry".to_owned()),
            labels: copy.metadata.labels.clone(),
            annotations: copy.metadata.annotations.clone(),
            ..ObjectMeta::default()
        },
        data: copy.data.clone(),
        ..Secret::default()
    };
    let mut theirs = Vec::new();
    let mut forgers = Vec::new();
    for namespace in [&outside, &matched, &orphaned] {
        create_namespace(&scene.client, namespace, &[]).await?;
        let forger = Tenant::editor_of(&scene, namespace).await?.secrets();
        if namespace == &orphaned {
            let belongs = (
                "mimeo.dev/rule".to_owned(),
                "ClusterReplication/never-was".to_owned(),
            );
            forged
                .metadata
                .annotations
                .get_or_insert_default()
                .extend([belongs]);
        }
        forger.create(&PostParams::default(), &forged).await?;
        // Mimeo does not revert an edit of the forged copy: the owner's change stays.
        theirs.push(put(&forger, "registry", &[("token", "theirs")]).await?);
        forgers.push(forger);
    }
    relabel(&scene.client, &matched, "scene", Some(&scene.tag)).await?;
    let status = scene
        .wait_condition(&scene.tag, "Ready", "False", "CopiesFailed")
        .await?;
    assert_eq!(status.failures.len(), 1);
    assert_eq!(
        (
            status.failures[0].namespace.as_str(),
            status.failures[0].reason.as_str()
        ),
        (&*matched, "Conflict")
    );

    rule.delete(&scene.client).await?;
    wait_gone(scene.secrets(&real), "registry").await?;
    for (namespace, theirs) in [&outside, &matched, &orphaned].into_iter().zip(&theirs) {
        assert_eq!(
            version(&scene.secrets(namespace).get("registry").await?),
            version(theirs),
            "{namespace}"
        );
    }
    // A deleted foreign object is not restored either. Mimeo creates a copy in its place.
    rule.create(&scene.client).await?;
    scene
        .wait_condition(&scene.tag, "Ready", "False", "CopiesFailed")
        .await?;
    delete(&forgers[1], "registry").await?;
    scene
        .wait_secret(&matched, "registry", |copy| {
            value(copy, "token").as_deref() == Some("one")
        })
        .await?;
    Ok(())
}

#[tokio::test]
async fn copies_without_their_label_are_not_taken_for_deleted() -> Result<()> {
    let scene = STAGE.scene("label").await?;
    let namespaces = scene.namespaces(10).await?;
    scene.secret("registry", &[("token", "one")]).await?;
    scene
        .rule()
        .secret(&scene.home, "registry")
        .create(&scene.client)
        .await?;
    scene.wait_synced(&scene.tag).await?;
    let mark = scene.setting.control_plane.audit_mark().await?;
    let mut before = Vec::new();
    for namespace in &namespaces {
        let bare = json!({"metadata": {"labels": null}});
        let owner = Tenant::editor_of(&scene, namespace).await?;
        before.push(uid(&merge(&owner.secrets(), "registry", bare).await?));
    }
    for (namespace, before) in namespaces.iter().zip(before) {
        let labelled = |copy: &Secret| {
            copy.labels()
                .get("app.kubernetes.io/managed-by")
                .is_some_and(|by| by == "mimeo")
        };
        assert_eq!(
            uid(&scene.wait_secret(namespace, "registry", labelled).await?),
            before
        );
    }
    let events = scene.setting.control_plane.audit_since(&mark).await?;
    let deletes = events
        .iter()
        .filter(|event| scene.setting.is_ours(event) && event.verb == "delete");
    assert_eq!(
        deletes
            .filter(|event| namespaces.contains(&event.namespace))
            .count(),
        0
    );
    Ok(())
}

#[tokio::test]
async fn a_copy_from_another_clusters_backup_is_never_collected() -> Result<()> {
    let scene = STAGE.scene("backup").await?;
    let namespace = scene.namespace().await?;
    let cluster = uid(&Api::<Namespace>::all(scene.client.clone())
        .get("kube-system")
        .await?);
    // This rule keeps the watch of Secrets open and records their kind. A copy that is older than
    // the record may belong to a former installation of Mimeo.
    scene.secret("registry", &[("token", "one")]).await?;
    let rule = scene.rule().secret(&scene.home, "registry");
    rule.create(&scene.client).await?;
    scene.wait_synced(&rule.name).await?;
    let owner = Tenant::editor_of(&scene, &namespace).await?;
    for (name, cluster) in [
        ("here", cluster.as_str()),
        ("elsewhere", "5b0c3f9e-8a1d-4b52-9d0e-2f6f5d2c7a11"),
    ] {
        let restored = json!({
            "apiVersion": "v1", "kind": "Secret", "stringData": {"token": "one"},
            "metadata": {
                "name": name, "labels": {"app.kubernetes.io/managed-by": "mimeo"},
                "annotations": {"mimeo.dev/rule": "ClusterReplication/never-was", "mimeo.dev/cluster": cluster,
                                "mimeo.dev/source": "v1/Secret/platform/registry"},
            },
        });
        let as_mimeo = PatchParams::apply("mimeo").force();
        owner
            .secrets()
            .patch(name, &as_mimeo, &Patch::Apply(restored))
            .await?;
    }
    wait_gone(scene.secrets(&namespace), "here").await?;
    scene.secrets(&namespace).get("elsewhere").await?;
    Ok(())
}

/// Makes Mimeo say as much as possible about Secrets. As in every scene, the test harness searches
/// all of it for the marked content.
#[tokio::test]
async fn what_is_in_a_secret_is_in_no_log_no_status_no_event_no_metric_and_no_answer() -> Result<()>
{
    let scene = STAGE.scene("silent").await?;
    let namespaces = scene.namespaces(3).await?;
    scene.secret("registry", &[("token", "one")]).await?;
    // One Secret is copied. In one namespace a foreign object has its name. All namespaces refuse
    // another copy of it, with another type. A policy changes one, too.
    create_secret(
        &scene.client,
        &namespaces[0],
        "registry",
        &[("token", "one")],
    )
    .await?;
    scene
        .rule()
        .secret(&scene.home, "registry")
        .create(&scene.client)
        .await?;
    let invalid = rule(&format!("{}-invalid", scene.tag))
        .to_label("scene", &scene.tag)
        .secret(&scene.home, "registry");
    let invalid = invalid.named("invalid").set(
        "transform",
        json!({"type": "kubernetes.io/dockerconfigjson"}),
    );
    invalid.create(&scene.client).await?;
    let matched = json!({"kinds": [{"apiVersion": "v1", "kind": "Secret"}], "objectSelector": {"matchLabels": {"policy": scene.tag}}});
    let spec = json!({"match": matched, "transform": {"labels": {"set": {"rewritten": "yes"}}}});
    let policy = json!({"apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": scene.tag}, "spec": spec});
    apply(&scene.client, &policy).await?;
    eventually(SOON, "a rewritten Secret", || async {
        let name = unique("sent");
        let sent = json!({"metadata": {"name": name, "labels": {"policy": scene.tag}}, "stringData": {"token": "one"}});
        let sent: Secret = serde_json::from_value(sent)?;
        let stored = scene.secrets(&scene.home).create(&PostParams::default(), &sent).await?;
        Ok(stored.labels().contains_key("rewritten").then_some(()))
    })
    .await?;
    let rejected = scene
        .wait_condition(&invalid.name, "Ready", "False", "CopiesFailed")
        .await?;
    assert!(
        rejected
            .failures
            .iter()
            .all(|failure| failure.reason == "Invalid"),
        "{rejected:#?}"
    );
    put(
        &scene.secrets(&namespaces[1]),
        "registry",
        &[("token", "theirs")],
    )
    .await?;
    scene
        .wait_secret(&namespaces[1], "registry", |copy| {
            value(copy, "token").as_deref() == Some("one")
        })
        .await?;
    scene
        .wait_condition(&scene.tag, "Ready", "False", "CopiesFailed")
        .await?;
    patch_adopt_and_guard(&scene, &namespaces).await?;
    // Messages to users: about a pod that is created without a copy, and about reviews that are cut
    // off.
    scene
        .wait_condition(&invalid.name, "PodGateActive", "True", "Active")
        .await?;
    let namespace = labelled(&scene).await?;
    let told = kubectl_run(scene.setting, &namespace)?;
    assert!(
        told.contains("Warning:") && told.contains("invalid"),
        "{told}"
    );
    post_everywhere(&scene, &namespaces[2]).await?;
    let pair = &scene.setting.pair;
    let metrics = pair
        .webhooks
        .iter()
        .chain(&pair.reconciler)
        .map(Replica::metrics)
        .collect::<Result<String>>()?;
    assert!(
        metrics.contains("mimeo_admission_") && metrics.contains("mimeo_copy_requests"),
        "{metrics}"
    );
    let state = |replica: &Replica| replica.ask("GET", "/debug/state", None, "");
    let state = pair
        .webhooks
        .iter()
        .chain(&pair.reconciler)
        .map(state)
        .collect::<Result<String>>()?;
    assert!(state.contains("copiesIdle"), "{state}");
    let policies: Api<TransformPolicy> = Api::all(scene.client.clone());
    policies
        .get(&scene.tag)
        .await?
        .status
        .context("a policy without a status")?;
    let events: Api<Event> = Api::all(scene.client.clone());
    eventually(SOON, "an Event about the rule", || async {
        let told = events.list(&ListParams::default()).await?.items;
        let about = |event: &Event| {
            event
                .regarding
                .iter()
                .any(|object| object.name.as_deref() == Some(&scene.tag))
        };
        Ok(told.iter().any(about).then_some(()))
    })
    .await?;
    let log = scene.setting.log();
    assert!(
        log.contains(&scene.tag) && log.contains("TRACE"),
        "it is told at all"
    );
    Ok(())
}

/// Posts reviews about a copy to every hook, as the API server sends them and cut off in the
/// content. The hook of policies is left out, because its answers contain the content that they
/// change.
async fn post_everywhere(scene: &Scene<'_>, namespace: &str) -> Result<()> {
    let webhook = stranger(&scene.setting.pair.url())?;
    let copy = |token: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": namespace, "name": "guarded"},
            "stringData": {"token": format!("{MARK}{token}"), MARK: ""}, "type": MARK,
        })
    };
    let request = json!({
        "uid": "one", "operation": "UPDATE", "namespace": namespace, "name": "guarded",
        "kind": {"group": "", "version": "v1", "kind": "Secret"},
        "resource": {"group": "", "version": "v1", "resource": "secrets"},
        "userInfo": {"username": "robin"}, "object": copy("new"), "oldObject": copy("old"),
    });
    let review =
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
            .to_string();
    let cut = review.rfind(MARK).context("its content")? + MARK.len();
    for path in [
        "/mutate/namespaces",
        "/mutate/pods",
        "/mutate/rules",
        "/validate/rules",
        "/validate/copies",
    ] {
        for body in [&review[..], &review[..cut]] {
            match webhook
                .request_text(Request::post(path).body(body.as_bytes().to_vec())?)
                .await
            {
                Ok(answer) => ensure!(answer.contains("AdmissionReview"), "{path}: {answer}"),
                // If a failed call lets the request through, the answer to a broken review is an
                // error.
                Err(kube::Error::Api(status)) => {
                    ensure!(
                        status.code == 500 && body.len() == cut,
                        "{path}: {status:?}"
                    );
                }
                Err(error) => return Err(error).context(path),
            }
        }
    }
    Ok(())
}

/// Uses a Secret's content in four ways: in a patch that does not fit it, over an object that may
/// be adopted, over one that may not, and in a guarded copy.
async fn patch_adopt_and_guard(scene: &Scene<'_>, namespaces: &[String]) -> Result<()> {
    let named = |name: &str| {
        let rule = rule(&format!("{}-{name}", scene.tag)).to_label("scene", &scene.tag);
        rule.secret(&scene.home, "registry").named(name)
    };
    let unlike = json!([{"op": "test", "path": "/data/token", "value": "bm90aGluZw=="}]);
    let unlike = named("patched").set("transform", json!({"jsonPatch": unlike}));
    unlike.create(&scene.client).await?;
    scene
        .wait_condition(&unlike.name, "Ready", "False", "CopiesFailed")
        .await?;

    create_secret(
        &scene.client,
        &namespaces[0],
        "adopted",
        &[("token", "one")],
    )
    .await?;
    create_secret(
        &scene.client,
        &namespaces[1],
        "adopted",
        &[("token", "else")],
    )
    .await?;
    let adopting = named("adopted").set("conflictPolicy", json!("Adopt"));
    adopting.create(&scene.client).await?;
    let adopted = scene
        .wait_condition(&adopting.name, "Ready", "False", "CopiesFailed")
        .await?;
    assert_eq!(
        adopted.copies.map(|copies| copies.failed),
        Some(1),
        "{adopted:#?}"
    );

    let guarding = named("guarded").denying();
    guarding.create(&scene.client).await?;
    scene.wait_synced(&guarding.name).await?;
    let edit = json!({"stringData": {"token": "edited"}});
    eventually(SOON, "the edit to be refused", || async {
        let edited = scene
            .secrets(&namespaces[2])
            .patch("guarded", &PatchParams::default(), &Patch::Merge(&edit))
            .await;
        Ok(edited.err())
    })
    .await?;
    Ok(())
}

// ---- without the programs, and without CRDs ----

#[tokio::test]
async fn copies_whose_rule_was_deleted_while_nothing_ran_are_collected_after_the_next_start()
-> Result<()> {
    let mut setting = Setting::start(
        ControlPlane::builder(),
        Pair::builder().reconciler_args(QUICK),
    )
    .await?;
    let (namespace, kept, collected, retained) = {
        let scene = setting.scene("dark").await?;
        let namespace = scene.namespace().await?;
        scene.secret("registry", &[("token", "one")]).await?;
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shop", "namespace": scene.home}});
        apply(&scene.client, &map).await?;
        let to = |name: &str| {
            rule(&format!("{}-{name}", scene.tag))
                .to_label("scene", &scene.tag)
                .named(name)
        };
        let kept = to("kept").secret(&scene.home, "registry");
        let collected = to("collected").source("v1", "ConfigMap", &scene.home, "shop");
        let retained = to("retained").source("v1", "ConfigMap", &scene.home, "shop");
        let retained = retained.set("retentionPolicy", json!({"whenRuleDeleted": "Retain"}));
        for rule in [&kept, &collected, &retained] {
            rule.create(&scene.client).await?;
            scene.wait_synced(&rule.name).await?;
        }
        (namespace, kept, collected, retained)
    };
    let client = setting.control_plane.client().await?;
    let (secrets, maps) = (
        of::<Secret>(&client, &namespace),
        of::<ConfigMap>(&client, &namespace),
    );
    let before = (
        version(&secrets.get("kept").await?),
        version(&maps.get("retained").await?),
    );
    setting.pair.webhooks.clear();
    stop_reconciler(&mut setting).await?;
    for rule in [&collected, &retained] {
        rule.delete(&client).await?;
    }
    maps.get("collected").await?;

    setting.pair.start_reconciler().await?;
    wait_gone(maps.clone(), "collected").await?;
    let after = (
        version(&secrets.get("kept").await?),
        version(&maps.get("retained").await?),
    );
    assert_eq!(after, before);

    // When no copy of a kind is left, Mimeo stops looking for copies of it.
    delete(&maps, "retained").await?;
    kept.delete(&client).await?;
    wait_gone(secrets, "kept").await?;
    eventually(SOON, "the end of all kinds", || async {
        let kinds = of::<ConfigMap>(&client, NAMESPACE)
            .get("mimeo-kinds")
            .await?
            .data
            .unwrap_or_default();
        if kinds.is_empty() {
            Ok(Some(()))
        } else {
            bail!("{kinds:?}")
        }
    })
    .await
}

#[tokio::test]
async fn what_was_created_once_is_never_updated_restored_or_deleted_again() -> Result<()> {
    let mut setting = Setting::start(
        ControlPlane::builder().audit(true),
        Pair::builder().reconciler_args(QUICK),
    )
    .await?;
    let client = setting.control_plane.client().await?;
    let (once, kept, tag, home, namespaces) = {
        let scene = setting.scene("once").await?;
        let namespaces = scene.namespaces(4).await?;
        create_secret(&client, &namespaces[3], "registry", &[("token", "theirs")]).await?;
        scene.secret("registry", &[("token", "one")]).await?;
        let once = scene
            .rule()
            .secret(&scene.home, "registry")
            .set("strategy", json!("CreateOnce"));
        let kept = rule(&format!("{}-kept", scene.tag))
            .to_label("scene", &scene.tag)
            .secret(&scene.home, "registry");
        let kept = kept.named("kept");
        for rule in [&once, &kept] {
            rule.create(&client).await?;
            scene.wait_synced(&rule.name).await?;
        }
        (
            once,
            kept,
            scene.tag.clone(),
            scene.home.clone(),
            namespaces,
        )
    };
    let at = |index: usize| of::<Secret>(&client, &namespaces[index]);
    let remembers = |namespace: &Namespace| {
        namespace
            .annotations()
            .get("mimeo.dev/seeded")
            .is_some_and(|all| all.len() == 16)
    };
    for namespace in &namespaces {
        wait_for(Api::all(client.clone()), namespace.clone(), remembers).await?;
    }
    let mark = setting.control_plane.audit_mark().await?;
    let mine = put(&at(0), "registry", &[("token", "mine")]).await?;
    delete(&at(1), "registry").await?;
    stop_reconciler(&mut setting).await?;
    delete(&at(2), "registry").await?;
    delete(&at(3), "registry").await?;
    put(&of(&client, &home), "registry", &[("token", "two")]).await?;

    setting.pair.start_reconciler().await?;
    let is_two = |copy: &Secret| value(copy, "token").as_deref() == Some("two");
    let late = unique(&tag);
    create_namespace(&client, &late, &[("scene", &tag)]).await?;
    wait_for(of(&client, &late), "registry".to_owned(), is_two).await?;
    for namespace in &namespaces {
        wait_for(of(&client, namespace), "kept".to_owned(), is_two).await?;
    }
    setting.wait_synced(&client, &once.name).await?;

    // Once the copies of a rule deleted later are gone, the others would be gone, too.
    once.delete(&client).await?;
    kept.delete(&client).await?;
    for namespace in &namespaces {
        wait_gone(of::<Secret>(&client, namespace), "kept").await?;
    }
    assert_eq!(version(&at(0).get("registry").await?), version(&mine));
    of::<Secret>(&client, &late).get("registry").await?;
    for index in 1..4 {
        assert!(at(index).get_opt("registry").await?.is_none(), "{index}");
    }
    let events = setting.control_plane.audit_since(&mark).await?;
    let writes: Vec<_> = events
        .iter()
        .filter(|event| setting.is_ours(event) && event.is_write() && event.name == "registry")
        .filter(|event| namespaces.contains(&event.namespace))
        .collect();
    assert!(writes.is_empty(), "{writes:#?}");
    Ok(())
}

#[tokio::test]
async fn definitions_deleted_and_installed_again_delete_no_copy() -> Result<()> {
    let mut setting = Setting::start(
        ControlPlane::builder().controller_manager(false),
        Pair::builder().reconciler_args(QUICK),
    )
    .await?;
    let client = setting.control_plane.client().await?;
    let (rule, namespaces) = {
        let scene = setting.scene("crd").await?;
        let namespaces = scene.namespaces(5).await?;
        scene.secret("registry", &[("token", "one")]).await?;
        let rule = scene.rule().secret(&scene.home, "registry");
        rule.create(&scene.client).await?;
        scene.wait_synced(&scene.tag).await?;
        (rule, namespaces)
    };
    let versions = async || -> Result<Vec<String>> {
        let mut versions = Vec::new();
        for namespace in &namespaces {
            versions.push(version(
                &of::<Secret>(&client, namespace).get("registry").await?,
            ));
        }
        Ok(versions)
    };
    let before = versions().await?;

    // The CRDs are deleted while the reconciler runs.
    uninstall(&client).await?;
    held(&setting, &rule.name).await?;
    assert_eq!(versions().await?, before);
    install(&client, &rule.object()).await?;
    setting.wait_synced(&client, &rule.name).await?;
    assert_eq!(
        versions().await?,
        before,
        "the rule is the same by its name, and so are its copies"
    );

    // The CRDs are deleted and installed while the reconciler is stopped.
    stop_reconciler(&mut setting).await?;
    uninstall(&client).await?;
    install(&client, &Value::Null).await?;
    setting.pair.start_reconciler().await?;
    let nonce = held(&setting, &rule.name).await?;
    assert_eq!(versions().await?, before);
    // A rule of the same name keeps the copies at any time.
    install(&client, &rule.object()).await?;
    setting.wait_synced(&client, &rule.name).await?;
    assert_eq!(versions().await?, before);

    // If a person confirms the deletion, Mimeo deletes the copies.
    stop_reconciler(&mut setting).await?;
    uninstall(&client).await?;
    install(&client, &Value::Null).await?;
    setting.pair.start_reconciler().await?;
    assert_eq!(
        held(&setting, &rule.name).await?,
        nonce,
        "the same copies, the same word"
    );
    assert_eq!(versions().await?, before);
    let kinds: Api<ConfigMap> = of(&client, NAMESPACE);
    merge(
        &kinds,
        "mimeo-kinds",
        json!({"metadata": {"annotations": {"mimeo.dev/confirm-deletion": nonce}}}),
    )
    .await?;
    for namespace in &namespaces {
        wait_gone(of::<Secret>(&client, namespace), "registry").await?;
    }
    Ok(())
}

/// Without the CRD of grants, no consent can be read. Mimeo copies nothing more across namespaces,
/// and deletes no copy for it.
#[tokio::test]
async fn while_nobody_knows_what_is_granted_copies_stay_as_they_are() -> Result<()> {
    let mut setting = Setting::start(
        ControlPlane::builder().controller_manager(false),
        Pair::builder().reconciler_args(QUICK),
    )
    .await?;
    let client = setting.control_plane.client().await?;
    let (tag, owner, taker) = {
        let scene = setting.scene("grants").await?;
        (
            scene.tag.clone(),
            scene.home.clone(),
            scene.namespace().await?,
        )
    };
    let object = |kind: &str, namespace: &str, spec: &Value| {
        let metadata = json!({"namespace": namespace, "name": "r"});
        json!({"apiVersion": "mimeo.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec})
    };
    let grant = object(
        "ReplicationGrant",
        &owner,
        &consent("Read", &taker, &["db"]),
    );
    let grants = format!("namespaces/{owner}/replicationgrants");
    let pulling = object("Replication", &taker, &copying(Some(&owner), "db", &[]));
    let pace = rule(&tag)
        .secret(&owner, "db")
        .target(json!({"namespaces": [taker], "copyName": "pace"}));
    create_secret(&client, &owner, "db", &[("token", "one")]).await?;
    create(&client, &grants, &grant).await?;
    create(
        &client,
        &format!("namespaces/{taker}/replications"),
        &pulling,
    )
    .await?;
    pace.create(&client).await?;
    let copies: Api<Secret> = of(&client, &taker);
    let copy =
        |name: &str, token: &'static str| wait_for(copies.clone(), name.to_owned(), has(token));
    let before = copy("db", "one").await?;
    copy("pace", "one").await?;

    stop_reconciler(&mut setting).await?;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let definition = mimeo_api::crds()
        .into_iter()
        .find(|crd| crd.spec.names.kind == "ReplicationGrant");
    let definition = definition.context("no definition of grants")?;
    delete(&definitions, &definition.name_any()).await?;
    wait_gone(definitions, &definition.name_any()).await?;
    setting.pair.start_reconciler().await?;
    let unknown = |rule: &Replication| {
        let told = rule
            .status
            .as_ref()
            .and_then(|status| condition(status, "Authorized"));
        told.is_some_and(|one| {
            (&*one.status, &*one.reason) == ("False", "GrantsUnknown")
                && one.message.contains("install their CRD")
        })
    };
    wait_for(of::<Replication>(&client, &taker), "r".to_owned(), unknown).await?;
    put(&of(&client, &owner), "db", &[("token", "two")]).await?;
    copy("pace", "two").await?;
    let after = copies.get("db").await?;
    assert_eq!(
        (uid(&after), version(&after)),
        (uid(&before), version(&before)),
        "neither deleted nor changed"
    );

    install_crd(&client, &definition).await?;
    eventually(SOON, "the grant", || async {
        Ok(Some(create(&client, &grants, &grant).await?))
    })
    .await?;
    copy("db", "two").await?;
    Ok(())
}

/// Mimeo was removed with all its records and installed again. Only one of its rules exists again
/// so far.
#[tokio::test]
async fn rules_that_come_back_late_after_mimeo_was_removed_find_their_copies() -> Result<()> {
    let mut setting = Setting::start(
        ControlPlane::builder().controller_manager(false),
        Pair::builder().reconciler_args(QUICK),
    )
    .await?;
    let client = setting.control_plane.client().await?;
    let (first, late, namespaces) = {
        let scene = setting.scene("removed").await?;
        let namespaces = scene.namespaces(2).await?;
        scene.secret("registry", &[("token", "one")]).await?;
        let first = scene.rule().secret(&scene.home, "registry");
        let late = rule(&format!("{}-late", scene.tag))
            .to_label("scene", &scene.tag)
            .secret(&scene.home, "registry");
        let late = late.named("late");
        for rule in [&first, &late] {
            rule.create(&client).await?;
            scene.wait_synced(&rule.name).await?;
        }
        (first, late, namespaces)
    };
    let copies = async || -> Result<Vec<Secret>> {
        let mut copies = Vec::new();
        for namespace in &namespaces {
            let secrets = of::<Secret>(&client, namespace);
            copies.extend([secrets.get("registry").await?, secrets.get("late").await?]);
        }
        Ok(copies)
    };
    let before = copies().await?;
    let maps: Api<ConfigMap> = of(&client, NAMESPACE);

    stop_reconciler(&mut setting).await?;
    uninstall(&client).await?;
    delete(&maps, "mimeo-kinds").await?;
    install(&client, &first.object()).await?;
    setting.pair.start_reconciler().await?;
    setting.wait_synced(&client, &first.name).await?;
    held(&setting, &late.name).await?;
    install(&client, &late.object()).await?;
    setting.wait_synced(&client, &late.name).await?;
    let versions = |copies: &[Secret]| copies.iter().map(version).collect::<Vec<_>>();
    assert_eq!(
        versions(&copies().await?),
        versions(&before),
        "each has its copies, and wrote none"
    );

    // From now on, a deleted rule was deleted on purpose.
    late.delete(&client).await?;
    for namespace in &namespaces {
        wait_gone(of::<Secret>(&client, namespace), "late").await?;
    }
    Ok(())
}

/// Stops the reconciler with SIGTERM. After a kill, its Lease would delay the next reconciler.
async fn stop_reconciler(setting: &mut Setting) -> Result<()> {
    let mut reconciler = setting.pair.reconciler.take().context("no reconciler")?;
    assert!(reconciler.program.stop(SOON).await?.success());
    Ok(())
}

/// Deletes Mimeo's CRDs, and so every rule.
async fn uninstall(client: &Client) -> Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in mimeo_api::crds() {
        delete(&definitions, &crd.name_any()).await?;
    }
    for crd in mimeo_api::crds() {
        wait_gone(definitions.clone(), &crd.name_any()).await?;
    }
    Ok(())
}

/// Installs the CRDs. Creates the rule, unless it is null.
async fn install(client: &Client, rule: &Value) -> Result<()> {
    for crd in mimeo_api::crds() {
        install_crd(client, &crd).await?;
    }
    if rule.is_null() {
        return Ok(());
    }
    eventually(SOON, "the rule", || async {
        Ok(Some(
            mimeo_tests::scenario::create(client, "clusterreplications", rule).await?,
        ))
    })
    .await?;
    Ok(())
}

/// Waits until the log says that the deletion of the rule's copies is held. Returns the nonce that
/// confirms the deletion.
async fn held(setting: &Setting, rule: &str) -> Result<String> {
    eventually(SOON, "a held deletion", || async {
        let log = setting
            .pair
            .reconciler
            .as_ref()
            .context("no reconciler")?
            .program
            .log()?;
        let line = log
            .lines()
            .rfind(|line| line.contains("deletion held") && line.contains(rule));
        let nonce = line
            .and_then(|line| line.split_once("nonce="))
            .map(|(_, rest)| rest);
        let word = nonce.and_then(|rest| rest.trim_start_matches('"').split(['"', ' ']).next());
        Ok(word.map(str::to_owned))
    })
    .await
}

/// Two rules name a former copy as their source: first the copy's own rule, then another rule. The
/// own rule is deleted after that.
#[tokio::test]
async fn a_copy_that_became_a_source_is_neither_written_nor_deleted() -> Result<()> {
    let scene = STAGE.scene("heir").await?;
    let namespaces = scene.namespaces(2).await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let first = scene.rule().secret(&scene.home, "registry");
    first.create(&scene.client).await?;
    scene.wait_synced(&first.name).await?;
    let [heir, other] = [&namespaces[0], &namespaces[1]].map(|namespace| scene.secrets(namespace));
    let copied = heir.get("registry").await?;

    let itself = scene.rule().secret(&namespaces[0], "registry");
    itself.replace(&scene.client).await?;
    let named = format!("v1/Secret/{}/registry", namespaces[0]);
    let from = |copy: &Secret| copy.annotations().get("mimeo.dev/source") == Some(&named);
    scene.wait_secret(&namespaces[1], "registry", from).await?;
    assert_eq!(version(&heir.get("registry").await?), version(&copied));
    let edited = merge(&heir, "registry", json!({"stringData": {"token": "two"}})).await?;
    scene
        .wait_secret(&namespaces[1], "registry", |copy| {
            value(copy, "token").as_deref() == Some("two")
        })
        .await?;
    assert_eq!(version(&heir.get("registry").await?), version(&edited));

    let second = rule(&format!("{}-second", scene.tag))
        .secret(&namespaces[0], "registry")
        .to_label("scene", &scene.tag);
    second.create(&scene.client).await?;
    itself.delete(&scene.client).await?;
    let owned = |copy: &Secret| {
        copy.annotations()
            .get("mimeo.dev/rule")
            .is_some_and(|rule| rule.ends_with("-second"))
    };
    scene.wait_secret(&namespaces[1], "registry", owned).await?;
    scene.wait_synced(&second.name).await?;
    assert_eq!(version(&heir.get("registry").await?), version(&edited));
    second.delete(&scene.client).await?;
    wait_gone(other, "registry").await
}
