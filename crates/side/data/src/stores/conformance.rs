//! One suite that every store passes, the tests' own one included. S3 and HTTP are asked from a small server here, which also does what a
//! good server does not: it breaks off, refuses, and never answers. So is Redis. The real servers are those of `tests/data`.

mod server;

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryStreamExt;
use http_body::Frame;
use http_body_util::StreamBody;
use parking_lot::Mutex;
use pilot_model::BoxFuture;
use pilot_model::ports::{BodyError, InputFaultKind as Kind, StreamedBody};
use tokio::time::timeout;

use super::fake::FakeStore;
use super::file::{FileConfig, FileStore};
use super::http::{HttpConfig, HttpStore};
use super::redis::{RedisConfig, RedisStore};
use super::request::RequestBody;
use super::s3::{S3Config, S3Credentials, S3Store};
use super::{Got, Object, Store, StoreError, Validator};
use server::Server;

type Put = dyn Fn(&str, Vec<u8>);

/// A store, and how its objects get there.
struct Backend {
    store: Arc<dyn Store>,
    put: Box<Put>,
    /// Whether it tells one content from another at once.
    revalidates: bool,
}

async fn object(store: &dyn Store, key: &str) -> Result<Object, StoreError> {
    match store.get(key, None).await? {
        Got::Object(object) => Ok(object),
        Got::Unchanged(_) => panic!("nothing was known"),
    }
}

async fn read(store: &dyn Store, key: &str) -> Result<(Vec<u8>, Option<Validator>), StoreError> {
    let Object {
        len,
        validator,
        body,
        headers: _,
    } = object(store, key).await?;
    let parts: Vec<Bytes> = body.try_collect().await?;
    let bytes = parts.concat();
    assert!(
        len.is_none_or(|len| len == bytes.len() as u64),
        "{key}: {len:?}"
    );
    Ok((bytes, validator))
}

async fn conforms(backend: &Backend) {
    let store = &*backend.store;
    for key in ["none", "folder/none"] {
        let error = read(store, key).await.unwrap_err();
        assert_eq!(error.kind, Kind::NotFound, "{key}: {}", error.problem);
        assert!(
            error.problem.contains("there is no such"),
            "{}",
            error.problem
        );
    }
    let large: Vec<u8> = (0..8 << 20).map(|at: u32| at.to_le_bytes()[1]).collect();
    for (key, body) in [
        ("empty", vec![]),
        ("one", vec![1]),
        ("folder/large", large),
        ("ä/日本 {x}+%20?&#.bin", b"odd".to_vec()),
    ] {
        (backend.put)(key, body.clone());
        let (found, _) = read(store, key).await.unwrap();
        assert!(
            found == body,
            "{key}: {} of {} bytes",
            found.len(),
            body.len()
        );
    }
    (backend.put)("changes", b"before".to_vec());
    let (_, before) = read(store, "changes").await.unwrap();
    assert_eq!(before.is_some(), backend.revalidates);
    if before.is_some() {
        let again = store.get("changes", before.as_ref()).await.unwrap();
        assert!(matches!(again, Got::Unchanged(_)), "{again:?}");
        let other = store.get("one", before.as_ref()).await.unwrap();
        assert!(matches!(other, Got::Object(_)), "{other:?}");
    }
    (backend.put)("changes", b"after!".to_vec());
    let Got::Object(after) = store.get("changes", before.as_ref()).await.unwrap() else {
        panic!("it has changed");
    };
    assert!(before.is_none() || after.validator != before);
    let parts: Vec<Bytes> = after.body.try_collect().await.unwrap();
    assert_eq!(parts.concat(), b"after!");
}

/// What a server can do wrong. It never looks like a whole object, and never like one that is not there.
async fn survives_faults(store: &dyn Store) {
    let denied = read(store, "fault/denied").await.unwrap_err();
    assert_eq!(denied.kind, Kind::Denied, "{}", denied.problem);
    let truncated = read(store, "fault/truncated").await.unwrap_err();
    assert!(
        matches!(truncated.kind, Kind::Unavailable | Kind::Broken),
        "{:?}: {}",
        truncated.kind,
        truncated.problem
    );
    let silent = timeout(Duration::from_millis(300), read(store, "fault/silent")).await;
    assert!(silent.is_err(), "{silent:?}");
    // What nobody waits for any more does not stand in the way.
    assert!(read(store, "one").await.is_ok());
}

async fn is_refused(store: &dyn Store) {
    // The function's timeout ends what is tried again.
    if let Ok(end) = timeout(Duration::from_secs(20), read(store, "one")).await {
        assert_eq!(end.unwrap_err().kind, Kind::Unavailable);
    }
}

fn s3(address: &str) -> Arc<dyn Store> {
    let config = S3Config {
        bucket: "photos".to_owned(),
        endpoint: Some(format!("http://{address}")),
        credentials: S3Credentials::Anonymous,
        ..S3Config::default()
    };
    Arc::new(S3Store::open(&config).unwrap())
}

fn http(address: &str) -> Arc<dyn Store> {
    let config = HttpConfig {
        url: format!("http://{address}/photos/"),
        ca_pem: None,
    };
    Arc::new(HttpStore::open(&config).unwrap())
}

