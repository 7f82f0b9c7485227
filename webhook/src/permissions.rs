//! Asks the API server whether the author of a rule or policy has the permissions that it uses.
//!
//! It fails closed: a permission that the API server cannot confirm counts as missing.

use std::collections::BTreeMap;

use futures::future::try_join_all;
use kube::Client;
use mimeo_engine::admission::come_again;
use mimeo_model::{
    authority::{Need, find, lacks},
    review::{User, Verdict},
    right::Right,
};
use mimeo_runtime::{
    access::is_allowed,
    call::{CallError, CallResult, DEADLINE},
};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};
use tracing::warn;

/// Concurrent questions of one review. The API server answers each from memory.
const PARALLEL: usize = 16;
/// Concurrent questions of all reviews. Any client that reaches the port can send many reviews, and
/// one rule can cause hundreds of questions.
const AT_ONCE: usize = 32;

/// Limits the concurrent requests to the API server on behalf of reviews. Further requests wait.
pub(crate) struct Questions {
    client: Client,
    turns: Semaphore,
}

impl Questions {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            turns: Semaphore::new(AT_ONCE),
        }
    }

    /// Sends one question when its turn comes. Returns `None` if there is no answer before the
    /// deadline.
    pub(crate) async fn ask<T>(
        &self,
        question: impl Future<Output = T>,
        deadline: Instant,
    ) -> Option<T> {
        let turn = async {
            let _turn = self.turns.acquire().await;
            question.await
        };
        timeout_at(deadline, turn).await.ok()
    }

    /// True if the user has the permission.
    ///
    /// # Errors
    /// The question has no answer. This does not mean that the user lacks the permission.
    pub(crate) async fn may(
        &self,
        user: &User,
        right: &Right,
        deadline: Instant,
    ) -> CallResult<bool> {
        let question = Box::pin(is_allowed(&self.client, user, right, DEADLINE));
        let answer = self.ask(question, deadline).await;
        answer.unwrap_or(Err(CallError::Late))
    }
}

/// Checks all needs, in at most two rounds. The first asks for each needed permission. The second
/// asks, for each that was denied, for the permissions that are enough instead. `object` is the kind
/// and name of the object that the user writes.
///
/// # Errors
/// A refusal with the missing permissions, or one that says why the check has no answer.
pub(crate) async fn check(
    questions: &Questions,
    user: &User,
    object: &str,
    needs: &[Need],
    deadline: Instant,
) -> Result<(), Verdict> {
    let mut answers: BTreeMap<&Right, bool> = BTreeMap::new();
    loop {
        let open = match find(needs, |right| answers.get(right).copied()) {
            Ok(missing) if missing.is_empty() => return Ok(()),
            Ok(missing) => {
                let message = format!(
                    "{object} needs permissions that its author does not have: {}; grant these to the author, or let a user who has \
                     them write it",
                    lacks(&user.name, &missing)
                );
                return Err(Verdict::deny(403, "Forbidden", message));
            }
            Err(open) => open,
        };
        for some in open.chunks(PARALLEL) {
            let asked = some
                .iter()
                .map(|right| questions.may(user, right, deadline));
            let answered = try_join_all(asked)
                .await
                .map_err(|error| unanswered(user, &error))?;
            answers.extend(some.iter().copied().zip(answered));
        }
    }
}

