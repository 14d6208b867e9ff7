//! Replay of a recorded meta-episode, to restore a memory that tasks share.

use crate::{Error, Result, policy::Policy};
use mage_core::{Completion, MetaEpisode, Request, RequestRecord, Trajectory};
use mage_engine::BoxFuture;

/// Responds with the completions of a trajectory.
pub(super) struct ReplayPolicy {
    recorded: std::vec::IntoIter<RequestRecord>,
}

impl ReplayPolicy {
    pub(super) fn new(trajectory: Trajectory) -> Self {
        ReplayPolicy { recorded: trajectory.requests.into_iter() }
    }
}

impl Policy for ReplayPolicy {
    fn respond<'a>(&'a mut self, request: &'a Request, _meta: &MetaEpisode) -> BoxFuture<'a, Result<Completion>> {
        let record = self.recorded.next().filter(|r| r.messages == request.body.messages);
        Box::pin(async {
            let changed = || Error::Stopped("its trajectory does not match its requests; use a new file".to_owned());
            record.map(|r| r.completion).ok_or_else(changed)
        })
    }
}
