//! An installation with Roles in a few namespaces instead of `ClusterRoles`, as in the component
//! `restricted`.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::{
    api::core::v1::{ConfigMap, Pod, Secret},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use mimeo_api::ClusterReplication;
use mimeo_tests::{
    AuditEvent, AuditMark, ControlPlane, NAMESPACE, Pair,
    author::{Author, secrets},
    create_namespace, create_secret, eventually, never_permitted,
    scenario::{
        SOON, Setting, apply, condition, delete, kubectl, kubectl_as, label, merge, of, put, rule,
        value, wait_for, wait_gone,
    },
    tenant::{Tenant, consent, copying, has},
    unique,
};
use serde_json::{Value, json};

/// Writes a kustomization as the component's comments say, with sources in these namespaces.
fn kustomization(sources: &[&str]) -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    // Kustomize accepts only relative paths.
    let up = "../".repeat(folder.path().canonicalize()?.components().count() - 1);
    let base = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../manifests/kustomize")
        .canonicalize()?;
    let base = format!("{up}{}", base.strip_prefix("/")?.display());
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": [base, "bindings.json"], "components": [format!("{base}/restricted")],
    });
    fs::write(
        folder.path().join("kustomization.yaml"),
        kustomization.to_string(),
    )?;
    let binding = |namespace: &&str| {
        binding(
            namespace,
            "mimeo-sources",
            &["mimeo-webhook", "mimeo-reconciler"],
        )
    };
    let bindings: Vec<Value> = sources.iter().map(binding).collect();
    let bindings = json!({"apiVersion": "v1", "kind": "List", "items": bindings});
    fs::write(folder.path().join("bindings.json"), bindings.to_string())?;
    Ok(folder)
}

fn binding(namespace: &str, role: &str, accounts: &[&str]) -> Value {
    let subject =
        |name: &&str| json!({"kind": "ServiceAccount", "namespace": NAMESPACE, "name": name});
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": role, "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": accounts.iter().map(subject).collect::<Vec<_>>(),
    })
}

/// Permits Mimeo to write copies into a namespace.
async fn grant(client: &Client, namespace: &str) -> Result<()> {
    apply(
        client,
        &binding(
            namespace,
            "mimeo-kinds",
            &["mimeo-webhook", "mimeo-reconciler"],
        ),
    )
    .await?;
    apply(
        client,
        &binding(namespace, "mimeo-kinds-reconciler", &["mimeo-reconciler"]),
    )
    .await?;
    Ok(())
}

fn pod() -> Pod {
    let pod = json!({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "web", "image": "web"}]}});
    serde_json::from_value(pod).expect("a literal Pod")
}

/// The cluster of the scenarios.
struct Cluster {
    setting: Setting,
    client: Client,
    rules: Api<ClusterReplication>,
    /// A place in the audit log before Mimeo's start.
    mark: AuditMark,
}

impl Cluster {
    /// Starts Mimeo with sources in these namespaces and copies of Secrets in `team-a` and
    /// `team-b`. Mimeo has its Roles only in the `granted` namespaces.
    async fn start(sources: &[&str], granted: &[&str]) -> Result<Self> {
        let folder = kustomization(sources)?;
        let control_plane = ControlPlane::builder().audit(true).start().await?;
        let client = control_plane.client().await?;
        let namespaces: BTreeSet<&str> = ["team-c", "elsewhere"]
            .iter()
            .chain(sources)
            .chain(granted)
            .copied()
            .collect();
        for name in namespaces {
            create_namespace(&client, name, &[]).await?;
        }
        for name in granted {
            grant(&client, name).await?;
        }
        let mark = control_plane.audit_mark().await?;
        let sources = sources.join(",");
        let limits = [
            "--source-namespaces",
            &sources,
            "--target-namespaces",
            "team-a,team-b",
            "--kinds",
            "Secret",
        ];
        let pair = Pair::builder()
            .rights_of(folder.path())
            .webhook_args(limits);
        let pair = pair
            .reconciler_args(limits)
            .reconciler_args(["--deletion-delay", "1s"]);
        let pair = pair.start(&control_plane).await?;
        Ok(Self {
            setting: Setting {
                pair,
                control_plane,
            },
            rules: Api::all(client.clone()),
            client,
            mark,
        })
    }

