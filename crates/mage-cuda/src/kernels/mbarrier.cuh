// Tiles that the card brings to shared memory by itself, and gates at which warps wait for them.

#if TENSOR_READS

// How a matrix lies in memory, as the card reads it.
struct __align__(128) Map {
    u64 words[16];
};

// Threads pass a gate when all that was expected has come.
__device__ __forceinline__ void set_gate(u32 gate, int arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(gate), "r"(arrivals)); }
__device__ __forceinline__ void expect(u32 gate, int bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(gate), "r"(bytes) : "memory"); }
__device__ __forceinline__ void arrive(u32 gate) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(gate) : "memory"); }
__device__ __forceinline__ void pass(u32 gate, int phase) {
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra through; bra again; through: }" ::"r"(gate), "r"(phase) : "memory");
}
#endif
