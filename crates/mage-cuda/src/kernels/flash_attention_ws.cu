// Warp-specialised causal flash attention and its gradient, with wgmma and TMA.
//
// A CTA has two consumer warp groups, each with 64 queries (or keys) of one head. Both process the same tiles, which a
// producer warp group loads once for the two: while one consumer computes exponentials, the tensor cores run the
// other's products. CTAs are persistent and process one work item after the other; the first tiles of the next item are
// loaded while the current one is processed.

#if HAS_WGMMA

constexpr int CONSUMERS = 2;
constexpr int PIPELINE_STAGES = 2; // pairs of streamed tiles in flight
constexpr int RESIDENT_STAGES = 2;  // items whose resident tiles are loaded
constexpr int TILE_PAIR_BYTES = 2 * TILE_BYTES;

// One statistic for each row of a tile and of three neighbouring heads: TMA loads at least 16 bytes of a row.
constexpr int STATS_BYTES = TILE * 4 * 4;

// mbarriers of the pipeline: whether its stages, and the resident tiles of items, are full or empty.
struct PipelineBarriers {
    u64 full[PIPELINE_STAGES], empty[PIPELINE_STAGES], resident_full[RESIDENT_STAGES], resident_empty[RESIDENT_STAGES];
};

// Shared memory: the pipeline stages; a pair of resident tiles per item and consumer; two statistics per pipeline
// stage.
constexpr int RESIDENT_OFFSET = PIPELINE_STAGES * TILE_PAIR_BYTES;
constexpr int STATS_OFFSET = RESIDENT_OFFSET + RESIDENT_STAGES * CONSUMERS * TILE_PAIR_BYTES;
constexpr int BARRIERS_OFFSET = STATS_OFFSET + PIPELINE_STAGES * 2 * STATS_BYTES;
static_assert(BARRIERS_OFFSET + sizeof(PipelineBarriers) <= WS_SHARED_BYTES, "shared memory exceeds WS_SHARED_BYTES");

struct WarpGroup {
    int index = threadIdx.x >> 7, warp = (threadIdx.x >> 5) & 3, lane = threadIdx.x & 31;
};

// A stage: its tiles, its barriers, and how often it was filled before.
struct Stage {
    u32 tiles, full, empty;
    int round;
    // Called by all lanes of the producer warp, so that no lane runs ahead.
    __device__ __forceinline__ void wait_until_empty() const {
        __syncwarp();
        if (round > 0) mbarrier_wait(empty, (round - 1) & 1);
    }
    // Every warp of both consumers waits for every fill and releases it, even if it does not use it: a phase bit only
    // distinguishes rounds for a warp that is at most one round behind.
    __device__ __forceinline__ void wait_until_full() const { mbarrier_wait(full, round & 1); }
    __device__ __forceinline__ void release() const {
        __syncwarp();
        if ((threadIdx.x & 31) == 0) mbarrier_arrive(empty);
    }
};

// The pipeline stage of the given fill.
__device__ __forceinline__ Stage pipeline_stage(int fill) {
    u32 base = (u32)__cvta_generic_to_shared(shared_memory), full = base + BARRIERS_OFFSET + fill % PIPELINE_STAGES * 8;
    return {base + fill % PIPELINE_STAGES * TILE_PAIR_BYTES, full, full + PIPELINE_STAGES * 8, fill / PIPELINE_STAGES};
}
// The resident stage of the given item.
__device__ __forceinline__ Stage resident_stage(int index) {
    u32 base = (u32)__cvta_generic_to_shared(shared_memory), full = base + BARRIERS_OFFSET + (2 * PIPELINE_STAGES + index % RESIDENT_STAGES) * 8;
    return {base + RESIDENT_OFFSET + index % RESIDENT_STAGES * CONSUMERS * TILE_PAIR_BYTES, full, full + RESIDENT_STAGES * 8, index / RESIDENT_STAGES};
}

