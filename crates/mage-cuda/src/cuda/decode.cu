// One new token of each of many sequences, over keys and values in pages.
//
// A key's HD numbers are shared by HD / 8 lanes, a team. Each team goes over its own keys, four at a time, with its own
// running softmax, for all query heads of the group; teams are merged at the end. With few sequences, several blocks share
// one, and the last to finish merges them.

#define LANES (HD / 8)
#define TEAMS (256 / LANES)
#define AT_ONCE 4
#define SHARE (GROUP * (HD + 2))

extern "C" __global__ void __launch_bounds__(256) decode_attention(const bf16* qk, const bf16* pages, const u32* packet, int tables_at, int lists_at, int positions_at, int heads, int kv, float scale, bf16* out, float* parts, u32* done) {
    int row = blockIdx.x, head = blockIdx.y, splits = gridDim.z, split = blockIdx.z;
    int lane = threadIdx.x % LANES, team = threadIdx.x / LANES;
    int keys = packet[positions_at + row] + 1;
    const u32* table = packet + tables_at + packet[lists_at + row];
    int per_split = ((keys + splits - 1) / splits + 15) & ~15, first = split * per_split, end = min(keys, first + per_split);
    size_t page_stride = (size_t)2 * kv * 16 * HD;
    const bf16* from = pages + (size_t)head * 16 * HD + lane * 8;
    float q[GROUP][8], o[GROUP][8] = {}, m[GROUP], l[GROUP];
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        m[g] = NEVER, l[g] = 0.f;
        spread(*(const uint4*)(qk + ((size_t)row * (heads + kv) + head * GROUP + g) * HD + lane * 8), q[g]);
#pragma unroll
        for (int i = 0; i < 8; i++) q[g][i] *= scale * LOG2E;
    }
    // All lanes of a warp go round equally often, as they speak with each other.
    for (int start = first; start < end; start += TEAMS * AT_ONCE) {
        uint4 k[AT_ONCE], v[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            int key = start + u * TEAMS + team;
            k[u] = v[u] = make_uint4(0, 0, 0, 0);
            if (key < end) {
                const bf16* at = from + table[key >> 4] * page_stride + (key & 15) * HD;
                k[u] = *(const uint4*)at;
                v[u] = *(const uint4*)(at + (size_t)kv * 16 * HD);
            }
        }
        float s[AT_ONCE][GROUP];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            float x[8];
            spread(k[u], x);
#pragma unroll
            for (int g = 0; g < GROUP; g++) {
                float sum = 0.f;
#pragma unroll
                for (int i = 0; i < 8; i++) sum += q[g][i] * x[i];
#pragma unroll
                for (int offset = LANES / 2; offset; offset >>= 1) sum += __shfl_xor_sync(FULL, sum, offset);
                s[u][g] = start + u * TEAMS + team < end ? sum : NEVER;
            }
        }
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            float most = m[g];
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++) most = fmaxf(most, s[u][g]);
            if (most == NEVER) continue; // nothing yet
            float f = exp2f(m[g] - most);
            m[g] = most, l[g] *= f;
#pragma unroll
            for (int i = 0; i < 8; i++) o[g][i] *= f;
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++) {
                float p = exp2f(s[u][g] - most), x[8];
                spread(v[u], x);
                l[g] += p;
#pragma unroll
                for (int i = 0; i < 8; i++) o[g][i] += p * x[i];
            }
        }
    }
    // Teams of a warp by exchange, then warps through shared memory.
#pragma unroll
    for (int offset = LANES; offset < 32; offset <<= 1)
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            float other = __shfl_xor_sync(FULL, m[g], offset), most = fmaxf(m[g], other);
            float f = most == NEVER ? 0.f : exp2f(m[g] - most);
            m[g] = most;
            l[g] *= f, l[g] += __shfl_xor_sync(FULL, l[g], offset);
#pragma unroll
            for (int i = 0; i < 8; i++) o[g][i] *= f, o[g][i] += __shfl_xor_sync(FULL, o[g][i], offset);
        }
    __shared__ float all[8][GROUP][HD + 2];
    __shared__ bool last;
    int warp = threadIdx.x >> 5;
    if ((threadIdx.x & 31) < LANES)
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
#pragma unroll
            for (int i = 0; i < 8; i++) all[warp][g][lane * 8 + i] = o[g][i];
            if (lane == 0) all[warp][g][HD] = m[g], all[warp][g][HD + 1] = l[g];
        }
    __syncthreads();
    size_t mine = (size_t)row * kv + head;
    for (int i = threadIdx.x; i < GROUP * HD; i += 256) {
        int g = i / HD, d = i % HD;
        float most = NEVER, sum = 0.f, total = 0.f;
        for (int w = 0; w < 8; w++) most = fmaxf(most, all[w][g][HD]);
        for (int w = 0; w < 8; w++) {
            float f = all[w][g][HD] == NEVER ? 0.f : exp2f(all[w][g][HD] - most);
            sum += f * all[w][g][d], total += f * all[w][g][HD + 1];
        }
        if (splits == 1) out[((size_t)row * heads + head * GROUP + g) * HD + d] = narrow(sum / total);
        else {
            float* to = parts + (mine * splits + split) * SHARE + g * (HD + 2);
            to[d] = sum;
            if (d == 0) to[HD] = most, to[HD + 1] = total;
        }
    }
    if (splits == 1) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(done + mine, 1) == splits - 1;
        if (last) done[mine] = 0;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (int i = threadIdx.x; i < GROUP * HD; i += 256) {
        int g = i / HD, d = i % HD;
        const volatile float* at = parts + mine * splits * SHARE + g * (HD + 2);
        float most = NEVER, sum = 0.f, total = 0.f;
        for (int w = 0; w < splits; w++) most = fmaxf(most, at[(size_t)w * SHARE + HD]);
        for (int w = 0; w < splits; w++) {
            float other = at[(size_t)w * SHARE + HD], f = other == NEVER ? 0.f : exp2f(other - most);
            sum += f * at[(size_t)w * SHARE + d], total += f * at[(size_t)w * SHARE + HD + 1];
        }
        out[((size_t)row * heads + head * GROUP + g) * HD + d] = narrow(sum / total);
    }
}

// Whole pages of one layer's space, one copy after the other. A thread has the same 16 bytes of every page.
extern "C" __global__ void copy_pages(uint4* pages, const u32* copies, int count, int page16, u64 layer16) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= page16) return;
    uint4* layer = pages + blockIdx.y * layer16;
    for (int c = 0; c < count; c++) layer[(size_t)copies[2 * c + 1] * page16 + i] = layer[(size_t)copies[2 * c] * page16 + i];
}
