//! Globs: names with the wildcards `*` and `?`.

use memchr::memmem;

use crate::syntax;

/// The cost of a glob, a pattern or a label requirement, in names compared.
pub(super) const GLOB_LOAD: usize = 8;

/// A name or a glob. `*` stands for any characters, and `?` for one character. The caller checks the
/// characters that its names allow.
#[derive(Clone, Copy, Debug)]
pub struct Glob<'a>(pub &'a str);

impl<'a> Glob<'a> {
    /// True if the glob matches the whole of `text`. It compares bytes, because the names are
    /// ASCII.
    ///
    /// A match is one pass over both texts. Only a part with a `?` between stars takes more: up to
    /// one step for each character of the text and each of the part.
    pub fn matches(self, text: &str) -> bool {
        let text = text.as_bytes();
        let Some((first, rest)) = self.0.split_once('*') else {
            return fits(self.0.as_bytes(), text);
        };
        let (parts, last) = rest.rsplit_once('*').unwrap_or(("", rest));
        let Some(between) = text.len().checked_sub(first.len() + last.len()) else {
            return false;
        };
        let (begins, text) = text.split_at(first.len());
        let (mut text, ends) = text.split_at(between);
        // Each part is searched once after the one before it, because a longer match of an earlier
        // star can't help.
        fits(first.as_bytes(), begins)
            && fits(last.as_bytes(), ends)
            && parts.split('*').all(|part| {
                let end = end_of(part.as_bytes(), text);
                text = &text[end.unwrap_or_default()..];
                end.is_some()
            })
    }

    /// True if the glob is fast to compare with many names.
    pub fn is_quick(self) -> bool {
        syntax::is_quick_glob(self.0)
    }

    /// The cost of a match, in names compared.
    pub fn load(self) -> usize {
        if self.literal().is_some() {
            1
        } else {
            GLOB_LOAD
        }
    }

    /// The only text that the glob matches, if there is only one.
    pub fn literal(self) -> Option<&'a str> {
        (!self.0.contains(['*', '?'])).then_some(self.0)
    }
}

/// True if `part`, which has no `*`, matches the whole text.
fn fits(part: &[u8], text: &[u8]) -> bool {
    part.len() == text.len() && part.iter().zip(text).all(|(&p, &t)| p == b'?' || p == t)
}

/// Returns the end of the first place in the text where `part`, which has no `*`, matches.
fn end_of(part: &[u8], text: &[u8]) -> Option<usize> {
    let begin = if part.contains(&b'?') {
        text.windows(part.len()).position(|place| fits(part, place))
    } else {
        memmem::find(text, part)
    };
    begin.map(|begin| begin + part.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A plain reference implementation of a glob.
    fn naive(glob: &[u8], text: &[u8]) -> bool {
        match (glob.split_first(), text.split_first()) {
            (None, None) => true,
            (Some((b'*', rest)), None) => naive(rest, text),
            (Some((b'*', rest)), Some((_, tail))) => naive(rest, text) || naive(glob, tail),
            (Some((&g, rest)), Some((&t, tail))) => (g == b'?' || g == t) && naive(rest, tail),
            _ => false,
        }
    }

    #[test]
    fn a_quick_glob_looks_for_one_plain_part_at_most() {
        for (glob, quick) in [
            ("a", true),
            ("a?b", true),
            ("*", true),
            ("a?*?b", true),
            ("*a*", true),
            ("?*a*?", true),
            ("*a?*", false),
            ("*a*b*", false),
        ] {
            assert_eq!(Glob(glob).is_quick(), quick, "{glob}");
        }
    }

    #[test]
    fn a_part_with_a_question_mark_is_found_wherever_it_is() {
        for length in [1, 2, 62, 63, 64, 65, 128, 129, 320, 321] {
            for mark in [0, length / 2, length - 1] {
                let mut part = vec!['a'; length];
                part[length - 1] = 'b';
                part[mark] = '?';
                let part: String = part.into_iter().collect();
                let text = format!("{}b{}", "a".repeat(370), "a".repeat(29));
                for (glob, matches) in [
                    (format!("*{part}*"), true),
                    (format!("*{part}*?{}", "a".repeat(28)), true),
                    (
                        format!("*{part}*b*{part}*"),
                        mark == length - 1 && length < 30,
                    ),
                    (format!("*{part}*c*"), false),
                ] {
                    assert_eq!(Glob(&glob).matches(&text), matches, "{glob}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn globs_match_as_the_naive_matcher_does(glob in "[ab*?]{0,8}", text in "[ab]{0,10}") {
            prop_assert_eq!(Glob(&glob).matches(&text), naive(glob.as_bytes(), text.as_bytes()));
        }
    }
}
