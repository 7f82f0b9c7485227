//! The reconciler's page on a real API server: the contents of its stream, the users that may read
//! it, and its behaviour in a real browser.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::{
    api::core::v1::{ConfigMap, Pod, Secret},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, PostParams},
};
use mimeo_tests::{
    Browser, ControlPlane, NAMESPACE, Pair, Replica, create_namespace, create_secret, eventually,
    follower::{FAILED, Follower, SYNCED},
    install_crd,
    scenario::{SOON, Setting, any, apply, delete, kubectl, of, rule, wait_gone},
    traffic::pod,
};
use serde_json::{Value, json};

use crate::stages::{self, LOAD, PLAIN};

const ADMISSION: &str = "admissionregistration.k8s.io/v1";

/// Starts Mimeo with the page, and without the programs that the page does not need.
async fn setting() -> Result<Setting> {
    let pair = Pair::builder().reconciler_args(["--ui"]);
    Setting::start(ControlPlane::builder().controller_manager(false), pair).await
}

fn reconciler(pair: &Pair) -> Result<&Replica> {
    pair.reconciler.as_ref().context("there is no reconciler")
}

/// Waits until a rule has this state in a namespace.
fn wait_place(
    follower: &mut Follower,
    rule: &str,
    namespace: &str,
    state: u64,
    reason: Option<&str>,
) -> Result<()> {
    let is = |told: &Follower| {
        told.place(rule, namespace)
            .is_some_and(|place| place.state == state && place.reason.as_deref() == reason)
    };
    follower.until(
        SOON,
        &format!("{rule} in {namespace}: {state} {reason:?}"),
        is,
    )
}

#[tokio::test]
async fn the_stream_tells_how_copies_stand_and_what_changes() -> Result<()> {
    let setting = setting().await?;
    let scene = setting.scene("page").await?;
    let page = reconciler(&setting.pair)?;
    let names = scene.namespaces(3).await?;
    create_secret(&scene.client, &names[2], "registry", &[("token", "theirs")]).await?;
    scene.secret("registry", &[("token", "hunter2")]).await?;
    let mut follower = page.follow()?;
    scene
        .rule()
        .secret(&scene.home, "registry")
        .create(&scene.client)
        .await?;

    for name in &names[..2] {
        wait_place(&mut follower, &scene.tag, name, SYNCED, None)?;
        ensure!(
            follower
                .place(&scene.tag, name)
                .is_some_and(|place| place.since > 0),
            "it was written some time"
        );
    }
    wait_place(
        &mut follower,
        &scene.tag,
        &names[2],
        FAILED,
        Some("Conflict"),
    )?;
    ensure!(
        follower.place(&scene.tag, &scene.home).is_none(),
        "the rule has nothing there"
    );
    let counted = |told: &Follower| {
        told.rule(&scene.tag)
            .is_some_and(|rule| rule["status"]["copies"]["failed"] == 1)
    };
    follower.until(SOON, "the rule's status", counted)?;
    let rule = follower.rule(&scene.tag).cloned().unwrap_or_default();
    let status = &rule["status"];
    ensure!(
        status["failures"][0]["namespace"] == names[2].as_str(),
        "{rule:#}"
    );
    ensure!(
        status["copies"] == json!({"desired": 3, "synced": 2, "failed": 1}),
        "{rule:#}"
    );

    let query = format!(
        "/ui/copies?rule=ClusterReplication/{}&namespace={}",
        scene.tag, names[2]
    );
    let copies = page.ask("GET", &query, None, "")?;
    ensure!(
        copies.contains("an object that Mimeo didn't write has the copy's name"),
        "{copies}"
    );
    ensure!(
        page.ask("GET", "/ui/copies?rule=Pod/x&namespace=y", None, "")?
            .starts_with("HTTP/1.1 400")
    );

    // The object in the way is deleted, and the failure disappears.
    delete(&of::<Secret>(&scene.client, &names[2]), "registry").await?;
    wait_place(&mut follower, &scene.tag, &names[2], SYNCED, None)?;
    scene
        .rule()
        .secret(&scene.home, "registry")
        .delete(&scene.client)
        .await?;
    follower.until(SOON, "the end of the rule", |told| {
        told.rule(&scene.tag).is_none()
    })?;
    let told = follower.text + &copies;
    for secret in ["hunter2", "theirs", "checksum"] {
        ensure!(!told.contains(secret), "{secret} is told: {told}");
    }
    Ok(())
}

#[tokio::test]
async fn without_the_flag_there_is_no_page() -> Result<()> {
    let pair = &PLAIN.get().await?.pair;
    for path in ["/ui/", "/ui/page.js", "/ui/stream", "/ui/copies"] {
        ensure!(
            reconciler(pair)?
                .ask("GET", path, None, "")?
                .starts_with("HTTP/1.1 404"),
            "{path}"
        );
    }
    Ok(())
}

/// Starts a page that asks for tokens. Returns a token of a permitted user and one of another user.
async fn with_tokens() -> Result<(Setting, [String; 2])> {
    let control_plane = ControlPlane::builder().start().await?;
    let kubectl = |command: &str| kubectl(&control_plane, command.split(' '));
    let account = format!("--serviceaccount={NAMESPACE}:mimeo-reconciler");
    kubectl(&format!(
        "create clusterrolebinding mimeo-tokens --clusterrole=system:auth-delegator {account}"
    ))?;
    kubectl(
        "create clusterrole mimeo-page --verb=get --non-resource-url=/ui/stream \
         --non-resource-url=/ui/copies",
    )?;
    let token = |name: &str| {
        kubectl(&format!("create serviceaccount {name} -n default"))?;
        anyhow::Ok(
            kubectl(&format!("create token {name} -n default"))?
                .trim()
                .to_owned(),
        )
    };
    let tokens = [token("viewer")?, token("stranger")?];
    kubectl(
        "create clusterrolebinding mimeo-page --clusterrole=mimeo-page \
         --serviceaccount=default:viewer",
    )?;
    let pair = Pair::builder()
        .shipped_rights()
        .reconciler_args(["--ui", "--ops-auth", "token"]);
    let pair = pair.start(&control_plane).await?;
    Ok((
        Setting {
            pair,
            control_plane,
        },
        tokens,
    ))
}

