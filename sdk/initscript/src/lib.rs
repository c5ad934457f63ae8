//! Initscripts for Pilotlight: small WebAssembly programs that fetch what a function needs while its worker starts.
//!
//! ```ignore
//! #![no_std]
//! use initscript::{Error, S3, event};
//!
//! initscript::main!(init);
//!
//! fn init() -> Result<(), Error> {
//!     let mut key = [0; 256];
//!     let photos = S3::connect("photos")?;
//!     // Both requests are sent before anything is waited for.
//!     photos.get(0, event("key", &mut key)?)?.hand_over(0)?;
//!     photos.get(1, "models/resnet50.pth")?.hand_over(1)
//! }
//! ```
//!
//! It needs neither `std` nor an allocator. Keys and texts are copied into buffers of the caller or of the stack. A script that uses `std`
//! leaves `#![no_std]` out and needs the feature `std`: otherwise there are two handlers of panics (E0152).
//! `docs/initscripts.md` explains what a script may do, and `initscript.wit` has the host's functions.

#![no_std]

mod host;
mod text;

use core::fmt;

use text::Text;

/// Why a call of the host failed. [`reason`] has the words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// `initscript.allow` in pilot.toml does not permit it, or [`recv_msg`] without `during = "invocation"`.
    Refused,
    /// The id was used before.
    Duplicate,
    /// There is no such request, reply or value.
    Unknown,
    /// More than a script may have.
    Limit,
    /// The text cannot be used, or does not fit into the buffer.
    Invalid,
    /// The request failed: the store or the server has not answered, or has no such object. Of [`recv_msg`]: the function cannot send any
    /// more.
    Failed,
}

impl Error {
    fn of(code: i64) -> Self {
        match code {
            -1 => Self::Refused,
            -2 => Self::Duplicate,
            -3 => Self::Unknown,
            -4 => Self::Limit,
            -5 => Self::Invalid,
            _ => Self::Failed,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refused => "refused",
            Self::Duplicate => "duplicate id",
            Self::Unknown => "unknown",
            Self::Limit => "limit",
            Self::Invalid => "invalid",
            Self::Failed => "failed",
        })
    }
}

fn checked(code: i32) -> Result<u32, Error> {
    u32::try_from(code).map_err(|_| Error::of(i64::from(code)))
}

/// A bucket of S3, by the name of its store in the daemon's `pilotd.toml`. The host signs the requests.
#[derive(Debug, Clone, Copy)]
pub struct S3(Connection);

impl S3 {
    /// Connects to the store `name`. `allow` in pilot.toml must have `s3://NAME`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn connect(name: &str) -> Result<Self, Error> {
        Connection::to("s3://", name).map(Self)
    }

    /// Begins to read an object. It does not wait. `id` is any number that no other request of this connection has.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Duplicate`], [`Error::Limit`].
    pub fn get(&self, id: u64, key: &str) -> Result<Request, Error> {
        self.0.get(id, key)
    }
}

/// A Redis: a store of the daemon by its name, or `HOST:PORT` of a server without a password.
#[derive(Debug, Clone, Copy)]
pub struct Redis(Connection);

impl Redis {
    /// Connects. `allow` in pilot.toml must have `redis://PLACE`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn connect(place: &str) -> Result<Self, Error> {
        Connection::to("redis://", place).map(Self)
    }

    /// Begins to read the value of a string key. It does not wait.
    ///
    /// # Errors
    /// See [`S3::get`].
    pub fn get(&self, id: u64, key: &str) -> Result<Request, Error> {
        self.0.get(id, key)
    }
}

/// Queues with SQS's API, by the name of their connection in the daemon's `pilotd.toml`. The host signs the requests.
#[derive(Debug, Clone, Copy)]
pub struct Sqs(Connection);

