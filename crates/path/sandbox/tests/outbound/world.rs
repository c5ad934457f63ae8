//! The network around a daemon: a host, the internet, and a local network, each in its own network namespace, so that the
//! machine's network stays untouched. Servers are processes, so that the test's own has one thread.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use pilot_sys::loopback;
use pilot_sys::netlink::route::{self, Route, Veth};
use pilot_sys::netlink::{self, Message, Netlink, Protocol};
use pilot_sys::process::{self, Side};

/// The host, as the internet sees it.
pub(crate) const HOST: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
/// The host, as the local net sees it.
pub(crate) const HOST_IN_LAN: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 1);
/// The host's router, and behind it a server that is also a resolver.
pub(crate) const ROUTER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 9);
/// The addresses at which clouds serve credentials.
pub(crate) const METADATA: [Ipv4Addr; 4] = [
    Ipv4Addr::new(169, 254, 169, 254),
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(192, 0, 0, 192),
];
/// A host beside this one.
pub(crate) const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 2);

/// TCP and UDP, everywhere.
pub(crate) const PORT: u16 = 8000;

/// The name of the host's device.
pub(crate) const UPLINK: &str = "up0";
pub(crate) const LAN: &str = "lan0";

/// A network namespace with servers, which can be told to connect somewhere.
#[derive(Debug)]
pub(crate) struct Network {
    process: Pid,
    control: UnixStream,
}

impl Network {
    /// Whether a connection from there is answered.
    pub(crate) fn reaches(&self, address: IpAddr, port: u16) -> bool {
        let mut control = &self.control;
        writeln!(control, "{address} {port}").expect("the network lives");
        let mut answer = [0];
        control.read_exact(&mut answer).expect("the network lives");
        answer[0] == b'y'
    }

    fn namespace(&self) -> OwnedFd {
        let path = format!("/proc/{}/ns/net", self.process);
        File::open(path).expect("the network lives").into()
    }
}

/// Moves this process into the host's namespace, with the internet attached and a resolver there, which `resolvers` names; keep
/// that file.
pub(crate) fn enter(resolvers: &Path) -> World {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).expect("namespaces");
    let none: Option<&str> = None;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(none, "/", none, private, none).expect("a mount namespace of its own");
    fs::write(resolvers, format!("nameserver {SERVER}\n")).expect("a file");
    fs::set_permissions(resolvers, fs::Permissions::from_mode(0o644)).expect("a file");
    mount(
        Some(resolvers),
        "/etc/resolv.conf",
        none,
        MsFlags::MS_BIND,
        none,
    )
    .expect("a mount");
    loopback::bring_up().expect("a loopback device");
    let here = network(CloneFlags::empty());
    let internet = network(CloneFlags::CLONE_NEWNET);
    let there = [&[ROUTER, SERVER][..], &METADATA].concat();
    attach(&internet, UPLINK, (HOST, &there), true);
    World {
        host: here,
        internet,
        lan: network(CloneFlags::CLONE_NEWNET),
    }
}

/// The networks that exist.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) host: Network,
    pub(crate) internet: Network,
    /// Not attached yet.
    pub(crate) lan: Network,
}

impl World {
    /// Attaches the local network, with one host in it.
    pub(crate) fn attach_lan(&self) {
        attach(&self.lan, LAN, (HOST_IN_LAN, &[NEIGHBOUR]), false);
    }
}

fn attach(network: &Network, device: &str, (here, there): (Ipv4Addr, &[Ipv4Addr]), default: bool) {
    let namespace = network.namespace();
    let mut host = Route::open().expect("a socket");
    let [a, b, c, d] = here.octets();
    let veth = Veth {
        here: device,
        there: "eth0",
        there_namespace: namespace.as_fd(),
        hardware_address: [0x06, 0, a, b, c, d],
    };
    let mut apply = |message| host.apply(message).expect("a change of the network");
    apply(route::make_veth(&veth));
    let index =
        Route::open().and_then(|mut route| route.index_of(device).map_err(io::Error::other));
    let index = index.expect("the device");
    apply(route::add_address(index, here, 24));
    apply(mtu(index));
    apply(route::switch_on(index));
    // The network itself sets the other end up.
    let mut control = &network.control;
    for address in there {
        writeln!(control, "{address} 0").expect("the network lives");
        control.read_exact(&mut [0]).expect("the network lives");
    }
    if default {
        apply(route::add_default_route(there[0], index));
        for address in METADATA {
            apply(route::add_route_to(address, index));
        }
    }
}

/// A process in a new network namespace, or in the host's, that serves until this one ends.
fn network(flags: CloneFlags) -> Network {
    let (ours, theirs) = UnixStream::pair().expect("a socket pair");
    match process::fork_with(flags).expect("a process") {
        Side::Parent(process) => {
            drop(theirs);
            let mut ready = [0];
            (&ours).read_exact(&mut ready).expect("servers");
            Network {
                process,
                control: ours,
            }
        }
        Side::Child => {
            drop(ours);
            let _ = prctl::set_pdeathsig(Signal::SIGKILL);
            if let Err(error) = live(&theirs, flags.contains(CloneFlags::CLONE_NEWNET)) {
                eprintln!("a network of the test's world: {error}");
            }
            process::exit_now(0)
        }
    }
}