/// Waits until the page accepts a token for the data.
async fn lets_in(page: &Replica, token: &str) -> Result<()> {
    eventually(SOON, "the viewer's data", || async {
        let answer = page.ask(
            "GET",
            "/ui/copies?rule=ClusterReplication/x&namespace=y",
            Some(token),
            "",
        )?;
        if answer.starts_with("HTTP/1.1 200") {
            Ok(Some(()))
        } else {
            bail!("{answer}")
        }
    })
    .await
}

#[tokio::test]
async fn its_data_is_for_those_whom_rbac_lets() -> Result<()> {
    let (setting, [viewer, stranger]) = with_tokens().await?;
    let page = reconciler(&setting.pair)?;
    let code = |path: &str, token: Option<&str>| {
        let answer = page.ask("GET", path, token, "")?;
        ensure!(
            answer.contains("content-security-policy: default-src 'none'"),
            "{answer}"
        );
        anyhow::Ok(answer.split(' ').nth(1).unwrap_or_default().to_owned())
    };
    for path in [
        "/ui/",
        "/ui/page.js",
        "/ui/held.js",
        "/ui/elements.js",
        "/ui/style.css",
    ] {
        ensure!(code(path, None)? == "200", "{path} holds nothing");
    }
    let copies = "/ui/copies?rule=ClusterReplication/x&namespace=y";
    lets_in(page, &viewer).await?;
    for path in [copies, "/ui/stream"] {
        for (token, refusal) in [(None, "401"), (Some(&*stranger), "403")] {
            // The answer is 503 if the API server does not review the token in time.
            let code = eventually(SOON, format!("a review for {path}"), || async {
                let code = code(path, token)?;
                ensure!(!code.starts_with('5'), "{code}");
                Ok(Some(code))
            })
            .await?;
            ensure!(code == refusal, "{path}: {code}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_standby_names_the_leader_until_it_leads() -> Result<()> {
    let mut setting = setting().await?;
    let client = setting.control_plane.client().await?;
    create_namespace(&client, "home", &[]).await?;
    create_namespace(&client, "team", &[]).await?;
    create_secret(&client, "home", "registry", &[]).await?;
    rule("registry")
        .secret("home", "registry")
        .target(json!({"namespaces": ["team"]}))
        .create(&client)
        .await?;
    setting.wait_synced(&client, "registry").await?;
    let mut first = setting
        .pair
        .reconciler
        .take()
        .context("there is no reconciler")?;
    setting.pair.start_reconciler().await?;
    let second = reconciler(&setting.pair)?;
    let mut follower = second.follow()?;
    let leader = first.name.clone();
    follower.until(SOON, "the leader's name", |told| {
        told.replica["leader"] == leader.as_str()
    })?;
    ensure!(follower.replica["leads"] == false && follower.replica["name"] == second.name.as_str());
    ensure!(
        follower.rule("registry").is_none(),
        "a standby shows no states"
    );
    let refused = second.ask(
        "GET",
        "/ui/copies?rule=ClusterReplication/registry&namespace=team",
        None,
        "",
    )?;
    ensure!(refused.starts_with("HTTP/1.1 503"), "{refused}");

    first.program.stop(SOON).await?;
    follower.until(SOON, "leadership", |told| told.replica["leads"] == true)?;
    wait_place(&mut follower, "registry", "team", SYNCED, None)
}

/// The pods whose label a Service selects.
async fn labelled(pods: &Api<Pod>) -> Result<Vec<String>> {
    let labelled = ListParams::default().labels("mimeo.dev/leader=true");
    let found = pods.list_metadata(&labelled).await?.items.into_iter();
    Ok(found.filter_map(|pod| pod.metadata.name).collect())
}

#[tokio::test]
async fn the_leaders_label_moves_to_the_next_leader() -> Result<()> {
    let pair = Pair::builder().reconciler_args(["--leader-label"]);
    let control_plane = ControlPlane::builder().controller_manager(false);
    let mut setting = Setting::start(control_plane, pair).await?;
    let pods: Api<Pod> = Api::namespaced(setting.control_plane.client().await?, NAMESPACE);
    let create = async |name: &str| {
        let created = pods.create(&PostParams::default(), &pod(name)).await;
        created.context("failed to create a pod")
    };
    let selected = async |name: &str| {
        eventually(SOON, format!("the label of {name}"), || async {
            let found = labelled(&pods).await?;
            ensure!(found == [name], "{found:?}");
            Ok(Some(()))
        })
        .await
    };
    let mut first = setting
        .pair
        .reconciler
        .take()
        .context("there is no reconciler")?;
    create(&first.name).await?;
    selected(&first.name).await?;

    setting.pair.start_reconciler().await?;
    let second = reconciler(&setting.pair)?;
    create(&second.name).await?;
    selected(&first.name).await?;
    // It leaves its label, as one that is killed does.
    first.program.stop(SOON).await?;
    selected(&second.name).await
}

#[tokio::test]
async fn only_so_many_look_on_at_once_and_who_takes_nothing_is_cut_off() -> Result<()> {
    let control_plane = ControlPlane::builder()
        .controller_manager(false)
        .start()
        .await?;
    let pair = Pair::builder()
        .webhooks(0)
        .reconciler_args(["--ui"])
        .start(&control_plane)
        .await?;
    let page = reconciler(&pair)?;
    let mut followers = (0..16).map(|_| page.follow()).collect::<Result<Vec<_>>>()?;
    let refused = page.ask("GET", "/ui/stream", None, "")?;
    ensure!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    ensure!(
        page.ask("GET", "/readyz", None, "")?
            .starts_with("HTTP/1.1 200"),
        "probes have room"
    );
    // A client that reads its stream keeps it for as long as it likes. The time limit of other
    // answers does not apply.
    let beats = |told: &Follower| told.text.matches(":\n").count() >= 3;
    followers[0].until(SOON, "three signs of life", beats)?;
    drop(followers);
    eventually(SOON, "room for one more", || async {
        page.follow().map(Some)
    })
    .await?;
    Ok(())
}

/// Writes an admission policy against `ConfigMaps` in a namespace. Its message is an attack on
/// every page that shows it.
async fn deny_with(client: &Client, namespace: &str, message: &str) -> Result<()> {
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}]);
    let validations = json!([{"expression": "false", "message": message}]);
    let spec = json!({"failurePolicy": "Fail", "matchConstraints": {"resourceRules": rules}, "validations": validations});
    let name = "closed.example.com";
    let policy = json!({"apiVersion": ADMISSION, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec});
    apply(client, &policy).await?;
    let only =
        json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}});
    let spec = json!({"policyName": name, "validationActions": ["Deny"], "matchResources": only});
    let kind = "ValidatingAdmissionPolicyBinding";
    apply(
        client,
        &json!({"apiVersion": ADMISSION, "kind": kind, "metadata": {"name": name}, "spec": spec}),
    )
    .await?;
    let probe = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "probe"}});
    let probe = serde_json::from_value(probe)?;
    let maps = any(client, "v1", "ConfigMap", Some(namespace))?;
    eventually(SOON, "the refusal", || async {
        match maps
            .create(
                &PostParams {
                    dry_run: true,
                    ..PostParams::default()
                },
                &probe,
            )
            .await
        {
            Ok(_) => bail!("not refused yet"),
            Err(_) => Ok(Some(())),
        }
    })
    .await
}

