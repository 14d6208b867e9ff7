// What rows of logits say: about a given token, or which token is drawn.
//
// A row's candidates are all tokens, those of a list, or those at a node of a trie. A block goes over them once, each warp over
// stretches of their 32, in an order that never changes, so that equal logits give equal answers. Filters cut the candidates,
// ordered by falling weight and then rising number, to a beginning; its last weight is found digit by digit, masses being added
// as whole numbers.

struct Ask {
    u32 token;       // the one asked about, or DRAW
    u32 list, count; // the candidates, where there are fewer than all; with NODE, where the node is among the tries
    u32 top_k;       // 0: no limit
    float temperature, top_p, min_p;
    float point; // where on the line from 0 to 1
};
#define DRAW 0xffffffffu
#define ALL 0xffffffffu
#define NODE 0xfffffffeu

struct Answer {
    u32 token;
    float logprob, second;
    u32 following; // drawn at a node: one more than the number of the next
};

struct Row {
    const float* logits;
    const u32* list;
    int count;
    __device__ __forceinline__ u32 token(int i) const { return list ? list[i] : i; }
    __device__ __forceinline__ float at(int i) const { return logits[token(i)]; }
};

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

// What a part of the candidates adds up to, relative to its largest logit: exponentials, the same at the temperature drawn
// at, and exponentials times logits.
struct Stats {
    float most, sum, hot, weighted;
};

// The same relative to a larger logit.
__device__ __forceinline__ Stats raised(Stats a, float most, float heat) {
    float f = exp2f((a.most - most) * LOG2E);
    if (a.most == NEVER) return {most, 0.f, 0.f, 0.f};
    return {most, a.sum * f, a.hot * exp2f((a.most - most) * heat), f * (a.weighted + a.sum * (a.most - most))};
}

__device__ __forceinline__ Stats joined(Stats a, Stats b, float heat) {
    float most = fmaxf(a.most, b.most);
    if (most == NEVER) return a;
    a = raised(a, most, heat), b = raised(b, most, heat);
    return {most, a.sum + b.sum, a.hot + b.hot, a.weighted + b.weighted};
}

// Candidates per warp: whole groups of four for every lane.
__device__ __forceinline__ int share(const Row& row) { return (row.count + 32 * 128 - 1) / (32 * 128) * 128; }

// Four neighbouring candidates; those that are not there weigh nothing.
__device__ __forceinline__ float4 four(const Row& row, int i, int end) {
    if (!row.list && i + 4 <= end) return *(const float4*)(row.logits + i);
    float4 x;
    x.x = i < end ? row.at(i) : NEVER, x.y = i + 1 < end ? row.at(i + 1) : NEVER;
    x.z = i + 2 < end ? row.at(i + 2) : NEVER, x.w = i + 3 < end ? row.at(i + 3) : NEVER;
    return x;
}

