//! Warnings for the author of a rule that is being stored, and for the author of an object that a
//! `TransformPolicy` changes.

use anyhow::{Context, Result, bail, ensure};
use kube::Api;
use mimeo_api::{ClusterReplication, TransformPolicy};
use mimeo_tests::author::{Author, secrets};
use mimeo_tests::scenario::{
    RuleSpec, SOON, Scene, any, apply, condition, create, kubectl, kubectl_as, rule, wait_for,
};
use mimeo_tests::tenant::{Tenant, consent, copying};
use mimeo_tests::{eventually, unique};
use serde_json::{Value, json};

use crate::stages::SHIPPED as STAGE;

/// Returns the warnings of `kubectl apply` for the rule, as a dry run or not.
fn warnings(scene: &Scene<'_>, rule: &RuleSpec, dry_run: bool) -> Result<Vec<String>> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), rule.object().to_string())?;
    let path = file.path().display().to_string();
    let mut args = vec!["apply", "-f", &path];
    if dry_run {
        args.push("--dry-run=server");
    }
    let told = kubectl(&scene.setting.control_plane, args)?;
    Ok(told
        .lines()
        .filter_map(|line| line.strip_prefix("Warning: "))
        .map(str::to_owned)
        .collect())
}

#[track_caller]
fn assert_told(warnings: &[String], parts: &[&str]) {
    let told = |part: &&str| warnings.iter().any(|line| line.contains(*part));
    assert!(
        warnings.len() == parts.len() && parts.iter().all(told),
        "{warnings:#?} should be {parts:#?}"
    );
}

#[tokio::test]
async fn a_rule_that_does_what_it_says_is_told_how_many_namespaces_it_selects_and_nothing_else()
-> Result<()> {
    let scene = STAGE.scene("quiet").await?;
    scene.namespaces(3).await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let rule = scene.rule().secret(&scene.home, "registry");
    seen(&scene, &rule, 3).await?;
    assert_told(
        &warnings(&scene, &rule, false)?,
        &["the rule selects 3 of "],
    );
    // If the targets stay the same, only a dry run prints the warning.
    let relabelled = rule
        .clone()
        .set("transform", json!({"labels": {"set": {"a": "b"}}}));
    assert_told(
        &warnings(&scene, &relabelled, true)?,
        &["the rule selects 3 of "],
    );
    assert_eq!(warnings(&scene, &relabelled, false)?, [""; 0]);
    let more = relabelled.target(json!({"namespaces": [scene.home], "copyName": "other"}));
    assert_told(
        &warnings(&scene, &more, false)?,
        &["the rule selects 4 of "],
    );
    scene.wait_synced(&scene.tag).await?;
    Ok(())
}

#[tokio::test]
async fn a_selector_that_finds_everything_is_told() -> Result<()> {
    let scene = STAGE.scene("select").await?;
    scene.namespaces(1).await?;
    let of_labels = |labels: Value| scene.rule().selected("v1", "Secret", &scene.home, &labels);
    seen(&scene, &of_labels(json!({})), 1).await?;
    let some = of_labels(json!({"matchLabels": {"copy": "yes"}}));
    assert_told(
        &warnings(&scene, &some, false)?,
        &["the rule selects 1 of "],
    );
    let everything = format!("every Secret in namespace {} is copied", scene.home);
    assert_told(
        &warnings(&scene, &of_labels(json!({})), false)?,
        &[&everything],
    );
    Ok(())
}

#[tokio::test]
async fn a_pattern_that_matches_no_namespace_gets_a_hint() -> Result<()> {
    let scene = STAGE.scene("begin").await?;
    scene.namespaces(12).await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let rule = scene.rule().secret(&scene.home, "registry");
    seen(&scene, &rule, 12).await?;
    // The name of the scene's home begins like the names of its namespaces.
    let of_pattern = |pattern: String| {
        rule.clone()
            .set("targets", json!([{"namespacePattern": pattern, "namespaceSelector": {"matchLabels": {"scene": scene.tag}}}]))
    };
    assert_told(
        &warnings(&scene, &of_pattern(scene.tag.clone()), true)?,
        &["Mimeo: no namespace matches the rule now. A namespacePattern must match the whole name"],
    );
    let all = of_pattern(format!("{}.*", scene.tag));
    assert_told(&warnings(&scene, &all, true)?, &["the rule selects 12 of "]);
    Ok(())
}

