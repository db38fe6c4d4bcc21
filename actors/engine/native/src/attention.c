/* Attention over paged keys and values: softmax is taken page by page, in order, with a running maximum.
 *
 * (Milakov and Gimelshein 2018, "Online normalizer calculation for softmax".) What a row computes depends on its
 * position and its own keys alone; rows of a group only share the loads of a page. */
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

typedef struct {
    float top, sum;
    float out[MOST_VECTORS * LANES];
} Running;

/* One page for QB queries (heads) of one row; keys [low, high) of the page are visible. */
INLINE void page_step(const int kind, const int QB, const KVLayer *kv, int64_t cell, int32_t low, int32_t high,
                      int32_t head_dim, float scale, const float *query, Running *state) {
    const int64_t base = cell * kv->dim * kv->page;
    const int32_t vectors = (high + LANES - 1) / LANES;
    float p[4][MOST_PAGE];
    for (int32_t j = low / LANES; j < vectors; j++) {
        vf s[4];
#pragma GCC unroll 4
        for (int i = 0; i < QB; i++) s[i] = v_zero();
        for (int32_t d = 0; d < head_dim; d++) {
            const vf k = load(kind, kv->keys, base + (int64_t)d * kv->page + j * LANES);
#pragma GCC unroll 4
            for (int i = 0; i < QB; i++) s[i] = v_fma(v_set(query[i * head_dim + d]), k, s[i]);
        }
        vf factor = v_set(scale);
        if (kind == KV_INT8) factor = v_mul(factor, v_load(kv->key_scale + cell * kv->page + j * LANES));
        for (int i = 0; i < QB; i++) v_store(p[i] + j * LANES, v_mul(s[i], factor));
    }
    for (int i = 0; i < QB; i++) {
        float *const w = p[i];
        /* Lanes outside hold what other sequences left there, perhaps NaN. */
        for (int32_t j = low / LANES * LANES; j < low; j++) w[j] = -INFINITY;
        for (int32_t j = high; j < vectors * LANES; j++) w[j] = -INFINITY;
        vf most = v_set(state[i].top);
        for (int32_t j = low / LANES; j < vectors; j++) most = v_max(most, v_load(w + j * LANES));
        const float top = v_top(most);
        float keep[LANES];
        v_store(keep, v_exp(v_set(state[i].top - top)));
        vf sum = v_zero();
        for (int32_t j = low / LANES; j < vectors; j++) v_store(w + j * LANES, v_exp(v_sub(v_load(w + j * LANES), v_set(top))));
        for (int32_t j = low / LANES * LANES; j < low; j++) w[j] = 0.0f;
        for (int32_t j = high; j < vectors * LANES; j++) w[j] = 0.0f;
        for (int32_t j = low / LANES; j < vectors; j++) sum = v_add(sum, v_load(w + j * LANES));
        state[i].sum = state[i].sum * keep[0] + v_sum(sum);
        state[i].top = top;
        for (int32_t d = 0; d < kv->dim; d += LANES)
            v_store(state[i].out + d, v_mul(v_load(state[i].out + d), v_set(keep[0])));
    }
    if (kind == KV_INT8)
        for (int i = 0; i < QB; i++)
            for (int32_t j = low; j < high; j++) p[i][j] *= kv->value_scale[cell * kv->page + j];
    for (int32_t d = 0; d < kv->dim; d += 2 * LANES) {
        const int two = d + LANES < kv->dim;
        vf a[4], b[4];
#pragma GCC unroll 4
        for (int i = 0; i < QB; i++) {
            a[i] = v_load(state[i].out + d);
            b[i] = two ? v_load(state[i].out + d + LANES) : v_zero();
        }
        for (int32_t j = low; j < high; j++) {
            const vf v0 = load(kind, kv->values, base + (int64_t)j * kv->dim + d);
            const vf v1 = two ? load(kind, kv->values, base + (int64_t)j * kv->dim + d + LANES) : v_zero();
#pragma GCC unroll 4
            for (int i = 0; i < QB; i++) {
                const vf w = v_set(p[i][j]);
                a[i] = v_fma(w, v0, a[i]);
                b[i] = v_fma(w, v1, b[i]);
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < QB; i++) {
            v_store(state[i].out + d, a[i]);
            if (two) v_store(state[i].out + d + LANES, b[i]);
        }
    }
}

#define ARGS const KVLayer *kv, int64_t cell, int32_t low, int32_t high, int32_t head_dim, float scale, \
             const float *query, Running *state
#define PASS kv, cell, low, high, head_dim, scale, query, state
#define PAGE(KIND, QB) static void page_##KIND##_##QB(ARGS) { page_step(KIND, QB, PASS); }
#define PAGES(KIND) PAGE(KIND, 1) PAGE(KIND, 2) PAGE(KIND, 3) PAGE(KIND, 4)
PAGES(0) PAGES(1) PAGES(2)
#define ROW(KIND) {page_##KIND##_1, page_##KIND##_2, page_##KIND##_3, page_##KIND##_4}
static void (*const TABLE[3][4])(ARGS) = {ROW(0), ROW(1), ROW(2)};

#define HEADS_AT_ONCE 8

void attend(const KVLayer *kv, const Heads *heads, const Step *step, int32_t group, int32_t kv_head,
            const float *query, int64_t ld_query, float *out, int64_t ld_out) {
    const int32_t per_kv = heads->num_heads / heads->num_kv_heads, dim = heads->head_dim, page = step->page_tokens;
    const int32_t first = step->group_rows[group], end = step->group_rows[group + 1];
    const int32_t *pages = step->pages + step->group_pages[group];
    for (int32_t head0 = 0; head0 < per_kv; head0 += HEADS_AT_ONCE) {
        const int32_t num = per_kv - head0 < HEADS_AT_ONCE ? per_kv - head0 : HEADS_AT_ONCE;
        const int64_t column = ((int64_t)kv_head * per_kv + head0) * dim;
        Running state[GROUP_ROWS * HEADS_AT_ONCE];
        for (int32_t i = 0; i < (end - first) * num; i++) {
            state[i].top = -INFINITY;
            state[i].sum = 0.0f;
            memset(state[i].out, 0, sizeof(float) * kv->dim);
        }
        const int32_t last_page = step->positions[end - 1] / page;
        int32_t page0 = 0;
        if (heads->window > 0 && step->positions[first] >= heads->window)
            page0 = (step->positions[first] - heads->window + 1) / page;
        for (int32_t b = page0; b <= last_page; b++) {
            const int64_t cell = (int64_t)pages[b] * heads->num_kv_heads + kv_head;
            for (int32_t row = first; row < end; row++) {
                const int32_t position = step->positions[row];
                const int32_t oldest = heads->window > 0 && position >= heads->window ? position - heads->window + 1 : 0;
                int32_t low = oldest - b * page, high = position + 1 - b * page;
                low = low > 0 ? low : 0;
                high = high < page ? high : page;
                if (low >= high) continue;
                Running *mine = state + (row - first) * num;
                const float *q = query + row * ld_query + column;
                for (int32_t h = 0; h < num; h += 4) {
                    const int32_t many = num - h < 4 ? num - h : 4;
                    TABLE[kv->kind][many - 1](kv, cell, low, high, dim, heads->scale, q + (int64_t)h * dim, mine + h);
                }
            }
        }
        for (int32_t row = first; row < end; row++)
            for (int32_t h = 0; h < num; h++) {
                const Running *mine = state + (row - first) * num + h;
                float *o = out + row * ld_out + column + (int64_t)h * dim;
                const float share = 1.0f / mine->sum;
                for (int32_t d = 0; d < dim; d++) o[d] = mine->out[d] * share;
            }
    }
}
