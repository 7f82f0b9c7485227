//! `kubectl mimeo copy SOURCE NAMESPACE...`: copies an object once, by hand.
//!
//! The copies have the content that Mimeo would give them, and none of Mimeo's marks. So no rule
//! updates or deletes them.

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use mimeo_api::{ClusterReplication, names::API_VERSION};
use mimeo_model::{
    kind::Resource,
    outcome::Outcome,
    render::Draft,
    rule::Rule,
    source::{SourceRef, SourceRefused},
};
use mimeo_runtime::discovery::resource_path;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    call::Refusal,
    connect::Connected,
    kinds::{self, argument},
    names::{ObjectName, refusals},
    output::{Format, line, print, tell},
    read::Part,
    write::{Change, send},
};

/// The field manager of the copies.
const MANAGER: &str = "kubectl-mimeo";

#[derive(Debug, Args)]
pub(crate) struct CopyArgs {
    /// The source: NAMESPACE/KIND/NAME, or KIND/NAME in the namespace of -n
    #[arg(value_name = "NAMESPACE/KIND/NAME")]
    source: String,
    /// The copies: NAMESPACE, or NAMESPACE/NAME for another name than the source's
    #[arg(value_name = "NAMESPACE[/NAME]", required = true)]
    to: Vec<String>,
    /// Update copies that exist, by server-side apply
    #[arg(long)]
    overwrite: bool,
    /// Write nothing: the API server only checks the copies
    #[arg(
        long,
        value_enum,
        value_name = "server",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "server"
    )]
    dry_run: Option<DryRun>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DryRun {
    /// The API server checks the copies, and stores none.
    Server,
    /// The copies are written.
    None,
}

/// A copy that is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct To<'a> {
    namespace: &'a str,
    name: &'a str,
}

/// The result of one copy.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Made {
    namespace: String,
    name: String,
    copied: bool,
    /// The reason, if the object could not be copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The result of all copies.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    /// The source as kubectl names it: `secret/registry`.
    #[serde(skip)]
    object: String,
    source: String,
    dry_run: bool,
    copies: Vec<Made>,
}

pub(crate) async fn run(args: &CopyArgs, connected: &Connected, format: Format) -> Result<u8> {
    let ObjectName {
        namespace,
        kind,
        name,
    } = ObjectName::parse(&args.source, &connected.namespace)?;
    let targets: Vec<To<'_>> = args
        .to
        .iter()
        .map(|text| target(text, name))
        .collect::<Result<_>>()?;
    let own = To { namespace, name };
    ensure!(
        !targets.contains(&own),
        "{} is the source itself",
        args.source
    );
    let reader = connected.reader();
    let resource = kinds::served(&reader, kind).await?;
    ensure!(
        resource.namespaced,
        "kind {} is cluster-scoped; only objects in namespaces are copied",
        resource.gvk.group_kind()
    );
    let path = resource_path(&resource, Some(namespace), Some(name));
    let what = format!("{} {namespace}/{name}", resource.gvk.kind);
    let object = match reader.get(&path, Part::Whole).await {
        Ok(Some(object)) => object,
        Ok(None) => bail!("{what} does not exist"),
        Err(error) => bail!("can't read {what}: {error}"),
    };
    let source = SourceRef::named(resource.gvk.clone(), namespace, name);
    let body = body(&source, &object).with_context(|| format!("can't copy {what}"))?;
    let dry_run = args.dry_run == Some(DryRun::Server);
    let mut report = Report {
        object: argument(&resource.gvk, name),
        source: source.to_string(),
        dry_run,
        copies: Vec::new(),
    };
    for to in targets {
        let result = write(connected, &resource, &body, to, args.overwrite, dry_run).await;
        let error = result.as_ref().err();
        report.copies.push(Made {
            namespace: to.namespace.to_owned(),
            name: to.name.to_owned(),
            copied: result.is_ok(),
            error: error.map(|error| connected.flags.in_commands(error)),
        });
    }
    print(format, &report, text)?;
    for copy in report.copies.iter().filter(|_| format == Format::Table) {
        if let Some(error) = &copy.error {
            tell(&format!(
                "error: {} not copied to {}: {error}",
                report.object, copy.namespace
            ));
        }
    }
    Ok(u8::from(report.copies.iter().any(|copy| !copy.copied)))
}

