//! `TransformPolicies` rewrite other tools' objects at admission.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use mimeo_api::TransformPolicy;
use mimeo_tests::scenario::{
    SOON, Setting, apply, delete, kubectl, label, merge, of, relabel, value, version, wait_for,
};
use mimeo_tests::traffic::{create_patiently, retry_after, webhook_timed_out};
use mimeo_tests::{ControlPlane, NAMESPACE, Pair, Replica, create_namespace, eventually, unique};
use serde_json::{Value, json};

use super::STAGE;
use crate::stages::LOAD;

const WANTED_TYPE: &str = "credential.devops.kubesphere.io/basic-auth";

const SENT_TYPE: &str = "will-be-modify-by-kyverno";

const ORIGIN: &str = "kubed.appscode.com/origin.namespace";

const ORIGIN_NAMESPACE: &str = "kubesphere-devops-system";

pub(crate) const FINALIZER: &str = "finalizers.kubesphere.io/credential";

/// The policy does the same as a well-known Kyverno policy, word for word.
#[tokio::test]
async fn a_policy_corrects_what_another_tool_writes_and_writes_again() -> Result<()> {
    let scene = STAGE.scene("policy").await?;
    let namespace = scene.namespace().await?;
    create_namespace(&scene.client, ORIGIN_NAMESPACE, &[]).await?;
    let tool = scene
        .setting
        .control_plane
        .user("syncer", &["system:masters"])?
        .client()
        .await?;
    let theirs: Api<Secret> = Api::namespaced(tool.clone(), &namespace);
    let sent = |name: &str, password: &str| -> Result<Secret> {
        Ok(serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Secret", "type": SENT_TYPE, "stringData": {"password": password},
            "metadata": {"name": name, "labels": {ORIGIN: ORIGIN_NAMESPACE}},
        }))?)
    };
    let params = PostParams::default();
    theirs.create(&params, &sent("older", "one")?).await?;
    let policy = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": scene.tag},
        "spec": {
            "match": {
                "kinds": [{"apiVersion": "v1", "kind": "Secret"}],
                "objectSelector": {"matchLabels": {ORIGIN: ORIGIN_NAMESPACE}},
                "excludeNamespaces": [ORIGIN_NAMESPACE],
            },
            "transform": {
                "type": WANTED_TYPE, "labels": {"set": {"participant": "kyverno"}}, "finalizers": [FINALIZER],
            },
            "failurePolicy": "Fail",
        },
    });
    apply(&scene.client, &policy).await?;
    wait_active(&scene.client, &scene.tag).await?;
    wait_rewritten(&theirs, &sent("probe", "x")?).await?;

    let corrected = |secret: &Secret, password: &str| {
        let is = (
            secret.type_.as_deref(),
            label(secret, "participant"),
            value(secret, "password"),
        );
        assert_eq!(
            is,
            (
                Some(WANTED_TYPE),
                Some("kyverno"),
                Some(password.to_owned())
            )
        );
        assert_eq!(secret.finalizers(), [FINALIZER]);
    };
    corrected(
        &create_patiently(&theirs, &sent("basic", "one")?).await?.0,
        "one",
    );
    // The tool does not know the policy. It sends its own content and its own type, with every
    // verb.
    let basic = sent("basic", "two")?;
    let replaced = patiently(|| theirs.replace("basic", &params, &basic)).await?;
    corrected(&replaced, "two");
    let again = patiently(|| theirs.replace("basic", &params, &basic)).await?;
    assert_eq!(
        version(&again),
        version(&replaced),
        "sent again, nothing changes"
    );
    let patch = json!({"type": SENT_TYPE, "stringData": {"password": "three"}, "metadata": {"labels": {"participant": null}}});
    corrected(&merge(&theirs, "basic", patch).await?, "three");
    let apply_as = PatchParams::apply("syncer").force();
    for (name, password) in [("basic", "four"), ("fresh", "one")] {
        let patch = Patch::Apply(sent(name, password)?);
        let applied = patiently(|| theirs.patch(name, &apply_as, &patch)).await?;
        corrected(&applied, password);
    }

    // The policy leaves excluded namespaces and objects without a match alone.
    let origin: Api<Secret> = Api::namespaced(tool, ORIGIN_NAMESPACE);
    let mut other = sent("other", "one")?;
    other.metadata.labels = Some([(ORIGIN.to_owned(), "elsewhere".to_owned())].into());
    for left in [
        origin.create(&params, &sent("basic", "one")?).await?,
        theirs.create(&params, &other).await?,
    ] {
        assert_eq!(
            (left.type_.as_deref(), label(&left, "participant")),
            (Some(SENT_TYPE), None)
        );
        assert!(left.finalizers().is_empty());
    }

    // A Secret that was stored with another type can still be edited. The editor gets a warning.
    let older = sent("older", "two")?;
    let older = patiently(|| theirs.replace("older", &params, &older)).await?;
    assert_eq!(
        (older.type_.as_deref(), value(&older, "password").as_deref()),
        (Some(SENT_TYPE), Some("two"))
    );
    assert_eq!(
        (label(&older, "participant"), older.finalizers()),
        (Some("kyverno"), &[FINALIZER.to_owned()][..])
    );
    let annotate = [
        "annotate",
        "secret",
        "older",
        "example.com/note=x",
        "-n",
        &namespace,
    ];
    let told = kubectl(&scene.setting.control_plane, annotate)?;
    assert!(
        told.contains("Warning") && told.contains(SENT_TYPE) && told.contains(&scene.tag),
        "{told}"
    );

    // Each replica counts its own changes.
    let metrics = scene
        .setting
        .pair
        .webhooks
        .iter()
        .map(Replica::metrics)
        .collect::<Result<String>>()?;
    let counted = format!("mimeo_policy_rewrites_total{{policy=\"{}\"}} ", scene.tag);
    let counts = metrics
        .lines()
        .filter_map(|line| line.strip_prefix(&counted))
        .map(str::parse);
    let counts = counts.collect::<Result<Vec<u32>, _>>()?;
    assert!(
        counts.iter().sum::<u32>() >= 7,
        "as many writes as were corrected: {counts:?}"
    );

    // The policy keeps the finalizer while the object lives. Once the object is being deleted, its
    // owner can remove the finalizer, and the object disappears.
    let without = json!({"metadata": {"finalizers": null}});
    let kept = merge(&theirs, "basic", without.clone()).await?;
    assert_eq!(kept.finalizers(), [FINALIZER]);
    for name in ["basic", "fresh", "older"] {
        delete(&theirs, name).await?;
        assert!(
            theirs
                .get(name)
                .await?
                .metadata
                .deletion_timestamp
                .is_some()
        );
        merge(&theirs, name, without.clone()).await?;
        assert!(theirs.get_opt(name).await?.is_none(), "{name}");
    }
    Ok(())
}

