//! Attacks by users with the role `edit` in one namespace and nothing else, on other namespaces and
//! on the platform's rules.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use mimeo_tests::author::{Author, grant};
use mimeo_tests::scenario::{
    RuleSpec, SOON, apply, create, delete, kubectl_as, label, merge, of, put, relabel, rule, uid,
    version, wait_for, wait_gone,
};
use mimeo_tests::tenant::{Tenant, consent, copying, has};
use mimeo_tests::traffic::{create_asked, create_patiently, pod, revision};
use mimeo_tests::{create_namespace, eventually, unique};
use serde_json::{Value, json};

use crate::stages::{LOAD, SHIPPED_QUICK as STAGE};

const RBAC: &str = "rbac.authorization.k8s.io";

// ---- the contents of other namespaces ----

/// Returns rules that look into a namespace in every possible way.
fn probes(home: &str, namespace: &str) -> Vec<(&'static str, Value)> {
    let with = |mut spec: Value, field: &str, value: Value| {
        spec[field] = value;
        spec
    };
    let pull = copying(Some(namespace), "db", &[home]);
    let push = copying(None, "own", &[namespace]);
    let mut within = copying(Some(namespace), "db", &[namespace]);
    within["targets"][0]["copyName"] = json!("db-copy");
    let mut map = pull.clone();
    map["sources"][0]["kind"] = json!("ConfigMap");
    let mut role = pull.clone();
    role["sources"][0]["apiVersion"] = json!(format!("{RBAC}/v1"));
    role["sources"][0]["kind"] = json!("Role");
    let labels = json!({"matchLabels": {"copy": "yes"}});
    let selecting = json!({
        "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": namespace, "selector": labels}],
        "targets": [{"namespaces": [home], "copyName": "$(source.name)-copy"}],
    });
    let deny = |spec: &Value| {
        with(
            with(spec.clone(), "strategy", json!("Replace")),
            "driftPolicy",
            json!("Deny"),
        )
    };
    let suspended = |spec: &Value| with(spec.clone(), "suspend", json!(true));
    vec![
        ("q-pull", pull.clone()),
        ("q-push", push.clone()),
        ("q-within", within.clone()),
        ("q-kind", map),
        ("q-role", role),
        ("q-select", selecting.clone()),
        (
            "q-adopt",
            with(push.clone(), "conflictPolicy", json!("Adopt")),
        ),
        (
            "q-over",
            with(push.clone(), "conflictPolicy", json!("Overwrite")),
        ),
        ("q-deny", deny(&push)),
        ("q-plan-pull", suspended(&pull)),
        ("q-plan-push", suspended(&push)),
        ("q-plan-within", suspended(&within)),
        ("q-plan-select", suspended(&selecting)),
    ]
}

/// Tries a probe as a dry run, then creates it. Returns the output of `kubectl`.
fn tried(tenant: &Tenant<'_>, name: &str, spec: &Value) -> Result<String> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(
        file.path(),
        tenant.object("replications", name, spec).to_string(),
    )?;
    let path = file.path().display().to_string();
    let mut told = String::new();
    for args in [
        vec!["create", "--dry-run=server", "-f", &path],
        vec!["create", "-f", &path],
    ] {
        let answer = kubectl_as(&tenant.scene.setting.control_plane, &tenant.user, args);
        told += &answer.unwrap_or_else(|refusal| format!("{refusal:#}"));
    }
    Ok(told.replace(&path, "FILE").replace(
        &tenant.user.kubeconfig().display().to_string(),
        "KUBECONFIG",
    ))
}

/// Returns everything that a tenant learns from its probes. The names of its own objects and of the
/// namespace are replaced.
async fn heard(tenant: &Tenant<'_>, namespace: &str, tried: &[String]) -> Result<Vec<String>> {
    let mut heard = tried.to_vec();
    for (name, _) in probes(&tenant.home, namespace) {
        // The other probes were refused.
        if tenant.rules().get_opt(name).await?.is_some() {
            heard.push(tenant.told(name, namespace).await?);
        }
    }
    let own = format!("{:?}", version(&tenant.secrets().get("own").await?));
    let plain = |told: String| {
        let told = told
            .replace(namespace, "NAMESPACE")
            .replace(&tenant.home, "HOME");
        told.replace(tenant.name(), "WHO").replace(&own, "VERSION")
    };
    Ok(heard.into_iter().map(plain).collect())
}

