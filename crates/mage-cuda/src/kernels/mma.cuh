// Tiles of rows in shared memory, and products of them on tensor cores (mma m16n8k16).
//
// A row has HD numbers, filled up with zeros to WIDTH, in pieces of 16 bytes. Pieces are permuted within a row by the row's number, so that eight rows'
// pieces of one column lie in different banks. Rows of more than eight pieces are cut into panels of eight, one after the
// other: that is how Hopper's tensor cores read tiles by themselves (wgmma, swizzled by 128 bytes).

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

// 16 bytes to shared memory in the background; zeros where the row is not there.
__device__ __forceinline__ void cp_async(u32 to, const void* from, bool in_range) {
    int bytes = in_range ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;"); }
__device__ __forceinline__ void cp_async_wait_all() {
    asm volatile("cp.async.wait_group 0;");
#if HOPPER
    // Tensor cores that read by themselves see it after this.
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

__device__ __forceinline__ void ldmatrix_x4(u32* r, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
__device__ __forceinline__ void ldmatrix_x4_trans(u32* r, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}

// The left operand: 16 rows from `row`, 16 columns from `k`.
__device__ __forceinline__ void load_a(u32* r, u32 base, int row, int k) {
    int lane = threadIdx.x & 31;
    ldmatrix_x4(r, swizzled(base, row + (lane & 15), k / 8 + (lane >> 4)));
}
// The right operand where its columns are rows of the tile: 16 of them from `row` (two operands), 16 numbers from `k`.
__device__ __forceinline__ void load_b(u32* r, u32 base, int row, int k) {
    int lane = threadIdx.x & 31;
    ldmatrix_x4(r, swizzled(base, row + (lane & 7) + ((lane >> 4) << 3), k / 8 + ((lane >> 3) & 1)));
}
// The right operand where its rows are rows of the tile: 16 of them from `k`, 16 columns from `column` (two operands).
__device__ __forceinline__ void load_b_trans(u32* r, u32 base, int k, int column) {
    int lane = threadIdx.x & 31;
    ldmatrix_x4_trans(r, swizzled(base, k + (lane & 15), column / 8 + (lane >> 4)));
}

__device__ __forceinline__ void mma_m16n8k16(float* c, const u32* a, const u32* b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Two neighbouring results (16 rows, 16 columns) as the left operand of the next product.
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

// Only for heads as wide as those of large models.
#if HOPPER && PADDED_HEAD_DIM == 128
#define HAS_WGMMA 1

// Four warps together multiply 64 rows, 16 numbers deep. Tiles are told by where they are: one whose rows are rows (or
// columns) of the operand, or one whose columns are.
__device__ __forceinline__ u64 desc_k_major(u32 at) { return (u64)((at & 0x3ffff) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62); }
__device__ __forceinline__ u64 desc_mn_major(u32 at) { return (u64)((at & 0x3ffff) >> 4) | ((u64)(PANEL_BYTES >> 4) << 16) | (64ull << 32) | (1ull << 62); }
// Where rows from `row` on start, from number `k` on.
__device__ __forceinline__ u32 tile_address(u32 base, int row, int k) { return base + (k >> 6) * PANEL_BYTES + row * 128 + (k & 63) * 2; }

// Registers must be written before the fence and read after the wait: the compiler may not move either across.
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
// Products that begin after this see registers as they are.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Those since the last such word are one group; of the groups, all but the last so many are done.
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

// c = a · b, or c += a · b, for 64 rows and 64 columns; the left operand in registers, or a tile told by rows.
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
// c += a · b for 64 rows and 128 columns, b told by columns.
__device__ __forceinline__ void wgmma_m64n128k16_trans_b(float (*c)[4], const u32* a, u64 b) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, p, 1, 1, 1; }"
                 : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3]), "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]), "+f"(c[8][3]), "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]), "+f"(c[10][0]), "+f"(c[10][1]), "+f"(c[10][2]), "+f"(c[10][3]), "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]), "+f"(c[11][3]), "+f"(c[12][0]), "+f"(c[12][1]), "+f"(c[12][2]), "+f"(c[12][3]), "+f"(c[13][0]), "+f"(c[13][1]), "+f"(c[13][2]), "+f"(c[13][3]), "+f"(c[14][0]), "+f"(c[14][1]), "+f"(c[14][2]), "+f"(c[14][3]), "+f"(c[15][0]), "+f"(c[15][1]), "+f"(c[15][2]), "+f"(c[15][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#endif
