//! Where a rule's copies go, and what they are called there.

use std::collections::BTreeMap;

use super::{Refusal, Refusals, SourceRef, source::Sources, syntax};
use crate::{
    kind::GroupKind,
    selection::TargetSelection,
    template::{Template, Variable, check_sample},
};

/// Namespaces that get copies, and the copies' name there.
#[derive(Clone, Debug)]
pub struct Target {
    /// Which namespaces.
    pub selection: TargetSelection,
    /// Name of the copies; the source's if absent.
    pub name: Option<Template>,
}

/// The targets that can be parsed.
pub(super) fn parse_targets(targets: &[mimeo_api::Target], sources: &Sources, refusals: &mut Refusals) -> Vec<Target> {
    refusals.count("spec.targets", targets.len());
    let parse = |(i, target)| refusals.all(Target::parse(target, sources, &format!("spec.targets[{i}]")));
    targets.iter().enumerate().filter_map(parse).collect()
}

impl Target {
    fn parse(target: &mimeo_api::Target, sources: &Sources, field: &str) -> Result<Self, Vec<Refusal>> {
        let mut refusals = Refusals::default();
        let selection = refusals.all(TargetSelection::parse(&target.selection, target.exclude.as_ref(), field));
        let at_name = format!("{field}.name");
        let name = target.name.as_deref().and_then(|name| refusals.one(&at_name, Template::parse(name)));
        let target = selection.map(|selection| Self { selection, name: name.clone() });
        let several = sources.known.len() > 1 || !sources.selectors.is_empty();
        if name.as_ref().is_some_and(|name| several && !name.names_source()) {
            refusals.add(at_name, "must contain $(source.name), since the rule has several sources");
        } else {
            refuse_copy_names(name.as_ref(), &sources.known, &at_name, &mut refusals);
            for selector in &sources.selectors {
                refuse_copy_names(name.as_ref(), &[selector.source("x")], &at_name, &mut refusals);
            }
        }
        refusals.finish_with(target)
    }

    /// Name of the copies of `source`, in which variables of the namespace may be left.
    pub fn copy_name(&self, source: &SourceRef) -> Template {
        copy_name(self.name.as_ref(), source)
    }
}

fn copy_name(template: Option<&Template>, source: &SourceRef) -> Template {
    template.map_or_else(|| Template::of_text(&source.name), |template| template.of_source(source))
}

/// Refuses names that can't be, and sources that would share one copy in every namespace.
fn refuse_copy_names(template: Option<&Template>, sources: &[SourceRef], field: &str, refusals: &mut Refusals) {
    let mut copies: BTreeMap<(GroupKind, String), &SourceRef> = BTreeMap::new();
    for source in sources {
        let name = copy_name(template, source);
        if let Err(why) = check_sample(&name, |name| syntax::object_name(&source.gvk.group, name)) {
            refusals.add(field, format!("the name of the copy of {source} {why}"));
        }
        let name = name.text(|variable| variable.to_string().into());
        if let Some(first) = copies.insert((source.gvk.group_kind(), name.clone()), source) {
            refusals
                .add(field, format!("does not tell {first} and {source} apart: both copies would be named {name:?}"));
        }
    }
}

/// Refuses names that whoever labels a namespace makes up as they like: of what is overwritten there they would have the choice.
pub(super) fn refuse_chosen_names(targets: &[mimeo_api::Target], refusals: &mut Refusals) {
    for (i, target) in targets.iter().enumerate() {
        if labels_of_the_namespace(target.name.as_deref()) {
            let why = "must not have labels of the namespace in it if conflictPolicy is Overwrite: who sets them would choose \
                       what is overwritten";
            refusals.add(format!("spec.targets[{i}].name"), why);
        }
    }
}

pub(super) fn labels_of_the_namespace(name: Option<&str>) -> bool {
    let name = name.and_then(|name| Template::parse(name).ok());
    name.is_some_and(|name| name.variables().any(|variable| matches!(variable, Variable::Label(_))))
}
