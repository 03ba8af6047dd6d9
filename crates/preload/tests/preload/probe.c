/* Makes the calls that its arguments name, one after another, and prints what came of each. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static int fds[16];
static char *buffer;
static char **next;

static const char *word(void) { return *next ? *next++ : ""; }
static long number(void) { return strtol(word(), NULL, 0); }
static int fd(void) { return fds[number() & 15]; }

/* A close that no library sees. */
static long raw(long n, long a, long b, long c) {
    long result;
#if defined(__x86_64__)
    __asm__ volatile("syscall" : "=a"(result) : "a"(n), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = n, x0 __asm__("x0") = a, x1 __asm__("x1") = b,
                  x2 __asm__("x2") = c;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    result = x0;
#endif
    return result;
}

static void say(const char *what, long result) {
    if (result < 0)
        printf("%s %s\n", what, strerrorname_np(errno));
    else
        printf("%s %ld\n", what, result);
    fflush(stdout);
}

/* What was read, as its length and its letter; '?' where letters differ. */
static void say_read(long result) {
    if (result <= 0) {
        say("read", result);
        return;
    }
    char letter = buffer[0];
    for (long i = 1; i < result; i++)
        if (buffer[i] != letter) letter = '?';
    printf("read %ld %c\n", result, letter);
    fflush(stdout);
}

static void *cancelled(void *argument) {
    int *pipes = argument;
    char byte;
    read(pipes[0], &byte, 1);
    return NULL;
}

static void *cancelled_parts(void *argument) {
    int *pipes = argument;
    char bytes[2];
    struct iovec parts[2] = {{bytes, 1}, {bytes + 1, 1}};
    readv(pipes[0], parts, 2);
    return NULL;
}

static void *reader(void *argument) {
    int of = *(int *)argument;
    char *mine = aligned_alloc(4096, 4096);
    long sum = 0;
    for (int i = 0; i < 200; i++) sum += pread(of, mine, 4096, 0) == 4096 && mine[9] == 'D';
    free(mine);
    return (void *)sum;
}

static void *syncer(void *argument) {
    return (void *)(long)fdatasync(*(int *)argument);
}

static volatile int is_behind;

/* Writes behind a place that is not written yet. */
static void *behind(void *argument) {
    long *task = argument;
    char *mine = aligned_alloc(4096, 4096);
    memset(mine, 'b', 512);
    is_behind = 1;
    long result = pwrite(task[0], mine, 512, task[1] + 512);
    free(mine);
    return (void *)result;
}

static void *opener(void *argument) {
    long sum = 0;
    for (int i = 0; i < 100; i++) {
        int of = open(argument, O_RDWR);
        sum += of >= 0;
        close(of);
    }
    return (void *)sum;
}

static sigjmp_buf place;
static int in_handler;

static void fault(int signal) {
    (void)signal;
    static char *mine;
    if (!mine) mine = aligned_alloc(4096, 4096);
    printf("within %c\n", pread(in_handler, mine, 4096, 0) == 4096 ? *mine : '!');
    fflush(stdout);
    siglongjmp(place, 1);
}

/* Faults while the library copies, does I/O in the handler, and leaves the call for good. */
static void leave(int of, int on_own_stack) {
    static char stack[65536];
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = fault, .sa_flags = SA_NODEFER};
    if (on_own_stack) {
        sigaltstack(&other, NULL);
        action.sa_flags |= SA_ONSTACK;
    }
    sigaction(SIGSEGV, &action, NULL);
    char *none = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    in_handler = of;
    if (!sigsetjmp(place, 1)) say("write", pwrite(of, none + 1, 4096, 0));
}

#include "requests.h"

