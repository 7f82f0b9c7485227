//! The programs from an operator's view on a real API server: metrics, debug pages, logs and traces
//! are correct, and only the permitted users see them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::{Pod, ServiceAccount},
    rbac::v1::ClusterRole,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use mimeo_api::ClusterReplication;
use mimeo_model::names::PENDING_LABEL;
use mimeo_tests::{
    Collector, Component, ControlPlane, Pair, Replica, Silent, create_namespace, create_secret,
    eventually,
    scenario::{
        SOON, Scene, Setting, apply, condition, kubectl, label, put, rule, stranger, value,
    },
    tenant::{Tenant, copying},
    traffic::{create_patiently, pod, retry_after},
    unique,
};
use serde_json::json;
use tokio::time::timeout;

use crate::{alerts::reasons::printed, stages::PLAIN};

/// Creates a service account and returns a token of it.
async fn token(client: &Client, namespace: &str, name: &str) -> Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let metadata = ObjectMeta {
        name: Some(name.into()),
        ..ObjectMeta::default()
    };
    let account = ServiceAccount {
        metadata,
        ..ServiceAccount::default()
    };
    accounts.create(&PostParams::default(), &account).await?;
    let request = TokenRequest {
        spec: Some(TokenRequestSpec::default()),
        ..TokenRequest::default()
    };
    let answer = accounts
        .create_token_request(name, &PostParams::default(), &request)
        .await?;
    answer
        .status
        .and_then(|status| status.token)
        .context("no token")
}

/// Permits a service account these verbs on these paths.
async fn allow(
    client: &Client,
    namespace: &str,
    name: &str,
    paths: &[&str],
    verbs: &[&str],
) -> Result<()> {
    let (group, version) = ("rbac.authorization.k8s.io", "rbac.authorization.k8s.io/v1");
    let role = json!({
        "apiVersion": version, "kind": "ClusterRole", "metadata": {"name": name},
        "rules": [{"nonResourceURLs": paths, "verbs": verbs}],
    });
    let binding = json!({
        "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": name}],
    });
    apply(client, &role).await?;
    apply(client, &binding).await?;
    Ok(())
}

fn code(answer: &str) -> &str {
    answer
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3))
        .unwrap_or(answer)
}