impl Sqs {
    /// Connects to the connection `name`. `allow` in pilot.toml must have `sqs://NAME`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn connect(name: &str) -> Result<Self, Error> {
        Connection::to("sqs://", name).map(Self)
    }

    /// Begins to take one message of a queue. It does not wait, but the server does, up to `wait_s` seconds, if the queue is empty. Of the
    /// reply, [`Reply::value`] gives `Messages.0.Body` and `Messages.0.ReceiptHandle`. Whoever is done with the message deletes it;
    /// otherwise it comes back after the queue's visibility timeout.
    ///
    /// # Errors
    /// See [`S3::get`].
    pub fn receive(&self, id: u64, queue: &str, wait_s: u8) -> Result<Request, Error> {
        let mut arguments = Text::<64>::new();
        arguments.push(b"{\"MaxNumberOfMessages\":1,\"WaitTimeSeconds\":")?;
        arguments.push_number(wait_s.into())?;
        arguments.push(b"}")?;
        self.call(id, "ReceiveMessage", queue, arguments.bytes())
    }

    /// Begins to delete a message by its `ReceiptHandle`. It does not wait.
    ///
    /// # Errors
    /// See [`S3::get`].
    pub fn delete(&self, id: u64, queue: &str, receipt: &str) -> Result<Request, Error> {
        self.call_with(id, "DeleteMessage", queue, "ReceiptHandle", receipt)
    }

    /// Begins to send a message, of at most 3 KiB. It does not wait.
    ///
    /// # Errors
    /// See [`S3::get`]; [`Error::Limit`] if the body is longer.
    pub fn send(&self, id: u64, queue: &str, body: &str) -> Result<Request, Error> {
        self.call_with(id, "SendMessage", queue, "MessageBody", body)
    }

    /// Begins another action of the SQS API. `arguments` is an object of JSON; the host adds the queue's URL.
    ///
    /// # Errors
    /// See [`S3::get`].
    pub fn call(
        &self,
        id: u64,
        action: &str,
        queue: &str,
        arguments: &[u8],
    ) -> Result<Request, Error> {
        let mut text = Text::<4096>::new();
        for part in [
            action.as_bytes(),
            b" ",
            queue.as_bytes(),
            b"\n\n",
            arguments,
        ] {
            text.push(part)?;
        }
        self.0.send(id, text.bytes())
    }

    fn call_with(
        &self,
        id: u64,
        action: &str,
        queue: &str,
        name: &str,
        value: &str,
    ) -> Result<Request, Error> {
        let mut arguments = Text::<3840>::new();
        arguments.push(b"{")?;
        arguments.push_json(name)?;
        arguments.push(b":")?;
        arguments.push_json(value)?;
        arguments.push(b"}")?;
        self.call(id, action, queue, arguments.bytes())
    }
}

/// A gRPC server.
#[derive(Debug, Clone, Copy)]
pub struct Grpc(Connection);

impl Grpc {
    /// Connects to `grpc://HOST:PORT` or `grpcs://HOST[:PORT]`, which `allow` in pilot.toml must have.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn connect(place: &str) -> Result<Self, Error> {
        Connection::to("", place).map(Self)
    }

    /// Begins a unary call of `/PACKAGE.SERVICE/METHOD` with an encoded message, of at most 4 KiB with the method. It does not wait. The
    /// reply is the encoded message of the server.
    ///
    /// # Errors
    /// See [`S3::get`]; [`Error::Limit`] if the message is longer.
    pub fn call(&self, id: u64, method: &str, message: &[u8]) -> Result<Request, Error> {
        let mut text = Text::<4096>::new();
        for part in [&b"POST "[..], method.as_bytes(), b"\n\n", message] {
            text.push(part)?;
        }
        self.0.send(id, text.bytes())
    }
}

/// An HTTP server.
#[derive(Debug, Clone, Copy)]
pub struct Http(Connection);

