//! Drives one [`Engine`]: watch events go in, and requests leave through the writer. Both programs
//! run this code. They differ only in the engine's role.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use mimeo_engine::{
    Action, Answer, Engine, FailedCopy, GrantUpdate, Job, Notice, Request, Task, Verb, clock::Tick,
    copy::Why,
};
use mimeo_model::{names, outcome::Outcome};
use tokio::{
    sync::{SemaphorePermit, watch},
    time::{sleep, timeout},
};
use tracing::{debug, info, warn};

use crate::{
    call::{CallError, CallResult},
    handle::Handle,
    writer::{KINDS_CONFIG_MAP, Writer},
};

/// How often the engine of a standby forgets state that has ended.
const REST: Duration = Duration::from_mins(1);

/// Carries out the engine's actions while `active` is true. A standby only takes in events. Runs
/// until dropped.
pub async fn drive(handle: Handle, writer: Writer, mut active: watch::Receiver<bool>) {
    loop {
        match timeout(REST, active.wait_for(|active| *active)).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) => return,
            Err(_) => {
                handle.look(Engine::rest);
                continue;
            }
        }
        let woken = handle.woken();
        let permit = writer.permit().await;
        if !*active.borrow() {
            continue;
        }
        let (action, pause, notices) = handle.look(|engine| {
            let action = engine.next_action();
            let pause = pause_until(engine.wake_at(), engine);
            (action, pause, engine.notices())
        });
        tell(&handle, &notices);
        let Some(action) = action else {
            // A plan can end a wait, for example of a pod request, without any write.
            handle.tell_of_change();
            // Jobs need permits, too. So the loop keeps none while there is no work.
            drop(permit);
            tokio::select! {
                () = woken => {}
                () = sleep(pause) => {}
                _ = active.wait_for(|active| !*active) => {}
            }
            continue;
        };
        let (handle, writer) = (handle.clone(), writer.clone());
        match action {
            Action::Request(request) => {
                tokio::spawn(async move {
                    let began = Instant::now();
                    let outcome = writer.carry_out(&request, permit).await;
                    note(&request, &outcome);
                    handle.measure(&request, &outcome, began.elapsed());
                    let notices = handle.with(|engine| {
                        engine.outcome(&request, outcome);
                        engine.notices()
                    });
                    tell(&handle, &notices);
                });
            }
            Action::Job(job) => {
                drop(permit);
                tokio::spawn(async move { run(&handle, &writer, &job).await });
            }
        }
    }
}

/// Returns after `pause` or, if there is a change before, after `pace` more. While copies are written
/// there are thousands of changes, and `pace` combines them.
async fn next_within(changes: &mut watch::Receiver<()>, pause: Duration, pace: Duration) {
    if timeout(pause, changes.changed()).await.is_ok() {
        sleep(pace).await;
    }
}

/// Returns the time until `due`. Without `due` it is an hour: only a change brings new work.
fn pause_until(due: Option<Tick>, engine: &Engine) -> Duration {
    due.map_or(Duration::from_hours(1), |due| {
        due.saturating_sub(engine.now())
    })
}

/// Logs one line for each change. Reads and dry runs change nothing.
fn note(request: &Request, outcome: &Outcome) {
    let Some(why) = request.why else {
        return;
    };
    let (namespace, name) = (&request.namespace, &request.name);
    let kind = &request.resource.gvk.kind;
    let message = match (request.verb, outcome) {
        (Verb::Apply(_), Outcome::Object(_)) if why == Why::Resync => {
            return debug!(%kind, %namespace, %name, "copy verified");
        }
        (Verb::Create | Verb::Apply(_) | Verb::Take(..), Outcome::Object(_)) => "copy written",
        (Verb::Claim(..), Outcome::Object(_)) => "copy claimed",
        (Verb::Delete(..), Outcome::Object(_) | Outcome::Absent) => "copy deleted",
        (verb, _) => {
            return debug!(%kind, %namespace, %name, ?verb, ?outcome, "request not carried out");
        }
    };
    let rule = request.rule.as_ref().map(ToString::to_string);
    let rule = rule.unwrap_or_default();
    info!(rule, %kind, %namespace, %name, reason = ?why, "{message}");
}

