//! Every pod selector in the chart matches the intended pods, and every named port exists there.
//! The API server accepts any selector, and reports none that matches nothing.

use anyhow::{Result, ensure};
use serde_json::Value;

use super::{SETS, objects, rendered_set};

/// The label that no pod template has.
const LEADER: &str = "mimeo.dev/leader";

/// True if a selector finds an object with these labels. An empty selector, which would find every
/// object, counts as no match.
fn matches(selector: &Value, labels: &Value) -> bool {
    if let Some(expressions) = selector["matchExpressions"].as_array() {
        return expressions.iter().all(|one| {
            let values = one["values"].as_array().filter(|_| one["operator"] == "In");
            let label = one["key"].as_str().map(|key| &labels[key]);
            values.is_some_and(|values| label.is_some_and(|label| values.contains(label)))
        });
    }
    let wanted = selector["matchLabels"]
        .as_object()
        .or_else(|| selector.as_object());
    // The leader sets its label itself.
    let wanted = wanted.into_iter().flatten();
    let mut wanted = wanted.filter(|(key, _)| *key != LEADER).peekable();
    wanted.peek().is_some() && wanted.all(|(key, value)| labels[key] == *value)
}

/// A workload of the chart, or one pod: its name, and its pod template.
struct Workload<'a> {
    name: &'a str,
    kind: &'a str,
    pod: &'a Value,
    labels: &'a Value,
}

impl<'a> Workload<'a> {
    fn all(objects: &'a [Value]) -> Vec<Self> {
        let of = |object: &'a Value| {
            let (kind, name) = (
                object["kind"].as_str()?,
                object["metadata"]["name"].as_str()?,
            );
            let template = if kind == "Pod" {
                object
            } else {
                object.pointer("/spec/template")?
            };
            Some(Self {
                name,
                kind,
                pod: &template["spec"],
                labels: &template["metadata"]["labels"],
            })
        };
        objects.iter().filter_map(of).collect()
    }

    fn has_port(&self, name: &Value) -> bool {
        let mut ports =
            list(self.pod, "/containers").flat_map(|container| list(container, "/ports"));
        name.is_string() && ports.any(|port| port["name"] == *name)
    }
}

fn list<'a>(of: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    of.pointer(pointer)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

#[test]
fn what_selects_pods_finds_its_own_and_their_ports() -> Result<()> {
    let mut seen = 0;
    for set in SETS {
        let objects = objects(&rendered_set(set, &[])?)?;
        let workloads = Workload::all(&objects);
        let services: Vec<&Value> = objects
            .iter()
            .filter(|object| object["kind"] == "Service")
            .collect();
        let selected = |selector: &Value| -> Vec<&Workload<'_>> {
            workloads
                .iter()
                .filter(|workload| matches(selector, workload.labels))
                .collect()
        };
        for object in &objects {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let what = format!(
                "{set}: {} {name}",
                object["kind"].as_str().unwrap_or_default()
            );
            let (selector, ports): (&Value, Vec<&Value>) = match object["kind"].as_str() {
                Some("Service") => (
                    &object["spec"]["selector"],
                    list(object, "/spec/ports")
                        .map(|port| &port["targetPort"])
                        .collect(),
                ),
                Some("NetworkPolicy") => (
                    &object["spec"]["podSelector"],
                    list(object, "/spec/ingress")
                        .flat_map(|rule| list(rule, "/ports"))
                        .map(|port| &port["port"])
                        .collect(),
                ),
                Some("PodDisruptionBudget" | "Deployment") => (&object["spec"]["selector"], vec![]),
                Some("PodMonitor") => {
                    let ports: Vec<&Value> = list(object, "/spec/podMetricsEndpoints")
                        .map(|one| &one["port"])
                        .collect();
                    let programs = selected(&object["spec"]["selector"]);
                    ensure!(
                        programs.len() == 2,
                        "{what} finds {} workloads",
                        programs.len()
                    );
                    ensure!(
                        programs
                            .iter()
                            .all(|one| ports.iter().all(|port| one.has_port(port))),
                        "{what}: {ports:?}"
                    );
                    continue;
                }
                Some("ServiceMonitor") => {
                    let found: Vec<_> = services
                        .iter()
                        .filter(|service| {
                            matches(&object["spec"]["selector"], &service["metadata"]["labels"])
                        })
                        .collect();
                    ensure!(found.len() == 2, "{what} finds {} Services", found.len());
                    for (endpoint, service) in list(object, "/spec/endpoints").zip(found) {
                        ensure!(
                            list(service, "/spec/ports")
                                .any(|port| port["name"] == endpoint["port"]),
                            "{what}"
                        );
                    }
                    continue;
                }
                _ => continue,
            };
            seen += 1;
            let found = selected(selector);
            let [workload] = &found[..] else {
                anyhow::bail!(
                    "{what} finds {:?}",
                    found.iter().map(|one| one.name).collect::<Vec<_>>()
                );
            };
            ensure!(
                name.starts_with(workload.name),
                "{what} finds {} {}",
                workload.kind,
                workload.name
            );
            for port in ports {
                ensure!(
                    workload.has_port(port),
                    "{what}: {} has no port {port}",
                    workload.name
                );
            }
        }
        // If one workload has a network policy, all have one.
        let policies = objects
            .iter()
            .filter(|object| object["kind"] == "NetworkPolicy");
        let covered: Vec<&Value> = policies
            .map(|policy| &policy["spec"]["podSelector"])
            .collect();
        let bare = workloads.iter().find(|workload| {
            !covered
                .iter()
                .any(|selector| matches(selector, workload.labels))
        });
        ensure!(
            covered.is_empty() || bare.is_none(),
            "{set}: nothing is said of {:?}",
            bare.map(|one| one.name)
        );
        // Rules that spread pods or keep them apart select the pods of the same workload.
        for Workload {
            name, pod, labels, ..
        } in &workloads
        {
            for spread in list(pod, "/topologySpreadConstraints") {
                ensure!(
                    matches(&spread["labelSelector"], labels),
                    "{set}: {name} is spread by others' labels"
                );
            }
        }
    }
    ensure!(seen > 30, "{seen} selectors");
    Ok(())
}
