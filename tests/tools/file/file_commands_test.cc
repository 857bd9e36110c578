// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "peerlane/os/host_identity.h"
#include "peerlane/session/wire/ticket.h"
#include "tests/tools/command_run.h"
#include "tools/memory/byte_pattern.h"

namespace peerlane {
namespace {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;
using std::chrono::seconds;

class FileCommands : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "peerlane-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    fs::create_directory(in("there"));
  }
  void TearDown() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  std::string in(const std::string& name) const { return folder_ + "/" + name; }

  std::string makeFile(const std::string& name, size_t bytes, uint64_t seed = 1) {
    std::vector<std::byte> content(bytes);
    fillPattern(content, seed);
    std::ofstream(in(name), std::ios::binary)
        .write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(bytes));
    return in(name);
  }

  static std::string contentOf(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

  // Names in the receiving folder, hidden ones too.
  Strings received() const {
    Strings names;
    for (const auto& entry : fs::directory_iterator(in("there")))
      names.push_back(entry.path().filename().string());
    return names;
  }

  // A receiver in the folder "there" that waits for a sender; returns its ticket.
  std::string startRecv(const Strings& more = {}, const Strings& environment = {}) {
    Strings arguments{"recv", "--listen", "none"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    recv_.emplace(arguments, environment, in("there"));
    std::string ticket = recv_->firstLine();
    EXPECT_FALSE(ticket.empty()) << recv_->err();
    return ticket;
  }

  void awaitTicketFile() const {
    const auto deadline = std::chrono::steady_clock::now() + seconds(10);
    while (!fs::exists(in("ticket")) && std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
    ASSERT_TRUE(fs::exists(in("ticket"))) << recv_->err();
  }

  Strings sockets() const;

  // Both must fail with one line that contains `reason`, and leave nothing in "there" but `left`.
  void expectFailure(CommandRun& send, const std::string& reason, const Strings& left = {}) {
    EXPECT_EQ(send.wait(), 1) << send.out();
    EXPECT_EQ(recv_->wait(), 1);
    for (const std::string& text : {send.err(), recv_->err()}) {
      ASSERT_FALSE(linesOf(text).empty());
      const std::string last = linesOf(text).back();
      EXPECT_TRUE(last.starts_with("peerlane: ")) << text;
      EXPECT_NE(last.find(reason), std::string::npos) << text;
    }
    EXPECT_EQ(received(), left);
  }

  std::string folder_;
  std::optional<CommandRun> recv_;
};

TEST_F(FileCommands, MoveAFileThatIsLargerThanTheMemory) {
  const std::string file = makeFile("in.bin", 5'000'001);
  const std::string ticket = startRecv({"--memory", "256KiB"});
  CommandRun send({"send", file, "--to", ticket, "--memory", "64KiB"});
  ASSERT_EQ(send.wait(), 0) << send.err();
  ASSERT_EQ(recv_->wait(), 0) << recv_->err();
  EXPECT_EQ(received(), Strings{"in.bin"});
  EXPECT_TRUE(contentOf(in("there/in.bin")) == contentOf(file));
  EXPECT_EQ(linesOf(recv_->out()).size(), 1u) << "only the ticket belongs on standard output";
  EXPECT_NE(send.out().find("B/s) over "), std::string::npos) << send.out();
  // Both computed the hash for themselves.
  const size_t at = send.out().find("blake2b ");
  ASSERT_NE(at, std::string::npos) << send.out();
  EXPECT_NE(recv_->err().find(send.out().substr(at, 8 + 64)), std::string::npos) << recv_->err();
}

TEST_F(FileCommands, MoveAFileThroughTcp) {
  const std::string file = makeFile("in.bin", 3'000'000);
  const std::string ticket = startRecv({"--out", "other.bin"}, {"PEERLANE_LINKS=tcp"});
  CommandRun send({"send", file, "--to", ticket}, {"PEERLANE_LINKS=tcp"});
  ASSERT_EQ(send.wait(), 0) << send.err();
  ASSERT_EQ(recv_->wait(), 0) << recv_->err();
  EXPECT_NE(send.out().find(" over tcp"), std::string::npos) << send.out();
  EXPECT_EQ(received(), Strings{"other.bin"});
  EXPECT_TRUE(contentOf(in("there/other.bin")) == contentOf(file));
}

// Each of the two is without libcrypto once, and the sender says so, whichever it is.
TEST_F(FileCommands, ASideThatCannotEncryptIsNamedAsTheCause) {
  const std::string file = makeFile("in.bin", 1000);
  fs::create_directory(in("lib"));
  makeFile("lib/libcrypto.so.3", 0);
  const Strings encrypts{"PEERLANE_TCP_ENCRYPT=1"};
  const Strings cannot{"PEERLANE_TCP_ENCRYPT=1", "LD_LIBRARY_PATH=" + in("lib")};
  for (const bool isReceiver : {false, true}) {
    const std::string ticket = startRecv({}, isReceiver ? cannot : encrypts);
    Strings environment = isReceiver ? encrypts : cannot;
    environment.push_back("PEERLANE_LINKS=tcp");
    CommandRun send({"send", file, "--to", ticket}, environment);
    EXPECT_EQ(send.wait(), 1);
    EXPECT_NE(send.err().find("tcp: PEERLANE_TCP_ENCRYPT is 1 on a side that cannot encrypt: "),
              std::string::npos)
        << send.err();
    EXPECT_EQ(send.err().find("allow "), std::string::npos) << send.err();
  }
}

TEST_F(FileCommands, MoveAnEmptyFile) {
  const std::string file = makeFile("empty", 0);
  const std::string ticket = startRecv();
  CommandRun send({"send", file, "--to", ticket});
  ASSERT_EQ(send.wait(), 0) << send.err();
  ASSERT_EQ(recv_->wait(), 0) << recv_->err();
  EXPECT_EQ(received(), Strings{"empty"});
  EXPECT_EQ(fs::file_size(in("there/empty")), 0u);
  for (const std::string& text : {send.out(), recv_->err()})
    EXPECT_EQ(text.find("bytes/s"), std::string::npos) << "nothing has no speed: " << text;
}

TEST_F(FileCommands, TakeTheTicketFromFilesAndTheEnvironment) {
  const std::string file = makeFile("in.bin", 1000);
  recv_.emplace(Strings{"recv", "--listen", "127.0.0.1:0", "--ticket-file", in("ticket")},
                Strings{}, in("there"));
  const auto deadline = std::chrono::steady_clock::now() + seconds(10);
  while (!fs::exists(in("ticket")) && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  struct stat found;
  ASSERT_EQ(::stat(in("ticket").c_str(), &found), 0) << recv_->err();
  EXPECT_EQ(found.st_mode & 0777, 0600u) << "it holds a secret";
  CommandRun send({"send", file, "--to", "@" + in("ticket")});
  EXPECT_EQ(send.wait(), 0) << send.err();
  EXPECT_EQ(recv_->wait(), 0) << recv_->err();
  EXPECT_EQ(recv_->out(), "") << "the ticket was asked for elsewhere";
  EXPECT_FALSE(fs::exists(in("ticket"))) << "it leads nowhere any more";

  const std::string ticket = startRecv({"--out", "second"});
  CommandRun again({"send", file, "--to", "env:WHERE"}, {"WHERE=" + ticket});
  EXPECT_EQ(again.wait(), 0) << again.err();
  EXPECT_EQ(recv_->wait(), 0) << recv_->err();

  const std::string third = startRecv({"--out", "third"});
  CommandRun byDefault({"send", file}, {"PEERLANE_TICKET=" + third});
  EXPECT_EQ(byDefault.wait(), 0) << byDefault.err();
  EXPECT_EQ(recv_->wait(), 0) << recv_->err();
}

TEST_F(FileCommands, TakeTheTicketFileAwayWhenTheyAreEnded) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    recv_.emplace(Strings{"recv", "--listen", "none", "--ticket-file", in("ticket")}, Strings{},
                  in("there"));
    awaitTicketFile();
    recv_->signal(number);
    EXPECT_EQ(recv_->wait(seconds(10)), 128 + number) << recv_->err();
    EXPECT_FALSE(fs::exists(in("ticket")));
  }
}

TEST_F(FileCommands, LeaveATicketFileThatIsNotTheirs) {
  recv_.emplace(Strings{"recv", "--listen", "none", "--ticket-file", in("ticket")}, Strings{},
                in("there"));
  awaitTicketFile();
  std::ofstream(in("other")) << "of another recv";
  fs::rename(in("other"), in("ticket"));
  recv_->signal(SIGTERM);
  EXPECT_EQ(recv_->wait(seconds(10)), 128 + SIGTERM) << recv_->err();
  EXPECT_EQ(contentOf(in("ticket")), "of another recv");
}

// Names of sockets in the folder "sockets".
Strings FileCommands::sockets() const {
  Strings names;
  for (const auto& entry : fs::directory_iterator(in("sockets")))
    if (entry.is_socket()) names.push_back(entry.path().filename().string());
  return names;
}

TEST_F(FileCommands, LeaveNoSocketWhenTheyAreEnded) {
  fs::create_directory(in("sockets"));
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    recv_.emplace(Strings{"recv", "--listen", "none", "--ticket-file", in("ticket")},
                  Strings{"PEERLANE_SOCKET_DIR=" + in("sockets")}, in("there"));
    awaitTicketFile();
    EXPECT_EQ(sockets().size(), 2u) << "a listener and an inspection socket";
    recv_->signal(number);
    EXPECT_EQ(recv_->wait(seconds(10)), 128 + number) << recv_->err();
    EXPECT_EQ(sockets(), Strings{});
    EXPECT_FALSE(fs::exists(in("ticket")));
  }
}

