// SPDX-License-Identifier: Apache-2.0
//
// A process without a free descriptor: what cannot be done says so, and nobody is taken for a liar,
// no connection lost, no core burnt.
#include "peerlane/peerlane.h"
#include "tests/os/few_descriptors.h"
#include "tests/session/session_pair.h"

namespace peerlane {
namespace {

TEST(Shortage, AnImportIsRefusedInWordsAndThePeersGoOn) {
  auto a = makeContext(withLinks({"shm"}));
  auto b = makeContext(withLinks({"shm"}));
  const Peer toB = MUST(a->connect(b->ticket(), kSoon));
  const Peer toA = MUST(b->accept(kSoon));
  const Region region = MUST(b->allocate(4096));
  size_t refused = 0;
  for (size_t free = 0; free < 4; ++free) {
    SCOPED_TRACE(free);
    const FewDescriptors few(free);
    const Status status = MUST(toB.importRegion(region.share())).prepare(kSoon);
    if (!status.isOk()) {
      ++refused;
      EXPECT_EQ(status.code(), Code::kUnavailable) << status.toString();
      EXPECT_NE(status.message().find("ulimit -n"), std::string_view::npos) << status.toString();
    }
    EXPECT_EQ(toB.state(), "ready") << toB.status().toString();
    EXPECT_EQ(toA.state(), "ready") << toA.status().toString();
  }
  EXPECT_GE(refused, 2u) << "one descriptor is lent, one is on its way: this shows nothing";
  EXPECT_OK(MUST(toB.importRegion(region.share())).prepare(kSoon));
}

// At whatever step it runs out, and at whichever side.
TEST(Shortage, AConnectIsRefusedInWordsOrHasItsBestLink) {
  auto a = makeContext(withLinks({"shm", "tcp"}));
  auto b = makeContext(withLinks({"shm", "tcp"}));
  size_t refused = 0;
  size_t made = 0;
  for (size_t free = 0; made < 3 && free < 64; ++free) {
    SCOPED_TRACE(free);
    {
      const FewDescriptors few(free);
      const auto peer = a->connect(b->ticket(), std::chrono::milliseconds(200));
      if (peer.isOk()) {
        ++made;
        EXPECT_EQ(peer->route().link, "shm") << peer->route().toString();
        peer->close();
      } else {
        ++refused;
        const std::string text = peer.status().toString();
        EXPECT_NE(text.find("descriptor"), std::string::npos) << text;
        EXPECT_TRUE(peer.status().code() == Code::kUnavailable ||
                    peer.status().code() == Code::kTimeout)
            << text;
      }
    }
    EXPECT_TRUE(eventually([&] { return a->peers().empty() && b->peers().empty(); }));
  }
  EXPECT_GE(refused, 5u);
  EXPECT_EQ(made, 3u);
}

}  // namespace
}  // namespace peerlane
