/* Makes calls that a trace must have: traced DIRECTORY WHAT [COUNT]. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static char *memory;
static int fd;

static void expect(int good, const char *what) {
    if (good) return;
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

static void calls(void) {
    expect(pwrite(fd, memory, 8192, 4096) == 8192, "pwrite");
    expect(write(fd, memory, 512) == 512, "write");
    expect(write(fd, memory + 1, 100) == 100, "write on");
    expect(lseek(fd, 4096, SEEK_SET) == 4096, "lseek");
    expect(read(fd, memory, 4096) == 4096, "read");
    struct iovec parts[2] = {{memory, 512}, {memory + 512, 1024}};
    expect(preadv(fd, parts, 2, 512) == 1536, "preadv");
    expect(pwritev2(fd, parts, 2, 0, RWF_DSYNC) == 1536, "pwritev2");
    expect(fdatasync(fd) == 0 && fsync(fd) == 0, "syncs");
    expect(ftruncate(fd, 100) == 0, "ftruncate");
    int more = open("file", O_WRONLY | O_APPEND);
    expect(write(more, memory, 50) == 50, "append");
    int copy = dup(more);
    close(more);
    expect(write(copy, memory, 60) == 60, "through a copy");
    close(copy);
    errno = 0;
    expect(open("nothing/here", O_RDONLY | O_DIRECT) < 0 && errno == ENOENT, "a missing file");
    expect(pread(fd, memory, 1, -5) < 0 && errno == EINVAL, "a place before the start");
    expect(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED, "mmap");
    int pipes[2];
    expect(pipe(pipes) == 0 && write(pipes[1], "x", 1) == 1, "pipe");
    close(pipes[0]);
    close(pipes[1]);
}

static void *writes(void *count) {
    for (long i = 0; i < (long)count; i++) pwrite(fd, memory, 64, i * 64);
    return NULL;
}

static void threads(long count) {
    pthread_t all[4];
    for (int i = 0; i < 4; i++) pthread_create(&all[i], NULL, writes, (void *)count);
    for (int i = 0; i < 4; i++) pthread_join(all[i], NULL);
}

/* A child that inherits, and a program that does. */
static void children(long count, char *self) {
    writes((void *)count);
    if (fork() == 0) {
        writes((void *)count);
        char number[16];
        sprintf(number, "%d", fd);
        execl(self, self, ".", "inherited", number, NULL);
        _exit(1);
    }
    int status;
    wait(&status);
    expect(status == 0, "the child");
}

static void requests(long count) {
    aio_context_t context = 0;
    expect(syscall(SYS_io_setup, 128, &context) == 0, "io_setup");
    struct iocb all[100], *list[100];
    memset(all, 0, sizeof all);
    for (long i = 0; i < count; i++) {
        all[i].aio_fildes = fd;
        all[i].aio_lio_opcode = IOCB_CMD_PWRITE;
        all[i].aio_buf = (unsigned long)memory;
        all[i].aio_nbytes = 512;
        all[i].aio_offset = i * 512;
        list[i] = &all[i];
    }
    expect(syscall(SYS_io_submit, context, count, list) == count, "io_submit");
    struct io_event events[100];
    expect(syscall(SYS_io_getevents, context, count, 100, events, NULL) == count, "io_getevents");
    for (long i = 0; i < count; i++) expect(events[i].res == 512, "a request");
    syscall(SYS_io_destroy, context);
}

int main(int argc, char **words) {
    if (argc < 3 || chdir(words[1])) return 2;
    long count = argc > 3 ? atol(words[3]) : 0;
    memory = aligned_alloc(4096, 16384);
    memset(memory, 'm', 16384);
    if (!strcmp(words[2], "inherited")) {
        fd = count;
        return write(fd, memory, 700) != 700;
    }
    fd = open("file", O_RDWR | O_CREAT, 0644);
    expect(fd >= 0, "open");
    if (!strcmp(words[2], "calls")) calls();
    if (!strcmp(words[2], "threads")) threads(count);
    if (!strcmp(words[2], "children")) children(count, words[0]);
    if (!strcmp(words[2], "requests")) requests(count);
    if (!strcmp(words[2], "killed")) {
        writes((void *)count);
        kill(getpid(), SIGKILL);
    }
    if (!strcmp(words[2], "ring")) syscall(SYS_io_uring_setup, 1, memory);
    return 0;
}
