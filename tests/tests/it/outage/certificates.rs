//! Certificates of every origin change. No request fails meanwhile.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::PostParams;
use kube::{Api, Client};
use mimeo_tests::scenario::{SOON, Scene, Setting, of, value};
use mimeo_tests::traffic::{create_patiently, pod, precedes};
use mimeo_tests::{NAMESPACE, Pair, eventually, unique};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use serde_json::json;
use tempfile::TempDir;

use super::{AT_ONCE, PROGRAMS, REGISTRY, with_webhooks};

/// Creates namespaces, each with a pod, one after another until `stop` is set. Each pod comes after
/// its copy. Returns the number of namespaces.
///
/// In strict mode no webhook call may fail, except for timeouts on a busy machine. A pod may be
/// asked for a retry, as usual.
async fn come_and_go(client: &Client, tag: &str, stop: &AtomicBool) -> Result<usize> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let name = unique(tag);
        let namespace = json!({"metadata": {"name": name, "labels": {"scene": tag}}});
        create_patiently(&namespaces, &serde_json::from_value(namespace)?)
            .await
            .context("a namespace was refused")?;
        let (pod, _) = create_patiently(&of(client, &name), &pod("first"))
            .await
            .context("a pod was refused")?;
        let copy = of::<Secret>(client, &name).get(REGISTRY).await?;
        assert!(precedes(&copy, &pod)?, "{name}: the copy is late");
        count += 1;
    }
    Ok(count)
}

/// Writes a required rule for [`come_and_go`], and waits until it is in force.
async fn required(scene: &Scene<'_>) -> Result<()> {
    scene.secret(REGISTRY, &[("password", "first")]).await?;
    let rule = scene
        .rule()
        .secret(&scene.home, REGISTRY)
        .set("podGate", json!("Required"));
    rule.create(&scene.client).await?;
    scene
        .wait_condition(&scene.tag, "PodGateActive", "True", "Active")
        .await?;
    Ok(())
}

/// Returns the CA certificates with which the API server trusts the webhook, in PEM.
async fn trusted(client: &Client) -> Result<Vec<String>> {
    let configuration = Api::<MutatingWebhookConfiguration>::all(client.clone())
        .get("mimeo")
        .await?;
    let hook = configuration
        .webhooks
        .unwrap_or_default()
        .into_iter()
        .next()
        .context("no hook")?;
    let bundle = String::from_utf8(hook.client_config.ca_bundle.context("no caBundle")?.0)?;
    let end = "-----END CERTIFICATE-----";
    Ok(bundle
        .split_inclusive(end)
        .map(|pem| pem.trim().to_owned())
        .filter(|pem| pem.ends_with(end))
        .collect())
}

/// Opens a new connection to the webhooks' address. The client trusts only these certificates.
async fn handshake(url: &str, trusted: &[String]) -> Result<()> {
    let der = |pem: &String| -> Result<Vec<u8>> {
        let base64: String = pem
            .lines()
            .filter(|line| !line.starts_with("-----"))
            .collect();
        Ok(serde_json::from_value::<ByteString>(json!(base64))?.0)
    };
    let mut config = kube::Config::new(url.parse()?);
    config.root_cert = Some(trusted.iter().map(der).collect::<Result<_>>()?);
    config.default_retry = false;
    let answer = Client::try_from(config)?
        .request_text(http::Request::get("/").body(Vec::new())?)
        .await;
    match answer {
        // Any answer shows that the client trusts the certificate.
        Ok(_) | Err(kube::Error::Api(_)) => Ok(()),
        Err(error) => Err(error).context("no connection"),
    }
}

/// Runs requests while `turning` runs.
async fn under_requests(
    client: &Client,
    tag: &str,
    turning: impl Future<Output = Result<()>>,
) -> Result<()> {
    let stop = AtomicBool::new(false);
    let turning = async {
        let turned = turning.await;
        stop.store(true, Ordering::Relaxed);
        turned
    };
    let (count, turned) = tokio::join!(come_and_go(client, tag, &stop), turning);
    turned?;
    assert!(count? > 0, "no namespace was created");
    Ok(())
}

#[tokio::test]
async fn a_certificate_is_rotated_while_requests_run() -> Result<()> {
    let mut setting = PROGRAMS.get().await?;
    let old = Authority::new("due")?;
    store_due(&setting, "due", &old).await?;
    let flags = [
        ["--tls-secret", "due"],
        ["--ca-overlap", "15s"],
        ["--namespaces-failure-policy", "Fail"],
    ];
    with_webhooks(&mut setting.pair, 2, &flags.concat()).await?;
    let scene = setting.scene("rotated").await?;
    required(&scene).await?;
    let rotating = another_ca(&scene.client, setting.pair.url(), old.pem());
    let rotated = Box::pin(under_requests(&scene.client, &scene.tag, rotating)).await;
    drop(scene);
    with_webhooks(&mut setting.pair, 1, &[]).await?;
    rotated
}

