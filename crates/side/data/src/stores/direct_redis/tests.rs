use std::net::{IpAddr, Ipv4Addr};

use futures_util::TryStreamExt as _;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::*;

/// A server whose only value, of every key, is "value". Says whenever somebody connects.
async fn server() -> (u16, mpsc::UnboundedReceiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (connected, connections) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = connected.send(());
            tokio::spawn(answer(BufReader::new(stream)));
        }
    });
    (port, connections)
}

async fn answer(mut stream: BufReader<TcpStream>) {
    while let Some(words) = command(&mut stream).await {
        let reply = match words[0].as_str() {
            "TYPE" => "+string\r\n",
            "STRLEN" => ":5\r\n",
            "GETRANGE" => "$5\r\nvalue\r\n",
            "EXEC" => "*1\r\n+PONG\r\n",
            "PING" => "+QUEUED\r\n",
            _ => "+OK\r\n",
        };
        if stream.write_all(reply.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn command(stream: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let mut words = Vec::new();
    for _ in 0..number(stream).await? {
        let mut word = vec![0; number(stream).await? + 2];
        stream.read_exact(&mut word).await.ok()?;
        word.truncate(word.len() - 2);
        words.push(String::from_utf8(word).unwrap());
    }
    Some(words)
}

async fn number(stream: &mut BufReader<TcpStream>) -> Option<usize> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    line.get(1..)?.trim().parse().ok()
}

fn direct() -> DirectRedis {
    DirectRedis::new(Networks::new(vec!["127.0.0.0/8".parse().unwrap()]))
}

async fn read(redis: &DirectRedis, port: u16) -> Vec<u8> {
    let store = redis.at(&format!("redis://localhost:{port}").parse().unwrap());
    let Got::Object(object) = store.get("key", None).await.unwrap() else {
        panic!("nothing was known");
    };
    let parts: Vec<bytes::Bytes> = object.body.try_collect().await.unwrap();
    parts.concat()
}

fn count(connections: &mut mpsc::UnboundedReceiver<()>) -> usize {
    std::iter::from_fn(|| connections.try_recv().ok()).count()
}

#[tokio::test]
async fn starts_share_a_connection_to_an_address() {
    let (port, mut connections) = server().await;
    let redis = direct();
    for _ in 0..5 {
        assert_eq!(read(&redis, port).await, b"value");
    }
    assert_eq!(count(&mut connections), 1);
}

#[tokio::test]
async fn connections_are_given_up_after_a_time_and_beyond_a_number() {
    let (port, mut connections) = server().await;
    let redis = direct();
    read(&redis, port).await;
    tokio::time::pause();
    sleep(AGE_MAX * 2).await;
    assert!(redis.kept.0.lock().is_empty());
    tokio::time::resume();
    read(&redis, port).await;
    assert_eq!(count(&mut connections), 2);
    let other = |last: u8| SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 1, last)), port);
    for last in 0..=u8::try_from(SERVERS_MAX).unwrap() {
        redis.kept.at(other(last));
    }
    assert_eq!(redis.kept.0.lock().len(), SERVERS_MAX);
    read(&redis, port).await;
    assert_eq!(count(&mut connections), 1);
}
