/* A mailbox of one writer and several readers in shared memory. A message is overwritten only once all have read
 * it. Waiting spins for as long as a decision of rank 0 between two passes lasts, then sleeps in the kernel. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "outrider.h"

typedef struct {
    int32_t rank, num_ranks;
    int64_t capacity;   /* bytes of one message */
    double timeout_s;
    uint32_t *sent;     /* how many messages were written; a cache line of its own */
    uint32_t *read;     /* [num_ranks, 16] how many each rank has read */
    char *data;
    uint32_t count;     /* how many this rank has written or read */
} Channel;

/* Until *word has come to `count`: 0, or -1 after timeout_s. */
static int await_count(uint32_t *word, uint32_t count, double timeout_s) {
    double deadline = 0.0;
    for (int64_t tries = 0;; tries++) {
        const uint32_t seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
        if ((int32_t)(seen - count) >= 0) return 0;
        if (tries < NUM_SPINS) {
            PAUSE();
            continue;
        }
        if (deadline == 0.0) deadline = now_s() + timeout_s;
        double left = deadline - now_s();
        if (left <= 0.0) return -1;
        if (left > 0.5) left = 0.5;
        struct timespec span = {(time_t)left, (long)((left - (time_t)left) * 1e9)};
        syscall(SYS_futex, word, FUTEX_WAIT, seen, &span, NULL, 0);
    }
}

static void publish(uint32_t *word, uint32_t count) {
    __atomic_store_n(word, count, __ATOMIC_RELEASE);
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

int channel_send(Channel *c, const void *message, int64_t num_bytes) {
    for (int32_t rank = 1; rank < c->num_ranks; rank++)
        if (await_count(c->read + rank * 16, c->count, c->timeout_s)) return -1;
    memcpy(c->data, message, num_bytes);
    publish(c->sent, ++c->count);
    return 0;
}

int channel_receive(Channel *c, void *message, int64_t num_bytes) {
    if (await_count(c->sent, c->count + 1, c->timeout_s)) return -1;
    memcpy(message, c->data, num_bytes);
    publish(c->read + c->rank * 16, ++c->count);
    return 0;
}

/* Rank 0: until all have read what was sent. */
int channel_flush(Channel *c) {
    for (int32_t rank = 1; rank < c->num_ranks; rank++)
        if (await_count(c->read + rank * 16, c->count, c->timeout_s)) return -1;
    return 0;
}
