// Paged decode attention: one new token of each of many sequences, over a KV cache of blocks.
//
// A work item is one sequence and KV head, or a split of its blocks if there are few sequences. Warps draw items from a
// global work counter. Each warp keeps some KV blocks in flight to its part of shared memory, including those of the
// next item, while it computes on one: the 16 keys of the block meet all query heads of the group on tensor cores, and
// so do the weights and values.
//
// Memory requests are served in order: a load that was not prefetched waits for all KV blocks in flight. Everything
// that an item needs at its start is therefore prefetched long before. A GPU with more than enough bytes in flight is
// slower than one with just enough: four warps per SM with 32 KiB each.

#define STAGES DECODE_STAGES // KV blocks in flight per warp
#define QUERY_TILES ((GROUP_SIZE + 7) / 8) // of eight query heads
#define PARTIAL_SIZE (GROUP_SIZE * (HEAD_DIM + 2))
#define TILE_KV_BYTES (16 * PADDED_HEAD_DIM * 2) // keys or values of a block
#define STAGE_BYTES (2 * TILE_KV_BYTES)

// Inputs that arrive with an item's first block.
struct StagedToken {
    __align__(16) bf16 rows[GROUP_SIZE + 2][PADDED_HEAD_DIM]; // queries, key and value of the new token: raw, then normalised and rotated
    __align__(16) float rope[PADDED_HEAD_DIM];
    __align__(16) u32 block; // the block that holds its slot
};

// A warp's shared memory besides its KV blocks.
struct WarpState {
    StagedToken tokens[STAGES];
    __align__(16) int2 queue[STAGES + 2]; // items started and not finished, with their positions; one spare entry
};
static_assert(STAGES * STAGE_BYTES + sizeof(WarpState) == DECODE_SHARED_BYTES, "shared memory of a warp differs from DECODE_SHARED_BYTES");

// Address of a 16-byte chunk of a row of a block.
__device__ __forceinline__ u32 block_chunk(u32 base, int row, int chunk) {
#if CHUNKS >= 8
    chunk ^= row & 7;
#elif CHUNKS == 4
    chunk ^= (row >> 1) & 3;
#else
    chunk ^= (row >> 2) & 1;
#endif
    return base + (row * CHUNKS + chunk) * 16;
}

__device__ __forceinline__ void st_shared(u32 to, uint4 x) { asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory"); }

// Transposes an 8 × 8 matrix of which each lane holds two elements of a row.
__device__ __forceinline__ u32 transpose_8x8(u32 x) {
    u32 y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

// Asynchronous copy of 16 bytes that are read once, so that they do not displace other data in the L2 cache.
__device__ __forceinline__ void cp_async_evict_first(u32 to, const void* src, bool valid, u64 policy) {
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(src), "r"(bytes), "l"(policy));
}
__device__ __forceinline__ void cp_async_u32(u32* to, const u32* src) { asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(src)); }

struct WorkItem {
    int sequence, kv_head, split, position, first, end;
};