/// Sends a request again while it is refused only because the webhook has not answered in time, as
/// on a busy machine.
async fn patiently<T, F>(mut send: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = kube::Result<T>>,
{
    let answer = eventually(SOON, "the webhook's answer", || {
        let answer = send();
        async {
            match answer.await {
                Err(error) if webhook_timed_out(&error) || retry_after(&error).is_some() => {
                    Err(error.into())
                }
                answer => Ok(Some(answer)),
            }
        }
    })
    .await?;
    Ok(answer?)
}

/// Waits until the policy reports that it is in force.
async fn wait_active(client: &kube::Client, policy: &str) -> Result<()> {
    let policies: Api<TransformPolicy> = Api::all(client.clone());
    wait_for(policies, policy.to_owned(), |policy| {
        let conditions = policy.status.iter().flat_map(|status| &status.conditions);
        conditions
            .into_iter()
            .any(|one| one.type_ == "Ready" && one.status == "True")
    })
    .await?;
    Ok(())
}

/// Waits until a dry run changes this Secret's type. The API server needs a moment to use a new
/// hook.
async fn wait_rewritten(secrets: &Api<Secret>, sent: &Secret) -> Result<()> {
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    eventually(SOON, "the policy in force", || async {
        let answer = secrets.create(&dry_run, sent).await?;
        Ok((answer.type_ != sent.type_).then_some(()))
    })
    .await
}

#[tokio::test]
async fn a_policy_chooses_and_renames_keys_of_data() -> Result<()> {
    let scene = STAGE.scene("keys").await?;
    let namespace = scene.namespace().await?;
    let policy = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": scene.tag},
        "spec": {
            "match": {
                "kinds": [{"apiVersion": "v1", "kind": "Secret"}],
                "objectSelector": {"matchLabels": {"scene": scene.tag}},
            },
            "transform": {"data": {"exclude": ["*.old"], "rename": {"token": "password"}}},
        },
    });
    apply(&scene.client, &policy).await?;
    wait_active(&scene.client, &scene.tag).await?;
    let secrets = scene.secrets(&namespace);
    let sent = |name: &str| -> Result<Secret> {
        Ok(serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Secret", "data": {"token": "b25l", "token.old": "eA=="}, "stringData": {"user": "robin"},
            "metadata": {"name": name, "labels": {"scene": scene.tag}},
        }))?)
    };
    let keys = |secret: &Secret| {
        secret
            .data
            .iter()
            .flat_map(BTreeMap::keys)
            .cloned()
            .collect::<Vec<_>>()
    };
    eventually(SOON, "the policy in force", || async {
        let name = unique("probe");
        let created = secrets
            .create(&PostParams::default(), &sent(&name)?)
            .await?;
        Ok((keys(&created) == ["password", "user"]).then_some(()))
    })
    .await?;
    let (registry, params) = (sent("registry")?, PostParams::default());
    create_patiently(&secrets, &registry).await?;
    // The tool sends the former key. The renamed key of the stored object is replaced by the sent
    // one.
    let replaced = patiently(|| secrets.replace("registry", &params, &registry)).await?;
    assert_eq!(
        (keys(&replaced), value(&replaced, "password").as_deref()),
        (vec!["password".into(), "user".into()], Some("one"))
    );
    Ok(())
}

