//! The values that fit the chart to the rules of a platform: registries, volumes, rollouts, IP
//! families, monitors, alerts, roles, and objects of the user's own.

use std::{collections::BTreeSet, fs};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{ask_helm, chart, find, objects, refused, rendered};
use crate::repository::workspace;

/// Where the project's files can be read. Links of the packaged chart begin with it.
const HOME: &str = "https://mimeo.dev";

/// Returns the objects of a release with these values, without the CRDs.
fn with(values: &Value) -> Result<Vec<Value>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("values.json");
    fs::write(&file, values.to_string())?;
    let file = file.display().to_string();
    objects(&rendered(&[
        "--set",
        "crds.enabled=false",
        "--values",
        &file,
    ])?)
}

#[test]
fn each_value_for_a_platform_is_found_in_its_object() -> Result<()> {
    let volume = json!([{"name": "proxy-ca", "configMap": {"name": "proxy-ca"}}]);
    let mount = json!([{"name": "proxy-ca", "mountPath": "/proxy-ca"}]);
    let dns = json!({"options": [{"name": "ndots", "value": "1"}]});
    let surge =
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "50%", "maxSurge": 2}});
    let relabeled = json!([{"targetLabel": "cluster", "replacement": "west"}]);
    let dropped = json!([{"sourceLabels": ["__name__"], "regex": "mimeo_x", "action": "drop"}]);
    let monitor = json!({
        "enabled": true, "namespace": "monitoring", "interval": "1m", "scrapeTimeout": "20s",
        "relabelings": relabeled, "metricRelabelings": dropped,
    });
    let dual = json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"]});
    for program in ["webhook", "reconciler"] {
        let values = json!({
            program: {
                "revisionHistoryLimit": 0, "strategy": surge, "dnsConfig": dns,
                "extraVolumes": volume, "extraVolumeMounts": mount,
            },
            "tracing": {"otlpEndpoint": "http://collector.monitoring:4318"},
        });
        let all = with(&values)?;
        let found = &find(&all, "Deployment", &format!("mimeo-{program}"))?["spec"];
        let pod = &found["template"]["spec"];
        assert_eq!(found["revisionHistoryLimit"], 0, "{program}");
        assert_eq!(found["strategy"], surge, "{program}");
        assert_eq!(pod["dnsConfig"], dns, "{program}");
        assert_eq!(pod["volumes"], volume, "{program}");
        assert_eq!(pod["containers"][0]["volumeMounts"], mount, "{program}");
        let env = pod["containers"][0]["env"].as_array().context("no env")?;
        ensure!(env.contains(
            &json!({"name": "MIMEO_OTLP_ENDPOINT", "value": "http://collector.monitoring:4318"})
        ));
    }
    // An extra volume leaves the chart's own volumes in place.
    let values = json!({
        "webhook": {"tls": {"mode": "Secret"}, "extraVolumes": volume},
        "reconciler": {"extraVolumes": volume}, "metrics": {"tls": {"secretName": "ops"}},
    });
    let all = with(&values)?;
    for (program, own) in [
        ("webhook", &["ops-tls", "tls"][..]),
        ("reconciler", &["ops-tls"]),
    ] {
        let pod =
            &find(&all, "Deployment", &format!("mimeo-{program}"))?["spec"]["template"]["spec"];
        let names = |list: &Value| -> Vec<String> {
            let names = list.as_array().into_iter().flatten();
            names
                .filter_map(|one| Some(one["name"].as_str()?.to_owned()))
                .collect()
        };
        assert_eq!(
            names(&pod["volumes"]),
            [own, &["proxy-ca"]].concat(),
            "{program}"
        );
        assert_eq!(
            names(&pod["containers"][0]["volumeMounts"]),
            own,
            "{program}"
        );
    }
    for (kind, value, endpoints) in [
        ("ServiceMonitor", "serviceMonitor", "endpoints"),
        ("PodMonitor", "podMonitor", "podMetricsEndpoints"),
    ] {
        let all = with(&json!({"metrics": {value: monitor}, "service": dual}))?;
        let found = find(&all, kind, "mimeo")?;
        assert_eq!(found["metadata"]["namespace"], "monitoring");
        assert_eq!(
            found["spec"]["namespaceSelector"],
            json!({"matchNames": ["mimeo-system"]})
        );
        let endpoint = &found["spec"][endpoints][0];
        for setting in [
            "interval",
            "scrapeTimeout",
            "relabelings",
            "metricRelabelings",
        ] {
            assert_eq!(endpoint[setting], monitor[setting], "{kind} {setting}");
        }
        let services: Vec<&Value> = all.iter().filter(|one| one["kind"] == "Service").collect();
        assert_eq!(services.len(), if kind == "ServiceMonitor" { 3 } else { 1 });
        for service in services {
            assert_eq!(service["spec"]["ipFamilyPolicy"], dual["ipFamilyPolicy"]);
            assert_eq!(service["spec"]["ipFamilies"], dual["ipFamilies"]);
        }
    }
    Ok(())
}