// What SIGKILL leaves goes with the next start, and what lives stays.
TEST_F(FileCommands, ClearWhatAKilledOneLeft) {
  fs::create_directory(in("sockets"));
  const Strings inFolder{"PEERLANE_SOCKET_DIR=" + in("sockets")};
  const std::string killed = startRecv({}, inFolder);
  recv_->signal(SIGKILL);
  EXPECT_EQ(recv_->wait(), 128 + SIGKILL);
  const Strings left = sockets();
  ASSERT_EQ(left.size(), 2u);
  for (const std::string& name : left) {
    const std::array<timespec, 2> old{};  // 1970: one that is fresh may have an owner in a moment
    ASSERT_EQ(::utimensat(AT_FDCWD, in("sockets/" + name).c_str(), old.data(), 0), 0);
  }
  const std::string living = startRecv({}, inFolder);
  EXPECT_EQ(sockets().size(), 2u);
  for (const std::string& name : left) EXPECT_FALSE(fs::exists(in("sockets/" + name))) << name;
  CommandRun send({"send", makeFile("in.bin", 10), "--to", living}, inFolder);
  EXPECT_EQ(send.wait(), 0) << send.err();
  EXPECT_EQ(recv_->wait(), 0) << recv_->err();
  EXPECT_EQ(sockets(), Strings{});
}

