use super::*;

#[test]
fn the_table_is_in_order_and_its_defaults_are_allowed() {
    for (at, info) in TUNABLES.iter().enumerate() {
        assert_eq!((info.tunable as usize, Tunable::named(info.name).unwrap()), (at, info.tunable));
        if info.takes != Takes::Format {
            assert!(info.tunable.allows(info.tunable.default_value()), "I-TUNE-1: {}", info.name);
        }
        let mut options = MountOptions::default();
        info.tunable.put(info.min, &mut options);
        assert_eq!(
            info.tunable.of(&options),
            if info.takes == Takes::Format { 0 } else { info.min },
            "{}",
            info.name
        );
        assert!(!info.effect.ends_with('.') && !info.effect.is_empty());
    }
}

#[test]
fn values_are_read_as_they_are_written_and_refused_in_a_sentence() {
    for info in TUNABLES {
        for value in [info.min, info.max] {
            assert_eq!(
                info.tunable.parse(&info.unit.format(value)).unwrap(),
                value,
                "{}",
                info.name
            );
        }
    }
    for (tunable, text) in [
        (Tunable::Mode, "fast"),
        (Tunable::Cache, "lots"),
        (Tunable::Sync, "0s"),
        (Tunable::Sync, "2d"),
        (Tunable::Threads, "0"),
        (Tunable::WriteBehindMax, "76%"),
        (Tunable::WriteBehindMax, "half"),
        (Tunable::LatencySample, "-1"),
    ] {
        let error = tunable.parse(text).unwrap_err();
        assert!(
            error.message.contains(text) && error.message.starts_with(tunable.info().name),
            "{error}"
        );
    }
    assert!(Tunable::named("speed").unwrap_err().message.contains("read-ahead-max"));
}

#[test]
fn what_contradicts_itself_is_refused() {
    let options = |min, max| MountOptions {
        read_ahead_bytes_min: min,
        read_ahead_bytes_max: max,
        ..MountOptions::default()
    };
    assert!(check_pairs(&options(4096, 4096)).is_ok() && check_pairs(&options(4096, 0)).is_ok());
    let error = check_pairs(&options(8192, 4096)).unwrap_err();
    assert_eq!(
        error.message,
        "read-ahead-min would be 8 KiB, more than read-ahead-max, which is 4 KiB: set both"
    );
}
