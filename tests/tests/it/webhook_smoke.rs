//! The webhook's functions one by one. The other scenarios build on them.

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::Api;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use mimeo_api::TransformPolicy;
use mimeo_tests::scenario::{
    SOON, Scene, Setting, any, create, label, merge, of, relabel, rule, wait_for, wait_gone,
};
use mimeo_tests::traffic::{HOOK_TIMEOUT, create_asked, create_patiently, precedes};
use mimeo_tests::{ControlPlane, Pair, create_namespace, create_secret, eventually};
use serde_json::{Value, json};

use crate::stages::WEBHOOK as STAGE;

const PENDING_LABEL: &str = "mimeo.dev/copies";

fn named(scene: &Scene<'_>, name: &str) -> String {
    format!("{}-{name}", scene.tag)
}

fn pod() -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "first"},
        "spec": {"containers": [{"name": "c", "image": "localhost/none"}]},
    }))
    .expect("a pod")
}

/// Waits until the webhook knows the rule: a namespace that matches it gets the pending label in a
/// dry run.
async fn in_force(scene: &Scene<'_>, tier: &str) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(scene.client.clone());
    eventually(SOON, "the rule in force", || async {
        let namespace =
            json!({"metadata": {"name": named(scene, "probe"), "labels": {"tier": tier}}});
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let created = namespaces
            .create(&params, &serde_json::from_value(namespace)?)
            .await?;
        Ok(label(&created, PENDING_LABEL).map(|_| ()))
    })
    .await
}

#[tokio::test]
async fn a_new_namespace_is_marked_filled_and_unmarked_and_its_pod_comes_after_the_copy()
-> Result<()> {
    let scene = STAGE.scene("fresh").await?;
    scene.secret("registry", &[("password", "example")]).await?;
    let rule = rule(&named(&scene, "rule"))
        .secret(&scene.home, "registry")
        .to_label("tier", &scene.tag);
    rule.set("podGate", json!("Required"))
        .create(&scene.client)
        .await?;
    in_force(&scene, &scene.tag).await?;
    let namespaces: Api<Namespace> = Api::all(scene.client.clone());
    for _ in 0..20 {
        let labels = [("tier", &*scene.tag), (PENDING_LABEL, "preset")];
        let created = create_asked(&scene.client, &scene.tag, &labels).await?;
        let name = created.name_any();
        let token = label(&created, PENDING_LABEL).context("no pending label")?;
        assert!(token.len() == 16 && token != "preset", "{token}");
        let (pod, _) = create_patiently(&of::<Pod>(&scene.client, &name), &pod()).await?;
        let copy = scene
            .secrets(&name)
            .get("registry")
            .await
            .context("admitted without its copy")?;
        assert!(precedes(&copy, &pod)?, "the copy is late");
        wait_for(namespaces.clone(), name, |namespace| {
            label(namespace, PENDING_LABEL).is_none()
        })
        .await?;
    }
    let bare = create_asked(&scene.client, &scene.tag, &[(PENDING_LABEL, "preset")]).await?;
    assert_eq!(label(&bare, PENDING_LABEL), None);
    Ok(())
}

