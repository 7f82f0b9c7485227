//! The commands in the documents. The test runs those of kubectl unchanged on a cluster with a
//! running Mimeo.
//!
//! The cluster has no node. For a command that needs a pod the test only checks whether kubectl
//! knows its subcommand and flags. The same holds for commands of the plugin, whose exit codes depend
//! on the cluster's state: `plugin` has their tests.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context, Result, ensure};
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

/// Subcommands that need a pod, or an API that no server has here.
const OF_PODS: [&str; 3] = ["logs", "port-forward", "top"];

/// Documents whose commands one test types, in this order. Those that wait for the rule to be Ready
/// come first.
const TYPED: [&str; 18] = [
    "docs/start/first-tenant-rule.md",
    "docs/how-to/coming-from.md",
    "manifests/chart/RUNBOOK.md",
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
    "docs/how-to/uninstall.md",
];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the kubectl commands in the code of a document, in order, each with its output there. A
/// pipe or a redirection at the end of a command is cut off.
fn commands(document: &str) -> Result<Vec<(String, Vec<String>)>> {
    let text = fs::read_to_string(workspace().join(document))?;
    // Commands in a list are indented further.
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("    "));
    let mut commands: Vec<(String, Vec<String>)> = Vec::new();
    while let Some(line) = lines.next() {
        let (shown, typed) = line
            .strip_prefix("$ ")
            .map_or((false, line.trim_start()), |typed| (true, typed));
        if !["kubectl ", "m ", "logs "]
            .iter()
            .any(|word| typed.starts_with(word))
        {
            if let Some((_, printed)) = commands
                .last_mut()
                .filter(|(command, _)| command.starts_with("$ "))
            {
                printed.push(line.to_owned());
            }
            continue;
        }
        let mut command = typed.to_owned();
        if line.ends_with("<<'EOF'") {
            for line in lines.by_ref() {
                command.extend(["\n", line]);
                if line == "EOF" {
                    break;
                }
            }
        } else {
            for end in ["  ", " | ", " > ", " >/", " &"] {
                command.truncate(command.find(end).unwrap_or(command.len()));
            }
        }
        commands.push((
            if shown {
                format!("$ {command}")
            } else {
                command
            },
            Vec::new(),
        ));
    }
    ensure!(!commands.is_empty(), "{document} has none");
    Ok(commands)
}

/// Starts a cluster with the chart installed, both programs running, and the CRDs of other
/// projects. Returns Helm's output, too.
async fn at_work() -> Result<(ControlPlane, Pair, String)> {
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
    let pair = Pair::builder()
        .installed_rights()
        .start(&control_plane)
        .await?;
    Ok((control_plane, pair, String::from_utf8(output.stdout)?))
}

