// SPDX-License-Identifier: Apache-2.0
//
// InvalidationTicket: the number under which a provider may take one registration's memory back
// (invalidation.h), for as long as this object lives. Owned by what the registry acquired.
// Thread-safe; no lock is held while `drain` is called.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "peerlane/core/status.h"

namespace peerlane {

class InvalidationTicket {
 public:
  // Ends every use of the memory; OK: nothing reaches it any more. Called by one thread at a time,
  // and again only after an error. It may outlive the ticket, and may end it.
  using Drain = std::function<Status(std::chrono::nanoseconds timeout)>;

  static std::unique_ptr<InvalidationTicket> issue();
  // Invalidations do nothing from now on. Waits for none that runs.
  ~InvalidationTicket();
  InvalidationTicket(const InvalidationTicket&) = delete;
  InvalidationTicket& operator=(const InvalidationTicket&) = delete;

  uint64_t number() const { return number_; }
  // The memory is in use from now on. Errors: kRevoked (it was invalidated before).
  Status onInvalidation(Drain drain);

 private:
  struct State;
  struct Table;
  friend Status invalidateMemory(uint64_t ticket, std::chrono::nanoseconds timeout);
  InvalidationTicket(uint64_t number, std::shared_ptr<State> state)
      : number_(number), state_(std::move(state)) {}
  static Status invalidate(State& state, std::chrono::nanoseconds timeout);

  const uint64_t number_;
  const std::shared_ptr<State> state_;
};

}  // namespace peerlane
