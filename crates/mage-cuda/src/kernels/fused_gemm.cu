// Fused GEMMs for decode batches, with norm and activation as prologue and epilogue.
//
// y = x · Wᵀ, 64 inputs per step. One producer warp issues TMA loads; consumers run wgmma, four warps per 64 rows of a
// tile. If there are few tiles, two CTAs split the inputs of one (split-K) and exchange partial sums, always in the
// same order.
//
// RMSNorm has no kernel of its own: the GEMM that produces a row stores it times the norm's weights, with partial sums
// of squares; the GEMM that reads the row divides at the end. Kernels start before their predecessors end and load
// their weights meanwhile; they prefetch the weights of the next GEMM into the L2 cache.

#if HAS_WGMMA

// Loads a box of a matrix from the given column and row.
__device__ __forceinline__ void tma_load_2d(u32 to, const TensorMap* map, int column, int row, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(map), "r"(column), "r"(row), "r"(barrier) : "memory");
}

// Maps a shared-memory address of this CTA to the same address in another CTA of the cluster.
__device__ __forceinline__ u32 map_to_rank(u32 at, u32 block) {
    u32 in_range;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(in_range) : "r"(at), "r"(block));
    return in_range;
}
// Stores 16 bytes to another CTA's shared memory and signals its mbarrier.
__device__ __forceinline__ void st_async(u32 to, u32 barrier, const float* x) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(barrier) : "memory");
}
__device__ __forceinline__ float4 ld_shared(u32 at) {
    float4 x;
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(at) : "memory");
    return x;
}

// Cluster barrier. It does not order the stores of other CTAs: their mbarriers do.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

// c += a · b for 64 rows and 64 or 96 outputs.
__device__ __forceinline__ void wgmma_rows(float (&c)[8][4], u64 a, u64 b) { wgmma_m64n64k16<true>(c, a, b); }
__device__ __forceinline__ void wgmma_rows(float (&c)[12][4], u64 a, u64 b) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47}, %48, %49, p, 1, 1, 0, 0; }"
                 : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3]), "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]), "+f"(c[8][3]), "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]), "+f"(c[10][0]), "+f"(c[10][1]), "+f"(c[10][2]), "+f"(c[10][3]), "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]), "+f"(c[11][3])
                 : "l"(a), "l"(b));
}

