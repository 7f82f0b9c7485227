//! After an installation, the pods are as restricted as the manifests say, and Mimeo does its work.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result, ensure};
use mimeo_node_tests::{Mimeo, Node, PROGRAMS};

use crate::people::People;

#[tokio::test]
async fn pods_run_without_any_privilege_and_a_pod_gets_its_copy() -> Result<()> {
    let mimeo = Mimeo::by_kustomize().await?;
    for program in PROGRAMS {
        let processes = Node::processes(&format!("/{}", program.name()))?;
        assert_eq!(
            processes.len(),
            2,
            "{} replicas: {processes:?}",
            program.name()
        );
        for process in processes {
            confined(&process)
                .with_context(|| format!("{} in {}", program.name(), process.display()))?;
        }
        for pod in mimeo.pods(program).await? {
            let statuses = pod
                .status
                .and_then(|status| status.container_statuses)
                .unwrap_or_default();
            assert!(
                statuses
                    .iter()
                    .all(|status| status.ready && status.restart_count == 0),
                "{statuses:?}"
            );
        }
    }
    let people = People::settle(&mimeo.client, "install").await?;
    let name = people.move_in().await?;
    people.have(std::slice::from_ref(&name), "first").await?;
    let runs = people.namespace().await?;
    people.run_a_pod(&runs).await?;
    people.rotate("second").await?;
    people.have(&[name, runs], "second").await?;
    people.leave().await
}

/// Checks the kernel's view of a process, independently of the manifests.
fn confined(process: &Path) -> Result<()> {
    let status = fs::read_to_string(process.join("status"))?;
    let status: BTreeMap<&str, &str> = status
        .lines()
        .filter_map(|line| line.split_once(":\t"))
        .collect();
    let is = |field: &str, wanted: &str| {
        let found = status.get(field).copied().unwrap_or_default();
        ensure!(found == wanted, "{field} is {found}");
        Ok(())
    };
    is("Uid", "65532\t65532\t65532\t65532")?;
    is("Gid", "65532\t65532\t65532\t65532")?;
    for set in ["CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb"] {
        is(set, "0000000000000000")?;
    }
    is("NoNewPrivs", "1")?;
    // The value 2 is a filter. The container runtime sets it.
    is("Seccomp", "2")?;
    let mounts = fs::read_to_string(process.join("mounts"))?;
    let root = mounts
        .lines()
        .find(|line| line.split(' ').nth(1) == Some("/"))
        .context("no root")?;
    let options = root.split(' ').nth(3).unwrap_or_default();
    ensure!(
        options.split(',').any(|option| option == "ro"),
        "its root can be written: {root}"
    );
    Ok(())
}
