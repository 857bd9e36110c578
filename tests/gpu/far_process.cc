// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/far_process.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>

#include "peerlane/os/process.h"
#include "tests/gpu/far_letter.h"
#include "tests/gpu/link_side.h"
#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

class Server {
 public:
  Server(pid_t asker, std::byte* window)
      : asker_(must(ProcessHandle::open(asker), "pidfd")), window_(window) {
    facts_.unixSocket = true;
    facts_.credentials.pid = asker;
    facts_.pidFd = asker_.fd();
  }

  Letter answer(Letter asked) {
    Letter answer;
    switch (asked.verb) {
      case Verb::kOpen:
        memory_.clear();
        side_.reset();
        side_.emplace(static_cast<int>(asked.key), asked.region.kind, facts_);
        answer.blob = side_->offer().blob;
        break;
      case Verb::kComplete: side_->complete({std::move(asked.blob), {}}); break;
      case Verb::kAllocate: describe(side_->allocate(asked.key), answer); break;
      case Verb::kFree: memory_.erase(asked.key); break;
      case Verb::kGrant: grant(asked, answer); break;
      case Verb::kChunks: putHandles(side_->chunksOf(*recordOf(asked)), answer); break;
      case Verb::kAttach: attach(asked, answer); break;
      case Verb::kDetach: side_->detach(asked.key); break;
      case Verb::kRead:
        side_->path().copy(window_, std::bit_cast<std::byte*>(asked.key), asked.region.bytes);
        break;
      case Verb::kWrite:
        side_->path().copy(std::bit_cast<std::byte*>(asked.key), window_, asked.region.bytes);
        break;
    }
    return answer;
  }

 private:
  void describe(LinkMemory memory, Letter& answer) {
    answer.key = reinterpret_cast<uint64_t>(memory.bytes.data());
    answer.region.kind = memory.kind;
    answer.region.device = memory.device;
    answer.fdOffset = memory.fdOffset;
    answer.backingBytes = memory.backingBytes;
    answer.identity = memory.identity;
    answer.handle = memory.handle;
    memory_.emplace(answer.key, std::move(memory));
  }

  // What is said of the memory counts, not what it is.
  std::unique_ptr<RegionRecord> recordOf(const Letter& asked) {
    const LinkMemory& memory = memory_.at(asked.place);
    auto record = std::make_unique<RegionRecord>();
    fillRecord(memory, asked.region, *record);
    record->memory.fdOffset = asked.fdOffset;
    record->memory.backingBytes = asked.backingBytes;
    record->memory.identity = asked.identity;
    record->memory.handle = asked.handle;
    return record;
  }

  void grant(const Letter& asked, Letter& answer) {
    auto granted = side_->grant(*recordOf(asked));
    if (!granted.isOk()) {
      answer.failure = granted.status().toString();
      return;
    }
    answer.part = std::move(granted->blob);
    if (granted->fd) answer.fds.push_back(std::move(granted->fd));
  }

  void attach(Letter& asked, Letter& answer) {
    Grant grant;
    const bool inChunks = isInChunks(asked.region.kind);
    if (!inChunks && !asked.fds.empty()) grant.own.fd = std::move(asked.fds.front());
    std::vector<VmmHandle> chunks;
    if (inChunks) chunks = takeHandles(asked);
    grant.region = std::move(asked.region);
    grant.own.blob = std::move(asked.part);
    const auto attached = side_->attach(std::move(grant), std::move(chunks));
    if (!attached.isOk()) {
      answer.failure = attached.status().toString();
      return;
    }
    answer.key = attached->linkKey;
    answer.region = attached->grant;
    answer.place = reinterpret_cast<uint64_t>(attached->mapped);
  }

  const ProcessHandle asker_;
  std::byte* const window_;
  PeerFacts facts_;
  std::optional<NearSide> side_;
  std::map<uint64_t, LinkMemory> memory_;  // by place
};

[[noreturn]] void serve(int socket, pid_t asker, std::byte* window) {
  Server server(asker, window);
  while (auto asked = receiveLetter(socket))
    if (!sendLetter(socket, server.answer(std::move(*asked)))) break;
  std::fflush(nullptr);
  std::_Exit(0);
}

FarProcess* started = nullptr;

// Before any test, so before anything touches CUDA.
class StartsFarProcess final : public testing::Environment {
 public:
  void SetUp() override { FarProcess::start(); }
};
[[maybe_unused]] testing::Environment* const kEnvironment =
    testing::AddGlobalTestEnvironment(new StartsFarProcess);

}  // namespace

void FarProcess::start() {
  if (started != nullptr) return;
  int ends[2];
  void* const window =
      mmap(nullptr, kWindowBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (window == MAP_FAILED || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    die("a far process", Status(Code::kSystem, std::strerror(errno)));
  const pid_t asker = getpid();
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ends[0]);
    serve(ends[1], asker, static_cast<std::byte*>(window));
  }
  close(ends[1]);
  started = new FarProcess(child, ends[0], static_cast<std::byte*>(window));
}

FarProcess& FarProcess::instance() {
  if (started == nullptr) die("a far process", Status(Code::kInternal, "it was not started"));
  return *started;
}

}  // namespace peerlane::gputest