// One tile of `TILE_M` rows and `TILE_N` outputs. With SWIGLU, W holds all gate rows and then all up rows: y = silu(x ·
// gateᵀ) · (x · upᵀ), with half as many outputs per tile. `base`, if given, is added; it may be y. `norm_weight`, if
// given, holds the weights of the norm that follows.
template <int TILE_M, int TILE_N, bool SWIGLU, int SPLIT_K, int NUM_STAGES>
__device__ __forceinline__ void gemm_tile(const TensorMap* x, const TensorMap* w, int rows, int outputs, int inputs, const float* squares, int num_partials, float epsilon, const bf16* base, bf16* y, const bf16* norm_weight, bf16* norm_input, float* squares_out, const unsigned char* next_weights, int next_weights_bytes) {
    constexpr int consumer_threads = TILE_M * 2, a_bytes = TILE_M * 128, stage_bytes = a_bytes + TILE_N * 128;
    // The part of the tile's columns, in units of eight, that this CTA finishes. It sends its partial sums of the rest
    // to the other CTA.
    constexpr int own_n_tiles = TILE_N / 8 / SPLIT_K, exchange_bytes = own_n_tiles * consumer_threads * 16;
    struct Barriers {
        u64 full[NUM_STAGES], empty[NUM_STAGES], exchange;
        float rstds[TILE_M];
    };
    constexpr int exchange_offset = NUM_STAGES * stage_bytes, barriers_offset = exchange_offset + (SPLIT_K - 1) * exchange_bytes;
    static_assert(barriers_offset + sizeof(Barriers) <= FUSED_GEMM_SHARED_BYTES && SPLIT_K <= 2, "shared memory exceeds FUSED_GEMM_SHARED_BYTES");
    Barriers& barriers = *(Barriers*)(shared_memory + barriers_offset);
    u32 stages = (u32)__cvta_generic_to_shared(shared_memory), full = (u32)__cvta_generic_to_shared(barriers.full), empty = (u32)__cvta_generic_to_shared(barriers.empty), exchange = (u32)__cvta_generic_to_shared(&barriers.exchange);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row_start = blockIdx.y * TILE_M, rank = SPLIT_K > 1 ? blockIdx.z : 0;
    int k_steps = inputs / 64, steps_per_rank = (k_steps + SPLIT_K - 1) / SPLIT_K, first_step = rank * steps_per_rank, count = max(0, min(k_steps - first_step, steps_per_rank));
    if (threadIdx.x == 0) {
        for (int i = 0; i < NUM_STAGES; i++) mbarrier_init(full + 8 * i, 1), mbarrier_init(empty + 8 * i, TILE_M / 64);
        if (SPLIT_K > 1) mbarrier_init(exchange, 1), mbarrier_expect_tx(exchange, exchange_bytes);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (threadIdx.x == consumer_threads) {
        asm volatile("prefetch.tensormap [%0];" ::"l"(w) : "memory");
        asm volatile("prefetch.tensormap [%0];" ::"l"(x) : "memory");
    }
    launch_dependents();
    if (SPLIT_K == 1) __syncthreads();
    else cluster_arrive(), cluster_wait();
    float c[TILE_N / 8][4] = {};
    u32 residual[2][own_n_tiles] = {}, norm_weights[own_n_tiles] = {};
    int g = lane >> 2, t = lane & 3, first_row = row_start + warp * 16 + g, first_column = blockIdx.x * (SWIGLU ? TILE_N / 2 : TILE_N) + rank * own_n_tiles * 8 + 2 * t;
    if (warp == consumer_threads / 32) {
        if (lane == 0) {
            auto load_w = [&](int step) {
                u32 barrier = full + step % NUM_STAGES * 8, to = stages + step % NUM_STAGES * stage_bytes + a_bytes;
                mbarrier_expect_tx(barrier, stage_bytes);
                tma_load_2d(to, w, (first_step + step) * 64, blockIdx.x * (SWIGLU ? TILE_N / 2 : TILE_N), barrier);
                if (SWIGLU) tma_load_2d(to + TILE_N / 2 * 128, w, (first_step + step) * 64, outputs + blockIdx.x * (TILE_N / 2), barrier);
            };
            auto load_x = [&](int step) { tma_load_2d(stages + step % NUM_STAGES * stage_bytes, x, (first_step + step) * 64, row_start, full + step % NUM_STAGES * 8); };
            int prologue = min(count, NUM_STAGES);
            for (int step = 0; step < prologue; step++) load_w(step);
            wait_for_dependencies();
            for (int step = 0; step < prologue; step++) load_x(step);
            int blocks = gridDim.x * gridDim.y * gridDim.z, block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
            for (int at = block * 4096; at < next_weights_bytes; at += blocks * 4096)
                asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(next_weights + at), "r"(min(4096, next_weights_bytes - at)) : "memory");
            for (int step = prologue; step < count; step++) {
                mbarrier_wait(empty + step % NUM_STAGES * 8, (step / NUM_STAGES - 1) & 1);
                load_w(step), load_x(step);
            }
        }
        __syncwarp();
    } else {
        wait_for_dependencies();
        // Prefetches the inputs of the epilogue during the main loop.
        if (!SWIGLU && base)
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int j = 0; j < own_n_tiles; j++)
                    if (first_row + half * 8 < rows) residual[half][j] = *(const u32*)(base + (size_t)(first_row + half * 8) * outputs + first_column + j * 8);
        if (!SWIGLU && norm_weight)
#pragma unroll
            for (int j = 0; j < own_n_tiles; j++) norm_weights[j] = *(const u32*)(norm_weight + first_column + j * 8);
        // Two threads per row.
        int own_row = threadIdx.x >> 1, half_row = (threadIdx.x & 1) * 4;
        float4 sums[MAX_NORM_PARTIALS / 8] = {};
        if (squares && row_start + own_row < rows)
#pragma unroll
            for (int i = 0; i < MAX_NORM_PARTIALS / 8; i++)
                if (i * 8 + half_row < num_partials) sums[i] = *(const float4*)(squares + (size_t)(row_start + own_row) * num_partials + i * 8 + half_row);
        for (int step = 0; step < count; step++) {
            mbarrier_wait(full + step % NUM_STAGES * 8, step / NUM_STAGES & 1);
            u32 stage = stages + step % NUM_STAGES * stage_bytes;
            wgmma_begin(c);
#pragma unroll
            for (int k = 0; k < 4; k++) wgmma_rows(c, desc_k_major(stage + (warp >> 2) * 8192 + k * 32), desc_k_major(stage + a_bytes + k * 32));
            wgmma_commit();
            wgmma_wait<1>();
            if (step > 0 && (threadIdx.x & 127) == 0) mbarrier_arrive(empty + (step - 1) % NUM_STAGES * 8);
        }
        if (squares) {
            float sum = 0.f;
#pragma unroll
            for (int i = 0; i < MAX_NORM_PARTIALS / 8; i++) sum += (sums[i].x + sums[i].y) + (sums[i].z + sums[i].w);
            sum += __shfl_xor_sync(FULL_MASK, sum, 1);
            if (half_row == 0) barriers.rstds[own_row] = rsqrtf(sum / inputs + epsilon);
        }
        wgmma_wait<0>();
        pin_registers(c);
    }
    float acc[own_n_tiles][4];
    if (warp < consumer_threads / 32) {
        u32 slot = stages + exchange_offset + threadIdx.x * 16;
#pragma unroll
        for (int j = 0; j < TILE_N / 8; j++)
            if (SPLIT_K == 1 || j / own_n_tiles == rank)
#pragma unroll
                for (int i = 0; i < 4; i++) acc[j % own_n_tiles][i] = c[j][i];
            else st_async(map_to_rank(slot + j % own_n_tiles * consumer_threads * 16, 1 - rank), map_to_rank(exchange, 1 - rank), c[j]);
        if (SPLIT_K > 1) {
            mbarrier_wait(exchange, 0);
#pragma unroll
            for (int j = 0; j < own_n_tiles; j++) {
                // Addition of two values is commutative, so both orders give the same bits.
                float4 partial = ld_shared(slot + j * consumer_threads * 16);
                acc[j][0] += partial.x, acc[j][1] += partial.y, acc[j][2] += partial.z, acc[j][3] += partial.w;
            }
        }
    }
    __syncthreads();
    if (SPLIT_K > 1) cluster_arrive(); // no CTA exits while the other may still write to its shared memory
    if (warp < consumer_threads / 32)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = first_row + half * 8;
            bool in_range = row < rows;
            float rstd = squares ? barriers.rstds[row - row_start] : 1.f, sum = 0.f;
