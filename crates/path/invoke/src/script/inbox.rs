//! What a function has sent to its script. The worker is not trusted: the number and the length of its messages are checked before they are
//! read, and their memory is taken from a budget of all functions as they arrive. Without memory, the socket is not read, so the
//! worker waits.
//!
//! A message stays until the script has ended, so that a script can read a long one in parts.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use pilot_model::ports::BoxFuture;
use pilot_protocols::{FunctionBudget, MemoryBudget, read_reserved};
use pilot_wire::script::{HEADER_LEN, Header, SENT_MAX, SENT_TOTAL_MAX};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::watch;

/// Memory for the messages of all functions to their scripts, and the share of one function.
const MESSAGES_BYTES_MAX: usize = 64 << 20;
const MESSAGES_SHARE_MAX: usize = 16 << 20;

/// How long a function may take to send a message that it has begun. What has arrived is in the memory for all functions.
const UNSENT_TIME_MAX: Duration = Duration::from_secs(5);

/// The memory for the messages of all functions to their scripts.
pub(crate) fn messages_memory() -> MemoryBudget {
    MemoryBudget::new(MESSAGES_BYTES_MAX, MESSAGES_SHARE_MAX)
}

/// The messages of a function to one run of its script.
#[derive(Debug, Default)]
pub(super) struct Inbox(watch::Sender<Arrived>);

#[derive(Debug, Default)]
struct Arrived {
    messages: HashMap<u64, Bytes>,
    bytes: usize,
    /// Nothing else will come.
    is_closed: bool,
}

impl Inbox {
    /// Waits for a message. `None`: it will not come.
    pub(super) fn message(&self, id: u64) -> BoxFuture<'static, Option<Bytes>> {
        let mut arrived = self.0.subscribe();
        Box::pin(async move {
            let is_known =
                |arrived: &Arrived| arrived.is_closed || arrived.messages.contains_key(&id);
            let arrived = arrived.wait_for(is_known).await.ok()?;
            arrived.messages.get(&id).cloned()
        })
    }

    /// Reads messages until the worker closes its end or breaks the protocol.
    ///
    /// # Errors
    /// Those of the protocol and of the socket.
    pub(super) async fn fill(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        memory: &FunctionBudget,
    ) -> io::Result<()> {
        let ended = self.read(from, memory).await;
        self.close();
        ended
    }

    async fn read(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        memory: &FunctionBudget,
    ) -> io::Result<()> {
        loop {
            let mut header = [0; HEADER_LEN];
            match from.read_exact(&mut header).await {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                read => read?,
            };
            let Header { id, len } = Header::decode(header).map_err(invalid)?;
            let len = usize::try_from(len).map_err(invalid)?;
            self.check(id, len).map_err(invalid)?;
            let bytes = read_reserved(from, len, memory, UNSENT_TIME_MAX).await?;
            self.0.send_modify(|arrived| {
                arrived.bytes += len;
                arrived.messages.insert(id, bytes);
            });
        }
    }

    /// A worker checks the same before it sends.
    fn check(&self, id: u64, len: usize) -> Result<(), &'static str> {
        let arrived = self.0.borrow();
        if arrived.messages.contains_key(&id) {
            return Err("a message has the id of one before");
        }
        if arrived.messages.len() >= SENT_MAX || arrived.bytes + len > SENT_TOTAL_MAX {
            return Err("there are more messages than a script may get");
        }
        Ok(())
    }

    /// Nothing else will come. What is here can still be received.
    pub(super) fn close(&self) {
        self.0.send_modify(|arrived| arrived.is_closed = true);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.0.borrow().is_closed
    }

    /// The script has ended: gives the memory back.
    pub(super) fn clear(&self) {
        self.0.send_modify(|arrived| {
            arrived.is_closed = true;
            arrived.messages = HashMap::new();
        });
    }
}

