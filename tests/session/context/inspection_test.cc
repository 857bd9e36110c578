// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/context/inspection.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <span>
#include <thread>

#include "peerlane/os/socket.h"
#include "peerlane/session/context/inspect_process.h"
#include "peerlane/session/peer/peer_slab.h"
#include "tests/os/scratch_folder.h"
#include "tests/session/peer/session_pair.h"

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
  EXPECT_TRUE(soon([&] {
    texts = MUST(inspectProcess(getpid(), ""));
    return mentions(texts, "transfer to peer");
  })) << texts.front();
  EXPECT_TRUE(mentions(texts, "notify op ")) << texts.front();
  EXPECT_TRUE(mentions(texts, "waits for a word that is 0 to reach 1")) << texts.front();
  EXPECT_FALSE(last.done());
}

// Who has taken the name, and says what he wants for as long as he wants.
class Impostor {
 public:
  Impostor(int pid, std::string text, bool drips)
      : socket_(MUST(listenOn(MUST(
            SocketAddress::parse("unix:@peerlane-inspect-" + std::to_string(pid) + "-impostor"))))),
        thread_([this, text = std::move(text), drips] { serve(text, drips); }) {}
  ~Impostor() {
    stop_ = true;
    thread_.join();
  }

 private:
  void serve(const std::string& text, bool drips) {
    while (!stop_) {
      const auto reader = acceptOne(socket_.get());
      const auto bytes = std::as_bytes(std::span(text));
      // For far longer than anybody should listen, but not for ever.
      for (int i = 0; i < 500 && reader.isOk() && !stop_; ++i) {
        if (!sendSome(reader->get(), bytes).isOk() || !drips) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      std::this_thread::yield();
    }
  }
  const Fd socket_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST(Inspection, ReadsNothingOfAnotherProcess) {
  const Impostor impostor(getppid(), "all is well\n", false);
  const Status refused = inspectProcess(getppid(), "").status();
  EXPECT_NE(refused.message().find("listens there, not " + std::to_string(getppid())),
            std::string_view::npos)
      << refused.toString();
}

TEST(Inspection, HasNoControlCharacters) {
  const Impostor impostor(getpid(), "line\n\x1b[31mred\x07\n", false);
  const auto texts = MUST(inspectProcess(getpid(), ""));
  EXPECT_EQ(texts, std::vector<std::string>{"line\n?[31mred?\n"});
}

TEST(Inspection, WaitsForTheEndNotForTheNextByte) {
  const Impostor impostor(getpid(), "and", true);
  const Status late = inspectProcess(getpid(), "").status();
  EXPECT_NE(late.message().find("1 contexts, and none of them can be shown"),
            std::string_view::npos)
      << late.toString();
  EXPECT_NE(late.message().find("Timeout"), std::string_view::npos) << late.toString();
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

// What a context says to a reader that waits until the socket's buffer is full.
std::string readLate(const Context& context) {
  const std::string name =
      "peerlane-inspect-" + std::to_string(getpid()) + "-" + context.id().substr(0, 8);
  const Fd reader = MUST(connectStart(MUST(SocketAddress::parse("unix:@" + name))));
  pollfd readable{reader.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&readable, 1, 20'000), 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  std::string text;
  std::array<std::byte, 16 * 1024> space;
  while (::poll(&readable, 1, 20'000) == 1) {
    const size_t got = MUST(recvSome(reader.get(), space));
    if (got == 0) return text;
    text.append(reinterpret_cast<const char*>(space.data()), got);
  }
  ADD_FAILURE() << "no end after " << text.size() << " bytes";
  return text;
}

// A long report, of 344 kB, is written whole, however small the socket's buffer.
TEST(Inspection, ShowsAllOfALongReport) {
  auto a = makeContext();
  std::vector<Region> regions;
  for (int i = 0; i < 4000; ++i) regions.push_back(MUST(a->allocate(64)));
  const std::string late = readLate(*a);
  EXPECT_GT(late.size(), 300'000u);
  EXPECT_TRUE(mentions({late}, "region 4000 "));
  EXPECT_TRUE(mentions({late}, "pending: 0")) << "cut after " << late.size() << " bytes";
  // Again where a busy machine does not say all within the 2 s of inspectProcess().
  std::vector<std::string> texts;
  ASSERT_TRUE(soon([&] {
    auto seen = inspectProcess(getpid(), "");
    if (seen.isOk()) texts = std::move(*seen);
    return seen.isOk();
  }));
  EXPECT_TRUE(mentions(texts, "region 4000 "));
  EXPECT_TRUE(mentions(texts, "pending: 0")) << "cut after " << texts.front().size() << " bytes";
}

}  // namespace
}  // namespace peerlane
