//! Checks whether Mimeo's CRDs lack a field that this program needs. The result is logged once and
//! is a readiness check. A rollout without new CRDs therefore stops, and the former program keeps
//! running.

use std::collections::BTreeMap;

use futures::future::join_all;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use mimeo_api::crds;
use mimeo_model::{
    definition::lacks,
    known::{Decoded, Known},
};
use parking_lot::Mutex;
use tracing::{error, info};

use crate::{follow::follow, readiness::Check, watch::Watcher};

/// Watches Mimeo's CRDs until dropped. The check holds while no CRD lacks a field. A CRD that is
/// missing altogether passes: its absence is reported by the code that needs the kind.
pub async fn check(watcher: Watcher, check: Check) {
    let names: Vec<String> = crds()
        .into_iter()
        .filter_map(|crd| crd.metadata.name)
        .collect();
    // The fields that each CRD lacks.
    let lacking: Mutex<BTreeMap<&str, String>> = Mutex::default();
    let tell = |name, found: Option<String>| {
        let mut lacking = lacking.lock();
        let before = lacking.get(name).cloned();
        let fields = found.or_else(|| before.clone()).unwrap_or_default();
        match &before {
            Some(before) if *before == fields => {}
            _ if !fields.is_empty() => error!(
                definition = name,
                lacks = fields,
                "a definition is older than this program: the API server drops or refuses these \
                 fields until you run kubectl apply -k manifests/crds"
            ),
            Some(_) => info!(
                definition = name,
                "the definition has all that this program needs"
            ),
            None => {}
        }
        lacking.insert(name, fields);
        check.set(lacking.len() == names.len() && lacking.values().all(String::is_empty));
    };
    let watches = names.iter().map(|name| {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let what = format!("definition {name}");
        follow::<CustomResourceDefinition>(watcher.clone(), path, name, what, move |state| {
            let lacks = match state {
                Known::Listed(Some(Decoded::Whole(crd))) => Some(lacks(&crd).join(", ")),
                // An unreadable CRD must not block readiness either; its watch reports the reason.
                // The last result stays valid until there is a new one.
                _ => None,
            };
            tell(name, lacks);
        })
    });
    join_all(watches).await;
}
