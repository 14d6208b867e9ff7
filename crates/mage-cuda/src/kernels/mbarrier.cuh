// Tiles that the card brings to shared memory by itself, and gates at which warps wait for them.

#if HAS_WGMMA

// How a matrix lies in memory, as the card reads it.
struct __align__(128) TensorMap {
    u64 opaque[16];
};

// Threads pass a gate when all that was expected has come.
__device__ __forceinline__ void mbarrier_init(u32 barrier, int arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)); }
__device__ __forceinline__ void mbarrier_expect_tx(u32 barrier, int bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory"); }
__device__ __forceinline__ void mbarrier_arrive(u32 barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
__device__ __forceinline__ void mbarrier_wait(u32 barrier, int phase) {
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra through; bra again; through: }" ::"r"(barrier), "r"(phase) : "memory");
}
#endif