#[tokio::test]
async fn metrics_and_debug_are_for_those_whom_rbac_lets() -> Result<()> {
    let control_plane = ControlPlane::builder().audit(true).start().await?;
    let mark = control_plane.audit_mark().await?;
    // The chart's roles contain this permission with `metrics.auth: Token`. Without the chart, an
    // operator runs the command in the documents.
    let operations = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/how-to/monitor.md"),
    )?;
    let command = operations
        .lines()
        .find_map(|line| line.strip_prefix("    kubectl create clusterrolebinding "));
    let command = format!(
        "create clusterrolebinding {}",
        command.context("no command")?
    );
    kubectl(&control_plane, command.split_whitespace())?;
    let args = [
        "--ops-auth",
        "token",
        "--debug-endpoints",
        "--log-level",
        "trace",
    ];
    let pair = Pair::builder()
        .shipped_rights()
        .webhook_args(args)
        .reconciler_args(args);
    let pair = pair.start(&control_plane).await?;
    let client = control_plane.client().await?;
    create_namespace(&client, "monitoring", &[]).await?;
    let prometheus = token(&client, "monitoring", "prometheus").await?;
    let stranger = token(&client, "monitoring", "stranger").await?;
    allow(&client, "monitoring", "prometheus", &["/metrics"], &["get"]).await?;
    let operator = token(&client, "monitoring", "operator").await?;
    allow(
        &client,
        "monitoring",
        "operator",
        &["/debug/*", "/log-level"],
        &["get", "put"],
    )
    .await?;

    for replica in pair.webhooks.iter().chain(&pair.reconciler) {
        let get = |path, token| replica.ask("GET", path, token, "");
        let metrics = eventually(SOON, "metrics", || async {
            let answer = get("/metrics", Some(&prometheus))?;
            if code(&answer) == "200" {
                Ok(Some(answer))
            } else {
                bail!("{answer}")
            }
        })
        .await?;
        ensure!(metrics.contains("mimeo_build_info"), "{metrics}");
        for (who, token, want) in [
            ("nobody", None, "401"),
            ("a forger", Some("ey.J.x"), "401"),
            ("a stranger", Some(&*stranger), "403"),
        ] {
            let answer = reviewed(|| get("/metrics", token)).await?;
            ensure!(
                code(&answer) == want && !answer.contains("mimeo_"),
                "{who}: {answer}"
            );
        }
        for path in ["/healthz", "/readyz"] {
            ensure!(code(&get(path, None)?) == "200", "{path}");
        }
        let state = eventually(SOON, "the state", || async {
            let answer = get("/debug/state", Some(&operator))?;
            if code(&answer) == "200" {
                Ok(Some(answer))
            } else {
                bail!("{answer}")
            }
        })
        .await?;
        ensure!(state.contains(r#""primed":true"#), "{state}");
        let put = |token| replica.ask("PUT", "/log-level", token, "trace");
        ensure!(
            code(&reviewed(|| put(Some(&operator))).await?) == "200",
            "the operator may put"
        );
        for (who, token, want) in [
            ("nobody", None, "401"),
            ("a Prometheus", Some(&*prometheus), "403"),
        ] {
            let answers = [
                reviewed(|| get("/debug/state", token)).await?,
                reviewed(|| put(token)).await?,
            ];
            for answer in answers {
                ensure!(
                    code(&answer) == want && !answer.contains("primed"),
                    "{who}: {answer}"
                );
            }
        }
        // A Prometheus repeats its request, too.
        for _ in 0..3 {
            ensure!(code(&reviewed(|| get("/metrics", Some(&prometheus))).await?) == "200");
        }
    }
    let asked = control_plane.audit_since(&mark).await?;
    let asked: Vec<_> = asked
        .iter()
        .filter(|event| event.user.contains("mimeo") && event.resource == "tokenreviews")
        .collect();
    // A request that the program gave up is logged as an error of the API server.
    ensure!(
        asked.iter().any(|event| event.code == 201)
            && asked
                .iter()
                .all(|event| event.code == 201 || event.code >= 500),
        "{asked:#?}"
    );
    let log: String = pair
        .webhooks
        .iter()
        .chain(&pair.reconciler)
        .map(log)
        .collect::<Result<_>>()?;
    ensure!(log.contains("TRACE"), "it is told at all");
    ensure!(
        ![&prometheus, &stranger, &operator]
            .iter()
            .any(|token| log.contains(&token[..])),
        "a token is in the log"
    );
    Ok(())
}

/// Asks again while the answer is a server error. On a busy machine, the API server may not answer
/// the review of a token in time.
async fn reviewed(ask: impl Fn() -> Result<String>) -> Result<String> {
    eventually(SOON, "the review of a token", || async {
        let answer = ask()?;
        ensure!(!code(&answer).starts_with('5'), "{answer}");
        Ok(Some(answer))
    })
    .await
}

fn log(replica: &Replica) -> Result<String> {
    replica.program.log()
}

/// Returns the values of these metrics, by name with labels.
fn values(text: &str) -> BTreeMap<&str, f64> {
    let lines = text.lines().filter(|line| line.starts_with("mimeo_"));
    lines
        .filter_map(|line| line.rsplit_once(' '))
        .filter_map(|(name, value)| Some((name, value.parse().ok()?)))
        .collect()
}

/// Waits until the metrics of a program satisfy the condition.
async fn metrics(
    replica: &Replica,
    what: &str,
    is: impl Fn(&BTreeMap<&str, f64>) -> bool,
) -> Result<String> {
    eventually(SOON, what, || async {
        let text = replica.metrics()?;
        if is(&values(&text)) {
            Ok(Some(text))
        } else {
            bail!("{text}")
        }
    })
    .await
}

#[tokio::test]
async fn numbers_are_exact() -> Result<()> {
    let pair = Pair::builder().reconciler_args(["--rule-metrics", "1"]);
    let setting = Setting::start(ControlPlane::builder(), pair).await?;
    let scene = setting.scene("numbers").await?;
    let (webhook, reconciler) = (
        &setting.pair.webhooks[0],
        setting.pair.reconciler.as_ref().context("a reconciler")?,
    );
    scene.secret("registry", &[("token", "1")]).await?;
    let namespaces = scene.namespaces(3).await?;
    // In one namespace, a foreign object has the name of the copy.
    create_secret(&scene.client, &namespaces[0], "registry", &[]).await?;
    scene
        .rule()
        .secret(&scene.home, "registry")
        .create(&scene.client)
        .await?;
    scene.wait_counts(&scene.tag, [3, 2, 1]).await?;
    let of = |name: &str| format!("mimeo_{name}{{rule_kind=\"ClusterReplication\"");
    let failed = format!("{},reason=\"Conflict\"}}", of("copies_failed"));
    let (desired, synced) = (of("copies_desired") + "}", of("copies_synced") + "}");
    let rules = |ready, reason| {
        format!("mimeo_rules{{kind=\"ClusterReplication\",ready=\"{ready}\",reason=\"{reason}\"}}")
    };
    let told = |values: &BTreeMap<&str, f64>| {
        values.get(&*failed) == Some(&1.0) && values.get("mimeo_webhook_replicas") == Some(&1.0)
    };
    let text = metrics(reconciler, "the failed copy and the webhook's Lease", told).await?;
    let seen = values(&text);
    let lagged = "mimeo_copy_lag_seconds_count{rule_kind=\"ClusterReplication\"}";
    let get = |name: &str| seen.get(name).copied();
    assert_eq!(
        (get(&desired), get(&synced)),
        (Some(3.0), Some(2.0)),
        "{text}"
    );
    assert_eq!(get(&rules("False", "CopiesFailed")), Some(1.0), "{text}");
    for (name, want) in [
        ("leader", 1.0),
        ("deletions_held{rule_kind=\"ClusterReplication\"}", 0.0),
        ("webhook_replicas", 1.0),
        ("namespaces_waiting", 0.0),
    ] {
        assert_eq!(get(&format!("mimeo_{name}")), Some(want), "{name}: {text}");
    }
    assert_eq!(
        get("mimeo_copy_requests_total{verb=\"create\",result=\"done\"}"),
        Some(2.0),
        "{text}"
    );
    assert_eq!(get(lagged), Some(0.0), "nothing has changed yet: {text}");
    for (state, want) in [("Synced", 2.0), ("Pending", 0.0), ("Failed", 1.0)] {
        let found = get(&rule_copies(&scene.tag, state));
        assert_eq!(found, Some(want), "{state}: {text}");
    }

    // The conflict is resolved and the source changes. Mimeo updates two copies and creates the
    // third.
    scene
        .secrets(&namespaces[0])
        .delete("registry", &DeleteParams::default())
        .await?;
    scene.wait_synced(&scene.tag).await?;
    put(&scene.secrets(&scene.home), "registry", &[("token", "2")]).await?;
    for namespace in &namespaces {
        scene
            .wait_secret(namespace, "registry", |copy| {
                value(copy, "token").as_deref() == Some("2")
            })
            .await?;
    }
    metrics(reconciler, "three followed", |values| {
        values.get(lagged) == Some(&3.0)
            && !values.contains_key(&*failed)
            && values.get(&*rules("True", "Synced")) == Some(&1.0)
    })
    .await?;

    edits_one_rule_and_the_process(&scene, reconciler, &namespaces[0]).await?;

    // The program that removes the pending label of a new namespace counts the namespace once.
    scene
        .wait_condition(&scene.tag, "PodGateActive", "True", "Active")
        .await?;
    let lag = |replica: &Replica| -> Result<f64> {
        let text = replica.metrics()?;
        Ok(values(&text)
            .get("mimeo_namespace_lag_seconds_count")
            .copied()
            .unwrap_or_default())
    };
    let before = lag(webhook)? + lag(reconciler)?;
    eventually(SOON, "a pending namespace", || async {
        create_pending(&scene.client, &unique(&scene.tag), ("scene", &scene.tag)).await?;
        Ok(Some(()))
    })
    .await?;
    eventually(SOON, "the namespace counts", || async {
        let more = lag(webhook)? + lag(reconciler)? - before;
        if more > 0.5 {
            Ok(Some(more))
        } else {
            bail!("{more}")
        }
    })
    .await
    .map(|more| assert!((more - 1.0).abs() < 0.1, "{more}"))?;

    let text = webhook.metrics()?;
    let expiry = values(&text)
        .get("mimeo_certificate_expiry_timestamp_seconds{certificate=\"hooks\"}")
        .copied()
        .context("no expiry")?;
    let days = (expiry - f64::from(u32::try_from(jiff::Timestamp::now().as_second())?)) / 86_400.0;
    assert!((85.0..91.0).contains(&days), "{days} days");
    for text in [text, reconciler.metrics()?] {
        let stale = |resource| {
            values(&text)
                .get(&*format!(
                    "mimeo_watch_staleness_seconds{{resource=\"{resource}\"}}"
                ))
                .copied()
        };
        for resource in ["namespaces", "secrets", "clusterreplications.mimeo.dev"] {
            assert!(
                stale(resource).is_some_and(|seconds| seconds < 120.0),
                "{resource}: {text}"
            );
        }
        assert!(
            !text
                .lines()
                .filter(|line| !line.starts_with("mimeo_rule_copies"))
                .any(|line| [&scene.tag, &scene.home]
                    .iter()
                    .any(|name| line.contains(&name[..]))),
            "an object is named: {text}"
        );
    }
    Ok(())
}

/// The metrics of reverted edits, of one rule, of the process and of its requests.
async fn edits_one_rule_and_the_process(
    scene: &Scene<'_>,
    reconciler: &Replica,
    namespace: &str,
) -> Result<()> {
    // Another client edits a copy, and deletes it.
    let copies = scene.secrets(namespace);
    put(&copies, "registry", &[("token", "mine")]).await?;
    let reverted = |cause| format!("mimeo_copies_reverted_total{{cause=\"{cause}\"}}");
    let is = |cause, count| {
        let name = reverted(cause);
        move |values: &BTreeMap<&str, f64>| values.get(&*name) == Some(&count)
    };
    metrics(reconciler, "one edit", is("Drifted", 1.0)).await?;
    copies.delete("registry", &DeleteParams::default()).await?;
    metrics(reconciler, "one deletion", is("Vanished", 1.0)).await?;

    // Only the first rule by name has metrics of its own.
    let second = format!("{}-2", scene.tag);
    rule(&second)
        .secret(&scene.home, "registry")
        .to_label("scene", &scene.tag)
        .set("suspend", json!(true))
        .create(&scene.client)
        .await?;
    let suspended = |values: &BTreeMap<&str, f64>| {
        let names = values
            .keys()
            .any(|name| name.contains("reason=\"Suspended\""));
        names && values.contains_key(&*rule_copies(&scene.tag, "Synced"))
    };
    let text = metrics(reconciler, "a suspended rule", suspended).await?;
    assert!(!text.contains(&second), "{text}");

    // Every client library tells these of the process.
    let process = |name: &str| {
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("process_{name} ")));
        line.and_then(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
    };
    let resident = process("resident_memory_bytes").context(text.clone())?;
    let peak = u32::try_from(reconciler.program.peak_bytes()? >> 20)?;
    let most = f64::from(peak + 1) * 1_048_576.0;
    assert!((1e6..most).contains(&resident), "{resident}");
    for name in [
        "cpu_seconds_total",
        "open_fds",
        "max_fds",
        "threads",
        "start_time_seconds",
    ] {
        assert!(
            process(name).is_some_and(|value| value > 0.0),
            "{name}: {text}"
        );
    }
    let requests = "mimeo_api_requests_total{method=\"PATCH\",code=\"200\"}";
    assert!(
        values(&text)
            .get(requests)
            .is_some_and(|count| *count > 2.0),
        "{text}"
    );
    Ok(())
}

