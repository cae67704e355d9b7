//! The journal's rules, on a directory that looks like /proc/sys: random owners, deaths and administrators.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use proptest::prelude::*;

use super::*;

const NAMESPACE: u64 = 7;
const OWNERS: usize = 3;
/// Maxima that owners request are multiples of this; the administrator's are not.
const STEP: u64 = 1_000;

#[derive(Clone, Copy, Debug)]
enum Event {
    Raise { owner: usize, tcp: u64, core: u64 },
    Release(usize),
    Kill(usize),
    Notice(usize),
    Administrator { setting: usize, maximum: u64 },
    NextStart,
}

fn event() -> impl Strategy<Value = Event> {
    let owner = || 0..OWNERS;
    let wanted = || (1_u64..20).prop_map(|steps| steps * STEP);
    prop_oneof![
        (owner(), wanted(), wanted()).prop_map(|(owner, tcp, core)| Event::Raise { owner, tcp, core }),
        owner().prop_map(Event::Release),
        owner().prop_map(Event::Kill),
        owner().prop_map(Event::Notice),
        (0..4_usize, 1_u64..20)
            .prop_map(|(setting, steps)| Event::Administrator { setting, maximum: steps * STEP + 1 }),
        Just(Event::NextStart),
    ]
}

/// The host, and the expected state.
struct World {
    directory: tempfile::TempDir,
    caps: Caps,
    owners: [Option<Raised>; OWNERS],
    /// The administrator's last value.
    originals: [u64; 4],
    /// Whether an owner was killed and its values have not been restored yet.
    mess: bool,
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for kind in ["core", "ipv4"] {
            fs::create_dir_all(directory.path().join("sys/net").join(kind)).unwrap();
        }
        let caps = Caps::below(directory.path());
        let world = Self { directory, caps, owners: [None, None, None], originals: [4_001; 4], mess: false };
        (0..4).for_each(|setting| world.write(setting, 4_001));
        world
    }

    fn file(&self, setting: usize) -> PathBuf {
        self.directory.path().join("sys").join(Setting::FILES[setting].path().unwrap())
    }

    fn write(&self, setting: usize, maximum: u64) {
        let text = if setting < 2 { format!("11\t22\t{maximum}\n") } else { format!("{maximum}\n") };
        fs::write(self.file(setting), text).unwrap();
    }

    fn maximum(&self, setting: usize) -> u64 {
        let text = fs::read_to_string(self.file(setting)).unwrap();
        let numbers: Vec<&str> = text.lines().next().unwrap().split_whitespace().collect();
        let smaller = if setting < 2 { vec!["11", "22"] } else { vec![] };
        assert_eq!(numbers[..numbers.len() - 1], smaller, "only the maximum changes");
        numbers.last().unwrap().parse().unwrap()
    }

    /// Makes the first namespace beside this one, with the same values.
    fn first(&self) -> Caps {
        let settings = self.directory.path().join("first");
        for kind in ["core", "ipv4"] {
            fs::create_dir_all(settings.join("net").join(kind)).unwrap();
        }
        for setting in Setting::FILES {
            let path = setting.path().unwrap();
            fs::copy(self.directory.path().join("sys").join(path), settings.join(path)).unwrap();
        }
        fs::write(settings.join("net/ipv4/tcp_mem"), "1 2 3").unwrap();
        Caps { journals: self.caps.journals.clone(), settings }
    }

    fn is_owned(&self) -> bool {
        self.owners.iter().any(Option::is_some)
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Raise { owner, tcp, core } if self.owners[owner].is_none() => {
                let wanted = Setting::FILES.map(|setting| {
                    let is_tcp = matches!(setting, Setting::TcpRmem | Setting::TcpWmem);
                    Wanted::Maximum(setting, if is_tcp { tcp } else { core })
                });
                self.owners[owner] = Some(self.caps.raise_in(NAMESPACE, &wanted).unwrap());
                for (setting, wanted) in [tcp, tcp, core, core].into_iter().enumerate() {
                    assert!(self.maximum(setting) >= wanted);
                }
            }
            Event::Release(owner) => {
                if let Some(raised) = self.owners[owner].take() {
                    raised.release().unwrap();
                    self.mess &= self.is_owned();
                }
            }
            Event::Kill(owner) => {
                if let Some(mut raised) = self.owners[owner].take() {
                    raised.memberships.clear();
                    self.mess = true;
                }
            }
            Event::Notice(owner) => self.notice(owner),
            Event::Administrator { setting, maximum } => {
                self.write(setting, maximum);
                self.originals[setting] = maximum;
            }
            Event::NextStart => {
                self.caps.put_back(NAMESPACE).unwrap();
                self.mess &= self.is_owned();
            }
            Event::Raise { .. } => {}
        }
    }

    /// Checks that an owner reports only the administrator's changes, and each once.
    fn notice(&mut self, owner: usize) {
        let Some(mut raised) = self.owners[owner].take() else { return };
        for Change { setting, value } in raised.notice_changes().unwrap() {
            let place = Setting::FILES.iter().position(|one| *one == setting).unwrap();
            assert_eq!(value, Value::parse(setting, &fs::read_to_string(self.file(place)).unwrap()).unwrap());
            assert_eq!(self.maximum(place), self.originals[place]);
        }
        assert_eq!(raised.notice_changes().unwrap(), []);
        self.owners[owner] = Some(raised);
    }

    fn check(&self) {
        for setting in 0..4 {
            let (now, original) = (self.maximum(setting), self.originals[setting]);
            assert!(now >= original, "{}: {now} is below {original}", Setting::FILES[setting]);
            if !self.is_owned() && !self.mess {
                assert_eq!(now, original, "{}", Setting::FILES[setting]);
            }
        }
    }
}

