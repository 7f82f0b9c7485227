//! Who the author of a rule is: stamped by the webhook, whatever whoever writes the rule says. And what becomes of the rules of those
//! who may not, or of nobody.

use std::{io::Write as _, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleBinding};
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use mimeo_api::{ClusterReplication, ClusterReplicationStatus};
use mimeo_tests::author::{Author, WRITE, secrets};
use mimeo_tests::scenario::{
    RuleSpec, SOON, Scene, Setting, Stage, annotation, apply, condition, create, delete, forget_the_hooks, kubectl,
    merge, of, put, rule, value,
};
use mimeo_tests::traffic::{pod, stubbornly};
use mimeo_tests::{AuditEvent, ControlPlane, Pair, eventually, unique};
use serde_json::{Value, json};

const AUTHOR: &str = "mimeo.dev/author";
const SEAL: &str = "mimeo.dev/author-seal";

static STAGE: Stage = Stage::new(ControlPlane::builder, || Pair::builder().shipped_rights());

/// Author and seal.
type Stamp = (String, String);

fn stamp_of(rule: &ClusterReplication) -> Option<Stamp> {
    Some((annotation(rule, AUTHOR)?.to_owned(), annotation(rule, SEAL)?.to_owned()))
}

async fn stamp(scene: &Scene<'_>, name: &str) -> Result<Option<Stamp>> {
    Ok(stamp_of(&rules(&scene.client).get(name).await?))
}

fn rules(client: &Client) -> Api<ClusterReplication> {
    Api::all(client.clone())
}

/// The name of the author that a stamp shows.
fn author_in(stamp: Option<Stamp>) -> Result<String> {
    let (author, _) = stamp.context("no stamp")?;
    let author: Value = serde_json::from_str(&author)?;
    Ok(author["username"].as_str().unwrap_or_default().to_owned())
}

/// Somebody who may do all that a rule takes for Secrets.
async fn entitled<'a>(scene: &'a Scene<'a>) -> Result<Author<'a>> {
    let author = Author::new(scene, &[]).await?;
    author.may(None, &secrets(&[&WRITE[..], &["get"]].concat())).await?;
    Ok(author)
}

fn of_registry(scene: &Scene<'_>) -> RuleSpec {
    rule(&unique(&scene.tag)).secret(&scene.home, "registry").to_label("scene", &scene.tag)
}

