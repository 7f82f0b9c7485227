//! Which namespaces: by name, by pattern, by label; and selectors over the labels of any object.
//!
//! Compiled when the rule is parsed; matching neither fails nor takes more than linear time.

use std::{collections::BTreeSet, sync::Arc};

use mimeo_api::NamespaceSelection;

use self::{glob::GLOB_LOAD, selector::Requirement};
pub use self::{glob::Glob, labels::Labels, pattern::Pattern, selector::Selector};
use crate::{
    names::SYSTEM_NAMESPACES,
    rule::{Refusal, Refusals, syntax},
};

mod dialect;
mod glob;
mod labels;
mod pattern;
mod selector;

/// The label by which the API server gives every namespace its own name, whatever its creator wrote there.
pub const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// Where the API server cuts `generateName` off before it appends five characters, so that the name stays a DNS label.
const GENERATED_PREFIX_LENGTH: usize = 58;

/// Most items of one list of names.
const NAMES: usize = 128;

/// The name of a namespace about to exist: `generateName` gives only its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameHint<'a> {
    /// The name.
    Exact(&'a str),
    /// What the name will begin with, though cut off if it is long.
    Prefix(&'a str),
}

/// The namespaces of one target: those selected and not excluded.
#[derive(Clone, Debug)]
pub struct TargetSelection {
    selection: Selection,
    exclude: Vec<Selection>,
    /// Those that the installation may write into, unless that is all.
    reach: Option<Arc<BTreeSet<Box<str>>>>,
}

impl TargetSelection {
    /// Compiles what `selection` selects, less what any field of `exclude` does. Refusals name fields below `field`.
    pub fn parse(
        selection: &NamespaceSelection,
        exclude: Option<&NamespaceSelection>,
        field: &str,
    ) -> Result<Self, Vec<Refusal>> {
        let mut refusals = Refusals::default();
        let fields = set_fields(selection);
        if fields != 1 {
            let message = "exactly one of namespaces, namespacePattern and namespaceSelector must be set";
            refusals.add(field, format!("{message}, not {fields}"));
        }
        let mut selected = refusals.all(compile(selection, field));
        let mut excluded = Vec::new();
        if let Some(exclude) = exclude {
            let field = format!("{field}.exclude");
            if set_fields(exclude) == 0 {
                let message = "at least one of namespaces, namespacePattern and namespaceSelector must be set";
                refusals.add(&field, message);
            }
            excluded = refusals.all(compile(exclude, &field)).unwrap_or_default();
        }
        let selection = selected.as_mut().and_then(Vec::pop);
        refusals.finish_with(selection.map(|selection| Self { selection, exclude: excluded, reach: None }))
    }

    /// Whether the namespace `name` with these labels is a target.
    ///
    /// Exclusion wins. The system namespaces are matched by their exact names alone.
    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        self.reach.as_ref().is_none_or(|reach| reach.contains(name))
            && (!SYSTEM_NAMESPACES.contains(&name) || self.selection.names(name))
            && self.selection.matches(name, labels)
            && !self.exclude.iter().any(|exclude| exclude.matches(name, labels))
    }

    /// Whether it selects by labels.
    pub fn is_by_labels(&self) -> bool {
        matches!(self.selection, Selection::Labels(_))
    }

    /// Whether a namespace of this name, or of some name that begins so, is a target.
    ///
    /// True in doubt: a name that isn't there yet can't be matched with a pattern, and excludes nothing.
    pub fn could_match(&self, hint: NameHint<'_>, labels: &Labels) -> bool {
        match hint {
            NameHint::Exact(name) => self.matches(name, labels),
            NameHint::Prefix(prefix) => {
                let prefix = prefix.get(..GENERATED_PREFIX_LENGTH).unwrap_or(prefix);
                self.reach.as_ref().is_none_or(|reach| reach.iter().any(|name| name.starts_with(prefix)))
                    && self.selection.could_match(prefix, labels)
                    && !self.exclude.iter().any(|exclude| exclude.matches_whatever_the_name(labels))
            }
        }
    }

    /// Limits it to these namespaces.
    pub(crate) fn confine(&mut self, reach: Option<&Arc<BTreeSet<Box<str>>>>) {
        self.reach = reach.cloned();
    }

    /// The namespaces selected, if each is named; excluded ones and those out of reach among them.
    pub fn exact_names(&self) -> Option<Vec<&str>> {
        let Selection::Names(globs) = &self.selection else { return None };
        globs.iter().map(Glob::literal).collect()
    }

    /// Whether the namespace is named, not found by a glob that matches it.
    pub fn names(&self, name: &str) -> bool {
        self.selection.names(name)
    }

    /// What matching it costs, in names compared.
    pub fn load(&self) -> usize {
        match &self.selection {
            Selection::Names(globs) => globs.iter().map(Glob::load).sum(),
            Selection::Pattern(pattern) => pattern.load(),
            Selection::Labels(selector) => GLOB_LOAD * selector.requirements.len().max(1),
        }
    }

    /// Whether it selects every namespace by an empty selector: worth a word to its author.
    pub fn selects_all(&self) -> bool {
        matches!(&self.selection, Selection::Labels(selector) if selector.is_empty())
    }
}