fn unanswered(user: &User, error: &CallError) -> Verdict {
    let user = &user.name;
    warn!(user, %error, "cannot ask what a user may do");
    if *error != (CallError::Denied { code: 403 }) {
        return come_again(format!(
            "cannot check the permissions of user {user:?} now. Retry in 1 s"
        ));
    }
    // A retry would not help.
    let message = "the webhook may not check the permissions of users: its ServiceAccount must be \
        allowed to create subjectaccessreviews.authorization.k8s.io";
    Verdict::deny(500, "InternalError", message)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use std::{
        convert::Infallible,
        sync::{
            Arc, Mutex,
            atomic::{AtomicUsize, Ordering},
        },
        time::Duration,
    };

    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn right(namespace: Option<&str>) -> Right {
        let namespace = namespace.map(Into::into);
        Right {
            verb: "get",
            group: "".into(),
            resource: "secrets".into(),
            namespace,
            name: Some("registry".into()),
        }
    }

    fn ann() -> User {
        let extra = [("k".to_owned(), vec!["v".to_owned()])].into();
        User {
            name: "ann".into(),
            uid: "u-7".into(),
            groups: vec!["g".into()],
            extra,
        }
    }

    /// A client, and the specs of the reviews that it sent. Its server answers each review with
    /// `answer`.
    fn server(answer: fn(&Value) -> (u16, Value)) -> (Client, Arc<Mutex<Vec<Value>>>) {
        let asked: Arc<Mutex<Vec<Value>>> = Arc::default();
        let told = asked.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let told = told.clone();
            async move {
                let body = request.into_body().collect_bytes().await.unwrap();
                let mut review: Value = serde_json::from_slice(&body).unwrap();
                told.lock().unwrap().push(review["spec"].clone());
                let (code, answer) = answer(&review["spec"]["resourceAttributes"]);
                if code == 0 {
                    std::future::pending::<()>().await;
                }
                let body = if code < 300 {
                    review["status"] = answer;
                    review
                } else {
                    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "secret"})
                };
                let body = Body::from(body.to_string().into_bytes());
                Ok::<_, Infallible>(http::Response::builder().status(code).body(body).unwrap())
            }
        });
        (Client::new(service, "default"), asked)
    }

    fn need(instead: &[&str]) -> Need {
        Need {
            right: right(None),
            instead: instead
                .iter()
                .map(|namespace| right(Some(namespace)))
                .collect(),
        }
    }

    async fn checked(client: &Client, needs: &[Need], time: Duration) -> Result<(), (u16, String)> {
        match check(
            &Questions::new(client.clone()),
            &ann(),
            "ClusterReplication registry",
            needs,
            Instant::now() + time,
        )
        .await
        {
            Err(Verdict::Deny { code, message, .. }) => Err((code, message)),
            other => other.map_err(|verdict| (0, format!("{verdict:?}"))),
        }
    }

    #[tokio::test]
    async fn a_review_carries_all_that_an_authorizer_may_look_at() {
        let (client, asked) = server(|_| (201, json!({"allowed": true})));
        assert_eq!(checked(&client, &[need(&["platform"])], SOON).await, Ok(()));
        let attributes = json!({"verb": "get", "group": "", "version": "*", "resource": "secrets", "namespace": null, "name": "registry"});
        let spec = json!({
            "user": "ann", "uid": "u-7", "groups": ["g"], "extra": {"k": ["v"]}, "resourceAttributes": attributes,
        });
        assert_eq!(
            *asked.lock().unwrap(),
            [spec],
            "what is held everywhere isn't asked for in one namespace"
        );
    }

    #[tokio::test]
    async fn what_is_not_held_everywhere_is_enough_where_it_is_needed() {
        let (client, _) = server(|asked| {
            (
                201,
                json!({"allowed": asked["namespace"] == "a" || asked["namespace"] == "b"}),
            )
        });
        assert_eq!(checked(&client, &[need(&["a", "b"])], SOON).await, Ok(()));
        let refused = |code: u16, says: &str, result: Result<(), (u16, String)>| {
            let (got, message) = result.unwrap_err();
            assert!(
                got == code
                    && message
                        == format!(
                            "ClusterReplication registry needs permissions that its author does \
                             not have: {says} grant these to the author, or let a user who has \
                             them write it"
                        ),
                "{got} {message}"
            );
        };
        let everywhere = checked(&client, &[need(&[])], SOON).await;
        refused(
            403,
            "user \"ann\" may not get secrets/registry in all namespaces;",
            everywhere,
        );
        let one_more = checked(&client, &[need(&["a", "c", "b"])], SOON).await;
        refused(
            403,
            "user \"ann\" may not get secrets/registry in namespace c;",
            one_more,
        );
        let many = checked(&client, &vec![need(&[]); 7], SOON).await;
        assert!(many.unwrap_err().1.contains(" and 2 more;"));
    }

    #[tokio::test(start_paused = true)]
    async fn so_much_is_asked_at_once_and_no_more() {
        let (client, _) = server(|_| (201, Value::Null));
        let (questions, asked) = (Questions::new(client), AtomicUsize::new(0));
        let silent = || async {
            asked.fetch_add(1, Ordering::Relaxed);
            std::future::pending::<()>().await;
        };
        let all = (0..3 * AT_ONCE).map(|_| questions.ask(silent(), Instant::now() + SOON));
        let mut all = Box::pin(futures::future::join_all(all));
        assert!(futures::poll!(&mut all).is_pending());
        assert_eq!(asked.load(Ordering::Relaxed), AT_ONCE);
        assert!(
            all.await.iter().all(Option::is_none),
            "none has an answer in time"
        );
        assert_eq!(
            questions.ask(async { 7 }, Instant::now() + SOON).await,
            Some(7),
            "each gives its turn back"
        );
    }

    #[tokio::test]
    async fn without_an_answer_nobody_may() {
        for (what, answer, code, says) in [
            (
                "an error",
                (|_| (500, Value::Null)) as fn(&Value) -> (u16, Value),
                429,
                "cannot check the permissions",
            ),
            (
                "too busy",
                |_| (429, Value::Null),
                429,
                "cannot check the permissions",
            ),
            (
                "no right to ask",
                |_| (403, Value::Null),
                500,
                "must be allowed to create subjectaccessreviews",
            ),
            ("no status", |_| (201, Value::Null), 403, "may not get"),
            (
                "denied with an error",
                |_| (201, json!({"allowed": false, "evaluationError": "x"})),
                429,
                "cannot check the permissions",
            ),
        ] {
            let (got, message) = checked(&server(answer).0, &[need(&[])], SOON)
                .await
                .unwrap_err();
            assert!(
                got == code && message.contains(says) && !message.contains("secret "),
                "{what}: {got} {message}"
            );
        }
        let silent = checked(
            &server(|_| (0, Value::Null)).0,
            &[need(&[])],
            Duration::from_millis(10),
        )
        .await;
        assert_eq!(silent.unwrap_err().0, 429);
    }
}
