/* Loaded into the daemon by LD_PRELOAD: delays or fails what synchronises files, and moves the calendar's clock.
 *
 * A page of memory that the driver maps, too, says what to do (chaos/shim.py has the same layout). It is for a binary that is linked
 * dynamically, and reaches what passes through the C library: SQLite's and Rust's own calls. System calls that a crate makes itself
 * do not pass here.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct page {
    volatile int64_t clock_offset_s;
    volatile int32_t sync_delay_ms;
    volatile int32_t sync_fails;
};

static struct page *page;
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_gettimeofday)(struct timeval *, void *);

__attribute__((constructor)) static void begin(void)
{
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_gettimeofday = dlsym(RTLD_NEXT, "gettimeofday");
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("PILOT_CHAOS_PAGE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof(struct page), PROT_READ, MAP_SHARED, file, 0);
    page = mapped == MAP_FAILED ? NULL : mapped;
    close(file);
}

static int disturbed(void)
{
    if (page && page->sync_delay_ms > 0)
        usleep((useconds_t)page->sync_delay_ms * 1000);
    if (page && page->sync_fails) {
        errno = EIO;
        return 1;
    }
    return 0;
}

int fsync(int file)
{
    return disturbed() ? -1 : real_fsync(file);
}

int fdatasync(int file)
{
    return disturbed() ? -1 : real_fdatasync(file);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = real_clock_gettime(clock, now);
    if (result == 0 && page && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += page->clock_offset_s;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    int result = real_gettimeofday(now, zone);
    if (result == 0 && page)
        now->tv_sec += page->clock_offset_s;
    return result;
}

time_t time(time_t *at)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}
