//! The content of a gzip file (RFC 1952). Such a file may have several members, one after the other, and each costs the reader more than
//! a byte of it. So their number is limited, and so is what is read for what comes out: content that cannot be compressed grows by less
//! than a thousandth.

use std::io::{self, BufRead, Read};

use flate2::bufread::GzDecoder;

/// Reads all members.
#[derive(Debug)]
pub(super) struct Gunzip<R> {
    /// `None` after the last one.
    member: Option<GzDecoder<Metered<R>>>,
    members: usize,
}

/// A reader that reads no more than it may.
#[derive(Debug)]
struct Metered<R> {
    inner: R,
    left: u64,
}

impl<R: BufRead> Gunzip<R> {
    pub(super) fn new(packed: R) -> Self {
        let metered = Metered {
            inner: packed,
            left: AHEAD_BYTES_MAX,
        };
        Self {
            member: Some(GzDecoder::new(metered)),
            members: 1,
        }
    }
}

impl<R: BufRead> Read for Gunzip<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        while let Some(member) = &mut self.member {
            let count = member.read(into)?;
            if count > 0 {
                member.get_mut().left += count as u64;
                return Ok(count);
            }
            let rest = self.member.take().map(GzDecoder::into_inner);
            let Some(mut rest) = rest else { break };
            if rest.fill_buf()?.is_empty() {
                break;
            }
            self.members += 1;
            if self.members > MEMBERS_MAX {
                return Err(io::Error::other(format!(
                    "it has more than {MEMBERS_MAX} gzip members"
                )));
            }
            self.member = Some(GzDecoder::new(rest));
        }
        Ok(0)
    }
}

impl<R: BufRead> Read for Metered<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let from = self.fill_buf()?;
        let count = from.len().min(into.len());
        into[..count].copy_from_slice(&from[..count]);
        self.consume(count);
        Ok(count)
    }
}

impl<R: BufRead> BufRead for Metered<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        match self.left {
            0 => Err(io::Error::other("it is longer than what it unpacks to")),
            _ => self.inner.fill_buf(),
        }
    }

    fn consume(&mut self, count: usize) {
        self.left = self.left.saturating_sub(count as u64);
        self.inner.consume(count);
    }
}

/// What is compressed in blocks that can be read by themselves (bgzip) has a member per 64 KiB.
const MEMBERS_MAX: usize = 10_000;
/// What may be read before as much has come out.
const AHEAD_BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn member(content: &[u8]) -> Vec<u8> {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
        gzip.write_all(content).unwrap();
        gzip.finish().unwrap()
    }

    fn unpacked(packed: &[u8]) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        Gunzip::new(packed).read_to_end(&mut content)?;
        Ok(content)
    }

    #[test]
    fn the_members_of_a_file_are_one_content() {
        let packed = [member(b"one "), member(b""), member(b"two")].concat();
        assert_eq!(unpacked(&packed).unwrap(), b"one two");
        let cut = &packed[..packed.len() - 1];
        assert_eq!(
            unpacked(cut).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
        assert!(unpacked(&[&packed[..], b"x"].concat()).is_err());
    }

    #[test]
    fn what_cannot_be_compressed_is_read() {
        // Xorshift (Marsaglia 2003).
        let mut state = 1_u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        })
        .take(1 << 20)
        .flatten()
        .collect();
        assert!(unpacked(&member(&noise)).unwrap() == noise);
    }

    #[test]
    fn members_without_end_are_refused_early() {
        let refused = unpacked(&member(b"").repeat(200_000)).unwrap_err();
        assert_eq!(refused.to_string(), "it has more than 10000 gzip members");
        let full = member(&[b'x'; 1000]).repeat(MEMBERS_MAX);
        assert_eq!(unpacked(&full).unwrap().len(), 1000 * MEMBERS_MAX);
    }

    #[test]
    fn blocks_without_content_are_refused_early() {
        // Stored blocks of no bytes (RFC 1951 §3.2.4), none of which is the last.
        let mut packed = member(b"")[..10].to_vec();
        packed.extend([0, 0, 0, 0xff, 0xff].repeat(1 << 20));
        let refused = unpacked(&packed).unwrap_err();
        assert_eq!(refused.to_string(), "it is longer than what it unpacks to");
    }
}
