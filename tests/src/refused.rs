//! Tables of refused specs. Each case differs from a valid spec by one change and lists the words
//! of its refusal.

use anyhow::{Context, Result, bail};
use http::Request;
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::{ControlPlane, Shared, create_namespace, install_crd};

/// A case: its description, the changed fields of the valid spec, and the words of the refusal,
/// with the field first. The changed fields are named or given by a JSON pointer; `null` removes a
/// field.
pub type Case = (&'static str, Value, &'static [&'static str]);

/// The valid spec with these changes.
///
/// # Errors
/// The change names a field that the valid spec does not have.
pub fn changed(good: &Value, change: &Value) -> Result<Value> {
    let mut spec = good.clone();
    for (pointer, value) in change.as_object().into_iter().flatten() {
        let (parent, field) = pointer.rsplit_once('/').unwrap_or(("", pointer));
        let parent = spec
            .pointer_mut(parent)
            .with_context(|| format!("{pointer}: no such field"))?;
        match (parent, value) {
            (Value::Array(items), value) => items[field.parse::<usize>()?] = value.clone(),
            (Value::Object(fields), Value::Null) => drop(fields.remove(field)),
            (Value::Object(fields), value) => drop(fields.insert(field.to_owned(), value.clone())),
            _ => bail!("{pointer}: neither a list nor an object"),
        }
    }
    Ok(spec)
}

/// Describes the difference between an answer and the expected refusal. Returns `None` if they
/// match.
pub fn misjudged<T>(what: &str, answer: kube::Result<T>, words: &[&str]) -> Option<String> {
    // The API server answers an unknown field with 400, as a bad request or an invalid patch.
    let unknown = words.iter().any(|word| word.starts_with("unknown field"));
    match answer {
        Ok(_) => Some(format!("{what}: accepted")),
        Err(kube::Error::Api(status)) if status.code == 422 || unknown && status.code == 400 => {
            let missing: Vec<_> = words
                .iter()
                .filter(|word| !status.message.contains(**word))
                .collect();
            (!missing.is_empty()).then(|| format!("{what}: no {missing:?} in: {}", status.message))
        }
        Err(error) => Some(format!("{what}: {error}")),
    }
}

/// Returns the cases that the CRDs accept where no webhook runs. A schema cannot express their
/// mistake, or not within its cost limit. `good` is a valid spec of that kind.
///
/// # Errors
/// A request fails for a reason other than a refusal.
pub async fn passes_schemas(
    kind: &str,
    plural: &str,
    good: &Value,
    cases: impl IntoIterator<Item = Case>,
) -> Result<Vec<&'static str>> {
    static WITHOUT_MIMEO: Shared =
        Shared::new(|| ControlPlane::builder().controller_manager(false));
    static INSTALLED: OnceCell<()> = OnceCell::const_new();
    let client = WITHOUT_MIMEO.get().await?.client().await?;
    let install = async || {
        for crd in mimeo_api::crds() {
            install_crd(&client, &crd).await?;
        }
        create_namespace(&client, "team", &[]).await.map(drop)
    };
    INSTALLED.get_or_try_init(install).await?;
    let scope = if kind == "ClusterReplication" {
        ""
    } else {
        "namespaces/team/"
    };
    let path =
        format!("/apis/mimeo.dev/v1alpha1/{scope}{plural}?dryRun=All&fieldValidation=Strict");
    let accepted = |spec: Value| accepts(&client, &path, kind, spec);
    if !accepted(good.clone()).await? {
        bail!("the good one is refused");
    }
    let mut passed = Vec::new();
    for (what, change, _) in cases {
        if accepted(changed(good, &change)?).await? {
            passed.push(what);
        }
    }
    Ok(passed)
}

async fn accepts(client: &Client, path: &str, kind: &str, spec: Value) -> Result<bool> {
    let object = json!({"apiVersion": "mimeo.dev/v1alpha1", "kind": kind, "metadata": {"name": "tried"}, "spec": spec});
    let request = Request::post(path).header("content-type", "application/json");
    match client
        .request::<Value>(request.body(object.to_string().into_bytes())?)
        .await
    {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if matches!(status.code, 400 | 422) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