async fn source(client: &Client, name: &str) -> Result<()> {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "platform"}, "data": {"a": "b"}});
    apply(client, &map).await?;
    Ok(())
}

/// Creates this many namespaces, several at a time.
async fn namespaces(client: &Client, count: usize) -> Result<()> {
    use futures::{StreamExt, TryStreamExt};
    let create = |number: usize| async move {
        let name = format!("team-{number:05}");
        create_namespace(client, &name, &[]).await.map(drop)
    };
    futures::stream::iter((0..count).map(create))
        .buffer_unordered(64)
        .try_collect::<()>()
        .await?;
    Ok(())
}

const LABEL: &str = "document.activeElement.getAttribute('aria-label')";
const SYNCED_ONES: &str = "[...document.querySelectorAll('#states button')].at(-1).textContent";
const DOWN: &str = "\u{e015}";
const RIGHT: &str = "\u{e014}";
const ENTER: &str = "\u{e007}";
const ESCAPE: &str = "\u{e00c}";
const TAB: &str = "\u{e004}";
const TAB_KEY: char = '\u{e004}';
const SHIFT: char = '\u{e008}';
const CONTROL: char = '\u{e009}';
const HOME: char = '\u{e011}';
const END: char = '\u{e010}';

fn type_into(browser: &Browser, field: &str, text: &str) -> Result<()> {
    let script = "const field = document.getElementById(arguments[0][0]); field.value = \
        arguments[0][1]; field.dispatchEvent(new Event('input', {bubbles: true}))";
    browser.run(script, &json!([field, text]))?;
    Ok(())
}

fn value(browser: &Browser, expression: &str) -> Result<Value> {
    browser.run(&format!("return {expression}"), &Value::Null)
}

#[tokio::test]
async fn a_browser_shows_it_live_and_by_keyboard_and_takes_no_text_for_anything_else() -> Result<()>
{
    let browser = Browser::start().await?;
    let setting = setting().await?;
    let client = setting.control_plane.client().await?;
    create_namespace(&client, "platform", &[]).await?;
    namespaces(&client, 40).await?;
    let attack =
        "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>";
    deny_with(&client, "team-00001", attack).await?;
    for name in ["defaults", "trust-bundle"] {
        source(&client, name).await?;
        let rule = rule(name).source("v1", "ConfigMap", "platform", name);
        rule.target(json!({"namespaces": ["team-*"]}))
            .create(&client)
            .await?;
    }
    browser.open(&reconciler(&setting.pair)?.url("/ui/"))?;
    browser
        .wait("document.getElementById('live').textContent === 'Live'")
        .await?;
    browser
        .wait(&format!("{SYNCED_ONES} === 'Synced78'"))
        .await?;

    it_filters_by_rule_reason_and_state(&browser).await?;
    type_into(&browser, "by-namespace", "team-")?;
    // By keyboard alone: to the grid, to the failure, to its details, and back.
    value(
        &browser,
        "document.querySelector('#grid [tabindex=\"0\"]').focus()",
    )?;
    browser.press(&format!("{DOWN}{DOWN}{RIGHT}"))?;
    browser
        .wait(&format!(
            "{LABEL} === 'defaults in team-00001: Failed AdmissionDenied'"
        ))
        .await?;
    browser.press(ENTER)?;
    let shown = "document.getElementById('details').textContent";
    browser
        .wait(&format!("{shown}.includes(\"<img src=x onerror=\")"))
        .await?;
    let made = value(
        &browser,
        "document.querySelectorAll('img, #details script').length",
    )?;
    ensure!(
        made == 0 && value(&browser, "document.title")? == "Mimeo",
        "text became a document"
    );
    browser.press(ESCAPE)?;
    browser
        .wait(&format!(
            "{LABEL} === 'defaults in team-00001: Failed AdmissionDenied'"
        ))
        .await?;

    // The page is live: the obstacle is removed, and the cell under the keyboard focus changes by
    // itself.
    for kind in [
        "ValidatingAdmissionPolicyBinding",
        "ValidatingAdmissionPolicy",
    ] {
        delete(&any(&client, ADMISSION, kind, None)?, "closed.example.com").await?;
    }
    browser
        .wait(&format!("{LABEL} === 'defaults in team-00001: Synced'"))
        .await?;

    let dark = "getComputedStyle(document.body).backgroundColor";
    switch(&browser, "light")?;
    let light = value(&browser, dark)?;
    switch(&browser, "dark")?;
    ensure!(value(&browser, dark)? != light, "dark is not light");
    let complaints = browser.complaints()?;
    ensure!(complaints.is_empty(), "{complaints:#?}");
    Ok(())
}

