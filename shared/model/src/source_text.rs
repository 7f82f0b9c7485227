//! The text of the column SOURCE: the first source of a rule, and how many more there are.

use crate::source::{SourceRef, SourceSelector};

/// Stands for the name of an object that a selector has yet to find.
const SELECTED: &str = "(selector)";
/// Longest text, in bytes: the schema's limit.
const LONGEST: usize = 512;

/// `Secret platform/registry +2`. While a rule has no source, its selectors stand for those that
/// they may find: `Secret platform/(selector)`.
pub fn of_sources(sources: &[SourceRef], selectors: &[SourceSelector]) -> Option<String> {
    let (mut text, more) = match (sources, selectors) {
        ([first, others @ ..], _) => {
            let kind = &first.gvk.kind;
            let text = match first.home() {
                Some(namespace) => format!("{kind} {namespace}/{}", first.name),
                None => format!("{kind} inline"),
            };
            (text, others.len())
        }
        ([], [first, others @ ..]) => {
            let text = format!("{} {}/{SELECTED}", first.gvk.kind, first.namespace);
            (text, others.len())
        }
        ([], []) => return None,
    };
    let count = if more == 0 {
        String::new()
    } else {
        format!(" +{more}")
    };
    text.truncate(text.floor_char_boundary(LONGEST - count.len()));
    Some(text + &count)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::{kind::GroupVersionKind, refusal::Refusals, selection::Selector};

    fn secret() -> GroupVersionKind {
        GroupVersionKind::parse("v1", "Secret").unwrap()
    }

    #[test]
    fn the_first_source_is_named_and_the_others_are_counted() {
        let named = |name: &str| SourceRef::named(secret(), "platform", name);
        let selector = |label: &str| SourceSelector {
            gvk: secret(),
            namespace: "platform".into(),
            selector: Arc::new(Selector::parse(
                &serde_json::from_value(json!({"matchLabels": {"copy": label}})).unwrap(),
                "selector",
                &mut Refusals::default(),
            )),
        };
        let (one, two) = (selector("one"), selector("two"));
        for (sources, selectors, want) in [
            (vec![], vec![], None),
            (vec!["a"], vec![], Some("Secret platform/a")),
            (vec!["a", "b", "c"], vec![], Some("Secret platform/a +2")),
            (vec!["a"], vec![one.clone()], Some("Secret platform/a")),
            (
                vec![],
                vec![one.clone()],
                Some("Secret platform/(selector)"),
            ),
            (
                vec![],
                vec![one.clone(), two],
                Some("Secret platform/(selector) +1"),
            ),
        ] {
            let sources: Vec<SourceRef> = sources.into_iter().map(named).collect();
            assert_eq!(of_sources(&sources, &selectors).as_deref(), want);
        }
    }

    #[test]
    fn the_text_is_no_longer_than_the_schema_allows() {
        let kind = GroupVersionKind {
            kind: "K".repeat(600).into(),
            ..secret()
        };
        let long = SourceRef::named(kind, "n", "ä".repeat(600));
        let text = of_sources(&[long.clone(), long], &[]).unwrap();
        assert!(text.len() <= 512 && text.ends_with("K +1"), "{text}");
    }
}
