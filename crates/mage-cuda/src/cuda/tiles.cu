// Tiles of rows in shared memory, and products of them on tensor cores (mma m16n8k16).
//
// A row has HD numbers in pieces of 16 bytes. Pieces are permuted within a row by the row's number, so that eight rows'
// pieces of one column lie in different banks.

#define PIECES (HD / 8)

__device__ __forceinline__ u32 place(u32 base, int row, int piece) {
#if PIECES >= 8
    piece ^= row & 7;
#elif PIECES == 4
    piece ^= (row >> 1) & 3;
#else
    piece ^= (row >> 2) & 1;
#endif
    return base + (row * PIECES + piece) * 16;
}

// 16 bytes to shared memory in the background; zeros where the row is not there.
__device__ __forceinline__ void fetch(u32 to, const void* from, bool there) {
    int bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
__device__ __forceinline__ void fetched() { asm volatile("cp.async.commit_group;"); }
__device__ __forceinline__ void arrived() { asm volatile("cp.async.wait_group 0;"); }

__device__ __forceinline__ void load4(u32* r, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
__device__ __forceinline__ void load4_turned(u32* r, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}

// The left operand: 16 rows from `row`, 16 columns from `k`.
__device__ __forceinline__ void left(u32* r, u32 base, int row, int k) {
    int lane = threadIdx.x & 31;
    load4(r, place(base, row + (lane & 15), k / 8 + (lane >> 4)));
}
// The right operand where its columns are rows of the tile: 16 of them from `row` (two operands), 16 numbers from `k`.
__device__ __forceinline__ void right(u32* r, u32 base, int row, int k) {
    int lane = threadIdx.x & 31;
    load4(r, place(base, row + (lane & 7) + ((lane >> 4) << 3), k / 8 + ((lane >> 3) & 1)));
}
// The right operand where its rows are rows of the tile: 16 of them from `k`, 16 columns from `column` (two operands).
__device__ __forceinline__ void right_turned(u32* r, u32 base, int k, int column) {
    int lane = threadIdx.x & 31;
    load4_turned(r, place(base, k + (lane & 15), column / 8 + (lane >> 4)));
}

__device__ __forceinline__ void multiply(float* c, const u32* a, const u32* b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Two neighbouring results (16 rows, 16 columns) as the left operand of the next product.
__device__ __forceinline__ void as_left(u32* a, const float* c0, const float* c1) {
    a[0] = pair(c0[0], c0[1]), a[1] = pair(c0[2], c0[3]), a[2] = pair(c1[0], c1[1]), a[3] = pair(c1[2], c1[3]);
}

__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(FULL, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(FULL, x, 1);
    return x + __shfl_xor_sync(FULL, x, 2);
}
