// Sampling from rows of logits, and log-probabilities of given tokens.
//
// The candidates of a row are all tokens, those of a list, or those at a trie node. One CTA reads them once, in 32
// segments of one warp each and in a fixed order, so that equal logits give equal results. Filters (top-k, top-p,
// min-p) keep a prefix of the candidates, ordered by descending weight and ascending index. The weight at which the
// prefix ends is found by radix selection; masses are added in fixed point.

struct LogitQuery {
    u32 token;       // the token to score, or SAMPLE
    u32 list, count; // the candidates unless ALL_TOKENS; with TRIE_NODE, `list` is the node's offset in the trie buffer
    u32 top_k;       // 0: no limit
    float temperature, top_p, min_p;
    float uniform; // uniform variate in [0, 1)
};
#define SAMPLE 0xffffffffu
#define ALL_TOKENS 0xffffffffu
#define TRIE_NODE 0xfffffffeu

struct LogitResult {
    u32 token;
    float logprob, aux;
    u32 next_node_plus_one; // 0 if not sampled at a trie node
};

struct LogitRow {
    const float* logits;
    const u32* list;
    int count;
    __device__ __forceinline__ u32 token(int i) const { return list ? list[i] : i; }
    __device__ __forceinline__ float logit(int i) const { return logits[token(i)]; }
};

// Exclusive prefix sum by thread. `total` receives the sum over the CTA.
template <typename T>
__device__ __forceinline__ T block_scan(T x, T* total) {
    __shared__ T warp_sums[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    T sum = x;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        T y = __shfl_up_sync(FULL_MASK, sum, o);
        if (lane >= o) sum += y;
    }
    __syncthreads();
    if (lane == 31) warp_sums[warp] = sum;
    __syncthreads();
    T prior = 0, all = 0;
    for (int w = 0; w < (int)(blockDim.x >> 5); w++) {
        if (w < warp) prior += warp_sums[w];
        all += warp_sums[w];
    }
    *total = all;
    return prior + sum - x;
}

// Sums over a set of candidates, relative to its largest logit: exponentials, exponentials at the sampling temperature,
// and exponentials times logits. `log2e_over_t` is log2(e) divided by the temperature.
struct LogitStats {
    float max_logit, sum, tempered_sum, weighted;
};

// The same sums relative to a larger logit.
__device__ __forceinline__ LogitStats rescale(LogitStats a, float max_logit, float log2e_over_t) {
    float f = exp2f((a.max_logit - max_logit) * LOG2E);
    if (a.max_logit == NEG_INF) return {max_logit, 0.f, 0.f, 0.f};
    return {max_logit, a.sum * f, a.tempered_sum * exp2f((a.max_logit - max_logit) * log2e_over_t), f * (a.weighted + a.sum * (a.max_logit - max_logit))};
}

__device__ __forceinline__ LogitStats merge(LogitStats a, LogitStats b, float log2e_over_t) {
    float max_logit = fmaxf(a.max_logit, b.max_logit);
    if (max_logit == NEG_INF) return a;
    a = rescale(a, max_logit, log2e_over_t), b = rescale(b, max_logit, log2e_over_t);
    return {max_logit, a.sum + b.sum, a.tempered_sum + b.tempered_sum, a.weighted + b.weighted};
}

// Candidates per warp: whole groups of four for every lane.
__device__ __forceinline__ int segment_length(const LogitRow& row) { return (row.count + 32 * 128 - 1) / (32 * 128) * 128; }

// Four neighbouring candidates. Those out of range are -inf.
__device__ __forceinline__ float4 load_logits4(const LogitRow& row, int i, int end) {
    if (!row.list && i + 4 <= end) return *(const float4*)(row.logits + i);
    float4 x;
    x.x = i < end ? row.logit(i) : NEG_INF, x.y = i + 1 < end ? row.logit(i + 1) : NEG_INF;
    x.z = i + 2 < end ? row.logit(i + 2) : NEG_INF, x.w = i + 3 < end ? row.logit(i + 3) : NEG_INF;
    return x;
}

