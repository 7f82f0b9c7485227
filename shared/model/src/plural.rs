//! Numbers with a noun, in the singular or the plural, and lists that name only their first items.

use std::fmt::Display;

/// Most items that a list names.
const NAMED: usize = 5;

/// The first five items and the number of the others, as in "a, b, c, d, e, and 2 more".
pub fn first_items<T: Display>(items: &[T], separator: &str) -> String {
    let named: Vec<String> = items.iter().take(NAMED).map(T::to_string).collect();
    let named = named.join(separator);
    if items.len() > NAMED {
        format!("{named}{separator}and {} more", items.len() - NAMED)
    } else {
        named
    }
}

/// "1 copy", "12 copies".
pub fn copies(number: impl Display + Copy) -> String {
    counted(number, "copy", "copies")
}

/// "1 second", "12 seconds".
pub fn seconds(number: u64) -> String {
    counted(number, "second", "seconds")
}

/// The number with the noun for one or the noun for many.
pub fn counted(number: impl Display + Copy, one: &str, many: &str) -> String {
    let number = number.to_string();
    let noun = if number == "1" { one } else { many };
    format!("{number} {noun}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_its_first_items() {
        assert_eq!(first_items(&[1, 2], "; "), "1; 2");
        assert_eq!(
            first_items(&[1, 2, 3, 4, 5, 6, 7], ", "),
            "1, 2, 3, 4, 5, and 2 more"
        );
    }

    #[test]
    fn one_is_singular_and_every_other_number_is_plural() {
        assert_eq!([0, 1, 12].map(copies), ["0 copies", "1 copy", "12 copies"]);
        assert_eq!(
            [0, 1, 2].map(seconds),
            ["0 seconds", "1 second", "2 seconds"]
        );
        assert_eq!(
            [1, 2].map(|number| counted(number, "more namespace", "more namespaces")),
            ["1 more namespace", "2 more namespaces"]
        );
    }
}
