// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/wire/ticket.h"

#include <sodium.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <iostream>
#include <memory>
#include <optional>

#include "peerlane/core/wire.h"
#include "peerlane/os/host_identity.h"
#include "peerlane/session/wire/sodium_bytes.h"

namespace peerlane {
namespace {

constexpr std::string_view kPrefix = "pl1";
constexpr size_t kChecksumBytes = 4;
constexpr size_t kFixedBytes = ContextId::kBytes + Secret::kBytes + 8 + 1;
constexpr size_t kMaxBinaryBytes =
    kFixedBytes + Ticket::kMaxAddresses * (1 + Ticket::kMaxAddressBytes) + kChecksumBytes;
static_assert(kFixedBytes == 57);
static_assert(kPrefix.size() + (kMaxBinaryBytes * 4 + 2) / 3 <= Ticket::kMaxTextBytes);

// libsodium picks its code for this processor once; later calls are a load and a compare.
void readySodium() {
  PEERLANE_CHECK(sodium_init() >= 0);
}

// Bytes that held a secret: wiped when the scope ends, whichever way.
struct WipedBytes {
  explicit WipedBytes(size_t size) : bytes(size) {}
  WipedBytes(const WipedBytes&) = delete;
  WipedBytes& operator=(const WipedBytes&) = delete;
  ~WipedBytes() { sodium_memzero(bytes.data(), bytes.size()); }
  std::vector<std::byte> bytes;
};

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

// libsodium 1.0.18 takes the byte 0x80 for the base64url digit '_'.
bool isAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

// Decodes exactly `out.size()` bytes or nothing. libsodium's decoders take the same time for every
// digit.
bool decodeHex(std::string_view text, std::span<std::byte> out) {
  size_t size = 0;
  const char* end = nullptr;
  return sodium_hex2bin(raw(out.data()), out.size(), text.data(), text.size(), nullptr, &size,
                        &end) == 0 &&
         size == out.size() && end == text.data() + text.size();
}

// The number of bytes written, or nothing when `text` is not strict unpadded base64url or does not
// fit.
std::optional<size_t> decodeBase64(std::string_view text, std::span<std::byte> out) {
  size_t size = 0;
  const char* end = nullptr;
  if (!isAscii(text) ||
      sodium_base642bin(raw(out.data()), out.size(), text.data(), text.size(), nullptr, &size, &end,
                        sodium_base64_VARIANT_URLSAFE_NO_PADDING) != 0 ||
      end != text.data() + text.size()) {
    return std::nullopt;
  }
  return size;
}

std::string encodeBase64(std::span<const std::byte> bytes) {
  constexpr int kVariant = sodium_base64_VARIANT_URLSAFE_NO_PADDING;
  std::string text(sodium_base64_encoded_len(bytes.size(), kVariant), '\0');
  sodium_bin2base64(text.data(), text.size(), raw(bytes.data()), bytes.size(), kVariant);
  text.pop_back();  // the terminator
  return text;
}

// Finds typing and copying mistakes. It is no authentication: a writer of tickets can compute it
// for any content.
std::array<std::byte, kChecksumBytes> checksumOf(std::span<const std::byte> body) {
  std::array<unsigned char, crypto_generichash_BYTES> digest;
  crypto_generichash_state state;
  crypto_generichash_init(&state, nullptr, 0, digest.size());
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(kPrefix.data()),
                            kPrefix.size());
  crypto_generichash_update(&state, raw(body.data()), body.size());
  crypto_generichash_final(&state, digest.data(), digest.size());
  std::array<std::byte, kChecksumBytes> sum;
  std::memcpy(sum.data(), digest.data(), sum.size());
  return sum;
}

// Empty when `address` may stand in a ticket, else why not.
std::string addressDefect(std::string_view address) {
  if (address.empty()) return "is empty";
  if (address.size() > Ticket::kMaxAddressBytes) {
    return "has " + std::to_string(address.size()) + " bytes; at most " +
           std::to_string(Ticket::kMaxAddressBytes) + " fit";
  }
  for (const char c : address) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x20 || code == 0x7f) return "contains a control character";
  }
  return {};
}

