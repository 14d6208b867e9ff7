// What rows of logits say: about a given token, or which token is drawn.
//
// A row's candidates are all tokens, or those of a list. A block of 1024 threads goes over them in tiles of 1024, in an
// order that never changes, so that equal logits give equal answers. Filters cut the candidates, ordered by falling weight
// and then rising number, to a beginning; its last weight is found digit by digit, masses being added as whole numbers.

struct Ask {
    u32 token;       // the one asked about, or DRAW
    u32 list, count; // the candidates, where there are fewer than all
    u32 top_k;       // 0: no limit
    float temperature, top_p, min_p;
    float point; // where on the line from 0 to 1
};
#define DRAW 0xffffffffu
#define ALL 0xffffffffu

struct Answer {
    u32 token;
    float logprob, second;
};

struct Row {
    const float* logits;
    const u32* list;
    int count;
    __device__ __forceinline__ u32 token(int i) const { return list ? list[i] : i; }
    __device__ __forceinline__ float at(int i) const { return logits[token(i)]; }
};

__device__ __forceinline__ float block_max(float x) {
    __shared__ float parts[32];
#pragma unroll
    for (int o = 16; o; o >>= 1) x = fmaxf(x, __shfl_xor_sync(FULL, x, o));
    __syncthreads();
    if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = x;
    __syncthreads();
    x = (threadIdx.x & 31) < (blockDim.x >> 5) ? parts[threadIdx.x & 31] : NEVER;
#pragma unroll
    for (int o = 16; o; o >>= 1) x = fmaxf(x, __shfl_xor_sync(FULL, x, o));
    return x;
}

// The sum before each thread and, in `total`, over the block.
template <typename T>
__device__ __forceinline__ T block_scan(T x, T* total) {
    __shared__ T parts[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    T sum = x;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        T y = __shfl_up_sync(FULL, sum, o);
        if (lane >= o) sum += y;
    }
    __syncthreads();
    if (lane == 31) parts[warp] = sum;
    __syncthreads();
    T before = 0, all = 0;
    for (int w = 0; w < (int)(blockDim.x >> 5); w++) {
        if (w < warp) before += parts[w];
        all += parts[w];
    }
    *total = all;
    return before + sum - x;
}

// The largest logit, the sum of exponentials relative to it, and their mean logit's numerator, in one pass.
struct Stats {
    float most, sum, weighted;
};

__device__ Stats stats(const Row& row, bool entropy) {
    float most = NEVER;
    bool broken = false;
    for (int i = threadIdx.x; i < row.count; i += blockDim.x) {
        float x = row.at(i);
        broken |= !(x < -NEVER); // not a number, or too large
        most = fmaxf(most, x);
    }
    most = block_max(most);
    broken = __syncthreads_or(broken);
    float sum = 0.f, weighted = 0.f;
    for (int i = threadIdx.x; i < row.count; i += blockDim.x) {
        float x = row.at(i) - most, e = exp2f(x * LOG2E);
        sum += e;
        if (entropy && e > 0.f) weighted += e * x;
    }
    sum = block_sum(sum);
    if (entropy) weighted = block_sum(weighted);
    if (broken) sum = __int_as_float(0x7fc00000);
    return {most, sum, weighted};
}

__device__ Row row_of(const float* logits, size_t stride, int vocabulary, const Ask& ask, const u32* packet, int row) {
    const float* at = logits + row * stride;
    return ask.count == ALL ? Row{at, 0, vocabulary} : Row{at, packet + ask.list, (int)ask.count};
}

// Weight of a candidate, the largest being 1.
__device__ __forceinline__ float weight(const Row& row, int i, float most, float heat) { return exp2f((row.at(i) - most) * heat); }
__device__ __forceinline__ u64 mass(float w) { return (u64)((double)w * 4294967296.0); }

// A beginning of the candidates: all whose weight's bits are above `bits`, and of those equal the first `equals`.
struct Cut {
    u32 bits, equals;
};

