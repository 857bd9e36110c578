// SPDX-License-Identifier: Apache-2.0
//
// Random sequences of all that the poster and the executor of a triggered queue may call, valid and
// not, against a model that says what each answers and what memory and signals then are.
#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "tests/channel/context_pair.h"
#include "tests/channel/trigger/program_runner.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kBytes = 2048;
constexpr uint32_t kNumbers = 3;  // of signals, each way
constexpr size_t kPeeks = 16;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kSteps = 150;
#else
constexpr int kSteps = 600;
#endif

struct Size {
  uint32_t operations;
  uint32_t commits;
};
constexpr std::array<Size, 4> kSizes = {{{2, 2}, {8, 4}, {64, 32}, {8, 32}}};

struct Posted {
  enum class Kind : uint8_t { kPut, kGet, kSignal, kAdd } kind;
  std::vector<Block> blocks;
  uint64_t at = 0;  // the number of a signal, the offset of a word
  uint64_t add = 0;
};
struct Made {
  TriggerId id;
  std::vector<Posted> works;
  std::vector<std::pair<uint32_t, uint64_t>> arrivals;
  const Program* program = nullptr;
  bool isEnqueued = false;
  bool isKnown = false;  // its operations are complete, as an answer has shown
};
struct OpenPeek {
  TriggerId id;
  bool isEnqueued = false;
};

// The far side's words of additions, whatever the route: memory that every link adds to.
class TriggerModel : public NearAndFarTest {
 protected:
  TriggerModel()
      : NearAndFarTest(kBytes),
        words_(MUST(pair_.b->allocate(kBytes))),
        readOnly_(*pair_.b, kBytes, GetParam().shared, Access::kRemoteRead, 6),
        remoteWords_(MUST(pair_.toB.importRegion(words_.share()))),
        remoteReadOnly_(readOnly_.importedBy(pair_.toB)) {
    for (uint32_t number = 0; number < kNumbers; ++number) {
      there_.push_back(MUST(Signal::create(pair_.toA, number)));
      here_.push_back(MUST(Signal::create(pair_.toB, number)));
    }
  }
  bool reachesAll() const { return std::string(GetParam().engine) == "mapped"; }
  uint64_t pick(uint64_t below) { return random_() % below; }

  void begin(Size size, TriggerEmitter emitter, uint64_t seed) {
    random_.seed(seed);
    size_ = size;
    isDoorbell_ = emitter == TriggerEmitter::kDoorbell || !reachesAll();
    queue_ = MUST(TriggeredQueue::create(
        pair_.toB, {.emitter = emitter, .operations = size.operations, .commits = size.commits}));
    batch_.clear();
    batchArrivals_.clear();
    commits_.clear();
    peeks_.clear();
    over_.clear();
    passed_.clear();
    last_ = 0;
    enqueued_ = 0;
  }

  // --- What the model knows ---
  Made* find(uint64_t number) {
    const auto found = commits_.find(number);
    return found == commits_.end() ? nullptr : &found->second;
  }
  size_t peeksOf(uint64_t number) const {
    return static_cast<size_t>(std::ranges::count_if(
        peeks_, [number](const OpenPeek& peek) { return peek.id.number == number; }));
  }
  bool haveArrived(const Made& made) const {
    return std::ranges::all_of(
        made.arrivals, [this](const auto& one) { return arrived_[one.first] >= one.second; });
  }
  // The operations of all up to it are complete.
  void know(uint64_t number) {
    for (auto& [each, made] : commits_)
      if (each <= number) made.isKnown = true;
  }
  static void expect(const Status& got, Code code, const std::string& what) {
    EXPECT_EQ(got.code(), code) << what << ": " << got.toString();
  }