    fn secret(&self, namespace: &str) -> Api<Secret> {
        Api::namespaced(self.client.clone(), namespace)
    }

    async fn holds(&self, namespace: &str, token: &str) -> Result<()> {
        let is = move |copy: &Secret| value(copy, "token").as_deref() == Some(token);
        wait_for(self.secret(namespace), "registry".into(), is)
            .await
            .map(drop)
    }

    async fn says(&self, name: &str, type_: &str, is: impl Fn(&Condition) -> bool) -> Result<()> {
        let is = |rule: &ClusterReplication| {
            rule.status
                .as_ref()
                .and_then(|status| condition(status, type_))
                .is_some_and(&is)
        };
        wait_for(self.rules.clone(), name.into(), is)
            .await
            .map(drop)
    }

    /// Waits until the status says that this flag keeps the rule's source out of reach.
    async fn is_refused(&self, rule: &str, flag: &str) -> Result<()> {
        self.says(rule, "SourcesFound", |one| {
            one.reason == "SourceRefused" && one.message.contains(flag)
        })
        .await
    }

    /// Applies a rule and returns kubectl's output.
    fn warned(&self, rule: &Value) -> Result<String> {
        let file = tempfile::NamedTempFile::new()?;
        fs::write(file.path(), rule.to_string())?;
        kubectl(
            &self.setting.control_plane,
            ["apply", "-f", &file.path().display().to_string()],
        )
    }

    /// Checks that Mimeo requested Secrets and ConfigMaps only in these namespaces and its own. It
    /// was denied requests only in namespaces that had no Role for a while.
    async fn kept_to(&self, places: &[&str], late: &[&str]) -> Result<()> {
        let asked = self.setting.control_plane.audit_since(&self.mark).await?;
        let asked = asked.iter().filter(|event| self.setting.is_ours(event));
        let objects = asked
            .clone()
            .filter(|event| matches!(event.resource.as_str(), "secrets" | "configmaps"));
        let strayed = |event: &&AuditEvent| {
            event.namespace != NAMESPACE && !places.contains(&&*event.namespace)
        };
        let strayed: Vec<_> = objects.filter(strayed).collect();
        ensure!(strayed.is_empty(), "{strayed:#?}");
        let mut denied = never_permitted(&asked.collect::<Vec<_>>());
        denied.retain(|event| !late.contains(&&*event.namespace));
        ensure!(denied.is_empty(), "{denied:#?}");
        Ok(())
    }
}

#[tokio::test]
async fn with_roles_in_a_few_namespaces_all_is_done_there_and_nothing_asked_elsewhere() -> Result<()>
{
    let cluster = Cluster::start(&["platform"], &["team-a"]).await?;
    create_secret(&cluster.client, "platform", "registry", &[("token", "one")]).await?;

    let pull = rule("pull")
        .secret("platform", "registry")
        .target(json!({"namespaces": ["team-*"]}));
    pull.set("podGate", json!("Required"))
        .create(&cluster.client)
        .await?;
    cluster.holds("team-a", "one").await?;
    the_role_for_a_new_namespace_may_come_later(&cluster).await?;
    merge(
        &cluster.secret("platform"),
        "registry",
        json!({"stringData": {"token": "two"}}),
    )
    .await?;
    cluster.holds("team-b", "two").await?;
    cluster.holds("team-a", "two").await?;
    merge(
        &cluster.secret("team-a"),
        "registry",
        json!({"data": {"token": null}}),
    )
    .await?;
    cluster.holds("team-a", "two").await?;
    ensure!(
        cluster
            .secret("team-c")
            .get_opt("registry")
            .await?
            .is_none(),
        "out of reach"
    );
    what_is_out_of_reach_is_said(&cluster).await?;
    all_is_tidied_up(&cluster).await?;
    cluster
        .kept_to(&["platform", "team-a", "team-b"], &["team-b"])
        .await
}