/// Logs what users must know, and measures the rest.
fn tell(handle: &Handle, notices: &[Notice]) {
    let mut held = 0;
    for notice in notices {
        match notice {
            Notice::Failed(FailedCopy {
                rule,
                wanted,
                kind,
                namespace,
                name,
                failure,
            }) => {
                let rule = rule.as_ref().map(ToString::to_string).unwrap_or_default();
                warn!(rule, %kind, %namespace, %name, reason = %failure.reason, error = %failure.message, "copy not {}", if *wanted { "written" } else { "deleted" });
            }
            Notice::CopyLag { kind, lag } => handle.copy_lagged(*kind, *lag),
            Notice::NamespaceLag(lag) => handle.namespace_lagged(*lag),
            Notice::Held {
                rule,
                copies,
                nonce,
            } => {
                held += 1;
                if held <= AT_ONCE {
                    warn!(
                        %rule,
                        copies,
                        nonce,
                        "deletion held: the rule is gone, and not known to have been deleted; to \
                         delete its copies annotate the ConfigMap {KINDS_CONFIG_MAP} with \
                         {}=<nonce>",
                        names::CONFIRM_DELETION,
                    );
                }
            }
        }
    }
    if held > AT_ONCE {
        let more = held - AT_ONCE;
        warn!(
            more,
            "deletions held of more rules that are gone; kubectl mimeo held lists them"
        );
    }
}

/// The largest number of held deletions that are logged at once. Any user can mark objects with
/// rules which never existed.
const AT_ONCE: usize = 20;

/// Carries out a job once. The engine decides if and when a failed job is retried.
async fn run(handle: &Handle, writer: &Writer, job: &Job) {
    let mut turn = None;
    let answer = match carry_out(handle, writer, &job.task, &mut turn).await {
        Ok(answer) => answer,
        Err(CallError::Conflict) => Answer::Changed,
        // The status of each rule that needs a kind says that the kind isn't served.
        Err(CallError::NotFound) if job.task.asks() => {
            debug!(job = %job.task, "job not done: the kind isn't served");
            Answer::Failed
        }
        Err(error) => {
            warn!(job = %job.task, %error, "job not done; it is retried");
            Answer::Failed
        }
    };
    handle.with(|engine| engine.answered(job, answer));
    drop(turn);
}

/// A source may be as large as an object can be, and the engine decides only after the read if the
/// content is held. So such reads take turns: `turn` holds the place until the engine has decided.
async fn carry_out<'a>(
    handle: &'a Handle,
    writer: &Writer,
    task: &Task,
    turn: &mut Option<SemaphorePermit<'a>>,
) -> CallResult<Answer> {
    let written = match task {
        Task::RecordKind(gvk) => writer.record(gvk).await,
        Task::ForgetKind(kind, places) => writer.unrecord(kind, places).await,
        Task::RecordCreated {
            namespace,
            created,
            version,
        } => writer.record_created(namespace, created, *version).await,
        Task::RemoveLabel {
            namespace,
            nonce,
            version,
            ..
        } => writer.remove_label(namespace, nonce, *version).await,
        Task::ConfirmRule(id) => return writer.read_rule(id).await.map(Answer::Presence),
        Task::ConfirmGrants(home) => return writer.read_grants(home).await.map(Answer::Grants),
        Task::ConfirmSource(source) | Task::ReadSource(source) => {
            // If the kind isn't served, the read proves nothing about the source.
            let resource = writer.discovery.find(&source.gvk).await?;
            let resource = resource.ok_or(CallError::NotFound)?;
            *turn = handle.turn_to_read().await;
            return if matches!(task, Task::ReadSource(_)) {
                writer.read(source, &resource).await.map(Answer::Object)
            } else {
                writer
                    .read_source(source, &resource)
                    .await
                    .map(Answer::Presence)
            };
        }
    };
    written.map(|()| Answer::Done)
}

