//! Real file systems of the kernel, made in images, converted, committed and abandoned.

mod convert;
mod cuts;
mod image;
mod killed;
mod refused;
mod tree;
