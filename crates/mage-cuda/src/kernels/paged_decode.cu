// One new token of each of many sequences, over keys and values in pages.
//
// The work is cut into pieces: one sequence's pages of one key head, or some of them where there are few sequences. A warp
// takes a piece after the other from a line. Some pages are always on their way to its part of shared memory, the next
// piece's too, while one is worked on: its 16 keys meet all query heads of the group on tensor cores, and the weights their
// values.
//
// Memory answers in turn: whoever needs a number that was not asked for before waits until all these pages are there. So all
// that a piece begins with is asked for long before. And a card that has more than enough on its way is slower than one that
// has just enough: four warps of a multiprocessor with 32 KiB each.

#define STAGES DECODE_STAGES // pages that a warp has room for
#define SETS ((GROUP + 7) / 8) // of eight queries
#define SHARE (GROUP * (HD + 2))
#define PAGE_BYTES (16 * WIDTH * 2) // a page's keys, or its values
#define STAGE_BYTES (2 * PAGE_BYTES)

// What comes with a piece's first pages.
struct Token {
    __align__(16) bf16 rows[GROUP + 2][WIDTH]; // queries, key and value of the new token: raw, then normed and turned
    __align__(16) float turn[WIDTH];
    __align__(16) u32 page; // where its cell is
};

// What a warp keeps in shared memory besides its pages.
struct Desk {
    Token tokens[STAGES];
    __align__(16) int2 line[STAGES + 2]; // pieces begun and not yet ended, their positions, and one to round it off
};
static_assert(STAGES * STAGE_BYTES + sizeof(Desk) == DECODE_SHARED, "what a warp uses is what is asked for");

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

// 16 bytes that nobody reads again: whatever else is in the cache stays rather than they.
__device__ __forceinline__ void fetch_once(u32 to, const void* from, bool there, u64 policy) {
    int bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from), "r"(bytes), "l"(policy));
}
__device__ __forceinline__ void fetch_word(u32* to, const u32* from) { asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from)); }

struct Piece {
    int row, head, split, position, first, end;
};