#[tokio::test]
async fn when_copies_come_to_know_that_they_stay_is_told() -> Result<()> {
    let scene = STAGE.scene("untold").await?;
    scene.namespaces(1).await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let rule = scene.rule().secret(&scene.home, "registry");
    seen(&scene, &rule, 1).await?;
    assert_told(
        &warnings(&scene, &rule, false)?,
        &["the rule selects 1 of "],
    );
    scene.wait_synced(&scene.tag).await?;
    let retained = rule
        .clone()
        .set("retentionPolicy", json!({"whenRuleDeleted": "Retain"}));
    let suspended = retained.clone().set("suspend", json!(true));
    assert_told(
        &warnings(&scene, &suspended, false)?,
        &["If the rule is deleted before that, Mimeo deletes its copies"],
    );
    assert_told(&warnings(&scene, &retained, false)?, &[]);
    assert_told(&warnings(&scene, &rule, false)?, &[]);
    assert_told(
        &warnings(&scene, &retained, false)?,
        &["If the rule is deleted before it is Ready again, Mimeo deletes the other copies"],
    );
    Ok(())
}

/// Waits until the webhook counts this many namespaces for the rule.
async fn seen(scene: &Scene<'_>, rule: &RuleSpec, count: usize) -> Result<()> {
    eventually(SOON, "the webhook to see the namespaces", || async {
        let told = warnings(scene, rule, true)?;
        let so = told
            .iter()
            .any(|line| line.contains(&format!("the rule selects {count} of ")));
        if so { Ok(Some(())) } else { bail!("{told:?}") }
    })
    .await
}

#[tokio::test]
async fn a_dry_run_tells_what_the_real_one_does_and_how_many_and_changes_nothing() -> Result<()> {
    let scene = STAGE.scene("dry").await?;
    scene.namespaces(2).await?;
    let rules: Api<ClusterReplication> = Api::all(scene.client.clone());
    let missing = scene.rule().secret(&scene.home, "registry");
    seen(&scene, &missing, 2).await?;
    assert_told(
        &warnings(&scene, &missing, true)?,
        &["does not exist", "the rule selects 2 of "],
    );
    assert!(
        rules.get_opt(&scene.tag).await?.is_none(),
        "a dry run stores nothing"
    );
    assert_told(
        &warnings(&scene, &missing, false)?,
        &["does not exist", "the rule selects 2 of "],
    );

    // The warning comes before Mimeo deletes the copies.
    let none = rule(&scene.tag)
        .secret(&scene.home, "registry")
        .to_label("scene", "nobody");
    let parts = [
        "does not exist",
        "no namespace matches",
        "this change removes 2 namespaces from the rule. Mimeo deletes the copies there",
    ];
    assert_told(&warnings(&scene, &none, true)?, &parts);
    let generation = rules.get(&scene.tag).await?.metadata.generation;
    assert_eq!(generation, Some(1), "nor does a dry run change anything");
    let retained = none
        .clone()
        .set("retentionPolicy", json!({"whenUnmatched": "Retain"}));
    assert_told(&warnings(&scene, &retained, true)?, &parts[..2]);
    assert_told(&warnings(&scene, &none, false)?, &parts);
    Ok(())
}

