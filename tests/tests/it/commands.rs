//! The commands in the documents. The tests run them on a cluster with a running Mimeo.
//!
//! Each command is run, or [`NOT_RUN`] has the reason why not. The cluster has no node, and Mimeo
//! is installed already. So some commands get further flags: a dry run, or `--help`, which only
//! shows that the subcommand and the flags exist. `plugin` and `release` have their tests.

mod documents;

use std::{collections::BTreeSet, os::unix::fs::symlink, time::Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, api::ListParams};
use mimeo_tests::{
    ControlPlane, NAMESPACE, Pair, create_namespace, create_secret, eventually,
    scenario::{
        SOON, create, definitions_of_others, helm, kubectl, rule, value, wait_condition, wait_for,
    },
    traffic::tells_timeout,
};
use serde_json::json;
use tempfile::TempDir;

use self::documents::{OUTPUT, Shown, blocks, commands, documents};
use crate::{
    plugin::bash,
    repository::{read, workspace},
};

/// Commands that no test runs: their beginning, and the reason.
const NOT_RUN: [(&str, &str); 10] = [
    ("alias m=", "`typed` defines the word m"),
    ("logs() ", "`typed` takes the word logs from this line"),
    (
        "docker ",
        "the tests have no Docker; the end-to-end tests build the image by the same Dockerfile",
    ),
    ("kind load ", "there is no cluster of kind"),
    ("make ", "`.ci/run` makes these targets"),
    (
        "cargo build ",
        "the tests use a plugin that is built already",
    ),
    ("install target/", "it would write to /usr/local/bin"),
    ("chmod +x /usr/local/", "it would write to /usr/local/bin"),
    (
        "kubectl mimeo completion > /usr/local/",
        "it would write to /usr/local/bin; `plugin::completion` looks at the output",
    ),
    ("curl ", "the port is forwarded from a pod"),
];

/// Subcommands that need a pod, or an API that no server has here.
const OF_PODS: [&str; 3] = ["logs", "port-forward", "top"];

/// Subcommands of the plugin that only ask. Their exit code 1 is an answer, too.
const QUESTIONS: [&str; 5] = ["check", "held", "status", "where", "why"];

/// Documents whose commands one test types, in this order. Those that wait for the rule to be Ready
/// come first.
const TYPED: [&str; 21] = [
    "docs/start/first-tenant-rule.md",
    "docs/how-to/coming-from.md",
    "manifests/chart/RUNBOOK.md",
    "docs/how-to/install.md",
    "docs/how-to/availability.md",
    "docs/how-to/backup.md",
    "docs/how-to/monitor.md",
    "docs/how-to/logs-and-traces.md",
    "docs/how-to/page.md",
    "docs/how-to/plugin.md",
    "docs/how-to/least-privilege.md",
    "docs/how-to/authors.md",
    "docs/how-to/guarded-labels.md",
    "docs/reference/events.md",
    "docs/how-to/troubleshoot.md",
    "docs/how-to/held-deletions.md",
    "docs/how-to/strategies.md",
    "docs/how-to/argo-cd.md",
    "docs/how-to/upgrade.md",
    "manifests/chart/README.md",
    "docs/how-to/uninstall.md",
];

/// Documents whose commands have a test of their own.
const ALONE: [&str; 2] = ["README.md", "docs/start/quick-start.md"];