#pragma unroll
            for (int j = 0; j < (SWIGLU ? own_n_tiles / 2 : own_n_tiles); j++) {
                size_t to = (size_t)row * outputs + first_column + j * 8;
                float first = acc[j][2 * half] * rstd, second = acc[j][2 * half + 1] * rstd;
                if (SWIGLU) {
                    // Rounded in between, so that the result equals that of separate kernels.
                    u32 gates_bf16 = pack_bf16(first, second), up = pack_bf16(acc[j + own_n_tiles / 2][2 * half] * rstd, acc[j + own_n_tiles / 2][2 * half + 1] * rstd);
                    first = __fdividef(bf16_lo(gates_bf16), 1.f + __expf(-bf16_lo(gates_bf16))) * bf16_lo(up), second = __fdividef(bf16_hi(gates_bf16), 1.f + __expf(-bf16_hi(gates_bf16))) * bf16_hi(up);
                } else first += bf16_lo(residual[half][j]), second += bf16_hi(residual[half][j]);
                u32 packed = pack_bf16(first, second);
                if (in_range) *(u32*)(y + to) = packed;
                if (!SWIGLU && norm_weight) {
                    if (in_range) *(u32*)(norm_input + to) = pack_bf16(bf16_lo(packed) * bf16_lo(norm_weights[j]), bf16_hi(packed) * bf16_hi(norm_weights[j]));
                    sum += bf16_lo(packed) * bf16_lo(packed) + bf16_hi(packed) * bf16_hi(packed);
                }
            }
            if (!SWIGLU && norm_weight) {
                sum = quad_sum(sum);
                if (in_range && t == 0) squares_out[((size_t)row * gridDim.x + blockIdx.x) * SPLIT_K + rank] = sum;
            }
        }
    if (SPLIT_K > 1) cluster_wait();
}

#define FUSED_GEMM(name, tile_m, tile_n, swiglu, split_k, stages)                                                                                                                                                                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(tile_m * 2 + 32) name(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, int rows, int outputs, int inputs, const float* squares, int num_partials, float epsilon, const bf16* base, bf16* y, const bf16* norm_weight, bf16* norm_input, float* squares_out, const unsigned char* next_weights, int next_weights_bytes) { \
        gemm_tile<tile_m, tile_n, swiglu, split_k, stages>(&x, &w, rows, outputs, inputs, squares, num_partials, epsilon, base, y, norm_weight, norm_input, squares_out, next_weights, next_weights_bytes);                                                                                                                                                    \
    }
FUSED_GEMM(fused_gemm, 128, 64, false, 1, 8)
FUSED_GEMM(fused_gemm_split_k, 64, 64, false, 2, 12)
FUSED_GEMM(fused_gemm_swiglu, 128, 96, true, 1, 7)
#endif
