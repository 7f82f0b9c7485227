//! The image: two static programs and nothing else, for a user without rights, small, and the same wherever it is built.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use mimeo_node_tests::{Node, PROGRAMS, workspace};
use serde_json::Value;

/// For what a node pulls.
const LIMIT: u64 = 25 << 20;

#[tokio::test]
async fn the_image_is_two_small_static_programs_for_nobody_in_particular() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let archive = Node::get().await?.image();
    run(Command::new("tar").arg("-C").arg(folder.path()).arg("-xf").arg(archive))?;
    let blob = |digest: &Value| -> Result<PathBuf> {
        let name = digest.as_str().and_then(|digest| digest.strip_prefix("sha256:")).context("no digest")?;
        Ok(folder.path().join("blobs/sha256").join(name))
    };
    let read = |path: &Path| -> Result<Value> { Ok(serde_json::from_slice(&fs::read(path)?)?) };
    let manifest = read(&blob(&read(&folder.path().join("index.json"))?["manifests"][0]["digest"])?)?;
    let config = read(&blob(&manifest["config"]["digest"])?)?;
    assert_eq!(config["config"]["User"], "65532:65532");
    assert_eq!(config["os"], "linux");

    let root = folder.path().join("root");
    fs::create_dir(&root)?;
    let mut size = 0;
    for layer in manifest["layers"].as_array().context("no layers")? {
        size += layer["size"].as_u64().context("no size")?;
        run(Command::new("tar").arg("-C").arg(&root).arg("-xf").arg(blob(&layer["digest"])?))?;
    }
    let mut files: Vec<_> = fs::read_dir(&root)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    files.sort();
    let mut programs = PROGRAMS.map(|program| program.name().to_owned());
    programs.sort();
    assert_eq!(files, programs);
    eprintln!("{size} bytes");
    ensure!(size <= LIMIT, "{size} bytes");
    for program in programs {
        let bytes = fs::read(root.join(&program))?;
        ensure!(interpreter(&bytes)?.is_none(), "{program} wants {:?}", interpreter(&bytes)?);
    }
    Ok(())
}

/// Compiles everything anew, in another folder and with none of what is cached: `make e2e TESTS='--ignored built_again'`.
#[tokio::test]
#[ignore = "compiles everything anew, which takes minutes"]
async fn built_again_from_another_folder_the_image_has_the_same_digest() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (context, again) = (folder.path().join("elsewhere"), folder.path().join("again.tar"));
    fs::create_dir(&context)?;
    let files = Command::new("git").current_dir(workspace()).args(["ls-files", "-z"]).output()?.stdout;
    let list = folder.path().join("files");
    fs::write(&list, files)?;
    let copy = "tar --null --files-from \"$0\" -c | tar -C \"$1\" --touch -x";
    run(Command::new("sh").current_dir(workspace()).args(["-c", copy]).arg(&list).arg(&context))?;
    let image = workspace().join("tests/node/image.sh");
    run(Command::new(&image).arg("mimeo").arg(&context).arg(&again).args(["fresh", "--fresh"]))?;
    let digest = |archive: &Path| run(Command::new(&image).arg("digest").arg(archive));
    assert_eq!(digest(&Node::get().await?.image())?, digest(&again)?);
    Ok(())
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("failed to run {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The dynamic linker that a program asks for, which a static one doesn't: what its program header of type `PT_INTERP` names.
fn interpreter(elf: &[u8]) -> Result<Option<String>> {
    ensure!(elf.starts_with(b"\x7fELF\x02\x01"), "no 64-bit little-endian ELF file");
    let number = |at: usize, width: usize| -> Result<usize> {
        let bytes = elf.get(at..at + width).context("it ends too soon")?;
        Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    };
    let (table, entry, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for header in (0..count).map(|index| table + index * entry) {
        if number(header, 4)? == 3 {
            let (from, length) = (number(header + 8, 8)?, number(header + 32, 8)?);
            let name = elf.get(from..from + length).context("it ends too soon")?;
            return Ok(Some(String::from_utf8_lossy(name).into_owned()));
        }
    }
    Ok(None)
}
