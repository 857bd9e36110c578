// SPDX-License-Identifier: Apache-2.0
//
// Awaited: the words for the thing that a call waits for, as its timeout error and dumps show them:
// "signal 7 of peer 1 (process 12) to reach 5; it is 4". It refers to a callable of the caller's,
// so a wait that ends in time builds no text.
#pragma once

#include <chrono>
#include <concepts>
#include <string>
#include <type_traits>

namespace peerlane {

class Awaited {
 public:
  Awaited() = default;
  // `words` outlives the wait. The waiting thread calls it at the timeout, and a thread that makes
  // a dump calls it during the wait, both while no turn is under way. So `words` may read state
  // that turns write. It must not take a lock under which other code calls the engine.
  template <std::invocable Words>
  requires(!std::same_as<std::remove_cvref_t<Words>, Awaited>)
      // NOLINTNEXTLINE(google-explicit-constructor): a lambda is given where a wait asks for words
      Awaited(const Words& words)
      : words_(&words),
        textOf_([](const void* of) -> std::string { return (*static_cast<const Words*>(of))(); }) {}

  explicit operator bool() const { return textOf_ != nullptr; }
  std::string text() const { return textOf_(words_); }

 private:
  const void* words_ = nullptr;
  std::string (*textOf_)(const void*) = nullptr;
};

// "80 us", "512 ms", "12.3 s", or "no end" for a duration so long that it means that. Rounded, for
// people.
std::string durationInWords(std::chrono::nanoseconds duration);

}  // namespace peerlane
