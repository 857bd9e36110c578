// SPDX-License-Identifier: Apache-2.0
//
// Every interleaving of a port channel: threads of a device, its proxy, and the peer. A branch that
// a thread takes by what it reads is explored as one scenario for each way: `done` far enough, then
// inline; and by the proxy, at whatever moment. Nobody here sleeps: threads spin, and the proxy
// naps for a bounded time.
#include "explore/port_protocol.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "explore/explorer.h"
#include "explore/explorer_mutants.h"

namespace peerlane::explorer {
namespace {

constexpr uint64_t kBytes = 32;

struct PortPrograms {
  Program push, pushLong;
  Program pop, popLong;
  Program put;
  Program storeSignal;
  Program storeDone;
  Program signalInline;
  Program await;
};

PortPrograms programsOf(uint32_t slots) {
  // A ring of one slot takes no long request.
  const uint32_t most = slots > 1 ? kPortMostHalves : 1;
  return {portPush(slots, 1),   portPush(slots, most), portPop(slots, 1),
          portPop(slots, most), portPut(kBytes),       portStoreSignal(),
          portStoreDone(),      portSignalInline(),    portAwait()};
}

struct Semaphore {
  Range first, second, done;
  uint32_t added = 0;   // inline
  uint32_t stored = 0;  // by the proxy
  uint32_t last = 0;    // position behind its last request
};

struct Request {
  uint32_t halves = 1;
  bool puts = false;
  Range to{}, from{};
  bool signals = false;
  bool publishes = false;  // `done` behind it: flush, or the proxy has nothing else to do
};

// One service: a FIFO and its proxy.
struct Port {
  int side = 0;
  uint32_t slots = 2;
  size_t proxy = 0;
  Range ring, tail, taken;
  uint32_t position = 0;
};

class World {
 public:
  explicit World(const PortPrograms& programs) : programs_(programs) {}

  Range area(const std::string& name, int side, uint64_t bytes = kBytes) {
    scenario_.areas.push_back({name, side, bytes});
    return {static_cast<uint32_t>(scenario_.areas.size() - 1), 0, bytes};
  }
  size_t actor(const std::string& name, int side) {
    scenario_.actors.push_back({name, side, {}});
    return scenario_.actors.size() - 1;
  }
  Port port(int side, uint32_t slots) {
    const std::string name = std::to_string(side);
    return {.side = side,
            .slots = slots,
            .proxy = actor("proxy" + name, side),
            .ring = area("slots" + name, side, uint64_t{slots} * kPortSlotStrideBytes),
            .tail = area("tail" + name, side, sizeof(uint64_t)),
            .taken = area("taken" + name, side, kPortMostHalves * kPortSlotBytes)};
  }
  Semaphore semaphore(int side, const std::string& name = "") {
    return {.first = area("first" + name, 1 - side, sizeof(uint64_t)),
            .second = area("second" + name, 1 - side, sizeof(uint64_t)),
            .done = area("done" + name, side, sizeof(uint64_t))};
  }

  // The user's own threads.
  Execution& run(size_t actor, const Program& program, std::vector<uint64_t> cursors,
                 std::vector<Range> targets) {
    auto& executions = scenario_.actors[actor].executions;
    executions.push_back({.program = &program,
                          .cursors = std::move(cursors),
                          .targets = std::move(targets),
                          .keepsBuffers = true});
    return executions.back();
  }
  void fill(size_t actor, const Range& range, uint32_t message) {
    static const Program nothing = ProgramBuilder("write").build();
    run(actor, nothing, {}, {}).fills = {{range, message}};
  }
  // Reads in its own time, as copies do: what comes next need not wait for it.
  void read(size_t actor, const Range& buffer, const Range& place) {
    static const Program read = [] {
      ProgramBuilder program("read");
      program.local("buffer");
      program.local("place");
      program.copy({.target = 0}, {.target = 1}, kBytes);
      return program.build();
    }();
    run(actor, read, {}, {buffer, place}).fills = {{buffer, 0}};
  }
  void tell(size_t actor, const Range& flag, uint32_t value) {
    static const Program tell = [] {
      ProgramBuilder program("tell");
      program.cursor(1);
      program.local("flag");
      program.store({.target = 0}, {.cursor = 0}, Order::kRelease);
      return program.build();
    }();
    run(actor, tell, {value}, {flag});
  }