/// The policy applies to a namespace as long as the namespace's labels match. It changes both
/// kinds, also the bytes of a `ConfigMap`.
#[tokio::test]
async fn a_policy_follows_the_labels_of_namespaces_and_fills_in_their_names() -> Result<()> {
    let scene = STAGE.scene("selected").await?;
    let [here, excluded, other] = [
        scene.namespace().await?,
        scene.namespace().await?,
        scene.namespace().await?,
    ];
    relabel(&scene.client, &other, "scene", None).await?;
    let policy = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": scene.tag},
        "spec": {
            "match": {
                "kinds": [{"apiVersion": "v1", "kind": "Secret"}, {"apiVersion": "v1", "kind": "ConfigMap"}],
                "objectSelector": {"matchLabels": {"rewrite": scene.tag}},
                "namespaceSelector": {"matchLabels": {"scene": scene.tag}},
                "excludeNamespaces": [excluded],
            },
            "transform": {
                "annotations": {"exclude": ["example.com/drop*"], "set": {"example.com/of": "all of $(namespace.name)"}},
                "data": {"exclude": ["*.old"], "rename": {"a.bin": "b.bin"}},
            },
        },
    });
    apply(&scene.client, &policy).await?;
    wait_active(&scene.client, &scene.tag).await?;
    // Returns the stored annotations and keys of the object: those of the sender and those of the
    // policy.
    let stored = async |namespace: &str,
                        kind: &str|
           -> Result<(BTreeMap<String, String>, Vec<String>)> {
        let mut sent = json!({
            "apiVersion": "v1", "kind": kind, "data": {"user": "cm9ib3Q=", "user.old": "eA=="},
            "metadata": {
                "namespace": namespace, "name": unique("sent"), "labels": {"rewrite": scene.tag},
                "annotations": {"example.com/dropped": "x", "example.com/kept": "y"},
            },
        });
        let bytes = if kind == "Secret" {
            "data"
        } else {
            "binaryData"
        };
        sent[bytes]["a.bin"] = json!("/wD+");
        sent[bytes]["a.old"] = json!("/w==");
        let stored = apply(&scene.client, &sent).await?;
        let fields = ["data", "binaryData"]
            .map(|field| stored.data[field].as_object().cloned().unwrap_or_default());
        let keys: Vec<String> = fields
            .iter()
            .flat_map(|field| field.keys().cloned())
            .collect();
        assert!(!keys.contains(&"b.bin".to_owned()) || stored.data[bytes]["b.bin"] == "/wD+");
        Ok((stored.annotations().clone(), keys))
    };
    let kept = ("example.com/kept".to_owned(), "y".to_owned());
    let rewritten = |namespace: &str| {
        let of = ("example.com/of".to_owned(), format!("all of {namespace}"));
        (BTreeMap::from([kept.clone(), of]), ["b.bin", "user"])
    };
    let untouched = BTreeMap::from([
        kept.clone(),
        ("example.com/dropped".to_owned(), "x".to_owned()),
    ]);
    let is_rewritten = async |namespace: &str, kind: &str| {
        eventually(
            SOON,
            format!("a rewritten {kind} in {namespace}"),
            || async {
                let (annotations, mut keys) = stored(namespace, kind).await?;
                keys.sort();
                let (want, want_keys) = rewritten(namespace);
                ensure!(
                    (&annotations, &*keys) == (&want, &want_keys.map(str::to_owned)[..]),
                    "{annotations:?} {keys:?}"
                );
                Ok(Some(()))
            },
        )
        .await
    };
    let is_left = async |namespace: &str, kind: &str| {
        eventually(
            SOON,
            format!("a {kind} left as it is in {namespace}"),
            || async {
                let (annotations, mut keys) = stored(namespace, kind).await?;
                keys.sort();
                ensure!(
                    annotations == untouched && keys == ["a.bin", "a.old", "user", "user.old"],
                    "{annotations:?} {keys:?}"
                );
                Ok(Some(()))
            },
        )
        .await
    };
    for kind in ["Secret", "ConfigMap"] {
        is_rewritten(&here, kind).await?;
        assert_eq!(
            stored(&excluded, kind).await?.0,
            untouched,
            "{kind}: excluded"
        );
        assert_eq!(
            stored(&other, kind).await?.0,
            untouched,
            "{kind}: not selected"
        );
    }
    relabel(&scene.client, &other, "scene", Some(&scene.tag)).await?;
    relabel(&scene.client, &here, "scene", None).await?;
    for kind in ["Secret", "ConfigMap"] {
        is_rewritten(&other, kind).await?;
        is_left(&here, kind).await?;
    }
    Ok(())
}