/// The name of the metric of one rule's copies.
fn rule_copies(rule: &str, state: &str) -> String {
    format!("mimeo_rule_copies{{rule=\"{rule}\",state=\"{state}\"}}")
}

/// Returns the number of answers that the webhook has counted, by hook and verdict. Zeros are left
/// out.
fn answers(replica: &Replica) -> Result<BTreeMap<(String, String), u64>> {
    let text = replica.metrics()?;
    let counted = values(&text).into_iter().filter_map(|(name, count)| {
        let labels = name
            .strip_prefix("mimeo_admission_duration_seconds_count{hook=\"")?
            .strip_suffix("\"}")?;
        let (hook, verdict) = labels.split_once("\",verdict=\"")?;
        // The value counts answers, so it is a whole number.
        let count = format!("{count}").parse().ok().filter(|count| *count > 0)?;
        Some(((hook.to_owned(), verdict.to_owned()), count))
    });
    Ok(counted.collect())
}

/// Waits until the webhook has counted exactly these answers since `before`. Hooks without an
/// expected answer are left out.
async fn counted(
    replica: &Replica,
    what: &str,
    before: &BTreeMap<(String, String), u64>,
    want: &[(&str, &str, u64)],
) -> Result<()> {
    let want: BTreeMap<_, _> = want
        .iter()
        .map(|(hook, verdict, count)| (((*hook).to_owned(), (*verdict).to_owned()), *count))
        .collect();
    eventually(SOON, format!("{what}: {want:?}"), || async {
        let mut now = answers(replica)?;
        now.retain(|(hook, _), _| want.keys().any(|(wanted, _)| wanted == hook));
        for (answer, count) in &mut now {
            *count -= before.get(answer).copied().unwrap_or_default();
        }
        now.retain(|_, count| *count > 0);
        if now == want {
            Ok(Some(()))
        } else {
            bail!("{now:?}")
        }
    })
    .await
}

