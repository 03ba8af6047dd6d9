//! Volumes: one linear address space over devices. With one device it is the identity and costs nothing.
#![forbid(unsafe_code)]