TEST_F(FileCommands, DoNotBeginWhereNobodyCouldCome) {
  CommandRun recv({"recv", "--listen", "none"}, {"PEERLANE_SOCKET_DIR=" + in("absent")},
                  in("there"));
  EXPECT_EQ(recv.wait(), 1);
  EXPECT_EQ(recv.out(), "") << "no ticket";
  EXPECT_NE(recv.err().find("PEERLANE_SOCKET_DIR is " + in("absent") + "; need a folder"),
            std::string::npos)
      << recv.err();
}

TEST_F(FileCommands, ShowNamesInOneLine) {
  const std::string ticket = startRecv();
  CommandRun send({"send", makeFile("new\nline", 10), "--to", ticket});
  ASSERT_EQ(send.wait(), 0) << send.err();
  ASSERT_EQ(recv_->wait(), 0) << recv_->err();
  EXPECT_EQ(linesOf(send.out()).size(), 1u) << send.out();
  EXPECT_NE(send.out().find(R"(new\x0aline)"), std::string::npos) << send.out();
  EXPECT_EQ(received(), Strings{"newline"});
  EXPECT_NE(recv_->err().find(R"(newline (sent as "new\x0aline"))"), std::string::npos)
      << recv_->err();
}

// Holds the sender in the middle of its file of `bytes`; false when it has read all of it before.
bool holdMidway(const CommandRun& send, uint64_t bytes) {
  const auto readBytes = [place = "/proc/" + std::to_string(send.pid()) + "/io"] {
    std::ifstream counters(place);
    std::string word;
    uint64_t count = 0;
    counters >> word >> count;
    return count;
  };
  const auto deadline = std::chrono::steady_clock::now() + seconds(20);
  while (readBytes() < (4u << 20) && std::chrono::steady_clock::now() < deadline) {
  }
  return send.freeze() && readBytes() < bytes;
}

