//! The protocols as bytes, of both sides: XDR, messages in a stream, calls and replies of RPC, what
//! NFS version 3 says of files. The server in `crates/export` reads what the client here writes.

pub mod attr;
pub mod locks;
pub mod numbers;
pub mod record;
pub mod rpc;
pub mod status;
pub mod xdr;
