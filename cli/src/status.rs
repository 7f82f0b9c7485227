//! `kubectl mimeo status`: one line for each rule, and every copy that is not as its rule says.

mod survey;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::Result;
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use mimeo_model::id::RuleId;
use mimeo_runtime::duration;

use self::survey::{CopyLine, RuleLine, Status, WaitingNamespace};
use crate::{
    completion,
    connect::Connected,
    installation::Installation,
    names,
    output::{Cell, Format, Tone, line, print, print_text, table, tell},
    picture::{Picture, Scope, pause},
    state::State,
};

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Only this rule: NAME, or NAMESPACE/NAME for a Replication
    #[arg(value_parser = names::rule, add = ArgValueCompleter::new(completion::rules))]
    rule: Option<RuleId>,
    /// Leave out rules whose copies are all synced
    #[arg(long)]
    failed: bool,
    /// After the output, print the rules that change until interrupted; with -o json or yaml, the whole
    /// output again after each change
    #[arg(long, short = 'w', conflicts_with = "wait")]
    watch: bool,
    /// Wait until all copies of these rules are synced. Suspended rules don't count
    #[arg(long)]
    wait: bool,
    /// Longest time to wait (as in 90s or 5m)
    #[arg(long, requires = "wait", value_name = "DURATION", default_value = "5m", value_parser = duration::parse)]
    timeout: Duration,
}

