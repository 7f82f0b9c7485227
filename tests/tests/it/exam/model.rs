//! The model: the copies that the documents promise, computed from the objects that exist.
//!
//! It follows docs/reference/api.md and docs/explain/guarantees.md and shares no code with the engine. [`World`]
//! holds the objects that users made. [`World::verdict`] decides about one place (namespace, kind
//! and name), given the copy there. If the documents leave a result open, the verdict is
//! [`Verdict::Open`].

use std::collections::{BTreeMap, BTreeSet};

/// Labels, annotations, or data.
pub type Map = BTreeMap<String, String>;

/// A value that only Mimeo knows. It must exist, with any content.
pub const OPAQUE: &str = "(any)";

/// A grace period that is longer than the exam.
pub const LONG_GRACE: u32 = 3600;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    ConfigMap,
    Secret,
}

pub const KINDS: [Kind; 2] = [Kind::ConfigMap, Kind::Secret];

/// A place for one object.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Cell {
    pub namespace: String,
    pub kind: Kind,
    pub name: String,
}

/// The identity of a rule. A `ClusterReplication` has no home and ranks before every `Replication`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RuleId {
    pub home: Option<String>,
    pub name: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Content {
    pub data: Map,
    pub labels: Map,
    pub annotations: Map,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Targets {
    /// Namespaces with the label `team`, but not those with this value of the label `tier`.
    Team(&'static str, Option<&'static str>),
    Names(BTreeSet<String>),
    /// The Replication's own namespace.
    Own,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strategy {
    Apply,
    Replace,
    CreateOnce,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Conflict {
    Report,
    Adopt,
    Overwrite,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gate {
    BestEffort,
    Required,
    None,
}

/// The retention policy of a rule: true is Retain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retention {
    pub rule: bool,
    pub unmatched: bool,
    pub source: bool,
    pub grace: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Transform {
    /// Leaves out the key `extra`.
    pub exclude: bool,
    /// Renames the key `text` to `renamed`.
    pub rename: bool,
    /// Leaves out the label `app`.
    pub unlabel: bool,
    /// Sets a label with the namespace's name, and an annotation with this number.
    pub set: Option<u64>,
}

#[allow(clippy::struct_excessive_bools)] // As in the API.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spec {
    pub sources: BTreeSet<Cell>,
    pub targets: Targets,
    /// True if the copies' names begin with a word that other rules use, too. Otherwise they begin
    /// with the rule's own word.
    pub shared: bool,
    pub transform: Transform,
    pub strategy: Strategy,
    pub conflict: Conflict,
    pub deny: bool,
    pub retention: Retention,
    pub gate: Gate,
    pub suspend: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The order of the rules' creation: an older rule has a smaller number.
    pub born: usize,
    pub spec: Spec,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Namespace {
    pub uid: String,
    pub labels: Map,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Access {
    Read,
    Write,
}

/// A foreign object under a name of a copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Foreign {
    pub uid: String,
    pub version: String,
}

/// The objects that users made, at one moment.
#[derive(Clone, Default, Debug)]
pub struct World {
    pub namespaces: BTreeMap<String, Namespace>,
    pub sources: BTreeMap<Cell, Content>,
    pub rules: BTreeMap<RuleId, Rule>,
    /// The granted kinds, by the granting namespace and the access.
    pub grants: BTreeMap<(String, Access), BTreeSet<Kind>>,
    pub foreign: BTreeMap<Cell, Foreign>,
}

/// The rule and source of the copy in a cell, as far as they matter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    pub rule: RuleId,
    pub source: Cell,
    /// The retention on the copy for the end of its rule: true is Retain. It has two values if the
    /// copy was rewritten meanwhile.
    pub kept: BTreeSet<bool>,
    /// True if the rule was absent at some time after the last write of the copy.
    pub orphan: bool,
    /// True if the namespace may record the copy as created once.
    pub once: bool,
}

/// The expectation for a cell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The cell holds the copy of one of these rules, of this source.
    Wanted(BTreeSet<RuleId>, Cell),
    /// The cell holds a copy that this rule creates once.
    CreatedCopy(RuleId, Cell),
    /// An existing copy stays as it is. A missing copy stays missing.
    Stays,
    Goes,
    /// The documents leave the result open.
    Open,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
        }
    }
}

impl RuleId {
    /// Returns the rule as the annotation of copies names it.
    pub fn mark(&self) -> String {
        match &self.home {
            None => format!("ClusterReplication/{}", self.name),
            Some(home) => format!("Replication/{home}/{}", self.name),
        }
    }

