//! The connection to a sandbox's init: requests and their answers.

use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::sys::memfd::{MFdFlags, memfd_create};
use pilot_model::ports::StartError;
use tokio::time::timeout;

use crate::channel::Channel;
use crate::message::{ANSWER_TIME_MAX, ExecSpec, InitReply, InitRequest};
use crate::refused::refused;

/// The connection to a sandbox's init. Each request has its own socket for the answer.
#[derive(Debug)]
pub(crate) struct Control {
    channel: Channel,
}

/// An answer of the init.
pub(crate) struct Reply {
    pub(crate) what: InitReply,
    pub(crate) fds: Vec<OwnedFd>,
}

impl Control {
    /// Of a sandbox whose init has the other end.
    pub(crate) fn new(channel: Channel) -> Self {
        Self { channel }
    }

    /// Whether the init has ended, and with it everything inside.
    pub(crate) fn is_closed(&self) -> bool {
        self.channel.is_closed()
    }

    /// Sends a request whose answers come on another socket, the first descriptor.
    pub(crate) async fn tell(
        &self,
        request: &InitRequest,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), StartError> {
        self.channel
            .send(request, fds)
            .await
            .map_err(refused("send to the sandbox's init"))
    }

    /// Mounts a copy of what is mounted at a folder or file of the host ([`Spawner::tree`]) at an existing path in the sandbox.
    ///
    /// [`Spawner::tree`]: crate::spawner::Spawner::tree
    pub(crate) async fn show(&self, tree: BorrowedFd<'_>, inside: &Path) -> Result<(), StartError> {
        let inside = inside.to_owned();
        self.command(&InitRequest::Show { inside }, &[tree]).await
    }

    /// Shows secrets as files that this user alone can read, until the sandbox is cleaned.
    pub(crate) async fn show_secrets(
        &self,
        files: &[(String, Vec<u8>)],
        user: Option<u32>,
    ) -> Result<(), StartError> {
        if files.is_empty() {
            return Ok(());
        }
        let contents = in_memory(files).map_err(refused("hold secrets in memory"))?;
        let files = files
            .iter()
            .map(|(name, content)| (name.clone(), content.len()))
            .collect();
        self.command(&InitRequest::Secrets { files, user }, &[contents.as_fd()])
            .await
    }

    /// Removes such a mount.
    pub(crate) async fn hide(&self, inside: &Path) -> Result<(), StartError> {
        let inside = inside.to_owned();
        self.command(&InitRequest::Hide { inside }, &[]).await
    }

