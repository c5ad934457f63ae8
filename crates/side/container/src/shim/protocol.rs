//! The messages of the shim's protocol: the layout of `base/sys/native/shim.c`, in this machine's byte order. Codec only, no
//! I/O.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use pilot_sys::seqpacket::MESSAGE_LEN_MAX;

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It exited with this status.
    Exited(i32),
    /// It was killed by this signal.
    Signalled(i32),
    /// The container ended first.
    Unknown,
}

/// The receiver of a signal.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Whom {
    /// The program itself.
    Process,
    /// The program and its descendants that are still in its process group.
    Group,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShimError {
    /// The container has ended.
    #[error("the container ended")]
    Gone,
    /// A step in the container failed.
    #[error("{what}: {error}")]
    Failed {
        /// Which step.
        what: String,
        /// The kernel's error.
        error: io::Error,
    },
    /// The request exceeds a limit of the protocol.
    #[error("{0}")]
    TooLarge(String),
    /// It did not answer in time.
    #[error("the shim did not answer within {} s", .0.as_secs())]
    TooSlow(Duration),
    /// It sent an invalid message.
    #[error("the shim sent an invalid message: {0}")]
    Protocol(String),
}

impl ShimError {
    /// As an I/O error, for callers that asked for a socket.
    pub(crate) fn into_io(self) -> io::Error {
        match self {
            Self::Failed { error, .. } => error,
            Self::Gone => io::Error::new(io::ErrorKind::BrokenPipe, self),
            other => io::Error::other(other),
        }
    }
}

/// A program to start.
#[derive(Debug)]
pub(crate) struct Program<'a> {
    /// Its user.
    pub(crate) user: &'a User,
    /// Its working directory.
    pub(crate) dir: &'a str,
    /// Program and arguments. A program without `/` is searched for in the variables' `PATH`.
    pub(crate) argv: &'a [String],
    /// Its complete environment.
    pub(crate) environment: &'a BTreeMap<String, String>,
}

/// A user of the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// In addition to `gid`.
    pub(crate) groups: Vec<u32>,
    /// Home folder.
    pub(crate) home: String,
}

/// A request to the shim.
#[derive(Debug)]
pub(super) enum Request<'a> {
    Exec(&'a Program<'a>),
    Signal {
        process: u64,
        signal: i32,
        whom: Whom,
    },
    Listen {
        port: u16,
    },
    Connect {
        port: u16,
    },
    Kill {
        within: Duration,
    },
    Clean {
        within: Duration,
    },
    Seal {
        places: &'a [String],
    },
    User {
        spec: &'a str,
    },
    Rest,
}

/// A message from the shim.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Hello {
        protocol: u32,
    },
    Done {
        id: u64,
        value: u32,
        payload: Vec<u8>,
    },
    Failed {
        id: u64,
        error: i32,
        what: String,
    },
    Exited {
        id: u64,
        end: Ended,
    },
}

impl Request<'_> {
    /// Encodes the message.
    ///
    /// # Errors
    /// It exceeds a limit.
    pub(super) fn encode(&self, id: u64) -> Result<Vec<u8>, ShimError> {
        let (op, value) = match self {
            Self::Exec(_) => (1, 0),
            Self::Signal { signal, .. } => (2, u32::try_from(*signal).unwrap_or(0)),
            Self::Listen { port } => (3, u32::from(*port)),
            Self::Connect { port } => (4, u32::from(*port)),
            Self::Kill { within } => (5, millis(*within)),
            Self::Clean { within } => (6, millis(*within)),
            Self::Seal { .. } => (7, 0),
            Self::User { .. } => (8, 0),
            Self::Rest => (9, 0),
        };
        let mut message = Vec::with_capacity(64);
        put(&mut message, op);
        put(&mut message, value);
        message.extend(id.to_ne_bytes());
        match self {
            Self::Exec(program) => put_program(&mut message, program)?,
            Self::Signal { process, whom, .. } => {
                message.extend(process.to_ne_bytes());
                put(&mut message, u32::from(matches!(whom, Whom::Group)));
                put(&mut message, 0);
            }
            Self::Seal { places } => {
                for place in *places {
                    put_text(&mut message, place);
                }
            }
            Self::User { spec } => message.extend(spec.as_bytes()),
            Self::Listen { .. }
            | Self::Connect { .. }
            | Self::Kill { .. }
            | Self::Clean { .. }
            | Self::Rest => {}
        }
        if message.len() > MESSAGE_LEN_MAX {
            return Err(ShimError::TooLarge(format!(
                "command and environment are {} bytes together, more than {MESSAGE_LEN_MAX}; make them shorter",
                message.len()
            )));
        }
        Ok(message)
    }
}

