//! A rule makes Mimeo do nothing that its author may not do. Users with limited permissions test
//! this; all of them may write rules and policies.

use anyhow::{Result, bail};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use mimeo_api::{ClusterReplication, TransformPolicy};
use mimeo_tests::author::{Author, WRITE, grant, secrets};
use mimeo_tests::scenario::{RuleSpec, SOON, Scene, create, merge, rule, value};
use mimeo_tests::traffic::patiently;
use mimeo_tests::{eventually, unique};
use serde_json::{Value, json};

use crate::stages::SHIPPED as STAGE;

fn of_rbac(resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": ["rbac.authorization.k8s.io"], "resources": resources, "verbs": verbs})
}

/// Returns a rule for the scene's source, without targets yet.
fn of_registry(scene: &Scene<'_>) -> RuleSpec {
    rule(&unique(&scene.tag)).secret(&scene.home, "registry")
}

fn to(rule: RuleSpec, namespaces: &[&str]) -> RuleSpec {
    rule.target(json!({"namespaces": namespaces}))
}

#[tokio::test]
async fn a_selector_takes_the_right_to_list_what_it_may_find() -> Result<()> {
    let scene = STAGE.scene("selector").await?;
    let target = scene.namespace().await?;
    let ann = Author::new(&scene, &[]).await?;
    ann.may(Some(&target), &secrets(&WRITE)).await?;
    ann.may(Some(&scene.home), &secrets(&["get"])).await?;
    let labels = json!({"matchLabels": {"copy": "yes"}});
    let rule = to(
        rule(&unique(&scene.tag)).selected("v1", "Secret", &scene.home, &labels),
        &[&target],
    );
    let message = ann
        .refused(
            &rule,
            &[&format!("list secrets in namespace {}", scene.home)],
        )
        .await?;
    assert!(!message.contains("get secrets"), "{message}");
    ann.may(Some(&scene.home), &secrets(&["list"])).await?;
    ann.accepted(&rule).await
}

#[tokio::test]
async fn a_source_that_its_author_may_not_read_is_refused_whether_or_not_it_exists() -> Result<()> {
    let scene = STAGE.scene("source").await?;
    let namespace = scene.namespace().await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let author = Author::new(&scene, &[]).await?;
    author.may(None, &secrets(&WRITE)).await?;
    let registry = to(of_registry(&scene), &[&namespace]);
    let words = format!(
        "user {:?} may not get secrets/registry in namespace {};",
        author.name, scene.home
    );
    let message = author.refused(&registry, &[&words]).await?;

    // The message about an object that does not exist is the same, also in a dry run.
    let absent = to(
        rule(&registry.name).secret(&scene.home, "absent"),
        &[&namespace],
    );
    let told = author.refused(&absent, &["absent"]).await?;
    assert_eq!(told.replace("absent", "registry"), message);
    let told = author
        .refused_as(
            &PostParams {
                dry_run: true,
                ..PostParams::default()
            },
            &absent,
            &["absent"],
        )
        .await?;
    assert_eq!(told.replace("absent", "registry"), message);

    let one = json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["registry"], "verbs": ["get"]});
    author.may(Some(&scene.home), &one).await?;
    author.accepted(&registry).await?;
    scene
        .wait_secret(&namespace, "registry", |copy| {
            value(copy, "token").as_deref() == Some("one")
        })
        .await?;
    author
        .refused(
            &RuleSpec {
                name: unique(&scene.tag),
                ..absent
            },
            &["get secrets/absent"],
        )
        .await?;
    Ok(())
}

