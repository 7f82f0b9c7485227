//! The requests about copies that `driftPolicy: Deny` refuses.

use super::{Deed, Model, Object, Silence};
use crate::worlds::{
    server::Res,
    tables::{Coverage, Deal},
};

impl Model {
    /// Returns whether Mimeo refuses this action of another client at this moment.
    pub fn refuses(&self, deed: &Deed, coverage: &mut Coverage) -> Result<bool, Silence> {
        let Some((key, object)) = deed
            .place()
            .and_then(|key| Some((key, self.objects.get(key)?)))
        else {
            return Ok(false);
        };
        // A copy is Mimeo's own if it has Mimeo's entry. Without the label the API server does not
        // call the webhook.
        let label = "label/mimeo.dev/drift";
        let labelled = object.value(label) == Some("deny") || deed.sets(label) == Some("deny");
        let Some(rule) = object.rule().filter(|_| object.owned() && labelled) else {
            return Ok(false);
        };
        let deal = deed.deal(object);
        let Some(of) = self.rules.get(&rule) else {
            return Ok(coverage.refused(deal, false));
        };
        let wants = self
            .claims(&mut Coverage::default())
            .get(key)
            .is_some_and(|rules| rules.contains_key(&rule));
        if !wants && rule.res == Res::Replication && !of.spec.selected.is_empty() {
            return Err("what a tenant's selectors find, to who isn't told all of it");
        }
        let system = key.namespace.starts_with("kube-");
        let stays = wants && self.open(&key.namespace) && !object.deleting;
        let minded = coverage.minded([of.spec.denies(), !of.rests(), stays, system]);
        Ok(coverage.refused(deal, minded))
    }
}

impl Deed {
    /// Returns the value that the action gives a field.
    pub fn sets(&self, field: &str) -> Option<&str> {
        let Self::Change(_, changes) = self else {
            return None;
        };
        changes.iter().find(|(path, _)| path == field)?.1.as_deref()
    }

    /// Returns the effect of the action on this object, by the field.
    fn deal(&self, object: &Object) -> Deal {
        let of = |path: &str| match object.fields.get(path) {
            Some(field) if field.mine => Deal::Take,
            _ => Deal::Add,
        };
        match self {
            Self::Remove(_) => Deal::Delete,
            Self::Disown(_) | Self::Clear(_) | Self::Forge(..) => Deal::Take,
            Self::Share(_) => Deal::Add,
            Self::Release(_) => {
                if object.held() {
                    Deal::Add
                } else {
                    Deal::Nothing
                }
            }
            Self::Change(_, changes) => {
                let real = changes
                    .iter()
                    .filter(|(path, value)| object.value(path) != value.as_deref());
                real.map(|(path, _)| of(path))
                    .fold(Deal::Nothing, |all, one| match (all, one) {
                        (Deal::Take, _) | (_, Deal::Take) => Deal::Take,
                        _ => Deal::Add,
                    })
            }
            _ => Deal::Nothing,
        }
    }
}
