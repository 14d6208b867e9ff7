// Helpers shared by all kernels. bf16 values are handled as raw bits, so that no CUDA toolkit header is needed.

typedef unsigned short bf16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define FULL_MASK 0xffffffffu
#define LOG2E 1.4426950408889634f
#define NEG_INF (-__int_as_float(0x7f800000))

// Head dimension of tiles: HEAD_DIM rounded up to a power of two, padded with zeros.
#if HEAD_DIM <= 16
#define PADDED_HEAD_DIM 16
#elif HEAD_DIM <= 32
#define PADDED_HEAD_DIM 32
#elif HEAD_DIM <= 64
#define PADDED_HEAD_DIM 64
#else
#define PADDED_HEAD_DIM 128
#endif

__device__ __forceinline__ float bf16_lo(u32 x) { return __uint_as_float(x << 16); }
__device__ __forceinline__ float bf16_hi(u32 x) { return __uint_as_float(x & 0xffff0000u); }
__device__ __forceinline__ float bf16_to_f32(bf16 x) { return __uint_as_float((u32)x << 16); }

__device__ __forceinline__ u32 pack_bf16(float first, float second) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(second), "f"(first));
    return r;
}

__device__ __forceinline__ bf16 to_bf16(float x) {
    bf16 r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
    return r;
}

__device__ __forceinline__ void unpack8(uint4 x, float* v) {
    v[0] = bf16_lo(x.x), v[1] = bf16_hi(x.x), v[2] = bf16_lo(x.y), v[3] = bf16_hi(x.y);
    v[4] = bf16_lo(x.z), v[5] = bf16_hi(x.z), v[6] = bf16_lo(x.w), v[7] = bf16_hi(x.w);
}

__device__ __forceinline__ uint4 pack8(const float* v) {
    return make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(FULL_MASK, x, o);
    return x;
}

// Sum over the CTA, returned to every thread. All threads must call it.
__device__ __forceinline__ float block_sum(float x) {
    __shared__ float warp_sums[32];
    int warps = (blockDim.x + 31) >> 5;
    x = warp_sum(x);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) warp_sums[threadIdx.x >> 5] = x;
    __syncthreads();
    x = (threadIdx.x & 31) < warps ? warp_sums[threadIdx.x & 31] : 0.f;
    return warp_sum(x);
}

// Programmatic dependent launch: `launch_dependents` allows the next kernel to start, `wait_for_dependencies` waits
// until all prior kernels have completed. Both are no-ops for kernels launched without it.
__device__ __forceinline__ void launch_dependents() {
#if HOPPER
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_dependencies() {
#if HOPPER
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
