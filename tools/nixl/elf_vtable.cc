// SPDX-License-Identifier: Apache-2.0
#include "tools/nixl/elf_vtable.h"

#include <elf.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "peerlane/core/text.h"

namespace peerlane {
namespace {

// Of a file made to waste time: longer names are no methods, and many symbols may share a long one.
constexpr uint64_t kLongestName = 4096;
constexpr size_t kMostNames = 8;
constexpr uint64_t kMostFunctions = 1024;
constexpr uint64_t kWord = 8;

Status damaged(const std::string& what) {
  return Status(Code::kCorrupt, "no shared object, or a damaged one: " + what);
}

// The class of "_ZTV15nixlPosixEngine"; empty for other names, and for classes in namespaces.
std::string_view classOfTable(std::string_view symbol) {
  constexpr std::string_view kTable = "_ZTV";
  if (!symbol.starts_with(kTable)) return {};
  symbol.remove_prefix(kTable.size());
  size_t length = 0;
  const auto parsed = std::from_chars(symbol.data(), symbol.data() + symbol.size(), length);
  if (parsed.ec != std::errc()) return {};
  symbol.remove_prefix(static_cast<size_t>(parsed.ptr - symbol.data()));
  return symbol.size() == length ? symbol : std::string_view();
}

template <typename T>
bool readAt(std::span<const std::byte> bytes, uint64_t offset, T& out) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof out) return false;
  std::memcpy(&out, bytes.data() + offset, sizeof out);
  return true;
}

}  // namespace

class ElfVtables::Reader {
 public:
  explicit Reader(std::span<const std::byte> file) : file_(file) {}

  Result<ElfVtables> read() {
    PEERLANE_RETURN_IF_ERROR(readSections());
    symbols_.resize(sections_.size());
    for (size_t i = 0; i < sections_.size(); ++i)
      if (isSymbolTable(sections_[i])) PEERLANE_RETURN_IF_ERROR(readSymbols(i));
    for (const Section& section : sections_) {
      if (section.header.sh_type == SHT_PROGBITS)
        found_.mapped_.push_back({section.header.sh_addr, section.content});
      if (section.header.sh_type == SHT_RELA) PEERLANE_RETURN_IF_ERROR(readRelocations(section));
    }
    if (found_.functions_.empty() && found_.tables_.empty())
      return Status(Code::kNotSupported, "a shared object without symbols");
    return std::move(found_);
  }

 private:
  struct Section {
    Elf64_Shdr header{};
    std::span<const std::byte> content{};
  };

  static bool isSymbolTable(const Section& section) {
    return section.header.sh_type == SHT_DYNSYM || section.header.sh_type == SHT_SYMTAB;
  }

  Status readSections() {
    Elf64_Ehdr header;
    if (!readAt(file_, 0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
      return damaged("it does not begin as an ELF file");
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
        header.e_machine != EM_X86_64 || header.e_type != ET_DYN)
      return Status(Code::kNotSupported, "an ELF file, but no shared object for x86-64");
    if (header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shoff > file_.size())
      return damaged("it has no table of sections");
    uint64_t tableBytes = 0;
    for (uint64_t i = 0; i < header.e_shnum; ++i) {
      Section section;
      if (!readAt(file_, header.e_shoff + i * sizeof section.header, section.header))
        return damaged("its table of sections is cut off");
      PEERLANE_RETURN_IF_ERROR(findContent(section));
      if (isSymbolTable(section) || section.header.sh_type == SHT_RELA)
        tableBytes += section.content.size();
      sections_.push_back(section);
    }
    // Else a small file could have us read the same table as often as it has sections.
    return tableBytes <= file_.size() ? Status::ok() : damaged("its tables overlap");
  }

  Status findContent(Section& section) const {
    const Elf64_Shdr& header = section.header;
    if (header.sh_type == SHT_NOBITS || header.sh_type == SHT_NULL) return Status::ok();
    if (header.sh_offset > file_.size() || header.sh_size > file_.size() - header.sh_offset)
      return damaged("a section is cut off");
    section.content = file_.subspan(header.sh_offset, header.sh_size);
    return Status::ok();
  }

  // Empty where no name of an acceptable length begins.
  static std::string_view nameAt(const Section& names, uint64_t offset) {
    if (offset >= names.content.size()) return {};
    const auto rest = names.content.subspan(offset);
    const void* end = std::memchr(rest.data(), 0, std::min(rest.size(), kLongestName + 1));
    if (end == nullptr) return {};
    const char* begin = reinterpret_cast<const char*>(rest.data());
    return {begin, static_cast<size_t>(static_cast<const char*>(end) - begin)};
  }

  Status readSymbols(size_t index) {
    const Section& table = sections_[index];
    if (table.header.sh_link >= sections_.size() ||
        sections_[table.header.sh_link].header.sh_type != SHT_STRTAB)
      return damaged("a table of symbols has no names");
    const Section& names = sections_[table.header.sh_link];
    Elf64_Sym symbol;
    for (uint64_t at = 0; readAt(table.content, at, symbol); at += sizeof symbol) {
      const std::string_view name = nameAt(names, symbol.st_name);
      symbols_[index].push_back(name);
      if (symbol.st_shndx == SHN_UNDEF || name.empty()) continue;
      if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC) addFunction(symbol.st_value, name);
      const std::string_view owner = classOfTable(name);
      if (!owner.empty())
        found_.tables_.emplace(owner, Table{.address = symbol.st_value, .bytes = symbol.st_size});
    }
    return Status::ok();
  }