/// There are three namespaces: one with the sources, an empty one, and one that does not exist. A
/// tenant gets the same answers about all of them.
#[tokio::test]
async fn what_is_elsewhere_is_told_to_no_tenant_by_any_word() -> Result<()> {
    let scene = STAGE.scene("probe").await?;
    let owner = Tenant::editor(&scene).await?;
    for name in ["db", "own"] {
        owner.labelled(name, "theirs").await?;
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": owner.home, "name": name}});
        apply(&owner.client, &map).await?;
    }
    // Another tenant has access, and has copies in the owner's namespace and from it.
    let friend = Tenant::editor(&scene).await?;
    owner
        .writes(
            "replicationgrants",
            "friend-read",
            &consent("Read", &friend.home, &[]),
        )
        .await?;
    owner
        .writes(
            "replicationgrants",
            "friend-write",
            &consent("Write", &friend.home, &[]),
        )
        .await?;
    friend
        .writes(
            "replications",
            "pull",
            &copying(Some(&owner.home), "db", &[]),
        )
        .await?;
    friend.makes("gift", "friends").await?;
    friend
        .writes(
            "replications",
            "push",
            &copying(None, "gift", &[&owner.home]),
        )
        .await?;
    scene.wait_secret(&friend.home, "db", has("theirs")).await?;
    scene
        .wait_secret(&owner.home, "gift", has("friends"))
        .await?;
    let nothing = scene.namespace().await?;
    let nowhere = unique(&scene.tag);

    let mut all = Vec::new();
    for namespace in [&owner.home, &nothing, &nowhere] {
        // Each probe comes from a namespace of its own, with rules of equal names.
        let tenant = Tenant::editor(&scene).await?;
        tenant.makes("own", "his").await?;
        let probes = probes(&tenant.home, namespace);
        let tried = probes
            .iter()
            .map(|(name, spec)| tried(&tenant, name, spec))
            .collect::<Result<Vec<_>>>()?;
        all.push((namespace, tenant, tried));
    }
    // Later answers count, too: those after all effects of the probes.
    let pace = scene.rule().secret(&scene.home, "pace");
    scene.secret("pace", &[("token", "one")]).await?;
    pace.create(&scene.client).await?;
    scene.wait_synced(&pace.name).await?;
    let mut later = Vec::new();
    for (namespace, tenant, tried) in &all {
        later.push(heard(tenant, namespace, tried).await?);
        ensure!(
            tenant.secrets().get_opt("db").await?.is_none(),
            "a copy from {namespace}"
        );
    }
    ensure!(
        later[0].len() > 20 && later[0].iter().any(|told| told.contains("NotGranted")),
        "{later:#?}"
    );
    for (word, other) in [("something", 0), ("nothing", 1)] {
        for (probe, nowhere) in later[other].iter().zip(&later[2]) {
            ensure!(
                probe == nowhere,
                "where there is {word}:\n{probe}\nand where there is no namespace:\n{nowhere}"
            );
        }
    }
    Ok(())
}

// ---- permissions ----

