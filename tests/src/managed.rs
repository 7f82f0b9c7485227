//! Owners of a Secret's fields as recorded in `managedFields`, and writes by other field managers.

use anyhow::Result;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::scenario::merge;

/// The field managers of a Secret, sorted by name. The API server's own order depends on the second
/// of their writes.
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

/// True if Mimeo's field manager owns a field of the Secret.
pub fn ours(copy: &Secret) -> bool {
    managers(copy)
        .iter()
        .any(|manager| manager == "mimeo/Apply")
}

/// The keys of the Secret's data, in order.
pub fn keys(copy: &Secret) -> Vec<&str> {
    copy.data
        .iter()
        .flatten()
        .map(|(key, _)| key.as_str())
        .collect()
}

/// Writes with another field manager, by server-side apply or by a merge patch.
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

/// Removes all field managers from the Secret.
pub async fn clear(secrets: &Api<Secret>, name: &str) -> Result<Secret> {
    merge(secrets, name, json!({"metadata": {"managedFields": [{}]}})).await
}
