// Causal attention of many sequences without padding, scores never leaving the registers. A block of four warps has 64
// queries (or keys) of one head; a warp has 16.

#define STEPS (WIDTH / 16)

extern __shared__ __align__(1024) unsigned char shared[];

// A block's work for each head: `tile` of a sequence whose queries start at row `query` and number `queries`; its keys start at row
// `key`, or its pages are listed from there, and number `keys`. Query i sees the first keys - queries + i + 1 keys.
struct Item {
    int query, queries, key, keys, tile;
};

// Where a number of a row and head is, of log-sums and deltas: rows start at multiples of 16 bytes.
__device__ __forceinline__ size_t number_at(int row, int head, int heads) { return (size_t)row * ((heads + 3) & ~3) + head; }

// Rows `first..first + TILE` of one head to shared memory; those from `count` on are zeros.
__device__ __forceinline__ void fetch_rows(u32 to, const bf16* from, size_t stride, int first, int count) {
    for (int i = threadIdx.x; i < TILE * PIECES; i += 128) {
        int row = i / PIECES, piece = i % PIECES, at = first + row;
        bool there = at < count && piece * 8 < HD;
        fetch(place(to, row, piece), from + (there ? at * stride : 0) + piece * 8, there);
    }
}

// The same from pages: `pages` is at the keys or values of the head in page 0.
__device__ __forceinline__ void fetch_paged(u32 to, const bf16* pages, size_t page_stride, const u32* table, int first, int count) {
    for (int i = threadIdx.x; i < TILE * PIECES; i += 128) {
        int row = i / PIECES, piece = i % PIECES, at = first + row;
        bool there = at < count && piece * 8 < HD;
        const bf16* from = pages + (there ? table[at >> 4] * page_stride + (at & 15) * HD : 0) + piece * 8;
        fetch(place(to, row, piece), from, there);
    }
}

// Keys and values of one head, and where they come from.
struct Source {
    const bf16 *keys, *values;
    size_t key_stride, value_stride;
    const u32* table; // pages where there are any
};

__device__ __forceinline__ void fetch_both(u32 keys, u32 values, const Source& s, int first, int count) {
    if (s.table) {
        fetch_paged(keys, s.keys, s.key_stride, s.table, first, count);
        fetch_paged(values, s.values, s.value_stride, s.table, first, count);
    } else {
        fetch_rows(keys, s.keys, s.key_stride, first, count);
        fetch_rows(values, s.values, s.value_stride, first, count);
    }
    fetched();
}

