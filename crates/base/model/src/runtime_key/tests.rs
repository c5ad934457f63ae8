//! Two spellings of one configuration give one key, different configurations give different keys; and which key can be adapted to
//! which.

use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;

/// A configuration in its plainest spelling: every path, variable and mount once, in order.
fn spec() -> impl Strategy<Value = RuntimeSpec> {
    (
        (
            base(),
            prop::option::of(select(vec!["ann".to_owned(), "bob".to_owned()])),
            select(vec![Network::None, Network::Outbound, Network::Host]),
            select(vec!["", "web", "db-1"]),
            select(vec![Ipc::Private, Ipc::Host]),
        ),
        (
            prop::collection::vec("[a-z./-]{1,6}", 0..3),
            select(vec!["", "/srv", "/srv/app"]),
            prop::collection::btree_map("[A-C]", "[x-z]{0,2}", 0..3),
            prop_oneof![
                2 => Just(BTreeMap::new()),
                1 => prop::collection::btree_map("[E-F]", "[x-y]", 0..3),
            ],
            prop::collection::btree_map(
                select(vec!["/var/task", "/opt", "/data/in"]),
                (select(vec!["/code/1", "/code/2"]), access()),
                0..3,
            ),
            (
                prop::option::of(Just(1_u64)),
                prop::option::of(Just(1_u32)),
                prop::option::of(Just(1_u32)),
            ),
            prop::option::of(1000..1002_u32),
        ),
    )
        .prop_map(
            |(
                (base, owner, network, host_name, ipc),
                (command, dir, variables, execution, mounts, limits, user),
            )| RuntimeSpec {
                base,
                owner,
                network,
                host_name: host_name.to_owned(),
                ipc,
                command,
                working_dir: dir.to_owned(),
                environment: variables.into_iter().collect(),
                execution: execution.into_iter().collect(),
                mounts: mounts
                    .into_iter()
                    .map(|(inside, (host, access))| Mount {
                        inside: inside.into(),
                        host: host.into(),
                        access,
                    })
                    .collect(),
                limits: Limits {
                    memory_bytes: limits.0.map(|memory| memory << 28),
                    cpu_milli: limits.1.map(|cpu| cpu * 500),
                    pids: limits.2.map(|pids| pids * 64),
                },
                user,
            },
        )
}

fn base() -> impl Strategy<Value = Base> {
    let path = |text: &str| PathBuf::from(text);
    prop_oneof![
        (
            select(vec![None, Some(path("/usr/bin/node"))]),
            prop::sample::subsequence(vec![path("/opt/node"), path("/opt/python")], 0..=2),
        )
            .prop_map(|(interpreter, shown)| Base::Native { interpreter, shown }),
        (
            select(IMAGES.iter().map(|(full, _)| *full).collect::<Vec<_>>()),
            select(vec![RootAccess::Writable, RootAccess::ReadOnly]),
            select(vec![None, Some(64)]),
        )
            .prop_map(|(image, root, volume_mb)| Base::Container {
                image: image.to_owned(),
                disk: ContainerDisk { root, volume_mb },
            }),
    ]
}

fn access() -> impl Strategy<Value = Access> {
    select(vec![Access::Read, Access::Write])
}

/// Other spellings of each image.
const IMAGES: &[(&str, &[&str])] = &[
    (
        "docker.io/library/qr:latest",
        &[
            "qr",
            "qr:latest",
            "library/qr",
            "docker.io/qr",
            "index.docker.io/qr",
            "index.docker.io/library/qr:latest",
        ],
    ),
    ("docker.io/library/qr:1", &["qr:1", "docker.io/qr:1"]),
    ("docker.io/ann/qr:latest", &["ann/qr", "docker.io/ann/qr"]),
    (
        "localhost:5000/qr:latest",
        &["localhost:5000/qr", "localhost:5000/qr:latest"],
    ),
    ("localhost/qr:latest", &["localhost/qr"]),
    (
        "registry.example.org/a/qr:2",
        &["registry.example.org/a/qr:2"],
    ),
    (
        "docker.io/library/qr@sha256:00",
        &["qr@sha256:00", "qr:1@sha256:00", "docker.io/qr@sha256:00"],
    ),
    (
        "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        &["0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"],
    ),
];