fn redis(address: &str) -> Arc<dyn Store> {
    let config = RedisConfig {
        url: format!("redis://{address}/0"),
        ..RedisConfig::default()
    };
    Arc::new(RedisStore::open(&config, u64::MAX).unwrap())
}

async fn of_server(server: Server, open: fn(&str) -> Arc<dyn Store>, revalidates: bool) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let backend = Backend {
        store: open(&server.address),
        put: Box::new(server.putting()),
        revalidates,
    };
    conforms(&backend).await;
    survives_faults(&*backend.store).await;
    is_refused(&*open("127.0.0.1:1")).await;
}

#[tokio::test]
async fn s3_conforms() {
    of_server(Server::http().await, s3, true).await;
}

/// It has the length and the tag that the store announced.
#[tokio::test]
async fn an_object_of_s3_with_another_checksum_is_broken() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = Server::http().await;
    let error = read(&*s3(&server.address), "fault/changed").await;
    let error = error.unwrap_err();
    assert_eq!(error.kind, Kind::Broken, "{}", error.problem);
    assert!(error.problem.contains("CRC32"), "{}", error.problem);
}

/// A tag speaks of the content alone.
#[tokio::test]
async fn s3_says_anew_what_it_says_about_a_known_object() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = Server::http().await;
    let store = s3(&server.address);
    for key in ["same", "described"] {
        (server.putting())(key, b"content".to_vec());
        let (_, known) = read(&*store, key).await.unwrap();
        let Got::Unchanged(anew) = store.get(key, known.as_ref()).await.unwrap() else {
            panic!("{key} has not changed");
        };
        let modified = anew.map(|anew| anew.headers[0].1.clone());
        let expected = (key == "described").then_some("Sun, 06 Nov 1994 08:49:38 GMT");
        assert_eq!(modified.as_deref(), expected, "{key}");
    }
}

#[tokio::test]
async fn http_conforms() {
    of_server(Server::http().await, http, true).await;
}

/// A server that dies in the middle of an answer looks the same as one that announced too much, so it is asked again.
#[tokio::test]
async fn an_answer_of_http_that_breaks_off_is_of_a_store_that_is_unavailable() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = Server::http().await;
    for key in ["fault/truncated", "fault/cut"] {
        let error = read(&*http(&server.address), key).await.unwrap_err();
        assert_eq!(error.kind, Kind::Unavailable, "{key}: {}", error.problem);
    }
}

#[tokio::test]
async fn redis_conforms() {
    of_server(Server::redis().await, redis, false).await;
}

#[tokio::test]
async fn a_folder_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    let config = FileConfig { path: path.clone() };
    conforms(&Backend {
        store: Arc::new(FileStore::open(&config).unwrap()),
        put: Box::new(move |key, body| {
            let file = path.join(key);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, body).unwrap();
        }),
        // A file that was changed a moment ago may change once more in the same tick of the clock.
        revalidates: false,
    })
    .await;
}

/// Each read of an object is a request with the object as its body.
#[derive(Debug, Default)]
struct Requests(Mutex<HashMap<String, Vec<u8>>>);

impl Store for Requests {
    fn get<'a>(
        &'a self,
        key: &'a str,
        known: Option<&'a Validator>,
    ) -> BoxFuture<'a, Result<Got, StoreError>> {
        let objects = self.0.lock();
        let request = RequestBody::new(objects.get(key).map(|object| {
            let parts: Vec<_> = object.chunks(5000).map(Bytes::copy_from_slice).collect();
            body(parts.into_iter().map(Ok))
        }));
        Box::pin(async move { Store::get(&request, key, known).await })
    }

    fn retries(&self) -> u32 {
        0
    }
}

fn body<I>(parts: I) -> StreamedBody
where
    I: Iterator<Item = Result<Bytes, BodyError>> + Send + 'static,
{
    let frames = parts.map(|part| part.map(Frame::data));
    StreamedBody::new(StreamBody::new(futures_util::stream::iter(frames)))
}

#[tokio::test]
async fn the_body_of_a_request_conforms() {
    let requests = Arc::new(Requests::default());
    let puts = Arc::clone(&requests);
    conforms(&Backend {
        store: requests,
        put: Box::new(move |key, object| drop(puts.0.lock().insert(key.to_owned(), object))),
        revalidates: false,
    })
    .await;
}

#[tokio::test]
async fn the_body_of_a_request_is_read_once_and_not_before_it_is_asked_for() {
    let parts = [Ok(Bytes::from("a")), Err("the client is gone".into())];
    let request = RequestBody::new(Some(body(parts.into_iter())));
    // Whoever waits for room drops the object, and asks again.
    drop(object(&request, "body").await.unwrap());
    let error = read(&request, "body").await.unwrap_err();
    assert_eq!(error.kind, Kind::Broken);
    assert_eq!(error.problem, "it did not arrive: the client is gone");
    let again = read(&request, "body").await.unwrap_err();
    assert!(again.problem.contains("read once"), "{}", again.problem);
}

#[tokio::test]
async fn the_store_of_the_tests_conforms() {
    let store = Arc::new(FakeStore::default());
    let puts = Arc::clone(&store);
    conforms(&Backend {
        store,
        put: Box::new(move |key, body| puts.put(key, body)),
        revalidates: true,
    })
    .await;
}