static void run(const char *what) {
    if (run_requests(what)) {
    } else if (!strcmp(what, "open")) {
        long slot = number();
        const char *path = word();
        const char *how = word();
        int flags = !strncmp(how, "rw", 2) ? O_RDWR : *how == 'w' ? O_WRONLY : O_RDONLY;
        if (strchr(how, 'a')) flags |= O_APPEND;
        if (strchr(how, 's')) flags |= O_DSYNC;
        fds[slot & 15] = open(path, flags);
        if (fds[slot & 15] < 0) say("open", -1);
    } else if (!strcmp(what, "pread")) {
        int of = fd();
        long at = number(), len = number();
        memset(buffer, '-', 65536);
        say_read(pread(of, buffer, len, at));
    } else if (!strcmp(what, "advise")) {
        int of = fd();
        long at = number(), len = number();
        say("advise", posix_fadvise(of, at, len, POSIX_FADV_WILLNEED));
    } else if (!strcmp(what, "crooked")) {
        int of = fd();
        long at = number(), len = number();
        memset(buffer, '-', 65536);
        long result = pread(of, buffer + 1, len, at);
        memmove(buffer, buffer + 1, len);
        say_read(result);
    } else if (!strcmp(what, "preadv")) {
        int of = fd();
        long at = number(), len = number();
        struct iovec parts[2] = {{buffer, len}, {buffer + len, len}};
        say_read(preadv(of, parts, 2, at));
    } else if (!strcmp(what, "pwrite")) {
        int of = fd();
        long at = number(), len = number();
        memset(buffer, *word(), len);
        say("write", pwrite(of, buffer, len, at));
    } else if (!strcmp(what, "crookedwrite")) {
        int of = fd();
        long at = number(), len = number();
        memset(buffer + 1, *word(), len);
        say("write", pwrite(of, buffer + 1, len, at));
    } else if (!strcmp(what, "read")) {
        int of = fd();
        say_read(read(of, buffer, number()));
    } else if (!strcmp(what, "write")) {
        int of = fd();
        long len = number();
        memset(buffer, *word(), len);
        say("write", write(of, buffer, len));
    } else if (!strcmp(what, "seek")) {
        int of = fd();
        lseek(of, number(), SEEK_SET);
    } else if (!strcmp(what, "tell")) {
        say("at", lseek(fd(), 0, SEEK_CUR));
    } else if (!strcmp(what, "fdatasync")) {
        say("sync", fdatasync(fd()));
    } else if (!strcmp(what, "fsync")) {
        say("sync", fsync(fd()));
    } else if (!strcmp(what, "close")) {
        say("close", close(fd()));
    } else if (!strcmp(what, "rawclose")) {
        raw(SYS_close, fd(), 0, 0);
    } else if (!strcmp(what, "syscallclose")) {
        say("close", syscall(SYS_close, fd()));
    } else if (!strcmp(what, "rawdup2")) {
        int from = fd();
        raw(SYS_dup3, from, fd(), 0);
    } else if (!strcmp(what, "dup")) {
        int from = fd();
        fds[number() & 15] = dup(from);
    } else if (!strcmp(what, "fdup")) {
        int from = fd();
        fds[number() & 15] = fcntl(from, F_DUPFD_CLOEXEC, 20);
    } else if (!strcmp(what, "fill")) {
        /* As many descriptors of a file as there are to have, by open and then by dup. */
        char *path = word();
        int count = 0, last = 0;
        while (count < 500 && (last = open(path, O_RDWR)) >= 0) count++;
        while ((last = dup(0)) >= 0) count++;
        printf("fill %d\n", count);
    } else if (!strcmp(what, "dup2")) {
        int from = fd(), to = fd();
        say("dup", dup2(from, to) == to ? 0 : -1);
    } else if (!strcmp(what, "closerange")) {
        long first = number();
        say("closerange", close_range(first, ~0u, 0));
    } else if (!strcmp(what, "closefrom")) {
        closefrom(number());
    } else if (!strcmp(what, "closeall")) {
        for (int i = 3; i < 4096; i++) close(i);
    } else if (!strcmp(what, "append")) {
        say("append", fcntl(fd(), F_SETFL, O_APPEND));
    } else if (!strcmp(what, "fork")) {
        pid_t child = fork();
        if (child == 0) return;
        int status = 0;
        waitpid(child, &status, 0);
        say("child", status);
    } else if (!strcmp(what, "vfork")) {
        int of = fd();
        pid_t child = vfork();
        if (child == 0) {
            close(of);
            _exit(0);
        }
        waitpid(child, NULL, 0);
    } else if (!strcmp(what, "exit")) {
        exit(0);
    } else if (!strcmp(what, "mmap")) {
        int of = fd();
        char *map = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, of, 0);
        printf("mmap %c\n", map == MAP_FAILED ? '!' : *map);
        fflush(stdout);
    } else if (!strcmp(what, "stdio")) {
        FILE *file = fdopen(fd(), "r");
        printf("stdio %c\n", fgetc(file));
        fflush(stdout);
        fclose(file);
    } else if (!strcmp(what, "cancel")) {
        void *(*all[2])(void *) = {cancelled, cancelled_parts};
        for (int i = 0; i < 2; i++) {
            int pipes[2];
            pthread_t thread;
            void *result = NULL;
            pipe(pipes);
            pthread_create(&thread, NULL, all[i], pipes);
            usleep(20000);
            pthread_cancel(thread);
            pthread_join(thread, &result);
            printf("cancel %d\n", result == PTHREAD_CANCELED);
            fflush(stdout);
        }
    } else if (!strcmp(what, "threads")) {
        int of = fd();
        pthread_t threads[8];
        long sum = 0;
        for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, reader, &of);
        for (int i = 0; i < 8; i++) {
            void *result;
            pthread_join(threads[i], &result);
            sum += (long)result;
        }
        say("threads", sum);
    } else if (!strcmp(what, "opens")) {
        pthread_t threads[8];
        long sum = 0;
        char *path = (char *)word();
        for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, opener, path);
        for (int i = 0; i < 8; i++) {
            void *result;
            pthread_join(threads[i], &result);
            sum += (long)result;
        }
        say("opens", sum);
    } else if (!strcmp(what, "syncs")) {
        int of = fd();
        pthread_t threads[2];
        long sum = 0;
        for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, syncer, &of);
        for (int i = 0; i < 2; i++) {
            void *result;
            pthread_join(threads[i], &result);
            sum += (long)result;
        }
        say("syncs", sum);
    } else if (!strcmp(what, "behind")) {
        /* Two writes each time, of which the later one in the file comes first. */
        long task[2] = {fd(), number()}, times = number(), sum = 0;
        for (long i = 0; i < times; i++, task[1] += 1024) {
            pthread_t thread;
            void *result;
            is_behind = 0;
            pthread_create(&thread, NULL, behind, task);
            while (!is_behind) usleep(10);
            usleep(500);
            memset(buffer, 'a', 512);
            sum += pwrite(task[0], buffer, 512, task[1]);
            pthread_join(thread, &result);
            sum += (long)result;
            /* Where it went to the mount, the tail goes on here. */
            memset(buffer, 'b', 512);
            sum += pwrite(task[0], buffer, 512, task[1] + 512);
        }
        say("behind", sum);
    } else if (!strcmp(what, "leave")) {
        leave(fd(), 0);
    } else if (!strcmp(what, "leavestack")) {
        leave(fd(), 1);
    } else if (!strcmp(what, "flock")) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        say("flock", fcntl(fd(), F_OFD_SETLK, &lock));
    } else if (!strcmp(what, "wait")) {
        char byte;
        printf("waits\n");
        fflush(stdout);
        read(0, &byte, 1);
    } else {
        printf("unknown %s\n", what);
        exit(2);
    }
}

int main(int count, char **arguments) {
    (void)count;
    /* What hangs fails. */
    alarm(60);
    buffer = aligned_alloc(4096, 1 << 20);
    next = arguments + 1;
    while (*next) run(word());
    return 0;
}