/// The tenant may create RoleBindings but has no permission to bind a role, neither itself nor
/// through Mimeo.
#[tokio::test]
async fn who_may_create_rolebindings_but_not_bind_gets_none_by_a_copy() -> Result<()> {
    let scene = STAGE.scene("bind").await?;
    let tenant = Tenant::editor(&scene).await?;
    let all = ["get", "list", "create", "update", "patch", "delete"];
    tenant
        .may(&json!({"apiGroups": [RBAC], "resources": ["roles", "rolebindings"], "verbs": all}))
        .await?;
    let binding = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "RoleBinding",
        "metadata": {"namespace": tenant.home, "name": "mine"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": tenant.name()}],
    });
    let path = format!("/apis/{RBAC}/v1/namespaces/{}/rolebindings", tenant.home);
    let post = async || -> kube::Result<Value> {
        let request = http::Request::post(&path).body(binding.to_string().into_bytes());
        tenant
            .client
            .request(request.map_err(kube::Error::HttpError)?)
            .await
    };
    eventually(SOON, "the right to create, and none to bind", || async {
        match post().await {
            Err(kube::Error::Api(status))
                if status
                    .message
                    .contains("attempting to grant RBAC permissions") =>
            {
                Ok(Some(()))
            }
            other => bail!("{other:?}"),
        }
    })
    .await?;
    // The tenant may read the bindings of others, but not copy them: neither into its own
    // namespace, nor from another that granted access.
    let admins = scene.namespace().await?;
    let mut there = binding.clone();
    there["metadata"]["namespace"] = json!(admins);
    apply(&scene.client, &there).await?;
    let source = |kind: &str, namespace: &str| {
        let mut spec = copying(Some(namespace), "mine", &[&tenant.home]);
        spec["sources"][0]["apiVersion"] = json!(format!("{RBAC}/v1"));
        spec["sources"][0]["kind"] = json!(kind);
        spec
    };
    for kind in ["Role", "RoleBinding"] {
        for namespace in [&admins, &tenant.home] {
            tenant
                .is_refused(
                    "replications",
                    "r",
                    &source(kind, namespace),
                    "copies no kind of rbac.authorization.k8s.io",
                )
                .await?;
        }
    }
    // A patch cannot turn a copy of a permitted kind into another kind.
    let made = json!({"metadata": {"name": "mine"}, "data": {"a": "b"}});
    of::<k8s_openapi::api::core::v1::ConfigMap>(&tenant.client, &tenant.home)
        .create(
            &kube::api::PostParams::default(),
            &serde_json::from_value(made)?,
        )
        .await?;
    for (field, value) in [
        ("kind", "RoleBinding"),
        ("apiVersion", "rbac.authorization.k8s.io/v1"),
    ] {
        let mut spec = copying(None, "mine", &[&tenant.home]);
        spec["sources"][0]["kind"] = json!("ConfigMap");
        spec["targets"][0]["copyName"] = json!("other");
        spec["transform"] =
            json!({"jsonPatch": [{"op": "replace", "path": format!("/{field}"), "value": value}]});
        tenant
            .is_refused(
                "replications",
                "r",
                &spec,
                "spec.transform.jsonPatch[0].path",
            )
            .await?;
    }
    // A ClusterReplication may copy such objects. An author who may write the rule and read the
    // source still needs the permission to bind.
    let rule = rule(&scene.tag).source(&format!("{RBAC}/v1"), "RoleBinding", &admins, "mine");
    let rule = rule.target(json!({"namespaces": [tenant.home]}));
    let rules = json!({"apiGroups": ["mimeo.dev"], "resources": ["clusterreplications"], "verbs": ["get", "create"]});
    grant(&scene, "User", tenant.name(), None, &rules).await?;
    let source = json!({"apiGroups": [RBAC], "resources": ["rolebindings"], "verbs": ["get"]});
    grant(&scene, "User", tenant.name(), Some(&admins), &source).await?;
    let written = async || create(&tenant.client, "clusterreplications", &rule.object()).await;
    let lacks = format!(
        "may not bind clusterroles.{RBAC} in namespace {home}, bind roles.{RBAC} in namespace \
         {home}; grant these to the author",
        home = tenant.home
    );
    eventually(SOON, format!("refused: {lacks}"), || async {
        match written().await {
            Err(kube::Error::Api(status))
                if status.code == 403 && status.message.contains(&lacks) =>
            {
                Ok(Some(()))
            }
            other => bail!("{other:?}"),
        }
    })
    .await?;
    let found = of::<RoleBinding>(&scene.client, &tenant.home)
        .get_opt("mine")
        .await?;
    ensure!(found.is_none(), "the tenant has the binding");
    // A user with this permission could also bind the role directly.
    tenant.may(&json!({"apiGroups": [RBAC], "resources": ["roles", "clusterroles"], "verbs": ["bind"]})).await?;
    eventually(SOON, "the rule with the permission", || async {
        Ok(Some(written().await?))
    })
    .await?;
    post().await?;
    Ok(())
}