/// Each hook counts a body that is not a review.
async fn what_is_no_review_counts(webhook: &Replica, url: &str) -> Result<()> {
    let stranger = stranger(url)?;
    for (path, hook) in [
        ("/mutate/namespaces", "Namespaces"),
        ("/mutate/pods", "Pods"),
        ("/mutate/objects/some", "Objects"),
        ("/mutate/rules", "Authors"),
        ("/validate/rules", "Rules"),
        ("/validate/copies", "Copies"),
    ] {
        let before = answers(webhook)?;
        let request = http::Request::post(path).body(b"no review".to_vec())?;
        drop(stranger.request_text(request).await);
        counted(webhook, path, &before, &[(hook, "Undecodable", 1)]).await?;
    }
    Ok(())
}

#[allow(clippy::too_many_lines)] // One answer after another.
#[tokio::test]
async fn every_answer_counts_once_with_its_hook_and_verdict() -> Result<()> {
    let setting = Setting::start(
        ControlPlane::builder(),
        Pair::builder().webhook_args(["--pod-gate-wait", "1s"]),
    )
    .await?;
    let scene = setting.scene("verdicts").await?;
    let webhook = &setting.pair.webhooks[0];
    scene.secret("registry", &[("token", "1")]).await?;
    let namespace = scene.namespace().await?;
    let guarded = scene.rule().secret(&scene.home, "registry").denying();
    let guarded = guarded.set("podGate", json!("Required"));
    guarded.create(&scene.client).await?;
    scene.wait_synced(&scene.tag).await?;
    let policy = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": scene.tag},
        "spec": {
            "match": {
                "kinds": [{"apiVersion": "v1", "kind": "ConfigMap"}],
                "objectSelector": {"matchLabels": {"rewrite": "yes"}},
            },
            "transform": {"labels": {"set": {"rewritten": "yes"}}},
        },
    });
    apply(&scene.client, &policy).await?;
    let map = |labels: serde_json::Value| {
        let metadata = json!({"namespace": scene.home, "name": unique("map"), "labels": labels});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    };
    eventually(SOON, "the policy in force", || async {
        let stored = apply(&scene.client, &map(json!({"rewrite": "yes"}))).await?;
        Ok((label(&stored, "rewritten") == Some("yes")).then_some(()))
    })
    .await?;
    scene
        .wait_condition(&scene.tag, "PodGateActive", "True", "Active")
        .await?;
    let copies = scene.secrets(&namespace);
    eventually(SOON, "the copy kept", || async {
        let params = DeleteParams {
            dry_run: true,
            ..DeleteParams::default()
        };
        Ok(copies.delete("registry", &params).await.err().map(|_| ()))
    })
    .await?;

    what_is_no_review_counts(webhook, &setting.pair.url()).await?;
    let before = answers(webhook)?;
    let other = rule(&unique("other"))
        .secret(&scene.home, "registry")
        .target(json!({"namespaces": ["nowhere"]}));
    other.create(&scene.client).await?;
    counted(
        webhook,
        "a rule",
        &before,
        &[("Authors", "Patched", 1), ("Rules", "Allowed", 1)],
    )
    .await?;
    let before = answers(webhook)?;
    // The CRD's schema accepts this pattern.
    let large = json!({"namespacePattern": "(.*a.{9}){9}"});
    let bad = rule(&unique("bad"))
        .secret(&scene.home, "registry")
        .target(large);
    ensure!(
        bad.create(&scene.client).await.is_err(),
        "it is too large a pattern"
    );
    counted(
        webhook,
        "a bad rule",
        &before,
        &[("Authors", "Patched", 1), ("Rules", "Denied", 1)],
    )
    .await?;
    for (labels, verdict) in [
        (json!({"rewrite": "yes"}), "Patched"),
        (json!({"rewrite": "yes", "rewritten": "yes"}), "Allowed"),
    ] {
        let before = answers(webhook)?;
        apply(&scene.client, &map(labels)).await?;
        counted(
            webhook,
            "an object of a policy",
            &before,
            &[("Objects", verdict, 1)],
        )
        .await?;
    }
    let before = answers(webhook)?;
    ensure!(
        put(&copies, "registry", &[("token", "2")]).await.is_err(),
        "drift is denied"
    );
    counted(webhook, "drift", &before, &[("Copies", "Denied", 1)]).await?;

    // A namespace gets its pending label. Mimeo's own request to remove the label calls no webhook.
    // Pods call the webhook while the label exists.
    let before = eventually(SOON, "a pending namespace", || async {
        let before = answers(webhook)?;
        create_pending(&scene.client, &unique(&scene.tag), ("scene", &scene.tag)).await?;
        Ok(Some(before))
    })
    .await?;
    counted(
        webhook,
        "a namespace",
        &before,
        &[("Namespaces", "Patched", 1)],
    )
    .await?;
    let pods = |namespace: &str| Api::<Pod>::namespaced(scene.client.clone(), namespace);
    let before = answers(webhook)?;
    create_namespace(&scene.client, &unique("other"), &[]).await?;
    counted(
        webhook,
        "a namespace of no rule",
        &before,
        &[("Namespaces", "Allowed", 1)],
    )
    .await?;
    let names: Vec<String> = (0..5).map(|_| unique("stuck")).collect();
    let silenced = [std::slice::from_ref(&scene.home), &names].concat();
    let silent = Silent::over(&scene, &silenced, "Fail", 30).await?;
    let (client, tag, mut names) = (&scene.client, &*scene.tag, names.iter());
    let stuck = eventually(SOON, "a pending namespace", || {
        let name = names.next().context("no name is left");
        async move {
            let name = name?;
            create_pending(client, name, ("scene", tag)).await?;
            Ok(Some(name))
        }
    })
    .await?;
    let before = answers(webhook)?;
    ensure!(
        pods(stuck)
            .create(&PostParams::default(), &pod("first"))
            .await
            .is_err(),
        "its copy hangs"
    );
    counted(
        webhook,
        "a pod that is held",
        &before,
        &[("Pods", "ComeAgain", 1)],
    )
    .await?;
    silent.end().await?;
    create_patiently(&pods(stuck), &pod("first")).await?;
    let missing = rule(&unique("missing"))
        .secret(&scene.home, "missing")
        .set("podGate", json!("Required"));
    missing
        .to_label("missing", &scene.tag)
        .create(&scene.client)
        .await?;
    let before = answers(webhook)?;
    let short = eventually(SOON, "a pending namespace", || async {
        let name = unique("short");
        create_pending(&scene.client, &name, ("missing", &scene.tag)).await?;
        Ok(Some(name))
    })
    .await?;
    // On a busy machine, the webhook may first ask for a retry.
    let mut again = 0;
    loop {
        let refused = pods(&short)
            .create(&PostParams::default(), &pod("first"))
            .await;
        let refused = refused.err().context("there is no source")?;
        if retry_after(&refused).is_none() {
            break;
        }
        again += 1;
    }
    let answers = [("Pods", "ComeAgain", again), ("Pods", "Denied", 1)];
    let skipped = usize::from(again == 0);
    counted(
        webhook,
        "a pod without its copies",
        &before,
        &answers[skipped..],
    )
    .await
}