#[tokio::test]
async fn copies_that_their_author_may_not_write_are_refused() -> Result<()> {
    let scene = STAGE.scene("target").await?;
    let (one, other) = (scene.namespace().await?, scene.namespace().await?);
    scene.secret("registry", &[("token", "one")]).await?;
    let author = Author::new(&scene, &[]).await?;
    author.may(Some(&scene.home), &secrets(&["get"])).await?;
    let by_label = of_registry(&scene).to_label("scene", &scene.tag);
    let everywhere = WRITE.map(|verb| format!("{verb} secrets in all namespaces"));
    author
        .refused(&by_label, &everywhere.each_ref().map(String::as_str))
        .await?;

    // For a target with a named namespace, permissions in that namespace are enough.
    author.may(Some(&one), &secrets(&WRITE)).await?;
    let here = to(of_registry(&scene), &[&one]);
    author.accepted(&here).await?;
    scene
        .wait_secret(&one, "registry", |copy| {
            value(copy, "token").as_deref() == Some("one")
        })
        .await?;
    let there = to(of_registry(&scene), &[&one, &other]);
    let told = author
        .refused(
            &there,
            &[&format!("may not create secrets in namespace {other}")],
        )
        .await?;
    assert!(!told.contains(&one), "{told}");
    author
        .refused(
            &to(of_registry(&scene), &["team-*"]),
            &["create secrets in all namespaces"],
        )
        .await?;
    author
        .refused(&by_label, &["create secrets in all namespaces"])
        .await?;

    author.may(None, &secrets(&["create", "update"])).await?;
    author
        .refused(&by_label, &["may not delete secrets in all namespaces;"])
        .await?;
    author.may(None, &secrets(&["delete"])).await?;
    author.accepted(&by_label.named("second")).await?;
    scene
        .wait_secret(&other, "second", |copy| {
            value(copy, "token").as_deref() == Some("one")
        })
        .await?;
    Ok(())
}

#[tokio::test]
async fn rights_count_whoever_in_the_groups_of_the_author_has_them() -> Result<()> {
    let scene = STAGE.scene("groups").await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let group = unique(&scene.tag);
    grant(
        &scene,
        "Group",
        &group,
        None,
        &secrets(&["get", "create", "update", "delete"]),
    )
    .await?;
    let registry = of_registry(&scene).to_label("scene", &scene.tag);
    let stranger = Author::new(&scene, &["other"]).await?;
    stranger
        .refused(&registry, &["may not get secrets/registry"])
        .await?;
    Author::new(&scene, &["other", &group])
        .await?
        .accepted(&registry)
        .await
}

#[tokio::test]
async fn a_rule_that_hands_out_rights_takes_the_right_to() -> Result<()> {
    let scene = STAGE.scene("grants").await?;
    let namespace = scene.namespace().await?;
    let author = Author::new(&scene, &[]).await?;
    let all = ["get", "create", "update", "delete"];
    author
        .may(None, &of_rbac(&["roles", "rolebindings"], &all))
        .await?;
    let of = |kind: &str| {
        let rule = rule(&unique(&scene.tag)).source(
            "rbac.authorization.k8s.io/v1",
            kind,
            &scene.home,
            "admins",
        );
        to(rule, &[&namespace])
    };
    let (roles, bindings) = (
        "roles.rbac.authorization.k8s.io",
        "clusterroles.rbac.authorization.k8s.io",
    );
    let there = |right: &str| format!("{right} in namespace {namespace}");
    author
        .refused(
            &of("Role"),
            &[&format!("may not {};", there(&format!("escalate {roles}")))],
        )
        .await?;
    let both = [
        there(&format!("bind {bindings}")),
        there(&format!("bind {roles}")),
    ];
    author
        .refused(
            &of("RoleBinding"),
            &[&format!("may not {}, {};", both[0], both[1])],
        )
        .await?;

    // The permission to bind one role is not enough. The source may come to name any role.
    let one = json!({
        "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "resourceNames": ["view"], "verbs": ["bind"],
    });
    author.may(Some(&namespace), &one).await?;
    author
        .may(
            Some(&namespace),
            &of_rbac(&["roles"], &["bind", "escalate"]),
        )
        .await?;
    author
        .refused(&of("RoleBinding"), &[&format!("may not {};", both[0])])
        .await?;
    author.accepted(&of("Role")).await?;
    author
        .may(Some(&namespace), &of_rbac(&["clusterroles"], &["bind"]))
        .await?;
    author.accepted(&of("RoleBinding")).await
}

