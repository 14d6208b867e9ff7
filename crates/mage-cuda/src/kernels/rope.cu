// Norms of heads, and their turning by position. A warp per head; a lane has neighbouring pairs of numbers of the first
// half and those half a head further. `turns` holds, per position, HD / 2 cosines and as many sines.

#define HALF (HD / 2)
// Pairs per lane, and how many lanes have any.
#define PAIRS ((HALF + 63) / 64)

// A head's numbers as a lane has them: neighbours i and i + 1 of the first half, then of the second. Says what their squares
// add up to.
__device__ __forceinline__ float taken(const bf16* x, float to[PAIRS][4]) {
    int lane = threadIdx.x & 31;
    float s = 0.f;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        int i = p * 64 + lane * 2;
        if (i >= HALF) continue;
        u32 one = *(const u32*)(x + i), two = *(const u32*)(x + HALF + i);
        to[p][0] = low(one), to[p][1] = high(one), to[p][2] = low(two), to[p][3] = high(two);
#pragma unroll
        for (int j = 0; j < 4; j++) s += to[p][j] * to[p][j];
    }
    return s;
}

// The same, given the squares' sum over the warp, normed and turned. Says what 1 / rms was.
__device__ __forceinline__ float normed_and_turned(float squares, const bf16* g, float epsilon, const float* turn, float to[PAIRS][4]) {
    int lane = threadIdx.x & 31;
    float inv = rsqrtf(squares / HD + epsilon);
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        int i = p * 64 + lane * 2;
        if (i >= HALF) continue;
        u32 g1 = *(const u32*)(g + i), g2 = *(const u32*)(g + HALF + i);
        float x0 = to[p][0] * inv * low(g1), x1 = to[p][1] * inv * high(g1);
        float y0 = to[p][2] * inv * low(g2), y1 = to[p][3] * inv * high(g2);
        float c0 = turn[i], c1 = turn[i + 1], s0 = turn[HALF + i], s1 = turn[HALF + i + 1];
        to[p][0] = x0 * c0 - y0 * s0, to[p][1] = x1 * c1 - y1 * s1;
        to[p][2] = y0 * c0 + x0 * s0, to[p][3] = y1 * c1 + x1 * s1;
    }
    return inv;
}

__device__ __forceinline__ float turned(const bf16* x, const bf16* g, float epsilon, const float* turn, float to[PAIRS][4]) {
    float squares = taken(x, to);
    return normed_and_turned(warp_sum(squares), g, epsilon, turn, to);
}

// Queries and keys from raw ones. With pages, keys and values go to each row's cell there; else keys go beside queries.
extern "C" __global__ void head_norm_rope(const bf16* qkv, const bf16* w, float epsilon, const float* turns, const u32* positions, int heads, int kv, bf16* qk, float* inverse, const u32* cells, bf16* pages) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row = blockIdx.x;
    int head = blockIdx.y * (blockDim.x >> 5) + warp;
    if (head >= heads + (pages ? 2 * kv : kv)) return;
    const bf16* x = qkv + ((size_t)row * (heads + 2 * kv) + head) * HD;
    bf16* y = qk + ((size_t)row * (heads + kv) + head) * HD;
    if (pages && head >= heads) {
        // A page holds the keys of all its heads, then the values: 16 tokens each.
        int which = (head - heads) / kv, h = (head - heads) % kv;
        u32 cell = cells[row];
        y = pages + ((((size_t)(cell >> 4) * 2 + which) * kv + h) * 16 + (cell & 15)) * HD;
        if (which) {
            for (int i = lane * 2; i < HD; i += 64) *(u32*)(y + i) = *(const u32*)(x + i);
            return;
        }
    }
    const bf16* g = head < heads ? w : w + HD;
    float v[PAIRS][4];
    float inv = turned(x, g, epsilon, turns + (size_t)positions[row] * HD, v);
    if (lane == 0 && inverse) inverse[(size_t)row * (heads + kv) + head] = inv;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        int i = p * 64 + lane * 2;
        if (i >= HALF) continue;
        *(u32*)(y + i) = pair(v[p][0], v[p][1]);
        *(u32*)(y + HALF + i) = pair(v[p][2], v[p][3]);
    }
}

