// SPDX-License-Identifier: Apache-2.0
//
// The golden bytes in docs/wire.md are those that the writers make: this test fails when the
// document or a format was changed alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "peerlane/core/text.h"
#include "peerlane/memory/chunk_runs.h"
#include "peerlane/memory/region_reference.h"
#include "peerlane/session/wire/control_message.h"
#include "peerlane/transport/cuda_ipc/cuda_ipc_offer.h"
#include "peerlane/transport/frame_format.h"
#include "peerlane/transport/shm/shm_offer.h"
#include "peerlane/transport/tcp/tcp_offer.h"

namespace peerlane {
namespace {

// The blocks of the document that hold nothing but hexadecimal digits, in order, without spaces and
// ends of lines.
std::vector<std::string> blocksOfDocument() {
  std::ifstream file(PEERLANE_SOURCE_FOLDER "/docs/wire.md");
  EXPECT_TRUE(file) << "docs/wire.md is missing";
  std::vector<std::string> blocks;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("```")) {
      inside = !inside;
      if (inside) blocks.emplace_back();
    } else if (inside) {
      blocks.back() += line;
    }
  }
  std::erase_if(blocks, [](const std::string& block) {
    return block.find_first_not_of("0123456789abcdef ") != std::string::npos;
  });
  for (std::string& block : blocks) std::erase(block, ' ');
  return blocks;
}

template <typename Bytes>
void countFrom(int first, Bytes& bytes) {
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<typename Bytes::value_type>(static_cast<size_t>(first) + i);
}

std::string heartbeat() {
  return encodeHex(encodeControl(control::Heartbeat{0x1122334455667788, true}).value());
}

std::string chunkSizes() {
  ChunkRuns runs;
  for (const uint64_t size : {2, 2, 2, 20, 20}) runs.add(size << 20);
  return encodeHex(runs.encode());
}

std::string reference() {
  RegionReference reference;
  countFrom(0xa0, reference.owner);
  reference.allocation = 0x1122334455667788;
  reference.generation = 0x99aabbccddeeff00;
  reference.bytes = 0x123456789;
  reference.access = Access::kRemoteReadWrite;
  reference.device = {DeviceKind::kCuda, 7};
  reference.kind = MemoryKind::kCudaHandle;
  return encodeHex(reference.encode());
}

std::string shmOffer() {
  ShmOffer offer;
  offer.nonceAddress = 0x1122334455667788;
  countFrom(0, offer.nonce);
  offer.ringBytes = kShmRingBytes;
  return encodeHex(offer.encode());
}

std::string cudaIpcOffer() {
  CudaIpcOffer offer;
  offer.gpus.resize(2);
  countFrom(0, offer.gpus[0]);
  countFrom(0xf0, offer.gpus[1]);
  offer.pidNamespace = 0xeffffffc;
  return encodeHex(offer.encode());
}

std::string tcpOfferAndGreeting() {
  TcpOffer offer;
  countFrom(0, offer.token);
  offer.port = 0x1234;
  offer.addresses = {"10.0.0.1"};
  return encodeHex(encodeTcpOffer(offer)) + encodeHex(encodeTcpGreeting(cardOf(offer.token, 0)));
}

std::string frames() {
  const Frame put{.kind = FrameKind::kPut,
                  .last = true,
                  .payload = 0x30201,
                  .sequence = 0x0102030405060708,
                  .allocation = 0x1112131415161718,
                  .generation = 0x2122232425262728,
                  .offset = 0x3132333435363738};
  const Frame ack{.kind = FrameKind::kAck,
                  .sequence = 7,
                  .value = static_cast<uint64_t>(Code::kPermissionDenied)};
  const Frame cancel{.kind = FrameKind::kGetCancel, .sequence = 7, .value = 5};
  std::string text;
  for (const Frame& frame : {put, ack, cancel}) {
    std::array<std::byte, kFrameHeaderBytes> header;
    encodeFrame(frame, header);
    text += encodeHex(header);
  }
  return text;
}

std::string listWithTable() {
  const Frame list{.kind = FrameKind::kPutList,
                   .last = true,
                   .payload = 0x23,
                   .sequence = 0x0102030405060708,
                   .allocation = 0x1112131415161718,
                   .generation = 0x2122232425262728,
                   .value = 2};
  const FrameBlock blocks[] = {{0x3132333435363738, 1}, {0x4142434445464748, 2}};
  std::array<std::byte, kFrameHeaderBytes + 2 * kFrameBlockBytes> bytes;
  encodeFrame(list, std::span(bytes).first<kFrameHeaderBytes>());
  encodeBlocks(blocks, std::span(bytes).subspan(kFrameHeaderBytes));
  return encodeHex(bytes);
}

TEST(WireDocument, HoldsTheGoldenBytes) {
  const std::string records =  // sealed_pipe_test.cc sees them in a real pipe
      "1500000076119cf082a4e7d5db5aa3d87bdbe8a86386d9bb22a238345f2d4b7342f3bc9c646efdff5a"
      "0400000037f004d0083354bfb461bf32a11c461e5171d80f"
      "150000004563ef304d114d111c62b26e5f2db494a210f405934f7cb2eda24bc5fd4f0db58e39a128bf"
      "0400000059729cc623c7d3dc35f4487f6af5afa4bf2a2d29";
  const std::string slab =
      "0200000000000000050000000403020168656c6c6f"  // peer_test.cc sees them in a real slab
      "0200000000000000"
      "2211000000000000";
  const std::vector<std::string> expected = {
      heartbeat(),           chunkSizes(), reference(), shmOffer(),      cudaIpcOffer(),
      tcpOfferAndGreeting(), records,      frames(),    listWithTable(), slab};
  EXPECT_EQ(blocksOfDocument(), expected);
}

}  // namespace
}  // namespace peerlane