/// For a user without a pointer, the page asks for a token and says why it refuses one. It always
/// shows the focus.
#[tokio::test]
async fn a_browser_is_asked_for_a_token_and_led_through_the_page_by_keyboard_alone() -> Result<()> {
    let browser = Browser::start().await?;
    let (setting, [viewer, stranger]) = with_tokens().await?;
    let (client, page) = (
        setting.control_plane.client().await?,
        reconciler(&setting.pair)?,
    );
    create_namespace(&client, "platform", &[]).await?;
    namespaces(&client, 2).await?;
    source(&client, "defaults").await?;
    let rule = rule("defaults").source("v1", "ConfigMap", "platform", "defaults");
    rule.target(json!({"namespaces": ["team-*"]}))
        .create(&client)
        .await?;
    lets_in(page, &viewer).await?;

    browser.open(&page.url("/ui/"))?;
    let at = async |id: &str| {
        let found = browser
            .wait(&format!("document.activeElement.id === '{id}'"))
            .await;
        found.with_context(|| {
            format!(
                "{:?}",
                value(&browser, "document.activeElement.outerHTML.slice(0, 200)")
            )
        })
    };
    let asked = async |why: &str| {
        let told = format!("document.getElementById('ask-why').textContent.includes('{why}')");
        browser
            .wait(&format!("document.getElementById('ask').open && {told}"))
            .await?;
        at("token").await
    };
    asked("to permitted users").await.context("at first")?;
    browser.press(TAB)?;
    browser
        .wait("document.activeElement.matches('#ask button:focus-visible')")
        .await?;
    browser.press_with(SHIFT, TAB_KEY)?;
    at("token").await.context("back from the button")?;
    browser.press(&format!("none{ENTER}"))?;
    asked("not accepted").await?;
    browser.press(&format!("{stranger}{ENTER}"))?;
    asked("may not see it").await?;
    browser.press(&format!("{viewer}{ENTER}"))?;
    browser
        .wait("document.getElementById('live').textContent === 'Live'")
        .await?;
    browser
        .wait(&format!("{SYNCED_ONES} === 'Synced2'"))
        .await?;
    // A token could stay in the field, in storage that outlives the tab, or in a cookie.
    let kept = "JSON.stringify([document.getElementById('token').value, localStorage, \
        sessionStorage, document.cookie])";
    let kept = value(&browser, kept)?;
    ensure!(
        kept.as_str()
            .is_some_and(|kept| !kept.contains(&viewer[..20])),
        "the token is kept"
    );
    ensure!(
        value(&browser, "document.getElementById('ask').open")? == false,
        "it is asked for again"
    );

    // The focus stops once at each control, in the order on the screen. The grid is one stop.
    value(&browser, "document.getElementById('theme').focus()")?;
    let states = value(
        &browser,
        "document.querySelectorAll('#states button').length",
    )?
    .as_u64()
    .context("no states")?;
    let states = (0..states).map(|_| "states");
    let place = "document.activeElement.id || document.activeElement.closest('#states, #grid')?.id";
    let shown = "document.activeElement.matches(':focus-visible') && \
        getComputedStyle(document.activeElement).outlineStyle === 'solid'";
    let stops: Vec<&str> = [
        "by-namespace",
        "by-rule",
        "by-object",
        "by-source",
        "by-reason",
    ]
    .into_iter()
    .chain(states)
    .chain(["grid"])
    .collect();
    for stop in &stops {
        browser.press(TAB)?;
        let found = value(&browser, &format!("[{place}, {shown}]"))?;
        ensure!(found == json!([stop, true]), "{found} instead of {stop}");
    }
    for stop in stops.iter().rev().skip(1) {
        browser.press_with(SHIFT, TAB_KEY)?;
        let found = value(&browser, &format!("[{place}, {shown}]"))?;
        ensure!(
            found == json!([stop, true]),
            "{found} instead of {stop}, on the way back"
        );
    }
    value(
        &browser,
        "document.querySelector('#grid [tabindex=\"0\"]').focus()",
    )?;
    browser.press("/")?;
    at("by-namespace").await?;
    // The browser's console also reports the requests that were refused without a token.
    let complaints = browser.complaints()?;
    ensure!(
        complaints
            .iter()
            .all(|line| line.contains("401") || line.contains("403")),
        "{complaints:#?}"
    );
    Ok(())
}

/// Two rules select 40 teams. Neither rule can write into team-00001.
async fn it_filters_by_rule_reason_and_state(browser: &Browser) -> Result<()> {
    let matches = async |text: &str| {
        browser
            .wait(&format!(
                "document.getElementById('found').textContent === '{text}'"
            ))
            .await
    };
    let names = async |names: &str| {
        let shown =
            "[...document.querySelectorAll('#rows .name')].map((name) => name.textContent).join()";
        browser.wait(&format!("{shown} === '{names}'")).await
    };
    let press = |state: &str| {
        let buttons = "[...document.querySelectorAll('#states button')]";
        browser.run(
            &format!("{buttons}.find((one) => one.textContent.startsWith('{state}')).click()"),
            &Value::Null,
        )
    };

    type_into(browser, "by-reason", "admissionD")?;
    matches("1 namespace, 2 rules").await?;
    names("team-00001").await?;
    type_into(browser, "by-rule", "TRUST")?;
    matches("1 namespace, 1 rule").await?;
    let heads = "[...document.querySelectorAll('#head .cell')].map((head) => head.getAttribute('aria-label').split(':')[0]).join()";
    browser
        .wait(&format!(
            "{heads} === 'Namespace,ClusterReplication trust-bundle'"
        ))
        .await?;
    type_into(browser, "by-rule", "no such rule")?;
    matches("0 namespaces, 0 rules").await?;
    for field in ["by-rule", "by-reason"] {
        type_into(browser, field, "")?;
    }
    matches("").await?;

    press("Failed")?;
    matches("1 namespace, 2 rules").await?;
    names("team-00001").await?;
    // Two pressed states select the cells in either state.
    press("Synced")?;
    matches("40 namespaces, 2 rules").await?;
    press("Failed")?;
    matches("39 namespaces, 2 rules").await?;
    press("Synced")?;
    matches("").await
}

