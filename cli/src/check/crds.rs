//! Mimeo's CRDs: whether they are served, and have all fields that this program knows.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use mimeo_api::{crds, names::VERSION};
use mimeo_model::{definition, kind::GroupVersionKind};
use mimeo_runtime::discovery::Discovery;

use super::{Item, Verdict};
use crate::{
    connect::Connected,
    read::{Part, ReadError, Reader},
    state::Fix,
};

fn install() -> Fix {
    // Another field manager, such as Helm, may own the fields of an older CRD.
    Fix::run("kubectl apply --server-side --force-conflicts -k manifests/crds")
        .note("from a checkout of this version of Mimeo; or upgrade the Helm release to it")
}

/// One item for each CRD. The second value is false if rules are known not to be served.
pub(super) async fn check(connected: &Connected, reader: &Reader) -> (Vec<Item>, bool) {
    let discovery = Discovery::new(connected.client.clone());
    let mut items = Vec::new();
    let mut all_served = true;
    for crd in crds() {
        let (item, served) = one(&crd, reader, &discovery).await;
        items.push(item);
        all_served &= served;
    }
    (items, all_served)
}

/// The item of a CRD. The second value is false if its kind is known not to be served.
async fn one(
    own: &CustomResourceDefinition,
    reader: &Reader,
    discovery: &Discovery,
) -> (Item, bool) {
    let name = own.metadata.name.as_deref().unwrap_or_default();
    let check = format!("CRD {name}");
    let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
    let item = match reader.get(&path, Part::Whole).await {
        Ok(Some(served)) => match serde_json::from_value(served) {
            Ok(served) => return judge(check, &served),
            Err(_) => Item::new(check, Verdict::Unknown, "the CRD can't be decoded"),
        },
        Ok(None) => return (absent(check), false),
        Err(error @ ReadError::Forbidden(_)) => {
            let names = &own.spec.names;
            let gvk = GroupVersionKind {
                group: own.spec.group.as_str().into(),
                version: VERSION.into(),
                kind: names.kind.as_str().into(),
            };
            match discovery.find(&gvk).await {
                Ok(None) => return (absent(check), false),
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
    };
    (item, true)
}

fn absent(check: String) -> Item {
    Item::new(check, Verdict::Failed, "the CRD is not installed").fix(install())
}

/// Compares a stored CRD with the one that this program was built for. The second value is true if
/// the API server serves its kind.
fn judge(check: String, served: &CustomResourceDefinition) -> (Item, bool) {
    let conditions = served.status.iter().flat_map(|status| &status.conditions);
    let mut conditions = conditions.flatten();
    let established = |type_: &str, status: &str| type_ == "Established" && status == "True";
    if !conditions.any(|condition| established(&condition.type_, &condition.status)) {
        let message = "the API server does not serve the CRD yet";
        let name = served.metadata.name.as_deref().unwrap_or_default();
        let fix = Fix::run(format!("kubectl describe crd {name}")).note("shows its conditions");
        return (Item::new(check, Verdict::Failed, message).fix(fix), false);
    }
    if !definition::is_older(served) {
        let message = format!("{VERSION} is served");
        return (Item::new(check, Verdict::Ok, message), true);
    }
    let message = "the CRD is older than this program: it lacks fields of this version";
    let item = Item::new(check, Verdict::Failed, message).fix(install());
    (item, true)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json, to_value};

    use super::*;

    /// The item of the first CRD after a change, with the condition Established.
    fn judged(established: &str, change: impl Fn(&mut Value)) -> (Item, bool) {
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
        let (item, served) = judged("True", |_| {});
        assert_eq!((item.result, served), (Verdict::Ok, true));
        let (item, served) = judged("False", |_| {});
        assert_eq!((item.result, served), (Verdict::Failed, false));
        let (old, served) = judged("True", |crd| {
            crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] =
                json!({"type": "object"});
        });
        assert_eq!((old.result, served), (Verdict::Failed, true));
        assert!(old.message.contains("lacks fields"), "{}", old.message);
    }
}
