//! The webhook: its registration, its certificates, and whether the API server reaches it.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{ByteString, api::admissionregistration::v1::WebhookClientConfig};
use mimeo_api::names::API_VERSION;
use mimeo_model::{names::AUTHOR, registration};
use mimeo_runtime::{call::encode, certificates::expiries};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Item, Verdict};
use crate::{
    call::Refusal,
    connect::Connected,
    installation::Flags,
    read::{Part, ReadError, Reader, own_path, undecodable},
    state::Fix,
    write::{Change, send},
};

const REGISTRATION: &str = "Webhook registration";
const CERTIFICATE: &str = "Webhook certificate";
const SERVING: &str = "Serving certificate";
const STRICT: &str = "Strict mode";
const REACHED: &str = "Webhook reached";
/// A certificate that expires sooner is worth a look. Mimeo and cert-manager renew much earlier.
const SOON: SignedDuration = SignedDuration::from_hours(7 * 24);

/// One hook of a configuration.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Hook {
    name: String,
    failure_policy: Option<String>,
    client_config: WebhookClientConfig,
}

/// The items of the webhook. `deployment` is its Deployment, if that was found.
pub(super) async fn check(
    connected: &Connected,
    reader: &Reader,
    deployment: Option<&Value>,
) -> Vec<Item> {
    let mut items = match hooks(reader).await {
        Ok(hooks) => {
            let now = reader.now();
            let mimeo = &connected.mimeo;
            let mut items = vec![registered(&hooks, mimeo)];
            if !hooks.is_empty() {
                items.extend([certificate(&hooks, mimeo, now), strict(&hooks)]);
            }
            items
        }
        Err(error) => [REGISTRATION, CERTIFICATE, STRICT]
            .map(|check| Item::unread(check, "the webhook configurations", &error))
            .into(),
    };
    items.push(serving(reader, &connected.mimeo, deployment).await);
    let path = own_path(None, "clusterreplications", None) + "?dryRun=All";
    let answer = send(connected, Change::Create, &path, &probe()).await;
    items.push(reached(&answer, &connected.mimeo));
    items
}

async fn hooks(reader: &Reader) -> Result<Vec<Hook>, ReadError> {
    let mut hooks = Vec::new();
    for kind in [
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
    ] {
        let name = registration::NAME;
        let path = format!("/apis/admissionregistration.k8s.io/v1/{kind}/{name}");
        let configuration = reader.get(&path, Part::Whole).await?.unwrap_or_default();
        let own: Option<Vec<Hook>> =
            serde_json::from_value(configuration["webhooks"].clone()).map_err(|_| undecodable())?;
        hooks.extend(own.into_iter().flatten());
    }
    Ok(hooks)
}

fn registered(hooks: &[Hook], mimeo: &str) -> Item {
    // Hooks of both configurations. rules.mimeo.dev is in each of them.
    let wanted = [
        "namespaces.mimeo.dev",
        "pods.mimeo.dev",
        "rules.mimeo.dev",
        "rules.mimeo.dev",
        "copies.mimeo.dev",
    ];
    let mut left: Vec<&str> = hooks.iter().map(|hook| hook.name.as_str()).collect();
    let mut missing = Vec::new();
    for name in wanted {
        match left.iter().position(|one| *one == name) {
            Some(at) => drop(left.remove(at)),
            None => missing.push(name),
        }
    }
    if missing.is_empty() {
        return Item::new(REGISTRATION, Verdict::Ok, "all hooks are registered");
    }
    missing.dedup();
    let message = if hooks.is_empty() {
        format!(
            "there are no webhook configurations named {}",
            registration::NAME
        )
    } else {
        format!("hooks are not registered: {}", missing.join(", "))
    };
    let fix = logs(mimeo).note("shows why the webhook does not register itself");
    Item::new(REGISTRATION, Verdict::Failed, message).fix(fix)
}

fn certificate(hooks: &[Hook], mimeo: &str, now: Timestamp) -> Item {
    let mut last = Timestamp::MAX;
    let mut own = false;
    for hook in hooks {
        let Some(bundle) = &hook.client_config.ca_bundle else {
            continue;
        };
        own = true;
        // During a renewal the bundle has the old CA and the new one.
        let Some(expiry) = expiries(&bundle.0).into_iter().max() else {
            let message = format!("the caBundle of {} has no certificate", hook.name);
            return Item::new(CERTIFICATE, Verdict::Failed, message).fix(renew(mimeo));
        };
        last = last.min(expiry);
    }
    if !own {
        let message =
            "there is no caBundle: the API server trusts the authorities of its own machine";
        return Item::new(CERTIFICATE, Verdict::Ok, message);
    }
    expires((CERTIFICATE, "the CA in caBundle"), last, mimeo, now)
}