    /// Returns the word with which the copies' names begin, unless they are shared.
    pub fn word(&self) -> &str {
        self.name.rsplit('-').next().unwrap_or_default()
    }
}

impl Spec {
    /// Returns the name of the copy of this source.
    pub fn copy_name(&self, rule: &RuleId, source: &Cell) -> String {
        format!(
            "{}-{}",
            if self.shared { "shared" } else { rule.word() },
            source.name
        )
    }

    /// Returns the retention for the rule's end, as the copies record it.
    fn kept(&self) -> bool {
        self.strategy == Strategy::CreateOnce || self.retention.rule
    }

    fn retains(&self) -> bool {
        self.kept() || self.retention.unmatched || self.retention.source
    }

    fn targets(&self, rule: &RuleId, namespace: &str, labels: &Map) -> bool {
        match &self.targets {
            Targets::Team(team, but) => {
                let of = |key: &str| labels.get(key).map(String::as_str);
                of("team") == Some(*team) && (but.is_none() || of("tier") != *but)
            }
            Targets::Names(names) => names.contains(namespace),
            Targets::Own => rule.home.as_deref() == Some(namespace),
        }
    }

    /// Returns the copy that must exist.
    pub fn render(
        &self,
        rule: &RuleId,
        source: &Cell,
        content: &Content,
        namespace: &str,
    ) -> Content {
        let Transform {
            exclude,
            rename,
            unlabel,
            set,
        } = self.transform;
        let mut copy = Content::default();
        for (key, value) in content
            .data
            .iter()
            .filter(|(key, _)| !(exclude && *key == "extra"))
        {
            let key = if rename && key == "text" {
                "renamed"
            } else {
                key
            };
            copy.data.insert(key.to_owned(), value.clone());
        }
        // Labels and annotations of GitOps tools and of kubectl are never copied.
        let carried = |key: &&String| {
            !key.starts_with("argocd.argoproj.io/") && !key.starts_with("kubectl.kubernetes.io/")
        };
        let labels = content
            .labels
            .iter()
            .filter(|(key, _)| carried(key) && !(unlabel && *key == "app"));
        copy.labels
            .extend(labels.map(|(key, value)| (key.clone(), value.clone())));
        let annotations = content.annotations.iter().filter(|(key, _)| carried(key));
        copy.annotations
            .extend(annotations.map(|(key, value)| (key.clone(), value.clone())));
        if let Some(number) = set {
            copy.labels
                .insert("exam/where".to_owned(), namespace.to_owned());
            copy.annotations
                .insert("exam/set".to_owned(), number.to_string());
        }
        let mut label =
            |key: &str, value: &str| drop(copy.labels.insert(key.to_owned(), value.to_owned()));
        label("app.kubernetes.io/managed-by", "mimeo");
        match &rule.home {
            None => label("mimeo.dev/cluster-replication", &rule.name),
            Some(home) => label("mimeo.dev/replication", &format!("{home}.{}", rule.name)),
        }
        if self.deny {
            label("mimeo.dev/drift", "deny");
        }
        let mut annotate = |key: &str, value: &str| {
            drop(
                copy.annotations
                    .insert(format!("mimeo.dev/{key}"), value.to_owned()),
            );
        };
        annotate("rule", &rule.mark());
        annotate(
            "source",
            &format!(
                "v1/{}/{}/{}",
                source.kind.name(),
                source.namespace,
                source.name
            ),
        );
        annotate("checksum", OPAQUE);
        annotate("cluster", OPAQUE);
        if self.retains() {
            annotate("retention", OPAQUE);
        }
        if self.strategy == Strategy::Replace {
            annotate("strategy", OPAQUE);
        }
        copy
    }
}

impl World {
    fn may(&self, rule: &RuleId, access: Access, namespace: &str, kind: Kind) -> bool {
        let own = rule.home.as_ref().is_none_or(|home| home == namespace);
        own || self
            .grants
            .get(&(namespace.to_owned(), access))
            .is_some_and(|kinds| kinds.contains(&kind))
    }

