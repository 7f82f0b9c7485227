//! The targets of a rule: namespaces, and the copies' names there.

use std::{collections::BTreeMap, sync::Arc};

use mimeo_api::{ClusterReplicationSpec, NamespaceSelection};

use super::source::Sources;
use crate::{
    kind::GroupKind,
    refusal::{ITEMS, Refusal, Refusals},
    selection::{Selection, TargetSelection},
    source::SourceRef,
    syntax,
    template::{Template, Variable, check_sample, hint},
};

/// Namespaces that get copies, and the copies' name there.
#[derive(Clone, Debug)]
pub struct Target {
    /// The selected namespaces.
    pub selection: TargetSelection,
    /// Name of the copies. `None` means the source's name.
    pub copy_name: Option<Template>,
}

/// Parses the targets without the excluded namespaces, and skips refused targets.
pub(super) fn parse_targets(
    spec: &ClusterReplicationSpec,
    sources: &Sources,
    refusals: &mut Refusals,
) -> Vec<Target> {
    refusals.count("spec.targets", spec.targets.len());
    let parse = |(i, target)| {
        refusals.all(Target::parse(
            target,
            sources,
            &format!("spec.targets[{i}]"),
        ))
    };
    let targets: Vec<Target> = spec.targets.iter().enumerate().filter_map(parse).collect();
    if spec.exclude.len() > ITEMS {
        refusals.add(
            "spec.exclude",
            format!("must not have more than {ITEMS} items"),
        );
    }
    let parse = |(i, one): (usize, &NamespaceSelection)| {
        refusals.all(Selection::parse(one, &format!("spec.exclude[{i}]")))
    };
    let exclude: Arc<[Selection]> = spec.exclude.iter().enumerate().filter_map(parse).collect();
    targets
        .into_iter()
        .map(|target| Target {
            selection: target.selection.excluding(&exclude),
            ..target
        })
        .collect()
}

impl Target {
    fn parse(
        target: &mimeo_api::Target,
        sources: &Sources,
        field: &str,
    ) -> Result<Self, Vec<Refusal>> {
        let mut refusals = Refusals::default();
        let selection = refusals.all(TargetSelection::parse(&target.selection, field));
        let at_name = format!("{field}.copyName");
        let name = target
            .copy_name
            .as_deref()
            .and_then(|name| refusals.one(&at_name, Template::parse(name)));
        let target = selection.map(|selection| Self {
            selection,
            copy_name: name.clone(),
        });
        let several = sources.known.len() > 1 || !sources.selectors.is_empty();
        if name
            .as_ref()
            .is_some_and(|name| several && !name.names_source())
        {
            refusals.add(
                at_name,
                "must contain $(source.name), because the rule has several sources",
            );
        } else {
            refuse_copy_names(name.as_ref(), &sources.known, &at_name, &mut refusals);
            for selector in &sources.selectors {
                refuse_copy_names(
                    name.as_ref(),
                    &[selector.source("x")],
                    &at_name,
                    &mut refusals,
                );
            }
        }
        refusals.finish_with(target)
    }

    /// Name of the copies of `source`. It may still have variables of the namespace.
    pub fn copy_name(&self, source: &SourceRef) -> Template {
        copy_name(self.copy_name.as_ref(), source)
    }
}

fn copy_name(template: Option<&Template>, source: &SourceRef) -> Template {
    template.map_or_else(
        || Template::of_text(&source.name),
        |template| template.of_source(source),
    )
}

/// Refuses invalid names, and sources that would share one copy in every namespace.
fn refuse_copy_names(
    template: Option<&Template>,
    sources: &[SourceRef],
    field: &str,
    refusals: &mut Refusals,
) {
    let mut copies: BTreeMap<(GroupKind, String), &SourceRef> = BTreeMap::new();
    for source in sources {
        let name = copy_name(template, source);
        if let Err(why) = check_sample(&name, |name| syntax::object_name(&source.gvk.group, name)) {
            let hint = hint(&name.text(|variable| variable.to_string().into()));
            refusals.add(
                field,
                format!("the name of the copy of {source} {why}{hint}"),
            );
        }
        let name = name.text(|variable| variable.to_string().into());
        if let Some(first) = copies.insert((source.gvk.group_kind(), name.clone()), source) {
            refusals.add(
                field,
                format!("the copies of {first} and {source} would both be named {name:?}"),
            );
        }
    }
}

/// Refuses names with labels of the namespace. A user with the permission to label a namespace
/// could choose the object that Mimeo overwrites there.
pub(super) fn refuse_chosen_names(targets: &[mimeo_api::Target], refusals: &mut Refusals) {
    for (i, target) in targets.iter().enumerate() {
        if labels_of_the_namespace(target.copy_name.as_deref()) {
            let why = "must not contain labels of the namespace if conflictPolicy is Overwrite: \
                users who set the labels would choose what is overwritten";
            refusals.add(format!("spec.targets[{i}].copyName"), why);
        }
    }
}

pub(super) fn labels_of_the_namespace(name: Option<&str>) -> bool {
    let name = name.and_then(|name| Template::parse(name).ok());
    name.is_some_and(|name| {
        name.variables()
            .any(|variable| matches!(variable, Variable::Label(_)))
    })
}