// Normalises and rotates the new tokens' queries and keys, writes keys and values to their slots, and computes
// attention. `work_counter` counts items drawn and CTAs finished.
extern "C" __global__ void __launch_bounds__(256, 1) paged_decode_attention(const bf16* qkv, const bf16* w, float epsilon, const float* rope_table, bf16* kv_cache, const u32* inputs, int tables_offset, int table_offsets_at, int positions_offset, int heads, int kv_heads, float scale, bf16* out, float* partials, u32* split_counters, int rows, int splits, u32* work_counter) {
    launch_dependents();
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    int warps = blockDim.x >> 5;
    WarpState& state = ((WarpState*)(shared_memory + warps * STAGES * STAGE_BYTES))[warp];
    u32 base = (u32)__cvta_generic_to_shared(shared_memory) + warp * STAGES * STAGE_BYTES;
    size_t block_stride = (size_t)2 * kv_heads * 16 * HEAD_DIM, values_offset = (size_t)kv_heads * 16 * HEAD_DIM;
    int num_items = rows * kv_heads * splits, num_started = 0, num_finished = 0;
    auto work_item = [&](int i, int position) { // `position` keys are already in the KV cache
        int count = position / 16 + 1, blocks_per_split = (count + splits - 1) / splits, split = i % splits, first = split * blocks_per_split;
        return WorkItem{i / splits / kv_heads, i / splits % kv_heads, split, position, first, min(count, first + blocks_per_split)};
    };
    // The item whose blocks are being loaded, its next block, and that block's id.
    WorkItem loading;
    const u32* block_table;
    u32 block_id;
    int block, load_stage = 0, stage = 0;
    // The item drawn to follow it and, once prefetched, that item's position and block table.
    int next_index = 0;
    u32 position, table_offset;
    bool has_next = false;
    auto prefetch_item = [&](int i) {
        has_next = true, next_index = i;
        if (i < num_items) position = inputs[positions_offset + i / splits / kv_heads], table_offset = inputs[table_offsets_at + i / splits / kv_heads];
    };
    auto begin_item = [&]() {
        bool has_item = next_index < num_items;
        if (lane == 0) state.queue[num_started % (STAGES + 1)] = make_int2(has_item ? next_index : -1, position);
        num_started++;
        block = -1, has_next = false;
        if (!has_item) return;
        loading = work_item(next_index, position), block = loading.first, block_table = inputs + tables_offset + table_offset;
        if (block < loading.end) block_id = block_table[block];
        // Inline assembly, because the compiler would make every lane wait for the result of `atomicAdd`.
        if (lane == 0) asm volatile("atom.global.add.u32 %0, [%1], 1;" : "=r"(next_index) : "l"(work_counter) : "memory");
    };
    // A lane copies the same 16 bytes of every 512. The swizzles of its rows differ in a few bits only.
    constexpr int rows_per_pass = 32 / CHUNKS, passes = 16 / rows_per_pass;
    int first_row = lane / CHUNKS, chunk = lane % CHUNKS;
    u32 lane_chunk = block_chunk(0, first_row, chunk);
    size_t lane_offset = (size_t)first_row * HEAD_DIM + chunk * 8;
    bool lane_active = chunk * 8 < HEAD_DIM;
    auto stage_token = [&](const WorkItem& item, const u32* block_table, StagedToken& token) {
        const bf16* raw = qkv + (size_t)item.sequence * (heads + 2 * kv_heads) * HEAD_DIM + chunk * 8;
#pragma unroll
        for (int n = 0; n < GROUP_SIZE + 2; n += rows_per_pass) {
            int vector = n + first_row, row = vector < GROUP_SIZE ? item.kv_head * GROUP_SIZE + vector : heads + (vector - GROUP_SIZE) * kv_heads + item.kv_head;
            if (vector < GROUP_SIZE + 2 && lane_active) cp_async((u32)__cvta_generic_to_shared(token.rows[vector] + chunk * 8), raw + (size_t)row * HEAD_DIM, true);
        }
        if (lane * 4 < HEAD_DIM) cp_async((u32)__cvta_generic_to_shared(token.rope + lane * 4), rope_table + (size_t)item.position * HEAD_DIM + lane * 4, true);
        if (lane == 0) cp_async_u32(&token.block, block_table + (item.position >> 4));
    };
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    auto stage_block = [&](bool tokens) {
        if (block >= 0) {
            if (tokens && block == loading.first) stage_token(loading, block_table, state.tokens[(num_started - 1) % STAGES]);
            if (block < loading.end) {
                const bf16* at = kv_cache + block_id * block_stride + (size_t)loading.kv_head * 16 * HEAD_DIM + lane_offset;
                // Padding, and the new token's row, are zero-filled.
                int num_cached = lane_active ? loading.position - block * 16 : 0;
#pragma unroll
                for (int side = 0; side < 2; side++)
#pragma unroll
                    for (int n = 0; n < passes; n++) {
                        u32 to = base + load_stage * STAGE_BYTES + side * TILE_KV_BYTES + n * 512;
                        bool valid = first_row + n * rows_per_pass < num_cached;
                        const bf16* x = at + side * values_offset + n * rows_per_pass * HEAD_DIM;
                        cp_async_evict_first(to + (lane_chunk ^ (n * rows_per_pass % 8 * (CHUNKS >= 8) << 4)), valid ? x : kv_cache, valid, policy);
                    }
            }
            block++;
            bool finished = block >= loading.end;
            if (!has_next && (finished || block >= loading.first + 6)) prefetch_item(gridDim.x * warps + __shfl_sync(FULL_MASK, next_index, 0));
            if (finished) begin_item();
            else block_id = block_table[block];
        }
        cp_async_commit();
        load_stage = (load_stage + 1) % STAGES;
    };
    u32 key_chunk = block_chunk(0, lane & 15, lane >> 4), value_chunk = block_chunk(0, (lane & 7) + (lane >> 4 << 3), (lane >> 3) & 1);
    prefetch_item(warp * gridDim.x + blockIdx.x); // spreads few items over all CTAs
    begin_item();
    bool has_item = block >= 0;
    WorkItem first_item = loading;
    const u32* first_table = block_table;
    stage_block(false);
    // The previous kernel may still write `qkv`; what is read from the KV cache is older. The work counter may still
    // count for the previous layer. A warp that draws from it then gets no item, but some CTA starts only after that
    // layer's last CTA has finished and reset the counter.
    wait_for_dependencies();
    if (has_item) stage_token(first_item, first_table, state.tokens[0]);
    cp_async_commit();
    for (int i = 2; i < STAGES; i++) stage_block(true);
    float scale_log2 = scale * LOG2E;
    for (;;) {
        __syncwarp();
        int2 entry = state.queue[num_finished % (STAGES + 1)];
        if (entry.x < 0) break;
        WorkItem current = work_item(entry.x, entry.y);
        StagedToken& token = state.tokens[num_finished++ % STAGES];
        int last_block = current.position >> 4;
        u32 q[QUERY_TILES][K_STEPS][2];
        float o[QUERY_TILES][K_STEPS][4] = {}, m[QUERY_TILES][2], l[QUERY_TILES][2];
#pragma unroll
        for (int qt = 0; qt < QUERY_TILES; qt++) m[qt][0] = m[qt][1] = NEG_INF, l[qt][0] = l[qt][1] = 0.f;
        // An item without blocks still takes a stage.
        for (int i = current.first; i < current.end || i == current.first; i++) {
            stage_block(true);
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
            __syncwarp();
            u32 keys = base + stage * STAGE_BYTES, values = keys + TILE_KV_BYTES;
            stage = (stage + 1) % STAGES;
            if (i >= current.end) break;
            if (i == current.first) {
                // Interleaved: warp reductions have high latency and are independent of each other.
                float x[GROUP_SIZE + 1][PAIRS_PER_LANE][4], sums_of_squares[GROUP_SIZE + 1];
#pragma unroll
                for (int vector = 0; vector <= GROUP_SIZE; vector++) sums_of_squares[vector] = load_head(token.rows[vector], x[vector]);
#pragma unroll
                for (int offset = 16; offset; offset >>= 1)
#pragma unroll
                    for (int vector = 0; vector <= GROUP_SIZE; vector++) sums_of_squares[vector] += __shfl_xor_sync(FULL_MASK, sums_of_squares[vector], offset);
#pragma unroll
                for (int vector = 0; vector <= GROUP_SIZE; vector++) {
                    bf16* row = token.rows[vector];
                    norm_and_rotate(sums_of_squares[vector], vector < GROUP_SIZE ? w : w + HEAD_DIM, epsilon, token.rope, x[vector]);
#pragma unroll
                    for (int p = 0; p < PAIRS_PER_LANE; p++) {
                        int i = p * 64 + lane * 2;
                        if (i < HALF_DIM) *(u32*)(row + i) = pack_bf16(x[vector][p][0], x[vector][p][1]), *(u32*)(row + HALF_DIM + i) = pack_bf16(x[vector][p][2], x[vector][p][3]);
                    }
                }
                __syncwarp();
#pragma unroll
                for (int qt = 0; qt < QUERY_TILES; qt++)
#pragma unroll
                    for (int j = 0; j < K_STEPS; j++)
#pragma unroll
                        for (int h = 0; h < 2; h++) {
                            int query = qt * 8 + g, i = j * 16 + h * 8 + 2 * t;
                            q[qt][j][h] = query < GROUP_SIZE && i < HEAD_DIM ? *(const u32*)(token.rows[query] + i) : 0;
                        }
            }
            int valid = min(current.position + 1 - i * 16, 16);
            if (i == last_block) {
                int side = lane >> 4, part = lane & 15, row = current.position & 15;
                if (part * 8 < HEAD_DIM) {
                    uint4 x = *(const uint4*)(token.rows[GROUP_SIZE + side] + part * 8);
                    st_shared(block_chunk(side ? values : keys, row, part), x);
                    *(uint4*)(kv_cache + token.block * block_stride + side * values_offset + ((size_t)current.kv_head * 16 + row) * HEAD_DIM + part * 8) = x;
                }
                __syncwarp();
            }
            // Rows are keys, columns are queries. Even and odd steps accumulate separately to shorten the dependency
            // chain.
            float s[QUERY_TILES][4] = {}, odd[QUERY_TILES][4] = {};
#pragma unroll
            for (int j = 0; j < K_STEPS; j++) {
                u32 a[4];
                ldmatrix_x4(a, keys + (key_chunk ^ (j << 5)));
#pragma unroll
                for (int qt = 0; qt < QUERY_TILES; qt++) mma_m16n8k16(j & 1 ? odd[qt] : s[qt], a, q[qt][j]);
            }
            u32 weights[QUERY_TILES][2];
#pragma unroll
            for (int qt = 0; qt < QUERY_TILES; qt++) {
                float f[2];
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    float x[2], max_score = m[qt][h];
#pragma unroll
                    for (int k = 0; k < 2; k++) {
                        int c = h + 2 * k;
                        x[k] = g + 8 * k < valid ? (s[qt][c] + odd[qt][c]) * scale_log2 : NEG_INF;
                        max_score = fmaxf(max_score, x[k]);
                    }
#pragma unroll
                    for (int offset = 4; offset < 32; offset <<= 1) max_score = fmaxf(max_score, __shfl_xor_sync(FULL_MASK, max_score, offset));
                    f[h] = exp2f(m[qt][h] - max_score), m[qt][h] = max_score, l[qt][h] *= f[h];
#pragma unroll
                    for (int k = 0; k < 2; k++) s[qt][h + 2 * k] = x[k] = exp2f(x[k] - max_score), l[qt][h] += x[k];
                }
                if (__any_sync(FULL_MASK, f[0] != 1.f || f[1] != 1.f))
#pragma unroll
                    for (int j = 0; j < K_STEPS; j++) o[qt][j][0] *= f[0], o[qt][j][1] *= f[1], o[qt][j][2] *= f[0], o[qt][j][3] *= f[1];
#pragma unroll
                for (int k = 0; k < 2; k++) weights[qt][k] = transpose_8x8(pack_bf16(s[qt][2 * k], s[qt][2 * k + 1]));
            }
            // Rows are the value's elements, columns are queries.
#pragma unroll
            for (int j = 0; j < K_STEPS; j++) {
                u32 a[4];
                ldmatrix_x4_trans(a, values + (value_chunk ^ (j << 5)));
#pragma unroll
                for (int qt = 0; qt < QUERY_TILES; qt++) mma_m16n8k16(o[qt][j], a, weights[qt]);
            }
            __syncwarp(); // all lanes have read the stage before it is overwritten
        }
        // With several splits of a sequence, the last warp to finish combines them.
        size_t output_index = (size_t)current.sequence * kv_heads + current.kv_head;
#pragma unroll
        for (int qt = 0; qt < QUERY_TILES; qt++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
#pragma unroll
                for (int offset = 4; offset < 32; offset <<= 1) l[qt][h] += __shfl_xor_sync(FULL_MASK, l[qt][h], offset);
                int query = qt * 8 + 2 * t + h;
                if (query >= GROUP_SIZE) continue;
                float* part = partials + (output_index * splits + current.split) * PARTIAL_SIZE + query * (HEAD_DIM + 2);
                float f = 1.f / l[qt][h];
#pragma unroll
                for (int j = 0; j < K_STEPS; j++)
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        int i = j * 16 + half * 8 + g;
                        if (i >= HEAD_DIM) continue;
                        if (splits == 1) token.rows[query][i] = to_bf16(o[qt][j][2 * half + h] * f);
                        else part[i] = o[qt][j][2 * half + h];
                    }
                if (splits > 1 && g == 0) part[HEAD_DIM] = m[qt][h], part[HEAD_DIM + 1] = l[qt][h];
            }
        __syncwarp();
        if (splits == 1) {
            for (int query = first_row; query < GROUP_SIZE; query += rows_per_pass)
                if (lane_active) *(uint4*)(out + ((size_t)current.sequence * heads + current.kv_head * GROUP_SIZE + query) * HEAD_DIM + chunk * 8) = *(const uint4*)(token.rows[query] + chunk * 8);
            continue;
        }
        __threadfence();
        __syncwarp();
        u32 finished_splits = lane == 0 ? atomicAdd(split_counters + output_index, 1) : 0;
        if (__shfl_sync(FULL_MASK, finished_splits, 0) != splits - 1) continue;
        __threadfence();
        if (lane == 0) split_counters[output_index] = 0;
        for (int i = lane; i < GROUP_SIZE * HEAD_DIM; i += 32) {
            int query = i / HEAD_DIM, at = i % HEAD_DIM;
            const volatile float* part = partials + output_index * splits * PARTIAL_SIZE + query * (HEAD_DIM + 2);
            float max_score = NEG_INF, sum = 0.f, total = 0.f;
            for (int k = 0; k < splits; k++) max_score = fmaxf(max_score, part[(size_t)k * PARTIAL_SIZE + HEAD_DIM]);
            for (int k = 0; k < splits; k++) {
                float other = part[(size_t)k * PARTIAL_SIZE + HEAD_DIM], f = other == NEG_INF ? 0.f : exp2f(other - max_score);
                sum += f * part[(size_t)k * PARTIAL_SIZE + at], total += f * part[(size_t)k * PARTIAL_SIZE + HEAD_DIM + 1];
            }
            out[((size_t)current.sequence * heads + current.kv_head * GROUP_SIZE + query) * HEAD_DIM + at] = to_bf16(sum / total);
        }
    }
    // The last CTA resets the counters.
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(work_counter + 1, 1) == gridDim.x - 1) work_counter[0] = work_counter[1] = 0;
}

// Copies whole KV blocks of one layer, one copy after the other. A thread copies the same 16 bytes of every block.
extern "C" __global__ void copy_blocks(uint4* kv_cache, const u32* copies, int count, int chunks_per_block, u64 chunks_per_layer) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= chunks_per_block) return;
    uint4* layer = kv_cache + blockIdx.y * chunks_per_layer;
    for (int c = 0; c < count; c++) layer[(size_t)copies[2 * c + 1] * chunks_per_block + i] = layer[(size_t)copies[2 * c] * chunks_per_block + i];
}
