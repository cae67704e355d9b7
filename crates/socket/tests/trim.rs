//! Freed memory below a block in use goes back to the system: in a process of its own, whose memory no other test changes.
#![cfg(target_env = "gnu")]

mod memory;

use std::hint::black_box;

use memory::{MIB, resident};

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
