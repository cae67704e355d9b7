//! Makes glibc's allocator return freed memory to the system.
//!
//! Problem: a block of 128 KiB and more is a mapping of its own, which ends when it is freed. But the first such block
//! that is freed raises that limit to its size (up to 32 MiB), and twice as much may then stay free at the end of each
//! heap, of which threads have up to eight for each processor. A daemon that has listed some thousand sockets on
//! several threads may keep tens of megabytes until it ends.
//! Source: mallopt(3), `M_MMAP_THRESHOLD` and `M_ARENA_MAX`; glibc, `malloc/malloc.c`.
//! Properties kept, each a test: large blocks that are freed are no longer resident, whatever was freed before; after
//! [`trim`] no page of freed blocks is, whatever lies above them.

#![cfg_attr(target_env = "gnu", expect(unsafe_code, reason = "no library in use wraps these calls"))]

/// Sets the size of blocks with a mapping of their own, and the free memory at the end of a heap, to 1 MiB, so that the
/// buffers of usual samples need no new pages each time. Bounds the number of heaps to two, because a daemon's threads
/// seldom allocate at the same time.
///
/// The settings hold for the whole process, and override the environment (`MALLOC_ARENA_MAX` and others). Call this before
/// the first thread is started. It does nothing with other allocators than glibc's.
pub fn limit_retained_memory() {
    #[cfg(target_env = "gnu")]
    {
        use libc::{M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, mallopt};
        const HEAPS: libc::c_int = 2;
        const KEPT: libc::c_int = 1 << 20;
        for (setting, value) in [(M_ARENA_MAX, HEAPS), (M_MMAP_THRESHOLD, KEPT), (M_TRIM_THRESHOLD, KEPT)] {
            // SAFETY: mallopt takes two numbers, and sets one under the lock of the allocator.
            let _refused = unsafe { mallopt(setting, value) };
        }
    }
}

/// Returns the freed memory of all heaps to the system once. Other threads that allocate wait meanwhile, some milliseconds for
/// tens of megabytes, so call it while nothing is urgent. It does nothing with other allocators than glibc's.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: malloc_trim takes a number, and works under the locks of the allocator.
        let _released = unsafe { libc::malloc_trim(0) };
    }
}
