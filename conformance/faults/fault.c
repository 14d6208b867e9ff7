// File operations that fail on demand, as a library to preload.
//
// Counted are operations below the folder FAULT_DIR: opening for writing, write, pwrite, writev, rename, fsync, ftruncate, unlink, mkdir
// and link, in their variants. FAULT=KIND:N fails at the N-th, counted from 1:
//   kill   SIGKILL before the operation
//   torn   SIGKILL after the first half of the bytes of a write
//   nospc  the operation fails with ENOSPC
//   full   it and all later operations that need space fail with ENOSPC
//   eio    the operation fails with EIO
// FAULT_LOG=file receives the name and the path of each operation, one per line.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { NONE, KILL, TORN, NOSPC, FULL, EIO_ONCE };
static const char* const KINDS[] = {"", "kill", "torn", "nospc", "full", "eio"};
static enum kind kind;
static long fault_at;
static atomic_long operations;
static const char* folder;
static size_t folder_len;
static int log_fd = -1;

__attribute__((constructor)) static void start(void) {
    folder = getenv("FAULT_DIR");
    const char* fault = getenv("FAULT");
    const char* log = getenv("FAULT_LOG");
    char name[16];
    if (!folder) return;
    folder_len = strlen(folder);
    if (fault) {
        if (sscanf(fault, "%15[^:]:%ld", name, &fault_at) == 2)
            for (int i = KILL; i <= EIO_ONCE; i++)
                if (!strcmp(name, KINDS[i])) kind = i;
        if (kind == NONE) fprintf(stderr, "FAULT=%s is not KIND:N with a known kind\n", fault), _exit(2);
    }
    if (log) log_fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

static int below(const char* path) {
    return !strncmp(path, folder, folder_len) && (path[folder_len] == '/' || !path[folder_len]);
}

// The path behind a descriptor, and whether it is below the folder.
static int fd_below(int fd, char* path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    path[n < 0 ? 0 : n] = 0;
    return n > 0 && below(path);
}

static int path_below(int dirfd, const char* path, char* full) {
    if (path[0] == '/') return snprintf(full, PATH_MAX, "%s", path), below(full);
    char base[PATH_MAX];
    if (dirfd == AT_FDCWD) {
        if (!getcwd(base, sizeof base)) return 0;
    } else {
        fd_below(dirfd, base);
    }
    int length = snprintf(full, PATH_MAX, "%s/%s", base, path);
    return length < PATH_MAX && below(full);
}

// Counts an operation and returns the error with which it must fail, or 0. `half` is set if half of a write is due before the end.
static int count(const char* name, const char* path, int needs_space, int* half) {
    long n = ++operations;
    if (log_fd >= 0) {
        char line[PATH_MAX + 32];
        int length = snprintf(line, sizeof line, "%s %s\n", name, path);
        syscall(SYS_write, log_fd, line, length);
    }
    if (kind == FULL) return n >= fault_at && needs_space ? ENOSPC : 0;
    if (n != fault_at) return 0;
    if (kind == TORN && half) return *half = 1, 0;
    if (kind == KILL || kind == TORN) kill(getpid(), SIGKILL);
    return kind == NOSPC ? ENOSPC : kind == EIO_ONCE ? EIO : 0;
}

#define REAL(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))
#define FAIL_IF(error) do { int e = (error); if (e) return errno = e, -1; } while (0)

#define WRITE_LIKE(name, parameters, fd, whole, first_half) \
    ssize_t name parameters { \
        static typeof(&name) real; \
        if (!real) real = REAL(name); \
        char path[PATH_MAX]; \
        if (!folder || !fd_below(fd, path)) return real whole; \
        int half = 0; \
        FAIL_IF(count(#name, path, 1, &half)); \
        if (half) first_half, kill(getpid(), SIGKILL); \
        return real whole; \
    }
WRITE_LIKE(write, (int fd, const void* data, size_t n), fd, (fd, data, n), real(fd, data, n / 2))
WRITE_LIKE(pwrite, (int fd, const void* data, size_t n, off_t at), fd, (fd, data, n, at), real(fd, data, n / 2, at))
WRITE_LIKE(pwrite64, (int fd, const void* data, size_t n, off64_t at), fd, (fd, data, n, at), real(fd, data, n / 2, at))
WRITE_LIKE(writev, (int fd, const struct iovec* v, int n), fd, (fd, v, n), syscall(SYS_write, fd, v[0].iov_base, v[0].iov_len / 2))
WRITE_LIKE(copy_file_range, (int in, off64_t* in_at, int out, off64_t* out_at, size_t n, unsigned flags), out,
           (in, in_at, out, out_at, n, flags), real(in, in_at, out, out_at, n / 2, flags))

#define FD_CALL(name, parameters, fd, arguments, needs_space) \
    int name parameters { \
        static typeof(&name) real; \
        if (!real) real = REAL(name); \
        char path[PATH_MAX]; \
        if (folder && fd_below(fd, path)) FAIL_IF(count(#name, path, needs_space, NULL)); \
        return real arguments; \
    }
FD_CALL(fsync, (int fd), fd, (fd), 1)
FD_CALL(fdatasync, (int fd), fd, (fd), 1)
FD_CALL(ftruncate, (int fd, off_t n), fd, (fd, n), 0)
FD_CALL(ftruncate64, (int fd, off64_t n), fd, (fd, n), 0)

#define PATH_CALL(name, parameters, dirfd, path, arguments, needs_space) \
    int name parameters { \
        static typeof(&name) real; \
        if (!real) real = REAL(name); \
        char full[PATH_MAX]; \
        if (folder && path_below(dirfd, path, full)) FAIL_IF(count(#name, full, needs_space, NULL)); \
        return real arguments; \
    }
PATH_CALL(rename, (const char* from, const char* to), AT_FDCWD, to, (from, to), 0)
PATH_CALL(renameat, (int a, const char* from, int b, const char* to), b, to, (a, from, b, to), 0)
PATH_CALL(renameat2, (int a, const char* from, int b, const char* to, unsigned f), b, to, (a, from, b, to, f), 0)
PATH_CALL(unlink, (const char* path), AT_FDCWD, path, (path), 0)
PATH_CALL(unlinkat, (int fd, const char* path, int flags), fd, path, (fd, path, flags), 0)
PATH_CALL(rmdir, (const char* path), AT_FDCWD, path, (path), 0)
PATH_CALL(mkdir, (const char* path, mode_t mode), AT_FDCWD, path, (path, mode), 1)
PATH_CALL(mkdirat, (int fd, const char* path, mode_t mode), fd, path, (fd, path, mode), 1)
PATH_CALL(link, (const char* from, const char* to), AT_FDCWD, to, (from, to), 1)
PATH_CALL(linkat, (int a, const char* from, int b, const char* to, int f), b, to, (a, from, b, to, f), 1)
PATH_CALL(symlink, (const char* from, const char* to), AT_FDCWD, to, (from, to), 1)

#define OPEN(name, parameters, last, dirfd, arguments) \
    int name parameters { \
        static typeof(&name) real; \
        if (!real) real = REAL(name); \
        mode_t mode = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { \
            va_list list; \
            va_start(list, last); \
            mode = va_arg(list, mode_t); \
            va_end(list); \
        } \
        char full[PATH_MAX]; \
        int writes = flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC); \
        if (folder && writes && path_below(dirfd, path, full)) FAIL_IF(count(#name, full, flags & O_CREAT, NULL)); \
        return real arguments; \
    }
OPEN(open, (const char* path, int flags, ...), flags, AT_FDCWD, (path, flags, mode))
OPEN(open64, (const char* path, int flags, ...), flags, AT_FDCWD, (path, flags, mode))
OPEN(openat, (int fd, const char* path, int flags, ...), flags, fd, (fd, path, flags, mode))
OPEN(openat64, (int fd, const char* path, int flags, ...), flags, fd, (fd, path, flags, mode))
