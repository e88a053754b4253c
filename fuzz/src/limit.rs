//! Memory that is asked for in one piece.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;

/// The largest allocation that an input may cause. Inputs have 1 MiB at most, and no codec here makes this of it in one page
/// or block without declaring it first.
pub const MOST_BYTES_AT_ONCE: usize = 256 << 20;

/// Addresses of the process, all its pieces of memory together with its program: as `RLIMIT_AS` has them.
const ADDRESSES: u64 = 3 << 30;

/// Ends what takes more than [`ADDRESSES`].
pub(crate) fn limit_addresses() {
    let limit = libc::rlimit { rlim_cur: ADDRESSES, rlim_max: ADDRESSES };
    // SAFETY: the limit is a value on the stack that lives through the call.
    let done = unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) };
    assert_eq!(done, 0, "the addresses of this process cannot be limited");
}

/// The system's allocator, up to [`MOST_BYTES_AT_ONCE`].
struct Limited;

#[global_allocator]
static ALLOCATOR: Limited = Limited;

fn check(bytes: usize) {
    if bytes > MOST_BYTES_AT_ONCE {
        eprintln!("{bytes} bytes are asked for at once\n{}", Backtrace::force_capture());
        std::process::abort();
    }
}

// SAFETY: every call goes on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        check(layout.size());
        // SAFETY: by this function's own contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        check(layout.size());
        // SAFETY: by this function's own contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        check(bytes);
        // SAFETY: by this function's own contract.
        unsafe { System.realloc(at, layout, bytes) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: by this function's own contract.
        unsafe { System.dealloc(at, layout) }
    }
}
