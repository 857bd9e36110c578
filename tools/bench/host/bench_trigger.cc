// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/host/bench_trigger.h"

#include <sched.h>

#include <array>
#include <atomic>
#include <cstring>
#include <ctime>
#include <thread>

#include "tools/bench/sides/bench_row.h"
#include "tools/ceiling/ceiling_copy.h"
#include "tools/memory/byte_pattern.h"

namespace peerlane::bench {
namespace {

constexpr uint64_t kPutsPerSample = 400;  // of both batches a multiple
constexpr uint64_t kBellsPerSample = 64;
constexpr uint32_t kTriggerSignal = 0;  // the one that BenchPair::verifyOther looks at
constexpr uint64_t kMostBatch = 20;

Block blockOf(BenchEndpoint& endpoint, uint64_t bytes) {
  return {&endpoint.source(), 0, &endpoint.otherDestination().remote, 0, bytes};
}

// The contenders: a plan, the raw stores, and queues.
class Contenders {
 public:
  Contenders(BenchPair& pair, uint64_t bytes)
      : pair_(pair), endpoint_(pair.endpoint()), bytes_(bytes), block_(blockOf(endpoint_, bytes)) {}

  Status begin() {
    PlanOptions options;
    options.signal = kTriggerSignal;
    PEERLANE_ASSIGN(plan_, Plan::create(endpoint_.peer(), Direction::kPut, {&block_, 1}, options));
    PEERLANE_ASSIGN(queue_, TriggeredQueue::create(endpoint_.peer()));
    return Status::ok();
  }
  bool isMapped() const { return endpoint_.otherDestination().mapping != nullptr; }
  std::string emitter() const { return queue_.emitter(); }

  Status prepare(bool checked) {
    fillPattern({endpoint_.source().data(), bytes_}, seeds_.next());
    return checked ? pair_.fillOther(false, bytes_, otherThan(seeds_.last())) : Status::ok();
  }
  Result<uint64_t> check() {
    const VerifyPiece piece{0, 0, bytes_};
    return pair_.verifyOther({seeds_.last(), endpoint_.signalsSent}, {&piece, 1});
  }

  Status byRaw(Samples& samples) {
    std::byte* const to = endpoint_.otherDestination().mapping->data();
    std::atomic<uint64_t>& word = endpoint_.flags().toChild;
    const Clock::time_point start = Clock::now();
    for (uint64_t i = 0; i < kPutsPerSample; ++i) {
      std::memcpy(to, endpoint_.source().data(), bytes_);
      word.fetch_add(1, std::memory_order_seq_cst);
    }
    samples.add(microsecondsSince(start) / kPutsPerSample);
    return Status::ok();
  }

  Status byPlan(Samples& samples) {
    const Clock::time_point start = Clock::now();
    for (uint64_t i = 0; i < kPutsPerSample;) {
      const auto posted = plan_.post();
      if (posted.isOk())
        ++i;
      else if (posted.status().code() != Code::kTryAgain)
        return posted.status();
    }
    PEERLANE_RETURN_IF_ERROR(flush(endpoint_.peer(), std::chrono::seconds(20)));
    samples.add(microsecondsSince(start) / kPutsPerSample);
    endpoint_.signalsSent += kPutsPerSample;
    return Status::ok();
  }

  // Each put is a commit of its own.
  Status byQueue(uint64_t batch, Samples& samples) {
    double prepared = 0;
    double executed = 0;
    for (uint64_t done = 0; done < kPutsPerSample; done += batch) {
      std::array<TriggerId, kMostBatch> commits;
      Clock::time_point start = Clock::now();
      for (uint64_t i = 0; i < batch; ++i) {
        PEERLANE_RETURN_IF_ERROR(queue_.put({&block_, 1}));
        PEERLANE_RETURN_IF_ERROR(queue_.signal(kTriggerSignal));
        PEERLANE_ASSIGN(const TriggerProgram commit, queue_.commit());
        commits[i] = commit.id;
      }
      prepared += microsecondsSince(start);
      start = Clock::now();
      for (uint64_t i = 0; i < batch; ++i) PEERLANE_RETURN_IF_ERROR(queue_.execute(commits[i]));
      PEERLANE_RETURN_IF_ERROR(complete(commits[batch - 1].number));
      executed += microsecondsSince(start);
    }
    samples.add((prepared + executed) / kPutsPerSample);
    prepared_.add(prepared / kPutsPerSample);
    executed_.add(executed / kPutsPerSample);
    endpoint_.signalsSent += kPutsPerSample;
    return Status::ok();
  }
  // Of the last batch size.
  void addParts(BenchRow& row) {
    row.extras["prepare_us"] = std::exchange(prepared_, {}).median();
    row.extras["execute_us"] = std::exchange(executed_, {}).median();
  }

