/* Asynchronous requests, as libaio makes them. */
#include <linux/aio_abi.h>
#include <sys/eventfd.h>

static aio_context_t context;
static struct iocb requests[16], as_made[16];
static char *memories[16];
static struct iovec pieces[16][2];

static long submit(long count, struct iocb **list) {
    return syscall(SYS_io_submit, context, count, list);
}

/* Makes a request: which, descriptor, kind, place, length, letter. */
static void make(void) {
    long which = number() & 15;
    int of = fd();
    char kind = *word();
    long at = number(), len = number();
    struct iocb *it = &requests[which];
    if (!memories[which]) memories[which] = aligned_alloc(4096, 1 << 16);
    memset(memories[which], *word(), 1 << 16);
    memset(it, 0, sizeof *it);
    it->aio_data = 1000 + which;
    it->aio_fildes = of;
    it->aio_offset = at;
    it->aio_nbytes = len;
    it->aio_buf = (uintptr_t)memories[which];
    switch (kind) {
    case 'r': it->aio_lio_opcode = IOCB_CMD_PREAD; break;
    case 'w': it->aio_lio_opcode = IOCB_CMD_PWRITE; break;
    case 'c': /* crooked memory */
        it->aio_lio_opcode = IOCB_CMD_PREAD;
        it->aio_buf++;
        break;
    case 'e': /* with a counter of its own */
        it->aio_lio_opcode = IOCB_CMD_PREAD;
        it->aio_flags = IOCB_FLAG_RESFD;
        it->aio_resfd = eventfd(0, 0);
        break;
    case 's': it->aio_lio_opcode = IOCB_CMD_FDSYNC; it->aio_nbytes = it->aio_buf = 0; break;
    case 'R':
    case 'W':
        it->aio_lio_opcode = kind == 'R' ? IOCB_CMD_PREADV : IOCB_CMD_PWRITEV;
        pieces[which][0] = (struct iovec){memories[which], len};
        pieces[which][1] = (struct iovec){memories[which] + len, len};
        it->aio_buf = (uintptr_t)pieces[which];
        it->aio_nbytes = 2;
    }
    as_made[which] = *it;
}

static void collect(long count, int pgetevents) {
    struct io_event events[16];
    long got = pgetevents ? syscall(SYS_io_pgetevents, context, count, 16, events, NULL, NULL)
                          : syscall(SYS_io_getevents, context, count, 16, events, NULL);
    if (got < 0) say("events", got);
    for (long which = 0; which < 16; which++) {
        for (long i = 0; i < got; i++) {
            struct iocb *it = (struct iocb *)(uintptr_t)events[i].obj;
            if (it != &requests[which] || events[i].data != 1000 + which) continue;
            it->aio_key = as_made[which].aio_key; /* the kernel's */
            printf("%ld: %lld %c%s\n", which, (long long)events[i].res, *memories[which],
                   memcmp(it, &as_made[which], sizeof *it) ? " changed" : "");
        }
    }
    fflush(stdout);
}

/* Another thread collects each end as soon as it is there, and uses the request again. */
static volatile long turned;
static volatile int turning;
static void *turns(void *argument) {
    struct io_event event;
    while (turned < 4000) {
        if (syscall(SYS_io_getevents, context, 1, 1, &event, NULL) != 1) continue;
        struct iocb *it = (struct iocb *)(uintptr_t)event.obj;
        if (event.res != 4096 || it < requests || it > &requests[15]) break;
        turned++;
        it->aio_offset = it->aio_offset == 0 ? 4096 : 0;
        if (submit(1, &it) != 1) break;
    }
    turning = 0;
    return argument;
}

static int run_requests(const char *what) {
    if (!strcmp(what, "setup")) {
        long count = number();
        context = 0;
        if (syscall(SYS_io_setup, count, &context)) say("setup", -1);
    } else if (!strcmp(what, "make")) {
        make();
    } else if (!strcmp(what, "submit")) {
        struct iocb *list[16];
        long count = number();
        for (long i = 0; i < count; i++) list[i] = &requests[number() & 15];
        say("submit", submit(count, list));
    } else if (!strcmp(what, "collect")) {
        collect(number(), 0);
    } else if (!strcmp(what, "pcollect")) {
        collect(number(), 1);
    } else if (!strcmp(what, "destroy")) {
        say("destroy", syscall(SYS_io_destroy, context));
    } else if (!strcmp(what, "turns")) {
        pthread_t threads[2];
        turning = 1;
        for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, turns, NULL);
        struct iocb *list[4] = {&requests[0], &requests[1], &requests[2], &requests[3]};
        say("submit", submit(4, list));
        pthread_join(threads[0], NULL);
        pthread_join(threads[1], NULL);
        printf("turned %d\n", turned >= 4000);
    } else {
        return 0;
    }
    return 1;
}
