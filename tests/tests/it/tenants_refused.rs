//! Replications and `ReplicationGrants` that the CRDs and the webhook refuse, with the exact words.
//!
//! `ClusterReplications` have their own tables in `refusals.rs`. The two kinds of rules have
//! separate CRDs, and one may accept a spec that the other refuses.

use anyhow::{Context, Result};
use http::Request;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, ValidationDirective};
use kube::core::DynamicObject;
use mimeo_api::Replication;
use mimeo_tests::refused::{Case, changed, misjudged, passes_schemas};
use mimeo_tests::scenario::{
    SOON, Scene, Setting, any, condition, create, delete, forget_the_hooks, label, of, version,
    wait_for,
};
use mimeo_tests::tenant::{consent, copying, has};
use mimeo_tests::traffic::patiently;
use mimeo_tests::{ControlPlane, Pair, create_namespace, create_secret, eventually, unique};
use serde_json::{Value, json};

use crate::stages::PLAIN as STAGE;

fn good_rule(home: &str) -> Value {
    json!({
        "sources": [{"apiVersion": "v1", "kind": "Secret", "name": "registry"}],
        "targets": [{"namespaces": [home], "copyName": "copy"}],
    })
}

fn source(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "name": name})
}

fn selecting(labels: usize) -> Value {
    let labels: serde_json::Map<String, Value> =
        (0..labels).map(|n| (format!("l{n}"), json!("v"))).collect();
    json!([{"apiVersion": "v1", "kind": "Secret", "selector": {"matchLabels": labels}}])
}

fn bad_sources() -> Vec<Case> {
    const ONE: &str = "exactly one of name and selector must be set";
    let with = |field: &str, value: Value| json!({format!("/sources/0/{field}"): value});
    vec![
        (
            "no list of sources",
            json!({"/sources": null}),
            &["spec.sources", "Required value"],
        ),
        (
            "no source",
            json!({"/sources": []}),
            &["spec.sources", "at least 1 items"],
        ),
        (
            "too many sources",
            json!({"/sources": (0..33).map(|n| source(&format!("s{n}"))).collect::<Vec<_>>()}),
            &["spec.sources", "at most 32 items"],
        ),
        (
            "no apiVersion",
            with("apiVersion", json!(null)),
            &["spec.sources[0].apiVersion", "Required value"],
        ),
        (
            "no kind",
            with("kind", json!(null)),
            &["spec.sources[0].kind", "Required value"],
        ),
        (
            "neither name nor selector",
            with("name", json!(null)),
            &["spec.sources[0]", ONE],
        ),
        (
            "both name and selector",
            with("selector", json!({})),
            &["spec.sources[0]", ONE],
        ),
        (
            "an inline source",
            with("inline", json!({"kind": "ConfigMap"})),
            &["unknown field \"spec.sources[0].inline\""],
        ),
        (
            "kind Namespace",
            with("kind", json!("Namespace")),
            &["spec.sources[0]", "kind Namespace is never copied"],
        ),
        (
            "a kind that gives rights",
            json!({"/sources/0/apiVersion": "rbac.authorization.k8s.io/v1", "/sources/0/kind": "Role"}),
            &[
                "spec.sources[0]",
                "a Replication copies no kind of rbac.authorization.k8s.io",
            ],
        ),
        (
            "a cluster-scoped kind",
            with("kind", json!("Node")),
            &["spec.sources[0]", "Node is cluster-scoped"],
        ),
        (
            "a kind of Mimeo's own",
            json!({"/sources/0/apiVersion": "mimeo.dev/v1alpha1", "/sources/0/kind": "ReplicationGrant"}),
            &["spec.sources[0].kind", "Mimeo's own kinds"],
        ),
        (
            "an invalid apiVersion",
            with("apiVersion", json!("a/b/c")),
            &["spec.sources[0].apiVersion", "as in v1 or apps/v1"],
        ),
        (
            "an invalid kind",
            with("kind", json!("Sec ret")),
            &["spec.sources[0].kind", "as in Secret or ConfigMap"],
        ),
        (
            "an invalid namespace",
            with("namespace", json!("Team")),
            &[
                "spec.sources[0].namespace",
                "as in team-a",
                "no wildcards here",
            ],
        ),
        (
            "a name with a slash",
            with("name", json!("a/b")),
            &[
                "spec.sources[0].name",
                "must be the name of an object",
                "no \"/\"",
            ],
        ),
        (
            "a name that is no DNS name",
            with("name", json!("A_b")),
            &["spec.sources[0].name", "is not a valid DNS name"],
        ),
        (
            "a source twice",
            json!({"/sources": [source("a"), source("a")], "/targets": null}),
            &["spec.sources[1]"],
        ),
        (
            "a selector that is compared with too much",
            json!({"/sources": selecting(33), "/targets": null}),
            &[
                "spec.sources[0].selector",
                "must not have more than 64 keys and values in all: it has 66",
            ],
        ),
        (
            "an unknown operator",
            json!({
                "/sources/0/name": null,
                "/sources/0/selector": {"matchExpressions": [{"key": "a", "operator": "Maybe"}]},
            }),
            &[
                "spec.sources[0].selector.matchExpressions[0].operator",
                "supported values",
            ],
        ),
    ]
}

