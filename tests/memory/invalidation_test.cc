// SPDX-License-Identifier: Apache-2.0
//
// Invalidation by ticket: the provider's call, at most once effective, over when what was under way
// is drained; legal at every moment of a registration, and from inside of its own effects.
#include "peerlane/memory/invalidation.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "peerlane/memory/region_exports.h"
#include "peerlane/memory/ticket.h"
#include "peerlane/os/event_loop.h"
#include "tests/core/expect_ok.h"

namespace peerlane {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

TEST(Invalidation, ATicketThatIsGoneDoesNothing) {
  uint64_t number = 0;
  int calls = 0;
  {
    const auto ticket = InvalidationTicket::issue();
    number = ticket->number();
    EXPECT_OK(ticket->onInvalidation([&](nanoseconds) { return ++calls, Status::ok(); }));
  }
  EXPECT_OK(invalidateMemory(number));
  EXPECT_OK(invalidateMemory(UINT64_MAX));
  EXPECT_EQ(calls, 0);
}

TEST(Invalidation, NumbersAreNeverUsedTwice) {
  const uint64_t first = InvalidationTicket::issue()->number();
  EXPECT_GT(InvalidationTicket::issue()->number(), first);
}

TEST(Invalidation, ItTakesEffectOnce) {
  const auto ticket = InvalidationTicket::issue();
  int calls = 0;
  EXPECT_OK(ticket->onInvalidation([&](nanoseconds) { return ++calls, Status::ok(); }));
  for (int i = 0; i < 3; ++i) EXPECT_OK(invalidateMemory(ticket->number()));
  EXPECT_EQ(calls, 1);
}

TEST(Invalidation, OneThatWasNotDrainedIsDrainedByTheNextCall) {
  const auto ticket = InvalidationTicket::issue();
  int calls = 0;
  EXPECT_OK(ticket->onInvalidation([&](nanoseconds timeout) {
    EXPECT_LE(timeout, milliseconds(5));  // clock: a limit that was handed on, no time that passed
    return ++calls == 1 ? Status(Code::kTimeout, "a peer holds it") : Status::ok();
  }));
  EXPECT_EQ(invalidateMemory(ticket->number(), milliseconds(5)).code(), Code::kTimeout);
  EXPECT_OK(invalidateMemory(ticket->number(), milliseconds(5)));
  EXPECT_OK(invalidateMemory(ticket->number(), milliseconds(5)));
  EXPECT_EQ(calls, 2);
}

TEST(Invalidation, OneThatComesBeforeTheMemoryIsUsedEndsTheRegistration) {
  const auto ticket = InvalidationTicket::issue();
  EXPECT_OK(invalidateMemory(ticket->number()));
  EXPECT_EQ(ticket->onInvalidation([](nanoseconds) { return Status::ok(); }).code(),
            Code::kRevoked);
}

TEST(Invalidation, ASecondCallWaitsForTheFirst) {
  const auto ticket = InvalidationTicket::issue();
  std::atomic<bool> isDraining{false}, mayEnd{false}, hasEnded{false};
  EXPECT_OK(ticket->onInvalidation([&](nanoseconds) {
    isDraining = true;
    isDraining.notify_all();
    mayEnd.wait(false);
    hasEnded = true;
    return Status::ok();
  }));
  std::thread first([&] { EXPECT_OK(invalidateMemory(ticket->number())); });
  isDraining.wait(false);
  EXPECT_EQ(invalidateMemory(ticket->number(), milliseconds(1)).code(), Code::kTimeout);
  std::thread second([&] {
    EXPECT_OK(invalidateMemory(ticket->number()));
    EXPECT_TRUE(hasEnded) << "the second call returned before what is under way was drained";
  });
  mayEnd = true;
  mayEnd.notify_all();
  first.join();
  second.join();
}

// What the drain needs may be that very thread's turn to do.
TEST(Invalidation, AThreadThatRunsALoopIsRefusedBeforeItWaits) {
  const auto ticket = InvalidationTicket::issue();
  const uint64_t number = ticket->number();
  const auto onALoopsThread = [&] {
    const LoopThreadScope here;
    return invalidateMemory(number);
  };
  std::atomic<bool> isDraining{false}, mayEnd{false};
  EXPECT_OK(ticket->onInvalidation([&](nanoseconds) {
    isDraining = true;
    isDraining.notify_all();
    mayEnd.wait(false);
    return Status::ok();
  }));
  EXPECT_EQ(onALoopsThread().code(), Code::kInvalidArgument);
  EXPECT_FALSE(isDraining) << "nothing was changed";
  std::thread first([&] { EXPECT_OK(invalidateMemory(number)); });
  isDraining.wait(false);
  EXPECT_EQ(onALoopsThread().code(), Code::kInvalidArgument) << "another thread drains";
  mayEnd = true;
  mayEnd.notify_all();
  first.join();
  EXPECT_OK(onALoopsThread()) << "there is nothing to wait for";
  EXPECT_FALSE(LoopThreadScope::isHere());
}

TEST(Invalidation, LoopsMarkTheThreadThatRunsTheirFunctions) {
  const auto loop = MUST(EventLoop::create());
  bool isMarked = false;
  loop->post([&] { isMarked = LoopThreadScope::isHere(); });
  loop->poll();
  EXPECT_TRUE(isMarked);
  EXPECT_FALSE(LoopThreadScope::isHere());
}

TEST(Invalidation, FromInsideOfItselfItReturns) {
  auto ticket = InvalidationTicket::issue();
  const uint64_t number = ticket->number();
  int calls = 0;
  EXPECT_OK(ticket->onInvalidation([&](nanoseconds) {
    ++calls;
    EXPECT_OK(invalidateMemory(number));
    ticket.reset();  // the registration ends there, too
    EXPECT_OK(invalidateMemory(number));
    return Status::ok();
  }));
  EXPECT_OK(invalidateMemory(number));
  EXPECT_EQ(calls, 1);
}

TEST(Invalidation, RacesWithTheEndOfTheRegistration) {
  for (int round = 0; round < 200; ++round) {
    auto ticket = InvalidationTicket::issue();
    const uint64_t number = ticket->number();
    std::atomic<int> calls{0};
    EXPECT_OK(ticket->onInvalidation([&](nanoseconds) { return ++calls, Status::ok(); }));
    std::thread one([&] { EXPECT_OK(invalidateMemory(number)); });
    std::thread two([&] { EXPECT_OK(invalidateMemory(number)); });
    ticket.reset();
    one.join();
    two.join();
    EXPECT_LE(calls, 1);
  }
}

TEST(Invalidation, AForkedChildHasTicketsOfItsOwn) {
  const auto ticket = InvalidationTicket::issue();
  const pid_t child = ::fork();
  if (child == 0) {
    const bool isRefused = invalidateMemory(ticket->number()).code() == Code::kNotSupported;
    const auto own = InvalidationTicket::issue();
    const bool isNew = own->number() > ticket->number();
    ::_exit(isRefused && isNew && invalidateMemory(own->number()).isOk() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// --- What links made of a region ---

struct Pinned final : RegionExport {
  explicit Pinned(std::vector<Status> answers) : answers_(std::move(answers)) {}
  Status revoke(nanoseconds) override { return answers_[revoked++]; }
  size_t revoked = 0;

 private:
  std::vector<Status> answers_;
};

TEST(RegionExports, ARevokedRegionLetsNothingReachIt) {
  RegionExports exports;
  const int one = 0, other = 0, late = 0;
  const auto first = std::make_shared<Pinned>(std::vector{Status::ok()});
  const auto second = std::make_shared<Pinned>(
      std::vector{Status(Code::kUnavailable, "pinned for life"), Status::ok()});
  const auto giving = [](const RegionExports::Made& made) {
    return [made] { return Result<RegionExports::Made>(made); };
  };
  EXPECT_OK(exports.of(&one, giving(first)).status());
  EXPECT_OK(exports.of(&other, giving(second)).status());
  EXPECT_EQ(exports.revoke(nanoseconds(0)).code(), Code::kUnavailable);
  EXPECT_EQ(exports.of(&one, giving(first)).status().code(), Code::kRevoked);
  EXPECT_EQ(exports.of(&late, giving(first)).status().code(), Code::kRevoked);
  EXPECT_OK(exports.revoke(nanoseconds(0)));
  EXPECT_OK(exports.revoke(nanoseconds(0)));
  EXPECT_EQ(first->revoked, 1u) << "at most once with success";
  EXPECT_EQ(second->revoked, 2u);
  EXPECT_EQ(first.use_count(), 2) << "it ends with the region, not before";
  exports.end();
  EXPECT_EQ(first.use_count(), 1);
}

TEST(RegionExports, WhatIsBeingMadeIsWaitedForAndGoesAgain) {
  RegionExports exports;
  const int domain = 0;
  std::atomic<bool> isMaking{false}, mayEnd{false};
  std::weak_ptr<RegionExport> made;
  std::thread maker([&] {
    const auto answer = exports.of(&domain, [&]() -> Result<RegionExports::Made> {
      isMaking = true;
      isMaking.notify_all();
      mayEnd.wait(false);
      auto fresh = std::make_shared<Pinned>(std::vector<Status>{});
      made = fresh;
      return RegionExports::Made(std::move(fresh));
    });
    EXPECT_EQ(answer.status().code(), Code::kRevoked);
  });
  isMaking.wait(false);
  EXPECT_EQ(exports.revoke(milliseconds(1)).code(), Code::kTimeout);
  mayEnd = true;
  mayEnd.notify_all();
  EXPECT_OK(exports.revoke(std::chrono::seconds(20)));
  EXPECT_TRUE(made.expired()) << "the call that made it had not let go of it";
  maker.join();
}

// Its provider is told of the end next, and a link still asks it.
TEST(RegionExports, TheEndWaitsForWhatIsBeingMade) {
  RegionExports exports;
  const int domain = 0, other = 0;
  std::atomic<bool> isMaking{false}, mayEnd{false}, isMade{false};
  std::thread maker([&] {
    const auto answer = exports.of(&domain, [&]() -> Result<RegionExports::Made> {
      isMaking = true;
      isMaking.notify_all();
      mayEnd.wait(false);
      isMade = true;
      return RegionExports::Made(std::make_shared<Pinned>(std::vector<Status>{}));
    });
    EXPECT_EQ(answer.status().code(), Code::kClosed);
  });
  isMaking.wait(false);
  EXPECT_FALSE(exports.close());
  std::thread ender([&] {
    exports.end();
    EXPECT_TRUE(isMade) << "the region ended while a link asked its provider";
  });
  EXPECT_EQ(exports.of(&other, [] { return Result<RegionExports::Made>(nullptr); }).status().code(),
            Code::kClosed);
  mayEnd = true;
  mayEnd.notify_all();
  ender.join();
  maker.join();
  EXPECT_TRUE(exports.close());
}

// Says when it ends, and waits there.
struct Ending final : RegionExport {
  Status revoke(nanoseconds) override {
    stand();
    return Status::ok();
  }
  ~Ending() override { stand(); }
  void stand() {
    if (isStanding->exchange(true)) return;
    isStanding->notify_all();
    mayEnd->wait(false);
    hasEnded->store(true);
  }
  std::atomic<bool>* isStanding = nullptr;
  std::atomic<bool>* mayEnd = nullptr;
  std::atomic<bool>* hasEnded = nullptr;
};

// Each of both is over when nothing reaches the memory by any export, also where the other one
// takes the export back.
TEST(RegionExports, TheEndAndARevocationWaitForEachOther) {
  for (const bool endsFirst : {true, false}) {
    RegionExports exports;
    const int domain = 0;
    std::atomic<bool> isStanding{false}, mayEnd{false}, hasEnded{false};
    EXPECT_OK(exports
                  .of(&domain,
                      [&]() -> Result<RegionExports::Made> {
                        auto made = std::make_shared<Ending>();
                        made->isStanding = &isStanding;
                        made->mayEnd = &mayEnd;
                        made->hasEnded = &hasEnded;
                        return RegionExports::Made(std::move(made));
                      })
                  .status());
    const auto end = [&] { exports.end(); };
    const auto revoke = [&] { EXPECT_OK(exports.revoke(nanoseconds::max())); };
    std::thread first([&] { endsFirst ? end() : revoke(); });
    isStanding.wait(false);
    EXPECT_FALSE(exports.close());
    if (endsFirst) {
      EXPECT_EQ(exports.revoke(milliseconds(1)).code(), Code::kTimeout);
    }
    std::thread second([&] {
      endsFirst ? revoke() : end();
      EXPECT_TRUE(hasEnded) << endsFirst;
    });
    mayEnd = true;
    mayEnd.notify_all();
    first.join();
    second.join();
    EXPECT_TRUE(exports.close());
  }
}

// The provider takes the memory back while it is asked for an export.
TEST(RegionExports, RevokedByTheCallThatMakesOne) {
  RegionExports exports;
  const int domain = 0;
  const auto answer = exports.of(&domain, [&]() -> Result<RegionExports::Made> {
    EXPECT_OK(exports.revoke(nanoseconds::max()));
    return RegionExports::Made(std::make_shared<Pinned>(std::vector<Status>{}));
  });
  EXPECT_EQ(answer.status().code(), Code::kRevoked);
}

TEST(RegionExports, OneThreadMakesOtherWaitForIt) {
  RegionExports exports;
  const int domain = 0;
  std::atomic<int> made{0};
  const auto make = [&]() -> Result<RegionExports::Made> {
    ++made;
    std::this_thread::yield();
    return RegionExports::Made(std::make_shared<Pinned>(std::vector<Status>{}));
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] { EXPECT_OK(exports.of(&domain, make).status()); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made, 1);
}

}  // namespace
}  // namespace peerlane