fn left(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().into_string().unwrap()).filter(|name| name != "lock").collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn the_administrators_values_are_back_once_nobody_relies_on_others(
        events in prop::collection::vec(event(), 1..40)
    ) {
        let mut world = World::new();
        for event in events {
            world.apply(event);
            world.check();
        }
        (0..OWNERS).for_each(|owner| world.apply(Event::Release(owner)));
        world.apply(Event::NextStart);
        world.check();
        prop_assert_eq!(left(&world.caps.journals), Vec::<String>::new());
    }
}

fn rmem(maximum: u64) -> [Wanted; 1] {
    [Wanted::Maximum(Setting::TcpRmem, maximum)]
}

#[test]
fn the_administrators_change_is_seen_once_and_stays() {
    let mut world = World::new();
    let mut raised = world.caps.raise_in(NAMESPACE, &rmem(8_000)).unwrap();
    assert_eq!(
        raised.raised().iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["net.ipv4.tcp_rmem = 11 22 8000"]
    );
    assert_eq!(raised.notice_changes().unwrap(), []);
    world.apply(Event::Administrator { setting: 0, maximum: 5_001 });
    let changes: Vec<String> = raised.notice_changes().unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(changes, ["net.ipv4.tcp_rmem = 11 22 5001"]);
    assert_eq!(raised.notice_changes().unwrap(), []);
    assert_eq!(raised.release().unwrap(), []);
    assert_eq!(world.maximum(0), 5_001);
}

#[test]
fn a_killed_owner_is_found_and_a_living_one_is_not_touched() {
    let world = World::new();
    let mut raised = world.caps.raise_in(NAMESPACE, &rmem(8_000)).unwrap();
    assert_eq!(world.caps.ownerless().unwrap(), [0; 0]);
    assert_eq!(world.caps.put_back(NAMESPACE).unwrap(), []);
    assert_eq!(world.maximum(0), 8_000);
    raised.memberships.clear();
    assert_eq!(world.caps.ownerless().unwrap(), [NAMESPACE]);
    assert_eq!(world.caps.put_back(NAMESPACE).unwrap().len(), 1);
    assert_eq!((world.maximum(0), world.caps.ownerless().unwrap()), (4_001, vec![]));
}

