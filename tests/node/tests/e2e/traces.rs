//! Traces go to a collector under the name of a Service, as in the example of the documents. The
//! programs are static and their image contains nothing else, but they can resolve the name.

use std::{
    net::{Ipv4Addr, UdpSocket},
    thread,
};

use anyhow::{Context, Result, ensure};
use mimeo_node_tests::Mimeo;
use mimeo_tests::{Collector, NAMESPACE, eventually, scenario::SOON};
use serde_json::{Value, json};

use crate::people::People;

/// This end of the link to the node. Pods reach it.
const HERE: Ipv4Addr = Ipv4Addr::new(10, 90, 0, 254);
/// The collector's name for pods of any namespace.
const COLLECTOR: &str = "collector.monitoring";
const CLUSTER: &str = "svc.cluster.local";

#[tokio::test]
async fn spans_arrive_at_a_collector_that_is_known_by_its_name() -> Result<()> {
    let collector = Collector::start_at(HERE)?;
    know(&format!("{COLLECTOR}.{CLUSTER}"))?;
    // The DNS settings that a kubelet gives to pods.
    let dns = json!({
        "nameservers": [HERE], "searches": [format!("{NAMESPACE}.{CLUSTER}"), CLUSTER, "cluster.local"],
        "options": [{"name": "ndots", "value": "5"}],
    });
    let endpoint = json!({"name": "MIMEO_OTLP_ENDPOINT", "value": format!("http://{COLLECTOR}:{}", collector.port())});
    let patch: Value = json!([
        {"op": "add", "path": "/spec/template/spec/dnsPolicy", "value": "None"},
        {"op": "add", "path": "/spec/template/spec/dnsConfig", "value": dns},
        {"op": "add", "path": "/spec/template/spec/containers/0/env/-", "value": endpoint},
    ]);
    let patch = json!({"target": {"kind": "Deployment"}, "patch": patch.to_string()});
    let mimeo = Mimeo::kustomized(&json!({"patches": [patch]})).await?;
    let people = People::settle(&mimeo.client, "traced").await?;
    let names = [people.move_in().await?];
    people.rotate("second").await?;
    people.have(&names, "second").await?;
    // The webhook has answered reviews, and the reconciler has written copies.
    for words in [
        "mimeo-webhook",
        "mimeo-reconciler",
        "\"review\"",
        "\"write\"",
        &names[0],
    ] {
        eventually(SOON, format!("spans with {words}"), || async {
            ensure!(collector.text().contains(words), "none");
            Ok(Some(()))
        })
        .await?;
    }
    people.leave().await
}

/// Answers each DNS query for this name with this machine's address, until the process ends. For
/// any other name it answers that the name does not exist.
fn know(name: &str) -> Result<()> {
    let name: Vec<u8> = name
        .split('.')
        .flat_map(|label| {
            let length = u8::try_from(label.len()).unwrap_or_default();
            [length].into_iter().chain(label.bytes())
        })
        .chain([0])
        .collect();
    let socket = UdpSocket::bind((HERE, 53)).context("failed to answer for names")?;
    thread::spawn(move || {
        let mut query = [0; 512];
        while let Ok((length, whose)) = socket.recv_from(&mut query) {
            if let Some(answer) = query.get(..length).and_then(|query| answer(query, &name)) {
                // A client that does not get the answer asks again.
                let _ = socket.send_to(&answer, whose);
            }
        }
    });
    Ok(())
}

/// Returns the answer to a query of one question, in the format of RFC 1035. Any other query gets
/// no answer.
fn answer(query: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    let (head, question) = query.split_at_checked(12)?;
    let end = question.iter().position(|byte| *byte == 0)? + 1;
    let asked = question.get(..end)?.to_ascii_lowercase();
    let (what, question) = (question.get(end..end + 4)?, question.get(..end + 4)?);
    let (known, of_ipv4) = (asked == name, what == [0, 1, 0, 1]);
    // The flags: a response, recursion desired and available. For another name also: no such name.
    let flags = [0x81, if known { 0x80 } else { 0x83 }];
    let address = known && of_ipv4;
    let counts = [0, 1, 0, u8::from(address), 0, 0, 0, 0];
    let mut answer = [head.get(..2)?, &flags, &counts, question].concat();
    if address {
        // One address of the name in the question, valid for five seconds.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4]);
        answer.extend(HERE.octets());
    }
    Some(answer)
}
