/* A clock that a test can move: loaded with LD_PRELOAD, it adds an offset to the time of day, as setting the clock
   of the machine would. Monotonic clocks go on, as they do then. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t nowhere = 0;
static volatile int64_t *offset_seconds = &nowhere;
static int (*real)(clockid_t, struct timespec *) = 0;

__attribute__((constructor)) static void find_real(void) {
    real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
}

/* From now on the offset is read there: memory that processes share. */
void clock_offset_at(int64_t *place) { offset_seconds = place; }

int clock_gettime(clockid_t id, struct timespec *now) {
    int failed = real ? real(id, now) : (int)syscall(SYS_clock_gettime, id, now);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE || id == CLOCK_TAI))
        now->tv_sec += *offset_seconds;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &precise)) return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now) *now = precise.tv_sec;
    return precise.tv_sec;
}
