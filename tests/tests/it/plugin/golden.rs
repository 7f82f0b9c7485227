//! The output of `kubectl mimeo` on one small cluster, compared with the files in `golden/`. People
//! read these outputs. With `MIMEO_UPDATE_GOLDEN=1` (`make golden`) the test rewrites the files
//! instead.

use std::{env, fmt::Write as _, fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use mimeo_tests::{
    ControlPlane, Pair, create_namespace, create_secret,
    scenario::{Scene, Setting, create, rule},
};
use serde_json::{Value, json};

use super::{Output, command, finish};

const REGISTRY: &str = "registry";

/// Three teams. The last one has an object with the copy's name.
async fn cluster(scene: &Scene<'_>) -> Result<()> {
    let client = &scene.client;
    for name in ["platform", "shop"] {
        create_namespace(client, name, &[]).await?;
    }
    for team in ["team-a", "team-b", "team-c"] {
        create_namespace(client, team, &[("team", "yes")]).await?;
    }
    create_secret(client, "team-c", REGISTRY, &[("theirs", "yes")]).await?;
    create_secret(client, "platform", REGISTRY, &[("token", "one")]).await?;
    create_secret(client, "shop", "db", &[("password", "one")]).await?;
    let registry = rule(REGISTRY).secret("platform", REGISTRY);
    registry.to_label("team", "yes").create(client).await?;
    let rest = [
        rule("lost")
            .secret("platform", "lost")
            .to_label("team", "yes"),
        rule("paused")
            .secret("platform", REGISTRY)
            .to_label("team", "yes")
            .named("paused")
            .set("suspend", json!(true)),
        rule("gold")
            .secret("platform", REGISTRY)
            .to_label("tier", "gold")
            .named("gold"),
    ];
    for rule in rest {
        rule.create(client).await?;
    }
    let source = json!({"apiVersion": "v1", "kind": "Secret", "namespace": "shop", "name": "db"});
    let replication = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "Replication",
        "metadata": {"namespace": "team-a", "name": "db"}, "spec": {"sources": [source]},
    });
    create(client, "namespaces/team-a/replications", &replication).await?;
    scene.wait_counts(REGISTRY, [3, 2, 1]).await?;
    scene
        .wait_condition("lost", "SourcesFound", "False", "SourceNotFound")
        .await?;
    scene
        .wait_condition("gold", "Ready", "True", "NoNamespaceMatches")
        .await?;
    scene
        .wait_condition("paused", "Ready", "False", "Suspended")
        .await?;
    Ok(())
}

/// The files of `diff`, `render` and `test`.
fn files(folder: &Path) -> Result<()> {
    let write = |name: &str, objects: &[Value]| -> Result<()> {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        Ok(fs::write(folder.join(name), list.to_string())?)
    };
    let narrowed = rule(REGISTRY)
        .secret("platform", REGISTRY)
        .target(json!({"namespaces": ["team-a", "team-c"]}));
    let labelled = rule(REGISTRY)
        .secret("platform", REGISTRY)
        .to_label("team", "yes");
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "platform", "name": REGISTRY},
        "stringData": {"token": "longer than before", "user": "mimeo"},
    });
    let team = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "team-d", "labels": {"team": "yes"}},
    });
    write("narrowed.json", &[narrowed.object(), secret.clone()])?;
    write("all.json", &[labelled.object(), secret, team])?;
    fs::create_dir_all(folder.join("cases/teams"))?;
    fs::copy(folder.join("all.json"), folder.join("cases/teams/all.json"))?;
    Ok(())
}

/// The command, its outputs and its exit code, without the parts that differ from run to run.
fn page(line: &str, output: &Output) -> String {
    let Output {
        code,
        stdout,
        stderr,
    } = output;
    let mut page = format!("$ kubectl mimeo {line}\n{}", normal(stdout));
    if !stderr.is_empty() {
        // Writing to a String never fails.
        _ = write!(page, "--- standard error\n{}", normal(stderr));
    }
    page + &format!("--- exit code {code}\n\n")
}

/// Ages, times and names of replicas as words in capitals.
fn normal(text: &str) -> String {
    let word = |word: &str| {
        let digits = word.trim_start_matches('(');
        let age = digits.trim_end_matches(['s', 'm', 'h', 'd']);
        let number = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
        let replica = ["reconciler-", "webhook-"].iter().find_map(|program| {
            let rest = word.strip_prefix(program)?;
            rest.starts_with(|c: char| c.is_ascii_hexdigit())
                .then_some(*program)
        });
        if let Some(program) = replica {
            format!("{program}REPLICA")
        } else if age != digits && number(age) {
            word.replace(digits, "AGE")
        } else if word.ends_with('Z') && word.parse::<Timestamp>().is_ok() {
            "TIMESTAMP".to_owned()
        } else if word.len() == 10 && word.split('-').map(str::len).eq([4, 2, 2]) {
            "DATE".to_owned()
        } else if word.len() == 5 && word.split(':').all(number) && word.contains(':') {
            "TIME".to_owned()
        } else {
            word.to_owned()
        }
    };
    let line = |line: &str| line.split(' ').map(word).collect::<Vec<_>>().join(" ");
    text.lines().map(|one| line(one) + "\n").collect()
}