/// Stores a CA that Mimeo replaces at once, because two thirds of its validity have passed.
async fn store_due(setting: &Setting, name: &str, ca: &Authority) -> Result<()> {
    let [certificate, key] = ca.serving()?;
    let data = json!({"ca.crt": ca.pem(), "ca.key": ca.0.key().serialize_pem(), "tls.crt": certificate, "tls.key": key});
    let secret = json!({"metadata": {"name": name}, "stringData": data});
    // A test's usual client would add its marker to the values.
    let config = setting.control_plane.admin().config_for(0).await?;
    let secrets = of::<Secret>(&Client::try_from(config)?, NAMESPACE);
    secrets
        .create(&PostParams::default(), &serde_json::from_value(secret)?)
        .await?;
    Ok(())
}

/// Waits until this CA is replaced and another CA is the only trusted one. Until then, clients with
/// the former bundle are served, too.
async fn another_ca(client: &Client, url: String, old: String) -> Result<()> {
    // A bundle that was read longer ago may be out of date: see the overlap.
    const FRESH: Duration = Duration::from_secs(5);
    let until = Instant::now() + SOON;
    let old = old.trim().to_owned();
    let (mut read, mut before) = (Instant::now(), trusted(client).await?);
    let (mut with_old, mut missed) = (BTreeSet::new(), false);
    loop {
        let served = handshake(&url, &before).await;
        // A busy machine may let this test wait between two reads.
        if read.elapsed() < FRESH {
            served?;
        } else {
            missed = true;
        }
        read = Instant::now();
        let now = trusted(client).await?;
        if now.contains(&old) {
            with_old.extend(now.iter().cloned());
        } else if let [new] = &now[..] {
            ensure!(
                with_old.contains(new) || missed,
                "both are trusted for a while"
            );
            return handshake(&url, &now).await;
        }
        ensure!(Instant::now() < until, "no other CA came");
        before = now;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn replicas_that_start_at_once_without_a_ca_agree_on_one() -> Result<()> {
    let mut setting = PROGRAMS.get().await?;
    let agreed = agree(&mut setting).await;
    with_webhooks(&mut setting.pair, 1, &[]).await?;
    agreed
}

async fn agree(setting: &mut Setting) -> Result<()> {
    let client = setting.control_plane.client().await?;
    let url = setting.pair.url();
    // It is random which replica is first, and whether the other one has already looked.
    for _ in 0..3 {
        let secret = unique("new-ca");
        let mark = setting.control_plane.audit_mark().await?;
        with_webhooks(
            &mut setting.pair,
            2,
            &["--tls-secret", &secret, "--ca-overlap", "1s"],
        )
        .await?;
        let stored = of::<Secret>(&client, NAMESPACE).get(&secret).await?;
        let trusted = [value(&stored, "ca.crt").context("no CA")?];
        bundle_becomes(&client, &trusted).await?;
        // New connections take turns with the replicas.
        for _ in 0..4 {
            handshake(&url, &trusted).await?;
        }
        let events = setting.control_plane.audit_since(&mark).await?;
        let written: Vec<_> = events
            .iter()
            .filter(|event| {
                setting.is_ours(event) && event.is_write() && event.resource == "secrets"
            })
            .filter(|event| event.name == secret)
            .map(|event| (event.verb.as_str(), event.code))
            .collect();
        eprintln!("{secret}: {written:?}");
        assert_eq!(
            written.iter().filter(|(_, code)| *code < 300).count(),
            1,
            "{written:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_mounted_certificate_is_swapped_while_requests_run() -> Result<()> {
    let mut setting = PROGRAMS.get().await?;
    let mounted = Mounted::new()?;
    let (old, new) = (Authority::new("old")?, Authority::new("new")?);
    let (old_leaf, new_leaf) = (old.serving()?, new.serving()?);
    let both = [old.pem(), new.pem()];
    mounted.swap(&old_leaf, &both[..1])?;
    let folder = mounted.folder.path().display().to_string();
    let args = [
        "--cert-dir",
        &folder,
        "--ca-overlap",
        "6s",
        "--namespaces-failure-policy",
        "Fail",
    ];
    with_webhooks(&mut setting.pair, 2, &args).await?;
    let scene = setting.scene("mounted").await?;
    required(&scene).await?;
    let url = setting.pair.url();
    let swapping = async {
        mounted.swap(&old_leaf, &both)?;
        bundle_becomes(&scene.client, &both).await?;
        mounted.swap(&new_leaf, &both)?;
        eventually(SOON, "the new certificate to be served by both", || async {
            // New connections take turns with the replicas.
            for _ in 0..4 {
                handshake(&url, &both[1..]).await?;
            }
            Ok(Some(()))
        })
        .await?;
        mounted.swap(&new_leaf, &both[1..])?;
        bundle_becomes(&scene.client, &both[1..]).await
    };
    let swapped = Box::pin(under_requests(&scene.client, &scene.tag, swapping)).await;
    drop(scene);
    with_webhooks(&mut setting.pair, 1, &[]).await?;
    swapped
}

/// `helm upgrade` with another `webhook.tls.mode` does the same. The former replicas still run and
/// serve certificates of the other origin. They do not know the CA of the new ones.
#[tokio::test]
async fn a_certificate_of_another_origin_takes_over_while_requests_run() -> Result<()> {
    let mut setting = PROGRAMS.get().await?;
    // However slow the machine is, an overlap of an hour does not end while requests run.
    let issued = ["--namespaces-failure-policy", "Fail"];
    let (long, short) = (["--ca-overlap", "1h"], ["--ca-overlap", "1s"]);
    with_webhooks(&mut setting.pair, 1, &[issued, short].concat()).await?;
    let (client, tag) = {
        let scene = setting.scene("origin").await?;
        required(&scene).await?;
        (scene.client.clone(), scene.tag.clone())
    };
    let (authority, mounted) = (Authority::new("mounted")?, Mounted::new()?);
    mounted.swap(&authority.serving()?, &[authority.pem()])?;
    let folder = mounted.folder.path().display().to_string();
    let given = [&issued[..], &["--cert-dir", &folder]].concat();
    let secrets = of::<Secret>(&client, NAMESPACE);
    let secret = secrets.get("mimeo-webhook-tls").await?;
    let (theirs, ours) = (authority.pem(), value(&secret, "ca.crt").context("no CA")?);
    bundle_becomes(&client, std::slice::from_ref(&ours)).await?;

    for (args, new, old) in [(given, &theirs, &ours), (issued.to_vec(), &ours, &theirs)] {
        let flags = [&AT_ONCE[..], &args, &long].concat();
        let taking_over = take_over(
            &mut setting.pair,
            &client,
            flags,
            [new.clone(), old.clone()],
        );
        let under_requests = Box::pin(under_requests(&client, &tag, taking_over));
        under_requests
            .await
            .with_context(|| format!("with a client that trusts\n{new}"))?;
        // Then the overlap ends, with a replica that serves certificates of the same CA.
        with_webhooks(&mut setting.pair, 1, &[&args[..], &short].concat()).await?;
        bundle_becomes(&client, std::slice::from_ref(new)).await?;
    }
    // The certificate stayed unchanged until its next use.
    assert_eq!(
        secrets
            .get("mimeo-webhook-tls")
            .await?
            .metadata
            .resource_version,
        secret.metadata.resource_version
    );
    with_webhooks(&mut setting.pair, 1, &[]).await
}

/// Replaces one replica by one with other flags. The new replica serves certificates of the first
/// of these CAs.
async fn take_over(
    pair: &mut Pair,
    client: &Client,
    args: Vec<&str>,
    cas: [String; 2],
) -> Result<()> {
    pair.set_webhook_args(args);
    pair.start_webhook().await?;
    // New connections take turns with the replicas.
    for _ in 0..4 {
        handshake(&pair.url(), &trusted(client).await?).await?;
    }
    bundle_becomes(client, &cas).await?;
    let mut former = pair.webhooks.remove(0);
    former.program.terminate()?;
    former.program.wait(SOON).await?;
    Ok(())
}

async fn bundle_becomes(client: &Client, want: &[String]) -> Result<()> {
    eventually(SOON, format!("a bundle of {}", want.len()), || async {
        let now = trusted(client).await?;
        let same = now
            .iter()
            .map(String::as_str)
            .eq(want.iter().map(|pem| pem.trim()));
        if same {
            Ok(Some(()))
        } else {
            bail!("it has {}", now.len())
        }
    })
    .await
}

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// Two thirds of its validity have passed.
    fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        (params.not_before, params.not_after) =
            (date_time_ymd(1975, 1, 1), date_time_ymd(2045, 1, 1));
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        Ok(Self(CertifiedIssuer::self_signed(
            params,
            KeyPair::generate()?,
        )?))
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    /// Returns a certificate and a key for the webhooks' address, in PEM.
    fn serving(&self) -> Result<[String; 2]> {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()])?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        Ok([params.signed_by(&key, &self.0)?.pem(), key.serialize_pem()])
    }
}

/// A folder like the kubelet's mount of a Secret. Each file is a link through another link, and an
/// update replaces only that other link.
struct Mounted {
    folder: TempDir,
}

impl Mounted {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        for name in ["tls.crt", "tls.key", "ca.crt"] {
            symlink(format!("..data/{name}"), folder.path().join(name))?;
        }
        Ok(Self { folder })
    }

    fn swap(&self, [certificate, key]: &[String; 2], bundle: &[String]) -> Result<()> {
        let version = unique("..version");
        let within = self.folder.path().join(&version);
        std::fs::create_dir(&within)?;
        std::fs::write(within.join("tls.crt"), certificate)?;
        std::fs::write(within.join("tls.key"), key)?;
        std::fs::write(within.join("ca.crt"), bundle.concat())?;
        let link = self.folder.path().join("..data_tmp");
        symlink(version, &link)?;
        Ok(std::fs::rename(link, self.folder.path().join("..data"))?)
    }
}
