/* A whole forward pass of a decoder-only transformer of the Llama kind (RMS norms, rotary positions, gated MLP) in
 * one call: the framework's share of a step, more than half of it with one small operation at a time, is gone.
 * One team of threads goes through all phases; everything a row computes is its own. */
#include <omp.h>

#include "outrider.h"

typedef struct {
    Linear qkv, out, gate_up, down;
    const float *input_norm, *mlp_norm;             /* [hidden] */
    const float *query_norm, *key_norm;             /* [head_dim] or NULL */
    const float *after_attention, *after_mlp;       /* [hidden] or NULL: norms on what is added to the residual */
    const float *cosine, *sine;                     /* [positions, rotary / 2] or NULL: no positions here */
    Heads heads;
    int32_t rotary;                                 /* leading dimensions of a head that are turned */
    KVLayer kv;
} Layer;

typedef struct {
    int32_t num_layers, hidden, activation, num_threads, embedding_kind;
    float epsilon, embedding_scale;
    const Layer *layers;
    const void *embedding;                          /* [vocab, hidden], KV_FP32 or KV_BF16 */
    const float *final_norm;
    Linear head;                                    /* this rank's part of the vocabulary */
    const int32_t *head_parts;                      /* [num_ranks + 1] where each rank's part starts */
    float logit_cap;                                /* 0: none */
    Exchange *exchange;                             /* NULL: one rank */
    uint16_t *plane;                                /* float16 [num_slots, plane_width]; NULL: none */
    int32_t plane_width;
    const int32_t *plane_places;                    /* [num_layers] where in a row of it a layer's residual goes; -1 */
} Model;

typedef struct {
    float *x, *normed, *qkv, *attended, *gate_up, *added; /* per row: hidden, hidden, q + k + v, q, 2 inner, hidden */
    float *partials;                                /* see attend() */
    void *values;                                   /* quantised rows */
    float *scale;
} Workspace;

static void norm_row(const float *x, const float *weight, float epsilon, int32_t n, float *out) {
    vf sum = v_zero();
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES) { const vf a = v_load(x + i); sum = v_fma(a, a, sum); }
    float total = v_sum(sum);
    for (; i < n; i++) total += x[i] * x[i];
    const float factor = 1.0f / sqrtf(total / n + epsilon);
    for (i = 0; i + LANES <= n; i += LANES)
        v_store(out + i, v_mul(v_mul(v_load(x + i), v_set(factor)), v_load(weight + i)));
    for (; i < n; i++) out[i] = x[i] * factor * weight[i];
}

static void rotate(float *head, const float *cosine, const float *sine, int32_t rotary) {
    const int32_t half = rotary / 2;
    for (int32_t i = 0; i < half; i++) {
        const float a = head[i], b = head[i + half];
        head[i] = a * cosine[i] - b * sine[i];
        head[i + half] = b * cosine[i] + a * sine[i];
    }
}

/* gate <- act(gate) * up, n values; both are padded to 16 by the caller's buffers. */
static void gate_row(float *gate, const float *up, int32_t n, int32_t activation) {
    float tail[LANES], tail_up[LANES];
    for (int32_t i = 0; i < n; i += LANES) {
        const int32_t room = n - i < LANES ? n - i : LANES;
        vf g, u;
        if (room == LANES) { g = v_load(gate + i); u = v_load(up + i); }
        else {
            memset(tail, 0, sizeof tail);
            memset(tail_up, 0, sizeof tail_up);
            memcpy(tail, gate + i, sizeof(float) * room);
            memcpy(tail_up, up + i, sizeof(float) * room);
            g = v_load(tail);
            u = v_load(tail_up);
        }
        vf z = g; /* x * sigmoid(z): z = x is SiLU, z = 2 sqrt(2 / pi) (x + 0.044715 x^3) is GELU's tanh form */
        if (activation == ACT_GELU_TANH)
            z = v_mul(v_fma(v_mul(v_mul(g, g), g), v_set(0.044715f), g), v_set(1.5957691216057308f));
        vf y = v_div(g, v_add(v_set(1.0f), v_exp(v_sub(v_zero(), z))));
        y = v_mul(y, u);
        if (room == LANES) v_store(gate + i, y);
        else { v_store(tail, y); memcpy(gate + i, tail, sizeof(float) * room); }
    }
}

INLINE void share(int64_t num, int thread, int threads, int64_t *from, int64_t *to) {
    *from = num * thread / threads;
    *to = num * (thread + 1) / threads;
}

