//! The running replicas of Mimeo, as their Leases show them, and the settings and service accounts
//! of its programs.

use clap::Parser;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use mimeo_engine::Settings;
use mimeo_model::{
    known::Decoded,
    names::{REPLICA, REPLICA_WEBHOOK},
    own_rights::Program,
    review::User,
    role::Role,
};
use mimeo_runtime::{call::encode, reach::ReachArgs};
use serde::Serialize;
use serde_json::Value;

use crate::{
    output::age,
    read::{Part, ReadError, Reader, text},
};

/// The Lease of the leading reconciler.
pub(crate) const LEADER: &str = "mimeo-reconciler";

/// A replica with a Lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Replica {
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) renewed: Option<Timestamp>,
    /// True if the replica has renewed its Lease in time.
    pub(crate) alive: bool,
}

impl Replica {
    fn of(lease: Lease, now: Timestamp) -> Option<Self> {
        let spec = lease.spec?;
        let name = spec.holder_identity.filter(|holder| !holder.is_empty())?;
        let renewed = spec.renew_time.map(|time| time.0);
        let duration = SignedDuration::from_secs(spec.lease_duration_seconds.unwrap_or(0).into());
        let alive = renewed.is_some_and(|renewed| now.duration_since(renewed) <= duration);
        Some(Self {
            name,
            renewed,
            alive,
        })
    }

    /// The replica and the age of its Lease's last renewal: `webhook-1 (3s ago)`.
    pub(crate) fn text(&self, now: Timestamp) -> String {
        match self.renewed {
            Some(renewed) => format!("{} ({} ago)", self.name, age(renewed, now)),
            None => self.name.clone(),
        }
    }
}

/// The replicas of Mimeo. A part that the user may not read is `None`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Installation {
    /// The leading reconciler. Without one the list is empty.
    pub(crate) leader: Option<Vec<Replica>>,
    /// The replicas of the webhook.
    pub(crate) webhooks: Option<Vec<Replica>>,
    /// The time of the reading, by the clock of the API server.
    #[serde(skip)]
    pub(crate) now: Timestamp,
}

impl Installation {
    /// Reads the Leases, and returns a sentence for each failed read.
    pub(crate) async fn read(reader: &Reader, mimeo: &str) -> (Self, Vec<String>) {
        let leases = format!(
            "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
            encode(mimeo)
        );
        let mut unread = Vec::new();
        let mut note = |what: &str, error: &ReadError| {
            unread.push(format!("Can't read {what} in namespace {mimeo}: {error}."));
        };
        let leader = reader.get(&format!("{leases}/{LEADER}"), Part::Whole).await;
        if let Err(error) = &leader {
            note("the reconciler's Lease", error);
        }
        let mut found = Vec::new();
        let selector = format!("{REPLICA}={REPLICA_WEBHOOK}");
        let keep = |lease: Decoded<Value>| found.push(lease.value().clone());
        let listed = reader.list(&leases, Some(&selector), Part::Whole, keep);
        let listed = listed.await;
        if let Err(error) = &listed {
            note("the webhook's Leases", error);
        }
        // The holders of the Leases need not have the clock of this machine.
        let now = reader.now();
        let replicas = |leases: Vec<Value>| -> Vec<Replica> {
            let leases = leases.into_iter();
            leases.filter_map(|lease| replica(lease, now)).collect()
        };
        let installation = Self {
            leader: leader
                .ok()
                .map(|leader| replicas(leader.into_iter().collect())),
            webhooks: listed.is_ok().then(|| replicas(found)),
            now,
        };
        (installation, unread)
    }

    /// Two lines for people: the leader, and the replicas of the webhook.
    pub(crate) fn lines(&self) -> Vec<String> {
        let line = |what: &str, replicas: &[Replica], none: &str| {
            let alive = replicas.iter().filter(|replica| replica.alive);
            let alive: Vec<String> = alive.map(|replica| replica.text(self.now)).collect();
            if alive.is_empty() {
                format!("{what}: {none}")
            } else {
                format!("{what}: {}", alive.join(", "))
            }
        };
        let leader = self.leader.as_deref().map(|leader| {
            let none = "none leads. Copies don't change until one does";
            line("Reconciler", leader, none)
        });
        let webhooks = self.webhooks.as_deref().map(|webhooks| {
            let none = "no replica is alive. New namespaces wait for the reconciler";
            line("Webhook", webhooks, none)
        });
        leader.into_iter().chain(webhooks).collect()
    }

