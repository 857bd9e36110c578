// SPDX-License-Identifier: Apache-2.0
//
// The registry's rules: one owner for a range, by priority; ranges that straddle owners; no answer
// is kept; exports for what an importer can take, and the rule for memory that may be taken back.
#include "peerlane/memory/memory_providers.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>

#include "peerlane/memory/host_provider.h"
#include "tests/core/expect_ok.h"
#include "tests/fake/fake_provider.h"

namespace peerlane {
namespace {

constexpr size_t kPage = 4096;

std::string hex(const void* at) {
  char text[32];
  std::snprintf(text, sizeof(text), "%#zx", reinterpret_cast<size_t>(at));
  return text;
}

// Four pages that the program has mapped, of which providers may own some.
class Providers : public testing::Test {
 protected:
  void SetUp() override {
    segment = MUST(SharedSegment::create(4 * kPage, {}));
    base = segment->data();
    EXPECT_OK(
        providers.add(std::make_shared<HostProvider>(), MemoryProviders::kHostPriority).status());
  }
  std::shared_ptr<FakeProvider> add(const char* name, int priority = 200, bool takesBack = true) {
    auto provider = std::make_shared<FakeProvider>(name, takesBack);
    lastId = MUST(providers.add(provider, priority));
    return provider;
  }
  std::string owner(std::byte* at, size_t bytes) {
    const auto acquired = providers.acquire(at, bytes);
    return acquired ? std::string((*acquired)->provider().name()) : acquired.status().toString();
  }
  void expectStraddles(std::byte* at, size_t bytes, const std::string& first,
                       const std::string& second) {
    const Status refused = providers.acquire(at, bytes).status();
    EXPECT_EQ(refused.code(), Code::kInvalidArgument);
    EXPECT_NE(refused.message().find(first), std::string_view::npos) << refused.toString();
    EXPECT_NE(refused.message().find(second), std::string_view::npos) << refused.toString();
  }