static void linear(const Linear *w, const float *x, int64_t ld_x, const Workspace *s, int64_t rows, float *out,
                   int64_t ld_out, const float *residual, int thread, int threads) {
    int64_t from, to;
    share((w->num_out + LANES - 1) / LANES, thread, threads, &from, &to);
    matmul_blocks(w, x, ld_x, (Quantised){s->values, s->scale}, rows, out, ld_out, residual, from, to);
}

/* What a linear will read of a row: nothing to do for the float kinds. */
INLINE void prepare(const Linear *w, const float *x, const Workspace *s, int64_t row) {
    const int64_t bytes = row_bytes(w);
    if (bytes) quantise_row(w, x, (char *)s->values + row * bytes, s->scale + row);
}

/* Wait for the other ranks, and meanwhile fetch what a thread reads first of `next`, the linear that follows: no more
 * than half of a common second-level cache holds. */
static int meet_ranks(Exchange *exchange, const Linear *next, int threads) {
    enum { MOST_AHEAD = 1 << 20 }; /* FETCHED_BYTES in exchange.py, by which the ranks' parts are cut */
    int64_t from, to;
    share((next->num_out + LANES - 1) / LANES, 0, threads, &from, &to);
    const int64_t bytes = (to - from) * block_bytes(next);
    return exchange_meet(exchange, next->weight, bytes < MOST_AHEAD ? bytes : MOST_AHEAD);
}

/* x += what the linear's rows come to over all ranks (+ bias), through a norm if the model has one there. `next` is the
 * linear that follows. */
static int add_linear(const Model *model, const Linear *w, const Linear *next, const float *norm, const float *in,
                      int64_t ld_in, const Workspace *s, int64_t rows, Team *team, int thread, int *failed) {
    const int64_t hidden = model->hidden;
    const int threads = team->num_threads;
    Exchange *const exchange = model->exchange;
    if (!exchange && !norm) {
        linear(w, in, ld_in, s, rows, s->x, hidden, s->x, thread, threads);
        meet(team);
        return 0;
    }
    if (!exchange) linear(w, in, ld_in, s, rows, s->added, hidden, NULL, thread, threads);
    else {
        Linear part = *w; /* the bias is added once, after the sum */
        part.bias = NULL;
        linear(&part, in, ld_in, s, rows, exchange_slot(exchange, exchange->rank), hidden, NULL, thread, threads);
        meet(team);
        if (thread == 0 && meet_ranks(exchange, next, threads)) *failed = 1;
        meet(team);
        if (*failed) return -1;
        int64_t from, to;
        share(rows, thread, threads, &from, &to);
        for (int64_t row = from; row < to; row++) {
            float *const added = s->added + row * hidden, *const x = s->x + row * hidden;
            memcpy(added, exchange_slot(exchange, 0) + row * hidden, sizeof(float) * hidden);
            for (int32_t r = 1; r < exchange->num_ranks; r++) {
                const float *const part = exchange_slot(exchange, r) + row * hidden;
                for (int64_t i = 0; i < hidden; i++) added[i] += part[i];
            }
            if (w->bias)
                for (int64_t i = 0; i < hidden; i++) added[i] += w->bias[i];
            if (!norm)
                for (int64_t i = 0; i < hidden; i++) x[i] += added[i];
        }
        meet(team);
        if (thread == 0) exchange->turn++;
    }
    meet(team);
    if (norm) {
        for (int64_t row = thread; row < rows; row += threads) {
            float *const added = s->added + row * hidden, *const x = s->x + row * hidden;
            norm_row(added, norm, model->epsilon, (int32_t)hidden, added);
            for (int64_t i = 0; i < hidden; i++) x[i] += added[i];
        }
        meet(team);
    }
    return 0;
}

/* To float16, rounded to even; what is too large is clipped, NaN stays NaN. */
static void to_halves(const float *x, uint16_t *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        const uint32_t sign = (bits >> 16) & 0x8000u, whole = bits & 0x7fffffffu;
        const uint32_t size = whole > 0x477fe000u ? 0x477fe000u : whole; /* 65504 */
        float small; /* below 2^-14 steps are of 2^-24: adding 0.5, whose last bit has that weight, rounds to them */
        memcpy(&small, &size, 4);
        small += 0.5f;
        uint32_t subnormal;
        memcpy(&subnormal, &small, 4);
        subnormal -= 0x3f000000u;
        const uint32_t normal = (size - 0x38000000u + 0xfffu + ((size >> 13) & 1)) >> 13; /* the exponent's bias: 127 - 15 */
        const uint32_t value = size < 0x38800000u ? subnormal : normal;
        out[i] = (uint16_t)(sign | (whole > 0x7f800000u ? 0x7e00u : value));
    }
}

