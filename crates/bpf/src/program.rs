//! Loaded programs: the kernel's information on them, and the cgroups they are attached to.

#![expect(
    unsafe_code,
    reason = "attaching to a cgroup, and asking what is attached, are wrapped by no library"
)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys;

/// Most programs on one cgroup: the kernel's own bound (`BPF_CGROUP_MAX_PROGS`).
const MOST_ON_A_CGROUP: usize = 64;
/// Most maps of one program whose numbers are read; ours have fewer.
const MOST_MAPS: usize = 64;

/// The kernel's information on a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramInfo {
    /// Name of the program, at most 15 bytes.
    pub name: String,
    /// Instructions that the verifier processed before it accepted the program; its bound is a million.
    pub verified_instructions: u32,
    /// Number of runs; 0 unless `kernel.bpf_stats_enabled` is set.
    pub runs: u64,
    /// Time spent in the program, nanoseconds; 0 unless `kernel.bpf_stats_enabled` is set.
    pub run_nanoseconds: u64,
    pub(crate) map_ids: Vec<u32>,
}

impl ProgramInfo {
    pub(crate) fn of(program: BorrowedFd<'_>) -> io::Result<Self> {
        let mut map_ids = vec![0_u32; MOST_MAPS];
        let mut info = libbpf_sys::bpf_prog_info {
            nr_map_ids: MOST_MAPS as u32,
            map_ids: map_ids.as_mut_ptr() as u64,
            ..Default::default()
        };
        let mut length = size_of_val(&info) as u32;
        // SAFETY: the kernel writes at most `length` bytes to `info`, and at most `nr_map_ids` numbers to `map_ids`;
        // both outlive the call.
        let status = unsafe {
            libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut length)
        };
        check(status)?;
        map_ids.truncate(info.nr_map_ids as usize);
        // C's characters are signed on some processors only.
        let name: Vec<u8> = info.name.iter().flat_map(|byte| byte.to_ne_bytes()).collect();
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned();
        let (runs, run_nanoseconds) = (info.run_cnt, info.run_time_ns);
        Ok(Self { name, verified_instructions: info.verified_insns, runs, run_nanoseconds, map_ids })
    }
}

/// Attaches a `sock_ops` program to a cgroup, beside other programs.
pub(crate) fn attach(program: BorrowedFd<'_>, cgroup: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both descriptors are open for the call, which takes no pointers.
    check(unsafe {
        libbpf_sys::bpf_prog_attach(
            program.as_raw_fd(),
            cgroup.as_raw_fd(),
            libbpf_sys::BPF_CGROUP_SOCK_OPS,
            libbpf_sys::BPF_F_ALLOW_MULTI,
        )
    })
}

/// Detaches a program from a cgroup.
pub(crate) fn detach(program: BorrowedFd<'_>, cgroup: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both descriptors are open for the call, which takes no pointers.
    check(unsafe {
        libbpf_sys::bpf_prog_detach2(program.as_raw_fd(), cgroup.as_raw_fd(), libbpf_sys::BPF_CGROUP_SOCK_OPS)
    })
}

/// Returns the `sock_ops` programs on a cgroup itself, without those above; an error stands for a program that may not
/// be opened (notably without CAP_SYS_ADMIN).
pub(crate) fn attached(cgroup: BorrowedFd<'_>) -> io::Result<Vec<io::Result<OwnedFd>>> {
    let mut ids = [0_u32; MOST_ON_A_CGROUP];
    let (mut count, mut flags) = (MOST_ON_A_CGROUP as u32, 0);
    // SAFETY: the kernel writes at most `count` numbers to `ids`, and one each to `count` and `flags`.
    check(unsafe {
        libbpf_sys::bpf_prog_query(
            cgroup.as_raw_fd(),
            libbpf_sys::BPF_CGROUP_SOCK_OPS,
            0,
            &raw mut flags,
            ids.as_mut_ptr(),
            &raw mut count,
        )
    })?;
    let programs = ids.iter().take(count as usize).map(|id| open(*id));
    // A program that was removed meanwhile is skipped.
    let is_gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    Ok(programs.filter(|program| !program.as_ref().is_err_and(is_gone)).collect())
}

/// Starts a pass of an iterator, in the calling thread's network namespace; reading the descriptor to its end runs
/// the pass.
pub(crate) fn iterate(link: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is open for the call, which takes no pointers.
    owned(unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) })
}

fn open(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes a number.
    owned(unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) })
}

/// Converts libbpf's result, a negative error number on failure.
fn check(status: i32) -> io::Result<()> {
    if status < 0 { Err(io::Error::from_raw_os_error(-status)) } else { Ok(()) }
}

/// Takes ownership of the descriptor that one of the calls above returned.
fn owned(result: i32) -> io::Result<OwnedFd> {
    check(result)?;
    // SAFETY: the kernel has just made this descriptor for us; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}