#[tokio::test]
async fn copies_that_another_rule_has_are_told_with_the_rule_and_the_namespaces() -> Result<()> {
    let scene = STAGE.scene("contest").await?;
    let mut namespaces = scene.namespaces(2).await?;
    namespaces.sort();
    scene.secret("registry", &[("token", "one")]).await?;
    let first = scene.rule().secret(&scene.home, "registry");
    first.create(&scene.client).await?;
    scene
        .wait_condition(&scene.tag, "PodGateActive", "True", "Active")
        .await?;
    let second = RuleSpec {
        name: unique(&scene.tag),
        ..first.clone()
    };
    let told = warnings(&scene, &second, false)?;
    let places = namespaces.join(", ");
    let gets = format!(
        "ClusterReplication/{} gets Secret registry in namespaces {places}, not this rule",
        first.name
    );
    assert_told(&told, &["the rule selects 2 of ", &gets]);
    assert!(
        told[1].ends_with(". Name one rule's copies differently (copyName)"),
        "{told:?}"
    );
    let status = scene
        .wait_condition(&second.name, "Ready", "False", "CopiesFailed")
        .await?;
    assert_eq!(
        status.failures.first().context("no failure")?.reason,
        "RuleConflict",
        "as was said"
    );
    // A warning comes once. A later change does not repeat it.
    let edited = second.set("podGate", json!("None"));
    assert_eq!(warnings(&scene, &edited, false)?, [""; 0]);
    Ok(())
}

/// A user without the permission to list namespaces learns neither their number nor the matches of
/// a glob.
#[tokio::test]
async fn who_may_not_list_namespaces_is_told_of_those_alone_that_he_names() -> Result<()> {
    let scene = STAGE.scene("unlisted").await?;
    let namespace = scene.namespace().await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let first = scene.rule().secret(&scene.home, "registry");
    first.create(&scene.client).await?;
    scene
        .wait_condition(&scene.tag, "PodGateActive", "True", "Active")
        .await?;
    let author = Author::new(&scene, &[]).await?;
    author
        .may(None, &secrets(&["get", "create", "update", "delete"]))
        .await?;
    let user = scene.setting.control_plane.user(&author.name, &[])?;
    let told = |targets: Value| -> Result<Vec<String>> {
        let second = rule(&unique(&scene.tag))
            .secret(&scene.home, "registry")
            .set("targets", targets);
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), second.object().to_string())?;
        let path = file.path().display().to_string();
        let told = kubectl_as(
            &scene.setting.control_plane,
            &user,
            ["apply", "--dry-run=server", "-f", &path],
        )?;
        Ok(told
            .lines()
            .filter_map(|line| line.strip_prefix("Warning: "))
            .map(str::to_owned)
            .collect())
    };
    let glob = json!([{"namespaces": [format!("{namespace}*")]}]);
    let named = json!([{"namespaces": [namespace]}]);
    let wants = format!(
        "ClusterReplication/{} gets Secret registry in namespace {namespace}, not this rule",
        first.name
    );
    // It takes a moment until the webhook knows the user's permissions.
    let words = eventually(SOON, "the author's rule to be accepted", || async {
        Ok(told(named.clone()).ok())
    })
    .await?;
    assert_told(&words, &[&wants]);
    for unnamed in [
        glob.clone(),
        json!([{"namespaceSelector": {}}]),
        json!([{"namespaces": ["nowhere-*"]}]),
    ] {
        assert_eq!(told(unnamed.clone())?, [""; 0], "{unnamed}");
    }
    author
        .may(
            None,
            &json!({"apiGroups": [""], "resources": ["namespaces"], "verbs": ["list"]}),
        )
        .await?;
    eventually(SOON, "the author's new permission", || async {
        let told = told(glob.clone())?;
        ensure!(!told.is_empty(), "nothing is told");
        assert_told(&told, &["the rule selects 1 of ", &wants]);
        Ok(Some(()))
    })
    .await
}

