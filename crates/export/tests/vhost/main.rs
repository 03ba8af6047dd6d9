//! The back end of vhost-user, with the front end of another implementation, and queues laid out by
//! hand.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod bed;
mod data;
mod durable;
mod guest;
mod hostile;
#[path = "../shared/places.rs"]
mod places;
mod sessions;
mod shapes;