/// No policy applies to the namespaces of the cluster or of Mimeo. Nothing there may depend on a
/// webhook.
#[tokio::test]
async fn a_policy_rewrites_nothing_in_the_systems_namespaces_and_mimeos_own() -> Result<()> {
    let scene = STAGE.scene("exempt").await?;
    let namespace = scene.namespace().await?;
    let policy = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": scene.tag},
        "spec": {
            "match": {
                "kinds": [{"apiVersion": "v1", "kind": "Secret"}],
                "objectSelector": {"matchLabels": {"rewrite": scene.tag}},
            },
            "transform": {"labels": {"set": {"rewritten": "yes"}}},
            "failurePolicy": "Fail",
        },
    });
    apply(&scene.client, &policy).await?;
    wait_active(&scene.client, &scene.tag).await?;
    let sent = || -> Result<Secret> {
        Ok(serde_json::from_value(
            json!({"metadata": {"name": unique("sent"), "labels": {"rewrite": scene.tag}}}),
        )?)
    };
    let params = PostParams::default();
    eventually(SOON, "the policy in force", || async {
        let created = scene.secrets(&namespace).create(&params, &sent()?).await?;
        Ok(label(&created, "rewritten").map(drop))
    })
    .await?;
    for namespace in ["kube-system", "kube-public", "kube-node-lease", NAMESPACE] {
        let secrets = scene.secrets(namespace);
        let created = secrets.create(&params, &sent()?).await?;
        assert_eq!(label(&created, "rewritten"), None, "created in {namespace}");
        let changed = merge(
            &secrets,
            &created.name_any(),
            json!({"data": {"a": "eA=="}}),
        )
        .await?;
        assert_eq!(label(&changed, "rewritten"), None, "changed in {namespace}");
        delete(&secrets, &created.name_any()).await?;
    }
    // The policy is still in force.
    let (created, _) = create_patiently(&scene.secrets(&namespace), &sent()?).await?;
    assert_eq!(label(&created, "rewritten"), Some("yes"));
    Ok(())
}

