//! Who this process is: its user at the API server, its namespace, its name among the replicas.

use clap::Args;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::{Api, Client, api::PostParams};

const SERVICE_ACCOUNT_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
const DEFAULT_NAMESPACE: &str = "mimeo-system";

/// Flags that say who this process is.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Identity")]
pub struct IdentityArgs {
    /// Namespace of Mimeo's own objects (Leases, Secret). Default: the Pod's namespace in a cluster, else mimeo-system
    #[arg(long, env = "MIMEO_NAMESPACE", value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Name of this replica, unique among the replicas. Default: the host's name and the process id
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub replica_name: Option<String>,
}

/// Who this process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The user that the API server takes this process for, as it appears in admission reviews.
    pub username: String,
    /// Where Mimeo's own objects are.
    pub namespace: String,
    /// Name of this replica, fit to be part of an object's name.
    pub replica: String,
}

/// Why the process doesn't know who it is.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The API server couldn't be asked.
    #[error("failed to ask the API server who this is")]
    Review(#[source] Box<kube::Error>),
    /// The API server's answer names nobody.
    #[error("the API server's answer names no user")]
    Nobody,
}

impl IdentityArgs {
    /// Asks the API server for the user, and takes the rest from the flags and the surroundings.
    pub async fn resolve(&self, client: Client) -> Result<Identity, IdentityError> {
        Ok(Identity { username: username(client).await?, namespace: self.namespace(), replica: self.replica() })
    }

    /// Mimeo's own namespace: the flag, else the Pod's, else `mimeo-system`.
    pub fn namespace(&self) -> String {
        let mounted = || std::fs::read_to_string(SERVICE_ACCOUNT_NAMESPACE).ok().map(|text| text.trim().to_owned());
        self.namespace
            .clone()
            .or_else(mounted)
            .filter(|namespace| !namespace.is_empty())
            .unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned())
    }

    /// This replica's name: the flag, else the host's name and the process id, made fit for an object's name.
    pub fn replica(&self) -> String {
        let given = self.replica_name.clone().filter(|name| !name.is_empty());
        object_name(&given.unwrap_or_else(|| format!("{}-{}", host(), std::process::id())))
    }
}

async fn username(client: Client) -> Result<String, IdentityError> {
    let review = Api::<SelfSubjectReview>::all(client)
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await
        .map_err(|error| IdentityError::Review(Box::new(error)))?;
    review.status.and_then(|status| status.user_info).and_then(|user| user.username).ok_or(IdentityError::Nobody)
}

fn host() -> String {
    // The kernel's own answer, so that no crate is needed; images from scratch have it too.
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "localhost".to_owned())
}

/// Lower-cases and replaces what no object's name may have; keeps the last 63 characters, where the difference is.
fn object_name(text: &str) -> String {
    let fit: String = text
        .chars()
        .map(|c| c.to_ascii_lowercase())
        .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' })
        .collect();
    let tail = &fit[fit.len().saturating_sub(63)..];
    tail.trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_name_is_fit_for_an_object() {
        let cases = [
            ("webhook-6d4f-x2", "webhook-6d4f-x2".to_owned()),
            ("My_Host.local-17", "my-host-local-17".to_owned()),
            ("-ä-", String::new()),
            (&"a".repeat(70), "a".repeat(63)),
        ];
        for (text, want) in cases {
            assert_eq!(object_name(text), want, "{text:?}");
        }
    }

    #[test]
    fn flags_come_first() {
        let args = IdentityArgs { namespace: Some("elsewhere".into()), replica_name: Some("one".into()) };
        assert_eq!((args.namespace(), args.replica()), ("elsewhere".into(), "one".into()));
        let unnamed = IdentityArgs { namespace: None, replica_name: None }.replica();
        assert!(unnamed.ends_with(&std::process::id().to_string()), "{unnamed}");
    }
}
