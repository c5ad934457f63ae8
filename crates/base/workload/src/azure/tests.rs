//! The small files here are made up. The published files are tested only where they are present: in `PILOT_TRACES`, or in
//! `../shared/data` beside the workspace.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::{Arrival, Overrides, Profile, WorkloadError};

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn read(folder: &Path, trace: &str, more: &str) -> Result<Profile, WorkloadError> {
    let profile = folder.join("profile.toml");
    fs::write(&profile, format!("{more}\n[trace]\n{trace}\n")).unwrap();
    Profile::read(&profile)
}

fn made_up(invocations: &str) -> TempDir {
    folder(&[
        ("x_inv.csv", invocations),
        (
            "x_run.csv",
            "HashOwner,HashApp,HashFunction,Average,percentile_Average_0,percentile_Average_50,percentile_Average_100\n\
             o,a1,f1,20,10,20,30\no,a2,f2,500,500,500,500\n",
        ),
        (
            "x_mem.csv",
            "HashOwner,HashApp,AverageAllocatedMb,AverageAllocatedMb_pct50\no,a1,90,64\n",
        ),
    ])
}

const INVOCATIONS: &str = "HashFunction,HashOwner,HashApp,1,2,3,4\n\
                           f1,o,a1,10,0,5,1\nf2,o,a2,1,1,1,100\nf3,o,a3,0,2,0,0\n";
const FORMAT: &str = "format = \"azure2019\"\npath = \"x_inv.csv\"";

#[test]
fn every_minute_has_its_count_however_its_column_is_spelt() {
    let header = |spelling: &dyn Fn(u32) -> String| {
        let minutes: Vec<String> = (1..=4).map(spelling).collect();
        INVOCATIONS.replace("1,2,3,4\n", &format!("{}\n", minutes.join(",")))
    };
    for text in [
        INVOCATIONS.to_owned(),
        header(&|minute| format!("{minute}_minute")),
        header(&|minute| format!("minute_{minute}")),
    ] {
        let folder = made_up(&text);
        let profile = read(folder.path(), FORMAT, "").unwrap();
        assert_eq!(profile.duration(), Duration::from_secs(240));
        let arrivals: Vec<Arrival> = profile.arrivals().collect();
        assert!(arrivals.is_sorted_by_key(|arrival| arrival.at));
        for (function, counts) in [[10, 0, 5, 1], [1, 1, 1, 100], [0, 2, 0, 0]]
            .iter()
            .enumerate()
        {
            for (minute, count) in counts.iter().enumerate() {
                let minute = minute as u64;
                let found = arrivals
                    .iter()
                    .filter(|arrival| {
                        arrival.function as usize == function && arrival.at.as_secs() / 60 == minute
                    })
                    .count();
                assert_eq!(found, *count, "{function} {minute}");
            }
        }
    }
}

#[test]
fn the_points_of_a_minute_are_spread_over_all_of_it() {
    let folder = made_up("HashFunction,HashOwner,HashApp,1\nf1,o,a1,60000\n");
    let profile = read(folder.path(), FORMAT, "").unwrap();
    let mut seconds = std::collections::BTreeMap::<u64, u32>::new();
    for arrival in profile.arrivals() {
        *seconds.entry(arrival.at.as_secs()).or_default() += 1;
    }
    // A thousand in each second, standard deviation 31.
    assert!(
        seconds.values().all(|count| (840..1160).contains(count)),
        "{seconds:?}"
    );
}

#[test]
fn times_and_memory_come_from_the_files_beside_or_are_the_documented_ones() {
    let folder = made_up(INVOCATIONS);
    let profile = read(folder.path(), FORMAT, "").unwrap();
    let [one, two, three] = profile.functions() else {
        panic!("{:?}", profile.functions());
    };
    assert_eq!(one.memory_bytes, Some(64 << 20));
    assert_eq!(
        one.service.as_ref().unwrap().quantile(0.75),
        Duration::from_millis(25)
    );
    assert_eq!(
        two.service.as_ref().unwrap().mean(),
        Duration::from_millis(500)
    );
    assert_eq!(two.memory_bytes, Some(170 << 20));
    assert_eq!(
        three.service.as_ref().unwrap().mean(),
        Duration::from_millis(684)
    );
    let took: Vec<Duration> = profile
        .arrivals()
        .filter(|arrival| arrival.function == 0)
        .map(|arrival| arrival.service.unwrap())
        .collect();
    let bounds = Duration::from_millis(10)..=Duration::from_millis(30);
    assert!(took.iter().all(|took| bounds.contains(took)), "{took:?}");
    assert_ne!(took.iter().min(), took.iter().max());
}

#[test]
fn functions_are_chosen_by_number_by_load_and_by_name() {
    let folder = made_up(INVOCATIONS);
    let names = |choice: &str| -> Vec<String> {
        let profile = read(folder.path(), &format!("{FORMAT}\n{choice}"), "").unwrap();
        profile
            .functions()
            .iter()
            .map(|function| function.name.clone())
            .collect()
    };
    assert_eq!(names("functions = 2"), ["f1", "f2"]);
    assert_eq!(names("busiest = 2"), ["f2", "f1"]);
    assert_eq!(names("busiest = 2\nminutes = 2"), ["f1", "f2"]);
    assert_eq!(names("functions = [\"f3\", \"f1\"]"), ["f3", "f1"]);
}

