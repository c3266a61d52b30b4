// Outputs larger than the caches are written around them on a host: otherwise each line is read first, only to be
// overwritten, a third of a copy's traffic. Smaller outputs stay in the caches for the kernel that reads them next.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/types.hpp"

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace fourfold::kernels {

inline constexpr bool kStreamsOnHost = Kokkos::SpaceAccessibility<Kokkos::HostSpace, Space::memory_space>::accessible;
// A core's share of a third-level cache is seldom more.
inline constexpr Index kStreamBytes = Index(1) << 24;
// Bytes made before they are written: few, so that a core reads ahead of its stores.
inline constexpr Index kStreamChunk = 256;

// Whether an output goes around the caches; never where the kernel reads it too (`from`).
template <class T>
bool goes_around_caches(const T* out, Index elements, const T* from = nullptr) {
  return kStreamsOnHost && elements * static_cast<Index>(sizeof(T)) >= kStreamBytes && out != from;
}

// To be called once the kernel has run: orders these stores before whatever tells another process about them. (The
// threads of a back end that has some meet in a barrier, whose locked instructions do it for each.)
inline void finish_stores_around_caches(bool around) {
#if defined(__AVX__)
  if (around) _mm_sfence();
#else
  static_cast<void>(around);
#endif
}

// Copies n elements; whole cache lines go around the caches.
template <class T>
void store_around_caches(const T* from, Index n, T* to) {
#if defined(__AVX__)
  constexpr std::uintptr_t kLine = 64;
  constexpr Index kHalfLine = 32 / static_cast<Index>(sizeof(T));
  const Index before = static_cast<Index>((kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine / sizeof(T));
  Index i = 0;
  for (; i < std::min(before, n); ++i) to[i] = from[i];
  for (; i + 2 * kHalfLine <= n; i += 2 * kHalfLine) {
    const auto low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    const auto high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + kHalfLine));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + kHalfLine), high);
  }
  for (; i < n; ++i) to[i] = from[i];
#else
  std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
#endif
}

// element(j, left[j], right[j]) for j in [0, n), by one task.
template <class T, class Element>
KOKKOS_FORCEINLINE_FUNCTION void write_two_runs(bool around, Index n, T* left, T* right, Element element) {
  if constexpr (kStreamsOnHost) {
    if (around) {
      constexpr Index kChunk = kStreamChunk / static_cast<Index>(sizeof(T));
      alignas(64) T made[2][kChunk];
      Index j = 0;
      for (; j + kChunk <= n; j += kChunk) {
        for (Index i = 0; i < kChunk; ++i) element(j + i, made[0][i], made[1][i]);
        store_around_caches(made[0], kChunk, left + j);
        store_around_caches(made[1], kChunk, right + j);
      }
      for (; j < n; ++j) element(j, left[j], right[j]);
      return;
    }
  }
  for (Index j = 0; j < n; ++j) element(j, left[j], right[j]);
}

// out[j] = element(j) for j in [0, n), by one task.
template <class T, class Element>
KOKKOS_FORCEINLINE_FUNCTION void write_run(bool around, Index n, T* out, Element element) {
  if constexpr (kStreamsOnHost) {
    if (around) {
      constexpr Index kChunk = kStreamChunk / static_cast<Index>(sizeof(T));
      alignas(64) T made[kChunk];
      Index j = 0;
      for (; j + kChunk <= n; j += kChunk) {
        for (Index i = 0; i < kChunk; ++i) made[i] = element(j + i);
        store_around_caches(made, kChunk, out + j);
      }
      for (; j < n; ++j) out[j] = element(j);
      return;
    }
  }
  for (Index j = 0; j < n; ++j) out[j] = element(j);
}

// out[j] = from[j] for j in [0, n), by one task.
template <class T, class Y>
KOKKOS_FORCEINLINE_FUNCTION void copy_run(bool around, Index n, const T* from, Y* out) {
  if constexpr (kStreamsOnHost && std::is_same_v<T, Y>) {
    if (around) {
      store_around_caches(from, n, out);
      return;
    }
  }
  for (Index j = 0; j < n; ++j) out[j] = from[j];
}

// out[i] = element(i) for i in [0, n), by a kernel of its own. `from`: an input that may be `out`. Around the caches a
// task goes along several runs in turns: the prefetchers follow each, and more lines are on their way at a time.
template <class T, class Element>
void write_elements(const char* label, const Space& space, Index n, const T* from, T* out, Element element) {
  if (goes_around_caches(out, n, from)) {
    constexpr Index kLength = 65536 / static_cast<Index>(sizeof(T)), kStreams = 4, kRun = kStreams * kLength;
    constexpr Index kChunk = kStreamChunk / static_cast<Index>(sizeof(T));
    Kokkos::parallel_for(
        label, Range1(space, 0, (n + kRun - 1) / kRun), KOKKOS_LAMBDA(const Index run) {
          const Index begin = run * kRun;
          if (begin + kRun <= n) {
            for (Index j = 0; j < kLength; j += kChunk) {
              for (Index stream = 0; stream < kStreams; ++stream) {
                const Index at = begin + stream * kLength + j;
                write_run(true, kChunk, out + at, [=](Index i) { return element(at + i); });
              }
            }
          } else {
            write_run(true, n - begin, out + begin, [=](Index j) { return element(begin + j); });
          }
        });
    finish_stores_around_caches(true);
  } else {
    Kokkos::parallel_for(
        label, Range1(space, 0, n), KOKKOS_LAMBDA(const Index i) { out[i] = element(i); });
  }
}

}  // namespace fourfold::kernels
