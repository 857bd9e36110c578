// SPDX-License-Identifier: Apache-2.0
//
// FarSide: a LinkSide in another process (far_process.h), which is asked for all of it. Memory over
// there has an address here at which nothing is. One at a time.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/gpu/link_side.h"

namespace peerlane::gputest {

struct Letter;
enum class Verb : uint8_t;

class FarSide final : public LinkSide {
 public:
  // As the second side of the link.
  FarSide(int gpu, MemoryKind kind);
  ~FarSide() override;

  Offer offer() override;
  void complete(Offer peerOffer) override;
  DataPath& path() override { return path_; }
  LinkMemory allocate(size_t bytes) override;
  const LinkTraits& traits() const override { return traits_; }
  Result<LinkPart> grant(const RegionRecord& region) override;
  std::vector<VmmHandle> chunksOf(const RegionRecord& region) override;
  Result<RemoteMemory> attach(Grant grant, std::vector<VmmHandle> chunks) override;
  void detach(uint64_t key) override;

 private:
  class Path final : public CopyPath {
   public:
    explicit Path(FarSide& side) : side_(side) {}
    void copy(std::byte* to, const std::byte* from, size_t bytes) override;

   private:
    FarSide& side_;
  };
  // Addresses of this process that stand for bytes over there.
  class Shadow;

  Letter ask(const Letter& letter);
  Letter askAbout(Verb verb, const RegionRecord& region);
  std::shared_ptr<Shadow> shadowOf(uint64_t there, size_t bytes);
  // Where that is over there; 0: it is memory of this process.
  uint64_t there(const std::byte* here);

  Path path_;
  LinkTraits traits_;
  std::vector<std::byte> offer_;
  std::mutex mutex_;  // one question at a time
  std::mutex shadowMutex_;
  std::map<const std::byte*, std::weak_ptr<Shadow>> shadows_;  // under shadowMutex_
  std::map<uint64_t, std::shared_ptr<Shadow>> attached_;       // by linkKey
};

}  // namespace peerlane::gputest
