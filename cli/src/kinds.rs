//! Finds kinds by the names that kubectl accepts, and names them as kubectl accepts them.

use std::collections::BTreeSet;

use anyhow::{Result, anyhow, bail};
use mimeo_model::kind::{GroupVersionKind, Resource};
use serde_json::Value;

use crate::{
    output::quoted,
    picture::Picture,
    read::{Part, Reader, text},
};

/// Finds the kind that a user means, by its name, its plural or its short name, with or without the
/// group. No resource: rules name the kind, and the API server doesn't serve it.
pub(crate) async fn find(
    reader: &Reader,
    picture: &Picture,
    text: &str,
) -> Result<(GroupVersionKind, Option<Resource>)> {
    let mut used: BTreeSet<&GroupVersionKind> = picture.kinds.keys().collect();
    used.extend(picture.valid_rules().flat_map(|rule| &rule.kinds));
    let found = candidates(reader, text).await?;
    let name = text.to_lowercase();
    let named =
        |gvk: &&&GroupVersionKind| gvk.kind.to_lowercase() == name || argument_kind(gvk) == name;
    if let (true, Some(gvk)) = (found.is_empty(), used.iter().find(named)) {
        return Ok(((*gvk).clone(), None));
    }
    let is_used = |one: &&Resource| {
        let kind = one.gvk.group_kind();
        used.iter().any(|gvk| gvk.group_kind() == kind)
    };
    let resource = match found.iter().find(is_used) {
        Some(used) => used.clone(),
        None => one(found, text)?,
    };
    Ok((resource.gvk.clone(), Some(resource)))
}

/// Finds a kind that the API server serves.
pub(crate) async fn served(reader: &Reader, text: &str) -> Result<Resource> {
    one(candidates(reader, text).await?, text)
}

/// A kind as an argument of kubectl, with its group: `networkpolicy.networking.k8s.io`.
pub(crate) fn argument_kind(gvk: &GroupVersionKind) -> String {
    gvk.group_kind().to_string().to_lowercase()
}

/// An object as an argument of kubectl.
pub(crate) fn argument(gvk: &GroupVersionKind, name: &str) -> String {
    quoted(&format!("{}/{name}", argument_kind(gvk)))
}

fn one(mut found: Vec<Resource>, text: &str) -> Result<Resource> {
    if found.len() > 1 {
        let names: Vec<String> = found.iter().map(ToString::to_string).collect();
        bail!(
            "{text:?} stands for several kinds; write one of {}",
            names.join(", ")
        );
    }
    found.pop().ok_or_else(|| {
        anyhow!(
            "the API server serves no kind {text:?}; kubectl api-resources --namespaced=true   \
             lists all kinds"
        )
    })
}

/// The kinds that a text can mean. A kind of the core group is the only one.
async fn candidates(reader: &Reader, text: &str) -> Result<Vec<Resource>> {
    let wanted = text.to_lowercase();
    let mut found = Vec::new();
    for path in ["/api", "/apis"] {
        let groups = match reader.get(path, Part::Discovery).await {
            Ok(groups) => groups.unwrap_or_default(),
            Err(error) => bail!("can't find out which kinds the API server serves: {error}"),
        };
        found.extend(array(&groups["items"]).filter_map(|group| choose(group, &wanted)));
        if !found.is_empty() {
            break;
        }
    }
    Ok(found)
}

/// Finds a kind in one group: in the first version that has it, which the API server prefers.
fn choose(group: &Value, wanted: &str) -> Option<Resource> {
    let name = text(group, "/metadata/name");
    let wanted = match wanted.split_once('.') {
        Some((wanted, asked)) if asked == name => wanted,
        Some(_) => return None,
        None => wanted,
    };
    let means = |one: &&Value| {
        text(one, "/resource") == wanted
            || text(one, "/singularResource") == wanted
            || text(one, "/responseKind/kind").eq_ignore_ascii_case(wanted)
            || array(&one["shortNames"]).any(|short| short == wanted)
    };
    array(&group["versions"]).find_map(|version| {
        let found = array(&version["resources"]).find(means)?;
        Some(Resource {
            gvk: GroupVersionKind {
                group: name.into(),
                version: text(version, "/version").into(),
                kind: text(found, "/responseKind/kind").into(),
            },
            plural: text(found, "/resource").into(),
            namespaced: text(found, "/scope") == "Namespaced",
        })
    })
}

fn array(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_kind_has_the_names_that_kubectl_accepts() {
        let kind = json!({
            "resource": "networkpolicies", "singularResource": "networkpolicy", "scope": "Namespaced",
            "responseKind": {"kind": "NetworkPolicy"}, "shortNames": ["netpol"],
        });
        let versions = json!([{"version": "v2"}, {"version": "v1", "resources": [kind]}]);
        let group = json!({"metadata": {"name": "networking.k8s.io"}, "versions": versions});
        for name in [
            "networkpolicy",
            "networkpolicies",
            "netpol",
            "netpol.networking.k8s.io",
        ] {
            let found = choose(&group, name).expect(name);
            assert_eq!(found.to_string(), "networkpolicies.networking.k8s.io");
            assert_eq!(&*found.gvk.version, "v1");
        }
        assert_eq!(choose(&group, "secret"), None);
        assert_eq!(choose(&group, "netpol.example.com"), None);
    }
}