// One pass over the 32 stretches, each of which one warp goes over; `parts` keeps what was found in each. Where a logit is not
// finite, the sum is not a number.
template <bool ENTROPY>
__device__ Stats stats(const Row& row, float heat, Stats* parts) {
    int lane = threadIdx.x & 31;
    bool tempered = heat != LOG2E, broken = false;
    for (int part = threadIdx.x >> 5; part < 32; part += blockDim.x >> 5) {
        int first = part * share(row), end = min(row.count, first + share(row));
        Stats s = {NEVER, 0.f, 0.f, 0.f};
        // Four groups at a time: their loads are on their way together.
        for (int i = first + lane * 4; i < end; i += 4 * 128) {
            float4 x[4];
#pragma unroll
            for (int u = 0; u < 4; u++) x[u] = four(row, i + u * 128, end);
            float most = NEVER;
#pragma unroll
            for (int u = 0; u < 4; u++) {
                most = fmaxf(most, fmaxf(fmaxf(x[u].x, x[u].y), fmaxf(x[u].z, x[u].w)));
                broken |= (x[u].x != x[u].x) | (x[u].y != x[u].y) | (x[u].z != x[u].z) | (x[u].w != x[u].w);
            }
            broken |= !(most < -NEVER);
            if (most > s.most) s = raised(s, most, heat);
            if (s.most == NEVER) continue;
#pragma unroll
            for (int u = 0; u < 4; u++) {
                float v[4] = {x[u].x, x[u].y, x[u].z, x[u].w};
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float d = v[j] - s.most, e = exp2f(d * LOG2E);
                    s.sum += e;
                    if (tempered) s.hot += exp2f(d * heat);
                    if (ENTROPY && e > 0.f) s.weighted += e * d;
                }
            }
        }
        if (!tempered) s.hot = s.sum;
#pragma unroll
        for (int o = 16; o; o >>= 1) {
            Stats other = {__shfl_xor_sync(FULL, s.most, o), __shfl_xor_sync(FULL, s.sum, o), __shfl_xor_sync(FULL, s.hot, o), __shfl_xor_sync(FULL, s.weighted, o)};
            // The same order in every lane: a warp agrees on its sum.
            s = (lane & o) ? joined(other, s, heat) : joined(s, other, heat);
        }
        if (lane == 0) parts[part] = s;
    }
    broken = __syncthreads_or(broken);
    Stats s = parts[0];
    for (int part = 1; part < 32; part++) s = joined(s, parts[part], heat);
    __syncthreads(); // the compiler puts what comes later where `parts` was, and others may still be reading it
    if (broken) s.sum = __int_as_float(0x7fc00000);
    return s;
}

__device__ Row row_of(const float* logits, size_t stride, int vocabulary, const u32* list, u32 count, int row) {
    const float* at = logits + row * stride;
    return count == ALL ? Row{at, 0, vocabulary} : Row{at, list, (int)count};
}

// The number of the node that follows one at which candidate `at` was drawn. A node is how many candidates it has, these, and for
// each the number of the next; where all tokens are candidates: ALL, a token, the number after it, and the number after all others.
__device__ u32 following(const u32* node, int at, u32 token) {
    return node[0] == ALL ? node[token == node[1] ? 2 : 3] : node[1 + node[0] + at];
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

// The last part with any weight that starts at or before the goal, and where it starts.
template <typename F>
__device__ __forceinline__ int part_at(float goal, float* start, F mass) {
    int found = 0;
    float next = *start;
    for (int part = 0; part < 32; part++) {
        float m = mass(part);
        if (m > 0.f && next <= goal) found = part, *start = next;
        next += m;
    }
    return found;
}

// Which of all candidates is drawn: the stretch first, then its part, then the place in it, which one warp looks for. Greedily,
// the first of the largest.
__device__ int draw(const Row& row, const Ask& ask, const Stats& s, const Stats* parts, float heat, float* logprob) {
    __shared__ int found;
    __shared__ float masses[32];
    bool greedy = ask.temperature == 0.f;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, stretch = 0;
    float start = 0.f, goal = ask.point * s.hot;
    if (threadIdx.x == 0) found = greedy ? row.count - 1 : 0;
    if (greedy) {
        while (stretch < 31 && parts[stretch].most != s.most) stretch++;
    } else {
        stretch = part_at(goal, &start, [&](int part) { return raised(parts[part], s.most, heat).hot; });
    }
    int first = stretch * share(row), end = min(row.count, first + share(row)), each = (share(row) / 128 + 31) / 32 * 128;
    __syncthreads();
    for (int part = warp; part < 32; part += blockDim.x >> 5) {
        int upto = min(end, first + (part + 1) * each);
        float mass = 0.f;
        for (int i = first + part * each + lane * 4; i < upto; i += 128) {
            float4 x = four(row, i, upto);
            float v[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (greedy && v[j] == s.most) atomicMin(&found, i + j);
                mass += exp2f((v[j] - s.most) * heat);
            }
        }
        mass = warp_sum(mass);
        if (lane == 0) masses[part] = mass;
    }
    __syncthreads();
    if (!greedy && warp == 0) {
        int part = part_at(goal, &start, [&](int part) { return masses[part]; }), best = -1;
        int upto = min(end, first + (part + 1) * each);
        bool done = false;
        for (int i = first + part * each + lane * 4; !done && __any_sync(FULL, i < upto); i += 128) {
            float4 x = four(row, i, upto);
            float v[4] = {x.x, x.y, x.z, x.w}, sum = 0.f;
#pragma unroll
            for (int j = 0; j < 4; j++) v[j] = exp2f((v[j] - s.most) * heat), sum += v[j];
            float through = sum;
#pragma unroll
            for (int o = 1; o < 32; o <<= 1) {
                float y = __shfl_up_sync(FULL, through, o);
                if (lane >= o) through += y;
            }
            float at = start + (through - sum); // so that the first with any weight is exactly at the start, which the goal is not before
            int mine = -1;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (v[j] > 0.f && at <= goal) mine = i + j;
                at += v[j];
            }
            for (int o = 16; o; o >>= 1) mine = max(mine, __shfl_xor_sync(FULL, mine, o));
            best = max(best, mine);
            start += __shfl_sync(FULL, through, 31);
            done = start > goal && best >= 0;
        }
        if (lane == 0 && best >= 0) found = best;
    }
    __syncthreads();
    int at = found;
    *logprob = greedy ? 0.f : logf(weight(row, at, s.most, heat) / s.hot);
    return at;
}

