//! Freed memory below a block in use goes back to the system: in a process of its own, whose memory no other test changes.
#![cfg(target_env = "gnu")]

use std::fs;
use std::hint::black_box;

const MIB: usize = 1 << 20;

/// Returns the resident memory of this process, bytes.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("a process has a status");
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.parse::<usize>().ok()).expect("the status has its memory") << 10
}

#[test]
fn what_is_freed_below_a_block_in_use_is_no_longer_resident() {
    let before = resident();
    // 32 MB in blocks of a heap: larger ones would be mappings of their own.
    let blocks: Vec<Vec<u8>> = (0..320).map(|_| black_box(vec![1; 100_000])).collect();
    let above = black_box(vec![1_u8; 100_000]);
    drop(blocks);
    let kept = resident();
    assert!(kept >= before + 20 * MIB, "{before} bytes before, {kept} kept by glibc");
    bufwise_socket::heap::trim();
    let after = resident();
    assert!(after < before + 4 * MIB, "{before} bytes before, {after} after");
    drop(black_box(above));
}
