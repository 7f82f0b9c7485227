//! Tells consent that was taken back from consent that was lost.
//!
//! A copy is not deleted only because a watch stopped showing a grant. The engine first reads the
//! namespace that granted it, without any cache: its grants, the namespace and the CRD of grants.
//! The consent was taken back on purpose if two conditions hold. The grants are the same as those
//! known here, and the copy is younger than the namespace and the CRD. Then Mimeo deletes the copy,
//! and the owner of the `Replication` cannot prevent that.
//!
//! A lost CRD takes no consent back. A copy is collected like any other loss if the cause is a lost
//! namespace, or new labels on the `Replication`'s own namespace.

use std::collections::BTreeMap;

use mimeo_api::Access;

use mimeo_model::{grant::Edition, id::RuleId, kind::GroupKind};

use crate::{
    Index, Namespace,
    absent::{Absence, Became, HowGone},
    copy::CopyState,
    grants::Grants,
    jobs::JobKey,
    verdict::Needs,
};

/// The answer to [`Task::ConfirmGrants`](crate::Task), from uncached reads. The grants are read
/// first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantsRead {
    /// All grants in the namespace that can be parsed, by name.
    pub grants: BTreeMap<Box<str>, Edition>,
    /// When the namespace was created, in seconds since 1970. `None`: it does not exist or is being
    /// deleted.
    pub home: Option<u32>,
    /// When the CRD of grants was created, in seconds since 1970. `None`: the CRD does not exist or
    /// is being deleted.
    pub defined: Option<u32>,
}

impl Index {
    /// Returns how the grant for a copy disappeared that its rule no longer wants in this namespace,
    /// or may no longer have there. `None`: that is unknown, and the granting namespace's grants
    /// must be read. A copy that lost no grant is collected like one that lost it with a namespace.
    pub(crate) fn how_consent_went(
        &self,
        id: &RuleId,
        namespace: &Namespace,
        copy: &CopyState,
        needs: &mut Needs,
    ) -> Option<HowGone> {
        let Some(giver) = self.withdrawn_by(id, namespace, copy) else {
            return Some(HowGone::WithNamespace);
        };
        self.how_gone(JobKey::ConfirmGrants(giver), copy, needs)
    }

    /// Returns the namespace that does not grant the access that the copy needs.
    /// `None`: there is another reason why the rule no longer wants the copy. That includes new
    /// labels of the rule's own namespace.
    fn withdrawn_by(
        &self,
        id: &RuleId,
        namespace: &Namespace,
        copy: &CopyState,
    ) -> Option<Box<str>> {
        let name = &*namespace.name;
        let state = self.rules.get(id)?;
        let rule = state
            .valid()
            .filter(|rule| rule.matches(namespace.place()))?;
        let mut projections = self
            .projections_for(state, namespace)
            .map(|(_, projection)| projection);
        let projection = projections.find(|projection| {
            projection.kind == copy.kind && projection.name.at(namespace.place()) == copy.name
        });
        let group_kind = &self.kinds[copy.kind].group_kind;
        // A selector needs a grant for objects of any name.
        let (access, giver, object) = match projection {
            Some(projection) if !projection.granted => {
                let source = &projection.source;
                let object = source.is_named().then_some(&*source.name);
                (Access::Read, &*source.namespace, object)
            }
            Some(_) if self.may_write(id, name, group_kind, &copy.name) => return None,
            Some(_) => (Access::Write, name, Some(&*copy.name)),
            None => {
                let source = self.origin(copy)?;
                if !self.is_withheld(rule, source) {
                    return None;
                }
                (Access::Read, &*source.namespace, None)
            }
        };
        let home = match id.namespace.as_deref()? {
            home if home == name => Some(namespace),
            home => self.namespaces.get(home).map(|entry| &**entry),
        };
        (!self.may_be_for_labels(home, access, giver, group_kind, object)).then(|| giver.into())
    }

    /// True if new labels of the rule's namespace may be why a grant no longer covers the access.
    /// That is so if a grant covers the object, selects by labels, and did not change after these
    /// labels did. A user that may label namespaces does not speak for the owner of the granting
    /// namespace. Also true if the facts are not known.
    fn may_be_for_labels(
        &self,
        home: Option<&Namespace>,
        access: Access,
        giver: &str,
        kind: &GroupKind,
        name: Option<&str>,
    ) -> bool {
        let Some(home) = home.filter(|home| home.uid.is_some() && self.grants_known()) else {
            return true;
        };
        let Some(grants) = self.consent.grants.get(giver) else {
            return false;
        };
        grants.counting().any(|(_, grant, changed)| {
            let later = changed.is_some_and(|changed| changed > home.labelled);
            grant.selects_by_labels(access) && grant.covers(kind, name) && !later
        })
    }

    /// Returns how the grants of a namespace disappeared according to this read.
    /// [`Became::Unknown`]: the watch has yet to show a difference.
    pub(crate) fn grants_became(
        &self,
        giver: &str,
        absence: &Absence,
        read: &GrantsRead,
    ) -> Became {
        let known = self.consent.grants.get(giver);
        if read.grants != known.map(Grants::editions).unwrap_or_default() {
            return Became::Unknown;
        }
        Became::Gone {
            unexplained: absence.with_crd(read.defined),
            with_namespace: absence.with_namespace(read.home),
        }
    }
}