#[tokio::test]
async fn who_writes_a_spec_is_its_author_whatever_the_rule_says() -> Result<()> {
    let scene = STAGE.scene("stamp").await?;
    let (ann, admin) = (entitled(&scene).await?, &scene.client);
    let spec = of_registry(&scene);
    let mut object = spec.object();
    object["metadata"]["annotations"] = json!({AUTHOR: r#"{"username":"system:admin"}"#, SEAL: "00", "note": "x"});
    ann.accepted(&RuleSpec { name: spec.name.clone(), ..spec.clone() }).await?;
    let first = stamp(&scene, &spec.name).await?;
    assert_eq!(author_in(first.clone())?, ann.name);

    // Another's stamp on a new rule is not stored, and she isn't taken for its author unasked.
    let other = unique(&scene.tag);
    object["metadata"]["name"] = json!(other);
    create(&ann.client, "clusterreplications", &object).await?;
    let all = rules(admin);
    let created = all.get(&other).await?;
    assert_eq!([AUTHOR, SEAL, "note"].map(|key| annotation(&created, key)), [Some("unknown"), None, Some("x")]);
    scene.wait_condition(&other, "Authorized", "False", "AuthorUnknown").await?;
    merge(&rules(&ann.client), &other, json!({"metadata": {"annotations": {AUTHOR: "me"}}})).await?;
    assert_eq!(author_in(stamp(&scene, &other).await?)?, ann.name);
    assert_ne!(stamp(&scene, &other).await?, first, "a stamp is of one rule");
    // One that says who she is, as of a rule that she has read, is as good as none.
    let again = unique(&scene.tag);
    object["metadata"]["name"] = json!(again);
    let (author, seal) = first.clone().context("no stamp")?;
    object["metadata"]["annotations"] = json!({AUTHOR: author, SEAL: seal});
    create(&ann.client, "clusterreplications", &object).await?;
    assert_eq!(author_in(stamp(&scene, &again).await?)?, ann.name);
    assert_ne!(stamp(&scene, &again).await?, first);

    // What others do to the metadata changes nothing, and takes no right but to the rule.
    let bob = Author::new(&scene, &[]).await?;
    for change in [
        json!({"labels": {"team": "b"}}),
        json!({"annotations": {AUTHOR: null, SEAL: null}}),
        json!({"annotations": {SEAL: "00"}}),
        json!({"annotations": {AUTHOR: format!(r#"{{"username":"{}"}}"#, bob.name)}}),
    ] {
        let written = merge(&rules(&bob.client), &spec.name, json!({"metadata": change})).await?;
        assert_eq!(stamp_of(&written), first, "{change}");
    }

    // Another spec is another's, and so is the same if somebody who holds the rights asks for it.
    merge(&all, &spec.name, json!({"spec": {"barrier": "None"}})).await?;
    let second = stamp(&scene, &spec.name).await?;
    assert_ne!(author_in(second)?, ann.name);
    let told = merge(&rules(&ann.client), &spec.name, json!({"metadata": {"annotations": {AUTHOR: "me"}}})).await?;
    assert_eq!(author_in(stamp_of(&told))?, ann.name);
    Ok(())
}

/// What a selector finds, now and later, takes more than the right to read one Secret.
#[tokio::test]
async fn who_may_not_list_does_not_become_the_author_of_a_rule_that_selects() -> Result<()> {
    let scene = STAGE.scene("selects").await?;
    let (ann, bob) = (entitled(&scene).await?, entitled(&scene).await?);
    ann.may(Some(&scene.home), &secrets(&["list"])).await?;
    let selecting = rule(&unique(&scene.tag)).to_label("scene", &scene.tag);
    let selecting = selecting.selected("v1", "Secret", &scene.home, &json!({"matchLabels": {"copy": "yes"}}));
    let naming = of_registry(&scene);
    ann.accepted(&selecting).await?;
    ann.accepted(&naming).await?;
    let takes = async |rule: &RuleSpec| -> Result<bool> {
        let touch = json!({"metadata": {"annotations": {AUTHOR: "me"}}});
        let touched = merge(&rules(&bob.client), &rule.name, touch).await?;
        Ok(author_in(stamp_of(&touched))? == bob.name)
    };
    eventually(SOON, "his other rights", || async { Ok(takes(&naming).await?.then_some(())) }).await?;
    assert!(!takes(&selecting).await?, "he may get and write Secrets, and not list them");
    bob.may(Some(&scene.home), &secrets(&["list"])).await?;
    eventually(SOON, "his right to list", || async { Ok(takes(&selecting).await?.then_some(())) }).await
}

#[tokio::test]
async fn applying_a_rule_again_keeps_its_author() -> Result<()> {
    let scene = STAGE.scene("again").await?;
    for how in [&["apply"][..], &["apply", "--server-side"]] {
        let spec = of_registry(&scene);
        let mut file = tempfile::NamedTempFile::with_suffix(".json")?;
        file.write_all(spec.object().to_string().as_bytes())?;
        let path = file.path().display().to_string();
        let args = || how.iter().map(ToString::to_string).chain(["-f".to_owned(), path.clone()]);
        kubectl(&scene.setting.control_plane, args())?;
        let first = stamp(&scene, &spec.name).await?;
        ensure!(first.is_some());
        kubectl(&scene.setting.control_plane, args())?;
        assert_eq!(stamp(&scene, &spec.name).await?, first, "{how:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_rule_whose_name_is_made_up_has_an_author_too() -> Result<()> {
    let scene = STAGE.scene("generate").await?;
    let mut object = of_registry(&scene).object();
    object["metadata"] = json!({"generateName": format!("{}-", scene.tag)});
    for params in [PostParams::default(), PostParams { dry_run: true, ..PostParams::default() }] {
        let made = rules(&scene.client).create(&params, &serde_json::from_value(object.clone())?).await?;
        let name = made.metadata.name.clone().unwrap_or_default();
        let letters = name.strip_prefix(&format!("{}-", scene.tag)).context("another name")?;
        assert!(letters.len() == 5 && stamp_of(&made).is_some(), "{name}");
        assert_eq!(rules(&scene.client).get_opt(&name).await?.is_some(), !params.dry_run);
    }
    Ok(())
}

/// It runs before the webhooks and, since they change the rule, once more after them.
#[tokio::test]
async fn a_spec_that_others_change_after_the_stamp_is_stamped_once_more() -> Result<()> {
    let scene = STAGE.scene("after").await?;
    let name = unique(&scene.tag);
    let named = |kind: &str, spec: Value| json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let stamped = format!("has(object.metadata.annotations) && '{SEAL}' in object.metadata.annotations");
    // A rule of another scene may have no name yet, and what can't be evaluated refuses it.
    let mine = format!("has(object.metadata.name) && object.metadata.name.startsWith('{}')", scene.tag);
    let rule = json!({
        "apiGroups": ["mimeo.dev"], "apiVersions": ["v1alpha1"], "resources": ["clusterreplications"],
        "operations": ["CREATE", "UPDATE"],
    });
    let policy = named(
        "MutatingAdmissionPolicy",
        json!({
            "matchConstraints": {"resourceRules": [rule]},
            "matchConditions": [{"name": "mine", "expression": mine}],
            "failurePolicy": "Fail", "reinvocationPolicy": "IfNeeded",
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {
                // What changes nothing the first time is asked again all the same.
                "expression": format!("{stamped} ? Object{{spec: Object.spec{{barrier: 'None'}}}} : Object{{}}"),
            }}],
        }),
    );
    apply(&scene.client, &policy).await?;
    apply(&scene.client, &named("MutatingAdmissionPolicyBinding", json!({"policyName": name}))).await?;
    let spec = of_registry(&scene);
    eventually(SOON, "the policy in force", || async {
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let made = rules(&scene.client).create(&params, &serde_json::from_value(spec.object())?).await?;
        Ok((made.spec.barrier == mimeo_api::Barrier::None).then_some(()))
    })
    .await?;
    let made = rules(&scene.client).create(&PostParams::default(), &serde_json::from_value(spec.object())?).await?;
    assert_eq!(made.spec.barrier, mimeo_api::Barrier::None);
    let first = stamp_of(&made);
    ensure!(first.is_some());
    // It is of what is stored: else this would be no word about the metadata alone.
    let bob = Author::new(&scene, &[]).await?;
    let touch = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    // Authorizers learn of his right a moment after it is stored.
    let touched = eventually(SOON, "his right to touch it", || async {
        Ok(Some(rules(&bob.client).patch(&spec.name, &PatchParams::default(), &touch).await?))
    })
    .await?;
    assert_eq!(stamp_of(&touched), first);
    Ok(())
}

// ---- what becomes of a rule whose author may not ----

/// Waits until the rule says so; returns all that it says.
async fn told(scene: &Scene<'_>, rule: &str, status: &str, reason: &str) -> Result<ClusterReplicationStatus> {
    scene.wait_condition(rule, "Authorized", status, reason).await
}

/// A rule of the admin's for the same namespaces: what it has carried by now, another had the time to.
async fn pace(scene: &Scene<'_>) -> Result<RuleSpec> {
    let pace = of_registry(scene).named("pace");
    pace.create(&scene.client).await?;
    scene.wait_synced(&pace.name).await?;
    Ok(pace)
}

#[tokio::test]
async fn who_loses_a_right_is_acted_for_no_more_until_they_have_it_again() -> Result<()> {
    let scene = STAGE.scene("lost").await?;
    let old = scene.namespace().await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let ann = Author::new(&scene, &[]).await?;
    ann.may(None, &secrets(&WRITE)).await?;
    let reads = ann.may(Some(&scene.home), &secrets(&["get"])).await?;
    let rule = of_registry(&scene).set("barrier", json!("Required"));
    ann.accepted(&rule).await?;
    told(&scene, &rule.name, "True", "Allowed").await?;
    scene.wait_synced(&rule.name).await?;
    pace(&scene).await?;

    let bindings: Api<RoleBinding> = Api::namespaced(scene.client.clone(), &scene.home);
    let binding = bindings.get(&reads).await?;
    delete(&bindings, &reads).await?;
    let status = told(&scene, &rule.name, "False", "AuthorDenied").await?;
    let missing = format!("user {:?} may not get secrets/registry in namespace {}", ann.name, scene.home);
    let ready = condition(&status, "Ready").context("no Ready")?;
    ensure!(ready.reason == "NotAuthorized" && ready.message.contains(&missing), "{ready:?}");
    ensure!(ready.message.contains(&format!("clusterreplication {} {AUTHOR}=me", rule.name)), "{ready:?}");
    ensure!(status.sources.is_empty() && status.failures.is_empty() && status.copies.is_none(), "{status:?}");

    // Neither a rotation is carried, nor a copy brought back, nor one deleted.
    let (one, other) = (scene.secrets(&old), scene.namespace().await?);
    put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    for namespace in [&old, &other] {
        scene.wait_secret(namespace, "pace", |copy| value(copy, "token").as_deref() == Some("two")).await?;
    }
    assert_eq!(value(&one.get("registry").await?, "token").as_deref(), Some("one"));
    assert!(scene.secrets(&other).get_opt("registry").await?.is_none());
    // Its barrier is still meant: without the copy no pod.
    let pods: Api<Pod> = Api::namespaced(scene.client.clone(), &other);
    eventually(SOON, "pods denied", || async {
        match pods.create(&PostParams::default(), &pod("first")).await {
            Err(kube::Error::Api(status)) if status.message.contains("Secret registry (AuthorDenied)") => Ok(Some(())),
            other => bail!("{:?}", other.map(|_| ())),
        }
    })
    .await?;

    bindings.create(&PostParams::default(), &RoleBinding { metadata: named(&reads), ..binding }).await?;
    told(&scene, &rule.name, "True", "Allowed").await?;
    for namespace in [&old, &other] {
        scene.wait_secret(namespace, "registry", |copy| value(copy, "token").as_deref() == Some("two")).await?;
    }
    let (params, second) = (PostParams::default(), pod("second"));
    stubbornly(|| pods.create(&params, &second)).await?;
    Ok(())
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }
}

/// Two rules of one author, of which both write Secrets everywhere.
#[tokio::test]
async fn equal_questions_are_asked_once_when_a_binding_changes() -> Result<()> {
    let setting = Setting::start(ControlPlane::builder().audit(true), Pair::builder().shipped_rights()).await?;
    let scene = setting.scene("equal").await?;
    scene.namespace().await?;
    let ann = entitled(&scene).await?;
    for name in ["one", "two"] {
        scene.secret(name, &[("token", "one")]).await?;
        let rule = rule(&unique(&scene.tag)).secret(&scene.home, name).to_label("scene", &scene.tag);
        ann.accepted(&rule).await?;
        scene.wait_synced(&rule.name).await?;
    }
    let asks =
        |event: &AuditEvent| event.resource == "subjectaccessreviews" && event.user.ends_with("mimeo-reconciler");
    let mark = setting.control_plane.audit_mark().await?;
    Author::new(&scene, &[]).await?;
    // For each source, and to create, update and delete copies.
    eventually(SOON, "five questions", || async {
        let asked = setting.control_plane.audit_since(&mark).await?.into_iter().filter(asks).count();
        if asked < 5 {
            bail!("{asked}")
        }
        assert_eq!(asked, 5);
        Ok(Some(()))
    })
    .await
}

/// What tells of changed rights may fail for long: the period finds them all the same.
#[tokio::test]
async fn an_author_who_loses_a_right_unseen_is_found_by_the_next_check() -> Result<()> {
    let pair = Pair::builder().shipped_rights().reconciler_args(["--author-check-period=2s"]);
    let mut setting = Setting::start(ControlPlane::builder(), pair).await?;
    let client = setting.control_plane.client().await?;
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let mut role = roles.get("mimeo-reconciler").await?;
    let of_rbac =
        |rule: &PolicyRule| rule.api_groups.iter().flatten().any(|group| group == "rbac.authorization.k8s.io");
    role.rules.iter_mut().for_each(|rules| rules.retain(|rule| !of_rbac(rule)));
    roles.replace("mimeo-reconciler", &PostParams::default(), &role).await?;
    let theirs = setting.pair.reconciler_user().client().await?;
    eventually(SOON, "bindings out of its sight", || async {
        match Api::<ClusterRoleBinding>::all(theirs.clone()).list(&ListParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(Some(())),
            answer => bail!("{:?}", answer.map(drop)),
        }
    })
    .await?;
    // A watch that was begun goes on.
    let mut former = setting.pair.reconciler.take().context("no reconciler runs")?;
    former.program.stop(Duration::from_secs(30)).await?;
    setting.pair.start_reconciler().await?;

    let scene = setting.scene("unseen").await?;
    let namespace = scene.namespace().await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let ann = Author::new(&scene, &[]).await?;
    let all = secrets(&[&WRITE[..], &["get"]].concat());
    let binding = ann.may(None, &all).await?;
    let rule = of_registry(&scene);
    ann.accepted(&rule).await?;
    scene.wait_synced(&rule.name).await?;
    Api::<ClusterRoleBinding>::all(client).delete(&binding, &DeleteParams::default()).await?;
    scene.wait_condition(&rule.name, "Authorized", "False", "AuthorDenied").await?;
    put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    ann.may(None, &all).await?;
    scene.wait_condition(&rule.name, "Authorized", "True", "Allowed").await?;
    scene.wait_secret(&namespace, "registry", |copy| value(copy, "token").as_deref() == Some("two")).await?;
    Ok(())
}

#[tokio::test]
async fn what_was_written_past_the_webhook_does_nothing_until_somebody_answers_for_it() -> Result<()> {
    let mut setting = Setting::start(ControlPlane::builder(), Pair::builder().shipped_rights()).await?;
    let (tag, home, old, ann, anns, edited);
    {
        let scene = setting.scene("past").await?;
        scene.secret("registry", &[("token", "one")]).await?;
        scene.secret("other", &[("token", "hunter2")]).await?;
        old = scene.namespace().await?;
        let author = entitled(&scene).await?;
        (anns, edited) = (of_registry(&scene), of_registry(&scene).named("edited"));
        for rule in [&anns, &edited] {
            author.accepted(rule).await?;
            scene.wait_synced(&rule.name).await?;
        }
        (tag, home, ann) = (scene.tag.clone(), scene.home.clone(), author.client.clone());
    }
    setting.pair.stop_webhooks().await?;
    let rule = |name: &str| rule(&unique(&tag)).secret(&home, "registry").to_label("scene", &tag).named(name);
    let (bare, copied) = (rule("bare"), rule("copied"));
    let bob;
    {
        let scene = Scene {
            setting: &setting,
            client: setting.control_plane.client().await?,
            tag: tag.clone(),
            home: home.clone(),
        };
        forget_the_hooks(&scene.client).await?;
        // He may write rules, and nothing else.
        let author = Author::new(&scene, &[]).await?;
        bob = rules(&author.client);
        let (name, seal) = stamp(&scene, &anns.name).await?.context("no stamp")?;
        for (rule, stamp) in [(&bare, json!({})), (&copied, json!({AUTHOR: name, SEAL: seal}))] {
            let mut object = rule.clone().set("barrier", json!("Required")).object();
            object["metadata"]["annotations"] = stamp;
            let object = serde_json::from_value(object)?;
            // Until every API server has forgotten the hooks.
            eventually(SOON, "a rule written past the webhook", || async {
                Ok(Some(bob.create(&PostParams::default(), &object).await?))
            })
            .await?;
        }
        // Another spec under a stamp that was true of the former.
        let other = json!([{"op": "replace", "path": "/spec/sources/0/name", "value": "other"}]);
        let patch: Patch<()> = Patch::Json(serde_json::from_value(other)?);
        let before = stamp(&scene, &edited.name).await?;
        let changed = bob.patch(&edited.name, &PatchParams::default(), &patch).await?;
        ensure!(before.is_some() && stamp_of(&changed) == before);
        nobody_is_known(&scene, &[&bare, &copied, &edited]).await?;
    }
    setting.pair.start_webhook().await?;
    let scene = Scene { setting: &setting, client: setting.control_plane.client().await?, tag, home };
    // Not by one who may not; nor does the webhook fill a namespace for such a rule, or hold its pods.
    let touch = json!({"metadata": {"annotations": {AUTHOR: "me"}}});
    for rule in [&bare, &copied, &edited] {
        let touched = merge(&bob, &rule.name, touch.clone()).await?;
        ensure!(stamp_of(&touched).is_none());
    }
    scene.wait_condition(&anns.name, "BarrierActive", "True", "Active").await?;
    let new = scene.namespace().await?;
    scene.wait_secret(&new, "registry", |_| true).await?;
    let (pods, params, first) = (of::<Pod>(&scene.client, &new), PostParams::default(), pod("first"));
    stubbornly(|| pods.create(&params, &first)).await?;
    nobody_is_known(&scene, &[&bare, &copied, &edited]).await?;
    pace(&scene).await?;
    for name in ["bare", "copied", "edited"] {
        assert!(scene.secrets(&new).get_opt(name).await?.is_none(), "{name}");
    }
    let kept = scene.secrets(&old).get("edited").await?;
    assert_eq!(value(&kept, "token").as_deref(), Some("one"), "it stays as it is");

    // She may.
    for rule in [&bare, &copied, &edited] {
        merge(&rules(&ann), &rule.name, touch.clone()).await?;
        scene.wait_synced(&rule.name).await?;
    }
    for namespace in [&old, &new] {
        scene.wait_secret(namespace, "bare", |copy| value(copy, "token").as_deref() == Some("one")).await?;
        scene.wait_secret(namespace, "edited", |copy| value(copy, "token").as_deref() == Some("hunter2")).await?;
    }
    the_key_is_nowhere(&scene).await
}

/// Waits until each says that its author is unknown, and nothing else: who wrote it may not know what there is.
async fn nobody_is_known(scene: &Scene<'_>, forged: &[&RuleSpec]) -> Result<()> {
    for rule in forged {
        let status = told(scene, &rule.name, "False", "AuthorUnknown").await?;
        let ready = condition(&status, "Ready").context("no Ready")?;
        ensure!(ready.reason == "NotAuthorized" && condition(&status, "SourcesFound").is_none(), "{status:?}");
        ensure!(status.sources.is_empty() && status.failures.is_empty() && status.copies.is_none(), "{status:?}");
    }
    Ok(())
}

/// Nor in what the programs log, nor in any rule, nor in an Event.
async fn the_key_is_nowhere(scene: &Scene<'_>) -> Result<()> {
    let key = of::<Secret>(&scene.client, mimeo_tests::NAMESPACE).get("mimeo-author-key").await?;
    let key = key.data.unwrap_or_default().remove("key").context("no key")?;
    ensure!(key.0.len() == 32);
    let hex = key.0.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat();
    let base64 = json!(key).as_str().context("no text")?.to_owned();
    let events = of::<Event>(&scene.client, "default").list(&ListParams::default()).await?;
    let all = rules(&scene.client).list(&ListParams::default()).await?;
    let said = [scene.setting.log(), serde_json::to_string(&events)?, serde_json::to_string(&all)?];
    ensure!(said.iter().all(|text| !text.is_empty() && !text.contains(&hex) && !text.contains(&base64)));
    Ok(())
}
