// SPDX-License-Identifier: Apache-2.0
//
// The binary interface between NIXL's agent (libnixl.so of the wheels nixl-cu12 and
// nixl-cu13, 1.3.2 to 1.5.1) and a back end, as the wheels have it: sizes, offsets and the order of
// virtual functions, read from the wheels' own plug-ins and described here in names of our own.
// Nothing here refers to a symbol of NIXL. tests/integrations/nixl compares it with an installed
// wheel.
//
// The agent reads members of the engine inline, and both sides pass containers of libstdc++ by
// value or by reference: a plug-in must be built with its new string ABI, without _GLIBCXX_DEBUG.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#if !defined(_GLIBCXX_USE_CXX11_ABI) || _GLIBCXX_USE_CXX11_ABI != 1 || defined(_GLIBCXX_DEBUG)
#error "a plug-in of NIXL needs libstdc++ with _GLIBCXX_USE_CXX11_ABI=1 and without _GLIBCXX_DEBUG"
#endif

namespace peerlane::nixl::abi {

// What the wheels' agent accepts in Plugin::apiVersion; any other number is refused at load.
inline constexpr int kApiVersion = 1;

enum class MemoryType : uint32_t { kDram = 0, kVram = 1, kBlock = 2, kObject = 3, kFile = 4 };
enum class Direction : uint32_t { kRead = 0, kWrite = 1 };
enum class CostMethod : int32_t { kAnalytical = 0 };
enum class Answer : int32_t {
  kInProgress = 1,
  kSuccess = 0,
  kNotPosted = -1,
  kInvalidParam = -2,
  kBackend = -3,
  kNotFound = -4,
  kMismatch = -5,
  kNotAllowed = -6,
  kRepostActive = -7,
  kUnknown = -8,
  kNotSupported = -9,
  kRemoteDisconnect = -10,
  kCanceled = -11,
};

using Params = std::unordered_map<std::string, std::string>;
// Pairs of the sender's name and a message.
using Notifications = std::vector<std::pair<std::string, std::string>>;

class Metadata;

// A piece of memory; `device` is a number of the agent's user.
struct Piece {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint64_t device = 0;
};
struct RegisteredPiece : Piece {
  Metadata* metadata = nullptr;
};
struct DescribedPiece : Piece {
  std::string text{};  // of the user at registration, of getPublicData() at the peer
};

template <typename Element>
class List {
 public:
  virtual ~List() = default;
  MemoryType type() const { return type_; }
  const std::vector<Element>& pieces() const { return pieces_; }

 private:
  MemoryType type_ = MemoryType::kDram;
  std::vector<Element> pieces_{};
};
using TransferList = List<RegisteredPiece>;
using RegistrationList = List<DescribedPiece>;

struct PostArguments {
  std::string message{};
  bool hasMessage = false;
  std::string custom{};
};

struct InitParams {
  std::string agent{};
  std::string type{};  // the name of the plug-in's file without libplugin_ and .so
  Params* params = nullptr;
  bool wantsProgressThread = false;
  uint64_t progressDelayUs = 0;
  int32_t syncMode = 0;  // 0 none, 1 strict, 2 read-write
  bool telemetry = false;
};

// What registerMem and its kin return, as the agent knows it.
class Metadata {
 public:
  explicit Metadata(bool isPrivate) : isPrivate_(isPrivate) {}
  virtual ~Metadata() = default;

 protected:
  bool isPrivate_;
};

class RequestHandle {
 public:
  virtual ~RequestHandle() = default;
};

// One engine belongs to one agent. The order of the virtual functions is the interface.
class Engine {
 public:
  explicit Engine(const InitParams& init)
      : type_(init.type), params_(*init.params), agent_(init.agent), telemetry_(init.telemetry) {}
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  virtual ~Engine() = default;