/// The number of teams on the page of [`crowded`].
const TEAMS: usize = 210;

/// Each team has the rule that is for all, and a rule of its own. The last team's own copy fails:
/// an object of the team has its name.
async fn crowded() -> Result<(Setting, Browser)> {
    let setting = setting().await?;
    let client = setting.control_plane.client().await?;
    create_namespace(&client, "platform", &[]).await?;
    namespaces(&client, TEAMS).await?;
    for name in ["defaults", "own"] {
        source(&client, name).await?;
    }
    let own = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "own", "namespace": "team-00209"}});
    apply(&client, &own).await?;
    for number in 0..TEAMS {
        let rule = rule(&format!("own-{number:05}")).source("v1", "ConfigMap", "platform", "own");
        rule.target(json!({"namespaces": [format!("team-{number:05}")]}))
            .create(&client)
            .await?;
    }
    let rule = rule("defaults").source("v1", "ConfigMap", "platform", "defaults");
    rule.target(json!({"namespaces": ["team-*"]}))
        .create(&client)
        .await?;
    let browser = Browser::start().await?;
    browser.open(&reconciler(&setting.pair)?.url("/ui/"))?;
    browser
        .wait(&format!("{SYNCED_ONES} === 'Synced419'"))
        .await?;
    Ok((setting, browser))
}

/// The names of the columns that are in the document.
const HEADS: &str = "[...document.querySelectorAll('#head .cell')].map((head) => head.getAttribute('aria-label').split(':')[0]).join()";

#[tokio::test]
async fn a_browser_leads_through_more_rules_than_fit() -> Result<()> {
    let (_setting, browser) = crowded().await?;
    columns_follow_the_filters(&browser).await?;
    heads_count_the_cells_below(&browser).await?;
    the_address_keeps_the_filters_and_the_cell(&browser).await?;
    objects_and_sources_are_found(&browser).await?;
    commands_are_copied(&browser).await?;
    everything_contrasts(&browser).await?;
    let complaints = browser.complaints()?;
    ensure!(complaints.is_empty(), "{complaints:#?}");
    Ok(())
}

async fn heads_count_the_cells_below(browser: &Browser) -> Result<()> {
    let counts = async |rule: &str, counts: &str| {
        let head = format!("ClusterReplication {rule}: ");
        let ends = format!("one.getAttribute('aria-label').endsWith(', {counts} synced')");
        let heads = format!("[...document.querySelectorAll('#head [aria-label^=\"{head}\"]')]");
        browser
            .wait(&format!("{heads}.some((one) => {ends})"))
            .await
    };
    value(browser, "document.getElementById('grid').scrollLeft = 0")?;
    counts("defaults", "210 of 210").await?;
    type_into(browser, "by-namespace", "team-0020")?;
    counts("defaults", "10 of 10").await?;
    counts("own-00208", "1 of 1").await?;
    type_into(browser, "by-rule", "own-00209")?;
    counts("own-00209", "0 of 1").await?;
    for field in ["by-namespace", "by-rule"] {
        type_into(browser, field, "")?;
    }
    Ok(())
}

async fn the_address_keeps_the_filters_and_the_cell(browser: &Browser) -> Result<()> {
    let shows = async |address: &str, matches: &str, title: &str| {
        let title =
            format!("(document.querySelector('#details h2')?.textContent ?? '') === '{title}'");
        let told = format!("document.getElementById('found').textContent === '{matches}'");
        let address = format!("location.hash === '{address}'");
        browser
            .wait(&format!("{address} && {told} && {title}"))
            .await
            .with_context(|| format!("{:?}", value(browser, "location.hash")))
    };
    let all = value(browser, "document.getElementById('found').textContent")?;
    let all = all.as_str().context("no text")?;
    value(browser, "history.replaceState(null, '', location.pathname)")?;
    value(
        browser,
        "[...document.querySelectorAll('#states button')][0].click()",
    )?;
    let none = "Attention";
    let failed = ("#state=Failed", "1 namespace, 2 rules");
    shows(failed.0, failed.1, none).await?;
    // A letter more of the same text is no step of its own.
    for text in ["O", "Own"] {
        type_into(browser, "by-rule", text)?;
    }
    let own = ("#rule=Own&state=Failed", "1 namespace, 1 rule");
    shows(own.0, own.1, none).await?;
    value(browser, "document.querySelector('.cell.failed').click()")?;
    let place = "&in=team-00209&of=ClusterReplication%2Fown-00209";
    let (chosen, title) = (format!("{}{place}", own.0), "own-00209 in team-00209");
    shows(&chosen, own.1, title).await?;

    value(browser, "history.back()")?;
    shows(own.0, own.1, none).await?;
    value(browser, "history.back()")?;
    shows(failed.0, failed.1, none).await?;
    value(browser, "history.back()")?;
    shows("", all, none).await?;
    value(browser, "history.go(3)")?;
    shows(&chosen, own.1, title).await?;

    value(browser, "location.reload()")?;
    shows(&chosen, own.1, title).await?;
    let fields = "[document.getElementById('by-rule').value, document.querySelectorAll('#states [aria-pressed=true]').length]";
    ensure!(
        value(browser, fields)? == json!(["Own", 1]),
        "other filters"
    );
    // A cell that is far away is in sight.
    let far = place.trim_start_matches('&');
    value(browser, &format!("location.hash = '{far}'"))?;
    shows(&format!("#{far}"), all, title).await?;
    browser
        .wait("document.querySelector('.cell.chosen')")
        .await?;
    value(browser, "location.hash = ''")?;
    shows("", all, none).await
}

