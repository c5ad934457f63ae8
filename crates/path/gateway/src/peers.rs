//! The open connections of a listener, in total and by client, within their limits. When the listener is full, a new connection takes
//! the permit of the oldest one that has not sent a request, or has sent none for a while.
//!
//! A client of TCP is its address. A client of a Unix socket is its user, whom the kernel names (SO_PEERCRED, unix(7)). The daemon's own
//! user and root find room when everybody else's connections have filled a Unix socket.
//!
//! A connection of HTTP/2 has several requests at a time. Each one beyond the first counts as a connection, too, so that the limits of
//! memory that rely on the number of connections hold.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::unistd::Uid;
use tokio::sync::Notify;

use crate::connection::line::Usage;
use crate::connection::stream::Stream;

/// Whose connections are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Client {
    /// An IPv4 address, or an IPv6 network of /64, from which one machine may take any address.
    Network(IpAddr),
    /// A user of this machine.
    User(u32),
    /// Root, or the daemon's own user.
    Administrator,
}

impl Client {
    /// Who has opened this connection.
    pub(crate) fn of(stream: &Stream, address: IpAddr) -> Self {
        let Stream::Unix(stream) = stream else {
            return Self::Network(network(address));
        };
        match stream.peer_cred() {
            Ok(peer) => Self::of_user(peer.uid()),
            Err(_) => Self::User(u32::MAX),
        }
    }

    fn of_user(uid: u32) -> Self {
        let uid = Uid::from_raw(uid);
        match uid.is_root() || uid == Uid::effective() {
            true => Self::Administrator,
            false => Self::User(uid.as_raw()),
        }
    }
}

/// The open connections of one listener.
#[derive(Debug)]
pub(crate) struct Peers {
    connections_max: usize,
    per_client_max: usize,
    /// The lock is held for a look-up, or for a look at each connection.
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    /// By age: a new connection has the next number.
    connections: BTreeMap<u64, Connection>,
    next: u64,
    /// Requests beyond the first one of each connection.
    streams: usize,
    /// Only clients with a connection, so there are never more than connections.
    by_client: HashMap<Client, usize>,
}

#[derive(Debug)]
struct Connection {
    client: Client,
    since: Instant,
    usage: Arc<Usage>,
    taken: Arc<Notify>,
    /// How many requests it had sent when the listener was full and it was looked at, and since when that is so.
    looked_at: Option<(u32, Instant)>,
}

impl Connection {
    /// Whether it has had time to send a request, and has not.
    fn is_silent(&self, now: Instant) -> bool {
        !self.usage.is_used() && now.duration_since(self.since) >= FIRST_REQUEST
    }

    /// Whether it has waited for its next request since an earlier look at it. Nothing is noted at each request: only a listener that is
    /// full needs to know.
    fn has_rested(&mut self, now: Instant) -> bool {
        if !self.usage.rests() {
            self.looked_at = None;
            return false;
        }
        let requests = self.usage.requests();
        let (seen, at) = *self.looked_at.get_or_insert((requests, now));
        if seen != requests {
            self.looked_at = Some((requests, now));
            return false;
        }
        now.duration_since(at) >= NEXT_REQUEST
    }
}

/// The permit of one open connection. Dropping it makes room for another one.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    peers: Arc<Peers>,
    number: u64,
    client: Client,
    taken: Arc<Notify>,
}

/// The permit of one more request of a connection that has one already.
#[derive(Debug)]
pub(crate) struct StreamPermit {
    peers: Arc<Peers>,
    client: Client,
}

impl ConnectionPermit {
    /// Resolves when another connection has taken the permit, so that this one must close.
    pub(crate) async fn taken(&self) {
        self.taken.notified().await;
    }

    /// Room for one more request on this connection.
    pub(crate) fn another(&self) -> Result<StreamPermit, Full> {
        let mut open = self.peers.open();
        open.admit(&self.peers, self.client, Instant::now())?;
        open.streams += 1;
        Ok(StreamPermit {
            peers: Arc::clone(&self.peers),
            client: self.client,
        })
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut open = self.peers.open();
        open.streams -= 1;
        open.forget(self.client);
    }
}

/// Why there is no room for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// The listener has as many as it may have.
    Listener,
    /// This process has nearly as many descriptors as it may have.
    Descriptors,
    /// The client has.
    Client,
}

impl Peers {
    pub(crate) fn new(connections_max: usize, per_client_max: usize) -> Arc<Self> {
        Arc::new(Self {
            connections_max,
            per_client_max,
            open: Mutex::default(),
        })
    }

    /// Room for one more connection of this client. `usage`: what will be known about it.
    pub(crate) fn admit(
        self: &Arc<Self>,
        client: Client,
        usage: &Arc<Usage>,
    ) -> Result<ConnectionPermit, Full> {
        let mut open = self.open();
        let now = Instant::now();
        open.admit(self, client, now)?;
        let taken = Arc::new(Notify::new());
        let number = open.next;
        open.next += 1;
        open.connections.insert(
            number,
            Connection {
                client,
                since: now,
                usage: Arc::clone(usage),
                taken: Arc::clone(&taken),
                looked_at: None,
            },
        );
        Ok(ConnectionPermit {
            peers: Arc::clone(self),
            number,
            client,
            taken,
        })
    }