 private:
  Status complete(uint64_t number) {
    for (;;) {
      Status polled = queue_.poll(number);
      if (polled.code() != Code::kTryAgain) return polled;
    }
  }

  BenchPair& pair_;
  BenchEndpoint& endpoint_;
  const uint64_t bytes_;
  const Block block_;
  Seeds seeds_;
  Plan plan_;
  TriggeredQueue queue_;
  Samples prepared_;
  Samples executed_;
};

using Run = std::function<Status(Samples&)>;

// `other`: null: there is nothing to compare with.
Result<BenchRow> contest(BenchPair& pair, const BenchOptions& options, Contenders& contenders,
                         uint64_t bytes, const std::string& name, const Run& ours, const Run& other,
                         const std::string& otherName) {
  Contest contest = contestFor(options, bytes * kPutsPerSample);
  contest.prepare = [&](Contender, bool checked) { return contenders.prepare(checked); };
  contest.sample = [&](Contender who, Samples& to) {
    return who == Contender::kOurs ? ours(to) : other(to);
  };
  contest.check = [&](Contender) { return contenders.check(); };
  contest.withCeiling = other != nullptr;
  BenchRow row = rowFor(pair, options, bytes);
  row.operation = name;
  row.isLatency = true;
  row.ceilingBy = other != nullptr ? otherName : "";
  PEERLANE_ASSIGN(row.outcome, runContest(contest));
  return row;
}

Status benchPuts(BenchPair& pair, const BenchOptions& options, uint64_t bytes,
                 BenchReport& report) {
  Contenders contenders(pair, bytes);
  PEERLANE_RETURN_IF_ERROR(contenders.begin());
  const Run plan = [&](Samples& to) { return contenders.byPlan(to); };
  Run raw;
  if (contenders.isMapped()) raw = [&](Samples& to) { return contenders.byRaw(to); };
  report.printHeader("# a plan with a signal, posted; against the raw copy and addition", true);
  PEERLANE_ASSIGN(BenchRow posted, contest(pair, options, contenders, bytes, "trigger_plan", plan,
                                           raw, "copy and addition"));
  report.add(std::move(posted));
  for (const uint64_t batch : {uint64_t{1}, kMostBatch}) {
    report.printHeader("# a put and a signal posted, committed, executed, " +
                           std::to_string(batch) + " prepared ahead; against that plan",
                       true);
    const Run queue = [&](Samples& to) { return contenders.byQueue(batch, to); };
    PEERLANE_ASSIGN(BenchRow row, contest(pair, options, contenders, bytes,
                                          "trigger_" + std::to_string(batch), queue, plan, "plan"));
    contenders.addParts(row);
    row.engine = contenders.emitter();
    report.add(std::move(row));
  }
  return Status::ok();
}

// Threads that are made meanwhile may run anywhere, not on this thread's core alone.
class Unpinned {
 public:
  Unpinned() {
    CPU_ZERO(&all_);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) CPU_SET(cpu, &all_);
    ::sched_getaffinity(0, sizeof(own_), &own_);
    ::sched_setaffinity(0, sizeof(all_), &all_);
  }
  ~Unpinned() { ::sched_setaffinity(0, sizeof(own_), &own_); }
  Unpinned(const Unpinned&) = delete;
  Unpinned& operator=(const Unpinned&) = delete;