/// Creates a namespace for which a rule is in force.
///
/// # Errors
/// It has no pending label. The rule may not be in force yet. Or the webhook has not answered in
/// time, and the API server has gone on without its answer.
async fn create_pending(client: &Client, name: &str, labels: (&str, &str)) -> Result<()> {
    let namespace = create_namespace(client, name, &[labels]).await?;
    label(&namespace, PENDING_LABEL).context("it has no pending label")?;
    Ok(())
}

/// Writes hang, and only one write may be in flight.
#[tokio::test]
async fn what_waits_for_its_turn_is_counted_by_its_queue() -> Result<()> {
    const COPIES: usize = 12;
    /// For how many seconds a write is held.
    const HELD: u32 = 30;
    let args = ["--concurrency", "1", "--request-timeout", "300s"];
    let setting = Setting::start(
        ControlPlane::builder(),
        Pair::builder().reconciler_args(args),
    )
    .await?;
    let scene = setting.scene("queued").await?;
    let reconciler = setting.pair.reconciler.as_ref().context("a reconciler")?;
    let tenant = Tenant::editor(&scene).await?;
    let namespaces: Vec<String> = (0..COPIES).map(|_| unique("queued")).collect();
    for name in &namespaces {
        create_namespace(&scene.client, name, &[]).await?;
    }
    let depths = |text: &str| {
        let depth = |queue| {
            values(text)
                .get(&*format!("mimeo_queue_depth{{queue=\"{queue}\"}}"))
                .copied()
        };
        ["Namespaces", "Rules", "Tenants"].map(depth)
    };
    let are = async |want: [f64; 3]| {
        eventually(SOON, format!("queues of {want:?}"), || async {
            let depths = depths(&reconciler.metrics()?);
            if depths == want.map(Some) {
                Ok(Some(()))
            } else {
                bail!("{depths:?}")
            }
        })
        .await
    };
    are([0.0; 3]).await?;
    for number in 0..COPIES {
        let mut spec = copying(None, "own", &[&tenant.home]);
        spec["targets"][0]["copyName"] = json!(format!("copy-{number:02}"));
        tenant
            .writes("replications", &format!("own-{number:02}"), &spec)
            .await?;
    }
    scene.secret("registry", &[("token", "one")]).await?;
    let rule = rule(&scene.tag)
        .secret(&scene.home, "registry")
        .target(json!({"namespaces": namespaces}));
    rule.create(&scene.client).await?;
    scene.wait_synced(&rule.name).await?;
    tenant.secret("own", "one").await?;
    for number in 0..COPIES {
        tenant
            .status(&format!("own-{number:02}"), "Ready", "Synced")
            .await?;
    }
    are([0.0; 3]).await?;

    let silent = Silent::over(&scene, &namespaces, "Ignore", HELD).await?;
    let all = f64::from(u32::try_from(COPIES)?);
    let soon = |depths| timeout(Duration::from_secs(HELD.into()), are(depths));
    // On a busy machine, a write may be over before the depths are seen. Then the test tries again.
    eventually(SOON * 2, "the queues while a write is held", || async {
        silent.let_go();
        are([0.0; 3]).await?;
        silent.hold();
        let (first, second) = (unique("token"), unique("token"));
        put(
            &scene.secrets(&scene.home),
            "registry",
            &[("token", &first)],
        )
        .await?;
        // One of the writes is in flight.
        soon([0.0, all - 1.0, 0.0]).await??;
        put(&tenant.secrets(), "own", &[("token", &second)]).await?;
        soon([0.0, all - 1.0, all]).await??;
        Ok(Some(()))
    })
    .await?;
    silent.end().await?;
    are([0.0; 3]).await
}

