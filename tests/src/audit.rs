//! What the API servers were asked, from their audit logs: one event per request, so that tests
//! count exactly.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde::Deserialize;

/// Everything, without bodies. That a write has begun is logged too, so that [`settled`] knows
/// which are under way: a watch shows what a write did before the write is answered and logged.
/// Pods are left out, whose creation Mimeo may hold up.
pub(crate) const POLICY: &str = r#"{
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "rules": [
        {"level": "Metadata", "resources": [{"group": "", "resources": ["pods"]}], "omitStages": ["RequestReceived"]},
        {"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
        {"level": "Metadata", "omitStages": ["RequestReceived"]}
    ]
}"#;

/// The stage of a request that hasn't been answered yet.
const RECEIVED: &str = "RequestReceived";

/// Of this crate's own requests (readiness, marks), which no test wants to count.
pub(crate) const OWN_USER_AGENT: &str = "mimeo-tests-control-plane";

/// A position in the audit logs; see [`crate::ControlPlane::audit_mark`].
#[derive(Debug, Clone)]
pub struct AuditMark(pub(crate) Vec<u64>);

/// One request that an API server has answered, or a watch that it has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEvent {
    /// Which API server, counted from 0.
    pub api_server: usize,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`. Apply is
    /// a `patch`, also when it creates. Requests for something else than an object have the HTTP
    /// method in small letters.
    pub verb: String,
    /// Who asked.
    pub user: String,
    /// With which program.
    pub user_agent: String,
    /// API group; empty for the core group and for what is no object.
    pub group: String,
    /// Plural name, such as `secrets`; empty for what is no object.
    pub resource: String,
    /// Such as `status`; mostly empty.
    pub subresource: String,
    /// Empty for cluster-scoped objects and for lists of all namespaces.
    pub namespace: String,
    /// Empty for lists and watches; with `generateName`, the name that was given.
    pub name: String,
    /// The HTTP status of the answer.
    pub code: u16,
    /// Path and query.
    pub uri: String,
    /// `ResponseComplete`; `ResponseStarted` for a watch, which is told when it begins; `Panic`.
    pub stage: String,
    /// When the request arrived.
    pub received: Timestamp,
    /// When this stage was reached.
    pub at: Timestamp,
}

impl AuditEvent {
    /// Whether the verb is one that changes objects, whether or not it did (see
    /// [`AuditEvent::code`]); dry runs aside, and questions that are asked by creating what nobody
    /// stores.
    pub fn is_write(&self) -> bool {
        let verbs = ["create", "update", "patch", "delete", "deletecollection"];
        let question = matches!(
            self.group.as_str(),
            "authorization.k8s.io" | "authentication.k8s.io"
        );
        verbs.contains(&self.verb.as_str()) && !question && !self.uri.contains("dryRun=All")
    }

    /// Whether it tells of the end of a watch. A watch is told twice; that one was open at a mark
    /// is no request after it.
    pub(crate) fn ends_watch(&self) -> bool {
        self.verb == "watch" && self.stage == "ResponseComplete"
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    stage: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    verb: String,
    #[serde(default)]
    user: LineUser,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: ObjectRef,
    #[serde(default)]
    response_status: ResponseStatus,
    request_received_timestamp: Timestamp,
    stage_timestamp: Timestamp,
}

/// Of each line, what [`settled`] needs.
#[derive(Deserialize)]
struct Stage {
    stage: String,
    #[serde(rename = "auditID")]
    audit_id: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LineUser {
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ObjectRef {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseStatus {
    code: u16,
}

/// The events of one log from an offset (bytes) on, in the order in which requests were answered;
/// of a watch, two.
pub(crate) fn read(log: &Path, api_server: usize, offset: u64) -> Result<Vec<AuditEvent>> {
    let bytes = whole_lines(log, offset)?;
    let lines = bytes
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    let events = lines.map(|line| {
        let line: Line =
            serde_json::from_slice(line).context("failed to parse a line of the audit log")?;
        Ok(line)
    });
    let events: Vec<Line> = events.collect::<Result<_>>()?;
    let answered = events.into_iter().filter(|line| line.stage != RECEIVED);
    let others = answered.filter(|line| line.user_agent != OWN_USER_AGENT);
    Ok(others.map(|line| event(api_server, line)).collect())
}

/// Where the last whole line of a log ends, in bytes.
pub(crate) fn end(log: &Path) -> Result<u64> {
    // Longer than any line: bodies are not logged.
    const LONGEST_LINE: u64 = 1024 * 1024;
    let length = std::fs::metadata(log)
        .with_context(|| format!("failed to read {}", log.display()))?
        .len();
    let from = length.saturating_sub(LONGEST_LINE);
    Ok(from + u64::try_from(whole_lines(log, from)?.len())?)
}

/// Where the line with this text begins (bytes), once it is in the log and every write that was
/// received before it has been answered. Nothing before the offset is looked at.
pub(crate) fn settled(log: &Path, offset: u64, text: &str) -> Result<Option<u64>> {
    let bytes = whole_lines(log, offset)?;
    let Some(at) = std::str::from_utf8(&bytes)?.find(text) else {
        return Ok(None);
    };
    let begin = bytes[..at]
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |last| last + 1);
    let mut under_way = received_writes(&bytes[..begin])?;
    if !under_way.is_empty() {
        for stage in
            stages(&bytes).filter(|stage| !matches!(stage, Ok(stage) if stage.stage == RECEIVED))
        {
            under_way.remove(&stage?.audit_id);
        }
    }
    Ok(under_way
        .is_empty()
        .then_some(offset + u64::try_from(begin)?))
}

/// The ids of the writes that were received, as far as these lines tell.
fn received_writes(lines: &[u8]) -> Result<HashSet<String>> {
    let received =
        stages(lines).filter(|stage| !matches!(stage, Ok(stage) if stage.stage != RECEIVED));
    received.map(|stage| Ok(stage?.audit_id)).collect()
}

fn stages(lines: &[u8]) -> impl Iterator<Item = Result<Stage>> {
    let lines = lines
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    lines
        .map(|line| serde_json::from_slice(line).context("failed to parse a line of the audit log"))
}

fn whole_lines(log: &Path, offset: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut file = File::open(log).with_context(|| format!("failed to open {}", log.display()))?;
    file.seek(SeekFrom::Start(offset))?;
    file.read_to_end(&mut bytes)?;
    // The server may be writing the last one.
    bytes.truncate(
        bytes
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |last| last + 1),
    );
    Ok(bytes)
}

fn event(api_server: usize, line: Line) -> AuditEvent {
    let ObjectRef {
        api_group,
        resource,
        subresource,
        namespace,
        name,
    } = line.object_ref;
    AuditEvent {
        api_server,
        verb: line.verb,
        user: line.user.username,
        user_agent: line.user_agent,
        group: api_group,
        resource,
        subresource,
        namespace,
        name,
        code: line.response_status.code,
        uri: line.request_uri,
        stage: line.stage,
        received: line.request_received_timestamp,
        at: line.stage_timestamp,
    }
}