/// The policy makes no difference between kinds of changes.
#[tokio::test]
async fn a_policy_that_rewrites_bindings_takes_the_right_to_bind() -> Result<()> {
    let scene = STAGE.scene("policy").await?;
    let author = Author::new(&scene, &[]).await?;
    let rights = |resources: &[&str], verbs: &[&str]| json!({"apiGroups": [RBAC], "resources": resources, "verbs": verbs});
    author
        .may(None, &rights(&["rolebindings"], &["create", "update"]))
        .await?;
    let matched = json!({
        "kinds": [{"apiVersion": format!("{RBAC}/v1"), "kind": "RoleBinding"}],
        "objectSelector": {"matchLabels": {"scene": scene.tag}},
    });
    let policy = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": scene.tag},
        "spec": {"match": matched, "transform": {"labels": {"set": {"a": "b"}}}},
    });
    let refused = async |words: &str| {
        eventually(SOON, format!("refused: {words}"), || async {
            match create(&author.client, "transformpolicies", &policy).await {
                Err(kube::Error::Api(status)) if status.message.contains(words) => Ok(Some(())),
                other => bail!("{other:?}"),
            }
        })
        .await
    };
    refused(&format!(
        "may not bind clusterroles.{RBAC} in all namespaces, bind roles.{RBAC} in all namespaces;"
    ))
    .await?;
    author.may(None, &rights(&["roles"], &["bind"])).await?;
    refused(&format!(
        "may not bind clusterroles.{RBAC} in all namespaces;"
    ))
    .await?;
    author
        .may(None, &rights(&["clusterroles"], &["bind"]))
        .await?;
    eventually(SOON, "the policy with the permission", || async {
        Ok(Some(
            create(&author.client, "transformpolicies", &policy).await?,
        ))
    })
    .await?;
    let binding = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "RoleBinding",
        "metadata": {"namespace": scene.home, "name": "rewritten", "labels": {"scene": scene.tag}},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "view"},
    });
    eventually(SOON, "a rewritten binding", || async {
        let stored = apply(&scene.client, &binding).await?;
        Ok((label(&stored, "a") == Some("b")).then_some(()))
    })
    .await
}

// ---- copies in the tenant's own namespace ----

/// The object stays the tenant's. Other namespaces get their copies, and only the pods of the
/// tenant's own namespace wait.
#[tokio::test]
async fn who_takes_the_name_of_the_platforms_copy_first_harms_himself_alone() -> Result<()> {
    let scene = STAGE.scene("first").await?;
    scene.secret("registry", &[("token", "one")]).await?;
    scene
        .rule()
        .secret(&scene.home, "registry")
        .set("podGate", json!("Required"))
        .create(&scene.client)
        .await?;
    scene
        .wait_condition(&scene.tag, "PodGateActive", "True", "Active")
        .await?;
    let [his, others] = [unique(&scene.tag), unique(&scene.tag)];
    for namespace in [&his, &others] {
        create_namespace(&scene.client, namespace, &[]).await?;
    }
    let tenant = Tenant::editor_of(&scene, &his).await?;
    let other = Tenant::editor_of(&scene, &others).await?;
    let taken = tenant.makes("registry", "his").await?;
    for namespace in [&his, &others] {
        relabel(&scene.client, namespace, "scene", Some(&scene.tag)).await?;
    }
    let pods: Api<Pod> = of(&tenant.client, &his);
    eventually(SOON, "the tenant's own pods denied", || async {
        match pods
            .create(&kube::api::PostParams::default(), &pod("first"))
            .await
        {
            Err(kube::Error::Api(status))
                if status.message.contains(
                    "podGate Required): Conflict, an object of that name exists. See: kubectl \
                     describe crepl ",
                ) =>
            {
                Ok(Some(()))
            }
            other => bail!("{:?}", other.map(|_| ())),
        }
    })
    .await?;
    create_patiently(&of(&other.client, &others), &pod("first")).await?;
    ensure!(
        other
            .secrets()
            .get_opt("registry")
            .await?
            .is_some_and(|copy| has("one")(&copy)),
        "a pod without its copy"
    );
    let status = scene.wait_counts(&scene.tag, [2, 1, 1]).await?;
    ensure!(
        status.failures[0].namespace == his && status.failures[0].reason == "Conflict",
        "{status:#?}"
    );
    put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    scene.wait_secret(&others, "registry", has("two")).await?;
    assert_eq!(
        version(&tenant.secrets().get("registry").await?),
        version(&taken)
    );
    // Once the tenant deletes the object, its namespace gets the same copy as the others.
    delete(&tenant.secrets(), "registry").await?;
    scene.wait_secret(&his, "registry", has("two")).await?;
    // A webhook replica that has not tried again since the deletion still denies the pod.
    eventually(SOON, "the tenant's pod", || async {
        pods.create(&kube::api::PostParams::default(), &pod("second"))
            .await?;
        Ok(Some(()))
    })
    .await
}