fn target<'a>(text: &'a str, name: &'a str) -> Result<To<'a>> {
    let (namespace, name) = text.split_once('/').unwrap_or((text, name));
    let wrong = namespace.is_empty() || name.is_empty() || name.contains('/');
    ensure!(
        !wrong,
        "{text:?} is no target: write NAMESPACE or NAMESPACE/NAME"
    );
    Ok(To { namespace, name })
}

/// The content of the copies, as a rule without any transform renders it.
fn body(source: &SourceRef, object: &Value) -> Result<Value> {
    let rule = json!({
        "apiVersion": API_VERSION, "kind": "ClusterReplication", "metadata": {"name": MANAGER},
        "spec": {
            "sources": [{
                "apiVersion": source.gvk.api_version(), "kind": source.gvk.kind,
                "namespace": source.namespace, "name": source.name,
            }],
            "targets": [{"namespaceSelector": {}}],
        },
    });
    let rule: ClusterReplication = serde_json::from_value(rule)?;
    let rule = Rule::parse(&rule).map_err(|refused| anyhow!(refusals(&refused)))?;
    Draft::without_marks(&rule, source, object).map_err(|refused| match refused {
        // The advice of these refusals is for authors of rules.
        SourceRefused::ServiceAccountToken => anyhow!(
            "a service account token is never copied, since it belongs to its service account"
        ),
        SourceRefused::HelmRelease => {
            anyhow!("a Helm release is never copied, since Helm would use it as one of its own")
        }
        refused => refused.into(),
    })
}

/// Writes one copy. The error is a sentence without any data.
async fn write(
    connected: &Connected,
    resource: &Resource,
    body: &Value,
    to: To<'_>,
    overwrite: bool,
    dry_run: bool,
) -> Result<(), String> {
    let mut body = body.clone();
    body["metadata"]["namespace"] = to.namespace.into();
    body["metadata"]["name"] = to.name.into();
    if !overwrite {
        // No object ever has this version. So the apply creates the object, or fails with 409. A
        // copy that is created by an apply can be overwritten by an apply later.
        body["metadata"]["resourceVersion"] = "1".into();
    }
    let path = resource_path(resource, Some(to.namespace), Some(to.name));
    let dry_run = if dry_run { "&dryRun=All" } else { "" };
    let path = format!("{path}?fieldManager={MANAGER}{dry_run}");
    let sent = send(connected, Change::Apply, &path, &body).await;
    sent.map(drop)
        .map_err(|refusal| explain(&refusal, resource, to, overwrite))
}

/// The reason why a copy could not be written, and the next step.
fn explain(refusal: &Refusal, resource: &Resource, to: To<'_>, overwrite: bool) -> String {
    let To { namespace, name } = to;
    let object = argument(&resource.gvk, name);
    let delete = format!("kubectl -n {namespace} delete {object}");
    let (code, message) = (refusal.code, refusal.message());
    // These messages quote nothing of the object. The others may quote a Secret.
    if matches!(code, 0 | 401) || code == 403 && message.contains("is forbidden: User ") {
        return message.to_owned();
    }
    match Outcome::of_error(code, &refusal.status, refusal.retry_after, resource, name) {
        Outcome::NamespaceGone if code == 404 => {
            format!("there is no namespace {namespace}. Fix: kubectl create namespace {namespace}")
        }
        Outcome::NamespaceGone => format!("namespace {namespace} is being deleted"),
        Outcome::Conflict | Outcome::Differs if !overwrite => format!(
            "{object} exists in namespace {namespace} already. Fix: add --overwrite, or first  {delete}"
        ),
        Outcome::Conflict => format!(
            "another client wrote {object} in namespace {namespace} at the same time. Fix: run the \
             command again"
        ),
        Outcome::Differs => format!(
            "other clients have written fields of {object} in namespace {namespace} ({}). Fix: \
             first  {delete}",
            line(message)
        ),
        Outcome::Refused(failure)
        | Outcome::Immutable(failure)
        | Outcome::Unavailable { failure, .. } => failure.message.into(),
        Outcome::NotServed | Outcome::Absent | Outcome::Object(_) => {
            format!("the API server answered {code}")
        }
    }
}

