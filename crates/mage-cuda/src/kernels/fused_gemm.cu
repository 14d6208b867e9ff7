// Products of many single tokens, with what comes before and after them.
//
// y = x · Wᵀ, 64 inputs at a time. One warp asks for what comes next, the others multiply on tensor cores that read by
// themselves: four for each 64 rows of a tile. Where there are few tiles, two blocks share the inputs of one, and add up what
// each has, always in the same order.
//
// A norm is never a kernel of its own: who makes a row leaves it times the norm's weights, and the sums of its squares in
// parts; who multiplies it divides in the end. Kernels start before those before them have ended and bring their weights
// meanwhile; what the next one needs, they call to the cache.

#if TENSOR_READS

// A part of a matrix, from a column and a row on.
__device__ __forceinline__ void bring_part(u32 to, const Map* map, int column, int row, u32 gate) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(map), "r"(column), "r"(row), "r"(gate) : "memory");
}

// Where another block of the cluster has what this one has at `at`.
__device__ __forceinline__ u32 at_block(u32 at, u32 block) {
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(block));
    return there;
}
// Leaves 16 bytes in another block's shared memory, which is told at its gate.
__device__ __forceinline__ void leave(u32 to, u32 gate, const float* x) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(gate) : "memory");
}
__device__ __forceinline__ float4 take(u32 at) {
    float4 x;
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(at) : "memory");
    return x;
}

// All blocks of a cluster come here before any goes on. What they wrote may not be seen yet: gates say when it is.
__device__ __forceinline__ void cluster_comes() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_goes() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

// c += a · b for 64 rows and 64 or 96 outputs.
__device__ __forceinline__ void multiply_rows(float (&c)[8][4], u64 a, u64 b) { multiply_64<true>(c, a, b); }
__device__ __forceinline__ void multiply_rows(float (&c)[12][4], u64 a, u64 b) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47}, %48, %49, p, 1, 1, 0, 0; }"
                 : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3]), "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]), "+f"(c[8][3]), "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]), "+f"(c[10][0]), "+f"(c[10][1]), "+f"(c[10][2]), "+f"(c[10][3]), "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]), "+f"(c[11][3])
                 : "l"(a), "l"(b));
}