#[test]
fn a_functions_arrivals_do_not_depend_on_which_others_were_chosen() {
    let folder = made_up(INVOCATIONS);
    let of_f2 = |choice: &str| -> Vec<(Duration, Option<Duration>)> {
        let profile = read(folder.path(), &format!("{FORMAT}\n{choice}"), "").unwrap();
        let f2 = profile
            .functions()
            .iter()
            .position(|function| function.name == "f2")
            .unwrap();
        let own = profile
            .arrivals()
            .filter(|arrival| arrival.function as usize == f2);
        own.map(|arrival| (arrival.at, arrival.service)).collect()
    };
    assert_eq!(of_f2(""), of_f2("functions = [\"f2\"]"));
}

#[test]
fn a_window_begins_at_nothing_and_time_scale_shortens_it() {
    let folder = made_up(INVOCATIONS);
    let trace = format!("{FORMAT}\nstart_minute = 3\nminutes = 1\nbusiest = 1");
    let profile = read(folder.path(), &trace, "time_scale = 2.0").unwrap();
    assert_eq!(profile.duration(), Duration::from_secs(30));
    assert_eq!(profile.arrivals().count(), 100);
    assert!(
        profile
            .arrivals()
            .all(|arrival| arrival.at < Duration::from_secs(30))
    );
}

#[test]
fn what_is_wrong_with_a_trace_is_named_with_its_line() {
    let folder = made_up(INVOCATIONS);
    for (choice, expected) in [
        (
            "functions = 4",
            "x_inv.csv: has 3 functions, but 4 are wanted",
        ),
        (
            "functions = [\"f\"]",
            "3 functions begin with 'f'; give more of the hash",
        ),
        (
            "functions = [\"f9\"]",
            "there is no function 'f9', or it is in the list twice",
        ),
        (
            "start_minute = 3\nminutes = 2",
            "has 4 minutes, but start_minute and minutes ask for 3 to 5",
        ),
        (
            "functions = [\"f3\"]\nminutes = 1",
            "none of the chosen functions is invoked",
        ),
        (
            "functions = 1\nbusiest = 1",
            "trace.busiest: does not go with functions",
        ),
    ] {
        let error = read(folder.path(), &format!("{FORMAT}\n{choice}"), "")
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{choice}: {error}");
    }
    for (text, expected) in [
        (
            "HashOwner,1\no,1\n",
            "x_inv.csv:1: has no column HashFunction (it begins with: HashOwner, 1)",
        ),
        ("HashFunction,HashApp,x\n", "has no columns of minutes"),
        (
            "HashFunction,HashApp,1\nf1,a1,1\nf2,a2,many\n",
            "x_inv.csv:3: minute 1 is 'many'",
        ),
        (
            "HashFunction,HashApp,1\nf1,a1\n",
            "x_inv.csv:2: is not the CSV it should be",
        ),
    ] {
        let folder = made_up(text);
        let error = read(folder.path(), FORMAT, "").unwrap_err().to_string();
        assert!(error.contains(expected), "{text:?}: {error}");
    }
}

#[test]
fn recorded_invocations_arrive_when_they_began() {
    let folder = folder(&[(
        "y.csv",
        "app,func,end_timestamp,duration\na,f,70.5,69.5\na,g,2.25,0.25\na,f,3,0.5\nb,f,61,0.5\n",
    )]);
    let read = |more: &str| {
        let trace = format!("format = \"azure2021\"\npath = \"y.csv\"\n{more}");
        let profile = read(folder.path(), &trace, "").unwrap();
        let arrivals: Vec<(u32, f64, f64)> = profile
            .arrivals()
            .map(|arrival| {
                (
                    arrival.function,
                    arrival.at.as_secs_f64(),
                    arrival.service.unwrap().as_secs_f64(),
                )
            })
            .collect();
        (profile, arrivals)
    };
    let (profile, arrivals) = read("");
    let names: Vec<&str> = profile
        .functions()
        .iter()
        .map(|function| function.name.as_str())
        .collect();
    assert_eq!(
        names,
        ["f", "g", "f"],
        "the same function of another app is another function"
    );
    assert_eq!(
        arrivals,
        [
            (0, 1.0, 69.5),
            (1, 2.0, 0.25),
            (0, 2.5, 0.5),
            (2, 60.5, 0.5)
        ]
    );
    assert_eq!(profile.duration(), Duration::from_secs(120));
    let (_, busiest) = read("busiest = 1\nminutes = 1");
    assert_eq!(busiest, [(0, 1.0, 69.5), (0, 2.5, 0.5)]);
}

#[test]
fn the_published_traces_are_read() {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/data");
    let data = std::env::var_os("PILOT_TRACES").map_or_else(beside, PathBuf::from);
    if !data.join("azure2019").is_dir() {
        eprintln!(
            "*** SKIPPED: there are no Azure traces in {}; PILOT_TRACES names their folder ***",
            data.display()
        );
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let read = |trace: &str| {
        let path = folder.path().join("profile.toml");
        fs::write(&path, format!("[trace]\n{trace}\n")).unwrap();
        let overrides = Overrides {
            data: Some(data.clone()),
            set: Vec::new(),
        };
        Profile::read_with(&path, &overrides).unwrap()
    };
    for (file, functions, invocations) in [
        ("100", 100, 86_751),
        ("50", 50, 26_940),
        ("small_5", 5, 1_236),
    ] {
        let profile = read(&format!(
            "format = \"azure2019\"\npath = \"azure2019/{file}_inv.csv\""
        ));
        assert_eq!(profile.functions().len(), functions);
        assert_eq!(profile.arrivals().count(), invocations);
        assert_eq!(profile.expected(), invocations as f64);
        assert_eq!(profile.duration(), Duration::from_secs(86_400));
    }
    let profile = read("format = \"azure2021\"\npath = \"azure2021/Azure2021_200.csv\"");
    assert_eq!(profile.functions().len(), 31);
    assert_eq!(profile.arrivals().count(), 199);
}
