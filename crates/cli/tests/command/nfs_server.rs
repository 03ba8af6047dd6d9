//! A server of NFS as a process of its own.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::{command, text};

/// A server that is killed when a test fails.
pub struct Server {
    pub child: Child,
    pub address: SocketAddr,
}

impl Server {
    /// Serves a directory, and waits until it does.
    pub fn start(dir: &Path, more: &[&str]) -> Self {
        Self::start_at(dir, "0", more)
    }

    pub fn start_at(dir: &Path, listen: &str, more: &[&str]) -> Self {
        let arguments = ["--json", "export", "nfs", text(dir), "--listen", listen, "--insecure"];
        let mut child =
            command(arguments.iter().chain(more)).stdout(Stdio::piped()).spawn().unwrap();
        let mut told = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        while output.read_line(&mut told).unwrap() > 0 && !told.trim_end().ends_with('}') {}
        let told: Value = serde_json::from_str(&told).unwrap();
        assert_eq!(told["dir"].as_str(), dir.to_str());
        Self { child, address: told["address"].as_str().unwrap().parse().unwrap() }
    }

    /// Sends a signal that does not end it.
    pub fn pause(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub fn send(mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}