impl Http {
    /// Connects to `https://HOST[:PORT]` or `http://HOST[:PORT]`, which `allow` in pilot.toml must have.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn connect(url: &str) -> Result<Self, Error> {
        Connection::to("", url).map(Self)
    }

    /// Begins a GET of `/PATH[?QUERY]`. It does not wait.
    ///
    /// # Errors
    /// See [`S3::get`].
    pub fn get(&self, id: u64, target: &str) -> Result<Request, Error> {
        self.0.get(id, target)
    }

    /// Begins a request with headers and a body. Its text has at most 4 KiB.
    ///
    /// # Errors
    /// See [`S3::get`]; [`Error::Limit`] if the text is longer.
    pub fn send(
        &self,
        id: u64,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Request, Error> {
        let mut text = Text::<4096>::new();
        for part in [method, " ", target, "\n"] {
            text.push(part.as_bytes())?;
        }
        for (name, value) in headers {
            for part in [name, ": ", value, "\n"] {
                text.push(part.as_bytes())?;
            }
        }
        text.push(b"\n")?;
        text.push(body)?;
        self.0.send(id, text.bytes())
    }
}

/// A connection without a protocol, which may become the function's.
#[derive(Debug, Clone, Copy)]
pub struct Tcp(Connection);

impl Tcp {
    /// Begins to connect to `tcp://HOST:PORT`, which `allow` in pilot.toml must have. It does not wait.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn connect(place: &str) -> Result<Self, Error> {
        Connection::to("", place).map(Self)
    }

    /// Begins to send bytes, and then to read `count` bytes. Requests of a connection are done one after the other. It does not wait.
    ///
    /// # Errors
    /// See [`S3::get`]; [`Error::Limit`] if the bytes are more than 4 KiB.
    pub fn read(&self, id: u64, bytes: &[u8], count: u16) -> Result<Request, Error> {
        self.exchange(id, b"READ ", bytes, count)
    }

    /// The same, and then to read `count` lines.
    ///
    /// # Errors
    /// See [`Tcp::read`].
    pub fn lines(&self, id: u64, bytes: &[u8], count: u16) -> Result<Request, Error> {
        self.exchange(id, b"LINES ", bytes, count)
    }

    fn exchange(&self, id: u64, how: &[u8], bytes: &[u8], count: u16) -> Result<Request, Error> {
        let mut text = Text::<4112>::new();
        text.push(how)?;
        text.push_number(count)?;
        text.push(b"\n\n")?;
        text.push(bytes)?;
        self.0.send(id, text.bytes())
    }

    /// Gives the connection to the function as connection `id`, when the requests on it have ended. `place` is that of
    /// [`Tcp::connect`]; the function names it, too. It does not wait. The script cannot use the connection any more.
    ///
    /// # Errors
    /// [`Error::Duplicate`], [`Error::Limit`], [`Error::Invalid`].
    pub fn hand_over(self, id: u64, place: &str) -> Result<(), Error> {
        checked(host::transfer_conn(id, place.as_bytes(), self.0.0)).map(|_| ())
    }
}

/// A connection, for requests that are written by hand.
#[derive(Debug, Clone, Copy)]
pub struct Connection(u32);

impl Connection {
    /// Connects to a place such as `s3://photos`.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Invalid`], [`Error::Limit`].
    pub fn open(place: &str) -> Result<Self, Error> {
        Self::to("", place)
    }

    fn to(scheme: &str, place: &str) -> Result<Self, Error> {
        let mut text = Text::<320>::new();
        text.push(scheme.as_bytes())?;
        text.push(place.as_bytes())?;
        checked(host::connect(text.bytes())).map(Self)
    }

    fn get(&self, id: u64, key: &str) -> Result<Request, Error> {
        let mut text = Text::<1088>::new();
        text.push(b"GET ")?;
        text.push(key.as_bytes())?;
        self.send(id, text.bytes())
    }

    /// Sends a request: `METHOD TARGET`, then headers, an empty line and a body where there are any.
    ///
    /// # Errors
    /// See [`S3::get`].
    pub fn send(&self, id: u64, text: &[u8]) -> Result<Request, Error> {
        checked(host::send_rpc(self.0, id, text))?;
        Ok(Request {
            connection: self.0,
            id,
        })
    }
}