/// The value that a daemon has set in the first namespace.
const IN_THE_FIRST: u64 = 8_000;

#[test]
fn a_namespace_that_was_made_with_raised_maxima_gets_the_originals_from_whoever_leaves_it() {
    let world = World::new();
    let first = world.first().raise_in(1, &rmem(IN_THE_FIRST)).unwrap();
    for wanted in [IN_THE_FIRST, IN_THE_FIRST / 2, IN_THE_FIRST * 2] {
        world.write(0, IN_THE_FIRST);
        let raised = world.caps.raise_in(NAMESPACE, &rmem(wanted)).unwrap();
        assert_eq!(world.maximum(0), wanted.max(IN_THE_FIRST));
        raised.release().unwrap();
        assert_eq!(world.maximum(0), 4_001, "{wanted} was wanted");
    }
    // The same after an owner was killed.
    world.write(0, IN_THE_FIRST);
    let mut raised = world.caps.raise_in(NAMESPACE, &rmem(IN_THE_FIRST)).unwrap();
    raised.memberships.clear();
    drop(first);
    world.caps.put_back(NAMESPACE).unwrap();
    assert_eq!(world.maximum(0), 4_001);
}

#[test]
fn a_namespace_that_nobody_met_gets_the_originals_once_nobody_relies_on_the_first() {
    let world = World::new();
    let first = world.first();
    let raised = first.raise_in(1, &rmem(IN_THE_FIRST)).unwrap();
    let again = first.raise_in(1, &rmem(IN_THE_FIRST * 2)).unwrap();
    drop(raised);
    assert_eq!(world.caps.ownerless().unwrap(), [0; 0]);
    drop(again);
    assert_eq!(world.caps.ownerless().unwrap(), [Caps::INHERITED]);
    // The namespace was made before the second raise, or after it, or the administrator has set its value.
    for (holds, then) in
        [(IN_THE_FIRST, 4_001), (IN_THE_FIRST * 2, 4_001), (IN_THE_FIRST + 1, IN_THE_FIRST + 1)]
    {
        world.write(0, holds);
        world.caps.put_back(NAMESPACE).unwrap();
        assert_eq!(world.maximum(0), then);
    }
    world.caps.forget(Caps::INHERITED).unwrap();
    assert_eq!(left(&world.caps.journals), [""; 0]);
}

#[test]
fn an_owner_of_maxima_does_not_keep_what_a_dead_one_of_devices_has_left() {
    let world = World::new();
    let raised = world.caps.raise_in(NAMESPACE, &rmem(8_000)).unwrap();
    let journal = world.caps.journals.join("caps-7");
    let maxima = fs::read_to_string(&journal).unwrap();
    // A device that is gone, so that nothing is written to the machine's devices.
    let devices = "gso_max_size of eth9 (device 999999999)\t65536 65536\t8192 8192\n";
    fs::write(&journal, format!("{maxima}{devices}")).unwrap();
    assert_eq!(world.caps.ownerless().unwrap(), [NAMESPACE]);
    world.caps.put_back(NAMESPACE).unwrap();
    assert_eq!(fs::read_to_string(&journal).unwrap(), maxima);
    assert_eq!((world.maximum(0), world.caps.ownerless().unwrap()), (8_000, vec![]));
    drop(raised);
    assert_eq!(world.maximum(0), 4_001);
}

#[test]
fn what_is_kept_of_a_namespace_that_is_gone_can_be_forgotten() {
    let world = World::new();
    let mut raised = world.caps.raise_in(NAMESPACE, &rmem(8_000)).unwrap();
    world.caps.forget(NAMESPACE).unwrap();
    assert_eq!(left(&world.caps.journals).len(), 2, "somebody relies on it");
    raised.memberships.clear();
    world.caps.forget(NAMESPACE).unwrap();
    assert_eq!(left(&world.caps.journals), [""; 0]);
}