/// The warning names other rules for copies in the tenant's own namespace, in either order. It says
/// nothing of rules for other namespaces, or of other tenants.
#[tokio::test]
async fn a_tenant_is_told_of_rules_that_want_the_same_copies_in_his_own_namespace_alone()
-> Result<()> {
    let scene = STAGE.scene("own").await?;
    let (tenant, other) = (Tenant::editor(&scene).await?, Tenant::editor(&scene).await?);
    for name in ["platforms", "another"] {
        scene.secret(name, &[("token", "one")]).await?;
    }
    let both = json!({"namespaces": [tenant.home, other.home]});
    let platforms = rule(&scene.tag)
        .secret(&scene.home, "platforms")
        .target(both.clone());
    platforms.create(&scene.client).await?;
    for owner in [&tenant, &other] {
        owner.makes("own", "one").await?;
        owner
            .writes("replicationgrants", "g", &consent("Write", "*", &[]))
            .await?;
    }
    // These copies are in the tenant's own namespace and in another one, made by the tenant's rule
    // and by another rule.
    let named = |home: &str, name: &str| json!({"namespaces": [home], "copyName": name});
    let mut spec = copying(None, "own", &[]);
    spec["targets"] = json!([named(&tenant.home, "mine"), named(&other.home, "mine")]);
    tenant.writes("replications", "first", &spec).await?;
    spec["targets"] = json!([named(&tenant.home, "theirs"), named(&other.home, "theirs")]);
    other.writes("replications", "theirs", &spec).await?;
    tenant.status("first", "Ready", "Synced").await?;
    other.status("theirs", "Ready", "Synced").await?;
    scene.wait_synced(&platforms.name).await?;

    let home = tenant.home.clone();
    let wants = |rule: &str, copy: &str| {
        format!(
            "Mimeo: {rule} gets Secret {copy} in namespace {home}, not this rule (RuleConflict). \
             Name one rule's copies differently (copyName)"
        )
    };
    let told = |rule: &str, spec: &Value| -> Result<Vec<String>> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(
            file.path(),
            tenant.object("replications", rule, spec).to_string(),
        )?;
        let path = file.path().display().to_string();
        let told = kubectl_as(
            &scene.setting.control_plane,
            &tenant.user,
            ["apply", "--dry-run=server", "-f", &path],
        )?;
        // kubectl prints a warning of its own for objects that kubectl did not create.
        let ours = told
            .lines()
            .filter_map(|line| line.strip_prefix("Warning: "));
        Ok(ours
            .filter(|line| line.starts_with("Mimeo: "))
            .map(str::to_owned)
            .collect())
    };
    for (rule, namespace, copy, words) in [
        (
            "second",
            &tenant.home,
            "mine",
            Some(wants(&format!("Replication/{}/first", tenant.home), "mine")),
        ),
        (
            "second",
            &tenant.home,
            "platforms",
            Some(wants(
                &format!("ClusterReplication/{}", scene.tag),
                "platforms",
            )),
        ),
        ("second", &tenant.home, "theirs", None),
        ("second", &tenant.home, "free", None),
        ("second", &other.home, "mine", None),
        ("second", &other.home, "platforms", None),
        ("second", &other.home, "theirs", None),
        ("first", &tenant.home, "mine", None),
    ] {
        spec["targets"] = json!([named(namespace, copy)]);
        // The webhook may have seen less than the reconciler.
        eventually(
            SOON,
            format!("a word about {copy} in {namespace}"),
            || async {
                let told = told(rule, &spec)?;
                if told == words.iter().cloned().collect::<Vec<_>>() {
                    Ok(Some(()))
                } else {
                    bail!("{told:?}")
                }
            },
        )
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn rights_that_mimeo_lacks_are_told_with_the_rule_that_gives_them() -> Result<()> {
    let scene = STAGE.scene("rights").await?;
    scene.namespace().await?;
    let (group, plural) = ("networking.k8s.io", "networkpolicies");
    let source = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "closed", "namespace": scene.home}, "spec": {"podSelector": {}},
    });
    apply(&scene.client, &source).await?;
    let rule = scene.rule().source(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        &scene.home,
        "closed",
    );
    let mut told = warnings(&scene, &rule, false)?;
    told.retain(|line| !line.contains("the rule selects 1 of "));
    let all = "[create, get, list, patch, watch]";
    let rights =
        |verbs: &str| format!("{{apiGroups: [{group}], resources: [{plural}], verbs: {verbs}}}");
    let labels = [
        "mimeo.dev/aggregate-to-mimeo",
        "mimeo.dev/aggregate-to-mimeo-reconciler",
    ];
    let want = [(labels[0], rights(all)), (labels[1], rights("[delete]"))];
    assert_eq!(told.len(), 2, "{told:#?}");
    for ((label, rule), line) in want.iter().zip(&told) {
        assert!(
            line.contains(&format!("{label}=true")) && line.contains(rule),
            "{line}"
        );
    }

    // With the permissions that the message asks for, nothing is missing.
    for (label, verbs) in [
        (labels[0], &["create", "get", "list", "patch", "watch"][..]),
        (labels[1], &["delete"]),
    ] {
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": unique(&scene.tag), "labels": {label: "true"}},
            "rules": [{"apiGroups": [group], "resources": [plural], "verbs": verbs}],
        });
        apply(&scene.client, &role).await?;
    }
    let changed = rule.clone().set("podGate", json!("None"));
    eventually(SOON, "the rights to be there", || async {
        let told = warnings(&scene, &changed, true)?;
        if told
            .iter()
            .all(|line| !line.contains("missing permissions"))
        {
            Ok(Some(()))
        } else {
            bail!("{told:?}")
        }
    })
    .await?;
    scene.wait_synced(&scene.tag).await?;
    Ok(())
}

