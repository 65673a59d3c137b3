// What an x86-64 processor supports, and the operating system with it. Asked of the processor itself, since the library
// behind __builtin_cpu_supports is not linked by clang-cl.
#pragma once

#include <cpuid.h>

#include <cstdint>

namespace kernelcg {

struct Processor {
    bool avx2_and_fma = false;
    bool avx512 = false;           // F, DQ, VL and BW
    bool avx512_popcount = false;  // VPOPCNTDQ
};

// The registers that the operating system saves when it switches threads (XCR0).
inline uint32_t saved_registers() {
    uint32_t low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

inline Processor this_processor() {
    const auto has = [](uint32_t word, int bit) { return (word >> bit & 1) != 0; };
    constexpr uint32_t kVectors256 = 0x6, kVectors512 = 0xe6;
    Processor found;
    uint32_t eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return found;
    const bool fma = has(ecx, 12), asks_system = has(ecx, 27);
    if (!asks_system || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return found;
    const uint32_t saved = saved_registers();
    found.avx2_and_fma = fma && has(ebx, 5) && (saved & kVectors256) == kVectors256;
    found.avx512 = found.avx2_and_fma && has(ebx, 16) && has(ebx, 17) && has(ebx, 30) && has(ebx, 31) &&
                   (saved & kVectors512) == kVectors512;
    found.avx512_popcount = found.avx512 && has(ecx, 14);
    return found;
}

}  // namespace kernelcg