// One pass over the 32 segments, one warp each. `segments` receives the sums of each segment. The total sum is NaN if a
// logit is not finite.
template <bool ENTROPY>
__device__ LogitStats row_stats(const LogitRow& row, float log2e_over_t, LogitStats* segments) {
    int lane = threadIdx.x & 31;
    bool has_temperature = log2e_over_t != LOG2E, non_finite = false;
    for (int segment_index = threadIdx.x >> 5; segment_index < 32; segment_index += blockDim.x >> 5) {
        int first = segment_index * segment_length(row), end = min(row.count, first + segment_length(row));
        LogitStats s = {NEG_INF, 0.f, 0.f, 0.f};
        // Four groups at a time, so that their loads overlap.
        for (int i = first + lane * 4; i < end; i += 4 * 128) {
            float4 x[4];
#pragma unroll
            for (int u = 0; u < 4; u++) x[u] = load_logits4(row, i + u * 128, end);
            float max_logit = NEG_INF;
#pragma unroll
            for (int u = 0; u < 4; u++) {
                max_logit = fmaxf(max_logit, fmaxf(fmaxf(x[u].x, x[u].y), fmaxf(x[u].z, x[u].w)));
                non_finite |= (x[u].x != x[u].x) | (x[u].y != x[u].y) | (x[u].z != x[u].z) | (x[u].w != x[u].w);
            }
            non_finite |= !(max_logit < -NEG_INF);
            if (max_logit > s.max_logit) s = rescale(s, max_logit, log2e_over_t);
            if (s.max_logit == NEG_INF) continue;
#pragma unroll
            for (int u = 0; u < 4; u++) {
                float v[4] = {x[u].x, x[u].y, x[u].z, x[u].w};
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float d = v[j] - s.max_logit, e = exp2f(d * LOG2E);
                    s.sum += e;
                    if (has_temperature) s.tempered_sum += exp2f(d * log2e_over_t);
                    if (ENTROPY && e > 0.f) s.weighted += e * d;
                }
            }
        }
        if (!has_temperature) s.tempered_sum = s.sum;
#pragma unroll
        for (int o = 16; o; o >>= 1) {
            LogitStats other = {__shfl_xor_sync(FULL_MASK, s.max_logit, o), __shfl_xor_sync(FULL_MASK, s.sum, o), __shfl_xor_sync(FULL_MASK, s.tempered_sum, o), __shfl_xor_sync(FULL_MASK, s.weighted, o)};
            // The same order in every lane, so that the warp agrees on the sum.
            s = (lane & o) ? merge(other, s, log2e_over_t) : merge(s, other, log2e_over_t);
        }
        if (lane == 0) segments[segment_index] = s;
    }
    non_finite = __syncthreads_or(non_finite);
    LogitStats s = segments[0];
    for (int segment_index = 1; segment_index < 32; segment_index++) s = merge(s, segments[segment_index], log2e_over_t);
    __syncthreads(); // the compiler may reuse the shared memory of `segments` while other warps still read it
    if (non_finite) s.sum = __int_as_float(0x7fc00000);
    return s;
}

__device__ LogitRow logit_row(const float* logits, size_t stride, int vocabulary, const u32* list, u32 count, int row) {
    const float* at = logits + row * stride;
    return count == ALL_TOKENS ? LogitRow{at, 0, vocabulary} : LogitRow{at, list, (int)count};
}

// The trie node that follows when candidate `at` is sampled. A node is its number of candidates, the candidates, and
// for each the index of the next node. If all tokens are candidates, it is ALL_TOKENS, a token, the node after that
// token, and the node after all others.
__device__ u32 next_trie_node(const u32* node, int at, u32 token) {
    return node[0] == ALL_TOKENS ? node[token == node[1] ? 2 : 3] : node[1 + node[0] + at];
}

// Weight of a candidate relative to the largest, which has weight 1.
__device__ __forceinline__ float weight(const LogitRow& row, int i, float max_logit, float log2e_over_t) { return exp2f((row.logit(i) - max_logit) * log2e_over_t); }
__device__ __forceinline__ u64 fixed_point_mass(float w) { return (u64)((double)w * 4294967296.0); }

// A prefix of the candidates: those whose weight bits exceed `bits`, and the first `num_equal` of those that equal it.
struct Threshold {
    u32 bits, num_equal;
};

