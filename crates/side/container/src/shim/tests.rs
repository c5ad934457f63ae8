use std::os::fd::AsFd as _;

use super::*;

/// A message from the shim.
fn reply(op: u32, value: u32, id: u64, payload: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    message.extend(op.to_ne_bytes());
    message.extend(value.to_ne_bytes());
    message.extend(id.to_ne_bytes());
    message.extend(payload);
    message
}

/// A pair of message sockets.
fn pair() -> (UnixStream, UnixStream) {
    let (here, there) = seqpacket::pair().unwrap();
    let known = |socket: OwnedFd| {
        let socket = std::os::unix::net::UnixStream::from(socket);
        socket.set_nonblocking(true).unwrap();
        UnixStream::from_std(socket).unwrap()
    };
    (known(here), known(there))
}

/// A connection whose other end the test plays.
async fn connected() -> (Shim, UnixStream) {
    let (here, there) = pair();
    seqpacket::send(
        there.as_fd(),
        &reply(100, pilot_sys::shim::PROTOCOL, 0, b""),
        &[],
    )
    .unwrap();
    (Shim::greet(here).await.unwrap(), there)
}

async fn next(socket: &UnixStream) -> (u32, u32, u64, Vec<u8>) {
    let message = socket
        .async_io(Interest::READABLE, || seqpacket::receive(socket))
        .await
        .unwrap()
        .unwrap();
    let number = |at: usize| u32::from_ne_bytes(message.bytes[at..at + 4].try_into().unwrap());
    let id = u64::from_ne_bytes(message.bytes[8..16].try_into().unwrap());
    (number(0), number(4), id, message.bytes[16..].to_vec())
}

#[tokio::test]
async fn an_end_that_is_told_before_its_start_is_heard() {
    let (shim, there) = connected().await;
    let user = User {
        uid: 1,
        gid: 2,
        groups: vec![3],
        home: "/".to_owned(),
    };
    let argv = ["sh".to_owned(), "-c".to_owned()];
    let environment = [("A".to_owned(), "b".to_owned())].into();
    let program = Program {
        user: &user,
        dir: "/tmp",
        argv: &argv,
        environment: &environment,
    };
    let null = std::fs::File::open("/dev/null").unwrap();
    let fds = [null.as_fd(), null.as_fd(), null.as_fd()];
    let answer = async {
        let (op, _, id, payload) = next(&there).await;
        assert_eq!(op, 1);
        let numbers: Vec<u32> = payload[..24]
            .chunks(4)
            .map(|four| u32::from_ne_bytes(four.try_into().unwrap()))
            .collect();
        assert_eq!(numbers, [1, 2, 1, 2, 1, 3]);
        assert_eq!(&payload[24..], b"/tmp\0sh\0-c\0A=b\0");
        for message in [reply(103, 0x0300, id, b""), reply(101, 77, id, b"")] {
            seqpacket::send(there.as_fd(), &message, &[]).unwrap();
        }
    };
    let (process, ()) = tokio::join!(shim.exec(&program, fds), answer);
    assert_eq!(process.unwrap().ended().await, Ended::Exited(3));
}

#[tokio::test]
async fn a_refusal_names_the_step_and_the_kernels_reason() {
    let (shim, there) = connected().await;
    let answer = async {
        let (op, port, id, _) = next(&there).await;
        assert_eq!((op, port), (4, 8080));
        let refused = reply(102, 111, id, b"connect");
        seqpacket::send(there.as_fd(), &refused, &[]).unwrap();
    };
    let (result, ()) = tokio::join!(shim.connect(8080), answer);
    assert_eq!(
        result.unwrap_err().into_io().kind(),
        io::ErrorKind::ConnectionRefused
    );
}

#[tokio::test]
async fn everyone_who_waits_is_told_when_the_container_ends() {
    let (shim, there) = connected().await;
    let end = async {
        next(&there).await;
        drop(there);
    };
    let (result, ()) = tokio::join!(shim.seal(&[]), end);
    assert!(matches!(result, Err(ShimError::Gone)), "{result:?}");
    assert!(!shim.is_alive());
    assert!(matches!(shim.user("").await, Err(ShimError::Gone)));
}

#[tokio::test]
async fn letting_go_of_it_closes_the_connection() {
    let (shim, there) = connected().await;
    drop(shim);
    let end = there
        .async_io(Interest::READABLE, || seqpacket::receive(&there))
        .await
        .unwrap();
    assert!(end.is_none());
}

#[tokio::test]
async fn a_command_that_is_too_long_is_refused_before_it_is_sent() {
    let (shim, _there) = connected().await;
    let user = User {
        uid: 0,
        gid: 0,
        groups: Vec::new(),
        home: "/".to_owned(),
    };
    let argv = ["x".repeat(100_000)];
    let program = Program {
        user: &user,
        dir: "/",
        argv: &argv,
        environment: &std::collections::BTreeMap::new(),
    };
    let null = std::fs::File::open("/dev/null").unwrap();
    let fds = [null.as_fd(), null.as_fd(), null.as_fd()];
    let error = shim.exec(&program, fds).await.unwrap_err();
    assert!(error.to_string().contains("make them shorter"), "{error}");
}

#[tokio::test]
async fn another_versions_shim_is_refused() {
    let (here, there) = pair();
    seqpacket::send(there.as_fd(), &reply(100, 99, 0, b""), &[]).unwrap();
    assert!(matches!(
        Shim::greet(here).await,
        Err(ShimError::Protocol(_))
    ));
}

#[test]
fn a_user_is_read_with_groups_and_home() {
    let mut payload = Vec::new();
    for number in [1000_u32, 1000, 2, 4, 27] {
        payload.extend(number.to_ne_bytes());
    }
    payload.extend(b"/home/app");
    assert_eq!(
        User::decode(&payload),
        Some(User {
            uid: 1000,
            gid: 1000,
            groups: vec![4, 27],
            home: "/home/app".to_owned()
        })
    );
    assert_eq!(User::decode(&payload[..14]), None);
}
