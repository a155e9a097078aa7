// Functions that glibc 2.28 lacks and that the headers or the static C++ library of a newer system call. They stay
// inside the library that they are linked into. Where the running glibc has the function, it is used.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// glibc 2.32. 0 lets the C++ library count references atomically.
char __libc_single_threaded = 0;

// glibc 2.33. Before, the headers called these functions with the version of the structure.
enum { stat_version = 1 };
int __xstat(int version, const char * path, struct stat * to);
int __lxstat(int version, const char * path, struct stat * to);
int __fxstat(int version, int file, struct stat * to);
int __fxstatat(int version, int folder, const char * path, struct stat * to, int flags);

int stat(const char * path, struct stat * to) { return __xstat(stat_version, path, to); }
int lstat(const char * path, struct stat * to) { return __lxstat(stat_version, path, to); }
int fstat(int file, struct stat * to) { return __fxstat(stat_version, file, to); }
int fstatat(int folder, const char * path, struct stat * to, int flags) {
    return __fxstatat(stat_version, folder, path, to, flags);
}
int stat64(const char * path, struct stat64 * to) __attribute__((alias("stat")));
int lstat64(const char * path, struct stat64 * to) __attribute__((alias("lstat")));
int fstat64(int file, struct stat64 * to) __attribute__((alias("fstat")));
int fstatat64(int folder, const char * path, struct stat64 * to, int flags) __attribute__((alias("fstatat")));

// glibc 2.30. A clock that is not the wall clock's is followed by the time that is left on it.
int pthread_cond_clockwait(pthread_cond_t * condition, pthread_mutex_t * mutex, clockid_t clock,
                           const struct timespec * until) {
    typedef int (*function)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
    const function newer = (function)dlsym(RTLD_DEFAULT, "pthread_cond_clockwait");
    if (newer) {
        return newer(condition, mutex, clock, until);
    }
    struct timespec now, wall;
    clock_gettime(clock, &now);
    clock_gettime(CLOCK_REALTIME, &wall);
    long long left = (until->tv_sec - now.tv_sec) * 1000000000LL + until->tv_nsec - now.tv_nsec + wall.tv_nsec;
    left           = left < 0 ? 0 : left;
    const struct timespec end = {wall.tv_sec + left / 1000000000, left % 1000000000};
    return pthread_cond_timedwait(condition, mutex, &end);
}

// glibc 2.29
int posix_spawn_file_actions_addchdir_np(posix_spawn_file_actions_t * actions, const char * path) {
    typedef int (*function)(posix_spawn_file_actions_t *, const char *);
    const function newer = (function)dlsym(RTLD_DEFAULT, "posix_spawn_file_actions_addchdir_np");
    return newer ? newer(actions, path) : ENOSYS;
}

// glibc 2.29
int getcpu(unsigned * cpu, unsigned * node) { return (int)syscall(SYS_getcpu, cpu, node, NULL); }

// glibc 2.36. The C++ library's random_device calls it.
unsigned arc4random(void) {
    unsigned value = 0;
    if (getrandom(&value, sizeof value, 0) != sizeof value) {
        abort();
    }
    return value;
}

// glibc 2.38. Its headers give these functions new names, under which numbers may be binary (0b1). The plain functions
// are declared by their symbols, because their names in C stand for the new ones.
#define NUMBER_FROM_TEXT(type, name)                                                                                   \
    type plain_##name(const char * text, char ** end, int base) __asm__(#name);                                        \
    type __isoc23_##name(const char * text, char ** end, int base) { return plain_##name(text, end, base); }

NUMBER_FROM_TEXT(long, strtol)
NUMBER_FROM_TEXT(unsigned long, strtoul)
NUMBER_FROM_TEXT(long long, strtoll)
NUMBER_FROM_TEXT(unsigned long long, strtoull)

int plain_vsscanf(const char * text, const char * format, va_list to) __asm__("__isoc99_vsscanf");
int plain_vfscanf(FILE * file, const char * format, va_list to) __asm__("__isoc99_vfscanf");

int __isoc23_sscanf(const char * text, const char * format, ...) {
    va_list to;
    va_start(to, format);
    const int count = plain_vsscanf(text, format, to);
    va_end(to);
    return count;
}

int __isoc23_fscanf(FILE * file, const char * format, ...) {
    va_list to;
    va_start(to, format);
    const int count = plain_vfscanf(file, format, to);
    va_end(to);
    return count;
}
