// TMA descriptors, and mbarriers on which warps wait for TMA loads.

#if HAS_WGMMA

// TMA tensor map.
struct __align__(128) TensorMap {
    u64 opaque[16];
};

// A waiting thread passes the barrier when all arrivals and all expected bytes of the phase are in.
__device__ __forceinline__ void mbarrier_init(u32 barrier, int arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)); }
__device__ __forceinline__ void mbarrier_expect_tx(u32 barrier, int bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory"); }
__device__ __forceinline__ void mbarrier_arrive(u32 barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
__device__ __forceinline__ void mbarrier_wait(u32 barrier, int phase) {
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra through; bra again; through: }" ::"r"(barrier), "r"(phase) : "memory");
}
#endif
