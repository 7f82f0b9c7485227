//! Checks whether Mimeo's CRDs lack a field that this program needs. The result is logged once and
//! is a readiness check. A rollout without new CRDs therefore stops, and the former program keeps
//! running.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use futures::future::join_all;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use mimeo_api::crds;
use mimeo_model::{
    definition::lacks,
    known::{Decoded, Known},
};
use tracing::{error, info};

use crate::{
    readiness::Check,
    watch::{Event, WatchSpec, Watcher, watch},
};

/// Watches Mimeo's CRDs until dropped. The check holds while no CRD lacks a field. A CRD that is
/// missing altogether passes: its absence is reported by the code that needs the kind.
pub async fn follow(watcher: Watcher, check: Check) {
    let names: Vec<String> = crds()
        .into_iter()
        .filter_map(|crd| crd.metadata.name)
        .collect();
    let lacking: Mutex<BTreeMap<&str, Vec<String>>> = Mutex::default();
    let tell = |name, found: Option<Vec<String>>| {
        let mut lacking = lacking.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lacking.get(name).map(|known| known.join(", "));
        let now = found.or_else(|| lacking.remove(name)).unwrap_or_default();
        let fields = now.join(", ");
        lacking.insert(name, now);
        match known {
            Some(known) if known == fields => {}
            _ if !fields.is_empty() => error!(
                definition = name,
                lacks = fields,
                "a definition is older than this program: the API server drops or refuses these fields until you run kubectl apply -k manifests/crds"
            ),
            Some(_) => info!(
                definition = name,
                "the definition has all that this program needs"
            ),
            None => {}
        }
        check.set(lacking.len() == names.len() && lacking.values().all(Vec::is_empty));
    };
    let watches = names.iter().map(|name| {
        let spec = WatchSpec {
            path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions".into(),
            metadata_only: false,
            label_selector: None,
            name: Some(name.clone()),
            what: format!("definition {name}"),
        };
        let mut seen = false;
        watch::<CustomResourceDefinition>(watcher.clone(), spec, move |event| match event {
            Event::Listing => seen = false,
            Event::Shown(Decoded::Whole(crd)) => {
                seen = true;
                tell(name, Some(lacks(&crd)));
            }
            Event::Known(Known::Listed(_)) if seen => {}
            // An unreadable CRD must not block readiness either; its watch reports the reason. The
            // last result stays valid until there is a new one.
            Event::Shown(Decoded::Part(_)) | Event::Deleted(_) | Event::Known(_) => {
                tell(name, None);
            }
        })
    });
    join_all(watches).await;
}
