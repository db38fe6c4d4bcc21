/* Linear layers. One output is one chain of fused multiply-adds over the inputs, in order (integer kinds: exact
 * integers, scaled once per K_BLOCK or group), so a row's bits depend neither on the number of rows, nor on how
 * rows and channels are cut into tiles or shared out to threads.
 *
 * Packing (a block is 16 channels):
 *   fp32, bf16   [block, in, 16]
 *   int8         [block, in / 2, 16, 2]      times int16 activations
 *   w8a8         [block, in / 4, 16, 4]      times uint8 activations (VNNI), else as int8
 *   int4         bytes [block, in / 4, 16, 2]: low nibbles are inputs 4i, 4i + 1, high nibbles 4i + 2, 4i + 3; or, with
 *                VNNI, [block, in / 8, 16, 4]: low nibbles are inputs 8i to 8i + 3, high nibbles 8i + 4 to 8i + 7
 *
 * int4 is q * scale + least per GROUP inputs, 0 <= q <= 15: sums of q x are integers, and the sum of a row's x over a
 * group, which `least` is multiplied by, is taken once per row. */
#include "outrider.h"

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define HAVE_VNNI 1
#else
#define HAVE_VNNI 0
#endif

#define Q_INT16 16384.0f /* 127 * Q * K_BLOCK < 2**31 */
#define Q_INT4 16192.0f  /* 128 * 127 - 64: high part and rest both fit into eight bits */

int has_vnni(void) { return HAVE_VNNI; }

int64_t row_bytes(const Linear *w) {
    switch (w->kind) {
    case W_INT8: return (int64_t)w->num_in_padded * 2;
    case W_INT4: return (int64_t)w->num_in_padded * 2 + w->num_in_padded / GROUP * 4;
    case W_W8A8: return (int64_t)w->num_in_padded * (HAVE_VNNI ? 1 : 2);
    default: return 0;
    }
}

/* Of the weights of 16 channels, which lie behind one another. */
int64_t block_bytes(const Linear *w) {
    const int64_t weights = (int64_t)w->num_in_padded * LANES;
    switch (w->kind) {
    case W_FP32: return weights * 4;
    case W_BF16: return weights * 2;
    case W_INT4: return weights / 2;
    default: return weights;
    }
}

/* A row of int4's int16 values: sums over groups behind them, and with VNNI high parts and rests apart. */
static void finish_int4(void *values, int32_t padded) {
    int16_t *const x = values;
    float *const sums = (float *)(x + padded);
    for (int32_t g = 0; g < padded / GROUP; g++) {
        int32_t sum = 0;
        for (int32_t i = 0; i < GROUP; i++) sum += x[g * GROUP + i];
        sums[g] = (float)sum;
    }
#if HAVE_VNNI
    /* [group, 2, GROUP] bytes: in place, a group at a time. */
    for (int32_t g = 0; g < padded / GROUP; g++) {
        int8_t high[GROUP], rest[GROUP];
        for (int32_t i = 0; i < GROUP; i++) {
            const int32_t v = x[g * GROUP + i], h = (v + 64) >> 7;
            high[i] = (int8_t)h;
            rest[i] = (int8_t)(v - 128 * h);
        }
        memcpy((int8_t *)values + g * 2 * GROUP, high, GROUP);
        memcpy((int8_t *)values + g * 2 * GROUP + GROUP, rest, GROUP);
    }
#endif
}