#[tokio::test]
async fn a_new_namespace_costs_two_requests() -> Result<()> {
    let scene = STAGE.scene("cost").await?;
    scene.secret("registry", &[("password", "example")]).await?;
    scene
        .rule()
        .secret(&scene.home, "registry")
        .create(&scene.client)
        .await?;
    let namespaces: Api<Namespace> = Api::all(scene.client.clone());
    eventually(SOON, "the rule in force", || async {
        let namespace =
            json!({"metadata": {"name": named(&scene, "probe"), "labels": {"scene": scene.tag}}});
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        Ok(label(
            &namespaces
                .create(&params, &serde_json::from_value(namespace)?)
                .await?,
            PENDING_LABEL,
        )
        .map(|_| ()))
    })
    .await?;
    // Mimeo records the kind before the first copy of the kind.
    let create = async || {
        let namespace = create_asked(&scene.client, &scene.tag, &[("scene", &scene.tag)]).await?;
        anyhow::Ok(namespace.name_any())
    };
    for name in [create().await?, create().await?] {
        wait_for(namespaces.clone(), name, |namespace| {
            label(namespace, PENDING_LABEL).is_none()
        })
        .await?;
    }
    let control_plane = &scene.setting.control_plane;
    let mark = control_plane.audit_mark().await?;
    let name = create().await?;
    wait_for(namespaces, name.clone(), |namespace| {
        label(namespace, PENDING_LABEL).is_none()
    })
    .await?;
    let events = control_plane.audit_since(&mark).await?;
    let ours = events
        .iter()
        .filter(|event| scene.setting.is_ours(event) && event.resource != "leases");
    let told: Vec<_> = ours
        .map(|event| (event.verb.as_str(), event.resource.as_str(), event.code))
        .collect();
    let here = events
        .iter()
        .filter(|event| scene.setting.is_ours(event) && event.namespace == name)
        .count();
    // Requests of other tests may be among them. For this namespace there are two: the copy, and
    // the removal of the pending label.
    assert!(
        told.contains(&("patch", "secrets", 201)) && told.contains(&("patch", "namespaces", 200)),
        "{told:?}"
    );
    assert_eq!(here, 2, "{told:?}");
    Ok(())
}

