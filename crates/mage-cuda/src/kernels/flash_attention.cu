// Causal flash attention of many sequences without padding. Scores stay in registers. A CTA of four warps handles 64
// queries (or keys) of one head; a warp handles 16.

#define K_STEPS (PADDED_HEAD_DIM / 16)

extern __shared__ __align__(1024) unsigned char shared_memory[];

// The work of a CTA for each head: tile `tile` of a sequence with `num_queries` queries from row `query_start` and
// `num_keys` keys. Keys start at row `key_start`; if paged, the block table starts at `key_start`. Query i sees the
// first num_keys - num_queries + i + 1 keys.
struct AttentionTile {
    int query_start, num_queries, key_start, num_keys, tile;
};

// Index of a per-head statistic (logsumexp, delta). Rows are aligned to 16 bytes.
__device__ __forceinline__ size_t stat_index(int row, int head, int heads) { return (size_t)row * ((heads + 3) & ~3) + head; }

// Loads rows `first..first + TILE` of one head to shared memory. Rows from `count` on are zero-filled.
__device__ __forceinline__ void load_tile(u32 to, const bf16* from, size_t stride, int first, int count) {
    for (int i = threadIdx.x; i < TILE * CHUNKS; i += 128) {
        int row = i / CHUNKS, chunk = i % CHUNKS, at = first + row;
        bool in_range = at < count && chunk * 8 < HEAD_DIM;
        cp_async(swizzled(to, row, chunk), from + (in_range ? at * stride : 0) + chunk * 8, in_range);
    }
}

// Loads the same from the KV cache. `kv_cache` points at the head's keys or values in block 0.
__device__ __forceinline__ void load_paged_tile(u32 to, const bf16* kv_cache, size_t block_stride, const u32* table, int first, int count) {
    for (int i = threadIdx.x; i < TILE * CHUNKS; i += 128) {
        int row = i / CHUNKS, chunk = i % CHUNKS, at = first + row;
        bool in_range = at < count && chunk * 8 < HEAD_DIM;
        const bf16* from = kv_cache + (in_range ? table[at >> 4] * block_stride + (at & 15) * HEAD_DIM : 0) + chunk * 8;
        cp_async(swizzled(to, row, chunk), from, in_range);
    }
}

// Source of the keys and values of one head.
struct KvSource {
    const bf16 *keys, *values;
    size_t key_stride, value_stride;
    const u32* table; // block table, or null
};

__device__ __forceinline__ void load_kv_tile(u32 keys, u32 values, const KvSource& s, int first, int count) {
    if (s.table) {
        load_paged_tile(keys, s.keys, s.key_stride, s.table, first, count);
        load_paged_tile(values, s.values, s.value_stride, s.table, first, count);
    } else {
        load_tile(keys, s.keys, s.key_stride, first, count);
        load_tile(values, s.values, s.value_stride, first, count);
    }
    cp_async_commit();
}

