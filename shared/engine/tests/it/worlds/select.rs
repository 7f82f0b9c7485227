//! The namespaces that a target selects, and the meaning of label selectors.

use std::collections::BTreeMap;

use super::{
    spec::{All, By, Op, Pattern, RuleSpec, Selector, Target},
    tables::{Coverage, Way},
};

pub type Labels = BTreeMap<String, String>;

const SYSTEM: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// `*` stands for any characters, `?` for one.
pub fn glob(glob: &str, text: &str) -> bool {
    let (glob, text): (Vec<char>, Vec<char>) = (glob.chars().collect(), text.chars().collect());
    // reach[j]: the part of the glob read so far matches the first j characters.
    let mut reach = vec![false; text.len() + 1];
    reach[0] = true;
    for symbol in glob {
        let mut next = vec![false; text.len() + 1];
        for at in 0..=text.len() {
            next[at] = match symbol {
                '*' => reach[..=at].contains(&true),
                '?' => at > 0 && reach[at - 1],
                letter => at > 0 && reach[at - 1] && text[at - 1] == letter,
            };
        }
        reach = next;
    }
    reach[text.len()]
}

/// Returns the possible ends of a match that begins here.
fn ends(pattern: &Pattern, text: &str, from: usize) -> Vec<usize> {
    match pattern {
        Pattern::Text(word) => {
            if text[from..].starts_with(word) {
                vec![from + word.len()]
            } else {
                Vec::new()
            }
        }
        Pattern::Digits => {
            let digits = text[from..].bytes().take_while(u8::is_ascii_digit).count();
            (1..=digits).map(|count| from + count).collect()
        }
        Pattern::Rest => (from..=text.len()).collect(),
        Pattern::All(parts) => parts.iter().fold(vec![from], |begins, part| {
            begins
                .into_iter()
                .flat_map(|begin| ends(part, text, begin))
                .collect()
        }),
        Pattern::Either(parts) => parts
            .iter()
            .flat_map(|part| ends(part, text, from))
            .collect(),
    }
}

/// True if the pattern matches the whole text.
pub fn whole(pattern: &Pattern, text: &str) -> bool {
    ends(pattern, text, 0).contains(&text.len())
}

pub fn labelled(selector: &Selector, labels: &Labels) -> bool {
    let value = |key: &str| labels.get(key).map(String::as_str);
    selector
        .labels
        .iter()
        .all(|(key, wanted)| value(key) == Some(*wanted))
        && selector
            .expressions
            .iter()
            .all(|(key, op, values)| match op {
                Op::In => value(key).is_some_and(|value| values.contains(&value)),
                Op::NotIn => value(key).is_none_or(|value| !values.contains(&value)),
                Op::Exists => value(key).is_some(),
                Op::DoesNotExist => value(key).is_none(),
            })
}

fn all(
    All {
        names,
        pattern,
        selector,
    }: &All,
    name: &str,
    labels: &Labels,
) -> bool {
    (names.is_empty() || names.iter().any(|wanted| glob(wanted, name)))
        && pattern.as_ref().is_none_or(|pattern| whole(pattern, name))
        && selector
            .as_ref()
            .is_none_or(|selector| labelled(selector, labels))
}

/// Returns how a target's own selection finds a namespace, if it does.
pub fn way(by: &By, name: &str, labels: &Labels) -> Way {
    match by {
        By::Home(home) if *home == name => Way::Exact,
        By::Names(names) if names.contains(&name) => Way::Exact,
        By::Names(names) if names.iter().any(|wanted| glob(wanted, name)) => Way::Glob,
        By::Pattern(pattern) if whole(pattern, name) => Way::Pattern,
        By::Selector(selector) if labelled(selector, labels) => Way::Selector,
        _ => Way::No,
    }
}

/// True if the target's copies belong in this namespace, which isn't terminating.
pub fn selects(
    spec: &RuleSpec,
    target: &Target,
    name: &str,
    labels: &Labels,
    coverage: &mut Coverage,
) -> bool {
    let out = spec
        .exclude
        .iter()
        .any(|excluded| all(excluded, name, labels));
    let way = way(&target.by, name, labels);
    let way = if all(&target.and, name, labels) {
        way
    } else {
        Way::No
    };
    coverage.selection(way, SYSTEM.contains(&name), out)
}
