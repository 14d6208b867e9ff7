//! The allocator of KV-cache blocks.

/// Ids of free and unused blocks.
#[derive(Debug)]
pub(crate) struct BlockPool {
    freed: Vec<u32>,
    /// Blocks from this id on were never allocated.
    next_unused: u32,
    capacity: u32,
}

impl BlockPool {
    pub(crate) fn new(capacity: u32) -> Self {
        BlockPool { freed: Vec::new(), next_unused: 0, capacity }
    }

    pub(crate) fn alloc(&mut self) -> Option<u32> {
        self.freed.pop().or_else(|| {
            let block = (self.next_unused < self.capacity).then_some(self.next_unused)?;
            self.next_unused += 1;
            Some(block)
        })
    }

    pub(crate) fn free(&mut self, block: u32) {
        self.freed.push(block);
    }

    /// Number of blocks that can be allocated.
    pub(crate) fn num_free(&self) -> usize {
        self.freed.len() + (self.capacity - self.next_unused) as usize
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity as usize
    }
}
