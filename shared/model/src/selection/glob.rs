//! Globs: names with the wildcards `*` and `?`.

use std::fmt;

use memchr::memmem;

/// The cost of a glob, a pattern or a label requirement, in names compared.
pub(super) const GLOB_LOAD: usize = 8;

/// A name or a glob. `*` stands for any characters, and `?` for one character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(Box<str>);

impl Glob {
    /// Makes a glob of any text. The caller checks the characters that its names allow.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// True if the glob matches the whole of `text`. It compares bytes, because the names are
    /// ASCII.
    ///
    /// A match is one pass over both texts. Only a glob with a `?` between stars takes more: one
    /// step for each character of the text and each 64 of the glob. Such a glob also needs
    /// preparation for each match.
    pub fn matches(&self, text: &str) -> bool {
        self.matches_in(text, &mut |_| {})
    }

    /// The same. Reports the number of steps to `spend`.
    fn matches_in(&self, text: &str, spend: &mut impl FnMut(usize)) -> bool {
        let (glob, text) = (self.0.as_bytes(), text.as_bytes());
        let star = |&b: &u8| b == b'*';
        let (Some(begin), Some(end)) = (glob.iter().position(star), glob.iter().rposition(star))
        else {
            spend(text.len());
            return fits(glob, text);
        };
        let (first, stars, last) = (&glob[..begin], &glob[begin..=end], &glob[end + 1..]);
        let Some((begins, rest)) = text.split_at_checked(first.len()) else {
            return false;
        };
        let Some((rest, ends)) = rest
            .len()
            .checked_sub(last.len())
            .and_then(|at| rest.split_at_checked(at))
        else {
            return false;
        };
        spend(first.len() + last.len());
        fits(first, begins) && fits(last, ends) && {
            if stars.contains(&b'?') {
                begins_all(stars, rest, spend)
            } else {
                finds_all(stars, rest, spend)
            }
        }
    }

    /// True if the glob is fast enough for Replications: its ends are compared once, at most one
    /// part is searched for, and nothing needs preparation.
    pub fn is_quick(&self) -> bool {
        match self.0.split('*').collect::<Vec<_>>()[..] {
            [_] | [_, _] => true,
            [_, middle, _] => !middle.contains('?'),
            _ => false,
        }
    }

    /// True if a text can match that begins with `prefix` and is longer.
    pub(super) fn could_match(&self, prefix: &str) -> bool {
        let (glob, prefix) = (self.0.as_bytes(), prefix.as_bytes());
        // Any characters may follow after the first star, so only the part before it is compared.
        let star = glob.iter().position(|&b| b == b'*');
        let fixed = &glob[..star.unwrap_or(glob.len())];
        let agrees = fixed.iter().zip(prefix).all(|(&g, &p)| g == b'?' || g == p);
        agrees && (star.is_some() || fixed.len() > prefix.len())
    }

    pub(super) fn is(&self, name: &str) -> bool {
        &*self.0 == name
    }

    /// The cost of a match, in names compared.
    pub fn load(&self) -> usize {
        if self.literal().is_some() {
            1
        } else {
            GLOB_LOAD
        }
    }