// Two processes and a file of 256 MiB (of which hardly anything is read) that shrinks midway.
TEST_F(FileCommands, FailWhenTheFileChanges) {
  const std::string file = in("in.bin");
  std::ofstream(file).close();
  constexpr uint64_t kBytes = 256 << 20;
  fs::resize_file(file, kBytes);
  // A sender needs a few tenths of a second, which this thread may miss on a busy machine.
  for (int i = 0; i < 5; ++i) {
    const std::string ticket = startRecv({"--memory", "64KiB"});
    CommandRun send({"send", file, "--to", ticket, "--memory", "64KiB"});
    if (holdMidway(send, kBytes)) {
      fs::resize_file(file, 1000);
      send.signal(SIGCONT);
      expectFailure(send, "in.bin changed while it was sent: it had 268435456 bytes and has 1000");
      return;
    }
    send.signal(SIGCONT);
    ASSERT_EQ(send.wait(), 0) << send.err();
    ASSERT_EQ(recv_->wait(), 0) << recv_->err();
    fs::remove(in("there/in.bin"));
  }
  FAIL() << "all of it was read each time before it could be held";
}

// What the environment says is no fault of the line; what the line says is one in any environment.
TEST_F(FileCommands, TellAWrongLineFromAWrongEnvironment) {
  makeFile("tune", 10);
  const Strings address{"PEERLANE_IF_IP=203.0.113.9"};
  const Strings interfaces{"PEERLANE_SOCKET_IFNAME=nosuch"};
  const Strings tune{"PEERLANE_TUNE=" + in("tune")};
  struct Case {
    const char* listen;
    Strings environment;
    int code;
    const char* says;
  };
  for (const Case& one :
       {Case{"auto", address, 1, "is \"203.0.113.9\": no interface with the address 203.0.113.9;"},
        Case{"auto", interfaces, 1,
             "is \"nosuch\", which leaves no address to listen on; accepted"},
        Case{"auto", tune, 1, "PEERLANE_TUNE: "}, Case{"203.0.113.9:0", {}, 1, "; this host has: "},
        Case{"foo", {}, 2, "\"foo\""}, Case{"foo", tune, 2, "\"foo\""},
        Case{"foo", address, 2, "\"foo\""}}) {
    CommandRun recv({"recv", "--listen", one.listen}, one.environment, in("there"));
    EXPECT_EQ(recv.wait(), one.code) << one.listen << recv.err();
    EXPECT_NE(recv.err().find(one.says), std::string::npos) << recv.err();
  }
}

TEST_F(FileCommands, RefuseWhatCannotBeRead) {
  const std::string ticket = startRecv();
  CommandRun folder({"send", in("there"), "--to", ticket});
  EXPECT_EQ(folder.wait(), 2) << "no folder is ever accepted";
  for (const char* const listen : {"foo", "127.0.0.1", "127.0.0.1:99999"}) {
    CommandRun recv({"recv", "--listen", listen}, {}, "/tmp");
    EXPECT_EQ(recv.wait(), 2) << listen << recv.err();
  }
  EXPECT_NE(folder.err().find(in("there")), std::string::npos) << folder.err();
  CommandRun absent({"send", in("absent"), "--to", ticket});
  EXPECT_EQ(absent.wait(), 1) << "it may be there later";
  EXPECT_NE(absent.err().find(in("absent")), std::string::npos) << absent.err();
  // The receiver was not troubled.
  CommandRun send({"send", makeFile("in.bin", 10), "--to", ticket});
  EXPECT_EQ(send.wait(), 0) << send.err();
  EXPECT_EQ(recv_->wait(), 0) << recv_->err();
}

TEST_F(FileCommands, TellTheReceiverThatReadingFailed) {
  const std::string ticket = startRecv();
  CommandRun send({"send", "/proc/self/mem", "--to", ticket});  // opens, and fails when it is read
  expectFailure(send, "cannot read /proc/self/mem");
}

TEST_F(FileCommands, KeepAnExistingFileUnlessForced) {
  const std::string file = makeFile("in.bin", 1000);
  std::ofstream(in("there/in.bin")) << "precious";
  CommandRun early({"recv", "--out", in("there/in.bin")});
  EXPECT_EQ(early.wait(), 1) << "known before anybody sends";
  EXPECT_EQ(early.out(), "");
  EXPECT_NE(early.err().find("--force"), std::string::npos) << early.err();

  const std::string ticket = startRecv();
  CommandRun send({"send", file, "--to", ticket});
  expectFailure(send, "in.bin exists already", {"in.bin"});
  EXPECT_EQ(contentOf(in("there/in.bin")), "precious");

  const std::string forced = startRecv({"--force"});
  CommandRun again({"send", file, "--to", forced});
  EXPECT_EQ(again.wait(), 0) << again.err();
  EXPECT_EQ(recv_->wait(), 0) << recv_->err();
  EXPECT_EQ(received(), Strings{"in.bin"});
  EXPECT_TRUE(contentOf(in("there/in.bin")) == contentOf(file));
}