/// A request that was sent.
#[derive(Debug, Clone, Copy)]
#[must_use = "nobody gets the reply"]
pub struct Request {
    connection: u32,
    id: u64,
}

impl Request {
    /// Gives the reply to the function as `message`, without a copy, as soon as it is complete. It does not wait.
    ///
    /// # Errors
    /// [`Error::Duplicate`], [`Error::Limit`].
    pub fn hand_over(self, message: u64) -> Result<(), Error> {
        checked(host::send_reply(message, self.connection, self.id)).map(|_| ())
    }

    /// Waits for the reply.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn wait(self) -> Result<Reply, Error> {
        let handle = checked(host::recv_rpc_reply(self.connection, self.id))?;
        Ok(Reply {
            request: self,
            handle,
        })
    }
}

/// A whole reply. Its bytes are with the host until they are read.
#[derive(Debug, Clone, Copy)]
pub struct Reply {
    request: Request,
    handle: u32,
}

impl Reply {
    /// Its length, bytes.
    ///
    /// # Errors
    /// None: the reply is there.
    pub fn len(&self) -> Result<u64, Error> {
        let len = host::reply_len(self.handle);
        u64::try_from(len).map_err(|_| Error::of(len))
    }

    /// The status of an HTTP server; otherwise 200.
    ///
    /// # Errors
    /// None: the reply is there.
    pub fn status(&self) -> Result<u32, Error> {
        checked(host::reply_status(self.handle))
    }

    /// Copies what follows `from`, as far as it fits.
    ///
    /// # Errors
    /// [`Error::Failed`]: the host has no file for it.
    pub fn read<'a>(&self, from: u64, into: &'a mut [u8]) -> Result<&'a [u8], Error> {
        let len = checked(host::reply_read(self.handle, from, into))?;
        into.get(..len as usize).ok_or(Error::Invalid)
    }

    /// A string, number or boolean of a reply that is JSON, as text: `value("Messages.0.Body", &mut buffer)`.
    ///
    /// # Errors
    /// [`Error::Unknown`]: there is none. [`Error::Invalid`]: it does not fit. [`Error::Limit`]: the reply has more than 1 MiB.
    pub fn value<'a>(&self, path: &str, into: &'a mut [u8]) -> Result<&'a str, Error> {
        let len = checked(host::reply_value(self.handle, path.as_bytes(), into))?;
        utf8(into, len)
    }

    /// Gives the reply to the function as `message`, without a copy.
    ///
    /// # Errors
    /// See [`Request::hand_over`].
    pub fn hand_over(self, message: u64) -> Result<(), Error> {
        self.request.hand_over(message)
    }
}

/// A string, number or boolean of the event, as text: `event("Records.0.key", &mut buffer)`.
///
/// # Errors
/// [`Error::Unknown`]: there is none. [`Error::Invalid`]: it does not fit.
pub fn event<'a>(path: &str, into: &'a mut [u8]) -> Result<&'a str, Error> {
    let len = checked(host::event_value(path.as_bytes(), into))?;
    utf8(into, len)
}

/// The same of JSON that the script has.
///
/// # Errors
/// As of [`Reply::value`].
pub fn value<'a>(json: &str, path: &str, into: &'a mut [u8]) -> Result<&'a str, Error> {
    let len = checked(host::json_value(json.as_bytes(), path.as_bytes(), into))?;
    utf8(into, len)
}

/// What `input` in pilot.toml says.
///
/// # Errors
/// [`Error::Invalid`]: it does not fit.
pub fn input(into: &mut [u8]) -> Result<&str, Error> {
    let len = checked(host::input_read(0, into))?;
    utf8(into, len)
}

/// The event itself, JSON, from `at`. Returns the length of what follows `at`; as much as fits is copied.
pub fn event_json(at: u32, into: &mut [u8]) -> u32 {
    host::event_read(at, into).unsigned_abs()
}

