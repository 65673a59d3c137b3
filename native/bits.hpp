// Sets as words of bits: how many elements two sets share, and the Tanimoto similarity made of that number.
//
// Points are packed like any others (packing.hpp), but the elements of a point are words of bits in the place of
// numbers, as many bits as T has; the last one is a number again: the size of the set. Sizes are exact integers, so a
// similarity is one rounded division.
#pragma once

#include "packing.hpp"

namespace kernelcg {
namespace KERNELCG_VARIANT {

template <class T>
struct WordTypes;
template <>
struct WordTypes<float> {
    typedef uint32_t Word;
    typedef uint32_t Words __attribute__((vector_size(KERNELCG_VECTOR_BYTES), may_alias));
    static constexpr Word every_byte = 0x01010101u;
    static constexpr float integers = 8388608.0f;  // 2^23: below it the last bits of 2^23 + n are those of n
    static constexpr Word integers_bits = 0x4b000000u;
};
template <>
struct WordTypes<double> {
    typedef uint64_t Word;
    typedef uint64_t Words __attribute__((vector_size(KERNELCG_VECTOR_BYTES), may_alias));
    static constexpr Word every_byte = 0x0101010101010101u;
    static constexpr double integers = 4503599627370496.0;  // 2^52
    static constexpr Word integers_bits = 0x4330000000000000u;
};

template <class T>
using Word = typename WordTypes<T>::Word;
template <class T>
using Words = typename WordTypes<T>::Words;

template <class T, int Rows>
using WordTile = Words<T>[Rows][kTileVectors];

// The number of bits in every byte of x.
template <class T>
KERNELCG_INLINE Words<T> bits_in_bytes(Words<T> x) {
#if KERNELCG_VECTOR_BYTES == 64
    const __m512i low = _mm512_set1_epi8(15);
    const __m512i bits = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
    const __m512i first = _mm512_shuffle_epi8(bits, _mm512_and_si512((__m512i)x, low));
    const __m512i second = _mm512_shuffle_epi8(bits, _mm512_and_si512(_mm512_srli_epi16((__m512i)x, 4), low));
    return (Words<T>)_mm512_add_epi8(first, second);
#elif KERNELCG_VECTOR_BYTES == 32
    const __m256i low = _mm256_set1_epi8(15);
    const __m256i bits = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
    const __m256i first = _mm256_shuffle_epi8(bits, _mm256_and_si256((__m256i)x, low));
    const __m256i second = _mm256_shuffle_epi8(bits, _mm256_and_si256(_mm256_srli_epi16((__m256i)x, 4), low));
    return (Words<T>)_mm256_add_epi8(first, second);
#elif defined(__aarch64__)
    return (Words<T>)vcntq_u8((uint8x16_t)x);
#else
    constexpr Word<T> every = WordTypes<T>::every_byte;
    x = x - ((x >> 1) & (every * 0x55));
    x = (x & (every * 0x33)) + ((x >> 2) & (every * 0x33));
    return (x + (x >> 4)) & (every * 0x0f);
#endif
}

// The sum of the bytes of every word.
template <class T>
KERNELCG_INLINE Words<T> sum_of_bytes(Words<T> x) {
    constexpr Word<T> every_second = WordTypes<T>::every_byte / 0x101 * 0xff;  // 0x00ff00ff...
    x = (x & every_second) + ((x >> 8) & every_second);
    x = x + (x >> 16);
    if constexpr (sizeof(T) == 8) x = x + (x >> 32);
    return x & Word<T>(0xffff);
}

// Words whose bits may be counted before the count in a byte, at most 8 for each, overflows.
constexpr int64_t kWordsPerByteCount = 31;

template <class T>
KERNELCG_INLINE Words<T> load_words(const T* address) {
    return *reinterpret_cast<const Words<T>*>(address);
}

template <class T>
KERNELCG_INLINE Words<T> broadcast_word(const T* address) {
    Word<T> word;
    __builtin_memcpy(&word, address, sizeof(word));
    return word - Words<T>{};
}

// tile[i][j] = the number of elements that set i of Rows sets and set j of one panel share.
template <class T, int Rows>
KERNELCG_INLINE void count_common(const T* rows, const T* panel, int64_t words, WordTile<T, Rows>& tile) {
    KERNELCG_UNROLL for (int i = 0; i < Rows; ++i)
        KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v) tile[i][v] = Words<T>{};
    for (int64_t begin = 0; begin < words; begin += kWordsPerByteCount) {
        WordTile<T, Rows> bytes = {};
        const int64_t count = smaller(words - begin, kWordsPerByteCount);
        for (int64_t w = 0; w < count; ++w, rows += kPanel<T>, panel += kPanel<T>) {
            Words<T> columns[kTileVectors];
            KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v) columns[v] = load_words(panel + v * kLanes<T>);
            KERNELCG_UNROLL for (int i = 0; i < Rows; ++i) {
                const Words<T> row = broadcast_word(rows + i);
                KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v)
                    bytes[i][v] += bits_in_bytes<T>(columns[v] & row);
            }
        }
        KERNELCG_UNROLL for (int i = 0; i < Rows; ++i)
            KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v) tile[i][v] += sum_of_bytes<T>(bytes[i][v]);
    }
}