/// The API server escapes markup in a review, which makes it six times as large as in etcd. The
/// review of an update also has the old object.
#[tokio::test]
async fn as_much_markup_as_an_object_can_hold_is_rewritten() -> Result<()> {
    let _turn = LOAD.lock().await;
    let scene = STAGE.scene("markup").await?;
    let namespace = scene.namespace().await?;
    let policy = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": scene.tag},
        "spec": {
            "match": {
                "kinds": [{"apiVersion": "v1", "kind": "ConfigMap"}],
                "objectSelector": {"matchLabels": {"scene": scene.tag}},
            },
            "transform": {"labels": {"set": {"rewritten": "yes"}}},
            "failurePolicy": "Ignore",
        },
    });
    apply(&scene.client, &policy).await?;
    wait_active(&scene.client, &scene.tag).await?;
    let maps: Api<ConfigMap> = of(&scene.client, &namespace);
    let sent = |name: &str, markup: &str| -> Result<ConfigMap> {
        Ok(serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"scene": scene.tag}}, "data": {"page": markup},
        }))?)
    };
    let params = PostParams::default();
    eventually(SOON, "the policy in force", || async {
        let created = maps.create(&params, &sent(&unique("probe"), "<")?).await?;
        Ok(label(&created, "rewritten").map(drop))
    })
    .await?;
    let full = |markup: &str| sent("page", &markup.repeat(1 << 20));
    maps.create(&params, &full("<")?).await?;
    for markup in [">", "&"] {
        let page = full(markup)?;
        // On a busy machine, the API server may have to go on without the webhook's answer.
        eventually(SOON, format!("a rewritten page of {markup}"), || async {
            let replaced = maps.replace("page", &params, &page).await?;
            Ok((label(&replaced, "rewritten") == Some("yes")).then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// A review that is too large is a failed call. The author of a refused request learns the reason.
#[tokio::test]
async fn who_writes_more_than_a_policy_can_read_is_told_so() -> Result<()> {
    let _turn = LOAD.lock().await;
    let scene = STAGE.scene("many").await?;
    let namespace = scene.namespace().await?;
    let policy = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": scene.tag},
        "spec": {
            "match": {
                "kinds": [{"apiVersion": "v1", "kind": "ConfigMap"}],
                "objectSelector": {"matchLabels": {"scene": scene.tag}},
            },
            "transform": {"labels": {"set": {"rewritten": "yes"}}},
        },
    });
    apply(&scene.client, &policy).await?;
    wait_active(&scene.client, &scene.tag).await?;
    let maps: Api<ConfigMap> = of(&scene.client, &namespace);
    let keys: serde_json::Map<String, Value> = (0..30_000)
        .map(|number| (number.to_string(), json!("")))
        .collect();
    eventually(SOON, "it to be refused", || async {
        let map = json!({"metadata": {"name": unique("many"), "labels": {"scene": scene.tag}}, "data": keys});
        let refused = maps.create(&PostParams::default(), &serde_json::from_value(map)?).await;
        let Err(kube::Error::Api(status)) = refused else { bail!("it was let through: {refused:?}") };
        let told = status.message.contains("failed calling webhook") && status.message.contains("too many values");
        ensure!(told, "{}", status.message);
        Ok(Some(()))
    })
    .await
}

#[tokio::test]
async fn without_a_webhook_a_policy_fails_or_is_ignored_as_it_says() -> Result<()> {
    let mut setting = Setting::start(
        ControlPlane::builder().controller_manager(false),
        Pair::builder().reconciler(false),
    )
    .await?;
    let client = setting.control_plane.client().await?;
    let namespace = unique("team");
    create_namespace(&client, &namespace, &[]).await?;
    let secrets: Api<Secret> = of(&client, &namespace);
    let sent = |name: &str| -> Result<Secret> {
        Ok(serde_json::from_value(
            json!({"metadata": {"name": unique(name), "labels": {"policy": name}}, "type": "a/b"}),
        )?)
    };
    for failure_policy in ["Fail", "Ignore"] {
        let name = failure_policy.to_lowercase();
        let matched = json!({"kinds": [{"apiVersion": "v1", "kind": "Secret"}], "objectSelector": {"matchLabels": {"policy": name}}});
        let spec = json!({"match": matched, "transform": {"type": "c/d"}, "failurePolicy": failure_policy});
        let metadata = json!({"name": name});
        apply(
            &client,
            &json!({"apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": metadata, "spec": spec}),
        )
        .await?;
        wait_active(&client, &name).await?;
        wait_rewritten(&secrets, &sent(&name)?).await?;
    }
    setting.pair.webhooks[0].program.kill()?;
    let params = PostParams::default();
    let refused = secrets
        .create(&params, &sent("fail")?)
        .await
        .expect_err("no webhook runs");
    assert!(
        refused.to_string().contains("policies.mimeo.dev"),
        "{refused}"
    );
    for name in ["ignore", "none"] {
        assert_eq!(
            secrets
                .create(&params, &sent(name)?)
                .await?
                .type_
                .as_deref(),
            Some("a/b")
        );
    }
    setting.pair.webhooks.clear();
    setting.pair.start_webhook().await?;
    wait_rewritten(&secrets, &sent("fail")?).await?;
    // Without the policy, the request succeeds.
    delete(&Api::<TransformPolicy>::all(client), "fail").await?;
    eventually(SOON, "the end of the policy", || async {
        let answer = secrets.create(&params, &sent("fail")?).await?;
        Ok((answer.type_.as_deref() == Some("a/b")).then_some(()))
    })
    .await
}
