//! The connections of a server: so many at once, and room for one more however many of them ask nothing.
//!
//! Whoever reaches a port can open connections and say nothing, or begin a request and never end it. If others had to wait until
//! each of these is given up, a few dozen of them, again and again, would keep out those whom the port is for: a kubelet's probe, an
//! API server. So where all are taken one of those goes that ask nothing now: the one of which nothing was heard for longest. Those
//! that have asked something before are spared as long as half of all never did, and no longer: or else whoever asked a little on
//! most of them would leave the others no time to ask. Who is being answered is left alone.

use std::{
    collections::HashMap,
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{Router, body::HttpBody, response::Response};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::{
    Request,
    body::Incoming,
    service::{Service, service_fn},
};
use hyper_util::service::TowerToHyperService;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, watch},
    task::{Id, JoinError, JoinSet},
    time::{Instant, sleep, sleep_until},
};
use tracing::warn;

/// How long to wait after the operating system refused to accept (as when there are no file descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Those of one server.
pub(crate) struct Connections {
    most: usize,
    tasks: JoinSet<()>,
    stays: HashMap<Id, Stay>,
    /// Told when a connection asks nothing any more.
    quiet: Arc<Notify>,
}

impl Connections {
    /// So many at once.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, tasks: JoinSet::new(), stays: HashMap::new(), quiet: Arc::default() }
    }

    /// The next one that comes, unless all are taken by those that are being answered: then it waits. Cancel safe.
    pub(crate) async fn accept(&mut self, listener: &TcpListener) -> (TcpStream, SocketAddr) {
        loop {
            if self.tasks.len() > self.most {
                self.make_way();
            }
            let room = self.tasks.len() < self.most || (self.tasks.len() == self.most && self.dispensable().is_some());
            tokio::select! {
                Some(ended) = self.tasks.join_next_with_id() => self.forget(&ended),
                () = self.quiet.notified(), if !room => {}
                accepted = listener.accept(), if room => match accepted {
                    Ok(accepted) => return accepted,
                    Err(error) => {
                        warn!(%error, "failed to accept a connection");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }

    /// Serves one that came in a task of its own. If that is one too many, another one goes.
    pub(crate) fn serve<F>(&mut self, connection: impl FnOnce(Stay) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if self.tasks.len() >= self.most {
            self.make_way();
        }
        let stay = Stay::new(self.quiet.clone());
        let task = self.tasks.spawn(connection(stay.clone()));
        self.stays.insert(task.id(), stay);
    }

    /// Returns when all have ended. Cancel safe.
    pub(crate) async fn end(&mut self) {
        while let Some(ended) = self.tasks.join_next_with_id().await {
            self.forget(&ended);
        }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.tasks.len()
    }

    /// Has one go, unless one is on its way out already.
    fn make_way(&self) {
        let going = self.stays.values().any(|stay| stay.0.state.borrow().over);
        if let Some(stay) = self.dispensable().filter(|_| !going) {
            stay.0.state.send_modify(|state| state.over = true);
        }
    }

    fn dispensable(&self) -> Option<&Stay> {
        let quiet = || self.stays.values().filter_map(|stay| Some((stay.quiet()?, stay)));
        let never_asked = quiet().filter(|((asked, _), _)| !asked).count();
        let spared = |asked: bool| asked && 2 * never_asked >= self.most;
        quiet().filter(|((asked, _), _)| !spared(*asked)).min_by_key(|((_, since), _)| *since).map(|(_, stay)| stay)
    }

    fn forget(&mut self, ended: &Result<(Id, ()), JoinError>) {
        let id = match ended {
            Ok((id, ())) => *id,
            Err(error) => error.id(),
        };
        self.stays.remove(&id);
    }
}

/// How long a connection stays: as long as something happens on it, and nobody needs its place. Handlers get it as an extension of
/// the operations server's requests. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Stay(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: watch::Sender<State>,
    quiet: Arc<Notify>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// Requests that came, bodies and all, and have no answer yet.
    answering: usize,
    /// Whether there ever was one.
    asked: bool,
    /// When something happened last.
    since: Instant,
    /// Whether its place is needed.
    over: bool,
}

impl Stay {
    pub(crate) fn new(quiet: Arc<Notify>) -> Self {
        let state = State { answering: 0, asked: false, since: Instant::now(), over: false };
        Self(Arc::new(Shared { state: watch::Sender::new(state), quiet }))
    }

    /// Something happened: whoever answers by pieces says so with each that is taken.
    pub fn renew(&self) {
        self.0.state.send_modify(|state| state.since = Instant::now());
    }

    /// Returns when nothing has happened for so long.
    pub(crate) async fn silent(&self, time: Duration) {
        loop {
            let end = self.0.state.borrow().since + time;
            if end <= Instant::now() {
                return;
            }
            sleep_until(end).await;
        }
    }

    /// Returns when there was a request.
    pub(crate) async fn asked(&self) {
        let _ = self.0.state.subscribe().wait_for(|state| state.asked).await;
    }

    /// Returns when its place is needed.
    pub(crate) async fn over(&self) {
        // An error would mean that the sender is gone, and `self` holds it.
        let _ = self.0.state.subscribe().wait_for(|state| state.over).await;
    }

    /// What answers its requests.
    pub(crate) fn answers(
        &self,
        router: Router,
    ) -> impl Service<Request<Incoming>, Response = Response, Error = Infallible, Future: Send + 'static> + use<> {
        let (router, stay) = (TowerToHyperService::new(router), self.clone());
        service_fn(move |request: Request<Incoming>| {
            let asked = Asked { whole: Arc::default(), stay: stay.clone() };
            let answer = router.call(request.map(|body| Coming::new(body, &asked)));
            async move {
                let _asked = asked;
                answer.await
            }
        })
    }

    /// A request is there.
    fn begin(&self, whole: &AtomicBool) {
        self.0.state.send_modify(|state| {
            if !whole.swap(true, Ordering::Relaxed) {
                state.answering += 1;
                state.asked = true;
                state.since = Instant::now();
            }
        });
    }

    /// It has its answer, or there is none to wait for any more.
    fn end(&self, whole: &AtomicBool) {
        self.0.state.send_modify(|state| {
            if whole.swap(true, Ordering::Relaxed) {
                state.answering -= 1;
                state.since = Instant::now();
            }
        });
        self.0.quiet.notify_one();
    }

    /// If it asks nothing now: whether it ever did, and since when nothing happened.
    fn quiet(&self) -> Option<(bool, Instant)> {
        let State { answering, asked, since, over } = *self.0.state.borrow();
        (answering == 0 && !over).then_some((asked, since))
    }
}

/// One request. It counts from the moment on in which it is there, body and all: one that never ends asks nothing.
struct Asked {
    whole: Arc<AtomicBool>,
    stay: Stay,
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.stay.end(&self.whole);
    }
}

