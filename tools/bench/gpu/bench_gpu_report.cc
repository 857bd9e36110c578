// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/gpu/bench_gpu_report.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>

namespace peerlane::bench {
namespace {

using nlohmann::ordered_json;

std::string figure(double value) {
  if (value != 0 && std::fabs(value) < 10) return fmt::format("{:.2f}", value);
  return fmt::format("{:.1f}", value);
}

std::string unitOf(const GpuRow& row) {
  if (!row.unit.empty()) return row.unit;
  return row.row.isLatency ? "us" : "GB/s";
}

std::string oursText(const GpuRow& row) {
  if (!row.failure.isOk()) return "failed";
  if (!row.unit.empty()) return figure(row.value) + " " + row.unit;
  if (row.row.outcome.ours.empty()) return "-";
  return figure(row.row.isLatency ? row.row.p50() : row.row.gbps()) + " " + unitOf(row);
}

std::string ceilingText(const GpuRow& row) {
  const auto ceiling = row.row.ceiling();
  return ceiling ? figure(*ceiling) : "-";
}

std::string targetText(const GpuRow& row) {
  switch (row.target.goal) {
    case GpuGoal::kNone: return "";
    case GpuGoal::kRatio: return fmt::format("ratio >= {:.3g}", row.target.value);
    case GpuGoal::kGbps: return fmt::format(">= {:.4g} GB/s", row.target.value);
    case GpuGoal::kGbpsAbove: return fmt::format("> {:.4g} GB/s", row.target.value);
    case GpuGoal::kMost: return fmt::format("<= {:.4g} {}", row.target.value, row.unit);
  }
  return "";
}

std::string verdictText(const GpuRow& row) {
  if (row.row.outcome.wrong > 0) return fmt::format("WRONG BYTES: {}", row.row.outcome.wrong);
  const auto met = row.met();
  if (!met) return "";
  return *met ? "met" : "MISSED";
}

std::optional<double> ratioOf(const GpuRow& row) {
  return row.row.outcome.ours.empty() ? std::nullopt : row.row.ratio();
}

void addTo(ordered_json& json, const GpuRow& row) {
  json["row"] = row.name;
  if (row.target.goal != GpuGoal::kNone) json["target"] = targetText(row);
  if (const auto met = row.met()) json["met"] = *met;
  if (!row.unit.empty()) {
    json["value"] = row.value;
    json["unit"] = row.unit;
  }
  if (!row.note.empty()) json["note"] = row.note;
  if (!row.failure.isOk()) json["failed"] = row.failure.toString();
}

// The rows that the file has already.
ordered_json rowsBefore(const std::string& file) {
  std::ifstream before(file);
  std::stringstream text;
  text << before.rdbuf();
  const ordered_json old = ordered_json::parse(text.str(), nullptr, false);
  if (old.is_object() && old.contains("rows") && old["rows"].is_array()) return old["rows"];
  return ordered_json::array();
}

}  // namespace

std::optional<bool> GpuRow::met() const {
  if (target.goal == GpuGoal::kNone) return {};
  if (!failure.isOk()) return false;
  if (row.outcome.wrong > 0) return false;
  if (target.goal == GpuGoal::kMost) return value <= target.value;
  if (row.outcome.ours.empty()) return {};
  if (target.goal == GpuGoal::kGbps) return row.gbps() >= target.value;
  if (target.goal == GpuGoal::kGbpsAbove) return row.gbps() > target.value;
  const auto ratio = row.ratio();
  if (!ratio) return {};
  return *ratio >= target.value;
}

void GpuReport::begin(const GpuReportHead& head) {
  head_ = head;
  std::string names;
  for (const std::string& name : head.gpus) names += (names.empty() ? "" : " and ") + name;
  out_ << fmt::format(
      "# peerlane bench on {}, CUDA {}, link {}\n"
      "# medians; from the sender's first call until the receiver's CPU saw the last completion "
      "word; the raw limit in turns with it\n",
      names, head.versions, head.route);
  out_ << fmt::format("{:<50} {:>13} {:>9} {:>6} {:>15}\n", "#", "ours", "ceiling", "ratio",
                      "must reach");
  out_.flush();
}

void GpuReport::section(const std::string& title) {
  say("# " + title);
}

void GpuReport::say(const std::string& line) {
  out_ << line << "\n";
  out_.flush();
}

void GpuReport::add(GpuRow row) {
  const auto ratio = ratioOf(row);
  out_ << fmt::format("{:<50} {:>13} {:>9} {:>6} {:>15} {}", row.name, oursText(row),
                      ceilingText(row), ratio ? fmt::format("{:.3f}", *ratio) : "-",
                      targetText(row), verdictText(row));
  if (const auto posting = row.row.extras.find("posting_us"); posting != row.row.extras.end())
    out_ << fmt::format("  post {} us", figure(posting->second));
  if (const auto raw = row.row.extras.find("ceiling_posting_us");
      raw != row.row.extras.end() && row.row.extras.count("posting_us") != 0)
    out_ << fmt::format(" (raw {})", figure(raw->second));
  if (!row.note.empty()) out_ << "  " << row.note;
  if (!row.failure.isOk()) out_ << "  " << row.failure.toString();
  out_ << "\n";
  out_.flush();
  rows_.push_back(std::move(row));
}

void GpuReport::summarize() {
  size_t met = 0;
  size_t asked = 0;
  std::string missed;
  for (const GpuRow& row : rows_) {
    const auto reached = row.met();
    if (!reached) continue;
    ++asked;
    met += *reached ? 1 : 0;
    if (*reached) continue;
    const auto ratio = ratioOf(row);
    missed += fmt::format("  {}: {}{}, must reach {}\n", row.name, oursText(row),
                          ratio ? fmt::format(" (ratio {:.3f})", *ratio) : "", targetText(row));
  }
  if (asked > 0) say(fmt::format("# {} of {} rows reach what they must", met, asked));
  if (!missed.empty()) say("# missed:\n" + missed);
}

Status GpuReport::verdict() const {
  for (const GpuRow& row : rows_)
    if (row.row.outcome.wrong > 0)
      return Status(Code::kCorrupt,
                    fmt::format("{}: {} bytes arrived wrong", row.name, row.row.outcome.wrong));
  for (const GpuRow& row : rows_)
    if (!row.failure.isOk()) return row.failure.withContext(row.name);
  return Status::ok();
}

Status GpuReport::writeJson(const std::string& file, bool append) const {
  std::ostringstream unseen;
  BenchReport plain(unseen);
  for (const GpuRow& row : rows_) plain.add(row.row);
  ordered_json document = ordered_json::parse(plain.json());
  document["machine"]["gpus"] = head_.gpus;
  document["machine"]["cuda"] = head_.versions;
  for (size_t i = 0; i < rows_.size(); ++i) addTo(document["rows"][i], rows_[i]);
  if (append) {
    ordered_json rows = rowsBefore(file);
    for (const auto& row : document["rows"]) rows.push_back(row);
    document["rows"] = std::move(rows);
  }
  // Under another name first: a report is there whole or not at all.
  const std::string partial = file + ".part";
  {
    std::ofstream out(partial, std::ios::trunc);
    out << document.dump(2) << "\n";
    if (!out.flush()) return Status::system(errno, "writing " + partial);
  }
  if (std::rename(partial.c_str(), file.c_str()) != 0)
    return Status::system(errno, "writing " + file);
  return Status::ok();
}

}  // namespace peerlane::bench
