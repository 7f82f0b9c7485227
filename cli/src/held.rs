//! `kubectl mimeo held` and `confirm RULE`: deletions that wait for a person, and their release.
//!
//! The status of a rule has the nonce that confirms its held deletion. A rule that no longer exists
//! has no status: the engine computes the nonce from the copies that are lost now. If some have
//! changed since the reconciler held them, this is not the reconciler's nonce. So `confirm` waits
//! until the reconciler takes the confirmation up, and says so if it doesn't.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use mimeo_api::ClusterReplicationStatus;
use mimeo_model::{id::RuleId, names::CONFIRM_DELETION};
use mimeo_runtime::{call::encode, writer::KINDS_CONFIG_MAP};
use serde::Serialize;
use serde_json::json;

use crate::{
    completion,
    connect::{ClusterFlags, Connected},
    names::{self, argument},
    output::{Cell, Format, print, table, tell},
    picture::{Gap, Picture, Scope, pause, unsynced},
    read::own_path,
    state::{held_deletion, is_lost},
    write::{Change, send},
};

/// How long the reconciler may take to see a confirmation and begin the deletion, or to delete the
/// next copy of a rule that is gone.
const TAKEN_UP: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub(crate) struct HeldArgs {
    /// Only this rule: NAME, or NAMESPACE/NAME for a Replication. It may be deleted already
    #[arg(value_parser = names::rule, add = ArgValueCompleter::new(completion::rules))]
    rule: Option<RuleId>,
}

#[derive(Debug, Args)]
pub(crate) struct ConfirmArgs {
    /// The rule: NAME, or NAMESPACE/NAME for a Replication. It may be deleted already
    #[arg(value_parser = names::rule, add = ArgValueCompleter::new(completion::rules))]
    rule: RuleId,
    /// The number of copies that may be deleted, for scripts. Default: ask for it
    #[arg(long, value_name = "NUMBER")]
    copies: Option<usize>,
}

/// A deletion that waits for a person.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Held {
    rule: String,
    /// True if the rule no longer exists.
    rule_deleted: bool,
    why: String,
    /// The value that confirms this deletion. It stands for exactly the copies that the reconciler
    /// holds. Copies that an existing rule lost later wait for a confirmation of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    nonce: Option<String>,
    /// The copies that the rule no longer wants.
    copies: Vec<HeldCopy>,
    /// The number of copies that the reconciler holds, if the rule's status says so.
    #[serde(skip)]
    counted: Option<usize>,
    #[serde(skip)]
    id: RuleId,
}

/// A deletion that a person has confirmed, and that Mimeo has begun.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Confirmed<'a> {
    #[serde(flatten)]
    held: &'a Held,
    /// True if the rule lost other copies later, which wait for a confirmation of their own.
    more_held: bool,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct HeldCopy {
    namespace: String,
    kind: String,
    name: String,
}

pub(crate) async fn run(args: HeldArgs, connected: &Connected, format: Format) -> Result<u8> {
    let picture = Picture::read(connected, Scope::All).await?;
    let mut held = held(&picture);
    if let Some(id) = &args.rule {
        held.retain(|held| held.id == *id);
    }
    for note in picture.unread.sentences() {
        tell(note);
    }
    let unread = !picture.unread.is_empty();
    print(format, &held, |held: &Vec<Held>| {
        match (&held[..], unread) {
            ([], true) => {
                "No deletion waits for a person, as far as the cluster could be read.\n".into()
            }
            _ => text(held, &connected.flags),
        }
    })?;
    Ok(u8::from(unread))
}

/// All held deletions, by rule.
fn held(picture: &Picture) -> Vec<Held> {
    let mut lost = lost(picture);
    let mut all = Vec::new();
    for (id, stored) in &picture.rules {
        if let Some((nonce, why)) = stored.status.as_ref().and_then(self::nonce) {
            all.push(Held {
                rule: id.to_string(),
                rule_deleted: false,
                counted: counted(&why),
                why,
                nonce,
                copies: lost.remove(id).unwrap_or_default(),
                id: id.clone(),
            });
        }
    }
    let engine = picture.snapshot.decided();
    for held in engine.held() {
        let copies = held.copies.iter().map(|copy| HeldCopy {
            namespace: copy.namespace.to_string(),
            kind: copy.kind.to_owned(),
            name: copy.name.to_string(),
        });
        all.push(Held {
            rule: held.rule.to_string(),
            rule_deleted: true,
            why: held.why.to_owned(),
            nonce: Some(held.nonce.to_owned()),
            copies: copies.collect(),
            counted: None,
            id: held.rule.clone(),
        });
    }
    all
}

