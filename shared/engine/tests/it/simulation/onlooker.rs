//! A viewer of the page that reads it now and then, piece by piece. The viewer must end with the
//! same data as a new viewer, and with the same data as the statuses.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use mimeo_engine::{Cursor, Ended, Engine, NamespaceView, RuleView, State};
use mimeo_model::id::RuleId;

/// The data that the viewer has received so far.
#[derive(Debug, Default)]
pub struct Onlooker {
    cursor: Cursor,
    rules: BTreeMap<Arc<RuleId>, RuleView>,
    namespaces: BTreeMap<Arc<str>, NamespaceView>,
}

impl Onlooker {
    /// Takes the next piece, if there is one.
    pub fn look(&mut self, engine: &Engine) -> bool {
        let wall = Timestamp::UNIX_EPOCH + Duration::from_hours(1) + engine.now();
        let Some(view) = engine.page(wall).view(&mut self.cursor) else {
            return false;
        };
        if view.anew {
            self.rules.clear();
            self.namespaces.clear();
        }
        for ended in &view.ended {
            match ended {
                Ended::Rule(id) => drop(self.rules.remove(id)),
                Ended::Namespace(name) => drop(self.namespaces.remove(name)),
            }
        }
        self.rules
            .extend(view.rules.into_iter().map(|rule| (rule.id.clone(), rule)));
        self.namespaces.extend(
            view.namespaces
                .into_iter()
                .map(|namespace| (namespace.name.clone(), namespace)),
        );
        true
    }

    /// Checks that the viewer's data equals the present data.
    pub fn check(&mut self, engine: &Engine) -> Result<(), String> {
        let mut afresh = Self::default();
        for onlooker in [&mut *self, &mut afresh] {
            while onlooker.look(engine) {}
        }
        if self.rules != afresh.rules {
            return Err(format!(
                "shown are the rules {:#?}, not {:#?}",
                self.rules, afresh.rules
            ));
        }
        for name in self.namespaces.keys().chain(afresh.namespaces.keys()) {
            let (shown, is) = (self.namespaces.get(name), afresh.namespaces.get(name));
            if shown != is {
                return Err(format!("shown of {name} is {shown:#?}, not {is:#?}"));
            }
        }
        self.rules
            .values()
            .try_for_each(|rule| self.check_counts(rule))
    }

    fn check_counts(
        &self,
        RuleView {
            id,
            suspended,
            status,
        }: &RuleView,
    ) -> Result<(), String> {
        let Some(copies) = status
            .as_ref()
            .and_then(|status| status.copies)
            .filter(|_| !suspended)
        else {
            return Ok(());
        };
        let places = self
            .namespaces
            .values()
            .flat_map(|namespace| &namespace.places)
            .filter(|place| place.rule == *id);
        let (mut synced, mut failed) = (0, false);
        for place in places {
            synced += place.synced;
            failed |= place.state == State::Failed;
        }
        if usize::try_from(copies.synced) == Ok(synced) && failed == (copies.failed > 0) {
            return Ok(());
        }
        Err(format!(
            "of {id} shown are {synced} synced copies, failed: {failed}; its status says {copies:?}"
        ))
    }
}