/// The metric tells how long a watch has been silent, neither too long nor too short. Each value is
/// compared with times from before and after it. So a busy machine makes no difference.
#[tokio::test]
async fn the_silence_of_an_api_server_is_told_in_seconds() -> Result<()> {
    let setting = Setting::start(ControlPlane::builder(), Pair::builder()).await?;
    // The reconciler would soon give up its Lease and exit, so the test uses the webhook.
    let webhook = &setting.pair.webhooks[0];
    let scene = setting.scene("silence").await?;
    let name = "mimeo_watch_staleness_seconds{resource=\"namespaces\"}";
    let staleness = || -> Result<f64> {
        values(&webhook.metrics()?)
            .get(name)
            .copied()
            .context("not told")
    };
    // Returns a time before the last event of the watch.
    let word = async || {
        let before = Instant::now();
        scene.namespace().await?;
        eventually(SOON, "the word of a namespace", || async {
            let (seconds, since) = (staleness()?, before.elapsed().as_secs_f64());
            ensure!(seconds < since, "{seconds} of {since}");
            Ok(Some(before))
        })
        .await
    };
    // Returns the value of the metric, with the times before and after it was read.
    let silence = async |least: f64| {
        eventually(SOON, "seconds of silence", || async {
            let (from, seconds, to) = (Instant::now(), staleness()?, Instant::now());
            ensure!(seconds >= least, "{seconds}");
            Ok(Some((from, seconds, to)))
        })
        .await
    };
    let before = word().await?;
    let server = Component::ApiServer(0);
    setting.control_plane.pause(server)?;
    let told = async { anyhow::Ok((silence(5.0).await?, silence(8.0).await?)) }.await;
    setting.control_plane.resume(server)?;
    let ((first_from, first, first_to), (second_from, second, second_to)) = told?;
    // The value is at most the time since the last event. During the silence it grows by the time
    // that passes.
    let seconds = |from: Instant, to: Instant| to.duration_since(from).as_secs_f64();
    let since = seconds(before, first_to);
    ensure!(first <= since + ROUNDED, "{first} told of {since}");
    let (least, most) = (
        seconds(first_to, second_from),
        seconds(first_from, second_to),
    );
    let more = second - first;
    ensure!(
        least - ROUNDED <= more && more <= most + ROUNDED,
        "{more} told of {least} to {most}"
    );
    word().await.map(drop)
}

/// The metric rounds its seconds by at most this much.
const ROUNDED: f64 = 0.01;

/// Returns the labels of each metric, without the bounds of histograms.
fn labels(text: &str) -> BTreeMap<String, BTreeSet<&str>> {
    let mut all: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (sample, _) in values(text) {
        let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
        let name = ["_bucket", "_count", "_sum"]
            .iter()
            .find_map(|part| name.strip_suffix(part))
            .unwrap_or(name);
        let labels = labels
            .trim_end_matches('}')
            .split(',')
            .filter_map(|label| Some(label.split_once('=')?.0));
        all.entry(name.to_owned())
            .or_default()
            .extend(labels.filter(|label| *label != "le"));
    }
    all
}