/// Its body.
struct Coming {
    body: Incoming,
    whole: Arc<AtomicBool>,
    stay: Stay,
}

impl Coming {
    fn new(body: Incoming, asked: &Asked) -> Self {
        let coming = Self { body, whole: asked.whole.clone(), stay: asked.stay.clone() };
        if coming.body.is_end_stream() {
            coming.stay.begin(&coming.whole);
        }
        coming
    }
}

impl HttpBody for Coming {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if matches!(frame, Poll::Ready(None)) || self.body.is_end_stream() {
            self.stay.begin(&self.whole);
        }
        frame
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, timeout};

    use super::*;

    /// A server's connections, a second between each and the next.
    struct Scene {
        all: Connections,
        stays: Vec<Stay>,
        asked: Vec<AtomicBool>,
    }

    impl Scene {
        async fn of(most: usize, count: usize) -> Self {
            let mut scene = Self { all: Connections::new(most), stays: Vec::new(), asked: Vec::new() };
            for _ in 0..count {
                scene.come().await;
            }
            scene
        }

        async fn come(&mut self) {
            advance(Duration::from_secs(1)).await;
            let stays = &mut self.stays;
            self.all.serve(|stay| {
                stays.push(stay.clone());
                async move { stay.over().await }
            });
            self.asked.push(AtomicBool::default());
        }

        fn begin(&mut self, one: usize) {
            self.asked[one] = AtomicBool::default();
            self.stays[one].begin(&self.asked[one]);
        }

        async fn end(&self, one: usize) {
            advance(Duration::from_secs(1)).await;
            self.stays[one].end(&self.asked[one]);
        }

        /// Which one goes if one has to.
        fn next(&self) -> Option<usize> {
            let next = self.all.dispensable()?;
            self.stays.iter().position(|stay| Arc::ptr_eq(&stay.0, &next.0))
        }

        fn gone(&self) -> Vec<usize> {
            (0..self.stays.len()).filter(|one| self.stays[*one].0.state.borrow().over).collect()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_silent_for_longest_goes_and_who_is_answered_stays() {
        let mut scene = Scene::of(4, 4).await;
        assert_eq!(scene.next(), Some(0), "the oldest");
        (0..4).for_each(|one| scene.begin(one));
        assert_eq!(scene.next(), None, "all are answered");
        for one in [2, 0, 3, 1] {
            scene.end(one).await;
            assert_eq!(scene.next(), Some(2));
        }
        scene.stays[2].renew();
        assert_eq!(scene.next(), Some(0), "something was taken");
        scene.come().await;
        assert_eq!(scene.gone(), [0]);
        scene.all.make_way();
        assert_eq!(scene.gone(), [0], "one is on its way out");
        timeout(Duration::from_secs(1), scene.all.tasks.join_next()).await.expect("it is told");
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_asked_is_spared_while_half_never_did_and_leaves_the_others_the_time_to_ask() {
        let mut scene = Scene::of(4, 4).await;
        for one in [0, 1] {
            scene.begin(one);
            scene.end(one).await;
        }
        assert_eq!(scene.next(), Some(2), "half never did");
        scene.begin(2);
        scene.end(2).await;
        assert_eq!(scene.next(), Some(3), "it was silent for longest");
        scene.stays[3].renew();
        assert_eq!(scene.next(), Some(0), "most have asked");
    }

    #[tokio::test(start_paused = true)]
    async fn one_too_many_goes_once_it_asks_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let mut scene = Scene::of(2, 2).await;
        (0..2).for_each(|one| scene.begin(one));
        scene.come().await;
        scene.begin(2);
        timeout(Duration::from_secs(1), scene.all.accept(&listener)).await.expect_err("nobody comes");
        assert_eq!(scene.gone(), [0; 0], "all are answered");
        scene.end(1).await;
        timeout(Duration::from_secs(1), scene.all.accept(&listener)).await.expect_err("nobody comes");
        assert_eq!((scene.gone(), scene.all.count()), (vec![1], 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_given_up_counts_neither_before_it_is_there_nor_after() {
        let stay = Stay::new(Arc::default());
        let late = AtomicBool::default();
        stay.end(&late);
        stay.begin(&late);
        assert!(stay.quiet().is_some_and(|(asked, _)| !asked));
    }
}
