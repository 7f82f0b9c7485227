//! Flags that limit the namespaces and kinds of an installation. Both programs get the same flags.

use std::{collections::BTreeSet, sync::Arc};

use clap::Args;
use mimeo_model::{
    kind::GroupKind,
    reach::{Reach, namespace},
};

/// The limits of an installation. A flag that is left out sets no limit. Both programs must have
/// the same flags.
#[derive(Args)]
#[command(next_help_heading = "Reach")]
pub struct ReachArgs {
    /// The only namespaces in which sources are read, where rights are given by Roles in these.
    /// Default: all
    #[arg(long, env = "MIMEO_SOURCE_NAMESPACES", value_name = "NAMESPACES", value_delimiter = ',', value_parser = namespace)]
    source_namespaces: Vec<Box<str>>,
    /// The only namespaces that get copies, whatever rules select, where rights are given by Roles
    /// in these. Default: all
    #[arg(long, env = "MIMEO_TARGET_NAMESPACES", value_name = "NAMESPACES", value_delimiter = ',', value_parser = namespace)]
    target_namespaces: Vec<Box<str>>,
    /// The only kinds that are copied, as in Secret,Certificate.cert-manager.io. Default: all
    #[arg(long, env = "MIMEO_KINDS", value_name = "KINDS", value_delimiter = ',')]
    kinds: Vec<GroupKind>,
}

impl ReachArgs {
    /// The limits as the model's type.
    pub fn reach(&self) -> Reach {
        Reach {
            sources: listed(&self.source_namespaces),
            targets: listed(&self.target_namespaces).map(Arc::new),
            kinds: listed(&self.kinds),
        }
    }
}

fn listed<T: Clone + Ord>(items: &[T]) -> Option<BTreeSet<T>> {
    (!items.is_empty()).then(|| items.iter().cloned().collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failed unwrap fails the test.
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        reach: ReachArgs,
    }

    fn parse(flags: &[&str]) -> Result<Reach, clap::Error> {
        Flags::try_parse_from(["mimeo"].iter().chain(flags)).map(|flags| flags.reach.reach())
    }

    #[test]
    fn what_is_left_out_is_no_limit() {
        assert_eq!(parse(&[]).unwrap(), Reach::default());
        let reach = parse(&[
            "--target-namespaces",
            "a,b",
            "--kinds",
            "Secret,Certificate.cert-manager.io",
        ])
        .unwrap();
        assert_eq!(reach.sources, None);
        assert_eq!(*reach.targets.unwrap(), ["a".into(), "b".into()].into());
        let kinds: Vec<String> = reach
            .kinds
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(kinds, ["Secret", "Certificate.cert-manager.io"]);
    }

    #[test]
    fn a_glob_is_no_namespace_since_no_role_reaches_that_far() {
        for bad in [
            ["--source-namespaces", "team-*"],
            ["--target-namespaces", "a,"],
            ["--kinds", "secrets/v1"],
            ["--kinds", "A."],
        ] {
            assert!(parse(&bad).is_err(), "{bad:?}");
        }
    }
}
