//! Decodes one input: a process of `pilot` in a sandbox, which gets the bytes of a store on a socket and answers with an array, a
//! table or a JSON text (`pilot_model::inputs::decoded`). `decoders` has the formats, and `confine` what the process gives up
//! before it reads.
//!
//! The bytes are hostile, and so is this process as soon as it has read them. The daemon believes no answer of it.

mod confine;
mod decoders;

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;

use pilot_model::inputs::decoded::{
    ALIGNMENT, DecodeAnswer, DecodeRequest, HEADER_LEN_MAX, Layout,
};

/// Decodes the input on descriptor 0, a stream socket, and answers there.
///
/// # Errors
/// The socket, or what the daemon asks for. That the input cannot be decoded is an answer.
pub fn run() -> Result<(), String> {
    let socket = io::stdin().as_fd().try_clone_to_owned();
    let socket = File::from(socket.map_err(|error| format!("descriptor 0: {error}"))?);
    answer_panics(&socket)?;
    let mut input = BufReader::with_capacity(BUFFER_LEN, &socket);
    let request = request(&mut input)?;
    let confined = confine::confine(request.memory_bytes);
    let decoded = confined.and_then(|()| decode(&request, &mut input));
    let told = decoded.and_then(|made| {
        let len = made.len();
        match len <= request.bytes_max {
            true => Ok((made, len)),
            false => Err(too_long(len, &request)),
        }
    });
    let sent = match told {
        Ok((Made { layout, parts }, len)) => {
            send(&socket, &DecodeAnswer::Done { len, layout }).and_then(|()| write(&socket, &parts))
        }
        Err(problem) => send(&socket, &DecodeAnswer::Failed { problem }),
    };
    sent.map_err(|error| format!("answer: {error}"))
}

/// What was decoded.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) layout: Layout,
    /// Each begins at a multiple of [`ALIGNMENT`].
    pub(crate) parts: Vec<Vec<u8>>,
}

impl Made {
    fn len(&self) -> u64 {
        let (last, before) = match self.parts.split_last() {
            Some((last, before)) => (last.len() as u64, before),
            None => (0, [].as_slice()),
        };
        before.iter().map(|part| aligned(part.len())).sum::<u64>() + last
    }
}

/// The position after this many bytes at which the next part begins.
pub(crate) fn aligned(len: usize) -> u64 {
    (len as u64).next_multiple_of(ALIGNMENT)
}

/// The longest result is shorter than this.
pub(crate) fn too_long(len: u64, request: &DecodeRequest) -> String {
    format!(
        "the result would have {len} bytes, and one input may have {}: see data.input_mb and data.function_mb",
        request.bytes_max
    )
}

/// A decoder that panics says so.
fn answer_panics(socket: &File) -> Result<(), String> {
    let socket = socket
        .try_clone()
        .map_err(|error| format!("descriptor 0: {error}"))?;
    std::panic::set_hook(Box::new(move |panic| {
        let problem = format!("the decoder failed: {panic}");
        let _ = send(&socket, &DecodeAnswer::Failed { problem });
        std::process::abort();
    }));
    Ok(())
}

fn request(input: &mut impl BufRead) -> Result<DecodeRequest, String> {
    let mut line = String::new();
    let read = input.by_ref().take(REQUEST_LEN_MAX).read_line(&mut line);
    read.map_err(|error| format!("descriptor 0: {error}"))?;
    serde_json::from_str(&line).map_err(|error| format!("the request cannot be read: {error}"))
}

fn decode(request: &DecodeRequest, input: &mut impl Read) -> Result<Made, String> {
    let mut bytes = Vec::new();
    let len = usize::try_from(request.len.unwrap_or(0)).unwrap_or(0);
    bytes
        .try_reserve_exact(len)
        .map_err(|_| "there is no memory for it".to_owned())?;
    let read = input.read_to_end(&mut bytes);
    read.map_err(|error| format!("it could not be read: {error}"))?;
    decoders::decode(request, bytes)
}

/// The length of the header, and the header.
fn send(mut socket: &File, answer: &DecodeAnswer) -> io::Result<()> {
    let answer = match answer {
        DecodeAnswer::Failed { problem } => Cow::Owned(DecodeAnswer::Failed {
            problem: problem.chars().take(PROBLEM_LEN_MAX).collect(),
        }),
        done @ DecodeAnswer::Done { .. } => Cow::Borrowed(done),
    };
    let mut json = serde_json::to_vec(&answer)?;
    if json.len() > HEADER_LEN_MAX {
        let problem = format!(
            "its header has {} bytes, and may have {HEADER_LEN_MAX}: it has too many columns, or their names are too long",
            json.len()
        );
        json = serde_json::to_vec(&DecodeAnswer::Failed { problem })?;
    }
    let len = u32::try_from(json.len()).map_err(io::Error::other)?;
    let mut message = len.to_le_bytes().to_vec();
    message.extend(json);
    socket.write_all(&message)
}

fn write(mut socket: &File, parts: &[Vec<u8>]) -> io::Result<()> {
    for (number, part) in parts.iter().enumerate() {
        socket.write_all(part)?;
        let padding = aligned(part.len()) - part.len() as u64;
        if number + 1 < parts.len() {
            io::copy(&mut io::repeat(0).take(padding), &mut socket)?;
        }
    }
    Ok(())
}

const BUFFER_LEN: usize = 64 << 10;
const REQUEST_LEN_MAX: u64 = 4 << 10;
const PROBLEM_LEN_MAX: usize = 1000;