/// The random choices for another spelling.
#[derive(Debug, Clone)]
struct Spelling {
    image: Index,
    order: Vec<Index>,
    slashes: Vec<u8>,
    upper: bool,
    overridden: bool,
}

fn spelling() -> impl Strategy<Value = Spelling> {
    (
        any::<Index>(),
        prop::collection::vec(any::<Index>(), 8),
        prop::collection::vec(0..4_u8, 8),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(image, order, slashes, upper, overridden)| Spelling {
            image,
            order,
            slashes,
            upper,
            overridden,
        })
}

impl Spelling {
    fn path(&self, path: &Path) -> PathBuf {
        let mut text = String::new();
        let parts = path.to_str().unwrap().split('/').skip(1);
        for (part, how) in parts.zip(self.slashes.iter().cycle()) {
            text.push_str(["/", "//", "/./", "///"][usize::from(*how)]);
            text.push_str(part);
        }
        text.push_str(["", "/", "/.", "//"][usize::from(self.slashes[0])]);
        text.into()
    }

    fn shuffled<T>(&self, things: Vec<T>) -> Vec<T> {
        let mut shuffled = Vec::new();
        for (at, thing) in things.into_iter().enumerate() {
            let place = self.order[at % self.order.len()].index(shuffled.len() + 1);
            shuffled.insert(place, thing);
        }
        shuffled
    }

    fn of(&self, spec: &RuntimeSpec) -> RuntimeSpec {
        let base = match &spec.base {
            Base::Native { interpreter, shown } => Base::Native {
                interpreter: interpreter.as_deref().map(|path| self.path(path)),
                shown: self.shuffled(
                    shown
                        .iter()
                        .chain(shown)
                        .map(|path| self.path(path))
                        .collect(),
                ),
            },
            Base::Container { image, disk } => {
                let (_, others) = IMAGES.iter().find(|(full, _)| full == image).unwrap();
                Base::Container {
                    image: others[self.image.index(others.len())].to_owned(),
                    disk: *disk,
                }
            }
        };
        let mut environment = self.shuffled(spec.environment.clone());
        let execution = self.shuffled(spec.execution.clone());
        let mounts = spec.mounts.iter().map(|mount| Mount {
            inside: self.path(&mount.inside),
            host: self.path(&mount.host),
            access: mount.access,
        });
        let mut mounts = self.shuffled(mounts.collect());
        if self.overridden {
            // The last value counts.
            let before: Vec<_> = environment
                .iter()
                .map(|(name, _)| (name.clone(), "before".to_owned()))
                .collect();
            environment.splice(0..0, before);
            let before: Vec<_> = mounts
                .iter()
                .map(|mount| Mount {
                    host: "/before".into(),
                    access: Access::Write,
                    inside: mount.inside.clone(),
                })
                .collect();
            mounts.splice(0..0, before);
        }
        RuntimeSpec {
            base,
            host_name: match self.upper {
                true => spec.host_name.to_ascii_uppercase(),
                false => spec.host_name.clone(),
            },
            working_dir: match spec.working_dir.as_str() {
                "" => String::new(),
                dir => self.path(Path::new(dir)).to_str().unwrap().to_owned(),
            },
            environment,
            execution,
            mounts,
            ..spec.clone()
        }
    }
}

