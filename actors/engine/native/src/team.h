/* Where threads and ranks wait for each other: spinning for as long as a phase of a small step lasts, then giving
 * the core away between looks. (An OpenMP barrier spins for milliseconds first, which starves whoever is waited for
 * as soon as there are more busy threads than cores.) */
#ifndef OUTRIDER_TEAM_H
#define OUTRIDER_TEAM_H

#include <sched.h>
#include <stdint.h>
#include <time.h>

#if defined(__x86_64__)
#define PAUSE() __builtin_ia32_pause()
#else
#define PAUSE() ((void)0)
#endif
#define NUM_SPINS 2000

static inline void wait_a_little(int64_t tries) {
    if (tries < NUM_SPINS) PAUSE();
    else sched_yield();
}

static inline double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

typedef struct {
    int32_t num_threads, num_arrived;
    uint32_t phase;
} Team;

/* Return once every thread of the team has called it. */
static inline void meet(Team *team) {
    if (team->num_threads == 1) return;
    const uint32_t phase = __atomic_load_n(&team->phase, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&team->num_arrived, 1, __ATOMIC_ACQ_REL) == team->num_threads) {
        __atomic_store_n(&team->num_arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&team->phase, phase + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int64_t tries = 0; __atomic_load_n(&team->phase, __ATOMIC_ACQUIRE) == phase; tries++) wait_a_little(tries);
}

#endif
