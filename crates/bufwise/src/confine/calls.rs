//! Restricts the system calls of a listening server, by seccomp(2).
//!
//! Problem: a mistake in the handling of a peer's input must not reach parts of the kernel that transfers never need.
//! Solution: a call that is not listed fails with ENOSYS, as on a kernel that lacks it. So the filter never kills the
//! process, and a C library that is newer than the list falls back to an older call if it has one.
//! Properties: no program is run and no process is made, no memory becomes executable, and only IP sockets are made.
//! The filter applies to the calling thread and the threads that it starts, which can gain no privilege either.

use std::collections::BTreeMap;
use std::env::consts::ARCH;

use anyhow::Result;
use nix::libc;
use seccompiler::SeccompCmpArgLen::Dword;
use seccompiler::SeccompCmpOp::{Eq, MaskedEq};
use seccompiler::{BpfProgram, SeccompAction, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule};

macro_rules! numbers {
    ($($name:ident)+) => { [$(libc::$name),+] };
}

/// Calls that are allowed with any arguments.
fn listed() -> impl Iterator<Item = i64> {
    let files = numbers! {
        SYS_read SYS_write SYS_readv SYS_writev SYS_pread64 SYS_pwrite64 SYS_preadv SYS_pwritev SYS_lseek SYS_close SYS_fcntl
        SYS_dup SYS_dup3 SYS_openat SYS_openat2 SYS_fstat SYS_newfstatat SYS_statx SYS_statfs SYS_fstatfs SYS_faccessat
        SYS_faccessat2 SYS_readlinkat SYS_getdents64 SYS_getcwd SYS_mkdirat SYS_unlinkat SYS_renameat SYS_renameat2 SYS_linkat
        SYS_fchmod SYS_fchmodat SYS_utimensat SYS_ftruncate SYS_fallocate SYS_fadvise64 SYS_fsync SYS_fdatasync SYS_flock
        SYS_copy_file_range SYS_sendfile SYS_splice SYS_pipe2
    };
    let sockets = numbers! {
        SYS_bind SYS_listen SYS_accept SYS_accept4 SYS_connect SYS_shutdown SYS_getsockname SYS_getpeername SYS_getsockopt
        SYS_setsockopt SYS_sendto SYS_recvfrom SYS_sendmsg SYS_recvmsg SYS_sendmmsg SYS_recvmmsg SYS_ppoll SYS_eventfd2
    };
    let process = numbers! {
        SYS_munmap SYS_mremap SYS_madvise SYS_brk SYS_membarrier SYS_futex SYS_set_robust_list
        SYS_get_robust_list SYS_rseq SYS_set_tid_address SYS_exit SYS_exit_group SYS_rt_sigaction SYS_rt_sigprocmask
        SYS_rt_sigreturn SYS_sigaltstack SYS_tgkill SYS_restart_syscall SYS_sched_yield SYS_sched_getaffinity SYS_getpid
        SYS_gettid SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_prlimit64 SYS_sysinfo SYS_uname SYS_getrandom
        SYS_nanosleep SYS_clock_nanosleep SYS_clock_gettime SYS_clock_getres SYS_gettimeofday
    };
    // poll, and calls with a path but no directory descriptor: newer architectures lack them.
    #[cfg(target_arch = "x86_64")]
    let older = numbers! {
        SYS_open SYS_stat SYS_lstat SYS_access SYS_readlink SYS_rename SYS_unlink SYS_mkdir SYS_rmdir SYS_poll SYS_time
    };
    #[cfg(not(target_arch = "x86_64"))]
    let older = [];
    files.into_iter().chain(sockets).chain(process).chain(older)
}

/// Allowed values of an argument: at least one condition must hold.
type Values = Vec<(SeccompCmpOp, u64)>;

/// Calls that are allowed only with certain values or bits in one argument: call, number of the argument, conditions.
fn bounded() -> [(i64, u8, Values); 6] {
    let (thread, code) = (libc::CLONE_THREAD as u64, libc::PROT_EXEC as u64);
    let (v4, v6) = (libc::AF_INET as u64, libc::AF_INET6 as u64);
    [
        // The filter cannot read clone3's arguments, so clone3 is not listed, and the C library makes threads by clone.
        (libc::SYS_clone, 0, vec![(MaskedEq(thread), thread)]),
        (libc::SYS_mmap, 2, vec![(MaskedEq(code), 0)]),
        (libc::SYS_mprotect, 2, vec![(MaskedEq(code), 0)]),
        (libc::SYS_socket, 0, vec![(Eq, v4), (Eq, v6)]),
        (libc::SYS_ioctl, 1, vec![(Eq, libc::FIONBIO), (Eq, libc::FIOCLEX)]),
        (libc::SYS_prctl, 0, vec![(Eq, libc::PR_SET_NAME as u64)]),
    ]
}

/// Installs the filter, permanently.
///
/// # Errors
/// The kernel has no such filters, or refuses this one.
pub(crate) fn filter_calls() -> Result<()> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = listed().map(|call| (call, Vec::new())).collect();
    for (call, argument, values) in bounded() {
        for (operation, value) in values {
            let condition = SeccompCondition::new(argument, Dword, operation, value)?;
            rules.entry(call).or_default().push(SeccompRule::new(vec![condition])?);
        }
    }
    let unknown = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    let filter = SeccompFilter::new(rules, unknown, SeccompAction::Allow, ARCH.try_into()?)?;
    seccompiler::apply_filter(&BpfProgram::try_from(filter)?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::process::Command;
    use std::thread;

    use nix::errno::Errno;
    use nix::sched::{CloneFlags, unshare};
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

    use super::*;

    /// Runs `work` on a thread that a filtered thread starts.
    fn filtered(work: impl FnOnce() + Send + 'static) {
        let filtered = thread::spawn(|| filter_calls().map(|()| thread::spawn(work).join().unwrap()));
        if filtered.join().unwrap().is_err() {
            bufwise_trial::skip("needs seccomp");
        }
    }

    #[test]
    fn files_sockets_and_threads_go_on() {
        let place = tempfile::tempdir().unwrap();
        filtered(move || {
            let (old, new) = (place.path().join("old"), place.path().join("new"));
            fs::write(&old, "bytes").unwrap();
            fs::rename(old, &new).unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let sent = thread::spawn(move || {
                let read = fs::read(new)?;
                TcpStream::connect(address)?.write_all(&read)
            });
            let mut received = String::new();
            listener.accept().unwrap().0.read_to_string(&mut received).unwrap();
            sent.join().unwrap().unwrap();
            assert_eq!(received, "bytes");
            fs::remove_dir_all(place.path()).unwrap();
        });
    }

    #[test]
    fn no_program_namespace_or_other_socket_can_be_had() {
        filtered(|| {
            let started = Command::new("/bin/true").status();
            assert_eq!(started.unwrap_err().raw_os_error(), Some(Errno::ENOSYS as i32));
            assert_eq!(unshare(CloneFlags::CLONE_NEWUSER), Err(Errno::ENOSYS));
            for family in [AddressFamily::Netlink, AddressFamily::Packet, AddressFamily::Unix] {
                let made = socket(family, SockType::Datagram, SockFlag::empty(), None).map(drop);
                assert_eq!(made, Err(Errno::ENOSYS), "{family:?}");
            }
        });
    }
}
