// SPDX-License-Identifier: Apache-2.0
//
// A shared object of some 900 bytes: the class nixlTiny with five virtual functions, of which each
// is named in another way: by a symbolic relocation, by a relative one (two symbols), by a word
// without a relocation (as packed ones leave it), by an undefined symbol, and not at all.
#pragma once

#include <elf.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

namespace peerlane {

class TinyElf {
 public:
  static constexpr uint64_t kTable = 0x2000;  // where the table of functions stands in memory

  TinyElf() {
    bytes.resize(sizeof(Elf64_Ehdr));
    addSymbols();
    addRelocations();
    std::vector<uint64_t> words(7);
    words[4] = 0x1020;
    const size_t data = place(words.data(), words.size() * 8);
    addSection(SHT_PROGBITS, data, words.size() * 8, 0);
    sections.back().sh_addr = kTable;
    finish();
  }

  std::vector<std::byte> bytes;
  std::vector<Elf64_Shdr> sections{{}};
  size_t sectionsAt = 0;
  size_t symbolsAt = 0;
  size_t relocationsAt = 0;

  template <typename T>
  T& at(size_t offset) {
    return *reinterpret_cast<T*>(bytes.data() + offset);
  }
  Elf64_Ehdr& header() { return at<Elf64_Ehdr>(0); }
  Elf64_Shdr& section(size_t index) {
    return at<Elf64_Shdr>(sectionsAt + index * sizeof(Elf64_Shdr));
  }
  Elf64_Sym& symbol(size_t index) { return at<Elf64_Sym>(symbolsAt + index * sizeof(Elf64_Sym)); }

 private:
  size_t place(const void* content, size_t size) {
    bytes.resize((bytes.size() + 7) / 8 * 8);
    const size_t offset = bytes.size();
    bytes.resize(offset + size);
    std::memcpy(bytes.data() + offset, content, size);
    return offset;
  }

  void addSection(Elf64_Word type, size_t offset, size_t size, Elf64_Word link) {
    Elf64_Shdr section{};
    section.sh_type = type;
    section.sh_offset = offset;
    section.sh_size = size;
    section.sh_link = link;
    sections.push_back(section);
  }

  void addSymbol(const std::string& name, uint64_t address, uint64_t size, unsigned char type,
                 uint16_t section = 4) {
    symbols_.push_back(
        {static_cast<Elf64_Word>(names_.size()), type, STV_DEFAULT, section, address, size});
    names_ += name + '\0';
  }

  void addSymbols() {
    addSymbol("_ZTV8nixlTiny", kTable, 56, STT_OBJECT);
    addSymbol("_ZN8nixlTiny5firstEv", 0x1000, 8, STT_FUNC);
    addSymbol("_ZN8nixlTiny6secondEv", 0x1010, 8, STT_FUNC);
    addSymbol("_ZN8nixlTiny5twiceEv", 0x1010, 8, STT_FUNC);
    addSymbol("_ZN8nixlTiny5thirdEv", 0x1020, 8, STT_FUNC);
    addSymbol("__cxa_pure_virtual", 0, 0, STT_NOTYPE, SHN_UNDEF);
    const size_t names = place(names_.data(), names_.size());
    symbolsAt = place(symbols_.data(), symbols_.size() * sizeof(Elf64_Sym));
    addSection(SHT_STRTAB, names, names_.size(), 0);
    addSection(SHT_DYNSYM, symbolsAt, symbols_.size() * sizeof(Elf64_Sym), 1);
  }

  void addRelocations() {
    const std::vector<Elf64_Rela> relocations{
        {kTable + 16, ELF64_R_INFO(2, R_X86_64_64), 0},
        {kTable + 24, ELF64_R_INFO(0, R_X86_64_RELATIVE), 0x1010},
        {kTable + 40, ELF64_R_INFO(6, R_X86_64_64), 0},
    };
    const size_t size = relocations.size() * sizeof(Elf64_Rela);
    relocationsAt = place(relocations.data(), size);
    addSection(SHT_RELA, relocationsAt, size, 2);
  }

  void finish() {
    sectionsAt = place(sections.data(), sections.size() * sizeof(Elf64_Shdr));
    std::memcpy(header().e_ident, ELFMAG, SELFMAG);
    header().e_ident[EI_CLASS] = ELFCLASS64;
    header().e_ident[EI_DATA] = ELFDATA2LSB;
    header().e_type = ET_DYN;
    header().e_machine = EM_X86_64;
    header().e_shoff = sectionsAt;
    header().e_shentsize = sizeof(Elf64_Shdr);
    header().e_shnum = static_cast<Elf64_Half>(sections.size());
  }

  std::string names_ = std::string(1, '\0');
  std::vector<Elf64_Sym> symbols_{{}};
};

}  // namespace peerlane
