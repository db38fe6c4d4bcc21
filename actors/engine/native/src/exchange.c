/* Sums over the ranks of one machine: each writes its part into shared memory, all meet, each adds up all parts
 * in rank order. Two sets of slots take turns, so one meeting per sum is enough: a rank can only be one sum ahead
 * of another. */
#include "outrider.h"

float *exchange_slot(const Exchange *exchange, int32_t rank) {
    return exchange->slots + ((exchange->turn & 1) * exchange->num_ranks + rank) * exchange->capacity;
}

/* Return once every rank has written its part of this turn: 0, or -1 after timeout_s. Called by one thread, which
 * meanwhile brings the `ahead_bytes` from `ahead` on, what it will read next, into its cache: where heads do not divide
 * evenly, the rank with fewer of them would else leave the memory idle for as long as it waits. */
int exchange_meet(Exchange *exchange, const char *ahead, int64_t ahead_bytes) {
    int64_t fetched = 0;
    const uint32_t turn = exchange->turn + 1;
    __atomic_store_n(&exchange->flags[exchange->rank * 16], turn, __ATOMIC_RELEASE);
    double deadline = 0.0;
    for (int32_t rank = 0; rank < exchange->num_ranks; rank++) {
        int64_t tries = 0;
        while ((int32_t)(__atomic_load_n(&exchange->flags[rank * 16], __ATOMIC_ACQUIRE) - turn) < 0) {
            if (fetched < ahead_bytes) {
                for (int32_t line = 0; line < 8; line++, fetched += 64) __builtin_prefetch(ahead + fetched, 0, 2);
                continue;
            }
            wait_a_little(tries++);
            if (tries > NUM_SPINS && tries % 64 == 0) {
                if (deadline == 0.0) deadline = now_s() + exchange->timeout_s;
                else if (now_s() > deadline) return -1;
            }
            if (tries > 10 * NUM_SPINS) nanosleep(&(struct timespec){0, 50000}, NULL);
        }
    }
    return 0;
}