    /// Starts a program, as [`Sandbox::exec`](crate::sandbox::Sandbox::exec) does, but all descriptors are given, also those of the
    /// cgroup, and nobody is told of its end. Its process id in the sandbox.
    pub(crate) async fn exec_unwatched(
        &self,
        spec: ExecSpec,
        fds: &[BorrowedFd<'_>],
    ) -> Result<i32, StartError> {
        match self.ask(&InitRequest::Exec(spec), fds).await?.0.what {
            InitReply::Started { pid } => Ok(pid),
            other => Err(unexpected(&other)),
        }
    }

    /// Sends a signal to the running programs, or to the worker, without waiting and without a result.
    pub(crate) fn tell_signal(&self, signal: i32) {
        let told = Channel::pair().and_then(|(_, answer)| {
            self.channel
                .send_now(&InitRequest::Signal { signal }, &[answer.as_fd()])
        });
        if let Err(error) = told {
            tracing::debug!(%error, signal, "a signal could not be sent to a sandbox's programs");
        }
    }

    /// Ends every process in the sandbox but the init, without waiting and without a result.
    pub(crate) fn tell_end(&self) {
        let told = Channel::pair()
            .and_then(|(_, answer)| self.channel.send_now(&InitRequest::End, &[answer.as_fd()]));
        if let Err(error) = told {
            tracing::debug!(%error, "a sandbox's processes could not be ended");
        }
    }

    /// A non-blocking socket that listens on 127.0.0.1 in the sandbox; port 0 means any free one.
    pub(crate) async fn listen(&self, port: u16) -> Result<OwnedFd, StartError> {
        let made = self.socket(&InitRequest::Listen { port }).await?;
        made.map_err(|reply| unexpected(&reply))
    }

    /// A non-blocking socket that is connecting to 127.0.0.1 in the sandbox.
    ///
    /// # Errors
    /// As connect(2) in the sandbox: `ConnectionRefused` while nothing listens.
    pub(crate) async fn connect(&self, port: u16) -> io::Result<OwnedFd> {
        let asked = self.socket(&InitRequest::Connect { port }).await;
        match asked.map_err(io::Error::other)? {
            Ok(socket) => Ok(socket),
            Err(InitReply::Failed {
                errno: Some(errno), ..
            }) => Err(io::Error::from_raw_os_error(errno)),
            Err(other) => Err(io::Error::other(unexpected(&other))),
        }
    }

    /// Ends what programs have left behind and what keeps their output open since the last call.
    pub(crate) async fn end_orphans(&self) {
        // If the init does not answer, it is gone and everything with it.
        drop(self.command(&InitRequest::EndOrphans, &[]).await);
    }

    /// Waits until nothing but its init runs in the sandbox, at most [`ANSWER_TIME_MAX`].
    pub(crate) async fn at_rest(&self) {
        // If the init does not answer, it is gone and everything with it; otherwise cleaning reports the error.
        drop(self.command(&InitRequest::Rest, &[]).await);
    }

    /// A socket that the init has made.
    async fn socket(
        &self,
        request: &InitRequest,
    ) -> Result<Result<OwnedFd, InitReply>, StartError> {
        let (mut reply, _) = self.ask(request, &[]).await?;
        Ok(match (reply.what, reply.fds.pop()) {
            (InitReply::Socket, Some(socket)) => Ok(socket),
            (other, _) => Err(other),
        })
    }

    async fn command(
        &self,
        request: &InitRequest,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), StartError> {
        match self.ask(request, fds).await?.0.what {
            InitReply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Sends a request and returns the answer, with the socket on which it came.
    pub(crate) async fn ask(
        &self,
        request: &InitRequest,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Channel), StartError> {
        let (answers, theirs) = Channel::pair().map_err(refused("a socket"))?;
        let mut all = vec![theirs.as_fd()];
        all.extend(fds);
        self.tell(request, &all).await?;
        drop(theirs);
        let (what, fds) = answer(&answers).await?;
        Ok((Reply { what, fds }, answers))
    }
}

/// The contents, one after the other, in a file that has no path (memfd_create(2)).
fn in_memory(files: &[(String, Vec<u8>)]) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("secrets", MFdFlags::MFD_CLOEXEC)?);
    for (_, content) in files {
        file.write_all(content)?;
    }
    file.rewind()?;
    Ok(file.into())
}

/// Waits for an answer of the init, at most [`ANSWER_TIME_MAX`].
pub(crate) async fn answer(control: &Channel) -> Result<(InitReply, Vec<OwnedFd>), StartError> {
    let ended = |problem: &str| StartError::Sandbox {
        problem: format!("the sandbox's init {problem}"),
    };
    let message = timeout(ANSWER_TIME_MAX, control.receive())
        .await
        .map_err(|_| ended("did not answer in time"))?
        .map_err(refused("receive from the sandbox's init"))?
        .ok_or_else(|| ended("ended before it was ready"))?;
    let reply = serde_json::from_slice(&message.bytes)
        .map_err(|error| ended(&format!("sent an invalid answer: {error}")))?;
    Ok((reply, message.fds))
}

/// The error for an answer that is not the expected one.
pub(crate) fn unexpected(reply: &InitReply) -> StartError {
    StartError::Sandbox {
        problem: match reply {
            InitReply::Failed { problem, .. } => problem.clone(),
            InitReply::Dirty { leftover } => format!("cannot clean {leftover}"),
            other => format!("the sandbox's init answered {other:?}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use pilot_sys::seqpacket;

    use super::*;

    /// The result of a connection attempt for this answer of the init.
    async fn connected(answer: InitReply) -> io::Error {
        let (channel, init) = Channel::pair().unwrap();
        let init = std::thread::spawn(move || {
            let asked = seqpacket::receive(&init).unwrap().unwrap();
            let answer = serde_json::to_vec(&answer).unwrap();
            seqpacket::send(asked.fds[0].as_fd(), &answer, &[]).unwrap();
        });
        let error = Control { channel }.connect(8080).await.unwrap_err();
        init.join().unwrap();
        error
    }

    #[tokio::test]
    async fn a_connection_that_is_refused_is_told_by_its_number_and_not_by_words() {
        let refused = connected(InitReply::Failed {
            problem: "in whatever words".to_owned(),
            errno: Some(nix::errno::Errno::ECONNREFUSED as i32),
        });
        assert_eq!(refused.await.kind(), io::ErrorKind::ConnectionRefused);
        let other = connected(InitReply::Failed {
            problem: "it is refused: ECONNREFUSED".to_owned(),
            errno: None,
        });
        assert_ne!(other.await.kind(), io::ErrorKind::ConnectionRefused);
    }
}
