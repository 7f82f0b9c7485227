//! Who the author of a rule is: stamped by the webhook, whatever whoever writes the rule says.

use std::io::Write as _;

use anyhow::{Context as _, Result, ensure};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use mimeo_api::ClusterReplication;
use mimeo_tests::author::{Author, WRITE, secrets};
use mimeo_tests::scenario::{RuleSpec, Scene, Stage, annotation, apply, create, kubectl, merge, rule};
use mimeo_tests::{ControlPlane, Pair, unique};
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

    // What she writes into the stamp is not stored, be it with a new rule or beside an old one's spec.
    let other = unique(&scene.tag);
    object["metadata"]["name"] = json!(other);
    create(&ann.client, "clusterreplications", &object).await?;
    assert_eq!(author_in(stamp(&scene, &other).await?)?, ann.name);
    let all = rules(admin);
    assert_eq!(annotation(&all.get(&other).await?, "note"), Some("x"));
    assert_ne!(stamp(&scene, &other).await?, first, "a stamp is of one rule");

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
    let mine = format!("object.metadata.name.startsWith('{}')", scene.tag);
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
    mimeo_tests::eventually(mimeo_tests::scenario::SOON, "the policy in force", || async {
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
    let touched = rules(&bob.client).patch(&spec.name, &PatchParams::default(), &touch).await?;
    assert_eq!(stamp_of(&touched), first);
    Ok(())
}
