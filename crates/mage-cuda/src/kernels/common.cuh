// What all kernels share. bf16 numbers are handled as bits, so that no header of the CUDA toolkit is needed.

typedef unsigned short bf16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define FULL 0xffffffffu
#define LOG2E 1.4426950408889634f
#define NEVER (-__int_as_float(0x7f800000))

// Numbers of a head as tiles and teams of lanes hold it: a power of two, zeros where the head has none.
#if HD <= 16
#define WIDTH 16
#elif HD <= 32
#define WIDTH 32
#elif HD <= 64
#define WIDTH 64
#else
#define WIDTH 128
#endif

__device__ __forceinline__ float low(u32 x) { return __uint_as_float(x << 16); }
__device__ __forceinline__ float high(u32 x) { return __uint_as_float(x & 0xffff0000u); }
__device__ __forceinline__ float wide(bf16 x) { return __uint_as_float((u32)x << 16); }

__device__ __forceinline__ u32 pair(float first, float second) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(second), "f"(first));
    return r;
}

__device__ __forceinline__ bf16 narrow(float x) {
    bf16 r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
    return r;
}

__device__ __forceinline__ void spread(uint4 x, float* v) {
    v[0] = low(x.x), v[1] = high(x.x), v[2] = low(x.y), v[3] = high(x.y);
    v[4] = low(x.z), v[5] = high(x.z), v[6] = low(x.w), v[7] = high(x.w);
}

__device__ __forceinline__ uint4 gathered(const float* v) {
    return make_uint4(pair(v[0], v[1]), pair(v[2], v[3]), pair(v[4], v[5]), pair(v[6], v[7]));
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(FULL, x, o);
    return x;
}

// The sum over a block, known to all its threads. Its threads must all be here.
__device__ __forceinline__ float block_sum(float x) {
    __shared__ float parts[32];
    int warps = (blockDim.x + 31) >> 5;
    x = warp_sum(x);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = x;
    __syncthreads();
    x = (threadIdx.x & 31) < warps ? parts[threadIdx.x & 31] : 0.f;
    return warp_sum(x);
}

// Between kernels that are started early: others may take their place from here on; those before this one have ended. Without
// others, nothing.
__device__ __forceinline__ void others_may_come() {
#if HOPPER
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void after_others() {
#if HOPPER
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