TEST_F(FileCommands, SayAtOnceThatThereIsNoRoom) {
  const std::string file = makeFile("in.bin", 3'000'000);
  const std::string ticket = startRecv();
  recv_->limitFileSize(1'000'000);
  CommandRun send({"send", file, "--to", ticket});
  expectFailure(send, "no room for 3000000 bytes");
}

TEST_F(FileCommands, SayThatTheRoomRanOut) {
  const std::string ticket = startRecv({"--memory", "64KiB"});
  recv_->limitFileSize(1'000'000);
  CommandRun send({"send", "/dev/zero", "--to", ticket});  // nobody knows its length before
  expectFailure(send, "write after 1000000 bytes");
}

TEST_F(FileCommands, SayThatTheDiskIsFull) {
  if (::mount("small", in("there").c_str(), "tmpfs", 0, "size=1m") != 0) {
    // Without rights to mount, the two tests above stand for this one.
    ASSERT_TRUE(errno == EPERM || errno == EACCES);
    return;
  }
  const std::string file = makeFile("in.bin", 3'000'000);
  const std::string ticket = startRecv();
  CommandRun send({"send", file, "--to", ticket});
  expectFailure(send, "No space left on device");
  const std::string next = startRecv({"--memory", "64KiB"});
  CommandRun endless({"send", "/dev/zero", "--to", next});
  expectFailure(endless, "No space left on device");
  recv_.reset();
  EXPECT_EQ(::umount(in("there").c_str()), 0);
}

// A sender in the middle of a file: its source is a pipe that this test holds open.
class FileCommandsMidway : public FileCommands {
 protected:
  void start(const Strings& sendEnvironment = {}) {
    const std::string pipe = in("pipe");
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    ticket_ = startRecv({"--memory", "64KiB"});
    send_.emplace(Strings{"send", pipe, "--to", ticket_}, sendEnvironment);
    // A sender that has gone makes a write fail, and does not end this program.
    ::signal(SIGPIPE, SIG_IGN);
    pipe_ = ::open(pipe.c_str(), O_WRONLY | O_CLOEXEC);
    ASSERT_GE(pipe_, 0);
    feed(1 << 20);  // more than pipe and ring hold: most of it is at the receiver when this returns
  }
  void TearDown() override {
    if (pipe_ >= 0) ::close(pipe_);
    FileCommands::TearDown();
  }
  void feed(size_t bytes) const {
    const std::string content(bytes, 'x');
    EXPECT_EQ(::write(pipe_, content.data(), bytes), static_cast<ssize_t>(bytes));
  }

  // For a notice and an exit with all its checks; silence alone is noticed after 30 s.
  static constexpr seconds kNoticed{10};
  std::string ticket_;
  std::optional<CommandRun> send_;
  int pipe_ = -1;
};

TEST_F(FileCommandsMidway, TheReceiverNoticesAKilledSender) {
  start();
  send_->signal(SIGKILL);
  EXPECT_EQ(recv_->wait(kNoticed), 1) << "the peer's end is to be noticed, not its silence";
  EXPECT_NE(
      recv_->err().find("peerlane: PeerLost: the sender ended before it had sent the whole file: "),
      std::string::npos)
      << recv_->err();
  EXPECT_EQ(received(), Strings{});
}

TEST_F(FileCommandsMidway, TheSenderNoticesAKilledReceiver) {
  start();
  recv_->signal(SIGKILL);
  EXPECT_EQ(recv_->wait(), 128 + SIGKILL);
  EXPECT_EQ(received(), Strings{}) << "a killed receiver leaves nothing either";
  const std::string more(1 << 16, 'x');  // the sender may be gone before it has read all this
  (void)!::write(pipe_, more.data(), more.size());
  EXPECT_EQ(send_->wait(kNoticed), 1);
  EXPECT_NE(
      send_->err().find("peerlane: PeerLost: the receiver ended before it had the whole file: "),
      std::string::npos)
      << send_->err();
}

