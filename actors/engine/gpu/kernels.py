# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# Triton kernels are a language of their own: their arguments are pointers and integers without Python types.
"""Triton kernels over paged keys and values. `launch.TritonKernels` is the only caller.

Terms: a *work item* (`work.py`) is a run of query rows that see the same keys up to the causal edge. Its keys are
counted along one text: keys `[0, committed)` come through the page table, keys from `committed` on are the step's own
rows, its *tail*. Counting along the text, not along memory, is what makes a drafted path of a tree give the bits
of the same tokens fed one by one.

Softmax is computed online over fixed tiles of BLOCK_N keys (FlashAttention, arXiv:2205.14135), optionally over
splits of `split_keys` keys merged in order (Flash-Decoding). A tile or split that a row does not see leaves its
state as it was, bit for bit: so skipping it, or running it for a neighbour's sake, is the same.
"""

import torch
import triton
import triton.language as tl

DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)  # numpy knows no bf16: there its products are taken in fp32
FIELDS = tl.constexpr(8)  # int32s of a work item, in the order of `work.WORK_FIELDS`


@triton.jit
def _dot(a, b, acc, DTYPE: tl.constexpr):
    """acc + a @ b, with operands rounded to DTYPE and products added in fp32.

    fp32 operands are split in three for the tensor cores, which keeps their precision (tf32x3).
    """
    if INTERPRETED:
        a, b = a.to(tl.float32).to(DTYPE).to(tl.float32), b.to(tl.float32).to(DTYPE).to(tl.float32)
    else:
        a, b = a.to(DTYPE), b.to(DTYPE)
    return tl.dot(a, b, acc, input_precision="tf32x3")


@triton.jit
def _merge(top, mass, acc, top_new, mass_new, acc_new):
    """Join two softmax states over different keys; a state without keys (top = -inf) changes nothing."""
    both = tl.maximum(top, top_new)
    safe = tl.where(both == float("-inf"), 0.0, both)
    a, b = tl.exp2(top - safe), tl.exp2(top_new - safe)
    return both, mass * a + mass_new * b, acc * a[:, None] + acc_new * b[:, None]


