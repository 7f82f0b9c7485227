//! `/validate/sources`: says what hangs by a source to whoever deletes it, and refuses nothing.
//!
//! Fails open, within a second. The API server asks about the deletion of sources alone: their names are kept registered here.

use std::time::Duration;

use mimeo_core::{
    registration::{Registration, SOURCES},
    review::{Operation, Request, Verdict},
    rule::Rule,
};
use mimeo_runtime::driver::Handle;
use serde_json::Value;
use tokio::{sync::watch, time::sleep};

use crate::{
    hooks::App,
    register::{Kept, Wanted},
};

/// Most rules that are told one by one.
const RULES: usize = 3;
/// Between two looks at what the sources are: of tenants' rules, and of what else changes, thousands come at a time.
const PAUSE: Duration = Duration::from_secs(1);

pub(crate) fn decide(app: &App, request: &Request) -> Verdict {
    let name = request.old_object.as_ref().and_then(|old| old.pointer("/metadata/name")).and_then(Value::as_str);
    let (Some(name), Some(namespace), Operation::Delete) = (name, &request.namespace, request.operation) else {
        return Verdict::ALLOW;
    };
    let (kind, group_kind) = (&request.kind.kind, request.kind.group_kind());
    let warnings = app.handle.look(|engine, _| {
        let mut fed = engine.feeds(&group_kind, namespace, name);
        fed.retain(|(_, copies)| *copies > 0);
        let mut warnings: Vec<String> = fed.iter().take(RULES).map(|fed| warning(kind, fed)).collect();
        if let Some(more) = fed.len().checked_sub(RULES).filter(|more| *more > 0) {
            warnings.push(format!("Mimeo: so it is with the copies of {more} more rules"));
        }
        // Whose and where they are, whoever may delete a source need not know.
        let tenants = engine.feeds_tenants(&group_kind, namespace, name);
        if tenants > 0 {
            let copies = if tenants == 1 { "1 copy" } else { &format!("{tenants} copies") };
            warnings
                .push(format!("Mimeo: this {kind} feeds {copies} of Replications, deleted after it unless retained"));
        }
        warnings
    });
    Verdict::Allow { warnings }
}

fn warning(kind: &str, (rule, copies): &(&Rule, usize)) -> String {
    format!("Mimeo: this {kind} feeds {}", rule.bereft(*copies))
}

/// Keeps the names of the sources registered. Runs until dropped.
pub(crate) async fn keep_registered(
    handle: Handle,
    kept: Kept,
    mut registration: watch::Receiver<Option<Registration>>,
) {
    let mut changes = handle.changes();
    loop {
        changes.mark_unchanged();
        let current = registration.borrow_and_update().clone();
        // Half a picture is none: what a replica that has just begun doesn't know yet the others have registered.
        let sources = handle.look(|engine, _| engine.sources(SOURCES));
        if let Some((registration, sources)) = current.zip(sources) {
            kept.want(Wanted::Sources(registration, sources));
        }
        tokio::select! {
            changed = registration.changed() => if changed.is_err() { return },
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
                sleep(PAUSE).await;
            }
        }
    }
}
