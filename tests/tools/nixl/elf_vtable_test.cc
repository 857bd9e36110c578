// SPDX-License-Identifier: Apache-2.0
#include "tools/nixl/elf_vtable.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/os/child_process.h"
#include "tests/tools/nixl/tiny_elf.h"
#include "tools/nixl/file_content.h"

namespace peerlane {
namespace {

using Symbols = ElfVtables::Symbols;

Code codeOf(std::span<const std::byte> file) {
  return ElfVtables::read(file).status().code();
}

std::vector<Symbols> functionsOf(std::span<const std::byte> file, const std::string& name) {
  const auto tables = ElfVtables::read(file);
  if (!tables.isOk()) return {{tables.status().toString()}};
  const auto functions = tables->functions(name);
  return functions.isOk() ? *functions : std::vector<Symbols>{{functions.status().toString()}};
}

TEST(ElfVtables, ReadEachKindOfReference) {
  const TinyElf elf;
  const auto tables = ElfVtables::read(elf.bytes);
  ASSERT_TRUE(tables.isOk()) << tables.status().toString();
  EXPECT_EQ(tables->classes(), std::vector<std::string>{"nixlTiny"});
  const std::vector<Symbols> expected{{"_ZN8nixlTiny5firstEv"},
                                      {"_ZN8nixlTiny6secondEv", "_ZN8nixlTiny5twiceEv"},
                                      {"_ZN8nixlTiny5thirdEv"},
                                      {"__cxa_pure_virtual"},
                                      {}};
  EXPECT_EQ(functionsOf(elf.bytes, "nixlTiny"), expected);
  EXPECT_EQ(tables->functions("nixlTin").status().code(), Code::kInvalidArgument);
}

// The order is that of the table, for objects with and without symbols in their relocations.
TEST(ElfVtables, ReadWhatTheCompilerMakes) {
  for (const char* name : {"libengine_fixture.so", "libengine_fixture_bound.so"}) {
    const auto file = contentOfFile(child::besideThis(name));
    ASSERT_TRUE(file.isOk()) << file.status().toString();
    const auto functions = functionsOf(*file, "nixlPosixEngine");
    ASSERT_EQ(functions.size(), 28u) << name;
    EXPECT_EQ(functions[1], Symbols{"_ZN15nixlPosixEngineD0Ev"}) << name;
    EXPECT_EQ(functions[13], Symbols{"_ZNK15nixlPosixEngine9checkXferEP15nixlBackendReqH"}) << name;
    EXPECT_EQ(functions[17], Symbols{"_ZNK17nixlBackendEngine14releaseMemViewEPv"}) << name;
    EXPECT_EQ(functions[27], Symbols{"_ZN15nixlPosixEngine6ownOneEv"}) << name;
    EXPECT_EQ(functionsOf(*file, "nixlBackendEngine")[9], Symbols{"__cxa_pure_virtual"}) << name;
  }
}

TEST(ElfVtables, RefuseWhatIsNoSharedObjectHere) {
  EXPECT_EQ(codeOf({}), Code::kCorrupt);
  const std::string text = "#!/bin/sh\necho a script that is longer than the beginning of a file\n";
  EXPECT_EQ(codeOf(std::as_bytes(std::span(text))), Code::kCorrupt);
  const auto changed = [](auto change) {
    TinyElf elf;
    change(elf.header());
    return codeOf(elf.bytes);
  };
  EXPECT_EQ(changed([](Elf64_Ehdr& head) { head.e_machine = EM_AARCH64; }), Code::kNotSupported);
  EXPECT_EQ(changed([](Elf64_Ehdr& head) { head.e_type = ET_REL; }), Code::kNotSupported);
  EXPECT_EQ(changed([](Elf64_Ehdr& head) { head.e_ident[EI_CLASS] = ELFCLASS32; }),
            Code::kNotSupported);
  EXPECT_EQ(changed([](Elf64_Ehdr& head) { head.e_ident[EI_DATA] = ELFDATA2MSB; }),
            Code::kNotSupported);
  EXPECT_EQ(changed([](Elf64_Ehdr& head) { head.e_shnum = 0; }), Code::kNotSupported);
  EXPECT_EQ(changed([](Elf64_Ehdr& head) { head.e_shentsize = 40; }), Code::kCorrupt);
  EXPECT_EQ(changed([](Elf64_Ehdr& head) { head.e_shoff = UINT64_MAX - 8; }), Code::kCorrupt);
}

TEST(ElfVtables, RefuseTablesThatAreCutOff) {
  const auto changed = [](size_t section, auto change) {
    TinyElf elf;
    change(elf.section(section));
    return codeOf(elf.bytes);
  };
  for (size_t section = 1; section <= 4; ++section) {
    EXPECT_EQ(changed(section, [](Elf64_Shdr& it) { it.sh_offset = UINT64_MAX; }), Code::kCorrupt);
    EXPECT_EQ(changed(section, [](Elf64_Shdr& it) { it.sh_size = UINT64_MAX; }), Code::kCorrupt);
  }
  EXPECT_EQ(changed(2, [](Elf64_Shdr& it) { it.sh_link = 3; }), Code::kCorrupt);
  EXPECT_EQ(changed(2, [](Elf64_Shdr& it) { it.sh_link = 99; }), Code::kCorrupt);
  EXPECT_EQ(changed(3, [](Elf64_Shdr& it) { it.sh_link = 99; }), Code::kCorrupt);
}

TEST(ElfVtables, RefuseATableOfFunctionsThatCannotBe) {
  for (const uint64_t size : {0ull, 8ull, 57ull, 1ull << 40, ~7ull}) {
    TinyElf elf;
    elf.symbol(1).st_size = size;
    const auto tables = ElfVtables::read(elf.bytes);
    ASSERT_TRUE(tables.isOk());
    EXPECT_EQ(tables->functions("nixlTiny").status().code(), Code::kCorrupt) << size;
  }
  TinyElf elf;
  elf.symbol(1).st_value = UINT64_MAX - 16;  // it would wrap around
  EXPECT_EQ(ElfVtables::read(elf.bytes)->functions("nixlTiny").status().code(), Code::kCorrupt);
}

TEST(ElfVtables, NameNothingWhereNoNameIs) {
  TinyElf elf;
  elf.symbol(2).st_name = 1u << 30;  // beyond the names
  elf.section(1).sh_size -= 1;       // the last name has no end any more
  const auto functions = functionsOf(elf.bytes, "nixlTiny");
  ASSERT_EQ(functions.size(), 5u);
  EXPECT_EQ(functions[0], Symbols{});
  EXPECT_EQ(functions[3], Symbols{});
  EXPECT_EQ(functions[1].size(), 2u);
}

// Sections that are all the same table would make a small file as much work as a large one.
TEST(ElfVtables, ReadNoTableOverAndOver) {
  TinyElf elf;
  for (size_t i = 0; i < 40; ++i) elf.sections.push_back(elf.section(2));
  const auto* begin = reinterpret_cast<const std::byte*>(elf.sections.data());
  elf.header().e_shoff = elf.bytes.size();
  elf.header().e_shnum = static_cast<Elf64_Half>(elf.sections.size());
  elf.bytes.insert(elf.bytes.end(), begin, begin + elf.sections.size() * sizeof(Elf64_Shdr));
  for (size_t at = 0; at < 5; ++at)
    std::memcpy(elf.bytes.data() + elf.header().e_shoff + at * sizeof(Elf64_Shdr),
                elf.bytes.data() + elf.sectionsAt + at * sizeof(Elf64_Shdr), sizeof(Elf64_Shdr));
  EXPECT_EQ(codeOf(elf.bytes), Code::kCorrupt);
}

// Whatever is read, it is read inside the file: the address sanitizer watches.
TEST(ElfVtables, SurviveEveryDamage) {
  const TinyElf elf;
  for (size_t size = 0; size < elf.bytes.size(); ++size) {
    const std::vector<std::byte> cut(elf.bytes.begin(),
                                     elf.bytes.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_FALSE(ElfVtables::read(cut).isOk()) << size;
  }
  for (size_t at = 0; at < elf.bytes.size(); ++at)
    for (const unsigned char mask : {0x01, 0x80, 0xFF}) {
      std::vector<std::byte> changed = elf.bytes;
      changed[at] ^= std::byte{mask};
      const auto tables = ElfVtables::read(changed);
      if (!tables.isOk()) continue;
      for (const std::string& name : tables->classes()) (void)tables->functions(name).isOk();
    }
}

}  // namespace
}  // namespace peerlane