static void embed(const Model *model, const Step *step, float *x, int64_t row) {
    const int64_t hidden = model->hidden;
    if (step->inputs_embeds) {
        memcpy(x, step->inputs_embeds + row * hidden, sizeof(float) * hidden);
        return;
    }
    const int64_t at = step->input_ids[row] * hidden;
    for (int64_t i = 0; i < hidden; i++) {
        float value;
        if (model->embedding_kind == KV_FP32) value = ((const float *)model->embedding)[at + i];
        else {
            const uint32_t bits = (uint32_t)((const uint16_t *)model->embedding)[at + i] << 16;
            memcpy(&value, &bits, 4);
        }
        x[i] = value * model->embedding_scale;
    }
}

static void positions_and_cache(const Model *model, const Layer *layer, const Step *step, float *row_qkv, int64_t row) {
    const Heads *h = &layer->heads;
    float *const key = row_qkv + (int64_t)h->num_heads * h->head_dim;
    float *const value = key + (int64_t)h->num_kv_heads * h->head_dim;
    const int32_t half = layer->rotary / 2, position = step->positions[row];
    for (int32_t i = 0; i < h->num_heads + h->num_kv_heads; i++) {
        float *const head = row_qkv + (int64_t)i * h->head_dim;
        const float *const norm = i < h->num_heads ? layer->query_norm : layer->key_norm;
        if (norm) norm_row(head, norm, model->epsilon, h->head_dim, head);
        if (layer->cosine)
            rotate(head, layer->cosine + (int64_t)position * half, layer->sine + (int64_t)position * half, layer->rotary);
    }
    kv_write(&layer->kv, h, step, (int32_t)row, key, value);
}

/* Logits [num_logits, vocab] from `normed`. With several ranks each works out its part of the vocabulary; rank 0 puts
 * the parts together, `logits` of the others is left alone. */
static void head(const Model *model, const Workspace *s, int64_t num, float *logits, Team *team, int thread,
                 int *failed) {
    const Linear *const w = &model->head;
    const int threads = team->num_threads;
    Exchange *const exchange = model->exchange;
    if (!exchange) {
        linear(w, s->normed, model->hidden, s, num, logits, w->num_out, NULL, thread, threads);
        return;
    }
    const int32_t *const parts = model->head_parts, vocab = parts[exchange->num_ranks];
    int32_t widest = 0;
    for (int32_t r = 0; r < exchange->num_ranks; r++)
        if (parts[r + 1] - parts[r] > widest) widest = parts[r + 1] - parts[r];
    const int64_t most = exchange->capacity / widest;
    for (int64_t first = 0; first < num; first += most) {
        const int64_t rows = num - first < most ? num - first : most, bytes = row_bytes(w);
        const Workspace part = {.values = (char *)s->values + first * bytes, .scale = s->scale + first};
        linear(w, s->normed + first * model->hidden, model->hidden, &part, rows,
               exchange_slot(exchange, exchange->rank), w->num_out, NULL, thread, threads);
        meet(team);
        if (thread == 0 && exchange_meet(exchange, NULL, 0)) *failed = 1;
        meet(team);
        if (*failed) return;
        if (exchange->rank == 0)
            for (int64_t row = thread; row < rows; row += threads)
                for (int32_t r = 0; r < exchange->num_ranks; r++) {
                    const int64_t width = parts[r + 1] - parts[r];
                    memcpy(logits + (first + row) * vocab + parts[r], exchange_slot(exchange, r) + row * width,
                           sizeof(float) * width);
                }
        meet(team);
        if (thread == 0) exchange->turn++;
        meet(team);
    }
}

/* The largest of a row's logits and its id, the smallest one on ties. A NaN comes through. */
static void best_of(const float *row, int64_t num, int32_t *id, float *top) {
    enum { WIDE = 64 };
    float most[WIDE];
    int32_t bad[WIDE] = {0}, any = 0;
    for (int j = 0; j < WIDE; j++) most[j] = row[0];
    int64_t i = 0;
    for (; i + WIDE <= num; i += WIDE)
        for (int j = 0; j < WIDE; j++) {
            most[j] = row[i + j] > most[j] ? row[i + j] : most[j];
            bad[j] |= row[i + j] != row[i + j];
        }
    float best = row[0];
    for (int j = 0; j < WIDE; j++) {
        if (most[j] > best) best = most[j];
        any |= bad[j];
    }
    for (; i < num; i++) {
        if (row[i] > best) best = row[i];
        any |= row[i] != row[i];
    }
    *id = 0;
    if (any || best != best) {
        *top = NAN;
        return;
    }
    for (i = 0; i + WIDE <= num; i += WIDE) {
        int32_t found = 0;
        for (int j = 0; j < WIDE; j++) found |= row[i + j] == best;
        if (found) break;
    }
    while (row[i] != best) i++;
    *id = (int32_t)i;
    *top = best;
}