Status truncated(size_t have) {
  return Status(Code::kCorrupt, "ticket is truncated: it ends after " + std::to_string(have) +
                                    " bytes, inside a field");
}

Result<std::vector<std::string>> decodeAddresses(ByteReader& reader) {
  const size_t count = reader.u8();
  if (count > Ticket::kMaxAddresses) {
    return Status(Code::kCorrupt, "ticket names " + std::to_string(count) + " addresses; at most " +
                                      std::to_string(Ticket::kMaxAddresses) + " are accepted");
  }
  std::vector<std::string> addresses;
  for (size_t i = 0; i < count; ++i) {
    const auto bytes = reader.raw(reader.u8());
    if (!reader.ok()) break;  // the caller reports the truncation
    std::string address(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (const std::string defect = addressDefect(address); !defect.empty()) {
      return Status(Code::kCorrupt, "ticket's address " + std::to_string(i) + " " + defect);
    }
    addresses.push_back(std::move(address));
  }
  return addresses;
}

Result<Ticket> decodeBinary(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  const auto context = reader.raw(ContextId::kBytes);
  const auto secret = reader.raw(Secret::kBytes);
  Ticket ticket;
  ticket.hostIdentity = reader.u64();
  PEERLANE_ASSIGN(ticket.addresses, decodeAddresses(reader));
  const auto body = bytes.first(reader.offset());
  const auto stated = reader.raw(kChecksumBytes);
  if (!reader.ok()) return truncated(bytes.size());
  if (reader.remaining() != 0) {
    return Status(Code::kCorrupt,
                  "ticket has " + std::to_string(reader.remaining()) + " bytes after its end");
  }
  const auto sum = checksumOf(body);
  if (!std::equal(sum.begin(), sum.end(), stated.begin())) {
    return Status(Code::kCorrupt, "ticket's checksum does not match: it was mistyped or damaged");
  }
  ticket.context = ContextId(context.first<ContextId::kBytes>());
  ticket.secret = Secret(secret.first<Secret::kBytes>());
  if (ticket.context.isNull()) return Status(Code::kCorrupt, "ticket's context id is null");
  if (ticket.secret.isEmpty()) return Status(Code::kCorrupt, "ticket's secret is empty");
  return ticket;
}

// The first line that is not blank, at most Ticket::kMaxTextBytes of input; never waits for a
// second line, so a pipe whose writer stays alive is a good source.
Result<std::string> readLine(std::istream& stream, const std::string& name) {
  std::string line;
  for (size_t taken = 0; taken <= Ticket::kMaxTextBytes; ++taken) {
    const int c = stream.get();
    if (c == std::istream::traits_type::eof() || c == '\n') {
      if (!trimmed(line).empty()) return line;
      line.clear();
      if (c != '\n') return Status(Code::kInvalidArgument, name + " holds no text");
    } else {
      line.push_back(static_cast<char>(c));
    }
  }
  return Status(Code::kInvalidArgument,
                name + " holds more than the " + std::to_string(Ticket::kMaxTextBytes) +
                    " bytes that are read; its first line should be the text");
}

Result<std::string> readFile(const std::string& path) {
  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  struct stat status {};
  if (!stream) return Status::system(errno == 0 ? EIO : errno, "cannot open '" + path + "'");
  if (stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
    return Status(Code::kInvalidArgument, "'" + path + "' is a folder; a file is expected");
  }
  return readLine(stream, "file '" + path + "'");
}

Result<std::string> readSource(std::string_view source, std::istream& standardInput) {
  if (source == "-") return readLine(standardInput, "standard input");
  if (source.starts_with('@')) return readFile(std::string(source.substr(1)));
  if (source.starts_with("env:")) {
    const std::string name(source.substr(4));
    const char* value = name.empty() ? nullptr : std::getenv(name.c_str());
    if (value == nullptr) {
      return Status(Code::kInvalidArgument, "environment variable '" + name + "' is not set");
    }
    return std::string(value);
  }
  return std::string(source);
}

}  // namespace