__device__ __forceinline__ void attend_tile(const AttentionTile item, int head, int heads, const bf16* q, size_t q_stride, const KvSource& kv_source, float scale, bf16* out, float* logsumexp) {
    u32 base = (u32)__cvta_generic_to_shared(shared_memory);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int first = item.tile * TILE, num_past = item.num_keys - item.num_queries;
    int key_end = min(item.num_queries, first + TILE) + num_past;
    // Queries pass through the space of the second key tile into registers.
    u32 a[K_STEPS][4];
    load_tile(base + 2 * TILE_BYTES, q + (size_t)item.query_start * q_stride, q_stride, first, item.num_queries);
    load_kv_tile(base, base + TILE_BYTES, kv_source, 0, key_end);
    cp_async_wait_all();
    __syncthreads();
#pragma unroll
    for (int k = 0; k < K_STEPS; k++) load_a(a[k], base + 2 * TILE_BYTES, warp * 16, k * 16);
    float o[PADDED_HEAD_DIM / 8][4] = {}, m0 = NEG_INF, m1 = NEG_INF, l0 = 0.f, l1 = 0.f;
    float c = scale * LOG2E;
    int last_visible = first + warp * 16 + (lane >> 2) + num_past; // last key visible to the first of this thread's two rows
    int tiles = (key_end + TILE - 1) / TILE;
    for (int j = 0; j < tiles; j++) {
        u32 keys = base + (j & 1) * 2 * TILE_BYTES, values = keys + TILE_BYTES;
        cp_async_wait_all();
        __syncthreads();
        if (j + 1 < tiles) {
            u32 next = base + ((j + 1) & 1) * 2 * TILE_BYTES;
            load_kv_tile(next, next + TILE_BYTES, kv_source, (j + 1) * TILE, key_end);
        }
        float s[TILE / 8][4] = {};
#if HAS_WGMMA
        wgmma_begin(s, a);
#pragma unroll
        for (int k = 0; k < K_STEPS; k++) wgmma_m64n64k16<true>(s, a[k], desc_k_major(tile_address(keys, 0, k * 16)));
        wgmma_finish(s, a);
#else
#pragma unroll
        for (int k = 0; k < K_STEPS; k++)
#pragma unroll
            for (int n = 0; n < TILE / 16; n++) {
                u32 b[4];
                load_b(b, keys, n * 16, k * 16);
                mma_m16n8k16(s[2 * n], a[k], b), mma_m16n8k16(s[2 * n + 1], a[k], b + 2);
            }
#endif
        if ((j + 1) * TILE > first + warp * 16 + num_past + 1) {
#pragma unroll
            for (int n = 0; n < TILE / 8; n++) {
                int column = j * TILE + n * 8 + 2 * (lane & 3);
                if (column > last_visible) s[n][0] = NEG_INF;
                if (column + 1 > last_visible) s[n][1] = NEG_INF;
                if (column > last_visible + 8) s[n][2] = NEG_INF;
                if (column + 1 > last_visible + 8) s[n][3] = NEG_INF;
            }
        }
        float n0 = m0, n1 = m1;
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) n0 = fmaxf(n0, fmaxf(s[n][0], s[n][1])), n1 = fmaxf(n1, fmaxf(s[n][2], s[n][3]));
        n0 = quad_max(n0), n1 = quad_max(n1);
        float f0 = exp2f((m0 - n0) * c), f1 = exp2f((m1 - n1) * c);
        m0 = n0, m1 = n1;
        l0 *= f0, l1 *= f1;
#pragma unroll
        for (int n = 0; n < PADDED_HEAD_DIM / 8; n++) o[n][0] *= f0, o[n][1] *= f0, o[n][2] *= f1, o[n][3] *= f1;
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
            s[n][0] = exp2f((s[n][0] - m0) * c), s[n][1] = exp2f((s[n][1] - m0) * c);
            s[n][2] = exp2f((s[n][2] - m1) * c), s[n][3] = exp2f((s[n][3] - m1) * c);
            l0 += s[n][0] + s[n][1], l1 += s[n][2] + s[n][3];
        }
        u32 p[TILE / 16][4];
#pragma unroll
        for (int k = 0; k < TILE / 16; k++) pack_a(p[k], s[2 * k], s[2 * k + 1]);
#if HAS_WGMMA
        wgmma_begin(o, p);
#pragma unroll
        for (int k = 0; k < TILE / 16; k++) wgmma_m64n128k16_trans_b(o, p[k], desc_mn_major(tile_address(values, k * 16, 0)));
        wgmma_finish(o, p);
#else
#pragma unroll
        for (int k = 0; k < TILE / 16; k++)
#pragma unroll
            for (int n = 0; n < K_STEPS; n++) {
                u32 b[4];
                load_b_trans(b, values, k * 16, n * 16);
                mma_m16n8k16(o[2 * n], p[k], b), mma_m16n8k16(o[2 * n + 1], p[k], b + 2);
            }
#endif
    }
    l0 = quad_sum(l0), l1 = quad_sum(l1);
    int row = first + warp * 16 + (lane >> 2);
#pragma unroll
    for (int half = 0; half < 2; half++, row += 8) {
        if (row >= item.num_queries) continue;
        float inv_l = 1.f / (half ? l1 : l0);
        size_t at = (size_t)(item.query_start + row) * heads + head;
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++) *(u32*)(out + at * HEAD_DIM + n * 8 + 2 * (lane & 3)) = pack_bf16(o[n][2 * half] * inv_l, o[n][2 * half + 1] * inv_l);
        if (logsumexp && (lane & 3) == 0) logsumexp[stat_index(item.query_start + row, head, heads)] = (half ? m1 : m0) * scale + logf(half ? l1 : l0);
    }
}