/* One row to integers, by its own largest magnitude. A NaN or infinity anywhere makes the whole row's scale NaN. */
void quantise_row(const Linear *w, const float *x, void *values, float *scale) {
    const int32_t n = w->num_in, padded = w->num_in_padded;
    float tail[LANES];
    vf top = v_zero(), bad = v_zero();
    for (int32_t k = 0; k < n; k += LANES) {
        vf a;
        if (k + LANES <= n) a = v_load(x + k);
        else { memset(tail, 0, sizeof tail); memcpy(tail, x + k, sizeof(float) * (n - k)); a = v_load(tail); }
        top = v_max(top, v_max(a, v_sub(v_zero(), a)));
        bad = v_add(bad, v_mul(a, v_zero())); /* NaN once a value is NaN or infinite */
    }
    const float most = w->kind == W_W8A8 ? 127.0f : w->kind == W_INT4 ? Q_INT4 : Q_INT16;
    float largest = v_top(top);
    if (!(largest > 0.0f)) largest = 1.0f;
    const float factor = most / largest;
    *scale = largest / most + v_sum(bad);
    const vf f = v_set(factor), low = v_set(-most), high = v_set(most);
    for (int32_t k = 0; k < padded; k += LANES) {
        float r[LANES];
        vf a;
        if (k + LANES <= n) a = v_load(x + k);
        else {
            memset(tail, 0, sizeof tail);
            if (k < n) memcpy(tail, x + k, sizeof(float) * (n - k));
            a = v_load(tail);
        }
        a = v_min(v_max(v_round(v_mul(a, f)), low), high); /* a NaN ends up as a bound; the scale tells */
        int32_t room = padded - k < LANES ? padded - k : LANES;
#if defined(__AVX512BW__)
        if (room == LANES) {
            __m512i i = _mm512_cvtps_epi32(a);
            if (w->kind == W_W8A8 && HAVE_VNNI)
                _mm_storeu_si128((__m128i *)((uint8_t *)values + k),
                                 _mm512_cvtepi32_epi8(_mm512_add_epi32(i, _mm512_set1_epi32(128))));
            else _mm256_storeu_si256((__m256i *)((int16_t *)values + k), _mm512_cvtepi32_epi16(i));
            continue;
        }
#endif
        v_store(r, a);
        for (int32_t i = 0; i < room; i++) {
            if (w->kind == W_W8A8 && HAVE_VNNI) ((uint8_t *)values)[k + i] = (uint8_t)((int32_t)r[i] + 128);
            else ((int16_t *)values)[k + i] = (int16_t)r[i];
        }
    }
    if (w->kind == W_INT4) finish_int4(values, padded);
}

/* Store one row's 16 channels: bias and residual added, the tail of the last block left alone. */
INLINE void finish(const Linear *w, vf acc, int64_t block, float *out, const float *residual) {
    const int32_t first = (int32_t)(block * LANES);
    if (w->bias) acc = v_add(acc, v_load(w->bias + first));
    if (first + LANES <= w->num_out) {
        if (residual) acc = v_add(acc, v_load(residual + first));
        v_store(out + first, acc);
        return;
    }
    float t[LANES];
    v_store(t, acc);
    for (int32_t i = 0; first + i < w->num_out; i++) out[first + i] = residual ? t[i] + residual[first + i] : t[i];
}

/* ---- float kinds ------------------------------------------------------------------------------------------- */

/* Tiles go through memory in several streams that start anew with every tile, which hardware prefetchers are slow
 * to notice: while a tile is worked on, what follows in each stream, or in the next tile's, is fetched into the
 * second-level cache; of the float kinds, which wait for memory most, AHEAD bytes before it is needed, of the others a
 * tile before. */
#define FETCH(p) __builtin_prefetch((p), 0, 2)
#define AHEAD 2048

