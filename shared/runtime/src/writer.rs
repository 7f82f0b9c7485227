//! Carries out the engine's decisions: requests that concern one copy each, and the engine's other
//! jobs (`jobs`).
//!
//! This file makes no decisions and retries nothing. Requests contain Secrets, and answers may.
//! Only the metadata of an answer is read, and of an error only the parts that `mimeo-model` keeps.

use std::{sync::Arc, time::Duration};

use http::Method;
use kube::{Client, api::ObjectMeta};
use mimeo_engine::{self, Verb};
use mimeo_model::{
    meta::Uid,
    names,
    outcome::{FailureReason, Outcome},
    ownership,
    render::{Precondition, Rendering},
};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    call::{self, CallError, CallResult, METADATA, Message},
    discovery::{Discovery, resource_path},
    limiter::{Limiter, Permit, Verdict},
    pieces::Pieces,
    watch::Meta,
};

mod jobs;

pub use jobs::{KINDS_CONFIG_MAP, Kinds, parse_kinds};

/// Sends requests to one API server. Cheap to clone.
#[derive(Clone)]
pub struct Writer {
    /// Finds the resources of kinds.
    pub discovery: Arc<Discovery>,
    client: Client,
    limiter: Limiter,
    deadline: Duration,
    /// Mimeo's own namespace.
    pub(crate) namespace: Arc<str>,
}

impl Writer {
    /// The innermost layer of `client` must be `pieces::unpack`: without it copies
    /// would be sent empty, and refused. Each request ends after `deadline`. `namespace` is Mimeo's
    /// own namespace.
    pub fn new(client: Client, limiter: Limiter, deadline: Duration, namespace: &str) -> Self {
        Self {
            discovery: Arc::new(Discovery::new(client.clone())),
            client,
            limiter,
            deadline,
            namespace: namespace.into(),
        }
    }

    /// Waits until another request may be sent.
    pub(crate) async fn permit(&self) -> Permit {
        self.limiter.acquire().await
    }

    /// Carries out one request of the engine. The permit's limiter learns the result.
    pub async fn carry_out(&self, request: &mimeo_engine::Request, permit: Permit) -> Outcome {
        let (mut outcome, mut verdict) = self.exchange(request, message(request)).await;
        let kind = request.resource.gvk.group_kind();
        // The metadata that was read may be large. It is written under the same permit. Otherwise
        // each request that waits for a second permit would keep such metadata.
        if let (Verb::Claim(uid, version), Outcome::Object(meta)) = (request.verb, &outcome)
            && let Some(managers) = ownership::claim(meta, &kind, request.exclusive)
        {
            drop(outcome);
            let message = claim(request, uid, version, &managers);
            (outcome, verdict) = self.exchange(request, message).await;
        }
        permit.done(verdict);
        outcome
    }

    /// Sends one message and interprets its answer.
    async fn exchange(
        &self,
        request: &mimeo_engine::Request,
        message: Message,
    ) -> (Outcome, Verdict) {
        let (answer, verdict) = self.measure(message).await;
        (outcome(request, answer), verdict)
    }

    /// Sends one request. Also returns the answer's verdict on the server's load.
    async fn measure(&self, message: Message) -> (CallResult<call::Answer>, Verdict) {
        let started = Instant::now();
        let answer = call::call(&self.client, message, self.deadline, call::LARGEST_ANSWER).await;
        let verdict = verdict(&answer, started.elapsed());
        (answer, verdict)
    }
}

/// The path of the request's object.
fn path(request: &mimeo_engine::Request) -> String {
    resource_path(
        &request.resource,
        Some(&request.namespace),
        Some(&request.name),
    )
}

