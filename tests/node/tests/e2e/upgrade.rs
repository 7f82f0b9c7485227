//! From the last commit's manifests to these and back, while people work. The programs are the same before and after.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use mimeo_node_tests::Mimeo;

use crate::people::People;

const AT_ONCE: usize = 4;

#[tokio::test]
async fn the_last_commit_s_manifests_are_upgraded_and_brought_back_under_load_and_nobody_notices() -> Result<()> {
    let before = Mimeo::of_the_last_commit().await?;
    let people = People::settle(&before.client, "upgrade").await?;
    let over = AtomicBool::new(false);
    let changed = async {
        let both = async {
            let after = Mimeo::by_kustomize().await?;
            before.apply(&[]).await?;
            before.ready().await?;
            Ok(after)
        };
        let both = both.await;
        over.store(true, Ordering::Relaxed);
        both
    };
    // Every refusal, and every pod before its copy, is an error.
    let (names, after) = tokio::try_join!(people.keep_moving_in(0, AT_ONCE, &over), changed)?;
    people.rotate("second").await?;
    people.have(&names, "second").await?;
    people.leave().await?;
    after.apply(&[]).await
}
