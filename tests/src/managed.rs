//! Who owns what in a Secret, as the API server keeps book of it in `managedFields`, and people who
//! meddle with that.

use anyhow::Result;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::scenario::merge;

/// In order of their names: the server's is that of seconds in which they wrote.
pub fn managers(copy: &Secret) -> Vec<String> {
    let text = |entry: &ManagedFieldsEntry| {
        format!(
            "{}/{}",
            entry.manager.as_deref().unwrap_or_default(),
            entry.operation.as_deref().unwrap_or_default()
        )
    };
    let mut managers: Vec<String> = copy
        .metadata
        .managed_fields
        .iter()
        .flatten()
        .map(text)
        .collect();
    managers.sort();
    managers
}

/// Whether Mimeo's manager owns something in it.
pub fn ours(copy: &Secret) -> bool {
    managers(copy)
        .iter()
        .any(|manager| manager == "mimeo/Apply")
}

/// Its keys, in order.
pub fn keys(copy: &Secret) -> Vec<&str> {
    copy.data
        .iter()
        .flatten()
        .map(|(key, _)| key.as_str())
        .collect()
}

/// Writes under another manager's name, by server-side apply or not.
pub async fn write_as(
    secrets: &Api<Secret>,
    name: &str,
    manager: &str,
    apply: bool,
    mut object: Value,
) -> Result<Secret> {
    let params = PatchParams {
        field_manager: Some(manager.into()),
        force: apply,
        ..PatchParams::default()
    };
    if apply {
        object["apiVersion"] = json!("v1");
        object["kind"] = json!("Secret");
        return Ok(secrets.patch(name, &params, &Patch::Apply(object)).await?);
    }
    Ok(secrets.patch(name, &params, &Patch::Merge(object)).await?)
}

/// Makes it nobody's.
pub async fn clear(secrets: &Api<Secret>, name: &str) -> Result<Secret> {
    merge(secrets, name, json!({"metadata": {"managedFields": [{}]}})).await
}
