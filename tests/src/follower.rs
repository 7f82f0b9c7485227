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
    rules: BTreeMap<u64, Value>,
    namespaces: BTreeMap<String, BTreeMap<u64, Place>>,
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
        let (number, _) = self.rules.iter().find(|(_, told)| told["name"] == rule)?;
        self.namespaces.get(namespace)?.get(number)
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
        let list = |value: &Value| value.as_array().cloned().context("no list");
        if data["anew"] == true {
            self.rules.clear();
            self.namespaces.clear();
        }
        for number in list(&data["ended"]["rules"])? {
            self.rules.remove(&number.as_u64().context("no number")?);
        }
        for name in list(&data["ended"]["namespaces"])? {
            self.namespaces.remove(name.as_str().context("no name")?);
        }
        for rule in list(&data["rules"])? {
            self.rules
                .insert(rule["number"].as_u64().context("no number")?, rule);
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
                Ok((place[0].as_u64().context("no number")?, told))
            });
            let name = namespace[0].as_str().context("no name")?.to_owned();
            self.namespaces.insert(name, places.collect::<Result<_>>()?);
        }
        Ok(())
    }
}
