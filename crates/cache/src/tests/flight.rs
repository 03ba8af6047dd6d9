//! The rules of fills and changes under way.

use std::sync::Arc;

use crate::flight::{Flights, Landing};

fn flights() -> (Flights, Arc<Landing>) {
    (Flights::default(), Arc::default())
}

#[test]
fn i_cache_2_a_change_spoils_fills_before_and_during() {
    let (mut flights, landing) = flights();
    flights.begin_fill(1, 7, 0, 0b0011, &landing);
    flights.begin_change(2, 7, 0, 0b0010);
    flights.begin_fill(3, 7, 0, 0b0010, &landing);
    flights.begin_fill(4, 7, 0, 0b1000, &landing);
    assert!(flights.end_change(2, 0));
    flights.begin_fill(5, 7, 0, 0b0010, &landing);
    assert_eq!([1, 3, 4, 5].map(|id| flights.end_fill(id, 0)), [false, false, true, true]);
}

#[test]
fn i_cache_3_overlapping_changes_are_contended_both() {
    let (mut flights, _) = flights();
    flights.begin_change(1, 7, 0, 0b0011);
    flights.begin_change(2, 7, 0, 0b0110);
    flights.begin_change(3, 7, 0, 0b1000);
    flights.begin_change(4, 8, 0, 0b1111);
    assert_eq!([1, 2, 3, 4].map(|id| flights.end_change(id, 0)), [false, false, true, true]);
}

#[test]
fn a_spoiled_fill_is_not_waited_for() {
    let (mut flights, landing) = flights();
    flights.begin_fill(1, 7, 0, 1, &landing);
    assert!(flights.coming(7, 0, 1).is_some());
    flights.spoil(7, 0, 1);
    assert!(flights.coming(7, 0, 1).is_none());
}
