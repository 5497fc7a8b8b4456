"""The clock of a process and its children, set ahead, for tests of what must not depend on the date."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.shared.made import made

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    const char *ahead = getenv("CLOCK_AHEAD_S");
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (!failed && ahead && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += atol(ahead);
    return failed;
}

time_t time(time_t *seconds)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (seconds) *seconds = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict seconds, void *restrict zone)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    *seconds = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return 0;
}
"""
_COMPILER = ("gcc", "-shared", "-fPIC", "-O1", "-x", "c", "-")


def ahead_by(days: int, folder: Path) -> dict[str, str]:
    """Return the variables that set a process's wall clock ahead; other clocks are unchanged, so that it can sleep.

    Debian's faketime 0.9.10 does the same, but sleeps sometimes fail under it (clock_nanosleep, TIMER_ABSTIME).
    """

    def make(target: Path) -> None:
        subprocess.run([*_COMPILER, "-o", target], input=_SOURCE.encode(), check=True)

    library = folder / "clock.so"
    library.write_bytes(made(("gcc", "--version"), [_SOURCE, *_COMPILER], make))
    return {"LD_PRELOAD": str(library), "CLOCK_AHEAD_S": f"{days * 86400}"}
