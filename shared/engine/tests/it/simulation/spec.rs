//! Rules as the histories write them. Their language is smaller than the API. It has its own
//! definition of the meaning, to check the engine against.

use std::collections::BTreeMap;

use mimeo_api::{ClusterReplication, ClusterReplicationSpec};
use mimeo_model::{names, refusal::Refusal, rule::Rule};
use serde_json::{Value, json};

use super::server::{Object, Res};

/// The sources that rules may name. No copy ever gets a source's name in its namespace, so no copy
/// is a source.
pub const SOURCES: [(Res, &str, &str); 5] = [
    (Res::Secret, "p", "s1"),
    (Res::ConfigMap, "p", "s1"),
    (Res::Secret, "q", "s2"),
    (Res::Widget, "p", "w1"),
    (Res::Secret, "p", "s3"),
];

/// The label by which rules select sources. Its value is the source's index. The key belongs to
/// kubectl, so no copy carries it.
pub const PICK: &str = "kubectl.kubernetes.io/pick";

/// A `tier` that differs between the teams. In the namespaces of no team it has no value.
pub const TEAMS: &str = "of-$(namespace.labels['team'])";

/// A selection of namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Select {
    All,
    Team(&'static str),
    Names(&'static [&'static str]),
    Pattern(&'static str),
}

impl Select {
    pub fn matches(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        let system = ["kube-system", "kube-public", "kube-node-lease"].contains(&name);
        match self {
            Self::All => !system,
            Self::Team(team) => !system && labels.get("team").map(String::as_str) == Some(team),
            Self::Names(globs) => globs.iter().any(|glob| match glob.strip_suffix('*') {
                Some(beginning) => !system && name.starts_with(beginning),
                None => *glob == name,
            }),
            // All patterns have the form `t[0-1]`.
            Self::Pattern(pattern) => {
                let letter = &pattern[..1];
                let range = &pattern[2..5];
                let (low, high) = range.split_once('-').expect("a range");
                let digit = name.strip_prefix(letter).unwrap_or_default();
                !system && digit.len() == 1 && (low..=high).contains(&digit)
            }
        }
    }

    fn json(&self) -> Value {
        match self {
            Self::All => json!({"namespaceSelector": {}}),
            Self::Team(team) => json!({"namespaceSelector": {"matchLabels": {"team": team}}}),
            Self::Names(names) => json!({"namespaces": names}),
            Self::Pattern(pattern) => json!({"namespacePattern": pattern}),
        }
    }
}

/// One target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct To {
    pub select: Select,
    /// True if copies are named `<source>-x`.
    pub renamed: bool,
}

impl To {
    pub fn matches(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        self.select.matches(name, labels)
    }

    pub fn copy_name(&self, source: usize) -> String {
        let name = SOURCES[source].2;
        if self.renamed {
            format!("{name}-x")
        } else {
            name.to_owned()
        }
    }
}

/// For each of `whenRuleDeleted`, `whenUnmatched` and `whenSourceDeleted`: true if copies are
/// retained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    pub rule: bool,
    pub unmatched: bool,
    pub source: bool,
}

impl Keep {
    pub const ALL: Self = Self {
        rule: true,
        unmatched: true,
        source: true,
    };
}

/// `podGate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hold {
    None,
    BestEffort,
    Required,
}

/// `conflictPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clash {
    Report,
    Adopt,
    Overwrite,
}

/// A rule's spec.
#[allow(clippy::struct_excessive_bools)] // As its author may choose, each on its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSpec {
    /// Indices into [`SOURCES`].
    pub sources: Vec<usize>,
    /// True if a selector finds each source by its label. Otherwise the rule names its sources.
    pub picks: bool,
    pub targets: Vec<To>,
    pub exclude: Option<Select>,
    /// True if the strategy is `CreateOnce`, which retains every copy.
    pub once: bool,
    /// True if the strategy is `Replace`.
    pub exclusive: bool,
    pub clash: Clash,
    pub keep: Keep,
    pub grace: i32,
    pub hold: Hold,
    pub suspend: bool,
    /// True if copies get a finalizer.
    pub finalizer: bool,
    /// The label `tier` of the copies, perhaps [`TEAMS`].
    pub tier: Option<&'static str>,
    /// True if the rule has a field that the parser refuses.
    pub invalid: bool,
}

impl RuleSpec {
    /// Returns the shortest rule: one source, copied to the namespaces of this selection.
    pub fn of(source: usize, select: Select) -> Self {
        Self {
            sources: vec![source],
            picks: false,
            targets: vec![To {
                select,
                renamed: false,
            }],
            exclude: None,
            once: false,
            exclusive: false,
            clash: Clash::Report,
            keep: Keep::default(),
            grace: 0,
            hold: Hold::None,
            suspend: false,
            finalizer: false,
            tier: None,
            invalid: false,
        }
    }

