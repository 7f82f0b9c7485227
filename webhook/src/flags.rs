//! Flags of `mimeo-webhook`, and the values that several flags give together.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context, ensure};
use clap::{
    Args, Parser,
    builder::{PossibleValuesParser, TypedValueParser as _},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use mimeo_api::FailurePolicy;
use mimeo_model::{registration::Endpoint, review::GroupVersionResource};
use mimeo_runtime::{
    certificates::{CertificateArgs, ServingNames},
    duration,
    https::DrainArgs,
    identity::IdentityArgs,
    program::ProgramArgs,
};

use crate::jobs::Job;

/// Keeps copies of Kubernetes objects where they are needed: the part inside the API request
#[derive(Parser)]
#[command(name = "mimeo-webhook", version, disable_help_subcommand = true)]
pub(crate) struct Flags {
    #[command(subcommand)]
    pub(crate) job: Option<Job>,
    #[command(flatten)]
    pub(crate) program: ProgramArgs,
    #[command(flatten)]
    pub(crate) pod: PodArgs,
    #[command(flatten)]
    pub(crate) endpoint: EndpointArgs,
    #[command(flatten)]
    pub(crate) hooks: HookArgs,
    #[command(flatten)]
    pub(crate) certificate: CertificateArgs,
    #[command(flatten)]
    pub(crate) drain: DrainArgs,
}

/// In which Pod this process is.
#[derive(Args)]
#[command(next_help_heading = "Identity")]
pub(crate) struct PodArgs {
    /// Uid of the Pod named by --replica-name, in Mimeo's namespace. Kubernetes then deletes the
    /// replica's Lease together with the Pod. Default: the Lease of a killed replica stays
    #[arg(long, env = "POD_UID", value_name = "UID", requires = "replica_name")]
    pod_uid: Option<String>,
}

impl PodArgs {
    /// An owner reference to this Pod. Returns `None` unless both the Pod's name and its uid are
    /// known.
    pub(crate) fn owner(&self, identity: &IdentityArgs) -> Option<OwnerReference> {
        let given = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
        let (name, uid) = given(&identity.replica_name).zip(given(&self.pod_uid))?;
        Some(OwnerReference {
            api_version: "v1".into(),
            kind: "Pod".into(),
            name,
            uid,
            ..OwnerReference::default()
        })
    }
}

/// Where the webhook listens, and where API servers find it.
#[derive(Args)]
#[command(next_help_heading = "Endpoint")]
pub(crate) struct EndpointArgs {
    /// Address on which the webhook serves TLS. `[::]` means all addresses, of IPv4 too. Port 0
    /// takes a free port and logs it
    #[arg(
        long,
        env = "MIMEO_LISTEN",
        value_name = "ADDRESS",
        default_value = "[::]:8443"
    )]
    pub(crate) listen: SocketAddr,
    /// Service through which API servers reach the webhook. Default: mimeo-webhook in Mimeo's
    /// namespace
    #[arg(
        long,
        env = "MIMEO_SERVICE",
        value_name = "NAMESPACE/NAME",
        conflicts_with = "url"
    )]
    service: Option<String>,
    /// Port of that Service
    #[arg(
        long,
        env = "MIMEO_SERVICE_PORT",
        value_name = "PORT",
        default_value_t = 443
    )]
    service_port: u16,
    /// URL at which API servers reach a webhook outside the cluster
    #[arg(long, env = "MIMEO_URL", value_name = "https://HOST:PORT")]
    url: Option<String>,
    /// PEM file with the CA of the API servers' client certificates; read again when it changes.
    /// Default: no client certificate is required, so any client that reaches the address can send
    /// reviews
    #[arg(long, env = "MIMEO_CLIENT_CA_FILE", value_name = "FILE")]
    pub(crate) client_ca_file: Option<PathBuf>,
}

