//! An upgrade from the previous commit's chart and programs to the present ones, and back, while
//! users work.

use anyhow::Result;
use mimeo_node_tests::Mimeo;
use serde_json::json;

use crate::people::People;

const AT_ONCE: usize = 4;

#[tokio::test]
async fn the_last_commit_is_upgraded_and_brought_back_under_load_and_nobody_notices() -> Result<()>
{
    // With this policy, the API server refuses a namespace if the webhook does not answer.
    // Otherwise the test would not notice it.
    let strict = json!({"webhook": {"namespacesFailurePolicy": "Fail"}});
    Mimeo::remove_any().await?;
    let before = Mimeo::by_the_last_commit_s_chart(&strict).await?;
    let people = People::settle(&before.client, "upgrade").await?;
    let both = async {
        let after = Mimeo::by_chart(&strict).await?;
        after.helm(&["rollback", "mimeo", "1"]).await?;
        after.ready().await
    };
    let (names, ()) = people.move_in_during(0, AT_ONCE, both).await?;
    people.rotate("second").await?;
    people.have(&names, "second").await?;
    let after_all = Mimeo::by_chart(&strict).await?;
    people.rotate("third").await?;
    people.have(&names, "third").await?;
    people.leave().await?;
    after_all.delete().await
}
