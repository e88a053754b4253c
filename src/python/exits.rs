//! Threads that Python ends when the interpreter ends.
//!
//! A daemon thread may be anywhere when its program ends. Before Python 3.14 it is ended with
//! `pthread_exit` as soon as it asks for the GIL again. glibc does that by unwinding its stack, and
//! no frame of Rust, nor one of C++ that promises not to throw, may be unwound so: the process
//! aborts. Python 3.14 lets such a thread stay where it is, and so do threads that called this
//! library. The process ends without them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ThreadId};

use pyo3::Python;

/// Whether the interpreter is ending.
static ENDING: AtomicBool = AtomicBool::new(false);

/// The thread that ends it.
static ENDS: OnceLock<ThreadId> = OnceLock::new();

/// Notes that the interpreter is ending, by the calling thread.
pub fn begin_ending() {
    ENDS.get_or_init(|| thread::current().id());
    ENDING.store(true, Ordering::SeqCst);
}

/// Keeps a thread that Python is about to end from raising what it met since the end began: nobody
/// can act on that error, and Python would print it, or half of it. Returns on other threads.
pub fn stay_if_ended(py: Python<'_>) {
    if is_ending() && ENDS.get().is_some_and(|ends| *ends != thread::current().id()) {
        py.detach(|| {
            loop {
                // SAFETY: it waits for a signal, and has no other effect.
                unsafe { libc::pause() };
            }
        })
    }
}

/// Returns true if the interpreter is ending.
pub fn is_ending() -> bool {
    ENDING.load(Ordering::SeqCst)
}

/// Has the calling thread stay where it is when Python ends it. Call this before Python code or a
/// wait for the GIL may run below a frame of Rust.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn stay_until_exit() {
    glibc::stay_until_exit();
}

/// Other systems end a thread without unwinding its stack.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn stay_until_exit() {}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    use std::cell::Cell;
    use std::ffi::{c_int, c_void};
    use std::mem;
    use std::ptr;
    use std::sync::OnceLock;

    use super::is_ending;

    /// glibc's `struct _pthread_cleanup_buffer`: an entry of a thread's list of cleanup handlers.
    #[repr(C)]
    struct Entry {
        routine: Option<Routine>,
        argument: *mut c_void,
        cancel_type: c_int,
        before: *mut Entry,
    }

    type Routine = extern "C" fn(*mut c_void);
    type Push = unsafe extern "C" fn(*mut Entry, Routine, *mut c_void);

    thread_local! {
        static STAYS: Cell<bool> = const { Cell::new(false) };
    }

    /// Pushes a cleanup handler, once for each thread. Its entry lies outside of the thread's stack,
    /// so that glibc takes it for one of the first frame to be unwound, and calls it before any
    /// frame is left. No thread pops it: one that ends otherwise does not look at the list.
    pub(super) fn stay_until_exit() {
        if STAYS.replace(true) {
            return;
        }
        let Some(push) = push() else { return };
        let entry = Entry {
            routine: None,
            argument: ptr::null_mut(),
            cancel_type: 0,
            before: ptr::null_mut(),
        };
        // SAFETY: the entry is never freed, and `stay` neither unwinds nor reads its argument.
        unsafe { push(Box::into_raw(Box::new(entry)), stay, ptr::null_mut()) };
    }

    /// What the macro `pthread_cleanup_push` of C calls; looked up, since it is no part of POSIX.
    fn push() -> Option<Push> {
        static PUSH: OnceLock<Option<Push>> = OnceLock::new();
        *PUSH.get_or_init(|| {
            // SAFETY: the name ends with a zero.
            let found =
                unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_pthread_cleanup_push".as_ptr()) };
            // SAFETY: it is null, or glibc's function of this name, which has had this type always.
            unsafe { mem::transmute::<*mut c_void, Option<Push>>(found) }
        })
    }

    /// A thread that ends while the interpreter does not is none of ours to hold.
    extern "C" fn stay(_argument: *mut c_void) {
        while is_ending() {
            // SAFETY: it waits for a signal, and has no other effect.
            unsafe { libc::pause() };
        }
    }
}