fn bad_targets() -> Vec<Case> {
    const OF_SOURCES: &str =
        "with several sources or a selector, targets[].copyName must contain $(source.name)";
    let many = |count| (0..count).map(|n| format!("n{n}")).collect::<Vec<_>>();
    let target = |field: &str, value: Value| json!({format!("/targets/0/{field}"): value});
    vec![
        (
            "no target",
            json!({"/targets": []}),
            &["spec.targets", "at least 1 items"],
        ),
        (
            "too many targets",
            json!({"/targets": vec![json!({"namespaces": ["a"]}); 33]}),
            &["spec.targets", "at most 32 items"],
        ),
        (
            "nothing but its own source",
            json!({"/targets": [{"copyName": "registry"}]}),
            &["spec.targets", "its own source"],
        ),
        (
            "no namespace",
            target("namespaces", json!([])),
            &["spec.targets[0].namespaces", "at least 1 items"],
        ),
        (
            "too many namespaces",
            target("namespaces", json!(many(33))),
            &["spec.targets[0].namespaces", "at most 32"],
        ),
        (
            "a glob",
            target("namespaces", json!(["team-*"])),
            &["spec.targets[0].namespaces[0]", "no wildcards here"],
        ),
        (
            "a namespace with capitals",
            target("namespaces", json!(["Team"])),
            &[
                "spec.targets[0].namespaces[0]",
                "must be the name of a namespace, as in team-a",
            ],
        ),
        (
            "a pattern",
            target("namespacePattern", json!("a")),
            &["unknown field \"spec.targets[0].namespacePattern\""],
        ),
        (
            "a selector of namespaces",
            target("namespaceSelector", json!({})),
            &["unknown field \"spec.targets[0].namespaceSelector\""],
        ),
        (
            "a namespace twice",
            target("namespaces", json!(["a", "a"])),
            &["spec.targets[0].namespaces[1]", "Duplicate"],
        ),
        (
            "one name for several copies",
            json!({"/sources": [source("a"), source("b")]}),
            &["spec.targets", OF_SOURCES],
        ),
        (
            "one name for what a selector finds",
            json!({"/sources": selecting(1)}),
            &["spec.targets", OF_SOURCES],
        ),
        (
            "a name that is no DNS name",
            target("copyName", json!("A_b")),
            &["spec.targets[0].copyName", "is not a valid DNS name"],
        ),
        (
            "an unknown variable",
            target("copyName", json!("$(source.uid)")),
            &["spec.targets[0].copyName", "$(source.uid)"],
        ),
        (
            "a label of the namespace in a name",
            target("copyName", json!("$(namespace.labels['a'])")),
            &[
                "spec.targets[0].copyName",
                "must not contain labels of the namespace",
            ],
        ),
        (
            "more copies than one rule may have",
            json!({
                "/sources": (0..9).map(|n| source(&format!("s{n}"))).collect::<Vec<_>>(),
                "/targets": [{"namespaces": many(32)}],
            }),
            &[
                "spec.targets",
                "must not have more than 256 copies (sources times namespaces): it has 288",
            ],
        ),
    ]
}