/// The tenant may change the object itself in any way. The copy still follows its source, and Mimeo
/// deletes it with its rule as soon as the tenant's finalizer permits.
#[tokio::test]
async fn a_copy_that_its_namespaces_owner_freezes_or_holds_follows_and_goes_all_the_same()
-> Result<()> {
    let scene = STAGE.scene("freeze").await?;
    let (tenant, other) = (Tenant::editor(&scene).await?, scene.namespace().await?);
    scene.secret("registry", &[("token", "one")]).await?;
    let rule = scene.rule().secret(&scene.home, "registry");
    rule.create(&scene.client).await?;
    scene.wait_synced(&rule.name).await?;
    let copies = tenant.secrets();
    let frozen = merge(&copies, "registry", json!({"immutable": true})).await?;
    put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    let anew = scene
        .wait_secret(&tenant.home, "registry", has("two"))
        .await?;
    assert_ne!(uid(&anew), uid(&frozen));
    scene.wait_synced(&rule.name).await?;

    // The copy is immutable and has a finalizer, so Mimeo can neither change nor remove it. The
    // other copies follow the source. This copy follows once the tenant removes the finalizer.
    let held = json!({"metadata": {"finalizers": ["example.com/mine"]}, "immutable": true});
    merge(&copies, "registry", held).await?;
    put(
        &scene.secrets(&scene.home),
        "registry",
        &[("token", "three")],
    )
    .await?;
    scene.wait_secret(&other, "registry", has("three")).await?;
    let leaving = |copy: &Secret| copy.metadata.deletion_timestamp.is_some();
    wait_for(copies.clone(), "registry".to_owned(), leaving).await?;
    let free = json!({"metadata": {"finalizers": null}});
    merge(&copies, "registry", free.clone()).await?;
    scene
        .wait_secret(&tenant.home, "registry", has("three"))
        .await?;
    scene.wait_synced(&rule.name).await?;

    merge(
        &copies,
        "registry",
        json!({"metadata": {"finalizers": ["example.com/mine"]}}),
    )
    .await?;
    rule.delete(&scene.client).await?;
    wait_gone(scene.secrets(&other), "registry").await?;
    wait_for(copies.clone(), "registry".to_owned(), leaving).await?;
    merge(&copies, "registry", free).await?;
    wait_gone(copies, "registry").await
}

// ---- slow rules ----

/// The number of rules with slow copies of one source.
const SLOW: usize = 120;

