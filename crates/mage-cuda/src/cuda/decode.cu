// One new token of each of many sequences, over keys and values in pages.
//
// The work is cut into pieces: one sequence's pages of one key head, or some of them where there are few sequences. A warp
// takes a piece after the other from a line. Two pages are always on their way to its part of shared memory, the next
// piece's too, while two are worked on: their 32 keys meet all query heads of the group on tensor cores, and the weights
// their values.

#define WARPS DECODE_WARPS
#define STAGES 2
#define SETS ((GROUP + 7) / 8) // of eight queries
#define SHARE (GROUP * (HD + 2))
#define PAGE_BYTES (16 * WIDTH * 2) // a page's keys, or its values
#define SIDE_BYTES (2 * PAGE_BYTES)
#define STAGE_BYTES (2 * SIDE_BYTES)

// What a warp keeps in shared memory besides its pages.
struct Desk {
    __align__(16) bf16 queries[GROUP][WIDTH];
    __align__(16) bf16 fresh[2][WIDTH]; // the new token's key and value
    int line[STAGES + 2];               // pieces begun and not yet ended, and one to round it off
};
static_assert(WARPS * (STAGES * STAGE_BYTES + sizeof(Desk)) == DECODE_SHARED, "what is used is what is asked for");

// Where 16 bytes of a page's row are.
__device__ __forceinline__ u32 spot(u32 base, int row, int bit) {
#if PIECES >= 8
    bit ^= row & 7;
#elif PIECES == 4
    bit ^= (row >> 1) & 3;
#else
    bit ^= (row >> 2) & 1;
#endif
    return base + (row * PIECES + bit) * 16;
}

