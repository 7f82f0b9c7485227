//! The selection of namespaces by name, by pattern and by label, and selectors for the labels of
//! any object.
//!
//! Selections are checked, and their patterns and selectors compiled, when the rule is parsed. So a
//! match never fails, and takes at most linear time.

use mimeo_api::NamespaceSelection;

use self::glob::GLOB_LOAD;
pub use self::{glob::Glob, labels::Labels, pattern::Pattern, selector::Selector};
use crate::{names::SYSTEM_NAMESPACES, refusal::Refusals, syntax};

mod glob;
mod labels;
mod pattern;
mod selector;

/// The label that holds the name of a namespace. The API server sets it and ignores the creator's
/// value.
pub const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// Most items of one list of names.
const NAMES: usize = 128;

/// A namespace, as selections and the variables of a copy see it.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Name of the namespace.
    pub name: &'a str,
    /// Labels of the namespace.
    pub labels: &'a Labels,
}

/// Why a namespace is not selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// For people, about the namespace as "it".
    pub why: String,
    /// A label (`key=value`) that the namespace would need, if its labels decide. It may have the
    /// key with another value.
    pub label: Option<String>,
}

impl Mismatch {
    pub(crate) fn of(why: &str) -> Self {
        Self {
            why: why.into(),
            label: None,
        }
    }
}

/// A selection of namespaces. At least one of the fields is set, and all that are set must match.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Names and globs. Any of them must match.
    names: Option<Vec<String>>,
    /// A regular expression over the whole name.
    pattern: Option<Pattern>,
    labels: Option<Selector>,
}

impl Selection {
    /// Compiles `selection`. Refusals name fields below `field`.
    pub(crate) fn parse(
        selection: &NamespaceSelection,
        field: &str,
        refusals: &mut Refusals,
    ) -> Self {
        let NamespaceSelection {
            namespaces,
            namespace_pattern,
            namespace_selector,
        } = selection;
        if *selection == NamespaceSelection::default() {
            refusals.add(
                field,
                "at least one of namespaces, namespacePattern and namespaceSelector must be set",
            );
        }
        let at_names = format!("{field}.namespaces");
        refusals.each(&at_names, namespaces, NAMES, syntax::namespace_glob);
        let pattern = namespace_pattern.as_deref().and_then(|pattern| {
            refusals.one(
                &format!("{field}.namespacePattern"),
                Pattern::parse(pattern),
            )
        });
        let labels = namespace_selector.as_ref().map(|selector| {
            Selector::parse(selector, &format!("{field}.namespaceSelector"), refusals)
        });
        Self {
            names: (!namespaces.is_empty()).then(|| namespaces.clone()),
            pattern,
            labels,
        }
    }

    /// True if the namespace is a target or a grantee. A system namespace is one only if its exact
    /// name is listed.
    pub(crate) fn selects(&self, place: Place<'_>) -> bool {
        (!SYSTEM_NAMESPACES.contains(&place.name) || self.names(place.name)) && self.matches(place)
    }

    /// True if all set fields match the namespace, as for an exclusion. System namespaces are no
    /// exception here.
    pub(crate) fn matches(&self, place: Place<'_>) -> bool {
        self.names
            .as_ref()
            .is_none_or(|globs| globs.iter().any(|glob| Glob(glob).matches(place.name)))
            && self
                .pattern
                .as_ref()
                .is_none_or(|pattern| pattern.matches(place.name))
            && self
                .labels
                .as_ref()
                .is_none_or(|selector| selector.matches_by(|key| namespace_label(key, place)))
    }

