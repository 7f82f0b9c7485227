//! Carries out the programs' requests and jobs on the server in memory.

use std::rc::Rc;

use mimeo_api::ReplicationGrant;
use mimeo_engine::{GrantsRead, Home, Presence, Request, Task, Verb};
use mimeo_model::{grant::Grant, outcome::Outcome, ownership, source::SourceRef};

use super::{
    process::{Answer, What, body_of, key_of, verb_name},
    server::{Key, Object, Refusal, Res, Server},
};

/// Makes the server carry out a request or a job. Returns the answer, and a line that describes the
/// work.
pub fn carry(server: &mut Server, what: &What) -> (Answer, String) {
    match what {
        What::Request(request) => {
            let key = key_of(request);
            let line = format!("{} {key}", verb_name(request.verb));
            let (outcome, object) = carry_request(server, request, &key);
            (Answer::Outcome(outcome, object), line)
        }
        What::Job(job) => (carry_job(server, &job.task), format!("{:?}", job.task)),
    }
}

fn carry_request(
    server: &mut Server,
    request: &Request,
    key: &Key,
) -> (Outcome, Option<Rc<Object>>) {
    let read = |answer: Result<Rc<Object>, Refusal>| match answer {
        Ok(object) => (Outcome::Object(Box::new(object.meta())), Some(object)),
        Err((code, status)) => (
            Outcome::of_error(code, &status, None, &request.resource, &request.name),
            None,
        ),
    };
    match request.verb {
        Verb::Look => read(server.look(key)),
        Verb::Claim(uid, version) => {
            let meta = server.look(key).map(|object| object.meta());
            let kind = key.res.gvk().group_kind();
            match meta.map(|meta| ownership::claim(&meta, &kind, request.exclusive)) {
                Ok(Some(managers)) => read(server.claim(key, &uid.to_string(), version, &managers)),
                Ok(None) => read(server.look(key)),
                Err(refusal) => read(Err(refusal)),
            }
        }
        Verb::Delete(uid, version) => match server.delete(key, &uid.to_string(), version) {
            Ok(Some(object)) => read(Ok(object)),
            Ok(None) => (Outcome::Absent, None),
            Err(refusal) => read(Err(refusal)),
        },
        verb => match body_of(request, key) {
            Ok((config, pre)) if matches!(verb, Verb::Compare(..)) => {
                read(server.compare(key, &config, &pre))
            }
            Ok((config, pre)) => {
                read(server.apply(key, &config, &pre, matches!(verb, Verb::Learn(_))))
            }
            Err(why) => {
                server.violations.push(why);
                (Outcome::Conflict, None)
            }
        },
    }
}

fn carry_job(server: &mut Server, task: &Task) -> Answer {
    match task {
        Task::RecordKind(gvk) => {
            server.note(|notes| {
                notes.kinds.insert(gvk.clone());
            });
            Answer::Written(true)
        }
        Task::ForgetKind(kind, _) => {
            // The program lists first. If a copy exists, the record stays.
            let res = Res::of(&kind.group, &kind.kind);
            let clear = !server.of(res).any(|object| object.labelled());
            if clear {
                server.note(|notes| notes.kinds.retain(|noted| noted.group_kind() != *kind));
            }
            Answer::Written(clear)
        }
        Task::ConfirmRule(id) => {
            let found = server.get(&Key::of(id)).is_some();
            let home = id.namespace.as_deref();
            Answer::Presence(Some(if found {
                Presence::Present
            } else {
                Presence::Absent(Home {
                    namespace: home.map_or(Some(0), |home| age(server, home)),
                    crd: server.defined(id.kind),
                })
            }))
        }
        Task::ConfirmSource(source) => Answer::Presence(read_source(server, source)),
        // Mimeo reads a selected object only when it makes copies of it. The object may not match
        // any more.
        Task::ReadSource(source) if source.selector().is_some() => {
            let key = Key::new(
                Res::of(&source.gvk.group, &source.gvk.kind),
                &source.namespace,
                &source.name,
            );
            let found = |object: &&Rc<Object>| {
                let labels = object.labels();
                source.admits(|key| labels.get(key).map(String::as_str))
            };
            Answer::Shown(server.get(&key).filter(found).cloned())
        }
        Task::ReadSource(source) => {
            server
                .violations
                .push(format!("{source} was shown, and is to be read"));
            Answer::Written(true)
        }
        Task::ConfirmGrants(namespace) => {
            let granted = |object: &Rc<Object>| {
                Grant::parse(&ReplicationGrant {
                    metadata: object.meta(),
                    spec: (**object.grant.as_ref()?).clone(),
                    status: None,
                })
                .ok()
            };
            let grants = server
                .of(Res::Grant)
                .filter(|object| object.key.namespace == **namespace)
                .filter_map(|object| Some((&*object.key.name, granted(object)?.edition)))
                .map(|(name, edition)| (name.into(), edition))
                .collect();
            // The CRD of grants is never removed.
            Answer::Grants(GrantsRead {
                grants,
                home: Home {
                    namespace: age(server, namespace),
                    crd: Some(0),
                },
            })
        }
        Task::RecordCreated {
            namespace,
            created,
            version,
        } => Answer::Written(server.record_created(namespace, &created.to_string(), *version)),
        Task::RemoveLabel {
            namespace,
            nonce,
            version,
            ..
        } => Answer::Written(server.remove_label(namespace, nonce, *version)),
    }
}

fn read_source(server: &Server, source: &SourceRef) -> Option<Presence> {
    let key = Key::new(
        Res::of(&source.gvk.group, &source.gvk.kind),
        &source.namespace,
        &source.name,
    );
    if !server.served(key.res) {
        return None;
    }
    if let Some(object) = server.get(&key) {
        let labels = object.labels();
        return Some(
            if source.admits(|key| labels.get(key).map(String::as_str)) {
                Presence::Present
            } else {
                Presence::Relabelled
            },
        );
    }
    Some(Presence::Absent(Home {
        namespace: age(server, &source.namespace),
        crd: Some(0),
    }))
}

/// When a namespace was created, unless it is being deleted.
fn age(server: &Server, namespace: &str) -> Option<u32> {
    let home = server.namespace(namespace).filter(|home| !home.deleting)?;
    Some(u32::try_from(home.created).expect("small"))
}

pub fn describe(answer: &Answer) -> String {
    match answer {
        Answer::Outcome(outcome, _) => brief(outcome),
        other => format!("{other:?}"),
    }
}

pub fn brief(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Object(meta) => format!("v{}", meta.resource_version.as_deref().unwrap_or("?")),
        other => format!("{other:?}"),
    }
}
