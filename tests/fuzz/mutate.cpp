// Mutated headers, seeded: 20,000 of each kind, a million of each in full. The bytes end where a page ends that no one
// may read beyond, so that a read outside the file is a crash.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <random>

#include "targets.hpp"
#include "test_support.hpp"

namespace fourfold::fuzz {
namespace {

// Memory whose last byte is followed by a page that cannot be read.
class Guarded {
 public:
  Guarded() : page_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))) {
    base_ = static_cast<unsigned char*>(
        ::mmap(nullptr, kPages * page_ + page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(static_cast<void*>(base_), MAP_FAILED);
    EXPECT_EQ(::mprotect(base_ + kPages * page_, page_, PROT_NONE), 0);
  }
  ~Guarded() { ::munmap(base_, kPages * page_ + page_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  std::span<const unsigned char> hold(const std::string& bytes) {
    unsigned char* at = base_ + kPages * page_ - bytes.size();
    std::memcpy(at, bytes.data(), bytes.size());
    return {at, bytes.size()};
  }
  std::size_t most() const { return kPages * page_; }

 private:
  static constexpr std::size_t kPages = 4;
  std::size_t page_;
  unsigned char* base_ = nullptr;
};

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : engine_(seed) {}

  // One to four changes; now and then the length in front of a JSON header is made right again.
  std::string mutate(std::string bytes, bool has_length) {
    for (std::size_t n = 1 + below(4); n > 0; --n) change(bytes);
    if (has_length && bytes.size() > 8 && below(4) != 0) {
      const std::size_t end = bytes.rfind('}');
      const std::uint64_t length = end == std::string::npos || end < 8 ? bytes.size() - 8 : end - 7;
      std::memcpy(bytes.data(), &length, 8);
    }
    return bytes;
  }

 private:
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(engine_() % n); }

  void change(std::string& bytes) {
    static constexpr std::array<std::uint64_t, 10> kNumbers{0,
                                                            1,
                                                            0x7f,
                                                            0xff,
                                                            0x7fffffff,
                                                            0xffffffff,
                                                            0x100000000,
                                                            0x7fffffffffffffff,
                                                            0x8000000000000000,
                                                            ~std::uint64_t{0}};
    static constexpr std::array kWords{"9223372036854775807",
                                       "18446744073709551616",
                                       "-1",
                                       "1e9",
                                       "0.5",
                                       "[",
                                       "]",
                                       "{",
                                       "}",
                                       ",",
                                       "\"",
                                       "\\u0000",
                                       "\\ud800",
                                       "null",
                                       "[0,0]",
                                       "\xff",
                                       "\"a\":",
                                       "F64"};
    const std::size_t at = bytes.empty() ? 0 : below(bytes.size());
    switch (bytes.empty() ? 3 : below(9)) {
      case 0:
        bytes[at] = static_cast<char>(static_cast<unsigned char>(bytes[at]) ^ 1u << below(8));
        break;
      case 1:
        bytes[at] = static_cast<char>(below(256));
        break;
      case 2: {  // a number over what is there
        const std::uint64_t number = kNumbers[below(kNumbers.size())] + below(3) - 1;
        const std::size_t width = std::size_t{1} << below(4);
        std::memcpy(bytes.data() + at, &number, std::min(width, bytes.size() - at));
        break;
      }
      case 3:
        bytes.insert(at, kWords[below(kWords.size())]);
        break;
      case 4: {
        const std::string word = kWords[below(kWords.size())];
        bytes.replace(at, std::min(word.size(), bytes.size() - at), word);
        break;
      }
      case 5:
        bytes.erase(at, 1 + below(8));
        break;
      case 6:
        bytes.insert(at, bytes.substr(below(bytes.size()), 1 + below(40)));
        break;
      case 7: {  // another digit, where there is one
        const std::size_t digit = bytes.find_first_of("0123456789", at);
        if (digit != std::string::npos) bytes[digit] = static_cast<char>('0' + below(10));
        break;
      }
      default:
        bytes.resize(below(2) == 0 ? at : bytes.size() + below(9), '\0');
        break;
    }
  }

  std::mt19937_64 engine_;
};

TEST(Fuzz, MutatedHeadersAreTakenOrRefused) {
  const std::int64_t rounds = test::full() ? 1'000'000 : 20'000;
  std::printf("FOURFOLD_SEED=%llu\n", static_cast<unsigned long long>(test::seed()));
  Guarded memory;
  for (const Target& target : targets()) {
    Mutator mutator(test::seed());
    const std::vector<std::string> seeds = target.seeds();
    std::vector<std::string> pool = seeds;  // and what was taken on the way
    for (const std::string& seed : seeds) EXPECT_TRUE(target.run(memory.hold(seed))) << target.name;
    std::int64_t taken = 0;
    for (std::int64_t i = 0; i < rounds; ++i) {
      const std::string& from = pool[static_cast<std::size_t>(i) % pool.size()];
      const std::string bytes = mutator.mutate(from, std::string(target.name) == "safetensors");
      if (bytes.size() > memory.most() / 2) continue;
      if (!target.run(memory.hold(bytes))) continue;
      ++taken;
      if (pool.size() < 200) pool.push_back(bytes);
    }
    std::printf("%-12s %lld of %lld mutants taken\n", target.name, static_cast<long long>(taken),
                static_cast<long long>(rounds));
    EXPECT_GT(taken, 0) << target.name;
    EXPECT_LT(taken, rounds / 2) << target.name;
  }
}

}  // namespace
}  // namespace fourfold::fuzz
