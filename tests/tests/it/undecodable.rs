//! Objects that an API server stores as a client wrote them, but that no JSON decoder in Mimeo
//! accepts. They affect no other object.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use http::{Method, Request};
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use mimeo_api::{ClusterReplicationStatus, ReplicationGrant};
use mimeo_tests::scenario::{
    RuleSpec, SOON, Scene, Setting, condition, delete, forget_the_hooks, merge, of, put, rule,
    wait_gone,
};
use mimeo_tests::tenant::{Tenant, consent, copying, has};
use mimeo_tests::traffic::HOOK_TIMEOUT;
use mimeo_tests::{ControlPlane, Pair, eventually, install_crd, planted, unique};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};

const RBAC: &str = "rbac.authorization.k8s.io/v1";
const MIMEO: &str = "mimeo.dev/v1alpha1";

/// Returns nested maps. `serde_json` accepts 127 levels, the API server 10,000.
fn nested(levels: usize) -> String {
    format!(
        "{}{}",
        r#"{"f:x":"#.repeat(levels - 1) + "{",
        "}".repeat(levels)
    )
}

/// A form of `managedFields` that cannot be decoded.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// Fields that are nested too deeply.
    Deep,
    /// The last second of the year 9999 is later than the largest timestamp of Mimeo's decoder.
    Late,
}

const FORMS: [Form; 2] = [Form::Deep, Form::Late];

impl Form {
    fn word(self) -> &'static str {
        match self {
            Self::Deep => "deep",
            Self::Late => "late",
        }
    }

    /// Returns a text that the stored object contains.
    fn sign(self) -> String {
        match self {
            Self::Deep => nested(130),
            Self::Late => r#""time":"9999-12-31T23:59:59Z""#.into(),
        }
    }

    fn entry(self, api_version: &str) -> String {
        let word = self.word();
        let (time, fields) = match self {
            Self::Deep => (r#""time":"2026-01-01T00:00:00Z""#.into(), self.sign()),
            Self::Late => (
                self.sign(),
                r#"{"f:metadata":{"f:labels":{"f:theirs":{}}}}"#.into(),
            ),
        };
        format!(
            r#"{{"manager":"{word}","operation":"Update","apiVersion":"{api_version}","fieldsType":"FieldsV1",{time},"fieldsV1":{fields}}}"#
        )
    }
}

/// Sends the body unchanged and returns the answer unchanged.
async fn send(client: &Client, method: Method, path: &str, body: String) -> Result<String> {
    let merge = "application/merge-patch+json";
    let content_type = if method == Method::PATCH {
        merge
    } else {
        "application/json"
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content_type);
    Ok(client
        .request_text(request.body(body.into_bytes())?)
        .await?)
}

/// Reads the object at a path, and decodes only the fields of `T`.
async fn found<T: DeserializeOwned>(client: &Client, path: &str) -> Result<T> {
    let text = send(client, Method::GET, path, String::new()).await?;
    serde_json::from_str(&text).with_context(|| format!("failed to decode {path}"))
}

#[derive(Deserialize)]
struct Managed {
    metadata: Managers,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Managers {
    managed_fields: Vec<Box<RawValue>>,
}

/// Adds such an entry to an object's `managedFields`, unless it has one already. Checks that the
/// API server stores it.
async fn spoil(client: &Client, path: &str, api_version: &str, form: Form) -> Result<()> {
    let Managed { metadata } = found(client, path).await?;
    let mut entries: Vec<&str> = metadata
        .managed_fields
        .iter()
        .map(|entry| entry.get())
        .collect();
    let sign = form.sign();
    entries.retain(|entry| !entry.contains(&sign));
    let entry = form.entry(api_version);
    entries.push(&entry);
    let patch = format!(
        r#"{{"metadata":{{"managedFields":[{}]}}}}"#,
        entries.join(",")
    );
    send(client, Method::PATCH, path, patch).await?;
    let stored = send(client, Method::GET, path, String::new()).await?;
    ensure!(stored.contains(&sign), "{path} isn't stored as it was sent");
    ensure!(
        serde_json::from_str::<Secret>(&stored).is_err(),
        "{path} can be decoded, so this test is none"
    );
    Ok(())
}

fn secret_path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/secrets/{name}")
}