/// Serves. Connects to `ADDRESS PORT` on request, and adds the address of `ADDRESS 0` to its own.
fn live(control: &UnixStream, own_network: bool) -> io::Result<()> {
    serve()?;
    if own_network {
        loopback::bring_up()?;
    } else {
        serve_datagrams(Ipv4Addr::UNSPECIFIED)?;
    }
    let mut control = control;
    control.write_all(b"r")?;
    for line in BufReader::new(control).lines() {
        let line = line?;
        let (address, port) = line.split_once(' ').ok_or(io::ErrorKind::InvalidData)?;
        let address: IpAddr = address.parse().map_err(io::Error::other)?;
        let reached = match (port.parse().map_err(io::Error::other)?, address) {
            (0, IpAddr::V4(address)) => settle(address)
                .and_then(|()| serve_datagrams(address))
                .is_ok(),
            (port, address) => connect(SocketAddr::new(address, port)).is_ok(),
        };
        control.write_all(if reached { b"y" } else { b"n" })?;
    }
    Ok(())
}

/// Adds an address, and a route for everything else through the host: the most hostile neighbour possible.
fn settle(address: Ipv4Addr) -> io::Result<()> {
    let mut route = Route::open()?;
    let index = route.index_of("eth0").map_err(io::Error::other)?;
    for message in [
        route::add_address(index, address, 32),
        mtu(index),
        route::switch_on(index),
        route::add_default_route(HOST, index),
    ] {
        // Only the first address finds no route.
        let _ = route.apply(message);
    }
    Ok(())
}

/// Gives a link a smaller MTU than functions' links have (RTM_NEWLINK with IFLA_MTU), as tunnels and clouds do.
fn mtu(index: u32) -> Message {
    let mut fixed = [0; 16];
    fixed[4..8].copy_from_slice(&index.to_ne_bytes());
    Message::new("set the MTU", 16, 4, &fixed).with(4, &MTU.to_ne_bytes())
}

/// MTU between the host and the world, bytes.
pub(crate) const MTU: u32 = 1400;

/// Longer than the retransmission of a lost packet takes.
const PATIENCE: Duration = Duration::from_millis(2_000);

/// Connects and reads the greeting.
fn connect(address: SocketAddr) -> io::Result<()> {
    let mut peer = TcpStream::connect_timeout(&address, PATIENCE)?;
    peer.set_read_timeout(Some(PATIENCE))?;
    peer.write_all(b"\n")?;
    let mut line = String::new();
    BufReader::new(peer).read_line(&mut line)?;
    if line.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

/// Tells each client its source address and what it sent.
fn serve() -> io::Result<()> {
    let listener = TcpListener::bind(("::", PORT))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)))?;
    thread::spawn(move || {
        while let Ok((peer, address)) = listener.accept() {
            thread::spawn(move || greet(peer, address));
        }
    });
    Ok(())
}

/// On a single address, so that answers come from it.
fn serve_datagrams(address: Ipv4Addr) -> io::Result<()> {
    for port in [PORT, DNS] {
        let socket = UdpSocket::bind((address, port))?;
        thread::spawn(move || {
            let mut bytes = [0; 1500];
            while let Ok((len, from)) = socket.recv_from(&mut bytes) {
                let answer = match port {
                    DNS => resolve(&bytes[..len]),
                    _ => from.ip().to_string().into_bytes(),
                };
                let _ = socket.send_to(&answer, from);
            }
        });
    }
    Ok(())
}

fn greet(mut peer: TcpStream, address: SocketAddr) -> io::Result<()> {
    writeln!(peer, "{}", address.ip().to_canonical())?;
    let mut line = Vec::new();
    BufReader::new(peer.try_clone()?).read_until(b'\n', &mut line)?;
    peer.write_all(&line)
}

pub(crate) const DNS: u16 = 53;

/// Resolves every name to the server (RFC 1035, 4.1): the question, and one answer.
fn resolve(question: &[u8]) -> Vec<u8> {
    let name_end = question.iter().skip(12).position(|byte| *byte == 0);
    let end = 12 + name_end.unwrap_or(0) + 5;
    let mut answer = question.get(..end).unwrap_or_default().to_vec();
    if answer.len() < 12 {
        return Vec::new();
    }
    // A response with one question and one answer.
    answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
    answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
    answer.extend(SERVER.octets());
    answer
}

/// Becomes readable when a device is added or removed.
pub(crate) fn device_changes() -> OwnedFd {
    const LINK_EVENTS: u32 = 1;
    netlink::events(LINK_EVENTS).expect("a socket")
}

/// Waits for the next change.
pub(crate) fn wait_for(changes: &OwnedFd) {
    let mut fds = [PollFd::new(changes.as_fd(), PollFlags::POLLIN)];
    let ready = poll(&mut fds, PollTimeout::from(10_000_u16)).expect("a socket");
    assert!(ready > 0, "nothing has changed for 10 s");
    netlink::drain(changes);
}

/// The host's network state: devices, tables of nf_tables, devices that forward.
pub(crate) fn inventory() -> Vec<String> {
    let links = Route::open().expect("a socket").links().expect("devices");
    let names: Vec<String> = links.into_iter().map(|(_, name)| name).collect();
    let forwarding = names.iter().filter(|name| {
        let switch = format!("/proc/sys/net/ipv4/conf/{name}/forwarding");
        fs::read_to_string(switch).is_ok_and(|value| value.trim() != "0")
    });
    let forwarding: Vec<String> = forwarding.map(|name| format!("{name} forwards")).collect();
    // NFT_MSG_GETTABLE of all families.
    let list = Message::new("list tables", 10 << 8 | 1, 0x300, &[0; 4]);
    let mut netfilter = Netlink::open(Protocol::Netfilter).expect("a socket");
    let tables = netfilter.transact(&[list]).expect("tables");
    let tables = tables.iter().map(|table| {
        let name = table.attribute(4, 1).unwrap_or_default();
        format!("table {}", String::from_utf8_lossy(name))
    });
    let mut all: Vec<String> = names.into_iter().chain(forwarding).chain(tables).collect();
    all.sort();
    all
}
