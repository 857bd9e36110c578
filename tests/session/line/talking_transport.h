// SPDX-License-Identifier: Apache-2.0
//
// TalkingTransport: a fake transport that every context made while it lives has, and that keeps the
// line of each of its links, so that a test can talk in place of the links. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/transport/transport_list.h"
#include "tests/fake/fake_transport.h"

namespace peerlane {

class TalkingTransport {
 public:
  // Before all links of the library. It carries no words, for which its wire would have to wake.
  explicit TalkingTransport(const std::string& name) : name_(name) {
    FakeLinkOptions options;
    options.name = name;
    options.kinds = {MemoryKind::kShared};
    options.carriesWords = false;
    addTransport({.name = name,
                  .place = 1,
                  .scope = options.scope,
                  .make = [this, options](const Config&, const cuda::Gpus&) {
                    Transports made;
                    made.push_back(std::make_unique<Talking>(*this, options));
                    return made;
                  }});
  }
  ~TalkingTransport() { removeTransport(name_); }
  TalkingTransport(const TalkingTransport&) = delete;
  TalkingTransport& operator=(const TalkingTransport&) = delete;

  // The last line of a side: of one that dialled, or of one that accepted. Null: none.
  std::shared_ptr<LinkLine> line(bool ofInitiator) const {
    const MutexLock lock(mutex_);
    const auto found = lines_.find(ofInitiator);
    return found == lines_.end() ? nullptr : found->second;
  }
  // Links prepared by those sides.
  size_t prepared(bool byInitiator) const {
    const MutexLock lock(mutex_);
    const auto found = prepared_.find(byInitiator);
    return found == prepared_.end() ? 0 : found->second;
  }
  // The wire of the first link.
  FakeWire& wire() { return *network_.wires().front(); }

 private:
  class Talking final : public Transport {
   public:
    Talking(TalkingTransport& all, const FakeLinkOptions& options)
        : all_(all), fake_(all.network_, options) {}
    std::string_view name() const override { return fake_.name(); }
    LinkScope scope() const override { return fake_.scope(); }
    LinkAbilities abilities() const override { return fake_.abilities(); }
    Result<std::unique_ptr<PendingLink>> prepare(const PeerFacts& facts,
                                                 const LinkSurroundings& surroundings) override {
      all_.keep(facts.initiator, surroundings.line);
      return fake_.prepare(facts, surroundings);
    }

   private:
    TalkingTransport& all_;
    FakeTransport fake_;
  };
  void keep(bool ofInitiator, std::shared_ptr<LinkLine> line) {
    const MutexLock lock(mutex_);
    ++prepared_[ofInitiator];
    lines_[ofInitiator] = std::move(line);
  }

  const std::string name_;
  FakeNetwork network_{11};
  mutable Mutex mutex_;
  std::map<bool, size_t> prepared_ PEERLANE_GUARDED_BY(mutex_);
  std::map<bool, std::shared_ptr<LinkLine>> lines_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane
