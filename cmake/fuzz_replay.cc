// SPDX-License-Identifier: Apache-2.0
//
// Runs a fuzz target without libFuzzer: every file of the corpus folder as it is, then a fixed
// number of mutations of each (the generator starts from a constant, so a failure repeats). One
// thread. Not a search: it keeps found crashes fixed and shakes each parser a little on every
// machine.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;
using Random = std::mt19937_64;

constexpr int kMutationsPerFile = 2000;
constexpr size_t kMaxGrowthBytes = 4096;

// The words that parsers get wrong: limits of each width and their neighbours.
constexpr uint64_t kInteresting[] = {0,          1,          0x7f,       0x80,       0xff,
                                     0x7fff,     0xffff,     0x7fffffff, 0x80000000, 0xffffffff,
                                     1ull << 62, 1ull << 63, ~0ull};

size_t below(Random& random, size_t bound) {
  return bound == 0 ? 0 : random() % bound;
}

void mutateOnce(Bytes& bytes, Random& random) {
  const size_t at = below(random, bytes.size());
  switch (random() % 6) {
    case 0:  // flip one bit
      if (!bytes.empty()) bytes[at] ^= static_cast<uint8_t>(1u << (random() % 8));
      break;
    case 1:  // another byte
      if (!bytes.empty()) bytes[at] = static_cast<uint8_t>(random());
      break;
    case 2:  // cut the end off
      bytes.resize(at);
      break;
    case 3: {  // insert noise
      Bytes noise(below(random, 64) + 1);
      std::generate(noise.begin(), noise.end(), [&] { return static_cast<uint8_t>(random()); });
      bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(at), noise.begin(), noise.end());
      break;
    }
    case 4: {  // a limit value in place of 1, 2, 4 or 8 bytes
      const uint64_t value = kInteresting[random() % std::size(kInteresting)];
      const size_t width = std::min<size_t>(size_t{1} << (random() % 4), bytes.size() - at);
      for (size_t i = 0; i < width; ++i) bytes[at + i] = static_cast<uint8_t>(value >> (8 * i));
      break;
    }
    default: {  // repeat a piece at the end
      const size_t length = std::min(below(random, bytes.size() - at + 1), kMaxGrowthBytes);
      const Bytes piece(bytes.begin() + static_cast<ptrdiff_t>(at),
                        bytes.begin() + static_cast<ptrdiff_t>(at + length));
      bytes.insert(bytes.end(), piece.begin(), piece.end());
    }
  }
}

// The input is copied to a heap block of exactly its size, so that the address sanitizer sees each
// overrun.
void runOne(const Bytes& bytes) {
  const Bytes exact(bytes.begin(), bytes.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

size_t replayFile(const std::filesystem::path& path, Random& random) {
  std::ifstream stream(path, std::ios::binary);
  const Bytes seed((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  std::fprintf(stderr, "replaying %s (%zu bytes)\n", path.c_str(), seed.size());
  runOne(seed);
  for (int i = 0; i < kMutationsPerFile; ++i) {
    Bytes mutant = seed;
    for (uint64_t steps = random() % 8 + 1; steps > 0; --steps) mutateOnce(mutant, random);
    runOne(mutant);
  }
  return 1 + kMutationsPerFile;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s CORPUS_FOLDER\n", argv[0]);
    return 2;
  }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  if (files.empty()) {
    std::fprintf(stderr, "the corpus folder %s holds no file: nothing would be tested\n", argv[1]);
    return 1;
  }
  std::sort(files.begin(), files.end());  // the order of the folder is not the same everywhere
  Random random(0x9e3779b97f4a7c15);
  runOne({});
  size_t inputs = 1;
  for (const auto& path : files) inputs += replayFile(path, random);
  std::printf("%zu inputs, no crash\n", inputs);
  return 0;
}