#[test]
fn lines_of_a_later_version_stay_until_their_namespace_is_gone() {
    let world = World::new();
    let (journal, inherited) = (world.caps.journals.join("caps-7"), world.caps.journals.join("caps-0"));
    let later = "net.ipv4.tcp_later\t1 2\t3 4\t5 6\n";
    let mut raised = world.caps.raise_in(NAMESPACE, &rmem(8_000)).unwrap();
    let ours = fs::read_to_string(&journal).unwrap();
    for path in [&journal, &inherited] {
        fs::write(path, format!("{later}{ours}nonsense\n")).unwrap();
    }
    let again = world.caps.raise_in(NAMESPACE, &rmem(9_000)).unwrap();
    assert!(fs::read_to_string(&journal).unwrap().ends_with(later));
    raised.memberships.clear();
    drop(again);
    assert_eq!((world.maximum(0), fs::read_to_string(&journal).unwrap().as_str()), (4_001, later));
    assert_eq!(world.caps.put_back(NAMESPACE).unwrap(), []);
    for namespace in [NAMESPACE, Caps::INHERITED] {
        world.caps.forget(namespace).unwrap();
    }
    assert_eq!(fs::read_to_string(&inherited).unwrap(), later, "namespaces that inherited it may be there");
    assert_eq!(left(&world.caps.journals), ["caps-0"]);
}

