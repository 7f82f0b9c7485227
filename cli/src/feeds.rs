//! `kubectl mimeo where KIND NAMESPACE/NAME`: the copies of a source, and the effect of its deletion.

use anyhow::Result;
use clap::Args;
use jiff::Timestamp;
use mimeo_model::{choices::Retain, rule::Rule, source::SourceRef, template::Place};
use mimeo_runtime::discovery::{Discovery, resource_path};
use serde::Serialize;

use crate::{
    connect::Connected,
    names::{ObjectName, kind_of},
    output::{Cell, Format, Tone, print, table},
    picture::{Picture, Scope, Stored, sources},
    read::Part,
    state::{CopyKey, state},
};

#[derive(Debug, Args)]
pub(crate) struct WhereArgs {
    /// The source: KIND NAMESPACE/NAME, or NAMESPACE/KIND/NAME
    #[arg(value_name = "SOURCE", num_args = 1..=2, required = true)]
    source: Vec<String>,
}

/// A source, and the copies that rules make of it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Feeds {
    source: String,
    /// `None`: it could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    exists: Option<bool>,
    rules: Vec<Fed>,
    /// Facts that could not be read.
    notes: Vec<String>,
}

/// The copies that one rule makes of the source.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Fed {
    rule: String,
    /// The fate of the copies if the source is deleted.
    when_deleted: String,
    copies: Vec<FedCopy>,
}

#[derive(Debug, Serialize)]
struct FedCopy {
    namespace: String,
    name: String,
    state: String,
}

pub(crate) async fn run(args: WhereArgs, connected: &Connected, format: Format) -> Result<u8> {
    let text = match &args.source[..] {
        [kind, name] => match name.split_once('/') {
            Some((namespace, name)) => format!("{namespace}/{kind}/{name}"),
            None => format!("{kind}/{name}"),
        },
        whole => whole.concat(),
    };
    let object = ObjectName::parse(&text, &connected.namespace)?;
    let picture = Picture::read(connected, Scope::asked(connected)).await?;
    let gvk = kind_of(&picture, object.kind)?;
    let source = SourceRef::named(gvk, object.namespace, object.name);
    let feeds = feeds(&picture, &source, connected).await?;
    let none = feeds.rules.is_empty();
    print(format, &feeds, told)?;
    Ok(u8::from(none))
}

async fn feeds(picture: &Picture, source: &SourceRef, connected: &Connected) -> Result<Feeds> {
    let mut notes: Vec<String> = picture.unread.iter().cloned().collect();
    let mut rules = Vec::new();
    for stored in picture.rules.values() {
        let Ok(rule) = &stored.rule else { continue };
        let found = sources(picture, rule).into_iter().find(|one| {
            one.gvk.group_kind() == source.gvk.group_kind()
                && (&one.namespace, &one.name) == (&source.namespace, &source.name)
        });
        if let Some(found) = found {
            rules.push(Fed {
                rule: rule.id.to_string(),
                when_deleted: when_deleted(rule),
                copies: copies(picture, rule, &found, stored),
            });
        }
    }
    Ok(Feeds {
        source: source.to_string(),
        exists: exists(picture, source, connected, &mut notes).await,
        rules,
        notes,
    })
}

async fn exists(
    picture: &Picture,
    source: &SourceRef,
    connected: &Connected,
    notes: &mut Vec<String>,
) -> Option<bool> {
    let resource = match picture.kinds.get(&source.gvk) {
        Some(resource) => resource.clone(),
        None => Discovery::new(connected.client.clone())
            .find(&source.gvk)
            .await
            .ok()?,
    }?;
    let path = resource_path(&resource, Some(&source.namespace), Some(&source.name));
    let reader = connected.reader();
    match reader.get(&path, Part::Metadata).await {
        Ok(object) => Some(object.is_some()),
        Err(error) => {
            notes.push(format!("Can't read {source}: {error}."));
            None
        }
    }
}

/// The copies of one source, by namespace.
fn copies(picture: &Picture, rule: &Rule, source: &SourceRef, stored: &Stored) -> Vec<FedCopy> {
    let (engine, now) = picture.snapshot.decided();
    let wall = Timestamp::now();
    let mut copies = Vec::new();
    for namespace in picture.namespaces.keys() {
        let labels = picture.labels(namespace).unwrap_or_default();
        let place = Place {
            name: namespace,
            labels: &labels,
        };
        let mut names: Vec<String> = rule.copy_names(source, place).collect();
        names.dedup();
        if names.is_empty() {
            continue;
        }
        let views = engine.copies(&rule.id, namespace, now, wall);
        for name in names {
            let key = CopyKey {
                namespace,
                kind: &source.gvk.kind,
                name: &name,
            };
            let view = views
                .iter()
                .find(|view| view.kind == *source.gvk.kind && view.name == name);
            let (state, _) = state(picture, &key, rule, source, view, stored.status.as_ref());
            copies.push(FedCopy {
                namespace: namespace.clone(),
                name,
                state,
            });
        }
    }
    copies
}

/// The fate of a rule's copies if their source is deleted, as a sentence.
fn when_deleted(rule: &Rule) -> String {
    let grace = rule.retention.source_grace.as_secs();
    match rule.retention.when_source_deleted {
        _ if rule.suspend => "The rule is suspended: its copies stay as they are.".into(),
        Retain::Retain => {
            "Its copies stay as they are (retentionPolicy.whenSourceDeleted: Retain).".into()
        }
        Retain::Delete => format!(
            "Mimeo deletes its copies {grace} s later, unless the source is created again in this time (retentionPolicy.sourceGracePeriodSeconds)."
        ),
    }
}

fn told(feeds: &Feeds) -> String {
    let Feeds {
        source,
        exists,
        rules,
        notes,
    } = feeds;
    let head = match exists {
        Some(true) => format!("{source} exists.\n"),
        Some(false) => format!("{source} does not exist.\n"),
        None => format!("{source}\n"),
    };
    let mut blocks = vec![head];
    if rules.is_empty() {
        blocks.push("No rule has it as a source.\n".into());
    }
    for Fed {
        rule,
        when_deleted,
        copies,
    } in rules
    {
        let row = |copy: &FedCopy| {
            let tone = match copy.state.as_str() {
                "Synced" => Tone::Good,
                "Pending" | "Suspended" | "Unknown" | "InGracePeriod" => Tone::Notice,
                _ => Tone::Bad,
            };
            vec![
                Cell::from(format!("  {}", copy.namespace)),
                copy.name.as_str().into(),
                Cell::new(copy.state.as_str(), tone),
            ]
        };
        let rows: Vec<Vec<Cell>> = copies.iter().map(row).collect();
        let table = if rows.is_empty() {
            "  It selects no namespace.\n".to_owned()
        } else {
            table(&["  NAMESPACE", "NAME", "STATE"], rows)
        };
        blocks.push(format!(
            "{rule}\n  If the source is deleted: {when_deleted}\n{table}"
        ));
    }
    if !notes.is_empty() {
        blocks.push(notes.join("\n") + "\n");
    }
    blocks.join("\n")
}