    /// Returns the cells that a rule wants in a namespace, each with its source.
    pub fn claims_in(&self, id: &RuleId, namespace: &str) -> Vec<(Cell, Cell)> {
        let (Some(Rule { spec, .. }), Some(Namespace { labels, .. })) =
            (self.rules.get(id), self.namespaces.get(namespace))
        else {
            return Vec::new();
        };
        if !spec.targets(id, namespace, labels) {
            return Vec::new();
        }
        let may = |source: &&Cell| {
            self.may(id, Access::Read, &source.namespace, source.kind)
                && self.may(id, Access::Write, namespace, source.kind)
        };
        let claim = |source: &Cell| {
            let name = spec.copy_name(id, source);
            (
                Cell {
                    namespace: namespace.to_owned(),
                    kind: source.kind,
                    name,
                },
                source.clone(),
            )
        };
        spec.sources.iter().filter(may).map(claim).collect()
    }

    /// Returns the rules that want a cell, each with its source.
    pub fn claims(&self, cell: &Cell) -> BTreeMap<RuleId, Cell> {
        let claim = |id: &RuleId| {
            let claims = self.claims_in(id, &cell.namespace);
            claims
                .into_iter()
                .find(|(claimed, _)| claimed == cell)
                .map(|(_, source)| (id.clone(), source))
        };
        self.rules.keys().filter_map(claim).collect()
    }

    /// Returns all cells that rules want.
    pub fn claimed(&self) -> BTreeSet<Cell> {
        let pairs = self
            .rules
            .keys()
            .flat_map(|id| self.namespaces.keys().map(move |namespace| (id, namespace)));
        pairs
            .flat_map(|(id, namespace)| self.claims_in(id, namespace))
            .map(|(cell, _)| cell)
            .collect()
    }

    /// Returns the verdict about a cell that is empty or holds this copy.
    pub fn verdict(&self, cell: &Cell, holder: Option<&Holder>) -> Verdict {
        if !self.namespaces.contains_key(&cell.namespace) {
            return Verdict::Goes;
        }
        let mut claims = self.claims(cell);
        let all = claims.len();
        if claims.keys().any(|id| id.home.is_none()) {
            claims.retain(|id, _| id.home.is_none());
        }
        let held = holder.filter(|holder| claims.contains_key(&holder.rule));
        if let Some(held) = held {
            claims.retain(|id, _| *id == held.rule);
        }
        let Some((first, source)) = claims.first_key_value() else {
            return holder.map_or(Verdict::Goes, |holder| self.fate(cell, holder));
        };
        let suspended = |id: &RuleId| self.rules[id].spec.suspend;
        if claims.keys().any(suspended) {
            // A suspended rule may or may not keep a name from another rule if it has no copy there
            // yet. The documents leave that open.
            let alone = all == 1 && holder.is_none();
            return if alone || claims.len() == 1 && held.is_some() {
                Verdict::Stays
            } else {
                Verdict::Open
            };
        }
        if let Some(former) = holder.filter(|_| held.is_none()) {
            // A copy passes from one rule to another in place. Two cases are open: a copy of a
            // suspended rule, and a retained copy that passes to a Replication.
            let rests = self
                .rules
                .get(&former.rule)
                .is_some_and(|rule| rule.spec.suspend);
            let passes = first.home.is_none()
                || former.rule.home.is_some()
                || self.fate(cell, former) == Verdict::Goes;
            if rests || !passes || former.orphan {
                return Verdict::Open;
            }
        }
        if !self.sources.contains_key(source) {
            return match (held, holder) {
                (Some(held), _) => self.fate(cell, held),
                (None, None) => Verdict::Goes,
                (None, Some(_)) => Verdict::Open,
            };
        }
        let once = |id: &RuleId| self.rules[id].spec.strategy == Strategy::CreateOnce;
        match claims.len() {
            1 if once(first) => Verdict::CreatedCopy(first.clone(), source.clone()),
            _ if claims.keys().any(once) => Verdict::Open,
            _ => Verdict::Wanted(claims.keys().cloned().collect(), source.clone()),
        }
    }

    /// Returns the verdict about a copy that no rule writes, by the rule that wrote it last.
    fn fate(&self, cell: &Cell, holder: &Holder) -> Verdict {
        match self.fate_of_kept(cell, holder) {
            // If the rule now has another strategy, the documents leave open whether Mimeo deletes
            // a copy that was created once.
            Verdict::Goes if holder.once => Verdict::Open,
            fate => fate,
        }
    }

    fn fate_of_kept(&self, cell: &Cell, holder: &Holder) -> Verdict {
        let ended = match holder.kept.iter().collect::<Vec<_>>()[..] {
            [true] => Verdict::Stays,
            [false] => Verdict::Goes,
            _ => Verdict::Open,
        };
        let Some(Rule { spec, .. }) = self.rules.get(&holder.rule) else {
            return ended;
        };
        let fate = self.fate_by(cell, holder, spec);
        // The rule was deleted and created again. Either verdict may have been carried out.
        if holder.orphan && fate != ended {
            Verdict::Open
        } else {
            fate
        }
    }

