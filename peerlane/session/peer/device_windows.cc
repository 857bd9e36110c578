// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/device_windows.h"

#include <utility>

#include "peerlane/session/peer/peer_slab.h"

namespace peerlane {

Result<std::byte*> DeviceWindows::own() {
  const SlabPair::Backing backing = slabs_.ownBacking();
  const MutexLock lock(mutex_);
  return open(own_, backing);
}

Result<std::byte*> DeviceWindows::peers() {
  const SlabPair::Backing backing = slabs_.peersBacking();
  const MutexLock lock(mutex_);
  return open(peers_, backing);
}

Result<std::byte*> DeviceWindows::open(Window& window, SlabPair::Backing backing) {
  const DeviceExecutors& devices = env_.around.devices;
  if (window.segment) return window.segment->data();
  if (devices.empty())
    return Status(Code::kInvalidArgument, "this context was made without devices");
  if (backing.fd < 0)
    return Status(Code::kNotSupported, "words of a peer over " + links_.words().traits().transport +
                                           " cannot be reached by a stream: they are not mapped");
  PEERLANE_ASSIGN(Fd own, duplicateFd(backing.fd));
  PEERLANE_ASSIGN(auto segment, SharedSegment::import(std::move(own), slab::kBytes, backing.offset,
                                                      /*writable=*/true));
  PEERLANE_ASSIGN(window.pin, devices.front()->pin(segment->data(), segment->bytes()));
  window.segment = std::move(segment);
  return window.segment->data();
}

DeviceWindows::Window::~Window() {
  if (pin) DevicePin::release(std::move(pin), [kept = std::move(segment)] {});
}

void DeviceWindows::close() {
  close(own_);
  close(peers_);
}

void DeviceWindows::close(Window& window) {
  if (!window.segment) return;
  const auto closing = std::make_shared<Window>(std::move(window));
  for (const auto& executor : env_.around.devices)
    executor->forgetWords(closing->segment->data(), closing->segment->bytes(), closing);
}

}  // namespace peerlane