/// Writes statuses when they are due, at most one at a time for each rule. Only the reconciler's
/// engine has any. Runs until dropped.
pub async fn report(handle: Handle, writer: Writer, mut active: watch::Receiver<bool>) {
    let mut changes = handle.changes();
    loop {
        if active.wait_for(|active| *active).await.is_err() {
            return;
        }
        changes.mark_unchanged();
        let updates = handle.look(|engine| engine.statuses(Timestamp::now()));
        for update in &updates {
            if let Err(error) = writer.write_status(update).await {
                warn!(rule = %update.id, %error, "status not written");
                handle.look(|engine| engine.status_failed(&update.id));
            }
        }
        // The statuses of rules are written before the statuses of grants.
        for update in handle.look(Engine::grant_statuses) {
            if let Err(error) = writer.write_grant_status(&update, Timestamp::now()).await {
                let GrantUpdate {
                    namespace, name, ..
                } = &update;
                warn!(%namespace, %name, %error, "status of a ReplicationGrant not written");
                handle.look(|engine| engine.grant_status_failed(namespace, name));
            }
        }
        let pause = handle.look(|engine| {
            let index = engine.index();
            let due = index.status_due().into_iter();
            pause_until(due.chain(index.grant_statuses_due()).min(), engine)
        });
        next_within(&mut changes, pause.max(PACE), PACE).await;
    }
}

/// The shortest time between two rounds of statuses.
const PACE: Duration = Duration::from_millis(100);

/// Writes Events when they are due, under this replica's name. Each is tried only once. Events are
/// not Mimeo's purpose, so a failed one is not worth another request to the API server. Only the
/// reconciler's engine has any. Runs until dropped.
pub async fn announce(
    handle: Handle,
    writer: Writer,
    reporter: String,
    mut active: watch::Receiver<bool>,
) {
    let mut changes = handle.changes();
    let mut trouble = None;
    loop {
        if active.wait_for(|active| *active).await.is_err() {
            return;
        }
        changes.mark_unchanged();
        let (updates, pause) = handle.look(|engine| {
            let updates = engine.event_updates();
            (updates, pause_until(engine.events_due(), engine))
        });
        for update in &updates {
            if !*active.borrow() {
                break;
            }
            let failed = writer
                .write_event(update, &reporter, Timestamp::now())
                .await
                .err();
            // The cause of one failure usually stops most Events, so the same error is logged once.
            if let Some(error) = failed.as_ref().filter(|_| failed != trouble) {
                warn!(%error, "Event not written");
            }
            trouble = failed;
        }
        // No Event is due at once.
        let pace = pause.min(Duration::from_secs(1));
        next_within(&mut changes, pause, pace).await;
    }
}

#[cfg(test)]
mod tests {
    use mimeo_engine::Settings;
    use mimeo_model::{id::RuleId, role::Role};
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::{handle::CopyMetrics, testing::Log, trace::Traces};

    fn held(number: usize) -> Notice {
        let rule = format!("ClusterReplication/rule-{number}").parse();
        let rule: RuleId = rule.expect("it is a rule");
        Notice::Held {
            rule: rule.into(),
            copies: 7,
            nonce: format!("nonce-{number}").into(),
        }
    }

    #[test]
    fn twenty_held_deletions_are_logged_at_once_and_the_rest_are_counted() {
        let engine = Engine::new(Settings::new(Role::Keeper, "cluster"));
        let counts = CopyMetrics::new(&mut Registry::default());
        let handle = Handle::new(engine, counts, Traces::off());
        for (notices, lines, more) in [(20, 20, None), (23, 21, Some("3"))] {
            let notices: Vec<Notice> = (1..=notices).map(held).collect();
            let log = Log::default();
            let recording = log.record();
            tell(&handle, &notices);
            drop(recording);
            let text = log.text();
            assert_eq!(text.lines().count(), lines, "{text}");
            assert!(text.contains("copies=7 nonce=\"nonce-20\""), "{text}");
            assert!(!text.contains("nonce-21"), "{text}");
            let counted = text.lines().find_map(|line| line.split_once("more="));
            assert_eq!(counted.map(|(_, more)| more), more, "{text}");
        }
    }
}
