//! Text with variables: `$(source.name)` and `$(source.namespace)`.
//!
//! Parsed once, when the rule is; rendering can't fail.

use crate::rule::SourceRef;

/// Text in which variables of the source stand. Other `$(...)` are text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Box<str>),
    SourceName,
    SourceNamespace,
}

impl Template {
    /// Reads `text`.
    ///
    /// # Errors
    /// A message for people that names the variable of `source.` that there isn't. One of `namespace.` is refused too:
    /// it would otherwise be taken as text today and as a variable one day.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut pieces, mut literal, mut rest) = (Vec::new(), String::new(), text);
        while let Some(start) = rest.find("$(") {
            literal.push_str(&rest[..start]);
            let after = &rest[start + 2..];
            rest = after;
            let Some((variable, after)) = after.split_once(')') else {
                literal.push_str("$(");
                continue;
            };
            if let Some(piece) = piece(variable)? {
                push_text(&mut pieces, &mut literal);
                pieces.push(piece);
                rest = after;
            } else {
                literal.push_str("$(");
            }
        }
        literal.push_str(rest);
        push_text(&mut pieces, &mut literal);
        Ok(Self(pieces))
    }

    /// The text for `source`.
    pub fn render(&self, source: &SourceRef) -> String {
        self.0
            .iter()
            .map(|piece| match piece {
                Piece::Text(text) => &**text,
                Piece::SourceName => &*source.name,
                Piece::SourceNamespace => &*source.namespace,
            })
            .collect()
    }

    /// The text, if it has no variable.
    pub fn literal(&self) -> Option<&str> {
        match &*self.0 {
            [] => Some(""),
            [Piece::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Whether `$(source.name)` is in it, so that it can tell sources of one namespace apart.
    pub fn names_source(&self) -> bool {
        self.0.contains(&Piece::SourceName)
    }
}

fn push_text(pieces: &mut Vec<Piece>, literal: &mut String) {
    if !literal.is_empty() {
        pieces.push(Piece::Text(std::mem::take(literal).into()));
    }
}

/// The variable of this name; `None` if it is text.
fn piece(variable: &str) -> Result<Option<Piece>, String> {
    match variable {
        "source.name" => Ok(Some(Piece::SourceName)),
        "source.namespace" => Ok(Some(Piece::SourceNamespace)),
        _ if variable.starts_with("source.") || variable.starts_with("namespace.") => {
            Err(format!("there is no variable $({variable}); there are $(source.name) and $(source.namespace)"))
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use super::*;
    use crate::kind::GroupVersionKind;

    fn source() -> SourceRef {
        let gvk = GroupVersionKind::parse("v1", "Secret").unwrap();
        SourceRef { gvk, namespace: "platform".into(), name: "registry".into() }
    }

    #[test]
    fn render_fills_in_the_source_and_leaves_other_text() {
        for (text, want) in [
            ("", ""),
            ("plain", "plain"),
            ("$(source.name)", "registry"),
            ("a-$(source.namespace)-$(source.name)-b", "a-platform-registry-b"),
            ("$(source.name)$(source.name)", "registryregistry"),
            ("$(HOME)/x", "$(HOME)/x"),
            ("$(source)", "$(source)"),
            ("$(namespace)", "$(namespace)"),
            ("$(source.name", "$(source.name"),
            ("$($(source.name))", "$(registry)"),
            ("$ (source.name) ) $", "$ (source.name) ) $"),
            ("ä$(source.name)ö", "äregistryö"),
        ] {
            assert_eq!(Template::parse(text).unwrap().render(&source()), want, "{text:?}");
        }
    }

    #[test]
    fn parse_refuses_variables_that_there_are_not() {
        for text in ["$(source.uid)", "x$(source.)y", "$(namespace.name)", "$(namespace.labels['team'])"] {
            let message = Template::parse(text).unwrap_err();
            assert!(message.contains("no variable $("), "{text:?}: {message}");
        }
    }

    #[test]
    fn literal_and_names_source() {
        for (text, literal, names_source) in [
            ("", Some(""), false),
            ("$(x)", Some("$(x)"), false),
            ("$(source.namespace)", None, false),
            ("a$(source.name)", None, true),
        ] {
            let template = Template::parse(text).unwrap();
            assert_eq!((template.literal(), template.names_source()), (literal, names_source), "{text:?}");
        }
    }
}