// Training: rows of `qk` are rotated queries and keys; rows of `qkv` end with values.
extern "C" __global__ void __launch_bounds__(128, 3) flash_attention(const bf16* qk, const bf16* qkv, const AttentionTile* items, int heads, int kv_heads, float scale, bf16* out, float* logsumexp) {
    AttentionTile item = items[blockIdx.x];
    int head = blockIdx.y, kv_head = head / (heads / kv_heads);
    size_t qk_stride = (size_t)(heads + kv_heads) * HEAD_DIM, qkv_stride = (size_t)(heads + 2 * kv_heads) * HEAD_DIM;
    KvSource kv_source = {qk + item.key_start * qk_stride + (size_t)(heads + kv_head) * HEAD_DIM, qkv + item.key_start * qkv_stride + (size_t)(heads + kv_heads + kv_head) * HEAD_DIM, qk_stride, qkv_stride, 0};
    attend_tile(item, head, heads, qk + (size_t)head * HEAD_DIM, qk_stride, kv_source, scale, out, logsumexp);
}

// Prefill: keys and values are in the KV cache.
extern "C" __global__ void __launch_bounds__(128, 3) paged_flash_attention(const bf16* qk, const bf16* kv_cache, const u32* tables, const AttentionTile* items, int heads, int kv_heads, float scale, bf16* out) {
    // Heads that share keys run close together, so that the keys are in the L2 cache.
    AttentionTile item = items[blockIdx.y];
    int head = blockIdx.x, kv_head = head / (heads / kv_heads);
    size_t block_stride = (size_t)2 * kv_heads * 16 * HEAD_DIM;
    const bf16* keys = kv_cache + (size_t)kv_head * 16 * HEAD_DIM;
    KvSource kv_source = {keys, keys + (size_t)kv_heads * 16 * HEAD_DIM, block_stride, block_stride, tables + item.key_start};
    attend_tile(item, head, heads, qk + (size_t)head * HEAD_DIM, (size_t)(heads + kv_heads) * HEAD_DIM, kv_source, scale, out, 0);
}

// Per row and head, the dot product of the output and its gradient. One warp each.
extern "C" __global__ void flash_attention_delta(const bf16* out, const bf16* dout, int count, int heads, float* delta) {
    int index = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (index >= count) return;
    float s = 0.f;
    for (int i = lane * 2; i < HEAD_DIM; i += 64) {
        u32 a = *(const u32*)(out + (size_t)index * HEAD_DIM + i), b = *(const u32*)(dout + (size_t)index * HEAD_DIM + i);
        s += bf16_lo(a) * bf16_lo(b) + bf16_hi(a) * bf16_hi(b);
    }
    s = warp_sum(s);
    if (lane == 0) delta[stat_index(index / heads, index % heads, heads)] = s;
}