#[test]
fn values_that_no_platform_can_have_are_refused() -> Result<()> {
    for (values, told) in [
        (
            &["rbac.aggregateToDefaultRoles=true"][..],
            "additional properties 'aggregateToDefaultRoles' not allowed",
        ),
        (&["rbac.aggregate.edit=maybe"], "got string, want boolean"),
        (&["image.registry=https://x"], "does not match pattern"),
        (&["global.imageRegistry=A B"], "does not match pattern"),
        (
            &["global.imagePullSecrets[0].nam=x"],
            "missing property 'name'",
        ),
        (
            &["tracing.otlpEndpoint=https://collector"],
            "does not match pattern",
        ),
        (
            &["tracing.otlpEndpoint=collector:4318"],
            "does not match pattern",
        ),
        (
            &["extraObjects[0].kind=Secret"],
            "missing properties 'apiVersion'",
        ),
        (&["commonAnnotations.replicas=1"], "got number, want string"),
        (&["service.ipFamilyPolicy=Dual"], "value must be one of"),
        (
            &["service.ipFamilies={IPv5}"],
            "value must be one of 'IPv4', 'IPv6'",
        ),
        (&["webhook.revisionHistoryLimit=-1"], "minimum: got -1"),
        (
            &["webhook.strategy.type=BlueGreen"],
            "value must be one of 'RollingUpdate', 'Recreate'",
        ),
        (
            &["reconciler.strategy.rollingUpdate.maxSurge=some"],
            "does not match pattern",
        ),
        (
            &["reconciler.dnsConfig.server=x"],
            "additional properties 'server' not allowed",
        ),
        (
            &["webhook.extraVolumes[0].emptyDir=null"],
            "missing property 'name'",
        ),
        (
            &["webhook.extraVolumeMounts[0].name=x"],
            "missing property 'mountPath'",
        ),
        (
            &["webhook.extraVolumes[0].name=tls"],
            "webhook.extraVolumes: tls is a volume of the chart",
        ),
        (
            &[
                "reconciler.extraVolumeMounts[0].name=x",
                "reconciler.extraVolumeMounts[0].mountPath=/ops-tls/",
            ],
            "reconciler.extraVolumeMounts: the chart itself mounts /ops-tls/",
        ),
        (
            &["metrics.serviceMonitor.scrapeTimeout=soon"],
            "does not match pattern",
        ),
        (
            &["metrics.podMonitor.namespace=Monitoring"],
            "does not match pattern",
        ),
        (
            &["metrics.serviceMonitor.relabelings=all"],
            "got string, want array",
        ),
        (
            &["metrics.podMonitor.metricRelabelings[0]=x"],
            "got string, want object",
        ),
        (
            &[
                "metrics.serviceMonitor.interval=30s",
                "metrics.serviceMonitor.scrapeTimeout=1m",
            ],
            "metrics.serviceMonitor.scrapeTimeout: 1m is longer than the interval 30s",
        ),
        (
            &["metrics.prometheusRule.runbookUrl="],
            "does not match pattern",
        ),
        (
            &["metrics.prometheusRule.severity.page=P 1"],
            "does not match pattern",
        ),
        (
            &[r"commonAnnotations.helm\.sh/hook=pre-install"],
            "commonAnnotations: helm.sh/hook is not for every object of the release",
        ),
        (
            &["webhook.extraEnv[0].name=MIMEO_OTLP_ENDPOINT"],
            "webhook.extraEnv: MIMEO_OTLP_ENDPOINT is set by tracing.otlpEndpoint",
        ),
    ] {
        refused(values, told)?;
    }
    Ok(())
}

