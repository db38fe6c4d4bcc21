/* Attention over paged keys and values: softmax is taken page by page, in order, with a running maximum (Milakov and
 * Gimelshein 2018, "Online normalizer calculation for softmax"), within chunks of CHUNK_TOKENS keys; the chunks'
 * results are then put together in order. Chunks lie at fixed positions, so what a row computes depends on its
 * position and its own keys alone, whether one thread goes through all chunks or each has its own. Rows of a group
 * share the loads of a page.
 *
 * A row of a drafted tree meets its keys in the order of their positions, wherever they lie: a score depends on its
 * key alone, so scores are taken where the keys are and put where a chain would have them; all that follows is the
 * chain's own arithmetic, and so are the bits. */
#include "outrider.h"

#define MOST_VECTORS 16 /* head sizes up to 256 */
#define MOST_PAGE 256

INLINE vf load(int kind, const void *base, int64_t index) {
    switch (kind) {
    case KV_BF16: return v_load_bf16((const uint16_t *)base + index);
    case KV_INT8: return v_load_i8((const int8_t *)base + index);
    default: return v_load((const float *)base + index);
    }
}

INLINE void put(int kind, void *base, int64_t index, float value) {
    if (kind == KV_FP32) ((float *)base)[index] = value;
    else if (kind == KV_INT8) ((int8_t *)base)[index] = (int8_t)nearbyintf(value);
    else { /* bfloat16, nearest even */
        uint32_t bits;
        memcpy(&bits, &value, 4);
        if ((bits & 0x7fffffffu) > 0x7f800000u) bits |= 0x00400000u; /* stays a NaN */
        else bits += 0x7fffu + ((bits >> 16) & 1);
        ((uint16_t *)base)[index] = (uint16_t)(bits >> 16);
    }
}

/* int8: one scale per token and head. NaN and infinity survive in the scale. */
static float token_scale(const float *x, int32_t dim) {
    float top = 0.0f, bad = 0.0f;
    for (int32_t d = 0; d < dim; d++) {
        const float a = fabsf(x[d]);
        top = a > top ? a : top;
        bad += x[d] * 0.0f;
    }
    return (top > 0.0f ? top / 127.0f : 1.0f) + bad;
}

void kv_write(const KVLayer *kv, const Heads *heads, const Step *step, int32_t row, const float *key,
              const float *value) {
    const int32_t slot = step->slots[row], dim = heads->head_dim;
    const int64_t page = slot / step->page_tokens, offset = slot % step->page_tokens;
    for (int32_t h = 0; h < heads->num_kv_heads; h++) {
        const int64_t cell = page * heads->num_kv_heads + h, base = cell * kv->dim * kv->page;
        const float *k = key + (int64_t)h * dim, *v = value + (int64_t)h * dim;
        float k_factor = 1.0f, v_factor = 1.0f;
        if (kv->kind == KV_INT8) {
            const float ks = token_scale(k, dim), vs = token_scale(v, dim);
            kv->key_scale[cell * kv->page + offset] = ks;
            kv->value_scale[cell * kv->page + offset] = vs;
            k_factor = ks == ks ? 1.0f / ks : 0.0f;
            v_factor = vs == vs ? 1.0f / vs : 0.0f;
        }
        for (int32_t d = 0; d < dim; d++) {
            put(kv->kind, kv->keys, base + (int64_t)d * kv->page + offset, k[d] * k_factor);
            put(kv->kind, kv->values, base + offset * kv->dim + d, v[d] * v_factor);
        }
    }
}