#[tokio::test]
async fn the_reference_lists_every_metric_with_its_labels_and_no_other() -> Result<()> {
    let reference = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/metrics.md"),
    )?;
    let row = |line: &str| -> Option<(String, String)> {
        let mut cells = line.strip_prefix("| `mimeo_")?.split(" | ");
        Some((
            format!("mimeo_{}", cells.next()?.trim_end_matches('`')),
            cells.next()?.to_owned(),
        ))
    };
    let table: Vec<(String, String)> = reference.lines().filter_map(row).collect();
    let scene = PLAIN.scene("metrics").await?;
    let pair = &scene.setting.pair;
    // Some metrics appear only with a rule.
    let rule = scene.rule().secret(&scene.home, "registry");
    rule.create(&scene.client).await?;
    let matched = json!({
        "kinds": [{"apiVersion": "v1", "kind": "Secret"}], "objectSelector": {"matchLabels": {"tier": scene.tag}},
    });
    let spec = json!({"match": matched, "transform": {"labels": {"set": {"a": "b"}}}});
    let metadata = json!({"name": scene.tag});
    let kind = "TransformPolicy";
    apply(
        &scene.client,
        &json!({"apiVersion": "mimeo.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}),
    )
    .await?;
    eventually(SOON, "a policy that counts", || async {
        Ok(pair.webhooks[0]
            .metrics()?
            .contains("mimeo_policy_rewrites_total{")
            .then_some(()))
    })
    .await?;
    for (replica, told) in [
        (&pair.webhooks[0], &["webhook", "both"][..]),
        (
            pair.reconciler.as_ref().context("a reconciler")?,
            &["leader", "reconciler", "both"],
        ),
    ] {
        let listed: BTreeSet<String> = table
            .iter()
            .filter(|(_, of)| told.contains(&&**of))
            .map(|(name, _)| name.clone())
            .collect();
        // Some metrics appear only with their first event.
        let text = eventually(SOON, format!("the metrics of {told:?}"), || async {
            let text = replica.metrics()?;
            let exposed = exposed(&text);
            ensure!(exposed == listed, "{exposed:?} and not {listed:?}");
            Ok(Some(text))
        })
        .await?;
        for (name, labels) in labels(&text) {
            let row = reference
                .lines()
                .find(|line| line.starts_with(&format!("| `{name}`")))
                .context(name.clone())?;
            let words = row.split('`').skip(3).step_by(2);
            let told: BTreeSet<&str> = words
                .filter(|word| word.chars().all(|c| matches!(c, 'a'..='z' | '_')))
                .collect();
            assert_eq!(labels, told, "{name}");
        }
    }
    Ok(())
}

/// Returns the names of all metrics of a program. A counter gets the name of its samples, as in
/// Prometheus.
fn exposed(text: &str) -> BTreeSet<String> {
    let exposed = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .filter(|(name, _)| name.starts_with("mimeo_"));
    exposed
        .map(|(name, kind)| match kind {
            "counter" => format!("{name}_total"),
            "info" => format!("{name}_info"),
            _ => name.to_owned(),
        })
        .collect()
}

#[tokio::test]
async fn what_is_inside_is_shown_if_asked_for_and_what_is_logged_can_always_be_changed()
-> Result<()> {
    let control_plane = ControlPlane::builder()
        .controller_manager(false)
        .start()
        .await?;
    let pair = Pair::builder()
        .reconciler_args(["--debug-endpoints"])
        .start(&control_plane)
        .await?;
    let (webhook, reconciler) = (
        &pair.webhooks[0],
        pair.reconciler.as_ref().context("a reconciler")?,
    );
    for (path, want) in [("/debug/state", "404"), ("/log-level", "200")] {
        assert_eq!(code(&webhook.ask("GET", path, None, "")?), want, "{path}");
    }
    // This test runs on the same machine. Clients on other machines get 403.
    eventually(SOON, "the leader's state", || async {
        let state = reconciler.ask("GET", "/debug/state", None, "")?;
        let (_, body) = state.split_once("\r\n\r\n").context("no body")?;
        let state: serde_json::Value = serde_json::from_str(body)?;
        let told = state["engine"]["primed"] == true
            && state["watches"]["namespaces"]["silentSeconds"].is_u64();
        if told && state["leading"] == true {
            Ok(Some(()))
        } else {
            bail!("{state}")
        }
    })
    .await?;
    let debug = || Ok::<_, anyhow::Error>(reconciler.program.log()?.contains(" DEBUG "));
    ensure!(!debug()?, "{}", reconciler.program.log()?);
    let answer = reconciler.ask("PUT", "/log-level", None, "debug")?;
    ensure!(
        code(&answer) == "200" && answer.ends_with("debug\n"),
        "{answer}"
    );
    // The first rule with a kind opens a watch of its copies. The program logs that at this level.
    let rule = rule("loud")
        .secret("platform", "registry")
        .target(json!({"namespaces": ["team-*"]}));
    rule.create(&control_plane.client().await?).await?;
    eventually(SOON, "a line of debug", || async {
        Ok(debug()?.then_some(()))
    })
    .await?;
    ensure!(code(&reconciler.ask("PUT", "/log-level", None, "a=loudly")?) == "400");
    Ok(())
}

#[tokio::test]
async fn a_collector_gets_a_span_of_each_review_and_write_and_nothing_of_what_is_in_them()
-> Result<()> {
    let collector = Collector::start()?;
    let args = ["--otlp-endpoint".to_owned(), collector.url()];
    let pair = Pair::builder()
        .webhook_args(args.clone())
        .reconciler_args(args);
    let setting = Setting::start(ControlPlane::builder(), pair).await?;
    let scene = setting.scene("traced").await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let namespaces = scene.namespaces(3).await?;
    create_secret(
        &scene.client,
        &namespaces[0],
        "registry",
        &[("token", "one")],
    )
    .await?;
    scene
        .rule()
        .secret(&scene.home, "registry")
        .create(&scene.client)
        .await?;
    scene.wait_counts(&scene.tag, [3, 2, 1]).await?;
    scene
        .wait_condition(&scene.tag, "PodGateActive", "True", "Active")
        .await?;
    let new = scene.namespace().await?;
    scene
        .wait_secret(&new, "registry", |copy| {
            value(copy, "token").as_deref() == Some("one")
        })
        .await?;

    // The test harness also searches the collector's spans for the marked content of Secrets.
    let count = |wanted: &[(&str, &str)]| -> Result<usize> {
        let is = |span: &serde_json::Value| wanted.iter().all(|(key, value)| span[key] == *value);
        Ok(collector.spans()?.iter().filter(|span| is(span)).count())
    };
    let rule = format!("ClusterReplication/{}", scene.tag);
    let done = [
        ("span", "write"),
        ("verb", "create"),
        ("result", "done"),
        ("rule", &*rule),
        ("kind", "Secret"),
        ("name", "registry"),
    ];
    eventually(SOON, "three writes", || async {
        let seen = count(&done)?;
        if seen == 3 {
            Ok(Some(()))
        } else {
            bail!("{seen}: {}", collector.text())
        }
    })
    .await?;
    for (what, wanted, times) in [
        (
            "the copy of the new namespace",
            vec![("span", "write"), ("result", "done"), ("namespace", &*new)],
            1,
        ),
        (
            "the new namespace's pending label",
            vec![
                ("hook", "Namespaces"),
                ("verdict", "Patched"),
                ("name", &*new),
            ],
            1,
        ),
        (
            "the rule",
            vec![
                ("span", "review"),
                ("hook", "Rules"),
                ("operation", "Create"),
                ("name", &*scene.tag),
            ],
            1,
        ),
    ] {
        eventually(SOON, what, || async {
            let seen = count(&wanted)?;
            if seen == times {
                Ok(Some(()))
            } else {
                bail!("{what}: {seen}: {}", collector.text())
            }
        })
        .await?;
    }
    // The write is retried several times.
    let conflict = count(&[
        ("span", "write"),
        ("result", "conflict"),
        ("namespace", &*namespaces[0]),
    ])?;
    ensure!(conflict > 0, "{}", collector.text());
    Ok(())
}

/// A webhook without the permission to restore a deleted configuration reports that. Otherwise no
/// operator would notice that the webhook is not called.
#[tokio::test]
async fn hooks_that_are_gone_and_policies_that_are_refused_are_seen() -> Result<()> {
    let control_plane = ControlPlane::builder().start().await?;
    let pair = Pair::builder()
        .shipped_rights()
        .start(&control_plane)
        .await?;
    let client = control_plane.client().await?;
    let says = async |line: &str| {
        eventually(SOON, line, || async {
            let text = pair.webhooks[0].metrics()?;
            Ok(text.lines().any(|told| told == line).then_some(()))
        })
        .await
    };
    let hooks = |here| {
        format!(
            "mimeo_hooks_registered{{kind=\"MutatingWebhookConfiguration\",name=\"mimeo\"}} {here}"
        )
    };
    says(&hooks(1)).await?;

    let roles: Api<ClusterRole> = Api::all(client.clone());
    let whole = roles.get("mimeo-webhook").await?;
    let mut less = whole.clone();
    for rule in less.rules.iter_mut().flatten() {
        if rule
            .api_groups
            .iter()
            .flatten()
            .any(|group| group == "admissionregistration.k8s.io")
        {
            rule.verbs
                .retain(|verb| ["get", "list", "watch"].contains(&verb.as_str()));
        }
    }
    less.rules
        .iter_mut()
        .for_each(|rules| rules.retain(|rule| !rule.verbs.is_empty()));
    roles
        .replace("mimeo-webhook", &PostParams::default(), &less)
        .await?;
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    eventually(SOON, "a deletion that isn't put right", || async {
        // For a moment the webhook may still act with the permission.
        if configurations.get_opt("mimeo").await?.is_some() {
            configurations
                .delete("mimeo", &DeleteParams::default())
                .await?;
            return Ok(None);
        }
        Ok(pair.webhooks[0]
            .metrics()?
            .contains(&hooks(0))
            .then_some(()))
    })
    .await?;
    says(&hooks(0)).await?;
    let here = roles.get("mimeo-webhook").await?;
    roles
        .replace(
            "mimeo-webhook",
            &PostParams::default(),
            &ClusterRole {
                metadata: here.metadata,
                ..whole
            },
        )
        .await?;
    says(&hooks(1)).await?;

    let policy = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": "of-no-kind"},
        "spec": {
            "match": {
                "kinds": [{"apiVersion": "example.com/v1", "kind": "Widget"}],
                "objectSelector": {"matchLabels": {"example.com/rewrite": "yes"}},
            },
            "transform": {"labels": {"set": {"example.com/rewritten": "yes"}}},
        },
    });
    apply(&client, &policy).await?;
    says("mimeo_policies{ready=\"False\",reason=\"KindNotServed\"} 1").await?;
    says("mimeo_policies{ready=\"True\",reason=\"Active\"} 0").await?;
    eventually(SOON, "the reason, as kubectl prints it", || async {
        let printed = printed(&client, "transformpolicies").await?;
        let told = printed.get("of-no-kind").context("no such policy")?;
        Ok((*told == ["False", "KindNotServed"]).then_some(()))
    })
    .await?;
    who_fights_over_the_hooks_is_told(&client, &pair).await?;
    says(&hooks(1)).await
}