// The shortest beginning that has `enough` candidates (or, by mass, that much of it).
__device__ Cut select(const Row& row, float most, float heat, u64 enough, bool by_mass) {
    __shared__ u64 bins[256];
    __shared__ u32 chosen;
    __shared__ u64 left;
    u32 prefix = 0, known = 0; // the digits found so far, and their mask
    u64 need = enough;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += blockDim.x) bins[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < row.count; i += blockDim.x) {
            float w = weight(row, i, most, heat);
            u32 bits = __float_as_uint(w);
            if ((bits & known) == prefix) atomicAdd(&bins[(bits >> shift) & 255], by_mass ? mass(w) : 1ull);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            u64 rest = need;
            int b = 255;
            while (b > 0 && bins[b] < rest) rest -= bins[b--];
            chosen = b, left = rest;
        }
        __syncthreads();
        prefix |= chosen << shift, known |= 255u << shift, need = left;
        __syncthreads();
    }
    u64 each = by_mass ? mass(__uint_as_float(prefix)) : 1;
    u64 equals = each ? (need + each - 1) / each : row.count;
    return {prefix, (u32)(equals > 0xffffffffull ? 0xffffffffull : equals)};
}

__device__ __forceinline__ Cut shorter(Cut a, Cut b) {
    if (a.bits != b.bits) return a.bits > b.bits ? a : b;
    return a.equals < b.equals ? a : b;
}

// The mass of a beginning.
__device__ u64 mass_of(const Row& row, float most, float heat, Cut cut) {
    u64 sum = 0, equals = 0;
    for (int i = threadIdx.x; i < row.count; i += blockDim.x) {
        float w = weight(row, i, most, heat);
        u32 bits = __float_as_uint(w);
        if (bits > cut.bits) sum += mass(w);
        if (bits == cut.bits) equals++;
    }
    u64 total, same;
    block_scan<u64>(sum, &total);
    block_scan<u64>(equals, &same);
    u64 kept = same < cut.equals ? same : cut.equals;
    return total + kept * mass(__uint_as_float(cut.bits));
}

// Draws from a row. Writes the answer's token and its log-probability in the distribution drawn from.
__device__ void draw(const Row& row, const Ask& ask, const Stats& s, u32* token, float* logprob) {
    __shared__ int found;
    bool greedy = ask.temperature == 0.f;
    if (greedy) {
        // The first of equals.
        if (threadIdx.x == 0) found = 0x7fffffff;
        __syncthreads();
        for (int i = threadIdx.x; i < row.count; i += blockDim.x)
            if (row.at(i) == s.most) atomicMin(&found, i);
        __syncthreads();
        *token = row.token(found < row.count ? found : 0);
        *logprob = 0.f;
        return;
    }
    float heat = LOG2E / ask.temperature;
    bool filtered = (ask.top_k && ask.top_k < row.count) || ask.top_p < 1.f || ask.min_p > 0.f;
    Cut cut = {0, 0xffffffffu};
    if (filtered) {
        if (ask.top_k && ask.top_k < row.count) cut = select(row, s.most, heat, ask.top_k, false);
        if (ask.top_p < 1.f) {
            u64 total = mass_of(row, s.most, heat, cut);
            u64 enough = (u64)((double)ask.top_p * (double)total);
            cut = shorter(cut, select(row, s.most, heat, enough ? enough : 1, true));
        }
        if (ask.min_p > 0.f) {
            // Everything of at least this weight: equal ones all stay.
            Cut floor = {__float_as_uint(ask.min_p), 0xffffffffu};
            cut = shorter(cut, floor);
        }
    }
    float total = 0.f;
    u32 equals = 0;
    // Twice over the same tiles: the first time for the total, the second for the place.
    if (threadIdx.x == 0) found = -1;
    for (int pass = 0; pass < 2; pass++) {
        float goal = ask.point * total, before = 0.f;
        equals = 0;
        for (int start = 0; start < row.count; start += blockDim.x) {
            int i = start + threadIdx.x;
            float w = i < row.count ? weight(row, i, s.most, heat) : 0.f;
            if (filtered) {
                u32 bits = __float_as_uint(w), same;
                u32 rank = block_scan<u32>(i < row.count && bits == cut.bits, &same) + equals;
                equals += same;
                if (bits < cut.bits || (bits == cut.bits && rank >= cut.equals)) w = 0.f;
            }
            float here;
            if (pass == 0) {
                here = block_sum(w);
            } else {
                float mine = block_scan<float>(w, &here);
                // The last one with any weight that starts at or before the goal.
                if (w > 0.f && before + mine <= goal) atomicMax(&found, i);
            }
            before += here;
            if (pass == 1) {
                __syncthreads();
                if (before > goal && found >= 0) break;
            }
        }
        if (pass == 0) total = before;
    }
    __syncthreads();
    int at = found < 0 ? 0 : found;
    *token = row.token(at);
    *logprob = logf(weight(row, at, s.most, heat) / total);
}

