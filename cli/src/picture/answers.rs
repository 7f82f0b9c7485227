//! Answers single questions of the engine by requests to the API server.

use mimeo_engine::{Answer, Job, Question, Request, Task};
use mimeo_model::{
    kind::{GroupVersionKind, Resource},
    known::Decoded,
    outcome::{Failure, FailureReason, Outcome},
    source::{SourceRef, SourceSelector},
};
use mimeo_runtime::{
    discovery::{Discovery, resource_path},
    stored::parse_grant,
    writer::Writer,
};
use serde_json::Value;

use super::metadata;
use crate::read::{Part, ReadError, Reader};

/// An answer of the API server.
pub(super) enum Read {
    Kind(GroupVersionKind, Result<Option<Resource>, String>),
    Source(SourceRef, Result<Option<Value>, ReadError>),
    Selected(SourceSelector, Result<Vec<Value>, ReadError>),
    Job(Box<Job>, Answer),
    Object(Box<Request>, Result<Outcome, ReadError>),
}

/// Everything that answers questions.
pub(super) struct Asker {
    pub(super) reader: Reader,
    pub(super) writer: Writer,
    pub(super) discovery: Discovery,
}

impl Asker {
    /// Answers one question. Lists of copies are long: [`super`] reads them page by page.
    pub(super) async fn answer(&self, question: Question) -> Option<Read> {
        let Self {
            reader,
            writer,
            discovery,
        } = self;
        Some(match question {
            Question::Kind(gvk) => {
                let found = discovery.find(&gvk).await;
                Read::Kind(gvk, found.map_err(|error| error.to_string()))
            }
            Question::Source(source, resource) => {
                let path = resource_path(&resource, Some(&source.namespace), Some(&source.name));
                let object = reader.get(&path, Part::Whole).await;
                Read::Source(source, object)
            }
            Question::Selected(selector, resource) => {
                let path = resource_path(&resource, Some(&selector.namespace), None);
                let query = selector.selector.to_query();
                let query = (!query.is_empty()).then_some(query);
                let mut objects = Vec::new();
                let keep = |object: Decoded<Value>| objects.push(object.value().clone());
                let read = reader
                    .list(&path, query.as_deref(), Part::Whole, keep)
                    .await;
                Read::Selected(selector, read.map(|_| objects))
            }
            Question::Job(job) => {
                let answer = ask(&job.task, writer, discovery).await;
                Read::Job(job, answer)
            }
            Question::Object(request) => {
                let (namespace, name) = (&request.ticket.namespace, &request.ticket.name);
                let path = resource_path(&request.resource, Some(namespace), Some(name));
                let outcome = match reader.get(&path, Part::Metadata).await {
                    Ok(Some(object)) => Ok(metadata(&object).map_or(
                        Outcome::Unavailable {
                            retry_after: None,
                            failure: undecodable(),
                        },
                        |meta| Outcome::Object(Box::new(meta)),
                    )),
                    Ok(None) => Ok(Outcome::Absent),
                    Err(error) => Err(error),
                };
                Read::Object(request, outcome)
            }
            Question::Copies(..) => return None,
        })
    }
}

fn undecodable() -> Failure {
    Failure {
        reason: FailureReason::ClusterUnreachable,
        message: "the object's metadata can't be decoded".into(),
    }
}

/// Carries out a job that only reads.
async fn ask(task: &Task, writer: &Writer, discovery: &Discovery) -> Answer {
    let resource = async |gvk: &GroupVersionKind| discovery.find(gvk).await.ok().flatten();
    let answer = match task {
        Task::ConfirmRule(id) => writer.read_rule(id).await.ok().map(Answer::Rule),
        Task::ConfirmGrants(namespace) => {
            writer.read_grants(namespace).await.ok().map(Answer::Grants)
        }
        Task::ConfirmSource(source) => match resource(&source.gvk).await {
            Some(resource) => {
                let read = writer.read_source(source, &resource).await;
                read.ok().map(Answer::Source)
            }
            None => None,
        },
        Task::ReadSource(source) => match resource(&source.gvk).await {
            Some(resource) => {
                let read = writer
                    .read(&resource, &source.namespace, &source.name)
                    .await;
                read.ok().map(Answer::Object)
            }
            None => None,
        },
        Task::ReadGrant { namespace, name } => {
            let grant = writer.read_grant(namespace, name).await;
            grant
                .ok()
                .map(|grant| Answer::Grant(grant.map(parse_grant)))
        }
        _ => None,
    };
    answer.unwrap_or(Answer::Failed)
}
