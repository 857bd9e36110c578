// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/far_letter.h"

#include <poll.h>

#include <cstring>
#include <span>

#include "peerlane/core/wire.h"
#include "peerlane/os/unix_peer.h"
#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

constexpr uint32_t kMostBytes = 1 << 16;

std::vector<std::byte> encode(const Letter& letter) {
  std::vector<std::byte> bytes;
  ByteWriter writer(bytes);
  writer.u32(0);
  writer.u8(static_cast<uint8_t>(letter.verb));
  writer.u64(letter.key);
  const RegionGrant& region = letter.region;
  for (const uint64_t word : {region.allocation, region.generation, letter.place, region.bytes,
                              letter.fdOffset, letter.backingBytes, letter.identity})
    writer.u64(word);
  writer.u8(static_cast<uint8_t>(region.kind.place));
  writer.u8(static_cast<uint8_t>(region.kind.exported));
  writer.u8(static_cast<uint8_t>(region.kind.shape));
  writer.u8(static_cast<uint8_t>(region.access));
  writer.u8(static_cast<uint8_t>(region.device.kind));
  writer.u32(static_cast<uint32_t>(region.device.index));
  writer.bytes(letter.handle, kMostBytes);
  writer.bytes(letter.part, kMostBytes);
  writer.bytes(letter.blob, kMostBytes);
  writer.string(letter.failure, kMostBytes);
  must(writer.finish("a letter"), "encode");
  const auto length = static_cast<uint32_t>(bytes.size());
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes;
}

Letter decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Letter letter;
  letter.verb = static_cast<Verb>(reader.u8());
  letter.key = reader.u64();
  RegionGrant& region = letter.region;
  for (uint64_t* word : {&region.allocation, &region.generation, &letter.place, &region.bytes,
                         &letter.fdOffset, &letter.backingBytes, &letter.identity})
    *word = reader.u64();
  region.kind.place = static_cast<MemoryPlace>(reader.u8());
  region.kind.exported = static_cast<MemoryExport>(reader.u8());
  region.kind.shape = static_cast<MemoryShape>(reader.u8());
  region.access = static_cast<Access>(reader.u8());
  region.device.kind = static_cast<DeviceKind>(reader.u8());
  region.device.index = static_cast<int32_t>(reader.u32());
  const auto handle = reader.bytes(kMostBytes);
  letter.handle.assign(handle.begin(), handle.end());
  const auto part = reader.bytes(kMostBytes);
  letter.part.assign(part.begin(), part.end());
  const auto blob = reader.bytes(kMostBytes);
  letter.blob.assign(blob.begin(), blob.end());
  letter.failure = std::string(reader.string(kMostBytes));
  must(reader.finish("a letter"), "decode");
  return letter;
}

// Sockets of the library do not block.
void waitUntilReady(int socket, short events) {
  pollfd ready{socket, events, 0};
  (void)poll(&ready, 1, -1);
}

bool receiveAll(int socket, std::span<std::byte> space, std::vector<Fd>& fds) {
  for (size_t here = 0; here < space.size();) {
    waitUntilReady(socket, POLLIN);
    const auto came = recvWithFds(socket, space.subspan(here), fds);
    if (!came.isOk() || *came == 0) return false;
    here += *came;
  }
  return true;
}

}  // namespace

bool sendLetter(int socket, const Letter& letter) {
  const std::vector<std::byte> bytes = encode(letter);
  std::vector<int> fds;
  for (const Fd& fd : letter.fds) fds.push_back(fd.get());
  for (size_t sent = 0; sent < bytes.size();) {
    waitUntilReady(socket, POLLOUT);
    const auto went = sendWithFds(socket, std::span(bytes).subspan(sent), fds);
    if (!went.isOk()) return false;
    sent += *went;
    fds.clear();
  }
  return true;
}

std::optional<Letter> receiveLetter(int socket) {
  std::vector<Fd> fds;
  uint32_t bytes = 0;
  if (!receiveAll(socket, std::as_writable_bytes(std::span(&bytes, 1)), fds)) return {};
  std::vector<std::byte> rest(bytes - sizeof(bytes));
  if (!receiveAll(socket, rest, fds)) return {};
  Letter letter = decode(rest);
  letter.fds = std::move(fds);
  return letter;
}

void putHandles(std::vector<VmmHandle> handles, Letter& letter) {
  for (VmmHandle& handle : handles) {
    if (handle.fd) letter.fds.push_back(std::move(handle.fd));
    letter.blob.insert(letter.blob.end(), handle.fabric.begin(), handle.fabric.end());
  }
}

std::vector<VmmHandle> takeHandles(Letter& letter) {
  std::vector<VmmHandle> handles;
  for (Fd& fd : letter.fds) handles.push_back({std::move(fd), {}});
  letter.fds.clear();
  for (auto at = letter.blob.begin(); at != letter.blob.end(); at += kFabricHandleBytes)
    handles.push_back({Fd(), {at, at + kFabricHandleBytes}});
  return handles;
}

}  // namespace peerlane::gputest