// A block per row of logits.
extern "C" __global__ void __launch_bounds__(1024) answer(const float* logits, u64 stride, int vocabulary, const u32* packet, int asks_at, Answer* answers) {
    Ask ask = ((const Ask*)(packet + asks_at))[blockIdx.x];
    Row row = row_of(logits, stride, vocabulary, ask, packet, blockIdx.x);
    bool score = ask.token != DRAW;
    Stats s = stats(row, score);
    Answer a = {ask.token, 0.f, 0.f};
    if (score) {
        a.second = logf(s.sum) - s.weighted / s.sum;
    } else if (s.sum > 0.f) {
        draw(row, ask, s, &a.token, &a.second);
    } else {
        a.token = 0, a.second = s.sum;
    }
    a.logprob = row.logits[a.token] - s.most - logf(s.sum);
    if (threadIdx.x == 0) answers[blockIdx.x] = a;
}

// What rows say about their targets: log-probability, entropy, and the logarithm of the sum.
extern "C" __global__ void __launch_bounds__(1024) distribution(const float* logits, u64 stride, int vocabulary, const u32* packet, int asks_at, float4* out) {
    Ask ask = ((const Ask*)(packet + asks_at))[blockIdx.x];
    Row row = row_of(logits, stride, vocabulary, ask, packet, blockIdx.x);
    Stats s = stats(row, true);
    float logarithm = logf(s.sum);
    if (threadIdx.x == 0) out[blockIdx.x] = make_float4(row.logits[ask.token] - s.most - logarithm, logarithm - s.weighted / s.sum, logarithm + s.most, 0.f);
}

// From logits to the gradient by them, given per row the slopes by log-probability and entropy.
extern "C" __global__ void __launch_bounds__(1024) distribution_grad(const float* logits, u64 stride, int vocabulary, const u32* packet, int asks_at, const float4* choices, const float2* slopes, bf16* to) {
    Ask ask = ((const Ask*)(packet + asks_at))[blockIdx.x];
    Row row = row_of(logits, stride, vocabulary, ask, packet, blockIdx.x);
    float4 choice = choices[blockIdx.x];
    float2 slope = slopes[blockIdx.x];
    bf16* out = to + blockIdx.x * stride;
    if (row.list) {
        for (int i = threadIdx.x; i < (int)stride; i += blockDim.x) out[i] = 0;
        __syncthreads();
    }
    for (int i = threadIdx.x; i < row.count; i += blockDim.x) {
        u32 token = row.token(i);
        float l = row.logits[token] - choice.z, p = exp2f(l * LOG2E);
        float d = slope.x * ((token == ask.token ? 1.f : 0.f) - p);
        if (p > 0.f) d -= slope.y * p * (l + choice.y);
        out[token] = narrow(d);
    }
    if (!row.list)
        for (int i = vocabulary + threadIdx.x; i < (int)stride; i += blockDim.x) out[i] = 0;
}
