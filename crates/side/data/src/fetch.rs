//! One fetch: an object of a store becomes a buffer.

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use pilot_model::ports::InputFaultKind;
use pilot_model::size::Size;
use pilot_protocols::FunctionBudget;

use crate::buffer::{Buffer, Filling, HeldBuffers};
use crate::stores::{Store, StoreError};

/// Where the bytes go.
#[derive(Debug, Clone)]
pub(crate) struct Room {
    pub(crate) memory: FunctionBudget,
    pub(crate) held: Arc<HeldBuffers>,
    /// The longest object that fits.
    pub(crate) bytes_max: u64,
}

/// Reads a whole object. Waits until there is room for it. Tries again, with jitter, what failed for a moment.
pub(crate) async fn fetch(store: &dyn Store, key: &str, room: &Room) -> Result<Buffer, StoreError> {
    let mut pause = PAUSE_MIN;
    for _ in 0..store.retries() {
        match fetch_once(store, key, room).await {
            Err(error) if error.kind == InputFaultKind::Unavailable => {}
            end => return end,
        }
        // Full jitter: callers that failed together do not come back together.
        tokio::time::sleep(pause.mul_f64(fastrand::f64())).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
    fetch_once(store, key, room).await
}

async fn fetch_once(store: &dyn Store, key: &str, room: &Room) -> Result<Buffer, StoreError> {
    let mut object = store.get(key).await?;
    let announced = object.len;
    if let Some(len) = announced.filter(|len| *len > room.bytes_max) {
        return Err(too_large(&Size(len).to_string(), room));
    }
    let ours = |error: std::io::Error| {
        StoreError::new(
            InputFaultKind::Unavailable,
            &format!("no memory for it: {error}"),
        )
    };
    let mut filling = Filling::new(&room.memory).map_err(ours)?;
    filling.headers = std::mem::take(&mut object.headers);
    filling.make_room(announced.unwrap_or(0)).await;
    while let Some(bytes) = object.body.try_next().await? {
        let len = filling.len() + bytes.len() as u64;
        match announced {
            Some(announced) if len > announced => return Err(wrong_length(announced, "more")),
            Some(_) => {}
            None if len > room.bytes_max => return Err(too_large("more than that", room)),
            None => filling.make_room(len.next_multiple_of(STEP_LEN)).await,
        }
        filling.push(&bytes).map_err(ours)?;
    }
    if let Some(announced) = announced.filter(|announced| filling.len() < *announced) {
        return Err(wrong_length(announced, "less"));
    }
    filling.seal(&room.held).map_err(ours)
}

fn too_large(len: &str, room: &Room) -> StoreError {
    let problem = format!(
        "it has {len}, and one input may have {}: see data.input_mb and data.function_mb",
        Size(room.bytes_max)
    );
    StoreError::new(InputFaultKind::TooLarge, &problem)
}

fn wrong_length(announced: u64, came: &str) -> StoreError {
    let problem = format!("the store announced {} and sent {came}", Size(announced));
    StoreError::new(InputFaultKind::Broken, &problem)
}

/// Memory of an object of unknown length is reserved in such steps.
const STEP_LEN: u64 = 1 << 20;
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::{StreamExt, stream};
    use pilot_model::BoxFuture;
    use pilot_protocols::MemoryBudget;

    use super::*;
    use crate::stores::Object;

    /// A store whose only object announces a length and sends these parts.
    #[derive(Debug)]
    struct One(u64, &'static [&'static [u8]]);

    impl Store for One {
        fn retries(&self) -> u32 {
            0
        }

        fn get<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Object, StoreError>> {
            let parts = self.1.iter().map(|part| Ok(Bytes::from_static(part)));
            let object = Object {
                len: Some(self.0),
                headers: Vec::new(),
                body: stream::iter(parts).boxed(),
            };
            Box::pin(std::future::ready(Ok(object)))
        }
    }

    fn room(memory: &MemoryBudget) -> Room {
        Room {
            memory: memory.of(&"f".parse().unwrap()),
            held: Arc::default(),
            bytes_max: 1000,
        }
    }

    #[tokio::test]
    async fn an_object_is_as_long_as_announced_or_broken() {
        let memory = MemoryBudget::new(1000, 1000);
        let whole = fetch(&One(6, &[b"pix", b"els"]), "k", &room(&memory))
            .await
            .unwrap();
        assert_eq!(whole.len(), 6);
        drop(whole);
        for (store, problem) in [
            (One(7, &[b"pix", b"els"]), "announced 7 bytes and sent less"),
            (One(5, &[b"pix", b"els"]), "announced 5 bytes and sent more"),
            (One(1001, &[]), "one input may have 1000 bytes"),
        ] {
            let error = fetch(&store, "k", &room(&memory)).await.unwrap_err();
            assert!(error.problem.contains(problem), "{}", error.problem);
        }
        assert_eq!(memory.held(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_fetch_waits_for_room_and_gives_it_back_when_it_is_dropped() {
        let memory = MemoryBudget::new(1 << 20, 1 << 20);
        let first = fetch(&One(6, &[b"pixels"]), "k", &room(&memory))
            .await
            .unwrap();
        let taken = memory
            .of(&"g".parse().unwrap())
            .reserve((1 << 20) - (256 << 10))
            .await;
        let room = room(&memory);
        let waits = fetch(&One(1, &[b"x"]), "k", &room);
        let waits = tokio::time::timeout(Duration::from_secs(60), waits);
        assert!(waits.await.is_err());
        drop(first);
        assert!(fetch(&One(1, &[b"x"]), "k", &room).await.is_ok());
        drop(taken);
    }

    /// Fails for a moment, so many times. Its object has no length.
    #[derive(Debug)]
    struct Shaky(std::sync::atomic::AtomicU32, u32);

    impl Store for Shaky {
        fn retries(&self) -> u32 {
            3
        }

        fn get<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Object, StoreError>> {
            let before = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let last = match before < self.1 {
                true => Err(StoreError::new(InputFaultKind::Unavailable, "broke off")),
                false => Ok(Bytes::from_static(b"els")),
            };
            let object = Object {
                len: None,
                headers: Vec::new(),
                body: stream::iter([Ok(Bytes::from_static(b"pix")), last]).boxed(),
            };
            Box::pin(std::future::ready(Ok(object)))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_breaks_off_is_fetched_again_and_leaves_nothing() {
        let memory = MemoryBudget::new(4 << 20, 4 << 20);
        let buffer = fetch(&Shaky(0.into(), 3), "k", &room(&memory))
            .await
            .unwrap();
        assert_eq!(buffer.len(), 6);
        drop(buffer);
        let error = fetch(&Shaky(0.into(), 4), "k", &room(&memory))
            .await
            .unwrap_err();
        assert_eq!(error.problem, "broke off");
        assert_eq!(memory.held(), 0);
    }
}
