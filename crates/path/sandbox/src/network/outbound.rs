//! The daemon's side of links: assigns addresses to functions, and asks the spawner for their links.

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ipnet::Ipv4Net;
use parking_lot::Mutex;
use pilot_model::ports::StartError;

use crate::channel::Channel;
use crate::message::{ANSWER_TIME_MAX, LinkReply, MakeLink};
use crate::sandbox::Sandbox;
use crate::spawner::Spawner;

/// Assigns addresses.
#[derive(Debug)]
pub(crate) struct Outbound {
    range: Ipv4Net,
    next: AtomicU32,
    /// Guards the addresses of existing links.
    taken: Arc<Mutex<HashSet<Ipv4Addr>>>,
}

/// A function's link. The devices end with the function's network namespace; dropping this frees the address.
#[derive(Debug)]
pub(crate) struct Link {
    address: Ipv4Addr,
    taken: Arc<Mutex<HashSet<Ipv4Addr>>>,
}

impl Outbound {
    /// `first` is the number of the first link. Daemons that begin at different numbers rarely meet at an address.
    pub(crate) fn new(range: Ipv4Net, first: u32) -> Self {
        Self {
            range: range.trunc(),
            next: AtomicU32::new(first),
            taken: Arc::default(),
        }
    }

    /// Makes a link for a sandbox in which nothing runs yet.
    pub(crate) async fn connect(
        &self,
        spawner: &Spawner,
        sandbox: &Sandbox,
    ) -> Result<Link, StartError> {
        let refused = |problem: String| StartError::Sandbox {
            problem: format!("network = \"outbound\": {problem}"),
        };
        for _ in 0..TRIES_MAX {
            let (number, link) = self.take().ok_or_else(|| {
                refused(format!(
                    "all addresses of {} are in use: set outbound_cidr in pilotd.toml to a larger range",
                    self.range
                ))
            })?;
            let request = MakeLink {
                number,
                address: link.address,
            };
            match ask(spawner, sandbox, request).await.map_err(refused)? {
                LinkReply::Up => return Ok(link),
                LinkReply::Taken => {}
                LinkReply::Failed { problem } => return Err(refused(problem)),
            }
        }
        Err(refused(format!(
            "other daemons of this machine use {TRIES_MAX} addresses of {} in a row: set outbound_cidr in pilotd.toml to \
             another range",
            self.range
        )))
    }

    /// The next free address, and a number that was not used recently, since an old link with the same name or address may not
    /// have ended yet.
    fn take(&self) -> Option<(u32, Link)> {
        // Not the first address, which denotes the range, nor the last, which is the broadcast address.
        let usable = u32::from(self.range.broadcast()).checked_sub(self.range.network().into())?;
        let usable = usable.checked_sub(1).filter(|usable| *usable > 0)?;
        let mut taken = self.taken.lock();
        for _ in 0..usable {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let address = Ipv4Addr::from(u32::from(self.range.network()) + 1 + number % usable);
            if taken.insert(address) {
                let taken = Arc::clone(&self.taken);
                return Some((number, Link { address, taken }));
            }
        }
        None
    }
}

/// Requests one link from the spawner.
async fn ask(spawner: &Spawner, sandbox: &Sandbox, request: MakeLink) -> Result<LinkReply, String> {
    let io = |error: std::io::Error| error.to_string();
    let (answers, theirs) = Channel::pair().map_err(io)?;
    spawner
        .make_link(request, theirs, sandbox.network_namespace())
        .await
        .map_err(io)?;
    let message = tokio::time::timeout(ANSWER_TIME_MAX, answers.receive())
        .await
        .map_err(|_| "the spawner did not answer in time".to_owned())?
        .map_err(io)?
        .ok_or_else(|| "the spawner closed its socket without an answer".to_owned())?;
    serde_json::from_slice(&message.bytes)
        .map_err(|error| format!("the spawner sent an invalid answer: {error}"))
}

/// How many addresses of other daemons are skipped for one link. Each try takes about a millisecond.
const TRIES_MAX: u32 = 256;

impl Drop for Link {
    fn drop(&mut self) {
        self.taken.lock().remove(&self.address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_of_the_range_and_never_given_twice() {
        let outbound = Outbound::new("10.1.2.3/29".parse().unwrap(), 0);
        let links: Vec<_> = std::iter::from_fn(|| outbound.take()).collect();
        let addresses: Vec<_> = links
            .iter()
            .map(|(_, link)| link.address.octets())
            .collect();
        assert_eq!(addresses, [1, 2, 3, 4, 5, 6].map(|last| [10, 1, 2, last]));
    }

    #[test]
    fn an_address_given_back_is_given_again_after_the_others() {
        let outbound = Outbound::new("10.1.2.0/30".parse().unwrap(), 0);
        let (_, first) = outbound.take().unwrap();
        let (first_address, _) = (first.address, drop(first));
        let (_, second) = outbound.take().unwrap();
        assert_ne!(second.address, first_address);
        let (number, third) = outbound.take().unwrap();
        assert_eq!((number, third.address), (2, first_address));
        assert!(outbound.take().is_none());
    }

    #[test]
    fn a_range_without_addresses_gives_none() {
        for range in ["10.0.0.0/32", "10.0.0.0/31"] {
            assert!(Outbound::new(range.parse().unwrap(), 0).take().is_none());
        }
    }
}
