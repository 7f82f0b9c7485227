//! The labels of an object.

/// The labels of an object, sorted by key. Mimeo keeps the labels of every namespace in memory.
/// Most namespaces have one to five labels, and even the smallest map takes the memory of eleven.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(Box<[(Box<str>, Box<str>)]>);

impl Labels {
    /// No labels.
    pub fn new() -> Self {
        Self::default()
    }

    /// The value of the label with this key.
    pub fn get(&self, key: &str) -> Option<&str> {
        let at = self
            .0
            .binary_search_by(|(other, _)| (**other).cmp(key))
            .ok()?;
        Some(&self.0[at].1)
    }
}

/// If a key occurs twice, the later value counts.
impl FromIterator<(Box<str>, Box<str>)> for Labels {
    fn from_iter<I: IntoIterator<Item = (Box<str>, Box<str>)>>(labels: I) -> Self {
        let sorted: std::collections::BTreeMap<_, _> = labels.into_iter().collect();
        Self(sorted.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_found_whatever_order_they_come_in() {
        let label = |key: &str, value: &str| (Box::from(key), Box::from(value));
        let labels: Labels = [
            label("b", "2"),
            label("c", "3"),
            label("a", "0"),
            label("a", "1"),
        ]
        .into_iter()
        .collect();
        for (key, value) in [
            ("a", Some("1")),
            ("b", Some("2")),
            ("c", Some("3")),
            ("", None),
            ("bb", None),
            ("d", None),
        ] {
            assert_eq!(labels.get(key), value, "{key}");
        }
        let sorted = [label("a", "1"), label("b", "2"), label("c", "3")];
        assert_eq!(labels, sorted.into_iter().collect());
        assert_eq!(Labels::new().get("a"), None);
    }
}