  // What threads of the device do.
  void push(Port& port, size_t pusher, Semaphore& semaphore, const Request& what) {
    const uint32_t number = pushOnly(port, pusher, what.halves);
    take(port, what.halves, number);
    carryOut(port, semaphore, what);
  }
  // In the order of the claims: `pusher` has the next position. Returns what tells its request.
  uint32_t pushOnly(Port& port, size_t pusher, uint32_t halves) {
    return pushByRoom(port, pusher, halves, port.tail);
  }
  uint32_t pushByRoom(Port& port, size_t pusher, uint32_t halves, const Range& tail) {
    if (requests_.size() <= pusher) requests_.resize(pusher + 1);
    Range& request = requests_[pusher];
    if (request.bytes == 0) request = area("request", port.side, kPortMostHalves * kPortSlotBytes);
    request.bytes = uint64_t{halves} * kPortSlotBytes;
    Execution& execution = run(pusher, halves == 1 ? programs_.push : programs_.pushLong,
                               cursorsOf(port), {request, port.ring, tail});
    execution.fills = {{request, ++number_}};
    execution.keepsBuffers = false;
    return number_;
  }
  void await(size_t actor, const Range& word, uint32_t value, std::vector<Tagged> expects = {}) {
    run(actor, programs_.await, {value - 1}, {word}).expects = std::move(expects);
  }
  void putInline(size_t actor, const Range& to, const Range& from) {
    run(actor, programs_.put, {}, {to, from});
  }
  void signalInline(size_t actor, Semaphore& semaphore, uint32_t pushed,
                    std::vector<Tagged> expects = {}) {
    ++semaphore.added;
    run(actor, programs_.signalInline, {pushed}, {semaphore.done, semaphore.first}).expects =
        std::move(expects);
  }

  // What the proxy does.
  void take(Port& port, uint32_t halves, uint32_t number) {
    Range taken = port.taken;
    taken.bytes = uint64_t{halves} * kPortSlotBytes;
    run(port.proxy, halves == 1 ? programs_.pop : programs_.popLong, cursorsOf(port),
        {port.ring, taken, port.tail})
        .expects = {{taken, number}};
    port.position += halves;
  }
  void carryOut(Port& port, Semaphore& semaphore, const Request& what) {
    semaphore.last = port.position;
    if (what.puts) run(port.proxy, programs_.put, {}, {what.to, what.from});
    if (what.signals)
      run(port.proxy, programs_.storeSignal, {semaphore.stored++}, {semaphore.second});
    if (what.publishes) publish(port, semaphore);
  }
  void publish(const Port& port, const Semaphore& semaphore) {
    run(port.proxy, programs_.storeDone, {semaphore.last}, {semaphore.done});
  }

  void ends(const Port& port) { scenario_.finals.push_back({port.tail, port.position}); }
  void ends(const Semaphore& semaphore, uint32_t done) {
    scenario_.finals.insert(scenario_.finals.end(), {{semaphore.first, semaphore.added},
                                                     {semaphore.second, semaphore.stored},
                                                     {semaphore.done, done}});
  }
  Scenario build() { return std::move(scenario_); }

 private:
  static std::vector<uint64_t> cursorsOf(const Port& port) {
    return {port.position, port.position / port.slots, (port.position + 1) / port.slots};
  }