@triton.jit
def _attend_range(
    q, key_from, key_to, num_keys, committed, own, query_position, is_tree, head, tail_start, table, row_index,
    keys, values, key_scales, value_scales, tail_rows, tail_slots, positions, ancestors, scale, window,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, INT8: tl.constexpr, HAS_WINDOW: tl.constexpr,
    TREE_WORDS: tl.constexpr, DOT: tl.constexpr,
):
    """Softmax state of the query tile over keys `[key_from, key_to)`: highest score, mass, weighted sum of values.

    `own` [BLOCK_M]: a row's own index in the tail.
    """
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, DIM_PAD], tl.float32)
    dims = tl.arange(0, DIM_PAD)
    for start in range(key_from, key_to, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        known = j < num_keys
        t = j - committed
        in_tail = (t >= 0) & known
        slot = tl.load(tail_slots + tail_start + t, mask=in_tail, other=0)
        page = tl.load(table + j // PAGE, mask=t < 0, other=0)
        page = tl.where(in_tail, slot // PAGE, page).to(tl.int64)
        place = (page * NUM_KV_HEADS + head) * PAGE + tl.where(in_tail, slot % PAGE, j % PAGE)
        at = place[:, None] * HEAD_DIM + dims[None, :]
        # What no row may see is not read: a masked NaN would still poison the sum over values.
        there = known[:, None] & (dims < HEAD_DIM)[None, :]
        k = tl.load(keys + at, mask=there, other=0)
        scores = _dot(q, tl.trans(k), tl.zeros([BLOCK_M, BLOCK_N], tl.float32), DOT) * scale
        if INT8:
            scores = scores * tl.load(key_scales + place, mask=known, other=0.0)[None, :]

        visible = known[None, :] & (t[None, :] <= own[:, None])
        key_position = j
        if TREE_WORDS > 0:
            tail_row = tl.load(tail_rows + tail_start + t, mask=in_tail, other=0)
            key_position = tl.where(in_tail, tl.load(positions + tail_row, mask=in_tail, other=0), j)
            asked = (is_tree & in_tail & (t < 32 * TREE_WORDS))[None, :] & (row_index >= 0)[:, None]
            word = tl.load(ancestors + row_index[:, None] * TREE_WORDS + (t // 32)[None, :], mask=asked, other=0)
            kin = ((word >> (t % 32)[None, :]) & 1) != 0
            visible = tl.where(is_tree & (t >= 0)[None, :], kin & known[None, :], visible)
        if HAS_WINDOW:
            visible = visible & (key_position[None, :] > query_position[:, None] - window)
        scores = tl.where(visible, scores, float("-inf"))

        higher = tl.maximum(top, tl.max(scores, 1))
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        alpha = tl.exp2(top - safe)
        p = tl.exp2(scores - safe[:, None])
        mass = mass * alpha + tl.sum(p, 1)
        v = tl.load(values + at, mask=there, other=0)
        if INT8:
            p = p * tl.load(value_scales + place, mask=known, other=0.0)[None, :]
        acc = _dot(p, v, acc * alpha[:, None], DOT)
        top = higher
    return top, mass, acc


@triton.jit(do_not_specialize=["table_width"])
def attend_kernel(
    out, part_acc, part_state, queries, keys, values, key_scales, value_scales, table, tail_rows, tail_slots, work,
    positions, ancestors, splitting, scale, window, table_width, query_row_stride, query_head_stride,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    PAGE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, INT8: tl.constexpr, HAS_WINDOW: tl.constexpr,
    TREE_WORDS: tl.constexpr, PARTIAL: tl.constexpr, INNER_SPLITS: tl.constexpr, DOT: tl.constexpr,
):
    """One work item, one KV head, one split. Grid: (num_items, NUM_KV_HEADS, num_splits).

    The query tile holds all GROUP query heads of the KV head for each row. PARTIAL leaves the split's state for
    `combine_kernel`; INNER_SPLITS walks all splits here and merges them in the same order instead. `splitting` [1]
    holds the keys of a split (a multiple of BLOCK_N): on the device, so that a graph can be replayed with another.
    """
    item = work + tl.program_id(0) * FIELDS
    head = tl.program_id(1)
    split = tl.program_id(2)
    table_row = tl.load(item + 0)
    committed = tl.load(item + 1)
    tail_start = tl.load(item + 2)
    first = tl.load(item + 3)
    num_rows = tl.load(item + 4)
    num_keys = committed + tl.load(item + 5)
    is_tree = tl.load(item + 6) != 0
    split_keys = tl.load(splitting)
    if num_rows == 0:
        return

    lane = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, DIM_PAD)
    valid = lane // GROUP < num_rows
    own = first + lane // GROUP
    row_index = tl.load(tail_rows + tail_start + own, mask=valid, other=-1)
    query_head = head * GROUP + lane % GROUP
    query_position = committed + own
    key_from = 0
    if HAS_WINDOW:
        oldest = committed + first
        if TREE_WORDS > 0:
            query_position = tl.load(positions + row_index, mask=valid, other=0)
            oldest = tl.where(is_tree, committed, oldest)
        key_from = tl.maximum(oldest - window + 1, 0) // BLOCK_N * BLOCK_N
    inside = valid[:, None] & (dims < HEAD_DIM)[None, :]
    # Rows times widths exceed 32 bits for long prefills.
    row64 = row_index.to(tl.int64)
    q = tl.load(
        queries + (row64 * query_row_stride + query_head * query_head_stride)[:, None] + dims[None, :],
        mask=inside, other=0.0,
    )
    pages = table + table_row.to(tl.int64) * table_width

    if INNER_SPLITS:
        top = tl.full([BLOCK_M], float("-inf"), tl.float32)
        mass = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, DIM_PAD], tl.float32)
        for i in range(key_from // split_keys, tl.cdiv(num_keys, split_keys)):
            top_i, mass_i, acc_i = _attend_range(
                q, tl.maximum(key_from, i * split_keys), tl.minimum(num_keys, (i + 1) * split_keys), num_keys,
                committed, own, query_position, is_tree, head, tail_start, pages, row_index, keys, values, key_scales,
                value_scales, tail_rows, tail_slots, positions, ancestors, scale, window, NUM_KV_HEADS, HEAD_DIM,
                DIM_PAD, PAGE, BLOCK_M, BLOCK_N, INT8, HAS_WINDOW, TREE_WORDS, DOT,
            )
            top, mass, acc = _merge(top, mass, acc, top_i, mass_i, acc_i)
    else:
        top, mass, acc = _attend_range(
            q, tl.maximum(key_from, split * split_keys), tl.minimum(num_keys, (split + 1) * split_keys), num_keys,
            committed, own, query_position, is_tree, head, tail_start, pages, row_index, keys, values, key_scales,
            value_scales, tail_rows, tail_slots, positions, ancestors, scale, window, NUM_KV_HEADS, HEAD_DIM, DIM_PAD,
            PAGE, BLOCK_M, BLOCK_N, INT8, HAS_WINDOW, TREE_WORDS, DOT,
        )

    place = row64 * (NUM_KV_HEADS * GROUP) + query_head
    if not PARTIAL:
        to = out + place[:, None] * HEAD_DIM + dims[None, :]
        tl.store(to, (acc / mass[:, None]).to(out.dtype.element_ty), mask=inside)
    else:
        part = place * tl.num_programs(2) + split
        tl.store(part_acc + part[:, None] * HEAD_DIM + dims[None, :], acc, mask=inside)
        tl.store(part_state + part * 2, top, mask=valid)
        tl.store(part_state + part * 2 + 1, mass, mask=valid)


@triton.jit(do_not_specialize=["num_places", "num_splits"])
def combine_kernel(
    out, part_acc, part_state, num_places, num_splits, HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Merge the partial states of BLOCK (row, head) places, split by split. Grid: (ceil(num_places / BLOCK),)."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    dims = tl.arange(0, DIM_PAD)
    valid = place < num_places
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK], tl.float32)
    acc = tl.zeros([BLOCK, DIM_PAD], tl.float32)
    for split in range(num_splits):
        part = place * num_splits + split
        top_new = tl.load(part_state + part * 2, mask=valid, other=float("-inf"))
        mass_new = tl.load(part_state + part * 2 + 1, mask=valid, other=0.0)
        inside = (valid & (top_new != float("-inf")))[:, None] & (dims < HEAD_DIM)[None, :]
        acc_new = tl.load(part_acc + part[:, None] * HEAD_DIM + dims[None, :], mask=inside, other=0.0)
        top, mass, acc = _merge(top, mass, acc, top_new, mass_new, acc_new)
    to = out + place[:, None] * HEAD_DIM + dims[None, :]
    tl.store(to, (acc / mass[:, None]).to(out.dtype.element_ty), mask=valid[:, None] & (dims < HEAD_DIM)[None, :])


@triton.jit
def _write_one(new, store, scales, place, dims, HEAD_DIM: tl.constexpr, INT8: tl.constexpr):
    x = tl.load(new + dims, mask=dims < HEAD_DIM, other=0.0)
    if INT8:
        x = x.to(tl.float32)
        step = tl.maximum(tl.max(tl.abs(x), 0), 1e-12) / 127.0
        step = step + tl.sum(x * 0.0, 0)  # NaN or Inf must not look like a number once it is rounded
        tl.store(scales + place, step)
        x = tl.floor(x / step + 0.5)
        x = tl.where(x == x, x, 0.0)
    tl.store(store + place * HEAD_DIM + dims, x.to(store.dtype.element_ty), mask=dims < HEAD_DIM)


@triton.jit
def write_kernel(
    new_keys, new_values, keys, values, key_scales, value_scales, slots, key_row_stride, key_head_stride,
    value_row_stride, value_head_stride, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    PAGE: tl.constexpr, INT8: tl.constexpr,
):
    """One row, one head: its key and value go to the row's slot. Grid: (num_rows, NUM_KV_HEADS)."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slots + row)
    place = ((slot // PAGE).to(tl.int64) * NUM_KV_HEADS + head) * PAGE + slot % PAGE
    dims = tl.arange(0, DIM_PAD)
    new_key = new_keys + row * key_row_stride + head * key_head_stride
    new_value = new_values + row * value_row_stride + head * value_head_stride
    _write_one(new_key, keys, key_scales, place, dims, HEAD_DIM, INT8)
    _write_one(new_value, values, value_scales, place, dims, HEAD_DIM, INT8)


@triton.jit
def linear_kernel(
    out, inputs, weight, bias, num_rows, num_outputs, num_inputs, row_stride, weight_output_stride,
    weight_input_stride, HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    DOT: tl.constexpr,
):
    """out = inputs @ weight.T + bias with one order of addition, whatever the number of rows.

    Grid: (ceil(num_outputs / BLOCK_N), ceil(num_rows / BLOCK_M)).
    """
    rows = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    outputs = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    lanes = tl.arange(0, BLOCK_K)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, num_inputs, BLOCK_K):
        k = start + lanes
        x = tl.load(
            inputs + rows[:, None] * row_stride + k[None, :],
            mask=(rows < num_rows)[:, None] & (k < num_inputs)[None, :], other=0.0,
        )
        w = tl.load(
            weight + outputs[None, :] * weight_output_stride + k[:, None] * weight_input_stride,
            mask=(outputs < num_outputs)[None, :] & (k < num_inputs)[:, None], other=0.0,
        )
        acc = _dot(x, w, acc, DOT)
    if HAS_BIAS:
        acc = acc + tl.load(bias + outputs, mask=outputs < num_outputs, other=0.0).to(tl.float32)[None, :]
    tl.store(
        out + rows[:, None] * num_outputs + outputs[None, :], acc.to(out.dtype.element_ty),
        mask=(rows < num_rows)[:, None] & (outputs < num_outputs)[None, :],
    )


@triton.jit
def row_sum_kernel(out, inputs, num_columns, divisor, BLOCK: tl.constexpr):
    """Sum of each row over `divisor`, in one order for a given BLOCK. Grid: (num_rows,)."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    x = tl.load(inputs + row * num_columns + lanes, mask=lanes < num_columns, other=0.0).to(tl.float32)
    tl.store(out + row, (tl.sum(x, 0) / divisor).to(out.dtype.element_ty))
