//! Which pages are free?

/// Numbers of pages, handed out and taken back.
#[derive(Debug)]
pub(crate) struct BlockPool {
    returned: Vec<u32>,
    /// Pages from here on were never used.
    fresh: u32,
    capacity: u32,
}

impl BlockPool {
    pub(crate) fn new(capacity: u32) -> Self {
        BlockPool { returned: Vec::new(), fresh: 0, capacity }
    }

    pub(crate) fn take(&mut self) -> Option<u32> {
        self.returned.pop().or_else(|| {
            let page = (self.fresh < self.capacity).then_some(self.fresh)?;
            self.fresh += 1;
            Some(page)
        })
    }

    pub(crate) fn give(&mut self, page: u32) {
        self.returned.push(page);
    }

    /// How many could be taken.
    pub(crate) fn free(&self) -> usize {
        self.returned.len() + (self.capacity - self.fresh) as usize
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity as usize
    }
}