// The shortest prefix with `required` candidates or, by mass, with that much mass.
__device__ Threshold select_threshold(const LogitRow& row, float max_logit, float log2e_over_t, u64 required, bool by_mass) {
    __shared__ u64 bins[256];
    __shared__ u32 selected;
    __shared__ u64 remaining;
    u32 prefix = 0, known = 0; // digits found so far, and their mask
    u64 needed = required;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += blockDim.x) bins[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < row.count; i += blockDim.x) {
            float w = weight(row, i, max_logit, log2e_over_t);
            u32 bits = __float_as_uint(w);
            if ((bits & known) == prefix) atomicAdd(&bins[(bits >> shift) & 255], by_mass ? fixed_point_mass(w) : 1ull);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            u64 left_over = needed;
            int b = 255;
            while (b > 0 && bins[b] < left_over) left_over -= bins[b--];
            selected = b, remaining = left_over;
        }
        __syncthreads();
        prefix |= selected << shift, known |= 255u << shift, needed = remaining;
        __syncthreads();
    }
    u64 mass_each = by_mass ? fixed_point_mass(__uint_as_float(prefix)) : 1;
    u64 num_equal = mass_each ? (needed + mass_each - 1) / mass_each : row.count;
    return {prefix, (u32)(num_equal > 0xffffffffull ? 0xffffffffull : num_equal)};
}

__device__ __forceinline__ Threshold stricter(Threshold a, Threshold b) {
    if (a.bits != b.bits) return a.bits > b.bits ? a : b;
    return a.num_equal < b.num_equal ? a : b;
}

// The mass of a prefix.
__device__ u64 prefix_mass(const LogitRow& row, float max_logit, float log2e_over_t, Threshold threshold) {
    u64 sum = 0, num_equal = 0;
    for (int i = threadIdx.x; i < row.count; i += blockDim.x) {
        float w = weight(row, i, max_logit, log2e_over_t);
        u32 bits = __float_as_uint(w);
        if (bits > threshold.bits) sum += fixed_point_mass(w);
        if (bits == threshold.bits) num_equal++;
    }
    u64 total, total_equal;
    block_scan<u64>(sum, &total);
    block_scan<u64>(num_equal, &total_equal);
    u64 num_kept = total_equal < threshold.num_equal ? total_equal : threshold.num_equal;
    return total + num_kept * fixed_point_mass(__uint_as_float(threshold.bits));
}

// The last segment with non-zero mass that starts at or before the target, and its start.
template <typename F>
__device__ __forceinline__ int find_segment(float target, float* start, F mass_at) {
    int found = 0;
    float next = *start;
    for (int segment_index = 0; segment_index < 32; segment_index++) {
        float m = mass_at(segment_index);
        if (m > 0.f && next <= target) found = segment_index, *start = next;
        next += m;
    }
    return found;
}

// Samples from all candidates: finds the segment, then its sub-segment, then the position in it, which one warp
// searches. Greedy sampling takes the first of the largest logits.
__device__ int sample_token(const LogitRow& row, const LogitQuery& query, const LogitStats& s, const LogitStats* segments, float log2e_over_t, float* logprob) {
    __shared__ int found;
    __shared__ float sub_masses[32];
    bool greedy = query.temperature == 0.f;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, segment = 0;
    float start = 0.f, target = query.uniform * s.tempered_sum;
    if (threadIdx.x == 0) found = greedy ? row.count - 1 : 0;
    if (greedy) {
        while (segment < 31 && segments[segment].max_logit != s.max_logit) segment++;
    } else {
        segment = find_segment(target, &start, [&](int segment_index) { return rescale(segments[segment_index], s.max_logit, log2e_over_t).tempered_sum; });
    }
    int first = segment * segment_length(row), end = min(row.count, first + segment_length(row)), sub_length = (segment_length(row) / 128 + 31) / 32 * 128;
    __syncthreads();
    for (int sub = warp; sub < 32; sub += blockDim.x >> 5) {
        int stop = min(end, first + (sub + 1) * sub_length);
        float sub_mass = 0.f;
        for (int i = first + sub * sub_length + lane * 4; i < stop; i += 128) {
            float4 x = load_logits4(row, i, stop);
            float v[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (greedy && v[j] == s.max_logit) atomicMin(&found, i + j);
                sub_mass += exp2f((v[j] - s.max_logit) * log2e_over_t);
            }
        }
        sub_mass = warp_sum(sub_mass);
        if (lane == 0) sub_masses[sub] = sub_mass;
    }
    __syncthreads();
    if (!greedy && warp == 0) {
        int sub = find_segment(target, &start, [&](int sub) { return sub_masses[sub]; }), best = -1;
        int stop = min(end, first + (sub + 1) * sub_length);
        bool done = false;
        for (int i = first + sub * sub_length + lane * 4; !done && __any_sync(FULL_MASK, i < stop); i += 128) {
            float4 x = load_logits4(row, i, stop);
            float v[4] = {x.x, x.y, x.z, x.w}, sum = 0.f;
#pragma unroll
            for (int j = 0; j < 4; j++) v[j] = exp2f((v[j] - s.max_logit) * log2e_over_t), sum += v[j];
            float inclusive = sum;
#pragma unroll
            for (int o = 1; o < 32; o <<= 1) {
                float y = __shfl_up_sync(FULL_MASK, inclusive, o);
                if (lane >= o) inclusive += y;
            }
            float at = start + (inclusive - sum); // the first candidate with non-zero weight lies exactly at `start`, which is never beyond the target
            int candidate_index = -1;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (v[j] > 0.f && at <= target) candidate_index = i + j;
                at += v[j];
            }
            for (int o = 16; o; o >>= 1) candidate_index = max(candidate_index, __shfl_xor_sync(FULL_MASK, candidate_index, o));
            best = max(best, candidate_index);
            start += __shfl_sync(FULL_MASK, inclusive, 31);
            done = start > target && best >= 0;
        }
        if (lane == 0 && best >= 0) found = best;
    }
    __syncthreads();
    int at = found;
    *logprob = greedy ? 0.f : logf(weight(row, at, s.max_logit, log2e_over_t) / s.tempered_sum);
    return at;
}