__device__ __forceinline__ void init_barriers() {
    PipelineBarriers& barriers = *(PipelineBarriers*)(shared_memory + BARRIERS_OFFSET);
    if (threadIdx.x == 0) {
        auto init = [](u64& barrier, int arrivals) { mbarrier_init((u32)__cvta_generic_to_shared(&barrier), arrivals); };
        for (int i = 0; i < PIPELINE_STAGES; i++) init(barriers.full[i], 1), init(barriers.empty[i], CONSUMERS * 4);
        for (int i = 0; i < RESIDENT_STAGES; i++) init(barriers.resident_full[i], 1), init(barriers.resident_empty[i], CONSUMERS * 4);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
}

// Persistent tile scheduler: the items of a CTA, each an attention tile and a head. Every warp reads them one ahead to
// hide the latency.
struct TileScheduler {
    const AttentionTile* items;
    int count, heads, round = -1;
    u32 prefetched; // lane i holds field i of the next tile

    __device__ __forceinline__ TileScheduler(const AttentionTile* items, int count, int heads) : items(items), count(count), heads(heads) { prefetch(); }
    // The longest items come first. Rounds alternate in direction, so that all CTAs get about the same amount of work.
    static __device__ __forceinline__ int work_index(int round) { return round * gridDim.x + (round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x); }
    __device__ __forceinline__ void prefetch() {
        int index = work_index(round + 1), lane = threadIdx.x & 31;
        if (index < count && lane < (int)(sizeof(AttentionTile) / 4)) prefetched = ((const u32*)(items + index / heads))[lane];
    }
    __device__ __forceinline__ bool next_tile(AttentionTile& item, int& head) {
        int index = work_index(++round);
        if (index >= count) return false;
        auto field = [&](int i) { return (int)__shfl_sync(FULL_MASK, prefetched, i); };
        item = {field(0), field(1), field(2), field(3), field(4)}, head = index % heads;
        prefetch();
        return true;
    }
};

// The producer gives its registers to the consumers.
__device__ __forceinline__ void release_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 24;"); }
__device__ __forceinline__ void claim_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 240;"); }

// Loads a tile of one head from a row on, in panels. Padding of the head dimension is zero-filled.
__device__ __forceinline__ void tma_load_tile(u32 to, const TensorMap* map, int head, int row, u32 barrier) {
#pragma unroll
    for (int panel = 0; panel < PADDED_HEAD_DIM / 64; panel++)
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to + panel * PANEL_BYTES), "l"(map), "r"(panel * 64), "r"(head), "r"(row), "r"(barrier) : "memory");
}
// Loads the statistics of a head and its neighbours for the rows of a tile: TMA requires 16-byte alignment.
__device__ __forceinline__ void tma_load_stats(u32 to, const TensorMap* map, int head, int row, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(map), "r"(head & ~3), "r"(row), "r"(barrier) : "memory");
}

// c = a · bᵀ, where a is a tile or registers and b is a tile.
__device__ __forceinline__ void multiply_a_bt(float (*c)[4], u32 a, u32 b) {
    wgmma_m64n64k16<false>(c, desc_k_major(tile_address(a, 0, 0)), desc_k_major(tile_address(b, 0, 0)));
#pragma unroll
    for (int k = 1; k < K_STEPS; k++) wgmma_m64n64k16<true>(c, desc_k_major(tile_address(a, 0, k * 16)), desc_k_major(tile_address(b, 0, k * 16)));
}
__device__ __forceinline__ void multiply_a_bt(float (*c)[4], const u32 (*a)[4], u32 b) {
    wgmma_m64n64k16<false>(c, a[0], desc_k_major(tile_address(b, 0, 0)));
#pragma unroll
    for (int k = 1; k < K_STEPS; k++) wgmma_m64n64k16<true>(c, a[k], desc_k_major(tile_address(b, 0, k * 16)));
}
// c += a · b, where b is a tile.
__device__ __forceinline__ void accumulate_a_b(float (*c)[4], const u32 (*a)[4], u32 b) {
#pragma unroll
    for (int k = 0; k < TILE / 16; k++) wgmma_m64n128k16_trans_b(c, a[k], desc_mn_major(tile_address(b, k * 16, 0)));
}
__device__ __forceinline__ void pack_a_tiles(u32 (*a)[4], const float (*c)[4]) {
#pragma unroll
    for (int k = 0; k < TILE / 16; k++) pack_a(a[k], c[2 * k], c[2 * k + 1]);
}

