use bufwise_policy::*;
use bufwise_transfer::mover::*;
use nix::sys::resource::{UsageWho, getrusage};
use std::fs::File;
use std::net::*;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};
fn cpu() -> f64 {
    let u = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
    let f = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 * 1e-6;
    f(u.user_time()) + f(u.system_time())
}
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let mode = args[1].as_str();
    let from = File::open(&args[2]).unwrap();
    let size = from.metadata().unwrap().len();
    let policy: PolicyKind = args.get(5).map_or(PolicyKind::Kernel, |p| p.parse().unwrap());
    let chunk: usize = args.get(4).map_or(256 << 10, |c| c.parse().unwrap());
    let sockets = Sockets::default();
    let listener = sockets.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let rx = sockets.connect(listener.local_addr().unwrap(), Duration::from_secs(5)).unwrap();
    let tx = accept(&listener, "127.0.0.1".parse().unwrap(), Duration::from_secs(5)).unwrap();
    let into = File::options().create(true).write(true).open(&args[3]).unwrap();
    let start = Instant::now();
    let job = Job::default();
    let (a, b) = thread::scope(|s| {
        let t = s.spawn(|| {
            let c0 = cpu();
            let w = Wishes::new(Bytes(1 << 30));
            send(Source::whole(&from), tx, &w, None, &job, |_| {}).unwrap();
            cpu() - c0
        });
        let c0 = cpu();
        match mode {
            "mover" => {
                let mut t = Tuner::new(policy, BuildOptions::default(), None);
                receive(rx, &mut FilePart::new(&into, 0), &mut t, None, &job, |_| {}).unwrap();
            }
            "rw" => {
                use std::io::Read;
                use std::os::unix::fs::FileExt;
                let mut b = vec![0; chunk];
                let mut at = 0;
                let mut rx = rx;
                loop {
                    let n = rx.read(&mut b).unwrap();
                    if n == 0 {
                        break;
                    }
                    into.write_all_at(&b[..n], at).unwrap();
                    at += n as u64;
                }
            }
            "splice" => {
                let (pr, pw) = nix::unistd::pipe().unwrap();
                nix::fcntl::fcntl(&pw, nix::fcntl::FcntlArg::F_SETPIPE_SZ(chunk as i32)).unwrap();
                let mut at: i64 = 0;
                loop {
                    let n = nix::fcntl::splice(
                        rx.as_fd(),
                        None,
                        pw.as_fd(),
                        None,
                        chunk,
                        nix::fcntl::SpliceFFlags::SPLICE_F_MOVE,
                    )
                    .unwrap();
                    if n == 0 {
                        break;
                    }
                    let mut left = n;
                    while left > 0 {
                        left -= nix::fcntl::splice(
                            pr.as_fd(),
                            None,
                            into.as_fd(),
                            Some(&mut at),
                            left,
                            nix::fcntl::SpliceFFlags::SPLICE_F_MOVE,
                        )
                        .unwrap();
                    }
                }
            }
            _ => panic!(),
        }
        let b = cpu() - c0;
        (t.join().unwrap(), b)
    });
    let e = start.elapsed().as_secs_f64();
    let gb = size as f64 / 1e9;
    println!(
        "{mode} {chunk} {policy}: {:.2} Gbit/s, CPU s/GB: sender {:.3} receiver {:.3} total {:.3}",
        gb * 8.0 / e,
        a / gb,
        b / gb,
        (a + b) / gb
    );
}