/// Each part of a rule has the largest permitted size and takes as long as possible. Other rules
/// are still served, and the status tells the tenant the result.
#[tokio::test]
async fn patterns_and_variables_at_their_bounds_keep_nobody_waiting() -> Result<()> {
    let _turn = LOAD.lock().await;
    let scene = STAGE.scene("slow").await?;
    let tenant = Tenant::editor(&scene).await?;
    let (giver, taker) = (Tenant::editor(&scene).await?, Tenant::editor(&scene).await?);
    let team = scene.namespace().await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let platform = scene.rule().secret(&scene.home, "registry");
    platform.create(&scene.client).await?;
    scene.wait_synced(&platform.name).await?;

    let places = large_patterns(&tenant).await?;
    ensure!(places.len() > 1, "{} grants", places.len());
    // Mimeo compares the tenant's namespace with each of these grants.
    let asks = |places: &usize| taker.home.bytes().rev().nth(*places) == Some(b'a');
    // This copy has another name than the one below. A pattern may match the name of its namespace
    // by chance, and then the copy stays.
    let mut asking = copying(Some(&tenant.home), "db", &[]);
    asking["targets"] = json!([{"copyName": "asked"}]);
    taker.writes("replications", "asks", &asking).await?;
    let said = if places.iter().any(asks) {
        "Allowed"
    } else {
        "NotGranted"
    };
    taker.status("asks", "Authorized", said).await?;
    let name = "s".repeat(250);
    tenant.makes(&name, &"h".repeat(40_000)).await?;
    for (number, shape) in slow_transforms().into_iter().enumerate() {
        let rule = format!("slow-{number}");
        let size = largest(&tenant, &rule, |size| {
            let mut spec = copying(None, &name, &[&tenant.home]);
            spec["targets"][0]["copyName"] = json!(format!("copy-{number}"));
            spec["transform"] = shape(size);
            spec
        });
        let size = size.await?;
        let told = eventually(SOON, format!("a word about {rule}"), || async {
            let status = tenant.rules().get(&rule).await?.status.unwrap_or_default();
            Ok(status
                .conditions
                .into_iter()
                .find(|one| one.type_ == "Ready" && one.reason != "Pending"))
        });
        let told = told.await?;
        eprintln!("{rule} of size {size}: {}", told.reason);
        // Some permitted rules make copies that are larger than an object, or than a copy of a
        // Replication, may be.
        let much = told.message.contains("TooLarge") || told.message.contains("larger than");
        ensure!(
            told.reason == "Synced" || much,
            "{rule}: {} {}",
            told.reason,
            told.message
        );
    }

    // When the source of many such rules is created, all of their copies are due at once. A change
    // of the platform's rule comes before most of them. A new namespace gets its copy before its
    // first pod.
    let late = Tenant::editor(&scene).await?;
    let waiting = slow_and_waiting(&late).await?;
    // The reconciler stands still until both sources are stored. Otherwise it could finish most of
    // the slow copies before the platform's change is stored.
    let reconciler = &scene.setting.pair.reconciler;
    let reconciler = &reconciler.as_ref().context("no reconciler")?.program;
    reconciler.pause()?;
    let stored = async {
        late.makes("late", &"h".repeat(1024)).await?;
        put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await
    };
    let stored = stored.await;
    reconciler.resume()?;
    let changed = stored?;
    let new = async {
        let name = create_asked(&scene.client, &scene.tag, &[("scene", &scene.tag)]).await?;
        let name = name.name_any();
        let (pod, _) = create_patiently(&of::<Pod>(&scene.client, &name), &pod("first")).await?;
        let copy = scene
            .secrets(&name)
            .get("registry")
            .await
            .context("a pod came without its copy")?;
        ensure!(
            revision(&copy)? < revision(&pod)?,
            "a pod came before its copy"
        );
        anyhow::Ok(())
    };
    let ours = scene.wait_secret(&team, "registry", has("two"));
    let (copy, ()) = tokio::try_join!(ours, new)?;
    let slow = eventually(SOON, "all slow copies", || async {
        let rules = late.rules().list(&ListParams::default()).await?.items;
        let made = rules
            .into_iter()
            .flat_map(|rule| rule.status.unwrap_or_default().conditions)
            .filter(|one| one.type_ == "Ready" && one.reason == "Synced")
            .count();
        let managed = ListParams::default()
            .labels("app.kubernetes.io/managed-by=mimeo")
            .match_any();
        let mut copies = late.secrets().list_metadata(&managed).await?.items;
        // The namespace also has the platform's copy.
        copies.retain(|copy| ResourceExt::name_any(copy).starts_with("late-"));
        if copies.len() == waiting && made == waiting {
            return Ok(Some(copies));
        }
        bail!("{} of {waiting}: {made} made", copies.len())
    })
    .await?;
    let between = revision(&changed)?..revision(&copy)?;
    let slow: Vec<u64> = slow.iter().map(revision).collect::<Result<_>>()?;
    let first = slow
        .iter()
        .filter(|revision| between.contains(revision))
        .count();
    eprintln!("of {waiting} slow copies {first} came before the platform's");
    ensure!(
        first < waiting / 2,
        "the platform's change waited for {first} of {waiting} slow copies"
    );

    // Then two other rules: a new one of the platform, and one of a tenant with a grant from a
    // third namespace.
    let later = RuleSpec {
        name: format!("{}-later", scene.tag),
        ..platform.clone()
    }
    .named("later");
    later.create(&scene.client).await?;
    scene.wait_synced(&later.name).await?;
    giver.makes("db", "given").await?;
    giver
        .writes(
            "replicationgrants",
            "g",
            &consent("Read", &taker.home, &["db"]),
        )
        .await?;
    taker
        .writes("replications", "r", &copying(Some(&giver.home), "db", &[]))
        .await?;
    scene.wait_secret(&taker.home, "db", has("given")).await?;
    Ok(())
}