  // --- Steps ---
  Block block() {
    const uint64_t bytes = pick(8) == 0 ? pick(600) + 1 : pick(40) + 1;
    const uint64_t near = pick(kBytes - bytes), far = pick(kBytes - bytes);
    return {&near_->region(), near, &remote_, far, bytes};
  }
  // Whether an operation that is valid fits: the code, or either.
  void posted(const Status& got, Posted work) {
    size_t held = batch_.size(), perhaps = 0;
    for (const auto& [number, made] : commits_)
      if (!made.isKnown) (made.isEnqueued ? perhaps : held) += made.works.size();
    if (isDoorbell_ && held + 1 > size_.operations) {
      expect(got, Code::kTryAgain, "a post without room");
    } else if (!isDoorbell_ || held + perhaps + 1 <= size_.operations) {
      expect(got, Code::kOk, "a post with room");
    } else {
      EXPECT_TRUE(got.isOk() || got.code() == Code::kTryAgain) << got.toString();
    }
    if (got.isOk()) batch_.push_back(std::move(work));
  }
  void move() {
    const bool isPut = pick(2) == 0;
    Posted work{isPut ? Posted::Kind::kPut : Posted::Kind::kGet, {block()}};
    // Blocks of one list must not overlap where they write: the second half of a block.
    if (Block& first = work.blocks[0]; pick(3) == 0 && first.bytes >= 4) {
      Block second = first;
      first.bytes /= 2;
      second.localOffset += first.bytes + 1;
      second.remoteOffset += first.bytes + 1;
      second.bytes = second.bytes - first.bytes - 1;
      work.blocks.push_back(second);
    }
    const Status got = isPut ? queue_.put(work.blocks) : queue_.get(work.blocks);
    posted(got, work);
  }
  void signal() {
    const uint32_t number = static_cast<uint32_t>(pick(kNumbers));
    const uint64_t add = pick(5) + 1;
    posted(queue_.signal(number, add), {Posted::Kind::kSignal, {}, number, add});
  }
  void add() {
    const uint64_t offset = pick(kBytes / 8) * 8, value = random_();
    posted(queue_.add(remoteWords_, offset, value), {Posted::Kind::kAdd, {}, offset, value});
  }
  void receive() {
    const auto number = static_cast<uint32_t>(pick(kNumbers));
    const uint64_t value = arrived_[number] + pick(3);
    expect(queue_.receive(number, value), Code::kOk, "receive");
    batchArrivals_.emplace_back(number, value);
  }
  void postInvalid() {
    Block one = block();
    switch (pick(8)) {
      case 0: return expect(queue_.put({}), Code::kInvalidArgument, "no blocks");
      case 1:
        one.remoteOffset = kBytes;
        return expect(queue_.put({&one, 1}), Code::kInvalidArgument, "outside");
      case 2:
        one.localOffset = kBytes - one.bytes + 1;
        return expect(queue_.get({&one, 1}), Code::kInvalidArgument, "outside");
      case 3: return expect(queue_.signal(1 << 20), Code::kInvalidArgument, "signal");
      case 4: return expect(queue_.add(remoteWords_, 4, 1), Code::kInvalidArgument, "word");
      case 5: return expect(queue_.add(remoteWords_, kBytes, 1), Code::kInvalidArgument, "word");
      case 6: return expect(queue_.receive(0, kPoison), Code::kInvalidArgument, "receive");
      default:
        one.remote = &remoteReadOnly_;
        return expect(queue_.put({&one, 1}), Code::kPermissionDenied, "a put to be read only");
    }
  }
  void discard() {
    queue_.discard();
    batch_.clear();
    batchArrivals_.clear();
  }
  uint32_t opsNow() const {
    if (batch_.empty()) return 0;
    return isDoorbell_ ? 1 : static_cast<uint32_t>(batch_.size()) + 1;
  }
  void commit() {
    EXPECT_EQ(queue_.commitOps(), opsNow());
    const bool isEmpty = batch_.empty() && batchArrivals_.empty();
    if (opsNow() != 0 && pick(4) == 0)
      expect(queue_.commit(opsNow() - 1).status(), Code::kInvalidArgument, "no room for the ops");
    const auto got = queue_.commit(opsNow());
    if (isEmpty) {
      ASSERT_OK(got.status());
      EXPECT_EQ(got->id, (TriggerId{last_, 0}));
      EXPECT_TRUE(got->program->ops.empty());
      return;
    }
    Made* const before = last_ + 1 <= size_.commits ? nullptr : find(last_ + 1 - size_.commits);
    if (before != nullptr) {
      const uint64_t number = before->id.number;
      if (!before->isEnqueued || !haveArrived(*before) || peeksOf(number) != 0)
        expect(got.status(), Code::kTryAgain, "a commit without a slot");
      else if (before->isKnown)
        expect(got.status(), Code::kOk, "a commit whose slot is free");
      else
        EXPECT_TRUE(got.isOk() || got.status().code() == Code::kTryAgain)
            << got.status().toString();
      if (got.isOk()) {
        know(number);
        forget(number);
      }
    } else {
      expect(got.status(), Code::kOk, "a commit");
    }
    if (!got.isOk()) return;
    EXPECT_EQ(got->id.number, ++last_);
    EXPECT_EQ(got->program->ops.size(), opsNow());
    commits_[last_] = {got->id, std::exchange(batch_, {}), std::exchange(batchArrivals_, {}),
                       got->program};
  }
  void forget(uint64_t number) {
    const auto found = commits_.find(number);
    over_.push_back(found->second.id);
    if (over_.size() > 8) over_.pop_front();
    commits_.erase(found);
  }
  // One that is, was, or never was.
  TriggerId anyCommit() {
    const uint64_t choice = pick(10);
    if (choice == 0 && !over_.empty()) return over_[pick(over_.size())];
    if (choice == 1) return {last_ + 1, 1};
    if (choice == 2 && last_ != 0) return {last_, uint64_t{1} << 40};
    if (commits_.empty()) return {last_ + 1, 1};
    if (choice < 6 && find(enqueued_ + 1) != nullptr) return find(enqueued_ + 1)->id;
    return std::next(commits_.begin(), static_cast<ptrdiff_t>(pick(commits_.size())))->second.id;
  }
  bool isThere(const TriggerId& id) {
    return find(id.number) != nullptr && find(id.number)->id == id;
  }
  void rollback() {
    TriggerId id = anyCommit();
    if (pick(2) == 0 && find(last_) != nullptr) id = find(last_)->id;
    const bool mayBe = batch_.empty() && batchArrivals_.empty() && id.number == last_ &&
                       isThere(id) && !find(last_)->isEnqueued && peeksOf(last_) == 0;
    expect(queue_.rollback(id), mayBe ? Code::kOk : Code::kInvalidArgument, "rollback");
    if (!mayBe) return;
    forget(last_--);
  }
  // By the library, or by an executor of this test's own.
  void launch() {
    const TriggerId id = anyCommit();
    const bool mayBe = isThere(id) && !find(id.number)->isEnqueued && id.number == enqueued_ + 1;
    const bool isOurs = mayBe && pick(2) == 0;
    const Status got = isOurs ? queue_.enqueueCommit(id) : queue_.execute(id);
    expect(got, mayBe ? Code::kOk : Code::kInvalidArgument, "execute");
    if (!mayBe || !got.isOk()) return;
    enqueued_ = id.number;
    Made& made = *find(id.number);
    made.isEnqueued = true;
    if (isOurs) {
      EXPECT_TRUE(ProgramRunner(queue_.targets()).run(*made.program));
      queue_.wake();
    }
    // The program of a mapped queue is the transfer, and one of receives alone launches nothing.
    if (!isDoorbell_) made.isKnown = true;
    for (const Posted& work : made.works) apply(work);
  }
  void apply(const Posted& work) {
    for (const Block& one : work.blocks) {
      std::byte* const near = near_->shadow() + one.localOffset;
      std::byte* const far = far_->shadow() + one.remoteOffset;
      work.kind == Posted::Kind::kPut ? std::memcpy(far, near, one.bytes)
                                      : std::memcpy(near, far, one.bytes);
    }
    if (work.kind == Posted::Kind::kSignal) added_[work.at] += work.add;
    if (work.kind != Posted::Kind::kAdd) return;
    wordsExpected_[work.at / 8] += work.add;
  }
  void peek() {
    const uint64_t number =
        pick(4) == 0 ? pick(last_ + 3) : last_ - pick(std::min<uint64_t>(last_, 3) + 1);
    const Made* const made = find(number);
    const uint32_t ops = 2 + (made == nullptr ? 0 : static_cast<uint32_t>(made->arrivals.size()));
    if (number > last_)
      return expect(queue_.peek(number).status(), Code::kInvalidArgument, "peek of no commit");
    EXPECT_EQ(queue_.peekOps(number), ops);
    if (pick(4) == 0)
      return expect(queue_.peek(number, ops - 1).status(), Code::kInvalidArgument,
                    "peek without room");
    const auto got = queue_.peek(number);
    expect(got.status(), peeks_.size() < kPeeks ? Code::kOk : Code::kTryAgain, "peek");
    if (!got.isOk()) return;
    EXPECT_EQ(got->program->ops.size(), ops);
    peeks_.push_back({got->id});
  }
  TriggerId anyPeek() {
    if (peeks_.empty() || pick(6) == 0)
      return passed_.empty() ? TriggerId{1, uint64_t{1} << 40} : passed_[pick(passed_.size())];
    return peeks_[pick(peeks_.size())].id;
  }
  OpenPeek* findPeek(const TriggerId& id) {
    const auto found = std::ranges::find(peeks_, id, &OpenPeek::id);
    return found == peeks_.end() ? nullptr : &*found;
  }
  void close(const TriggerId& id) {
    passed_.push_back(id);
    if (passed_.size() > 8) passed_.pop_front();
    std::erase_if(peeks_, [&](const OpenPeek& peek) { return peek.id == id; });
  }
  void abortPeek() {
    const TriggerId id = anyPeek();
    const OpenPeek* const peek = findPeek(id);
    const bool mayBe = peek != nullptr && !peek->isEnqueued;
    expect(queue_.abortPeek(id), mayBe ? Code::kOk : Code::kInvalidArgument, "abortPeek");
    if (mayBe) close(id);
  }
  // Whether a wait for it ends.
  bool ends(uint64_t number) {
    const Made* const made = find(number);
    return number <= last_ && (made == nullptr || (made->isEnqueued && haveArrived(*made)));
  }
  // It launches nothing, so the program of a peek does not know whether it was enqueued: it passes
  // once what was launched before is complete.
  bool mayEnd(uint64_t number) {
    const Made* const made = find(number);
    return made != nullptr && !made->isEnqueued && made->works.empty() && haveArrived(*made);
  }
  void executePeek() {
    const TriggerId id = anyPeek();
    OpenPeek* const peek = findPeek(id);
    if (peek == nullptr)
      return expect(queue_.executePeek(id, 0s), Code::kInvalidArgument, "no such peek");
    if (mayEnd(id.number)) {
      const Status got = queue_.executePeek(id, 0s);
      EXPECT_TRUE(got.isOk() || got.code() == Code::kTimeout) << got.toString();
      if (got.isOk()) return close(id);
      peek->isEnqueued = true;
      return;
    }
    if (!ends(id.number)) {
      expect(queue_.executePeek(id, 0s), Code::kTimeout, "peek of what is not complete");
      peek->isEnqueued = true;
      return;
    }
    expect(queue_.executePeek(id, kSoon), Code::kOk, "peek");
    know(id.number);
    close(id);
  }
  void wait() {
    const uint64_t number = pick(last_ + 2);
    if (number > last_) return expect(queue_.wait(number, 0s), Code::kInvalidArgument, "wait");
    if (peeks_.size() >= kPeeks)
      return expect(queue_.wait(number, 0s), Code::kTryAgain, "wait without a peek");
    if (mayEnd(number)) {
      const Status got = queue_.wait(number, 0s);
      EXPECT_TRUE(got.isOk() || got.code() == Code::kTimeout) << got.toString();
      return;
    }
    expect(queue_.wait(number, ends(number) ? std::chrono::nanoseconds(kSoon) : 0s),
           ends(number) ? Code::kOk : Code::kTimeout, "wait");
    if (ends(number)) know(number);
  }
  void poll() {
    const uint64_t number = pick(last_ + 2);
    const Status got = queue_.poll(number);
    const Made* const made = find(number);
    if (number > last_) return expect(got, Code::kInvalidArgument, "poll of no commit");
    if (peeksOf(number) != 0 || !ends(number)) return expect(got, Code::kTryAgain, "poll");
    if (made == nullptr || made->isKnown) return expect(got, Code::kOk, "poll");
    EXPECT_TRUE(got.isOk() || got.code() == Code::kTryAgain) << got.toString();
    if (got.isOk()) know(number);
  }
  void arrive() {
    const auto number = static_cast<uint32_t>(pick(kNumbers));
    EXPECT_OK(MUST(addSignal(pair_.toA, number)).wait(kSoon));
    EXPECT_OK(here_[number].wait(++arrived_[number], kSoon));
  }
  // What was launched has ended: all memory is what the model says.
  void look() {
    if (peeks_.size() < kPeeks) {
      for (auto& [number, made] : commits_) {
        if (!made.isEnqueued || !haveArrived(made)) continue;
        expect(queue_.wait(number, kSoon), Code::kOk, "wait for all");
        know(number);
      }
    }
    // The arrivals of one may be missing: its operations end all the same.
    (void)soon([&] {
      return near_->isAsExpected() && far_->isAsExpected() && areAdded() && areSignalled();
    });
    EXPECT_TRUE(near_->isAsExpected()) << "near";
    EXPECT_TRUE(far_->isAsExpected()) << "far";
    EXPECT_TRUE(areAdded()) << "words";
    EXPECT_TRUE(areSignalled());
    // Bytes that have arrived do not prove that the server has finished with them: the queue does.
    if (std::any_of(commits_.begin(), commits_.end(), [](const auto& each) {
          return each.second.isEnqueued && !each.second.isKnown;
        }))
      return;
    for (int i = 0; i < 8; ++i) {
      const uint64_t at = pick(kBytes);
      near_->data()[at] = near_->shadow()[at] = static_cast<std::byte>(random_());
    }
  }
  bool areAdded() const {
    const auto* const expected = reinterpret_cast<const std::byte*>(wordsExpected_.data());
    return firstDifference(words_.data(), expected, kBytes) == kBytes;
  }
  bool areSignalled() const {
    for (uint32_t number = 0; number < kNumbers; ++number)
      if (there_[number].value() != added_[number]) return false;
    return true;
  }

