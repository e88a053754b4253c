/* Preloaded before libc, this lets a process and its children see PRETENDED_CPUS processors: `make test-cpus`. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int pretended(void) {
    const char *text = getenv("PRETENDED_CPUS");
    int cpus = text ? atoi(text) : 0;
    return cpus > 0 ? cpus : 1;
}

int sched_getaffinity(pid_t process, size_t size, cpu_set_t *set) {
    (void)process;
    memset(set, 0, size);
    for (int cpu = 0; cpu < pretended() && (size_t)cpu < size * 8; cpu++) CPU_SET_S(cpu, size, set);
    return 0;
}

long __sysconf(int name);

long sysconf(int name) {
    return name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF ? pretended() : __sysconf(name);
}