// Gradients of keys and values: a CTA handles 64 keys of one KV head and loops over all queries that see them, of all
// query heads of the group. Scores are computed transposed, with keys as rows, so that no result passes through shared
// memory.
extern "C" __global__ void __launch_bounds__(128, 2) flash_attention_grad_kv(const bf16* qk, const bf16* qkv, const bf16* dout, const float* logsumexp, const float* delta, const AttentionTile* items, int heads, int kv_heads, float scale, bf16* dqk, bf16* dqkv) {
    u32 base = (u32)__cvta_generic_to_shared(shared_memory), keys = base, values = base + TILE_BYTES, stages = base + 2 * TILE_BYTES;
    float* stats = (float*)(shared_memory + 6 * TILE_BYTES); // per stage: logsumexp, then delta
    AttentionTile item = items[blockIdx.x];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, kv_head = blockIdx.y, group_size = heads / kv_heads;
    size_t qk_stride = (size_t)(heads + kv_heads) * HEAD_DIM, qkv_stride = (size_t)(heads + 2 * kv_heads) * HEAD_DIM, out_stride = (size_t)heads * HEAD_DIM;
    const bf16* q = qk + item.query_start * qk_stride;
    const bf16* d = dout + item.query_start * out_stride;
    load_tile(keys, qk + item.key_start * qk_stride + (size_t)(heads + kv_head) * HEAD_DIM, qk_stride, item.tile * TILE, item.num_keys);
    load_tile(values, qkv + item.key_start * qkv_stride + (size_t)(heads + kv_heads + kv_head) * HEAD_DIM, qkv_stride, item.tile * TILE, item.num_keys);
    int first = item.tile, tiles = (item.num_queries + TILE - 1) / TILE - first, total = tiles * group_size;
    auto load_query_tile = [&](int j) {
        int head = kv_head * group_size + j / tiles, tile = first + j % tiles;
        u32 to = stages + (j & 1) * 2 * TILE_BYTES;
        load_tile(to, q + (size_t)head * HEAD_DIM, qk_stride, tile * TILE, item.num_queries);
        load_tile(to + TILE_BYTES, d + (size_t)head * HEAD_DIM, out_stride, tile * TILE, item.num_queries);
        cp_async_commit();
        int row = tile * TILE + (threadIdx.x & 63);
        const float* from = threadIdx.x < 64 ? logsumexp : delta;
        float index = threadIdx.x < 64 ? LOG2E : 1.f;
        stats[(j & 1) * 2 * TILE + threadIdx.x] = row < item.num_queries ? from[stat_index(item.query_start + row, head, heads)] * index : 0.f;
    };
    load_query_tile(0);
    float dk[PADDED_HEAD_DIM / 8][4] = {}, dv[PADDED_HEAD_DIM / 8][4] = {};
    float c = scale * LOG2E;
    int key = item.tile * TILE + warp * 16 + (lane >> 2);
    for (int j = 0; j < total; j++) {
        cp_async_wait_all();
        __syncthreads();
        if (j + 1 < total) load_query_tile(j + 1);
        u32 queries = stages + (j & 1) * 2 * TILE_BYTES, dout_tile = queries + TILE_BYTES;
        const float* stage_stats = stats + (j & 1) * 2 * TILE;
        int start = (first + j % tiles) * TILE;
#pragma unroll 1
        for (int half = 0; half < TILE; half += 32) {
            float p[4][4] = {}, s[4][4] = {};
#pragma unroll
            for (int k = 0; k < K_STEPS; k++) {
                u32 a[4], b[4];
                load_a(a, keys, warp * 16, k * 16);
#pragma unroll
                for (int n = 0; n < 2; n++) {
                    load_b(b, queries, half + n * 16, k * 16);
                    mma_m16n8k16(p[2 * n], a, b), mma_m16n8k16(p[2 * n + 1], a, b + 2);
                }
                load_a(a, values, warp * 16, k * 16);
#pragma unroll
                for (int n = 0; n < 2; n++) {
                    load_b(b, dout_tile, half + n * 16, k * 16);
                    mma_m16n8k16(s[2 * n], a, b), mma_m16n8k16(s[2 * n + 1], a, b + 2);
                }
            }
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int column = half + n * 8 + 2 * (lane & 3) + (e & 1), query = start + column, row = key + (e >> 1) * 8;
                    bool visible = row <= query && query < item.num_queries && row < item.num_keys;
                    float x = visible ? exp2f(p[n][e] * c - stage_stats[column]) : 0.f;
                    p[n][e] = x;
                    s[n][e] = x * (s[n][e] - stage_stats[TILE + column]);
                }
            u32 a[2][4], e[2][4];
#pragma unroll
            for (int k = 0; k < 2; k++) pack_a(a[k], p[2 * k], p[2 * k + 1]), pack_a(e[k], s[2 * k], s[2 * k + 1]);
#pragma unroll
            for (int k = 0; k < 2; k++)
#pragma unroll
                for (int n = 0; n < K_STEPS; n++) {
                    u32 b[4];
                    load_b_trans(b, dout_tile, half + k * 16, n * 16);
                    mma_m16n8k16(dv[2 * n], a[k], b), mma_m16n8k16(dv[2 * n + 1], a[k], b + 2);
                    load_b_trans(b, queries, half + k * 16, n * 16);
                    mma_m16n8k16(dk[2 * n], e[k], b), mma_m16n8k16(dk[2 * n + 1], e[k], b + 2);
                }
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = key + half * 8;
        if (row >= item.num_keys) continue;
        bf16* to_k = dqk + (item.key_start + row) * qk_stride + (size_t)(heads + kv_head) * HEAD_DIM + 2 * (lane & 3);
        bf16* to_v = dqkv + (item.key_start + row) * qkv_stride + (size_t)(heads + kv_heads + kv_head) * HEAD_DIM + 2 * (lane & 3);
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++) {
            *(u32*)(to_k + n * 8) = pack_bf16(dk[n][2 * half] * scale, dk[n][2 * half + 1] * scale);
            *(u32*)(to_v + n * 8) = pack_bf16(dv[n][2 * half], dv[n][2 * half + 1]);
        }
    }
}

