//! A [`Verdict`] to bytes.

use std::borrow::Cow;

use json_patch::Patch;
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::{API_VERSION, KIND, Verdict};
use crate::names::PREFIX;

/// The limits of the API server: it cuts off one warning, and drops warnings beyond a total. It
/// counts characters, and this module counts bytes.
const WARNING_LENGTH: usize = 256;
const WARNINGS_LENGTH: usize = 4096;
/// Shortest length to which a word of a warning is cut, in bytes.
const SHORTEST_WORD: usize = 16;
/// Prefix of each warning and each refusal, so that users see their origin.
const PROGRAM: &str = "Mimeo: ";
/// Replaces the middle of a shortened word.
const LEFT_OUT: &str = "...";

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
            retry_after_seconds,
        } => {
            let message = format!("{PROGRAM}{message}");
            response["status"] =
                json!({"status": "Failure", "code": code, "reason": reason, "message": message});
            if let Some(seconds) = retry_after_seconds {
                response["status"]["details"] = json!({"retryAfterSeconds": seconds});
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
    let one_line = |text: &String| text.replace(char::is_control, " ");
    let mut left = WARNINGS_LENGTH;
    let fit = warnings
        .iter()
        .filter(|text| !text.is_empty())
        .map(one_line);
    let fit = fit.map(|text| fit_warning(&format!("{PROGRAM}{text}")));
    let room = |text: &String| {
        let rest = left.checked_sub(text.len());
        left = rest.unwrap_or_default();
        rest.is_some()
    };
    fit.take_while(room).collect()
}

/// A warning within the API server's limit, with all of its advice. The longest words are names, so
/// they lose their middle. Mimeo's own labels stay complete, because users copy them.
fn fit_warning(text: &str) -> String {
    if text.len() <= WARNING_LENGTH {
        return text.to_owned();
    }
    let words: Vec<&str> = text.split(' ').take(WARNING_LENGTH).collect();
    let of_length = |most| {
        let shortened = words.iter().map(|word| {
            if word.starts_with(PREFIX) {
                (*word).into()
            } else {
                shorten(word, most)
            }
        });
        shortened.collect::<Vec<Cow<'_, str>>>().join(" ")
    };
    let fitting = (SHORTEST_WORD..WARNING_LENGTH)
        .rev()
        .map(of_length)
        .find(|text| text.len() <= WARNING_LENGTH);
    fitting.unwrap_or_else(|| shorten(text, WARNING_LENGTH).into_owned())
}

/// The beginning and the end of a text, at most `most` bytes.
fn shorten(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return text.into();
    }
    let kept = most - LEFT_OUT.len();
    let (start, end) = (
        text.floor_char_boundary(kept.div_ceil(2)),
        text.ceil_char_boundary(text.len() - kept / 2),
    );
    format!("{}{LEFT_OUT}{}", &text[..start], &text[end..]).into()
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
                    retry_after_seconds: None,
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
                    retry_after_seconds: Some(1),
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
        let long = fit_warnings(&["ä".repeat(300)]);
        assert!(
            long[0].len() <= 256 && long[0].starts_with("Mimeo: ää") && long[0].ends_with("ää"),
            "{long:?}"
        );
        assert_eq!(fit_warnings(&vec!["x".repeat(256); 20]).len(), 16);
    }

    #[test]
    fn long_names_lose_their_middle_and_the_advice_stays_whole() {
        let name = |letter: &str| format!("{}-end", letter.repeat(249));
        let advice = "label it mimeo.dev/aggregate-to-mimeo-reconciler=true and try again";
        let one = fit_warning(&format!("Mimeo: Secret {} is odd: {advice}", name("a")));
        assert!(
            one.len() == 256
                && one.starts_with("Mimeo: Secret aaa")
                && one.contains("aaa-end is odd:"),
            "{one}"
        );
        assert!(one.ends_with(advice), "{one}");
        let many = ["a", "b", "c", "d"].map(name).join(", ");
        let many = fit_warning(&format!("Mimeo: Secrets {many} are odd: {advice}"));
        assert!(
            many.len() <= 256 && many.contains("aaaaaaa-end, bbbbbbb") && many.ends_with(advice),
            "{many}"
        );
        // The limit has no room for so many words, even if they are short.
        assert_eq!(fit_warning(&"x ".repeat(200)).len(), 256);
        assert!(fit_warning(&format!("{PREFIX}{}", "x".repeat(300))).len() <= 256);
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
            (400..600_u16, ".{0,99}", prop::option::of(0..9_u32)).prop_map(
                |(code, message, retry_after_seconds)| {
                    Verdict::Deny {
                        code,
                        reason: "Forbidden",
                        message,
                        retry_after_seconds,
                    }
                }
            ),
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
            prop_assert!(warnings.iter().all(|text| text.len() <= 256 && !text.contains(char::is_control)));
            prop_assert!(warnings.iter().map(String::len).sum::<usize>() <= 4096);
            prop_assert_eq!(response.get("patch").is_some(), response.get("patchType").is_some());
            if let Verdict::Patch { patch, .. } = verdict && !patch.0.is_empty() {
                let ByteString(bytes) = serde_json::from_value(response["patch"].clone()).unwrap();
                prop_assert_eq!(serde_json::from_slice::<Patch>(&bytes).unwrap(), patch);
            }
        }
    }
}