/* Logits [num_logits, vocab] of the step's logit rows, or their residual stream [num_logits, hidden] if the step wants
 * that. 0, or -1: a rank did not come to a sum in time. */
int forward(const Model *model, const Step *step, const Workspace *s, float *logits) {
    const int64_t rows = step->num_rows, hidden = model->hidden;
    const int32_t num_layers = step->layers ? step->num_layers : model->num_layers;
    int failed = 0;
    Team shared = {0}, *const team = &shared;
#pragma omp parallel num_threads(model->num_threads)
    {
        const int thread = omp_get_thread_num(), threads = omp_get_num_threads();
#pragma omp single
        shared.num_threads = threads;
        for (int64_t row = thread; row < rows; row += threads) embed(model, step, s->x + row * hidden, row);
        /* no barrier: the same thread goes on with the same rows */
        int ok = 1;
        for (int32_t l = 0; l < num_layers && ok; l++) {
            const Layer *const layer = model->layers + (step->layers ? step->layers[l] : l);
            const Heads *const h = &layer->heads;
            const int64_t wide = (int64_t)(h->num_heads + 2 * h->num_kv_heads) * h->head_dim;
            const int64_t ld_attended = (int64_t)h->num_heads * h->head_dim;
            for (int64_t row = thread; row < rows; row += threads) {
                norm_row(s->x + row * hidden, layer->input_norm, model->epsilon, (int32_t)hidden, s->normed + row * hidden);
                prepare(&layer->qkv, s->normed + row * hidden, s, row);
            }
            meet(team);
            linear(&layer->qkv, s->normed, hidden, s, rows, s->qkv, wide, NULL, thread, threads);
            meet(team);
            for (int64_t row = thread; row < rows; row += threads)
                positions_and_cache(model, layer, step, s->qkv + row * wide, row);
            meet(team);
            attend(&layer->kv, h, step, s->qkv, wide, s->attended, ld_attended, s->partials, team, thread);
            if (row_bytes(&layer->out)) {
                for (int64_t row = thread; row < rows; row += threads)
                    prepare(&layer->out, s->attended + row * ld_attended, s, row);
                meet(team);
            }
            ok = !add_linear(model, &layer->out, &layer->gate_up, layer->after_attention, s->attended, ld_attended, s,
                             rows, team, thread, &failed);
            if (!ok) break;
            for (int64_t row = thread; row < rows; row += threads) {
                norm_row(s->x + row * hidden, layer->mlp_norm, model->epsilon, (int32_t)hidden, s->normed + row * hidden);
                prepare(&layer->gate_up, s->normed + row * hidden, s, row);
            }
            meet(team);
            const int64_t inner = layer->gate_up.num_out / 2;
            linear(&layer->gate_up, s->normed, hidden, s, rows, s->gate_up, 2 * inner, NULL, thread, threads);
            meet(team);
            for (int64_t row = thread; row < rows; row += threads) {
                float *const gate = s->gate_up + row * 2 * inner;
                gate_row(gate, gate + inner, (int32_t)inner, model->activation);
                prepare(&layer->down, gate, s, row);
            }
            meet(team);
            const Linear *const next =
                l + 1 < num_layers ? &model->layers[step->layers ? step->layers[l + 1] : l + 1].qkv : &model->head;
            ok = !add_linear(model, &layer->down, next, layer->after_mlp, s->gate_up, 2 * inner, s, rows, team, thread,
                             &failed);
            const int32_t place = model->plane ? model->plane_places[layer - model->layers] : -1;
            if (ok && place >= 0)
                for (int64_t row = thread; row < rows; row += threads)
                    to_halves(s->x + row * hidden, model->plane + (int64_t)step->slots[row] * model->plane_width + place,
                              hidden);
        }
        if (ok && step->wants_hidden) {
            if (!model->exchange || model->exchange->rank == 0)
                for (int64_t i = thread; i < step->num_logits; i += threads)
                    memcpy(logits + i * hidden, s->x + step->logit_rows[i] * hidden, sizeof(float) * hidden);
        } else if (ok && step->num_logits > 0) {
            for (int64_t i = thread; i < step->num_logits; i += threads) {
                norm_row(s->x + step->logit_rows[i] * hidden, model->final_norm, model->epsilon, (int32_t)hidden,
                         s->normed + i * hidden);
                prepare(&model->head, s->normed + i * hidden, s, i);
            }
            meet(team);
            head(model, s, step->num_logits, logits, team, thread, &failed);
            if (model->logit_cap > 0.0f && (!model->exchange || model->exchange->rank == 0) && !failed) {
                const int64_t vocab = model->exchange ? model->head_parts[model->exchange->num_ranks] : model->head.num_out;
                meet(team);
                for (int64_t i = thread; i < step->num_logits; i += threads)
                    for (int64_t v = 0; v < vocab; v++) {
                        float *const y = logits + i * vocab + v;
                        *y = model->logit_cap * tanhf(*y / model->logit_cap);
                    }
            }
            if (step->best_ids && (!model->exchange || model->exchange->rank == 0) && !failed) {
                const int64_t vocab = model->exchange ? model->head_parts[model->exchange->num_ranks] : model->head.num_out;
                meet(team);
                for (int64_t i = thread; i < step->num_logits; i += threads)
                    best_of(logits + i * vocab, vocab, step->best_ids + i, step->best_tops + i);
            }
        }
    }
    return failed ? -1 : 0;
}