async fn objects_and_sources_are_found(browser: &Browser) -> Result<()> {
    let finds = async |field: &str, text: &str, found: &str| {
        type_into(browser, field, text)?;
        let told = "document.getElementById('found').textContent";
        browser.wait(&format!("{told} === '{found}'")).await?;
        type_into(browser, field, "")
    };
    finds(
        "by-object",
        "team-00007/configmap/own",
        "1 namespace, 1 rule",
    )
    .await?;
    finds("by-object", "configmap/defaults", "210 namespaces, 1 rule").await?;
    finds(
        "by-object",
        "platform/ConfigMap/own",
        "210 namespaces, the 200 most urgent of 210 rules",
    )
    .await?;
    finds("by-object", "secret/own", "0 namespaces, 0 rules").await?;
    finds(
        "by-source",
        "ConfigMap platform/DEF",
        "210 namespaces, 1 rule",
    )
    .await?;
    finds("by-source", "team-", "0 namespaces, 0 rules").await
}

async fn commands_are_copied(browser: &Browser) -> Result<()> {
    let command = "kubectl mimeo why team-00209/ConfigMap/own";
    value(
        browser,
        "location.hash = 'in=team-00209&of=ClusterReplication/own-00209'",
    )?;
    let button = format!("document.querySelector('#details [data-copy=\"{command}\"]')");
    browser.wait(&button).await?;
    value(browser, &format!("{button}.focus()"))?;
    browser.press(ENTER)?;
    let told = "document.getElementById('copied').textContent";
    browser
        .wait(&format!("{told} === 'Copied: {command}'"))
        .await?;
    // The rule's details have it too, at the failure.
    value(browser, "location.hash = 'of=ClusterReplication/own-00209'")?;
    browser
        .wait("document.querySelector('#details dl')")
        .await?;
    browser.wait(&button).await?;
    // What was copied can be pasted.
    value(browser, "document.getElementById('by-object').focus()")?;
    browser.press_with(CONTROL, 'v')?;
    browser
        .wait(&format!(
            "document.getElementById('by-object').value === '{command}'"
        ))
        .await?;
    // Without a clipboard, the command is selected.
    type_into(browser, "by-object", "")?;
    value(
        browser,
        "navigator.clipboard.writeText = () => Promise.reject()",
    )?;
    value(browser, &format!("{button}.click()"))?;
    browser
        .wait(&format!("getSelection().toString() === '{command}'"))
        .await?;
    value(browser, "location.hash = ''").map(drop)
}

/// Returns what contrasts less with its background than 3:1: borders, signs, and the text of cells.
/// Colours that are partly transparent are blended.
const FAINT: &str = r"
    const context = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
    const paint = (colours) => {
        context.clearRect(0, 0, 1, 1);
        for (const [colour, opacity] of colours) {
            context.globalAlpha = opacity;
            context.fillStyle = colour;
            context.fillRect(0, 0, 1, 1);
        }
        return [...context.getImageData(0, 0, 1, 1).data.slice(0, 3)];
    };
    const luminance = (colour) => colour
        .map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4))
        .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
    const ratio = (one, other) => {
        const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    };
    const grounds = (element) => {
        const found = [];
        for (let one = element; one; one = one.parentElement) found.unshift([getComputedStyle(one).backgroundColor, 1]);
        return found;
    };
    const opacity = (element) => {
        let all = 1;
        for (let one = element; one; one = one.parentElement) all *= Number(getComputedStyle(one).opacity);
        return all;
    };
    const faint = [];
    let measured = 0;
    const check = (element, what, colour, ground) => {
        measured += 1;
        const is = ratio(paint([...ground, [colour, opacity(element)]]), paint(ground));
        if (is < 3) faint.push(`${what} of ${element.tagName} ${element.id} ${element.className}: ${is.toFixed(2)}`);
    };
    for (const element of document.querySelectorAll('body *')) {
        if (!element.checkVisibility() || !element.parentElement) continue;
        const style = getComputedStyle(element);
        const around = grounds(element.parentElement);
        for (const side of ['Top', 'Right', 'Bottom', 'Left']) {
            if (style[`border${side}Style`] !== 'none' && parseFloat(style[`border${side}Width`]) > 0) {
                check(element, `border ${side}`, style[`border${side}Color`], around);
            }
        }
        if (element.matches('.sign') && style.borderTopStyle === 'none' && style.borderLeftStyle === 'none') {
            check(element, 'sign', style.backgroundColor, around);
        }
        if (element.matches('.cell, .cell .text, .cell .age')) check(element, 'text', style.color, grounds(element));
    }
    return [measured, [...new Set(faint)]];
";

async fn everything_contrasts(browser: &Browser) -> Result<()> {
    for theme in ["light", "dark"] {
        switch(browser, theme)?;
        // A state that few cells have dims the others.
        value(
            browser,
            "[...document.querySelectorAll('#states button')][0].click()",
        )?;
        browser
            .wait(
                "document.querySelector('.cell.dim .sign') && \
                document.querySelector('.cell.failed')",
            )
            .await?;
        let found = browser.run(FAINT, &Value::Null)?;
        ensure!(found[1] == json!([]), "{theme}: {found:#}");
        ensure!(found[0].as_u64() > Some(30), "{theme}: {found}");
        value(browser, "location.hash = ''")?;
    }
    Ok(())
}

