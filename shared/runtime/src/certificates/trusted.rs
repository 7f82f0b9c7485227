//! The CAs to trust: the present ones, and former ones for a while.
//!
//! Replicas see a change at different times, a change of mounted files up to a minute apart.
//! Meanwhile some serve a certificate of the former CA and others one of the present CA, but all
//! share one `caBundle`. So a replica that has seen a new CA keeps the former one in it for a while.

use std::{collections::BTreeMap, mem, time::Duration};

use tokio::time::Instant;

const END: &str = "-----END CERTIFICATE-----";

/// The CA certificates of this replica, and former ones.
pub struct Trusted {
    overlap: Duration,
    present: Vec<String>,
    /// Each former certificate with the time until which it is trusted.
    former: BTreeMap<String, Instant>,
}

impl Trusted {
    /// A former certificate is trusted for `overlap`. The `registered` certificates (in PEM) are
    /// former ones until [`bundle`](Self::bundle) has them.
    pub fn new(overlap: Duration, registered: &str, now: Instant) -> Self {
        let former = split(registered).map(|pem| (pem.to_owned(), now + overlap));
        Self {
            overlap,
            present: Vec::new(),
            former: former.collect(),
        }
    }

    /// All certificates to trust now that this replica has `ca`. Those of `ca` come first.
    pub fn bundle(&mut self, ca: &str, now: Instant) -> String {
        let certificates = split(ca).map(str::to_owned).collect();
        let before = mem::replace(&mut self.present, certificates);
        let until = now + self.overlap;
        self.former
            .extend(before.into_iter().map(|pem| (pem, until)));
        let present = &self.present;
        self.former
            .retain(|pem, until| !present.contains(pem) && *until > now);
        let all = present.iter().chain(self.former.keys());
        all.flat_map(|pem| [&**pem, "\n"]).collect()
    }

    /// When the next former certificate is no longer trusted.
    pub fn ends(&self, now: Instant) -> Option<Instant> {
        let ends = self.former.values().copied();
        ends.filter(|end| *end > now).min()
    }
}

/// The certificates in a text of PEM blocks, one string each.
pub fn split(pem: &str) -> impl Iterator<Item = &str> {
    pem.split_inclusive(END)
        .map(str::trim)
        .filter(|pem| pem.ends_with(END))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Certificates with these names, of one letter each.
    fn pem(names: &str) -> String {
        let names = names.split("").filter(|name| !name.is_empty());
        names.flat_map(|name| [name, END, "\n"]).collect()
    }

    fn names(pem: &str) -> String {
        pem.replace(&format!("{END}\n"), "")
    }

    #[test]
    fn a_former_ca_stays_trusted_for_the_overlap() {
        let start = Instant::now();
        let mut trusted = Trusted::new(Duration::from_mins(10), "", start);
        let mut at = |minutes, ca: &str| {
            names(&trusted.bundle(&pem(ca), start + Duration::from_mins(minutes)))
        };
        assert_eq!((at(0, "a"), at(1, "a")), ("a".to_owned(), "a".to_owned()));
        assert_eq!(
            (at(20, "b"), at(21, "b")),
            ("ba".to_owned(), "ba".to_owned())
        );
        assert_eq!(at(25, "a"), "ab", "changed back");
        assert_eq!(at(26, "c"), "cab");
        assert_eq!(
            (at(35, "c"), at(37, "c")),
            ("ca".to_owned(), "c".to_owned())
        );
        assert_eq!(
            (at(50, "cd"), at(51, "d"), at(62, "d")),
            ("cd".to_owned(), "dc".to_owned(), "d".to_owned())
        );
    }

    /// Each registered certificate is there once, however many hooks have it. Their time runs from
    /// the start of the replica.
    #[test]
    fn what_was_registered_before_the_start_is_former() {
        let (overlap, start) = (Duration::from_mins(10), Instant::now());
        let minute = |minute| start + Duration::from_mins(minute);
        let mut trusted = Trusted::new(overlap, &pem("baba"), start);
        assert_eq!(trusted.ends(start), Some(minute(10)));
        for (at, ca, bundle, ends) in [
            (1, "b", "ba", Some(10)),
            (2, "c", "cab", Some(10)),
            (10, "c", "cb", Some(12)),
            (12, "c", "c", None),
        ] {
            assert_eq!(names(&trusted.bundle(&pem(ca), minute(at))), bundle);
            assert_eq!(trusted.ends(minute(at)), ends.map(minute), "{at}");
        }
    }

    /// The end of a time wakes a replica that has no CA only once.
    #[test]
    fn an_end_in_the_past_is_no_end() {
        let (overlap, start) = (Duration::from_mins(10), Instant::now());
        let trusted = Trusted::new(overlap, &pem("a"), start);
        assert_eq!(trusted.ends(start + overlap), None);
    }

    #[test]
    fn other_text_is_no_certificate() {
        let text = format!("\n{END} {END}\nmore\n");
        assert_eq!(split(&text).collect::<Vec<_>>(), [END, END]);
    }
}
