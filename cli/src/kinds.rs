//! Finds any kind that the API server serves, by the names that kubectl accepts.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroupList, APIResource, APIResourceList};
use mimeo_model::kind::{GroupVersionKind, Resource};
use mimeo_runtime::call::encode;
use serde::de::DeserializeOwned;

use crate::read::{AT_ONCE, Part, ReadError, Reader};

/// Finds the kind that a user means: its name, its plural or its short name, with or without the
/// group. Kinds of the core group come first.
pub(crate) async fn find(reader: &Reader, text: &str) -> Result<Resource> {
    let wanted = text.to_lowercase();
    let (name, group) = match wanted.split_once('.') {
        Some((name, group)) => (name, Some(group)),
        None => (wanted.as_str(), None),
    };
    if group.is_none()
        && let Some(found) = of_version(reader, "", "v1", name).await?
    {
        return Ok(found);
    }
    let groups: APIGroupList = read(reader, "/apis").await?;
    let versions = groups.groups.into_iter().filter_map(|one| {
        let version = one.preferred_version?.version;
        let asked = group.is_none_or(|group| group == one.name);
        asked.then_some((one.name, version))
    });
    let answers: Vec<Option<Resource>> = stream::iter(versions)
        .map(|(group, version)| async move { of_version(reader, &group, &version, name).await })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    let found = answers.into_iter().flatten();
    let found: BTreeMap<String, Resource> = found
        .map(|resource| (resource.to_string(), resource))
        .collect();
    let names: BTreeSet<&str> = found.keys().map(String::as_str).collect();
    if names.len() > 1 {
        let names: Vec<&str> = names.into_iter().collect();
        bail!(
            "{text:?} stands for several kinds; write one of {}",
            names.join(", ")
        );
    }
    match found.into_values().next() {
        Some(resource) => Ok(resource),
        None => bail!(
            "the API server serves no kind {text:?}; kubectl api-resources --namespaced=true   lists all kinds"
        ),
    }
}

async fn of_version(
    reader: &Reader,
    group: &str,
    version: &str,
    name: &str,
) -> Result<Option<Resource>> {
    let path = if group.is_empty() {
        format!("/api/{}", encode(version))
    } else {
        format!("/apis/{}/{}", encode(group), encode(version))
    };
    let list: APIResourceList = match read(reader, &path).await {
        Ok(list) => list,
        // A group whose own server is down must not hide the other groups.
        Err(_) if !group.is_empty() => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(choose(&list.resources, group, version, name))
}

/// Finds the name among the kinds of one group and version.
fn choose(served: &[APIResource], group: &str, version: &str, name: &str) -> Option<Resource> {
    let means = |one: &&APIResource| {
        let short = one.short_names.iter().flatten();
        let mut names = short.chain([&one.name, &one.singular_name]);
        // A name with a slash is a subresource.
        !one.name.contains('/') && (names.any(|one| one == name) || one.kind.to_lowercase() == name)
    };
    let found = served.iter().find(means)?;
    Some(Resource {
        gvk: GroupVersionKind {
            group: group.into(),
            version: version.into(),
            kind: found.kind.as_str().into(),
        },
        plural: found.name.as_str().into(),
        namespaced: found.namespaced,
    })
}

async fn read<T: DeserializeOwned>(reader: &Reader, path: &str) -> Result<T> {
    let answer = match reader.get(path, Part::Whole).await {
        Ok(Some(answer)) => serde_json::from_value(answer).ok(),
        Ok(None) | Err(ReadError::NotServed) => None,
        Err(error) => bail!("can't find out which kinds the API server serves: {error}"),
    };
    match answer {
        Some(answer) => Ok(answer),
        None => bail!("can't find out which kinds the API server serves: no list at {path}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_has_the_names_that_kubectl_accepts() {
        let kind = |name: &str| APIResource {
            name: name.into(),
            singular_name: "configmap".into(),
            kind: "ConfigMap".into(),
            namespaced: true,
            short_names: Some(vec!["cm".into()]),
            ..APIResource::default()
        };
        let served = [kind("configmaps/status"), kind("configmaps")];
        for name in ["configmap", "configmaps", "cm"] {
            let found = choose(&served, "", "v1", name).map(|one| one.to_string());
            assert_eq!(found.as_deref(), Some("configmaps"), "{name}");
        }
        assert_eq!(choose(&served, "", "v1", "secret"), None);
        assert_eq!(choose(&served[..1], "", "v1", "configmaps/status"), None);
    }
}