/// What a test does with a command.
enum Way {
    /// Types this. It must succeed.
    Typed(String),
    /// Types it. The plugin may answer with exit code 1.
    Asked,
    /// Nothing. This is the beginning in [`NOT_RUN`].
    NotRun(&'static str),
}

/// Returns what a test does with a command. `None` if the command is not known.
fn way(command: &str) -> Option<Way> {
    let excepted = NOT_RUN
        .iter()
        .find(|(beginning, _)| command.starts_with(beginning));
    if let Some((beginning, _)) = excepted {
        return Some(Way::NotRun(beginning));
    }
    let line = command.lines().next()?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let has = |word: &str| words.contains(&word);
    let added = match words[..] {
        ["kubectl", "mimeo", subcommand, ..]
            if QUESTIONS.contains(&subcommand) && !has("--wait") =>
        {
            return Some(Way::Asked);
        }
        ["kubectl", "mimeo", ..] | ["helm", "test", ..] => " --help",
        ["kubectl" | "m" | "logs", ..] if OF_PODS.into_iter().any(has) => " --help",
        ["helm", "uninstall", ..] => " --dry-run",
        ["helm", "install" | "upgrade" | "rollback", ..] => " --dry-run=client",
        // The webhook configurations of these tests have URLs, because there is no Service. So the
        // objects are not compared with those that are stored.
        ["sed", ..] if line.ends_with("| kubectl apply -f -") => {
            let created = command.replace("kubectl apply", "kubectl create --dry-run=client");
            return Some(Way::Typed(created));
        }
        ["kubectl" | "m" | "helm", ..] => "",
        _ => return None,
    };
    Some(Way::Typed(format!("{command}{added}")))
}

/// A cluster with the chart installed, both programs running, and the CRDs of other projects.
struct AtWork {
    /// It is dropped first, because its end still searches the cluster for planted values.
    _pair: Pair,
    control_plane: ControlPlane,
    /// The folder in which commands are typed. It has the manifests, and they write files there.
    folder: TempDir,
    /// The output of `helm install`.
    installed: String,
}

impl AtWork {
    async fn start() -> Result<Self> {
        let control_plane = ControlPlane::start().await?;
        for file in definitions_of_others()? {
            let file = file.display().to_string();
            kubectl(
                &control_plane,
                ["apply", "--server-side", "-f", file.as_str()],
            )?;
        }
        let mut install = helm()?;
        install
            .current_dir(workspace())
            .env("KUBECONFIG", control_plane.kubeconfig());
        install.args([
            "install",
            "mimeo",
            "manifests/chart",
            "--namespace",
            NAMESPACE,
            "--create-namespace",
        ]);
        let output = install
            .args(["--set", "guardedLabels.enabled=true"])
            .output()?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let folder = tempfile::tempdir()?;
        let manifests = workspace().join("manifests").canonicalize()?;
        symlink(manifests, folder.path().join("manifests"))?;
        let pair = Pair::builder()
            .installed_rights()
            .start(&control_plane)
            .await?;
        Ok(Self {
            _pair: pair,
            control_plane,
            folder,
            installed: String::from_utf8(output.stdout)?,
        })
    }

    /// Writes a rule and a policy, both named `registry`. Waits for the rule's copy in `team-a`.
    async fn with_a_rule_and_a_policy(&self) -> Result<()> {
        let client = self.control_plane.client().await?;
        create_namespace(&client, "platform", &[]).await?;
        create_namespace(&client, "team-a", &[]).await?;
        create_secret(&client, "platform", "registry", &[("token", "one")]).await?;
        let policy = json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": "registry"},
            "spec": {
                "match": {"kinds": [{"apiVersion": "v1", "kind": "Secret"}], "objectSelector": {"matchLabels": {"a": "b"}}},
                "transform": {"labels": {"set": {"c": "d"}}},
            },
        });
        create(&client, "transformpolicies", &policy).await?;
        rule("registry")
            .secret("platform", "registry")
            .target(json!({"namespaces": ["team-*"]}))
            .create(&client)
            .await?;
        wait_condition(&client, "registry", ["Ready", "True", "Synced"])
            .await
            .map(drop)
    }

    /// Does with a command of a document what [`way`] says. Returns its output.
    fn carry_out(&self, command: &str) -> Result<String> {
        match way(command).with_context(|| format!("no known command: {command}"))? {
            Way::Typed(command) => self.typed(&command, 0),
            Way::Asked => {
                let told = self.typed(command, 1)?;
                // Without the plugin, kubectl exits with 1, too.
                ensure!(!told.contains("unknown command"), "{command}: {told}");
                Ok(told)
            }
            Way::NotRun(_) => Ok(String::new()),
        }
    }

    /// Runs a command in a shell, with the words `m` and `logs` of the runbook. Its exit code must
    /// be at most `worst`. If a webhook call timed out, or the command waited for less time than a
    /// busy machine needs, it is run again.
    fn typed(&self, command: &str, worst: i32) -> Result<String> {
        let helm = helm()?;
        let runbook = read("manifests/chart/RUNBOOK.md")?;
        let logs = runbook
            .lines()
            .find_map(|line| Some(line.trim_start()).filter(|line| line.starts_with("logs() ")))
            .context("no word logs")?;
        let script = format!(
            "helm() {{ \"$HELM\" \"$@\"; }}\n\
             m() {{ kubectl --namespace {NAMESPACE} \"$@\"; }}\n{logs}\n{command}"
        );
        let mut bash = bash(&self.control_plane, &script)?;
        let set = helm.get_envs();
        bash.current_dir(self.folder.path())
            .envs(set.filter_map(|(name, value)| Some((name, value?))))
            .env("HELM", helm.get_program());
        let until = Instant::now() + SOON;
        loop {
            let output = bash.output()?;
            let said = format!(
                "{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
            if output.status.code().is_some_and(|code| code <= worst) {
                return Ok(said);
            }
            let too_slow = tells_timeout(&said) || command.contains(" wait --for=");
            ensure!(too_slow && Instant::now() < until, "{command}: {said}");
        }
    }
}

