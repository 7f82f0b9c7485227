//! Answers single questions of the engine by requests to the API server.

use mimeo_engine::{Answer, Job, Question, Request, Task};
use mimeo_model::{
    kind::{GroupVersionKind, Resource},
    known::Decoded,
    outcome::Outcome,
    source::{SourceRef, SourceSelector},
};
use mimeo_runtime::{
    discovery::{Discovery, resource_path},
    writer::Writer,
};
use serde_json::Value;

use crate::read::{Part, ReadError, Reader, metadata, undecodable};

/// An answer of the API server.
pub(super) enum Read {
    Kind(GroupVersionKind, Result<Option<Resource>, String>),
    Source(SourceRef, Result<Option<Value>, ReadError>),
    Selected(SourceSelector, Result<Vec<Value>, ReadError>),
    /// With a sentence if it could not be read.
    Job(Box<Job>, Answer, Option<String>),
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
                let note = |error| format!("Could not {}: {error}.", job.task);
                let answer = ask(&job.task, writer, discovery).await.map_err(note);
                let note = answer.as_ref().err().cloned();
                Read::Job(job, answer.unwrap_or(Answer::Failed), note)
            }
            Question::Object(request) => {
                let (namespace, name) = (&request.namespace, &request.name);
                let path = resource_path(&request.resource, Some(namespace), Some(name));
                let outcome = match reader.get(&path, Part::Metadata).await {
                    Ok(Some(object)) => metadata(&object)
                        .map(|meta| Outcome::Object(Box::new(meta)))
                        .ok_or_else(undecodable),
                    Ok(None) => Ok(Outcome::Absent),
                    Err(error) => Err(error),
                };
                Read::Object(request, outcome)
            }
            Question::Copies(..) => return None,
        })
    }
}

/// Carries out a job that only reads.
async fn ask(task: &Task, writer: &Writer, discovery: &Discovery) -> Result<Answer, String> {
    let resource = async |gvk: &GroupVersionKind| match discovery.find(gvk).await {
        Ok(Some(resource)) => Ok(resource),
        Ok(None) => Err(format!("the API server doesn't serve {gvk}")),
        Err(error) => Err(error.to_string()),
    };
    let answer = match task {
        Task::ConfirmRule(id) => writer.read_rule(id).await.map(Answer::Presence),
        Task::ConfirmGrants(namespace) => writer.read_grants(namespace).await.map(Answer::Grants),
        Task::ConfirmSource(source) => {
            let resource = resource(&source.gvk).await?;
            writer
                .read_source(source, &resource)
                .await
                .map(Answer::Presence)
        }
        Task::ReadSource(source) => {
            let resource = resource(&source.gvk).await?;
            writer.read(source, &resource).await.map(Answer::Object)
        }
        _ => return Ok(Answer::Failed),
    };
    answer.map_err(|error| error.to_string())
}
