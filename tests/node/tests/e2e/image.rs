//! The image: two static programs with the licences of their parts, for a user without permissions.
//! It is small, and the same wherever it is built.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use mimeo_node_tests::{Node, PROGRAMS, workspace};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The largest size on a node's disk, in bytes. The pulled image is compressed.
const LIMIT: usize = 25 << 20;
/// The licences of the linked crates.
const LICENSES: &str = "licenses.txt.gz";
/// The machine in the header of an ELF file.
const X86_64: usize = 62;
const AARCH64: usize = 183;

#[tokio::test]
async fn the_image_is_two_small_static_programs_for_nobody_in_particular() -> Result<()> {
    let size = Image::open(&Node::get().await?.image())?.of_two_static_programs("amd64", X86_64)?;
    eprintln!("{size} bytes");
    Ok(())
}

/// Compiles everything again, in another folder and without caches: `make e2e TESTS='--ignored
/// built_again'`.
#[tokio::test]
#[ignore = "compiles everything anew, which takes minutes"]
async fn built_again_from_another_folder_the_image_has_the_same_digest() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (context, again) = (
        folder.path().join("elsewhere"),
        folder.path().join("again.tar"),
    );
    fs::create_dir(&context)?;
    let files = Command::new("git")
        .current_dir(workspace())
        .args(["ls-files", "-z"])
        .output()?
        .stdout;
    let list = folder.path().join("files");
    fs::write(&list, files)?;
    let copy = "tar --null --files-from \"$0\" -c | tar -C \"$1\" --touch -x";
    run(Command::new("sh")
        .current_dir(workspace())
        .args(["-c", copy])
        .arg(&list)
        .arg(&context))?;
    build(&context, &again, "linux/amd64")?;
    let digest = |archive: &Path| run(Command::new(builder()).arg("digest").arg(archive));
    assert_eq!(digest(&Node::get().await?.image())?, digest(&again)?);
    Ok(())
}

/// Compiles everything for the other architecture: `make e2e TESTS='--ignored other_architecture'`.
#[tokio::test]
#[ignore = "compiles everything, which takes minutes"]
async fn for_the_other_architecture_the_image_is_made_of_the_same_two_programs() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let archive = folder.path().join("arm64.tar");
    build(&workspace(), &archive, "linux/arm64")?;
    Image::open(&archive)?
        .of_two_static_programs("arm64", AARCH64)
        .map(drop)
}

fn builder() -> PathBuf {
    workspace().join("tests/node/image.sh")
}

/// Builds without caches.
fn build(context: &Path, archive: &Path, platform: &str) -> Result<String> {
    run(Command::new(builder())
        .arg("mimeo")
        .arg(context)
        .arg(archive)
        .args(["fresh", platform]))
}

/// The unpacked archive of an image.
struct Image {
    folder: TempDir,
    manifest: Value,
}

impl Image {
    fn open(archive: &Path) -> Result<Self> {
        let mut image = Self {
            folder: tempfile::tempdir()?,
            manifest: Value::Null,
        };
        run(Command::new("tar")
            .arg("-C")
            .arg(image.folder.path())
            .arg("-xf")
            .arg(archive))?;
        let index: Value =
            serde_json::from_slice(&fs::read(image.folder.path().join("index.json"))?)?;
        image.manifest = serde_json::from_slice(&fs::read(image.blob(&index["manifests"][0])?)?)?;
        Ok(image)
    }

    fn blob(&self, descriptor: &Value) -> Result<PathBuf> {
        let digest = descriptor["digest"]
            .as_str()
            .and_then(|digest| digest.strip_prefix("sha256:"));
        Ok(self
            .folder
            .path()
            .join("blobs/sha256")
            .join(digest.context("no digest")?))
    }