    /// Closes a connection that rests, if there is one.
    pub(crate) fn make_room(&self) -> Result<(), Full> {
        match self.open().make_room(Instant::now()) {
            true => Ok(()),
            false => Err(Full::Descriptors),
        }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        // Whoever holds it only counts, so it is never left in a wrong state.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// Counts one more of this client, if there is room for it.
    fn admit(&mut self, limits: &Peers, client: Client, now: Instant) -> Result<(), Full> {
        let of_client = self.by_client.get(&client).copied().unwrap_or(0);
        let connections_max = match client {
            Client::Administrator => limits.connections_max + RESERVED,
            Client::Network(_) | Client::User(_) if of_client >= limits.per_client_max => {
                return Err(Full::Client);
            }
            Client::Network(_) | Client::User(_) => limits.connections_max,
        };
        let all = self.connections.len() + self.streams;
        if all >= connections_max && !self.make_room(now) {
            return Err(Full::Listener);
        }
        *self.by_client.entry(client).or_default() += 1;
        Ok(())
    }

    /// Counts one less of this client.
    fn forget(&mut self, client: Client) {
        if let Some(count) = self.by_client.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.by_client.remove(&client);
            }
        }
    }

    /// Takes the permit of the oldest silent connection, otherwise of the oldest that has rested. Returns false if there is none.
    fn make_room(&mut self, now: Instant) -> bool {
        let (mut silent, mut rested) = (None, None);
        // All of them are looked at, so that each is known to rest from now on.
        for (number, connection) in &mut self.connections {
            if connection.is_silent(now) {
                silent.get_or_insert(*number);
            } else if connection.has_rested(now) {
                rested.get_or_insert(*number);
            }
        }
        let Some(number) = silent.or(rested) else {
            return false;
        };
        if let Some(connection) = self.remove(number) {
            connection.taken.notify_one();
        }
        true
    }

    fn remove(&mut self, number: u64) -> Option<Connection> {
        let connection = self.connections.remove(&number)?;
        self.forget(connection.client);
        Some(connection)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        // It is gone already if another connection has taken it.
        self.peers.open().remove(self.number);
    }
}

/// What counts as one client.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let prefix = u128::from(address) & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from(prefix))
        }
    }
}

/// How long a connection keeps its permit without a request when others need it, and a kept one between two requests.
const FIRST_REQUEST: Duration = Duration::from_secs(1);
const NEXT_REQUEST: Duration = Duration::from_secs(1);

/// Connections beyond the limit, for administrators alone.
const RESERVED: usize = 16;

/// How many connections were turned away, since the daemon started.
#[derive(Debug, Default)]
pub struct RefusedConnections {
    listener_full: AtomicU64,
    client_full: AtomicU64,
    too_slow: AtomicU64,
    resets: AtomicU64,
}

