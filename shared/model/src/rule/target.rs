//! The targets of a rule: namespaces, and the copies' names there.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mimeo_api::ClusterReplicationSpec;

use super::source::Sources;
use crate::{
    kind::GroupKind,
    refusal::{ITEMS, Refusals},
    selection::{Mismatch, Place, Selection},
    source::SourceRef,
    syntax,
    template::{Template, Variable, check_sample, label_in},
};

/// Namespaces that get copies, and the copies' name there.
#[derive(Clone, Debug)]
pub struct Target {
    /// The selected namespaces. The rule may exclude some of them.
    pub selection: Selection,
    /// The excluded namespaces: all that any of these selections matches.
    pub(crate) exclude: Arc<[Selection]>,
    /// The namespaces that this installation may write into. `None` means all.
    pub(crate) reach: Option<Arc<BTreeSet<Box<str>>>>,
    /// Name of the copies. The default is the source's name.
    pub(crate) copy_name: Template,
}

/// Parses the targets without the excluded namespaces.
pub(super) fn parse_targets(
    spec: &ClusterReplicationSpec,
    sources: &Sources,
    refusals: &mut Refusals,
) -> Vec<Target> {
    refusals.count("spec.targets", spec.targets.len(), ITEMS);
    let parse =
        |(i, target)| Target::parse(target, sources, &format!("spec.targets[{i}]"), refusals);
    let mut targets: Vec<Target> = spec.targets.iter().enumerate().map(parse).collect();
    refusals.limit("spec.exclude", spec.exclude.len(), ITEMS);
    let parse = |(i, one)| Selection::parse(one, &format!("spec.exclude[{i}]"), refusals);
    let exclude: Arc<[Selection]> = spec.exclude.iter().enumerate().map(parse).collect();
    for target in &mut targets {
        target.exclude = exclude.clone();
    }
    targets
}

impl Target {
    fn parse(
        target: &mimeo_api::Target,
        sources: &Sources,
        field: &str,
        refusals: &mut Refusals,
    ) -> Self {
        let selection = Selection::parse(&target.selection, field, refusals);
        let field = format!("{field}.copyName");
        let copy_name = target
            .copy_name
            .as_deref()
            .and_then(|name| refusals.one(&field, Template::parse(name)));
        let target = Self {
            selection,
            exclude: Arc::default(),
            reach: None,
            copy_name: copy_name.unwrap_or_else(Template::source_name),
        };
        let several = sources.known.len() > 1 || !sources.selectors.is_empty();
        if several && !target.copy_name.names_source() {
            refusals.add(
                field,
                "must contain $(source.name), because the rule has several sources",
            );
        } else {
            target.refuse_copy_names(&sources.known, &field, refusals);
            for selector in &sources.selectors {
                target.refuse_copy_names(&[selector.source("x")], &field, refusals);
            }
        }
        target
    }

    /// True if the namespace gets copies. Exclusion wins.
    pub fn matches(&self, place: Place<'_>) -> bool {
        self.is_reached(place.name)
            && self.selection.selects(place)
            && !self.exclude.iter().any(|exclude| exclude.matches(place))
    }

    /// Returns why the namespace gets no copies: the first of the reasons, for people. `None`: it
    /// gets copies.
    pub fn mismatch(&self, place: Place<'_>) -> Option<Mismatch> {
        let why = |why: &str| Some(Mismatch::of(why));
        if self.matches(place) {
            return None;
        }
        if !self.is_reached(place.name) {
            return why("this installation writes no copies into it (--target-namespaces)");
        }
        if let Some(mismatch) = self.selection.mismatch(place) {
            return Some(mismatch);
        }
        let excluded = |exclude: &Selection| exclude.matches(place);
        if let Some(item) = self.exclude.iter().position(excluded) {
            return why(&format!("spec.exclude[{item}] matches it"));
        }
        why("a namespace of Kubernetes itself is selected only by its exact name")
    }

    fn is_reached(&self, name: &str) -> bool {
        self.reach.as_ref().is_none_or(|reach| reach.contains(name))
    }

    /// Name of the copies of `source`. It may still have variables of the namespace.
    pub fn copy_name(&self, source: &SourceRef) -> Template {
        self.copy_name.of_source(source)
    }

    /// Refuses invalid names, and sources that would share one copy in every namespace.
    fn refuse_copy_names(&self, sources: &[SourceRef], field: &str, refusals: &mut Refusals) {
        let mut copies: BTreeMap<(GroupKind, String), &SourceRef> = BTreeMap::new();
        for source in sources {
            let name = self.copy_name(source);
            let text = name.text(Variable::to_string);
            let check = |name: &str| syntax::object_name(&source.gvk.group, name);
            if let Err(why) = check_sample(&name, check) {
                refusals.add(field, format!("the name of the copy of {source} {why}"));
            }
            if let Some(first) = copies.insert((source.gvk.group_kind(), text.clone()), source) {
                refusals.add(
                    field,
                    format!("the copies of {first} and {source} would both be named {text:?}"),
                );
            }
        }
    }
}

/// Refuses names with labels of the namespace. A user with the permission to label a namespace
/// could choose the object that Mimeo overwrites there.
pub(super) fn refuse_chosen_names(targets: &[mimeo_api::Target], refusals: &mut Refusals) {
    for (i, target) in targets.iter().enumerate() {
        if target.copy_name.as_deref().and_then(label_in).is_some() {
            let why = "must not contain labels of the namespace if conflictPolicy is Overwrite: \
                users who set the labels would choose what is overwritten";
            refusals.add(format!("spec.targets[{i}].copyName"), why);
        }
    }
}
