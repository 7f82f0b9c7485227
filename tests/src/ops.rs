//! A client of a program's operations port. It asks like a kubelet and a Prometheus: blocking, in
//! plain HTTP, or in TLS without verifying the certificate.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpStream},
    sync::Arc,
};

use anyhow::{Context, Result, ensure};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};

use crate::{planted, scenario::SOON};

/// The port, and whether it uses TLS.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpsPort {
    pub(crate) port: u16,
    pub(crate) tls: bool,
}

impl OpsPort {
    /// Sends a GET. Returns the whole answer, head and body.
    pub(crate) fn get(self, path: &str) -> Result<String> {
        self.ask("GET", path, None, "")
    }

    /// Sends a GET for an endless answer. Returns the stream after the head.
    pub(crate) fn stream(self, path: &str) -> Result<TcpStream> {
        ensure!(!self.tls, "only in plain HTTP");
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(SOON))?;
        // HTTP/1.0 makes the server send the body as it is, not in chunks.
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).context("no answer")?;
            head.extend(byte);
        }
        let head = String::from_utf8_lossy(&head);
        ensure!(head.split(' ').nth(1) == Some("200"), "{head}");
        Ok(stream)
    }

    /// Sends a request with any method, token and body. Returns the whole answer, head and body.
    pub(crate) fn ask(
        self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: &str,
    ) -> Result<String> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(SOON))?;
        let token = token
            .map(|token| format!("Authorization: Bearer {token}\r\n"))
            .unwrap_or_default();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{token}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
        let answer = if self.tls {
            exchange(tls(stream)?, &request)
        } else {
            exchange(stream, &request)
        }?;
        planted::look(path, &answer);
        Ok(answer)
    }
}

fn exchange(mut stream: impl Read + Write, request: &str) -> Result<String> {
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    match stream.read_to_string(&mut answer) {
        // The server closes the connection without a TLS close message, as many servers do.
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof && !answer.is_empty() => {
            Ok(answer)
        }
        read => read.map(|_| answer).context("no answer"),
    }
}

fn tls(stream: TcpStream) -> Result<StreamOwned<ClientConnection, TcpStream>> {
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
        .with_no_client_auth();
    let connection = ClientConnection::new(Arc::new(config), ServerName::try_from("localhost")?)?;
    Ok(StreamOwned::new(connection, stream))
}

/// Accepts any certificate if the server has its key.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
