// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/both_ways.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace peerlane::gputest {
namespace {

constexpr uint32_t kSignal = 3;

// What the active side puts in a round, and what it gets.
uint32_t seedOf(uint32_t round) {
  return round + 1;
}
uint32_t answerOf(uint32_t round) {
  return round + 1001;
}

}  // namespace

void putAndGet(const Side& side, const Line& line, const Round& how, uint32_t round) {
  SCOPED_TRACE(std::to_string(how.blocks) + " blocks, stream " + std::to_string(how.onStream) +
               ", engine " + engineName(how.engine));
  const size_t bytes = side.region.bytes();
  fill(side.region.data(), bytes, seedOf(round));
  std::vector<Block> list;
  const size_t each = bytes / how.blocks / how.unit * how.unit;
  for (size_t i = 0; i < how.blocks; ++i)
    list.push_back(side.block(i * each, i + 1 == how.blocks ? bytes - i * each : each));
  std::shuffle(list.begin(), list.end(), std::mt19937(round));
  PostOptions options{.engine = how.engine};
  if (how.onStream) options.deviceStream = side.deviceStream();
  options.notify.signal = kSignal;
  must(must(put(side.peer, list, options), "put").wait(kPatience), "put wait");
  line.send("look");
  EXPECT_EQ(line.receive(), "good");
  options.notify = {};
  const Transfer fetched = must(get(side.peer, list, options), "get");
  // What follows on the stream comes after the bytes.
  if (how.onStream) mustSync(side.stream);
  must(fetched.wait(kPatience), "get wait");
  EXPECT_EQ(wrongWords(side.region.data(), bytes, answerOf(round)), 0u);
}

void lookAndAnswer(const Side& side, const Line& line) {
  const Signal signal = must(Signal::create(side.peer, kSignal), "signal");
  const size_t bytes = side.region.bytes();
  uint32_t round = 0;
  while (line.receive() == "look") {
    ++round;
    must(signal.wait(round, kPatience), "signal wait");
    const uint64_t wrong = wrongWords(side.region.data(), bytes, seedOf(round));
    fill(side.region.data(), bytes, answerOf(round));
    // What the line orders is not known to the thread sanitizer; what the engine's thread is asked
    // for is.
    (void)side.context->dump();
    line.send(wrong == 0 ? "good" : std::to_string(wrong) + " wrong words");
  }
  EXPECT_EQ(signal.value(), round);
}

}  // namespace peerlane::gputest
