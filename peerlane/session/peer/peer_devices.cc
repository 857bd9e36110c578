// SPDX-License-Identifier: Apache-2.0
//
// PeerCore's half of devices: where their streams find the words that the two sides share. A slab
// is host memory that the link has mapped; a GPU reaches it once it is pinned. What is pinned can
// only be let go when no stream waits, which may be after the link is gone; so it is a mapping of
// its own.
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

Result<DeviceExecutor*> PeerCore::executor(Device device) const {
  PEERLANE_ASSIGN(const auto executor, executorIn(env_.around.devices, device));
  return executor.get();
}

Result<DeviceExecutor*> PeerCore::executorOf(DeviceStream stream) const {
  for (const auto& executor : env_.around.devices)
    if (executor->owns(stream)) return executor.get();
  return Status(Code::kInvalidArgument,
                "the stream belongs to no device of this context (ContextOptions::devices)");
}

Result<std::byte*> PeerCore::openWindow(Window& window, const Fd& fd, uint64_t offset) {
  const std::lock_guard lock(windowMutex_);
  if (window.segment) return window.segment->data();
  if (env_.around.devices.empty())
    return Status(Code::kInvalidArgument, "this context was made without devices");
  if (!fd)
    return Status(Code::kNotSupported, "words of a peer over " + link().traits().transport +
                                           " cannot be reached by a stream: they are not mapped");
  PEERLANE_ASSIGN(Fd own, fd.dup());
  PEERLANE_ASSIGN(auto segment,
                  SharedSegment::import(std::move(own), slab::kBytes, offset, /*writable=*/true));
  PEERLANE_ASSIGN(window.pin, env_.around.devices.front()->pin(segment->data(), segment->bytes()));
  window.segment = std::move(segment);
  return window.segment->data();
}

PeerCore::Window::~Window() {
  if (pin) DevicePin::release(std::move(pin), [kept = std::move(segment)] {});
}

// The words go when no executor looks at them any more.
void PeerCore::closeWindow(Window& window) {
  if (!window.segment) return;
  const auto closing = std::make_shared<Window>(std::move(window));
  for (const auto& executor : env_.around.devices)
    executor->forgetWords(closing->segment->data(), closing->segment->bytes(), closing);
}

Result<std::byte*> PeerCore::deviceSlab() {
  return openWindow(ownWindow_, slab_->memory.backing, slab_->memory.fdOffset);
}

Result<std::byte*> PeerCore::devicePeerSlab() {
  return openWindow(peerWindow_, peerSlabFd_, peerSlabOffset_);
}

}  // namespace peerlane
