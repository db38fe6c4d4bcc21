/* Sums over the ranks of one machine: each writes its part into shared memory, all meet, each adds up all parts
 * in rank order. Two sets of slots take turns, so one meeting per sum is enough: a rank can only be one sum ahead
 * of another. */
#include "outrider.h"

float *exchange_slot(const Exchange *exchange, int32_t rank) {
    return exchange->slots + ((exchange->turn & 1) * exchange->num_ranks + rank) * exchange->capacity;
}

/* Return once every rank has written its part of this turn: 0, or -1 after timeout_s. Called by one thread. */
int exchange_meet(Exchange *exchange) {
    const uint32_t turn = exchange->turn + 1;
    __atomic_store_n(&exchange->flags[exchange->rank * 16], turn, __ATOMIC_RELEASE);
    double deadline = 0.0;
    for (int32_t rank = 0; rank < exchange->num_ranks; rank++) {
        int64_t tries = 0;
        while ((int32_t)(__atomic_load_n(&exchange->flags[rank * 16], __ATOMIC_ACQUIRE) - turn) < 0) {
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