__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Number of key tiles that the queries of an item see.
__device__ __forceinline__ int num_key_tiles(int queries, int cta_start) { return (min(queries, cta_start + CONSUMERS * TILE) + TILE - 1) / TILE; }

// Producer for items of queries: loads the queries (with `WITH_DOUT`, also the gradient of the output), then streams
// keys and values. Rows after the end of a sequence belong to another sequence or are zeros. They do not affect valid
// queries, since all values are finite; otherwise the loss of the whole batch is not finite either.
template <bool WITH_DOUT>
__device__ __forceinline__ void produce_for_queries(TileScheduler scheduler, const TensorMap* qk, const TensorMap* qkv, const TensorMap* dout, int kv_heads) {
    int t = 0, head, lane = threadIdx.x & 31, heads = scheduler.heads;
    for (AttentionTile item; scheduler.next_tile(item, head);) {
        Stage resident = resident_stage(scheduler.round);
        int kv_head = head / (heads / kv_heads), cta_start = item.tile * CONSUMERS * TILE, tiles = num_key_tiles(item.num_queries, cta_start);
        resident.wait_until_empty();
        if (lane == 0) {
            mbarrier_expect_tx(resident.full, CONSUMERS * (WITH_DOUT ? TILE_PAIR_BYTES : TILE_BYTES));
            for (int i = 0; i < CONSUMERS; i++) {
                tma_load_tile(resident.tiles + i * TILE_PAIR_BYTES, qk, head, item.query_start + cta_start + i * TILE, resident.full);
                if (WITH_DOUT) tma_load_tile(resident.tiles + i * TILE_PAIR_BYTES + TILE_BYTES, dout, head, item.query_start + cta_start + i * TILE, resident.full);
            }
        }
        for (int j = 0; j < tiles; j++, t++) {
            Stage stage = pipeline_stage(t);
            stage.wait_until_empty();
            if (lane == 0) {
                mbarrier_expect_tx(stage.full, TILE_PAIR_BYTES);
                tma_load_tile(stage.tiles, qk, heads + kv_head, item.key_start + j * TILE, stage.full);
                tma_load_tile(stage.tiles + TILE_BYTES, qkv, heads + kv_heads + kv_head, item.key_start + j * TILE, stage.full);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(384, 1) flash_attention_ws(const __grid_constant__ TensorMap qk, const __grid_constant__ TensorMap qkv, const AttentionTile* items, int count, int heads, int kv_heads, float scale, bf16* out, float* logsumexp) {
    init_barriers();
    WarpGroup warp_group;
    TileScheduler scheduler(items, count, heads);
    if (warp_group.index == CONSUMERS) {
        release_registers();
        if (warp_group.warp == 0) produce_for_queries<false>(scheduler, &qk, &qkv, 0, kv_heads);
        return;
    }
    claim_registers();
    float c = scale * LOG2E;
    int t = 0, head;
    for (AttentionTile item; scheduler.next_tile(item, head);) {
        Stage resident = resident_stage(scheduler.round);
        resident.wait_until_full();
        int query = item.query_start, queries = item.num_queries, cta_start = item.tile * CONSUMERS * TILE, first = cta_start + warp_group.index * TILE;
        u32 a[K_STEPS][4], p[TILE / 16][4];
#pragma unroll
        for (int k = 0; k < K_STEPS; k++) load_a(a[k], resident.tiles + warp_group.index * TILE_PAIR_BYTES, warp_group.warp * 16, k * 16);
        resident.release();
        float o[PADDED_HEAD_DIM / 8][4] = {}, m0 = NEG_INF, m1 = NEG_INF, l0 = 0.f, l1 = 0.f;
        int row = first + warp_group.warp * 16 + (warp_group.lane >> 2), tiles = num_key_tiles(queries, cta_start);
        for (int j = 0; j < tiles; j++, t++) {
            Stage stage = pipeline_stage(t);
            u32 keys = stage.tiles, values = keys + TILE_BYTES;
            stage.wait_until_full();
            if (j * TILE <= first && first < queries) {
                float s[TILE / 8][4];
                wgmma_fence();
                multiply_a_bt(s, a, keys);
                wgmma_commit();
                wgmma_wait<0>();
                pin_registers(s);
                if (j * TILE == first) {
#pragma unroll
                    for (int n = 0; n < TILE / 8; n++) {
                        int column = j * TILE + n * 8 + 2 * (warp_group.lane & 3);
                        if (column > row) s[n][0] = NEG_INF;
                        if (column + 1 > row) s[n][1] = NEG_INF;
                        if (column > row + 8) s[n][2] = NEG_INF;
                        if (column + 1 > row + 8) s[n][3] = NEG_INF;
                    }
                }
                float n0 = m0, n1 = m1;
#pragma unroll
                for (int n = 0; n < TILE / 8; n++) n0 = fmaxf(n0, fmaxf(s[n][0], s[n][1])), n1 = fmaxf(n1, fmaxf(s[n][2], s[n][3]));
                n0 = quad_max(n0), n1 = quad_max(n1);
                float f0 = exp2_approx((m0 - n0) * c), f1 = exp2_approx((m1 - n1) * c), c0 = n0 * c, c1 = n1 * c;
                m0 = n0, m1 = n1;
                l0 *= f0, l1 *= f1;
                // The maximum seldom changes after the first tiles.
                if (__any_sync(FULL_MASK, f0 != 1.f || f1 != 1.f)) {
#pragma unroll
                    for (int n = 0; n < PADDED_HEAD_DIM / 8; n++) o[n][0] *= f0, o[n][1] *= f0, o[n][2] *= f1, o[n][3] *= f1;
                }
#pragma unroll
                for (int n = 0; n < TILE / 8; n++) {
                    s[n][0] = exp2_approx(fmaf(s[n][0], c, -c0)), s[n][1] = exp2_approx(fmaf(s[n][1], c, -c0));
                    s[n][2] = exp2_approx(fmaf(s[n][2], c, -c1)), s[n][3] = exp2_approx(fmaf(s[n][3], c, -c1));
                    l0 += s[n][0] + s[n][1], l1 += s[n][2] + s[n][3];
                }
                pack_a_tiles(p, s);
                wgmma_begin(o, p);
                accumulate_a_b(o, p, values);
                wgmma_commit();
                wgmma_wait<0>();
                pin_registers(o);
            }
            stage.release();
        }
        l0 = quad_sum(l0), l1 = quad_sum(l1);
#pragma unroll
        for (int half = 0; half < 2; half++, row += 8) {
            if (row >= queries) continue;
            float inv_l = 1.f / (half ? l1 : l0);
            size_t at = (size_t)(query + row) * heads + head;
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 8; n++) *(u32*)(out + at * HEAD_DIM + n * 8 + 2 * (warp_group.lane & 3)) = pack_bf16(o[n][2 * half] * inv_l, o[n][2 * half + 1] * inv_l);
            if ((warp_group.lane & 3) == 0) logsumexp[stat_index(query + row, head, heads)] = (half ? m1 : m0) * scale + logf(half ? l1 : l0);
        }
    }
}

// Producer for items of keys: loads the keys and values, then streams all queries that see them, of each head of the
// group, with the gradient of the output, logsumexp and delta of each query.
__device__ __forceinline__ void produce_for_keys(TileScheduler scheduler, const TensorMap* qk, const TensorMap* qkv, const TensorMap* dout, const TensorMap* logsumexp, const TensorMap* deltas, int heads) {
    int t = 0, kv_head, lane = threadIdx.x & 31, kv_heads = scheduler.heads, group_size = heads / kv_heads;
    u32 stats = (u32)__cvta_generic_to_shared(shared_memory) + STATS_OFFSET;
    for (AttentionTile item; scheduler.next_tile(item, kv_head);) {
        Stage resident = resident_stage(scheduler.round);
        int cta_start = item.tile * CONSUMERS * TILE;
        resident.wait_until_empty();
        if (lane == 0) {
            mbarrier_expect_tx(resident.full, CONSUMERS * TILE_PAIR_BYTES);
            for (int i = 0; i < CONSUMERS; i++) {
                tma_load_tile(resident.tiles + i * TILE_PAIR_BYTES, qk, heads + kv_head, item.key_start + cta_start + i * TILE, resident.full);
                tma_load_tile(resident.tiles + i * TILE_PAIR_BYTES + TILE_BYTES, qkv, heads + kv_heads + kv_head, item.key_start + cta_start + i * TILE, resident.full);
            }
        }
        for (int head = kv_head * group_size; head < (kv_head + 1) * group_size; head++)
            for (int start = cta_start; start < item.num_queries; start += TILE, t++) {
                Stage stage = pipeline_stage(t);
                stage.wait_until_empty();
                if (lane == 0) {
                    u32 to = stats + t % PIPELINE_STAGES * 2 * STATS_BYTES;
                    mbarrier_expect_tx(stage.full, TILE_PAIR_BYTES + 2 * STATS_BYTES);
                    tma_load_tile(stage.tiles, qk, head, item.query_start + start, stage.full);
                    tma_load_stats(to, logsumexp, head, item.query_start + start, stage.full);
                    tma_load_tile(stage.tiles + TILE_BYTES, dout, head, item.query_start + start, stage.full);
                    tma_load_stats(to + STATS_BYTES, deltas, head, item.query_start + start, stage.full);
                }
            }
    }
}

// Gradients of keys and values. Scores have keys as rows, so that no result passes through shared memory.
extern "C" __global__ void __launch_bounds__(384, 1) flash_attention_ws_grad_kv(const __grid_constant__ TensorMap qk, const __grid_constant__ TensorMap qkv, const __grid_constant__ TensorMap dout, const __grid_constant__ TensorMap logsumexp, const __grid_constant__ TensorMap delta, const AttentionTile* items, int count, int heads, int kv_heads, float scale, bf16* dqk, bf16* dqkv) {
    init_barriers();
    WarpGroup warp_group;
    TileScheduler scheduler(items, count, kv_heads);
    if (warp_group.index == CONSUMERS) {
        release_registers();
        if (warp_group.warp == 0) produce_for_keys(scheduler, &qk, &qkv, &dout, &logsumexp, &delta, heads);
        return;
    }
    claim_registers();
    float c = scale * LOG2E;
    int t = 0, group_size = heads / kv_heads, kv_head;
    for (AttentionTile item; scheduler.next_tile(item, kv_head);) {
        Stage resident = resident_stage(scheduler.round);
        resident.wait_until_full();
        int end = item.num_queries, cta_start = item.tile * CONSUMERS * TILE, first = cta_start + warp_group.index * TILE, key = first + warp_group.warp * 16 + (warp_group.lane >> 2);
        u32 keys = resident.tiles + warp_group.index * TILE_PAIR_BYTES, values = keys + TILE_BYTES, a[TILE / 16][4], e[TILE / 16][4];
        float dk[PADDED_HEAD_DIM / 8][4] = {}, dv[PADDED_HEAD_DIM / 8][4] = {};
        for (int head = kv_head * group_size; head < (kv_head + 1) * group_size; head++)
            for (int start = cta_start; start < end; start += TILE, t++) {
                Stage stage = pipeline_stage(t);
                u32 queries = stage.tiles, dout_tile = queries + TILE_BYTES;
                stage.wait_until_full();
                if (start >= first && first < end) {
                    float p[TILE / 8][4], s[TILE / 8][4];
                    wgmma_fence();
                    multiply_a_bt(p, keys, queries);
                    wgmma_commit();
                    multiply_a_bt(s, values, dout_tile);
                    wgmma_commit();
                    // For this head and this thread's first column.
                    const float* lse = (const float*)(shared_memory + STATS_OFFSET + t % PIPELINE_STAGES * 2 * STATS_BYTES) + 2 * (warp_group.lane & 3) * 4 + (head & 3);
                    const float* deltas = lse + STATS_BYTES / 4;
                    wgmma_wait<1>();
                    pin_registers(p);
#pragma unroll
                    for (int n = 0; n < TILE / 8; n++) {
                        float s0 = lse[n * 8 * 4] * LOG2E, s1 = lse[(n * 8 + 1) * 4] * LOG2E;
                        p[n][0] = exp2_approx(fmaf(p[n][0], c, -s0)), p[n][1] = exp2_approx(fmaf(p[n][1], c, -s1));
                        p[n][2] = exp2_approx(fmaf(p[n][2], c, -s0)), p[n][3] = exp2_approx(fmaf(p[n][3], c, -s1));
                    }
                    // Queries after the end of the sequence belong to another one.
                    if (start == first || start + TILE > end) {
#pragma unroll
                        for (int n = 0; n < TILE / 8; n++) {
                            int query = start + n * 8 + 2 * (warp_group.lane & 3);
                            if (key > query || query >= end) p[n][0] = 0.f;
                            if (key > query + 1 || query + 1 >= end) p[n][1] = 0.f;
                            if (key + 8 > query || query >= end) p[n][2] = 0.f;
                            if (key + 8 > query + 1 || query + 1 >= end) p[n][3] = 0.f;
                        }
                    }
                    pack_a_tiles(a, p);
                    wgmma_begin(dv, a);
                    accumulate_a_b(dv, a, dout_tile);
                    wgmma_commit();
                    wgmma_wait<1>();
                    pin_registers(s);
#pragma unroll
                    for (int n = 0; n < TILE / 8; n++) {
                        float d0 = deltas[n * 8 * 4], d1 = deltas[(n * 8 + 1) * 4];
                        s[n][0] = p[n][0] * (s[n][0] - d0), s[n][1] = p[n][1] * (s[n][1] - d1);
                        s[n][2] = p[n][2] * (s[n][2] - d0), s[n][3] = p[n][3] * (s[n][3] - d1);
                    }
                    pack_a_tiles(e, s);
                    wgmma_begin(dk, e);
                    accumulate_a_b(dk, e, queries);
                    wgmma_commit();
                    wgmma_wait<0>();
                    pin_registers(dk), pin_registers(dv);
                }
                stage.release();
            }
        resident.release();
        size_t qk_stride = (size_t)(heads + kv_heads) * HEAD_DIM, qkv_stride = (size_t)(heads + 2 * kv_heads) * HEAD_DIM;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = key + half * 8;
            if (row >= end) continue;
            bf16* to_k = dqk + (item.key_start + row) * qk_stride + (size_t)(heads + kv_head) * HEAD_DIM + 2 * (warp_group.lane & 3);
            bf16* to_v = dqkv + (item.key_start + row) * qkv_stride + (size_t)(heads + kv_heads + kv_head) * HEAD_DIM + 2 * (warp_group.lane & 3);
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 8; n++) {
                *(u32*)(to_k + n * 8) = pack_bf16(dk[n][2 * half] * scale, dk[n][2 * half + 1] * scale);
                *(u32*)(to_v + n * 8) = pack_bf16(dv[n][2 * half], dv[n][2 * half + 1]);
            }
        }
    }
}

// Gradients of queries.
extern "C" __global__ void __launch_bounds__(384, 1) flash_attention_ws_grad_q(const __grid_constant__ TensorMap qk, const __grid_constant__ TensorMap qkv, const __grid_constant__ TensorMap dout, const float* logsumexp, const float* delta, const AttentionTile* items, int count, int heads, int kv_heads, float scale, bf16* dqk) {
    init_barriers();
    WarpGroup warp_group;
    TileScheduler scheduler(items, count, heads);
    if (warp_group.index == CONSUMERS) {
        release_registers();
        if (warp_group.warp == 0) produce_for_queries<true>(scheduler, &qk, &qkv, &dout, kv_heads);
        return;
    }
    claim_registers();
    float c = scale * LOG2E;
    int t = 0, head;
    for (AttentionTile item; scheduler.next_tile(item, head);) {
        Stage resident = resident_stage(scheduler.round);
        resident.wait_until_full();
        int from = item.query_start, queries = item.num_queries, cta_start = item.tile * CONSUMERS * TILE, first = cta_start + warp_group.index * TILE;
        float dq[PADDED_HEAD_DIM / 8][4] = {}, lse[2], deltas[2];
        int query = first + warp_group.warp * 16 + (warp_group.lane >> 2), tiles = num_key_tiles(queries, cta_start);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = query + half * 8;
            bool in_range = row < queries;
            size_t at = stat_index(from + row, head, heads);
            lse[half] = in_range ? logsumexp[at] * LOG2E : 0.f;
            deltas[half] = in_range ? delta[at] : 0.f;
        }
        u32 a[K_STEPS][4], d[K_STEPS][4], e[TILE / 16][4], own_tiles = resident.tiles + warp_group.index * TILE_PAIR_BYTES;
#pragma unroll
        for (int k = 0; k < K_STEPS; k++) load_a(a[k], own_tiles, warp_group.warp * 16, k * 16), load_a(d[k], own_tiles + TILE_BYTES, warp_group.warp * 16, k * 16);
        resident.release();
        for (int j = 0; j < tiles; j++, t++) {
            Stage stage = pipeline_stage(t);
            u32 keys = stage.tiles, values = keys + TILE_BYTES;
            stage.wait_until_full();
            if (j * TILE <= first && first < queries) {
                float p[TILE / 8][4], s[TILE / 8][4];
                wgmma_fence();
                multiply_a_bt(p, a, keys);
                wgmma_commit();
                multiply_a_bt(s, d, values);
                wgmma_commit();
                wgmma_wait<1>();
                pin_registers(p);
#pragma unroll
                for (int n = 0; n < TILE / 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) p[n][i] = exp2_approx(fmaf(p[n][i], c, -lse[i >> 1]));
                if (j * TILE == first) {
#pragma unroll
                    for (int n = 0; n < TILE / 8; n++)
#pragma unroll
                        for (int i = 0; i < 4; i++)
                            if (j * TILE + n * 8 + 2 * (warp_group.lane & 3) + (i & 1) > query + (i >> 1) * 8) p[n][i] = 0.f;
                }
                wgmma_wait<0>();
                pin_registers(s);
#pragma unroll
                for (int n = 0; n < TILE / 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) s[n][i] = p[n][i] * (s[n][i] - deltas[i >> 1]);
                pack_a_tiles(e, s);
                wgmma_begin(dq, e);
                accumulate_a_b(dq, e, keys);
                wgmma_commit();
                wgmma_wait<0>();
                pin_registers(dq);
            }
            stage.release();
        }
        size_t qk_stride = (size_t)(heads + kv_heads) * HEAD_DIM;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = query + half * 8;
            if (row >= queries) continue;
            bf16* to = dqk + (from + row) * qk_stride + (size_t)head * HEAD_DIM + 2 * (warp_group.lane & 3);
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 8; n++) *(u32*)(to + n * 8) = pack_bf16(dq[n][2 * half] * scale, dq[n][2 * half + 1] * scale);
        }
    }
}
#endif
