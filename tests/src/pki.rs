//! The control plane's certificates: one authority per control plane, kept in memory, and the
//! certificates that it signs.

use anyhow::{Result, bail};
use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
};
use serde_json::{Value, json};

/// A certificate with its private key, both in PEM.
pub(crate) struct Identity {
    pub certificate: String,
    pub key: String,
}

/// The certificate authority of one control plane.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, "test control plane");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        Ok(Self(CertifiedIssuer::self_signed(
            params,
            KeyPair::generate()?,
        )?))
    }

    /// The authority's certificate, in PEM.
    pub(crate) fn certificate(&self) -> String {
        self.0.pem()
    }

    /// A serving certificate for these DNS names and addresses.
    pub(crate) fn serving(&self, names: &[&str]) -> Result<Identity> {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        self.sign(
            CertificateParams::new(names)?,
            "kube-apiserver",
            &[],
            ExtendedKeyUsagePurpose::ServerAuth,
        )
    }

    /// A client certificate. The API server takes the common name as the user and the organizations
    /// as the user's groups.
    pub(crate) fn client(&self, user: &str, groups: &[&str]) -> Result<Identity> {
        self.sign(
            CertificateParams::default(),
            user,
            groups,
            ExtendedKeyUsagePurpose::ClientAuth,
        )
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        name: &str,
        organizations: &[&str],
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<Identity> {
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        // rcgen keeps only one value per kind of name. The same kind given by its number (2.5.4.10)
        // counts as a different kind.
        let kinds = [
            DnType::OrganizationName,
            DnType::CustomDnType(vec![2, 5, 4, 10]),
        ];
        if organizations.len() > kinds.len() {
            bail!(
                "a certificate can be made with at most {} groups",
                kinds.len()
            );
        }
        for (kind, organization) in kinds.into_iter().zip(organizations) {
            params.distinguished_name.push(kind, *organization);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.0)?;
        Ok(Identity {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }

    /// A kubeconfig that needs no other file. It is JSON, which every YAML parser accepts.
    pub(crate) fn kubeconfig(&self, server: &str, user: &str, identity: &Identity) -> Value {
        let base64 = |text: &str| ByteString(text.as_bytes().to_vec());
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "clusters": [{
                "name": "test",
                "cluster": {"server": server, "certificate-authority-data": base64(&self.certificate())},
            }],
            "users": [{
                "name": user,
                "user": {
                    "client-certificate-data": base64(&identity.certificate),
                    "client-key-data": base64(&identity.key),
                },
            }],
        })
    }
}

/// A key pair for service account tokens: private and public key, PEM.
pub(crate) fn token_keys() -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}
