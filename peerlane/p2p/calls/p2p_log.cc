// SPDX-License-Identifier: Apache-2.0
//
// p2p.h: the call that hands the lines of the log to the program.
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <string_view>

#include "peerlane/core/log_level.h"
#include "peerlane/p2p.h"
#include "peerlane/p2p/result_code.h"

namespace peerlane::p2p {
namespace {

// Once in a process, because a callback that threw may throw at every line. To standard error: the
// log would call the callback again.
void sayThatItThrew() noexcept {
  static std::atomic_flag said;
  if (said.test_and_set()) return;
  constexpr std::string_view kText =
      "peerlane: the function of P2PSetLogCallback threw an exception, which ends here; functions "
      "of C do not throw. This is said once.\n";
  (void)!::write(STDERR_FILENO, kText.data(), kText.size());
}

// Hands a line to the program's callback; an exception of the callback ends here.
void passOn(P2pLogCallback callback, LogLevel level, std::string_view where,
            std::string_view text) {
  const size_t colon = where.rfind(':');
  const std::string file(where.substr(0, colon));
  const int line =
      colon == std::string_view::npos ? 0 : std::atoi(std::string(where.substr(colon + 1)).c_str());
  P2pLogSeverity severity = P2P_LOG_INFO;
  if (level == LogLevel::kError) severity = P2P_LOG_ERROR;
  if (level == LogLevel::kWarn) severity = P2P_LOG_WARNING;
  const int detail = static_cast<int>(level) - static_cast<int>(LogLevel::kWarn);
  const std::string message(text);
  try {
    callback(severity, severity == P2P_LOG_INFO ? detail : -1, file.c_str(), line, message.c_str());
  } catch (...) {
    sayThatItThrew();
  }
}

}  // namespace
}  // namespace peerlane::p2p

using namespace peerlane;
using namespace peerlane::p2p;

void P2PSetLogCallback(P2pLogCallback callback) {
  (void)answer([&]() -> Answer {
    if (callback == nullptr) {
      setLogSink(nullptr);
      return Status::ok();
    }
    setLogSink([callback](LogLevel level, std::string_view where, std::string_view text) {
      passOn(callback, level, where, text);
    });
    return Status::ok();
  });
}
