//! Freed memory goes back to the system: in a process of its own, whose memory no other test changes.
#![cfg(target_env = "gnu")]

mod memory;

use std::hint::black_box;

use memory::{MIB, resident};

#[test]
fn large_blocks_that_are_freed_are_no_longer_resident() {
    bufwise_socket::heap::limit_retained_memory();
    let before = resident();
    // Without the setting, blocks up to this size would be parts of a heap from now on.
    drop(black_box(vec![1_u8; 16 * MIB]));
    let blocks: Vec<Vec<u8>> = (0..8).map(|_| black_box(vec![1; 4 * MIB])).collect();
    let above = black_box(vec![1_u8; 100_000]);
    let during = resident();
    assert!(during >= before + 30 * MIB, "{before} bytes before, {during} in use");
    drop(blocks);
    let after = resident();
    assert!(after < before + 8 * MIB, "{before} bytes before, {after} after");
    drop(black_box(above));
}