fn bad_choices() -> Vec<Case> {
    const THEIRS: &str = "Mimeo never updates a copy";
    const NEEDS_REPLACE: &str = "driftPolicy Deny needs strategy Replace";
    let abroad =
        |policy: &str| json!({"/targets/0/namespaces": ["elsewhere"], "/conflictPolicy": policy});
    let once =
        |field: &str, value: Value| json!({"/strategy": "CreateOnce", format!("/{field}"): value});
    vec![
        (
            "a strategy",
            json!({"/strategy": "Merge"}),
            &["spec.strategy", "supported values"],
        ),
        (
            "a conflict policy",
            json!({"/conflictPolicy": "Win"}),
            &["spec.conflictPolicy", "supported values"],
        ),
        (
            "a drift policy",
            json!({"/driftPolicy": "Ignore"}),
            &["spec.driftPolicy", "supported values"],
        ),
        (
            "a pod gate",
            json!({"/podGate": "Required"}),
            &["unknown field \"spec.podGate\""],
        ),
        (
            "Overwrite in another namespace",
            abroad("Overwrite"),
            &["spec.conflictPolicy", "must be Report"],
        ),
        (
            "Adopt in another namespace",
            abroad("Adopt"),
            &["spec.conflictPolicy", "must be Report"],
        ),
        (
            "Deny in another namespace",
            json!({"/targets/0/namespaces": ["elsewhere"], "/strategy": "Replace", "/driftPolicy": "Deny"}),
            &["spec.driftPolicy", "must be Repair"],
        ),
        (
            "finalizers in another namespace",
            json!({"/targets/0/namespaces": ["elsewhere"], "/transform": {"finalizers": ["example.com/hold"]}}),
            &["spec.transform.finalizers", "must be left out"],
        ),
        (
            "a label of another namespace in a value",
            json!({
                "/targets/0/namespaces": ["elsewhere"],
                "/transform": {"labels": {"set": {"a": "$(namespace.labels['tier'])"}}},
            }),
            &[
                "spec.transform.labels.set[a]",
                "must not contain $(namespace.labels['tier'])",
                "\"elsewhere\"",
            ],
        ),
        (
            "the type of service account tokens",
            json!({"/transform": {"type": "kubernetes.io/service-account-token"}}),
            &[
                "spec.transform.type",
                "must not be that of service account tokens or Helm releases",
            ],
        ),
        (
            "CreateOnce and Deny",
            once("driftPolicy", json!("Deny")),
            &["spec.driftPolicy", NEEDS_REPLACE],
        ),
        (
            "Apply and Deny",
            json!({"/driftPolicy": "Deny"}),
            &["spec.driftPolicy", NEEDS_REPLACE],
        ),
        (
            "CreateOnce and resync",
            once("resyncSeconds", json!(60)),
            &["spec.resyncSeconds", THEIRS],
        ),
        (
            "CreateOnce and retention",
            once("retentionPolicy", json!({"whenUnmatched": "Retain"})),
            &[
                "spec.retentionPolicy",
                "with strategy CreateOnce copies always stay",
            ],
        ),
        (
            "a period too short",
            json!({"/resyncSeconds": 9}),
            &["spec.resyncSeconds", "must be 0 or at least 10"],
        ),
        (
            "a period too long",
            json!({"/resyncSeconds": 604_801}),
            &["spec.resyncSeconds", "604800"],
        ),
        (
            "a grace too long",
            json!({"/retentionPolicy": {"sourceGracePeriodSeconds": 86_401}}),
            &["spec.retentionPolicy.sourceGracePeriodSeconds", "86400"],
        ),
        (
            "a type for ConfigMaps",
            json!({"/sources/0/kind": "ConfigMap", "/transform": {"type": "a"}}),
            &["spec.transform.type", "transform.type is only for Secrets"],
        ),
        (
            "keys of data for Services",
            json!({"/sources/0/kind": "Service", "/transform": {"data": {"include": ["a"]}}}),
            &[
                "spec.transform.data",
                "transform.data is only for Secrets and ConfigMaps",
            ],
        ),
        (
            "a mark of Mimeo's",
            json!({"/transform": {"labels": {"set": {"mimeo.dev/copies": "x"}}}}),
            &[
                "spec.transform.labels.set[mimeo.dev/copies]",
                "is reserved for Mimeo",
            ],
        ),
        (
            "a glob that is slow to compare",
            json!({"/transform": {"data": {"include": ["*"], "exclude": ["a", "*a?b*"]}}}),
            &[
                "spec.transform.data.exclude[1]",
                "must not have more than two *, nor a ? between them",
            ],
        ),
        (
            "a patch of the identity",
            json!({"/transform": {"jsonPatch": [{"op": "replace", "path": "/metadata/namespace", "value": "x"}]}}),
            &["spec.transform.jsonPatch[0].path"],
        ),
    ]
}

