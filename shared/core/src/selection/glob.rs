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
    pub fn matches(&self, text: &str) -> bool {
        let (glob, text) = (self.0.as_bytes(), text.as_bytes());
        let mut parts = glob.split(|&b| b == b'*');
        let (Some(first), Some(last)) = (parts.next(), parts.next_back()) else { return fits(glob, text) };
        let Some((begins, rest)) = text.split_at_checked(first.len()) else { return false };
        let Some((mut rest, ends)) = rest.len().checked_sub(last.len()).and_then(|at| rest.split_at_checked(at)) else {
            return false;
        };
        // Giving an earlier star more of the text can't help: each part is looked for once.
        let mut find = |part: &[u8]| {
            let Some(at) = position(part, rest) else { return false };
            rest = &rest[at + part.len()..];
            true
        };
        fits(first, begins) && fits(last, ends) && parts.all(|part| part.is_empty() || find(part))
    }

    /// Whether matching takes no time worth speaking of, however long glob and text are: parts at both ends are compared once,
    /// and at most one is looked for, which is quickest without `?`.
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
        if self.literal().is_some() { 1 } else { GLOB_LOAD }
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

/// Where in `text` a glob without `*` first fits. In one pass, however much of it fits in how many places.
fn position(part: &[u8], text: &[u8]) -> Option<usize> {
    if !part.contains(&b'?') {
        return memmem::find(text, part);
    }
    // Nothing that Kubernetes has keys for is longer.
    match part.len() {
        ..=64 => position_by_bits::<1>(part, text),
        65..=320 => position_by_bits::<5>(part, text),
        _ => text.windows(part.len()).position(|window| fits(part, window)),
    }
}

/// A bit for each beginning of `part` that ends at this character of the text: what comes of all of them with the next one takes `N`
/// steps. (The shift-and algorithm.) `part` has up to 64 `N` characters.
fn position_by_bits<const N: usize>(part: &[u8], text: &[u8]) -> Option<usize> {
    let last = part.len().checked_sub(1)?;
    let mut fitting = [[0_u64; N]; 256];
    let mut any = [0_u64; N];
    for (i, &p) in part.iter().enumerate() {
        let bits = if p == b'?' { &mut any } else { &mut fitting[usize::from(p)] };
        bits[i / 64] |= 1 << (i % 64);
    }
    let mut begun = [0_u64; N];
    let end = text.iter().position(|&t| {
        let mut carry = 1;
        for ((begun, fitting), any) in begun.iter_mut().zip(fitting[usize::from(t)]).zip(any) {
            let grown = *begun << 1 | carry;
            carry = *begun >> 63;
            *begun = grown & (fitting | any);
        }
        begun[last / 64] >> (last % 64) & 1 == 1
    })?;
    Some(end - last)
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
    fn a_part_with_a_question_mark_is_found_where_it_first_fits() {
        for length in [1, 2, 63, 64, 65, 128, 129, 320, 321] {
            for mark in [0, length / 2, length - 1] {
                let mut part = vec![b'a'; length];
                part[length - 1] = b'b';
                part[mark] = b'?';
                let mut text = vec![b'a'; 400];
                text[370] = b'b';
                let want = text.windows(length).position(|window| fits(&part, window));
                assert_eq!(position(&part, &text), want, "{length} {mark}");
                assert_eq!(position(&part, &text[..length - 1]), None, "{length} {mark}");
            }
        }
    }

    proptest! {
        #[test]
        fn globs_match_as_the_naive_matcher_does(glob in "[ab*?]{0,8}", text in "[ab]{0,10}") {
            prop_assert_eq!(Glob::new(&glob).matches(&text), naive(glob.as_bytes(), text.as_bytes()));
        }
    }
}
