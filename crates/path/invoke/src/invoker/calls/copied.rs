//! Data for a function on this node without a reference: as if it came with the request's body. It is read in parts and written to memory
//! of the target's own. Only to measure what handing over by reference gains (`by_reference = false`).

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use pilot_model::FunctionName;
use pilot_model::ports::{InputMemory, InputSource, MemoryFault, There};
use pilot_wire::calls::Refusal;

use super::buffers::all_of;

/// A copy of the data, which counts as memory of the target.
///
/// # Errors
/// There is no room for it, or no memory.
pub(super) async fn copied(
    source: &dyn InputSource,
    target: &FunctionName,
    data: &dyn InputMemory,
) -> Result<Arc<dyn InputMemory>, Refusal> {
    let There { file, len } = all_of(data)?;
    let blank = source.blank(target, len).await?;
    let mut at = 0;
    while at < len {
        let until = len.min(at + STEP_LEN);
        // A call that has ended copies no further.
        let (from, to) = (Arc::clone(&file), blank.descriptor());
        let copying = tokio::task::spawn_blocking(move || match to {
            Some(to) => copy(&from, &to, at, until),
            None => Err(io::ErrorKind::InvalidInput.into()),
        });
        let copied = copying.await.map_err(io::Error::other);
        copied
            .and_then(|copied| copied)
            .map_err(|error| MemoryFault::Failed {
                problem: format!("the data cannot be copied: {error}"),
            })?;
        at = until;
    }
    Ok(blank.seal().await?)
}

/// Through memory of the daemon, as what comes from a connection.
fn copy(from: &Arc<OwnedFd>, to: &Arc<OwnedFd>, mut at: u64, until: u64) -> io::Result<()> {
    let (from, to) = (File::from(from.try_clone()?), File::from(to.try_clone()?));
    let mut part = vec![0; PART_LEN];
    while at < until {
        let len = usize::try_from(until - at).map_or(PART_LEN, |left| left.min(PART_LEN));
        let part = &mut part[..len];
        from.read_exact_at(part, at)?;
        to.write_all_at(part, at)?;
        at += len as u64;
    }
    Ok(())
}

/// What is copied between two looks at whether the call goes on.
const STEP_LEN: u64 = 16 << 20;
/// As much as is read from a connection at once.
const PART_LEN: usize = 256 << 10;