proptest! {
    #[test]
    fn two_spellings_of_one_configuration_give_one_key(spec in spec(), one in spelling(), two in spelling()) {
        let key = spec.clone().canonical();
        prop_assert_eq!(&one.of(&spec).canonical(), &key);
        prop_assert_eq!(two.of(&spec).canonical().short(), key.short());
    }

    #[test]
    fn different_configurations_have_different_keys(one in spec(), two in spec(), how in spelling()) {
        let same = one == two;
        prop_assert_eq!(one.canonical() == how.of(&two).canonical(), same);
    }

    #[test]
    fn what_the_key_says_is_the_configuration(spec in spec(), how in spelling()) {
        let key = how.of(&spec).canonical();
        prop_assert_eq!(key.base(), &spec.base);
        prop_assert_eq!(key.owner(), spec.owner.as_deref());
        prop_assert_eq!(key.environment().clone().into_iter().collect::<Vec<_>>(), spec.environment);
        prop_assert_eq!(key.execution().clone().into_iter().collect::<Vec<_>>(), spec.execution);
        let mut mounts = spec.mounts;
        mounts.sort();
        prop_assert_eq!(key.mounts().collect::<Vec<_>>(), mounts);
    }

    #[test]
    fn a_runtime_never_changes_owners(one in spec(), two in spec()) {
        let (from, to) = (one.canonical(), two.canonical());
        if from.owner().is_some() && from.owner() != to.owner() {
            prop_assert_eq!(from.adaptation(&to), None);
        }
    }

    #[test]
    fn nothing_is_to_be_done_exactly_where_keys_are_equal(one in spec(), two in spec()) {
        let (from, to) = (one.canonical(), two.canonical());
        prop_assert_eq!(from.adaptation(&to) == Some(vec![]), from == to);
        prop_assert_eq!(from.adaptation(&from), Some(vec![]));
    }

    #[test]
    fn a_base_key_can_become_every_key_it_is_the_base_key_of(spec in spec()) {
        let key = spec.canonical();
        let base_key = key.base_key();
        prop_assert!(base_key.adaptation(&key).is_some());
        prop_assert_eq!(base_key.owner(), key.owner().filter(|_| !key.execution().is_empty()));
        prop_assert_eq!(base_key.base_key(), base_key);
    }

    #[test]
    fn what_can_become_another_has_its_base_key(from in spec(), to in spec()) {
        let (from, to) = (from.canonical(), to.canonical());
        if from.adaptation(&to).is_some() {
            prop_assert_eq!(from.base_key(), to.base_key());
        }
    }
}

/// Specs that differ from one another in few settings; otherwise most triples could not be adapted.
fn relative() -> impl Strategy<Value = RuntimeKey> {
    (
        prop::option::of(select(vec!["ann", "bob"])),
        select(vec![Network::None, Network::Outbound, Network::Host]),
        prop::option::of(select(vec![1000_u32])),
        prop::option::of(Just(1_u64)),
        select(vec!["", "web"]),
        prop::collection::vec(Just(("E".to_owned(), "1".to_owned())), 0..2),
    )
        .prop_map(
            |(owner, network, user, memory_bytes, host_name, execution)| {
                RuntimeSpec {
                    owner: owner.map(str::to_owned),
                    network,
                    user,
                    host_name: host_name.to_owned(),
                    execution,
                    limits: Limits {
                        memory_bytes,
                        ..Limits::default()
                    },
                    ..plain()
                }
                .canonical()
            },
        )
}

fn plain() -> RuntimeSpec {
    RuntimeSpec {
        base: Base::Native {
            interpreter: None,
            shown: vec![],
        },
        owner: None,
        network: Network::None,
        host_name: String::new(),
        ipc: Ipc::Private,
        command: vec![],
        working_dir: String::new(),
        environment: vec![],
        execution: vec![],
        mounts: vec![],
        limits: Limits::default(),
        user: None,
    }
}

proptest! {
    #[test]
    fn what_becomes_one_that_becomes_a_third_can_become_the_third(
        a in relative(), b in relative(), c in relative(),
    ) {
        if let (Some(first), Some(second)) = (a.adaptation(&b), b.adaptation(&c)) {
            let whole = a.adaptation(&c);
            prop_assert!(whole.is_some());
            // It contains no difference that neither of the two steps has.
            for difference in whole.unwrap() {
                prop_assert!(first.contains(&difference) || second.contains(&difference));
            }
        }
    }
}

#[test]
fn what_differs_is_named() {
    let from = plain().canonical();
    let to = RuntimeSpec {
        owner: Some("ann".to_owned()),
        network: Network::Outbound,
        host_name: "web".to_owned(),
        command: vec!["run".to_owned()],
        environment: vec![("A".to_owned(), "1".to_owned())],
        mounts: vec![Mount {
            inside: "/var/task".into(),
            host: "/code".into(),
            access: Access::Read,
        }],
        limits: Limits {
            memory_bytes: Some(1 << 28),
            ..Limits::default()
        },
        ..plain()
    };
    let differences = from.adaptation(&to.canonical()).unwrap();
    let words: Vec<_> = differences.iter().map(|what| what.as_str()).collect();
    assert_eq!(
        words,
        [
            "owner",
            "environment",
            "limits",
            "command",
            "host name",
            "mounts",
            "network"
        ]
    );
}

