// SPDX-License-Identifier: Apache-2.0
//
// Awaited: what a call waits for, in words, as its timeout and dumps say it: "signal 7 of peer 1
// (process 12) to reach 5; it is 4". It refers to a callable of the caller's, so a wait that ends
// in time builds no text.
#pragma once

#include <chrono>
#include <concepts>
#include <string>
#include <type_traits>

namespace peerlane {

class Awaited {
 public:
  Awaited() = default;
  // `words` outlives the wait. It is called by the waiting thread once its time is over, and by
  // whoever makes a dump while it waits, both while no turn is under way: it may look at what turns
  // write, and takes no lock under which anybody calls the engine.
  template <std::invocable Words>
  requires(!std::same_as<std::remove_cvref_t<Words>, Awaited>)
      // NOLINTNEXTLINE(google-explicit-constructor): a lambda is given where a wait asks for words
      Awaited(const Words& words)
      : words_(&words),
        say_([](const void* of) -> std::string { return (*static_cast<const Words*>(of))(); }) {}

  explicit operator bool() const { return say_ != nullptr; }
  std::string text() const { return say_(words_); }

 private:
  const void* words_ = nullptr;
  std::string (*say_)(const void*) = nullptr;
};

// "80 us", "512 ms", "12.3 s", "no end" for what is meant to be one: rounded, for people.
std::string durationInWords(std::chrono::nanoseconds duration);

}  // namespace peerlane
