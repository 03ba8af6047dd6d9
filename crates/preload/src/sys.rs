//! System calls without the C library, and its few functions that are needed besides.
//!
//! The library stands in front of the C library's functions, so it calls none of those: there is no
//! real function to be looked up first, and none that another library may have replaced. Calls that
//! a thread may be cancelled in go to names of the C library that nothing interposes, or allow
//! cancellation for the moment of the call, as the C library does.

#[cfg(target_arch = "x86_64")]
use std::arch::asm;
use std::ffi::{CStr, c_char, c_int, c_void};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("libbedplate_lease.so makes system calls of x86-64 and aarch64 only");

/// A file descriptor's number.
pub type Fd = c_int;

/// Makes a system call; the result is the kernel's: an error is its negative number.
///
/// # Safety
///
/// The arguments fit the call: what it reads and writes is the caller's to lend.
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn call6(number: i64, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the x86-64 convention of Linux; the caller answers for the arguments.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a[0], in("rsi") a[1],
            in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5], lateout("rcx") _,
            lateout("r11") _, options(nostack));
    }
    result
}

/// Makes a system call; the result is the kernel's: an error is its negative number.
///
/// # Safety
///
/// The arguments fit the call: what it reads and writes is the caller's to lend.
#[cfg(target_arch = "aarch64")]
#[inline]
pub unsafe fn call6(number: i64, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the convention of Linux on aarch64; the caller answers for the arguments.
    unsafe {
        std::arch::asm!("svc 0", in("x8") number, inlateout("x0") a[0] => result, in("x1") a[1],
            in("x2") a[2], in("x3") a[3], in("x4") a[4], in("x5") a[5], options(nostack));
    }
    result
}

/// Makes a system call with fewer arguments.
macro_rules! syscall {
    ($number:expr $(, $argument:expr)* $(,)?) => {{
        let mut all = [0_usize; 6];
        let given = [$($argument as usize),*];
        all[..given.len()].copy_from_slice(&given);
        $crate::sys::call6($number, all)
    }};
}
pub(crate) use syscall;

// A thread that is cancelled within one of these unwinds through its caller.
unsafe extern "C-unwind" {
    fn __errno_location() -> *mut c_int;
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
    /// `read` under a name that nothing interposes.
    pub fn __read(fd: c_int, buf: *mut c_void, count: usize) -> isize;
    /// `write` under a name that nothing interposes.
    pub fn __write(fd: c_int, buf: *const c_void, count: usize) -> isize;
    /// `pread64` under a name that nothing interposes.
    pub fn __pread64(fd: c_int, buf: *mut c_void, count: usize, offset: i64) -> isize;
    /// `pwrite64` under a name that nothing interposes.
    pub fn __pwrite64(fd: c_int, buf: *const c_void, count: usize, offset: i64) -> isize;
    /// `close` under a name that nothing interposes.
    pub fn __close(fd: c_int) -> c_int;
    /// `fcntl` under a name that nothing interposes.
    pub fn __fcntl(fd: c_int, command: c_int, ...) -> c_int;
    /// `fdopen` under a name that nothing interposes.
    pub fn _IO_fdopen(fd: c_int, mode: *const c_char) -> *mut c_void;
    /// Ends the program: a buffer is smaller than what is to be read into it.
    pub fn __chk_fail() -> !;
}

/// Sets the thread's error number.
pub fn set_errno(number: c_int) {
    // SAFETY: the C library's own place, valid in every thread.
    unsafe { *__errno_location() = number }
}

/// Returns the thread's error number.
pub fn errno() -> c_int {
    // SAFETY: as above.
    unsafe { *__errno_location() }
}

/// Turns the kernel's result into the C library's.
pub fn with_errno(result: isize) -> isize {
    if (-4095..0).contains(&result) {
        set_errno(-result as c_int);
        return -1;
    }
    result
}

const PTHREAD_CANCEL_ASYNCHRONOUS: c_int = 1;

/// Makes a system call in which the thread may be cancelled.
///
/// # Safety
///
/// As [`call6`].
pub unsafe fn cancellable(number: i64, arguments: [usize; 6]) -> isize {
    let mut old = 0;
    // SAFETY: nothing is held here that a cancellation would have to undo; the caller answers for
    // the arguments.
    unsafe {
        pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &raw mut old);
        let result = call6(number, arguments);
        pthread_setcanceltype(old, std::ptr::null_mut());
        with_errno(result)
    }
}

/// Closes a descriptor of the library's own.
pub fn close(fd: Fd) {
    // SAFETY: takes a number only.
    unsafe { syscall!(libc::SYS_close, fd) };
}

/// Returns the process's number.
pub fn pid() -> u32 {
    // SAFETY: takes nothing.
    (unsafe { syscall!(libc::SYS_getpid) }) as u32
}