/// A tenant's Replication works like a `ClusterReplication` here. Another person grants permissions
/// to Mimeo, and the tenant can forward the message.
#[tokio::test]
async fn rights_that_mimeo_lacks_for_a_tenants_rule_are_told_him_and_once_given_it_copies()
-> Result<()> {
    let scene = STAGE.scene("lacks").await?;
    let tenant = Tenant::editor(&scene).await?;
    let (api_version, kind) = ("policy/v1", "PodDisruptionBudget");
    let budget = json!({
        "apiVersion": api_version, "kind": kind, "metadata": {"name": "web", "namespace": tenant.home},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    });
    apply(&tenant.client, &budget).await?;
    let spec = json!({
        "sources": [{"apiVersion": api_version, "kind": kind, "name": "web"}],
        "targets": [{"namespaces": [tenant.home], "copyName": "web-copy"}],
    });
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(
        file.path(),
        tenant.object("replications", "budgets", &spec).to_string(),
    )?;
    let path = file.path().display().to_string();
    let told = || -> Result<Vec<String>> {
        let told = kubectl_as(
            &scene.setting.control_plane,
            &tenant.user,
            ["apply", "-f", &path],
        )?;
        Ok(told
            .lines()
            .filter_map(|line| line.strip_prefix("Warning: Mimeo: "))
            .map(str::to_owned)
            .collect())
    };
    let rights = [
        (
            "mimeo.dev/aggregate-to-mimeo",
            &["create", "get", "list", "patch", "watch"][..],
        ),
        ("mimeo.dev/aggregate-to-mimeo-reconciler", &["delete"]),
    ];
    let sentence = |(label, verbs): &(&str, &[&str])| {
        let verbs = verbs.join(", ");
        let rule =
            format!("{{apiGroups: [policy], resources: [poddisruptionbudgets], verbs: [{verbs}]}}");
        format!(
            "missing permissions on {kind}: a ClusterRole labelled {label}=true must have the rule \
             {rule}"
        )
    };
    let want: Vec<String> = rights.iter().map(sentence).collect();
    assert_eq!(told()?, want);
    let status = tenant
        .status("budgets", "Authorized", "ControllerForbidden")
        .await?;
    let denied = &condition(&status, "Authorized")
        .context("no Authorized")?
        .message;
    assert!(
        denied.contains("rule {apiGroups: [policy], resources: [poddisruptionbudgets], verbs: ["),
        "{denied}"
    );
    tenant.status("budgets", "Ready", "NotAuthorized").await?;

    for (label, verbs) in rights {
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": unique(&scene.tag), "labels": {label: "true"}},
            "rules": [{"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": verbs}],
        });
        apply(&scene.client, &role).await?;
    }
    tenant.status("budgets", "Ready", "Synced").await?;
    tenant.status("budgets", "Authorized", "Allowed").await?;
    let copy = any(&tenant.client, api_version, kind, Some(&tenant.home))?
        .get("web-copy")
        .await?;
    assert_eq!(copy.data["spec"]["minAvailable"], 1);
    Ok(())
}

