//! What a program calls, recorded (S-384 to S-388).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use bedplate_trace::{Arena, CHUNK_SLOTS, Call, Event, HEADER_BYTES, SLOT_BYTES, Trace, collected};
use bedplate_trace::{how, summarized};

use super::stage::{compiled, library, lines};

/// A directory, and an arena in it.
struct Place(tempfile::TempDir);

impl Place {
    fn new(chunks: u64, only_the_first: bool) -> Self {
        let place = Self(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
        let arena = File::create(place.path("arena")).unwrap();
        arena.set_len((HEADER_BYTES + SLOT_BYTES * CHUNK_SLOTS) as u64 * chunks).unwrap();
        arena.write_all_at(&Arena::header(only_the_first), 0).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, program: &PathBuf, words: &[&str]) -> (ExitStatus, String) {
        let mut command = Command::new(program);
        command.args(words).env("LD_PRELOAD", library()).env("BEDPLATE_TRACE", self.path("arena"));
        let output = command.current_dir(self.0.path()).output().unwrap();
        (output.status, lines(&[output.stdout, output.stderr].concat()))
    }

    fn trace(&self) -> Trace {
        collected(&std::fs::read(self.path("arena")).unwrap()).unwrap().trace
    }
}

/// The calls on the file that the program of the tests works on.
fn on_file(trace: &Trace) -> Vec<&Event> {
    let is_file = |event: &&Event| {
        event.file.is_some_and(|file| trace.files[file as usize].path.ends_with("/file"))
    };
    trace.events.iter().filter(is_file).collect()
}

fn traced(words: &[&str], chunks: u64) -> Option<(Place, Trace)> {
    let program = compiled("traced")?;
    let place = Place::new(chunks, false);
    let (status, said) = place.run(&program, &[&["."], words].concat());
    assert!(status.success(), "{words:?}: {said}");
    let trace = place.trace();
    Some((place, trace))
}

#[test]
fn s_384_a_traced_program_has_the_results_that_it_has_without() {
    let Some(alike) = compiled("alike") else { return };
    let place = Place::new(4000, false);
    for seed in 1..=6 {
        let (status, said) = place.run(&alike, &["a", "b", &seed.to_string(), "300"]);
        assert!(status.success() && said == "alike", "seed {seed}: {said}");
    }
    assert!(place.trace().events.len() > 1000);
    // No descriptor is in the program's way.
    let script = "ulimit -n 12; exec 9<a; readlink /proc/$$/fd/*; cat a b | wc -c";
    let (status, said) = place.run(&"bash".into(), &["-c", script]);
    assert!(status.success() && said.contains("/a,") && !said.contains("arena"), "{said}");
}

#[test]
fn s_385_a_trace_has_each_call_with_its_place_size_and_error() {
    let Some((_place, trace)) = traced(&["calls"], 100) else { return };
    assert_eq!(trace.about.lost, 0);
    let moves: Vec<_> = on_file(&trace)
        .into_iter()
        .filter(|event| event.call.is_move())
        .map(|event| (event.call, event.offset, event.asked, event.moved, event.errno))
        .collect();
    use Call::{Read, Write};
    let expected = [
        (Write, 4096, 8192, 8192, 0),
        (Write, 0, 512, 512, 0),
        (Write, 512, 100, 100, 0),
        (Read, 4096, 4096, 4096, 0),
        (Read, 512, 1536, 1536, 0),
        (Write, 0, 1536, 1536, 0),
        // To the end.
        (Write, 100, 50, 50, 0),
        (Write, 150, 60, 60, 0),
        (Read, 0, 1, 0, 22),
    ];
    assert_eq!(moves, expected);
    let told = summarized(&trace);
    let file = told.files.iter().find(|file| file.path.ends_with("/file")).unwrap();
    assert_eq!((file.opens, file.syncs.calls, file.maps, file.sized), (2, 2, 1, 1));
    assert!(file.flags.contains(&"O_APPEND"), "{:?}", file.flags);
    assert!(trace.events.iter().any(|event| event.how & how::DURABLE != 0));
    let missing = told.failures.iter().find(|failed| failed.call == "open").unwrap();
    assert_eq!((missing.errno.as_str(), missing.path.as_str()), ("ENOENT", "nothing/here"));
    assert_eq!(missing.flags, ["O_DIRECT"]);
    assert!(trace.files.iter().all(|file| !file.path.starts_with("pipe:")), "pipes are no files");
}

#[test]
fn s_385_threads_and_children_are_in_the_trace_and_what_they_inherited() {
    const EACH: usize = 3000;
    let Some((_place, trace)) = traced(&["threads", "3000"], 400) else { return };
    let writes: Vec<_> =
        on_file(&trace).into_iter().filter(|event| event.call == Call::Write).collect();
    assert_eq!((writes.len(), trace.about.lost), (4 * EACH, 0));
    let mut threads: Vec<_> = writes.iter().map(|event| event.thread).collect();
    threads.sort_unstable();
    threads.dedup();
    assert_eq!(threads.len(), 4);

    let Some((_place, trace)) = traced(&["children", "700"], 400) else { return };
    let writes = on_file(&trace).into_iter().filter(|event| event.call == Call::Write);
    let mut by_process = vec![0; trace.processes.len()];
    writes.for_each(|event| by_process[event.process as usize] += 1);
    assert_eq!(by_process, [700, 700, 1], "the program, its child, and what that became");
    let [first, child, became] = &trace.processes[..] else { panic!("three processes") };
    assert_eq!((child.parent, child.pid), (first.pid, became.pid));
    assert!(became.program.ends_with("lease-traced"), "{}", became.program);
}

#[test]
fn s_385_requests_are_in_the_trace_from_their_submission_to_their_end() {
    let Some((_place, trace)) = traced(&["requests", "90"], 100) else { return };
    let writes: Vec<_> =
        on_file(&trace).into_iter().filter(|event| event.call == Call::Write).collect();
    let places: Vec<_> = writes.iter().map(|event| event.offset / 512).collect();
    assert_eq!(places, (0..90).collect::<Vec<_>>());
    assert!(writes.iter().all(|event| event.how == how::ASYNC && event.moved == 512));
    assert!(writes.iter().all(|event| event.took_ns > 0));
}

#[test]
fn s_386_what_a_killed_program_called_is_in_the_trace() {
    let Some(program) = compiled("traced") else { return };
    let place = Place::new(100, false);
    let (status, _) = place.run(&program, &[".", "killed", "2000"]);
    assert!(!status.success());
    let trace = place.trace();
    let writes = on_file(&trace).into_iter().filter(|event| event.call == Call::Write).count();
    assert_eq!((writes, trace.about.lost), (2000, 0));
}

#[test]
fn s_386_what_finds_no_room_is_counted_and_the_program_goes_on() {
    let Some((_place, trace)) = traced(&["threads", "3000"], 6) else { return };
    let kept = trace.events.len() as u64;
    assert!(kept > 0 && kept < 6 * CHUNK_SLOTS as u64, "{kept}");
    // Those of paths are lost with their calls.
    let all = kept + trace.about.lost;
    assert!((12_000..12_300).contains(&all), "{kept} and {} lost", trace.about.lost);
}

#[test]
fn s_388_mappings_and_rings_are_counted() {
    let Some((_place, trace)) = traced(&["ring"], 20) else { return };
    let rings = trace.events.iter().filter(|event| event.call == Call::Ring).count();
    assert_eq!(rings, 1);
    let Some((_place, trace)) = traced(&["calls"], 20) else { return };
    assert_eq!(summarized(&trace).maps, 1);
}

#[test]
fn one_process_records_alone_where_that_is_asked_for() {
    let Some(program) = compiled("traced") else { return };
    let place = Place::new(100, true);
    let (status, said) = place.run(&program, &[".", "children", "500"]);
    assert!(status.success(), "{said}");
    let trace = place.trace();
    assert_eq!(trace.processes.len(), 1);
    let writes = on_file(&trace).into_iter().filter(|event| event.call == Call::Write).count();
    assert_eq!(writes, 500);
}