/// Mimeo has no Role yet in a namespace within reach. No pod waits there, and the copies are
/// written once the Role exists.
async fn the_role_for_a_new_namespace_may_come_later(cluster: &Cluster) -> Result<()> {
    let client = &cluster.client;
    create_namespace(client, "team-b", &[]).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "team-b");
    eventually(SOON, "the pod to be admitted", || async {
        pods.create(&PostParams::default(), &pod())
            .await
            .context("held")
            .map(Some)
    })
    .await?;
    ensure!(
        cluster
            .secret("team-b")
            .get_opt("registry")
            .await?
            .is_none()
    );
    let told = "in namespace team-b: a Role there must have the rule {apiGroups: [\"\"]";
    cluster
        .says("pull", "Authorized", |one| {
            one.reason == "ControllerForbidden"
                && one.message.contains(told)
                && !one.message.contains("team-a")
        })
        .await?;
    let before = cluster.setting.control_plane.audit_mark().await?;
    grant(client, "team-b").await?;
    cluster.holds("team-b", "one").await?;
    cluster
        .says("pull", "Ready", |one| {
            one.status == "True" && one.message.contains("2 copies")
        })
        .await?;
    let after = cluster.setting.control_plane.audit_since(&before).await?;
    let watches = |event: &AuditEvent| event.verb == "watch" && event.namespace == "team-b";
    ensure!(
        after
            .iter()
            .any(|event| watches(event) && event.resource == "secrets"),
        "it is not watched"
    );
    Ok(())
}

/// A warning tells the rule's author at once, and the status tells it later.
async fn what_is_out_of_reach_is_said(cluster: &Cluster) -> Result<()> {
    let away = rule("away")
        .secret("elsewhere", "registry")
        .target(json!({"namespaces": ["team-a"]}))
        .named("other");
    let told = cluster.warned(&away.object())?;
    let warned = "Warning: Mimeo: source v1/Secret/elsewhere/registry: ";
    ensure!(
        told.contains(warned) && told.contains("--source-namespaces"),
        "{told}"
    );
    cluster.is_refused("away", "--source-namespaces").await?;
    delete(&cluster.rules, "away").await
}

/// Deletes the rule. Then the record of the kind disappears, although Mimeo looks for copies only
/// in these namespaces.
async fn all_is_tidied_up(cluster: &Cluster) -> Result<()> {
    delete(&cluster.rules, "pull").await?;
    wait_gone(cluster.secret("team-a"), "registry").await?;
    wait_gone(cluster.secret("team-b"), "registry").await?;
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    eventually(SOON, "the kind's note to go", || async {
        let noted = maps.get("mimeo-kinds").await?.data.unwrap_or_default();
        if noted.is_empty() {
            Ok(Some(()))
        } else {
            bail!("{noted:?}")
        }
    })
    .await
}

