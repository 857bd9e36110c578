// SPDX-License-Identifier: Apache-2.0
//
// Long lists that name one region of this side, or several from any block on, with every kind of
// notification: each block comes to its place, and a block that lies outside is named.
#include <cstring>
#include <memory>
#include <string>

#include "peerlane/channel/signal/signal.h"
#include "peerlane/channel/transfer/transfer.h"
#include "tests/channel/context_pair.h"

namespace peerlane {
namespace {

constexpr size_t kListed = 300;  // more than are walked at once
constexpr size_t kListedBytes = 48;

class ListRegions : public RouteTest {
 protected:
  // Block i of kListed; from block `second` on they lie in the second region of this side, and
  // every third of the peer's is in its second one. Against their order in memory.
  std::vector<Block> blocks(size_t second) const {
    std::vector<Block> all;
    for (size_t i = 0; i < kListed; ++i)
      all.push_back({&(i < second ? near_ : nearToo_)->region(), i * kListedBytes,
                     i % 3 == 2 ? &remoteToo_ : &remote_, (kListed - 1 - i) * kListedBytes,
                     kListedBytes});
    return all;
  }
  // What `posted` has done to the peer's memory.
  void expectArrived(const std::vector<Block>& posted) {
    for (const Block& block : posted) {
      TestMemory& to = block.remote == &remote_ ? *far_ : *farToo_;
      const TestMemory& from = block.local == &near_->region() ? *near_ : *nearToo_;
      std::memcpy(to.shadow() + block.remoteOffset, from.data() + block.localOffset, block.bytes);
    }
    EXPECT_TRUE(far_->isAsExpected()) << "wrong bytes";
    EXPECT_TRUE(farToo_->isAsExpected()) << "wrong bytes";
  }

  static constexpr size_t kBytes = kListed * kListedBytes;
  const std::unique_ptr<TestMemory> near_ = memory(*pair_.a, kBytes, 1);
  const std::unique_ptr<TestMemory> nearToo_ = memory(*pair_.a, kBytes, 2);
  const std::unique_ptr<TestMemory> far_ = memory(*pair_.b, kBytes, 3);
  const std::unique_ptr<TestMemory> farToo_ = memory(*pair_.b, kBytes, 4);
  const RemoteRegion remote_ = far_->importedBy(pair_.toB);
  const RemoteRegion remoteToo_ = farToo_->importedBy(pair_.toB);
};

INSTANTIATE_TEST_SUITE_P(Routes, ListRegions, testing::Values(kSelf, kMapped, kCma, kTcp),
                         routeName);

TEST_P(ListRegions, EveryBlockComesToItsPlace) {
  const std::byte text[] = {std::byte{1}, std::byte{2}};
  for (const size_t second : {kListed, kListed - 1, size_t{128}, size_t{1}}) {
    const std::vector<Block> posted = blocks(second);
    for (const bool tells : {false, true})
      for (const bool adds : {false, true}) {
        PostOptions options;
        if (tells) options.notify.message = std::span<const std::byte>(text);
        if (adds) options.notify.signal = 5;
        EXPECT_OK(MUST(put(pair_.toB, posted, options)).wait(kSoon));
      }
    expectArrived(posted);
  }
}

TEST_P(ListRegions, TheBlockThatLiesOutsideIsNamed) {
  for (const size_t bad : {size_t{0}, size_t{1}, size_t{127}, size_t{128}, kListed - 1})
    for (const bool ofPeer : {false, true}) {
      std::vector<Block> posted = blocks(200);
      (ofPeer ? posted[bad].remoteOffset : posted[bad].localOffset) = kBytes - kListedBytes + 1;
      const Status refused = put(pair_.toB, posted).status();
      EXPECT_EQ(refused.code(), Code::kInvalidArgument);
      const std::string words =
          "block " + std::to_string(bad) + ": " + (ofPeer ? "remote" : "local") + " range";
      EXPECT_EQ(refused.message().substr(0, words.size()), words);
    }
  expectArrived({});
}

}  // namespace
}  // namespace peerlane
