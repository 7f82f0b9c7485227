//! `transform.jsonPatch`: RFC 6902, and the parts of a copy that it may change.

use serde_json::{Map, Value, json};

use super::{
    render::{Content, Place, Withheld, fill},
    server::Res,
    spec::{Operation, Piece, Text, Worth},
    tables::{self, Part},
};

/// The parts of a path, without escapes.
fn tokens(path: &str) -> Vec<String> {
    path.split('/')
        .skip(1)
        .map(|token| token.replace("~1", "/").replace("~0", "~"))
        .collect()
}

/// Returns the part of a copy that a path leads to.
pub fn part(path: &str) -> Part {
    let tokens = tokens(path);
    match tokens.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["apiVersion" | "kind" | "status", ..] => Part::Identity,
        ["type" | "stringData", ..] => Part::Type,
        ["metadata", "labels" | "annotations", key, ..]
            if key.starts_with("mimeo.dev/") || key == "app.kubernetes.io/managed-by" =>
        {
            Part::Mark
        }
        ["metadata", "labels" | "annotations", _, ..] => Part::Note,
        ["metadata", ..] => Part::Metadata,
        ["data", ..] => Part::Data,
        _ => Part::Other,
    }
}

/// True if the whole rule is refused because of this operation.
pub fn refused(operation: &Operation, secrets: bool) -> bool {
    let parts: Vec<Part> = operation.paths().into_iter().map(part).collect();
    let allowed = parts.iter().all(|part| tables::may_patch(*part, secrets));
    // The data of a Secret may not leave `data`.
    let leaks = secrets && matches!(parts[..], [Part::Data, to] if to != Part::Data);
    let texts = || operation.worth().into_iter().flat_map(Worth::texts);
    let pieces = texts().flat_map(|text| &text.0);
    let test = matches!(operation, Operation::Test(..));
    // The data of a Secret is base64.
    let encoded = secrets && !test && parts == [Part::Data];
    let unencoded = encoded && texts().any(|text| !is_plain(text) || !is_base64(&text.text()));
    let bad = |piece: &Piece| matches!(piece, Piece::Unknown(_)) || test && of_namespace(piece);
    !allowed || leaks || unencoded || { pieces }.any(bad)
}

fn is_plain(text: &Text) -> bool {
    let plain = |piece: &Piece| matches!(piece, Piece::Text(_) | Piece::Literal(_));
    text.0.iter().all(plain)
}

/// True for groups of four, the last one padded.
fn is_base64(text: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/';
    let data = text
        .strip_suffix("==")
        .or(text.strip_suffix('='))
        .unwrap_or(text);
    text.len().is_multiple_of(4) && data.bytes().all(known)
}

fn of_namespace(piece: &Piece) -> bool {
    matches!(piece, Piece::NamespaceName | Piece::NamespaceLabel(_))
}

fn differs(text: &Text) -> bool {
    text.0.iter().any(of_namespace)
}

/// True if a list of the result has variables of the namespace in it, unless a later operation
/// concerns the same path.
pub fn leaves_a_varying_list(operations: &[Operation]) -> bool {
    operations.iter().enumerate().any(|(at, operation)| {
        let again = |later: &Operation| later.paths().last() == operation.paths().last();
        varies_in_a_list(operation) && !operations[at + 1..].iter().any(again)
    })
}

/// True if the operation puts variables of the namespace into a list.
fn varies_in_a_list(operation: &Operation) -> bool {
    fn within(worth: &Worth, list: bool) -> bool {
        match worth {
            Worth::Text(text) => list && differs(text),
            Worth::Number(_) => false,
            Worth::List(items) => items.iter().any(|item| within(item, true)),
            Worth::Fields(fields) => fields.iter().any(|(_, worth)| within(worth, list)),
        }
    }
    let item = operation
        .paths()
        .iter()
        .any(|path| path.ends_with("/-") || path.ends_with("/0"));
    operation.worth().is_some_and(|worth| within(worth, item))
}

/// The copy as a patch sees it, without its type and its `immutable` field. Of the metadata it has
/// only labels and annotations. Both exist, even if they are empty.
fn document(copy: &Content, res: Res) -> Value {
    let mut parts = json!({"metadata": {"labels": {}, "annotations": {}}});
    if res == Res::Widget {
        parts["spec"] = json!({});
    }
    for (path, value) in copy {
        let Some((part, key)) = path.split_once('/') else {
            continue;
        };
        let part = match part {
            "label" => &mut parts["metadata"]["labels"],
            "ann" => &mut parts["metadata"]["annotations"],
            part => &mut parts[part],
        };
        part[key] = value.as_str().into();
    }
    parts
}

