//! Decodes stored rules and grants as far as possible.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mimeo_api::{ClusterReplication, Replication, ReplicationGrant, ReplicationGrantStatus};
use mimeo_engine::Observed;
use mimeo_model::{
    grant::{Grant, RefusedGrant, Standing},
    id::RuleKind,
    known::Decoded,
    refusal::{Refusal, Refused},
    rule::Rule,
    source_text,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

/// Parses a rule and its status. A rule that cannot be decoded is refused without an effect on
/// others; a newer version may have stored it, for example. The status is decoded separately, so
/// that the same status is not written again and again.
pub fn parse_rule(kind: RuleKind, object: Decoded<Value>) -> (Result<Rule, Refused>, Observed) {
    let observed = object
        .value()
        .get("status")
        .and_then(|status| Deserialize::deserialize(status).ok());
    let generation = generation(object.value());
    let home = object
        .value()
        .pointer("/metadata/namespace")
        .and_then(Value::as_str);
    let source = object
        .value()
        .pointer("/spec/sources")
        .and_then(|sources| source_text::of_spec(sources, home));
    let parsed = match kind {
        RuleKind::ClusterReplication => {
            decode(object).and_then(|object: ClusterReplication| Rule::parse(&object))
        }
        RuleKind::Replication => {
            decode(object).and_then(|object: Replication| Rule::parse_replication(&object))
        }
    };
    (
        parsed.map_err(|refusals| Refused {
            generation,
            source,
            refusals,
        }),
        observed,
    )
}

/// Parses a stored grant.
pub fn parse_grant(object: Decoded<Value>) -> Result<Grant, RefusedGrant> {
    let refused = RefusedGrant {
        generation: generation(object.value()),
        status: grant_status(object.value())
            .as_ref()
            .and_then(Standing::read),
    };
    decode(object)
        .and_then(|object: ReplicationGrant| Grant::parse(&object))
        .map_err(|_| refused)
}

/// A grant, and why it is refused, if it is. Of one that can't be decoded there are its metadata
/// and its status alone.
pub fn explain_grant(object: Decoded<Value>) -> (ReplicationGrant, Vec<Refusal>) {
    let uid = object.value().pointer("/metadata/uid");
    let metadata = ObjectMeta {
        uid: uid.and_then(Value::as_str).map(Into::into),
        generation: Some(generation(object.value())),
        ..ObjectMeta::default()
    };
    let status = grant_status(object.value());
    match decode::<ReplicationGrant>(object) {
        Ok(grant) => {
            let refusals = Grant::parse(&grant).err().unwrap_or_default();
            (grant, refusals)
        }
        Err(refusals) => {
            let grant = ReplicationGrant {
                metadata,
                status,
                ..ReplicationGrant::default()
            };
            (grant, refusals)
        }
    }
}

fn grant_status(object: &Value) -> Option<ReplicationGrantStatus> {
    object
        .get("status")
        .and_then(|status| Deserialize::deserialize(status).ok())
}

fn generation(object: &Value) -> i64 {
    let generation = object.pointer("/metadata/generation");
    generation.and_then(Value::as_i64).unwrap_or_default()
}

fn decode<T: DeserializeOwned>(object: Decoded<Value>) -> Result<T, Vec<Refusal>> {
    let message = match object {
        Decoded::Whole(mut object) => {
            // Mimeo never reads the managers of a rule or a grant. A client may have written
            // entries that cannot be decoded.
            if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.remove("managedFields");
            }
            match serde_json::from_value(object) {
                Ok(object) => return Ok(object),
                Err(error) => error.to_string(),
            }
        }
        Decoded::Part(_) => "can't be decoded: it is nested too deeply".into(),
    };
    Err(vec![Refusal {
        field: "spec".into(),
        message,
    }])
}