// Samples from a filtered prefix of the candidates.
__device__ int sample_filtered(const LogitRow& row, const LogitQuery& query, const LogitStats& s, float log2e_over_t, float* logprob) {
    __shared__ int found;
    Threshold threshold = {0, 0xffffffffu};
    if (query.top_k && query.top_k < row.count) threshold = select_threshold(row, s.max_logit, log2e_over_t, query.top_k, false);
    if (query.top_p < 1.f) {
        u64 total = prefix_mass(row, s.max_logit, log2e_over_t, threshold);
        u64 required = (u64)((double)query.top_p * (double)total);
        threshold = stricter(threshold, select_threshold(row, s.max_logit, log2e_over_t, required ? required : 1, true));
    }
    // Keeps every candidate of at least this weight, including equal ones.
    if (query.min_p > 0.f) threshold = stricter(threshold, Threshold{__float_as_uint(query.min_p), 0xffffffffu});
    float total = 0.f;
    if (threadIdx.x == 0) found = -1;
    // Two passes over the same tiles: the first computes the total, the second finds the position.
    for (int pass = 0; pass < 2; pass++) {
        float target = query.uniform * total, prior = 0.f;
        u32 num_equal = 0;
        for (int start = 0; start < row.count; start += blockDim.x) {
            int i = start + threadIdx.x;
            float w = i < row.count ? weight(row, i, s.max_logit, log2e_over_t) : 0.f, tile_sum;
            u32 bits = __float_as_uint(w), tile_equal;
            u32 rank = block_scan<u32>(i < row.count && bits == threshold.bits, &tile_equal) + num_equal;
            num_equal += tile_equal;
            if (bits < threshold.bits || (bits == threshold.bits && rank >= threshold.num_equal)) w = 0.f;
            float prefix = block_scan<float>(w, &tile_sum);
            if (pass && w > 0.f && prior + prefix <= target) atomicMax(&found, i);
            prior += tile_sum;
            __syncthreads();
            if (pass && prior > target && found >= 0) break;
        }
        if (pass == 0) total = prior;
    }
    __syncthreads();
    int at = found < 0 ? 0 : found;
    *logprob = logf(weight(row, at, s.max_logit, log2e_over_t) / total);
    return at;
}

