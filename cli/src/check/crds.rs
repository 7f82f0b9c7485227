//! Mimeo's CRDs: whether they are served, and have all fields that this program knows.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use mimeo_api::{crds, names::VERSION};
use mimeo_model::{definition, kind::GroupVersionKind};
use mimeo_runtime::discovery::Discovery;

use super::{Item, Verdict};
use crate::{
    connect::Connected,
    read::{Part, ReadError, Reader},
};

const INSTALL: &str =
    "helm upgrade, or kubectl apply --server-side -k manifests/crds of this version of Mimeo";
/// Most fields that a message names.
const NAMED: usize = 3;

/// One item for each CRD. The second value is false if rules are known not to be served.
pub(super) async fn check(connected: &Connected, reader: &Reader) -> (Vec<Item>, bool) {
    let discovery = Discovery::new(connected.client.clone());
    let mut items = Vec::new();
    for crd in crds() {
        items.push(one(&crd, reader, &discovery).await);
    }
    let served = items.iter().all(|item| item.result != Verdict::Failed);
    (items, served)
}

async fn one(own: &CustomResourceDefinition, reader: &Reader, discovery: &Discovery) -> Item {
    let name = own.metadata.name.as_deref().unwrap_or_default();
    let check = format!("CRD {name}");
    let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
    match reader.get(&path, Part::Whole).await {
        Ok(Some(served)) => match serde_json::from_value(served) {
            Ok(served) => judge(check, &served),
            Err(_) => Item::new(check, Verdict::Unknown, "the CRD can't be decoded"),
        },
        Ok(None) => absent(check),
        Err(error @ ReadError::Forbidden(_)) => {
            let names = &own.spec.names;
            let gvk = GroupVersionKind {
                group: own.spec.group.as_str().into(),
                version: VERSION.into(),
                kind: names.kind.as_str().into(),
            };
            match discovery.find(&gvk).await {
                Ok(None) => absent(check),
                Ok(Some(_)) => Item::new(
                    check,
                    Verdict::Unknown,
                    format!(
                        "the API server serves the kind. Whether the CRD has all fields is \
                         unknown: {error}"
                    ),
                ),
                Err(error) => Item::new(check, Verdict::Unknown, error.to_string()),
            }
        }
        Err(error) => Item::unread(check, "the CRD", &error),
    }
}

fn absent(check: String) -> Item {
    Item::new(check, Verdict::Failed, "the CRD is not installed").fix(INSTALL)
}

/// Compares a stored CRD with the one that this program was built for.
fn judge(check: String, served: &CustomResourceDefinition) -> Item {
    let conditions = served.status.iter().flat_map(|status| &status.conditions);
    let mut conditions = conditions.flatten();
    let established = |type_: &str, status: &str| type_ == "Established" && status == "True";
    if !conditions.any(|condition| established(&condition.type_, &condition.status)) {
        let message = "the API server does not serve the CRD yet";
        let name = served.metadata.name.as_deref().unwrap_or_default();
        let fix = format!("kubectl describe crd {name}   shows its conditions");
        return Item::new(check, Verdict::Failed, message).fix(fix);
    }
    let missing = definition::lacks(served);
    if missing.is_empty() {
        return Item::new(check, Verdict::Ok, format!("{VERSION} is served"));
    }
    let more = missing.len().saturating_sub(NAMED);
    let named: Vec<String> = missing.into_iter().take(NAMED).collect();
    let more = match more {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let message = format!(
        "the CRD is older than this program: these fields are missing: {}{more}",
        named.join(", ")
    );
    Item::new(check, Verdict::Failed, message).fix(INSTALL)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json, to_value};

    use super::*;

    /// The item of the first CRD after a change, with the condition Established.
    fn judged(established: &str, change: impl Fn(&mut Value)) -> Item {
        let mut crd = to_value(crds().remove(0)).expect("JSON");
        crd["status"] = json!({"conditions": [
            {"type": "NamesAccepted", "status": "True"},
            {"type": "Established", "status": established},
        ]});
        change(&mut crd);
        judge("CRD".into(), &from_value(crd).expect("a CRD"))
    }

    #[test]
    fn a_crd_must_be_served_and_have_all_fields() {
        assert_eq!(judged("True", |_| {}).result, Verdict::Ok);
        assert_eq!(judged("False", |_| {}).result, Verdict::Failed);
        let old = judged("True", |crd| {
            crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] =
                json!({"type": "object"});
        });
        assert_eq!(old.result, Verdict::Failed);
        assert!(old.message.contains("missing: spec."), "{}", old.message);
        assert!(old.message.ends_with("more"), "{}", old.message);
    }
}