fn good_grant() -> Value {
    json!({"grantees": [{"namespaces": ["team-a"]}], "objects": [{"apiVersion": "v1", "kind": "Secret", "names": ["db-*"]}]})
}

fn bad_grants() -> Vec<Case> {
    const ONE: &str =
        "at least one of namespaces, namespacePattern and namespaceSelector must be set";
    let from = |value: Value| json!({"/grantees/0": value});
    let to = |field: &str, value: Value| json!({format!("/objects/0/{field}"): value});
    let globs = |count: usize| (0..count).map(|n| format!("a{n}-*")).collect::<Vec<_>>();
    vec![
        (
            "an access",
            json!({"/access": "Delete"}),
            &["spec.access", "supported values"],
        ),
        (
            "nobody",
            json!({"/grantees": []}),
            &["spec.grantees", "at least 1 items"],
        ),
        (
            "no list of namespaces",
            json!({"/grantees": null}),
            &["spec.grantees", "Required value"],
        ),
        (
            "too many",
            json!({"/grantees": vec![json!({"namespaces": ["a"]}); 17]}),
            &["spec.grantees", "at most 16 items"],
        ),
        (
            "none of the selections",
            from(json!({})),
            &["spec.grantees[0]", ONE],
        ),
        (
            "an invalid pattern",
            from(json!({"namespacePattern": "team-("})),
            &["spec.grantees[0].namespacePattern", "RE2"],
        ),
        (
            "a pattern of another syntax",
            from(json!({"namespacePattern": "(?x)a"})),
            &["spec.grantees[0].namespacePattern", "RE2"],
        ),
        (
            "a pattern too large to run",
            from(json!({"namespacePattern": "(.*a.{9}){9}"})),
            &["spec.grantees[0].namespacePattern", "fits into"],
        ),
        (
            "a glob with capitals",
            from(json!({"namespaces": ["Team-*"]})),
            &["spec.grantees[0].namespaces[0]", "as in team-*"],
        ),
        (
            "an invalid label",
            from(json!({"namespaceSelector": {"matchLabels": {"a b": "c"}}})),
            &["spec.grantees[0].namespaceSelector.matchLabels"],
        ),
        (
            "nothing",
            json!({"/objects": []}),
            &["spec.objects", "at least 1 items"],
        ),
        (
            "too many kinds",
            json!({"/objects": vec![json!({"apiVersion": "v1", "kind": "Secret"}); 17]}),
            &["spec.objects", "at most 16 items"],
        ),
        (
            "no kind",
            to("kind", json!(null)),
            &["spec.objects[0].kind", "Required value"],
        ),
        (
            "an invalid apiVersion",
            to("apiVersion", json!("V1")),
            &["spec.objects[0].apiVersion", "as in v1 or apps/v1"],
        ),
        (
            "an empty list of names",
            to("names", json!([])),
            &["spec.objects[0].names", "at least 1 items"],
        ),
        (
            "a name with a slash",
            to("names", json!(["a/b"])),
            &["spec.objects[0].names[0]", "as in registry-*"],
        ),
        (
            "a name that is slow to ask",
            to("names", json!(["a", "*a*b*"])),
            &[
                "spec.objects[0].names[1]",
                "must not have more than two *, nor a ? between them",
            ],
        ),
        (
            "more names than one namespace may grant",
            json!({"/objects": vec![json!({"apiVersion": "v1", "kind": "Secret", "names": globs(64)}); 3]}),
            &["spec", "must not have more than 1024 names in all"],
        ),
        (
            "a namespace of the objects",
            to("namespace", json!("a")),
            &["unknown field \"spec.objects[0].namespace\""],
        ),
    ]
}

