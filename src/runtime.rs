//! The threads of a process, and the one place that knows about `fork`.
//!
//! tokio's worker threads do not survive `fork()`: in the child a runtime looks alive, and every
//! task spawned on it waits forever. So the child's first step, taken inside `fork` itself
//! (`pthread_atfork`), is to forget the runtimes it inherited; the next use starts fresh ones. The
//! inherited ones are leaked, never dropped: dropping would wait for threads that do not exist.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::thread::available_parallelism;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{Mutex, MutexGuard, Semaphore};
use tokio::time::{Sleep, Timeout};

use crate::pool::briefly;
use crate::request_limiter::RequestLimiter;
use crate::{Error, Result};

/// Threads for network I/O: they only move bytes.
const IO_THREADS: usize = 2;

/// Stack of a thread that plans queries: planning calls itself for each level of an expression. It
/// is memory only as far as it is used.
const STACK_BYTES: usize = 8 << 20;

/// Queries that are planned at the same time, each on a thread where it may block. There are 512 of
/// these.
const PLANS_AT_ONCE: usize = 64;

/// The process's runtimes; null before the first use and after a fork.
static CURRENT: AtomicPtr<Arc<Runtimes>> = AtomicPtr::new(ptr::null_mut());

static WATCH_FORKS: Once = Once::new();

static SETTLE: Once = Once::new();

/// How often this process has forked; a child goes on from its parent's number.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Two runtimes: one for CPU-bound decoding, whose blocking pool does local file I/O, and one for
/// network I/O, so that neither waits behind the other.
#[derive(Debug)]
pub struct Runtimes {
    cpu: Runtime,
    io: Runtime,
    limiter: Arc<RequestLimiter>,
    planning: Semaphore,
}

impl Runtimes {
    /// The runtimes of this process, started on first use: as many decoding threads as the process
    /// has CPUs (affinity and cgroup limits respected).
    ///
    /// # Errors
    /// `Config` where the operating system refuses a thread.
    pub fn current() -> Result<Arc<Self>> {
        watch_forks();
        SETTLE.call_once(settle_allocator);
        let known = CURRENT.load(Ordering::Acquire);
        if !known.is_null() {
            // SAFETY: a non-null pointer came from `Box::into_raw` below and is never freed.
            return Ok(Arc::clone(unsafe { &*known }));
        }
        let started = Box::into_raw(Box::new(Arc::new(Self::start()?)));
        match CURRENT.compare_exchange(
            ptr::null_mut(),
            started,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            // SAFETY: `started` was just made here, and is from now on never freed.
            Ok(_) => Ok(Arc::clone(unsafe { &*started })),
            Err(other) => {
                // SAFETY: `started` lost the race and was seen by nobody else; `other` is as above.
                let (ours, theirs) = unsafe { (Box::from_raw(started), &*other) };
                // Dropping a runtime waits for its threads, which a caller inside of another one
                // must not.
                if let Some(ours) = Arc::into_inner(*ours) {
                    ours.cpu.shutdown_background();
                    ours.io.shutdown_background();
                }
                Ok(Arc::clone(theirs))
            }
        }
    }

    fn start() -> Result<Self> {
        Ok(Self {
            cpu: runtime(
                Builder::new_multi_thread().thread_stack_size(STACK_BYTES),
                "cpu",
                cpus(),
            )?,
            io: runtime(&mut Builder::new_multi_thread(), "io", IO_THREADS)?,
            limiter: Arc::default(),
            planning: Semaphore::new(PLANS_AT_ONCE),
        })
    }

    /// Where decoding runs.
    pub fn cpu(&self) -> &Handle {
        self.cpu.handle()
    }

    /// Where network requests run.
    pub fn io(&self) -> &Handle {
        self.io.handle()
    }

    /// A pause. It uses the clock of the I/O runtime: the clock of the CPU runtime stands still
    /// while all its threads compute.
    pub fn sleep(&self, time: Duration) -> Sleep {
        let _io = self.io().enter();
        tokio::time::sleep(time)
    }

    /// The future, given up after a time by the same clock.
    pub fn within<F: Future>(&self, time: Duration, future: F) -> Timeout<F> {
        let _io = self.io().enter();
        tokio::time::timeout(time, future)
    }

    /// Whoever plans a query on a thread where it may block has one of these permits.
    pub fn planning(&self) -> &Semaphore {
        &self.planning
    }

    /// The requests of this process, all stores together.
    pub fn limiter(&self) -> &Arc<RequestLimiter> {
        &self.limiter
    }
}

/// CPUs that this process may use.
fn cpus() -> usize {
    available_parallelism().map_or(1, usize::from)
}

fn runtime(builder: &mut Builder, name: &str, threads: usize) -> Result<Runtime> {
    builder
        .worker_threads(threads)
        .thread_name(format!("tensorquery-{name}"))
        .on_thread_start(open_arena)
        .enable_all()
        .build()
        .map_err(|error| Error::config("cannot start threads").with_source(error))
}

fn watch_forks() {
    WATCH_FORKS.call_once(|| {
        // SAFETY: both only touch atomics, which is async-signal-safe, as code between fork and
        // exec of a multi-threaded process must be.
        unsafe { libc::pthread_atfork(Some(count_fork), None, Some(forget_inherited)) };
    });
}

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::AcqRel);
}