#[tokio::test]
async fn whoever_changes_what_a_rule_does_must_hold_its_rights() -> Result<()> {
    let scene = STAGE.scene("change").await?;
    let namespace = scene.namespace().await?;
    scene.secret("registry", &[("token", "one")]).await?;
    scene.secret("second", &[("token", "two")]).await?;
    let registry = to(of_registry(&scene), &[&namespace]);
    registry.create(&scene.client).await?;
    let author = Author::new(&scene, &[]).await?;
    let rules: Api<ClusterReplication> = Api::all(author.client.clone());
    // Any user with the permission to write the rule may make a change without an effect on copies.
    eventually(SOON, "a note on the rule", || async {
        Ok(Some(
            merge(
                &rules,
                &registry.name,
                json!({"metadata": {"annotations": {"note": "one"}}}),
            )
            .await?,
        ))
    })
    .await?;
    let name = json!([{"op": "replace", "path": "/spec/sources/0/name", "value": "second"}]);
    let replaces = json!([{"op": "add", "path": "/spec/strategy", "value": "Replace"}]);
    for (change, word) in [
        (name, "get secrets/second"),
        (replaces, "get secrets/registry"),
    ] {
        let change: Patch<()> = Patch::Json(serde_json::from_value(change)?);
        let params = PatchParams::default();
        match patiently(|| rules.patch(&registry.name, &params, &change)).await {
            Err(kube::Error::Api(status))
                if status.code == 403 && status.message.contains(word) => {}
            other => bail!("{other:?}"),
        }
    }
    let stored = rules.get(&registry.name).await?;
    assert_eq!(
        (
            stored.spec.sources[0].name.as_deref(),
            stored.metadata.generation
        ),
        (Some("registry"), Some(1))
    );
    Ok(())
}

#[tokio::test]
async fn a_policy_takes_the_permissions_to_create_and_update_what_it_rewrites() -> Result<()> {
    let scene = STAGE.scene("policy").await?;
    let namespace = scene.namespace().await?;
    let author = Author::new(&scene, &[]).await?;
    author
        .may(Some(&namespace), &secrets(&["create", "update"]))
        .await?;
    let policies: Api<TransformPolicy> = Api::all(scene.client.clone());
    let policy = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": scene.tag},
        "spec": {
            "match": {
                "kinds": [{"apiVersion": "v1", "kind": "Secret"}],
                "objectSelector": {"matchLabels": {"scene": scene.tag}},
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            },
            "transform": {"labels": {"set": {"rewritten": "yes"}}},
        },
    });
    let refused = async |words: &str| {
        eventually(SOON, format!("the policy refused: {words}"), || async {
            match create(&author.client, "transformpolicies", &policy).await {
                Err(kube::Error::Api(status)) if status.code == 403 => {
                    if status.message.contains(words) {
                        Ok(Some(()))
                    } else {
                        bail!("{}", status.message)
                    }
                }
                other => bail!("{other:?}"),
            }
        })
        .await
    };
    refused("may not create secrets in all namespaces, update secrets in all namespaces;").await?;
    author.may(None, &secrets(&["update"])).await?;
    // Otherwise a policy for pods could make each new pod invalid.
    refused("may not create secrets in all namespaces;").await?;
    assert!(policies.get_opt(&scene.tag).await?.is_none());
    author.may(None, &secrets(&["create"])).await?;
    eventually(SOON, "the policy accepted", || async {
        Ok(Some(
            create(&author.client, "transformpolicies", &policy).await?,
        ))
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_kind_that_is_not_served_yet_is_for_who_may_write_all_of_its_group() -> Result<()> {
    let scene = STAGE.scene("unserved").await?;
    let group = format!("{}.example.com", scene.tag);
    let of_gadget = |name: &str| {
        let gadget = rule(name).source(&format!("{group}/v1"), "Gadget", &scene.home, "one");
        gadget.to_label("scene", &scene.tag)
    };
    let author = Author::new(&scene, &[]).await?;
    // No CRD defines the kind, so its plural is unknown. A permission on one plural may be the
    // wrong one, and is not enough.
    author
        .may(
            None,
            &json!({"apiGroups": [group], "resources": ["gadgets"], "verbs": ["*"]}),
        )
        .await?;
    let rule = of_gadget(&unique(&scene.tag));
    author
        .refused(
            &rule,
            &[&format!("get *.{group}/one in namespace {}", scene.home)],
        )
        .await?;
    author
        .may(
            None,
            &json!({"apiGroups": [group], "resources": ["*"], "verbs": ["*"]}),
        )
        .await?;
    author.accepted(&rule).await
}