  const PortPrograms& programs_;
  Scenario scenario_;
  std::vector<Range> requests_;  // by actor
  uint32_t number_ = 0;
};

struct Case {
  const char* name;
  uint32_t slots;
  std::function<Scenario(const PortPrograms&, uint32_t slots)> scenario;
};

// One place and one source for all rounds: the peer's answer says that both may be used again.
Scenario withAnswers(const PortPrograms& programs, uint32_t slots) {
  World world(programs);
  Port port = world.port(0, slots);
  Semaphore there = world.semaphore(0);
  Semaphore back = world.semaphore(1, ".back");
  const size_t device = world.actor("device", 0), peer = world.actor("peer", 1);
  const Range source = world.area("source", 0), place = world.area("place", 1);
  const Range buffer = world.area("buffer", 1);
  for (uint32_t round = 1; round <= 3; ++round) {
    world.fill(device, source, round);
    world.push(port, device, there, {.puts = true, .to = place, .from = source, .signals = true});
    world.await(device, back.first, round);
    world.await(peer, there.second, round);
    world.read(peer, buffer, place);
    world.signalInline(peer, back, 0, {{buffer, round}});
  }
  world.fill(device, source, kLastMessage);
  world.publish(port, there);
  world.ends(port);
  world.ends(there, there.last);
  world.ends(back, 0);
  return world.build();
}

// The same without a proxy.
Scenario inlineOnly(const PortPrograms& programs, uint32_t) {
  World world(programs);
  Semaphore there = world.semaphore(0);
  Semaphore back = world.semaphore(1, ".back");
  const size_t device = world.actor("device", 0), peer = world.actor("peer", 1);
  const Range source = world.area("source", 0), place = world.area("place", 1);
  const Range buffer = world.area("buffer", 1);
  for (uint32_t round = 1; round <= 3; ++round) {
    world.fill(device, source, round);
    world.putInline(device, place, source);
    world.signalInline(device, there, 0);
    // Before the answer: the source may be written as soon as the call has returned.
    world.fill(device, source, kLastMessage);
    world.await(device, back.first, round);
    world.await(peer, there.first, round);
    world.read(peer, buffer, place);
    world.signalInline(peer, back, 0, {{buffer, round}});
  }
  world.ends(there, 0);
  world.ends(back, 0);
  return world.build();
}

// Each side's put answers the other's: both threads, both proxies.
Scenario bothWays(const PortPrograms& programs, uint32_t slots) {
  World world(programs);
  Port ports[] = {world.port(0, slots), world.port(1, slots)};
  Semaphore semaphores[] = {world.semaphore(0, "0"), world.semaphore(1, "1")};
  const size_t devices[] = {world.actor("device0", 0), world.actor("device1", 1)};
  Range sources[2], places[2], buffers[2];  // each side's
  for (int side = 0; side < 2; ++side) {
    sources[side] = world.area("source" + std::to_string(side), side);
    places[side] = world.area("place" + std::to_string(side), side);
    buffers[side] = world.area("buffer" + std::to_string(side), side);
  }
  const auto send = [&](int side, uint32_t message) {
    world.fill(devices[side], sources[side], message);
    world.push(ports[side], devices[side], semaphores[side],
               {.puts = true, .to = places[1 - side], .from = sources[side], .signals = true});
  };
  const auto receive = [&](int side, uint32_t message) {
    world.await(devices[side], semaphores[1 - side].second, message);
    world.read(devices[side], buffers[side], places[side]);
  };
  for (uint32_t message = 1; message <= 2; ++message) {
    send(0, message);
    receive(1, message);
    send(1, message);
    receive(0, message);
  }
  for (int side = 0; side < 2; ++side) {
    world.ends(ports[side]);
    world.ends(semaphores[side], 0);
  }
  return world.build();
}

// Two pushers with a semaphore each, in the order in which they claim positions; `done` is told
// when all is carried out. Then both go on inline.
Scenario twoPushers(const PortPrograms& programs, uint32_t slots, const std::vector<int>& claims) {
  World world(programs);
  Port port = world.port(0, slots);
  Semaphore semaphores[] = {world.semaphore(0, "0"), world.semaphore(0, "1")};
  const size_t devices[] = {world.actor("device0", 0), world.actor("device1", 0)};
  const size_t peer = world.actor("peer", 1);
  std::vector<Tagged> arrived[2];
  Range sources[2];
  for (int i = 0; i < 2; ++i) {
    sources[i] = world.area("source" + std::to_string(i), 0);
    world.fill(devices[i], sources[i], static_cast<uint32_t>(i) + 1);
  }
  for (size_t i = 0; i < claims.size(); ++i) {
    const int who = claims[i];
    // Puts of the first and the last lap only: what is between is about the ring.
    Request request{.signals = true};
    if (i < 2 || i + 2 >= claims.size()) {
      request.puts = true;
      request.to = world.area("place" + std::to_string(i), 1);
      request.from = sources[who];
      arrived[who].push_back({request.to, static_cast<uint32_t>(who) + 1});
    }
    world.push(port, devices[who], semaphores[who], request);
  }
  for (int i = 0; i < 2; ++i) {
    world.publish(port, semaphores[i]);
    world.signalInline(devices[i], semaphores[i], semaphores[i].last);
    world.fill(devices[i], sources[i], kLastMessage);
    world.await(peer, semaphores[i].first, 1, arrived[i]);
    world.await(peer, semaphores[i].second, semaphores[i].stored);
    world.ends(semaphores[i], semaphores[i].last);
  }
  world.ends(port);
  return world.build();
}

// A pusher relies on what another has read of the tail (`tailSeen`).
Scenario roomLearned(const PortPrograms& programs, uint32_t slots) {
  static const Program learn = [] {
    ProgramBuilder program("learn");
    program.cursor(1);
    program.local("tail");
    program.local("tailSeen");
    program.wait({.target = 0}, {.cursor = 0}).store({.target = 1}, {.cursor = 0}, Order::kRelaxed);
    return program.build();
  }();
  World world(programs);
  Port port = world.port(0, slots);
  Semaphore semaphore = world.semaphore(0);
  const size_t device = world.actor("device", 0), reader = world.actor("reader", 0);
  const Range tailSeen = world.area("tailSeen", 0, 8);
  for (uint32_t i = 0; i < 3 * slots; ++i) {
    world.run(reader, learn, {i}, {port.tail, tailSeen});
    const uint32_t number = world.pushByRoom(port, device, 1, tailSeen);
    world.take(port, 1, number);
    world.carryOut(port, semaphore, {.signals = true});
  }
  world.ends(port);
  world.ends(semaphore, 0);
  return world.build();
}

// Requests of both lengths: a long one may begin in one lap and end in the next, and fills a ring
// of two alone.
Scenario longRequests(const PortPrograms& programs, uint32_t slots, bool byTwo) {
  World world(programs);
  Port port = world.port(0, slots);
  Semaphore semaphore = world.semaphore(0);
  const size_t devices[] = {world.actor("device0", 0), world.actor("device1", 0)};
  const size_t peer = world.actor("peer", 1);
  const Range source = world.area("source", 0), place = world.area("place", 1);
  const uint32_t halves[] = {1, 2, 2, 1, 2};
  for (uint32_t i = 0; i < std::size(halves); ++i) {
    const size_t pusher = devices[byTwo ? i % 2 : 0];
    Request request{.halves = halves[i], .signals = true};
    if (i == 2) {
      world.fill(pusher, source, 1);
      request.puts = true;
      request.to = place;
      request.from = source;
    }
    world.push(port, pusher, semaphore, request);
  }
  world.await(peer, semaphore.second, 3, {{place, 1}});
  world.ends(port);
  world.ends(semaphore, 0);
  return world.build();
}

// What was flushed is at the peer, and its source may be written; by another thread, too, which
// learned of it from the one that flushed.
Scenario flushed(const PortPrograms& programs, uint32_t slots, bool tellsAnother) {
  World world(programs);
  Port port = world.port(0, slots);
  Semaphore semaphore = world.semaphore(0);
  const size_t device = world.actor("device", 0);
  const size_t other = tellsAnother ? world.actor("other", 0) : device;
  const Range source = world.area("source", 0);
  const Range told = world.area("told", 0, 8), ready = world.area("ready", 0, 8);
  for (uint32_t round = 1; round <= 3; ++round) {
    const Range place = world.area("place" + std::to_string(round), 1);
    world.fill(other, source, round);
    if (tellsAnother) {
      world.tell(other, ready, round);
      world.await(device, ready, round);
    }
    world.push(port, device, semaphore, {.puts = true, .to = place, .from = source});
    world.push(port, device, semaphore, {.publishes = true});
    world.await(device, semaphore.done, semaphore.last, {{place, round}});
    if (tellsAnother) {
      world.tell(device, told, round);
      world.await(other, told, round, {{place, round}});
    }
    world.fill(other, source, kLastMessage);
  }
  world.ends(port);
  world.ends(semaphore, semaphore.last);
  return world.build();
}

struct Mixed {
  uint32_t puts = 1;       // by the proxy in each round, which tells `done` once for all of them
  bool byAnother = false;  // a thread that was told behind the push goes on inline
  bool apart = false;      // requests of another semaphore in between
};

// A thread puts by the proxy and, behind that, inline; it finds `done` far enough and signals
// inline.
Scenario inlineAfterProxied(const PortPrograms& programs, uint32_t slots, const Mixed& how) {
  World world(programs);
  Port port = world.port(0, slots);
  Semaphore semaphore = world.semaphore(0);
  Semaphore another = world.semaphore(0, ".another");
  const size_t device = world.actor("device", 0), peer = world.actor("peer", 1);
  const size_t signaller = how.byAnother ? world.actor("signaller", 0) : device;
  const Range told = world.area("told", 0, 8);
  std::vector<Tagged> arrived;
  uint32_t message = 0;
  const auto fillNext = [&](size_t actor, Range& place) {
    const std::string name = std::to_string(++message);
    const Range source = world.area("source" + name, 0);
    place = world.area("place" + name, 1);
    world.fill(actor, source, message);
    arrived.push_back({place, message});
    return source;
  };
  for (uint32_t round = 1; round <= 2; ++round) {
    Range place;
    for (uint32_t i = 0; i < how.puts; ++i) {
      const Range source = fillNext(device, place);
      world.push(port, device, semaphore, {.puts = true, .to = place, .from = source});
      if (how.apart) world.push(port, device, another, {.signals = true});
    }
    world.publish(port, semaphore);
    if (how.byAnother) {
      world.tell(device, told, round);
      world.await(signaller, told, round);
    }
    const Range source = fillNext(signaller, place);
    world.putInline(signaller, place, source);
    world.signalInline(signaller, semaphore, semaphore.last);
    world.await(peer, semaphore.first, round, arrived);
  }
  world.ends(port);
  world.ends(semaphore, semaphore.last);
  world.ends(another, 0);
  return world.build();
}

// The same, but it finds requests under way, and signals by the proxy; or would have found none:
// the proxy may be asked all the same.
Scenario proxiedAfterInline(const PortPrograms& programs, uint32_t slots) {
  World world(programs);
  Port port = world.port(0, slots);
  Semaphore semaphore = world.semaphore(0);
  const size_t device = world.actor("device", 0), peer = world.actor("peer", 1);
  std::vector<Tagged> arrived;
  for (uint32_t round = 1; round <= 2; ++round) {
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t message = round * 2 + i;
      const Range source = world.area("source" + std::to_string(message), 0);
      const Range place = world.area("place" + std::to_string(message), 1);
      world.fill(device, source, message);
      if (i == 0)
        world.push(port, device, semaphore, {.puts = true, .to = place, .from = source});
      else
        world.putInline(device, place, source);
      arrived.push_back({place, message});
    }
    world.push(port, device, semaphore, {.signals = true});
    world.await(peer, semaphore.second, round, arrived);
  }
  world.ends(port);
  world.ends(semaphore, 0);
  return world.build();
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"inline only", 1, inlineOnly},
      {"with answers", 1, withAnswers},
      {"with answers", 2, withAnswers},
      {"flush", 1, [](auto& p, uint32_t n) { return flushed(p, n, false); }},
      {"flush", 2, [](auto& p, uint32_t n) { return flushed(p, n, false); }},
      {"flush, another writes", 2, [](auto& p, uint32_t n) { return flushed(p, n, true); }},
      {"inline after proxied", 2, [](auto& p, uint32_t n) { return inlineAfterProxied(p, n, {}); }},
      {"inline after two proxied", 2,
       [](auto& p, uint32_t n) { return inlineAfterProxied(p, n, {.puts = 2}); }},
      {"inline by another", 2,
       [](auto& p, uint32_t n) { return inlineAfterProxied(p, n, {.byAnother = true}); }},
      {"inline after proxied, two semaphores", 2,
       [](auto& p, uint32_t n) { return inlineAfterProxied(p, n, {.puts = 2, .apart = true}); }},
      {"proxied after inline", 2, proxiedAfterInline},
      {"long requests", 2, [](auto& p, uint32_t n) { return longRequests(p, n, false); }},
      {"long requests by two", 2, [](auto& p, uint32_t n) { return longRequests(p, n, true); }},
      {"long requests by two", 4, [](auto& p, uint32_t n) { return longRequests(p, n, true); }},
      {"room learned from another", 2, roomLearned},
      {"two pushers in turn", 2,
       [](auto& p, uint32_t n) {
         return twoPushers(p, n, {0, 1, 0, 1, 0, 1});
       }},
      {"two pushers, two at a time", 2,
       [](auto& p, uint32_t n) {
         return twoPushers(p, n, {0, 0, 1, 1, 0, 1});
       }},
      {"both ways", 2, bothWays},
  };
  return all;
}

