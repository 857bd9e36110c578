// SPDX-License-Identifier: Apache-2.0
#include "peerlane/core/log.h"

#include <pthread.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <memory>
#include <string>
#include <utility>

#include "peerlane/core/mutex.h"

namespace peerlane {
namespace {

// One per process and never destroyed: static destructors of others may still log.
struct LogOutput {
  Mutex mutex;
  // The sink locks nothing itself.
  std::shared_ptr<spdlog::sinks::stderr_sink_st> standardError PEERLANE_GUARDED_BY(mutex);
  // Called after a copy was taken, outside of the mutex. Null: standard error.
  std::shared_ptr<const LogSink> userSink PEERLANE_GUARDED_BY(mutex);
};

LogOutput& output();
void holdOutput() PEERLANE_ACQUIRE(output().mutex) {
  output().mutex.lock();
}
void letOutput() PEERLANE_RELEASE(output().mutex) {
  output().mutex.unlock();
}

LogOutput& output() {
  static LogOutput* const made = [] {
    auto* fresh = new LogOutput;
    auto standardError = std::make_shared<spdlog::sinks::stderr_sink_st>();
    standardError->set_pattern("%Y-%m-%d %H:%M:%S.%e peerlane[%P] %v");
    {
      const MutexLock lock(fresh->mutex);
      fresh->standardError = std::move(standardError);
    }
    // A thread may hold the mutex while another forks; the child would wait for a thread it does
    // not have.
    ::pthread_atfork(holdOutput, letOutput, letOutput);
    return fresh;
  }();
  return *made;
}

spdlog::level::level_enum levelOf(LogLevel level) {
  switch (level) {
    case LogLevel::kError: return spdlog::level::err;
    case LogLevel::kWarn: return spdlog::level::warn;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kTrace: return spdlog::level::trace;
  }
  return spdlog::level::err;
}

std::string oneLine(std::string_view text) {
  std::string line;
  line.reserve(text.size());
  for (char c : text) {
    if (c == '\n') {
      line += "\\n";
    } else {
      line += c == '\r' ? ' ' : c;
    }
  }
  return line;
}

std::string_view fileOf(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

const char* logLevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kError: return "error";
    case LogLevel::kWarn: return "warn";
    case LogLevel::kInfo: return "info";
    case LogLevel::kDebug: return "debug";
    case LogLevel::kTrace: return "trace";
  }
  return "unknown";
}

void setLogLevel(LogLevel level) {
  internal::log_level.store(static_cast<int>(level), std::memory_order_relaxed);
}

void setLogSink(LogSink sink) {
  auto fresh = sink ? std::make_shared<const LogSink>(std::move(sink)) : nullptr;
  LogOutput& out = output();
  const MutexLock lock(out.mutex);
  out.userSink.swap(fresh);  // the old one dies with `fresh`, after the lock
}

void logLine(LogLevel level, std::string_view where, std::string_view text) noexcept try {
  where = fileOf(where);
  const std::string clean = oneLine(text);
  LogOutput& out = output();
  std::shared_ptr<const LogSink> userSink;
  {
    const MutexLock lock(out.mutex);
    userSink = out.userSink;
    if (!userSink) {
      const std::string line =
          std::string(logLevelName(level)) + ' ' + std::string(where) + ": " + clean;
      out.standardError->log(spdlog::details::log_msg("peerlane", levelOf(level), line));
      return;
    }
  }
  (*userSink)(level, where, clean);
} catch (...) {
  // Out of memory, or a throwing sink: a log line is not worth the process.
}

namespace internal {
void logFormatted(LogLevel level, std::string_view where, fmt::string_view format,
                  fmt::format_args arguments) noexcept try {
  logLine(level, where, fmt::vformat(format, arguments));
} catch (...) {
  logLine(level, where, "a log line could not be formatted");
}
}  // namespace internal

}  // namespace peerlane