extern "C" fn forget_inherited() {
    CURRENT.store(ptr::null_mut(), Ordering::Release);
}

/// A moment in the life of this process, to be asked later for the forks since then.
#[derive(Clone, Copy, Debug)]
pub struct Forks {
    process: u32,
    count: u64,
}

impl Forks {
    /// The moment of the call.
    pub fn now() -> Self {
        watch_forks();
        Self { process: std::process::id(), count: FORKS.load(Ordering::Acquire) }
    }

    /// How often the process has forked since; None in a child.
    pub fn since(self) -> Option<u64> {
        let is_child = std::process::id() != self.process;
        (!is_child).then(|| FORKS.load(Ordering::Acquire) - self.count)
    }
}

/// A lock that stays safe across forks. A task that holds it may wait for the network, and in a
/// forked process nobody is left to release it. There it is open: the work that it separates may
/// then be done twice, which does no harm.
#[derive(Debug)]
pub struct ForkLock {
    process: u32,
    lock: Mutex<()>,
}

impl Default for ForkLock {
    fn default() -> Self {
        Self { process: std::process::id(), lock: Mutex::default() }
    }
}

impl ForkLock {
    /// Waits for whoever is inside.
    pub async fn enter(&self) -> Option<MutexGuard<'_, ()>> {
        match self.process == std::process::id() {
            true => Some(self.lock.lock().await),
            false => None,
        }
    }

    /// One that another process has made and left closed.
    #[cfg(test)]
    pub async fn inherited() -> Self {
        let fork_lock = Self { process: 0, lock: Mutex::default() };
        std::mem::forget(fork_lock.lock.lock().await);
        fork_lock
    }
}

/// Something that each process makes for itself when it is first wanted: a connection, which does
/// not survive a fork.
#[derive(Debug)]
pub struct PerProcess<T> {
    /// Who makes it is inside.
    fork_lock: ForkLock,
    made: std::sync::Mutex<Option<(u32, T)>>,
}

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        Self { fork_lock: ForkLock::default(), made: std::sync::Mutex::new(None) }
    }
}

impl<T: Clone> PerProcess<T> {
    /// Holds a value that this process has made already.
    pub fn of(made: T) -> Self {
        let made = std::sync::Mutex::new(Some((std::process::id(), made)));
        Self { fork_lock: ForkLock::default(), made }
    }

    fn get(&self) -> Option<T> {
        let (of, made) = briefly(&self.made, |made| made.clone()).flatten()?;
        (of == std::process::id()).then_some(made)
    }

    /// Returns the value that this process has made, or makes it now.
    ///
    /// # Errors
    /// Errors of making it; the next call tries again.
    pub async fn get_or_make(&self, make: impl Future<Output = Result<T>>) -> Result<T> {
        if let Some(made) = self.get() {
            return Ok(made);
        }
        let _inside = self.fork_lock.enter().await;
        if let Some(made) = self.get() {
            return Ok(made);
        }
        let new = make.await?;
        briefly(&self.made, |made| *made = Some((std::process::id(), new.clone())));
        Ok(new)
    }
}

/// Largest block from which glibc's allocator learns, without the allocator's own bytes around it.
const LEARNT_BYTES: usize = (32 << 20) - (64 << 10);

/// Bytes that an arena of glibc's allocator may use from its first block on.
const ARENA_BYTES: usize = 16 << 20;

/// Has glibc reserve this thread's likely arena size at once. Otherwise it would ask the system for
/// each page or two that the arena grows by, with a lock that page faults of all threads wait for.
/// None of it is touched; if the system refuses, the arena grows as usual.
fn open_arena() {
    let mut block = Vec::<u8>::new();
    let _ = block.try_reserve_exact(ARENA_BYTES);
    std::hint::black_box(block);
}

/// Configures the allocator of this process.
fn settle_allocator() {
    learn_to_keep();
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    limit_arenas();
}

/// Lets glibc keep the memory of decoded batches instead of giving it back to the system and
/// fetching it again, with a page fault for every 4 KiB. It does so by itself for blocks as large
/// as the largest that was ever freed (the "dynamic mmap threshold" of mallopt(3)), at most 32 MiB;
/// here it learns that at once, and nobody's own settings are overruled. Other allocators see one
/// block that is never touched.
fn learn_to_keep() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(LEARNT_BYTES)));
}

/// Limits glibc to as many arenas as threads can run at once; its default is eight times as many.
/// Memory given back to one arena does not serve the threads of another, so each thread that reads
/// or decodes would touch fresh memory. A number of arenas set in the environment has precedence.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn limit_arenas() {
    let is_told = std::env::var_os("MALLOC_ARENA_MAX").is_some()
        || std::env::var_os("GLIBC_TUNABLES")
            .is_some_and(|tunables| tunables.to_string_lossy().contains("glibc.malloc.arena_max"));
    if !is_told {
        let cpus = libc::c_int::try_from(cpus()).unwrap_or(libc::c_int::MAX);
        // SAFETY: `mallopt` only sets a number that is read when a thread first allocates. Where it
        // refuses, all stays as it was.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, cpus) };
    }
}