/// The grants would permit more than the limits. The limits prevail, and the statuses say so.
#[tokio::test]
async fn rules_of_tenants_end_at_the_limits_whatever_is_granted() -> Result<()> {
    let cluster = Cluster::start(&["platform", "team-a"], &["team-a", "team-b"]).await?;
    let scene = cluster.setting.scene("tenants").await?;
    let ann = Tenant::editor_of(&scene, "team-a").await?;
    for (home, access) in [
        ("platform", "Read"),
        ("elsewhere", "Read"),
        ("team-b", "Write"),
        ("team-c", "Write"),
    ] {
        let owner = Tenant::editor_of(&scene, home).await?;
        owner.secret("db", home).await?;
        owner
            .writes(
                "replicationgrants",
                "to-ann",
                &consent(access, "team-a", &[]),
            )
            .await?;
    }
    ann.secret("own", "own").await?;
    let pull = |from| copying(Some(from), "db", &[]);
    ann.writes("replications", "pull", &pull("platform"))
        .await?;
    scene.wait_secret("team-a", "db", has("platform")).await?;
    ann.writes("replications", "push", &copying(None, "own", &["team-b"]))
        .await?;
    scene.wait_secret("team-b", "own", has("own")).await?;
    ann.status("push", "Ready", "Synced").await?;
    let selecting = |from: &str| {
        json!({
            "sources": [{
                "apiVersion": "v1", "kind": "Secret", "namespace": from, "selector": {"matchLabels": {"copy": "yes"}},
            }],
            "targets": [{"namespaces": ["team-a"], "copyName": "found-$(source.name)"}],
            "retentionPolicy": {"sourceGracePeriodSeconds": 0},
        })
    };
    ann.writes("replications", "select", &selecting("platform"))
        .await?;
    let selected = |value: Value| json!({"metadata": {"labels": {"copy": value}}});
    merge(&cluster.secret("platform"), "db", selected(json!("yes"))).await?;
    scene
        .wait_secret("team-a", "found-db", has("platform"))
        .await?;

    // These are granted but out of reach.
    for (name, spec, flag) in [
        ("away", pull("elsewhere"), "--source-namespaces"),
        (
            "away-selected",
            selecting("elsewhere"),
            "--source-namespaces",
        ),
        (
            "beyond",
            copying(None, "own", &["team-c"]),
            "--target-namespaces",
        ),
    ] {
        ann.writes("replications", name, &spec).await?;
        let status = ann
            .status(name, "Authorized", "ControllerForbidden")
            .await?;
        let message = condition(&status, "Authorized").map(|one| one.message.clone());
        ensure!(
            message
                .as_ref()
                .is_some_and(|message| message.contains(flag)),
            "{name}: {message:?}"
        );
    }

    // Mimeo deletes the copy if the grant is withdrawn, and if the label is removed.
    kubectl(
        &cluster.setting.control_plane,
        ["delete", "replicationgrant", "-n", "team-b", "to-ann"],
    )?;
    wait_gone(cluster.secret("team-b"), "own").await?;
    merge(&cluster.secret("platform"), "db", selected(json!(null))).await?;
    // The label only decides about the selector. Another rule still names the object as its source.
    wait_gone(cluster.secret("team-a"), "found-db").await?;
    scene.wait_secret("team-a", "db", has("platform")).await?;
    ensure!(
        cluster.secret("team-c").get_opt("own").await?.is_none(),
        "out of reach"
    );
    drop(scene);
    cluster
        .kept_to(&["platform", "team-a", "team-b"], &[])
        .await
}