// One CTA per row of logits; two CTAs fit on one SM.
extern "C" __global__ void __launch_bounds__(512, 2) sample_or_score(const float* logits, u64 stride, int vocabulary, const u32* inputs, const u32* tries, int queries_offset, LogitResult* results) {
    __shared__ LogitStats segments[32];
    LogitQuery query = ((const LogitQuery*)(inputs + queries_offset))[blockIdx.x];
    const u32* node = query.count == TRIE_NODE ? tries + query.list : 0;
    LogitRow row = node ? logit_row(logits, stride, vocabulary, node + 1, node[0], blockIdx.x)
                   : logit_row(logits, stride, vocabulary, inputs + query.list, query.count, blockIdx.x);
    LogitResult a = {query.token, 0.f, 0.f, 0};
    LogitStats s;
    if (query.token != SAMPLE) {
        s = row_stats<true>(row, LOG2E, segments);
        a.aux = logf(s.sum) - s.weighted / s.sum;
    } else {
        float log2e_over_t = query.temperature > 0.f ? LOG2E / query.temperature : LOG2E;
        s = row_stats<false>(row, log2e_over_t, segments);
        bool filtered = query.temperature > 0.f && ((query.top_k && query.top_k < row.count) || query.top_p < 1.f || query.min_p > 0.f);
        if (!(s.sum > 0.f)) {
            a.token = 0, a.aux = s.sum;
        } else {
            int at = filtered ? sample_filtered(row, query, s, log2e_over_t, &a.aux) : sample_token(row, query, s, segments, log2e_over_t, &a.aux);
            a.token = row.token(at);
            if (node && threadIdx.x == 0) a.next_node_plus_one = 1 + next_trie_node(node, at, a.token);
        }
    }
    a.logprob = row.logits[a.token] - s.max_logit - logf(s.sum);
    if (threadIdx.x == 0) results[blockIdx.x] = a;
}

// Log-probability, entropy and logsumexp of each row's target token.
extern "C" __global__ void __launch_bounds__(512, 2) token_logprobs(const float* logits, u64 stride, int vocabulary, const u32* inputs, int queries_offset, float4* out) {
    __shared__ LogitStats segments[32];
    LogitQuery query = ((const LogitQuery*)(inputs + queries_offset))[blockIdx.x];
    LogitRow row = logit_row(logits, stride, vocabulary, inputs + query.list, query.count, blockIdx.x);
    LogitStats s = row_stats<true>(row, LOG2E, segments);
    float log_sum = logf(s.sum);
    if (threadIdx.x == 0) out[blockIdx.x] = make_float4(row.logits[query.token] - s.max_logit - log_sum, log_sum - s.weighted / s.sum, log_sum + s.max_logit, 0.f);
}

__device__ __forceinline__ float logit_grad(float logit, bool selected, float4 token_stats, float2 grad) {
    float l = logit - token_stats.z, p = exp2f(l * LOG2E);
    float d = grad.x * ((selected ? 1.f : 0.f) - p);
    return p > 0.f && grad.y != 0.f ? d - grad.y * p * (l + token_stats.y) : d;
}

// Gradient of the loss with respect to logits, given its gradients with respect to log-probability and entropy of each
// row.
extern "C" __global__ void __launch_bounds__(1024) token_logprobs_grad(const float* logits, u64 stride, int vocabulary, const u32* inputs, int queries_offset, const float4* all_token_stats, const float2* grads, bf16* to) {
    LogitQuery query = ((const LogitQuery*)(inputs + queries_offset))[blockIdx.x];
    LogitRow row = logit_row(logits, stride, vocabulary, inputs + query.list, query.count, blockIdx.x);
    float4 token_stats = all_token_stats[blockIdx.x];
    float2 grad = grads[blockIdx.x];
    bf16* out = to + blockIdx.x * stride;
    if (row.list) {
        for (int i = threadIdx.x * 8; i < (int)stride; i += blockDim.x * 8) *(uint4*)(out + i) = make_uint4(0, 0, 0, 0);
        __syncthreads();
        for (int i = threadIdx.x; i < row.count; i += blockDim.x) {
            u32 token = row.token(i);
            out[token] = to_bf16(logit_grad(row.logits[token], token == query.token, token_stats, grad));
        }
        return;
    }
    // Rows are padded to multiples of eight. The gradient of the padding is 0.
    for (int i = threadIdx.x * 4; i < (int)stride; i += blockDim.x * 4) {
        float4 x = *(const float4*)(row.logits + i);
        float v[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = i + j < vocabulary ? logit_grad(v[j], i + j == query.token, token_stats, grad) : 0.f;
        *(uint2*)(out + i) = make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
    }
}