    /// The only text that the glob matches, if there is only one.
    pub fn literal(&self) -> Option<&str> {
        (!self.0.contains(['*', '?'])).then_some(&*self.0)
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// True if `part`, which has no `*`, matches the whole text.
fn fits(part: &[u8], text: &[u8]) -> bool {
    let alike = || part.iter().zip(text).all(|(&p, &t)| p == b'?' || p == t);
    part == text || part.len() == text.len() && part.contains(&b'?') && alike()
}

/// True if the text contains the parts between stars one after another. The parts have no `?`. Each
/// part is searched once after the one before it, because a longer match of an earlier star can't
/// help.
fn finds_all(stars: &[u8], mut text: &[u8], spend: &mut impl FnMut(usize)) -> bool {
    stars.split(|&b| b == b'*').all(|part| {
        let Some(at) = memmem::find(text, part) else {
            spend(text.len());
            return false;
        };
        spend(at + part.len());
        text = &text[at + part.len()..];
        true
    })
}

/// The same for parts with `?`, in a glob that begins and ends with a star. Each bit stands for one
/// prefix of the glob without its stars. A bit is set if the text so far may end with this prefix.
/// One step computes 64 bits for the next character (the shift-and algorithm).
fn begins_all(stars: &[u8], text: &[u8], spend: &mut impl FnMut(usize)) -> bool {
    let length = stars.iter().filter(|&&b| b != b'*').count();
    let words = length / 64 + 1;
    // `stays` marks the prefixes that a star follows. `rows` has for each character the prefixes
    // that it can complete. The first row is for characters that are not in the glob.
    let (mut stays, mut rows, mut row_of) =
        (vec![0_u64; words], vec![0_u64; words], [0_usize; 256]);
    let mut at = 0;
    for &b in stars {
        if b == b'*' {
            stays[at / 64] |= 1 << (at % 64);
            continue;
        }
        at += 1;
        if b != b'?' && row_of[usize::from(b)] == 0 {
            row_of[usize::from(b)] = rows.len();
            // The new row starts with all positions that had a `?` so far.
            rows.extend_from_within(..words);
        }
        let (word, bit) = (at / 64, 1 << (at % 64));
        match b {
            b'?' => rows.chunks_mut(words).for_each(|row| row[word] |= bit),
            b => rows[row_of[usize::from(b)] + word] |= bit,
        }
        spend(if b == b'?' { rows.len() / words } else { 1 });
    }
    let mut begun = vec![0_u64; words];
    begun[0] = 1;
    for &t in text {
        let row = &rows[row_of[usize::from(t)]..][..words];
        let mut carry = 0;
        for ((begun, row), stays) in begun.iter_mut().zip(row).zip(&stays) {
            let grown = *begun << 1 | carry;
            carry = *begun >> 63;
            *begun = grown & row | *begun & stays;
        }
        spend(words);
    }
    begun[length / 64] >> (length % 64) & 1 == 1
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
            assert_eq!(Glob::new(glob).is_quick(), quick, "{glob}");
        }
    }

    /// The result does not depend on the number of bits.
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
                    assert_eq!(Glob::new(&glob).matches(&text), matches, "{glob}");
                }
            }
        }
    }

    /// Steps are counted, because a measured time would prove nothing. A quick glob takes one pass
    /// over the text. Every other glob takes one pass for each 64 characters of the glob, and its
    /// preparation.
    #[test]
    fn however_much_of_it_fits_it_takes_few_steps() {
        let steps = |glob: &str, text: &str| {
            let mut all = 0;
            Glob::new(glob).matches_in(text, &mut |steps| all += steps);
            all
        };
        let text = format!("{}c", "a".repeat(252));
        let long = |part: &str, times: usize| part.repeat(times);
        for glob in [
            long("a", 253),
            long("?", 253),
            format!("a*{}b*c", long("a", 120)),
            format!("*{}*", long("a", 250)),
            format!("{}*{}", long("?", 120), long("?", 120)),
        ] {
            assert!(Glob::new(&glob).is_quick());
            assert!(
                steps(&glob, &text) <= text.len(),
                "{glob}: {}",
                steps(&glob, &text)
            );
        }
        for glob in [
            long("a*", 126),
            long("*a?", 84),
            long("*?", 126),
            format!("*{}?b*", long("a", 120)),
            format!("*{}*{}b*", long("a?", 60), long("?a", 60)),
            format!("*{}*", long("?a?", 100)),
            format!("*{}", long("abcdefghijklmnopqrstuvwxyz?*", 11)),
        ] {
            assert!(!Glob::new(&glob).is_quick());
            // The preparation notes each `?` for each letter.
            let letters = glob
                .bytes()
                .filter(|b| !b"*?".contains(b))
                .collect::<std::collections::BTreeSet<_>>()
                .len();
            let most = text.len() * (1 + glob.len() / 64) + glob.len() * (1 + letters);
            assert!(
                steps(&glob, &text) <= most,
                "{glob}: {} of {most}",
                steps(&glob, &text)
            );
        }
    }

    proptest! {
        #[test]
        fn globs_match_as_the_naive_matcher_does(glob in "[ab*?]{0,8}", text in "[ab]{0,10}") {
            prop_assert_eq!(Glob::new(&glob).matches(&text), naive(glob.as_bytes(), text.as_bytes()));
        }
    }
}
