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
    pub grantees: Vec<By>,
    pub objects: Vec<Granted>,
}

impl GrantSpec {
    /// As the API server shows it.
    pub fn typed(&self) -> ReplicationGrantSpec {
        let object = |Granted { kind, names }: &Granted| {
            let gvk = kind.gvk();
            let mut object = json!({"apiVersion": gvk.api_version(), "kind": *gvk.kind});
            if !names.is_empty() {
                object["names"] = json!(names);
            }
            object
        };
        let grantees: Vec<Value> = self.grantees.iter().map(By::json).collect();
        let objects: Vec<Value> = self.objects.iter().map(object).collect();
        let access = format!("{:?}", self.access);
        let spec = json!({"access": access, "grantees": grantees, "objects": objects});
        serde_json::from_value(spec).expect("the CRD's schema lets it pass")
    }
}
