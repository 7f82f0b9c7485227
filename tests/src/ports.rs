//! Free loopback ports.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context, Result};

/// Below the range that the kernel takes ports of outgoing connections from (from 32768 on by default), so that nobody
/// takes the port of a server while it is restarted.
const RANGE: std::ops::Range<u16> = 12_000..32_000;

/// `count` different ports that nobody listens on now.
///
/// Another process may take one before it is used: whoever starts a server on it tries again with others.
pub(crate) fn free(count: usize) -> Result<Vec<u16>> {
    // Held until all are found, so that they differ.
    let listeners = (0..count).map(|_| free_listener()).collect::<Result<Vec<_>>>()?;
    listeners.iter().map(|listener| Ok(listener.local_addr().context("failed to read a port")?.port())).collect()
}

fn free_listener() -> Result<TcpListener> {
    let random = RandomState::new();
    let width = u64::from(RANGE.end - RANGE.start);
    (0u8..200)
        .filter_map(|attempt| u16::try_from(random.hash_one(attempt) % width).ok())
        .find_map(|offset| TcpListener::bind((Ipv4Addr::LOCALHOST, RANGE.start + offset)).ok())
        .context("found no free loopback port")
}
