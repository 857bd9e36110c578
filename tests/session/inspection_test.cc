// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/inspection.h"

#include <unistd.h>

#include <algorithm>

#include "peerlane/session/inspect_process.h"
#include "peerlane/session/peer_slab.h"
#include "tests/os/scratch_folder.h"
#include "tests/session/session_pair.h"

namespace peerlane {
namespace {

bool mentions(const std::vector<std::string>& texts, const std::string& what) {
  return std::any_of(texts.begin(), texts.end(),
                     [&](const std::string& text) { return text.find(what) != std::string::npos; });
}

TEST(Inspection, ShowsEveryContextOfAProcess) {
  auto a = makeContext();
  auto b = makeContext();
  const Peer toB = MUST(a->connect(b->ticket(), kSoon));
  const Region region = MUST(a->allocate(54'321));
  const auto texts = inspectProcess(getpid(), "");
  ASSERT_OK(texts.status());
  EXPECT_TRUE(mentions(*texts, "context " + a->id()));
  EXPECT_TRUE(mentions(*texts, "context " + b->id()));
  EXPECT_TRUE(mentions(*texts, "54321 bytes live"));
  EXPECT_TRUE(mentions(*texts, "peerlane_transfers_total"));
  EXPECT_FALSE(mentions(*texts, a->secretText()));
}

// Nobody takes notifications at the other side, so the one beyond its slots waits for its credit as
// long as it is looked at. A report that is made before the first turn of what was just posted does
// not show it: then the next one does.
TEST(Inspection, ShowsWhatIsPendingAndWhy) {
  auto a = makeContext();
  auto b = makeContext();
  const Peer toB = MUST(a->connect(b->ticket(), kSoon));
  Notify what;
  what.message = std::span<const std::byte>();
  for (uint32_t i = 0; i < slab::kNotifySlots; ++i) EXPECT_OK(MUST(notify(toB, what)).wait(kSoon));
  const Transfer last = MUST(notify(toB, what));
  std::vector<std::string> texts;
  EXPECT_TRUE(eventually([&] {
    texts = MUST(inspectProcess(getpid(), ""));
    return mentions(texts, "transfer to peer");
  })) << texts.front();
  EXPECT_TRUE(mentions(texts, "notify op ")) << texts.front();
  EXPECT_TRUE(mentions(texts, "waits for a word that is 0 to reach 1")) << texts.front();
  EXPECT_FALSE(last.done());
}

TEST(Inspection, LooksInTheFolderWhereThereIsOne) {
  const ScratchFolder folder;
  Config config;
  config.socketDirectory = folder.path();
  auto context = makeContext(config);
  const auto texts = inspectProcess(getpid(), folder.path());
  ASSERT_OK(texts.status());
  EXPECT_EQ(texts->size(), 1u);
  EXPECT_TRUE(mentions(*texts, context->id()));
}

TEST(Inspection, SaysWhenThereIsNothingToSee) {
  const auto none = inspectProcess(1, "");
  EXPECT_EQ(none.status().code(), Code::kUnavailable);
  EXPECT_NE(none.status().message().find("process 1 "), std::string_view::npos);
  std::string id;
  { id = makeContext()->id(); }
  const auto gone = inspectProcess(getpid(), "");
  EXPECT_EQ(gone.status().code(), Code::kUnavailable) << gone.status().toString();
}

// A long report is written whole, however small the socket's buffer.
TEST(Inspection, ShowsAllOfALongReport) {
  auto a = makeContext();
  std::vector<Region> regions;
  for (int i = 0; i < 5000; ++i) regions.push_back(MUST(a->allocate(64)));
  const auto texts = inspectProcess(getpid(), "");
  ASSERT_OK(texts.status());
  EXPECT_TRUE(mentions(*texts, "region 5000 "));
  EXPECT_TRUE(mentions(*texts, "pending: 0")) << "cut after " << texts->front().size() << " bytes";
}

}  // namespace
}  // namespace peerlane
