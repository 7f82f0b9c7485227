//! Text with variables: `$(source.name)`, `$(source.namespace)`, `$(namespace.name)` and
//! `$(namespace.labels['key'])`.
//!
//! Names of copies are parsed once, together with their rule. Other texts are checked then, and
//! parsed when a copy is drafted. The source's values are filled in at the same time, and this
//! can't fail. The values of the copy's namespace are filled in last. This fails if the namespace
//! lacks the label.

use std::{borrow::Cow, collections::BTreeSet, fmt, iter};

use serde_json::Value;

use crate::{selection::Place, source::SourceRef, syntax};

/// Text with variables. Any other `$(...)` is plain text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    SourceName,
    SourceNamespace,
    Namespace(Variable),
}

/// A variable that takes its value from the copy's namespace. Prints as it is written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Variable {
    /// The name of the namespace.
    Name,
    /// The value of the namespace's label with this key.
    Label(Box<str>),
}

/// Returns the text that stands for each variable of the namespace.
pub(crate) type Show<'a> = &'a dyn Fn(&Variable) -> String;

impl Variable {
    /// The value in the copy's namespace. `None` if the namespace does not have the label.
    pub fn value<'a>(&self, place: Place<'a>) -> Option<&'a str> {
        match self {
            Self::Name => Some(place.name),
            Self::Label(key) => place.labels.get(key),
        }
    }
}

impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name => f.write_str("$(namespace.name)"),
            Self::Label(key) => write!(f, "$(namespace.labels['{key}'])"),
        }
    }
}

/// A length beyond the names of all variables. The key of a label has at most 317 characters.
const LONGEST: usize = 350;

/// All variables, for messages.
pub const VARIABLES: &str =
    "$(source.name), $(source.namespace), $(namespace.name) and $(namespace.labels['key'])";

/// The first part of a text that looks like a variable, but is plain text: `$(namespace)`,
/// `${source.name}`. Returned without the `$`.
fn near_miss(text: &str) -> Option<&str> {
    // No variable has a `$` inside.
    text.split('$').skip(1).find_map(|part| {
        let (begin, _) = part.split_once([')', '}'])?;
        let name = begin.strip_prefix(['(', '{'])?;
        let braces = begin.starts_with('{');
        let word = name.trim().to_ascii_lowercase();
        let is_of = |object: &str| {
            word.strip_prefix(object)
                .is_some_and(|rest| rest.starts_with('.') || rest.is_empty() && !braces)
        };
        let is_plain = braces || matches!(piece(name), Ok(None));
        (is_plain && (is_of("source") || is_of("namespace"))).then(|| &part[..=begin.len()])
    })
}

/// All such parts of a spec, each once and without its `$`.
pub fn near_misses(spec: &Value) -> BTreeSet<&str> {
    texts(spec).filter_map(near_miss).collect()
}