INLINE void tile_float(const Linear *w, const int bf16, const int MR, const int NB, const float *x, int64_t ld_x,
                       float *out, int64_t ld_out, const float *residual, int64_t block) {
    const int64_t K = w->num_in;
    vf acc[6][8];
#pragma GCC unroll 8
    for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
        for (int n = 0; n < NB; n++) acc[m][n] = v_zero();
    const float *wf = (const float *)w->weight + block * K * LANES;
    const uint16_t *wh = (const uint16_t *)w->weight + block * K * LANES;
    for (int64_t k = 0; k < K; k++) {
        vf b[8];
#pragma GCC unroll 8
        for (int n = 0; n < NB; n++) {
            const int64_t at = k * LANES + AHEAD / (bf16 ? 2 : 4), end = K * LANES;
            const int64_t next = at < end ? n * end + at : (NB + n) * end + at - end;
            if (!bf16) FETCH(wf + next);
            else if (k % 2 == 0) FETCH(wh + next);
        }
#pragma GCC unroll 8
        for (int n = 0; n < NB; n++)
            b[n] = bf16 ? v_load_bf16(wh + (n * K + k) * LANES) : v_load(wf + (n * K + k) * LANES);
#pragma GCC unroll 8
        for (int m = 0; m < MR; m++) {
            vf a = v_set(x[m * ld_x + k]);
#pragma GCC unroll 8
            for (int n = 0; n < NB; n++) acc[m][n] = v_fma(a, b[n], acc[m][n]);
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
        for (int n = 0; n < NB; n++)
            finish(w, acc[m][n], block + n, out + m * ld_out, residual ? residual + m * ld_out : NULL);
}

/* ---- integer kinds ----------------------------------------------------------------------------------------- */

#if defined(__AVX512BW__) && defined(__AVX512DQ__)
typedef __m512i vi; /* 16 int32 */
INLINE vi i_zero(void) { return _mm512_setzero_si512(); }
INLINE vf i_float(vi a) { return _mm512_cvtepi32_ps(a); }
typedef __m512i vw; /* 16 channels x 2 inputs, int16 */
INLINE vw w_int8(const int8_t *p) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p)); }
INLINE vw w_low(const uint8_t *p) {
    return _mm512_cvtepu8_epi16(_mm256_and_si256(_mm256_loadu_si256((const __m256i *)p), _mm256_set1_epi8(15)));
}
INLINE vw w_high(const uint8_t *p) {
    __m256i b = _mm256_srli_epi16(_mm256_loadu_si256((const __m256i *)p), 4);
    return _mm512_cvtepu8_epi16(_mm256_and_si256(b, _mm256_set1_epi8(15)));
}
INLINE vi i_dot(vi acc, vw w, const int16_t *x) { /* x: two inputs of one row */
    int32_t pair;
    memcpy(&pair, x, 4);
#if HAVE_VNNI
    return _mm512_dpwssd_epi32(acc, w, _mm512_set1_epi32(pair));
#else
    return _mm512_add_epi32(acc, _mm512_madd_epi16(w, _mm512_set1_epi32(pair)));
#endif
}
#elif defined(__AVX2__)
typedef struct { __m256i a, b; } vi;
INLINE vi i_zero(void) { return (vi){_mm256_setzero_si256(), _mm256_setzero_si256()}; }
INLINE vf i_float(vi x) { return V2(_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)); }
typedef struct { __m256i a, b; } vw;
INLINE vw w_bytes(__m256i b) {
    return (vw){_mm256_cvtepi8_epi16(_mm256_castsi256_si128(b)), _mm256_cvtepi8_epi16(_mm256_extracti128_si256(b, 1))};
}
INLINE vw w_int8(const int8_t *p) { return w_bytes(_mm256_loadu_si256((const __m256i *)p)); }
INLINE vw w_low(const uint8_t *p) {
    return w_bytes(_mm256_and_si256(_mm256_loadu_si256((const __m256i *)p), _mm256_set1_epi8(15)));
}
INLINE vw w_high(const uint8_t *p) {
    __m256i b = _mm256_srli_epi16(_mm256_loadu_si256((const __m256i *)p), 4);
    return w_bytes(_mm256_and_si256(b, _mm256_set1_epi8(15)));
}
INLINE vi i_dot(vi acc, vw w, const int16_t *x) {
    int32_t pair;
    memcpy(&pair, x, 4);
    __m256i v = _mm256_set1_epi32(pair);
    return (vi){_mm256_add_epi32(acc.a, _mm256_madd_epi16(w.a, v)), _mm256_add_epi32(acc.b, _mm256_madd_epi16(w.b, v))};
}
#else
typedef struct { int32_t x[LANES]; } vi;
INLINE vi i_zero(void) { vi r; memset(&r, 0, sizeof r); return r; }
INLINE vf i_float(vi a) { vf r; for (int i = 0; i < LANES; i++) r.x[i] = (float)a.x[i]; return r; }
typedef struct { int16_t x[2 * LANES]; } vw;
INLINE vw w_int8(const int8_t *p) { vw r; for (int i = 0; i < 2 * LANES; i++) r.x[i] = p[i]; return r; }
INLINE vw w_low(const uint8_t *p) { vw r; for (int i = 0; i < 2 * LANES; i++) r.x[i] = p[i] & 15; return r; }
INLINE vw w_high(const uint8_t *p) { vw r; for (int i = 0; i < 2 * LANES; i++) r.x[i] = p[i] >> 4; return r; }
INLINE vi i_dot(vi acc, vw w, const int16_t *x) {
    for (int i = 0; i < LANES; i++) acc.x[i] += w.x[2 * i] * x[0] + w.x[2 * i + 1] * x[1];
    return acc;
}
#endif

