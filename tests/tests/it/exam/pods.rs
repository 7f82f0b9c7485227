//! Pods that are created at once in new and relabelled namespaces. Checks whether any pod was
//! admitted before its copies.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use kube::{Api, Client};
use mimeo_tests::traffic::{pod, revision};
use tokio::task::JoinHandle;

use super::cluster::{Chronicle, create};
use super::judge::Round;
use super::memory::Memory;
use super::model::{Cell, Gate, RuleId, World};

/// A pod, and the copies that must exist before it.
pub struct Pod {
    namespace: String,
    name: String,
    generated: bool,
    /// The state of the round at the pod's creation.
    from: usize,
    awaited: Vec<(Cell, RuleId, Cell)>,
}

/// The result of a pod's creation, and the state of the round at that time.
struct Outcome {
    until: usize,
    /// The revision at which the pod was stored, or the refusal.
    stored: Result<u64, String>,
}

#[derive(Default)]
pub struct Pods {
    asked: Vec<(Pod, JoinHandle<Result<Outcome>>)>,
    pub admitted: usize,
    pub denied: usize,
    /// The number of copies that were looked for before a pod.
    pub checked: usize,
    /// Those of them that were missing by the exception for labels that came back at once.
    pub excepted: usize,
}

impl Pod {
    pub fn new(namespace: &str, name: &str, generated: bool, round: &Round, world: &World) -> Self {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let (from, awaited) = (round.states.len() - 1, world.awaited(&namespace));
        Self {
            namespace,
            name,
            generated,
            from,
            awaited,
        }
    }
}

impl Pods {
    /// Creates a pod while other edits go on.
    pub fn spawn(&mut self, client: &Client, asked: Pod, steps: Arc<AtomicUsize>) {
        let api = Api::namespaced(client.clone(), &asked.namespace);
        let mut wanted = pod(&asked.name);
        if asked.generated {
            (wanted.metadata.name, wanted.metadata.generate_name) = (None, Some("pod-".to_owned()));
        }
        let creation = async move {
            let outcome = create(&api, &wanted).await?;
            let stored = match outcome {
                Ok(stored) => Ok(revision(&stored)?),
                Err(status) => Err(format!("{} {}", status.code, status.message)),
            };
            Ok(Outcome {
                until: steps.load(Ordering::SeqCst),
                stored,
            })
        };
        self.asked.push((asked, tokio::spawn(creation)));
    }

    /// Waits for all pods of the round. Returns those that were wrongly admitted or refused.
    pub async fn join(
        &mut self,
        round: &Round,
        memory: &Memory,
        force: &BTreeSet<RuleId>,
        chronicle: &Chronicle,
    ) -> Result<Vec<String>> {
        let mut misses = Vec::new();
        let mut ended = Vec::new();
        for (pod, outcome) in self.asked.drain(..) {
            ended.push((pod, outcome.await.context("a pod's task")??));
        }
        chronicle.catch_up().await?;
        for (pod, Outcome { until, stored }) in ended {
            // An edit may be stored before it is recorded.
            let last = (until + 1).min(round.states.len() - 1);
            let states = &round.states[..=last];
            let now = &round.states[round.states.len() - 1];
            match stored {
                Ok(revision) => {
                    self.admitted += 1;
                    for (cell, rule, _) in pod.sure(states, round, memory, force) {
                        self.checked += 1;
                        if chronicle.had(cell, revision) {
                            continue;
                        }
                        if came_back(cell, rule, states, memory) {
                            self.excepted += 1;
                        } else {
                            let history = chronicle.tell(cell);
                            let told = format!(
                                "admitted at revision {revision} before {cell:?}: {history:?}"
                            );
                            misses.push(format!("POD {}/{}: {told}", pod.namespace, pod.name));
                        }
                    }
                }
                Err(refusal) => {
                    self.denied += 1;
                    if now.namespaces.contains_key(&pod.namespace)
                        && !pod.may_be_denied(round, memory)
                    {
                        misses.push(format!(
                            "POD {}/{}: refused: {refusal}",
                            pod.namespace, pod.name
                        ));
                    }
                }
            }
        }
        Ok(misses)
    }
}

impl Pod {
    /// Returns those of its copies that nothing in the round hindered before the pod was stored.
    fn sure<'a>(
        &'a self,
        states: &'a [World],
        round: &'a Round,
        memory: &'a Memory,
        force: &'a BTreeSet<RuleId>,
    ) -> impl Iterator<Item = &'a (Cell, RuleId, Cell)> {
        let labels = |state: &World| state.namespaces.get(&self.namespace).cloned();
        let same = states[self.from..]
            .iter()
            .all(|state| labels(state) == labels(&states[self.from]));
        let steady = move |(cell, rule, source): &&(Cell, RuleId, Cell)| {
            let of = |state: &World| {
                (
                    state.rules.get(rule).cloned(),
                    state.sources.get(source).cloned(),
                )
            };
            let first = of(&states[0]);
            let alone = |state: &World| state.claims(cell).into_keys().all(|id| id == *rule);
            same && force.contains(rule)
                && states.iter().all(|state| {
                    of(state) == first && alone(state) && !state.foreign.contains_key(cell)
                })
                && !round.deleted.contains(cell)
                && memory.is_plain(cell, round)
        };
        self.awaited.iter().filter(steady)
    }

    fn may_be_denied(&self, round: &Round, memory: &Memory) -> bool {
        let hindered = round
            .states
            .iter()
            .any(|state| state.may_deny(&self.namespace));
        // A rule that requires its copies may deny a pod for a moment after a change, or before it
        // is in force.
        let required = |state: &World| -> BTreeSet<RuleId> {
            let rules = state
                .rules
                .iter()
                .filter(|(_, rule)| rule.spec.gate == Gate::Required);
            rules.map(|(id, _)| id.clone()).collect()
        };
        let changed = round.states.iter().any(|state| {
            let rules = required(state);
            rules.iter().any(|id| {
                round
                    .states
                    .iter()
                    .any(|other| other.rules.get(id) != state.rules.get(id))
            })
        });
        hindered || changed || memory.is_rough(&self.namespace, round)
    }
}

/// True if the namespace stopped matching and then matched again. The deletion of the former
/// copy may still be under way, and the documents name this exception.
fn came_back(cell: &Cell, rule: &RuleId, states: &[World], memory: &Memory) -> bool {
    let wants = |state: &World| state.claims(cell).contains_key(rule);
    let held = memory.copies.contains_key(cell);
    let mut later = states.iter().skip_while(|state| !held && !wants(state));
    later.any(|state| !wants(state))
}