/// The objects of one kind in one namespace, with one good object.
struct Objects<'a> {
    scene: &'a Scene<'a>,
    kind: &'static str,
    plural: &'static str,
    home: &'a str,
    good: Value,
}

impl Objects<'_> {
    async fn create(&self, name: &str, spec: &Value) -> kube::Result<Value> {
        // Strict as in kubectl. Otherwise the API server only warns of unknown fields.
        let uri = format!(
            "/apis/mimeo.dev/v1alpha1/namespaces/{}/{}?fieldValidation=Strict",
            self.home, self.plural
        );
        let object = object(self.kind, self.home, name, spec).to_string();
        let attempt = async || {
            let request = Request::post(&uri).header("content-type", "application/json");
            let request = request
                .body(object.clone().into_bytes())
                .map_err(kube::core::request::Error::BuildRequest);
            self.scene
                .client
                .request(request.map_err(kube::Error::BuildRequest)?)
                .await
        };
        Ok(patiently(attempt).await?.0)
    }

    fn api(&self) -> Result<Api<DynamicObject>> {
        any(
            &self.scene.client,
            "mimeo.dev/v1alpha1",
            self.kind,
            Some(self.home),
        )
    }

    /// Returns the cases with a wrong answer, both as new objects and as changes of the good one.
    async fn misjudged(&self, cases: &[Case]) -> Result<Vec<String>> {
        let (mut wrong, api) = (Vec::new(), self.api()?);
        for (what, change, words) in cases {
            let (name, spec) = (unique(&self.scene.tag), changed(&self.good, change)?);
            wrong.extend(misjudged(what, self.create(&name, &spec).await, words));
            if api.get_opt(&name).await?.is_some() {
                wrong.push(format!("{what}: it is stored"));
                delete(&api, &name).await?;
            }
            let patch = json!([{"op": "replace", "path": "/spec", "value": spec}]);
            let patch: Patch<()> = Patch::Json(serde_json::from_value(patch)?);
            let strict = PatchParams {
                field_validation: Some(ValidationDirective::Strict),
                ..PatchParams::default()
            };
            wrong.extend(misjudged(
                &format!("{what}, as an update"),
                patiently(|| api.patch("good", &strict, &patch)).await,
                words,
            ));
        }
        assert_eq!(api.get("good").await?.metadata.generation, Some(1));
        Ok(wrong)
    }
}

/// The checks of rules and of grants that the schemas of the CRDs cannot express.
const BY_THE_WEBHOOK: [&[&str]; 2] = [
    &[
        "a cluster-scoped kind",
        "a kind of Mimeo's own",
        "a name that is no DNS name",
        "a source twice",
        "a selector that is compared with too much",
        "nothing but its own source",
        "a name that is no DNS name",
        "an unknown variable",
        "a label of the namespace in a name",
        "more copies than one rule may have",
        "Overwrite in another namespace",
        "Adopt in another namespace",
        "Deny in another namespace",
        "finalizers in another namespace",
        "a label of another namespace in a value",
        "the type of service account tokens",
        "a mark of Mimeo's",
        "a glob that is slow to compare",
        "a patch of the identity",
    ],
    &[
        "a pattern too large to run",
        "an invalid label",
        "a name that is slow to ask",
        "more names than one namespace may grant",
    ],
];

