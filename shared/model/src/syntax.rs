//! The syntax that the API server accepts for names, labels, annotations and finalizers.
//!
//! Mimeo checks it when a rule is stored, and names the field. Otherwise each write of a copy would
//! fail. A message is the end of a sentence that begins with the checked name: "must not be empty".

use k8s_openapi::ByteString;
use serde_json::from_value;

/// Longest name of a namespace, longest label value and longest name part of a key, in bytes.
const LABEL_LENGTH: usize = 63;
/// Longest name of an object and longest domain part of a key, in bytes.
const SUBDOMAIN_LENGTH: usize = 253;
/// Longest key of a label or an annotation, in bytes: domain, slash and name.
const KEY_LENGTH: usize = SUBDOMAIN_LENGTH + 1 + LABEL_LENGTH;

/// Most bytes of all annotations of one object, keys and values together.
pub(crate) const ANNOTATIONS_SIZE: usize = 256 * 1024;

type Checked = Result<(), String>;
/// One of the checks of this file.
pub(crate) type Check = fn(&str) -> Checked;

fn length(text: &str, most: usize) -> Checked {
    match text.len() {
        0 => Err("must not be empty".into()),
        n if n > most => Err(format!("must not be longer than {most} characters")),
        _ => Ok(()),
    }
}

/// True if all bytes of `text` pass `inner`, and the first and the last byte pass `outer`.
fn consists(text: &str, outer: fn(u8) -> bool, inner: fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    bytes.iter().all(|&b| inner(b))
        && bytes.first().is_some_and(|&b| outer(b))
        && bytes.last().is_some_and(|&b| outer(b))
}

/// Checks the length of a text. `why` is the end of the message if the text is invalid otherwise.
fn valid(text: &str, most: usize, is_valid: bool, why: &str) -> Checked {
    length(text, most)?;
    if is_valid {
        Ok(())
    } else {
        Err(format!("{text:?} {why}"))
    }
}