INLINE void tile_int8(const Linear *w, const int MR, const int NB, const int16_t *x, const float *x_scale, float *out,
                      int64_t ld_out, const float *residual, int64_t block) {
    const int64_t K = w->num_in_padded;
    const int8_t *weights = (const int8_t *)w->weight + block * K * LANES;
    vi acc[6][8];
    vf total[6][8];
    const int64_t k_block = w->kind == W_W8A8 ? K : K_BLOCK; /* two eight-bit factors cannot overflow */
    const int split = K > k_block;
    if (split)
#pragma GCC unroll 8
        for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
            for (int n = 0; n < NB; n++) total[m][n] = v_zero();
    for (int64_t k0 = 0; k0 < K; k0 += k_block) {
        const int64_t k1 = k0 + k_block < K ? k0 + k_block : K;
#pragma GCC unroll 8
        for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
            for (int n = 0; n < NB; n++) acc[m][n] = i_zero();
        for (int64_t k = k0; k < k1; k += 2) {
            vw b[8];
#pragma GCC unroll 8
            for (int n = 0; n < NB; n++) {
                FETCH(weights + ((NB + n) * K + k) * LANES);
                b[n] = w_int8(weights + (n * K + k) * LANES);
            }
#pragma GCC unroll 8
            for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
                for (int n = 0; n < NB; n++) acc[m][n] = i_dot(acc[m][n], b[n], x + m * K + k);
        }
        if (split)
#pragma GCC unroll 8
            for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
                for (int n = 0; n < NB; n++) total[m][n] = v_add(total[m][n], i_float(acc[m][n]));
    }
#pragma GCC unroll 8
    for (int n = 0; n < NB; n++) {
        const vf s = v_load((const float *)w->scale + (block + n) * LANES);
#pragma GCC unroll 8
        for (int m = 0; m < MR; m++) {
            vf sum = split ? total[m][n] : i_float(acc[m][n]);
            finish(w, v_mul(sum, v_mul(s, v_set(x_scale[m]))), block + n, out + m * ld_out,
                   residual ? residual + m * ld_out : NULL);
        }
    }
}

#if HAVE_VNNI
INLINE void tile_w8a8(const Linear *w, const int MR, const int NB, const uint8_t *x, const float *x_scale, float *out,
                      int64_t ld_out, const float *residual, int64_t block) {
    const int64_t K = w->num_in_padded;
    const int8_t *weights = (const int8_t *)w->weight + block * K * LANES;
    vi acc[6][8];
#pragma GCC unroll 8
    for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
        for (int n = 0; n < NB; n++) acc[m][n] = i_zero();
    for (int64_t k = 0; k < K; k += 4) {
        vi b[8];
#pragma GCC unroll 8
        for (int n = 0; n < NB; n++) {
            FETCH(weights + ((NB + n) * K + k) * LANES);
            b[n] = _mm512_loadu_si512(weights + (n * K + k) * LANES);
        }
#pragma GCC unroll 8
        for (int m = 0; m < MR; m++) {
            int32_t four;
            memcpy(&four, x + m * K + k, 4);
            vi a = _mm512_set1_epi32(four);
#pragma GCC unroll 8
            for (int n = 0; n < NB; n++) acc[m][n] = _mm512_dpbusd_epi32(acc[m][n], a, b[n]);
        }
    }
#pragma GCC unroll 8
    for (int n = 0; n < NB; n++) {
        const vf s = v_load((const float *)w->scale + (block + n) * LANES);
        const vi offset = _mm512_slli_epi32(_mm512_loadu_si512(w->sum + (block + n) * LANES), 7);
#pragma GCC unroll 8
        for (int m = 0; m < MR; m++)
            finish(w, v_mul(i_float(_mm512_sub_epi32(acc[m][n], offset)), v_mul(s, v_set(x_scale[m]))), block + n,
                   out + m * ld_out, residual ? residual + m * ld_out : NULL);
    }
}
#endif