// From raw queries, keys and values of the new tokens: norms and turns them, puts the key and the value into their cell, and
// attends. `line` counts pieces that were drawn, and blocks that are done.
extern "C" __global__ void __launch_bounds__(256, 1) decode_attention(const bf16* qkv, const bf16* w, float epsilon, const float* turns, bf16* pages, const u32* packet, int tables_at, int lists_at, int positions_at, int heads, int kv, float scale, bf16* out, float* parts, u32* done, int rows, int splits, u32* line) {
    others_may_come();
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    int warps = blockDim.x >> 5;
    Desk& desk = ((Desk*)(shared + warps * STAGES * STAGE_BYTES))[warp];
    u32 base = (u32)__cvta_generic_to_shared(shared) + warp * STAGES * STAGE_BYTES;
    size_t page_stride = (size_t)2 * kv * 16 * HD, values_at = (size_t)kv * 16 * HD;
    int all = rows * kv * splits, began = 0, ended = 0;
    auto piece_of = [&](int i, int position) { // as many keys are in the pages already
        int count = position / 16 + 1, share = (count + splits - 1) / splits, split = i % splits, first = split * share;
        return Piece{i / splits / kv, i / splits % kv, split, position, first, min(count, first + share)};
    };
    // The piece that pages are brought from, the next of them, and its number.
    Piece from;
    const u32* table;
    u32 number;
    int page, to_stage = 0, stage = 0;
    // What was drawn to come after it, and, once it was looked up, about it.
    int after = 0;
    u32 position, list;
    bool known = false;
    auto look_up = [&](int i) {
        known = true, after = i;
        if (i < all) position = packet[positions_at + i / splits / kv], list = packet[lists_at + i / splits / kv];
    };
    auto open = [&]() {
        bool any = after < all;
        if (lane == 0) desk.line[began % (STAGES + 1)] = make_int2(any ? after : -1, position);
        began++;
        page = -1, known = false;
        if (!any) return;
        from = piece_of(after, position), page = from.first, table = packet + tables_at + list;
        if (page < from.end) number = table[page];
        // As it is, since the compiler would have every lane wait for what `atomicAdd` says.
        if (lane == 0) asm volatile("atom.global.add.u32 %0, [%1], 1;" : "=r"(after) : "l"(line) : "memory");
    };
    // A lane has the same 16 bytes of every 512; rows' permutations differ in a few bits only.
    constexpr int rows_at_once = 32 / PIECES, times = 16 / rows_at_once;
    int first_row = lane / PIECES, bit = lane % PIECES;
    u32 own_spot = spot(0, first_row, bit);
    size_t own = (size_t)first_row * HD + bit * 8;
    bool mine = bit * 8 < HD;
    auto ask_for_token = [&](const Piece& piece, const u32* table, Token& token) {
        const bf16* raw = qkv + (size_t)piece.row * (heads + 2 * kv) * HD + bit * 8;
#pragma unroll
        for (int n = 0; n < GROUP + 2; n += rows_at_once) {
            int unit = n + first_row, row = unit < GROUP ? piece.head * GROUP + unit : heads + (unit - GROUP) * kv + piece.head;
            if (unit < GROUP + 2 && mine) fetch((u32)__cvta_generic_to_shared(token.rows[unit] + bit * 8), raw + (size_t)row * HD, true);
        }
        if (lane * 4 < HD) fetch((u32)__cvta_generic_to_shared(token.turn + lane * 4), turns + (size_t)piece.position * HD + lane * 4, true);
        if (lane == 0) fetch_word(&token.page, table + (piece.position >> 4));
    };
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    auto bring = [&](bool tokens) {
        if (page >= 0) {
            if (tokens && page == from.first) ask_for_token(from, table, desk.tokens[(began - 1) % STAGES]);
            if (page < from.end) {
                const bf16* at = pages + number * page_stride + (size_t)from.head * 16 * HD + own;
                // Where there is no number, and where the new token's will be, are zeros.
                int old = mine ? from.position - page * 16 : 0;
#pragma unroll
                for (int side = 0; side < 2; side++)
#pragma unroll
                    for (int n = 0; n < times; n++) {
                        u32 to = base + to_stage * STAGE_BYTES + side * PAGE_BYTES + n * 512;
                        bool there = first_row + n * rows_at_once < old;
                        const bf16* x = at + side * values_at + n * rows_at_once * HD;
                        fetch_once(to + (own_spot ^ (n * rows_at_once % 8 * (PIECES >= 8) << 4)), there ? x : pages, there, policy);
                    }
            }
            page++;
            bool over = page >= from.end;
            if (!known && (over || page >= from.first + 6)) look_up(gridDim.x * warps + __shfl_sync(FULL, after, 0));
            if (over) open();
            else number = table[page];
        }
        fetched();
        to_stage = (to_stage + 1) % STAGES;
    };
    u32 key_spot = spot(0, lane & 15, lane >> 4), value_spot = spot(0, (lane & 7) + (lane >> 4 << 3), (lane >> 3) & 1);
    look_up(warp * gridDim.x + blockIdx.x); // spread over the blocks where there are few
    open();
    bool any = page >= 0;
    Piece opened = from;
    const u32* its_table = table;
    bring(false);
    // Others may still be at `qkv`; what is in the pages is older. The line may even still count for the layer before: whoever
    // draws from it then draws nothing, but there is a block that starts only when that layer's last has ended and put it back.
    after_others();
    if (any) ask_for_token(opened, its_table, desk.tokens[0]);
    fetched();
    for (int i = 2; i < STAGES; i++) bring(true);
    float factor = scale * LOG2E;
    for (;;) {
        __syncwarp();
        int2 begun = desk.line[ended % (STAGES + 1)];
        if (begun.x < 0) break;
        Piece now = piece_of(begun.x, begun.y);
        Token& token = desk.tokens[ended++ % STAGES];
        int newest = now.position >> 4;
        u32 q[SETS][STEPS][2];
        float o[SETS][STEPS][4] = {}, m[SETS][2], l[SETS][2];
#pragma unroll
        for (int set = 0; set < SETS; set++) m[set][0] = m[set][1] = NEVER, l[set][0] = l[set][1] = 0.f;
        // A piece without pages, too, has a stage.
        for (int i = now.first; i < now.end || i == now.first; i++) {
            bring(true);
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
            __syncwarp();
            u32 keys = base + stage * STAGE_BYTES, values = keys + PAGE_BYTES;
            stage = (stage + 1) % STAGES;
            if (i >= now.end) break;
            if (i == now.first) {
                // Side by side: sums over a warp take long, and none waits for another.
                float x[GROUP + 1][PAIRS][4], squares[GROUP + 1];
#pragma unroll
                for (int unit = 0; unit <= GROUP; unit++) squares[unit] = taken(token.rows[unit], x[unit]);
#pragma unroll
                for (int offset = 16; offset; offset >>= 1)
#pragma unroll
                    for (int unit = 0; unit <= GROUP; unit++) squares[unit] += __shfl_xor_sync(FULL, squares[unit], offset);
#pragma unroll
                for (int unit = 0; unit <= GROUP; unit++) {
                    bf16* row = token.rows[unit];
                    normed_and_turned(squares[unit], unit < GROUP ? w : w + HD, epsilon, token.turn, x[unit]);
#pragma unroll
                    for (int p = 0; p < PAIRS; p++) {
                        int i = p * 64 + lane * 2;
                        if (i < HALF) *(u32*)(row + i) = pair(x[unit][p][0], x[unit][p][1]), *(u32*)(row + HALF + i) = pair(x[unit][p][2], x[unit][p][3]);
                    }
                }
                __syncwarp();
#pragma unroll
                for (int set = 0; set < SETS; set++)
#pragma unroll
                    for (int j = 0; j < STEPS; j++)
#pragma unroll
                        for (int h = 0; h < 2; h++) {
                            int query = set * 8 + g, i = j * 16 + h * 8 + 2 * t;
                            q[set][j][h] = query < GROUP && i < HD ? *(const u32*)(token.rows[query] + i) : 0;
                        }
            }
            int there = min(now.position + 1 - i * 16, 16);
            if (i == newest) {
                int side = lane >> 4, part = lane & 15, row = now.position & 15;
                if (part * 8 < HD) {
                    uint4 x = *(const uint4*)(token.rows[GROUP + side] + part * 8);
                    put(spot(side ? values : keys, row, part), x);
                    *(uint4*)(pages + token.page * page_stride + side * values_at + ((size_t)now.head * 16 + row) * HD + part * 8) = x;
                }
                __syncwarp();
            }
            // Rows are keys, columns queries; sums in two parts, so that none waits long for the one before it.
            float s[SETS][4] = {}, more[SETS][4] = {};
#pragma unroll
            for (int j = 0; j < STEPS; j++) {
                u32 a[4];
                load4(a, keys + (key_spot ^ (j << 5)));
#pragma unroll
                for (int set = 0; set < SETS; set++) multiply(j & 1 ? more[set] : s[set], a, q[set][j]);
            }
            u32 weights[SETS][2];
#pragma unroll
            for (int set = 0; set < SETS; set++) {
                float f[2];
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    float x[2], most = m[set][h];
#pragma unroll
                    for (int k = 0; k < 2; k++) {
                        int c = h + 2 * k;
                        x[k] = g + 8 * k < there ? (s[set][c] + more[set][c]) * factor : NEVER;
                        most = fmaxf(most, x[k]);
                    }
#pragma unroll
                    for (int offset = 4; offset < 32; offset <<= 1) most = fmaxf(most, __shfl_xor_sync(FULL, most, offset));
                    f[h] = exp2f(m[set][h] - most), m[set][h] = most, l[set][h] *= f[h];
#pragma unroll
                    for (int k = 0; k < 2; k++) s[set][h + 2 * k] = x[k] = exp2f(x[k] - most), l[set][h] += x[k];
                }
                if (__any_sync(FULL, f[0] != 1.f || f[1] != 1.f))
#pragma unroll
                    for (int j = 0; j < STEPS; j++) o[set][j][0] *= f[0], o[set][j][1] *= f[1], o[set][j][2] *= f[0], o[set][j][3] *= f[1];
#pragma unroll
                for (int k = 0; k < 2; k++) weights[set][k] = flipped(pair(s[set][2 * k], s[set][2 * k + 1]));
            }
            // Rows are a value's numbers, columns queries.
#pragma unroll
            for (int j = 0; j < STEPS; j++) {
                u32 a[4];
                load4_turned(a, values + (value_spot ^ (j << 5)));
#pragma unroll
                for (int set = 0; set < SETS; set++) multiply(o[set][j], a, weights[set]);
            }
            __syncwarp(); // all have read them before others come
        }
        // Where others have the rest of the sequence, the last to finish adds all up.
        size_t whole = (size_t)now.row * kv + now.head;
#pragma unroll
        for (int set = 0; set < SETS; set++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
#pragma unroll
                for (int offset = 4; offset < 32; offset <<= 1) l[set][h] += __shfl_xor_sync(FULL, l[set][h], offset);
                int query = set * 8 + 2 * t + h;
                if (query >= GROUP) continue;
                float* part = parts + (whole * splits + now.split) * SHARE + query * (HD + 2);
                float f = 1.f / l[set][h];
#pragma unroll
                for (int j = 0; j < STEPS; j++)
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        int i = j * 16 + half * 8 + g;
                        if (i >= HD) continue;
                        if (splits == 1) token.rows[query][i] = narrow(o[set][j][2 * half + h] * f);
                        else part[i] = o[set][j][2 * half + h];
                    }
                if (splits > 1 && g == 0) part[HD] = m[set][h], part[HD + 1] = l[set][h];
            }
        __syncwarp();
        if (splits == 1) {
            for (int query = first_row; query < GROUP; query += rows_at_once)
                if (mine) *(uint4*)(out + ((size_t)now.row * heads + now.head * GROUP + query) * HD + bit * 8) = *(const uint4*)(token.rows[query] + bit * 8);
            continue;
        }
        __threadfence();
        __syncwarp();
        u32 before = lane == 0 ? atomicAdd(done + whole, 1) : 0;
        if (__shfl_sync(FULL, before, 0) != splits - 1) continue;
        __threadfence();
        if (lane == 0) done[whole] = 0;
        for (int i = lane; i < GROUP * HD; i += 32) {
            int query = i / HD, at = i % HD;
            const volatile float* part = parts + whole * splits * SHARE + query * (HD + 2);
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
