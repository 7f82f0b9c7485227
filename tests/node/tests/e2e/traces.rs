//! Traces go to a collector that is known by the name of a Service, as the documentation's example
//! has it: the programs are static, their image has nothing but them, and they look the name up all
//! the same.

use std::{
    net::{Ipv4Addr, UdpSocket},
    thread,
};

use anyhow::{Context, Result, ensure};
use mimeo_node_tests::Mimeo;
use mimeo_tests::{Collector, NAMESPACE, eventually, scenario::SOON};
use serde_json::{Value, json};

use crate::people::People;

/// This end of the cable to the node: pods reach it.
const HERE: Ipv4Addr = Ipv4Addr::new(10, 90, 0, 254);
/// As pods of any namespace call it.
const COLLECTOR: &str = "collector.monitoring";
const CLUSTER: &str = "svc.cluster.local";

#[tokio::test]
async fn spans_arrive_at_a_collector_that_is_known_by_its_name() -> Result<()> {
    let collector = Collector::start_at(HERE)?;
    know(&format!("{COLLECTOR}.{CLUSTER}"))?;
    // What a kubelet tells pods of a cluster's DNS.
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
    // The webhook answered reviews, the reconciler wrote.
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

/// Answers whoever asks for the address of this name that it is here, and that there is no other,
/// until the process ends.
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
                // Who doesn't get it asks again.
                let _ = socket.send_to(&answer, whose);
            }
        }
    });
    Ok(())
}

/// The answer to a query of one question, as RFC 1035 has it. None to anything else.
fn answer(query: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    let (head, question) = query.split_at_checked(12)?;
    let end = question.iter().position(|byte| *byte == 0)? + 1;
    let asked = question.get(..end)?.to_ascii_lowercase();
    let (what, question) = (question.get(end..end + 4)?, question.get(..end + 4)?);
    let (known, of_ipv4) = (asked == name, what == [0, 1, 0, 1]);
    // A response, recursion desired and available; no such name, if it is another one.
    let flags = [0x81, if known { 0x80 } else { 0x83 }];
    let address = known && of_ipv4;
    let counts = [0, 1, 0, u8::from(address), 0, 0, 0, 0];
    let mut answer = [head.get(..2)?, &flags, &counts, question].concat();
    if address {
        // Of the name in the question, an address, for five seconds.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4]);
        answer.extend(HERE.octets());
    }
    Some(answer)
}