__device__ __forceinline__ void attend(const Item item, int head, int heads, const bf16* q, size_t q_stride, const Source& source, float scale, bf16* out, float* log_sums) {
    u32 base = (u32)__cvta_generic_to_shared(shared);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int first = item.tile * TILE, ahead = item.keys - item.queries;
    int most = min(item.queries, first + TILE) + ahead;
    // Queries go through the space of the second tile of keys into registers.
    u32 a[STEPS][4];
    fetch_rows(base + 2 * TILE_BYTES, q + (size_t)item.query * q_stride, q_stride, first, item.queries);
    fetch_both(base, base + TILE_BYTES, source, 0, most);
    arrived();
    __syncthreads();
#pragma unroll
    for (int k = 0; k < STEPS; k++) left(a[k], base + 2 * TILE_BYTES, warp * 16, k * 16);
    float o[WIDTH / 8][4] = {}, m0 = NEVER, m1 = NEVER, l0 = 0.f, l1 = 0.f;
    float c = scale * LOG2E;
    int limit = first + warp * 16 + (lane >> 2) + ahead; // the last key that the first of this thread's two rows sees
    int tiles = (most + TILE - 1) / TILE;
    for (int j = 0; j < tiles; j++) {
        u32 keys = base + (j & 1) * 2 * TILE_BYTES, values = keys + TILE_BYTES;
        arrived();
        __syncthreads();
        if (j + 1 < tiles) {
            u32 next = base + ((j + 1) & 1) * 2 * TILE_BYTES;
            fetch_both(next, next + TILE_BYTES, source, (j + 1) * TILE, most);
        }
        float s[TILE / 8][4] = {};
#if TENSOR_READS
        begin(s, a);
#pragma unroll
        for (int k = 0; k < STEPS; k++) multiply_64<true>(s, a[k], by_rows(corner(keys, 0, k * 16)));
        finish(s, a);
#else
#pragma unroll
        for (int k = 0; k < STEPS; k++)
#pragma unroll
            for (int n = 0; n < TILE / 16; n++) {
                u32 b[4];
                right(b, keys, n * 16, k * 16);
                multiply(s[2 * n], a[k], b), multiply(s[2 * n + 1], a[k], b + 2);
            }
#endif
        if ((j + 1) * TILE > first + warp * 16 + ahead + 1) {
#pragma unroll
            for (int n = 0; n < TILE / 8; n++) {
                int column = j * TILE + n * 8 + 2 * (lane & 3);
                if (column > limit) s[n][0] = NEVER;
                if (column + 1 > limit) s[n][1] = NEVER;
                if (column > limit + 8) s[n][2] = NEVER;
                if (column + 1 > limit + 8) s[n][3] = NEVER;
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
        for (int n = 0; n < WIDTH / 8; n++) o[n][0] *= f0, o[n][1] *= f0, o[n][2] *= f1, o[n][3] *= f1;
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
            s[n][0] = exp2f((s[n][0] - m0) * c), s[n][1] = exp2f((s[n][1] - m0) * c);
            s[n][2] = exp2f((s[n][2] - m1) * c), s[n][3] = exp2f((s[n][3] - m1) * c);
            l0 += s[n][0] + s[n][1], l1 += s[n][2] + s[n][3];
        }
        u32 p[TILE / 16][4];
#pragma unroll
        for (int k = 0; k < TILE / 16; k++) as_left(p[k], s[2 * k], s[2 * k + 1]);
#if TENSOR_READS
        begin(o, p);
#pragma unroll
        for (int k = 0; k < TILE / 16; k++) multiply_128_turned(o, p[k], by_columns(corner(values, k * 16, 0)));
        finish(o, p);
#else
#pragma unroll
        for (int k = 0; k < TILE / 16; k++)
#pragma unroll
            for (int n = 0; n < STEPS; n++) {
                u32 b[4];
                right_turned(b, values, k * 16, n * 16);
                multiply(o[2 * n], p[k], b), multiply(o[2 * n + 1], p[k], b + 2);
            }
#endif
    }
    l0 = quad_sum(l0), l1 = quad_sum(l1);
    int row = first + warp * 16 + (lane >> 2);
#pragma unroll
    for (int half = 0; half < 2; half++, row += 8) {
        if (row >= item.queries) continue;
        float inverse = 1.f / (half ? l1 : l0);
        size_t at = (size_t)(item.query + row) * heads + head;
#pragma unroll
        for (int n = 0; n < HD / 8; n++) *(u32*)(out + at * HD + n * 8 + 2 * (lane & 3)) = pair(o[n][2 * half] * inverse, o[n][2 * half + 1] * inverse);
        if (log_sums && (lane & 3) == 0) log_sums[number_at(item.query + row, head, heads)] = (half ? m1 : m0) * scale + logf(half ? l1 : l0);
    }
}

// Training: rows of `qk` are turned queries and keys, rows of `qkv` end with values.
extern "C" __global__ void __launch_bounds__(128, 3) attention(const bf16* qk, const bf16* qkv, const Item* items, int heads, int kv, float scale, bf16* out, float* log_sums) {
    Item item = items[blockIdx.x];
    int head = blockIdx.y, group = head / (heads / kv);
    size_t qk_stride = (size_t)(heads + kv) * HD, qkv_stride = (size_t)(heads + 2 * kv) * HD;
    Source source = {qk + item.key * qk_stride + (size_t)(heads + group) * HD, qkv + item.key * qkv_stride + (size_t)(heads + kv + group) * HD, qk_stride, qkv_stride, 0};
    attend(item, head, heads, qk + (size_t)head * HD, qk_stride, source, scale, out, log_sums);
}

// Reading: keys and values lie in pages.
extern "C" __global__ void __launch_bounds__(128, 3) paged_attention(const bf16* qk, const bf16* pages, const u32* tables, const Item* items, int heads, int kv, float scale, bf16* out) {
    // Heads that share keys are neighbours in time, so that the second finds them in the cache.
    Item item = items[blockIdx.y];
    int head = blockIdx.x, group = head / (heads / kv);
    size_t page_stride = (size_t)2 * kv * 16 * HD;
    const bf16* keys = pages + (size_t)group * 16 * HD;
    Source source = {keys, keys + (size_t)kv * 16 * HD, page_stride, page_stride, tables + item.key};
    attend(item, head, heads, qk + (size_t)head * HD, (size_t)(heads + kv) * HD, source, scale, out, 0);
}

// Per row and head, how the output bears on its own gradient. A warp each.
extern "C" __global__ void attention_delta(const bf16* out, const bf16* dout, int units, int heads, float* delta) {
    int unit = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (unit >= units) return;
    float s = 0.f;
    for (int i = lane * 2; i < HD; i += 64) {
        u32 a = *(const u32*)(out + (size_t)unit * HD + i), b = *(const u32*)(dout + (size_t)unit * HD + i);
        s += low(a) * low(b) + high(a) * high(b);
    }
    s = warp_sum(s);
    if (lane == 0) delta[number_at(unit / heads, unit % heads, heads)] = s;
}

// Keys' and values' gradients: a block has 64 keys of one head and goes over all queries that see them, of all query heads
// that share it. Scores are computed the other way round, keys as rows, so that no result passes through shared memory.
extern "C" __global__ void __launch_bounds__(128, 2) attention_grad_keys(const bf16* qk, const bf16* qkv, const bf16* dout, const float* log_sums, const float* delta, const Item* items, int heads, int kv, float scale, bf16* dqk, bf16* dqkv) {
    u32 base = (u32)__cvta_generic_to_shared(shared), keys = base, values = base + TILE_BYTES, stages = base + 2 * TILE_BYTES;
    float* sums = (float*)(shared + 6 * TILE_BYTES); // per stage: log-sums, then deltas
    Item item = items[blockIdx.x];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, group = blockIdx.y, share = heads / kv;
    size_t qk_stride = (size_t)(heads + kv) * HD, qkv_stride = (size_t)(heads + 2 * kv) * HD, out_stride = (size_t)heads * HD;
    const bf16* q = qk + item.query * qk_stride;
    const bf16* d = dout + item.query * out_stride;
    fetch_rows(keys, qk + item.key * qk_stride + (size_t)(heads + group) * HD, qk_stride, item.tile * TILE, item.keys);
    fetch_rows(values, qkv + item.key * qkv_stride + (size_t)(heads + kv + group) * HD, qkv_stride, item.tile * TILE, item.keys);
    int first = item.tile, tiles = (item.queries + TILE - 1) / TILE - first, all = tiles * share;
    auto prepare = [&](int j) {
        int head = group * share + j / tiles, tile = first + j % tiles;
        u32 to = stages + (j & 1) * 2 * TILE_BYTES;
        fetch_rows(to, q + (size_t)head * HD, qk_stride, tile * TILE, item.queries);
        fetch_rows(to + TILE_BYTES, d + (size_t)head * HD, out_stride, tile * TILE, item.queries);
        fetched();
        int row = tile * TILE + (threadIdx.x & 63);
        const float* from = threadIdx.x < 64 ? log_sums : delta;
        float unit = threadIdx.x < 64 ? LOG2E : 1.f;
        sums[(j & 1) * 2 * TILE + threadIdx.x] = row < item.queries ? from[number_at(item.query + row, head, heads)] * unit : 0.f;
    };
    prepare(0);
    float dk[WIDTH / 8][4] = {}, dv[WIDTH / 8][4] = {};
    float c = scale * LOG2E;
    int key = item.tile * TILE + warp * 16 + (lane >> 2);
    for (int j = 0; j < all; j++) {
        arrived();
        __syncthreads();
        if (j + 1 < all) prepare(j + 1);
        u32 queries = stages + (j & 1) * 2 * TILE_BYTES, slopes = queries + TILE_BYTES;
        const float* now = sums + (j & 1) * 2 * TILE;
        int start = (first + j % tiles) * TILE;
#pragma unroll 1
        for (int half = 0; half < TILE; half += 32) {
            float p[4][4] = {}, s[4][4] = {};
#pragma unroll
            for (int k = 0; k < STEPS; k++) {
                u32 a[4], b[4];
                left(a, keys, warp * 16, k * 16);
#pragma unroll
                for (int n = 0; n < 2; n++) {
                    right(b, queries, half + n * 16, k * 16);
                    multiply(p[2 * n], a, b), multiply(p[2 * n + 1], a, b + 2);
                }
                left(a, values, warp * 16, k * 16);
#pragma unroll
                for (int n = 0; n < 2; n++) {
                    right(b, slopes, half + n * 16, k * 16);
                    multiply(s[2 * n], a, b), multiply(s[2 * n + 1], a, b + 2);
                }
            }
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int column = half + n * 8 + 2 * (lane & 3) + (e & 1), query = start + column, row = key + (e >> 1) * 8;
                    bool seen = row <= query && query < item.queries && row < item.keys;
                    float x = seen ? exp2f(p[n][e] * c - now[column]) : 0.f;
                    p[n][e] = x;
                    s[n][e] = x * (s[n][e] - now[TILE + column]);
                }
            u32 a[2][4], e[2][4];
#pragma unroll
            for (int k = 0; k < 2; k++) as_left(a[k], p[2 * k], p[2 * k + 1]), as_left(e[k], s[2 * k], s[2 * k + 1]);
#pragma unroll
            for (int k = 0; k < 2; k++)
#pragma unroll
                for (int n = 0; n < STEPS; n++) {
                    u32 b[4];
                    right_turned(b, slopes, half + k * 16, n * 16);
                    multiply(dv[2 * n], a[k], b), multiply(dv[2 * n + 1], a[k], b + 2);
                    right_turned(b, queries, half + k * 16, n * 16);
                    multiply(dk[2 * n], e[k], b), multiply(dk[2 * n + 1], e[k], b + 2);
                }
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = key + half * 8;
        if (row >= item.keys) continue;
        bf16* to_k = dqk + (item.key + row) * qk_stride + (size_t)(heads + group) * HD + 2 * (lane & 3);
        bf16* to_v = dqkv + (item.key + row) * qkv_stride + (size_t)(heads + kv + group) * HD + 2 * (lane & 3);
#pragma unroll
        for (int n = 0; n < HD / 8; n++) {
            *(u32*)(to_k + n * 8) = pair(dk[n][2 * half] * scale, dk[n][2 * half + 1] * scale);
            *(u32*)(to_v + n * 8) = pair(dv[n][2 * half], dv[n][2 * half + 1]);
        }
    }
}

// Queries' gradients: a block has 64 queries of one head and goes over the keys they see.
extern "C" __global__ void __launch_bounds__(128, 2) attention_grad_queries(const bf16* qk, const bf16* qkv, const bf16* dout, const float* log_sums, const float* delta, const Item* items, int heads, int kv, float scale, bf16* dqk) {
    u32 base = (u32)__cvta_generic_to_shared(shared);
    Item item = items[blockIdx.x];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, head = blockIdx.y, group = head / (heads / kv);
    size_t qk_stride = (size_t)(heads + kv) * HD, qkv_stride = (size_t)(heads + 2 * kv) * HD, out_stride = (size_t)heads * HD;
    Source source = {qk + item.key * qk_stride + (size_t)(heads + group) * HD, qkv + item.key * qkv_stride + (size_t)(heads + kv + group) * HD, qk_stride, qkv_stride, 0};
    int first = item.tile * TILE, most = min(item.queries, first + TILE), tiles = (most + TILE - 1) / TILE;
    fetch_rows(base + 2 * TILE_BYTES, qk + item.query * qk_stride + (size_t)head * HD, qk_stride, first, item.queries);
    fetch_rows(base + 3 * TILE_BYTES, dout + item.query * out_stride + (size_t)head * HD, out_stride, first, item.queries);
    fetch_both(base, base + TILE_BYTES, source, 0, most);
    arrived();
    __syncthreads();
    u32 a[STEPS][4], d[STEPS][4];
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        left(a[k], base + 2 * TILE_BYTES, warp * 16, k * 16);
        left(d[k], base + 3 * TILE_BYTES, warp * 16, k * 16);
    }
    float dq[WIDTH / 8][4] = {}, c = scale * LOG2E, sums[2], deltas[2];
    int query = first + warp * 16 + (lane >> 2);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = query + half * 8;
        bool there = row < item.queries;
        size_t at = number_at(item.query + row, head, heads);
        sums[half] = there ? log_sums[at] * LOG2E : 0.f;
        deltas[half] = there ? delta[at] : 0.f;
    }
    for (int j = 0; j < tiles; j++) {
        u32 keys = base + (j & 1) * 2 * TILE_BYTES, values = keys + TILE_BYTES;
        arrived();
        __syncthreads();
        if (j + 1 < tiles) {
            u32 next = base + ((j + 1) & 1) * 2 * TILE_BYTES;
            fetch_both(next, next + TILE_BYTES, source, (j + 1) * TILE, most);
        }
#pragma unroll 1
        for (int half = 0; half < TILE; half += 32) {
            float s[4][4] = {}, p[4][4] = {};
#pragma unroll
            for (int k = 0; k < STEPS; k++)
#pragma unroll
                for (int n = 0; n < 2; n++) {
                    u32 b[4];
                    right(b, keys, half + n * 16, k * 16);
                    multiply(p[2 * n], a[k], b), multiply(p[2 * n + 1], a[k], b + 2);
                    right(b, values, half + n * 16, k * 16);
                    multiply(s[2 * n], d[k], b), multiply(s[2 * n + 1], d[k], b + 2);
                }
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int key = j * TILE + half + n * 8 + 2 * (lane & 3) + (e & 1), row = query + (e >> 1) * 8;
                    float x = key <= row && row < item.queries ? exp2f(p[n][e] * c - sums[e >> 1]) : 0.f;
                    s[n][e] = x * (s[n][e] - deltas[e >> 1]);
                }
            u32 e[2][4];
#pragma unroll
            for (int k = 0; k < 2; k++) as_left(e[k], s[2 * k], s[2 * k + 1]);
#pragma unroll
            for (int k = 0; k < 2; k++)
#pragma unroll
                for (int n = 0; n < STEPS; n++) {
                    u32 b[4];
                    right_turned(b, keys, half + k * 16, n * 16);
                    multiply(dq[2 * n], e[k], b), multiply(dq[2 * n + 1], e[k], b + 2);
                }
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = query + half * 8;
        if (row >= item.queries) continue;
        bf16* to = dqk + (item.query + row) * qk_stride + (size_t)head * HD + 2 * (lane & 3);
#pragma unroll
        for (int n = 0; n < HD / 8; n++) *(u32*)(to + n * 8) = pair(dq[n][2 * half] * scale, dq[n][2 * half + 1] * scale);
    }
}
