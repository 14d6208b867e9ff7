// RMSNorm of heads and rotary position embedding (RoPE). One warp per head; a lane holds pairs of neighbouring elements
// of the first half and the pairs half a head further. `rope_table` holds HEAD_DIM / 2 cosines and as many sines per
// position.

#define HALF_DIM (HEAD_DIM / 2)
// Pairs per lane. Lanes beyond HALF_DIM are idle.
#define PAIRS_PER_LANE ((HALF_DIM + 63) / 64)

// Loads the lane's elements of a head: i and i + 1 of the first half, then of the second. Returns their sum of squares.
__device__ __forceinline__ float load_head(const bf16* x, float to[PAIRS_PER_LANE][4]) {
    int lane = threadIdx.x & 31;
    float s = 0.f;
#pragma unroll
    for (int p = 0; p < PAIRS_PER_LANE; p++) {
        int i = p * 64 + lane * 2;
        if (i >= HALF_DIM) continue;
        u32 lower = *(const u32*)(x + i), upper = *(const u32*)(x + HALF_DIM + i);
        to[p][0] = bf16_lo(lower), to[p][1] = bf16_hi(lower), to[p][2] = bf16_lo(upper), to[p][3] = bf16_hi(upper);
#pragma unroll
        for (int j = 0; j < 4; j++) s += to[p][j] * to[p][j];
    }
    return s;
}

// Normalises and rotates a loaded head, given the sum of squares over the warp. Returns 1 / rms.
__device__ __forceinline__ float norm_and_rotate(float sum_of_squares, const bf16* gamma, float epsilon, const float* rope, float to[PAIRS_PER_LANE][4]) {
    int lane = threadIdx.x & 31;
    float rstd = rsqrtf(sum_of_squares / HEAD_DIM + epsilon);
#pragma unroll
    for (int p = 0; p < PAIRS_PER_LANE; p++) {
        int i = p * 64 + lane * 2;
        if (i >= HALF_DIM) continue;
        u32 g1 = *(const u32*)(gamma + i), g2 = *(const u32*)(gamma + HALF_DIM + i);
        float x0 = to[p][0] * rstd * bf16_lo(g1), x1 = to[p][1] * rstd * bf16_hi(g1);
        float y0 = to[p][2] * rstd * bf16_lo(g2), y1 = to[p][3] * rstd * bf16_hi(g2);
        float c0 = rope[i], c1 = rope[i + 1], s0 = rope[HALF_DIM + i], s1 = rope[HALF_DIM + i + 1];
        to[p][0] = x0 * c0 - y0 * s0, to[p][1] = x1 * c1 - y1 * s1;
        to[p][2] = y0 * c0 + x0 * s0, to[p][3] = y1 * c1 + x1 * s1;
    }
    return rstd;
}

__device__ __forceinline__ float load_norm_rotate(const bf16* x, const bf16* gamma, float epsilon, const float* rope, float to[PAIRS_PER_LANE][4]) {
    float sum_of_squares = load_head(x, to);
    return norm_and_rotate(warp_sum(sum_of_squares), gamma, epsilon, rope, to);
}

// Normalises and rotates queries and keys. With a KV cache, keys and values are written to each token's slot there;
// otherwise keys are written next to the queries.
extern "C" __global__ void head_norm_rope(const bf16* qkv, const bf16* w, float epsilon, const float* rope_table, const u32* positions, int heads, int kv_heads, bf16* qk, float* rstds, const u32* slots, bf16* kv_cache) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row = blockIdx.x;
    int head = blockIdx.y * (blockDim.x >> 5) + warp;
    if (head >= heads + (kv_cache ? 2 * kv_heads : kv_heads)) return;
    const bf16* x = qkv + ((size_t)row * (heads + 2 * kv_heads) + head) * HEAD_DIM;
    bf16* y = qk + ((size_t)row * (heads + kv_heads) + head) * HEAD_DIM;
    if (kv_cache && head >= heads) {
        // A KV block holds the keys of all its heads, then the values: 16 tokens each.
        int is_value = (head - heads) / kv_heads, h = (head - heads) % kv_heads;
        u32 slot = slots[row];
        y = kv_cache + ((((size_t)(slot >> 4) * 2 + is_value) * kv_heads + h) * 16 + (slot & 15)) * HEAD_DIM;
        if (is_value) {
            for (int i = lane * 2; i < HEAD_DIM; i += 64) *(u32*)(y + i) = *(const u32*)(x + i);
            return;
        }
    }
    const bf16* gamma = head < heads ? w : w + HEAD_DIM;
    float v[PAIRS_PER_LANE][4];
    float rstd = load_norm_rotate(x, gamma, epsilon, rope_table + (size_t)positions[row] * HEAD_DIM, v);
    if (lane == 0 && rstds) rstds[(size_t)row * (heads + kv_heads) + head] = rstd;
