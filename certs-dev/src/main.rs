//! Writes a development CA and a serving certificate to a folder. Tests use them, and so does a
//! webhook outside a cluster (`mimeo-webhook --cert-dir`). `mimeo-runtime` makes the certificates.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, ensure};
use clap::Parser;
use jiff::Timestamp;
use mimeo_runtime::certificates::{Bundle, Lifetimes, ServingNames};

const CA: &str = "ca.crt";
const FOR_ALL: u32 = 0o644;
const FOR_THE_OWNER: u32 = 0o600;

/// Writes a development CA and a serving certificate signed by it: ca.crt, ca.key, tls.crt and
/// tls.key.
///
/// Each file is replaced in one step, the private keys are readable by their owner only.
#[derive(Debug, Parser)]
#[command(name = "mimeo-certs-dev", version)]
struct Options {
    /// Folder to write to; made if it isn't there
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// DNS name or IP address that the certificate is for; may be repeated
    #[arg(long, value_name = "HOST", default_values = ["localhost", "127.0.0.1", "::1"])]
    host: Vec<String>,
    /// How long both certificates are valid, in days
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
    /// Replace a CA that is there already; clients that trust it won't trust the new one
    #[arg(long)]
    force: bool,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    write(&options, Timestamp::now())?;
    writeln!(io::stdout(), "{}", options.out.display())?;
    Ok(())
}

fn write(options: &Options, now: Timestamp) -> anyhow::Result<()> {
    let folder = &options.out;
    let there = fs::exists(folder.join(CA))
        .with_context(|| format!("failed to look into {}", folder.display()))?;
    ensure!(
        options.force || !there,
        "{} has a {CA} already; --force replaces it",
        folder.display()
    );
    let validity = Duration::from_hours(24 * u64::from(options.days));
    let lifetimes = Lifetimes {
        ca: validity,
        serving: validity,
        ..Lifetimes::default()
    };
    let bundle = Bundle::issue(&ServingNames::new(&options.host), &lifetimes, now)?;

    fs::create_dir_all(folder).with_context(|| format!("failed to make {}", folder.display()))?;
    let Bundle { ca, serving, .. } = &bundle;
    let files = [
        ("ca.key", ca.key.expose(), FOR_THE_OWNER),
        (CA, &*ca.certificate, FOR_ALL),
        ("tls.key", serving.key.expose(), FOR_THE_OWNER),
        ("tls.crt", &*serving.certificate, FOR_ALL),
    ];
    for (name, text, mode) in files {
        replace(folder, name, text, mode)
            .with_context(|| format!("failed to write {}", folder.join(name).display()))?;
    }
    Ok(())
}

/// Writes a temporary file beside the target and renames it, so that no reader sees half a file.
fn replace(folder: &Path, name: &str, text: &str, mode: u32) -> io::Result<()> {
    let new = folder.join(format!(".{name}.{}", std::process::id()));
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&new)?;
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| fs::rename(&new, folder.join(name)));
    if written.is_err() {
        // The caller needs the reason why the write failed, not the reason why the cleanup failed.
        let _ = fs::remove_file(&new);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn options(out: &Path, more: &[&str]) -> Options {
        let out = out.to_str().expect("a plain path");
        Options::try_parse_from(["mimeo-certs-dev", "--out", out].iter().chain(more))
            .expect("valid flags")
    }

    #[test]
    fn keys_are_the_owners_and_a_ca_is_replaced_by_force_only() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let out = root.path().join("certs");
        let read = |name: &str| fs::read_to_string(out.join(name)).expect("written");
        write(&options(&out, &[]), Timestamp::now()).expect("written");
        let mut names: Vec<_> = fs::read_dir(&out)
            .expect("a folder")
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["ca.crt", "ca.key", "tls.crt", "tls.key"]);
        for name in ["ca.key", "tls.key"] {
            let mode = fs::metadata(out.join(name))
                .expect("a file")
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        mimeo_runtime::tls::certified_key(read("tls.crt").as_bytes(), read("tls.key").as_bytes())
            .expect("a pair");

        let before = read(CA);
        write(&options(&out, &["--host", "example.org"]), Timestamp::now())
            .expect_err("a CA is there");
        assert_eq!(read(CA), before);
        write(
            &options(&out, &["--host", "example.org", "--days", "1", "--force"]),
            Timestamp::now(),
        )
        .expect("replaced");
        assert_ne!(read(CA), before);
    }

    #[test]
    fn no_days_are_refused() {
        assert!(Options::try_parse_from(["mimeo-certs-dev", "--out", "x", "--days", "0"]).is_err());
    }
}
