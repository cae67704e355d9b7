//! Objects that the daemon watches vanish: cgroups, and network namespaces whose last process ends or whose name is
//! unmounted. The daemon goes on with the others, and restores the settings that still exist.

use std::fs;

use nix::sys::signal::Signal;

use crate::place::{Daemon, Net, TestGroup};
use crate::run::{eventually, root, run};
use crate::scene::Scene;
use crate::seeded::steps;

#[test]
fn root_vanish_groups_and_namespaces_under_a_daemon() {
    let Some(_alone) = root() else { return };
    let scene = Scene::new();
    let lasting = scene.stream("the transfer");
    let root_of_view = scene.group.directory().parent().unwrap();
    steps("vanish_groups_and_namespaces_under_a_daemon", 2, |_, random| {
        let short_lived = TestGroup::below(root_of_view);
        let groups = ["--cgroup", &scene.group.path(), "--cgroup", &short_lived.path()];
        let mut daemon = Daemon::ready(&scene.net, &groups);
        for _ in 0..1 + random.below(4) {
            let net = Net::new();
            if random.below(2) == 0 {
                let stream = scene.stream_in(&net, "a short transfer");
                stream.moves();
                stream.finish();
            }
            let named =
                scene.net.command("sh").args(["-c", "mkdir -p /run/netns; touch /run/netns/chaos"]).status();
            assert!(named.unwrap().success());
            let mount = format!("mount --bind /proc/{}/ns/net /run/netns/chaos", net.id());
            assert!(scene.net.command("sh").args(["-c", &mount]).status().unwrap().success());
            drop(net);
            lasting.moves();
            let gone = "umount /run/netns/chaos && rm /run/netns/chaos && rmdir /run/netns";
            assert!(scene.net.command("sh").args(["-c", gone]).status().unwrap().success());
        }
        drop(short_lived);
        lasting.moves();
        assert!(run(&["ls", "--json", "--socket", &daemon.socket()]).status.success(), "{}", daemon.log());
        // The reload reports that a group is missing, and the old configuration stays.
        daemon.signal(Signal::SIGHUP);
        daemon.hears("READY=1");
        assert!(daemon.is_running(), "{}", daemon.log());
        eventually("the transfer is still tuned", || {
            let listed = run(&["ls", "--all", "--json", "--socket", &daemon.socket()]);
            String::from_utf8_lossy(&listed.stdout).contains("\"tuned\":{")
        });
        daemon.signal(Signal::SIGTERM);
        assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
        scene.must_be_as_before();
        lasting.must_be_free();
    });
    lasting.finish();
}

#[test]
fn root_vanish_everything_that_a_killed_daemon_has_touched() {
    let Some(_alone) = root() else { return };
    let scene = Scene::new();
    steps("vanish_everything_that_a_killed_daemon_has_touched", 1, |_, _| {
        let (group, net) = (TestGroup::below(scene.group.directory().parent().unwrap()), Net::new());
        let mut daemon = Daemon::ready(&scene.net, &["--cgroup", &group.path()]);
        let transfer = group.transfer(&net);
        eventually("the maxima are raised", || net.rmem().ends_with(" 67108864"));
        daemon.signal(Signal::SIGKILL);
        daemon.wait();
        drop((transfer, group, net));
        scene.restore();
        scene.must_be_as_before();
    });
}

/// A later version may write unknown lines into the journal; they must not prevent anything.
#[test]
fn root_vanish_of_another_version_whose_journal_has_more() {
    let Some(_alone) = root() else { return };
    let scene = Scene::new();
    let cookie = scene.net.inside(|| bufwise_host::caps::here().unwrap());
    let directory = format!("/proc/{}/root/run/bufwise", scene.net.id());
    fs::create_dir(&directory).unwrap();
    let raised = "4096 131072 7654321";
    scene.net.set_rmem(raised);
    let journal = format!("net.ipv4.tcp_rmem\t{}\t{raised}\nnet.ipv4.tcp_later\t1\t2\n", crate::place::RMEM);
    fs::write(format!("{directory}/caps-{cookie}"), journal).unwrap();
    scene.restore();
    assert_eq!(scene.net.rmem(), crate::place::RMEM);
}