  void step() {
    switch (pick(26)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4: return move();
      case 5:
      case 6: return signal();
      case 7: return add();
      case 8: return receive();
      case 9: return postInvalid();
      case 10: return pick(4) == 0 ? discard() : move();
      case 11:
      case 12:
      case 13:
      case 14: return commit();
      case 15: return rollback();
      case 16:
      case 17:
      case 18:
      case 19: return launch();
      case 20: return peek();
      case 21: return pick(3) == 0 ? abortPeek() : executePeek();
      case 22: return wait();
      case 23: return poll();
      case 24: return arrive();
      default: return pick(3) == 0 ? look() : executePeek();
    }
  }
  // Whatever is under way; then everything says so.
  void cancel() {
    look();
    queue_.cancel();
    const Block one = block();
    expect(queue_.put({&one, 1}), Code::kCancelled, "put");
    expect(queue_.signal(0), Code::kCancelled, "signal");
    expect(queue_.receive(0, 1), Code::kCancelled, "receive");
    expect(queue_.commit().status(), Code::kCancelled, "commit");
    expect(queue_.peek(0).status(), Code::kCancelled, "peek");
    for (const auto& [number, made] : commits_) {
      const bool isOver = made.isKnown && haveArrived(made) && made.isEnqueued;
      const Code code = !isOver                ? Code::kCancelled
                        : peeksOf(number) != 0 ? Code::kTryAgain
                                               : Code::kOk;
      expect(queue_.poll(number), code, "poll");
      expect(queue_.execute(made.id), Code::kCancelled, "execute");
    }
    for (const OpenPeek& peek : peeks_)
      if (const Status got = queue_.executePeek(peek.id, kSoon); !got.isOk())
        expect(got, Code::kCancelled, "executePeek");
    queue_ = {};
    EXPECT_TRUE(near_->isAsExpected());
    EXPECT_TRUE(far_->isAsExpected());
    EXPECT_TRUE(areAdded());
    EXPECT_TRUE(areSignalled());
  }
  void walk(TriggerEmitter emitter) {
    uint64_t seed = 1;
    for (const Size size : kSizes) {
      for (const uint64_t round : {0, 1}) {
        SCOPED_TRACE("operations " + std::to_string(size.operations) + ", commits " +
                     std::to_string(size.commits) + ", round " + std::to_string(round));
        begin(size, emitter, seed++);
        for (int at = 0; at < kSteps && !HasFailure(); ++at) {
          SCOPED_TRACE("step " + std::to_string(at));
          step();
        }
        if (HasFailure()) return;
        cancel();
        if (HasFailure()) return;
      }
    }
  }