void exploreAll(const std::function<bool(const Case&)>& isWanted,
                const std::function<void(Scenario&)>& change) {
  uint64_t states = 0;
  for (const Case& c : cases()) {
    if (!isWanted(c)) continue;
    const PortPrograms programs = programsOf(c.slots);
    Scenario scenario = c.scenario(programs, c.slots);
    change(scenario);
    const ExplorerReport report = explore(scenario);
    EXPECT_TRUE(report.ok()) << c.name << ", " << c.slots << " slots: " << report.toString();
    states += report.states;
  }
  testing::Test::RecordProperty("states", static_cast<int>(states));
}

bool isAny(const Case&) {
  return true;
}

TEST(PortProtocol, IsRight) {
  exploreAll(isAny, [](Scenario&) {});
}

TEST(PortProtocol, IsRightWithoutReduction) {
  exploreAll(isAny, [](Scenario& scenario) { scenario.reduce = false; });
}

// The end of the peer, or of the service, releases every wait, at any moment. In larger rings it
// has a million moments to choose from.
TEST(PortProtocol, IsReleasedByPoison) {
  exploreAll([](const Case& c) { return c.slots <= 2; },
             [](Scenario& scenario) { scenario.poisoning = Poisoning::kUntilDrained; });
}

// Requests are taken in the order of their positions, those of healthy semaphores behind those of
// ended ones. So a pusher that has claimed a position may not give up.
TEST(PortProtocol, APositionThatIsNotWrittenStopsAllBehindIt) {
  const PortPrograms programs = programsOf(2);
  for (const bool givesUp : {false, true}) {
    World world(programs);
    Port port = world.port(0, 2);
    Semaphore ended = world.semaphore(0, ".ended");
    Semaphore healthy = world.semaphore(0, ".healthy");
    const size_t devices[] = {world.actor("device0", 0), world.actor("device1", 0)};
    const size_t peer = world.actor("peer", 1);
    for (int i = 0; i < 2; ++i) world.push(port, devices[0], ended, {});
    if (givesUp)
      world.take(port, 1, 3);
    else
      world.push(port, devices[0], ended, {});
    world.push(port, devices[1], healthy, {.signals = true});
    world.await(peer, healthy.second, 1);
    EXPECT_EQ(explore(world.build()).violation, givesUp ? Violation::kDeadlock : Violation::kNone);
  }
}