fn set_fields(selection: &NamespaceSelection) -> usize {
    let NamespaceSelection { namespaces, namespace_pattern, namespace_selector } = selection;
    usize::from(!namespaces.is_empty())
        + usize::from(namespace_pattern.is_some())
        + usize::from(namespace_selector.is_some())
}

/// Every field that is set, compiled, in the order of the fields.
fn compile(selection: &NamespaceSelection, field: &str) -> Result<Vec<Selection>, Vec<Refusal>> {
    let NamespaceSelection { namespaces, namespace_pattern, namespace_selector } = selection;
    let (mut refusals, mut compiled) = (Refusals::default(), Vec::new());
    if !namespaces.is_empty() {
        compiled.extend(refusals.all(globs(namespaces, &format!("{field}.namespaces"))).map(Selection::Names));
    }
    if let Some(pattern) = namespace_pattern {
        let pattern = refusals.one(&format!("{field}.namespacePattern"), Pattern::parse(pattern));
        compiled.extend(pattern.map(Selection::Pattern));
    }
    if let Some(selector) = namespace_selector {
        let selector = refusals.all(Selector::parse(selector, &format!("{field}.namespaceSelector")));
        compiled.extend(selector.map(Selection::Labels));
    }
    refusals.finish_with(Some(compiled))
}

fn globs(names: &[String], field: &str) -> Result<Vec<Glob>, Vec<Refusal>> {
    let mut refusals = Refusals::default();
    if names.len() > NAMES {
        refusals.add(field, format!("must not have more than {NAMES} items"));
    }
    for (i, name) in names.iter().enumerate() {
        refusals.one(&format!("{field}[{i}]"), syntax::namespace_glob(name));
    }
    refusals.finish_with(Some(names.iter().map(|name| Glob::new(name)).collect()))
}

/// One way to choose namespaces.
#[derive(Clone, Debug)]
pub enum Selection {
    /// By name; any of these.
    Names(Vec<Glob>),
    /// By a regular expression over the whole name.
    Pattern(Pattern),
    /// By label.
    Labels(Selector),
}

impl Selection {
    fn matches(&self, name: &str, labels: &Labels) -> bool {
        match self {
            Self::Names(globs) => globs.iter().any(|glob| glob.matches(name)),
            Self::Pattern(pattern) => pattern.matches(name),
            Self::Labels(selector) => selector.matches_by(|key| namespace_label(key, name, labels)),
        }
    }

    /// Whether it has `name` itself in its list, not a glob that matches it.
    fn names(&self, name: &str) -> bool {
        matches!(self, Self::Names(globs) if globs.iter().any(|glob| glob.is(name)))
    }

    /// Whether some name that is longer than `prefix` and begins with it can match.
    fn could_match(&self, prefix: &str, labels: &Labels) -> bool {
        match self {
            Self::Names(globs) => globs.iter().any(|glob| glob.could_match(prefix)),
            Self::Pattern(pattern) => pattern.could_match(prefix),
            Self::Labels(selector) => selector.requirements.iter().all(|requirement| {
                if &*requirement.key == NAMESPACE_NAME {
                    requirement.test.could_pass(prefix)
                } else {
                    requirement.test.passes(labels.get(&requirement.key))
                }
            }),
        }
    }

