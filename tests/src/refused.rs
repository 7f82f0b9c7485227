//! Tables of what is refused: each case is one change away from what is good, and has the words of
//! its refusal.

use anyhow::{Context, Result, bail};
use http::Request;
use kube::Client;
use serde_json::{Value, json};

use crate::{ControlPlane, create_namespace, install_crd};

/// What it is; the fields of the good spec that are different, by name or by JSON pointer (`null`
/// takes one away); and words of the refusal, its field first.
pub type Case = (&'static str, Value, &'static [&'static str]);

/// The good spec with these fields instead.
///
/// # Errors
/// Where the change names what the good spec hasn't.
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

/// What is wrong with an answer that should be a refusal with these words.
pub fn misjudged<T>(what: &str, answer: kube::Result<T>, words: &[&str]) -> Option<String> {
    // To the API server that is a bad request, or an invalid patch.
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

/// Of these cases those that the definitions let pass where no webhook runs: what is wrong with
/// them a schema can't say, or not within what it may cost. `good` is the good spec of that kind.
///
/// # Errors
/// Where something else than a refusal happens.
pub async fn passes_schemas(
    kind: &str,
    plural: &str,
    good: &Value,
    cases: impl IntoIterator<Item = Case>,
) -> Result<Vec<&'static str>> {
    let control_plane = ControlPlane::builder()
        .controller_manager(false)
        .start()
        .await?;
    let client = control_plane.client().await?;
    for crd in mimeo_api::crds() {
        install_crd(&client, &crd).await?;
    }
    create_namespace(&client, "team", &[]).await?;
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