INLINE void tile_int4(const Linear *w, const int MR, const int NB, const char *x, const float *x_scale, float *out,
                      int64_t ld_out, const float *residual, int64_t block) {
    const int64_t K = w->num_in_padded, groups = K / GROUP, bytes = row_bytes(w);
    const uint8_t *weights = (const uint8_t *)w->weight + block * K * LANES / 2;
    const uint16_t *scales = (const uint16_t *)w->scale + block * groups * 2 * LANES; /* bf16 [groups, 2, 16] */
    vf total[6][4];
#pragma GCC unroll 8
    for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
        for (int n = 0; n < NB; n++) total[m][n] = v_zero();
    for (int64_t g = 0; g < groups; g++) {
        vi acc[6][4];
#pragma GCC unroll 8
        for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
            for (int n = 0; n < NB; n++) acc[m][n] = i_zero();
#if HAVE_VNNI
        vi rest[6][4];
#pragma GCC unroll 8
        for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
            for (int n = 0; n < NB; n++) rest[m][n] = i_zero();
#pragma GCC unroll 1
        for (int j = 0; j < GROUP; j += 8) {
            const vi mask = _mm512_set1_epi8(15);
#pragma GCC unroll 8
            for (int n = 0; n < NB; n++) {
                const uint8_t *p = weights + (n * K + g * GROUP + j) * LANES / 2;
                FETCH(p + NB * K * LANES / 2);
                const vi both = _mm512_loadu_si512(p);
                const vi low = _mm512_and_si512(both, mask), high = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
#pragma GCC unroll 8
                for (int m = 0; m < MR; m++) {
                    const char *a = x + m * bytes + g * 2 * GROUP + j;
                    int32_t four[4];
                    memcpy(four, a, 8);
                    memcpy(four + 2, a + GROUP, 8);
                    acc[m][n] = _mm512_dpbusd_epi32(acc[m][n], low, _mm512_set1_epi32(four[0]));
                    acc[m][n] = _mm512_dpbusd_epi32(acc[m][n], high, _mm512_set1_epi32(four[1]));
                    rest[m][n] = _mm512_dpbusd_epi32(rest[m][n], low, _mm512_set1_epi32(four[2]));
                    rest[m][n] = _mm512_dpbusd_epi32(rest[m][n], high, _mm512_set1_epi32(four[3]));
                }
            }
        }
#pragma GCC unroll 8
        for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
            for (int n = 0; n < NB; n++)
                acc[m][n] = _mm512_add_epi32(_mm512_slli_epi32(acc[m][n], 7), rest[m][n]);
#else
        for (int64_t k = g * GROUP; k < (g + 1) * GROUP; k += 4) {
#pragma GCC unroll 8
            for (int n = 0; n < NB; n++) {
                const uint8_t *p = weights + (n * K + k) * LANES / 2;
                FETCH(p + NB * K * LANES / 2);
                const vw low = w_low(p), high = w_high(p);
#pragma GCC unroll 8
                for (int m = 0; m < MR; m++) {
                    const int16_t *a = (const int16_t *)(x + m * bytes) + k;
                    acc[m][n] = i_dot(acc[m][n], low, a);
                    acc[m][n] = i_dot(acc[m][n], high, a + 2);
                }
            }
        }
#endif
#pragma GCC unroll 4
        for (int n = 0; n < NB; n++) {
            const vf scale = v_load_bf16(scales + (n * groups + g) * 2 * LANES);
            const vf least = v_load_bf16(scales + (n * groups + g) * 2 * LANES + LANES);
#pragma GCC unroll 8
            for (int m = 0; m < MR; m++) {
                float sum;
                memcpy(&sum, x + m * bytes + 2 * K + 4 * g, 4);
                total[m][n] = v_fma(i_float(acc[m][n]), scale, v_fma(v_set(sum), least, total[m][n]));
            }
        }
    }
#pragma GCC unroll 8
    for (int n = 0; n < NB; n++)
#pragma GCC unroll 8
        for (int m = 0; m < MR; m++)
            finish(w, v_mul(total[m][n], v_set(x_scale[m])), block + n, out + m * ld_out,
                   residual ? residual + m * ld_out : NULL);
}