    /// False if a reconciler or the webhook is known to be missing.
    pub(crate) fn runs(&self) -> bool {
        let runs = |replicas: &Option<Vec<Replica>>| {
            let alive = |replicas: &Vec<Replica>| replicas.iter().any(|replica| replica.alive);
            replicas.as_ref().is_none_or(alive)
        };
        runs(&self.leader) && runs(&self.webhooks)
    }
}

fn replica(lease: Value, now: Timestamp) -> Option<Replica> {
    Replica::of(serde_json::from_value(lease).ok()?, now)
}

/// The path of a Deployment of Mimeo.
pub(crate) fn deployment_path(mimeo: &str, name: &str) -> String {
    let mimeo = encode(mimeo);
    format!("/apis/apps/v1/namespaces/{mimeo}/deployments/{name}")
}

/// The service accounts of both programs.
#[derive(Clone, Debug)]
pub(crate) struct Accounts {
    /// The names of the users that the programs have at the API server.
    pub(crate) webhook: String,
    pub(crate) reconciler: String,
    /// True if a Deployment could not be read. Then its account is the one of the manifests.
    pub(crate) assumed: bool,
}

impl Accounts {
    /// The accounts in the Deployments of the webhook and the reconciler, as far as they were read.
    pub(crate) fn of(mimeo: &str, webhook: Option<&Value>, reconciler: Option<&Value>) -> Self {
        let account = |program: &str, deployment: Option<&Value>| {
            let name = match deployment {
                None => program,
                Some(deployment) => {
                    match text(deployment, "/spec/template/spec/serviceAccountName") {
                        "" => "default",
                        name => name,
                    }
                }
            };
            format!("system:serviceaccount:{mimeo}:{name}")
        };
        Self {
            webhook: account("mimeo-webhook", webhook),
            reconciler: account("mimeo-reconciler", reconciler),
            assumed: webhook.is_none() || reconciler.is_none(),
        }
    }

    pub(crate) async fn read(reader: &Reader, mimeo: &str) -> Self {
        let read = async |name: &str| {
            let path = deployment_path(mimeo, name);
            reader.get(&path, Part::Whole).await.ok().flatten()
        };
        let webhook = read("mimeo-webhook").await;
        let reconciler = read("mimeo-reconciler").await;
        Self::of(mimeo, webhook.as_ref(), reconciler.as_ref())
    }

    /// The beginning of a sentence about accounts that may not be Mimeo's.
    pub(crate) fn assumption(&self) -> String {
        let Self {
            webhook,
            reconciler,
            ..
        } = self;
        format!("if Mimeo runs as {webhook} and {reconciler}, then ")
    }

    /// The user of a program, with the groups that the API server derives from its name.
    pub(crate) fn user(&self, program: Program) -> User {
        let name = match program {
            Program::Webhook => &self.webhook,
            Program::Reconciler => &self.reconciler,
        };
        let namespace = name.split(':').nth(2).unwrap_or_default();
        User {
            name: name.clone(),
            groups: vec![
                "system:authenticated".to_owned(),
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
            ],
            ..User::default()
        }
    }
}

/// The flags and environment variables of a program's container.
pub(crate) struct Flags<'a>(&'a Value);

impl<'a> Flags<'a> {
    /// The settings in a pod's spec. A pod may have other containers beside the program's.
    pub(crate) fn of(pod: &'a Value, container: &str) -> Self {
        let all = pod["containers"].as_array().map(Vec::as_slice);
        let all = all.unwrap_or_default();
        let named = all.iter().find(|one| text(one, "/name") == container);
        Self(named.or(all.first()).unwrap_or(&Value::Null))
    }

