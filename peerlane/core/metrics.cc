// SPDX-License-Identifier: Apache-2.0
#include "peerlane/core/metrics.h"

#include <algorithm>
#include <cstddef>

namespace peerlane {
namespace {

// The help texts of the names used by this library; others get none.
constexpr std::pair<std::string_view, std::string_view> kHelp[] = {
    {"peerlane_bytes_total", "Payload bytes that arrived at their destination."},
    {"peerlane_transfers_total", "Transfers that ended, by status."},
    {"peerlane_fallbacks_total", "Routes that were not the first choice."},
    {"peerlane_poisonings_total",
     "Waits of devices released unsatisfied, by poison or an abort word."},
    {"peerlane_quarantined_regions",
     "Regions not handed back because a silent peer may still write."},
    {"peerlane_wakeups_total", "Sleeping waiters woken by a system call."},
    {"peerlane_copy_jobs_total", "Large copies that were shared among threads."},
    {"peerlane_copy_parts_helped_total",
     "Parts of those that a thread of ContextOptions::copyThreads copied."},
    {"peerlane_chunks_imported_total", "Chunks of GPU memory of peers that were mapped here."},
    {"peerlane_chunk_import_nanoseconds_total", "Time that mapping those chunks took."},
    {"peerlane_chunks_exported_total", "Descriptors of chunks of GPU memory sent to peers."},
    {"peerlane_chunk_export_nanoseconds_total", "Time that making those descriptors took."},
};

bool isLetter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

bool isName(std::string_view name) {
  return !name.empty() && isLetter(name[0]) && std::all_of(name.begin(), name.end(), [](char c) {
    return isLetter(c) || (c >= '0' && c <= '9');
  });
}

// `{link="shm",direction="put"}`, or nothing without labels.
std::string labelText(const Metrics::Labels& labels) {
  if (labels.empty()) return {};
  std::string text;
  for (const auto& [name, value] : labels) {
    PEERLANE_CHECK(isName(name));
    text += text.empty() ? '{' : ',';
    text += name;
    text += "=\"";
    for (char c : value) {
      if (c == '\n') {
        text += "\\n";
        continue;
      }
      if (c == '"' || c == '\\') text += '\\';
      text += c;
    }
    text += '"';
  }
  return text + '}';
}

}  // namespace

// Allocated one by one, so that a reference stays valid while others are added.
struct Metrics::Series {
  std::string labels;
  Counter counter;
  Gauge gauge;
};

struct Metrics::Family {
  std::string name;
  bool isGauge;
  std::vector<std::unique_ptr<Series>> series;  // in order of first use
};

Metrics::Metrics()
    : fallbacks_(counter("peerlane_fallbacks_total")),
      poisonings_(counter("peerlane_poisonings_total")),
      quarantinedRegions_(gauge("peerlane_quarantined_regions")),
      wakeups_(counter("peerlane_wakeups_total")) {
  for (std::size_t i = 0; i < ended_.size(); ++i) {
    ended_[i] = &counter("peerlane_transfers_total", {{"status", codeName(static_cast<Code>(i))}});
  }
}

Metrics::~Metrics() = default;

Metrics::Series& Metrics::series(std::string_view name, const Labels& labels, bool isGauge) {
  PEERLANE_CHECK(isName(name));
  std::string key = labelText(labels);
  const MutexLock lock(mutex_);
  auto family = std::find_if(families_.begin(), families_.end(),
                             [&](auto& each) { return each->name == name; });
  if (family == families_.end()) {
    family =
        families_.insert(family, std::make_unique<Family>(Family{std::string(name), isGauge, {}}));
  }
  PEERLANE_CHECK((*family)->isGauge == isGauge);
  auto& all = (*family)->series;
  auto found =
      std::find_if(all.begin(), all.end(), [&](auto& each) { return each->labels == key; });
  if (found == all.end()) {
    found = all.insert(found, std::make_unique<Series>());
    (*found)->labels = std::move(key);
  }
  return **found;
}

Counter& Metrics::counter(std::string_view name, const Labels& labels) {
  return series(name, labels, false).counter;
}

Gauge& Metrics::gauge(std::string_view name, const Labels& labels) {
  return series(name, labels, true).gauge;
}

Counter& Metrics::bytes(std::string_view link, std::string_view engine,
                        std::string_view direction) {
  return counter("peerlane_bytes_total", {{"link", std::string(link)},
                                          {"engine", std::string(engine)},
                                          {"direction", std::string(direction)}});
}

std::string Metrics::text() const {
  std::string text;
  const MutexLock lock(mutex_);
  for (const auto& family : families_) {
    for (const auto& [name, help] : kHelp) {
      if (family->name == name) text += "# HELP " + family->name + ' ' + std::string(help) + '\n';
    }
    text += "# TYPE " + family->name + (family->isGauge ? " gauge\n" : " counter\n");
    for (const auto& each : family->series) {
      text += family->name + each->labels + ' ';
      text += family->isGauge ? std::to_string(each->gauge.value())
                              : std::to_string(each->counter.value());
      text += '\n';
    }
  }
  return text;
}

}  // namespace peerlane