async fn set_token(client: &Client, path: &str, token: &str) -> Result<()> {
    send(
        client,
        Method::PATCH,
        path,
        json!({"stringData": {"token": token}}).to_string(),
    )
    .await
    .map(drop)
}

/// Waits until the Secret has this token, with any other content. The test's own client marks the
/// token, and recognizes the mark only in objects that it can decode.
async fn wait_token(client: &Client, path: &str, token: &str) -> Result<()> {
    #[derive(Deserialize)]
    struct Found {
        data: BTreeMap<String, k8s_openapi::ByteString>,
    }
    eventually(SOON, format!("{path} with another token"), || async {
        let Found { data } = found(client, path).await?;
        let found = data.get("token").map(|found| {
            found
                .0
                .strip_prefix(planted::MARK.as_bytes())
                .unwrap_or(&found.0)
        });
        Ok((found == Some(token.as_bytes())).then_some(()))
    })
    .await
}

/// Waits until no object is at the path.
async fn wait_nothing(client: &Client, path: &str) -> Result<()> {
    eventually(SOON, format!("{path} to be gone"), || async {
        match send(client, Method::GET, path, String::new()).await {
            Ok(_) => bail!("it is still there"),
            Err(error) if format!("{error:#}").contains("not found") => Ok(Some(())),
            Err(error) => Err(error),
        }
    })
    .await
}

/// The undecodable objects of a tenant. Rules make copies from the tenant's namespace and within
/// it.
struct Planted {
    home: String,
    /// The namespace of the copies. Each copy has its own name.
    target: String,
    /// Names of copies of `good` within the tenant's own namespace.
    own: Vec<String>,
}

