//! Mimeo's own CA and serving certificate, and when each step of their renewal is due. This file
//! has no IO and no clock.
//!
//! # How a CA is replaced without a failed call
//!
//! Clients (API servers) trust the CAs in the `caBundle` of Mimeo's webhook configurations. They
//! see a new `caBundle` a moment after it is published. So a CA is replaced in two steps, with the
//! overlap time between them. After the second step [`Trusted`](super::Trusted) keeps the former CA
//! in the `caBundle` for another overlap:
//!
//! | step | CAs of the bundle | trusted (`caBundle`) | served certificate is signed by |
//! | --- | --- | --- | --- |
//! | before | A | A | A |
//! | introduce | A, B | A, B | A |
//! | promote | B | B, A | B |
//! | an overlap later | B | B | B |
//!
//! A client that still has the previous step's `caBundle` can verify the present certificate. A
//! client with the present one can verify a replica that still serves the previous step's
//! certificate.
//!
//! The bundle itself is the state, so no second record can disagree with it and any replica can
//! take the next step. The waiting time of the next CA runs from the issue of that CA.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::Context;
use jiff::Timestamp;
use k8s_openapi::ByteString;

use super::{
    Lifetimes, ServingMaterial, ServingNames,
    credential::{Credential, issue_ca, issue_serving, seconds, timestamp},
};
use crate::tls;

// Keys of the Secret's data. `kubernetes.io/tls` and cert-manager use the first three, too.
pub(super) const TLS_CRT: &str = "tls.crt";
const TLS_KEY: &str = "tls.key";
pub(super) const CA_CRT: &str = "ca.crt";
const CA_KEY: &str = "ca.key";
const NEXT_CA_CRT: &str = "next-ca.crt";
const NEXT_CA_KEY: &str = "next-ca.key";

/// The CA, the serving certificate that it signed, and the next CA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundle {
    /// The CA that signs.
    pub ca: Credential,
    /// The serving certificate.
    pub serving: Credential,
    /// This CA is trusted already, but signs nothing yet.
    next: Option<Credential>,
}

/// The step that is due for a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// No step is due before this time.
    Keep {
        /// The time of the next check.
        until: Timestamp,
    },
    /// Issue a new serving certificate from the same CA, for the wanted names and for those of the
    /// certificate before. Otherwise replicas with different flags would replace each other's
    /// certificate again and again.
    RenewServing,
    /// Issue the next CA and trust it.
    IntroduceCa,
    /// Let the next CA take over and sign a new serving certificate, for exactly the wanted names.
    PromoteCa,
    /// It is too late for steps: issue a new CA and a new serving certificate at once.
    Reissue,
}

impl Bundle {
    /// Issues a new CA, and a serving certificate for `names` that it signs.
    pub fn issue(
        names: &ServingNames,
        lifetimes: &Lifetimes,
        now: Timestamp,
    ) -> anyhow::Result<Self> {
        let ca = issue_ca(lifetimes, now)?;
        let serving = issue_serving(&ca, names, lifetimes, now)?;
        Ok(Self {
            ca,
            serving,
            next: None,
        })
    }

    /// All CAs in PEM. The CA that signs comes first.
    pub fn ca_bundle(&self) -> String {
        let next = self.next.as_ref().map_or("", |next| &next.certificate);
        format!("{}{next}", self.ca.certificate)
    }

    /// The part of the bundle that a server needs.
    pub fn material(&self) -> anyhow::Result<ServingMaterial> {
        let Credential {
            certificate, key, ..
        } = &self.serving;
        let certified_key = tls::certified_key(certificate.as_bytes(), key.expose().as_bytes())?;
        Ok(ServingMaterial {
            certified_key: Arc::new(certified_key),
            ca_bundle: Some(self.ca_bundle()),
            not_after: self.serving.not_after(),
        })
    }

    /// The step that is due at `now`. `names` are the names to serve.
    pub fn renewal(&self, names: &ServingNames, lifetimes: &Lifetimes, now: Timestamp) -> Renewal {
        let overlap = seconds(lifetimes.overlap);
        let (ca, serving, now) = (&self.ca.facts, &self.serving.facts, now.as_second());
        let (step, due, expired) = match &self.next {
            None => (Renewal::IntroduceCa, ca.due(), ca.not_after),
            Some(next) => {
                // The overlap ends at the latest when the replaced CA expires.
                let due = next.facts.issued.saturating_add(overlap).min(ca.not_after);
                (Renewal::PromoteCa, due, next.facts.not_after)
            }
        };
        if now >= expired {
            return Renewal::Reissue;
        }
        if now >= ca.not_after {
            return Renewal::PromoteCa;
        }
        let lacks_names = !names.0.is_subset(&serving.names);
        if now >= serving.due() || serving.issuer != ca.subject || lacks_names {
            return Renewal::RenewServing;
        }
        if now >= due {
            return step;
        }
        Renewal::Keep {
            until: timestamp(due.min(serving.due())),
        }
    }

    /// The bundle after this step.
    pub fn renewed(
        &self,
        step: Renewal,
        names: &ServingNames,
        lifetimes: &Lifetimes,
        now: Timestamp,
    ) -> anyhow::Result<Self> {
        let serving =
            |ca: &Credential, names: &ServingNames| issue_serving(ca, names, lifetimes, now);
        let mut new = self.clone();
        match (step, &self.next) {
            (Renewal::Keep { .. }, _) => {}
            (Renewal::RenewServing, _) => {
                let all = ServingNames(&names.0 | &self.serving.facts.names);
                new.serving = serving(&self.ca, &all)?;
            }
            (Renewal::IntroduceCa, _) => new.next = Some(issue_ca(lifetimes, now)?),
            (Renewal::PromoteCa, Some(next)) => {
                new.serving = serving(next, names)?;
                new.ca = next.clone();
                new.next = None;
            }
            (Renewal::Reissue | Renewal::PromoteCa, _) => {
                return Self::issue(names, lifetimes, now);
            }
        }
        Ok(new)
    }

    /// Reads a bundle from a Secret's data.
    pub fn from_data(data: &BTreeMap<String, ByteString>) -> anyhow::Result<Self> {
        let text = |name: &str| {
            let bytes = data.get(name).map(|bytes| bytes.0.clone());
            let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
            text.with_context(|| format!("{name} is missing or no text"))
        };
        let credential =
            |certificate, key| Credential::parse(text(certificate)?, text(key)?, certificate);
        let next = data.contains_key(NEXT_CA_CRT);
        let next = next.then(|| credential(NEXT_CA_CRT, NEXT_CA_KEY));
        Ok(Self {
            ca: credential(CA_CRT, CA_KEY)?,
            serving: credential(TLS_CRT, TLS_KEY)?,
            next: next.transpose()?,
        })
    }

    /// Writes the bundle to a Secret's data. Keys that do not belong to the bundle stay.
    pub fn write_to(&self, data: &mut BTreeMap<String, ByteString>) {
        // Only a next CA has these. The other keys are written below in any case.
        for name in [NEXT_CA_CRT, NEXT_CA_KEY] {
            data.remove(name);
        }
        let mut put = |name: &str, text: &str| {
            data.insert(name.to_owned(), ByteString(text.as_bytes().to_vec()))
        };
        put(CA_CRT, &self.ca.certificate);
        put(CA_KEY, self.ca.key.expose());
        put(TLS_CRT, &self.serving.certificate);
        put(TLS_KEY, self.serving.key.expose());
        if let Some(next) = &self.next {
            put(NEXT_CA_CRT, &next.certificate);
            put(NEXT_CA_KEY, next.key.expose());
        }
    }
}

#[cfg(test)]
mod tests;
