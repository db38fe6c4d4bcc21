/* What Python hands over, field for field as in `library.py`. All arrays are C-contiguous. */
#ifndef OUTRIDER_H
#define OUTRIDER_H

#include "team.h"
#include "vec.h"

enum { W_FP32 = 0, W_BF16 = 1, W_INT8 = 2, W_W8A8 = 3, W_INT4 = 4 };
enum { KV_FP32 = 0, KV_BF16 = 1, KV_INT8 = 2 };
enum { ACT_SILU = 0, ACT_GELU_TANH = 1 };

#define GROUP 32    /* int4: inputs that share a scale */
#define K_BLOCK 1024 /* integer kernels: inputs summed in int32 before they go to float */

/* y = x W^T + bias. Channels are padded to 16, inputs to the kind's unit; see matmul.c for the packing. */
typedef struct {
    int32_t kind, num_out, num_in, num_in_padded;
    const void *weight;
    const void *scale;       /* int8, w8a8: float [out padded]; int4: bf16 [out padded / 16, groups, 2, 16] */
    const int32_t *sum;      /* w8a8: sum of each channel's weights */
    const float *bias;       /* [out padded] or NULL */
} Linear;

/* Rows as an integer kernel reads them. */
typedef struct {
    const void *values;      /* int16 or uint8 [num_rows, num_in_padded] */
    const float *scale;      /* [num_rows] */
} Quantised;

int64_t row_bytes(const Linear *w);
int64_t block_bytes(const Linear *w);
void quantise_row(const Linear *w, const float *x, void *values, float *scale);

/* Channels of 16 [block0, block1) of every row. `residual` (may be NULL) is added; it may be `out` itself. */
void matmul_blocks(const Linear *w, const float *x, int64_t ld_x, Quantised q, int64_t num_rows, float *out,
                   int64_t ld_out, const float *residual, int64_t block0, int64_t block1);

/* Keys of a page are [dim, page] (a lane is a key), values [page, dim] (a lane is a dimension). */
typedef struct {
    int32_t kind, num_heads, dim, page; /* head size and page length, both padded to 16 */
    void *keys, *values;                /* [num_pages + 1, num_heads, dim * page] */
    float *key_scale, *value_scale;     /* int8: [num_pages + 1, num_heads, page] */
} KVLayer;

/* One packed pass, as in actors/engine/step.py. A group is up to GROUP_ROWS rows of one sequence. */
typedef struct {
    int32_t num_rows, num_logits, num_groups, page_tokens;
    const int32_t *input_ids, *positions, *slots; /* [num_rows] */
    const int32_t *pages;
    const int32_t *logit_rows;                    /* [num_logits] */
    const int32_t *group_rows;                    /* [num_groups + 1] first row of each group */
    const int32_t *group_pages;                   /* [num_groups] where its sequence's pages start in `pages` */
    /* Drafted trees (NULL: none in this pass). A row's keys from position forks[row] on are not where its sequence's
     * pages have them: those up to its own lie in the slots that start at tail_slots + tails[row]. */
    const int32_t *forks, *tails, *tail_slots;    /* [num_rows], [num_rows], [sum of tails] */
    const int32_t *layers;                        /* [num_layers] those that run, ascending; NULL: all */
    int32_t num_layers, wants_hidden;             /* the latter: answer the residual stream instead of logits */
    const float *inputs_embeds;                   /* [num_rows, hidden] instead of looking tokens up; NULL: look up */
    int32_t *best_ids;                            /* [num_logits] where to put each row's likeliest id; NULL: nowhere */
    float *best_tops;                             /* [num_logits] its logit; NaN if any of the row is */
} Step;

#define GROUP_ROWS 8
#define CHUNK_TOKENS 256

typedef struct {
    int32_t num_heads, num_kv_heads, head_dim, window; /* of this rank; window 0: none */
    float scale;
} Heads;

void kv_move(const KVLayer *kv, int32_t page_tokens, const int32_t *moves, int32_t num_moves);
void kv_write(const KVLayer *kv, const Heads *heads, const Step *step, int32_t row, const float *key,
              const float *value);
void attend(const KVLayer *kv, const Heads *heads, const Step *step, const float *query, int64_t ld_query, float *out,
            int64_t ld_out, float *partials, Team *team, int32_t thread);

/* Memory that the ranks of one machine share, for sums in rank order. */
typedef struct {
    int32_t rank, num_ranks;
    int64_t capacity; /* floats of one partial result */
    double timeout_s;
    uint32_t *flags;  /* [num_ranks, 16] how many sums each rank has entered; a cache line each */
    float *slots;     /* [2, num_ranks, capacity] */
    uint32_t turn;    /* how many sums this rank has entered */
} Exchange;

float *exchange_slot(const Exchange *exchange, int32_t rank);
int exchange_meet(Exchange *exchange, const char *ahead, int64_t ahead_bytes);

#endif
