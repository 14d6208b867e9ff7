// Tiles in shared memory and their matrix products on tensor cores (mma m16n8k16).
//
// A row has HEAD_DIM elements, zero-padded to PADDED_HEAD_DIM, in chunks of 16 bytes. Chunks are swizzled within a row
// by the row index, so that the chunks of one column in eight rows lie in different banks. Rows of more than eight
// chunks are split into panels of eight chunks, one panel after the other: the layout that wgmma reads (128-byte
// swizzle).

#define CHUNKS (PADDED_HEAD_DIM / 8)
#define TILE 64
#define TILE_BYTES (TILE * PADDED_HEAD_DIM * 2)
#define PANEL_BYTES (TILE * 128)

__device__ __forceinline__ u32 swizzled(u32 base, int row, int chunk) {
#if CHUNKS >= 8
    return base + (chunk >> 3) * PANEL_BYTES + row * 128 + (((chunk ^ row) & 7) << 4);
#elif CHUNKS == 4
    chunk ^= (row >> 1) & 3;
#else
    chunk ^= (row >> 2) & 1;
#endif
    return base + (row * CHUNKS + chunk) * 16;
}

// Asynchronous copy of 16 bytes to shared memory; zero-fills if not in range.
__device__ __forceinline__ void cp_async(u32 to, const void* from, bool in_range) {
    int bytes = in_range ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;"); }
__device__ __forceinline__ void cp_async_wait_all() {
    asm volatile("cp.async.wait_group 0;");
#if HOPPER
    // Makes the copies visible to wgmma, which reads through the async proxy.
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

__device__ __forceinline__ void ldmatrix_x4(u32* r, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
__device__ __forceinline__ void ldmatrix_x4_trans(u32* r, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}

// A operand: 16 rows from `row`, 16 columns from `k`.
__device__ __forceinline__ void load_a(u32* r, u32 base, int row, int k) {
    int lane = threadIdx.x & 31;
    ldmatrix_x4(r, swizzled(base, row + (lane & 15), k / 8 + (lane >> 4)));
}
// B operand whose columns are rows of the tile: 16 of them from `row` (two operands), 16 elements from `k`.
__device__ __forceinline__ void load_b(u32* r, u32 base, int row, int k) {
    int lane = threadIdx.x & 31;
    ldmatrix_x4(r, swizzled(base, row + (lane & 7) + ((lane >> 4) << 3), k / 8 + ((lane >> 3) & 1)));
}
// B operand whose rows are rows of the tile: 16 of them from `k`, 16 columns from `column` (two operands).
__device__ __forceinline__ void load_b_trans(u32* r, u32 base, int k, int column) {
    int lane = threadIdx.x & 31;
    ldmatrix_x4_trans(r, swizzled(base, k + (lane & 15), column / 8 + (lane >> 4)));
}

__device__ __forceinline__ void mma_m16n8k16(float* c, const u32* a, const u32* b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Packs two neighbouring accumulators (16 rows, 16 columns) as the A operand of the next product.
__device__ __forceinline__ void pack_a(u32* a, const float* c0, const float* c1) {
    a[0] = pack_bf16(c0[0], c0[1]), a[1] = pack_bf16(c0[2], c0[3]), a[2] = pack_bf16(c1[0], c1[1]), a[3] = pack_bf16(c1[2], c1[3]);
}

__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(FULL_MASK, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL_MASK, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(FULL_MASK, x, 1);
    return x + __shfl_xor_sync(FULL_MASK, x, 2);
}

// Only compiled for the head dimensions of large models.
#if HOPPER && PADDED_HEAD_DIM == 128
#define HAS_WGMMA 1

// wgmma: one warp group multiplies 64 rows, 16 elements deep. Operands are given by shared-memory descriptors: K-major
// if the tile's rows are rows (or columns) of the operand, MN-major if its columns are.
__device__ __forceinline__ u64 desc_k_major(u32 at) { return (u64)((at & 0x3ffff) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62); }
__device__ __forceinline__ u64 desc_mn_major(u32 at) { return (u64)((at & 0x3ffff) >> 4) | ((u64)(PANEL_BYTES >> 4) << 16) | (64ull << 32) | (1ull << 62); }
// Address of a sub-tile that starts at row `row` and element `k`.
__device__ __forceinline__ u32 tile_address(u32 base, int row, int k) { return base + (k >> 6) * PANEL_BYTES + row * 128 + (k & 63) * 2; }

// Registers must be written before wgmma_fence and read after wgmma_wait. This keeps the compiler from moving accesses
// across either.
template <int N>
__device__ __forceinline__ void pin_registers(float (&c)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])::"memory");
}
template <int N>
__device__ __forceinline__ void pin_registers(u32 (&a)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3])::"memory");
}
// Orders prior register writes before the wgmmas that follow.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// wgmma_commit closes a group of wgmmas; wgmma_wait<N> waits until at most the N latest groups are pending.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
template <typename... T>
__device__ __forceinline__ void wgmma_begin(T&... operands) {
    (pin_registers(operands), ...);
    wgmma_fence();
}
template <typename... T>
__device__ __forceinline__ void wgmma_finish(T&... operands) {
    wgmma_commit();
    wgmma_wait<0>();
    (pin_registers(operands), ...);
}

// c = a · b, or c += a · b, for 64 rows and 64 columns. a is in registers or a K-major tile.
template <bool ACCUMULATE>
__device__ __forceinline__ void wgmma_m64n64k16(float (*c)[4], const u32* a, u64 b) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, p, 1, 1, 0; }"
                 : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ACCUMULATE));
}
template <bool ACCUMULATE>
__device__ __forceinline__ void wgmma_m64n64k16(float (*c)[4], u64 a, u64 b) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, p, 1, 1, 0, 0; }"
                 : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
                 : "l"(a), "l"(b), "n"(ACCUMULATE));
}
// c += a · b for 64 rows and 128 columns. b is MN-major.
__device__ __forceinline__ void wgmma_m64n128k16_trans_b(float (*c)[4], const u32* a, u64 b) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, p, 1, 1, 1; }"
                 : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3]), "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]), "+f"(c[8][3]), "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]), "+f"(c[10][0]), "+f"(c[10][1]), "+f"(c[10][2]), "+f"(c[10][3]), "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]), "+f"(c[11][3]), "+f"(c[12][0]), "+f"(c[12][1]), "+f"(c[12][2]), "+f"(c[12][3]), "+f"(c[13][0]), "+f"(c[13][1]), "+f"(c[13][2]), "+f"(c[13][3]), "+f"(c[14][0]), "+f"(c[14][1]), "+f"(c[14][2]), "+f"(c[14][3]), "+f"(c[15][0]), "+f"(c[15][1]), "+f"(c[15][2]), "+f"(c[15][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#endif
