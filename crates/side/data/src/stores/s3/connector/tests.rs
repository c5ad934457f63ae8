use std::sync::Arc;

use crate::stores::s3::{S3Config, S3Credentials, S3Store};
use crate::stores::scripted::{Asked, Scripted, answer, text};
use crate::stores::{Got, Object, Store, StoreError};
use pilot_model::ports::InputFaultKind as Kind;

async fn object(server: &Scripted, key: &str) -> Result<Object, StoreError> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config = S3Config {
        bucket: "photos".to_owned(),
        endpoint: Some(format!("http://{}", server.address)),
        credentials: S3Credentials::Anonymous,
        ..S3Config::default()
    };
    let store: Arc<dyn Store> = Arc::new(S3Store::open(&config).unwrap());
    match store.get(key, None).await? {
        Got::Object(object) => Ok(object),
        Got::Unchanged(_) => panic!("nothing is known"),
    }
}

/// An object that breaks off after half of it, and the answer to a request for the rest.
async fn breaks_off(tag: &'static str, status: &'static str) -> Scripted {
    let answers = move |asked: &Asked| {
        let tag = format!("etag: {tag}\r\n");
        match asked.header("range") {
            "" => answer("200 OK", &tag, 10, "first"),
            range => {
                assert_eq!(range, "bytes=5-9");
                let head = format!("{tag}content-range: bytes 5-9/10\r\n");
                answer(status, &head, 5, "other")
            }
        }
    };
    Scripted::start(answers).await
}

#[tokio::test]
async fn an_object_that_breaks_off_goes_on_with_the_same_strong_tag_only() {
    let server = breaks_off("\"a\"", "206 Partial Content").await;
    let whole = object(&server, "x").await.unwrap();
    assert_eq!(text(whole).await.unwrap(), "firstother");

    let server = breaks_off("W/\"a\"", "206 Partial Content").await;
    let weak = object(&server, "x").await.unwrap();
    assert_eq!(weak.validator, None);
    // Clients of the store are told of it as it is.
    let tag = weak.headers.iter().find(|(name, _)| name == "etag");
    assert_eq!(tag.map(|(_, tag)| tag.as_str()), Some("W/\"a\""));
    let error = text(weak).await.unwrap_err();
    assert_eq!(error.kind, Kind::Unavailable, "{}", error.problem);
}

#[tokio::test]
async fn what_is_no_part_does_not_go_on_with_an_object() {
    let server = breaks_off("\"a\"", "200 OK").await;
    let error = text(object(&server, "x").await.unwrap()).await.unwrap_err();
    assert_eq!(error.kind, Kind::Unavailable);
    assert_eq!(
        error.problem,
        "the transfer broke off, and the store does not send the rest alone"
    );
}

#[tokio::test]
async fn another_success_than_200_is_no_object() {
    let server = Scripted::start(|asked| {
        let status = asked.path.trim_start_matches("/photos/");
        let head = "content-range: bytes 0-2/20\r\n";
        answer(&format!("{status} Odd"), head, 3, "abc")
    })
    .await;
    assert_eq!(
        text(object(&server, "200").await.unwrap()).await.unwrap(),
        "abc"
    );
    for status in ["203", "206", "226"] {
        let error = object(&server, status).await.unwrap_err();
        assert_eq!(error.kind, Kind::Broken, "{}", error.problem);
        assert!(error.problem.contains(status), "{}", error.problem);
    }
}