/* ---- tiles ------------------------------------------------------------------------------------------------- */

#define ARGS const Linear *w, const float *x, int64_t ld_x, Quantised q, float *out, int64_t ld_out, \
             const float *residual, int64_t block
#define PASS w, x, ld_x, q, out, ld_out, residual, block

INLINE void tile(const int MR, const int NB, ARGS) {
    switch (w->kind) {
    case W_FP32: tile_float(w, 0, MR, NB, x, ld_x, out, ld_out, residual, block); break;
    case W_BF16: tile_float(w, 1, MR, NB, x, ld_x, out, ld_out, residual, block); break;
    case W_INT4: tile_int4(w, MR, NB, q.values, q.scale, out, ld_out, residual, block); break;
#if HAVE_VNNI
    case W_W8A8: tile_w8a8(w, MR, NB, q.values, q.scale, out, ld_out, residual, block); break;
#endif
    default: tile_int8(w, MR, NB, q.values, q.scale, out, ld_out, residual, block); break;
    }
}

#define TILE(MR, NB) static void tile_##MR##_##NB(ARGS) { tile(MR, NB, PASS); }
#define TILES(MR) TILE(MR, 1) TILE(MR, 2) TILE(MR, 3) TILE(MR, 4)
TILES(1) TILES(2) TILES(3) TILES(4) TILES(5) TILES(6)
#define ROW(MR) {tile_##MR##_1, tile_##MR##_2, tile_##MR##_3, tile_##MR##_4}
static void (*const TABLE[6][4])(ARGS) = {ROW(1), ROW(2), ROW(3), ROW(4), ROW(5), ROW(6)};

#if defined(__AVX512F__)
static const int MOST_BLOCKS[7] = {0, 4, 4, 4, 4, 4, 4};
static const int MOST_BLOCKS_INT8[7] = {0, 4, 4, 4, 4, 3, 3}; /* gcc spills sums to the stack beyond that */
static const int MOST_BLOCKS_INT4[7] = {0, 4, 4, 3, 2, 2, 1}; /* three registers per output */
#define MOST_ROWS 6
#else /* sixteen registers of eight lanes */
static const int MOST_BLOCKS[7] = {0, 4, 2, 2, 1, 1, 1};
static const int MOST_BLOCKS_INT8[7] = {0, 4, 2, 2, 1, 1, 1};
static const int MOST_BLOCKS_INT4[7] = {0, 2, 1, 1, 1, 1, 1};
#define MOST_ROWS 5
#endif

void matmul_blocks(const Linear *w, const float *x, int64_t ld_x, Quantised q, int64_t num_rows, float *out,
                   int64_t ld_out, const float *residual, int64_t block0, int64_t block1) {
    if (num_rows == 0) return;
    const int64_t bytes = row_bytes(w);
    /* As even tiles as possible: seven rows are 4 + 3, not 6 + 1. */
    const int64_t num_tiles = (num_rows + MOST_ROWS - 1) / MOST_ROWS;
    const int *const blocks = w->kind == W_INT4 ? MOST_BLOCKS_INT4 : row_bytes(w) ? MOST_BLOCKS_INT8 : MOST_BLOCKS;
    const int most = blocks[(num_rows + num_tiles - 1) / num_tiles];
    for (int64_t block = block0; block < block1;) {
        const int64_t left = block1 - block, steps = (left + most - 1) / most;
        const int NB = (int)((left + steps - 1) / steps);
        int64_t row = 0;
        for (int64_t t = 0; t < num_tiles; t++) {
            const int64_t end = (t + 1) * num_rows / num_tiles;
            const Quantised part = {(const char *)q.values + row * bytes, q.scale + row};
            TABLE[end - row - 1][NB - 1](w, x + row * ld_x, ld_x, part, out + row * ld_out, ld_out,
                                         residual ? residual + row * ld_out : NULL, block);
            row = end;
        }
        block += NB;
    }
}
