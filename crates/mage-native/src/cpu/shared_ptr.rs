//! How do several threads write into one buffer without meeting?
//!
//! By pointers whose users promise to stay apart: each task gets rows, columns or heads of its own.

/// A pointer for reading that threads may share.
#[derive(Clone, Copy)]
pub(crate) struct SharedConst(*const f32);

/// A pointer for writing that threads may share; each must keep to its own part.
#[derive(Clone, Copy)]
pub(crate) struct SharedMut(*mut f32);

// SAFETY: these are addresses. Whoever cos_sin one into memory does so in an unsafe block and says there why no two
// threads touch the same element.
unsafe impl Send for SharedConst {}
// SAFETY: as above.
unsafe impl Sync for SharedConst {}
// SAFETY: as above.
unsafe impl Send for SharedMut {}
// SAFETY: as above.
unsafe impl Sync for SharedMut {}

impl SharedConst {
    pub(crate) fn new(data: &[f32]) -> Self {
        SharedConst(data.as_ptr())
    }

    #[inline(always)]
    pub(crate) fn ptr(self) -> *const f32 {
        self.0
    }

    /// An address further on; only the use of it needs a promise.
    #[inline(always)]
    pub(crate) fn offset(self, by: usize) -> Self {
        SharedConst(self.0.wrapping_add(by))
    }
}

impl SharedMut {
    pub(crate) fn new(data: &mut [f32]) -> Self {
        SharedMut(data.as_mut_ptr())
    }

    #[inline(always)]
    pub(crate) fn ptr(self) -> *mut f32 {
        self.0
    }

    /// An address further on; only the use of it needs a promise.
    #[inline(always)]
    pub(crate) fn offset(self, by: usize) -> Self {
        SharedMut(self.0.wrapping_add(by))
    }

    /// `len` elements from here.
    ///
    /// # Safety
    /// They must lie in the buffer this came from, and nobody else may touch them meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn slice<'a>(self, len: usize) -> &'a mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0, len) }
    }
}