    fn fate_by(&self, cell: &Cell, Holder { rule, source, .. }: &Holder, spec: &Spec) -> Verdict {
        let keep = |retain: bool| {
            if retain {
                Verdict::Stays
            } else {
                Verdict::Goes
            }
        };
        if spec.suspend || spec.strategy == Strategy::CreateOnce {
            return Verdict::Stays;
        }
        let claims = self.claims_in(rule, &cell.namespace);
        let Retention {
            unmatched,
            source: lost,
            grace,
            ..
        } = spec.retention;
        if let Some((_, wanted)) = claims.iter().find(|(claimed, _)| claimed == cell) {
            return if wanted == source {
                keep(lost || grace == LONG_GRACE)
            } else {
                Verdict::Open
            };
        }
        let Some(Namespace { labels, .. }) = self.namespaces.get(&cell.namespace) else {
            return Verdict::Goes;
        };
        let granted = self.may(rule, Access::Read, &source.namespace, source.kind)
            && self.may(rule, Access::Write, &cell.namespace, cell.kind);
        if !spec.targets(rule, &cell.namespace, labels) || !granted {
            return keep(unmatched);
        }
        // The rule wants another name or another source here. The copy is deleted once the rule has
        // its other copies. Nothing may stand in their way.
        let free = |(claimed, from): &(Cell, Cell)| {
            self.sources.contains_key(from)
                && !self.foreign.contains_key(claimed)
                && self.claims(claimed).len() == 1
        };
        if !unmatched && !claims.is_empty() && claims.iter().all(free) {
            Verdict::Goes
        } else {
            Verdict::Open
        }
    }

    /// Returns the retention that a copy records for the rule's end, if the rule writes the copy.
    pub fn kept(&self, rule: &RuleId, cell: &Cell) -> Option<bool> {
        let spec = &self.rules.get(rule)?.spec;
        let source = self.claims(cell).remove(rule)?;
        (!spec.suspend && self.sources.contains_key(&source)).then(|| spec.kept())
    }

    /// True if a rule wants the cell and creates it once.
    pub fn once_by(&self, rule: &RuleId, cell: &Cell) -> bool {
        let once = self
            .rules
            .get(rule)
            .is_some_and(|rule| rule.spec.strategy == Strategy::CreateOnce);
        once && self.claims(cell).contains_key(rule)
    }

    /// True if a rule wants the cell and keeps it up to date.
    pub fn kept_by(&self, rule: &RuleId, cell: &Cell) -> bool {
        let once = self
            .rules
            .get(rule)
            .is_some_and(|rule| rule.spec.strategy == Strategy::CreateOnce);
        !once && self.claims(cell).contains_key(rule)
    }

    /// Returns the copies that must exist before a pod in a namespace, each with its rule and
    /// source. These are all the copies that can be written.
    pub fn awaited(&self, namespace: &str) -> Vec<(Cell, RuleId, Cell)> {
        let gated = |id: &&RuleId| {
            let spec = &self.rules[*id].spec;
            id.home.is_none()
                && spec.gate != Gate::None
                && !spec.suspend
                && spec.strategy != Strategy::CreateOnce
        };
        let ids = self.rules.keys().filter(gated);
        let all = ids.flat_map(|id| {
            let claims = self.claims_in(id, namespace).into_iter();
            claims.map(move |(cell, source)| (cell, id.clone(), source))
        });
        let writable = |(cell, _, source): &(Cell, RuleId, Cell)| {
            self.sources.contains_key(source)
                && !self.foreign.contains_key(cell)
                && self.claims(cell).len() == 1
        };
        all.filter(writable).collect()
    }

    /// True if the webhook may deny pods in a namespace: a copy that its rule requires cannot be
    /// written.
    pub fn may_deny(&self, namespace: &str) -> bool {
        let mut required = self
            .rules
            .iter()
            .filter(|(_, rule)| rule.spec.gate == Gate::Required && !rule.spec.suspend);
        required.any(|(id, _)| {
            let mut claims = self.claims_in(id, namespace).into_iter();
            claims.any(|(cell, source)| {
                let alone = self.claims(&cell).len() == 1;
                !self.sources.contains_key(&source) || self.foreign.contains_key(&cell) || !alone
            })
        })
    }
}