/// Shows the page in this theme.
fn switch(browser: &Browser, theme: &str) -> Result<Value> {
    browser.run(
        "for (let n = 0; n < 3 && document.documentElement.dataset.theme !== arguments[0]; n++) \
         document.getElementById('theme').click()",
        &json!(theme),
    )
}

/// axe-core checks names, roles, the keyboard's ways, and the contrast of text. CI leaves the test
/// out if npm cannot fetch it.
#[tokio::test]
async fn axe_finds_no_fault_in_what_a_browser_shows() -> Result<()> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("browser.sh");
    let found = std::process::Command::new(script).arg("axe").output()?;
    ensure!(
        found.status.success(),
        "there is no axe-core: tests/browser.sh axe fetches it by npm; else leave this test out \
         (--skip axe): {}",
        String::from_utf8_lossy(&found.stderr)
    );
    let axe = std::fs::read_to_string(String::from_utf8(found.stdout)?.trim())?;
    let (_setting, browser) = crowded().await?;
    browser.run(&axe, &Value::Null)?;
    let chosen = "in=team-00209&of=ClusterReplication/own-00209";
    for theme in ["light", "dark"] {
        switch(&browser, theme)?;
        for place in ["", "state=Failed", chosen] {
            value(&browser, &format!("location.hash = '{place}'"))?;
            if place == chosen {
                browser
                    .wait("document.querySelector('#details .command')")
                    .await?;
            }
            let run = "window.axed = undefined; axe.run().then((it) => { window.axed = it; }, \
                (error) => { window.axed = {violations: [{id: String(error), nodes: []}]}; })";
            browser.run(run, &Value::Null)?;
            browser.wait("window.axed").await?;
            let faults = "axed.violations.map(({id, nodes}) => [id, nodes.slice(0, 3).map(({html, \
                failureSummary}) => [html.slice(0, 200), failureSummary])])";
            let faults = value(&browser, faults)?;
            ensure!(faults == json!([]), "{theme} {place}: {faults:#}");
        }
    }
    Ok(())
}

async fn columns_follow_the_filters(browser: &Browser) -> Result<()> {
    let columns = async |number: usize, told: &str| {
        let width = format!(
            "document.getElementById('canvas').style.width === '{}px'",
            232 + number * 148
        );
        let told = format!("document.getElementById('found').textContent.endsWith('{told}')");
        browser.wait(&format!("{width} && {told}")).await
    };
    columns(200, "the 200 most urgent of 211 rules").await?;
    // The rule that fails is among them, although its name is the last.
    value(
        browser,
        "document.getElementById('grid').scrollLeft = 9_000_000",
    )?;
    browser
        .wait(&format!("{HEADS}.endsWith('ClusterReplication own-00209')"))
        .await?;
    let few = "document.querySelectorAll('#head .cell').length < 30";
    browser.wait(few).await?;
    type_into(browser, "by-namespace", "team-00003")?;
    columns(2, "1 namespace, 2 rules").await?;
    let two = "Namespace,ClusterReplication defaults,ClusterReplication own-00003";
    browser.wait(&format!("{HEADS} === '{two}'")).await?;
    type_into(browser, "by-rule", "own")?;
    columns(1, "1 namespace, 1 rule").await?;
    for field in ["by-namespace", "by-rule"] {
        type_into(browser, field, "")?;
    }
    type_into(browser, "by-reason", "conflict")?;
    columns(2, "1 namespace, 2 rules").await?;
    type_into(browser, "by-reason", "")?;
    columns(200, "the 200 most urgent of 211 rules").await
}

#[tokio::test]
async fn a_browser_scrolls_and_filters_ten_thousand_namespaces() -> Result<()> {
    let _turn = LOAD.lock().await;
    let browser = Browser::start().await?;
    let many = stages::many().await?;
    browser.open(&reconciler(&many.setting.pair)?.url("/ui/"))?;
    // In a few namespaces a foreign object is in the way.
    browser
        .wait(&format!("{SYNCED_ONES} === 'Synced9,970'"))
        .await?;

    let few = "document.querySelectorAll('.row').length < 100";
    browser.wait(few).await?;
    value(
        &browser,
        "document.getElementById('grid').scrollTop = 9_000_000",
    )?;
    browser.wait("[...document.querySelectorAll('.name')].some((name) => name.textContent === 'team-09999')").await?;
    browser.wait(few).await?;
    value(
        &browser,
        "document.querySelector('#grid [tabindex=\"0\"]').focus()",
    )?;
    browser.press_with(CONTROL, HOME)?;
    browser.wait(&format!("{LABEL} === 'Namespace'")).await?;
    browser.press_with(CONTROL, END)?;
    browser
        .wait(&format!("{LABEL} === 'defaults in team-09999: Synced'"))
        .await?;

    type_into(&browser, "by-namespace", "TEAM-0777")?;
    browser
        .wait("document.querySelectorAll('#rows .row').length === 10")
        .await?;
    browser
        .wait("document.getElementById('found').textContent.startsWith('10 namespaces')")
        .await?;
    type_into(&browser, "by-namespace", "none of them")?;
    browser
        .wait("!document.getElementById('nothing').hidden")
        .await?;
    let complaints = browser.complaints()?;
    ensure!(complaints.is_empty(), "{complaints:#?}");
    Ok(())
}