/// The fields in the form of the server in memory.
fn fields(document: &Value) -> Content {
    let empty = Map::new();
    let part = |pointer: &str| {
        document
            .pointer(pointer)
            .and_then(Value::as_object)
            .unwrap_or(&empty)
            .clone()
    };
    let parts = [
        ("label", part("/metadata/labels")),
        ("ann", part("/metadata/annotations")),
        ("data", part("/data")),
        ("binaryData", part("/binaryData")),
        ("spec", part("/spec")),
    ];
    let text = |value: &Value| {
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    };
    let fields = parts.iter().flat_map(|(part, fields)| {
        fields
            .iter()
            .map(move |(key, value)| (format!("{part}/{key}"), text(value)))
    });
    fields.collect()
}

/// Returns the copy after the patch, without Mimeo's labels and annotations. `source` is its
/// source.
pub fn patched(
    operations: &[Operation],
    res: Res,
    source: &Content,
    copy: Content,
    place: &Place<'_>,
) -> Result<Content, Withheld> {
    if operations.is_empty() {
        return Ok(copy);
    }
    for part in ["data", "binaryData"] {
        let has = |content: &Content| {
            content
                .keys()
                .any(|path| path.starts_with(&format!("{part}/")))
        };
        let concerned = operations
            .iter()
            .flat_map(Operation::paths)
            .any(|path| tokens(path)[0] == part);
        if concerned && has(source) && !has(&copy) {
            return Err(Withheld::Untold(
                "whether a part is there of which nothing is left",
            ));
        }
    }
    let mut whole = document(&copy, res);
    for operation in operations {
        let worth = operation
            .worth()
            .map(|worth| worth.map(&|text| fill(text, place)))
            .transpose()?;
        done(&mut whole, operation, worth).ok_or(Withheld::Unfit)?;
    }
    let mut after = fields(&whole);
    after.extend(
        copy.into_iter()
            .filter(|(path, _)| ["type", "immutable"].contains(&path.as_str())),
    );
    Ok(after)
}

fn done(whole: &mut Value, operation: &Operation, worth: Option<Value>) -> Option<()> {
    match operation {
        Operation::Add(path, _) => add(whole, &tokens(path), worth?),
        Operation::Replace(path, _) => {
            remove(whole, &tokens(path))?;
            // An item of a list returns to its former place.
            add(whole, &tokens(path), worth?)
        }
        Operation::Remove(path) => remove(whole, &tokens(path)).map(drop),
        Operation::Move(from, path) => {
            let (from, path) = (tokens(from), tokens(path));
            if path.len() > from.len() && path.starts_with(&from) {
                return None;
            }
            let taken = remove(whole, &from)?;
            add(whole, &path, taken)
        }
        Operation::Copy(from, path) => {
            let taken = at(whole, &tokens(from))?.clone();
            add(whole, &tokens(path), taken)
        }
        Operation::Test(path, _) => (*at(whole, &tokens(path))? == worth?).then_some(()),
    }
}

fn at<'a>(whole: &'a mut Value, path: &[String]) -> Option<&'a mut Value> {
    path.iter().try_fold(whole, |value, token| match value {
        Value::Object(fields) => fields.get_mut(token),
        Value::Array(items) => items.get_mut(token.parse::<usize>().ok()?),
        _ => None,
    })
}

fn add(whole: &mut Value, path: &[String], worth: Value) -> Option<()> {
    let (last, parent) = path.split_last()?;
    match at(whole, parent)? {
        Value::Object(fields) => drop(fields.insert(last.clone(), worth)),
        Value::Array(items) => {
            let place = if last == "-" {
                items.len()
            } else {
                last.parse().ok()?
            };
            if place > items.len() {
                return None;
            }
            items.insert(place, worth);
        }
        _ => return None,
    }
    Some(())
}

fn remove(whole: &mut Value, path: &[String]) -> Option<Value> {
    let (last, parent) = path.split_last()?;
    match at(whole, parent)? {
        Value::Object(fields) => fields.remove(last),
        Value::Array(items) => {
            let place = last.parse::<usize>().ok()?;
            (place < items.len()).then(|| items.remove(place))
        }
        _ => None,
    }
}
