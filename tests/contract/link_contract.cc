// SPDX-License-Identifier: Apache-2.0
//
// How the suite drives a pair of links; the tests are in link_contract_test.cc.
#include "tests/contract/link_contract.h"

#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "peerlane/memory/cuda/cuda_pools.h"
#include "peerlane/memory/host_provider.h"
#include "peerlane/memory/memory_providers.h"
#include "peerlane/program/words/word.h"

namespace peerlane {

LinkMemory LinkPair::allocate(int /*side*/, size_t bytes) {
  constexpr auto kAlignment = std::align_val_t{64};
  auto* data = static_cast<std::byte*>(::operator new(bytes, kAlignment));
  std::memset(data, 0, bytes);
  LinkMemory memory;
  memory.bytes = {data, bytes};
  memory.owner = std::shared_ptr<void>(data, [](void* p) { ::operator delete(p, kAlignment); });
  return memory;
}

DataPath& LinkPair::dataPath(int /*side*/) {
  static DataPath cpu;
  return cpu;
}

void DataPath::copy(std::byte* to, const std::byte* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}

uint64_t DataPath::load(const std::byte* word) {
  return loadWord(word, Width::k64);
}

void DataPath::store(std::byte* word, uint64_t value, Width width) {
  storeWord(word, width, value, std::memory_order_release);
}

void DataPath::add(std::byte* word, uint64_t value) {
  addWord(word, value);
}

namespace {

std::atomic<uint64_t> moved{0};

}  // namespace

uint64_t movedBytes() {
  return moved.load();
}

MailboxEntry& Poster::claim() {
  MailboxEntry* entry = mailbox_.claim();
  PEERLANE_CHECK(entry != nullptr);  // more than kSlots entries in flight: a defect of the test
  return *entry;
}

void Poster::copy(Verb verb, std::vector<Piece> pieces) {
  if (!pieces.empty() && pieces.front().remote->mapped != nullptr) {
    for (const Piece& piece : pieces) {
      std::byte* there = piece.remote->mapped + piece.remoteOffset;
      const bool put = verb == Verb::kPut;
      path_.copy(put ? there : piece.local, put ? piece.local : there, piece.bytes);
    }
    return;
  }
  for (const Piece& piece : pieces) posted_ += piece.bytes;
  pieces_.push_back(std::move(pieces));
  MailboxEntry& entry = claim();
  entry.verb = verb;
  entry.pieces = pieces_.back().data();
  entry.pieceCount = static_cast<uint32_t>(pieces_.back().size());
  mailbox_.ring();
}

void Poster::store(const RemoteMemory& memory, uint64_t offset, uint64_t value, Width width) {
  if (memory.mapped != nullptr) return path_.store(memory.mapped + offset, value, width);
  MailboxEntry& entry = claim();
  entry.verb = Verb::kStore;
  entry.width = width;
  entry.order = Order::kRelease;
  entry.remote = &memory;
  entry.remoteOffset = offset;
  entry.operand = value;
  mailbox_.ring();
}

void Poster::add64(const RemoteMemory& memory, uint64_t offset, uint64_t value) {
  if (memory.mapped != nullptr) return path_.add(memory.mapped + offset, value);
  MailboxEntry& entry = claim();
  entry.verb = Verb::kAdd64;
  entry.remote = &memory;
  entry.remoteOffset = offset;
  entry.operand = value;
  mailbox_.ring();
}

void Poster::flush(const RemoteMemory& memory) {
  if (memory.mapped != nullptr) return;
  MailboxEntry& entry = claim();
  entry.verb = Verb::kFlush;
  entry.remote = &memory;
  mailbox_.ring();
}

bool Poster::idle() {
  const bool idle = mailbox_.idle();
  if (idle) pieces_.clear();
  return idle;
}

Code Poster::takeCode() {
  const Code code = mailbox_.code();
  const uint64_t posted = std::exchange(posted_, 0);
  if (code == Code::kOk) moved += posted;
  mailbox_.resetCode();
  return code;
}

void LinkContract::SetUp() {
  pair_ = GetParam()();
  if (!pair_) GTEST_SKIP() << "needs a GPU, or fabric handles";
}

void AgentLinkContract::SetUp() {
  LinkContract::SetUp();
  if (pair_) {
    ASSERT_NE(pair_->link(0).traits().agentEngine, "") << "nobody performs entries here";
  }
}

void OwnerLinkContract::SetUp() {
  LinkContract::SetUp();
  if (pair_) {
    ASSERT_EQ(pair_->link(0).traits().abilities.enforcer(MemoryKind::kPrivate), Enforcer::kOwner);
  }
}

std::unique_ptr<AcquiredMemory> acquireHost(std::span<std::byte> bytes) {
  static auto* const providers = [] {
    auto* made = new MemoryProviders;
    (void)made->add(std::make_shared<HostProvider>()).value();
    return made;
  }();
  return providers->acquire(bytes.data(), bytes.size()).value();
}

void fillRecord(const LinkMemory& memory, const RegionGrant& region, RegionRecord& record) {
  if (memory.kind.place == MemoryPlace::kHost) record.acquired = acquireHost(memory.bytes);
  record.allocation = region.allocation;
  record.generation = region.generation;
  record.base = memory.bytes.data();
  record.bytes = region.bytes;
  record.access = region.access;
  record.memory.kind = memory.kind;
  record.memory.device = memory.device;
  record.memory.fdOffset = memory.fdOffset;
  record.memory.backingBytes = memory.backingBytes;
  record.memory.identity = memory.identity;
  record.memory.handle = memory.handle;
  if (!memory.backing) return;
  Fd copy = memory.backing.dup().value();
  if (memory.kind == MemoryKind::kCudaPool) {
    auto pool = std::make_shared<ExportedPool>();
    pool->fd = std::move(copy);
    record.memory.pool = std::move(pool);
  } else {
    record.memory.backing = std::move(copy);
  }
}

Grant LinkContract::grantOf(int owner, const LinkMemory& memory, Access access) {
  Grant grant;
  grant.region = pair_->regions(owner).add(memory.bytes, access);
  grant.region.kind = memory.kind;
  grant.region.device = memory.device;
  RegionRecord& record = *records_.emplace_back(std::make_unique<RegionRecord>());
  fillRecord(memory, grant.region, record);
  Result<LinkPart> part = pair_->link(owner).grant(record);
  EXPECT_TRUE(part.isOk()) << part.status().toString();
  grant.own = std::move(part).value();
  return grant;
}

LinkContract::Exported LinkContract::exportMemory(int owner, size_t bytes, Access access) {
  Exported exported;
  exported.owner = owner;
  exported.memory = pair_->allocate(owner, bytes);
  Result<RemoteMemory> remote =
      pair_->link(1 - owner).attach(grantOf(owner, exported.memory, access));
  EXPECT_TRUE(remote.isOk()) << remote.status().toString();
  exported.remote = std::move(remote).value();
  return exported;
}

std::vector<std::byte> LinkContract::contents(const Exported& exported, size_t offset,
                                              size_t bytes) {
  std::vector<std::byte> seen(bytes);
  pair_->dataPath(exported.owner).copy(seen.data(), exported.memory.bytes.data() + offset, bytes);
  return seen;
}

uint64_t LinkContract::word(const Exported& exported, size_t offset) {
  return pair_->dataPath(exported.owner).load(exported.memory.bytes.data() + offset);
}

void LinkContract::paint(const Exported& exported, unsigned char value) {
  const std::vector<std::byte> paint(exported.memory.bytes.size(), std::byte{value});
  pair_->dataPath(exported.owner).copy(exported.memory.bytes.data(), paint.data(), paint.size());
}

void LinkContract::turn() {
  for (int side = 0; side < (killed_ ? 1 : 2); ++side) {
    pair_->turn(side);
    (void)pair_->link(side).poll();
  }
}

void LinkContract::killSide1() {
  pair_->kill();
  killed_ = true;
}

LinkThreads::LinkThreads(LinkPair& pair) {
  for (int side : {0, 1}) {
    threads_.emplace_back([this, side, &pair] {
      while (!stop_.load(std::memory_order_relaxed)) {
        pair.turn(side);
        if (!pair.link(side).poll()) std::this_thread::yield();
      }
    });
  }
}

LinkThreads::~LinkThreads() {
  stop_.store(true, std::memory_order_relaxed);
  for (std::thread& thread : threads_) thread.join();
}

void LinkContract::until(const std::function<bool()>& done, const std::vector<Poster*>& posters) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  for (uint64_t i = 0; !done(); ++i) {
    for (Poster* poster : posters) poster->serve();
    turn();
    if (i % 1024 == 1023 && std::chrono::steady_clock::now() > deadline) {
      FAIL() << "not done within a minute; side 0: " << pair_->link(0).health().toString();
    }
  }
}

Code LinkContract::settle(Poster& poster) {
  until([&] { return poster.idle(); }, {&poster});
  return poster.takeCode();
}

}  // namespace peerlane
