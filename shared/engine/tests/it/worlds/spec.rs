//! The parts of a world: rules as their authors write them, and actions of users. This file only
//! describes them. Their meaning is in [`super::select`], [`super::render`] and [`super::tables`].

mod events;
mod grants;
mod targets;
mod transform;

use std::{cell::OnceCell, collections::BTreeMap, fmt};

use mimeo_api::{ClusterReplication, Replication};
use mimeo_model::{refusal::Refusal, rule::Rule};
use serde_json::{Value, json};

pub use self::{
    events::{Event, Fields, Nth, Story},
    grants::{Access, GrantSpec, Granted},
    targets::{All, By, Op, Pattern, Selector, Target},
    transform::{Data, Keys, Operation, Piece, Text, Transform, Worth},
};
use super::server::{Key, Object, Res};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    Apply,
    Replace,
    CreateOnce,
}

/// `conflictPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Report,
    Adopt,
    Overwrite,
}

/// `Delete` or `Retain`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    #[default]
    Delete,
    Retain,
}

/// `retentionPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    pub rule_deleted: Keep,
    pub unmatched: Keep,
    pub source_deleted: Keep,
}

/// The inline objects of a rule, by the keys that name them.
pub type Inline = BTreeMap<Key, Vec<(String, Text)>>;

/// The objects of a kind and a namespace that have some labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selected {
    pub res: Res,
    pub namespace: &'static str,
    pub selector: Selector,
}

/// The spec of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSpec {
    /// The named sources, and the inline ones, which are in no namespace.
    pub sources: Vec<Key>,
    pub inline: Inline,
    pub selected: Vec<Selected>,
    pub targets: Vec<Target>,
    pub exclude: Vec<All>,
    pub transform: Transform,
    pub strategy: Strategy,
    pub conflict: Policy,
    /// True if `driftPolicy` is Deny.
    pub deny: bool,
    pub retention: Retention,
    /// Seconds.
    pub grace: u32,
    /// The period in seconds in which each copy is verified. 0 means never.
    pub resync: u32,
    pub suspend: bool,
    pub typed: Typed,
}

/// The parsed spec of the object with that uid and generation. It holds no further information.
#[derive(Default)]
pub struct Typed(OnceCell<Box<Read>>);

struct Read {
    uid: String,
    generation: i64,
    rule: Result<Rule, Vec<Refusal>>,
}

impl Clone for Typed {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Typed {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Typed {}

impl fmt::Debug for Typed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("_")
    }
}

impl RuleSpec {
    /// True if no other client may change the copies of the rule. That needs strategy Replace.
    pub fn denies(&self) -> bool {
        self.deny && self.strategy == Strategy::Replace
    }

    /// Parses the rule as the API server shows it, which happens whenever its status changes.
    pub fn parse(&self, object: &Object) -> Result<Rule, Vec<Refusal>> {
        let read = || {
            Box::new(Read {
                uid: object.uid.clone(),
                generation: object.generation,
                rule: self.read(object),
            })
        };
        let known = self.typed.0.get_or_init(read);
        if (&known.uid, known.generation) != (&object.uid, object.generation) {
            return self.read(object);
        }
        known.rule.clone().map(|rule| Rule {
            resource_version: object.version,
            ..rule
        })
    }

    fn read(&self, object: &Object) -> Result<Rule, Vec<Refusal>> {
        const PASSES: &str = "the CRD's schema lets it pass";
        let (metadata, status) = (object.meta(), object.status.clone());
        if object.key.res == Res::Replication {
            let spec = serde_json::from_value(self.json(&object.key.namespace)).expect(PASSES);
            return Rule::parse_replication(&Replication {
                metadata,
                spec,
                status,
            });
        }
        let spec = serde_json::from_value(self.json("")).expect(PASSES);
        Rule::parse(&ClusterReplication {
            metadata,
            spec,
            status,
        })
    }

    /// Leaves out the fields that are the default in its namespace.
    fn json(&self, home: &str) -> Value {
        let source = |key: &Key| {
            let gvk = key.res.gvk();
            if let Some(fields) = self.inline.get(key) {
                return json!({"inline": inline(key, fields)});
            }
            let mut source =
                json!({"apiVersion": gvk.api_version(), "kind": *gvk.kind, "name": key.name});
            if key.namespace != home {
                source["namespace"] = key.namespace.as_str().into();
            }
            source
        };
        let selected = |Selected {
                            res,
                            namespace,
                            selector,
                        }: &Selected| {
            let gvk = res.gvk();
            let mut source = json!({"apiVersion": gvk.api_version(), "kind": *gvk.kind, "selector": selector.json()});
            if *namespace != home {
                source["namespace"] = (*namespace).into();
            }
            source
        };
        let mut sources: Vec<Value> = self.sources.iter().map(source).collect();
        sources.extend(self.selected.iter().map(selected));
        let mut spec = json!({
            "sources": sources,
            "transform": self.transform.json(),
            "strategy": format!("{:?}", self.strategy),
            "conflictPolicy": format!("{:?}", self.conflict),
            "suspend": self.suspend,
        });
        if !matches!(
            &self.targets[..],
            [Target {
                by: By::Home(_),
                name: None,
                ..
            }]
        ) {
            spec["targets"] = self.targets.iter().map(Target::json).collect();
        }
        if !self.exclude.is_empty() {
            spec["exclude"] = self.exclude.iter().map(All::json).collect();
        }
        // With CreateOnce there is no retention policy, because such copies always stay and belong
        // to their namespace.
        if self.strategy != Strategy::CreateOnce {
            let Retention {
                rule_deleted,
                unmatched,
                source_deleted,
            } = self.retention;
            spec["retentionPolicy"] = json!({
                "whenRuleDeleted": format!("{rule_deleted:?}"),
                "whenUnmatched": format!("{unmatched:?}"),
                "whenSourceDeleted": format!("{source_deleted:?}"),
                "sourceGracePeriodSeconds": self.grace,
            });
            spec["resyncSeconds"] = self.resync.into();
            spec["driftPolicy"] = if self.denies() { "Deny" } else { "Repair" }.into();
        }
        spec
    }
}

/// An object with these fields.
fn inline(key: &Key, fields: &[(String, Text)]) -> Value {
    let gvk = key.res.gvk();
    let mut object = json!({
        "apiVersion": gvk.api_version(), "kind": *gvk.kind, "metadata": {"name": key.name, "labels": {}, "annotations": {}},
    });
    for (path, text) in fields {
        let (part, name) = path
            .split_once('/')
            .expect("no type, since it is no Secret");
        let part = match part {
            "label" => &mut object["metadata"]["labels"],
            "ann" => &mut object["metadata"]["annotations"],
            part => &mut object[part],
        };
        part[name] = text.text().into();
    }
    object
}

/// The kinds of copies in these worlds.
pub const KINDS: [Res; 3] = [Res::Secret, Res::ConfigMap, Res::Widget];
