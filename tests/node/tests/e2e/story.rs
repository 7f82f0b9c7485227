//! The steps of `make demo` with the pods of an installation: pod gate, transformation, drift,
//! rotation, clean-up.

use std::time::Duration;

use anyhow::{Result, ensure};
use mimeo_node_tests::Mimeo;
use mimeo_tests::Program;

#[tokio::test]
async fn the_demo_s_story_holds_on_a_node() -> Result<()> {
    let mimeo = Mimeo::by_kustomize().await?;
    let kubeconfig = mimeo.node.kubeconfig();
    let demo = Program::new("mimeo-demo")
        .arg("--on")
        .arg(kubeconfig.display().to_string());
    let mut demo = demo.start()?;
    let ended = demo.wait(Duration::from_mins(5)).await?;
    ensure!(ended.success(), "{}", demo.log()?);
    mimeo
        .node
        .kubectl(["delete", "namespace", "platform"])
        .await
        .map(drop)
}
