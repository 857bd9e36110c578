// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/sides/bench_report.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>
#include <thread>

#include "peerlane/core/text.h"
#include "tools/report/output_file.h"

namespace peerlane::bench {
namespace {

using nlohmann::ordered_json;

constexpr double kBusyLoad = 0.5;

// Six significant digits: more is noise.
double rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  const double scale = std::pow(10, 5 - std::floor(std::log10(std::fabs(value))));
  return std::round(value * scale) / scale;
}

std::string cpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

ordered_json machineJson() {
  utsname name{};
  (void)::uname(&name);
  const std::string release = name.release;  // the text after the version names builds and machines
  const double pages = static_cast<double>(::sysconf(_SC_PHYS_PAGES));
  return {{"cpu", cpuName()},
          {"cores", std::thread::hardware_concurrency()},
          {"memory", static_cast<uint64_t>(pages * static_cast<double>(::sysconf(_SC_PAGESIZE)))},
          {"kernel", std::string(name.sysname) + " " + release.substr(0, release.find('-'))},
          {"load", loadOfThisMachine()}};
}

ordered_json rowJson(const BenchRow& row) {
  ordered_json json = {{"op", row.operation},
                       {"memory", row.memory},
                       {"link", row.link},
                       {"engine", row.engine},
                       {"bytes", row.bytes},
                       {"blocks", row.blocks},
                       {"p50_us", rounded(row.p50())},
                       {"p99_us", rounded(row.p99())},
                       {"mean_us", rounded(row.outcome.ours.mean())},
                       {"gbps", row.movesAll ? ordered_json(rounded(row.gbps())) : ordered_json()}};
  const auto ceiling = row.ceiling();
  const auto ratio = row.ratio();
  json["ceiling"] = ceiling ? ordered_json(rounded(*ceiling)) : ordered_json();
  json["ratio"] = ratio ? ordered_json(rounded(*ratio)) : ordered_json();
  json["wrong"] = row.outcome.wrong;
  if (ceiling) {
    json["ceiling_unit"] = row.isLatency ? "us" : "GB/s";
    json["ceiling_by"] = row.ceilingBy;
    json["ratio_of_fastest"] = rounded(row.ratioOfFastest().value_or(0));
  }
  json["samples"] = row.outcome.ours.size();
  for (const auto& [key, value] : row.extras) json[key] = rounded(value);
  return json;
}

std::string ordinary(const std::optional<double>& value, int digits) {
  return value ? fmt::format("{:.{}f}", *value, digits) : "-";
}

}  // namespace

double BenchRow::gbps() const {
  return p50() > 0 ? static_cast<double>(bytes) / p50() / 1e3 : 0;
}

std::optional<double> BenchRow::ceiling() const {
  if (outcome.ceiling.empty()) return {};
  const double median = outcome.ceiling.median();
  if (isLatency) return median;
  return median > 0 ? static_cast<double>(bytes) / median / 1e3 : 0;
}

std::optional<double> BenchRow::ratio() const {
  if (outcome.ceiling.empty() || outcome.ours.empty() || p50() <= 0) return {};
  return outcome.ceiling.median() / p50();
}

std::optional<double> BenchRow::ratioOfFastest() const {
  if (!ratio()) return {};
  return outcome.ceiling.percentile(5) / outcome.ours.percentile(5);
}

double loadOfThisMachine() {
  std::ifstream file("/proc/loadavg");
  double load = 0;
  file >> load;
  return load;
}

void BenchReport::printHeader(const std::string& title, bool isLatency) {
  out_ << title << "\n# time is the mean; algbw, ceiling and ratio are of medians (p50)\n";
  if (const double load = loadOfThisMachine(); load > kBusyLoad)
    out_ << fmt::format(
        "# this machine is busy (load {:.1f}): numbers of a busy machine are worth little\n", load);
  out_ << fmt::format("#{:>11} {:>8} {:>11} {:>9} {:>7} {:>11} {:>11} {:>10} {:>6}\n", "size",
                      "count", "time", "algbw", "#wrong", "p50", "p99", "ceiling", "ratio");
  out_ << fmt::format("#{:>11} {:>8} {:>11} {:>9} {:>7} {:>11} {:>11} {:>10} {:>6}\n", "(B)",
                      "(blocks)", "(us)", "(GB/s)", "", "(us)", "(us)",
                      isLatency ? "(us)" : "(GB/s)", "");
  out_.flush();
}

void BenchReport::add(BenchRow row) {
  out_ << fmt::format("{:>12} {:>8} {:>11.3f} {:>9} {:>7} {:>11.3f} {:>11.3f} {:>10} {:>6}",
                      row.bytes, row.blocks, row.outcome.ours.mean(),
                      row.movesAll ? fmt::format("{:.3f}", row.gbps()) : "-", row.outcome.wrong,
                      row.p50(), row.p99(), ordinary(row.ceiling(), 3), ordinary(row.ratio(), 3));
  if (const auto fastest = row.ratioOfFastest(); fastest && loadOfThisMachine() > kBusyLoad)
    out_ << fmt::format("  (fastest 5%: {:.3f})", *fastest);
  for (const auto& [key, value] : row.extras) out_ << fmt::format("  {} {:.5g}", key, value);
  out_ << "\n";
  out_.flush();
  rows_.push_back(std::move(row));
}

Status BenchReport::verdict() const {
  for (const BenchRow& row : rows_)
    if (row.outcome.wrong > 0)
      return Status(Code::kCorrupt, fmt::format("{} of {} bytes: {} bytes arrived wrong",
                                                row.operation, row.bytes, row.outcome.wrong));
  for (const BenchRow& row : rows_)
    if (const auto ratio = row.ratio(); ratio && *ratio > kMaxRatio)
      return Status(Code::kInternal,
                    fmt::format("{} of {} bytes has ratio {:.3f}, above {}: its ceiling was "
                                "measured wrongly, or something disturbed it",
                                row.operation, row.bytes, *ratio, kMaxRatio));
  return Status::ok();
}

std::string BenchReport::json() const {
  ordered_json document = {{"machine", machineJson()}, {"rows", ordered_json::array()}};
  for (const BenchRow& row : rows_) document["rows"].push_back(rowJson(row));
  return document.dump(2) + "\n";
}

Status BenchReport::checkJsonFile(const std::string& file) {
  Status status = OutputFile::create(file, OutputFile::Existing::kReplace).status();
  if (status.isOk()) return status;
  return Status(Code::kInvalidArgument,
                "--json is " + peerlane::quoted(file) +
                    ", which cannot be written: " + std::string(status.message()));
}

Status BenchReport::writeJson(const std::string& file, bool append) const {
  ordered_json document = ordered_json::parse(json());
  if (append) {
    std::ifstream before(file);
    std::stringstream text;
    text << before.rdbuf();
    const ordered_json old = ordered_json::parse(text.str(), nullptr, false);
    if (old.is_object() && old.contains("rows") && old["rows"].is_array()) {
      ordered_json rows = old["rows"];
      for (const auto& row : document["rows"]) rows.push_back(row);
      document["rows"] = std::move(rows);
    }
  }
  PEERLANE_ASSIGN(const auto out, OutputFile::create(file, OutputFile::Existing::kReplace));
  const std::string text = document.dump(2) + "\n";
  PEERLANE_RETURN_IF_ERROR(out->append(std::as_bytes(std::span(text))));
  return out->commit();
}

}  // namespace peerlane::bench