__device__ __forceinline__ void put(u32 to, uint4 x) { asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory"); }

// Eight rows of eight numbers, each lane having two of a row, turned round.
__device__ __forceinline__ u32 flipped(u32 x) {
    u32 y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

struct Piece {
    int row, head, split, position, first, end;
    const u32* table;
};

// From raw queries, keys and values of the new tokens: norms and turns them, puts the key and the value into their cell, and
// attends. `line` counts pieces that were drawn, and blocks that are done.
extern "C" __global__ void __launch_bounds__(WARPS * 32) decode_attention(const bf16* qkv, const bf16* w, float epsilon, const float* turns, bf16* pages, const u32* packet, int tables_at, int lists_at, int positions_at, int heads, int kv, float scale, bf16* out, float* parts, u32* done, int rows, int splits, u32* line) {
    others_may_come();
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    Desk& desk = ((Desk*)(shared + WARPS * STAGES * STAGE_BYTES))[warp];
    u32 base = (u32)__cvta_generic_to_shared(shared) + warp * STAGES * STAGE_BYTES;
    size_t page_stride = (size_t)2 * kv * 16 * HD, values_at = (size_t)kv * 16 * HD;
    int all = rows * kv * splits, began = 0, ended = 0;
    auto piece_of = [&](int i) {
        int row = i / splits / kv, split = i % splits;
        int position = packet[positions_at + row]; // as many keys are in the pages already
        int count = position / 16 + 1, share = (count + splits - 1) / splits, first = split * share;
        return Piece{row, i / splits % kv, split, position, first, min(count, first + share), packet + tables_at + packet[lists_at + row]};
    };
    // The piece that pages are brought from, the next of them, and what was drawn to come after it.
    Piece from;
    int page, after = 0, to_stage = 0, stage = 0;
    auto open = [&](int i) {
        page = -1;
        if (i < all) {
            from = piece_of(i), page = from.first;
            if (lane == 0) after = gridDim.x * WARPS + atomicAdd(line, 1);
        }
        if (lane == 0) desk.line[began % (STAGES + 1)] = i < all ? i : -1;
        began++;
    };
    // A lane has the same 16 bytes of every 512; rows' permutations differ in a few bits only.
    constexpr int rows_at_once = 32 / PIECES, times = 16 / rows_at_once;
    int first_row = lane / PIECES, bit = lane % PIECES;
    u32 own_spot = spot(0, first_row, bit);
    size_t own = (size_t)first_row * HD + bit * 8;
    bool mine = bit * 8 < HD;
    auto bring = [&]() {
        if (page >= 0) {
#pragma unroll
            for (int which = 0; which < 2; which++) {
                if (page + which >= from.end) continue;
                const bf16* at = pages + from.table[page + which] * page_stride + (size_t)from.head * 16 * HD + own;
                // Where there is no number, and where the new token's will be, are zeros.
                int old = mine ? from.position - (page + which) * 16 : 0;
#pragma unroll
                for (int side = 0; side < 2; side++)
#pragma unroll
                    for (int n = 0; n < times; n++) {
                        u32 to = base + to_stage * STAGE_BYTES + side * SIDE_BYTES + which * PAGE_BYTES + n * 512;
                        bool there = first_row + n * rows_at_once < old;
                        const bf16* x = at + side * values_at + n * rows_at_once * HD;
                        fetch(to + (own_spot ^ (n * rows_at_once % 8 * (PIECES >= 8) << 4)), there ? x : pages, there);
                    }
            }
            page += 2;
            if (page >= from.end) open(__shfl_sync(FULL, after, 0));
        }
        fetched();
        to_stage = (to_stage + 1) % STAGES;
    };
    u32 key_spot = spot(0, lane & 15, lane >> 4), value_spot = spot(0, (lane & 7) + (lane >> 4 << 3), (lane >> 3) & 1);
    open(warp * gridDim.x + blockIdx.x); // spread over the blocks where there are few
    for (int i = 1; i < STAGES; i++) bring();
    after_others(); // who may still be at `qkv`: what is in the pages is older
    float factor = scale * LOG2E;
    for (;;) {
        __syncwarp();
        int id = desk.line[ended++ % (STAGES + 1)];
        if (id < 0) break;
        Piece now = piece_of(id);
        int newest = now.position >> 4;
        bool here = now.first <= newest && newest < now.end;
        const bf16* raw = qkv + (size_t)now.row * (heads + 2 * kv) * HD;
        const bf16* value = raw + (size_t)(heads + kv + now.head) * HD;
        const float* turn = turns + (size_t)now.position * HD;
        bf16* cell = pages + now.table[newest] * page_stride + ((size_t)now.head * 16 + (now.position & 15)) * HD;
#pragma unroll 3
        for (int unit = 0; unit < GROUP + here; unit++) {
            bool key = unit == GROUP;
            float x[PAIRS][4];
            turned(raw + (size_t)(key ? heads + now.head : now.head * GROUP + unit) * HD, key ? w + HD : w, epsilon, turn, x);
            bf16* to = key ? desk.fresh[0] : desk.queries[unit];
#pragma unroll
            for (int p = 0; p < PAIRS; p++) {
                int i = p * 64 + lane * 2;
                if (i >= HALF) continue;
                u32 one = pair(x[p][0], x[p][1]), two = pair(x[p][2], x[p][3]);
                *(u32*)(to + i) = one, *(u32*)(to + HALF + i) = two;
                if (!key) continue;
                u32 three = *(const u32*)(value + i), four = *(const u32*)(value + HALF + i);
                *(u32*)(desk.fresh[1] + i) = three, *(u32*)(desk.fresh[1] + HALF + i) = four;
                *(u32*)(cell + i) = one, *(u32*)(cell + HALF + i) = two;
                *(u32*)(cell + values_at + i) = three, *(u32*)(cell + values_at + HALF + i) = four;
            }
        }
        __syncwarp();
        u32 q[SETS][STEPS][2];
        float o[SETS][STEPS][4] = {}, m[SETS][2], l[SETS][2];
#pragma unroll
        for (int set = 0; set < SETS; set++) {
            m[set][0] = m[set][1] = NEVER, l[set][0] = l[set][1] = 0.f;
#pragma unroll
            for (int j = 0; j < STEPS; j++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    int query = set * 8 + g, i = j * 16 + h * 8 + 2 * t;
                    q[set][j][h] = query < GROUP && i < HD ? *(const u32*)(desk.queries[query] + i) : 0;
                }
        }
        // A piece without pages, too, has a stage.
        for (int i = now.first; i < now.end || i == now.first; i += 2) {
            bring();
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
            __syncwarp();
            u32 keys = base + stage * STAGE_BYTES, values = keys + SIDE_BYTES;
            stage = (stage + 1) % STAGES;
            if (i >= now.end) break;
            int fresh = now.position - i * 16, there = min(fresh + 1, (now.end - i) * 16);
            if (here && fresh < 32) {
                if ((lane & 15) * 8 < HD) put(spot(lane < 16 ? keys : values, fresh, lane & 15), *(const uint4*)(desk.fresh[lane >> 4] + (lane & 15) * 8));
                __syncwarp();
            }
            // Rows are keys, columns queries; sums in two parts, so that none waits long for the one before it.
            float s[SETS][2][4] = {}, more[SETS][2][4] = {};
#pragma unroll
            for (int j = 0; j < STEPS; j++)
#pragma unroll
                for (int which = 0; which < 2; which++) {
                    u32 a[4];
                    load4(a, keys + which * PAGE_BYTES + (key_spot ^ (j << 5)));
#pragma unroll
                    for (int set = 0; set < SETS; set++) multiply(j & 1 ? more[set][which] : s[set][which], a, q[set][j]);
                }
            u32 weights[SETS][2][2];
#pragma unroll
            for (int set = 0; set < SETS; set++) {
                float f[2];
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    float x[4], most = m[set][h];
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        int c = h + 2 * (k & 1);
                        x[k] = g + 8 * k < there ? (s[set][k >> 1][c] + more[set][k >> 1][c]) * factor : NEVER;
                        most = fmaxf(most, x[k]);
                    }
#pragma unroll
                    for (int offset = 4; offset < 32; offset <<= 1) most = fmaxf(most, __shfl_xor_sync(FULL, most, offset));
                    f[h] = exp2f(m[set][h] - most), m[set][h] = most, l[set][h] *= f[h];
#pragma unroll
                    for (int k = 0; k < 4; k++) s[set][k >> 1][h + 2 * (k & 1)] = x[k] = exp2f(x[k] - most), l[set][h] += x[k];
                }
                if (__any_sync(FULL, f[0] != 1.f || f[1] != 1.f))
#pragma unroll
                    for (int j = 0; j < STEPS; j++) o[set][j][0] *= f[0], o[set][j][1] *= f[1], o[set][j][2] *= f[0], o[set][j][3] *= f[1];
#pragma unroll
                for (int k = 0; k < 4; k++) weights[set][k >> 1][k & 1] = flipped(pair(s[set][k >> 1][2 * (k & 1)], s[set][k >> 1][2 * (k & 1) + 1]));
            }
            // Rows are a value's numbers, columns queries.
#pragma unroll
            for (int which = 0; which < 2; which++) {
                if (i + which >= now.end) continue; // who knows what is there
#pragma unroll
                for (int j = 0; j < STEPS; j++) {
                    u32 a[4];
                    load4_turned(a, values + which * PAGE_BYTES + (value_spot ^ (j << 5)));
#pragma unroll
                    for (int set = 0; set < SETS; set++) multiply(o[set][j], a, weights[set][which]);
                }
            }
            __syncwarp(); // all have read them before others come
        }
        // Where others have the rest of the sequence, the last to finish adds all up.
        size_t mine = (size_t)now.row * kv + now.head;
#pragma unroll
        for (int set = 0; set < SETS; set++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
#pragma unroll
                for (int offset = 4; offset < 32; offset <<= 1) l[set][h] += __shfl_xor_sync(FULL, l[set][h], offset);
                int query = set * 8 + 2 * t + h;
                if (query >= GROUP) continue;
                bf16* to = out + ((size_t)now.row * heads + now.head * GROUP + query) * HD;
                float* part = parts + (mine * splits + now.split) * SHARE + query * (HD + 2);
                float f = 1.f / l[set][h];
#pragma unroll
                for (int j = 0; j < STEPS; j++)
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        int i = j * 16 + half * 8 + g;
                        if (i >= HD) continue;
                        if (splits == 1) to[i] = narrow(o[set][j][2 * half + h] * f);
                        else part[i] = o[set][j][2 * half + h];
                    }
                if (splits > 1 && g == 0) part[HD] = m[set][h], part[HD + 1] = l[set][h];
            }
        if (splits == 1) continue;
        __threadfence();
        __syncwarp();
        u32 before = lane == 0 ? atomicAdd(done + mine, 1) : 0;
        if (__shfl_sync(FULL, before, 0) != splits - 1) continue;
        __threadfence();
        if (lane == 0) done[mine] = 0;
        for (int i = lane; i < GROUP * HD; i += 32) {
            int query = i / HD, at = i % HD;
            const volatile float* part = parts + mine * splits * SHARE + query * (HD + 2);
            float most = NEVER, sum = 0.f, total = 0.f;
            for (int k = 0; k < splits; k++) most = fmaxf(most, part[(size_t)k * SHARE + HD]);
            for (int k = 0; k < splits; k++) {
                float other = part[(size_t)k * SHARE + HD], f = other == NEVER ? 0.f : exp2f(other - most);
                sum += f * part[(size_t)k * SHARE + at], total += f * part[(size_t)k * SHARE + HD + 1];
            }
            out[((size_t)now.row * heads + now.head * GROUP + query) * HD + at] = narrow(sum / total);
        }
    }
    // The last block to leave puts the counters back.
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(line + 1, 1) == gridDim.x - 1) line[0] = line[1] = 0;
}

// Whole pages of one layer's space, one copy after the other. A thread has the same 16 bytes of every page.
extern "C" __global__ void copy_pages(uint4* pages, const u32* copies, int count, int page16, u64 layer16) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= page16) return;
    uint4* layer = pages + blockIdx.y * layer16;
    for (int c = 0; c < count; c++) layer[(size_t)copies[2 * c + 1] * page16 + i] = layer[(size_t)copies[2 * c] * page16 + i];
}