  void addFunction(uint64_t address, std::string_view name) {
    auto& names = found_.functions_[address];
    if (names.size() < kMostNames && std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(name);
  }

  Status readRelocations(const Section& table) {
    if (table.header.sh_link >= sections_.size())
      return damaged("relocations name no table of symbols");
    const auto& symbols = symbols_[table.header.sh_link];
    Elf64_Rela entry;
    for (uint64_t at = 0; readAt(table.content, at, entry); at += sizeof entry) {
      const uint64_t type = ELF64_R_TYPE(entry.r_info);
      const uint64_t symbol = ELF64_R_SYM(entry.r_info);
      if (type == R_X86_64_RELATIVE)
        found_.relocations_.emplace(entry.r_offset,
                                    Relocation{.address = static_cast<uint64_t>(entry.r_addend)});
      else if (type == R_X86_64_64 && symbol < symbols.size())
        found_.relocations_.emplace(entry.r_offset, Relocation{.symbol = symbols[symbol]});
    }
    return Status::ok();
  }

  const std::span<const std::byte> file_;
  std::vector<Section> sections_;
  std::vector<std::vector<std::string_view>> symbols_;  // by section; empty: no table of symbols
  ElfVtables found_;
};

Result<ElfVtables> ElfVtables::read(std::span<const std::byte> file) {
  return Reader(file).read();
}

std::vector<std::string> ElfVtables::classes() const {
  std::vector<std::string> names;
  for (const auto& [name, table] : tables_) names.emplace_back(name);
  return names;
}

// Packed relocations (DT_RELR) are none of those that were read: they keep the address in the word
// itself. 0 where the file holds nothing.
uint64_t ElfVtables::wordAt(uint64_t address) const {
  for (const Mapped& mapped : mapped_) {
    uint64_t word = 0;
    if (address >= mapped.address && readAt(mapped.content, address - mapped.address, word))
      return word;
  }
  return 0;
}

ElfVtables::Symbols ElfVtables::symbolsAt(uint64_t place) const {
  const auto relocated = relocations_.find(place);
  const bool isRelocated = relocated != relocations_.end();
  if (isRelocated && !relocated->second.symbol.empty())
    return {std::string(relocated->second.symbol)};
  const auto named = functions_.find(isRelocated ? relocated->second.address : wordAt(place));
  if (named == functions_.end()) return {};
  return {named->second.begin(), named->second.end()};
}

Result<std::vector<ElfVtables::Symbols>> ElfVtables::functions(const std::string& className) const {
  const auto found = tables_.find(className);
  if (found == tables_.end())
    return Status(Code::kInvalidArgument,
                  "no class " + peerlane::quoted(className) + " has a table");
  const Table& table = found->second;
  // Two words before the functions: the offset to the whole object, and its type.
  if (table.bytes < 2 * kWord || table.bytes % kWord != 0 ||
      table.bytes / kWord - 2 > kMostFunctions || table.address > UINT64_MAX - table.bytes)
    return damaged("the table of " + peerlane::quoted(className) + " has " +
                   std::to_string(table.bytes) + " bytes");
  std::vector<Symbols> functions;
  for (uint64_t at = 2 * kWord; at < table.bytes; at += kWord)
    functions.push_back(symbolsAt(table.address + at));
  return functions;
}

}  // namespace peerlane
