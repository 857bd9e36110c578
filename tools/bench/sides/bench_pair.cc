// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/sides/bench_pair.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

extern char** environ;  // NOLINT(readability-identifier-naming): POSIX says so

namespace peerlane::bench {
namespace {

template <size_t N>
void copyName(char (&to)[N], const std::string& from) {
  if (from != "auto") std::strncpy(to, from.c_str(), N - 1);
}

}  // namespace

Result<std::unique_ptr<BenchPair>> BenchPair::create(const BenchOptions& options,
                                                     uint64_t regionBytes) {
  PEERLANE_ASSIGN(auto ends, BenchPipe::makePair());
  std::unique_ptr<BenchPair> pair(new BenchPair(std::move(ends.first)));
  PEERLANE_RETURN_IF_ERROR(pair->spawn(std::move(ends.second)));
  PEERLANE_RETURN_IF_ERROR(pair->meet(options, regionBytes));
  return pair;
}

BenchPair::~BenchPair() {
  endpoint_.reset();
  pipe_ = BenchPipe(Descriptor());  // the child ends when its pipe does
  if (child_ > 0) ::waitpid(child_, nullptr, 0);
}

Status BenchPair::spawn(Descriptor childEnd) {
  // dup2 of a descriptor onto itself would leave it close-on-exec.
  Descriptor high(::fcntl(childEnd.get(), F_DUPFD_CLOEXEC, 16));
  if (!high) return Status::system(errno, "duplicating the benchmark's pipe");
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, high.get(), kChildPipe);
  char name[] = "peerlane";
  char command[32] = {};
  std::strncpy(command, kChildCommand, sizeof(command) - 1);
  char* const arguments[] = {name, command, nullptr};
  const int error = ::posix_spawn(&child_, "/proc/self/exe", &actions, nullptr, arguments, environ);
  ::posix_spawn_file_actions_destroy(&actions);
  return error == 0 ? Status::ok() : Status::system(error, "starting the second process");
}

Status BenchPair::meet(const BenchOptions& options, uint64_t regionBytes) {
  PEERLANE_ASSIGN(const std::vector<int> cpus, chooseCpus(options.cpus));
  EndpointSetup setup;
  setup.isPrivate = options.memory == "private";
  copyName(setup.link, options.link);
  copyName(setup.engine, options.engine);
  setup.regionBytes = regionBytes;
  setup.copyThreads = static_cast<uint32_t>(options.copyThreads);

  PEERLANE_ASSIGN(const Descriptor flags, makeSharedFile("bench-flags", sizeof(RawFlags)));
  setup.cpu = cpus[1];
  const int flagsNumber = flags.get();
  PEERLANE_RETURN_IF_ERROR(pipe_.send(kSetup, setup, {&flagsNumber, 1}));
  setup.cpu = cpus[0];
  PEERLANE_ASSIGN(endpoint_, BenchEndpoint::create(setup));
  PEERLANE_RETURN_IF_ERROR(endpoint_->adoptFlags(flags));

  PEERLANE_ASSIGN(const BenchMessage ticket, receiveKind(pipe_, kTicketIs));
  childTicket_.assign(reinterpret_cast<const char*>(ticket.content.data()), ticket.content.size());
  PEERLANE_ASSIGN(const Peer peer, endpoint_->context().connect(childTicket_));
  PEERLANE_RETURN_IF_ERROR(pipe_.send(kMakeRegions, {}));
  PEERLANE_RETURN_IF_ERROR(endpoint_->exportRegions(pipe_));
  PEERLANE_RETURN_IF_ERROR(endpoint_->importRegions(pipe_, peer));
  return receiveKind(pipe_, kReady).status();
}

Status BenchPair::fillOther(bool isSource, uint64_t bytes, uint64_t seed) {
  PEERLANE_RETURN_IF_ERROR(pipe_.send(kFill, FillRequest{isSource, bytes, seed}));
  return receiveKind(pipe_, kReady).status();
}

Result<uint64_t> BenchPair::verifyOther(const VerifyRequest& request,
                                        std::span<const VerifyPiece> pieces) {
  std::vector<std::byte> content(sizeof(request) + pieces.size_bytes());
  std::memcpy(content.data(), &request, sizeof(request));
  if (!pieces.empty())
    std::memcpy(content.data() + sizeof(request), pieces.data(), pieces.size_bytes());
  PEERLANE_RETURN_IF_ERROR(pipe_.send(kVerify, content));
  PEERLANE_ASSIGN(const BenchMessage answer, receiveKind(pipe_, kWrongIs));
  return answer.as<uint64_t>();
}

}  // namespace peerlane::bench