// ---- misspelt kinds ----

#[tokio::test]
async fn a_kind_in_lower_case_or_in_the_plural_is_told_with_the_kind_that_is_served() -> Result<()>
{
    let scene = STAGE.scene("spelling").await?;
    for (kind, meant) in [
        ("secret", "Secret"),
        ("secrets", "Secret"),
        ("Secrets", "Secret"),
        ("configmap", "ConfigMap"),
        ("ConfigMaps", "ConfigMap"),
    ] {
        let rule = scene.rule().source("v1", kind, &scene.home, "registry");
        let told = warnings(&scene, &rule, true)?;
        let want = format!("Mimeo: the cluster does not serve v1/{kind}; did you mean {meant}?");
        ensure!(told.contains(&want), "{told:#?}");
    }
    Ok(())
}

// ---- texts that look like variables ----

#[tokio::test]
async fn what_looks_like_a_variable_and_is_none_is_told_with_the_variables_that_there_are()
-> Result<()> {
    const VARIABLES: &str =
        "$(source.name), $(source.namespace), $(namespace.name) and $(namespace.labels['key'])";
    let scene = STAGE.scene("typos").await?;
    scene.namespace().await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let rule = scene.rule().secret(&scene.home, "registry");
    seen(&scene, &rule, 1).await?;
    let annotated = |text: &str| {
        rule.clone()
            .set("transform", json!({"annotations": {"set": {"a": text}}}))
    };
    // The API server passes on warnings of more than 256 characters whole.
    let long = format!("$({}source.name )", " ".repeat(200));
    for miss in [
        "$(namespace)",
        "${namespace.name}",
        "$( source.name )",
        &long,
    ] {
        let told =
            format!("{miss} is not a variable and stays text. The variables are: {VARIABLES}");
        assert_told(
            &warnings(&scene, &annotated(miss), true)?,
            &[&told, "the rule selects 1 of "],
        );
    }
    assert_told(
        &warnings(&scene, &annotated("$(HOME) ${NAMESPACE}"), true)?,
        &["the rule selects 1 of "],
    );
    for (refused, why) in [
        (
            annotated("$(source.nam)"),
            format!("there is no variable $(source.nam); there are {VARIABLES}"),
        ),
        (
            rule.clone().named("a-$(namespace)"),
            "\"a-$(namespace)\" is not a valid DNS name".to_owned(),
        ),
    ] {
        let told = format!(
            "{:#}",
            warnings(&scene, &refused, true)
                .err()
                .context("it was accepted")?
        );
        ensure!(told.contains(&why), "{told}");
    }
    Ok(())
}

// ---- changes by a policy ----