/// Other parts of `ClusterReplication`s stay within the limits, too: selectors, and the hook that
/// denies drift. Policies need no limits, because they act on requests and read nothing.
#[tokio::test]
async fn selectors_and_denied_drift_keep_to_the_limits_and_policies_need_none() -> Result<()> {
    let cluster = Cluster::start(&["platform"], &["team-a", "team-b"]).await?;
    let (client, scene) = (&cluster.client, cluster.setting.scene("hooks").await?);
    for (home, name) in [("platform", "one"), ("elsewhere", "two")] {
        create_secret(client, home, name, &[("token", name)]).await?;
        merge(
            &cluster.secret(home),
            name,
            json!({"metadata": {"labels": {"copy": "yes"}}}),
        )
        .await?;
    }
    let selecting = |name: &str, home: &str| {
        let selector = json!({"matchLabels": {"copy": "yes"}});
        let rule = rule(name)
            .selected("v1", "Secret", home, &selector)
            .target(json!({"namespaces": ["team-*"]}));
        rule.named("$(source.name)").denying()
    };
    selecting("select", "platform").create(client).await?;
    for namespace in ["team-a", "team-b"] {
        scene.wait_secret(namespace, "one", has("one")).await?;
    }
    let told = cluster.warned(&selecting("select-away", "elsewhere").object())?;
    ensure!(told.contains("--source-namespaces"), "{told}");
    cluster
        .is_refused("select-away", "--source-namespaces")
        .await?;

    scene
        .wait_condition("select", "PodGateActive", "True", "Active")
        .await?;
    let owner = Tenant::editor_of(&scene, "team-a").await?;
    for outcome in [
        put(&owner.secrets(), "one", &[("token", "theirs")])
            .await
            .map(drop),
        delete(&owner.secrets(), "one").await,
    ] {
        let refusal = outcome.err().context("drift was let through")?;
        ensure!(
            format!("{refusal:#}").contains("ClusterReplication/select"),
            "{refusal:#}"
        );
    }

    let policy = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": "mark"},
        "spec": {
            "match": {
                "kinds": [{"apiVersion": "v1", "kind": "Secret"}, {"apiVersion": "v1", "kind": "ConfigMap"}],
                "objectSelector": {"matchLabels": {"rewrite": "yes"}},
            },
            "transform": {"labels": {"set": {"rewritten": "yes"}}},
        },
    });
    apply(client, &policy).await?;
    for kind in ["Secret", "ConfigMap"] {
        eventually(SOON, format!("a rewritten {kind} out of reach"), || async {
            let metadata = json!({"namespace": "elsewhere", "name": unique("sent"), "labels": {"rewrite": "yes"}});
            let sent = json!({"apiVersion": "v1", "kind": kind, "metadata": metadata});
            let stored = apply(client, &sent).await?;
            Ok((label(&stored, "rewritten") == Some("yes")).then_some(()))
        })
        .await?;
    }
    drop(scene);
    cluster
        .kept_to(&["platform", "team-a", "team-b"], &[])
        .await
}

/// The kind is excluded although the Roles in these namespaces include ConfigMaps.
#[tokio::test]
async fn of_a_kind_that_is_not_to_be_copied_nothing_is_read_or_written_and_its_rules_say_why()
-> Result<()> {
    let cluster = Cluster::start(&["platform", "team-a"], &["team-a", "team-b"]).await?;
    let (client, scene) = (&cluster.client, cluster.setting.scene("kinds").await?);
    let map = |namespace: &str, name: &str| {
        let metadata = json!({"namespace": namespace, "name": name, "labels": {"copy": "yes"}});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "b"}})
    };
    apply(client, &map("platform", "settings")).await?;
    apply(client, &map("team-a", "settings")).await?;
    create_secret(client, "platform", "registry", &[("token", "one")]).await?;
    let selector = json!({"matchLabels": {"copy": "yes"}});
    let inline = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "inline"}, "data": {"a": "b"}});
    for (name, rule) in [
        (
            "named",
            rule("named").source("v1", "ConfigMap", "platform", "settings"),
        ),
        (
            "selected",
            rule("selected").selected("v1", "ConfigMap", "platform", &selector),
        ),
        ("inline", rule("inline").inline(&inline)),
        // The other source of this rule is copied.
        (
            "mixed",
            rule("mixed")
                .source("v1", "ConfigMap", "platform", "settings")
                .secret("platform", "registry"),
        ),
    ] {
        let rule = rule
            .target(json!({"namespaces": ["team-*"]}))
            .named(&format!("{name}-$(source.name)"));
        let told = cluster.warned(&rule.object())?;
        ensure!(
            told.contains("this installation of Mimeo does not copy the kind (--kinds)"),
            "{name}: {told}"
        );
        cluster.is_refused(name, "--kinds").await?;
        cluster
            .says(name, "Ready", |one| one.status == "False")
            .await?;
    }
    scene
        .wait_secret("team-b", "mixed-registry", has("one"))
        .await?;
    let ann = Tenant::editor_of(&scene, "team-a").await?;
    let mut own = copying(None, "settings", &["team-a"]);
    own["sources"][0]["kind"] = json!("ConfigMap");
    own["targets"][0]["copyName"] = json!("own-settings");
    ann.writes("replications", "own", &own).await?;
    ann.status("own", "SourcesFound", "SourceRefused").await?;

    let maps = of::<ConfigMap>(client, NAMESPACE)
        .get("mimeo-kinds")
        .await?
        .data
        .unwrap_or_default();
    ensure!(
        !maps.keys().any(|kind| kind.contains("onfig")),
        "noted as a kind that may have copies: {maps:?}"
    );
    for namespace in ["team-a", "team-b"] {
        let ours = ListParams::default().labels("app.kubernetes.io/managed-by=mimeo");
        let found = of::<ConfigMap>(client, namespace)
            .list_metadata(&ours)
            .await?
            .items;
        ensure!(found.is_empty(), "{found:?}");
    }
    let asked = cluster
        .setting
        .control_plane
        .audit_since(&cluster.mark)
        .await?;
    let strayed = |event: &&AuditEvent| {
        cluster.setting.is_ours(event)
            && event.resource == "configmaps"
            && event.namespace != NAMESPACE
    };
    let strayed: Vec<_> = asked.iter().filter(strayed).collect();
    ensure!(strayed.is_empty(), "{strayed:#?}");
    drop(scene);
    cluster
        .kept_to(&["platform", "team-a", "team-b"], &[])
        .await
}