impl EndpointArgs {
    /// The endpoint to register, and the names that the serving certificate must have.
    pub(crate) fn resolve(&self, namespace: &str) -> anyhow::Result<(Endpoint, ServingNames)> {
        if let Some(url) = &self.url {
            return by_url(url);
        }
        let (namespace, name) = match &self.service {
            None => (namespace, "mimeo-webhook"),
            Some(service) => service
                .split_once('/')
                .filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty())
                .context("--service: expected namespace/name")?,
        };
        let endpoint = Endpoint::Service {
            namespace: namespace.into(),
            name: name.into(),
            port: self.service_port,
        };
        Ok((endpoint, ServingNames::for_service(namespace, name)))
    }
}

fn by_url(url: &str) -> anyhow::Result<(Endpoint, ServingNames)> {
    let parsed: http::Uri = url.parse().context("--url")?;
    ensure!(
        parsed.scheme_str() == Some("https"),
        "--url: API servers ask webhooks by https only"
    );
    ensure!(
        parsed.path_and_query().is_none_or(|path| path == "/"),
        "--url: expected no path"
    );
    let host = parsed.host().filter(|host| !host.is_empty());
    let host = host.context("--url: expected a host")?;
    Ok((
        Endpoint::Url(url.trim_end_matches('/').to_owned()),
        ServingNames::new([host]),
    ))
}

/// What the hooks do.
#[derive(Args)]
#[command(next_help_heading = "Hooks")]
pub(crate) struct HookArgs {
    /// New namespaces while no webhook answers: create them and fill them later (ignore), or refuse
    /// them, so that pods never start without their copies (fail)
    #[arg(
        long,
        env = "MIMEO_NAMESPACES_FAILURE_POLICY",
        value_name = "POLICY",
        ignore_case = true,
        default_value = "ignore",
        value_parser = PossibleValuesParser::new(["ignore", "fail"]).map(|policy| {
            if policy.eq_ignore_ascii_case("fail") {
                FailurePolicy::Fail
            } else {
                FailurePolicy::Ignore
            }
        })
    )]
    pub(crate) namespaces_failure_policy: FailurePolicy,
    /// Longest time that pods of a new or newly labelled namespace wait for copies of rules with
    /// `podGate: BestEffort`; the reconciler must have the same value (as in 10s)
    #[arg(long, env = "MIMEO_POD_GATE_BUDGET", value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    pub(crate) pod_gate_budget: Duration,
    /// Longest time that one request is held before the webhook answers 429 and the client retries
    /// (as in 1s)
    #[arg(long, env = "MIMEO_POD_GATE_WAIT", value_name = "DURATION", default_value = "1s", value_parser = duration::parse)]
    pub(crate) pod_gate_wait: Duration,
    /// Most requests that this replica holds at once; it answers others with 429 at once
    #[arg(
        long,
        env = "MIMEO_POD_GATE_MAX_HELD",
        value_name = "REQUESTS",
        default_value_t = 64
    )]
    pub(crate) pod_gate_max_held: usize,
    /// Resources besides pods that wait for a new namespace's copies, as version/resource or
    /// group/version/resource, plural
    #[arg(
        long,
        env = "MIMEO_POD_GATE_RESOURCES",
        value_name = "RESOURCES",
        value_delimiter = ',',
        value_parser = resource
    )]
    pub(crate) pod_gate_resources: Vec<GroupVersionResource>,
    /// Users of Mimeo's other programs. Like this program's own user they may change the pending
    /// label and guarded copies. Default: the service account mimeo-reconciler in Mimeo's namespace
    #[arg(long, env = "MIMEO_USERS", value_name = "USERS", value_delimiter = ',')]
    mimeo_users: Vec<String>,
}

/// Parses a resource, as in `batch/v1/jobs`.
fn resource(text: &str) -> Result<GroupVersionResource, &'static str> {
    let parts: Vec<&str> = text.trim().split('/').collect();
    match parts[..] {
        _ if parts.contains(&"") => Err("a part is empty"),
        [version, resource] => Ok(GroupVersionResource::new("", version, resource)),
        [group, version, resource] => Ok(GroupVersionResource::new(group, version, resource)),
        _ => Err("expected version/resource or group/version/resource"),
    }
}

