//! The author of a rule is the user whose request writes its spec. The author is checked in that
//! request and at no other time. The annotation that names the author is only information for
//! people.

use std::io::Write as _;

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use mimeo_api::ClusterReplication;
use mimeo_tests::author::{Author, WRITE, secrets};
use mimeo_tests::scenario::{
    RuleSpec, SOON, Scene, Setting, annotation, apply, create, delete, forget_the_hooks, kubectl,
    merge, put, rule, value,
};
use mimeo_tests::traffic::patiently;
use mimeo_tests::{ControlPlane, Pair, eventually, skipped_before, unique};
use serde_json::{Value, json};

use crate::stages::SHIPPED as STAGE;

const AUTHOR: &str = "mimeo.dev/author";

fn rules(client: &Client) -> Api<ClusterReplication> {
    Api::all(client.clone())
}

async fn noted(scene: &Scene<'_>, name: &str) -> Result<Option<String>> {
    Ok(annotation(&rules(&scene.client).get(name).await?, AUTHOR).map(str::to_owned))
}

/// Returns a user with every permission that a rule for Secrets uses.
async fn entitled<'a>(scene: &'a Scene<'a>) -> Result<Author<'a>> {
    let author = Author::new(scene, &[]).await?;
    author
        .may(None, &secrets(&[&WRITE[..], &["get"]].concat()))
        .await?;
    Ok(author)
}

fn of_registry(scene: &Scene<'_>) -> RuleSpec {
    rule(&unique(&scene.tag))
        .secret(&scene.home, "registry")
        .to_label("scene", &scene.tag)
}

/// Applies the patch, as soon as the API server knows that the user may update rules.
async fn patched(author: &Author<'_>, name: &str, patch: &Value) -> Result<ClusterReplication> {
    let patch = Patch::Merge(patch);
    eventually(SOON, format!("{name} patched"), || async {
        Ok(Some(
            rules(&author.client)
                .patch(name, &PatchParams::default(), &patch)
                .await?,
        ))
    })
    .await
}

/// Waits until the change is refused for missing permissions.
async fn refused(author: &Author<'_>, name: &str, patch: &Value) -> Result<String> {
    let patch = Patch::Merge(patch);
    eventually(SOON, format!("{patch:?} of {name} refused"), || async {
        match rules(&author.client)
            .patch(name, &PatchParams::default(), &patch)
            .await
        {
            Err(kube::Error::Api(status)) if status.message.contains("rules.mimeo.dev") => {
                Ok(Some(status.message))
            }
            Err(error) => bail!("{error}"),
            Ok(_) => bail!("it was accepted"),
        }
    })
    .await
}

