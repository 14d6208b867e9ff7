//! Pointers for parallel writes to disjoint parts of one buffer.
//!
//! Each task accesses its own rows, columns or heads; the users of the pointers guarantee it.

/// A read pointer that threads may share.
#[derive(Clone, Copy)]
pub(crate) struct SharedConst(*const f32);

/// A write pointer that threads may share; each thread must access only its own part.
#[derive(Clone, Copy)]
pub(crate) struct SharedMut(*mut f32);

// SAFETY: these are addresses. Every dereference is an unsafe block that states why no two threads access the same element.
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

    /// The pointer advanced by `by` elements. Safe, since only a dereference is not.
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

    /// The pointer advanced by `by` elements. Safe, since only a dereference is not.
    #[inline(always)]
    pub(crate) fn offset(self, by: usize) -> Self {
        SharedMut(self.0.wrapping_add(by))
    }

    /// A slice of `len` elements from the pointer.
    ///
    /// # Safety
    /// The elements must lie within the original buffer, and no other reference to them may be used meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn slice<'a>(self, len: usize) -> &'a mut [f32] {
        // SAFETY: guaranteed by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.0, len) }
    }
}