fn put_program(message: &mut Vec<u8>, program: &Program<'_>) -> Result<(), ShimError> {
    let words = program.argv.len() + program.environment.len();
    if words > WORDS_MAX || program.user.groups.len() > GROUPS_MAX {
        return Err(ShimError::TooLarge(format!(
            "command and environment have {words} words and the user {} groups, more than {WORDS_MAX} and {GROUPS_MAX}",
            program.user.groups.len()
        )));
    }
    put(message, program.user.uid);
    put(message, program.user.gid);
    for count in [
        program.user.groups.len(),
        program.argv.len(),
        program.environment.len(),
    ] {
        put(message, u32::try_from(count).unwrap_or(u32::MAX));
    }
    for group in &program.user.groups {
        put(message, *group);
    }
    put_text(message, program.dir);
    for word in program.argv {
        put_text(message, word);
    }
    for (key, value) in program.environment {
        message.extend(key.as_bytes());
        message.push(b'=');
        put_text(message, value);
    }
    Ok(())
}

fn put(message: &mut Vec<u8>, number: u32) {
    message.extend(number.to_ne_bytes());
}

/// Ends the text with a NUL. A NUL inside would split it in two, so it is left out (manifests are checked for it, and an image
/// cannot contain one).
fn put_text(message: &mut Vec<u8>, text: &str) {
    message.extend(text.bytes().filter(|byte| *byte != 0));
    message.push(0);
}

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

impl Reply {
    /// `None`: it is invalid.
    pub(super) fn decode(message: &[u8]) -> Option<Self> {
        let (op, rest) = take_u32(message)?;
        let (value, rest) = take_u32(rest)?;
        let (id, payload) = rest.split_first_chunk::<8>()?;
        let id = u64::from_ne_bytes(*id);
        Some(match op {
            100 => Self::Hello { protocol: value },
            101 => Self::Done {
                id,
                value,
                payload: payload.to_vec(),
            },
            102 => Self::Failed {
                id,
                error: i32::try_from(value).unwrap_or(0),
                what: String::from_utf8_lossy(payload).into_owned(),
            },
            103 => Self::Exited {
                id,
                end: end_of(value),
            },
            _ => return None,
        })
    }
}

impl User {
    pub(super) fn decode(payload: &[u8]) -> Option<Self> {
        let (uid, rest) = take_u32(payload)?;
        let (gid, rest) = take_u32(rest)?;
        let (count, mut rest) = take_u32(rest)?;
        let mut groups = Vec::new();
        for _ in 0..count {
            let (group, behind) = take_u32(rest)?;
            groups.push(group);
            rest = behind;
        }
        Some(Self {
            uid,
            gid,
            groups,
            home: String::from_utf8_lossy(rest).into_owned(),
        })
    }
}

fn take_u32(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk::<4>()?;
    Some((u32::from_ne_bytes(*number), rest))
}

/// Decodes a status of wait(2).
fn end_of(status: u32) -> Ended {
    match status & 0x7f {
        0 => Ended::Exited(i32::from(status.to_le_bytes()[1])),
        signal => Ended::Signalled(i32::try_from(signal).unwrap_or(0)),
    }
}

/// `WORDS_MAX` and `GROUPS_MAX` of the shim.
const WORDS_MAX: usize = 4096;
const GROUPS_MAX: usize = 32;