// Gradients of queries: a CTA handles 64 queries of one head and loops over the keys that they see.
extern "C" __global__ void __launch_bounds__(128, 2) flash_attention_grad_q(const bf16* qk, const bf16* qkv, const bf16* dout, const float* logsumexp, const float* delta, const AttentionTile* items, int heads, int kv_heads, float scale, bf16* dqk) {
    u32 base = (u32)__cvta_generic_to_shared(shared_memory);
    AttentionTile item = items[blockIdx.x];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, head = blockIdx.y, kv_head = head / (heads / kv_heads);
    size_t qk_stride = (size_t)(heads + kv_heads) * HEAD_DIM, qkv_stride = (size_t)(heads + 2 * kv_heads) * HEAD_DIM, out_stride = (size_t)heads * HEAD_DIM;
    KvSource kv_source = {qk + item.key_start * qk_stride + (size_t)(heads + kv_head) * HEAD_DIM, qkv + item.key_start * qkv_stride + (size_t)(heads + kv_heads + kv_head) * HEAD_DIM, qk_stride, qkv_stride, 0};
    int first = item.tile * TILE, key_end = min(item.num_queries, first + TILE), tiles = (key_end + TILE - 1) / TILE;
    load_tile(base + 2 * TILE_BYTES, qk + item.query_start * qk_stride + (size_t)head * HEAD_DIM, qk_stride, first, item.num_queries);
    load_tile(base + 3 * TILE_BYTES, dout + item.query_start * out_stride + (size_t)head * HEAD_DIM, out_stride, first, item.num_queries);
    load_kv_tile(base, base + TILE_BYTES, kv_source, 0, key_end);
    cp_async_wait_all();
    __syncthreads();
    u32 a[K_STEPS][4], d[K_STEPS][4];
#pragma unroll
    for (int k = 0; k < K_STEPS; k++) {
        load_a(a[k], base + 2 * TILE_BYTES, warp * 16, k * 16);
        load_a(d[k], base + 3 * TILE_BYTES, warp * 16, k * 16);
    }
    float dq[PADDED_HEAD_DIM / 8][4] = {}, c = scale * LOG2E, stats[2], deltas[2];
    int query = first + warp * 16 + (lane >> 2);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = query + half * 8;
        bool in_range = row < item.num_queries;
        size_t at = stat_index(item.query_start + row, head, heads);
        stats[half] = in_range ? logsumexp[at] * LOG2E : 0.f;
        deltas[half] = in_range ? delta[at] : 0.f;
    }
    for (int j = 0; j < tiles; j++) {
        u32 keys = base + (j & 1) * 2 * TILE_BYTES, values = keys + TILE_BYTES;
        cp_async_wait_all();
        __syncthreads();
        if (j + 1 < tiles) {
            u32 next = base + ((j + 1) & 1) * 2 * TILE_BYTES;
            load_kv_tile(next, next + TILE_BYTES, kv_source, (j + 1) * TILE, key_end);
        }
#pragma unroll 1
        for (int half = 0; half < TILE; half += 32) {
            float s[4][4] = {}, p[4][4] = {};
#pragma unroll
            for (int k = 0; k < K_STEPS; k++)
#pragma unroll
                for (int n = 0; n < 2; n++) {
                    u32 b[4];
                    load_b(b, keys, half + n * 16, k * 16);
                    mma_m16n8k16(p[2 * n], a[k], b), mma_m16n8k16(p[2 * n + 1], a[k], b + 2);
                    load_b(b, values, half + n * 16, k * 16);
                    mma_m16n8k16(s[2 * n], d[k], b), mma_m16n8k16(s[2 * n + 1], d[k], b + 2);
                }
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int key = j * TILE + half + n * 8 + 2 * (lane & 3) + (e & 1), row = query + (e >> 1) * 8;
                    float x = key <= row && row < item.num_queries ? exp2f(p[n][e] * c - stats[e >> 1]) : 0.f;
                    s[n][e] = x * (s[n][e] - deltas[e >> 1]);
                }
            u32 e[2][4];
#pragma unroll
            for (int k = 0; k < 2; k++) pack_a(e[k], s[2 * k], s[2 * k + 1]);
#pragma unroll
            for (int k = 0; k < 2; k++)
#pragma unroll
                for (int n = 0; n < K_STEPS; n++) {
                    u32 b[4];
                    load_b_trans(b, keys, half + k * 16, n * 16);
                    mma_m16n8k16(dq[2 * n], e[k], b), mma_m16n8k16(dq[2 * n + 1], e[k], b + 2);
                }
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = query + half * 8;
        if (row >= item.num_queries) continue;
        bf16* to = dqk + (item.query_start + row) * qk_stride + (size_t)head * HEAD_DIM + 2 * (lane & 3);
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++) *(u32*)(to + n * 8) = pack_bf16(dq[n][2 * half] * scale, dq[n][2 * half + 1] * scale);
    }
}