/// Why the last call failed, in words.
pub fn reason(into: &mut [u8]) -> &str {
    let len = host::error_read(into).unsigned_abs();
    let len = into.len().min(len as usize);
    utf8(into, len as u32).unwrap_or("")
}

/// A line in the function's log.
pub fn log(text: &str) {
    host::log(text.as_bytes());
}

/// An id that follows from the arguments of a call, so that a script and a library of the function name its result in the same way:
/// `hand_over(id_of(&["download", bucket, key]))`. FNV-1a of 64 bits, of each argument's length and bytes.
pub fn id_of(arguments: &[&str]) -> u64 {
    let mut total = 0xcbf2_9ce4_8422_2325_u64;
    for argument in arguments {
        let len = (argument.len() as u64).to_le_bytes();
        for byte in len.into_iter().chain(argument.bytes()) {
            total = (total ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    total
}

/// Copies bytes to the function as `message`. Use [`Request::hand_over`] for replies.
///
/// # Errors
/// [`Error::Duplicate`], [`Error::Limit`], [`Error::Failed`].
pub fn send_msg(message: u64, bytes: &[u8]) -> Result<(), Error> {
    checked(host::send_msg(message, bytes)).map(|_| ())
}

/// Waits for the message that the function sends as `id`, and copies it: `recv_msg(7, &mut buffer)`. Only with `during = "invocation"`. The
/// wait ends at the latest when the script's time is over, and the script with it. A message can be received more than once.
///
/// # Errors
/// [`Error::Refused`], [`Error::Failed`]; [`Error::Invalid`]: it does not fit.
pub fn recv_msg(id: u64, into: &mut [u8]) -> Result<&[u8], Error> {
    let len = checked(host::recv_msg(id, 0, into))?;
    into.get(..len as usize).ok_or(Error::Invalid)
}

/// The same for a part of a message, from `at`. Returns the length of what follows `at`; as much as fits is copied.
///
/// # Errors
/// [`Error::Refused`], [`Error::Failed`].
pub fn recv_msg_part(id: u64, at: u32, into: &mut [u8]) -> Result<u32, Error> {
    checked(host::recv_msg(id, at, into))
}

/// Ends the script. A status other than 0 is written to the function's log.
pub fn exit(status: i32) -> ! {
    host::exit(status);
    // The host does not return.
    #[allow(clippy::empty_loop, reason = "never reached")]
    loop {}
}

fn utf8(bytes: &[u8], len: u32) -> Result<&str, Error> {
    let text = bytes.get(..len as usize).ok_or(Error::Invalid)?;
    core::str::from_utf8(text).map_err(|_| Error::Invalid)
}

/// The end of a script whose `init` has failed: its error in the log, and a status.
#[doc(hidden)]
pub fn failed(error: Error) -> ! {
    let mut buffer = [0; 512];
    let said = reason(&mut buffer);
    if said.is_empty() {
        log(match error {
            Error::Invalid => "a text does not fit",
            _ => "init failed",
        });
    } else {
        log(said);
    }
    exit(1)
}

/// Makes `fn() -> Result<(), Error>` the script's `run`, and panics traps. With the feature `std`, panics are those of `std`, which
/// trap, too.
#[macro_export]
macro_rules! main {
    ($init:path) => {
        #[unsafe(no_mangle)]
        pub extern "C" fn run() {
            if let Err(error) = $init() {
                $crate::failed(error);
            }
        }

        $crate::panic_handler!();
    };
}

#[cfg(not(feature = "std"))]
#[doc(hidden)]
#[macro_export]
macro_rules! panic_handler {
    () => {
        #[cfg(target_arch = "wasm32")]
        #[panic_handler]
        fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
            core::arch::wasm32::unreachable()
        }
    };
}

/// `std` has one.
#[cfg(feature = "std")]
#[doc(hidden)]
#[macro_export]
macro_rules! panic_handler {
    () => {};
}