  std::unique_ptr<SharedSegment> segment;
  std::byte* base = nullptr;
  MemoryProviders providers;
  uint64_t lastId = 0;
};

TEST_F(Providers, TheWholeRangeIsOnesOrNobodys) {
  const auto arena = add("arena");
  arena->own(base + kPage, 2 * kPage);
  EXPECT_EQ(owner(base, kPage), "host");
  EXPECT_EQ(owner(base + kPage, 2 * kPage), "arena");
  EXPECT_EQ(owner(base + kPage + 1, 1), "arena");
  EXPECT_EQ(owner(base + 3 * kPage - 1, 1), "arena");
  EXPECT_EQ(owner(base + 3 * kPage, kPage), "host");
}

TEST_F(Providers, ARangeThatStraddlesNamesBothPieces) {
  const auto arena = add("arena");
  arena->own(base + kPage, kPage);
  const std::string mine = "[" + hex(base + kPage) + ", +4096) is of provider \"arena\"";
  expectStraddles(base, 2 * kPage, mine, "[" + hex(base) + ", +4096) of provider \"host\"");
  expectStraddles(base + kPage, 2 * kPage, mine,
                  "[" + hex(base + 2 * kPage) + ", +4096) of provider \"host\"");
  expectStraddles(base, 4 * kPage, mine, "[" + hex(base) + ", +4096) of provider \"host\"");
  const auto other = add("other", 150);
  other->own(base + 2 * kPage, kPage);
  expectStraddles(base + kPage, 2 * kPage, mine,
                  "[" + hex(base + 2 * kPage) + ", +4096) of provider \"other\"");
  expectStraddles(base + kPage + 7, 3 * kPage - 7,
                  "[" + hex(base + kPage + 7) + ", +4089) is of provider \"arena\"",
                  "[" + hex(base + 2 * kPage) + ", +4096) of provider \"other\"");
  EXPECT_TRUE(arena->tickets().empty());
  EXPECT_TRUE(other->tickets().empty());
}

TEST_F(Providers, WhatNobodyOwnsBehindAPieceIsSaidToBeNobodys) {
  std::byte* const hole = static_cast<std::byte*>(
      ::mmap(nullptr, 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  const auto arena = add("arena");
  arena->own(hole, kPage);
  expectStraddles(hole, 2 * kPage, "is of provider \"arena\"", "nobody's");
  ::munmap(hole, 2 * kPage);
}

TEST_F(Providers, TheHigherPriorityIsAskedFirstAndOfEqualsTheEarlier) {
  const auto low = add("low", 10);
  const auto first = add("first", 20);
  const auto second = add("second", 20);
  for (const auto& each : {low, first, second}) each->own(base, kPage);
  EXPECT_EQ(owner(base, kPage), "first");
  first->disown(base);
  EXPECT_EQ(owner(base, kPage), "second");
  second->disown(base);
  EXPECT_EQ(owner(base, kPage), "low");
}

// Allocates on a device that nobody else knows, and says when it is gone.
class Allocating final : public MemoryProvider {
 public:
  explicit Allocating(bool& isGone) : isGone_(isGone) {}
  ~Allocating() override { isGone_ = true; }
  std::string_view name() const override { return "allocating"; }
  Result<MemoryClaim> acquire(const void*, size_t, uint64_t) override {
    return MemoryClaim::notMine();
  }
  Result<std::unique_ptr<Allocation>> allocate(size_t bytes, const AllocateOptions&) override {
    return std::unique_ptr<Allocation>(std::make_unique<Memory>(bytes, isGone_));
  }

 private:
  struct Memory final : Allocation {
    Memory(size_t wanted, const bool& gone) : heap(wanted), isProviderGone(gone) {}
    ~Memory() override { EXPECT_FALSE(isProviderGone) << "its code may be unloaded"; }
    Result<MemoryDescription> describe() const override { return MemoryDescription(); }
    Result<MemoryFacts> facts() const override {
      MemoryFacts facts;
      facts.pageBytes = 77;
      return facts;
    }
    Result<ExportedRange> exportAs(ExportForm form, const Importer&, uint64_t offset,
                                   uint64_t) override {
      ExportedRange made;
      made.form = form;
      made.offset = offset;
      return made;
    }
    std::byte* data() const override { return const_cast<std::byte*>(heap.data()); }
    size_t bytes() const override { return heap.size(); }
    std::vector<std::byte> heap;
    const bool& isProviderGone;
  };
  bool& isGone_;
};

TEST_F(Providers, MemoryKeepsTheProviderThatMadeIt) {
  bool isGone = false;
  auto provider = std::make_shared<Allocating>(isGone);
  const uint64_t id = MUST(providers.add(std::move(provider), 300));
  auto memory = MUST(providers.allocate(kPage, {}));
  EXPECT_OK(providers.remove(id).status());
  EXPECT_FALSE(isGone);
  EXPECT_EQ(memory->bytes(), kPage);
  EXPECT_NE(memory->data(), nullptr);
  EXPECT_OK(memory->describe().status());
  EXPECT_EQ(MUST(memory->facts()).pageBytes, 77u);
  const ExportedRange range =
      MUST(exportRange(*memory, kPage, {.forms = {ExportForm::kFile}}, 50, 100));
  EXPECT_EQ(range.offset, 50u);
  memory.reset();
  EXPECT_TRUE(isGone);
}

TEST_F(Providers, NoAnswerIsKept) {
  EXPECT_EQ(owner(base, kPage), "host");
  const auto arena = add("arena");
  EXPECT_EQ(owner(base, kPage), "host");
  arena->own(base, kPage);
  EXPECT_EQ(owner(base, kPage), "arena");
  const MemoryFacts before = MUST(MUST(providers.acquire(base, kPage))->held().facts());
  arena->disown(base);
  EXPECT_EQ(owner(base, kPage), "host");
  // The addresses are the same, the allocation is not.
  arena->own(base, kPage);
  const MemoryFacts after = MUST(MUST(providers.acquire(base, kPage))->held().facts());
  EXPECT_EQ(before.allocation.base, after.allocation.base);
  EXPECT_NE(before.allocationId, after.allocationId);
  EXPECT_OK(providers.remove(lastId).status());
  EXPECT_EQ(owner(base, kPage), "host");
  EXPECT_EQ(providers.remove(lastId).status().code(), Code::kInvalidArgument);
}

TEST_F(Providers, TheEndOfWhatWasAcquiredIsTheRelease) {
  const auto arena = add("arena");
  arena->own(base, kPage);
  {
    const auto acquired = MUST(providers.acquire(base, 100));
    EXPECT_EQ(arena->tickets(), std::vector{acquired->ticket()});
    const auto again = MUST(providers.acquire(base, 100));
    EXPECT_NE(again->ticket(), acquired->ticket());
  }
  EXPECT_TRUE(arena->tickets().empty());
}

// --- Exports ---

constexpr auto kAllForms = {ExportForm::kDmaBuf, ExportForm::kPeerAddress, ExportForm::kIpcHandle,
                            ExportForm::kFile, ExportForm::kAddress};

TEST_F(Providers, AnImporterGetsTheFormThatItLikesBestOfThoseThereAre) {
  const auto held = MUST(providers.acquire(base + 100, 2 * kPage));
  const auto formFor = [&](std::vector<ExportForm> forms) {
    return exportRange(held->held(), 2 * kPage, {.forms = std::move(forms)}, 50, 1000);
  };
  EXPECT_EQ(MUST(formFor({ExportForm::kAddress, ExportForm::kFile})).form, ExportForm::kAddress);
  const ExportedRange file = MUST(formFor(kAllForms));
  EXPECT_EQ(file.form, ExportForm::kFile);
  EXPECT_EQ(file.offset, segment->offset() + 150);
  EXPECT_EQ(file.bytes, 1000u);
  EXPECT_TRUE(file.fd);
  EXPECT_FALSE(file.mayBeInvalidated);
  EXPECT_NE(file.refused.find("dma-buf: it is host memory"), std::string::npos) << file.refused;
  const Status none = formFor({ExportForm::kDmaBuf, ExportForm::kIpcHandle}).status();
  EXPECT_EQ(none.code(), Code::kNotSupported);
  EXPECT_NE(none.message().find("IPC handle: "), std::string_view::npos) << none.toString();
  EXPECT_EQ(formFor({}).status().code(), Code::kNotSupported);
}

TEST_F(Providers, PrivateMemoryHasNoFile) {
  std::vector<std::byte> heap(3 * kPage);
  const auto held = MUST(providers.acquire(heap.data(), heap.size()));
  const auto only = [&](ExportForm form) {
    return exportRange(held->held(), heap.size(), {.forms = {form}}, 0, 1).status();
  };
  EXPECT_EQ(only(ExportForm::kFile).code(), Code::kNotSupported);
  EXPECT_OK(only(ExportForm::kAddress));
}

TEST_F(Providers, AnExportLiesInWhatWasAcquired) {
  const auto held = MUST(providers.acquire(base, kPage));
  const Importer importer{.forms = {ExportForm::kAddress}};
  const auto code = [&](uint64_t offset, uint64_t bytes) {
    return exportRange(held->held(), kPage, importer, offset, bytes).status().code();
  };
  EXPECT_EQ(code(0, kPage), Code::kOk);
  EXPECT_EQ(code(0, kPage + 1), Code::kInvalidArgument);
  EXPECT_EQ(code(kPage, 1), Code::kInvalidArgument);
  EXPECT_EQ(code(UINT64_MAX, 2), Code::kInvalidArgument);
  EXPECT_EQ(code(0, 0), Code::kInvalidArgument);
}

TEST_F(Providers, WhoCannotLetGoIsRefusedMemoryThatMayBeTakenBack) {
  const auto arena = add("arena");
  arena->own(base, kPage);
  const auto held = MUST(providers.acquire(base, kPage));
  Importer importer{.forms = {ExportForm::kAddress}, .name = "a card without revocation"};
  const auto exported = [&] { return exportRange(held->held(), kPage, importer, 0, 1); };
  const Status refused = exported().status();
  EXPECT_EQ(refused.code(), Code::kNotSupported);
  EXPECT_NE(refused.message().find("pinned for life"), std::string_view::npos)
      << refused.toString();
  EXPECT_NE(refused.message().find(importer.name), std::string_view::npos) << refused.toString();
  importer.acceptsPinnedForLife = true;
  EXPECT_FALSE(MUST(exported()).mayBeInvalidated);
  importer = {.forms = importer.forms, .kind = ImporterKind::kRevocable};
  EXPECT_TRUE(MUST(exported()).mayBeInvalidated);
  importer.kind = ImporterKind::kDynamic;
  EXPECT_TRUE(MUST(exported()).mayBeInvalidated);
}

TEST_F(Providers, MemoryThatIsNotTakenBackIsForEverybody) {
  const auto arena = add("arena", 200, /*takesBack=*/false);
  arena->own(base, kPage);
  const auto held = MUST(providers.acquire(base, kPage));
  EXPECT_OK(exportRange(held->held(), kPage, {.forms = {ExportForm::kAddress}}, 0, 1).status());
}

TEST_F(Providers, HostMemoryHasFacts) {
  base[0] = std::byte{1};
  const MemoryFacts facts = MUST(MUST(providers.acquire(base, kPage))->held().facts());
  EXPECT_EQ(facts.device.kind, DeviceKind::kHost);
  EXPECT_TRUE(facts.isCoherent && facts.isCpuMappable);
  EXPECT_FALSE(facts.mayBeInvalidated);
  EXPECT_EQ(facts.allocationId, 0u);
  EXPECT_LE(facts.allocation.base, base);
  EXPECT_GE(facts.allocation.base + facts.allocation.bytes, base + kPage);
  EXPECT_EQ(facts.pageBytes % kPage, 0u);
}

TEST(ExportedRange, ADmaBufWantsTheSameOffsetInThePage) {
  ExportedRange range{.form = ExportForm::kDmaBuf, .offset = 0x123};
  EXPECT_TRUE(range.allowsIova(0x7000123));
  EXPECT_FALSE(range.allowsIova(0x7000000));
  range.form = ExportForm::kAddress;
  EXPECT_TRUE(range.allowsIova(0x7000000));
}

}  // namespace
}  // namespace peerlane
