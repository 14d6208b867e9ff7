// Causal attention of whole sequences and its gradient, where tensor cores read tiles by themselves.
//
// A block has two teams of four warps, each with 64 queries (or keys) of one head. Both go over the same tiles, which a third team
// brings once for the two: while one team takes exponentials, tensor cores have the other's products. Blocks stay, and
// take one work after the other; what the next one starts with is brought while this one is under way.

#if TENSOR_READS

constexpr int TEAMS = 2;
constexpr int TEAM_RING = 2; // pairs of tiles that are brought or gone over
constexpr int TEAM_OWN = 2;  // works whose own tiles are there
constexpr int PAIR_BYTES = 2 * TILE_BYTES;

// A number for each row of a tile, and those of its neighbours: heads' numbers are brought by fours.
constexpr int NUMBERS_BYTES = TILE * 4 * 4;

// What a block's teams tell each other: whether the ring's places, and works' own tiles, are full or empty.
struct TeamGates {
    u64 full[TEAM_RING], empty[TEAM_RING], own_full[TEAM_OWN], own_empty[TEAM_OWN];
};

// Shared memory: the ring; for each work and team a pair of tiles of its own; per place of the ring two kinds of numbers.
constexpr int OWN_AT = TEAM_RING * PAIR_BYTES;
constexpr int NUMBERS_AT = OWN_AT + TEAM_OWN * TEAMS * PAIR_BYTES;
constexpr int GATES_AT = NUMBERS_AT + TEAM_RING * 2 * NUMBERS_BYTES;
static_assert(GATES_AT + sizeof(TeamGates) <= TEAM_SHARED, "no more is used than is asked for");

struct Team {
    int number = threadIdx.x >> 7, warp = (threadIdx.x >> 5) & 3, lane = threadIdx.x & 31;
};

// Room for tiles, its gates, and how often it was filled before.
struct Spot {
    u32 at, full, empty;
    int turn;
    // By all lanes of the warp that brings, of which none runs ahead of another.
    __device__ __forceinline__ void wait_until_empty() const {
        __syncwarp();
        if (turn > 0) pass(empty, (turn - 1) & 1);
    }
    // Every warp of both teams waits for what is brought there, and says that it needs it no more, even if it has nothing to do
    // with it: a gate tells one turn from the next only to those who are no more than one behind.
    __device__ __forceinline__ void wait_until_full() const { pass(full, turn & 1); }
    __device__ __forceinline__ void leave() const {
        __syncwarp();
        if ((threadIdx.x & 31) == 0) arrive(empty);
    }
};

// The ring's, by the number of pairs before.
__device__ __forceinline__ Spot ring_spot(int pair) {
    u32 base = (u32)__cvta_generic_to_shared(shared), full = base + GATES_AT + pair % TEAM_RING * 8;
    return {base + pair % TEAM_RING * PAIR_BYTES, full, full + TEAM_RING * 8, pair / TEAM_RING};
}
// A work's own, by the number of works before.
__device__ __forceinline__ Spot own_spot(int work) {
    u32 base = (u32)__cvta_generic_to_shared(shared), full = base + GATES_AT + (2 * TEAM_RING + work % TEAM_OWN) * 8;
    return {base + OWN_AT + work % TEAM_OWN * TEAMS * PAIR_BYTES, full, full + TEAM_OWN * 8, work / TEAM_OWN};
}