// Which of a beginning of the candidates is drawn.
__device__ int draw_filtered(const Row& row, const Ask& ask, const Stats& s, float heat, float* logprob) {
    __shared__ int found;
    Cut cut = {0, 0xffffffffu};
    if (ask.top_k && ask.top_k < row.count) cut = select(row, s.most, heat, ask.top_k, false);
    if (ask.top_p < 1.f) {
        u64 total = mass_of(row, s.most, heat, cut);
        u64 enough = (u64)((double)ask.top_p * (double)total);
        cut = shorter(cut, select(row, s.most, heat, enough ? enough : 1, true));
    }
    // Everything of at least this weight: equal ones all stay.
    if (ask.min_p > 0.f) cut = shorter(cut, Cut{__float_as_uint(ask.min_p), 0xffffffffu});
    float total = 0.f;
    if (threadIdx.x == 0) found = -1;
    // Twice over the same tiles: the first time for the total, the second for the place.
    for (int pass = 0; pass < 2; pass++) {
        float goal = ask.point * total, before = 0.f;
        u32 equals = 0;
        for (int start = 0; start < row.count; start += blockDim.x) {
            int i = start + threadIdx.x;
            float w = i < row.count ? weight(row, i, s.most, heat) : 0.f, here;
            u32 bits = __float_as_uint(w), same;
            u32 rank = block_scan<u32>(i < row.count && bits == cut.bits, &same) + equals;
            equals += same;
            if (bits < cut.bits || (bits == cut.bits && rank >= cut.equals)) w = 0.f;
            float mine = block_scan<float>(w, &here);
            if (pass && w > 0.f && before + mine <= goal) atomicMax(&found, i);
            before += here;
            __syncthreads();
            if (pass && before > goal && found >= 0) break;
        }
        if (pass == 0) total = before;
    }
    __syncthreads();
    int at = found < 0 ? 0 : found;
    *logprob = logf(weight(row, at, s.most, heat) / total);
    return at;
}

