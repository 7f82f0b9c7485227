//! Checks whether Mimeo's CRDs lack a field that this program needs. The result is logged once and
//! is a readiness check. A rollout without new CRDs therefore stops, and the former program keeps
//! running. CRDs that are replaced by older ones later are not noticed before the next start.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use mimeo_api::crds;
use mimeo_model::definition::is_older;
use tokio::time::sleep;
use tracing::{error, info, warn};

use crate::{call::CallError, named, readiness::Check};

/// Time between two looks.
const PAUSE: Duration = Duration::from_secs(5);

/// Reads Mimeo's CRDs again and again until none lacks a field, and then sets the check. A CRD that
/// is missing altogether, must not be read or cannot be decoded passes: the code that needs the kind
/// reports that.
///
/// Needs the permission `get` on these CRDs.
pub async fn check(client: Client, check: Check) {
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let mut told = String::new();
    loop {
        let (mut older, mut unread) = (Vec::new(), String::new());
        for name in crds().into_iter().filter_map(|crd| crd.metadata.name) {
            match named::read::<CustomResourceDefinition>(&client, path, &name).await {
                Ok(Some(crd)) if is_older(&crd) => older.push(name),
                Ok(_) | Err(CallError::Undecodable | CallError::Denied { code: 403 }) => {}
                Err(error) => unread = error.to_string(),
            }
        }
        let older = older.join(", ");
        if older.is_empty() && unread.is_empty() {
            if !told.is_empty() {
                info!("each definition has all that this program needs");
            }
            return check.set(true);
        }
        if !older.is_empty() && older != told {
            error!(
                older,
                "CRDs are older than this program: the API server drops or refuses their new \
                 fields until you run kubectl apply -k manifests/crds"
            );
            told = older;
        } else if !unread.is_empty() && unread != told {
            warn!(
                error = unread,
                "failed to read the definitions, retrying; this program is not ready before"
            );
            told = unread;
        }
        sleep(PAUSE).await;
    }
}
