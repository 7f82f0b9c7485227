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

use mimeo_model::{grant::Edition, id::RuleId};

use crate::{
    Index, MissingGrant, Namespace,
    absent::{Absence, Became, Home, HowGone},
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
    /// The namespace, and the CRD of grants.
    pub home: Home,
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
        let lack = self.lacked_grant(id, namespace, copy);
        // `self.namespaces` lacks the namespace that is being planned.
        let home = match id.namespace.as_deref() {
            Some(home) if *home != *namespace.name => self.namespaces.get(home).map(|home| &**home),
            _ => Some(namespace),
        };
        let Some(lack) = lack.filter(|lack| !self.may_be_for_labels(home, lack)) else {
            return Some(HowGone::WithNamespace);
        };
        self.how_gone(JobKey::ConfirmGrants(lack.namespace.into()), copy, needs)
    }

    /// Returns the grant that the copy of a Replication lacks. `None`: there is another reason why
    /// the rule no longer wants the copy.
    fn lacked_grant<'a>(
        &'a self,
        id: &RuleId,
        namespace: &Namespace,
        copy: &'a CopyState,
    ) -> Option<MissingGrant<'a>> {
        id.namespace.as_ref()?;
        let rule = self.valid(id)?;
        let kind = &self.kinds[copy.kind].group_kind;
        // A copy has few sources, so that few grants are looked up.
        let mut sources = self.choose(rule).sources;
        sources.retain(|source| rule.makes(source, namespace.place(), &copy.name));
        let copies = self.ungranted(rule, &sources, Some(&namespace.name));
        let lack = copies.into_iter().find_map(|((.., name), lack)| {
            (lack.gvk.is_of(kind) && *name == *copy.name).then_some(lack)
        });
        lack.or_else(|| {
            let source = self.origin(copy)?;
            let withheld = rule.matches(namespace.place()) && self.is_withheld(rule, source);
            // A selector needs a grant for objects of any name.
            withheld.then_some(MissingGrant {
                access: Access::Read,
                namespace: &source.namespace,
                gvk: &source.gvk,
                name: None,
            })
        })
    }

    /// True if new labels of the rule's namespace may be why a grant no longer covers the access.
    /// That is so if a grant covers the object, selects by labels, and did not change after these
    /// labels did. A user that may label namespaces does not speak for the owner of the granting
    /// namespace. Also true if the facts are not known.
    fn may_be_for_labels(&self, home: Option<&Namespace>, lack: &MissingGrant<'_>) -> bool {
        let Some(home) = home.filter(|home| home.uid.is_some() && self.grants_known()) else {
            return true;
        };
        let Some(grants) = self.consent.grants.get(lack.namespace) else {
            return false;
        };
        let (kind, name) = (lack.gvk.group_kind(), lack.name.as_deref());
        grants.counting().any(|(_, grant, changed)| {
            let later = changed.is_some_and(|changed| changed > home.labelled);
            grant.selects_by_labels(lack.access) && grant.covers(&kind, name) && !later
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
        if read.grants == known.map(Grants::editions).unwrap_or_default() {
            absence.became_gone(read.home)
        } else {
            Became::Unknown
        }
    }
}