    fn matches_whatever_the_name(&self, labels: &Labels) -> bool {
        match self {
            Self::Names(_) | Self::Pattern(_) => false,
            Self::Labels(selector) => {
                let by_name = |requirement: &Requirement| &*requirement.key == NAMESPACE_NAME;
                !selector.requirements.iter().any(by_name) && selector.matches(labels)
            }
        }
    }
}

/// A namespace's label as it will be stored: its name is there though a review's object may lack it or lie about it.
fn namespace_label<'a>(key: &str, name: &'a str, labels: &'a Labels) -> Option<&'a str> {
    if key == NAMESPACE_NAME { Some(name) } else { labels.get(key) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn labels(text: &str) -> Labels {
        text.split_whitespace().filter_map(|pair| pair.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect()
    }

    /// A selection from JSON, with its exclusion under `exclude`.
    #[track_caller]
    fn target(mut spec: Value) -> TargetSelection {
        let exclude = spec.as_object_mut().and_then(|spec| spec.remove("exclude"));
        let exclude = exclude.map(|exclude| serde_json::from_value(exclude).unwrap());
        TargetSelection::parse(&serde_json::from_value(spec).unwrap(), exclude.as_ref(), "t").unwrap()
    }

    #[track_caller]
    fn refused(mut spec: Value) -> Vec<String> {
        let exclude = spec.as_object_mut().and_then(|spec| spec.remove("exclude"));
        let exclude = exclude.map(|exclude| serde_json::from_value(exclude).unwrap());
        let refusals =
            TargetSelection::parse(&serde_json::from_value(spec).unwrap(), exclude.as_ref(), "t").unwrap_err();
        refusals.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_way_to_select() {
        let prod = json!({"matchLabels": {"env": "prod"}});
        for (spec, name, with, want) in [
            (json!({"namespaces": ["a", "team-*"]}), "a", "", true),
            (json!({"namespaces": ["a", "team-*"]}), "team-", "", true),
            (json!({"namespaces": ["a", "team-*"]}), "ab", "", false),
            (json!({"namespacePattern": "team-[0-9]+"}), "team-12", "", true),
            (json!({"namespacePattern": "team-[0-9]+"}), "team-12x", "", false),
            (json!({"namespacePattern": "team-[0-9]+"}), "a-team-1", "", false),
            (json!({"namespacePattern": "a|b"}), "ab", "", false),
            (json!({"namespacePattern": "a|b"}), "b", "", true),
            (json!({"namespacePattern": "(?m)a$"}), "a\nb", "", false),
            (json!({"namespaceSelector": {}}), "a", "", true),
            (json!({"namespaceSelector": prod}), "a", "env=prod x=y", true),
            (json!({"namespaceSelector": prod}), "a", "env=dev", false),
            (json!({"namespaceSelector": {"matchLabels": {NAMESPACE_NAME: "a"}}}), "a", "", true),
            (
                json!({"namespaceSelector": {"matchLabels": {NAMESPACE_NAME: "b"}}}),
                "a",
                "kubernetes.io/metadata.name=b",
                false,
            ),
        ] {
            assert_eq!(target(spec.clone()).matches(name, &labels(with)), want, "{spec} {name} {with}");
        }
    }

    #[test]
    fn exclusion_wins_whichever_field_excludes() {
        let all = |exclude: Value| target(json!({"namespaces": ["*"], "exclude": exclude}));
        for exclude in [
            json!({"namespaces": ["sandbox-*"]}),
            json!({"namespacePattern": ".*-7"}),
            json!({"namespaceSelector": {"matchLabels": {"env": "dev"}}}),
            json!({"namespaces": ["x"], "namespacePattern": "y", "namespaceSelector": {"matchLabels": {"env": "dev"}}}),
        ] {
            assert!(!all(exclude.clone()).matches("sandbox-7", &labels("env=dev")), "{exclude}");
            assert!(all(exclude.clone()).matches("other", &labels("env=prod")), "{exclude}");
        }
    }

    #[test]
    fn system_namespaces_only_by_exact_name() {
        for (spec, want) in [
            (json!({"namespaces": ["*"]}), false),
            (json!({"namespaces": ["kube-*"]}), false),
            (json!({"namespaces": ["kube-syste?"]}), false),
            (json!({"namespacePattern": "kube-system"}), false),
            (json!({"namespaceSelector": {}}), false),
            (json!({"namespaces": ["x*", "kube-system"]}), true),
            (json!({"namespaces": ["kube-system"], "exclude": {"namespaces": ["kube-*"]}}), false),
        ] {
            assert_eq!(target(spec.clone()).matches("kube-system", &Labels::new()), want, "{spec}");
        }
    }

    #[test]
    fn selector_operators_as_the_api_server_has_them() {
        let expression = |operator: &str, values: Value| json!({"key": "k", "operator": operator, "values": values});
        for (expression, absent, a, c) in [
            (expression("In", json!(["a", "b"])), false, true, false),
            (expression("NotIn", json!(["a", "b"])), true, false, true),
            (expression("Exists", json!([])), false, true, true),
            (expression("DoesNotExist", json!(null)), true, false, false),
        ] {
            let selector = json!({"matchExpressions": [expression]});
            let selector = Selector::parse(&serde_json::from_value(selector).unwrap(), "s").unwrap();
            for (with, want) in [("other=a", absent), ("k=a", a), ("k=c", c)] {
                assert_eq!(selector.matches(&labels(with)), want, "{expression} {with}");
            }
            let again = Selector::parse(&serde_json::from_value(selector.to_json()).unwrap(), "s").unwrap();
            assert_eq!(again, selector);
        }
    }

    #[test]
    fn generated_names_match_if_some_name_could() {
        let by_name = |operator, name: &str| json!({"key": NAMESPACE_NAME, "operator": operator, "values": [name]});
        let not_dev = json!({"matchExpressions": [by_name("NotIn", "team-a"), {"key": "dev", "operator": "Exists"}]});
        for (spec, prefix, with, want) in [
            (json!({"namespaces": ["team-a"]}), "team-", "", true),
            (json!({"namespaces": ["team-a"]}), "team-a", "", false),
            (json!({"namespaces": ["team-a"]}), "other-", "", false),
            (json!({"namespaces": ["team-*"]}), "te", "", true),
            (json!({"namespaces": ["team-*"]}), "team-a-", "", true),
            (json!({"namespaces": ["team-*"]}), "other-", "", false),
            (json!({"namespaces": ["te?m-?????"]}), "team-", "", true),
            (json!({"namespaces": ["*-x"]}), "team-", "", true),
            (json!({"namespacePattern": "team-[0-9]+"}), "team-", "", true),
            (json!({"namespacePattern": "team-[0-9]+"}), "other-", "", false),
            (json!({"namespacePattern": "^team-"}), "te", "", true),
            (json!({"namespacePattern": "team-?x"}), "teamx", "", true),
            (json!({"namespacePattern": "a|b"}), "c", "", true),
            (json!({"namespaceSelector": {"matchLabels": {"env": "prod"}}}), "x", "env=prod", true),
            (json!({"namespaceSelector": {"matchLabels": {"env": "prod"}}}), "x", "env=dev", false),
            (json!({"namespaceSelector": {"matchExpressions": [by_name("In", "team-abcde")]}}), "team-", "", true),
            (json!({"namespaceSelector": {"matchExpressions": [by_name("In", "team-abcde")]}}), "x-", "", false),
            (json!({"namespaceSelector": {"matchExpressions": [by_name("NotIn", "x")]}}), "x", "", true),
            (json!({"namespaces": ["*"], "exclude": {"namespaces": ["team-*"]}}), "team-", "", true),
            (
                json!({"namespaces": ["*"], "exclude": {"namespaceSelector": {"matchLabels": {"dev": ""}}}}),
                "x",
                "dev=",
                false,
            ),
            (json!({"namespaces": ["*"], "exclude": {"namespaceSelector": not_dev}}), "team-", "dev=", true),
        ] {
            let could = target(spec.clone()).could_match(NameHint::Prefix(prefix), &labels(with));
            assert_eq!(could, want, "{spec} {prefix} {with}");
        }
        let long = "a".repeat(60);
        let cut_off = target(json!({"namespaces": [format!("{}bcdfg", "a".repeat(58))]}));
        assert!(cut_off.could_match(NameHint::Prefix(&long), &Labels::new()));
        assert!(!target(json!({"namespaces": ["a"]})).could_match(NameHint::Exact("ab"), &Labels::new()));
    }

    #[test]
    fn parse_refuses_with_the_field_and_the_reason() {
        let expression = |key: &str, operator: &str, values: Value| json!({"namespaceSelector": {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}});
        for (spec, want) in [
            (json!({}), "t: exactly one of"),
            (json!({"namespaces": []}), "t: exactly one of"),
            (json!({"namespaces": ["a"], "namespaceSelector": {}}), "t: exactly one of"),
            (json!({"namespaces": ["a", "B"]}), "t.namespaces[1]: \"B\" is neither"),
            (json!({"namespaces": [""]}), "t.namespaces[0]: must not be empty"),
            (json!({"namespaces": vec!["a"; 129]}), "t.namespaces: must not have more"),
            (json!({"namespacePattern": ""}), "t.namespacePattern: must not be empty"),
            (json!({"namespacePattern": "a["}), "t.namespacePattern: not a regular expression: unclosed"),
            (json!({"namespacePattern": "a)|(b"}), "t.namespacePattern: not a regular expression: unopened"),
            (json!({"namespacePattern": "(a{1000}){1000}"}), "t.namespacePattern: not a regular expression that fits"),
            (json!({"namespacePattern": "a".repeat(257)}), "t.namespacePattern: must not be longer"),
            (
                json!({"namespaceSelector": {"matchLabels": {"a b": "c"}}}),
                "t.namespaceSelector.matchLabels[a b]: \"a b\"",
            ),
            (
                json!({"namespaceSelector": {"matchLabels": {"a": "c d"}}}),
                "t.namespaceSelector.matchLabels[a]: \"c d\" is",
            ),
            (expression("/", "Exists", json!([])), "t.namespaceSelector.matchExpressions[0].key: "),
            (expression("a", "in", json!(["b"])), "t.namespaceSelector.matchExpressions[0].operator: must be one"),
            (expression("a", "In", json!([])), "t.namespaceSelector.matchExpressions[0].values: must not be empty"),
            (
                expression("a", "NotIn", json!(null)),
                "t.namespaceSelector.matchExpressions[0].values: must not be empty",
            ),
            (expression("a", "Exists", json!(["b"])), "t.namespaceSelector.matchExpressions[0].values: must be empty"),
            (expression("a", "In", json!(["b", "c d"])), "t.namespaceSelector.matchExpressions[0].values: \"c d\""),
            (json!({"namespaces": ["a"], "exclude": {}}), "t.exclude: at least one"),
            (json!({"namespaces": ["a"], "exclude": {"namespacePattern": "("}}), "t.exclude.namespacePattern: not a"),
        ] {
            let refusals = refused(spec.clone());
            assert_eq!(refusals.len(), 1, "{refusals:?}");
            assert!(refusals[0].starts_with(want), "{spec}: {refusals:?}");
        }
        assert_eq!(refused(json!({"namespaces": ["A", "B"], "exclude": {"namespaces": ["C"]}})).len(), 3);
    }

    proptest! {
        /// Nothing that matches once the name is known was ruled out by its beginning.
        #[test]
        fn no_beginning_rules_out_what_matches(
            glob in "[ab*?]{1,6}", pattern in "[ab]{0,3}([ab.][*+?]?|\\(a\\|b\\)){0,3}", text in "[ab]{0,4}", tail in "[ab]{5}",
        ) {
            let name = format!("{text}{tail}");
            for spec in [json!({"namespaces": [glob]}), json!({"namespacePattern": format!("{pattern}[ab]*")})] {
                let target = target(spec);
                let could = target.could_match(NameHint::Prefix(&text), &Labels::new());
                prop_assert!(could || !target.matches(&name, &Labels::new()));
            }
        }
    }
}