/// Replaces the placeholders of a command, as a reader would.
fn filled_in(command: &str) -> String {
    let words = [
        ("secret NAME", "secret mimeo-webhook-tls"),
        ("NAME", "registry"),
        (
            "GROUP/VERSION/RESOURCE",
            "mimeo.dev/v1alpha1/clusterreplications",
        ),
        ("RESOURCE.GROUP", "secrets"),
        ("RESOURCE", "secrets"),
        ("REVISION", "1"),
        ("<nonce>", "0"),
    ];
    words
        .iter()
        .fold(command.to_owned(), |command, (word, place)| {
            command.replace(word, place)
        })
}

/// True if a command deletes Mimeo's CRDs.
fn deletes_crds(command: &str) -> bool {
    command.contains(" delete ") && (command.contains(" crd ") || command.contains(" manifests/"))
}

#[test]
fn every_command_of_the_documents_is_run_or_has_a_reason_not_to_be() -> Result<()> {
    let (mut unknown, mut excepted) = (Vec::new(), BTreeSet::new());
    for document in documents()? {
        let mut runs = false;
        for Shown { command, .. } in commands(&document)? {
            match way(&command) {
                None => unknown.push(format!("{document}: {command}")),
                Some(Way::NotRun(beginning)) => {
                    excepted.insert(beginning);
                }
                Some(_) => runs = true,
            }
        }
        let of_a_test = [&TYPED[..], &ALONE].concat().contains(&&*document);
        ensure!(
            runs == of_a_test,
            "{document} has commands: {runs}; a test types them: {of_a_test}"
        );
    }
    ensure!(
        unknown.is_empty(),
        "no test knows what to do with these lines of code: {unknown:#?}"
    );
    assert_eq!(
        excepted,
        NOT_RUN.iter().map(|(beginning, _)| *beginning).collect(),
        "the documents have no other exceptions"
    );
    for (document, beginning) in OUTPUT {
        let text = read(document)?;
        let is_there = blocks(&text)
            .iter()
            .any(|block| block[0].starts_with(beginning));
        ensure!(is_there, "{document} no longer has: {beginning}");
    }
    Ok(())
}

#[tokio::test]
async fn the_commands_of_the_documents_work() -> Result<()> {
    let cluster = AtWork::start().await?;
    cluster.with_a_rule_and_a_policy().await?;
    // Argo CD has its settings in this ConfigMap.
    for command in [
        "kubectl create namespace argocd",
        "kubectl --namespace argocd create configmap argocd-cm",
    ] {
        cluster.carry_out(command)?;
    }
    let mut all = Vec::new();
    for document in TYPED {
        all.extend(
            commands(document)?
                .into_iter()
                .map(|shown| (document, filled_in(&shown.command))),
        );
    }
    assert!(all.len() > 100, "only {}", all.len());
    // The commands that remove Mimeo come last.
    all.sort_by_key(|(_, command)| deletes_crds(command));
    for (document, command) in all {
        cluster.carry_out(&command).context(document)?;
    }
    Ok(())
}