impl Template {
    /// Parses `text`.
    ///
    /// # Errors
    /// A message for people: the text has an unknown variable of `source.` or `namespace.`, or one
    /// without a closing parenthesis. An unknown variable is not plain text, because a later version
    /// of Mimeo may define it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut template = Self(Vec::new());
        // No variable has another one inside. So each part begins with one variable at most.
        let mut parts = text.split("$(");
        template.push_text(parts.next().unwrap_or_default());
        for part in parts {
            match part.split_once(')') {
                None if !matches!(piece(part), Ok(None)) => {
                    return Err("a variable has no closing parenthesis".into());
                }
                Some((name, rest))
                    if name.len() < LONGEST
                        && let Some(piece) = piece(name)? =>
                {
                    template.0.push(piece);
                    template.push_text(rest);
                }
                _ => {
                    template.push_text("$(");
                    template.push_text(part);
                }
            }
        }
        Ok(template)
    }

    /// The variable `$(source.name)` alone.
    pub(crate) fn source_name() -> Self {
        Self(vec![Piece::SourceName])
    }

    fn push_text(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Text(last)) => last.push_str(text),
            _ => self.0.push(Piece::Text(text.into())),
        }
    }

    /// Fills in the values of `source`. Only variables of the namespace remain.
    #[must_use]
    pub fn of_source(&self, source: &SourceRef) -> Self {
        let mut template = Self(Vec::with_capacity(self.0.len()));
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => template.push_text(text),
                Piece::SourceName => template.push_text(&source.name),
                Piece::SourceNamespace => template.push_text(&source.namespace),
                Piece::Namespace(_) => template.0.push(piece.clone()),
            }
        }
        template
    }

    /// The text. `show` returns the text for each variable of the namespace.
    pub fn text<'a, S: Into<Cow<'a, str>>>(&'a self, show: impl Fn(&'a Variable) -> S) -> String {
        let show = |piece: &'a Piece| match piece {
            Piece::Text(text) => Cow::Borrowed(&**text),
            Piece::SourceName => "$(source.name)".into(),
            Piece::SourceNamespace => "$(source.namespace)".into(),
            Piece::Namespace(variable) => show(variable).into(),
        };
        self.0.iter().map(show).collect()
    }

    /// The text in that namespace. A variable without a value stays as it is written.
    pub fn text_at(&self, place: Place<'_>) -> String {
        self.text(|variable| {
            variable
                .value(place)
                .map_or_else(|| variable.to_string().into(), Cow::Borrowed)
        })
    }

    /// The variables of the namespace in the text.
    pub fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.0.iter().filter_map(|piece| match piece {
            Piece::Namespace(variable) => Some(variable),
            _ => None,
        })
    }

    /// The text, if it has no variables.
    pub fn literal(&self) -> Option<&str> {
        match &*self.0 {
            [] => Some(""),
            [Piece::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Most bytes of the text, for any source in any namespace.
    pub(crate) fn longest(&self) -> usize {
        let longest = |piece: &Piece| match piece {
            Piece::Text(text) => text.len(),
            Piece::SourceName => 253,
            Piece::SourceNamespace | Piece::Namespace(_) => 63,
        };
        self.0.iter().map(longest).sum()
    }

    /// Checks a value of a Secret's `data` or of a `ConfigMap`'s `binaryData`. It has no variables:
    /// names and labels are hardly ever base64, and the API server would refuse each copy.
    pub(crate) fn check_base64(&self) -> Result<(), String> {
        match self.literal() {
            Some(text) if syntax::is_base64(text) => Ok(()),
            _ => Err(
                "must be base64 without variables, as all values of a Secret's data and of a \
                ConfigMap's binaryData"
                    .into(),
            ),
        }
    }

    /// True if it has `$(source.name)`, and so can give each source of a namespace another text.
    pub fn names_source(&self) -> bool {
        self.0.contains(&Piece::SourceName)
    }

    /// True if it has no other variable than `$(namespace.name)`.
    pub(crate) fn has_only_the_namespace(&self) -> bool {
        self.0
            .iter()
            .all(|piece| matches!(piece, Piece::Text(_) | Piece::Namespace(Variable::Name)))
    }
}

/// Checks sample values of the text. If no sample passes, the text is invalid in all namespaces.
pub(crate) fn check_sample(
    template: &Template,
    check: impl Fn(&str) -> Result<(), String>,
) -> Result<(), String> {
    let sample = |value: &'static str| check(&template.text(|_| value));
    // The value of a label may be empty.
    sample("x").or_else(|why| sample("").map_err(|_| why))
}

/// Fills in the strings of a value. The strings were checked before. `show` returns the text for
/// each variable of the namespace. Keys are plain text.
pub(crate) fn fill_in(value: &mut Value, source: &SourceRef, show: Show<'_>) {
    match value {
        Value::String(text) => *text = checked(text).of_source(source).text(show),
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| fill_in(item, source, show)),
        Value::Object(fields) => fields
            .values_mut()
            .for_each(|field| fill_in(field, source, show)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The first variable in the text that stands for a label of the namespace.
pub(crate) fn label_in(text: &str) -> Option<Variable> {
    let template = checked(text);
    let mut variables = template.variables();
    let label = variables.find(|variable| matches!(variable, Variable::Label(_)));
    label.cloned()
}

/// All strings in a value, but not its keys.
pub(crate) fn texts(value: &Value) -> Box<dyn Iterator<Item = &str> + '_> {
    match value {
        Value::String(text) => Box::new(iter::once(&**text)),
        Value::Array(items) => Box::new(items.iter().flat_map(texts)),
        Value::Object(fields) => Box::new(fields.values().flat_map(texts)),
        Value::Null | Value::Bool(_) | Value::Number(_) => Box::new(iter::empty()),
    }
}

/// The template of a text that was checked elsewhere. A text that was refused counts as plain.
pub(crate) fn checked(text: &str) -> Template {
    Template::parse(text).unwrap_or_else(|_| Template(vec![Piece::Text(text.into())]))
}

/// The variable of this name. `None` if it is plain text.
fn piece(variable: &str) -> Result<Option<Piece>, String> {
    let key = variable
        .strip_prefix("namespace.labels['")
        .and_then(|rest| rest.strip_suffix("']"));
    let piece = match variable {
        "source.name" => Piece::SourceName,
        "source.namespace" => Piece::SourceNamespace,
        "namespace.name" => Piece::Namespace(Variable::Name),
        _ if let Some(key) = key => {
            syntax::qualified_name(key)
                .map_err(|why| format!("$({variable}): the label's key {why}"))?;
            Piece::Namespace(Variable::Label(key.into()))
        }
        _ if variable.starts_with("source.") || variable.starts_with("namespace.") => {
            return Err(format!(
                "there is no variable $({variable}); there are {VARIABLES}"
            ));
        }
        _ => return Ok(None),
    };
    Ok(Some(piece))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use super::*;
    use crate::{kind::GroupVersionKind, selection::Labels};

    fn source() -> SourceRef {
        let gvk = GroupVersionKind::parse("v1", "Secret").unwrap();
        SourceRef::named(gvk, "platform", "registry")
    }

    #[test]
    fn variables_are_filled_in_and_other_text_is_left() {
        let labels: Labels = [
            ("team".into(), "a".into()),
            ("example.com/x".into(), "$(source.name)".into()),
        ]
        .into_iter()
        .collect();
        let place = Place {
            name: "shop",
            labels: &labels,
        };
        for (text, want) in [
            ("", ""),
            ("plain", "plain"),
            ("$(source.name)", "registry"),
            (
                "a-$(source.namespace)-$(source.name)-b",
                "a-platform-registry-b",
            ),
            ("$(source.name)$(source.name)", "registryregistry"),
            ("$(namespace.name)-$(namespace.labels['team'])", "shop-a"),
            ("$(namespace.labels['example.com/x'])", "$(source.name)"),
            ("$(namespace.labels['none'])", "$(namespace.labels['none'])"),
            ("$(HOME)/x", "$(HOME)/x"),
            ("$(source)", "$(source)"),
            ("$(namespace)", "$(namespace)"),
            ("$(source", "$(source"),
            ("$($(source.name))", "$(registry)"),
            ("$ (source.name) ) $", "$ (source.name) ) $"),
            ("ä$(source.name)ö", "äregistryö"),
        ] {
            assert_eq!(
                Template::parse(text)
                    .unwrap()
                    .of_source(&source())
                    .text_at(place),
                want,
                "{text:?}"
            );
        }
    }

    #[test]
    fn parse_refuses_variables_that_there_are_not() {
        for (text, why) in [
            ("$(source.uid)", "no variable $(source.uid)"),
            ("$(source.name", "no closing parenthesis"),
            (
                "$(namespace.labels['$(namespace.name)'])",
                "no closing parenthesis",
            ),
            ("x$(source.)y", "no variable $("),
            ("$(namespace.uid)", "no variable $("),
            ("$(namespace.labels)", "no variable $("),
            ("$(namespace.labels[team])", "no variable $("),
            ("$(namespace.labels[\"team\"])", "no variable $("),
            ("$(namespace.labels['team)'])", "no variable $("),
            ("$(namespace.labels[''])", "the label's key"),
            ("$(namespace.labels['a b'])", "the label's key"),
            ("$(namespace.labels['a']['b'])", "the label's key"),
        ] {
            let message = Template::parse(text).unwrap_err();
            assert!(message.contains(why), "{text:?}: {message}");
        }
    }

    #[test]
    fn what_looks_like_a_variable_and_is_none_is_found() {
        for (text, miss) in [
            ("a-$(namespace)", Some("(namespace)")),
            ("$(source)", Some("(source)")),
            ("$(Namespace.name)", Some("(Namespace.name)")),
            ("$( source.name )-x", Some("( source.name )")),
            ("x${namespace.name}y", Some("{namespace.name}")),
            ("${source.namespace}", Some("{source.namespace}")),
            ("$(source.name)-${source.name}", Some("{source.name}")),
            ("$(source.name)-$(namespace.labels['a'])", None),
            ("$(HOME) ${NAMESPACE} $(sources) $(namespaces.x) $ $(", None),
            ("ä$(ä)", None),
        ] {
            assert_eq!(near_miss(text), miss, "{text}");
        }
        let spec = serde_json::json!({"targets": [{"copyName": "$(source)"}], "transform": {"labels": {"set": {"a": "b"}}}});
        assert_eq!(near_misses(&spec), ["(source)"].into());
    }

    #[test]
    fn text_is_read_once_however_many_variables_begin_in_it() {
        // This would take hours if each part searched the whole rest, or if each part moved the
        // text so far.
        for part in ["$(", "$(x)", "$(source.name)", "$(namespace.name)"] {
            let count = 1_000_000 / part.len();
            let template = Template::parse(&part.repeat(count))
                .unwrap()
                .of_source(&source());
            let place = Place {
                name: "x",
                labels: &Labels::new(),
            };
            let want = part
                .replace("$(source.name)", "registry")
                .replace("$(namespace.name)", "x")
                .len()
                * count;
            assert_eq!(template.text_at(place).len(), want, "{part}");
        }
    }

    #[test]
    fn a_template_knows_what_is_in_it() {
        for (text, literal, names_source, has_one, variables) in [
            ("", Some(""), false, true, 0),
            ("$(x)", Some("$(x)"), false, true, 0),
            ("$(source.namespace)", None, false, false, 0),
            ("a$(source.name)", None, true, false, 0),
            ("a$(namespace.name)", None, false, true, 1),
            (
                "$(namespace.name)$(namespace.labels['a'])",
                None,
                false,
                false,
                2,
            ),
        ] {
            let template = Template::parse(text).unwrap();
            let known = (
                template.literal(),
                template.names_source(),
                template.has_only_the_namespace(),
            );
            assert_eq!(
                (known, template.variables().count()),
                ((literal, names_source, has_one), variables),
                "{text:?}"
            );
        }
    }

    #[test]
    fn what_no_value_can_make_right_is_refused() {
        for (text, right) in [
            ("$(namespace.name)", true),
            ("a-$(namespace.name)", true),
            ("-$(namespace.name)", false),
        ] {
            let checked = check_sample(&Template::parse(text).unwrap(), syntax::label_value);
            assert_eq!(checked.is_ok(), right, "{text:?}: {checked:?}");
        }
        let longest = format!("{}$(namespace.labels['a'])", "a".repeat(63));
        assert_eq!(
            check_sample(&Template::parse(&longest).unwrap(), syntax::label_value),
            Ok(())
        );
    }
}
