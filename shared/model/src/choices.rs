//! The choices of a rule's author: how Mimeo writes copies, treats an object with the copy's name
//! and removes unwanted copies, and whether pods wait for the copies.

use mimeo_api::CopyOptions;

use crate::refusal::Refusals;

/// Longest grace period for a deleted source, in seconds: one day.
const GRACE: i32 = 86_400;

pub use mimeo_api::{ConflictPolicy, PodGate, Retention as Retain, RetentionPolicy, Strategy};

/// The fate of copies that a rule no longer wants. With strategy `CreateOnce` they always stay.
pub(crate) fn parse_retention(copies: &CopyOptions, refusals: &mut Refusals) -> RetentionPolicy {
    let policy = copies.retention_policy.clone();
    let grace = policy.source_grace_period_seconds;
    if !(0..=GRACE).contains(&grace) {
        refusals.add(
            "spec.retentionPolicy.sourceGracePeriodSeconds",
            format!("must be from 0 to {GRACE}, not {grace}"),
        );
    }
    match copies.strategy {
        Strategy::Apply | Strategy::Replace => policy,
        Strategy::CreateOnce => RetentionPolicy {
            when_rule_deleted: Retain::Retain,
            when_unmatched: Retain::Retain,
            when_source_deleted: Retain::Retain,
            ..policy
        },
    }
}

/// The value of [`RETENTION`](crate::names::RETENTION), as in
/// `rule=Retain,source=Retain,uid=...`. `None` if every choice is `Delete`.
///
/// The uid of the rule is part of the value if copies stay when the rule is deleted: a later
/// rule of the same name is another rule. The grace period is not part of the value, because it
/// matters only while the rule exists.
pub(crate) fn retention_annotation(policy: &RetentionPolicy, uid: &str) -> Option<String> {
    let parts = [
        ("rule", policy.when_rule_deleted),
        ("unmatched", policy.when_unmatched),
        ("source", policy.when_source_deleted),
    ];
    let retained = parts.iter().filter(|(_, retain)| *retain == Retain::Retain);
    let mut retained: Vec<_> = retained.map(|(when, _)| format!("{when}=Retain")).collect();
    if policy.when_rule_deleted == Retain::Retain && !uid.is_empty() {
        retained.push(format!("{UID}={uid}"));
    }
    (!retained.is_empty()).then(|| retained.join(","))
}

/// The key of a rule's uid in [`RETENTION`](crate::names::RETENTION).
const UID: &str = "uid";

/// True if a copy with this value of [`RETENTION`](crate::names::RETENTION) stays when its rule is
/// deleted. Any part that Mimeo does not understand counts as `Retain`, because to keep a copy does
/// no harm.
pub fn outlives_rule(text: &str) -> bool {
    text.split(',').any(|part| {
        let (when, what) = part.split_once('=').unwrap_or((part, ""));
        match when.trim() {
            "rule" => what.trim() != "Delete",
            // "unmatched" and "source" matter only while the rule exists, and "uid" only to a later
            // rule of the same name.
            "unmatched" | "source" | UID => false,
            _ => true,
        }
    })
}

/// The uid of the rule that last wrote this copy, if the copy stays when the rule is deleted. Read
/// from [`RETENTION`](crate::names::RETENTION).
pub fn retaining_rule(text: &str) -> Option<&str> {
    text.split(',')
        .find_map(|part| part.strip_prefix(UID)?.strip_prefix('='))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use super::*;

    #[test]
    fn the_annotation_says_whether_a_copy_outlives_its_rule() {
        for bits in 0..8_u8 {
            let retain = |bit: u8| {
                if bits & bit == 0 {
                    Retain::Delete
                } else {
                    Retain::Retain
                }
            };
            let retention = RetentionPolicy {
                when_rule_deleted: retain(1),
                when_unmatched: retain(2),
                when_source_deleted: retain(4),
                ..RetentionPolicy::default()
            };
            match retention_annotation(&retention, "u-1") {
                None => assert_eq!(bits, 0),
                Some(text) => {
                    assert_eq!(outlives_rule(&text), bits & 1 != 0, "{text}");
                    assert_eq!(
                        retaining_rule(&text),
                        (bits & 1 != 0).then_some("u-1"),
                        "{text}"
                    );
                }
            }
        }
        for text in ["", "x", "Retain", "rule=Keep", "rule=Delete,later=Delete"] {
            assert!(outlives_rule(text), "{text}");
        }
        assert!(outlives_rule("rule=Retain,rule=Delete"));
        assert!(!outlives_rule("rule=Delete,source=Retain"));
    }
}