ContextId::ContextId(std::span<const std::byte, kBytes> bytes) {
  std::copy(bytes.begin(), bytes.end(), bytes_.begin());
}

ContextId ContextId::random() {
  readySodium();
  ContextId id;
  randombytes_buf(id.bytes_.data(), id.bytes_.size());
  return id;
}

Result<ContextId> ContextId::fromText(std::string_view text) {
  ContextId id;
  if (text.size() != 2 * kBytes || !decodeHex(text, id.bytes_)) {
    return Status(Code::kInvalidArgument, "context id of " + std::to_string(text.size()) +
                                              " characters; 32 hexadecimal digits are expected");
  }
  return id;
}

std::string ContextId::toText() const {
  std::array<char, 2 * kBytes + 1> text;
  sodium_bin2hex(text.data(), text.size(), raw(bytes_.data()), bytes_.size());
  return std::string(text.data());
}

Secret Secret::random() {
  readySodium();
  Secret secret;
  randombytes_buf(secret.writableBytes().data(), kBytes);
  return secret;
}

Result<Secret> Secret::fromText(std::string_view text) {
  text = trimmed(text);
  Secret secret;
  const bool decoded = text.size() == 2 * kBytes
                           ? decodeHex(text, secret.writableBytes())
                           : decodeBase64(text, secret.writableBytes()) == kBytes;
  if (!decoded) {
    return Status(Code::kInvalidArgument,
                  "secret of " + std::to_string(text.size()) +
                      " characters; 64 hexadecimal digits or 43 of base64url are expected");
  }
  if (secret.isEmpty()) {
    return Status(Code::kInvalidArgument, "secret is all zero; 256 random bits are expected");
  }
  return secret;
}

std::string Secret::revealText() const {
  return encodeBase64(bytes());
}

bool Secret::isEmpty() const {
  return sodium_is_zero(raw(bytes().data()), kBytes) == 1;
}

bool operator==(const Secret& left, const Secret& right) {
  return sodium_memcmp(left.bytes().data(), right.bytes().data(), Secret::kBytes) == 0;
}

Result<std::string> Ticket::encode() const {
  if (context.isNull()) return Status(Code::kInvalidArgument, "ticket without a context id");
  if (secret.isEmpty()) return Status(Code::kInvalidArgument, "ticket without a secret");
  if (addresses.size() > kMaxAddresses) {
    return Status(Code::kInvalidArgument, "ticket with " + std::to_string(addresses.size()) +
                                              " addresses; at most " +
                                              std::to_string(kMaxAddresses) + " fit");
  }
  size_t end = kFixedBytes;
  for (const std::string& address : addresses) {
    if (const std::string defect = addressDefect(address); !defect.empty()) {
      return Status(Code::kInvalidArgument, "ticket's address '" + address + "' " + defect);
    }
    end += 1 + address.size();
  }
  WipedBytes body(end + kChecksumBytes);
  ByteWriter writer{std::span(body.bytes)};
  writer.raw(context.bytes());
  writer.raw(secret.bytes());
  writer.u64(hostIdentity);
  writer.u8(static_cast<uint8_t>(addresses.size()));
  for (const std::string& address : addresses) {
    writer.u8(static_cast<uint8_t>(address.size()));
    writer.raw(std::as_bytes(std::span(address)));
  }
  writer.raw(checksumOf(std::span(body.bytes).first(end)));
  PEERLANE_CHECK(writer.ok() && writer.size() == body.bytes.size());
  return std::string(kPrefix) + encodeBase64(body.bytes);
}

