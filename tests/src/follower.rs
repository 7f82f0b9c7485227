//! Follows the stream behind the reconciler's page, as the page does. Keeps the present state, and
//! the whole stream as text.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    net::TcpStream,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::planted;

/// The data that one stream has sent.
pub struct Follower {
    stream: BufReader<TcpStream>,
    /// The whole stream, unchanged.
    pub text: String,
    /// The last event about the replica.
    pub replica: Value,
    /// The last event about held deletions of rules that no longer exist.
    pub held: Value,
    rules: BTreeMap<String, Value>,
    namespaces: BTreeMap<String, BTreeMap<String, Place>>,
}

/// State of a rule in a namespace.
#[derive(Debug, Clone, PartialEq)]
pub struct Place {
    /// Number of the state, as in the page.
    pub state: u64,
    /// The reason, if there is one.
    pub reason: Option<String>,
    /// Start of this state, in seconds since 1970.
    pub since: i64,
}

/// Number of the state Synced.
pub const SYNCED: u64 = 0;
/// Number of the state Failed.
pub const FAILED: u64 = 4;

impl Follower {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self {
            stream: BufReader::new(stream),
            text: String::new(),
            replica: Value::Null,
            held: Value::Null,
            rules: BTreeMap::new(),
            namespaces: BTreeMap::new(),
        }
    }

    /// State of the rule with this name in a namespace.
    pub fn place(&self, rule: &str, namespace: &str) -> Option<&Place> {
        let (id, _) = self.rules.iter().find(|(_, told)| told["name"] == rule)?;
        self.namespaces.get(namespace)?.get(id)
    }

    /// Data of the rule with this name.
    pub fn rule(&self, name: &str) -> Option<&Value> {
        self.rules.values().find(|told| told["name"] == name)
    }

    /// Reads events until `is` returns true.
    ///
    /// # Errors
    /// The stream ends or is silent, or `deadline` has passed.
    pub fn until(
        &mut self,
        deadline: Duration,
        what: &str,
        is: impl Fn(&Self) -> bool,
    ) -> Result<()> {
        let until = Instant::now() + deadline;
        while !is(self) {
            if Instant::now() > until {
                bail!(
                    "{what}: not within {deadline:?}; {:?}, {:?}",
                    self.rules,
                    self.namespaces
                );
            }
            self.next()
                .with_context(|| format!("still waiting for: {what}"))?;
        }
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        let (mut event, mut line) = (String::new(), String::new());
        loop {
            line.clear();
            if self.stream.read_line(&mut line).context("silence")? == 0 {
                bail!("the stream has ended");
            }
            planted::look("the page's stream", &line);
            self.text.push_str(&line);
            match line.trim_end().split_once(": ") {
                Some(("event", name)) => name.clone_into(&mut event),
                Some(("data", data)) => return self.take(&event, &serde_json::from_str(data)?),
                _ if line == "\n" => return Ok(()),
                _ => {}
            }
        }
    }

    fn take(&mut self, event: &str, data: &Value) -> Result<()> {
        match event {
            "replica" => self.replica = data.clone(),
            "held" => self.held = data.clone(),
            _ => return self.view(data),
        }
        Ok(())
    }

    fn view(&mut self, data: &Value) -> Result<()> {
        let text = |value: &Value| value.as_str().map(str::to_owned).context("no text");
        let list = |value: &Value| value.as_array().cloned().context("no list");
        if data["anew"] == true {
            self.rules.clear();
            self.namespaces.clear();
        }
        for id in list(&data["ended"]["rules"])? {
            self.rules.remove(&text(&id)?);
        }
        for name in list(&data["ended"]["namespaces"])? {
            self.namespaces.remove(&text(&name)?);
        }
        for rule in list(&data["rules"])? {
            self.rules.insert(text(&rule["id"])?, rule);
        }
        for namespace in list(&data["namespaces"])? {
            let places = list(&namespace[2])?;
            let places = places.iter().map(|place| {
                let reason = place[5].as_str().map(str::to_owned);
                let told = Place {
                    state: place[1].as_u64().context("no state")?,
                    since: place[2].as_i64().context("no time")?,
                    reason,
                };
                Ok((text(&place[0])?, told))
            });
            let places = places.collect::<Result<_>>()?;
            self.namespaces.insert(text(&namespace[0])?, places);
        }
        Ok(())
    }
}
