//! KV cache bookkeeping: the block pool and the prefix tree. Neither knows what a block holds.

pub(crate) mod block_pool;
pub(crate) mod prefix_tree;