/// Returns the thread's number.
pub fn tid() -> u32 {
    // SAFETY: takes nothing.
    (unsafe { syscall!(libc::SYS_gettid) }) as u32
}

/// Returns the number of the process's parent.
pub fn parent() -> u32 {
    // SAFETY: takes nothing.
    (unsafe { syscall!(libc::SYS_getppid) }) as u32
}

/// Returns where a descriptor stands; an error is its negative number.
pub fn fd_place(fd: Fd) -> i64 {
    // SAFETY: takes numbers only.
    unsafe { syscall!(libc::SYS_lseek, fd, 0, libc::SEEK_CUR) as i64 }
}

/// Reads where a link leads.
pub fn read_link<'a>(link: &CStr, path: &'a mut [u8]) -> Option<&'a [u8]> {
    let (from, to, room) = (link.as_ptr(), path.as_mut_ptr(), path.len());
    // SAFETY: the link's path ends with a zero; the kernel fills at most what is there.
    let len = unsafe { syscall!(libc::SYS_readlinkat, libc::AT_FDCWD, from, to, room) };
    path.get(..usize::try_from(len).ok()?)
}

/// Tells whether a thread of this process is gone.
pub fn is_gone(pid: u32, thread: u32) -> bool {
    // SAFETY: signal 0 is none.
    (unsafe { syscall!(libc::SYS_tgkill, pid, thread, 0) }) == -(libc::ESRCH as isize)
}

/// A command of `fcntl` with a number.
pub fn fcntl(fd: Fd, command: c_int, argument: usize) -> isize {
    // SAFETY: the commands used take numbers only.
    unsafe { syscall!(libc::SYS_fcntl, fd, command, argument) }
}

const F_DUPFD_QUERY: c_int = 1027;

/// Tells whether two descriptors are one open file; nothing where the kernel cannot tell.
#[inline]
pub fn is_same(fd: Fd, other: Fd) -> Option<bool> {
    match fcntl(fd, F_DUPFD_QUERY, other as usize) {
        1 => Some(true),
        0 => Some(false),
        result if result == -(libc::EINVAL as isize) => None,
        // A descriptor that is not open is not the other one.
        _ => Some(false),
    }
}

/// Returns what the file is.
pub fn stat(fd: Fd) -> Option<libc::stat> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel fills the structure, which is of its own layout on these processors; all
    // zeros is a value of it besides.
    unsafe { (syscall!(libc::SYS_fstat, fd, stat.as_mut_ptr()) == 0).then(|| stat.assume_init()) }
}

/// Returns which file it is, by what the kernel knows: a question to the mount may wait for what
/// waits for the caller.
pub fn identity(fd: Fd) -> Option<(u32, u32, u64)> {
    let stat = statx(fd, libc::AT_STATX_DONT_SYNC, libc::STATX_INO)?;
    Some((stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino))
}

/// Asks what the file is.
pub fn statx(fd: Fd, flags: c_int, wanted: u32) -> Option<libc::statx> {
    let mut stat = std::mem::MaybeUninit::<libc::statx>::zeroed();
    let flags = flags | libc::AT_EMPTY_PATH;
    // SAFETY: the kernel fills the structure; all zeros is a value of it besides.
    unsafe {
        let path = c"".as_ptr();
        let result = syscall!(libc::SYS_statx, fd, path, flags, wanted, stat.as_mut_ptr());
        (result == 0).then(|| stat.assume_init())
    }
}

/// Maps `bytes` of a descriptor, shared; or nothing of none, private.
pub fn map(bytes: usize, protection: c_int, fd: Option<Fd>) -> Option<*mut u8> {
    let flags = fd.map_or(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, |_| libc::MAP_SHARED);
    // SAFETY: a new mapping takes nothing away from others.
    let at = unsafe { syscall!(libc::SYS_mmap, 0, bytes, protection, flags, fd.unwrap_or(-1), 0) };
    (!(-4095..0).contains(&at)).then_some(at as *mut u8)
}

/// Returns where the stack of this thread is now.
#[inline]
pub fn stack_pointer() -> u64 {
    let at: u64;
    // SAFETY: copies a register.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("mov {}, rsp", out(reg) at, options(nomem, nostack, preserves_flags));
    }
    // SAFETY: copies a register.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("mov {}, sp", out(reg) at, options(nomem, nostack, preserves_flags));
    }
    at
}

/// Tells whether the thread runs on a stack for signals.
pub fn is_on_signal_stack() -> bool {
    let mut stack = std::mem::MaybeUninit::<libc::stack_t>::zeroed();
    // SAFETY: the kernel fills the structure; all zeros is a value of it besides.
    let stack = unsafe {
        syscall!(libc::SYS_sigaltstack, 0, stack.as_mut_ptr());
        stack.assume_init()
    };
    stack.ss_flags & libc::SS_ONSTACK != 0
}
