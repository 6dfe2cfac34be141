// Instruction sets of more than one machine in one library, of which the best that this machine has is taken.

#ifndef RECSYS_HARNESS_MODELS_OPS_MACHINES_H_
#define RECSYS_HARNESS_MODELS_OPS_MACHINES_H_

// A function that is built for each; the loader takes one. Its instructions are those of the named sets alone: "avx2" has
// no fused multiply-add.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define EVERY_MACHINE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EVERY_MACHINE
#endif

// A function whose instructions are those of the function that it is inlined into.
#define ALWAYS_INLINE inline __attribute__((always_inline))

namespace recsys_harness {

#if defined(__x86_64__)
#define FOR_AVX2 __attribute__((target("avx2,fma")))
#define FOR_AVX512 __attribute__((target("avx512f,avx2,fma")))

// Of what is built by hand, as vectors of other lengths need it: what this machine runs fastest.
template <typename Kernels>
const Kernels& BestOf(const Kernels& any, const Kernels& avx2, const Kernels& avx512) {
  if (__builtin_cpu_supports("avx512f")) return avx512;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? avx2 : any;
}
#endif

}  // namespace recsys_harness

#endif  // RECSYS_HARNESS_MODELS_OPS_MACHINES_H_