#[tokio::test]
async fn most_bad_rules_and_grants_are_refused_by_their_definitions_too() -> Result<()> {
    let rules = [bad_sources(), bad_targets(), bad_choices()].concat();
    let rules = passes_schemas("Replication", "replications", &good_rule("team"), rules).await?;
    let grants = passes_schemas(
        "ReplicationGrant",
        "replicationgrants",
        &good_grant(),
        bad_grants(),
    )
    .await?;
    assert_eq!([&rules[..], &grants[..]], BY_THE_WEBHOOK);
    Ok(())
}

#[tokio::test]
async fn a_bad_rule_of_a_namespace_is_refused_with_its_field_and_changes_nothing() -> Result<()> {
    let scene = STAGE.scene("rules").await?;
    let home = scene.namespace().await?;
    create_secret(&scene.client, &home, "registry", &[("token", "one")]).await?;
    let rules = Objects {
        scene: &scene,
        kind: "Replication",
        plural: "replications",
        home: &home,
        good: good_rule(&home),
    };
    rules.create("good", &rules.good).await?;
    let copies: Api<Secret> = of(&scene.client, &home);
    let before = version(&wait_for(copies.clone(), "copy".to_owned(), |_| true).await?);
    let wrong = rules
        .misjudged(&[bad_sources(), bad_targets(), bad_choices()].concat())
        .await?;
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(version(&copies.get("copy").await?), before);
    Ok(())
}