/// The HTTP request. The engine gives each write a rendering: the API server refuses an empty body.
fn message(request: &mimeo_engine::Request) -> Message {
    let path = path(request);
    let rendering = request.rendering.as_ref();
    let body = |precondition| rendering.map(|rendering| rendering.body(precondition));
    let (pieces, how) = match request.verb {
        Verb::Create => (body(Precondition::Absent), "&force=true"),
        Verb::Apply(uid) => (body(Precondition::Is(uid)), "&force=true"),
        Verb::Take(uid, version) => (body(Precondition::Unchanged(uid, version)), "&force=true"),
        Verb::Learn(uid) => (body(Precondition::Is(uid)), "&force=true&dryRun=All"),
        Verb::Compare(uid, version) => {
            let unmarked = |rendering: &Rendering| rendering.unmarked(&request.name, uid, version);
            (rendering.map(unmarked), "&dryRun=All")
        }
        // A read without a resourceVersion is answered from storage and not from a cache. A claim's
        // entries of `managedFields` may be large. They are read only now, and are not kept.
        Verb::Look | Verb::Claim(..) => return call::read(&path, METADATA),
        Verb::Delete(uid, version) => {
            let options = delete_options(uid, version);
            return call::write(Method::DELETE, &path, METADATA, call::JSON, options);
        }
    };
    let pieces = Pieces(pieces.unwrap_or_default().into());
    let uri = format!("{path}?fieldManager={}{how}", names::MANAGER);
    let message = call::write(Method::PATCH, &uri, METADATA, call::APPLY, "");
    message.map(|mut message| {
        message.extensions_mut().insert(pieces);
        message
    })
}

/// Writes only `managedFields`, which an apply cannot write.
fn claim(request: &mimeo_engine::Request, uid: Uid, version: u64, managers: &str) -> Message {
    let uri = format!("{}?fieldManager={}", path(request), names::MANAGER);
    let metadata =
        format!(r#""uid":"{uid}","resourceVersion":"{version}","managedFields":{managers}"#);
    let body = format!(r#"{{"metadata":{{{metadata}}}}}"#);
    call::write(Method::PATCH, &uri, METADATA, call::MERGE, body)
}

fn delete_options(uid: Uid, version: u64) -> String {
    let options = json!({
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": uid.to_string(), "resourceVersion": version.to_string()},
        "propagationPolicy": "Background",
    });
    options.to_string()
}

/// The outcome of an answer for the copy.
fn outcome(request: &mimeo_engine::Request, answer: CallResult<call::Answer>) -> Outcome {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            let reason = match error {
                CallError::Late => FailureReason::Timeout,
                _ => FailureReason::ClusterUnreachable,
            };
            return Outcome::of_silence(reason, error.to_string());
        }
    };
    if !answer.code.is_success() {
        let (code, status) = (answer.code.as_u16(), answer.status());
        return Outcome::of_error(
            code,
            &status,
            answer.retry_after,
            &request.resource,
            &request.name,
        );
    }
    match answer.parse() {
        Some(Meta { metadata })
            if matches!(request.verb, Verb::Delete(..)) && !outlives_deletion(&metadata) =>
        {
            Outcome::Absent
        }
        Some(Meta { metadata }) => Outcome::Object(Box::new(metadata)),
        None => Outcome::of_silence(
            FailureReason::ClusterUnreachable,
            "the API server's answer can't be decoded",
        ),
    }
}

/// Whether the object still exists after a delete, because a finalizer or a grace period holds it.
/// For some kinds the API server answers with the object's last state, and for the others with a
/// Status, which has none of these fields.
fn outlives_deletion(meta: &ObjectMeta) -> bool {
    let finalizers = meta.finalizers.iter().flatten().count();
    meta.deletion_timestamp.is_some()
        && (finalizers > 0 || meta.deletion_grace_period_seconds > Some(0))
}

/// The answer's verdict on the server's load.
fn verdict(answer: &CallResult<call::Answer>, latency: Duration) -> Verdict {
    let Ok(answer) = answer else {
        return Verdict::Overload { retry_after: None };
    };
    let code = answer.code.as_u16();
    if !matches!(code, 429 | 500..) {
        return Verdict::Ok(latency);
    }
    // The error comes from an admission webhook or a schema. It concerns one kind or one namespace,
    // and must not slow down the others.
    let message = answer.message();
    if message.contains("webhook \"") || message.contains("failed to create typed patch object") {
        return Verdict::Unrelated;
    }
    Verdict::Overload {
        retry_after: answer.retry_after,
    }
}

#[cfg(test)]
mod tests;