    pub fn matches(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        self.targets.iter().any(|to| to.matches(name, labels)) && !self.excludes(name, labels)
    }

    /// True if the rule excludes the namespace. An exclusion of all covers system namespaces, too,
    /// and so does a glob.
    pub fn excludes(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        self.exclude.as_ref().is_some_and(|exclude| match exclude {
            Select::All => true,
            Select::Team(team) => labels.get("team").map(String::as_str) == Some(team),
            exclude => exclude.matches(name, labels),
        })
    }

    /// Returns the label `tier` of copies in a namespace with these labels. An error means that the
    /// namespace lacks the label from which the value is taken.
    pub fn tier_in(&self, labels: &BTreeMap<String, String>) -> Result<Option<String>, ()> {
        match self.tier {
            Some(TEAMS) => labels
                .get("team")
                .map(|team| Some(format!("of-{team}")))
                .ok_or(()),
            tier => Ok(tier.map(str::to_owned)),
        }
    }

    /// Returns the annotation `mimeo.dev/retention` of the copies.
    pub fn retention(&self, uid: &str) -> Option<String> {
        let Keep {
            rule,
            unmatched,
            source,
        } = self.keep;
        let parts = [
            (rule, "rule=Retain"),
            (unmatched, "unmatched=Retain"),
            (source, "source=Retain"),
        ];
        let mut parts: Vec<String> = parts
            .into_iter()
            .filter(|(keep, _)| *keep)
            .map(|(_, text)| text.to_owned())
            .collect();
        if rule {
            parts.push(format!("uid={uid}"));
        }
        (!parts.is_empty()).then(|| parts.join(","))
    }

    /// Returns the rule as the API server shows it.
    pub fn parse(&self, object: &Object) -> Result<Rule, Vec<Refusal>> {
        Rule::parse(&ClusterReplication {
            metadata: object.meta(),
            spec: self.typed(),
            status: object.status.clone(),
        })
    }

    /// Returns the spec in the API's type.
    pub fn typed(&self) -> ClusterReplicationSpec {
        serde_json::from_value(self.json()).expect("the CRD's schema lets it pass")
    }

    fn json(&self) -> Value {
        let source = |index: &usize| {
            let (res, namespace, name) = SOURCES[*index];
            let gvk = res.gvk();
            let mut json =
                json!({"apiVersion": gvk.api_version(), "kind": *gvk.kind, "namespace": namespace});
            if self.picks {
                json["selector"] = json!({"matchLabels": {PICK: index.to_string()}});
            } else {
                json["name"] = name.into();
            }
            json
        };
        let target = |to: &To| {
            let mut json = to.select.json();
            if to.renamed {
                json["copyName"] = "$(source.name)-x".into();
            }
            if self.invalid {
                json["namespaces"] = json!(["Not A Name"]);
            }
            json
        };
        let retain = |keep: bool| if keep { "Retain" } else { "Delete" };
        let finalizers: &[&str] = if self.finalizer {
            &["example.com/held"]
        } else {
            &[]
        };
        let set: BTreeMap<&str, &str> = self.tier.iter().map(|tier| ("tier", *tier)).collect();
        let mut json = json!({
            "sources": self.sources.iter().map(source).collect::<Vec<_>>(),
            "targets": self.targets.iter().map(target).collect::<Vec<_>>(),
            "transform": {"finalizers": finalizers, "labels": {"set": set}},
            "conflictPolicy": format!("{:?}", self.clash),
            "retentionPolicy": {
                "whenRuleDeleted": retain(self.keep.rule),
                "whenUnmatched": retain(self.keep.unmatched),
                "whenSourceDeleted": retain(self.keep.source),
                "sourceGracePeriodSeconds": self.grace,
            },
            "podGate": match self.hold { Hold::None => "None", Hold::BestEffort => "BestEffort", Hold::Required => "Required" },
            "suspend": self.suspend,
        });
        if let Some(exclude) = &self.exclude {
            json["exclude"] = json!([exclude.json()]);
        }
        if self.exclusive {
            json["strategy"] = "Replace".into();
        }
        if self.once {
            json["strategy"] = "CreateOnce".into();
            json["retentionPolicy"] = json!({});
        }
        json
    }
}

/// Returns `apiVersion/Kind/namespace/name` of a source, as copies and failures name it.
pub fn source_name(index: usize) -> String {
    let (res, namespace, name) = SOURCES[index];
    format!("{}/{namespace}/{name}", res.gvk())
}

/// True if a copy carries this field of its source. It carries all fields but the labels and
/// annotations of other tools.
pub fn carried(path: &str) -> bool {
    let mark = |key: &str| {
        key.starts_with("kubectl.kubernetes.io/")
            || key.starts_with(names::PREFIX)
            || key == names::MANAGED_BY
    };
    match path.split_once('/') {
        Some(("label" | "ann", key)) => !mark(key),
        Some(("fin", _)) => false,
        _ => true,
    }
}