#[test]
fn the_image_comes_from_the_registry_of_all_charts_or_of_this_one() -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    for (values, image) in [
        (json!({}), format!("mimeo:{version}")),
        (
            json!({"image": {"registry": "one.example"}}),
            format!("one.example/mimeo:{version}"),
        ),
        (
            json!({"image": {"registry": "one.example", "repository": "team/mimeo", "tag": "x"}, "global": {"imageRegistry": "all.example/"}}),
            "all.example/team/mimeo:x".to_owned(),
        ),
    ] {
        let all = with(&values)?;
        for (kind, name) in [
            ("Deployment", "mimeo-webhook"),
            ("Deployment", "mimeo-reconciler"),
            ("Job", "mimeo-unregister"),
        ] {
            let pod = &find(&all, kind, name)?["spec"]["template"]["spec"];
            assert_eq!(
                pod["containers"][0]["image"],
                image.as_str(),
                "{values}: {name}"
            );
        }
    }
    // A user of a release with several charts also sets globals that this chart doesn't know.
    let values = json!({
        "image": {"pullSecrets": [{"name": "own"}, {"name": "shared"}]},
        "global": {"imagePullSecrets": ["shared", {"name": "mirror"}], "storageClass": "fast"},
    });
    let all = with(&values)?;
    let secrets = json!([{"name": "own"}, {"name": "shared"}, {"name": "mirror"}]);
    for (kind, name) in [
        ("Deployment", "mimeo-webhook"),
        ("Deployment", "mimeo-reconciler"),
        ("Job", "mimeo-unregister"),
    ] {
        let pod = &find(&all, kind, name)?["spec"]["template"]["spec"];
        assert_eq!(pod["imagePullSecrets"], secrets, "{name}");
    }
    assert_eq!(
        find(&all, "Pod", "mimeo-verify")?["spec"]["imagePullSecrets"],
        secrets
    );
    Ok(())
}

#[test]
fn common_annotations_are_on_every_object_and_replace_none() -> Result<()> {
    let args = [
        "--set",
        r"commonAnnotations.example\.com/owner=platform,webhook.serviceAccountAnnotations.example\.com/owner=other,webhook.tls.mode=CertManager",
        "--set",
        "metrics.serviceMonitor.enabled=true,metrics.prometheusRule.enabled=true,metrics.dashboard.enabled=true,metrics.auth=Token,networkPolicy.enabled=true",
        "--set",
        "guardedLabels.enabled=true,guardedWrites.enabled=true,rbac.targetNamespaces={team-a},rbac.sourceNamespaces={platform},rbac.aggregate.admin=true",
    ];
    let mut hooks = 0;
    for object in objects(&rendered(&args)?)? {
        let metadata = &object["metadata"];
        let found = &metadata["annotations"];
        let own = object["kind"] == "ServiceAccount" && metadata["name"] == "mimeo-webhook";
        let wanted = if own { "other" } else { "platform" };
        assert_eq!(
            found["example.com/owner"], wanted,
            "{} {}",
            object["kind"], metadata["name"]
        );
        if object["kind"] == "CustomResourceDefinition" {
            assert_eq!(found["helm.sh/resource-policy"], "keep");
        }
        if found["helm.sh/hook"].is_string() {
            hooks += 1;
            assert_eq!(
                found["helm.sh/hook-delete-policy"],
                "before-hook-creation,hook-succeeded"
            );
        }
        ensure!(object["spec"]["template"]["metadata"]["annotations"].is_null());
    }
    assert_eq!(
        hooks, 10,
        "two Jobs or Pods, each with an account, a role, a binding and a policy"
    );
    Ok(())
}

#[test]
fn objects_of_the_user_are_part_of_the_release() -> Result<()> {
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "{{ .Release.Name }}-own", "namespace": "{{ .Release.Namespace }}"},
    });
    let text =
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Values.image.repository }}-text}\n";
    let all = with(&json!({"extraObjects": [map, text], "commonLabels": {"team": "a"}}))?;
    let own = json!({"name": "mimeo-own", "namespace": "mimeo-system"});
    assert_eq!(find(&all, "ConfigMap", "mimeo-own")?["metadata"], own);
    find(&all, "ConfigMap", "mimeo-text")?;
    Ok(())
}