Result<Ticket> Ticket::decode(std::string_view text) {
  text = trimmed(text);
  const bool shaped =
      text.size() >= kPrefix.size() && text.starts_with("pl") && text[2] >= '0' && text[2] <= '9';
  if (!shaped || text.size() > kMaxTextBytes) {
    return Status(Code::kInvalidArgument,
                  "not a ticket: a text of " + std::to_string(text.size()) +
                      " characters; one that begins with 'pl1' and has at most " +
                      std::to_string(kMaxTextBytes) + " is expected");
  }
  if (text[2] - '0' != kVersion) {
    return Status(Code::kInvalidArgument, std::string("ticket has version ") + text[2] +
                                              "; this build reads version " +
                                              std::to_string(kVersion));
  }
  WipedBytes binary(text.size());  // base64 shrinks, so this always suffices
  const auto size = decodeBase64(text.substr(kPrefix.size()), binary.bytes);
  if (!size) {
    return Status(Code::kCorrupt,
                  "ticket is damaged or truncated: what follows 'pl1' is not base64url");
  }
  return decodeBinary(std::span(binary.bytes).first(*size));
}

Result<Ticket> readTicket(std::string_view source, std::istream& standardInput) {
  PEERLANE_ASSIGN(std::string text, readSource(source, standardInput));
  auto ticket = Ticket::decode(text);
  sodium_memzero(text.data(), text.size());
  return ticket;
}

Result<Ticket> readTicket(std::string_view source) {
  return readTicket(source, std::cin);
}

Result<Secret> readSecret(std::string_view source, std::istream& standardInput) {
  PEERLANE_ASSIGN(std::string text, readSource(source, standardInput));
  auto secret = Secret::fromText(text);
  sodium_memzero(text.data(), text.size());
  return secret;
}

Result<Secret> readSecret(std::string_view source) {
  return readSecret(source, std::cin);
}

namespace {

// Four bytes of the hash of `parts`; never 0, which stands for what is not known.
uint32_t hashOf(std::initializer_list<std::span<const unsigned char>> parts) {
  std::array<unsigned char, crypto_generichash_BYTES> digest;
  crypto_generichash_state state;
  crypto_generichash_init(&state, nullptr, 0, digest.size());
  for (const auto part : parts) crypto_generichash_update(&state, part.data(), part.size());
  crypto_generichash_final(&state, digest.data(), digest.size());
  uint32_t hash = 0;
  for (size_t i = 0; i < sizeof hash; ++i) hash |= uint32_t{digest[i]} << (8 * i);
  return hash == 0 ? 1 : hash;
}

}  // namespace

uint64_t hostIdentityOf(std::string_view bootId, uint64_t netNamespace) {
  bootId = trimmed(bootId);
  if (bootId.empty()) return 0;
  const std::span boot(reinterpret_cast<const unsigned char*>(bootId.data()), bootId.size());
  std::array<unsigned char, 8> space;
  for (size_t i = 0; i < space.size(); ++i) {
    space[i] = static_cast<unsigned char>(netNamespace >> (8 * i));
  }
  return uint64_t{hashOf({boot})} << 32 | hashOf({boot, space});
}

HostRelation hostRelation(uint64_t theirs, uint64_t mine) {
  const auto bootOf = [](uint64_t identity) { return identity >> 32; };
  if (bootOf(theirs) == 0 || bootOf(mine) == 0) return HostRelation::kUnknown;
  if (theirs == mine) return HostRelation::kSameNetwork;
  return bootOf(theirs) == bootOf(mine) ? HostRelation::kOtherNetwork : HostRelation::kOtherHost;
}

// The boot does not change under a process, its network namespace may. A boot id that could not be
// read is asked for again. No lock: a child may be forked at any moment.
uint64_t localHostIdentity() {
  static std::atomic<const std::string*> known{nullptr};  // set once; readers acquire
  const std::string* boot = known.load(std::memory_order_acquire);
  if (boot == nullptr) {
    Result<std::string> read = bootId();
    if (!read) return 0;
    auto mine = std::make_unique<const std::string>(std::move(read).value());
    if (known.compare_exchange_strong(boot, mine.get(), std::memory_order_acq_rel))
      boot = mine.release();
  }
  const uint64_t network = namespaceInode("net");
  return network == 0 ? 0 : hostIdentityOf(*boot, network);
}

}  // namespace peerlane