TEST_F(FileCommandsMidway, TheSenderNoticesAFrozenReceiver) {
  start({"PEERLANE_PEER_TIMEOUT=1500ms"});  // a receiver that is only slow is not silent
  ASSERT_TRUE(recv_->freeze());
  ::fcntl(pipe_, F_SETFL, O_NONBLOCK);
  const std::string more(1 << 18,
                         'x');  // more than the ring holds; it stops reading when that is full
  const auto deadline = std::chrono::steady_clock::now() + seconds(20);
  int code = -1;
  while (code < 0 && std::chrono::steady_clock::now() < deadline) {
    (void)!::write(pipe_, more.data(), more.size());
    code = send_->wait(std::chrono::milliseconds(50));
  }
  EXPECT_EQ(code, 1);
  EXPECT_NE(send_->err().find("peerlane: PeerSilent: "), std::string::npos) << send_->err();
  recv_->signal(SIGCONT);
  EXPECT_EQ(recv_->wait(seconds(10)), 1);
  EXPECT_EQ(received(), Strings{});
}

TEST_F(FileCommandsMidway, AnInterruptedReceiverLeavesNothing) {
  start();
  recv_->signal(SIGINT);
  EXPECT_NE(recv_->wait(), 0);
  EXPECT_EQ(received(), Strings{});
}

TEST_F(FileCommandsMidway, AnInterruptedSenderIsNamed) {
  start();
  send_->signal(SIGINT);
  EXPECT_EQ(recv_->wait(kNoticed), 1);
  EXPECT_NE(recv_->err().find("the sender ended before"), std::string::npos) << recv_->err();
}

TEST_F(FileCommandsMidway, ASecondSenderIsToldAtOnce) {
  start();
  CommandRun second({"send", makeFile("second.bin", 10), "--to", ticket_});
  EXPECT_EQ(second.wait(seconds(10)), 1) << second.out();
  EXPECT_NE(second.err().find("the receiver took another file"), std::string::npos) << second.err();
  ::close(pipe_);
  pipe_ = -1;
  EXPECT_EQ(send_->wait(), 0) << send_->err();
  EXPECT_EQ(recv_->wait(), 0) << recv_->err();
  EXPECT_EQ(received(), Strings{"pipe"});
}

TEST_F(FileCommands, WaitOnWhenAPeerOffersNothing) {
  const std::string ticket = startRecv();
  CommandRun explain({"explain", ticket});
  EXPECT_EQ(explain.wait(), 0) << explain.err();
  CommandRun send({"send", makeFile("in.bin", 10), "--to", ticket});
  EXPECT_EQ(send.wait(), 0) << send.err();
  EXPECT_EQ(recv_->wait(), 0) << recv_->err();
}

TEST_F(FileCommands, RefuseTicketsThatLeadNowhere) {
  const std::string file = makeFile("in.bin", 10);
  const std::string ticket = startRecv();
  const auto refused = [&](int code, const std::string& text, const std::string& reason) {
    CommandRun send({"send", file, "--to", text});
    EXPECT_EQ(send.wait(), code) << text;
    EXPECT_EQ(linesOf(send.err()).size(), 1u) << send.err();
    EXPECT_NE(send.err().find(reason), std::string::npos) << send.err();
    EXPECT_EQ(send.err().find(ticket.substr(10, 20)), std::string::npos) << "it holds a secret";
    EXPECT_EQ(send.err().find("nobody"), std::string::npos) << "somebody waits: " << send.err();
  };
  refused(2, "nonsense", "ticket");
  refused(2, ticket.substr(0, ticket.size() - 5), "ticket");
  refused(1, "@" + in("absent"), "absent");
  refused(2, "env:PEERLANE_ABSENT", "PEERLANE_ABSENT");
  // As from a container with a network of its own.
  Ticket elsewhere = Ticket::decode(ticket).value();
  elsewhere.hostIdentity = hostIdentityOf(bootId().value(), namespaceInode("net") + 1);
  refused(1, elsewhere.encode().value(),
          "on this host, in another network namespace: set PEERLANE_SOCKET_DIR to a folder that "
          "both see");
  // The waiting receiver was not troubled by any of them.
  EXPECT_EQ(recv_->wait(std::chrono::milliseconds(0)), -1) << recv_->err();
  recv_->signal(SIGKILL);
  EXPECT_EQ(recv_->wait(), 128 + SIGKILL);
  refused(1, ticket, "Unavailable: the receiver is not reached (its ticket is good as long as ");
}

}  // namespace
}  // namespace peerlane