/// These objects were stored without the webhook. The reconciler refuses each rule in the same
/// words. A grant with an error grants nothing, not even its correct parts.
#[tokio::test]
async fn what_only_the_webhook_refuses_is_worth_nothing_once_it_is_stored() -> Result<()> {
    const OURS: &str = "marker";
    let mut setting = Setting::start(
        ControlPlane::builder().controller_manager(false),
        Pair::builder(),
    )
    .await?;
    let client = setting.control_plane.client().await?;
    create_namespace(&client, "team-a", &[]).await?;
    let takers: Api<Replication> = of(&client, "team-a");
    let (tag, home) = {
        let scene = setting.scene("stored").await?;
        // One source for each grant, and one for a good grant that comes after them.
        for name in ["a", "a0-x", "db-x", OURS] {
            scene.secret(name, &[("token", "one")]).await?;
            let spec = copying(Some(&scene.home), name, &[]);
            create(
                &client,
                "namespaces/team-a/replications",
                &object("Replication", "team-a", name, &spec),
            )
            .await?;
            wait_for(
                takers.clone(),
                name.to_owned(),
                is("Authorized", "NotGranted", &[]),
            )
            .await?;
        }
        (scene.tag.clone(), scene.home.clone())
    };
    setting.pair.stop_webhooks().await?;
    forget_the_hooks(&client).await?;

    let store = async |kind: &str, plural: &str, spec: &Value| -> Result<String> {
        let (name, path) = (unique(&tag), format!("namespaces/{home}/{plural}"));
        let object = object(kind, &home, &name, spec);
        // The API server uses the deleted hooks for another moment.
        eventually(SOON, format!("{kind} stored"), || async {
            Ok(Some(create(&client, &path, &object).await?))
        })
        .await?;
        Ok(name)
    };
    let mut grants = 0;
    for (what, change, _) in bad_grants() {
        if BY_THE_WEBHOOK[1].contains(&what) {
            store(
                "ReplicationGrant",
                "replicationgrants",
                &changed(&good_grant(), &change)?,
            )
            .await
            .context(what)?;
            grants += 1;
        }
    }
    let mut rules = Vec::new();
    for (what, change, words) in [bad_sources(), bad_targets(), bad_choices()].concat() {
        if BY_THE_WEBHOOK[0].contains(&what) {
            let spec = changed(&good_rule(&home), &change)?;
            rules.push((
                store("Replication", "replications", &spec)
                    .await
                    .context(what)?,
                what,
                words,
            ));
        }
    }
    assert_eq!([rules.len(), grants], BY_THE_WEBHOOK.map(<[_]>::len));
    store(
        "ReplicationGrant",
        "replicationgrants",
        &consent("Read", "team-a", &[OURS]),
    )
    .await?;
    wait_for(of::<Secret>(&client, "team-a"), OURS.to_owned(), has("one")).await?;
    let told = async || {
        let all: Api<Replication> = of(&client, &home);
        for (name, what, words) in &rules {
            // Only the cluster knows whether a kind is namespaced.
            let told = if *what == "a cluster-scoped kind" {
                wait_for(
                    all.clone(),
                    name.clone(),
                    is("SourcesFound", "SourceRefused", &["cluster-scoped"]),
                )
                .await
            } else {
                wait_for(
                    all.clone(),
                    name.clone(),
                    is("Stalled", "InvalidSpec", words),
                )
                .await
            };
            told.context(*what)?;
        }
        for name in ["a", "a0-x", "db-x"] {
            wait_for(
                takers.clone(),
                name.to_owned(),
                is("Authorized", "NotGranted", &[]),
            )
            .await?;
            assert!(
                of::<Secret>(&client, "team-a")
                    .get_opt(name)
                    .await?
                    .is_none(),
                "{name} came by a bad grant"
            );
        }
        let secrets = of::<Secret>(&client, &home)
            .list(&ListParams::default())
            .await?
            .items;
        assert!(
            secrets
                .iter()
                .all(|secret| label(secret, "app.kubernetes.io/managed-by").is_none()),
            "a copy came"
        );
        anyhow::Ok(())
    };
    told().await?;

    // A webhook that starts later changes nothing about these objects, and refuses equal ones.
    setting.pair.start_webhook().await?;
    let scene = Scene {
        setting: &setting,
        client: client.clone(),
        tag: tag.clone(),
        home: home.clone(),
    };
    let rules_of_home = Objects {
        scene: &scene,
        kind: "Replication",
        plural: "replications",
        home: &home,
        good: good_rule(&home),
    };
    let (what, change, words) = bad_choices().pop().context("no case")?;
    let refused = async || {
        let spec = changed(&rules_of_home.good, &change)?;
        Ok(misjudged(
            what,
            rules_of_home.create(&unique(&tag), &spec).await,
            words,
        )
        .is_none()
        .then_some(()))
    };
    eventually(SOON, "the hooks to be back", refused).await?;
    told().await?;
    let log = setting.log();
    assert!(!log.contains("panicked"), "{log}");
    Ok(())
}

fn object(kind: &str, namespace: &str, name: &str, spec: &Value) -> Value {
    let metadata = json!({"name": name, "namespace": namespace});
    json!({"apiVersion": "mimeo.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec})
}

/// True if a rule has a condition with this reason, and these words in its message.
fn is(type_: &str, reason: &str, words: &[&str]) -> impl Fn(&Replication) -> bool {
    move |rule| {
        let found = rule
            .status
            .as_ref()
            .and_then(|status| condition(status, type_));
        found.is_some_and(|one| {
            one.reason == reason && words.iter().all(|word| one.message.contains(word))
        })
    }
}

#[tokio::test]
async fn a_bad_grant_is_refused_with_its_field_and_changes_nothing() -> Result<()> {
    let scene = STAGE.scene("grants").await?;
    let grants = Objects {
        scene: &scene,
        kind: "ReplicationGrant",
        plural: "replicationgrants",
        home: &scene.home,
        good: good_grant(),
    };
    grants.create("good", &grants.good).await?;
    let wrong = grants.misjudged(&bad_grants()).await?;
    assert!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}