    /// The value of `--flag=value`, `--flag value`, or the flag's variable. A flag without a value
    /// is `true`, and takes precedence over its variable.
    pub(crate) fn get(&self, flag: &str) -> Option<&'a str> {
        let args = self.0["args"].as_array().into_iter().flatten();
        let args: Vec<&str> = args.filter_map(Value::as_str).collect();
        for (at, arg) in args.iter().enumerate() {
            match arg
                .strip_prefix("--")
                .and_then(|arg| arg.strip_prefix(flag))
            {
                Some("") => {
                    let next = args.get(at + 1).filter(|next| !next.starts_with('-'));
                    return Some(next.copied().unwrap_or("true"));
                }
                Some(rest) if rest.starts_with('=') => return Some(&rest[1..]),
                _ => {}
            }
        }
        let variable = format!("MIMEO_{}", flag.to_uppercase().replace('-', "_"));
        let mut variables = self.0["env"].as_array().into_iter().flatten();
        let variable = variables.find(|one| text(one, "/name") == variable)?;
        Some(text(variable, "/value"))
    }
}

/// The settings of the engine, from the flags of the reconciler. Returns a sentence if the flags are
/// unknown.
pub(crate) async fn settings(
    reader: &Reader,
    mimeo: &str,
    cluster: String,
) -> (Settings, Option<String>) {
    #[derive(Parser)]
    struct Limits {
        #[command(flatten)]
        reach: ReachArgs,
        #[arg(long)]
        deletion_limit: Option<usize>,
    }
    const LIMITS: [&str; 4] = [
        "target-namespaces",
        "source-namespaces",
        "kinds",
        "deletion-limit",
    ];
    let defaults = Settings::new(Role::Keeper, cluster);
    let path = deployment_path(mimeo, "mimeo-reconciler");
    let unknown = |why: String| {
        let note = format!(
            "You can't read the limits in Deployment {mimeo}/mimeo-reconciler: {why}. Its limits \
             (--target-namespaces, --source-namespaces, --kinds, --deletion-limit) are taken as \
             unset."
        );
        Some(note)
    };
    let deployment = match reader.get(&path, Part::Whole).await {
        Ok(Some(deployment)) => deployment,
        Ok(None) => return (defaults, None),
        Err(error) => return (defaults, unknown(error.to_string())),
    };
    let flags = Flags::of(&deployment["spec"]["template"]["spec"], "reconciler");
    let args = LIMITS.iter().filter_map(|limit| {
        let value = flags.get(limit).filter(|value| !value.is_empty())?;
        Some(format!("--{limit}={value}"))
    });
    match Limits::try_parse_from(std::iter::once("mimeo".to_owned()).chain(args)) {
        Ok(limits) => {
            let settings = Settings {
                reach: limits.reach.reach(),
                deletion_limit: limits.deletion_limit.unwrap_or(defaults.deletion_limit),
                ..defaults
            };
            (settings, None)
        }
        Err(_) => (defaults, unknown("a value is not valid".into())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_account_has_the_groups_of_its_namespace() {
        let account = json!({"spec": {"template": {"spec": {"serviceAccountName": "own"}}}});
        let accounts = Accounts::of("mimeo", Some(&account), None);
        assert!(accounts.assumed);
        assert_eq!(accounts.webhook, "system:serviceaccount:mimeo:own");
        let user = accounts.user(Program::Reconciler);
        assert_eq!(user.name, "system:serviceaccount:mimeo:mimeo-reconciler");
        assert_eq!(user.groups[2], "system:serviceaccounts:mimeo");
    }

    #[test]
    fn flags_are_found_in_the_programs_container() {
        let pod = json!({"containers": [
            {"name": "sidecar", "args": ["--kinds=Pod"]},
            {
                "name": "reconciler", "args": ["--ui", "--a=b=c", "--kinds", "Secret", "--ui-other=x"],
                "env": [{"name": "MIMEO_KINDS", "value": "ConfigMap"}, {"name": "MIMEO_OPS_AUTH", "value": "token"}],
            },
        ]});
        let flags = Flags::of(&pod, "reconciler");
        let found = ["ui", "a", "kinds", "ops-auth", "ops"].map(|flag| flags.get(flag));
        let expected = [
            Some("true"),
            Some("b=c"),
            Some("Secret"),
            Some("token"),
            None,
        ];
        assert_eq!(found, expected);
        assert_eq!(Flags::of(&pod, "other").get("kinds"), Some("Pod"));
    }
}