__device__ __forceinline__ void open_gates() {
    TeamGates& gates = *(TeamGates*)(shared + GATES_AT);
    if (threadIdx.x == 0) {
        auto set = [](u64& gate, int arrivals) { set_gate((u32)__cvta_generic_to_shared(&gate), arrivals); };
        for (int i = 0; i < TEAM_RING; i++) set(gates.full[i], 1), set(gates.empty[i], TEAMS * 4);
        for (int i = 0; i < TEAM_OWN; i++) set(gates.own_full[i], 1), set(gates.own_empty[i], TEAMS * 4);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
}

// The works of a block, an item and a head each, as every warp looks them up: one ahead, so that nobody waits for memory.
struct Works {
    const Item* items;
    int count, heads, turn = -1;
    u32 next; // lane i has word i of the next item

    __device__ __forceinline__ Works(const Item* items, int count, int heads) : items(items), count(count), heads(heads) { look(); }
    // The longest come first: to and fro, so that all blocks have about as much to do.
    static __device__ __forceinline__ int number(int turn) { return turn * gridDim.x + (turn & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x); }
    __device__ __forceinline__ void look() {
        int work = number(turn + 1), lane = threadIdx.x & 31;
        if (work < count && lane < (int)(sizeof(Item) / 4)) next = ((const u32*)(items + work / heads))[lane];
    }
    __device__ __forceinline__ bool go_on(Item& item, int& head) {
        int work = number(++turn);
        if (work >= count) return false;
        auto word = [&](int i) { return (int)__shfl_sync(FULL, next, i); };
        item = {word(0), word(1), word(2), word(3), word(4)}, head = work % heads;
        look();
        return true;
    }
};

// The team that brings tiles leaves its registers to the others.
__device__ __forceinline__ void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 24;"); }
__device__ __forceinline__ void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 240;"); }

// A tile of one head from a row on, in panels. Numbers that a head does not have come as zeros.
__device__ __forceinline__ void bring_tile(u32 to, const Map* map, int head, int row, u32 gate) {
#pragma unroll
    for (int panel = 0; panel < WIDTH / 64; panel++)
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to + panel * PANEL_BYTES), "l"(map), "r"(panel * 64), "r"(head), "r"(row), "r"(gate) : "memory");
}
// Numbers of a head and its neighbours, of as many rows: what is brought must begin at a multiple of 16 bytes.
__device__ __forceinline__ void bring_numbers(u32 to, const Map* map, int head, int row, u32 gate) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(map), "r"(head & ~3), "r"(row), "r"(gate) : "memory");
}

// Rows of a tile, or of registers, by rows of a tile.
__device__ __forceinline__ void multiply_rows_by_rows(float (*c)[4], u32 a, u32 b) {
    multiply_64<false>(c, by_rows(corner(a, 0, 0)), by_rows(corner(b, 0, 0)));
#pragma unroll
    for (int k = 1; k < STEPS; k++) multiply_64<true>(c, by_rows(corner(a, 0, k * 16)), by_rows(corner(b, 0, k * 16)));
}
__device__ __forceinline__ void multiply_rows_by_rows(float (*c)[4], const u32 (*a)[4], u32 b) {
    multiply_64<false>(c, a[0], by_rows(corner(b, 0, 0)));
#pragma unroll
    for (int k = 1; k < STEPS; k++) multiply_64<true>(c, a[k], by_rows(corner(b, 0, k * 16)));
}
// c += a · b for a tile b.
__device__ __forceinline__ void add_product(float (*c)[4], const u32 (*a)[4], u32 b) {
#pragma unroll
    for (int k = 0; k < TILE / 16; k++) multiply_128_turned(c, a[k], by_columns(corner(b, k * 16, 0)));
}
__device__ __forceinline__ void as_lefts(u32 (*a)[4], const float (*c)[4]) {
#pragma unroll
    for (int k = 0; k < TILE / 16; k++) as_left(a[k], c[2 * k], c[2 * k + 1]);
}

__device__ __forceinline__ float power_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Tiles of keys that the queries of a work see.
__device__ __forceinline__ int tiles_seen(int queries, int top) { return (min(queries, top + TEAMS * TILE) + TILE - 1) / TILE; }

