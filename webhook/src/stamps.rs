//! `/mutate/rules`: stamps rules with their author.
//!
//! Fails closed: a rule without an author does nothing. It has no effects, so dry runs are like any other request. Whether the
//! author may do what the rule does is checked by [`rules`] afterwards, but where an author is only to be found: there nobody
//! is refused, and nobody becomes the author who may not.

use json_patch::Patch;
use mimeo_core::{
    admission::{come_again, forbid},
    names::AUTHOR,
    review::{Operation, Request, Verdict},
    stamp::{Authorship, Stamp, authorship, generated_name, put, unseal},
};
use mimeo_runtime::seal::{Key, Keyring};
use serde_json::{Value, from_value, json};
use tokio::time::Instant;
use tracing::info;

use crate::{hooks::App, rules};

pub(crate) async fn decide(app: &App, request: &Request, deadline: Instant) -> Verdict {
    let Some(object) = &request.object else { return Verdict::ALLOW };
    let Some(key) = key(app) else { return come_again("Mimeo has no key yet to seal who wrote a rule".into()) };
    let mut object = object.clone();
    let mut operations = Vec::new();
    if let Some(name) = generated_name(request) {
        operations.push(json!({"op": "add", "path": "/metadata/name", "value": name}));
        object["metadata"]["name"] = name.into();
    }
    let (stamped, warnings) = match stamp(app, &key, request, &object, deadline).await {
        Ok(found) => found,
        Err(refusal) => return refusal,
    };
    operations.extend(stamped);
    let patch: Patch = from_value(operations.into()).expect("literals of the patch's own form");
    Verdict::Patch { patch, warnings }
}

/// The key, once it was read.
pub(crate) fn key(app: &App) -> Option<std::sync::Arc<Key>> {
    match &*app.keyring.borrow() {
        Keyring::Holds(key) => Some(key.clone()),
        Keyring::Unread | Keyring::Empty => None,
    }
}

/// What gives the object the stamp that it is to have, if any, and what its writer is told.
async fn stamp(
    app: &App,
    key: &Key,
    request: &Request,
    object: &Value,
    deadline: Instant,
) -> Result<(Vec<Value>, Vec<String>), Verdict> {
    let (kind, user) = (&*request.kind.kind, &request.user);
    let old = request.old_object.as_ref().filter(|_| request.operation == Operation::Update);
    let before = old.filter(|old| key.author(kind, old).is_some()).and_then(Stamp::of);
    let too_long = || forbid(format!("user {:?} has more groups than can be noted beside a rule", user.name));
    let author = mimeo_core::stamp::author(user).ok_or_else(too_long);
    let wanted = authorship(request.operation, author.as_deref().unwrap_or_default(), old, object, before.is_some());
    if wanted == Authorship::Before {
        return Ok((put(object, before.as_ref()), vec![]));
    }
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    if wanted == Authorship::Nobody {
        info!(kind, name, by = user.name, "restored without an author");
        return Ok((unseal(), vec![unanswered(kind)]));
    }
    author?;
    let writer = key.stamp(kind, object, user);
    if wanted == Authorship::Writer {
        // None of a spec that makes no sense, which the validating hook refuses in better words.
        return Ok((put(object, writer.as_ref()), vec![]));
    }
    match rules::may(app, request, object, deadline).await {
        Ok(()) => {
            info!(kind, name, author = user.name, "author found");
            Ok((
                put(object, writer.as_ref()),
                vec![format!(
                    "Mimeo: you are the author of this {kind} from now on, and must hold the rights that it takes"
                )],
            ))
        }
        Err(Verdict::Deny { message, .. }) => {
            let fate = if before.is_some() { "keeps its author" } else { "has no known author and does nothing" };
            info!(kind, name, by = user.name, message, "author not found");
            Ok((put(object, before.as_ref()), vec![format!("Mimeo: this {kind} {fate}: {message}")]))
        }
        Err(other) => Err(other),
    }
}

/// What is said to whoever creates a rule that says who else wrote it.
fn unanswered(kind: &str) -> String {
    format!(
        "Mimeo: this {kind} says that somebody else wrote it elsewhere: it has no known author and does nothing until somebody answers \
         for it, by setting annotation {AUTHOR} to me"
    )
}