// Each mutant of those programs of `two` is caught by a case. Returns how many there are. `make`:
// the programs of a case; `stage`: its scenario with them.
template <class Programs, class Cases, class Make, class Stage>
int expectMutantsCaught(const std::vector<Program Programs::*>& members, const Programs& two,
                        const Cases& cases, const Make& make, const Stage& stage) {
  int mutants = 0;
  for (const auto member : members)
    for (const Mutant& wanted : mutantsOf(two.*member)) {
      ++mutants;
      bool isCaught = false;
      for (const auto& c : cases) {
        Programs programs = make(c);
        for (Mutant& mutant : mutantsOf(programs.*member)) {
          if (mutant.what != wanted.what) continue;
          programs.*member = std::move(mutant.program);
          const ExplorerReport report = explore(stage(programs, c));
          isCaught = report.violation != Violation::kNone;
          EXPECT_NE(report.violation, Violation::kBadScenario) << report.what;
          break;
        }
        if (isCaught) break;
      }
      EXPECT_TRUE(isCaught) << wanted.what;
    }
  return mutants;
}

TEST(PortProtocol, EveryMutantIsCaught) {
  RecordProperty("mutants",
                 expectMutantsCaught<PortPrograms>(
                     {&PortPrograms::push, &PortPrograms::pushLong, &PortPrograms::pop,
                      &PortPrograms::popLong, &PortPrograms::put, &PortPrograms::storeSignal,
                      &PortPrograms::storeDone, &PortPrograms::signalInline, &PortPrograms::await},
                     programsOf(2), cases(), [](const Case& c) { return programsOf(c.slots); },
                     [](const PortPrograms& programs, const Case& c) {
                       return c.scenario(programs, c.slots);
                     }));
}

