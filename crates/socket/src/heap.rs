//! Has glibc's allocator give freed memory back to the system.
//!
//! Problem: a block of 128 KiB and more is a mapping of its own, which ends when it is freed. But the first such block
//! that is freed raises that limit to its size (up to 32 MiB), and twice as much may then stay free at the end of each
//! heap, of which threads have up to eight for each processor. A daemon that has listed some thousand sockets on
//! several threads may keep tens of megabytes until it ends.
//! Source: mallopt(3), `M_MMAP_THRESHOLD` and `M_ARENA_MAX`; glibc, `malloc/malloc.c`.
//! Properties kept, each a test: large blocks that are freed are no longer resident, whatever was freed before.

#![cfg_attr(target_env = "gnu", expect(unsafe_code, reason = "no library in use wraps mallopt"))]

/// Fixes both limits at 1 MiB, so that buffers of usual samples need no new pages each time, and the number of heaps at
/// two: the threads of a daemon allocate seldom at the same time. It holds for the whole process, and wins over the
/// environment's `MALLOC_ARENA_MAX` and its like; to be called before the first thread is started. Allocators other than
/// glibc's are left as they are.
pub fn give_back_freed() {
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
