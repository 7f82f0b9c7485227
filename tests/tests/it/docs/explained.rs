//! Compares the output of `kubectl explain --recursive` for each kind with golden files. Users read
//! this output before any document. The fields of `metadata` are left out because Kubernetes
//! defines them. With `MIMEO_UPDATE_GOLDEN=1` (`make golden`) the test rewrites the files instead.

use std::{env, fs};

use anyhow::{Context, Result, ensure};
use mimeo_tests::{
    eventually,
    scenario::{SOON, kubectl},
};

use crate::repository::workspace;
use crate::stages::PLAIN;

/// Returns the output without the fields of `metadata` and without spaces at the ends of lines.
fn ours(told: &str) -> String {
    let (mut kept, mut of_metadata) = (String::new(), false);
    for line in told.lines() {
        of_metadata = line.starts_with("  metadata\t") || of_metadata && line.starts_with("    ");
        if !of_metadata || line.starts_with("  metadata\t") {
            kept.extend([line.trim_end(), "\n"]);
        }
    }
    kept
}

#[tokio::test]
async fn golden_files_have_what_kubectl_explains_of_each_kind() -> Result<()> {
    let control_plane = &PLAIN.get().await?.control_plane;
    let mut stale = Vec::new();
    for definition in mimeo_api::crds() {
        let kind = definition.spec.names.kind.to_lowercase();
        // The API server serves a kind a moment before it describes it.
        let told = eventually(SOON, format!("an explanation of {kind}"), || async {
            Ok(Some(ours(&kubectl(
                control_plane,
                ["explain", "--recursive", &*kind],
            )?)))
        })
        .await?;
        let path = workspace().join(format!("tests/tests/it/docs/explain/{kind}.txt"));
        if env::var_os("MIMEO_UPDATE_GOLDEN").is_some_and(|value| value == "1") {
            fs::write(&path, &told).with_context(|| path.display().to_string())?;
        }
        if fs::read_to_string(&path).with_context(|| path.display().to_string())? != told {
            stale.push(kind);
        }
    }
    ensure!(
        stale.is_empty(),
        "stale: {stale:?}; run `make golden` and look at the difference"
    );
    Ok(())
}