// Brings what works on queries take, by one warp: the queries (with `SLOPES`, and by their side what the loss makes of what they
// yield), then keys and values. Rows after a sequence's end are another's or zeros, and weigh nothing with queries that count: numbers
// are finite, or the whole batch's loss is not.
template <bool SLOPES>
__device__ __forceinline__ void bring_for_queries(Works works, const Map* qk, const Map* qkv, const Map* dout, int kv) {
    int t = 0, head, lane = threadIdx.x & 31, heads = works.heads;
    for (Item item; works.go_on(item, head);) {
        Spot own = own_spot(works.turn);
        int group = head / (heads / kv), top = item.tile * TEAMS * TILE, tiles = tiles_seen(item.queries, top);
        own.wait_until_empty();
        if (lane == 0) {
            expect(own.full, TEAMS * (SLOPES ? PAIR_BYTES : TILE_BYTES));
            for (int i = 0; i < TEAMS; i++) {
                bring_tile(own.at + i * PAIR_BYTES, qk, head, item.query + top + i * TILE, own.full);
                if (SLOPES) bring_tile(own.at + i * PAIR_BYTES + TILE_BYTES, dout, head, item.query + top + i * TILE, own.full);
            }
        }
        for (int j = 0; j < tiles; j++, t++) {
            Spot spot = ring_spot(t);
            spot.wait_until_empty();
            if (lane == 0) {
                expect(spot.full, PAIR_BYTES);
                bring_tile(spot.at, qk, heads + group, item.key + j * TILE, spot.full);
                bring_tile(spot.at + TILE_BYTES, qkv, heads + kv + group, item.key + j * TILE, spot.full);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(384, 1) team_attention(const __grid_constant__ Map qk, const __grid_constant__ Map qkv, const Item* items, int count, int heads, int kv, float scale, bf16* out, float* log_sums) {
    open_gates();
    Team team;
    Works works(items, count, heads);
    if (team.number == TEAMS) {
        give_registers();
        if (team.warp == 0) bring_for_queries<false>(works, &qk, &qkv, 0, kv);
        return;
    }
    take_registers();
    float c = scale * LOG2E;
    int t = 0, head;
    for (Item item; works.go_on(item, head);) {
        Spot own = own_spot(works.turn);
        own.wait_until_full();
        int query = item.query, queries = item.queries, top = item.tile * TEAMS * TILE, first = top + team.number * TILE;
        u32 a[STEPS][4], p[TILE / 16][4];
#pragma unroll
        for (int k = 0; k < STEPS; k++) left(a[k], own.at + team.number * PAIR_BYTES, team.warp * 16, k * 16);
        own.leave();
        float o[WIDTH / 8][4] = {}, m0 = NEVER, m1 = NEVER, l0 = 0.f, l1 = 0.f;
        int row = first + team.warp * 16 + (team.lane >> 2), tiles = tiles_seen(queries, top);
        for (int j = 0; j < tiles; j++, t++) {
            Spot spot = ring_spot(t);
            u32 keys = spot.at, values = keys + TILE_BYTES;
            spot.wait_until_full();
            if (j * TILE <= first && first < queries) {
                float s[TILE / 8][4];
                registers_ready();
                multiply_rows_by_rows(s, a, keys);
                products_begun();
                products_done_but<0>();
                settle(s);
                if (j * TILE == first) {
#pragma unroll
                    for (int n = 0; n < TILE / 8; n++) {
                        int column = j * TILE + n * 8 + 2 * (team.lane & 3);
                        if (column > row) s[n][0] = NEVER;
                        if (column + 1 > row) s[n][1] = NEVER;
                        if (column > row + 8) s[n][2] = NEVER;
                        if (column + 1 > row + 8) s[n][3] = NEVER;
                    }
                }
                float n0 = m0, n1 = m1;
#pragma unroll
                for (int n = 0; n < TILE / 8; n++) n0 = fmaxf(n0, fmaxf(s[n][0], s[n][1])), n1 = fmaxf(n1, fmaxf(s[n][2], s[n][3]));
                n0 = quad_max(n0), n1 = quad_max(n1);
                float f0 = power_of_2((m0 - n0) * c), f1 = power_of_2((m1 - n1) * c), c0 = n0 * c, c1 = n1 * c;
                m0 = n0, m1 = n1;
                l0 *= f0, l1 *= f1;
                // After the first tiles the largest score seldom changes.
                if (__any_sync(FULL, f0 != 1.f || f1 != 1.f)) {
#pragma unroll
                    for (int n = 0; n < WIDTH / 8; n++) o[n][0] *= f0, o[n][1] *= f0, o[n][2] *= f1, o[n][3] *= f1;
                }
#pragma unroll
                for (int n = 0; n < TILE / 8; n++) {
                    s[n][0] = power_of_2(fmaf(s[n][0], c, -c0)), s[n][1] = power_of_2(fmaf(s[n][1], c, -c0));
                    s[n][2] = power_of_2(fmaf(s[n][2], c, -c1)), s[n][3] = power_of_2(fmaf(s[n][3], c, -c1));
                    l0 += s[n][0] + s[n][1], l1 += s[n][2] + s[n][3];
                }
                as_lefts(p, s);
                begin(o, p);
                add_product(o, p, values);
                products_begun();
                products_done_but<0>();
                settle(o);
            }
            spot.leave();
        }
        l0 = quad_sum(l0), l1 = quad_sum(l1);
#pragma unroll
        for (int half = 0; half < 2; half++, row += 8) {
            if (row >= queries) continue;
            float inverse = 1.f / (half ? l1 : l0);
            size_t at = (size_t)(query + row) * heads + head;
#pragma unroll
            for (int n = 0; n < HD / 8; n++) *(u32*)(out + at * HD + n * 8 + 2 * (team.lane & 3)) = pair(o[n][2 * half] * inverse, o[n][2 * half + 1] * inverse);
            if ((team.lane & 3) == 0) log_sums[number_at(query + row, head, heads)] = (half ? m1 : m0) * scale + logf(half ? l1 : l0);
        }
    }
}

// Brings what works on keys take, by one warp: the keys and values, then all queries that see them, of each head that shares them, by
// their side what the loss makes of what they yield, and each query's log-sum and delta.
__device__ __forceinline__ void bring_for_keys(Works works, const Map* qk, const Map* qkv, const Map* dout, const Map* log_sums, const Map* deltas, int heads) {
    int t = 0, group, lane = threadIdx.x & 31, kv = works.heads, share = heads / kv;
    u32 numbers = (u32)__cvta_generic_to_shared(shared) + NUMBERS_AT;
    for (Item item; works.go_on(item, group);) {
        Spot own = own_spot(works.turn);
        int top = item.tile * TEAMS * TILE;
        own.wait_until_empty();
        if (lane == 0) {
            expect(own.full, TEAMS * PAIR_BYTES);
            for (int i = 0; i < TEAMS; i++) {
                bring_tile(own.at + i * PAIR_BYTES, qk, heads + group, item.key + top + i * TILE, own.full);
                bring_tile(own.at + i * PAIR_BYTES + TILE_BYTES, qkv, heads + kv + group, item.key + top + i * TILE, own.full);
            }
        }
        for (int head = group * share; head < (group + 1) * share; head++)
            for (int start = top; start < item.queries; start += TILE, t++) {
                Spot spot = ring_spot(t);
                spot.wait_until_empty();
                if (lane == 0) {
                    u32 to = numbers + t % TEAM_RING * 2 * NUMBERS_BYTES;
                    expect(spot.full, PAIR_BYTES + 2 * NUMBERS_BYTES);
                    bring_tile(spot.at, qk, head, item.query + start, spot.full);
                    bring_numbers(to, log_sums, head, item.query + start, spot.full);
                    bring_tile(spot.at + TILE_BYTES, dout, head, item.query + start, spot.full);
                    bring_numbers(to + NUMBERS_BYTES, deltas, head, item.query + start, spot.full);
                }
            }
    }
}

// Keys' and values' gradients. Scores have keys as rows, so that no result passes through shared memory.
extern "C" __global__ void __launch_bounds__(384, 1) team_grad_keys(const __grid_constant__ Map qk, const __grid_constant__ Map qkv, const __grid_constant__ Map dout, const __grid_constant__ Map log_sums, const __grid_constant__ Map delta, const Item* items, int count, int heads, int kv, float scale, bf16* dqk, bf16* dqkv) {
    open_gates();
    Team team;
    Works works(items, count, kv);
    if (team.number == TEAMS) {
        give_registers();
        if (team.warp == 0) bring_for_keys(works, &qk, &qkv, &dout, &log_sums, &delta, heads);
        return;
    }
    take_registers();
    float c = scale * LOG2E;
    int t = 0, share = heads / kv, group;
    for (Item item; works.go_on(item, group);) {
        Spot own = own_spot(works.turn);
        own.wait_until_full();
        int end = item.queries, top = item.tile * TEAMS * TILE, first = top + team.number * TILE, key = first + team.warp * 16 + (team.lane >> 2);
        u32 keys = own.at + team.number * PAIR_BYTES, values = keys + TILE_BYTES, a[TILE / 16][4], e[TILE / 16][4];
        float dk[WIDTH / 8][4] = {}, dv[WIDTH / 8][4] = {};
        for (int head = group * share; head < (group + 1) * share; head++)
            for (int start = top; start < end; start += TILE, t++) {
                Spot spot = ring_spot(t);
                u32 queries = spot.at, slopes = queries + TILE_BYTES;
                spot.wait_until_full();
                if (start >= first && first < end) {
                    float p[TILE / 8][4], s[TILE / 8][4];
                    registers_ready();
                    multiply_rows_by_rows(p, keys, queries);
                    products_begun();
                    multiply_rows_by_rows(s, values, slopes);
                    products_begun();
                    // Of this head and of this thread's first column.
                    const float* sums = (const float*)(shared + NUMBERS_AT + t % TEAM_RING * 2 * NUMBERS_BYTES) + 2 * (team.lane & 3) * 4 + (head & 3);
                    const float* deltas = sums + NUMBERS_BYTES / 4;
                    products_done_but<1>();
                    settle(p);
#pragma unroll
                    for (int n = 0; n < TILE / 8; n++) {
                        float s0 = sums[n * 8 * 4] * LOG2E, s1 = sums[(n * 8 + 1) * 4] * LOG2E;
                        p[n][0] = power_of_2(fmaf(p[n][0], c, -s0)), p[n][1] = power_of_2(fmaf(p[n][1], c, -s1));
                        p[n][2] = power_of_2(fmaf(p[n][2], c, -s0)), p[n][3] = power_of_2(fmaf(p[n][3], c, -s1));
                    }
                    // Queries after the sequence's end are another's.
                    if (start == first || start + TILE > end) {
#pragma unroll
                        for (int n = 0; n < TILE / 8; n++) {
                            int query = start + n * 8 + 2 * (team.lane & 3);
                            if (key > query || query >= end) p[n][0] = 0.f;
                            if (key > query + 1 || query + 1 >= end) p[n][1] = 0.f;
                            if (key + 8 > query || query >= end) p[n][2] = 0.f;
                            if (key + 8 > query + 1 || query + 1 >= end) p[n][3] = 0.f;
                        }
                    }
                    as_lefts(a, p);
                    begin(dv, a);
                    add_product(dv, a, slopes);
                    products_begun();
                    products_done_but<1>();
                    settle(s);
#pragma unroll
                    for (int n = 0; n < TILE / 8; n++) {
                        float d0 = deltas[n * 8 * 4], d1 = deltas[(n * 8 + 1) * 4];
                        s[n][0] = p[n][0] * (s[n][0] - d0), s[n][1] = p[n][1] * (s[n][1] - d1);
                        s[n][2] = p[n][2] * (s[n][2] - d0), s[n][3] = p[n][3] * (s[n][3] - d1);
                    }
                    as_lefts(e, s);
                    begin(dk, e);
                    add_product(dk, e, queries);
                    products_begun();
                    products_done_but<0>();
                    settle(dk), settle(dv);
                }
                spot.leave();
            }
        own.leave();
        size_t qk_stride = (size_t)(heads + kv) * HD, qkv_stride = (size_t)(heads + 2 * kv) * HD;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = key + half * 8;
            if (row >= end) continue;
            bf16* to_k = dqk + (item.key + row) * qk_stride + (size_t)(heads + group) * HD + 2 * (team.lane & 3);
            bf16* to_v = dqkv + (item.key + row) * qkv_stride + (size_t)(heads + kv + group) * HD + 2 * (team.lane & 3);
#pragma unroll
            for (int n = 0; n < HD / 8; n++) {
                *(u32*)(to_k + n * 8) = pair(dk[n][2 * half] * scale, dk[n][2 * half + 1] * scale);
                *(u32*)(to_v + n * 8) = pair(dv[n][2 * half], dv[n][2 * half + 1]);
            }
        }
    }
}

// Queries' gradients.
extern "C" __global__ void __launch_bounds__(384, 1) team_grad_queries(const __grid_constant__ Map qk, const __grid_constant__ Map qkv, const __grid_constant__ Map dout, const float* log_sums, const float* delta, const Item* items, int count, int heads, int kv, float scale, bf16* dqk) {
    open_gates();
    Team team;
    Works works(items, count, heads);
    if (team.number == TEAMS) {
        give_registers();
        if (team.warp == 0) bring_for_queries<true>(works, &qk, &qkv, &dout, kv);
        return;
    }
    take_registers();
    float c = scale * LOG2E;
    int t = 0, head;
    for (Item item; works.go_on(item, head);) {
        Spot own = own_spot(works.turn);
        own.wait_until_full();
        int from = item.query, queries = item.queries, top = item.tile * TEAMS * TILE, first = top + team.number * TILE;
        float dq[WIDTH / 8][4] = {}, sums[2], deltas[2];
        int query = first + team.warp * 16 + (team.lane >> 2), tiles = tiles_seen(queries, top);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = query + half * 8;
            bool there = row < queries;
            size_t at = number_at(from + row, head, heads);
            sums[half] = there ? log_sums[at] * LOG2E : 0.f;
            deltas[half] = there ? delta[at] : 0.f;
        }
        u32 a[STEPS][4], d[STEPS][4], e[TILE / 16][4], mine = own.at + team.number * PAIR_BYTES;
#pragma unroll
        for (int k = 0; k < STEPS; k++) left(a[k], mine, team.warp * 16, k * 16), left(d[k], mine + TILE_BYTES, team.warp * 16, k * 16);
        own.leave();
        for (int j = 0; j < tiles; j++, t++) {
            Spot spot = ring_spot(t);
            u32 keys = spot.at, values = keys + TILE_BYTES;
            spot.wait_until_full();
            if (j * TILE <= first && first < queries) {
                float p[TILE / 8][4], s[TILE / 8][4];
                registers_ready();
                multiply_rows_by_rows(p, a, keys);
                products_begun();
                multiply_rows_by_rows(s, d, values);
                products_begun();
                products_done_but<1>();
                settle(p);
#pragma unroll
                for (int n = 0; n < TILE / 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) p[n][i] = power_of_2(fmaf(p[n][i], c, -sums[i >> 1]));
                if (j * TILE == first) {
#pragma unroll
                    for (int n = 0; n < TILE / 8; n++)
#pragma unroll
                        for (int i = 0; i < 4; i++)
                            if (j * TILE + n * 8 + 2 * (team.lane & 3) + (i & 1) > query + (i >> 1) * 8) p[n][i] = 0.f;
                }
                products_done_but<0>();
                settle(s);
#pragma unroll
                for (int n = 0; n < TILE / 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) s[n][i] = p[n][i] * (s[n][i] - deltas[i >> 1]);
                as_lefts(e, s);
                begin(dq, e);
                add_product(dq, e, keys);
                products_begun();
                products_done_but<0>();
                settle(dq);
            }
            spot.leave();
        }
        size_t qk_stride = (size_t)(heads + kv) * HD;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = query + half * 8;
            if (row >= queries) continue;
            bf16* to = dqk + (from + row) * qk_stride + (size_t)head * HD + 2 * (team.lane & 3);
#pragma unroll
            for (int n = 0; n < HD / 8; n++) *(u32*)(to + n * 8) = pair(dq[n][2 * half] * scale, dq[n][2 * half + 1] * scale);
        }
    }
}
#endif
