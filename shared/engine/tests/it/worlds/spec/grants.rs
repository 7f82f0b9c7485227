//! Grants of a namespace.

use mimeo_api::ReplicationGrantSpec;
use serde_json::{Value, json};

use super::By;
use crate::worlds::server::Res;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// Objects of one kind, by their names or globs. Without names, all objects of the kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    pub kind: Res,
    pub names: Vec<&'static str>,
}

/// The spec of a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantSpec {
    pub access: Access,
    pub from: Vec<By>,
    pub to: Vec<Granted>,
}

impl GrantSpec {
    /// As the API server shows it.
    pub fn typed(&self) -> ReplicationGrantSpec {
        let to = |Granted { kind, names }: &Granted| {
            let gvk = kind.gvk();
            let mut to = json!({"apiVersion": gvk.api_version(), "kind": *gvk.kind});
            if !names.is_empty() {
                to["names"] = json!(names);
            }
            to
        };
        let from: Vec<Value> = self.from.iter().map(By::json).collect();
        let to: Vec<Value> = self.to.iter().map(to).collect();
        let spec = json!({"access": format!("{:?}", self.access), "grantees": from, "objects": to});
        serde_json::from_value(spec).expect("the CRD's schema lets it pass")
    }
}
