// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/verbs/verbs_library.h"

#include <dlfcn.h>

#include <cerrno>
#include <map>
#include <memory>

#include "peerlane/core/mutex.h"

namespace peerlane::verbs {
namespace {

// Children of fork must not take over pages that a device reads and writes. New kernels see to that
// themselves; for older ones the library must be told before the first registration.
Status makeForkSafe(const Library& library) {
  if (library.ibv_is_fork_initialized != nullptr &&
      library.ibv_is_fork_initialized() != IBV_FORK_DISABLED)
    return Status::ok();
  if (const int error = library.ibv_fork_init(); error != 0)
    return Status::system(error, library.file + ": ibv_fork_init");
  return Status::ok();
}

Result<std::unique_ptr<const Library>> load(const std::string& file) {
  // Providers keep threads and handlers: never unloaded.
  void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    return Status(Code::kNotSupported, std::string("no libibverbs here: ") +
                                           (why != nullptr ? why : file.c_str()) +
                                           " (PEERLANE_IBV_SO can name another file)");
  }
  auto loaded = std::make_unique<Library>();
  loaded->file = file;
#define PEERLANE_VERBS_LOAD(name) \
  loaded->name = reinterpret_cast<decltype(loaded->name)>(::dlsym(handle, #name));
#define PEERLANE_VERBS_REQUIRE(name)   \
  PEERLANE_VERBS_LOAD(name)            \
  if (loaded->name == nullptr)         \
    return Status(Code::kNotSupported, \
                  file + " has no " #name ": it is too old, or not libibverbs");
  PEERLANE_VERBS_ENTRIES(PEERLANE_VERBS_REQUIRE)
  PEERLANE_VERBS_LATER_ENTRIES(PEERLANE_VERBS_LOAD)
#undef PEERLANE_VERBS_REQUIRE
#undef PEERLANE_VERBS_LOAD
  // By its version, because the layout of what it takes is that version's.
  loaded->ibv_reg_mr_ex = reinterpret_cast<decltype(loaded->ibv_reg_mr_ex)>(
      ::dlvsym(handle, "ibv_reg_mr_ex", "IBVERBS_1.15"));
  PEERLANE_RETURN_IF_ERROR(makeForkSafe(*loaded));
  return std::unique_ptr<const Library>(std::move(loaded));
}

}  // namespace

ibv_mr* Library::registerDmaBuf(ibv_pd* domain, int descriptor, uint64_t offset, uint64_t bytes,
                                uint64_t address, int rights) const {
  if (ibv_reg_mr_ex != nullptr) {
    MemoryAttributes memory{.bytes = bytes,
                            .rights = rights,
                            .given = MemoryAttributes::kAddress | MemoryAttributes::kDescriptor |
                                     MemoryAttributes::kOffset,
                            .address = address,
                            .descriptor = descriptor,
                            .offset = offset};
    return ibv_reg_mr_ex(domain, &memory);
  }
  if (ibv_reg_dmabuf_mr != nullptr)
    return ibv_reg_dmabuf_mr(domain, offset, bytes, address, descriptor, rights);
  errno = ENOSYS;
  return nullptr;
}

Result<const Library*> library(const std::string& file) {
  struct Loaded {
    Mutex mutex;
    std::map<std::string, Result<std::unique_ptr<const Library>>> byFile PEERLANE_GUARDED_BY(mutex);
  };
  // Never destroyed: threads of ours may still run while the process exits.
  static auto* const loaded = new Loaded;
  const MutexLock lock(loaded->mutex);
  auto found = loaded->byFile.find(file);
  if (found == loaded->byFile.end()) found = loaded->byFile.emplace(file, load(file)).first;
  if (!found->second.isOk()) return found->second.status();
  return found->second->get();
}

}  // namespace peerlane::verbs