/// Writes a `TransformPolicy` for Secrets and Pods of the scene.
async fn policy(scene: &Scene<'_>, transform: &Value) -> Result<()> {
    let kinds =
        ["Secret", "Pod", "ConfigMap"].map(|kind| json!({"apiVersion": "v1", "kind": kind}));
    let kinds = if transform["type"].is_null() {
        &kinds[..]
    } else {
        &kinds[..1]
    };
    let policy = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": scene.tag},
        "spec": {"match": {"kinds": kinds, "objectSelector": {"matchLabels": {"policy": scene.tag}}}, "transform": transform},
    });
    create(&scene.client, "transformpolicies", &policy).await?;
    let ready = |policy: &TransformPolicy| {
        let conditions = policy.status.iter().flat_map(|status| &status.conditions);
        conditions
            .into_iter()
            .any(|one| one.type_ == "Ready" && one.status == "True")
    };
    wait_for(
        Api::<TransformPolicy>::all(scene.client.clone()),
        scene.tag.clone(),
        ready,
    )
    .await
    .map(drop)
}

/// Returns an object that matches the policy.
fn about(scene: &Scene<'_>, kind: &str, more: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "v1", "kind": kind,
        "metadata": {"name": unique("some"), "namespace": scene.home, "labels": {"policy": scene.tag}},
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        object[field] = value.clone();
    }
    object
}

/// Returns the output of kubectl when it creates the object, also if the object is refused.
fn creating(scene: &Scene<'_>, object: &Value, more: &[&str]) -> Result<String> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), object.to_string())?;
    let path = file.path().display().to_string();
    let args = [&["create", "-f", &path], more].concat();
    Ok(
        kubectl(&scene.setting.control_plane, args)
            .unwrap_or_else(|refusal| format!("{refusal:#}")),
    )
}

/// The API server's refusal does not name the policy.
#[tokio::test]
async fn a_policy_that_makes_an_object_invalid_is_named_in_a_warning() -> Result<()> {
    let scene = STAGE.scene("invalid").await?;
    policy(
        &scene,
        &json!({"labels": {"set": {"at": format!("{}$(namespace.name)", "x".repeat(61))}}}),
    )
    .await?;
    let pod = json!({"spec": {"containers": [{"name": "a", "image": "a"}]}});
    for (kind, more) in [
        ("Pod", &pod),
        ("ConfigMap", &json!({})),
        ("Secret", &json!({})),
    ] {
        let why = format!(
            "Mimeo: TransformPolicy {} changed labels of this {kind}. If the API server refuses it \
             for that, change the policy or exclude the object from it (spec.match)",
            scene.tag
        );
        // The API server needs a moment to use a new hook. The namespace needs a moment to get its
        // service account.
        eventually(SOON, "the refusal, and the warning", || async {
            let told = creating(&scene, &about(&scene, kind, more), &[])?;
            if told.contains(&why) && told.contains("is invalid") {
                Ok(Some(()))
            } else {
                bail!("{told}")
            }
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_person_is_told_what_a_policy_has_changed_also_where_the_api_server_refuses_it()
-> Result<()> {
    let scene = STAGE.scene("changed").await?;
    policy(&scene, &json!({"type": "kubernetes.io/dockerconfigjson"})).await?;
    let warning = format!(
        "Warning: Mimeo: TransformPolicy {} changed type of this Secret. If the API server",
        scene.tag
    );
    let secret = |config: &str| {
        about(
            &scene,
            "Secret",
            &json!({"stringData": {".dockerconfigjson": config}}),
        )
    };
    eventually(SOON, "the refusal, and the warning", || async {
        let refused = creating(&scene, &secret("{no JSON"), &[])?;
        ensure!(
            refused.contains("is invalid") && refused.contains(&warning),
            "{refused}"
        );
        Ok(Some(()))
    })
    .await?;
    let stored = creating(&scene, &secret("{\"auths\": {}}"), &[])?;
    ensure!(
        stored.contains("created") && stored.contains(&warning),
        "{stored}"
    );
    // A program does not read warnings, and writes often.
    let program = [
        "--as",
        "system:serviceaccount:kube-system:some",
        "--as-group",
        "system:masters",
    ];
    let stored = creating(&scene, &secret("{\"auths\": {}}"), &program)?;
    ensure!(
        stored.contains("created") && !stored.contains("Warning"),
        "{stored}"
    );
    Ok(())
}
