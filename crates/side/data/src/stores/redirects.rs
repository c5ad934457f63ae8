//! Which redirects of a server are followed.

use reqwest::redirect::Policy;

/// Redirects to the same server are followed. The operator chose this server and no other one.
pub(super) fn same_server() -> Policy {
    Policy::custom(|attempt| {
        let is_same = attempt
            .previous()
            .first()
            .is_some_and(|first| first.origin() == attempt.url().origin());
        if is_same && attempt.previous().len() <= REDIRECTS_MAX {
            attempt.follow()
        } else {
            attempt.stop()
        }
    })
}

/// So often.
pub(super) const REDIRECTS_MAX: usize = 5;