    /// Returns the first part that does not match the namespace, for people.
    pub(crate) fn mismatch(&self, place: Place<'_>) -> Option<Mismatch> {
        let globs = self.names.as_ref();
        if globs.is_some_and(|globs| !globs.iter().any(|glob| Glob(glob).matches(place.name))) {
            return Some(Mismatch::of("no item of namespaces matches its name"));
        }
        if self
            .pattern
            .as_ref()
            .is_some_and(|pattern| !pattern.matches(place.name))
        {
            let why = "namespacePattern doesn't match its whole name";
            return Some(Mismatch::of(why));
        }
        let mut requirements = self.labels.iter().flat_map(|labels| &labels.requirements);
        requirements.find_map(|requirement| {
            let value = namespace_label(&requirement.key, place);
            (!requirement.test.passes(value)).then(|| {
                let found = match value {
                    Some(value) => format!("is {value:?}"),
                    None => "is not set".into(),
                };
                let wanted = requirement.to_query();
                let key = &requirement.key;
                Mismatch {
                    why: format!("namespaceSelector needs {wanted}, and its label {key} {found}"),
                    label: requirement
                        .test
                        .example()
                        .map(|value| format!("{key}={value}")),
                }
            })
        })
    }

    /// True if the exact name is listed. A glob that matches it does not count.
    pub fn names(&self, name: &str) -> bool {
        self.names.iter().flatten().any(|listed| listed == name)
    }

    /// True if it selects by labels.
    pub fn is_by_labels(&self) -> bool {
        self.labels.is_some()
    }

    /// The names in its list, if all of them are exact. No other namespace is selected, but the
    /// selection may still leave some of these out.
    pub fn exact_names(&self) -> Option<Vec<&str>> {
        self.names
            .as_ref()?
            .iter()
            .map(|name| Glob(name).literal())
            .collect()
    }

    /// True if it selects by a pattern.
    pub fn is_by_pattern(&self) -> bool {
        self.pattern.is_some()
    }

    /// The cost of a match, in names compared.
    pub fn load(&self) -> usize {
        let Self {
            names,
            pattern,
            labels,
        } = self;
        names
            .iter()
            .flatten()
            .map(|name| Glob(name).load())
            .sum::<usize>()
            + pattern.as_ref().map_or(0, Pattern::load)
            + labels
                .as_ref()
                .map_or(0, |selector| GLOB_LOAD * selector.requirements.len().max(1))
    }

    /// True if an empty selector alone selects every namespace. The author of the rule gets a
    /// warning then.
    pub fn selects_all(&self) -> bool {
        let labels = self.labels.as_ref();
        self.names.is_none() && self.pattern.is_none() && labels.is_some_and(Selector::is_empty)
    }
}

