// SPDX-License-Identifier: Apache-2.0
//
// What the commands say and do over RDMA, as processes, on the software HCA.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <span>

#include "tests/tools/command_run.h"
#include "tools/memory/byte_pattern.h"

namespace peerlane {
namespace {

using Strings = std::vector<std::string>;

bool matches(const std::string& text, const std::string& pattern) {
  return std::regex_search(text, std::regex(pattern));
}

// A network of software HCAs for one test.
class OverRdma : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(::mkdtemp(folder_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Strings with(Strings more = {}) const { return in("", std::move(more)); }
  // In one of several networks that are not joined.
  Strings in(const std::string& network, Strings more) const {
    const char* const library = std::getenv("PEERLANE_IBV_SO");
    EXPECT_NE(library, nullptr) << "run by ctest";
    more.push_back("PEERLANE_IBV_SO=" + std::string(library == nullptr ? "" : library));
    more.push_back("SOFTWARE_HCA_FABRIC=" + folder_ + network);
    return more;
  }

  std::string folder_ = "/dev/shm/peerlane-XXXXXX";
};

TEST_F(OverRdma, DoctorNamesSettingsThatAskForWhatIsNotThere) {
  CommandRun doctor({"doctor"}, with({"PEERLANE_IB_GID_INDEX=77"}));
  EXPECT_EQ(doctor.wait(), 1) << doctor.out() << doctor.err();
  EXPECT_TRUE(matches(doctor.out(),
                      "\n +rdma settings +broken +PEERLANE_IB_GID_INDEX is 77, where "
                      "sw0 has no address"))
      << doctor.out();
}

TEST_F(OverRdma, DoctorShowsDevicesAndWhatIsRefused) {
  CommandRun doctor({"doctor"},
                    with({"SOFTWARE_HCA_DEVICES=sw0,iw0", "SOFTWARE_HCA_IWARP=iw0",
                          "SOFTWARE_HCA_LIMITS=lockedBytes=268435456", "SOFTWARE_HCA_DMABUF=yes"}));
  ASSERT_EQ(doctor.wait(), 0) << doctor.out() << doctor.err();
  const std::string out = doctor.out();
  EXPECT_TRUE(matches(out, "\n +libibverbs +works +\\S+libibverbs")) << out;
  EXPECT_TRUE(matches(out, "\n +sw0 +works +no PCI device, firmware \\S")) << out;
  EXPECT_TRUE(matches(out, "\n +sw0:1 +works +active, Ethernet, packets of 4096 bytes")) << out;
  EXPECT_TRUE(matches(out, "\n +sw0:1, gid +works +3 ::ffff:10\\.92\\.0\\.\\d \\(RoCE v2\\)"))
      << out;
  EXPECT_TRUE(matches(out, "\n +sw0, registering +limited +256 MiB at once; then: Cannot allocate"))
      << out;
  EXPECT_TRUE(matches(out, "\n +sw0, dma-buf +works ")) << out;
  EXPECT_TRUE(matches(out, "\n +sw0, on demand +absent ")) << out;
  EXPECT_TRUE(matches(out, "\n +iw0 +limited +not used: iWARP, which is not supported")) << out;
  EXPECT_TRUE(matches(out, "\n +frees are watched +(works +of private memory|absent +userfaultfd)"))
      << out;
  EXPECT_TRUE(matches(out, "\n +peer memory +(works|absent) ")) << out;
  EXPECT_TRUE(
      matches(out, "two processes, verbs +works +engine nic, put and get of 1 MiB verified"))
      << out;
}

TEST_F(OverRdma, DoctorSaysWhyThereIsNoLibrary) {
  CommandRun doctor({"doctor"}, {"PEERLANE_IBV_SO=/nowhere/libibverbs.so.1"});
  ASSERT_EQ(doctor.wait(), 1) << doctor.out() << doctor.err();
  EXPECT_TRUE(matches(doctor.out(), "rdma settings +broken +PEERLANE_IBV_SO asks for /nowhere/"))
      << doctor.out();
  EXPECT_TRUE(matches(doctor.out(), "libibverbs +absent +no libibverbs here: /nowhere/libibverbs"))
      << doctor.out();
  EXPECT_FALSE(matches(doctor.out(), "two processes, verbs")) << doctor.out();
}

TEST_F(OverRdma, TopoShowsDevicesInSoftware) {
  const std::string file = folder_ + "/topo.json";
  CommandRun topo({"topo", "--json", file},
                  with({"SOFTWARE_HCA_DEVICES=sw0,iw0", "SOFTWARE_HCA_IWARP=iw0"}));
  ASSERT_EQ(topo.wait(), 0) << topo.err();
  const std::string out = topo.out();
  EXPECT_TRUE(matches(out, "\nrdma +nic +ports +node0")) << out;
  EXPECT_TRUE(matches(out, "\nsw0 +- +active +no place")) << out;
  EXPECT_TRUE(matches(out, "\niw0 +- +not used: iWARP, which is not supported.* no place")) << out;
  std::ifstream stream(file);
  const auto devices = nlohmann::json::parse(stream)["rdma_without_place"];
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_EQ(devices[0]["name"], "sw0");
  EXPECT_EQ(devices[0]["ports"], "active");
}

TEST_F(OverRdma, ExplainShowsTheProgramsOfATriggeredQueue) {
  CommandRun explain({"explain", "host:private", "host:private", "--program"},
                     with({"PEERLANE_LINKS=verbs"}));
  ASSERT_EQ(explain.wait(), 0) << explain.err();
  const std::string out = explain.out();
  EXPECT_TRUE(matches(out, "receive of 9: emitter doorbell; not mapped: region \\d+ .* nic alone"))
      << out;
  EXPECT_TRUE(matches(out, "\n +doorbell-commit:\n +store bell = 2 \\(release\\)\n +peek:")) << out;
}

TEST_F(OverRdma, VerificationTriesEveryPath) {
  CommandRun doctor({"doctor", "--verify-rdma", "host", "sw0"}, with({"SOFTWARE_HCA_ODP=yes"}));
  EXPECT_EQ(doctor.wait(), 0) << doctor.err();
  const std::string out = doctor.out();
  EXPECT_TRUE(matches(out, "\n +device +works +sw0:1, ::ffff:10\\.92\\.0\\.1 \\(RoCE v2\\)"))
      << out;
  for (const char* path : {"pages", "on demand", "staging"})
    EXPECT_TRUE(matches(out, std::string("\n +") + path +
                                 " +works +written, read, written to and read from, 16777216 bytes "
                                 "compared, \\d+\\.\\d\\d GB/s"))
        << path << out;
  EXPECT_TRUE(matches(out, "\n +dma-buf +absent +refused: .*no descriptor")) << out;
  EXPECT_TRUE(matches(out, "link verbs, two processes +works +engine nic")) << out;
}

// What a GPU needs before it sees what the NIC wrote; where there are GPUs in software.
#if defined(PEERLANE_SOFTWARE_GPU)
TEST_F(OverRdma, VerificationSaysWhatAGpuNeeds) {
  const auto verify = [&](const char* dmaBuf, const char* writes, int end) {
    CommandRun doctor({"doctor", "--verify-rdma", "cuda:0", "sw0"},
                      with({"SOFTWARE_GPUS=1", std::string("SOFTWARE_HCA_DMABUF=") + dmaBuf,
                            std::string("SOFTWARE_GPU_NIC_WRITES=") + writes}));
    EXPECT_EQ(doctor.wait(), end) << doctor.out() << doctor.err();
    return doctor.out();
  };
  const std::string ordered = verify("yes", "ordered", 0), late = verify("late", "flush", 0),
                    never = verify("late", "never", 0);
  EXPECT_TRUE(matches(ordered, "\n +cuda:0 +works +.*a later word of it")) << ordered;
  for (const std::string& out : {ordered, late, never})
    EXPECT_TRUE(matches(out, "\n +dma-buf +works +.*16777216 bytes compared")) << out;
  EXPECT_TRUE(matches(late, "\n +cuda:0 +works +.*after a flush by the host")) << late;
  EXPECT_TRUE(matches(never, "\n +cuda:0 +works +.*after a read by that NIC")) << never;
  EXPECT_TRUE(matches(never, "two processes +works +engine nic")) << never;
}

TEST_F(OverRdma, WhatIsStagedIsSaidToBe) {
  const auto gpu = [&](const char* link) {
    return with({"SOFTWARE_GPUS=1", std::string("PEERLANE_LINKS=") + link});
  };
  CommandRun doctor({"doctor", "--verify-rdma", "cuda:0", "sw0"}, gpu("verbs"));
  EXPECT_EQ(doctor.wait(), 1) << doctor.out();
  EXPECT_TRUE(matches(doctor.out(), "two processes +works +staged through host memory, put"))
      << doctor.out();
  for (const char* link : {"verbs", "tcp"})
    for (const auto& [from, to] :
         {std::pair{"host:private", "cuda:0"}, {"cuda:0", "host:private"}}) {
      CommandRun explain({"explain", from, to}, gpu(link));
      ASSERT_EQ(explain.wait(), 0) << explain.err();
      EXPECT_TRUE(matches(explain.out(), "\n[^\n]+ -> [^\n]+: engine staged\n")) << explain.out();
    }
}
#endif

TEST_F(OverRdma, VerificationFailsWithItsBestPath) {
  CommandRun doctor({"doctor", "--verify-rdma", "host", "sw0"},
                    with({"SOFTWARE_HCA_LIMITS=lockedBytes=1048576"}));
  EXPECT_EQ(doctor.wait(), 1) << doctor.out();
  EXPECT_TRUE(matches(doctor.out(),
                      "\n +pages +absent +refused: .*sw0: it does not register "
                      "4194304 bytes: Cannot allocate memory"))
      << doctor.out();
  EXPECT_TRUE(matches(doctor.err(), "pages, the best path to memory of host, does not work"))
      << doctor.err();
}

// Every setting that chooses something for links chooses the same for the verification.
TEST_F(OverRdma, VerificationHonoursTheSettings) {
  const auto run = [&](const char* device, const char* setting) {
    return std::make_unique<CommandRun>(
        Strings{"doctor", "--verify-rdma", "host", device},
        with({"SOFTWARE_HCA_DEVICES=sw0,sw1", "SOFTWARE_HCA_ODP=yes", "SOFTWARE_HCA_ORDER=adaptive",
              setting}));
  };
  const struct {
    const char* device;
    const char* setting;
    int code;
    const char* says;
  } kRefused[] = {
      {"sw0", "PEERLANE_IB_HCA=sw1", 1, "sw0: PEERLANE_IB_HCA (sw1) names nothing of it"},
      {"sw0:1", "PEERLANE_IB_HCA=^sw0", 2, "PEERLANE_IB_HCA leaves out sw0:1"},
      {"sw0:1", "PEERLANE_IB_PORT=2", 2, "PEERLANE_IB_PORT is 2; sw0:1 was asked for"},
      {"sw0", "PEERLANE_IB_PORT=2", 1, "sw0: PEERLANE_IB_PORT is 2; the device has port 1"},
      {"sw0", "PEERLANE_IB_GID_INDEX=77", 2, "PEERLANE_IB_GID_INDEX is 77"},
      {"sw0", "PEERLANE_IB_PKEY=7", 2, "PEERLANE_IB_PKEY is 7, which is no key of sw0"},
  };
  for (const auto& [device, setting, code, says] : kRefused) {
    const auto doctor = run(device, setting);
    EXPECT_EQ(doctor->wait(), code) << setting << doctor->out() << doctor->err();
    EXPECT_NE(doctor->err().find(says), std::string::npos) << setting << doctor->err();
  }
  const auto verify = [&](const char* device, const char* setting) {
    const auto doctor = run(device, setting);
    EXPECT_EQ(doctor->wait(), 0) << setting << doctor->out() << doctor->err();
    return doctor->out();
  };
  const std::string pages = verify("sw0", "PEERLANE_IB_REGISTER=pages");
  EXPECT_TRUE(matches(pages, "\n +pages +works")) << pages;
  EXPECT_TRUE(matches(pages, "\n +on demand +absent +not tried: PEERLANE_IB_REGISTER does not"))
      << pages;
  const std::string onDemand = verify("sw0", "PEERLANE_IB_REGISTER=odp");
  EXPECT_TRUE(matches(onDemand, "\n +pages +absent +not tried")) << onDemand;
  EXPECT_TRUE(matches(onDemand, "\n +on demand +works")) << onDemand;
  const std::string adaptive = verify("sw0:1", "PEERLANE_IB_ADAPTIVE=1");
  EXPECT_TRUE(matches(adaptive, "\n +pages +works")) << adaptive;
}

TEST_F(OverRdma, VerificationRefusesWhatIsNotThere) {
  const struct {
    Strings what;
    int code;
    const char* says;
  } kRefused[] = {
      {{"host", "mlx5_0"}, 1, "there is no RDMA device \"mlx5_0\"; there are: "},
      {{"host", "iw0"}, 1, "iw0: iWARP"},
      {{"cuda:0", "sw0"}, 1, "CUDA"},
      {{"tape", "sw0"}, 2, "tape"},
  };
  for (const auto& [what, code, says] : kRefused) {
    CommandRun doctor({"doctor", "--verify-rdma", what[0], what[1]},
                      with({"SOFTWARE_HCA_DEVICES=sw0,iw0", "SOFTWARE_HCA_IWARP=iw0"}));
    EXPECT_EQ(doctor.wait(), code) << what[0] << what[1] << doctor.out() << doctor.err();
    EXPECT_NE(doctor.err().find(says), std::string::npos) << doctor.err();
  }
  CommandRun half({"doctor", "--verify-rdma", "host"}, with());
  EXPECT_EQ(half.wait(), 2) << half.err();
}

TEST_F(OverRdma, ExplainShowsTheLink) {
  CommandRun explain({"explain", "host:private", "host:shared"}, with({"PEERLANE_LINKS=verbs"}));
  ASSERT_EQ(explain.wait(), 0) << explain.err();
  const std::string out = explain.out();
  EXPECT_TRUE(matches(out, "\nlink verbs\n")) << out;
  EXPECT_TRUE(matches(out, "data between the hosts: +neither encrypted nor authenticated\n"))
      << out;
  EXPECT_TRUE(matches(out,
                      "devices: +sw0:1 at ::ffff:10\\.92\\.0\\.1 \\(RoCE v2\\) to sw0:1 at "
                      "::ffff:10\\.92\\.0\\.1 \\(RoCE v2\\), writes in order\n"))
      << out;
  EXPECT_TRUE(matches(out, "registration: +memory of the host: pages\n")) << out;
  EXPECT_TRUE(matches(out, "registration: +memory of GPUs: dma-buf, refused: .*takes no dma-buf\n"))
      << out;
  EXPECT_TRUE(matches(out, "region rights enforced by: owner")) << out;
  EXPECT_TRUE(matches(out, "not taken: link tcp: not among PEERLANE_LINKS")) << out;
  EXPECT_TRUE(matches(out, "host:private -> host:shared: engine nic")) << out;
}

TEST_F(OverRdma, ExplainSaysThatWritesMayBePlacedInAnyOrder) {
  CommandRun explain({"explain", "host:private", "host:shared"},
                     with({"PEERLANE_LINKS=verbs", "PEERLANE_IB_ADAPTIVE=1"}));
  ASSERT_EQ(explain.wait(), 0) << explain.err();
  EXPECT_TRUE(matches(explain.out(), "devices: .* to sw0:1 at .*, writes in any order\n"))
      << explain.out();
}

// Both sides have a NIC and tell each other so, but nothing gets from one to the other.
TEST_F(OverRdma, ALinkIsNotTakenBeforeThePeersNicHasAnswered) {
  const auto side = [&](const char* network, const char* address, const char* more) {
    return in(network, {std::string("SOFTWARE_HCA_GIDS=v2:") + address, "PEERLANE_IB_TIMEOUT=10",
                        "PEERLANE_IB_RETRY=1", "PEERLANE_LINKS=verbs,tcp", more});
  };
  CommandRun recv({"recv", "--listen", "127.0.0.1:0", "--out", folder_ + "/file"},
                  side("/there", "10.92.0.2", "PEERLANE_STRICT=0"));
  const std::string ticket = recv.firstLine();
  CommandRun explain({"explain", ticket}, side("/here", "10.92.0.1", "PEERLANE_STRICT=0"));
  ASSERT_EQ(explain.wait(), 0) << explain.err() << recv.err();
  EXPECT_TRUE(matches(explain.out(), "\nlink tcp\n")) << explain.out();
  EXPECT_TRUE(matches(explain.out(), "not taken: link verbs: it failed: .*port 4791"))
      << explain.out();
  CommandRun strict({"explain", ticket}, side("/here", "10.92.0.1", "PEERLANE_STRICT=1"));
  EXPECT_EQ(strict.wait(), 1) << strict.out();
  EXPECT_TRUE(matches(strict.err(), "PEERLANE_STRICT: link verbs: ")) << strict.err();
}

TEST_F(OverRdma, ExplainSaysWhyThereIsNoLink) {
  CommandRun explain({"explain", "host:private", "host:shared"},
                     with({"PEERLANE_LINKS=verbs", "SOFTWARE_HCA_IWARP=sw0"}));
  EXPECT_EQ(explain.wait(), 1) << explain.out();
  EXPECT_TRUE(matches(explain.err(), "sw0: iWARP, which is not supported")) << explain.err();
}

TEST_F(OverRdma, BenchChecksEveryByte) {
  const std::string report = folder_ + "/report.json";
  for (const char* operation : {"put", "get", "sendrecv", "pingpong", "post"}) {
    CommandRun bench({"bench", operation, "--link", "verbs", "-b", "8", "-e", "1M", "-f", "363",
                      "-n", "3", "-w", "1", "--check", "--json", report},
                     with());
    ASSERT_EQ(bench.wait(), 0) << operation << bench.out() << bench.err();
    EXPECT_TRUE(matches(bench.out(), "link verbs, engine nic, sw0:1 at ")) << bench.out();
    std::ifstream file(report);
    const auto rows = nlohmann::json::parse(file)["rows"];
    ASSERT_GE(rows.size(), 1u) << operation;
    for (const auto& row : rows) {
      EXPECT_EQ(row["wrong"], 0) << operation << row;
      EXPECT_EQ(row["link"], "verbs") << operation;
    }
  }
}

TEST_F(OverRdma, BenchHasNoRawLimitOfANic) {
  CommandRun bench({"bench", "put", "--link", "verbs", "-e", "8", "--ceiling"}, with());
  EXPECT_EQ(bench.wait(), 2) << bench.out();
  EXPECT_TRUE(matches(bench.err(), "--ceiling with --link verbs: .*ib_write_bw")) << bench.err();
}

TEST_F(OverRdma, FilesTravel) {
  const std::string there = folder_ + "/there";
  std::filesystem::create_directory(there);
  std::vector<std::byte> content((3 << 20) + 5);
  fillPattern(content, 18);
  std::ofstream(folder_ + "/file", std::ios::binary)
      .write(reinterpret_cast<const char*>(content.data()),
             static_cast<std::streamsize>(content.size()));
  const Strings environment = with({"PEERLANE_LINKS=verbs"});
  CommandRun recv({"recv", "--listen", "127.0.0.1:0"}, environment, there);
  const std::string ticket = recv.firstLine();
  ASSERT_FALSE(ticket.empty()) << recv.err();
  CommandRun send({"send", folder_ + "/file", "--to", ticket}, environment);
  EXPECT_EQ(send.wait(), 0) << send.err();
  EXPECT_EQ(recv.wait(), 0) << recv.err();
  std::ifstream file(there + "/file", std::ios::binary);
  std::vector<char> arrived((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(arrived.size(), content.size());
  EXPECT_EQ(countWrong(std::as_bytes(std::span(arrived)), 18), 0u);
}

}  // namespace
}  // namespace peerlane