fn invalid(problem: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pilot_wire::script::SENT_LEN_MAX;
    use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::task::JoinHandle;

    use super::*;

    fn header(id: u64, len: u32) -> [u8; HEADER_LEN] {
        let mut header = [0; HEADER_LEN];
        header[..8].copy_from_slice(&id.to_le_bytes());
        header[8..].copy_from_slice(&len.to_le_bytes());
        header
    }

    fn message(id: u64, bytes: &[u8]) -> Vec<u8> {
        let len = u32::try_from(bytes.len()).unwrap();
        [&header(id, len)[..], bytes].concat()
    }

    /// An inbox that is being filled, its memory, and the worker's end.
    struct Filling {
        inbox: Arc<Inbox>,
        memory: MemoryBudget,
        worker: DuplexStream,
        task: JoinHandle<io::Result<()>>,
    }

    impl Filling {
        fn new() -> Self {
            Self::with(messages_memory())
        }

        fn with(memory: MemoryBudget) -> Self {
            let inbox = Arc::new(Inbox::default());
            let (worker, mut ours) = duplex(64 << 10);
            let of_task = Arc::clone(&inbox);
            let budget = memory.of(&"f".parse().unwrap());
            let task = tokio::spawn(async move { of_task.fill(&mut ours, &budget).await });
            Self {
                inbox,
                memory,
                worker,
                task,
            }
        }

        /// What the worker sends, until nobody reads it.
        async fn send(&mut self, messages: &[&[u8]]) {
            for message in messages {
                if self.worker.write_all(message).await.is_err() {
                    return;
                }
            }
        }

        async fn problem(self) -> String {
            self.task.await.unwrap().unwrap_err().to_string()
        }
    }

    #[tokio::test]
    async fn either_side_may_be_first_and_a_message_is_received_as_often_as_the_script_wants() {
        let mut filling = Filling::new();
        let waits = tokio::spawn(filling.inbox.message(u64::MAX));
        filling
            .send(&[&message(7, b"first"), &message(8, b"")])
            .await;
        assert_eq!(filling.inbox.message(7).await.unwrap(), "first");
        assert_eq!(filling.inbox.message(8).await.unwrap(), "");
        assert!(!waits.is_finished());
        let [head, tail] = [&b"la"[..], b"st"];
        filling.send(&[&header(u64::MAX, 4), head, tail]).await;
        assert_eq!(waits.await.unwrap().unwrap(), "last");
        assert_eq!(filling.inbox.message(7).await.unwrap(), "first");
        assert_eq!(filling.memory.held(), 9);
        filling.inbox.clear();
        assert_eq!(filling.memory.held(), 0);
        assert_eq!(filling.inbox.message(7).await, None);
    }

    #[tokio::test]
    async fn the_end_of_the_worker_ends_the_wait_for_what_has_not_come_whole() {
        let mut filling = Filling::new();
        filling
            .send(&[&message(1, b"here"), &header(2, 5), b"part"])
            .await;
        let waits = tokio::spawn(filling.inbox.message(2));
        drop(filling.worker);
        assert_eq!(waits.await.unwrap(), None);
        // What has come is still there.
        assert_eq!(filling.inbox.message(1).await.unwrap(), "here");
        assert!(filling.inbox.is_closed());
        assert_eq!(filling.memory.held(), 4);
    }

    #[tokio::test]
    async fn a_worker_that_breaks_the_protocol_is_read_no_more() {
        let large = vec![7; SENT_LEN_MAX as usize];
        let long = |id| message(id, &large);
        let small: Vec<Vec<u8>> = (0..=SENT_MAX as u64).map(|id| message(id, b"x")).collect();
        let small: Vec<&[u8]> = small.iter().map(Vec::as_slice).collect();
        for (messages, problem, held) in [
            // Only the header: nothing was read or taken of what it announces.
            (vec![&header(0, SENT_LEN_MAX + 1)[..]], "over the limit", 0),
            (vec![&header(0, u32::MAX)], "over the limit", 0),
            (
                vec![&message(3, b"one"), &header(3, 9)],
                "the id of one before",
                3,
            ),
            (small, "more messages than", SENT_MAX),
            (
                vec![&long(0), &long(1), &long(2), &long(3), &header(4, 1)],
                "more messages than",
                SENT_TOTAL_MAX,
            ),
        ] {
            let mut filling = Filling::new();
            filling.send(&messages).await;
            let (inbox, memory) = (Arc::clone(&filling.inbox), filling.memory.clone());
            let found = filling.problem().await;
            assert!(found.contains(problem), "{found}");
            assert_eq!(memory.held(), held);
            assert_eq!(inbox.message(99).await, None);
        }
    }

    #[tokio::test]
    async fn without_memory_the_socket_is_not_read() {
        let memory = MemoryBudget::new(10, 10);
        let others = memory.of(&"f".parse().unwrap()).reserve(6).await;
        let mut filling = Filling::with(memory);
        filling
            .send(&[&message(0, b"four"), &message(1, b"more")])
            .await;
        assert_eq!(filling.inbox.message(0).await.unwrap(), "four");
        let waits = tokio::spawn(filling.inbox.message(1));
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        assert_eq!(filling.memory.held(), 10);
        drop(others);
        assert_eq!(waits.await.unwrap().unwrap(), "more");
    }
}