/* Move single tokens from slot to slot, one after another; `moves` [num_moves, 2]. A moved token keeps its bits. */
void kv_move(const KVLayer *kv, int32_t page_tokens, const int32_t *moves, int32_t num_moves) {
    const int64_t size = kv->kind == KV_FP32 ? 4 : kv->kind == KV_BF16 ? 2 : 1;
    char *const keys = kv->keys, *const values = kv->values;
    for (int32_t m = 0; m < num_moves; m++) {
        const int32_t from = moves[2 * m], to = moves[2 * m + 1];
        for (int32_t h = 0; h < kv->num_heads; h++) {
            const int64_t a = (int64_t)(from / page_tokens) * kv->num_heads + h, i = from % page_tokens;
            const int64_t b = (int64_t)(to / page_tokens) * kv->num_heads + h, j = to % page_tokens;
            for (int32_t d = 0; d < kv->dim; d++)
                memcpy(keys + ((b * kv->dim + d) * kv->page + j) * size, keys + ((a * kv->dim + d) * kv->page + i) * size,
                       size);
            memcpy(values + (b * kv->page + j) * kv->dim * size, values + (a * kv->page + i) * kv->dim * size,
                   kv->dim * size);
            if (kv->kind == KV_INT8) {
                kv->key_scale[b * kv->page + j] = kv->key_scale[a * kv->page + i];
                kv->value_scale[b * kv->page + j] = kv->value_scale[a * kv->page + i];
            }
        }
    }
}

/* A running softmax: [TOP] the largest score, [SUM] of exponentials (0: nothing seen yet), from [OUT] on the weighted
 * values, [dim] padded to 16. */
enum { TOP = 0, SUM = 1, OUT = LANES };

/* Scores of JB vectors of keys from vector j on: several at once, since one chain of additions waits for itself. */
INLINE void scores(const int kind, const int QB, const int JB, const KVLayer *kv, int64_t cell, int64_t base, int32_t j,
                   int32_t head_dim, float scale, const float *query, float (*p)[MOST_PAGE]) {
    vf s[4][4];
#pragma GCC unroll 4
    for (int i = 0; i < QB; i++)
#pragma GCC unroll 4
        for (int n = 0; n < JB; n++) s[i][n] = v_zero();
    for (int32_t d = 0; d < head_dim; d++) {
        vf k[4];
#pragma GCC unroll 4
        for (int n = 0; n < JB; n++) k[n] = load(kind, kv->keys, base + (int64_t)d * kv->page + (j + n) * LANES);
#pragma GCC unroll 4
        for (int i = 0; i < QB; i++) {
            const vf q = v_set(query[i * head_dim + d]);
#pragma GCC unroll 4
            for (int n = 0; n < JB; n++) s[i][n] = v_fma(q, k[n], s[i][n]);
        }
    }
#pragma GCC unroll 4
    for (int n = 0; n < JB; n++) {
        vf factor = v_set(scale);
        if (kind == KV_INT8) factor = v_mul(factor, v_load(kv->key_scale + cell * kv->page + (j + n) * LANES));
#pragma GCC unroll 4
        for (int i = 0; i < QB; i++) v_store(p[i] + (j + n) * LANES, v_mul(s[i][n], factor));
    }
}

/* Where a tree's row finds its keys on one page of positions: the first `own` on the page itself, key j >= own in
 * slots[j - own] (`own` may be negative). */
typedef struct {
    int32_t own, page_tokens, num_heads, head;
    const int32_t *slots;
} Tail;

/* Scores of keys [low, high) as Tail has them; at[j] becomes the place of value j, in tokens of one head. */
INLINE void tail_scores(const int kind, const int QB, const KVLayer *kv, const Tail *tail, int32_t low, int32_t high,
                        int32_t head_dim, float scale, const float *query, float (*p)[MOST_PAGE], int64_t *at) {
    float there[4][MOST_PAGE];
    int64_t cell = -1;
    int32_t vector = -1;
    for (int32_t j = low; j < high; j++) {
        const int32_t slot = tail->slots[j - tail->own], offset = slot % tail->page_tokens;
        const int64_t its = (int64_t)(slot / tail->page_tokens) * tail->num_heads + tail->head;
        if (its != cell || offset / LANES != vector) {
            cell = its;
            vector = offset / LANES;
            scores(kind, QB, 1, kv, cell, cell * kv->dim * kv->page, vector, head_dim, scale, query, there);
        }
        for (int i = 0; i < QB; i++) p[i][j] = there[i][offset];
        at[j] = cell * kv->page + offset;
    }
}

