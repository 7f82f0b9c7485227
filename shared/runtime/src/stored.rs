//! Decodes stored rules and grants as far as possible.

use mimeo_api::{ClusterReplication, Replication, ReplicationGrant};
use mimeo_engine::Observed;
use mimeo_model::{
    grant::Grant,
    id::RuleKind,
    refusal::{Refusal, Refused},
    rule::Rule,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::object::Decoded;

/// Parses a rule and its status. A rule that cannot be decoded is refused without an effect on
/// others; a newer version may have stored it, for example. The status is decoded separately, so
/// that the same status is not written again and again.
pub(crate) fn parse_rule(
    kind: RuleKind,
    object: Decoded<Value>,
) -> (Result<Rule, Refused>, Observed) {
    let observed = object
        .value()
        .get("status")
        .and_then(|status| Deserialize::deserialize(status).ok());
    let generation = object
        .value()
        .pointer("/metadata/generation")
        .and_then(Value::as_i64)
        .unwrap_or_default();
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
            refusals,
        }),
        observed,
    )
}

/// Parses a stored grant.
pub(crate) fn parse_grant(object: Decoded<Value>) -> Result<Grant, Vec<Refusal>> {
    decode_grant(object).and_then(|object| Grant::parse(&object))
}

pub(crate) fn decode_grant(object: Decoded<Value>) -> Result<ReplicationGrant, Vec<Refusal>> {
    decode(object)
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