  Region words_;
  std::array<uint64_t, kBytes / 8> wordsExpected_{};
  TestMemory readOnly_;
  RemoteRegion remoteWords_;
  RemoteRegion remoteReadOnly_;
  std::vector<Signal> there_, here_;
  std::mt19937_64 random_;
  Size size_{};
  bool isDoorbell_ = false;
  TriggeredQueue queue_;
  std::vector<Posted> batch_;
  std::vector<std::pair<uint32_t, uint64_t>> batchArrivals_;
  std::map<uint64_t, Made> commits_;  // by number, while they have a slot
  std::vector<OpenPeek> peeks_;
  std::deque<TriggerId> over_, passed_;
  uint64_t last_ = 0, enqueued_ = 0;
  std::array<uint64_t, kNumbers> added_{}, arrived_{};
};

INSTANTIATE_TEST_SUITE_P(Routes, TriggerModel, everyRouteAndVerbs(), routeName);

TEST_P(TriggerModel, OfADoorbellQueue) {
  walk(TriggerEmitter::kDoorbell);
}
TEST_P(TriggerModel, OfAMappedQueue) {
  if (reachesAll()) return walk(TriggerEmitter::kMapped);
  TriggeredQueue queue =
      MUST(TriggeredQueue::create(pair_.toB, {.emitter = TriggerEmitter::kMapped}));
  const Block one = block();
  EXPECT_EQ(queue.put({&one, 1}).code(), Code::kNotSupported);
  EXPECT_EQ(queue.commit()->id.number, 0u) << "nothing was prepared";
}

}  // namespace
}  // namespace peerlane