// The way back: from the gradient by turned queries and keys to that by raw ones. A block goes over many rows and leaves
// its share of the weights' gradient (queries', then keys') in `partial`, where that is wanted.
extern "C" __global__ void head_norm_rope_grad(const bf16* dqk, const bf16* qkv, const bf16* w, const float* turns, const u32* positions, const float* inverse, int rows, int heads, int kv, bf16* dqkv, float* partial) {
    __shared__ float sums[2 * HD];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = blockDim.x >> 5, all = heads + kv;
    float dw[2][PAIRS][4] = {};
    for (int unit = blockIdx.x * warps + warp; unit < rows * all; unit += gridDim.x * warps) {
        int row = unit / all, head = unit % all;
        const bf16 *d = dqk + ((size_t)row * all + head) * HD, *x = qkv + ((size_t)row * (all + kv) + head) * HD;
        bf16* to = dqkv + ((size_t)row * (all + kv) + head) * HD;
        const bf16* g = head < heads ? w : w + HD;
        const float* turn = turns + (size_t)positions[row] * HD;
        float inv = inverse[(size_t)row * all + head], n[PAIRS][4], v[PAIRS][4], gw[PAIRS][4], s = 0.f;
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            int i = p * 64 + lane * 2;
            if (i >= HALF) continue;
            u32 d1 = *(const u32*)(d + i), d2 = *(const u32*)(d + HALF + i);
            u32 x1 = *(const u32*)(x + i), x2 = *(const u32*)(x + HALF + i);
            u32 g1 = *(const u32*)(g + i), g2 = *(const u32*)(g + HALF + i);
            float c0 = turn[i], c1 = turn[i + 1], s0 = turn[HALF + i], s1 = turn[HALF + i + 1];
            n[p][0] = low(d1) * c0 + low(d2) * s0, n[p][1] = high(d1) * c1 + high(d2) * s1;
            n[p][2] = low(d2) * c0 - low(d1) * s0, n[p][3] = high(d2) * c1 - high(d1) * s1;
            v[p][0] = low(x1), v[p][1] = high(x1), v[p][2] = low(x2), v[p][3] = high(x2);
            gw[p][0] = low(g1), gw[p][1] = high(g1), gw[p][2] = low(g2), gw[p][3] = high(g2);
#pragma unroll
            for (int j = 0; j < 4; j++) s += n[p][j] * gw[p][j] * v[p][j];
        }
        float k = warp_sum(s) * inv * inv * inv / HD;
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            int i = p * 64 + lane * 2;
            if (i >= HALF) continue;
            float o[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                o[j] = inv * n[p][j] * gw[p][j] - v[p][j] * k;
                if (head < heads) dw[0][p][j] += n[p][j] * v[p][j] * inv;
                else dw[1][p][j] += n[p][j] * v[p][j] * inv;
            }
            *(u32*)(to + i) = pair(o[0], o[1]), *(u32*)(to + HALF + i) = pair(o[2], o[3]);
        }
    }
    if (!partial) return;
    for (int i = threadIdx.x; i < 2 * HD; i += blockDim.x) sums[i] = 0.f;
    // Warps one after the other, so that the order of the sum is always the same.
    for (int turn = 0; turn < warps; turn++) {
        __syncthreads();
        if (turn != warp) continue;
#pragma unroll
        for (int which = 0; which < 2; which++)
#pragma unroll
            for (int p = 0; p < PAIRS; p++) {
                int i = p * 64 + lane * 2;
                if (i >= HALF) continue;
                float* to = sums + which * HD;
                to[i] += dw[which][p][0], to[i + 1] += dw[which][p][1];
                to[HALF + i] += dw[which][p][2], to[HALF + i + 1] += dw[which][p][3];
            }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * HD; i += blockDim.x) partial[(size_t)blockIdx.x * 2 * HD + i] = sums[i];
}
