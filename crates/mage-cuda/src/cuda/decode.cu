// One new token of each of many sequences, over keys and values in pages.
//
// A key's numbers are shared by WIDTH / 8 lanes, a team. Each team goes over its own keys, four at a time, with its own
// running softmax, for all query heads of the group, the next four being on their way; teams are merged at the end. With few sequences, several blocks share
// one, and the last to finish merges them.

#define LANES (WIDTH / 8)
#define THREADS 128
#define TEAMS (THREADS / LANES)
#define AT_ONCE 4
#define SHARE (GROUP * (HD + 2))

// One new key for all query heads of the group: their running softmaxes take it in.
__device__ __forceinline__ void take(const float (*s)[GROUP], const uint4* v, float* m, float* l, float (*o)[8], int count) {
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        float most = m[g];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (u < count) most = fmaxf(most, s[u][g]);
        if (most == NEVER) continue; // nothing yet
        float f = exp2f(m[g] - most);
        m[g] = most, l[g] *= f;
#pragma unroll
        for (int i = 0; i < 8; i++) o[g][i] *= f;
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            if (u >= count) continue;
            float p = exp2f(s[u][g] - most), x[8];
            spread(v[u], x);
            l[g] += p;
#pragma unroll
            for (int i = 0; i < 8; i++) o[g][i] += p * x[i];
        }
    }
}

// From raw queries, keys and values of the new tokens: norms and turns them, puts the key and the value into their cell, and
// attends.
extern "C" __global__ void __launch_bounds__(THREADS) decode_attention(const bf16* qkv, const bf16* w, float epsilon, const float* turns, bf16* pages, const u32* packet, int tables_at, int lists_at, int positions_at, int heads, int kv, float scale, bf16* out, float* parts, u32* done) {
    __shared__ float queries[GROUP][WIDTH];
    __shared__ __align__(16) bf16 new_key[WIDTH];
    int row = blockIdx.x, head = blockIdx.y, splits = gridDim.z, split = blockIdx.z;
    int lane = threadIdx.x % LANES, team = threadIdx.x / LANES, warp = threadIdx.x >> 5;
    bool some = lane * 8 < HD; // whether this lane has any of a head's numbers
    int position = packet[positions_at + row]; // as many keys are in the pages already
    const u32* table = packet + tables_at + packet[lists_at + row];
    int per_split = ((position + splits) / splits + 15) & ~15, first = split * per_split, end = min(position, first + per_split);
    bool newest = position >= first && position < first + per_split;
    size_t page_stride = (size_t)2 * kv * 16 * HD;
    const bf16* from = pages + (size_t)head * 16 * HD + lane * 8;
    const bf16* raw = qkv + (size_t)row * (heads + 2 * kv) * HD;
    const bf16* value = raw + (size_t)(heads + kv + head) * HD;
    uint4 k[AT_ONCE], v[AT_ONCE], next_k[AT_ONCE], next_v[AT_ONCE];
    auto prepare = [&](int start) {
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            int key = start + u * TEAMS + team;
            next_k[u] = next_v[u] = make_uint4(0, 0, 0, 0);
            if (some && key < end) {
                const bf16* at = from + table[key >> 4] * page_stride + (key & 15) * HD;
                next_k[u] = __ldcs((const uint4*)at);
                next_v[u] = __ldcs((const uint4*)(at + (size_t)kv * 16 * HD));
            }
        }
    };
    prepare(first);
    // Queries to shared memory, a warp each; the new key and value to their cell.
    const float* turn = turns + (size_t)position * HD;
    bf16* cell = pages + table[position >> 4] * page_stride + ((size_t)head * 16 + (position & 15)) * HD;
    for (int unit = warp; unit < GROUP + newest; unit += THREADS / 32) {
        bool key = unit == GROUP;
        float x[PAIRS][4];
        turned(raw + (size_t)(key ? heads + head : head * GROUP + unit) * HD, key ? w + HD : w, epsilon, turn, x);
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            int i = p * 64 + (threadIdx.x & 31) * 2;
            if (i >= HALF) continue;
            if (key) {
                u32 one = pair(x[p][0], x[p][1]), two = pair(x[p][2], x[p][3]);
                *(u32*)(new_key + i) = *(u32*)(cell + i) = one;
                *(u32*)(new_key + HALF + i) = *(u32*)(cell + HALF + i) = two;
                *(u32*)(cell + (size_t)kv * 16 * HD + i) = *(const u32*)(value + i);
                *(u32*)(cell + (size_t)kv * 16 * HD + HALF + i) = *(const u32*)(value + HALF + i);
            } else {
                queries[unit][i] = x[p][0] * scale * LOG2E, queries[unit][i + 1] = x[p][1] * scale * LOG2E;
                queries[unit][HALF + i] = x[p][2] * scale * LOG2E, queries[unit][HALF + i + 1] = x[p][3] * scale * LOG2E;
            }
        }
    }
    __syncthreads();
    float q[GROUP][8], o[GROUP][8] = {}, m[GROUP], l[GROUP];
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        m[g] = NEVER, l[g] = 0.f;
#pragma unroll
        for (int i = 0; i < 8; i++) q[g][i] = some ? queries[g][lane * 8 + i] : 0.f;
    }
    auto score = [&](uint4 key, int g) {
        float x[8], sum = 0.f;
        spread(key, x);
#pragma unroll
        for (int i = 0; i < 8; i++) sum += q[g][i] * x[i];
#pragma unroll
        for (int offset = LANES / 2; offset; offset >>= 1) sum += __shfl_xor_sync(FULL, sum, offset);
        return sum;
    };
    // All lanes of a warp go round equally often, as they speak with each other.
    for (int start = first; start < end; start += TEAMS * AT_ONCE) {
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) k[u] = next_k[u], v[u] = next_v[u];
        prepare(start + TEAMS * AT_ONCE);
        float s[AT_ONCE][GROUP];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
#pragma unroll
            for (int g = 0; g < GROUP; g++) {
                float x = score(k[u], g);
                s[u][g] = start + u * TEAMS + team < end ? x : NEVER;
            }
        take(s, v, m, l, o, AT_ONCE);
    }
    if (newest && warp == 0) {
        float s[AT_ONCE][GROUP];
        k[0] = v[0] = make_uint4(0, 0, 0, 0);
        if (some) k[0] = *(const uint4*)(new_key + lane * 8), v[0] = *(const uint4*)(value + lane * 8);
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            float x = score(k[0], g);
            s[0][g] = team == 0 ? x : NEVER;
        }
        take(s, v, m, l, o, 1);
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
    __shared__ float all[THREADS / 32][GROUP][HD + 2];
    __shared__ bool last;
    if (some && (threadIdx.x & 31) < LANES)
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
#pragma unroll
            for (int i = 0; i < 8; i++) all[warp][g][lane * 8 + i] = o[g][i];
            if (lane == 0) all[warp][g][HD] = m[g], all[warp][g][HD + 1] = l[g];
        }
    __syncthreads();
    size_t mine = (size_t)row * kv + head;
    for (int i = threadIdx.x; i < GROUP * HD; i += THREADS) {
        int g = i / HD, d = i % HD;
        float most = NEVER, sum = 0.f, total = 0.f;
        for (int w = 0; w < THREADS / 32; w++) most = fmaxf(most, all[w][g][HD]);
        for (int w = 0; w < THREADS / 32; w++) {
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
    for (int i = threadIdx.x; i < GROUP * HD; i += THREADS) {
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