/// Helm prints this rule, and users paste it.
#[tokio::test]
async fn the_rule_in_the_charts_notes_can_be_pasted() -> Result<()> {
    let cluster = AtWork::start().await?;
    let (_, notes) = cluster
        .installed
        .split_once("\nNOTES:\n")
        .context("no notes")?;
    let is_apply = |line: &&str| line.trim_start().starts_with("kubectl apply");
    let pasted: Vec<&str> = notes
        .lines()
        .skip_while(|line| !is_apply(line))
        .take_while(|line| !line.is_empty())
        .collect();
    let told = cluster.typed(&pasted.join("\n"), 0)?;
    // The shell prints a warning if a here-document has no end. A terminal would wait for the end.
    ensure!(
        told.contains("clusterreplication.mimeo.dev/registry created")
            && !told.contains("here-document"),
        "{told}"
    );
    Ok(())
}

/// Each command of the README, in its order. The last one reads the copy in a new namespace.
#[tokio::test]
async fn the_first_steps_of_the_readme_lead_to_a_copy() -> Result<()> {
    let cluster = AtWork::start().await?;
    let mut all: Vec<String> = commands("README.md")?
        .into_iter()
        .map(|shown| shown.command)
        .collect();
    all.retain(|command| !matches!(way(command), Some(Way::NotRun(_))));
    let (last, before) = all.split_last().context("no commands")?;
    for command in before {
        cluster.carry_out(command)?;
    }
    eventually(SOON, last, || async {
        let told = cluster.carry_out(last)?;
        ensure!(told.contains("registry"), "{told}");
        Ok(Some(()))
    })
    .await
}

/// The output equals the document word for word, except for ages.
#[tokio::test]
async fn the_quick_start_goes_as_it_says() -> Result<()> {
    let cluster = AtWork::start().await?;
    let client = cluster.control_plane.client().await?;
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let all = commands("docs/start/quick-start.md")?;
    let (steps, others): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|shown| shown.output.is_some());
    let (changes, installs): (Vec<_>, Vec<_>) = others
        .into_iter()
        .map(|shown| shown.command)
        .partition(|command| command.starts_with("kubectl "));
    for command in &installs {
        cluster.carry_out(command)?;
    }
    let (first, changes) = changes.split_first().context("no first rule")?;
    let told = cluster.carry_out(first)?;
    let text = read("docs/start/quick-start.md")?;
    for line in text
        .lines()
        .filter(|line| line.starts_with("    Warning: ") || line.ends_with("/registry created"))
    {
        ensure!(told.contains(line.trim()), "{line}: {told}");
    }
    for Shown { command, output } in &steps {
        let printed: Vec<_> = output.iter().flatten().map(|line| words(line)).collect();
        eventually(SOON, command, || async {
            let told = cluster.carry_out(command)?;
            // The last word of a row is its age.
            let same = |(line, want): (&str, &Vec<String>)| {
                let line = words(line);
                line.len() == want.len()
                    && line
                        .iter()
                        .zip(want)
                        .rev()
                        .skip(1)
                        .all(|(word, want)| word == want)
            };
            ensure!(
                told.lines().count() == printed.len() && told.lines().zip(&printed).all(same),
                "{told}"
            );
            Ok(Some(()))
        })
        .await?;
    }
    let copies = Api::<Secret>::namespaced(client.clone(), "team-blue");
    let [patch, delete, end] = changes else {
        bail!("{changes:?}")
    };
    cluster.carry_out(patch)?;
    let copy = wait_for(copies.clone(), "registry".into(), |copy: &Secret| {
        value(copy, "password").as_deref() == Some("another")
    })
    .await?;
    cluster.carry_out(delete)?;
    wait_for(copies.clone(), "registry".into(), |again: &Secret| {
        again.metadata.uid != copy.metadata.uid
    })
    .await?;
    cluster.carry_out(end)?;
    eventually(SOON, "the copy to go", || async {
        Ok(copies
            .list_metadata(&ListParams::default())
            .await?
            .items
            .is_empty()
            .then_some(()))
    })
    .await
}