#[test]
fn each_default_role_gets_permissions_on_its_own() -> Result<()> {
    for (values, expected) in [
        (json!({}), &["mimeo-view"][..]),
        (json!({"view": false}), &[]),
        (json!({"view": false, "edit": true}), &["mimeo-edit"]),
        (json!({"admin": true}), &["mimeo-admin", "mimeo-view"]),
    ] {
        let all = with(&json!({"rbac": {"aggregate": values}}))?;
        let roles = all.iter().filter_map(|object| {
            let metadata = &object["metadata"];
            let name = metadata["name"].as_str()?;
            let role = name.strip_prefix("mimeo-")?;
            let label = format!("rbac.authorization.k8s.io/aggregate-to-{role}");
            (metadata["labels"][label] == "true").then_some(name)
        });
        assert_eq!(
            roles.collect::<BTreeSet<_>>(),
            expected.iter().copied().collect(),
            "{values}"
        );
    }
    Ok(())
}

#[test]
fn alerts_link_to_their_section_and_say_who_must_act() -> Result<()> {
    let rules = |settings: Value| -> Result<Vec<Value>> {
        let all = with(&json!({"metrics": {"prometheusRule": settings}}))?;
        let rules = &find(&all, "PrometheusRule", "mimeo")?["spec"]["groups"][0]["rules"];
        rules.as_array().context("no rules").cloned()
    };
    let (changed, defaults) = (
        rules(json!({
            "enabled": true, "runbookUrl": "https://docs.example.com/mimeo",
            "severity": {"page": "p1", "ticket": "p3"},
        }))?,
        rules(json!({"enabled": true}))?,
    );
    let (mut pages, mut tickets) = (0, 0);
    for (changed, default) in changed.iter().zip(&defaults) {
        let section = default["alert"].as_str().context("no name")?.to_lowercase();
        let (link, other) = (
            format!("{HOME}/manifests/chart/RUNBOOK.md#{section}"),
            format!("https://docs.example.com/mimeo#{section}"),
        );
        assert_eq!(default["annotations"]["runbook_url"], link.as_str());
        assert_eq!(changed["annotations"]["runbook_url"], other.as_str());
        let response = default["labels"]["response"].as_str();
        let (usual, own) = match response {
            Some("page") => {
                pages += 1;
                ("critical", "p1")
            }
            Some("ticket") => {
                tickets += 1;
                ("warning", "p3")
            }
            // Such an alert only informs.
            _ => ("info", "info"),
        };
        assert_eq!(
            default["labels"],
            json!({"severity": usual, "response": response})
        );
        assert_eq!(
            changed["labels"],
            json!({"severity": own, "response": response})
        );
    }
    ensure!(pages > 3 && tickets > 3, "{pages} pages, {tickets} tickets");
    Ok(())
}

#[test]
fn the_command_of_the_notes_can_be_pasted_into_a_shell() -> Result<()> {
    let notes = ask_helm(&["install", "mimeo", "--dry-run=client"], &[])?;
    let notes = notes.map_err(|refusal| anyhow::anyhow!(refusal))?;
    // The shell expands variables in a heredoc without quotes.
    ensure!(notes.contains("kubectl apply -f - <<'END'\n"), "{notes}");
    Ok(())
}

/// Artifact Hub shows the README and Chart.yaml outside of the repository.
#[test]
fn the_chart_can_be_read_where_there_is_no_repository() -> Result<()> {
    let text = fs::read_to_string(chart().join("Chart.yaml"))?;
    let about: Value = serde_yaml::from_str(&text)?;
    assert_eq!(about["home"], HOME);
    assert_eq!(about["sources"], json!([HOME]));
    assert_eq!(about["maintainers"][0]["url"], HOME);
    let readme = fs::read_to_string(chart().join("README.md"))?;
    let relative = readme
        .split("](")
        .skip(1)
        .find(|rest| !rest.starts_with("https://"));
    ensure!(relative.is_none(), "a relative link: {relative:.80?}");
    let ends = |c: char| c.is_whitespace() || matches!(c, ')' | '"' | '#' | ',' | ']' | '}' | '`');
    let mut count = 0;
    for text in [&text, &readme] {
        for link in text.split(HOME).skip(1) {
            let path = link.split(ends).next().unwrap_or_default();
            let file = workspace().join(path.trim_start_matches('/'));
            ensure!(file.exists(), "{HOME}{path} leads nowhere");
            count += 1;
        }
    }
    ensure!(count > 10, "only {count} links");
    let lint = ask_helm(&["lint"], &["--strict"])?.map_err(|told| anyhow::anyhow!(told))?;
    ensure!(!lint.contains("[INFO]"), "{lint}");
    Ok(())
}
