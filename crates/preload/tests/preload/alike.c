/* Makes the same random calls on two files, one of which goes past the page cache, and compares
 * what comes of each: alike DIRECT CACHED SEED STEPS. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FILES = 2, BYTES_MAX = 1 << 20, LEN_MAX = 400 << 10, PARTS_MAX = 5 };

static const char *paths[FILES];
static int fds[FILES];
static char *memory[FILES], *given;
static uint64_t state;
static long step;

static uint64_t random_word(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 33;
}

static uint64_t below(uint64_t end) { return random_word() % end; }

/* Whole blocks half of the time. */
static uint64_t place(uint64_t end) {
    uint64_t at = below(end);
    return below(2) ? at & ~4095ul : at;
}

static void expect(int same, const char *what) {
    if (same) return;
    printf("step %ld: %s differs\n", step, what);
    exit(1);
}

static void compare(const long *results, const char *what) {
    if (results[0] != results[1]) {
        printf("step %ld: %s: %ld and %ld\n", step, what, results[0], results[1]);
        exit(1);
    }
}

static void compare_places(const char *what) {
    long at[FILES];
    for (int i = 0; i < FILES; i++) at[i] = lseek(fds[i], 0, SEEK_CUR);
    compare(at, what);
}

static void open_both(int flags) {
    for (int i = 0; i < FILES; i++) {
        if (fds[i] > 0) close(fds[i]);
        fds[i] = open(paths[i], flags | O_CREAT, 0644);
        if (fds[i] < 0) {
            perror(paths[i]);
            exit(1);
        }
    }
}

static void read_both(int kind) {
    uint64_t at = place(BYTES_MAX), len = place(LEN_MAX) + 1, skip = below(3) ? 0 : below(64);
    if (below(2)) len = (len + 4095) & ~4095ul;
    uint64_t cut = len / (1 + below(PARTS_MAX));
    long done[FILES];
    for (int i = 0; i < FILES; i++) {
        char *to = memory[i] + skip;
        memset(to, 'u', len);
        struct iovec parts[2] = {{to, cut}, {to + cut, len - cut}};
        done[i] = kind == 0   ? pread(fds[i], to, len, at)
                  : kind == 1 ? read(fds[i], to, len)
                  : kind == 2 ? preadv(fds[i], parts, 2, at)
                              : readv(fds[i], parts, 2);
    }
    compare(done, "a read");
    expect(done[0] < 0 || !memcmp(memory[0] + skip, memory[1] + skip, len), "what was read");
    compare_places("the place after a read");
}

static void write_both(int kind) {
    uint64_t at = place(BYTES_MAX), len = place(LEN_MAX) + 1, skip = below(3) ? 0 : below(64);
    if (below(2)) len = (len + 4095) & ~4095ul;
    if (kind & 1) {
        for (int i = 0; i < FILES; i++) lseek(fds[i], at, SEEK_SET);
    }
    uint64_t cut = len / (1 + below(PARTS_MAX));
    for (uint64_t i = 0; i < len; i += 64) given[skip + i] = random_word();
    struct iovec parts[2] = {{given + skip, cut}, {given + skip + cut, len - cut}};
    long done[FILES];
    for (int i = 0; i < FILES; i++) {
        done[i] = kind == 0   ? pwrite(fds[i], given + skip, len, at)
                  : kind == 1 ? write(fds[i], given + skip, len)
                  : kind == 2 ? pwritev(fds[i], parts, 2, at)
                              : writev(fds[i], parts, 2);
    }
    compare(done, "a write");
    compare_places("the place after a write");
}

static void map_both(void) {
    long sizes[FILES], size;
    for (int i = 0; i < FILES; i++) {
        sizes[i] = lseek(fds[i], 0, SEEK_END);
        lseek(fds[i], 0, SEEK_SET);
    }
    compare(sizes, "the size");
    size = sizes[0];
    if (size == 0) return;
    char *at[FILES];
    for (int i = 0; i < FILES; i++) at[i] = mmap(NULL, size, PROT_READ, MAP_SHARED, fds[i], 0);
    expect((at[0] == MAP_FAILED) == (at[1] == MAP_FAILED), "a mapping");
    /* They are not open for reading. */
    if (at[0] == MAP_FAILED) return;
    expect(!memcmp(at[0], at[1], size), "what was mapped");
    for (int i = 0; i < FILES; i++) munmap(at[i], size);
}

static void copy_both(void) {
    for (int i = 0; i < FILES; i++) {
        int copy = dup(fds[i]);
        close(fds[i]);
        fds[i] = below(2) ? copy : (close(dup(copy)), copy);
    }
    random_word();
}

/* A child writes through what it has inherited. */
static void child_writes(void) {
    pid_t child = fork();
    if (child == 0) {
        write_both(below(2));
        read_both(0);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    expect(status == 0, "the child's end");
    random_word();
}

/* Another descriptor of the same open file says that writes go to its end, or no longer. */
static void append_through_copies(void) {
    int flags = below(2) ? O_APPEND : 0;
    for (int i = 0; i < FILES; i++) {
        int copy = dup(fds[i]);
        fcntl(copy, F_SETFL, flags);
        close(copy);
    }
    write_both(below(4));
}

static void act(void) {
    uint64_t size;
    long done[FILES];
    switch (below(24)) {
    case 0:
        open_both(O_RDWR);
        break;
    case 1:
        open_both(O_RDWR | O_APPEND);
        break;
    case 2:
        size = place(BYTES_MAX);
        for (int i = 0; i < FILES; i++) done[i] = ftruncate(fds[i], size);
        compare(done, "a truncation");
        break;
    case 3:
        for (int i = 0; i < FILES; i++) done[i] = fdatasync(fds[i]) | fsync(fds[i]);
        compare(done, "a sync");
        break;
    case 4:
        if (below(4) == 0) map_both();
        break;
    case 5:
        copy_both();
        break;
    case 6:
        child_writes();
        break;
    case 7:
        open_both(below(2) ? O_RDONLY : O_WRONLY);
        break;
    case 8:
        open_both(O_RDWR | O_TRUNC);
        break;
    case 9:
        append_through_copies();
        break;
    default:
        if (below(2)) write_both(below(4));
        else read_both(below(4));
    }
}

int main(int count, char **words) {
    if (count != 5) return 2;
    paths[0] = words[1];
    paths[1] = words[2];
    state = strtoul(words[3], NULL, 0);
    for (int i = 0; i < FILES; i++) memory[i] = aligned_alloc(4096, LEN_MAX + 8192);
    given = aligned_alloc(4096, LEN_MAX + 8192);
    memset(given, 'g', LEN_MAX + 8192);
    open_both(O_RDWR);
    for (step = 0; step < strtol(words[4], NULL, 0); step++) act();
    open_both(O_RDONLY);
    map_both();
    puts("alike");
    return 0;
}