/* Greedy decoding: up to `num_passes` passes in one call, each of the rows' likeliest ids fed to the next one. `first`
 * wants the logits of one row of each sequence; `next` is a row of each, whose `positions` are those after `first` and
 * whose ids and slots are filled in here. ids, tops [num_passes, num_logits]. Ends early after a pass with a logit that
 * is no number, or when `stop` is set meanwhile. Passes made, or -1 as above. For one rank. */
int decode(const Model *model, Step *first, Step *next, const Workspace *s, float *logits, int32_t num_passes,
           int32_t *ids, float *tops, const int32_t *stop) {
    const int64_t num = first->num_logits;
    const int32_t page = next->page_tokens;
    int32_t *const input = (int32_t *)next->input_ids, *const positions = (int32_t *)next->positions;
    int32_t *const slots = (int32_t *)next->slots;
    for (int32_t pass = 0; pass < num_passes; pass++) {
        Step *const step = pass ? next : first;
        if (pass)
            for (int64_t i = 0; i < num; i++) {
                if (pass > 1) positions[i]++;
                input[i] = ids[(pass - 1) * num + i];
                slots[i] = next->pages[next->group_pages[i] + positions[i] / page] * page + positions[i] % page;
            }
        step->best_ids = ids + pass * num;
        step->best_tops = tops + pass * num;
        if (forward(model, step, s, logits)) return -1;
        for (int64_t i = 0; i < num; i++)
            if (!isfinite(tops[pass * num + i])) return pass + 1;
        if (__atomic_load_n(stop, __ATOMIC_RELAXED)) return pass + 1;
    }
    return num_passes;
}

/* The parts alone, for models whose layers run in the framework. */

void matmul(const Linear *w, const float *x, int64_t rows, float *out, void *values, float *scale, int32_t num_threads) {
    const Workspace s = {.values = values, .scale = scale};
    Team shared = {0}, *const team = &shared;
#pragma omp parallel num_threads(num_threads)
    {
        const int thread = omp_get_thread_num(), threads = omp_get_num_threads();
#pragma omp single
        shared.num_threads = threads;
        if (row_bytes(w)) {
            for (int64_t row = thread; row < rows; row += threads) prepare(w, x + row * w->num_in, &s, row);
            meet(team);
        }
        linear(w, x, w->num_in, &s, rows, out, w->num_out, NULL, thread, threads);
    }
}

/* query [rows, heads, dim], key and value [rows, kv heads, dim] -> out as query. */
void paged_attention(const KVLayer *kv, const Heads *h, const Step *step, const float *query, const float *key,
                     const float *value, float *out, float *partials, int32_t num_threads) {
    const int64_t width = (int64_t)h->num_heads * h->head_dim, kv_width = (int64_t)h->num_kv_heads * h->head_dim;
    Team shared = {0}, *const team = &shared;
#pragma omp parallel num_threads(num_threads)
    {
        const int thread = omp_get_thread_num(), threads = omp_get_num_threads();
#pragma omp single
        shared.num_threads = threads;
        for (int64_t row = thread; row < step->num_rows; row += threads)
            kv_write(kv, h, step, (int32_t)row, key + row * kv_width, value + row * kv_width);
        meet(team);
        attend(kv, h, step, query, width, out, width, partials, team, thread);
    }
}