 private:
  cpu_set_t all_{};
  cpu_set_t own_{};
};

std::atomic_ref<uint64_t> wordOf(const TriggerRow& row) {
  return std::atomic_ref(*reinterpret_cast<uint64_t*>(row.host));
}

// What an executor of one's own does with a queue of one addition each.
Status ringOnce(TriggeredQueue& queue, Samples& samples) {
  PEERLANE_RETURN_IF_ERROR(queue.signal(kTriggerSignal));
  PEERLANE_ASSIGN(const TriggerProgram commit, queue.commit());
  PEERLANE_RETURN_IF_ERROR(queue.enqueueCommit(commit.id));
  const Op& store = commit.program->ops.at(0);
  const auto targets = queue.targets();
  std::atomic_ref<uint64_t> bell = wordOf(targets[store.to.target]);
  const std::atomic_ref<uint64_t> count = wordOf(targets[1]);
  const auto last = static_cast<uint64_t>(store.operand.delta);
  const Clock::time_point start = Clock::now();
  bell.store(last, std::memory_order_release);
  SpinLimit limit;
  while (count.load(std::memory_order_acquire) < last)
    if (limit.over()) return spinOver();
  samples.add(microsecondsSince(start));
  return queue.poll(commit.id.number);
}

// Half of a store there and back between this thread and another one.
Status bounce(Samples& samples) {
  struct {
    alignas(256) std::atomic<uint64_t> there{0};
    alignas(256) std::atomic<uint64_t> back{0};
  } words;
  std::thread other;
  {
    const Unpinned unpinned;
    other = std::thread([&] {
      for (uint64_t i = 1; i <= kBellsPerSample; ++i) {
        SpinLimit limit;
        while (words.there.load(std::memory_order_acquire) < i && !limit.over()) {
        }
        words.back.store(i, std::memory_order_release);
      }
    });
  }
  for (uint64_t i = 1; i <= kBellsPerSample; ++i) {
    const Clock::time_point start = Clock::now();
    words.there.store(i, std::memory_order_release);
    SpinLimit limit;
    while (words.back.load(std::memory_order_acquire) < i && !limit.over()) {
    }
    if (i != 1) samples.add(microsecondsSince(start) / 2);
  }
  other.join();
  return Status::ok();
}

double cpuSeconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Of this process, in which all threads but the server sleep.
double idlePercent() {
  std::this_thread::sleep_for(std::chrono::milliseconds(700));  // its naps have grown by then
  const double before = cpuSeconds();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  return (cpuSeconds() - before) * 100;
}

Status benchBell(BenchPair& pair, const BenchOptions& options, BenchReport& report) {
  BenchEndpoint& endpoint = pair.endpoint();
  const auto make = [&]() -> Result<TriggeredQueue> {
    const Unpinned unpinned;
    return TriggeredQueue::create(endpoint.peer(), {.emitter = TriggerEmitter::kDoorbell});
  };
  PEERLANE_ASSIGN(TriggeredQueue queue, make());
  BenchRow row = rowFor(pair, options, sizeof(uint64_t));
  row.operation = "trigger_bell";
  row.engine = "doorbell";
  row.isLatency = true;
  Samples raw;  // no limit of the row: the server does more than to look
  const uint64_t rounds = options.samples != 0 ? options.samples : 50;
  for (uint64_t round = 0; round < rounds; ++round) {
    queue.wake();
    for (uint64_t i = 0; i < kBellsPerSample; ++i) {
      Samples first;
      PEERLANE_RETURN_IF_ERROR(ringOnce(queue, i == 0 ? first : row.outcome.ours));
      ++endpoint.signalsSent;
    }
    PEERLANE_RETURN_IF_ERROR(bounce(raw));
  }
  PEERLANE_ASSIGN(row.outcome.wrong, pair.verifyOther({0, endpoint.signalsSent}, {}));
  row.extras["store_to_load_us"] = raw.median();
  row.extras["idle_percent_1_queue"] = idlePercent();
  std::vector<TriggeredQueue> more;
  while (more.size() < 63) {
    PEERLANE_ASSIGN(TriggeredQueue next, make());
    more.push_back(std::move(next));
  }
  row.extras["idle_percent_64_queues"] = idlePercent();
  report.printHeader(
      "# a bell until the count: the server sees it, the link adds to a signal; beside it a "
      "store from thread to thread, and percent of a core while the server has nothing to do",
      true);
  report.add(std::move(row));
  return Status::ok();
}

}  // namespace

Status benchTrigger(BenchPair& pair, const BenchOptions& options, BenchReport& report) {
  for (const uint64_t bytes : sweep(options))
    PEERLANE_RETURN_IF_ERROR(benchPuts(pair, options, bytes, report));
  return benchBell(pair, options, report);
}

}  // namespace peerlane::bench