/// Some managed clusters change every configuration that does not forbid it.
async fn who_fights_over_the_hooks_is_told(client: &Client, pair: &Pair) -> Result<()> {
    let (rules, name) = (
        Api::<ClusterReplication>::all(client.clone()),
        unique("fought-over"),
    );
    rule(&name)
        .secret("default", "registry")
        .to_label("fought", "over")
        .create(client)
        .await?;
    let pod_gate = async || {
        let status = rules.get(&name).await?.status;
        let told = status
            .as_ref()
            .and_then(|status| condition(status, "PodGateActive").cloned());
        told.context("no condition PodGateActive")
    };
    eventually(SOON, "an active pod gate", || async {
        Ok((pod_gate().await?.reason == "Active").then_some(()))
    })
    .await?;
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let operations = json!([{"op": "replace", "path": "/webhooks/0/timeoutSeconds", "value": 7}]);
    let change = Patch::<MutatingWebhookConfiguration>::Json(serde_json::from_value(operations)?);
    let as_enforcer = PatchParams {
        field_manager: Some("enforcer".into()),
        ..PatchParams::default()
    };
    let contested = eventually(SOON, "a pod gate that is contested", || async {
        configurations.patch("mimeo", &as_enforcer, &change).await?;
        Ok(Some(pod_gate().await?).filter(|told| told.reason == "WebhookContested"))
    })
    .await?;
    assert_eq!(contested.status, "False");
    assert_eq!(
        contested.message,
        "MutatingWebhookConfiguration mimeo is changed or deleted again and again by another \
         client, or by another version of mimeo-webhook. Mimeo restores it each time, after a \
         longer pause; until then pods may not wait for their copies. Have no other client write \
         it: kubectl get MutatingWebhookConfiguration mimeo -o yaml --show-managed-fields shows the \
         clients"
    );
    logs_the_fight(&pair.webhooks[0], "MutatingWebhookConfiguration")?
        .context("the log does not say so")?;
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let operations = json!([{"op": "replace", "path": "/webhooks/0/timeoutSeconds", "value": 7}]);
    let other_change =
        Patch::<ValidatingWebhookConfiguration>::Json(serde_json::from_value(operations)?);
    // Pods wait although the hook of rules is contested. The log and the metric tell of it.
    eventually(SOON, "the log to tell of the other client", || async {
        validating
            .patch("mimeo", &as_enforcer, &other_change)
            .await?;
        logs_the_fight(&pair.webhooks[0], "ValidatingWebhookConfiguration")
    })
    .await?;
    assert_eq!(pod_gate().await?.message, contested.message);
    Ok(())
}

/// Returns `Some` if a webhook's log says that a client keeps changing a configuration of this
/// kind.
fn logs_the_fight(webhook: &Replica, kind: &str) -> Result<Option<()>> {
    let log = webhook.program.log()?;
    let told = log.lines().any(|line| {
        line.contains("keeps changing this webhook configuration") && line.contains(kind)
    });
    Ok(told.then_some(()))
}