#[test]
fn a_network_can_be_added_but_neither_taken_away_nor_changed_to_the_hosts() {
    let of = |network| RuntimeSpec { network, ..plain() }.canonical();
    let adaptation = |from, to| of(from).adaptation(&of(to));
    assert_eq!(
        adaptation(Network::None, Network::Outbound),
        Some(vec![Difference::Network])
    );
    assert_eq!(adaptation(Network::Outbound, Network::None), None);
    assert_eq!(adaptation(Network::None, Network::Host), None);
    assert_eq!(adaptation(Network::Host, Network::None), None);
}

#[test]
fn what_a_runtime_has_from_its_start_stays() {
    let from = plain().canonical();
    let others = [
        RuntimeSpec {
            ipc: Ipc::Host,
            ..plain()
        },
        RuntimeSpec {
            user: Some(7),
            ..plain()
        },
        RuntimeSpec {
            base: Base::Container {
                image: "qr".to_owned(),
                disk: ContainerDisk::default(),
            },
            ..plain()
        },
    ];
    for other in others {
        let other = other.canonical();
        assert_eq!(from.adaptation(&other), None);
        assert_eq!(other.adaptation(&from), None);
    }
}

#[test]
fn what_was_started_with_execution_options_is_for_equal_ones_of_its_owner_and_code_alone() {
    let of = |owner: &str, value: &str, code: &str| RuntimeSpec {
        owner: Some(owner.to_owned()),
        environment: vec![("A".to_owned(), "1".to_owned())],
        execution: vec![("UV_THREADPOOL_SIZE".to_owned(), value.to_owned())],
        mounts: vec![Mount {
            inside: "/var/task".into(),
            host: code.into(),
            access: Access::Read,
        }],
        ..plain()
    };
    let key = of("ann", "8", "/code/1").canonical();
    let base_key = key.base_key();
    assert_eq!(base_key.owner(), Some("ann"));
    assert_eq!(base_key.mounts().count(), 1);
    assert_eq!(
        base_key.adaptation(&key),
        Some(vec![Difference::Environment])
    );
    let mut without = of("ann", "8", "/code/1");
    without.execution.clear();
    let others = [
        of("bob", "8", "/code/1"),
        of("ann", "9", "/code/1"),
        of("ann", "8", "/code/2"),
        without,
        plain(),
    ];
    for other in others {
        let other = other.canonical();
        assert_eq!(key.adaptation(&other), None, "{other}");
        assert_eq!(base_key.adaptation(&other), None, "{other}");
        assert_eq!(other.adaptation(&key), None, "{other}");
    }
}

#[test]
fn images_are_read_as_the_engine_reads_them() {
    for (full, others) in IMAGES {
        assert_eq!(image::full(full), *full);
        for other in *others {
            assert_eq!(image::full(other), *full, "{other}");
        }
    }
}

#[test]
fn the_line_for_people_has_no_values_of_variables() {
    let key = RuntimeSpec {
        base: Base::Native {
            interpreter: Some("/usr/bin/node".into()),
            shown: vec![],
        },
        owner: Some("web".to_owned()),
        network: Network::Outbound,
        environment: vec![("TOKEN".to_owned(), "hunter2".to_owned())],
        limits: Limits {
            memory_bytes: Some(256 << 20),
            cpu_milli: Some(500),
            pids: Some(64),
        },
        ..plain()
    }
    .canonical();
    assert_eq!(
        key.to_string(),
        "sandbox with /usr/bin/node, owner web, network outbound, 256 MB, 0.5 CPU, 64 processes, 1 variable"
    );
    assert_eq!(
        key.base_key().to_string(),
        "sandbox with /usr/bin/node, nobody's, network none"
    );
    assert_eq!(key.short().len(), 8);
    assert_ne!(key.short(), key.base_key().short());
    let options = RuntimeSpec {
        execution: vec![
            ("NODE_OPTIONS".to_owned(), "--title=hunter2".to_owned()),
            ("UV_THREADPOOL_SIZE".to_owned(), "8".to_owned()),
        ],
        ..plain()
    };
    assert_eq!(
        options.canonical().to_string(),
        "sandbox, nobody's, network none, started with NODE_OPTIONS and UV_THREADPOOL_SIZE"
    );
}