/// Writes rules that wait for the source `late`, each with a slow copy. Returns their number.
async fn slow_and_waiting(tenant: &Tenant<'_>) -> Result<usize> {
    // The size of each transform.
    const SIZE: usize = 3_000;
    let shapes = slow_transforms();
    for number in 0..SLOW {
        let mut spec = copying(None, "late", &[&tenant.home]);
        spec["targets"][0]["copyName"] = json!(format!("late-{number}"));
        spec["transform"] = shapes[number % shapes.len()](SIZE);
        let rule = format!("late-{number}");
        match tenant.write("replications", &rule, &spec).await {
            Ok(_) => {}
            Err(kube::Error::Api(status))
                if status.message.contains("older Replications use that up") =>
            {
                return Ok(number);
            }
            Err(error) => return Err(error).context(rule),
        }
    }
    Ok(SLOW)
}

/// Writes grants whose pattern costs as much as permitted, until no more grants count. Returns the
/// place before the end of the name at which each pattern looks.
async fn large_patterns(tenant: &Tenant<'_>) -> Result<Vec<usize>> {
    // The pattern tests whether the letter this many places before the end is an `a`. That takes
    // two states for each place.
    let spec = |places: usize| {
        let pattern = format!("(a|b|[c-z0-9-])*a[a-z0-9-]{{{places}}}");
        json!({
            "access": "Read", "grantees": [{"namespacePattern": pattern}],
            "objects": [{"apiVersion": "v1", "kind": "Secret"}],
        })
    };
    let mut places = 64;
    let mut written = Vec::new();
    while places > 0 && written.len() < 300 {
        let (name, spec) = (format!("slow-{}", written.len()), spec(places));
        match tenant.write("replicationgrants", &name, &spec).await {
            Ok(_) => written.push(places),
            Err(kube::Error::Api(status)) if status.message.contains("bytes of memory") => {
                places -= 1;
            }
            Err(kube::Error::Api(status))
                if status.message.contains("older grants use that up") =>
            {
                break;
            }
            Err(error) => return Err(error).context("a grant"),
        }
    }
    Ok(written)
}

/// Writes the rule with the largest size that the API server accepts. Returns this size.
async fn largest(tenant: &Tenant<'_>, rule: &str, spec: impl Fn(usize) -> Value) -> Result<usize> {
    let mut size = 1 << 18;
    loop {
        match tenant.write("replications", rule, &spec(size)).await {
            Ok(_) => return Ok(size),
            Err(kube::Error::Api(status)) => {
                let why: String = status.message.chars().take(500).collect();
                ensure!(
                    why.contains("spec.transform") && size > 64,
                    "{rule} is refused at any size: {why}"
                );
                size = size * 3 / 4;
            }
            Err(error) => return Err(error).context("no answer"),
        }
    }
}

/// Returns transforms of about this size, or of the largest permitted size if that is smaller.
fn slow_transforms() -> Vec<Box<dyn Fn(usize) -> Value>> {
    let annotations = |text: &'static str| {
        let of = move |size: usize| {
            let all = (0..size.div_ceil(4096))
                .map(|n| (format!("a{n}"), text.repeat(size.min(4096) / text.len())));
            json!({"annotations": {"set": all.collect::<BTreeMap<_, _>>()}})
        };
        Box::new(of) as Box<dyn Fn(usize) -> Value>
    };
    let patch = |text: &'static str| {
        let of = move |size: usize| {
            let value = text.repeat(size / text.len());
            json!({"jsonPatch": [{"op": "add", "path": "/metadata/annotations/a", "value": value}]})
        };
        Box::new(of) as Box<dyn Fn(usize) -> Value>
    };
    let copies = |size: usize| {
        let copies = (0..size.min(32))
            .map(|n| json!({"op": "copy", "from": "/data/token", "path": format!("/data/a{n}")}));
        json!({"jsonPatch": copies.collect::<Vec<_>>()})
    };
    let globs = |size: usize| {
        let globs: Vec<String> = (0..(size / 8).min(64)).map(|n| format!("*h{n}*")).collect();
        json!({"data": {"include": globs}, "labels": {"include": globs}, "annotations": {"exclude": globs}})
    };
    vec![
        annotations("$("),
        annotations("$(namespace["),
        annotations("$($(source.name)"),
        annotations("$(source.name)"),
        annotations("$(namespace.name)"),
        patch("$("),
        patch("$(source.name)"),
        patch("$(namespace.name)"),
        Box::new(copies),
        Box::new(globs),
    ]
}