/// The value of a namespace's label as it will be stored. The object in a review may lack the label
/// with the name, or have a wrong value there.
fn namespace_label<'a>(key: &str, place: Place<'a>) -> Option<&'a str> {
    if key == NAMESPACE_NAME {
        Some(place.name)
    } else {
        place.labels.get(key)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{rule::Target, template::Template};

    fn labels(text: &str) -> Labels {
        text.split_whitespace()
            .filter_map(|pair| pair.split_once('='))
            .map(|(k, v)| (k.into(), v.into()))
            .collect()
    }

    /// A selection from JSON. The key `exclude` has the exclusions.
    #[track_caller]
    fn target(mut spec: Value) -> Target {
        let exclude = spec.as_object_mut().and_then(|spec| spec.remove("exclude"));
        let exclude = exclude
            .as_ref()
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        let exclude = exclude.map(|one| {
            let one = serde_json::from_value(one.clone()).unwrap();
            Refusals::of(|refusals| Selection::parse(&one, "exclude", refusals)).unwrap()
        });
        let spec = serde_json::from_value(spec).unwrap();
        Target {
            exclude: exclude.collect(),
            selection: Refusals::of(|refusals| Selection::parse(&spec, "t", refusals)).unwrap(),
            reach: None,
            copy_name: Template::source_name(),
        }
    }

    #[track_caller]
    fn refused(spec: Value) -> Vec<String> {
        let spec = serde_json::from_value(spec).unwrap();
        let refusals = Refusals::of(|refusals| Selection::parse(&spec, "t", refusals)).unwrap_err();
        refusals.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_way_to_select() {
        let prod = json!({"matchLabels": {"env": "prod"}});
        for (spec, name, with, want) in [
            (json!({"namespaces": ["a", "team-*"]}), "a", "", true),
            (json!({"namespaces": ["a", "team-*"]}), "team-", "", true),
            (json!({"namespaces": ["a", "team-*"]}), "ab", "", false),
            (
                json!({"namespacePattern": "team-[0-9]+"}),
                "team-12",
                "",
                true,
            ),
            (
                json!({"namespacePattern": "team-[0-9]+"}),
                "team-12x",
                "",
                false,
            ),
            (
                json!({"namespacePattern": "team-[0-9]+"}),
                "a-team-1",
                "",
                false,
            ),
            (json!({"namespacePattern": "a|b"}), "ab", "", false),
            (json!({"namespacePattern": "a|b"}), "b", "", true),
            (json!({"namespacePattern": "a$"}), "a\nb", "", false),
            (json!({"namespaceSelector": {}}), "a", "", true),
            (
                json!({"namespaceSelector": prod}),
                "a",
                "env=prod x=y",
                true,
            ),
            (json!({"namespaceSelector": prod}), "a", "env=dev", false),
            (
                json!({"namespaceSelector": {"matchLabels": {NAMESPACE_NAME: "a"}}}),
                "a",
                "",
                true,
            ),
            (
                json!({"namespaceSelector": {"matchLabels": {NAMESPACE_NAME: "b"}}}),
                "a",
                "kubernetes.io/metadata.name=b",
                false,
            ),
        ] {
            assert_eq!(
                target(spec.clone()).matches(Place {
                    name,
                    labels: &labels(with)
                }),
                want,
                "{spec} {name} {with}"
            );
        }
    }

    #[test]
    fn what_is_set_must_all_match() {
        let dev = json!({"matchLabels": {"env": "dev"}});
        for (spec, [team_dev, team_prod, other_dev]) in [
            (
                json!({"namespaces": ["team-*"], "namespaceSelector": dev}),
                [true, false, false],
            ),
            (
                json!({"namespacePattern": "team-[0-9]+", "namespaceSelector": dev}),
                [true, false, false],
            ),
            (
                json!({"namespaces": ["team-*"], "namespacePattern": ".*-7"}),
                [true, true, false],
            ),
            (
                json!({"namespaces": ["team-*"], "namespacePattern": ".*-8"}),
                [false, false, false],
            ),
            (
                json!({"namespaces": ["team-7"], "namespacePattern": ".*-7", "namespaceSelector": dev}),
                [true, false, false],
            ),
        ] {
            let target = target(spec.clone());
            let matched = [
                ("team-7", "env=dev"),
                ("team-7", "env=prod"),
                ("other", "env=dev"),
            ]
            .map(|(name, with)| {
                let labels = &labels(with);
                target.matches(Place { name, labels })
            });
            assert_eq!(matched, [team_dev, team_prod, other_dev], "{spec}");
        }
    }

    #[test]
    fn exclusion_wins_whichever_item_excludes() {
        let all = |exclude: Value| target(json!({"namespaces": ["*"], "exclude": exclude}));
        let dev = json!({"matchLabels": {"env": "dev"}});
        for exclude in [
            json!([{"namespaces": ["sandbox-*"]}]),
            json!([{"namespacePattern": ".*-7"}]),
            json!([{"namespaceSelector": dev}]),
            json!([{"namespaces": ["x"]}, {"namespacePattern": "y"}, {"namespaceSelector": dev}]),
            json!([{"namespaces": ["sandbox-*"], "namespacePattern": ".*-7", "namespaceSelector": dev}]),
        ] {
            assert!(
                !all(exclude.clone()).matches(Place {
                    name: "sandbox-7",
                    labels: &labels("env=dev")
                }),
                "{exclude}"
            );
            assert!(
                all(exclude.clone()).matches(Place {
                    name: "other",
                    labels: &labels("env=prod")
                }),
                "{exclude}"
            );
        }
        assert!(
            all(json!([{"namespaces": ["sandbox-*"], "namespaceSelector": dev}])).matches(Place {
                name: "sandbox-7",
                labels: &labels("")
            })
        );
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
            (
                json!({"namespaces": ["kube-system"], "exclude": [{"namespaces": ["kube-*"]}]}),
                false,
            ),
        ] {
            assert_eq!(
                target(spec.clone()).matches(Place {
                    name: "kube-system",
                    labels: &Labels::new()
                }),
                want,
                "{spec}"
            );
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
            let parse = |selector: Value| {
                let selector = serde_json::from_value(selector).unwrap();
                Refusals::of(|refusals| Selector::parse(&selector, "s", refusals)).unwrap()
            };
            let selector = parse(selector);
            for (with, want) in [("other=a", absent), ("k=a", a), ("k=c", c)] {
                assert_eq!(selector.matches(&labels(with)), want, "{expression} {with}");
            }
        }
    }

    #[test]
    fn parse_refuses_with_the_field_and_the_reason() {
        let expression = |key: &str, operator: &str, values: Value| json!({"namespaceSelector": {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}});
        for (spec, want) in [
            (json!({}), "t: at least one of"),
            (json!({"namespaces": []}), "t: at least one of"),
            (
                json!({"namespaces": ["a", "B"]}),
                "t.namespaces[1]: \"B\" is not a valid name",
            ),
            (
                json!({"namespaces": [""]}),
                "t.namespaces[0]: must not be empty",
            ),
            (
                json!({"namespaces": vec!["a"; 129]}),
                "t.namespaces: must not have more",
            ),
            (
                json!({"namespacePattern": ""}),
                "t.namespacePattern: must not be empty",
            ),
            (
                json!({"namespacePattern": "a["}),
                "t.namespacePattern: not a regular expression: unclosed",
            ),
            (
                json!({"namespacePattern": "a)|(b"}),
                "t.namespacePattern: not a regular expression: unopened",
            ),
            (
                json!({"namespacePattern": "(a{1000}){1000}"}),
                "t.namespacePattern: not a regular expression that fits",
            ),
            (
                json!({"namespacePattern": "a".repeat(257)}),
                "t.namespacePattern: must not be longer",
            ),
            (
                json!({"namespaceSelector": {"matchLabels": {"a b": "c"}}}),
                "t.namespaceSelector.matchLabels[a b]: \"a b\"",
            ),
            (
                json!({"namespaceSelector": {"matchLabels": {"a": "c d"}}}),
                "t.namespaceSelector.matchLabels[a]: \"c d\" is",
            ),
            (
                expression("/", "Exists", json!([])),
                "t.namespaceSelector.matchExpressions[0].key: ",
            ),
            (
                expression("a", "in", json!(["b"])),
                "t.namespaceSelector.matchExpressions[0].operator: must be one",
            ),
            (
                expression("a", "In", json!([])),
                "t.namespaceSelector.matchExpressions[0].values: must not be empty",
            ),
            (
                expression("a", "NotIn", json!(null)),
                "t.namespaceSelector.matchExpressions[0].values: must not be empty",
            ),
            (
                expression("a", "Exists", json!(["b"])),
                "t.namespaceSelector.matchExpressions[0].values: must be empty",
            ),
            (
                expression("a", "In", json!(["b", "c d"])),
                "t.namespaceSelector.matchExpressions[0].values: \"c d\"",
            ),
        ] {
            let refusals = refused(spec.clone());
            assert_eq!(refusals.len(), 1, "{refusals:?}");
            assert!(refusals[0].starts_with(want), "{spec}: {refusals:?}");
        }
        assert_eq!(
            refused(json!({"namespaces": ["A", "B"], "namespacePattern": "("})).len(),
            3
        );
    }
}