/// A tenant writes every undecodable object that it has the permission for. Other rules have their
/// sources in the tenant's namespace. A selector finds these sources, or they are named and so many
/// that the namespace has one watch.
async fn plant(scene: &Scene<'_>, wide: bool) -> Result<Planted> {
    let mallory = Tenant::editor(scene).await?;
    let (client, home) = (&mallory.client, &mallory.home);
    let roles = json!({"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["rolebindings"], "verbs": ["get", "patch"]});
    let binding = mallory.may(&roles).await?;
    let spoiled = FORMS.map(|form| format!("source-{}", form.word()));
    let names: Vec<String> = ["good".into()]
        .into_iter()
        .chain(spoiled)
        .chain((0..8).map(|n| format!("s{n}")))
        .collect();
    for name in &names {
        mallory.labelled(name, "one").await?;
    }
    let target = scene.namespace().await?;
    let all = rule(&unique(&scene.tag))
        .target(json!({"namespaces": [target]}))
        .named("$(source.name)-copy");
    let all = if wide {
        names.iter().fold(all, |all, name| all.secret(home, name))
    } else {
        all.selected(
            "v1",
            "Secret",
            home,
            &json!({"matchLabels": {"copy": "yes"}}),
        )
    };
    all.create(&scene.client).await?;
    for name in &names {
        scene
            .wait_secret(&target, &format!("{name}-copy"), has("one"))
            .await?;
    }

    let mimeo =
        |plural: &str, name: &str| format!("/apis/{MIMEO}/namespaces/{home}/{plural}/{name}");
    let binding = format!("/apis/{RBAC}/namespaces/{home}/rolebindings/{binding}");
    eventually(SOON, "the right to read its binding", || async {
        Ok(send(client, Method::GET, &binding, String::new())
            .await
            .ok())
    })
    .await?;
    let mut own = Vec::new();
    for form in FORMS {
        let word = form.word();
        let forged = format!("forged-{word}");
        mallory.makes(&forged, "mine").await?;
        merge(
            &mallory.secrets(),
            &forged,
            json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": "mimeo"}}}),
        )
        .await?;
        let copy = format!("own-{word}");
        let mut spec = copying(None, "good", &[home]);
        spec["targets"][0]["copyName"] = json!(copy);
        mallory.writes("replications", word, &spec).await?;
        mallory
            .writes("replicationgrants", word, &consent("Read", "nobody", &[]))
            .await?;
        scene.wait_secret(home, &copy, has("one")).await?;
        own.push(copy);
        for (path, api_version) in [
            (secret_path(home, &forged), "v1"),
            (secret_path(home, &format!("source-{word}")), "v1"),
            (mimeo("replications", word), MIMEO),
            (mimeo("replicationgrants", word), MIMEO),
        ] {
            spoil(client, &path, api_version, form).await?;
        }
    }
    spoil(client, &binding, RBAC, Form::Deep).await?;
    spoil(client, &binding, RBAC, Form::Late).await?;
    Ok(Planted {
        home: home.clone(),
        target,
        own,
    })
}

/// Checks that Mimeo still copies the sources in a spoiled namespace.
async fn planted_works(client: &Client, planted: &Planted, token: &str) -> Result<()> {
    let Planted { home, target, own } = planted;
    for name in ["good", "source-deep", "source-late", "s0"] {
        set_token(client, &secret_path(home, name), token).await?;
        wait_token(client, &secret_path(target, &format!("{name}-copy")), token).await?;
    }
    for copy in own {
        wait_token(client, &secret_path(home, copy), token).await?;
    }
    Ok(())
}

/// Checks every function of Mimeo for other users, from the beginning.
async fn everything_works(scene: &Scene<'_>) -> Result<()> {
    // Mimeo writes, updates, repairs and deletes copies.
    let namespaces = scene.namespaces(2).await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let rule = scene.rule().secret(&scene.home, "registry");
    rule.create(&scene.client).await?;
    scene.wait_synced(&scene.tag).await?;
    put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    let late = scene.namespace().await?;
    for namespace in namespaces.iter().chain([&late]) {
        scene.wait_secret(namespace, "registry", has("two")).await?;
    }
    put(&scene.secrets(&late), "registry", &[("token", "drifted")]).await?;
    scene.wait_secret(&late, "registry", has("two")).await?;
    delete(&scene.secrets(&late), "registry").await?;
    scene.wait_secret(&late, "registry", has("two")).await?;
    rule.delete(&scene.client).await?;
    for namespace in namespaces.iter().chain([&late]) {
        wait_gone(scene.secrets(namespace), "registry").await?;
    }

    // The owner grants access and withdraws it.
    let (owner, taker) = (Tenant::editor(scene).await?, Tenant::editor(scene).await?);
    owner.secret("db", "one").await?;
    owner
        .writes(
            "replicationgrants",
            "g",
            &consent("Read", &taker.home, &["db"]),
        )
        .await?;
    taker
        .writes(
            "replications",
            "pull",
            &copying(Some(&owner.home), "db", &[]),
        )
        .await?;
    scene.wait_secret(&taker.home, "db", has("one")).await?;
    delete(&of::<ReplicationGrant>(&owner.client, &owner.home), "g").await?;
    wait_gone(scene.secrets(&taker.home), "db").await
}

#[tokio::test]
async fn what_a_tenant_writes_into_managed_fields_stops_nothing() -> Result<()> {
    let mut setting =
        Setting::start(ControlPlane::builder(), Pair::builder().shipped_rights()).await?;
    let client = setting.control_plane.client().await?;
    let planted = {
        let scene = setting.scene("spoilt").await?;
        let planted = [plant(&scene, false).await?, plant(&scene, true).await?];
        for planted in &planted {
            planted_works(&client, planted, "two").await?;
        }
        everything_works(&scene).await?;
        planted
    };
    let mut old = setting.pair.reconciler.take().context("no reconciler")?;
    ensure!(old.program.stop(SOON).await?.success());
    setting.pair.stop_webhooks().await?;
    setting.pair.start_webhook().await?;
    setting.pair.start_reconciler().await?;
    for planted in &planted {
        planted_works(&client, planted, "three").await?;
    }
    let scene = setting.scene("again").await?;
    everything_works(&scene).await
}

/// A user who may edit a copy may also write such entries. The object stays Mimeo's copy.
#[tokio::test]
async fn a_copy_stays_a_copy_whatever_is_written_into_its_managed_fields() -> Result<()> {
    let mut setting =
        Setting::start(ControlPlane::builder(), Pair::builder().shipped_rights()).await?;
    let client = setting.control_plane.client().await?;
    let (paths, source, tag) = {
        let scene = setting.scene("copy").await?;
        let namespaces = scene.namespaces(FORMS.len()).await?;
        scene.secret("registry", &[("token", "one")]).await?;
        scene
            .rule()
            .secret(&scene.home, "registry")
            .create(&scene.client)
            .await?;
        scene.wait_synced(&scene.tag).await?;
        let paths: Vec<String> = namespaces
            .iter()
            .map(|namespace| secret_path(namespace, "registry"))
            .collect();
        (
            paths,
            secret_path(&scene.home, "registry"),
            scene.tag.clone(),
        )
    };
    let spoil = async || {
        for (path, form) in paths.iter().zip(FORMS) {
            spoil(&client, path, "v1", form).await?;
        }
        anyhow::Ok(())
    };
    let is = async |token: &str| {
        for path in &paths {
            wait_token(&client, path, token).await?;
        }
        anyhow::Ok(())
    };
    spoil().await?;
    for path in &paths {
        set_token(&client, path, "drifted").await?;
    }
    is("one").await?;
    spoil().await?;
    set_token(&client, &source, "two").await?;
    is("two").await?;
    spoil().await?;
    let mut old = setting.pair.reconciler.take().context("no reconciler")?;
    ensure!(old.program.stop(SOON).await?.success());
    set_token(&client, &source, "three").await?;
    setting.pair.start_reconciler().await?;
    is("three").await?;
    setting.wait_synced(&client, &tag).await?;
    spoil().await?;
    rule(&tag).delete(&client).await?;
    for path in &paths {
        wait_nothing(&client, path).await?;
    }
    Ok(())
}

/// The webhook reads a namespace before it guards the copies in it.
#[tokio::test]
async fn a_namespace_of_which_no_decoder_takes_everything_is_guarded_all_the_same() -> Result<()> {
    let setting = Setting::start(ControlPlane::builder(), Pair::builder().shipped_rights()).await?;
    let scene = setting.scene("guard").await?;
    let owner = Tenant::editor(&scene).await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let guarded = rule(&scene.tag)
        .secret(&scene.home, "registry")
        .target(json!({"namespaces": [owner.home]}));
    guarded
        .denying()
        .set("podGate", json!("Required"))
        .create(&scene.client)
        .await?;
    scene
        .wait_secret(&owner.home, "registry", has("one"))
        .await?;
    let copy = secret_path(&owner.home, "registry");
    let denied = async || {
        eventually(SOON, "an edit of the copy denied", || async {
            match set_token(&owner.client, &copy, "mine").await {
                Ok(()) => bail!("it was let through"),
                Err(error) if format!("{error:#}").contains("mimeo.dev") => Ok(Some(())),
                Err(error) => Err(error),
            }
        })
        .await
    };
    denied().await?;
    for form in FORMS {
        spoil(
            &scene.client,
            &format!("/api/v1/namespaces/{}", owner.home),
            "v1",
            form,
        )
        .await?;
        denied().await?;
        let began = Instant::now();
        let edit = set_token(&owner.client, &copy, "mine").await;
        // The API server may carry out a request if a busy webhook answers too late.
        ensure!(
            edit.is_err() || began.elapsed() >= HOOK_TIMEOUT,
            "{form:?}: an edit was let through"
        );
    }
    Ok(())
}

/// A write that changes nothing keeps the times in `managedFields`. If Mimeo did not find its own
/// entry because of such a time, it would write the copy again and again.
#[tokio::test]
async fn an_impossible_time_in_mimeos_own_entry_causes_no_writes() -> Result<()> {
    let setting = Setting::start(ControlPlane::builder().audit(true), Pair::builder()).await?;
    let scene = setting.scene("own").await?;
    let target = scene.namespace().await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let rule = scene.rule().secret(&scene.home, "registry");
    rule.create(&scene.client).await?;
    scene.wait_secret(&target, "registry", has("one")).await?;
    let (client, copy) = (&scene.client, secret_path(&target, "registry"));
    let Managed { metadata } = found(client, &copy).await?;
    let mut entries = vec![Form::Late.entry("v1")];
    for entry in metadata.managed_fields {
        let mut entry: Value = serde_json::from_str(entry.get())?;
        entry["time"] = json!("9999-12-31T23:59:59Z");
        entries.push(entry.to_string());
    }
    let patch = format!(
        r#"{{"metadata":{{"managedFields":[{}]}}}}"#,
        entries.join(",")
    );
    let mark = setting.control_plane.audit_mark().await?;
    let stored = send(client, Method::PATCH, &copy, patch).await?;
    let late = stored.matches(&Form::Late.sign()).count();
    ensure!(late == entries.len(), "{late} late times are stored");
    for token in ["two", "three"] {
        set_token(client, &secret_path(&scene.home, "registry"), token).await?;
        wait_token(client, &copy, token).await?;
    }
    let events = setting.control_plane.audit_since(&mark).await?;
    let writes = events
        .iter()
        .filter(|event| event.is_write() && event.uri.starts_with(&copy));
    // The edit of this test, and one write for each change of the source.
    assert_eq!(writes.count(), 3);
    Ok(())
}

const WIDGETS: &str = "/apis/example.com/v1/namespaces";

/// Returns a custom resource. Its schema accepts any spec.
fn widget(name: &str, token: &str, spec: &str) -> String {
    let metadata = format!(r#"{{"name":"{name}","labels":{{"copy":"yes"}}}}"#);
    format!(
        r#"{{"apiVersion":"example.com/v1","kind":"Widget","metadata":{metadata},"token":"{token}","spec":{spec}}}"#
    )
}

async fn wait_widget(client: &Client, path: &str, token: &str) -> Result<()> {
    #[derive(Deserialize)]
    struct Widget {
        token: String,
    }
    eventually(SOON, format!("{path} with token {token}"), || async {
        let widget: Widget = found(client, path).await?;
        Ok((widget.token == token).then_some(()))
    })
    .await
}

#[tokio::test]
async fn a_source_that_cannot_be_decoded_is_refused_alone() -> Result<()> {
    let setting = Setting::start(ControlPlane::builder(), Pair::builder()).await?;
    let scene = setting.scene("widget").await?;
    let client = &scene.client;
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    });
    install_crd(client, &serde_json::from_value(crd)?).await?;
    let target = scene.namespace().await?;
    let home = &scene.home;
    let path = |namespace: &str, name: &str| format!("{WIDGETS}/{namespace}/widgets/{name}");
    let deep = nested(130);
    for name in ["a", "bad", "c"] {
        let spec = if name == "bad" { &deep } else { "{}" };
        let created = send(
            client,
            Method::POST,
            &format!("{WIDGETS}/{home}/widgets"),
            widget(name, "one", spec),
        )
        .await?;
        ensure!(
            created.contains(spec)
                && (name != "bad" || serde_json::from_str::<Value>(&created).is_err())
        );
    }
    let to = |spec: RuleSpec, end: &str| {
        spec.target(json!({"namespaces": [target], "copyName": format!("$(source.name)-{end}")}))
    };
    let named = ["a", "bad", "c"]
        .into_iter()
        .fold(rule(&format!("{}-named", scene.tag)), |named, name| {
            named.source("example.com/v1", "Widget", home, name)
        });
    let selecting = rule(&format!("{}-selecting", scene.tag));
    let selecting = selecting.selected(
        "example.com/v1",
        "Widget",
        home,
        &json!({"matchLabels": {"copy": "yes"}}),
    );
    let rules = [(to(named, "n"), "n"), (to(selecting, "s"), "s")];
    let copies = async |token: &str, names: &[&str]| {
        for (_, end) in &rules {
            for name in names {
                wait_widget(client, &path(&target, &format!("{name}-{end}")), token).await?;
            }
        }
        anyhow::Ok(())
    };
    // A named source that cannot be decoded is reported. A selector skips such an object.
    let refused = async || {
        for ((rule, _), reason) in rules.iter().zip(["SourceRefused", "Found"]) {
            let told = format!("Widget/{home}/bad");
            eventually(
                SOON,
                format!("{told} told to be undecodable by {}", rule.name),
                || async {
                    let Told { status } = found(
                        client,
                        &format!("/apis/{MIMEO}/clusterreplications/{}", rule.name),
                    )
                    .await?;
                    let status = status.context("no status")?;
                    let sources = condition(&status, "SourcesFound").context("no condition")?;
                    let said = sources.message.contains(&told)
                        && sources.message.contains("can't be decoded");
                    ensure!(sources.reason == reason && said, "{sources:?}");
                    Ok(Some(()))
                },
            )
            .await?;
        }
        anyhow::Ok(())
    };
    for (rule, _) in &rules {
        rule.create(client).await?;
    }
    copies("one", &["a", "c"]).await?;
    refused().await?;
    for (_, end) in &rules {
        wait_nothing(client, &path(&target, &format!("bad-{end}"))).await?;
    }
    let set = async |name: &str, token: &str, spec: &str| {
        let patch = format!(r#"{{"token":"{token}","spec":{spec}}}"#);
        send(client, Method::PATCH, &path(home, name), patch).await
    };
    set("c", "two", "{}").await?;
    copies("two", &["c"]).await?;

    // Once the object is fixed, it is a source like any other. If it breaks again, its copies stay.
    set("bad", "one", "null").await?;
    copies("one", &["bad"]).await?;
    set("bad", "two", &deep).await?;
    refused().await?;
    set("a", "two", "{}").await?;
    copies("two", &["a"]).await?;
    copies("one", &["bad"]).await
}

#[derive(Deserialize)]
struct Told {
    status: Option<ClusterReplicationStatus>,
}

#[tokio::test]
async fn a_rule_that_cannot_be_decoded_is_invalid_alone() -> Result<()> {
    let mut setting =
        Setting::start(ControlPlane::builder(), Pair::builder().shipped_rights()).await?;
    let client = setting.control_plane.client().await?;
    let (home, rules, body) = {
        let scene = setting.scene("rule").await?;
        let tenant = Tenant::editor(&scene).await?;
        tenant.secret("good", "one").await?;
        let mut spec = copying(None, "good", &[&tenant.home]);
        spec["targets"][0]["copyName"] = json!("copy");
        tenant.writes("replications", "good", &spec).await?;
        scene.wait_secret(&tenant.home, "copy", has("one")).await?;
        let mut deep = tenant.object("replications", "deep", &spec).to_string();
        let patch = format!(
            r#","transform":{{"jsonPatch":[{{"op":"add","path":"/data","value":{}}}]}}"#,
            nested(130)
        );
        deep.insert_str(deep.rfind("}}").context("a spec")?, &patch);
        let rules = format!("/apis/{MIMEO}/namespaces/{}/replications", tenant.home);
        // While the webhook runs, it refuses this rule.
        let refusal = send(&tenant.client, Method::POST, &rules, deep.clone()).await;
        ensure!(refusal.is_err(), "it was accepted");
        (tenant.home.clone(), rules, deep)
    };
    setting.pair.stop_webhooks().await?;
    forget_the_hooks(&client).await?;
    let created = eventually(SOON, "the hooks to be forgotten", || async {
        Ok(send(&client, Method::POST, &rules, body.clone()).await.ok())
    })
    .await?;
    ensure!(created.contains(&nested(130)));
    let invalid = async || {
        eventually(SOON, "the rule told to be invalid", || async {
            let Told { status } = found(&client, &format!("{rules}/deep")).await?;
            let status = status.context("no status")?;
            let ready = condition(&status, "Ready").context("no condition")?;
            ensure!(
                ready.reason == "InvalidSpec" && ready.message.contains("nested too deeply"),
                "{ready:?}"
            );
            Ok(Some(()))
        })
        .await
    };
    invalid().await?;
    set_token(&client, &secret_path(&home, "good"), "two").await?;
    wait_token(&client, &secret_path(&home, "copy"), "two").await?;
    let mut old = setting.pair.reconciler.take().context("no reconciler")?;
    ensure!(old.program.stop(SOON).await?.success());
    setting.pair.start_reconciler().await?;
    set_token(&client, &secret_path(&home, "good"), "three").await?;
    wait_token(&client, &secret_path(&home, "copy"), "three").await?;
    invalid().await
}