/// The item of a certificate that expires at `last`.
fn expires((check, what): (&str, &str), last: Timestamp, mimeo: &str, now: Timestamp) -> Item {
    let date = last.strftime("%Y-%m-%d %H:%M UTC");
    if last <= now {
        let message = format!("{what} expired at {date}");
        return Item::new(check, Verdict::Failed, message).fix(renew(mimeo));
    }
    let message = format!("{what} is valid until {date}");
    if last.duration_since(now) < SOON {
        return Item::new(check, Verdict::Warning, message).fix(renew(mimeo));
    }
    Item::new(check, Verdict::Ok, message)
}

/// The certificate that the webhook shows to API servers, if the user may read its Secret.
async fn serving(reader: &Reader, mimeo: &str, deployment: Option<&Value>) -> Item {
    let pod = deployment.map(|deployment| &deployment["spec"]["template"]["spec"]);
    let name = serving_secret(pod.unwrap_or(&Value::Null));
    let secrets = format!("/api/v1/namespaces/{}/secrets", encode(mimeo));
    let path = format!("{secrets}/{}", encode(name));
    let what = format!("Secret {mimeo}/{name}");
    let found = match reader.get(&path, Part::Whole).await {
        Ok(Some(found)) => found,
        Ok(None) if deployment.is_some() => {
            let message = format!("{what} does not exist");
            return Item::new(SERVING, Verdict::Failed, message).fix(renew(mimeo));
        }
        // Without the Deployment the name is a guess.
        Ok(None) => {
            let message = format!("{what} does not exist, and the webhook may use another one");
            return Item::new(SERVING, Verdict::Unknown, message);
        }
        Err(error) => return Item::unread(SERVING, &what, &error),
    };
    // The certificate is the only part of the Secret that is looked at.
    let pem: Option<ByteString> = serde_json::from_value(found["data"]["tls.crt"].clone()).ok();
    let Some(last) = pem.and_then(|pem| expiries(&pem.0).into_iter().min()) else {
        let message = format!("{what} has no certificate under tls.crt");
        return Item::new(SERVING, Verdict::Failed, message).fix(renew(mimeo));
    };
    expires((SERVING, "it"), last, mimeo, reader.now())
}

/// The name of the Secret with the webhook's certificate: the one that the webhook writes, or the one
/// that is mounted as its volume `tls`.
fn serving_secret(pod: &Value) -> &str {
    let volumes = pod["volumes"].as_array().into_iter().flatten();
    let mut mounted = volumes.filter(|volume| volume["name"] == "tls");
    let mounted = mounted.find_map(|volume| volume["secret"]["secretName"].as_str());
    let own = Flags::of(pod, "webhook").get("tls-secret");
    mounted.or(own).unwrap_or("mimeo-webhook-tls")
}

fn renew(mimeo: &str) -> Fix {
    logs(mimeo).note("shows why the certificate is not renewed")
}

fn logs(mimeo: &str) -> Fix {
    Fix::run(format!("kubectl -n {mimeo} logs deployment/mimeo-webhook"))
}

/// A fact, not a fault.
fn strict(hooks: &[Hook]) -> Item {
    let hook = hooks
        .iter()
        .find(|hook| hook.name == "namespaces.mimeo.dev");
    let message = match hook.map(|hook| hook.failure_policy.as_deref()) {
        Some(Some("Ignore")) => {
            "off: namespaces are created while no webhook answers, and get their copies later"
        }
        Some(_) => "on: namespaces can't be created while no webhook answers",
        None => {
            let message = "the hook namespaces.mimeo.dev is not registered";
            return Item::new(STRICT, Verdict::Unknown, message);
        }
    };
    Item::new(STRICT, Verdict::Ok, message)
}

/// A rule for a dry run. The webhook writes the author's name into it, or refuses it because the
/// user may not write ConfigMaps. Both prove that the API server reaches the webhook.
fn probe() -> Value {
    let name = format!("mimeo-check-{}", Timestamp::now().as_millisecond());
    json!({
        "apiVersion": API_VERSION,
        "kind": "ClusterReplication",
        "metadata": {"name": name},
        "spec": {
            "suspend": true,
            "sources": [{"inline": {
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {},
            }}],
            "targets": [{"namespaces": [name]}],
        },
    })
}