/// The nonce and the sentence of a status with the condition `Stalled`, reason `DeletionHeld`.
fn nonce(status: &ClusterReplicationStatus) -> Option<(Option<String>, String)> {
    let message = &held_deletion(status)?.message;
    let nonce = message.split_once(&format!("{CONFIRM_DELETION}="));
    let nonce = nonce.map(|(_, nonce)| nonce.trim().to_owned());
    let why = message.split(". ").next().unwrap_or_default();
    Some((nonce, why.to_owned()))
}

/// The first number in the sentence of a status: the number of held copies.
fn counted(why: &str) -> Option<usize> {
    why.split(' ').find_map(|word| word.parse().ok())
}

/// The copies that rules no longer want, by rule.
fn lost(picture: &Picture) -> BTreeMap<RuleId, Vec<HeldCopy>> {
    let mut lost: BTreeMap<RuleId, Vec<HeldCopy>> = BTreeMap::new();
    unsynced(&picture.snapshot, |rule, namespace, copy| {
        if is_lost(&copy) {
            lost.entry(rule.clone()).or_default().push(HeldCopy {
                namespace: namespace.to_owned(),
                kind: copy.kind,
                name: copy.name,
            });
        }
    });
    lost
}

pub(crate) async fn confirm(
    args: ConfirmArgs,
    connected: &Connected,
    format: Format,
) -> Result<u8> {
    let picture = Picture::read(connected, Scope::All).await?;
    let all = held(&picture);
    for note in picture.unread.sentences() {
        tell(note);
    }
    let Some(held) = all.iter().find(|held| held.id == args.rule) else {
        bail!("no deletion of {} waits for a person", args.rule);
    };
    let unsure = |gap: &Gap| matches!(gap, Gap::Copies | Gap::Losses);
    let unsure: Vec<&str> = picture.unread.about(unsure).collect();
    if !unsure.is_empty() {
        bail!(
            "nothing is confirmed, because the deletion may be larger than it looks: {}",
            unsure.join(" ")
        );
    }
    let number = held.copies.len();
    if held.counted.is_some_and(|counted| number < counted) {
        bail!(
            "nothing is confirmed: only {number} of the copies in this sentence were found: {}. The \
             others are gone since then, or you may not read what shows them",
            held.why
        );
    }
    let Some(nonce) = &held.nonce else {
        bail!(
            "the status of {} has no nonce: this kubectl mimeo is of another version than the \
             reconciler",
            held.rule
        );
    };
    let confirmed = if let Some(copies) = args.copies {
        copies == number
    } else {
        // Standard output is for the result.
        tell(&text(std::slice::from_ref(held), &connected.flags));
        ask(number)?
    };
    if !confirmed {
        bail!("nothing is confirmed: the deletion is of {number} copies");
    }
    annotate(connected, held, nonce).await?;
    tell("Confirmed. Waiting until Mimeo begins the deletion ...");
    let more_held = taken_up(connected, held).await?;
    let confirmed = Confirmed { held, more_held };
    print(format, &confirmed, |Confirmed { held, more_held }| {
        let mut text = format!(
            "Confirmed: Mimeo no longer holds the deletion of these copies of {}.\n",
            held.rule
        );
        if *more_held {
            text += "Copies that the rule lost later wait for a confirmation of their own.\n";
        }
        text
    })?;
    Ok(0)
}

/// How far the reconciler is with a confirmed deletion.
enum Progress {
    /// It no longer holds the deletion. True if it holds another one of the same rule.
    Begun(bool),
    /// It still holds this many of the copies, as far as the cluster shows.
    Holds(usize),
    /// The cluster can't be read for this reason.
    Unknown(String),
}

/// Waits until the reconciler no longer holds this deletion. True if it holds another one of the
/// same rule.
async fn taken_up(connected: &Connected, confirmed: &Held) -> Result<bool> {
    let mut left = confirmed.copies.len();
    let mut deadline = Instant::now() + TAKEN_UP;
    loop {
        let started = Instant::now();
        // One failed reading is no reason to give up before the time is over.
        let progress = match Picture::read(connected, Scope::All).await {
            Ok(picture) => progress(&picture, confirmed),
            Err(error) => Progress::Unknown(format!("{error:#}")),
        };
        let late = Instant::now() >= deadline;
        match progress {
            Progress::Begun(more) => return Ok(more),
            Progress::Holds(now) if now < left => {
                left = now;
                deadline = Instant::now() + TAKEN_UP;
            }
            Progress::Holds(_) if late => bail!("{}", not_begun(connected, confirmed)),
            Progress::Unknown(why) if late => {
                bail!("the deletion is confirmed, but whether Mimeo has begun it is unknown: {why}")
            }
            _ => {}
        }
        tokio::time::sleep(pause(started.elapsed())).await;
    }
}

