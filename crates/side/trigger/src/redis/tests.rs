//! The consumer at a server that loses connections and counts.

use std::collections::BTreeMap;

use bytes::Bytes;
use pilot_model::ports::AttemptEnd;
use pilot_model::trigger::FaasTrigger;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch::{self, Sender};
use tokio::task::JoinHandle;

use super::*;
use crate::connections::{ConnectionConfig, ConnectionKind, Connections};
use crate::context::{Stop, TriggerPorts};
use crate::file_calls::FileCalls;
use crate::testing::{FakeStore, Slow};

/// A server with one stream and one consumer. It does not count deliveries.
#[derive(Debug, Default)]
struct Fake {
    /// What was not delivered.
    new: Vec<String>,
    /// What was delivered and is not acknowledged, with the number of deliveries.
    pending: BTreeMap<String, u32>,
    /// So many acknowledgements end their connection instead.
    acknowledgements_lost: u32,
    /// So many reads of new entries end their connection if there is none.
    reads_lost: u32,
    connections: u32,
}

#[derive(Debug)]
struct FakeServer {
    url: String,
    fake: Arc<Mutex<Fake>>,
    task: JoinHandle<()>,
}

impl FakeServer {
    async fn begin(fake: Fake) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}/0", listener.local_addr().unwrap());
        let fake = Arc::new(Mutex::new(fake));
        let shared = Arc::clone(&fake);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                shared.lock().connections += 1;
                connections.spawn(serve(stream, Arc::clone(&shared)));
            }
        });
        Self { url, fake, task }
    }

    async fn until(&self, is_so: impl Fn(&Fake) -> bool) {
        while !is_so(&self.fake.lock()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Answers the commands of a connection until it is lost.
async fn serve(stream: TcpStream, fake: Arc<Mutex<Fake>>) {
    let mut stream = BufReader::new(stream);
    while let Some(command) = read(&mut stream).await {
        let Some(answer) = answer(&command, &fake) else {
            return;
        };
        if answer.is_empty() {
            // A read that waits for new entries.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let answer = if answer.is_empty() {
            "*-1\r\n"
        } else {
            &answer
        };
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// The words of a command (RESP).
async fn read(stream: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    let count: usize = line.strip_prefix('*')?.trim().parse().ok()?;
    let mut words = Vec::new();
    for _ in 0..count {
        line.clear();
        stream.read_line(&mut line).await.ok()?;
        let len: usize = line.strip_prefix('$')?.trim().parse().ok()?;
        let mut word = vec![0; len + 2];
        stream.read_exact(&mut word).await.ok()?;
        word.truncate(len);
        words.push(String::from_utf8(word).ok()?);
    }
    Some(words)
}

/// `None`: the connection is lost. Empty: nothing is new.
fn answer(command: &[String], fake: &Mutex<Fake>) -> Option<String> {
    let mut fake = fake.lock();
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    Some(match words[..] {
        ["XREADGROUP", .., ">"] => {
            let new = std::mem::take(&mut fake.new);
            fake.pending.extend(new.iter().map(|id| (id.clone(), 1)));
            if new.is_empty() {
                fake.reads_lost = match fake.reads_lost {
                    0 => return Some(String::new()),
                    left => left - 1,
                };
                return None;
            }
            format!("*1\r\n*2\r\n$1\r\ns\r\n{}", entries(&new))
        }
        ["XREADGROUP", .., after] => {
            let ids = fake.pending.keys().filter(|id| id.as_str() > after);
            let ids: Vec<String> = ids.cloned().collect();
            format!("*1\r\n*2\r\n$1\r\ns\r\n{}", entries(&ids))
        }
        ["XAUTOCLAIM", ..] => "*3\r\n$3\r\n0-0\r\n*0\r\n*0\r\n".to_owned(),
        ["XACK", _, _, ..] => {
            if fake.acknowledgements_lost > 0 {
                fake.acknowledgements_lost -= 1;
                return None;
            }
            words[3..]
                .iter()
                .for_each(|id| _ = fake.pending.remove(*id));
            ":1\r\n".to_owned()
        }
        ["XPENDING" | "XINFO", ..] => "*0\r\n".to_owned(),
        _ => "+OK\r\n".to_owned(),
    })
}

fn entries(ids: &[String]) -> String {
    let one = |id: &String| {
        format!(
            "*2\r\n${}\r\n{id}\r\n*2\r\n$1\r\na\r\n$1\r\n1\r\n",
            id.len()
        )
    };
    let entries: String = ids.iter().map(one).collect();
    format!("*{}\r\n{entries}", ids.len())
}

/// A trigger that runs.
struct Listening {
    store: Arc<FakeStore>,
    runner: Arc<Slow>,
    stop: Sender<Stop>,
    task: JoinHandle<()>,
}

impl Listening {
    fn begin(server: &FakeServer, end: AttemptEnd, claim_idle_ms: u64) -> Self {
        let (store, runner) = (Arc::<FakeStore>::default(), Slow::new(Duration::ZERO, end));
        let connection = ConnectionConfig {
            name: "main".to_owned(),
            functions: vec!["*".to_owned()],
            kind: ConnectionKind::Redis(RedisAccess {
                url: server.url.clone(),
                user: None,
                password: None,
                ca_pem: None,
            }),
        };
        let shared = Arc::new(TriggerPorts {
            store: Arc::clone(&store) as _,
            runner: Arc::clone(&runner) as _,
            connections: Arc::new(Connections::new(vec![connection])),
            file_calls: FileCalls::default(),
        });
        let config = RedisConfig {
            connection: "main".to_owned(),
            stream: "s".to_owned(),
            group: "g".to_owned(),
            batch_size: 10,
            report_batch_item_failures: false,
            claim_idle_ms,
            max_receives: 2,
        };
        let (stop, stopped) = watch::channel(Stop::No);
        let context = Context {
            shared,
            function: "lab".parse().unwrap(),
            owner: "me".to_owned(),
            trigger: FaasTrigger::Pubsub,
            timeout: Duration::from_secs(3),
            scope: "lab".to_owned(),
            status: Arc::default(),
            stop: stopped,
            failures: 0,
        };
        let task = tokio::spawn(run(context, config));
        Self {
            store,
            runner,
            stop,
            task,
        }
    }

    fn runs(&self) -> usize {
        self.runner.begun.lock().len()
    }

    async fn ends(self) {
        self.stop.send(Stop::ForNow).unwrap();
        self.task.await.unwrap();
    }
}

fn done() -> AttemptEnd {
    AttemptEnd::Done {
        version: 1,
        body: Some(Bytes::from_static(b"null")),
    }
}

fn failed() -> AttemptEnd {
    AttemptEnd::Failed {
        version: 1,
        body: Bytes::from_static(b"{}"),
    }
}

fn one() -> Vec<String> {
    vec!["1-0".to_owned()]
}

#[tokio::test]
async fn what_is_done_is_acknowledged_on_the_next_connection_and_does_not_run_again() {
    let server = FakeServer::begin(Fake {
        new: one(),
        acknowledgements_lost: 2,
        ..Fake::default()
    });
    let server = server.await;
    let listening = Listening::begin(&server, done(), 60_000);
    server
        .until(|fake| fake.new.is_empty() && fake.pending.is_empty())
        .await;
    assert_eq!(listening.runs(), 1);
    assert_eq!(server.fake.lock().acknowledgements_lost, 0);
    listening.ends().await;
}

#[tokio::test]
async fn what_is_done_is_acknowledged_although_the_trigger_ends() {
    let server = FakeServer::begin(Fake {
        new: one(),
        acknowledgements_lost: 1,
        ..Fake::default()
    });
    let server = server.await;
    let listening = Listening::begin(&server, done(), 60_000);
    // It waits before it tries again.
    server.until(|fake| fake.acknowledgements_lost == 0).await;
    listening.ends().await;
    assert!(server.fake.lock().pending.is_empty());
}

#[tokio::test]
async fn an_entry_that_failed_does_not_run_at_each_new_connection() {
    let server = FakeServer::begin(Fake {
        new: one(),
        reads_lost: 2,
        ..Fake::default()
    });
    let server = server.await;
    let listening = Listening::begin(&server, failed(), 60_000);
    // The third reader was sent what is pending before it waits.
    server
        .until(|fake| fake.reads_lost == 0 && fake.connections >= 6)
        .await;
    server.fake.lock().new = vec!["2-0".to_owned()];
    while listening.runs() < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let begun = listening.runner.begun.lock().clone();
    let ids = begun.iter().map(|event| {
        let event: Value = serde_json::from_slice(event).unwrap();
        event["Records"][0]["id"].as_str().unwrap().to_owned()
    });
    assert_eq!(ids.collect::<Vec<_>>(), ["1-0", "2-0"]);
    listening.ends().await;
}

#[tokio::test]
async fn an_entry_becomes_a_dead_letter_although_the_server_forgets_its_deliveries() {
    let server = FakeServer::begin(Fake {
        new: one(),
        reads_lost: u32::MAX,
        ..Fake::default()
    });
    let server = server.await;
    // Less than the wait before a new connection.
    let listening = Listening::begin(&server, failed(), 200);
    server
        .until(|fake| fake.new.is_empty() && fake.pending.is_empty())
        .await;
    let buried = listening
        .store
        .buried
        .load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!((listening.runs(), buried), (2, 1));
    listening.ends().await;
}

#[test]
fn an_entry_becomes_a_record_and_a_deleted_one_does_not() {
    let config = RedisConfig {
        connection: "main".to_owned(),
        stream: "orders".to_owned(),
        group: "g".to_owned(),
        batch_size: 10,
        report_batch_item_failures: false,
        claim_idle_ms: 1000,
        max_receives: 5,
    };
    let entries = [
        StreamEntry {
            id: "5-1".to_owned(),
            fields: Some(vec![
                (b"a".to_vec(), b"1".to_vec()),
                (b"b".to_vec(), vec![255]),
                (b"c".to_vec(), b"1".to_vec()),
                (b"b".to_vec(), vec![254]),
                (b"c".to_vec(), b"2".to_vec()),
                (b"c".to_vec(), b"2".to_vec()),
            ]),
        },
        StreamEntry {
            id: "6-0".to_owned(),
            fields: None,
        },
    ];
    let items = items(&entries, &[("5-1".to_owned(), 3)], &config);
    assert_eq!(items.len(), 1);
    assert_eq!(items[0].receives, 3);
    assert_eq!(
        items[0].record["fields"],
        json!({"a": "1", "c": ["1", "2", "2"]})
    );
    let binary = &items[0].record["binaryFields"];
    assert_eq!(binary, &json!({"b": ["/w==", "/g=="]}));
    assert_eq!(added_ms("5-1"), Some(5));
}