pub(crate) async fn run(args: StatusArgs, connected: &Connected, format: Format) -> Result<u8> {
    let scope = Scope::asked(connected);
    let read = async || -> Result<(Status, Duration)> {
        let began = Instant::now();
        let picture = Picture::read(connected, scope.clone()).await?;
        let status = Status::of(&picture, &scope, args.rule.as_ref(), connected).await?;
        Ok((status, began.elapsed()))
    };
    let deadline = Instant::now() + args.timeout;
    let (mut status, mut took) = read().await?;
    let mut told = String::new();
    while args.wait && !status.is_good() {
        let progress = status.progress();
        if progress != told {
            tell(&progress);
            told = progress;
        }
        if Instant::now() >= deadline {
            break;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        tokio::time::sleep(pause(took).min(left)).await;
        // One failed reading is no reason to give up before the time is over.
        match read().await {
            Ok(read) => (status, took) = read,
            Err(error) => tell(&format!("error: {error:#}")),
        }
    }
    let shown = |status: &Status| {
        let mut shown = status.clone();
        if args.failed {
            shown.rules.retain(|rule| !rule.is_good());
        }
        shown
    };
    let rules = status.rules.len();
    let held = connected.flags.in_commands(HELD);
    print(format, &shown(&status), |shown| {
        text(shown, rules, &scope, &held)
    })?;
    if args.wait && !status.is_good() {
        let what = if !status.complete {
            "not everything could be read"
        } else if status.mimeo_runs() {
            "not all copies are synced"
        } else {
            "not all of Mimeo runs"
        };
        tell(&format!("error: {what} after {:?}", args.timeout));
    }
    if !args.watch {
        return Ok(u8::from(!status.is_good()));
    }
    loop {
        tokio::time::sleep(pause(took)).await;
        match read().await {
            Ok((now, time)) => {
                show_changes(&status, &now, shown, format, &held)?;
                (status, took) = (now, time);
            }
            Err(error) => tell(&format!("error: {error:#}")),
        }
    }
}

/// Prints the rules that have changed: lines for people, the whole status for programs.
fn show_changes(
    before: &Status,
    now: &Status,
    shown: impl Fn(&Status) -> Status,
    format: Format,
    held: &str,
) -> Result<()> {
    let known: BTreeMap<&str, &RuleLine> = before
        .rules
        .iter()
        .map(|rule| (rule.rule.as_str(), rule))
        .collect();
    let changed = |rule: &&RuleLine| known.get(rule.rule.as_str()) != Some(rule);
    match format {
        Format::Table => {
            // With --failed, a rule that has recovered is news, too.
            let shown = shown(now);
            let news = |rule: &&RuleLine| {
                let before = known.get(rule.rule.as_str());
                before.is_some_and(|before| !before.is_good()) || shown.rules.contains(rule)
            };
            let rules = now.rules.iter();
            let changed: Vec<&RuleLine> = rules.filter(changed).filter(news).collect();
            let mut text = String::new();
            if before.mimeo_runs() != now.mimeo_runs() {
                text += &lines(now.mimeo.iter().flat_map(Installation::lines));
            }
            if before.held_of_deleted_rules < now.held_of_deleted_rules {
                text += held;
            }
            if !changed.is_empty() {
                text += &rule_table(changed);
            }
            if text.is_empty() {
                return Ok(());
            }
            print_text(&text)
        }
        // With --failed, a change of a hidden rule would print the same document again.
        _ if shown(before).same(&shown(now)) => Ok(()),
        // The table is printed above.
        _ => print(format, &shown(now), |_| String::new()),
    }
}

/// The sentence about held deletions.
const HELD: &str = "Deletions wait for a person: kubectl mimeo held\n";

/// `rules` is the number of all rules. The status may contain only those with a problem.
fn text(status: &Status, rules: usize, scope: &Scope, held_sentence: &str) -> String {
    let mimeo = status.mimeo.iter().flat_map(Installation::lines);
    let table = match (scope, rules) {
        (_, 0) if !status.complete => "No rule, as far as the cluster could be read.\n".into(),
        (Scope::All, 0) => "There are no rules.\n".into(),
        (Scope::One(namespace), 0) => format!("No rule has a copy in namespace {namespace}.\n"),
        _ if status.rules.is_empty() => "All copies of all rules are synced.\n".into(),
        _ => rule_table(&status.rules),
    };
    let mut blocks = vec![lines(mimeo), table];
    if !status.copies.is_empty() {
        blocks.push(copy_table(&status.copies));
    }
    for WaitingNamespace {
        namespace,
        pods,
        waits_for,
    } in &status.waiting
    {
        let meanwhile = match pods {
            State::PodsRefused => "are refused without these copies",
            State::PodsWarned => "are admitted with a warning without these copies",
            _ => "wait for these copies",
        };
        let head = format!("The pods of namespace {namespace} {meanwhile}:");
        let copies = waits_for.iter().map(|copy| format!("  {copy}"));
        blocks.push(lines(std::iter::once(head).chain(copies)));
    }
    let held: usize = status.rules.iter().map(|rule| rule.held).sum();
    if held > 0 || status.held_of_deleted_rules > 0 {
        blocks.push(held_sentence.into());
    }
    blocks.push(lines(status.notes.iter().map(|note| line(note))));
    blocks.retain(|block| !block.is_empty());
    blocks.join("\n")
}

fn lines(lines: impl Iterator<Item = String>) -> String {
    lines.map(|line| line + "\n").collect()
}

fn rule_table<'a>(rules: impl IntoIterator<Item = &'a RuleLine>) -> String {
    let headers = [
        "RULE", "READY", "SYNCED", "PENDING", "FAILED", "HELD", "MESSAGE",
    ];
    let count = |count: usize, tone: Tone| {
        Cell::new(
            count.to_string(),
            if count == 0 { Tone::Plain } else { tone },
        )
    };
    let row = |rule: &RuleLine| {
        let ready = match rule.ready.as_str() {
            "True" => Tone::Good,
            "False" => Tone::Bad,
            _ => Tone::Notice,
        };
        vec![
            Cell::from(rule.rule.as_str()),
            Cell::new(rule.ready.as_str(), ready),
            format!("{}/{}", rule.synced, rule.copies).into(),
            count(rule.pending, Tone::Notice),
            count(rule.failed, Tone::Bad),
            count(rule.held, Tone::Notice),
            rule.message.as_str().into(),
        ]
    };
    table(&headers, rules.into_iter().map(row).collect())
}

fn copy_table(copies: &[CopyLine]) -> String {
    let headers = ["NAMESPACE", "KIND", "NAME", "RULE", "STATE", "MESSAGE"];
    let row = |copy: &CopyLine| {
        vec![
            Cell::from(copy.namespace.as_str()),
            copy.kind.as_str().into(),
            copy.name.as_str().into(),
            copy.rule.as_str().into(),
            Cell::new(copy.state.to_string(), copy.state.tone()),
            copy.message.as_str().into(),
        ]
    };
    table(&headers, copies.iter().map(row).collect())
}
