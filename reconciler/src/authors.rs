//! Asks the API server, again and again, whether the authors of rules may still do what their rules do.
//!
//! At once where a rule waits for it, soon after roles or bindings change, and on a period besides: an authorizer other than
//! RBAC tells nobody when it changes its mind. In one round nobody is asked about twice for the same right. What isn't
//! answered is asked again; until then the last answer holds.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, stream};
use kube::Client;
use mimeo_core::{
    authority::{Finding, Right, find},
    engine::Inquiry,
    outcome::Unreadable,
    review::User,
    rule::RuleKind,
};
use mimeo_runtime::{
    access::is_allowed,
    backoff::Backoff,
    client::{Clients, Fault, status},
    driver::Handle,
    limiter::{Limiter, Verdict},
    watch::{Event, Meta, WatchSpec, Watcher, watch},
};
use tokio::{
    sync::{Notify, Semaphore, watch::Receiver},
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{debug, warn};

/// Questions at once, of the requests that the limiter grants.
const AT_ONCE: usize = 8;
const DEADLINE: Duration = Duration::from_secs(10);
/// After a change of roles or bindings: until every API server has seen it, and others that come with it.
const SETTLING: Duration = Duration::from_secs(1);
/// Between rounds for such changes, and so often the time that one took: however often they change, that is no load.
const PAUSE: Duration = Duration::from_secs(10);
const PAUSES: u32 = 10;
/// Between questions about those who were denied: an authorizer other than RBAC doesn't tell when it changes its mind.
const DENIED: Duration = Duration::from_mins(1);

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const KINDS: [&str; 4] = ["roles", "clusterroles", "rolebindings", "clusterrolebindings"];
/// How long the first questions wait until these were shown.
const PATIENCE: Duration = Duration::from_secs(1);

/// Tenants' rules that are asked about together.
const TENANTS: usize = 64;

fn is_platforms(inquiry: &Inquiry) -> bool {
    inquiry.rule.kind == RuleKind::ClusterReplication
}

/// What an author may do, as far as it was answered.
type Answers = BTreeMap<(Arc<User>, Right), Result<bool, Unreadable>>;

pub(crate) struct Authors {
    handle: Handle,
    clients: Clients,
    limiter: Limiter,
    period: Duration,
    changed: Arc<Notify>,
}

impl Authors {
    pub(crate) fn new(handle: Handle, clients: &Clients, limiter: Limiter, period: Duration) -> Self {
        Self { handle, clients: clients.clone(), limiter, period, changed: Arc::default() }
    }

    /// Asks while `active` says so. Runs until dropped.
    pub(crate) async fn ask(self, mut active: Receiver<bool>) {
        let mut watches = JoinSet::new();
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));
        let mut due = Instant::now() + jittered(self.period);
        let mut not_before = Instant::now();
        let mut denied_due = Instant::now() + DENIED;
        loop {
            if active.wait_for(|active| *active).await.is_err() {
                return;
            }
            let wanted = self.handle.look(|engine, _| engine.authored());
            self.keep_watching(&mut watches, wanted).await;
            let started = Instant::now();
            let (all, denied) = (started >= due, started >= denied_due);
            let (inquiries, version) = self.handle.look(|engine, _| {
                let inquiries = if all { engine.inquiries() } else { engine.open_inquiries(denied) };
                (inquiries, engine.inquiry_version())
            });
            let answered = self.round(inquiries).await;
            let now = Instant::now();
            if all || denied {
                denied_due = now + DENIED.max((now - started) * PAUSES);
            }
            if all {
                due = now + jittered(self.period);
                not_before = now + PAUSE.max((now - started) * PAUSES);
            }
            let any_denied = self.handle.look(|engine, _| engine.any_denied());
            let again = if answered {
                backoff.reset();
                if any_denied { due.min(denied_due) } else { due }
            } else {
                let again = now + backoff.pause();
                // An answer that was missed in a round of all isn't waited for by any rule, but late.
                due = if all { again } else { due };
                again.min(due)
            };
            tokio::select! {
                () = sleep_until(again) => {}
                () = self.news(version) => {}
                () = self.changed.notified() => {
                    sleep(SETTLING).await;
                    due = due.min(not_before.max(Instant::now()));
                }
            }
        }
    }

    /// Returns when there is more to ask than in that version.
    async fn news(&self, version: u64) {
        let mut changes = self.handle.changes();
        while self.handle.look(|engine, _| engine.inquiry_version()) == version {
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
            // Other things change far more often.
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Asks all that has to be known, the platform's rules before tenants', of which there may be any number. Returns whether
    /// everything was answered.
    async fn round(&self, inquiries: Vec<Inquiry>) -> bool {
        let (mut platform, tenants): (Vec<_>, Vec<_>) = inquiries.into_iter().partition(is_platforms);
        let mut answers = Answers::new();
        let mut all = self.some(&platform, &mut answers).await;
        for some in tenants.chunks(TENANTS) {
            all &= self.some(some, &mut answers).await;
            // Nor do those of the platform's wait that have come meanwhile.
            let open = self.handle.look(|engine, _| engine.open_inquiries(false));
            let new: Vec<Inquiry> =
                open.into_iter().filter(|one| is_platforms(one) && !platform.contains(one)).collect();
            all &= self.some(&new, &mut answers).await;
            platform.extend(new);
        }
        all
    }

    /// Asks what has to be known for some rules, and tells the engine.
    async fn some(&self, inquiries: &[Inquiry], answers: &mut Answers) -> bool {
        loop {
            let open: BTreeSet<(Arc<User>, Right)> = inquiries.iter().flat_map(|one| open(one, answers)).collect();
            if open.is_empty() {
                break;
            }
            let asked = stream::iter(open).map(|(author, right)| self.is_held(author, right));
            answers.extend(asked.buffer_unordered(AT_ONCE).collect::<Vec<_>>().await);
        }
        let mut all = true;
        for inquiry in inquiries {
            all &= self.tell(inquiry, answers);
        }
        all
    }

    async fn is_held(&self, author: Arc<User>, right: Right) -> ((Arc<User>, Right), Result<bool, Unreadable>) {
        let permit = self.limiter.acquire().await;
        let started = Instant::now();
        let client: &Client = &self.clients.requests;
        let answer = is_allowed(client, &author, &right, started + DEADLINE).await;
        let overload = answer.as_ref().is_err_and(|error| status(error).is_none_or(|code| code == 429 || code >= 500));
        let verdict = if overload { Verdict::Overload { retry_after: None } } else { Verdict::Ok(started.elapsed()) };
        permit.done(verdict);
        let answer = answer.map_err(|error| {
            debug!(user = author.name, %right, error = %Fault(&error), "cannot ask what an author may do");
            if status(&error) == Some(403) { Unreadable::Forbidden { verb: "create" } } else { Unreadable::Unavailable }
        });
        ((author, right), answer)
    }

    /// Tells the engine of one rule. Returns whether everything about it was answered.
    fn tell(&self, inquiry: &Inquiry, answers: &Answers) -> bool {
        let answer = |right: &Right| answers.get(&(inquiry.author.clone(), right.clone())).copied();
        let finding = find(&inquiry.needs, |right| answer(right)?.ok());
        let verdict = match &finding {
            Finding::Held => Ok(&[][..]),
            Finding::Lacks(missing) => Ok(&missing[..]),
            Finding::Ask(open) => {
                Err(open.iter().find_map(|right| answer(right)?.err()).unwrap_or(Unreadable::Unavailable))
            }
        };
        if let Err(why) = verdict {
            warn!(rule = %inquiry.rule, user = inquiry.author.name, reason = %why, "cannot ask what a rule's author may do");
        }
        self.handle.with(|engine, now| engine.answered(inquiry, verdict, now));
        verdict.is_ok()
    }

    /// Watches roles and bindings, by their metadata, while there are authors whom they may concern. What is asked afterwards is
    /// asked of what they showed, or of something newer.
    async fn keep_watching(&self, watches: &mut JoinSet<()>, wanted: bool) {
        if !wanted {
            *watches = JoinSet::new();
        } else if watches.is_empty() {
            let shown = Arc::new(Semaphore::new(0));
            for plural in KINDS {
                watches.spawn(follow(self.clients.watcher.clone(), plural, self.changed.clone(), shown.clone()));
            }
            // Whoever can't see them asks all the same.
            let all = async {
                for _ in KINDS {
                    if let Ok(one) = shown.acquire().await {
                        one.forget();
                    }
                }
            };
            let _ = timeout(PATIENCE, all).await;
        }
    }
}

/// What must be asked for an inquiry that isn't answered in part already. Where a question failed the rest is of no use.
fn open(inquiry: &Inquiry, answers: &Answers) -> Vec<(Arc<User>, Right)> {
    let key = |right: &Right| (inquiry.author.clone(), right.clone());
    let failed = |right: &&Right| answers.get(&key(right)).is_some_and(Result::is_err);
    match find(&inquiry.needs, |right| answers.get(&key(right))?.ok()) {
        Finding::Ask(open) if !open.iter().any(failed) => open.into_iter().map(key).collect(),
        _ => vec![],
    }
}

/// Says when one of these changes, and once that they were shown, or can't be.
async fn follow(watcher: Watcher, plural: &'static str, changed: Arc<Notify>, shown: Arc<Semaphore>) {
    let path = format!("{RBAC}/{plural}");
    let spec = WatchSpec { path, metadata_only: true, label_selector: None, name: None, what: plural.into() };
    let (mut listing, mut first) = (true, true);
    watch::<Meta>(watcher, spec, |event| match event {
        Event::Listing => listing = true,
        Event::Listed { .. } | Event::NotServed | Event::Unreadable(_) if first => {
            (listing, first) = (false, false);
            shown.add_permits(1);
        }
        Event::Listed { .. } => {
            listing = false;
            // What happened since the last watch broke.
            changed.notify_one();
        }
        Event::Applied(_) | Event::Undecodable(_) | Event::Deleted(_) if !listing => changed.notify_one(),
        Event::Applied(_) | Event::Undecodable(_) | Event::Deleted(_) | Event::NotServed | Event::Unreadable(_) => {}
    })
    .await;
}

/// Shortened by up to a tenth at random: what started together doesn't ask together for ever.
fn jittered(period: Duration) -> Duration {
    let random = u32::try_from(RandomState::new().hash_one(()) % 100).unwrap_or_default();
    period.mul_f64(1.0 - f64::from(random) / 1_000.0)
}
