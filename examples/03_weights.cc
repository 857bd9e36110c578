// SPDX-License-Identifier: Apache-2.0
//
// Reinforcement learning: after every step a trainer puts the new weights into the memory of two
// sampler processes, each of which holds one shard of every tensor. The samplers generate with the
// weights of one step while those of the next arrive.
//
//   trainer                                            sampler 0, 1
//   step n: updates its weights
//   waits until step n - 2 is not used any more  ◀──   acknowledges n - 2
//   puts the shards into buffer n % 2            ══▶   uses n - 1, which is in the other buffer
//   a signal follows the last byte               ──▶   sees n, checks it, uses it, acknowledges it
//
// The tensors are of any size, at any place of one region; a Plan holds the list of all of them for
// one sampler and one buffer, and every step posts it again. Signals are counters: the one of the
// puts counts steps that arrived, the one of the samplers counts steps that are done with.
//
//   example_03_weights --steps 100 --device trainer=cuda:0 --device sampler0=cuda:1
#include "examples/roles.h"

using namespace example;
using peerlane::Block;
using peerlane::Peer;
using peerlane::Plan;
using peerlane::Region;
using peerlane::Signal;
using peerlane::Transfer;

namespace {

constexpr uint64_t kSamplers = 2;
constexpr uint64_t kBuffers = 2;
constexpr uint32_t kStepSignal = 0;  // counted up at the samplers
constexpr uint32_t kDoneSignal = 0;  // counted up at the trainer; each direction has its own

// Before the tensors of a shard.
struct StepHeader {
  uint64_t step = 0;
  uint64_t checksum = 0;
};

// The model: bytes of each tensor. Odd ones: nothing has to be aligned.
constexpr uint64_t kTensorBytes[] = {3'145'729, 777,       65'537, 1'000'003,
                                     1,         2'097'143, 4'099,  333'333};
constexpr uint64_t kTensors = std::size(kTensorBytes);
constexpr uint64_t kTensorAlignment = 256;

// Where things lie in memory: a header for each sampler, then the tensors.
struct Layout {
  std::array<uint64_t, kTensors> bytes{};
  std::array<uint64_t, kTensors> offset{};
  uint64_t span = 0;
};
Layout layoutOf(const std::array<uint64_t, kTensors>& bytes) {
  Layout layout;
  layout.bytes = bytes;
  layout.span = kSamplers * kTensorAlignment;
  for (uint64_t i = 0; i < kTensors; ++i) {
    layout.offset[i] = layout.span;
    layout.span += (bytes[i] + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
  }
  return layout;
}
Layout fullLayout() {
  return layoutOf(std::to_array(kTensorBytes));
}
// Sampler `s` holds bytes [begin, end) of the tensor.
struct Shard {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t bytes() const { return end - begin; }
};
Shard shardOf(uint64_t tensor, uint64_t s) {
  return {kTensorBytes[tensor] * s / kSamplers, kTensorBytes[tensor] * (s + 1) / kSamplers};
}
Layout shardLayout(uint64_t s) {
  std::array<uint64_t, kTensors> bytes;
  for (uint64_t i = 0; i < kTensors; ++i) bytes[i] = shardOf(i, s).bytes();
  return layoutOf(bytes);
}

// Of the shards of all tensors, one after the other.
class Checksum {
 public:
  void add(std::span<const std::byte> bytes) {
    for (size_t at = 0; at < bytes.size(); at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + at, std::min<size_t>(8, bytes.size() - at));
      value_ = (value_ ^ word) * 0x9e3779b97f4a7c15;
      value_ ^= value_ >> 29;
    }
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 1;
};

// What a sampler tells of itself once it is connected.
struct Hello {
  uint64_t sampler = 0;
  peerlane::RegionReference::Encoded share{};
};

// ---- The trainer

class Trainer {
 public:
  Status start(const peerlane::Device& device, TicketPipes& tickets) {
    PEERLANE_ASSIGN(context_, contextOn(device));
    PEERLANE_ASSIGN(weights_,
                    allocateOn(*context_, device, layout_.span, peerlane::Access::kLocal));
    PEERLANE_RETURN_IF_ERROR(tickets.give(context_->ticket()));
    for (uint64_t i = 0; i < kSamplers; ++i) {  // in any order
      PEERLANE_ASSIGN(const Peer peer, context_->accept(kPatience));
      PEERLANE_ASSIGN(const auto said, peer.receiveMessage(0, kPatience));
      PEERLANE_ASSIGN(const Hello hello, messageAs<Hello>(said));
      if (hello.sampler >= kSamplers) return Status(Code::kCorrupt, "an unknown sampler");
      PEERLANE_RETURN_IF_ERROR(welcome(peer, hello));
    }
    return Status::ok();
  }

  Status run(uint64_t steps) {
    for (uint64_t step = 1; step <= steps; ++step) {
      PEERLANE_RETURN_IF_ERROR(update(step));
      PEERLANE_RETURN_IF_ERROR(publish(step));
    }
    for (const Sampler& sampler : samplers_)
      PEERLANE_RETURN_IF_ERROR(sampler.done->wait(steps, kPatience));
    std::printf("trainer: %llu steps, %.1f MB to %llu samplers, %.2f GB/s over %s (%s)\n",
                static_cast<unsigned long long>(steps), static_cast<double>(bytes_) / 1e6,
                static_cast<unsigned long long>(kSamplers),
                seconds_ > 0 ? static_cast<double>(bytes_) / 1e9 / seconds_ : 0,
                samplers_[0].peer.route().link.c_str(), samplers_[0].memory.engine().c_str());
    return Status::ok();
  }

 private:
  struct Sampler {
    Peer peer;
    peerlane::RemoteRegion memory;
    std::array<Plan, kBuffers> plans;  // everything into one of its buffers
    std::optional<Signal> done;
  };

  Status welcome(const Peer& peer, const Hello& hello) {
    const uint64_t s = hello.sampler;
    Sampler& sampler = samplers_[s];
    sampler.peer = peer;
    PEERLANE_ASSIGN(sampler.memory, peer.importRegion(hello.share));
    PEERLANE_ASSIGN(sampler.done, Signal::create(peer, kDoneSignal));
    const Layout theirs = shardLayout(s);
    for (uint64_t buffer = 0; buffer < kBuffers; ++buffer) {
      const uint64_t base = buffer * theirs.span;
      std::vector<Block> blocks{
          {&weights_, s * kTensorAlignment, &sampler.memory, base, sizeof(StepHeader)}};
      for (uint64_t i = 0; i < kTensors; ++i)
        if (const Shard shard = shardOf(i, s); shard.bytes() > 0)
          blocks.push_back({&weights_, layout_.offset[i] + shard.begin, &sampler.memory,
                            base + theirs.offset[i], shard.bytes()});
      PEERLANE_ASSIGN(sampler.plans[buffer], Plan::create(peer, peerlane::Direction::kPut, blocks,
                                                          {.signal = kStepSignal}));
    }
    return Status::ok();
  }

  // Here the optimizer would run. All puts of the step before have ended, so no shard is torn.
  Status update(uint64_t step) {
    std::array<Checksum, kSamplers> checksums;
    std::vector<std::byte> tensor;
    for (uint64_t i = 0; i < kTensors; ++i) {
      tensor.resize(kTensorBytes[i]);
      makeBytes(step * kTensors + i, tensor);
      PEERLANE_RETURN_IF_ERROR(fill(weights_, layout_.offset[i], tensor));
      for (uint64_t s = 0; s < kSamplers; ++s) {
        const Shard shard = shardOf(i, s);
        checksums[s].add(std::span(tensor).subspan(shard.begin, shard.bytes()));
      }
    }
    for (uint64_t s = 0; s < kSamplers; ++s) {
      const StepHeader header{step, checksums[s].value()};
      PEERLANE_RETURN_IF_ERROR(fill(weights_, s * kTensorAlignment, bytesOf(header)));
    }
    return Status::ok();
  }

  Status publish(uint64_t step) {
    std::vector<Transfer> moving;
    for (Sampler& sampler : samplers_) {
      // The buffer holds the weights of step - 2, which may still be in use.
      if (step > kBuffers) PEERLANE_RETURN_IF_ERROR(sampler.done->wait(step - kBuffers, kPatience));
      const Clock::time_point start = Clock::now();
      PEERLANE_ASSIGN(Transfer transfer, sampler.plans[step % kBuffers].post());
      moving.push_back(std::move(transfer));
      seconds_ += secondsSince(start);
    }
    const Clock::time_point start = Clock::now();
    for (const Transfer& transfer : moving) PEERLANE_RETURN_IF_ERROR(transfer.wait(kPatience));
    seconds_ += secondsSince(start);
    for (const uint64_t bytes : kTensorBytes) bytes_ += bytes;
    bytes_ += kSamplers * sizeof(StepHeader);
    return Status::ok();
  }

  const Layout layout_ = fullLayout();
  std::unique_ptr<peerlane::Context> context_;
  Region weights_;
  std::array<Sampler, kSamplers> samplers_;
  uint64_t bytes_ = 0;
  double seconds_ = 0;  // posting and waiting for the end of it
};

// ---- A sampler

class Sampler {
 public:
  explicit Sampler(uint64_t number) : number_(number), layout_(shardLayout(number)) {}

  // It comes when it likes; a further one could join a trainer that is at work.
  Status start(const peerlane::Device& device, const std::string& ticket) {
    PEERLANE_ASSIGN(context_, contextOn(device));
    PEERLANE_ASSIGN(weights_, allocateOn(*context_, device, kBuffers * layout_.span,
                                         peerlane::Access::kRemoteWrite));
    PEERLANE_ASSIGN(trainer_, context_->connect(ticket, kPatience));
    return trainer_.sendMessage(0, bytesOf(Hello{number_, weights_.share()}));
  }

  Status run(uint64_t steps) {
    PEERLANE_ASSIGN(const Signal arrived, Signal::create(trainer_, kStepSignal));
    for (uint64_t step = 1; step <= steps; ++step) {
      PEERLANE_RETURN_IF_ERROR(arrived.wait(step, kPatience));
      PEERLANE_RETURN_IF_ERROR(check(step, "arrived"));
      // Here it would generate; the next step may arrive meanwhile, in the other buffer.
      PEERLANE_RETURN_IF_ERROR(check(step, "were used"));
      PEERLANE_ASSIGN(const Transfer told, peerlane::addSignal(trainer_, kDoneSignal));
      PEERLANE_RETURN_IF_ERROR(told.wait(kPatience));
    }
    std::printf(
        "sampler %llu: %llu steps of %.1f MB, each as the trainer made it until it was used\n",
        static_cast<unsigned long long>(number_), static_cast<unsigned long long>(steps),
        static_cast<double>(layout_.span) / 1e6);
    return Status::ok();
  }

 private:
  Status check(uint64_t step, const char* when) {
    const uint64_t base = step % kBuffers * layout_.span;
    StepHeader header;
    PEERLANE_RETURN_IF_ERROR(look(weights_, base, std::as_writable_bytes(std::span(&header, 1))));
    Checksum checksum;
    for (uint64_t i = 0; i < kTensors; ++i) {
      shard_.resize(layout_.bytes[i]);
      PEERLANE_RETURN_IF_ERROR(look(weights_, base + layout_.offset[i], shard_));
      checksum.add(shard_);
    }
    if (header.step == step && header.checksum == checksum.value()) return Status::ok();
    return Status(Code::kCorrupt, "step " + std::to_string(step) +
                                      ": other weights are there when they " + when +
                                      "; their header says step " + std::to_string(header.step));
  }

  const uint64_t number_;
  const Layout layout_;
  std::unique_ptr<peerlane::Context> context_;
  Peer trainer_;
  Region weights_;
  std::vector<std::byte> shard_;
};

Status runTrainer(const Options& options, TicketPipes& tickets) {
  Trainer trainer;
  PEERLANE_RETURN_IF_ERROR(trainer.start(options.devices.at("trainer"), tickets));
  return trainer.run(options.count);
}

Status runSampler(const Options& options, TicketPipes& tickets, uint64_t number) {
  PEERLANE_ASSIGN(const std::string ticket, tickets.take(number));
  Sampler sampler(number);
  PEERLANE_RETURN_IF_ERROR(
      sampler.start(options.devices.at("sampler" + std::to_string(number)), ticket));
  return sampler.run(options.count);
}

}  // namespace

int main(int argc, char** argv) {
  const auto options = parse(argc, argv, "--steps", 20, {"trainer", "sampler0", "sampler1"});
  if (!options) {
    std::fprintf(stderr, "%s\n", options.status().toString().c_str());
    return 2;
  }
  TicketPipes tickets(kSamplers);
  return runRoles({{"trainer", [&] { return runTrainer(*options, tickets); }},
                   {"sampler 0", [&] { return runSampler(*options, tickets, 0); }},
                   {"sampler 1", [&] { return runSampler(*options, tickets, 1); }}},
                  tickets);
}
