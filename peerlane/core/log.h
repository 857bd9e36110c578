// SPDX-License-Identifier: Apache-2.0
//
// The log: one line per event to standard error, or to a function of the user. The level and the
// sink belong to the process, because its standard error does; they hold no other state. Never on
// the posting path. Thread-safe, also in static destructors and in a forked child.
#pragma once

#include <fmt/core.h>

#include <atomic>
#include <string_view>

#include "peerlane/core/log_level.h"

namespace peerlane {

namespace internal {
// Relaxed on both sides (setLogLevel, logEnabled): a line too many or too few around a change does
// no harm.
inline std::atomic<int> log_level{static_cast<int>(LogLevel::kWarn)};

// Formats and logs. `where` is "path/file.cc:12". Out of line, so that each use stays small.
void logFormatted(LogLevel level, std::string_view where, fmt::string_view format,
                  fmt::format_args arguments) noexcept;

template <typename... Arguments>
void logFormat(LogLevel level, std::string_view where, fmt::format_string<Arguments...> format,
               Arguments&&... arguments) noexcept {
  logFormatted(level, where, format, fmt::make_format_args(arguments...));
}
}  // namespace internal

inline bool logEnabled(LogLevel level) {
  return static_cast<int>(level) <= internal::log_level.load(std::memory_order_relaxed);
}

// Writes one line at any level; line breaks in `text` become "\n", so that input from outside
// cannot forge lines.
void logLine(LogLevel level, std::string_view where, std::string_view text) noexcept;

}  // namespace peerlane

#define PEERLANE_LOG_TEXT_INNER(x) #x
#define PEERLANE_LOG_TEXT(x) PEERLANE_LOG_TEXT_INNER(x)
// The arguments are evaluated only when the level is shown. The format is checked at compile time.
#define PEERLANE_LOG_AT(level, ...)                                                    \
  do {                                                                                 \
    if (::peerlane::logEnabled(level))                                                 \
      ::peerlane::internal::logFormat(level, __FILE__ ":" PEERLANE_LOG_TEXT(__LINE__), \
                                      __VA_ARGS__);                                    \
  } while (false)
#define PEERLANE_LOG_ERROR(...) PEERLANE_LOG_AT(::peerlane::LogLevel::kError, __VA_ARGS__)
#define PEERLANE_LOG_WARN(...) PEERLANE_LOG_AT(::peerlane::LogLevel::kWarn, __VA_ARGS__)
#define PEERLANE_LOG_INFO(...) PEERLANE_LOG_AT(::peerlane::LogLevel::kInfo, __VA_ARGS__)
#define PEERLANE_LOG_DEBUG(...) PEERLANE_LOG_AT(::peerlane::LogLevel::kDebug, __VA_ARGS__)
#define PEERLANE_LOG_TRACE(...) PEERLANE_LOG_AT(::peerlane::LogLevel::kTrace, __VA_ARGS__)