impl HookArgs {
    /// The users under which Mimeo's programs send requests. The list is sorted and free of
    /// duplicates, so every replica registers the same one.
    pub(crate) fn mimeo_users(&self, namespace: &str, own: String) -> Vec<String> {
        let mut users = self.mimeo_users.clone();
        if users.is_empty() {
            users.push(format!(
                "system:serviceaccount:{namespace}:mimeo-reconciler"
            ));
        }
        users.push(own);
        users.sort_unstable();
        users.dedup();
        users
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use super::*;

    fn flags(args: &[&str]) -> Flags {
        Flags::try_parse_from(["mimeo-webhook"].iter().chain(args)).unwrap()
    }

    #[test]
    fn an_endpoint_is_a_service_or_a_url() {
        let endpoint = |args: &[&str]| flags(args).endpoint.resolve("mimeo-system");
        let service = |namespace: &str, name: &str, port| Endpoint::Service {
            namespace: namespace.into(),
            name: name.into(),
            port,
        };
        assert_eq!(
            endpoint(&[]).unwrap().0,
            service("mimeo-system", "mimeo-webhook", 443)
        );
        assert_eq!(
            endpoint(&["--service", "a/b", "--service-port", "9"])
                .unwrap()
                .0,
            service("a", "b", 9)
        );
        let (url, names) = endpoint(&["--url", "https://[::1]:8443/"]).unwrap();
        assert_eq!(
            (url, names),
            (
                Endpoint::Url("https://[::1]:8443".into()),
                ServingNames::new(["::1"])
            )
        );
        for bad in [
            ["--service", "a"],
            ["--url", "http://a"],
            ["--url", "https://a/b"],
            ["--url", "https://"],
        ] {
            assert!(endpoint(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_owner_is_a_pod_of_known_name_and_uid() {
        let owner = |args: &[&str]| {
            let flags = flags(args);
            flags
                .pod
                .owner(&flags.program.identity)
                .map(|owner| [owner.api_version, owner.kind, owner.name, owner.uid].join(" "))
        };
        assert_eq!(
            owner(&["--replica-name", "Pod.1", "--pod-uid", "u"]).unwrap(),
            "v1 Pod Pod.1 u",
            "to the letter"
        );
        for none in [
            &["--replica-name", "pod"][..],
            &["--replica-name", "pod", "--pod-uid", ""],
        ] {
            assert_eq!(owner(none), None, "{none:?}");
        }
        assert!(
            Flags::try_parse_from(["mimeo-webhook", "--pod-uid", "u"]).is_err(),
            "the uid of which one?"
        );
    }

    #[test]
    fn resources_and_users_are_lists() {
        let hooks = flags(&[
            "--pod-gate-resources",
            "v1/pods,batch/v1/jobs",
            "--mimeo-users",
            "b,a",
        ])
        .hooks;
        let resources = [
            GroupVersionResource::new("", "v1", "pods"),
            GroupVersionResource::new("batch", "v1", "jobs"),
        ];
        assert_eq!(hooks.pod_gate_resources, resources);
        assert_eq!(hooks.mimeo_users("ns", "me".into()), ["a", "b", "me"]);
        for bad in ["pods", "v1/", "/v1/pods", "a/b/c/d"] {
            let args = ["mimeo-webhook", "--pod-gate-resources", bad];
            assert!(Flags::try_parse_from(args).is_err(), "{bad}");
        }
        assert_eq!(
            flags(&[]).hooks.mimeo_users("ns", "me".into()),
            ["me", "system:serviceaccount:ns:mimeo-reconciler"]
        );
        let strict = flags(&["--namespaces-failure-policy", "Fail"]).hooks;
        assert_eq!(strict.namespaces_failure_policy, FailurePolicy::Fail);
    }
}
