//! Free loopback ports that no other test is given.

use std::hash::{BuildHasher, RandomState};
use std::iter;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};

/// Below the range that the kernel takes ports of outgoing connections from (from 32768 on by
/// default), so that nobody takes the port of a server while it is restarted.
const RANGE: std::ops::Range<u16> = 12_000..32_000;

/// How many ports a test program has for itself: more than all its tests take. So a server finds
/// its old port free when it is started again.
const BLOCK: u16 = 2_000;

/// The ports of this process.
static OURS: Mutex<Option<Block>> = Mutex::new(None);

/// `count` different ports that nobody listens at, and that no test is given after this one, here
/// or in another process.
///
/// A port that was only seen to be free may be another test's before the server that it was found
/// for listens at it.
pub(crate) fn free(count: usize) -> Result<Vec<u16>> {
    let mut ours = OURS.lock().unwrap_or_else(PoisonError::into_inner);
    let block = match &mut *ours {
        Some(block) => block,
        none => none.insert(Block::take()?),
    };
    iter::repeat_with(|| block.next()).take(count).collect()
}

struct Block {
    first: u16,
    /// How many were given out, or passed over.
    given: u16,
    /// At the first port of the block: as long as this process runs, no other gets the block.
    _lock: TcpListener,
}

impl Block {
    fn take() -> Result<Self> {
        let blocks = (RANGE.end - RANGE.start) / BLOCK;
        // Those of another user's processes are found taken, so any order does; a random one finds
        // a free block sooner.
        let start = u16::try_from(RandomState::new().hash_one(0) % u64::from(blocks))?;
        (0..blocks)
            .map(|n| RANGE.start + (start + n) % blocks * BLOCK)
            .find_map(|first| {
                listen(first).map(|lock| Self {
                    first,
                    given: 0,
                    _lock: lock,
                })
            })
            .context("every block of loopback ports is another process'")
    }

    fn next(&mut self) -> Result<u16> {
        // From the beginning when all were given out: those of tests that have ended are free
        // again.
        for _ in 1..BLOCK {
            self.given = self.given % (BLOCK - 1) + 1;
            let port = self.first + self.given;
            if listen(port).is_some() {
                return Ok(port);
            }
        }
        anyhow::bail!("found no free loopback port in {BLOCK} of them")
    }
}

fn listen(port: u16) -> Option<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()
}
