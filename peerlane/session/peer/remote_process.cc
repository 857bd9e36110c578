// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/remote_process.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace peerlane {

std::string RemoteProcess::place() const {
  if (id() != 0) return " (process " + std::to_string(id()) + ")";
  return facts_.unixSocket ? "" : " (" + facts_.remoteAddress.toString() + ")";
}

RegionReference RemoteProcess::referenceTo(uint64_t allocation, uint64_t generation,
                                           uint64_t bytes) const {
  RegionReference reference;
  const auto owner = identity_.context.bytes();
  std::transform(owner.begin(), owner.end(), reference.owner.begin(),
                 [](std::byte b) { return static_cast<uint8_t>(b); });
  reference.allocation = allocation;
  reference.generation = generation;
  reference.bytes = bytes;
  reference.access = Access::kRemoteReadWrite;
  return reference;
}

void RemoteProcess::meet(const PeerIdentity& identity, ControlConnection& connection,
                         bool initiator) {
  identity_ = identity;
  facts_.initiator = initiator;
  facts_.host = hostRelation(identity.hostIdentity, localHostIdentity());
  facts_.unixSocket = connection.isUnix();
  facts_.linkKey = connection.takeLinkKey();
  std::memcpy(&facts_.life, identity.context.bytes().data(), sizeof facts_.life);
  if (auto address = localAddress(connection.socket()); address.isOk())
    facts_.localAddress = *address;
  if (auto address = peerAddress(connection.socket()); address.isOk())
    facts_.remoteAddress = *address;
}

Status RemoteProcess::watch(EventLoop& loop, const ControlConnection& connection,
                            std::function<void()> ended) {
  PEERLANE_ASSIGN(facts_.credentials, peerCredentials(connection.socket()));
  // An acceptor has looked before.
  PEERLANE_RETURN_IF_ERROR(checkUser(facts_.credentials));
  facts_.sameProcess = facts_.credentials.pid == getpid();
  return watchProcess(loop, connection.socket(), std::move(ended));
}

// Where the system cannot prove the end of a process, this side's memory stays in quarantine if the
// peer leaves without a goodbye; that the proof could not be had this time is an error.
Status RemoteProcess::watchProcess(EventLoop& loop, int socket, std::function<void()> ended) {
  auto process = ProcessHandle::ofPeer(socket);
  const Code code = process.status().code();
  // A shortage of descriptors, whose errno it has, passes.
  const bool isShort = process.status().systemError() != 0;
  if (code == Code::kNotSupported || (code == Code::kUnavailable && !isShort)) return Status::ok();
  if (code == Code::kPeerLost) return process.status();
  if (!process.isOk())
    return Status(
        Code::kUnavailable,
        process.status().toString() + ": this process takes no peer whose end it would not notice");
  proof_.process = std::move(*process);
  facts_.pidFd = proof_.process->fd();
  if (facts_.sameProcess) return Status::ok();
  PEERLANE_ASSIGN(watch_, loop.watch(facts_.pidFd, true, false, [this, ended = std::move(ended)] {
    watch_.setInterest(false, false);
    ended();
  }));
  return Status::ok();
}

void RemoteProcess::watchMemory() {
  if (!facts_.unixSocket || facts_.sameProcess) return;
  if (auto memory = AddressSpace::open(facts_.credentials.pid); memory.isOk())
    if (proof_.process && proof_.process->alive())  // so it was that process's number
      proof_.memory = std::move(*memory);
}

}  // namespace peerlane