  virtual bool supportsRemote() const = 0;
  virtual bool supportsLocal() const = 0;
  virtual bool supportsNotifications() const = 0;
  virtual std::vector<MemoryType> memoryTypes() const = 0;
  virtual Answer registerMemory(const DescribedPiece& piece, const MemoryType& type,
                                Metadata*& out) = 0;
  virtual Answer deregisterMemory(Metadata* local) = 0;
  virtual Answer connect(const std::string& agent) = 0;
  virtual Answer disconnect(const std::string& agent) = 0;
  virtual Answer unload(Metadata* loaded) = 0;
  virtual Answer prepare(const Direction& direction, const TransferList& local,
                         const TransferList& remote, const std::string& agent,
                         RequestHandle*& handle, const PostArguments* arguments) const = 0;
  virtual Answer post(const Direction& direction, const TransferList& local,
                      const TransferList& remote, const std::string& agent, RequestHandle*& handle,
                      const PostArguments* arguments) const = 0;
  virtual Answer check(RequestHandle* handle) const = 0;
  virtual Answer release(RequestHandle* handle) const = 0;
  // Views of memory for GPU kernels: their arguments are of no interest to who refuses them.
  virtual Answer prepareRemoteView() const { return Answer::kNotSupported; }
  virtual Answer prepareLocalView() const { return Answer::kNotSupported; }
  virtual void releaseView() const {}
  virtual Answer publicData(const Metadata* local, std::string& out) const = 0;
  virtual Answer connectionInfo(std::string& out) const = 0;
  virtual Answer loadConnectionInfo(const std::string& agent, const std::string& info) = 0;
  virtual Answer loadRemote(const DescribedPiece& piece, const MemoryType& type,
                            const std::string& agent, Metadata*& out) = 0;
  virtual Answer loadLocal(Metadata* local, Metadata*& out) = 0;
  virtual Answer takeNotifications(Notifications& out) = 0;
  virtual Answer sendNotification(const std::string& agent, const std::string& message) const = 0;
  virtual Answer query(const RegistrationList& pieces,
                       std::vector<std::optional<Params>>& out) const = 0;
  virtual Answer estimate(const Direction& direction, const TransferList& local,
                          const TransferList& remote, const std::string& agent,
                          RequestHandle* const& handle, std::chrono::microseconds& duration,
                          std::chrono::microseconds& margin, CostMethod& method,
                          const void* arguments) const = 0;

 protected:
  // The agent fails the creation when it finds this set.
  void setFailed() { failed_ = true; }
  const std::string& agentName() const { return agent_; }
  // What the agent's user reads as the parameters of this back end. Requires: calls that the agent
  // makes under its lock.
  Params& params() { return params_; }

 private:
  std::string type_;
  Params params_;
  std::vector<std::byte> events_{};  // elements that this side never makes
  std::mutex eventsMutex_{};
  bool failed_ = false;
  const std::string agent_;
  [[maybe_unused]] const bool telemetry_;  // read by those of the agent alone
  friend struct Layout;
};

// What nixl_plugin_init() returns.
struct Plugin {
  int apiVersion = kApiVersion;
  Engine* (*create)(const InitParams*) = nullptr;
  void (*destroy)(Engine*) = nullptr;
  const char* (*name)() = nullptr;
  const char* (*version)() = nullptr;
  Params (*options)() = nullptr;
  std::vector<MemoryType> (*memoryTypes)() = nullptr;
};

static_assert(sizeof(std::string) == 32 && sizeof(Params) == 56 && sizeof(std::mutex) == 40);
static_assert(sizeof(Piece) == 24 && sizeof(RegisteredPiece) == 32 && sizeof(DescribedPiece) == 56);
static_assert(sizeof(TransferList) == 40 && sizeof(PostArguments) == 72);
static_assert(sizeof(InitParams) == 96 && sizeof(Metadata) == 16 && sizeof(RequestHandle) == 8);
static_assert(sizeof(Engine) == 208 && sizeof(Plugin) == 56);
struct Layout {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"  // exact with the Itanium ABI
  static_assert(offsetof(Engine, type_) == 8 && offsetof(Engine, params_) == 40);
  static_assert(offsetof(Engine, events_) == 96 && offsetof(Engine, eventsMutex_) == 120);
  static_assert(offsetof(Engine, failed_) == 160 && offsetof(Engine, agent_) == 168);
  static_assert(offsetof(Engine, telemetry_) == 200);
#pragma GCC diagnostic pop
  static_assert(offsetof(InitParams, type) == 32 && offsetof(InitParams, params) == 64);
  static_assert(offsetof(InitParams, wantsProgressThread) == 72);
  static_assert(offsetof(InitParams, progressDelayUs) == 80);
  static_assert(offsetof(InitParams, syncMode) == 88 && offsetof(InitParams, telemetry) == 92);
  static_assert(offsetof(PostArguments, hasMessage) == 32 && offsetof(PostArguments, custom) == 40);
};

}  // namespace peerlane::nixl::abi
