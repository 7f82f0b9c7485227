//! `kubectl mimeo test`: rendered copies are compared with expected ones, without a cluster.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

use super::{Output, offline, render::FILES};

async fn test(folder: &Path, args: &[&str]) -> Result<Output> {
    let path = folder.to_str().context("a path in UTF-8")?;
    let args: Vec<&str> = ["test", path].iter().chain(args).copied().collect();
    offline(&args).await
}

/// The difference after the value of the Secret and a label have changed.
const DIFFERENCE: &str = "\
--- Secret/team-blue/registry
+++ Secret/team-blue/registry
@@ -1,6 +1,6 @@
 apiVersion: v1
 data:
-  token: '*** (7 bytes)'
+  token: '*** (7 bytes) changed'
 kind: Secret
 metadata:
   annotations:
@@ -8,7 +8,7 @@
     mimeo.dev/source: v1/Secret/platform/registry
     team: blue
   labels:
-    app: registry
+    app: registry-2
     app.kubernetes.io/managed-by: mimeo
     mimeo.dev/cluster-replication: registry
   name: registry
";

#[tokio::test]
async fn each_folder_is_compared_with_its_expected_file() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (one, two) = (folder.path().join("one"), folder.path().join("two"));
    for case in [&one, &two] {
        fs::create_dir(case)?;
        fs::write(case.join("all.yaml"), FILES)?;
    }
    let output = test(folder.path(), &[]).await?;
    assert_eq!(output.code, 1);
    assert!(
        output
            .stdout
            .contains("error: it has no expected.yaml; --update writes it"),
        "{}",
        output.stdout
    );

    let output = test(folder.path(), &["--update"]).await?;
    assert_eq!(output.code, 0, "{}", output.stdout);
    let rendered = fs::read_to_string(one.join("expected.yaml"))?;
    assert!(rendered.contains("token: aHVudGVyMg=="), "{rendered}");
    // The order of documents and fields does not matter.
    let namespace =
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: team-red, labels: {team: red}}\n";
    fs::write(one.join("red.yaml"), namespace)?;
    let red = rendered.replace("blue", "red");
    fs::write(one.join("expected.yaml"), format!("{red}---\n{rendered}"))?;
    let output = test(folder.path(), &[]).await?;
    assert_eq!(output.code, 0, "{}", output.stdout);
    assert!(output.stdout.contains("   2 copies\n"), "{}", output.stdout);
    assert!(output.stdout.ends_with("0 of 2 failed\n"));

    let changed = FILES
        .replace("hunter2", "hunter3")
        .replace("app: registry", "app: registry-2");
    fs::write(two.join("all.yaml"), changed)?;
    let output = test(folder.path(), &[]).await?;
    assert_eq!(output.code, 1);
    let report = format!(
        "FAIL   {}   1 copy\n{DIFFERENCE}1 of 2 failed\n",
        two.display()
    );
    assert!(output.stdout.ends_with(&report), "{}", output.stdout);

    // A file with lengths alone is compared by them.
    let output = test(&two, &["--update", "--mask"]).await?;
    assert_eq!(output.code, 0, "{}", output.stdout);
    let masked = fs::read_to_string(two.join("expected.yaml"))?;
    assert!(masked.contains("token: '*** (7 bytes)'"), "{masked}");
    assert_eq!(test(&two, &[]).await?.code, 0);
    Ok(())
}

#[tokio::test]
async fn a_case_fails_with_the_failures_of_its_rules_and_files() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let output = test(folder.path(), &[]).await?;
    assert_eq!(output.code, 2);
    assert!(
        output.stderr.contains("has no test case"),
        "{}",
        output.stderr
    );
    fs::write(folder.path().join("expected.yaml"), "")?;
    let rules = folder.path().join("all.yaml");
    let lost = FILES.replace(
        "namespace: platform, name: registry}",
        "namespace: platform, name: lost}",
    );
    fs::write(&rules, lost)?;
    let output = test(folder.path(), &[]).await?;
    assert_eq!(output.code, 1);
    assert!(
        output
            .stdout
            .contains("SourceNotFound: v1/Secret/platform/lost"),
        "{}",
        output.stdout
    );
    fs::write(&rules, "a: [")?;
    let output = test(folder.path(), &["-o", "json"]).await?;
    assert_eq!(output.code, 1);
    let outcome = output.json()?[0].take();
    let problem = outcome["problems"][0].as_str().context("a problem")?;
    assert!(problem.contains("all.yaml is no valid YAML"), "{problem}");
    Ok(())
}
