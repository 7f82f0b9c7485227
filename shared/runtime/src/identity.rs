//! The identity of this process: its user at the API server, its namespace, its name among the
//! replicas, and its cluster.

use std::time::Duration;

use clap::Args;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::Client;
use serde_json::json;
use tokio::time::sleep;
use tracing::warn;

use crate::{
    access::review,
    backoff::Backoff,
    call::{CallResult, DEADLINE},
    named,
};

const SERVICE_ACCOUNT_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
const DEFAULT_NAMESPACE: &str = "mimeo-system";

/// Flags that set the identity of this process.
#[derive(Args)]
#[command(next_help_heading = "Identity")]
pub struct IdentityArgs {
    /// Namespace of Mimeo's own objects (Leases, Secret). Default: the Pod's namespace in a
    /// cluster, else mimeo-system
    #[arg(long, env = "MIMEO_NAMESPACE", value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Name of this replica, unique among the replicas. Default: the host's name and the process id
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub replica_name: Option<String>,
}

/// The identity of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The namespace of Mimeo's own objects.
    pub namespace: String,
    /// Name of this replica. It is valid as a part of an object's name.
    pub replica: String,
    /// Uid of the namespace `kube-system`, which identifies the cluster.
    pub cluster: String,
}

impl IdentityArgs {
    /// Asks the API server for the cluster until there is an answer. The rest comes from the flags
    /// and the environment.
    pub async fn resolve(&self, client: &Client) -> Identity {
        let cluster = until_answered(async || {
            let read = named::read_metadata(client, "/api/v1/namespaces", "kube-system");
            Ok(read.await?.and_then(|namespace| namespace.uid))
        })
        .await;
        Identity {
            namespace: self.namespace(),
            replica: self.replica(),
            cluster,
        }
    }

    /// Mimeo's own namespace: the flag, else the Pod's namespace, else `mimeo-system`.
    pub fn namespace(&self) -> String {
        self.namespace
            .clone()
            .or_else(|| read(SERVICE_ACCOUNT_NAMESPACE))
            .filter(|namespace| !namespace.is_empty())
            .unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned())
    }

    /// This replica's name: the flag, else the host's name and the process id. The name is made
    /// valid for an object.
    pub fn replica(&self) -> String {
        let given = self.replica_name.clone().filter(|name| !name.is_empty());
        // The kernel's own answer, so that no crate is needed. The file exists in images built from
        // scratch, too.
        let host = || read("/proc/sys/kernel/hostname").unwrap_or_else(|| "localhost".to_owned());
        object_name(&given.unwrap_or_else(|| format!("{}-{}", host(), std::process::id())))
    }
}

/// The user name of this process at the API server, as admission reviews show it. Retries until
/// there is an answer.
pub async fn username(client: &Client) -> String {
    until_answered(async || {
        let review: SelfSubjectReview = review(client, json!({}), DEADLINE).await?;
        Ok(review.status.and_then(|status| status.user_info?.username))
    })
    .await
}

async fn until_answered(ask: impl AsyncFn() -> CallResult<Option<String>>) -> String {
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));
    loop {
        match ask().await {
            Ok(Some(answer)) => return answer,
            Ok(None) => warn!("the API server doesn't say who this is, or which cluster, retrying"),
            Err(error) => warn!(%error, "the API server can't be asked yet, retrying"),
        }
        sleep(backoff.pause()).await;
    }
}

/// The only line of a file. `None`: the file is empty or cannot be read.
fn read(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|line| !line.is_empty())
}

/// Lower-cases the text and replaces characters that an object's name must not have. Keeps the last
/// 63 characters, because names differ at their end.
fn object_name(text: &str) -> String {
    let fit = text.to_ascii_lowercase();
    let fit = fit.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let tail = &fit[fit.len().saturating_sub(63)..];
    tail.trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Script, Server};

    #[tokio::test]
    async fn an_api_server_is_asked_until_it_answers() {
        let review =
            |user| Script::json(201, &json!({"metadata": {}, "status": {"userInfo": user}}));
        let namespace = |metadata| {
            Script::json(
                200,
                &json!({"kind": "PartialObjectMetadata", "metadata": metadata}),
            )
        };
        let me = || review(json!({"username": "me"}));
        let uid = || namespace(json!({"name": "kube-system", "uid": "u"}));
        let away = Script::json(503, &json!({"kind": "Status", "code": 503}));
        let server = Server::start([
            away,
            review(json!({})),
            me(),
            namespace(json!({"name": "kube-system"})),
            uid(),
        ])
        .await;
        let (client, deadline) = (server.client(), Duration::from_secs(20));
        assert_eq!(
            tokio::time::timeout(deadline, username(&client))
                .await
                .as_deref(),
            Ok("me")
        );
        let args = IdentityArgs {
            namespace: Some("n".into()),
            replica_name: Some("r".into()),
        };
        let found = tokio::time::timeout(deadline, args.resolve(&client)).await;
        assert_eq!(
            found,
            Ok(Identity {
                namespace: "n".into(),
                replica: "r".into(),
                cluster: "u".into()
            })
        );
        assert_eq!(server.requests().len(), 5);
    }

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
        let args = IdentityArgs {
            namespace: Some("elsewhere".into()),
            replica_name: Some("one".into()),
        };
        assert_eq!(
            (args.namespace(), args.replica()),
            ("elsewhere".into(), "one".into())
        );
        let unnamed = IdentityArgs {
            namespace: None,
            replica_name: None,
        }
        .replica();
        assert!(
            unnamed.ends_with(&std::process::id().to_string()),
            "{unnamed}"
        );
    }
}
