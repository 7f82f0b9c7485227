//! Permissions of rules to read and write in namespaces. `ClusterReplication`s need no grants.
//! `Replication`s need none in their own namespace, and a grant in any other.

use std::collections::BTreeSet;

use super::Model;
use crate::worlds::{
    render::{Place, fill},
    select::{Labels, glob, way},
    server::{Key, Res},
    spec::{Access, By, GrantSpec, Granted, RuleSpec},
    tables::{Coverage, Named},
};

impl Model {
    /// True if a rule has this access to the object, whether or not the object exists.
    pub(super) fn may(
        &self,
        rule: &Key,
        access: Access,
        object: &Key,
        coverage: &mut Coverage,
    ) -> bool {
        self.granted(rule, access, object, false, coverage)
    }

    /// The same. Without a name it is for all objects of the kind in the namespace.
    pub(super) fn granted(
        &self,
        rule: &Key,
        access: Access,
        object: &Key,
        any: bool,
        coverage: &mut Coverage,
    ) -> bool {
        if rule.res == Res::Rule || rule.namespace == object.namespace {
            return true;
        }
        let labels = &self.namespaces[&rule.namespace].labels;
        let grants = self
            .grants
            .iter()
            .filter(|(grant, _)| grant.namespace == object.namespace);
        grants
            .filter(|(_, grant)| {
                gives(
                    grant,
                    access,
                    (&rule.namespace, labels),
                    object,
                    any,
                    coverage,
                )
            })
            .count()
            > 0
    }

    /// Returns the cells that a rule names and may not have. The namespace of such a cell need not
    /// exist.
    pub(super) fn denied(
        &self,
        rule: &Key,
        spec: &RuleSpec,
        sources: &[Key],
        coverage: &mut Coverage,
    ) -> BTreeSet<Key> {
        let mut denied = BTreeSet::new();
        if rule.res == Res::Rule {
            return denied;
        }
        let labels = Labels::new();
        for source in sources {
            let named = spec.sources.contains(source);
            let readable = !named || self.may(rule, Access::Read, source, coverage);
            for target in &spec.targets {
                for namespace in target.by.exact() {
                    let place = Place {
                        source,
                        namespace,
                        labels: &labels,
                    };
                    let name = target
                        .name
                        .as_ref()
                        .map_or_else(|| Ok(source.name.clone()), |text| fill(text, &place));
                    let name =
                        name.expect("it takes no label of the namespace, or the rule is refused");
                    let cell = Key::new(source.res, namespace, &name);
                    let may = readable && self.may(rule, Access::Write, &cell, coverage);
                    if !may && !sources.contains(&cell) {
                        denied.insert(cell);
                    }
                }
            }
        }
        denied
    }
}

/// True if this grant gives the access to the rules of that namespace.
fn gives(
    grant: &GrantSpec,
    access: Access,
    home: (&str, &Labels),
    object: &Key,
    any: bool,
    coverage: &mut Coverage,
) -> bool {
    let ways = |by: &By| way(by, home.0, home.1);
    let mut given = false;
    for grantee in &grant.grantees {
        for Granted { kind, names } in &grant.objects {
            let named = match names {
                names if names.is_empty() => Named::Any,
                _ if any => Named::Limited,
                names if names.contains(&&*object.name) => Named::Exactly,
                names if names.iter().any(|name| glob(name, &object.name)) => Named::ByGlob,
                _ => Named::Not,
            };
            given |= coverage.grant(
                grant.access == access,
                ways(grantee),
                *kind == object.res,
                named,
            );
        }
    }
    given
}