/// A missing Role does not reveal namespaces either. An author without the permission to list
/// namespaces learns only about namespaces that the rule names.
#[tokio::test]
async fn where_a_role_is_missing_is_told_to_who_names_the_namespace_or_may_list_them() -> Result<()>
{
    let cluster = Cluster::start(&["platform"], &["team-a"]).await?;
    create_secret(&cluster.client, "platform", "registry", &[("token", "one")]).await?;
    create_namespace(&cluster.client, "team-b", &[("tier", "gold")]).await?;
    let scene = cluster.setting.scene("lacks").await?;
    let author = Author::new(&scene, &[]).await?;
    author
        .may(None, &secrets(&["get", "create", "update", "delete"]))
        .await?;
    let user = cluster.setting.control_plane.user(&author.name, &[])?;
    let told = |target: Value| -> Result<String> {
        let file = tempfile::NamedTempFile::new()?;
        fs::write(
            file.path(),
            rule("pull")
                .secret("platform", "registry")
                .target(target)
                .object()
                .to_string(),
        )?;
        let path = file.path().display().to_string();
        kubectl_as(
            &cluster.setting.control_plane,
            &user,
            ["apply", "--dry-run=server", "-f", &path],
        )
    };
    let found = [
        json!({"namespaceSelector": {"matchLabels": {"tier": "gold"}}}),
        json!({"namespaces": ["team-*"]}),
        json!({"namespacePattern": "team-b"}),
    ];
    let lack = "in namespace team-b: a Role there must have the rule";
    // It takes a moment until the webhook knows the permissions and the namespaces.
    eventually(SOON, "a warning about the named namespace", || async {
        let told = told(json!({"namespaces": ["team-b"]}))?;
        ensure!(told.contains(lack), "{told}");
        Ok(Some(()))
    })
    .await?;
    for target in &found {
        let told = told(target.clone())?;
        ensure!(
            !told.contains("team-b") && !told.contains("more missing"),
            "{target}: {told}"
        );
    }
    author
        .may(
            None,
            &json!({"apiGroups": [""], "resources": ["namespaces"], "verbs": ["list"]}),
        )
        .await?;
    for target in &found {
        eventually(SOON, format!("a word of {target}"), || async {
            let told = told(target.clone())?;
            ensure!(told.contains(lack), "{told}");
            Ok(Some(()))
        })
        .await?;
    }
    Ok(())
}
