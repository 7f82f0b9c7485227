//! Free loopback ports that no other test uses.

use std::hash::{BuildHasher, RandomState};
use std::iter;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};

/// Below the range from which the kernel takes ports for outgoing connections (from 32768 on by
/// default). So no outgoing connection takes a server's port during a restart.
const RANGE: std::ops::Range<u16> = 12_000..32_000;

/// Number of ports that a test program reserves. This is more than all its tests need, so a
/// restarted server finds its old port free.
const BLOCK: u16 = 2_000;

/// The block of this process.
static OURS: Mutex<Option<Block>> = Mutex::new(None);

/// Returns `count` different free ports. No other test receives them afterwards, in this process or
/// in another one.
///
/// It is not enough to find a port free. Another test could take it before the server listens on
/// it.
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
    /// Number of ports that were given out or skipped.
    given: u16,
    /// Listens on the first port of the block. While this process runs, no other process gets the
    /// block.
    _lock: TcpListener,
}

impl Block {
    fn take() -> Result<Self> {
        let blocks = (RANGE.end - RANGE.start) / BLOCK;
        // A block of another user's process is found to be taken, so any order works. A random
        // start finds a free block sooner.
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
        // After the last port it starts again from the first: the ports of ended tests are free by
        // then.
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