#[tokio::test]
async fn an_annotation_on_a_new_rule_spares_nobody_the_check() -> Result<()> {
    let scene = STAGE.scene("forged").await?;
    let (ann, bob) = (entitled(&scene).await?, Author::new(&scene, &[]).await?);
    let mut forged = of_registry(&scene).object();
    forged["metadata"]["annotations"] =
        json!({AUTHOR: ann.name, "mimeo.dev/author-seal": "00", "note": "x"});
    let name = forged["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    for annotation in [
        json!(ann.name),
        json!(r#"{"username":"system:admin","groups":["system:masters"]}"#),
        json!("unknown"),
    ] {
        forged["metadata"]["annotations"][AUTHOR] = annotation;
        let object = serde_json::from_value(forged.clone())?;
        let message = eventually(SOON, "the forged rule refused", || async {
            match rules(&bob.client)
                .create(&PostParams::default(), &object)
                .await
            {
                Err(kube::Error::Api(status)) if status.message.contains("rules.mimeo.dev") => {
                    Ok(Some(status.message))
                }
                Err(error) => bail!("{error}"),
                Ok(_) => bail!("it was accepted"),
            }
        })
        .await?;
        ensure!(
            message.contains(&bob.name) && message.contains("get secrets/registry"),
            "{message}"
        );
        ensure!(
            rules(&scene.client).get_opt(&name).await?.is_none(),
            "refused and stored"
        );
    }
    // The author is the user with the permissions. The name in the annotation makes no difference.
    eventually(SOON, "the rule accepted", || async {
        Ok(Some(
            create(&ann.client, "clusterreplications", &forged).await?,
        ))
    })
    .await?;
    let stored = rules(&scene.client).get(&name).await?;
    assert_eq!(
        [AUTHOR, "note"].map(|key| annotation(&stored, key)),
        [Some(&*ann.name), Some("x")]
    );
    Ok(())
}

#[tokio::test]
async fn a_write_of_metadata_makes_no_author_and_is_not_checked() -> Result<()> {
    let scene = STAGE.scene("metadata").await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let namespace = scene.namespace().await?;
    let (ann, bob) = (entitled(&scene).await?, Author::new(&scene, &[]).await?);
    let spec = of_registry(&scene);
    ann.accepted(&spec).await?;
    scene.wait_secret(&namespace, "registry", |_| true).await?;
    for change in [
        json!({"labels": {"team": "b"}}),
        json!({"finalizers": ["example.com/held"]}),
        json!({"finalizers": []}),
        json!({"annotations": {AUTHOR: null}}),
        json!({"annotations": {AUTHOR: bob.name}}),
        json!({"annotations": {AUTHOR: "me"}}),
    ] {
        let written = patched(&bob, &spec.name, &json!({"metadata": change})).await?;
        assert_eq!(annotation(&written, AUTHOR), Some(&*ann.name), "{change}");
    }
    let (bobs, params) = (rules(&bob.client), PostParams::default());
    // The reconciler may write the status between the read and the write.
    let replaced = eventually(SOON, "a rule that is replaced", || async {
        let current = bobs.get(&spec.name).await?;
        let (replaced, _) = patiently(|| bobs.replace(&spec.name, &params, &current)).await?;
        Ok(Some(replaced))
    })
    .await?;
    assert_eq!(
        annotation(&replaced, AUTHOR),
        Some(&*ann.name),
        "a storage migration writes the object as it is"
    );

    // For a change of the spec, the user of the request needs the permissions.
    let message = refused(&bob, &spec.name, &json!({"spec": {"strategy": "Replace"}})).await?;
    ensure!(
        message.contains(&bob.name) && message.contains("may not"),
        "{message}"
    );
    assert_eq!(
        noted(&scene, &spec.name).await?.as_deref(),
        Some(&*ann.name)
    );
    merge(
        &rules(&scene.client),
        &spec.name,
        json!({"spec": {"strategy": "Replace"}}),
    )
    .await?;
    assert_ne!(
        noted(&scene, &spec.name).await?.as_deref(),
        Some(&*ann.name),
        "the author is the last writer of the spec"
    );
    Ok(())
}

#[tokio::test]
async fn a_user_who_may_only_update_a_rule_suspends_it_and_changes_nothing_else() -> Result<()> {
    let scene = STAGE.scene("less").await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let (one, two) = (scene.namespace().await?, scene.namespace().await?);
    let (ann, bob) = (entitled(&scene).await?, Author::new(&scene, &[]).await?);
    ann.may(None, &json!({"apiGroups": ["mimeo.dev"], "resources": ["clusterreplications"], "verbs": ["gate"]}))
        .await?;
    let targets = json!([{"namespaces": [one, two]}, {"namespaceSelector": {"matchLabels": {"never": "set"}}}]);
    let spec = rule(&unique(&scene.tag))
        .secret(&scene.home, "registry")
        .set("targets", targets);
    let spec = spec.set("podGate", json!("Required"));
    ann.accepted(&spec).await?;
    scene.wait_secret(&two, "registry", |_| true).await?;
    let others = [
        json!({"podGate": "BestEffort"}),
        json!({"targets": [{"namespaces": [one]}]}),
        json!({"exclude": [{"namespaces": ["other"]}]}),
        json!({"strategy": "Replace"}),
        json!({"targets": [{"namespaces": [one]}], "suspend": true}),
    ];
    for other in &others {
        refused(&bob, &spec.name, &json!({"spec": other})).await?;
    }
    patched(&bob, &spec.name, &json!({"spec": {"suspend": true}})).await?;
    for other in &others[..4] {
        refused(&bob, &spec.name, &json!({"spec": other})).await?;
    }
    refused(&bob, &spec.name, &json!({"spec": {"suspend": false}})).await?;
    let resumed = json!({"suspend": false, "targets": [{"namespaces": [one]}]});
    patched(&ann, &spec.name, &json!({"spec": resumed})).await?;
    mimeo_tests::scenario::wait_gone(scene.secrets(&two), "registry").await?;
    ensure!(scene.secrets(&one).get_opt("registry").await?.is_some());
    Ok(())
}

#[tokio::test]
async fn a_rule_that_holds_pods_back_takes_the_verb_gate() -> Result<()> {
    let scene = STAGE.scene("gate").await?;
    let ann = entitled(&scene).await?;
    // Permissions on Leases are of no use for it.
    ann.may(
        None,
        &json!({"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]}),
    )
    .await?;
    let spec = of_registry(&scene).set("podGate", json!("Required"));
    ann.refused(
        &spec,
        &["may not gate clusterreplications.mimeo.dev/", &spec.name],
    )
    .await?;
    let gate = json!({
        "apiGroups": ["mimeo.dev"], "resources": ["clusterreplications"], "resourceNames": [spec.name], "verbs": ["gate"],
    });
    ann.may(None, &gate).await?;
    ann.accepted(&spec).await?;
    ann.refused(
        &of_registry(&scene).set("podGate", json!("Required")),
        &["may not gate"],
    )
    .await?;
    Ok(())
}

/// A selector finds later objects, too. So the permission to read one object is not enough.
#[tokio::test]
async fn a_rule_that_selects_takes_the_permission_to_list() -> Result<()> {
    let scene = STAGE.scene("selects").await?;
    let ann = entitled(&scene).await?;
    let selecting = rule(&unique(&scene.tag)).to_label("scene", &scene.tag);
    let selecting = selecting.selected(
        "v1",
        "Secret",
        &scene.home,
        &json!({"matchLabels": {"copy": "yes"}}),
    );
    ann.refused(
        &selecting,
        &["may not list secrets in namespace", &scene.home],
    )
    .await?;
    ann.may(Some(&scene.home), &secrets(&["list"])).await?;
    ann.accepted(&selecting).await
}

#[tokio::test]
async fn applying_a_rule_again_keeps_its_author() -> Result<()> {
    let scene = STAGE.scene("again").await?;
    for how in [&["apply"][..], &["apply", "--server-side"]] {
        let spec = of_registry(&scene);
        let mut file = tempfile::NamedTempFile::with_suffix(".json")?;
        file.write_all(spec.object().to_string().as_bytes())?;
        let path = file.path().display().to_string();
        let args = || {
            how.iter()
                .map(ToString::to_string)
                .chain(["-f".to_owned(), path.clone()])
        };
        kubectl(&scene.setting.control_plane, args())?;
        let first = noted(&scene, &spec.name).await?;
        ensure!(first.is_some());
        kubectl(&scene.setting.control_plane, args())?;
        assert_eq!(noted(&scene, &spec.name).await?, first, "{how:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_rule_whose_name_the_api_server_makes_up_has_an_author_too() -> Result<()> {
    let scene = STAGE.scene("generate").await?;
    let ann = entitled(&scene).await?;
    let mut object = of_registry(&scene).object();
    object["metadata"] = json!({"generateName": format!("{}-", scene.tag)});
    let object: ClusterReplication = serde_json::from_value(object)?;
    let made = eventually(SOON, "the rule accepted", || async {
        Ok(Some(
            rules(&ann.client)
                .create(&PostParams::default(), &object)
                .await?,
        ))
    })
    .await?;
    ensure!(
        made.metadata
            .name
            .as_ref()
            .is_some_and(|name| name.len() == scene.tag.len() + 6),
        "{:?}",
        made.metadata.name
    );
    assert_eq!(annotation(&made, AUTHOR), Some(&*ann.name));
    Ok(())
}

/// Other admission plugins run before the webhooks. They run again after them if a webhook changes
/// the rule.
#[tokio::test]
async fn the_spec_that_is_checked_is_the_one_that_is_stored() -> Result<()> {
    let scene = STAGE.scene("after").await?;
    if skipped_before(&scene.client, 36, "MutatingAdmissionPolicy v1").await? {
        return Ok(());
    }
    let name = unique(&scene.tag);
    let named = |kind: &str, spec: Value| json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let noted =
        format!("has(object.metadata.annotations) && '{AUTHOR}' in object.metadata.annotations");
    // A rule of another scene may have no name yet. An expression that fails would refuse the rule.
    let mine = format!(
        "has(object.metadata.name) && object.metadata.name.startsWith('{}')",
        scene.tag
    );
    let resources = json!({
        "apiGroups": ["mimeo.dev"], "apiVersions": ["v1alpha1"], "resources": ["clusterreplications"],
        "operations": ["CREATE", "UPDATE"],
    });
    let policy = named(
        "MutatingAdmissionPolicy",
        json!({
            "matchConstraints": {"resourceRules": [resources]},
            "matchConditions": [{"name": "mine", "expression": mine}],
            "failurePolicy": "Fail", "reinvocationPolicy": "IfNeeded",
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {
                "expression": format!("{noted} ? Object{{spec: Object.spec{{podGate: 'Required'}}}} : Object{{}}"),
            }}],
        }),
    );
    apply(&scene.client, &policy).await?;
    apply(
        &scene.client,
        &named(
            "MutatingAdmissionPolicyBinding",
            json!({"policyName": name}),
        ),
    )
    .await?;
    let ann = entitled(&scene).await?;
    // The author's own rule gates no pods, but the policy changes it to one that does. The test
    // uses dry runs until the policy is in force.
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    ann.refused_as(&dry_run, &of_registry(&scene), &["may not gate"])
        .await?;
    ann.refused(&of_registry(&scene), &["may not gate"]).await?;
    Ok(())
}

/// Kubernetes treats Roles the same way: an object that was permitted when it was written stays in
/// force.
#[tokio::test]
async fn a_rule_stays_in_force_when_its_author_loses_a_permission() -> Result<()> {
    let scene = STAGE.scene("lost").await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let namespace = scene.namespace().await?;
    let ann = Author::new(&scene, &[]).await?;
    ann.may(None, &secrets(&WRITE)).await?;
    let reads = ann.may(Some(&scene.home), &secrets(&["get"])).await?;
    let spec = of_registry(&scene);
    ann.accepted(&spec).await?;
    scene.wait_secret(&namespace, "registry", |_| true).await?;
    let bindings: Api<RoleBinding> = Api::namespaced(scene.client.clone(), &scene.home);
    delete(&bindings, &reads).await?;
    ann.refused(&of_registry(&scene), &["may not get secrets/registry"])
        .await?;
    put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    scene
        .wait_secret(&namespace, "registry", |copy| {
            value(copy, "token").as_deref() == Some("two")
        })
        .await?;
    Ok(())
}

/// While no webhook is registered, only RBAC on Mimeo's kinds protects the rules.
#[tokio::test]
async fn a_rule_stored_without_the_webhook_is_in_force_and_its_next_spec_is_checked() -> Result<()>
{
    let mut setting =
        Setting::start(ControlPlane::builder(), Pair::builder().shipped_rights()).await?;
    setting.pair.stop_webhooks().await?;
    let (spec, home, tag);
    {
        let scene = setting.scene("past").await?;
        scene.secret("registry", &[("token", "one")]).await?;
        forget_the_hooks(&scene.client).await?;
        spec = of_registry(&scene);
        let object = serde_json::from_value(spec.object())?;
        eventually(SOON, "a rule stored without the webhook", || async {
            Ok(Some(
                rules(&scene.client)
                    .create(&PostParams::default(), &object)
                    .await?,
            ))
        })
        .await?;
        ensure!(noted(&scene, &spec.name).await?.is_none());
        let namespace = scene.namespace().await?;
        scene.wait_secret(&namespace, "registry", |_| true).await?;
        (home, tag) = (scene.home.clone(), scene.tag.clone());
    }
    setting.pair.start_webhook().await?;
    let scene = Scene {
        setting: &setting,
        client: setting.control_plane.client().await?,
        tag,
        home,
    };
    let bob = Author::new(&scene, &[]).await?;
    let touched = patched(
        &bob,
        &spec.name,
        &json!({"metadata": {"annotations": {AUTHOR: bob.name}}}),
    )
    .await?;
    ensure!(
        annotation(&touched, AUTHOR).is_none(),
        "an unknown author is not invented"
    );
    refused(&bob, &spec.name, &json!({"spec": {"strategy": "Replace"}})).await?;
    Ok(())
}
