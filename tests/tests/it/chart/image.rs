//! The Dockerfile: the layer that caches dependencies knows every crate, and the image says what it
//! is.

use std::{collections::BTreeSet, fs};

use anyhow::{Context, Result, ensure};

use crate::repository::workspace;

fn dockerfile() -> Result<String> {
    fs::read_to_string(workspace().join("Dockerfile")).context("no Dockerfile")
}

/// Cargo refuses to build anything while the manifest of one member of the workspace is missing.
#[test]
fn the_layer_of_dependencies_has_the_manifest_of_every_crate() -> Result<()> {
    let workspace = fs::read_to_string(workspace().join("Cargo.toml"))?;
    let (_, members) = workspace.split_once("members = [").context("no members")?;
    let (members, _) = members.split_once(']').context("no end of the members")?;
    let members: BTreeSet<&str> = members.split('"').skip(1).step_by(2).collect();
    let text = dockerfile()?;
    let copied = text.lines().filter_map(|line| {
        let (from, to) = line.strip_prefix("COPY ")?.split_once("/Cargo.toml ")?;
        (to == format!("{from}/")).then_some(from)
    });
    assert_eq!(copied.collect::<BTreeSet<_>>(), members);
    let (_, stubs) = text.split_once("for member in ").context("no stubs")?;
    let (stubs, _) = stubs.split_once(';').context("no end of the stubs")?;
    let stubs: BTreeSet<&str> = stubs.split(' ').collect();
    ensure!(
        members.iter().all(|member| stubs.contains(member)
            || member.starts_with("shared/") && stubs.contains("shared/*")),
        "{stubs:?}"
    );
    // The sources come after the dependencies, or each change of a source compiles all of them.
    let (sources, dependencies) = (text.find("\nCOPY . ."), text.find("cargo clean"));
    ensure!(dependencies < sources, "the sources are copied first");
    // The crates of the two programs that the layer compiles from empty files.
    let (_, cleaned) = text
        .split_once("cargo clean")
        .context("nothing is cleaned")?;
    let (cleaned, _) = cleaned.split_once(';').context("no end of the command")?;
    for own in ["api", "model", "engine", "runtime", "webhook", "reconciler"] {
        ensure!(cleaned.contains(&format!("-p mimeo-{own}")), "{own} stays");
    }
    Ok(())
}

#[test]
fn the_image_has_an_entrypoint_and_the_labels_of_its_specification() -> Result<()> {
    let text = dockerfile()?;
    let (_, last) = text.split_once("\nFROM scratch\n").context("no image")?;
    ensure!(last.contains("\nENTRYPOINT [\"/mimeo-webhook\"]\n"));
    ensure!(last.contains(&format!("\nARG VERSION={}\n", env!("CARGO_PKG_VERSION"))));
    for label in [
        "authors",
        "base.name",
        "created",
        "description",
        "documentation",
        "licenses",
        "ref.name",
        "revision",
        "source",
        "title",
        "url",
        "vendor",
        "version",
    ] {
        let label = format!("org.opencontainers.image.{label}=\"");
        let (_, value) = last.split_once(&label).with_context(|| label.clone())?;
        ensure!(!value.starts_with('"'), "{label} is empty");
    }
    Ok(())
}
