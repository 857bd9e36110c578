// SPDX-License-Identifier: Apache-2.0
//
// The classes of a plug-in of NIXL as tests of their order see them: the names are NIXL's, the
// functions do nothing. Built several times, with something changed each time
// (tests/tools/nixl.cmake).
#include <chrono>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

// NOLINTBEGIN(readability-identifier-naming): see above
class nixlBlobDesc;
class nixlMetaDesc;
class nixlRemoteMetaDesc;
class nixlBackendMD;
class nixlBackendReqH;
class nixlBackendOptionalArgs;
class nixlAgentOptionalArgs;
template <typename Element>
class nixlDescList;
enum nixl_mem_t : int;
enum nixl_xfer_op_t : int;
enum nixl_cost_t : int;

#ifdef FIXTURE_ARGUMENT
using Posted = nixlMetaDesc;
#else
using Posted = nixlBackendOptionalArgs;
#endif
using Text = std::string;
using Texts = std::unordered_map<Text, Text>;
using List = nixlDescList<nixlMetaDesc>;
using Time = std::chrono::microseconds;

class nixlBackendEngine {
 public:
  virtual ~nixlBackendEngine() = default;
  virtual int supportsRemote() const = 0;
  virtual int supportsLocal() const = 0;
  virtual int supportsNotif() const = 0;
  virtual int getSupportedMems() const = 0;
  virtual int registerMem(const nixlBlobDesc&, const nixl_mem_t&, nixlBackendMD*&) = 0;
  virtual int deregisterMem(nixlBackendMD*) = 0;
  virtual int connect(const Text&) = 0;
  virtual int disconnect(const Text&) = 0;
  virtual int unloadMD(nixlBackendMD*) = 0;
#ifndef FIXTURE_SWAPPED
  virtual int prepXfer(const nixl_xfer_op_t&, const List&, const List&, const Text&,
                       nixlBackendReqH*&, const nixlBackendOptionalArgs*) const = 0;
#endif
  virtual int postXfer(const nixl_xfer_op_t&, const List&, const List&, const Text&,
                       nixlBackendReqH*&, const Posted*) const = 0;
#ifdef FIXTURE_SWAPPED
  virtual int prepXfer(const nixl_xfer_op_t&, const List&, const List&, const Text&,
                       nixlBackendReqH*&, const nixlBackendOptionalArgs*) const = 0;
#endif
  virtual int checkXfer(nixlBackendReqH*) const = 0;
  virtual int releaseReqH(nixlBackendReqH*) const = 0;
  virtual int prepMemView(const nixlDescList<nixlRemoteMetaDesc>&, void*&,
                          const nixlBackendOptionalArgs*) const;
  virtual int prepMemView(const List&, void*&, const nixlBackendOptionalArgs*) const {
    return 0;
  }
  virtual int releaseMemView(void*) const {
    return 0;
  }
  virtual int getPublicData(const nixlBackendMD*, Text&) const {
    return 0;
  }
  virtual int getConnInfo(Text&) const {
    return 0;
  }
  virtual int loadRemoteConnInfo(const Text&, const Text&) {
    return 0;
  }
  virtual int loadRemoteMD(const nixlBlobDesc&, const nixl_mem_t&, const Text&, nixlBackendMD*&) {
    return 0;
  }
  virtual int loadLocalMD(nixlBackendMD*, nixlBackendMD*&) {
    return 0;
  }
  virtual int getNotifs(std::vector<std::pair<Text, Text>>&) {
    return 0;
  }
  virtual int genNotif(const Text&, const Text&) const {
    return 0;
  }
  virtual int queryMem(const nixlDescList<nixlBlobDesc>&,
                       std::vector<std::optional<Texts>>&) const {
    return 0;
  }
#ifndef FIXTURE_FEWER
  virtual int estimateXferCost(const nixl_xfer_op_t&, const List&, const List&, const Text&,
                               nixlBackendReqH* const&, Time&, Time&, nixl_cost_t&,
                               const nixlAgentOptionalArgs*) const {
    return 0;
  }
#endif
#ifdef FIXTURE_MORE
  virtual int cancelXfer(nixlBackendReqH*) const {
    return 0;
  }
#endif
};

// The first function that is not inline decides that the table is in this object.
int nixlBackendEngine::prepMemView(const nixlDescList<nixlRemoteMetaDesc>&, void*&,
                                   const nixlBackendOptionalArgs*) const {
  return 0;
}

#ifndef FIXTURE_BASE_ALONE
class nixlPosixEngine : public nixlBackendEngine {
 public:
  ~nixlPosixEngine() override;
  int supportsRemote() const override { return 0; }
  int supportsLocal() const override { return 0; }
  int supportsNotif() const override { return 0; }
  int getSupportedMems() const override { return 0; }
  int registerMem(const nixlBlobDesc&, const nixl_mem_t&, nixlBackendMD*&) override { return 0; }
  int deregisterMem(nixlBackendMD*) override { return 0; }
  int connect(const Text&) override { return 0; }
  int disconnect(const Text&) override { return 0; }
  int unloadMD(nixlBackendMD*) override { return 0; }
  int prepXfer(const nixl_xfer_op_t&, const List&, const List&, const Text&, nixlBackendReqH*&,
               const nixlBackendOptionalArgs*) const override {
    return 0;
  }
  int postXfer(const nixl_xfer_op_t&, const List&, const List&, const Text&, nixlBackendReqH*&,
               const Posted*) const override {
    return 0;
  }
  int checkXfer(nixlBackendReqH*) const override { return 0; }
  int releaseReqH(nixlBackendReqH*) const override { return 0; }
  int loadLocalMD(nixlBackendMD*, nixlBackendMD*&) override { return 0; }
  virtual int ownOne() { return 0; }
};

nixlPosixEngine::~nixlPosixEngine() = default;
#endif
#ifdef FIXTURE_LIBRARY
extern "C" int peerlaneFixtureNeeded();
#else
static int peerlaneFixtureNeeded() {
  return 0;
}
#endif

#ifndef FIXTURE_API
#define FIXTURE_API 1
#endif

// As the plug-ins of NIXL begin.
extern "C" const int* nixl_plugin_init() {
  static int version = FIXTURE_API;
  version += peerlaneFixtureNeeded();
  return &version;
}
// NOLINTEND(readability-identifier-naming)