#[tokio::test]
async fn golden_files_have_what_each_command_prints() -> Result<()> {
    let setting = Setting::start(ControlPlane::builder(), Pair::builder()).await?;
    let scene = Scene {
        setting: &setting,
        client: setting.control_plane.client().await?,
        tag: REGISTRY.into(),
        home: "platform".into(),
    };
    cluster(&scene).await?;
    let folder = tempfile::tempdir()?;
    files(folder.path())?;
    let pages: [(&str, &[&str]); 10] = [
        (
            "why",
            &[
                "why team-a/secret/registry",
                "why team-c/secret/registry",
                "why team-a/secret/lost",
                "why team-a/secret/paused",
                "why team-a/secret/gold",
                "why team-a/secret/db",
                "why team-a/cm/registry",
                "why team-a/pod/app",
            ],
        ),
        (
            "status",
            &[
                "status",
                "status --failed",
                "status registry -n team-a",
                "status no-such-rule",
                "status registry -o yaml",
            ],
        ),
        (
            "where",
            &["where secret platform/registry", "where cm platform/other"],
        ),
        ("diff", &["diff -f all.json", "diff -f narrowed.json"]),
        (
            "render",
            &["render -f all.json --mask", "render -f all.json -o table"],
        ),
        (
            "test",
            &["test cases", "test cases --update --mask", "test cases"],
        ),
        ("check", &["check"]),
        ("grant", &["grant team-a/db", "grant registry"]),
        ("held", &["held", "confirm registry --copies 2"]),
        (
            "copy",
            &[
                "copy platform/secret/registry shop team-c no-such-namespace",
                "copy platform/secret/registry shop --overwrite --dry-run",
            ],
        ),
    ];
    compare(&setting, folder.path(), &pages)
}

/// The deletion of three copies waits for a person, and is confirmed.
#[tokio::test]
async fn golden_files_have_what_is_printed_of_a_held_deletion() -> Result<()> {
    let limits = ["--deletion-delay", "1s", "--deletion-limit", "2"];
    let pair = Pair::builder().reconciler_args(limits);
    let setting = Setting::start(ControlPlane::builder(), pair).await?;
    let scene = Scene {
        setting: &setting,
        client: setting.control_plane.client().await?,
        tag: REGISTRY.into(),
        home: "platform".into(),
    };
    for name in ["platform", "team-a", "team-b", "team-c"] {
        create_namespace(&scene.client, name, &[]).await?;
    }
    create_secret(&scene.client, "platform", REGISTRY, &[("token", "one")]).await?;
    let rule = rule(REGISTRY).secret("platform", REGISTRY);
    let all = rule.clone().target(json!({"namespaces": ["team-*"]}));
    all.create(&scene.client).await?;
    scene.wait_counts(REGISTRY, [3, 3, 0]).await?;
    let none = rule.target(json!({"namespaces": ["former-*"]}));
    none.replace(&scene.client).await?;
    scene
        .wait_condition(REGISTRY, "Stalled", "True", "DeletionHeld")
        .await?;
    let pages: [(&str, &[&str]); 1] = [(
        "confirm",
        &[
            "held",
            "confirm registry --copies 2",
            "confirm registry --copies 3",
        ],
    )];
    compare(&setting, Path::new("."), &pages)
}

/// Runs the commands of each page in the folder, and compares their outputs with its golden file.
fn compare(setting: &Setting, folder: &Path, pages: &[(&str, &[&str])]) -> Result<()> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/plugin/golden");
    let mut stale = Vec::new();
    for (name, lines) in pages {
        let mut text = String::new();
        for line in *lines {
            let args: Vec<&str> = line.split(' ').collect();
            let mut command = command(&setting.control_plane, None, &args)?;
            command.current_dir(folder);
            text += &page(line, &finish(command)?);
        }
        let path = golden.join(format!("{name}.txt"));
        if env::var_os("MIMEO_UPDATE_GOLDEN").is_some_and(|value| value == "1") {
            fs::write(&path, &text).with_context(|| path.display().to_string())?;
        }
        let stored = fs::read_to_string(&path).unwrap_or_default();
        if stored != text {
            stale.push(format!("{name}:\n{text}"));
        }
    }
    ensure!(
        stale.is_empty(),
        "run `make golden` and look at the difference: {}",
        stale.join("\n")
    );
    Ok(())
}