    /// Checks the content of the image. Returns how many bytes a node pulls.
    fn of_two_static_programs(&self, architecture: &str, machine: usize) -> Result<u64> {
        let config: Value =
            serde_json::from_slice(&fs::read(self.blob(&self.manifest["config"])?)?)?;
        assert_eq!(config["config"]["User"], "65532:65532");
        assert_eq!(config["config"]["Entrypoint"], json!(["/mimeo-webhook"]));
        let labels = &config["config"]["Labels"];
        assert_eq!(
            labels["org.opencontainers.image.version"],
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(config["os"], "linux");
        assert_eq!(config["architecture"], architecture);

        let root = self.folder.path().join("root");
        fs::create_dir(&root)?;
        let mut pulled = 0;
        for layer in self.manifest["layers"].as_array().context("no layers")? {
            pulled += layer["size"].as_u64().context("no size")?;
            run(Command::new("tar")
                .arg("-C")
                .arg(&root)
                .arg("-xf")
                .arg(self.blob(layer)?))?;
        }
        let mut files: Vec<_> = fs::read_dir(&root)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<Result<_>>()?;
        files.sort();
        let programs = PROGRAMS.map(|program| program.name().to_owned());
        let mut all = [&programs[..], &[LICENSES.to_owned()]].concat();
        all.sort();
        assert_eq!(files, all);
        let mut unpacked = licenses_of_all_that_is_linked(&root.join(LICENSES), machine)?;
        for program in programs {
            let bytes = fs::read(root.join(&program))?;
            unpacked += bytes.len();
            assert_eq!(
                number(&bytes, 18, 2)?,
                machine,
                "{program} is for another machine"
            );
            ensure!(
                interpreter(&bytes)?.is_none(),
                "{program} wants {:?}",
                interpreter(&bytes)?
            );
        }
        ensure!(unpacked <= LIMIT, "{unpacked} bytes");
        Ok(pulled)
    }
}

/// Checks that the file names each linked crate and has the text of each licence. Returns the size
/// of the file.
fn licenses_of_all_that_is_linked(file: &Path, machine: usize) -> Result<usize> {
    let text = run(Command::new("gzip")
        .args(["--decompress", "--stdout"])
        .arg(file))?;
    for named in [
        "Apache License",
        "serde-1.",
        "==== ring-",
        "Rust Standard Library",
        "libc.a, of Debian's package",
    ] {
        ensure!(text.contains(named), "{LICENSES} has no {named}");
    }
    let target = if machine == X86_64 {
        "x86_64-unknown-linux-gnu"
    } else {
        "aarch64-unknown-linux-gnu"
    };
    let mut tree = Command::new("cargo");
    tree.current_dir(workspace()).args([
        "tree",
        "--locked",
        "--offline",
        "--edges",
        "normal",
        "--prefix",
        "none",
    ]);
    let tree = run(tree.args([
        "--target",
        target,
        "-p",
        "mimeo-webhook",
        "-p",
        "mimeo-reconciler",
    ]))?;
    for line in tree
        .lines()
        .filter(|line| !line.is_empty() && !line.contains("(/"))
    {
        let (name, version) = line.split_once(" v").context("no version")?;
        let version = version.split(' ').next().unwrap_or_default();
        ensure!(
            text.contains(&format!("\n{name}-{version}: ")),
            "{LICENSES} has no {name} {version}"
        );
    }
    Ok(fs::read(file)?.len())
}

fn run(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("failed to run {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the dynamic linker in the program header of type `PT_INTERP`. A static program has none.
fn interpreter(elf: &[u8]) -> Result<Option<String>> {
    ensure!(
        elf.starts_with(b"\x7fELF\x02\x01"),
        "no 64-bit little-endian ELF file"
    );
    let (table, entry, count) = (
        number(elf, 32, 8)?,
        number(elf, 54, 2)?,
        number(elf, 56, 2)?,
    );
    for header in (0..count).map(|index| table + index * entry) {
        if number(elf, header, 4)? == 3 {
            let (from, length) = (number(elf, header + 8, 8)?, number(elf, header + 32, 8)?);
            let name = elf.get(from..from + length).context("it ends too soon")?;
            return Ok(Some(String::from_utf8_lossy(name).into_owned()));
        }
    }
    Ok(None)
}

/// Reads a number of this width in bytes, at this place in the file.
fn number(elf: &[u8], at: usize, width: usize) -> Result<usize> {
    let bytes = elf.get(at..at + width).context("it ends too soon")?;
    Ok(bytes
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | usize::from(*byte)))
}
