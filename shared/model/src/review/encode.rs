//! A [`Verdict`] to bytes.

use json_patch::Patch;
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::{API_VERSION, KIND, Verdict};

/// The API server cuts warnings off once they have more characters than this in all. This module
/// counts bytes.
const WARNINGS_LENGTH: usize = 4096;
/// Longest warning, in bytes. Only a rule with long texts of its own has a longer one.
const WARNING_LENGTH: usize = 1024;
/// After how many seconds a client shall try again if the answer is 429. The messages of these
/// answers say the same.
const RETRY_SECONDS: u32 = 1;
/// Prefix of each warning and each refusal, so that users see their origin.
const PROGRAM: &str = "Mimeo: ";

/// The first bytes of a review. They have its uid, because API servers write the uid before any
/// text of a client.
const BEGIN: usize = 1 << 10;

/// The answer to a review that can't be decoded, from the received bytes. After a bare HTTP error,
/// the API server would apply the failure policy, and the user would see no reason.
pub fn encode_unread(begun: &[u8], verdict: &Verdict) -> Vec<u8> {
    let begin = String::from_utf8_lossy(&begun[..begun.len().min(BEGIN)]);
    let uid = begin
        .split_once(r#""uid""#)
        .and_then(|(_, rest)| rest.trim_start_matches([':', ' ']).strip_prefix('"'))
        .and_then(|rest| rest.split_once('"'));
    encode(uid.map_or("", |(uid, _)| uid), verdict)
}

/// The answer to the review `uid`.
pub fn encode(uid: &str, verdict: &Verdict) -> Vec<u8> {
    let mut response = json!({"uid": uid, "allowed": !matches!(verdict, Verdict::Deny { .. })});
    match verdict {
        Verdict::Allow { warnings } => add_warnings(&mut response, warnings),
        Verdict::Patch { patch, warnings } => {
            add_patch(&mut response, patch);
            add_warnings(&mut response, warnings);
        }
        Verdict::Deny {
            code,
            reason,
            message,
        } => {
            let message = format!("{PROGRAM}{message}");
            response["status"] =
                json!({"status": "Failure", "code": code, "reason": reason, "message": message});
            if *code == 429 {
                response["status"]["details"] = json!({"retryAfterSeconds": RETRY_SECONDS});
            }
        }
    }
    json!({"apiVersion": API_VERSION, "kind": KIND, "response": response})
        .to_string()
        .into_bytes()
}

fn add_patch(response: &mut Value, patch: &Patch) {
    if patch.0.is_empty() {
        return;
    }
    let bytes = serde_json::to_vec(patch)
        .expect("a patch is made of JSON values and has no other map keys than strings");
    response["patchType"] = "JSONPatch".into();
    response["patch"] = json!(ByteString(bytes));
}

fn add_warnings(response: &mut Value, warnings: &[String]) {
    let warnings = fit_warnings(warnings);
    if !warnings.is_empty() {
        response["warnings"] = json!(warnings);
    }
}

/// The warnings in the form that the API server passes on. They become headers, so each must be one
/// line. Warnings beyond the limit are dropped.
fn fit_warnings(warnings: &[String]) -> Vec<String> {
    let one_line = |text: &String| {
        let mut line = format!("{PROGRAM}{}", text.replace(char::is_control, " "));
        line.truncate(line.floor_char_boundary(WARNING_LENGTH));
        line
    };
    let mut length = 0;
    let fits = |line: &String| {
        length += line.len();
        length <= WARNINGS_LENGTH
    };
    let warnings = warnings.iter().filter(|text| !text.is_empty());
    warnings.map(one_line).take_while(fits).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn answered(uid: &str, verdict: &Verdict) -> Value {
        serde_json::from_slice(&encode(uid, verdict)).unwrap()
    }

    #[test]
    fn encode_answers_in_the_servers_words() {
        let warnings = vec!["take care".to_owned()];
        let patch: Patch =
            serde_json::from_value(json!([{"op": "add", "path": "/a", "value": 1}])).unwrap();
        for (verdict, want) in [
            (Verdict::ALLOW, json!({"uid": "u", "allowed": true})),
            (
                Verdict::Allow {
                    warnings: warnings.clone(),
                },
                json!({"uid": "u", "allowed": true, "warnings": ["Mimeo: take care"]}),
            ),
            (
                Verdict::Patch {
                    patch,
                    warnings: vec![],
                },
                json!({
                    "uid": "u", "allowed": true, "patchType": "JSONPatch",
                    "patch": "W3sib3AiOiJhZGQiLCJwYXRoIjoiL2EiLCJ2YWx1ZSI6MX1d",
                }),
            ),
            (
                Verdict::Patch {
                    patch: Patch::default(),
                    warnings,
                },
                json!({"uid": "u", "allowed": true, "warnings": ["Mimeo: take care"]}),
            ),
            (
                Verdict::Deny {
                    code: 403,
                    reason: "Forbidden",
                    message: "no".into(),
                },
                json!({
                    "uid": "u", "allowed": false,
                    "status": {"status": "Failure", "code": 403, "reason": "Forbidden", "message": "Mimeo: no"},
                }),
            ),
            (
                Verdict::Deny {
                    code: 429,
                    reason: "TooManyRequests",
                    message: "later".into(),
                },
                json!({
                    "uid": "u", "allowed": false,
                    "status": {
                        "status": "Failure", "code": 429, "reason": "TooManyRequests", "message": "Mimeo: later",
                        "details": {"retryAfterSeconds": 1},
                    },
                }),
            ),
        ] {
            let want = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": want});
            assert_eq!(answered("u", &verdict), want);
        }
    }

    #[test]
    fn warnings_fit_what_the_server_passes_on() {
        assert_eq!(
            fit_warnings(&["two\nlines".into(), String::new()]),
            ["Mimeo: two lines"]
        );
        let long = |length: usize| fit_warnings(&["ä".repeat(length)]);
        assert_eq!(long(300), [format!("Mimeo: {}", "ä".repeat(300))]);
        assert_eq!(long(600), [format!("Mimeo: {}", "ä".repeat(508))]);
        assert_eq!(fit_warnings(&vec!["x".repeat(256); 20]).len(), 15);
    }

    fn verdicts() -> impl Strategy<Value = Verdict> {
        let warnings = || prop::collection::vec(".{0,600}", 0..40);
        let patch = prop::collection::vec(("(/[a-z~]{0,3}){0,3}", ".{0,9}"), 0..3).prop_map(|operations| {
            let operation =
                |(path, value): (String, String)| json!({"op": "add", "path": path.replace('~', "~1"), "value": value});
            serde_json::from_value(operations.into_iter().map(operation).collect()).unwrap()
        });
        prop_oneof![
            warnings().prop_map(|warnings| Verdict::Allow { warnings }),
            (patch, warnings()).prop_map(|(patch, warnings)| Verdict::Patch { patch, warnings }),
            (400..600_u16, ".{0,99}").prop_map(|(code, message)| Verdict::deny(
                code,
                "Forbidden",
                message
            )),
        ]
    }

    proptest! {
        #[test]
        fn every_verdict_becomes_a_valid_review(uid in ".{0,40}", verdict in verdicts()) {
            let review = answered(&uid, &verdict);
            let response = &review["response"];
            prop_assert_eq!(response["uid"].as_str(), Some(&*uid));
            prop_assert_eq!(response["allowed"].as_bool(), Some(!matches!(verdict, Verdict::Deny { .. })));
            let warnings: Vec<String> = serde_json::from_value(response.get("warnings").cloned().unwrap_or(json!([]))).unwrap();
            prop_assert!(warnings.iter().all(|text| text.len() <= 1024 && !text.contains(char::is_control)));
            prop_assert!(warnings.iter().map(String::len).sum::<usize>() <= 4096);
            prop_assert_eq!(response.get("patch").is_some(), response.get("patchType").is_some());
            if let Verdict::Patch { patch, .. } = verdict && !patch.0.is_empty() {
                let ByteString(bytes) = serde_json::from_value(response["patch"].clone()).unwrap();
                prop_assert_eq!(serde_json::from_slice::<Patch>(&bytes).unwrap(), patch);
            }
        }
    }
}