#[test]
fn journals_are_private_and_a_setting_that_is_not_there_is_left_out() {
    let world = World::new();
    fs::remove_file(world.file(0)).unwrap();
    let wanted = [rmem(8_000)[0], Wanted::Maximum(Setting::WmemMax, 8_000)];
    let raised = world.caps.raise_in(NAMESPACE, &wanted).unwrap();
    assert_eq!(raised.raised().len(), 1);
    for name in left(&world.caps.journals) {
        let mode = fs::metadata(world.caps.journals.join(&name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    drop(raised);
    assert_eq!(world.maximum(3), 4_001);
}

#[test]
fn a_maximum_that_may_not_be_written_is_read_all_the_same() {
    let world = World::new();
    fs::remove_file(world.file(1)).unwrap();
    // It has three numbers, and even root may only read it.
    std::os::unix::fs::symlink("/proc/sys/fs/file-nr", world.file(1)).unwrap();
    let text = fs::read_to_string(world.file(1)).unwrap();
    let largest = text.split_whitespace().last().and_then(|number| number.parse::<u64>().ok());
    assert!(largest.is_some());
    assert_eq!(world.caps.original_maximum(Setting::TcpWmem), largest);
    assert_eq!(world.caps.original_maximum(Setting::RmemMax), Some(4_001));
}

#[test]
fn a_devices_bound_is_only_lowered_and_keeps_its_name_in_the_journal() {
    let device = bufwise_socket::device::Device::new(3, "eth (device 4)").unwrap();
    let setting = Setting::Device(device);
    assert_eq!(Setting::named(&setting.to_string()).map(|read| read.to_string()), Some(setting.to_string()));
    for nonsense in ["gso_max_size of eth0", "gso_max_size of eth0 (device x)", "gso_max_size of  (device 3)"]
    {
        assert_eq!(Setting::named(nonsense), None, "{nonsense}");
    }
    let value = |text| Value::parse(setting, text).unwrap();
    let wanted = Wanted::Devices { size: 4_096, also_in_the_first: true };
    assert_eq!(wanted.value(&value("65536 2048")), value("4096 2048"));
    assert_eq!(wanted.value(&value("1024 1024")), value("1024 1024"));
    assert!(wanted.concerns(setting) && !wanted.concerns(Setting::TcpRmem) && !rmem(1)[0].concerns(setting));
}

/// Runs `work` in a thread of its own, in a network namespace with the devices `bw0` and `bw1`, which ends with the thread.
fn in_namespace_with_devices(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        let link = ["link", "add", "bw0", "type", "veth", "peer", "name", "bw1"];
        assert!(std::process::Command::new("ip").args(link).status().unwrap().success());
        work();
    });
    thread.join().unwrap();
}

/// Returns what the devices of [`in_namespace_with_devices`] take.
fn own_devices(settings: &Settings) -> [Open; 2] {
    let mut devices = settings.devices().unwrap();
    devices.retain(|open| open.setting.to_string().contains(" bw"));
    devices.try_into().expect("two devices")
}

#[test]
fn root_what_devices_take_follows_one_owner_and_never_exceeds_what_another_relies_on() {
    if !bufwise_trial::root() {
        return;
    }
    let work = || {
        let journals = tempfile::tempdir().unwrap();
        let caps = Caps::with_journals(journals.path());
        let taken = || {
            let devices = Settings::open(&caps.settings).unwrap().devices().unwrap();
            let named = |name| devices.iter().find(|open| open.setting.to_string().contains(name)).unwrap();
            (named(" bw0 ").read().unwrap().to_string(), named(" bw1 ").read().unwrap().to_string())
        };
        let is = |size: u64| assert_eq!(taken(), (format!("{size} {size}"), format!("{size} {size}")));
        let wanted = |size| [Wanted::Devices { size, also_in_the_first: true }];
        let mut one = caps.raise(&wanted(u64::MAX)).unwrap();
        is(65_536);
        drop(caps.raise(&wanted(4_096)).unwrap());
        is(4_096);
        assert_eq!(one.notice_changes().unwrap(), [], "another owner has come and gone");
        is(65_536);
        let of_maxima = caps.raise(&[Wanted::Maximum(Setting::TcpRmem, 8_000_000)]).unwrap();
        one.bound_devices(8_192).unwrap();
        is(8_192);
        one.bound_devices(32_768).unwrap();
        is(32_768);
        let other = caps.raise(&wanted(4_096)).unwrap();
        one.bound_devices(16_384).unwrap();
        is(4_096);
        drop(other);
        is(4_096);
        assert_eq!(one.notice_changes().unwrap(), [], "no change of the administrator's");
        is(16_384);
        let mut killed = caps.raise(&wanted(4_096)).unwrap();
        assert_eq!(one.notice_changes().unwrap(), []);
        is(4_096);
        killed.memberships.clear();
        assert_eq!(one.notice_changes().unwrap(), []);
        is(16_384);
        drop(one);
        is(65_536);
        drop(of_maxima);
        assert_eq!(left(&caps.journals), [""; 0]);
        let mut maxima = caps.raise(&[Wanted::Maximum(Setting::TcpRmem, 8_000_000)]).unwrap();
        maxima.bound_devices(4_096).unwrap();
        is(65_536);
    };
    in_namespace_with_devices(work);
}

#[test]
fn root_a_device_that_the_administrator_has_changed_stays_so_whatever_the_shares_require() {
    if !bufwise_trial::root() {
        return;
    }
    let work = || {
        let journals = tempfile::tempdir().unwrap();
        let caps = Caps::with_journals(journals.path());
        let [changed, other] = own_devices(&Settings::open(&caps.settings).unwrap());
        let mut raised = caps.raise(&[Wanted::Devices { size: 8_192, also_in_the_first: true }]).unwrap();
        changed.write(&Value::parse(changed.setting, "32768 32768").unwrap()).unwrap();
        raised.bound_devices(4_096).unwrap();
        let taken = || [&changed, &other].map(|open| open.read().unwrap().to_string());
        assert_eq!(taken(), ["32768 32768", "4096 4096"]);
        assert_eq!(raised.notice_changes().unwrap().len(), 1);
        drop(raised);
        assert_eq!(taken(), ["32768 32768", "65536 65536"]);
    };
    in_namespace_with_devices(work);
}

#[test]
fn a_device_that_goes_meanwhile_is_left_out_and_the_rest_is_raised() {
    let world = World::new();
    let mut raised = world.caps.raise_in(NAMESPACE, &[]).unwrap();
    let settings = Settings::open(&world.caps.settings).unwrap();
    let gone = Setting::Device(bufwise_socket::device::Device::new(999_999_999, "eth9").unwrap());
    let [device, file] = [gone, Setting::TcpRmem].map(|setting| settings.find(setting).unwrap());
    let wanted = [rmem(8_000)[0], Wanted::Devices { size: 4_096, also_in_the_first: true }];
    let directory = Directory::lock(&world.caps.journals).unwrap();
    let refused = raised.raise(&directory, &wanted, vec![device.clone(), file.clone()]).unwrap();
    assert!(refused.is_none() && world.maximum(0) == 8_000, "{refused:?}");
    assert_eq!(raised.raised().iter().map(|change| change.setting).collect::<Vec<_>>(), [Setting::TcpRmem]);
    raised.bound(&directory, 4_096, true, vec![device.clone()]).unwrap();
    // It was there when it was read.
    let value = |setting, text| Value::parse(setting, text).unwrap();
    let of_device = (device, value(gone, "65536 65536"), value(gone, "4096 4096"));
    let rmem = Setting::TcpRmem;
    let of_file = (file, value(rmem, "11 22 8000"), value(rmem, "11 22 9000"));
    let (done, refused) = set_all(vec![of_device, of_file]).unwrap();
    assert_eq!((done.len(), world.maximum(0)), (1, 9_000));
    assert!(refused.is_none(), "{refused:?}");
}

#[test]
fn devices_that_have_gone_are_not_checked_again() {
    let world = World::new();
    let mut raised = world.caps.raise_in(NAMESPACE, &rmem(8_000)).unwrap();
    for index in 999_999_000..999_999_009 {
        let setting = Setting::Device(bufwise_socket::device::Device::new(index, "veth9").unwrap());
        raised.note(Change { setting, value: Value::parse(setting, "4096 4096").unwrap() });
    }
    assert_eq!(raised.notice_changes().unwrap(), []);
    assert_eq!(raised.raised().iter().map(|change| change.setting).collect::<Vec<_>>(), [Setting::TcpRmem]);
}

#[test]
fn root_a_device_that_refuses_leaves_the_others_bounded_and_is_named() {
    if !bufwise_trial::root() {
        return;
    }
    let work = || {
        let settings = Settings::open(Path::new("/proc/sys")).unwrap();
        let change = |open: Open, size: u64| {
            let current = open.read().unwrap();
            let value = Value::parse(open.setting, &format!("{size} {size}")).unwrap();
            (open, current, value)
        };
        let all = own_devices(&settings);
        let [first, second] = all.clone();
        // More than any device takes.
        let (done, refused) = set_all(vec![change(first, 4_000_000_000), change(second, 4_096)]).unwrap();
        assert_eq!(done.iter().map(|change| change.setting).collect::<Vec<_>>(), [all[1].setting]);
        let named = format!("cannot set {} to 4000000000", all[0].setting);
        assert!(refused.unwrap().to_string().starts_with(&named), "{named}");
        assert_eq!(all[1].read().unwrap().to_string(), "4096 4096");
    };
    in_namespace_with_devices(work);
}

#[test]
fn root_a_device_that_refuses_its_original_keeps_no_other_from_being_put_back() {
    if !bufwise_trial::root() {
        return;
    }
    let work = || {
        let journals = tempfile::tempdir().unwrap();
        let caps = Caps::with_journals(journals.path());
        let devices = own_devices(&Settings::open(&caps.settings).unwrap());
        let namespace = here().unwrap();
        let journal = journals.path().join(format!("caps-{namespace}"));
        for (stuck, other) in [(&devices[0], &devices[1]), (&devices[1], &devices[0])] {
            // More than any device takes.
            let entries =
                [(stuck, "4000000000 4000000000"), (other, "65536 65536")].map(|(open, original)| {
                    open.write(&Value::parse(open.setting, "4096 4096").unwrap()).unwrap();
                    format!("{}\t{original}\t4096 4096\n", open.setting)
                });
            fs::write(&journal, entries.concat()).unwrap();
            let error = caps.put_back(namespace).unwrap_err().to_string();
            let named = format!("cannot put {} back to 4000000000", stuck.setting);
            assert!(error.starts_with(&named), "{error}");
            assert_eq!(other.read().unwrap().to_string(), "65536 65536");
            assert_eq!(fs::read_to_string(&journal).unwrap(), entries[0], "the next start tries it again");
        }
    };
    in_namespace_with_devices(work);
}

#[test]
fn root_a_leftover_device_that_refuses_its_original_keeps_nothing_from_being_raised() {
    if !bufwise_trial::root() {
        return;
    }
    let work = || {
        let journals = tempfile::tempdir().unwrap();
        let caps = Caps::with_journals(journals.path());
        let [stuck, other] = own_devices(&Settings::open(&caps.settings).unwrap());
        stuck.write(&Value::parse(stuck.setting, "4096 4096").unwrap()).unwrap();
        // More than any device takes.
        let entry = format!("{}\t4000000000 4000000000\t4096 4096\n", stuck.setting);
        let journal = journals.path().join(format!("caps-{}", here().unwrap()));
        fs::write(&journal, &entry).unwrap();
        let maxima = caps.raise(&rmem(1 << 30)).unwrap();
        assert_eq!(maxima.raised()[0].setting, Setting::TcpRmem);
        let devices = caps.raise(&[Wanted::Devices { size: 8_192, also_in_the_first: true }]).unwrap();
        assert_eq!(other.read().unwrap().to_string(), "8192 8192");
        drop((maxima, devices));
        assert_eq!(other.read().unwrap().to_string(), "65536 65536");
        assert_eq!(fs::read_to_string(&journal).unwrap(), entry, "the next start tries it again");
    };
    in_namespace_with_devices(work);
}

#[test]
fn a_journal_that_was_written_again_has_the_same_lines() {
    let later = "net.ipv4.tcp_later\t1 2\t3 4\r\n";
    let device = "gso_max_size of eth0 (device 7)\t65536 65536\t4096 4096\n";
    let ours = "net.ipv4.tcp_rmem\t1 2 3\t1 2 4\t1 2 5\n";
    // An entry without a value of ours cannot be put back.
    let damaged = "net.core.rmem_max\t212992\nnet.ipv4.tcp_wmem\t1 2\n";
    let unknown = "gso_max_size of \0 (device 8)\t1 1\t2 2\n";
    let once = rewritten_journal(format!("{later}{device}{damaged}{unknown}{ours}").as_bytes());
    assert_eq!(once, format!("{ours}{device}{later}{unknown}"));
    assert_eq!(rewritten_journal(once.as_bytes()), once);
}

#[test]
fn nonsense_in_a_setting_or_a_journal_is_no_reason_to_panic() {
    let world = World::new();
    drop(world.caps.raise_in(NAMESPACE, &rmem(8_000)).unwrap());
    fs::write(world.caps.journals.join("caps-7"), "\nnet.ipv4.tcp_rmem\tx\ty\n\u{0}\tz\nnet.core\t1")
        .unwrap();
    assert_eq!(world.caps.put_back(NAMESPACE).unwrap(), []);
    fs::write(world.file(0), "4096 131072").unwrap();
    assert!(world.caps.raise_in(NAMESPACE, &rmem(8_000)).is_err());
}
