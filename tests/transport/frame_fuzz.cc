// SPDX-License-Identifier: Apache-2.0
//
// A whole frame agent that reads the input as its peer's stream, with a put and a get of its own
// under way, so that answers have something to hit. It must not touch a byte outside its regions
// and buffers (the address sanitizer sees that), must let go of every pin, and must end its works
// exactly once.
#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "peerlane/core/log_level.h"
#include "peerlane/transport/frame_agent.h"
#include "tests/fake/fake_regions.h"

namespace peerlane {
namespace {

// Hands out the input in pieces whose sizes come from the input itself; takes what is written.
class InputPipe final : public FramePipe {
 public:
  explicit InputPipe(std::span<const uint8_t> input) : input_(input) {}
  bool writable() override { return true; }
  Result<size_t> write(const PipeSlices& from) override {
    size_t bytes = 0;
    for (const IoSlice& slice : from.slices) {
      // Reads every byte, so that memory which must not be read is noticed.
      const auto* bytesOf = static_cast<const volatile uint8_t*>(slice.base);
      for (size_t i = 0; i < slice.bytes; ++i) sum_ = sum_ + bytesOf[i];
      bytes += slice.bytes;
    }
    return bytes;
  }
  bool readable() override { return true; }
  Result<size_t> read(const PipeSlices& to) override {
    if (input_.empty()) return Status(Code::kPeerLost, "end of the input");
    size_t bytes = 0;
    size_t left = std::min<size_t>(input_.size(), 1 + input_[0] * 7);
    for (const IoSlice& slice : to.slices) {
      const size_t part = std::min(slice.bytes, left);
      std::copy_n(input_.begin(), part, static_cast<uint8_t*>(slice.base));
      input_ = input_.subspan(part);
      left -= part;
      bytes += part;
    }
    return bytes;
  }
  void refresh() override {}
  void close() override {}

 private:
  std::span<const uint8_t> input_;
  uint8_t sum_ = 0;
};

void fuzzOne(std::span<const uint8_t> input) {
  FakeRegions regions;
  // Separate heap blocks: an overrun of one is not inside another.
  const auto open = std::make_unique<std::array<std::byte, 512>>();
  const auto readOnly = std::make_unique<std::array<std::byte, 64>>();
  const auto local = std::make_unique<std::array<std::byte, 256>>();
  (void)regions.add(*open, Access::kRemoteReadWrite);  // allocation 100
  (void)regions.add(*readOnly, Access::kRemoteRead);   // allocation 101
  RemoteMemory remote;
  remote.grant.allocation = 7;
  remote.grant.bytes = 256;

  FrameAgent agent("fuzzed link", std::make_unique<InputPipe>(input), regions, nullptr);
  Mailbox mailbox(agent);
  const Piece pieces[] = {{local->data(), &remote, 0, 200}, {local->data() + 200, &remote, 0, 56}};
  for (const Verb verb : {Verb::kPut, Verb::kFlush, Verb::kGet}) {
    MailboxEntry* entry = mailbox.claim();
    PEERLANE_CHECK(entry != nullptr);
    entry->verb = verb;
    entry->pieces = pieces;
    entry->pieceCount = verb == Verb::kFlush ? 0 : 2;
    entry->remote = &remote;
  }
  mailbox.ring();
  (void)mailbox.serve();
  while (agent.health().isOk()) (void)agent.poll();
  PEERLANE_CHECK(mailbox.idle());
  PEERLANE_CHECK(regions.pins() == 0);
}

}  // namespace
}  // namespace peerlane

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const bool kQuiet = [] {
    peerlane::setLogSink([](peerlane::LogLevel, std::string_view, std::string_view) {});
    return true;
  }();
  (void)kQuiet;
  peerlane::fuzzOne({bytes, size});
  return 0;
}