fn lower(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

fn alphanumeric(b: u8) -> bool {
    b.is_ascii_alphanumeric()
}

fn word(b: u8) -> bool {
    alphanumeric(b) || matches!(b, b'-' | b'_' | b'.')
}

fn wildcard(b: u8) -> bool {
    matches!(b, b'*' | b'?')
}

fn is_dns_label(text: &str) -> bool {
    consists(text, lower, |b| lower(b) || b == b'-')
}

/// Checks the name of a namespace (DNS-1123 label).
pub(crate) fn dns_label(text: &str) -> Checked {
    let why = "is not a valid DNS label: use lower-case letters, digits and \"-\", with a letter or \
        digit at both ends";
    valid(text, LABEL_LENGTH, is_dns_label(text), why)
}

/// Checks the name of an object (DNS-1123 subdomain).
pub(crate) fn dns_subdomain(text: &str) -> Checked {
    let is_valid = text.split('.').all(is_dns_label);
    let why = "is not a valid DNS name: use lower-case letters, digits, \"-\" and \".\", with a \
        letter or digit at both ends";
    valid(text, SUBDOMAIN_LENGTH, is_valid, why)
}

/// Checks the name of an object of the API group `group`. Names are DNS names, except for the RBAC
/// kinds. These may have any name that fits into one path segment (`system:node`).
pub(crate) fn object_name(group: &str, text: &str) -> Checked {
    if group != "rbac.authorization.k8s.io" {
        return dns_subdomain(text);
    }
    length(text, SUBDOMAIN_LENGTH)?;
    path_segment(text)
}

/// Checks a name of any kind. The API server accepts every text that is one path segment.
pub(crate) fn path_segment(text: &str) -> Checked {
    if matches!(text, "" | "." | "..")
        || text
            .chars()
            .any(|c| matches!(c, '/' | '%') || c.is_control())
    {
        return Err(format!(
            "{text:?} is not a valid name: it must not be \".\" or \"..\", and not contain \"/\", \"%\" or control characters"
        ));
    }
    Ok(())
}

/// Checks a kind: letters, digits and "-", beginning with a letter.
pub(crate) fn kind(text: &str) -> Checked {
    let is_valid = consists(text, alphanumeric, |b| alphanumeric(b) || b == b'-')
        && !text.starts_with(|c: char| c.is_ascii_digit());
    let why = "is not a valid kind: use letters and digits, beginning with a letter, as in \
        ConfigMap";
    valid(text, LABEL_LENGTH, is_valid, why)
}

/// Checks a label key, an annotation key or a finalizer: a name, with an optional domain and slash
/// before it.
pub(crate) fn qualified_name(text: &str) -> Checked {
    length(text, KEY_LENGTH)?;
    let name = match text.split_once('/') {
        None => text,
        Some((domain, name)) => {
            dns_subdomain(domain)
                .map_err(|_| format!("{text:?} must have a DNS name before the \"/\""))?;
            name
        }
    };
    let is_valid = name.len() <= LABEL_LENGTH && consists(name, alphanumeric, word);
    let why = "must have a name of 1 to 63 letters, digits, \"-\", \"_\" and \".\", a letter or \
        digit at both ends";
    valid(text, KEY_LENGTH, is_valid, why)
}

/// Checks an annotation key. It is like a label key, but the domain may have capitals, too.
pub(crate) fn annotation_key(text: &str) -> Checked {
    qualified_name(&text.to_ascii_lowercase())
}

/// Checks a label value. It may be empty.
pub(crate) fn label_value(text: &str) -> Checked {
    if text.is_empty() {
        return Ok(());
    }
    let why = "is not a valid label value: use letters, digits, \"-\", \"_\" and \".\", with a letter \
        or digit at both ends";
    valid(text, LABEL_LENGTH, consists(text, alphanumeric, word), why)
}

/// True if the text is base64 with padding, and with any line ends in it. Unlike the API server this
/// refuses unused bits that are not zero. No encoder writes such bits.
pub(crate) fn is_base64(text: &str) -> bool {
    let text = text.replace(['\r', '\n'], "");
    from_value::<ByteString>(text.into()).is_ok()
}

/// Checks a finalizer for a rule. Only the API server uses finalizers without a domain.
pub(crate) fn finalizer(text: &str) -> Checked {
    qualified_name(text)?;
    let why = "must have a domain, as in example.com/name";
    valid(text, KEY_LENGTH, text.contains('/'), why)
}

/// Checks the type of a Secret. The API server accepts any text, but this check refuses obvious
/// mistakes.
pub(crate) fn secret_type(text: &str) -> Checked {
    let is_valid = consists(text, alphanumeric, |b| word(b) || b == b'/');
    let why = "is not a valid type: use letters, digits, \"-\", \"_\", \".\" and \"/\", with a letter \
        or digit at both ends";
    valid(text, SUBDOMAIN_LENGTH, is_valid, why)
}

/// Checks a glob for names of namespaces.
pub(crate) fn namespace_glob(text: &str) -> Checked {
    let outer = |b| lower(b) || wildcard(b);
    let is_valid = consists(text, outer, |b| lower(b) || wildcard(b) || b == b'-');
    let why = "is not a valid name of a namespace: use lower-case letters, digits and \"-\", and as \
        wildcards \"*\" and \"?\"";
    valid(text, LABEL_LENGTH, is_valid, why)
}

/// Checks a key of a Secret's or a ConfigMap's data (`IsConfigMapKey` of Kubernetes).
pub(crate) fn data_key(text: &str) -> Checked {
    let is_valid = text.bytes().all(word) && text != "." && !text.starts_with("..");
    let why = "is not a valid key: use letters, digits, \"-\", \"_\" and \".\", and do not begin with \
        \"..\"";
    valid(text, SUBDOMAIN_LENGTH, is_valid, why)
}

/// True if a glob is fast to compare with many names: its ends are compared once, and at most one
/// part is searched for, which has no `?`.
pub(crate) fn is_quick_glob(text: &str) -> bool {
    match text.split('*').collect::<Vec<_>>()[..] {
        [_] | [_, _] => true,
        [_, middle, _] => !middle.contains('?'),
        _ => false,
    }
}

/// Checks a glob for keys or for names of objects. Mimeo compares it with every key of a source at
/// each change of the source, and with the names of many copies.
fn quick_glob(text: &str) -> Checked {
    if is_quick_glob(text) {
        Ok(())
    } else {
        Err("must not have more than two *, nor a ? between them".into())
    }
}

/// Checks a glob for names of objects.
pub(crate) fn object_glob(text: &str) -> Checked {
    quick_glob(text)?;
    let why = "is not the name of an object, in which * stands for any characters and ? for one";
    valid(text, SUBDOMAIN_LENGTH, !text.contains(['/', '%']), why)
}

/// Checks a glob for keys of a Secret's or a ConfigMap's data.
pub(crate) fn data_glob(text: &str) -> Checked {
    quick_glob(text)?;
    let is_valid = text.bytes().all(|b| word(b) || wildcard(b));
    let why = "is not a valid key: use letters, digits, \"-\", \"_\" and \".\", and as wildcards \"*\" \
        and \"?\"";
    valid(text, SUBDOMAIN_LENGTH, is_valid, why)
}

/// Checks a glob for keys of labels or annotations.
pub(crate) fn key_glob(text: &str) -> Checked {
    quick_glob(text)?;
    let is_valid = text.bytes().all(|b| word(b) || wildcard(b) || b == b'/');
    let why = "is not a valid key: use letters, digits, \"-\", \"_\", \".\" and \"/\", and as wildcards \
        \"*\" and \"?\"";
    valid(text, KEY_LENGTH, is_valid, why)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use super::*;

    #[track_caller]
    fn table(check: fn(&str) -> Checked, good: &[&str], bad: &[&str]) {
        for text in good {
            assert_eq!(check(text), Ok(()), "{text:?}");
        }
        for text in bad {
            assert!(check(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn names() {
        let long = "a".repeat(64);
        table(
            dns_label,
            &["a", "a-b", "0", &long[1..]],
            &["", "-a", "a-", "a.b", "A", "a_b", "ä", &long],
        );
        let very_long = "a.".repeat(126) + "abc";
        table(
            dns_subdomain,
            &["a", "a.b", "a-b.c", &long, &very_long[2..]],
            &["", ".a", "a.", "a..b", "A", "a/b", &very_long],
        );
        table(|text| object_name("", text), &["a.b"], &["system:node"]);
        table(
            |text| object_name("rbac.authorization.k8s.io", text),
            &["system:node", "A b"],
            &["", ".", "..", "a/b", "a%b", "a\nb"],
        );
        table(
            kind,
            &["Secret", "a", "X2"],
            &["", "2X", "A b", "A/B", "-A", "A-"],
        );
    }

    #[test]
    fn keys_and_values() {
        let long = "a".repeat(64);
        table(
            qualified_name,
            &["a", "A_b.c", "example.com/a", "a/B"],
            &["", "/a", "a/", "a/b/c", "A/b", "-a", "a-", "a b", &long],
        );
        table(annotation_key, &["Example.com/A"], &["", "a/", "a b"]);
        table(
            label_value,
            &["", "a", "A_b.c-d", &long[1..]],
            &["a b", "-a", "a.", "a/b", &long],
        );
        let base64 = |text: &str| is_base64(text).then_some(()).ok_or_else(|| text.to_owned());
        table(
            base64,
            &["", "YQ==", "YWI=", "YWJj", "YW\r\nE=", "YQ=\n=\n", "+/+/"],
            &[
                "YQ", "YQ=", "YQ===", "=", "====", "Y=Q=", "YQ==YQ==", "hunter2!", "-_-_", "YW E=",
                "äää",
            ],
        );
        table(
            finalizer,
            &["example.com/a"],
            &["", "orphan", "foregroundDeletion", "a/", "/a"],
        );
        table(
            secret_type,
            &[
                "Opaque",
                "kubernetes.io/tls",
                "will-be-modified",
                "a.b/c.v1",
            ],
            &["", "a b", "/a", "a\n", "a:b"],
        );
    }

    #[test]
    fn globs() {
        table(
            namespace_glob,
            &["a", "team-*", "*", "?", "a?-*b"],
            &["", "a.b", "A*", "-*", "[a]", "a b"],
        );
        table(
            data_glob,
            &["*", "tls.*", "a?_-.b"],
            &["", "a/b", "a b", "[a]"],
        );
        table(
            data_key,
            &["tls.crt", "A_b-1", ".x", "a..b"],
            &["", ".", "..", "..a", "a/b", "a*", "ä"],
        );
        table(
            key_glob,
            &["*", "*.example.com/*", "a/b?", "A_b"],
            &["", "a b", "[a]", "{a,b}"],
        );
    }
}