// strip[i][j] = common / (|row i| + |column j| - common), and 1 between empty sets, for the columns of one panel.
// Panels hold the sizes behind the words.
template <class T, int Rows>
KERNELCG_INLINE void store_similarities(const WordTile<T, Rows>& common, const T* row_sizes, const T* column_sizes,
                                        int64_t stride, T* strip) {
    const Vec<T> integers = broadcast<T>(WordTypes<T>::integers), one = broadcast<T>(T(1));
    KERNELCG_UNROLL for (int i = 0; i < Rows; ++i) {
        const Vec<T> row_size = broadcast<T>(row_sizes[i]);
        KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v) {
            const Vec<T> shared = (Vec<T>)(common[i][v] | WordTypes<T>::integers_bits) - integers;
            const Vec<T> both = load(column_sizes + v * kLanes<T>) + row_size - shared;
            const Vec<T> ratio = shared / maximum(both, one);
            store(strip + i * stride + v * kLanes<T>, both < one ? one : ratio);
        }
    }
}

template <class T, int Rows>
__attribute__((noinline)) void fill_with_similarities(const T* rows, const T* panel, int64_t features, int64_t panels,
                                                      int64_t stride, T* strip) {
    const int64_t words = features - 1;
    for (int64_t p = 0; p < panels; ++p, panel += features * kPanel<T>, strip += kPanel<T>) {
        WordTile<T, Rows> common;
        count_common<T, Rows>(rows, panel, words, common);
        store_similarities<T, Rows>(common, rows + words * kPanel<T>, panel + words * kPanel<T>, stride, strip);
    }
}

#if KERNELCG_VECTOR_BYTES == 64
// The same with an instruction that not all processors with AVX-512 have: it counts the bits of every word.
#define KERNELCG_POPCOUNT __attribute__((target("avx512vpopcntdq")))

template <class T>
KERNELCG_POPCOUNT KERNELCG_INLINE Words<T> bits_in_words(Words<T> x) {
    if constexpr (sizeof(T) == 8)
        return (Words<T>)_mm512_popcnt_epi64((__m512i)x);
    else
        return (Words<T>)_mm512_popcnt_epi32((__m512i)x);
}

template <class T, int Rows>
KERNELCG_POPCOUNT __attribute__((noinline)) void fill_by_popcount(const T* rows, const T* panel, int64_t features,
                                                                  int64_t panels, int64_t stride, T* strip) {
    const int64_t words = features - 1;
    for (int64_t p = 0; p < panels; ++p, panel += features * kPanel<T>, strip += kPanel<T>) {
        WordTile<T, Rows> common = {};
        for (int64_t w = 0; w < words; ++w) {
            Words<T> columns[kTileVectors];
            KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v)
                columns[v] = load_words(panel + w * kPanel<T> + v * kLanes<T>);
            KERNELCG_UNROLL for (int i = 0; i < Rows; ++i) {
                const Words<T> row = broadcast_word(rows + w * kPanel<T> + i);
                KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v)
                    common[i][v] += bits_in_words<T>(columns[v] & row);
            }
        }
        store_similarities<T, Rows>(common, rows + words * kPanel<T>, panel + words * kPanel<T>, stride, strip);
    }
}
#endif

// strip[i][c] = the similarity of set i (rows: Panels::point of the first of Rows) and set c of `panels` panels.
template <class T, int Rows>
void fill_tanimoto(const T* rows, const T* panel, int64_t features, int64_t panels, int64_t stride, T* strip) {
#if KERNELCG_VECTOR_BYTES == 64
    if (counts_bits_of_words()) return fill_by_popcount<T, Rows>(rows, panel, features, panels, stride, strip);
#endif
    fill_with_similarities<T, Rows>(rows, panel, features, panels, stride, strip);
}

}  // namespace KERNELCG_VARIANT
}  // namespace kernelcg
