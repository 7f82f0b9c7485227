//! Names with `*` and `?` in them.

use std::fmt;

use memchr::memmem;

/// What a glob, a pattern or a requirement of labels costs, in names compared.
pub(super) const GLOB_LOAD: usize = 8;

/// A name, or a pattern over names in which `*` stands for any characters and `?` for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(Box<str>);

impl Glob {
    /// Any text is a glob; what it is matched with says which characters make sense in it.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Whether the whole of `text` matches. Compares bytes: what it is for has only ASCII.
    ///
    /// It is one pass over both. Only with a `?` between stars there is a step for each character
    /// of the text and each 64 of the glob, and the glob is prepared for that each time.
    pub fn matches(&self, text: &str) -> bool {
        self.matches_in(text, &mut |_| {})
    }

    /// The same; tells `spend` how many steps it takes.
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

    /// Whether tenants may have it: at both ends it is compared once, at most one part is looked
    /// for, and nothing is prepared.
    pub fn is_quick(&self) -> bool {
        match self.0.split('*').collect::<Vec<_>>()[..] {
            [_] | [_, _] => true,
            [_, middle, _] => !middle.contains('?'),
            _ => false,
        }
    }

    /// Whether some text that is longer than `prefix` and begins with it matches.
    pub(super) fn could_match(&self, prefix: &str) -> bool {
        let (glob, prefix) = (self.0.as_bytes(), prefix.as_bytes());
        // From the first star on anything may follow, so only what stands before it is compared.
        let star = glob.iter().position(|&b| b == b'*');
        let fixed = &glob[..star.unwrap_or(glob.len())];
        let agrees = fixed.iter().zip(prefix).all(|(&g, &p)| g == b'?' || g == p);
        agrees && (star.is_some() || fixed.len() > prefix.len())
    }

    pub(super) fn is(&self, name: &str) -> bool {
        &*self.0 == name
    }

    /// What matching it costs, in names compared.
    pub fn load(&self) -> usize {
        if self.literal().is_some() {
            1
        } else {
            GLOB_LOAD
        }
    }

    /// The one text that it matches, if there is only one.
    pub fn literal(&self) -> Option<&str> {
        (!self.0.contains(['*', '?'])).then_some(&*self.0)
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a glob without `*` is of this text.
fn fits(part: &[u8], text: &[u8]) -> bool {
    let alike = || part.iter().zip(text).all(|(&p, &t)| p == b'?' || p == t);
    part == text || part.len() == text.len() && part.contains(&b'?') && alike()
}

/// Whether the parts between stars, without `?`, come one after another in the text. Giving an
/// earlier star more of it can't help: each part is looked for once, behind the one before it.
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

/// The same with `?`, of what begins and ends with a star. A bit for each beginning of it, without
/// stars, that the text so far may end with: what comes of 64 of them with the next character takes
/// one step. (The shift-and algorithm.)
fn begins_all(stars: &[u8], text: &[u8], spend: &mut impl FnMut(usize)) -> bool {
    let length = stars.iter().filter(|&&b| b != b'*').count();
    let words = length / 64 + 1;
    // Behind which characters anything may come, and to which beginnings each character leads: the
    // first row is of those that the glob doesn't have.
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
            // What has been a `?` so far.
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

    /// A glob's meaning written down as plainly as possible.
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

    /// Whatever the length of its bits.
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

    /// Counted, since time would tell nothing: what is quick is one pass over the text, and
    /// everything else one for each 64 characters of the glob, besides what is prepared.
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
            // Each `?` is noted for each of the letters that there are.
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