fn text(report: &Report) -> String {
    let dry_run = if report.dry_run {
        " (server dry run)"
    } else {
        ""
    };
    let copied = report.copies.iter().filter(|copy| copy.copied);
    let line = |copy: &Made| {
        let renamed = !report.object.ends_with(&format!("/{}", copy.name));
        let name = if renamed {
            format!("/{}", copy.name)
        } else {
            String::new()
        };
        let Made { namespace, .. } = copy;
        format!("{} copied to {namespace}{name}{dry_run}\n", report.object)
    };
    copied.map(line).collect()
}

#[cfg(test)]
mod tests {
    use mimeo_model::kind::GroupVersionKind;

    use super::*;

    fn secrets() -> Resource {
        Resource {
            gvk: GroupVersionKind::parse("v1", "Secret").expect("a kind"),
            plural: "secrets".into(),
            namespaced: true,
        }
    }

    fn source() -> SourceRef {
        SourceRef::named(secrets().gvk, "platform", "registry")
    }

    #[test]
    fn a_copy_has_the_content_alone() {
        let object = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": {"a": "Yg=="},
            "metadata": {
                "namespace": "platform", "name": "registry", "uid": "u", "resourceVersion": "7",
                "labels": {"team": "blue", "app.kubernetes.io/managed-by": "Helm", "mimeo.dev/drift": "deny"},
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "mimeo.dev/rule": "x"},
                "ownerReferences": [{}], "finalizers": ["a/b"], "managedFields": [{}],
            },
        });
        let expected = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": {"a": "Yg=="},
            "metadata": {"labels": {"team": "blue"}},
        });
        assert_eq!(body(&source(), &object).expect("a copy"), expected);
        let token = json!({"type": "kubernetes.io/service-account-token", "metadata": {}});
        let refused = body(&source(), &token).expect_err("it is refused");
        assert!(refused.to_string().contains("its service account"));
    }

    #[test]
    fn a_target_is_a_namespace_with_or_without_a_name() {
        let parsed = |text| target(text, "registry").ok();
        let to = |namespace, name| Some(To { namespace, name });
        assert_eq!(parsed("blue"), to("blue", "registry"));
        assert_eq!(parsed("blue/pull"), to("blue", "pull"));
        for text in ["", "/", "blue/", "/a", "a/b/c"] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }

    #[test]
    fn a_refusal_does_not_quote_a_secret() {
        let to = To {
            namespace: "blue",
            name: "pull",
        };
        let refused = |code, status: Value, overwrite| {
            let refusal = Refusal {
                code,
                status: serde_json::from_value(status).expect("a Status"),
                retry_after: None,
            };
            explain(&refusal, &secrets(), to, overwrite)
        };
        let message = |code, message: &str| refused(code, json!({ "message": message }), false);
        for text in [
            message(422, "data[a]: Invalid value: hunter2"),
            message(403, "admission webhook \"a\" denied the request: hunter2"),
            message(500, "hunter2"),
        ] {
            assert!(!text.contains("hunter2"), "{text}");
        }
        let forbidden = message(403, r#"secrets is forbidden: User "x" cannot patch"#);
        assert!(forbidden.contains("cannot patch"), "{forbidden}");
        let namespace = json!({"details": {"name": "blue", "kind": "namespaces"}});
        let missing = refused(404, namespace, false);
        assert!(
            missing.contains("kubectl create namespace blue"),
            "{missing}"
        );
        assert!(refused(409, json!({}), false).contains("--overwrite"));
        assert!(refused(409, json!({}), true).contains("run the command again"));
        let quota = json!({"details": {"name": "all", "kind": "resourcequotas"}});
        let quota = refused(409, quota, false);
        assert!(!quota.contains("exists"), "{quota}");
        let cause = json!([{"reason": "FieldManagerConflict"}]);
        let owned = json!({"message": "conflict with \"mimeo\"", "details": {"causes": cause}});
        assert!(refused(409, owned, true).contains("with \"mimeo\""));
    }
}
