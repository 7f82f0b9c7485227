//! Requests to the API servers, from their audit logs: one event per request, so that tests count
//! exactly.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde::Deserialize;

/// Logs all requests without bodies. It also logs when a write begins, so that [`settled`] knows
/// the writes under way. A watch shows the effect of a write before the write is answered and
/// logged. Pods are an exception, because Mimeo may hold their creation.
pub(crate) const POLICY: &str = r#"{
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "rules": [
        {"level": "Metadata", "resources": [{"group": "", "resources": ["pods"]}], "omitStages": ["RequestReceived"]},
        {"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
        {"level": "Metadata", "omitStages": ["RequestReceived"]}
    ]
}"#;

/// Prefix of the annotations that name a webhook which the API server ignored after a failure.
const FAILED_OPEN: &str = "failed-open.";

/// The stage of a request that hasn't been answered yet.
const RECEIVED: &str = "RequestReceived";

/// User agent of this crate's own requests (readiness, marks). Tests do not count these.
pub(crate) const OWN_USER_AGENT: &str = "mimeo-tests-control-plane";

/// A position in the audit logs; see [`crate::ControlPlane::audit_mark`].
#[derive(Debug, Clone)]
pub struct AuditMark(pub(crate) Vec<u64>);

/// A request that an API server has answered, or a watch that it has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEvent {
    /// The API server, counted from 0.
    pub api_server: usize,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`. An apply
    /// is a `patch`, even if it creates the object. Requests for other things than objects have the
    /// HTTP method in lower case.
    pub verb: String,
    /// The user that sent the request.
    pub user: String,
    /// The user agent of the client.
    pub user_agent: String,
    /// API group. It is empty for the core group and for requests that do not concern an object.
    pub group: String,
    /// Plural name, such as `secrets`. It is empty for requests that do not concern an object.
    pub resource: String,
    /// Such as `status`; mostly empty.
    pub subresource: String,
    /// Empty for cluster-scoped objects and for lists of all namespaces.
    pub namespace: String,
    /// Empty for lists and watches. With `generateName`, the generated name.
    pub name: String,
    /// The HTTP status of the answer.
    pub code: u16,
    /// Path and query.
    pub uri: String,
    /// `ResponseComplete`, or `Panic`, or `ResponseStarted` for a watch, which is logged when it
    /// begins.
    pub stage: String,
    /// Time at which the request arrived.
    pub received: Timestamp,
    /// Time at which this stage was reached.
    pub at: Timestamp,
    /// Names of the webhooks with `failurePolicy: Ignore` whose call failed. The API server
    /// continued without their answers.
    pub passed_over: Vec<String>,
}

impl AuditEvent {
    /// True if the verb changes objects, whether or not the request succeeded (see
    /// [`AuditEvent::code`]). Dry runs do not count. Neither do reviews that are asked by a create
    /// and never stored.
    pub fn is_write(&self) -> bool {
        let verbs = ["create", "update", "patch", "delete", "deletecollection"];
        let question = matches!(
            self.group.as_str(),
            "authorization.k8s.io" | "authentication.k8s.io"
        );
        verbs.contains(&self.verb.as_str()) && !question && !self.uri.contains("dryRun=All")
    }

    /// True for the event at the end of a watch. A watch has two events. The end of a watch that
    /// was open at a mark is no request after the mark.
    pub(crate) fn ends_watch(&self) -> bool {
        self.verb == "watch" && self.stage == "ResponseComplete"
    }
}

/// Returns the requests that were denied (403) and never permitted later. An API server applies a
/// new permission a moment after it is stored, and denies some requests until then. The programs
/// send them again.
pub fn never_permitted<'a>(events: &[&'a AuditEvent]) -> Vec<&'a AuditEvent> {
    let permitted = |denied: &AuditEvent| {
        events.iter().any(|event| {
            let [this, that] = [denied, event].map(|one| {
                (
                    [&one.user, &one.verb, &one.group, &one.resource],
                    [&one.subresource, &one.namespace, &one.name],
                )
            });
            this == that && event.code != 403 && event.received > denied.received
        })
    };
    let denied = events.iter().filter(|event| event.code == 403);
    denied.filter(|event| !permitted(event)).copied().collect()
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
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// The fields of a line that [`settled`] needs.
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

/// The events of one log from an offset (in bytes) on, in the order of the answers. A watch has two
/// events.
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

/// The end of the last whole line of a log, in bytes.
pub(crate) fn end(log: &Path) -> Result<u64> {
    // More than any line needs: bodies are not logged.
    const LONGEST_LINE: u64 = 1024 * 1024;
    let length = std::fs::metadata(log)
        .with_context(|| format!("failed to read {}", log.display()))?
        .len();
    let from = length.saturating_sub(LONGEST_LINE);
    Ok(from + u64::try_from(whole_lines(log, from)?.len())?)
}

/// The position (in bytes) of the line with this text. Returns `None` until the log has that line
/// and the answers of all writes that were received before it. Ignores everything before the
/// offset.
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

/// The ids of the writes that these lines show as received.
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
    // The server may still be writing the last line.
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
    let failed_open = |(key, name): (String, String)| key.starts_with(FAILED_OPEN).then_some(name);
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
        passed_over: line
            .annotations
            .into_iter()
            .filter_map(failed_open)
            .collect(),
    }
}