// A block per row of logits; two of them at once on a multiprocessor.
extern "C" __global__ void __launch_bounds__(512, 2) answer(const float* logits, u64 stride, int vocabulary, const u32* packet, const u32* tries, int asks_at, Answer* answers) {
    __shared__ Stats parts[32];
    Ask ask = ((const Ask*)(packet + asks_at))[blockIdx.x];
    const u32* node = ask.count == NODE ? tries + ask.list : 0;
    Row row = node ? row_of(logits, stride, vocabulary, node + 1, node[0], blockIdx.x)
                   : row_of(logits, stride, vocabulary, packet + ask.list, ask.count, blockIdx.x);
    Answer a = {ask.token, 0.f, 0.f, 0};
    Stats s;
    if (ask.token != DRAW) {
        s = stats<true>(row, LOG2E, parts);
        a.second = logf(s.sum) - s.weighted / s.sum;
    } else {
        float heat = ask.temperature > 0.f ? LOG2E / ask.temperature : LOG2E;
        s = stats<false>(row, heat, parts);
        bool filtered = ask.temperature > 0.f && ((ask.top_k && ask.top_k < row.count) || ask.top_p < 1.f || ask.min_p > 0.f);
        if (!(s.sum > 0.f)) {
            a.token = 0, a.second = s.sum;
        } else {
            int at = filtered ? draw_filtered(row, ask, s, heat, &a.second) : draw(row, ask, s, parts, heat, &a.second);
            a.token = row.token(at);
            if (node && threadIdx.x == 0) a.following = 1 + following(node, at, a.token);
        }
    }
    a.logprob = row.logits[a.token] - s.most - logf(s.sum);
    if (threadIdx.x == 0) answers[blockIdx.x] = a;
}

// What rows say about their targets: log-probability, entropy, and the logarithm of the sum.
extern "C" __global__ void __launch_bounds__(512, 2) distribution(const float* logits, u64 stride, int vocabulary, const u32* packet, int asks_at, float4* out) {
    __shared__ Stats parts[32];
    Ask ask = ((const Ask*)(packet + asks_at))[blockIdx.x];
    Row row = row_of(logits, stride, vocabulary, packet + ask.list, ask.count, blockIdx.x);
    Stats s = stats<true>(row, LOG2E, parts);
    float logarithm = logf(s.sum);
    if (threadIdx.x == 0) out[blockIdx.x] = make_float4(row.logits[ask.token] - s.most - logarithm, logarithm - s.weighted / s.sum, logarithm + s.most, 0.f);
}

__device__ __forceinline__ float slope_at(float logit, bool chosen, float4 choice, float2 slope) {
    float l = logit - choice.z, p = exp2f(l * LOG2E);
    float d = slope.x * ((chosen ? 1.f : 0.f) - p);
    return p > 0.f && slope.y != 0.f ? d - slope.y * p * (l + choice.y) : d;
}

// From logits to the gradient by them, given per row the slopes by log-probability and entropy.
extern "C" __global__ void __launch_bounds__(1024) distribution_grad(const float* logits, u64 stride, int vocabulary, const u32* packet, int asks_at, const float4* choices, const float2* slopes, bf16* to) {
    Ask ask = ((const Ask*)(packet + asks_at))[blockIdx.x];
    Row row = row_of(logits, stride, vocabulary, packet + ask.list, ask.count, blockIdx.x);
    float4 choice = choices[blockIdx.x];
    float2 slope = slopes[blockIdx.x];
    bf16* out = to + blockIdx.x * stride;
    if (row.list) {
        for (int i = threadIdx.x * 8; i < (int)stride; i += blockDim.x * 8) *(uint4*)(out + i) = make_uint4(0, 0, 0, 0);
        __syncthreads();
        for (int i = threadIdx.x; i < row.count; i += blockDim.x) {
            u32 token = row.token(i);
            out[token] = narrow(slope_at(row.logits[token], token == ask.token, choice, slope));
        }
        return;
    }
    // Rows are padded to groups of eight; the padding's gradient is 0.
    for (int i = threadIdx.x * 4; i < (int)stride; i += blockDim.x * 4) {
        float4 x = *(const float4*)(row.logits + i);
        float v[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = i + j < vocabulary ? slope_at(v[j], i + j == ask.token, choice, slope) : 0.f;
        *(uint2*)(out + i) = make_uint2(pair(v[0], v[1]), pair(v[2], v[3]));
    }
}