fn reached(answer: &Result<Value, Refusal>, mimeo: &str) -> Item {
    let pods = Fix::run(format!("kubectl -n {mimeo} get pods,endpointslices"))
        .note("shows whether the webhook runs and its Service finds it");
    let item = |result, message: &str| Item::new(REACHED, result, message);
    let yes = "the API server asked it in a dry run";
    let refusal = match answer {
        Ok(rule) if rule["metadata"]["annotations"][AUTHOR].is_string() => {
            return item(Verdict::Ok, yes);
        }
        Ok(_) => {
            let message = "the API server accepted a rule in a dry run without asking the webhook";
            return item(Verdict::Failed, message).fix(pods);
        }
        Err(refusal) => refusal,
    };
    let message = refusal.message();
    let own = message.contains("rules.mimeo.dev");
    match refusal.code {
        _ if own && message.contains("denied the request") => item(Verdict::Ok, yes),
        _ if own && message.contains("failed calling webhook") => {
            item(Verdict::Failed, message).fix(pods)
        }
        403 => item(
            Verdict::Unknown,
            &format!("a dry run of a ClusterReplication would show it, and is refused: {message}"),
        )
        .fix(Fix::say(
            "run this command as a user who may create ClusterReplications",
        )),
        404 => item(
            Verdict::Unknown,
            "the API server serves no ClusterReplications",
        ),
        _ => item(
            Verdict::Unknown,
            &format!("a dry run of a ClusterReplication failed: {message}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(name: &str, bundle: Option<&str>) -> Hook {
        Hook {
            name: name.into(),
            failure_policy: Some("Fail".into()),
            client_config: WebhookClientConfig {
                ca_bundle: bundle.map(|pem| ByteString(pem.into())),
                ..WebhookClientConfig::default()
            },
        }
    }

    #[test]
    fn a_missing_hook_is_named() {
        let names = ["namespaces", "pods", "rules", "rules", "copies"];
        let hooks = |names: &[&str]| -> Vec<Hook> {
            let full = names.iter().map(|name| format!("{name}.mimeo.dev"));
            full.map(|name| hook(&name, None)).collect()
        };
        assert_eq!(registered(&hooks(&names), "m").result, Verdict::Ok);
        let item = registered(&hooks(&names[..3]), "m");
        assert_eq!(item.result, Verdict::Failed);
        assert_eq!(
            item.message,
            "hooks are not registered: rules.mimeo.dev, copies.mimeo.dev"
        );
        let none = registered(&[], "m").message;
        assert!(none.contains("no webhook configurations"), "{none}");
    }

    #[test]
    fn the_answer_of_the_dry_run_proves_that_the_webhook_is_reached() {
        let refusal = |code, message: &str| {
            Err(Refusal {
                code,
                ..Refusal::silence(&message)
            })
        };
        let noted = json!({"metadata": {"annotations": {AUTHOR: "ann"}}});
        let cases = [
            (Ok(noted), Verdict::Ok),
            (Ok(json!({"metadata": {}})), Verdict::Failed),
            (
                refusal(
                    403,
                    r#"admission webhook "rules.mimeo.dev" denied the request: Mimeo: no"#,
                ),
                Verdict::Ok,
            ),
            (
                refusal(
                    500,
                    r#"Internal error occurred: failed calling webhook "rules.mimeo.dev": no endpoints"#,
                ),
                Verdict::Failed,
            ),
            (
                refusal(403, r#"User "x" cannot create resource"#),
                Verdict::Unknown,
            ),
            (
                refusal(
                    403,
                    r#"admission webhook "policy.example.com" denied the request"#,
                ),
                Verdict::Unknown,
            ),
            (refusal(404, "not found"), Verdict::Unknown),
            (refusal(0, "no answer"), Verdict::Unknown),
        ];
        for (answer, result) in cases {
            assert_eq!(reached(&answer, "m").result, result, "{answer:?}");
        }
    }

    #[test]
    fn a_bundle_without_certificates_fails_and_none_at_all_is_fine() {
        let now = Timestamp::now();
        let broken = certificate(&[hook("pods.mimeo.dev", Some("nothing"))], "m", now);
        assert_eq!(broken.result, Verdict::Failed);
        assert!(broken.message.contains("pods.mimeo.dev"));
        let own = certificate(&[hook("pods.mimeo.dev", None)], "m", now);
        assert_eq!(own.result, Verdict::Ok);
    }

    #[test]
    fn a_certificate_is_valid_expires_soon_or_has_expired() {
        let now = Timestamp::now();
        for (hours, result) in [
            (24 * 8, Verdict::Ok),
            (24 * 6, Verdict::Warning),
            (0, Verdict::Failed),
        ] {
            let item = expires(
                ("a", "it"),
                now + SignedDuration::from_hours(hours),
                "m",
                now,
            );
            assert_eq!(item.result, result, "{}", item.message);
        }
    }

    #[test]
    fn the_secret_of_the_certificate_is_the_mounted_one_or_the_webhooks_own() {
        let own = json!({"containers": [{"name": "webhook", "args": ["--tls-secret=own"]}]});
        let mounted = json!({"volumes": [{"name": "tls", "secret": {"secretName": "theirs"}}]});
        for (pod, name) in [
            (own, "own"),
            (mounted, "theirs"),
            (json!(null), "mimeo-webhook-tls"),
        ] {
            assert_eq!(serving_secret(&pod), name);
        }
    }

    #[test]
    fn strict_mode_is_a_fact() {
        let mut hooks = vec![hook("namespaces.mimeo.dev", None)];
        assert!(strict(&hooks).message.starts_with("on"));
        hooks[0].failure_policy = Some("Ignore".into());
        assert!(strict(&hooks).message.starts_with("off"));
        assert_eq!(strict(&[]).result, Verdict::Unknown);
    }
}