#[tokio::test]
async fn a_namespace_is_marked_before_its_labels_come_to_match() -> Result<()> {
    let scene = STAGE.scene("label").await?;
    scene.secret("registry", &[("password", "example")]).await?;
    let rule = rule(&named(&scene, "rule"))
        .secret(&scene.home, "registry")
        .to_label("tier", &scene.tag);
    rule.set("podGate", json!("Required"))
        .create(&scene.client)
        .await?;
    in_force(&scene, &scene.tag).await?;
    let namespaces: Api<Namespace> = Api::all(scene.client.clone());
    for number in 0..5 {
        let name = named(&scene, &format!("old-{number}"));
        create_namespace(&scene.client, &name, &[]).await?;
        // The test does this twice. Knowledge about the first copy must not count for the second.
        for _ in 0..2 {
            let labelled = loop {
                let began = Instant::now();
                let tier = json!({"metadata": {"labels": {"tier": scene.tag}}});
                let labelled = merge(&namespaces, &name, tier).await?;
                if began.elapsed() < HOOK_TIMEOUT {
                    break labelled;
                }
                // The API server may have stored it without the webhook's answer.
                relabel(&scene.client, &name, "tier", None).await?;
            };
            assert!(
                labelled.labels().contains_key(PENDING_LABEL),
                "labelled without the pending label: {:?}",
                labelled.labels()
            );
            scene.wait_secret(&name, "registry", |_| true).await?;
            let unmarked = |namespace: &Namespace| !namespace.labels().contains_key(PENDING_LABEL);
            wait_for(namespaces.clone(), name.clone(), unmarked).await?;
            merge(
                &namespaces,
                &name,
                json!({"metadata": {"labels": {"tier": null}}}),
            )
            .await?;
            scene
                .secrets(&name)
                .delete("registry", &DeleteParams::default())
                .await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_policy_rewrites_what_anybody_writes() -> Result<()> {
    let scene = STAGE.scene("policy").await?;
    let (name, origin) = (named(&scene, "policy"), scene.tag.as_str());
    let policy = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": name},
        "spec": {
            "match": {
                "kinds": [{"apiVersion": "v1", "kind": "Secret"}, {"apiVersion": "example.com/v1", "kind": "Absent"}],
                "objectSelector": {"matchLabels": {"origin": origin}},
            },
            "transform": {"labels": {"set": {"participant": "mimeo"}}},
        },
    });
    create(&scene.client, "transformpolicies", &policy).await?;
    let policies: Api<TransformPolicy> = Api::all(scene.client.clone());
    let told = wait_for(policies.clone(), name.clone(), |policy| {
        policy.status.is_some()
    })
    .await?;
    let ready = told.status.context("no status")?.conditions;
    assert_eq!(
        (ready[0].reason.as_str(), ready[0].status.as_str()),
        ("Active", "True"),
        "{ready:?}"
    );
    assert!(
        ready[0].message.contains("example.com/v1/Absent"),
        "{ready:?}"
    );

    let secrets = scene.secrets(&scene.home);
    let secret = json!({"metadata": {"generateName": "s-", "labels": {"origin": origin}}});
    eventually(SOON, "a rewritten Secret", || async {
        let written = secrets
            .create(
                &PostParams::default(),
                &serde_json::from_value(secret.clone())?,
            )
            .await?;
        Ok((label(&written, "participant") == Some("mimeo")).then_some(()))
    })
    .await?;
    policies.delete(&name, &DeleteParams::default()).await?;
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(scene.client.clone());
    eventually(SOON, "the policy's entry to be gone", || async {
        let entries = configurations
            .get("mimeo-policies")
            .await?
            .webhooks
            .unwrap_or_default();
        let path = |config: &Value| config.to_string().contains(&name);
        Ok((!entries
            .iter()
            .any(|entry| path(&json!(entry.client_config))))
        .then_some(()))
    })
    .await
}

#[tokio::test]
async fn bad_rules_are_refused_and_odd_ones_accepted() -> Result<()> {
    let scene = STAGE.scene("refuse").await?;
    let refused = async |kind: &str, name: &str, target: Value| -> Result<String> {
        let rule = rule(&named(&scene, "bad"))
            .source("v1", kind, &scene.home, name)
            .target(target);
        match rule.create(&scene.client).await {
            Ok(()) => bail!("accepted: {}", rule.object()),
            Err(error) => Ok(format!("{error:#}")),
        }
    };
    let everywhere = json!({"namespaceSelector": {}});
    for (kind, name, target, says) in [
        ("Node", "a", everywhere.clone(), "cluster-scoped"),
        ("Namespace", "a", everywhere.clone(), "Namespace"),
        (
            "Secret",
            "a",
            json!({"namespacePattern": "("}),
            "namespacePattern",
        ),
        ("Secret", "a", json!({"copyName": "b"}), "at least one"),
    ] {
        let message = refused(kind, name, target).await?;
        assert!(message.contains(says), "{kind}: {message}");
    }
    let odd = rule(&named(&scene, "odd"))
        .source("example.com/v1", "Absent", &scene.home, "a")
        .target(everywhere);
    let kubectl = scene
        .setting
        .control_plane
        .kubectl()?
        .args(["create", "--dry-run=server", "-f", "-"])
        .stdin(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()?;
    std::io::Write::write_all(
        &mut kubectl.stdin.as_ref().context("stdin")?,
        odd.object().to_string().as_bytes(),
    )?;
    let output = kubectl.wait_with_output()?;
    let warnings = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{warnings}");
    assert!(
        warnings.contains("does not serve example.com/v1/Absent")
            && warnings.contains("namespaces"),
        "{warnings}"
    );
    Ok(())
}

#[tokio::test]
async fn the_hooks_stay_registered_and_the_lease_says_what_was_seen() -> Result<()> {
    // Other scenarios need the webhook configurations, so this test has a setting of its own.
    let setting =
        Setting::start(ControlPlane::builder(), Pair::builder().reconciler(false)).await?;
    let scene = setting.scene("keep").await?;
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(scene.client.clone());
    validating.delete("mimeo", &DeleteParams::default()).await?;
    eventually(SOON, "the hook of rules to be back", || async {
        Ok(validating
            .get_opt("mimeo")
            .await?
            .and_then(|config| config.webhooks))
    })
    .await?;
    let leases: Api<Lease> = of(&scene.client, mimeo_tests::NAMESPACE);
    let seen = async || -> Result<u64> {
        let found = leases
            .list(&ListParams::default().labels("mimeo.dev/replica=webhook"))
            .await?;
        let lease = found.items.first().context("no lease")?;
        let seen = lease
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get("mimeo.dev/seen"));
        Ok(seen.context("no annotation")?.parse()?)
    };
    let before = eventually(SOON, "the replica's Lease", || async {
        seen().await.map(Some)
    })
    .await?;
    let rule = rule(&named(&scene, "rule"))
        .secret(&scene.home, "registry")
        .to_label("tier", &scene.tag);
    rule.create(&scene.client).await?;
    eventually(SOON, "the new rule on the Lease", || async {
        Ok((seen().await? > before).then_some(()))
    })
    .await?;
    let metrics = scene.setting.pair.webhooks[0].metrics()?;
    assert!(
        metrics.contains("mimeo_admission_duration_seconds_count{hook=\"Rules\""),
        "{metrics}"
    );
    create_secret(&scene.client, &scene.home, "registry", &[]).await?;
    Ok(())
}

#[tokio::test]
async fn what_others_write_into_the_hooks_is_put_back() -> Result<()> {
    // Other scenarios need the webhook configurations, so this test has a setting of its own.
    let setting =
        Setting::start(ControlPlane::builder(), Pair::builder().reconciler(false)).await?;
    let client = setting.control_plane.client().await?;
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let before = mutating.get("mimeo").await?.webhooks.context("no hooks")?;
    let foreign = json!({
        "name": "foreign.example.com", "clientConfig": {"url": "https://127.0.0.1:1/"}, "failurePolicy": "Ignore",
        "sideEffects": "None", "admissionReviewVersions": ["v1"],
    });
    let never = json!({"name": "never", "expression": "false"});
    let selector = json!({"matchLabels": {"no": "pod"}});
    for edit in [
        json!([{"op": "add", "path": "/webhooks/1/objectSelector", "value": selector}]),
        json!([{"op": "add", "path": "/webhooks/0/namespaceSelector", "value": selector}]),
        json!([{"op": "add", "path": "/webhooks/1/matchConditions/-", "value": never}]),
        json!([{"op": "add", "path": "/webhooks/-", "value": foreign}]),
        json!([{"op": "remove", "path": "/webhooks/0"}]),
    ] {
        let patch: Patch<()> = Patch::Json(serde_json::from_value(edit.clone())?);
        mutating
            .patch("mimeo", &PatchParams::default(), &patch)
            .await?;
        // A repair may wait some seconds after the previous one.
        eventually(SOON, format!("{edit} to be undone"), || async {
            let hooks = mutating.get("mimeo").await?.webhooks;
            if hooks.as_ref() == Some(&before) {
                Ok(Some(()))
            } else {
                bail!("{hooks:?}")
            }
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn bodies_that_would_fill_the_memory_are_refused_while_others_are_answered() -> Result<()> {
    let setting =
        Setting::start(ControlPlane::builder(), Pair::builder().reconciler(false)).await?;
    let client = setting.control_plane.client().await?;
    let mut config = kube::Config::new(setting.pair.url().parse()?);
    config.accept_invalid_certs = true;
    let anybody = kube::Client::try_from(config)?;
    let zeros = format!("[{}0]", "0,".repeat(9_500_000));
    let maps = format!("[{}0]", r#"{"":0},"#.repeat(2_700_000));
    let labels = (0..1_500_000)
        .map(|number| format!(r#""{number}":"","#))
        .collect::<Vec<_>>()
        .concat();
    let objects = [
        zeros.clone(),
        format!(r#"{{"metadata":{{}},"data":{zeros}}}"#),
        format!(r#"{{"metadata":{{"finalizers":{maps}}}}}"#),
        format!(r#"{{"metadata":{{"labels":{{{labels}"":""}}}}}}"#),
    ];
    let review = |object: &String| {
        format!(
            r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"u-1","operation":"CREATE",
            "kind":{{"version":"v1","kind":"Namespace"}},"resource":{{"version":"v1","resource":"namespaces"}},"object":{object}}}}}"#
        )
    };
    let hooks = [
        "/mutate/namespaces?timeout=5s",
        "/mutate/objects/some?timeout=5s",
        "/validate/rules?timeout=5s",
    ];
    let ask = async |number: usize| -> Result<Option<String>> {
        let (object, hook) = (
            &objects[number % objects.len()],
            hooks[number % hooks.len()],
        );
        let request = http::Request::post(hook).body(review(object).into_bytes())?;
        let answer: Value = serde_json::from_str(&anybody.request_text(request).await?)?;
        Ok(answer["response"]["uid"].as_str().map(str::to_owned))
    };
    let flood = futures::future::join_all((0..24).map(&ask));
    let others = async {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        for number in 0..20 {
            // While the memory is used up, requests are told to retry.
            let namespace =
                serde_json::from_value(json!({"metadata": {"name": format!("ns-{number}")}}))?;
            create_patiently(&namespaces, &namespace).await?;
        }
        anyhow::Ok(())
    };
    let (answers, others) = tokio::join!(flood, others);
    others?;
    let is_told = |answer: &Result<Option<String>>| matches!(answer, Ok(Some(uid)) if uid == "u-1");
    if !answers.iter().any(is_told) {
        // On a busy machine all of them may have come too late. Then a single request is in time.
        eventually(SOON, "an answer", || async {
            let answer = ask(0).await;
            ensure!(is_told(&answer), "{answer:?}, and at first {answers:?}");
            Ok(Some(()))
        })
        .await?;
    }
    let peak = setting.pair.webhooks[0].program.peak_bytes()? >> 20;
    assert!(
        peak < 128,
        "{peak} MiB of the 256 that the manifest allows; it should be about 95"
    );
    Ok(())
}

#[tokio::test]
async fn the_hooks_go_with_the_role_that_owns_them() -> Result<()> {
    let setting = Setting::start(
        ControlPlane::builder().audit(true),
        Pair::builder().reconciler(false),
    )
    .await?;
    let client = setting.control_plane.client().await?;
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let role = json!({"metadata": {"name": "mimeo-webhook"}, "rules": []});
    roles
        .create(&PostParams::default(), &serde_json::from_value(role)?)
        .await?;
    let (mutating, validating) = (
        "MutatingWebhookConfiguration",
        "ValidatingWebhookConfiguration",
    );
    let configurations = [
        (mutating, "mimeo"),
        (mutating, "mimeo-policies"),
        (validating, "mimeo"),
    ];
    let of = |kind| any(&client, "admissionregistration.k8s.io/v1", kind, None);
    for (kind, name) in configurations {
        wait_for(of(kind)?, name.to_owned(), |_| true).await?;
        of(kind)?.delete(name, &DeleteParams::default()).await?;
        wait_for(of(kind)?, name.to_owned(), |config| {
            config.metadata.owner_references.is_some()
        })
        .await?;
    }
    let mark = setting.control_plane.audit_mark().await?;
    roles
        .delete("mimeo-webhook", &DeleteParams::default())
        .await?;
    for (kind, name) in configurations {
        wait_gone(of(kind)?, name).await?;
    }
    // For each deleted configuration, the webhook looks for its role twice. The second look follows
    // because the first repair failed.
    eventually(
        SOON,
        "the webhook to have looked for the role in vain",
        || async {
            let events = setting.control_plane.audit_since(&mark).await?;
            let looks = events.iter().filter(|event| {
                setting.is_ours(event)
                    && (event.resource.as_str(), event.code) == ("clusterroles", 404)
            });
            let looks = looks.count();
            if looks >= 2 * configurations.len() {
                Ok(Some(()))
            } else {
                bail!("{looks} times")
            }
        },
    )
    .await?;
    for (kind, name) in configurations {
        assert!(
            of(kind)?.get_opt(name).await?.is_none(),
            "{kind} {name} put back though Mimeo was removed"
        );
    }
    Ok(())
}