/// Writes a rule and a policy, both named `registry`. Waits for the rule's copy in `team-a`.
async fn with_a_rule_and_a_policy(control_plane: &ControlPlane) -> Result<()> {
    let client = control_plane.client().await?;
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

/// Runs a command in a shell, with the words `m` and `logs` of the runbook. If a webhook call timed
/// out, or the command waited for less time than a busy machine needs, it is run again.
fn typed(control_plane: &ControlPlane, command: &str) -> Result<String> {
    let kubectl = control_plane.kubectl()?;
    let runbook = fs::read_to_string(workspace().join("manifests/chart/RUNBOOK.md"))?;
    let logs = runbook
        .lines()
        .find_map(|line| Some(line.trim_start()).filter(|line| line.starts_with("logs() ")))
        .context("no word logs")?;
    let script = format!(
        "kubectl() {{ \"$KUBECTL\" \"$@\"; }}\nm() {{ kubectl --namespace {NAMESPACE} \"$@\"; }}\n{logs}\n{command}"
    );
    let mut bash = Command::new("bash");
    bash.current_dir(workspace())
        .env("KUBECTL", kubectl.get_program())
        .args(["-c", &script]);
    let set = kubectl
        .get_envs()
        .filter_map(|(name, value)| Some((name, value?)));
    bash.envs(set).env("PATH", crate::plugin::path()?);
    let until = Instant::now() + SOON;
    loop {
        let output = bash.output()?;
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        if output.status.success() {
            return Ok(said);
        }
        let too_slow = tells_timeout(&said) || command.contains(" wait --for=");
        ensure!(too_slow && Instant::now() < until, "{command}: {said}");
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
        ("<nonce>", "0"),
    ];
    words
        .iter()
        .fold(command.to_owned(), |command, (word, place)| {
            command.replace(word, place)
        })
}

#[tokio::test]
async fn what_the_runbook_and_the_other_documents_have_one_type_kubectl_does() -> Result<()> {
    let (control_plane, _pair, _) = at_work().await?;
    with_a_rule_and_a_policy(&control_plane).await?;
    // Argo CD has its settings in this ConfigMap.
    for command in [
        "kubectl create namespace argocd",
        "kubectl --namespace argocd create configmap argocd-cm",
    ] {
        typed(&control_plane, command)?;
    }
    let mut all = Vec::new();
    for document in TYPED {
        all.extend(
            commands(document)?
                .into_iter()
                .map(|(command, _)| (document, filled_in(&command))),
        );
    }
    assert!(all.len() > 70, "only {}", all.len());
    // The commands that remove Mimeo come last.
    all.sort_by_key(|(_, command)| command.contains(" manifests/"));
    for (document, mut command) in all {
        let of_plugin = command.starts_with("kubectl mimeo ");
        if of_plugin || command.split(' ').any(|word| OF_PODS.contains(&word)) {
            command.push_str(" --help");
        }
        typed(&control_plane, &command).context(document)?;
    }
    Ok(())
}

#[test]
fn the_commands_of_every_how_to_page_are_typed() -> Result<()> {
    for page in fs::read_dir(workspace().join("docs/how-to"))? {
        let page = format!("docs/how-to/{}", page?.file_name().to_string_lossy());
        let typed = TYPED.contains(&page.as_str());
        ensure!(typed || commands(&page).is_err(), "{page} is not typed");
    }
    Ok(())
}

/// Helm prints this rule, and users paste it.
#[tokio::test]
async fn the_rule_in_the_charts_notes_can_be_pasted() -> Result<()> {
    let (control_plane, _pair, notes) = at_work().await?;
    let (_, notes) = notes.split_once("\nNOTES:\n").context("no notes")?;
    let is_apply = |line: &&str| line.trim_start().starts_with("kubectl apply");
    let pasted: Vec<&str> = notes
        .lines()
        .skip_while(|line| !is_apply(line))
        .take_while(|line| !line.is_empty())
        .collect();
    let told = typed(&control_plane, &pasted.join("\n"))?;
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
    let (control_plane, _pair, _) = at_work().await?;
    let all = commands("README.md")?;
    let ((last, _), before) = all.split_last().context("no commands")?;
    for (command, _) in before {
        typed(&control_plane, command)?;
    }
    eventually(SOON, last, || async {
        let told = typed(&control_plane, last)?;
        ensure!(told.contains("registry"), "{told}");
        Ok(Some(()))
    })
    .await
}

/// The output equals the document word for word, except for ages.
#[tokio::test]
async fn the_quick_start_goes_as_it_says() -> Result<()> {
    let (control_plane, _pair, _) = at_work().await?;
    let client = control_plane.client().await?;
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let all = commands("docs/start/quick-start.md")?;
    let (changes, steps): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|(command, _)| !command.starts_with("$ "));
    let (first, changes) = changes.split_first().context("no first rule")?;
    let told = typed(&control_plane, &first.0)?;
    let text = fs::read_to_string(workspace().join("docs/start/quick-start.md"))?;
    for line in text
        .lines()
        .filter(|line| line.starts_with("    Warning: ") || line.ends_with("/registry created"))
    {
        ensure!(told.contains(line.trim()), "{line}: {told}");
    }
    for (command, printed) in &steps {
        let printed: Vec<_> = printed
            .iter()
            .filter(|line| !line.is_empty())
            .map(|line| words(line))
            .collect();
        let command = command.trim_start_matches("$ ");
        eventually(SOON, command, || async {
            let told = typed(&control_plane, command)?;
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
        anyhow::bail!("{changes:?}")
    };
    typed(&control_plane, &patch.0)?;
    let copy = wait_for(copies.clone(), "registry".into(), |copy: &Secret| {
        value(copy, "password").as_deref() == Some("another")
    })
    .await?;
    typed(&control_plane, &delete.0)?;
    wait_for(copies.clone(), "registry".into(), |again: &Secret| {
        again.metadata.uid != copy.metadata.uid
    })
    .await?;
    typed(&control_plane, &end.0)?;
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