fn progress(picture: &Picture, confirmed: &Held) -> Progress {
    let hides_copies = |gap: &Gap| matches!(gap, Gap::Rules(_) | Gap::Copies | Gap::Losses);
    if let Some(sentence) = picture.unread.about(hides_copies).next() {
        return Progress::Unknown(sentence.to_owned());
    }
    let held = held(picture);
    let now = held.iter().find(|held| held.id == confirmed.id);
    if !confirmed.rule_deleted {
        // The status tells. There is none for a spec that the reconciler has not seen.
        let stored = picture.rules.get(&confirmed.id);
        if stored.is_some_and(|stored| stored.status.is_none()) {
            return Progress::Holds(confirmed.copies.len());
        }
        return match now {
            Some(held) if held.nonce == confirmed.nonce => Progress::Holds(confirmed.copies.len()),
            held => Progress::Begun(held.is_some()),
        };
    }
    // Anybody may delete one of the copies, so the deletion has begun only once all are gone.
    let copies = now.map_or(&[][..], |held| &held.copies);
    let left = confirmed
        .copies
        .iter()
        .filter(|copy| copies.contains(copy))
        .count();
    match left {
        0 => Progress::Begun(!copies.is_empty()),
        left => Progress::Holds(left),
    }
}

/// What a person can do about a confirmation without an effect.
fn not_begun(connected: &Connected, confirmed: &Held) -> String {
    let Held {
        rule, rule_deleted, ..
    } = confirmed;
    let leads = "See whether a reconciler leads: kubectl mimeo status";
    let mimeo = &connected.mimeo;
    if *rule_deleted {
        format!(
            "ConfigMap {mimeo}/{KINDS_CONFIG_MAP} is annotated, but Mimeo has not begun the \
             deletion of the copies of {rule}. {leads}. If one leads, the copies have changed \
             since it held them. Restart it, so that it holds the present copies, and confirm \
             again: kubectl -n {mimeo} rollout restart deployment/mimeo-reconciler"
        )
    } else {
        format!("{rule} is annotated, but Mimeo has not begun the deletion. {leads}")
    }
}

/// Asks for the number of copies. True if the answer is right.
fn ask(number: usize) -> Result<bool> {
    eprint!("To delete these copies, type their number: ");
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer)?;
    if read == 0 {
        eprintln!();
    }
    Ok(answer.trim() == number.to_string())
}

/// Writes the nonce to the rule, or to the kinds `ConfigMap` if the rule no longer exists.
async fn annotate(connected: &Connected, held: &Held, nonce: &str) -> Result<()> {
    let (path, object) = if held.rule_deleted {
        let mimeo = encode(&connected.mimeo);
        (
            format!("/api/v1/namespaces/{mimeo}/configmaps/{KINDS_CONFIG_MAP}"),
            format!("ConfigMap {}/{KINDS_CONFIG_MAP}", connected.mimeo),
        )
    } else {
        let id = &held.id;
        let path = own_path(id.namespace.as_deref(), id.kind.plural(), Some(&id.name));
        (path, held.rule.clone())
    };
    let patch = json!({"metadata": {"annotations": {CONFIRM_DELETION: nonce}}});
    let path = format!("{path}?fieldManager=kubectl-mimeo");
    let sent = send(connected, Change::Merge, &path, &patch).await;
    if let Err(refusal) = sent {
        bail!("failed to annotate {object}: {}", refusal.message());
    }
    Ok(())
}

fn text(held: &[Held], cluster: &ClusterFlags) -> String {
    if held.is_empty() {
        return "No deletion waits for a person.\n".into();
    }
    let one = |held: &Held| {
        let Held {
            rule,
            rule_deleted,
            why,
            copies,
            id,
            ..
        } = held;
        let row = |copy: &HeldCopy| {
            let namespace = format!("  {}", copy.namespace);
            [&namespace, &copy.kind, &copy.name].map(Cell::from).into()
        };
        let deleted = if *rule_deleted { " (deleted)" } else { "" };
        let confirm = format!("kubectl mimeo confirm {}", argument(id));
        let confirm = cluster.in_commands(&confirm);
        format!(
            "{rule}{deleted}: {} copies\n  {why}\n\n{}\n  If it is an accident, undo it. If not: {confirm}\n",
            copies.len(),
            table(
                &["  NAMESPACE", "KIND", "NAME"],
                copies.iter().map(row).collect()
            ),
        )
    };
    held.iter().map(one).collect::<Vec<_>>().join("\n")
}