#pragma unroll
    for (int p = 0; p < PAIRS_PER_LANE; p++) {
        int i = p * 64 + lane * 2;
        if (i >= HALF_DIM) continue;
        *(u32*)(y + i) = pack_bf16(v[p][0], v[p][1]);
        *(u32*)(y + HALF_DIM + i) = pack_bf16(v[p][2], v[p][3]);
    }
}

// Backward: from the gradient of rotated queries and keys to that of raw ones. A CTA processes many rows and writes its
// partial sum of the weight gradient (queries', then keys') to `partial_dgamma`, unless that is null.
extern "C" __global__ void head_norm_rope_grad(const bf16* dqk, const bf16* qkv, const bf16* w, const float* rope_table, const u32* positions, const float* rstds, int rows, int heads, int kv_heads, bf16* dqkv, float* partial_dgamma) {
    __shared__ float sums[2 * HEAD_DIM];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = blockDim.x >> 5, qk_heads = heads + kv_heads;
    float dw[2][PAIRS_PER_LANE][4] = {};
    for (int index = blockIdx.x * warps + warp; index < rows * qk_heads; index += gridDim.x * warps) {
        int row = index / qk_heads, head = index % qk_heads;
        const bf16 *d = dqk + ((size_t)row * qk_heads + head) * HEAD_DIM, *x = qkv + ((size_t)row * (qk_heads + kv_heads) + head) * HEAD_DIM;
        bf16* to = dqkv + ((size_t)row * (qk_heads + kv_heads) + head) * HEAD_DIM;
        const bf16* gamma = head < heads ? w : w + HEAD_DIM;
        const float* rope = rope_table + (size_t)positions[row] * HEAD_DIM;
        float rstd = rstds[(size_t)row * qk_heads + head], n[PAIRS_PER_LANE][4], v[PAIRS_PER_LANE][4], gw[PAIRS_PER_LANE][4], s = 0.f;
#pragma unroll
        for (int p = 0; p < PAIRS_PER_LANE; p++) {
            int i = p * 64 + lane * 2;
            if (i >= HALF_DIM) continue;
            u32 d1 = *(const u32*)(d + i), d2 = *(const u32*)(d + HALF_DIM + i);
            u32 x1 = *(const u32*)(x + i), x2 = *(const u32*)(x + HALF_DIM + i);
            u32 g1 = *(const u32*)(gamma + i), g2 = *(const u32*)(gamma + HALF_DIM + i);
            float c0 = rope[i], c1 = rope[i + 1], s0 = rope[HALF_DIM + i], s1 = rope[HALF_DIM + i + 1];
            n[p][0] = bf16_lo(d1) * c0 + bf16_lo(d2) * s0, n[p][1] = bf16_hi(d1) * c1 + bf16_hi(d2) * s1;
            n[p][2] = bf16_lo(d2) * c0 - bf16_lo(d1) * s0, n[p][3] = bf16_hi(d2) * c1 - bf16_hi(d1) * s1;
            v[p][0] = bf16_lo(x1), v[p][1] = bf16_hi(x1), v[p][2] = bf16_lo(x2), v[p][3] = bf16_hi(x2);
            gw[p][0] = bf16_lo(g1), gw[p][1] = bf16_hi(g1), gw[p][2] = bf16_lo(g2), gw[p][3] = bf16_hi(g2);
#pragma unroll
            for (int j = 0; j < 4; j++) s += n[p][j] * gw[p][j] * v[p][j];
        }
        float k = warp_sum(s) * rstd * rstd * rstd / HEAD_DIM;
#pragma unroll
        for (int p = 0; p < PAIRS_PER_LANE; p++) {
            int i = p * 64 + lane * 2;
            if (i >= HALF_DIM) continue;
            float dx[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                dx[j] = rstd * n[p][j] * gw[p][j] - v[p][j] * k;
                if (head < heads) dw[0][p][j] += n[p][j] * v[p][j] * rstd;
                else dw[1][p][j] += n[p][j] * v[p][j] * rstd;
            }
            *(u32*)(to + i) = pack_bf16(dx[0], dx[1]), *(u32*)(to + HALF_DIM + i) = pack_bf16(dx[2], dx[3]);
        }
    }
    if (!partial_dgamma) return;
    for (int i = threadIdx.x; i < 2 * HEAD_DIM; i += blockDim.x) sums[i] = 0.f;
    // One warp at a time, so that the order of summation is fixed.
    for (int active = 0; active < warps; active++) {
        __syncthreads();
        if (active != warp) continue;
#pragma unroll
        for (int is_key = 0; is_key < 2; is_key++)
#pragma unroll
            for (int p = 0; p < PAIRS_PER_LANE; p++) {
                int i = p * 64 + lane * 2;
                if (i >= HALF_DIM) continue;
                float* to = sums + is_key * HEAD_DIM;
                to[i] += dw[is_key][p][0], to[i + 1] += dw[is_key][p][1];
                to[HALF_DIM + i] += dw[is_key][p][2], to[HALF_DIM + i + 1] += dw[is_key][p][3];
            }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * HEAD_DIM; i += blockDim.x) partial_dgamma[(size_t)blockIdx.x * 2 * HEAD_DIM + i] = sums[i];
}
