// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/fake_wire.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <limits>
#include <random>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/os/mappings/nofault_copy.h"

namespace peerlane {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

struct FakeWire::Shared {
  struct Direction {
    std::deque<std::byte> bytes;
    uint64_t written = 0;
    uint64_t arrived = 0;
    uint64_t mayArrive = kNoLimit;  // of all bytes ever written
    uint64_t loseAt = kNoLimit;     // when that many have arrived
    bool ended = false;             // its writer closed
  };

  size_t ready(int from) const PEERLANE_REQUIRES(mutex) {
    const Direction& way = ways[from];
    const uint64_t limit = std::min(way.mayArrive, way.loseAt);
    return std::min<uint64_t>(way.bytes.size(), limit - std::min(limit, way.arrived));
  }
  bool lost() const PEERLANE_REQUIRES(mutex) {
    return ways[0].arrived >= ways[0].loseAt || ways[1].arrived >= ways[1].loseAt;
  }
  size_t portion(size_t bytes) PEERLANE_REQUIRES(mutex) {
    return most == 0 ? bytes : std::min<size_t>(bytes, 1 + random() % most);
  }

  Mutex mutex;
  Direction ways[2] PEERLANE_GUARDED_BY(mutex);  // by writer
  bool frozen[2] PEERLANE_GUARDED_BY(mutex) = {};
  bool mayOwe[2] PEERLANE_GUARDED_BY(mutex) = {};
  bool owes[2] PEERLANE_GUARDED_BY(mutex) = {};
  size_t capacity PEERLANE_GUARDED_BY(mutex) = 0;
  size_t most PEERLANE_GUARDED_BY(mutex) = 0;
  std::mt19937_64 random PEERLANE_GUARDED_BY(mutex);
};

namespace {

class FakePipe final : public FramePipe {
 public:
  FakePipe(std::shared_ptr<FakeWire::Shared> shared, int side)
      : shared_(std::move(shared)), side_(side) {}
  ~FakePipe() override { close(); }

  bool writable() override {
    const MutexLock lock(shared_->mutex);
    if (shared_->frozen[side_]) return false;
    return shared_->lost() || out().bytes.size() < shared_->capacity;
  }
  Result<size_t> write(const PipeSlices& from) override {
    const MutexLock lock(shared_->mutex);
    if (shared_->frozen[side_]) return size_t{0};
    if (shared_->lost() || in().ended) return Status(Code::kPeerLost, "the fake wire was cut");
    size_t room = shared_->portion(shared_->capacity - out().bytes.size());
    size_t taken = 0;
    for (const IoSlice& slice : from.slices) {
      std::vector<std::byte> copy(std::min(slice.bytes, room));
      const size_t bytes = nofaultRead(copy, {&slice, 1}, 0);
      out().bytes.insert(out().bytes.end(), copy.begin(),
                         copy.begin() + static_cast<ptrdiff_t>(bytes));
      taken += bytes;
      room -= bytes;
      if (bytes == copy.size()) continue;
      if (taken == 0) return Status(Code::kRevoked, "memory to be sent cannot be read");
      break;
    }
    out().written += taken;
    return taken;
  }

  bool readable() override {
    const MutexLock lock(shared_->mutex);
    if (shared_->frozen[side_]) return false;
    return shared_->lost() || in().ended || shared_->ready(1 - side_) != 0;
  }
  Result<size_t> read(const PipeSlices& to) override {
    const MutexLock lock(shared_->mutex);
    if (shared_->frozen[side_]) return size_t{0};
    size_t there = shared_->portion(shared_->ready(1 - side_));
    if (there == 0 && shared_->lost()) return Status(Code::kPeerLost, "the fake wire was cut");
    if (in().bytes.empty() && in().ended) return Status(Code::kPeerLost, "the fake peer closed");
    size_t given = 0;
    for (const IoSlice& slice : to.slices) {
      std::vector<std::byte> copy(std::min(slice.bytes, there));
      std::copy_n(in().bytes.begin(), copy.size(), copy.begin());
      const IoSlice from{copy.data(), copy.size()};
      const size_t bytes = nofaultWrite({&slice, 1}, {&from, 1});
      in().bytes.erase(in().bytes.begin(), in().bytes.begin() + static_cast<ptrdiff_t>(bytes));
      given += bytes;
      there -= bytes;
      if (bytes == copy.size()) continue;
      if (given == 0) return Status(Code::kRevoked, "memory to be filled cannot be written");
      break;
    }
    in().arrived += given;
    return given;
  }

  void refresh() override {}
  bool mayOwe() const override {
    const MutexLock lock(shared_->mutex);
    return shared_->mayOwe[side_];
  }
  void setOwing(bool owes) override {
    const MutexLock lock(shared_->mutex);
    shared_->owes[side_] = owes;
  }
  void close() override {
    const MutexLock lock(shared_->mutex);
    out().ended = true;
  }

 private:
  FakeWire::Shared::Direction& out() { return shared_->ways[side_]; }
  FakeWire::Shared::Direction& in() { return shared_->ways[1 - side_]; }

  const std::shared_ptr<FakeWire::Shared> shared_;
  const int side_;
};

}  // namespace

FakeWire::FakeWire(uint64_t seed, size_t capacity) : shared_(std::make_shared<Shared>()) {
  shared_->capacity = capacity;
  shared_->random.seed(seed);
}

FakeWire::~FakeWire() = default;

std::unique_ptr<FramePipe> FakeWire::end(int side) {
  return std::make_unique<FakePipe>(shared_, side);
}

void FakeWire::setPartial(size_t most) {
  const MutexLock lock(shared_->mutex);
  shared_->most = most;
}

void FakeWire::hold(int from) {
  const MutexLock lock(shared_->mutex);
  shared_->ways[from].mayArrive = shared_->ways[from].arrived;
}

void FakeWire::release(int from, size_t bytes) {
  const MutexLock lock(shared_->mutex);
  shared_->ways[from].mayArrive += bytes;
}

void FakeWire::releaseAll(int from) {
  const MutexLock lock(shared_->mutex);
  shared_->ways[from].mayArrive = kNoLimit;
}

void FakeWire::freeze(int side) {
  const MutexLock lock(shared_->mutex);
  shared_->frozen[side] = true;
}

void FakeWire::thaw(int side) {
  const MutexLock lock(shared_->mutex);
  shared_->frozen[side] = false;
}

void FakeWire::loseAfter(int from, uint64_t bytes) {
  const MutexLock lock(shared_->mutex);
  shared_->ways[from].loseAt = shared_->ways[from].arrived + bytes;
}

void FakeWire::setMayOwe(int side, bool may) {
  const MutexLock lock(shared_->mutex);
  shared_->mayOwe[side] = may;
}

bool FakeWire::owes(int side) const {
  const MutexLock lock(shared_->mutex);
  return shared_->owes[side];
}

uint64_t FakeWire::written(int from) const {
  const MutexLock lock(shared_->mutex);
  return shared_->ways[from].written;
}

}  // namespace peerlane