/* One page for QB queries (heads) of one row; keys [low, high) of the page are visible. `tail` NULL: all of them lie
 * on the page. */
INLINE void page_step(const int kind, const int QB, const KVLayer *kv, int64_t cell, int32_t low, int32_t high,
                      int32_t head_dim, float scale, const float *query, float *state, const Tail *tail) {
    const int64_t base = cell * kv->dim * kv->page, stride = kv->dim + OUT;
    const int32_t vectors = (high + LANES - 1) / LANES;
    const int32_t own = !tail || tail->own > high ? high : tail->own, here = own > low ? (own + LANES - 1) / LANES : 0;
    float p[4][MOST_PAGE];
    int64_t at[MOST_PAGE];
    for (int32_t j = low / LANES; j < here;) {
        if (here - j >= 4 && QB == 1) {
            scores(kind, QB, 4, kv, cell, base, j, head_dim, scale, query, p);
            j += 4;
        } else if (here - j >= 2) {
            scores(kind, QB, 2, kv, cell, base, j, head_dim, scale, query, p);
            j += 2;
        } else {
            scores(kind, QB, 1, kv, cell, base, j, head_dim, scale, query, p);
            j += 1;
        }
    }
    if (tail) {
        for (int32_t j = low; j < own; j++) at[j] = cell * kv->page + j;
        tail_scores(kind, QB, kv, tail, own > low ? own : low, high, head_dim, scale, query, p, at);
    }
    for (int i = 0; i < QB; i++) {
        float *const w = p[i], *const mine = state + i * stride;
        /* Lanes outside hold what other sequences left there, perhaps NaN. */
        for (int32_t j = low / LANES * LANES; j < low; j++) w[j] = -INFINITY;
        for (int32_t j = high; j < vectors * LANES; j++) w[j] = -INFINITY;
        vf most = v_set(mine[TOP]);
        for (int32_t j = low / LANES; j < vectors; j++) most = v_max(most, v_load(w + j * LANES));
        const float top = v_top(most);
        float keep[LANES];
        v_store(keep, v_exp(v_set(mine[TOP] - top)));
        vf sum = v_zero();
        for (int32_t j = low / LANES; j < vectors; j++) v_store(w + j * LANES, v_exp(v_sub(v_load(w + j * LANES), v_set(top))));
        for (int32_t j = low / LANES * LANES; j < low; j++) w[j] = 0.0f;
        for (int32_t j = high; j < vectors * LANES; j++) w[j] = 0.0f;
        for (int32_t j = low / LANES; j < vectors; j++) sum = v_add(sum, v_load(w + j * LANES));
        mine[SUM] = mine[SUM] * keep[0] + v_sum(sum);
        mine[TOP] = top;
        for (int32_t d = 0; d < kv->dim; d += LANES)
            v_store(mine + OUT + d, v_mul(v_load(mine + OUT + d), v_set(keep[0])));
    }
    if (kind == KV_INT8)
        for (int i = 0; i < QB; i++)
            for (int32_t j = low; j < high; j++) p[i][j] *= kv->value_scale[tail ? at[j] : cell * kv->page + j];
    for (int32_t d = 0; d < kv->dim; d += 2 * LANES) {
        const int two = d + LANES < kv->dim;
        vf a[4], b[4];
#pragma GCC unroll 4
        for (int i = 0; i < QB; i++) {
            a[i] = v_load(state + i * stride + OUT + d);
            b[i] = two ? v_load(state + i * stride + OUT + d + LANES) : v_zero();
        }
        for (int32_t j = low; j < high; j++) {
            const int64_t row = tail ? at[j] * kv->dim : base + (int64_t)j * kv->dim;
            const vf v0 = load(kind, kv->values, row + d);
            const vf v1 = two ? load(kind, kv->values, row + d + LANES) : v_zero();
#pragma GCC unroll 4
            for (int i = 0; i < QB; i++) {
                const vf w = v_set(p[i][j]);
                a[i] = v_fma(w, v0, a[i]);
                b[i] = v_fma(w, v1, b[i]);
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < QB; i++) {
            v_store(state + i * stride + OUT + d, a[i]);
            if (two) v_store(state + i * stride + OUT + d + LANES, b[i]);
        }
    }
}

#define ARGS const KVLayer *kv, int64_t cell, int32_t low, int32_t high, int32_t head_dim, float scale, \
             const float *query, float *state
#define PASS kv, cell, low, high, head_dim, scale, query, state
#define PAGE(KIND, QB) \
    static void page_##KIND##_##QB(ARGS) { page_step(KIND, QB, PASS, NULL); } \
    static void tail_##KIND##_##QB(ARGS, const Tail *tail) { page_step(KIND, QB, PASS, tail); }
#define PAGES(KIND) PAGE(KIND, 1) PAGE(KIND, 2) PAGE(KIND, 3) PAGE(KIND, 4)
PAGES(0) PAGES(1) PAGES(2)
#define ROW(WHICH, KIND) {WHICH##_##KIND##_1, WHICH##_##KIND##_2, WHICH##_##KIND##_3, WHICH##_##KIND##_4}
static void (*const TABLE[3][4])(ARGS) = {ROW(page, 0), ROW(page, 1), ROW(page, 2)};
static void (*const TAIL_TABLE[3][4])(ARGS, const Tail *) = {ROW(tail, 0), ROW(tail, 1), ROW(tail, 2)};

#define HEADS_AT_ONCE 8

/* The last position among a group's rows; a tree's rows need not ascend. */
static int32_t last_position(const Step *step, int32_t group) {
    const int32_t end = step->group_rows[group + 1];
    int32_t last = step->positions[end - 1];
    for (int32_t row = step->group_rows[group]; step->forks && row < end; row++)
        last = step->positions[row] > last ? step->positions[row] : last;
    return last;
}

static int32_t num_chunks(const Step *step, int32_t group) { return last_position(step, group) / CHUNK_TOKENS + 1; }

/* One chunk for the query heads [head0, head0 + num) of a KV head, of every row of a group -> states [rows, num]. */
static void chunk_states(const KVLayer *kv, const Heads *heads, const Step *step, int32_t group, int32_t kv_head,
                         int32_t head0, int32_t num, int32_t chunk, const float *query, int64_t ld_query, float *states,
                         int64_t ld_states) {
    const int32_t per_kv = heads->num_heads / heads->num_kv_heads, dim = heads->head_dim, page = step->page_tokens;
    const int32_t first = step->group_rows[group], end = step->group_rows[group + 1];
    const int32_t *pages = step->pages + step->group_pages[group];
    const int64_t stride = kv->dim + OUT, column = ((int64_t)kv_head * per_kv + head0) * dim;
    for (int32_t row = first; row < end; row++)
        for (int32_t h = 0; h < num; h++) {
            float *const state = states + (row - first) * ld_states + h * stride;
            memset(state, 0, sizeof(float) * stride);
            state[TOP] = -INFINITY;
        }
    const int32_t page0 = chunk * (CHUNK_TOKENS / page), most = page0 + CHUNK_TOKENS / page - 1;
    int32_t last_page = last_position(step, group) / page;
    last_page = last_page < most ? last_page : most;
    for (int32_t b = page0; b <= last_page; b++) {
        const int64_t cell = (int64_t)pages[b] * heads->num_kv_heads + kv_head;
        for (int32_t row = first; row < end; row++) {
            const int32_t position = step->positions[row];
            const int32_t oldest = heads->window > 0 && position >= heads->window ? position - heads->window + 1 : 0;
            int32_t low = oldest - b * page, high = position + 1 - b * page;
            low = low > 0 ? low : 0;
            high = high < page ? high : page;
            if (low >= high) continue;
            for (int32_t h = 0; h < num; h += 4) {
                const int32_t many = num - h < 4 ? num - h : 4;
                const float *const q = query + row * ld_query + column + (int64_t)h * dim;
                float *const state = states + (row - first) * ld_states + h * stride;
                if (step->forks && step->forks[row] < b * page + high) {
                    const Tail tail = {step->forks[row] - b * page, page, heads->num_kv_heads, kv_head,
                                       step->tail_slots + step->tails[row]};
                    TAIL_TABLE[kv->kind][many - 1](kv, cell, low, high, dim, heads->scale, q, state, &tail);
                } else TABLE[kv->kind][many - 1](kv, cell, low, high, dim, heads->scale, q, state);
            }
        }
    }
}

/* total <- total and part, which saw later keys. */
static void combine(const KVLayer *kv, float *total, const float *part) {
    if (part[SUM] == 0.0f) return;
    if (total[SUM] == 0.0f) {
        memcpy(total, part, sizeof(float) * (kv->dim + OUT));
        return;
    }
    const float top = total[TOP] > part[TOP] ? total[TOP] : part[TOP];
    float a[LANES], b[LANES];
    v_store(a, v_exp(v_set(total[TOP] - top)));
    v_store(b, v_exp(v_set(part[TOP] - top)));
    total[TOP] = top;
    total[SUM] = total[SUM] * a[0] + part[SUM] * b[0];
    for (int32_t d = 0; d < kv->dim; d += LANES) {
        const vf more = v_mul(v_load(part + OUT + d), v_set(b[0]));
        v_store(total + OUT + d, v_fma(v_load(total + OUT + d), v_set(a[0]), more));
    }
}

static void write_out(const float *state, int32_t dim, float *out) {
    const float share = 1.0f / state[SUM];
    for (int32_t d = 0; d < dim; d++) out[d] = state[OUT + d] * share;
}

/* The first chunk that any row of a group sees. */
static int32_t first_chunk(const Heads *heads, const Step *step, int32_t group) {
    const int32_t first = step->group_rows[group];
    int32_t position = step->positions[first];
    for (int32_t row = first; step->forks && row < step->group_rows[group + 1]; row++)
        position = step->positions[row] < position ? step->positions[row] : position;
    if (heads->window <= 0 || position < heads->window) return 0;
    return (position - heads->window + 1) / CHUNK_TOKENS;
}

/* All chunks of one (group, KV head) in one go: enough of these keep every thread busy. */
static void attend_whole(const KVLayer *kv, const Heads *heads, const Step *step, int64_t task, const float *query,
                         int64_t ld_query, float *out, int64_t ld_out) {
    const int32_t per_kv = heads->num_heads / heads->num_kv_heads, dim = heads->head_dim;
    const int32_t group = (int32_t)(task / heads->num_kv_heads), kv_head = (int32_t)(task % heads->num_kv_heads);
    const int32_t first = step->group_rows[group], end = step->group_rows[group + 1];
    const int64_t stride = kv->dim + OUT;
    float total[GROUP_ROWS * HEADS_AT_ONCE * (MOST_VECTORS * LANES + OUT)];
    float part[GROUP_ROWS * HEADS_AT_ONCE * (MOST_VECTORS * LANES + OUT)];
    for (int32_t head0 = 0; head0 < per_kv; head0 += HEADS_AT_ONCE) {
        const int32_t num = per_kv - head0 < HEADS_AT_ONCE ? per_kv - head0 : HEADS_AT_ONCE;
        const int64_t ld = num * stride;
        const int32_t chunk0 = first_chunk(heads, step, group);
        for (int32_t chunk = chunk0; chunk < num_chunks(step, group); chunk++) {
            float *const into = chunk == chunk0 ? total : part;
            chunk_states(kv, heads, step, group, kv_head, head0, num, chunk, query, ld_query, into, ld);
            if (into == part)
                for (int32_t i = 0; i < (end - first) * num; i++) combine(kv, total + i * stride, part + i * stride);
        }
        for (int32_t row = first; row < end; row++)
            for (int32_t h = 0; h < num; h++)
                write_out(total + ((row - first) * num + h) * stride, dim,
                          out + row * ld_out + ((int64_t)kv_head * per_kv + head0 + h) * dim);
    }
}

/* Whether chunks are shared out, each to a thread: few rows over long contexts. `partials` then must hold
 * [num_rows, num_heads, chunks of the longest] states. */
static int32_t shared_out(const Heads *heads, const Step *step, int32_t num_threads) {
    if (num_threads == 1 || step->num_groups * heads->num_kv_heads >= 4 * num_threads) return 0;
    int32_t most = 0;
    for (int32_t group = 0; group < step->num_groups; group++) {
        const int32_t chunks = num_chunks(step, group);
        most = chunks > most ? chunks : most;
    }
    return most > 1 ? most : 0;
}

/* Floats that `attend` needs as `partials` for this step. */
int64_t partial_floats(const Heads *heads, const Step *step, int32_t num_threads) {
    const int64_t state = (heads->head_dim + LANES - 1) / LANES * LANES + OUT;
    return (int64_t)step->num_rows * heads->num_heads * shared_out(heads, step, num_threads) * state;
}

/* Called by every thread of a team, after the step's keys and values are written. */
void attend(const KVLayer *kv, const Heads *heads, const Step *step, const float *query, int64_t ld_query, float *out,
            int64_t ld_out, float *partials, Team *team, int32_t thread) {
    const int32_t threads = team->num_threads, chunks = shared_out(heads, step, threads);
    const int64_t tasks = (int64_t)step->num_groups * heads->num_kv_heads;
    if (!chunks) {
        /* Later groups see more keys: dealt like cards. */
        for (int64_t t = thread; t < tasks; t += threads)
            attend_whole(kv, heads, step, t, query, ld_query, out, ld_out);
        meet(team);
        return;
    }
    const int32_t per_kv = heads->num_heads / heads->num_kv_heads, dim = heads->head_dim;
    const int64_t stride = kv->dim + OUT;
    for (int64_t t = thread; t < tasks * chunks; t += threads) {
        const int32_t group = (int32_t)(t / chunks / heads->num_kv_heads), chunk = (int32_t)(t % chunks);
        const int32_t kv_head = (int32_t)(t / chunks % heads->num_kv_heads), first = step->group_rows[group];
        if (chunk < first_chunk(heads, step, group) || chunk >= num_chunks(step, group)) continue;
        float states[GROUP_ROWS * HEADS_AT_ONCE * (MOST_VECTORS * LANES + OUT)];
        for (int32_t head0 = 0; head0 < per_kv; head0 += HEADS_AT_ONCE) {
            const int32_t num = per_kv - head0 < HEADS_AT_ONCE ? per_kv - head0 : HEADS_AT_ONCE;
            chunk_states(kv, heads, step, group, kv_head, head0, num, chunk, query, ld_query, states, num * stride);
            for (int32_t row = first; row < step->group_rows[group + 1]; row++)
                for (int32_t h = 0; h < num; h++) {
                    const int64_t head = (int64_t)row * heads->num_heads + kv_head * per_kv + head0 + h;
                    memcpy(partials + (head * chunks + chunk) * stride, states + ((row - first) * num + h) * stride,
                           sizeof(float) * stride);
                }
        }
    }
    meet(team);
    for (int32_t group = 0; group < step->num_groups; group++) {
        const int32_t chunk0 = first_chunk(heads, step, group), end = num_chunks(step, group);
        for (int32_t row = step->group_rows[group]; row < step->group_rows[group + 1]; row++)
            for (int32_t h = (row + thread) % threads; h < heads->num_heads; h += threads) {
                float *const total = partials + (((int64_t)row * heads->num_heads + h) * chunks + chunk0) * stride;
                for (int32_t chunk = chunk0 + 1; chunk < end; chunk++)
                    combine(kv, total, total + (chunk - chunk0) * stride);
                write_out(total, dim, out + row * ld_out + (int64_t)h * dim);
            }
    }
    meet(team);
}