// --- The resident port ---

struct ResidentPrograms {
  Program push, serve, finish, overtaken, await;
};
constexpr uint32_t kBlocks = 2;
constexpr uint64_t kShare = 8, kWhole = kShare * kBlocks;

ResidentPrograms residentOf(uint32_t slots) {
  return {residentPush(slots), residentServe(slots, kShare), residentFinish(kBlocks, true),
          residentFinish(kBlocks, false), portAwait()};
}

// How `rounds` requests come and go. `lasts`: which block is the last of each. Where it is another
// one than that of the next request, what it raises comes too late.
struct ResidentCase {
  const char* name;
  uint32_t slots;
  std::vector<uint32_t> lasts;
  bool flushes = false;  // the pusher waits for `done` and writes its source again
};

const std::vector<ResidentCase>& residentCases() {
  static const std::vector<ResidentCase> all = {
      {"one slot", 1, {0, 0, 0}},   {"one slot, flush", 1, {1, 1}, true},
      {"two slots", 2, {0, 0}},     {"two slots, flush", 2, {1, 1, 1}, true},
      {"lasts in turn", 2, {0, 1}}, {"lasts in turn, flush", 2, {1, 0, 1}, true},
  };
  return all;
}

Scenario residentScenario(const ResidentPrograms& programs, const ResidentCase& how) {
  static const PortPrograms port = programsOf(1);
  World world(port);
  const Range slots = world.area("slots", 0, uint64_t{how.slots} * kPortSlotStrideBytes);
  const Range tail = world.area("tail", 0, 8), served = world.area("served", 0, 8);
  const Range done = world.area("done", 0, 8), first = world.area("first", 1, 8);
  const Range request = world.area("request", 0, kPortSlotBytes);
  const size_t device = world.actor("device", 0), peer = world.actor("peer", 1);
  size_t blocks[kBlocks];
  Range taken[kBlocks];
  for (uint32_t i = 0; i < kBlocks; ++i) {
    blocks[i] = world.actor("block" + std::to_string(i), 0);
    taken[i] = world.area("taken" + std::to_string(i), 0, kPortSlotBytes);
  }
  const Range source = world.area("source", 0, kWhole);
  std::vector<Tagged> arrived;
  const auto requests = static_cast<uint32_t>(how.lasts.size());
  for (uint32_t i = 0; i < requests; ++i) {
    const uint32_t number = i + 1, lap = i / how.slots;
    const Range from = how.flushes ? source : world.area("source" + std::to_string(i), 0, kWhole);
    const Range to = world.area("place" + std::to_string(i), 1, kWhole);
    world.fill(device, from, number);
    Execution& push = world.run(device, programs.push, {i, lap}, {request, slots, tail});
    push.fills = {{request, number}};
    push.keepsBuffers = false;
    if (how.flushes) {
      world.run(device, programs.await, {i}, {done});
      world.fill(device, from, kLastMessage);
    }
    for (uint32_t block = 0; block < kBlocks; ++block) {
      const auto share = [&](Range whole) {
        whole.offset += block * kShare;
        whole.bytes = kShare;
        return whole;
      };
      world
          .run(blocks[block], programs.serve, {i, lap},
               {slots, taken[block], share(to), share(from), served})
          .expects = {{taken[block], number}};
    }
    const bool raises = how.flushes || i + 1 == requests || how.lasts[i] == how.lasts[i + 1];
    world.run(blocks[how.lasts[i]], raises ? programs.finish : programs.overtaken,
              {uint64_t{i} * kBlocks, i}, {served, first, done, tail});
    arrived.push_back({to, number});
    // A signal covers all requests before it, whoever was the last of them.
    if (how.lasts[i] == how.lasts[0] || i + 1 == requests)
      world.run(peer, programs.await, {i}, {first}).expects = arrived;
  }
  Scenario scenario = world.build();
  scenario.finals = {{served, uint64_t{requests} * kBlocks},
                     {first, requests},
                     {done, requests},
                     {tail, requests}};
  return scenario;
}

TEST(ResidentPortProtocol, IsRight) {
  uint64_t states = 0;
  for (const ResidentCase& how : residentCases()) {
    const ResidentPrograms programs = residentOf(how.slots);
    const ExplorerReport report = explore(residentScenario(programs, how));
    EXPECT_TRUE(report.ok()) << how.name << ": " << report.toString();
    states += report.states;
  }
  RecordProperty("states", static_cast<int>(states));
}

TEST(ResidentPortProtocol, EveryMutantIsCaught) {
  RecordProperty(
      "mutants",
      expectMutantsCaught<ResidentPrograms>(
          {&ResidentPrograms::push, &ResidentPrograms::serve, &ResidentPrograms::finish},
          residentOf(2), residentCases(),
          [](const ResidentCase& how) { return residentOf(how.slots); }, residentScenario));
}

}  // namespace
}  // namespace peerlane::explorer
