/* Sixteen float lanes on any machine: one AVX-512 register, two AVX2 registers, or plain C.
 *
 * Every kernel is written on these lanes, with explicit fused multiply-adds and no reassociation, so a row's
 * bits are the same on every instruction set (given hardware FMA). */
#ifndef OUTRIDER_VEC_H
#define OUTRIDER_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define LANES 16
#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)

typedef __m512 vf;
INLINE vf v_zero(void) { return _mm512_setzero_ps(); }
INLINE vf v_set(float a) { return _mm512_set1_ps(a); }
INLINE vf v_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void v_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
INLINE vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
INLINE vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
INLINE vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INLINE vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
INLINE vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }
INLINE vf v_round(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE vf v_pow2(vf n) { /* 2**n, n an integer in [-126, 127] */
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
INLINE vf v_load_bf16(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
INLINE vf v_load_i8(const int8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

#elif defined(__AVX2__) && defined(__FMA__)

typedef struct { __m256 a, b; } vf;
#define V2(x, y) ((vf){(x), (y)})
INLINE vf v_zero(void) { return V2(_mm256_setzero_ps(), _mm256_setzero_ps()); }
INLINE vf v_set(float s) { return V2(_mm256_set1_ps(s), _mm256_set1_ps(s)); }
INLINE vf v_load(const float *p) { return V2(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
INLINE void v_store(float *p, vf x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
INLINE vf v_add(vf x, vf y) { return V2(_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)); }
INLINE vf v_sub(vf x, vf y) { return V2(_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)); }
INLINE vf v_mul(vf x, vf y) { return V2(_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)); }
INLINE vf v_div(vf x, vf y) { return V2(_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)); }
INLINE vf v_fma(vf x, vf y, vf z) {
    return V2(_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b));
}
INLINE vf v_max(vf x, vf y) { return V2(_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)); }
INLINE vf v_min(vf x, vf y) { return V2(_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)); }
#define ROUND8(x) _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
INLINE vf v_round(vf x) { return V2(ROUND8(x.a), ROUND8(x.b)); }
INLINE __m256 pow2_8(__m256 n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
INLINE vf v_pow2(vf n) { return V2(pow2_8(n.a), pow2_8(n.b)); }
INLINE __m256 bf16_8(const uint16_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
INLINE vf v_load_bf16(const uint16_t *p) { return V2(bf16_8(p), bf16_8(p + 8)); }
INLINE __m256 i8_8(const int8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
INLINE vf v_load_i8(const int8_t *p) { return V2(i8_8(p), i8_8(p + 8)); }

#else

typedef struct { float x[LANES]; } vf;
#define LOOP for (int i = 0; i < LANES; i++)
INLINE vf v_set(float s) { vf r; LOOP r.x[i] = s; return r; }
INLINE vf v_zero(void) { return v_set(0.0f); }
INLINE vf v_load(const float *p) { vf r; memcpy(r.x, p, sizeof r.x); return r; }
INLINE void v_store(float *p, vf a) { memcpy(p, a.x, sizeof a.x); }
INLINE vf v_add(vf a, vf b) { LOOP a.x[i] += b.x[i]; return a; }
INLINE vf v_sub(vf a, vf b) { LOOP a.x[i] -= b.x[i]; return a; }
INLINE vf v_mul(vf a, vf b) { LOOP a.x[i] *= b.x[i]; return a; }
INLINE vf v_div(vf a, vf b) { LOOP a.x[i] /= b.x[i]; return a; }
INLINE vf v_fma(vf a, vf b, vf c) { LOOP c.x[i] = fmaf(a.x[i], b.x[i], c.x[i]); return c; }
INLINE vf v_max(vf a, vf b) { LOOP a.x[i] = a.x[i] > b.x[i] ? a.x[i] : b.x[i]; return a; }
INLINE vf v_min(vf a, vf b) { LOOP a.x[i] = a.x[i] < b.x[i] ? a.x[i] : b.x[i]; return a; }
INLINE vf v_round(vf a) { LOOP a.x[i] = nearbyintf(a.x[i]); return a; }
INLINE vf v_pow2(vf n) {
    vf r;
    LOOP { int32_t e = ((int32_t)n.x[i] + 127) << 23; memcpy(&r.x[i], &e, 4); }
    return r;
}
INLINE vf v_load_bf16(const uint16_t *p) {
    vf r;
    LOOP { uint32_t b = (uint32_t)p[i] << 16; memcpy(&r.x[i], &b, 4); }
    return r;
}
INLINE vf v_load_i8(const int8_t *p) { vf r; LOOP r.x[i] = (float)p[i]; return r; }

#endif

/* Reductions over lanes go through memory in one fixed tree: they are rare, and their order must not vary. */
INLINE float v_sum(vf a) {
    float t[LANES];
    v_store(t, a);
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; i++) t[i] = t[i] + t[i + width];
    return t[0];
}
INLINE float v_top(vf a) {
    float t[LANES];
    v_store(t, a);
    float top = t[0];
    for (int i = 1; i < LANES; i++) top = t[i] > top ? t[i] : top;
    return top;
}

/* exp(x) with x held within [-87, 88], relative error below 2e-7: Cephes' range reduction and polynomial.
 * The constant stands first in min and max: these return the second operand when one is NaN, so NaN gets through. */
INLINE vf v_exp(vf x) {
    x = v_max(v_set(-87.0f), v_min(v_set(88.0f), x));
    vf n = v_round(v_mul(x, v_set(1.44269504088896341f)));
    vf r = v_fma(n, v_set(-0.693359375f), x);
    r = v_fma(n, v_set(2.12194440e-4f), r);
    vf p = v_set(1.9875691500e-4f);
    p = v_fma(p, r, v_set(1.3981999507e-3f));
    p = v_fma(p, r, v_set(8.3334519073e-3f));
    p = v_fma(p, r, v_set(4.1665795894e-2f));
    p = v_fma(p, r, v_set(1.6666665459e-1f));
    p = v_fma(p, r, v_set(5.0000001201e-1f));
    vf e = v_add(v_fma(v_mul(r, r), p, r), v_set(1.0f));
    return v_mul(e, v_pow2(n));
}

#endif
