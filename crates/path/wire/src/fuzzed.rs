//! Fuzz targets: what a worker sends. Built for tests and with `--cfg fuzzing` only.

use bytes::{Buf as _, BufMut as _};

use crate::control::Reply;
use crate::meta::{DoneMeta, HeadMeta, ReadyMeta};
use crate::{Frame, FrameDecoder, FrameError, HEADER_LEN, Header};
use crate::{calls, script};

/// Frames of the invocation channel. Wherever the stream is cut, the frames are the same, and each is encoded as it came.
///
/// The first byte is the length of the pieces.
pub fn frames(data: &[u8]) {
    let Some((piece, stream)) = data.split_first() else {
        return;
    };
    let whole = decoded(stream.len().max(1), stream);
    assert_eq!(whole, decoded(usize::from(*piece).max(1), stream));
    let mut rest = stream;
    for frame in &whole.0 {
        let Frame {
            kind,
            stream,
            meta,
            body,
        } = frame;
        let header = Header::new(*kind, *stream, meta, body).expect("a frame that was accepted");
        let mut came = [0; HEADER_LEN];
        rest.copy_to_slice(&mut came);
        let flags = Header::decode(&came).map_or(0, |header| header.flags);
        assert_eq!(Header { flags, ..header }.encode(), came);
        rest.advance(meta.len() + body.len());
        // What the daemon makes of the fields: never a panic.
        let _ = serde_json::from_slice::<ReadyMeta>(meta);
        let _ = serde_json::from_slice::<DoneMeta>(meta);
        let _ = serde_json::from_slice::<HeadMeta>(meta);
    }
}

fn decoded(piece: usize, stream: &[u8]) -> (Vec<Frame>, Option<FrameError>) {
    let mut decoder = FrameDecoder::default();
    let mut frames = Vec::new();
    for part in stream.chunks(piece) {
        let space = decoder.space(part.len());
        assert!(space.capacity() - space.len() >= part.len());
        space.put_slice(part);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
    }
    (frames, None)
}

/// Messages of the control channel, of the channel for calls and of that to an initscript, as a template or a handler sends them.
pub fn messages(data: &[u8]) {
    let _ = serde_json::from_slice::<Reply>(data);
    let _ = calls::ask(data);
    if let Some((header, rest)) = data.split_first_chunk()
        && let Ok(lengths) = calls::Lengths::decode(*header)
    {
        let _ = calls::ask(&rest[..rest.len().min(lengths.meta as usize)]);
    }
    if let Some(header) = data.first_chunk()
        && let Ok(header) = script::Header::decode(*header)
    {
        assert!(header.len <= script::SENT_LEN_MAX);
    }
}

#[cfg(test)]
mod tests {
    use pilot_testkit::corpus;

    #[test]
    fn frames_are_the_same_wherever_they_are_cut() {
        corpus("wire-frames", super::frames);
    }

    #[test]
    fn no_message_of_a_worker_panics() {
        corpus("wire-messages", super::messages);
    }
}
