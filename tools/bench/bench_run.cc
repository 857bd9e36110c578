// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/bench_run.h"

#include <algorithm>

#include "peerlane/core/text.h"
#include "tools/bench/host/bench_cancel.h"
#include "tools/bench/host/bench_connect.h"
#include "tools/bench/host/bench_copy.h"
#include "tools/bench/host/bench_message.h"
#include "tools/bench/host/bench_pingpong.h"
#include "tools/bench/host/bench_post.h"
#include "tools/bench/host/bench_trigger.h"
#include "tools/bench/setup/bench_setup.h"
#include "tools/bench/sides/bench_pair.h"
#include "tools/bench/sides/bench_report.h"
#include "tools/bench/sides/bench_tune_file.h"

namespace peerlane::bench {
namespace {

uint64_t regionBytesFor(const BenchOptions& options) {
  constexpr uint64_t kLeast = 4096;
  if (options.operation == "put" || options.operation == "get")
    return std::max(kLeast, copyRegionBytes(options));
  if (options.operation == "sendrecv" || options.operation == "batch")
    return std::max(kLeast, messageRegionBytes(options));
  if (options.operation == "setup") return setupRegionBytes(options);
  return std::max(kLeast, options.endBytes);
}

bool isLatency(const std::string& operation) {
  return operation == "pingpong" || operation == "connect" || operation == "cancel";
}

std::string titleOf(const BenchOptions& options, BenchPair& pair) {
  std::string title = "# peerlane bench " + options.operation + ": " + options.memory +
                      " memory, link " + pair.link() + ", engine " + pair.engine();
  if (const std::string path = pair.route().path; !path.empty()) title += ", " + path;
  if (options.isScattered())
    title += ", " + std::to_string(options.blocks) + " blocks of " +
             formatByteSize(options.blockBytes) + " per call" +
             (options.operation == "batch" ? "" : ", places new every time") +
             (options.indexed ? ", by block number" : "");
  if (options.copyThreads != 0)
    title += ", " + std::to_string(options.copyThreads) + " threads help";
  if (options.operation == "sendrecv") title += ", half of a message and its answer";
  if (options.operation == "pingpong") title += ", half round trips, both sides spin";
  if (options.operation == "cancel")
    title += ", from cancel() to the end, 10 ms after the post; a put, then a get";
  if (options.operation == "post")
    title += ", one plan, same buffers, one flush per 64 posts (as ucp_put_bw, window 64)";
  return title;
}

Status tune(const std::string& file, std::ostream& out) {
  PEERLANE_ASSIGN(const std::string lines,
                  copyThresholds([&out](const std::string& said) { out << said << "\n"; }));
  const std::string text =
      "# Measured by peerlane bench --tune; use: PEERLANE_TUNE=" + file + "\n" + lines;
  PEERLANE_RETURN_IF_ERROR(writeTuneFile(file, text));
  out << text << "# written to " << file << "\n";
  return Status::ok();
}

Status dispatch(BenchPair& pair, const BenchOptions& options, BenchReport& report) {
  if (options.operation == "put" || options.operation == "get")
    return benchCopy(pair, options, report);
  if (options.operation == "sendrecv" || options.operation == "batch")
    return benchMessages(pair, options, report);
  if (options.operation == "pingpong") return benchPingpong(pair, options, report);
  if (options.operation == "post") return benchPost(pair, options, report);
  if (options.operation == "cancel") return benchCancel(pair, options, report);
  if (options.operation == "trigger") return benchTrigger(pair, options, report);
  if (options.operation == "setup") return benchSetup(pair, options, report);
  return benchConnect(pair, options, report);
}

}  // namespace

Status runBench(BenchOptions options, std::ostream& out) {
  PEERLANE_RETURN_IF_ERROR(complete(options));
  if (!options.tuneFile.empty()) return tune(options.tuneFile, out);
  BenchReport report(out);
  {
    PEERLANE_ASSIGN(auto pair, BenchPair::create(options, regionBytesFor(options)));
    if (options.ceiling && options.isOverNetwork() && pair->route().sockets == 0)
      return Status(Code::kInvalidArgument, "--ceiling with --link " + options.link +
                                                ": the raw limit is of sockets, and these bytes "
                                                "take none; leave it out (ib_write_bw of perftest "
                                                "measures a NIC)");
    // These have a table for each step.
    if (options.operation != "setup" && options.operation != "trigger")
      report.printHeader(titleOf(options, *pair), isLatency(options.operation));
    PEERLANE_RETURN_IF_ERROR(dispatch(*pair, options, report));
    if (const std::string by = pair->route().hostCopies; !by.empty())
      out << "# copied by this host: " << by << "\n";
  }
  if (!options.jsonFile.empty())
    PEERLANE_RETURN_IF_ERROR(report.writeJson(options.jsonFile, options.appendJson));
  return report.verdict();
}

}  // namespace peerlane::bench