// A tile has `ROWS` rows and `WIDE` outputs. Gated, W's rows are all gates and then what they gate: y = silu(x · gateᵀ) ·
// (x · upᵀ), half as many outputs a tile. `base`, where there is one, is added; it may be y. `gain` are the weights of the
// norm that comes next, where one does.
template <int ROWS, int WIDE, bool GATED, int SHARING, int RING>
__device__ __forceinline__ void tile_of_product(const Map* x, const Map* w, int rows, int outputs, int inputs, const float* squares, int parts, float epsilon, const bf16* base, bf16* y, const bf16* gain, bf16* gained, float* squares_after, const unsigned char* next, int next_bytes) {
    constexpr int multipliers = ROWS * 2, left_bytes = ROWS * 128, both_bytes = left_bytes + WIDE * 128;
    // Of the tile's columns, by eights: those that are this block's in the end. The other leaves what it has of them.
    constexpr int each = WIDE / 8 / SHARING, part_bytes = each * multipliers * 16;
    struct Gates {
        u64 full[RING], empty[RING], other;
        float scales[ROWS];
    };
    constexpr int other_at = RING * both_bytes, gates_at = other_at + (SHARING - 1) * part_bytes;
    static_assert(gates_at + sizeof(Gates) <= PRODUCT_SHARED && SHARING <= 2, "what is used is what is asked for");
    Gates& gates = *(Gates*)(shared + gates_at);
    u32 ring = (u32)__cvta_generic_to_shared(shared), full = (u32)__cvta_generic_to_shared(gates.full), empty = (u32)__cvta_generic_to_shared(gates.empty), other = (u32)__cvta_generic_to_shared(&gates.other);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, top = blockIdx.y * ROWS, me = SHARING > 1 ? blockIdx.z : 0;
    int steps = inputs / 64, share = (steps + SHARING - 1) / SHARING, from = me * share, count = max(0, min(steps - from, share));
    if (threadIdx.x == 0) {
        for (int i = 0; i < RING; i++) set_gate(full + 8 * i, 1), set_gate(empty + 8 * i, ROWS / 64);
        if (SHARING > 1) set_gate(other, 1), expect(other, part_bytes);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (threadIdx.x == multipliers) {
        asm volatile("prefetch.tensormap [%0];" ::"l"(w) : "memory");
        asm volatile("prefetch.tensormap [%0];" ::"l"(x) : "memory");
    }
    others_may_come();
    if (SHARING == 1) __syncthreads();
    else cluster_comes(), cluster_goes();
    float c[WIDE / 8][4] = {};
    u32 more[2][each] = {}, gains[each] = {};
    int g = lane >> 2, t = lane & 3, first_row = top + warp * 16 + g, first_column = blockIdx.x * (GATED ? WIDE / 2 : WIDE) + me * each * 8 + 2 * t;
    if (warp == multipliers / 32) {
        if (lane == 0) {
            auto bring_right = [&](int step) {
                u32 gate = full + step % RING * 8, to = ring + step % RING * both_bytes + left_bytes;
                expect(gate, both_bytes);
                bring_part(to, w, (from + step) * 64, blockIdx.x * (GATED ? WIDE / 2 : WIDE), gate);
                if (GATED) bring_part(to + WIDE / 2 * 128, w, (from + step) * 64, outputs + blockIdx.x * (WIDE / 2), gate);
            };
            auto bring_left = [&](int step) { bring_part(ring + step % RING * both_bytes, x, (from + step) * 64, top, full + step % RING * 8); };
            int at_once = min(count, RING);
            for (int step = 0; step < at_once; step++) bring_right(step);
            after_others();
            for (int step = 0; step < at_once; step++) bring_left(step);
            int blocks = gridDim.x * gridDim.y * gridDim.z, block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
            for (int at = block * 4096; at < next_bytes; at += blocks * 4096)
                asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(next + at), "r"(min(4096, next_bytes - at)) : "memory");
            for (int step = at_once; step < count; step++) {
                pass(empty + step % RING * 8, (step / RING - 1) & 1);
                bring_right(step), bring_left(step);
            }
        }
        __syncwarp();
    } else {
        after_others();
        // What is needed in the end is on its way while tiles are multiplied.
        if (!GATED && base)
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int j = 0; j < each; j++)
                    if (first_row + half * 8 < rows) more[half][j] = *(const u32*)(base + (size_t)(first_row + half * 8) * outputs + first_column + j * 8);
        if (!GATED && gain)
#pragma unroll
            for (int j = 0; j < each; j++) gains[j] = *(const u32*)(gain + first_column + j * 8);
        // Two threads a row.
        int own_row = threadIdx.x >> 1, own_part = (threadIdx.x & 1) * 4;
        float4 sums[MOST_PARTS / 8] = {};
        if (squares && top + own_row < rows)
#pragma unroll
            for (int i = 0; i < MOST_PARTS / 8; i++)
                if (i * 8 + own_part < parts) sums[i] = *(const float4*)(squares + (size_t)(top + own_row) * parts + i * 8 + own_part);
        for (int step = 0; step < count; step++) {
            pass(full + step % RING * 8, step / RING & 1);
            u32 stage = ring + step % RING * both_bytes;
            begin(c);
#pragma unroll
            for (int k = 0; k < 4; k++) multiply_rows(c, by_rows(stage + (warp >> 2) * 8192 + k * 32), by_rows(stage + left_bytes + k * 32));
            products_begun();
            products_done_but<1>();
            if (step > 0 && (threadIdx.x & 127) == 0) arrive(empty + (step - 1) % RING * 8);
        }
        if (squares) {
            float sum = 0.f;
#pragma unroll
            for (int i = 0; i < MOST_PARTS / 8; i++) sum += (sums[i].x + sums[i].y) + (sums[i].z + sums[i].w);
            sum += __shfl_xor_sync(FULL, sum, 1);
            if (own_part == 0) gates.scales[own_row] = rsqrtf(sum / inputs + epsilon);
        }
        products_done_but<0>();
        settle(c);
    }
    float own[each][4];
    if (warp < multipliers / 32) {
        u32 spot = ring + other_at + threadIdx.x * 16;
#pragma unroll
        for (int j = 0; j < WIDE / 8; j++)
            if (SHARING == 1 || j / each == me)
#pragma unroll
                for (int i = 0; i < 4; i++) own[j % each][i] = c[j][i];
            else leave(at_block(spot + j % each * multipliers * 16, 1 - me), at_block(other, 1 - me), c[j]);
        if (SHARING > 1) {
            pass(other, 0);
#pragma unroll
            for (int j = 0; j < each; j++) {
                // Two numbers' sum is the same in either order.
                float4 rest = take(spot + j * multipliers * 16);
                own[j][0] += rest.x, own[j][1] += rest.y, own[j][2] += rest.z, own[j][3] += rest.w;
            }
        }
    }
    __syncthreads();
    if (SHARING > 1) cluster_comes(); // nobody leaves while the other writes here
    if (warp < multipliers / 32)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = first_row + half * 8;
            bool there = row < rows;
            float scale = squares ? gates.scales[row - top] : 1.f, sum = 0.f;
#pragma unroll
            for (int j = 0; j < (GATED ? each / 2 : each); j++) {
                size_t to = (size_t)row * outputs + first_column + j * 8;
                float one = own[j][2 * half] * scale, two = own[j][2 * half + 1] * scale;
                if (GATED) {
                    // Rounded in between, as where this is done in two steps.
                    u32 gate = pair(one, two), up = pair(own[j + each / 2][2 * half] * scale, own[j + each / 2][2 * half + 1] * scale);
                    one = __fdividef(low(gate), 1.f + __expf(-low(gate))) * low(up), two = __fdividef(high(gate), 1.f + __expf(-high(gate))) * high(up);
                } else one += low(more[half][j]), two += high(more[half][j]);
                u32 both = pair(one, two);
                if (there) *(u32*)(y + to) = both;
                if (!GATED && gain) {
                    if (there) *(u32*)(gained + to) = pair(low(both) * low(gains[j]), high(both) * high(gains[j]));
                    sum += low(both) * low(both) + high(both) * high(both);
                }
            }
            if (!GATED && gain) {
                sum = quad_sum(sum);
                if (there && t == 0) squares_after[((size_t)row * gridDim.x + blockIdx.x) * SHARING + me] = sum;
            }
        }
    if (SHARING > 1) cluster_goes();
}

#define PRODUCT(name, rows_of_tile, wide, gated, sharing, ring)                                                                                                                                                                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(rows_of_tile * 2 + 32) name(const __grid_constant__ Map x, const __grid_constant__ Map w, int rows, int outputs, int inputs, const float* squares, int parts, float epsilon, const bf16* base, bf16* y, const bf16* gain, bf16* gained, float* squares_after, const unsigned char* next, int next_bytes) { \
        tile_of_product<rows_of_tile, wide, gated, sharing, ring>(&x, &w, rows, outputs, inputs, squares, parts, epsilon, base, y, gain, gained, squares_after, next, next_bytes);                                                                                                                                                    \
    }
PRODUCT(product, 128, 64, false, 1, 8)
PRODUCT(shared_product, 64, 64, false, 2, 12)
PRODUCT(gated_product, 128, 96, true, 1, 7)
#endif
