// SPDX-License-Identifier: Apache-2.0
//
// SegmentBook: the registered memory of this process, which every communicator of it can offer, and
// the segments of other processes that it may name. A segment is registered with a context when a
// communicator of that context first needs it. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "peerlane/p2p/result_code.h"
#include "peerlane/p2p/segment/segment_name.h"
#include "peerlane/p2p/segment/segment_proof.h"
#include "peerlane/session/context/context.h"

namespace peerlane::p2p {

// For sentences: [0x7f0000001000, +4096).
std::string rangeText(uint64_t address, uint64_t bytes);

class SegmentBook {
 public:
  // `process`: this one.
  explicit SegmentBook(const ProcessToken& process) : process_(process) {}

  // --- This process's own ---
  // Registers it with `context` at once, so that what is wrong with it is said now.
  Result<SegmentName> add(const std::shared_ptr<Context>& context, std::byte* base, uint64_t bytes,
                          Access access, DeviceKind kind);
  // For a peer of `context` that names it and proves that it has its key. kInvalidArgument: there
  // is none of that name, or it does not.
  Result<Region> regionFor(uint64_t number, const SegmentProof& proof, const AskEnds& ends,
                           const std::shared_ptr<Context>& context);
  // Of host memory; none where nothing that is registered holds the range.
  // One that grants `access`, if there is one.
  std::optional<Region> hostRegion(const std::byte* address, uint64_t bytes, Access access,
                                   const std::shared_ptr<Context>& context);
  // Another one than `name` that has memory in common with it.
  std::optional<SegmentName> overlapping(const SegmentName& name);
  // Nothing: there is none of that name. After an error it is still there, for the next call.
  std::optional<Status> remove(const SegmentName& name, std::chrono::nanoseconds timeout);

  // --- Those of others ---
  // kInvalidArgument: another segment of the same name was imported.
  Status import(const SegmentName& name);
  // False: was not imported.
  bool unimport(const SegmentName& name);
  std::vector<SegmentName> importsOf(const ProcessToken& process) const;
  // The one that holds the range and grants `access`. HCCL_E_NOT_FOUND (none holds its address) and
  // HCCL_E_PARA (too long, or rights), saying what there is.
  Answer find(const ProcessToken& process, uint64_t address, uint64_t bytes, Access access,
              SegmentName& found) const;

 private:
  struct Own {
    SegmentName name;
    bool isLeaving = false;
    struct Registered {
      std::shared_ptr<Context> context;
      Region region;
    };
    std::vector<Registered> registered;  // one for each context
  };
  struct Imports {
    std::map<uint64_t, SegmentName> byNumber;
    std::multimap<uint64_t, const SegmentName*> byAddress;  // of byNumber
  };
  Result<Region> regionOf(Own& own, const std::shared_ptr<Context>& context);

  const ProcessToken process_;
  std::atomic<size_t> ownCount_{0};  // of own_, so that who has none takes no lock
  std::mutex ownMutex_;
  uint64_t next_ = 1;            // under ownMutex_, as the next
  std::map<uint64_t, Own> own_;  // by number
  mutable std::shared_mutex importMutex_;
  std::map<ProcessToken, Imports> imports_;  // under importMutex_
};

}  // namespace peerlane::p2p
