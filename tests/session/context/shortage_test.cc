// SPDX-License-Identifier: Apache-2.0
//
// A process without a free descriptor, or thread: what cannot be done says so, and nobody is taken
// for a liar, no connection lost, no core burnt.
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>

#include "peerlane/peerlane.h"
#include "tests/os/few_descriptors.h"
#include "tests/os/refused_calls.h"
#include "tests/session/peer/session_pair.h"

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
  EXPECT_GE(refused, 1u) << "the descriptor that is lent found room: this shows nothing";
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
      const auto peer = a->connect(b->ticket(), std::chrono::seconds(5));
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
    EXPECT_TRUE(soon([&] { return a->peers().empty() && b->peers().empty(); }));
  }
  EXPECT_GE(refused, 5u);
  EXPECT_EQ(made, 3u);
}

// As where a container may have no more processes.
TEST(Shortage, WithoutThreadsEachErrorSaysSo) {
  const pid_t child = fork();
  if (child == 0) {
    auto context = makeContext();
    const auto says = [](const Status& status) {
      return status.code() == Code::kUnavailable &&
             status.message().find("no thread for ") != std::string_view::npos;
    };
    refuseCalls(SYS_clone3, EAGAIN);
    refuseCalls(SYS_clone, EAGAIN);
    if (!says(Context::create({}).status())) _exit(1);
    if (!says(HostStream::create().status())) _exit(2);
    if (!says(context->connect("localhost:1", context->secretText(), kSoon).status())) _exit(3);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// As by a container's filter: what the library cannot do without is named, with the reason.
TEST(Shortage, ACallThatTheSystemRefusesIsNamed) {
  struct Row {
    uint32_t number;
    const char* name;
  };
  for (const Row& row :
       {Row{SYS_memfd_create, "memfd_create"}, Row{SYS_eventfd2, "eventfd"},
        Row{SYS_timerfd_create, "timerfd_create"}, Row{SYS_epoll_create1, "epoll_create1"},
        Row{SYS_ftruncate, "ftruncate"}, Row{SYS_listen, "listen"}, Row{SYS_socket, "socket"}}) {
    SCOPED_TRACE(row.name);
    const pid_t child = fork();
    if (child == 0) {
      refuseCalls(row.number, EPERM);
      const Status status = Context::create({}).status();
      const auto says = [&](const char* text) {
        return status.message().find(text) != std::string_view::npos;
      };
      const bool isSaid = says(row.name) && says("Operation not permitted") && !says("ulimit");
      if (!isSaid) std::fprintf(stderr, "%s\n", status.toString().c_str());
      _exit(isSaid ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
}

}  // namespace
}  // namespace peerlane