impl RefusedConnections {
    pub(crate) fn full(&self, why: Full) {
        match why {
            Full::Listener | Full::Descriptors => &self.listener_full,
            Full::Client => &self.client_full,
        }
        .fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn too_slow(&self) {
        self.too_slow.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn too_many_resets(&self) {
        self.resets.fetch_add(1, Ordering::Relaxed);
    }

    /// The reasons and their counts.
    #[must_use]
    pub fn counts(&self) -> [(&'static str, u64); 4] {
        [
            ("listener_full", &self.listener_full),
            ("address_full", &self.client_full),
            ("too_slow", &self.too_slow),
            ("too_many_resets", &self.resets),
        ]
        .map(|(reason, count)| (reason, count.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> Client {
        Client::Network(network(text.parse().unwrap()))
    }

    #[test]
    fn administrators_find_room_when_other_users_have_taken_all() {
        assert_eq!(Client::of_user(0), Client::Administrator);
        let own = Client::of_user(Uid::effective().as_raw());
        assert_eq!(own, Client::Administrator);
        let peers = Peers::new(4, 2);
        let usage = Arc::<Usage>::default();
        usage.request_began(http::Version::HTTP_11, false);
        let mut held = Vec::new();
        for uid in [4001, 4001, 4002, 4002] {
            held.push(peers.admit(Client::User(uid), &usage).unwrap());
        }
        let refused = |client| peers.admit(client, &usage).err();
        assert_eq!(refused(Client::User(4001)), Some(Full::Client));
        assert_eq!(refused(Client::User(4003)), Some(Full::Listener));
        for _ in 0..RESERVED {
            held.push(peers.admit(own, &usage).unwrap());
        }
        assert_eq!(refused(own), Some(Full::Listener));
        held.clear();
        assert!(peers.open().by_client.is_empty());
    }

    #[test]
    fn one_address_cannot_take_every_connection() {
        let peers = Peers::new(3, 2);
        let usage = Arc::<Usage>::default();
        let first = peers.admit(ip("192.0.2.1"), &usage).unwrap();
        let _second = peers.admit(ip("::ffff:192.0.2.1"), &usage).unwrap();
        assert_eq!(
            peers.admit(ip("192.0.2.1"), &usage).err(),
            Some(Full::Client),
            "the same address"
        );
        let _third = peers.admit(ip("192.0.2.2"), &usage).unwrap();
        assert_eq!(
            peers.admit(ip("192.0.2.3"), &usage).err(),
            Some(Full::Listener)
        );
        drop(first);
        let _again = peers.admit(ip("192.0.2.1"), &usage).unwrap();
        assert_eq!(peers.open().by_client.len(), 2);
    }

    #[test]
    fn a_full_listener_takes_the_place_of_a_silent_connection_and_of_no_other() {
        let peers = Peers::new(2, 2);
        let (busy, silent) = (Arc::<Usage>::default(), Arc::<Usage>::default());
        busy.request_began(http::Version::HTTP_11, false);
        let _busy = peers.admit(ip("192.0.2.1"), &busy).unwrap();
        let loser = peers.admit(ip("192.0.2.2"), &silent).unwrap();
        assert_eq!(
            peers.admit(ip("192.0.2.3"), &busy).err(),
            Some(Full::Listener),
            "too early"
        );
        for connection in peers.open().connections.values_mut() {
            connection.since -= FIRST_REQUEST;
        }
        let _new = peers.admit(ip("192.0.2.3"), &busy).unwrap();
        let told = futures_util::FutureExt::now_or_never(loser.taken());
        assert!(told.is_some());
        drop(loser);
        assert_eq!(peers.open().connections.len(), 2);
        assert_eq!(peers.open().by_client.len(), 2);
        assert_eq!(
            peers.admit(ip("192.0.2.4"), &busy).err(),
            Some(Full::Listener)
        );
    }

    #[test]
    fn a_full_listener_takes_the_permit_of_a_connection_that_rests_and_of_none_that_works() {
        let peers = Peers::new(3, 1);
        let [busy, streams, rests] = [(); 3].map(|()| {
            let usage = Arc::<Usage>::default();
            usage.request_began(http::Version::HTTP_11, false);
            usage
        });
        streams.response_begins();
        streams.set_streams_response(true);
        rests.response_begins();
        let held: Vec<_> = [(1, &busy), (2, &streams), (3, &rests)]
            .map(|(last, usage)| peers.admit(ip(&format!("192.0.2.{last}")), usage).unwrap())
            .into();
        let admit = || peers.admit(ip("192.0.2.4"), &busy);
        let pass = || {
            for connection in peers.open().connections.values_mut() {
                if let Some((_, at)) = &mut connection.looked_at {
                    *at -= NEXT_REQUEST;
                }
            }
        };
        assert_eq!(
            admit().err(),
            Some(Full::Listener),
            "it may have sent one just now"
        );
        rests.request_began(http::Version::HTTP_11, false);
        rests.response_begins();
        pass();
        assert_eq!(
            admit().err(),
            Some(Full::Listener),
            "it has sent another one"
        );
        pass();
        let _new = admit().unwrap();
        let told = |number: usize| futures_util::FutureExt::now_or_never(held[number].taken());
        assert!(told(2).is_some());
        assert!(told(0).is_none() && told(1).is_none());
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_address() {
        let peers = Peers::new(10, 1);
        let usage = Arc::<Usage>::default();
        let place = peers.admit(ip("2001:db8::1"), &usage).unwrap();
        assert_eq!(
            peers.admit(ip("2001:db8::2"), &usage).err(),
            Some(Full::Client)
        );
        let _other = peers.admit(ip("2001:db8:0:1::1"), &usage).unwrap();
        drop(place);
        let _next = peers.admit(ip("2001:db8::3"), &usage).unwrap();
    }

    #[test]
    fn requests_on_one_connection_count_as_connections() {
        let peers = Peers::new(4, 3);
        let usage = Arc::<Usage>::default();
        usage.request_began(http::Version::HTTP_2, false);
        let first = peers.admit(ip("192.0.2.1"), &usage).unwrap();
        let second = first.another().unwrap();
        let third = first.another().unwrap();
        assert_eq!(first.another().err(), Some(Full::Client));
        assert_eq!(
            peers.admit(ip("192.0.2.1"), &usage).err(),
            Some(Full::Client)
        );
        let other = peers.admit(ip("192.0.2.2"), &usage).unwrap();
        assert_eq!(other.another().err(), Some(Full::Listener));
        drop(second);
        let again = other.another().unwrap();
        assert_eq!(
            peers.admit(ip("192.0.2.3"), &usage).err(),
            Some(Full::Listener)
        );
        drop(again);
        drop(other);
        drop(third);
        drop(first);
        assert!(peers.open().by_client.is_empty());
        assert_eq!(peers.open().streams, 0);
    }
}