#[tokio::test]
async fn a_browser_shows_above_the_grid_what_is_held_of_a_rule_that_is_gone_and_the_command_that_lets_it_go()
-> Result<()> {
    let pair = Pair::builder().reconciler_args(["--ui", "--deletion-delay", "1s"]);
    let setting = Setting::start(ControlPlane::builder().controller_manager(false), pair).await?;
    let client = setting.control_plane.client().await?;
    create_namespace(&client, "platform", &[]).await?;
    namespaces(&client, 5).await?;
    source(&client, "defaults").await?;
    let rule = rule("defaults").source("v1", "ConfigMap", "platform", "defaults");
    rule.target(json!({"namespaces": ["team-*"]}))
        .create(&client)
        .await?;
    setting.wait_synced(&client, "defaults").await?;
    let page = reconciler(&setting.pair)?;
    let mut follower = page.follow()?;
    follower.until(SOON, "that nothing is held", |told| {
        told.held == json!({"deletions": [], "more": 0})
    })?;

    // The rule is lost with its CRD. The CRD is installed again without the rule.
    let crd = mimeo_api::crds()
        .into_iter()
        .find(|crd| crd.spec.names.kind == "ClusterReplication")
        .context("no CRD")?;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    delete(&definitions, &crd.name_any()).await?;
    wait_gone(definitions, &crd.name_any()).await?;
    install_crd(&client, &crd).await?;
    follower.until(SOON, "the held deletion", |told| {
        told.held["deletions"][0]["copies"] == 5
    })?;
    let held = &follower.held["deletions"][0];
    ensure!(held["rule"] == "ClusterReplication/defaults", "{held}");
    ensure!(
        held["places"] == "5 namespaces, first team-00000, team-00001, team-00002",
        "{held}"
    );
    ensure!(
        held["why"]
            .as_str()
            .is_some_and(|why| why.contains("lost with its CRD")),
        "{held}"
    );

    let nonce = held["nonce"].as_str().context("no nonce")?;
    let mut command = format!(
        "kubectl -n {NAMESPACE} annotate --overwrite configmap mimeo-kinds \
         mimeo.dev/confirm-deletion={nonce}"
    );
    let browser = Browser::start().await?;
    let notice = "document.getElementById('held')";
    browser.open(&page.url("/ui/"))?;
    let gone = "ClusterReplication/defaults is gone5 copies in 5 namespaces";
    browser
        .wait(&format!("{notice}.textContent.includes('{gone}')"))
        .await?;
    let shown = value(
        &browser,
        &format!("[...{notice}.querySelectorAll('pre')].map((one) => one.textContent)"),
    )?;
    let plugin = "kubectl mimeo confirm ClusterReplication/defaults";
    ensure!(shown == json!([plugin, command]), "other commands: {shown}");
    kubectl(
        &setting.control_plane,
        command.split_off("kubectl ".len()).split(' '),
    )?;
    follower.until(SOON, "that nothing is held any more", |told| {
        told.held["deletions"] == json!([])
    })?;
    for number in 0..5 {
        wait_gone(
            of::<ConfigMap>(&client, &format!("team-{number:05}")),
            "defaults",
        )
        .await?;
    }
    browser.wait(&format!("{notice}.hidden")).await?;
    let complaints = browser.complaints()?;
    ensure!(complaints.is_empty(), "{complaints:#?}");
    Ok(())
}

/// Draws docs/images: `make screenshots`.
#[tokio::test]
#[ignore = "writes docs/images"]
async fn screenshots() -> Result<()> {
    let browser = Browser::start().await?;
    let setting = setting().await?;
    let client = setting.control_plane.client().await?;
    create_namespace(&client, "platform", &[]).await?;
    let teams = [
        "accounts", "billing", "catalog", "checkout", "delivery", "fraud", "identity", "ledger",
        "search", "stock",
    ];
    for (number, team) in teams.iter().enumerate() {
        for stage in ["dev", "prod", "test"] {
            let tier = if number % 3 == 0 { "gold" } else { "silver" };
            create_namespace(
                &client,
                &format!("{team}-{stage}"),
                &[("tier", tier), ("stage", stage)],
            )
            .await?;
        }
    }
    let everywhere = json!({"namespaceSelector": {}});
    let gold = json!({"namespaceSelector": {"matchLabels": {"tier": "gold"}}});
    let production = json!({"namespaceSelector": {"matchLabels": {"stage": "prod"}}});
    let rules = [
        ("registry-credentials", &everywhere),
        ("trust-bundle", &everywhere),
        ("network-defaults", &everywhere),
        ("observability", &production),
        ("smtp-relay", &gold),
        ("wildcard-tls", &production),
    ];
    for name in ["fraud-test", "search-dev"] {
        let own = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "network-defaults", "namespace": name}});
        apply(&client, &own).await?;
    }
    for (name, target) in rules {
        let mut rule = rule(name)
            .source("v1", "ConfigMap", "platform", name)
            .target(target.clone());
        if *target == everywhere {
            rule = rule.set(
                "exclude",
                json!([{"namespaces": ["default", "platform", "mimeo-system"]}]),
            );
        }
        match name {
            "smtp-relay" => {
                source(&client, name).await?;
                rule = rule.set("suspend", json!(true));
            }
            _ => source(&client, name).await?,
        }
        rule.create(&client).await?;
    }
    browser.open(&reconciler(&setting.pair)?.url("/ui/"))?;
    browser
        .wait("document.querySelectorAll('#head .sign.failed').length === 1")
        .await?;
    // All copies are written that can be. Two namespaces have an object of their own in the way.
    let states = "document.getElementById('states').textContent";
    browser
        .wait(&format!(
            "{states}.startsWith('Failed2Held0Pending0') && document.querySelectorAll('#head .sign.synced').length === 4"
        ))
        .await?;
    browser
        .wait("document.querySelectorAll('#head .sign.suspended').length === 1")
        .await?;
    // A failure, with its explanation.
    browser.run(
        "document.querySelector('.cell.failed').click()",
        &Value::Null,
    )?;
    browser
        .wait("document.getElementById('details').textContent.includes('conflictPolicy')")
        .await?;
    for theme in ["light", "dark"] {
        browser.run(
            "while (document.documentElement.dataset.theme !== arguments[0]) \
             document.getElementById('theme').click()",
            &json!(theme),
        )?;
        let picture: k8s_openapi::ByteString =
            serde_json::from_value(json!(browser.screenshot()?))?;
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/images");
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join(format!("page-{theme}.png")), picture.0)?;
    }
    Ok(())
}
