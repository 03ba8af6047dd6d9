//! With `--json` every command answers with exactly one document on standard output, a failure too.

use crate::harness::{Scratch, bedplate, text};

#[test]
fn every_command_answers_with_one_document() {
    let scratch = Scratch::new();
    let image = scratch.path("v.img");
    let source = scratch.file("source", b"content");
    let (volume, source) = (text(&image), text(&source));
    let inside = format!("{volume}:/mnt/f");
    let back = scratch.path("back");
    let man = scratch.path("man");
    for arguments in [
        &["format", volume, "--size", "64M"][..],
        &["info", volume],
        &["mkdir", volume, "/mnt"],
        &["put", volume, source, "/mnt/f"],
        &["stat", &inside],
        &["stat", "--extents", &inside],
        &["mode", &inside, "concurrent"],
        &["mode", &inside],
        &["preallocate", &inside, "1M"],
        &["ls", volume, "-lR"],
        &["cat", volume, "/mnt/f"],
        &["get", volume, "/mnt/f", text(&back)],
        &["grow", volume, "80M"],
        &["shrink", volume, "64M", "--dry-run"],
        &["shrink", volume, "64M"],
        &["log", "show", volume],
        &["log", "resize", volume, "2M", "--dry-run"],
        &["log", "resize", volume, "2M"],
        &["rm", volume, "-r", "/mnt"],
        &["check", volume],
        &["completions", "bash"],
        &["manpages", text(&man)],
        &["--version"],
    ] {
        let document = bedplate(arguments.iter().chain(&["--json"])).succeeds().json();
        assert!(
            document.is_object() && document.get("error").is_none(),
            "{arguments:?}: {document}"
        );
    }
}

#[test]
fn a_failure_is_a_document_with_kind_message_and_exit_code() {
    let scratch = Scratch::new();
    let image = scratch.image("v.img");
    let text_file = scratch.file("text", b"no volume");
    for (arguments, kind, code) in [
        (&["info", "/mnt/no-such-volume"][..], "not_found", 1),
        (&["info", text(&text_file)], "not_a_volume", 1),
        (&["cat", text(&image), "/none"], "not_found", 1),
        (&["format", text(&image)], "exists", 1),
        (&["get", text(&image), "/none", "-"], "usage", 2),
        (&["frobnicate"], "usage", 2),
        (&["check", "/mnt/no-such-volume"], "not_found", 8),
        (&["unmount", text(&scratch.path(""))], "not_a_mount", 1),
        (&["stat", text(&text_file)], "not_a_mount", 1),
    ] {
        let failed = bedplate(["--json"].iter().chain(arguments));
        let error = &failed.json()["error"];
        assert_eq!(
            (error["kind"].as_str(), error["exit_code"].as_i64()),
            (Some(kind), Some(code)),
            "{arguments:?}: {error}"
        );
        assert_eq!(i64::from(failed.code()), code, "{arguments:?}");
        assert!(
            error["message"].as_str().is_some_and(|message| !message.is_empty()),
            "{arguments:?}: {error}"
        );
        assert_eq!(failed.stderr(), "", "{arguments:?}");
    }
}

#[test]
fn the_names_of_fields_are_stable() {
    let scratch = Scratch::new();
    let image = scratch.path("v.img");
    let formatted = bedplate(["--json", "format", text(&image), "--size", "64M"]).succeeds().json();
    let info = bedplate(["--json", "info", text(&image)]).succeeds().json();
    let checked = bedplate(["--json", "check", text(&image)]).succeeds().json();
    for (document, names) in [
        (
            &formatted,
            &[
                "path",
                "log",
                "filled",
                "uuid",
                "block_size",
                "size_bytes",
                "log_bytes",
                "log_separate",
            ][..],
        ),
        (
            &info,
            &[
                "volume",
                "mounted_at",
                "uuid",
                "version",
                "block_size",
                "io_align",
                "size_bytes",
                "free_bytes",
                "mode",
                "engine",
                "log",
                "recovery",
            ],
        ),
        (
            &checked,
            &[
                "volume",
                "verdict",
                "exit_code",
                "findings",
                "inodes",
                "names",
                "extents",
                "log_records",
                "clean_unmount",
            ],
        ),
    ] {
        for name in names {
            assert!(document.get(name).is_some(), "'{name}' is missing in {document}");
        }
    }
}
